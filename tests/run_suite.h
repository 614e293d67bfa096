/* run_suite.h -- the last line of a unit test's main().
 *
 * Threads: none; each case runs in a process of its own, but for what is said below.
 */
#ifndef TESTS_RUN_SUITE_H
#define TESTS_RUN_SUITE_H

#include <stdlib.h>

#include <check.h>

/* Check's limits (4 s, where a case says nothing) are for cases that hang, not for slow
 * machines. */
__attribute__((constructor)) static void be_patient(void)
{
    (void)setenv("CK_TIMEOUT_MULTIPLIER", "50", 0);
}

/* LORAD_SMOKE in the environment: of each loop test the first case alone, as the gate runs the
 * emulator's tests (cmake/tiers.cmake). */
static inline int loop_end(int start, int end)
{
    return getenv("LORAD_SMOKE") && end > start ? start + 1 : end;
}

#undef tcase_add_loop_test
#define tcase_add_loop_test(tc, test, start, end) \
    _tcase_add_test((tc), (test), 0, 0, (start), loop_end((start), (end)))

/* Runs all cases of `s` and frees it.  What main() returns: 0, or 1 where one failed.  CK_VERBOSITY
 * (and CK_FORK, with CK_FORK_GETENV) in the environment mean what Check says. */
static inline int run_suite_as(Suite *s, enum fork_status fork)
{
    SRunner *sr = srunner_create(s);
    srunner_set_fork_status(sr, fork);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}

static inline int run_suite(Suite *s)
{
#if defined(CONFORM_CUDA) && \
    !defined(CONFORM_EMULATED) /* a device's context does not outlive fork() */
    return run_suite_as(s, CK_NOFORK);
#else
    return run_suite_as(s, CK_FORK_GETENV);
#endif
}

#endif
