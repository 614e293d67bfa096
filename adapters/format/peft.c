/* peft.c -- the keys of adapter_config.json, one after another, and nothing ignored.
 *
 * Module names are those of PEFT: "model.layers.3.self_attn.q_proj".  Whether one is wrapped
 * follows PEFT's order: exclude_modules; target_modules as a pattern, or as a list (whole names,
 * then endings, the latter narrowed by layers_to_transform).  A name of the list that fits no
 * module is harmless, as in PEFT: a tensor that no rule covers is refused anyway.  Ranks and alphas
 * take the first matching key of their pattern maps.
 */
#include "adapters/format/peft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "adapters/format/pattern.h"
#include "engine/base/json.h"
#include "engine/sample/pooling.h"

static const json_limits limits = {.max_bytes = 1 << 20, .max_depth = 16, .max_values = 65536};
enum { NAME_MAX_BYTES = 128, PATTERN_KEYS_MAX = 8192, PATTERN_SIZE_MAX = 600000 };
enum { SAVED_MAX = 1024 }; /* names of modules_to_save; each is compared with every norm's */
static const uint64_t WORK_MAX = 400 * 1000 * 1000; /* a second or so, for any config */

void peft_slot_shape(const model_config *base, size_t slot, int *d_out, int *d_in)
{
    if (slot < peft_head_slot(base->n_layer)) {
        model_layer_shape(base, (int)(slot / PROJ_COUNT), (proj)(slot % PROJ_COUNT), d_out, d_in);
    } else if (slot >= peft_expert_slots(base->n_layer)) {
        size_t at = slot - peft_expert_slots(base->n_layer);
        model_expert_shape(base, (proj)(PROJ_GATE + at % LORA_EXPERT_PROJS), d_out, d_in);
    } else if (slot == peft_head_slot(base->n_layer)) {
        *d_out = base->n_vocab;
        *d_in = base->dim;
    } else if (slot == peft_score_slot(base->n_layer)) {
        *d_out = POOLING_LABELS_MAX;
        *d_in = base->dim;
    } else {
        *d_out = base->dim;
        *d_in = slot == peft_embed_slot(base->n_layer) ? base->n_vocab : 1;
    }
}

bool peft_module_there(const model_config *base, int layer, int module)
{
    char have[64], want[64];
    int count;
    if (module >= MODULE_SHARED_GATE || module == PROJ_ROUTER || module == PROJ_SHARED_SCORE)
        return true;
    proj p = module_projs(module, &count);
    if (!model_has_proj(base, layer, p)) return false;
    const char *fused = model_fused_name(base, layer, p);
    if (module == MODULE_QKV && !fused)
        return base->latent.rank == 0 && mixer_attends(base->mixer[layer]);
    if (count > 1 && (fused || module == MODULE_INPUT_LINEAR || count > 2))
        return fused && strcmp(fused, module_name(module)) == 0;
    if (count > 1) return true;
    module_base_name(have, sizeof(have), base->mlp_names, ROUTER_GATE, module);
    model_proj_name(base, layer, p, want, sizeof(want));
    return strcmp(have, want) == 0;
}

/* A Granite with experts, whose modules have names of their own. */
static bool is_granite(const model_config *base)
{
    return strncmp(base->family, "granitemoe", 10) == 0;
}

/* Modules by which sentences name projections: those of the first layer that has them. */
static void learn_modules(peft_config *pc, const model_config *base)
{
    for (int p = 0, count; p < PROJ_COUNT; p++) {
        bool found = false;
        pc->module[p] = (uint8_t)p;
        for (int layer = 0; layer < base->n_layer && !found; layer++)
            for (int m = 0; m < MODULE_SHARED_GATE && !found; m++) {
                found = (int)module_projs(m, &count) == p && count == 1 &&
                        peft_module_there(base, layer, m);
                if (found) pc->module[p] = (uint8_t)m;
            }
    }
}

static void expert_slot_name(char *out, size_t cap, const model_config *base, const peft_config *pc,
                             size_t slot)
{
    static const naming usual = {.root = -1}, mixtral = {.root = -1, .style = EXPERT_W123},
                        gateless = {.root = -1, .style = EXPERT_MIXER};
    size_t at = slot - peft_expert_slots(pc->n_layer), each = (size_t)pc->n_expert;
    module_expert_path(out, cap,
                       base->ungated                          ? &gateless
                       : strcmp(base->family, "mixtral") == 0 ? &mixtral
                                                              : &usual,
                       (int)(at / LORA_EXPERT_PROJS / each), (int)(at / LORA_EXPERT_PROJS % each),
                       MODULE_EXPERT_GATE + (int)(at % LORA_EXPERT_PROJS));
}

void peft_slot_name(char *out, size_t cap, const model_config *base, const peft_config *pc,
                    size_t slot)
{
    int n_layer = pc->n_layer, layer = (int)(slot / PROJ_COUNT), p = (int)(slot % PROJ_COUNT);
    size_t norm = slot - peft_norm_slot(n_layer, 0);
    if (slot < peft_head_slot(n_layer)) {
        char name[64];
        if (p == PROJ_PLE_MODEL) {
            snprintf(out, cap, "model.%s", module_name(p));
            return;
        }
        if (module_is_stream(p)) {
            snprintf(out, cap, "model.%s.%d", module_name(p), layer);
            return;
        }
        if (p >= PROJ_ROUTER)
            module_base_name(name, sizeof(name), base->mlp_names, pc->router, p);
        else
            model_proj_name(base, layer, (proj)p, name, sizeof(name));
        snprintf(out, cap, "model.layers.%d.%s", layer, name);
    } else if (slot >= peft_expert_slots(n_layer))
        expert_slot_name(out, cap, base, pc, slot);
    else if (slot == peft_score_slot(n_layer))
        snprintf(out, cap, "%s", module_name(MODULE_SCORE));
    else if (slot == peft_norm_slot(n_layer, n_layer * LORA_NORMS))
        snprintf(out, cap, "model.%s", module_name(MODULE_LAST_NORM));
    else if (slot >= peft_norm_slot(n_layer, 0))
        snprintf(out, cap, "model.layers.%d.%s", (int)(norm / LORA_NORMS),
                 module_name(MODULE_ATTN_NORM + (int)(norm % LORA_NORMS)));
    else
        snprintf(out, cap, "%s",
                 module_name(slot == peft_head_slot(n_layer) ? MODULE_HEAD : MODULE_EMBED));
}

