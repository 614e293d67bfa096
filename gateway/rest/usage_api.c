/* usage_api.c -- the ledger's sums in the shape of OpenAI's usage API, or as CSV.
 *
 * A page has one bucket for each span of time (1m, 1h or 1d) that has requests, with a result
 * for each group; a field that was not grouped by is null. Without `start` it is the last day.
 * Names are those of today: what is gone has its id instead. Only the admin plane groups by
 * tenant; a tenant sees its own sums.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/rest/admin_fields.h"
#include "gateway/tenant_parts.h"
#include "storage/ledger.h"

enum { DAY_S = 86400 };

static const struct {
    const char *name;
    unsigned bit;
} groups[] = {{"model", USAGE_BY_MODEL},
              {"key", USAGE_BY_KEY},
              {"tenant", USAGE_BY_TENANT},
              {"adapter", USAGE_BY_ADAPTER},
              {"class", USAGE_BY_CLASS}};

static bool refuse(exchange *x, const char *param, const char *msg)
{
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "%s", msg);
    return false;
}

static bool take_query(exchange *x, usage_query *q)
{
    int64_t now = clock_wall_us();
    q->end_wall_us = now + 1000000;
    q->start_wall_us = now - (int64_t)DAY_S * 1000000;
    if (!api_query_time(x, "start", &q->start_wall_us) ||
        !api_query_time(x, "start_time", &q->start_wall_us) ||
        !api_query_time(x, "end", &q->end_wall_us) ||
        !api_query_time(x, "end_time", &q->end_wall_us)) {
        return false;
    }
    const char *width = exchange_query(x, "bucket_width"), *by = exchange_query(x, "group_by");
    int64_t s = !width || strcmp(width, "1d") == 0 ? DAY_S
                : strcmp(width, "1h") == 0         ? 3600
                : strcmp(width, "1m") == 0         ? 60
                                                   : 0;
    if (!s) return refuse(x, "bucket_width", "'bucket_width' must be 1m, 1h or 1d");
    q->bucket_us = s * 1000000;
    for (const char *p = by; p && *p;) {
        size_t n = strcspn(p, ",");
        unsigned bit = 0;
        for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
            if (strlen(groups[i].name) == n && memcmp(groups[i].name, p, n) == 0)
                bit = groups[i].bit;
        }
        if (!bit || (bit == USAGE_BY_TENANT && x->plane != PLANE_ADMIN)) {
            return refuse(x, "group_by", "'group_by' must be of model, key, adapter, class");
        }
        q->group_by |= bit;
        p += n + (p[n] == ',');
    }
    q->model = exchange_query(x, "model");
    return true;
}

/* What is gone has its id instead of a name. */
static void write_names(exchange *x, jsonw *w, const usage_sum *u)
{
    tenant t;
    key_info k;
    const adapter_version *v = NULL;
    char text[ADAPTER_NAME_MAX + 16];
    if (u->tenant_id == 0 || tenants_get(store_of(x->app), u->tenant_id, &t, NULL))
        api_write_id(w, "tenant", u->tenant_id);
    else
        jsonw_str(w, "tenant", t.name);
    if (u->key_id == 0 || keys_get(store_of(x->app), u->key_id, &k, NULL) || !k.name[0])
        api_write_id(w, "key", u->key_id);
    else
        jsonw_str(w, "key", k.name);
    if (u->adapter_id == 0 || registry_acquire_id(registry_of(x->app), u->adapter_id, &v, NULL)) {
        api_write_id(w, "adapter", u->adapter_id);
        return;
    }
    snprintf(text, sizeof(text), "%s@%d", v->name, v->version);
    registry_release(registry_of(x->app), v);
    jsonw_str(w, "adapter", text);
}

