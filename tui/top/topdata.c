/* topdata.c -- loratop's copy of a server's statistics: applies answers of /admin/v1/stats, derives
 * rates and series.
 *
 *   answer = head (server, totals, classes) + changed rows per table + ids of deleted rows + cursor
 *
 * The answer is parsed by the field lists of gateway/admin_proto.h, so both sides share one
 * definition; unknown fields of a newer server are skipped. Head and classes are read into a copy
 * first: a malformed answer changes nothing.
 *
 * A rowset is an array of rows in no order with an open-addressing hash of ids; deletion moves the
 * last row into the gap and repairs the probe chain (rowset_drop()). Beside each row is what only
 * loratop knows: rates, fading event counts (half a minute), the tag.
 *
 * Totals of successive answers give the series for graphs; percentiles and history come from the
 * server. Threads: one.
 */
#include "tui/top/topdata.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/json.h"

#define EVENTS_FADE_US 30e6

/* --------------------------------------------------------------------- history -- */

static void add_value(history *h, double v)
{
    assert(h->n >= 0 && h->n <= 2 * HISTORY);
    if (h->n == 2 * HISTORY) {
        memmove(h->v, h->v + HISTORY, HISTORY * sizeof(h->v[0]));
        h->n = HISTORY;
    }
    h->v[h->n++] = isfinite(v) ? v : 0;
}

const double *history_last(const history *h, int want, int *n)
{
    *n = h->n < want ? h->n : want;
    if (*n > HISTORY) *n = HISTORY;
    return h->v + h->n - *n;
}

double history_max(const history *h, int want)
{
    int n;
    const double *v = history_last(h, want, &n);
    double most = 0;
    for (int i = 0; i < n; i++) most = v[i] > most ? v[i] : most;
    return most;
}

/* ------------------------------------------------------------------------ rows -- */

void *rowset_row(const rowset *r, size_t i)
{
    assert(i < r->cap);
    return r->row + i * r->bytes;
}

static size_t home(const rowset *r, uint64_t id)
{
    return hash_id(id) & (r->n_slot - 1);
}

static size_t slot_of(const rowset *r, uint64_t id)
{
    assert(r->n < r->n_slot); /* so the search ends */
    size_t s = home(r, id);
    while (r->slot[s] && r->side[r->slot[s] - 1].id != id) s = (s + 1) & (r->n_slot - 1);
    return s;
}

int64_t rowset_find(const rowset *r, uint64_t id)
{
    return r->n_slot ? (int64_t)r->slot[slot_of(r, id)] - 1 : -1;
}

static bool rehash(rowset *r, size_t n_slot)
{
    uint32_t *slot = calloc(n_slot, sizeof(*slot));
    if (!slot) return false;
    free(r->slot);
    r->slot = slot;
    r->n_slot = n_slot;
    for (size_t i = 0; i < r->n; i++) slot[slot_of(r, r->side[i].id)] = (uint32_t)(i + 1);
    return true;
}

static bool grow(rowset *r)
{
    size_t cap = r->cap ? r->cap * 2 : 64;
    char *row = realloc(r->row, cap * r->bytes);
    if (row) r->row = row;
    row_side *side = realloc(r->side, cap * sizeof(*side));
    if (side) r->side = side;
    if (!row || !side || !rehash(r, cap * 4)) return false;
    r->cap = cap;
    return true;
}

static int64_t rowset_put(rowset *r, uint64_t id, const void *row)
{
    int64_t i = rowset_find(r, id);
    if (i < 0) {
        if (r->n >= TOPDATA_ROWS_MAX) return -1;
        if (r->n == r->cap && !grow(r)) return -1;
        i = (int64_t)r->n++;
        r->side[i] = (row_side){.id = id};
        r->slot[slot_of(r, id)] = (uint32_t)(i + 1);
    }
    memcpy(rowset_row(r, (size_t)i), row, r->bytes);
    return i;
}