/* ---- keys --------------------------------------------------------------------------------- */

typedef enum {
    KEY_HANDLED, /* read elsewhere in this file */
    KEY_INERT,   /* changes nothing for serving, whatever its value */
    KEY_UNSET,   /* must be unset: null, false, empty */
} key_kind;

static const struct {
    const char *name;
    key_kind kind;
    const char *feature; /* KEY_UNSET: what it would turn on */
} known[] = {
    {"r", KEY_HANDLED, NULL},
    {"lora_alpha", KEY_HANDLED, NULL},
    {"use_rslora", KEY_HANDLED, NULL},
    {"rank_pattern", KEY_HANDLED, NULL},
    {"alpha_pattern", KEY_HANDLED, NULL},
    {"target_modules", KEY_HANDLED, NULL},
    {"exclude_modules", KEY_HANDLED, NULL},
    {"layers_to_transform", KEY_HANDLED, NULL},
    {"layers_pattern", KEY_HANDLED, NULL},
    {"bias", KEY_HANDLED, NULL},
    {"lora_bias", KEY_HANDLED, NULL},
    {"use_dora", KEY_HANDLED, NULL},
    {PEFT_GAINS, KEY_HANDLED, NULL},
    {"modules_to_save", KEY_HANDLED, NULL},
    {"ensure_weight_tying", KEY_HANDLED, NULL},
    {"peft_type", KEY_HANDLED, NULL},
    {"task_type", KEY_HANDLED, NULL},
    {"init_lora_weights", KEY_HANDLED, NULL},
    {"base_model_name_or_path", KEY_HANDLED, NULL},
    {"auto_mapping", KEY_INERT, NULL},
    {"peft_version", KEY_INERT, NULL},
    {"revision", KEY_INERT, NULL},
    {"inference_mode", KEY_INERT, NULL},
    {"lora_dropout", KEY_INERT, NULL},
    {"eva_config", KEY_INERT, NULL},    /* how A was initialised; ranks are in rank_pattern */
    {"megatron_core", KEY_INERT, NULL}, /* a module's name, used with megatron_config only */
    {"qalora_group_size", KEY_INERT, NULL},
    {"runtime_config", KEY_INERT, NULL},
    {"velora_config", KEY_INERT, NULL},  /* how gradients are kept; concerns training only */
    {"fan_in_fan_out", KEY_INERT, NULL}, /* how the base has its weights: A and B are the same */
    {"loftq_config", KEY_UNSET, "LoftQ, which changes the base"},
    {"corda_config", KEY_UNSET, "CorDA, which changes the base"},
    {"lora_ga_config", KEY_UNSET, "LoRA-GA, which changes the base"},
    {"megatron_config", KEY_UNSET, "Megatron layers"},
    {"trainable_token_indices", KEY_HANDLED, NULL},
    {"target_parameters", KEY_HANDLED, NULL},
    {"kasa_config", KEY_UNSET, "KaSA, which changes the base"},
    {"monteclora_config", KEY_UNSET, "MonteCLoRA"},
    {"arrow_config", KEY_UNSET, "Arrow routing"},
    {"use_bdlora", KEY_UNSET, "block-diagonal LoRA"},
    {"layer_replication", KEY_UNSET, "replicated layers"},
    {"use_qalora", KEY_UNSET, "QA-LoRA"},
    {"alora_invocation_tokens", KEY_HANDLED, NULL},
};

static bool unset(const cJSON *v)
{
    if (cJSON_IsNull(v) || cJSON_IsFalse(v)) return true;
    if (cJSON_IsArray(v) || cJSON_IsObject(v)) return !v->child;
    return cJSON_IsString(v) && v->valuestring[0] == 0;
}

static err_code check_keys(const cJSON *root, err *e)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, root)
    {
        size_t i = 0, n = sizeof known / sizeof(*known);
        while (i < n && strcmp(known[i].name, v->string) != 0) i++;
        if (i == n && !unset(v))
            return err_set(e, ERR_UNSUPPORTED,
                           "adapter_config.json sets '%.64s', which this server does not know",
                           v->string);
        if (i < n && known[i].kind == KEY_UNSET && !unset(v))
            return err_set(e, ERR_UNSUPPORTED, "adapter_config.json sets '%s': %s is not supported",
                           known[i].name, known[i].feature);
    }
    return ERR_NONE;
}

static err_code check_type(const cJSON *root, err *e)
{
    const char *s = NULL;
    if (json_str(root, "peft_type", &s, NULL, e) != ERR_NONE) return e->code;
    if (!s) return err_set(e, ERR_INPUT, "adapter_config.json has no peft_type");
    if (strcmp(s, "LORA") == 0) return ERR_NONE;
    const char *const sent[] = {"LOHA", "LOKR", "VERA", "IA3"};
    for (size_t i = 0; i < sizeof sent / sizeof(*sent); i++)
        if (strcmp(s, sent[i]) == 0)
            return err_set(
                e, ERR_UNSUPPORTED,
                "peft_type %s becomes LORA on the way in: send the folder as a tar or to "
                "/v1/load_lora_adapter",
                s);
    return err_set(e, ERR_UNSUPPORTED,
                   "peft_type '%.32s' is not supported: LORA is, and LOHA, LOKR, VERA and IA3 are "
                   "made of it",
                   s);
}

/* Fields of which only some values have a meaning here: type, task, bias, and the start of A and
 * B. */
