/* test_quant.c -- every matrix of tests/fixtures/quant, bit for bit as its format's own library
 * dequantises it (make_quant_goldens.py); what the kernels make of its codes; what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/hash.h"
#include "engine/files/gguf.h"
#include "engine/model/model_files.h"
#include "engine/model/stored.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static const struct {
    const char *name, *path, *format;
    bool exact; /* the kernels multiply by the values themselves */
} models[] = {
    {"gguf-llama", "model-00001-of-00002.gguf", "F16", false},
    {"gguf-qwen3", "model.gguf", "BF16", false},
    {"gguf-k", "model.gguf", "Q6_K", false},
    {"gptq", "", "GPTQ 4 bits", false},
    {"gptq-sym", "", "GPTQ 4 bits", false},
    {"gptq-8", "", "GPTQ 8 bits", false},
    {"awq", "", "AWQ 4 bits", false},
    {"fp8-blocks", "", "FP8", true},
    {"ct-w4", "", "W4A16", false},
    {"ct-w4-asym", "", "W4A16", false},
    {"ct-w8", "", "W8A16", false},
    {"ct-w8a8", "", "W8A8", false},
    {"ct-fp8", "", "FP8", true},
    {"ct-fp8-block", "", "FP8", true},
    {"ct-fp8-tensor", "", "FP8", true},
    {"bnb-nf4", "", "NF4", true},
};

/* A folder's path ends in a slash here. */
enum { MODELS = sizeof(models) / sizeof(models[0]) };

static void path_of(char *out, size_t size, int i)
{
    snprintf(out, size, "fixtures/quant/%s/%s", models[i].name, models[i].path);
}

/* The kernels multiply by those values: columns of the identity give them back. */
static void check_codes(const stored *s, const float *values)
{
    int rows = s->src.rows, cols = s->src.cols;
    backend *be;
    weight *w;
    err e = {0};
    float *x = calloc((size_t)cols * (size_t)cols, sizeof(*x));
    float *y = malloc((size_t)cols * (size_t)rows * sizeof(*y));
    for (int k = 0; k < cols; k++) x[k * cols + k] = 1;
    ck_assert(!be_open(&be, &backend_cpu, &(backend_config){.n_threads = 1, .isa = "auto"}, &e));
    ck_assert_msg(!be_weight_create(be, &w, &s->src, &e), "%s", e.msg);
    step st = {.n_rows = cols};
    be_linear(be, x, &(linear_out){.y = y, .w = w, .lora_proj = -1}, 1, &st, 0);
    ck_assert(!be_sync(be, &e));
    for (int k = 0; k < cols; k++) {
        for (int i = 0; i < rows; i++) {
            float want = values[(size_t)i * (size_t)cols + (size_t)k], got = y[k * rows + i];
            ck_assert_msg(fabsf(got - want) <= 2e-6F * (fabsf(want) + 1),
                          "%s (%s): row %d column %d is %g, not %g", s->name, s->format, i, k,
                          (double)got, (double)want);
        }
    }
    size_t least = weight_source_bytes(&s->src);
    ck_assert_uint_ge(be_weight_bytes(w), least);
    be_weight_destroy(be, w);
    be_close(be);
    free(x);
    free(y);
}

/* "model.layers.0.mlp.up_proj.weight 144 64 0123456789abcdef" */
static void check_line(model_files *f, const char *line)
{
    char name[128];
    int rows, cols;
    unsigned long long hash;
    err e = {0};
    stored s;
    ck_assert_int_eq(sscanf(line, "%127s %d %d %llx", name, &rows, &cols, &hash), 4);
    char *dot = strrchr(name, '.');
    *dot = 0;
    ck_assert_msg(!model_files_find(f, name, dot + 1, rows, cols, &s, &e), "%s", e.msg);
    size_t bytes = (size_t)rows * (size_t)cols * sizeof(float);
    float *values = malloc(bytes);
    ck_assert(stored_values(&s, 0, rows, DT_F32, values));
    ck_assert_msg(hash_bytes(HASH_BASIS, values, bytes) == hash, "%s (%s) has other values", name,
                  s.format);
    if (s.src.read_row && weight_source_usable(&s.src, false)) check_codes(&s, values);
    free(values);
    stored_clear(&s);
}

