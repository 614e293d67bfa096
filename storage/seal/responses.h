/* responses.h -- what tenants have stored of their answers, and of the conversations these are of.
 *
 * A row is a response or a conversation: two JSON documents, its body and its input.  Every call
 * names the tenant: another's row is not found.  Documents are encrypted (AES-256-GCM, a key of the
 * operator's) where there is one; each is bound to its row and column.
 *
 * What was deleted or has expired is in no file once responses_delete() or responses_expire() has
 * returned (store_scrub()).
 *
 * Ownership: documents handed out are malloced.  Threads: any thread.
 */
#ifndef STORAGE_SEAL_RESPONSES_H
#define STORAGE_SEAL_RESPONSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/seal/seal.h"
#include "storage/store.h"

enum { RESPONSES_ID_MAX = 63 };

typedef struct response_row {
    uint64_t tenant_id;
    char id[RESPONSES_ID_MAX + 1];
    char previous[RESPONSES_ID_MAX + 1];     /* the response before it; "": none */
    char conversation[RESPONSES_ID_MAX + 1]; /* "": of none; a conversation's own row: its id */
    bool running;                            /* in the background: its end is still to come */
    int64_t created_us, expires_us;          /* wall; expires_us 0: never */
    char *body, *input;                      /* JSON */
} response_row;

/* What the rows of one tenant may be together; 0: no limit. */
typedef struct response_quota {
    int64_t bytes, rows;
} response_quota;

/* Inserts or replaces.  ERR_LIMIT: with this row the tenant's would be more than `q` allows; NULL:
 * no limit. */
err_code responses_put(store *st, seal_key key, const response_row *r, const response_quota *q,
                       err *e);

/* ERR_NOT_FOUND: the tenant has no such row, or it has expired; ERR_DENIED: another key than the
 * one that is given has encrypted it. */
err_code responses_get(store *st, seal_key key, uint64_t tenant_id, const char *id,
                       response_row *out, err *e);
/* The rows of a conversation but its own, oldest first; ERR_LIMIT: more than `most`. */
err_code responses_list(store *st, seal_key key, uint64_t tenant_id, const char *conversation,
                        size_t most, response_row **out, size_t *n, err *e);
void response_row_clear(response_row *r);

/* The events of its stream, as they were sent; "" marks a row as one that has some.  Nothing where
 * the row is gone. */
err_code responses_put_events(store *st, seal_key key, uint64_t tenant_id, const char *id,
                              const char *events, err *e);
/* *events: malloced; NULL: the row is not one that has some.  ERR_NOT_FOUND, ERR_DENIED. */
err_code responses_get_events(store *st, seal_key key, uint64_t tenant_id, const char *id,
                              char **events, err *e);

/* Of a conversation's row: those of its responses as well. */
err_code responses_delete(store *st, uint64_t tenant_id, const char *id, err *e);
/* Rows whose time is over at `wall_us`, at most `limit`; *n: how many. */
err_code responses_expire(store *st, int64_t wall_us, int64_t limit, int64_t *n, err *e);

#endif