static err_code check_fixed(const cJSON *root, peft_config *pc, err *e)
{
    const char *s = NULL;
    if (check_type(root, e) != ERR_NONE) return e->code;
    if (json_str(root, "task_type", &s, NULL, e) != ERR_NONE) return e->code;
    bool known_task = !s || s[0] == 0 || strcmp(s, "CAUSAL_LM") == 0 ||
                      strcmp(s, "FEATURE_EXTRACTION") == 0 || strcmp(s, "SEQ_CLS") == 0;
    if (!known_task)
        return err_set(e, ERR_UNSUPPORTED,
                       "task_type '%.32s' is not supported: only CAUSAL_LM, FEATURE_EXTRACTION and "
                       "SEQ_CLS are",
                       s);
    s = NULL;
    if (json_str(root, "bias", &s, NULL, e) != ERR_NONE) return e->code;
    if (!s || strcmp(s, "none") == 0)
        pc->bias = PEFT_BIAS_NONE;
    else if (strcmp(s, "all") == 0)
        pc->bias = PEFT_BIAS_ALL;
    else if (strcmp(s, "lora_only") == 0)
        pc->bias = PEFT_BIAS_LORA_ONLY;
    else
        return err_set(e, ERR_UNSUPPORTED, "bias must be none, all or lora_only, not '%.32s'", s);

    const cJSON *init = json_get(root, "init_lora_weights");
    if (!init || cJSON_IsNull(init) || cJSON_IsBool(init)) return ERR_NONE;
    if (!cJSON_IsString(init))
        return err_set(e, ERR_INPUT, "init_lora_weights must be true, false or a string");
    /* These start A and B alone.  The others (pissa, olora, corda, loftq, mica, lora_ga) take
     * something out of the base's weights, so what was trained does not fit the base that is
     * served. */
    const char *harmless[] = {"gaussian", "eva", "orthogonal"};
    for (size_t i = 0; i < sizeof harmless / sizeof(*harmless); i++)
        if (strcmp(init->valuestring, harmless[i]) == 0) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED,
                   "init_lora_weights '%.32s' changes the base's weights: save the adapter with "
                   "path_initial_model_for_weight_conversion",
                   init->valuestring);
}

/* PEFT saves every module whose name ends in one of these, as text: "norm" means all norms. */
static bool ends_as(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcmp(name + n - m, ending) == 0;
}

/* The norms that one name of modules_to_save covers; how many. */
static int save_norms(const char *ending, const model_config *base, const naming *names,
                      peft_config *pc)
{
    char name[NAME_MAX_BYTES];
    int found = 0, n = base->n_layer * LORA_NORMS;
    for (int at = 0; at <= n; at++) {
        int module = at == n ? MODULE_LAST_NORM : MODULE_ATTN_NORM + at % LORA_NORMS;
        module_path(name, sizeof name, names, at == n ? -1 : at / LORA_NORMS, module);
        if (!ends_as(name, ending)) continue;
        pc->layer[peft_norm_slot(base->n_layer, at)].saved = true;
        found++;
    }
    return found;
}

/* The two tables outside the layers, the norms and a head of classes can be whole trained modules.
 * Another matrix in place of a layer's would be a second base: nothing of its product could be
 * shared. */
static err_code read_saved(const cJSON *root, const model_config *base, const naming *names,
                           peft_config *pc, err *e)
{
    const cJSON *list = json_get(root, "modules_to_save"), *v;
    if (!list || unset(list)) return ERR_NONE;
    if (!cJSON_IsArray(list)) return err_set(e, ERR_INPUT, "modules_to_save must be a list");
    if (cJSON_GetArraySize(list) > SAVED_MAX)
        return err_set(e, ERR_LIMIT, "modules_to_save has more than %d names", SAVED_MAX);
    cJSON_ArrayForEach(v, list)
    {
        if (!cJSON_IsString(v) || v->valuestring[0] == 0)
            return err_set(e, ERR_INPUT, "modules_to_save must hold names");
        const char *name = v->valuestring, *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
        bool heads = base->qk_norm && (ends_as("layers.0.self_attn.q_norm", name) ||
                                       ends_as("layers.0.self_attn.k_norm", name));
        if (strcmp(last, "embed_tokens") == 0)
            pc->save_embed = true;
        else if (strcmp(last, "lm_head") == 0)
            pc->save_head = true;
        else if (strcmp(last, "score") == 0 || strcmp(last, "classifier") == 0)
            pc->save_score = true;
        else if (heads)
            return err_set(e, ERR_UNSUPPORTED,
                           "modules_to_save names '%.64s', which covers q_norm or k_norm: trained "
                           "norms of queries and keys are not supported",
                           name);
        else if (base->fixed_norms && save_norms(name, base, names, pc) > 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "modules_to_save names '%.64s': trained norms are not supported for a "
                           "base of the family %s",
                           name, base->family);
        else if (save_norms(name, base, names, pc) == 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "modules_to_save names '%.64s': whole trained modules other than "
                           "embed_tokens, lm_head, norms and a head of classes ('score', "
                           "'classifier') are not supported, since their "
                           "products could not be shared with the base: train LoRA on it instead",
                           name);
    }
    return ERR_NONE;
}

/* {"embed_tokens": list, "lm_head": list}: the one list of both. */
static err_code pick_tokens(const cJSON *map, peft_config *pc, const cJSON **list, err *e)
{
    const cJSON *of, *embed = NULL, *head = NULL;
    cJSON_ArrayForEach(of, map)
    {
        const char *dot = strrchr(of->string, '.'), *name = dot != NULL ? dot + 1 : of->string;
        const cJSON **to = strcmp(name, "embed_tokens") == 0 ? &embed
                           : strcmp(name, "lm_head") == 0    ? &head
                                                             : NULL;
        if (!to)
            return err_set(e, ERR_UNSUPPORTED,
                           "trainable_token_indices names '%.64s': single tokens of embed_tokens "
                           "and lm_head alone are supported",
                           of->string);
        if (*to) return err_set(e, ERR_INPUT, "trainable_token_indices names %s twice", name);
        *to = of;
    }
    if (!embed || (head && !cJSON_Compare(embed, head, true)))
        return err_set(e, ERR_UNSUPPORTED,
                       "trainable_token_indices names other tokens of lm_head than of "
                       "embed_tokens, which is not supported");
    pc->head_tokens = head != NULL;
    *list = embed;
    return ERR_NONE;
}

/* trainable_token_indices: a list, or {"embed_tokens": list, "lm_head": the same list}; rows of the
 * input table, of a tied output layer too. */
