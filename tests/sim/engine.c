/* engine.c -- the loop: arrivals, a plan, a step, tokens; for whichever
 * scheduler, on as many nodes as there are. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/sim.h"

enum { CONTEXT = 16384, PAGES_MAX = CONTEXT / SIM_PAGE + 1 };

const char *const sim_policies[] = {"lorad", "fcfs", "vllm-like", "priority+shed", "slora-like",
                                    "edf",   "vtc",  "sarathi",   "qoserve-like",  "lorad-even"};

int sim_left(const sim_engine *e, const sim_seq *q)
{
    return e->a[q->id].prompt + q->made - q->computed;
}

sim_seq *sim_take(sim_engine *e, int id)
{
    assert(e->n_free > 0);
    int i = e->free_seq[--e->n_free];
    e->seqs[i] = (sim_seq){.id = id, .arrived_us = e->a[id].us};
    e->seqs[i].deadline_us = e->a[id].us + e->set->classes[e->a[id].slo].ttft_us;
    return &e->seqs[i];
}

void sim_finish(sim_engine *e, sim_seq *q, sim_end how)
{
    sim_outcome *o = &e->out->of[q->id];
    if (e->split) sim_split_end(e->split, e->index, q);
    if (q->running) sim_unseat(e, q);
    o->end = (uint8_t)how;
    o->ends++;
    o->first_us = q->first_us;
    o->last_us = q->last_us;
    o->preempted = (uint8_t)(q->n_preempted < 255 ? q->n_preempted : 255);
    e->free_seq[e->n_free++] = (int)(q - e->seqs);
}

bool sim_extend(sim_engine *e, sim_seq *q, int positions)
{
    int want = (positions + SIM_PAGE - 1) / SIM_PAGE;
    if (want - q->n_page > kv_available(e->pages, true)) return false;
    while (q->n_page < want) q->page[q->n_page++] = kv_take(e->pages);
    return true;
}

/* Page tables belong to seats: the last one's is free. */
bool sim_seat(sim_engine *e, sim_seq *q, int positions)
{
    assert(!q->running && e->n_running < e->set->device.max_seqs);
    if ((positions + SIM_PAGE - 1) / SIM_PAGE > kv_available(e->pages, true)) return false;
    q->page = NULL;
    for (int i = 0; i < e->set->device.max_seqs && !q->page; i++) {
        int32_t *table = e->page_pool + (size_t)i * PAGES_MAX;
        if (table[PAGES_MAX - 1] == 0) q->page = table;
    }
    q->page[PAGES_MAX - 1] = 1;
    e->running[e->n_running++] = (int)(q - e->seqs);
    q->running = true;
    bool got = sim_extend(e, q, positions);
    assert(got);
    if (!q->ever && !e->out->of[q->id].seated_us) e->out->of[q->id].seated_us = e->now_us;
    if (!q->ever && e->now_us - q->arrived_us > e->out->longest_wait_us)
        e->out->longest_wait_us = e->now_us - q->arrived_us;
    q->ever = true;
    return got;
}

void sim_unseat(sim_engine *e, sim_seq *q)
{
    for (int i = q->n_page - 1; i >= 0; i--) kv_release(e->pages, q->page[i]);
    q->page[PAGES_MAX - 1] = 0;
    q->n_page = q->computed = q->chunk = 0;
    q->running = false;
    sim_slots_release(e->slots, e->a[q->id].adapter, e->now_us);
    int i = 0;
    while (&e->seqs[e->running[i]] != q) i++;
    memmove(e->running + i, e->running + i + 1, sizeof(int) * (size_t)(--e->n_running - i));
}

static void count(const sim_engine *e, cost_work *w, const sim_seq *q, int n, double rank)
{
    if (n == 1 && sim_left(e, q) == 1) {
        w->decode++;
        w->attended += q->computed + 1;
        w->ranks += rank;
    } else {
        *w = cost_with_chunk(w, n, q->computed, rank);
    }
}

/* Each distinct adapter of a step is read once: what q adds to those marked. */
static int rank_read(const sim_engine *e, const sim_seq *q, uint64_t *read)
{
    uint32_t id = e->a[q->id].adapter;
    if (read[id] == e->out->steps + 1) return 0;
    read[id] = e->out->steps + 1;
    return sim_rank(id);
}