START_TEST(values_are_the_librarys)
{
    char path[128], line[256];
    model_config c;
    model_files *f;
    err e = {0};
    path_of(path, sizeof(path), _i);
    ck_assert_msg(!model_config_read(path, &c, &e), "%s", e.msg);
    ck_assert_msg(!model_files_open(&f, path, &c, &e), "%s", e.msg);
    char list[128];
    snprintf(list, sizeof(list), "fixtures/quant/%s/expected.txt", models[_i].name);
    FILE *in = fopen(list, "rb");
    ck_assert_ptr_nonnull(in);
    int n = 0;
    for (; fgets(line, sizeof(line), in); n++) check_line(f, line);
    ck_assert_int_ge(n, 8);
    (void)fclose(in);
    model_files_close(f);
}
END_TEST

static const weight_rules plain_rules,
    cpu_rules = {.takes = weight_source_usable, .host_rows = true};

/* All of a model's tensors are there, and nothing else. */
START_TEST(survey_finds_all)
{
    char path[128];
    model_config c;
    model_survey s;
    err e = {0};
    path_of(path, sizeof(path), _i);
    ck_assert_msg(!model_config_read(path, &c, &e), "%s", e.msg);
    ck_assert_msg(!model_survey_read(path, &c, WEIGHTS_AUTO, &plain_rules, false, 0, &s, &e), "%s",
                  e.msg);
    ck_assert_str_eq(s.format, models[_i].format);
    ck_assert_int_gt(s.dequantised, 0);
    int all = s.dequantised;
    ck_assert(!model_survey_read(path, &c, WEIGHTS_AUTO, &cpu_rules, false, 0, &s, &e));
    ck_assert_int_ge(s.by_codes + s.dequantised, all - 1); /* less a GGUF's input table */
    ck_assert_int_gt(s.by_codes, 0);
    /* But for columns that are no whole groups of the kernels' */
    ck_assert_int_le(s.dequantised, models[_i].exact ? 1 : 0);
}
END_TEST

enum { TOKENS = 6 };

/* Log-probabilities after a few tokens [n]; what the matrices take. */
static double *answer_of(const char *path, weights_form f, int *n, size_t *bytes)
{
    int32_t token[TOKENS] = {3, 1, 4, 1, 5, 9}, pos[TOKENS] = {0, 1, 2, 3, 4, 5}, page = 0;
    int32_t row = TOKENS - 1;
    step_seq seq = {0, TOKENS, 0, &page, 1, 0};
    step_seg seg = {0, TOKENS, NULL};
    step s = {TOKENS, token, pos, 1, &seq, 1, &seg, 1, &row, NULL, 0, NULL, 0};
    backend *be;
    model *m;
    kv_pool *kv;
    const float *logits;
    err e = {0};
    model_options options = {.weights = f};
    ck_assert(!be_open(&be, &backend_cpu, &(backend_config){.n_threads = 1, .isa = "auto"}, &e));
    ck_assert_msg(!model_load_with(&m, path, be, TOKENS, 1, &options, &e), "%s", e.msg);
    attn_shape shape = model_attn_shape(m);
    ck_assert(!be_kv_create(be, &kv, &shape, 1, &e));
    ck_assert(!model_forward(m, kv, &s, &logits, &e));
    *n = model_get_config(m)->n_vocab;
    *bytes = model_weight_bytes(m);
    double *out = malloc((size_t)*n * sizeof(*out)), sum = 0;
    for (int i = 0; i < *n; i++) sum += exp((double)logits[i]);
    for (int i = 0; i < *n; i++) out[i] = (double)logits[i] - log(sum);
    be_kv_destroy(be, kv);
    model_destroy(m);
    be_close(be);
    return out;
}

/* By codes the answers are those of the plain values within what rounding x makes of them, if it
 * is rounded, in less memory. */
