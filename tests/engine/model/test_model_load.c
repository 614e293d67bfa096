/* test_model_load.c -- models whose files do not hold what config.json promises.
 *
 * A model of a few hundred weights is written tensor by tensor, with one thing wrong; loading must
 * say which, by a sentence with the tensor's name, before it takes memory for it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#include "engine/model/model.h"
#include "tests/engine/plain_backend.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static const char config_text[] =
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":12,"
    "\"vocab_size\":10,\"max_position_embeddings\":64%s}";

typedef struct entry {
    char name[96];
    const char *type;
    int ndim, shape[3];
} entry;

typedef struct list {
    entry e[64];
    int n;
} list;

static char dir[64];
static backend *be;

static void path_of(char *out, size_t size, const char *name)
{
    ck_assert_int_lt(snprintf(out, size, "%s/%s", dir, name), (int)size);
}

static void write_bytes(const char *name, const void *bytes, size_t n)
{
    char path[128];
    path_of(path, sizeof(path), name);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    (void)fclose(f);
}

static void setup(void)
{
    err e;
    backend_config cfg = {0};
    tmpdir_make(dir);
    ck_assert_int_eq(be_open(&be, &backend_plain, &cfg, &e), ERR_NONE);
}

static void teardown(void)
{
    be_close(be);
    tmpdir_remove(dir);
}

/* ------------------------------------------------------------------------------ files -- */

static void add(list *l, const char *name, int rows, int cols)
{
    entry *e = &l->e[l->n++];
    ck_assert_int_lt(l->n, 64);
    *e = (entry){.type = "F32", .ndim = cols ? 2 : 1, .shape = {rows, cols, 1}};
    snprintf(e->name, sizeof(e->name), "%s", name);
}

static list good_list(void)
{
    static const struct {
        const char *name;
        int rows, cols;
    } layer[] = {
        {"self_attn.q_proj", 8, 8}, {"self_attn.k_proj", 4, 8}, {"self_attn.v_proj", 4, 8},
        {"self_attn.o_proj", 8, 8}, {"mlp.gate_proj", 12, 8},   {"mlp.up_proj", 12, 8},
        {"mlp.down_proj", 8, 12},   {"input_layernorm", 8, 0},  {"post_attention_layernorm", 8, 0},
    };
    list l = {.n = 0};
    add(&l, "model.embed_tokens.weight", 10, 8);
    add(&l, "model.norm.weight", 8, 0);
    add(&l, "lm_head.weight", 10, 8);
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < sizeof(layer) / sizeof(layer[0]); k++) {
            char name[96];
            snprintf(name, sizeof(name), "model.layers.%d.%s.weight", i, layer[k].name);
            add(&l, name, layer[k].rows, layer[k].cols);
        }
    }
    return l;
}

static entry *entry_of(list *l, const char *name)
{
    for (int i = 0; i < l->n; i++) {
        if (strcmp(l->e[i].name, name) == 0) return &l->e[i];
    }
    ck_abort_msg("no tensor %s", name);
    return NULL;
}

static size_t entry_bytes(const entry *e)
{
    size_t n = 1;
    for (int i = 0; i < e->ndim; i++) n *= (size_t)e->shape[i];
    const char *digits = strpbrk(e->type, "1368");
    return n * (size_t)atoi(digits ? digits : "8") / 8;
}

/* Entries [from, to) as a file; `pad` spaces behind the header; values count up from 1/64. */
static void write_list(const char *name, const list *l, int from, int to, int pad)
{
    static char h[16384];
    size_t at = (size_t)sprintf(h, "{"), data = 0;
    for (int i = from; i < to; i++) {
        const entry *e = &l->e[i];
        at += (size_t)sprintf(h + at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i > from ? "," : "",
                              e->name, e->type);
        for (int k = 0; k < e->ndim; k++) {
            at += (size_t)sprintf(h + at, "%s%d", k ? "," : "", e->shape[k]);
        }
        at += (size_t)sprintf(h + at, "],\"data_offsets\":[%zu,%zu]}", data, data + entry_bytes(e));
        data += entry_bytes(e);
    }
    at += (size_t)sprintf(h + at, "}");
    while ((at + 8) % 8 != (size_t)pad) h[at++] = ' ';

    uint8_t *file = calloc(1, 8 + at + data);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)at >> (8 * i));
    memcpy(file + 8, h, at);
    for (size_t i = 0; i + 4 <= data; i += 4) {
        float v = (float)(i / 4 % 31 + 1) / 64.0F;
        memcpy(file + 8 + at + i, &v, 4);
    }
    write_bytes(name, file, 8 + at + data);
    free(file);
}