/* The last row takes the place; what stood behind the freed slot is put where it is found. */
static void rowset_drop(rowset *r, uint64_t id)
{
    int64_t i = rowset_find(r, id);
    if (i < 0) return;
    size_t s = slot_of(r, id), mask = r->n_slot - 1;
    r->slot[s] = 0;
    for (size_t k = (s + 1) & mask; r->slot[k]; k = (k + 1) & mask) {
        uint32_t moved = r->slot[k];
        r->slot[k] = 0;
        r->slot[slot_of(r, r->side[moved - 1].id)] = moved;
    }
    assert(r->n > 0);
    size_t last = --r->n;
    if ((size_t)i == last) return;
    r->slot[slot_of(r, r->side[last].id)] = (uint32_t)(i + 1);
    memcpy(rowset_row(r, (size_t)i), rowset_row(r, last), r->bytes);
    r->side[i] = r->side[last];
}

static void rowset_empty(rowset *r)
{
    r->n = 0;
    if (r->n_slot) memset(r->slot, 0, r->n_slot * sizeof(*r->slot));
}

/* ------------------------------------------------------------------- one object -- */

static err_code wrong(err *e, const char *where, const char *what)
{
    return err_set(e, ERR_CORRUPT, "the server's answer is not understood: %s.%s", where, what);
}

static err_code read_field(const cJSON *v, const proto_field *f, char *at)
{
    switch (f->kind) {
    case PROTO_TEXT: {
        if (!cJSON_IsString(v) && !cJSON_IsNull(v)) return ERR_CORRUPT;
        const char *s = cJSON_IsString(v) ? v->valuestring : "";
        size_t n = strlen(s);
        if (n > f->cap - 1) n = f->cap - 1;
        memcpy(at, s, n);
        at[n] = 0;
        return ERR_NONE;
    }
    case PROTO_INT: {
        if (!cJSON_IsNumber(v) || !(fabs(v->valuedouble) < 9.2e18)) return ERR_CORRUPT;
        int64_t i = (int64_t)v->valuedouble;
        memcpy(at, &i, sizeof(i));
        return ERR_NONE;
    }
    case PROTO_NUM: {
        if (!cJSON_IsNumber(v) && !cJSON_IsNull(v)) return ERR_CORRUPT;
        double d = cJSON_IsNumber(v) ? v->valuedouble : 0;
        memcpy(at, &d, sizeof(d));
        return ERR_NONE;
    }
    case PROTO_BOOL: {
        if (!cJSON_IsBool(v)) return ERR_CORRUPT;
        bool b = cJSON_IsTrue(v);
        memcpy(at, &b, sizeof(b));
        return ERR_NONE;
    }
    }
    return ERR_CORRUPT;
}

/* Members come in the order of the list, so the search begins where the last one ended. */
static err_code read_object(const cJSON *o, const char *where, const proto_field *list, void *out,
                            size_t bytes, err *e)
{
    if (!cJSON_IsObject(o)) return wrong(e, where, "(no object)");
    memset(out, 0, bytes);
    const proto_field *next = list;
    const cJSON *v;
    cJSON_ArrayForEach(v, o)
    {
        const proto_field *f = next;
        while (f->name && strcmp(f->name, v->string) != 0) f++;
        if (!f->name) {
            f = list;
            while (f->name && strcmp(f->name, v->string) != 0) f++;
        }
        if (!f->name) continue; /* of a newer server */
        if (read_field(v, f, (char *)out + f->offset)) return wrong(e, where, f->name);
        next = f + 1;
    }
    return ERR_NONE;
}

static uint64_t id_of(const char *s)
{
    size_t n = strlen(s);
    return n && n < 20 && strspn(s, "0123456789") == n ? strtoull(s, NULL, 10) : 0;
}

/* ------------------------------------------------------------------------ tables -- */

