/* test_batches.c -- rows of batches that have ended are bounded for each tenant. */
#include <stdio.h>
#include <string.h>

#include <check.h>

#include "storage/batches/batches.h"
#include "storage/tenants.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64];
static store *st;
static uint64_t tenant_id[2];

static void setup(void)
{
    err e;
    tmpdir_make(dir);
    ck_assert_msg(store_open(&st, dir, &(store_options){.create = true}, &e) == ERR_NONE, "%s",
                  e.msg);
    for (int i = 0; i < 2; i++) {
        tenant t = {.weight = 1};
        snprintf(t.name, sizeof(t.name), "tenant-%d", i);
        ck_assert_msg(tenants_create(st, &t, &t, &e) == ERR_NONE, "%s", e.msg);
        tenant_id[i] = t.id;
        file_row f = {.tenant_id = t.id, .bytes = 1, .created_us = 1};
        snprintf(f.id, sizeof(f.id), "file-%d", i);
        ck_assert_int_eq(files_put(st, &f, &(batch_quota){0}, &e), ERR_NONE);
    }
}

static void teardown(void)
{
    store_close(st);
    tmpdir_remove(dir);
}

static void begin(int who, int i, bool end, int64_t most)
{
    err e;
    batch_row b = {.tenant_id = tenant_id[who], .created_us = i + 1, .deadline_us = 1000};
    snprintf(b.id, sizeof(b.id), "batch-%d-%03d", who, i);
    snprintf(b.input, sizeof(b.input), "file-%d", who);
    ck_assert_msg(batches_put(st, &b, &(batch_quota){.ended = most}, &e) == ERR_NONE, "%s", e.msg);
    if (!end) return;
    b.status = BATCH_COMPLETED;
    b.ended_us = i + 2;
    ck_assert_int_eq(batches_end(st, &b, NULL, 0, &e), ERR_NONE);
}

static int count(int who, char first[64])
{
    batch_row *list;
    size_t n;
    bool more;
    err e;
    const batch_page p = {.tenant_id = tenant_id[who], .limit = 1000, .oldest_first = true};
    ck_assert_int_eq(batches_list(st, &p, &list, &n, &more, &e), ERR_NONE);
    if (n > 0) snprintf(first, 64, "%s", list[0].id);
    batch_rows_free(list, n);
    return (int)n;
}

START_TEST(the_oldest_that_have_ended_go)
{
    char first[64] = "";
    begin(0, 0, false, 0); /* runs on: it stays */
    for (int i = 1; i <= 50; i++) begin(0, i, true, 0);
    for (int i = 0; i < 7; i++) begin(1, i, true, 0);
    ck_assert_int_eq(count(0, first), 51);
    begin(0, 51, false, 20);
    ck_assert_int_eq(count(0, first), 22); /* 20, and two that run */
    ck_assert_str_eq(first, "batch-0-000");
    begin(0, 52, true, 20);
    begin(0, 53, true, 20);
    ck_assert_int_eq(count(0, first), 23); /* the last to end is beyond, until the next begins */
    ck_assert_int_eq(count(1, first), 7);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("batches");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_oldest_that_have_ended_go);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
