/* fair.c -- the waiting queue: flows, counters, and the merge of the flows' heads by the rules of
 * fair.h.
 *
 *   flow = (tenant, class): list of jobs in order of arrival        active[]: flows that wait
 *   heap of heads --pop--> named? --> ticket; the flow's next job enters the heap
 *
 * fair_pick() gives each flow's first eligible head to a heap ordered by goes_before(). What it
 * names counts against tenant and class for the rest of the pick, as if it were running ("ghosts").
 * Ghosts only make a head weaker, so a popped head is compared again and put back if it fell: the
 * heap stays correct without updates.
 *
 * Counters are integers in 1/SCALE of a virtual token divided by the tenant's weight (VTC: Sheng et
 * al. 2024). A request is charged its expected cost on admission; fair_leave() corrects the charge
 * to the real one, so sums are exact. lift_tenant() raises a tenant that starts to wait to the
 * least served waiting one.
 *
 * fair_publish() writes the tenants that changed, and REFRESH others, into the outlook. Cost:
 * O(waiting flows) per pick. Nothing is allocated after creation. Threads: one at a time.
 */
#include "engine/sched/fair.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/heap.h"
#include "engine/sched/policy.h"

enum {
    NONE = -1,
    NEVER = -1,
    SCALE = 65536,           /* counters are in 1/SCALE of a virtual token */
    QUANTUM_JOBS = 8,        /* a tenant's round: so many requests of mean cost */
    CLASS_QUANTUM_JOBS = 64, /* the same for a class */
    FIRST_MEAN = 512,        /* virtual tokens of a request, until some have ended */
    DEMANDS = 3, /* adapters that are asked for at once: the order is ours, not the loader's */
    WINDOW = 64, /* how far into a flow others may pass a head without adapter */
    POPS = 512,  /* heads that one pick looks at */
    CYCLE_US = 500000,        /* an adapter in use so long may have to make room */
    SCARCE_US = 100000,       /* an adapter has waited so long: there is no room */
    CLOSE_AFTER_US = 2500000, /* for one that was asked for so long ago */
    REST_US = 100000,         /* and is not taken up again at once */
    CLOSED_SHARE = 4,         /* at most every so many-th adapter in use takes nobody new */
    REFRESH = 64,             /* flows whose share is brought up to date in one fair_publish() */
};

static const double patience = 0.9;        /* share of its target that a request may wait for
                                            * others with the same adapter */
static const double least_memory_us = 2e6; /* of a flow's share of the device */
/* Weight of "an equal share" where little was seen, in requests of mean cost: until a flow could
 * have had so many served, its share says more about chance than about the flow. */
static const double prior_jobs = 4;

enum { FREE, WAITING, RUNNING };

typedef struct {
    void *who;
    int state, tenant, slo, adapter; /* adapter: entry or NONE */
    int prev, next;                  /* in its flow; next also: free list */
    int64_t arrived_us, deadline_us;
    int prompt, output;
    int64_t unit;          /* counter per virtual token: SCALE over the tenant's weight */
    int64_t charged, used; /* virtual tokens */
    int made;
    int64_t seated_us;
    int64_t head_us; /* since when it is the head of its flow, less what it ran since; or NEVER */
} job;

typedef struct {
    int head, tail, n;
    int n_aging;            /* of those that wait: have been the head */
    int active;             /* place in f->active or NONE */
    int64_t prompt, output; /* sums over those that wait */
    int64_t seen_us;
    double served_us, waited_us; /* decayed: device time given while it waited; time it waited */
} flow;

typedef struct {
    uint64_t id;
    int64_t served, settled; /* counter; what left with requests that ended, and lifts */
    int64_t ghost;
    int64_t unit; /* as its latest request's */
    int inside, waiting;
    bool dirty;
} tenant;

typedef struct {
    uint64_t id;
    int next; /* hash chain, free list */
    int running, waiting;
    int used_prev, used_next; /* list of those in use, by the time they came into use */
    int64_t used_us, blocked_us, closed_us; /* in use since; asked for since; closed until */
    bool blocked;
    int late_prev, late_next; /* list of the blocked, by blocked_us */
} entry;

/* The values by which heads of flows are compared. */
typedef struct {
    int ticket;
    bool aged, near;
    int64_t since_us;
    int rank, company;
    int64_t tenant_round, class_round, deadline_us, served, arrived_us;
} head;

typedef struct {
    double row_us, output_us, step_us;
} prices;

struct fair {
    fair_config cfg;
    job *jobs; /* [cap] */
    int free_job, n_waiting;
    int64_t prompt; /* tokens of the prompts that wait */
    tenant tenants[PROMISE_TENANTS];
    int n_tenants;
    flow *flows; /* [PROMISE_TENANTS][n_class] */
    int *active; /* flows with somebody */
    int n_active;
    int64_t class_served[PROMISE_CLASSES], class_unit[PROMISE_CLASSES];
    int64_t class_ghost[PROMISE_CLASSES], class_settled[PROMISE_CLASSES];
    int class_waiting[PROMISE_CLASSES];
    int64_t tenant_floor, class_floor;
    entry *entries; /* [cap] */
    int free_entry, *bucket, mask;
    int n_blocked, used_first, used_last, n_used, late_first, late_last;
    head *heap;
    int n_heap;
    int ghosts[FAIR_PICKS], n_ghosts;
    int64_t mean; /* virtual tokens of a request, in 1/16 */
    prices price;
    double stay_us;  /* mean time in a seat */
    double fetch_us; /* mean time from asking for an adapter to the first seat with it */
    bool scarce;     /* adapters wait for room */
    int dirty[PROMISE_TENANTS], n_dirty, refresh;
};

