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
#include "engine/model/resident.h"
#include "engine/sample/sampling_list.h"

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
    enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONG, ROPE_PROPORTIONAL } kind;
    int dim;  /* the first values of each head that turn */
    int some; /* proportional: of the dim / 2 frequencies those that are not 0 */
    int back; /* they turn the other way */
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
enum {
    LAYER_WINDOW = 1,
    LAYER_NO_ROPE = 2,
    LAYER_EXPERTS = 4,
    LAYER_NO_MLP = 8,
    LAYER_SHARES_KV = 16, /* it reads keys and values of the last layer of its kind that has them */
    LAYER_WIDE = 32,      /* its MLP is twice as wide */
    LAYER_SPARSE = 64,    /* of its MLP's gate the highest values alone count */
};

/* What the modules of an MLP and of experts are called: "mlp." and "shared_expert."; as DeepSeek,
 * "shared_experts."; as Llama 4, "feed_forward."; as StarCoder 2, "mlp.c_fc" and "mlp.c_proj"; as
 * Hunyuan, "shared_mlp.". */
typedef enum {
    MLP_USUAL,
    MLP_SHARED_EXPERTS,
    MLP_FEED_FORWARD,
    MLP_C_FC,
    MLP_SHARED_MLP
} mlp_names;

/* A mixture of experts, in layers with LAYER_EXPERTS; route.n 0: there are none. */
typedef struct experts_config {
    expert_route route;
    int ffn_dim;
    int shared_dim;    /* of the MLP that every row takes besides; 0: there is none */
    bool biased;       /* the router has a bias, and so has each product of an expert */
    bool alternate;    /* gate and up take turns in the parameter that has both */
    bool choice;       /* scores have a bias for the choice */
    bool shared_gated; /* a score of its own multiplies what the shared MLP answers */
    /* The router, experts and the shared MLP have each their own norms of the stream and of what
     * they answer, and the router a weight for each expert (Gemma 4). */
    bool beside;
    activation act;
} experts_config;

/* Falcon-H1's multipliers of a layer's parts: of what attention and the scan beside it read and
 * add, of an MLP's gate and of what it adds; 1: none. */
typedef struct layer_multipliers {
    float attn_in, attn_out, scan_in, scan_out, gate, down;
} layer_multipliers;

/* Streams that the layers update together (Gemma 3n); n 0: there is one, as usual. */
typedef struct streams_config {
    int n, laurel;   /* laurel: the rank of a layer's other residual */
    float sparse_by; /* of LAYER_SPARSE: standard deviations above the mean */
    bool scaled;     /* what a layer's own input is gated by is multiplied first */
} streams_config;

