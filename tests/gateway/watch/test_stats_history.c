/* test_stats_history.c -- spans of what ended, and when a class breaks its promises. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/watch/stats_history.h"
#include "storage/audit.h"
#include "storage/tenants.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { T0 = 1800000000, MS = 1000 };

static const char *const classes[] = {"interactive", "batch"};
static char dir[64];
static store *st;
static stats_history *h;
static history_row *rows;
static size_t n;
static uint64_t last_id;
static int n_told, told_class;
static breach told;
static err e;

static void setup(void)
{
    tmpdir_make(dir);
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
    h = stats_history_create(1);
    n_told = 0;
    last_id = 0;
}

static void teardown(void)
{
    stats_history_destroy(h);
    store_close(st);
    tmpdir_remove(dir);
    free(rows);
    rows = NULL;
}

static void tell(void *arg, int class, const breach *b)
{
    ck_assert_ptr_eq(arg, &told);
    n_told++;
    told_class = class;
    told = *b;
}

static void tick(int64_t s)
{
    stats_history_tick(h, st, classes, 2, T0 + s, tell, &told);
}

static void note(int class, uint64_t tenant_id, const char *model, miss_cause missed, int times)
{
    usage_row row = {.tenant_id = tenant_id,
                     .adapter_id = strcmp(model, "base") != 0,
                     .status = 200,
                     .missed = missed,
                     .output_tokens = 11,
                     .ttft_ms = missed ? 4000 : 100,
                     .duration_ms = missed ? 5000 : 200};
    snprintf(row.model, sizeof(row.model), "%s", model);
    for (int i = 0; i < times; i++) stats_history_note(h, ++last_id, &row, class);
}

static void get(int width_s, history_kind kind)
{
    history_query q = {.width_s = width_s, .kind = kind, .end_s = T0 + 100000, .limit = 1000};
    ck_assert_int_eq(audit_append(st, 0, 0, "a", "b", NULL, &e),
                     ERR_NONE); /* all before is there */
    free(rows);
    ck_assert_int_eq(history_get(st, &q, &rows, &n, &e), ERR_NONE);
}

START_TEST(a_span_is_written_when_it_is_over)
{
    tick(3);
    note(0, 5, "pirate@3", MISS_QUEUE, 2);
    note(0, 5, "base", MISS_NONE, 6);
    stats_history_refused(h, 5, 1, MISS_NONE);
    stats_history_refused(h, 5, 1, MISS_QUEUE);
    tick(9);
    get(HISTORY_FINE_S, HISTORY_CLASS);
    ck_assert_uint_eq(n, 0);
    tick(10);
    get(HISTORY_FINE_S, HISTORY_CLASS);
    ck_assert_uint_eq(n, 2);
    ck_assert_str_eq(rows[0].name, "batch");
    ck_assert_int_eq(rows[0].limited, 1);
    ck_assert_int_eq(rows[0].refused, 1);
    ck_assert_int_eq(rows[0].missed, 1); /* what is refused has missed */
    ck_assert_str_eq(rows[0].causes, "queue:1");
    ck_assert_str_eq(rows[1].name, "interactive");
    ck_assert_int_eq(rows[1].start_s, T0);
    ck_assert_int_eq(rows[1].met, 6);
    ck_assert_int_eq(rows[1].missed, 2);
    ck_assert_str_eq(rows[1].causes, "queue:2");
    ck_assert_int_gt(rows[1].ttft_p99_us, 2000 * MS);
    get(HISTORY_FINE_S, HISTORY_ADAPTER);
    ck_assert_uint_eq(n, 1);
    ck_assert_str_eq(rows[0].name, "5/pirate"); /* its tenant is gone */
    tick(20);                                   /* an empty one is no row */
    get(HISTORY_FINE_S, HISTORY_CLASS);
    ck_assert_uint_eq(n, 2);
    get(HISTORY_COARSE_S, HISTORY_CLASS);
    ck_assert_uint_eq(n, 0);
    tick(600);
    get(HISTORY_COARSE_S, HISTORY_CLASS);
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(rows[1].met, 6);
}
END_TEST

START_TEST(many_tenants_share_a_line)
{
    tick(1);
    for (uint64_t id = 1; id <= 500; id++) note(1, id, "base", MISS_NONE, 1);
    tick(10);
    get(HISTORY_FINE_S, HISTORY_TENANT);
    ck_assert_uint_le(n, 40);
    int64_t sum = 0, shared = 0;
    for (size_t i = 0; i < n; i++) {
        sum += rows[i].ended;
        if (strcmp(rows[i].name, "(others)") == 0) shared = rows[i].ended;
    }
    ck_assert_int_eq(sum, 500);
    ck_assert_int_eq(shared, 500 - ((int64_t)n - 1));
}
END_TEST

