/* view_columns.c -- what stands in the tables, and what they are sorted by. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "tui/text.h"
#include "tui/top/view.h"

/* ----------------------------------------------------------------------- columns -- */

/* In order of importance: a narrow screen shows the first ones. */
enum {
    T_NAME,
    T_STATE,
    T_RUN,
    T_QUEUE,
    T_RATE,
    T_SLO,
    T_FAIR,
    T_TODAY,
    T_LIMITED,
    T_FAILED,
    T_TTFT,
    T_DAYLIMIT,
    T_RPM,
    T_TPM,
    T_CONC,
    T_ENDED,
    T_IN,
    T_OUT,
    T_ADAPTERS,
    T_WEIGHT,
    T_CLASS
};
enum {
    A_NAME,
    A_TENANT,
    A_VERSION,
    A_TIER,
    A_RANK,
    A_MEMORY,
    A_USE,
    A_HITS,
    A_RATE,
    A_LOADS,
    A_LOAD_MS,
    A_LAST,
    A_REQUESTS,
    A_TOKENS,
    A_BYTES,
    A_VERSIONS,
    A_PREVIOUS
};
enum {
    R_ID,
    R_STATE,
    R_CLASS,
    R_TENANT,
    R_ADAPTER,
    R_AGE,
    R_SLACK,
    R_PROMPT,
    R_OUT,
    R_MAX,
    R_DONE,
    R_PREEMPTED,
    R_RANK
};
enum { E_TIME, E_LEVEL, E_KIND, E_TENANT, E_OBJECT, E_DETAIL, E_ACTOR };

static const view_column tenant_columns[] = {
    {"TENANT", 16, false, true}, {"STATE", 8, false, false},  {"RUN", 4, true, false},
    {"QUEUE", 5, true, false},   {"TOK/S", 6, true, false},   {"SLO%", 5, true, false},
    {"FAIR", 7, true, false},    {"TODAY", 7, true, false},   {"429", 5, true, false},
    {"FAIL", 5, true, false},    {"TTFT99", 7, true, false},  {"DAYLIM", 7, true, false},
    {"REQ/MIN", 7, true, false}, {"TOK/MIN", 7, true, false}, {"CONC", 5, true, false},
    {"DONE", 7, true, false},    {"IN", 7, true, false},      {"OUT", 7, true, false},
    {"ADAPT", 5, true, false},   {"WEIGHT", 6, true, false},  {"CLASS", 12, false, false},
};
static const view_column adapter_columns[] = {
    {"ADAPTER", 16, false, true}, {"TENANT", 11, false, false}, {"VER", 4, true, false},
    {"TIER", 8, false, false},    {"RANK", 4, true, false},     {"MEM", 8, true, false},
    {"USE", 3, true, false},      {"HITS", 6, true, false},     {"HIT/S", 5, true, false},
    {"LOADS", 5, true, false},    {"LOAD", 7, true, false},     {"USED", 7, true, false},
    {"REQ", 4, true, false},      {"TOKENS", 7, true, false},   {"DISK", 8, true, false},
    {"VERS", 4, true, false},     {"BACK", 5, true, false},
};
static const view_column request_columns[] = {
    {"REQUEST", 19, false, false}, {"STATE", 7, false, false},   {"CLASS", 11, false, false},
    {"TENANT", 10, false, false},  {"ADAPTER", 12, false, true}, {"AGE", 6, true, false},
    {"SLACK", 7, true, false},     {"PROMPT", 6, true, false},   {"OUT", 5, true, false},
    {"MAX", 5, true, false},       {"DONE", 5, true, false},     {"PRE", 3, true, false},
    {"RANK", 4, true, false},
};
static const view_column event_columns[] = {
    {"TIME", 8, false, false},    {"LEVEL", 7, false, false},   {"EVENT", 18, false, false},
    {"TENANT", 10, false, false}, {"OBJECT", 16, false, false}, {"DETAIL", 20, false, true},
    {"KEY", 20, false, false},
};

const view_column *view_columns(int table, int *n)
{
    static const struct {
        const view_column *c;
        size_t bytes;
    } all[TABLES] = {{tenant_columns, sizeof(tenant_columns)},
                     {adapter_columns, sizeof(adapter_columns)},
                     {request_columns, sizeof(request_columns)},
                     {event_columns, sizeof(event_columns)}};
    *n = (int)(all[table].bytes / sizeof(view_column));
    return all[table].c;
}

static double share_met(int64_t met, int64_t missed)
{
    return met + missed > 0 ? (double)met / (double)(met + missed) : -1;
}

