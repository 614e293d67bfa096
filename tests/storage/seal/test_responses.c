/* test_responses.c -- stored responses: damage is seen, and what a tenant holds is counted without
 * reading its rows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <check.h>

#include "storage/seal/responses.h"
#include "storage/store_sql.h"
#include "storage/tenants.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64];
static store *st;
static uint64_t tenant_id[2];
static const uint8_t a_key[SEAL_KEY_BYTES] = {1, 2, 3};

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
    }
}

static void teardown(void)
{
    store_close(st);
    tmpdir_remove(dir);
}

static response_row row_of(int who, const char *id, const char *text)
{
    response_row r = {.tenant_id = tenant_id[who], .created_us = 5};
    snprintf(r.id, sizeof(r.id), "%s", id);
    r.body = (char *)(uintptr_t)text;
    r.input = (char *)(uintptr_t) "[]";
    return r;
}

static void put(int who, const char *id, const char *text, seal_key key)
{
    err e;
    response_row r = row_of(who, id, text);
    ck_assert_msg(responses_put(st, key, &r, NULL, &e) == ERR_NONE, "%s", e.msg);
}

typedef struct flip_job {
    int64_t at;
    int bit;
} flip_job;

/* Flips one bit of the column body of the only row. */
static err_code flip(sqlite3 *db, void *arg, err *e)
{
    const flip_job *j = arg;
    sqlite3_blob *b;
    uint8_t byte;
    ck_assert_int_eq(sqlite3_blob_open(db, "main", "responses", "body", 1, 1, &b), SQLITE_OK);
    ck_assert_int_eq(sqlite3_blob_read(b, &byte, 1, (int)j->at), SQLITE_OK);
    byte ^= (uint8_t)(1 << j->bit);
    ck_assert_int_eq(sqlite3_blob_write(b, &byte, 1, (int)j->at), SQLITE_OK);
    ck_assert_int_eq(sqlite3_blob_close(b), SQLITE_OK);
    (void)e;
    return ERR_NONE;
}

/* Each bit of a stored document, sealed or not. */
START_TEST(a_flipped_bit_is_an_error)
{
    static const char text[] = "{\"output\": \"The answer is 42.\"}";
    seal_key keys[] = {NULL, a_key};
    response_row got;
    err e;
    for (int k = 0; k < 2; k++) {
        put(0, "one", text, keys[k]);
        size_t len = sizeof(text) - 1 + (k ? 1 + SEAL_BYTES : 9);
        for (size_t i = 0; i < len * 8; i++) {
            flip_job j = {(int64_t)(i / 8), (int)(i % 8)};
            ck_assert_int_eq(store_write_own(st, flip, &j, &e), ERR_NONE);
            err_code rc = responses_get(st, keys[k], tenant_id[0], "one", &got, &e);
            if (!rc) {
                ck_assert_str_ne(got.body, "");
                ck_assert_msg(k == 1 && i / 8 == 0, "bit %zu is not seen", i); /* of the kind */
                response_row_clear(&got);
            }
            ck_assert_int_eq(store_write_own(st, flip, &j, &e), ERR_NONE);
        }
        ck_assert_int_eq(responses_get(st, keys[k], tenant_id[0], "one", &got, &e), ERR_NONE);
        ck_assert_str_eq(got.body, text);
        response_row_clear(&got);
    }
}
END_TEST