START_TEST(codes_serve_as_their_values)
{
    char path[128];
    int n;
    size_t small, large;
    double most = 0, least = 0;
    path_of(path, sizeof(path), _i);
    double *a = answer_of(path, WEIGHTS_AUTO, &n, &small);
    double *b = answer_of(path, WEIGHTS_PLAIN, &n, &large);
    for (int i = 0; i < n; i++) {
        most = fmax(most, fabs(a[i] - b[i]));
        least = fmin(least, b[i]);
    }
    printf("%s: log-prob difference at most %.2e of %.2e, %zu bytes of %zu\n", models[_i].name,
           most, -least, small, large);
    ck_assert_double_le(most, 0.05 - 0.02 * least); /* gguf-k's are in the hundreds */
    ck_assert_int_eq(models[_i].exact, most == 0);
    ck_assert_uint_lt(small, large);
    free(a);
    free(b);
}
END_TEST

/* ---- a GGUF with something wrong ------------------------------------------------------------- */

typedef struct image {
    uint8_t *p;
    size_t n;
} image;

static image read_image(const char *path)
{
    image m = {malloc(1 << 20), 0};
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    m.n = fread(m.p, 1, 1 << 20, f);
    (void)fclose(f);
    return m;
}

static uint8_t *find_text(const image *m, const char *text)
{
    uint8_t *at = memmem(m->p, m->n, text, strlen(text));
    ck_assert_ptr_nonnull(at);
    return at;
}

static void replace(image *m, const char *text, const char *by)
{
    ck_assert_uint_eq(strlen(text), strlen(by));
    memcpy(find_text(m, text), by, strlen(by));
}

/* The type of a matrix stands behind its name and two dimensions. */
static void retype(image *m, const char *name, uint32_t type)
{
    memcpy(find_text(m, name) + strlen(name) + 4 + 16, &type, 4);
}

static void expect(const image *m, err_code code, const char *says)
{
    char dir[64], path[96];
    model_config c;
    model_survey s;
    err e = {0};
    tmpdir_make(dir);
    snprintf(path, sizeof(path), "%s/x.gguf", dir);
    FILE *f = fopen(path, "wb");
    ck_assert_uint_eq(fwrite(m->p, 1, m->n, f), m->n);
    (void)fclose(f);
    err_code rc = model_config_read(path, &c, &e);
    if (!rc) rc = model_survey_read(path, &c, WEIGHTS_AUTO, &plain_rules, false, 0, &s, &e);
    ck_assert_msg(rc == code && strstr(e.msg, says), "%d: %s (not %d: %s)", rc, e.msg, code, says);
    tmpdir_remove(dir);
}

static void cut(image *m)
{
    m->n /= 2;
}

/* The last tensor begins in the file and ends behind it. */
static void cut_end(image *m)
{
    m->n -= 64;
}

static void cut_header(image *m)
{
    m->n = 100;
}

static void other_type(image *m)
{
    retype(m, "blk.0.ffn_up.weight", 29); /* IQ1_M: smaller, so it fits the file */
}

static void unknown_type(image *m)
{
    retype(m, "blk.0.ffn_up.weight", 77);
}

static void missing(image *m)
{
    replace(m, "blk.0.ffn_up.weight", "blk.0.ffn_xx.weight");
}

static void twice(image *m)
{
    replace(m, "blk.0.ffn_up.weight", "blk.0.attn_q.weight");
}

static void unknown_key(image *m)
{
    replace(m, "qwen2.rope.freq_base", "qwen2.rope.freq_bass");
}

static void many_tensors(image *m)
{
    memset(m->p + 8, 255, 8);
}

static void rope_part(image *m)
{
    uint8_t *at = find_text(m, "qwen2.rope.dimension_count");
    at[strlen("qwen2.rope.dimension_count") + 4] = 16;
}

static const struct {
    void (*change)(image *m);
    err_code code;
    const char *says;
} wrongs[] = {
    {cut, ERR_CORRUPT, "extends beyond the end of the file"},
    {cut_end, ERR_CORRUPT, "extends beyond the end of the file"},
    {cut_header, ERR_CORRUPT, "ends within its header"},
    {other_type, ERR_UNSUPPORTED, "'blk.0.ffn_up.weight' has type IQ1_M"},
    {unknown_type, ERR_UNSUPPORTED, "unknown type 77"},
    {missing, ERR_INPUT, "'blk.0.ffn_up.weight' is missing"},
    {twice, ERR_CORRUPT, "duplicate tensor"},
    {unknown_key, ERR_UNSUPPORTED, "qwen2.rope.freq_bass is not supported"},
    {many_tensors, ERR_LIMIT, "18446744073709551615 tensors"},
    {rope_part, ERR_UNSUPPORTED, "rope.dimension_count"},
};

