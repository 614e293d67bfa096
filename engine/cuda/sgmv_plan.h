/* sgmv_plan.h -- what a step tells the LoRA kernels (sgmv.h), and how
 * adapters lie in device memory.
 *
 * Plain C, no CUDA.  The structs here are read by kernels as they are, so they hold device
 * addresses; the host fills them and copies them.
 *
 * An adapter is a table of sgmv_mat, one for each layer and projection (index layer * PROJ_COUNT +
 * proj, and whatever the caller puts behind), made once when the adapter arrives.  A step cuts its
 * rows into chunks of one adapter each (sgmv_plan()), which serve all layers: kernels find their
 * matrix by chunk and index.
 *
 * Packed matrices, for a type of 2 bytes (BF16, F16) or F32:
 *     A  [rank][round_up(d_in, 8)], zeros behind d_in.  True rank: any row may begin another piece.
 *     B  blocks of SGMV_COLS columns (outputs); a block has round_up(rank, 8) *
 *        SGMV_COLS elements, zeros where
 *        there is no rank or column.  2 bytes: in the order in which lanes of a
 *        warp hold it as fragments of
 *        mma.m16n8k16 (and k8 for the last 8 of the rank): row m of fragment i is
 *        column 4 m + i, so that a
 *        lane's sums are four consecutive columns.  F32: [rank][column].
 */
#ifndef ENGINE_CUDA_SGMV_PLAN_H
#define ENGINE_CUDA_SGMV_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/lora.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SGMV_COLS = 64,      /* columns of a block of B: the backend's lora_cols */
    SGMV_OUT_MAX = 3,    /* projections that share x: q, k, v */
    SGMV_TILE_ROWS = 64, /* rows of a tile, for the shrink of long segments */
    SGMV_SLICE = 128,    /* k of one chain of mma in the shrink */
    SGMV_CHAINS = 8,     /* chains of a plane */
    SGMV_PLANES_MAX = 8, /* planes of split k */
};

/* One adapted layer, in device memory.  All zero: not adapted.  More pieces: struct lora_split,
 * with the addresses in device memory; a_first = rank and b_first = INT32_MAX when there are
 * none. */
typedef struct sgmv_mat {
    const void *a, *b;
    const void *const *a_more, *const *b_more;
    const float *gain, *bias; /* [d_out] or NULL, lora_mat's */
    int32_t rank;
    float scale;
    int32_t a_first, a_each, b_first, b_each;
    int32_t d_out; /* columns of B, of gain and of bias; 0: as many as the projection has */
    int32_t n_in;  /* of the input table: tokens of A */
} sgmv_mat;

/* Rows [row0, row0 + n_rows) of one adapter; mats NULL: the bare base.  Row i's shrunk values for
 * projection o lie at v + v0 + (i * SGMV_OUT_MAX + o) * v_rank in each plane. */
typedef struct sgmv_chunk {
    const sgmv_mat *mats;
    int32_t row0, n_rows;
    uint32_t v0;
    int32_t v_rank; /* round_up(rank_max of the adapter, 8) */
} sgmv_chunk;

/* In device memory too.  Chunks are ordered: shrunk row by row, shrunk in tiles, of the bare
 * base. */
typedef struct sgmv_counts {
    int32_t n_small, n_lora, n_all; /* ends of the three in chunk[] */
    int32_t n_tile;                 /* in tile[] */
} sgmv_counts;

/* A segment of the step (struct step_seg) by device addresses. */
typedef struct sgmv_seg {
    const sgmv_mat *mats; /* NULL: the bare base */
    int32_t row0, n_rows;
    int32_t rank_max; /* of all matrices of the table that this plan serves */
} sgmv_seg;

/* Cuts segments (ascending, some may be empty) into chunks of at most chunk_rows rows (32, or 8 for
 * decode steps of padded size).  Segments of tile_from rows or more are shrunk in tiles; 0: none.
 * The choice never changes a row's bits.  Returns the floats that a plane of v needs, 0 when no row
 * has an adapter; -1 when there are more than max_chunk chunks or max_tile tiles.  Enough always:
 * max_chunk = n_seg + n_rows / chunk_rows, max_tile = n_seg + n_rows / SGMV_TILE_ROWS. */
int64_t sgmv_plan(sgmv_chunk *chunk, int max_chunk, sgmv_chunk *tile, int max_tile,
                  sgmv_counts *counts, const sgmv_seg *seg, int n_seg, int chunk_rows,
                  int tile_from);

/* The width of a plane of the shrink, in k, and their number; by d_in and type alone, for the sums'
 * order hangs on it.  Memory for v: sgmv_planes() * (floats of a plane). */
int sgmv_plane_k(int d_in, dtype type);
int sgmv_planes(int d_in, dtype type);

/* ---- packing (host) --------------------------------------------------------------------- */

size_t sgmv_a_bytes(dtype pack, int rank, int d_in);
size_t sgmv_b_bytes(dtype pack, int rank, int d_out);

/* As be_lora_pack() and be_lora_pack_embed(), into host memory of sgmv_a_bytes() and
 * sgmv_b_bytes(); `pack` is the type in device memory.  Either dst may be NULL. */
void sgmv_pack(dtype pack, void *a_dst, void *b_dst, const void *a_src, const void *b_src,
               dtype type, int rank, int d_in, int d_out);
/* A [rank][n_vocab] as [n_vocab][rank], for cu_sgmv_gather(). */
void sgmv_pack_embed(dtype pack, void *a_dst, void *b_dst, const void *a_src, const void *b_src,
                     dtype type, int rank, int n_vocab, int dim);

/* The device's view of a matrix.  Returns the addresses that it appends at more[0..]: the caller
 * puts them into device memory at more_device (may be host scratch and its place on the device). */
int sgmv_mat_of(sgmv_mat *out, const lora_mat *m, int d_out, const void **more,
                const void *const *more_device);

#ifdef __cplusplus
}
#endif

#endif
