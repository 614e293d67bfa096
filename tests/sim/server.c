/* server.c -- the server's own decisions, carried out on the modelled device as
 * engine/sched/sched.c does. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sched/lengths.h"
#include "engine/sched/policy.h"
#include "engine/sched/promise.h"
#include "tests/sim/sim.h"

enum { SPARE_PICKS = 16, LEAST_SEAT = 16, SCAN = 256, SKETCHES = 4096 }; /* as in sched.c */

typedef struct {
    sim_engine *e;
    fair *fair;
    lengths *lengths;
    promise_outlook outlook;
    double surprise[SIM_CLASSES][2];
    sim_seq **list;
    policy_request *view;
    policy_entry *plan;
    /* n_ran: of the n, those that ran before; n_out: streams that sit out this step */
    int *order, n, n_ran, scan, n_out;
    int least_chunk;
    bool *allowed, pages_short, rows_short, pace_short, crowded, displaced;
    double budget_us, prompts;
    uint64_t n_checks;
} server;

/* Lorad as it was: each stream in each step, seats for all, no size refused sooner. */
static bool is_even(const server *s)
{
    return s->e->set->policy == SIM_EVEN;
}

static lengths_ask length_ask(const sim_arrival *a)
{
    return (lengths_ask){(uint64_t)a->tenant, a->adapter, a->slo, a->max_tokens};
}

/* As admission describes it; `guess`: how long its answer will be. */
static promise_ask ask_of(const server *s, int id, lengths_guess *guess)
{
    const sim_engine *e = s->e;
    const sim_arrival *a = &e->a[id];
    promise_ask ask = {.tenant = (uint64_t)a->tenant, .slo = a->slo, .n_prompt = a->prompt};
    lengths_ask length = length_ask(a);
    *guess = lengths_look(s->lengths, &length);
    ask.n_output = guess->mean;
    if (!e->set->blind) ask.load_us = (double)sim_slots_eta(e->slots, a->adapter, e->now_us);
    return ask;
}

static double foretell(void *self, int id)
{
    server *s = self;
    lengths_guess guess;
    promise_ask ask = ask_of(s, id, &guess);
    return promise_ttft_us(&s->outlook, &ask);
}

static double rank_share(const server *s, const sim_seq *q);

static void arrive(void *self, int id)
{
    server *s = self;
    sim_engine *e = s->e;
    const sim_arrival *a = &e->a[id];
    lengths_guess guess;
    promise_ask ask = ask_of(s, id, &guess);
    bool waits = promise_waits(&s->outlook, &ask);
    double expected = s->surprise[a->slo][waits] * promise_ttft_us(&s->outlook, &ask);
    promise_ask size = ask;
    if (is_even(s)) size.n_prompt = size.n_output = 0;
    double most = promise_most_us(&s->outlook, &size, e->set->classes[a->slo].ttft_us);
    if (e->n_free == 0 || (!e->set->queue && expected > most)) {
        e->out->of[id].end = SIM_REFUSED;
        e->out->of[id].ends++;
        return;
    }
    sim_seq *q = sim_take(e, id);
    q->home = e->index;
    q->expected_us = expected;
    q->expected_wait = waits;
    q->length = guess;
    promise_add(&s->outlook, &ask);
    fair_job job = {.who = q,
                    .tenant = (uint64_t)a->tenant,
                    .adapter = a->adapter,
                    .weight = 1,
                    .slo = a->slo,
                    .arrived_us = a->us,
                    .deadline_us = q->deadline_us,
                    .prompt = a->prompt,
                    .output = q->length.mean};
    q->ticket = fair_enter(s->fair, &job, e->now_us);
}

