/* test_latent.c -- attention over latents that pages hold themselves: the kernels against plain
 * double-precision loops over keys and values of all heads, and bit for bit against themselves in
 * other company.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/halves.h"
#include "engine/cpu/cpu.h"
#include "engine/weight_source.h"
#include "tests/engine/random_floats.h"
#include "tests/engine/stand_ins.h"
#include "tests/run_suite.h"

enum { SEQS = 3, MAX_POS = 900, LORA = 5 };

static backend *open_cpu(int isa, int threads)
{
    err e;
    backend *be;
    ck_assert_msg(stand_in_open(&be, isa, threads, &e) == ERR_NONE, "%s", e.msg);
    return be;
}

/* -------------------------------------------------------------------------- attention -- */

typedef struct history {
    int n_head, rank, rope;
    dtype type;
    int len[SEQS];
    float *q[SEQS], *k[SEQS]; /* [len][n_head][rank + rope], [len][rank + rope] */
} history;

/* As pages hold it: what int8 keeps of n values with one scale, the greatest of them exact. */
static void round_part(float *v, int n, dtype type)
{
    int top = 0;
    for (int i = 0; i < n && type == DT_BF16; i++) v[i] = bf16_to_f32(bf16_from_f32(v[i]));
    for (int i = 0; i < n && type == DT_F16; i++) v[i] = f16_to_f32(f16_from_f32(v[i]));
    if (type != DT_I8) return;
    for (int i = 0; i < n; i++) top = fabsf(v[i]) > fabsf(v[top]) ? i : top;
    float scale = bf16_to_f32(bf16_from_f32(fabsf(v[top]) / 127));
    v[top] = copysignf(127 * scale, v[top]);
    for (int i = 0; i < n; i++) v[i] = fminf(127, fmaxf(-127, rintf(v[i] / scale))) * scale;
}

static void make_history(history *h, const int lens[SEQS])
{
    int d = h->rank + h->rope;
    for (int s = 0; s < SEQS; s++) {
        size_t n = (size_t)lens[s];
        h->len[s] = lens[s];
        h->q[s] = random_floats(n * (size_t)(h->n_head * d), 1);
        round_part(h->q[s], (int)n * h->n_head * d, DT_BF16);
        h->k[s] = random_floats(n * (size_t)d, 1);
        for (size_t i = 0; i < n; i++) {
            for (int c = 0; c < h->rope; c++) h->k[s][i * d + h->rank + c] *= 9; /* larger */
            round_part(h->k[s] + i * d, h->rank, h->type);
            round_part(h->k[s] + i * d + h->rank, h->rope, h->type);
        }
    }
}

static void oracle(const history *h, int seq, int pos, int head, double *out)
{
    int d = h->rank + h->rope;
    const float *q = h->q[seq] + ((size_t)pos * h->n_head + head) * d;
    double score[MAX_POS], max = -INFINITY, sum = 0;
    for (int t = 0; t <= pos; t++) {
        score[t] = 0;
        for (int i = 0; i < d; i++) score[t] += (double)q[i] * (double)h->k[seq][t * d + i];
        score[t] *= 0.125;
        max = fmax(max, score[t]);
    }
    memset(out, 0, (size_t)h->rank * sizeof(*out));
    for (int t = 0; t <= pos; t++) {
        double w = exp(score[t] - max);
        sum += w;
        for (int i = 0; i < h->rank; i++) out[i] += w * (double)h->k[seq][t * d + i];
    }
    for (int i = 0; i < h->rank; i++) out[i] /= sum;
}

