/* draft.h -- a small model that says what a large one may say next.
 *
 * It has a KV cache of its own, and in it the texts that it is asked about: all of their tokens are
 * fed to it before it proposes anything, and its own proposals, one after the other, to propose
 * what comes behind them.  Of these the ones that did not come are forgotten.  Nothing hangs on
 * what it has of a text: that can be dropped at any time, and made again.
 *
 * A proposal is the token that it finds likeliest (the one of the smallest id among equals).  It
 * runs on the host's backend, a pass at a time: each call returns when its pass is over.
 *
 * Ownership: model and backend are borrowed.  A text is lent by draft_enter().
 * Threads:   the engine's.
 */
#ifndef ENGINE_MODEL_DRAFT_H
#define ENGINE_MODEL_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/base/err.h"
#include "engine/model/model.h"

enum { DRAFT_MOST = 16 }; /* proposals in a row */

typedef struct draft draft;
typedef struct draft_text draft_text;

typedef struct draft_config {
    int max_texts;   /* at once, and in one pass */
    int max_context; /* tokens of a text; at most so many as the model has positions */
    int max_rows;    /* of one pass; with max_texts, what model_load() was given */
    int max_pages;   /* of KV in all; fewer, where all texts need fewer */
} draft_config;

/* ERR_UNSUPPORTED: the backend leaves no logits to the host.  ERR_NOMEM. */
err_code draft_create(draft **out, const draft_config *cfg, model *m, backend *be, err *e);
/* All texts were given back. */
void draft_destroy(draft *d);

/* All texts were given back: drops what lies on the device, and takes it again after a
 * be_reopen(). */
void draft_unload(draft *d);
err_code draft_reload(draft *d, err *e);

/* Positions that a text may have, and the size of the vocabulary. */
int draft_context(const draft *d);
int draft_vocab(const draft *d);
/* Of all KV pages, and what of them is in use. */
size_t draft_kv_bytes(const draft *d);
size_t draft_kv_used_bytes(const draft *d);

/* An empty text; never NULL for one of max_texts. */
draft_text *draft_enter(draft *d);
void draft_leave(draft *d, draft_text *t);

/* So many tokens of the text are in the cache and are known to stand in it. */
int draft_sure(const draft_text *t);
/* The token behind those is this one.  True: it was proposed, and is in the cache, too.  False:
 * what is cached behind the sure ones is forgotten. */
bool draft_confirm(draft_text *t, int32_t token);
/* Forgets from token n of the text on. */
void draft_cut(draft_text *t, int n);

/* What one pass does for one text. */
typedef struct draft_part {
    draft_text *text;
    const int32_t *token; /* [n]: what stands behind all that is in the cache; borrowed */
    int n;                /* at least 1 */
    bool guessed;         /* they were proposed, and are not known to stand there */
    bool pick;            /* propose what comes behind them ... */
    int32_t picked;       /* ... which is this; -1: nothing, for want of pages */
} draft_part;

/* One pass; all texts differ, and all n together are at most max_rows.  What finds no page is left
 * out.  ERR_DEVICE: the backend has failed. */
err_code draft_run(draft *d, draft_part *part, int n, err *e);

#endif