/* What config.json and generation_config.json say, checked. */
typedef struct model_config {
    char family[24]; /* "llama", "gemma3_text": engine/model/family.c */
    bool wrapped;    /* the text part of a model that also takes images */
    /* It has no output layer (the table stands where one is asked for): its prompts are pooled, and
     * no text is made.  scored: it has a head of classes instead. */
    bool headless, scored;
    int n_layer, dim, n_head, n_kv_head, head_dim, ffn_dim, n_vocab;
    /* Of layers with attention and without a window, where theirs differ; 0: as all others. */
    int full_head_dim, full_kv_head;
    bool full_k_is_v;       /* their values are their keys, before norm and rotation */
    bool v_unit;            /* values are normed without weights */
    bool layer_scaled;      /* a number of each layer multiplies the stream behind it */
    int ple_dim, ple_vocab; /* of a layer's own input; 0: there is none */
    streams_config streams;
    int spare_layers; /* in the files behind n_layer: they guess more tokens, and are left out */
    int max_pos;      /* max_position_embeddings */
    int window;       /* sliding window in tokens of LAYER_WINDOW's layers; 0: there are none */
    uint8_t layer[MODEL_LAYERS_MAX];   /* bits LAYER_... */
    uint8_t mixer[MODEL_LAYERS_MAX];   /* which one a layer has */
    mixer_shape state;                 /* of the layers that keep one */
    bool conv_bias, in_bias, out_bias; /* of their convolutions and projections */
    delta_rules delta;
    scan_rules scan;
    int dt_rank; /* of the values that steps of MIXER_CHANNELS are made of; 0: there are none */
    layer_multipliers by;
    float norm_eps;
    bool qkv_bias, o_bias, mlp_bias, tied;
    bool qk_norm, qk_norm_whole; /* of each head; of all heads together */
    bool qk_norm_last;           /* after the rotation */
    bool q_gated;                /* PROJ_Q makes a gate beside each head's query */
    bool layer_norm;             /* norms take the mean away */
    bool norm_bare;              /* norms of the stream have no weights */
    bool head_bias;              /* the output layer has one */
    bool norm_first;             /* the stream is normed before the first layer (norm_bare) */
    bool no_post_norm;           /* no norms of outputs, whatever the family's row says */
    bool fixed_norms;            /* an adapter cannot bring norms of its own */
    bool parallel;               /* attention and MLP read the same stream, */
    bool parallel_apart;         /* each by a norm of its own; else by one */
    int n_position;              /* rows of the table of positions; 0: there is none */
    latent_shape latent;         /* rank 0: keys and values are made of the stream itself */
    bool absorbs;                /* pages hold latents; known after model_config_place() */
    int q_rank;                  /* of a latent of queries; 0: there is none */
    bool qk_unit; /* queries and keys are normed without weights, where positions turn them */
    bool chunked; /* windows do not slide (attn_shape.chunked) */
    int kept;     /* first tokens that stay beside the window (model_config_stream()); 0: none */
    float q_scale, q_floor;       /* rope_table's, of layers without positions; 0: none */
    bool q_scale_all;             /* of all layers, counted from position 0 (Ministral 3) */
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
    /* Of generation_config.json: */
    sampling_defaults generation; /* neutral where it has none */
    int gen_max_tokens;           /* of an answer where the request names no number; 0: not given */
    /* suppress_tokens and bad_words_ids: sequences that never come, each behind its length */
    int n_gen_barred;
    int32_t gen_barred[MODEL_BARRED_MAX];
} model_config;

/* Reads and checks config.json (and generation_config.json where there is one) of the model at
 * `path`: a directory, or a GGUF, whose keys say the same. */
err_code model_config_read(const char *path, model_config *out, err *e);

/* What a backend with these rules keeps of it: weight_rules.absorbs.  Part of model_load(). */
void model_config_place(model_config *c, const weight_rules *rules);

/* ERR_UNSUPPORTED: engine.page_tokens is less than LATENT_PAGE_MIN, and pages hold latents:
 * attention reads a block of these where it lies.  After model_config_place(); part of
 * model_load(). */
enum { LATENT_PAGE_MIN = 32 };

/* ERR_UNSUPPORTED: pages of that many positions are too small for this model. */
err_code model_config_pages(const model_config *c, int page_tokens, err *e);

/* Of keys and values of one position in all layers, or of what is kept in their place, in bytes;
 * backends pad them. */
size_t model_kv_bytes(const model_config *c, dtype type);

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

/* How the CPU's products with integer codes round their input (x_rounding, model_weights.c). */
typedef enum {
    ACTIVATIONS_MIXED, /* outliers to 16 bits where they matter most, all else to 8 */
    ACTIVATIONS_INT8,  /* to 8 bits */
    ACTIVATIONS_INT16, /* to 16 bits */
} activations_form;

/* model.activations' word for it: mixed, int8, int16; any other: as mixed. */
activations_form model_activations_form(const char *word);

/* What the weights are and take, without loading them. */
typedef struct model_survey {
    char format[24];     /* as in model_config */
    size_t file_bytes;   /* in the files */
    size_t memory_bytes; /* in memory, beyond what stays mapped */
    size_t device_bytes; /* of these, what a device's own memory must hold (a tied table once) */
    int by_codes;        /* tensors that the kernels take by their codes */
    int dequantised;     /* tensors that become plain values */
    uint64_t sampled;    /* digest of samples of the tensors: model_config.weights_print */
    uint64_t full;       /* digest of all bytes of the tensors; 0: not asked for */
    size_t heads_bytes;  /* of memory_bytes, of latents' heads: model.resident_bytes has none */
    double token_bytes;  /* that a step of one row reads from the disk; 0: all stay in memory */
} model_survey;

/* Opens the files of the model at `path`, finds every tensor of the configuration in them and
 * checks its shape and type.  `rules`: what the backend takes by its codes (backend_caps.rules).
 * `deep`: reads all tensors for the full digest.  `resident_bytes`: model_options'; 0: all. */
err_code model_survey_read(const char *path, const model_config *c, weights_form weights,
                           const weight_rules *rules, bool deep, size_t resident_bytes,
                           model_survey *out, err *e);

