/* intrin.h -- every device instruction that our kernels use beyond plain C: one name
 * each, inline PTX under nvcc, the emulator under LORAD_EMU (tests/emu/emu.h).  For .cu
 * files only; sm_80 and newer.
 *
 * Halves are uint16_t bits, pairs of them uint32_t with the element of the
 * lower index in the lower half.
 *
 * mma: d += a b with f32 sums.  Fragments, with g = lane / 4 and q = lane %
 *      4 (PTX ISA, mma.m16n8k16):
 *     a[i]  A[g + 8 (i % 2)][2q + 8 (i / 2)] and the next column      (k8: i < 2)
 *     b[i]  B[2q + 8i][g] and the next row                            (k8: one register)
 *     d[i]  D[g + 8 (i / 2)][2q + i % 2]
 * The sum over k may be permuted by giving a and b the same permutation of columns and rows.
 *
 * All lanes of a warp take part in every call of a shuffle, vote, mma or ldmatrix.
 */
#ifndef ENGINE_CUDA_PRODUCTS_INTRIN_H
#define ENGINE_CUDA_PRODUCTS_INTRIN_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda_runtime.h>

#define CU_INLINE static __device__ __forceinline__
#define CU_FULL   0xFFFFFFFFU
/* The same for a function in a struct. */
#define CU_INLINE_METHOD __device__ __forceinline__

/* Launch bounds of kernels with few registers: `few` up to sm_90; `more` on newer devices, where
 * the compiler would spill registers with `few`. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 900
#    define CU_UP_TO_SM90(few, more) (more)
#else
#    define CU_UP_TO_SM90(few, more) (few)
#endif

enum { CU_WARP = 32 };

/* ---- bits and halves ---------------------------------------------------------------- */

#ifdef LORAD_EMU

CU_INLINE float cu_f32_of_bits(uint32_t u)
{
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}

CU_INLINE uint32_t cu_bits_of_f32(float f)
{
    uint32_t u;
    __builtin_memcpy(&u, &f, 4);
    return u;
}

CU_INLINE uint16_t cu_bf16_of(float f) /* round to nearest even */
{
    uint32_t u = cu_bits_of_f32(f);
    if ((u & 0x7FFFFFFFU) > 0x7F800000U) return 0x7FFF;
    return (uint16_t)((u + 0x7FFFU + (u >> 16 & 1)) >> 16);
}

CU_INLINE float cu_f32_of_f16(uint16_t h)
{
    return (float)__builtin_bit_cast(_Float16, h);
}

CU_INLINE uint16_t cu_f16_of(float f)
{
    return __builtin_bit_cast(uint16_t, (_Float16)f);
}

CU_INLINE uint32_t cu_bf16x2_of(float lo, float hi)
{
    return (uint32_t)cu_bf16_of(hi) << 16 | cu_bf16_of(lo);
}

CU_INLINE uint32_t cu_f16x2_of(float lo, float hi)
{
    return (uint32_t)cu_f16_of(hi) << 16 | cu_f16_of(lo);
}

#else

CU_INLINE float cu_f32_of_bits(uint32_t u)
{
    return __uint_as_float(u);
}

CU_INLINE uint32_t cu_bits_of_f32(float f)
{
    return __float_as_uint(f);
}

CU_INLINE uint32_t cu_bf16x2_of(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

CU_INLINE uint32_t cu_f16x2_of(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

CU_INLINE uint16_t cu_bf16_of(float f)
{
    uint16_t r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(f));
    return r;
}

CU_INLINE uint16_t cu_f16_of(float f)
{
    uint16_t r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(f));
    return r;
}

CU_INLINE float cu_f32_of_f16(uint16_t h)
{
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h));
    return r;
}

#endif

#ifdef LORAD_EMU

/* To nearest even, at once. */
CU_INLINE uint16_t cu_bf16_of_f64(double d)
{
    float f = (float)d;
    uint32_t u = cu_bits_of_f32(f);
    if ((double)f != d) { /* to odd first: the second rounding is then that of d */
        if (fabs((double)f) > fabs(d)) u--;
        u |= 1;
    }
    return cu_bf16_of(cu_f32_of_bits(u));
}

/* a * b + c of both halves, each rounded once. */
CU_INLINE uint32_t cu_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r = 0;
    for (int at = 0; at < 32; at += 16) {
        double v[3];
        const uint32_t from[3] = {a, b, c};
        for (int i = 0; i < 3; i++) v[i] = (double)cu_f32_of_bits(from[i] >> at << 16);
        r |= (uint32_t)cu_bf16_of_f64(v[0] * v[1] + v[2]) << at;
    }
    return r;
}

