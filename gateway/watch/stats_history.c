/* stats_history.c -- service levels over time: per class, tenant and adapter in spans of ten
 * seconds and of ten minutes, written to the database; and the detection of breaches.
 *
 * Two spans are under way, one fine and one coarse. A request is counted in both when it ends
 * (stats_history_note()); one that is still running but already late counts as missed at once
 * (stats_history_overdue()), and its id is remembered so that it is not counted twice. At the end
 * of a span its lines become rows: met, missed by cause, percentiles from histograms.
 *
 * Tenants and adapters are limited per span (most_of[]); the rest shares one line ("others").
 *
 * A breach of a class begins when enough requests of a fine span miss their target, and ends after
 * several spans without one; both are events (breach_text()). Nothing is written to a full disk.
 *
 * Threads: notes come from workers, the tick from one thread; the struct has its own lock.
 */
#include "gateway/watch/stats_history.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/lock.h"
#include "gateway/admin_proto.h"
#include "storage/tenants.h"

enum { FINE, COARSE, SPANS, TOLD_MAX = 2048, JUST_ENDED = 512 };

static const uint64_t others = UINT64_MAX; /* the id of the line that the rest of a kind shares */
static const int most_of[HISTORY_KINDS] = {PROTO_CLASS_MAX, 40, 40};
_Static_assert(PROTO_CLASS_MAX + 40 + 40 <= HISTORY_NAMES, "a span's lines are one batch");

typedef struct line {
    history_kind kind;
    uint64_t id, tenant_id;
    char label[MODEL_LABEL_MAX + 1]; /* of an adapter, without its version */
    book_counts c;
} line;

typedef struct span {
    int width_s, n, n_of[HISTORY_KINDS];
    int64_t start_s; /* 0: nothing has begun */
    line line[HISTORY_NAMES];
} span;

struct stats_history {
    lock mu;
    span span[SPANS];
    breach breach[PROTO_CLASS_MAX];
    book_counts last[PROTO_CLASS_MAX]; /* of the fine span before, where there was one */
    uint64_t told[TOLD_MAX]; /* ids of requests inside that are counted as missed already */
    int n_told;
    uint64_t just_ended[JUST_ENDED]; /* ids, a ring */
    uint64_t n_ended;
    int64_t part;

    /* tick() alone */
    int calm[PROTO_CLASS_MAX]; /* spans without a breach in a row */
    span ended;                /* a copy of the one that is over */
};

stats_history *stats_history_create(int64_t part)
{
    stats_history *h = calloc(1, sizeof(*h));
    if (!h) return NULL;
    lock_init(&h->mu, LOCK_STATS_HISTORY);
    h->part = part;
    h->span[FINE].width_s = HISTORY_FINE_S;
    h->span[COARSE].width_s = HISTORY_COARSE_S;
    return h;
}

void stats_history_destroy(stats_history *h)
{
    if (!h) return;
    lock_free(&h->mu);
    free(h);
}

/* ------------------------------------------------------------------------ gathering -- */

static line *line_of(span *s, history_kind kind, uint64_t id)
{
    assert((unsigned)kind < HISTORY_KINDS && s->n >= 0 && s->n <= HISTORY_NAMES);
    for (int i = 0; i < s->n; i++) {
        if (s->line[i].kind == kind && s->line[i].id == id) return &s->line[i];
    }
    if (id != others && s->n_of[kind] >= most_of[kind] - 1 && kind != HISTORY_CLASS)
        return line_of(s, kind, others);
    assert(s->n < HISTORY_NAMES);
    line *l = &s->line[s->n++];
    *l = (line){.kind = kind, .id = id};
    s->n_of[kind]++;
    return l;
}

/* told: its miss was counted already. */
static void add_ended(book_counts *c, const usage_row *row, bool told)
{
    book_add(c, row);
    if (!told || !row->missed) return;
    assert(c->missed > 0 && c->cause[row->missed] > 0); /* book_add() has counted it */
    c->missed--;
    c->cause[row->missed]--;
}

static void note_in(span *s, const usage_row *row, int class, bool told)
{
    add_ended(&line_of(s, HISTORY_CLASS, (uint64_t) class)->c, row, told);
    add_ended(&line_of(s, HISTORY_TENANT, row->tenant_id)->c, row, told);
    if (!row->adapter_id) return;
    line *l = line_of(s, HISTORY_ADAPTER, book_adapter_key(row->tenant_id, row->model));
    book_add(&l->c, row);
    if (l->id == others || l->label[0]) return;
    l->tenant_id = row->tenant_id;
    snprintf(l->label, sizeof(l->label), "%.*s", (int)strcspn(row->model, "@"), row->model);
}

