/* wgmma.h -- products of a warpgroup by sm_90's tensor cores, which read shared memory themselves:
 * inline PTX under nvcc for sm_90a, the emulator under LORAD_EMU.  For .cu files only.
 *
 * d += a b for a [64][16] and b [16][WGMMA_N], both with 16 consecutive k of a row side by side in
 * shared memory, rows 128 bytes apart, their eight pieces of 16 bytes permuted: WGMMA_PIECE().
 * With w = warp % 4, g = lane / 4, q = lane % 4 (PTX ISA, wgmma.mma_async.m64nNk16):
 *     d[4 j + i]  D[16 w + g + 8 (i / 2)][8 j + 2 q + i % 2]
 *
 * Nothing happens at once.  What a thread wrote to shared memory is seen after its
 * cu_fence_async() and a barrier.  cu_wgmma_fence() stands before the first product that uses
 * registers which were touched.  cu_wgmma_commit() closes a group; after CU_WGMMA_WAIT(n) all but
 * the last n groups are done: only then may d be touched, or what they read be overwritten.
 *
 * All 128 threads of four warps, the first a multiple of four, take part in every call.
 */
#ifndef ENGINE_CUDA_PRODUCTS_WGMMA_H
#define ENGINE_CUDA_PRODUCTS_WGMMA_H

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"

enum {
    WGMMA_M = 64,
    WGMMA_N = 208,
    WGMMA_K = 16,
    WGMMA_REGS = WGMMA_N / 2,
    WGMMA_ROW = 128,    /* bytes from a row to the next */
    WGMMA_ALIGN = 1024, /* of eight rows: the pattern of permuted pieces begins there */
};

/* Where piece `piece` of row `row` lies, in bytes. */
#define WGMMA_PIECE(row, piece) ((row)*WGMMA_ROW + (((piece) ^ ((row)&7)) << 4))

/* The operand that begins at this address of shared memory: pieces permuted by 128 bytes, eight
 * rows WGMMA_ALIGN bytes apart.  Two more: the next 16 k. */
CU_INLINE uint64_t cu_wgmma_operand(uint32_t address)
{
    const uint64_t permuted = (uint64_t)1 << 62, apart = (uint64_t)(WGMMA_ALIGN >> 4) << 32;
    return permuted | apart | (uint64_t)1 << 16 | (uint64_t)((address & 0x3FFFFU) >> 4);
}

enum { WGMMA_NEXT = 2 };

#ifdef LORAD_EMU

CU_INLINE uint32_t cu_wgmma_address(const void *shared)
{
    return emu_shared_address(shared);
}

CU_INLINE void cu_fence_async(void)
{
    emu_fence_async();
}

CU_INLINE void cu_wgmma_fence(void)
{
    emu_wgmma_fence();
}

CU_INLINE void cu_wgmma_commit(void)
{
    emu_wgmma_commit();
}

#    define CU_WGMMA_WAIT(groups_left) emu_wgmma_wait(groups_left)

/* `add`: to d; else d is what the product gives. */
template <bool BF16>
CU_INLINE void cu_wgmma(float *d, uint64_t a, uint64_t b, int add)
{
    emu_wgmma(d, a, b, WGMMA_N, BF16, add);
}

CU_INLINE void cu_wgmma_hold(float *)
{
}

#else

CU_INLINE uint32_t cu_wgmma_address(const void *shared)
{
    return cu_shared_address(shared);
}

CU_INLINE void cu_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

CU_INLINE void cu_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

CU_INLINE void cu_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#    define CU_WGMMA_WAIT(groups_left) \
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups_left) : "memory")

#    define CU_D8(i)                                                                        \
        "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
            "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#    define CU_WGMMA(type)                                                                     \
        asm volatile(                                                                          \
            "{\n.reg .pred p;\nsetp.ne.b32 p, %106, 0;\n"                                      \
            "wgmma.mma_async.sync.aligned.m64n208k16.f32." type "." type " {"                  \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
            "%96, %97, %98, %99, %100, %101, %102, %103"                                       \
            "}, %104, %105, p, 1, 1, 0, 0;\n}"                                                 \
            : CU_D8(0), CU_D8(8), CU_D8(16), CU_D8(24), CU_D8(32), CU_D8(40), CU_D8(48),       \
              CU_D8(56), CU_D8(64), CU_D8(72), CU_D8(80), CU_D8(88), CU_D8(96)                 \
            : "l"(a), "l"(b), "r"(add)                                                         \
            : "memory")

/* `add`: to d; else d is what the product gives. */
template <bool BF16>
CU_INLINE void cu_wgmma(float *d, uint64_t a, uint64_t b, int add)
{
    if (BF16)
        CU_WGMMA("bf16");
    else
        CU_WGMMA("f16");
}

/* What is done with d stays on this side of a wait. */
CU_INLINE void cu_wgmma_hold(float *d)
{
    CU_UNROLL
    for (int i = 0; i < WGMMA_REGS; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#endif

#endif
