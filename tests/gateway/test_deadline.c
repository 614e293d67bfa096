/* test_deadline.c -- every deadline is kept, however many there are, and one taken off stays off. */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/clock.h"
#include "gateway/deadline.h"

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

int main(void)
{
    Suite *s = suite_create("deadline");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, the_last_of_many_is_kept);
    tcase_add_test(tc, one_taken_off_or_moved_does_nothing);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