static err_code read_tokens(const cJSON *root, const model_config *base, peft_config *pc, err *e)
{
    const cJSON *list = json_get(root, "trainable_token_indices"), *v;
    pc->n_vocab = base->n_vocab;
    if (!list || unset(list)) return ERR_NONE;
    if (cJSON_IsObject(list)) {
        err_code rc = pick_tokens(list, pc, &list, e);
        if (rc) return rc;
    }
    if (!cJSON_IsArray(list))
        return err_set(e, ERR_INPUT, "trainable_token_indices must be a list of tokens");
    int most = base->n_vocab + base->added_max;
    bool *seen = calloc((size_t)most, sizeof(*seen));
    pc->token = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(*pc->token));
    err_code rc =
        seen != NULL && pc->token != NULL ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    cJSON_ArrayForEach(v, list)
    {
        if (rc) break;
        double id = cJSON_IsNumber(v) ? v->valuedouble : -1;
        if (id < 0 || id != floor(id))
            rc = err_set(e, ERR_INPUT, "trainable_token_indices must hold tokens' numbers");
        else if (id >= most)
            rc = err_set(e, base->added_max > 0 ? ERR_LIMIT : ERR_UNSUPPORTED,
                         "trainable_token_indices names token %.0f, this server serves %d, "
                         "added tokens included (adapters.max_added_tokens)",
                         id, most);
        else if (seen[(size_t)id])
            rc = err_set(e, ERR_INPUT, "trainable_token_indices names token %.0f twice", id);
        if (rc) break;
        seen[(size_t)id] = true;
        pc->token[pc->n_token++] = (int32_t)id;
        if (id >= pc->n_vocab) pc->n_vocab = (int)id + 1;
    }
    free(seen);
    return rc;
}

/* alora_invocation_tokens: the adapter works from the last place on where a prompt has them. */
static err_code read_invocation(const cJSON *root, const model_config *base, peft_config *pc,
                                err *e)
{
    const cJSON *list = json_get(root, "alora_invocation_tokens"), *v;
    if (!list || cJSON_IsNull(list)) return ERR_NONE;
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (n < 1) return err_set(e, ERR_INPUT, "alora_invocation_tokens must be a list of tokens");
    if (n > PEFT_INVOCATION_MAX)
        return err_set(e, ERR_LIMIT, "alora_invocation_tokens has %d tokens; at most %d are read",
                       n, PEFT_INVOCATION_MAX);
    pc->invocation = calloc((size_t)n, sizeof(*pc->invocation));
    if (!pc->invocation) return err_set(e, ERR_NOMEM, "out of memory");
    cJSON_ArrayForEach(v, list)
    {
        double id = cJSON_IsNumber(v) ? v->valuedouble : -1;
        if (!(id >= 0 && id < base->n_vocab) || id != floor(id))
            return err_set(e, ERR_INPUT,
                           "alora_invocation_tokens must hold tokens' numbers below %d",
                           base->n_vocab);
        pc->invocation[pc->n_invocation++] = (int32_t)id;
    }
    return ERR_NONE;
}

/* ---- patterns ------------------------------------------------------------------------------- */

typedef struct keyed {
    pattern *p;
    double value;
} keyed;

typedef struct plan {
    const cJSON *targets, *excluded; /* list or string */
    bool all_linear;
    pattern *target_pattern, *excluded_pattern;
    const cJSON *layers;     /* layers_to_transform: number, list or NULL */
    pattern **layer_pattern; /* layers_pattern */
    int n_layer_pattern;
    keyed *rank, *alpha;
    int n_rank, n_alpha;
    const cJSON *parameters; /* target_parameters, or NULL */
    uint64_t work;
} plan;

static void plan_clear(plan *pl)
{
    pattern_destroy(pl->target_pattern);
    pattern_destroy(pl->excluded_pattern);
    for (int i = 0; i < pl->n_layer_pattern; i++) pattern_destroy(pl->layer_pattern[i]);
    for (int i = 0; i < pl->n_rank; i++) pattern_destroy(pl->rank[i].p);
    for (int i = 0; i < pl->n_alpha; i++) pattern_destroy(pl->alpha[i].p);
    free(pl->layer_pattern);
    free(pl->rank);
    free(pl->alpha);
}

/* Compiles `before` + key + `after`, the key having to be a pattern by itself. */
static err_code compile_around(const char *key_name, const char *before, const char *key,
                               const char *after, pattern **out, err *e)
{
    pattern *alone = NULL;
    err_code rc = pattern_create(&alone, key, e);
    pattern_destroy(alone);
    if (rc) return err_context(e, "%s", key_name);
    size_t len = strlen(before) + strlen(key) + strlen(after) + 1;
    char *text = malloc(len);
    if (!text) return err_set(e, ERR_NOMEM, "out of memory");
    snprintf(text, len, "%s%s%s", before, key, after);
    rc = pattern_create(out, text, e);
    free(text);
    return rc == ERR_NONE ? rc : err_context(e, "%s", key_name);
}

/* rank_pattern, alpha_pattern: {"module or pattern": number}.  PEFT matches (.*\.)?(key)$. */
static err_code read_keyed(const cJSON *root, const char *name, keyed **out, int *n_out, err *e)
{
    const cJSON *map = json_get(root, name), *v;
    if (!map || cJSON_IsNull(map)) return ERR_NONE;
    if (!cJSON_IsObject(map)) return err_set(e, ERR_INPUT, "%s must be an object", name);
    int n = cJSON_GetArraySize(map), size = 0;
    if (n > PATTERN_KEYS_MAX)
        return err_set(e, ERR_LIMIT, "%s has more than %d keys", name, PATTERN_KEYS_MAX);
    *out = calloc((size_t)n + 1, sizeof **out);
    if (!*out) return err_set(e, ERR_NOMEM, "out of memory");
    cJSON_ArrayForEach(v, map)
    {
        if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble))
            return err_set(e, ERR_INPUT, "%s: '%.64s' must be a number", name, v->string);
        keyed *k = &(*out)[*n_out];
        k->value = v->valuedouble;
        err_code rc = compile_around(name, "(.*\\.)?(", v->string, ")", &k->p, e);
        if (rc) return rc;
        ++*n_out;
        size += pattern_size(k->p);
        if (size > PATTERN_SIZE_MAX)
            return err_set(e, ERR_LIMIT, "the patterns of %s are too large together", name);
    }
    return ERR_NONE;
}

static err_code check_strings(const cJSON *list, const char *name, err *e)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, list)
    {
        if (!cJSON_IsString(v) || v->valuestring[0] == 0)
            return err_set(e, ERR_INPUT, "%s must hold names", name);
    }
    return ERR_NONE;
}

/* Of parameters PEFT takes those of experts, which lie in one tensor for all of a layer. */
static err_code read_parameters(const cJSON *root, const model_config *base, const peft_config *pc,
                                plan *pl, err *e)
{
    const cJSON *list = json_get(root, "target_parameters");
    if (!list || unset(list)) return ERR_NONE;
    if (base->experts.route.n == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "adapter_config.json sets 'target_parameters': LoRA on bare parameters is "
                       "supported for experts alone, and the base has none");
    if (!cJSON_IsArray(list)) return err_set(e, ERR_INPUT, "target_parameters must be a list");
    if (pc->dora || pc->lora_bias)
        return err_set(e, ERR_UNSUPPORTED,
                       "target_parameters together with use_dora or lora_bias is not supported");
    pl->parameters = list;
    return check_strings(list, "target_parameters", e);
}