#else

CU_INLINE uint32_t cu_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

#endif

/* (a & b) | c, one instruction: what is constant comes out of registers. */
CU_INLINE uint32_t cu_and_or(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef LORAD_EMU
    return (a & b) | c;
#else
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
#endif
}

/* The lowest byte, a whole number from -128 on, and the third, exactly: 128 + the lower seven bits,
 * less 128 + the eighth bit's 128. */
CU_INLINE uint32_t cu_bf16x2_of_i8(uint32_t bytes)
{
    const uint32_t by_128 = 0x43004300U, minus_one = 0xBF80BF80U;
    return cu_fma_bf16x2(cu_and_or(bytes, 0x00800080U, by_128), minus_one,
                         cu_and_or(bytes, 0x007F007FU, by_128));
}

CU_INLINE float cu_f32_of_bf16(uint16_t h)
{
    return cu_f32_of_bits((uint32_t)h << 16);
}

/* The lower and the upper of a pair. */
CU_INLINE float cu_bf16_lo(uint32_t pair)
{
    return cu_f32_of_bits(pair << 16);
}

CU_INLINE float cu_bf16_hi(uint32_t pair)
{
    return cu_f32_of_bits(pair & 0xFFFF0000U);
}

/* ---- functions: a few units in the last place on a device ------------------------------- */

#ifdef LORAD_EMU
#    define cu_exp(x)   expf(x)
#    define cu_exp2(x)  exp2f(x)
#    define cu_log(x)   logf(x)
#    define cu_rsqrt(x) (1.0F / sqrtf(x))
#    define cu_rcp(x)   (1.0F / (x))
#else
#    define cu_exp(x)   __expf(x)
#    define cu_exp2(x)  cu_ex2(x)
#    define cu_log(x)   __logf(x)
#    define cu_rsqrt(x) rsqrtf(x)
#    define cu_rcp(x)   __frcp_rn(x)
CU_INLINE float cu_ex2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
#endif

/* ---- wide loads and stores: aligned to their size ------------------------------------- */

#ifdef LORAD_EMU

CU_INLINE uint4 cu_ld16(const void *p)
{
    uint4 r;
    emu_load(&r, p, 16);
    return r;
}

CU_INLINE uint2 cu_ld8(const void *p)
{
    uint2 r;
    emu_load(&r, p, 8);
    return r;
}

CU_INLINE uint4 cu_ldg16(const void *p)
{
    uint4 r;
    emu_load_still(&r, p, 16);
    return r;
}

CU_INLINE uint2 cu_ldg8(const void *p)
{
    uint2 r;
    emu_load_still(&r, p, 8);
    return r;
}

CU_INLINE uint32_t cu_ldg4(const void *p)
{
    uint32_t r;
    emu_load_still(&r, p, 4);
    return r;
}

CU_INLINE uint4 cu_ldg16_once(const void *p)
{
    return cu_ldg16(p);
}

CU_INLINE uint2 cu_ldg8_once(const void *p)
{
    return cu_ldg8(p);
}

CU_INLINE void cu_st16(void *p, uint4 v)
{
    emu_store(p, &v, 16);
}

CU_INLINE void cu_st8(void *p, uint2 v)
{
    emu_store(p, &v, 8);
}

#else

/* Any memory. */
CU_INLINE uint4 cu_ld16(const void *p)
{
    return *(const uint4 *)p;
}

CU_INLINE uint2 cu_ld8(const void *p)
{
    return *(const uint2 *)p;
}

/* Global memory that nobody writes while the kernel runs. */
CU_INLINE uint4 cu_ldg16(const void *p)
{
    return __ldg((const uint4 *)p);
}

CU_INLINE uint2 cu_ldg8(const void *p)
{
    return __ldg((const uint2 *)p);
}

CU_INLINE uint32_t cu_ldg4(const void *p)
{
    return __ldg((const uint32_t *)p);
}

/* The same for what is read once: leaves the first-level cache to others. */
CU_INLINE uint4 cu_ldg16_once(const void *p)
{
    uint4 r;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p));
    return r;
}

CU_INLINE uint2 cu_ldg8_once(const void *p)
{
    uint2 r;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(r.x), "=r"(r.y)
                 : "l"(p));
    return r;
}

CU_INLINE void cu_st16(void *p, uint4 v)
{
    *(uint4 *)p = v;
}

CU_INLINE void cu_st8(void *p, uint2 v)
{
    *(uint2 *)p = v;
}

