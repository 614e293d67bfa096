/* normal.h -- the normaliser of tokenizer.json: steps that change a text before it is cut.
 *
 * Each step is one of Hugging Face's.  A text may be of two hands: what a step makes of a
 * stranger's character is the stranger's.  All steps cost time in proportion to the text.
 *
 * Ownership: normaliser_clear() ends what the steps hold; a tok_normal's texts are malloced.
 * Threads: a normaliser is only read once it is loaded.
 */
#ifndef ENGINE_TEXT_NORMAL_H
#define ENGINE_TEXT_NORMAL_H

#include "engine/base/json.h"
#include "engine/text/charsmap.h"
#include "engine/text/split_regex.h"

enum { NORMAL_STEPS_MAX = 16, NORMAL_TEXT_MAX = 256 /* bytes of what is put in */ };

typedef enum {
    NORMAL_FORM, /* form */
    NORMAL_LOWER,
    NORMAL_ACCENTS, /* these go; BERT_ACCENTS: of a decomposed text, by another table */
    NORMAL_STRIP,   /* spaces at the ends: left, right */
    NORMAL_PREPEND, /* to */
    NORMAL_REPLACE, /* from or regex by to */
    NORMAL_NMT,
    NORMAL_CHARSMAP,
    NORMAL_BERT_CLEAN,
    NORMAL_BERT_CHINESE,
    NORMAL_BERT_ACCENTS
} normal_kind;

typedef struct normal_step {
    normal_kind kind;
    unicode_form form;
    bool left, right;
    char *from, *to; /* malloced */
    split_regex *regex;
    charsmap *map;
} normal_step;

typedef struct normaliser {
    normal_step step[NORMAL_STEPS_MAX];
    int n;
} normaliser;

/* Text behind the normaliser, whose bytes at [i] come from a stranger where taint[i] is not 0. */
typedef struct tok_normal {
    char *s; /* malloced, NUL-ended */
    size_t len;
    unsigned char *taint; /* malloced; NULL: none was asked for */
    bool beheaded;        /* what the text began with is gone */
} tok_normal;

/* tokenizer.json's "normalizer"; none is no steps.  ERR_UNSUPPORTED, ERR_LIMIT and ERR_CORRUPT name
 * what is wrong; clear it in any case. */
err_code normaliser_read(normaliser *n, const cJSON *v, err *e);
void normaliser_clear(normaliser *n);

/* All steps over a text.  False: no memory. */
bool normaliser_run(const normaliser *n, const char *s, size_t len, const unsigned char *taint,
                    tok_normal *out);
void tok_normal_clear(tok_normal *t);

#endif
