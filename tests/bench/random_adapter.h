/* random_adapter.h -- an adapter of random values on all that an adapter may wrap, for programs of
 * the bench that load a model.  Include it once; it lives as long as the backend.
 */
#ifndef BENCH_RANDOM_ADAPTER_H
#define BENCH_RANDOM_ADAPTER_H

#include <stdlib.h>

#include "engine/backend.h"
#include "engine/model/model.h"

/* n values from -most to most. */
static float *random_values(size_t n, float most)
{
    float *v = malloc(n * sizeof(*v));
    if (!v) abort();
    uint32_t s = 12345;
    for (size_t i = 0; i < n; i++) {
        s = s * 1664525U + 1013904223U;
        v[i] = ((float)(s >> 8) / (float)(1U << 24) - 0.5F) * 2 * most;
    }
    return v;
}

/* The i-th matrix that an adapter wraps: projections of all layers, then those of experts.  False:
 * its layer has no such projection. */
static bool random_shape(const model_config *c, int i, int *d_out, int *d_in, dtype *type)
{
    *type = c->type;
    int expert = i - c->n_layer * PROJ_COUNT;
    int layer = expert < 0 ? i / PROJ_COUNT : expert / LORA_EXPERT_PROJS / c->experts.route.n;
    if (expert < 0) {
        model_layer_shape(c, layer, (proj)(i % PROJ_COUNT), d_out, d_in);
        *type = model_proj_type(c, (proj)(i % PROJ_COUNT));
        return model_has_proj(c, layer, (proj)(i % PROJ_COUNT));
    }
    model_expert_shape(c, (proj)(PROJ_GATE + expert % LORA_EXPERT_PROJS), d_out, d_in);
    return c->layer[layer] & LAYER_EXPERTS;
}

/* Its matrices, in one slab, as adapters/residency/residency.c has them. */
static void random_adapter(backend *be, const model *m, int rank, float most, uint64_t id,
                           lora_view *out)
{
    const model_config *c = model_get_config(m);
    int n_mat = c->n_layer * (PROJ_COUNT + c->experts.route.n * LORA_EXPERT_PROJS), d_out, d_in;
    lora_mat *mat = calloc((size_t)n_mat, sizeof(*mat));
    if (!mat) abort();
    dtype type;
    size_t bytes = 0;
    for (int i = 0; i < n_mat; i++) {
        if (!random_shape(c, i, &d_out, &d_in, &type)) continue;
        bytes += be_lora_a_bytes(be, type, rank, d_in);
        bytes += be_lora_b_bytes(be, type, rank, d_out);
    }
    char *at = be_alloc(be, bytes);
    if (!at) abort();
    for (int i = 0; i < n_mat; i++) {
        if (!random_shape(c, i, &d_out, &d_in, &type)) continue;
        err e;
        float *x = random_values((size_t)rank * (size_t)(d_in > d_out ? d_in : d_out), most);
        void *pa = at, *pb = at + be_lora_a_bytes(be, type, rank, d_in);
        at = (char *)pb + be_lora_b_bytes(be, type, rank, d_out);
        if (be_lora_pack(be, type, pa, pb, x, x, DT_F32, rank, d_in, d_out, &e)) abort();
        mat[i] = (lora_mat){.a = pa, .b = pb, .rank = rank, .scale = 2.0F};
        free(x);
    }
    *out = (lora_view){.adapter_id = id, .n_layer = c->n_layer, .rank_max = rank, .mat = mat};
    out->n_expert = c->experts.route.n;
    if (c->experts.route.n > 0) out->expert = mat + c->n_layer * PROJ_COUNT;
}

#endif
