/* attend_kernels.h -- vector kernels of attend.c; included once by each attend_<isa>.c with KERNELS
 * defined.
 *
 * A "page" here is a block of 32 positions, whatever a page of the pool holds (attend.h).
 *
 * Per page and up to eight rows: scores = q K (tile.h), optional cap, online
 * softmax, o += weights V. The softmax keeps a running maximum and rescales o and the sum only when
 * it grows (Milakov and Gimelshein 2018; FlashAttention):
 *
 *   m' = max(m, max s)    o *= exp(m - m')    sum = sum exp(m - m') + sum of exp(s - m')
 *
 * Pages are visited in ascending order, each row by itself, so a row's bits depend only on its own
 * query, position and keys. Scores outside a row's range become -inf before the softmax, and V is
 * multiplied for the slots [lo, hi) only: stale content of a recycled page cannot leak.
 *
 * int8: q and the weights are rounded to 16-bit integers, products with the 8-bit codes are summed
 * exactly in 32 bits, so there the order does not matter. The next operand is prefetched while the
 * current one is multiplied (meanwhile()).
 */
#include <math.h>
#include <stdalign.h>

#include "engine/cpu/attend.h"
#include "engine/cpu/fetch.h"
#include "engine/cpu/tile.h"

enum { PAGE = CPU_KV_BLOCK };

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
        m = vf_greater(v, m);
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
    const float *q;                     /* [ATTEND_ROWS][KEY_MAX] */
    int r0, n, lo, hi, d, d_pad, v_row; /* v_row: from one value to the next */
    float cap;
    const char *k, *v, *next; /* the keys after these */
    /* Of keys in which values stand, [PAGE][v_row] in place of k and v: as floats; or bf16 in k,
     * and q likewise [ATTEND_ROWS][KEY_MAX]. */
    const float *latents;
    const uint16_t *q16;
    /* int8: q in whole numbers, as many at a time as they stand for, and the codes' scales. */
    const int16_t *whole; /* [ATTEND_ROWS][HEAD_DIM_MAX] */
    const float *by;
    const uint16_t *k_scale, *v_scale;
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
                       .x = p->q + (size_t)(p->r0 + i) * KEY_MAX,
                       .x_row = KEY_MAX,
                       .n_k = p->d};
        tile_rows(&t, type, &f, n, PAGE);
    }
}

/* o += weights V for columns [c, c + cols). */
static inline __attribute__((always_inline)) void gather(float (*s)[PAGE], const page_work *p,
                                                         int c, tile_fetch f, const tile_type type,
                                                         const int cols)
{
    const size_t size = (size_t)tile_bytes(type), row = (size_t)p->d_pad, v_row = (size_t)p->v_row;
    for (int i = 0; i < p->n; i += TILE_ROWS) {
        int n = p->n - i < TILE_ROWS ? p->n - i : TILE_ROWS;
        tile_work t = {.out = p->part->o + (size_t)(p->r0 + i) * row + c,
                       .out_row = row,
                       .w = p->v + ((size_t)p->lo * v_row + (size_t)c) * size,
                       .w_bytes = v_row * size,
                       .x = s[i] + p->lo,
                       .x_row = PAGE,
                       .n_k = p->hi - p->lo,
                       .more = true};
        tile_rows(&t, type, &f, n, cols);
    }
}

/* Separate functions: inlined into one_page() they exceed the registers. */
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

static __attribute__((noinline)) void cap_scores(float *s, float cap)
{
    for (int i = 0; i < PAGE; i += VEC) vf_store(s + i, vf_cap(vf_load(s + i), cap));
}

/* Scores of row r become weights. */
static void weigh(const page_work *p, int r, float *s)
{
    if (p->cap > 0) cap_scores(s, p->cap);
    soften(p->part, p->r0 + r, s, p->lo, p->hi, p->d_pad);
}

