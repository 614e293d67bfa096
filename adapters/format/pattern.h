/* pattern.h -- regular expressions written by strangers, matched in bounded time.
 *
 * The part of Python's `re` that people use in PEFT configs: literals, `.`, classes, \d \w \s and
 * their opposites, groups (plain, named, non-capturing), `|`, `* + ? {m,n}` (greedy or lazy, which
 * is the same for a yes or no), `^ $ \b \B`, look-ahead `(?=...)` and `(?!...)`.  Look-behind,
 * back-references, flags and possessive repeats are refused by name.  Matching simulates all
 * alternatives at once, so the time is at most a small multiple of the product of the lengths of
 * pattern and text: no pattern can blow it up.
 *
 * Ownership: pattern_destroy().  Threads: any; a pattern is read-only but for its own scratch,
 * so one pattern belongs to one thread.
 */
#ifndef ADAPTERS_FORMAT_PATTERN_H
#define ADAPTERS_FORMAT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

typedef struct pattern pattern;

/* ERR_INPUT when it is no regular expression, ERR_UNSUPPORTED for what is named above, ERR_LIMIT
 * when it is too long. */
err_code pattern_create(pattern **out, const char *text, err *e);
void pattern_destroy(pattern *p);

/* Instructions it takes: its share of memory and of the time of a match. */
int pattern_size(const pattern *p);

/* Does the whole text match (re.fullmatch)?  *work (may be NULL) grows by the steps taken.  A
 * pattern with look-ahead matches no text of more than PATTERN_AHEAD_MAX bytes. */
enum { PATTERN_AHEAD_MAX = 1024 };
bool pattern_matches(pattern *p, const char *text, uint64_t *work);

#endif
