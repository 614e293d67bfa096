/* emu_runtime.h -- the run-time API of CUDA, for the host compiler (tests/emu/emu.h). */
#ifndef EMU_RUNTIME_H
#define EMU_RUNTIME_H

#include "tests/emu/emu.h"

typedef struct CUstream_st *cudaStream_t;

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorLaunchFailure = 719,
} cudaError_t;

/* A fault that a test has caught stays the last error until
 * emu_take_fault(): sticky, as on a device. */
static inline cudaError_t cudaPeekAtLastError(void)
{
    switch (emu_peek_fault()) {
    case EMU_OK: return cudaSuccess;
    case EMU_CONFIG: return cudaErrorInvalidConfiguration;
    default: return cudaErrorLaunchFailure;
    }
}

static inline cudaError_t cudaGetLastError(void)
{
    return cudaPeekAtLastError();
}

#endif
