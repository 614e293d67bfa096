/* attend_latent.h -- a page of keys in which their values stand (attn_shape.v_in_k); part of
 * attend_kernels.h.
 *
 * A key's sum with a query runs along the key, in as many sums as a vector has lanes; these are
 * added at last, in an order that is the same for every row.  Values are multiplied as those of
 * other pages are.
 *
 * With AVX512_BF16 keys in bf16 are multiplied as they are.  Queries and weights are rounded to
 * bf16, as rows of x are before bf16 weights; pairs of values, and of positions, are summed at
 * once.
 */
#ifdef __AVX512BF16__
#    define MULTIPLIES_HALVES 1
#else
#    define MULTIPLIES_HALVES 0
#endif

/* Sums of products of a few rows with a few keys, each in a vector of its own. */
enum { NEAR_ROWS = VEC_MANY ? 4 : 2, NEAR_KEYS = 4 };

#if VEC == 16
/* All of the 16 at once: neighbours, then pairs, then quarters of the vectors. */
static inline __attribute__((always_inline)) void near_sums(float (*s)[PAGE], int slot,
                                                            vf (*sum)[NEAR_KEYS], const int rows)
{
    __m512 row[NEAR_ROWS];
#    pragma GCC unroll 4
    for (int r = 0; r < NEAR_ROWS; r++) {
        const vf *of = sum[r < rows ? r : 0];
        __m512 k[NEAR_KEYS] = {(__m512)of[0], (__m512)of[1], (__m512)of[2], (__m512)of[3]};
        __m512 a = _mm512_unpacklo_ps(k[0], k[1]) + _mm512_unpackhi_ps(k[0], k[1]);
        __m512 b = _mm512_unpacklo_ps(k[2], k[3]) + _mm512_unpackhi_ps(k[2], k[3]);
        __m512d c = (__m512d)a, d = (__m512d)b;
        row[r] = (__m512)_mm512_unpacklo_pd(c, d) + (__m512)_mm512_unpackhi_pd(c, d);
    }
    __m512 a =
        _mm512_shuffle_f32x4(row[0], row[1], 0x88) + _mm512_shuffle_f32x4(row[0], row[1], 0xDD);
    __m512 b =
        _mm512_shuffle_f32x4(row[2], row[3], 0x88) + _mm512_shuffle_f32x4(row[2], row[3], 0xDD);
    __m512 all = _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xDD);
    float to[NEAR_ROWS][NEAR_KEYS];
    memcpy(to, &all, sizeof(all));
    for (int r = 0; r < rows; r++) memcpy(s[r] + slot, to[r], sizeof(to[r]));
}
#else
static inline __attribute__((always_inline)) void near_sums(float (*s)[PAGE], int slot,
                                                            vf (*sum)[NEAR_KEYS], const int rows)
{
#    pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#    pragma GCC unroll 4
        for (int i = 0; i < NEAR_KEYS; i++) s[r][slot + i] = vf_sum(sum[r][i]);
    }
}
#endif

static inline __attribute__((always_inline)) void near_keys(float (*s)[PAGE], const page_work *p,
                                                            int r0, int slot, const int rows)
{
    const float *q = p->q + (size_t)(p->r0 + r0) * KEY_MAX;
    const float *k = p->latents + (size_t)slot * (size_t)p->v_row;
    vf sum[NEAR_ROWS][NEAR_KEYS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < NEAR_KEYS; i++) sum[r][i] = vf_set(0);
    }
#pragma GCC unroll 1
    for (int c = 0; c < p->v_row; c += VEC) {
        vf key[NEAR_KEYS];
#pragma GCC unroll 4
        for (int i = 0; i < NEAR_KEYS; i++) key[i] = vf_load(k + (size_t)i * p->v_row + c);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vf x = vf_load(q + (size_t)r * KEY_MAX + c);
#pragma GCC unroll 4
            for (int i = 0; i < NEAR_KEYS; i++) sum[r][i] += x * key[i];
        }
    }
    near_sums(s + r0, slot, sum, rows);
}

