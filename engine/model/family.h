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

/* Fields of config.json that some families alone read; for the others they are refused where
 * they are set. */
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
};

/* A layer's experts: what the configuration class assumes, and what the tensors are called.  The
 * number of experts is num_experts or num_local_experts, that of a row num_experts_per_tok. */
typedef struct family_experts {
    expert_route route; /* where config.json does not say; its scale is 1 */
    int ffn_dim;
    const char *ffn_field;   /* of ffn_dim; NULL: intermediate_size */
    bool reads_norm;         /* norm_topk_prob says whether the chosen weights sum to one */
    bool biased;             /* the router and each product have a bias */
    bool clamped;            /* ACT_SWIGLU_CLAMPED, whatever act_field says */
    bool some_dense;         /* decoder_sparse_step and mlp_only_layers are read */
    bool reads_layers;       /* moe_layers and interleave_moe_layer_step */
    const char *first_dense; /* how many layers before all others have one MLP; NULL: none */
    int n_first_dense;       /* its default */
    const char *n_field;     /* of route.n; NULL: num_experts or num_local_experts */
    bool reads_groups;       /* n_group, topk_group and routed_scaling_factor */
    const char *topk_method; /* what topk_method says where there are groups; "greedy": none */
    const char *scoring;     /* what scoring_func may say */
    const char *choice_bias; /* of its router: what is added for the choice; NULL: none */
    const char *router;      /* its module */
    /* An MLP that every row takes besides, times the sigmoid of its own gate; NULL: none. */
    const char *shared, *shared_gate;
    int shared_dim; /* of shared_expert_intermediate_size; 0: */
    int n_shared;   /* of n_shared_experts, which are one of so many times ffn_dim */
    /* Expert 3's gate is EACH.3.GATE; or all lie in two tensors of three dimensions. */
    const char *each, *gate, *up, *down; /* each NULL: it is always two tensors */
    const char *all_gate_up, *all_down;  /* their names; NULL: there are none */
    bool across;                         /* those two have a column for each output */
    bool alternate; /* gate and up take turns there, else all of gate come first */
} family_experts;

typedef struct model_family {
    const char *type, *architecture; /* model_type, architectures; NULL: inside a wrapper alone */

    /* Sizes where config.json names none; 0: it must, or as commented. */
    int n_vocab, n_head, dim, n_layer, ffn_dim;
    const char *ffn_field; /* of ffn_dim; NULL: intermediate_size */
    int n_kv_head;         /* 0: as many as heads */
    int head_dim;          /* 0: hidden_size / num_attention_heads */
    int max_pos, window, original_pos;
    bool tied;

    /* Windows: layers (i + 1) % every != 0 slide; 0: all or none. */
    int window_every;
    const char *window_every_field; /* NULL: layer_types alone may say otherwise */
    bool no_window;                 /* sliding_window has no meaning */
    bool window_turns;              /* only layers with a window know positions (Cohere 2) */

    unsigned reads; /* READS_... */
    const char *bias_field;
    bool bias_default, qkv_bias; /* of bias_field; q, k and v have one whatever it says */
    bool o_bias, mlp_bias;       /* bias_field speaks of these too */
    bool sinks;                  /* self_attn.sinks: a score for each head */

    /* Norms. */
    const char *norm[LAYER_NORMS]; /* their modules; NULL: there is none */
    const char *eps_field;
    float eps;
    bool layer_norm;    /* with a mean, not RMS */
    bool norm_bias;     /* and with a bias */
    bool one_plus;      /* the files hold the weights less 1 */
    bool qk_norm_whole; /* NORM_Q and NORM_K see all heads as one row */
    bool parallel;      /* attention and MLP share their input, and add to the same stream */

    /* Rotation. */
    float theta, local_theta; /* local: of layers with a window; 0: theta is that of all */
    bool rope_required;       /* the class assumes a scaling of its own: the file has to say it */
    bool rope_per_kind;       /* rope_parameters may name full_ and sliding_attention */
    bool rope_pairs;
    bool yarn_means_longrope; /* old files of Phi-3 */
    float partial; /* part of a head that turns, unless the file says another; 0: always all */

    /* Attention over latents (q_lora_rank, kv_lora_rank and what follows); rank 0: there is none.
     * Norms of latents have an epsilon of their own. */
    latent_shape latent;
    int q_rank;
    float latent_eps;

    /* MLP. */
    const char *act_field, *act; /* and its default */
    bool qkv_fused, gate_up_fused;
    const char *up, *down; /* modules of an MLP without a gate; NULL: it has one, and usual names */

    float score_cap, logit_cap, logit_scale; /* defaults of what `reads` names; 0: none */
    bool scaled_embedding;                   /* times sqrt(hidden_size) */
    float query_scalar; /* query_pre_attn_scalar's default; 0: scores are not scaled by it */

    mlp_names mlp_names;
    const family_experts *experts; /* NULL: each layer has one MLP */
} model_family;

/* NULL: none has this model_type. */
const model_family *family_find(const char *type);

/* A model of images and text whose text part is a family's; the rest is left out. */
typedef struct model_wrapper {
    const char *type, *architecture,
        *text; /* text: what its text_config is where it does not say */
} model_wrapper;
const model_wrapper *wrapper_find(const char *type);

/* "llama, mistral, ...", for messages. */
void family_names(char *out, size_t size);

#endif
