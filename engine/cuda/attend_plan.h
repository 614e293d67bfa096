/* attend_plan.h -- the work lists of attend.h, made on the host once per step.  Plain C, no CUDA.
 *
 * Writes into arrays of the caller (pinned memory that travels to the device with the
 * step); allocates nothing.
 * Threads: whoever owns the plan.  Held to account by tests/emu/test_attend.cu.
 */
#ifndef ENGINE_CUDA_ATTEND_PLAN_H
#define ENGINE_CUDA_ATTEND_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/cuda/rows/kv.h"
#include "engine/step.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CU_SPLIT_TOKENS = 512,
    CU_TILE_TOKENS = 64,
    CU_SMALL_ROWS = 16,  /* packed rows of a small item */
    CU_LARGE_ROWS = 128, /* of a large one */
};

typedef struct cu_attend_seq {
    int32_t row0, n_rows, pos0;
    int32_t page0; /* of its block table in the list of all pages */
} cu_attend_seq;

/* Up to CU_SMALL_ROWS or CU_LARGE_ROWS packed rows of a sequence, for every kv head. */
typedef struct cu_attend_item {
    int32_t seq;
    int32_t first;          /* packed row */
    int32_t split0, split1; /* [split0, split1) */
    /* First of those that its sums go to; -1: it is alone, and writes the result. */
    int32_t partial;
    int32_t nth, n_split; /* with a partial: of so many items, which merge when all are there */
} cu_attend_item;

/* A partial has the sums of so many packed rows: a decode row takes one for each split, and rows
 * that are computed together take as many as they fill. */
CU_BOTH int cu_attend_unit(int group)
{
    return group < CU_SMALL_ROWS ? group : CU_SMALL_ROWS;
}

/* Partials of one split of the item that begins with `left` packed rows before the last. */
CU_BOTH int cu_attend_units(int left, int group)
{
    int unit = cu_attend_unit(group), rows = left < CU_SMALL_ROWS ? left : CU_SMALL_ROWS;
    return (rows + unit - 1) / unit;
}

/* Counts as the kernels read them. */
typedef struct cu_attend_counts {
    int32_t n_small, n_large, n_seq;
} cu_attend_counts;

/* What cu_attend_plan_fill() fills; arrays are the caller's (pinned memory), of
 * cu_attend_plan_limits() elements. */
typedef struct cu_attend_plan {
    cu_attend_counts counts;
    cu_attend_seq *seq;    /* [max_seq] */
    cu_attend_item *small; /* [max_small] */
    cu_attend_item *large; /* [max_large] */
    int32_t *page;         /* [max_page]: the block tables one after another */
    int max_seq, max_small, max_large, max_page;
    /* that the device has room for; what goes beyond is walked by one block, same bits */
    int max_partial;
    int n_page; /* entries of `page` in use */
} cu_attend_plan;

/* Largest counts for steps of max_rows rows in max_seq sequences, and this
 * much room for partial sums. */
void cu_attend_plan_limits(cu_attend_plan *plan, int max_seq, int max_rows, int max_page, int group,
                           int max_partial);

/* Lists the work of a step; longest first.  Writes at most what plan's limits say;
 * false: they are too small. */
bool cu_attend_plan_fill(cu_attend_plan *plan, const step *s, int group, int window);

/* slot[row] for cu_rope_append(): page * CU_PAGE_TOKENS + place in it; -1 for
 * rows [s->n_rows, n_slot). */
void cu_slots_fill(int32_t *slot, int n_slot, const step *s);

#ifdef __cplusplus
}
#endif

#endif
