/* view_columns.c -- what stands in the tables, and what they are sorted
 * by: one row for each column.
 *
 * A cell and a sort key are made by two small functions, named in the column's row.  Most work for
 * any member of their type, which the row names; the others know their struct.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "tui/text.h"
#include "tui/top/view.h"

/* ---------------------------------------------------------------------- any member -- */

static const char *text_at(const view_column *c, const view_row *r)
{
    return (const char *)r->row + c->member;
}

static int64_t int_at(const view_column *c, const view_row *r)
{
    int64_t v;
    memcpy(&v, (const char *)r->row + c->member, sizeof(v));
    return v;
}

static double real_at(const view_column *c, const view_row *r)
{
    double v;
    memcpy(&v, (const char *)r->row + c->member, sizeof(v));
    return v;
}

static style text_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    snprintf(out, cap, "%s", text_at(c, r));
    return STYLE_NORMAL;
}

static style number_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    snprintf(out, cap, "%lld", (long long)int_at(c, r));
    return STYLE_NORMAL;
}

static style count_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    text_count((double)int_at(c, r), out, cap);
    return STYLE_NORMAL;
}

/* A count that should be 0 is shown as a warning. */
static style warn_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    (void)count_cell(c, r, out, cap);
    return int_at(c, r) > 0 ? STYLE_WARN : STYLE_NORMAL;
}

static style bad_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    (void)count_cell(c, r, out, cap);
    return int_at(c, r) > 0 ? STYLE_BAD : STYLE_NORMAL;
}

static style bytes_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    text_bytes((double)int_at(c, r), out, cap);
    return STYLE_NORMAL;
}

/* 0: there is none. */
static style limit_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    if (int_at(c, r) > 0) return count_cell(c, r, out, cap);
    snprintf(out, cap, "-");
    return STYLE_DIM;
}

static style ms_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    text_ms(real_at(c, r), out, cap);
    return STYLE_NORMAL;
}

static style rate_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    (void)c;
    text_count(r->side->rate, out, cap);
    return STYLE_NORMAL;
}

/* A minute's; `member` says which. */
static style events_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    double n = r->side->events[c->member];
    text_count(n, out, cap);
    return n > 0 ? STYLE_WARN : STYLE_NORMAL;
}

static double events_key(const view_column *c, const view_row *r, const char **text)
{
    (void)text;
    return r->side->events[c->member];
}

static double text_key(const view_column *c, const view_row *r, const char **text)
{
    *text = text_at(c, r);
    return 0;
}

static double int_key(const view_column *c, const view_row *r, const char **text)
{
    (void)text;
    return (double)int_at(c, r);
}

static double real_key(const view_column *c, const view_row *r, const char **text)
{
    (void)text;
    return real_at(c, r);
}

static double rate_key(const view_column *c, const view_row *r, const char **text)
{
    (void)c, (void)text;
    return r->side->rate;
}

/* Ids rise with time. */
static double id_key(const view_column *c, const view_row *r, const char **text)
{
    (void)c, (void)text;
    return (double)r->side->id;
}

/* A word and how it is drawn; the last, without a word, is for all others. */
typedef struct {
    const char *word;
    style drawn;
} word_style;

static style style_of_word(const word_style *list, const char *word)
{
    while (list->word && strcmp(list->word, word) != 0) list++;
    return list->drawn;
}

/* ------------------------------------------------------------------------- tenants -- */

static style tenant_state_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    static const word_style words[] = {{"active", STYLE_NORMAL}, {NULL, STYLE_BAD}};
    (void)text_cell(c, r, out, cap);
    return style_of_word(words, text_at(c, r));
}

static double run_key(const view_column *c, const view_row *r, const char **text)
{
    const proto_tenant *t = r->row;
    (void)c, (void)text;
    return (double)(t->running - t->queued);
}

static style run_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    text_count(run_key(c, r, NULL), out, cap);
    return STYLE_NORMAL;
}

static style tokens_rate_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    (void)rate_cell(c, r, out, cap);
    return r->side->rate > 0 ? STYLE_ACCENT : STYLE_NORMAL;
}

/* Negative: nothing has ended yet. */
static double met_key(const view_column *c, const view_row *r, const char **text)
{
    const proto_tenant *t = r->row;
    (void)c, (void)text;
    return t->met + t->missed > 0 ? (double)t->met / (double)(t->met + t->missed) : -1;
}

