/* stacked.c -- matrix after matrix, value after value, in F32. */
#include "adapters/residency/stacked.h"

#include <stdlib.h>
#include <string.h>

#include "engine/weight_source.h"

err_code stacked_check(const adapter_layout *al, const model_config *base, err *e)
{
    const peft_config *pc = &al->peft;
    const char *what = pc->dora                       ? "use_dora"
                       : pc->bias != PEFT_BIAS_NONE   ? "bias"
                       : pc->lora_bias                ? "lora_bias"
                       : pc->n_token > 0              ? "trainable_token_indices"
                       : pc->n_invocation > 0         ? "alora_invocation_tokens"
                       : pc->n_expert > 0             ? "LoRA on experts"
                       : pc->tie                      ? "ensure_weight_tying"
                       : al->n_vocab != base->n_vocab ? "added tokens"
                                                      : NULL;
    for (size_t slot = 0; slot < peft_slots(pc); slot++) {
        const adapter_pair *p = &al->pair[slot];
        bool whole = p->table.present || p->rows.present || p->more.present;
        if (whole || pc->layer[slot].saved) what = "modules_to_save";
    }
    return !what ? ERR_NONE
                 : err_set(e, ERR_UNSUPPORTED, "an adapter with %s cannot be in a stack", what);
}

/* One slot: its rank, and where A and B will lie. */
static void lay_slot(adapter_layout *out, size_t slot, const model_config *base)
{
    peft_layer *pl = &out->peft.layer[slot];
    adapter_pair *p = &out->pair[slot];
    int d_out, d_in;
    peft_slot_shape(base, slot, &d_out, &d_in);
    uint64_t a = (uint64_t)pl->rank * (uint64_t)d_in * sizeof(float);
    uint64_t b = (uint64_t)pl->rank * (uint64_t)d_out * sizeof(float);
    p->a = (adapter_tensor){.offset = out->file_bytes, .bytes = a, .type = DT_F32, .present = true};
    p->b = (adapter_tensor){
        .offset = out->file_bytes + a, .bytes = b, .type = DT_F32, .present = true};
    out->file_bytes += a + b;
    out->peft.n_wrapped++;
    if (pl->rank > out->peft.rank_max) out->peft.rank_max = pl->rank;
}

err_code stacked_layout(const adapter_layout *const *part, int n, const model_config *base,
                        adapter_layout *out, err *e)
{
    *out = (adapter_layout){.n_vocab = base->n_vocab, .dtype_name = "F32"};
    out->peft.n_layer = base->n_layer;
    out->peft.n_vocab = base->n_vocab;
    size_t slots = peft_slots(&out->peft);
    out->peft.layer = calloc(slots, sizeof(*out->peft.layer));
    out->pair = calloc(slots, sizeof(*out->pair));
    if (!out->peft.layer || !out->pair) return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t slot = 0; slot < slots; slot++) {
        peft_layer *pl = &out->peft.layer[slot];
        for (int i = 0; i < n; i++) {
            const peft_layer *own = &part[i]->peft.layer[slot];
            if (own->wrapped) *pl = (peft_layer){true, pl->rank + own->rank, 1, false};
        }
        if (pl->rank > LORA_RANK_MAX)
            return err_set(e, ERR_LIMIT, "the ranks of a stack add up to %d; allowed are %d",
                           pl->rank, LORA_RANK_MAX);
        if (pl->wrapped) lay_slot(out, slot, base);
    }
    return ERR_NONE;
}

static bool inside(const adapter_tensor *t, uint64_t bytes, uint64_t values)
{
    return t->present && t->offset <= bytes && adapter_tensor_span(t) <= bytes - t->offset &&
           values * dtype_bytes(t->type) <= t->bytes;
}

/* A's rows come below those of earlier parts, B's columns to the right of theirs. */
static bool add_slot(const adapter_layout *whole, uint8_t *to, const adapter_layout *part,
                     const uint8_t *file, uint64_t bytes, float share, size_t slot, int row0,
                     const model_config *base)
{
    const adapter_pair *out = &whole->pair[slot], *in = &part->pair[slot];
    size_t rank = (size_t)part->peft.layer[slot].rank, all = (size_t)whole->peft.layer[slot].rank;
    float scale = share * part->peft.layer[slot].scale;
    int d_out, d_in;
    peft_slot_shape(base, slot, &d_out, &d_in);
    if (!inside(&in->a, bytes, rank * (size_t)d_in) || !inside(&in->b, bytes, rank * (size_t)d_out))
        return false;
    float *a = (float *)(void *)(to + out->a.offset) + (size_t)row0 * (size_t)d_in;
    float *b = (float *)(void *)(to + out->b.offset) + row0;
    for (size_t i = 0; i < rank * (size_t)d_in; i++)
        a[i] = scale * float_at(file + in->a.offset, in->a.type, adapter_tensor_place(&in->a, i));
    for (size_t r = 0; r < (size_t)d_out; r++)
        for (size_t k = 0; k < rank; k++)
            b[r * all + k] = float_at(file + in->b.offset, in->b.type,
                                      adapter_tensor_place(&in->b, r * rank + k));
    return true;
}

bool stacked_add(const adapter_layout *whole, uint8_t *to, const adapter_layout *part,
                 const uint8_t *file, uint64_t bytes, float share, int *row0,
                 const model_config *base)
{
    bool ok = true;
    for (size_t slot = 0; slot < peft_slots(&whole->peft) && ok; slot++) {
        if (!part->peft.layer[slot].wrapped) continue;
        ok = add_slot(whole, to, part, file, bytes, share, slot, row0[slot], base);
        row0[slot] += part->peft.layer[slot].rank;
    }
    return ok;
}