START_TEST(wrong_files_are_refused)
{
    image m = read_image("fixtures/quant/gguf-k/model.gguf");
    wrongs[_i].change(&m);
    expect(&m, wrongs[_i].code, wrongs[_i].says);
    free(m.p);
}
END_TEST

/* ---- GGUFs of families with experts, each with something wrong ------------------------------- */

typedef struct edit {
    enum {
        RENAMED, /* the first key or tensor of that name, by one of its length */
        VALUE,   /* a key's number of 32 bits, or its flag */
        ADDED,   /* such a key, before all others */
        DIM,     /* a tensor's innermost dimension */
        TYPE,    /* of a tensor of two dimensions */
    } what;
    const char *name, *by;
    uint32_t value;
} edit;

static uint8_t *put(uint8_t *at, const void *value, size_t n)
{
    memcpy(at, value, n);
    return at + n;
}

static uint8_t *put_text(uint8_t *at, const char *s, size_t n)
{
    uint64_t len = n;
    return put(put(at, &len, 8), s, n);
}

/* And one of text behind it, so that tensors, which lie on multiples of 32, move by as much. */
static void add_key(image *m, const char *name, uint32_t value)
{
    static const char spaces[32] = "                               ";
    const uint32_t number = 4, text = 8;
    uint8_t key[256], *at = key;
    uint64_t n;
    memcpy(&n, m->p + 16, 8);
    n += 2;
    memcpy(m->p + 16, &n, 8);
    at = put(put(put_text(at, name, strlen(name)), &number, 4), &value, 4);
    at = put(put_text(at, "x", 1), &text, 4);
    size_t len = (size_t)(at - key) + 8, fill = (32 - len % 32) % 32;
    at = put_text(at, spaces, fill);
    memmove(m->p + 24 + len + fill, m->p + 24, m->n - 24);
    memcpy(m->p + 24, key, len + fill);
    m->n += len + fill;
}

static void apply(image *m, const edit *e)
{
    uint8_t *behind = e->what == ADDED ? NULL : find_text(m, e->name) + strlen(e->name);
    uint64_t wide = e->value;
    switch (e->what) {
    case RENAMED: replace(m, e->name, e->by); return;
    case VALUE: memcpy(behind + 4, &e->value, behind[0] == 7 ? 1 : 4); return;
    case ADDED: add_key(m, e->name, e->value); return;
    case DIM: memcpy(behind + 4, &wide, 8); return;
    case TYPE: retype(m, e->name, e->value); return;
    }
}

