/* multipart.h -- a body of multipart/form-data (RFC 7578), whatever the pieces in which it comes.
 *
 * Parts are handed on as they arrive: nothing but a part's head, which is bounded, is kept.
 *
 * Ownership: the caller's struct.  Threads: any thread, one at a time.
 */
#ifndef GATEWAY_HTTP_MULTIPART_H
#define GATEWAY_HTTP_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

enum {
    MULTIPART_BOUNDARY_MAX = 70, /* RFC 2046 */
    MULTIPART_HEAD_MAX = 4096,   /* bytes of one part's head */
    MULTIPART_NAME_MAX = 255,    /* bytes of a field's name, of a file's */
    MULTIPART_PARTS_MAX = 64,
};

/* Each returns ERR_NONE to go on. */
typedef struct multipart_sink {
    /* file: NULL for a field without a file's name; both are UTF-8 without control characters. */
    err_code (*begin)(void *arg, const char *name, const char *file, err *e);
    err_code (*data)(void *arg, const void *data, size_t len, err *e);
    err_code (*end)(void *arg, err *e);
    void *arg;
} multipart_sink;

typedef struct multipart { /* private */
    multipart_sink sink;
    char mark[MULTIPART_BOUNDARY_MAX + 5]; /* CR LF "--" and the boundary */
    size_t n_mark, matched;
    int state, n_parts;
    char head[MULTIPART_HEAD_MAX + 1];
    size_t n_head;
} multipart;

/* ERR_INPUT: the Content-Type (may be NULL) is not multipart/form-data, or its boundary is bad. */
err_code multipart_begin(multipart *m, const char *content_type, const multipart_sink *sink,
                         err *e);
/* More of the body.  ERR_INPUT: it is not what it says; else what the sink has returned. */
err_code multipart_feed(multipart *m, const void *data, size_t len, err *e);
/* The body is over.  ERR_INPUT: its last boundary has not come. */
err_code multipart_finish(const multipart *m, err *e);

#endif
