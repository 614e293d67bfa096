/* times.c -- how long each kernel of a program takes, by CUPTI.
 *
 *     CUDA_INJECTION64_PATH=libgpu_times.so GPU_TIMES=FILE gpu.bench_device decode
 *
 * The driver loads this library into the program before its first context.  At the end FILE has a
 * line for each kernel and shape of launch: launches, microseconds in all, the middle one's, the
 * mean gap from the end of the launch before, gaps of the host left out, its registers, shared
 * memory, blocks and threads, its name.  Launches of a graph count as any others.
 * Times of kernels that begin early (programmatic dependent launch) overlap: they hold their wait.
 */
#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 4 << 20, ROWS_MAX = 4096, TIMES_MAX = 4096, GAP_MOST_US = 20 };

typedef struct row {
    char name[256];
    int regs, shared, grid[3], threads;
    long n, n_gap;
    double us, gap_us;
    float each[TIMES_MAX];
} row;

static row *rows[ROWS_MAX];
static int n_rows;
static uint64_t last_end; /* of all launches so far */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static CUptiResult (*next_record)(uint8_t *, size_t, CUpti_Activity **);
static CUptiResult (*flush)(uint32_t);

static row *row_of(const CUpti_ActivityKernel10 *k)
{
    row new = {.regs = k->registersPerThread,
               .shared = k->staticSharedMemory + k->dynamicSharedMemory,
               .grid = {k->gridX, k->gridY, k->gridZ},
               .threads = k->blockX * k->blockY * k->blockZ};
    (void)snprintf(new.name, sizeof(new.name), "%s", k->name);
    for (int i = 0; i < n_rows; i++) {
        row *r = rows[i];
        if (strcmp(r->name, new.name) == 0 && r->shared == new.shared &&
            r->threads == new.threads &&memcmp(r->grid, new.grid, sizeof(new.grid)) == 0)
            return r;
    }
    if (n_rows == ROWS_MAX || !(rows[n_rows] = malloc(sizeof(new)))) return NULL;
    *rows[n_rows] = new;
    return rows[n_rows++];
}

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = aligned_alloc(8, PIECE);
    *size = *buffer ? PIECE : 0;
    *max_records = 0;
}

static void CUPTIAPI take(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size,
                          size_t valid)
{
    (void)ctx, (void)stream, (void)size;
    CUpti_Activity *a = NULL;
    (void)pthread_mutex_lock(&mu);
    while (valid && next_record(buffer, valid, &a) == CUPTI_SUCCESS) {
        if (a->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
        const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)a;
        row *r = row_of(k);
        if (!r) continue;
        double us = (double)(k->end - k->start) / 1e3;
        r->each[r->n++ % TIMES_MAX] = (float)us;
        r->us += us;
        double gap = k->start > last_end ? (double)(k->start - last_end) / 1e3 : 0;
        if (last_end && gap < GAP_MOST_US) {
            r->gap_us += gap;
            r->n_gap++;
        }
        if (k->end > last_end) last_end = k->end;
    }
    (void)pthread_mutex_unlock(&mu);
    free(buffer);
}

static int by_time(const void *a, const void *b)
{
    double x = (*(row *const *)a)->us, y = (*(row *const *)b)->us;
    return (x < y) - (x > y);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void finish(void)
{
    const char *path = getenv("GPU_TIMES");
    FILE *f = path ? fopen(path, "w") : stderr;
    (void)flush(1);
    if (!f) return;
    (void)pthread_mutex_lock(&mu);
    qsort(rows, (size_t)n_rows, sizeof(rows[0]), by_time);
    fprintf(f, "%8s %12s %10s %8s %5s %7s %16s %7s  kernel\n", "launches", "us", "middle us",
            "gap us", "regs", "shared", "blocks", "threads");
    for (int i = 0; i < n_rows; i++) {
        row *r = rows[i];
        char grid[40];
        size_t n = r->n < TIMES_MAX ? (size_t)r->n : TIMES_MAX;
        qsort(r->each, n, sizeof(float), by_value);
        (void)snprintf(grid, sizeof(grid), "%dx%dx%d", r->grid[0], r->grid[1], r->grid[2]);
        fprintf(f, "%8ld %12.1f %10.2f %8.2f %5d %7d %16s %7d  %s\n", r->n, r->us,
                (double)r->each[n / 2], r->n_gap ? r->gap_us / (double)r->n_gap : 0, r->regs,
                r->shared, grid, r->threads, r->name);
    }
    (void)pthread_mutex_unlock(&mu);
    if (path) (void)fclose(f);
}

/* What the driver calls (CUPTI's manual, "injection"). */
int InitializeInjection(void);
int InitializeInjection(void)
{
    void *lib = dlopen("libcupti.so.13", RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "gpu_times: %s\n", dlerror());
        return 0;
    }
    CUptiResult (*enable)(CUpti_ActivityKind) =
        (CUptiResult(*)(CUpti_ActivityKind))dlsym(lib, "cuptiActivityEnable");
    CUptiResult (*callbacks)(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc) =
        (CUptiResult(*)(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc))dlsym(
            lib, "cuptiActivityRegisterCallbacks");
    next_record = (CUptiResult(*)(uint8_t *, size_t, CUpti_Activity **))dlsym(
        lib, "cuptiActivityGetNextRecord");
    flush = (CUptiResult(*)(uint32_t))dlsym(lib, "cuptiActivityFlushAll");
    if (!enable || !callbacks || !next_record || !flush || callbacks(give, take) ||
        enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) {
        fprintf(stderr, "gpu_times: CUPTI does not begin\n");
        return 0;
    }
    return atexit(finish) == 0;
}
