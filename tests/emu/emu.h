/* emu.h -- runs CUDA kernels on the host, thread by thread, and watches every access.
 *
 * A `.cu` file compiled with -DLORAD_EMU (and add_emu_test()'s flags) finds the stand-ins of
 * tests/emu/include instead of the toolkit.  A launch runs its blocks one after another, the
 * threads of a block as fibers of the calling thread: in order, or in an order drawn from
 * emu_seed() again at every barrier, shuffle and other collective.
 *
 * Memory is watched by instrumentation: the compiler calls a hook for each load and store
 * (-fsanitize=thread, whose run-time library emu_memory.cpp stands in for), so kernels use plain
 * pointers.  Found, for shared and global memory alike, to two bytes:
 *     - accesses outside of the arrays of emu_alloc() and of the block's
 *       shared arrays, or misaligned;
 *     - reads of what nobody has written (shared memory starts each block as NaN patterns);
 *     - races: two threads touch the same place, one writes, and no barrier stands
 *       between.  __syncthreads() orders a block, a named barrier those that call it,
 *       __syncwarp(mask) those of the mask; shuffles, votes and mma order nothing.  Blocks of one
 *       launch are ordered by nothing but atomics after a __threadfence(), which order warps of a
 *       block as well;
 *     - cp.async: the target is unwritten from the issue until the thread's wait, and written at
 *       the wait; a source that changes until then; a thread that ends with copies in flight;
 *     - wgmma: its registers are NaN from the issue until the wait; what it reads must be fenced,
 *       and may not be written until then;
 *     - clusters, whose blocks run side by side: bulk copies land at the wait that asks for them,
 *       their targets are unwritten and their sources may not change until then; copies to what
 *       another block has not said to be read, by an mbarrier that the sender waited for; mbarriers
 *       used before they are known to be made, or by too many; blocks that end and that others have
 *       reached since the last barrier of the cluster.  That barrier orders mbarriers alone here,
 *       and what a block says by an mbarrier is of what it did before its last __syncthreads();
 *     - barriers that not all threads reach, or reach at different lines; collectives whose mask
 *       names lanes that never come;
 *     - launches that may begin early (launch.h), before their wait: any write, and reads of what
 *       launches wrote that may still run then, which are all of the stream back to the last one
 *       that did not begin early; after it: reads of that by loads for memory which nobody
 *       writes while the kernel runs; threads that end without the wait.
 * Not found: races between single bytes; writes of what threads of another named barrier have read;
 * of warps of one block that atomics order, what a thread does behind its atomic until its warp's
 * next barrier; overruns from one part of a shared array into another part of the same array;
 * anything about time, caches or the memory model's reordering.
 *
 * Host memory is not device memory: kernels may touch only emu_alloc()'s, their arguments, their
 * own stack, and constants of the program.
 *
 * Threads: one launch at a time in a process (a lock); the rest is for the launching thread.
 */
#ifndef EMU_H
#define EMU_H

#include <stddef.h>
#include <stdint.h>
#include <tuple>

/* ---- faults ------------------------------------------------------------------- */

typedef enum {
    EMU_OK,
    EMU_BOUNDS,     /* outside of every array, or of the wrong kind of memory */
    EMU_MISALIGNED, /* a wide access that is not aligned to its size */
    EMU_UNINIT,     /* read before written */
    EMU_RACE,       /* no barrier between two accesses of two threads */
    EMU_DIVERGED,   /* threads that wait for each other at different places, or have ended */
    EMU_IN_FLIGHT,  /* ended with cp.async or wgmma not waited for */
    EMU_CONFIG,     /* a launch that a device would refuse */
    EMU_UNFENCED,   /* wgmma, mbarriers: what no fence has made known to who uses it */
    EMU_EARLY,      /* what a launch may not do that begins before others have ended */
    EMU_ENDED,      /* a block of a cluster has ended that others may still reach */
} emu_fault_kind;

/* Without this a fault prints its message and aborts.  With it, the launch ends at the first
 * fault (its memory is then undefined), later launches do nothing, and emu_take_fault() says
 * what it was and clears it. */
