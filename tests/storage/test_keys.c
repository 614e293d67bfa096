/* test_keys.c -- tenants and API keys: what is stored, who gets in, what survives a restart. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <check.h>
#include <sqlite3.h>

#include "engine/base/clock.h"
#include "storage/keys.h"
#include "storage/tenants.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64];
static store *st;
static err e;

static void reopen(void)
{
    store_close(st);
    ck_assert_msg(store_open(&st, dir, &(store_options){.create = true}, &e) == ERR_NONE, "%s",
                  e.msg);
}

static void setup(void)
{
    tmpdir_make(dir);
    st = NULL;
    reopen();
}

static void teardown(void)
{
    store_close(st);
    tmpdir_remove(dir);
}

static uint64_t make_tenant(const char *name)
{
    tenant want = {.limits = {.requests_per_minute = 60, .max_adapter_bytes = 1 << 30}}, t;
    snprintf(want.name, sizeof want.name, "%s", name);
    ck_assert_msg(tenants_create(st, &want, &t, &e) == ERR_NONE, "%s", e.msg);
    return t.id;
}

START_TEST(test_names)
{
    const char *good[] = {"a", "9", "acme-corp", "a.b_c-d"};
    const char *bad[] = {"", ".a", "-a", "_a", "A", "a b", "a/b", "a\n", "\xc3\xa4", "a@7"};
    for (size_t i = 0; i < sizeof good / sizeof(*good); i++) ck_assert(name_valid(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof(*bad); i++) ck_assert(!name_valid(bad[i]));
    char longest[67];
    memset(longest, 'a', 66);
    longest[64] = 0;
    ck_assert(name_valid(longest));
    longest[64] = 'a';
    longest[65] = 0;
    ck_assert(!name_valid(longest));
    ck_assert(list_allows("", "x"));
    ck_assert(list_allows(" , ", "x"));
    ck_assert(list_allows("a, x ,b", "x"));
    ck_assert(!list_allows("a,xx,b", "x"));
    ck_assert(!list_allows("a", ""));
}
END_TEST

START_TEST(test_tenants)
{
    uint64_t a = make_tenant("acme"), b = make_tenant("bolt");
    tenant t, u;
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "acme"}, NULL, &e), ERR_EXISTS);
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "Acme"}, NULL, &e), ERR_INPUT);
    ck_assert_int_eq(
        tenants_create(st, &(tenant){.name = "x", .limits = {.max_queued = -1}}, NULL, &e),
        ERR_INPUT);
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "x", .weight = -2}, NULL, &e), ERR_INPUT);
    ck_assert_int_eq(tenants_get(st, 12345, &t, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(tenants_get(st, a, &t, &e), ERR_NONE);
    ck_assert_double_eq(t.weight, 1);
    ck_assert_int_eq(t.limits.requests_per_minute, 60);
    t.limits.tokens_per_day = 1000;
    snprintf(t.classes, sizeof t.classes, "interactive,batch");
    uint64_t seen = tenants_changes(st);
    ck_assert_int_eq(tenants_update(st, &t, &u, NULL, &e), ERR_NONE);
    ck_assert_uint_ne(tenants_changes(st), seen);
    seen = tenants_changes(st);
    ck_assert_int_eq(tenants_update(st, &t, NULL, NULL, &e), ERR_CONFLICT); /* stale generation */
    ck_assert_uint_eq(tenants_changes(st), seen);
    snprintf(u.name, sizeof u.name, "bolt");
    ck_assert_int_eq(tenants_update(st, &u, NULL, NULL, &e), ERR_EXISTS);
    reopen();
    tenant *list;
    size_t n;
    ck_assert_int_eq(tenants_list(st, 0, 0, &list, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(list[0].id, a);
    ck_assert_int_eq(list[0].limits.tokens_per_day, 1000);
    ck_assert_str_eq(list[0].classes, "interactive,batch");
    ck_assert_uint_eq(list[0].generation, 2);
    free(list);
    ck_assert_int_eq(tenants_list(st, a, 1, &list, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(list[0].id, b);
    free(list);
}
END_TEST

/* Does any file of the data directory hold these bytes? */
static bool on_disk(const char *needle)
{
    const char *names[] = {"lorad.db", "lorad.db-wal"};
    bool found = false;
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        FILE *f = fopen(path, "rb");
        if (f == NULL) continue;
        static char data[1 << 22];
        size_t n = fread(data, 1, sizeof data, f);
        fclose(f);
        found |= memmem(data, n, needle, strlen(needle)) != NULL;
    }
    return found;
}

START_TEST(test_key_life)
{
    uint64_t tenant_id = make_tenant("acme");
    char text[KEY_TEXT_LEN + 1], second[KEY_TEXT_LEN + 1];
    key_info want = {.tenant_id = tenant_id,
                     .name = "laptop",
                     .scopes = SCOPE_INFERENCE | SCOPE_ADAPTERS_READ},
             k, got;
    tenant t;
    ck_assert_msg(keys_create(st, &want, text, &k, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_uint_eq(strlen(text), KEY_TEXT_LEN);
    ck_assert_int_eq(strncmp(text, "lk_", 3), 0);
    ck_assert_int_eq(keys_check(st, text, KEY_TEXT_LEN, &got, &t, &e), ERR_NONE);
    ck_assert_uint_eq(got.id, k.id);
    ck_assert_uint_eq(t.id, tenant_id);
    ck_assert_int_eq(got.n_secrets, 1);

    reopen();
    ck_assert_int_eq(keys_check(st, text, KEY_TEXT_LEN, &got, NULL, &e), ERR_NONE);
    ck_assert_str_eq(got.name, "laptop");
    ck_assert_uint_eq(got.scopes, want.scopes);
    ck_assert(on_disk(got.public_id));
    char secret[44];
    snprintf(secret, sizeof secret, "%.43s", text + 14);
    ck_assert(!on_disk(secret));

    /* Rotation: both are good, until the older one's time is up. */
    int64_t past = 1;
    ck_assert_int_eq(keys_rotate(st, k.id, clock_wall_us() + 3600 * 1000000ll, second, &e),
                     ERR_NONE);
    ck_assert_int_eq(keys_check(st, text, KEY_TEXT_LEN, &got, NULL, &e), ERR_NONE);
    ck_assert_int_eq(keys_check(st, second, KEY_TEXT_LEN, &got, NULL, &e), ERR_NONE);
    ck_assert_int_eq(got.n_secrets, 2);
    char third[KEY_TEXT_LEN + 1];
    ck_assert_int_eq(keys_rotate(st, k.id, past, third, &e), ERR_NONE);
    for (int pass = 0; pass < 2; pass++) {
        ck_assert_int_eq(keys_check(st, text, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);
        ck_assert_int_eq(keys_check(st, second, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);
        ck_assert_int_eq(keys_check(st, third, KEY_TEXT_LEN, &got, NULL, &e), ERR_NONE);
        reopen();
    }
    for (int i = 0; i < KEY_SECRETS_MAX - 1; i++)
        ck_assert_int_eq(keys_rotate(st, k.id, 0, second, &e), ERR_NONE);
    ck_assert_int_eq(keys_rotate(st, k.id, 0, text, &e), ERR_LIMIT);
    ck_assert_str_eq(text, "");

    ck_assert_int_eq(keys_revoke(st, k.id, NULL, &e), ERR_NONE);
    for (int pass = 0; pass < 2; pass++) {
        ck_assert_int_eq(keys_check(st, third, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);
        ck_assert_int_eq(keys_check(st, second, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);
        reopen();
    }
    ck_assert_int_eq(keys_get(st, k.id, &got, &e), ERR_NONE);
    ck_assert_int_gt(got.revoked_wall_us, 0);
    ck_assert_int_gt(got.last_used_wall_us, 0);
    ck_assert_int_eq(got.n_secrets, 0);
    ck_assert_int_eq(keys_rotate(st, k.id, 0, text, &e), ERR_CONFLICT);
}
END_TEST

/* Two nodes of a fleet that rotate a key at the same time leave more secrets than one node would:
 * the newest are those that count, also after a start. */
START_TEST(test_newest_secrets)
{
    static const char rows[] =
        "UPDATE key_secrets SET id = id + 100 WHERE id = (SELECT max(id) FROM key_secrets);"
        "WITH RECURSIVE back(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM back WHERE i < 4)"
        " INSERT INTO key_secrets SELECT k.id - i, k.key_id, randomblob(32), 0, 0"
        " FROM key_secrets k, back WHERE k.id = (SELECT max(id) FROM key_secrets);";
    key_info want = {.tenant_id = make_tenant("acme"), .scopes = SCOPE_INFERENCE}, k, got;
    char first[KEY_TEXT_LEN + 1], newest[KEY_TEXT_LEN + 1], path[100];
    ck_assert_int_eq(keys_create(st, &want, first, &k, &e), ERR_NONE);
    ck_assert_int_eq(keys_rotate(st, k.id, 0, newest, &e), ERR_NONE);
    store_close(st);
    st = NULL;
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/lorad.db", dir);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, rows, NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_changes(db), 4);
    sqlite3_close(db);

    reopen();
    ck_assert_int_eq(keys_check(st, newest, KEY_TEXT_LEN, &got, NULL, &e), ERR_NONE);
    ck_assert_int_eq(got.n_secrets, KEY_SECRETS_MAX);
    ck_assert_int_eq(keys_check(st, first, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);
}
END_TEST

/* Two operators who change different settings: none is lost, the later one is told to look
 * again. */
START_TEST(test_key_update)
{
    key_info want = {.tenant_id = make_tenant("acme"), .scopes = SCOPE_INFERENCE}, k, mine, now;
    char text[KEY_TEXT_LEN + 1];
    ck_assert_int_eq(keys_create(st, &want, text, &k, &e), ERR_NONE);
    mine = k;
    snprintf(mine.name, sizeof mine.name, "laptop");
    ck_assert_int_eq(keys_update(st, &k, &mine, &now, &e), ERR_NONE);
    ck_assert_str_eq(now.name, "laptop");
    mine = k; /* as it was before */
    mine.max_concurrent = 3;
    ck_assert_int_eq(keys_update(st, &k, &mine, NULL, &e), ERR_CONFLICT);
    ck_assert_int_eq(keys_get(st, k.id, &now, &e), ERR_NONE);
    ck_assert_str_eq(now.name, "laptop");
    ck_assert_int_eq(now.max_concurrent, 0);
    mine = now;
    mine.max_concurrent = 3;
    snprintf(mine.networks, sizeof mine.networks, "10.0.0.0/8");
    ck_assert_int_eq(keys_update(st, &now, &mine, NULL, &e), ERR_NONE);
    reopen();
    ck_assert_int_eq(keys_get(st, k.id, &now, &e), ERR_NONE);
    ck_assert_str_eq(now.name, "laptop");
    ck_assert_str_eq(now.networks, "10.0.0.0/8");
    ck_assert_int_eq(now.max_concurrent, 3);
    ck_assert_int_eq(keys_check(st, text, strlen(text), &now, NULL, &e), ERR_NONE);
    ck_assert_int_eq(now.max_concurrent, 3);
    ck_assert_int_eq(keys_revoke(st, k.id, NULL, &e), ERR_NONE);
    ck_assert_int_eq(keys_update(st, &now, &now, NULL, &e), ERR_CONFLICT);
    want.id = 12345;
    ck_assert_int_eq(keys_update(st, &want, &want, NULL, &e), ERR_NOT_FOUND);
}
END_TEST

START_TEST(test_key_refusals)
{
    uint64_t tenant_id = make_tenant("acme");
    char text[KEY_TEXT_LEN + 1], bad[KEY_TEXT_LEN + 8];
    key_info got;
    const key_info wrong[] = {
        {.tenant_id = tenant_id},                                     /* no scope */
        {.tenant_id = tenant_id, .scopes = 64},                       /* unknown scope */
        {.tenant_id = tenant_id, .scopes = SCOPE_ALL},                /* admin with a tenant */
        {.scopes = SCOPE_INFERENCE},                                  /* no tenant */
        {.tenant_id = tenant_id, .scopes = 1, .name = "a\nb"},        /* control character */
        {.tenant_id = tenant_id, .scopes = 1, .max_concurrent = -1},  /* negative */
        {.tenant_id = tenant_id, .scopes = 1, .expires_wall_us = -1}, /* negative */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof(*wrong); i++)
        ck_assert_int_eq(keys_create(st, &wrong[i], text, NULL, &e), ERR_INPUT);
    ck_assert_int_eq(keys_create(st, &(key_info){.tenant_id = 99, .scopes = 1}, text, NULL, &e),
                     ERR_NOT_FOUND);

    ck_assert_int_eq(
        keys_create(st, &(key_info){.tenant_id = tenant_id, .scopes = 1}, text, NULL, &e),
        ERR_NONE);
    /* Every single character matters. */
    for (int i = 0; i < KEY_TEXT_LEN; i++) {
        memcpy(bad, text, sizeof text);
        bad[i] = bad[i] == 'x' ? 'y' : 'x';
        ck_assert_int_eq(keys_check(st, bad, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);
        ck_assert_str_eq(e.msg, "the API key is not valid");
    }
    for (size_t len = 0; len < KEY_TEXT_LEN; len++)
        ck_assert_int_eq(keys_check(st, text, len, &got, NULL, &e), ERR_DENIED);
    snprintf(bad, sizeof bad, "%sx", text);
    ck_assert_int_eq(keys_check(st, bad, KEY_TEXT_LEN + 1, &got, NULL, &e), ERR_DENIED);
    memcpy(bad, text, sizeof text);
    bad[20] = 0;
    ck_assert_int_eq(keys_check(st, bad, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);

    /* A key of another server: well formed, unknown here. */
    char other_dir[64], foreign[KEY_TEXT_LEN + 1];
    tmpdir_make(other_dir);
    store *other;
    ck_assert_int_eq(store_open(&other, other_dir, &(store_options){.create = true}, &e), ERR_NONE);
    ck_assert_int_eq(keys_create(other, &(key_info){.scopes = SCOPE_ADMIN}, foreign, NULL, &e),
                     ERR_NONE);
    ck_assert_int_eq(keys_check(other, foreign, KEY_TEXT_LEN, &got, NULL, &e), ERR_NONE);
    ck_assert_uint_eq(got.tenant_id, 0);
    store_close(other);
    tmpdir_remove(other_dir);
    ck_assert_int_eq(keys_check(st, foreign, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);

    /* Expired, and the tenant disabled. */
    char old[KEY_TEXT_LEN + 1];
    key_info want = {.tenant_id = tenant_id, .scopes = 1, .expires_wall_us = 1000};
    ck_assert_int_eq(keys_create(st, &want, old, NULL, &e), ERR_NONE);
    ck_assert_int_eq(keys_check(st, old, KEY_TEXT_LEN, &got, NULL, &e), ERR_EXPIRED);
    old[30] = old[30] == 'x' ? 'y' : 'x'; /* without the secret nobody learns that it has */
    ck_assert_int_eq(keys_check(st, old, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);
    tenant t;
    ck_assert_int_eq(tenants_get(st, tenant_id, &t, &e), ERR_NONE);
    for (int off = 1; off >= 0; off--) {
        t.disabled = off;
        t.generation = 0;
        ck_assert_int_eq(tenants_update(st, &t, NULL, NULL, &e), ERR_NONE);
        ck_assert_int_eq(keys_check(st, text, KEY_TEXT_LEN, &got, NULL, &e),
                         off ? ERR_SUSPENDED : ERR_NONE);
    }
    uint64_t seen = tenants_changes(st);
    ck_assert_int_eq(tenants_disable(st, tenant_id, NULL, &e), ERR_NONE);
    ck_assert_uint_ne(tenants_changes(st), seen);
    ck_assert_int_eq(keys_check(st, text, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);
    ck_assert_int_eq(
        keys_create(st, &(key_info){.tenant_id = tenant_id, .scopes = 1}, text, NULL, &e),
        ERR_NOT_FOUND);
    reopen();
    ck_assert_int_eq(keys_check(st, text, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);
    key_info *list;
    size_t n;
    ck_assert_int_eq(keys_list(st, tenant_id, &list, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 2);
    ck_assert_int_gt(list[0].revoked_wall_us, 0);
    free(list);
}
END_TEST

/* ---- many threads ------------------------------------------------------------------------- */

static atomic_bool stop;
static char shared_text[KEY_TEXT_LEN + 1];

static void *checker_main(void *arg)
{
    long *n_ok = arg;
    while (!atomic_load(&stop)) {
        key_info k;
        tenant t;
        err mine;
        if (keys_check(st, shared_text, KEY_TEXT_LEN, &k, &t, &mine) == ERR_NONE) {
            ck_assert_str_eq(k.name, "shared");
            ++*n_ok;
        } else {
            ck_assert_int_eq(mine.code, ERR_DENIED);
        }
    }
    return NULL;
}

START_TEST(test_check_while_changing)
{
    uint64_t tenant_id = make_tenant("acme");
    key_info k, want = {.tenant_id = tenant_id, .name = "shared", .scopes = SCOPE_INFERENCE};
    ck_assert_int_eq(keys_create(st, &want, shared_text, &k, &e), ERR_NONE);
    pthread_t th[3];
    long n_ok[3] = {0};
    atomic_store(&stop, false);
    for (int i = 0; i < 3; i++) pthread_create(&th[i], NULL, checker_main, &n_ok[i]);
    char text[KEY_TEXT_LEN + 1];
    for (int i = 0; i < 300; i++) { /* makes the table grow */
        ck_assert_int_eq(
            keys_create(st, &(key_info){.tenant_id = tenant_id, .scopes = 1}, text, NULL, &e),
            ERR_NONE);
        if (i % 20 == 0) make_tenant((char[]){'t', (char)('a' + i / 20), 0});
    }
    ck_assert_int_eq(keys_revoke(st, k.id, NULL, &e), ERR_NONE);
    key_info got;
    ck_assert_int_eq(keys_check(st, shared_text, KEY_TEXT_LEN, &got, NULL, &e), ERR_DENIED);
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++) pthread_join(th[i], NULL);
    ck_assert_int_gt(n_ok[0] + n_ok[1] + n_ok[2], 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("keys");
    TCase *tc = tcase_create("keys");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_names);
    tcase_add_test(tc, test_tenants);
    tcase_add_test(tc, test_key_life);
    tcase_add_test(tc, test_newest_secrets);
    tcase_add_test(tc, test_key_update);
    tcase_add_test(tc, test_key_refusals);
    tcase_add_test(tc, test_check_while_changing);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
