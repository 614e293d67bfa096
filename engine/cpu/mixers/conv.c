/* conv.c -- be_conv(): sequences and blocks of channels, shared out over the pool. */
#include <assert.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/mixers.h"

enum {
    CHANNELS = 64,          /* that a thread takes at a time */
    SMALL_VALUES = 1 << 13, /* below: the fan-out costs more than it gives */
};

typedef struct {
    const mixer_kernels *kern;
    float *out;
    const float *x;
    const conv_weights *w;
    const mixer_shape *shape;
    const step *s;
    size_t at;
    atomic_size_t next;
} conv_job;

/* Items are blocks of channels of sequences. */
static void conv_thread(void *arg, int thread)
{
    (void)thread;
    conv_job *j = arg;
    size_t channels = (size_t)j->shape->channels, blocks = (channels + CHANNELS - 1) / CHANNELS;
    size_t item, end;
    while (pool_next_piece(&j->next, (size_t)j->s->n_seq * blocks, 1, &item, &end)) {
        const step_seq *q = &j->s->seq[item / blocks];
        assert(q->row0 >= 0 && q->row0 + q->n_rows <= j->s->n_rows);
        size_t from = item % blocks * CHANNELS, to = from + CHANNELS;
        conv_part part = {.out = j->out + (size_t)q->row0 * channels,
                          .x = j->x + (size_t)q->row0 * 3 * channels,
                          .last = j->s->state + (size_t)q->slot * j->s->state_stride + j->at,
                          .taps = j->w->taps,
                          .bias = j->w->bias,
                          .channels = channels,
                          .from = from,
                          .to = to < channels ? to : channels,
                          .n_rows = q->n_rows,
                          .n_taps = j->shape->taps,
                          .fresh = q->pos0 == 0};
        j->kern->conv(&part);
    }
}

void cpu_conv(backend *be, float *out, const float *x, const conv_weights *w,
              const mixer_shape *shape, const step *s, size_t at)
{
    assert(at + mixer_state_floats(shape) <= s->state_stride);
    assert(shape->taps > 0 && shape->taps <= MIXER_TAPS_MAX && shape->channels > 0);
    conv_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->mixers,
                  .out = out,
                  .x = x,
                  .w = w,
                  .shape = shape,
                  .s = s,
                  .at = at};
    cpu_run(be, (size_t)s->n_rows * (size_t)shape->channels, SMALL_VALUES, conv_thread, &j);
}
