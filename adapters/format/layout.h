/* layout.h -- where each matrix and vector of an adapter lies in its file.
 *
 * The same for every file format: the readers (safetensors in validate.c) place
 * tensor after tensor, then layout_check() sees that nothing is missing.  Shapes are
 * checked here, values are not.
 *
 * Threads: one layout belongs to one thread.
 */
#ifndef ADAPTERS_FORMAT_LAYOUT_H
#define ADAPTERS_FORMAT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/format/naming.h"
#include "adapters/format/peft.h"
#include "engine/backend.h"
#include "engine/model/safetensors.h"

typedef struct adapter_tensor {
    uint64_t offset, bytes; /* in the file; bytes: of its values alone */
    dtype type;
    bool present;
    /* A matrix with others' values between its own: n_col of them col_apart from one another, and a
     * row row_apart behind the one before.  n_col 0: one behind the other. */
    int n_col, col_apart, row_apart;
    int each, skip; /* and behind `each` rows so many values more; 0: nowhere */
    int woven;      /* of so many experts' matrices, whose values take turns; 0: not so */
} adapter_tensor;

/* Where its i-th value stands in the file, in values behind the first. */
static inline uint64_t adapter_tensor_place(const adapter_tensor *t, uint64_t i)
{
    if (t->n_col == 0) return i;
    uint64_t row = i / (uint64_t)t->n_col, col = i % (uint64_t)t->n_col;
    uint64_t skips = t->each > 0 ? row / (uint64_t)t->each * (uint64_t)t->skip : 0;
    return row * (uint64_t)t->row_apart + skips + col * (uint64_t)t->col_apart;
}

/* From the first to the last of its values. */
static inline uint64_t adapter_tensor_span(const adapter_tensor *t)
{
    uint64_t size = dtype_bytes(t->type);
    if (t->n_col == 0 || t->bytes == 0) return t->bytes;
    return (adapter_tensor_place(t, t->bytes / size - 1) + 1) * size;
}

/* Its values, one behind the other, to out [bytes]. */
void adapter_tensor_gather(const adapter_tensor *t, const uint8_t *file, void *out);

/* All that one module of the base may get. */
typedef struct adapter_pair {
    adapter_tensor a, b;      /* A [rank][d_in], B [d_out][rank] */
    adapter_tensor magnitude; /* DoRA, [d_out] */
    adapter_tensor b_bias;    /* lora_bias, [d_out] */
    adapter_tensor bias;      /* the layer's own bias, trained, [d_out] */
    /* lm_head, embed_tokens: the whole weight, [n_vocab][dim]; a norm's [dim]; of a head of classes
     * [labels][dim]. */
    adapter_tensor table;
    adapter_tensor rows; /* embed_tokens, lm_head: those of peft.token */
    /* The same: the table's rows behind the base's, where those before are the base's own. */
    adapter_tensor more;
    /* A second tensor of the table, which must be the same; not among the parts. */
    adapter_tensor twin;
} adapter_pair;

typedef struct adapter_layout {
    peft_config peft;
    int n_vocab;         /* of the tables; the base's unless tokens were added or left out */
    adapter_pair *pair;  /* [peft_slots(&peft)], owned */
    uint64_t file_bytes; /* of all files */
    bool idle;           /* values were scanned: the base stays as it is, to the bit */
    char dtype_name[8];  /* "F32", "F16", "BF16", "mixed" */
    int n_label;         /* classes of its own head; 0: it has none */
} adapter_layout;

/* Every tensor of one module, one after another: n = ADAPTER_PARTS. */
enum { ADAPTER_PARTS = 8 };
adapter_tensor *adapter_part(adapter_pair *pair, int part);

/* Adds what one tensor tells of the vocabulary's size (0: nothing yet),
 * within what the server allows. */
err_code layout_vocab(const st_tensor *t, const model_config *base, int *n_vocab, err *e);

/* Where one tensor of the file belongs; base with al's n_vocab, as for layout_check().
 * ERR_INPUT, ERR_UNSUPPORTED name it. */
err_code layout_place(adapter_layout *al, const model_config *base, const st_tensor *t, err *e);

/* All is there that the config promises, and of fitting types, also rows for tokens that were added
 * to the base's `n_base`; sets dtype_name. */
err_code layout_check(adapter_layout *al, const model_config *base, int n_base, err *e);

/* Does a token have a row of its own in this table, by trainable_token_indices? */
bool layout_patched(const adapter_layout *al, const model_config *base, size_t slot);

/* PEFT saves the tables of wrapped or resized embeddings whole: forgets what is the base's own of
 * one, by the fingerprint of its first rows, as many as the base has. */
void layout_forget_table(adapter_layout *al, const model_config *base, size_t slot, uint64_t print);

#endif
