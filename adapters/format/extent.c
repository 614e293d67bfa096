/* extent.c -- adds up what an adapter of a layout takes on the disk and in memory.
 *
 * The sums must be those that adapters/residency/ later asks for (extras.c takes its places by
 * the same functions), since an adapter is admitted by them: pairs as the backend packs them
 * (padded ranks, panels), vectors of DoRA and of biases, own rows and tables of embeddings and
 * head, a head of classes. Each part counts to its alignment. Where two forms are possible, the
 * larger one counts.
 */
#include "adapters/format/extent.h"

uint64_t extent_vector_bytes(const model_config *shape, size_t slot)
{
    int d_out, d_in;
    peft_slot_shape(shape, slot, &d_out, &d_in);
    return extent_padded((uint64_t)d_out * sizeof(float));
}

bool extent_biased(const adapter_layout *al, const model_config *base, size_t slot)
{
    const adapter_pair *pair = &al->pair[slot];
    bool gained = al->peft.gains && pair->magnitude.present && slot < peft_head_slot(base->n_layer);
    return pair->b_bias.present || pair->bias.present ||
           (gained && model_proj_has_bias(base, (proj)(slot % PROJ_COUNT)));
}

dtype extent_pack_type(const adapter_layout *al, const model_config *base, size_t slot)
{
    bool own = slot == peft_head_slot(base->n_layer) && al->pair[slot].table.present;
    if (slot < peft_head_slot(base->n_layer))
        return model_proj_type(base, (proj)(slot % PROJ_COUNT));
    return own ? al->pair[slot].table.type : base->type;
}

model_config extent_shape(const adapter_layout *al, const model_config *base)
{
    model_config own = *base;
    own.n_vocab = al->n_vocab;
    return own;
}

size_t extent_row_count(const adapter_layout *al, const model_config *base, size_t slot)
{
    const adapter_tensor *more = &al->pair[slot].more;
    size_t n = layout_patched(al, base, slot) ? (size_t)al->peft.n_token : 0;
    return n + (more->present ? (size_t)(more->bytes / dtype_bytes(more->type)) / (size_t)base->dim
                              : 0);
}

dtype extent_row_type(const model_config *base, size_t slot)
{
    return slot == peft_head_slot(base->n_layer) ? base->head_type : base->embed_type;
}

/* A packed weight: whole panels, and F16 as F32; some backends have it in the base's type. */
static uint64_t weight_bytes(const model_config *base, uint64_t n, dtype type)
{
    uint64_t rows = (n + 31) / 32 * 32, cols = ((uint64_t)base->dim + 31) / 32 * 32;
    return rows * cols * (type == DT_BF16 && base->head_type == DT_BF16 ? 2 : 4);
}

uint64_t extent_id_bytes(const adapter_layout *al, const model_config *shape, size_t slot)
{
    return extent_padded(extent_row_count(al, shape, slot) * sizeof(int32_t));
}

static uint64_t row_bytes(const adapter_layout *al, const model_config *base, size_t slot)
{
    uint64_t n = extent_row_count(al, base, slot), dim = (uint64_t)base->dim;
    if (n == 0) return 0;
    if (slot == peft_head_slot(base->n_layer)) return weight_bytes(base, n, base->head_type);
    return extent_padded(n * dim * dtype_bytes(base->embed_type));
}

static uint64_t table_bytes(const adapter_layout *al, const model_config *base, size_t slot)
{
    const adapter_tensor *t = &al->pair[slot].table;
    uint64_t rows = row_bytes(al, base, slot);
    if (!t->present) return rows;
    if (slot == peft_embed_slot(base->n_layer)) return rows + extent_padded(t->bytes);
    return rows + weight_bytes(base, (uint64_t)base->n_vocab, t->type);
}

static uint64_t pair_bytes(const backend *be, dtype type, int rank, int d_in, int d_out)
{
    return extent_padded(be_lora_a_bytes(be, type, rank, d_in)) +
           extent_padded(be_lora_b_bytes(be, type, rank, d_out));
}

uint64_t extent_slab_bytes(const adapter_layout *al, const model_config *base, const backend *be)
{
    uint64_t sum = 0;
    for (size_t slot = 0; slot < peft_slots(&al->peft); slot++) {
        if (slot == peft_score_slot(base->n_layer)) continue;
        const peft_layer *pl = &al->peft.layer[slot];
        if (al->pair[slot].magnitude.present) sum += extent_vector_bytes(base, slot);
        if (extent_biased(al, base, slot)) sum += extent_vector_bytes(base, slot);
        if (al->peft.layer[slot].saved) sum += extent_vector_bytes(base, slot);
        if (peft_in_layer(base->n_layer, slot) || !pl->wrapped) continue;
        int d_out, d_in;
        dtype type = extent_pack_type(al, base, slot);
        peft_slot_shape(base, slot, &d_out, &d_in);
        uint64_t pair = pair_bytes(be, type, pl->rank, d_in, d_out);
        if (slot == peft_head_slot(base->n_layer)) { /* beside its own table, or the base's type */
            uint64_t other = pair_bytes(be, base->head_type, pl->rank, d_in, d_out);
            if (other > pair) pair = other;
        }
        sum += pair;
    }
    size_t embed = peft_embed_slot(base->n_layer), head = peft_head_slot(base->n_layer);
    sum += extent_id_bytes(al, base, embed) + extent_id_bytes(al, base, head);
    return sum + table_bytes(al, base, embed);
}

uint64_t extent_score_bytes(const adapter_layout *al, const model_config *base)
{
    return (uint64_t)al->n_label * ((uint64_t)base->dim + 1) * sizeof(float);
}

uint64_t extent_bytes(const adapter_layout *al, const model_config *base, const backend *be)
{
    model_config own = extent_shape(al, base);
    return extent_slab_bytes(al, &own, be) + table_bytes(al, &own, peft_head_slot(base->n_layer)) +
           extent_score_bytes(al, &own);
}

uint64_t extent_packed_bytes(const adapter_layout *al, const model_config *base, const backend *be)
{
    uint64_t sum = extent_bytes(al, base, be);
    for (size_t slot = 0; slot < peft_slots(&al->peft); slot++) {
        const peft_layer *pl = &al->peft.layer[slot];
        int d_out, d_in;
        if (!peft_in_layer(base->n_layer, slot) || !pl->wrapped) continue;
        peft_slot_shape(base, slot, &d_out, &d_in);
        sum += pair_bytes(be, extent_pack_type(al, base, slot), pl->rank, d_in, d_out);
    }
    return sum;
}
