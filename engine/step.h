/* step.h -- the rows of one forward pass: prefill chunks and decode rows of many
 * requests, mixed, sorted so that rows of one adapter stand together.
 *
 * Built by the scheduler each iteration (Orca's iteration-level scheduling,
 * Sarathi's chunked prefill), read by the model and the backend, changed by nobody.
 * Plain data, host memory.
 *
 *     row:  0   1   2   3   4   5   6   7   8
 *     seq:  [-- A, chunk --][B ][C ][-- D ---]      n_seq = 4
 *     seg:  [-- adapter 7 -----][ base ][ 9  ]      n_seg = 3, the first border within a chunk
 */
#ifndef ENGINE_STEP_H
#define ENGINE_STEP_H

#include <stddef.h>
#include <stdint.h>

#include "engine/lora.h"

/* Consecutive rows of one sequence, at consecutive positions. */
typedef struct step_seq {
    int row0, n_rows;
    int pos0;            /* position of row0; all earlier positions are in the KV pages */
    const int32_t *page; /* block table: position p lies in page[p / page_tokens] */
    int n_page;          /* covers at least pos0 + n_rows positions */
    int slot; /* where its state lies (step.state); of a model without states: not read */
} step_seq;

/* Consecutive rows of one adapter; !lora: the bare base. */
typedef struct step_seg {
    int row0, n_rows;
    const lora_view *lora;
} step_seg;

typedef struct step {
    int n_rows;
    const int32_t *token; /* [n_rows], each in [0, n_vocab), of the base or of its segment's view */
    const int32_t *pos;   /* [n_rows] */
    int n_seq;
    const step_seq *seq; /* cover all rows, in order */
    int n_seg;
    const step_seg *seg; /* cover all rows, in order; their borders may lie within a sequence */
    int n_logit;
    const int32_t *logit_row; /* [n_logit] ascending; the rows whose logits are wanted */
    /* [n_rows] or NULL.  from[i] >= 0: row i's token is what that row of the last be_sample()
     * picked, which the host need not know yet; token[i] is not read then. */
    const int32_t *from;
    /* From one row of logits to the next; no view's n_vocab is above it.  0: the base's n_vocab. */
    int logit_stride;
    /* States of sequences, in backend memory, [slots][state_stride].  A layer's part begins at a
     * place that its operation is told.  Where pos0 is 0 a sequence's state counts as zero,
     * whatever is there.  NULL: the model has none (engine/mixer.h). */
    float *state;
    size_t state_stride;
} step;

#endif