static const struct {
    const char *file;
    edit e;
    err_code code;
    const char *says;
} mixed[] = {
    {"qwen3.5-moe",
     {RENAMED, "qwen35moe", "falcon-h1", 0},
     ERR_UNSUPPORTED,
     "'falcon-h1' is not supported: its weights are multiplied already"},
    {"qwen3.5",
     {VALUE, "qwen35.ssm.inner_size", NULL, 63},
     ERR_UNSUPPORTED,
     "qwen35.ssm.inner_size is no multiple of ssm.time_step_rank"},
    {"granite-hybrid",
     {RENAMED, "blk.0.ssm_in.weight", "blk.0.ssm_ix.weight", 0},
     ERR_INPUT,
     "'blk.0.ssm_in.weight' is missing"},
    {"lfm2",
     {RENAMED, "blk.0.shortconv.in_proj.weight", "blk.0.shortconv.ix_proj.weight", 0},
     ERR_INPUT,
     "layer 0 has no mixer that is known"},
    {"gpt-oss",
     {RENAMED, "blk.1.attn_sinks.weight", "blk.1.attn_sinkz.weight", 0},
     ERR_INPUT,
     "'blk.1.attn_sinks.weight' is missing"},
    {"gpt-oss",
     {RENAMED, "blk.0.ffn_up_exps.bias", "blk.0.ffn_up_expz.bias", 0},
     ERR_INPUT,
     "'blk.0.ffn_up_exps.bias' is missing"},
    {"gpt-oss",
     {RENAMED, "blk.0.ffn_gate_inp.bias", "blk.0.ffn_gate_inz.bias", 0},
     ERR_INPUT,
     "'blk.0.ffn_gate_inp.bias' is missing"},
    {"gpt-oss",
     {DIM, "blk.0.ffn_down_exps.weight", NULL, 24},
     ERR_INPUT,
     "has shape [5, 64, 24], config.json asks for [5, 64, 48]"},
    {"gpt-oss",
     {VALUE, "gpt-oss.expert_count", NULL, 0},
     ERR_UNSUPPORTED,
     "gpt-oss.expert_count is missing"},
    {"gpt-oss",
     {ADDED, "gpt-oss.expert_gating_func", NULL, 2},
     ERR_UNSUPPORTED,
     "gpt-oss.expert_gating_func is not supported"},
    {"gpt-oss-mxfp4",
     {TYPE, "blk.0.ffn_up_exps.bias", NULL, 39},
     ERR_UNSUPPORTED,
     "'blk.0.ffn_up_exps.bias' has type MXFP4"},
    {"deepseek-v3",
     {VALUE, "deepseek2.expert_gating_func", NULL, 3},
     ERR_UNSUPPORTED,
     "deepseek2.expert_gating_func other than softmax or sigmoid"},
    {"deepseek-v3",
     {VALUE, "deepseek2.expert_gating_func", NULL, 1},
     ERR_UNSUPPORTED,
     "deepseek2.expert_weights_norm beside a softmax"},
    {"deepseek-v3-halves",
     {VALUE, "deepseek2.expert_gating_func", NULL, 1},
     ERR_UNSUPPORTED,
     "'blk.0.exp_probs_b.bias' belongs to no part of a deepseek_v2 model"},
    {"deepseek-v3", {VALUE, "deepseek2.expert_group_count", NULL, 3}, ERR_INPUT, "n_group"},
    {"deepseek-v3",
     {RENAMED, "blk.1.exp_probs_b.bias", "blk.1.exp_probs_c.bias", 0},
     ERR_INPUT,
     "'blk.1.exp_probs_b.bias' is missing"},
    {"deepseek-v3",
     {RENAMED, "blk.1.attn_k_b.weight", "blk.1.attn_x_b.weight", 0},
     ERR_INPUT,
     "'blk.1.attn_k_b.weight' is missing"},
    {"deepseek-v3",
     {RENAMED, "blk.2.attn_v_b.weight", "blk.2.attn_x_b.weight", 0},
     ERR_INPUT,
     "'blk.2.attn_v_b.weight' is missing"},
    {"deepseek-v3",
     {RENAMED, "blk.2.ffn_up_shexp.weight", "blk.2.ffn_up_shexq.weight", 0},
     ERR_INPUT,
     "'blk.2.ffn_up_shexp.weight' is missing"},
    {"deepseek-v3",
     {DIM, "blk.1.attn_k_b.weight", NULL, 6},
     ERR_INPUT,
     "has shape [4, 24, 6], config.json asks for [4, 24, 12]"},
    {"deepseek-v3",
     {DIM, "blk.1.attn_v_b.weight", NULL, 12},
     ERR_INPUT,
     "has shape [4, 16, 12], config.json asks for [4, 16, 24]"},
    {"deepseek-v3",
     {VALUE, "deepseek2.attention.head_count_kv", NULL, 4},
     ERR_UNSUPPORTED,
     "deepseek2.attention.head_count_kv other than 1"},
    {"deepseek-v3",
     {VALUE, "deepseek2.attention.key_length", NULL, 33},
     ERR_UNSUPPORTED,
     "deepseek2.attention.key_length is not"},
    {"deepseek-v3",
     {VALUE, "deepseek2.attention.value_length", NULL, 25},
     ERR_UNSUPPORTED,
     "deepseek2.attention.value_length is not"},
    {"deepseek-v3",
     {VALUE, "deepseek2.attention.key_length_mla", NULL, 8},
     ERR_UNSUPPORTED,
     "deepseek2.rope.dimension_count must be part"},
    {"deepseek-v3",
     {VALUE, "deepseek2.leading_dense_block_count", NULL, 0},
     ERR_INPUT,
     "'blk.0.ffn_gate_shexp.weight' is missing"},
    {"deepseek-v3",
     {ADDED, "deepseek2.nextn_predict_layers", NULL, 3},
     ERR_UNSUPPORTED,
     "deepseek2.nextn_predict_layers leaves no layer"},
    {"deepseek-v3",
     {ADDED, "deepseek2.attention.temperature_scale", NULL, 1},
     ERR_UNSUPPORTED,
     "deepseek2.attention.temperature_scale is not supported"},
    {"deepseek-v2-lite",
     {RENAMED, "blk.1.attn_kv_b.weight", "blk.1.attn_kx_b.weight", 0},
     ERR_INPUT,
     "'blk.1.attn_k_b.weight' is missing"},
    {"deepseek-v2-lite",
     {VALUE, "deepseek2.attention.head_count_kv", NULL, 1},
     ERR_UNSUPPORTED,
     "deepseek2.attention.head_count_kv other than head_count"},
    {"llama4",
     {VALUE, "llama4.interleave_moe_layer_step", NULL, 1},
     ERR_INPUT,
     "'blk.0.ffn_gate_shexp.weight' is missing"},
    {"llama4",
     {ADDED, "llama4.attention.sliding_window", NULL, 0},
     ERR_UNSUPPORTED,
     "llama4.attention.sliding_window other than 8192"},
    {"llama4", {ADDED, "llama4.attention.sliding_window", NULL, 8192}, ERR_NONE, ""},
    {"llama4",
     {RENAMED, "blk.1.ffn_gate_exps.weight", "blk.1.ffn_gate_expz.weight", 0},
     ERR_INPUT,
     "'blk.1.ffn_gate_exps.weight' is missing"},
    {"granitemoe",
     {ADDED, "granitemoe.expert_weights_scale", NULL, 2},
     ERR_UNSUPPORTED,
     "granitemoe.expert_weights_scale is not supported"},
};

