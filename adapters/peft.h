/* peft.h -- what an adapter_config.json means.
 *
 * Reads what PEFT wrote and answers, for each linear layer of the base: is it wrapped, with which
 * rank, at which scale?  Every key is honoured, known to be harmless, or refused by name: a setting
 * that was ignored would serve the base, or something between, as if it were the adapter.
 *
 * Patterns (target_modules as a string, rank_pattern, alpha_pattern, exclude_modules) run in
 * adapters/pattern.h, in time linear in the name's length, whatever a tenant writes.
 *
 * Ownership: the caller's peft_config; peft_clear() frees what it holds.
 * Threads:   any thread; read-only after peft_parse().
 */
#ifndef ADAPTERS_PEFT_H
#define ADAPTERS_PEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/lora.h"
#include "engine/model.h"

/* What is done to one linear layer. */
typedef struct peft_layer {
    bool wrapped;
    int rank;
    float scale; /* alpha / rank, or alpha / sqrt(rank) with use_rslora */
} peft_layer;

typedef struct peft_config {
    int n_layer;
    peft_layer *layer; /* [n_layer][PROJ_COUNT], owned */
    int rank;          /* `r`, the default */
    double alpha;
    bool rslora;
    int n_wrapped, rank_max;
    char base_name[160]; /* base_model_name_or_path, for display only; never opened */
} peft_config;

/* Zeroes *out first, so that clear is always safe.
 *   ERR_INPUT        not what PEFT writes, or out of range
 *   ERR_UNSUPPORTED  a PEFT feature that would change the result and is not supported: named */
err_code peft_parse(const char *text, size_t len, const model_config *base, int rank_max,
                    peft_config *out, err *e);
void peft_clear(peft_config *pc);

static inline const peft_layer *peft_at(const peft_config *pc, int layer, proj p)
{
    return &pc->layer[(size_t)layer * PROJ_COUNT + p];
}

/* "self_attn.q_proj" ... of a proj. */
const char *peft_proj_name(proj p);

/* The tensor "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight" (or with
 * ".default" before ".weight") taken apart; false when it is not of that form. */
bool peft_tensor_name(const char *name, int *layer, proj *p, bool *is_b);

#endif
