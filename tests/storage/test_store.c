/* test_store.c -- the data directory, migrations, ids, group commit, backup. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <check.h>

#include "storage/audit.h"
#include "storage/backup.h"
#include "storage/digest.h"
#include "storage/keys.h"
#include "storage/ledger.h"
#include "storage/store_sql.h"
#include "storage/tenants.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64];
static const store_options fresh = {.create = true, .node = 7};

static void setup(void)
{
    tmpdir_make(dir);
}

static void teardown(void)
{
    tmpdir_remove(dir);
}

static store *open_ok(const store_options *o)
{
    store *st;
    err e;
    ck_assert_msg(store_open(&st, dir, o, &e) == ERR_NONE, "%s", e.msg);
    return st;
}

static void raw_sql(const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/lorad.db", dir);
    sqlite3 *db;
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

START_TEST(test_digest)
{
    uint8_t a[32], b[32];
    char hex[DIGEST_HEX];
    digest_bytes("abc", 3, a);
    digest_hex(a, hex);
    ck_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    digest_state d;
    digest_begin(&d);
    digest_add(&d, "a", 1);
    digest_add(&d, "bc", 2);
    digest_end(&d, b);
    ck_assert(digest_same(a, b, 32));
    b[31] ^= 1;
    ck_assert(!digest_same(a, b, 32));
    ck_assert(digest_from_hex(hex, b) && digest_same(a, b, 32));
    hex[5] = 'A';
    ck_assert(!digest_from_hex(hex, b));
    hex[5] = 0;
    ck_assert(!digest_from_hex(hex, b));
}
END_TEST

START_TEST(test_open_rules)
{
    store *st, *other;
    err e;
    ck_assert_int_eq(store_open(&st, dir, NULL, &e), ERR_NOT_FOUND);
    st = open_ok(&fresh);
    ck_assert_int_eq(store_open(&other, dir, NULL, &e), ERR_BUSY);
    ck_assert(store_healthy(st));
    ck_assert_str_eq(store_dir(st), dir);
    store_close(st);
    st = open_ok(&(store_options){.quick_check = true});
    store_close(st);
    ck_assert_int_eq(store_open(&st, "/nonexistent/lorad", NULL, &e), ERR_NOT_FOUND);
}
END_TEST

START_TEST(test_newer_and_foreign)
{
    err e;
    store *st = open_ok(&fresh);
    store_close(st);
    raw_sql("PRAGMA user_version=99");
    ck_assert_int_eq(store_open(&st, dir, NULL, &e), ERR_CONFLICT);
    ck_assert_ptr_nonnull(strstr(e.msg, "99"));
    raw_sql("PRAGMA user_version=4; PRAGMA application_id=1");
    ck_assert_int_eq(store_open(&st, dir, NULL, &e), ERR_CONFLICT);
    tmpdir_remove(dir);
    mkdir(dir, 0700);
    raw_sql("CREATE TABLE somebodys(x)");
    ck_assert_int_eq(store_open(&st, dir, NULL, &e), ERR_CONFLICT);
    tmpdir_remove(dir);
    mkdir(dir, 0700);
    char path[128];
    snprintf(path, sizeof path, "%s/lorad.db", dir);
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 2000; i++) fputs("not a database ", f);
    fclose(f);
    ck_assert_int_eq(store_open(&st, dir, NULL, &e), ERR_CORRUPT);
}
END_TEST

/* Usage from before there were prices is still there, and has cost nothing. */
static void check_old_usage(store *st)
{
    usage_query q = {.end_wall_us = INT64_C(2) * 86400000000};
    usage_sum *s;
    ledger_sums day, month;
    size_t n;
    err e;
    ck_assert_int_eq(ledger_query(st, &q, &s, &n, &e), ERR_NONE);
    ck_assert(n == 1 && s[0].output_tokens == 3 && s[0].cost == 0);
    free(s);
    ck_assert_int_eq(ledger_spent(st, 9, INT64_C(86400000000), &day, &month, &e), ERR_NONE);
    ck_assert(day.tokens == 5 && day.cost == 0 && month.tokens == 5 && month.cost == 0);
}

