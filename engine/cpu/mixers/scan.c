/* scan.c -- be_scan(): three passes over the pool: the convolution by channels, the scan by heads,
 * the gate by rows and groups.
 *
 * A head goes through the rows of its sequence in order, so its bits are those of a sequence that
 * is fed row by row.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/mixers.h"

enum {
    CHANNELS = 64,          /* that a thread takes at a time */
    GATE_ROWS = 4,          /* the same of rows and groups */
    STEPS = 64,             /* rows whose steps are made at a time */
    SMALL_VALUES = 1 << 13, /* below: the fan-out costs more than it gives */
};

typedef struct {
    const mixer_kernels *kern;
    float *out, *x;
    const scan_weights *w;
    const mixer_shape *shape;
    const step *s;
    size_t at, in, inner; /* inner: of what the heads answer */
    atomic_size_t next;
} scan_job;

static float *state_of(const scan_job *j, const step_seq *q)
{
    return j->s->state + (size_t)q->slot * j->s->state_stride + j->at;
}

/* ---------------------------------------------------------------------- convolution -- */

/* Channels [from, to), cut where another multiplier begins. */
static void conv_channels(const scan_job *j, const step_seq *q, size_t from, size_t to)
{
    size_t groups = (size_t)j->shape->groups * (size_t)j->shape->rows;
    const size_t ends[] = {j->inner, j->inner + groups, j->inner + 2 * groups};
    silu_part part = {.x = j->x + (size_t)q->row0 * j->in + j->inner,
                      .last = state_of(j, q),
                      .taps = j->w->conv.taps,
                      .bias = j->w->conv.bias,
                      .channels = (size_t)j->shape->channels,
                      .stride = j->in,
                      .n_rows = q->n_rows,
                      .n_taps = j->shape->taps,
                      .fresh = q->pos0 == 0};
    for (int i = 0; i < 3 && from < to; i++) {
        if (from >= ends[i]) continue;
        part.from = from;
        part.to = from = to < ends[i] ? to : ends[i];
        part.by = j->w->rules.by[1 + i];
        j->kern->silu_conv(&part);
    }
}

static void conv_thread(void *arg, int thread)
{
    (void)thread;
    scan_job *j = arg;
    size_t channels = (size_t)j->shape->channels, blocks = (channels + CHANNELS - 1) / CHANNELS;
    size_t item, end;
    while (pool_next_piece(&j->next, (size_t)j->s->n_seq * blocks, 1, &item, &end)) {
        size_t from = item % blocks * CHANNELS, to = from + CHANNELS;
        conv_channels(j, &j->s->seq[item / blocks], from, to < channels ? to : channels);
    }
}

/* ----------------------------------------------------------------------------- scan -- */

/* A row's step, and what it leaves of the state. */
static float step_size(const scan_job *j, size_t row, size_t head)
{
    const scan_rules *r = &j->w->rules;
    float raw = j->x[row * j->in + j->in - (size_t)j->shape->heads + head] * r->by[4];
    raw += j->w->dt_bias[head];
    float dt = raw > 20 ? raw : log1pf(expf(raw));
    dt = dt > r->dt_least ? dt : r->dt_least;
    return dt < r->dt_most ? dt : r->dt_most;
}

/* The rows of one sequence for one head, STEPS at a time: sizes of steps and what they forget
 * first, then the kernel; in order, so that the bits do not depend on how a prompt was cut. */
static void scan_head(const scan_job *j, const step_seq *q, size_t head)
{
    assert(q->row0 >= 0 && q->row0 + q->n_rows <= j->s->n_rows);
    const mixer_shape *sh = j->shape;
    size_t rows = (size_t)sh->rows, cols = (size_t)sh->cols, first = (size_t)q->row0;
    size_t group = head / ((size_t)sh->heads / (size_t)sh->groups);
    float dt[STEPS], forget[STEPS], rate = expf(j->w->decay[head]);
    scan_part part = {.dt = dt,
                      .forget = forget,
                      .state = state_of(j, q) + (size_t)(sh->taps - 1) * (size_t)sh->channels +
                               head * rows * cols,
                      .skip = j->w->skip[head],
                      .stride = j->in,
                      .out_stride = j->inner,
                      .rows = sh->rows,
                      .cols = sh->cols};
    if (q->pos0 == 0) memset(part.state, 0, rows * cols * sizeof(float));
    for (int done = 0; done < q->n_rows; done += part.n_rows) {
        size_t row = first + (size_t)done;
        part.n_rows = q->n_rows - done < STEPS ? q->n_rows - done : STEPS;
        for (int i = 0; i < part.n_rows; i++) {
            dt[i] = step_size(j, row + (size_t)i, head);
            forget[i] = expf(-dt[i] * rate);
        }
        const float *x = j->x + row * j->in + j->inner;
        part.out = j->out + row * j->inner + head * cols;
        part.x = x + head * cols;
        part.b = x + j->inner + group * rows;
        part.c = part.b + (size_t)sh->groups * rows;
        j->kern->scan(&part);
    }
}

static void scan_thread(void *arg, int thread)
{
    (void)thread;
    scan_job *j = arg;
    size_t heads = (size_t)j->shape->heads, item, end;
    while (pool_next_piece(&j->next, (size_t)j->s->n_seq * heads, 1, &item, &end))
        scan_head(j, &j->s->seq[item / heads], item % heads);
}

/* ----------------------------------------------------------------------------- gate -- */

static void gate_thread(void *arg, int thread)
{
    (void)thread;
    scan_job *j = arg;
    const scan_rules *r = &j->w->rules;
    size_t groups = (size_t)j->shape->groups, each = j->inner / groups, item, end;
    while (pool_next_piece(&j->next, (size_t)j->s->n_rows * groups, GATE_ROWS, &item, &end))
        for (; item < end; item++) {
            size_t row = item / groups, from = item % groups * each;
            scan_gate_part part = {.y = j->out + row * j->inner + from,
                                   .gate = j->x + row * j->in + from,
                                   .gain = r->normed ? j->w->norm + from : NULL,
                                   .gate_by = r->by[0],
                                   .eps = r->eps,
                                   .n = (int)each,
                                   .norm_first = r->norm_first};
            j->kern->scan_gate(&part);
        }
}

void cpu_scan(backend *be, float *out, float *x, const scan_weights *w, const mixer_shape *shape,
              const step *s, size_t at)
{
    assert(at + mixer_state_floats(shape) <= s->state_stride);
    assert(shape->groups > 0 && shape->heads % shape->groups == 0);
    static void (*const passes[])(void *, int) = {conv_thread, scan_thread, gate_thread};
    scan_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->mixers,
                  .out = out,
                  .x = x,
                  .w = w,
                  .shape = shape,
                  .s = s,
                  .at = at,
                  .in = (size_t)scan_in(shape),
                  .inner = (size_t)scan_out(shape)};
    size_t values =
        (size_t)s->n_rows * (size_t)shape->heads * (size_t)shape->cols * (size_t)shape->rows;
    for (size_t i = 0; i < sizeof(passes) / sizeof(passes[0]); i++) {
        atomic_store(&j.next, 0);
        cpu_run(be, values, SMALL_VALUES, passes[i], &j);
    }
}
