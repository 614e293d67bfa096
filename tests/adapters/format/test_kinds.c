/* test_kinds.c -- which LoHa, LoKr, VeRA and IA3 become LoRA, and which are refused and why.  That
 * what they become answers as PEFT does is test_golden.c's. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "adapters/format/kinds.h"
#include "tests/adapters/make_adapter.h"
#include "tests/run_suite.h"

#define CONFIG(type, rest)                                                                         \
    "{\"peft_type\":\"" type "\",\"task_type\":\"CAUSAL_LM\",\"target_modules\":[\"q_proj\"]" rest \
    "}"
#define R(r) ",\"r\":" #r ",\"alpha\":4"

enum { LINES = 7 };

typedef struct line {
    const char *name; /* with a dot: the whole name, once; else an ending of q_proj in each layer */
    int rows, cols;   /* cols 0: a vector */
} line;

typedef struct folder {
    const char *config;
    line line[LINES];
    int rank_max;
    uint64_t most;
    err_code code;
    const char *says; /* "": it is taken; NULL: it is none of these kinds */
} folder;

/* q_proj of the tiny base is 32 x 32. */
static const folder folders[] = {
    {CONFIG("LORA", R(3)), {{0}}, 0, 0, ERR_NONE, NULL},
    {"{\"peft_type\":7}", {{0}}, 0, 0, ERR_NONE, NULL},
    {"[1]", {{0}}, 0, 0, ERR_NONE, NULL},
    {"{", {{0}}, 0, 0, ERR_INPUT, "adapter_config.json"},
    {CONFIG("PROMPT_TUNING", ""), {{0}}, 0, 0, ERR_NONE, NULL},

#define LOHA(r)                                                       \
    {"hada_w1_a", 32, r}, {"hada_w1_b", r, 32}, {"hada_w2_a", 32, r}, \
    {                                                                 \
        "hada_w2_b", r, 32                                            \
    }
    {CONFIG("LOHA", R(3)), {LOHA(3)}, 0, 0, ERR_NONE, ""},
    {CONFIG("LOHA", R(16)), {LOHA(16)}, 0, 0, ERR_NONE, ""},
    {CONFIG("LOHA", R(17)), {LOHA(17)}, 0, 0, ERR_LIMIT, "has the rank 289; allowed are 256"},
    {CONFIG("LOHA", R(3)), {LOHA(3)}, 8, 0, ERR_LIMIT, "has the rank 9; allowed are 8"},
    {CONFIG("LOHA", R(16)), {LOHA(16)}, 0, 130000, ERR_LIMIT, "at most 130000"},
    {CONFIG("LOHA", R(4)), {LOHA(3)}, 0, 0, ERR_INPUT, "shape"},
    {CONFIG("LOHA", R(3)),
     {{"hada_w1_a", 32, 3}, {"hada_w1_b", 3, 32}, {"hada_w2_a", 32, 3}},
     0,
     0,
     ERR_INPUT,
     "missing"},
    {CONFIG("LOHA", R(3)), {LOHA(3), {"hada_t1", 3, 3}}, 0, 0, ERR_UNSUPPORTED, "hada_t1"},
    {CONFIG("LOHA", R(3)),
     {LOHA(3), {"base_model.model.lm_head.hada_w1_a", 64, 3}},
     0,
     0,
     ERR_UNSUPPORTED,
     "lm_head"},
    {CONFIG("LOHA", R(3)),
     {LOHA(3), {"base_model.model.model.layers.1.mlp.up_proj.hada_w1_a", 48, 3}},
     0,
     0,
     ERR_INPUT,
     "not covered by target_modules"},
    {CONFIG("LOHA", R(3) ",\"exclude_modules\":[\"layers.0.self_attn.q_proj\"]"),
     {LOHA(3)},
     0,
     0,
     ERR_INPUT,
     "not covered"},
    {CONFIG("LOHA", R(3)),
     {{"base_model.model.model.layers.0.self_attn.q_proj.hada_w1_a", 32, 3},
      {"base_model.model.model.layers.0.self_attn.q_proj.hada_w1_b", 3, 32},
      {"base_model.model.model.layers.0.self_attn.q_proj.hada_w2_a", 32, 3},
      {"base_model.model.model.layers.0.self_attn.q_proj.hada_w2_b", 3, 32}},
     0,
     0,
     ERR_INPUT,
     "model.layers.1.self_attn.q_proj, but it has no tensors"},
    {CONFIG("LOHA", R(3) ",\"modules_to_save\":[\"lm_head\"]"),
     {LOHA(3)},
     0,
     0,
     ERR_UNSUPPORTED,
     "modules_to_save"},
    {CONFIG("LOHA", R(3) ",\"use_dora\":true"), {LOHA(3)}, 0, 0, ERR_UNSUPPORTED, "use_dora"},
    {CONFIG("LOHA", R(3) ",\"rank_dropout\":0.5,\"bias\":\"none\",\"use_dora\":false"),
     {LOHA(3)},
     0,
     0,
     ERR_NONE,
     ""},

    {CONFIG("LOKR", R(2)),
     {{"lokr_w1", 4, 8}, {"lokr_w2_a", 8, 2}, {"lokr_w2_b", 2, 4}},
     0,
     0,
     ERR_NONE,
     ""},
    {CONFIG("LOKR", R(2)),
     {{"lokr_w1_a", 4, 2}, {"lokr_w1_b", 2, 8}, {"lokr_w2_a", 8, 2}, {"lokr_w2_b", 2, 4}},
     0,
     0,
     ERR_NONE,
     ""},
    {CONFIG("LOKR", R(2)), {{"lokr_w1", 4, 8}, {"lokr_w2", 8, 4}}, 15, 0, ERR_LIMIT, "the rank 16"},
    {CONFIG("LOKR", R(2)), {{"lokr_w1", 4, 4}, {"lokr_w2", 8, 4}}, 0, 0, ERR_INPUT, "shape"},
    {CONFIG("LOKR", R(2)), {{"lokr_w1", 4, 8}}, 0, 0, ERR_INPUT, "missing"},
    {CONFIG("LOKR", R(2)),
     {{"lokr_w1", 4, 8}, {"lokr_w1_a", 4, 2}, {"lokr_w2", 8, 4}},
     0,
     0,
     ERR_INPUT,
     "shape"},

#define SHARED                     \
    {"base_model.vera_A", 5, 40},  \
    {                              \
        "base_model.vera_B", 48, 5 \
    }
    {CONFIG("VERA", ",\"r\":5"),
     {{"vera_lambda_b", 32, 0}, {"vera_lambda_d", 5, 0}, SHARED},
     0,
     0,
     ERR_NONE,
     ""},
    {CONFIG("VERA", ",\"r\":5"),
     {{"vera_lambda_b", 32, 0}, {"vera_lambda_d", 5, 0}},
     0,
     0,
     ERR_UNSUPPORTED,
     "save_projection=True"},
    {CONFIG("VERA", ",\"r\":6"),
     {{"vera_lambda_b", 32, 0}, {"vera_lambda_d", 6, 0}, SHARED},
     0,
     0,
     ERR_INPUT,
     "too small"},
    {CONFIG("VERA", ",\"r\":5"),
     {{"vera_lambda_b", 31, 0}, {"vera_lambda_d", 5, 0}, SHARED},
     0,
     0,
     ERR_INPUT,
     "vera_lambda_b"},

    {CONFIG("IA3", ",\"feedforward_modules\":[]"), {{"ia3_l", 32, 1}}, 0, 0, ERR_NONE, ""},
    {CONFIG("IA3", ""), {{"ia3_l", 1, 32}}, 0, 0, ERR_UNSUPPORTED, "down_proj of a gated MLP"},
    {CONFIG("IA3", ""), {{"ia3_l", 32, 0}}, 0, 0, ERR_INPUT, "shape"},
};