/* Each older schema, with a row in it, rolls forward to the newest. */
START_TEST(test_roll_forward)
{
    for (int from = 0; from <= STORE_SCHEMA_VERSION; from++) {
        tmpdir_remove(dir);
        mkdir(dir, 0700);
        char path[128];
        snprintf(path, sizeof path, "%s/lorad.db", dir);
        sqlite3 *db;
        err e;
        ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
        ck_assert_msg(schema_migrate(db, from, &e) == ERR_NONE, "%s", e.msg);
        if (from >= 1)
            ck_assert_int_eq(sqlite3_exec(db,
                                          "INSERT INTO tenants(id, name, disabled, weight,"
                                          " default_class, classes, models, rpm, tpm,"
                                          " max_concurrent, max_queued, tokens_per_day,"
                                          " tokens_per_month, max_adapters, max_adapter_bytes,"
                                          " generation, created_us, updated_us)"
                                          " VALUES(9,'acme',0,1.0,'','','',0,0,0,0,0,0,0,0,1,5,5)",
                                          NULL, NULL, NULL),
                             SQLITE_OK);
        if (from >= 7 && from <= 20)
            ck_assert_int_eq(sqlite3_exec(db,
                                          "INSERT INTO usage_days VALUES(9,1,1,2,0,3);"
                                          "INSERT INTO usage_hours VALUES(30,9,1,0,'base','',1,2,"
                                          "0,3);",
                                          NULL, NULL, NULL),
                             SQLITE_OK);
        sqlite3_close(db);
        store *st = open_ok(&fresh);
        tenant t;
        if (from >= 7 && from <= 20) check_old_usage(st);
        if (from >= 1) {
            ck_assert_int_eq(tenants_find(st, "acme", &t, &e), ERR_NONE);
            ck_assert_str_eq(t.networks, "");
            ck_assert(t.limits.cost_per_day == 0 && t.limits.cost_per_month == 0);
        }
        ck_assert_int_eq(audit_append(st, 1, 0, "test", "x", NULL, &e), ERR_NONE);
        store_close(st);
    }
}
END_TEST

/* A released step never changes: databases that are out there have run its text. */
START_TEST(test_released_steps)
{
    static const struct {
        const char *release;
        int upto; /* its schema */
        const char *digest;
    } released[] = {
        {"0.1.0", 8, "a1500abd60ba1572718f9f22d7250138e995f0f26964e3721e05b540c677f7b2"},
        {"0.2.0", 21, "8c01136c4a73b7e82c4584972725d022bfe1d6d35ded2fe1fad6b973222103ab"},
    };
    for (size_t i = 0; i < sizeof released / sizeof(*released); i++) {
        digest_state d;
        uint8_t sum[DIGEST_BYTES];
        char hex[DIGEST_HEX];
        digest_begin(&d);
        for (int v = 0; v < released[i].upto; v++)
            digest_add(&d, schema_steps[v], strlen(schema_steps[v]) + 1);
        digest_end(&d, sum);
        digest_hex(sum, hex);
        ck_assert_msg(strcmp(hex, released[i].digest) == 0,
                      "a step up to %d, which %s has run, is no longer the same: add a step",
                      released[i].upto, released[i].release);
    }
}
END_TEST

