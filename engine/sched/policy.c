/* policy.c -- scheduling decisions as pure functions: order of rows, pace of streams, admission,
 * victim of a pre-emption.
 *
 * All times come from the cost model (cost.h); no function here has state or a clock.
 *
 *   policy_plan()    decode rows first, then prompts by urgency = class rank - age / ageing period
 *   policy_trim()    if all decode rows together take longer than the tightest token target allows,
 *                    some pause: each class keeps its weighted share, the rest goes by due time
 *   policy_budget_us()  how long the step may take: prompts get `gentle` of the decode time, more
 *                       if a first token would be late (need_of())
 *   policy_seats()   whether one more stream leaves all streams their rate
 *   policy_victim()  the least urgent running request, the latest among equals
 *
 * A stream's due time is first token + n x target, so a stream that is ahead can pause. Below
 * COST_LEARNING steps the model is unknown: nothing is trimmed or refused.
 *
 * Sources: Orca and Sarathi-Serve (order of rows), Halfin and Whitt 1981 (headroom).
 */
#include "engine/sched/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_AHEAD = 64, /* prompts whose deadlines decide about the pace */
    /* Rows by which a prompt goes on in any step, where deadlines see to the rest ... */
    LEAST_KEPT = 1,
    /* ... and where streams miss their targets even without it. Also keeps the cost model learning.
     */
    LEAST_LOOSE = 16,
    GAP = 16, /* targets that a stream's next token may be away, however far ahead it is */
};

/* Share of the decode time that prompts may add, while no first token needs more. */
static const double gentle = 0.3;

/* Beyond that they get this multiple of what their deadlines need, because later arrivals need
 * some, too. */
static const double haste = 1.5;

/* Share of its target that a first token should leave unused: steps deviate from their prediction.
 */
static const double reserve = 0.4;

/* Share of the time until a stream's next token is due that a step may take, for the same reason.
 */
static const double thrift = 0.9;

/* A stream is admitted if those of its class get a row in every 1.5th step: more would hold slots
 * and pages, and each would be slower. */
static const double stride = 1.5;

/* Share of the tightest first-token target that a step with background rows may take. */
static const double unnoticed = 0.008;

/* Time constant of the prompts' share. */
static const double memory_us = 5e6;

/* A tenant with more than its share of slots leaves room for headroom x sqrt(streams), so that
 * others need not wait for an end: the number that arrives at once varies like that (Halfin and
 * Whitt). */
static const double headroom = 1.8, most_headroom = 0.4;

const double policy_hurry = 0.35;

typedef struct {
    const policy_request *rq;
    const policy_limits *lim;
    int64_t now_us;
} view;

/* Class after ageing: each full ageing period since arrival is worth one class. */
static int64_t urgency(const view *v, const policy_request *r)
{
    int64_t waited = v->now_us - r->arrived_us;
    int64_t raised = v->lim->ageing_us > 0 && waited > 0 ? waited / v->lim->ageing_us : 0;
    return r->class_rank > raised ? r->class_rank - raised : 0;
}

static bool may_displace(const policy_request *r, int64_t now_us)
{
    int64_t slack = r->deadline_us - now_us;
    if (r->deadline_us == 0) return true;
    return slack >= 0 && (double)slack < policy_hurry * (double)(r->deadline_us - r->arrived_us);
}

static int by_urgency(const void *a, const void *b, void *arg)
{
    const view *v = arg;
    const policy_request *x = &v->rq[*(const int *)a], *y = &v->rq[*(const int *)b];
    int64_t ux = urgency(v, x), uy = urgency(v, y);
    if (ux != uy) return ux < uy ? -1 : 1;
    if (x->arrived_us != y->arrived_us) return x->arrived_us < y->arrived_us ? -1 : 1;
    return *(const int *)a - *(const int *)b;
}

static int64_t weakest_running(const view *v, int n)
{
    int64_t weakest = -1;
    for (int i = 0; i < n && v->rq[i].running; i++) {
        if (urgency(v, &v->rq[i]) > weakest) weakest = urgency(v, &v->rq[i]);
    }
    return weakest;
}

static void add(policy_entry *out, int *n_out, const policy_request *rq, int i)
{
    int take = rq[i].left < rq[i].max_chunk ? rq[i].left : rq[i].max_chunk;
    out[(*n_out)++] = (policy_entry){i, take};
}

