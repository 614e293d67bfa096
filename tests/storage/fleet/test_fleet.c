/* test_fleet.c -- nodes that share tenants and keys through a journal in memory: the same rows
 * everywhere, whatever is killed, cut or refused. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "storage/adapter_rows.h"
#include "storage/audit.h"
#include "storage/fleet/changes.h"
#include "storage/fleet/fleet.h"
#include "storage/keys.h"
#include "storage/store_sql.h"
#include "storage/tenants.h"
#include "tests/run_suite.h"
#include "tests/storage/fleet/fake_journal.h"
#include "tests/storage/fleet/shared_tables.h"
#include "tests/tmpdir.h"

enum { NODES = 3 };

static char dir[NODES][64], text[KEY_TEXT_LEN + 1];
static store *st[NODES];
static fake_log *shared_log;
static journal_source source;
static tenant acme;
static key_info key;
static err e;

static err_code try_node_as(int i, int node)
{
    store_options o = {.create = true, .node = node, .fleet = &source};
    return store_open(&st[i], dir[i], &o, &e);
}

static void open_node(int i)
{
    ck_assert_msg(try_node_as(i, i) == ERR_NONE, "%s", e.msg);
}

static void close_node(int i)
{
    store_close(st[i]);
    st[i] = NULL;
}

/* Node 0's directory with a tenant and a key becomes a fleet, which node 1 joins. */
static void setup(void)
{
    shared_log = fake_log_make();
    source = fake_source(shared_log);
    for (int i = 0; i < NODES; i++) tmpdir_make(dir[i]);
    ck_assert_int_eq(store_open(&st[0], dir[0], &(store_options){.create = true}, &e), ERR_NONE);
    ck_assert_int_eq(tenants_create(st[0], &(tenant){.name = "acme"}, &acme, &e), ERR_NONE);
    key_info want = {.tenant_id = acme.id, .scopes = SCOPE_INFERENCE};
    ck_assert_int_eq(keys_create(st[0], &want, text, &key, &e), ERR_NONE);
    ck_assert_int_eq(store_found_fleet(st[0], &source, 0, &e), ERR_NONE);
    close_node(0);
    open_node(0);
    open_node(1);
}

static void teardown(void)
{
    for (int i = 0; i < NODES; i++) {
        close_node(i);
        tmpdir_remove(dir[i]);
    }
    fake_log_free(shared_log);
}

/* Until it is so on that node; a test that waits for ever hangs, and Check ends it. */
#define AWAIT(what)                   \
    do {                              \
        while (!(what)) usleep(1000); \
    } while (0)

static bool has(int i, const char *name)
{
    tenant t;
    return tenants_find(st[i], name, &t, NULL) == ERR_NONE;
}

static err_code make(int i, const char *name)
{
    tenant t = {0};
    snprintf(t.name, sizeof t.name, "%s", name);
    return tenants_create(st[i], &t, NULL, &e);
}

static err_code check_key(int i)
{
    key_info k;
    return keys_check(st[i], text, KEY_TEXT_LEN, &k, NULL, &e);
}

static store_fleet_stats stats(int i)
{
    store_stats s;
    store_stats_get(st[i], &s);
    return s.fleet;
}

static void all_same(int n)
{
    for (int i = 0; i < n; i++) AWAIT(stats(i).applied == fake_last(shared_log));
    char *first = shared_tables(dir[0]);
    for (int i = 1; i < n; i++) {
        char *other = shared_tables(dir[i]);
        ck_assert_str_eq(first, other);
        free(other);
    }
    free(first);
}

START_TEST(test_join_and_follow)
{
    ck_assert(has(1, "acme")); /* from the snapshot */
    ck_assert_int_eq(check_key(1), ERR_NONE);
    ck_assert_int_eq(make(0, "next"), ERR_NONE);
    AWAIT(has(1, "next"));
    ck_assert_int_eq(make(1, "third"), ERR_NONE);
    AWAIT(has(0, "third"));
    key_info want = {.tenant_id = acme.id, .scopes = SCOPE_INFERENCE};
    ck_assert_int_eq(keys_create(st[1], &want, text, &key, &e), ERR_NONE);
    AWAIT(check_key(0) == ERR_NONE);
    ck_assert_int_eq(audit_append(st[1], 0, 0, "a", "b", "c", &e), ERR_NONE);
    open_node(2);
    all_same(3);
}
END_TEST

START_TEST(test_limits_and_settings_follow)
{
    tenant t = acme, seen;
    t.limits.requests_per_minute = 7;
    ck_assert_int_eq(tenants_update(st[1], &t, NULL, NULL, &e), ERR_NONE);
    AWAIT(tenants_get(st[0], acme.id, &seen, &e) == ERR_NONE &&
          seen.limits.requests_per_minute == 7);
    ck_assert_uint_eq(seen.generation, acme.generation + 1);
    ck_assert_int_eq(tenants_update(st[0], &t, NULL, NULL, &e), ERR_CONFLICT); /* an old one */
}
END_TEST

