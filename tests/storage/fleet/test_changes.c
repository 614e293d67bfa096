/* test_changes.c -- what a transaction changed, taken from one database and applied to another. */
#include <string.h>

#include <check.h>

#include "storage/digest.h"
#include "storage/fleet/changes.h"
#include "storage/store_sql.h"
#include "tests/run_suite.h"
#include "tests/storage/fleet/shared_tables.h"
#include "tests/tmpdir.h"

static char dir[2][64];
static sqlite3 *db[2];
static err e;

static void exec(int i, const char *text)
{
    char *why = NULL;
    int rc = sqlite3_exec(db[i], text, NULL, NULL, &why);
    ck_assert_msg(rc == SQLITE_OK, "%s: %s", text, why);
}

static void setup(void)
{
    for (int i = 0; i < 2; i++) {
        char path[100];
        tmpdir_make(dir[i]);
        snprintf(path, sizeof path, "%s/lorad.db", dir[i]);
        ck_assert_int_eq(sqlite3_open(path, &db[i]), SQLITE_OK);
        exec(i, "PRAGMA journal_mode=WAL");
        ck_assert_int_eq(schema_migrate(db[i], STORE_SCHEMA_VERSION, &e), ERR_NONE);
        exec(i, "PRAGMA foreign_keys=ON");
    }
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        sqlite3_close(db[i]);
        tmpdir_remove(dir[i]);
    }
}

static void same(void)
{
    char *a = shared_tables(dir[0]), *b = shared_tables(dir[1]);
    ck_assert_str_eq(a, b);
    free(a);
    free(b);
}

/* Runs `text` on the first, and gives what it changed. */
static changes record(const char *text)
{
    recording *r;
    changes c;
    exec(0, "BEGIN IMMEDIATE");
    ck_assert_int_eq(recording_start(&r, db[0], &e), ERR_NONE);
    exec(0, text);
    ck_assert_int_eq(recording_take(r, &c, &e), ERR_NONE);
    recording_end(r);
    exec(0, "COMMIT");
    return c;
}

static err_code apply_n(const changes *c, int n, touched_list *t)
{
    exec(1, "BEGIN IMMEDIATE");
    err_code rc = changes_apply(db[1], c->bytes, n, t, &e);
    exec(1, rc == ERR_NONE ? "COMMIT" : "ROLLBACK");
    return rc;
}

static err_code apply(const changes *c, touched_list *t)
{
    return apply_n(c, c->n, t);
}

static void both(const char *text)
{
    touched_list t = {0};
    changes c = record(text);
    ck_assert_int_eq(apply(&c, &t), ERR_NONE);
    touched_clear(&t);
    changes_clear(&c);
}

#define TENANT(id, name)                        \
    "INSERT INTO tenants VALUES(" #id ",'" name \
    "',0,1,'','','',0,0,0,0,0,0,0,0,1,5,5,'','','',0,0);"
#define KEY(id, tenant) \
    "INSERT INTO api_keys VALUES(" #id "," #tenant ",'p" #id "','k',1,0,0,0,0,5,0,0,'');"
#define SECRET(id, key) "INSERT INTO key_secrets VALUES(" #id "," #key ",zeroblob(32),5,0);"
#define ADAPTER(id, tenant) \
    "INSERT INTO adapters VALUES(" #id "," #tenant ",'a" #id "','',0,1,1,5,0,0,0,0,0,0);"
#define VERSION(id, adapter)                                                              \
    "INSERT INTO adapter_versions VALUES(" #id "," #adapter ",1,zeroblob(32),1,1,1,1,''," \
    "'{}',5,NULL,NULL,NULL);"
#define ALIAS(adapter) "INSERT INTO adapter_aliases VALUES(" #adapter ",'default',1,0,1);"
#define SHARE(adapter) "INSERT INTO adapter_shares VALUES(" #adapter ",0);"
#define AUDIT(id)      "INSERT INTO audit VALUES(" #id ",5,0,0,'a','o','');"

