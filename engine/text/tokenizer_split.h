/* tokenizer_split.h -- pre-tokenisers of byte-level vocabularies: where a text is cut before
 * merging.
 *
 * A list of steps, as in tokenizer.json: each cuts the pieces of the one before.  What a step finds
 * is one regular expression's (split_regex.h).
 *
 * Ownership: splitter_clear() ends the patterns of the steps that were added.  Threads: a splitter
 * is only read once it is loaded; a text belongs to one thread.
 */
#ifndef ENGINE_TEXT_TOKENIZER_SPLIT_H
#define ENGINE_TEXT_TOKENIZER_SPLIT_H

#include "engine/text/split_regex.h"

enum { SPLIT_STEPS_MAX = 16 };

/* What becomes of what was found, and of what lies between. */
typedef enum {
    SPLIT_ISOLATED,      /* each is a piece */
    SPLIT_REMOVED,       /* what was found goes */
    SPLIT_WITH_PREVIOUS, /* a match ends the piece before it */
    SPLIT_WITH_NEXT,     /* a match begins the piece after it */
    SPLIT_CONTIGUOUS     /* adjacent matches are one piece */
} split_behavior;

typedef struct split_step {
    split_regex *regex; /* NULL: puts a space in front of each piece that has none */
    split_behavior behavior;
    bool invert; /* what is between counts as found */
} split_step;

typedef struct splitter {
    split_step steps[SPLIT_STEPS_MAX];
    int n;
} splitter;

/* False: there are SPLIT_STEPS_MAX; then the regex is still the caller's. */
bool splitter_add(splitter *s, split_step step);
void splitter_clear(splitter *s);

/* A text on its way through the steps. */
typedef struct split_text {
    uint32_t *c; /* malloced, [n], with kinds (unicode_with_kind()) */
    size_t n;
    unsigned char *marks; /* malloced, [n + 1]; bits SPLIT_BEGINS, SPLIT_GONE */
    uint64_t steps;       /* of searches */
} split_text;

enum { SPLIT_BEGINS = 1, SPLIT_GONE = 2 /* the piece that begins here */ };

/* Takes a text of UTF-8 with all steps; false: no memory, clear it all the same. */
bool splitter_run(const splitter *s, const char *text, size_t len, split_text *out);
/* The end of the piece that begins at `from`. */
size_t split_text_piece(const split_text *t, size_t from);
void split_text_clear(split_text *t);

#endif