/* ----------------------------------------------------------------------------------- classes -- */

/* A weight that is not positive counts as the lowest one. */
static void price_classes(fair *f)
{
    double sum = 0;
    for (int c = 0; c < f->cfg.n_class; c++) sum += f->cfg.classes[c].weight;
    for (int c = 0; c < f->cfg.n_class; c++) {
        double unit = SCALE * sum / f->cfg.classes[c].weight;
        f->class_unit[c] = unit > 0 && unit < 1e9 ? llround(unit) : 1000000000;
    }
}

void fair_set_classes(fair *f, const fair_class *classes)
{
    int64_t before[PROMISE_CLASSES];
    memcpy(before, f->class_unit, sizeof(before));
    memcpy(f->cfg.classes, classes, (size_t)f->cfg.n_class * sizeof(*classes));
    price_classes(f);
    /* Charges at the old price stay: the sums are corrected, not the counters. */
    for (int i = 0; i < f->cfg.cap; i++) {
        const job *j = &f->jobs[i];
        if (j->state != FREE)
            f->class_settled[j->slo] += j->charged * (before[j->slo] - f->class_unit[j->slo]);
    }
}

/* ---------------------------------------------------------------------------------- lifetime -- */

fair *fair_create(const fair_config *cfg)
{
    assert(cfg->n_class > 0 && cfg->n_class <= PROMISE_CLASSES && cfg->cap > 0);
    fair *f = calloc(1, sizeof(*f));
    if (!f) return NULL;
    f->cfg = *cfg;
    size_t cap = (size_t)cfg->cap, n_flow = (size_t)PROMISE_TENANTS * (size_t)cfg->n_class;
    int buckets = 64;
    while (buckets < cfg->cap) buckets *= 2;
    f->mask = buckets - 1;
    f->jobs = calloc(cap, sizeof(*f->jobs));
    f->entries = calloc(cap, sizeof(*f->entries));
    f->flows = calloc(n_flow, sizeof(*f->flows));
    f->active = calloc(n_flow, sizeof(*f->active));
    f->heap = calloc(n_flow + FAIR_PICKS, sizeof(*f->heap));
    f->bucket = calloc((size_t)buckets, sizeof(*f->bucket));
    if (!f->jobs || !f->entries || !f->flows || !f->active || !f->heap || !f->bucket) {
        fair_destroy(f);
        return NULL;
    }
    for (int i = 0; i < cfg->cap; i++) f->jobs[i].next = f->entries[i].next = i + 1;
    f->jobs[cfg->cap - 1].next = f->entries[cfg->cap - 1].next = NONE;
    for (size_t i = 0; i < n_flow; i++) f->flows[i] = (flow){NONE, NONE, .active = NONE};
    for (int i = 0; i < buckets; i++) f->bucket[i] = NONE;
    f->used_first = f->used_last = f->late_first = f->late_last = NONE;
    price_classes(f);
    f->mean = FIRST_MEAN * 16;
    return f;
}

void fair_destroy(fair *f)
{
    if (!f) return;
    free(f->jobs);
    free(f->entries);
    free(f->flows);
    free(f->active);
    free(f->heap);
    free(f->bucket);
    free(f);
}

/* ---------------------------------------------------------------------------------- adapters -- */

static int *chain_of(fair *f, uint64_t id)
{
    return &f->bucket[(int)hash_id(id) & f->mask];
}

static int entry_find(const fair *f, uint64_t id)
{
    int i = f->bucket[(int)hash_id(id) & f->mask];
    while (i != NONE && f->entries[i].id != id) i = f->entries[i].next;
    return i;
}

/* Each request has at most one entry, so there are enough. */
static int entry_hold(fair *f, uint64_t id)
{
    if (id == 0) return NONE;
    int i = entry_find(f, id);
    if (i == NONE) {
        i = f->free_entry;
        assert(i != NONE);
        f->free_entry = f->entries[i].next;
        int *chain = chain_of(f, id);
        f->entries[i] = (entry){.id = id, .next = *chain};
        *chain = i;
    }
    f->entries[i].waiting++;
    return i;
}

static void entry_unblock(fair *f, int i)
{
    entry *en = &f->entries[i];
    if (!en->blocked) return;
    en->blocked = false;
    *(en->late_prev == NONE ? &f->late_first : &f->entries[en->late_prev].late_next) =
        en->late_next;
    *(en->late_next == NONE ? &f->late_last : &f->entries[en->late_next].late_prev) = en->late_prev;
    f->n_blocked--;
}

