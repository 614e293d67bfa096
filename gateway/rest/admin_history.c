/* admin_history.c -- what was seen of classes, tenants and adapters, span by span. */
#include <stdlib.h>

#include "engine/base/clock.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/tenant_parts.h"
#include "storage/watch/history.h"

enum { ROWS_MAX = 50000, DAY_S = 86400, LATE_S = 60 /* of who asks for the last hour */ };

static const char *const kinds[] = {"class", "tenant", "adapter", NULL};

static void write_us(jsonw *w, const char *name, int64_t us)
{
    if (us < 0)
        jsonw_null(w, name);
    else
        jsonw_num(w, name, (double)us / 1000);
}

static void write_row(jsonw *w, const history_row *r)
{
    int64_t judged = r->met + r->missed;
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "history");
    jsonw_str(w, "by", kinds[r->kind]);
    jsonw_str(w, "name", r->name);
    jsonw_int(w, "start", r->start_s);
    jsonw_int(w, "seconds", r->width_s);
    jsonw_int(w, "ended", r->ended);
    jsonw_int(w, "failed", r->failed);
    jsonw_int(w, "refused", r->refused);
    jsonw_int(w, "limited", r->limited);
    jsonw_int(w, "met", r->met);
    jsonw_int(w, "missed", r->missed);
    if (judged > 0)
        jsonw_num(w, "attained", (double)r->met / (double)judged);
    else
        jsonw_null(w, "attained");
    jsonw_int(w, "prompt_tokens", r->prompt_tokens);
    jsonw_int(w, "output_tokens", r->output_tokens);
    write_us(w, "ttft_p50_ms", r->ttft_p50_us);
    write_us(w, "ttft_p99_ms", r->ttft_p99_us);
    write_us(w, "tpot_p50_ms", r->tpot_p50_us);
    write_us(w, "tpot_p99_ms", r->tpot_p99_us);
    jsonw_str(w, "causes", r->causes);
    jsonw_close(w, '}');
}

/* Fine spans reach an hour back: an earlier start is answered with coarse ones, unless it is said
 * which.  False: answered with 400. */
static bool take_query(exchange *x, history_query *q)
{
    int64_t now_us = clock_wall_us(), start_us = 0, end_us = now_us + 1000000;
    int64_t hour_us = (int64_t)HISTORY_FINE_KEPT_S * 1000000;
    uint64_t width_s = 0, limit = 10000;
    int kind = HISTORY_CLASS;
    if (!api_query_word(x, "by", kinds, &kind) || !api_query_time(x, "start", &start_us) ||
        !api_query_time(x, "end", &end_us) || !api_query_number(x, "step", 1, DAY_S, &width_s) ||
        !api_query_number(x, "limit", 1, ROWS_MAX, &limit))
        return false;
    if (start_us == 0) start_us = now_us - hour_us;
    if (width_s == 0)
        width_s = start_us < now_us - hour_us - LATE_S * INT64_C(1000000) ? HISTORY_COARSE_S
                                                                          : HISTORY_FINE_S;
    if (width_s != HISTORY_FINE_S && width_s != HISTORY_COARSE_S) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "step",
                       "'step' must be %d or %d", HISTORY_FINE_S, HISTORY_COARSE_S);
        return false;
    }
    *q = (history_query){.width_s = (int)width_s,
                         .kind = (history_kind)kind,
                         .name = exchange_query(x, "name"),
                         .start_s = start_us / 1000000 / (int64_t)width_s * (int64_t)width_s,
                         .end_s = end_us / 1000000,
                         .limit = (size_t)limit + 1};
    return true;
}

void admin_history(exchange *x)
{
    history_query q;
    history_row *rows;
    size_t n;
    err e;
    jsonw w;
    x->watches = true;
    if (!take_query(x, &q)) return;
    if (history_get(store_of(x->app), &q, &rows, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    api_list_begin(&w);
    for (size_t i = 0; i < n && i + 1 < q.limit; i++) write_row(&w, &rows[i]);
    api_list_end(x, &w, n == q.limit);
    free(rows);
}
