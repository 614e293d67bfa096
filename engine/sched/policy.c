/* policy.c -- one comparison decides. */
#include "engine/sched/policy.h"

#include <math.h>
#include <stdlib.h>

enum {
    LOOK_AHEAD = 64, /* prompts whose deadlines decide about the pace */
    /* Rows by which a prompt goes on in any step, where deadlines see to the rest ... */
    LEAST_KEPT = 1,
    /* ... and where they do not: also, a model is corrected by what it sees. */
    LEAST_LOOSE = 16,
};

/* What prompts may add to a step of decode rows, as long as no first token needs more. */
static const double gentle = 0.2;

/* More than that they get in proportion to what their deadlines ask, and so much of it: later
 * arrivals ask too. */
static const double haste = 1.5;

/* Of its target, what a first token should leave over: steps do not take what was predicted. */
static const double reserve = 0.4;

/* Of the time until a stream's next token is due, what a step may take, for the same reason. */
static const double spend = 0.6;

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

/* What prompts must add to each step, over the decode rows' time, so that nobody's first
 * token is late: at a stretch of g they get g / (1 + g) of the time.  INFINITY: one would be
 * late even alone.  *kept: none would, none is, and all have a deadline, so the need grows
 * with the time that they wait. */
static double stretch_needed(const policy_request *rq, const policy_entry *plan, int n_plan,
                             const cost_model *cost, int64_t now_us, bool *kept)
{
    const cost_work none = {0};
    double constant = cost_predict(cost, &none), ahead = 0, most = 0;
    *kept = true;
    for (int i = 0, seen = 0; i < n_plan && seen < LOOK_AHEAD; i++) {
        const policy_request *r = &rq[plan[i].request];
        if (is_decode(r)) continue;
        seen++;
        cost_work w = cost_with_chunk(&none, r->left, r->context, r->rank);
        ahead += cost_predict(cost, &w) - constant;
        if (!r->deadline_us || r->deadline_us < now_us) { /* what is missed is no hurry */
            *kept = false;
            continue;
        }
        double left = (double)(r->deadline_us - now_us);
        left -= reserve * (double)(r->deadline_us - r->arrived_us);
        most = fmax(most, left > ahead ? ahead / (left - ahead) : INFINITY);
    }
    if (isinf(most)) *kept = false;
    return most;
}

double policy_budget_us(const policy_request *rq, const policy_entry *plan, int n_plan,
                        const cost_model *cost, int64_t now_us, int *least)
{
    cost_work w = {0};
    double slack = INFINITY;
    *least = LEAST_LOOSE;
    for (int i = 0; i < n_plan; i++) {
        const policy_request *r = &rq[plan[i].request];
        if (!is_decode(r)) break; /* decode rows stand first */
        w.decode++;
        w.attended += r->context + 1;
        w.ranks += r->rank;
        if (r->due_us) slack = fmin(slack, (double)(r->due_us - now_us));
    }
    if (w.decode == 0 || cost->n < COST_LEARNING) return INFINITY;
    double base = cost_predict(cost, &w), pace = base * (1 + gentle);
    bool kept;
    double needed = stretch_needed(rq, plan, n_plan, cost, now_us, &kept);
    if (kept) *least = LEAST_KEPT;
    if (slack <= base) return pace; /* the target is missed without any prompt */
    if (needed <= gentle) return fmin(slack, pace);
    return fmax(pace, fmin(spend * slack, base * (1 + haste * needed)));
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
