/* attend_kernels.h -- the kernels of attend.h; included once by each attend_<isa>.c with KERNELS
 * defined.
 *
 * Softmax is online over pages (Milakov and Gimelshein; FlashAttention), in ascending order, each
 * row for itself: its bits depend on its own query, position and keys alone.  Slots outside a row's
 * range are never multiplied, so whatever a recycled page holds there cannot leak.
 */
#include <math.h>
#include <stdalign.h>

#include "engine/cpu/attend.h"
#include "engine/cpu/tile.h"

enum { PAGE = CPU_PAGE_TOKENS };

_Static_assert((int)PAGE == (int)TILE_COLS, "a page of keys is a panel for tile.h");

/* s[slot] of one row becomes its weight, for slots [lo, hi) of a page; the row's sums are
 * scaled where its maximum grows. */
static __attribute__((noinline)) void soften(attend_part *part, int r, float *s, int lo, int hi,
                                             int d_pad)
{
    for (int i = 0; i < lo; i++) s[i] = -INFINITY;
    for (int i = hi; i < PAGE; i++) s[i] = -INFINITY;
    vf m = vf_load(s);
    for (int i = VEC; i < PAGE; i += VEC) {
        vf v = vf_load(s + i);
        m = vf_select((vi)(v > m), v, m);
    }
    float top = vf_max(m);
    if (top > part->max[r]) {
        vf c = vf_exp(vf_set(part->max[r] - top)); /* first page: exp(-inf) = 0 */
        float *o = part->o + (size_t)r * d_pad;
        for (int j = 0; j < d_pad; j += VEC) vf_store(o + j, vf_load(o + j) * c);
        part->sum[r] *= c[0];
        part->max[r] = top;
    }
    vf total = vf_set(0);
    for (int i = 0; i < PAGE; i += VEC) {
        vf e = vf_exp(vf_load(s + i) - vf_set(part->max[r]));
        total += e;
        vf_store(s + i, e);
    }
    part->sum[r] += vf_sum(total);
}

/* One page for rows [r0, r0 + n) of a part, which all see its slots [lo, hi). */
typedef struct {
    attend_part *part;
    const float *q; /* [ATTEND_ROWS][HEAD_DIM_MAX] */
    int r0, n, lo, hi, d, d_pad;
    float cap;
    const char *k, *v, *next;          /* the keys after these */
    const uint16_t *k_scale, *v_scale; /* of int8 */
} page_work;

/* What is fetched while n rows are multiplied with as many bytes of something else. */
static inline __attribute__((always_inline)) tile_fetch meanwhile(const char *at, int n,
                                                                  const tile_type type)
{
    int lines = TILE_K * PAGE * tile_bytes(type) / 64, passes = tile_count(n);
    return (tile_fetch){.at = at, .lines = (lines + passes - 1) / passes, .left = lines};
}

static inline __attribute__((always_inline)) void scores(float (*s)[PAGE], const page_work *p,
                                                         const tile_type type)
{
    tile_fetch f = meanwhile(p->v, p->n, type);
    for (int i = 0; i < p->n; i += TILE_ROWS) {
        int n = p->n - i < TILE_ROWS ? p->n - i : TILE_ROWS;
        tile_work t = {.out = s[i],
                       .out_row = PAGE,
                       .w = p->k,
                       .w_bytes = PAGE * (size_t)tile_bytes(type),
                       .x = p->q + (size_t)(p->r0 + i) * HEAD_DIM_MAX,
                       .x_row = HEAD_DIM_MAX,
                       .n_k = p->d};
        tile_rows(&t, type, &f, n, PAGE);
    }
}

/* o += weights V for columns [c, c + cols). */
static inline __attribute__((always_inline)) void gather(float (*s)[PAGE], const page_work *p,
                                                         int c, tile_fetch f, const tile_type type,
                                                         const int cols)
{
    const size_t size = (size_t)tile_bytes(type), row = (size_t)p->d_pad;
    for (int i = 0; i < p->n; i += TILE_ROWS) {
        int n = p->n - i < TILE_ROWS ? p->n - i : TILE_ROWS;
        tile_work t = {.out = p->part->o + (size_t)(p->r0 + i) * row + c,
                       .out_row = row,
                       .w = p->v + ((size_t)p->lo * row + (size_t)c) * size,
                       .w_bytes = row * size,
                       .x = s[i] + p->lo,
                       .x_row = PAGE,
                       .n_k = p->hi - p->lo,
                       .more = true};
        tile_rows(&t, type, &f, n, cols);
    }
}