static err_code read_targets(const cJSON *root, plan *pl, err *e)
{
    const cJSON *t = json_get(root, "target_modules");
    if ((!t || unset(t)) && pl->parameters) return ERR_NONE;
    if (!t || unset(t))
        return err_set(e, ERR_INPUT, "target_modules is missing: no layer would be adapted");
    pl->targets = t;
    if (cJSON_IsString(t)) {
        pl->all_linear = strcasecmp(t->valuestring, "all-linear") == 0;
        if (pl->all_linear) return ERR_NONE;
        return compile_around("target_modules", "", t->valuestring, "", &pl->target_pattern, e);
    }
    if (!cJSON_IsArray(t))
        return err_set(e, ERR_INPUT, "target_modules must be a list or a string");
    return check_strings(t, "target_modules", e);
}

static err_code read_excluded(const cJSON *root, plan *pl, err *e)
{
    const cJSON *x = json_get(root, "exclude_modules");
    if (!x || unset(x)) return ERR_NONE;
    pl->excluded = x;
    if (cJSON_IsString(x))
        return compile_around("exclude_modules", "", x->valuestring, "", &pl->excluded_pattern, e);
    if (!cJSON_IsArray(x))
        return err_set(e, ERR_INPUT, "exclude_modules must be a list or a string");
    return check_strings(x, "exclude_modules", e);
}

static err_code check_layer(const cJSON *v, int n_layer, err *e)
{
    if (!cJSON_IsNumber(v) || v->valuedouble != floor(v->valuedouble))
        return err_set(e, ERR_INPUT, "layers_to_transform must be a whole number or a list");
    if (v->valuedouble < 0 || v->valuedouble >= n_layer)
        return err_set(e, ERR_INPUT, "layers_to_transform names layer %g; the base has %d",
                       v->valuedouble, n_layer);
    return ERR_NONE;
}

/* layers_to_transform and layers_pattern, as PEFT reads them: the pattern stands for the module
 * that holds the layers, and is put into a longer one. */
static err_code read_layers(const cJSON *root, plan *pl, int n_layer, err *e)
{
    const cJSON *l = json_get(root, "layers_to_transform"), *v;
    const cJSON *pat = json_get(root, "layers_pattern");
    if (!l || unset(l)) {
        if (pat && !unset(pat))
            return err_set(e, ERR_INPUT, "layers_pattern is set without layers_to_transform");
        return ERR_NONE;
    }
    if (!cJSON_IsArray(pl->targets))
        return err_set(e, ERR_INPUT, "layers_to_transform needs target_modules as a list");
    pl->layers = l;
    err_code rc = ERR_NONE;
    if (cJSON_IsArray(l)) {
        cJSON_ArrayForEach(v, l)
        {
            if (!rc) rc = check_layer(v, n_layer, e);
        }
    } else {
        rc = check_layer(l, n_layer, e);
    }
    if (rc || !pat || unset(pat)) return rc;
    if (!cJSON_IsString(pat) && !cJSON_IsArray(pat))
        return err_set(e, ERR_INPUT, "layers_pattern must be a list or a string");
    rc = cJSON_IsArray(pat) ? check_strings(pat, "layers_pattern", e) : ERR_NONE;
    if (rc) return rc;
    int n = cJSON_IsArray(pat) ? cJSON_GetArraySize(pat) : 1;
    pl->layer_pattern = calloc((size_t)n, sizeof(pattern *));
    if (!pl->layer_pattern) return err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; i < n && !rc; i++) {
        const char *text =
            cJSON_IsArray(pat) ? cJSON_GetArrayItem(pat, i)->valuestring : pat->valuestring;
        /* PEFT puts it into a longer pattern without parentheses: a '|' would cut that in two. */
        if (strchr(text, '|') != NULL)
            return err_set(e, ERR_UNSUPPORTED, "layers_pattern '%.64s': '|' is not supported",
                           text);
        rc = compile_around("layers_pattern", "(?:|.*\\.)(?:", text, ")\\.\\d+\\..*",
                            &pl->layer_pattern[i], e);
        if (!rc) pl->n_layer_pattern++;
    }
    return rc;
}

/* ---- one module ------------------------------------------------------------------------------ */

static bool ends_with(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n > m && name[n - m - 1] == '.' && strcmp(name + n - m, ending) == 0;
}

static bool excluded(plan *pl, const char *name)
{
    if (!pl->excluded) return false;
    if (pl->excluded_pattern) return pattern_matches(pl->excluded_pattern, name, &pl->work);
    const cJSON *v;
    cJSON_ArrayForEach(v, pl->excluded)
    {
        if (strcmp(v->valuestring, name) == 0 || ends_with(name, v->valuestring)) return true;
    }
    return false;
}

/* `layer` < 0: a module outside the layers. */
static bool layer_wanted(plan *pl, const char *name, int layer)
{
    if (!pl->layers) return true;
    bool found = pl->n_layer_pattern == 0 && layer >= 0;
    for (int i = 0; i < pl->n_layer_pattern && !found; i++)
        found = pattern_matches(pl->layer_pattern[i], name, &pl->work);
    if (!found) return false;
    if (cJSON_IsNumber(pl->layers)) return (int)pl->layers->valuedouble == layer;
    const cJSON *v;
    cJSON_ArrayForEach(v, pl->layers)
    {
        if ((int)v->valuedouble == layer) return true;
    }
    return false;
}

static bool targeted(plan *pl, const char *name, int layer)
{
    if (pl->target_pattern) return pattern_matches(pl->target_pattern, name, &pl->work);
    bool whole = false, ending = false;
    const cJSON *v;
    cJSON_ArrayForEach(v, pl->targets)
    {
        whole |= strcmp(v->valuestring, name) == 0;
        ending |= ends_with(name, v->valuestring);
        pl->work++;
    }
    return whole || (ending && layer_wanted(pl, name, layer));
}

static bool lookup(plan *pl, const keyed *k, int n, const char *name, double *out)
{
    for (int i = 0; i < n; i++)
        if (pattern_matches(k[i].p, name, &pl->work)) {
            *out = k[i].value;
            return true;
        }
    return false;
}

