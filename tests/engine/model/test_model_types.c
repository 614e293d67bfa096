/* test_model_types.c -- all model types of transformers: each is served, or refused by name.
 *
 * tests/tools/make_model_types.py wrote fixtures/model_types.jsonl: the class and the config.json
 * of each type.  A type that is accepted must have a golden, so that its arithmetic has been
 * compared with the reference.  And each field of its config.json must matter: with another value
 * the file is refused, or it becomes another model_config.  Fields that change nothing are listed
 * here.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/json.h"
#include "engine/model/model.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { LINE_MAX_BYTES = 16384, TYPES_MAX = 256, TYPES_LEAST = 180 };

static char dir[64];

/* ---- the list -------------------------------------------------------------------------------- */

static char *lines[TYPES_MAX];
static int n_lines;

static void read_lines(void)
{
    static char line[LINE_MAX_BYTES];
    FILE *f = fopen("fixtures/model_types.jsonl", "r");
    ck_assert_msg(f != NULL, "fixtures/model_types.jsonl is missing: run tests from tests/");
    while (n_lines > 0) free(lines[--n_lines]); /* of a test before, in the same process */
    while (fgets(line, sizeof line, f)) {
        ck_assert_int_lt(n_lines, TYPES_MAX);
        ck_assert_msg(strchr(line, '\n') != NULL, "a line is longer than %d bytes", LINE_MAX_BYTES);
        lines[n_lines++] = strdup(line);
    }
    (void)fclose(f);
    ck_assert_int_ge(n_lines, TYPES_LEAST);
}

static err_code read_config(const cJSON *j, model_config *out, err *e)
{
    char path[128], *text = cJSON_PrintUnformatted(j);
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    (void)fwrite(text, 1, strlen(text), f);
    (void)fclose(f);
    cJSON_free(text);
    memset(out, 0, sizeof *out);
    return model_config_read(dir, out, e);
}

/* The configuration of line i, with its class; the caller deletes it. */
static cJSON *config_of(int i)
{
    cJSON *pair = cJSON_Parse(lines[i]);
    ck_assert_msg(cJSON_GetArraySize(pair) == 2, "line %d", i + 1);
    cJSON *name = cJSON_DetachItemFromArray(pair, 0), *j = cJSON_DetachItemFromArray(pair, 0);
    cJSON *list = cJSON_AddArrayToObject(j, "architectures");
    cJSON_AddItemToArray(list, name);
    cJSON_Delete(pair);
    return j;
}

static const char *type_of(const cJSON *j)
{
    return cJSON_GetObjectItemCaseSensitive(j, "model_type")->valuestring;
}

/* ---- goldens --------------------------------------------------------------------------------- */

/* Whether a folder of fixtures is a model of this type, whose answers are known. */
static bool has_golden(const char *parent, const char *type)
{
    char path[300], want[64];
    DIR *d = opendir(parent);
    bool found = false;
    ck_assert_ptr_nonnull(d);
    snprintf(want, sizeof want, "\"model_type\": \"%s\"", type);
    for (struct dirent *de; !found && (de = readdir(d)) != NULL;) {
        static char text[1 << 16];
        snprintf(path, sizeof path, "%s/%.100s/config.json", parent, de->d_name);
        FILE *f = fopen(path, "rb");
        if (!f) continue;
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        (void)fclose(f);
        found = strstr(text, want) != NULL;
    }
    closedir(d);
    return found;
}

