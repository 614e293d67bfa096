/* exchange.h -- what devices that share a model tell each other: a block of columns of every row,
 * written into the others' memory.
 *
 * One launch for all receivers, each value read once.  Nothing is added, so no order of devices is
 * in the result.  Who reads there waits for the launch (tensor_parallel.c).
 */
#ifndef ENGINE_CUDA_ROWS_EXCHANGE_H
#define ENGINE_CUDA_ROWS_EXCHANGE_H

#include <stddef.h>

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CU_DEVICES_MAX = 8 };

/* All sizes in bytes, all of them and the addresses multiples of 2; of 16, it goes by 16. */
typedef struct cu_push_args {
    const void *from;         /* rows from_stride apart */
    void *to[CU_DEVICES_MAX]; /* rows to_stride apart, each in some device's memory */
    int n_to, n_rows;
    size_t width, from_stride, to_stride;
} cu_push_args;

/* One launch on the device that `from` lies on. */
cudaError_t cu_push_rows(cudaStream_t stream, const cu_push_args *args);

#ifdef __cplusplus
}
#endif

#endif
