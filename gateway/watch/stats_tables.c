/* stats_tables.c -- the rows of tenants, adapters, requests and events, into the journal.
 *
 * Adapters are listed anew only when the registry has changed, tenants when they have; else the
 * rows are touched that are, or were a moment ago, in memory or in use, and only when residency has
 * changed.  So ten thousand adapters at rest cost next to nothing, in memory too.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/adapter_parts.h"
#include "gateway/engine_parts.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"
#include "gateway/watch/stats_inside.h"
#include "gateway/watch/webhooks.h"
#include "storage/audit.h"

enum { SEED_EVENTS = 200, TIER_EVENTS_MAX = 64 };

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const id_index *)a)->id, y = ((const id_index *)b)->id;
    return x < y ? -1 : x > y;
}

static const id_index *index_of(const id_index *list, size_t n, uint64_t id)
{
    id_index key = {.id = id};
    return n ? bsearch(&key, list, n, sizeof(*list), by_id) : NULL;
}

static void put_id(char *out, size_t cap, uint64_t id)
{
    snprintf(out, cap, "%llu", (unsigned long long)id);
}

/* ----------------------------------------------------------------------- tenants -- */

static int by_tenant_id(const void *a, const void *b)
{
    uint64_t x = ((const tenant *)a)->id, y = ((const tenant *)b)->id;
    return x < y ? -1 : x > y;
}

static const char *tenant_name(const stats *st, uint64_t id)
{
    tenant key = {.id = id};
    const tenant *t = st->tenants.n ? bsearch(&key, st->tenants.row, st->tenants.n,
                                              sizeof(*st->tenants.row), by_tenant_id)
                                    : NULL;
    return t ? t->name : "";
}

static bool room_for_tenants(stats *st, size_t n)
{
    if (n <= st->tenants.cap) return true;
    size_t cap = n * 2;
    limits_usage *usage = realloc(st->tenants.usage, cap * sizeof(*usage));
    if (usage) st->tenants.usage = usage;
    if (usage) st->tenants.cap = cap;
    return usage != NULL;
}

static int by_share(const void *a, const void *b)
{
    uint64_t x = ((const board_share *)a)->tenant_id, y = ((const board_share *)b)->tenant_id;
    return x < y ? -1 : x > y;
}

static double served_of(const stats *st, uint64_t id)
{
    board_share key = {.tenant_id = id};
    const board_picture *p = &st->picture;
    const board_share *s =
        p->n_share ? bsearch(&key, p->share, (size_t)p->n_share, sizeof(key), by_share) : NULL;
    return s ? s->served : -1;
}

static void put_tenant(stats *st, size_t i)
{
    assert(i < st->tenants.n && st->tenants.n <= st->tenants.cap);
    const tenant *t = &st->tenants.row[i];
    const limits_usage *u = &st->tenants.usage[i];
    const id_index *n = index_of(st->adapters.by_tenant, st->adapters.n_tenant, t->id);
    book_counts c = {0};
    proto_tenant row;
    memset(&row, 0, sizeof(row));
    row.ttft_p50_ms = row.ttft_p99_ms = -1;
    if (book_get(st->book, BOOK_TENANT, t->id, &c)) {
        row.ttft_p50_ms = book_percentile_ms(c.ttft, 0.5);
        row.ttft_p99_ms = book_percentile_ms(c.ttft, 0.99);
    }
    put_id(row.id, sizeof(row.id), t->id);
    snprintf(row.name, sizeof(row.name), "%s", t->name);
    snprintf(row.state, sizeof(row.state), "%s", t->disabled ? "disabled" : "active");
    snprintf(row.default_class, sizeof(row.default_class), "%.*s", PROTO_WORD_CAP - 1,
             t->default_class);
    row.weight = t->weight;
    row.requests_per_minute = t->limits.requests_per_minute;
    row.tokens_per_minute = t->limits.tokens_per_minute;
    row.max_concurrent = t->limits.max_concurrent;
    row.max_queued = t->limits.max_queued;
    row.tokens_per_day = t->limits.tokens_per_day;
    row.tokens_per_month = t->limits.tokens_per_month;
    row.running = u->running;
    row.queued = u->queued;
    row.day_tokens = u->day_used;
    row.month_tokens = u->month_used;
    row.minute_requests = u->minute_requests;
    row.minute_tokens = u->minute_tokens;
    row.ended = (int64_t)c.ended;
    row.limited = (int64_t)(c.limited + c.refused);
    row.failed = (int64_t)c.failed;
    row.prompt_tokens = (int64_t)c.prompt_tokens;
    row.output_tokens = (int64_t)c.output_tokens;
    row.served = served_of(st, t->id);
    row.met = (int64_t)c.met;
    row.missed = (int64_t)c.missed;
    PUT_CAUSES(&row, c.cause);
    row.adapters = n ? (int64_t)n->index : 0;
    (void)journal_put(st->journal, TABLE_TENANTS, t->id, &row);
}

