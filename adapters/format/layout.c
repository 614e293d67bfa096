/* layout.c -- places the tensors of an adapter file: each name becomes a slot of the model and a
 * part (A, B, bias, magnitude, table, rows), with its shape and type checked; then checks what is
 * missing.
 *
 *   "..layers.3.self_attn.q_proj.lora_A.weight" --naming.c--> (layer 3, q_proj, A)
 *      --first_slot()--> pair[3 * PROJ_COUNT + PROJ_Q].a = offset, type, bytes
 *
 * Fused modules (qkv_proj, gate_up_proj) have one A, shared by the slots of all their projections,
 * and a B whose rows are cut at the projections' sizes. LoRA on a parameter of all experts is a
 * stack of pairs; place_stack() describes each expert's part by offset and strides
 * (adapter_tensor_gather()).
 *
 * layout_place() is called once per tensor, in any order; layout_check() then reports wrapped
 * modules without A or B, added tokens without rows, and unequal types.
 *
 * Everything that the configuration does not promise is refused with the tensor's name. The file is
 * untrusted: shapes bound every offset. Threads: any; no state beyond the layout.
 */
#include "adapters/format/layout.h"

#include <stdio.h>
#include <string.h>

#include "engine/sample/pooling.h"

adapter_tensor *adapter_part(adapter_pair *pair, int part)
{
    adapter_tensor *parts[ADAPTER_PARTS] = {&pair->a,      &pair->b,    &pair->magnitude,
                                            &pair->b_bias, &pair->bias, &pair->table,
                                            &pair->rows,   &pair->more};
    return parts[part];
}

void adapter_tensor_gather(const adapter_tensor *t, const uint8_t *file, void *out)
{
    size_t size = dtype_bytes(t->type), n = t->n_col ? (size_t)t->bytes / size : 0;
    const uint8_t *from = file + t->offset;
    if (n == 0) memcpy(out, from, (size_t)t->bytes);
    for (size_t i = 0; i < n; i++)
        memcpy((uint8_t *)out + i * size, from + adapter_tensor_place(t, i) * size, size);
}

static size_t first_slot(const peft_config *pc, const tensor_name *tn, int *count)
{
    int n_layer = pc->n_layer;
    *count = 1;
    if (tn->module == PROJ_PLE_MODEL) {
        *count = n_layer;
        return PROJ_PLE_MODEL;
    }
    if (tn->expert >= 0) *count = expert_module_projs(tn->style, tn->module);
    if (tn->expert >= 0)
        return peft_expert_slot(pc, tn->layer, tn->expert,
                                PROJ_GATE + tn->module - MODULE_EXPERT_GATE);
    if (tn->module == MODULE_HEAD) return peft_head_slot(n_layer);
    if (tn->module == MODULE_EMBED) return peft_embed_slot(n_layer);
    if (tn->module == MODULE_SCORE) return peft_score_slot(n_layer);
    if (tn->module == MODULE_LAST_NORM) return peft_norm_slot(n_layer, n_layer * LORA_NORMS);
    if (tn->module > MODULE_EMBED)
        return peft_norm_slot(n_layer, tn->layer * LORA_NORMS + tn->module - MODULE_ATTN_NORM);
    return (size_t)tn->layer * PROJ_COUNT + (size_t)module_projs(tn->module, count);
}

