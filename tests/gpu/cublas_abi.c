/* cublas_abi.c -- what engine/cuda/products/blas.h declares, against the toolkit's own cublasLt.h:
 * it compiles or it does not.
 *
 *     cc -fsyntax-only -I. -I<toolkit>/include tests/gpu/cublas_abi.c
 */
#include <stddef.h>

#include <cublasLt.h>

#include "engine/cuda/products/blas.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
SAME(LT_SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME(LT_R_32F, CUDA_R_32F);
SAME(LT_R_16F, CUDA_R_16F);
SAME(LT_R_16BF, CUDA_R_16BF);
SAME(LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(LT_COMPUTE_32F_PEDANTIC, CUBLAS_COMPUTE_32F_PEDANTIC);
SAME(LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(LT_OP_T, CUBLAS_OP_T);
SAME(LT_LAYOUT_COLS, CUBLASLT_MATRIX_LAYOUT_COLS);
SAME(LT_LAYOUT_LD, CUBLASLT_MATRIX_LAYOUT_LD);
SAME(LT_PREF_MAX_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(LT_PREF_REDUCTION_MASK, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(LT_CONFIG_SPLITK_NUM, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
SAME(sizeof(lt_status), sizeof(cublasStatus_t));
SAME(sizeof(lt_algo), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(lt_heuristic), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(lt_heuristic, workspace), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(lt_heuristic, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
