/* attend.h -- what attend.c and its kernels agree on.  Private to engine/cpu/.
 *
 * A page holds 32 positions of every layer.  For one (layer, kv head):
 *     K [d_pad][32]   transposed, so that a dot product with 32 keys is a sweep over d
 *     V [32][d_pad]
 * d_pad is head_dim rounded up to 16.  Elements are f32 or bf16.
 */
#ifndef ENGINE_CPU_ATTEND_H
#define ENGINE_CPU_ATTEND_H

#include "engine/cpu/cpu.h"

enum { ATTEND_ROWS = 8, HEAD_DIM_MAX = 256 };

typedef struct cpu_kv {
    kv_pool head;
    int d_pad;
    size_t elem_bytes;
    size_t head_bytes;  /* K and V of one kv head in one layer's page */
    size_t layer_bytes; /* of all kv heads */
    size_t page_bytes;  /* from one page to the next */
    bool borrowed;      /* data is the caller's */
    char *data;         /* [n_pages][n_layer][n_kv_head][K, V] */
} cpu_kv;

/* One query row of one head. */
typedef struct attend_row {
    const float *q; /* [head_dim] */
    float *out;     /* [head_dim] */
    int pos;
} attend_row;

/* Attention of up to ATTEND_ROWS rows that share a sequence and a kv head, ascending positions. */
typedef void attend_fn(const cpu_kv *kv, const attend_row *rows, int n, const int32_t *page,
                       int layer, int kv_head);

/* x in place: RMS norm per head (if norm), then rotate-half by cos/sin [rope_dim / 2]. */
typedef void rope_fn(float *x, const float *norm, float eps, const float *cos, const float *sin,
                     int head_dim, int rope_dim);

typedef struct attend_kernels {
    attend_fn *attend;
    rope_fn *rope;
} attend_kernels;

extern const attend_kernels attend_portable, attend_avx2, attend_avx512;

static inline char *kv_k(const cpu_kv *kv, int page, int layer, int kv_head)
{
    return kv->data + (size_t)page * kv->page_bytes + (size_t)layer * kv->layer_bytes +
           (size_t)kv_head * kv->head_bytes;
}

static inline char *kv_v(const cpu_kv *kv, int page, int layer, int kv_head)
{
    return kv_k(kv, page, layer, kv_head) + kv->head_bytes / 2;
}

#endif
