/* kv.h -- how K and V lie in the pages of the CUDA backend; for kernels and host code alike.
 *
 * A page holds CU_PAGE_TOKENS positions of every layer.  For one (layer, kv head) it is
 *     K [CU_PAGE_TOKENS][head_dim]
 *     V [CU_PAGE_TOKENS][v_dim]
 * of f32, bf16, f16 or int8, so that one head's part of a page is one contiguous piece.  Pages
 * stand `stride` bytes apart, in any order; rows of two-byte values begin on 16 bytes where both
 * sizes are multiples of 8 (asked by the tensor-core path), rows of codes where they are of 16.
 *
 * Of int8 a position's K and V have a scale each, as the CPU's pages have (engine/cpu/attend.c):
 * the least bf16 by which no code is above 127.  They stand behind V:
 *     [CU_PAGE_TOKENS][2] bf16
 * and of every 16 codes of a row the first eight are the even bytes, cu_kv_code_at(): so a register
 * of four bytes gives two pairs as the tensor cores take them.
 */
#ifndef ENGINE_CUDA_ROWS_KV_H
#define ENGINE_CUDA_ROWS_KV_H

#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CU_PAGE_TOKENS = 32, CU_HEAD_DIM_MAX = 256 };

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
    int type;  /* DT_F32, DT_BF16, DT_F16 or DT_I8 */
    int v_dim; /* of a value; 0: head_dim */
} cu_kv;

CU_BOTH int cu_kv_v_dim(const cu_kv *kv)
{
    return kv->v_dim ? kv->v_dim : kv->head_dim;
}

/* Bytes of K or V of one kv head in one layer of one page. */
CU_BOTH size_t cu_kv_part_bytes(int dim, int type)
{
    return (size_t)CU_PAGE_TOKENS * (size_t)dim * (type == DT_F32 ? 4 : type == DT_I8 ? 1 : 2);
}

/* Of both, and their scales. */
CU_BOTH size_t cu_kv_head_bytes(int head_dim, int v_dim, int type)
{
    size_t scales = type == DT_I8 ? CU_PAGE_TOKENS * 2 * sizeof(uint16_t) : 0;
    return cu_kv_part_bytes(head_dim, type) + cu_kv_part_bytes(v_dim, type) + scales;
}

/* The byte of a row of d codes that has value i. */
CU_BOTH int cu_kv_code_at(int i, int d)
{
    return i < d / 16 * 16 ? i / 16 * 16 + i % 8 * 2 + i / 8 % 2 : i;
}

/* Bytes of a page. */
static inline size_t cu_kv_bytes(int n_layer, int n_kv_head, int head_dim, int v_dim, int type)
{
    return (size_t)n_layer * (size_t)n_kv_head * cu_kv_head_bytes(head_dim, v_dim, type);
}

#ifdef __cplusplus
}
#endif

#endif
