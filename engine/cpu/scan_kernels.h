/* scan_kernels.h -- the kernels of a selective scan; included by mixers_kernels.h.
 *
 * A vector holds neighbouring columns of a head's state, which do not know each other: an answer is
 * a sum over the state's rows in their order, without a sum across a vector.  A step of several
 * rows of the sequence takes each piece of the state through all of them while it is in a register.
 * The operations of a row and their order are those of one row alone.
 */
#include <math.h>

#include "engine/cpu/mixers.h"
#include "engine/cpu/vec.h"
#include "engine/mixer.h"

static inline __attribute__((always_inline)) vf scan_silu(vf x)
{
    return x / (vf_set(1.0F) + vf_exp(-x));
}

/* n channels from `at` on, at most VEC. */
static inline __attribute__((always_inline)) void silu_vector(const silu_part *p, size_t at, int n)
{
    vf last[MIXER_TAPS_MAX], tap[MIXER_TAPS_MAX];
    int before = p->n_taps - 1;
    vf bias = p->bias ? vf_load_n(p->bias + at, n) : vf_set(0);
    for (int i = 0; i <= before; i++)
        tap[i] = vf_load_n(p->taps + (size_t)i * p->channels + at, n) * vf_set(p->by);
    for (int i = 0; i < before; i++)
        last[i] = p->fresh ? vf_set(0) : vf_load_n(p->last + (size_t)i * p->channels + at, n);
    for (int row = 0; row < p->n_rows; row++) {
        float *x = p->x + (size_t)row * p->stride + at;
        vf in = vf_load_n(x, n), sum = bias;
        for (int i = 0; i < before; i++) sum += last[i] * tap[i];
        sum += in * tap[before];
        vf_store_n(x, scan_silu(sum), n);
        for (int i = 0; i + 1 < before; i++) last[i] = last[i + 1];
        last[before - 1] = in;
    }
    for (int i = 0; i < before; i++) vf_store_n(p->last + (size_t)i * p->channels + at, last[i], n);
}

static void silu_conv(const silu_part *p)
{
    size_t at = p->from;
    for (; at + VEC <= p->to; at += VEC) silu_vector(p, at, VEC);
    if (at < p->to) silu_vector(p, at, (int)(p->to - at));
}

enum { SCAN_ROWS = 4, SCAN_WIDE = 4 };

/* `count` rows from `row` on, and of each `wide` vectors of columns from `at` on; n: values of the
 * last one. */
static inline __attribute__((always_inline)) void
scan_block(const scan_part *p, int row, const int count, size_t at, const int wide, int n)
{
    vf x[SCAN_ROWS * SCAN_WIDE], y[SCAN_ROWS * SCAN_WIDE], forget[SCAN_ROWS];
    for (int r = 0; r < count; r++) forget[r] = vf_set(p->forget[row + r]);
    for (int r = 0; r < count; r++)
        for (int i = 0; i < wide; i++) {
            const float *from = p->x + (size_t)(row + r) * p->stride + at + (size_t)(i * VEC);
            vf v = i + 1 < wide ? vf_load(from) : vf_load_n(from, n);
            x[r * wide + i] = v * vf_set(p->dt[row + r]);
            y[r * wide + i] = vf_set(0);
        }
    const float *b = p->b + (size_t)row * p->stride, *c = p->c + (size_t)row * p->stride;
    for (int k = 0; k < p->rows; k++) {
        float *to = p->state + (size_t)k * (size_t)p->cols + at;
        vf state[SCAN_WIDE];
        for (int i = 0; i < wide; i++)
            state[i] = i + 1 < wide ? vf_load(to + i * VEC) : vf_load_n(to + i * VEC, n);
        for (int r = 0; r < count; r++) {
            vf in = vf_set(b[(size_t)r * p->stride + (size_t)k]);
            vf out = vf_set(c[(size_t)r * p->stride + (size_t)k]);
            for (int i = 0; i < wide; i++) {
                vf more = x[r * wide + i] * in;
                state[i] = state[i] * forget[r] + more;
                y[r * wide + i] += state[i] * out;
            }
        }
        for (int i = 0; i + 1 < wide; i++) vf_store(to + i * VEC, state[i]);
        vf_store_n(to + (wide - 1) * VEC, state[wide - 1], n);
    }
    for (int r = 0; r < count; r++)
        for (int i = 0; i < wide; i++) {
            size_t col = at + (size_t)(i * VEC);
            const float *from = p->x + (size_t)(row + r) * p->stride + col;
            float *to = p->out + (size_t)(row + r) * p->out_stride + col;
            vf v = i + 1 < wide ? vf_load(from) : vf_load_n(from, n);
            v = y[r * wide + i] + v * vf_set(p->skip);
            if (i + 1 < wide)
                vf_store(to, v);
            else
                vf_store_n(to, v, n);
        }
}

