/* sched_restart.c -- a device that failed, and how the engine goes on.
 *
 * A fault of the device is sticky: nothing on it can be read any more.  What runs ends with
 * ERR_RESTARTING, for whatever made the device fail may be one of these requests.  Everything
 * that lay on the device is dropped (KV, prefix cache, swapped pages, adapters, weights), the
 * backend is closed and opened, the weights come from the files again, adapters on demand.  What
 * only waited stays in its queue, also what had been pre-empted: its tokens are here, and its KV
 * is computed again.  Attempts are few, with growing pauses, in which cancellations are seen; a
 * device that fails again and again is given up.  The process lives on, and says what it is
 * (sched_stats).
 *
 * That is for faults that heal so (be_remedy_of()).  Where a step failed and nothing else, what
 * runs ends and the next step begins.  Where no call in this process will work any more, or a
 * device that came back failed so, what waits ends as well, and another process is asked for
 * (sched_replaced()).
 *
 * Threads: the engine's.
 */
#include <time.h>

#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "engine/sched/sched_inside.h"

enum {
    ATTEMPTS = 5, /* at one restart */
    GOOD_STEPS = 256,
    SLICE_US = 20000, /* of a pause: then somebody may have been cancelled */
};

void sched_step_was_good(sched *sc)
{
    if (sc->faults.n_faults > 0 && ++sc->faults.n_good >= GOOD_STEPS)
        sc->faults.n_faults = sc->faults.n_good = 0;
}

static void set_state(sched *sc, bool restarting, bool broken)
{
    lock_take(&sc->mu);
    sc->shared.restarting = restarting;
    sc->shared.broken = broken;
    if (restarting) sc->shared.n_restarts++;
    lock_release(&sc->mu);
}

/* From here on nothing is accepted. */
static void give_up(sched *sc, const err *why)
{
    log_error("engine", "the device is given up: %s", why->msg);
    sc->faults.dead = true;
    set_state(sc, false, true);
    sched_take_inbox(sc);
    sched_finish_all(sc, FINISH_ERROR, why);
}

static void end_running(sched *sc)
{
    err e;
    (void)err_set(&e, ERR_RESTARTING,
                  "the device failed while this request ran; the engine is being restarted");
    sched_drop_flights(sc);
    for (int i = 0; i < sc->queue.n; i++) {
        if (sc->queue.list[i]) sched_finish(sc, sc->queue.list[i], FINISH_ERROR, &e);
    }
    sched_sweep(sc);
    sc->step.n_seq = 0;
}

/* Who was pre-empted computes all of it again. */
static void forget_swapped(sched *sc)
{
    for (int cursor = 0, tickets[SCAN]; cursor < sc->cap;) {
        int left = sc->cap - cursor;
        int n = fair_scan(sc->queue.fair, &cursor, left < SCAN ? left : SCAN, tickets);
        for (int i = 0; i < n; i++) {
            request *rq = fair_who(sc->queue.fair, tickets[i]);
            sched_swap_forget(sc, rq);
            rq->run.n_computed = 0;
        }
    }
}

static void close_device(sched *sc)
{
    swap_destroy(sc->mem.swap);
    sc->mem.swap = NULL;
    state_destroy(sc->mem.states);
    sc->mem.states = NULL;
    if (sc->mem.kv) be_kv_destroy(sc->be, sc->mem.kv);
    sc->mem.kv = NULL;
    devmem_unmap(sc->mem.arena);
    sched_draft_unload(sc);
    model_unload(sc->m);
}

static err_code open_device(sched *sc, err *e)
{
    err_code rc = be_reopen(sc->be, e);
    if (rc) return rc;
    rc = model_reload(sc->m, e);
    if (!rc) rc = sched_draft_reload(sc, e);
    if (!rc) rc = devmem_remap(sc->mem.arena, e);
    if (!rc) rc = sched_open_pool(sc, e);
    if (!rc) rc = be_sync(sc->be, e); /* what was enqueued for it has gone well */
    if (rc) close_device(sc);
    return rc;
}

/* False: the engine shall stop. */
static bool pause_for(sched *sc, int64_t us)
{
    int64_t end = clock_now_us() + us;
    bool go = true;
    for (int64_t now; go && (now = clock_now_us()) < end;) {
        struct timespec slice = {0, (end - now < SLICE_US ? end - now : SLICE_US) * 1000};
        (void)nanosleep(&slice, NULL);
        atomic_store(&sc->heartbeat_us, clock_now_us());
        sched_take_inbox(sc);
        sched_see_ends(sc, clock_now_us());
        lock_take(&sc->mu);
        go = !sc->shared.stop;
        lock_release(&sc->mu);
    }
    return go;
}

/* True: it works again.  False: this process has tried enough. */
static bool bring_back(sched *sc, err *e)
{
    int64_t wait_us = sc->cfg.restart_wait_us;
    for (int i = 1;; i++) {
        /* At once the first time; a device that has just failed gets time. */
        if ((i > 1 || sc->faults.n_faults > 1) && !pause_for(sc, wait_us)) return false;
        if (i > 1 || sc->faults.n_faults > 1) wait_us *= 2;
        if (open_device(sc, e) == ERR_NONE) return true;
        log_error("engine", "attempt %d of %d to bring the device back: %s", i, ATTEMPTS, e->msg);
        if (i == ATTEMPTS || be_remedy_of(sc->be) == BE_HEALS_NEVER) return false;
    }
}

/* Nothing runs or waits here any more, and whoever comes is told. */
static void await_replacement(sched *sc)
{
    err e;
    (void)err_set(&e, ERR_RESTARTING, "the device failed; the engine is being restarted");
    log_error("engine", "the device fails until this process ends: a new process replaces it");
    sc->faults.dead = true;
    lock_take(&sc->mu);
    sc->shared.legacy = (sched_legacy){sc->faults.n_faults, sc->shared.n_restarts};
    lock_release(&sc->mu);
    sched_take_inbox(sc);
    sched_finish_all(sc, FINISH_ERROR, &e);
}

bool sched_replaced(sched *sc, sched_legacy *out)
{
    lock_take(&sc->mu);
    *out = sc->shared.legacy;
    lock_release(&sc->mu);
    return out->n_faults > 0;
}

void sched_restart(sched *sc, const err *why)
{
    const lora_source *src = sc->source;
    err e = *why;
    int64_t t0 = clock_now_us();
    be_remedy remedy = be_remedy_of(sc->be);
    bool may = ++sc->faults.n_faults <= sc->cfg.max_faults;
    sc->faults.n_good = 0;
    if (may && remedy == BE_HEALS_ITSELF) {
        log_error("engine", "a step failed: %s", why->msg);
        end_running(sc);
        return;
    }
    log_error("engine", "the device failed: %s", why->msg);
    set_state(sc, true, false);
    end_running(sc);
    bool back = false;
    if (remedy != BE_HEALS_NEVER) {
        forget_swapped(sc);
        if (src && src->suspend) src->suspend(src->self);
        kv_clear(sc->mem.pages);
        close_device(sc);
        back = may && bring_back(sc, &e);
    }
    if (!back) {
        if (may && be_remedy_of(sc->be) == BE_HEALS_NEVER)
            await_replacement(sc);
        else
            give_up(sc, &e);
        return;
    }
    if (src && src->resume) src->resume(src->self);
    set_state(sc, false, false);
    int64_t now = clock_now_us();
    sched_cause_lost(sc, MISS_RESTART, t0, now);
    log_info("engine", "the device is back after %lld ms", (long long)((now - t0) / 1000));
}
