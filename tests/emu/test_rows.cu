/* test_rows.cu -- engine/cuda/rows/rows.cu against f64, and each row against itself in other
 * company. */
#include "engine/cuda/rows/rows.h"
#include "engine/kv_int8.h"
#include "tests/emu/device_data.h"
#include "tests/run_suite.h"

static const int row_counts[] = {0, 1, 7, 64, 130};
static const int dims[] = {64, 80, 100, 576, 7};

static uint16_t half_bits(float f, int type)
{
    return type == DT_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
}

static float half_float(uint16_t h, int type)
{
    return type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static void bits_equal(const void *a, const void *b, size_t bytes, const char *what)
{
    ck_assert_msg(memcmp(a, b, bytes) == 0, "%s: other bits in other company", what);
}

/* ---- embedding ------------------------------------------------------------------------- */

static void *make_table(int type, size_t n, float **plain)
{
    *plain = (float *)malloc(n * sizeof(float));
    void *t = emu_alloc(n * (type == DT_F32 ? 4 : 2));
    for (size_t i = 0; i < n; i++) {
        float f = draw_float(2);
        if (type == DT_F32) {
            ((float *)t)[i] = (*plain)[i] = f;
        } else {
            ((uint16_t *)t)[i] = half_bits(f, type);
            (*plain)[i] = half_float(half_bits(f, type), type);
        }
    }
    emu_wrote(t, n * (type == DT_F32 ? 4 : 2));
    return t;
}

static void check_embed(int type, int dim, int n)
{
    const int VOCAB = 300;
    float *plain, *other;
    void *table = make_table(type, (size_t)VOCAB * dim, &plain);
    void *alt_table = make_table(DT_F32, (size_t)VOCAB * dim, &other);
    float *own; /* tokens of the base, and two that it does not have */
    int32_t own_id[] = {0, 7, VOCAB - 1, VOCAB, VOCAB + 4}, n_own = 5;
    void *own_table = make_table(type, (size_t)n_own * dim, &own);
    int32_t *own_at = (int32_t *)to_device(own_id, sizeof(own_id));
    int32_t *token = (int32_t *)malloc((size_t)(n + 1) * 4);
    cu_embed_alt *alt = (cu_embed_alt *)calloc((size_t)n + 1, sizeof(*alt));
    for (int i = 0; i < n; i++) {
        token[i] = i == 5 ? VOCAB : below(VOCAB);
        if (i % 3 == 1) alt[i] = {alt_table, NULL, NULL, DT_F32, VOCAB, 0, 0};
        if (i % 4 == 3) { /* over the base's table, or over an own one */
            alt[i].rows = own_table;
            alt[i].id = own_at;
            alt[i].rows_type = type;
            alt[i].n_rows = n_own;
            token[i] = i % 8 == 3 ? own_id[i / 8 % n_own] : VOCAB + 1 + i % 3;
        }
    }
    cu_embed_args a = {};
    a.out = device_empty((size_t)n * dim + 1);
    a.table = table;
    a.type = type;
    a.dim = dim;
    a.n_rows = n;
    a.n_vocab = VOCAB;
    a.token = (int32_t *)to_device(token, (size_t)n * 4);
    a.alt = (cu_embed_alt *)to_device(alt, (size_t)n * sizeof(*alt));
    ck_assert_int_eq(cu_embed(NULL, &a), cudaSuccess);
    for (int i = 0; i < n; i++) {
        const float *want =
            (i % 3 == 1 ? other : plain) + (size_t)(token[i] < VOCAB ? token[i] : 0) * dim;
        bool is_own = i % 8 == 3;
        if (is_own) want = own + (size_t)(i / 8 % n_own) * dim;
        for (int j = 0; j < dim; j++) {
            ck_assert(a.out[(size_t)i * dim + j] == (is_own || token[i] < VOCAB ? want[j] : 0));
        }
    }
    free(plain);
    free(other);
    free(own);
    free(token);
    free(alt);
    emu_free(own_table);
    emu_free(own_at);
    emu_free(table);
    emu_free(alt_table);
    emu_free(a.out);
    emu_free((void *)a.token);
    emu_free((void *)a.alt);
}

START_TEST(embedding_copies_rows)
{
    emu_seed((uint64_t)_i);
    for (int type = DT_F32; type <= DT_BF16; type++) {
        for (int n : row_counts) {
            check_embed(type, 64, n);
            check_embed(type, 100, n % 9);
        }
    }
}
END_TEST

/* ---- rms norm ---------------------------------------------------------------------------- */

static void check_norm(int dim, int n, bool add, bool pick, int seed)
{
    rng_state = (uint64_t)seed;
    size_t all = (size_t)(n ? n : 1) * dim;
    float *x = device_random(all, 3), *residual = device_random(all, 1),
          *gain = device_random((size_t)dim, 2);
    float *before = (float *)malloc(all * sizeof(float));
    memcpy(before, x, all * sizeof(float));
    int32_t *index = (int32_t *)malloc((size_t)(n + 1) * 4);
    int n_out = pick ? n / 2 : n;
    for (int i = 0; i < n_out; i++) index[i] = 2 * i + 1;
    cu_rms_norm_args a = {};
    a.x = x;
    a.add = add ? residual : NULL;
    a.weight = gain;
    a.index = pick ? (int32_t *)to_device(index, (size_t)n_out * 4) : NULL;
    a.eps = 1e-5F;
    a.n_rows = n_out;
    a.dim = dim;
    a.out = device_empty(all);
    a.out16 = (uint16_t *)emu_alloc(all * 2);
    a.early = emu_begins_early();
    ck_assert_int_eq(cu_rms_norm(NULL, &a), cudaSuccess);
    for (int i = 0; i < n_out; i++) {
        size_t from = (size_t)(pick ? index[i] : i) * dim, to = (size_t)i * dim;
        double sum = 0;
        for (int j = 0; j < dim; j++) {
            double v = before[from + j];
            if (add) v += residual[from + j];
            sum += v * v;
            if (add) check_near(x[from + j], v, 1e-6, "x + residual", from + j);
        }
        double inv = 1 / sqrt(sum / dim + 1e-5);
        for (int j = 0; j < dim; j++) {
            double v = before[from + j] + (add ? (double)residual[from + j] : 0);
            check_near(a.out[to + j], v * inv * gain[j], 2e-6, "norm", to + j);
            ck_assert_int_eq(a.out16[to + j], bf16_from_f32(a.out[to + j]));
        }
    }
    /* The last row alone has the same bits. */
    if (n_out > 1 && !pick) {
        memcpy(x, before, all * sizeof(float));
        cu_rms_norm_args b = a;
        b.n_rows = 1;
        size_t last = (size_t)(n_out - 1) * dim;
        float *copy = (float *)to_device(x + last, (size_t)dim * 4);
        float *extra = (float *)to_device(residual + last, (size_t)dim * 4);
        b.x = copy;
        b.add = add ? extra : NULL;
        b.out = device_empty((size_t)dim);
        b.out16 = NULL;
        ck_assert_int_eq(cu_rms_norm(NULL, &b), cudaSuccess);
        bits_equal(b.out, a.out + last, (size_t)dim * 4, "norm");
        emu_free(copy);
        emu_free(extra);
        emu_free(b.out);
    }
    free(before);
    free(index);
    emu_free(x);
    emu_free(residual);
    emu_free(gain);
    if (a.index) emu_free((void *)a.index);
    emu_free(a.out);
    emu_free(a.out16);
}

START_TEST(norms_meet_the_oracle)
{
    emu_seed((uint64_t)_i);
    for (int dim : dims) {
        for (int n : row_counts) {
            check_norm(dim, n > 64 && dim > 100 ? 9 : n, false, false, 3);
            check_norm(dim, n % 10, true, false, 4);
            check_norm(dim, n % 10, false, true, 5);
        }
    }
    check_norm(8200, 2, true, false, 6);
    cu_rms_norm_args both = {};
    int32_t index = 0;
    float add = 0;
    both.index = &index;
    both.add = &add;
    both.n_rows = both.dim = 1;
    ck_assert_int_eq(cu_rms_norm(NULL, &both), cudaErrorInvalidValue);
}
END_TEST

/* ---- rope and append ------------------------------------------------------------------------- */

typedef struct {
    int d, n_head, n_kv, rope_dim, type;
    bool norm, fused, pairs;
    float q_scale;     /* queries grow by it every 13 positions */
    bool last = false; /* norms follow the rotation */
} rope_case;

static void norm_head(double *x, const float *norm, int d)
{
    double sum = 0;
    for (int i = 0; i < d; i++) sum += x[i] * x[i];
    double inv = 1 / sqrt(sum / d + 1e-6);
    for (int i = 0; i < d; i++) x[i] *= inv * norm[i];
}

static void turn(double *x, const float *norm, const float *cs, const float *sn, int d,
                 int rope_dim, bool pairs)
{
    if (norm) norm_head(x, norm, d);
    for (int i = 0; i < rope_dim / 2; i++) {
        int at = pairs ? 2 * i : i, other = pairs ? 2 * i + 1 : i + rope_dim / 2;
        double a = x[at], b = x[other];
        x[at] = a * cs[i] - b * sn[i];
        x[other] = b * cs[i] + a * sn[i];
    }
}

/* A position of a head in its page, as values; the scale of codes, else 0. */
static float kv_read(const cu_kv *kv, int slot, int head, bool v, float *x)
{
    int d = kv->head_dim;
    size_t elem = kv->type == DT_F32 ? 4 : kv->type == DT_I8 ? 1 : 2;
    size_t part = (size_t)CU_PAGE_TOKENS * d * elem, scales = elem == 1 ? CU_PAGE_TOKENS * 4 : 0;
    int at = slot % CU_PAGE_TOKENS;
    const char *from = kv->mem + (size_t)(slot / CU_PAGE_TOKENS) * kv->stride +
                       ((size_t)kv->layer * kv->n_kv_head + head) * (2 * part + scales);
    const char *p = from + (v ? part : 0) + (size_t)at * d * elem;
    float scale = 0;
    if (elem == 1) scale = bf16_to_f32(((const uint16_t *)(from + 2 * part))[2 * at + v]);
    for (int i = 0; i < d; i++) {
        if (elem == 1) /* of 16 the first eight are even */
            x[i] =
                scale *
                ((const int8_t *)p)[i < d / 16 * 16 ? i / 16 * 16 + (i % 16 < 8 ? 2 * (i % 16)
                                                                                : 2 * (i % 16) - 15)
                                                    : i];
        else
            x[i] = elem == 4 ? ((const float *)p)[i] : bf16_to_f32(((const uint16_t *)p)[i]);
    }
    return scale;
}

/* What a page keeps of v is v rounded; `loose`: of values that are not known to the last bit. */
static void check_kept(const cu_kv *kv, int slot, int head, bool is_v, const float *v, bool loose)
{
    float kept[256];
    float scale = kv_read(kv, slot, head, is_v, kept);
    float want = bf16_to_f32(int8_scale_of(v, kv->head_dim));
    if (kv->type == DT_I8)
        ck_assert_msg(loose ? fabsf(scale - want) <= want / 128 : scale == want,
                      "a scale of %g, not %g", scale, want);
    for (int i = 0; i < kv->head_dim; i++) {
        float x = kv->type == DT_F32    ? v[i]
                  : kv->type == DT_BF16 ? bf16_to_f32(bf16_from_f32(v[i]))
                                        : scale * (float)int8_code_of(v[i], scale);
        double near = kv->type == DT_F32 ? 3e-6 : kv->type == DT_BF16 ? 4e-3 : (double)scale;
        if (loose)
            check_near(kept[i], x, near, "kept", (size_t)i);
        else
            ck_assert_msg(kept[i] == x, "kept [%d]: %.9g, not %.9g", i, kept[i], x);
    }
}

static void check_rope(const rope_case *rc, int n)
{
    const int PAGES = 9, MAX_POS = 400, LAYERS = 2;
    int d = rc->d, q_cols = rc->n_head * d, kv_cols = rc->n_kv * d;
    int row = rc->fused ? q_cols + 2 * kv_cols : 0;
    cu_rope_args a = {};
    float *qkv = device_random((size_t)(n + 1) * (q_cols + 2 * kv_cols), 2);
    a.q = qkv;
    a.k = rc->fused ? qkv + q_cols : qkv + (size_t)n * q_cols;
    a.v = rc->fused ? a.k + kv_cols : a.k + (size_t)n * kv_cols;
    a.q_stride = rc->fused ? row : q_cols;
    a.k_stride = a.v_stride = rc->fused ? row : kv_cols;
    a.q_norm = rc->norm ? device_random((size_t)d, 2) : NULL;
    a.k_norm = rc->norm ? device_random((size_t)d, 2) : NULL;
    a.norm_eps = 1e-6F;
    a.cos = device_random((size_t)MAX_POS * (rc->rope_dim / 2 + 1), 1);
    a.sin = device_random((size_t)MAX_POS * (rc->rope_dim / 2 + 1), 1);
    a.rope_dim = rc->rope_dim;
    a.n_head = rc->n_head;
    a.pairs = rc->pairs;
    a.q_scale = rc->q_scale;
    a.q_floor = 13;
    a.q_from = 1;
    a.n_rows = n;
    size_t bytes = cu_kv_bytes(LAYERS, rc->n_kv, d, d, rc->type),
           stride = (bytes + 255) / 256 * 256;
    a.kv = {(char *)emu_alloc(stride * PAGES), stride, 1, rc->n_kv, d, rc->type, d};
    int32_t pos[200], slot[200];
    for (int i = 0; i < n; i++) {
        pos[i] = below(MAX_POS);
        slot[i] = i == 3 ? -1 : (i * 7 + 5) % (PAGES * CU_PAGE_TOKENS);
    }
    a.pos = (int32_t *)to_device(pos, (size_t)n * 4);
    a.slot = (int32_t *)to_device(slot, (size_t)n * 4);
    size_t all = (size_t)(n + 1) * (q_cols + 2 * kv_cols);
    float *before = (float *)malloc(all * sizeof(float));
    memcpy(before, qkv, all * sizeof(float));
    cu_rope_args then = a;
    if (rc->last) {
        ck_assert_int_eq(cu_turn_first(NULL, &a), cudaSuccess);
        then.q_norm = then.k_norm = NULL;
        then.rope_dim = 0;
    }
    ck_assert_int_eq(cu_rope_append(NULL, &then), cudaSuccess);
    double x[256];
    for (int i = 0; i < n; i++) {
        const float *cs = a.cos + (size_t)pos[i] * (rc->rope_dim / 2),
                    *sn = a.sin + (size_t)pos[i] * (rc->rope_dim / 2);
        for (int h = 0; h < rc->n_head + rc->n_kv; h++) {
            bool is_k = h >= rc->n_head;
            int kv_head = h - rc->n_head;
            const float *got = is_k ? a.k + (size_t)i * a.k_stride + kv_head * d
                                    : a.q + (size_t)i * a.q_stride + h * d;
            for (int j = 0; j < d; j++) x[j] = before[got - qkv + j];
            const float *norm = is_k ? a.k_norm : a.q_norm;
            turn(x, rc->last ? NULL : norm, cs, sn, d, rc->rope_dim, rc->pairs);
            if (rc->last) norm_head(x, norm, d);
            double grown = is_k ? 1 : 1 + rc->q_scale * log1p(floor((pos[i] + 1) / 13.0));
            for (int j = 0; !is_k && j < d; j++)
                check_near(got[j], x[j] * grown, 3e-6, "q", (size_t)j);
            if (!is_k || slot[i] < 0) continue;
            if (!rc->last) ck_assert_mem_eq(got, before + (got - qkv), (size_t)d * sizeof(float));
            float k[256];
            for (int j = 0; j < d; j++) k[j] = (float)x[j];
            check_kept(&a.kv, slot[i], kv_head, false, k, rc->norm || rc->rope_dim > 0);
            check_kept(&a.kv, slot[i], kv_head, true, a.v + (size_t)i * a.v_stride + kv_head * d,
                       false);
        }
    }
    free(before);
    emu_free(qkv);
    emu_free(a.kv.mem);
    emu_free((void *)a.cos);
    emu_free((void *)a.sin);
    emu_free((void *)a.pos);
    emu_free((void *)a.slot);
    if (rc->norm) emu_free((void *)a.q_norm);
    if (rc->norm) emu_free((void *)a.k_norm);
}

START_TEST(rope_turns_and_appends)
{
    static const rope_case cases[] = {{64, 4, 2, 64, DT_BF16, false, false, false, 0},
                                      {80, 3, 1, 32, DT_BF16, true, true, false, 0.1F},
                                      {96, 2, 2, 96, DT_F32, true, false, true, 0},
                                      {128, 4, 1, 128, DT_BF16, true, true, false, 0},
                                      {20, 5, 5, 20, DT_F32, false, true, false, 0.3F},
                                      {64, 2, 1, 32, DT_BF16, false, true, true, 0},
                                      {64, 2, 1, 0, DT_F32, true, false, false, 0.1F},
                                      {128, 4, 2, 128, DT_I8, true, true, false, 0},
                                      {80, 2, 1, 0, DT_I8, false, false, false, 0},
                                      {20, 2, 2, 0, DT_I8, false, true, false, 0},
                                      {64, 4, 2, 64, DT_BF16, true, true, false, 0, true},
                                      {20, 5, 2, 12, DT_F32, true, false, true, 0.1F, true},
                                      {64, 2, 1, 0, DT_F32, true, true, false, 0, true}};
    emu_seed((uint64_t)_i);
    for (const rope_case &c : cases) {
        for (int n : row_counts) check_rope(&c, n);
    }
}
END_TEST

/* Values of any size: none at all, the least, the greatest, and such as are none. */
START_TEST(codes_of_odd_values)
{
    static const float odd[][2] = {{0, 0},     {1e-41F, 2e-45F}, {127, 63.5F},   {3e38F, -1},
                                   {-0.5F, 7}, {NAN, 1},         {INFINITY, -3}, {-INFINITY, NAN}};
    const int d = 32, n = (int)(sizeof(odd) / sizeof(odd[0]));
    cu_rope_args a = {};
    a.q = device_random((size_t)n * d, 1);
    float *x = device_random((size_t)n * d, 0);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < d; j++) x[i * d + j] = odd[i][1] * (float)(j % 3 - 1);
        x[i * d + 5 * i % d] = odd[i][0];
    }
    emu_wrote(x, (size_t)n * d * sizeof(float));
    a.k = a.v = x;
    a.q_stride = a.k_stride = a.v_stride = d;
    a.n_head = 1;
    a.n_rows = n;
    size_t bytes = cu_kv_bytes(1, 1, d, d, DT_I8);
    a.kv = {(char *)emu_alloc(bytes), bytes, 0, 1, d, DT_I8, d};
    int32_t slot[8];
    for (int i = 0; i < n; i++) slot[i] = i;
    a.pos = a.slot = (int32_t *)to_device(slot, sizeof(slot));
    a.cos = a.sin = x;
    ck_assert_int_eq(cu_rope_append(NULL, &a), cudaSuccess);
    for (int i = 0; i < n; i++) {
        float kept[256];
        bool none = !isfinite(odd[i][0]);
        float scale = kv_read(&a.kv, i, 0, i % 2, kept);
        ck_assert_int_eq(isnan(scale) != 0, none);
        if (!none) check_kept(&a.kv, i, 0, i % 2, x + i * d, false);
    }
    emu_free(a.q);
    emu_free(x);
    emu_free(a.kv.mem);
    emu_free((void *)a.pos);
}
END_TEST

