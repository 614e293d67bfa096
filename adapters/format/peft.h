/* peft.h -- what an adapter_config.json means.
 *
 * Reads what PEFT wrote and answers, for each linear layer of the base: is it wrapped, with which
 * rank, at which scale?  Every key is honoured, known to be harmless, or refused by name: a setting
 * that was ignored would serve the base, or something between, as if it were the adapter.
 *
 * Patterns (target_modules as a string, rank_pattern, alpha_pattern, exclude_modules) run in
 * adapters/format/pattern.h, in time linear in the name's length, whatever a tenant writes.
 *
 * Ownership: the caller's peft_config; peft_clear() frees what it holds.
 * Threads:   any thread; read-only after peft_parse().
 */
#ifndef ADAPTERS_FORMAT_PEFT_H
#define ADAPTERS_FORMAT_PEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/format/naming.h"
#include "engine/base/err.h"
#include "engine/lora.h"
#include "engine/model/model.h"

/* What is done to one linear layer. */
typedef struct peft_layer {
    bool wrapped;
    int rank;
    float scale; /* alpha / rank, or alpha / sqrt(rank) with use_rslora */
    bool saved;  /* modules_to_save covers it: norms alone */
} peft_layer;

typedef enum { PEFT_BIAS_NONE, PEFT_BIAS_ALL, PEFT_BIAS_LORA_ONLY } peft_bias;

enum { PEFT_INVOCATION_MAX = 256 };

/* A key of our own, in configs that kinds.h has made. */
#define PEFT_GAINS "lorad_gains"

typedef struct peft_config {
    int n_layer;
    int n_expert; /* of each layer's experts, where the adapter has LoRA on single ones; else 0 */
    /* [n_layer][PROJ_COUNT], then lm_head and embed_tokens, then [n_layer][LORA_NORMS]
     * norms, the last norm and the head of classes, then
     * [n_layer][n_expert][LORA_EXPERT_PROJS]; owned */
    peft_layer *layer;
    int32_t *token; /* trainable_token_indices; owned */
    int n_token;
    bool head_tokens; /* they are named for lm_head, too */
    int n_vocab;      /* the base's, or more where those tokens lie behind it */
    int rank;         /* `r`, the default */
    double alpha;
    bool rslora, dora, lora_bias;
    bool gains; /* DoRA's magnitudes are the gains themselves, of biases too (kinds.h) */
    peft_bias bias;
    bool save_head, save_embed, save_score; /* modules_to_save */
    bool tie;                               /* ensure_weight_tying, on a tied base */
    router_style router;                    /* what the file calls a router */
    uint8_t module[PROJ_COUNT];             /* that a projection is in this base */
    int n_wrapped, rank_max;                /* n_wrapped: modules as PEFT counts them */
    int32_t *invocation;                    /* alora_invocation_tokens; owned */
    int n_invocation;                       /* 0: the adapter works on every row */
    char base_name[160]; /* base_model_name_or_path, for display only; never opened */
} peft_config;

/* The method alone, before the tensors' names are looked at: those of
 * another one would only confuse. */
err_code peft_check_type(const char *text, size_t len, err *e);

/* Zeroes *out first, so that clear is always safe.  `names`: how the weights' file names its
 * tensors (naming_learn), which is how its author's model named its modules; NULL: as usual.
 *   ERR_INPUT        not what PEFT writes, or out of range
 *   ERR_UNSUPPORTED  a PEFT feature that would change the result and is not supported: named */
err_code peft_parse(const char *text, size_t len, const model_config *base, int rank_max,
                    const naming *names, peft_config *out, err *e);
void peft_clear(peft_config *pc);

/* How the base was quantised that an adapter names: "NF4", "GPTQ" ...; NULL: its name does not say.
 * A name is all that PEFT keeps of it. */
const char *peft_base_format(const char *base_name);

/* Index in peft_config.layer (and whatever is laid out like it) of
 * lm_head, embed_tokens and norms. */
static inline size_t peft_head_slot(int n_layer)
{
    return (size_t)n_layer * PROJ_COUNT;
}
static inline size_t peft_embed_slot(int n_layer)
{
    return (size_t)n_layer * PROJ_COUNT + 1;
}
/* `at`: layer * LORA_NORMS + which; n_layer * LORA_NORMS: the last one, as in lora_view.norm. */
static inline size_t peft_norm_slot(int n_layer, int at)
{
    return (size_t)n_layer * PROJ_COUNT + 2 + (size_t)at;
}
static inline size_t peft_score_slot(int n_layer)
{
    return peft_norm_slot(n_layer, n_layer * LORA_NORMS) + 1;
}
/* The first slot of experts, and the end of all others. */
static inline size_t peft_expert_slots(int n_layer)
{
    return peft_score_slot(n_layer) + 1;
}
static inline size_t peft_expert_slot(const peft_config *pc, int layer, int expert, int p)
{
    size_t at = (size_t)layer * (size_t)pc->n_expert + (size_t)expert;
    return peft_expert_slots(pc->n_layer) + at * LORA_EXPERT_PROJS + (size_t)(p - PROJ_GATE);
}
static inline size_t peft_slots(const peft_config *pc)
{
    return peft_expert_slot(pc, pc->n_layer, 0, PROJ_GATE);
}
/* Linear layers of a block: projections, and those of experts. */
static inline bool peft_in_layer(int n_layer, size_t slot)
{
    return slot < peft_head_slot(n_layer) || slot >= peft_expert_slots(n_layer);
}
/* Index in what has [n_layer][PROJ_COUNT] matrices and, right behind them, experts'. */
static inline size_t peft_mat(int n_layer, size_t slot)
{
    size_t first = peft_expert_slots(n_layer);
    return slot < first ? slot : slot - first + peft_head_slot(n_layer);
}

/* d_out and d_in of any slot; embed_tokens counts as dim x n_vocab, which is how PEFT shapes its
 * matrices, a norm as dim x 1, a head of classes as the widest that there may be. */
void peft_slot_shape(const model_config *base, size_t slot, int *d_out, int *d_in);

/* "model.layers.3.self_attn.q_proj", "lm_head", "embed_tokens": for sentences. */
void peft_slot_name(char *out, size_t cap, const model_config *base, const peft_config *pc,
                    size_t slot);

/* Whether a layer of this base has the module, under this name; of fused ones, whether it has what
 * the module is made of; true of experts' modules. */
bool peft_module_there(const model_config *base, int layer, int module);

static inline const peft_layer *peft_at(const peft_config *pc, int layer, proj p)
{
    return &pc->layer[(size_t)layer * PROJ_COUNT + p];
}

#endif