static style share_cell(double share, char *out, size_t cap)
{
    if (share < 0) {
        snprintf(out, cap, "-");
        return STYLE_DIM;
    }
    snprintf(out, cap, "%.1f", share * 100);
    return share >= 0.99 ? STYLE_GOOD : share >= 0.9 ? STYLE_WARN : STYLE_BAD;
}

static style met_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    return share_cell(met_key(c, r, NULL), out, cap);
}

static style served_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    double served = real_at(c, r);
    if (served < 0)
        snprintf(out, cap, "-");
    else
        text_count(served, out, cap);
    return STYLE_NORMAL;
}

static style today_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    const proto_tenant *t = r->row;
    (void)count_cell(c, r, out, cap);
    bool close = t->tokens_per_day > 0 && t->day_tokens * 10 > t->tokens_per_day * 9;
    return close ? STYLE_BAD : STYLE_NORMAL;
}

static style weight_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    snprintf(out, cap, "%.3g", real_at(c, r));
    return STYLE_NORMAL;
}

/* In order of importance, in this table and the next: a narrow screen shows the first ones. */
#define AT(field) .member = offsetof(proto_tenant, field)
static const view_column tenant_columns[] = {
    {"TENANT", 16, .wide = true, .cell = text_cell, .key = text_key, AT(name)},
    {"STATE", 8, .cell = tenant_state_cell, .key = text_key, AT(state)},
    {"RUN", 4, .right = true, .cell = run_cell, .key = run_key},
    {"QUEUE", 5, .right = true, .cell = warn_cell, .key = int_key, AT(queued)},
    {"TOK/S", 6, .right = true, .first = true, .cell = tokens_rate_cell, .key = rate_key},
    {"SLO%", 5, .right = true, .cell = met_cell, .key = met_key},
    {"FAIR", 7, .right = true, .cell = served_cell, .key = real_key, AT(served)},
    {"TODAY", 7, .right = true, .cell = today_cell, .key = int_key, AT(day_tokens)},
    {"429", 5, .right = true, .cell = warn_cell, .key = int_key, AT(limited)},
    {"FAIL", 5, .right = true, .cell = bad_cell, .key = int_key, AT(failed)},
    {"TTFT99", 7, .right = true, .cell = ms_cell, .key = real_key, AT(ttft_p99_ms)},
    {"DAYLIM", 7, .right = true, .cell = limit_cell, .key = int_key, AT(tokens_per_day)},
    {"REQ/MIN", 7, .right = true, .cell = limit_cell, .key = int_key, AT(requests_per_minute)},
    {"TOK/MIN", 7, .right = true, .cell = limit_cell, .key = int_key, AT(tokens_per_minute)},
    {"CONC", 5, .right = true, .cell = limit_cell, .key = int_key, AT(max_concurrent)},
    {"DONE", 7, .right = true, .cell = count_cell, .key = int_key, AT(ended)},
    {"IN", 7, .right = true, .cell = count_cell, .key = int_key, AT(prompt_tokens)},
    {"OUT", 7, .right = true, .cell = count_cell, .key = int_key, AT(output_tokens)},
    {"ADAPT", 5, .right = true, .cell = count_cell, .key = int_key, AT(adapters)},
    {"WEIGHT", 6, .right = true, .cell = weight_cell, .key = real_key, AT(weight)},
    {"CLASS", 12, .cell = text_cell, .key = text_key, AT(default_class)},
};
#undef AT

/* -------------------------------------------------------------------------- limits -- */

/* What of a tenant's is bounded: two members, and words for it. */
static const struct {
    size_t used, limit;
    const char *name;
} bounds[] = {
    {offsetof(proto_tenant, minute_requests), offsetof(proto_tenant, requests_per_minute),
     "requests/min"},
    {offsetof(proto_tenant, minute_tokens), offsetof(proto_tenant, tokens_per_minute),
     "tokens/min"},
    {offsetof(proto_tenant, running), offsetof(proto_tenant, max_concurrent), "at once"},
    {offsetof(proto_tenant, queued), offsetof(proto_tenant, max_queued), "queued"},
    {offsetof(proto_tenant, day_tokens), offsetof(proto_tenant, tokens_per_day), "tokens/day"},
    {offsetof(proto_tenant, month_tokens), offsetof(proto_tenant, tokens_per_month),
     "tokens/month"},
};