/* As a guest's request, or as one whose first token came from another node. */
static bool resume(void *self, const sim_handoff *h)
{
    server *s = self;
    sim_engine *e = s->e;
    const sim_arrival *a = &e->a[h->id];
    bool begins = h->made == 0;
    if (begins) {
        uint8_t ends = e->out->of[h->id].ends;
        int n_free = e->n_free;
        arrive(self, h->id);
        if (e->n_free == n_free) { /* refused, which only its home may say */
            e->out->of[h->id].ends = ends;
            e->out->of[h->id].end = SIM_NEVER;
            return false;
        }
        sim_seq *q = &e->seqs[e->free_seq[e->n_free]];
        q->prompt_only = h->prompt_only;
        q->home = h->home;
        return true;
    }
    sim_seq *q = sim_take(e, h->id);
    bool guest = h->home != e->index;
    q->made = h->made;
    q->done_prompt = a->prompt;
    q->given = h->given;
    q->came = true;
    q->home = h->home;
    q->first_us = h->first_us;
    q->last_us = h->last_us;
    q->length = h->length;
    q->ever = true;
    if (guest) q->arrived_us = e->now_us;
    fair_job job = {.who = q,
                    .tenant = (uint64_t)a->tenant,
                    .adapter = a->adapter,
                    .weight = 1,
                    .slo = a->slo,
                    .arrived_us = q->arrived_us,
                    .deadline_us = guest ? 0 : q->deadline_us,
                    .prompt = a->prompt,
                    .output = q->length.mean};
    q->ticket = fair_enter(s->fair, &job, e->now_us);
    return true;
}

static void left(void *self, sim_seq *q)
{
    server *s = self;
    fair_leave(s->fair, q->ticket, s->e->now_us);
}

static void learn(void *self, int id, lengths_guess was, int made)
{
    server *s = self;
    const sim_arrival *a = &s->e->a[id];
    lengths_ask length = length_ask(a);
    lengths_learn(s->lengths, &length, &was, made, made >= a->max_tokens);
}

static lengths_guess expect(void *self, int id)
{
    server *s = self;
    lengths_ask length = length_ask(&s->e->a[id]);
    return lengths_look(s->lengths, &length);
}

/* As sched_place.c does. */
static void describe_node(void *self, place_node *out)
{
    server *s = self;
    const sim_engine *e = s->e;
    int n_begun = 0;
    *out = (place_node){.cost = e->cost, .prompts = s->prompts};
    for (int i = 0; i < e->n_running; i++) {
        const sim_seq *q = &e->seqs[e->running[i]];
        if (!q->first_us) {
            n_begun++;
            continue;
        }
        out->streams.decode += 1;
        out->streams.attended += q->computed;
        out->streams.ranks += rank_share(s, q);
    }
    place_see_queue(out, &s->outlook, n_begun);
    out->free_seats = e->set->device.max_seqs - e->n_running - s->outlook.n_waiting;
    out->free_tokens = (double)kv_available(e->pages, true) * SIM_PAGE;
}

static void gone(void *self, sim_seq *q)
{
    server *s = self;
    const sim_arrival *a = &s->e->a[q->id];
    lengths_ask length = length_ask(a);
    fair_leave(s->fair, q->ticket, s->e->now_us);
    if (q->made > 0)
        lengths_learn(s->lengths, &length, &q->length, q->made, q->made >= a->max_tokens);
}

static void leave(server *s, sim_seq *q, sim_end how)
{
    gone(s, q);
    sim_finish(s->e, q, how);
}

/* Early abort of what was never seated and cannot be in time. */
static bool is_too_late(const server *s, const sim_seq *q)
{
    return !s->e->set->queue && !q->ever && s->e->now_us > q->deadline_us;
}

static void see_ends(server *s)
{
    int tickets[SCAN];
    int n = s->e->set->queue ? 0 : fair_scan(s->fair, &s->scan, SCAN, tickets);
    for (int i = 0; i < n; i++) {
        sim_seq *q = fair_who(s->fair, tickets[i]);
        if (is_too_late(s, q)) leave(s, q, SIM_ABORTED);
    }
}

/* As in sched_inside.h. */
static double rank_share(const server *s, const sim_seq *q)
{
    return (double)sim_rank(s->e->a[q->id].adapter) / fair_sharers(s->fair, q->ticket);
}