/* Functions of their own, since the compiler runs out of registers for them
 * in the midst of one_page(). */
static __attribute__((noinline)) void gather_end_f32(float (*s)[PAGE], const page_work *p, int c)
{
    gather(s, p, c, (tile_fetch){0}, TILE_F32, D_UNIT);
}

static __attribute__((noinline)) void gather_end_bf16(float (*s)[PAGE], const page_work *p, int c)
{
    gather(s, p, c, (tile_fetch){0}, TILE_BF16, D_UNIT);
}

static __attribute__((noinline)) void gather_end_f16(float (*s)[PAGE], const page_work *p, int c)
{
    gather(s, p, c, (tile_fetch){0}, TILE_F16, D_UNIT);
}

static __attribute__((noinline)) void gather_end_i8(float (*s)[PAGE], const page_work *p, int c)
{
    gather(s, p, c, (tile_fetch){0}, TILE_I8, D_UNIT);
}

/* One row of a page times the scales of its positions. */
static __attribute__((noinline)) void rescale(float *s, const uint16_t *scale)
{
    for (int i = 0; i < PAGE; i += VEC) vf_store(s + i, vf_load(s + i) * vf_from_bf16(scale + i));
}

static __attribute__((noinline)) void cap_scores(float *s, float cap)
{
    for (int i = 0; i < PAGE; i += VEC) vf_store(s + i, vf_cap(vf_load(s + i), cap));
}

static inline __attribute__((always_inline)) void one_page(const page_work *p, const tile_type type)
{
    alignas(64) float s[ATTEND_ROWS][PAGE];
    scores(s, p, type);
    for (int r = 0; r < p->n; r++) {
        if (type == TILE_I8) rescale(s[r], p->k_scale);
        if (p->cap > 0) cap_scores(s[r], p->cap);
        soften(p->part, p->r0 + r, s[r], p->lo, p->hi, p->d_pad);
        if (type == TILE_I8) rescale(s[r], p->v_scale);
    }
    int c = 0;
    for (; c + TILE_COLS <= p->d_pad; c += TILE_COLS) {
        const char *next = p->next + (size_t)c * PAGE * (size_t)tile_bytes(type);
        gather(s, p, c, meanwhile(next, p->n, type), type, TILE_COLS);
    }
    if (c == p->d_pad) return;
    switch (type) {
    case TILE_F32: gather_end_f32(s, p, c); break;
    case TILE_BF16: gather_end_bf16(s, p, c); break;
    case TILE_F16: gather_end_f16(s, p, c); break;
    case TILE_I8: gather_end_i8(s, p, c); break;
    }
}

static __attribute__((noinline)) void page_f32(const page_work *p)
{
    one_page(p, TILE_F32);
}

static __attribute__((noinline)) void page_bf16(const page_work *p)
{
    one_page(p, TILE_BF16);
}

static __attribute__((noinline)) void page_f16(const page_work *p)
{
    one_page(p, TILE_F16);
}

static __attribute__((noinline)) void page_i8(const page_work *p)
{
    one_page(p, TILE_I8);
}

static void page_of(const page_work *p, dtype type)
{
    switch (type) {
    case DT_F32: page_f32(p); break;
    case DT_BF16: page_bf16(p); break;
    case DT_F16: page_f16(p); break;
    case DT_I8: page_i8(p); break;
    }
}

/* The first slot that a row sees of the page that begins at `base`, and one past the last; of what
 * is kept, if its window does not reach there. */
static int slot_from(const attn_shape *sh, int layer, int pos, int base, bool kept)
{
    int from = kept ? 0 : attn_from(sh, layer, pos);
    return from > base ? from - base : 0;
}

static int slot_to(const attn_shape *sh, int layer, int pos, int base, bool kept)
{
    int to = !kept ? pos + 1 : attn_from(sh, layer, pos) > 0 ? sh->kept : 0;
    return to - base < PAGE ? to - base : PAGE;
}

/* Neighbours with the same range share the loads of K and V. */
static void rows_of_page(page_work p, const attn_shape *sh, int layer, const attend_row *rows,
                         int n, int base, bool kept)
{
    for (int r = 0; r < n; r += p.n) {
        p.r0 = r;
        p.n = 1;
        p.lo = slot_from(sh, layer, rows[r].pos, base, kept);
        p.hi = slot_to(sh, layer, rows[r].pos, base, kept);
        if (p.lo >= p.hi) continue;
        while (r + p.n < n && slot_from(sh, layer, rows[r + p.n].pos, base, kept) == p.lo &&
               slot_to(sh, layer, rows[r + p.n].pos, base, kept) == p.hi)
            p.n++;
        page_of(&p, sh->kv_type);
    }
}