/* ---- silu and conversions -------------------------------------------------------------------- */

static void check_silu(int n, int cols, bool fused, bool gelu, bool alone)
{
    int stride = fused ? 2 * cols : cols;
    float *gate = device_random((size_t)(n + 1) * stride, 9);
    float *up = fused ? gate + cols : device_random((size_t)(n + 1) * stride, 3);
    if (n) gate[0] = -100;
    cu_silu_args a = {gate,
                      alone ? NULL : up,
                      stride,
                      device_empty((size_t)(n + 1) * cols),
                      (uint16_t *)emu_alloc((size_t)(n + 1) * cols * 2),
                      n,
                      cols,
                      gelu};
    ck_assert_int_eq(cu_silu_mul(NULL, &a), cudaSuccess);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < cols; j++) {
            double g = gate[(size_t)i * stride + j],
                   t = gelu ? sqrt(8 / 3.14159265358979323846) * (g + 0.044715 * g * g * g) : g,
                   want = g / (1 + exp(-t)) * (alone ? 1 : up[(size_t)i * stride + j]);
            size_t at = (size_t)i * cols + j;
            check_near(a.out[at], want, gelu ? 2e-5 : 1e-6, gelu ? "gelu" : "silu", at);
            ck_assert_int_eq(a.out16[at], bf16_from_f32(a.out[at]));
        }
    }
    emu_free(gate);
    if (!fused) emu_free(up);
    emu_free(a.out);
    emu_free(a.out16);
}