void sim_place(sim_engine *e, sim_seq *q, int n)
{
    assert(n > 0 && n <= e->rows_left && q->chunk == 0 && q->running);
    e->rows_left -= n;
    q->chunk = n;
    count(e, &e->work, q, n, rank_read(e, q, e->read));
}

static void settle(sim_engine *e, sim_scheduler *s, sim_seq *q)
{
    int n = q->chunk, left = sim_left(e, q);
    const sim_arrival *a = &e->a[q->id];
    q->chunk = 0;
    q->computed += n;
    e->out->computed += (uint64_t)n;
    int done = q->computed < a->prompt ? q->computed : a->prompt;
    int fresh = done > q->done_prompt ? done - q->done_prompt : 0;
    q->done_prompt += fresh;
    if (n > 1 || q->computed <= a->prompt) e->out->recomputed += (uint64_t)(n - fresh);
    if (n < left) {
        s->token(s->self, q, fresh, 0);
        return;
    }
    q->made++;
    if (!q->first_us) q->first_us = e->now_us;
    q->last_us = e->now_us;
    s->token(s->self, q, fresh, 1);
    if (q->made == 1 && a->output > 1 && e->split &&
        sim_split_first(e->split, e->index, q, e->now_us)) {
        s->left(s->self, q);
        if (q->running) sim_unseat(e, q);
        e->free_seq[e->n_free++] = (int)(q - e->seqs);
        return;
    }
    if (q->made < a->output) return;
    s->gone(s->self, q);
    sim_finish(e, q, SIM_DONE);
}

/* What was placed may have been taken out again. */
static void recount(sim_engine *e)
{
    e->work = (cost_work){0};
    for (int i = 0; i < e->n_running; i++) {
        sim_seq *q = &e->seqs[e->running[i]];
        if (q->chunk) count(e, &e->work, q, q->chunk, rank_read(e, q, e->counted));
    }
}

static void check(const sim_engine *e)
{
    kv_counts kc;
    int pages = 0, rows = 0;
    kv_count(e->pages, &kc);
    static uint32_t seen[1 << 16], round;
    round++;
    for (int i = 0; i < e->n_running; i++) {
        const sim_seq *q = &e->seqs[e->running[i]];
        assert(q->running && q->n_page * SIM_PAGE >= q->computed + q->chunk);
        for (int p = 0; p < q->n_page; p++) {
            assert(seen[q->page[p]] != round); /* used twice */
            seen[q->page[p]] = round;
        }
        pages += q->n_page;
        rows += q->chunk;
    }
    assert(pages == kc.n_held && kv_check(e->pages)); /* leaked */
    assert(rows <= e->set->device.max_rows && e->n_running <= e->set->device.max_seqs);
}

static bool open(sim_engine *e, int adapters)
{
    const sim_device *d = &e->set->device;
    e->cap = (e->n < 200000 ? e->n : 200000) + 1;
    e->seqs = calloc((size_t)e->cap, sizeof(*e->seqs));
    e->free_seq = calloc((size_t)e->cap, sizeof(int));
    e->running = calloc((size_t)d->max_seqs, sizeof(int));
    e->page_pool = calloc((size_t)d->max_seqs * PAGES_MAX, sizeof(int32_t));
    err why;
    if (devmem_create(&e->arena, NULL, d->n_pages, 64, 0, &why)) return false;
    e->pages = kv_create(e->arena, SIM_PAGE, false);
    e->slots = sim_slots_create(d, adapters);
    for (int i = 0; e->free_seq && i < e->cap; i++) e->free_seq[e->n_free++] = e->cap - 1 - i;
    e->read = calloc((size_t)adapters + 1, sizeof(*e->read));
    e->counted = calloc((size_t)adapters + 1, sizeof(*e->counted));
    cost_init(&e->cost);
    return e->read && e->counted && e->seqs && e->free_seq && e->running && e->page_pool &&
           e->pages && e->slots;
}

static void close(sim_engine *e)
{
    free(e->seqs);
    free(e->free_seq);
    free(e->running);
    free(e->page_pool);
    free(e->read);
    free(e->counted);
    kv_destroy(e->pages);
    devmem_destroy(e->arena);
    sim_slots_destroy(e->slots);
}

