/* attend.h -- attention of the CUDA backend: causal, paged, grouped heads, sliding window, any mix
 * of prefill chunks and decode rows.
 *
 * The keys of a row are cut at absolute positions: splits of CU_SPLIT_TOKENS, tiles of
 * CU_TILE_TOKENS inside them.  A split is summed alone, tile after tile; then splits are merged in
 * ascending order.  Small sequences (decode) do a split per block, and the last block to end merges
 * them; long chunks walk all their splits in one block and merge on the way, with the same
 * operations in the same order.  So a row has the same bits in both, whatever its chunk, its
 * neighbours, its pages.  (Of the CUDA backend; not the CPU's bits.)
 *
 * "Packed rows" of a sequence and a kv head: the group = n_head / n_kv_head query heads of every
 * row, p = row_in_seq * group + head_in_group.  They share each read of K and V.
 *
 * cu_attend_plan_fill() (plain C, host, once per step) writes the work lists; the arrays travel to
 * the device with the step and serve all layers.  Kernels read counts from there: a captured graph
 * replays with other lists.
 */
#ifndef ENGINE_CUDA_ATTEND_H
#define ENGINE_CUDA_ATTEND_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>

#include "engine/cuda/attend_plan.h"
#include "engine/cuda/rows/kv.h"
#include "engine/cuda/rows/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cu_attend_args {
    float *out; /* row i: out + i * out_stride; f32, also scratch of long chunks; dense heads */
    /* The result as bf16 [n_rows][n_head * v_dim] instead of in `out`; NULL: in `out`. */
    uint16_t *out16;
    const float *q;           /* row i: q + i * q_stride */
    int q_stride, out_stride; /* floats, even */
    int n_head;
    int window; /* 0: none; at most what the plan was made for, where that has one */
    float scale;
    float cap;    /* of products q k, before `scale`: they become cap * tanh(p / cap); 0: none */
    bool chunked; /* rows see their own run of `window` positions, not the last ones */
    const float *sinks; /* [n_head], device: a score more, which adds nothing; NULL: none */
    cu_kv kv;
    const cu_attend_counts *counts; /* device, like all below */
    const cu_attend_seq *seq;
    const cu_attend_item *small, *large;
    const int32_t *page;
    float *partial_out;   /* [max_partial][n_kv_head][cu_attend_unit()][v_dim] */
    float *partial_state; /* [max_partial][n_kv_head][cu_attend_unit()][2]: max, sum */
    uint32_t *ticket;     /* [max_partial][n_kv_head], zero before a call and after it */
    /* With turn.k: what cu_rope_append() would do is done on the way.  q as it comes from the
     * product (turn.q is not read), K and V of each row not yet in its pages.  Only where
     * cu_attend_turns(), and every sequence has one row. */
    cu_rope_args turn;
    bool early; /* the launch may begin early (launch.h): lists are not a kernel's */
    int grid_small, grid_large; /* blocks; 0: that launch is left out; see cu_attend_grid() */
} cu_attend_args;

/* Bytes of partial_out + partial_state + ticket for one partial. */
size_t cu_attend_partial_bytes(int n_head, int n_kv_head, int v_dim);

/* Once after the device is chosen: allows the kernels their shared memory. */
cudaError_t cu_attend_setup(void);
/* Sets grid_small and grid_large so that a device of n_sm multiprocessors with
 * shared_per_sm bytes of shared memory each is full; kernels loop over their lists.  Needs args->kv
 * and n_head.  A step without large items may set grid_large to 0 afterwards, and so on. */
void cu_attend_grid(cu_attend_args *args, int n_sm, size_t shared_per_sm);

/* Whether kernels for such heads take `turn`. */
bool cu_attend_turns(const cu_kv *kv, int n_head);

/* Enqueues up to two launches: small, large. */
cudaError_t cu_attend(cudaStream_t stream, const cu_attend_args *args);

#ifdef __cplusplus
}
#endif

#endif