void stats_take_tenants(stats *st)
{
    tenant *list;
    size_t n;
    uint64_t changes = tenants_changes(store_of(st->srv));
    if (changes == st->tenants.seen) return;
    if (tenants_list(store_of(st->srv), 0, 0, &list, &n, NULL)) return;
    if (!room_for_tenants(st, n)) {
        free(list);
        return;
    }
    free(st->tenants.row);
    st->tenants.row = list;
    st->tenants.n = n;
    st->tenants.seen = changes;
}

static void tell_one_near(stats *st, uint64_t tenant_id, const char *limit, int64_t used,
                          int64_t most)
{
    char text[128];
    snprintf(text, sizeof(text), "%d %% of %s is used or reserved: %lld of %lld",
             LIMITS_NEAR_PERCENT, limit, (long long)used, (long long)most);
    stats_event(st, "warning", "limit.near", tenant_id, "", text, 0);
}

/* Budgets that have come near their end since the last picture. */
static void tell_near(stats *st, size_t i)
{
    const limits_usage *u = &st->tenants.usage[i];
    const tenant_limits *l = &st->tenants.row[i].limits;
    uint64_t id = st->tenants.row[i].id;
    if (u->near & LIMITS_NEAR_DAY)
        tell_one_near(st, id, "tokens_per_day", u->day_used, l->tokens_per_day);
    if (u->near & LIMITS_NEAR_MONTH)
        tell_one_near(st, id, "tokens_per_month", u->month_used, l->tokens_per_month);
    if (u->near & LIMITS_NEAR_COST_DAY)
        tell_one_near(st, id, "cost_per_day", u->cost_day_used, l->cost_per_day);
    if (u->near & LIMITS_NEAR_COST_MONTH)
        tell_one_near(st, id, "cost_per_month", u->cost_month_used, l->cost_per_month);
}

void stats_put_tenants(stats *st)
{
    size_t n = st->tenants.n;
    if (st->picture.n_share) {
        qsort(st->picture.share, (size_t)st->picture.n_share, sizeof(board_share), by_share);
    }
    limits_usage_get(tenants_of(st->srv)->limits, st->tenants.row, n, st->tenants.usage);
    journal_begin(st->journal, TABLE_TENANTS);
    for (size_t i = 0; i < n; i++) {
        put_tenant(st, i);
        tell_near(st, i);
    }
    journal_end(st->journal, TABLE_TENANTS);
}

/* ---------------------------------------------------------------------- adapters -- */

static void cold(adapter_line *a)
{
    a->tier = RESIDENCY_DISK;
    a->pinned = false;
    a->in_use = a->requests = 0;
}

static void fill_adapter(adapter_line *a, const registry_summary *g)
{
    *a = (adapter_line){.id = g->id,
                        .tenant_id = g->tenant_id,
                        .version_id = g->default_id,
                        .key = book_adapter_key(g->tenant_id, g->name),
                        .hot = true, /* until the first look at residency says otherwise */
                        .version = g->default_version,
                        .previous = g->previous,
                        .versions = g->n_versions,
                        .rank = g->rank_max,
                        .ttft_p50_ms = -1,
                        .ttft_p99_ms = -1,
                        .bytes = (int64_t)g->file_bytes,
                        .memory_bytes = (int64_t)g->packed_bytes};
    cold(a);
}

/* What only this process knows lives on when the registry is listed anew. */
static void carry_over(adapter_line *to, const adapter_line *from)
{
    to->known = from->known;
    to->hits = from->hits;
    to->output_tokens = from->output_tokens;
    to->last_used_s = from->last_used_s;
    to->loads = from->loads;
    to->load_us = from->load_us;
    to->met = from->met;
    to->missed = from->missed;
    to->wait_us = from->wait_us;
    to->ttft_p50_ms = from->ttft_p50_ms;
    to->ttft_p99_ms = from->ttft_p99_ms;
    memcpy(to->cause, from->cause, sizeof(to->cause));
    if (to->version_id == from->version_id) {
        to->version_loads = from->version_loads;
        to->tier = from->tier;
        to->pinned = from->pinned;
    }
}

