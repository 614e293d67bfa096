/* form.h -- how weights lie that products take by their codes. */
#ifndef ENGINE_CUDA_PRODUCTS_FORM_H
#define ENGINE_CUDA_PRODUCTS_FORM_H

#include <stddef.h>

/* Weights by their codes.  In registers a code becomes the BF16 value that its definition gives
 * (weight_source.h: f32 products, then rounded once more), so a product has the bits of one with
 * those values as a plain BF16 matrix.  How a scale is kept decides what that costs.
 *
 * A matrix is panels of GEMM_PANEL of its rows (w's n), of zeros where it has fewer:
 *     blocks of GEMM_CODES_K of k: 16 bytes for each lane of rows 0 to 7, then of rows 8 to 15:
 *         4 bits  the lane's 8 k of 4 steps of 32 k
 *         8 bits  of 2 steps, and behind both rows' once more of the other 2
 *     records_at: a record of 4 bytes for each run of 1 << shift of k, [run][GEMM_PANEL]
 * engine/cuda/products/codes.h packs them, and says what 8 codes and a record are. */
typedef enum {
    GEMM_PLAIN,
    GEMM_E4M3,     /* scales that BF16 has */
    GEMM_E4M3_F32, /* any */
    GEMM_I8,       /* 8 bits, scales that BF16 has */
    GEMM_I8_F32,   /* any */
    GEMM_I4,       /* 4 bits with a zero, scales that BF16 has */
    GEMM_I4_F16,   /* that F16 or BF16 has */
} gemm_form;

enum { GEMM_PANEL = 16, GEMM_CODES_K = 128 };

typedef struct gemm_codes {
    gemm_form form;
    int shift; /* 4 to 31; 31: a row has one scale */
    size_t panel_bytes, records_at;
} gemm_codes;

#endif
