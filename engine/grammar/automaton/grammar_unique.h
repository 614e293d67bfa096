/* grammar_unique.h -- arrays whose items differ: what a text has said so far.
 *
 * An automaton cannot remember items, so an edge asks (STEP_NEW): does the item that has just ended
 * differ from the earlier ones of its array?  That hangs on the text alone.  A run whose automaton
 * has such edges keeps the text of what is open, and the hashes of its items.  Members' names are
 * items, too, where an object must have several.
 *
 * Threads: one at a time, as the run's.
 */
#ifndef ENGINE_GRAMMAR_AUTOMATON_GRAMMAR_UNIQUE_H
#define ENGINE_GRAMMAR_AUTOMATON_GRAMMAR_UNIQUE_H

#include "engine/grammar/automaton/grammar_mask.h"

typedef struct unique_text unique_text;

unique_text *unique_create(void); /* NULL: no memory */
void unique_destroy(unique_text *u);
/* False: no memory; `to` is to be destroyed then. */
bool unique_copy(unique_text *to, const unique_text *from);

/* Bytes of the answer that have been taken; a walk goes on from there. */
int32_t unique_at(const unique_text *u);
/* A walk's byte at place `at`, which the next one may overwrite. */
void unique_put(unique_text *u, int32_t at, uint8_t byte);
/* Whether the item that ends before `end` differs from the earlier ones of the array that began
 * before `from`. */
bool unique_is_new(unique_text *u, int32_t from, int32_t end);

/* Equal values in JSON have equal hashes.  The text is a value, or the beginning of one. */
uint64_t unique_hash(const uint8_t *text, size_t len);

/* What was put up to `end` is taken; `conf` [n] and `node` say what is open.  False: no memory. */
bool unique_take(unique_text *u, int32_t end, const g_conf *conf, int n, const g_node *node);
bool unique_is_open(const unique_text *u);
/* The next mask may be another one though the automaton stands as it stood. */
bool unique_hangs(const unique_text *u);

/* Whether set `depth` of a walk can still end: not only in what has been said before. */
bool unique_can_end(g_walk *w, int depth);

/* Calls `look` for the tokens that go along an earlier item, or on to the next one: others are not
 * in doubt. */
void unique_doubtful(unique_text *u, const token_trie *t, void (*look)(void *arg, int32_t token),
                     void *arg);

#endif