static int by_summary_id(const void *a, const void *b)
{
    uint64_t x = ((const registry_summary *)a)->id, y = ((const registry_summary *)b)->id;
    return x < y ? -1 : x > y;
}

static const char *adapter_name(const stats *st, const adapter_line *a)
{
    const proto_adapter *row = journal_row(st->journal, TABLE_ADAPTERS, a->id);
    return row ? row->name : "";
}

/* `name`: NULL where its row has it already. */
static void put_adapter(stats *st, const adapter_line *a, const char *name)
{
    proto_adapter row;
    memset(&row, 0, sizeof(row));
    put_id(row.id, sizeof(row.id), a->id);
    snprintf(row.tenant, sizeof(row.tenant), "%s", tenant_name(st, a->tenant_id));
    snprintf(row.name, sizeof(row.name), "%s", name ? name : adapter_name(st, a));
    snprintf(row.tier, sizeof(row.tier), "%s", residency_state_name((residency_state)a->tier));
    row.version = a->version;
    row.previous = a->previous;
    row.versions = a->versions;
    row.rank = a->rank;
    row.bytes = a->bytes;
    row.memory_bytes = a->memory_bytes;
    row.pinned = a->pinned;
    row.in_use = a->in_use;
    row.requests = a->requests;
    row.hits = a->hits;
    row.output_tokens = a->output_tokens;
    row.loads = a->loads;
    row.evictions = a->loads - (a->tier == RESIDENCY_RESIDENT && a->loads > 0);
    row.load_us = a->load_us;
    row.last_used_s = a->last_used_s;
    row.met = a->met;
    row.missed = a->missed;
    row.wait_us = a->wait_us;
    row.ttft_p50_ms = (double)a->ttft_p50_ms;
    row.ttft_p99_ms = (double)a->ttft_p99_ms;
    PUT_CAUSES(&row, a->cause);
    (void)journal_put(st->journal, TABLE_ADAPTERS, a->id, &row);
}

/* by_version is a hash table: every picture looks all resident versions up. */
static id_index *version_slot(id_index *table, size_t n_slot, uint64_t version_id)
{
    size_t i = hash_id(version_id) & (n_slot - 1);
    while (table[i].id && table[i].id != version_id) i = (i + 1) & (n_slot - 1);
    return &table[i];
}

/* Of all adapters, counted anew only when there are others. */
const registry_totals *stats_registered(stats *st)
{
    uint64_t changes = registry_changes(registry_of(st->srv));
    if (!st->counted || changes != st->counted_at) {
        registry_totals_get(registry_of(st->srv), 0, &st->registered);
        st->counted = true;
        st->counted_at = changes;
    }
    return &st->registered;
}

void stats_adapters_free(adapter_list *l)
{
    free(l->line);
    free(l->by_version);
    free(l->by_key);
    free(l->by_tenant);
    *l = (adapter_list){0};
}

/* One entry for each adapter becomes one for each tenant, with their number. */
static void count_by_tenant(adapter_list *l)
{
    l->n_tenant = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (l->n_tenant && l->by_tenant[l->n_tenant - 1].id == l->by_tenant[i].id)
            l->by_tenant[l->n_tenant - 1].index++;
        else
            l->by_tenant[l->n_tenant++] = (id_index){l->by_tenant[i].id, 1};
    }
    id_index *less = realloc(l->by_tenant, (l->n_tenant + 1) * sizeof(*less));
    if (less) l->by_tenant = less;
}

/* Of summaries sorted by id.  False: no memory, and nothing is held. */
static bool adapters_make(adapter_list *l, const registry_summary *list, size_t n)
{
    *l = (adapter_list){.n = n, .n_slot = 64};
    while (l->n_slot < n + n / 2) l->n_slot *= 2;
    l->line = calloc(n + 1, sizeof(*l->line));
    l->by_version = calloc(l->n_slot, sizeof(*l->by_version));
    l->by_key = calloc(n + 1, sizeof(*l->by_key));
    l->by_tenant = calloc(n + 1, sizeof(*l->by_tenant));
    if (!l->line || !l->by_version || !l->by_key || !l->by_tenant) {
        stats_adapters_free(l);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        adapter_line *a = &l->line[i];
        fill_adapter(a, &list[i]);
        id_index *slot =
            a->version_id ? version_slot(l->by_version, l->n_slot, a->version_id) : NULL;
        if (slot) *slot = (id_index){a->version_id, (uint32_t)i};
        l->by_key[i] = (id_index){a->key, (uint32_t)i};
        l->by_tenant[i] = (id_index){a->tenant_id, 0};
    }
    qsort(l->by_key, n, sizeof(*l->by_key), by_id);
    qsort(l->by_tenant, n, sizeof(*l->by_tenant), by_id);
    count_by_tenant(l);
    return true;
}

