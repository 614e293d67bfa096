/* attend.h -- what attend.c and its kernels agree on.  Private to engine/cpu/.
 *
 * A page holds a power of two of positions of every layer, in cells of 32, or in one cell of all
 * where it holds fewer (engine.page_tokens).  For one (layer, kv head, cell of n positions):
 *     K [k_pad][n]   transposed, so that a dot product with n keys is a sweep over d
 *     V [n][d_pad]
 * k_pad is head_dim rounded up to D_UNIT, d_pad the size of a value.  Elements are f32, bf16, f16
 * or int8.  Kernels take blocks of 32 positions: a cell of 32 is one; of smaller ones a block is
 * gathered first, so that bits do not depend on the size of pages.
 *
 * Of int8 four rows of K and of V each, which are summed over, stand side by side in a word (K
 * [k_pad / 4][n][4], V [n / 4][d_pad][4], n / 4 rounded up), the second and the third in each
 * other's place: so the low bytes of its halves are neighbours, as the high ones are.  Behind K and
 * behind V stand the scales of the n positions, bf16: a position's values are its codes times its
 * scale, so that writing one position never touches another.
 *
 * Where values stand in their keys (attn_shape.v_in_k), there is one matrix [32][k_pad], a key
 * behind the other, zeros behind each; of int8 in that order too, with two scales for each position
 * behind it, of the value and of the rest.  Such cells hold 32
 * positions: kernels read them in place.
 *
 * Keys are cut at absolute positions into splits of SPLIT_BLOCKS blocks.  A split is summed alone,
 * splits are merged in ascending order: so a row has the same bits whether one thread walks its
 * splits or several share them.
 */
#ifndef ENGINE_CPU_ATTEND_H
#define ENGINE_CPU_ATTEND_H

#include "engine/cpu/cpu.h"

enum {
    ATTEND_ROWS = 8,
    HEAD_DIM_MAX = 512,
    KEY_MAX = LATENT_RANK_MAX + LATENT_ROPE_MAX, /* of latents; more than HEAD_DIM_MAX */
    D_UNIT = 16,
    SPLIT_BLOCKS = 16
};

/* A layer's part of a page. */
typedef struct cpu_kv_layer {
    int head_dim, k_pad, d_pad;
    size_t at;               /* in the page */
    size_t k_bytes, v_bytes; /* of a cell of one kv head, without scales */
    size_t v_at;             /* V behind K and its scales */
    size_t cell_bytes;       /* both, with scales */
    size_t head_bytes;       /* all cells of one kv head */
} cpu_kv_layer;

typedef struct cpu_kv {
    kv_pool head;
    int cell, cells;      /* positions in a cell; cells in a page */
    size_t used_bytes;    /* bytes of a page that all layers together use */
    size_t page_bytes;    /* from one page to the next */
    bool borrowed;        /* data is the caller's */
    char *data;           /* [n_pages][n_layer][n_kv_head][cells][K, V] */
    cpu_kv_layer layer[]; /* [n_layer] */
} cpu_kv;

/* One query row of one head. */
typedef struct attend_row {
    const float *q;      /* [head_dim] */
    const float *q_kept; /* the same, for what is kept before the window */
    float *out;          /* [attn_v_dim()] */
    float sink;          /* a score of its head's own; -INFINITY: none */
    int pos;
} attend_row;

/* What some keys give up to ATTEND_ROWS rows: the sum of exp(score - max), and of that times V. */
typedef struct attend_part {
    float max[ATTEND_ROWS], sum[ATTEND_ROWS];
    float o[]; /* [ATTEND_ROWS][d_pad] */
} attend_part;

/* Where int8 number `row` of `column` lies, of as many columns. */
static inline size_t kv_code(size_t row, size_t column, size_t columns)
{
    return (row / 4 * columns + column) * 4 + row % 2 * 2 + row / 2 % 2;
}

enum { PART_BYTES_MAX = sizeof(attend_part) + sizeof(float) * ATTEND_ROWS * HEAD_DIM_MAX };

static inline size_t attend_part_bytes(int d_pad)
{
    return sizeof(attend_part) + sizeof(float) * ATTEND_ROWS * (size_t)d_pad;
}

enum { SPLIT_KEPT = -1 }; /* what is kept before the window: a split of its own, the first */

/* Split `at` for up to ATTEND_ROWS rows that share a sequence and a kv head, ascending
 * positions. */
typedef void split_fn(attend_part *out, const cpu_kv *kv, const attend_row *rows, int n,
                      const int32_t *page, int layer, int kv_head, int at);

/* into and the part after it, in into. */
typedef void merge_fn(attend_part *into, const attend_part *part, int n, int d_pad);

/* All parts being merged: the rows' out. */
typedef void finish_fn(const attend_row *rows, const attend_part *part, int n, int v_dim,
                       int d_pad);

/* x in place: RMS norm per head (if norm), then the table's rotation for `pos`. */
typedef void rope_fn(float *x, const float *norm, float eps, const rope_table *rope, int pos,
                     int head_dim);

typedef struct attend_kernels {
    split_fn *split, *split_latents; /* attn_shape.v_in_k */
    merge_fn *merge;
    finish_fn *finish;
    rope_fn *rope;
} attend_kernels;

extern const attend_kernels attend_portable, attend_avx2, attend_avx512, attend_avx512bf16;

/* K of the cell that position `pos` lies in, by the sequence's block table; V is v_at behind it. */
static inline char *kv_cell(const cpu_kv *kv, const int32_t *page, int layer, int kv_head, int pos)
{
    const cpu_kv_layer *l = &kv->layer[layer];
    int n = kv->head.page_tokens, cell = pos % n / kv->cell;
    return kv->data + (size_t)page[pos / n] * kv->page_bytes + l->at +
           (size_t)kv_head * l->head_bytes + (size_t)cell * l->cell_bytes;
}

/* [cell], behind a cell's k_bytes or v_bytes; int8 only. */
static inline uint16_t *kv_scales(const char *codes, size_t bytes)
{
    return (uint16_t *)(void *)((uintptr_t)codes + bytes);
}

#endif
