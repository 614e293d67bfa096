/* fetch.h -- one file from another server over HTTPS.
 *
 * Redirects are followed by hand, at most five: each must be https://, and gets no credentials
 * once it leads to another host or port.  Every connection's address is checked as it is
 * made (source_may_reach()), so a name that means another address at the second look gains
 * nothing.  No proxy of the environment is used.  What the other side says beside the file is not
 * passed on.
 *
 * Threads: any; a call blocks until the file is there.
 */
#ifndef GATEWAY_FETCH_FETCH_H
#define GATEWAY_FETCH_FETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gateway/fetch/sigv4.h"
#include "gateway/fetch/source.h"

/* Who receives, and says how much is too much.  Both fill `e` where they return a failure, which
 * ends the call with it.  bytes: -1 where the other server does not tell. */
typedef struct fetch_sink {
    err_code (*begin)(void *arg, int64_t bytes, err *e);
    err_code (*take)(void *arg, const void *data, size_t len, err *e);
    void *arg;
} fetch_sink;

/* A tenant's own; NULLs: none. */
typedef struct fetch_secret {
    const char *bearer;
    const char *username, *password; /* in place of it, by HTTP's Basic scheme */
    sigv4_key s3;                    /* for s3:// ; .id NULL: none */
} fetch_secret;

/* What a failure may be told to others as. */
typedef enum {
    FETCH_OK,
    FETCH_REFUSED, /* by our own rules: an address, a redirect */
    FETCH_MISSING, /* 404, or 403 from S3 */
    FETCH_ANSWER,  /* another answer, which will not change by itself */
    FETCH_AWAY,    /* no answer, one that ended early, 429, 5xx: later perhaps */
    FETCH_SINK,    /* the receiver's own failure: `e` is its */
} fetch_end;

enum { FETCH_HEADER_MAX = 16384, FETCH_CHALLENGE_MAX = 2048 };

/* A call's own, for fetch_ask(). */
typedef struct fetch_call {
    const char *url;
    const char *accept;        /* NULL: anything */
    const char *authorization; /* NULL: none; for the host of the source alone */
    const sigv4_key *s3;       /* NULL: not signed */
    char
        *challenge; /* [FETCH_CHALLENGE_MAX] of the host's 401: what it asks for; NULL: not asked */
    /* The first byte that is wanted; NULL: 0.  begin() finds 0 there if the server sends the whole
     * file all the same, and gets the whole size in either case. */
    int64_t *from;
    long *status; /* of the last answer, 0: none; NULL: not wanted */
    /* Asked about once a second, also while nothing comes; a failure ends the call with FETCH_SINK.
     * NULL: nobody asks. */
    err_code (*still)(void *arg, err *e);
    void *still_arg;
} fetch_call;

/* The value of Authorization by a secret that is not S3's; "": it has none.  False: too long. */
bool fetch_authorization(const fetch_secret *secret, char out[FETCH_HEADER_MAX]);

fetch_end fetch_ask(const source *s, const fetch_call *call, const source_rules *r,
                    const fetch_sink *sink, err *e);

/* Fetches `url` (of source `s`).  `e` says what happened. */
fetch_end fetch_file(const source *s, const char *url, const source_rules *r,
                     const fetch_secret *secret, const fetch_sink *sink, err *e);

#endif