/* The counter of a row whose difference makes its rate. */
static int64_t counter_of(int table, const void *row)
{
    if (table == TABLE_TENANTS) {
        const proto_tenant *t = row;
        return t->prompt_tokens + t->output_tokens;
    }
    return table == TABLE_ADAPTERS ? ((const proto_adapter *)row)->hits : 0;
}

/* What happens now and then. */
static int64_t events_of(int table, const void *row, int k)
{
    const proto_adapter *a = row;
    if (table == TABLE_TENANTS) return k == 0 ? ((const proto_tenant *)row)->limited : 0;
    return k == 0 ? a->loads : a->evictions;
}

/* Event counts decay, so they show about the last half minute instead of one interval. row NULL:
 * nothing came. */
static void fade_events(row_side *s, int64_t now, int table, const void *row)
{
    double stays = exp(-(double)(now - s->at_us) / EVENTS_FADE_US);
    for (int k = 0; k < ROW_EVENTS; k++) {
        int64_t n = row ? events_of(table, row, k) - s->seen[k] : 0;
        s->events[k] *= stays;
        if (n > 0) s->events[k] += (double)n * 60e6 / EVENTS_FADE_US;
        if (s->events[k] < 0.1) s->events[k] = 0;
    }
}

static void note_rate(topdata *t, int table, row_side *s, const void *row)
{
    int64_t now = t->server.at_us, count = counter_of(table, row);
    if (s->at_us == 0 || count < s->counted) {
        s->rate = 0;
        memset(s->events, 0, sizeof(s->events));
    } else if (now > s->at_us) {
        s->rate = (double)(count - s->counted) * 1e6 / (double)(now - s->at_us);
        fade_events(s, now, table, row);
    }
    s->counted = count;
    for (int k = 0; k < ROW_EVENTS; k++) s->seen[k] = events_of(table, row, k);
    s->at_us = now;
}

static err_code check_rows(const cJSON *list, int table, err *e)
{
    union {
        proto_tenant t;
        proto_adapter a;
        proto_request r;
        proto_event v;
    } row;
    const cJSON *o;
    if (list && !cJSON_IsArray(list)) return wrong(e, proto_table_names[table], "(no array)");
    cJSON_ArrayForEach(o, list)
    {
        err_code rc = read_object(o, proto_table_names[table], proto_table_fields[table], &row,
                                  proto_table_bytes[table], e);
        const cJSON *id = rc ? NULL : json_get(o, "id");
        if (rc) return rc;
        if (!cJSON_IsString(id) || id_of(id->valuestring) == 0)
            return wrong(e, proto_table_names[table], "id");
    }
    return ERR_NONE;
}

static err_code take_rows(topdata *t, const cJSON *list, int table, err *e)
{
    union {
        char id[PROTO_ID_CAP]; /* the first field of every row */
        proto_tenant t;
        proto_adapter a;
        proto_request r;
        proto_event v;
    } row;
    const cJSON *o;
    cJSON_ArrayForEach(o, list)
    {
        (void)read_object(o, "", proto_table_fields[table], &row, proto_table_bytes[table], e);
        int64_t i = rowset_put(&t->table[table], id_of(row.id), &row);
        if (i < 0) return err_set(e, ERR_NOMEM, "no memory for the server's rows");
        if (table == TABLE_TENANTS || table == TABLE_ADAPTERS) {
            note_rate(t, table, &t->table[table].side[i], &row);
        }
    }
    return ERR_NONE;
}

/* Rates of rows that did not change have become zero. */
static void settle_rates(topdata *t, int table)
{
    rowset *r = &t->table[table];
    for (size_t i = 0; i < r->n; i++) {
        if (r->side[i].at_us == t->server.at_us) continue;
        r->side[i].rate = 0;
        fade_events(&r->side[i], t->server.at_us, table, NULL);
        r->side[i].at_us = t->server.at_us;
    }
}

