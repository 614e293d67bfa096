/* naming.c -- tables of prefixes, modules and endings, and a walk over them. */
#include "adapters/format/naming.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 512 };

static const char *const modules[] = {
    [PROJ_Q_A] = "self_attn.q_a_proj",
    [PROJ_Q] = "self_attn.q_proj",
    [PROJ_K] = "self_attn.k_proj",
    [PROJ_V] = "self_attn.v_proj",
    [PROJ_O] = "self_attn.o_proj",
    [PROJ_GATE] = "mlp.gate_proj",
    [PROJ_UP] = "mlp.up_proj",
    [PROJ_DOWN] = "mlp.down_proj",
    [MODULE_QKV] = "self_attn.qkv_proj",
    [MODULE_GATE_UP] = "mlp.gate_up_proj",
    [MODULE_SHARED_GATE] = "mlp.shared_expert.gate_proj",
    [MODULE_SHARED_UP] = "mlp.shared_expert.up_proj",
    [MODULE_SHARED_DOWN] = "mlp.shared_expert.down_proj",
    [MODULE_EXPERT_GATE] = "experts.gate_proj",
    [MODULE_EXPERT_UP] = "experts.up_proj",
    [MODULE_EXPERT_DOWN] = "experts.down_proj",
    [MODULE_STACK] = "experts",
    [MODULE_STACK_INNER] = "experts",
    [MODULE_HEAD] = "lm_head",
    [MODULE_FC] = "mlp.c_fc",
    [MODULE_FC_OUT] = "mlp.c_proj",
    [MODULE_Q_B] = "self_attn.q_b_proj",
    [MODULE_KV_A] = "self_attn.kv_a_proj_with_mqa",
    [MODULE_KV_B] = "self_attn.kv_b_proj",
    [MODULE_EMBED] = "embed_tokens",
    [MODULE_ATTN_NORM] = "input_layernorm",
    [MODULE_LAST_NORM] = "norm",
    [MODULE_MLP_NORM] = "post_attention_layernorm",
    [MODULE_SCORE] = "score",
};

/* What stands before an expert's number, and what behind it; or, of lists, before it. */
static const struct {
    const char *before, *module[LORA_EXPERT_PROJS];
} expert_names[] = {
    [EXPERT_MODULES] = {"mlp.experts.", {"gate_proj", "up_proj", "down_proj"}},
    [EXPERT_W123] = {"block_sparse_moe.experts.", {"w1", "w3", "w2"}},
    [EXPERT_LISTS] = {"mlp.experts.", {"gate_up_projs", "gate_up_projs", "down_projs"}},
};

/* What stands before "layers." and "embed_tokens": a causal language model, the same inside a
 * vision model (two generations of names), a doubly wrapped one, a bare decoder. */
static const char *const roots[NAMING_ROOTS] = {
    "model.", "model.language_model.", "language_model.model.", "model.text_model.", "model.model.",
    ""};

