/* streams.c -- streams that layers update together, and sparse gates (Gemma 3n).  The pool shares
 * rows out.
 *
 * A row is one thread's, and its sums have one order, whatever else is in the step.
 */
#include <math.h>
#include <string.h>

#include "engine/cpu/cpu.h"

enum {
    ROWS = 2,               /* that a thread takes at a time */
    SMALL_VALUES = 1 << 13, /* below: the fan-out costs more than it gives */
};

typedef struct {
    const stream_set *set;
    const float *coefs, *x, *scale;
    float *out;
    float by;
    int n_rows, dim;
    void (*row)(const void *job, size_t row);
    atomic_size_t next;
} streams_job;

static void rows_thread(void *arg, int thread)
{
    (void)thread;
    streams_job *j = arg;
    size_t row, end;
    while (pool_next_piece(&j->next, (size_t)j->n_rows, ROWS, &row, &end))
        for (; row < end; row++) j->row(j, row);
}

static void run(backend *be, streams_job *j)
{
    cpu_run(be, (size_t)j->n_rows * (size_t)j->dim, SMALL_VALUES, rows_thread, j);
}

static void predict_row(const void *job, size_t row)
{
    const streams_job *j = job;
    const stream_set *s = j->set;
    size_t n = (size_t)s->n, dim = (size_t)s->dim, at = row * dim;
    const float *coefs = j->coefs + row * n * n;
    for (size_t k = 0; k < dim; k++) {
        float old[STREAMS_MAX];
        for (size_t i = 0; i < n; i++) old[i] = s->x[i * s->apart + at + k];
        for (size_t i = 0; i < n; i++) {
            float sum = old[i];
            for (size_t from = 0; from < n; from++) sum += coefs[i * n + from] * old[from];
            s->x[i * s->apart + at + k] = sum;
        }
    }
    memcpy(j->out + at, s->x + at, dim * sizeof(*j->out));
}

void cpu_streams_predict(backend *be, const stream_set *set, const float *coefs, float *first)
{
    streams_job j = {.set = set,
                     .coefs = coefs,
                     .out = first,
                     .n_rows = set->n_rows,
                     .dim = set->n * set->dim,
                     .row = predict_row};
    run(be, &j);
}

static void correct_row(const void *job, size_t row)
{
    const streams_job *j = job;
    const stream_set *s = j->set;
    size_t dim = (size_t)s->dim, at = row * dim;
    const float *coefs = j->coefs + row * (size_t)s->n;
    float *first = s->x + at, *out = j->out + at;
    for (size_t k = 0; k < dim; k++) out[k] = j->x[at + k] - first[k];
    for (int i = 0; i < s->n; i++) {
        float *x = s->x + (size_t)i * s->apart + at, by = coefs[i] + 1;
        for (size_t k = 0; k < dim; k++) x[k] += out[k] * by;
    }
    for (size_t k = 0; k < dim; k++) out[k] = j->scale ? first[k] * j->scale[k] : first[k];
}

void cpu_streams_correct(backend *be, const stream_set *set, const float *coefs, const float *x,
                         const float *scale, float *first)
{
    streams_job j = {.set = set,
                     .coefs = coefs,
                     .x = x,
                     .scale = scale,
                     .out = first,
                     .n_rows = set->n_rows,
                     .dim = set->n * set->dim,
                     .row = correct_row};
    run(be, &j);
}

static double mean_square(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum / (double)n;
}

static void match_row(const void *job, size_t row)
{
    const streams_job *j = job;
    size_t dim = (size_t)j->dim;
    float *y = j->out + row * dim;
    double own = mean_square(y, dim), least = (double)j->by;
    double by = sqrt(mean_square(j->x + row * dim, dim) / (own > least ? own : least));
    for (size_t k = 0; k < dim; k++) y[k] *= (float)by;
}

void cpu_match_rms(backend *be, float *y, const float *x, float least, int n_rows, int dim)
{
    streams_job j = {.out = y, .x = x, .by = least, .n_rows = n_rows, .dim = dim, .row = match_row};
    run(be, &j);
}

static void sparse_row(const void *job, size_t row)
{
    const streams_job *j = job;
    size_t dim = (size_t)j->dim;
    float *x = j->out + row * dim;
    double sum = 0, squares = 0;
    for (size_t k = 0; k < dim; k++) sum += (double)x[k];
    double mean = sum / (double)dim;
    for (size_t k = 0; k < dim; k++) squares += ((double)x[k] - mean) * ((double)x[k] - mean);
    float least = (float)(mean + (double)j->by * sqrt(squares / (double)dim));
    for (size_t k = 0; k < dim; k++) x[k] = x[k] > least ? x[k] - least : 0;
}

void cpu_gate_sparse(backend *be, float *gate, float by, int n_rows, int dim)
{
    streams_job j = {.out = gate, .by = by, .n_rows = n_rows, .dim = dim, .row = sparse_row};
    run(be, &j);
}