/* Whether the configuration announces this kind of tensor for this module. */
static err_code check_wanted(const adapter_layout *al, const model_config *base, const char *name,
                             const tensor_name *tn, size_t slot, err *e)
{
    const peft_config *pc = &al->peft;
    bool wrapped = pc->layer[slot].wrapped, has_bias;
    if (tn->module == MODULE_SCORE && !pc->save_score)
        return err_set(e, ERR_INPUT,
                       "tensor '%.140s' is a head of classes, which modules_to_save does not name",
                       name);
    switch (tn->role) {
    case ROLE_A:
    case ROLE_B:
        if (wrapped) return ERR_NONE;
        return err_set(e, ERR_INPUT, "tensor '%.140s' is not covered by target_modules", name);
    case ROLE_MAGNITUDE:
        if (wrapped && pc->dora) return ERR_NONE;
        return err_set(e, ERR_INPUT, "tensor '%.140s' is DoRA's, but use_dora is not set", name);
    case ROLE_B_BIAS:
        if (wrapped && pc->lora_bias) return ERR_NONE;
        return err_set(e, ERR_INPUT,
                       "tensor '%.140s' is a bias of lora_B, but lora_bias is not set", name);
    case ROLE_BIAS:
        if (tn->module == MODULE_SCORE) return ERR_NONE;
        if (pc->bias == PEFT_BIAS_NONE || (pc->bias == PEFT_BIAS_LORA_ONLY && !wrapped))
            return err_set(e, ERR_INPUT, "tensor '%.140s' is a trained bias, which `bias` excludes",
                           name);
        has_bias = slot < peft_head_slot(pc->n_layer) &&
                   model_proj_has_bias(base, (proj)(slot % PROJ_COUNT));
        if (has_bias) return ERR_NONE;
        return err_set(e, ERR_INPUT, "tensor '%.140s': the base has no bias there", name);
    case ROLE_TABLE: /* modules_to_save, or a table that PEFT saved beside LoRA */
        if (tn->module <= MODULE_EMBED || tn->module == MODULE_SCORE || pc->layer[slot].saved)
            return ERR_NONE;
        return err_set(e, ERR_INPUT,
                       "tensor '%.140s' is a trained norm, which modules_to_save does not name",
                       name);
    case ROLE_ORIGINAL: return ERR_NONE;
    case ROLE_ROWS:
        if (pc->n_token > 0 && (tn->module == MODULE_EMBED || pc->head_tokens || base->tied))
            return ERR_NONE;
        return err_set(e, ERR_INPUT,
                       "tensor '%.140s' is for tokens that trainable_token_indices does not name",
                       name);
    }
    return ERR_NONE;
}

static err_code check_shape(const st_tensor *t, uint64_t rows, uint64_t cols, err *e)
{
    int ndim = cols > 0 ? 2 : 1;
    if (t->ndim != ndim)
        return err_set(e, ERR_INPUT, "tensor '%.140s' has %d dimensions; it must have %d", t->name,
                       t->ndim, ndim);
    if (ndim == 2 && (t->shape[0] != rows || t->shape[1] != cols))
        return err_set(e, ERR_INPUT, "tensor '%.140s' is %llu x %llu; it must be %llu x %llu",
                       t->name, (unsigned long long)t->shape[0], (unsigned long long)t->shape[1],
                       (unsigned long long)rows, (unsigned long long)cols);
    if (ndim == 1 && t->shape[0] != rows)
        return err_set(e, ERR_INPUT, "tensor '%.140s' has %llu values; it must have %llu", t->name,
                       (unsigned long long)t->shape[0], (unsigned long long)rows);
    return ERR_NONE;
}

/* The type to keep it in.  A tar's F64 was converted before (retype.h). */
static err_code check_type(const st_tensor *t, dtype *out, err *e)
{
    if (st_usable(t->dtype, out)) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED,
                   "tensor '%.140s' is %s; allowed are F32, F16, BF16 and, sent as a tar, F64",
                   t->name, st_dtype_name(t->dtype));
}

err_code layout_vocab(const st_tensor *t, const model_config *base, int *n_vocab, err *e)
{
    tensor_name tn;
    if (!tensor_name_parse(t->name, &tn) || t->ndim != 2) return ERR_NONE; /* refused elsewhere */
    if (tn.module != MODULE_HEAD && tn.module != MODULE_EMBED) return ERR_NONE;
    bool across = tn.module == MODULE_EMBED && tn.role == ROLE_A;
    if (tn.role != ROLE_TABLE && !across && !(tn.module == MODULE_HEAD && tn.role == ROLE_B))
        return ERR_NONE;
    uint64_t tokens = t->shape[across ? 1 : 0], v = (uint64_t)base->n_vocab;
    if (tokens > v && base->ple_dim)
        return err_set(
            e, ERR_UNSUPPORTED,
            "tensor '%.140s' is for %llu tokens, the base has %d, and each of its layers "
            "reads an input of its own for each: added tokens have none",
            t->name, (unsigned long long)tokens, base->n_vocab);
    if (tokens > v && base->added_max == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor '%.140s' is for %llu tokens, the base has %d: added tokens are not "
                       "served here (adapters.max_added_tokens is 0).  Use reserved tokens of the "
                       "base instead",
                       t->name, (unsigned long long)tokens, base->n_vocab);
    if (tokens > v + (uint64_t)base->added_max)
        return err_set(e, ERR_LIMIT,
                       "tensor '%.140s' is for %llu tokens, the base has %d: at most %d may be "
                       "added (adapters.max_added_tokens)",
                       t->name, (unsigned long long)tokens, base->n_vocab, base->added_max);
    int least = base->vocab_least > 0 ? base->vocab_least : base->n_vocab;
    if (*n_vocab == 0 && tokens >= (uint64_t)least) *n_vocab = (int)tokens;
    return ERR_NONE;
}