/* The sequences' next rows, at most `chunk` of each, through layer 1; false: there are none. */
static bool feed_some(backend *be, kv_pool *kv, const history *h, int chunk, int *done,
                      const int32_t *page, int per, float **out)
{
    int d = h->rank + h->rope, n_seq = 0, n_rows = 0;
    size_t wide = (size_t)(h->n_head * d), answer = (size_t)(h->n_head * h->rank);
    step_seq seq[SEQS];
    int32_t pos[SEQS * MAX_POS];
    int take[SEQS];
    for (int s = 0; s < SEQS; s++) {
        take[s] = h->len[s] - done[s] < chunk ? h->len[s] - done[s] : chunk;
        if (take[s] == 0) continue;
        seq[n_seq++] = (step_seq){n_rows, take[s], done[s], page + s * per, per, 0};
        for (int i = 0; i < take[s]; i++) pos[n_rows++] = done[s] + i;
    }
    if (n_seq == 0) return false;
    float *q = malloc((size_t)n_rows * wide * 4), *o = malloc((size_t)n_rows * answer * 4);
    float *k = malloc((size_t)(n_rows * d) * 4);
    for (int s = 0, at = 0; s < SEQS; at += take[s++]) {
        memcpy(q + at * wide, h->q[s] + done[s] * wide, take[s] * wide * 4);
        memcpy(k + (size_t)(at * d), h->k[s] + (size_t)(done[s] * d), (size_t)(take[s] * d) * 4);
    }
    const float none[MAX_POS] = {0};
    const rope_table rope = {.cos = none, .sin = none, .max_pos = MAX_POS, .first = h->rank};
    step st = {.n_rows = n_rows, .pos = pos, .n_seq = n_seq, .seq = seq};
    for (int layer = 0; layer < 2; layer++)
        be_rope_append(be, kv, q, k, NULL, NULL, NULL, 1e-6F, &rope, &st, layer);
    be_attend(be, kv, o, q, NULL, &st, 1);
    ck_assert_int_eq(be_sync(be, NULL), ERR_NONE);
    for (int s = 0, at = 0; s < SEQS; at += take[s++]) {
        memcpy(out[s] + done[s] * answer, o + at * answer, take[s] * answer * 4);
        done[s] += take[s];
    }
    free(q);
    free(k);
    free(o);
    return true;
}

static void feed(backend *be, const history *h, int chunk, float **out)
{
    attn_shape sh = {.n_layer = 2,
                     .n_head = h->n_head,
                     .n_kv_head = 1,
                     .head_dim = h->rank + h->rope,
                     .v_dim = h->rank,
                     .v_in_k = true,
                     .kv_type = h->type,
                     .scale = 0.125F};
    int per = MAX_POS / be_caps(be)->page_tokens + 1, n_pages = SEQS * per, done[SEQS] = {0};
    int32_t page[SEQS * (MAX_POS / CPU_KV_BLOCK + 1)];
    kv_pool *kv;
    ck_assert_int_eq(be_kv_create(be, &kv, &sh, n_pages, NULL), ERR_NONE);
    /* Bytes of which no type makes a number, as those may be that a page had before. */
    char *before = malloc(be_kv_page_bytes(be, &sh));
    memset(before, 0xFF, be_kv_page_bytes(be, &sh));
    for (int i = 0; i < n_pages; i++) be_kv_load(be, kv, i, before);
    free(before);
    for (int i = 0; i < n_pages; i++) page[i] = (int32_t)((i * 7 + chunk) % n_pages);
    while (feed_some(be, kv, h, chunk, done, page, per, out)) {
    }
    be_kv_destroy(be, kv);
}

START_TEST(latents_in_pages_meet_the_oracle_and_themselves)
{
    if (!stand_in_runs(_i)) return;
    static const int shape[][3] = {{4, 24, 8}, {16, 512, 64}, {5, 40, 12}, {3, 96, 32}, {8, 72, 4}};
    static const dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_I8, DT_I8};
    static const int lens[SEQS] = {610, 1, 77}, chunk[] = {MAX_POS, 1, 13};
    rng = 21;
    for (int i = 0; i < 5; i++) {
        history h = {shape[i][0], shape[i][1], shape[i][2], types[i], {0}, {NULL}, {NULL}};
        float *out[3][SEQS];
        double want[LATENT_RANK_MAX];
        /* Where bf16 is multiplied as it is, weights are rounded to it. */
        bool rounds = h.type == DT_BF16 && (_i == ISA_AVX512BF16 || _i == ISA_AMX);
        make_history(&h, lens);
        for (int n = 0; n < 3; n++) {
            backend *be = open_cpu(_i, n == 0 ? 1 : 4);
            if (n == 2) be->caps.page_tokens = 2 * CPU_KV_BLOCK;
            for (int s = 0; s < SEQS; s++)
                out[n][s] = malloc((size_t)(lens[s] * h.n_head * h.rank) * 4);
            feed(be, &h, chunk[n], out[n]);
            be_close(be);
        }
        for (int s = 0; s < SEQS; s++) {
            size_t bytes = (size_t)(lens[s] * h.n_head * h.rank) * 4;
            ck_assert_mem_eq(out[0][s], out[1][s], bytes);
            ck_assert_mem_eq(out[0][s], out[2][s], bytes);
            for (int pos = 0; pos < lens[s]; pos += 1 + lens[s] / 9) {
                int head = pos % h.n_head;
                oracle(&h, s, pos, head, want);
                const float *got = out[0][s] + ((size_t)pos * h.n_head + head) * h.rank;
                for (int c = 0; c < h.rank; c++)
                    ck_assert_double_eq_tol((double)got[c], want[c], rounds ? 4e-3 : 3e-5);
            }
            free(h.q[s]);
            free(h.k[s]);
            for (int n = 0; n < 3; n++) free(out[n][s]);
        }
    }
}
END_TEST