static inline __attribute__((always_inline)) void one_page(const page_work *p, const tile_type type)
{
    alignas(64) float s[ATTEND_ROWS][PAGE];
    scores(s, p, type);
    for (int r = 0; r < p->n; r++) weigh(p, r, s[r]);
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

/* ----------------------------------------------------------------------------- int8 -- */

/* Codes times whole numbers of 16 bits, in which a row's query and its weights of a page are
 * written: sums of 32 bits, exact, so that nothing depends on their order. */
enum { WHOLE_MAX = INT16_MAX, QUAD = 4, QUAD_ROWS = 4 };

/* n values, a multiple of VEC, as multiples of what is returned. */
static float whole_of(int16_t *to, const float *x, int n)
{
    typedef int16_t halves __attribute__((vector_size(2 * VEC)));
    float odd, top = vf_largest(x, n, &odd);
    const vf up = vf_set(top > 0 ? WHOLE_MAX / top : 0);
    for (int i = 0; i < n; i += VEC) {
        halves h = __builtin_convertvector(vi_nearest(vf_load(x + i) * up), halves);
        memcpy(to + i, &h, sizeof(h));
    }
    return top / WHOLE_MAX + odd;
}

/* A row's weights of a page, times the scales of the values.  What it does not see weighs nothing,
 * whatever scale stands there. */
static __attribute__((noinline)) float whole_weights(int16_t *to, float *s, const uint16_t *scale)
{
    for (int i = 0; i < PAGE; i += VEC) {
        vf e = vf_load(s + i);
        vf_store(s + i, (vf)((vi)(e * vf_from_bf16(scale + i)) & (vi)(e != vf_set(0))));
    }
    return whole_of(to, s, PAGE);
}

/* Two neighbours everywhere. */
static inline __attribute__((always_inline)) vs vs_two(const int16_t *x)
{
    int32_t two;
    memcpy(&two, x, sizeof(two));
    return (vs)(two - (vi){0});
}

/* n quads of rows, x_row apart, times `lanes` vectors of columns of codes.  What lies `ahead` of
 * them, a page later, is wanted in the second-level cache: more lines can be on their way there
 * than to the first, and half a page takes less time than memory. */
static inline __attribute__((always_inline)) void quad_sums(vi (*sum)[2], const char *w,
                                                            size_t w_bytes, const int16_t *x,
                                                            size_t x_row, int n, ptrdiff_t ahead,
                                                            const int rows, const int lanes)
{
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vi){0};
        /* Unrolled, values of x that several columns meet would take all registers. */
#pragma GCC unroll 1
    for (int q = 0; q < n; q++, w += w_bytes, x += QUAD) {
        vs low[2], high[2];
#pragma GCC unroll 2
        for (int l = 0; l < lanes; l++) {
            const char *at = w + (size_t)l * sizeof(*high);
            if (l == 0 || sizeof(*high) == 64) __builtin_prefetch(at + ahead, 0, 2);
            memcpy(&high[l], at, sizeof(*high));
            low[l] = high[l] << 8 >> 8;
            high[l] >>= 8;
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows * 2; i++) {
            const vs two = vs_two(x + (size_t)(i / 2) * x_row + i % 2 * 2);
#pragma GCC unroll 2
            for (int l = 0; l < lanes; l++)
                sum[i / 2][l] = vi_add_pairs(sum[i / 2][l], i % 2 ? high[l] : low[l], two);
        }
    }
}

/* Of rows from r on. */
static inline __attribute__((always_inline)) void quad_scores(float (*s)[PAGE], const page_work *p,
                                                              int r, const int rows)
{
    const float *by = p->by + p->r0 + r;
    vi sum[QUAD_ROWS][2];
    for (int c = 0; c < PAGE; c += 2 * VEC) {
        quad_sums(sum, p->k + (size_t)c * QUAD, PAGE * QUAD,
                  p->whole + (size_t)(p->r0 + r) * HEAD_DIM_MAX, HEAD_DIM_MAX,
                  (p->d + QUAD - 1) / QUAD, p->next - p->k, rows, 2);
        for (int i = 0; i < rows * 2; i++) {
            const int at = c + i % 2 * VEC;
            vf_store(s[r + i / 2] + at, __builtin_convertvector(sum[i / 2][i % 2], vf) *
                                            vf_set(by[i / 2]) * vf_from_bf16(p->k_scale + at));
        }
    }
}

/* o += weights V of rows from r on, for columns [c, c + lanes * VEC). */
static inline __attribute__((always_inline)) void quad_values(int16_t (*e)[PAGE], const float *by,
                                                              const page_work *p, int r, int c,
                                                              const int rows, const int lanes)
{
    vi sum[QUAD_ROWS][2];
    quad_sums(sum, p->v + (size_t)c * QUAD, (size_t)p->d_pad * QUAD, e[r], PAGE, PAGE / QUAD,
              p->next - p->k, rows, lanes);
    for (int i = 0; i < rows * lanes; i++) {
        float *o = p->part->o + (size_t)(p->r0 + r + i / lanes) * p->d_pad + c + i % lanes * VEC;
        vf_store(o, vf_load(o) + __builtin_convertvector(sum[i / lanes][i % lanes], vf) *
                                     vf_set(by[r + i / lanes]));
    }
}

