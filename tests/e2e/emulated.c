/* emulated.c -- linked into lorad_emulated, the server of test_emulated.py, and into nothing else:
 * lorad on the emulated run-time library (tests/emu/cuda_rt) in place of CUDA's, with two devices
 * plugged in before main().
 *
 * $LORAD_TEST_HANG names a file: once it is there it is removed, and the next launch never ends.
 */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/emu/cuda_rt/emu_rt.h"

static void *watch(void *path)
{
    for (;; (void)usleep(10000)) {
        if (access((const char *)path, F_OK) != 0) continue;
        emu_rt_break_at("", 0, cudaErrorNotReady);
        (void)unlink((const char *)path);
    }
    return NULL;
}

__attribute__((constructor)) static void plug_in(void)
{
    pthread_t t;
    char *path = getenv("LORAD_TEST_HANG");
    emu_rt_device(2, (size_t)192 << 20);
    if (path && pthread_create(&t, NULL, watch, path) == 0) (void)pthread_detach(t);
}
