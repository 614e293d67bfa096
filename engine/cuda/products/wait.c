/* wait.c -- looks again and again, at first without a pause: steps take milliseconds. */
#include "engine/cuda/products/wait.h"

#include <sched.h>
#include <time.h>

#include "engine/base/clock.h"

/* What passes between two looks counts up to a second: this thread, or the whole machine, may have
 * been asleep. */
enum { SPIN_US = 50000, PAUSE_US = 50, LAP_MOST_US = 1000000 };

/* One of the two is asked. */
static cudaError_t wait_for(device_wait *w, cudaEvent_t event, cudaStream_t stream)
{
    const struct timespec pause = {0, PAUSE_US * 1000L};
    int64_t last = clock_now_us(), took = 0;
    for (bool late = false; !atomic_load(&w->hung);) {
        cudaError_t ce = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
        if (ce != cudaErrorNotReady) return ce;
        if (late) { /* it was looked at once more */
            atomic_store(&w->hung, true);
            break;
        }
        int64_t now = clock_now_us(), lap = now - last;
        took += lap < LAP_MOST_US ? lap : LAP_MOST_US;
        last = now;
        late = took > w->patience_us;
        if (took > SPIN_US)
            (void)nanosleep(&pause, NULL);
        else
            (void)sched_yield();
    }
    return cudaErrorLaunchTimeout;
}

cudaError_t wait_event(device_wait *w, cudaEvent_t event)
{
    return wait_for(w, event, NULL);
}

cudaError_t wait_stream(device_wait *w, cudaStream_t stream)
{
    return wait_for(w, NULL, stream);
}

void wait_free_host(device_wait *w, void *p)
{
    if (p && !atomic_load(&w->hung)) (void)cudaFreeHost(p);
}
