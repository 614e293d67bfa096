/* pace.c -- how many bytes loads may move in a step, so that steps stay quick. */
#include "adapters/residency/pace.h"

#include <math.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"

static const double FIRST_RATE = 1000; /* bytes per microsecond, until one is known */
static const double SMOOTH = 1.0 / 16;
static const double LEAST_OF_STEP = 1.0 / 8;

void pace_init(pace *p, int share)
{
    *p = (pace){.share = share,
                .patience_us = PACE_PATIENCE_US,
                .rate = FIRST_RATE,
                .spare = PACE_SPARE_MAX};
    lock_init(&p->mu, LOCK_PACE);
    cond_init(&p->step);
}

void pace_clear(pace *p)
{
    cond_free(&p->step);
    lock_free(&p->mu);
}

void pace_step(pace *p, double step_us, double slack_us)
{
    if (p->share == 0) return;
    lock_take(&p->mu);
    bool waited = p->bounded;
    p->bounded = isfinite(slack_us);
    p->step_us = step_us;
    if (p->bounded) {
        double us = fmax(fmax(step_us, 1) * LEAST_OF_STEP, slack_us * p->share / 100);
        p->budget = us * p->rate;
        p->left = fmin(p->left, 0) + p->budget;
        p->n_steps++;
        p->spare = fmin(p->spare + 1.0 / PACE_SPARE_STEPS, PACE_SPARE_MAX);
    } else {
        p->left = 0; /* debts of a time without a bound are none */
    }
    if (waited) cond_broadcast(&p->step);
    lock_release(&p->mu);
}

static bool try_locked(pace *p, uint64_t bytes, bool hint)
{
    lock_assert_held(&p->mu);
    if (!p->bounded) return true;
    if (p->left <= (hint ? p->budget / 2 : 0)) return false;
    p->left -= (double)bytes;
    return true;
}

bool pace_try(pace *p, uint64_t bytes, bool hint)
{
    lock_take(&p->mu);
    bool may = try_locked(p, bytes, hint);
    lock_release(&p->mu);
    return may;
}

void pace_take(pace *p, uint64_t bytes, bool hint)
{
    lock_take(&p->mu);
    bool may = try_locked(p, bytes, hint);
    if (!may) p->n_waits++;
    while (!may) {
        uint64_t seen = p->n_steps;
        int64_t end_us = clock_now_us() + p->patience_us;
        bool in_time = true;
        while (in_time && p->bounded && p->n_steps == seen)
            in_time = cond_wait_until(&p->step, &p->mu, end_us);
        may = !in_time || try_locked(p, bytes, hint);
    }
    lock_release(&p->mu);
}

void pace_turn_wait(pace *p, pace_turn *t, int64_t busy_us)
{
    lock_take(&p->mu);
    double had = t->step == p->n_steps ? (double)(busy_us - t->busy_us) : 0;
    bool in_time = true, over = p->bounded && had * 100 >= p->step_us * PACE_TURN;
    bool saved = over && p->spare >= 1, waits = over && !saved;
    int64_t end_us = clock_now_us() + (int64_t)fmin(2 * p->step_us, (double)p->patience_us);
    if (saved) p->spare -= 1;
    p->n_waits += waits;
    while (waits && in_time && p->bounded && p->n_steps == t->step)
        in_time = cond_wait_until(&p->step, &p->mu, end_us);
    if (saved || t->step != p->n_steps || !in_time) *t = (pace_turn){p->n_steps, busy_us};
    lock_release(&p->mu);
}

void pace_moved(pace *p, uint64_t bytes, int64_t took_us)
{
    double rate = (double)bytes / (double)(took_us > 0 ? took_us : 1);
    lock_take(&p->mu);
    p->rate += (rate - p->rate) * SMOOTH;
    lock_release(&p->mu);
}

int64_t pace_begin(pace *p, uint64_t bytes, bool hint)
{
    if (!p) return 0;
    pace_take(p, bytes, hint);
    return clock_now_us();
}

void pace_end(pace *p, uint64_t bytes, int64_t begun_us)
{
    if (p) pace_moved(p, bytes, clock_now_us() - begun_us);
}

void pace_get(pace *p, pace_counts *out)
{
    lock_take(&p->mu);
    *out = (pace_counts){.rate = p->rate * 1e6,
                         .budget = p->bounded ? (uint64_t)p->budget : 0,
                         .n_waits = p->n_waits};
    lock_release(&p->mu);
}
