/* experts.h -- the CUDA kernels of be_experts() beside its products: routes, rows sorted by
 * expert, activations, sums.
 *
 * A row takes top_k experts; each of these is a slot.  Slots are sorted by (expert, row) on the
 * device, and as a step's rows stand by adapter, so do the slots of an expert.  An expert's slots
 * are a group of products/grouped.h.  So a step reads the weights of the experts that its rows
 * take, nothing is asked of the host, and a graph replays with other routes.  A row's experts are
 * added in the order of their numbers.
 *
 * LoRA on experts: cu_experts_chunks() lists the runs of slots of one (expert, adapter) as chunks
 * of sgmv.h, which then shrinks and expands them.
 *
 * Launchers enqueue on `stream`, never wait nor allocate.  Held by tests/emu/test_experts.cu.
 */
#ifndef ENGINE_CUDA_EXPERTS_H
#define ENGINE_CUDA_EXPERTS_H

#include <cuda_runtime.h>

#include "engine/cuda/products/grouped.h"
#include "engine/cuda/sgmv_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CU_EXPERTS_TOP = 64,       /* experts of a row at most */
    CU_EXPERTS_ROUTE_ROWS = 8, /* rows of a block of routes */
};

/* An adapter on experts, for one row; mats NULL: none.  Matrices are [layer][expert][3]. */
typedef struct cu_expert_row {
    const sgmv_mat *mats;
    int64_t rank; /* of all of them at most */
} cu_expert_row;

/* All memory is on the device.  Slots: n_rows * top_k at most. */
typedef struct cu_experts {
    dtype type; /* of weights, x and packed matrices */
    int n, top_k, dim, ffn, n_rows;
    expert_route route;                /* with the same n and top_k */
    const float *scores, *choice_bias; /* [n_rows][n], rows score_stride apart; [n] or NULL */
    int score_stride, shared_stride;   /* floats */
    const int32_t *live;               /* [n_rows]; negative: the row is nobody's */
    const float *x;                    /* [n_rows][dim] */
    /* routes: [n_rows][top_k], a row's in the order of experts; n: nobody's */
    int32_t *expert, *rank, *slot;
    float *weight;
    int32_t *before; /* [blocks of routes][n]: slots of the blocks before, by expert */
    int32_t *first;  /* [n + 1]: each expert's slots */
    /* by slot */
    int32_t *row_of, *expert_of;
    void *rows;    /* [slots][dim, to 8] of `type`: what experts read */
    float *hidden; /* [slots][2][ffn] */
    void *acted;   /* [slots][ffn, to 8] of `type` */
    float *out;    /* [slots][dim] */
    /* work */
    int tile;
    grouped_item *item;
    int32_t *n_item;
    /* LoRA: adapters by row, those of `layer`; NULL: none */
    const cu_expert_row *adapter;
    int layer, chunk_rows, v_rank; /* v_rank: floats of a slot's shrunk values, a multiple of 8 */
    sgmv_chunk *chunk;
    sgmv_counts *counts;
} cu_experts;

/* Routes, slots, items, gathered rows.  Three launches. */
cudaError_t cu_experts_sort(cudaStream_t stream, const cu_experts *x);
/* The chunks of adapted slots. */
cudaError_t cu_experts_chunks(cudaStream_t stream, const cu_experts *x);

/* acted = act(gate + its bias) * (up + its bias); biases [n][ffn] or NULL. */
cudaError_t cu_experts_act(cudaStream_t stream, const cu_experts *x, activation act,
                           const float *gate_bias, const float *up_bias);
/* to [n_rows][dim] = the sum over a row's experts, in their order, of weight * (out + bias), upon
 * what stands there times the sigmoid of shared [n_rows], shared_stride apart, upon that itself
 * (onto), or upon zero. */
cudaError_t cu_experts_combine(cudaStream_t stream, const cu_experts *x, float *to,
                               const float *down_bias, const float *shared, bool onto);

#ifdef __cplusplus
}
#endif

#endif
