/* telemetry.c -- counters and histograms by class and tenant, and a table of the adapters in use.
 *
 * Threads: the engine records, workers record refusals, and metrics read at any time.  Counters are
 * relaxed atomics, so a reading may mix two moments by a few requests, but no count is lost.
 *
 * Tenants: open addressing in a table that is at least twice as large as max_tenants.  A slot is
 * claimed by one compare-and-swap and never changes its owner.  Tenants beyond max_tenants share
 * slot 0, which bounds the number of metrics.
 *
 * Adapters: a hash table with chains of indices in preallocated entries, under a mutex; an adapter
 * without requests gives its entry back.
 *
 * telemetry_end() is the only place where a request's verdict (met, or missed for a cause) is
 * decided; see engine/watch/cause.h.
 */
#include "engine/sched/telemetry.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "engine/base/hash.h"
#include "engine/base/lock.h"

enum { NONE = -1 };

typedef struct {
    histogram series[SERIES];
    _Atomic uint64_t outcome[OUTCOMES], met[TARGETS], missed[TARGETS];
    _Atomic uint64_t cause[MISS_CAUSES], beside[CAUSE_CLASSES];
} class_counts;

typedef struct {
    _Atomic uint64_t id; /* 0: free */
    histogram ttft, tpot;
    _Atomic uint64_t outcome[OUTCOMES], met, missed, prompt_tokens, output_tokens;
    _Atomic uint64_t cause[MISS_CAUSES];
} tenant_counts;

typedef struct {
    telemetry_adapter a; /* both counts 0: free */
    int next;            /* in its bucket, or in the list of free ones */
} adapter_entry;

struct telemetry {
    int n_class;
    class_counts *classes;
    histogram steps;

    int n_slot; /* of tenants: a power of two, at least twice as many as get one, and slot 0 */
    int max_tenants;
    atomic_int n_tenants;
    tenant_counts *tenants;

    lock mu; /* the adapters */
    adapter_entry *adapters;
    int *bucket;
    int n_bucket, cap, high, free_entry; /* entries from `high` on were never used */
};

const char *request_outcome_name(request_outcome o)
{
    static const char *const names[OUTCOMES] = {"stop",      "length", "refused", "limited",
                                                "cancelled", "failed", "moved"};
    return names[o];
}

/* ------------------------------------------------------------------- lifetime -- */

static const histogram_scale *scale_of(int series)
{
    return series >= SERIES_PROMPT ? &histogram_tokens : &histogram_times;
}

telemetry *telemetry_create(int n_class, int max_tenants, int max_requests)
{
    telemetry *t = calloc(1, sizeof(*t));
    if (!t) return NULL;
    lock_init(&t->mu, LOCK_TELEMETRY);
    t->n_class = n_class;
    t->max_tenants = max_tenants;
    t->cap = max_requests;
    t->free_entry = NONE;
    t->n_slot = t->n_bucket = 16;
    while (t->n_slot < 2 * max_tenants) t->n_slot *= 2;
    while (t->n_bucket < max_requests) t->n_bucket *= 2;
    t->classes = calloc((size_t)n_class, sizeof(*t->classes));
    t->tenants = calloc((size_t)t->n_slot + 1, sizeof(*t->tenants));
    t->adapters = calloc((size_t)max_requests, sizeof(*t->adapters));
    t->bucket = calloc((size_t)t->n_bucket, sizeof(*t->bucket));
    if (!t->classes || !t->tenants || !t->adapters || !t->bucket) {
        telemetry_destroy(t);
        return NULL;
    }
    histogram_init(&t->steps, &histogram_tokens);
    for (int i = 0; i < t->n_bucket; i++) t->bucket[i] = NONE;
    for (int c = 0; c < n_class; c++) {
        for (int k = 0; k < SERIES; k++) histogram_init(&t->classes[c].series[k], scale_of(k));
    }
    for (int i = 0; i <= t->n_slot; i++) {
        histogram_init(&t->tenants[i].ttft, &histogram_times);
        histogram_init(&t->tenants[i].tpot, &histogram_times);
    }
    return t;
}

void telemetry_destroy(telemetry *t)
{
    if (!t) return;
    free(t->classes);
    free(t->tenants);
    free(t->adapters);
    free(t->bucket);
    lock_free(&t->mu);
    free(t);
}

/* -------------------------------------------------------------------- recording -- */

static uint64_t spread(uint64_t id)
{
    return hash_id(id);
}