static err_code settle_layer(plan *pl, peft_config *pc, const char *name, int rank_limit,
                             peft_layer *out, err *e)
{
    double rank = pc->rank, alpha = pc->alpha;
    lookup(pl, pl->rank, pl->n_rank, name, &rank);
    lookup(pl, pl->alpha, pl->n_alpha, name, &alpha);
    if (rank != floor(rank) || rank < 1 || rank > rank_limit)
        return err_set(e, rank > rank_limit ? ERR_LIMIT : ERR_INPUT,
                       "the rank of %s is %g; allowed are 1 to %d", name, rank, rank_limit);
    if (!(alpha >= 0 && alpha <= 1e6))
        return err_set(e, ERR_INPUT, "lora_alpha of %s is %g; it must be from 0 to 1e6", name,
                       alpha);
    out->wrapped = true;
    out->rank = (int)rank;
    out->scale = (float)(alpha / (pc->rslora ? sqrt(rank) : rank));
    pc->n_wrapped++;
    if (out->rank > pc->rank_max) pc->rank_max = out->rank;
    return ERR_NONE;
}

/* Wraps one module (which may be several projections fused). */
static err_code settle_module(plan *pl, peft_config *pc, const char *name, int layer, int module,
                              int rank_limit, err *e)
{
    peft_layer one = {0};
    int count;
    err_code rc = settle_layer(pl, pc, name, rank_limit, &one, e);
    if (module == PROJ_PLE_MODEL)
        for (int i = 0; i < pc->n_layer; i++)
            pc->layer[(size_t)i * PROJ_COUNT + PROJ_PLE_MODEL] = one;
    else if (module == MODULE_HEAD)
        pc->layer[peft_head_slot(pc->n_layer)] = one;
    else if (module == MODULE_EMBED)
        pc->layer[peft_embed_slot(pc->n_layer)] = one;
    else
        for (int first = (int)module_projs(module, &count), i = 0; i < count; i++)
            pc->layer[(size_t)layer * PROJ_COUNT + (size_t)(first + i)] = one;
    return rc;
}

/* Does this layer of the base have the module, as the adapter's author called it? */
static bool there(const model_config *base, const naming *names, int layer, int module)
{
    bool mixed = base->layer[layer] & LAYER_EXPERTS;
    if (module == PROJ_ROUTER) return mixed;
    if (module == PROJ_SHARED_SCORE) return mixed && base->experts.shared_gated;
    if (module >= MODULE_EXPERT_GATE || !peft_module_there(base, layer, module)) return false;
    if (module >= PROJ_PLE_MODEL && module < PROJ_COUNT) return module != PROJ_PLE_MODEL;
    mixed &= !base->experts.beside; /* whose MLP is called as others are */
    if (module >= MODULE_Q_B && module < MODULE_SHARED_GATE) return true;
    if (module >= MODULE_SHARED_GATE) return mixed && base->experts.shared_dim > 0;
    if (mixed && module >= PROJ_GATE && module != MODULE_QKV) return false;
    bool mlp = module >= PROJ_GATE && module <= MODULE_GATE_UP && module != MODULE_QKV;
    bool c_fc = base->mlp_names == MLP_C_FC;
    if (module == MODULE_FC || module == MODULE_FC_OUT) return c_fc;
    if (mlp && base->ungated) return !c_fc && (module == PROJ_UP || module == PROJ_DOWN);
    if (module == MODULE_QKV) return names->qkv;
    if (module == MODULE_GATE_UP) return names->gate_up;
    if (module <= PROJ_V) return !names->qkv;
    if (module == PROJ_GATE || module == PROJ_UP) return !names->gate_up;
    return true;
}

/* The matrix of all layers' own inputs. */
static err_code settle_ple(plan *pl, const naming *names, int rank_limit, peft_config *pc, err *e)
{
    char name[NAME_MAX_BYTES];
    module_path(name, sizeof name, names, -1, PROJ_PLE_MODEL);
    bool covered = !excluded(pl, name) && (pl->all_linear || targeted(pl, name, -1));
    return covered ? settle_module(pl, pc, name, -1, PROJ_PLE_MODEL, rank_limit, e) : ERR_NONE;
}

/* lm_head and embed_tokens: no linear layers of the body, so all-linear leaves them out. */
static err_code settle_outside(plan *pl, const naming *names, int rank_limit, peft_config *pc,
                               err *e)
{
    char name[NAME_MAX_BYTES];
    for (int module = MODULE_HEAD; module <= MODULE_EMBED; module++) {
        module_path(name, sizeof name, names, -1, module);
        if (pl->all_linear || (module == MODULE_HEAD ? pc->save_head : pc->save_embed)) continue;
        bool tied = module == MODULE_HEAD && pc->tie; /* the embedding's LoRA, saved twice */
        if (tied) module_path(name, sizeof name, names, -1, MODULE_EMBED);
        if (!targeted(pl, name, -1) || excluded(pl, name)) continue;
        err_code rc = settle_module(pl, pc, name, -1, module, rank_limit, e);
        if (rc) return rc;
    }
    return ERR_NONE;
}

/* Before its invocation an activated adapter must leave the base as it is, in PEFT as here: what
 * PEFT applies to all rows would change the pages that others share. */
static err_code check_activated(const model_config *base, const peft_config *pc, err *e)
{
    const char *what = pc->dora                     ? "use_dora"
                       : pc->bias != PEFT_BIAS_NONE ? "bias"
                       : pc->n_token > 0            ? "trainable_token_indices"
                       : pc->layer[peft_embed_slot(base->n_layer)].wrapped ? "LoRA on embed_tokens"
                                                                           : NULL;
    bool saved = pc->save_head || pc->save_embed;
    for (int at = 0; at <= base->n_layer * LORA_NORMS; at++)
        saved |= pc->layer[peft_norm_slot(base->n_layer, at)].saved;
    /* Of latents in pages a row makes keys and values by its own adapter, those before the
     * invocation too. */
    for (int i = 0; base->absorbs && i < base->n_layer; i++)
        if (mixer_attends(base->mixer[i]) && pc->layer[(size_t)i * PROJ_COUNT + PROJ_V].wrapped)
            what = "LoRA on kv_b_proj";
    if (saved) what = "modules_to_save";
    if (pc->n_invocation == 0 || !what) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED, "alora_invocation_tokens together with %s is not supported",
                   what);
}