static void write_config(const char *extra)
{
    char text[1024];
    int n = snprintf(text, sizeof(text), config_text, extra);
    write_bytes("config.json", text, (size_t)n);
}

static void expect(err_code code, const char *says)
{
    model *m;
    err e = {0};
    err_code rc = model_load(&m, dir, be, 4, 4, &e);
    ck_assert_msg(rc == code, "got %d (%s), want %d (%s)", rc, e.msg, code, says);
    if (rc) {
        ck_assert_ptr_null(m);
        ck_assert_msg(strstr(e.msg, says) != NULL, "says '%s', not '%s'", e.msg, says);
        ck_assert_ptr_null(strstr(e.msg, dir));
        ck_assert_int_eq(model_load(&m, dir, be, 4, 4, NULL), code);
    }
    model_destroy(m);
}

/* -------------------------------------------------------------------------------- cases -- */

/* One change to the good list. */
static const struct {
    const char *name;   /* tensor to change; NULL: none */
    const char *rename; /* its new name; "": drop it */
    const char *type;   /* its new dtype, or NULL */
    int ndim, shape[3]; /* its new shape, where ndim > 0 */
    const char *config; /* appended to the configuration */
    err_code code;
    const char *says;
} changes[] = {
    {NULL, NULL, NULL, 0, {0}, "", ERR_NONE, ""},
    {"lm_head.weight", "", NULL, 0, {0}, "", ERR_INPUT, "'lm_head.weight' is missing"},
    {"lm_head.weight", "", NULL, 0, {0}, ",\"tie_word_embeddings\":true", ERR_NONE, ""},
    {NULL,
     NULL,
     NULL,
     0,
     {0},
     ",\"tie_word_embeddings\":true",
     ERR_UNSUPPORTED,
     "differs from the embedding"},
    {"model.norm.weight", "", NULL, 0, {0}, "", ERR_INPUT, "'model.norm.weight' is missing"},
    {"model.norm.weight", "norm.weight", NULL, 0, {0}, "", ERR_INPUT, "is missing"},
    {"model.layers.1.mlp.up_proj.weight",
     "",
     NULL,
     0,
     {0},
     "",
     ERR_INPUT,
     "'model.layers.1.mlp.up_proj.weight' is missing"},
    {"model.layers.1.mlp.up_proj.weight",
     "model.layers.1.mlp.up_proj.qweight",
     NULL,
     0,
     {0},
     "",
     ERR_INPUT,
     "is missing"},
    {NULL, NULL, NULL, 0, {0}, ",\"attention_bias\":true", ERR_INPUT, "q_proj.bias' is missing"},
    {NULL, NULL, NULL, 0, {0}, ",\"mlp_bias\":true", ERR_INPUT, "gate_proj.bias' is missing"},
    /* shapes */
    {"model.embed_tokens.weight", NULL, NULL, 2, {11, 8}, "", ERR_INPUT, "[11, 8]"},
    {"model.layers.0.mlp.down_proj.weight",
     NULL,
     NULL,
     2,
     {12, 8},
     "",
     ERR_INPUT,
     "config.json asks for [8, 12]"},
    {"model.layers.0.mlp.down_proj.weight", NULL, NULL, 1, {96}, "", ERR_INPUT, "[96]"},
    {"model.layers.0.mlp.down_proj.weight", NULL, NULL, 3, {8, 12, 1}, "", ERR_INPUT, "[8, 12, 1]"},
    {"model.layers.0.input_layernorm.weight", NULL, NULL, 2, {8, 1}, "", ERR_INPUT, "asks for [8]"},
    {NULL, NULL, NULL, 0, {0}, ",\"head_dim\":8", ERR_INPUT, "q_proj.weight' has shape [8, 8]"},
    {NULL, NULL, NULL, 0, {0}, ",\"num_key_value_heads\":2", ERR_INPUT, "num_key_value_heads"},
    /* dtypes */
    {"model.layers.0.mlp.up_proj.weight", NULL, "I8", 0, {0}, "", ERR_UNSUPPORTED, "dtype I8"},
    {"model.norm.weight", NULL, "I32", 0, {0}, "", ERR_UNSUPPORTED, "dtype I32"},
    {"model.layers.0.mlp.up_proj.weight",
     NULL,
     "F16",
     0,
     {0},
     "",
     ERR_UNSUPPORTED,
     "differ in dtype"},
    {"model.layers.0.mlp.up_proj.weight",
     NULL,
     "BF16",
     0,
     {0},
     "",
     ERR_UNSUPPORTED,
     "differ in dtype"},
    {"model.norm.weight", NULL, "BF16", 0, {0}, "", ERR_NONE, ""},
    {"model.embed_tokens.weight", NULL, "F16", 0, {0}, "", ERR_NONE, ""},
    {"lm_head.weight", NULL, "F16", 0, {0}, "", ERR_NONE, ""},
};

