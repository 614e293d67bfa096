/* test_nice_pool.c -- work at low priority: no more at once than there are threads, and a group
 * with much work does not hold up another.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <check.h>

#include "engine/program/nice_pool.h"
#include "tests/run_suite.h"

enum { THREADS = 2, CALLERS = 12 };

static nice_pool *pool;
static atomic_int running, most, open_gate;
static atomic_bool other_ran;

static void setup(void)
{
    err e;
    atomic_store(&running, 0);
    atomic_store(&most, 0);
    atomic_store(&other_ran, false);
    atomic_store(&open_gate, 0);
    ck_assert_msg(nice_pool_create(&pool, THREADS, 10, &e) == ERR_NONE, "%s", e.msg);
}

static void teardown(void)
{
    nice_pool_destroy(pool);
}

static void pause_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void count(void *arg)
{
    int now = atomic_fetch_add(&running, 1) + 1, seen = atomic_load(&most);
    while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now)) continue;
    *(int *)arg = getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid));
    pause_ms(2);
    atomic_fetch_sub(&running, 1);
}

static void *call_count(void *arg)
{
    int niceness = -100;
    for (int i = 0; i < 10; i++) {
        (void)nice_pool_run(pool, (uint64_t)(uintptr_t)arg % 3, count, &niceness);
        if (niceness != getpriority(PRIO_PROCESS, 0) + 10 && niceness != 19)
            atomic_store(&most, 99);
    }
    return NULL;
}

START_TEST(as_many_at_once_as_there_are_threads)
{
    pthread_t caller[CALLERS];
    for (uintptr_t i = 0; i < CALLERS; i++)
        ck_assert_int_eq(pthread_create(&caller[i], NULL, call_count, (void *)i), 0);
    for (int i = 0; i < CALLERS; i++) (void)pthread_join(caller[i], NULL);
    ck_assert_int_eq(atomic_load(&most), THREADS);
}
END_TEST

/* Those that begin once the gate is open wait for group 8: if both threads had one of them, for
 * ever. */
static void wait_for_gate(void *arg)
{
    (void)arg;
    bool first = atomic_fetch_add(&running, 1) < THREADS;
    while (!atomic_load(&open_gate) || (!first && !atomic_load(&other_ran))) pause_ms(1);
}

static void *call_slow(void *arg)
{
    (void)nice_pool_run(pool, (uint64_t)(uintptr_t)arg, wait_for_gate, NULL);
    return NULL;
}

static void *open_later(void *arg)
{
    while (nice_pool_waiting(pool) < CALLERS - THREADS + 1) pause_ms(1); /* with that of group 8 */
    atomic_store(&open_gate, 1);
    return arg;
}

static void note_other(void *arg)
{
    (void)arg;
    atomic_store(&other_ran, true);
}

/* Group 7 fills both threads and the queue.  Once one of its jobs has ended, group 8 is next; a
 * pool that let it wait would never end. */
START_TEST(a_group_with_much_work_lets_others_in)
{
    pthread_t caller[CALLERS], gate;
    for (int i = 0; i < CALLERS; i++)
        ck_assert_int_eq(pthread_create(&caller[i], NULL, call_slow, (void *)(uintptr_t)7), 0);
    while (atomic_load(&running) < THREADS) pause_ms(1);
    while (nice_pool_waiting(pool) < CALLERS - THREADS) pause_ms(1);
    ck_assert_int_eq(pthread_create(&gate, NULL, open_later, NULL), 0);
    (void)nice_pool_run(pool, 8, note_other, NULL);
    (void)pthread_join(gate, NULL);
    ck_assert(atomic_load(&other_ran));
    for (int i = 0; i < CALLERS; i++) (void)pthread_join(caller[i], NULL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("nice_pool");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, as_many_at_once_as_there_are_threads);
    tcase_add_test(tc, a_group_with_much_work_lets_others_in);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
