/* grammar_dfa.h -- what several expressions find in one text, as one deterministic automaton.
 *
 * So texts can be written in which all of some are found and none of others: two `pattern` of one
 * string, a name that matches one of two patternProperties, a string that a pattern does not match.
 * "Found" is JSON Schema's: somewhere in the text, anchors at its ends.
 *
 * Use: dfa_create(), dfa_pattern() and dfa_names() in any order, dfa_finish(), then the rest.
 * Owner: who creates it.  Threads: owner thread.
 */
#ifndef ENGINE_GRAMMAR_REGEX_GRAMMAR_DFA_H
#define ENGINE_GRAMMAR_REGEX_GRAMMAR_DFA_H

#include "engine/grammar/automaton/grammar_automaton.h"

enum { DFA_EXPRESSIONS_MAX = 64 };

typedef struct g_dfa g_dfa;

/* `plain`: of texts of printable ASCII only, which all dialects read alike; what an expression does
 * NOT find is known of these alone.  NULL: no memory. */
g_dfa *dfa_create(bool plain);
void dfa_destroy(g_dfa *d);

/* Each takes the next bit, from 0.  dfa_names(): the text is one of these, from end to end. */
err_code dfa_pattern(g_dfa *d, const char *pattern, size_t len, err *e);
err_code dfa_names(g_dfa *d, const char *const *names, int n, err *e);

/* ERR_LIMIT: they are too large together. */
err_code dfa_finish(g_dfa *d, err *e);

/* Which bits are found together in some text: out [most], every combination once.  Returns how many
 * there are, which may be more than `most`. */
int dfa_combinations(const g_dfa *d, uint64_t *out, int most);

/* The bits that are found in a text. */
uint64_t dfa_finds(const g_dfa *d, const char *text);

/* The texts of least to most characters (< 0: no bound) with exactly the bits of `found` among
 * those of `of`.  They count in the frame that `from` stands in.  ERR_INPUT: there is none. */
err_code gb_dfa(g_builder *b, int32_t from, const g_dfa *d, uint64_t found, uint64_t of,
                int64_t least, int64_t most, bool json, int32_t to, err *e);

#endif
