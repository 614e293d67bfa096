/* grouped.h -- products of rows that stand by group, each group with a matrix of its own.
 *
 * Rows of a group are cut into items of `tile` rows at most; the list of items is made on the
 * device, and so is their number: blocks beyond it leave at once.  So a product reads the matrices
 * of the groups that have rows, and a graph replays with others.
 *
 * Law: a row's sums are those of gemm.h (chunks of GEMM_CHUNK k, added in ascending order) whatever
 * its item holds and whatever `tile` is.  F32, and k that is no multiple of 8, take a kernel
 * without tensor cores.  Held to f64 by tests/emu/test_experts.cu.
 */
#ifndef ENGINE_CUDA_PRODUCTS_GROUPED_H
#define ENGINE_CUDA_PRODUCTS_GROUPED_H

#include <stdint.h>

#include <cuda_runtime.h>

#include "engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GROUPED_FEW = 8,    /* tiles: rows that one fragment holds, */
    GROUPED_SOME = 32,  /* four of them, */
    GROUPED_MANY = 128, /* or a tile in shared memory */
};

typedef struct grouped_item {
    int32_t group, row0, n_rows;
} grouped_item;

/* All memory is on the device. */
typedef struct grouped_args {
    dtype type; /* of w and x */
    /* [n_group] addresses of matrices [n][k], on 16 bytes, of n_mat (1, 2) products side by side */
    const void *const *w[2];
    const void *x; /* rows x_stride values apart, a multiple of 8, on 16 bytes, zeros behind k */
    float *y;      /* rows y_stride floats apart: n columns of each product */
    int n_mat, n, k, x_stride, y_stride;
    int rows, n_group, tile; /* rows: at most */
    const grouped_item *item;
    const int32_t *n_item;
    const int32_t *group_of, *n_rows; /* [rows]; how many there are */
} grouped_args;

/* Items of so many rows at most. */
int grouped_items(int rows, int n_group, int tile);

/* Once after the device is chosen. */
cudaError_t cu_grouped_setup(void);
/* One launch. */
cudaError_t cu_grouped(cudaStream_t stream, const grouped_args *args);

#ifdef __cplusplus
}
#endif

#endif
