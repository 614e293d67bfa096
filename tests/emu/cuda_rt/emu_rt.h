/* emu_rt.h -- what tests and the emulator's CU_LAUNCH ask of the emulated
 * runtime beyond CUDA's own calls.
 *
 * Threads: any.
 */
#ifndef TESTS_EMU_CUDA_RT_EMU_RT_H
#define TESTS_EMU_CUDA_RT_EMU_RT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues work: run(arg) once in the stream's turn, or at each launch of the graph
 * that is being captured from `s`; drop(arg) (may be NULL) when it will not run again.
 * The name is for messages; early: for the trace. */
cudaError_t emu_rt_submit(cudaStream_t s, const char *name, bool early, void (*run)(void *arg),
                          void (*drop)(void *arg), void *arg);

/* ---- bridge.cpp: the emulator that runs kernels and watches memory (tests/emu/emu.h) ------ */
void emu_bridge_device(int device); /* whose memory or kernels come next */
void emu_bridge_peer(int from, int to);
void *emu_bridge_alloc(size_t bytes);
void emu_bridge_free(void *p);
void emu_bridge_wrote(void *p, size_t bytes);
/* Aborts where a part of the range was never written. */
void emu_bridge_read(const char *who, const void *p, size_t bytes);
/* What comes next on a stream does not begin before what stands there has ended. */
void emu_bridge_apart(cudaStream_t stream);
void emu_bridge_open(void);         /* before the first launch */
void emu_bridge_rounding(int like); /* emu_mma_truncates() */

/* ---- for tests ------------------------------------------------------------------------- */

enum { EMU_RT_DEVICES = 8 }; /* at most */

/* Devices that cudaGetDeviceCount() finds (-1: the driver is missing) and the memory of each. */
void emu_rt_device(int n_devices, size_t memory_bytes);

/* Whether devices can reach each other's memory (they can, until this says no). */
void emu_rt_peers(bool can);

/* The n-th call from now of the runtime function or launch whose name begins with `what` (NULL: any
 * that enqueues) fails with `code`; from there on the device is lost: every call fails so until
 * cudaDeviceReset().  n < 0: never. */
void emu_rt_fail_at(const char *what, int n, cudaError_t code);

/* The n-th launch from now whose name holds `what` breaks the device while it runs: `code`
 * shows when somebody waits, and the device is lost.  cudaErrorNotReady: it never ends, nor does
 * what stands behind it; asking says so, and who waits without end is told by an abort.  n < 0: no
 * more, and what hung is as if it had not. */
void emu_rt_break_at(const char *what, int n, cudaError_t code);

typedef struct emu_rt_counts {
    uint64_t launches;                      /* of kernels, one by one */
    uint64_t products;                      /* of cuBLAS */
    uint64_t copies;                        /* enqueued */
    uint64_t copies_to_host, bytes_to_host; /* of them */
    uint64_t syncs;   /* the host waited for a stream, an event or the device */
    uint64_t mallocs; /* cudaMalloc() and cudaHostAlloc() */
    uint64_t captures, graph_launches, graph_nodes;
    uint64_t resets;
    size_t device_bytes, pinned_bytes, graph_bytes; /* now */
} emu_rt_counts;
void emu_rt_count(emu_rt_counts *out);

/* How often something whose name holds `part` was enqueued, also while a graph was captured. */
uint64_t emu_rt_launched(const char *part);

/* cuBLAS's heuristic names nothing any more: products are ours (engine/cuda/products/gemm.h). */
void emu_rt_no_cublas(bool none);
bool emu_rt_has_cublas(void);

/* Names of kernels and products, each before a semicolon, go there as they are enqueued one by
 * one; NULL: nowhere.  Behind a ~ those of other streams than the first, behind a + those that
 * may begin early. */
void emu_rt_trace(FILE *to);

/* What the device says of its capability, 80 for 8.0; $EMU_CAPABILITY for all that is opened. */
void emu_rt_capability(int is);

#ifdef __cplusplus
}
#endif

#endif
