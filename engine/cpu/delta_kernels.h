/* delta_kernels.h -- the gated delta rule of a group's heads; a part of mixers_kernels.h.
 *
 * Rows are taken a few at a time: first the convolution and the norms of them all, then each block
 * of a matrix's columns goes through them, row after row, while it stays in the first-level cache.
 * A vector holds neighbouring columns, which do not know each other, and a sum over keys has one
 * order: so a row has the same bits whatever rows a call brings.
 */
#include <math.h>
#include <stdalign.h>

#include "engine/cpu/mixers.h"
#include "engine/cpu/vec.h"
#include "engine/mixer.h"

enum { DELTA_ROWS = 8, DELTA_VECTORS = 4 }; /* rows, and vectors of columns, at a time */

/* What matrices take from some rows. */
typedef struct delta_block {
    alignas(64) float query[DELTA_ROWS][MIXER_SIDE_MAX], key[DELTA_ROWS][MIXER_SIDE_MAX];
    float value[DELTA_ROWS][MIXER_SIDE_MAX]; /* of one head, and what follows: */
    float rate[DELTA_ROWS];                  /* how much the row writes, */
    float kept[DELTA_ROWS];                  /* and how much of the matrix stays; */
    /* or (rules->each) how much of each of its rows, and query and key times that */
    float stays[DELTA_ROWS][MIXER_SIDE_MAX];
    float reads[DELTA_ROWS][MIXER_SIDE_MAX], finds[DELTA_ROWS][MIXER_SIDE_MAX];
    float met[DELTA_ROWS]; /* query * key */
    int row0, n;
} delta_block;

static inline __attribute__((always_inline)) vf delta_silu(vf x)
{
    return x / (vf_set(1.0F) + vf_exp(-x));
}

/* n channels, at most VEC, of which each row's value stands `at` floats behind row[]: first those
 * of the rows before the block's.  Sums begin with the oldest. */
static inline __attribute__((always_inline)) void delta_conv_vector(const delta_part *p, int which,
                                                                    const float *const *row,
                                                                    int rows, size_t from,
                                                                    size_t at, int n, float *to)
{
    const float *taps = p->taps[which] + from + at;
    for (int r = 0; r < rows; r++, to += MIXER_SIDE_MAX) {
        vf sum = vf_set(0);
        for (int i = 0; i < p->n_taps; i++)
            sum += vf_load_n(row[r + i] + at, n) *
                   vf_load_n(taps + (size_t)i * p->taps_apart[which], n);
        vf_store_n(to, delta_silu(sum), n);
    }
}

/* n channels, those of in[which] from `from` on, of the block's rows; the last inputs stay in the
 * state. */
static void delta_conv(const delta_part *p, const delta_block *b, int which, size_t from, int n,
                       float to[][MIXER_SIDE_MAX])
{
    static const float zeros[MIXER_SIDE_MAX];
    const float *row[DELTA_ROWS + MIXER_TAPS_MAX];
    int before = p->n_taps - 1, at = 0;
    float *last = p->last[which] + from;
    bool fresh = p->fresh && b->row0 == 0;
    for (int i = 0; i < before; i++) row[i] = fresh ? zeros : last + (size_t)i * p->channels;
    for (int r = 0; r < b->n; r++)
        row[before + r] = p->in[which] + (size_t)(b->row0 + r) * p->in_apart[which] + from;
    for (; at + VEC <= n; at += VEC)
        delta_conv_vector(p, which, row, b->n, from, (size_t)at, VEC, to[0] + at);
    if (at < n) delta_conv_vector(p, which, row, b->n, from, (size_t)at, n - at, to[0] + at);
    for (int i = 0; i < before; i++) /* a row never goes to one that is still to be read */
        memcpy(last + (size_t)i * p->channels, row[b->n + i], (size_t)n * sizeof(float));
}

static float delta_dot(const float *a, const float *b, int n)
{
    vf sum = vf_set(0);
    int i = 0;
    for (; i + VEC <= n; i += VEC) sum += vf_load(a + i) * vf_load(b + i);
    if (i < n) sum += vf_load_n(a + i, n - i) * vf_load_n(b + i, n - i);
    return vf_sum(sum);
}

static void delta_scale(float *x, int n, float by)
{
    for (int i = 0; i < n; i++) x[i] *= by;
}