static void entry_drop(fair *f, int i)
{
    entry *en = &f->entries[i];
    if (en->running > 0 || en->waiting > 0) return;
    entry_unblock(f, i);
    int *link = chain_of(f, en->id);
    while (*link != i) link = &f->entries[*link].next;
    *link = en->next;
    en->next = f->free_entry;
    f->free_entry = i;
}

static void entry_run(fair *f, int i, int64_t now_us)
{
    if (i == NONE) return;
    entry *en = &f->entries[i];
    en->waiting--;
    if (en->blocked) f->fetch_us += 0.05 * ((double)(now_us - en->blocked_us) - f->fetch_us);
    entry_unblock(f, i);
    if (en->running++ > 0) return;
    en->used_us = now_us;
    en->closed_us = 0;
    en->used_prev = f->used_last;
    en->used_next = NONE;
    *(f->used_last == NONE ? &f->used_first : &f->entries[f->used_last].used_next) = i;
    f->used_last = i;
    f->n_used++;
}

static void entry_stop(fair *f, int i, int64_t now_us)
{
    if (i == NONE) return;
    entry *en = &f->entries[i];
    if (--en->running > 0) return;
    if (en->closed_us) en->closed_us = now_us + REST_US;
    *(en->used_prev == NONE ? &f->used_first : &f->entries[en->used_prev].used_next) =
        en->used_next;
    *(en->used_next == NONE ? &f->used_last : &f->entries[en->used_next].used_prev) = en->used_prev;
    f->n_used--;
}

/* ---------------------------------------------------------------------------------- counters -- */

static void mark(fair *f, int t)
{
    if (f->tenants[t].dirty) return;
    f->tenants[t].dirty = true;
    f->dirty[f->n_dirty++] = t;
}

static void charge(fair *f, job *j, int64_t tokens)
{
    j->charged += tokens;
    f->tenants[j->tenant].served += tokens * j->unit;
    f->class_served[j->slo] += tokens * f->class_unit[j->slo];
}

/* What a request is expected to cost (VTC with a prediction of the length). */
static int64_t expected_cost(const job *j)
{
    return j->prompt + FAIR_OUTPUT_PRICE * (int64_t)(j->output > j->made ? j->output : j->made);
}

/* A counter belongs to its tenant while one of its requests is here, and afterwards until it is
 * needed. */
static int tenant_slot(fair *f, uint64_t id)
{
    int victim = NONE;
    for (int i = 0; i < f->n_tenants; i++) {
        const tenant *t = &f->tenants[i];
        if (t->id == id) return i;
        if (t->inside == 0 && (victim == NONE || t->served < f->tenants[victim].served)) victim = i;
    }
    if (f->n_tenants < PROMISE_TENANTS)
        victim = f->n_tenants++;
    else if (victim == NONE) /* all are inside: two tenants share one counter */
        return (int)(id % PROMISE_TENANTS);
    bool dirty = f->tenants[victim].dirty;
    f->tenants[victim] = (tenant){.id = id, .dirty = dirty};
    return victim;
}

/* VTC's counter lift: a tenant that begins to wait starts level with the least served waiting
 * tenant, or where the last one stopped waiting; it keeps no old credit. */
static void lift_tenant(fair *f, int t)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < f->n_tenants; i++) {
        if (f->tenants[i].waiting > 0 && f->tenants[i].served < least) least = f->tenants[i].served;
    }
    if (least == INT64_MAX) least = f->tenant_floor;
    int64_t lift = least - f->tenants[t].served;
    if (lift <= 0) return;
    f->tenants[t].served += lift;
    f->tenants[t].settled += lift;
}

static void lift_class(fair *f, int c)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < f->cfg.n_class; i++) {
        if (f->class_waiting[i] > 0 && f->class_served[i] < least) least = f->class_served[i];
    }
    if (least == INT64_MAX) least = f->class_floor;
    int64_t lift = least - f->class_served[c];
    if (lift <= 0) return;
    f->class_served[c] += lift;
    f->class_settled[c] += lift;
}

/* ------------------------------------------------------------------------------------- flows -- */

static flow *flow_at(const fair *f, int t, int slo)
{
    return &f->flows[t * f->cfg.n_class + slo];
}

static double work_us(const fair *f, int64_t prompt, int64_t output)
{
    return (double)prompt * f->price.row_us + (double)output * f->price.output_us;
}

/* The flow's share of the device is remembered for about as long as its class's target. */
static void flow_tick(const fair *f, flow *fl, int slo, int64_t now_us)
{
    double dt = (double)(now_us - fl->seen_us);
    if (dt <= 0) return;
    double keep = exp(-dt / fmax(least_memory_us, 0.25 * (double)f->cfg.classes[slo].ttft_us));
    fl->served_us *= keep;
    fl->waited_us = fl->waited_us * keep + (fl->n > 0 ? dt : 0);
    fl->seen_us = now_us;
}

/* The head of a flow begins to age.  A pre-empted request continues its age, and may return behind
 * younger ones that arrived before it: the head is as old as the oldest of its flow, because the
 * others' turn is behind its own. */
