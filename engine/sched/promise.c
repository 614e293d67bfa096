/* promise.c -- predicts a first token: the latest of two estimates and the load. */
#include "engine/sched/promise.h"

#include <math.h>

enum { QUEUE = 2 }; /* so many of a flow wait: it has a queue of its own */

static const double margin = 0.8; /* of the target may be used up by what is foreseen */
/* Where its flow has a queue, a request has its target over so many times its work, counted in
 * requests of mean cost; but not over more than most_bulk. */
static const double bulk = 2, most_bulk = 4;
static const double least_share = 0.002;
static const double blur_us = 20000; /* an error of so much means nothing */

static int slot_of(const promise_outlook *o, uint64_t tenant)
{
    for (int i = 0; i < o->n_tenant; i++) {
        if (o->id[i] == tenant) return i;
    }
    return -1;
}

/* Work of a tenant in classes that are as urgent as `slo` or more. */
static double work_before(const promise_outlook *o, int slot, int slo)
{
    double us = 0;
    for (int c = 0; c < o->n_class; c++) {
        if (o->rank[c] <= o->rank[slo]) us += (double)o->tenant[slot].work_us[c];
    }
    return us;
}

/* VTC: no other tenant gets more than this one and a quantum before its request is served. */
static double fair_wait(const promise_outlook *o, int slot, int slo)
{
    double mine = slot < 0 ? 0 : work_before(o, slot, slo), sum = mine;
    for (int i = 0; i < o->n_tenant; i++) {
        if (i != slot) sum += fmin(work_before(o, i, slo), mine + o->quantum_us);
    }
    return sum;
}

/* QLM: what waits in the flow over the rate at which the flow was served. */
static double flow_wait(const promise_outlook *o, int slot, int slo)
{
    if (slot < 0 || o->tenant[slot].n[slo] == 0) return 0;
    const promise_tenant *t = &o->tenant[slot];
    if (t->share[slo] <= 0) return 0;
    return (double)t->work_us[slo] / fmax(least_share, (double)t->share[slo]);
}

static bool waits(const promise_outlook *o, int slot, int slo)
{
    bool behind = o->crowded && slot >= 0 && work_before(o, slot, slo) > 0;
    return o->n_waiting >= o->free_seats || behind;
}

bool promise_waits(const promise_outlook *o, const promise_ask *a)
{
    return waits(o, slot_of(o, a->tenant), a->slo);
}

double promise_ttft_us(const promise_outlook *o, const promise_ask *a)
{
    if (o->row_us <= 0) return 0;
    int slot = slot_of(o, a->tenant);
    double begin = 0;
    if (waits(o, slot, a->slo))
        begin = fmax(fair_wait(o, slot, a->slo), flow_wait(o, slot, a->slo));
    for (int c = 0; c < o->n_class; c++) {
        if (o->rank[c] <= o->rank[a->slo]) begin += o->begun_us[c];
    }
    if (a->load_us > 0) begin = fmax(begin, fmax(a->load_us, o->fetch_us));
    return begin + a->n_prompt * o->row_us + o->step_us;
}

static double ask_us(const promise_outlook *o, const promise_ask *a)
{
    return a->n_prompt * o->row_us + a->n_output * o->output_us;
}

void promise_add(promise_outlook *o, const promise_ask *a)
{
    int slot = slot_of(o, a->tenant);
    if (slot < 0) {
        if (o->n_tenant == PROMISE_TENANTS) return;
        slot = o->n_tenant++;
        o->id[slot] = a->tenant;
        o->tenant[slot] = (promise_tenant){.n = {0}};
    }
    o->tenant[slot].n[a->slo]++;
    o->tenant[slot].work_us[a->slo] += (float)ask_us(o, a);
    o->n_waiting++;
    o->prompt_tokens += a->n_prompt;
}

double promise_most_us(const promise_outlook *o, const promise_ask *a, int64_t ttft_us)
{
    int slot = slot_of(o, a->tenant);
    double most = margin * (double)ttft_us;
    bool rooms = o->fetch_us > 0; /* for adapters are what is short, not the device's time */
    if (slot < 0 || o->tenant[slot].n[a->slo] < QUEUE || o->job_us <= 0 || rooms) return most;
    return most / fmin(most_bulk, fmax(1, bulk * ask_us(o, a) / o->job_us));
}

void promise_learn(double *surprise, double expected_us, double actual_us)
{
    if (expected_us <= 0) return;
    double ratio = (actual_us + blur_us) / (expected_us + blur_us) * *surprise;
    *surprise += 0.02 * (fmin(4, fmax(0.5, ratio)) - *surprise);
}
