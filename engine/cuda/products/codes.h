/* codes.h -- quantised matrices as gemm_codes.cu reads them: which are taken so, packed and read
 * back.  Host memory only.
 *
 * 8 codes of consecutive k, and a record:
 *     E4M3    two words of 4.  In each half of a word two codes: of k 0 (lower half) and 1 sign and
 *             the other seven bits at bits 15 and 10 to 4, of k 2 and 3 in what is left: their
 *             fraction at 0 to 2, exponent at 3 and 12 to 14, sign at 11.
 *     8 bits  two words of 4: k 0, 2, 1, 3 from the lowest byte on, in two's complement
 *     4 bits  one word: k 0, 2, 4, 6 in the lower half from its lowest four bits on, the others in
 *             the upper half
 *     record  the scale as f32 (GEMM_E4M3_F32, GEMM_I8_F32) or as BF16 in the lower half; 4 bits:
 *             the upper half has the code that stands for zero in its lowest 5 bits, and above
 *             them the upper 11 bits of what an F16 scale has more than that BF16.  E4M3:
 *             times 2^120.
 *
 * Threads: any; no state.
 */
#ifndef ENGINE_CUDA_PRODUCTS_CODES_H
#define ENGINE_CUDA_PRODUCTS_CODES_H

#include "engine/cuda/products/form.h"
#include "engine/weight_source.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether products take such a source by its codes: E4M3 with a scale for a row or a run of
 * columns; 8 bits without a zero; 4 bits about a zero.  Runs are of a power of two of columns. */
bool codes_takes(const weight_source *src);

/* Bytes of a matrix of one of the 8 (or 4) bit forms. */
size_t codes_bytes(const weight_source *src);

/* Runs fn(arg, i) for i in [0, n) on the caller's threads. */
typedef void codes_each(void *threads, void (*fn)(void *arg, int i), void *arg, int n);

/* Packs into `out` of codes_bytes(); *c says how it lies.  False in *fits: its scales or zeros are
 * none that a record holds, and the matrix has to become plain.  ERR_INPUT: it has values or scales
 * that are no numbers; ERR_NOMEM.  `each` NULL: on the calling thread alone. */
err_code codes_pack(const weight_source *src, codes_each *each, void *threads, void *out,
                    gemm_codes *c, bool *fits);

/* Row `row` of packed ones (`panel`: that of the row) as the kernels multiply it, BF16 values. */
void codes_row(const gemm_codes *c, const void *panel, int row, int cols, float *out);

#ifdef __cplusplus
}
#endif

#endif