/* Its index among the ids that were counted already; n_told: not counted. */
static int told_at(const stats_history *h, uint64_t id)
{
    lock_assert_held(&h->mu);
    int i = 0;
    while (i < h->n_told && h->told[i] != id) i++;
    return i;
}

void stats_history_note(stats_history *h, uint64_t id, const usage_row *row, int class)
{
    assert(class >= 0 && class < PROTO_CLASS_MAX);
    lock_take(&h->mu);
    int at = told_at(h, id);
    bool told = at < h->n_told;
    if (told) h->told[at] = h->told[--h->n_told];
    h->just_ended[h->n_ended++ % JUST_ENDED] = id;
    for (int i = 0; i < SPANS; i++) note_in(&h->span[i], row, class, told);
    lock_release(&h->mu);
}

void stats_history_refused(stats_history *h, uint64_t tenant_id, int class, miss_cause why)
{
    assert(class >= 0 && class < PROTO_CLASS_MAX && (unsigned)why < MISS_CAUSES);
    lock_take(&h->mu);
    for (int i = 0; i < SPANS; i++) {
        book_add_refused(&line_of(&h->span[i], HISTORY_CLASS, (uint64_t) class)->c, why);
        book_add_refused(&line_of(&h->span[i], HISTORY_TENANT, tenant_id)->c, why);
    }
    lock_release(&h->mu);
}

/* Still in the engine's snapshot although it has ended. */
static bool just_ended(const stats_history *h, uint64_t id)
{
    for (int i = 0; i < JUST_ENDED; i++) {
        if (h->just_ended[i] == id) return true;
    }
    return false;
}

static void count_overdue(book_counts *c, miss_cause why)
{
    assert(why > MISS_NONE && why < MISS_CAUSES);
    c->missed++;
    c->cause[why]++;
}

/* Forgets ids that have left the engine's snapshot; those that do not fit are counted when they
 * end. */
void stats_history_overdue(stats_history *h, const board_row *row, int n)
{
    int kept = 0;
    lock_take(&h->mu);
    for (int i = 0; i < n && kept < TOLD_MAX; i++) {
        const board_row *r = &row[i];
        int at = told_at(h, r->id);
        bool told = at < h->n_told;
        if (!told && (!r->overdue || h->n_told == TOLD_MAX || just_ended(h, r->id))) continue;
        for (int k = 0; !told && k < SPANS; k++) {
            count_overdue(&line_of(&h->span[k], HISTORY_CLASS, (uint64_t)r->slo_class)->c,
                          r->overdue);
            count_overdue(&line_of(&h->span[k], HISTORY_TENANT, r->tenant_id)->c, r->overdue);
        }
        if (!told) at = h->n_told++;
        h->told[at] = h->told[kept];
        h->told[kept++] = r->id;
    }
    assert(kept <= TOLD_MAX);
    h->n_told = kept;
    lock_release(&h->mu);
}

/* -------------------------------------------------------------------------- writing -- */

/* The cause of most, of those that are left; they are fewer then. */
static int take_most(uint64_t left[MISS_CAUSES])
{
    int most = MISS_NONE;
    left[MISS_NONE] = 0;
    for (int k = MISS_NONE + 1; k < MISS_CAUSES; k++) {
        if (left[k] > left[most]) most = k;
    }
    left[most] = 0;
    return most;
}

/* "queue:3,machine:1", of those that are not 0, the one of most misses first. */
static void put_causes(const uint64_t cause[MISS_CAUSES], char *out, size_t cap)
{
    uint64_t left[MISS_CAUSES];
    size_t at = 0;
    int k;
    memcpy(left, cause, sizeof(left));
    out[0] = '\0';
    while ((k = take_most(left)) != MISS_NONE && at < cap) {
        at += (size_t)snprintf(out + at, cap - at, "%s%s:%llu", at ? "," : "", miss_cause_name(k),
                               (unsigned long long)cause[k]);
    }
}

static void put_name(const line *l, store *st, const char *const *classes, int n_class,
                     history_row *r)
{
    tenant t = {.name = ""};
    uint64_t id = l->kind == HISTORY_TENANT ? l->id : l->tenant_id;
    if (l->id == others) {
        snprintf(r->name, sizeof(r->name), "(others)");
        return;
    }
    if (l->kind == HISTORY_CLASS) {
        snprintf(r->name, sizeof(r->name), "%s", (int)l->id < n_class ? classes[l->id] : "");
        return;
    }
    if (tenants_get(st, id, &t, NULL)) /* it is gone since */
        snprintf(t.name, sizeof(t.name), "%llu", (unsigned long long)id);
    if (l->kind == HISTORY_TENANT)
        snprintf(r->name, sizeof(r->name), "%s", t.name);
    else
        snprintf(r->name, sizeof(r->name), "%s/%.70s", t.name, l->label);
}