START_TEST(one_change)
{
    list l = good_list();
    if (changes[_i].name) {
        entry *e = entry_of(&l, changes[_i].name);
        if (changes[_i].type) e->type = changes[_i].type;
        if (changes[_i].ndim) {
            e->ndim = changes[_i].ndim;
            memcpy(e->shape, changes[_i].shape, sizeof(e->shape));
        }
        if (changes[_i].rename && *changes[_i].rename) {
            snprintf(e->name, sizeof(e->name), "%s", changes[_i].rename);
        } else if (changes[_i].rename) {
            *e = l.e[--l.n];
        }
    }
    write_list("model.safetensors", &l, 0, l.n, 0);
    write_config(changes[_i].config);
    expect(changes[_i].code, changes[_i].says);
}
END_TEST

/* Values repeat every 31: with 44 between, the output layer begins as the embedding does. */
START_TEST(a_tied_output_layer_that_is_the_embedding)
{
    list all = good_list(), l = {.n = 0};
    add(&l, "model.embed_tokens.weight", 10, 8);
    add(&l, "model.rotary_emb.inv_freq", 44, 0);
    add(&l, "lm_head.weight", 10, 8);
    for (int i = 0; i < all.n; i++) {
        bool there = !strcmp(all.e[i].name, l.e[0].name) || !strcmp(all.e[i].name, l.e[2].name);
        if (!there) l.e[l.n++] = all.e[i];
    }
    write_list("model.safetensors", &l, 0, l.n, 0);
    write_config(",\"tie_word_embeddings\":true");
    expect(ERR_NONE, "");
}
END_TEST

START_TEST(leftover_tensors)
{
    static const char *const unknown[] = {
        "model.layers.2.mlp.up_proj.weight",    "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.q_proj.bias", "model.layers.0.mlp.up_proj.weight_scale",
        "model.layers.00.mlp.up_proj.weight",   "x"};
    write_config("");
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        list l = good_list();
        add(&l, unknown[i], 8, 0);
        write_list("model.safetensors", &l, 0, l.n, 0);
        expect(ERR_UNSUPPORTED, unknown[i]);
    }
    list l = good_list();
    add(&l, "model.layers.0.self_attn.rotary_emb.inv_freq", 2, 0);
    write_list("model.safetensors", &l, 0, l.n, 0);
    expect(ERR_NONE, "");
}
END_TEST

