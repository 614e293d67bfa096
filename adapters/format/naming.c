/* naming.c -- parses tensor names of adapter files.
 *
 *   [wrappers] [root] "layers." N "." module "." role         e.g. base_model.model. | model. |
 *   layers.3. | mlp.up_proj. | lora_A.weight
 *
 * unwrap() removes what savers leave in front or in between (base_model.model., module.,
 * _orig_mod., FSDP's), usual_mlp() maps other families' module names to the usual ones, then
 * take_path() reads root, layer and module, with experts in their four styles (numbered modules,
 * w1/w2/w3, lists, one stacked parameter), and the table of endings gives the role.
 *
 * The tables also work backwards: module_path() and its relatives write the names for messages and
 * for converted files.
 *
 * naming_learn() finds which style a file uses from its first names, because patterns of the
 * configuration refer to the author's names. An unknown name is refused with a hint where the cause
 * is known (naming_refuse()). Threads: any; no state.
 */
#include "adapters/format/naming.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/proj_names.h"

enum { NAME_MAX_BYTES = 512 };

static const char *const modules[] = {
    PROJ_USUAL_NAMES,
    [PROJ_Z] = "linear_attn.in_proj_z",
    [PROJ_B] = "linear_attn.in_proj_b",
    [PROJ_A] = "linear_attn.in_proj_a",
    [PROJ_Z_LOW] = "self_attn.g_a_proj",
    [PROJ_A_LOW] = "self_attn.f_a_proj",
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
    [MODULE_OUT] = "self_attn.out_proj",
    [MODULE_W1] = "mlp.w1",
    [MODULE_W3] = "mlp.w3",
    [MODULE_W2] = "mlp.w2",
    [MODULE_CONV_IN] = "conv.in_proj",
    [MODULE_CONV_OUT] = "conv.out_proj",
    [MODULE_DENSE] = "self_attn.dense",
    [MODULE_FC1] = "mlp.fc1",
    [MODULE_FC2] = "mlp.fc2",
    [MODULE_DELTA_QKV] = "linear_attn.in_proj_qkv",
    [MODULE_DELTA_QKVZ] = "linear_attn.in_proj_qkvz",
    [MODULE_DELTA_BA] = "linear_attn.in_proj_ba",
    [MODULE_DELTA_OUT] = "linear_attn.out_proj",
    [MODULE_MAMBA_IN] = "mamba.in_proj",
    [MODULE_MAMBA_OUT] = "mamba.out_proj",
    [MODULE_MAMBA_X] = "mamba.x_proj",
    [MODULE_MAMBA_DT] = "mamba.dt_proj",
    [MODULE_INPUT_LINEAR] = "shared_mlp.input_linear",
    [MODULE_OUTPUT_LINEAR] = "shared_mlp.output_linear",
    [MODULE_MIXER_Q] = "mixer.q_proj",
    [MODULE_MIXER_K] = "mixer.k_proj",
    [MODULE_MIXER_V] = "mixer.v_proj",
    [MODULE_MIXER_O] = "mixer.o_proj",
    [MODULE_MIXER_UP] = "mixer.up_proj",
    [MODULE_MIXER_DOWN] = "mixer.down_proj",
    [MODULE_MIXER_SHARED_UP] = "mixer.shared_experts.up_proj",
    [MODULE_MIXER_SHARED_DOWN] = "mixer.shared_experts.down_proj",
    [MODULE_DELTA_Q] = "linear_attn.q_proj",
    [MODULE_DELTA_K] = "linear_attn.k_proj",
    [MODULE_DELTA_V] = "linear_attn.v_proj",
    [MODULE_DELTA_O] = "linear_attn.o_proj",
    [MODULE_DELTA_G] = "linear_attn.g_proj",
    [MODULE_DELTA_B] = "linear_attn.b_proj",
    [MODULE_DELTA_A] = "linear_attn.a_proj",
    [MODULE_KIMI_B] = "self_attn.b_proj",
    [MODULE_KIMI_G_B] = "self_attn.g_b_proj",
    [MODULE_KIMI_F_B] = "self_attn.f_b_proj",
    [MODULE_NEOX_QKV] = "attention.query_key_value",
    [MODULE_NEOX_DENSE] = "attention.dense",
    [MODULE_FALCON_QKV] = "self_attention.query_key_value",
    [MODULE_FALCON_DENSE] = "self_attention.dense",
    [MODULE_C_ATTN] = "attn.c_attn",
    [MODULE_C_PROJ] = "attn.c_proj",
    [MODULE_4H] = "mlp.dense_h_to_4h",
    [MODULE_4H_OUT] = "mlp.dense_4h_to_h",
    [MODULE_FC_IN] = "mlp.fc_in",
    [MODULE_FC_IN_OUT] = "mlp.fc_out",
    [MODULE_BARE_FC1] = "fc1",
    [MODULE_BARE_FC2] = "fc2",
    [MODULE_GPTJ_Q] = "attn.q_proj",
    [MODULE_GPTJ_K] = "attn.k_proj",
    [MODULE_GPTJ_V] = "attn.v_proj",
    [MODULE_GPTJ_O] = "attn.out_proj",
    [MODULE_NEO_Q] = "attn.attention.q_proj",
    [MODULE_NEO_K] = "attn.attention.k_proj",
    [MODULE_NEO_V] = "attn.attention.v_proj",
    [MODULE_NEO_O] = "attn.attention.out_proj",
    [MODULE_EMBED] = "embed_tokens",
    [MODULE_ATTN_NORM] = "input_layernorm",
    [MODULE_LAST_NORM] = "norm",
    [MODULE_MLP_NORM] = "post_attention_layernorm",
    [MODULE_SCORE] = "score",
};