int policy_plan(const policy_request *rq, int n, const policy_limits *lim, int64_t now_us,
                policy_entry *out, int *order)
{
    view v = {rq, lim, now_us};
    int n_running = 0, n_decode = 0, n_begun = 0, n_out = 0;
    for (; n_running < n && rq[n_running].running; n_running++) {
        if (rq[n_running].left == 1) order[n_decode++] = n_running;
    }
    if (n_decode > lim->max_rows) qsort_r(order, (size_t)n_decode, sizeof(*order), by_urgency, &v);
    for (int i = 0; i < n_decode; i++) out[n_out++] = (policy_entry){order[i], 1};
    if (n_decode >= lim->max_rows) return n_out;
    for (int i = 0; i < n_running; i++) {
        if (rq[i].left > 1) order[n_begun++] = i;
    }
    qsort_r(order, (size_t)n_begun, sizeof(*order), by_urgency, &v);
    int64_t weakest = n_running < n && lim->free_seats <= 0 ? weakest_running(&v, n) : -1;
    int begun = 0;
    for (int w = n_running; w < n; w++) {
        int64_t u = urgency(&v, &rq[w]);
        if (lim->free_seats <= 0 && !(may_displace(&rq[w], now_us) && u < weakest)) continue;
        for (; begun < n_begun && urgency(&v, &rq[order[begun]]) <= u; begun++) {
            add(out, &n_out, rq, order[begun]);
        }
        add(out, &n_out, rq, w);
    }
    for (; begun < n_begun; begun++) add(out, &n_out, rq, order[begun]);
    return n_out;
}

static bool is_decode(const policy_request *r)
{
    return r->running && r->left == 1;
}

static int by_due(const policy_request *x, const policy_request *y, int tie)
{
    return x->due_us != y->due_us ? x->due_us < y->due_us ? -1 : 1 : tie;
}

/* Decode rows by what is due first, then prompts, those that run before those that wait. */
static int by_turn(const void *a, const void *b, void *arg)
{
    const policy_request *rq = arg;
    const policy_entry *x = a, *y = b;
    bool dx = is_decode(&rq[x->request]), dy = is_decode(&rq[y->request]);
    if (dx != dy) return dx ? -1 : 1;
    int tie = x->request - y->request;
    return dx ? by_due(&rq[x->request], &rq[y->request], tie) : tie;
}

int policy_hold_back(const policy_request *rq, policy_entry *plan, int n_plan, policy_entry *held)
{
    int kept = 0, n_held = 0;
    for (int i = 0; i < n_plan; i++) {
        if (rq[plan[i].request].background)
            held[n_held++] = plan[i];
        else
            plan[kept++] = plan[i];
    }
    memcpy(plan + kept, held, (size_t)n_held * sizeof(*held));
    qsort_r(plan + kept, (size_t)n_held, sizeof(*held), by_turn, (void *)rq);
    return kept;
}

double policy_background_us(double others_us, double slack_us, int64_t ttft_us)
{
    return fmax(others_us, fmin(slack_us, unnoticed * (double)ttft_us));
}

/* What prompts must add to each step, over the decode rows' time, so that no first token is late:
 * with a stretch of g they get g / (1 + g) of the time. INFINITY: one would be late even alone.
 * kept: none is or would be late, and all have a deadline, so the need grows while they wait. late:
 * one is late. */
typedef struct {
    double stretch;
    bool kept, late;
} need;

static need need_of(const policy_request *rq, const policy_entry *plan, int n_plan,
                    const cost_model *cost, int64_t now_us)
{
    const cost_work none = {0};
    double constant = cost_predict(cost, &none), ahead = 0;
    need n = {.kept = true};
    for (int i = 0, seen = 0; i < n_plan && seen < LOOK_AHEAD; i++) {
        const policy_request *r = &rq[plan[i].request];
        if (is_decode(r)) continue;
        seen++;
        cost_work w = cost_with_chunk(&none, r->left, r->context, r->rank);
        ahead += cost_predict(cost, &w) - constant;
        if (!r->deadline_us || r->deadline_us < now_us) {
            n.kept = false;
            n.late |= r->deadline_us != 0;
            continue;
        }
        double left = (double)(r->deadline_us - now_us);
        left -= reserve * (double)(r->deadline_us - r->arrived_us);
        n.stretch = fmax(n.stretch, left > ahead ? ahead / (left - ahead) : INFINITY);
    }
    if (isinf(n.stretch)) n.kept = false;
    return n;
}

/* ------------------------------------------------------------------------------- streams -- */

int64_t policy_due_us(int64_t first_us, int64_t last_us, int made, int64_t tpot_us)
{
    int64_t due = first_us + made * tpot_us, gap = last_us + GAP * tpot_us;
    return due < gap ? due : gap;
}

