/* model.h -- a base model: a Hugging Face directory, loaded and ready to run.
 *
 * Families: Llama (2, 3.x), Mistral, Qwen2, Qwen3 (dense).  Anything else is refused by
 * a sentence that names what is not supported.  The tokenizer and the chat template are
 * not here (engine/text/tokenizer.h, engine/chat/chat.h).
 *
 * Ownership: the model owns its weights and its scratch; the backend must outlive it.
 * Threads:   model_load() at start-up; model_forward() on the engine thread; the shape
 *            fields are read-only after loading and may be read from any thread.
 */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MODEL_EOS_MAX = 8, MODEL_BARRED_MAX = 1024 };

/* What config.json and generation_config.json say, checked. */
typedef struct model_config {
    char family[16]; /* "llama", "mistral", "qwen2", "qwen3" */
    int n_layer, dim, n_head, n_kv_head, head_dim, ffn_dim, n_vocab;
    int max_pos; /* max_position_embeddings */
    int window;  /* sliding window in tokens; 0: none */
    float norm_eps, rope_theta;
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tied;
    /* rope scaling */
    enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 } rope_kind;
    float rope_factor, rope_low_freq, rope_high_freq;
    int rope_original_pos;
    dtype type; /* of the linear weights on disk */
    /* Known once the weights are loaded: type and fingerprint
     * (engine/base/fingerprint.h; 0: not known) of the raw input table and output
     * matrix, by which an adapter's copy of them is recognised. */
    dtype embed_type, head_type;
    uint64_t embed_print, head_print;
    /* An adapter's vocabulary may have added_max tokens more than the base's, and at least
     * vocab_least (0: as many as the base), by model_allow_added(). */
    int added_max, vocab_least;
    int bos_id; /* -1: none */
    int n_eos;
    int32_t eos_id[MODEL_EOS_MAX];
    /* defaults of generation_config.json; negative: not given */
    float gen_temperature, gen_top_p;
    int gen_top_k;
    /* of the same; 0: not given */
    float gen_min_p, gen_repetition_penalty;
    int gen_max_tokens; /* that an answer may have where the request names no number */
    /* suppress_tokens and bad_words_ids: sequences that never come, each behind its length */
    int n_gen_barred;
    int32_t gen_barred[MODEL_BARRED_MAX];
} model_config;

/* Reads and checks config.json (and generation_config.json where there is one) in `dir`. */
err_code model_config_read(const char *dir, model_config *out, err *e);

/* d_out and d_in of one wrapped linear layer. */
void model_proj_shape(const model_config *c, proj p, int *d_out, int *d_in);
bool model_proj_has_bias(const model_config *c, proj p);

typedef struct model model;

/* Loads config.json and the safetensors (single or sharded by model.safetensors.index.json).
 * max_rows bounds the rows of one step, max_logits its wanted logits; both size the scratch. */
err_code model_load(model **out, const char *dir, backend *be, int max_rows, int max_logits,
                    err *e);
void model_destroy(model *m);

/* Makes room in the logits for adapters that add up to `max` tokens to the vocabulary, or leave out
 * those from `least` on that no tokenizer makes; before the first step.  A backend that cannot
 * (backend_caps.token_rows) leaves it at the base's vocabulary. */
err_code model_allow_added(model *m, int max, int least, err *e);
/* What a step's logit_stride must be: n_vocab and the tokens that may be added. */
int model_logit_stride(const model *m);

/* Gives back all that lies on the device, and loads it from the files again; in between there is
 * the configuration alone.  For a backend that is reopened; engine thread, no loader at work.
 * ERR_CONFLICT: the files are another model's now. */
void model_unload(model *m);
err_code model_reload(model *m, err *e);

const model_config *model_get_config(const model *m);
/* For be_kv_create(): attention shape of this model. KV type: BF16 for BF16 models, else F32. */
attn_shape model_attn_shape(const model *m);
/* Packed matrices, head included: what one decode step reads.  The embedding table is not
 * counted: it stays mapped, and a step touches one row per token. */
size_t model_weight_bytes(const model *m);

/* The packed matrix of one projection, and its bias (backend memory, [d_out]; NULL: none).  Live as
 * long as the model; for loaders of adapters, any thread. */
const weight *model_proj_weight(const model *m, int layer, proj p);
const float *model_proj_bias(const model *m, int layer, proj p);
const weight *model_head_weight(const model *m);
/* The raw input table [n_vocab][dim] of config's embed_type, any alignment. */
const void *model_embed_table(const model *m);

/* One forward pass.  *logits_out: f32 [s->n_logit][s->logit_stride, or n_vocab],
 * host-readable, valid until the next call.  The scheduler guarantees pages and bounds.
 * ERR_DEVICE when the backend failed. */
err_code model_forward(model *m, kv_pool *kv, const step *s, const float **logits_out, err *e);

/* The same in pieces, for backends that sample (be_can_sample()): enqueues the pass up to its
 * logits and returns; enqueues the sampling of them (be_sample()).  Then be_sync(). */
err_code model_enqueue(model *m, kv_pool *kv, const step *s, err *e);
const sampled *model_sample(model *m, const sample_row *rows, int n);

#ifdef __cplusplus
}
#endif

#endif