/* `count` rows from `row` on: columns in pieces as wide as they go. */
static inline __attribute__((always_inline)) void scan_rows(const scan_part *p, int row,
                                                            const int count)
{
    int at = 0, cols = p->cols;
    for (; at + 4 * VEC <= cols; at += 4 * VEC) scan_block(p, row, count, (size_t)at, 4, VEC);
    for (; at + 2 * VEC <= cols; at += 2 * VEC) scan_block(p, row, count, (size_t)at, 2, VEC);
    for (; at + VEC <= cols; at += VEC) scan_block(p, row, count, (size_t)at, 1, VEC);
    if (at < cols) scan_block(p, row, count, (size_t)at, 1, cols - at);
}

static void scan(const scan_part *p)
{
    int row = 0;
    for (; row + SCAN_ROWS <= p->n_rows; row += SCAN_ROWS) scan_rows(p, row, SCAN_ROWS);
    for (; row < p->n_rows; row++) scan_rows(p, row, 1);
}

/* n values from `at` on, at most VEC, as the norm sees them; adds their squares. */
static inline __attribute__((always_inline)) vf scan_gate_in(const scan_gate_part *p, int at, int n,
                                                             vf acc)
{
    vf y = vf_load_n(p->y + at, n);
    if (!p->norm_first || !p->gain) y *= scan_silu(vf_load_n(p->gate + at, n) * vf_set(p->gate_by));
    vf_store_n(p->y + at, y, n);
    return acc + y * y;
}

static inline __attribute__((always_inline)) void scan_gate_out(const scan_gate_part *p, int at,
                                                                int n, float inv)
{
    vf y = vf_load_n(p->y + at, n) * vf_set(inv) * vf_load_n(p->gain + at, n);
    if (p->norm_first) y *= scan_silu(vf_load_n(p->gate + at, n) * vf_set(p->gate_by));
    vf_store_n(p->y + at, y, n);
}

static void scan_gate(const scan_gate_part *p)
{
    vf acc = vf_set(0);
    int i = 0;
    for (; i + VEC <= p->n; i += VEC) acc = scan_gate_in(p, i, VEC, acc);
    if (i < p->n) acc = scan_gate_in(p, i, p->n - i, acc);
    if (!p->gain) return;
    float inv = 1.0F / sqrtf(vf_sum(acc) / (float)p->n + p->eps);
    for (i = 0; i + VEC <= p->n; i += VEC) scan_gate_out(p, i, VEC, inv);
    if (i < p->n) scan_gate_out(p, i, p->n - i, inv);
}

/* A vector holds neighbouring rows of a channel's state. */
static void scan_channels(const channel_part *p)
{
    for (size_t ch = p->from; ch < p->to; ch++) {
        const float *decay = p->decay + ch * (size_t)p->rows;
        float *state = p->state + ch * (size_t)p->rows;
        float dt = p->dt[ch] > 20 ? p->dt[ch] : log1pf(expf(p->dt[ch])), x = p->x[ch];
        vf sum = vf_set(0), by = vf_set(-dt), in = vf_set(dt * x);
        for (int i = 0; i < p->rows; i += VEC) {
            int n = p->rows - i < VEC ? p->rows - i : VEC;
            vf forget = vf_exp(by * vf_exp(vf_load_n(decay + i, n)));
            vf now = forget * vf_load_n(state + i, n) + in * vf_load_n(p->b + i, n);
            vf_store_n(state + i, now, n);
            sum += now * vf_load_n(p->c + i, n);
        }
        float gate = p->gate[ch];
        p->out[ch] = (vf_sum(sum) + p->skip[ch] * x) * (gate / (1 + expf(-gate)));
    }
}