static void drop_old_events(topdata *t)
{
    rowset *r = &t->table[TABLE_EVENTS];
    if (r->n <= TOPDATA_EVENTS_MAX) return;
    uint64_t newest = 0;
    for (size_t i = 0; i < r->n; i++) newest = r->side[i].id > newest ? r->side[i].id : newest;
    for (size_t i = r->n; i-- > 0;) {
        if (r->side[i].id + TOPDATA_EVENTS_MAX / 2 < newest) rowset_drop(r, r->side[i].id);
    }
    while (r->n > TOPDATA_EVENTS_MAX) rowset_drop(r, r->side[r->n - 1].id);
}

/* ----------------------------------------------------------------------- classes -- */

static err_code take_numbers(const cJSON *list, const char *name, int64_t *out, int *n, err *e)
{
    const cJSON *v;
    *n = 0;
    if (list && !cJSON_IsArray(list)) return wrong(e, "classes", name);
    cJSON_ArrayForEach(v, list)
    {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < 9e18) ||
            *n == PROTO_HIST_MAX) {
            return wrong(e, "classes", name);
        }
        out[(*n)++] = (int64_t)v->valuedouble;
    }
    return ERR_NONE;
}

static err_code take_classes(topdata *to, const cJSON *answer, err *e)
{
    const cJSON *list = json_get(answer, "classes"), *o;
    int n;
    to->n_class = 0;
    if (list && !cJSON_IsArray(list)) return wrong(e, "classes", "(no array)");
    err_code rc = take_numbers(json_get(answer, PROTO_HIST_BOUNDS), PROTO_HIST_BOUNDS, to->bound_us,
                               &to->n_bound, e);
    cJSON_ArrayForEach(o, list)
    {
        int i = to->n_class;
        if (rc || i == PROTO_CLASS_MAX) break;
        proto_class *c = &to->classes[i];
        rc = read_object(o, "classes", proto_class_fields, c, sizeof(*c), e);
        memset(to->hist[i], 0, sizeof(to->hist[i]));
        if (!rc) {
            rc = take_numbers(json_get(o, PROTO_CLASS_TTFT_HIST), PROTO_CLASS_TTFT_HIST,
                              to->hist[i][0], &n, e);
        }
        if (!rc) {
            rc = take_numbers(json_get(o, PROTO_CLASS_TPOT_HIST), PROTO_CLASS_TPOT_HIST,
                              to->hist[i][1], &n, e);
        }
        to->n_class++;
    }
    return rc;
}

/* ------------------------------------------------------------------------- whole -- */

