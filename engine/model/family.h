/* family.h -- model families as descriptions; private to engine/model/.
 *
 * A row of `families` says what a family's configuration class in transformers assumes, which
 * fields of config.json it reads, where its norms stand and what its tensors are called.
 * model_config.c makes a model_config of a row and a config.json; model_weights.c finds the
 * tensors; model.c computes what the model_config says, and knows no family.
 *
 * How to add one: docs/howto/families.md.
 * Threads: constants.
 */
#ifndef ENGINE_MODEL_FAMILY_H
#define ENGINE_MODEL_FAMILY_H

#include <stdbool.h>

#include "engine/model/model.h"

/* Norms of a layer, by place. */
typedef enum {
    NORM_ATTN_IN,  /* before attention; without it attention reads the stream itself */
    NORM_ATTN_OUT, /* of what attention adds to the stream */
    NORM_MLP_IN,
    NORM_MLP_OUT,
    NORM_Q, /* of queries, of keys: each head, or all together */
    NORM_K,
    LAYER_NORMS
} layer_norm;

/* Fields of config.json that only some families have.  The other families refuse a file that sets
 * one. */
enum {
    READS_MLP_BIAS = 1 << 0,      /* mlp_bias */
    READS_SCORE_CAP = 1 << 1,     /* attn_logit_softcapping */
    READS_LOGIT_CAP = 1 << 2,     /* final_logit_softcapping */
    READS_MULTIPLIERS = 1 << 3,   /* Granite's four */
    READS_LOGIT_SCALE = 1 << 4,   /* logit_scale */
    READS_NO_ROPE = 1 << 5,       /* no_rope_layers, no_rope_layer_interval */
    READS_WINDOW_SWITCH = 1 << 6, /* use_sliding_window (off by default), max_window_layers */
    /* mrope_section: three positions for each token, which are one where there is text alone. */
    READS_MROPE = 1 << 7,
    READS_SWIGLU_LIMIT = 1 << 8,  /* swiglu_limit, which is 7 */
    READS_SPARE_LAYERS = 1 << 10, /* num_nextn_predict_layers: in the files, behind the others */
    READS_LLAMA4 = 1 << 11, /* use_qk_norm, and attn_temperature_tuning with what belongs to it */
    READS_CHUNKS = 1 << 12, /* attention_chunk_size, for layers that know positions */
    READS_INTERLEAVE = 1 << 9, /* rope_interleave: rope_pairs or not */
    READS_QK_NORM = 1 << 13,   /* use_qk_norm: whether NORM_Q and NORM_K are there (off) */
    READS_PARALLEL = 1 << 14,  /* use_parallel_residual: parallel (off), without NORM_MLP_IN then */
    READS_TEMPER = 1 << 15,    /* llama_4_scaling_beta, of all queries */
    READS_ALPHA = 1 << 16,     /* alpha of a "dynamic" rotation, which widens theta */
    READS_INTERVAL = 1 << 17,  /* full_attention_interval, which is 4: of layers with a mixer */
    READS_THETAS = 1 << 18,    /* layer_rope_theta */
    READS_KIMI = 1 << 28,      /* Kimi Linear's own names of fields, and linear_attn_config */
    READS_GEMMA4 = 1 << 29,    /* gemma_config_read() */
    READS_NULL_THETA = 1 << 27, /* rope_theta null in rope_parameters: nothing is rotated */
    READS_POST_NORM = 1 << 19,  /* use_post_norm: whether norms of outputs are there (on) */
    READS_ROTARY_DIM = 1 << 20, /* rotary_dim, for partial_rotary_factor */
    READS_WINDOW_OFF = 1 << 21, /* use_sliding_window, which must be off */
    READS_MINICPM = 1 << 26,    /* scale_emb, scale_depth and dim_model_base */
    READS_MSCALES = 1 << 25,    /* short_mscale and long_mscale of a longrope */
    READS_OLD_BIASES = 1 << 22, /* qkv_bias and bias, other names of attention_bias and mlp_bias */
    READS_POSITION_TYPE = 1 << 23, /* position_embedding_type: "rope", or nothing turns */
    READS_FALCON = 1 << 24,        /* Falcon-H1's multipliers */
};

