/* grammar_mask.h -- tokens that a state of an automaton allows; for
 * engine/grammar/grammar.c and its tests.
 *
 * Threads: a trie and a finished mask are immutable; a walk belongs to its thread.
 */
#ifndef ENGINE_GRAMMAR_AUTOMATON_GRAMMAR_MASK_H
#define ENGINE_GRAMMAR_AUTOMATON_GRAMMAR_MASK_H

#include "engine/grammar/automaton/grammar_automaton.h"
#include "engine/text/tokenizer.h"

enum { MASK_WORK_MAX = 30000000 }; /* configurations for one mask; a second or so */

typedef struct trie_node {
    uint8_t byte, depth;
    uint16_t n_tokens; /* that end here (several ids may have the same bytes) */
    uint8_t tall;      /* bytes that a token of the subtree has more, at most */
    int32_t skip;      /* first node behind the subtree */
    int32_t token;     /* place of the subtree's first token */
    uint64_t below;    /* groups of the bytes of the nodes below, a bit for each */
} trie_node;

/* The vocabulary without special and added tokens.  A token's place is its rank by bytes. */
typedef struct token_trie {
    trie_node *node;
    int n_nodes, n_tokens, n_vocab;
    int32_t *id;  /* [n_tokens] of a place */
    uint32_t *at; /* [n_tokens + 1] into bytes */
    uint8_t *bytes;
    int32_t *place;     /* [n_vocab] of an id; -1: never allowed */
    int32_t top[256];   /* node of a first byte; -1: none */
    uint8_t group[256]; /* of a byte, less than 64 */
} token_trie;

bool trie_build(token_trie *t, const tokenizer *tok, int n_vocab); /* false: no memory */
void trie_clear(token_trie *t);
/* The longest token that `s` [len] begins with, or -1; *n: its bytes. */
int32_t trie_longest(const token_trie *t, const uint8_t *s, int len, int *n);

/* The tokens that may follow in one state, whatever is below. */
typedef struct state_mask {
    int32_t *list; /* ids; or: */
    uint32_t *bits;
    int n_list;
    uint8_t *room; /* [n_vocab] what the counter must have left for it; NULL: nothing is counted */
    int max_room;
    int32_t *dep;      /* places of tokens that depend on what is below or on the counter */
    uint8_t *dep_same; /* bytes that each shares with the one before */
    int n_dep;
    int32_t *more; /* ids of tokens that are not in the trie (grammar_outside.h) */
    int n_more;
    int depth; /* it is right as long as the stack has room for so many frames more */
    size_t bytes;
} state_mask;

static inline size_t mask_words(int n_vocab)
{
    return ((size_t)n_vocab + 31) / 32;
}

/* NULL: no memory, or more work than `most` (configurations). */
state_mask *mask_build(const token_trie *t, const g_auto *a, int32_t state, g_walk *w,
                       uint64_t most);
void mask_free(state_mask *m);

/* Adds what `m`, the mask of f's state, allows for the configuration f behind `text` (NULL: nothing
 * hangs on it; grammar_unique.h says which others are in doubt).  `among`: bits of the only
 * dependent tokens that are still in question; NULL: all. */
void mask_add(const token_trie *t, const state_mask *m, const g_auto *a, const g_conf *f,
              const g_node *node, int n_node, g_walk *w, struct unique_text *text,
              const uint32_t *among, uint32_t *out);

/* The same for all n configurations at once, without masks of states: the slow and plain
 * way.  False: too much work. */
bool mask_direct(const token_trie *t, const g_auto *a, const g_conf *f, int n, const g_node *node,
                 int n_node, g_walk *w, struct unique_text *text, uint32_t *out);

#endif
