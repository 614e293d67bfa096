/* model.h -- a base model: a Hugging Face directory or a GGUF, loaded and ready to run.
 *
 * Families: the rows of engine/model/family.c.  Anything else is refused by a sentence that names
 * what is not supported.  The tokenizer and the chat template are not here
 * (engine/text/tokenizer.h, engine/chat/chat.h).
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

enum {
    MODEL_EOS_MAX = 8,
    MODEL_BARRED_MAX = 1024,
    MODEL_LAYERS_MAX = 1024,
    MODEL_ROPE_MAX = 128 /* frequencies of a rotation that has factors of its own */
};

/* How positions turn the heads of a layer. */
typedef struct rope_config {
    enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONG } kind;
    int dim; /* the first values of each head that turn */
    float theta, factor;
    int original_pos;                   /* all but plain and linear */
    float low_freq, high_freq;          /* llama3 */
    float beta_fast, beta_slow;         /* yarn, */
    int truncate;                       /* which counts in whole frequencies then */
    float attention_factor;             /* cosines and sines are multiplied by it */
    float mscale_all;                   /* yarn: of mscale_all_dim; else 1 */
    float short_factor[MODEL_ROPE_MAX]; /* longrope, [dim / 2]: */
    float long_factor[MODEL_ROPE_MAX];  /* these where max_pos is above original_pos */
} rope_config;

/* Of one layer; bits of model_config.layer. */
enum { LAYER_WINDOW = 1, LAYER_NO_ROPE = 2, LAYER_EXPERTS = 4 };

/* What the modules of an MLP and of experts are called: "mlp." and "shared_expert."; as DeepSeek,
 * "shared_experts."; as Llama 4, "feed_forward.". */
typedef enum { MLP_USUAL, MLP_SHARED_EXPERTS, MLP_FEED_FORWARD } mlp_names;

/* A mixture of experts, in layers with LAYER_EXPERTS; route.n 0: there are none. */
typedef struct experts_config {
    expert_route route;
    int ffn_dim;
    int shared_dim; /* of the MLP that every row takes besides; 0: there is none */
    bool biased;    /* the router has a bias, and so has each product of an expert */
    bool alternate; /* gate and up take turns in the parameter that has both */
    activation act;
} experts_config;