static style style_of_share(double share)
{
    return share < 0       ? STYLE_DIM
           : share >= 0.99 ? STYLE_GOOD
           : share >= 0.9  ? STYLE_WARN
                           : STYLE_BAD;
}

static void put_limit(int64_t v, char *out, size_t cap, style *s)
{
    if (v > 0) {
        text_count((double)v, out, cap);
    } else {
        snprintf(out, cap, "-");
        *s = STYLE_DIM;
    }
}

static void tenant_cell(int column, const proto_tenant *t, const row_side *side, char *out,
                        size_t cap, style *s)
{
    double share;
    switch (column) {
    case T_NAME: snprintf(out, cap, "%s", t->name); break;
    case T_STATE:
        snprintf(out, cap, "%s", t->state);
        if (strcmp(t->state, "active") != 0) *s = STYLE_BAD;
        break;
    case T_RUN: text_count((double)(t->running - t->queued), out, cap); break;
    case T_QUEUE:
        text_count((double)t->queued, out, cap);
        if (t->queued > 0) *s = STYLE_WARN;
        break;
    case T_RATE:
        text_count(side->rate, out, cap);
        if (side->rate > 0) *s = STYLE_ACCENT;
        break;
    case T_SLO:
        share = share_met(t->met, t->missed);
        *s = style_of_share(share);
        if (share < 0)
            snprintf(out, cap, "-");
        else
            snprintf(out, cap, "%.1f", share * 100);
        break;
    case T_FAIR:
        if (t->served < 0)
            snprintf(out, cap, "-");
        else
            text_count(t->served, out, cap);
        break;
    case T_TODAY:
        text_count((double)t->day_tokens, out, cap);
        if (t->tokens_per_day > 0 && t->day_tokens * 10 > t->tokens_per_day * 9) *s = STYLE_BAD;
        break;
    case T_LIMITED:
        text_count((double)t->limited, out, cap);
        if (t->limited) *s = STYLE_WARN;
        break;
    case T_FAILED:
        text_count((double)t->failed, out, cap);
        if (t->failed) *s = STYLE_BAD;
        break;
    case T_TTFT: text_ms(t->ttft_p99_ms, out, cap); break;
    case T_DAYLIMIT: put_limit(t->tokens_per_day, out, cap, s); break;
    case T_RPM: put_limit(t->requests_per_minute, out, cap, s); break;
    case T_TPM: put_limit(t->tokens_per_minute, out, cap, s); break;
    case T_CONC: put_limit(t->max_concurrent, out, cap, s); break;
    case T_ENDED: text_count((double)t->ended, out, cap); break;
    case T_IN: text_count((double)t->prompt_tokens, out, cap); break;
    case T_OUT: text_count((double)t->output_tokens, out, cap); break;
    case T_ADAPTERS: text_count((double)t->adapters, out, cap); break;
    case T_WEIGHT: snprintf(out, cap, "%.3g", t->weight); break;
    case T_CLASS: snprintf(out, cap, "%s", t->default_class); break;
    }
}

static void adapter_cell(const view *v, int column, const proto_adapter *a, const row_side *side,
                         char *out, size_t cap, style *s)
{
    int64_t now_s = v->server[v->current].data.server.now_us / 1000000;
    switch (column) {
    case A_NAME: snprintf(out, cap, "%s", a->name); break;
    case A_TENANT: snprintf(out, cap, "%s", a->tenant); break;
    case A_VERSION: snprintf(out, cap, "%lld", (long long)a->version); break;
    case A_TIER:
        snprintf(out, cap, "%s%s", a->tier, a->pinned ? "*" : "");
        *s = strcmp(a->tier, "disk") == 0      ? STYLE_DIM
             : strcmp(a->tier, "failed") == 0  ? STYLE_BAD
             : strcmp(a->tier, "loading") == 0 ? STYLE_WARN
             : strcmp(a->tier, "host") == 0    ? STYLE_NORMAL
                                               : STYLE_GOOD;
        break;
    case A_RANK: snprintf(out, cap, "%lld", (long long)a->rank); break;
    case A_MEMORY: text_bytes((double)a->memory_bytes, out, cap); break;
    case A_USE:
        snprintf(out, cap, "%lld", (long long)a->in_use);
        *s = a->in_use ? STYLE_ACCENT : STYLE_DIM;
        break;
    case A_HITS: text_count((double)a->hits, out, cap); break;
    case A_RATE: text_count(side->rate, out, cap); break;
    case A_LOADS: text_count((double)a->loads, out, cap); break;
    case A_LOAD_MS:
        if (a->load_us)
            text_ms((double)a->load_us / 1e3, out, cap);
        else
            snprintf(out, cap, "-");
        break;
    case A_LAST:
        if (a->last_used_s)
            text_span(now_s - a->last_used_s, out, cap);
        else
            snprintf(out, cap, "-");
        break;
    case A_REQUESTS: text_count((double)a->requests, out, cap); break;
    case A_TOKENS: text_count((double)a->output_tokens, out, cap); break;
    case A_BYTES: text_bytes((double)a->bytes, out, cap); break;
    case A_VERSIONS: snprintf(out, cap, "%lld", (long long)a->versions); break;
    case A_PREVIOUS:
        if (a->previous)
            snprintf(out, cap, "@%lld", (long long)a->previous);
        else
            snprintf(out, cap, "-");
        break;
    }
}

