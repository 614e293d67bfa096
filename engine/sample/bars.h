/* bars.h -- tokens that must not come, however likely they are.
 *
 * Three wishes, one mechanism, the mask of sampler_pick(): only these tokens
 * (allowed_token_ids), never these (suppress_tokens), never this sequence (bad_words): where the
 * text ends with all of a sequence but its last token, that last one is barred.  Together with a
 * grammar what both allow is left.
 *
 * Ownership: the maker's; immutable once it is made, so all choices of a request share it.
 * Threads:   any.
 */
#ifndef ENGINE_SAMPLE_BARS_H
#define ENGINE_SAMPLE_BARS_H

#include <stdbool.h>
#include <stdint.h>

enum { BARS_SEQUENCE_MAX = 64 }; /* tokens; what is longer bars nothing */

typedef struct bars bars;

/* For ids below n_vocab.  `only` [n_only]: what may come, NULL: anything; ids outside of the
 * vocabulary are passed over.  NULL: no memory. */
bars *bars_create(int n_vocab, const int32_t *only, int n_only);
void bars_destroy(bars *b);

/* Never these one behind the other.  `in_prompt`: they may begin in the prompt (as transformers'
 * bad_words_ids), else all of them are the answer's.  Ids outside of the vocabulary: it never comes
 * anyway.  False: no memory. */
bool bars_forbid(bars *b, const int32_t *ids, int n, bool in_prompt);

/* Whether the mask hangs on the text so far. */
bool bars_read_text(const bars *b);
/* Words that bars_mask() may write. */
int bars_words(const bars *b);

typedef struct bars_text {
    const int32_t *prompt, *output;
    int n_prompt, n_output;
} bars_text;

/* The bits of the tokens that may come behind the text; with `form` [(n_form + 31) / 32] only those
 * that it has set, too, all below n_form.  The result is `room` [bars_words()], or lies in `b`.
 * NULL: there is no such token. */
const uint32_t *bars_mask(const bars *b, const uint32_t *form, int n_form, const bars_text *t,
                          uint32_t *room);

#endif