static adapter_tensor *part_of(adapter_pair *pair, tensor_role role)
{
    switch (role) {
    case ROLE_A: return &pair->a;
    case ROLE_B: return &pair->b;
    case ROLE_MAGNITUDE: return &pair->magnitude;
    case ROLE_B_BIAS: return &pair->b_bias;
    case ROLE_BIAS: return &pair->bias;
    case ROLE_ROWS: return &pair->rows;
    case ROLE_TABLE:
    case ROLE_ORIGINAL: break;
    }
    return &pair->table;
}

/* Whether the base gives the module this name. */
static bool named_so(const model_config *base, const tensor_name *tn)
{
    char have[64], want[64];
    if (tn->module >= MODULE_EXPERT_GATE && tn->module < MODULE_IN_LAYER)
        return (tn->mlp == MLP_FEED_FORWARD) == (base->mlp_names == MLP_FEED_FORWARD);
    module_base_name(have, sizeof(have), tn->mlp, tn->router, tn->module);
    module_base_name(want, sizeof(want), base->mlp_names, tn->router, tn->module);
    return strcmp(have, want) == 0;
}

/* A layer with experts has a shared MLP at most, and it alone has that. */
static bool module_there(const model_config *base, const tensor_name *tn)
{
    bool mixed = tn->layer >= 0 && base->layer[tn->layer] & LAYER_EXPERTS;
    if (tn->layer >= 0 && (!named_so(base, tn) || !peft_module_there(base, tn->layer, tn->module)))
        return false;
    if (tn->module == PROJ_PLE_MODEL) return base->ple_dim > 0;
    mixed &= tn->module >= PROJ_ROUTER || !base->experts.beside;
    if (tn->module >= MODULE_SHARED_GATE && tn->module <= MODULE_SHARED_DOWN)
        return mixed && !base->experts.beside && base->experts.shared_dim > 0;
    if (tn->module == PROJ_ROUTER) return mixed;
    if (tn->module == PROJ_SHARED_SCORE) return mixed && base->experts.shared_gated;
    bool mlp = (tn->module >= PROJ_GATE && tn->module <= PROJ_DOWN) ||
               tn->module == MODULE_GATE_UP || tn->module == MODULE_FC ||
               tn->module == MODULE_FC_OUT;
    return !mixed || !mlp;
}

/* LoRA on a parameter of all experts, as one file has it. */
typedef struct stack {
    const st_tensor *t;
    dtype type;
    int n, rank, d_out, d_in, projs; /* experts; of one projection; how many there are */
    bool alternate;                  /* the rows of two projections take turns */
    /* The file's A is [n * rank][d_in], and its B [projs * d_out][rank][n]; or it is turned, as
     * PEFT wrote it before it told a parameter's inputs from its outputs: [n * rank][projs *
     * d_out] and [d_in][rank][n], so that each is the other, transposed. */
    bool turned;
} stack;

/* The part of the file's A or B that belongs to projection p of expert k. */
static adapter_tensor part_of_stack(const stack *s, bool file_a, int k, int p)
{
    uint64_t size = dtype_bytes(s->type), r = (uint64_t)s->rank, at;
    int first = s->alternate ? p : p * s->d_out, each = s->alternate ? 2 : 1;
    int wide = s->n * s->rank, rows = s->projs * s->d_out;
    bool is_a = file_a != s->turned;
    adapter_tensor to = {.type = s->type, .present = true};
    to.bytes = r * (uint64_t)(is_a ? s->d_in : s->d_out) * size;
    if (file_a && is_a) {
        at = (uint64_t)k * r * (uint64_t)s->d_in;
    } else if (file_a) {
        at = (uint64_t)k * r * (uint64_t)rows + (uint64_t)first;
        to.n_col = s->rank, to.col_apart = rows, to.row_apart = each;
    } else if (is_a) {
        at = (uint64_t)k;
        to.n_col = s->d_in, to.col_apart = wide, to.row_apart = s->n, to.woven = s->n;
    } else {
        at = (uint64_t)first * (uint64_t)wide + (uint64_t)k;
        to.n_col = s->rank, to.col_apart = s->n, to.row_apart = each * wide, to.woven = s->n;
    }
    to.offset = s->t->offset + at * size;
    return to;
}