static double thread_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool advance(sim_engine *e, sim_scheduler *s)
{
    e->work = (cost_work){0};
    e->rows_left = e->set->device.max_rows;
    double start = thread_s();
    s->plan(s->self);
    e->out->plan_s += thread_s() - start;
    if (e->set->check) check(e);
    recount(e);
    if (e->work.prefill + e->work.decode == 0) return false;
    double us = sim_step_us(&e->set->device, &e->work, &e->noise);
    e->now_us += (int64_t)us + 1;
    e->out->steps++;
    e->out->rows += (uint64_t)(e->work.prefill + e->work.decode);
    s->stepped(s->self, &e->work, us);
    for (int i = 0, n = e->n_running; i < n;) {
        sim_seq *q = &e->seqs[e->running[i]];
        if (q->chunk) {
            e->out->hash =
                (e->out->hash ^ ((uint64_t)q->id << 12 ^ (uint64_t)q->chunk)) * 0x100000001B3ULL;
            settle(e, s, q);
        }
        if (e->n_running < n)
            n--;
        else
            i++;
    }
    return true;
}

/* ---------------------------------------------------------------------- nodes -- */

struct sim_node {
    sim_engine e;
    sim_scheduler s;
    sim_result out; /* its `of` is that of the whole run */
    int *todo, n_todo, next;
    bool over;
};

int sim_node_load(const sim_node *k)
{
    return k->e.cap - k->e.n_free + k->n_todo - k->next;
}

int sim_node_waiting(const sim_node *k)
{
    return sim_node_load(k) - k->e.n_running;
}

double sim_node_kv(const sim_node *k)
{
    return 1 - (double)kv_available(k->e.pages, true) / k->e.set->device.n_pages;
}

const sim_slots *sim_node_slots(const sim_node *k)
{
    return k->e.slots;
}

double sim_node_foretold_us(const sim_node *k, int id)
{
    return k->s.foretell ? k->s.foretell(k->s.self, id) : 0;
}

static bool node_open(sim_node *k, const sim_setup *set, const sim_arrival *a, int n, int tenants,
                      int adapters, sim_outcome *of)
{
    k->out.of = of;
    k->e = (sim_engine){.set = set, .a = a, .n = n, .tenants = tenants, .out = &k->out, .noise = 7};
    k->todo = calloc((size_t)n, sizeof(int));
    return k->todo && open(&k->e, adapters) &&
           (set->policy == SIM_LORAD || set->policy == SIM_EVEN ? sim_server_open(&k->s, &k->e)
                                                                : sim_baseline_open(&k->s, &k->e));
}

/* What other nodes have sent; who is refused goes back, or ends where it was accepted. */
static void receive(sim_node *k)
{
    sim_engine *e = &k->e;
    sim_handoff h;
    while (e->split && sim_split_take(e->split, e->index, e->now_us, &h)) {
        if (k->s.resume(k->s.self, &h)) continue;
        if (h.home != e->index) {
            sim_split_refuse(e->split, &h, e->now_us);
            continue;
        }
        e->out->of[h.id].end = SIM_REFUSED;
        e->out->of[h.id].ends++;
    }
}

/* One step, or a wait of at most until `limit_us`. */
static void turn(sim_node *k, int64_t limit_us)
{
    sim_engine *e = &k->e;
    receive(k);
    for (; k->next < k->n_todo && e->a[k->todo[k->next]].us <= e->now_us; k->next++)
        k->s.arrive(k->s.self, k->todo[k->next]);
    sim_slots_run(e->slots, e->now_us);
    if (advance(e, &k->s)) return;
    bool idle = k->s.empty(k->s.self);
    k->over = limit_us == INT64_MAX && e->n_running == 0 && idle;
    if (k->over) return;
    int64_t then = sim_slots_next(e->slots), soon = e->now_us + 1000;
    if (!idle && soon < then) then = soon;
    if (limit_us < then) then = limit_us;
    e->now_us = then > e->now_us && then < INT64_MAX ? then : soon;
}

static void add_up(sim_result *out, const sim_node *k)
{
    const sim_result *r = &k->out;
    out->steps += r->steps;
    out->rows += r->rows;
    out->computed += r->computed;
    out->recomputed += r->recomputed;
    out->loads += sim_slots_loads(k->e.slots);
    out->hash ^= r->hash;
    out->plan_s += r->plan_s;
    out->cost_error = r->cost_error;
    out->passed += r->passed;
    if (r->longest_wait_us > out->longest_wait_us) out->longest_wait_us = r->longest_wait_us;
    if (k->e.now_us > out->end_us) out->end_us = k->e.now_us;
}