/* What PEFT would put one over the other. */
static err_code check_tokens_alone(const model_config *base, const peft_config *pc, err *e)
{
    bool wrapped = pc->layer[peft_embed_slot(base->n_layer)].wrapped ||
                   (base->tied && pc->layer[peft_head_slot(base->n_layer)].wrapped);
    if (pc->n_token == 0) return ERR_NONE;
    if (wrapped)
        return err_set(e, ERR_UNSUPPORTED,
                       "trainable_token_indices together with LoRA on the same table is not "
                       "supported");
    if (pc->save_embed || (base->tied && pc->save_head))
        return err_set(e, ERR_INPUT,
                       "trainable_token_indices and modules_to_save name the same table");
    return ERR_NONE;
}

/* Experts, where the file has LoRA on single ones.  Where it has not, a list that names their
 * modules wraps none of them: so PEFT does for a model that keeps all experts in one parameter. */
static err_code settle_experts(plan *pl, const model_config *base, const naming *names, int layer,
                               int rank_limit, peft_config *pc, err *e)
{
    char name[NAME_MAX_BYTES];
    err_code rc = ERR_NONE;
    int n = base->experts.route.n;
    if (!names->experts || !(base->layer[layer] & LAYER_EXPERTS)) return ERR_NONE;
    for (int i = 0; i < n * LORA_EXPERT_PROJS && !rc; i++) {
        int expert = i / LORA_EXPERT_PROJS, p = i % LORA_EXPERT_PROJS;
        if (p == 0 && base->ungated) continue;
        module_expert_path(name, sizeof name, names, layer, expert, MODULE_EXPERT_GATE + p);
        bool wanted = pl->all_linear || targeted(pl, name, layer);
        if (!wanted || excluded(pl, name)) continue;
        size_t slot = peft_expert_slot(pc, layer, expert, PROJ_GATE + p);
        rc = settle_layer(pl, pc, name, rank_limit, &pc->layer[slot], e);
        if (names->style == EXPERT_LISTS && p == 1)
            pc->n_wrapped--; /* gate and up are one module */
        if (!rc && pl->work > WORK_MAX)
            rc = err_set(e, ERR_LIMIT, "the patterns of adapter_config.json cost too much");
    }
    return rc;
}

/* Whether target_parameters covers this one: whole names, or endings. */
static bool parameter_targeted(const plan *pl, const char *name)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, pl->parameters)
    {
        if (strcmp(v->valuestring, name) == 0 || ends_with(name, v->valuestring)) return true;
    }
    return false;
}

/* A layer's parameters of all experts, where the file has such; as PEFT does, whatever
 * exclude_modules and layers_to_transform say. */
static err_code settle_stacks(plan *pl, const model_config *base, const naming *names, int layer,
                              int rank_limit, peft_config *pc, err *e)
{
    char module[NAME_MAX_BYTES], name[NAME_MAX_BYTES + 16];
    const char *parameters[] = {base->ungated ? "up_proj" : "gate_up_proj", "down_proj"};
    const char *in = is_granite(base)       ? "block_sparse_moe"
                     : base->ungated        ? "mixer"
                     : base->experts.beside ? ""
                                            : NULL;
    int first = base->ungated ? PROJ_UP : PROJ_GATE;
    if (!pl->parameters || !(base->layer[layer] & LAYER_EXPERTS)) return ERR_NONE;
    for (int i = 0; i < 2; i++) {
        module_stack_path(module, sizeof module, names, layer, in);
        snprintf(name, sizeof name, "%s.%s", module, parameters[i]);
        if (!parameter_targeted(pl, name)) continue;
        if (!names->stacks || names->experts)
            return err_set(e, ERR_INPUT, "target_parameters covers %s, but %s", name,
                           names->stacks ? "the file has LoRA on single experts, too"
                                         : "its lora_A is not in the file");
        peft_layer one = {0};
        err_code rc = settle_layer(pl, pc, name, rank_limit, &one, e);
        if (rc) return rc;
        for (int k = 0; k < base->experts.route.n; k++)
            for (int p = i ? PROJ_DOWN : first; p <= (i ? PROJ_DOWN : PROJ_UP); p++)
                pc->layer[peft_expert_slot(pc, layer, k, p)] = one;
    }
    return ERR_NONE;
}

/* Asks the plan of every module of the base whether it is covered, and with which rank and
 * scale. The number of comparisons is bounded by WORK_MAX, since patterns are the tenant's. */
static err_code settle_all(plan *pl, const model_config *base, const naming *names, int rank_limit,
                           peft_config *pc, err *e)
{
    char name[NAME_MAX_BYTES + 16];
    err_code rc = settle_outside(pl, names, rank_limit, pc, e);
    if (!rc && base->ple_dim) rc = settle_ple(pl, names, rank_limit, pc, e);
    for (int layer = 0; layer < base->n_layer && !rc; layer++) {
        for (int m = 0; m < MODULE_IN_LAYER && !rc; m++) {
            if (!there(base, names, layer, m)) continue;
            module_path(name, NAME_MAX_BYTES, names, layer, m);
            int of = module_is_stream(m) ? -1 : layer;
            bool covered = !excluded(pl, name) && (pl->all_linear || targeted(pl, name, of));
            /* Routers are no linear layers in transformers 5, and what names them has no effect. */
            if (m == PROJ_ROUTER && !names->routers) covered = false;
            if (!covered && pl->parameters) {
                strcat(name, ".weight"); /* by this name rank_pattern knows a parameter */
                covered = parameter_targeted(pl, name);
            }
            if (covered) rc = settle_module(pl, pc, name, layer, m, rank_limit, e);
            if (!rc && pl->work > WORK_MAX)
                rc = err_set(e, ERR_LIMIT, "the patterns of adapter_config.json cost too much");
        }
        if (!rc) rc = settle_experts(pl, base, names, layer, rank_limit, pc, e);
        if (!rc) rc = settle_stacks(pl, base, names, layer, rank_limit, pc, e);
    }
    if (!rc) rc = check_tokens_alone(base, pc, e);
    if (!rc) rc = check_activated(base, pc, e);
    if (rc) return rc;
    if (pc->n_wrapped == 0)
        return err_set(e, ERR_INPUT, "target_modules names no layer of this base model");
    return ERR_NONE;
}

/* ---- API ------------------------------------------------------------------------------------- */