static void describe(server *s, int i)
{
    const sim_engine *e = s->e;
    const sim_seq *q = s->list[i];
    const sim_arrival *a = &e->a[q->id];
    s->view[i] = (policy_request){
        .running = q->running,
        .left = sim_left(e, q),
        .max_chunk = e->set->device.max_rows,
        .class_rank = a->slo,
        .arrived_us = q->arrived_us,
        .deadline_us = q->first_us ? 0 : q->deadline_us,
        .context = q->computed,
        .rank = rank_share(s, q),
        .weight = e->set->classes[a->slo].weight,
    };
    int64_t tpot_us = e->set->classes[a->slo].tpot_us;
    s->view[i].tpot_us = tpot_us;
    if (q->last_us)
        s->view[i].due_us = is_even(s) ? q->last_us + tpot_us
                                       : policy_due_us(q->first_us, q->last_us, q->made, tpot_us);
    s->allowed[i] = true;
}

static policy_limits limits_of(const server *s)
{
    return (policy_limits){.max_rows = s->e->set->device.max_rows,
                           .free_seats = s->e->set->device.max_seqs - s->e->n_running,
                           .ageing_us = s->e->set->ageing_us,
                           .prompts = s->prompts};
}

static void preempt(server *s, int v)
{
    sim_seq *q = s->list[v];
    s->e->rows_left += q->chunk;
    sim_unseat(s->e, q);
    fair_back(s->fair, q->ticket, s->e->now_us);
    q->n_preempted++;
    s->view[v].running = s->allowed[v] = false;
    s->displaced = true;
}

static bool make_room(server *s, int need, int i)
{
    policy_limits lim = limits_of(s);
    while (kv_available(s->e->pages, true) < need) {
        s->pages_short = true;
        int v = policy_victim(s->view, s->n, s->allowed, -1, &lim, s->e->now_us);
        assert(v >= 0);
        preempt(s, v);
        if (v == i) return false;
    }
    return true;
}

static bool make_place(server *s, int need, int i)
{
    policy_limits lim = limits_of(s);
    int could = kv_available(s->e->pages, true), weaker = 0;
    for (int v = 0; v < s->n; v++) {
        if (!s->allowed[v] || !s->view[v].running) continue;
        if (!policy_is_weaker(&s->view[v], &s->view[i], &lim, s->e->now_us)) continue;
        could += s->list[v]->n_page;
        weaker++;
    }
    if (could < need) {
        s->pages_short = true;
        return false;
    }
    while (s->e->n_running >= s->e->set->device.max_seqs ||
           kv_available(s->e->pages, true) < need) {
        int v = weaker ? policy_victim(s->view, s->n, s->allowed, i, &lim, s->e->now_us) : -1;
        if (v < 0) {
            s->pages_short = kv_available(s->e->pages, true) < need;
            return false;
        }
        preempt(s, v);
    }
    return true;
}

/* Whether a request of the same flow has got a seat in this step: rule 1 is for one of each
 * flow. */
static bool flow_is_seated(const server *s, const sim_arrival *a)
{
    for (int i = s->n_ran; i < s->n; i++) {
        const sim_arrival *b = &s->e->a[s->list[i]->id];
        if (s->view[i].running && a->tenant == b->tenant && a->slo == b->slo) return true;
    }
    return false;
}

/* Rule 1 of fair.h: nobody who waits with an adapter at hand is passed once he has aged. */
static void check_order(server *s, const sim_seq *seated)
{
    int64_t now = s->e->now_us, age = 0;
    if (fair_is_aged(s->fair, seated->ticket, now)) age = fair_age_us(s->fair, seated->ticket, now);
    int cursor = 0, tickets[SCAN];
    int n = fair_scan(s->fair, &cursor, SCAN, tickets);
    for (int i = 0; i < n; i++) {
        const sim_seq *q = fair_who(s->fair, tickets[i]);
        if (q == seated || !fair_is_aged(s->fair, tickets[i], now) || is_too_late(s, q)) continue;
        const sim_arrival *a = &s->e->a[q->id];
        if (flow_is_seated(s, a)) continue; /* also by its own, in order of arrival */
        if (a->adapter != 0) continue;      /* it may lack its adapter */
        s->e->out->passed += fair_age_us(s->fair, tickets[i], now) > age;
    }
}

static bool keeps_pace(server *s, int i)
{
    if (is_even(s)) return true;
    policy_limits lim = limits_of(s);
    s->view[i].rich = fair_is_rich(s->fair, s->list[i]->ticket);
    policy_seat seat = policy_seats(s->view, s->n, i, &lim, &s->e->cost);
    if (seat == SEAT_FITS) return true;
    *(s->view[i].rich ? &s->crowded : &s->pace_short) = true;
    if (seat == SEAT_FULL) s->rows_short = true;
    return false;
}

