/* model_inside.h -- what the files of the model share; private to engine/model/.
 *
 *     model_config.c    config.json, generation_config.json
 *     model_weights.c   safetensors files to packed weights
 *     model.c           life, rope tables, scratch, the forward pass
 *
 * Threads: as engine/model/model.h says.
 */
#ifndef ENGINE_MODEL_MODEL_INSIDE_H
#define ENGINE_MODEL_MODEL_INSIDE_H

#include "engine/base/json.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"

enum { MODEL_PATH_MAX = 4096 };

typedef struct model_layer {
    weight *w[PROJ_COUNT];
    float *bias[PROJ_COUNT];     /* backend memory, or NULL */
    float *attn_norm, *mlp_norm; /* the same, [dim] */
    float *q_norm, *k_norm;      /* [head_dim], or NULL */
} model_layer;

struct model {
    model_config cfg;
    backend *be;
    char *dir;
    int max_rows, max_logits;

    /* weights, made by model_weights_load() */
    model_layer *layer; /* [n_layer] */
    const void *embed;  /* raw [n_vocab][dim]: mapped, or embed_copy */
    const void *table;  /* what be_embed() reads of it */
    dtype embed_type;
    void *embed_copy;
    safetensors *embed_file; /* kept mapped while embed points into it */
    float *out_norm;
    weight *head;
    size_t weight_bytes;

    /* positions [0, rope_ready) are filled in */
    rope_table rope;
    float *rope_cos, *rope_sin; /* backend memory */
    float *inv_freq, *rope_chunk;
    size_t rope_bytes; /* of each of the two tables */
    int rope_ready;

    /* scratch of one step, backend memory; logits of be_host_alloc() */
    float *x, *h, *q, *k, *v, *attn, *gate, *up;
    float *logits;
    size_t logits_bytes;
};

/* dir + "/" + name. */
err_code model_file_path(char *out, size_t size, const char *dir, const char *name, err *e);

/* Strict JSON, an object.  ERR_NOT_FOUND: there is no such file. */
err_code model_json_read(const char *dir, const char *name, cJSON **out, err *e);

/* Fills the weights of `m`, whose cfg is set.  On failure model_weights_clear() is still due. */
err_code model_weights_load(model *m, const char *dir, err *e);
void model_weights_clear(model *m);

#endif