/* Queries and keys of the block's rows, which all heads share. */
static void delta_keys(const delta_part *p, delta_block *b)
{
    delta_conv(p, b, 0, 0, p->key, b->query);
    delta_conv(p, b, 1, 0, p->key, b->key);
    for (int row = 0; row < b->n; row++) {
        float *q = b->query[row], *k = b->key[row];
        delta_scale(q, p->key, 1 / sqrtf((delta_dot(q, q, p->key) + 1e-6F) * (float)p->key));
        delta_scale(k, p->key, 1 / sqrtf(delta_dot(k, k, p->key) + 1e-6F));
        b->met[row] = delta_dot(q, k, p->key);
    }
}

/* log(1 + exp(x)): 2 atanh(t / (2 + t)) with t = exp(-|x|), to its 15th power, and x where that is
 * above 0. */
static inline __attribute__((always_inline)) vf delta_softplus(vf x)
{
    vf t = vf_exp((vf)((vi)x | (int32_t)0x80000000)), u = t / (vf_set(2) + t), uu = u * u;
    vf sum = vf_set(1.0F / 15);
    for (int i = 13; i > 0; i -= 2) sum = sum * uu + vf_set(1.0F / (float)i);
    return vf_greater(x, vf_set(0)) + vf_set(2) * u * sum;
}

/* n rows of a matrix, at most VEC. */
static inline __attribute__((always_inline)) void
delta_stays_vector(const delta_part *p, delta_block *b, int row, int head, vf speed, int i, int n)
{
    size_t at = (size_t)head * (size_t)p->key + (size_t)i;
    const float *a = p->a + (size_t)(b->row0 + row) * p->a_apart + at;
    vf stays = vf_exp(-speed * delta_softplus(vf_load_n(a, n) + vf_load_n(p->bias + at, n)));
    vf_store_n(b->stays[row] + i, stays, n);
    vf_store_n(b->reads[row] + i, stays * vf_load_n(b->query[row] + i, n), n);
    vf_store_n(b->finds[row] + i, stays * vf_load_n(b->key[row] + i, n), n);
}

/* How much of each of a matrix' rows stays. */
static void delta_stays(const delta_part *p, delta_block *b, int row, int head)
{
    vf speed = vf_set((float)exp((double)p->decay[head]));
    int i = 0;
    for (; i + VEC <= p->key; i += VEC) delta_stays_vector(p, b, row, head, speed, i, VEC);
    if (i < p->key) delta_stays_vector(p, b, row, head, speed, i, p->key - i);
    b->kept[row] = 1;
}

/* How much of a matrix stays. */
static void delta_kept(const delta_part *p, delta_block *b, int row, int head)
{
    size_t at = (size_t)(b->row0 + row) * p->a_apart + (size_t)head;
    double over = (double)(p->a[at] + p->bias[head]);
    double soft = over > 20 ? over : log1p(exp(over));
    b->kept[row] = (float)exp(-exp((double)p->decay[head]) * soft);
}

/* What else a head's matrix takes. */
static void delta_values(const delta_part *p, delta_block *b, int head)
{
    delta_conv(p, b, 2, (size_t)head * (size_t)p->value, p->value, b->value);
    for (int row = 0; row < b->n; row++) {
        double rate = (double)p->b[(size_t)(b->row0 + row) * p->b_apart + (size_t)head];
        b->rate[row] = (float)((double)p->rules->most / (1 + exp(-rate)));
        if (p->rules->each)
            delta_stays(p, b, row, head);
        else
            delta_kept(p, b, row, head);
    }
}

/* `vectors` of n columns each through all rows of the block; out: of the first row, from column
 * `at` on.  Rows of the state are `apart` floats apart. */
static inline __attribute__((always_inline)) void
delta_columns(const delta_part *p, const delta_block *b, float *state, size_t apart, float *out,
              int at, const bool each, const int vectors, int n)
{
    out += at;
    for (int row = 0; row < b->n; row++, out += p->out_apart) {
        const float *q = each ? b->reads[row] : b->query[row], *k = b->key[row];
        const float *find = each ? b->finds[row] : k, *stays = b->stays[row];
        vf there[DELTA_VECTORS], answer[DELTA_VECTORS];
        for (int v = 0; v < vectors; v++) there[v] = answer[v] = vf_set(0);
        for (int i = 0; i < p->key; i++)
            for (int v = 0; v < vectors; v++) {
                vf s = vf_load_n(state + (size_t)i * apart + v * VEC, n);
                there[v] += s * vf_set(find[i]);
                answer[v] += s * vf_set(q[i]);
            }
        vf kept = vf_set(b->kept[row]), rate = vf_set(b->rate[row]), met = vf_set(b->met[row]);
        for (int v = 0; v < vectors; v++) {
            there[v] = (vf_load_n(b->value[row] + at + v * VEC, n) - kept * there[v]) * rate;
            vf_store_n(out + v * VEC, kept * answer[v] + met * there[v], n);
        }
        for (int i = 0; i < p->key; i++) {
            vf some = each ? vf_set(stays[i]) : kept;
            for (int v = 0; v < vectors; v++) {
                float *s = state + (size_t)i * apart + v * VEC;
                vf_store_n(s, some * vf_load_n(s, n) + vf_set(k[i]) * there[v], n);
            }
        }
    }
}