/* What guesses more tokens is left out, of a family that has it. */
START_TEST(spare_tensors)
{
    static const char *const norms[] = {"q_norm", "k_norm"};
    static const char qwen[] =
        "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":8,\"num_hidden_layers\":2,\"head_dim\":4,"
        "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":12,"
        "\"vocab_size\":10,\"partial_rotary_factor\":0.5,\"full_attention_interval\":1}";
    for (int gated = 0; gated < 2; gated++) {
        list l = good_list();
        char name[96];
        for (int i = 0; i < 2 && gated; i++) {
            snprintf(name, sizeof(name), "model.layers.%d.self_attn.q_proj.weight", i);
            entry_of(&l, name)->shape[0] = 16;
            for (int k = 0; k < 2; k++) {
                snprintf(name, sizeof(name), "model.layers.%d.self_attn.%s.weight", i, norms[k]);
                add(&l, name, 4, 0);
            }
        }
        add(&l, "mtp.layers.0.mlp.up_proj.weight", 12, 8);
        write_list("model.safetensors", &l, 0, l.n, 0);
        write_config("");
        if (gated) write_bytes("config.json", qwen, sizeof(qwen) - 1);
        expect(gated ? ERR_NONE : ERR_UNSUPPORTED, "mtp.layers.0");
    }
}
END_TEST

/* Dimensions that would need terabytes fail on the first tensor's shape. */
START_TEST(absurd_dimensions)
{
    list l = good_list();
    write_list("model.safetensors", &l, 0, l.n, 0);
    static const char text[] =
        "{\"model_type\":\"llama\",\"hidden_size\":131072,\"num_hidden_layers\":1024,"
        "\"num_attention_heads\":1024,\"intermediate_size\":1048576,\"vocab_size\":4194304,"
        "\"max_position_embeddings\":4194304}";
    write_bytes("config.json", text, strlen(text));
    expect(ERR_INPUT, "'lm_head.weight' has shape [10, 8]");
    static const char experts[] =
        "{\"model_type\":\"mixtral\",\"hidden_size\":8,\"num_hidden_layers\":1024,"
        "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":12,"
        "\"vocab_size\":10,\"max_position_embeddings\":64,\"num_local_experts\":1024}";
    write_bytes("config.json", experts, strlen(experts));
    expect(ERR_LIMIT, "1024 layers of 1024 experts have more than 524288 tensors");
}
END_TEST

START_TEST(damaged_files)
{
    char path[128];
    struct stat st;
    list l = good_list();
    write_config("");
    expect(ERR_NOT_FOUND, "neither model.safetensors");
    write_bytes("pytorch_model.bin", "PK", 2);
    expect(ERR_NOT_FOUND, "safetensors are read");
    write_bytes("model.safetensors", "", 0);
    expect(ERR_CORRUPT, "model.safetensors: ");
    write_list("model.safetensors", &l, 0, l.n, 0);
    path_of(path, sizeof(path), "model.safetensors");
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(truncate(path, st.st_size - 1), 0);
    expect(ERR_CORRUPT, "cut short");
    ck_assert_int_eq(truncate(path, 100), 0);
    expect(ERR_CORRUPT, "longer than the file");
}
END_TEST

static void write_index(const list *l, int n_one, const char *one, const char *two)
{
    static char text[8192];
    size_t at = (size_t)sprintf(text, "{\"weight_map\":{");
    for (int i = 0; i < l->n; i++) {
        at += (size_t)sprintf(text + at, "%s\"%s\":\"%s\"", i ? "," : "", l->e[i].name,
                              i < n_one ? one : two);
    }
    at += (size_t)sprintf(text + at, "}}");
    write_bytes("model.safetensors.index.json", text, at);
}