/* Rows that are taken together, of `left`: four, two or one. */
static inline int quad_rows(int left)
{
    return left >= QUAD_ROWS ? QUAD_ROWS : left >= 2 ? 2 : 1;
}

static __attribute__((noinline)) void page_scores_i8(float (*s)[PAGE], const page_work *p)
{
    for (int r = 0, n; r < p->n; r += n) {
        n = quad_rows(p->n - r);
        if (n == QUAD_ROWS)
            quad_scores(s, p, r, QUAD_ROWS);
        else if (n == 2)
            quad_scores(s, p, r, 2);
        else
            quad_scores(s, p, r, 1);
    }
}

/* Columns from c on, `lanes` vectors. */
static inline __attribute__((always_inline)) void
values_of(int16_t (*e)[PAGE], const float *by, const page_work *p, int c, const int lanes)
{
    for (int r = 0, n; r < p->n; r += n) {
        n = quad_rows(p->n - r);
        if (n == QUAD_ROWS)
            quad_values(e, by, p, r, c, QUAD_ROWS, lanes);
        else if (n == 2)
            quad_values(e, by, p, r, c, 2, lanes);
        else
            quad_values(e, by, p, r, c, 1, lanes);
    }
}

static __attribute__((noinline)) void page_values_i8(int16_t (*e)[PAGE], const float *by,
                                                     const page_work *p)
{
    int c = 0;
    for (; c + 2 * VEC <= p->d_pad; c += 2 * VEC) values_of(e, by, p, c, 2);
    if (c < p->d_pad) values_of(e, by, p, c, 1); /* of vectors of 16 */
}

static void page_i8(const page_work *p)
{
    alignas(64) float s[ATTEND_ROWS][PAGE];
    alignas(64) int16_t e[ATTEND_ROWS][PAGE];
    float by[ATTEND_ROWS];
    __builtin_prefetch(p->v_scale);
    page_scores_i8(s, p);
    for (int r = 0; r < p->n; r++) {
        weigh(p, r, s[r]);
        by[r] = whole_weights(e[r], s[r], p->v_scale);
    }
    __builtin_prefetch(p->next + ((const char *)p->k_scale - p->k));
    page_values_i8(e, by, p);
}

#include "engine/cpu/attend_latent.h"

/* ---------------------------------------------------------------------------- pages -- */