START_TEST(test_every_table)
{
    touched_list t = {0};
    changes c = record(TENANT(1, "acme") KEY(2, 1) SECRET(3, 2) ADAPTER(4, 1) VERSION(5, 4) ALIAS(4)
                           SHARE(4) AUDIT(6) "UPDATE high_water SET id=7");
    ck_assert_int_eq(apply(&c, &t), ERR_NONE);
    same();
    ck_assert_uint_eq(t.n, 3); /* in runs: a key by both its tables, an adapter by all four */
    int seen = 0;
    for (size_t i = 0; i < t.n; i++) {
        static const uint64_t id_of[] = {0, 1, 2, 4};
        ck_assert_uint_eq(t.item[i].id, id_of[t.item[i].kind]);
        seen |= 1 << t.item[i].kind;
    }
    ck_assert_int_eq(seen, 1 << TOUCHED_TENANT | 1 << TOUCHED_KEY | 1 << TOUCHED_ADAPTER);
    touched_clear(&t);
    changes_clear(&c);
}
END_TEST

/* A change of a version or secret does not say whose it is: the row does. */
START_TEST(test_owner_of_an_update)
{
    both(TENANT(1, "acme") KEY(2, 1) SECRET(3, 2) ADAPTER(4, 1) VERSION(5, 4));
    touched_list t = {0};
    changes c =
        record("UPDATE adapter_versions SET state=3; UPDATE key_secrets SET not_after_us=9");
    ck_assert_int_eq(apply(&c, &t), ERR_NONE);
    ck_assert_uint_eq(t.n, 2);
    for (size_t i = 0; i < 2; i++)
        ck_assert_uint_eq(t.item[i].id, t.item[i].kind == TOUCHED_KEY ? 2 : 4);
    touched_clear(&t);
    changes_clear(&c);
}
END_TEST

START_TEST(test_rolled_back_is_not_there)
{
    changes c = record("SAVEPOINT job;" TENANT(1, "acme") "ROLLBACK TO job; RELEASE job");
    ck_assert_int_eq(c.n, 0);
    changes_clear(&c);
}
END_TEST

/* Children go with their parent by the schema's rule, and stand in the change as well. */
START_TEST(test_cascade)
{
    both(TENANT(1, "acme") ADAPTER(4, 1) VERSION(5, 4) ALIAS(4) SHARE(4) ADAPTER(6, 1)
             VERSION(7, 6));
    both("DELETE FROM adapters WHERE id=4");
    same();
    changes c = record("DELETE FROM adapters WHERE id=6");
    changes_clear(&c);
}
END_TEST

START_TEST(test_own_columns_stay)
{
    both(TENANT(1, "acme") KEY(2, 1));
    exec(1, "UPDATE api_keys SET last_used_us=77"); /* not recorded: this node's own */
    both("UPDATE api_keys SET revoked_us=8");
    same();
}
END_TEST

START_TEST(test_other_rows_are_refused)
{
    both(TENANT(1, "acme"));
    exec(1, "UPDATE tenants SET rpm=5");
    touched_list t = {0};
    changes c = record("UPDATE tenants SET rpm=9;" TENANT(2, "next"));
    char *before = shared_tables(dir[1]);
    ck_assert_int_eq(apply(&c, &t), ERR_CONFLICT);
    char *after = shared_tables(dir[1]);
    ck_assert_str_eq(before, after); /* nothing of it, not the new tenant either */
    free(before);
    free(after);
    touched_clear(&t);
    changes_clear(&c);
    c = record(TENANT(3, "third"));
    exec(1, TENANT(3, "third"));
    ck_assert_int_eq(apply(&c, &t), ERR_CONFLICT); /* it is there already */
    touched_clear(&t);
    changes_clear(&c);
}
END_TEST