/* DeepSeek's latents: 512 values, and a key of 64 for all heads. */
START_TEST(a_position_takes_as_many_bytes_as_its_latent)
{
    static const struct {
        dtype type;
        size_t bytes;
    } cases[] = {{DT_F32, 2304}, {DT_BF16, 1152}, {DT_F16, 1152}, {DT_I8, 580}};
    backend *be = open_cpu(0, 1);
    for (int i = 0; i < 4; i++) {
        attn_shape sh = {.n_layer = 27,
                         .n_head = 16,
                         .n_kv_head = 1,
                         .head_dim = 576,
                         .v_dim = 512,
                         .v_in_k = true,
                         .kv_type = cases[i].type,
                         .scale = 1};
        ck_assert_uint_eq(be_kv_page_bytes(be, &sh), 27 * CPU_KV_BLOCK * cases[i].bytes);
    }
    be_close(be);
}
END_TEST

START_TEST(latents_that_kernels_have_no_room_for_are_refused)
{
    backend *be = open_cpu(0, 1);
    static const int dims[][2] = {{LATENT_RANK_MAX + 1, 64}, {512, LATENT_ROPE_MAX + 2}};
    for (int i = 0; i < 2; i++) {
        attn_shape sh = {.n_layer = 1,
                         .n_head = 2,
                         .n_kv_head = 1,
                         .head_dim = dims[i][0] + dims[i][1],
                         .v_dim = dims[i][0],
                         .v_in_k = true,
                         .scale = 1};
        kv_pool *kv;
        err e;
        ck_assert_int_eq(be_kv_create(be, &kv, &sh, 1, &e), ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(e.msg, "kv_lora_rank"));
    }
    be_close(be);
}
END_TEST

/* --------------------------------------------------------------- queries and answers -- */

/* W [heads * (nope + v)][rank] with LoRA: of which heads' columns end in the midst of panels. */
static const latent_shape odd = {.rank = 40, .rope = 6, .nope = 20, .v = 25, .n_head = 5};
enum { COLS = 5 * (20 + 25), ROWS = 7 };

typedef struct world {
    backend *be;
    dtype type;
    float *w, *a, *b, *gain, *bias, *x, *latents; /* as they are packed */
    weight *by_head[2 * 5];
    void *packed_a, *packed_b;
    const void *more_a[3], *more_b[3];
    lora_split split;
    lora_mat mat[2][2 * PROJ_COUNT]; /* two layers: of the first adapter, of the second */
    lora_view view[2];
} world;

/* Values rounded as their type has them, and packed as it. */
static void *pack(float *v, size_t n, dtype type)
{
    uint16_t *h = malloc((n + 1) * sizeof(float));
    if (type == DT_F32) return memcpy(h, v, n * sizeof(float));
    for (size_t i = 0; i < n; i++) v[i] = bf16_to_f32(h[i] = bf16_from_f32(v[i]));
    return h;
}

static void make_heads(world *w)
{
    const latent_shape *sh = &odd;
    for (int h = 0; h < sh->n_head; h++) {
        float *from = w->w + (size_t)(h * (sh->nope + sh->v) * sh->rank);
        float *turned = malloc((size_t)(sh->nope * sh->rank) * sizeof(float));
        for (int i = 0; i < sh->nope * sh->rank; i++)
            turned[i % sh->rank * sh->nope + i / sh->rank] = from[i];
        void *key = pack(turned, (size_t)(sh->nope * sh->rank), w->type);
        void *value = pack(from + sh->nope * sh->rank, (size_t)(sh->v * sh->rank), w->type);
        weight_source k = weight_source_plain(key, w->type, sh->rank, sh->nope);
        weight_source v = weight_source_plain(value, w->type, sh->v, sh->rank);
        ck_assert_int_eq(be_weight_create(w->be, &w->by_head[h], &k, NULL), ERR_NONE);
        ck_assert_int_eq(be_weight_create(w->be, &w->by_head[sh->n_head + h], &v, NULL), ERR_NONE);
        for (int i = 0; i < sh->nope * sh->rank; i++)
            from[i] = turned[i % sh->rank * sh->nope + i / sh->rank];
        free(turned);
        free(key);
        free(value);
    }
}