enum { BOUNDS = (int)(sizeof(bounds) / sizeof(bounds[0])) };

static int64_t member_of(const view_row *r, size_t member)
{
    int64_t v;
    memcpy(&v, (const char *)r->row + member, sizeof(v));
    return v;
}

/* Negative: there is no limit. */
static double share_of(const view_row *r, size_t bound)
{
    int64_t limit = member_of(r, bounds[bound].limit);
    return limit > 0 ? (double)member_of(r, bounds[bound].used) / (double)limit : -1;
}

static double bound_key(const view_column *c, const view_row *r, const char **text)
{
    (void)text;
    return share_of(r, c->member);
}

/* "12/60"; without a limit what is used. */
static style bound_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    char used[16], limit[16] = "-";
    double share = share_of(r, c->member);
    text_count((double)member_of(r, bounds[c->member].used), used, sizeof(used));
    if (share >= 0) text_count((double)member_of(r, bounds[c->member].limit), limit, sizeof(limit));
    snprintf(out, cap, "%s/%s", used, limit);
    return share < 0      ? STYLE_DIM
           : share >= 1   ? STYLE_BAD
           : share >= 0.9 ? STYLE_WARN
                          : STYLE_NORMAL;
}

static double nearest_key(const view_column *c, const view_row *r, const char **text)
{
    (void)c, (void)text;
    double most = -1;
    for (size_t i = 0; i < BOUNDS; i++) most = fmax(most, share_of(r, i));
    return most + (r->side->events[0] > 0 ? 1000 : 0);
}

const char *view_limit_of(const view_row *r)
{
    size_t most = 0;
    for (size_t i = 1; i < BOUNDS; i++) {
        if (share_of(r, i) > share_of(r, most)) most = i;
    }
    bool at = share_of(r, most) >= 1 || (r->side->events[0] > 0 && share_of(r, most) > 0.5);
    return at ? bounds[most].name : r->side->events[0] > 0 ? "refused" : "";
}

static style nearest_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    (void)c;
    snprintf(out, cap, "%s", view_limit_of(r));
    return STYLE_BAD;
}

#define AT(field) .member = offsetof(proto_tenant, field)
static const view_column limit_columns[] = {
    {"TENANT", 16, .wide = true, .cell = text_cell, .key = text_key, AT(name)},
    {"AT LIMIT", 12, .first = true, .cell = nearest_cell, .key = nearest_key},
    {"429/M", 6, .right = true, .cell = events_cell, .key = events_key},
    {"REQ/MIN", 9, .right = true, .cell = bound_cell, .key = bound_key, .member = 0},
    {"TOK/MIN", 11, .right = true, .cell = bound_cell, .key = bound_key, .member = 1},
    {"AT ONCE", 7, .right = true, .cell = bound_cell, .key = bound_key, .member = 2},
    {"DAY", 11, .right = true, .cell = bound_cell, .key = bound_key, .member = 4},
    {"QUEUED", 7, .right = true, .cell = bound_cell, .key = bound_key, .member = 3},
    {"MONTH", 11, .right = true, .cell = bound_cell, .key = bound_key, .member = 5},
    {"429", 5, .right = true, .cell = warn_cell, .key = int_key, AT(limited)},
};
#undef AT

/* ------------------------------------------------------------------------ adapters -- */

static style tier_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    static const word_style words[] = {{"disk", STYLE_DIM},
                                       {"failed", STYLE_BAD},
                                       {"loading", STYLE_WARN},
                                       {"host", STYLE_NORMAL},
                                       {NULL, STYLE_GOOD}};
    const proto_adapter *a = r->row;
    (void)c;
    snprintf(out, cap, "%s%s", a->tier, a->pinned ? "*" : "");
    return style_of_word(words, a->tier);
}

static style use_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    (void)number_cell(c, r, out, cap);
    return int_at(c, r) ? STYLE_ACCENT : STYLE_DIM;
}

static style load_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    int64_t load_us = int_at(c, r);
    text_ms(load_us ? (double)load_us / 1e3 : -1, out, cap);
    return STYLE_NORMAL;
}

static double kept_key(const view_column *c, const view_row *r, const char **text)
{
    const proto_adapter *a = r->row;
    (void)c, (void)text;
    return a->met + a->missed > 0 ? (double)a->met / (double)(a->met + a->missed) : -1;
}

