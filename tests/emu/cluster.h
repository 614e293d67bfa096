/* cluster.h -- blocks of a cluster, their barrier, mbarriers, and copies to several blocks at once,
 * as the emulator has them.  No kernel of lorad uses them; test_emu.cu holds the emulator to them.
 *
 * An mbarrier is 8 bytes of dynamic shared memory, at the same place in each block.  A phase of it
 * ends when all arrivals have come and as many bytes as were expected; then the next one begins.
 * Phases are told apart by parity, the first one's is 0.
 */
#ifndef TESTS_EMU_CLUSTER_H
#define TESTS_EMU_CLUSTER_H

#include "engine/cuda/products/intrin.h"

#define CU_LAUNCH_CLUSTER(kernel, grid, block, shared, stream, early, cluster, ...) \
    emu_launch(#kernel, kernel, grid, block, shared, stream, early, cluster, __VA_ARGS__)

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

#endif