START_TEST(a_breach_begins_and_ends)
{
    char text[200];
    tick(1);
    note(0, 5, "base", MISS_QUEUE, 2); /* too few */
    note(0, 5, "base", MISS_NONE, 2);
    tick(10);
    note(0, 5, "base", MISS_MACHINE, 3); /* of too many others */
    note(0, 5, "base", MISS_NONE, 120);
    tick(20);
    ck_assert_int_eq(n_told, 0);
    note(0, 5, "base", MISS_QUEUE, 5);
    note(0, 5, "base", MISS_NONE, 4);
    note(1, 5, "base", MISS_NONE, 4);
    tick(30);
    ck_assert_int_eq(n_told, 1);
    ck_assert_int_eq(told_class, 0);
    ck_assert_int_eq(told.since_s, T0 + 20);
    ck_assert_int_eq(told.until_s, 0);
    breach_text(&told, 500 * MS, 50 * MS, text, sizeof(text));
    ck_assert_msg(strstr(text, "since 08:00:20 UTC: 5 of 9 missed (queue:5); first tokens ") ==
                      text,
                  "%s", text);
    ck_assert_ptr_nonnull(strstr(text, " of 500 ms; tokens "));
    tick(40); /* quiet */
    note(0, 5, "base", MISS_MACHINE, 6);
    tick(50);
    tick(60);
    tick(70);
    ck_assert_int_eq(n_told, 1);
    ck_assert_int_eq(stats_history_breach(h, 0).missed, 11);
    tick(80);
    ck_assert_int_eq(n_told, 2);
    ck_assert_int_eq(told.until_s, T0 + 50);
    ck_assert_int_eq((int)told.cause[MISS_MACHINE], 6);
    breach_text(&told, 500 * MS, 0, text, sizeof(text));
    ck_assert_msg(strstr(text, "from 08:00:20 to 08:00:50 UTC: 11 of 15 missed (machine:6,"
                               "queue:5)") == text,
                  "%s", text);
    ck_assert_ptr_null(strstr(text, "; tokens"));
    told.ttft_us = 15940LL * MS; /* no power of ten */
    breach_text(&told, 7200000LL * MS, 0, text, sizeof(text));
    ck_assert_ptr_null(strstr(text, "first tokens"));
    breach_text(&told, 10000 * MS, 0, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "; first tokens 15940 ms of 10000 ms"));
    tick(90);
    ck_assert_int_eq(n_told, 2);
    note(0, 5, "base", MISS_MACHINE, 5); /* another one */
    tick(100);
    ck_assert_int_eq(n_told, 3);
    ck_assert_int_eq(told.missed, 5);
    ck_assert_int_eq(stats_history_breach(h, 1).since_s, 0);
}
END_TEST

/* Of a class that gets no turn nothing ends; each miss counts once. */
/* Few and slow requests are told, too, and at once: the span need not be over. */
START_TEST(a_breach_is_told_as_soon_as_it_is_one)
{
    tick(1);
    note(0, 5, "base", MISS_STORAGE, 2);
    tick(10);
    ck_assert_int_eq(n_told, 0);
    tick(12);
    note(0, 5, "base", MISS_STORAGE, 1);
    tick(13);
    ck_assert_int_eq(n_told, 1);
    ck_assert_int_eq(told.since_s, T0);
    ck_assert_int_eq(told.missed, 3);
    note(0, 5, "base", MISS_STORAGE, 2);
    ck_assert_int_eq(stats_history_breach(h, 0).missed, 5);
    tick(20);
    tick(30);
    ck_assert_int_eq(stats_history_breach(h, 0).missed, 5);
    tick(40);
    ck_assert_int_eq(n_told, 1);
    tick(50);
    ck_assert_int_eq(n_told, 2);
    ck_assert_int_eq(told.until_s, T0 + 20);
    note(1, 5, "base", MISS_QUEUE, 2);
    tick(60);
    tick(100); /* what was long ago is not before this */
    note(1, 5, "base", MISS_QUEUE, 1);
    tick(101);
    ck_assert_int_eq(n_told, 2);
}
END_TEST

START_TEST(who_waits_beyond_the_target_has_missed)
{
    enum { N = 5 };
    board_row row[N] = {0};
    tick(1);
    for (int i = 0; i < N; i++) {
        row[i] = (board_row){.id = (uint64_t)i + 1, .tenant_id = 5, .slo_class = 1};
        if (i < 4) row[i].overdue = MISS_QUEUE;
    }
    stats_history_overdue(h, row, N);
    tick(10);
    ck_assert_int_eq(n_told, 1);
    ck_assert_int_eq(told_class, 1);
    ck_assert_int_eq(told.since_s, T0);
    ck_assert_int_eq(told.missed, 4);
    row[1].overdue = MISS_NONE; /* its first token came late */
    row[4].overdue = MISS_QUEUE;
    stats_history_overdue(h, row, N);
    tick(20);
    ck_assert_int_eq(told.missed, 4);
    ck_assert_int_eq(stats_history_breach(h, 1).missed, 5);
    note(1, 5, "base", MISS_MACHINE, 2); /* the first two end */
    stats_history_overdue(h, row + 2, N - 2);
    tick(30);
    ck_assert_int_eq(stats_history_breach(h, 1).missed, 5);
    row[1].overdue = MISS_QUEUE;
    stats_history_overdue(h, row, N); /* an old picture: two of it have ended */
    ck_assert_int_eq(stats_history_breach(h, 1).missed, 5);
    stats_history_overdue(h, row + 2, N - 2);
    stats_history_overdue(h, NULL, 0); /* the others are gone without a word, and forgotten */
    last_id = 2;
    note(1, 5, "base", MISS_MACHINE, 3);
    tick(40);
    ck_assert_int_eq(stats_history_breach(h, 1).missed, 8);
    for (history_kind kind = HISTORY_CLASS; kind <= HISTORY_TENANT; kind++) {
        get(HISTORY_FINE_S, kind);
        ck_assert_uint_eq(n, 4);
        ck_assert_str_eq(rows[0].causes, "queue:4");
        ck_assert_int_eq(rows[2].ended, 2);
        ck_assert_int_eq(rows[2].missed, 0);
        ck_assert_str_eq(rows[2].causes, "");
        ck_assert_str_eq(rows[3].causes, "machine:3");
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stats_history");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_span_is_written_when_it_is_over);
    tcase_add_test(tc, many_tenants_share_a_line);
    tcase_add_test(tc, a_breach_begins_and_ends);
    tcase_add_test(tc, a_breach_is_told_as_soon_as_it_is_one);
    tcase_add_test(tc, who_waits_beyond_the_target_has_missed);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
