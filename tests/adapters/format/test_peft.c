/* test_peft.c -- patterns of strangers, and every key of adapter_config.json. */
#include <math.h>
#include <string.h>

#include <check.h>

#include "adapters/format/pattern.h"
#include "adapters/format/peft.h"
#include "tests/adapters/make_adapter.h"
#include "tests/run_suite.h"

/* What Python's re.fullmatch() says. */
START_TEST(test_patterns)
{
    static const struct {
        const char *pattern, *text;
        bool match;
    } cases[] = {
        {"", "", true},
        {"", "a", false},
        {"abc", "abc", true},
        {"abc", "abcd", false},
        {"a.c", "abc", true},
        {"a\\.c", "abc", false},
        {"a\\.c", "a.c", true},
        {"a*", "", true},
        {"a*", "aaaa", true},
        {"a*b", "aaaab", true},
        {"a+", "", false},
        {"a+?", "aaa", true},
        {"a?a?aa", "aa", true},
        {"(ab)*", "ababab", true},
        {"(ab)*", "ababa", false},
        {"(a|b)*c", "abbac", true},
        {"a|b|cd", "cd", true},
        {"a|b|cd", "c", false},
        {"(?:x|)y", "y", true},
        {"(?P<name>x)y", "xy", true},
        {"a{3}", "aaa", true},
        {"a{3}", "aa", false},
        {"a{2,}", "aaaaa", true},
        {"a{2,}", "a", false},
        {"a{,2}", "", true},
        {"a{,2}", "aaa", false},
        {"a{1,3}b", "aaab", true},
        {"a{1,3}b", "aaaab", false},
        {"a{0,2}b", "b", true},
        {"a{0}b", "b", true},
        {"(ab){2}", "abab", true},
        {"a{x}", "a{x}", true},
        {"{x}{", "{x}{", true},
        {"(^)*a", "a", true},
        {"[\\d-]+", "1-", true},
        {"[abc]+", "cab", true},
        {"[^abc]+", "xyz", true},
        {"[^abc]+", "xaz", false},
        {"[a-c0-9]+", "a1c9", true},
        {"[]x]+", "]x", true},
        {"[a-]+", "a-a", true},
        {"\\d+", "0123", true},
        {"[\\d]{1,}", "12", true},
        {"\\D", "1", false},
        {"\\w+", "a_1", true},
        {"\\s", " ", true},
        {"^a$", "a", true},
        {"b^a", "ba", false},
        {"a$\\n", "a\n", true},
        {"a$", "a\n", false},
        {"a\\Z\\n", "a\n", false},
        {"a$\\n\\n", "a\n\n", false},
        {"\\bmodel\\.x", "model.x", true},
        {"a\\Bb", "ab", true},
        {"a\\bb", "ab", false},
        {".*\\.(q_proj|v_proj)", "model.layers.0.self_attn.q_proj", true},
        {".*\\.(q_proj|v_proj)", "model.layers.0.self_attn.k_proj", false},
        {"^(?!.*vision).*(q_proj|v_proj)$", "model.layers.0.self_attn.v_proj", true},
        {"^(?!.*vision).*(q_proj|v_proj)$", "vision_tower.layers.0.self_attn.v_proj", false},
        {"(?=.*mlp).*\\.up_proj", "model.layers.0.mlp.up_proj", true},
        {"(?=.*mlp).*\\.up_proj", "model.layers.0.experts.up_proj", false},
        {"(?:(?!lm_head|classifier).)*", "model.layers.0.mlp.up_proj", true},
        {"(?:(?!lm_head|classifier).)*", "model.lm_head", false},
        {"a(?=b(?!c)).*", "abd", true},
        {"a(?=b(?!c)).*", "abc", false},
        {"a(?!$).?", "a", false},
        {"(?=(ab)*$)(?:(?=a)ab|b){2,}", "abab", true},
        {"(?=(ab)+$)(?:(?=a)ab|b){2,}", "abb", false},
        {"x(?=((a*)*)*b).*", "xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false},
        {"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|up_proj).*?)|(?:\\bmodel\\."
         "layers\\.[\\d]{1,}\\.(?:self_attn|mlp)\\.(?:(?:q_proj|up_proj)))",
         "model.layers.11.mlp.up_proj", true},
        {"(a*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false},
        {"(a|a)*(a|a)*(a|a)*(a|a)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false},
        {"((((a*)*)*)*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof(*cases); i++) {
        pattern *p;
        err e;
        uint64_t work = 0;
        ck_assert_msg(pattern_create(&p, cases[i].pattern, &e) == ERR_NONE, "%s: %s",
                      cases[i].pattern, e.msg);
        ck_assert_msg(pattern_matches(p, cases[i].text, &work) == cases[i].match, "%s on %s",
                      cases[i].pattern, cases[i].text);
        ck_assert_uint_lt(work, 20000); /* no catastrophe */
        pattern_destroy(p);
    }
    static const struct {
        const char *pattern;
        err_code code;
    } bad[] = {
        {"(", ERR_INPUT},           {")", ERR_INPUT},
        {"(a", ERR_INPUT},          {"a)", ERR_INPUT},
        {"[a", ERR_INPUT},          {"*a", ERR_INPUT},
        {"a**", ERR_INPUT},         {"\\", ERR_INPUT},
        {"[z-a]", ERR_INPUT},       {"a{3,1}", ERR_INPUT},
        {"(?P<x", ERR_INPUT},       {"(?=a", ERR_INPUT},
        {"(?>a)", ERR_UNSUPPORTED}, {"(?<=a)b", ERR_UNSUPPORTED},
        {"(?i)a", ERR_UNSUPPORTED}, {"(a)\\1", ERR_UNSUPPORTED},
        {"a*+", ERR_UNSUPPORTED},   {"\\pL", ERR_UNSUPPORTED},
        {"a{9999}", ERR_LIMIT},     {"((a{1000}){1000}){1000}", ERR_LIMIT},
        {"^*", ERR_INPUT},          {"a\\b{2}", ERR_INPUT},
        {"{2}", ERR_INPUT},         {"x|{1,3}?", ERR_INPUT},
        {"[\\d-z]", ERR_INPUT},     {"[a-\\d]", ERR_INPUT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof(*bad); i++) {
        pattern *p;
        err e;
        ck_assert_msg(pattern_create(&p, bad[i].pattern, &e) == bad[i].code, "%s gives %d",
                      bad[i].pattern, e.code);
        ck_assert_ptr_null(p);
    }
    char deep[300];
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    pattern *p;
    ck_assert_int_eq(pattern_create(&p, deep, NULL), ERR_LIMIT);
    static char wide[9000];
    memset(wide, '|', 8000);
    ck_assert_int_eq(pattern_create(&p, wide, NULL), ERR_LIMIT);
    char looks[17 * 5 + 1] = "";
    for (int i = 0; i < 17; i++) strcat(looks, "(?=a)");
    ck_assert_int_eq(pattern_create(&p, looks, NULL), ERR_LIMIT);
    ck_assert_int_eq(pattern_create(&p, "(?=a).*", NULL), ERR_NONE);
    memset(wide, 'a', PATTERN_AHEAD_MAX + 1);
    wide[PATTERN_AHEAD_MAX + 1] = 0;
    ck_assert(!pattern_matches(p, wide, NULL));
    ck_assert(pattern_matches(p, wide + 1, NULL));
    pattern_destroy(p);
}
END_TEST

static err_code parse(const char *text, peft_config *pc, err *e)
{
    model_config base = tiny_base();
    return peft_parse(text, strlen(text), &base, 0, NULL, pc, e);
}

#define HEAD "{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16"

START_TEST(test_configs_accepted)
{
    static const struct {
        const char *text;
        int n_wrapped;
        int layer;
        proj p;
        int rank; /* of that layer; 0: not wrapped */
        double scale;
    } cases[] = {
        {HEAD ",\"target_modules\":[\"q_proj\",\"v_proj\"]}", 4, 1, PROJ_V, 8, 2},
        {HEAD ",\"target_modules\":[\"q_proj\",\"v_proj\"]}", 4, 1, PROJ_K, 0, 0},
        {HEAD ",\"target_modules\":\"all-linear\"}", 14, 0, PROJ_DOWN, 8, 2},
        {HEAD ",\"target_modules\":\"All-Linear\"}", 14, 0, PROJ_GATE, 8, 2},
        {HEAD ",\"target_modules\":\".*\\\\.mlp\\\\..*\"}", 6, 1, PROJ_UP, 8, 2},
        {HEAD ",\"target_modules\":[\"model.layers.1.self_attn.q_proj\"]}", 1, 1, PROJ_Q, 8, 2},
        {HEAD ",\"target_modules\":[\"self_attn.o_proj\"]}", 2, 0, PROJ_O, 8, 2},
        {HEAD ",\"target_modules\":[\"q_proj\"],\"use_rslora\":true}", 2, 0, PROJ_Q, 8,
         16 / 2.8284271247},
        {HEAD ",\"target_modules\":[\"q_proj\",\"k_proj\"],\"rank_pattern\":{\"k_proj\":4}}", 4, 0,
         PROJ_K, 4, 4},
        {HEAD ",\"target_modules\":[\"q_proj\",\"k_proj\"],\"alpha_pattern\":{\"layers.1."
              "self_attn.q_proj\":2}}",
         4, 1, PROJ_Q, 8, 0.25},
        {HEAD ",\"target_modules\":[\"q_proj\",\"k_proj\"],\"alpha_pattern\":{\"layers.1."
              "self_attn.q_proj\":2}}",
         4, 0, PROJ_Q, 8, 2},
        /* The first key that matches counts. */
        {HEAD ",\"target_modules\":[\"q_proj\"],\"rank_pattern\":{\".*q_proj\":2,\"q_proj\":5}}", 2,
         0, PROJ_Q, 2, 8},
        {HEAD ",\"target_modules\":[\"q_proj\"],\"rank_pattern\":{\"proj\":2}}", 2, 0, PROJ_Q, 8,
         2},
        {HEAD ",\"target_modules\":[\"q_proj\"],\"rank_pattern\":{\"q_proj\":3},"
              "\"alpha_pattern\":{\"q_proj\":9},\"use_rslora\":true}",
         2, 0, PROJ_Q, 3, 9 / 1.7320508076},
        {HEAD ",\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[1]}", 1, 1, PROJ_Q, 8, 2},
        {HEAD ",\"target_modules\":[\"q_proj\"],\"layers_to_transform\":0}", 1, 1, PROJ_Q, 0, 0},
        {HEAD ",\"target_modules\":[\"q_proj\"],\"layers_to_transform\":1,"
              "\"layers_pattern\":\"layers\"}",
         1, 1, PROJ_Q, 8, 2},
        {HEAD ",\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[0,1],"
              "\"layers_pattern\":[\"h\",\"layers\"]}",
         2, 1, PROJ_Q, 8, 2},
        {HEAD ",\"target_modules\":\"all-linear\",\"exclude_modules\":[\"down_proj\"]}", 12, 0,
         PROJ_DOWN, 0, 0},
        {HEAD ",\"target_modules\":\"all-linear\",\"exclude_modules\":\".*layers\\\\.0\\\\..*\"}",
         7, 0, PROJ_Q, 0, 0},
        {HEAD ",\"target_modules\":[\"q_proj\",\"v_proj\"],\"exclude_modules\":[\"v_proj\"]}", 2, 0,
         PROJ_V, 0, 0},
        /* What is left out, or is nowhere, may be named. */
        {HEAD ",\"target_modules\":[\"q_proj\",\"query\",\"shared_expert_gate\"],"
              "\"exclude_modules\":[\"shared_expert_gate\"]}",
         2, 0, PROJ_Q, 8, 2},
        {HEAD ",\"target_modules\":\"(?!.*layers.0.).*q_proj\"}", 1, 0, PROJ_Q, 0, 0},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":0,\"target_modules\":[\"q_proj\"]}", 2, 0, PROJ_Q,
         8, 0},
        {HEAD ",\"target_modules\":[\"q_proj\",\"lm_head\",\"embed_tokens\"]}", 4, 0, PROJ_Q, 8, 2},
        {HEAD ",\"target_modules\":\".*\"}", 16, 0, PROJ_Q, 8, 2},
        {HEAD ",\"target_modules\":[\"q_proj\",\"lm_head\"],\"layers_to_transform\":[1]}", 2, 1,
         PROJ_Q, 8, 2}, /* a whole name is not narrowed by layers */
        /* What is saved whole is not wrapped. */
        {HEAD ",\"target_modules\":\".*\",\"modules_to_save\":[\"lm_head\"]}", 15, 0, PROJ_Q, 8, 2},
        /* Harmless keys, as PEFT writes them. */
        {HEAD ",\"target_modules\":[\"q_proj\"],\"auto_mapping\":null,\"peft_version\":\"0.19\","
              "\"inference_mode\":true,\"lora_dropout\":0.05,\"megatron_core\":\"megatron.core\","
              "\"qalora_group_size\":16,\"loftq_config\":{},\"modules_to_save\":null,"
              "\"layer_replication\":null,\"use_dora\":false,\"init_lora_weights\":\"gaussian\","
              "\"bias\":\"none\",\"task_type\":\"CAUSAL_LM\",\"some_future_key\":null,"
              "\"another\":false,\"third\":[],\"revision\":\"main\"}",
         2, 0, PROJ_Q, 8, 2},
        {"{\"peft_type\":\"LORA\",\"target_modules\":[\"q_proj\"]}", 2, 0, PROJ_Q, 8, 1},
        {HEAD ",\"target_modules\":[\"q_proj\"],\"lora_alpha_\":null}", 2, 0, PROJ_Q, 8, 2},
        {"{\"peft_type\":\"LORA\",\"r\":256,\"lora_alpha\":0.5,\"target_modules\":[\"q_proj\"]}", 2,
         0, PROJ_Q, 256, 0.5 / 256},
    };
    for (size_t i = 0; i < sizeof cases / sizeof(*cases); i++) {
        peft_config pc;
        err e;
        ck_assert_msg(parse(cases[i].text, &pc, &e) == ERR_NONE, "%s: %s", cases[i].text, e.msg);
        const peft_layer *pl = peft_at(&pc, cases[i].layer, cases[i].p);
        ck_assert_msg(pc.n_wrapped == cases[i].n_wrapped, "%s: %d", cases[i].text, pc.n_wrapped);
        ck_assert_msg(pl->wrapped == (cases[i].rank > 0), "%s", cases[i].text);
        ck_assert_msg(pl->rank == cases[i].rank, "%s", cases[i].text);
        ck_assert_msg(fabs(pl->scale - cases[i].scale) < 1e-6, "%s: %g", cases[i].text,
                      (double)pl->scale);
        peft_clear(&pc);
    }
}
END_TEST

#define WITH(extra) HEAD ",\"target_modules\":[\"q_proj\"]," extra "}"

START_TEST(test_configs_refused)
{
    static const struct {
        const char *text, *says;
        err_code code;
    } cases[] = {
        {"", "", ERR_INPUT},
        {"[]", "object", ERR_INPUT},
        {"{", "", ERR_INPUT},
        {"{} x", "", ERR_INPUT},
        {"{}", "peft_type", ERR_INPUT},
        {"{\"peft_type\":\"LOHA\"}", "LOHA", ERR_UNSUPPORTED},
        {"{\"peft_type\":7}", "peft_type", ERR_INPUT},
        {HEAD "}", "target_modules", ERR_INPUT},
        {HEAD ",\"target_modules\":null}", "target_modules", ERR_INPUT},
        {HEAD ",\"target_modules\":[]}", "target_modules", ERR_INPUT},
        {HEAD ",\"target_modules\":7}", "target_modules", ERR_INPUT},
        {HEAD ",\"target_modules\":[7]}", "target_modules", ERR_INPUT},
        {HEAD ",\"target_modules\":[\"\"]}", "target_modules", ERR_INPUT},
        {HEAD ",\"target_modules\":[\"query\"]}", "no layer", ERR_INPUT},
        {HEAD ",\"target_modules\":\"(q_proj\"}", "target_modules", ERR_INPUT},
        {HEAD ",\"target_modules\":\"(?<!x).*\"}", "look-behind", ERR_UNSUPPORTED},
        {HEAD ",\"target_modules\":[\"q_proj\"],\"target_modules\":[\"v_proj\"]}", "", ERR_INPUT},
        {WITH("\"r\":9"), "", ERR_INPUT}, /* r twice */
        {WITH("\"task_type\":\"TOKEN_CLS\""), "TOKEN_CLS", ERR_UNSUPPORTED},
        {WITH("\"modules_to_save\":[\"scores\"]"), "'score'", ERR_UNSUPPORTED},
        {WITH("\"bias\":\"some\""), "bias", ERR_UNSUPPORTED},
        {WITH("\"use_dora\":true,\"lora_bias\":true"), "use_dora", ERR_UNSUPPORTED},
        {WITH("\"modules_to_save\":[\"up_proj\"]"), "train LoRA on it", ERR_UNSUPPORTED},
        {WITH("\"modules_to_save\":[\"\"]"), "modules_to_save", ERR_INPUT},
        {WITH("\"modules_to_save\":\"lm_head\""), "modules_to_save", ERR_INPUT},
        {WITH("\"modules_to_save\":[1]"), "modules_to_save", ERR_INPUT},
        {WITH("\"kasa_config\":{\"a\":1}"), "KaSA", ERR_UNSUPPORTED},
        {WITH("\"arrow_config\":{\"a\":1}"), "Arrow", ERR_UNSUPPORTED},
        {WITH("\"use_bdlora\":{\"a\":1}"), "block-diagonal", ERR_UNSUPPORTED},
        {WITH("\"layers_to_transform\":[0],\"layers_pattern\":\"h|layers\""), "'|'",
         ERR_UNSUPPORTED},
        {WITH("\"layer_replication\":[[0,2]]"), "layer_replication", ERR_UNSUPPORTED},
        {WITH("\"target_parameters\":[\"x\"]"), "target_parameters", ERR_UNSUPPORTED},
        {WITH("\"trainable_token_indices\":[1000000]"), "added tokens", ERR_UNSUPPORTED},
        {WITH("\"trainable_token_indices\":{\"lm_head\":[1]}"), "lm_head", ERR_UNSUPPORTED},
        {WITH("\"trainable_token_indices\":[1,1]"), "token 1 twice", ERR_INPUT},
        {WITH("\"trainable_token_indices\":[-1]"), "numbers", ERR_INPUT},
        {WITH("\"trainable_token_indices\":[0.5]"), "numbers", ERR_INPUT},
        {WITH("\"trainable_token_indices\":7"), "must be a list", ERR_INPUT},
        {WITH("\"trainable_token_indices\":[1],\"modules_to_save\":[\"embed_tokens\"]"),
         "the same table", ERR_INPUT},
        {WITH("\"megatron_config\":{\"a\":1}"), "megatron_config", ERR_UNSUPPORTED},
        {WITH("\"loftq_config\":{\"loftq_bits\":4}"), "LoftQ", ERR_UNSUPPORTED},
        {WITH("\"corda_config\":{\"a\":1}"), "CorDA", ERR_UNSUPPORTED},
        {WITH("\"use_qalora\":true"), "use_qalora", ERR_UNSUPPORTED},
        {WITH("\"alora_invocation_tokens\":[]"), "alora_invocation_tokens", ERR_INPUT},
        {WITH("\"alora_invocation_tokens\":7"), "alora_invocation_tokens", ERR_INPUT},
        {WITH("\"alora_invocation_tokens\":[1,-2]"), "alora_invocation_tokens", ERR_INPUT},
        {WITH("\"alora_invocation_tokens\":[1.5]"), "alora_invocation_tokens", ERR_INPUT},
        {WITH("\"alora_invocation_tokens\":[1,9999999]"), "alora_invocation_tokens", ERR_INPUT},
        {WITH("\"alora_invocation_tokens\":[1],\"use_dora\":true"), "use_dora", ERR_UNSUPPORTED},
        {WITH("\"alora_invocation_tokens\":[1],\"bias\":\"all\""), "with bias", ERR_UNSUPPORTED},
        {WITH("\"alora_invocation_tokens\":[1],\"trainable_token_indices\":[3]"),
         "trainable_token_indices", ERR_UNSUPPORTED},
        {WITH("\"alora_invocation_tokens\":[1],\"modules_to_save\":[\"lm_head\"]"),
         "modules_to_save", ERR_UNSUPPORTED},
        {WITH("\"alora_invocation_tokens\":[1],\"modules_to_save\":[\"norm\"]"), "modules_to_save",
         ERR_UNSUPPORTED},
        {HEAD ",\"target_modules\":[\"q_proj\",\"embed_tokens\"],\"alora_invocation_tokens\":[1]}",
         "embed_tokens", ERR_UNSUPPORTED},
        {WITH("\"init_lora_weights\":\"pissa\""), "pissa", ERR_UNSUPPORTED},
        {WITH("\"init_lora_weights\":\"pissa_niter_4\""), "pissa_niter_4", ERR_UNSUPPORTED},
        {WITH("\"init_lora_weights\":\"olora\""), "olora", ERR_UNSUPPORTED},
        {WITH("\"init_lora_weights\":\"corda\""), "corda", ERR_UNSUPPORTED},
        {WITH("\"init_lora_weights\":\"loftq\""), "loftq", ERR_UNSUPPORTED},
        {WITH("\"init_lora_weights\":\"new\""), "new", ERR_UNSUPPORTED},
        {WITH("\"init_lora_weights\":3"), "init_lora_weights", ERR_INPUT},
        {WITH("\"something_new\":true"), "something_new", ERR_UNSUPPORTED},
        {WITH("\"something_new\":0.5"), "something_new", ERR_UNSUPPORTED},
        {WITH("\"use_rslora\":\"yes\""), "use_rslora", ERR_INPUT},
        {WITH("\"rank_pattern\":[]"), "rank_pattern", ERR_INPUT},
        {WITH("\"rank_pattern\":{\"q_proj\":\"8\"}"), "q_proj", ERR_INPUT},
        {WITH("\"rank_pattern\":{\"q_proj\":0}"), "rank", ERR_INPUT},
        {WITH("\"rank_pattern\":{\"q_proj\":-4}"), "rank", ERR_INPUT},
        {WITH("\"rank_pattern\":{\"q_proj\":2.5}"), "rank", ERR_INPUT},
        {WITH("\"rank_pattern\":{\"q_proj\":257}"), "257", ERR_LIMIT},
        {WITH("\"rank_pattern\":{\"q_proj)|(x\":4}"), "rank_pattern", ERR_INPUT},
        {WITH("\"alpha_pattern\":{\"q_proj\":-1}"), "lora_alpha", ERR_INPUT},
        {WITH("\"alpha_pattern\":{\"q_proj\":1e9}"), "lora_alpha", ERR_INPUT},
        {WITH("\"layers_to_transform\":[2]"), "layer 2", ERR_INPUT},
        {WITH("\"layers_to_transform\":[-1]"), "layer -1", ERR_INPUT},
        {WITH("\"layers_to_transform\":\"1\""), "layers_to_transform", ERR_INPUT},
        {WITH("\"layers_to_transform\":[0.5]"), "layers_to_transform", ERR_INPUT},
        {WITH("\"layers_pattern\":\"layers\""), "layers_pattern", ERR_INPUT},
        {WITH("\"layers_to_transform\":[0],\"layers_pattern\":\"h\""), "no layer", ERR_INPUT},
        {HEAD ",\"target_modules\":\".*q_proj\",\"layers_to_transform\":[0]}", "list", ERR_INPUT},
        {WITH("\"exclude_modules\":[\"q_proj\"]"), "no layer", ERR_INPUT},
        {WITH("\"exclude_modules\":7"), "exclude_modules", ERR_INPUT},
        {"{\"peft_type\":\"LORA\",\"r\":0,\"target_modules\":[\"q_proj\"]}", "r", ERR_INPUT},
        {"{\"peft_type\":\"LORA\",\"r\":257,\"target_modules\":[\"q_proj\"]}", "257", ERR_LIMIT},
        {"{\"peft_type\":\"LORA\",\"r\":\"8\",\"target_modules\":[\"q_proj\"]}", "r", ERR_INPUT},
        {"{\"peft_type\":\"LORA\",\"r\":8.5,\"target_modules\":[\"q_proj\"]}", "r", ERR_INPUT},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":-1,\"target_modules\":[\"q_proj\"]}", "lora_alpha",
         ERR_INPUT},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":1e999,\"target_modules\":[\"q_proj\"]}", "",
         ERR_INPUT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof(*cases); i++) {
        peft_config pc;
        err e = {0};
        err_code code = parse(cases[i].text, &pc, &e);
        ck_assert_msg(code == cases[i].code, "%s gives %d: %s", cases[i].text, code, e.msg);
        ck_assert_msg(strstr(e.msg, cases[i].says) != NULL, "%s says: %s", cases[i].text, e.msg);
        ck_assert_ptr_null(pc.layer);
    }
}
END_TEST

/* The names that savers write, and what is left to refuse. */
START_TEST(test_tensor_names)
{
    static const struct {
        const char *name;
        int layer, module;
        tensor_role role;
    } good[] = {
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 0, PROJ_Q, ROLE_A},
        {"base_model.model.model.layers.31.mlp.down_proj.lora_B.weight", 31, PROJ_DOWN, ROLE_B},
        {"base_model.model.model.layers.3.mlp.up_proj.lora_B.default.weight", 3, PROJ_UP, ROLE_B},
        {"model.layers.0.self_attn.q_proj.lora_A.weight", 0, PROJ_Q, ROLE_A},
        {"base_model.model.layers.7.self_attn.o_proj.lora_A.weight", 7, PROJ_O, ROLE_A},
        {"layers.7.self_attn.o_proj.lora_A.weight", 7, PROJ_O, ROLE_A},
        {"base_model.model.model.language_model.layers.2.mlp.gate_proj.lora_B.weight", 2, PROJ_GATE,
         ROLE_B},
        {"base_model.model.language_model.model.layers.2.mlp.gate_proj.lora_B.weight", 2, PROJ_GATE,
         ROLE_B},
        {"base_model.model.model.model.layers.2.mlp.gate_proj.lora_B.weight", 2, PROJ_GATE, ROLE_B},
        {"module.base_model.model.model.layers.2.mlp.gate_proj.lora_B.weight", 2, PROJ_GATE,
         ROLE_B},
        {"_orig_mod.base_model.model.model.layers.2._orig_mod.self_attn.k_proj.lora_B.weight", 2,
         PROJ_K, ROLE_B},
        {"_fsdp_wrapped_module.base_model.model.model.layers.1._fsdp_wrapped_module."
         "_checkpoint_wrapped_module.self_attn.v_proj.lora_A.weight",
         1, PROJ_V, ROLE_A},
        {"base_model.model.model.layers.0.self_attn.qkv_proj.lora_B.weight", 0, MODULE_QKV, ROLE_B},
        {"base_model.model.model.layers.0.mlp.gate_up_proj.lora_A.weight", 0, MODULE_GATE_UP,
         ROLE_A},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias", 0, PROJ_Q, ROLE_B_BIAS},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", 0, PROJ_Q,
         ROLE_MAGNITUDE},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight", 0, PROJ_Q,
         ROLE_MAGNITUDE},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector.default.weight", 0,
         PROJ_Q, ROLE_MAGNITUDE},
        {"base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias", 0, PROJ_Q, ROLE_BIAS},
        {"base_model.model.model.layers.0.self_attn.q_proj.bias", 0, PROJ_Q, ROLE_BIAS},
        {"base_model.model.model.layers.2.mlp.experts.31.gate_proj.lora_A.weight", 2,
         MODULE_EXPERT_GATE, ROLE_A},
        {"base_model.model.model.layers.2.block_sparse_moe.experts.0.w3.lora_B.weight", 2,
         MODULE_EXPERT_UP, ROLE_B},
        {"base_model.model.model.layers.2.block_sparse_moe.experts.0.w2.lora_magnitude_vector", 2,
         MODULE_EXPERT_DOWN, ROLE_MAGNITUDE},
        {"base_model.model.model.layers.2.mlp.experts.base_layer.lora_A.weight", 2,
         MODULE_STACK_INNER, ROLE_A},
        {"base_model.model.model.layers.2.block_sparse_moe.experts.lora_B.weight", 2, MODULE_STACK,
         ROLE_B},
        {"base_model.model.model.layers.2.mlp.shared_expert.up_proj.lora_B.weight", 2,
         MODULE_SHARED_UP, ROLE_B},
        {"base_model.model.model.layers.2.mlp.shared_experts.up_proj.lora_B.weight", 2,
         MODULE_SHARED_UP, ROLE_B},
        {"base_model.model.model.layers.2.feed_forward.shared_expert.up_proj.lora_B.weight", 2,
         MODULE_SHARED_UP, ROLE_B},
        {"base_model.model.model.layers.2.feed_forward.down_proj.lora_A.weight", 2, PROJ_DOWN,
         ROLE_A},
        {"base_model.model.model.layers.2.feed_forward.experts.lora_A.weight", 2, MODULE_STACK,
         ROLE_A},
        {"base_model.model.model.layers.2.mlp.experts.gate_up_projs.7.lora_A.weight", 2,
         MODULE_EXPERT_GATE, ROLE_A},
        {"base_model.model.model.layers.2.mlp.experts.down_projs.0.lora_B.weight", 2,
         MODULE_EXPERT_DOWN, ROLE_B},
        {"base_model.model.model.layers.2.self_attn.q_a_proj.lora_A.weight", 2, PROJ_Q_A, ROLE_A},
        {"base_model.model.model.layers.2.self_attn.q_b_proj.lora_A.weight", 2, MODULE_Q_B, ROLE_A},
        {"base_model.model.model.layers.2.self_attn.kv_a_proj_with_mqa.lora_B.weight", 2,
         MODULE_KV_A, ROLE_B},
        {"base_model.model.model.layers.2.self_attn.kv_b_proj.lora_magnitude_vector", 2,
         MODULE_KV_B, ROLE_MAGNITUDE},
        {"base_model.model.model.layers.2.linear_attn.in_proj_qkv.lora_A.weight", 2,
         MODULE_DELTA_QKV, ROLE_A},
        {"base_model.model.model.layers.2.linear_attn.in_proj_z.lora_B.weight", 2, PROJ_Z, ROLE_B},
        {"base_model.model.model.layers.2.linear_attn.in_proj_b.lora_magnitude_vector", 2, PROJ_B,
         ROLE_MAGNITUDE},
        {"base_model.model.model.layers.2.linear_attn.in_proj_a.lora_A.weight", 2, PROJ_A, ROLE_A},
        {"base_model.model.model.layers.2.linear_attn.in_proj_qkvz.lora_A.weight", 2,
         MODULE_DELTA_QKVZ, ROLE_A},
        {"base_model.model.model.layers.2.linear_attn.in_proj_ba.lora_A.weight", 2, MODULE_DELTA_BA,
         ROLE_A},
        {"base_model.model.model.layers.2.linear_attn.out_proj.lora_B.bias", 2, MODULE_DELTA_OUT,
         ROLE_B_BIAS},
        {"base_model.model.model.layers.2.mamba.in_proj.lora_A.weight", 2, MODULE_MAMBA_IN, ROLE_A},
        {"base_model.model.model.layers.2.mamba.out_proj.lora_magnitude_vector", 2,
         MODULE_MAMBA_OUT, ROLE_MAGNITUDE},
        {"base_model.model.backbone.layers.2.mixer.in_proj.lora_B.weight", 2, PROJ_IN, ROLE_B},
        {"base_model.model.backbone.layers.2.mixer.out_proj.base_layer.bias", 2, PROJ_OUT,
         ROLE_BIAS},
        {"base_model.model.model.layers.2.mixer.v_proj.lora_A.weight", 2, MODULE_MIXER_V, ROLE_A},
        {"base_model.model.model.layers.2.mixer.down_proj.lora_B.weight", 2, MODULE_MIXER_DOWN,
         ROLE_B},
        {"base_model.model.model.layers.2.mixer.shared_experts.up_proj.lora_B.weight", 2,
         MODULE_MIXER_SHARED_UP, ROLE_B},
        {"base_model.model.backbone.layers.2.mixer.experts.3.up_proj.lora_A.weight", 2,
         MODULE_EXPERT_UP, ROLE_A},
        {"base_model.model.model.layers.2.mixer.experts.base_layer.lora_A.weight", 2,
         MODULE_STACK_INNER, ROLE_A},
        {"base_model.model.model.layers.2.shared_mlp.input_linear.lora_A.weight", 2,
         MODULE_INPUT_LINEAR, ROLE_A},
        {"base_model.model.model.layers.2.shared_mlp.output_linear.lora_A.weight", 2,
         MODULE_OUTPUT_LINEAR, ROLE_A},
        {"base_model.model.model.layers.2.self_attn.forget_gate.f_a_proj.lora_A.weight", 2,
         PROJ_A_LOW, ROLE_A},
        {"base_model.model.model.layers.2.self_attn.f_b_proj.lora_A.weight", 2, MODULE_KIMI_F_B,
         ROLE_A},
        {"base_model.model.model.layers.2.self_attn.g_b_proj.lora_magnitude_vector", 2,
         MODULE_KIMI_G_B, ROLE_MAGNITUDE},
        {"base_model.model.model.layers.2.linear_attn.v_proj.lora_A.weight", 2, MODULE_DELTA_V,
         ROLE_A},
        {"base_model.model.model.layers.2.linear_attn.g_proj.lora_B.weight", 2, MODULE_DELTA_G,
         ROLE_B},
        {"base_model.model.lm_head.lora_A.weight", -1, MODULE_HEAD, ROLE_A},
        {"base_model.model.lm_head.weight", -1, MODULE_HEAD, ROLE_TABLE},
        {"base_model.model.lm_head.base_layer.weight", -1, MODULE_HEAD, ROLE_TABLE},
        {"base_model.model.lm_head.modules_to_save.default.weight", -1, MODULE_HEAD, ROLE_TABLE},
        {"base_model.model.model.embed_tokens.lora_embedding_A", -1, MODULE_EMBED, ROLE_A},
        {"base_model.model.model.embed_tokens.lora_embedding_B.default", -1, MODULE_EMBED, ROLE_B},
        {"base_model.model.model.embed_tokens.weight", -1, MODULE_EMBED, ROLE_TABLE},
        {"base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", -1,
         MODULE_EMBED, ROLE_ROWS},
        {"base_model.model.score.weight", -1, MODULE_SCORE, ROLE_TABLE},
        {"base_model.model.score.modules_to_save.default.weight", -1, MODULE_SCORE, ROLE_TABLE},
        {"base_model.model.score.original_module.weight", -1, MODULE_SCORE, ROLE_ORIGINAL},
        {"base_model.model.classifier.bias", -1, MODULE_SCORE, ROLE_BIAS},
        {"base_model.model.model.layers.1.input_layernorm.weight", 1, MODULE_ATTN_NORM, ROLE_TABLE},
        {"base_model.model.model.layers.1.post_attention_layernorm.weight", 1, MODULE_MLP_NORM,
         ROLE_TABLE},
        {"base_model.model.model.norm.weight", -1, MODULE_LAST_NORM, ROLE_TABLE},
        {"base_model.model.model.language_model.embed_tokens.base_layer.weight", -1, MODULE_EMBED,
         ROLE_TABLE},
    };
    for (size_t i = 0; i < sizeof good / sizeof(*good); i++) {
        tensor_name t;
        ck_assert_msg(tensor_name_parse(good[i].name, &t), "%s", good[i].name);
        ck_assert_msg(t.layer == good[i].layer && t.module == good[i].module &&
                          t.role == good[i].role,
                      "%s: layer %d, module %d, role %d", good[i].name, t.layer, t.module, t.role);
    }
    static const struct {
        const char *name, *says;
    } bad[] = {
        {"", "belongs to no layer"},
        {"base_model.model.", "belongs to no layer"},
        {"base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight", "belongs to no layer"},
        {"base_model.model.model.layers.-1.self_attn.q_proj.lora_A.weight", "belongs to no layer"},
        {"base_model.model.model.layers.99999999999.self_attn.q_proj.lora_A.weight",
         "belongs to no layer"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight", "belongs to no layer"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weightx", "belongs to no layer"},
        {"base_model.model.model.layers.0.mlp.q_proj.lora_A.weight", "belongs to no layer"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.other.weight",
         "belongs to no layer"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_embedding_A",
         "belongs to no layer"},
        {"base_model.model.model.embed_tokens.lora_A.weight", "belongs to no layer"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.bias", "bias in lora_A"},
        {"base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight",
         "weight of the base"},
        {"base_model.model.model.layers.0.self_attn.q_norm.weight", "norm of queries"},
        {"base_model.model.model.layers.0.linear_attn.conv1d.lora_A.weight", "convolutions"},
        {"base_model.model.model.layers.0.linear_attn.norm.weight", "norm of a mixer"},
        {"base_model.model.model.layers.0.linear_attn.o_norm.weight", "norm of a mixer"},
        {"base_model.model.model.layers.0.linear_attn.q_conv1d.lora_A.weight", "convolutions"},
        {"base_model.model.model.layers.0.linear_attn.A_log", "decay of a mixer"},
        {"base_model.model.model.layers.0.linear_attn.dt_bias", "decay of a mixer"},
        {"base_model.model.model.layers.0.linear_attn.in_proj.lora_A.weight",
         "belongs to no layer"},
        {"base_model.model.model.layers.0.mamba.conv1d.lora_A.weight", "convolutions"},
        {"base_model.model.model.layers.0.mamba.norm.weight", "norm of a mixer"},
        {"base_model.model.backbone.layers.0.mixer.dt_bias", "decay of a mixer"},
        {"base_model.model.backbone.embeddings.lora_embedding_A", "called embeddings"},
        {"base_model.model.model.layers.0.mixer.experts.3.w1.lora_A.weight", "experts"},
        {"base_model.model.model.layers.0.input_layernorm.lora_A.weight", "belongs to no layer"},
        {"base_model.model.model.layers.0.mlp.experts.03.up_proj.lora_A.weight", "experts"},
        {"base_model.model.model.layers.0.mlp.experts.3.w1.lora_A.weight", "experts"},
        {"base_model.model.model.layers.0.mlp.experts.lora_magnitude_vector",
         "anything of experts"},
        {"base_model.model.model.layers.0.mlp.experts.down_projs.03.lora_A.weight", "experts"},
        {"base_model.model.model.layers.0.mlp.router.linear.lora_A.weight", "of a router"},
        {"base_model.model.model.layers.0.mlp.gate.e_score_correction_bias", "of a router"},
        {"base_model.model.model.layers.0.self_attn.q_proj.token_adapter.trainable_tokens_delta",
         "anything but embed_tokens"},
        {"model.layers.0.self_attn.q_proj.lora_a", "MLX"},
        {"lora_unet_down_blocks_0.lora_down.weight", "kohya"},
        {"base_model.model.pooler.modules_to_save.weight", "trained module"},
        {"base_model.model.score.lora_A.weight", "not one linear layer"},
        {"base_model.model.classifier.out_proj.weight", "not one linear layer"},
    };
    static const char *const routers[] = {"feed_forward.router",
                                          "mlp.gate",
                                          "mixer.gate",
                                          "mlp.router",
                                          "block_sparse_moe.gate",
                                          "block_sparse_moe.router.layer",
                                          "mlp.shared_expert_gate"};
    for (size_t i = 0; i < sizeof routers / sizeof(*routers); i++) {
        char name[128];
        tensor_name t;
        snprintf(name, sizeof name, "base_model.model.model.layers.0.%s.lora_A.weight", routers[i]);
        ck_assert_msg(tensor_name_parse(name, &t), "%s", name);
        ck_assert_int_eq(t.module, i < 6 ? PROJ_ROUTER : PROJ_SHARED_SCORE);
    }
    for (size_t i = 0; i < sizeof bad / sizeof(*bad); i++) {
        tensor_name t;
        err e;
        ck_assert_msg(!tensor_name_parse(bad[i].name, &t), "%s", bad[i].name);
        naming_refuse(bad[i].name, &e);
        ck_assert_msg(strstr(e.msg, bad[i].says) != NULL, "%s: %s", bad[i].name, e.msg);
    }
    char lengthy[4000];
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    tensor_name t;
    ck_assert(!tensor_name_parse(lengthy, &t));
    naming n = {.root = -1};
    err e;
    ck_assert_int_eq(naming_learn(&n, "model.layers.0.mlp.up_proj.lora_A.weight", &e), ERR_NONE);
    ck_assert_int_eq(naming_learn(&n, "lm_head.lora_A.weight", &e), ERR_NONE);
    ck_assert_int_eq(naming_learn(&n, "layers.0.mlp.up_proj.lora_B.weight", &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "another way"));
}
END_TEST

