/* naming.h -- what the tensors of an adapter are called, by whoever saved them.
 *
 * PEFT writes "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight".  Others leave out
 * "base_model.model." or add what their wrappers are called, keep PEFT's internal ".default", save
 * the text part of a larger model ("model.language_model.layers..."), or fuse q, k and v.  All of
 * that is understood here and nowhere else; what is not understood is refused with its reason.
 *
 * Threads: any thread; no state.
 */
#ifndef ADAPTERS_FORMAT_NAMING_H
#define ADAPTERS_FORMAT_NAMING_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "engine/lora.h"
#include "engine/model/model.h"

/* Modules that an adapter may touch: the projections (their `proj`), fused ones,
 * and two outside the layers. */
enum {
    MODULE_QKV = PROJ_COUNT, /* q, k and v, in this order */
    MODULE_GATE_UP,          /* gate, then up */
    MODULE_FC,               /* up and down of an MLP without a gate, as StarCoder 2 calls them */
    MODULE_FC_OUT,
    MODULE_Q_B, /* of attention over latents: PROJ_Q behind PROJ_Q_A, PROJ_K and PROJ_V */
    MODULE_KV_A,
    MODULE_KV_B,
    MODULE_OUT, /* PROJ_O, PROJ_GATE, PROJ_UP, PROJ_DOWN, PROJ_IN and PROJ_OUT as LFM2 calls them */
    MODULE_W1,
    MODULE_W3,
    MODULE_W2,
    MODULE_CONV_IN,
    MODULE_CONV_OUT,
    MODULE_DELTA_QKV, /* PROJ_IN of the delta rule, by its two names, PROJ_B, PROJ_OUT */
    MODULE_DELTA_QKVZ,
    MODULE_DELTA_BA,
    MODULE_DELTA_OUT,
    MODULE_MAMBA_IN, /* PROJ_IN and PROJ_OUT of a selective scan */
    MODULE_MAMBA_OUT,
    MODULE_MAMBA_X, /* PROJ_B and PROJ_A of a scan of channels */
    MODULE_MAMBA_DT,
    MODULE_INPUT_LINEAR,  /* gate, then up, of Granite's shared MLP, */
    MODULE_OUTPUT_LINEAR, /* and PROJ_DOWN */
    MODULE_MIXER_Q,       /* of Nemotron-H, whose layers are one block each */
    MODULE_MIXER_K,
    MODULE_MIXER_V,
    MODULE_MIXER_O,
    MODULE_MIXER_UP,
    MODULE_MIXER_DOWN,
    MODULE_MIXER_SHARED_UP,
    MODULE_MIXER_SHARED_DOWN,
    MODULE_DENSE, /* PROJ_O, PROJ_UP and PROJ_DOWN as Phi calls them */
    MODULE_FC1,
    MODULE_FC2,
    MODULE_DELTA_Q, /* PROJ_Q, PROJ_K, PROJ_V, PROJ_O, PROJ_Z, PROJ_B and PROJ_A of OLMo Hybrid */
    MODULE_DELTA_K,
    MODULE_DELTA_V,
    MODULE_DELTA_O,
    MODULE_DELTA_G,
    MODULE_DELTA_B,
    MODULE_DELTA_A,
    MODULE_KIMI_B, /* PROJ_B, PROJ_Z and PROJ_A of Kimi Linear */
    MODULE_KIMI_G_B,
    MODULE_KIMI_F_B,
    MODULE_NEOX_QKV, /* PROJ_Q, PROJ_K and PROJ_V in one, and PROJ_O, of GPT-NeoX, */
    MODULE_NEOX_DENSE,
    MODULE_FALCON_QKV, /* of Falcon, */
    MODULE_FALCON_DENSE,
    MODULE_C_ATTN, /* and of GPT-2 */
    MODULE_C_PROJ,
    MODULE_4H, /* PROJ_UP and PROJ_DOWN of the first two; of GPT-J; of OPT */
    MODULE_4H_OUT,
    MODULE_FC_IN,
    MODULE_FC_IN_OUT,
    MODULE_BARE_FC1,
    MODULE_BARE_FC2,
    MODULE_GPTJ_Q, /* PROJ_Q, PROJ_K, PROJ_V and PROJ_O of GPT-J, and of GPT-Neo */
    MODULE_GPTJ_K,
    MODULE_GPTJ_V,
    MODULE_GPTJ_O,
    MODULE_NEO_Q,
    MODULE_NEO_K,
    MODULE_NEO_V,
    MODULE_NEO_O,
    MODULE_SHARED_GATE, /* of the MLP that all rows take beside experts */
    MODULE_SHARED_UP,
    MODULE_SHARED_DOWN,
    MODULE_EXPERT_GATE, /* of one expert */
    MODULE_EXPERT_UP,
    MODULE_EXPERT_DOWN,
    MODULE_STACK, /* a parameter of all experts of a layer, by target_parameters: the only one, */
    MODULE_STACK_INNER, /* or the one that PEFT wrapped first (MODULE_STACK is then the other) */
    MODULE_IN_LAYER,    /* how many those are */
    MODULE_HEAD = MODULE_IN_LAYER,
    MODULE_EMBED,
    /* not to be targeted, only saved whole: two in each layer, and the last one */
    MODULE_ATTN_NORM,
    MODULE_MLP_NORM,
    MODULE_LAST_NORM,
    MODULE_SCORE, /* a head of classes */
};

