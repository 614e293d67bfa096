/* stats_book.c -- counters of ended requests by class, tenant and adapter, for statistics and
 * metrics.
 *
 * A hash table by (kind, id) of entries with counts, sums and two latency histograms. Changed
 * entries are linked in a list, so book_drain() visits only those: with ten thousand adapters a
 * picture costs what changed.
 *
 * Histogram bounds are geometric, five per decade (10, 16, 25, 40, 63), so a percentile is known
 * within 60 % of its value at worst; book_percentile_ms() interpolates.
 *
 * Met and missed targets are those of the engine's verdict; cancelled requests count in neither. An
 * adapter's key is a hash of its owner and name, so versions share an entry.
 *
 * Threads: workers add, the tick drains; one lock. The number of entries is bounded; beyond it, new
 * ones are not counted.
 */
#include "gateway/watch/stats_book.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/lock.h"

enum { BUCKETS = 16384 };

#define DECADE(x) 10 * (x), 16 * (x), 25 * (x), 40 * (x), 63 * (x)

const int64_t book_bounds_us[BOOK_BOUNDS] = {DECADE(INT64_C(10)),       DECADE(INT64_C(100)),
                                             DECADE(INT64_C(1000)),     DECADE(INT64_C(10000)),
                                             DECADE(INT64_C(100000)),   DECADE(INT64_C(1000000)),
                                             DECADE(INT64_C(10000000)), INT64_C(1000000000)};

typedef struct entry {
    struct entry *chained, *next_dirty;
    uint64_t id;
    book_kind kind;
    bool dirty;
    uint64_t tenant_id; /* of an adapter, as `name` is */
    char *name;
    book_counts c;
} entry;

struct book {
    lock mu;
    entry *bucket[BUCKETS];
    entry *dirty[BOOK_KINDS];
    int n;
};

book *book_create(void)
{
    book *b = calloc(1, sizeof(*b));
    if (b) lock_init(&b->mu, LOCK_STATS_BOOK);
    return b;
}

static void entry_free(entry *en)
{
    free(en->name);
    free(en);
}

void book_destroy(book *b)
{
    if (!b) return;
    for (int i = 0; i < BUCKETS; i++) {
        for (entry *en = b->bucket[i]; en;) {
            entry *next = en->chained;
            entry_free(en);
            en = next;
        }
    }
    lock_free(&b->mu);
    free(b);
}

static entry **place_of(book *b, book_kind kind, uint64_t id)
{
    entry **at = &b->bucket[(hash_id(id) ^ (size_t)kind) & (BUCKETS - 1)];
    while (*at && ((*at)->id != id || (*at)->kind != kind)) at = &(*at)->chained;
    return at;
}

/* For a change; NULL: no memory, or too many. */
static entry *entry_locked(book *b, book_kind kind, uint64_t id)
{
    lock_assert_held(&b->mu);
    assert(kind < BOOK_KINDS && b->n >= 0);
    entry **at = place_of(b, kind, id), *en = *at;
    if (!en && b->n < BOOK_ENTRIES_MAX) {
        en = calloc(1, sizeof(*en));
        if (!en) return NULL;
        en->id = id;
        en->kind = kind;
        *at = en;
        b->n++;
    }
    if (!en) return NULL;
    if (!en->dirty) {
        en->dirty = true;
        en->next_dirty = b->dirty[kind];
        b->dirty[kind] = en;
    }
    return en;
}

static book_counts *open_locked(book *b, book_kind kind, uint64_t id)
{
    entry *en = entry_locked(b, kind, id);
    return en ? &en->c : NULL;
}

static int bucket_for(int64_t us)
{
    int i = 0;
    while (i < BOOK_BOUNDS && us > book_bounds_us[i]) i++;
    assert(i < BOOK_BUCKETS);
    return i;
}

typedef struct {
    int64_t ttft_us, tpot_us; /* negative: none */
    bool complete;
} outcome;

static outcome outcome_of(const usage_row *row)
{
    outcome o = {.ttft_us = -1, .tpot_us = -1, .complete = row->status / 100 == 2};
    if (row->ttft_ms >= 0) o.ttft_us = row->ttft_ms * 1000;
    if (row->ttft_ms >= 0 && row->output_tokens > 1) {
        o.tpot_us = (row->duration_ms - row->ttft_ms) * 1000 / ((int64_t)row->output_tokens - 1);
    }
    return o;
}

void book_add(book_counts *c, const usage_row *row)
{
    outcome o = outcome_of(row);
    if (!c) return;
    assert(row->missed >= 0 && row->missed < MISS_CAUSES);
    c->ended += o.complete;
    c->failed += row->status >= 500;
    c->prompt_tokens += row->prompt_tokens;
    c->output_tokens += row->output_tokens;
    c->last_wall_us = row->ended_wall_us;
    /* Judged by the engine: what the client left, or the operator ended, is in neither. */
    c->met += o.complete && !row->missed;
    c->missed += row->missed != MISS_NONE;
    if (row->missed) c->cause[row->missed]++;
    if (row->status == 499) return;
    if (o.ttft_us >= 0) c->ttft[bucket_for(o.ttft_us)]++;
    if (o.tpot_us >= 0) c->tpot[bucket_for(o.tpot_us)]++;
}