/* Who is in both lists keeps what is known of it; who is gone is forgotten.  Both are sorted. */
static void adapters_inherit(stats *st, adapter_list *fresh, const adapter_list *old)
{
    for (size_t i = 0, k = 0; k < old->n;) {
        if (i == fresh->n || fresh->line[i].id > old->line[k].id)
            book_forget(st->book, BOOK_ADAPTER, old->line[k++].key);
        else if (fresh->line[i].id < old->line[k].id)
            i++;
        else
            carry_over(&fresh->line[i++], &old->line[k++]);
    }
}

static bool list_adapters(stats *st)
{
    registry_summary *list;
    size_t n;
    uint64_t changes = registry_changes(registry_of(st->srv));
    if (st->listed && changes == st->registry_seen) return true;
    if (registry_summaries(registry_of(st->srv), &list, &n, NULL)) return false;
    if (n) qsort(list, n, sizeof(*list), by_summary_id);
    adapter_list fresh;
    if (!adapters_make(&fresh, list, n)) {
        free(list);
        return false;
    }
    adapters_inherit(st, &fresh, &st->adapters);
    stats_adapters_free(&st->adapters);
    st->adapters = fresh;
    journal_begin(st->journal, TABLE_ADAPTERS);
    for (size_t i = 0; i < n; i++) put_adapter(st, &fresh.line[i], list[i].name);
    journal_end(st->journal, TABLE_ADAPTERS);
    free(list);
    st->listed = st->adapters_moved = true;
    st->registry_seen = changes;
    return true;
}

static adapter_line *adapter_of(const stats *st, uint64_t version_id)
{
    const adapter_list *l = &st->adapters;
    if (version_id == 0 || l->n_slot == 0) return NULL;
    const id_index *at = version_slot(l->by_version, l->n_slot, version_id);
    return at->id ? &l->line[at->index] : NULL;
}

static void note_hits(void *arg, uint64_t key, const book_counts *c)
{
    stats *st = arg;
    const id_index *at = index_of(st->adapters.by_key, st->adapters.n, key);
    if (!at) return;
    adapter_line *a = &st->adapters.line[at->index];
    a->hits = (int64_t)c->ended;
    a->output_tokens = (int64_t)c->output_tokens;
    a->last_used_s = c->last_wall_us / 1000000;
    a->met = (uint32_t)c->met;
    a->missed = (uint32_t)c->missed;
    a->wait_us = c->adapter_us;
    a->ttft_p50_ms = (float)book_percentile_ms(c->ttft, 0.5);
    a->ttft_p99_ms = (float)book_percentile_ms(c->ttft, 0.99);
    for (int k = 0; k < MISS_CAUSES; k++) a->cause[k] = (uint32_t)c->cause[k];
    a->hot = a->hit = true;
}

static void tell_tier(stats *st, const adapter_line *a, uint8_t before, int *told)
{
    char detail[96];
    if (a->tier == before || !st->told.was_healthy || ++*told > TIER_EVENTS_MAX) return;
    const char *name = adapter_name(st, a);
    if (a->tier == RESIDENCY_RESIDENT) {
        snprintf(detail, sizeof(detail), "%.1f ms, %.1f MiB, rank %d", (double)a->load_us / 1e3,
                 (double)a->memory_bytes / 1048576, a->rank);
        stats_event(st, "info", "adapter.load", a->tenant_id, name, detail, 0);
    } else if (a->tier == RESIDENCY_FAILED) {
        stats_event(st, "error", "adapter.unreadable", a->tenant_id, name, "", 0);
    } else if (before == RESIDENCY_RESIDENT) {
        stats_event(st, "info", "adapter.evict", a->tenant_id, name, "", 0);
    }
}

/* Whether residency and use are as the last picture saw them: then no row has changed. */
static bool nothing_moved(stats *st, uint64_t changes, int n_hit)
{
    bool same = !st->adapters_moved && n_hit == 0 && changes == st->tiers.seen;
    for (int i = 0; i < st->picture.n_row && same; i++) same = st->picture.row[i].adapter_id == 0;
    return same;
}