/* A document in another row is not that row's. */
static err_code swap(sqlite3 *db, void *arg, err *e)
{
    (void)arg;
    ck_assert_int_eq(sqlite3_exec(db,
                                  "UPDATE responses SET body = (SELECT body FROM responses"
                                  " WHERE id = 'other') WHERE id = 'one'",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    (void)e;
    return ERR_NONE;
}

START_TEST(another_rows_document_is_an_error)
{
    response_row got;
    err e;
    put(0, "one", "{\"a\": 1}", NULL);
    put(0, "other", "{\"a\": 2}", NULL);
    ck_assert_int_eq(store_write_own(st, swap, NULL, &e), ERR_NONE);
    ck_assert_int_eq(responses_get(st, NULL, tenant_id[0], "one", &got, &e), ERR_CORRUPT);
}
END_TEST

static void expect_counts(unsigned seed)
{
    sql q;
    err e;
    sqlite3 *db = store_read_begin(st);
    sql_begin(&q, db,
              "SELECT count(*) FROM (SELECT tenant_id, count(*), sum(bytes) FROM responses"
              " GROUP BY tenant_id EXCEPT SELECT tenant_id, n, bytes FROM responses_held)");
    ck_assert(sql_row(&q));
    ck_assert_msg(sql_col_int(&q, 0) == 0, "seed %u: the counters are not the sums", seed);
    ck_assert_int_eq(sql_end(&q, "compare", &e), ERR_NONE);
    sql_begin(&q, db,
              "SELECT coalesce(sum(n), 0) - (SELECT count(*) FROM responses)"
              " FROM responses_held");
    ck_assert(sql_row(&q) && sql_col_int(&q, 0) == 0);
    ck_assert_int_eq(sql_end(&q, "compare", &e), ERR_NONE);
    store_read_end(st, db);
}

START_TEST(counters_are_the_sums_after_any_change)
{
    unsigned seed = (unsigned)time(NULL), r = seed;
    err e;
    printf("counters_are_the_sums_after_any_change: seed %u\n", seed);
    for (int i = 0; i < 400; i++) {
        char id[16], text[64];
        int who = rand_r(&r) % 2;
        snprintf(id, sizeof(id), "r%d", rand_r(&r) % 20);
        snprintf(text, sizeof(text), "\"%.*s\"", rand_r(&r) % 50,
                 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
        int64_t n;
        switch (rand_r(&r) % 4) {
        case 0: (void)responses_delete(st, tenant_id[who], id, NULL); break;
        case 1: (void)responses_put_events(st, NULL, tenant_id[who], id, text, &e); break;
        case 2:
            if (i % 10 == 0)
                ck_assert_int_eq(responses_expire(st, INT64_MAX / 2, 3, &n, &e), ERR_NONE);
            break;
        default: put(who, id, text, NULL);
        }
        expect_counts(seed);
    }
}
END_TEST

START_TEST(a_quota_counts_the_row_once)
{
    err e;
    response_quota q = {.rows = 2};
    response_row r = row_of(0, "a", "\"1\"");
    ck_assert_int_eq(responses_put(st, NULL, &r, &q, &e), ERR_NONE);
    r = row_of(0, "b", "\"2\"");
    ck_assert_int_eq(responses_put(st, NULL, &r, &q, &e), ERR_NONE);
    ck_assert_int_eq(responses_put(st, NULL, &r, &q, &e), ERR_NONE); /* again: replaced */
    r = row_of(0, "c", "\"3\"");
    ck_assert_int_eq(responses_put(st, NULL, &r, &q, &e), ERR_LIMIT);
    r = row_of(1, "c", "\"3\""); /* another tenant's */
    ck_assert_int_eq(responses_put(st, NULL, &r, &q, &e), ERR_NONE);
    q = (response_quota){.bytes = 70};
    r = row_of(0, "a", "\"longer than before\"");
    ck_assert_int_eq(responses_put(st, NULL, &r, &q, &e), ERR_NONE);
    r = row_of(0, "a", "\"much longer than before, and more than there is room for\"");
    ck_assert_int_eq(responses_put(st, NULL, &r, &q, &e), ERR_LIMIT);
    ck_assert_int_eq(responses_delete(st, tenant_id[0], "b", &e), ERR_NONE);
    q.bytes = 100;
    ck_assert_int_eq(responses_put(st, NULL, &r, &q, &e), ERR_NONE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("responses");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_flipped_bit_is_an_error);
    tcase_add_test(tc, another_rows_document_is_an_error);
    tcase_add_test(tc, counters_are_the_sums_after_any_change);
    tcase_add_test(tc, a_quota_counts_the_row_once);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
