/* cluster.h -- blocks of a cluster on sm_90: their barrier, mbarriers, copies to several blocks at
 * once: inline PTX under nvcc for sm_90a, the emulator under LORAD_EMU.  For .cu files only.
 *
 * An mbarrier is 8 bytes of dynamic shared memory, at the same place in each block.  A phase of it
 * ends when all arrivals have come and as many bytes as were expected; then the next one begins.
 * Phases are told apart by parity, the first one's is 0.
 *
 *     cu_barrier_init()     so many arrivals a phase; before anybody uses it, who made it calls
 *                           cu_fence_barriers(), and then all meet: cu_cluster_arrive(), then
 *                           cu_cluster_wait()
 *     cu_barrier_expect()   one arrival, and so many more bytes to come in this phase
 *     cu_barrier_arrive()   one arrival, at block `block`'s
 *     cu_barrier_wait()     until the phase of this parity has ended: what those who arrived had
 *                           done is done, and what was copied is here.  Where it does not end, a
 *                           fault of the device after about two seconds
 *     cu_send()             copies to the same place of each block of the mask, and tells the
 *                           mbarrier there; all multiples of 16.  What stood there must have been
 *                           read, and the wait for that is the sender's
 *
 * A block ends only when no other one can reach it any more: all meet once more.
 */
#ifndef ENGINE_CUDA_PRODUCTS_CLUSTER_H
#define ENGINE_CUDA_PRODUCTS_CLUSTER_H

#include "engine/cuda/products/intrin.h"

#ifdef LORAD_EMU

CU_INLINE uint32_t cu_cluster_rank(void)
{
    return emu_cluster_rank();
}

CU_INLINE void cu_cluster_arrive(void)
{
    emu_cluster_arrive();
}

CU_INLINE void cu_cluster_wait(void)
{
    emu_cluster_wait();
}

CU_INLINE void cu_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    emu_barrier_init(barrier, arrivals);
}

CU_INLINE void cu_fence_barriers(void)
{
    emu_fence_barrier_init();
}

CU_INLINE void cu_barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    emu_barrier_expect(barrier, bytes);
}

CU_INLINE void cu_barrier_arrive(uint64_t *barrier, uint32_t block)
{
    emu_barrier_arrive(barrier, block);
}

CU_INLINE void cu_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    emu_barrier_wait(barrier, parity);
}

CU_INLINE void cu_send(void *shared, const void *global, uint32_t bytes, uint64_t *barrier,
                       uint16_t mask)
{
    emu_send(shared, global, bytes, barrier, mask);
}

#else

/* Of the running block in its cluster. */
CU_INLINE uint32_t cu_cluster_rank(void)
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

/* All threads of a warp together, both.  Relaxed: barriers that were made have their own fence, and
 * nobody reads what others wrote.  With .release it would wait for each store on its way to memory
 * (MEMBAR.ALL.GPU). */
CU_INLINE void cu_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

CU_INLINE void cu_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

CU_INLINE void cu_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cu_shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

CU_INLINE void cu_fence_barriers(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

CU_INLINE void cu_barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                     cu_shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

/* What it tells of is reads of this block's shared memory, which a block's barrier has brought to
 * this thread: with .release.cluster it would wait for memory, once a stage, as above. */
CU_INLINE void cu_barrier_arrive(uint64_t *barrier, uint32_t block)
{
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(cu_shared_address(barrier)),
        "r"(block)
        : "memory");
}

/* Has the phase of this parity ended?  Waits for a while that the device chooses. */
CU_INLINE bool cu_barrier_try(uint64_t *barrier, uint32_t parity)
{
    uint32_t ended;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended)
                 : "r"(cu_shared_address(barrier)), "r"(parity)
                 : "memory");
    return ended != 0;
}

/* The clock is looked at every so many tries.  What passes between two looks counts up to a most,
 * for the device may have been another process's meanwhile. */
enum { CU_WAIT_TRIES = 64, CU_WAIT_NS = 2000000000, CU_WAIT_MOST_NS = CU_WAIT_NS / 4 };

CU_INLINE void cu_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t waited = 0, last = 0;
    for (uint32_t tries = 1; !cu_barrier_try(barrier, parity); tries++) {
        if (tries % CU_WAIT_TRIES) continue;
        uint32_t now;
        asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now));
        if (tries > CU_WAIT_TRIES) waited += min(now - last, (uint32_t)CU_WAIT_MOST_NS);
        last = now;
        if (waited > CU_WAIT_NS) __trap();
    }
}

CU_INLINE void cu_send(void *shared, const void *global, uint32_t bytes, uint64_t *barrier,
                       uint16_t mask)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(cu_shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(cu_shared_address(barrier)), "h"(mask)
                 : "memory");
}

#endif

#endif
