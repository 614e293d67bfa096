/* rows.h -- CUDA kernels that treat each row (or value) alone: embedding, RMS norm, rotary
 * positions with the write into KV pages, activations, conversions.
 *
 * The bits of a row never depend on how many rows there are: one block (or warp) sums one row in a
 * fixed order.  All pointers are device memory.  What changes from step to step is read from device
 * buffers (token, pos, slot, index), so a captured graph replays with other contents; n_rows is
 * that of the padded batch.  Launchers enqueue on `stream`, never wait, and return
 * cudaGetLastError().  Nothing to do is no error.
 *
 * Alignment: rows of activations begin on 16 bytes (dim and strides multiples of 4; the scalar
 * paths take the rest).  Held to f64 oracles by tests/emu/test_rows.cu.
 */
#ifndef ENGINE_CUDA_ROWS_ROWS_H
#define ENGINE_CUDA_ROWS_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>

#include "engine/cuda/rows/kv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an adapter has of its own for one row: an input table, and rows for some tokens, in place of
 * the table's.  All zero: the base's. */
typedef struct cu_embed_alt {
    const void *table;                        /* [n_vocab][dim]; NULL: the base's */
    const void *rows;                         /* [n_rows][dim] */
    const int32_t *id;                        /* [n_rows], ascending: their tokens */
    int32_t type, n_vocab, rows_type, n_rows; /* types: dtype */
} cu_embed_alt;

/* out[i] = table[token[i]], as f32. */
typedef struct cu_embed_args {
    float *out;               /* [n_rows][dim] */
    const void *table;        /* [n_vocab][dim] of `type` */
    int type;                 /* dtype */
    int dim, n_rows, n_vocab; /* a token that no table has gives zeros */
    const int32_t *token;     /* [n_rows] */
    const cu_embed_alt *alt;  /* [n_rows] or NULL: the base's for all */
} cu_embed_args;

/* A block for each row. Adapters' own rows are found by bisection in alt->id. */
cudaError_t cu_embed(cudaStream_t stream, const cu_embed_args *args);

/* token[i] = made[from[i] * stride] where from[i] >= 0: what the step before has picked. */
typedef struct cu_take_args {
    int32_t *token;      /* [n_rows] */
    const int32_t *from; /* [n_rows] */
    const int32_t *made;
    int stride, n_rows; /* stride: int32s */
} cu_take_args;

/* Before cu_embed(), in steps that were planned before the last tokens were known. */
cudaError_t cu_take_tokens(cudaStream_t stream, const cu_take_args *args);

/* For each i: r = index ? index[i] : i; x[r] += add[r] (if add); out[i] =
 * x[r] / rms(x[r]) * weight. */
typedef struct cu_rms_norm_args {
    float *out;          /* [n_rows][dim], may be x; NULL: not wanted */
    uint16_t *out16;     /* the same rounded to bf16; NULL: not wanted */
    float *x;            /* [..][dim]; written only if `add` */
    const float *add;    /* [..][dim] or NULL: the residual branch to be added first */
    const float *weight; /* [dim] */
    /* [n_rows] or NULL; not together with `add`; negative: the row is left out. */
    const int32_t *index;
    float eps;
    int n_rows, dim;
    bool early; /* the launch may begin early (launch.h); index is not a kernel's */
} cu_rms_norm_args;

/* The sum of squares is taken in f32 by one block, in an order that depends on dim alone. */
cudaError_t cu_rms_norm(cudaStream_t stream, const cu_rms_norm_args *args);

/* RMS norm per head (if q_norm, k_norm), rotate-half by pos, in place on q; K, turned likewise, and
 * V into the pages alone. */
typedef struct cu_rope_args {
    float *q;                         /* row i: q + i * q_stride, heads dense inside a row */
    const float *k, *v;               /* so a fused product [n_rows][q, k, v] needs no copy */
    int q_stride, k_stride, v_stride; /* floats */
    const float *q_norm, *k_norm;     /* [head_dim] or NULL */
    float norm_eps;
    const float *cos, *sin; /* [max_pos][rope_dim / 2] */
    int rope_dim, n_head;
    int first;              /* of the values that turn */
    bool pairs;             /* neighbours turn together, not halves */
    float q_scale, q_floor; /* rope_table's: queries grow with their position; 0: they do not */
    int q_from;
    int n_rows;
    const int32_t *pos; /* [n_rows] */
    /* [n_rows]: page * CU_PAGE_TOKENS + place in it; negative: nothing is written. */
    const int32_t *slot;
    cu_kv kv;
} cu_rope_args;

/* A warp for each head of a row; K and V are written in the pool's type (int8 with scales). */
cudaError_t cu_rope_append(cudaStream_t stream, const cu_rope_args *args);
/* For models whose norms follow the rotation: turns q and k in place, then norms each head.  What
 * cu_rope_append() or attention does with them afterwards has no norms and rope_dim 0. */
cudaError_t cu_turn_first(cudaStream_t stream, const cu_rope_args *args);

/* k [n_rows][n_head][nope + rope] and v [n_rows][n_head][v]: of each head its own key and value in
 * kv, and behind the key the one that all heads of a row share. */
typedef struct cu_spread_args {
    float *k, *v;
    const float *kv,
        *shared; /* rows kv_stride, shared_stride floats apart: [n_head][nope + v], [rope] */
    int kv_stride, shared_stride;
    int n_rows, n_head, nope, rope, v_dim;
} cu_spread_args;
cudaError_t cu_latent_spread(cudaStream_t stream, const cu_spread_args *args);

/* x = a * x + b * y (y NULL: a * x), then, where cap is not 0, cap * tanh(x / cap). */
typedef struct cu_blend_args {
    float *x;
    const float *y;
    float a, b, cap;
    size_t n;
} cu_blend_args;

/* A thread for each value. */
cudaError_t cu_blend(cudaStream_t stream, const cu_blend_args *args);

/* silu(gate) * up, or gelu's by tanh, [n_rows][cols]; row i of gate and up begins at i * in_stride,
 * of the outputs at i * cols.  up NULL: by nothing. */
typedef struct cu_silu_args {
    const float *gate, *up;
    int in_stride;   /* floats: cols, or 2 * cols for a fused product */
    float *out;      /* may be gate if in_stride is cols; NULL: not wanted */
    uint16_t *out16; /* bf16; NULL: not wanted */
    int n_rows, cols;
    bool gelu;
} cu_silu_args;

/* A thread for each value; both outputs may be asked for. */
cudaError_t cu_silu_mul(cudaStream_t stream, const cu_silu_args *args);

/* The same with any other activation of one value. */
typedef struct cu_act_args {
    cu_silu_args rows; /* `gelu` is not read */
    activation act;
    xielu_weights xielu; /* of ACT_XIELU */
} cu_act_args;
cudaError_t cu_act_mul(cudaStream_t stream, const cu_act_args *args);

/* x[i][j] += bias[j] for j < n, rows `stride` floats apart. */
typedef struct cu_bias_args {
    float *x;
    const float *bias; /* [n] */
    int n_rows, stride, n;
} cu_bias_args;
cudaError_t cu_add_bias(cudaStream_t stream, const cu_bias_args *args);

#ifdef __cplusplus
}
#endif

#endif