uint64_t book_adapter_key(uint64_t tenant_id, const char *name)
{
    return hash_text(tenant_id, name, strcspn(name, "@"));
}

/* The model is "name@7", or "owner/name@7" where another tenant uses it. */
static void note_adapter(book *b, const usage_row *row, int64_t adapter_us, uint64_t owner_id)
{
    const char *slash = strchr(row->model, '/'), *name = slash ? slash + 1 : row->model;
    entry *en = entry_locked(b, BOOK_ADAPTER, book_adapter_key(owner_id, name));
    if (!en) return;
    if (!en->name) en->name = strndup(name, strcspn(name, "@"));
    en->tenant_id = owner_id;
    book_add(&en->c, row);
    en->c.adapter_us += adapter_us;
}

void book_note(book *b, const usage_row *row, int class, int64_t adapter_us, uint64_t owner_id)
{
    assert(class >= 0 && row->missed >= 0 && row->missed < MISS_CAUSES);
    lock_take(&b->mu);
    book_add(open_locked(b, BOOK_TENANT, row->tenant_id), row);
    book_add(open_locked(b, BOOK_CLASS, (uint64_t) class), row);
    if (row->adapter_id) note_adapter(b, row, adapter_us, owner_id);
    lock_release(&b->mu);
}

void book_add_refused(book_counts *c, miss_cause why)
{
    if (!c) return;
    assert((unsigned)why < MISS_CAUSES);
    *(why ? &c->refused : &c->limited) += 1;
    c->missed += why != MISS_NONE;
    c->cause[why] += why != MISS_NONE;
}

void book_refused(book *b, uint64_t tenant_id, int class, miss_cause why)
{
    lock_take(&b->mu);
    book_add_refused(open_locked(b, BOOK_TENANT, tenant_id), why);
    if (class >= 0) book_add_refused(open_locked(b, BOOK_CLASS, (uint64_t) class), why);
    lock_release(&b->mu);
}

int book_drain(book *b, book_kind kind,
               void (*fn)(void *arg, uint64_t id, const book_counts *counts), void *arg)
{
    assert((unsigned)kind < BOOK_KINDS);
    lock_take(&b->mu);
    entry *en = b->dirty[kind];
    int n = 0;
    b->dirty[kind] = NULL;
    for (; en; n++) {
        entry *next = en->next_dirty;
        en->dirty = false;
        en->next_dirty = NULL;
        fn(arg, en->id, &en->c);
        en = next;
    }
    lock_release(&b->mu);
    return n;
}

bool book_get(book *b, book_kind kind, uint64_t id, book_counts *out)
{
    lock_take(&b->mu);
    const entry *en = *place_of(b, kind, id);
    if (en) *out = en->c;
    lock_release(&b->mu);
    return en != NULL;
}

void book_forget(book *b, book_kind kind, uint64_t id)
{
    lock_take(&b->mu);
    entry **at = place_of(b, kind, id), *en = *at;
    if (en) {
        *at = en->chained;
        for (entry **d = &b->dirty[kind]; en->dirty && *d; d = &(*d)->next_dirty) {
            if (*d != en) continue;
            *d = en->next_dirty;
            break;
        }
        entry_free(en);
        b->n--;
        assert(b->n >= 0);
    }
    lock_release(&b->mu);
}

/* Into a list that has the busiest first. */
static void place(book_adapter *list, int *n, int cap, const entry *en)
{
    assert(cap > 0 && *n >= 0 && *n <= cap);
    int at = *n;
    while (at > 0 && list[at - 1].c.output_tokens < en->c.output_tokens) at--;
    if (at == cap) return;
    if (*n < cap) ++*n;
    memmove(&list[at + 1], &list[at], (size_t)(*n - at - 1) * sizeof(*list));
    list[at] = (book_adapter){.tenant_id = en->tenant_id, .c = en->c};
    snprintf(list[at].name, sizeof(list[at].name), "%s", en->name);
}

int book_busiest(book *b, book_adapter *out, int cap)
{
    int n = 0;
    lock_take(&b->mu);
    for (int i = 0; i < BUCKETS; i++) {
        for (const entry *en = b->bucket[i]; en; en = en->chained) {
            if (en->kind == BOOK_ADAPTER && en->name) place(out, &n, cap, en);
        }
    }
    lock_release(&b->mu);
    return n;
}

double book_percentile_ms(const uint32_t counts[BOOK_BUCKETS], double share)
{
    assert(share >= 0 && share <= 1);
    uint64_t all = 0, below = 0;
    for (int i = 0; i < BOOK_BUCKETS; i++) all += counts[i];
    if (all == 0) return -1;
    double want = share * (double)all;
    for (int i = 0; i < BOOK_BOUNDS; i++) {
        double lo = i ? (double)book_bounds_us[i - 1] : 0, hi = (double)book_bounds_us[i];
        if (counts[i] && (double)(below + counts[i]) >= want) {
            return (lo + (hi - lo) * (want - (double)below) / counts[i]) / 1e3;
        }
        below += counts[i];
    }
    return (double)book_bounds_us[BOOK_BOUNDS - 1] / 1e3;
}
