/* fault.cu -- real faults of a device in a program that was not made for them, for faults.py.
 *
 *     LD_PRELOAD=libgpu_fault.so GPU_FAULT=FILE lorad serve ...
 *
 * A thread looks for FILE.  Where it stands, it is taken away and a kernel does what it names: a
 * write to an address that is none ("address"), one to an odd address ("misaligned"), a trap
 * ("trap"), an assertion ("assert"), a write behind a block's shared memory ("shared").  It runs in
 * the device's primary context, which is the one that the program uses.  So the program's next call
 * finds the context broken, as by a fault of its own.  Or a kernel takes all threads of the device
 * and never ends ("endless"): what the program launches then does not begin.
 */
#include <assert.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>

enum kind { ADDRESS, MISALIGNED, TRAP, ASSERT, SHARED, ENDLESS, KINDS };
static const char *const names[KINDS] = {"address", "misaligned", "trap",
                                         "assert",  "shared",     "endless"};

static __device__ int room[2];

static __global__ void break_it(int kind, uint64_t where)
{
    extern __shared__ volatile int shared[];
    if (kind == ADDRESS) *(volatile int *)where = 1;
    if (kind == MISALIGNED) *(volatile int *)((uint64_t)room | 1) = 1;
    if (kind == TRAP) __trap();
    if (kind == ASSERT) assert(kind != ASSERT);
    if (kind == SHARED) shared[where] = 1;
}

static __global__ void never_end()
{
    while (((volatile int *)room)[0] == 0) continue;
}

/* More blocks than fit, each with as many threads as a block can have. */
static cudaError_t hold_device(cudaStream_t stream)
{
    never_end<<<4096, 1024, 0, stream>>>();
    return cudaGetLastError();
}

/* On an H200 a write behind shared memory went unseen once, of four. */
enum { TRIES = 100 };

/* The program may be recording a graph: a thread beside it must not end that, or the program would
 * meet another fault than the one that is named. */
static void do_it(const char *name)
{
    cudaStream_t stream;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (cudaThreadExchangeStreamCaptureMode(&mode) ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) {
        fprintf(stderr, "gpu_fault: no error: there is no stream for %s\n", name);
        return;
    }
    for (int k = 0; k < KINDS; k++) {
        if (strcmp(name, names[k]) != 0) continue;
        cudaError_t rc = k == ENDLESS ? hold_device(stream) : cudaSuccess;
        for (int i = 0; k != ENDLESS && i < TRIES && rc == cudaSuccess; i++) {
            break_it<<<1, 1, 0, stream>>>(k, k == SHARED ? 1 << 20 : 8);
            rc = cudaStreamSynchronize(stream);
        }
        fprintf(stderr, "gpu_fault: %s: %s\n", name,
                k == ENDLESS && !rc ? "launched" : cudaGetErrorString(rc));
        return;
    }
    fprintf(stderr, "gpu_fault: there is no fault '%s'\n", name);
}

static void *watch(void *path)
{
    char name[32];
    for (;; (void)usleep(2000)) {
        FILE *f = fopen((const char *)path, "r");
        if (!f) continue;
        bool named = fscanf(f, "%31s", name) == 1;
        (void)fclose(f);
        if (named && unlink((const char *)path) == 0) do_it(name);
    }
    return NULL;
}

static __attribute__((constructor)) void begin(void)
{
    pthread_t t;
    char *path = getenv("GPU_FAULT");
    if (path && pthread_create(&t, NULL, watch, path) == 0) (void)pthread_detach(t);
}
