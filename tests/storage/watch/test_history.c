/* test_history.c -- spans of what was seen: written behind one's back, read, and forgotten. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "storage/audit.h"
#include "storage/watch/history.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { NOW_S = 1800000000 };

static char dir[64];
static store *st;
static history_row *rows;
static size_t n;

static void setup(void)
{
    err e;
    tmpdir_make(dir);
    ck_assert_msg(store_open(&st, dir, &(store_options){.create = true}, &e) == ERR_NONE, "%s",
                  e.msg);
}

static void teardown(void)
{
    free(rows);
    rows = NULL;
    store_close(st);
    tmpdir_remove(dir);
}

static history_row row_of(int width_s, history_kind kind, const char *name, int64_t start_s)
{
    history_row r = {.width_s = width_s,
                     .kind = kind,
                     .start_s = start_s,
                     .part = 1,
                     .ended = 7,
                     .failed = 1,
                     .refused = 2,
                     .limited = 3,
                     .met = 4,
                     .missed = 5,
                     .prompt_tokens = 60,
                     .output_tokens = 70,
                     .ttft_p50_us = 80,
                     .ttft_p99_us = 90,
                     .tpot_p50_us = -1,
                     .tpot_p99_us = 110};
    snprintf(r.name, sizeof(r.name), "%s", name);
    snprintf(r.causes, sizeof(r.causes), "queue:3,machine:2");
    return r;
}

/* What was put is there when a later write has come back. */
static void put(const history_row *r, size_t count, int64_t now_s)
{
    err e;
    history_put(st, r, count, now_s);
    ck_assert_int_eq(audit_append(st, 0, 0, "a", "b", NULL, &e), ERR_NONE);
}

static void get(int width_s, history_kind kind, const char *name)
{
    err e;
    history_query q = {.width_s = width_s, .kind = kind, .name = name, .end_s = NOW_S, .limit = 50};
    free(rows);
    ck_assert_msg(history_get(st, &q, &rows, &n, &e) == ERR_NONE, "%s", e.msg);
}

START_TEST(what_was_put_is_read)
{
    history_row r[3] = {row_of(10, HISTORY_CLASS, "interactive", NOW_S - 20),
                        row_of(10, HISTORY_CLASS, "batch", NOW_S - 10),
                        row_of(10, HISTORY_TENANT, "acme", NOW_S - 10)};
    get(10, HISTORY_CLASS, NULL);
    ck_assert_uint_eq(n, 0);
    put(r, 3, NOW_S);
    get(10, HISTORY_CLASS, NULL);
    ck_assert_uint_eq(n, 2);
    ck_assert_mem_eq(&rows[0], &r[0], sizeof(r[0]));
    ck_assert_mem_eq(&rows[1], &r[1], sizeof(r[1]));
    get(10, HISTORY_CLASS, "batch");
    ck_assert_uint_eq(n, 1);
    get(600, HISTORY_CLASS, NULL);
    ck_assert_uint_eq(n, 0);
    get(10, HISTORY_TENANT, NULL);
    ck_assert_uint_eq(n, 1);
}
END_TEST

/* An hour of the fine ones, thirty days of the coarse ones. */
START_TEST(old_spans_are_forgotten)
{
    const int64_t month_s = HISTORY_COARSE_KEPT_S;
    history_row r[4] = {row_of(10, HISTORY_CLASS, "a", NOW_S - 3610),
                        row_of(10, HISTORY_CLASS, "a", NOW_S - 3600),
                        row_of(600, HISTORY_CLASS, "a", NOW_S - month_s - 600),
                        row_of(600, HISTORY_CLASS, "a", NOW_S - month_s)};
    put(r, 4, NOW_S);
    get(10, HISTORY_CLASS, NULL);
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(rows[0].start_s, NOW_S - 3600);
    get(600, HISTORY_CLASS, NULL);
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(rows[0].start_s, NOW_S - month_s);
}
END_TEST

/* Another process in the same span adds a row; the same one writes its own anew. */
START_TEST(a_restart_does_not_lose_a_span)
{
    history_row r = row_of(600, HISTORY_CLASS, "a", NOW_S - 600);
    put(&r, 1, NOW_S);
    r.part = 2;
    r.missed = 9;
    put(&r, 1, NOW_S);
    put(&r, 1, NOW_S);
    get(600, HISTORY_CLASS, NULL);
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(rows[0].missed + rows[1].missed, 14);
}
END_TEST

START_TEST(no_more_than_was_asked_for)
{
    err e;
    history_row r[HISTORY_NAMES];
    for (int i = 0; i < HISTORY_NAMES; i++) {
        char name[16];
        snprintf(name, sizeof(name), "t%02d", i);
        r[i] = row_of(10, HISTORY_TENANT, name, NOW_S - 10);
    }
    put(r, HISTORY_NAMES, NOW_S);
    history_query q = {.width_s = 10, .kind = HISTORY_TENANT, .end_s = NOW_S, .limit = 5};
    ck_assert_int_eq(history_get(st, &q, &rows, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 5);
    ck_assert_str_eq(rows[4].name, "t04");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("history");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, what_was_put_is_read);
    tcase_add_test(tc, old_spans_are_forgotten);
    tcase_add_test(tc, a_restart_does_not_lose_a_span);
    tcase_add_test(tc, no_more_than_was_asked_for);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