void emu_catch_faults(void);
emu_fault_kind emu_take_fault(char *msg, size_t size); /* msg may be NULL */
emu_fault_kind emu_peek_fault(void);

/* 0: threads and blocks run in order; else at random, the same for the same seed. */
void emu_seed(uint64_t seed);

/* Whether sums of mma are cut off as tensor cores do it: 1 as those of sm_80, 2 as those of sm_90;
 * else (default) they are exact, and rounded once.  wgmma's are cut off as those of sm_90. */
void emu_mma_truncates(int on);

/* Whether launches can begin early here. */
static inline bool emu_begins_early(void)
{
    return true;
}

typedef struct emu_counts {
    uint64_t launches, blocks, threads, switches, accesses;
} emu_counts;
emu_counts emu_count(void);

/* ---- device memory --------------------------------------------------------------- */

/* 256-byte aligned, unwritten, of exactly `bytes`; kernels that leave it are found.  Host code may
 * read and write it directly, and says so with emu_wrote() after it wrote. */
void *emu_alloc(size_t bytes);
/* The same, for a host that reads only what emu_first_unwritten() has seen: may hold anything. */
void *emu_alloc_bare(size_t bytes);
void emu_free(void *p);
void emu_wrote(const void *p, size_t bytes);
enum { EMU_DEVICES = 8 }; /* at most */
/* Whose memory is allocated and whose kernels run from now on: the first device's, 0, at the
 * beginning.  A kernel reaches its own device's memory, and that of devices that it is allowed to;
 * from < 0: nobody is allowed any more. */
void emu_device(int device);
void emu_allow_peer(int from, int to);
/* NULL, or the first byte of the range that is not device memory or was never written. */
const void *emu_first_unwritten(const void *p, size_t bytes);
int emu_is_device(const void *p, size_t bytes);

/* ---- inside kernels: used by the stand-in headers and engine/cuda/products/intrin.h ---- */

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct uint3 {
    unsigned x, y, z;
};

typedef struct emu_where {
    uint3 thread_idx, block_idx;
    dim3 block_dim, grid_dim;
} emu_where;
uint3 emu_thread_idx(void);
uint3 emu_block_idx(void);
dim3 emu_block_dim(void);
dim3 emu_grid_dim(void);

void emu_syncthreads(const char *file, int line);
int emu_syncthreads_count(int pred, const char *file, int line);
/* bar.sync id, n_thread: a barrier of its own for those that call it, id 1 to 15.  Between two
 * __syncthreads() a thread keeps to one. */
void emu_barrier_of(int id, int n_thread, const char *file, int line);
/* Others may run: for a thread that looks again and again for what they do. */
void emu_pause(void);
void emu_syncwarp(unsigned mask);
void emu_threadfence(void);

typedef enum { EMU_SHFL_IDX, EMU_SHFL_UP, EMU_SHFL_DOWN, EMU_SHFL_XOR } emu_shfl_kind;
uint32_t emu_shfl(emu_shfl_kind kind, unsigned mask, uint32_t v, int arg, int width);
unsigned emu_ballot(unsigned mask, int pred);

/* d += a b, fragments as in PTX's mma.sync.m16n8k16 and m16n8k8, f32 sums.  k: 16 or 8. */
void emu_mma(float *d, const uint32_t *a, const uint32_t *b, int k, int bf16);
/* n = 1, 2, 4 matrices of 8 x 8 halves; lane i gives the address of row i % 8 of matrix i / 8. */
void emu_ldmatrix(uint32_t *r, const void *row, int n, int trans);

/* 4, 8 or 16 bytes in one access. */
void emu_load(void *to, const void *from, int bytes);
void emu_store(void *to, const void *from, int bytes);
/* A load of memory that nobody writes while the kernel runs. */
void emu_load_still(void *to, const void *from, int bytes);
/* Global memory to the second-level cache: nothing is read, but it must be there. */
void emu_fetch_ahead(const void *p, uint32_t bytes);
/* The launches before this one have ended. */
void emu_grid_wait(void);

/* wgmma.mma_async.m64nNk16, its operands' descriptors as in PTX (permuted by 128 bytes, in dynamic
 * shared memory), `add`: to d. */