static void request_cell(const view *v, int column, const proto_request *r, char *out, size_t cap,
                         style *s)
{
    int64_t now_us = v->server[v->current].data.server.now_us;
    double slack_ms = (double)(r->due_us - now_us) / 1e3;
    switch (column) {
    case R_ID: snprintf(out, cap, "%s", r->id); break;
    case R_STATE:
        snprintf(out, cap, "%s", r->state);
        *s = strcmp(r->state, "waiting") == 0   ? STYLE_WARN
             : strcmp(r->state, "prefill") == 0 ? STYLE_ACCENT
                                                : STYLE_GOOD;
        break;
    case R_CLASS: snprintf(out, cap, "%s", r->class_name); break;
    case R_TENANT: snprintf(out, cap, "%s", r->tenant); break;
    case R_ADAPTER: snprintf(out, cap, "%s", r->adapter[0] ? r->adapter : "(base)"); break;
    case R_AGE: snprintf(out, cap, "%.1fs", fmax(0, (double)(now_us - r->arrived_us) / 1e6)); break;
    case R_SLACK:
        if (r->due_us == 0) {
            snprintf(out, cap, "-");
        } else {
            if (fabs(slack_ms) < 1e4)
                snprintf(out, cap, "%+.0fms", slack_ms);
            else
                snprintf(out, cap, "%+.0fs", slack_ms / 1e3);
            *s = slack_ms < 0 ? STYLE_BAD : STYLE_NORMAL;
        }
        break;
    case R_PROMPT: text_count((double)r->prompt, out, cap); break;
    case R_OUT: text_count((double)r->output, out, cap); break;
    case R_MAX: text_count((double)r->max_tokens, out, cap); break;
    case R_DONE: text_count((double)r->computed, out, cap); break;
    case R_PREEMPTED: snprintf(out, cap, "%lld", (long long)r->preempted); break;
    case R_RANK: snprintf(out, cap, "%lld", (long long)r->rank); break;
    }
}

static void event_cell(int column, const proto_event *e, char *out, size_t cap, style *s)
{
    time_t at = (time_t)(e->time_us / 1000000);
    struct tm tm;
    switch (column) {
    case E_TIME:
        if (localtime_r(&at, &tm)) (void)strftime(out, cap, "%H:%M:%S", &tm);
        *s = STYLE_DIM;
        break;
    case E_LEVEL:
        snprintf(out, cap, "%s", e->level);
        *s = strcmp(e->level, "error") == 0     ? STYLE_BAD
             : strcmp(e->level, "warning") == 0 ? STYLE_WARN
             : strcmp(e->level, "audit") == 0   ? STYLE_ACCENT
                                                : STYLE_NORMAL;
        break;
    case E_KIND: snprintf(out, cap, "%s", e->kind); break;
    case E_TENANT: snprintf(out, cap, "%s", e->tenant); break;
    case E_OBJECT: snprintf(out, cap, "%s", e->object); break;
    case E_DETAIL: snprintf(out, cap, "%s", e->detail); break;
    case E_ACTOR: snprintf(out, cap, "%s", e->actor); break;
    }
}

void view_cell(const view *v, int table, int column, const void *row, const row_side *side,
               char *out, size_t cap, style *s)
{
    *s = STYLE_NORMAL;
    out[0] = 0;
    switch (table) {
    case TABLE_TENANTS: tenant_cell(column, row, side, out, cap, s); break;
    case TABLE_ADAPTERS: adapter_cell(v, column, row, side, out, cap, s); break;
    case TABLE_REQUESTS: request_cell(v, column, row, out, cap, s); break;
    default: event_cell(column, row, out, cap, s);
    }
}

/* ----------------------------------------------------------------------- sorting -- */

