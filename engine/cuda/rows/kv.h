/* kv.h -- how K and V lie in the pages of the CUDA backend; for kernels and host code alike.
 *
 * A page holds CU_PAGE_TOKENS positions of every layer.  For one (layer, kv head) it is
 *     K [CU_PAGE_TOKENS][head_dim]
 *     V [CU_PAGE_TOKENS][v_dim]
 * of f32, bf16 or f16, so that one head's part of a page is one contiguous piece.  Pages stand
 * `stride` bytes apart, in any order; rows of two-byte values begin on 16 bytes where both sizes
 * are multiples of 8 (asked by the tensor-core path).
 */
#ifndef ENGINE_CUDA_ROWS_KV_H
#define ENGINE_CUDA_ROWS_KV_H

#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CU_PAGE_TOKENS = 32 };

#ifdef __CUDACC__
#    define CU_BOTH static __host__ __device__ __forceinline__
#else
#    define CU_BOTH static inline
#endif

typedef struct cu_kv {
    char *mem;     /* page 0 */
    size_t stride; /* bytes from page to page, a multiple of 256 */
    int layer;     /* the one meant by this call */
    int n_kv_head, head_dim;
    int type;  /* DT_F32, DT_BF16 or DT_F16 */
    int v_dim; /* of a value; 0: head_dim */
} cu_kv;

CU_BOTH int cu_kv_v_dim(const cu_kv *kv)
{
    return kv->v_dim ? kv->v_dim : kv->head_dim;
}

/* Bytes of K or V of one kv head in one layer of one page. */
CU_BOTH size_t cu_kv_part_bytes(int dim, int type)
{
    return (size_t)CU_PAGE_TOKENS * (size_t)dim * (type == DT_F32 ? 4 : 2);
}

/* Bytes of a page. */
static inline size_t cu_kv_bytes(int n_layer, int n_kv_head, int head_dim, int v_dim, int type)
{
    size_t head = cu_kv_part_bytes(head_dim, type) + cu_kv_part_bytes(v_dim, type);
    return (size_t)n_layer * (size_t)n_kv_head * head;
}

#ifdef __cplusplus
}
#endif

#endif