uint32_t emu_shared_address(const void *p);
void emu_fence_async(void); /* fence.proxy.async */
void emu_wgmma_fence(void);
void emu_wgmma(float *d, uint64_t a, uint64_t b, int n, int bf16, int add);
void emu_wgmma_commit(void);
void emu_wgmma_wait(int groups_left);

/* Clusters of blocks (tests/emu/cluster.h).  emu_barrier_*: mbarriers in dynamic shared
 * memory.  arrive: at the same place of block `block`; expect: an arrival of one's own and bytes
 * that are to come; wait: for the phase of this parity. */
uint32_t emu_cluster_rank(void);
void emu_cluster_arrive(void);
void emu_cluster_wait(void);
void emu_barrier_init(uint64_t *barrier, uint32_t count);
void emu_fence_barrier_init(void);
void emu_barrier_expect(uint64_t *barrier, uint32_t bytes);
void emu_barrier_arrive(uint64_t *barrier, uint32_t block);
void emu_barrier_wait(uint64_t *barrier, uint32_t parity);
/* A bulk copy to the same place of all blocks of the mask, told to the mbarrier of each. */
void emu_send(void *shared, const void *global, uint32_t bytes, uint64_t *barrier, uint16_t mask);
enum { EMU_SM = 4 }; /* multiprocessors, as many as tests/emu/cuda_rt says */

void emu_cp_async(void *shared, const void *global, int bytes, int valid_bytes);
void emu_cp_async_commit(void);
void emu_cp_async_wait(int groups_left); /* -1: all, committed or not */

typedef enum { EMU_ADD, EMU_MAX, EMU_MIN, EMU_OR, EMU_AND, EMU_EXCH } emu_atomic_op;
int32_t emu_atomic_i32(int32_t *p, int32_t v, emu_atomic_op op);
uint32_t emu_atomic_u32(uint32_t *p, uint32_t v, emu_atomic_op op);
float emu_atomic_f32(float *p, float v, emu_atomic_op op);
uint32_t emu_atomic_cas(uint32_t *p, uint32_t expected, uint32_t v);

void *emu_dynamic_shared(void);
/* `key` names the declaration: the same array for all threads of a block. */
void *emu_static_shared(const void *key, size_t bytes);

/* ---- launches -------------------------------------------------------------------- */

struct CUstream_st;
/* A call of a kernel.  early: it may begin before the stream's launches before it have ended.
 * cluster: so many blocks side by side in x run together. */
typedef struct emu_job {
    const void *kernel;
    const char *name;
    dim3 grid, block;
    size_t shared;
    struct CUstream_st *stream; /* or NULL, one more */
    bool early;
    unsigned cluster;
    void (*body)(const void *args);
    const void *args;
    size_t args_bytes;
} emu_job;
void emu_launch_raw(const emu_job *job);
/* The stream's next launch does not begin before all that it has had have ended. */
void emu_apart(struct CUstream_st *stream);
/* More than 48 KiB of dynamic shared memory must have been asked for. */
void emu_allow_shared(const void *kernel, size_t bytes);

/* Set by an emulated run-time library (tests/emu/cuda_rt/): launches on a stream go there, to be
 * run in the stream's turn by emu_launch_raw().  The arguments are the callee's to copy. */
typedef void (*emu_stream_fn)(const emu_job *job);
extern emu_stream_fn emu_on_stream;

template <class... P>
struct emu_call {
    void (*kernel)(P...);
    std::tuple<P...> args;
    static void body(const void *self)
    {
        const emu_call *c = static_cast<const emu_call *>(self);
        std::apply(c->kernel, c->args);
    }
};

template <class... P, class... A>
static inline void emu_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                              size_t shared, struct CUstream_st *stream, bool early,
                              unsigned cluster, A... args)
{
    emu_call<P...> call = {kernel, std::tuple<P...>(args...)};
    emu_job job = {reinterpret_cast<const void *>(kernel),
                   name,
                   grid,
                   block,
                   shared,
                   stream,
                   early,
                   cluster,
                   emu_call<P...>::body,
                   &call,
                   sizeof(call)};
    if (emu_on_stream && stream)
        emu_on_stream(&job);
    else
        emu_launch_raw(&job);
}

#endif
