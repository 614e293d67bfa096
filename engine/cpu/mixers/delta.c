/* delta.c -- be_delta(): sequences and groups of heads, shared out over the pool.
 *
 * A group is the value heads that share a key head. Groups of a sequence do not read each
 * other's state, so an item of work is one group of one sequence; its rows are computed in order
 * by one thread, and the bits do not depend on the number of threads.
 *
 * This file only finds where a group's numbers lie. Files of models differ in that:
 *
 *     fused    one row has, group after group, q, k, v, gate z; a second one b and a
 *     apart    q, k, v have a matrix each, or stand one behind the other in one row
 *
 * The taps of the convolution are one table or three, likewise. The arithmetic is in
 * mixers_kernels.h.
 */
#include <assert.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/mixers.h"

enum { SMALL_VALUES = 1 << 13 }; /* of matrices; below: the fan-out costs more than it gives */

typedef struct {
    const mixer_kernels *kern;
    float *out;
    const delta_rows *x;
    const delta_weights *w;
    const mixer_shape *shape;
    const step *s;
    size_t at;
    atomic_size_t next;
} delta_job;

/* A group's part of the rows that are not fused: queries, keys and values are `at` floats behind
 * the begin of a row, or of one of three. */
static void find_apart(const delta_job *j, size_t first, const size_t at[3], delta_part *p)
{
    const mixer_shape *sh = j->shape;
    const float *three[] = {j->x->q, j->x->k, j->x->v};
    size_t keys = (size_t)(sh->groups * sh->rows), values = (size_t)(sh->heads * sh->cols);
    const size_t begin[] = {0, keys, 2 * keys}, own[] = {keys, keys, values};
    bool apart = j->w->rules.form == DELTA_APART;
    for (int i = 0; i < 3; i++) {
        p->in[i] = apart ? three[i] + at[i] - begin[i] : j->x->q + at[i];
        p->in_apart[i] = apart ? own[i] : p->channels;
    }
    size_t each = j->w->rules.each ? (size_t)sh->rows : 1;
    p->z_apart = values;
    p->b_apart = (size_t)sh->heads;
    p->a_apart = (size_t)sh->heads * each;
    p->z = j->x->z + first * (size_t)sh->cols;
    p->b = j->x->b + first;
    p->a = j->x->a + first * each;
}

/* The same of fused ones. */
static void find_fused(const delta_job *j, size_t group, delta_part *p)
{
    const mixer_shape *sh = j->shape;
    size_t key = (size_t)sh->rows, heads = (size_t)p->n_head, values = heads * (size_t)sh->cols;
    size_t apart = (size_t)sh->groups * 2 * (key + values);
    p->in[0] = j->x->q + group * 2 * (key + values);
    p->in[1] = p->in[0] + key;
    p->in[2] = p->in[1] + key;
    for (int i = 0; i < 3; i++) p->in_apart[i] = apart;
    p->z = p->in[2] + values;
    p->z_apart = apart;
    p->b = j->x->b + group * 2 * heads;
    p->a = p->b + heads;
    p->b_apart = p->a_apart = 2 * (size_t)sh->heads;
}

/* Where the group's taps and its last inputs are. */
static void find_taps(const delta_job *j, float *slot, const size_t at[3], delta_part *p)
{
    const mixer_shape *sh = j->shape;
    size_t keys = (size_t)(sh->groups * sh->rows), values = (size_t)(sh->heads * sh->cols);
    const size_t begin[] = {0, keys, 2 * keys}, own[] = {keys, keys, values};
    bool three = j->w->taps[1] != NULL;
    for (int i = 0; i < 3; i++) {
        p->taps[i] = three ? j->w->taps[i] + at[i] - begin[i] : j->w->taps[0] + at[i];
        p->taps_apart[i] = three ? own[i] : p->channels;
        p->last[i] = slot + at[i];
    }
}

static void find_part(const delta_job *j, const step_seq *q, size_t group, delta_part *p)
{
    const mixer_shape *sh = j->shape;
    assert(q->row0 >= 0 && q->row0 + q->n_rows <= j->s->n_rows);
    size_t key = (size_t)sh->rows, value = (size_t)sh->cols, keys = (size_t)sh->groups * key;
    size_t first = group * (size_t)(sh->heads / sh->groups), row = (size_t)q->row0;
    const size_t at[] = {group * key, keys + group * key, 2 * keys + first * value};
    float *slot = j->s->state + (size_t)q->slot * j->s->state_stride + j->at;
    *p = (delta_part){.out_apart = (size_t)sh->heads * value,
                      .state = slot + mixer_window_floats(sh) + first * key * value,
                      .decay = j->w->decay + first,
                      .bias = j->w->bias + first * (j->w->rules.each ? key : 1),
                      .norm = j->w->norm,
                      .rules = &j->w->rules,
                      .channels = (size_t)sh->channels,
                      .n_head = sh->heads / sh->groups,
                      .key = sh->rows,
                      .value = sh->cols,
                      .n_rows = q->n_rows,
                      .n_taps = sh->taps,
                      .fresh = q->pos0 == 0};
    if (j->w->rules.form == DELTA_FUSED)
        find_fused(j, group, p);
    else
        find_apart(j, first, at, p);
    find_taps(j, slot, at, p);
    p->out = j->out + first * value + row * p->out_apart;
    for (int i = 0; i < 3; i++) p->in[i] += row * p->in_apart[i];
    p->z += row * p->z_apart;
    p->b += row * p->b_apart;
    p->a += row * p->a_apart;
}

/* Items are groups of sequences. */
static void delta_thread(void *arg, int thread)
{
    (void)thread;
    delta_job *j = arg;
    size_t groups = (size_t)j->shape->groups, item, end;
    while (pool_next_piece(&j->next, (size_t)j->s->n_seq * groups, 1, &item, &end)) {
        delta_part part;
        find_part(j, &j->s->seq[item / groups], item % groups, &part);
        j->kern->delta(&part);
    }
}

void cpu_delta(backend *be, float *out, const delta_rows *x, const delta_weights *w,
               const mixer_shape *shape, const step *s, size_t at)
{
    assert(at + mixer_state_floats(shape) <= s->state_stride);
    assert(shape->groups > 0 && shape->heads % shape->groups == 0);
    delta_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->mixers,
                   .out = out,
                   .x = x,
                   .w = w,
                   .shape = shape,
                   .s = s,
                   .at = at};
    size_t each = (size_t)shape->heads * (size_t)shape->rows * (size_t)shape->cols;
    cpu_run(be, (size_t)s->n_rows * each, SMALL_VALUES, delta_thread, &j);
}