static void count(_Atomic uint64_t *n)
{
    atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

static uint64_t look(const _Atomic uint64_t *n)
{
    return atomic_load_explicit(n, memory_order_relaxed);
}

/* Claims a slot while there are some; 0: shared. */
static int tenant_slot(telemetry *t, uint64_t id)
{
    if (id == 0) return 0;
    for (uint64_t i = spread(id);; i++) { /* ends: half of the slots stay empty */
        int slot = 1 + (int)(i & (uint64_t)(t->n_slot - 1));
        uint64_t owner = atomic_load(&t->tenants[slot].id);
        if (owner == id) return slot;
        if (owner != 0) continue;
        if (atomic_fetch_add(&t->n_tenants, 1) >= t->max_tenants) {
            atomic_fetch_sub(&t->n_tenants, 1);
            return 0;
        }
        if (atomic_compare_exchange_strong(&t->tenants[slot].id, &owner, id)) return slot;
        atomic_fetch_sub(&t->n_tenants, 1);
        if (owner == id) return slot;
    }
}

void telemetry_enter(telemetry *t, request *rq)
{
    rq->run.telemetry_slot = tenant_slot(t, rq->tenant_id);
}

void telemetry_seat(telemetry *t, const request *rq)
{
    histogram_add(&t->classes[rq->slo_class].series[SERIES_QUEUE],
                  rq->times.admitted_us - rq->arrived_us);
}

void telemetry_token(telemetry *t, const request *rq, int64_t before_us)
{
    class_counts *c = &t->classes[rq->slo_class];
    if (before_us) {
        histogram_add(&c->series[SERIES_ITL], rq->times.last_token_us - before_us);
        return;
    }
    int64_t ttft = rq->times.first_token_us - rq->arrived_us;
    histogram_add(&c->series[SERIES_TTFT], ttft);
    histogram_add(&c->series[SERIES_PREFILL], rq->times.first_token_us - rq->times.admitted_us);
    histogram_add(&t->tenants[rq->run.telemetry_slot].ttft, ttft);
}

/* Counts whether both targets were met. */
static void count_verdict(class_counts *c, tenant_counts *o, cause_verdict v)
{
    count(v.why ? &c->missed[TARGET_BOTH] : &c->met[TARGET_BOTH]);
    count(v.why ? &o->missed : &o->met);
    if (!v.why) return;
    count(&c->cause[v.why]);
    count(&o->cause[v.why]);
    if (v.beside >= 0) count(&c->beside[v.beside]);
}

/* The facts by which cause_judge() decides. */
static cause_life life_of(const request *rq, request_outcome how, err_code code, int made,
                          int64_t now_us)
{
    /* A prompt that is only scored has its first result at the end. */
    int64_t first = rq->times.first_token_us ? rq->times.first_token_us : now_us;
    int64_t decode = made < 2 ? 0 : (made - 1) * rq->tpot_target_us;
    return (cause_life){
        .failed = how == OUTCOME_FAILED,
        .code = code,
        .unloaded = rq->adapter_id != 0 && !rq->run.lora,
        .began = rq->times.first_token_us != 0,
        .ttft_late_us = rq->ttft_deadline_us ? first - rq->ttft_deadline_us : 0,
        .tpot_late_us = decode ? rq->times.last_token_us - first - decode : 0,
        .ttft_target_us = rq->ttft_deadline_us - rq->arrived_us,
        .decode_target_us = decode,
    };
}

static void measure(class_counts *c, tenant_counts *o, const request *rq, int made, int64_t now_us)
{
    histogram_add(&c->series[SERIES_E2E], now_us - rq->arrived_us);
    histogram_add(&c->series[SERIES_INFERENCE], now_us - rq->times.admitted_us);
    histogram_add(&c->series[SERIES_PROMPT], rq->n_prompt);
    histogram_add(&c->series[SERIES_OUTPUT], made);
    histogram_add(&c->series[SERIES_MAX_TOKENS], rq->max_tokens);
    int64_t decode = rq->times.last_token_us - rq->times.first_token_us;
    if (made > 0) histogram_add(&c->series[SERIES_DECODE], decode);
    if (made > 1) {
        histogram_add(&c->series[SERIES_TPOT], decode / (made - 1));
        histogram_add(&o->tpot, decode / (made - 1));
    }
}

void telemetry_end(telemetry *t, request *rq, request_outcome how, err_code code, int64_t now_us)
{
    class_counts *c = &t->classes[rq->slo_class];
    tenant_counts *o = &t->tenants[rq->run.telemetry_slot];
    int pushed = atomic_load_explicit(&rq->out.n_pushed, memory_order_relaxed);
    int made = rq->beams ? beam_length(rq->beams->search) : pushed - rq->out.n_foreign;
    bool complete = how == OUTCOME_STOP || how == OUTCOME_LENGTH;
    cause_life life = life_of(rq, how, code, made, now_us);
    count(&c->outcome[how]);
    count(&o->outcome[how]);
    rq->missed = (cause_verdict){MISS_NONE, -1};
    if (complete || life.failed) {
        rq->missed = cause_judge(&rq->times.clock, &life);
        count_verdict(c, o, rq->missed);
    }
    if (complete) {
        count(life.ttft_late_us > 0 ? &c->missed[TARGET_TTFT] : &c->met[TARGET_TTFT]);
        count(life.tpot_late_us > 0 ? &c->missed[TARGET_TPOT] : &c->met[TARGET_TPOT]);
        measure(c, o, rq, made, now_us);
    }
    /* What it had when it left an engine was counted then. */
    uint32_t prompt = rq->n_given > 0 ? 0 : atomic_load(&rq->meter->prompt_tokens);
    atomic_fetch_add_explicit(&o->prompt_tokens, prompt, memory_order_relaxed);
    int fresh = made - (rq->n_given - rq->out.n_foreign);
    atomic_fetch_add_explicit(&o->output_tokens, (uint64_t)fresh, memory_order_relaxed);
}

void telemetry_refuse(telemetry *t, int class, uint64_t tenant_id, request_outcome how,
                      miss_cause why)
{
    class_counts *c = &t->classes[class];
    tenant_counts *o = &t->tenants[tenant_slot(t, tenant_id)];
    assert((why != MISS_NONE) == (how != OUTCOME_LIMITED));
    count(&c->outcome[how]);
    count(&o->outcome[how]);
    if (how == OUTCOME_REFUSED || how == OUTCOME_FAILED)
        count_verdict(c, o, (cause_verdict){why, -1});
}

void telemetry_step(telemetry *t, int n_rows)
{
    histogram_add(&t->steps, n_rows);
}

/* mu is held.  The entry of an adapter, made when there is none; NULL:
 * more adapters than requests. */
static adapter_entry *adapter_at(telemetry *t, uint64_t id, int *bucket)
{
    lock_assert_held(&t->mu);
    assert(id != 0);
    *bucket = (int)(spread(id) & (uint64_t)(t->n_bucket - 1));
    for (int i = t->bucket[*bucket]; i != NONE; i = t->adapters[i].next) {
        if (t->adapters[i].a.id == id) return &t->adapters[i];
    }
    int i = t->free_entry;
    if (i != NONE)
        t->free_entry = t->adapters[i].next;
    else if (t->high < t->cap)
        i = t->high++;
    else
        return NULL;
    t->adapters[i] = (adapter_entry){.a = {.id = id}, .next = t->bucket[*bucket]};
    t->bucket[*bucket] = i;
    return &t->adapters[i];
}

void telemetry_adapter_add(telemetry *t, uint64_t id, int running, int waiting)
{
    if (id == 0) return;
    int bucket;
    lock_take(&t->mu);
    adapter_entry *en = adapter_at(t, id, &bucket);
    if (en) {
        en->a.running += running;
        en->a.waiting += waiting;
        assert(en->a.running >= 0 && en->a.waiting >= 0);
        if (en->a.running == 0 && en->a.waiting == 0) {
            int i = (int)(en - t->adapters), *link = &t->bucket[bucket];
            while (*link != i) {
                assert(*link != NONE);
                link = &t->adapters[*link].next;
            }
            *link = en->next;
            en->next = t->free_entry;
            t->free_entry = i;
        }
    }
    lock_release(&t->mu);
}

/* --------------------------------------------------------------------- looking -- */

void telemetry_class_get(const telemetry *t, int class, telemetry_class *out)
{
    const class_counts *c = &t->classes[class];
    *out = (telemetry_class){0};
    for (int k = 0; k < SERIES; k++) histogram_read(&c->series[k], &out->series[k]);
    for (int k = 0; k < OUTCOMES; k++) out->outcome[k] = look(&c->outcome[k]);
    for (int k = 0; k < TARGETS; k++) {
        out->met[k] = look(&c->met[k]);
        out->missed[k] = look(&c->missed[k]);
    }
    for (int k = 0; k < MISS_CAUSES; k++) out->cause[k] = look(&c->cause[k]);
    for (int k = 0; k < CAUSE_CLASSES; k++) out->beside[k] = look(&c->beside[k]);
}

int telemetry_tenants_get(const telemetry *t, telemetry_tenant *out, int cap)
{
    int n = 0;
    for (int i = t->n_slot; i >= 0 && n < cap; i--) {
        const tenant_counts *c = &t->tenants[i];
        uint64_t id = look(&c->id);
        if (id == 0 && i > 0) continue;
        telemetry_tenant *o = &out[n++];
        *o = (telemetry_tenant){.id = id};
        histogram_read(&c->ttft, &o->ttft);
        histogram_read(&c->tpot, &o->tpot);
        for (int k = 0; k < OUTCOMES; k++) o->outcome[k] = look(&c->outcome[k]);
        o->met = look(&c->met);
        o->missed = look(&c->missed);
        for (int k = 0; k < MISS_CAUSES; k++) o->cause[k] = look(&c->cause[k]);
        o->prompt_tokens = look(&c->prompt_tokens);
        o->output_tokens = look(&c->output_tokens);
    }
    return n;
}

void telemetry_steps_get(const telemetry *t, histogram_counts *out)
{
    *out = (histogram_counts){0};
    histogram_read(&t->steps, out);
}

int telemetry_adapters_get(telemetry *t, telemetry_adapter *out, int cap)
{
    int n = 0;
    lock_take(&t->mu);
    for (int i = 0; i < t->high && n < cap; i++) {
        const telemetry_adapter *a = &t->adapters[i].a;
        if (a->running > 0 || a->waiting > 0) out[n++] = *a;
    }
    lock_release(&t->mu);
    return n;
}
