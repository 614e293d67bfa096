/* test_deadline.c -- every deadline is kept, however many there are, and one taken off stays
 * off. */
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/clock.h"
#include "gateway/net/deadline.h"
#include "tests/run_suite.h"

enum { MANY = 20000 };

static int pair[2];

static void setup(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    deadline_reaper_retain();
}

static void teardown(void)
{
    deadline_reaper_release();
    (void)close(pair[0]);
    (void)close(pair[1]);
}

/* Blocks until the reaper acts: a lost deadline is a test that never ends. */
START_TEST(the_last_of_many_is_kept)
{
    deadline *all = calloc(MANY, sizeof(*all)), last = {0};
    char byte;
    ck_assert_ptr_nonnull(all);
    for (int i = 0; i < MANY; i++) deadline_set(&all[i], pair[1], INT64_MAX, true);
    deadline_set(&last, pair[0], clock_now_us(), false);
    ck_assert_int_eq(read(pair[0], &byte, 1), 0);
    ck_assert_int_eq(write(pair[0], "x", 1), 1); /* shut for reading alone */
    ck_assert_int_eq(read(pair[1], &byte, 1), 1);
    for (int i = 0; i < MANY; i++) deadline_set(&all[i], -1, 0, false);
    free(all);
}
END_TEST

START_TEST(one_taken_off_or_moved_does_nothing)
{
    int other[2];
    char byte;
    deadline off = {0}, moved = {0}, probe = {0};
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
    deadline_set(&off, pair[0], clock_now_us(), true);
    deadline_set(&off, pair[0], 0, true);
    deadline_set(&moved, pair[1], clock_now_us(), true);
    deadline_set(&moved, pair[1], INT64_MAX, true);
    deadline_set(&off, pair[0], 0, true);                 /* twice is harmless */
    deadline_set(&probe, other[0], clock_now_us(), true); /* later in time, earlier in the list */
    ck_assert_int_eq(read(other[0], &byte, 1), 0);        /* the reaper has been round */
    ck_assert_int_eq(write(pair[0], "x", 1), 1);
    ck_assert_int_eq(read(pair[1], &byte, 1), 1);
    deadline_set(&moved, pair[1], 0, false);
    (void)close(other[0]);
    (void)close(other[1]);
}
END_TEST

static void count(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

/* The reaper has been round, and has read the events before: a deadline that was due is kept. */
static void round_of_the_reaper(void)
{
    int other[2];
    char byte;
    deadline probe = {0};
    for (int i = 0; i < 2; i++) { /* the first may be kept in the round in which the event came */
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
        deadline_set(&probe, other[0], clock_now_us(), true);
        ck_assert_int_eq(read(other[0], &byte, 1), 0);
        deadline_set(&probe, -1, 0, true);
        (void)close(other[0]);
        (void)close(other[1]);
    }
}

START_TEST(a_peer_that_goes_wakes_its_owner_once)
{
    atomic_int gone = 0, half = 0, none = 0;
    int a[2], b[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, a), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, b), 0);
    ck_assert(deadline_watch(a[0], count, &gone));
    ck_assert(deadline_watch(b[0], count, &half));
    ck_assert(deadline_watch(pair[0], count, &none));
    ck_assert(!deadline_watch(-1, count, &none));
    ck_assert_int_eq(write(pair[1], "x", 1), 1); /* bytes are no end */
    ck_assert_int_eq(shutdown(b[1], SHUT_WR), 0);
    (void)close(a[1]);
    round_of_the_reaper();
    ck_assert_int_eq(atomic_load(&gone), 1);
    ck_assert_int_eq(atomic_load(&half), 1);
    ck_assert_int_eq(atomic_load(&none), 0);
    deadline_unwatch(a[0]);
    deadline_unwatch(b[0]);
    deadline_unwatch(pair[0]);
    deadline_unwatch(pair[0]); /* twice is harmless */
    ck_assert_int_eq(shutdown(pair[1], SHUT_WR), 0);
    round_of_the_reaper();
    ck_assert_int_eq(atomic_load(&none), 0);
    (void)close(a[0]);
    (void)close(b[0]);
    (void)close(b[1]);
}
END_TEST

START_TEST(a_watch_on_the_same_number_is_another)
{
    atomic_int old = 0, fresh = 0;
    for (int i = 0; i < 200; i++) {
        int a[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, a), 0);
        ck_assert(deadline_watch(a[0], count, &old));
        (void)close(a[1]); /* its event may be on the way as the watch goes */
        deadline_unwatch(a[0]);
        (void)close(a[0]);
        int before = atomic_load(&old);
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, a), 0);
        ck_assert(deadline_watch(a[0], count, &fresh));
        if (i % 50 == 0) round_of_the_reaper();
        ck_assert_int_eq(atomic_load(&old), before);
        ck_assert_int_eq(atomic_load(&fresh), 0);
        deadline_unwatch(a[0]);
        (void)close(a[0]);
        (void)close(a[1]);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("deadline");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, the_last_of_many_is_kept);
    tcase_add_test(tc, one_taken_off_or_moved_does_nothing);
    tcase_add_test(tc, a_peer_that_goes_wakes_its_owner_once);
    tcase_add_test(tc, a_watch_on_the_same_number_is_another);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