static void be_head(fair *f, flow *fl, int64_t now_us)
{
    if (fl->head == NONE) return;
    job *j = &f->jobs[fl->head];
    if (j->head_us == NEVER) {
        j->head_us = now_us;
        fl->n_aging++;
    }
    int left = fl->n_aging - 1;
    for (int i = j->next; left > 0 && i != NONE; i = f->jobs[i].next) {
        if (f->jobs[i].head_us == NEVER) continue;
        if (f->jobs[i].head_us < j->head_us) j->head_us = f->jobs[i].head_us;
        left--;
    }
    assert(left == 0);
}

static void flow_link(fair *f, int i, int after, int64_t now_us)
{
    job *j = &f->jobs[i];
    flow *fl = flow_at(f, j->tenant, j->slo);
    flow_tick(f, fl, j->slo, now_us);
    j->prev = after;
    j->next = after == NONE ? fl->head : f->jobs[after].next;
    *(j->prev == NONE ? &fl->head : &f->jobs[j->prev].next) = i;
    *(j->next == NONE ? &fl->tail : &f->jobs[j->next].prev) = i;
    fl->n_aging += j->head_us != NEVER;
    be_head(f, fl, now_us);
    if (fl->n++ == 0) {
        fl->active = f->n_active;
        f->active[f->n_active++] = j->tenant * f->cfg.n_class + j->slo;
    }
    fl->prompt += j->prompt;
    f->prompt += j->prompt;
    fl->output += j->output;
    f->n_waiting++;
    f->tenants[j->tenant].waiting++;
    f->class_waiting[j->slo]++;
    mark(f, j->tenant);
}

static void flow_unlink(fair *f, int i, int64_t now_us)
{
    job *j = &f->jobs[i];
    flow *fl = flow_at(f, j->tenant, j->slo);
    flow_tick(f, fl, j->slo, now_us);
    *(j->prev == NONE ? &fl->head : &f->jobs[j->prev].next) = j->next;
    *(j->next == NONE ? &fl->tail : &f->jobs[j->next].prev) = j->prev;
    fl->n_aging -= j->head_us != NEVER;
    be_head(f, fl, now_us);
    if (--fl->n == 0) {
        int last = f->active[--f->n_active];
        f->active[fl->active] = last;
        f->flows[last].active = fl->active;
        fl->active = NONE;
    }
    fl->prompt -= j->prompt;
    f->prompt -= j->prompt;
    fl->output -= j->output;
    f->n_waiting--;
    if (--f->tenants[j->tenant].waiting == 0) f->tenant_floor = f->tenants[j->tenant].served;
    if (--f->class_waiting[j->slo] == 0) f->class_floor = f->class_served[j->slo];
    mark(f, j->tenant);
}

static void wait_again(fair *f, int i)
{
    job *j = &f->jobs[i];
    j->state = WAITING;
    if (f->tenants[j->tenant].waiting == 0) lift_tenant(f, j->tenant);
    if (f->class_waiting[j->slo] == 0) lift_class(f, j->slo);
}

/* -------------------------------------------------------------------------------- life cycle -- */

int fair_enter(fair *f, const fair_job *in, int64_t now_us)
{
    int i = f->free_job;
    assert(i != NONE);
    f->free_job = f->jobs[i].next;
    int t = tenant_slot(f, in->tenant);
    f->jobs[i] = (job){.who = in->who,
                       .tenant = t,
                       .slo = in->slo,
                       .adapter = entry_hold(f, in->adapter),
                       .arrived_us = in->arrived_us,
                       .deadline_us = in->deadline_us,
                       .prompt = in->prompt,
                       .output = in->output,
                       .head_us = NEVER,
                       .unit = llround(fmin(1e9, fmax(1, SCALE / in->weight)))};
    wait_again(f, i);
    f->tenants[t].inside++;
    f->tenants[t].unit = f->jobs[i].unit;
    int after = flow_at(f, t, in->slo)->tail;
    while (after != NONE && f->jobs[after].arrived_us > in->arrived_us) after = f->jobs[after].prev;
    flow_link(f, i, after, now_us);
    return i;
}

void *fair_who(const fair *f, int ticket)
{
    return f->jobs[ticket].who;
}

void fair_seat(fair *f, int ticket, int64_t now_us)
{
    job *j = &f->jobs[ticket];
    assert(j->state == WAITING);
    flow_unlink(f, ticket, now_us);
    flow_at(f, j->tenant, j->slo)->served_us += work_us(f, j->prompt, j->output);
    entry_run(f, j->adapter, now_us);
    j->state = RUNNING;
    j->seated_us = now_us;
    int64_t more = expected_cost(j) - j->charged;
    if (more > 0) charge(f, j, more);
}

