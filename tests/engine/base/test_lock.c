/* test_lock.c -- the order of locks: what is allowed passes, what is not ends the process.
 *
 * Each offence is done in a process of its own, whose last words are read: they name both locks and
 * both places.  Builds for users check nothing, so there the offences are left out.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "tests/run_suite.h"

static lock stats, residency, devmem, sched, board, telemetry, other_sched;
static rwlock tenants;

static void make_locks(void)
{
    lock_init(&stats, LOCK_STATS);
    lock_init(&residency, LOCK_RESIDENCY);
    lock_init(&devmem, LOCK_DEVMEM);
    lock_init(&sched, LOCK_SCHED);
    lock_init(&other_sched, LOCK_SCHED);
    lock_init(&board, LOCK_BOARD);
    lock_init(&telemetry, LOCK_TELEMETRY);
    rwlock_init(&tenants, LOCK_TENANTS);
}

static void free_locks(void)
{
    rwlock_free(&tenants);
    lock_free(&telemetry);
    lock_free(&board);
    lock_free(&other_sched);
    lock_free(&sched);
    lock_free(&devmem);
    lock_free(&residency);
    lock_free(&stats);
}

/* ---- what is allowed ---------------------------------------------------------------------- */

START_TEST(the_listed_order_passes)
{
    make_locks();
    for (int i = 0; i < 2; i++) {
        lock_take(&stats);
        lock_take(&residency);
        lock_take(&devmem);
        lock_assert_held(&stats);
        lock_assert_held(&devmem);
        lock_release(&residency); /* not in turn: allowed */
        lock_assert_held(&devmem);
        lock_release(&devmem);
        rwlock_read(&tenants);
        rwlock_release(&tenants);
        lock_release(&stats);
        lock_assert_none();
        rwlock_write(&tenants);
        rwlock_release(&tenants);
    }
    free_locks();
}
END_TEST

static void *try_sched(void *arg)
{
    *(bool *)arg = lock_try(&sched);
    if (*(bool *)arg) lock_release(&sched);
    return NULL;
}

static bool another_thread_gets_it(void)
{
    pthread_t t;
    bool got = false;
    ck_assert_int_eq(pthread_create(&t, NULL, try_sched, &got), 0);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    return got;
}

START_TEST(a_lock_that_somebody_has_is_not_had_by_a_try)
{
    make_locks();
    ck_assert(another_thread_gets_it());
    ck_assert(lock_try(&sched));
    ck_assert(!another_thread_gets_it());
    lock_release(&sched);
    ck_assert(another_thread_gets_it());
    free_locks();
}
END_TEST

static struct {
    lock *l;
    cond c;
    bool said;
} news;

static void *say(void *arg)
{
    (void)arg;
    lock_take(news.l);
    news.said = true;
    cond_signal(&news.c);
    lock_release(news.l);
    return NULL;
}

START_TEST(a_wait_ends_with_the_news_or_with_the_time)
{
    pthread_t t;
    make_locks();
    news.l = &board;
    cond_init(&news.c);
    int64_t begun_us = clock_now_us(), end_us = begun_us + 20000;
    lock_take(&stats); /* a holder of it may wait */
    lock_take(&board);
    while (cond_wait_until(&news.c, &board, end_us)) continue;
    ck_assert_int_ge(clock_now_us(), end_us);
    ck_assert_int_eq(pthread_create(&t, NULL, say, NULL), 0);
    while (!news.said) ck_assert(cond_wait_until(&news.c, &board, INT64_MAX / 4));
    lock_assert_held(&board);
    lock_release(&board);
    lock_release(&stats);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    cond_free(&news.c);
    free_locks();
}
END_TEST

/* ---- what is not -------------------------------------------------------------------------- */

#ifdef LORAD_CHECK_LOCKS

static void turn_round(void)
{
    lock_take(&board);
    lock_take(&stats);
}

static void take_what_is_not_named(void)
{
    lock_take(&board);
    lock_take(&telemetry);
}

static void try_what_is_not_named(void)
{
    lock_take(&board);
    (void)lock_try(&telemetry);
}

static void read_what_is_not_named(void)
{
    lock_take(&board);
    rwlock_read(&tenants);
}

static void take_two_of_a_kind(void)
{
    lock_take(&sched);
    lock_take(&other_sched);
}

static void take_it_twice(void)
{
    lock_take(&sched);
    lock_take(&sched);
}

static void skip_the_middle(void)
{
    lock_take(&stats);
    lock_take(&devmem); /* this is allowed */
    lock_take(&residency);
}

static void release_what_is_not_held(void)
{
    lock_release(&sched);
}

static void *hold_sched(void *arg)
{
    lock_take(&sched);
    return arg;
}

