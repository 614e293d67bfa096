/* document.h -- receives a small document of another server into memory.
 *
 * Ownership: the caller drops it, also after a failure.  Threads: one at a time.
 */
#ifndef GATEWAY_FETCH_DOCUMENT_H
#define GATEWAY_FETCH_DOCUMENT_H

#include "gateway/fetch/fetch.h"

typedef struct fetch_document {
    char *bytes; /* NULL: nothing has come */
    size_t n, most;
} fetch_document;

/* Refuses more than d->most bytes with ERR_LIMIT. */
fetch_sink fetch_document_sink(fetch_document *d);

/* Wipes and frees the bytes. */
void fetch_document_drop(fetch_document *d);

#endif