void fair_back(fair *f, int ticket, int64_t now_us)
{
    job *j = &f->jobs[ticket];
    assert(j->state == RUNNING);
    charge(f, j, j->used - j->charged);
    if (j->head_us != NEVER) j->head_us += now_us - j->seated_us;
    wait_again(f, ticket);
    if (j->adapter != NONE) f->entries[j->adapter].waiting++;
    entry_stop(f, j->adapter, now_us);
    int after = NONE, next = flow_at(f, j->tenant, j->slo)->head;
    while (next != NONE && f->jobs[next].arrived_us < j->arrived_us) {
        after = next;
        next = f->jobs[next].next;
    }
    flow_link(f, ticket, after, now_us);
}

void fair_block(fair *f, int ticket, int64_t now_us)
{
    int i = f->jobs[ticket].adapter;
    if (i == NONE || f->entries[i].blocked) return;
    entry *en = &f->entries[i];
    en->blocked = true;
    f->n_blocked++;
    en->blocked_us = now_us;
    en->late_prev = f->late_last;
    en->late_next = NONE;
    *(f->late_last == NONE ? &f->late_first : &f->entries[f->late_last].late_next) = i;
    f->late_last = i;
}

void fair_charge(fair *f, int ticket, int prompt, int output)
{
    job *j = &f->jobs[ticket];
    j->used += prompt + FAIR_OUTPUT_PRICE * output;
    j->made += output;
    if (j->used > j->charged) charge(f, j, j->used - j->charged);
}

void fair_leave(fair *f, int ticket, int64_t now_us)
{
    job *j = &f->jobs[ticket];
    assert(j->state != FREE);
    charge(f, j, j->used - j->charged);
    if (j->made > 0) f->mean += (j->used * 16 - f->mean) / 64;
    f->tenants[j->tenant].settled += j->used * j->unit;
    f->class_settled[j->slo] += j->used * f->class_unit[j->slo];
    if (j->state == WAITING) {
        flow_unlink(f, ticket, now_us);
        if (j->adapter != NONE) f->entries[j->adapter].waiting--;
    } else {
        entry_stop(f, j->adapter, now_us);
        f->stay_us += 0.01 * ((double)(now_us - j->seated_us) - f->stay_us);
    }
    if (j->adapter != NONE) entry_drop(f, j->adapter);
    f->tenants[j->tenant].inside--;
    j->state = FREE;
    j->next = f->free_job;
    f->free_job = ticket;
}

/* ------------------------------------------------------------------------------------- rules -- */

/* Rule 1, and the proof that nobody starves: a head that waits too long goes before all others, one
 * of each flow at a time. */
static bool is_aged(const fair *f, const job *j, int64_t now_us)
{
    return f->cfg.ageing_us > 0 && j->head_us != NEVER && now_us - j->head_us > f->cfg.ageing_us;
}

/* Rules 2 and 3: how many quanta before the least served (deficit round robin; DLPM). */
static int64_t round_of(int64_t served, int64_t least, int64_t quantum)
{
    return served <= least ? 0 : (served - least) / quantum;
}

/* Its target for the first token: its class's, or its tenant's own. */
static double target_us(const fair *f, const job *j)
{
    return (double)(j->deadline_us ? j->deadline_us - j->arrived_us
                                   : f->cfg.classes[j->slo].ttft_us);
}

/* Rule 5: in the last part of its time, and it can still be met; what is missed is no hurry. */
static bool is_near(const fair *f, const job *j, int64_t now_us)
{
    int64_t slack = j->deadline_us - now_us;
    if (j->deadline_us == 0 || (double)slack < j->prompt * f->price.row_us) return false;
    return (double)slack < policy_hurry * target_us(f, j);
}

/* Rule 6: FastServe's skip-join: a prompt that alone outlasts its target hurts those it would go
 * before, and gains nothing. */
static int rank_of(const fair *f, const job *j)
{
    const fair_class *c = &f->cfg.classes[j->slo];
    double target = target_us(f, j);
    bool too_long = target > 0 && j->prompt * f->price.row_us > target;
    return c->rank + too_long;
}

/* Rule 4: one load serves all requests that wait for the adapter (S-LoRA's clusters) and occupies
 * memory while their answers run. When memory is short, many waiting requests and short answers go
 * first. */
static int company_of(const fair *f, const job *j)
{
    if (!f->scarce) return 0;
    if (j->adapter == NONE || f->entries[j->adapter].running > 0) return INT_MAX;
    return (int)(1e6 * sqrt(f->entries[j->adapter].waiting) / (1 + j->output));
}

/* While memory for adapters is short, a request with time to spare does not ask for an unused
 * adapter. It waits for others with the same one, until most of its time is gone or an urgent
 * request loads it. */
static bool waits_for_company(const fair *f, const job *j, int64_t now_us)
{
    double spare = patience * target_us(f, j) - 2 * f->stay_us;
    return f->scarce && (double)(now_us - j->arrived_us) < spare;
}

typedef struct {
    int64_t least_tenant, least_class, tenant_quantum, class_quantum, now_us;
} view;

