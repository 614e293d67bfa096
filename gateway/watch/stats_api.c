/* stats_api.c -- GET /admin/v1/stats: once, or as server-sent events.
 *
 *     ?cursor=C          what changed since the answer with this cursor
 *     ?limit=N           rows in one answer; "more" says that there are others
 *     ?tables=a,b        of tenants, adapters, requests, events; none: "tables="
 *     ?stream=1&interval_ms=N   an event with the changes every N ms
 *
 * A stream holds a worker of the admin listener; half of them at most, so
 * that operators get through.
 */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/process_parts.h"
#include "gateway/watch/stats.h"

enum { STREAMS_MAX = 8, INTERVAL_MIN_MS = 100, INTERVAL_MAX_MS = 60000, LOOK_MS = 50 };

static atomic_int n_streams;

static bool take_tables(exchange *x, unsigned *out)
{
    const char *s = exchange_query(x, "tables");
    *out = (1U << TABLES) - 1;
    if (!s) return true;
    *out = 0;
    while (*s) {
        size_t n = strcspn(s, ",");
        int t = 0;
        while (t < TABLES &&
               (strncmp(s, proto_table_names[t], n) != 0 || proto_table_names[t][n])) {
            t++;
        }
        if (t == TABLES) {
            exchange_error(x, 400, "invalid_request_error", "invalid_value", "tables",
                           "'tables' must be a list of tenants, adapters, requests, events");
            return false;
        }
        *out |= 1U << t;
        s += n + (s[n] == ',');
    }
    return true;
}

/* False: the client is gone or the server ends. */
static bool wait_ms(exchange *x, int64_t ms)
{
    int64_t end = clock_now_us() + ms * 1000;
    for (;;) {
        int64_t left_ms = (end - clock_now_us()) / 1000;
        if (atomic_load(&process_of(x->app)->cut) || exchange_client_gone(x)) return false;
        if (left_ms <= 0) return true;
        struct timespec t = {0, (left_ms < LOOK_MS ? left_ms : LOOK_MS) * 1000000L};
        (void)nanosleep(&t, NULL);
    }
}

static void stream(exchange *x, const stats_query *asked, int64_t interval_ms)
{
    stats_query q = *asked;
    char cursor[64], held[64];
    jsonw w;
    bool more = false;
    jsonw_init(&w);
    bool ok = exchange_stream_begin(x, "text/event-stream; charset=utf-8");
    while (ok) {
        jsonw_reset(&w);
        jsonw_raw(&w, "data: ", 6);
        stats_write(process_of(x->app)->stats, &q, &w, cursor, &more);
        jsonw_raw(&w, "\n\n", 2);
        ok = !w.failed && exchange_stream_write(x, w.text, w.len);
        memcpy(held, cursor, sizeof(held));
        q.cursor = held;
        if (ok && !more) ok = wait_ms(x, interval_ms);
    }
    if (w.failed)
        exchange_drop(x); /* a stream that is cut is asked for again */
    else
        exchange_stream_end(x);
    jsonw_clear(&w);
}

void admin_stats(exchange *x)
{
    stats_query q = {.cursor = exchange_query(x, "cursor"),
                     .access = x->caller->key.scopes & SCOPE_ADMIN ? "admin" : "read"};
    uint64_t limit = STATS_ROWS_MAX, interval_ms = 1000;
    const char *streamed = exchange_query(x, "stream");
    x->watches = true;
    if (!take_tables(x, &q.tables) || !api_query_number(x, "limit", 1, STATS_ROWS_MAX, &limit) ||
        !api_query_number(x, "interval_ms", INTERVAL_MIN_MS, INTERVAL_MAX_MS, &interval_ms)) {
        return;
    }
    q.limit = (size_t)limit;
    if (streamed && strcmp(streamed, "1") == 0) {
        if (atomic_fetch_add(&n_streams, 1) < STREAMS_MAX)
            stream(x, &q, (int64_t)interval_ms);
        else
            exchange_error(x, 503, "overloaded_error", "too_many_streams", "stream",
                           "%d streams of stats are open already", STREAMS_MAX);
        atomic_fetch_sub(&n_streams, 1);
        return;
    }
    char cursor[64];
    bool more;
    jsonw w;
    jsonw_init(&w);
    stats_write(process_of(x->app)->stats, &q, &w, cursor, &more);
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}