/* target_parameters: where a layer has LoRA on both of its parameters, the inner one is
 * gate_up_proj, or up_proj where there is no gate, which PEFT wraps first. */
static err_code place_stack(adapter_layout *al, const model_config *base, const st_tensor *t,
                            const tensor_name *tn, err *e)
{
    const peft_config *pc = &al->peft;
    int n = base->experts.route.n, d_out, d_in;
    if (!(base->layer[tn->layer] & LAYER_EXPERTS))
        return err_set(e, ERR_INPUT, "tensor '%.140s': that layer of the base has 0 experts",
                       t->name);
    bool up = pc->layer[peft_expert_slot(pc, tn->layer, 0, PROJ_UP)].wrapped;
    bool down = pc->layer[peft_expert_slot(pc, tn->layer, 0, PROJ_DOWN)].wrapped;
    if (tn->module == MODULE_STACK ? !up && !down : !up || !down)
        return err_set(e, ERR_INPUT, "tensor '%.140s' is not covered by target_parameters",
                       t->name);
    proj first = tn->module == MODULE_STACK && down ? PROJ_DOWN
                 : base->ungated                    ? PROJ_UP
                                                    : PROJ_GATE;
    int projs = first == PROJ_GATE ? 2 : 1;
    int rank = pc->layer[peft_expert_slot(pc, tn->layer, 0, first)].rank;
    model_expert_shape(base, first, &d_out, &d_in);
    uint64_t wide = (uint64_t)n * (uint64_t)rank, rows = (uint64_t)projs * (uint64_t)d_out;
    bool file_a = tn->role == ROLE_A;
    uint64_t own = t->ndim == 2 ? t->shape[file_a ? 1 : 0] : 0,
             other = file_a ? rows : (uint64_t)d_in;
    stack s = {.t = t, .n = n, .rank = rank, .d_out = d_out, .d_in = d_in, .projs = projs};
    s.alternate = projs == 2 && base->experts.alternate;
    bool square = rows == (uint64_t)d_in;
    if (square && base->mlp_names == MLP_FEED_FORWARD)
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor '%.140s': a parameter of as many inputs as outputs does not tell "
                       "which of A and B is which",
                       t->name);
    s.turned = own == other && !square;
    if (!s.turned) other = file_a ? (uint64_t)d_in : rows;
    err_code rc = file_a ? check_shape(t, wide, other, e) : check_shape(t, other, wide, e);
    if (!rc) rc = check_type(t, &s.type, e);
    for (int i = 0; i < n * projs && !rc; i++) {
        int k = i / projs, p = i % projs;
        adapter_pair *pair = &al->pair[peft_expert_slot(pc, tn->layer, k, (int)first + p)];
        adapter_tensor *to = file_a != s.turned ? &pair->a : &pair->b;
        if (to->present)
            return err_set(e, ERR_INPUT, "tensor '%.140s' is there twice, under two names",
                           t->name);
        *to = part_of_stack(&s, file_a, k, p);
    }
    return rc;
}

/* The classification head, whose size only the tensor tells: its weight, or its bias. */
static err_code place_score(adapter_pair *pair, const model_config *base, const st_tensor *t,
                            tensor_role role, dtype type, err *e)
{
    adapter_tensor *to = role == ROLE_BIAS ? &pair->bias : &pair->table;
    uint64_t cols = role == ROLE_BIAS ? 0 : (uint64_t)base->dim;
    err_code rc = check_shape(t, t->ndim > 0 ? t->shape[0] : 1, cols, e);
    if (rc) return rc;
    if (t->shape[0] > POOLING_LABELS_MAX)
        return err_set(e, ERR_LIMIT, "tensor '%.140s' is for %llu classes; at most %d are served",
                       t->name, (unsigned long long)t->shape[0], POOLING_LABELS_MAX);
    if (to->present)
        return err_set(e, ERR_INPUT, "tensor '%.140s' is there twice, under two names", t->name);
    *to = (adapter_tensor){.offset = t->offset, .bytes = t->bytes, .type = type, .present = true};
    return ERR_NONE;
}

