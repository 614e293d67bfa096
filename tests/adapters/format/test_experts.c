/* test_experts.c -- adapters of mixtures of experts: which modules a configuration covers, and what
 * of a file is refused.
 *
 * The base has three layers of two experts; the second layer has one MLP, and beside the experts of
 * the others stands a shared one.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "adapters/format/layout.h"
#include "adapters/format/validate.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

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
    .experts = {.route = {.n = 2, .top_k = 1},
                .ffn_dim = FFN,
                .shared_dim = SHARED,
                .shared_gated = true},
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
         "24 x 4; it must be 32 x 4"},
        {"model.layers.0.mlp.experts.0.up_proj.lora_B.weight", DENSE, RANK, ERR_INPUT,
         "48 x 4; it must be 24 x 4"},
        {"model.layers.0.mlp.experts.0.up_proj.lora_A.weight", RANK + 1, DIM, ERR_INPUT, "5 x 32"},
        {"model.layers.0.mlp.experts.2.up_proj.lora_A.weight", RANK, DIM, ERR_INPUT, "2 experts"},
        {"model.layers.1.mlp.experts.0.up_proj.lora_A.weight", RANK, DIM, ERR_INPUT, "0 experts"},
        {"model.layers.3.mlp.experts.0.up_proj.lora_A.weight", RANK, DIM, ERR_INPUT, "3 layers"},
        {"model.layers.0.mlp.up_proj.lora_A.weight", RANK, DIM, ERR_INPUT, "no such module"},
        {"model.layers.1.mlp.shared_expert.up_proj.lora_A.weight", RANK, DIM, ERR_INPUT,
         "no such module"},
        {"model.layers.0.mlp.shared_expert.up_proj.lora_B.weight", SHARED, RANK, ERR_NONE, ""},
        {"model.layers.1.mlp.up_proj.lora_B.weight", DENSE, RANK, ERR_NONE, ""},
        {"model.layers.0.mlp.gate.lora_A.weight", RANK, DIM, ERR_INPUT, "not covered"},
        {"model.layers.0.mlp.gate.weight", 2, DIM, ERR_UNSUPPORTED, "of a router but LoRA"},
        {"model.layers.1.mlp.gate.lora_A.weight", RANK, DIM, ERR_INPUT, "no such module"},
        {"model.layers.1.mlp.shared_expert_gate.lora_A.weight", RANK, DIM, ERR_INPUT,
         "no such module"},
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

static err_code parse_routers(const char *text, const char *tensor, peft_config *pc)
{
    naming names = {.root = -1};
    if (tensor) ck_assert_msg(naming_learn(&names, tensor, &e) == ERR_NONE, "%s", e.msg);
    return peft_parse(text, strlen(text), &base, 0, &names, pc, &e);
}

/* A router is covered as a module, as transformers 4 has it, or by its parameter; a list that names
 * it has no effect where the file has no tensor of one. */