static double tenant_key(int column, const proto_tenant *t, const row_side *side, const char **text)
{
    switch (column) {
    case T_NAME: *text = t->name; return 0;
    case T_STATE: *text = t->state; return 0;
    case T_CLASS: *text = t->default_class; return 0;
    case T_RUN: return (double)(t->running - t->queued);
    case T_QUEUE: return (double)t->queued;
    case T_RATE: return side->rate;
    case T_SLO: return share_met(t->met, t->missed);
    case T_FAIR: return t->served;
    case T_TODAY: return (double)t->day_tokens;
    case T_LIMITED: return (double)t->limited;
    case T_FAILED: return (double)t->failed;
    case T_TTFT: return t->ttft_p99_ms;
    case T_DAYLIMIT: return (double)t->tokens_per_day;
    case T_RPM: return (double)t->requests_per_minute;
    case T_TPM: return (double)t->tokens_per_minute;
    case T_CONC: return (double)t->max_concurrent;
    case T_ENDED: return (double)t->ended;
    case T_IN: return (double)t->prompt_tokens;
    case T_OUT: return (double)t->output_tokens;
    case T_ADAPTERS: return (double)t->adapters;
    default: return t->weight;
    }
}

static double adapter_key(int column, const proto_adapter *a, const row_side *side,
                          const char **text)
{
    switch (column) {
    case A_NAME: *text = a->name; return 0;
    case A_TENANT: *text = a->tenant; return 0;
    case A_TIER: *text = a->tier; return 0;
    case A_VERSION: return (double)a->version;
    case A_RANK: return (double)a->rank;
    case A_MEMORY: return (double)a->memory_bytes;
    case A_USE: return (double)a->in_use;
    case A_HITS: return (double)a->hits;
    case A_RATE: return side->rate;
    case A_LOADS: return (double)a->loads;
    case A_LOAD_MS: return (double)a->load_us;
    case A_LAST: return (double)a->last_used_s;
    case A_REQUESTS: return (double)a->requests;
    case A_TOKENS: return (double)a->output_tokens;
    case A_BYTES: return (double)a->bytes;
    case A_VERSIONS: return (double)a->versions;
    default: return (double)a->previous;
    }
}

static double request_key(int column, const proto_request *r, const row_side *side,
                          const char **text)
{
    switch (column) {
    case R_ID: return (double)side->id;
    case R_STATE: *text = r->state; return 0;
    case R_CLASS: *text = r->class_name; return 0;
    case R_TENANT: *text = r->tenant; return 0;
    case R_ADAPTER: *text = r->adapter; return 0;
    case R_AGE: return -(double)r->arrived_us;
    case R_SLACK: return r->due_us ? (double)r->due_us : INFINITY;
    case R_PROMPT: return (double)r->prompt;
    case R_OUT: return (double)r->output;
    case R_MAX: return (double)r->max_tokens;
    case R_DONE: return (double)r->computed;
    case R_PREEMPTED: return (double)r->preempted;
    default: return (double)r->rank;
    }
}

static double event_key(int column, const proto_event *e, const row_side *side, const char **text)
{
    switch (column) {
    case E_LEVEL: *text = e->level; return 0;
    case E_KIND: *text = e->kind; return 0;
    case E_TENANT: *text = e->tenant; return 0;
    case E_OBJECT: *text = e->object; return 0;
    case E_DETAIL: *text = e->detail; return 0;
    case E_ACTOR: *text = e->actor; return 0;
    default: return (double)side->id;
    }
}

double view_key_of(const view *v, int table, int column, const void *row, const row_side *side,
                   const char **text)
{
    (void)v;
    *text = NULL;
    switch (table) {
    case TABLE_TENANTS: return tenant_key(column, row, side, text);
    case TABLE_ADAPTERS: return adapter_key(column, row, side, text);
    case TABLE_REQUESTS: return request_key(column, row, side, text);
    default: return event_key(column, row, side, text);
    }
}

const char *view_tenant_of(int table, const void *row)
{
    switch (table) {
    case TABLE_TENANTS: return ((const proto_tenant *)row)->name;
    case TABLE_ADAPTERS: return ((const proto_adapter *)row)->tenant;
    case TABLE_REQUESTS: return ((const proto_request *)row)->tenant;
    default: return ((const proto_event *)row)->tenant;
    }
}

bool view_matches(int table, const void *row, const char *needle)
{
    const proto_field *f = proto_table_fields[table];
    if (!needle[0]) return true;
    for (; f->name; f++) {
        if (f->kind == PROTO_TEXT && strcasestr((const char *)row + f->offset, needle)) return true;
    }
    return false;
}
