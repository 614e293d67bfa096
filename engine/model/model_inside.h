/* model_inside.h -- what the files of the model share; private to engine/model/.
 *
 *     family.c          what a family is
 *     model_config.c    config.json, generation_config.json
 *     rope.c            how positions turn heads
 *     model_files.c     which tensor of which file is what
 *     stored.c          a tensor of any format as plain values; stored_*.c: the formats
 *     model_weights.c   tensors to packed weights
 *     model_packed.c    packed weights from one start to the next
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
    float *sinks;                 /* [n_head], or NULL */
    weight *router, *shared_gate; /* F32; of a layer with experts, or NULL */
    weight **expert;              /* [3][experts]: their PROJ_GATE, PROJ_UP, PROJ_DOWN; or NULL */
    void *experts_there;          /* of be_experts_prepare() */
    float *router_bias, *choice_bias;      /* [experts], or NULL */
    float *expert_bias[LORA_EXPERT_PROJS]; /* [experts][d_out], or NULL */
} model_layer;

struct model {
    model_config cfg;
    backend *be;
    char *dir;
    char *packed_dir; /* NULL: packed weights are not kept */
    uint64_t packed_floor_bytes;
    weights_form weights;
    int max_rows, max_logits;
    int max_context, stream_sinks, stream_window; /* of model_options */
    int *window;                                  /* [n_layer] where layers differ, else NULL */
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
    weight *head;
    pooling_head score_head; /* host memory, owned; w NULL: there is none */
    size_t weight_bytes;
    packed_file *packed;   /* where the matrices are mapped from, or NULL */
    packed_keeper *keeper; /* who writes them for the next start, or NULL */

    rope_tables rope, local_rope; /* local: of layers with a window, where theirs is another */
    float *rope_divisors;         /* host, [head_dim / 2]: of the frequencies, or NULL */

    /* scratch of one step, backend memory; logits of be_host_alloc() */
    float *x, *h, *q, *k, *v, *attn, *gate, *up;
    float *ones; /* [head_dim], where queries and keys are normed without weights, or NULL */
    float *q_a, *latent, *latent_in, *keys; /* of attention over latents, or NULL */
    float *scores, *shared, *mixed; /* of experts: a row's, of the shared one, their sum; or NULL */
    float *logits;
    size_t logits_bytes;
};

/* Fields of config.json; absent ones leave *out as it is. */
bool config_is_set(const cJSON *obj, const char *name);
/* ERR_UNSUPPORTED, with the field and its value. */
err_code config_refuse(err *e, const cJSON *obj, const char *name);
/* A whole number from 1 to max; required where *out is 0. */
err_code config_dimension(const cJSON *obj, const char *name, int max, int *out, err *e);
err_code config_real(const cJSON *obj, const char *name, double lo, double hi, float *out, err *e);
err_code config_flag(const cJSON *obj, const char *name, bool *out, err *e);

/* Fills the weights of `m`, whose cfg is set.  On failure model_weights_clear() is still due. */
err_code model_weights_load(model *m, const char *dir, err *e);
void model_weights_clear(model *m);

/* What the file of packed weights must hold for these matrices.  `files` stands for the files that
 * they are read from.  False: they are not kept.  plan->bytes is the caller's to free. */
bool model_packed_plan(const model *m, packed_key *files, const weight_source *const *src, size_t n,
                       packed_plan *plan);
/* Maps them, and takes the prints from there.  False: they are to be packed. */
bool model_packed_open(model *m, const packed_plan *plan);
/* Begins to write them; ..._end() before one of them goes. */
void model_packed_keep(model *m, const packed_plan *plan, weight *const *w);
void model_packed_end(model *m);
/* After the weights that point into it. */
void model_packed_close(model *m);

#endif
