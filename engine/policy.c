/* policy.c -- one comparison decides. */
#include "engine/policy.h"

#include <stdlib.h>

enum { NEAR_US = 50000 }; /* a deadline this close goes before fairness */

typedef struct {
    const policy_request *rq;
    const policy_limits *lim;
    int64_t now_us;
} view;

/* Class after ageing: each full ageing period of waiting is worth one class. */
static int64_t urgency(const view *v, const policy_request *r)
{
    int64_t waited = v->now_us - r->arrived_us;
    int64_t raised = v->lim->ageing_us > 0 && waited > 0 ? waited / v->lim->ageing_us : 0;
    return r->class_rank - raised;
}

static bool is_near(const view *v, const policy_request *r)
{
    return r->deadline_us && r->deadline_us - v->now_us < NEAR_US;
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
    if (x->resident != y->resident) return x->resident ? -1 : 1;
    if (x->arrived_us != y->arrived_us) return x->arrived_us < y->arrived_us ? -1 : 1;
    return *(const int *)a - *(const int *)b;
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
    for (int i = 0; i < n; i++) {
        bool decode = rq[i].running && rq[i].left == 1;
        if (!decode && (rq[i].running || lim->free_seats > 0)) order[m++] = i;
    }
    qsort_r(order, (size_t)m, sizeof(*order), by_urgency, &v);
    for (int i = 0; i < m; i++) {
        const policy_request *r = &rq[order[i]];
        int take = r->left < r->max_chunk ? r->left : r->max_chunk;
        out[n_out++] = (policy_entry){order[i], take};
    }
    return n_out;
}

int policy_victim(const policy_request *rq, int n, const bool *allowed, int stronger_than,
                  const policy_limits *lim, int64_t now_us)
{
    view v = {rq, lim, now_us};
    int worst = -1;
    for (int i = 0; i < n; i++) {
        if (!rq[i].running || !allowed[i]) continue;
        if (stronger_than >= 0 && rq[i].class_rank <= rq[stronger_than].class_rank) continue;
        if (worst < 0 || urgency(&v, &rq[i]) > urgency(&v, &rq[worst]) ||
            (urgency(&v, &rq[i]) == urgency(&v, &rq[worst]) &&
             rq[i].arrived_us > rq[worst].arrived_us)) {
            worst = i;
        }
    }
    return worst;
}
