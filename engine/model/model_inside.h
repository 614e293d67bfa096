/* model_inside.h -- what the files of the model share; private to engine/model/.
 *
 *     family.c          what a family is
 *     model_config.c    config.json, generation_config.json
 *     mixer_config.c    config.json where layers differ
 *     layers.c          which linear layers there are, and their names
 *     rope.c            how positions turn heads
 *     model_files.c     which tensor of which file is what
 *     stored.c          a tensor of any format as plain values; stored_*.c: the formats
 *     model_weights.c   tensors to packed weights
 *     model_packed.c    which packed weights are a model's, from one start to the next
 *     packed.c          the file of them: its form, reading; packed_write.c: writing
 *     model.c           life, scratch, the forward pass
 *
 * Threads: as engine/model/model.h says.
 */
#ifndef ENGINE_MODEL_MODEL_INSIDE_H
#define ENGINE_MODEL_MODEL_INSIDE_H

#include "engine/base/json.h"
#include "engine/model/family.h"
#include "engine/model/model.h"
#include "engine/model/model_files.h"
#include "engine/model/packed.h"
#include "engine/model/rope.h"
#include "engine/sample/pooling.h"

typedef struct model_layer {
    weight *w[PROJ_COUNT];
    float *bias[PROJ_COUNT];  /* backend memory, or NULL */
    float *norm[LAYER_NORMS]; /* the same; of q and k [head_dim], or of all heads */
    float *norm_bias[LAYER_NORMS];
    float *xielu[4];            /* of ACT_XIELU: as xielu_weights; or NULL */
    float *sinks;               /* [n_head], or NULL */
    weight **absorbed;          /* [2][n_head] of PROJ_V: latent_heads' keys, values; or NULL */
    float *taps[3], *taps_bias; /* of a convolution (conv_weights, delta_weights), or NULL */
    float *decay, *dt_bias, *skip, *mix_norm; /* of the delta rule or a scan, or NULL */
    float *bc_norm[2];                        /* of a scan of channels, or NULL */
    weight **expert;     /* [3][experts]: their PROJ_GATE, PROJ_UP, PROJ_DOWN; or NULL */
    void *experts_there; /* of be_experts_prepare() */
    float *choice_bias;  /* [experts], or NULL */
    float *expert_bias[LORA_EXPERT_PROJS]; /* [experts][d_out], or NULL */
    /* Where experts stand beside an MLP, or NULL: norms of what the router reads, of what the MLP
     * answers, of what experts read and answer; the router's weights of experts. */
    float *beside[4], *expert_scales;
    float *ple_norm; /* of what a layer's own input adds, or NULL */
    /* Of streams, or NULL: norms of what the router reads and of the other residual; [dim] */
    float *router_norm, *laurel_norm, *stream_scale;
    float scale; /* host: of the stream behind the layer (model_config.layer_scaled) */
} model_layer;

/* Of layers' own inputs: a table in embed_files with a row of all layers for each token, of which a
 * step reads some; room for one; the norm of what PROJ_PLE_MODEL makes.  Scratch: the embeddings,
 * rows of the table [n_layer][max_rows][ple_dim], a row before it is spread, a layer's input, its
 * gate.  NULLs: there are none. */
typedef struct ple_parts {
    stored *table;
    void *room;
    float *norm;
    float *embeds, *rows, *row, *input, *gate;
} ple_parts;

/* Scratch of streams that layers update together: all of them, [n][max_rows][dim]; a row's scores
 * and coefficients; the other residual, on its way and whole; what opens a layer's own input.
 * NULLs: there are none. */
typedef struct streams_parts {
    float *x, *scores, *coefs, *low, *laurel, *first;
} streams_parts;

/* Which of the layers in the KV pages a layer is; where its floats of a state begin. */
typedef struct layer_place {
    int page;
    size_t state;
} layer_place;

/* Scratch of one step: backend memory, logits of be_host_alloc(). */
typedef struct model_scratch {
    float *x, *h, *q, *k, *v, *attn, *gate, *up;
    float *ones; /* weights of norms that have none: [head_dim], of the stream [dim]; or NULL */
    float *q_a, *latent_in;  /* of attention over latents, or NULL */
    float *q_wide, *latents; /* where pages hold them: queries, answers; elsewhere: */
    float *latent, *keys;
    float *q_gate;                /* [2 * n_head * head_dim] of PROJ_Q, or NULL */
    float *mix_in, *mix;          /* of mixers with a state, or NULL: their answers, */
    float *mix_z, *mix_b, *mix_a; /* what PROJ_Z, PROJ_B and PROJ_A make, */
    float *mix_low[2];            /* and PROJ_Z_LOW, PROJ_A_LOW */
    /* What experts beside an MLP answer, or an MLP beside attention reads; or NULL. */
    float *beside;
    float *scores, *shared, *mixed; /* of experts: a row's, of the shared one, their sum; or NULL */
    float *logits;
    size_t logits_bytes;
} model_scratch;