static style kept_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    return share_cell(kept_key(c, r, NULL), out, cap);
}

static style ttft_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    const proto_adapter *a = r->row; /* nothing has ended: nothing is known */
    text_ms(a->met + a->missed > 0 ? real_at(c, r) : -1, out, cap);
    return STYLE_NORMAL;
}

static style wait_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    int64_t us = int_at(c, r);
    text_ms(us ? (double)us / 1e3 : -1, out, cap);
    return us ? STYLE_WARN : STYLE_DIM;
}

static style used_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    int64_t last_s = int_at(c, r);
    if (last_s)
        text_span(r->now_us / 1000000 - last_s, out, cap);
    else
        snprintf(out, cap, "-");
    return STYLE_NORMAL;
}

static style version_before_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    int64_t version = int_at(c, r);
    if (version)
        snprintf(out, cap, "@%lld", (long long)version);
    else
        snprintf(out, cap, "-");
    return STYLE_NORMAL;
}

#define AT(field) .member = offsetof(proto_adapter, field)
static const view_column adapter_columns[] = {
    {"ADAPTER", 16, .wide = true, .cell = text_cell, .key = text_key, AT(name)},
    {"TENANT", 11, .cell = text_cell, .key = text_key, AT(tenant)},
    {"VER", 4, .right = true, .cell = number_cell, .key = int_key, AT(version)},
    {"TIER", 8, .cell = tier_cell, .key = text_key, AT(tier)},
    {"RANK", 4, .right = true, .cell = number_cell, .key = int_key, AT(rank)},
    {"MEM", 8, .right = true, .sum = SUM_MEMBER, .cell = bytes_cell, .key = int_key,
     AT(memory_bytes)},
    {"USE", 3, .right = true, .sum = SUM_MEMBER, .cell = use_cell, .key = int_key, AT(in_use)},
    {"HITS", 6, .right = true, .sum = SUM_MEMBER, .cell = count_cell, .key = int_key, AT(hits)},
    {"HIT/S", 5, .right = true, .sum = SUM_SIDE, .cell = rate_cell, .key = rate_key},
    {"SLO%", 5, .right = true, .cell = kept_cell, .key = kept_key},
    {"TTFT99", 7, .right = true, .cell = ttft_cell, .key = real_key, AT(ttft_p99_ms)},
    {"LOAD/M", 6, .right = true, .sum = SUM_SIDE, .cell = events_cell, .key = events_key},
    {"EVIC/M", 6, .right = true, .sum = SUM_SIDE, .cell = events_cell, .key = events_key,
     .member = 1},
    {"LATE", 5, .right = true, .sum = SUM_MEMBER, .cell = warn_cell, .key = int_key,
     AT(missed_adapter_load)},
    {"WAIT", 7, .right = true, .sum = SUM_MEMBER, .cell = wait_cell, .key = int_key, AT(wait_us)},
    {"LOADS", 5, .right = true, .sum = SUM_MEMBER, .cell = count_cell, .key = int_key, AT(loads)},
    {"LOAD", 7, .right = true, .cell = load_cell, .key = int_key, AT(load_us)},
    {"USED", 7, .right = true, .first = true, .cell = used_cell, .key = int_key, AT(last_used_s)},
    {"REQ", 4, .right = true, .sum = SUM_MEMBER, .cell = count_cell, .key = int_key, AT(requests)},
    {"TOKENS", 7, .right = true, .sum = SUM_MEMBER, .cell = count_cell, .key = int_key,
     AT(output_tokens)},
    {"DISK", 8, .right = true, .sum = SUM_MEMBER, .cell = bytes_cell, .key = int_key, AT(bytes)},
    {"VERS", 4, .right = true, .cell = number_cell, .key = int_key, AT(versions)},
    {"BACK", 5, .right = true, .cell = version_before_cell, .key = int_key, AT(previous)},
};
#undef AT

/* ------------------------------------------------------------------------ requests -- */

static style request_state_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    static const word_style words[] = {
        {"waiting", STYLE_WARN}, {"prefill", STYLE_ACCENT}, {NULL, STYLE_GOOD}};
    (void)text_cell(c, r, out, cap);
    return style_of_word(words, text_at(c, r));
}

static style request_adapter_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    const char *name = text_at(c, r);
    snprintf(out, cap, "%s", name[0] ? name : "(base)");
    return STYLE_NORMAL;
}

