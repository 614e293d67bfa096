/* stacks.h -- several adapters of which each request says how much of each it wants.
 *
 * A stack is a few versions with a scale each: what PEFT's add_weighted_adapter() makes of them
 * with combination_type "cat", delta = the sum of scale_i * B_i A_i.  It is served as one adapter
 * of the sum of the ranks, made of its parts' files when it is first wanted
 * (adapters/residency/stacked.h).  This table gives each a number by which the engine knows it; the
 * same parts at the same scales, in whatever order, are the same stack.
 *
 * Ownership: stacks_acquire() and stacks_acquire_id() hand out one hold each, stacks_release()
 *            takes it back.  A stack that is held pins its parts; one that nobody holds
 *            keeps its number for a while, so that what is resident of it is of use again.
 * Threads:   any thread, create and destroy apart; release may delete files.
 */
#ifndef ADAPTERS_STORE_STACKS_H
#define ADAPTERS_STORE_STACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/store/registry.h"
#include "engine/base/err.h"

enum { STACK_PARTS_MAX = 4, STACKS_KEPT = 1024 /* of those that nobody holds */ };

typedef struct stack_part {
    const adapter_version *v;
    float scale;
} stack_part;

/* Read freely while held. */
typedef struct stack {
    uint64_t id; /* never a version's */
    int n, rank; /* the sum of the parts' */
    uint8_t digest[DIGEST_BYTES];
    stack_part part[STACK_PARTS_MAX]; /* by the version's id */
} stack;

typedef struct stacks stacks;

/* The registry is borrowed.  NULL: out of memory. */
stacks *stacks_create(registry *reg);
/* All holds must be back.  NULL is fine. */
void stacks_destroy(stacks *s);

bool stacks_is(uint64_t id);

/* Called, with no lock held, when a number means nothing any more, so that residency can drop what
 * it has of it.  Set before use by many threads. */
void stacks_on_gone(stacks *s, void (*fn)(void *self, uint64_t id), void *self);
/* A version is gone for good: so are the stacks that had it. */
void stacks_part_gone(stacks *s, uint64_t version_id);

/* `part` in any order, its pins the caller's: the stack takes its own.
 *   ERR_INPUT  a version twice
 *   ERR_LIMIT  no parts, more than STACK_PARTS_MAX, or ranks that add up to more than rank_max */
err_code stacks_acquire(stacks *s, const stack_part *part, int n, int rank_max, const stack **out,
                        err *e);
/* One more hold, by its number.  ERR_NOT_FOUND: it is not known any more, or a part was deleted. */
err_code stacks_acquire_id(stacks *s, uint64_t id, const stack **out, err *e);
void stacks_release(stacks *s, const stack *st);

/* "one@3*0.5+two@1*-1"; holds nothing.  False: it is not known, or does not fit. */
bool stacks_label(stacks *s, uint64_t id, char *out, size_t cap);

#endif