static double per_s(int64_t now, int64_t then, double s)
{
    return now >= then && s > 0 ? (double)(now - then) / s : 0;
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* Differences of two answers' counters over the time between them, as one more value of each
 * series; of the first answer the server's own rates. */
static void note_series(topdata *t, int64_t then_us)
{
    const proto_totals *a = &t->before, *b = &t->totals;
    const proto_engine *g = &t->engine;
    double s = (double)(t->server.at_us - then_us) / 1e6;
    int64_t met = 0, judged = 0;
    if (then_us == 0) { /* the first answer: the server's own rates */
        t->now = t->rates;
    } else {
        t->now = (proto_rates){
            .prompt_tokens = per_s(b->computed_tokens, a->computed_tokens, s),
            .output_tokens = per_s(b->made_tokens, a->made_tokens, s),
            .requests = per_s(b->http_2xx + b->http_4xx + b->http_5xx,
                              a->http_2xx + a->http_4xx + a->http_5xx, s),
            .rate_limited = per_s(b->rate_limited, a->rate_limited, s),
            .errors = per_s(b->http_5xx, a->http_5xx, s),
            .steps = per_s(b->steps, a->steps, s),
            .loads = per_s(b->adapter_loads, a->adapter_loads, s),
            .evictions = per_s(b->adapter_evictions, a->adapter_evictions, s),
            .busy = fmin(per_s(b->busy_us, a->busy_us, s) / 1e6, 1), /* a step may end in it */
        };
    }
    for (int i = 0; i < t->n_class; i++) {
        met += t->classes[i].met;
        judged += t->classes[i].met + t->classes[i].missed;
        add_value(&t->class_ttft[i], fmax(0, t->classes[i].ttft_p99_ms));
        add_value(&t->class_tpot[i], fmax(0, t->classes[i].tpot_p99_ms));
    }
    double steps = (double)(b->steps - a->steps);
    double rows = ratio((double)(b->rows - a->rows), steps);
    double prompt = ratio((double)(b->computed_tokens - a->computed_tokens), steps);
    double hits = (double)(b->adapter_hits - a->adapter_hits),
           misses = (double)(b->adapter_misses - a->adapter_misses);
    const double v[SERIES_ALL] = {
        [SERIES_IN] = t->now.prompt_tokens,
        [SERIES_OUT] = t->now.output_tokens,
        [SERIES_RUNNING] = (double)g->running,
        [SERIES_WAITING] = (double)g->waiting,
        [SERIES_KV] = ratio((double)g->pages_used, (double)g->pages),
        [SERIES_ADAPTERS] = ratio((double)g->adapter_bytes, (double)g->adapter_budget_bytes),
        [SERIES_REQUESTS] = t->now.requests,
        [SERIES_LIMITED] = t->now.rate_limited,
        [SERIES_ERRORS] = t->now.errors,
        [SERIES_LOADS] = t->now.loads,
        [SERIES_PREFILL] = fmin(prompt, rows),
        [SERIES_DECODE] = fmax(0, rows - prompt),
        [SERIES_STEP_MS] = ratio((double)(b->busy_us - a->busy_us) / 1e3, steps),
        [SERIES_COST_ERROR] = g->cost_error,
        [SERIES_BUSY] = t->now.busy,
        [SERIES_HITS] = ratio(hits, hits + misses),
        [SERIES_ATTAINED] = ratio((double)met, (double)judged),
    };
    for (int i = 0; i < SERIES_ALL; i++) add_value(&t->series[i], v[i]);
    add_value(&t->at_s, (double)t->server.at_us / 1e6);
}

static err_code check_gone(const cJSON *gone, err *e)
{
    const cJSON *list, *id;
    cJSON_ArrayForEach(list, gone)
    {
        if (!cJSON_IsArray(list)) return wrong(e, "gone", list->string);
        cJSON_ArrayForEach(id, list)
        {
            if (!cJSON_IsString(id)) return wrong(e, "gone", list->string);
        }
    }
    return ERR_NONE;
}

/* What the answer says beside its rows, into a copy: nothing of a bad answer is used. */
typedef struct {
    proto_server server;
    proto_totals totals;
    proto_rates rates;
    proto_engine engine;
} head;

static err_code read_head(const cJSON *answer, head *h, err *e)
{
    err_code rc = read_object(json_get(answer, "server"), "server", proto_server_fields, &h->server,
                              sizeof(h->server), e);
    if (!rc) {
        rc = read_object(json_get(answer, "totals"), "totals", proto_totals_fields, &h->totals,
                         sizeof(h->totals), e);
    }
    if (!rc) {
        rc = read_object(json_get(answer, "rates"), "rates", proto_rates_fields, &h->rates,
                         sizeof(h->rates), e);
    }
    if (!rc) {
        rc = read_object(json_get(answer, "engine"), "engine", proto_engine_fields, &h->engine,
                         sizeof(h->engine), e);
    }
    for (int i = 0; i < TABLES && !rc; i++) {
        rc = check_rows(json_get(answer, proto_table_names[i]), i, e);
    }
    return rc ? rc : check_gone(json_get(answer, "gone"), e);
}

err_code topdata_apply(topdata *t, const cJSON *answer, err *e)
{
    static topdata scratch; /* classes are read here first; one thread */
    head h;
    const char *cursor = NULL, *object = NULL;
    bool reset = false, more = false;
    if (!cJSON_IsObject(answer)) return wrong(e, "answer", "(no object)");
    if (json_str(answer, "object", &object, NULL, e) || !object || strcmp(object, "stats") != 0)
        return wrong(e, "answer", "object");
    if (json_str(answer, "cursor", &cursor, NULL, e) || !cursor ||
        strlen(cursor) >= sizeof(t->cursor))
        return wrong(e, "answer", "cursor");
    if (json_bool(answer, "reset", &reset, NULL, e) || json_bool(answer, "more", &more, NULL, e))
        return wrong(e, "answer", "reset");
    err_code rc = read_head(answer, &h, e);
    if (!rc) rc = take_classes(&scratch, answer, e);
    if (rc) return rc;

    int64_t then_us = t->any && !reset && h.server.at_us > t->server.at_us ? t->server.at_us : 0;
    bool fresh = !t->any || h.server.at_us != t->server.at_us;
    t->before = then_us ? t->totals : h.totals;
    t->server = h.server;
    t->totals = h.totals;
    t->rates = h.rates;
    t->engine = h.engine;
    t->n_class = scratch.n_class;
    t->n_bound = scratch.n_bound;
    memcpy(t->classes, scratch.classes, sizeof(t->classes));
    memcpy(t->bound_us, scratch.bound_us, sizeof(t->bound_us));
    memcpy(t->hist, scratch.hist, sizeof(t->hist));
    memcpy(t->cursor, cursor, strlen(cursor) + 1);
    t->more = more;
    const cJSON *gone = json_get(answer, "gone"), *id;
    for (int i = 0; i < TABLES; i++) {
        if (reset) rowset_empty(&t->table[i]);
        cJSON_ArrayForEach(id, json_get(gone, proto_table_names[i]))
        {
            rowset_drop(&t->table[i], id_of(id->valuestring));
        }
        if ((rc = take_rows(t, json_get(answer, proto_table_names[i]), i, e))) return rc;
    }
    if (!more) {
        settle_rates(t, TABLE_TENANTS);
        settle_rates(t, TABLE_ADAPTERS);
    }
    drop_old_events(t);
    if (fresh) note_series(t, then_us);
    t->any = true;
    t->version++;
    return ERR_NONE;
}

err_code topdata_apply_text(topdata *t, const char *text, size_t len, err *e)
{
    cJSON *tree;
    if (json_parse(text, len, &json_limits_trusted, &tree, e)) return e->code;
    err_code rc = topdata_apply(t, tree, e);
    cJSON_Delete(tree);
    return rc;
}

/* -------------------------------------------------------------------------- past -- */

static double ms_of(const cJSON *row, const char *name)
{
    const cJSON *v = json_get(row, name);
    return cJSON_IsNumber(v) ? v->valuedouble : -1;
}

/* False: it is no such row. */
static bool read_span(const cJSON *row, const char **name, past_span *out)
{
    int64_t width = 0;
    err e;
    *name = NULL;
    if (!cJSON_IsObject(row) || json_str(row, "name", name, NULL, &e) || !*name) return false;
    out->ttft_ms = ms_of(row, "ttft_p99_ms");
    out->tpot_ms = ms_of(row, "tpot_p99_ms");
    return json_int(row, "start", 1, INT64_C(1) << 40, &out->start_s, NULL, &e) == ERR_NONE &&
           json_int(row, "seconds", 1, 86400, &width, NULL, &e) == ERR_NONE && width == PAST_S &&
           json_int(row, "met", 0, INT64_C(1) << 50, &out->met, NULL, &e) == ERR_NONE &&
           json_int(row, "missed", 0, INT64_C(1) << 50, &out->missed, NULL, &e) == ERR_NONE;
}

/* Its place, or the one that is free; NULL: there are as many as can be. */
static past_class *past_of(topdata *t, const char *name)
{
    for (int i = 0; i < PROTO_CLASS_MAX; i++) {
        past_class *p = &t->past[i];
        if (!p->name[0]) snprintf(p->name, sizeof(p->name), "%s", name);
        if (strncmp(p->name, name, sizeof(p->name) - 1) == 0) return p;
    }
    return NULL;
}

err_code topdata_apply_past(topdata *t, const char *text, size_t len, err *e)
{
    cJSON *tree;
    const cJSON *row;
    const char *name;
    past_span span = {0};
    if (json_parse(text, len, &json_limits_trusted, &tree, e)) return e->code;
    const cJSON *data = cJSON_IsObject(tree) ? json_get(tree, "data") : NULL;
    err_code rc = cJSON_IsArray(data) ? ERR_NONE : wrong(e, "history", "data");
    cJSON_ArrayForEach(row, data)
    {
        if (!rc && !read_span(row, &name, &span)) rc = wrong(e, "history", "data");
    }
    cJSON_ArrayForEach(row, data)
    {
        past_class *p = !rc && read_span(row, &name, &span) ? past_of(t, name) : NULL;
        if (!p) continue;
        p->span[span.start_s / PAST_S % PAST_SPANS] = span;
        if (span.start_s > t->past_until_s) t->past_until_s = span.start_s;
    }
    if (!rc) t->version++;
    cJSON_Delete(tree);
    return rc;
}

/* ------------------------------------------------------------------------- ended -- */

static err_code read_ended(const cJSON *o, top_ended *row, err *e)
{
    if (read_object(o, "requests", top_ended_fields, row, sizeof(*row), e)) return e->code;
    return id_of(row->id) ? ERR_NONE : wrong(e, "requests", "id");
}

err_code topdata_apply_ended(topdata *t, const char *text, size_t len, err *e)
{
    cJSON *tree;
    const cJSON *o;
    top_ended row;
    if (json_parse(text, len, &json_limits_trusted, &tree, e)) return e->code;
    const cJSON *data = cJSON_IsObject(tree) ? json_get(tree, "data") : NULL;
    err_code rc = cJSON_IsArray(data) ? ERR_NONE : wrong(e, "requests", "data");
    cJSON_ArrayForEach(o, data)
    {
        if (!rc) rc = read_ended(o, &row, e);
    }
    if (!rc) rowset_empty(&t->ended);
    cJSON_ArrayForEach(o, data)
    {
        if (rc || read_ended(o, &row, e)) break;
        if (rowset_put(&t->ended, id_of(row.id), &row) < 0)
            rc = err_set(e, ERR_NOMEM, "no memory for the server's rows");
    }
    if (!rc) t->version++;
    cJSON_Delete(tree);
    return rc;
}

int64_t topdata_past_from(const topdata *t)
{
    int64_t now_s = t->server.now_us / 1000000, oldest_s = now_s - PAST_S * PAST_SPANS / 2;
    return t->past_until_s >= oldest_s && t->past_until_s <= now_s ? t->past_until_s + 1 : oldest_s;
}

const past_span *topdata_past(const topdata *t, const char *class_name, int64_t start_s)
{
    for (int i = 0; i < PROTO_CLASS_MAX && t->past[i].name[0]; i++) {
        if (strcmp(t->past[i].name, class_name) != 0) continue;
        const past_span *s = &t->past[i].span[start_s / PAST_S % PAST_SPANS];
        return start_s > 0 && s->start_s == start_s ? s : NULL;
    }
    return NULL;
}

/* -------------------------------------------------------------------------- life -- */

bool topdata_init(topdata *t)
{
    memset(t, 0, sizeof(*t));
    for (int i = 0; i < TABLES; i++) {
        t->table[i].bytes = proto_table_bytes[i];
        if (!grow(&t->table[i])) {
            topdata_clear(t);
            return false;
        }
    }
    t->ended.bytes = sizeof(top_ended);
    return true;
}

static void rowset_clear(rowset *r)
{
    free(r->row);
    free(r->side);
    free(r->slot);
    *r = (rowset){0};
}

void topdata_clear(topdata *t)
{
    for (int i = 0; i < TABLES; i++) rowset_clear(&t->table[i]);
    rowset_clear(&t->ended);
}