START_TEST(test_ids)
{
    store *st = open_ok(&fresh);
    uint64_t last = 0;
    for (int i = 0; i < 50000; i++) {
        uint64_t id = store_next_id(st);
        ck_assert_uint_gt(id, last);
        ck_assert_uint_eq(id >> 14 & 255, 7);
        ck_assert_uint_eq(id >> 63, 0);
        last = id;
    }
    store_close(st);
    /* An id from the future (the clock went back): ids go on above it. */
    char text[128];
    uint64_t future = last + (1ull << 50);
    snprintf(text, sizeof text, "UPDATE high_water SET id=%llu", (unsigned long long)future);
    raw_sql(text);
    st = open_ok(&fresh);
    ck_assert_uint_gt(store_next_id(st), future);
    store_close(st);
    /* One of node 9 stands above all of ours of its millisecond, of which there may be any. */
    uint64_t ms = (future >> 22) + 1;
    snprintf(text, sizeof text, "UPDATE high_water SET id=%llu",
             (unsigned long long)(ms << 22 | 9 << 14));
    raw_sql(text);
    st = open_ok(&fresh);
    ck_assert_uint_gt(store_next_id(st) >> 22, ms);
    store_close(st);
}
END_TEST

/* ---- group commit ------------------------------------------------------------------- */

enum { N_THREADS = 8, N_WRITES = 40 };

struct put {
    int64_t id;
    bool fail;
};

static err_code put_job(sqlite3 *db, void *arg, err *e)
{
    const struct put *p = arg;
    sql q;
    sql_begin(&q, db, "INSERT INTO t VALUES(?)");
    sql_int(&q, p->id);
    err_code code = sql_done(&q, "put", e);
    return p->fail && code == ERR_NONE ? err_set(e, ERR_INPUT, "as asked") : code;
}

struct client {
    store *st;
    int n;
};

static void *client_main(void *arg)
{
    struct client *c = arg;
    for (int i = 0; i < N_WRITES; i++) {
        struct put p = {c->n * 1000 + i, i % 10 == 9};
        err e;
        err_code code = store_write(c->st, put_job, &p, &e);
        ck_assert_int_eq(code, p.fail ? ERR_INPUT : ERR_NONE);
        if (p.fail) continue;
        /* Durable means visible to any other connection, too. */
        sqlite3 *db = store_read_begin(c->st);
        sql q;
        sql_begin(&q, db, "SELECT 1 FROM t WHERE id=?");
        sql_int(&q, p.id);
        ck_assert(sql_row(&q));
        sql_end(&q, "", NULL);
        store_read_end(c->st, db);
    }
    return NULL;
}

