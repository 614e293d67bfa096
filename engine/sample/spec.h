/* spec.h -- guesses at the tokens to come.
 *
 * Prompt lookup (Saxena 2023; the longest match, as in LZ77): where the last tokens stood before,
 * what came then may come again.  A guess is no more than that: the model computes a row for each,
 * every row is sampled by the request's own rules, and what was not guessed right is dropped
 * (engine/sched/sched_spec.c).  How often guesses were right is counted at each token of the text,
 * also where no row was spent on one, so that what does not pay is not tried to be learnt.
 *
 * Pure state: no clock, no requests.  Ownership: the caller's.
 * Threads:   one at a time for one text.
 */
#ifndef ENGINE_SAMPLE_SPEC_H
#define ENGINE_SAMPLE_SPEC_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SPEC_MAX = 16,       /* draft tokens of a sequence in one step */
    SPEC_CONTEXT = 16,   /* longest match: tokens of context that are compared */
    SPEC_WINDOW = 16384, /* last tokens of the text that are searched */
};

/* What a guess rests on: so many tokens of equal context, what the form of the answer leaves, or
 * what another model says. */
typedef enum {
    SPEC_1,
    SPEC_2,
    SPEC_3,
    SPEC_4,
    SPEC_8,
    SPEC_16,
    SPEC_FORM,
    SPEC_DRAFT,
    SPEC_KINDS
} spec_kind;

/* The same for those who count guesses. */
typedef enum { GUESS_LOOKUP, GUESS_FORM, GUESS_DRAFT, GUESS_SOURCES } guess_source;

/* How often a guess of each kind was right, of late. */
typedef struct spec_rates {
    double hit[SPEC_KINDS];
} spec_rates;

/* Before anything was seen. */
void spec_rates_init(spec_rates *r);

typedef struct spec_guess {
    guess_source source;
    int n;
    int32_t token[SPEC_MAX];
    double chance[SPEC_MAX]; /* that it is right, if those before it are */
} spec_guess;

typedef struct spec_text spec_text;

/* For texts of up to `positions` tokens; 12 bytes for each, of at most SPEC_WINDOW.  NULL: no
 * memory. */
spec_text *spec_text_create(int positions);
void spec_text_destroy(spec_text *t);

/* A new text, whose first token will be number `first` of it (what comes before is not looked at);
 * it begins with the rates of others. */
void spec_text_begin(spec_text *t, int first, const spec_rates *rates);
/* Tokens so far, those before the first included. */
int spec_text_n(const spec_text *t);

/* The next token of the text.  `all`: the guess for it counts, in the text's own rates and, a
 * little, in these; NULL: it counts nowhere (a prompt says little of its answer). */
void spec_text_add(spec_text *t, int32_t token, spec_rates *all);

/* What may come behind the text, at most `most` tokens; n is 0 where nothing is like it. */
void spec_text_guess(const spec_text *t, int most, spec_guess *out);

/* That the next token is as the form of the answer says, where it leaves one text, as far as is
 * known. */
double spec_text_form_chance(const spec_text *t);
/* It says this one (-1: it says nothing): the next spec_text_add() sees whether it was right. */
void spec_text_form(spec_text *t, int32_t token);

/* That the next token is the one that the draft model proposes, as far as is known. */
double spec_text_draft_chance(const spec_text *t);
/* What it has proposed behind the text: each spec_text_add() sees whether it was right, up to the
 * first that was not.  Fills in the chances of `g`. */
void spec_text_draft(spec_text *t, spec_guess *g);

#endif