#endif

CU_INLINE float4 cu_ld_f32x4(const float *p)
{
    uint4 u = cu_ld16(p);
    return make_float4(cu_f32_of_bits(u.x), cu_f32_of_bits(u.y), cu_f32_of_bits(u.z),
                       cu_f32_of_bits(u.w));
}

CU_INLINE void cu_st_f32x4(float *p, float4 v)
{
    cu_st16(p, make_uint4(cu_bits_of_f32(v.x), cu_bits_of_f32(v.y), cu_bits_of_f32(v.z),
                          cu_bits_of_f32(v.w)));
}

/* ---- copies from global to shared memory beside the computation ----------------------------
 *
 * The data is there for the issuing thread after the wait, for others after a barrier behind it. */

#ifdef LORAD_EMU

CU_INLINE void cu_cp_async16(void *shared, const void *global)
{
    emu_cp_async(shared, global, 16, 16);
}

/* Zeros where !valid; `global` must be a valid address all the same. */
CU_INLINE void cu_cp_async16_or_zero(void *shared, const void *global, bool valid)
{
    emu_cp_async(shared, global, 16, valid ? 16 : 0);
}

CU_INLINE void cu_cp_async8(void *shared, const void *global)
{
    emu_cp_async(shared, global, 8, 8);
}

CU_INLINE void cu_cp_async4_or_zero(void *shared, const void *global, bool valid)
{
    emu_cp_async(shared, global, 4, valid ? 4 : 0);
}

CU_INLINE void cu_cp_async_commit(void)
{
    emu_cp_async_commit();
}

#    define CU_CP_ASYNC_WAIT(groups_left) emu_cp_async_wait(groups_left)

#else

CU_INLINE uint32_t cu_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

CU_INLINE void cu_cp_async16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(cu_shared_address(shared)),
                 "l"(global)
                 : "memory");
}

CU_INLINE void cu_cp_async16_or_zero(void *shared, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(cu_shared_address(shared)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

CU_INLINE void cu_cp_async8(void *shared, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(cu_shared_address(shared)),
                 "l"(global)
                 : "memory");
}

CU_INLINE void cu_cp_async4_or_zero(void *shared, const void *global, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(cu_shared_address(shared)),
                 "l"(global), "r"(valid ? 4 : 0)
                 : "memory");
}

CU_INLINE void cu_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most so many (a constant) of this thread's last committed groups are under way. */
#    define CU_CP_ASYNC_WAIT(groups_left) \
        asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory")

#endif

/* ---- matrices --------------------------------------------------------------------- */

#ifdef LORAD_EMU

CU_INLINE void cu_mma_bf16_k16(float *d, const uint32_t *a, const uint32_t *b)
{
    emu_mma(d, a, b, 16, 1);
}

CU_INLINE void cu_mma_f16_k16(float *d, const uint32_t *a, const uint32_t *b)
{
    emu_mma(d, a, b, 16, 0);
}

CU_INLINE void cu_mma_bf16_k8(float *d, const uint32_t *a, uint32_t b)
{
    emu_mma(d, a, &b, 8, 1);
}

CU_INLINE void cu_mma_f16_k8(float *d, const uint32_t *a, uint32_t b)
{
    emu_mma(d, a, &b, 8, 0);
}

CU_INLINE void cu_ldmatrix_x4(uint32_t *r, const void *row)
{
    emu_ldmatrix(r, row, 4, 0);
}

CU_INLINE void cu_ldmatrix_x2(uint32_t *r, const void *row)
{
    emu_ldmatrix(r, row, 2, 0);
}

CU_INLINE void cu_ldmatrix_x4_trans(uint32_t *r, const void *row)
{
    emu_ldmatrix(r, row, 4, 1);
}

CU_INLINE void cu_ldmatrix_x2_trans(uint32_t *r, const void *row)
{
    emu_ldmatrix(r, row, 2, 1);
}

#else

CU_INLINE void cu_mma_bf16_k16(float *d, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

CU_INLINE void cu_mma_f16_k16(float *d, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

CU_INLINE void cu_mma_bf16_k8(float *d, const uint32_t *a, uint32_t b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, "
                 "{%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

CU_INLINE void cu_mma_f16_k8(float *d, const uint32_t *a, uint32_t b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, "
                 "{%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* Lane i gives the address of row i % 8 of the 8 x 8 matrix i / 8 in shared memory, 16-byte
 * aligned. Lane l gets of each matrix the elements (l / 4, 2 (l % 4)) and the next; transposed,
 * those of (2 (l % 4), l / 4) and the next row. */
CU_INLINE void cu_ldmatrix_x4(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cu_shared_address(row))
                 : "memory");
}

CU_INLINE void cu_ldmatrix_x2(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(cu_shared_address(row))
                 : "memory");
}

CU_INLINE void cu_ldmatrix_x4_trans(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cu_shared_address(row))
                 : "memory");
}