static void release_what_another_holds(void)
{
    pthread_t t;
    if (pthread_create(&t, NULL, hold_sched, NULL) != 0 || pthread_join(t, NULL) != 0) exit(2);
    lock_release(&sched);
}

static void free_what_another_holds(void)
{
    pthread_t t;
    if (pthread_create(&t, NULL, hold_sched, NULL) != 0 || pthread_join(t, NULL) != 0) exit(2);
    lock_free(&sched);
}

static void take_what_was_never_made(void)
{
    static lock none;
    lock_take(&none);
}

static void take_what_is_gone(void)
{
    lock_free(&sched);
    lock_take(&sched);
}

static void wait_under_one_that_must_not(void)
{
    cond c;
    cond_init(&c);
    lock_take(&residency);
    lock_take(&devmem);
    (void)cond_wait_until(&c, &devmem, clock_now_us());
}

static void wait_without_the_lock(void)
{
    cond c;
    cond_init(&c);
    (void)cond_wait_until(&c, &devmem, clock_now_us());
}

static void claim_what_is_not_held(void)
{
    lock_take(&stats);
    lock_assert_held(&devmem);
}

static void claim_to_hold_none(void)
{
    lock_take(&stats);
    lock_assert_none();
}

static const struct {
    void (*commit)(void);
    const char *words[3]; /* of the sentence, in this order */
} offences[] = {
    {turn_round, {"stats.mu is taken under board.mu", "the other order", "held: board.mu"}},
    {take_what_is_not_named, {"telemetry.mu is taken under board.mu", "held: board.mu"}},
    {try_what_is_not_named, {"telemetry.mu is taken under board.mu", "held: board.mu"}},
    {read_what_is_not_named, {"tenant_cache.lock is taken under board.mu"}},
    {take_two_of_a_kind, {"sched.mu is taken under sched.mu", "held: sched.mu"}},
    {take_it_twice, {"sched.mu is taken under sched.mu", "held: sched.mu"}},
    {skip_the_middle, {"residency.mu is taken under devmem.mu", "held: stats.mu", "held: devmem"}},
    {release_what_is_not_held, {"sched.mu is released", "does not hold it"}},
    {release_what_another_holds, {"sched.mu is released", "does not hold it"}},
    {free_what_another_holds, {"sched.mu is freed while it is held"}},
    {take_what_was_never_made, {"a lock that is not made is taken"}},
    {take_what_is_gone, {"a lock that is not made is taken"}},
    {wait_under_one_that_must_not, {"devmem.mu is waited with", "is not for that", "residency.mu"}},
    {wait_without_the_lock, {"devmem.mu is waited with", "does not hold it"}},
    {claim_what_is_not_held, {"devmem.mu is not held here", "held: stats.mu"}},
    {claim_to_hold_none, {"no lock may be held here", "held: stats.mu"}},
};

/* Does it in a process of its own; what that said at its end, and its exit status. */
static int last_words(void (*commit)(void), char *said, size_t cap)
{
    int pipe_fd[2], status;
    size_t n = 0;
    ck_assert_int_eq(pipe(pipe_fd), 0);
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        dup2(pipe_fd[1], STDERR_FILENO);
        make_locks();
        commit();
        _exit(0);
    }
    close(pipe_fd[1]);
    for (ssize_t got; (got = read(pipe_fd[0], said + n, cap - 1 - n)) > 0;) n += (size_t)got;
    said[n] = 0;
    close(pipe_fd[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

START_TEST(an_offence_ends_the_process_with_names_and_places)
{
    char said[8192];
    int status = last_words(offences[_i].commit, said, sizeof(said));
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %x: %s", status,
                  said);
    const char *at = said;
    for (int i = 0; i < 3 && offences[_i].words[i]; i++) {
        at = strstr(at, offences[_i].words[i]);
        ck_assert_msg(at, "'%s' is missing: %s", offences[_i].words[i], said);
    }
    ck_assert_ptr_nonnull(strstr(said, "test_lock.c:")); /* where it was done */
    const char *held = strstr(said, "held: ");
    if (held) ck_assert_ptr_nonnull(strstr(held, "test_lock.c:")); /* where that was taken */
}
END_TEST

#endif

int main(void)
{
    Suite *s = suite_create("lock");
    TCase *t = tcase_create("order");
    tcase_add_test(t, the_listed_order_passes);
    tcase_add_test(t, a_lock_that_somebody_has_is_not_had_by_a_try);
    tcase_add_test(t, a_wait_ends_with_the_news_or_with_the_time);
#ifdef LORAD_CHECK_LOCKS
    tcase_add_loop_test(t, an_offence_ends_the_process_with_names_and_places, 0,
                        (int)(sizeof(offences) / sizeof(*offences)));
#endif
    suite_add_tcase(s, t);
    return run_suite(s);
}