/* Of the second adapter A and B lie in several pieces, and it has a gain and a bias. */
static void make_lora(world *w)
{
    size_t row = be_lora_a_bytes(w->be, w->type, 1, odd.rank);
    size_t block = be_lora_b_bytes(w->be, w->type, LORA, CPU_LORA_COLS);
    w->packed_a = be_alloc(w->be, LORA * row);
    w->packed_b = be_alloc(w->be, be_lora_b_bytes(w->be, w->type, LORA, COLS));
    ck_assert_int_eq(be_lora_pack(w->be, w->type, w->packed_a, w->packed_b, w->a, w->b, DT_F32,
                                  LORA, odd.rank, COLS, NULL),
                     ERR_NONE);
    for (size_t i = 0; i < 3; i++) { /* of A there are rows for two */
        void *a = malloc(2 * row), *b = malloc(2 * block);
        if (i < 2) memcpy(a, (char *)w->packed_a + (2 + 2 * i) * row, (i ? 1 : 2) * row);
        memcpy(b, (char *)w->packed_b + (2 + 2 * i) * block, 2 * block);
        w->more_a[i] = a;
        w->more_b[i] = b;
    }
    w->split = (lora_split){2, 2, 2 * CPU_LORA_COLS, 2 * CPU_LORA_COLS, w->more_a, w->more_b};
    lora_mat plain = {.a = w->packed_a, .b = w->packed_b, .rank = LORA, .scale = 0.7F};
    w->mat[0][PROJ_COUNT + PROJ_V] = w->mat[1][PROJ_COUNT + PROJ_V] = plain;
    lora_mat *second = &w->mat[1][PROJ_COUNT + PROJ_V];
    second->split = &w->split;
    second->gain = w->gain;
    second->bias = w->bias;
    for (int i = 0; i < 2; i++)
        w->view[i] = (lora_view){.n_layer = 2, .rank_max = LORA, .mat = w->mat[i]};
}

static void make_world(world *w, int isa, dtype type)
{
    *w = (world){.be = open_cpu(isa, 2), .type = type};
    size_t cols = COLS, rank = (size_t)odd.rank, heads = (size_t)odd.n_head;
    w->w = random_floats(cols * rank, 1);
    w->a = random_floats(LORA * rank, 1);
    w->b = random_floats(cols * LORA, 1);
    w->gain = random_floats(cols, 2);
    w->bias = random_floats(cols, 1);
    w->x = random_floats(ROWS * heads * (size_t)(odd.nope + odd.rope), 1);
    w->latents = random_floats(ROWS * heads * rank, 1);
    free(pack(w->a, LORA * rank, type));
    free(pack(w->b, cols * LORA, type));
    /* Of values that bf16 has, so that no product rounds them. */
    free(pack(w->x, ROWS * heads * (size_t)(odd.nope + odd.rope), DT_BF16));
    free(pack(w->latents, ROWS * heads * rank, DT_BF16));
    make_heads(w);
    make_lora(w);
}

static void drop_world(world *w)
{
    float *all[] = {w->w, w->a, w->b, w->gain, w->bias, w->x, w->latents};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) free(all[i]);
    for (int i = 0; i < 2 * odd.n_head; i++) be_weight_destroy(w->be, w->by_head[i]);
    for (int i = 0; i < 3; i++) {
        free((void *)(uintptr_t)w->more_a[i]);
        free((void *)(uintptr_t)w->more_b[i]);
    }
    be_free(w->be, w->packed_a);
    be_free(w->be, w->packed_b);
    be_close(w->be);
}

/* Row c of W with an adapter (0: none), times column k of it. */
static double entry(const world *w, int adapter, int c, int k)
{
    double v = (double)w->w[c * odd.rank + k], low = 0;
    for (int r = 0; r < LORA; r++)
        low += (double)w->b[c * LORA + r] * (double)w->a[r * odd.rank + k];
    if (adapter > 0) v += (double)0.7F * low;
    return adapter == 2 ? v * (double)w->gain[c] : v;
}