START_TEST(test_routers)
{
    static const char sparse[] = "model.layers.0.block_sparse_moe.gate.lora_A.weight",
                      usual[] = "model.layers.0.mlp.gate.lora_A.weight";
    static const struct {
        const char *config, *tensor;
        int n_wrapped, rank; /* of the router */
        const char *name;
    } cases[] = {
        {CONFIG("\"target_modules\":[\"gate\",\"q_proj\"]"), usual, 5, 4, "mlp.gate"},
        {CONFIG("\"target_modules\":[\"gate\",\"q_proj\"]"), NULL, 3, 0, "mlp.gate"},
        {CONFIG("\"target_modules\":[\"gate\"]"), sparse, 2, 4, "block_sparse_moe.gate"},
        {CONFIG("\"target_modules\":\".*sparse_moe.gate\""), sparse, 2, 4, "block_sparse_moe.gate"},
        {CONFIG("\"target_modules\":[\"shared_expert_gate\"],\"target_parameters\":"
                "[\"gate.weight\"],\"rank_pattern\":{\"layers.0.mlp.gate.weight\":7}"),
         usual, 4, 7, "mlp.gate"},
        {CONFIG("\"target_parameters\":[\"gate.weight\"],\"exclude_modules\":[\"gate\"]"), usual, 2,
         4, "mlp.gate"},
        {CONFIG("\"target_modules\":\"all-linear\""), usual, 3 * 7 + 4, 4, "mlp.gate"},
        {CONFIG("\"target_modules\":\"all-linear\""), NULL, 3 * 7 + 2, 0, "mlp.gate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof(*cases); i++) {
        peft_config pc;
        char name[128], want[128];
        err_code code = parse_routers(cases[i].config, cases[i].tensor, &pc);
        ck_assert_msg(code == ERR_NONE, "%s: %s", cases[i].config, e.msg);
        ck_assert_msg(pc.n_wrapped == cases[i].n_wrapped, "%s: %d", cases[i].config, pc.n_wrapped);
        ck_assert_int_eq(peft_at(&pc, 0, PROJ_ROUTER)->rank, cases[i].rank);
        ck_assert(!peft_at(&pc, 1, PROJ_ROUTER)->wrapped);
        peft_slot_name(name, sizeof name, &base, &pc, PROJ_ROUTER);
        snprintf(want, sizeof want, "model.layers.0.%s", cases[i].name);
        ck_assert_str_eq(name, want);
        peft_clear(&pc);
    }
    /* What the parameters promise must be there. */
    adapter_layout al = {.n_vocab = base.n_vocab};
    ck_assert_int_eq(
        parse_routers(CONFIG("\"target_parameters\":[\"gate.weight\"]"), NULL, &al.peft), ERR_NONE);
    al.pair = calloc(peft_slots(&al.peft), sizeof(*al.pair));
    ck_assert_int_eq(place(&al, usual, RANK, DIM), ERR_NONE);
    ck_assert_int_eq(place(&al, "model.layers.0.mlp.gate.lora_B.weight", 3, RANK), ERR_INPUT);
    ck_assert_int_eq(place(&al, "model.layers.0.mlp.gate.lora_B.weight", 2, RANK), ERR_NONE);
    ck_assert_int_eq(layout_check(&al, &base, base.n_vocab, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.msg, "layers.2.mlp.gate, but its lora_A") != NULL, "%s", e.msg);
    adapter_layout_clear(&al);
}
END_TEST

#define BOTH "\"target_parameters\":[\"mlp.experts.gate_up_proj\",\"experts.down_proj\"]"

static err_code parse_stacks(const char *text, bool stacks, bool experts, peft_config *pc)
{
    naming names = {.root = -1, .experts = experts, .stacks = stacks};
    return peft_parse(text, strlen(text), &base, 0, &names, pc, &e);
}

START_TEST(test_parameters_refused)
{
    static const struct {
        const char *text, *says;
        bool stacks, experts;
        err_code code;
    } cases[] = {
        {CONFIG("\"target_parameters\":\"down_proj\""), "list", true, false, ERR_INPUT},
        {CONFIG("\"target_parameters\":[1]"), "target_parameters", true, false, ERR_INPUT},
        {CONFIG("\"target_parameters\":[\"mlp.gate.bias\"]"), "no layer", true, false, ERR_INPUT},
        {CONFIG(BOTH), "not in the file", false, false, ERR_INPUT},
        {CONFIG(BOTH), "single experts", true, true, ERR_INPUT},
        {CONFIG(BOTH ",\"use_dora\":true"), "use_dora", true, false, ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof(*cases); i++) {
        peft_config pc;
        err_code code = parse_stacks(cases[i].text, cases[i].stacks, cases[i].experts, &pc);
        ck_assert_msg(code == cases[i].code && strstr(e.msg, cases[i].says), "%s: %d %s",
                      cases[i].text, code, e.msg);
    }
}
END_TEST

/* Two experts of rank 4: A [8][in], B [out][8], in which the experts take turns. */
START_TEST(test_parameters)
{
    static const struct {
        const char *name;
        uint64_t rows, cols;
        err_code code;
    } cases[] = {
        {"model.layers.0.mlp.experts.base_layer.lora_A.weight", 8, DIM, ERR_NONE},
        {"model.layers.0.mlp.experts.base_layer.lora_A.weight", 8, DIM, ERR_INPUT},
        {"model.layers.0.mlp.experts.base_layer.lora_B.weight", FFN, 8, ERR_INPUT},
        {"model.layers.0.mlp.experts.base_layer.lora_B.weight", 2 * FFN, 8, ERR_NONE},
        {"model.layers.0.mlp.experts.lora_A.weight", 4, FFN, ERR_INPUT},
        {"model.layers.0.mlp.experts.lora_A.weight", 8, FFN, ERR_NONE},
        {"model.layers.0.mlp.experts.lora_B.weight", DIM, 8, ERR_NONE},
        {"model.layers.1.mlp.experts.lora_B.weight", DIM, 8, ERR_INPUT},
    };
    adapter_layout al = {.n_vocab = base.n_vocab};
    ck_assert_msg(parse_stacks(CONFIG(BOTH), true, false, &al.peft) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(al.peft.n_wrapped, 4);
    al.pair = calloc(peft_slots(&al.peft), sizeof(*al.pair));
    for (size_t i = 0; i < sizeof cases / sizeof(*cases); i++) {
        err_code code = place(&al, cases[i].name, cases[i].rows, cases[i].cols);
        ck_assert_msg(code == cases[i].code, "%s: %d %s", cases[i].name, code, code ? e.msg : "");
    }
    const adapter_pair *up = &al.pair[peft_expert_slot(&al.peft, 0, 1, PROJ_UP)];
    ck_assert_uint_eq(up->a.offset, 4 * RANK * DIM);
    ck_assert_uint_eq(up->a.bytes, 4 * RANK * DIM);
    ck_assert_uint_eq(up->b.offset, 4 * (FFN * 8 + 1));
    ck_assert_uint_eq(up->b.bytes, 4 * FFN * RANK);
    ck_assert(up->b.n_col == RANK && up->b.col_apart == 2 && up->b.row_apart == 2 * RANK);
    ck_assert_uint_eq(up->b.offset + adapter_tensor_span(&up->b), 4 * 2 * FFN * 8);
    ck_assert_int_eq(layout_check(&al, &base, base.n_vocab, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.msg, "layers.2.mlp.experts.0.gate_proj") != NULL, "%s", e.msg);
    adapter_layout_clear(&al);
}
END_TEST

static void copy_file(const char *from_dir, const char *to_dir, const char *name, uint64_t nan_at)
{
    static char bytes[1 << 20];
    char path[300];
    snprintf(path, sizeof path, "%s/%s", from_dir, name);
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    (void)fclose(f);
    ck_assert(n < sizeof bytes && nan_at + 4 <= n);
    if (nan_at) memcpy(bytes + nan_at, &(float){NAN}, 4);
    snprintf(path, sizeof path, "%s/%s", to_dir, name);
    f = fopen(path, "wb");
    ck_assert(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

/* A value that is no number is found wherever in an expert's or a parameter's matrix it stands. */
START_TEST(test_values_are_scanned)
{
    static const char from[] = "fixtures/families/peft/qwen3-moe/both";
    static const char *const names[] = {"lora_A", "lora_B", "base_layer.lora_A",
                                        "base_layer.lora_B"};
    char dir[64], path[300], name[128];
    model_config c;
    safetensors *st;
    ck_assert_int_eq(model_config_read("fixtures/families/models/qwen3-moe", &c, &e), ERR_NONE);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", from);
    ck_assert_int_eq(safetensors_open(&st, path, &st_limits_model, &e), ERR_NONE);
    tmpdir_make(dir);
    copy_file(from, dir, "adapter_config.json", 0);
    for (int i = 0; i <= 8; i++) {
        snprintf(name, sizeof name, "base_model.model.model.layers.3.mlp.experts.%s.weight",
                 names[i / 2 % 4]);
        const st_tensor *t = safetensors_find(st, name);
        ck_assert(t && t->dtype == ST_F32);
        adapter_layout al;
        copy_file(from, dir, "adapter_model.safetensors",
                  i == 8 ? 0 : t->offset + (i % 2 ? t->bytes - 4 : 0));
        int fd = open(dir, O_RDONLY | O_DIRECTORY);
        err_code code = validate_adapter(fd, &c, 0, true, &al, &e);
        ck_assert_msg(code == (i == 8 ? ERR_NONE : ERR_INPUT), "%s: %d %s", name, code, e.msg);
        if (code) ck_assert_msg(strstr(e.msg, "not finite") != NULL, "%s", e.msg);
        if (!code) adapter_layout_clear(&al);
        close(fd);
    }
    tmpdir_remove(dir);
    safetensors_close(st);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("experts");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, test_targets);
    tcase_add_test(tc, test_tensors);
    tcase_add_test(tc, test_parameters);
    tcase_add_test(tc, test_routers);
    tcase_add_test(tc, test_parameters_refused);
    tcase_add_test(tc, test_values_are_scanned);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