static int file_of(const void *data, size_t len)
{
    char name[] = "/tmp/lorad-kinds-XXXXXX";
    int fd = mkstemp(name);
    ck_assert_int_ge(fd, 0);
    unlink(name);
    ck_assert_int_eq(write(fd, data, len), (ssize_t)len);
    return fd;
}

static bytes weights_of(const folder *f, const model_config *base)
{
    st_maker m = {0};
    char name[160];
    for (int i = 0; i < LINES && f->line[i].name; i++) {
        const line *l = &f->line[i];
        bool whole = strchr(l->name, '.') != NULL;
        for (int layer = 0; layer < (whole ? 1 : base->n_layer); layer++) {
            snprintf(name, sizeof name,
                     whole ? "%s" : "%s.model.model.layers.%d.self_attn.q_proj.%s",
                     whole ? l->name : "base_model", layer, l->name);
            st_tensor_add(&m, name, "F32", l->rows, l->cols, 0.25F);
        }
    }
    return st_finish(&m);
}

START_TEST(what_is_a_product_becomes_one)
{
    const folder *f = &folders[_i];
    model_config base = tiny_base();
    bytes weights = weights_of(f, &base);
    int config = file_of(f->config, strlen(f->config)), in = file_of(weights.p, weights.n);
    kinds *k;
    err e = {0};
    err_code rc = kinds_open(&k, config, in, &base, f->rank_max, f->most ? f->most : 1 << 20, &e);
    ck_assert_msg(rc == f->code, "%s: %d, %s", f->config, rc, e.msg);
    if (rc) ck_assert_msg(strstr(e.msg, f->says) != NULL, "%s: %s", f->config, e.msg);
    ck_assert_int_eq(k != NULL, rc == ERR_NONE && f->says != NULL);
    if (k) {
        int to = file_of("", 0), out = file_of("", 0);
        ck_assert_msg(kinds_write(k, to, out, &e) == ERR_NONE, "%s: %s", f->config, e.msg);
        ck_assert_uint_le((uint64_t)lseek(out, 0, SEEK_CUR), kinds_bytes(k));
        ck_assert_int_gt(lseek(to, 0, SEEK_CUR), 100);
        close(to);
        close(out);
    }
    kinds_close(k);
    close(config);
    close(in);
    bytes_free(&weights);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kinds");
    TCase *tc = tcase_create("kinds");
    tcase_add_loop_test(tc, what_is_a_product_becomes_one, 0,
                        (int)(sizeof folders / sizeof(*folders)));
    suite_add_tcase(s, tc);
    return run_suite(s);
}