/* Which fields say which layers have experts. */
typedef enum {
    LAYERS_ALL,     /* none: all have */
    LAYERS_LISTED,  /* moe_layers and interleave_moe_layer_step */
    LAYERS_SPAN,    /* moe_layer_start_index, moe_layer_end_index, moe_layer_interval */
    LAYERS_PERIODIC /* expert_layer_period, expert_layer_offset; one expert means that none have */
} layers_field;

/* A layer's experts: what the configuration class assumes, and what the tensors are called.  The
 * number of experts is num_experts or num_local_experts, that of a row num_experts_per_tok. */
typedef struct family_experts {
    expert_route route; /* where config.json does not say; its scale is 1 */
    int ffn_dim;
    const char *ffn_field;     /* of ffn_dim; NULL: intermediate_size */
    bool reads_norm;           /* norm_topk_prob says whether the chosen weights sum to one */
    bool biased;               /* the router and each product have a bias */
    bool clamped;              /* ACT_SWIGLU_CLAMPED, whatever act_field says */
    bool some_dense;           /* decoder_sparse_step and mlp_only_layers are read */
    layers_field layers;       /* which fields say which layers have experts */
    bool reads_jitter;         /* router_jitter_noise is route.jitter; of two experts a row */
    bool reads_types;          /* mlp_layer_types: "dense" or "sparse" for each layer */
    const char *first_dense;   /* how many layers before all others have one MLP; NULL: none */
    int n_first_dense;         /* its default */
    const char *n_field;       /* of route.n; NULL: num_experts or num_local_experts */
    const char *topk_field;    /* of route.top_k; NULL: num_experts_per_tok */
    bool reads_groups;         /* n_group, topk_group and routed_scaling_factor */
    const char *topk_method;   /* what topk_method says where there are groups; "greedy": none */
    const char *scoring;       /* what scoring_func may say */
    const char *choice_bias;   /* of its router: what is added for the choice; NULL: none */
    const char *choice_module; /* where that is; NULL: in the router */
    const char *choice_field;  /* says whether it is there (on); NULL: always */
    const char *router;        /* its module */
    /* An MLP that every row takes besides, times the sigmoid of its own gate; NULL: none. */
    const char *shared, *shared_gate;
    int shared_dim;             /* of shared_expert_intermediate_size; 0: */
    int n_shared;               /* of n_shared_experts, which are one of so many times ffn_dim */
    const char *n_shared_field; /* of n_shared; NULL: n_shared_experts */
    const char *shared_field;   /* of shared_dim; NULL: shared_expert_intermediate_size */
    const char *scale_field;    /* of route.scale without groups; NULL: none */
    const char *on_field;       /* says whether there are any (off); NULL: always */
    bool beside;                /* experts_config.beside */
    bool may_be_none; /* there may be 0 experts: the MLP is as wide as the shared one then */
    /* Expert 3's gate is EACH.3.GATE; or all lie in two tensors of three dimensions. */
    const char *each, *gate, *up, *down; /* each NULL: it is always two tensors */
    const char *all_gate_up, *all_down;  /* their names; NULL: there are none */
    bool across;                         /* those two have a column for each output */
    bool alternate; /* gate and up take turns there, else all of gate come first */
} family_experts;

/* What config.json calls the sizes of a scan, and what its class assumes (shape: taps, heads, rows,
 * cols and groups; 0: as commented). */
