/* channels.c -- be_silu_conv(), be_scan_channels(): the pool shares sequences and
 * blocks of channels out.
 *
 * A channel goes through the rows of its sequence in order, so its bits are those of a sequence
 * that is fed row by row.
 */
#include <math.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/mixers.h"

enum {
    CHANNELS = 64,          /* a thread takes so many at a time */
    SMALL_VALUES = 1 << 13, /* below: the fan-out costs more than it gives */
};

typedef struct {
    const mixer_kernels *kern;
    float *out; /* of a convolution: x, in place */
    const conv_weights *conv;
    const channel_rows *x;
    const channel_weights *w;
    const mixer_shape *shape;
    const step *s;
    size_t at;
    atomic_size_t next;
} channels_job;

static float *state_of(const channels_job *j, const step_seq *q)
{
    return j->s->state + (size_t)q->slot * j->s->state_stride + j->at;
}

/* Takes the next block of channels of a sequence; false: none is left. */
static bool next_block(channels_job *j, const step_seq **q, size_t *from, size_t *to)
{
    size_t channels = (size_t)j->shape->channels, blocks = (channels + CHANNELS - 1) / CHANNELS;
    size_t item, end;
    if (!pool_next_piece(&j->next, (size_t)j->s->n_seq * blocks, 1, &item, &end)) return false;
    *q = &j->s->seq[item / blocks];
    *from = item % blocks * CHANNELS;
    *to = *from + CHANNELS < channels ? *from + CHANNELS : channels;
    return true;
}

static void conv_thread(void *arg, int thread)
{
    (void)thread;
    channels_job *j = arg;
    const step_seq *q;
    silu_part part = {.taps = j->conv->taps,
                      .bias = j->conv->bias,
                      .by = 1,
                      .channels = (size_t)j->shape->channels,
                      .stride = (size_t)j->shape->channels,
                      .n_taps = j->shape->taps};
    while (next_block(j, &q, &part.from, &part.to)) {
        part.x = j->out + (size_t)q->row0 * part.stride;
        part.last = state_of(j, q);
        part.n_rows = q->n_rows;
        part.fresh = q->pos0 == 0;
        j->kern->silu_conv(&part);
    }
}

void cpu_silu_conv(backend *be, float *x, const conv_weights *w, const mixer_shape *shape,
                   const step *s, size_t at)
{
    channels_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->mixers,
                      .out = x,
                      .conv = w,
                      .shape = shape,
                      .s = s,
                      .at = at};
    cpu_run(be, (size_t)s->n_rows * (size_t)shape->channels, SMALL_VALUES, conv_thread, &j);
}

static void norm(float *out, const float *x, const float *gain, float eps, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    float inv = 1.0F / sqrtf(sum / (float)n + eps);
    for (int i = 0; i < n; i++) out[i] = x[i] * inv * gain[i];
}

static void scan_thread(void *arg, int thread)
{
    (void)thread;
    channels_job *j = arg;
    const mixer_shape *sh = j->shape;
    size_t channels = (size_t)sh->channels, rows = (size_t)sh->rows;
    size_t wide = (size_t)j->x->first + 2 * rows;
    float b[MIXER_SIDE_MAX], c[MIXER_SIDE_MAX];
    const step_seq *q;
    channel_part part = {
        .b = b, .c = c, .decay = j->w->decay, .skip = j->w->skip, .rows = sh->rows};
    while (next_block(j, &q, &part.from, &part.to)) {
        part.state = state_of(j, q) + mixer_window_floats(sh);
        if (q->pos0 == 0)
            memset(part.state + part.from * rows, 0, (part.to - part.from) * rows * sizeof(float));
        for (size_t row = (size_t)q->row0; row < (size_t)(q->row0 + q->n_rows); row++) {
            const float *bc = j->x->bc + row * wide + (size_t)j->x->first;
            norm(b, bc, j->w->b_norm, j->w->eps, sh->rows);
            norm(c, bc + rows, j->w->c_norm, j->w->eps, sh->rows);
            part.out = j->out + row * channels;
            part.x = j->x->x + row * channels;
            part.dt = j->x->dt + row * channels;
            part.gate = j->x->in + (2 * row + 1) * channels;
            j->kern->scan_channels(&part);
        }
    }
}

void cpu_scan_channels(backend *be, float *out, const channel_rows *x, const channel_weights *w,
                       const mixer_shape *shape, const step *s, size_t at)
{
    channels_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->mixers,
                      .out = out,
                      .x = x,
                      .w = w,
                      .shape = shape,
                      .s = s,
                      .at = at};
    size_t work = (size_t)s->n_rows * (size_t)shape->channels * (size_t)shape->rows;
    cpu_run(be, work, SMALL_VALUES, scan_thread, &j);
}
