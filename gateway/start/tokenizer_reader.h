/* tokenizer_reader.h -- reads a model's tokenizer on a thread of its own, while its weights are
 * packed: a vocabulary of 262,144 words takes about as long as 250 MB of weights.
 *
 * Threads: begin and end on one thread; what is read belongs to the caller after the end.
 */
#ifndef GATEWAY_START_TOKENIZER_READER_H
#define GATEWAY_START_TOKENIZER_READER_H

#include <pthread.h>
#include <stdbool.h>

#include "engine/text/tokenizer.h"

typedef struct tokenizer_reader {
    const char *path; /* lives until the end */
    tokenizer *tok;
    err_code rc;
    err e;
    bool apart; /* a thread reads; else the end does */
    pthread_t thread;
} tokenizer_reader;

void tokenizer_reader_begin(tokenizer_reader *r, const char *path);
/* Waits.  *out is NULL on failure. */
err_code tokenizer_reader_end(tokenizer_reader *r, tokenizer **out, err *e);

#endif