/* Types whose arithmetic another one's golden stands for. */
static const char *stands_for(const char *type)
{
    static const struct {
        const char *type, *by;
    } alike[] = {{"kimi_k2", "deepseek_v3"}, {"gemma3n", "gemma3n_text"}};
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++)
        if (strcmp(alike[i].type, type) == 0) return alike[i].by;
    return type;
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* Fields that change nothing, of the types that have them so. */
static const struct {
    const char *type, *field; /* type NULL: of all */
} idle[] = {
    /* of training, caches and the order of work, in transformers too */
    {NULL, "pretraining_tp"},
    {NULL, "chunk_size"},
    {NULL, "mamba_chunk_size"},
    {NULL, "num_logits_to_keep"},
    {NULL, "residual_in_fp32"},
    {NULL, "rescale_prenorm_residual"},
    {NULL, "time_step_floor"},
    {NULL, "time_step_max"},
    {"bamba", "z_loss_coefficient"},
    {"kimi_linear", "head_dim"},          /* nothing is as wide */
    {"hy_v3", "enable_moe_fp32_combine"}, /* all sums are in F32 here */
    {"mamba2", "time_step_min"},
    {"mamba2", "time_step_rank"},
    {"nemotron_h", "mamba_proj_bias"}, /* use_bias is the one */
    {"nemotron_h", "mamba_ssm_cache_dtype"},
    {"nemotron_h", "moe_shared_expert_overlap"},
    {"nemotron_h", "sliding_window"},
    {"nemotron_h", "use_mamba_kernels"},
    {"llama4_text", "router_jitter_noise"},
    {"minimax_m2", "router_jitter_noise"},
    {"mixtral", "router_jitter_noise"},
    {"phimoe", "input_jitter_noise"},
    {"gemma3n_text", "altup_coef_clip"},
    {"gpt2", "reorder_and_upcast_attn"}, /* all sums are in F32 here */
    {"gpt2", "summary_activation"},      /* of another class than the causal model */
    {"gpt2", "summary_proj_to_labels"},
    {"gpt2", "summary_type"},
    {"gpt2", "summary_use_proj"},
    {"gpt_bigcode", "attention_softmax_in_fp32"},
    {"gpt_bigcode", "scale_attention_softmax_in_fp32"},
    {"gpt_neo", "n_layer"}, /* that the list's maker gave to a class with another name for it */
    {"gpt_neox", "is_decoder"},
    {"jamba", "use_associative_scan"}, /* which code computes it */
    {"jamba", "use_mamba_kernels"},
    {"jamba", "use_mambapy"},
    {"opt", "init_std"},
    {"opt", "layerdrop"},
    /* of layers that guess further tokens, which are left out */
    {"mellum", "mtp_layer_types"},
    {"mellum", "mtp_mlp_layer_types"},
    {"mellum", "num_nextn_predict_layers"},
    {"nemotron_h", "mtp_layers_block_type"},
    {"nemotron_h", "num_nextn_predict_layers"},
    /* another field of the file comes first */
    {"gemma4_text", "moe_intermediate_size"},
    {"gemma4_text", "num_experts"},
    {"gemma4_text", "top_k_experts"},
    {"exaone4", "sliding_window_pattern"},
    {"falcon", "num_kv_heads"},
    {"gpt_neo", "attention_types"},
    {"exaone_moe", "first_k_dense_replace"},
    {"exaone_moe", "sliding_window_pattern"},
    {"gemma3_text", "tie_word_embeddings"}, /* of the whole model, where it takes images */
    {"gemma4_text", "tie_word_embeddings"}, /* the same */
    {"gemma3n_text", "tie_word_embeddings"},
    {"falcon_h1", "mamba_expand"},
    {"granite_swa", "rope_parameters"},
    {"granitemoe_swa", "rope_parameters"},
    {"llama4_text", "interleave_moe_layer_step"},
    {"llama4_text", "no_rope_layer_interval"},
    {"llama4_text", "no_rope_layers"},
    {"nemotron_h", "expand"},
    {"nemotron_h", "n_shared_experts"},
    {"smollm3", "no_rope_layer_interval"},
    /* no layer slides, and two layers are too few for the others */
    {"mellum", "sliding_window"},
    {"qwen2", "max_window_layers"},
    {"qwen2", "sliding_window"},
    {"qwen2", "use_sliding_window"},
    {"qwen2_moe", "max_window_layers"},
    {"qwen2_moe", "mlp_only_layers"},
    {"qwen2_moe", "sliding_window"},
    {"qwen3", "max_window_layers"},
    {"qwen3", "sliding_window"},
    {"qwen3", "use_sliding_window"},
    {"qwen3_moe", "mlp_only_layers"},
    {"qwen3_moe", "sliding_window"},
    {"qwen3_next", "mlp_only_layers"},
    {"smollm3", "sliding_window"},
    {"deepseek_v3", "first_k_dense_replace"},
    {"jamba", "attn_layer_offset"},
    {"jamba", "attn_layer_period"},
    {"jamba", "expert_layer_period"},
    {"gemma4_text", "use_double_wide_mlp"},
    {"gemma3n_text", "num_kv_shared_layers"},
    {"ernie4_5_moe", "moe_layer_end_index"},
    {"ernie4_5_moe", "moe_layer_interval"},
    {"lfm2", "conv_L_cache"},
    {"lfm2", "full_attn_idxs"},
    {"lfm2_moe", "conv_L_cache"},
    {"lfm2_moe", "num_dense_layers"},
    /* the other value is rounded to the same one, or too near to nothing */
    {"lfm2", "intermediate_size"},
    {"ernie4_5_moe", "moe_norm_min"},
};
enum { IDLE = sizeof idle / sizeof *idle };
static bool seen[IDLE];