static style age_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    snprintf(out, cap, "%.1fs", fmax(0, (double)(r->now_us - int_at(c, r)) / 1e6));
    return STYLE_NORMAL;
}

static double age_key(const view_column *c, const view_row *r, const char **text)
{
    (void)text;
    return -(double)int_at(c, r);
}

/* What is left until the class wants the next token. */
static style slack_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    int64_t due_us = int_at(c, r);
    double slack_ms = (double)(due_us - r->now_us) / 1e3;
    if (due_us == 0) {
        snprintf(out, cap, "-");
        return STYLE_NORMAL;
    }
    if (fabs(slack_ms) < 1e4)
        snprintf(out, cap, "%+.0fms", slack_ms);
    else
        snprintf(out, cap, "%+.0fs", slack_ms / 1e3);
    return slack_ms < 0 ? STYLE_BAD : STYLE_NORMAL;
}

static double slack_key(const view_column *c, const view_row *r, const char **text)
{
    (void)text;
    int64_t due_us = int_at(c, r);
    return due_us ? (double)due_us : INFINITY;
}

#define AT(field) .member = offsetof(proto_request, field)
static const view_column request_columns[] = {
    {"REQUEST", 19, .cell = text_cell, .key = id_key, AT(id)},
    {"STATE", 7, .cell = request_state_cell, .key = text_key, AT(state)},
    {"CLASS", 11, .cell = text_cell, .key = text_key, AT(class_name)},
    {"TENANT", 10, .cell = text_cell, .key = text_key, AT(tenant)},
    {"ADAPTER", 12, .wide = true, .cell = request_adapter_cell, .key = text_key, AT(adapter)},
    {"AGE", 6, .right = true, .first = true, .cell = age_cell, .key = age_key, AT(arrived_us)},
    {"SLACK", 7, .right = true, .cell = slack_cell, .key = slack_key, AT(due_us)},
    {"PROMPT", 6, .right = true, .sum = SUM_MEMBER, .cell = count_cell, .key = int_key, AT(prompt)},
    {"OUT", 5, .right = true, .sum = SUM_MEMBER, .cell = count_cell, .key = int_key, AT(output)},
    {"MAX", 5, .right = true, .cell = count_cell, .key = int_key, AT(max_tokens)},
    {"DONE", 5, .right = true, .cell = count_cell, .key = int_key, AT(computed)},
    {"PRE", 3, .right = true, .cell = number_cell, .key = int_key, AT(preempted)},
    {"RANK", 4, .right = true, .cell = number_cell, .key = int_key, AT(rank)},
};
#undef AT

/* --------------------------------------------------------------------------- ended -- */

static style ended_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    text_span(r->now_us / 1000000 - int_at(c, r), out, cap);
    return STYLE_DIM;
}

/* Where most of its time went stands out. */
static style phase_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    const top_ended *q = r->row;
    double ms = real_at(c, r);
    text_ms(ms > 0 ? ms : -1, out, cap);
    bool most = ms > 0 && ms >= q->queue_ms && ms >= q->adapter_ms && ms >= q->prompt_ms &&
                ms >= q->decode_ms && ms >= q->rest_ms;
    return most ? STYLE_WARN : ms > 0 ? STYLE_NORMAL : STYLE_DIM;
}

static style took_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    text_ms((double)int_at(c, r), out, cap);
    return STYLE_NORMAL;
}

static style why_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    snprintf(out, cap, "%s", text_at(c, r)[0] ? text_at(c, r) : "-");
    return text_at(c, r)[0] ? STYLE_BAD : STYLE_DIM;
}