/* What any step takes. */
static double constant_us(const cost_model *cost)
{
    const cost_work none = {0};
    return cost_predict(cost, &none);
}

static double row_us(const cost_model *cost, const policy_request *r, double constant)
{
    cost_work w = {.decode = 1, .attended = r->context + 1, .ranks = r->rank};
    return cost_predict(cost, &w) - constant;
}

static bool is_bound(const policy_request *r)
{
    return r->due_us && r->tpot_us;
}

/* How long a step may take for this stream; one that is behind catches up. */
static double allows_us(const policy_request *r, int64_t now_us)
{
    return thrift * fmax((double)(r->due_us - now_us), (double)r->tpot_us);
}

static int by_tpot(const void *a, const void *b, void *arg)
{
    const policy_request *rq = arg, *x = &rq[*(const int *)a], *y = &rq[*(const int *)b];
    if (x->tpot_us != y->tpot_us) return x->tpot_us < y->tpot_us ? -1 : 1;
    return *(const int *)a - *(const int *)b;
}

static int by_class(const void *a, const void *b, void *arg)
{
    const policy_request *rq = arg, *x = &rq[*(const int *)a], *y = &rq[*(const int *)b];
    if (x->class_rank != y->class_rank) return x->class_rank - y->class_rank;
    return by_due(x, y, *(const int *)a - *(const int *)b);
}

/* The longest step in which no stream misses its token target. A target that its streams (and
 * tighter ones) miss even alone is no bound. INFINITY: no bound. Sorts `order`. */
static double longest_us(const policy_request *rq, int *order, int n, const cost_model *cost,
                         int64_t now_us)
{
    double constant = constant_us(cost), alone = constant, longest = INFINITY, allowed = INFINITY;
    qsort_r(order, (size_t)n, sizeof(*order), by_tpot, (void *)rq);
    for (int i = 0; i < n; i++) {
        const policy_request *r = &rq[order[i]];
        double target = (double)r->tpot_us;
        alone += row_us(cost, r, constant);
        if (!is_bound(r)) continue;
        allowed = fmin(allowed, allows_us(r, now_us));
        if (i + 1 < n && rq[order[i + 1]].tpot_us == r->tpot_us) continue;
        if (alone <= target) longest = fmin(longest, allowed);
        allowed = INFINITY;
    }
    return longest;
}

/* The rows of a step, as they are chosen. */
typedef struct {
    const policy_request *rq;
    const policy_limits *lim;
    const cost_model *cost;
    int64_t now_us;
    double soon_us; /* a stream due within this time cannot pause */
    double constant, us;
    policy_entry *plan;
    int n;
} choice;

static double cost_of(const choice *c, int request)
{
    return row_us(c->cost, &c->rq[request], c->constant);
}

static void choose(choice *c, int request)
{
    c->us += cost_of(c, request);
    c->plan[c->n++] = (policy_entry){request, 1};
}

static bool is_soon(const choice *c, const policy_request *r)
{
    return (double)(r->due_us - c->now_us) < c->soon_us;
}

/* Streams that cannot pause first, by class; then the others; each by due time. */
static int by_need(const void *a, const void *b, void *arg)
{
    const choice *c = arg;
    const policy_request *x = &c->rq[*(const int *)a], *y = &c->rq[*(const int *)b];
    bool sx = is_soon(c, x), sy = is_soon(c, y);
    if (sx != sy) return sx ? -1 : 1;
    view v = {c->rq, c->lim, c->now_us};
    int64_t ux = urgency(&v, x), uy = urgency(&v, y);
    if (sx && ux != uy) return ux < uy ? -1 : 1;
    return by_due(x, y, *(const int *)a - *(const int *)b);
}

/* Keeps, of each class, the first rows by due time up to its weighted share of `rows`; of those
 * without a target, all. Leaves the others in `order`, returns their number. */
static int take_shares(choice *c, int *order, int n, double rows)
{
    double weights = 0;
    int left = 0, taken = 0, last = -1;
    qsort_r(order, (size_t)n, sizeof(*order), by_class, (void *)c->rq);
    for (int i = 0; i < n; i++) {
        if (c->rq[order[i]].class_rank != last) weights += c->rq[order[i]].weight;
        last = c->rq[order[i]].class_rank;
    }
    last = -1;
    for (int i = 0; i < n; i++) {
        const policy_request *r = &c->rq[order[i]];
        if (r->class_rank != last) taken = 0;
        last = r->class_rank;
        if (!is_bound(r) || taken + 1 <= r->weight / weights * rows) {
            choose(c, order[i]);
            taken++;
        } else {
            order[left++] = order[i];
        }
    }
    return left;
}

