/* fuzz_walk.h -- does an automaton of the grammar's take a text?  For harnesses and differ.c. */
#ifndef TESTS_FUZZ_FUZZ_WALK_H
#define TESTS_FUZZ_FUZZ_WALK_H

#include <string.h>

#include "engine/grammar/automaton/grammar_automaton.h"

enum { FUZZ_WALK_MAX = GRAMMAR_TOKEN_MAX - 1 }; /* bytes that a walk goes */

/* The whole text, or its first FUZZ_WALK_MAX bytes as the beginning of one.  `w`: scratch. */
static inline bool fuzz_walk_takes(g_walk *w, const g_auto *a, const char *s)
{
    int i = 0;
    walk_begin(w, a, NULL, 0);
    walk_add(w, (g_conf){a->rule[a->root].start, 0, BOUNDS_NONE, NODE_ROOT, 0});
    for (; s[i] && i < FUZZ_WALK_MAX; i++) {
        if (!walk_byte(w, i, (uint8_t)s[i])) return false;
    }
    if (s[i]) return true;
    for (int k = w->conf_at[i]; k < w->n_conf; k++) {
        if (a->is_end[w->conf[k].state] && w->conf[k].node == NODE_ROOT) return true;
    }
    return false;
}

static inline err_code fuzz_walk_regex(g_auto *out, const char *text, bool json, err *e)
{
    g_builder b;
    gb_init(&b);
    int32_t root = gb_rule(&b);
    if (b.failed) return err_set(e, ERR_NOMEM, "no memory");
    err_code rc = gb_regex(&b, b.rule[root].start, text, strlen(text), json, b.rule[root].end, e);
    if (rc) {
        gb_clear(&b);
        return rc;
    }
    return gb_finish(&b, root, 0, out, e);
}

#endif
