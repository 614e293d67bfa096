/* lease.c -- an exchange as text, and back. */
#include "storage/fleet/lease.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/fleet/fleet.h"

enum { ASK_BYTES = 2048 }; /* more than the JSON of one ask: 34 numbers, of 20 digits at most */

/* An array of lorad_ask (migrations.c) as JSON, malloced. */
static char *text_of(const lease_ask *asks, int n)
{
    char *text = malloc((size_t)n * ASK_BYTES + 3), *p = text;
    if (!text) return NULL;
    *p++ = '[';
    for (const lease_ask *a = asks; a < asks + n; a++) {
        assert(a == asks || a[-1].kind < a->kind || (a[-1].kind == a->kind && a[-1].id < a->id));
        p += sprintf(p, "%s{\"kind\":%d,\"id\":%lld,\"day\":%lld,\"month\":%lld,\"limits\":",
                     a == asks ? "" : ",", a->kind, (long long)a->id, (long long)a->day,
                     (long long)a->month);
        for (int r = 0; r < LEASE_THINGS; r++)
            p += sprintf(p,
                         "%c{\"cap\":%lld,\"drawn\":%lld,\"keep\":%lld,\"need\":%lld,"
                         "\"extra\":%lld,\"useful\":%lld}",
                         r == 0 ? '[' : ',', (long long)a->of[r].limit, (long long)a->of[r].drawn,
                         (long long)a->of[r].keep, (long long)a->of[r].need,
                         (long long)a->of[r].extra, (long long)a->of[r].least);
        assert(p - text <= (a - asks + 1) * (ptrdiff_t)ASK_BYTES);
        p += sprintf(p, "]}");
    }
    memcpy(p, "]", 2);
    return text;
}

typedef struct answer {
    lease_grant *out;
    int n, cap;
} answer;

/* False: not so many numbers. */
static bool numbers_of(const char *text, int64_t out[LEASE_THINGS])
{
    char *end = (char *)(uintptr_t)text;
    for (int i = 0; i < LEASE_THINGS; i++) {
        if (*end != (i > 0 ? ',' : '{')) return false;
        out[i] = strtoll(end + 1, &end, 10);
    }
    return strcmp(end, "}") == 0;
}

static err_code take_row(void *self, const char *const *column, int n, err *e)
{
    answer *a = self;
    lease_grant *g = &a->out[a->n];
    if (n == 3 && a->n < a->cap && numbers_of(column[0], g->granted) &&
        numbers_of(column[1], g->remains) && numbers_of(column[2], g->may_come)) {
        a->n++;
        return ERR_NONE;
    }
    return err_set(e, ERR_CORRUPT, "the fleet's database returned leases that were not requested");
}

err_code lease_exchange(store *st, const lease_ask *asks, int n, lease_grant *out, err *e)
{
    fleet *f = store_fleet(st);
    char node[12], epoch[24], turn[24];
    answer a = {out, 0, n};
    char *text = text_of(asks, n);
    if (!text) return err_set(e, ERR_NOMEM, "out of memory");
    snprintf(node, sizeof node, "%d", fleet_node(f));
    snprintf(epoch, sizeof epoch, "%lld", (long long)fleet_epoch(f));
    err_code rc = ERR_IO;
    for (int left = 2; rc == ERR_IO && left > 0;
         left--) { /* an outage may have ended the session */
        a.n = 0;
        snprintf(turn, sizeof turn, "%lld", (long long)fleet_next_turn(f));
        rc = fleet_query(f, DESK_LEASES,
                         "SELECT * FROM lorad_lease($1::int, $2::bigint, $3::bigint, $4::jsonb)",
                         (const char *const[]){node, epoch, turn, text}, 4, take_row, &a, e);
    }
    free(text);
    if (!rc && a.n < n)
        rc =
            err_set(e, ERR_CONFLICT, "this server's number was taken by another: it has no leases");
    return rc;
}