static bool is_idle(const char *type, const char *field)
{
    for (int i = 0; i < IDLE; i++) {
        if (idle[i].type && strcmp(idle[i].type, type) != 0) continue;
        if (strcmp(idle[i].field, field) == 0) return seen[i] = true;
    }
    return false;
}

/* Another value than `v`, of the same kind; the number of an absent one. */
static cJSON *other_than(const cJSON *v)
{
    if (cJSON_IsBool(v)) return cJSON_CreateBool(!cJSON_IsTrue(v));
    if (cJSON_IsString(v)) return cJSON_CreateString("other");
    if (cJSON_IsArray(v)) return cJSON_CreateArray();
    if (cJSON_IsObject(v)) return cJSON_Parse("{\"rope_type\":\"default\",\"rope_theta\":777}");
    if (cJSON_IsNull(v)) return cJSON_CreateNumber(7);
    bool whole = v->valuedouble == (double)(int64_t)v->valuedouble;
    return cJSON_CreateNumber(whole ? v->valuedouble + 1 : v->valuedouble * 1.5);
}

/* Fields of `at`, which is `whole` or its text_config. */
static void check_fields(cJSON *whole, cJSON *at, const model_config *usual)
{
    char *type = strdup(type_of(at));
    int n = cJSON_GetArraySize(at);
    for (int i = 0; i < n; i++) {
        cJSON *v = cJSON_GetArrayItem(at, i);
        char *field = strdup(v->string);
        if (strcmp(field, "text_config") != 0) {
            static model_config got;
            err e;
            cJSON *old = cJSON_Duplicate(v, true);
            cJSON_ReplaceItemInObjectCaseSensitive(at, field, other_than(v));
            err_code rc = read_config(whole, &got, &e);
            bool same = !rc && memcmp(&got, usual, sizeof got) == 0;
            char *text = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(at, field));
            ck_assert_msg(!same || is_idle(type, field), "%s: \"%s\": %s changes nothing", type,
                          field, text);
            cJSON_free(text);
            cJSON_ReplaceItemInObjectCaseSensitive(at, field, old);
        }
        free(field);
    }
    free(type);
}

/* A sentence that names the type, or a field of the file. */
static bool names_reason(const cJSON *j, const char *says)
{
    const cJSON *item;
    if (strstr(says, "\"model_type\"") && strstr(says, type_of(j))) return true;
    cJSON_ArrayForEach(item, j)
    {
        char quoted[96];
        snprintf(quoted, sizeof quoted, "\"%s\"", item->string);
        if (strstr(says, quoted)) return true;
    }
    return strstr(says, "\"rope_scaling\"") != NULL;
}

START_TEST(is_served_or_refused_by_name)
{
    static model_config c;
    err e;
    read_lines();
    tmpdir_make(dir);
    int served = 0;
    for (int i = 0; i < n_lines; i++) {
        cJSON *j = config_of(i);
        const char *type = type_of(j);
        err_code rc = read_config(j, &c, &e);
        bool bare = cJSON_GetArraySize(j) == 2, by_type = rc && strstr(e.msg, "\"model_type\"");
        ck_assert_msg(!bare || by_type, "%s is served: run tests/tools/make_model_types.py", type);
        if (rc) {
            ck_assert_msg(names_reason(j, e.msg), "%s: '%s' names no reason", type, e.msg);
        } else {
            const char *by = stands_for(type);
            ck_assert_msg(has_golden("fixtures/families/models", by) ||
                              has_golden("fixtures/models", by),
                          "%s is accepted, and no golden shows that it is computed right", type);
            served++;
        }
        cJSON_Delete(j);
    }
    printf("%d of %d model types are served\n", served, n_lines);
    ck_assert_int_ge(served, 60);
    tmpdir_remove(dir);
}
END_TEST

START_TEST(each_field_matters)
{
    static model_config c;
    err e;
    read_lines();
    tmpdir_make(dir);
    for (int i = 0; i < n_lines; i++) {
        cJSON *j = config_of(i), *text = cJSON_GetObjectItemCaseSensitive(j, "text_config");
        if (read_config(j, &c, &e) == ERR_NONE) {
            if (!text) check_fields(j, j, &c);
            if (text) check_fields(j, text, &c);
        }
        cJSON_Delete(j);
    }
    for (int i = 0; i < IDLE; i++)
        ck_assert_msg(seen[i], "\"%s\" is listed as idle, and matters", idle[i].field);
    tmpdir_remove(dir);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("model_types");
    TCase *tc = tcase_create("types");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, is_served_or_refused_by_name);
    tcase_add_test(tc, each_field_matters);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