static uint64_t values_of(const adapter_tensor *t)
{
    return t->present ? t->bytes / dtype_bytes(t->type) : 0;
}

static err_code check_score(adapter_layout *al, const model_config *base, err *e)
{
    const adapter_pair *pair = &al->pair[peft_score_slot(base->n_layer)];
    int n = al->n_label = (int)(values_of(&pair->table) / (uint64_t)base->dim);
    if (al->peft.save_score && n == 0)
        return err_set(e, ERR_INPUT,
                       "modules_to_save covers a head of classes, but no weight of 'score' or "
                       "'classifier' is in the file");
    if (pair->bias.present && values_of(&pair->bias) != (uint64_t)n)
        return err_set(e, ERR_INPUT, "the head of classes has %d rows, and a bias of %llu values",
                       n, (unsigned long long)values_of(&pair->bias));
    return ERR_NONE;
}

/* Whether the base model has the module that the tensor is for. */
static err_code check_place(const model_config *base, const st_tensor *t, const tensor_name *tn,
                            err *e)
{
    if (tn->layer >= base->n_layer)
        return err_set(e, ERR_INPUT, "tensor '%.140s': the base has only %d layers", t->name,
                       base->n_layer);
    if (tn->expert >= 0 &&
        (tn->expert >= base->experts.route.n || !(base->layer[tn->layer] & LAYER_EXPERTS)))
        return err_set(e, ERR_INPUT, "tensor '%.140s': that layer of the base has %d experts",
                       t->name, base->layer[tn->layer] & LAYER_EXPERTS ? base->experts.route.n : 0);
    if (!module_there(base, tn) || (tn->style == EXPERT_LISTS && !base->experts.alternate))
        return err_set(e, ERR_INPUT, "tensor '%.140s': that layer of the base has no such module",
                       t->name);
    return ERR_NONE;
}

/* Rows [d_out] of a fused module whose groups have each their queries, keys and values; `at`: the
 * first group's. */
static adapter_tensor part_of_group(const st_tensor *t, dtype type, int groups, int d_out, int rows,
                                    uint64_t at)
{
    int cols = t->ndim == 2 ? (int)t->shape[1] : 1;
    return (adapter_tensor){.offset = at,
                            .bytes = t->bytes / (uint64_t)rows * (uint64_t)d_out,
                            .type = type,
                            .present = true,
                            .n_col = cols,
                            .col_apart = 1,
                            .row_apart = cols,
                            .each = d_out / groups,
                            .skip = (rows - d_out) / groups * cols};
}