START_TEST(test_damaged_bytes)
{
    touched_list t = {0};
    changes c = record(TENANT(1, "acme") KEY(2, 1) SECRET(3, 2));
    char *before = shared_tables(dir[1]);
    for (int n = 1; n < c.n; n++) ck_assert_int_eq(apply_n(&c, n, &t), ERR_CORRUPT);
    for (int i = 0; i < c.n; i++) {
        ((char *)c.bytes)[i] ^= 1;
        ck_assert_int_eq(apply(&c, &t), ERR_CORRUPT);
        ((char *)c.bytes)[i] ^= 1;
    }
    char *after = shared_tables(dir[1]);
    ck_assert_str_eq(before, after);
    ck_assert_int_eq(apply_n(&(changes){"nonsense", 8}, 8, &t), ERR_CORRUPT);
    free(before);
    free(after);
    touched_clear(&t);
    changes_clear(&c);
}
END_TEST

/* A hostile journal does not reach the tables that are not shared. */
START_TEST(test_other_tables)
{
    recording *r;
    changes c = {0};
    touched_list t = {0};
    ck_assert_int_eq(recording_start(&r, db[0], &e), ERR_NONE);
    exec(0, "INSERT INTO usage_days VALUES(1,1,1,1,1,1,0)");
    ck_assert_int_eq(recording_take(r, &c, &e), ERR_NONE);
    recording_end(r);
    ck_assert_int_eq(c.n, 0);
    char forged[256];
    changes real = record(AUDIT(6));
    memcpy(forged, real.bytes, (size_t)real.n);
    char *name = memmem(forged, (size_t)real.n, "audit", 5);
    ck_assert_ptr_nonnull(name);
    memcpy(name, "usage", 5);
    digest_bytes(forged + 36, (size_t)real.n - 36, (uint8_t *)forged + 4); /* the seal fits */
    ck_assert_int_eq(apply_n(&(changes){forged, real.n}, real.n, &t), ERR_CONFLICT);
    changes_clear(&real);
}
END_TEST

START_TEST(test_snapshot)
{
    int64_t seq;
    changes all;
    touched_list t = {0};
    exec(0, TENANT(1, "acme") KEY(2, 1) SECRET(3, 2) ADAPTER(4, 1) VERSION(5, 4) ALIAS(4) SHARE(4)
                AUDIT(6) "UPDATE high_water SET id=7;"
                         "INSERT INTO fleet VALUES(1, zeroblob(16), zeroblob(16), 42)");
    exec(1, TENANT(9, "old") ADAPTER(8, 9) VERSION(7, 8) ALIAS(8));
    char path[100];
    snprintf(path, sizeof path, "%s/lorad.db", dir[0]);
    ck_assert_int_eq(changes_of_all(path, &all, &seq, &e), ERR_NONE);
    ck_assert_int_eq(seq, 42);
    exec(1, "BEGIN IMMEDIATE; PRAGMA defer_foreign_keys=ON");
    ck_assert_int_eq(changes_empty(db[1], &t, &e), ERR_NONE);
    ck_assert_uint_eq(t.n, 2); /* the old ones are told, so that memory forgets them */
    ck_assert_int_eq(changes_apply(db[1], all.bytes, all.n, &t, &e), ERR_NONE);
    exec(1, "COMMIT");
    same();
    touched_clear(&t);
    changes_clear(&all);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("storage.fleet.changes");
    TCase *tc = tcase_create("changes");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, test_every_table);
    tcase_add_test(tc, test_owner_of_an_update);
    tcase_add_test(tc, test_rolled_back_is_not_there);
    tcase_add_test(tc, test_cascade);
    tcase_add_test(tc, test_own_columns_stay);
    tcase_add_test(tc, test_other_rows_are_refused);
    tcase_add_test(tc, test_damaged_bytes);
    tcase_add_test(tc, test_other_tables);
    tcase_add_test(tc, test_snapshot);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