static int64_t percentile_us(const uint32_t counts[BOOK_BUCKETS], double share)
{
    double ms = book_percentile_ms(counts, share);
    return ms < 0 ? -1 : (int64_t)(1000 * ms);
}

static void fill_row(const span *s, const line *l, history_row *r)
{
    const book_counts *c = &l->c;
    *r = (history_row){.width_s = s->width_s,
                       .kind = l->kind,
                       .start_s = s->start_s,
                       .ended = (int64_t)c->ended,
                       .failed = (int64_t)c->failed,
                       .refused = (int64_t)c->refused,
                       .limited = (int64_t)c->limited,
                       .met = (int64_t)c->met,
                       .missed = (int64_t)c->missed,
                       .prompt_tokens = (int64_t)c->prompt_tokens,
                       .output_tokens = (int64_t)c->output_tokens,
                       .ttft_p50_us = percentile_us(c->ttft, 0.5),
                       .ttft_p99_us = percentile_us(c->ttft, 0.99),
                       .tpot_p50_us = percentile_us(c->tpot, 0.5),
                       .tpot_p99_us = percentile_us(c->tpot, 0.99)};
    put_causes(c->cause, r->causes, sizeof(r->causes));
}

/* Where the database takes nothing, an empty batch asks again whether it does; and a full disk is
 * not filled with history. */
static void write_span(const stats_history *h, store *st, const char *const *classes, int n_class,
                       int64_t now_s)
{
    const span *s = &h->ended;
    store_stats db;
    size_t n = 0;
    history_row *rows = s->n ? malloc((size_t)s->n * sizeof(*rows)) : NULL;
    store_stats_get(st, &db);
    for (int i = 0; rows && db.reserve_held && store_healthy(st) && i < s->n; i++) {
        fill_row(s, &s->line[i], &rows[n]);
        rows[n].part = h->part;
        put_name(&s->line[i], st, classes, n_class, &rows[n++]);
    }
    if (n > 0 || !store_healthy(st)) history_put(st, rows, n, now_s);
    free(rows);
}

/* ------------------------------------------------------------------------- breaches -- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void add_to_breach(breach *b, const book_counts *c)
{
    b->missed += (int64_t)c->missed;
    b->judged += (int64_t)(c->met + c->missed);
    b->ttft_us = larger(b->ttft_us, percentile_us(c->ttft, 0.99));
    b->tpot_us = larger(b->tpot_us, percentile_us(c->tpot, 0.99));
    for (int k = 0; k < MISS_CAUSES; k++) b->cause[k] += c->cause[k];
}

static bool is_broken(uint64_t least, uint64_t missed, uint64_t met)
{
    return missed >= least && BREACH_OF * missed > met + missed;
}

static const book_counts *class_counts_of(const span *s, int class)
{
    static const book_counts none;
    for (int i = 0; i < s->n; i++) {
        if (s->line[i].kind == HISTORY_CLASS && s->line[i].id == (uint64_t) class)
            return &s->line[i].c;
    }
    return &none;
}

/* With what is under way. */
static breach breach_now(const stats_history *h, int class)
{
    assert(class >= 0 && class < PROTO_CLASS_MAX);
    lock_assert_held(&h->mu);
    breach b = h->breach[class];
    if (b.since_s && !b.until_s) add_to_breach(&b, class_counts_of(&h->span[FINE], class));
    return b;
}

/* True: it begins.  `last` is the span before, if that was just before. */
static bool begins(breach *b, const book_counts *c, const book_counts *last, int64_t start_s)
{
    bool before = is_broken(1, last->missed, last->met);
    if ((b->since_s && !b->until_s) || c->missed == 0 ||
        !is_broken(BREACH_LEAST, c->missed + last->missed, c->met + last->met))
        return false;
    *b = (breach){.since_s = start_s - (before ? HISTORY_FINE_S : 0), .ttft_us = -1, .tpot_us = -1};
    if (before) add_to_breach(b, last);
    return true;
}