/* d_out and d_in of one wrapped linear layer: of a layer without experts, the widest where they
 * differ; of layer `layer`, whose MLP beside experts is the shared one; of each expert of a layer
 * (PROJ_GATE, PROJ_UP, PROJ_DOWN). */
void model_proj_shape(const model_config *c, proj p, int *d_out, int *d_in);

/* Of one layer; ffn sizes differ between layers of some families. d_out and d_in in values. */
void model_layer_shape(const model_config *c, int layer, proj p, int *d_out, int *d_in);

/* Of each expert of a layer with experts; all of them have the same shape. */
void model_expert_shape(const model_config *c, proj p, int *d_out, int *d_in);
/* False: this layer has no such projection (no gate; experts alone). */
bool model_has_proj(const model_config *c, int layer, proj p);
/* Groups of heads in the module of queries, keys and values that adapters and folders have, each
 * with its queries, then its keys, then its values; 1: all queries stand first. */
int model_qkv_groups(const model_config *c);

/* Whether the base adds a bias [d_out] to this projection, in all layers that have it. */
bool model_proj_has_bias(const model_config *c, proj p);
/* The type of its weights as they were made plain, and of what adapters add to it. */
dtype model_proj_type(const model_config *c, proj p);
/* What the module is called behind "model.layers.N." of a layer that has it. */
void model_proj_name(const model_config *c, int layer, proj p, char *out, size_t size);
/* The module of the base's files that it is a part of, with others behind or before it; NULL: it is
 * its own. */
const char *model_fused_name(const model_config *c, int layer, proj p);

/* Whether any of model_config.by is not 1. */
bool model_multiplied(const model_config *c);

/* Layers with keys and values of their own; floats of the state that all others keep of one
 * sequence, 0: all have attention. */
int model_attention_layers(const model_config *c);
/* Heads of keys and values of a layer with attention. */
attn_heads model_layer_heads(const model_config *c, int layer);

/* f32 values of the state that one sequence keeps in all layers without attention; 0: none keeps
 * one. The size of a slot of state.h. */
size_t model_state_floats(const model_config *c);

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
    activations_form activations;
    int max_context;   /* positions that will be served; 0: all that the model has */
    int sinks, window; /* of model_config_stream(); 0: neither */
    /* Memory for the matrices, which are streamed from packed_dir's file (engine/model/resident.h);
     * 0: all of them stay in memory.  ERR_INPUT: too little; ERR_UNSUPPORTED: no packed_dir, or not
     * the CPU backend. */
    size_t resident_bytes;
} model_options;

/* The same with options. ERR_INPUT and ERR_UNSUPPORTED name the file and the field; ERR_NOMEM;
 * ERR_IO. `be` is borrowed and must outlive the model. Start-up, on the main thread; takes as
 * long as reading the weights. */
err_code model_load_with(model **out, const char *dir, backend *be, int max_rows, int max_logits,
                         const model_options *options, err *e);
/* Whether the weights are mapped from packed_dir; whether nobody writes there (any more). */
bool model_packed_mapped(const model *m);

/* True also where no packed file is written at all. Any thread. */
bool model_packed_settled(const model *m);
/* Of model_options.resident_bytes; zeros: all stay in memory.  Any thread while the model is not
 * reloaded. */
void model_resident(const model *m, resident_counts *out);

/* Frees weights and scratch, and waits for the thread that writes packed weights. NULL is
 * allowed. No step may run. */
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

/* Loads what model_unload() gave back, with the options of the first time. */
err_code model_reload(model *m, err *e);

/* Constant after loading, except for the fields that say "known once loaded"; owned by the
 * model. Any thread. */
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

/* The same for one expert of a layer with experts: PROJ_GATE, PROJ_UP or PROJ_DOWN. */
const weight *model_expert_weight(const model *m, int layer, int expert, proj p);

/* See model_proj_weight(). */
const float *model_proj_bias(const model *m, int layer, proj p);

/* The output layer [n_vocab][dim]; for tied models the packed input table. */
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

/* Rows are those of the step that model_enqueue() has just enqueued. The result [n] belongs to
 * the backend: readable after be_sync(), until the next call (be_sample()). NULL: the backend
 * has failed. */
const sampled *model_sample(model *m, const sample_row *rows, int n);

#ifdef __cplusplus
}
#endif

#endif
