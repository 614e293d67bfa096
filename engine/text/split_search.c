/* split_search.c -- runs a pattern's program over a text.
 *
 * Ways not yet gone lie on a stack.  A branch is marked at a place when it is gone there, and never
 * gone there again: no op can come back to itself at one place, so when it is met a second time all
 * that it led to has failed.  That holds for later beginnings too.  The branches that led to a find
 * have not failed, but no later search meets them: their places lie behind it, and from one at its
 * end the pattern would have found nothing at all, which none may.  (Look-around leaves no marks:
 * it is a list of characters.  What it finds behind a place is the same for all beginnings.)
 *
 * Ordinary texts take a few steps for each character, and marks would cost more than they save:
 * they begin when a text has had FREE_STEPS for each of its characters.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/split_inside.h"

enum { FREE_STEPS = 32 };

typedef struct split_branch {
    size_t at;
    int16_t op;
} split_branch;

static size_t words_of(const split_regex *r)
{
    return ((size_t)r->n_memo + 63) / 64;
}

void split_search_text(split_search *s, const split_regex *r, const uint32_t *c, size_t n)
{
    s->regex = r;
    s->c = c;
    s->n = n;
    s->marking = false;
    s->free_steps = s->steps + FREE_STEPS * (uint64_t)n + FREE_STEPS;
}

/* From here on branches are marked. */
static bool begin_marking(split_search *s)
{
    size_t need = (s->n + 1) * words_of(s->regex);
    if (need > s->failed_cap) {
        free(s->failed);
        s->failed = malloc(need * sizeof(*s->failed));
        s->failed_cap = s->failed ? need : 0;
        s->no_memory |= !s->failed;
    }
    if (!s->failed) return false;
    memset(s->failed, 0, need * sizeof(*s->failed));
    s->marking = true;
    return true;
}

void split_search_piece(split_search *s, size_t begin, size_t end)
{
    s->begin = begin;
    s->end = end;
    /* what failed here failed at the end of the piece before */
    size_t n = words_of(s->regex);
    if (s->marking && n) memset(s->failed + begin * n, 0, n * sizeof(*s->failed));
}

void split_search_clear(split_search *s)
{
    free(s->failed);
    free(s->stack);
    *s = (split_search){0};
}

/* Marks a branch here; false: it was. */
static inline bool mark(split_search *s, int memo, size_t at)
{
    if (!s->marking && (s->steps <= s->free_steps || !begin_marking(s))) return !s->no_memory;
    uint64_t *word = s->failed + at * words_of(s->regex) + memo / 64, bit = 1ULL << (memo % 64);
    if (*word & bit) return false;
    *word |= bit;
    return true;
}

static bool push(split_search *s, int16_t op, size_t at)
{
    if (s->n_stack == s->stack_cap) {
        size_t cap = s->stack_cap ? 2 * s->stack_cap : 64;
        split_branch *more = realloc(s->stack, cap * sizeof(*more));
        s->no_memory |= !more;
        if (!more) return false;
        s->stack = more;
        s->stack_cap = cap;
    }
    s->stack[s->n_stack++] = (split_branch){at, op};
    return true;
}

/* Whether an op may succeed here at all. */
static inline bool may(const split_search *s, int op, size_t at)
{
    const split_first *f = &s->regex->first[op];
    if (at == s->end) return f->end;
    uint32_t c = s->c[at], code = c & 0xFFFFFF;
    return code < 128 ? f->ascii[code >> 6] >> (code & 63) & 1 : f->kinds >> (c >> 24) & 1;
}

static inline bool in_set(const split_search *s, const split_op *op, size_t at)
{
    return at < s->end && split_in_set(s->regex, &s->regex->sets[op->set], s->c[at]);
}

/* Whether one of a look-around's alternatives is found here; nothing is before the piece. */
static bool looked(split_search *s, const split_op *op, size_t at, bool behind)
{
    bool found = true;
    for (size_t k = at;; op++) {
        s->steps++;
        if (op->kind == OP_SET && behind) {
            found = found && k > s->begin && in_set(s, op, --k);
        } else if (op->kind == OP_SET) {
            found = found && in_set(s, op, k++);
        } else if (op->kind == OP_LOOKED || found) {
            return found;
        } else {
            found = true;
            k = at;
        }
    }
}

/* Where a branch leads first, the other way on the stack; -1: nowhere. */
static inline int branch(split_search *s, const split_op *op, size_t at)
{
    if (!mark(s, op->memo, at)) return -1;
    bool first = may(s, op->next, at), other = may(s, op->other, at);
    if (!first) return other ? op->other : -1;
    return !other || push(s, op->other, at) ? op->next : -1;
}

/* The op behind this one, with *at moved on; -1: it fails here. */
static inline int step(split_search *s, const split_op *op, size_t *at)
{
    bool ok = false;
    switch ((split_op_kind)op->kind) {
    case OP_SET:
        ok = in_set(s, op, *at);
        *at += ok;
        break;
    case OP_BRANCH: return branch(s, op, *at);
    case OP_TRY:
        if (op->memo >= 0 && !mark(s, op->memo, *at)) return -1;
        if (!in_set(s, op, *at)) return op->other;
        (*at)++;
        while (op->memo < 0 && s->regex->ops + op->next == op && in_set(s, op, *at)) {
            (*at)++;
            s->steps++;
        }
        return op->next;
    case OP_LOOK: return looked(s, op + 1, *at, op->behind) != op->negated ? op->other : -1;
    case OP_START:
        ok = *at == s->begin || ((s->c[*at - 1] & 0xFFFFFF) == '\n' && *at < s->end);
        break;
    case OP_END: ok = *at == s->end || (s->c[*at] & 0xFFFFFF) == '\n'; break;
    case OP_JUMP: ok = true; break;
    case OP_OR:
    case OP_LOOKED:
    case OP_FOUND: break;
    }
    return ok ? op->next : -1;
}

/* The op to begin with at a place inside of the piece; -1: nothing is found there. */
static int entry(const split_search *s, size_t at)
{
    uint32_t code = s->c[at] & 0xFFFFFF;
    if (code < 128) return s->regex->entry[code];
    return may(s, 0, at) ? 0 : -1;
}

/* Whether the pattern is found at one place: its end. */
static bool found_at(split_search *s, int k, size_t at, size_t *end)
{
    const split_op *ops = s->regex->ops;
    s->n_stack = 0;
    for (;;) {
        s->steps++;
        if (ops[k].kind == OP_FOUND) {
            *end = at;
            return true;
        }
        k = step(s, &ops[k], &at);
        if (k >= 0) continue;
        if (s->n_stack == 0 || s->no_memory) return false;
        s->n_stack--;
        at = s->stack[s->n_stack].at;
        k = s->stack[s->n_stack].op;
    }
}

bool split_search_next(split_search *s, size_t from, size_t *start, size_t *end)
{
    for (size_t at = from; at < s->end && !s->no_memory; at++) {
        s->steps++;
        int k = entry(s, at);
        if (k >= 0 && found_at(s, k, at, end)) {
            *start = at;
            return true;
        }
    }
    return false;
}