/* The streams of the plan, into `order`, and what they cost together; returns the tightest bound
 * that one of them sets. */
static double list_streams(const policy_request *rq, const policy_entry *plan, int n_plan,
                           int64_t now_us, int *order, int *n, cost_work *all)
{
    double tightest = INFINITY;
    for (*n = 0; *n < n_plan && is_decode(&rq[plan[*n].request]); (*n)++) {
        const policy_request *r = &rq[plan[*n].request];
        order[*n] = plan[*n].request;
        all->decode++;
        all->attended += r->context + 1;
        all->ranks += r->rank;
        if (is_bound(r)) tightest = fmin(tightest, allows_us(r, now_us));
    }
    return tightest;
}

int policy_trim(const policy_request *rq, policy_entry *plan, int n_plan, const policy_limits *lim,
                const cost_model *cost, int64_t now_us, int *order, double *step_us)
{
    cost_work all = {0};
    int n;
    *step_us = 0;
    if (cost->n < COST_LEARNING) return n_plan;
    double tightest = list_streams(rq, plan, n_plan, now_us, order, &n, &all);
    double prompts = n < n_plan ? gentle : 0, all_us = cost_predict(cost, &all);
    if (n < 2 || all_us * (1 + prompts) <= tightest) return n_plan;
    double most = longest_us(rq, order, n, cost, now_us);
    if (all_us * (1 + prompts) <= most) return n_plan;
    *step_us = most;
    double needed = haste * need_of(rq, plan + n, n_plan - n, cost, now_us).stretch;
    double soon_us = most / (1 + prompts), other_us = most / (1 + fmin(1, fmax(needed, prompts)));
    choice c = {rq, lim, cost, now_us, 2 * most, constant_us(cost), constant_us(cost), plan, 0};
    double rows = (other_us - c.constant) * n / (all_us - c.constant);
    int left = take_shares(&c, order, n, rows);
    qsort_r(order, (size_t)left, sizeof(*order), by_need, &c);
    for (int i = 0; i < left; i++) {
        double bound = is_soon(&c, &rq[order[i]]) ? soon_us : other_us;
        if (c.n > 0 && c.us + cost_of(&c, order[i]) > bound) break;
        choose(&c, order[i]);
    }
    memmove(plan + c.n, plan + n, (size_t)(n_plan - n) * sizeof(*plan));
    return c.n + n_plan - n;
}

/* ------------------------------------------------------------------------------------ seats -- */

enum { RANKS = 8 };

/* Time that the streams of one class need per step: at their targets; with a row in most steps;
 * with a row in each. */
typedef struct {
    double weight, need_us, often_us, all_us;
} demand;

/* The tightest target, and the cost of one row each: usually that decides already. */
static double tightest_us(const policy_request *rq, int n, int i, cost_work *all)
{
    double tightest = INFINITY;
    for (int j = 0; j < n; j++) {
        if (!rq[j].running && j != i) continue;
        all->decode++;
        all->attended += rq[j].context + 1;
        all->ranks += rq[j].rank;
        if (rq[j].tpot_us > 0) tightest = fmin(tightest, (double)rq[j].tpot_us);
    }
    return tightest;
}

/* The tightest target that can be kept at all. */
static double step_of(const policy_request *rq, int n, int i, const cost_model *cost)
{
    double constant = constant_us(cost), step_us = INFINITY;
    for (int j = 0; j < n; j++) {
        double target = (double)rq[j].tpot_us;
        if ((!rq[j].running && j != i) || target <= 0 || target >= step_us) continue;
        if (constant + row_us(cost, &rq[j], constant) <= target) step_us = target;
    }
    return step_us;
}

static void add_demand(demand *of, const policy_request *r, double us, double step_us)
{
    demand *d = &of[r->class_rank < RANKS ? r->class_rank : RANKS - 1];
    double target = (double)r->tpot_us;
    d->weight = r->weight;
    d->all_us += us;
    if (target < step_us) return; /* none, or one that cannot be kept */
    d->need_us += us * step_us / target;
    d->often_us += us * fmax(step_us / target, 1 / stride);
}

double policy_see_step(double prompts, const cost_work *w, const cost_model *cost, double took_us)
{
    cost_work streams = *w;
    streams.prefill = 0;
    double all = cost_predict(cost, w),
           share = all > 0 ? 1 - cost_predict(cost, &streams) / all : 0;
    return prompts + (1 - exp(-took_us / memory_us)) * (share - prompts);
}

