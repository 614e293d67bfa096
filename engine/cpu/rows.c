/* rows.c -- operations that treat each row (or value) alone, shared out over the pool. */
#include "engine/cpu/rows.h"

#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/halves.h"

enum {
    SMALL_VALUES = 1 << 15, /* below: the fan-out costs more than it gives */
    PIECE = 1 << 13,        /* values that a thread takes at a time */
};

static const row_kernels *kernels_of(cpu_isa isa)
{
    if (isa >= ISA_AVX512) return &rows_avx512;
    return isa == ISA_AVX2 ? &rows_avx2 : &rows_portable;
}

typedef struct {
    const row_kernels *kern;
    float *out;
    const float *x, *weight;
    float eps;
    int n_rows, dim;
    size_t n;
    atomic_size_t next;
} rows_job;

static void run(backend *be, size_t values, void (*fn)(void *arg, int thread), void *arg)
{
    if (values < SMALL_VALUES)
        fn(arg, 0);
    else
        cpu_pool_run(cpu_of(be)->pool, fn, arg);
}

void cpu_embed(backend *be, float *out, const void *table, dtype type, int dim, const step *s)
{
    (void)be; /* a copy of a few rows: not worth a fan-out */
    for (int i = 0; i < s->n_rows; i++) {
        const char *row = (const char *)table + (size_t)s->token[i] * dim * dtype_bytes(type);
        float *o = out + (size_t)i * dim;
        if (type == DT_F32) {
            memcpy(o, row, (size_t)dim * sizeof(float));
            continue;
        }
        for (int j = 0; j < dim; j++) {
            uint16_t h;
            memcpy(&h, row + 2 * (size_t)j, sizeof(h)); /* a mapped file may be misaligned */
            o[j] = type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
        }
    }
}

void cpu_rms_norm_row(cpu_isa isa, float *out, const float *x, const float *gain, float eps,
                      int dim)
{
    kernels_of(isa)->rms_norm(out, x, gain, eps, dim);
}

static void rms_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to, piece = PIECE / (size_t)j->dim + 1;
    while (cpu_next_piece(&j->next, (size_t)j->n_rows, piece, &from, &to)) {
        for (size_t i = from; i < to; i++) {
            j->kern->rms_norm(j->out + i * (size_t)j->dim, j->x + i * (size_t)j->dim, j->weight,
                              j->eps, j->dim);
        }
    }
}

void cpu_rms_norm(backend *be, float *out, const float *x, const float *gain, float eps, int n_rows,
                  int dim)
{
    rows_job j = {.kern = kernels_of(cpu_of(be)->isa),
                  .out = out,
                  .x = x,
                  .weight = gain,
                  .eps = eps,
                  .n_rows = n_rows,
                  .dim = dim};
    run(be, (size_t)n_rows * dim, rms_thread, &j);
}

static void silu_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to;
    while (cpu_next_piece(&j->next, j->n, PIECE, &from, &to)) {
        j->kern->silu_mul(j->out + from, j->x + from, to - from);
    }
}

void cpu_silu_mul(backend *be, float *gate, const float *up, size_t n)
{
    rows_job j = {.kern = kernels_of(cpu_of(be)->isa), .out = gate, .x = up, .n = n};
    run(be, n, silu_thread, &j);
}