/* The text before an expert's number and behind it; for lists, both before it. */
static const struct {
    const char *before, *module[LORA_EXPERT_PROJS];
} expert_names[] = {
    [EXPERT_MODULES] = {"mlp.experts.", {"gate_proj", "up_proj", "down_proj"}},
    [EXPERT_W123] = {"block_sparse_moe.experts.", {"w1", "w3", "w2"}},
    [EXPERT_MIXER] = {"mixer.experts.", {"gate_proj", "up_proj", "down_proj"}},
    [EXPERT_LISTS] = {"mlp.experts.", {"gate_up_projs", "gate_up_projs", "down_projs"}},
};

static const char *const router_names[ROUTER_STYLES] = {
    [ROUTER_GATE] = "mlp.gate",
    [ROUTER_SPARSE_GATE] = "block_sparse_moe.gate",
    [ROUTER_ROUTER] = "mlp.router",
    [ROUTER_SPARSE_LAYER] = "block_sparse_moe.router.layer",
    [ROUTER_SPARSE_ROUTER] = "block_sparse_moe.router",
    [ROUTER_GATE_WG] = "mlp.gate.wg",
    [ROUTER_MIXER_GATE] = "mixer.gate",
    [ROUTER_PROJ] = "router.proj",
};

/* Roots before "layers." and "embed_tokens": a causal language model, the same inside a vision
 * model (two generations of names), a doubly wrapped one, Mamba, GPT-NeoX, OPT, GPT-2 (whose layers
 * are "h."), a bare decoder. */
static const char *const roots[NAMING_ROOTS] = {"model.",
                                                "model.language_model.",
                                                "language_model.model.",
                                                "model.text_model.",
                                                "model.model.",
                                                "backbone.",
                                                "gpt_neox.",
                                                "model.decoder.",
                                                "transformer.",
                                                ""};
enum { ROOT_H = 8 };

static const char *layers_of(int root)
{
    return root == ROOT_H ? "h." : "layers.";
}

