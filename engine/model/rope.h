/* rope.h -- how positions turn heads: what config.json says of it, and the tables.
 *
 * Frequencies are those of transformers, in f32 and in its order of operations: a position near the
 * context's end multiplies each rounding by 1e5.  A table is reserved for all positions (which may
 * be millions) but filled only as far as a step has reached, so that a long limit costs neither
 * start-up time nor memory.  Private to engine/model/.
 *
 * Ownership: tables are the model's; rope_clear() gives them back.
 * Threads:   as engine/model/model.h says.
 */
#ifndef ENGINE_MODEL_ROPE_H
#define ENGINE_MODEL_ROPE_H

#include "engine/backend.h"
#include "engine/base/json.h"
#include "engine/model/family.h"
#include "engine/model/model.h"

/* Fills c->rope and c->local_rope; max_pos and head_dim are there.  ERR_UNSUPPORTED names a way of
 * scaling that is not computed here. */
err_code rope_config_read(const cJSON *j, const model_family *f, model_config *c, err *e);

bool rope_config_same(const rope_config *a, const rope_config *b);

/* Positions [0, ready) are filled in. */
typedef struct rope_tables {
    rope_table table; /* what a backend reads; rope_dim 0: there is none */
    float *cos, *sin; /* backend memory */
    float *inv_freq, *chunk;
    float factor; /* of cosines and sines */
    bool back;    /* the other way */
    bool exact;   /* angles are not rounded: positions go beyond those of training */
    size_t bytes; /* of each of the two tables */
    int ready;
} rope_tables;

/* For max_pos positions.  `divisors` [head_dim / 2] of the frequencies, or NULL. */
err_code rope_create(rope_tables *t, backend *be, const rope_config *r, int max_pos, bool pairs,
                     const float *divisors, err *e);
void rope_clear(rope_tables *t, backend *be);
/* Makes positions [0, n) ready. */
err_code rope_fill(rope_tables *t, backend *be, int n, err *e);

#endif