/* Puts the rows of what is hot that are not as they were before. */
static void put_changed(stats *st, const adapter_live *before)
{
    int told = 0;
    for (size_t i = 0; i < st->adapters.n; i++) {
        adapter_line *a = &st->adapters.line[i];
        if (!a->hot) continue;
        const adapter_live *b = &before[i];
        bool moved = b->tier != a->tier;
        if (b->looked && a->known) tell_tier(st, a, b->tier, &told);
        if (moved || a->hit || !a->known || b->pinned != a->pinned || b->in_use != a->in_use ||
            b->requests != a->requests || b->load_us != a->load_us || b->loads != a->loads)
            put_adapter(st, a, NULL);
        a->known = true;
        a->hit = false;
        a->hot = a->tier != RESIDENCY_DISK || a->requests || a->pinned;
        st->adapters_moved |= a->requests > 0; /* they will end */
    }
}

static adapter_live live_of(const adapter_line *a)
{
    return (adapter_live){.looked = true,
                          .tier = a->tier,
                          .pinned = a->pinned,
                          .in_use = a->in_use,
                          .requests = a->requests,
                          .load_us = a->load_us,
                          .loads = a->loads};
}

void stats_take_adapters(stats *st)
{
    if (!list_adapters(st)) return;
    int n_hit = book_drain(st->book, BOOK_ADAPTER, note_hits, st);
    /* before the look: what comes during it is for the next one */
    uint64_t changes = residency_changes(residency_of(st->srv));
    if (nothing_moved(st, changes, n_hit)) return;
    st->tiers.n = 0;
    st->adapters_moved = true; /* until this look is done */
    if (residency_rows(residency_of(st->srv), &st->tiers.row, &st->tiers.n, &st->tiers.cap, NULL)) {
        return;
    }
    /* What was hot falls back to the disk, unless it is seen below. */
    adapter_live *before = calloc(st->adapters.n + 1, sizeof(*before));
    if (!before) return;
    for (size_t i = 0; i < st->adapters.n; i++) {
        adapter_line *a = &st->adapters.line[i];
        if (!a->hot) continue;
        before[i] = live_of(a);
        cold(a);
    }
    for (size_t i = 0; i < st->tiers.n; i++) {
        const residency_row *r = &st->tiers.row[i];
        adapter_line *a = adapter_of(st, r->version_id);
        if (!a) continue;
        if (!a->hot) before[a - st->adapters.line] = live_of(a);
        a->hot = true;
        a->tier = (uint8_t)r->state;
        a->pinned = r->pinned;
        a->in_use = r->acquired;
        if (r->load_us) a->load_us = r->load_us;
        if (r->n_loads > a->version_loads) a->loads += (uint32_t)(r->n_loads - a->version_loads);
        a->version_loads = r->n_loads;
    }
    for (int i = 0; i < st->picture.n_row; i++) {
        adapter_line *a = adapter_of(st, st->picture.row[i].adapter_id);
        if (!a) continue;
        if (!a->hot) before[a - st->adapters.line] = live_of(a);
        a->hot = true;
        a->requests++;
    }
    st->tiers.seen = changes;
    st->adapters_moved = false;
    put_changed(st, before);
    free(before);
}

/* ---------------------------------------------------------------------- requests -- */

/* "name@version"; an older version than the default one is looked up. */
static void name_adapter(stats *st, uint64_t version_id, char *out, size_t cap)
{
    const adapter_line *a = adapter_of(st, version_id);
    if (version_id == 0) return;
    if (a)
        snprintf(out, cap, "%s@%d", adapter_name(st, a), a->version);
    else if (!registry_label(registry_of(st->srv), version_id, out, cap) &&
             !stacks_label(adapters_of(st->srv)->stacks, version_id, out, cap))
        snprintf(out, cap, "?");
}