/* A block of columns. */
static void delta_move(float *to, size_t to_apart, const float *from, size_t from_apart, int rows)
{
    for (int i = 0; i < rows; i++)
        memcpy(to + (size_t)i * to_apart, from + (size_t)i * from_apart,
               DELTA_VECTORS * VEC * sizeof(float));
}

/* The block's rows of one head, before their norm. */
static inline __attribute__((always_inline)) void
delta_matrix(const delta_part *p, const delta_block *b, float *state, float *out, const bool each)
{
    enum { WIDE = DELTA_VECTORS * VEC };
    alignas(64) float near[MIXER_SIDE_MAX * WIDE]; /* rows that lie apart share the cache's sets */
    size_t apart = (size_t)p->value;
    bool copy = b->n > 1;
    int at = 0;
    for (; at + WIDE <= p->value; at += WIDE) {
        if (copy) delta_move(near, WIDE, state + at, apart, p->key);
        delta_columns(p, b, copy ? near : state + at, copy ? WIDE : apart, out, at, each,
                      DELTA_VECTORS, VEC);
        if (copy) delta_move(state + at, apart, near, WIDE, p->key);
    }
    for (; at + VEC <= p->value; at += VEC)
        delta_columns(p, b, state + at, apart, out, at, each, 1, VEC);
    if (at < p->value) delta_columns(p, b, state + at, apart, out, at, each, 1, p->value - at);
}

static void delta_alike(const delta_part *p, const delta_block *b, float *state, float *out)
{
    delta_matrix(p, b, state, out, false);
}

static void delta_each(const delta_part *p, const delta_block *b, float *state, float *out)
{
    delta_matrix(p, b, state, out, true);
}

static inline __attribute__((always_inline)) void
delta_norm_vector(float *out, const float *norm, const float *z, vf by, const bool sigmoid, int n)
{
    vf x = vf_load_n(out, n) * by * vf_load_n(norm, n), gate = vf_load_n(z, n);
    vf open = vf_set(1.0F) / (vf_set(1.0F) + vf_exp(-gate));
    vf_store_n(out, x * (sigmoid ? open : gate * open), n);
}

static void delta_norm(const delta_part *p, float *out, const float *z)
{
    int i = 0;
    bool sigmoid = p->rules->sigmoid;
    float mean = delta_dot(out, out, p->value) / (float)p->value;
    vf by = vf_set(1 / sqrtf(mean + p->rules->eps));
    for (; i + VEC <= p->value; i += VEC)
        delta_norm_vector(out + i, p->norm + i, z + i, by, sigmoid, VEC);
    if (i < p->value) delta_norm_vector(out + i, p->norm + i, z + i, by, sigmoid, p->value - i);
}

static void delta(const delta_part *p)
{
    delta_block b;
    size_t value = (size_t)p->value, matrix = (size_t)p->key * value;
    if (p->fresh) memset(p->state, 0, (size_t)p->n_head * matrix * sizeof(float));
    for (b.row0 = 0; b.row0 < p->n_rows; b.row0 += DELTA_ROWS) {
        b.n = p->n_rows - b.row0 < DELTA_ROWS ? p->n_rows - b.row0 : DELTA_ROWS;
        delta_keys(p, &b);
        for (int head = 0; head < p->n_head; head++) {
            float *out = p->out + (size_t)b.row0 * p->out_apart + (size_t)head * value;
            const float *z = p->z + (size_t)b.row0 * p->z_apart + (size_t)head * value;
            delta_values(p, &b, head);
            float *state = p->state + (size_t)head * matrix;
            if (p->rules->each)
                delta_each(p, &b, state, out);
            else
                delta_alike(p, &b, state, out);
            for (int row = 0; row < b.n; row++)
                delta_norm(p, out + (size_t)row * p->out_apart, z + (size_t)row * p->z_apart);
        }
    }
}