/* Names of wrappers that savers leave in front or in between. */
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
    static const uint8_t first[] = {[MODULE_QKV] = PROJ_Q,
                                    [MODULE_GATE_UP] = PROJ_GATE,
                                    [MODULE_FC] = PROJ_UP,
                                    [MODULE_DENSE] = PROJ_O,
                                    [MODULE_FC1] = PROJ_UP,
                                    [MODULE_FC2] = PROJ_DOWN,
                                    [MODULE_FC_OUT] = PROJ_DOWN,
                                    [MODULE_Q_B] = PROJ_Q,
                                    [MODULE_KV_A] = PROJ_K,
                                    [MODULE_KV_B] = PROJ_V,
                                    [MODULE_OUT] = PROJ_O,
                                    [MODULE_W1] = PROJ_GATE,
                                    [MODULE_W3] = PROJ_UP,
                                    [MODULE_W2] = PROJ_DOWN,
                                    [MODULE_CONV_IN] = PROJ_IN,
                                    [MODULE_CONV_OUT] = PROJ_OUT,
                                    [MODULE_DELTA_QKV] = PROJ_IN,
                                    [MODULE_DELTA_QKVZ] = PROJ_IN,
                                    [MODULE_DELTA_BA] = PROJ_B,
                                    [MODULE_DELTA_OUT] = PROJ_OUT,
                                    [MODULE_MAMBA_IN] = PROJ_IN,
                                    [MODULE_MAMBA_OUT] = PROJ_OUT,
                                    [MODULE_MAMBA_X] = PROJ_B,
                                    [MODULE_MAMBA_DT] = PROJ_A,
                                    [MODULE_INPUT_LINEAR] = PROJ_GATE,
                                    [MODULE_OUTPUT_LINEAR] = PROJ_DOWN,
                                    [MODULE_MIXER_Q] = PROJ_Q,
                                    [MODULE_MIXER_K] = PROJ_K,
                                    [MODULE_MIXER_V] = PROJ_V,
                                    [MODULE_MIXER_O] = PROJ_O,
                                    [MODULE_MIXER_UP] = PROJ_UP,
                                    [MODULE_MIXER_DOWN] = PROJ_DOWN,
                                    [MODULE_MIXER_SHARED_UP] = PROJ_UP,
                                    [MODULE_MIXER_SHARED_DOWN] = PROJ_DOWN,
                                    [MODULE_DELTA_Q] = PROJ_Q,
                                    [MODULE_DELTA_K] = PROJ_K,
                                    [MODULE_DELTA_V] = PROJ_V,
                                    [MODULE_DELTA_O] = PROJ_O,
                                    [MODULE_DELTA_G] = PROJ_Z,
                                    [MODULE_DELTA_B] = PROJ_B,
                                    [MODULE_DELTA_A] = PROJ_A,
                                    [MODULE_KIMI_B] = PROJ_B,
                                    [MODULE_KIMI_G_B] = PROJ_Z,
                                    [MODULE_KIMI_F_B] = PROJ_A,
                                    [MODULE_NEOX_QKV] = PROJ_Q,
                                    [MODULE_NEOX_DENSE] = PROJ_O,
                                    [MODULE_FALCON_QKV] = PROJ_Q,
                                    [MODULE_FALCON_DENSE] = PROJ_O,
                                    [MODULE_C_ATTN] = PROJ_Q,
                                    [MODULE_C_PROJ] = PROJ_O,
                                    [MODULE_4H] = PROJ_UP,
                                    [MODULE_4H_OUT] = PROJ_DOWN,
                                    [MODULE_FC_IN] = PROJ_UP,
                                    [MODULE_FC_IN_OUT] = PROJ_DOWN,
                                    [MODULE_BARE_FC1] = PROJ_UP,
                                    [MODULE_BARE_FC2] = PROJ_DOWN,
                                    [MODULE_GPTJ_Q] = PROJ_Q,
                                    [MODULE_GPTJ_K] = PROJ_K,
                                    [MODULE_GPTJ_V] = PROJ_V,
                                    [MODULE_GPTJ_O] = PROJ_O,
                                    [MODULE_NEO_Q] = PROJ_Q,
                                    [MODULE_NEO_K] = PROJ_K,
                                    [MODULE_NEO_V] = PROJ_V,
                                    [MODULE_NEO_O] = PROJ_O,
                                    [MODULE_SHARED_GATE] = PROJ_GATE,
                                    [MODULE_SHARED_UP] = PROJ_UP,
                                    [MODULE_SHARED_DOWN] = PROJ_DOWN};
    bool two = module == MODULE_GATE_UP || module == MODULE_INPUT_LINEAR;
    bool three = module == MODULE_QKV || module == MODULE_NEOX_QKV || module == MODULE_FALCON_QKV ||
                 module == MODULE_C_ATTN;
    *count = three ? 3 : two ? 2 : 1;
    bool other = module >= MODULE_QKV && module <= MODULE_SHARED_DOWN;
    return other ? (proj)first[module] : (proj)module;
}

