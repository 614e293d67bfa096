/* policy.c -- one comparison decides. */
#include "engine/policy.h"

#include <math.h>
#include <stdlib.h>

enum {
    NEAR_US = 50000,     /* a deadline this close goes before fairness */
    LOCALITY_US = 20000, /* what an adapter in use is worth */
    LOOK_AHEAD = 64,     /* prompts whose deadlines decide about the pace */
};

/* What prompts may add to a step of decode rows, as long as no first token is in danger. */
static const double gentle = 0.25;

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

static bool is_near(const view *v, const policy_request *r)
{
    int64_t slack = r->deadline_us - v->now_us;
    return r->deadline_us && slack >= 0 && slack < NEAR_US; /* what is missed is no hurry */
}

static int64_t turn(const policy_request *r)
{
    return r->arrived_us - (r->resident ? LOCALITY_US : 0);
}

static int by_urgency(const void *a, const void *b, void *arg)
{
    const view *v = arg;
    const policy_request *x = &v->rq[*(const int *)a], *y = &v->rq[*(const int *)b];
    int64_t ux = urgency(v, x), uy = urgency(v, y);
    if (ux != uy) return ux < uy ? -1 : 1;
    if (x->running != y->running) return x->running ? -1 : 1; /* finish what is begun */
    bool nx = is_near(v, x), ny = is_near(v, y);
    if (nx != ny) return nx ? -1 : 1;
    if (nx && x->deadline_us != y->deadline_us) return x->deadline_us < y->deadline_us ? -1 : 1;
    if (x->served < y->served || x->served > y->served) return x->served < y->served ? -1 : 1;
    if (turn(x) != turn(y)) return turn(x) < turn(y) ? -1 : 1;
    return *(const int *)a - *(const int *)b;
}

static int64_t weakest_running(const view *v, int n)
{
    int64_t weakest = -1;
    for (int i = 0; i < n; i++) {
        if (v->rq[i].running && urgency(v, &v->rq[i]) > weakest) weakest = urgency(v, &v->rq[i]);
    }
    return weakest;
}

int policy_plan(const policy_request *rq, int n, const policy_limits *lim, int64_t now_us,
                policy_entry *out, int *order)
{
    view v = {rq, lim, now_us};
    int n_decode = 0, m = 0, n_out = 0;
    for (int i = 0; i < n; i++) {
        if (rq[i].running && rq[i].left == 1) order[n_decode++] = i;
    }
    qsort_r(order, (size_t)n_decode, sizeof(*order), by_urgency, &v);
    for (int i = 0; i < n_decode; i++) out[n_out++] = (policy_entry){order[i], 1};
    if (n_decode >= lim->max_rows) return n_out;
    int64_t weakest = weakest_running(&v, n);
    for (int i = 0; i < n; i++) {
        bool decode = rq[i].running && rq[i].left == 1;
        bool seat = rq[i].running || lim->free_seats > 0 || urgency(&v, &rq[i]) < weakest;
        if (!decode && seat) order[m++] = i;
    }
    qsort_r(order, (size_t)m, sizeof(*order), by_urgency, &v);
    for (int i = 0; i < m; i++) {
        const policy_request *r = &rq[order[i]];
        int take = r->left < r->max_chunk ? r->left : r->max_chunk;
        out[n_out++] = (policy_entry){order[i], take};
    }
    return n_out;
}

static bool is_decode(const policy_request *r)
{
    return r->running && r->left == 1;
}

/* At the gentle pace prompts get gentle / (1 + gentle) of the time: would that be too late for one? */
static bool is_pressing(const policy_request *rq, const policy_entry *plan, int n_plan,
                        const cost_model *cost, int64_t now_us)
{
    const cost_work none = {0};
    double constant = cost_predict(cost, &none), ahead = 0;
    for (int i = 0, seen = 0; i < n_plan && seen < LOOK_AHEAD; i++) {
        const policy_request *r = &rq[plan[i].request];
        if (is_decode(r)) continue;
        seen++;
        cost_work w = cost_with_chunk(&none, r->left, r->context, r->rank);
        ahead += cost_predict(cost, &w) - constant;
        if (!r->deadline_us || r->deadline_us < now_us) continue; /* what is missed is no hurry */
        if ((double)(r->deadline_us - now_us) < ahead * (1 + gentle) / gentle) return true;
    }
    return false;
}

double policy_budget_us(const policy_request *rq, const policy_entry *plan, int n_plan,
                        const cost_model *cost, int64_t now_us)
{
    cost_work w = {0};
    double slack = INFINITY;
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
    if (slack <= base) return pace; /* the target is missed without any prompt */
    if (is_pressing(rq, plan, n_plan, cost, now_us)) return slack;
    return fmin(slack, pace);
}

bool policy_is_weaker(const policy_request *a, const policy_request *b, const policy_limits *lim,
                      int64_t now_us)
{
    view v = {NULL, lim, now_us};
    return urgency(&v, a) > urgency(&v, b);
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