START_TEST(wrong_mixtures_are_refused)
{
    char path[128];
    snprintf(path, sizeof(path), "fixtures/families/gguf/%s.gguf", mixed[_i].file);
    image m = read_image(path);
    apply(&m, &mixed[_i].e);
    expect(&m, mixed[_i].code, mixed[_i].says);
    free(m.p);
}
END_TEST

/* Each file as it is is taken, or the cases above would say little. */
START_TEST(whole_mixtures_are_taken)
{
    static const char *const files[] = {"gpt-oss",     "gpt-oss-mxfp4",    "deepseek-v3",
                                        "deepseek-v2", "deepseek-v2-lite", "deepseek-v3-halves",
                                        "llama4",      "granitemoe"};
    char path[128];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "fixtures/families/gguf/%s.gguf", files[i]);
        image m = read_image(path);
        expect(&m, ERR_NONE, "");
        free(m.p);
    }
}
END_TEST

/* What no answer of so small a model tells: GPT-OSS' borders stay as they are, DeepSeek's are
 * rounded as llama.cpp does it. */
START_TEST(yarn_is_the_familys)
{
    model_config c;
    err e = {0};
    ck_assert_msg(!model_config_read("fixtures/families/gguf/gpt-oss.gguf", &c, &e), "%s", e.msg);
    ck_assert_int_eq(c.rope.kind, ROPE_YARN);
    ck_assert(!c.rope.truncate);
    ck_assert(!model_config_read("fixtures/families/gguf/deepseek-v3.gguf", &c, &e));
    ck_assert_int_eq(c.rope.kind, ROPE_YARN);
    ck_assert(c.rope.truncate);
}
END_TEST

/* ---- values ---------------------------------------------------------------------------------- */