CU_INLINE void cu_ldmatrix_x2_trans(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(cu_shared_address(row))
                 : "memory");
}

#endif

/* ---- launches that begin before the ones before have ended (launch.h) -------------------- */

#ifdef LORAD_EMU

CU_INLINE void cu_grid_go(void)
{
}

CU_INLINE void cu_grid_wait(void)
{
    emu_grid_wait();
}

CU_INLINE void cu_fetch_ahead(const void *p, uint32_t bytes)
{
    emu_fetch_ahead(p, bytes);
}

#else

/* The next launch, if it may begin early, may now, for all that this block does. */
CU_INLINE void cu_grid_go(void)
{
#    if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#    endif
}

/* All launches before have ended, and what they wrote is here: also those before the one before,
 * for each waits in every thread.  No load for memory that nobody writes while the kernel runs
 * may read it. */
CU_INLINE void cu_grid_wait(void)
{
#    if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#    endif
}

/* Global memory on its way to the second-level cache; both multiples of 16. */
CU_INLINE void cu_fetch_ahead(const void *p, uint32_t bytes)
{
#    if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#    else
    (void)p;
    (void)bytes;
#    endif
}

#endif

/* ---- warps ------------------------------------------------------------------------ */

#ifdef LORAD_EMU

CU_INLINE uint32_t cu_shfl_u32(uint32_t v, int lane)
{
    return emu_shfl(EMU_SHFL_IDX, CU_FULL, v, lane, CU_WARP);
}

CU_INLINE uint32_t cu_shfl_xor_u32(uint32_t v, int lanes)
{
    return emu_shfl(EMU_SHFL_XOR, CU_FULL, v, lanes, CU_WARP);
}

CU_INLINE uint32_t cu_shfl_up_u32(uint32_t v, int lanes)
{
    return emu_shfl(EMU_SHFL_UP, CU_FULL, v, lanes, CU_WARP);
}

CU_INLINE uint32_t cu_shfl_down_u32(uint32_t v, int lanes)
{
    return emu_shfl(EMU_SHFL_DOWN, CU_FULL, v, lanes, CU_WARP);
}

CU_INLINE uint32_t cu_ballot(bool pred)
{
    return emu_ballot(CU_FULL, pred);
}

CU_INLINE void cu_syncwarp(void)
{
    emu_syncwarp(CU_FULL);
}

/* A barrier of its own for the block's warps that call it: `threads` of them, id from 1 to 15. */
#    define cu_barrier_of(id, threads) emu_barrier_of(id, threads, __FILE__, __LINE__)

/* For one that waits for what other blocks do. */
CU_INLINE void cu_pause(void)
{
    emu_pause();
}

/* The same number, of which the compiler knows no more: what hangs on it is computed here, and not
 * kept from before in registers. */
CU_INLINE int cu_anew(int i)
{
    return i;
}

/* What this thread wrote before is seen by all threads that see what it writes after. */
CU_INLINE void cu_threadfence(void)
{
    __threadfence();
}

/* What another block wrote, behind a fence. */
CU_INLINE float cu_ld_fresh(const float *p)
{
    return *p;
}

CU_INLINE uint2 cu_ld8_fresh(const void *p)
{
    uint2 v;
    emu_load(&v, p, 8);
    return v;
}

CU_INLINE uint32_t cu_atomic_add_u32(uint32_t *p, uint32_t v)
{
    return emu_atomic_u32(p, v, EMU_ADD);
}

/* What blocks before it had written when they counted it up is there for this lane. */
CU_INLINE uint32_t cu_load_acquire(uint32_t *p)
{
    return emu_atomic_u32(p, 0, EMU_ADD);
}

CU_INLINE int32_t cu_atomic_add_i32(int32_t *p, int32_t v)
{
    return emu_atomic_i32(p, v, EMU_ADD);
}

CU_INLINE int32_t cu_atomic_max_i32(int32_t *p, int32_t v)
{
    return emu_atomic_i32(p, v, EMU_MAX);
}

CU_INLINE uint32_t cu_atomic_max_u32(uint32_t *p, uint32_t v)
{
    return emu_atomic_u32(p, v, EMU_MAX);
}

