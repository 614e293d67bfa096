/* beam.h -- beam search: which continuations of a prompt are kept, and when the search ends.
 *
 * The algorithm is that of transformers' generate(num_beams).  Each step ranks all continuations of
 * the live beams by their summed log-probability.  Those of the best `width` that end (a stop
 * token, or max_tokens) become answers, whose score is sum / tokens^length_penalty; the best
 * `width` of the others live on.  One beam is greedy: its first answer ends it.  Equal sums rank by
 * their beam, then by their token.
 *
 * Knows nothing of pages, grammars or the batch, so a result depends on the log-probabilities
 * alone.  The answers' tokens are read back along the chain of parents.
 *
 * Ownership: the caller's.  Threads: one at a time.
 */
#ifndef ENGINE_SAMPLE_BEAM_H
#define ENGINE_SAMPLE_BEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sample/sampler.h"

enum { BEAMS_MAX = 16 };

/* early_stopping: the search ends when no live beam can be better than the worst answer, assuming
 * that it ends at its present length; when there are `width` answers; when no live beam can be
 * better at any length. */
typedef enum { BEAM_ENDS_LIKELY, BEAM_ENDS_FULL, BEAM_ENDS_NEVER } beam_ending;

typedef struct beam_rules {
    int width;      /* 1 to BEAMS_MAX */
    int max_tokens; /* of an answer, at least 1 */
    float length_penalty;
    beam_ending ending;
    int n_top; /* alternatives kept of each token; -1: no log-probabilities are kept */
} beam_rules;

typedef struct beam_search beam_search;

/* One live beam without tokens.  NULL: no memory. */
beam_search *beam_create(const beam_rules *rules);

/* NULL is allowed. */
void beam_destroy(beam_search *b);

/* The rules' own. */
int beam_width(const beam_search *b);
/* Live beams, and the tokens that each of them has. */
int beam_live(const beam_search *b);

/* The same for all live beams: they grow together. */
int beam_length(const beam_search *b);
/* Tokens [beam_length()] of a live beam; valid until the next beam_step(). */
const int32_t *beam_text(const beam_search *b, int beam);

/* Alternatives that beam_step() needs of each row; more than SAMPLE_TOP_MAX: the width is not
 * possible with so many stop tokens. */
int beam_tops(int width, int n_stop);

/* One more token: row[i] has the best beam_tops() tokens of live beam i with their
 * log-probabilities; fewer where no others are allowed.  parent[i] [BEAMS_MAX]: the beam before the
 * step that live beam i continues. */
void beam_step(beam_search *b, const sampled *const *row, const int32_t *stop, int n_stop,
               int *parent);
/* Live beams i with ended[i] are complete answers: their structured output is.  The others keep
 * their order; `parent` is adjusted. */
void beam_end(beam_search *b, const bool *ended, int *parent);
/* Nothing can change the answers any more. */
bool beam_over(const beam_search *b);

/* Answers so far, the best first; at most `width`. */
int beam_answers(const beam_search *b);
/* Tokens of answer k, and whether max_tokens ended it. */
int beam_answer_length(const beam_search *b, int k);

/* True: finish_reason "length". */
bool beam_answer_cut(const beam_search *b, int k);
/* Its tokens into out [beam_answer_length()]; `trail` [beam_answer_length()] is scratch. */
void beam_answer(const beam_search *b, int k, sampled *out, int *trail);

#endif