struct model {
    model_config cfg;
    backend *be;
    char *dir;
    char *packed_dir; /* NULL: packed weights are not kept */
    uint64_t packed_floor_bytes;
    size_t resident_bytes; /* of model_options */
    weights_form weights;
    activations_form activations;
    int max_rows, max_logits;
    int max_context, stream_sinks, stream_window; /* of model_options */
    int *window;        /* [attention layers] where they differ, else NULL */
    attn_heads *heads;  /* the same */
    layer_place *place; /* [n_layer] */
    dtype kv_type;

    /* weights, made by model_weights_load() */
    model_layer *layer;   /* [n_layer] */
    stored *embed_stored; /* the input table in embed_files, owned; room for a row of it */
    void *embed_room;
    model_files *embed_files;
    const void *table; /* what be_embed() reads of it: there, or embed_copy; NULL: by rows */
    dtype embed_type;
    void *embed_copy;
    float *out_norm, *out_norm_bias;
    float *head_bias; /* [n_vocab], or NULL */
    float *positions; /* [n_position][dim], added to embeddings; or NULL */
    ple_parts ple;
    streams_parts streams;
    weight *head;
    pooling_head score_head; /* host memory, owned; w NULL: there is none */
    size_t weight_bytes;
    packed_file *packed;   /* where the matrices are mapped from, or NULL */
    packed_keeper *keeper; /* who writes them for the next start, or NULL */
    resident *resident;    /* reads blocks of `packed` as steps use them; NULL: all are in memory */

    rope_tables rope, local_rope; /* local: of layers with a window, where theirs is another */
    float *rope_divisors;         /* host, [head_dim / 2]: of the frequencies, or NULL */

    model_scratch scratch;
};

/* Fields of config.json; absent ones leave *out as it is. */
bool config_is_set(const cJSON *obj, const char *name);
/* ERR_UNSUPPORTED, with the field and its value. */
err_code config_refuse(err *e, const cJSON *obj, const char *name);
/* A whole number from 1 to max; required where *out is 0. */
err_code config_dimension(const cJSON *obj, const char *name, int max, int *out, err *e);

/* A number within [lo, hi]; ERR_INPUT names field, value and bounds. */
err_code config_real(const cJSON *obj, const char *name, double lo, double hi, float *out, err *e);

/* True or false; ERR_INPUT if it is neither. */
err_code config_flag(const cJSON *obj, const char *name, bool *out, err *e);

/* `from` of one object becomes `to` of another.  ERR_INPUT: both are there, and differ. */
err_code config_rename(const cJSON *obj, const char *from, cJSON *j, const char *to, err *e);

/* Gives Kimi Linear's fields the names that other families have. */
err_code kimi_config_rename(cJSON *j, err *e);

/* The fields that Gemma 4 alone has; after windows, before the rotation. */
err_code gemma_config_read(const cJSON *j, model_config *c, err *e);
/* The same of Gemma 3n. */
err_code gemma3n_config_read(const cJSON *j, model_config *c, err *e);

/* Which layer has which mixer, and the shape of their states; after all other fields. */
/* Layers that a list or a pattern of one block each names; 0: there is none. */
int mixer_config_blocks(const cJSON *j, const model_family *f);

/* Fills c->mixer[], c->state and the constants of the recurrence. ERR_UNSUPPORTED or ERR_INPUT
 * names the field. */
err_code mixer_config_read(const cJSON *j, const model_family *f, model_config *c, err *e);

/* Fills the weights of `m`, whose cfg is set.  On failure model_weights_clear() is still due. */
err_code model_weights_load(model *m, const char *dir, err *e);

/* Frees all weights of `m`, also half-loaded ones; the backend must still be open. */
void model_weights_clear(model *m);

/* What the file of packed weights must hold for these matrices.  `files` stands for the files that
 * they are read from.  False: they are not kept.  plan->bytes is the caller's to free. */
bool model_packed_plan(const model *m, packed_key *files, const weight_source *const *src, size_t n,
                       packed_plan *plan);
/* Maps them, and takes the prints from there.  False: they are to be packed. */
bool model_packed_open(model *m, const packed_plan *plan);
/* Begins to write them; ..._end() before one of them goes. */
void model_packed_keep(model *m, const packed_plan *plan, weight *const *w);

/* Ends the thread that writes them, also in the middle; nothing is lost but a faster start. */
void model_packed_end(model *m);
/* After the weights that point into it. */
void model_packed_close(model *m);

#endif