void stats_take_requests(stats *st)
{
    /* The engine's clock to the wall's; a drift between two pictures would look like a change of
     * every row, so times are rounded to milliseconds and the difference is taken once. */
    int64_t wall_minus_mono = st->wall_minus_mono;
    journal_begin(st->journal, TABLE_REQUESTS);
    for (int i = 0; i < st->picture.n_row; i++) {
        const board_row *r = &st->picture.row[i];
        int64_t due = board_due_us(r);
        bool has_due = r->first_token_us ? r->tpot_target_us > 0 : r->ttft_deadline_us > 0;
        bool known = r->slo_class >= 0 && r->slo_class < engine_of(st->srv)->n_class;
        proto_request row;
        memset(&row, 0, sizeof(row));
        put_id(row.id, sizeof(row.id), r->id);
        snprintf(row.tenant, sizeof(row.tenant), "%s", tenant_name(st, r->tenant_id));
        name_adapter(st, r->adapter_id, row.adapter, sizeof(row.adapter));
        snprintf(row.class_name, sizeof(row.class_name), "%.*s", PROTO_WORD_CAP - 1,
                 known ? engine_of(st->srv)->class_name[r->slo_class] : "?");
        snprintf(row.state, sizeof(row.state), "%s",
                 !r->running                   ? "waiting"
                 : r->n_computed < r->n_prompt ? "prefill"
                                               : "decode");
        row.arrived_us = (r->arrived_us + wall_minus_mono) / 1000 * 1000;
        row.due_us = has_due ? (due + wall_minus_mono) / 1000 * 1000 : 0;
        row.prompt = r->n_prompt;
        row.computed = r->n_computed;
        row.output = r->n_output;
        row.max_tokens = r->max_tokens;
        row.preempted = r->n_preempted;
        row.rank = r->rank;
        (void)journal_put(st->journal, TABLE_REQUESTS, r->id, &row);
    }
    journal_end(st->journal, TABLE_REQUESTS);
}

/* ------------------------------------------------------------------------ events -- */

void stats_event(stats *st, const char *level, const char *kind, uint64_t tenant_id,
                 const char *object, const char *detail, uint64_t actor_key_id)
{
    if (!st) return;
    pending_event p;
    memset(&p, 0, sizeof(p));
    p.wall_us = clock_wall_us();
    p.tenant_id = tenant_id;
    p.actor = actor_key_id;
    snprintf(p.row.level, sizeof(p.row.level), "%s", level);
    snprintf(p.row.kind, sizeof(p.row.kind), "%s", kind);
    snprintf(p.row.object, sizeof(p.row.object), "%s", object ? object : "");
    snprintf(p.row.detail, sizeof(p.row.detail), "%s", detail ? detail : "");
    lock_take(&st->events_mu);
    st->pending[st->n_pending++ % PENDING_MAX] = p; /* the oldest gives way */
    lock_release(&st->events_mu);
}

static void put_event(stats *st, pending_event *p)
{
    uint64_t number = ++st->told.n_events;
    put_id(p->row.id, sizeof(p->row.id), number);
    p->row.time_us = p->wall_us;
    snprintf(p->row.tenant, sizeof(p->row.tenant), "%s", tenant_name(st, p->tenant_id));
    if (p->actor) put_id(p->row.actor, sizeof(p->row.actor), p->actor);
    (void)journal_put(st->journal, TABLE_EVENTS, number, &p->row);
    if (number > EVENTS_MAX) journal_forget(st->journal, TABLE_EVENTS, number - EVENTS_MAX);
}

void stats_take_events(stats *st)
{
    for (;;) {
        lock_take(&st->events_mu);
        if (st->n_pending - st->n_taken > PENDING_MAX) st->n_taken = st->n_pending - PENDING_MAX;
        bool any = st->n_taken < st->n_pending;
        pending_event p = {0};
        if (any) p = st->pending[st->n_taken++ % PENDING_MAX];
        lock_release(&st->events_mu);
        if (!any) return;
        put_event(st, &p);
        webhooks_put(process_of(st->srv)->webhooks, &p.row);
    }
}

/* What was done before this start: the newest rows of the audit. */
void stats_seed_events(stats *st)
{
    stats_take_tenants(st);
    audit_row *rows;
    size_t n;
    if (audit_list(store_of(st->srv), 0, 0, SEED_EVENTS, &rows, &n, NULL)) return;
    for (size_t i = n; i-- > 0;) {
        pending_event p;
        memset(&p, 0, sizeof(p));
        p.wall_us = rows[i].wall_us;
        p.tenant_id = rows[i].tenant_id;
        p.actor = rows[i].actor_key_id;
        snprintf(p.row.level, sizeof(p.row.level), "audit");
        snprintf(p.row.kind, sizeof(p.row.kind), "%s", rows[i].action);
        snprintf(p.row.object, sizeof(p.row.object), "%.*s", PROTO_MODEL_CAP - 1, rows[i].object);
        snprintf(p.row.detail, sizeof(p.row.detail), "%.*s", PROTO_TEXT_CAP - 1, rows[i].detail);
        put_event(st, &p);
    }
    free(rows);
}