/* PEFT's switches that say how A and B are applied. */
static err_code read_switches(const cJSON *root, const model_config *base, peft_config *pc, err *e)
{
    bool tie = false;
    err_code rc = json_bool(root, "use_rslora", &pc->rslora, NULL, e);
    if (!rc) rc = json_bool(root, "use_dora", &pc->dora, NULL, e);
    if (!rc) rc = json_bool(root, PEFT_GAINS, &pc->gains, NULL, e);
    if (!rc && pc->gains && !pc->dora)
        rc = err_set(e, ERR_INPUT, PEFT_GAINS " is set without use_dora");
    if (!rc) rc = json_bool(root, "lora_bias", &pc->lora_bias, NULL, e);
    if (!rc) rc = json_bool(root, "ensure_weight_tying", &tie, NULL, e);
    pc->tie = tie && base->tied;
    return rc;
}

/* All of adapter_config.json in the order in which fields depend on each other; then
 * settle_all(). */
static err_code read_plan(const cJSON *root, plan *pl, const model_config *base,
                          const naming *names, int rank_limit, peft_config *pc, err *e)
{
    int64_t r = 8; /* PEFT's own defaults */
    pc->alpha = 8;
    const char *name = NULL;
    err_code rc = check_keys(root, e);
    if (!rc) rc = check_fixed(root, pc, e);
    if (!rc) rc = json_int(root, "r", -(1ll << 52), 1ll << 52, &r, NULL, e);
    if (!rc && (r < 1 || r > 1 << 20))
        rc = err_set(e, r < 1 ? ERR_INPUT : ERR_LIMIT, "r is %lld; allowed are 1 to %d",
                     (long long)r, rank_limit);
    if (!rc) rc = json_num(root, "lora_alpha", -1e6, 1e6, &pc->alpha, NULL, e);
    if (!rc) rc = read_switches(root, base, pc, e);
    if (!rc) rc = json_str(root, "base_model_name_or_path", &name, NULL, e);
    if (!rc) rc = read_saved(root, base, names, pc, e);
    if (!rc) rc = read_tokens(root, base, pc, e);
    if (!rc) rc = read_parameters(root, base, pc, pl, e);
    if (!rc) rc = read_invocation(root, base, pc, e);
    if (!rc) rc = read_targets(root, pl, e);
    if (!rc) rc = read_excluded(root, pl, e);
    if (!rc) rc = read_layers(root, pl, base->n_layer, e);
    if (!rc) rc = read_keyed(root, "rank_pattern", &pl->rank, &pl->n_rank, e);
    if (!rc) rc = read_keyed(root, "alpha_pattern", &pl->alpha, &pl->n_alpha, e);
    if (rc) return rc;
    if (pc->dora && pc->lora_bias)
        return err_set(e, ERR_UNSUPPORTED, "use_dora together with lora_bias is not supported");
    pc->rank = (int)r;
    if (pc->tie && pc->save_embed) pc->save_head = true;
    snprintf(pc->base_name, sizeof pc->base_name, "%s", name != NULL ? name : "");
    return settle_all(pl, base, names, rank_limit, pc, e);
}

static err_code read_root(const char *text, size_t len, cJSON **root, err *e)
{
    err_code rc = json_parse(text, len, &limits, root, e);
    if (rc) return err_context(e, "adapter_config.json");
    if (cJSON_IsObject(*root)) return ERR_NONE;
    cJSON_Delete(*root);
    *root = NULL;
    return err_set(e, ERR_INPUT, "adapter_config.json must be an object");
}

err_code peft_check_type(const char *text, size_t len, err *e)
{
    cJSON *root = NULL;
    err_code rc = read_root(text, len, &root, e);
    if (!rc) rc = check_type(root, e);
    cJSON_Delete(root);
    return rc;
}

/* The name that the family's router has in transformers 5. */
static router_style usual_router(const model_config *base)
{
    if (is_granite(base)) return ROUTER_SPARSE_ROUTER;
    if (base->mlp_names == MLP_SHARED_MLP) return ROUTER_GATE_WG;
    if (base->experts.route.jitter > 0) return ROUTER_ROUTER;
    if (base->experts.route.n && base->ungated) return ROUTER_MIXER_GATE;
    if (base->experts.beside) return ROUTER_PROJ;
    bool lfm2 = strcmp(base->family, "lfm2_moe") == 0;
    bool router = (base->mlp_names == MLP_FEED_FORWARD && !lfm2) || base->experts.alternate;
    return router ? ROUTER_ROUTER : ROUTER_GATE;
}

err_code peft_parse(const char *text, size_t len, const model_config *base, int rank_max,
                    const naming *names, peft_config *out, err *e)
{
    static const naming usual = {.root = -1};
    memset(out, 0, sizeof(*out));
    if (rank_max <= 0 || rank_max > LORA_RANK_MAX) rank_max = LORA_RANK_MAX;
    err own;
    if (!e) e = &own;
    cJSON *root = NULL;
    err_code rc = read_root(text, len, &root, e);
    if (rc) return rc;
    plan pl = {0};
    naming own_names = names ? *names : usual;
    own_names.mlp = base->mlp_names;
    if (!own_names.routers) own_names.router = usual_router(base);
    out->router = own_names.router;
    out->n_layer = base->n_layer;
    learn_modules(out, base);
    out->n_expert = names && (names->experts || names->stacks) ? base->experts.route.n : 0;
    out->layer = calloc(peft_slots(out), sizeof(*out->layer));
    if (!out->layer)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    else
        rc = read_plan(root, &pl, base, &own_names, rank_max, out, e);
    plan_clear(&pl);
    cJSON_Delete(root);
    if (rc) peft_clear(out);
    return rc;
}

void peft_clear(peft_config *pc)
{
    free(pc->layer);
    free(pc->token);
    free(pc->invocation);
    memset(pc, 0, sizeof(*pc));
}

const char *peft_base_format(const char *base_name)
{
    static const struct {
        const char *part, *format;
    } parts[] = {{"bnb-4bit", "NF4"}, {"nf4", "NF4"},    {"gptq", "GPTQ"},   {"awq", "AWQ"},
                 {"fp8", "FP8"},      {"w8a8", "W8A8"},  {"w4a16", "W4A16"}, {"w8a16", "W8A16"},
                 {"mxfp4", "MXFP4"},  {"nvfp4", "NVFP4"}};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcasestr(base_name, parts[i].part)) return parts[i].format;
    return NULL;
}