static bool admit(server *s, int i)
{
    sim_engine *e = s->e;
    sim_seq *q = s->list[i];
    const sim_arrival *a = &e->a[q->id];
    if (s->pages_short || s->rows_short || is_too_late(s, q))
        return false; /* see_ends() finds the late */
    if (!sim_slots_acquire(e->slots, a->adapter, e->now_us)) {
        fair_block(s->fair, q->ticket, e->now_us);
        return false;
    }
    if (!keeps_pace(s, i)) {
        sim_slots_release(e->slots, a->adapter, e->now_us);
        return false;
    }
    int most = a->prompt + a->max_tokens, len = a->prompt + q->made;
    int want = len < most ? len + 1 : most;
    if (!make_place(s, (want + SIM_PAGE - 1) / SIM_PAGE, i)) {
        sim_slots_release(e->slots, a->adapter, e->now_us);
        return false;
    }
    bool got = sim_seat(e, q, len);
    assert(got);
    (void)got;
    q->computed = q->given; /* its KV has come; a pre-emption loses it */
    q->given = 0;
    s->view[i].running = true;
    if (e->set->check && !s->displaced) check_order(s, q);
    fair_seat(s->fair, q->ticket, e->now_us);
    return true;
}

static int rows_in_budget(const server *s, const sim_seq *q, int n)
{
    if (isinf(s->budget_us) || (n == 1 && sim_left(s->e, q) == 1)) return n;
    int fit = cost_chunk(&s->e->cost, &s->e->work, s->budget_us, n, q->computed, rank_share(s, q));
    int seat = n < LEAST_SEAT ? n : LEAST_SEAT, least = n < s->least_chunk ? n : s->least_chunk;
    if (s->e->work.prefill <= 0) return fit > least ? fit : least;
    return q->running || fit >= seat ? fit : 0;
}

static void add_entry(server *s, const policy_entry *pe)
{
    int i = pe->request;
    sim_seq *q = s->list[i];
    if (!s->allowed[i]) return;
    if (rows_in_budget(s, q, pe->n_rows) == 0) {
        if (!q->running) s->rows_short = true;
        return;
    }
    if (!q->running && !admit(s, i)) return;
    int left = sim_left(s->e, q), n = pe->n_rows < left ? pe->n_rows : left;
    if (n > s->e->rows_left) n = s->e->rows_left;
    n = rows_in_budget(s, q, n);
    if (n == 0) return;
    int need = (q->computed + n + SIM_PAGE - 1) / SIM_PAGE - q->n_page;
    if (need > 0 && !make_room(s, need, i)) return;
    bool got = sim_extend(s->e, q, q->computed + n);
    assert(got);
    (void)got;
    sim_place(s->e, q, n);
}

static void publish(server *s)
{
    sim_engine *e = s->e;
    int rows = e->n_running - s->n_out;
    const cost_work none = {0}, decode = {.decode = rows > 0 ? rows : 1};
    double step_us = cost_predict(&e->cost, &decode), begun_us[PROMISE_CLASSES] = {0};
    double row_us = e->cost.n < COST_LEARNING ? 0 : e->cost.theta[1] / 64;
    bool full = (s->pages_short || s->pace_short) && e->n_running > 0;
    int seats = full ? e->n_running : e->set->device.max_seqs,
        company = s->n_out > 0 ? rows : seats;
    const cost_work most = {.decode = company};
    fair_set_prices(s->fair, row_us, cost_predict(&e->cost, &most) / company, step_us);
    for (int i = 0; i < e->n_running; i++) {
        const sim_seq *q = &e->seqs[e->running[i]];
        if (q->first_us) continue;
        int rank = sim_rank(e->a[q->id].adapter);
        cost_work w = cost_with_chunk(&none, sim_left(e, q), q->computed, rank);
        begun_us[e->a[q->id].slo] += cost_predict(&e->cost, &w) - cost_predict(&e->cost, &none);
    }
    fair_publish(s->fair, &s->outlook, e->now_us);
    memcpy(s->outlook.begun_us, begun_us, sizeof(begun_us));
    s->outlook.crowded = s->crowded || s->rows_short;
    s->outlook.free_seats = seats - e->n_running;
}