START_TEST(silu_of_all_shapes)
{
    emu_seed((uint64_t)_i);
    for (int n : row_counts) {
        check_silu(n, 64, false, n % 2, false);
        check_silu(n, 100, true, !(n % 2), false);
        check_silu(n % 8, 7, n % 2, false, false);
        check_silu(n % 8, 100, false, n % 2, true);
    }
}
END_TEST

/* ---- other activations, a bias --------------------------------------------------------------- */

static const float alpha_p = 0.9F, alpha_n = -0.4F, beta = 0.5F, eps = -1e-6F;

static double oracle_act(activation act, double x)
{
    double up = log1p(exp((double)alpha_p)), down = (double)beta + log1p(exp((double)alpha_n));
    switch (act) {
    case ACT_RELU2: return x > 0 ? x * x : 0;
    case ACT_RELU: return x > 0 ? x : 0;
    case ACT_GELU: return 0.5 * x * erfc(-x / sqrt(2.0));
    default: break;
    }
    double low = fmin(x, (double)eps);
    return (double)beta * x + (x > 0 ? up * x * x : down * (expm1(low) - x));
}

static void check_act(activation act, int n, int cols, bool fused, bool alone)
{
    int stride = fused ? 2 * cols : cols;
    size_t all = (size_t)(n + 1) * (size_t)cols;
    float *gate = device_random((size_t)(n + 1) * stride, 6);
    float *up = device_random((size_t)(n + 1) * stride, 3);
    const float *numbers[] = {&alpha_p, &alpha_n, &beta, &eps};
    float *there[4];
    for (int i = 0; i < 4; i++) there[i] = (float *)to_device(numbers[i], sizeof(float));
    if (n) gate[0] = NAN;
    if (n) gate[1] = -30;
    cu_act_args a = {};
    a.rows.gate = gate;
    a.rows.up = alone ? NULL : up;
    a.rows.in_stride = stride;
    a.rows.out = device_empty(all);
    a.rows.out16 = (uint16_t *)emu_alloc(all * 2);
    a.rows.n_rows = n;
    a.rows.cols = cols;
    a.act = act;
    a.xielu = {there[0], there[1], there[2], there[3]};
    ck_assert_int_eq(cu_act_mul(NULL, &a), cudaSuccess);
    for (size_t at = 0; at < (size_t)n * cols; at++) {
        size_t from = at / cols * stride + at % cols;
        if (at == 0) {
            ck_assert(isnan(a.rows.out[at]));
            continue;
        }
        double want = oracle_act(act, gate[from]) * (alone ? 1 : up[from]);
        check_near(a.rows.out[at], want, 3e-6, "activation", at);
        ck_assert_int_eq(a.rows.out16[at], bf16_from_f32(a.rows.out[at]));
    }
    for (float *p : there) emu_free(p);
    emu_free(gate);
    emu_free(up);
    emu_free(a.rows.out);
    emu_free(a.rows.out16);
}