err_code layout_place(adapter_layout *al, const model_config *base, const st_tensor *t, err *e)
{
    tensor_name tn;
    if (!tensor_name_parse(t->name, &tn)) return naming_refuse(t->name, e);
    err_code rc = check_place(base, t, &tn, e);
    if (rc) return rc;
    if (tn.module == MODULE_STACK || tn.module == MODULE_STACK_INNER)
        return place_stack(al, base, t, &tn, e);
    int count;
    size_t slot = first_slot(&al->peft, &tn, &count);
    rc = check_wanted(al, base, t->name, &tn, slot, e);
    if (rc) return rc;
    dtype type;
    rc = check_type(t, &type, e);
    if (rc) return rc;

    /* A fused module: one A for all its projections, its other tensors row after row. */
    int d_out = 0, d_in = 0, rank = al->peft.layer[slot].rank;
    size_t apart = tn.module == PROJ_PLE_MODEL ? PROJ_COUNT : 1;
    uint64_t rows = 0;
    for (int i = 0; i < count; i++) {
        peft_slot_shape(base, slot + (size_t)i * apart, &d_out, &d_in);
        rows += (uint64_t)d_out;
    }
    bool turns = tn.style == EXPERT_LISTS && count == 2; /* rows of gate and up take turns */
    int groups = count == 3 ? model_qkv_groups(base) : 1;
    if (turns && tn.role != ROLE_A && tn.role != ROLE_B)
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor '%.140s': of gate_up_projs only lora_A and lora_B are supported",
                       t->name);
    if (tn.role == ROLE_ORIGINAL) return ERR_NONE;
    if (tn.module == MODULE_SCORE) return place_score(&al->pair[slot], base, t, tn.role, type, e);
    if (tn.role == ROLE_A)
        rc = check_shape(t, (uint64_t)rank, (uint64_t)d_in, e);
    else if (tn.role == ROLE_B)
        rc = check_shape(t, rows, (uint64_t)rank, e);
    else if (tn.role == ROLE_ROWS)
        rc = check_shape(t, (uint64_t)al->peft.n_token, (uint64_t)base->dim, e);
    else if (tn.role == ROLE_TABLE && tn.module <= MODULE_EMBED)
        rc = check_shape(t, (uint64_t)base->n_vocab, (uint64_t)base->dim, e);
    else
        rc = check_shape(t, rows, 0, e);
    if (rc) return rc;

    uint64_t at = t->offset;
    for (int i = 0; i < count; i++) {
        adapter_tensor *to = part_of(&al->pair[slot + (size_t)i * apart], tn.role);
        peft_slot_shape(base, slot + (size_t)i * apart, &d_out, &d_in);
        /* Of a resized table that modules_to_save names, PEFT writes the trained weight twice. */
        adapter_tensor *twin = &al->pair[slot].twin;
        if (to->present && tn.role == ROLE_TABLE && tn.module <= MODULE_EMBED && !twin->present &&
            to->type == type)
            to = twin;
        if (to->present)
            return err_set(e, ERR_INPUT, "tensor '%.140s' is there twice, under two names",
                           t->name);
        uint64_t bytes = tn.role == ROLE_A ? t->bytes : t->bytes / rows * (uint64_t)d_out;
        if (tn.role == ROLE_TABLE || tn.role == ROLE_ROWS) bytes = t->bytes;
        if (groups > 1 && tn.role != ROLE_A) {
            *to = part_of_group(t, type, groups, d_out, (int)rows, at);
            at += bytes / (uint64_t)groups;
            continue;
        }
        *to = (adapter_tensor){.offset = at, .bytes = bytes, .type = type, .present = true};
        if (turns && tn.role == ROLE_B)
            to->n_col = rank, to->col_apart = 1, to->row_apart = 2 * rank;
        if (tn.role != ROLE_A) at += turns ? (uint64_t)rank * dtype_bytes(type) : bytes;
    }
    return ERR_NONE;
}

/* The part that a wrapped module lacks. */
static const char *missing_of(const peft_config *pc, const adapter_pair *pair)
{
    if (!pair->a.present) return "lora_A.weight";
    if (!pair->b.present) return "lora_B.weight";
    if (pc->dora && !pair->magnitude.present) return "lora_magnitude_vector (use_dora)";
    if (pc->lora_bias && !pair->b_bias.present) return "lora_B.bias (lora_bias)";
    return NULL;
}

/* Whether the file has all that the configuration promises of one slot; each message names the
 * field and the tensor. */
static err_code check_slot(adapter_layout *al, const model_config *base, size_t slot, err *e)
{
    const peft_config *pc = &al->peft;
    const adapter_pair *pair = &al->pair[slot];
    bool wrapped = pc->layer[slot].wrapped;
    char name[128];
    peft_slot_name(name, sizeof name, base, pc, slot);
    const char *missing = wrapped ? missing_of(pc, pair) : NULL;
    if (missing)
        return err_set(e, ERR_INPUT, "target_modules covers %s, but its %s is not in the file",
                       name, missing);
    bool saved = (slot == peft_head_slot(pc->n_layer) && pc->save_head) ||
                 (slot == peft_embed_slot(pc->n_layer) && pc->save_embed) || pc->layer[slot].saved;
    if (saved && !pair->table.present)
        return err_set(e, ERR_INPUT, "modules_to_save covers %s, but its weight is not in the file",
                       name);
    if (slot == peft_embed_slot(pc->n_layer) && pc->n_token > 0 && !pair->rows.present)
        return err_set(e, ERR_INPUT,
                       "trainable_token_indices is set, but no trainable_tokens_delta of %s is in "
                       "the file",
                       name);
    if (slot == peft_head_slot(pc->n_layer) && pc->head_tokens && !pair->rows.present)
        return err_set(e, ERR_INPUT,
                       "trainable_token_indices names lm_head, but no trainable_tokens_delta of it "
                       "is in the file");
    if (wrapped && pair->a.type != pair->b.type)
        return err_set(
            e, ERR_UNSUPPORTED,
            "lora_A and lora_B of %s differ in type: send the folder as a tar, which makes both "
            "F32",
            name);
    bool biased = slot < peft_head_slot(pc->n_layer) &&
                  model_proj_has_bias(base, (proj)(slot % PROJ_COUNT)) &&
                  (pc->bias == PEFT_BIAS_ALL || (pc->bias == PEFT_BIAS_LORA_ONLY && wrapped));
    if (biased && !pair->bias.present)
        return err_set(e, ERR_INPUT, "`bias` covers %s, but its bias is not in the file", name);
    return ERR_NONE;
}