typedef struct family_scan {
    const char *heads, *rows, *groups, *taps;
    const char *cols; /* may be absent or "auto": of hidden_size * expand, or of `inner` */
    const char *expand, *inner; /* NULL: there is no such field */
    mixer_shape shape;
    int expand_by, inner_size;
    const char *conv_bias, *in_bias, *out_bias; /* out_bias NULL: as in_bias */
    const char *act;                            /* of the convolution: silu alone is served */
    const char *least;                          /* of a step; NULL: time_step_limit */
    bool reads_norm; /* mamba_rms_norm (off), mamba_norm_before_gate (on) */
} family_scan;

/* The mixer with a state that some layers have in place of attention, or beside it. */
typedef struct family_mixer {
    mixer kind;
    const char *type;          /* what layer_types calls such a layer */
    const char *module, *conv; /* its module, and its convolution's in that */
    const char *norm;          /* of the delta rule, in that: of a head's answer */
    delta_rules rules;         /* eps 0: that of other norms */
    bool negative;             /* linear_allow_neg_eigval (on) doubles rules.most */
    bool square; /* of the delta rule: linear_num_heads, and linear_head_dim is both sides */
    const family_scan *scan; /* NULL: it is none */
    bool reads_indices; /* attn_layer_indices lists the layers with attention; else layer_types */
    bool blocks;     /* a layer is a mixer or an MLP: layers_block_type or a pattern says which */
    bool all;        /* all layers are of this kind */
    bool unadjusted; /* intermediate_size is the MLP's width, not what LFM2 makes it of */
    /* What such a layer calls its projections, where not as its family does; and its norms, where
     * they stand in other places (all NULL: as the family's). */
    const char *names[PROJ_COUNT], *norms[LAYER_NORMS];
} family_mixer;

/* What a family's files call its parts, and how they have them, where not as a Llama's.  The other
 * fields of a row are by the usual names: "model.layers.3.x" becomes "transformer.h.3.x". */
typedef struct family_files {
    const char *root;               /* in place of "model." */
    const char *layers;             /* in place of "layers"; NULL: that */
    const char *head;               /* in place of "lm_head"; NULL: that */
    const char *spare[3];           /* how buffers end that are no weights */
    const char *const (*fields)[2]; /* of config.json: theirs, ours; the last is NULL */
    const char *qkv;                /* the module of queries, keys and values; NULL: none */
    bool by_group;                  /* the queries that share a key stand before it and its value */
    bool reads_multi;               /* multi_query, and Falcon's fields of a layer's order */
    const char *positions;          /* the table of positions; NULL: there is none */
    int before;                     /* rows of it that stand before position 0 */
    bool across;                    /* matrices of layers have a column for each output (Conv1D) */
} family_files;

