/* split_search.c -- runs the program of a Split pattern over a text: backtracking with memoisation,
 * in linear time.
 *
 * Untried alternatives are on a stack. To exclude exponential time, a branch is marked at a
 * position when it is taken there and never taken there again: no op returns to itself at the same
 * position, so if it is met a second time, everything behind it has failed.
 *
 * The marks stay valid for later starting points of the same text. Branches on the way to a match
 * did not fail, but no later search meets them: it starts at the end of the match, and the pattern
 * cannot match the empty string. Look-arounds leave no marks; they are lists of characters.
 *
 * Ordinary texts take a few steps per character, and marking would cost more than it saves. It
 * begins once a text has used FREE_STEPS steps for each of its characters.
 *
 * Memory: one bit per (position, branch) when marking, a stack of branches. Threads: a split_search
 * belongs to one thread.
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

/* Starts marking. */
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
    /* marks of this position belong to the end of the previous piece */
    size_t n = words_of(s->regex);
    if (s->marking && n) memset(s->failed + begin * n, 0, n * sizeof(*s->failed));
}

void split_search_clear(split_search *s)
{
    free(s->failed);
    free(s->stack);
    *s = (split_search){0};
}

/* Marks a branch at a position; false: it was marked. */
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

/* Whether an alternative of a look-around matches here; look-behind stops at the piece's beginning.
 */
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

/* The way that a branch takes first, the other one pushed; -1: neither can succeed. */
static inline int branch(split_search *s, const split_op *op, size_t at)
{
    if (!mark(s, op->memo, at)) return -1;
    bool first = may(s, op->next, at), other = may(s, op->other, at);
    if (!first) return other ? op->other : -1;
    return !other || push(s, op->other, at) ? op->next : -1;
}

/* Executes one op and advances *at; returns the next op, or -1 if it fails here. */
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

/* The op to begin with at a position; -1: no match can begin there. */
static int entry(const split_search *s, size_t at)
{
    uint32_t code = s->c[at] & 0xFFFFFF;
    if (code < 128) return s->regex->entry[code];
    return may(s, 0, at) ? 0 : -1;
}

/* Whether the pattern matches at one position; *end: the end of the match. */
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
