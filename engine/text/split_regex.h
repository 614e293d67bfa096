/* split_regex.h -- the regular expressions that cut texts in tokenizer.json.
 *
 * What Hugging Face's tokenizers finds with Oniguruma, for the part of its language that such files
 * use: classes of ranges, categories (\p{L}), scripts (\p{Han}) and \s \d \w; groups, (?i:...) of
 * ASCII letters; alternatives in order; ? * + {n,m}, lazy, or possessive over one character; ^ $;
 * look-ahead at a few characters.  All else is refused by name, as is a pattern that finds nothing
 * at all (x*).
 *
 * A search backtracks with a stack of its own and remembers where each branch failed, for all
 * searches of one text: no branch is tried twice at one place.  So the steps of a whole text are at
 * most proportional to its length, whatever it says; the factor is the pattern's size.
 *
 * Ownership: split_regex_destroy() ends what split_regex_compile() made.  Threads: a pattern is
 * never written again, and any may read it; a search belongs to one thread.
 */
#ifndef ENGINE_TEXT_SPLIT_REGEX_H
#define ENGINE_TEXT_SPLIT_REGEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/text/unicode/unicode.h"

enum {
    SPLIT_PATTERN_MAX = 8192, /* bytes of a pattern */
    SPLIT_NESTING_MAX = 16,
    SPLIT_COUNT_MAX = 64, /* of {n,m} */
    SPLIT_SETS_MAX = 512,
    SPLIT_RANGES_MAX = 4096,
    SPLIT_NODES_MAX = 2048,
    SPLIT_OPS_MAX = 2048,
    SPLIT_BRANCHES_MAX = 512
};

typedef struct split_regex split_regex;

/* ERR_UNSUPPORTED, ERR_LIMIT or ERR_INPUT say what of the pattern, and where. */
err_code split_regex_compile(split_regex **out, const char *pattern, err *e);
/* Finds a string as it is; it is not empty. */
err_code split_regex_literal(split_regex **out, const char *text, err *e);
/* Finds one character of a table, which outlives it. */
err_code split_regex_ranges(split_regex **out, const unicode_range *table, int n, err *e);
/* Finds runs of a table's characters, or of what is neither in it nor a space. */
err_code split_regex_words(split_regex **out, const unicode_range *table, int n, err *e);
void split_regex_destroy(split_regex *r);

/* A search's memory; all zero at first, and cleared by split_search_clear(). */
typedef struct split_search {
    const split_regex *regex;
    const uint32_t *c;    /* characters with their kinds (unicode_with_kind()) */
    size_t n, begin, end; /* the text's, and of the piece that is searched */
    uint64_t *failed;     /* [places][words]: branches that lead nowhere */
    size_t failed_cap;
    bool marking; /* they are in use */
    struct split_branch *stack;
    size_t n_stack, stack_cap;
    uint64_t steps;      /* all so far */
    uint64_t free_steps; /* marking begins behind these */
    bool no_memory;      /* a search that ran out of it found nothing */
} split_search;

/* Begins with a text of n characters and a pattern. */
void split_search_text(split_search *s, const split_regex *r, const uint32_t *c, size_t n);
/* The next piece of that text; pieces come in order. */
void split_search_piece(split_search *s, size_t begin, size_t end);
/* The first place at or behind `from` where the pattern is found; false: none. */
bool split_search_next(split_search *s, size_t from, size_t *start, size_t *end);
void split_search_clear(split_search *s);

#endif