static void write_result(exchange *x, jsonw *w, const usage_query *q, const usage_sum *u)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "usage.completions.result");
    jsonw_int(w, "input_tokens", (int64_t)u->prompt_tokens);
    jsonw_int(w, "input_cached_tokens", (int64_t)u->cached_tokens);
    jsonw_int(w, "output_tokens", (int64_t)u->output_tokens);
    jsonw_int(w, "num_model_requests", (int64_t)u->n_requests);
    jsonw_int(w, "cost_micros", u->cost);
    jsonw_str(w, "model", q->group_by & USAGE_BY_MODEL ? u->model : NULL);
    api_write_id(w, "api_key_id", u->key_id);
    api_write_id(w, "project_id", u->tenant_id);
    api_write_id(w, "adapter_id", u->adapter_id);
    write_names(x, w, u);
    jsonw_str(w, "class", q->group_by & USAGE_BY_CLASS ? u->slo_class : NULL);
    jsonw_close(w, '}');
}

static void reply_page(exchange *x, const usage_query *q, const usage_sum *list, size_t n)
{
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "object", "page");
    jsonw_open(&w, "data", '[');
    for (size_t i = 0; i < n;) {
        int64_t start = list[i].bucket_start_us;
        jsonw_open(&w, NULL, '{');
        jsonw_str(&w, "object", "bucket");
        jsonw_int(&w, "start_time", start / 1000000);
        jsonw_int(&w, "end_time", list[i].bucket_end_us / 1000000);
        jsonw_open(&w, "results", '[');
        for (; i < n && list[i].bucket_start_us == start; i++) write_result(x, &w, q, &list[i]);
        jsonw_close(&w, ']');
        jsonw_close(&w, '}');
    }
    jsonw_close(&w, ']');
    jsonw_bool(&w, "has_more", false);
    jsonw_null(&w, "next_page");
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

static void reply_csv(exchange *x, const usage_sum *list, size_t n)
{
    jsonw w; /* as a growing buffer */
    jsonw_init(&w);
    static const char head[] =
        "start_time,end_time,tenant_id,key_id,adapter_id,model,class,requests,"
        "input_tokens,input_cached_tokens,output_tokens,cost_micros\r\n";
    jsonw_raw(&w, head, sizeof(head) - 1);
    for (size_t i = 0; i < n; i++) {
        const usage_sum *u = &list[i];
        char row[512]; /* names hold neither quotes nor commas */
        int len = snprintf(
            row, sizeof(row), "%lld,%lld,%llu,%llu,%llu,%s,%s,%llu,%llu,%llu,%llu,%lld\r\n",
            (long long)(u->bucket_start_us / 1000000), (long long)(u->bucket_end_us / 1000000),
            (unsigned long long)u->tenant_id, (unsigned long long)u->key_id,
            (unsigned long long)u->adapter_id, u->model, u->slo_class,
            (unsigned long long)u->n_requests, (unsigned long long)u->prompt_tokens,
            (unsigned long long)u->cached_tokens, (unsigned long long)u->output_tokens,
            (long long)u->cost);
        jsonw_raw(&w, row, (size_t)len);
    }
    if (w.failed)
        exchange_starved(x);
    else
        exchange_reply(x, 200, "text/csv; charset=utf-8", w.text, w.len);
    jsonw_clear(&w);
}

static void reply_usage(exchange *x, uint64_t tenant_id)
{
    usage_query q = {.tenant_id = tenant_id};
    usage_sum *list;
    size_t n;
    err e;
    if (!take_query(x, &q)) return;
    if (ledger_query(store_of(x->app), &q, &list, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    const char *accept = exchange_header(x, "Accept");
    if (accept && strstr(accept, "text/csv"))
        reply_csv(x, list, n);
    else
        reply_page(x, &q, list, n);
    free(list);
}

void usage_get(exchange *x)
{
    if (x->caller->tenant.id) {
        reply_usage(x, x->caller->tenant.id);
        return;
    }
    exchange_error(x, 403, "permission_error", "tenant_required", NULL,
                   "this key belongs to no tenant; operators use /admin/v1/usage");
}

void admin_usage(exchange *x)
{
    const char *who = exchange_query(x, "tenant");
    tenant t = {0};
    if (who && !admin_find_tenant(x, who, &t)) return;
    reply_usage(x, t.id);
}
