/* completion_text.h -- tokens of one choice become text that may be shown.
 *
 * Detokenises without splitting a UTF-8 sequence, and holds back what may be the beginning of a
 * stop string until it is known.  Text before a stop string is released, the stop string itself
 * only if the request asks for it, anything after it never.
 *
 * Ownership: the owner's struct, freed by _clear.  Threads: owner thread.
 */
#ifndef GATEWAY_OPENAI_COMPLETION_TEXT_H
#define GATEWAY_OPENAI_COMPLETION_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/text/tokenizer.h"
#include "gateway/openai/openai.h"

enum { COMPLETION_KEPT_MAX = 12 };

typedef struct completion_text {
    const openai_request *rules;
    detok detok;
    char *text; /* released text, then held text; valid UTF-8 throughout */
    size_t len, cap;
    size_t released;                   /* bytes of `text` that may be shown */
    size_t taken;                      /* bytes already shown */
    int32_t kept[COMPLETION_KEPT_MAX]; /* special tokens that are shown all the same */
    int n_kept;
    const char *stop_hit; /* the stop string that ended it, or NULL */
    bool failed;          /* out of memory */
} completion_text;

void completion_text_init(completion_text *ct, const openai_request *rules, const tokenizer *tok);
void completion_text_clear(completion_text *ct);

/* Shows a special token's text all the same; -1 is none, nor is what comes behind the twelfth. */
void completion_text_keep(completion_text *ct, int32_t token);

/* Adds a token's text.  True when a stop string is complete: nothing more is wanted. */
bool completion_text_push(completion_text *ct, int32_t token);

/* The end: what was held back is released (and an unfinished UTF-8 sequence becomes U+FFFD). */
void completion_text_finish(completion_text *ct);

/* Text released since the last call; borrowed until the next push. */
const char *completion_text_take(completion_text *ct, size_t *len);

#endif