START_TEST(other_activations)
{
    static const activation acts[] = {ACT_RELU2, ACT_GELU, ACT_RELU, ACT_XIELU};
    emu_seed((uint64_t)_i);
    for (activation act : acts) {
        check_act(act, 7, 100, false, true);
        check_act(act, 64, 36, true, false);
        check_act(act, 0, 8, false, true);
    }
    cu_act_args other = {};
    other.rows.n_rows = other.rows.cols = 1;
    ck_assert_int_eq(cu_act_mul(NULL, &other), cudaErrorInvalidValue);
}
END_TEST

START_TEST(a_bias_of_the_first_columns)
{
    const int n = 3, stride = 301, cols = 300;
    emu_seed((uint64_t)_i);
    float *x = device_random((size_t)n * stride, 3), *bias = device_random(cols, 1);
    float *before = (float *)malloc((size_t)n * stride * sizeof(float));
    memcpy(before, x, (size_t)n * stride * sizeof(float));
    cu_bias_args a = {x, bias, n, stride, cols};
    ck_assert_int_eq(cu_add_bias(NULL, &a), cudaSuccess);
    for (int i = 0; i < n * stride; i++)
        ck_assert(x[i] == before[i] + (i % stride < cols ? bias[i % stride] : 0));
    a.n_rows = 0;
    ck_assert_int_eq(cu_add_bias(NULL, &a), cudaSuccess);
    free(before);
    emu_free(x);
    emu_free(bias);
}
END_TEST

