/* test_experts.cu -- the kernels of engine/cuda/experts.h and products/grouped.h against f64:
 * routes of every kind, all tiles, types and widths; each row against itself in other company, bit
 * for bit; and the chunks of adapted slots. */
#include "engine/cuda/experts.h"
#include "tests/emu/device_data.h"
#include "tests/run_suite.h"

enum { ROWS = 150 };

typedef struct {
    dtype type;
    int n, top_k, dim, ffn;
    bool softmax_last, sigmoid, normed, scale_in, biased;
    activation act;
    int n_group, top_group, group_best;
    float jitter = 0;
} shape;

/* k of one chunk and of several, widths that fill no tile, one that is no multiple of 8. */
static const shape shapes[] = {
    {DT_BF16, 5, 2, 64, 40, false, false, true, false, false, ACT_SILU, 0, 0, 0},
    {DT_F16, 40, 6, 72, 144, true, false, false, false, true, ACT_SWIGLU_CLAMPED, 0, 0, 0},
    {DT_F16, 3, 1, 1096, 24, false, true, false, true, false, ACT_SILU, 0, 0, 0},
    {DT_BF16, 3, 2, 40, 2056, false, false, false, false, false, ACT_GELU_TANH, 0, 0, 0},
    {DT_F16, 9, 4, 48, 33, false, false, true, false, true, ACT_SILU, 0, 0, 0},
    {DT_F32, 7, 3, 20, 12, true, false, false, false, false, ACT_SILU, 0, 0, 0},
    {DT_BF16, 20, 3, 64, 40, false, true, true, false, false, ACT_SILU, 5, 2, 2},
    {DT_F16, 12, 3, 40, 24, false, false, false, false, false, ACT_SILU, 4, 2, 1},
    {DT_BF16, 40, 2, 40, 24, false, false, false, false, false, ACT_RELU2, 0, 0, 0, 0.1F},
    {DT_F32, 6, 2, 20, 12, false, false, false, false, false, ACT_GELU, 0, 0, 0, 0.01F},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

typedef struct {
    const shape *sh;
    float *w[3];                                   /* host, [n][d_out][d_in], rounded to the type */
    const void **there[3];                         /* device */
    float *x, *scores, *bias[3], *shared, *stands; /* device */
    int32_t *live;
} bed;

static float rounded(dtype type, float f)
{
    if (type == DT_F32) return f;
    return type == DT_BF16 ? bf16_to_f32(bf16_from_f32(f)) : f16_to_f32(f16_from_f32(f));
}

static void make_matrices(bed *b, int p)
{
    const shape *sh = b->sh;
    size_t each = (size_t)sh->dim * sh->ffn, size = sh->type == DT_F32 ? 4 : 2;
    const void *at[64];
    float spread = p == 2 ? 0.3F : 2 / sqrtf((float)sh->dim);
    b->w[p] = (float *)malloc(each * sh->n * sizeof(float));
    for (int e = 0; e < sh->n; e++) {
        char *m = (char *)emu_alloc(each * size);
        for (size_t i = 0; i < each; i++) {
            float v = b->w[p][e * each + i] = rounded(sh->type, draw_float(spread));
            if (sh->type == DT_F32) ((float *)m)[i] = v;
            if (sh->type == DT_BF16) ((uint16_t *)m)[i] = bf16_from_f32(v);
            if (sh->type == DT_F16) ((uint16_t *)m)[i] = f16_from_f32(v);
        }
        emu_wrote(m, each * size);
        at[e] = m;
    }
    b->there[p] = (const void **)to_device(at, (size_t)sh->n * sizeof(*at));
}

static void bed_open(bed *b, const shape *sh)
{
    memset(b, 0, sizeof(*b));
    b->sh = sh;
    for (int p = 0; p < 3; p++) {
        make_matrices(b, p);
        if (sh->biased) b->bias[p] = device_random((size_t)sh->n * (p < 2 ? sh->ffn : sh->dim), 1);
    }
    b->x = device_random((size_t)ROWS * sh->dim, 1);
    b->scores = device_random((size_t)ROWS * sh->n, 3);
    b->shared = device_random(ROWS, 2);
    b->stands = device_random((size_t)ROWS * sh->dim, 1);
    for (int i = 0; i < ROWS; i += 10) /* equal ones: the lower number comes first */
        for (int e = 0; e < sh->n; e++) b->scores[i * sh->n + e] = (float)(e / 3);
    for (int i = 0; i < sh->n; i++) b->scores[7 * sh->n + i] = NAN;
    int32_t live[ROWS];
    for (int i = 0; i < ROWS; i++) live[i] = i % 31 == 5 ? -1 : i;
    b->live = (int32_t *)to_device(live, sizeof(live));
}

static void bed_close(bed *b)
{
    for (int p = 0; p < 3; p++) {
        for (int e = 0; e < b->sh->n; e++) emu_free((void *)b->there[p][e]);
        emu_free(b->there[p]);
        free(b->w[p]);
        if (b->bias[p]) emu_free(b->bias[p]);
    }
    void *mine[] = {b->x, b->scores, b->shared, b->stands, b->live};
    for (void *m : mine) emu_free(m);
}

static int to8(int n)
{
    return (n + 7) / 8 * 8;
}

/* Memory for rows [from, from + n). */
static cu_experts work_for(const bed *b, int from, int n, int tile)
{
    const shape *sh = b->sh;
    size_t slots = (size_t)n * sh->top_k, size = sh->type == DT_F32 ? 4 : 2;
    cu_experts x = {};
    x.type = sh->type;
    x.n = sh->n;
    x.top_k = sh->top_k;
    x.dim = sh->dim;
    x.ffn = sh->ffn;
    x.n_rows = n;
    x.route.softmax_last = sh->softmax_last;
    x.route.sigmoid = sh->sigmoid;
    x.route.normed = sh->normed;
    x.route.scale_in = sh->scale_in;
    x.route.scale = 1.5F;
    x.route.n_group = sh->n_group;
    x.route.top_group = sh->top_group;
    x.route.group_best = sh->group_best;
    x.route.jitter = sh->jitter;
    x.scores = b->scores + (size_t)from * sh->n;
    x.score_stride = sh->n;
    x.shared_stride = 1;
    x.live = b->live + from;
    x.x = b->x + (size_t)from * sh->dim;
    x.expert = (int32_t *)emu_alloc(slots * 4);
    x.rank = (int32_t *)emu_alloc(slots * 4);
    x.slot = (int32_t *)emu_alloc(slots * 4);
    x.weight = device_empty(slots);
    x.before = (int32_t *)emu_alloc((size_t)(n / CU_EXPERTS_ROUTE_ROWS + 1) * sh->n * 4);
    x.first = (int32_t *)emu_alloc((size_t)(sh->n + 1) * 4);
    x.row_of = (int32_t *)emu_alloc(slots * 4);
    x.expert_of = (int32_t *)emu_alloc(slots * 4);
    x.rows = emu_alloc(slots * to8(sh->dim) * size);
    x.hidden = device_empty(slots * 2 * sh->ffn);
    x.acted = emu_alloc(slots * to8(sh->ffn) * size);
    x.out = device_empty(slots * sh->dim);
    x.tile = tile;
    x.item = (grouped_item *)emu_alloc((size_t)grouped_items((int)slots, sh->n, tile) *
                                       sizeof(grouped_item));
    x.n_item = (int32_t *)emu_alloc(4);
    return x;
}

static void drop_work(cu_experts *x)
{
    void *mine[] = {x->expert,    x->rank, x->slot,   x->weight, x->before, x->first, x->row_of,
                    x->expert_of, x->rows, x->hidden, x->acted,  x->out,    x->item,  x->n_item};
    for (void *m : mine) emu_free(m);
}

/* What stands in `out` before: 0 nothing that counts, 1 itself, 2 times the sigmoid of `shared`. */
static float *run(const bed *b, int from, int n, int tile, int upon)
{
    const shape *sh = b->sh;
    size_t values = (size_t)n * sh->dim;
    cu_experts x = work_for(b, from, n, tile);
    float *out = device_empty(values);
    memcpy(out, b->stands + (size_t)from * sh->dim, values * sizeof(float));
    emu_wrote(out, values * sizeof(float));
    grouped_args up = {};
    up.type = sh->type;
    up.w[0] = b->there[0];
    up.w[1] = b->there[1];
    up.x = x.rows;
    up.y = x.hidden;
    up.n_mat = 2;
    up.n = sh->ffn;
    up.k = sh->dim;
    up.x_stride = to8(sh->dim);
    up.y_stride = 2 * sh->ffn;
    up.rows = n * sh->top_k;
    up.n_group = sh->n;
    up.tile = tile;
    up.item = x.item;
    up.n_item = x.n_item;
    up.group_of = x.expert_of;
    up.n_rows = x.first + sh->n;
    grouped_args down = up;
    down.w[0] = b->there[2];
    down.x = x.acted;
    down.y = x.out;
    down.n_mat = 1;
    down.n = sh->dim;
    down.k = sh->ffn;
    down.x_stride = to8(sh->ffn);
    down.y_stride = sh->dim;
    ck_assert_int_eq(cu_experts_sort(NULL, &x), cudaSuccess);
    ck_assert_int_eq(cu_grouped(NULL, &up), cudaSuccess);
    ck_assert_int_eq(cu_experts_act(NULL, &x, sh->act, b->bias[0], b->bias[1]), cudaSuccess);
    ck_assert_int_eq(cu_grouped(NULL, &down), cudaSuccess);
    ck_assert_int_eq(cu_experts_combine(NULL, &x, out, b->bias[2],
                                        upon == 2 ? b->shared + from : NULL, upon == 1),
                     cudaSuccess);
    float *host = (float *)malloc(values * sizeof(float));
    memcpy(host, out, values * sizeof(float));
    emu_free(out);
    drop_work(&x);
    return host;
}

/* ---- the oracle -------------------------------------------------------------------------- */

/* Nobody takes an expert outside of the highest groups. */
static void oracle_close(const shape *sh, const double *p, bool *taken)
{
    int each = sh->n / sh->n_group, opened = 0;
    double high[64];
    bool open[64] = {false};
    for (int g = 0; g < sh->n_group; g++) {
        double first = -1, second = -1;
        for (int e = g * each; e < (g + 1) * each; e++) {
            if (p[e] > first)
                second = first, first = p[e];
            else if (p[e] > second)
                second = p[e];
        }
        high[g] = sh->group_best == 2 ? first + second : first;
    }
    for (; opened < sh->top_group; opened++) {
        int best = -1;
        for (int g = 0; g < sh->n_group; g++)
            if (!open[g] && (best < 0 || high[g] > high[best])) best = g;
        open[best] = true;
    }
    for (int e = 0; e < sh->n; e++) taken[e] = !open[e / each];
}

/* Of two experts, each beside those with near scores. */
static void oracle_near(const shape *sh, const float *scores, int *expert, double *share)
{
    for (int i = 0, without = -1; i < 2; without = expert[i++]) {
        int best = -1;
        double sum = 0;
        for (int e = 0; e < sh->n; e++)
            if (e != without && (best < 0 || scores[e] > scores[best])) best = e;
        for (int e = 0; e < sh->n; e++) {
            double below = (double)scores[best] - scores[e];
            double size = fmax(fabs((double)scores[e]), scores[best]);
            if (e != without && !(below / size > 2 * (double)sh->jitter)) sum += exp(-below);
        }
        expert[i] = best;
        share[i] = 1 / sum;
    }
}

static void oracle_route(const shape *sh, const float *scores, int *expert, double *share)
{
    if (sh->jitter > 0) return oracle_near(sh, scores, expert, share);
    double p[64], sum = 0, most = scores[0];
    bool taken[64] = {false};
    for (int e = 0; e < sh->n; e++) most = fmax(most, scores[e]);
    for (int e = 0; e < sh->n; e++) {
        p[e] = scores[e];
        if (sh->softmax_last) continue;
        p[e] = sh->sigmoid ? 1 / (1 + exp(-p[e])) : exp(p[e] - most);
        sum += p[e];
    }
    for (int e = 0; e < sh->n && !sh->softmax_last && !sh->sigmoid; e++) p[e] /= sum;
    if (sh->n_group) oracle_close(sh, p, taken);
    sum = 0;
    for (int i = 0; i < sh->top_k; i++) {
        int best = -1;
        for (int e = 0; e < sh->n; e++)
            if (!taken[e] && (best < 0 || scores[e] > scores[best])) best = e;
        taken[best] = true;
        expert[i] = best;
        share[i] = sh->softmax_last ? exp(p[best] - most) : p[best];
        sum += share[i];
    }
    for (int i = 0; i < sh->top_k; i++)
        share[i] *= 1.5 / (sh->normed || sh->softmax_last ? sum : 1);
}

static double act_of(activation act, double g, double u)
{
    if (act == ACT_SWIGLU_CLAMPED) {
        g = fmin(g, 7);
        u = fmax(fmin(u, 7), -7);
        return (u + 1) * g / (1 + exp(-1.702 * g));
    }
    if (act == ACT_RELU2) return g > 0 ? g * g * u : 0;
    if (act == ACT_GELU) return 0.5 * g * erfc(-g / sqrt(2.0)) * u;
    double t = act == ACT_SILU ? g : sqrt(8 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
    return g / (1 + exp(-t)) * u;
}

static double dot(const float *w, const double *x, int n)
{
    double sum = 0;
    for (int k = 0; k < n; k++) sum += (double)w[k] * x[k];
    return sum;
}

static void oracle_row(const bed *b, int row, int upon, double *out)
{
    const shape *sh = b->sh;
    int expert[64];
    double share[64], x[2100], acted[2100];
    size_t each = (size_t)sh->dim * sh->ffn;
    oracle_route(sh, b->scores + row * sh->n, expert, share);
    double by = upon == 2 ? 1 / (1 + exp(-(double)b->shared[row])) : upon;
    for (int j = 0; j < sh->dim; j++) out[j] = by * b->stands[row * sh->dim + j];
    for (int i = 0; i < sh->top_k; i++) {
        int e = expert[i];
        double in = sh->scale_in ? share[i] : 1, at_last = sh->scale_in ? 1 : share[i];
        for (int k = 0; k < sh->dim; k++)
            x[k] = rounded(sh->type, (float)(b->x[row * sh->dim + k] * in));
        for (int j = 0; j < sh->ffn; j++) {
            double g = dot(b->w[0] + e * each + (size_t)j * sh->dim, x, sh->dim);
            double u = dot(b->w[1] + e * each + (size_t)j * sh->dim, x, sh->dim);
            if (sh->biased) g += b->bias[0][e * sh->ffn + j], u += b->bias[1][e * sh->ffn + j];
            acted[j] = rounded(sh->type, (float)act_of(sh->act, g, u));
        }
        for (int j = 0; j < sh->dim; j++) {
            double v = dot(b->w[2] + e * each + (size_t)j * sh->ffn, acted, sh->ffn);
            out[j] += at_last * (sh->biased ? v + b->bias[2][e * sh->dim + j] : v);
        }
    }
}

static bool is_odd(int row) /* nobody's, or without numbers */
{
    return row % 31 == 5 || row == 7;
}

START_TEST(rows_meet_the_oracle)
{
    static const int tiles[] = {GROUPED_FEW, GROUPED_SOME, GROUPED_MANY};
    const int n = 40;
    bed b;
    rng_state = 5 + (uint64_t)_i;
    emu_seed((uint64_t)_i % 2);
    bed_open(&b, &shapes[_i]);
    double want[2100];
    for (int t = 0; t < 3; t++) {
        float *got = run(&b, 0, n, tiles[t], t);
        double tol = b.sh->type == DT_F32 ? 1e-5 : b.sh->type == DT_F16 ? 2e-3 : 2e-2;
        for (int row = 0; row < n; row++) {
            if (row % 31 == 5) { /* untouched */
                ck_assert_mem_eq(got + row * b.sh->dim, b.stands + row * b.sh->dim,
                                 (size_t)b.sh->dim * sizeof(float));
            }
            if (is_odd(row)) continue;
            oracle_row(&b, row, t, want);
            for (int j = 0; j < b.sh->dim; j++)
                check_near(got[row * b.sh->dim + j], want[j], tol, "experts",
                           (size_t)(row * b.sh->dim + j));
        }
        free(got);
    }
    bed_close(&b);
    emu_seed(0);
}
END_TEST

/* Alone, among few and among many, by every kernel; with sums as tensor cores make them, too. */
START_TEST(a_row_has_one_law)
{
    static const struct {
        int n, tile;
    } some[] = {{1, GROUPED_FEW},   {9, GROUPED_FEW},  {40, GROUPED_SOME},
                {70, GROUPED_MANY}, {70, GROUPED_FEW}, {3, GROUPED_MANY}};
    bed b;
    rng_state = 50 + (uint64_t)_i;
    emu_mma_truncates(_i % 2);
    emu_seed((uint64_t)_i);
    bed_open(&b, &shapes[_i]);
    size_t dim = (size_t)b.sh->dim;
    float *all = run(&b, 0, ROWS, GROUPED_MANY, 1);
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        int from = below(ROWS - some[i].n);
        float *got = run(&b, from, some[i].n, some[i].tile, 1);
        ck_assert_msg(memcmp(got, all + (size_t)from * dim, some[i].n * dim * 4) == 0,
                      "shape %d: rows %d to %d have other bits by tiles of %d", _i, from,
                      from + some[i].n, some[i].tile);
        free(got);
    }
    free(all);
    bed_close(&b);
    emu_mma_truncates(0);
    emu_seed(0);
}
END_TEST

/* Each adapted slot is in one chunk, with its expert's matrices of its row's adapter; a chunk is of
 * one expert and one adapter, and its shrunk values are nobody else's. */
START_TEST(chunks_of_adapted_slots)
{
    enum { LAYER = 1, N = 120 };
    const shape *sh = &shapes[_i];
    bed b;
    rng_state = 90 + (uint64_t)_i;
    emu_seed((uint64_t)_i % 2);
    bed_open(&b, sh);
    cu_experts x = work_for(&b, 0, N, GROUPED_SOME);
    size_t slots = (size_t)N * sh->top_k, mats = 3 * (size_t)sh->n * (LAYER + 1);
    sgmv_mat *table = (sgmv_mat *)emu_alloc(3 * mats * sizeof(*table)); /* of three adapters */
    cu_expert_row row[N];
    for (int i = 0; i < N; i++) { /* segments: none, two of one, others */
        int who = i < 20 ? -1 : i < 80 ? 0 : i < 83 ? 1 : 2;
        row[i] = {who < 0 ? NULL : table + who * mats, who == 1 ? 3 : 16};
    }
    x.adapter = (cu_expert_row *)to_device(row, sizeof(row));
    x.layer = LAYER;
    x.chunk_rows = _i % 2 ? 8 : 32;
    x.v_rank = 16;
    x.chunk = (sgmv_chunk *)emu_alloc(slots * sizeof(*x.chunk));
    x.counts = (sgmv_counts *)emu_alloc(sizeof(*x.counts));
    ck_assert_int_eq(cu_experts_sort(NULL, &x), cudaSuccess);
    ck_assert_int_eq(cu_experts_chunks(NULL, &x), cudaSuccess);
    int *seen = (int *)calloc(slots, sizeof(int)), n = x.counts->n_all;
    ck_assert(n == x.counts->n_small && n == x.counts->n_lora && x.counts->n_tile == 0);
    for (int i = 0; i < n; i++) {
        const sgmv_chunk *c = &x.chunk[i];
        ck_assert(c->n_rows >= 1 && c->n_rows <= x.chunk_rows);
        for (int s = c->row0; s < c->row0 + c->n_rows; s++) {
            const sgmv_mat *own = row[x.row_of[s]].mats;
            seen[s]++;
            ck_assert_ptr_eq(c->mats, own + ((size_t)LAYER * sh->n + x.expert_of[s]) * 3);
        }
        ck_assert_uint_eq(c->v0, (uint32_t)c->row0 * SGMV_OUT_MAX * 16);
        ck_assert_int_eq(c->v_rank, row[x.row_of[c->row0]].rank == 3 ? 8 : 16);
    }
    int live = x.first[sh->n], n_live = 0;
    for (int i = 0; i < N; i++) n_live += i % 31 != 5;
    ck_assert_int_eq(live, n_live * sh->top_k); /* nobody's rows have no slots */
    for (int s = 0; s < live; s++) ck_assert_int_eq(seen[s], row[x.row_of[s]].mats != NULL);
    free(seen);
    emu_free(table);
    emu_free((void *)x.adapter);
    emu_free(x.chunk);
    emu_free(x.counts);
    drop_work(&x);
    bed_close(&b);
    emu_seed(0);
}
END_TEST

START_TEST(what_cannot_be_is_refused)
{
    cu_experts x = {};
    ck_assert_int_eq(cu_experts_sort(NULL, &x), cudaSuccess); /* nothing to do */
    x.n_rows = 1;
    x.n = 4;
    x.top_k = 5;
    ck_assert_int_eq(cu_experts_sort(NULL, &x), cudaErrorInvalidValue);
    x.n = EXPERTS_MAX;
    x.top_k = CU_EXPERTS_TOP + 1;
    ck_assert_int_eq(cu_experts_sort(NULL, &x), cudaErrorInvalidValue);
}
END_TEST

int main(void)
{
    if (cu_grouped_setup() != cudaSuccess) return 1;
    Suite *s = suite_create("experts");
    TCase *t = tcase_create("experts");
    tcase_set_timeout(t, 250);
    tcase_add_test(t, what_cannot_be_is_refused);
    tcase_add_loop_test(t, rows_meet_the_oracle, 0, N_SHAPES);
    tcase_add_loop_test(t, a_row_has_one_law, 0, N_SHAPES);
    tcase_add_loop_test(t, chunks_of_adapted_slots, 0, N_SHAPES);
    suite_add_tcase(s, t);
    return run_suite(s);
}