#define AT(field) .member = offsetof(top_ended, field)
static const view_column ended_columns[] = {
    {"ENDED", 7, .right = true, .first = true, .cell = ended_cell, .key = int_key, AT(ended)},
    {"TOOK", 7, .right = true, .cell = took_cell, .key = int_key, AT(duration_ms)},
    {"MISSED", 12, .cell = why_cell, .key = text_key, AT(missed)},
    {"QUEUE", 7, .right = true, .cell = phase_cell, .key = real_key, AT(queue_ms)},
    {"ADAPTER", 7, .right = true, .cell = phase_cell, .key = real_key, AT(adapter_ms)},
    {"PROMPT", 7, .right = true, .cell = phase_cell, .key = real_key, AT(prompt_ms)},
    {"DECODE", 7, .right = true, .cell = phase_cell, .key = real_key, AT(decode_ms)},
    {"REST", 7, .right = true, .cell = phase_cell, .key = real_key, AT(rest_ms)},
    {"TENANT", 10, .cell = text_cell, .key = text_key, AT(tenant)},
    {"MODEL", 12, .wide = true, .cell = text_cell, .key = text_key, AT(model)},
    {"CLASS", 11, .cell = text_cell, .key = text_key, AT(class)},
    {"OUT", 5, .right = true, .sum = SUM_MEMBER, .cell = count_cell, .key = int_key,
     AT(output_tokens)},
    {"IN", 6, .right = true, .sum = SUM_MEMBER, .cell = count_cell, .key = int_key,
     AT(prompt_tokens)},
    {"FINISH", 9, .cell = text_cell, .key = text_key, AT(finish)},
    {"REQUEST", 36, .cell = text_cell, .key = text_key, AT(request_id)},
};
#undef AT

/* -------------------------------------------------------------------------- events -- */

static style time_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    time_t at = (time_t)(int_at(c, r) / 1000000);
    struct tm tm;
    if (gmtime_r(&at, &tm)) (void)strftime(out, cap, "%H:%M:%S", &tm);
    return STYLE_DIM;
}

static style level_cell(const view_column *c, const view_row *r, char *out, size_t cap)
{
    static const word_style words[] = {{"error", STYLE_BAD},
                                       {"warning", STYLE_WARN},
                                       {"audit", STYLE_ACCENT},
                                       {NULL, STYLE_NORMAL}};
    (void)text_cell(c, r, out, cap);
    return style_of_word(words, text_at(c, r));
}

#define AT(field) .member = offsetof(proto_event, field)
static const view_column event_columns[] = {
    {"TIME", 8, .first = true, .cell = time_cell, .key = id_key, AT(time_us)},
    {"LEVEL", 7, .cell = level_cell, .key = text_key, AT(level)},
    {"EVENT", 18, .cell = text_cell, .key = text_key, AT(kind)},
    {"TENANT", 10, .cell = text_cell, .key = text_key, AT(tenant)},
    {"OBJECT", 16, .cell = text_cell, .key = text_key, AT(object)},
    {"DETAIL", 20, .wide = true, .cell = text_cell, .key = text_key, AT(detail)},
    {"KEY", 20, .cell = text_cell, .key = text_key, AT(actor)},
};
#undef AT

/* ---------------------------------------------------------------------- all tables -- */

const view_column *view_columns(int table, int *n)
{
    static const struct {
        const view_column *c;
        size_t bytes;
    } all[VIEW_TABLES] = {
        {tenant_columns, sizeof(tenant_columns)},   {adapter_columns, sizeof(adapter_columns)},
        {request_columns, sizeof(request_columns)}, {event_columns, sizeof(event_columns)},
        {limit_columns, sizeof(limit_columns)},     {ended_columns, sizeof(ended_columns)}};
    *n = (int)(all[table].bytes / sizeof(view_column));
    return all[table].c;
}

int view_default_sort(int table)
{
    int n, i = 0;
    const view_column *c = view_columns(table, &n);
    while (i < n - 1 && !c[i].first) i++;
    return i;
}

int view_column_of(int table, const char *title)
{
    int n;
    const view_column *c = view_columns(table, &n);
    for (int i = 0; i < n; i++) {
        if (strcmp(c[i].title, title) == 0) return i;
    }
    return -1;
}

const char *view_tenant_of(int table, const void *row)
{
    switch (view_source(table)) {
    case TABLE_TENANTS: return ((const proto_tenant *)row)->name;
    case TABLE_ADAPTERS: return ((const proto_adapter *)row)->tenant;
    case TABLE_REQUESTS: return ((const proto_request *)row)->tenant;
    case VIEW_ENDED: return ((const top_ended *)row)->tenant;
    default: return ((const proto_event *)row)->tenant;
    }
}

bool view_matches(int table, const void *row, const char *needle)
{
    const proto_field *f = view_fields(table);
    if (!needle[0]) return true;
    for (; f->name; f++) {
        if (f->kind == PROTO_TEXT && strcasestr((const char *)row + f->offset, needle)) return true;
    }
    return false;
}
