/* device_here.h -- for the engine's tests on a device (CONFORM_CUDA): whether there is
 * one, before anything runs.
 *
 * A CUDA context does not survive fork(), so these tests run in one process.
 */
#ifndef TESTS_GPU_DEVICE_HERE_H
#define TESTS_GPU_DEVICE_HERE_H

#include <stdio.h>

#include <check.h>

#include "engine/backend.h"

/* Of the device's memory, for one test: several run at a time, and a sanitizer shadows it. */
#define DEVICE_FRACTION 0.02

/* 0: there is one; 77: none, and why is printed; 1: it is there and does not open. */
static inline int device_here(void)
{
    backend_config cfg = {.n_threads = 1, .fraction = DEVICE_FRACTION};
    backend *be;
    err e = {0};
    err_code rc = be_open(&be, &backend_cuda, &cfg, &e);
    if (rc) {
        printf("%s\n", e.msg);
        return rc == ERR_UNSUPPORTED ? 77 : 1;
    }
    printf("%s\n", be_caps(be)->detail);
    (void)fflush(stdout);
    be_close(be);
    return 0;
}

#endif