/* A page as floats: `to`. */
static __attribute__((noinline)) const float *plain_page(float *to, const cpu_kv_layer *l,
                                                         const char *k, dtype type, int v_dim)
{
    const int n = PAGE * l->k_pad;
    const uint16_t *half = (const void *)k, *scale = kv_scales(k, l->k_bytes);
    const int8_t *code = (const void *)k;
    for (int i = 0; i < n && type == DT_BF16; i += VEC) vf_store(to + i, vf_from_bf16(half + i));
    for (int i = 0; i < n && type == DT_F16; i += VEC) vf_store(to + i, vf_from_f16(half + i));
    for (int i = 0; i < n && type == DT_I8; i += l->k_pad, scale += 2) {
        const vf by = vf_set(bf16_to_f32(scale[0]));
        for (int c = 0; c < l->k_pad; c += VEC) vf_store(to + i + c, vf_from_i8(code + i + c) * by);
        for (int c = v_dim; c < l->k_pad; c++)
            to[i + c] = bf16_to_f32(scale[1]) * (float)code[i + c];
    }
    return to;
}

static __attribute__((noinline)) void latent_values(float (*s)[PAGE], const page_work *p)
{
    int c = 0;
    for (; c + TILE_COLS <= p->d_pad; c += TILE_COLS)
        gather(s, p, c, (tile_fetch){0}, TILE_F32, TILE_COLS);
    if (c < p->d_pad) gather_end_f32(s, p, c);
}

#if MULTIPLIES_HALVES
/* x in bf16, with zeros up to a whole vector. */
static void latent_round(uint16_t *to, const float *x, int n)
{
    for (int i = 0; i < n; i += 2 * VEC) {
        __m512 second = i + VEC < n ? _mm512_loadu_ps(x + i + VEC) : _mm512_setzero_ps();
        _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(second, _mm512_loadu_ps(x + i)));
    }
}

/* 32 values from c on, of `n` in all, a multiple of 16: zeros beyond. */
static inline __attribute__((always_inline)) __m512i halves_at(const uint16_t *x, int c, int n)
{
    return _mm512_maskz_loadu_epi16(n - c < 2 * VEC ? 0xFFFF : 0xFFFFFFFF, x + c);
}

static inline __attribute__((always_inline)) void near_halves(float (*s)[PAGE], const page_work *p,
                                                              int r0, int slot, const int rows)
{
    const uint16_t *q = p->q16 + (size_t)(p->r0 + r0) * KEY_MAX;
    const uint16_t *k = (const uint16_t *)(const void *)p->k + (size_t)slot * (size_t)p->v_row;
    vf sum[NEAR_ROWS][NEAR_KEYS];
#    pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#    pragma GCC unroll 4
        for (int i = 0; i < NEAR_KEYS; i++) sum[r][i] = vf_set(0);
    }
#    pragma GCC unroll 1
    for (int c = 0; c < p->v_row; c += 2 * VEC) {
        __m512i key[NEAR_KEYS];
#    pragma GCC unroll 4
        for (int i = 0; i < NEAR_KEYS; i++)
            key[i] = halves_at(k + (size_t)i * p->v_row, c, p->v_row);
#    pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m512i x = _mm512_loadu_si512(q + (size_t)r * KEY_MAX + c);
#    pragma GCC unroll 4
            for (int i = 0; i < NEAR_KEYS; i++)
                sum[r][i] = (vf)_mm512_dpbf16_ps((__m512)sum[r][i], (__m512bh)x, (__m512bh)key[i]);
        }
    }
    near_sums(s + r0, slot, sum, rows);
}

/* o += weights V of `rows` rows from r0 on, for columns [c, c + 32) or as many as there are.  What
 * lies beside [lo, hi) is multiplied by nothing. */
