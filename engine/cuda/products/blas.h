/* blas.h -- the base's matrix products: cuBLASLt, loaded at run time, one order of
 * summation per matrix shape.
 *
 * The library is opened with dlopen(), so that lorad builds without its headers and
 * starts without it; the declarations that are needed stand here, with cublasLt.h's
 * values (the same in 12 and 13).
 *
 * Batch invariance: cuBLASLt promises nothing about bits across numbers of rows.  So its heuristic
 * is only asked for candidates that do not split K over blocks, for each bucket of rows.  All of
 * them are run on the matrix itself, in all buckets, with several numbers of rows.  The order of a
 * shape is that of the bits which some candidate gives in every bucket; of several, those of the
 * candidate that was named first, for few rows.  Which candidate with these bits a bucket takes is
 * a rule and a table (choices.h); nothing is timed, so every start of every server is the same.
 * What is compared is what will run, on this device, with this library: nothing is assumed about
 * its kernels.  Our own kernels (gemm.h), which have one order by their construction, are the last
 * candidate.  Of matrices by their codes there are no others: slices by wgmma, and without.
 *
 * Threads: engine thread (and start-up).
 */
#ifndef ENGINE_CUDA_PRODUCTS_BLAS_H
#define ENGINE_CUDA_PRODUCTS_BLAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "engine/cuda/products/gemm.h"
#include "engine/cuda/products/wait.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- cublasLt.h, as far as it is used ------------------------------------------------------- */

typedef int lt_status;
enum { LT_SUCCESS = 0, LT_FAILED = 13 };
enum { LT_R_32F = 0, LT_R_16F = 2, LT_R_16BF = 14 };
enum { LT_COMPUTE_32F = 68, LT_COMPUTE_32F_PEDANTIC = 69 };
enum { LT_DESC_TRANSA = 3 };
enum { LT_OP_T = 1 };
enum { LT_LAYOUT_COLS = 3, LT_LAYOUT_LD = 4 };
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

/* The faster kernels on devices of one compute capability; 0 rows: never faster. */
typedef struct blas_choice {
    int capability;  /* 10 * major + minor, and those above it */
    int chain_rows;  /* up to so many rows, gemm_stream.cu before cuBLAS */
    int inside_rows; /* up to so many rows, LoRA inside the product */
    int slice_rows;  /* from so many rows on, codes become plain slices for wgmma */
} blas_choice;
/* The line of choices.h for this device.  Any thread. */
const blas_choice *blas_choice_of(int capability);

/* All that multiply by matrices of one shape. */
typedef struct blas_plan {
    dtype type;
    gemm_codes codes; /* how the matrices lie */
    int n, k;         /* d_out, d_in */
    void *desc, *lw, *lx, *ly;
    lt_algo algo[BLAS_BUCKETS]; /* up to 16, 32, 64 ... rows */
    bool inside[BLAS_BUCKETS];  /* has LoRA inside, where there is some: inside.c */
    int n_buckets;
    uint64_t order; /* of its sums: a hash of what they give for the trial's rows; 0: our own */
} blas_plan;

/* Kernels that the start tries, and that others can replace: products by wgmma, those of few rows
 * by one chain, and those with LoRA inside.  debug.cuda_without names them (gateway/device.c). */
#define KERNELS_WGMMA  "wgmma"
#define KERNELS_CHAIN  "chain"
#define KERNELS_INSIDE "inside"

typedef struct blas {
    blas_api api;
    void *handle, *pref;
    void *workspace; /* device */
    size_t workspace_bytes;
    int n_sm;
    bool wide, streams; /* cu_gemm_wide_setup(), cu_gemm_stream_setup() has succeeded */
    const blas_choice *choice;
    bool ours; /* cuBLAS is not asked: our law hangs on k alone, and not on how many rows w has */
    device_wait *wait;
    /* The KERNELS_ that are being tried, NULL: none; stays as it is where the device is lost, or
     * hangs, then. */
    const char *trying;
    blas_plan plan[BLAS_SHAPES];
    int n_plan;
} blas;

/* Loads the library and makes a handle. `workspace` (device memory) and `wait` are borrowed
 * until blas_close(). ERR_UNSUPPORTED: there is no library, and which to install. */
err_code blas_open(blas *b, void *workspace, size_t workspace_bytes, int n_sm, device_wait *wait,
                   err *e);

/* Frees the handle and all plans; also after a failed open. */
void blas_close(blas *b);

/* The largest scratch that blas_plan_get() needs: rows of x and of y. */
size_t blas_trial_bytes(int max_rows, dtype type, int n, int k);

/* The plan for products of up to max_rows rows with matrices [n][k] of this type that lie like
 * `codes` (NULL: as values); the first time it is made with `w` and `trial` (device memory of
 * blas_trial_bytes()) on `stream`, and the host waits. */
err_code blas_plan_get(blas *b, const blas_plan **out, dtype type, int n, int k,
                       const gemm_codes *codes, int max_rows, const void *w, void *trial,
                       cudaStream_t stream, err *e);

/* The plan if it was made already; else NULL. */
const blas_plan *blas_plan_find(const blas *b, dtype type, int n, int k, const gemm_codes *codes);

/* What is added to a product: y = (product + bias) + res, [n] and [rows][n]; NULL: nothing.  And
 * how many floats apart rows of y and res begin; 0: n. */
typedef struct blas_sum {
    const float *bias, *res;
    int stride;
    uint16_t *gated; /* in place of y: gemm.h */
    bool gelu;
    bool early; /* launches of ours may begin early */
} blas_sum;

/* Of the orders of summation of all plans; 0: all are our own, which k alone decides.  Equal for
 * the same matrices only if the orders are equal. */
uint64_t blas_order(const blas *b);

/* Whether products of so many rows can add it, or gate it. */
bool blas_adds(const blas_plan *p, int rows);

/* Whether the product can apply the activation of an MLP itself. */
bool blas_gates(const blas *b, const blas_plan *p, int rows);
/* Whether a product of so many rows sums each output in one chain (gemm_stream.cu). */
bool blas_streams(const blas_plan *p, int rows);
/* Whether LoRA is computed within the product: no, until blas_set_inside(). */
bool blas_inside(const blas_plan *p, int rows);

/* For products of so many rows, from now on. */
void blas_set_inside(blas *b, const blas_plan *p, int rows);
/* y [rows][n] = x [rows][k] w^T with sums and y in f32, and x of the plan's type.  `more` requires
 * blas_adds(), or blas_gates() if it gates. */
err_code blas_product(blas *b, const blas_plan *p, const void *w, const void *x, float *y, int rows,
                      blas_sum more, cudaStream_t stream, err *e);

/* The same without a plan, by our own kernels: for matrices that come and go, and, where none is
 * made, those by their codes (`codes`; NULL: w has values).  Column i becomes y's place[i] (device
 * memory), or i where that is NULL.  k a multiple of 8. */
err_code blas_unplanned(const blas *b, dtype type, int n, int k, const void *w,
                        const gemm_codes *codes, const void *x, float *y, int rows, blas_sum more,
                        const int32_t *place, cudaStream_t stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
