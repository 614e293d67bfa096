/* blas.h -- the base's matrix products: cuBLASLt, loaded at run time, one order of
 * summation per matrix shape.
 *
 * The library is opened with dlopen(), so that lorad builds without its headers and
 * starts without it; the declarations that are needed stand here, with cublasLt.h's
 * values (the same in 12 and 13).
 *
 * Batch invariance: cuBLASLt promises nothing about bits across numbers of rows.  So its heuristic
 * is only asked for candidates that do not split K over blocks, for each bucket of rows; the
 * candidates are run on the matrix itself, and a bucket takes the fastest named one that gives the
 * bits of the law, which is the algorithm of the smallest bucket.  Where none does, the law's own
 * algorithm serves that bucket.  What is compared is what will run, on this device, with this
 * library: nothing is assumed about its kernels.
 *
 * Threads: engine thread (and start-up).
 */
#ifndef ENGINE_CUDA_BLAS_H
#define ENGINE_CUDA_BLAS_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- cublasLt.h, as far as it is used ------------------------------------------------------- */

typedef int lt_status;
enum { LT_SUCCESS = 0 };
enum { LT_R_32F = 0, LT_R_16F = 2, LT_R_16BF = 14 };
enum { LT_COMPUTE_32F = 68, LT_COMPUTE_32F_PEDANTIC = 69 };
enum { LT_DESC_TRANSA = 3 };
enum { LT_OP_T = 1 };
enum { LT_LAYOUT_COLS = 3 };
enum { LT_PREF_MAX_WORKSPACE = 1, LT_PREF_REDUCTION_MASK = 3 };
enum { LT_CONFIG_SPLITK_NUM = 2 };

typedef struct lt_algo {
    uint64_t data[8];
} lt_algo;

typedef struct lt_heuristic {
    lt_algo algo;
    size_t workspace;
    lt_status state;
    float waves;
    int reserved[4];
} lt_heuristic;

typedef struct blas_api {
    lt_status (*create)(void **handle);
    lt_status (*destroy)(void *handle);
    size_t (*version)(void);
    lt_status (*desc_create)(void **desc, int compute, int scale);
    lt_status (*desc_destroy)(void *desc);
    lt_status (*desc_set)(void *desc, int attr, const void *v, size_t n);
    lt_status (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    lt_status (*layout_destroy)(void *layout);
    lt_status (*layout_set)(void *layout, int attr, const void *v, size_t n);
    lt_status (*pref_create)(void **pref);
    lt_status (*pref_destroy)(void *pref);
    lt_status (*pref_set)(void *pref, int attr, const void *v, size_t n);
    lt_status (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref,
                           int wanted, lt_heuristic *out, int *n);
    lt_status (*config_get)(const lt_algo *algo, int attr, void *v, size_t n, size_t *written);
    lt_status (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *la,
                        const void *b, void *lb, const void *beta, const void *c, void *lc, void *d,
                        void *ld, const lt_algo *algo, void *workspace, size_t workspace_bytes,
                        cudaStream_t stream);
} blas_api;

/* Opens the library; ERR_UNSUPPORTED, with the loader's reason and what to install, where it cannot
 * be had.  (The emulated build has its own in tests/emu/cuda_rt/.)  Start-up only. */
err_code blas_load(blas_api *out, err *e);
/* The first of these files that can be opened; a missing function names file and function. */
err_code blas_load_from(blas_api *out, const char *const *files, int n, err *e);

/* ---- products -------------------------------------------------------------------------------- */

enum { BLAS_ROWS_LEAST = 16, BLAS_BUCKETS = 10, BLAS_SHAPES = 64 };

/* All that multiply by matrices of one shape. */
typedef struct blas_plan {
    dtype type;
    int n, k; /* d_out, d_in */
    void *desc, *lw, *lx, *ly;
    lt_algo algo[BLAS_BUCKETS]; /* up to 16, 32, 64 ... rows */
    int n_buckets;
    int n_law; /* buckets that had to take the law's own algorithm */
} blas_plan;

typedef struct blas {
    blas_api api;
    void *handle, *pref;
    void *workspace; /* device */
    size_t workspace_bytes;
    int max_rows;
    blas_plan plan[BLAS_SHAPES];
    int n_plan;
} blas;

err_code blas_open(blas *b, void *workspace, size_t workspace_bytes, int max_rows, err *e);
void blas_close(blas *b);

/* The largest scratch that blas_plan_get() needs: rows of x and of y. */
size_t blas_trial_bytes(const blas *b, dtype type, int n, int k);

/* The plan for matrices [n][k] of this type; the first time it is made with `w` and `trial` (device
 * memory of blas_trial_bytes()) on `stream`, and the host waits. */
err_code blas_plan_get(blas *b, const blas_plan **out, dtype type, int n, int k, const void *w,
                       void *trial, cudaStream_t stream, err *e);
const blas_plan *blas_plan_find(const blas *b, dtype type, int n, int k);

/* y [rows][n] = x [rows][k] w^T (+ y if `accumulate`), f32 sums and f32 y, x of the plan's type. */
err_code blas_product(blas *b, const blas_plan *p, const void *w, const void *x, float *y, int rows,
                      int accumulate, cudaStream_t stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