START_TEST(sums_multiples_and_caps)
{
    emu_seed((uint64_t)_i);
    static const size_t sizes[] = {0, 1, 37, 3000};
    for (size_t n : sizes) {
        for (int form = 0; form < 4; form++) {
            float *x = device_random(n + 1, 9), *y = device_random(n + 1, 3);
            float *before = (float *)malloc((n + 1) * sizeof(float));
            memcpy(before, x, (n + 1) * sizeof(float));
            cu_blend_args a = {x, form % 2 ? y : NULL, 0.5F, -2, form / 2 ? 1.5F : 0, n};
            ck_assert_int_eq(cu_blend(NULL, &a), cudaSuccess);
            for (size_t i = 0; i < n; i++) {
                double want = 0.5 * before[i] + (form % 2 ? -2.0 * y[i] : 0);
                if (form / 2) want = 1.5 * tanh(want / 1.5);
                check_near(x[i], want, 2e-6, "blend", i);
            }
            ck_assert(x[n] == before[n]);
            free(before);
            emu_free(x);
            emu_free(y);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rows");
    TCase *t = tcase_create("rows");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, embedding_copies_rows, 0, 2);
    tcase_add_loop_test(t, norms_meet_the_oracle, 0, 2);
    tcase_add_loop_test(t, rope_turns_and_appends, 0, 2);
    tcase_add_test(t, codes_of_odd_values);
    tcase_add_loop_test(t, silu_of_all_shapes, 0, 2);
    tcase_add_loop_test(t, other_activations, 0, 2);
    tcase_add_loop_test(t, a_bias_of_the_first_columns, 0, 2);
    tcase_add_loop_test(t, sums_multiples_and_caps, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
