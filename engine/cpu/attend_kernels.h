/* attend_kernels.h -- the kernels of attend.h; included once by each attend_<isa>.c with KERNELS
 * defined.
 *
 * Softmax is online over pages (Milakov and Gimelshein; FlashAttention), in ascending order, each
 * row for itself: its bits depend on its own query, position and keys alone.  Slots outside a row's
 * range are never multiplied, so whatever a recycled page holds there cannot leak.
 */
#include <math.h>

#include "engine/cpu/attend.h"
#include "engine/cpu/vec.h"

enum { PAGE = CPU_PAGE_TOKENS, HALVES = PAGE / VEC, O_VECS = HEAD_DIM_MAX / VEC };

typedef struct {
    float q[HEAD_DIM_MAX]; /* scaled */
    vf o[O_VECS];
    float max, sum;
} row_state;

static inline __attribute__((always_inline)) vf load_kv(const char *p, size_t i, bool bf16)
{
    return bf16 ? vf_from_bf16((const uint16_t *)(const void *)p + i)
                : vf_load((const float *)(const void *)p + i);
}

/* s[r][32] = q[r] . K, R rows. */
static inline __attribute__((always_inline)) void
scores(vf (*s)[HALVES], row_state *const *st, const char *k, int d, bool bf16, const int r_count)
{
    for (int r = 0; r < r_count; r++) {
        for (int h = 0; h < HALVES; h++) s[r][h] = vf_set(0);
    }
    for (int i = 0; i < d; i++) {
        vf kv[HALVES];
        for (int h = 0; h < HALVES; h++) kv[h] = load_kv(k, (size_t)i * PAGE + h * VEC, bf16);
        for (int r = 0; r < r_count; r++) {
            vf q = vf_set(st[r]->q[i]);
            for (int h = 0; h < HALVES; h++) s[r][h] += q * kv[h];
        }
    }
}

/* Slots [lo, hi) of this page count; s becomes the weights. */
static inline void soften(row_state *st, vf *s, int lo, int hi, int vecs)
{
    if (lo > 0 || hi < PAGE) {
        for (int h = 0; h < HALVES; h++) {
            float t[VEC];
            vf_store(t, s[h]);
            for (int i = 0; i < VEC; i++) {
                int slot = h * VEC + i;
                if (slot < lo || slot >= hi) t[i] = -INFINITY;
            }
            s[h] = vf_load(t);
        }
    }
    vf m = vf_select((vi)(s[0] > s[1]), s[0], s[1]);
    float top = vf_max(m);
    if (top > st->max) {
        vf c = vf_exp(vf_set(st->max - top)); /* first page: exp(-inf) = 0 */
        for (int j = 0; j < vecs; j++) st->o[j] *= c;
        st->sum *= c[0];
        st->max = top;
    }
    vf total = vf_set(0);
    for (int h = 0; h < HALVES; h++) {
        s[h] = vf_exp(s[h] - vf_set(st->max));
        total += s[h];
    }
    st->sum += vf_sum(total);
}

/* o += weights V for slots [lo, hi), R rows. */
static inline __attribute__((always_inline)) void gather(row_state *const *st,
                                                         const float (*p)[PAGE], const char *v,
                                                         int d_pad, bool bf16, int lo, int hi,
                                                         const int r_count)
{
    for (int j = 0; j < d_pad / VEC; j++) {
        vf acc[ATTEND_ROWS];
        for (int r = 0; r < r_count; r++) acc[r] = st[r]->o[j];
        for (int t = lo; t < hi; t++) {
            vf vv = load_kv(v, (size_t)t * d_pad + j * VEC, bf16);
            for (int r = 0; r < r_count; r++) acc[r] += vf_set(p[r][t]) * vv;
        }
        for (int r = 0; r < r_count; r++) st[r]->o[j] = acc[r];
    }
}

static inline __attribute__((always_inline)) void page_rows(row_state *const *st, const cpu_kv *kv,
                                                            const char *k, const char *v,
                                                            const int *lo, const int *hi, bool bf16,
                                                            const int r_count)
{
    vf s[ATTEND_ROWS][HALVES];
    float p[ATTEND_ROWS][PAGE];
    scores(s, st, k, kv->head.shape.head_dim, bf16, r_count);
    for (int r = 0; r < r_count; r++) {
        soften(st[r], s[r], lo[r], hi[r], kv->d_pad / VEC);
        for (int h = 0; h < HALVES; h++) vf_store(p[r] + h * VEC, s[r][h]);
    }
    gather(st, (const float(*)[PAGE])p, v, kv->d_pad, bf16, lo[0], hi[0], r_count);
}