START_TEST(test_revoked_everywhere)
{
    bool durable = false;
    ck_assert_int_eq(keys_revoke(st[0], key.id, &durable, &e), ERR_NONE);
    ck_assert(durable);
    AWAIT(check_key(1) == ERR_DENIED);
    ck_assert_int_eq(tenants_disable(st[1], acme.id, &durable, &e), ERR_NONE);
    tenant seen;
    AWAIT(tenants_get(st[0], acme.id, &seen, &e) == ERR_NONE && seen.disabled);
    all_same(2);
}
END_TEST

/* One name, two nodes at the same time: one of them has it. */
static void *make_many(void *arg)
{
    int i = *(int *)arg;
    intptr_t made = 0;
    for (int k = 0; k < 40; k++) {
        char name[16];
        err why;
        tenant t = {0};
        snprintf(t.name, sizeof t.name, "t%d", k);
        snprintf(name, sizeof name, "own-%d-%d", i, k);
        err_code rc = tenants_create(st[i], &t, NULL, &why);
        if (rc != ERR_NONE && rc != ERR_EXISTS) return (void *)(intptr_t)-1;
        made += rc == ERR_NONE;
        snprintf(t.name, sizeof t.name, "%s", name);
        if (tenants_create(st[i], &t, NULL, &why) != ERR_NONE) return (void *)(intptr_t)-1;
    }
    return (void *)made;
}

START_TEST(test_one_name_once)
{
    pthread_t thread[2];
    int node[2] = {0, 1};
    intptr_t made[2];
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, make_many, &node[i]);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], (void **)&made[i]);
    ck_assert_int_ge(made[0], 0);
    ck_assert_int_ge(made[1], 0);
    ck_assert_int_eq(made[0] + made[1], 40);
    all_same(2);
}
END_TEST

/* Both change the same row from what they see: those that are told ERR_NONE all count. */
static void *raise_many(void *arg)
{
    int i = *(int *)arg;
    for (int done = 0; done < 25;) {
        err why;
        tenant t;
        if (tenants_get(st[i], acme.id, &t, &why) != ERR_NONE) return arg;
        t.limits.max_queued++;
        err_code rc = tenants_update(st[i], &t, NULL, NULL, &why);
        if (rc != ERR_NONE && rc != ERR_CONFLICT) return arg;
        done += rc == ERR_NONE;
    }
    return NULL;
}

START_TEST(test_no_update_is_lost)
{
    pthread_t thread[2];
    int node[2] = {0, 1};
    void *bad[2];
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, raise_many, &node[i]);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], &bad[i]);
    ck_assert_ptr_null(bad[0]);
    ck_assert_ptr_null(bad[1]);
    all_same(2);
    tenant t;
    for (int i = 0; i < 2; i++)
        AWAIT(tenants_get(st[i], acme.id, &t, &e) == ERR_NONE && t.limits.max_queued == 50);
}
END_TEST

START_TEST(test_refused_job_leaves_nothing)
{
    int64_t before = fake_last(shared_log);
    ck_assert_int_eq(make(1, "acme"), ERR_EXISTS);
    tenant t = acme;
    t.generation = 99;
    ck_assert_int_eq(tenants_update(st[1], &t, NULL, NULL, &e), ERR_CONFLICT);
    ck_assert_int_eq(fake_last(shared_log), before);
}
END_TEST