static void plan(void *self)
{
    server *s = self;
    sim_engine *e = s->e;
    int tickets[FAIR_PICKS], want = e->set->device.max_seqs - e->n_running + SPARE_PICKS;
    see_ends(s);
    s->n = 0;
    for (int i = 0; i < e->n_running; i++) s->list[s->n++] = &e->seqs[e->running[i]];
    s->n_ran = s->n;
    int found = fair_pick(s->fair, e->now_us, want < FAIR_PICKS ? want : FAIR_PICKS, tickets);
    for (int i = 0; i < found; i++) {
        sim_seq *q = fair_who(s->fair, tickets[i]);
        if (is_too_late(s, q))
            leave(s, q, SIM_ABORTED);
        else
            s->list[s->n++] = q;
    }
    for (int i = 0; i < s->n; i++) describe(s, i);
    policy_limits lim = limits_of(s);
    double step_us;
    int n = policy_plan(s->view, s->n, &lim, e->now_us, s->plan, s->order), listed = n;
    if (is_even(s))
        step_us = 0;
    else
        n = policy_trim(s->view, s->plan, n, &lim, &e->cost, e->now_us, s->order, &step_us);
    s->n_out = listed - n;
    s->budget_us =
        policy_budget_us(s->view, s->plan, n, &e->cost, e->now_us, step_us, &s->least_chunk);
    s->pages_short = s->rows_short = s->pace_short = s->crowded = false;
    s->displaced = lim.free_seats <= 0;
    for (int i = 0; i < n && e->rows_left > 0; i++) add_entry(s, &s->plan[i]);
    publish(s);
    if (e->set->check && s->n_checks++ % 16 == 0) assert(fair_check(s->fair));
}

static void token(void *self, sim_seq *q, int prompt, int output)
{
    server *s = self;
    fair_charge(s->fair, q->ticket, prompt, output);
    if (output && q->made == 1) {
        double took = (double)(s->e->now_us - q->arrived_us);
        promise_learn(&s->surprise[s->e->a[q->id].slo][q->expected_wait], q->expected_us, took);
    }
}

static void stepped(void *self, const cost_work *w, double us)
{
    server *s = self;
    cost_observe(&s->e->cost, w, us);
    s->prompts = policy_see_step(s->prompts, w, &s->e->cost, us);
    s->e->out->cost_error = s->e->cost.error;
}

static bool empty(const void *self)
{
    const server *s = self;
    return fair_waiting(s->fair) == 0;
}

static void destroy(void *self)
{
    server *s = self;
    if (s->e->set->check) assert(fair_check(s->fair));
    fair_destroy(s->fair);
    lengths_destroy(s->lengths);
    free((void *)s->list);
    free(s->view);
    free(s->plan);
    free(s->order);
    free(s->allowed);
    free(s);
}

bool sim_server_open(sim_scheduler *out, sim_engine *e)
{
    server *s = calloc(1, sizeof(*s));
    if (!s) return false;
    size_t cap = (size_t)e->set->device.max_seqs + FAIR_PICKS;
    s->e = e;
    fair_config c = {.n_class = SIM_CLASSES, .cap = e->cap, .ageing_us = e->set->ageing_us};
    for (int i = 0; i < SIM_CLASSES; i++) {
        const sim_class *k = &e->set->classes[i];
        c.classes[i] = (fair_class){i, k->weight, k->ttft_us};
        s->surprise[i][0] = s->surprise[i][1] = 1;
    }
    s->fair = fair_create(&c);
    s->lengths = lengths_create(c.n_class, SKETCHES);
    s->list = calloc(cap, sizeof(*s->list));
    s->view = calloc(cap, sizeof(*s->view));
    s->plan = calloc(cap, sizeof(*s->plan));
    s->order = calloc(cap, sizeof(*s->order));
    s->allowed = calloc(cap, sizeof(*s->allowed));
    *out = (sim_scheduler){s,       arrive,   plan,   token, gone,  stepped,       empty,
                           destroy, foretell, resume, left,  learn, describe_node, expect};
    return s->fair && s->list && s->view && s->plan && s->order && s->allowed;
}
