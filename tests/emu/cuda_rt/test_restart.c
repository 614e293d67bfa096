/* test_restart.c -- a device that fails at any call of a served sequence, or never ends a launch of
 * it, on the emulated run-time.
 *
 * One server; again and again the cast of served.h is sent at once, and the device made to fail at
 * some call of it.  Each request ends exactly once: with the tokens that a healthy device gives, or
 * with ERR_RESTARTING.  After that the same request gives the same tokens as before the fault, and
 * the device and pinned memory hold what they held before.
 */
#include <stdatomic.h>

#include "engine/backend_ops.h"
#include "tests/emu/cuda_rt/served.h"
#include "tests/run_suite.h"

enum { GROUPS = 7 };

static int each = 2; /* faults of each kind */
static int refused;  /* requests that came after a fault */

static client *right[CLIENTS];

/* What the whole cast gets; returns how many were ended by a fault, with those that came when it
 * was known. */
static int serve_all(served *v)
{
    client *c[CLIENTS];
    err e;
    int n_vocab = model_get_config(v->m)->n_vocab, ended = 0;
    for (int i = 0; i < CLIENTS; i++) {
        c[i] = client_make(i, n_vocab);
        err_code rc = sched_submit(v->sc, &c[i]->rq, &e);
        if (rc == ERR_NONE) continue;
        ck_assert_msg(rc == ERR_RESTARTING, "%s", e.msg);
        client_drop(c[i]);
        c[i] = NULL;
        refused++;
    }
    for (int i = 0; i < CLIENTS; i++) {
        char what[48];
        if (!c[i]) continue;
        if (client_collect(c[i]) == FINISH_ERROR) {
            ck_assert_msg(c[i]->rq.why.code == ERR_RESTARTING, "%s", c[i]->rq.why.msg);
            ended++;
        } else {
            ck_assert_int_eq(c[i]->n_got, right[i]->n_got);
        }
        for (int k = 0; k < c[i]->n_got; k++) { /* also of those that were ended later */
            snprintf(what, sizeof(what), "client %d, token %d", i, k);
            same_sampled(&c[i]->got[k], &right[i]->got[k], what);
        }
        client_drop(c[i]);
    }
    return ended;
}

static void learn_right(served *v)
{
    err e;
    for (int i = 0; i < CLIENTS; i++) {
        right[i] = client_make(i, model_get_config(v->m)->n_vocab);
        ck_assert_msg(sched_submit(v->sc, &right[i]->rq, &e) == ERR_NONE, "%s", e.msg);
    }
    for (int i = 0; i < CLIENTS; i++) ck_assert_int_ne(client_collect(right[i]), FINISH_ERROR);
}

static uint64_t n_failed, n_finished; /* of servers before */

static void count(const sched_stats *t)
{
    n_failed += t->n_failed;
    n_finished += t->n_finished;
}

/* As the next process does it: nothing of this one is there any more.  Who waits for a device that
 * hangs ends the test. */
static void replace(served *v, const sched_stats *t, const sched_legacy *l)
{
    sched_config sc = served_config();
    sc.n_faults = l->n_faults;
    sc.n_restarts = l->n_restarts;
    count(t);
    served_stop(v);
    emu_rt_break_at("", -1, cudaSuccess);
    for (int i = 1; i <= served_devices; i++) {
        (void)cudaSetDevice(i);
        ck_assert_int_eq(cudaDeviceReset(), cudaSuccess);
    }
    served_start_as(v, served_ops(), sc);
}

static sched_stats settled(served *v)
{
    sched_stats t;
    sched_legacy l;
    do { /* the counts follow the last event */
        sched_stats_get(v->sc, &t);
        if (!t.n_running && !t.n_waiting && sched_replaced(v->sc, &l)) replace(v, &t, &l);
    } while (t.n_running || t.n_waiting || t.restarting);
    return t;
}