static void describe(const fair *f, const view *v, int ticket, head *h)
{
    const job *j = &f->jobs[ticket];
    const tenant *t = &f->tenants[j->tenant];
    h->ticket = ticket;
    h->aged = is_aged(f, j, v->now_us);
    h->tenant_round = round_of(t->served + t->ghost, v->least_tenant, v->tenant_quantum);
    h->class_round = round_of(f->class_served[j->slo] + f->class_ghost[j->slo], v->least_class,
                              v->class_quantum);
    h->near = is_near(f, j, v->now_us);
    h->since_us = j->head_us;
    h->deadline_us = j->deadline_us;
    h->rank = rank_of(f, j);
    h->served = t->served + t->ghost;
    h->arrived_us = j->arrived_us;
    h->company = company_of(f, j);
}

/* The rules of fair.h, in their order. */
static bool goes_before(const head *x, const head *y)
{
    if (x->aged != y->aged) return x->aged;
    if (x->aged && x->since_us != y->since_us) return x->since_us < y->since_us;
    if (x->tenant_round != y->tenant_round) return x->tenant_round < y->tenant_round;
    if (x->class_round != y->class_round) return x->class_round < y->class_round;
    if (x->company != y->company) return x->company > y->company;
    if (x->near != y->near) return x->near;
    if (x->near && x->deadline_us != y->deadline_us) return x->deadline_us < y->deadline_us;
    if (x->rank != y->rank) return x->rank < y->rank;
    if (x->served != y->served) return x->served < y->served;
    if (x->arrived_us != y->arrived_us) return x->arrived_us < y->arrived_us;
    return x->ticket < y->ticket;
}

/* -------------------------------------------------------------------------------------- heap -- */

static bool head_before(const void *self, const void *x, const void *y)
{
    (void)self;
    return goes_before(x, y);
}

static const heap_of heads = {sizeof(head), head_before, NULL};

static void sink_first(fair *f)
{
    heap_sink(&heads, NULL, f->heap, (size_t)f->n_heap, 0);
}

static void pop(fair *f)
{
    f->heap[0] = f->heap[--f->n_heap];
    if (f->n_heap > 0) sink_first(f);
}

/* Replaces the top of the heap, by the next job of that flow. */
static void replace(fair *f, const head *h)
{
    f->heap[0] = *h;
    sink_first(f);
}

/* -------------------------------------------------------------------------------------- pick -- */

/* LoRAX's cycle: when adapters have been blocked too long, as many of the long-used ones with the
 * fewest requests take no new requests, and are free when those end. */
static void close_adapters(fair *f, int64_t now_us)
{
    int starving = 0, count[16] = {0}, most = 0, sum = 0;
    for (int i = f->late_first; i != NONE && starving < f->n_used; i = f->entries[i].late_next) {
        if (now_us - f->entries[i].blocked_us <= CLOSE_AFTER_US) break;
        starving++;
    }
    int wanted = starving < f->n_used / CLOSED_SHARE ? starving : f->n_used / CLOSED_SHARE;
    if (starving > 0 && wanted == 0) wanted = 1;
    for (int i = f->used_first; i != NONE; i = f->entries[i].used_next) {
        entry *en = &f->entries[i];
        en->closed_us = 0;
        if (now_us - en->used_us > CYCLE_US) count[en->running < 15 ? en->running : 15]++;
    }
    if (wanted == 0) return;
    while (most < 15 && sum < wanted) sum += count[++most];
    for (int i = f->used_first; i != NONE && wanted > 0; i = f->entries[i].used_next) {
        entry *en = &f->entries[i];
        if (now_us - en->used_us <= CYCLE_US || (most < 15 && en->running > most)) continue;
        en->closed_us = INT64_MAX;
        wanted--;
    }
}

static bool is_closed(const fair *f, const job *j, int64_t now_us)
{
    return j->adapter != NONE && f->entries[j->adapter].closed_us > now_us;
}

/* No running request uses its adapter: admitting it may need a load. */
static bool is_cold(const fair *f, const job *j)
{
    return j->adapter != NONE && f->entries[j->adapter].running == 0;
}

static bool is_blocked(const fair *f, const job *j)
{
    return is_cold(f, j) && f->entries[j->adapter].blocked;
}

/* `asked`: adapters that this pick has named beyond those that were asked for before. */
static bool may_be_named(const fair *f, const job *j, int64_t now_us, int asked)
{
    if (!is_cold(f, j)) return !is_closed(f, j, now_us);
    if (is_blocked(f, j)) return true;
    if (is_closed(f, j, now_us)) return false;
    return f->n_blocked + asked < DEMANDS && !waits_for_company(f, j, now_us);
}

/* The first from `i` on that may be named, at most WINDOW further on; NONE: nobody. */
static int next_open(const fair *f, int i, int64_t now_us, int asked)
{
    for (int seen = 0; i != NONE && seen < WINDOW; i = f->jobs[i].next, seen++) {
        if (may_be_named(f, &f->jobs[i], now_us, asked)) return i;
    }
    return NONE;
}