static inline __attribute__((always_inline)) void one_page(row_state *const *st, const cpu_kv *kv,
                                                           const char *k, const char *v,
                                                           const int *lo, const int *hi, int n,
                                                           bool bf16)
{
    /* Neighbours with the same range share the loads of K and V. */
    for (int r = 0, same; r < n; r += same) {
        same = 1;
        while (r + same < n && lo[r + same] == lo[r] && hi[r + same] == hi[r]) same++;
        if (same > 4 && same < ATTEND_ROWS) same = 4;
        row_state *const *rows = st + r;
        const int *from = lo + r, *to = hi + r;
        switch (same) {
        case 1: page_rows(rows, kv, k, v, from, to, bf16, 1); break;
        case 2: page_rows(rows, kv, k, v, from, to, bf16, 2); break;
        case 3: page_rows(rows, kv, k, v, from, to, bf16, 3); break;
        case 4: page_rows(rows, kv, k, v, from, to, bf16, 4); break;
        default: page_rows(rows, kv, k, v, from, to, bf16, ATTEND_ROWS); break;
        }
    }
}

static void attend(const cpu_kv *kv, const attend_row *rows, int n, const int32_t *page, int layer,
                   int kv_head)
{
    const attn_shape *sh = &kv->head.shape;
    row_state state[ATTEND_ROWS];
    bool bf16 = sh->kv_type == DT_BF16;
    int first = rows[n - 1].pos, last = 0;
    for (int r = 0; r < n; r++) {
        state[r].max = -INFINITY;
        state[r].sum = 0;
        for (int i = 0; i < sh->head_dim; i++) state[r].q[i] = rows[r].q[i] * sh->scale;
        for (int j = 0; j < kv->d_pad / VEC; j++) state[r].o[j] = vf_set(0);
        int from = sh->window > 0 && rows[r].pos >= sh->window ? rows[r].pos - sh->window + 1 : 0;
        if (from < first) first = from;
        if (rows[r].pos > last) last = rows[r].pos;
    }
    for (int b = first / PAGE; b <= last / PAGE; b++) {
        row_state *st[ATTEND_ROWS];
        int lo[ATTEND_ROWS], hi[ATTEND_ROWS], m = 0;
        for (int r = 0; r < n; r++) {
            int pos = rows[r].pos, base = b * PAGE;
            int from = sh->window > 0 && pos >= sh->window ? pos - sh->window + 1 : 0;
            lo[m] = from > base ? from - base : 0;
            hi[m] = pos + 1 - base < PAGE ? pos + 1 - base : PAGE;
            if (lo[m] < hi[m]) st[m++] = &state[r];
        }
        if (m == 0) continue;
        const char *k = kv_k(kv, page[b], layer, kv_head), *v = kv_v(kv, page[b], layer, kv_head);
        if (bf16)
            one_page(st, kv, k, v, lo, hi, m, true);
        else
            one_page(st, kv, k, v, lo, hi, m, false);
    }
    for (int r = 0; r < n; r++) {
        vf inv = vf_set(1.0F / state[r].sum);
        for (int j = 0; j < kv->d_pad / VEC; j++) {
            int left = sh->head_dim - j * VEC < VEC ? sh->head_dim - j * VEC : VEC;
            vf_store_n(rows[r].out + j * VEC, state[r].o[j] * inv, left);
        }
    }
}

static void rope(float *x, const float *norm, float eps, const float *cos, const float *sin,
                 int head_dim, int rope_dim)
{
    if (norm) {
        vf acc = vf_set(0);
        for (int i = 0; i < head_dim; i += VEC) {
            vf v = vf_load_n(x + i, head_dim - i < VEC ? head_dim - i : VEC);
            acc += v * v;
        }
        float inv = 1.0F / sqrtf(vf_sum(acc) / (float)head_dim + eps);
        for (int i = 0; i < head_dim; i++) x[i] = x[i] * inv * norm[i];
    }
    int half = rope_dim / 2;
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

const attend_kernels KERNELS = {attend, rope};