/* Where in the life of a step, and how the device says it. */
static const struct {
    const char *call; /* NULL: whatever is enqueued */
    int most;
    cudaError_t code;
    bool step; /* the step fails, and the device is well */
} kinds[GROUPS] = {
    {NULL, 200, cudaErrorIllegalAddress, false},
    {NULL, 40, cudaErrorECCUncorrectable, false},
    {"cudaEventRecord", 12, cudaErrorLaunchTimeout, false},
    {"cudaMemcpy", 20, cudaErrorLaunchFailure, false},
    {"cudaEventQuery", 10, cudaErrorIllegalAddress, false},
    {"cublas", 40, cudaErrorLaunchFailure, false}, /* of several devices: "push" */
    {"cudaMemcpy", 20, cudaErrorLaunchOutOfResources, true},
};

START_TEST(a_fault_at_any_call_ends_who_runs_and_no_more)
{
    served v;
    emu_rt_counts first, now;
    served_start(&v, served_ops());
    learn_right(&v);
    emu_rt_count(&first);
    uint64_t restarts = 0;
    int ended = 0;
    for (int k = 0; k < each; k++) {
        int n = (int)(served_mix((uint64_t)_i, (uint64_t)k) % (uint64_t)kinds[_i].most);
        const char *call = kinds[_i].call;
        if (call && strcmp(call, "cublas") == 0 && served_devices > 1) call = "push";
        emu_rt_fail_at(call, n, kinds[_i].code);
        ended += serve_all(&v);
        emu_rt_fail_at(NULL, -1, cudaSuccess);
        sched_stats t = settled(&v);
        ck_assert_msg(t.healthy, "call %d", n);
        ck_assert_uint_le(t.n_restarts, restarts + 1);
        bool struck = t.n_restarts > restarts;
        restarts = t.n_restarts;
        ck_assert_int_eq(serve_all(&v), 0);
        emu_rt_count(&now);
        ck_assert_uint_eq(now.device_bytes, first.device_bytes);
        ck_assert_uint_eq(now.pinned_bytes, first.pinned_bytes);
        if (struck) ck_assert_uint_gt(now.resets, 0);
    }
    /* Most of the calls were met, and somebody was running then. */
    if (kinds[_i].step)
        ck_assert_uint_eq(restarts, 0);
    else
        ck_assert_uint_ge(restarts, each / 2);
    ck_assert_int_ge(ended, each / 2);
    sched_stats t = settled(&v);
    count(&t);
    ck_assert_uint_eq(n_failed, (uint64_t)ended);
    ck_assert_uint_eq(n_finished + n_failed + (uint64_t)refused,
                      (uint64_t)(2 * each + 1) * CLIENTS);
    for (int i = 0; i < CLIENTS; i++) client_drop(right[i]);
    served_stop(&v);
    emu_rt_count(&now);
    ck_assert_uint_eq(now.device_bytes + now.pinned_bytes, 0);
}
END_TEST

/* Nobody waits longer than the backend's patience, neither for what was asked nor on the way out,
 * and another process is asked for. */
START_TEST(a_device_that_hangs_is_waited_for_no_longer)
{
    served v;
    served_start(&v, served_ops());
    learn_right(&v);
    int ended = 0;
    for (int k = 0; k < 2 * each; k++) {
        emu_rt_break_at("", (int)(served_mix(17, (uint64_t)k) % 200), cudaErrorNotReady);
        ended += serve_all(&v);
        ck_assert_uint_eq(settled(&v).n_restarts, (uint64_t)k + 1);
        ck_assert_int_eq(serve_all(&v), 0);
    }
    ck_assert_int_ge(ended, 2 * each);
    for (int i = 0; i < CLIENTS; i++) client_drop(right[i]);
    served_stop(&v);
    emu_rt_counts now;
    emu_rt_count(&now);
    ck_assert_uint_eq(now.device_bytes + now.pinned_bytes, 0);
}
END_TEST

/* test_restart [N [DEVICES]]: N faults of each kind. */
int main(int argc, char **argv)
{
    if (argc > 1) each = atoi(argv[1]);
    if (argc > 2) served_devices = atoi(argv[2]);
    Suite *s = suite_create("restart");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, a_fault_at_any_call_ends_who_runs_and_no_more, 0, GROUPS);
    tcase_add_test(tc, a_device_that_hangs_is_waited_for_no_longer);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
