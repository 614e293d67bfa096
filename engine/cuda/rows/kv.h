/* kv.h -- how K and V lie in the pages of the CUDA backend; for kernels and host code alike.
 *
 * A page holds CU_PAGE_TOKENS positions of every layer.  For one (layer, kv head) it is
 *     K [CU_PAGE_TOKENS][head_dim]
 *     V [CU_PAGE_TOKENS][head_dim]
 * of f32, bf16 or f16, so that one head's part of a page is one contiguous piece.  Pages stand
 * `stride` bytes apart, in any order; rows of two-byte values begin on 16 bytes where head_dim is a
 * multiple of 8 (asked by the tensor-core path).
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

typedef struct cu_kv {
    char *mem;     /* page 0 */
    size_t stride; /* bytes from page to page, a multiple of 256 */
    int layer;     /* the one meant by this call */
    int n_kv_head, head_dim;
    int type; /* DT_F32, DT_BF16 or DT_F16 */
} cu_kv;

/* Bytes of K and V of one kv head in one layer of one page, of one layer, of a page. */
static inline size_t cu_kv_head_bytes(int head_dim, int type)
{
    return (size_t)2 * CU_PAGE_TOKENS * (size_t)head_dim * (type == DT_F32 ? 4 : 2);
}

static inline size_t cu_kv_bytes(int n_layer, int n_kv_head, int head_dim, int type)
{
    return (size_t)n_layer * (size_t)n_kv_head * cu_kv_head_bytes(head_dim, type);
}

#ifdef __cplusplus
}
#endif

#endif