static void page_of(page_work *p, dtype type)
{
    if (p->latents || p->q16) {
        page_latents(p);
        return;
    }
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

/* The part's rows of q, scaled, with zeros behind them. */
static void begin_split(attend_part *part, float (*q)[KEY_MAX], const attn_shape *sh,
                        const cpu_kv_layer *l, const attend_row *rows, int n, bool kept)
{
    for (int r = 0; r < n; r++) {
        const float *from = kept ? rows[r].q_kept : rows[r].q;
        part->max[r] = -INFINITY;
        part->sum[r] = 0;
        for (int i = 0; i < l->head_dim; i++) q[r][i] = from[i] * sh->scale;
        for (int i = l->head_dim; i < l->k_pad; i++) q[r][i] = 0;
    }
    memset(part->o, 0, (size_t)n * l->d_pad * sizeof(float));
}

/* Pages [*first, *last] of a split that rows see. */
static void pages_of(const attn_shape *sh, const attend_row *rows, int n, int layer, int at,
                     int *first, int *last)
{
    *first = attn_from(sh, layer, rows[0].pos) / PAGE;
    *last = rows[n - 1].pos / PAGE;
    if (at == SPLIT_KEPT) { /* the last row's window is the first to leave them behind */
        *first = 0;
        *last = attn_from(sh, layer, rows[n - 1].pos) > 0 ? (sh->kept - 1) / PAGE : -1;
        return;
    }
    if (*first < at * SPLIT_BLOCKS) *first = at * SPLIT_BLOCKS;
    if (*last > (at + 1) * SPLIT_BLOCKS - 1) *last = (at + 1) * SPLIT_BLOCKS - 1;
}

/* A block that is gathered from cells smaller than it; of the widest head. */
typedef struct {
    alignas(64) char k[HEAD_DIM_MAX * PAGE * sizeof(float)];
    alignas(64) char v[HEAD_DIM_MAX * PAGE * sizeof(float)];
    uint16_t k_scale[PAGE], v_scale[PAGE];
} gathered;

/* n runs of `run` bytes that lie one behind the other, `apart` bytes from each other. */
static inline __attribute__((always_inline)) void
spread_runs(char *to, size_t apart, const char *from, size_t n, const size_t run)
{
    for (size_t i = 0; i < n; i++) memcpy(to + i * apart, from + i * run, run);
}

/* Of one position to half a block, of elements of one to four bytes: copies of known sizes. */
static void spread(char *to, size_t apart, const char *from, size_t n, size_t run)
{
    switch (run) {
    case 2: spread_runs(to, apart, from, n, 2); break;
    case 4: spread_runs(to, apart, from, n, 4); break;
    case 8: spread_runs(to, apart, from, n, 8); break;
    case 16: spread_runs(to, apart, from, n, 16); break;
    case 32: spread_runs(to, apart, from, n, 32); break;
    case 64: spread_runs(to, apart, from, n, 64); break;
    default: spread_runs(to, apart, from, n, run);
    }
}

/* The codes of a cell's V to slot `at` of a block's, four rows side by side. */
static void gather_codes(char *to, const char *from, int at, int cell, int d_pad)
{
    if (cell % QUAD == 0) {
        memcpy(to + (size_t)at * (size_t)d_pad, from, (size_t)cell * (size_t)d_pad);
        return;
    }
    for (int s = 0; s < cell; s++)
        for (int i = 0; i < d_pad; i++)
            to[kv_code((size_t)(at + s), (size_t)i, (size_t)d_pad)] =
                from[kv_code((size_t)s, (size_t)i, (size_t)d_pad)];
}

/* The block from position `base` on; only cells with positions of [from, to_pos] are read, as pages
 * of others may have been given back. */
static __attribute__((noinline)) void gather_block(gathered *to, const cpu_kv *kv,
                                                   const int32_t *page, int layer, int kv_head,
                                                   int base, int from, int to_pos)
{
    const cpu_kv_layer *l = &kv->layer[layer];
    const bool codes = kv->head.shape.kv_type == DT_I8;
    const int cell = kv->cell, quad = codes ? QUAD : 1;
    const size_t each = dtype_bytes(kv->head.shape.kv_type);
    const size_t run = (size_t)cell * (size_t)quad * each, rows = l->k_bytes / run;
    if (base < from || base + PAGE - 1 > to_pos) { /* once at each end: slots that nobody sees */
        memset(to->k, 0, rows * PAGE * (size_t)quad * each);
        memset(to->v, 0, PAGE * (size_t)l->d_pad * each);
    }
    for (int at = 0; at < PAGE && base + at <= to_pos; at += cell) {
        if (base + at + cell <= from) continue;
        const char *k = kv_cell(kv, page, layer, kv_head, base + at), *v = k + l->v_at;
        char *k_to = to->k + (size_t)at * (size_t)quad * each;
        spread(k_to, PAGE * (size_t)quad * each, k, rows, run);
        if (!codes) {
            memcpy(to->v + (size_t)at * (size_t)l->d_pad * each, v, l->v_bytes);
            continue;
        }
        gather_codes(to->v, v, at, cell, l->d_pad);
        memcpy(to->k_scale + at, kv_scales(k, l->k_bytes), (size_t)cell * sizeof(uint16_t));
        memcpy(to->v_scale + at, kv_scales(v, l->v_bytes), (size_t)cell * sizeof(uint16_t));
    }
}

/* Where the block from `base` on lies. */
static void place_block(page_work *p, const cpu_kv *kv, const int32_t *page, int layer, int kv_head,
                        int base)
{
    const cpu_kv_layer *l = &kv->layer[layer];
    p->k = kv_cell(kv, page, layer, kv_head, base);
    p->v = p->k + l->v_at;
    p->k_scale = kv_scales(p->k, l->k_bytes);
    p->v_scale = kv_scales(p->v, l->v_bytes);
}

/* Blocks [first, last] of pages with cells smaller than a block. */
static __attribute__((noinline)) void small_pages(page_work p, const cpu_kv *kv,
                                                  const attend_row *rows, int n,
                                                  const int32_t *page, int layer, int kv_head,
                                                  int first, int last, bool kept)
{
    gathered g;
    const attn_shape *sh = &kv->head.shape;
    const int from = kept ? 0 : attn_from(sh, layer, rows[0].pos);
    const int to = kept ? sh->kept - 1 : rows[n - 1].pos;
    p.k = p.next = g.k;
    p.v = g.v;
    p.k_scale = g.k_scale;
    p.v_scale = g.v_scale;
    for (int b = first; b <= last; b++) {
        gather_block(&g, kv, page, layer, kv_head, b * PAGE, from, to);
        rows_of_page(p, sh, layer, rows, n, b * PAGE, kept);
    }
}

static void split(attend_part *part, const cpu_kv *kv, const attend_row *rows, int n,
                  const int32_t *page, int layer, int kv_head, int at)
{
    const attn_shape *sh = &kv->head.shape;
    const cpu_kv_layer *l = &kv->layer[layer];
    const bool kept = at == SPLIT_KEPT;
    const bool whole_blocks = kv->cell == PAGE;
    int first, last;
    pages_of(sh, rows, n, layer, at, &first, &last);
    /* Of the first page nothing was asked for in the midst of another. */
    if (first <= last && whole_blocks)
        cpu_fetch(kv_cell(kv, page, layer, kv_head, first * PAGE), l->cell_bytes);
    alignas(64) float q[ATTEND_ROWS][KEY_MAX];
    alignas(64) int16_t whole[ATTEND_ROWS][HEAD_DIM_MAX];
    float by[ATTEND_ROWS];
    begin_split(part, q, sh, l, rows, n, kept);
    for (int r = 0; r < n && sh->kv_type == DT_I8; r++) by[r] = whole_of(whole[r], q[r], l->k_pad);
    page_work p = {.part = part,
                   .q = q[0],
                   .whole = whole[0],
                   .by = by,
                   .d = l->head_dim,
                   .cap = sh->cap,
                   .d_pad = l->d_pad,
                   .v_row = l->d_pad};
    if (!whole_blocks) {
        small_pages(p, kv, rows, n, page, layer, kv_head, first, last, kept);
        return;
    }
    for (int b = first; b <= last; b++) {
        int soon = b < last ? b + 1 : b;
        place_block(&p, kv, page, layer, kv_head, b * PAGE);
        p.next = kv_cell(kv, page, layer, kv_head, soon * PAGE);
        rows_of_page(p, sh, layer, rows, n, b * PAGE, kept);
    }
}

/* The same where values stand in their keys. */
static void split_latents(attend_part *part, const cpu_kv *kv, const attend_row *rows, int n,
                          const int32_t *page, int layer, int kv_head, int at)
{
    const attn_shape *sh = &kv->head.shape;
    const cpu_kv_layer *l = &kv->layer[layer];
    alignas(64) float q[ATTEND_ROWS][KEY_MAX], plain[PAGE * KEY_MAX];
    const uint16_t *q16 = NULL;
    int first, last;
    pages_of(sh, rows, n, layer, at, &first, &last);
    begin_split(part, q, sh, l, rows, n, at == SPLIT_KEPT);
#if MULTIPLIES_HALVES
    alignas(64) uint16_t rounded[ATTEND_ROWS][KEY_MAX];
    for (int r = 0; r < n; r++) latent_round(rounded[r], q[r], l->k_pad);
    if (sh->kv_type == DT_BF16) q16 = rounded[0];
#endif
    for (int b = first; b <= last; b++) {
        page_work p = {.part = part,
                       .q = q[0],
                       .d_pad = l->d_pad,
                       .v_row = l->k_pad,
                       .q16 = q16,
                       .k = kv_cell(kv, page, layer, kv_head, b * PAGE)};
        if (b < last) cpu_fetch(kv_cell(kv, page, layer, kv_head, (b + 1) * PAGE), l->cell_bytes);
        if (sh->kv_type == DT_F32)
            p.latents = (const void *)p.k;
        else if (!q16)
            p.latents = plain_page(plain, l, p.k, sh->kv_type, attn_v_dim(sh));
        rows_of_page(p, sh, layer, rows, n, b * PAGE, at == SPLIT_KEPT);
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

const attend_kernels KERNELS = {split, split_latents, merge, finish, rope};
