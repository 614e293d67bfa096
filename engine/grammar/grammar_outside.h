/* grammar_outside.h -- the tokens that are not in the trie: special ones, added ones, long ones.
 *
 * Forms have none of them.  Free text has all; and the marks around forms are some of them, in most
 * models.
 *
 * Ownership: the maker's; texts are the tokenizer's.  Threads: never written again.
 */
#ifndef ENGINE_GRAMMAR_GRAMMAR_OUTSIDE_H
#define ENGINE_GRAMMAR_GRAMMAR_OUTSIDE_H

#include "engine/grammar/automaton/grammar_mask.h"

typedef struct outside_token {
    const char *s;
    size_t len;
    int32_t id;
    bool special; /* texts do not show it, if no mark is made of it */
} outside_token;

typedef struct outside {
    outside_token *list; /* by id */
    int n;
} outside;

bool outside_build(outside *o, const token_trie *t, const tokenizer *tok); /* false: no memory */
void outside_clear(outside *o);

/* For each of them whether these tags' texts show it: malloced; NULL: no memory. */
bool *outside_shown(const outside *o, const cJSON *tags);

/* Adds to a state's mask which of them may come there: `root` is that of free text. */
bool outside_add(const outside *o, const bool *shown, const g_auto *a, int32_t state, g_walk *w,
                 state_mask *m);

/* The sets behind a token from set 0 on; false: it is none of these, or leads nowhere. */
bool outside_walk(const outside *o, const bool *shown, int32_t token, g_walk *w, int *depth);

/* The longest that is shown and that `s` [len] begins with, or -1; *n: its bytes. */
int32_t outside_longest(const outside *o, const bool *shown, const uint8_t *s, int len, int *n);

#endif