START_TEST(sharded)
{
    list l = good_list();
    write_config("");
    write_list("one.safetensors", &l, 0, 9, 0);
    write_list("two.safetensors", &l, 9, l.n, 0);
    write_index(&l, 9, "one.safetensors", "two.safetensors");
    expect(ERR_NONE, "");
    write_index(&l, 8, "one.safetensors", "two.safetensors");
    expect(ERR_INPUT, "as the index says");
    write_index(&l, 9, "one.safetensors", "three.safetensors");
    expect(ERR_IO, "three.safetensors");
    write_index(&l, 9, "one.safetensors", "../two.safetensors");
    expect(ERR_INPUT, "plain file name");
    write_index(&l, 9, "/etc/passwd", "two.safetensors");
    expect(ERR_INPUT, "plain file name");
    write_index(&l, 9, "", "two.safetensors");
    expect(ERR_INPUT, "plain file name");
    write_list("two.safetensors", &l, 8, l.n, 0);
    write_index(&l, 9, "one.safetensors", "two.safetensors");
    expect(ERR_INPUT, "is in two files");
    write_bytes("model.safetensors.index.json", "{}", 2);
    expect(ERR_INPUT, "weight_map");
    write_bytes("model.safetensors.index.json", "{\"weight_map\":{}}", 17);
    expect(ERR_INPUT, "is missing");
    write_bytes("model.safetensors.index.json", "{", 1);
    expect(ERR_INPUT, "model.safetensors.index.json");
}
END_TEST

/* Logits of one token at position 0; `out` [10]. */
static void forward_one(float *out)
{
    model *m;
    kv_pool *kv;
    err e = {0};
    ck_assert_msg(model_load(&m, dir, be, 4, 4, &e) == ERR_NONE, "%s", e.msg);
    attn_shape shape = model_attn_shape(m);
    ck_assert_int_eq(be_kv_create(be, &kv, &shape, 1, &e), ERR_NONE);
    int32_t token = 3, pos = 0, page = 0, row = 0;
    step_seq seq = {0, 1, 0, &page, 1, 0};
    step_seg seg = {0, 1, NULL};
    step s = {1, &token, &pos, 1, &seq, 1, &seg, 1, &row, NULL, 0, NULL, 0};
    const float *logits;
    ck_assert_int_eq(model_forward(m, kv, &s, &logits, &e), ERR_NONE);
    memcpy(out, logits, 10 * sizeof(float));
    ck_assert_uint_gt(model_weight_bytes(m), 0);
    be_kv_destroy(be, kv);
    model_destroy(m);
}

/* Old writers did not align the data: the same numbers must come out. */
START_TEST(unaligned_data)
{
    list l = good_list();
    float want[10], got[10];
    write_config("");
    write_list("model.safetensors", &l, 0, l.n, 0);
    forward_one(want);
    ck_assert(want[0] != want[1]);
    for (int pad = 1; pad < 8; pad++) {
        write_list("model.safetensors", &l, 0, l.n, pad);
        forward_one(got);
        ck_assert_int_eq(memcmp(want, got, sizeof(want)), 0);
    }
}
END_TEST

/* A model that comes back after a fault is the one that was there, also where only a number of its
 * configuration would be another; what a request may set itself may have changed. */
START_TEST(another_one_comes_back)
{
    static const char *const other[] = {
        ",\"rope_theta\":5000", ",\"rms_norm_eps\":0.01",
        ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}"};
    list l = good_list();
    err e;
    model *m;
    write_config("");
    write_list("model.safetensors", &l, 0, l.n, 0);
    ck_assert_int_eq(model_load(&m, dir, be, 4, 4, &e), ERR_NONE);
    model_unload(m);
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        write_config(other[i]);
        ck_assert_msg(model_reload(m, &e) == ERR_CONFLICT, "%s", other[i]);
        ck_assert_str_eq(e.msg, "the model's files have changed");
    }
    write_config("");
    write_bytes("generation_config.json", "{\"temperature\":0.5}", 19);
    ck_assert_msg(model_reload(m, &e) == ERR_NONE, "%s", e.msg);
    model_destroy(m);
}
END_TEST