/* Rows [0, n) of x and latents, of segments, to query and answer. */
static void run_rows(const world *w, int n, const step_seg *seg, int n_seg, int from, float *query,
                     float *answer)
{
    const latent_heads heads = {w->by_head, w->by_head + odd.n_head, w->type};
    const step s = {.n_rows = n, .n_seg = n_seg, .seg = seg};
    size_t at = (size_t)from * (size_t)odd.n_head;
    be_latent_query(w->be, query, w->x + at * (size_t)(odd.nope + odd.rope), &heads, &odd, &s, 1);
    be_latent_answer(w->be, answer, w->latents + at * (size_t)odd.rank, &heads, &odd, &s, 1);
    ck_assert_int_eq(be_sync(w->be, NULL), ERR_NONE);
}

/* Row `row` of an adapter against sums over keys and values of its heads. */
static void check_row(const world *w, int row, int adapter, const float *query, const float *answer)
{
    const latent_shape *sh = &odd;
    const double near = w->type == DT_F32 ? 2e-5 : 2e-2; /* bf16 rounds A x */
    for (int h = 0; h < sh->n_head; h++) {
        size_t at = (size_t)(row * sh->n_head + h);
        const float *q = w->x + at * (size_t)(sh->nope + sh->rope);
        const float *wide = query + at * (size_t)(sh->rank + sh->rope);
        const float *o = w->latents + at * (size_t)sh->rank;
        int first = h * (sh->nope + sh->v);
        ck_assert_mem_eq(wide + sh->rank, q + sh->nope, (size_t)sh->rope * sizeof(*q));
        for (int k = 0; k < sh->rank; k++) {
            double want = 0;
            for (int c = 0; c < sh->nope; c++)
                want += entry(w, adapter, first + c, k) * (double)q[c];
            ck_assert_double_eq_tol((double)wide[k], want, near * (1 + fabs(want)));
        }
        for (int c = 0; c < sh->v; c++) {
            int col = first + sh->nope + c;
            double want = adapter == 2 ? (double)w->bias[col] : 0;
            for (int k = 0; k < sh->rank; k++) want += entry(w, adapter, col, k) * (double)o[k];
            ck_assert_double_eq_tol((double)answer[at * (size_t)sh->v + (size_t)c], want,
                                    near * (1 + fabs(want)));
        }
    }
}

/* With LoRA, in pieces, with DoRA's gains and a bias; a row alone has the bits that it has beside
 * rows of others. */
START_TEST(heads_of_adapters_meet_the_oracle_and_themselves)
{
    if (!stand_in_runs(_i)) return;
    static const int adapter[ROWS] = {0, 1, 1, 2, 0, 2, 2};
    for (int type = DT_F32; type <= DT_BF16; type += 2) {
        rng = 5;
        world w;
        make_world(&w, _i, (dtype)type);
        const step_seg all[] = {
            {0, 1, NULL}, {1, 2, &w.view[0]}, {3, 1, &w.view[1]}, {4, 1, NULL}, {5, 2, &w.view[1]}};
        size_t wide = (size_t)(odd.n_head * (odd.rank + odd.rope));
        size_t narrow = (size_t)(odd.n_head * odd.v);
        float query[ROWS * 5 * 46], answer[ROWS * 5 * 25], q[5 * 46], a[5 * 25];
        run_rows(&w, ROWS, all, 5, 0, query, answer);
        for (int row = 0; row < ROWS; row++) {
            const step_seg own = {0, 1, adapter[row] ? &w.view[adapter[row] - 1] : NULL};
            check_row(&w, row, adapter[row], query, answer);
            run_rows(&w, 1, &own, 1, row, q, a);
            ck_assert_mem_eq(q, query + (size_t)row * wide, wide * sizeof(*q));
            ck_assert_mem_eq(a, answer + (size_t)row * narrow, narrow * sizeof(*a));
        }
        drop_world(&w);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("latent");
    TCase *tc = tcase_create("latent");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, latents_in_pages_meet_the_oracle_and_themselves, 0, ISA_COUNT);
    tcase_add_test(tc, a_position_takes_as_many_bytes_as_its_latent);
    tcase_add_test(tc, latents_that_kernels_have_no_room_for_are_refused);
    tcase_add_loop_test(tc, heads_of_adapters_meet_the_oracle_and_themselves, 0, ISA_COUNT);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