/* What config.json and generation_config.json say, checked. */
typedef struct model_config {
    char family[16]; /* "llama", "gemma3_text": engine/model/family.c */
    bool wrapped;    /* the text part of a model that also takes images */
    /* It has no output layer (the table stands where one is asked for): its prompts are pooled, and
     * no text is made.  scored: it has a head of classes instead. */
    bool headless, scored;
    int n_layer, dim, n_head, n_kv_head, head_dim, ffn_dim, n_vocab;
    int spare_layers; /* in the files behind n_layer: they guess more tokens, and are left out */
    int max_pos;      /* max_position_embeddings */
    int window;       /* sliding window in tokens of LAYER_WINDOW's layers; 0: there are none */
    uint8_t layer[MODEL_LAYERS_MAX];
    float norm_eps;
    bool qkv_bias, o_bias, mlp_bias, tied;
    bool qk_norm, qk_norm_whole; /* of each head; of all heads together */
    bool layer_norm;             /* norms take the mean away */
    bool fixed_norms;            /* an adapter cannot bring norms of its own */
    bool parallel;               /* attention and MLP read the same input */
    latent_shape latent;         /* rank 0: keys and values are made of the stream itself */
    int q_rank;                  /* of a latent of queries; 0: there is none */
    bool qk_unit; /* queries and keys are normed without weights, where positions turn them */
    bool chunked; /* windows do not slide (attn_shape.chunked) */
    int kept;     /* first tokens that stay beside the window (model_config_stream()); 0: none */
    float q_scale, q_floor;       /* of layers without positions (rope_table.q_scale); 0: none */
    bool sinks;                   /* of attention: a learnt score for each head */
    bool ungated;                 /* the MLP has no gate: PROJ_GATE is nowhere */
    bool rope_pairs;              /* neighbours turn together */
    rope_config rope, local_rope; /* local: of layers with a window */
    experts_config experts;
    mlp_names mlp_names;
    activation act;
    float score_scale, score_cap;                   /* as attn_shape's */
    float embed_scale, residual_scale, logit_scale; /* multipliers; 1: none */
    float logit_cap;                                /* 0: none */
    dtype type;       /* of the linear weights in memory, and of what adapters add to them */
    bool in_integers; /* some are codes that are multiplied as integers; known once loaded */
    char format[24];  /* of most of them on disk: "BF16", "Q4_K"; empty before they are loaded */
    /* Known once the weights are loaded: type and fingerprint
     * (engine/base/fingerprint.h; 0: not known) of the raw input table and output
     * matrix, by which an adapter's copy of them is recognised. */
    dtype embed_type, head_type;
    uint64_t embed_print, head_print;
    uint64_t weights_print; /* the same of samples out of all tensors: which training it is */
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

/* Reads and checks config.json (and generation_config.json where there is one) of the model at
 * `path`: a directory, or a GGUF, whose keys say the same. */
err_code model_config_read(const char *path, model_config *out, err *e);

/* Makes it a model of streams: each token sees the first `sinks` tokens and the last `window` ones,
 * at positions within these (attn_shape.kept), so that `max_context` is no bound of the model's.
 * ERR_UNSUPPORTED names what cannot be served so; ERR_INPUT: it was not trained on so many. */
err_code model_config_stream(model_config *c, int sinks, int window, int max_context, err *e);

/* What the matrices become in memory; the input table stays as it is. */
typedef enum {
    WEIGHTS_AUTO, /* as the files have them: quantised ones by their codes, where the backend can */
    WEIGHTS_PLAIN, /* quantised ones become their plain values, exact */
    WEIGHTS_BF16,  /* all have BF16 values */
    WEIGHTS_Q8,    /* plain ones are quantised, to 8 bits or */
    WEIGHTS_Q4,    /* to 4; quantised ones stay so; or */
    WEIGHTS_FP8,   /* to E4M3 */
} weights_form;

/* model.weights' word for it: auto, plain, bf16, q8, q4, fp8; any other: as auto. */
weights_form model_weights_form(const char *word);

/* What the weights are and take, without loading them. */
typedef struct model_survey {
    char format[24];     /* as in model_config */
    size_t file_bytes;   /* in the files */
    size_t memory_bytes; /* in memory, beyond what stays mapped */
    size_t device_bytes; /* of these, what a device's own memory must hold (a tied table once) */
    int by_codes;        /* tensors that the kernels take by their codes */
    int dequantised;     /* tensors that become plain values */
} model_survey;

/* Opens the files of the model at `path`, finds every tensor of the configuration in them and
 * checks its shape and type.  `rules`: what the backend takes by its codes (backend_caps.rules). */
err_code model_survey_read(const char *path, const model_config *c, weights_form weights,
                           const weight_rules *rules, model_survey *out, err *e);

/* d_out and d_in of one wrapped linear layer: of a layer without experts; of layer `layer`, whose
 * MLP beside experts is the shared one; of each expert of a layer (PROJ_GATE, PROJ_UP,
 * PROJ_DOWN). */
void model_proj_shape(const model_config *c, proj p, int *d_out, int *d_in);
void model_layer_shape(const model_config *c, int layer, proj p, int *d_out, int *d_in);
void model_expert_shape(const model_config *c, proj p, int *d_out, int *d_in);
/* False: this layer has no such projection (no gate; experts alone). */
bool model_has_proj(const model_config *c, int layer, proj p);
bool model_proj_has_bias(const model_config *c, proj p);

typedef struct model model;

/* Loads config.json and the tensors: safetensors (single or sharded by
 * model.safetensors.index.json), or a GGUF (single, or the first of several).
 * max_rows bounds the rows of one step, max_logits its wanted logits; both size the scratch. */
err_code model_load(model **out, const char *dir, backend *be, int max_rows, int max_logits,
                    err *e);

/* How else a model may be loaded; zeros: as model_load() does. */
typedef struct model_options {
    /* A directory of our own for packed weights, made where it is missing: they are mapped from
     * there, or written there while the model already serves (engine/model/packed.h).  NULL: they
     * are packed at every start. */
    const char *packed_dir;
    uint64_t packed_floor_bytes; /* that must stay free on its disk */
    weights_form weights;
    int max_context;   /* positions that will be served; 0: all that the model has */
    int sinks, window; /* of model_config_stream(); 0: neither */
} model_options;
err_code model_load_with(model **out, const char *dir, backend *be, int max_rows, int max_logits,
                         const model_options *options, err *e);
/* Whether the weights are mapped from packed_dir; whether nobody writes there (any more). */
bool model_packed_mapped(const model *m);
bool model_packed_settled(const model *m);
void model_destroy(model *m);

/* Makes room in the logits for adapters that add up to `max` tokens to the vocabulary, or leave out
 * those from `least` on that no tokenizer makes; before the first step.  After an error the model
 * can only be destroyed. */
err_code model_allow_added(model *m, int max, int least, err *e);
/* What a step's logit_stride must be: room for n_vocab and the tokens that may be added. */
int model_logit_stride(const model *m);

/* Gives back all that lies on the device, and loads it from the files again; in between there is
 * the configuration alone.  For a backend that is reopened; engine thread, no loader at work.
 * ERR_CONFLICT: the files are another model's now. */
void model_unload(model *m);
err_code model_reload(model *m, err *e);

const model_config *model_get_config(const model *m);
/* For be_kv_create(): attention shape of this model.  KV type, where no other was set: F16 for
 * models in integers on the CPU and F16 ones on CUDA, BF16 for BF16 models, else F32. */
attn_shape model_attn_shape(const model *m);
/* Before the first model_attn_shape().  ERR_UNSUPPORTED: the backend keeps no keys and values of
 * this type (backend_caps.kv_types). */
err_code model_set_kv_type(model *m, dtype type, err *e);
/* engine.kv_type's word for a model: f32, f16, bf16, int8; any other: what it has where none is
 * set. */
dtype model_kv_type(const model_config *c, const char *word);
/* "f32", "f16", "bf16" or "int8". */
const char *model_kv_name(const model *m);
/* Packed matrices, head included: what one decode step reads.  The embedding table is not
 * counted: it stays mapped, and a step touches one row per token. */
size_t model_weight_bytes(const model *m);

/* The packed matrix of one projection, and its bias (backend memory, [d_out]; NULL: none).  Live as
 * long as the model; for loaders of adapters, any thread. */
const weight *model_proj_weight(const model *m, int layer, proj p);
const weight *model_expert_weight(const model *m, int layer, int expert, proj p);
const float *model_proj_bias(const model *m, int layer, proj p);
const weight *model_head_weight(const model *m);
/* Rows [from, to) of the input table as `type` to out [to - from][dim].  False: no memory. */
bool model_embed_values(const model *m, int from, int to, dtype type, void *out);

/* One forward pass.  *logits_out: f32 [s->n_logit][s->logit_stride, or n_vocab],
 * host-readable, valid until the next call.  The scheduler guarantees pages and bounds.
 * ERR_DEVICE when the backend failed. */
err_code model_forward(model *m, kv_pool *kv, const step *s, const float **logits_out, err *e);

/* Behind a pass and its sampling (or their enqueueing), before the next one: the hidden states of n
 * rows of the step from row0 on, all of one view (NULL: the base's), behind the last norm, to the
 * host, [n][dim].  Each row once: it is gone then.  Waits for the device.  ERR_DEVICE when the
 * backend failed. */
err_code model_take_states(model *m, int row0, int n, const lora_view *view, float *out, err *e);
/* The base's head of classes; NULL: it has none. */
const pooling_head *model_score_head(const model *m);

/* The same in pieces, for backends that sample (be_can_sample()): enqueues the pass up to its
 * logits and returns; enqueues the sampling of them (be_sample()).  Then be_sync(). */
err_code model_enqueue(model *m, kv_pool *kv, const step *s, err *e);
const sampled *model_sample(model *m, const sample_row *rows, int n);

#ifdef __cplusplus
}
#endif

#endif