/* Thousands of patterns that all nearly match: refused for their cost, in bounded time. */
START_TEST(test_costly_patterns)
{
    bytes b = {0};
    static const char head[] = HEAD ",\"target_modules\":\"all-linear\",\"rank_pattern\":{";
    bytes_add(&b, head, sizeof head - 1);
    for (int i = 0; i < 8000; i++) {
        char one[128];
        snprintf(one, sizeof one, "%s\"(.*.*.*.*.*.*.*.*)*(.{0,30}){0,8}x%d\":4", i > 0 ? "," : "",
                 i);
        bytes_add(&b, one, strlen(one));
    }
    bytes_add(&b, "}}", 3);
    model_config base = tiny_base();
    base.n_layer = 80;
    peft_config pc;
    err e;
    ck_assert_int_eq(peft_parse((char *)b.p, b.n - 1, &base, 0, NULL, &pc, &e), ERR_LIMIT);
    bytes_free(&b);
}
END_TEST

/* Where pages hold latents, keys of rows before the invocation cannot stay the base's. */
START_TEST(test_activated_latents)
{
    static const struct {
        const char *module;
        bool absorbs;
        err_code code;
    } cases[] = {{"kv_b_proj", true, ERR_UNSUPPORTED},
                 {"kv_b_proj", false, ERR_NONE},
                 {"kv_a_proj_with_mqa", true, ERR_NONE}};
    for (int i = 0; i < 3; i++) {
        model_config base;
        peft_config pc;
        err e = {0};
        char text[160];
        ck_assert(!model_config_read("fixtures/families/models/deepseek-v2", &base, &e));
        model_config_place(&base, &(weight_rules){.absorbs = cases[i].absorbs});
        snprintf(text, sizeof text,
                 HEAD ",\"target_modules\":[\"%s\"],\"alora_invocation_tokens\":[1]}",
                 cases[i].module);
        err_code code = peft_parse(text, strlen(text), &base, 0, NULL, &pc, &e);
        ck_assert_msg(code == cases[i].code, "%s: %s", cases[i].module, e.msg);
        ck_assert(!code || strstr(e.msg, "LoRA on kv_b_proj"));
        if (!code) peft_clear(&pc);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("peft");
    TCase *tc = tcase_create("peft");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_patterns);
    tcase_add_test(tc, test_configs_accepted);
    tcase_add_test(tc, test_configs_refused);
    tcase_add_test(tc, test_tensor_names);
    tcase_add_test(tc, test_costly_patterns);
    tcase_add_test(tc, test_activated_latents);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