/* What n streams may take of a step that is as long as this. */
static double room_of(double step_us, const policy_request *r, const policy_limits *lim,
                      double constant, double n)
{
    double room = step_us * fmin(1 / (1 + gentle), 1 - lim->prompts) - constant;
    return r->rich ? room * (1 - fmin(most_headroom, headroom / sqrt(n))) : room;
}

policy_seat policy_seats(const policy_request *rq, int n, int i, const policy_limits *lim,
                         const cost_model *cost)
{
    demand of[RANKS] = {{0}};
    cost_work all = {0};
    double constant = constant_us(cost), weights = 0, sum = 0;
    int rank = rq[i].class_rank < RANKS ? rq[i].class_rank : RANKS - 1;
    if (cost->n < COST_LEARNING) return SEAT_FITS;
    double step_us = tightest_us(rq, n, i, &all), rows_us = cost_predict(cost, &all) - constant;
    if (all.decode < 2 || rows_us <= room_of(step_us, &rq[i], lim, constant, all.decode))
        return SEAT_FITS;
    step_us = step_of(rq, n, i, cost);
    double room = room_of(step_us, &rq[i], lim, constant, all.decode);
    if (rows_us <= room) return SEAT_FITS;
    for (int j = 0; j < n; j++) {
        if (rq[j].running || j == i)
            add_demand(of, &rq[j], row_us(cost, &rq[j], constant), step_us);
    }
    for (int k = 0; k < RANKS; k++) weights += of[k].weight;
    for (int k = 0; k < RANKS; k++) {
        double share = of[k].weight > 0 ? of[k].weight / weights * room : 0;
        of[k].need_us = fmax(of[k].need_us, fmin(of[k].all_us, share));
        sum += of[k].need_us;
    }
    if (sum > room) return SEAT_FULL;
    sum += fmax(0, of[rank].often_us - of[rank].need_us);
    return sum > room ? SEAT_THINS : SEAT_FITS;
}

double policy_budget_us(const policy_request *rq, const policy_entry *plan, int n_plan,
                        const cost_model *cost, int64_t now_us, double step_us, int *least)
{
    cost_work w = {0};
    double slack = INFINITY, allowed = INFINITY, target = INFINITY;
    *least = LEAST_LOOSE;
    for (int i = 0; i < n_plan; i++) {
        const policy_request *r = &rq[plan[i].request];
        if (!is_decode(r)) break; /* decode rows stand first */
        w.decode++;
        w.attended += r->context + 1;
        w.ranks += r->rank;
        if (!is_bound(r)) continue;
        slack = fmin(slack, (double)(r->due_us - now_us));
        allowed = fmin(allowed, allows_us(r, now_us));
        target = fmin(target, thrift * (double)r->tpot_us);
    }
    if (w.decode == 0 || cost->n < COST_LEARNING) return INFINITY;
    double base = cost_predict(cost, &w), pace = base * (1 + gentle);
    const need of = need_of(rq, plan, n_plan, cost, now_us);
    if (of.kept || step_us > 0 || slack > base) *least = LEAST_KEPT;
    if (step_us <= 0 && slack <= base) return pace; /* the target is missed without any prompt */
    if (of.stretch <= gentle && !of.late) return fmin(step_us > 0 ? step_us : slack, pace);
    double most = step_us > 0 ? step_us : allowed, us = base * (1 + haste * of.stretch);
    if (of.late) us = fmax(us, target); /* that much the streams are promised, and no more */
    return fmax(pace, fmin(most, us));
}

bool policy_is_weaker(const policy_request *a, const policy_request *b, const policy_limits *lim,
                      int64_t now_us)
{
    view v = {NULL, lim, now_us};
    return may_displace(b, now_us) && urgency(&v, a) > urgency(&v, b);
}

int policy_victim(const policy_request *rq, int n, const bool *allowed, int stronger,
                  const policy_limits *lim, int64_t now_us)
{
    view v = {rq, lim, now_us};
    int worst = -1;
    for (int i = 0; i < n; i++) {
        if (!rq[i].running || !allowed[i]) continue;
        if (stronger >= 0 && !policy_is_weaker(&rq[i], &rq[stronger], lim, now_us)) continue;
        int64_t u = urgency(&v, &rq[i]), w = worst < 0 ? -1 : urgency(&v, &rq[worst]);
        if (u > w || (u == w && rq[i].arrived_us >= rq[worst].arrived_us)) worst = i;
    }
    return worst;
}
