/* test_experts.c -- adapters of mixtures of experts: which modules a configuration covers, and what
 * of a file is refused.
 *
 * The base has three layers of two experts; the second layer has one MLP, and beside the experts of
 * the others stands a shared one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "adapters/format/layout.h"
#include "adapters/format/validate.h"
#include "tests/run_suite.h"

enum { DIM = 32, FFN = 24, SHARED = 40, DENSE = 48, RANK = 4 };

static const model_config base = {
    .family = "qwen2_moe",
    .n_layer = 3,
    .dim = DIM,
    .n_head = 2,
    .n_kv_head = 1,
    .head_dim = 16,
    .ffn_dim = DENSE,
    .n_vocab = 100,
    .layer = {LAYER_EXPERTS, 0, LAYER_EXPERTS},
    .experts = {.n = 2, .top_k = 1, .ffn_dim = FFN, .shared_dim = SHARED},
};

static err e;

#define CONFIG(rest) "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8," rest "}"
#define ALL_MLP      "\"target_modules\":[\"gate_proj\",\"up_proj\",\"down_proj\"]"

static err_code parse(const char *text, bool experts, peft_config *pc)
{
    naming names = {.root = -1, .experts = experts};
    return peft_parse(text, strlen(text), &base, 0, &names, pc, &e);
}

static const peft_layer *expert_at(const peft_config *pc, int layer, int expert, proj p)
{
    return &pc->layer[peft_expert_slot(pc, layer, expert, p)];
}

START_TEST(test_targets)
{
    peft_config pc;
    char name[128];
    ck_assert_msg(parse(CONFIG(ALL_MLP), true, &pc) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(pc.n_wrapped, 3 * (2 * (2 + 1) + 1));
    for (int layer = 0; layer < 3; layer++) {
        ck_assert(expert_at(&pc, layer, 1, PROJ_UP)->wrapped == (layer != 1));
        ck_assert(peft_at(&pc, layer, PROJ_UP)->wrapped);
    }
    peft_slot_name(name, sizeof name, &base, &pc, peft_expert_slot(&pc, 2, 1, PROJ_DOWN));
    ck_assert_str_eq(name, "model.layers.2.mlp.experts.1.down_proj");
    peft_slot_name(name, sizeof name, &base, &pc, PROJ_GATE);
    ck_assert_str_eq(name, "model.layers.0.mlp.shared_expert.gate_proj");
    peft_clear(&pc);

    /* A file without tensors of single experts: the list's names are known, and wrap none. */
    ck_assert_msg(parse(CONFIG(ALL_MLP), false, &pc) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(pc.n_wrapped, 3 * 3);
    peft_clear(&pc);

    const char *some = CONFIG("\"target_modules\":\".*experts\\\\.1\\\\.(up|down)_proj\","
                              "\"rank_pattern\":{\"layers.2.*experts.1.up_proj\":7}");
    ck_assert_msg(parse(some, true, &pc) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(pc.n_wrapped, 4);
    ck_assert(!expert_at(&pc, 2, 0, PROJ_UP)->wrapped);
    ck_assert_int_eq(expert_at(&pc, 2, 1, PROJ_UP)->rank, 7);
    ck_assert_int_eq(expert_at(&pc, 2, 1, PROJ_DOWN)->rank, RANK);
    peft_clear(&pc);
    ck_assert_int_eq(parse(CONFIG("\"target_modules\":[\"gate\"]"), true, &pc), ERR_INPUT);
}
END_TEST

/* One tensor of the name and the shape in a file whose experts are all covered. */
static err_code place(adapter_layout *al, const char *name, uint64_t rows, uint64_t cols)
{
    st_tensor t = {.name = name, .dtype = ST_F32, .ndim = 2, .shape = {rows, cols}};
    t.count = rows * cols;
    t.bytes = 4 * t.count;
    return layout_place(al, &base, &t, &e);
}

START_TEST(test_tensors)
{
    static const struct {
        const char *name;
        uint64_t rows, cols;
        err_code code;
        const char *says;
    } cases[] = {
        {"model.layers.0.mlp.experts.1.gate_proj.lora_A.weight", RANK, DIM, ERR_NONE, ""},
        {"model.layers.0.mlp.experts.1.gate_proj.lora_A.weight", RANK, DIM, ERR_INPUT, "twice"},
        {"model.layers.0.mlp.experts.1.gate_proj.lora_B.weight", FFN, RANK, ERR_NONE, ""},
        {"model.layers.0.mlp.experts.0.down_proj.lora_A.weight", RANK, FFN, ERR_NONE, ""},
        {"model.layers.0.mlp.experts.0.down_proj.lora_B.weight", FFN, RANK, ERR_INPUT,
         "24 x 4; expected is 32 x 4"},
        {"model.layers.0.mlp.experts.0.up_proj.lora_B.weight", DENSE, RANK, ERR_INPUT,
         "48 x 4; expected is 24 x 4"},
        {"model.layers.0.mlp.experts.0.up_proj.lora_A.weight", RANK + 1, DIM, ERR_INPUT, "5 x 32"},
        {"model.layers.0.mlp.experts.2.up_proj.lora_A.weight", RANK, DIM, ERR_INPUT, "2 experts"},
        {"model.layers.1.mlp.experts.0.up_proj.lora_A.weight", RANK, DIM, ERR_INPUT, "0 experts"},
        {"model.layers.3.mlp.experts.0.up_proj.lora_A.weight", RANK, DIM, ERR_INPUT, "3 layers"},
        {"model.layers.0.mlp.up_proj.lora_A.weight", RANK, DIM, ERR_INPUT, "no such module"},
        {"model.layers.1.mlp.shared_expert.up_proj.lora_A.weight", RANK, DIM, ERR_INPUT,
         "no such module"},
        {"model.layers.0.mlp.shared_expert.up_proj.lora_B.weight", SHARED, RANK, ERR_NONE, ""},
        {"model.layers.1.mlp.up_proj.lora_B.weight", DENSE, RANK, ERR_NONE, ""},
        {"model.layers.0.mlp.gate.lora_A.weight", RANK, DIM, ERR_UNSUPPORTED, "router"},
    };
    adapter_layout al = {.n_vocab = base.n_vocab};
    ck_assert_msg(parse(CONFIG(ALL_MLP), true, &al.peft) == ERR_NONE, "%s", e.msg);
    al.pair = calloc(peft_slots(&al.peft), sizeof(*al.pair));
    for (size_t i = 0; i < sizeof cases / sizeof(*cases); i++) {
        err_code code = place(&al, cases[i].name, cases[i].rows, cases[i].cols);
        ck_assert_msg(code == cases[i].code, "%s: %d %s", cases[i].name, code, code ? e.msg : "");
        if (code) ck_assert_msg(strstr(e.msg, cases[i].says) != NULL, "%s", e.msg);
    }
    ck_assert_int_eq(layout_check(&al, &base, base.n_vocab, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.msg, "shared_expert.gate_proj") != NULL, "%s", e.msg);
    adapter_layout_clear(&al);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("experts");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, test_targets);
    tcase_add_test(tc, test_tensors);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
