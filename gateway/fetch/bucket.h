/* bucket.h -- a bucket of an S3 API as the object store of adapters (adapters/store/remote.h).
 *
 * The operator's own, so any address may be reached, by http:// too; buckets by path.  Each call is
 * a connection of its own, signed with the keys of that moment, and tried four times within about
 * two seconds where the other side is away (no answer, 429, 5xx).  An object that is stored is
 * signed with its own SHA-256.  Objects of more than 5 GiB are refused: they would need parts.
 *
 * Ownership: bucket_open() copies; who opens closes.  Threads: any, but open and close.
 */
#ifndef GATEWAY_FETCH_BUCKET_H
#define GATEWAY_FETCH_BUCKET_H

#include "adapters/store/remote.h"

typedef struct bucket bucket;

typedef struct bucket_keys {
    char id[129], secret[241], session[2001]; /* session: empty where there is none */
} bucket_keys;

typedef struct bucket_config {
    const char *url;      /* s3://bucket/prefix */
    const char *endpoint; /* https://host[:port][/path], or http:// */
    const char *region, *ca_file;
    int64_t timeout_us; /* for a whole object */
    /* The keys as they are now: before each call, on its thread. */
    err_code (*keys)(void *arg, bucket_keys *out, err *e);
    void *arg;
} bucket_config;

/* ERR_INPUT: what is wrong with an address.  For the configuration. */
err_code bucket_check_url(const char *url, err *e);
err_code bucket_check_endpoint(const char *endpoint, err *e);

/* No connection is made yet. */
err_code bucket_open(bucket **out, const bucket_config *c, err *e);
/* No call may be under way.  NULL is fine. */
void bucket_close(bucket *b);

/* Its calls; valid until bucket_close(). */
remote bucket_remote(bucket *b);

#endif