START_TEST(test_group_commit)
{
    store *st = open_ok(&fresh);
    store_close(st);
    raw_sql("CREATE TABLE t(id INTEGER PRIMARY KEY)");
    st = open_ok(&fresh);
    pthread_t th[N_THREADS];
    struct client c[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        c[i] = (struct client){st, i};
        pthread_create(&th[i], NULL, client_main, &c[i]);
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(th[i], NULL);
    struct put p = {1, false};
    err e;
    ck_assert_int_eq(store_write(st, put_job, &p, &e), ERR_EXISTS);
    p.id = 999999;
    store_post(st, put_job, &p, sizeof p); /* nobody waits; done by the close at the latest */
    store_stats stats;
    store_stats_get(st, &stats);
    ck_assert_uint_ge(stats.n_jobs, N_THREADS * N_WRITES + 1);
    ck_assert_uint_eq(stats.n_failed, N_THREADS * N_WRITES / 10 + 1);
    store_close(st);
    st = open_ok(&(store_options){.quick_check = true});
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(&q, db, "SELECT count(*) FROM t");
    ck_assert(sql_row(&q));
    ck_assert_int_eq(sql_col_int(&q, 0), N_THREADS * N_WRITES * 9 / 10 + 1);
    sql_end(&q, "", NULL);
    ck_assert_int_eq(sqlite3_exec(db, "DELETE FROM t", NULL, NULL, NULL), SQLITE_READONLY);
    store_read_end(st, db);
    store_close(st);
}
END_TEST

/* ---- audit, backup -------------------------------------------------------------------- */

START_TEST(test_audit_and_backup)
{
    err e;
    store *st = open_ok(&fresh);
    char object[16];
    for (int i = 0; i < 20; i++) {
        snprintf(object, sizeof object, "o%d", i);
        ck_assert_int_eq(audit_append(st, 5, (uint64_t)(i % 2), "key.create", object,
                                      i == 3 ? "{\"a\":1}" : NULL, &e),
                         ERR_NONE);
    }
    audit_row *rows;
    size_t n;
    ck_assert_int_eq(audit_list(st, 0, 0, 5, &rows, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 5);
    ck_assert_str_eq(rows[0].object, "o19");
    uint64_t before = rows[4].id;
    free(rows);
    ck_assert_int_eq(audit_list(st, 1, before, 100, &rows, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 7); /* o13, o11 ... o1 */
    ck_assert_str_eq(rows[0].object, "o13");
    ck_assert_str_eq(rows[5].detail, "{\"a\":1}");
    free(rows);

    char path[128], sub[96];
    snprintf(sub, sizeof sub, "%s/copy", dir);
    mkdir(sub, 0700);
    snprintf(path, sizeof path, "%s/lorad.db", sub);
    ck_assert_msg(backup_write(st, path, &e) == ERR_NONE, "%s", e.msg);
    struct stat sb;
    ck_assert_int_eq(stat(path, &sb), 0);
    ck_assert_int_eq(sb.st_mode & 0777, 0600); /* hashes of keys, and everybody's usage */
    ck_assert_int_eq(backup_write(st, path, &e), ERR_EXISTS);
    ck_assert_int_eq(backup_write(st, "/nonexistent/x.db", &e), ERR_IO);
    audit_append(st, 5, 0, "after", "the copy", NULL, &e);
    store *copy;
    ck_assert_int_eq(store_open(&copy, sub, &(store_options){.quick_check = true}, &e), ERR_NONE);
    ck_assert_int_eq(audit_list(copy, 0, 0, 0, &rows, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 20);
    free(rows);
    store_close(copy);
    store_close(st);
}
END_TEST

/* What a tenant's own keys have written is bounded; what operators did to it stays. */
START_TEST(test_audit_is_pruned)
{
    err e;
    store *st = open_ok(&fresh);
    tenant t = {.name = "acme", .weight = 1}, other = {.name = "other", .weight = 1};
    key_info key = {.name = "k", .scopes = SCOPE_ADAPTERS_WRITE};
    char text[KEY_TEXT_LEN + 1];
    ck_assert_int_eq(tenants_create(st, &t, &t, &e), ERR_NONE);
    ck_assert_int_eq(tenants_create(st, &other, &other, &e), ERR_NONE);
    key.tenant_id = t.id;
    ck_assert_msg(keys_create(st, &key, text, &key, &e) == ERR_NONE, "%s", e.msg);
    for (int i = 0; i < 60; i++) {
        audit_post(st, key.id, t.id, "adapter.update", "mine", NULL);
        if (i % 6 == 0) audit_post(st, 77, t.id, "key.create", "an operator's", NULL);
        if (i % 2 == 0) audit_post(st, 78, other.id, "adapter.update", "theirs", NULL);
    }
    int64_t gone = 0;
    ck_assert_int_eq(audit_append(st, 77, 0, "last", "x", NULL, &e), ERR_NONE);
    ck_assert_int_eq(audit_prune(st, 25, 20, &gone, &e), ERR_NONE);
    ck_assert_int_eq(gone, 20); /* at most the limit */
    ck_assert_int_eq(audit_prune(st, 25, 1000, &gone, &e), ERR_NONE);
    ck_assert_int_eq(gone, 15);
    ck_assert_int_eq(audit_prune(st, 25, 1000, &gone, &e), ERR_NONE);
    ck_assert_int_eq(gone, 0);
    audit_row *rows;
    size_t n, by_operator = 0;
    ck_assert_int_eq(audit_list(st, t.id, 0, 0, &rows, &n, &e), ERR_NONE);
    for (size_t i = 0; i < n; i++) by_operator += rows[i].actor_key_id == 77;
    ck_assert_uint_eq(by_operator, 10);
    ck_assert_uint_eq(n - by_operator, 25);
    free(rows);
    ck_assert_int_eq(audit_list(st, other.id, 0, 0, &rows, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 30); /* no key of its own wrote them */
    free(rows);
    store_close(st);
}
END_TEST

/* ---- faults ----------------------------------------------------------------------------- */

/* The disk refuses to grow: writes fail with a sentence, reads go on, and once there is room again
 * everything works without a restart. */
START_TEST(test_disk_full)
{
    err e;
    store *st = open_ok(&fresh);
    char detail[1000];
    memset(detail, 'x', sizeof detail - 1);
    detail[sizeof detail - 1] = 0;
    struct rlimit old, tight;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    tight = old;
    tight.rlim_cur = 300 * 1024;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &tight), 0);
    size_t n_ok = 0, n;
    err_code code = ERR_NONE;
    while (code == ERR_NONE && n_ok < 5000) {
        code = audit_append(st, 1, 0, "fill", "x", detail, &e);
        n_ok += code == ERR_NONE;
    }
    ck_assert_msg(code == ERR_IO, "%d %s", code, e.msg);
    ck_assert(!store_healthy(st));
    audit_row *rows;
    ck_assert_int_eq(audit_list(st, 0, 0, 0, &rows, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, n_ok); /* all that was acknowledged, and nothing else */
    free(rows);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_msg(audit_append(st, 1, 0, "after", "x", NULL, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(store_healthy(st));
    store_close(st);
    st = open_ok(&(store_options){.quick_check = true});
    ck_assert_int_eq(audit_list(st, 0, 0, 0, &rows, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, n_ok + 1);
    free(rows);
    store_close(st);
}
END_TEST

/* One byte flipped anywhere: the start refuses with a reason, or serves; it never falls over. */
START_TEST(test_flipped_bytes)
{
    err e;
    store *st = open_ok(&fresh);
    tenant t;
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(audit_append(st, 1, 0, "fill", "x", "{}", &e), ERR_NONE);
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "acme"}, &t, &e), ERR_NONE);
    store_close(st);
    char path[128];
    snprintf(path, sizeof path, "%s/lorad.db", dir);
    int fd = open(path, O_RDWR);
    off_t size = lseek(fd, 0, SEEK_END);
    uint32_t seed = 12345;
    int n_refused = 0;
    for (int i = 0; i < 60; i++) {
        seed = seed * 1664525 + 1013904223;
        off_t at = i < 10 ? i * 10 : (off_t)(seed % (uint32_t)size); /* the header, too */
        uint8_t was, now;
        ck_assert_int_eq(pread(fd, &was, 1, at), 1);
        now = was ^ (uint8_t)(1 << (seed >> 29));
        ck_assert_int_eq(pwrite(fd, &now, 1, at), 1);
        err_code code = store_open(&st, dir, &(store_options){.quick_check = true}, &e);
        if (code == ERR_NONE) {
            audit_row *rows;
            size_t n;
            if (audit_list(st, 0, 0, 0, &rows, &n, &e) == ERR_NONE) free(rows);
            (void)tenants_find(st, "acme", &t, &e);
            store_close(st);
        } else {
            ck_assert_int_gt(strlen(e.msg), 0);
            n_refused++;
        }
        ck_assert_int_eq(pwrite(fd, &was, 1, at), 1);
    }
    close(fd);
    ck_assert_int_gt(n_refused, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store");
    TCase *tc = tcase_create("store");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_digest);
    tcase_add_test(tc, test_open_rules);
    tcase_add_test(tc, test_newer_and_foreign);
    tcase_add_test(tc, test_roll_forward);
    tcase_add_test(tc, test_released_steps);
    tcase_add_test(tc, test_ids);
    tcase_add_test(tc, test_group_commit);
    tcase_add_test(tc, test_audit_and_backup);
    tcase_add_test(tc, test_audit_is_pruned);
    tcase_add_test(tc, test_disk_full);
    tcase_add_test(tc, test_flipped_bytes);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
