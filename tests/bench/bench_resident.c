/* bench_resident.c -- tokens per second of a model of which a part fits into memory, and the disk.
 *
 *   bench_resident MODEL_DIR PACKED_DIR SHARE
 *
 * The matrices get SHARE of the memory that they need (model.resident_bytes).  In turns: the disk's
 * rate from the packed file past the page cache, and decode steps of one row.  Prints one line of
 * JSON: medians of the rate and of the seconds of a step, bytes that a step reads, by our own count
 * and by the system's (/proc/self/io), and the most that was in memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/base/clock.h"
#include "engine/model/model.h"
#include "engine/model/packed.h"

enum { TURNS = 5, STEPS = 6, WARM = 3, RATE_BYTES = 512 << 20, PAGES = 16 };

static void die(const err *e)
{
    fprintf(stderr, "bench_resident: %s\n", e->msg);
    exit(2);
}

/* Bytes that the disk gave to this process. */
static double disk_bytes(void)
{
    char line[128];
    double bytes = 0;
    FILE *f = fopen("/proc/self/io", "r");
    while (f && fgets(line, sizeof(line), f)) (void)sscanf(line, "read_bytes: %lf", &bytes);
    if (f) (void)fclose(f);
    return bytes;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), ascending);
    return v[n / 2];
}

static double step_s(model *m, kv_pool *kv, int at)
{
    static const int32_t pages[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    err e;
    int32_t token = at * 37 % 1000 + 1, pos = at;
    int row = 0;
    step_seq seq = {0, 1, at, pages, PAGES, 0};
    step_seg seg = {0, 1, NULL};
    step s = {1, &token, &pos, 1, &seq, 1, &seg, 1, &row, NULL, 0, NULL, 0};
    const float *logits;
    int64_t began_us = clock_now_us();
    if (model_forward(m, kv, &s, &logits, &e)) die(&e);
    return (double)(clock_now_us() - began_us) / 1e6;
}

/* The weights' bytes in memory, without a budget. */
static size_t needed(const char *path, backend *be)
{
    model_config c;
    model_survey s;
    err e;
    if (model_config_read(path, &c, &e) ||
        model_survey_read(path, &c, WEIGHTS_AUTO, &be_caps(be)->rules, false, 0, &s, &e))
        die(&e);
    return s.memory_bytes;
}

int main(int argc, char **argv)
{
    double rate[TURNS + 1], took[TURNS * STEPS], ours = 0, systems = 0, most = 0;
    char path[4096];
    backend_config bc = {.isa = "auto"};
    backend *be;
    model *m;
    kv_pool *kv;
    err e;
    if (argc != 4) {
        fprintf(stderr, "usage: bench_resident MODEL_DIR PACKED_DIR SHARE\n");
        return 2;
    }
    if (be_open(&be, &backend_cpu, &bc, &e)) die(&e);
    size_t all = needed(argv[1], be);
    model_options o = {.packed_dir = argv[2],
                       .resident_bytes = (size_t)((double)all * strtod(argv[3], NULL))};
    if (model_load_with(&m, argv[1], be, 1, 1, &o, &e)) die(&e);
    attn_shape shape = model_attn_shape(m);
    if (be_kv_create(be, &kv, &shape, PAGES, &e)) die(&e);
    if (!packed_path(argv[2], path, sizeof(path))) return 2;
    int at = 0;
    while (at < WARM) (void)step_s(m, kv, at++);
    resident_counts before, after;
    for (int t = 0; t < TURNS; t++) {
        if (resident_disk_rate(path, RATE_BYTES, &rate[t], &e)) die(&e);
        model_resident(m, &before);
        double system_before = disk_bytes();
        for (int i = 0; i < STEPS; i++) {
            took[t * STEPS + i] = step_s(m, kv, at++);
            model_resident(m, &after);
            if ((double)after.resident_bytes > most) most = (double)after.resident_bytes;
        }
        ours += (double)(after.read_bytes - before.read_bytes);
        systems += disk_bytes() - system_before;
    }
    if (resident_disk_rate(path, RATE_BYTES, &rate[TURNS], &e)) die(&e);
    const double n = TURNS * STEPS;
    double waited = (double)after.waited_us / 1e6, reading = (double)after.read_us / 1e6;
    printf(
        "{\"weight_bytes\":%zu,\"budget_bytes\":%zu,\"resident_bytes\":%.0f,\"disk_bytes_per_s\":"
        "%.0f,\"step_s\":%.6f,\"step_bytes\":%.0f,\"step_bytes_of_system\":%.0f,\"waited_s\":"
        "%.3f,\"read_s\":%.3f,\"read_bytes\":%.0f}\n",
        all, o.resident_bytes, most, median(rate, TURNS + 1), median(took, TURNS * STEPS), ours / n,
        systems / n, waited, reading, (double)after.read_bytes);
    be_kv_destroy(be, kv);
    model_destroy(m);
    be_close(be);
    return 0;
}
