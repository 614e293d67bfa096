/* inner.h -- a request that comes from within: an exchange without a connection.
 *
 * Its body is a tree that the caller has, its answer goes into memory.  The handlers do not know
 * the difference: to them its client sends application/json, no other header, and stays until the
 * end.  It may ask for a stream only where there is somebody to hear it.
 *
 * Ownership: the caller's struct, which outlives the exchange; the answer is freed with
 *            inner_end().  Threads: one thread, which is the exchange's worker.
 */
#ifndef GATEWAY_HTTP_INNER_H
#define GATEWAY_HTTP_INNER_H

#include <stddef.h>
#include <stdint.h>

#include "gateway/http/exchange.h"

typedef struct inner_request {
    const char *method, *path;
    const cJSON *body;          /* borrowed */
    uint64_t id;                /* of the request, and of its first choice's usage */
    int most_choices;           /* ids from `id` on that are its own */
    int slo_class;              /* in which it runs, whatever its body says */
    struct caller *who;         /* for whom */
    const char *tenant, *batch; /* for the log's line: whose it is, of what it is a part (NULL) */
    const struct config *conf;  /* the options by which it is answered */
    /* Hears an answer that is streamed, piece by piece; false: no more.  NULL: nobody does. */
    bool (*hear)(void *listener, const char *s, size_t len);
    void *listener;

    /* ---- the answer, from the handler's end to inner_end() ---- */
    int status;        /* 499: none was made, for want of time or memory */
    char *answer;      /* JSON; NULL: none, or it was streamed */
    size_t answer_len; /* bytes */
    int64_t retry_ms;  /* when it may be tried again; -1: the answer does not say */
} inner_request;

/* Has `handler` answer it, as a worker of the inference plane would. */
void inner_run(struct http_host *host, inner_request *r, void (*handler)(exchange *x));
void inner_end(inner_request *r);

/* For exchange.c: takes the whole answer.  False: no memory. */
bool inner_take(inner_request *r, int status, const char *body, size_t len);

#endif