static inline __attribute__((always_inline)) void
halves_pass(uint16_t (*e)[PAGE], const page_work *p, int r0, int c, const int rows)
{
    const uint16_t *v = (const uint16_t *)(const void *)p->k;
    const bool whole = p->d_pad - c >= 2 * VEC;
    vf2 sum[ATTEND_ROWS];
#    pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        const float *o = p->part->o + (size_t)(p->r0 + r0 + r) * (size_t)p->d_pad + c;
        sum[r] = vf2_mixed((vf2){vf_load(o), whole ? vf_load(o + VEC) : vf_set(0)});
    }
#    pragma GCC unroll 1
    for (int slot = p->lo & ~1; slot < p->hi; slot += 2) {
        const uint16_t *at = v + (size_t)slot * (size_t)p->v_row;
        __m512i a = _mm512_setzero_si512(), b = a;
        if (slot >= p->lo) a = halves_at(at, c, p->d_pad);
        if (slot + 1 < p->hi) b = halves_at(at + p->v_row, c, p->d_pad);
        __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
#    pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            int two;
            memcpy(&two, &e[r0 + r][slot], sizeof(two));
            __m512bh x = (__m512bh)_mm512_set1_epi32(two);
            sum[r].a = (vf)_mm512_dpbf16_ps((__m512)sum[r].a, x, (__m512bh)low);
            sum[r].b = (vf)_mm512_dpbf16_ps((__m512)sum[r].b, x, (__m512bh)high);
        }
    }
#    pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        float *o = p->part->o + (size_t)(p->r0 + r0 + r) * (size_t)p->d_pad + c;
        vf2 out = vf2_sorted(sum[r]);
        vf_store(o, out.a);
        if (whole) vf_store(o + VEC, out.b);
    }
}

static __attribute__((noinline)) void halves_values(float (*s)[PAGE], const page_work *p)
{
    alignas(64) uint16_t e[ATTEND_ROWS][PAGE];
    for (int r = 0; r < p->n; r++) latent_round(e[r], s[r], PAGE);
    for (int c = 0; c < p->d_pad; c += 2 * VEC) {
        if (p->n == ATTEND_ROWS) {
            halves_pass(e, p, 0, c, ATTEND_ROWS);
            continue;
        }
        int r = 0;
        for (; r + NEAR_ROWS <= p->n; r += NEAR_ROWS) halves_pass(e, p, r, c, NEAR_ROWS);
        for (; r < p->n; r++) halves_pass(e, p, r, c, 1);
    }
}
#endif

static inline __attribute__((always_inline)) void near_some(float (*s)[PAGE], const page_work *p,
                                                            int r0, int slot, const int rows)
{
#if MULTIPLIES_HALVES
    if (p->q16) {
        near_halves(s, p, r0, slot, rows);
        return;
    }
#endif
    near_keys(s, p, r0, slot, rows);
}

/* Slots that no row sees get scores, too: weigh() knows which. */
static __attribute__((noinline)) void latent_scores(float (*s)[PAGE], const page_work *p)
{
    for (int slot = p->lo / NEAR_KEYS * NEAR_KEYS; slot < p->hi; slot += NEAR_KEYS) {
        int r = 0;
        for (; r + NEAR_ROWS <= p->n; r += NEAR_ROWS) near_some(s, p, r, slot, NEAR_ROWS);
        for (; r < p->n; r++) near_some(s, p, r, slot, 1);
    }
}

static void page_latents(page_work *p)
{
    alignas(64) float s[ATTEND_ROWS][PAGE];
    p->v = (const char *)p->latents;
    latent_scores(s, p);
    for (int r = 0; r < p->n; r++) weigh(p, r, s[r]);
#if MULTIPLIES_HALVES
    if (p->q16) {
        halves_values(s, p);
        return;
    }
#endif
    latent_values(s, p);
}