static void node_close(sim_node *k, bool all_done)
{
    if (all_done) {
        kv_counts kc;
        kv_count(k->e.pages, &kc);
        assert(kc.n_held == 0);
    }
    if (k->s.destroy) k->s.destroy(k->s.self);
    close(&k->e);
    free(k->todo);
}

static bool is_idle(const sim_node *k)
{
    bool none = k->next == k->n_todo && sim_split_next(k->e.split, k->e.index) == INT64_MAX;
    return none && k->e.n_running == 0 && k->s.empty(k->s.self);
}

/* Nodes that send one another requests: whoever is behind goes first, so nothing arrives in the
 * past of a node by more than its step.  False: that was the last step. */
static bool run_together(const sim_setup *set, sim_node *node, int n, int64_t limit_us)
{
    for (;;) {
        sim_node *k = NULL;
        int64_t busy_us = INT64_MAX;
        for (int i = 0; i < n; i++) {
            bool idle = is_idle(&node[i]);
            if (!idle && node[i].e.now_us < busy_us) busy_us = node[i].e.now_us;
            if (!idle && (!k || node[i].e.now_us < k->e.now_us)) k = &node[i];
        }
        for (int i = 0; i < n; i++) { /* who has nothing to do waits for the others */
            int64_t until = busy_us < limit_us ? busy_us : limit_us;
            if (is_idle(&node[i]) && until < INT64_MAX && node[i].e.now_us < until)
                node[i].e.now_us = until;
        }
        if (!k || k->e.now_us >= limit_us) return true;
        int64_t next = sim_split_next(k->e.split, k->e.index);
        int64_t until = next > k->e.now_us && next < limit_us ? next : limit_us;
        turn(k, until < INT64_MAX ? until : INT64_MAX - 1);
        if (set->max_steps > 0 && k->out.steps >= set->max_steps) return false;
    }
}

/* To the node that the router has chosen, or, by the roles, to another. */
static void enter(sim_node *node, sim_split *split, int at, int id, int64_t now_us)
{
    sim_handoff h;
    int to = split ? sim_split_arrive(split, at, id, now_us, &h) : at;
    if (to != at) return;
    node[at].todo[node[at].n_todo++] = id;
}

bool sim_run(const sim_setup *set, const sim_arrival *a, int n, int tenants, int adapters,
             sim_result *out)
{
    int nodes = set->nodes > 1 ? set->nodes : 1;
    sim_node *node = calloc((size_t)nodes, sizeof(*node));
    sim_router *router = sim_router_open(set, node, nodes, a, adapters);
    bool roles = set->roles.prefill + set->roles.decode > 0 && nodes > 1;
    sim_split *split = roles ? sim_split_open(set, node, nodes, a) : NULL;
    *out = (sim_result){.of = calloc((size_t)n, sizeof(*out->of))};
    bool ok = node && router && out->of && (split || !roles), more = ok;
    for (int k = 0; k < nodes && ok; k++) {
        ok = node_open(&node[k], set, a, n, tenants, adapters, out->of);
        node[k].e.index = k;
        node[k].e.split = split;
    }
    for (int i = 0; ok && i <= n && more; i++) { /* behind the last one: until all have ended */
        int64_t limit_us = i < n ? a[i].us : INT64_MAX;
        if (split) more = run_together(set, node, nodes, limit_us);
        for (int k = 0; k < nodes && !split; k++) {
            while (more && !node[k].over && node[k].e.now_us < limit_us) {
                turn(&node[k], limit_us);
                more = set->max_steps == 0 || node[k].out.steps < set->max_steps;
            }
        }
        if (i == n || a[i].tenant == set->skip_tenant) continue;
        enter(node, split, sim_route(router, i), i, a[i].us);
    }
    for (int k = 0; node && k < nodes; k++) {
        if (ok) add_up(out, &node[k]);
        node_close(&node[k], ok && set->check && set->max_steps == 0);
    }
    sim_split_count(split, out);
    sim_split_close(split);
    sim_router_close(router);
    free(node);
    return ok;
}

sim_scheduler *sim_node_scheduler(sim_node *k)
{
    return &k->s;
}

struct sim_node *sim_node_at(sim_node *first, int i)
{
    return first + i;
}

void sim_result_clear(sim_result *r)
{
    free(r->of);
    r->of = NULL;
}