typedef struct model_family {
    const char *type, *architecture; /* model_type, architectures; NULL: inside a wrapper alone */
    const char *other_architecture;  /* of files by another writer; NULL: there is none */

    /* Sizes where config.json names none; 0: it must, or as commented. */
    int n_vocab, n_head, dim, n_layer, ffn_dim;
    const char *ffn_field; /* of ffn_dim; NULL: intermediate_size */
    int ffn_by;            /* without that field ffn_dim is so many times dim; 0: see above */
    int n_kv_head;         /* 0: as many as heads */
    int head_dim;          /* 0: hidden_size / num_attention_heads */
    int max_pos, window, original_pos;
    bool tied;

    /* Windows: layers (i + 1) % every != 0 slide; 0: all or none. */
    int window_every;
    const char *window_every_field; /* NULL: layer_types alone may say otherwise */
    bool window_zero;               /* layers i % every != 0 slide */
    bool window_listed;             /* layer_types alone says that a layer slides */
    bool no_window;                 /* sliding_window has no meaning */
    bool window_turns;              /* only layers with a window know positions (Cohere 2), */
    bool all_turn;                  /* unless sliding_window is null (EXAONE 4) */
    int window_first; /* the first layer that slides, of max_window_layers; 0: see above */

    unsigned reads; /* READS_... */
    const char *bias_field;
    bool bias_default, qkv_bias; /* of bias_field; q, k and v have one whatever it says */
    bool o_bias, mlp_bias;       /* bias_field speaks of these too */
    bool mlp_bias_default;       /* of mlp_bias in the file */
    const char *o_bias_field;    /* o has one where this says it; NULL: see o_bias */
    bool o_bias_default;         /* of that */
    bool sinks;                  /* self_attn.sinks: a score for each head */
    bool q_gated;                /* q_proj makes a gate for each head's answer beside its query */
    bool streams;                /* Gemma 3n's fields: gemma3n_config_read() */

    /* Norms. */
    const char *norm[LAYER_NORMS]; /* their modules; NULL: there is none */
    const char *eps_field;         /* NULL: eps is fixed */
    float eps;
    bool norm_bare;      /* without weights */
    bool norm_first;     /* the embeddings, too; of norm_bare */
    bool layer_norm;     /* with a mean, not RMS */
    bool norm_bias;      /* and with a bias */
    bool one_plus;       /* the files store each norm weight minus 1 */
    bool qk_norm_whole;  /* NORM_Q and NORM_K see all heads as one row */
    bool qk_norm_last;   /* they come after the rotation */
    bool parallel;       /* attention and MLP share their input, and add to the same stream */
    bool parallel_apart; /* each by a norm of its own */

    /* Rotation. */
    float theta, local_theta; /* local: of layers with a window; 0: theta is that of all */
    bool rope_required;       /* the class assumes a scaling of its own: the file has to say it */
    bool rope_per_kind;       /* rope_parameters may name full_ and sliding_attention */
    bool rope_pairs;
    bool rope_back;           /* positions turn the other way */
    bool unit_heads;          /* queries and keys are normed without weights */
    bool no_rope;             /* no layer knows positions */
    bool yarn_means_longrope; /* old files of Phi-3 */
    float partial; /* part of a head that turns, unless the file says another; 0: always all */
    int rope_dim;  /* default of rotary_dim; 0: see partial */

    /* Attention over latents (q_lora_rank, kv_lora_rank and what follows); rank 0: there is none.
     * Norms of latents have an epsilon of their own. */
    latent_shape latent;
    int q_rank;
    float latent_eps;

    /* MLP. */
    const char *act_field, *act; /* and its default */
    bool gelu_by_tanh;           /* "gelu" means the one by tanh */
    bool gate_up_fused;
    const char *shared_fused; /* the module of gate and up, of experts' shared one too */
    const char *up, *down; /* modules of an MLP without a gate; NULL: it has one, and usual names */

    float score_cap, logit_cap, logit_scale; /* defaults of what `reads` names; 0: none */
    bool scaled_embedding;                   /* times sqrt(hidden_size) */
    float query_scalar; /* query_pre_attn_scalar's default; 0: scores are not scaled by it */
    /* logits_scaling multiplies, and scores are scaled as usual without attention_multiplier. */
    bool mup;

    const family_files *files;     /* NULL: as a Llama's */
    const char *last_norm;         /* NULL: model.norm */
    const char *embed;             /* NULL: model.embed_tokens */
    bool head_bias;                /* the output layer has one; */
    const char *head_bias_field;   /* or where this says so */
    const char *names[PROJ_COUNT]; /* of projections; NULL: as a Llama's */
    const char *spare;             /* how tensors begin that guess more tokens; NULL: none do */
    const char *others[2][2];      /* names of norms, and what files may call them, too */
    const family_mixer *mixer;     /* NULL: all layers have attention */
    mlp_names mlp_names;
    const family_experts *experts; /* NULL: each layer has one MLP */
} model_family;

/* NULL: none has this model_type. */
const model_family *family_find(const char *type);

/* A model of images and text whose text part is a family's; the rest is left out. */
typedef struct model_wrapper {
    const char *type, *architecture, *text; /* what its text_config is where it does not say */
    const char *other;                      /* what it may be, too; NULL: nothing */
} model_wrapper;
const model_wrapper *wrapper_find(const char *type);

/* "llama, mistral, ...", for messages. */
void family_names(char *out, size_t size);

#endif