/* Node 0 runs in a process of its own, which the journal kills at its next change. */
static void killed_at(fake_fault fault)
{
    close_node(0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        open_node(0);
        fake_set(shared_log, fault);
        (void)make(0, "late");
        _exit(7);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    fake_set(shared_log, FAKE_FINE);
    open_node(0);
}

/* Threads do not survive a fork: node 1 is closed while there are two processes. */
START_TEST(test_killed_between_the_commits)
{
    close_node(1);
    killed_at(FAKE_KILL_AFTER);
    ck_assert(has(0, "late")); /* the fleet has it, so it happened */
    open_node(1);
    ck_assert(has(1, "late"));
    all_same(2);
    close_node(1);
    int64_t before = fake_last(shared_log);
    ck_assert_int_eq(tenants_find(st[0], "late", &acme, &e), ERR_NONE);
    acme.weight = 3;
    ck_assert_int_eq(tenants_update(st[0], &acme, NULL, NULL, &e), ERR_NONE);
    ck_assert_int_eq(fake_last(shared_log), before + 1);
}
END_TEST

START_TEST(test_killed_before_the_commit)
{
    close_node(1);
    killed_at(FAKE_KILL_BEFORE);
    ck_assert(!has(0, "late"));
    open_node(1);
    ck_assert_int_eq(make(1, "late"), ERR_NONE);
    AWAIT(has(0, "late"));
    all_same(2);
}
END_TEST

START_TEST(test_lost_answer)
{
    fake_set(shared_log, FAKE_DOUBT_DONE);
    ck_assert_int_eq(make(0, "done"), ERR_NONE); /* looked for, and found */
    fake_set(shared_log, FAKE_DOUBT_UNDONE);
    ck_assert_int_eq(make(0, "undone"), ERR_IO);
    fake_set(shared_log, FAKE_FINE);
    AWAIT(has(1, "done"));
    AWAIT(stats(0).away_us == 0);
    ck_assert(!has(0, "undone") && !has(1, "undone"));
    ck_assert_int_eq(make(0, "undone"), ERR_NONE);
    all_same(2);
}
END_TEST

static err_code own_job(sqlite3 *db, void *arg, err *why)
{
    (void)arg;
    sql q;
    sql_begin(&q, db, "INSERT INTO usage_days VALUES(1,1,1,1,1,1,0)");
    return sql_done(&q, "write", why);
}

START_TEST(test_away)
{
    fake_set(shared_log, FAKE_AWAY);
    ck_assert_int_eq(make(0, "later"), ERR_IO);
    AWAIT(stats(0).away_us > 0 && stats(1).away_us > 0);
    ck_assert_int_eq(fleet_answers(store_fleet(st[0]), &e), ERR_IO);
    ck_assert(store_healthy(st[0]));          /* its own disk is fine */
    ck_assert_int_eq(check_key(0), ERR_NONE); /* reads go on */
    ck_assert_int_eq(store_write_within(st[0], own_job, NULL, 1000000, &e), ERR_NONE);
    bool durable = true;
    ck_assert_int_eq(keys_revoke(st[0], key.id, &durable, &e), ERR_NONE);
    ck_assert(!durable);
    ck_assert_int_eq(check_key(0), ERR_DENIED); /* in force here at once */
    ck_assert_int_eq(check_key(1), ERR_NONE);
    close_node(0);
    open_node(0); /* a start from the mirror, with the lock-out still in force */
    ck_assert_int_eq(check_key(0), ERR_DENIED);
    fake_set(shared_log, FAKE_FINE);
    AWAIT(check_key(1) == ERR_DENIED);
    AWAIT(stats(0).away_us == 0);
    ck_assert_int_eq(fleet_answers(store_fleet(st[0]), &e), ERR_NONE);
    ck_assert_int_eq(make(0, "later"), ERR_NONE);
    AWAIT(has(1, "later"));
    all_same(2);
}
END_TEST

/* What a node writes between its follower's look and what that makes of it is no older copy. */
START_TEST(test_own_change_behind_the_look)
{
    char said[4096];
    FILE *log = tmpfile();
    ck_assert_ptr_nonnull(log);
    int before = dup(STDERR_FILENO);
    ck_assert_int_ge(dup2(fileno(log), STDERR_FILENO), 0);
    shared_log->held = 1;
    AWAIT(shared_log->holds);
    ck_assert_int_eq(make(0, "mine"), ERR_NONE);
    shared_log->held = 0;
    ck_assert_int_eq(make(1, "after"), ERR_NONE);
    AWAIT(has(0, "after")); /* a whole look later */
    ck_assert_int_ge(dup2(before, STDERR_FILENO), 0);
    (void)close(before);
    rewind(log);
    said[fread(said, 1, sizeof(said) - 1, log)] = 0;
    (void)fclose(log);
    ck_assert_msg(!strstr(said, "older copy"), "%s", said);
}
END_TEST

START_TEST(test_numbers)
{
    ck_assert_int_eq(try_node_as(2, 1), ERR_EXISTS); /* node 1 is alive */
    close_node(1);
    ck_assert_int_eq(try_node_as(2, 1), ERR_NONE); /* it has stopped */
    ck_assert_int_eq(make(2, "mine"), ERR_NONE);
    fake_steal(shared_log, 1);
    AWAIT(make(2, "not-mine") == ERR_IO); /* at once, or with the next look */
    ck_assert(stats(2).fenced);
    ck_assert(has(2, "mine"));
    ck_assert_int_eq(make(0, "go-on"), ERR_NONE);
    AWAIT(has(2, "go-on")); /* it reads on */
    ck_assert(!has(0, "not-mine"));
}
END_TEST

START_TEST(test_who_may_join)
{
    ck_assert_int_eq(store_open(&st[2], dir[2], &(store_options){.create = true}, &e), ERR_NONE);
    ck_assert_int_eq(make(2, "own"), ERR_NONE);
    close_node(2);
    ck_assert_int_eq(try_node_as(2, 2), ERR_CONFLICT); /* rows of its own */
    close_node(0);
    ck_assert_int_eq(store_open(&st[0], dir[0], NULL, &e), ERR_CONFLICT); /* without its fleet */
    store_options o = {.without_fleet = true};
    ck_assert_int_eq(store_open(&st[0], dir[0], &o, &e), ERR_NONE);
    ck_assert_int_eq(store_found_fleet(st[0], &source, 0, &e), ERR_CONFLICT);
    bool was = false;
    ck_assert_int_eq(store_leave_fleet(st[0], &was, &e), ERR_NONE);
    ck_assert(was);
    close_node(0);
    ck_assert_int_eq(store_open(&st[0], dir[0], NULL, &e), ERR_NONE);
    ck_assert(has(0, "acme"));
    ck_assert_int_eq(store_found_fleet(st[0], &source, 0, &e), ERR_EXISTS); /* one is there */
    fake_set(shared_log, FAKE_AWAY);
    tmpdir_remove(dir[2]);
    ck_assert_int_eq(try_node_as(2, 2), ERR_IO); /* never in the fleet: nothing to begin with */
}
END_TEST

/* What a node has missed is cut off the log: it begins anew with a snapshot, running or not. */
START_TEST(test_far_behind)
{
    close_node(1);
    for (int i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        ck_assert_int_eq(make(0, name), ERR_NONE);
    }
    ck_assert_int_eq(keys_revoke(st[0], key.id, NULL, &e), ERR_NONE);
    changes all;
    int64_t seq;
    journal *j;
    char path[100];
    snprintf(path, sizeof path, "%s/lorad.db", dir[0]);
    ck_assert_int_eq(changes_of_all(path, &all, &seq, &e), ERR_NONE);
    ck_assert_int_eq(source.make(source.self, 0, &j, &e), ERR_NONE);
    ck_assert_int_eq(j->put_snapshot(j, seq, all.bytes, all.n, 0, &e), ERR_NONE);
    j->close(j);
    changes_clear(&all);
    fake_cut(shared_log, seq);
    open_node(1);
    AWAIT(has(1, "t4"));
    AWAIT(check_key(1) == ERR_DENIED);
    ck_assert_int_eq(make(1, "t5"), ERR_NONE);
    AWAIT(has(0, "t5"));
    all_same(2);
}
END_TEST

static err_code publish(int i, const uint64_t *generation, adapter_row *a)
{
    version_row v = {.file_bytes = 1};
    *a = (adapter_row){.tenant_id = acme.id, .name = "pirate"};
    return adapter_rows_publish(st[i], a, &v, "{}", false, 0, 0, generation, &e);
}

/* What a node looks at in memory may be old: the row decides, in the fleet's turn. */
START_TEST(test_conditions_hold_across_nodes)
{
    adapter_row a;
    ck_assert_int_eq(publish(0, &(uint64_t){0}, &a), ERR_NONE);
    ck_assert_uint_eq(a.generation, 1);
    ck_assert_int_eq(publish(1, &(uint64_t){0}, &a), ERR_STALE);
    ck_assert_int_eq(publish(1, &(uint64_t){1}, &a), ERR_NONE);
    ck_assert_int_eq(publish(0, &(uint64_t){1}, &a), ERR_STALE);
    ck_assert_int_eq(publish(0, NULL, &a), ERR_NONE);
    ck_assert_int_eq(a.last_version, 3);
    ck_assert_int_eq(adapter_rows_set_alias(st[1], a.id, "stable", 3, 0, 4, &e), ERR_NONE);
    ck_assert_int_eq(adapter_rows_drain(st[0], a.id, &e), ERR_NONE);
    ck_assert_int_eq(adapter_rows_set_alias(st[1], a.id, "stable", 2, 3, 5, &e), ERR_STALE);
    all_same(2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("storage.fleet");
    TCase *tc = tcase_create("fleet");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, test_join_and_follow);
    tcase_add_test(tc, test_limits_and_settings_follow);
    tcase_add_test(tc, test_revoked_everywhere);
    tcase_add_test(tc, test_one_name_once);
    tcase_add_test(tc, test_no_update_is_lost);
    tcase_add_test(tc, test_refused_job_leaves_nothing);
    tcase_add_test(tc, test_killed_between_the_commits);
    tcase_add_test(tc, test_killed_before_the_commit);
    tcase_add_test(tc, test_lost_answer);
    tcase_add_test(tc, test_away);
    tcase_add_test(tc, test_own_change_behind_the_look);
    tcase_add_test(tc, test_numbers);
    tcase_add_test(tc, test_conditions_hold_across_nodes);
    tcase_add_test(tc, test_who_may_join);
    tcase_add_test(tc, test_far_behind);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