/* The OCP's table; the scale's byte is an exponent, and as in ggml 255 is one, too. */
START_TEST(mxfp4_is_as_ggml_has_it)
{
    static const float e2m1[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    static const uint8_t scales[4] = {0, 1, 127, 255};
    uint8_t data[4 * 17];
    float out[128];
    for (int i = 0; i < 4; i++) {
        data[17 * i] = scales[i];
        for (int k = 0; k < 16; k++) data[17 * i + 1 + k] = (uint8_t)(k | (15 - k) << 4);
    }
    stored s = {.src = {.rows = 1, .cols = 128}};
    ck_assert(stored_take_ggml(&s, GGML_MXFP4, data, sizeof(data)));
    ck_assert(stored_values(&s, 0, 1, DT_F32, out));
    for (int i = 0; i < 128; i++) {
        int k = i % 16, code = i % 32 < 16 ? k : 15 - k;
        float v = ldexpf(code < 8 ? e2m1[code] : -e2m1[code - 8], scales[i / 32] - 127);
        ck_assert_msg(out[i] == v, "column %d: %g, not %g", i, (double)out[i], (double)v);
    }
}
END_TEST

/* Of 2 heads, keys of 32 values by their codes and values of 3 plain ones, of a latent of 64. */
START_TEST(keys_and_values_are_put_together)
{
    enum { HEADS = 2, NOPE = 32, V = 3, RANK = 64, EACH = NOPE + V, ROWS = HEADS * EACH };
    static uint8_t codes[HEADS * RANK * 34];
    static float plain[HEADS * V * RANK], want[ROWS * RANK], got[ROWS * RANK];
    for (size_t i = 0; i < sizeof(codes); i++) codes[i] = (uint8_t)(i * 37 + i / 34);
    for (size_t i = 0; i < HEADS * RANK; i++) codes[34 * i + 1] = (uint8_t)(0x30 + i % 8);
    for (int i = 0; i < HEADS * V * RANK; i++) plain[i] = (float)i;
    stored s = {.src = {.rows = ROWS, .cols = RANK}};
    s.half = calloc(2, sizeof(*s.half));
    ck_assert_ptr_nonnull(s.half);
    s.half[0].src = (weight_source){.rows = HEADS * RANK, .cols = NOPE};
    s.half[1].src = (weight_source){.rows = HEADS * V, .cols = RANK};
    ck_assert(stored_take_ggml(&s.half[0], GGML_Q8_0, codes, sizeof(codes)));
    ck_assert(stored_take_ggml(&s.half[1], GGML_F32, (const uint8_t *)plain, sizeof(plain)));
    ck_assert(stored_coded(&s));
    for (int h = 0; h < HEADS; h++) {
        for (int k = 0; k < RANK; k++) {
            float key[NOPE];
            ck_assert(stored_values(&s.half[0], h * RANK + k, h * RANK + k + 1, DT_F32, key));
            for (int i = 0; i < NOPE; i++) want[(h * EACH + i) * RANK + k] = key[i];
            for (int i = 0; i < V; i++)
                want[(h * EACH + NOPE + i) * RANK + k] = plain[(h * V + i) * RANK + k];
        }
    }
    for (int from = 0; from < ROWS; from++)
        for (int to = from + 1; to <= ROWS; to++) {
            memset(got, 255, sizeof(got));
            ck_assert(stored_values(&s, from, to, DT_F32, got));
            size_t n = (size_t)(to - from) * RANK * sizeof(*got);
            ck_assert_mem_eq(got, want + from * RANK, n);
        }
    stored_clear(&s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quant");
    TCase *t = tcase_create("quant");
    tcase_add_loop_test(t, values_are_the_librarys, 0, MODELS);
    tcase_add_loop_test(t, survey_finds_all, 0, MODELS);
    tcase_add_loop_test(t, codes_serve_as_their_values, 0, MODELS);
    tcase_add_loop_test(t, wrong_files_are_refused, 0, sizeof(wrongs) / sizeof(wrongs[0]));
    tcase_add_loop_test(t, wrong_mixtures_are_refused, 0, sizeof(mixed) / sizeof(mixed[0]));
    tcase_add_test(t, whole_mixtures_are_taken);
    tcase_add_test(t, yarn_is_the_familys);
    tcase_add_test(t, mxfp4_is_as_ggml_has_it);
    tcase_add_test(t, keys_and_values_are_put_together);
    suite_add_tcase(s, t);
    return run_suite(s);
}
