/* texts.h -- prompts that this node computed for others, until they have fetched the pages.
 *
 * Kept are token ids and the domain, by the pass of the request; the pages are in the prefix cache,
 * where nothing is pinned.  A text is dropped after some seconds, or for newer ones.
 *
 * Threads: the caller's lock guards it.
 */
#ifndef GATEWAY_MOVE_TEXTS_H
#define GATEWAY_MOVE_TEXTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sched/sched.h"

enum { TEXTS_MAX = 128, TEXT_KEPT_US = 20000000 };

typedef struct kept_text {
    uint64_t pass;
    int64_t until_us;
    sched_text text; /* its tokens are malloced; NULL: the place is free */
} kept_text;

typedef struct texts {
    kept_text each[TEXTS_MAX];
    int next; /* the oldest */
} texts;

/* `to` gets tokens of its own, for free().  False: out of memory. */
bool texts_copy(const sched_text *from, sched_text *to);
/* Takes over a copied text; returns the tokens of the one that it replaces, for free(). */
void *texts_add(texts *t, uint64_t pass, const sched_text *text, int64_t now_us);
/* NULL: none has that pass, or no longer. */
const sched_text *texts_find(const texts *t, uint64_t pass, int64_t now_us);
void texts_clear(texts *t);

#endif