/* A span is over: the breach has its counts.  True: so is the breach. */
static bool ends(breach *b, int *calm, const book_counts *c, int64_t end_s)
{
    *calm = is_broken(1, c->missed, c->met) ? 0 : *calm + 1;
    if (!b->since_s || b->until_s) return false;
    add_to_breach(b, c);
    if (*calm < CALM_SPANS) return false;
    b->until_s = end_s - (int64_t)CALM_SPANS * HISTORY_FINE_S;
    return true;
}

/* Before a span may end: what is under way counts at once. */
static void see_begins(stats_history *h, int n_class, breach_fn *fn, void *arg)
{
    for (int k = 0; k < n_class && k < PROTO_CLASS_MAX; k++) {
        lock_take(&h->mu);
        const span *s = &h->span[FINE];
        bool begun =
            s->start_s && begins(&h->breach[k], class_counts_of(s, k), &h->last[k], s->start_s);
        breach b = breach_now(h, k);
        lock_release(&h->mu);
        if (begun) fn(arg, k, &b);
    }
}

static void see_ends(stats_history *h, int n_class, int64_t now_s, breach_fn *fn, void *arg)
{
    static const book_counts none;
    const span *s = &h->ended;
    int64_t end_s = s->start_s + s->width_s;
    bool next = now_s < end_s + s->width_s;
    for (int k = 0; k < n_class && k < PROTO_CLASS_MAX; k++) {
        const book_counts *c = class_counts_of(s, k);
        lock_take(&h->mu);
        bool over = ends(&h->breach[k], &h->calm[k], c, end_s);
        h->last[k] = next ? *c : none;
        breach b = h->breach[k];
        lock_release(&h->mu);
        if (over) fn(arg, k, &b);
    }
}

breach stats_history_breach(stats_history *h, int class)
{
    lock_take(&h->mu);
    breach b = breach_now(h, class);
    lock_release(&h->mu);
    return b;
}

static void put_clock(int64_t s, char out[16])
{
    struct tm tm;
    time_t t = (time_t)s;
    if (!gmtime_r(&t, &tm) || !strftime(out, 16, "%H:%M:%S", &tm)) out[0] = '\0';
}

/* ", tokens 815 ms of 50 ms" */
static size_t put_worst(char *out, size_t cap, const char *what, int64_t us, int64_t target_us)
{
    out[0] = '\0';
    if (target_us <= 0 || us <= target_us) return 0;
    int n = snprintf(out, cap, "; %s %.*f ms of %.10g ms", what, us < 1000000 ? 1 : 0,
                     (double)us / 1e3, (double)target_us / 1e3);
    return n < 0 ? 0 : (size_t)n < cap ? (size_t)n : cap - 1;
}

void breach_text(const breach *b, int64_t ttft_us, int64_t tpot_us, char *out, size_t cap)
{
    char since[16], until[32] = "", causes[HISTORY_CAUSES_CAP];
    out[0] = '\0';
    if (!b->since_s) return;
    put_clock(b->since_s, since);
    if (b->until_s) {
        memcpy(until, " to ", 5);
        put_clock(b->until_s, until + 4);
    }
    put_causes(b->cause, causes, sizeof(causes));
    int n =
        snprintf(out, cap, "%s %s%s UTC: %lld of %lld missed (%s)", b->until_s ? "from" : "since",
                 since, until, (long long)b->missed, (long long)b->judged, causes);
    size_t at = n < 0 ? 0 : (size_t)n < cap ? (size_t)n : cap - 1;
    at += put_worst(out + at, cap - at, "first tokens", b->ttft_us, ttft_us);
    (void)put_worst(out + at, cap - at, "tokens", b->tpot_us, tpot_us);
}

/* ------------------------------------------------------------------------------ time -- */

/* The span that is over at `now_s`, if one is, into h->ended; the next one begins. */
static bool end_span(stats_history *h, int i, int64_t now_s)
{
    span *s = &h->span[i];
    int64_t start_s = now_s / s->width_s * s->width_s;
    lock_take(&h->mu);
    bool over = s->start_s && s->start_s != start_s;
    if (over) h->ended = *s;
    if (over) memset(s->n_of, 0, sizeof(s->n_of));
    if (over) s->n = 0;
    s->start_s = start_s;
    lock_release(&h->mu);
    return over;
}

void stats_history_tick(stats_history *h, store *st, const char *const *classes, int n_class,
                        int64_t now_s, breach_fn *fn, void *arg)
{
    see_begins(h, n_class, fn, arg);
    for (int i = 0; i < SPANS; i++) {
        if (!end_span(h, i, now_s)) continue;
        write_span(h, st, classes, n_class, now_s);
        if (i == FINE) see_ends(h, n_class, now_s, fn, arg);
    }
}
