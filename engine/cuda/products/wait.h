/* wait.h -- the host waits for a device, as long as its patience lasts.
 *
 * CUDA's own waits have no end.  A device that hangs (a kernel that never ends, a bus that is gone
 * without a word) would keep the thread that asks it, and with it the server.  So nothing in this
 * backend waits by cudaEventSynchronize() or cudaStreamSynchronize(); copies to memory that is not
 * pinned, which wait by themselves, come when nothing is on its way.  A device that has hung once
 * is asked no more, and what it was given is not taken back: freeing pinned memory waits for it as
 * well.  The end of the process takes it all.
 *
 * Threads: any.
 */
#ifndef ENGINE_CUDA_PRODUCTS_WAIT_H
#define ENGINE_CUDA_PRODUCTS_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

/* One of each device. */
typedef struct device_wait {
    int64_t patience_us; /* for one wait, at most */
    atomic_bool hung;    /* for good: one wait had no end within it */
} device_wait;

/* Until what stands before the event, or in the stream so far, has ended.
 * cudaErrorLaunchTimeout: the device hangs; also to whoever comes later. */
cudaError_t wait_event(device_wait *w, cudaEvent_t event);
cudaError_t wait_stream(device_wait *w, cudaStream_t stream);

/* cudaFreeHost(), unless the device hangs.  NULL: nothing. */
void wait_free_host(device_wait *w, void *p);

#endif