static void split(attend_part *part, const cpu_kv *kv, const attend_row *rows, int n,
                  const int32_t *page, int layer, int kv_head, int at)
{
    const attn_shape *sh = &kv->head.shape;
    const bool kept = at == SPLIT_KEPT;
    alignas(64) float q[ATTEND_ROWS][HEAD_DIM_MAX];
    for (int r = 0; r < n; r++) {
        const float *from = kept ? rows[r].q_kept : rows[r].q;
        part->max[r] = -INFINITY;
        part->sum[r] = 0;
        for (int i = 0; i < sh->head_dim; i++) q[r][i] = from[i] * sh->scale;
    }
    memset(part->o, 0, (size_t)n * kv->d_pad * sizeof(float));
    int first = attn_from(sh, layer, rows[0].pos) / PAGE, last = rows[n - 1].pos / PAGE;
    if (first < at * SPLIT_PAGES) first = at * SPLIT_PAGES;
    if (last > (at + 1) * SPLIT_PAGES - 1) last = (at + 1) * SPLIT_PAGES - 1;
    if (kept) { /* the last row's window is the first to leave them behind */
        first = 0;
        last = attn_from(sh, layer, rows[n - 1].pos) > 0 ? (sh->kept - 1) / PAGE : -1;
    }
    for (int b = first; b <= last; b++) {
        int soon = b < last ? b + 1 : b;
        page_work p = {.part = part,
                       .q = q[0],
                       .d = sh->head_dim,
                       .cap = sh->cap,
                       .d_pad = kv->d_pad,
                       .k = kv_k(kv, page[b], layer, kv_head),
                       .v = kv_v(kv, page[b], layer, kv_head),
                       .next = kv_k(kv, page[soon], layer, kv_head)};
        p.k_scale = kv_scales(p.k, kv->k_bytes);
        p.v_scale = kv_scales(p.v, kv->v_bytes);
        rows_of_page(p, sh, layer, rows, n, b * PAGE, kept);
    }
}

/* Rows that a part saw nothing of have the sum 0 there. */
static void merge(attend_part *into, const attend_part *part, int n, int d_pad)
{
    for (int r = 0; r < n; r++) {
        if (part->sum[r] == 0) continue;
        float *o = into->o + (size_t)r * d_pad;
        const float *more = part->o + (size_t)r * d_pad;
        float top = into->max[r] > part->max[r] ? into->max[r] : part->max[r];
        vf a = vf_exp(vf_set(into->max[r] - top)), b = vf_exp(vf_set(part->max[r] - top));
        for (int j = 0; j < d_pad; j += VEC)
            vf_store(o + j, vf_load(o + j) * a + vf_load(more + j) * b);
        into->sum[r] = into->sum[r] * a[0] + part->sum[r] * b[0];
        into->max[r] = top;
    }
}

static void finish(const attend_row *rows, const attend_part *part, int n, int v_dim, int d_pad)
{
    for (int r = 0; r < n; r++) {
        float inv = 1.0F / (part->sum[r] + expf(rows[r].sink - part->max[r]));
        const float *o = part->o + (size_t)r * d_pad;
        for (int i = 0; i < v_dim; i++) rows[r].out[i] = o[i] * inv;
    }
}

/* Pairs begin at every `each`-th value, and their two values stand `apart`. */
static inline __attribute__((always_inline)) void turn(float *x, const float *cos, const float *sin,
                                                       int half, const int each, int apart)
{
    for (int i = 0; i < half; i++) {
        float a = x[i * each], b = x[i * each + apart];
        x[i * each] = a * cos[i] - b * sin[i];
        x[i * each + apart] = b * cos[i] + a * sin[i];
    }
}

static void rope(float *x, const float *norm, float eps, const rope_table *t, int pos, int head_dim)
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
    int half = t->rope_dim / 2;
    const float *cos = t->cos + (size_t)pos * half, *sin = t->sin + (size_t)pos * half;
    x += t->first;
    if (t->pairs)
        turn(x, cos, sin, half, 2, 1);
    else
        turn(x, cos, sin, half, 1, half);
}

const attend_kernels KERNELS = {split, merge, finish, rope};