bool layout_patched(const adapter_layout *al, const model_config *base, size_t slot)
{
    const adapter_pair *embed = &al->pair[peft_embed_slot(base->n_layer)];
    const adapter_pair *head = &al->pair[peft_head_slot(base->n_layer)];
    if (slot == peft_embed_slot(base->n_layer)) return embed->rows.present;
    if (slot != peft_head_slot(base->n_layer)) return false;
    return head->rows.present || (base->tied && embed->rows.present && !head->table.present);
}

/* Added tokens must have rows in both tables: the whole table's, or each its own. */
static err_code check_added(const adapter_layout *al, const model_config *base, int n_base, err *e)
{
    const size_t slots[] = {peft_embed_slot(base->n_layer), peft_head_slot(base->n_layer)};
    int covered = 0;
    for (int i = 0; i < al->peft.n_token; i++) covered += al->peft.token[i] >= n_base;
    if (al->n_vocab != n_base && al->peft.layer[slots[1]].wrapped &&
        !al->pair[slots[1]].table.present)
        return err_set(e, ERR_INPUT,
                       "lora_B of lm_head is for %d tokens, the base has %d, and the weight of "
                       "lm_head is not in the file: save it with save_embedding_layers=True",
                       al->n_vocab, n_base);
    for (int i = 0; i < 2 && al->n_vocab > n_base; i++) {
        if (al->pair[slots[i]].table.present) continue;
        if (layout_patched(al, base, slots[i]) && covered == al->n_vocab - n_base) continue;
        return err_set(e, ERR_INPUT,
                       "the adapter adds %d tokens to the base's %d, but %s has no rows for all of "
                       "them in the file: save it with save_embedding_layers=True",
                       al->n_vocab - n_base, n_base, i == 0 ? "embed_tokens" : "lm_head");
    }
    return ERR_NONE;
}

err_code layout_check(adapter_layout *al, const model_config *base, int n_base, err *e)
{
    static const char *const names[] = {[DT_F32] = "F32", [DT_F16] = "F16", [DT_BF16] = "BF16"};
    const char *all = NULL;
    for (size_t slot = 0; slot < peft_slots(&al->peft); slot++) {
        err_code rc = check_slot(al, base, slot, e);
        if (rc) return rc;
        if (!al->pair[slot].a.present) continue;
        const char *one = names[al->pair[slot].a.type];
        if (all && all != one) one = "mixed";
        all = one;
    }
    snprintf(al->dtype_name, sizeof al->dtype_name, "%s", all != NULL ? all : "");
    /* Loaded into a tied model, a table that no wrapper holds is the output layer's, too. */
    const adapter_tensor *embed = &al->pair[peft_embed_slot(base->n_layer)].table;
    adapter_tensor *head = &al->pair[peft_head_slot(base->n_layer)].table;
    if (base->tied && embed->present && !al->peft.save_embed && !head->present) *head = *embed;
    err_code rc = check_score(al, base, e);
    return rc ? rc : check_added(al, base, n_base, e);
}

void layout_forget_table(adapter_layout *al, const model_config *base, size_t slot, uint64_t print)
{
    adapter_tensor *t = &al->pair[slot].table;
    bool head = slot == peft_head_slot(base->n_layer), wrapped = al->peft.layer[slot].wrapped;
    if (t->type != (head ? base->head_type : base->embed_type) ||
        print != (head ? base->head_print : base->embed_print) || al->n_vocab < base->n_vocab)
        return;
    if (al->n_vocab > base->n_vocab && wrapped) return; /* its A or B is for all tokens at once */
    t->present = false;
    if (al->n_vocab == base->n_vocab) return;
    uint64_t own = (uint64_t)base->n_vocab * (uint64_t)base->dim * dtype_bytes(t->type);
    al->pair[slot].more = (adapter_tensor){
        .offset = t->offset + own, .bytes = t->bytes - own, .type = t->type, .present = true};
}