static void fill_heap(fair *f, view *v)
{
    v->least_tenant = v->least_class = INT64_MAX;
    for (int a = 0; a < f->n_active; a++) {
        int64_t served = f->tenants[f->active[a] / f->cfg.n_class].served;
        if (served < v->least_tenant) v->least_tenant = served;
    }
    for (int c = 0; c < f->cfg.n_class; c++) {
        if (f->class_waiting[c] > 0 && f->class_served[c] < v->least_class)
            v->least_class = f->class_served[c];
    }
    f->n_heap = 0;
    for (int a = 0; a < f->n_active; a++) {
        int i = next_open(f, f->flows[f->active[a]].head, v->now_us, 0);
        if (i != NONE) describe(f, v, i, &f->heap[f->n_heap++]);
    }
    heap_make(&heads, NULL, f->heap, (size_t)f->n_heap);
}

static void clear_ghosts(fair *f)
{
    for (int i = 0; i < f->n_ghosts; i++) f->tenants[f->ghosts[i]].ghost = 0;
    memset(f->class_ghost, 0, sizeof(f->class_ghost));
    f->n_ghosts = 0;
}

static void add_ghost(fair *f, const job *j)
{
    int64_t cost = expected_cost(j) - j->charged;
    if (f->tenants[j->tenant].ghost == 0) f->ghosts[f->n_ghosts++] = j->tenant;
    f->tenants[j->tenant].ghost += cost * j->unit;
    f->class_ghost[j->slo] += cost * f->class_unit[j->slo];
}

int fair_pick(fair *f, int64_t now_us, int want, int *tickets)
{
    if (want > FAIR_PICKS) want = FAIR_PICKS;
    if (f->n_waiting == 0 || want <= 0) return 0;
    view v = {.tenant_quantum = f->mean * (QUANTUM_JOBS * SCALE / 16),
              .class_quantum = f->mean * (CLASS_QUANTUM_JOBS * SCALE / 16),
              .now_us = now_us};
    f->scarce = f->late_first != NONE && now_us - f->entries[f->late_first].blocked_us > SCARCE_US;
    close_adapters(f, now_us);
    fill_heap(f, &v);
    int n = 0, asked = 0;
    for (int pops = 0; n < want && f->n_heap > 0 && pops < POPS; pops++) {
        head now;
        const job *j = &f->jobs[f->heap[0].ticket];
        describe(f, &v, f->heap[0].ticket, &now);
        if (goes_before(&f->heap[0], &now)) { /* it became weaker: put it back */
            replace(f, &now);
            continue;
        }
        if (may_be_named(f, j, now_us, asked)) {
            bool blocked = is_blocked(f, j);
            tickets[n++] = now.ticket;
            asked += is_cold(f, j) && !blocked;
            if (!blocked) add_ghost(f, j);
        }
        int next = next_open(f, j->next, now_us, asked);
        if (next == NONE) {
            pop(f);
        } else {
            describe(f, &v, next, &now);
            replace(f, &now);
        }
    }
    clear_ghosts(f);
    return n;
}

/* -------------------------------------------------------------------------------------- asks -- */

int fair_scan(const fair *f, int *cursor, int n, int *tickets)
{
    int found = 0;
    for (int looked = 0; looked < f->cfg.cap && looked < n; looked++) {
        if (*cursor >= f->cfg.cap) *cursor = 0;
        int i = (*cursor)++;
        if (f->jobs[i].state == WAITING) tickets[found++] = i;
    }
    return found;
}

int fair_waiting(const fair *f)
{
    return f->n_waiting;
}

bool fair_is_waiting(const fair *f, int ticket)
{
    return f->jobs[ticket].state == WAITING;
}

bool fair_is_aged(const fair *f, int ticket, int64_t now_us)
{
    return f->jobs[ticket].state == WAITING && is_aged(f, &f->jobs[ticket], now_us);
}

int64_t fair_age_us(const fair *f, int ticket, int64_t now_us)
{
    const job *j = &f->jobs[ticket];
    return j->state == WAITING && j->head_us != NEVER ? now_us - j->head_us : 0;
}

bool fair_is_rich(const fair *f, int ticket)
{
    double weights = 0, seats = 0;
    const tenant *own = &f->tenants[f->jobs[ticket].tenant];
    for (int i = 0; i < f->n_tenants; i++) {
        const tenant *t = &f->tenants[i];
        if (t->inside > 0) weights += SCALE / (double)t->unit;
        seats += t->inside - t->waiting;
    }
    double share = SCALE / (double)own->unit / weights;
    return own->inside - own->waiting > share * seats;
}

int fair_sharers(const fair *f, int ticket)
{
    const job *j = &f->jobs[ticket];
    return j->adapter == NONE ? 1 : f->entries[j->adapter].running + (j->state != RUNNING);
}

int64_t fair_served(const fair *f, int ticket)
{
    return f->tenants[f->jobs[ticket].tenant].served;
}

bool fair_tenant(const fair *f, int i, uint64_t *id, double *served, int *inside)
{
    if (i >= f->n_tenants) return false;
    *id = f->tenants[i].id;
    *served = (double)f->tenants[i].served / SCALE;
    *inside = f->tenants[i].inside;
    return true;
}

bool fair_in_use(const fair *f, uint64_t adapter)
{
    int i = adapter ? entry_find(f, adapter) : NONE;
    return adapter == 0 || (i != NONE && f->entries[i].running > 0);
}