CU_INLINE uint32_t cu_atomic_or_u32(uint32_t *p, uint32_t v)
{
    return emu_atomic_u32(p, v, EMU_OR);
}

CU_INLINE uint32_t cu_atomic_cas_u32(uint32_t *p, uint32_t expected, uint32_t v)
{
    return emu_atomic_cas(p, expected, v);
}

#else

CU_INLINE uint32_t cu_shfl_u32(uint32_t v, int lane)
{
    return __shfl_sync(CU_FULL, v, lane);
}

CU_INLINE uint32_t cu_shfl_xor_u32(uint32_t v, int lanes)
{
    return __shfl_xor_sync(CU_FULL, v, lanes);
}

CU_INLINE uint32_t cu_shfl_up_u32(uint32_t v, int lanes)
{
    return __shfl_up_sync(CU_FULL, v, (unsigned)lanes);
}

CU_INLINE uint32_t cu_shfl_down_u32(uint32_t v, int lanes)
{
    return __shfl_down_sync(CU_FULL, v, (unsigned)lanes);
}

CU_INLINE uint32_t cu_ballot(bool pred)
{
    return __ballot_sync(CU_FULL, pred);
}

CU_INLINE void cu_syncwarp(void)
{
    __syncwarp();
}

CU_INLINE void cu_barrier_of(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

CU_INLINE void cu_pause(void)
{
#    if __CUDA_ARCH__ >= 700
    __nanosleep(100);
#    endif
}

CU_INLINE int cu_anew(int i)
{
    asm volatile("" : "+r"(i));
    return i;
}

CU_INLINE void cu_threadfence(void)
{
    __threadfence();
}

CU_INLINE float cu_ld_fresh(const float *p)
{
    return __ldcg(p);
}

CU_INLINE uint2 cu_ld8_fresh(const void *p)
{
    return __ldcg((const uint2 *)p);
}

CU_INLINE uint32_t cu_atomic_add_u32(uint32_t *p, uint32_t v)
{
    return atomicAdd(p, v);
}

CU_INLINE uint32_t cu_load_acquire(uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

CU_INLINE int32_t cu_atomic_add_i32(int32_t *p, int32_t v)
{
    return atomicAdd(p, v);
}

CU_INLINE int32_t cu_atomic_max_i32(int32_t *p, int32_t v)
{
    return atomicMax(p, v);
}

CU_INLINE uint32_t cu_atomic_max_u32(uint32_t *p, uint32_t v)
{
    return atomicMax(p, v);
}

CU_INLINE uint32_t cu_atomic_or_u32(uint32_t *p, uint32_t v)
{
    return atomicOr(p, v);
}

CU_INLINE uint32_t cu_atomic_cas_u32(uint32_t *p, uint32_t expected, uint32_t v)
{
    return atomicCAS(p, expected, v);
}

#endif

CU_INLINE float cu_shfl_f32(float v, int lane)
{
    return cu_f32_of_bits(cu_shfl_u32(cu_bits_of_f32(v), lane));
}

CU_INLINE float cu_shfl_xor_f32(float v, int lanes)
{
    return cu_f32_of_bits(cu_shfl_xor_u32(cu_bits_of_f32(v), lanes));
}

CU_INLINE float cu_shfl_up_f32(float v, int lanes)
{
    return cu_f32_of_bits(cu_shfl_up_u32(cu_bits_of_f32(v), lanes));
}

CU_INLINE float cu_shfl_down_f32(float v, int lanes)
{
    return cu_f32_of_bits(cu_shfl_down_u32(cu_bits_of_f32(v), lanes));
}

/* Of v, which is not 0. */
CU_INLINE int cu_leading_zeros(uint32_t v)
{
#ifdef LORAD_EMU
    return __builtin_clz(v);
#else
    return __clz((int)v);
#endif
}

CU_INLINE bool cu_any(bool pred)
{
    return cu_ballot(pred) != 0;
}

CU_INLINE bool cu_all(bool pred)
{
    return cu_ballot(pred) == CU_FULL;
}

/* The same bits for all lanes. */
CU_INLINE float cu_warp_sum(float v)
{
    for (int lanes = CU_WARP / 2; lanes > 0; lanes /= 2) v += cu_shfl_xor_f32(v, lanes);
    return v;
}

CU_INLINE float cu_warp_max(float v)
{
    for (int lanes = CU_WARP / 2; lanes > 0; lanes /= 2) v = fmaxf(v, cu_shfl_xor_f32(v, lanes));
    return v;
}

#endif