/* A backend that does not compute something says so, and which family asked. */
START_TEST(a_backend_without_extras)
{
    static const struct {
        unsigned extra;
        const char *model, *says;
    } lacks[] = {{EXTRA_EXPERTS, "mixtral", "family mixtral needs mixtures of experts"},
                 {EXTRA_SCAN, "granite-hybrid", "family granitemoehybrid needs selective scans"},
                 {EXTRA_SCAN, "falcon-h1", "family falcon_h1 needs selective scans"},
                 {EXTRA_CONV, "lfm2-moe", "family lfm2_moe needs short convolutions"},
                 {EXTRA_BARE_EXPERTS, "nemotron-h", "family nemotron_h needs experts without a"}};
    backend *lame;
    model *none;
    err why;
    char path[128];
    const backend_config cfg = {0};
    ck_assert_int_eq(be_open(&lame, &backend_plain, &cfg, &why), ERR_NONE);
    unsigned all = lame->caps.extras;
    for (size_t i = 0; i < sizeof(lacks) / sizeof(lacks[0]); i++) {
        lame->caps.extras = all & ~lacks[i].extra;
        snprintf(path, sizeof(path), "fixtures/families/models/%s", lacks[i].model);
        ck_assert_int_eq(model_load(&none, path, lame, 8, 8, &why), ERR_UNSUPPORTED);
        ck_assert_msg(strstr(why.msg, lacks[i].says) != NULL, "%s", why.msg);
    }
    be_close(lame);
}
END_TEST

/* Codes whose groups no backend packs become plain values: 12 columns share a scale. */
START_TEST(groups_of_other_sizes)
{
    backend *cpu;
    model *m;
    model_config c;
    model_survey survey;
    err e = {0};
    list l = good_list();
    entry_of(&l, "model.layers.0.mlp.down_proj.weight")->type = "I8";
    add(&l, "model.layers.0.mlp.down_proj.weight_scale", 8, 1);
    write_config(",\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
                 "\"format\":\"int-quantized\",\"config_groups\":{\"a\":{\"weights\":{"
                 "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"}}}}");
    write_list("model.safetensors", &l, 0, l.n, 0);
    const backend_config one = {.n_threads = 1, .isa = "auto"};
    ck_assert_int_eq(be_open(&cpu, &backend_cpu, &one, &e), ERR_NONE);
    ck_assert_int_eq(model_config_read(dir, &c, &e), ERR_NONE);
    ck_assert_msg(
        !model_survey_read(dir, &c, WEIGHTS_AUTO, &be_caps(cpu)->rules, false, 0, &survey, &e),
        "%s", e.msg);
    ck_assert(survey.by_codes == 0 && survey.dequantised == 1);
    ck_assert_msg(!model_load(&m, dir, cpu, 4, 4, &e), "%s", e.msg);
    model_destroy(m);
    be_close(cpu);
}
END_TEST

START_TEST(pages_that_are_too_small_for_latents)
{
    for (int n = 16; n <= 32; n *= 2) {
        backend *cpu;
        model *m;
        err e = {0};
        const char *path = "fixtures/families/models/deepseek-v2-lite";
        const backend_config cfg = {.n_threads = 1, .isa = "auto", .page_tokens = n};
        ck_assert_int_eq(be_open(&cpu, &backend_cpu, &cfg, &e), ERR_NONE);
        err_code rc = model_load(&m, path, cpu, 4, 4, &e);
        ck_assert_int_eq(rc, n < 32 ? ERR_UNSUPPORTED : ERR_NONE);
        if (rc)
            ck_assert_ptr_nonnull(strstr(e.msg, "engine.page_tokens must be at least 32"));
        else
            model_destroy(m);
        be_close(cpu);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("model_load");
    TCase *tc = tcase_create("load");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, one_change, 0, (int)(sizeof(changes) / sizeof(changes[0])));
    tcase_add_test(tc, a_tied_output_layer_that_is_the_embedding);
    tcase_add_test(tc, leftover_tensors);
    tcase_add_test(tc, spare_tensors);
    tcase_add_test(tc, absurd_dimensions);
    tcase_add_test(tc, damaged_files);
    tcase_add_test(tc, sharded);
    tcase_add_test(tc, unaligned_data);
    tcase_add_test(tc, another_one_comes_back);
    tcase_add_test(tc, a_backend_without_extras);
    tcase_add_test(tc, groups_of_other_sizes);
    tcase_add_test(tc, pages_that_are_too_small_for_latents);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