void fair_set_prices(fair *f, double row_us, double output_us, double step_us)
{
    f->price.row_us = row_us;
    f->price.output_us = output_us;
    f->price.step_us = step_us;
}

/* ----------------------------------------------------------------------------------- outlook -- */

/* Device time of a request of mean cost. */
static double mean_job_us(const fair *f)
{
    return (double)f->mean / 16 / FAIR_OUTPUT_PRICE * f->price.output_us;
}

static void publish_tenant(fair *f, promise_outlook *o, int t, int64_t now_us)
{
    promise_tenant *p = &o->tenant[t];
    double prior_us = prior_jobs * mean_job_us(f);
    o->id[t] = f->tenants[t].id;
    for (int c = 0; c < f->cfg.n_class; c++) {
        flow *fl = flow_at(f, t, c);
        flow_tick(f, fl, c, now_us);
        p->n[c] = fl->n;
        p->work_us[c] = (float)work_us(f, fl->prompt, fl->output);
        double waited_us = fl->waited_us + prior_us * (f->n_active + 1);
        p->share[c] = (float)(waited_us > 0 ? fmin(1, (fl->served_us + prior_us) / waited_us) : 0);
    }
}

void fair_publish(fair *f, promise_outlook *o, int64_t now_us)
{
    for (int i = 0; i < f->n_dirty; i++) {
        f->tenants[f->dirty[i]].dirty = false;
        publish_tenant(f, o, f->dirty[i], now_us);
    }
    f->n_dirty = 0;
    for (int i = 0; i < REFRESH && i < f->n_active; i++) { /* time goes by for those that wait */
        f->refresh = f->refresh + 1 < f->n_active ? f->refresh + 1 : 0;
        publish_tenant(f, o, f->active[f->refresh] / f->cfg.n_class, now_us);
    }
    o->n_class = f->cfg.n_class;
    o->n_tenant = f->n_tenants;
    for (int c = 0; c < f->cfg.n_class; c++) o->rank[c] = f->cfg.classes[c].rank;
    o->row_us = f->price.row_us;
    o->output_us = f->price.output_us;
    o->step_us = f->price.step_us;
    o->job_us = mean_job_us(f);
    o->quantum_us = 2 * o->job_us;
    o->fetch_us = f->scarce && f->n_blocked > 0 ? f->fetch_us : 0;
    o->n_waiting = f->n_waiting;
    o->prompt_tokens = f->prompt;
}

/* ------------------------------------------------------------------------------------ checks -- */

static bool check_flow(const fair *f, int index, int *n_waiting, int64_t *waiting)
{
    const flow *fl = &f->flows[index];
    int n = 0, prev = NONE;
    int64_t prompt = 0, output = 0;
    for (int i = fl->head; i != NONE; i = f->jobs[i].next) {
        const job *j = &f->jobs[i];
        if (j->state != WAITING || j->prev != prev) return false;
        if (j->tenant * f->cfg.n_class + j->slo != index || n > f->cfg.cap) return false;
        if (prev != NONE && f->jobs[prev].arrived_us > j->arrived_us) return false;
        prompt += j->prompt;
        output += j->output;
        prev = i;
        n++;
    }
    *n_waiting += n;
    *waiting += prompt;
    return n == fl->n && prev == fl->tail && prompt == fl->prompt && output == fl->output &&
           (n == 0) == (fl->active == NONE) && (n == 0 || f->active[fl->active] == index);
}

bool fair_check(const fair *f)
{
    int n = 0, inside = 0, running = 0, entry_running = 0;
    int64_t waiting = 0;
    for (int i = 0; i < PROMISE_TENANTS * f->cfg.n_class; i++) {
        if (!check_flow(f, i, &n, &waiting)) return false;
    }
    int64_t class_sum[PROMISE_CLASSES] = {0};
    for (int t = 0; t < f->n_tenants; t++) inside += f->tenants[t].inside;
    for (int i = 0; i < f->cfg.cap; i++) {
        const job *j = &f->jobs[i];
        if (j->state == FREE) continue;
        inside--;
        running += j->state == RUNNING && j->adapter != NONE;
        class_sum[j->slo] += j->charged * f->class_unit[j->slo];
        if (j->used > j->charged || (j->state == WAITING && j->used != j->charged)) return false;
    }
    if (n != f->n_waiting || waiting != f->prompt || inside != 0) return false;
    for (int c = 0; c < f->cfg.n_class; c++) {
        if (f->class_served[c] != f->class_settled[c] + class_sum[c]) return false;
    }
    for (int t = 0; t < f->n_tenants; t++) {
        int64_t sum = f->tenants[t].settled;
        for (int i = 0; f->tenants[t].inside > 0 && i < f->cfg.cap; i++) {
            const job *j = &f->jobs[i];
            if (j->state != FREE && j->tenant == t) sum += j->charged * j->unit;
        }
        if (sum != f->tenants[t].served) return false;
    }
    for (int i = f->used_first; i != NONE; i = f->entries[i].used_next) {
        if (f->entries[i].running < 1) return false;
        entry_running += f->entries[i].running;
    }
    return entry_running == running;
}