/* Wrappers whose names a saver left in front, or in between. */
static const char *const wrappers[] = {"base_model.model.", "module.", "_orig_mod.",
                                       "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};
static const char *const inner[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                    "_checkpoint_wrapped_module."};

static const struct {
    const char *ending;
    tensor_role role;
    enum { ANY, LINEAR, EMBED, TABLES, OUTSIDE, SCORE } where;
} endings[] = {
    {"lora_A.weight", ROLE_A, LINEAR},
    {"lora_A.default.weight", ROLE_A, LINEAR},
    {"lora_B.weight", ROLE_B, LINEAR},
    {"lora_B.default.weight", ROLE_B, LINEAR},
    {"lora_B.bias", ROLE_B_BIAS, LINEAR},
    {"lora_B.default.bias", ROLE_B_BIAS, LINEAR},
    {"lora_embedding_A", ROLE_A, EMBED},
    {"lora_embedding_A.default", ROLE_A, EMBED},
    {"lora_embedding_B", ROLE_B, EMBED},
    {"lora_embedding_B.default", ROLE_B, EMBED},
    {"lora_magnitude_vector", ROLE_MAGNITUDE, ANY},
    {"lora_magnitude_vector.weight", ROLE_MAGNITUDE, ANY},
    {"lora_magnitude_vector.default", ROLE_MAGNITUDE, ANY},
    {"lora_magnitude_vector.default.weight", ROLE_MAGNITUDE, ANY},
    {"bias", ROLE_BIAS, LINEAR},
    {"base_layer.bias", ROLE_BIAS, LINEAR},
    {"bias", ROLE_BIAS, SCORE},
    {"modules_to_save.bias", ROLE_BIAS, SCORE},
    {"modules_to_save.default.bias", ROLE_BIAS, SCORE},
    {"original_module.bias", ROLE_ORIGINAL, SCORE},
    {"weight", ROLE_TABLE, OUTSIDE},
    {"base_layer.weight", ROLE_TABLE, OUTSIDE},
    {"modules_to_save.weight", ROLE_TABLE, OUTSIDE},
    {"modules_to_save.default.weight", ROLE_TABLE, OUTSIDE},
    {"original_module.weight", ROLE_ORIGINAL, TABLES},
    {"token_adapter.base_layer.weight", ROLE_TABLE, TABLES},
    {"token_adapter.trainable_tokens_delta", ROLE_ROWS, TABLES},
    {"token_adapter.trainable_tokens_delta.default", ROLE_ROWS, TABLES},
};

const char *module_name(int module)
{
    return modules[module];
}

proj module_projs(int module, int *count)
{
    *count = module == MODULE_QKV ? 3 : module == MODULE_GATE_UP ? 2 : 1;
    switch (module) {
    case MODULE_QKV: return PROJ_Q;
    case MODULE_GATE_UP: return PROJ_GATE;
    case MODULE_FC: return PROJ_UP;
    case MODULE_FC_OUT: return PROJ_DOWN;
    case MODULE_Q_B: return PROJ_Q;
    case MODULE_KV_A: return PROJ_K;
    case MODULE_KV_B: return PROJ_V;
    case MODULE_SHARED_GATE: return PROJ_GATE;
    case MODULE_SHARED_UP: return PROJ_UP;
    case MODULE_SHARED_DOWN: return PROJ_DOWN;
    default: return (proj)module;
    }
}

void module_base_name(char *out, size_t cap, mlp_names mlp, int module)
{
    const char *name = modules[module], *shared = strstr(name, ".shared_expert.");
    bool renamed = strncmp(name, "mlp.", 4) == 0;
    if (mlp == MLP_FEED_FORWARD && renamed)
        snprintf(out, cap, "feed_forward.%s", name + 4);
    else if (mlp == MLP_SHARED_EXPERTS && shared)
        snprintf(out, cap, "mlp.shared_experts.%s", strrchr(name, '.') + 1);
    else
        snprintf(out, cap, "%s", name);
}

int expert_module_projs(expert_style style, int module)
{
    return style == EXPERT_LISTS && module == MODULE_EXPERT_GATE ? 2 : 1;
}

void module_path(char *out, size_t cap, const naming *n, int layer, int module)
{
    const char *root = roots[n->root < 0 ? 0 : n->root];
    if (module == MODULE_HEAD)
        snprintf(out, cap, "%s%s", strncmp(root, "language_", 9) == 0 ? "language_model." : "",
                 modules[module]);
    else if (module == MODULE_EMBED || module == MODULE_LAST_NORM)
        snprintf(out, cap, "%s%s", root, modules[module]);
    else {
        char name[64];
        module_base_name(name, sizeof(name), n->mlp, module);
        snprintf(out, cap, "%slayers.%d.%s", root, layer, name);
    }
}

void module_expert_path(char *out, size_t cap, const naming *n, int layer, int expert, int module)
{
    const char *root = roots[n->root < 0 ? 0 : n->root], *before = expert_names[n->style].before;
    const char *name = expert_names[n->style].module[module - MODULE_EXPERT_GATE];
    if (n->style == EXPERT_LISTS)
        snprintf(out, cap, "%slayers.%d.%s%s.%d", root, layer, before, name, expert);
    else
        snprintf(out, cap, "%slayers.%d.%s%d.%s", root, layer, before, expert, name);
}

void module_stack_path(char *out, size_t cap, const naming *n, int layer, bool granite)
{
    snprintf(out, cap, "%slayers.%d.%s.experts", roots[n->root < 0 ? 0 : n->root], layer,
             granite                      ? "block_sparse_moe"
             : n->mlp == MLP_FEED_FORWARD ? "feed_forward"
                                          : "mlp");
}

/* ---- one name ------------------------------------------------------------------------------ */

static bool skip(const char **at, const char *prefix)
{
    size_t n = strlen(prefix);
    if (strncmp(*at, prefix, n) != 0) return false;
    *at += n;
    return true;
}

/* The name without any wrapper's; false when it is too long to be one. */
static bool unwrap(const char *name, char out[NAME_MAX_BYTES])
{
    if (strlen(name) >= NAME_MAX_BYTES) return false;
    bool again = true;
    while (again) {
        again = false;
        for (size_t i = 0; i < sizeof wrappers / sizeof(*wrappers); i++)
            again |= skip(&name, wrappers[i]);
    }
    size_t n = 0;
    while (*name != 0) {
        bool inside = false;
        if (n > 0 && out[n - 1] == '.')
            for (size_t i = 0; i < sizeof inner / sizeof(*inner); i++)
                inside |= skip(&name, inner[i]);
        if (!inside) out[n++] = *name++;
    }
    out[n] = 0;
    return true;
}

/* Other names of an MLP's modules become the usual ones. */
static mlp_names usual_mlp(char *name)
{
    static const struct {
        const char *theirs, *usual;
        mlp_names mlp;
    } parts[] = {{".feed_forward.", ".mlp.", MLP_FEED_FORWARD},
                 {".mlp.shared_experts.", ".mlp.shared_expert.", MLP_SHARED_EXPERTS}};
    for (size_t i = 0; i < sizeof parts / sizeof(*parts); i++) {
        char *at = strstr(name, parts[i].theirs);
        size_t n = strlen(parts[i].usual), theirs = strlen(parts[i].theirs);
        if (!at) continue;
        memmove(at + n, at + theirs, strlen(at + theirs) + 1);
        memcpy(at, parts[i].usual, n);
        return parts[i].mlp;
    }
    return MLP_USUAL;
}

static bool take_number(const char **at, int *layer)
{
    size_t digits = strspn(*at, "0123456789");
    if (digits == 0 || digits > 6 || (digits > 1 && **at == '0') || (*at)[digits] != '.')
        return false;
    *layer = atoi(*at);
    *at += digits + 1;
    return true;
}

static bool take_module(const char **at, int module)
{
    const char *p = *at;
    if (!skip(&p, modules[module]) || !skip(&p, ".")) return false;
    *at = p;
    return true;
}

/* "gate_up_projs.7." behind "mlp.experts.". */
static bool take_listed(const char **at, const char *list, int *expert)
{
    const char *p = *at;
    if (!skip(&p, list) || !skip(&p, ".") || !take_number(&p, expert)) return false;
    *at = p;
    return true;
}

/* "mlp.experts.7.gate_proj." */
static bool take_expert(const char **at, tensor_name *t)
{
    for (int style = 0; style <= EXPERT_LISTS; style++) {
        const char *p = *at;
        bool lists = style == EXPERT_LISTS;
        if (!skip(&p, expert_names[style].before)) continue;
        if (!lists && !take_number(&p, &t->expert)) continue;
        for (int i = 0; i < LORA_EXPERT_PROJS; i++) {
            const char *end = p, *name = expert_names[style].module[i];
            if (lists ? !take_listed(&end, name, &t->expert)
                      : !skip(&end, name) || !skip(&end, "."))
                continue;
            t->module = MODULE_EXPERT_GATE + i;
            t->style = (expert_style)style;
            *at = end;
            return true;
        }
    }
    t->expert = -1;
    return false;
}

/* "mlp.experts.", "mlp.experts.base_layer." */
static bool take_stack(const char **at, tensor_name *t)
{
    static const char *const stacks[] = {"mlp.experts.", "block_sparse_moe.experts."};
    for (int i = 0; i < 2; i++) {
        if (!skip(at, stacks[i])) continue;
        t->module = skip(at, "base_layer.") ? MODULE_STACK_INNER : MODULE_STACK;
        return true;
    }
    return false;
}

/* Reads a tensor's name up to its ending: the root, the layer, the module. */
static bool take_path(const char **at, tensor_name *t)
{
    t->layer = t->expert = -1;
    t->style = EXPERT_MODULES;
    t->root = -1;
    t->module = MODULE_HEAD;
    const char *p = *at;
    (void)skip(&p, "language_model.");
    if (take_module(&p, MODULE_HEAD)) {
        *at = p;
        return true;
    }
    if (take_module(&p, MODULE_SCORE) || skip(&p, "classifier.")) {
        t->module = MODULE_SCORE;
        *at = p;
        return true;
    }
    for (t->root = 0; t->root < NAMING_ROOTS; t->root++) {
        p = *at;
        if (!skip(&p, roots[t->root])) continue;
        t->module = MODULE_EMBED;
        if (take_module(&p, MODULE_EMBED)) break;
        t->module = MODULE_LAST_NORM;
        if (take_module(&p, MODULE_LAST_NORM)) break;
        if (!skip(&p, "layers.") || !take_number(&p, &t->layer)) continue;
        if (take_expert(&p, t) || take_stack(&p, t)) break;
        for (t->module = 0; t->module < MODULE_EXPERT_GATE; t->module++)
            if (take_module(&p, t->module)) break;
        if (t->module < MODULE_EXPERT_GATE) break;
        for (t->module = MODULE_ATTN_NORM; t->module <= MODULE_MLP_NORM; t->module++)
            if (take_module(&p, t->module)) break;
        if (t->module <= MODULE_MLP_NORM) break;
    }
    if (t->root == NAMING_ROOTS) return false;
    *at = p;
    return true;
}

bool tensor_name_parse(const char *name, tensor_name *out)
{
    char plain[NAME_MAX_BYTES];
    const char *at = plain;
    if (!unwrap(name, plain)) return false;
    out->mlp = usual_mlp(plain);
    if (!take_path(&at, out)) return false;
    for (size_t i = 0; i < sizeof endings / sizeof(*endings); i++) {
        if (strcmp(at, endings[i].ending) != 0) continue;
        if (endings[i].where == LINEAR && out->module >= MODULE_EMBED) continue;
        if (endings[i].where == ANY && out->module > MODULE_EMBED) continue;
        bool stack = out->module == MODULE_STACK || out->module == MODULE_STACK_INNER;
        if (stack && endings[i].role != ROLE_A && endings[i].role != ROLE_B) continue;
        if (endings[i].where == EMBED && out->module != MODULE_EMBED) continue;
        bool score = out->module == MODULE_SCORE;
        bool table = out->module == MODULE_HEAD || out->module == MODULE_EMBED || score;
        if (endings[i].where == SCORE && !score) continue;
        if (endings[i].where == TABLES && !table) continue;
        if (endings[i].where == OUTSIDE && out->module < MODULE_IN_LAYER) continue;
        out->role = endings[i].role;
        return true;
    }
    return false;
}

err_code naming_learn(naming *n, const char *name, err *e)
{
    tensor_name t;
    if (!tensor_name_parse(name, &t)) return naming_refuse(name, e);
    if (t.module == MODULE_QKV) n->qkv = true;
    if (t.module == MODULE_GATE_UP) n->gate_up = true;
    n->experts |= t.expert >= 0;
    if (t.style != EXPERT_MODULES) n->style = t.style;
    n->stacks |= t.module == MODULE_STACK || t.module == MODULE_STACK_INNER;
    if (t.root < 0) return ERR_NONE;
    if (n->root >= 0 && n->root != t.root)
        return err_set(e, ERR_INPUT,
                       "tensor '%.140s' names the model in another way than the tensors before it",
                       name);
    n->root = t.root;
    return ERR_NONE;
}

err_code naming_refuse(const char *name, err *e)
{
    static const struct {
        const char *part, *feature;
    } others[] = {
        {"token_adapter", "trainable_token_indices of anything but embed_tokens and lm_head"},
        {".experts.", "anything of experts but LoRA on single ones and on their parameters"},
        {".shared_expert_gate.", "LoRA on the gate of a shared expert"},
        {"mlp.gate.", "LoRA on a router"},
        {"block_sparse_moe.gate.", "LoRA on a router"},
        {".router.", "LoRA on a router"},
        {"block_sparse_moe.", "LoRA on the parameters that all experts share"},
        {"lora_ga", "LoRA-GA"},
        {"original_module", "a copy of the base's own module"},
        {"modules_to_save", "a whole trained module other than embed_tokens, lm_head, the norms "
                            "and a head of classes"},
        {"q_norm.weight", "a trained norm of queries"},
        {"k_norm.weight", "a trained norm of keys"},
        {"norm.bias", "a trained bias of a norm"},
        {"base_layer.weight", "a trained weight of the base"},
        {"lora_A.bias", "a bias in lora_A"},
        {"lora_a", "a file that MLX saved"},
        {"lora_down", "a file in kohya's or diffusers' format"},
        {"hada_", "LoHa"},
        {"lokr_", "LoKr"},
        {"prompt_embeddings", "prompt tuning"},
        {"ia3_", "(IA)3"},
        {"vera_", "VeRA"},
        {"classifier", "a head of classes that is not one linear layer"},
        {"score.", "a head of classes that is not one linear layer"},
        {".conv", "LoRA on convolutions"},
        {"visual.", "LoRA on a vision tower"},
        {"vision", "LoRA on a vision tower"},
    };
    for (size_t i = 0; i < sizeof others / sizeof(*others); i++)
        if (strstr(name, others[i].part) != NULL)
            return err_set(e, ERR_UNSUPPORTED, "tensor '%.140s': %s is not supported", name,
                           others[i].feature);
    return err_set(e, ERR_INPUT,
                   "tensor '%.140s' belongs to no layer of this base model; names look like "
                   "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
                   name);
}