void module_base_name(char *out, size_t cap, mlp_names mlp, router_style router, int module)
{
    const char *name = module == PROJ_ROUTER ? router_names[router] : modules[module],
               *shared = strstr(name, ".shared_expert.");
    bool renamed = strncmp(name, "mlp.", 4) == 0;
    if (mlp == MLP_FEED_FORWARD && renamed)
        snprintf(out, cap, "feed_forward.%s", name + 4);
    else if (mlp == MLP_SHARED_EXPERTS && shared)
        snprintf(out, cap, "mlp.shared_experts.%s", strrchr(name, '.') + 1);
    else if (mlp == MLP_SHARED_MLP && shared)
        snprintf(out, cap, "mlp.shared_mlp.%s", strrchr(name, '.') + 1);
    else
        snprintf(out, cap, "%s", name);
}

int expert_module_projs(expert_style style, int module)
{
    return style == EXPERT_LISTS && module == MODULE_EXPERT_GATE ? 2 : 1;
}

bool module_is_stream(int module)
{
    return module == PROJ_ALTUP_IN || module == PROJ_ALTUP_OUT;
}

void module_path(char *out, size_t cap, const naming *n, int layer, int module)
{
    int at = n->root < 0 ? 0 : n->root;
    const char *root = roots[at], *layers = layers_of(at);
    if (module == MODULE_HEAD)
        snprintf(out, cap, "%s%s", strncmp(root, "language_", 9) == 0 ? "language_model." : "",
                 modules[module]);
    else if (module == MODULE_EMBED || module == MODULE_LAST_NORM || module == PROJ_PLE_MODEL)
        snprintf(out, cap, "%s%s", root, modules[module]);
    else if (module_is_stream(module))
        snprintf(out, cap, "%s%s.%d", root, modules[module], layer);
    else {
        char name[64];
        module_base_name(name, sizeof(name), n->mlp, n->router, module);
        bool forgets = module == PROJ_A_LOW || module == MODULE_KIMI_F_B;
        if (n->forget_gate && forgets)
            snprintf(out, cap, "%s%s%d.self_attn.forget_gate%s", root, layers, layer,
                     strchr(name, '.'));
        else
            snprintf(out, cap, "%s%s%d.%s", root, layers, layer, name);
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

void module_stack_path(char *out, size_t cap, const naming *n, int layer, const char *in)
{
    if (!in) in = n->mlp == MLP_FEED_FORWARD ? "feed_forward" : "mlp";
    snprintf(out, cap, "%slayers.%d.%s%sexperts", roots[n->root < 0 ? 0 : n->root], layer, in,
             in[0] ? "." : "");
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

/* Other names of an MLP's modules, and of Kimi Linear's gate, become the usual ones. */
static mlp_names usual_mlp(char *name)
{
    static const struct {
        const char *theirs, *usual;
        mlp_names mlp;
    } parts[] = {{".feed_forward.", ".mlp.", MLP_FEED_FORWARD},
                 {".mlp.shared_experts.", ".mlp.shared_expert.", MLP_SHARED_EXPERTS},
                 {".mlp.shared_mlp.", ".mlp.shared_expert.", MLP_SHARED_MLP},
                 {".self_attn.forget_gate.", ".self_attn.", MLP_USUAL}};
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

/* "altup_projections.2.": of the number's layer, as projections of streams are counted. */
static bool take_stream(const char **at, tensor_name *t)
{
    for (int module = PROJ_ALTUP_IN; module <= PROJ_ALTUP_OUT; module++) {
        const char *p = *at;
        if (!take_module(&p, module) || !take_number(&p, &t->layer)) continue;
        t->module = module;
        *at = p;
        return true;
    }
    return false;
}

/* "mlp.gate.", "block_sparse_moe.router.layer."; the shortest name last. */
static bool take_router(const char **at, tensor_name *t)
{
    for (int i = 1; i <= ROUTER_STYLES; i++) {
        int style = i % ROUTER_STYLES;
        const char *p = *at;
        if (!skip(&p, router_names[style]) || !skip(&p, ".")) continue;
        t->module = PROJ_ROUTER;
        t->router = (router_style)style;
        *at = p;
        return true;
    }
    return false;
}

/* "mlp.experts.", "mlp.experts.base_layer.", "experts." */
static bool take_stack(const char **at, tensor_name *t)
{
    static const char *const stacks[] = {"mlp.experts.", "block_sparse_moe.experts.",
                                         "mixer.experts.", "experts."};
    for (size_t i = 0; i < sizeof stacks / sizeof(*stacks); i++) {
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
    t->router = ROUTER_GATE;
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
        t->module = PROJ_PLE_MODEL;
        if (take_module(&p, PROJ_PLE_MODEL)) break;
        if (take_stream(&p, t)) break;
        if (!skip(&p, layers_of(t->root)) || !take_number(&p, &t->layer)) continue;
        if (take_expert(&p, t) || take_stack(&p, t) || take_router(&p, t)) break;
        for (t->module = 0; t->module < MODULE_EXPERT_GATE; t->module++)
            if (t->module != PROJ_PLE_MODEL && !module_is_stream(t->module) &&
                take_module(&p, t->module))
                break;
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
    n->forget_gate |= strstr(name, ".forget_gate.") != NULL;
    n->experts |= t.expert >= 0;
    if (t.style != EXPERT_MODULES) n->style = t.style;
    n->routers |= t.module == PROJ_ROUTER;
    if (t.module == PROJ_ROUTER) n->router = t.router;
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
        {"mlp.gate.", "anything of a router but LoRA"},
        {"block_sparse_moe.gate.", "anything of a router but LoRA"},
        {".router.", "anything of a router but LoRA"},
        {"block_sparse_moe.", "LoRA on the parameters that all experts share"},
        {"lora_ga", "LoRA-GA"},
        {"original_module", "a copy of the base's own module"},
        {"modules_to_save", "a whole trained module other than embed_tokens, lm_head, the norms "
                            "and a head of classes"},
        {"q_norm.weight", "a trained norm of queries"},
        {"k_norm.weight", "a trained norm of keys"},
        {"linear_attn.norm", "a trained norm of a mixer"},
        {"o_norm.weight", "a trained norm of a mixer"},
        {".A_log", "a trained decay of a mixer"},
        {".dt_bias", "a trained decay of a mixer"},
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
        {"_conv1d", "LoRA on convolutions"},
        {"mamba.norm", "a trained norm of a mixer"},
        {"mixer.norm", "a trained norm of a mixer"},
        {"embeddings.", "anything of an input table that is called embeddings"},
        {"wte.", "anything of an input table that is called wte"},
        {"wpe.", "a trained table of positions"},
        {"embed_positions.", "a trained table of positions"},
        {"embed_in.", "anything of an input table that is called embed_in"},
        {"embed_out.", "anything of an output layer that is called embed_out"},
        {"word_embeddings.", "anything of an input table that is called word_embeddings"},
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