typedef enum {
    ROLE_A,
    ROLE_B,
    ROLE_B_BIAS,    /* lora_bias */
    ROLE_MAGNITUDE, /* DoRA */
    ROLE_BIAS,      /* the layer's own, trained; of a head of classes */
    ROLE_TABLE,     /* whole weight of embed_tokens, lm_head, a norm or a head of classes */
    ROLE_ROWS,      /* rows of embed_tokens or lm_head (trainable_token_indices) */
    ROLE_ORIGINAL,  /* what a saved whole table stands in for: of no use */
} tensor_role;

enum { NAMING_ROOTS = 10 };

/* How modules of single experts are called: "experts.7.gate_proj"; as Mixtral, "experts.7.w1"; as
 * Nemotron-H, "mixer.experts.7.up_proj", without a gate; or as Unsloth has them of a GPT-OSS,
 * "experts.gate_up_projs.7", gate and up in one. */
typedef enum { EXPERT_MODULES, EXPERT_W123, EXPERT_MIXER, EXPERT_LISTS } expert_style;

/* How the module of a router is called: "mlp.gate"; "block_sparse_moe.gate", as Mixtral's was;
 * "mlp.router" or "feed_forward.router"; as Granite's, "block_sparse_moe.router.layer", or without
 * "layer"; as Hunyuan's, "mlp.gate.wg"; as Nemotron-H's, "mixer.gate"; as Gemma 4's,
 * "router.proj". */
typedef enum {
    ROUTER_GATE,
    ROUTER_SPARSE_GATE,
    ROUTER_ROUTER,
    ROUTER_SPARSE_LAYER,
    ROUTER_SPARSE_ROUTER,
    ROUTER_GATE_WG,
    ROUTER_MIXER_GATE,
    ROUTER_PROJ,
    ROUTER_STYLES
} router_style;

/* One tensor's name taken apart. */
typedef struct tensor_name {
    int layer;  /* -1: outside the layers; so is PROJ_PLE_MODEL, of all of them */
    int expert; /* of MODULE_EXPERT_...; else -1 */
    int module;
    tensor_role role;
    int root; /* which way of naming the model; -1: the name does not tell (lm_head) */
    mlp_names mlp;
    expert_style style; /* of an expert's module */
    router_style router;
} tensor_name;

/* How one file names things. */
typedef struct naming {
    int root;            /* -1: as PEFT does for a language model */
    bool qkv, gate_up;   /* fused modules occur */
    bool forget_gate;    /* f_a_proj and f_b_proj stand in a module of this name */
    bool experts;        /* modules of single experts occur, */
    expert_style style;  /* called so */
    bool stacks;         /* parameters of all experts occur */
    bool routers;        /* modules of routers occur, */
    router_style router; /* called so */
    mlp_names mlp;       /* the base's */
} naming;

/* Takes a name of a file apart into layer, module and role. False: it is none that an adapter
 * has. */
bool tensor_name_parse(const char *name, tensor_name *out);

/* Adds what one name tells; ERR_INPUT when it contradicts the ones before. */
err_code naming_learn(naming *n, const char *name, err *e);

/* Why a name that does not parse is refused. */
err_code naming_refuse(const char *name, err *e);

/* "self_attn.q_proj", "mlp.gate_up_proj", "lm_head" ... */
const char *module_name(int module);

/* The same as this base calls it, for sentences. */
void module_base_name(char *out, size_t cap, mlp_names mlp, router_style router, int module);

/* Whether the module stands outside of layers, numbered as the layer whose slot it has. */
bool module_is_stream(int module);

/* The whole name that PEFT's rules see: "model.layers.3.self_attn.q_proj". */
void module_path(char *out, size_t cap, const naming *n, int layer, int module);

/* The same of an expert: "model.layers.3.mlp.experts.7.gate_proj". */
void module_expert_path(char *out, size_t cap, const naming *n, int layer, int expert, int module);

/* "model.layers.3.mlp.experts"; of models that have another module there, `in` ("mixer"), or
 * none (""). */
void module_stack_path(char *out, size_t cap, const naming *n, int layer, const char *in);

/* The projections of one in-layer module: *count of them from the result on.  Of a module of an
 * expert: how many there are of MODULE_EXPERT_GATE and its next ones. */
proj module_projs(int module, int *count);

/* How many projections one tensor of that module has: 2 where gate and up lie in one. */
int expert_module_projs(expert_style style, int module);

#endif
