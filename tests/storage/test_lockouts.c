/* test_lockouts.c -- revoked, suspended and deleted: in force at once, on a
 * failing disk, after a kill. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <check.h>

#include "storage/keys.h"
#include "storage/lockouts.h"
#include "storage/store_sql.h"
#include "storage/tenants.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64];
static store *st;
static tenant evil, good;
static char evil_key[KEY_TEXT_LEN + 1], good_key[KEY_TEXT_LEN + 1];
static uint64_t evil_key_id;
static err e;

static void open_it(void)
{
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
}

static uint64_t make_key(const tenant *t, char *text)
{
    key_info want = {.tenant_id = t->id, .scopes = SCOPE_INFERENCE}, made;
    ck_assert_int_eq(keys_create(st, &want, text, &made, &e), ERR_NONE);
    return made.id;
}

static void setup(void)
{
    signal(SIGXFSZ, SIG_IGN);
    tmpdir_make(dir);
    open_it();
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "evil"}, &evil, &e), ERR_NONE);
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "good"}, &good, &e), ERR_NONE);
    evil_key_id = make_key(&evil, evil_key);
    make_key(&good, good_key);
}

static void teardown(void)
{
    store_close(st);
    tmpdir_remove(dir);
}

/* No write to any file works any more; a mapping does. */
static void break_disk(bool broken)
{
    struct rlimit r;
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = broken ? 1 : r.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &r), 0);
}

/* Another program is in the middle of a transaction, until the connection is closed. */
static sqlite3 *lock_database(void)
{
    sqlite3 *db;
    char path[100];
    snprintf(path, sizeof path, "%s/lorad.db", dir);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return db;
}

static err_code check_key(const char *text)
{
    key_info k;
    return keys_check(st, text, KEY_TEXT_LEN, &k, NULL, &e);
}

static int pending(void)
{
    store_stats s;
    store_stats_get(st, &s);
    return s.n_lockouts;
}

static void wait_durable(void)
{
    const struct timespec pause = {0, 5000000};
    for (int i = 0; pending() > 0 && i < 12000; i++) nanosleep(&pause, NULL);
    ck_assert_int_eq(pending(), 0);
}

static void reopen(void)
{
    store_close(st);
    open_it();
}

START_TEST(test_revoked_on_a_broken_disk)
{
    bool durable = true;
    break_disk(true);
    ck_assert_int_eq(keys_revoke(st, evil_key_id, &durable, &e), ERR_NONE);
    ck_assert(!durable);
    ck_assert_int_eq(pending(), 1);
    ck_assert_int_eq(check_key(evil_key), ERR_DENIED);
    ck_assert_int_eq(check_key(good_key), ERR_NONE);
    ck_assert_int_eq(keys_revoke(st, evil_key_id, &durable, &e),
                     ERR_NONE); /* once more is no other */
    ck_assert_int_eq(pending(), 1);
    break_disk(false);
    wait_durable(); /* by itself */
    ck_assert_int_eq(keys_revoke(st, evil_key_id, &durable, &e), ERR_NONE);
    ck_assert(durable);
    ck_assert_int_eq(keys_revoke(st, 12345, &durable, &e), ERR_NOT_FOUND);
    reopen();
    ck_assert_int_eq(check_key(evil_key), ERR_DENIED);
    ck_assert_int_eq(check_key(good_key), ERR_NONE);
}
END_TEST

/* Who waits for the lock of another program does not keep a lock-out waiting. */
START_TEST(test_revoked_while_locked)
{
    bool durable = true;
    sqlite3 *other = lock_database();
    ck_assert_int_eq(tenants_disable(st, evil.id, &durable, &e), ERR_NONE);
    ck_assert(!durable);
    ck_assert_int_eq(check_key(evil_key), ERR_DENIED);
    ck_assert_int_eq(sqlite3_close(other), SQLITE_OK);
    wait_durable();
    reopen();
    ck_assert_int_eq(check_key(evil_key), ERR_DENIED);
}
END_TEST

/* The process is killed before any of it is in the database. */
START_TEST(test_a_kill_resurrects_nobody)
{
    tenant t = good;
    key_info k;
    store_close(st);
    pid_t pid = fork();
    if (pid == 0) {
        bool a = true, b = true, c = true;
        open_it();
        break_disk(true);
        (void)keys_revoke(st, evil_key_id, &a, &e);
        (void)tenants_disable(st, evil.id, &b, &e);
        t.disabled = true;
        (void)tenants_update(st, &t, NULL, &c, &e);
        if (!a && !b && !c) raise(SIGKILL);
        _exit(1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    sqlite3 *other = lock_database(); /* in force before anything can be written, too */
    open_it();
    ck_assert_int_eq(check_key(evil_key), ERR_DENIED);
    ck_assert_int_eq(check_key(good_key), ERR_SUSPENDED);
    ck_assert_int_eq(pending(), 3);
    ck_assert_int_eq(sqlite3_close(other), SQLITE_OK);
    wait_durable();
    for (int i = 0; i < 2; i++, reopen()) {
        ck_assert_int_eq(check_key(evil_key), ERR_DENIED);
        ck_assert_int_eq(check_key(good_key), ERR_SUSPENDED);
        ck_assert_int_eq(keys_get(st, evil_key_id, &k, &e), ERR_NONE);
        ck_assert_int_gt(k.revoked_wall_us, 0);
        ck_assert_int_eq(tenants_get(st, evil.id, &t, &e), ERR_NONE);
        ck_assert(t.disabled);
    }
}
END_TEST

START_TEST(test_suspended_then_resumed)
{
    bool durable = true;
    tenant t = evil, now;
    t.disabled = true;
    break_disk(true);
    ck_assert_int_eq(tenants_update(st, &t, &now, &durable, &e), ERR_NONE);
    ck_assert(!durable && now.disabled);
    ck_assert_uint_eq(now.generation, evil.generation + 1);
    ck_assert_int_eq(check_key(evil_key), ERR_SUSPENDED);
    /* With something else to change: that is refused, the suspension holds. */
    t = good;
    t.disabled = true;
    t.weight = 7;
    ck_assert_int_ne(tenants_update(st, &t, NULL, &durable, &e), ERR_NONE);
    ck_assert_int_eq(check_key(good_key), ERR_SUSPENDED);
    ck_assert_int_eq(tenants_get(st, good.id, &t, &e), ERR_NONE);
    ck_assert(t.weight == 1);
    /* Resuming needs the disk, and goes behind the suspension that was not written yet. */
    t = now;
    t.disabled = false;
    ck_assert_int_ne(tenants_update(st, &t, NULL, NULL, &e), ERR_NONE);
    ck_assert_int_eq(check_key(evil_key), ERR_SUSPENDED);
    break_disk(false);
    ck_assert_int_eq(tenants_update(st, &t, NULL, NULL, &e), ERR_NONE);
    ck_assert_int_eq(check_key(evil_key), ERR_NONE);
    wait_durable();
    for (int i = 0; i < 2; i++, reopen()) {
        ck_assert_int_eq(check_key(evil_key), ERR_NONE);
        ck_assert_int_eq(check_key(good_key), ERR_SUSPENDED);
    }
}
END_TEST

static atomic_bool over;

static void *change_weights(void *arg)
{
    tenant t;
    (void)arg;
    for (int i = 1; !atomic_load(&over); i++) {
        if (tenants_get(st, evil.id, &t, NULL)) break;
        t.weight = 1 + i % 9;
        if (t.disabled) continue; /* what an update saw before it counts here */
        (void)tenants_update(st, &t, NULL, NULL, NULL);
    }
    return NULL;
}

/* An update that began before the lock-out never undoes it, in memory nor in the database. */
START_TEST(test_updates_meanwhile)
{
    for (int i = 0; i < 20; i++) {
        pthread_t other;
        tenant t, then;
        atomic_store(&over, false);
        ck_assert_int_eq(pthread_create(&other, NULL, change_weights, NULL), 0);
        const struct timespec pause = {0, (i % 7) * 200000};
        nanosleep(&pause, NULL);
        ck_assert_int_eq(tenants_disable(st, evil.id, NULL, &e), ERR_NONE);
        ck_assert_int_eq(check_key(evil_key), ERR_DENIED);
        atomic_store(&over, true);
        pthread_join(other, NULL);
        wait_durable();
        ck_assert_int_eq(tenants_get(st, evil.id, &t, &e), ERR_NONE);
        ck_assert(t.disabled);
        reopen();
        ck_assert_int_eq(tenants_get(st, evil.id, &then, &e), ERR_NONE);
        ck_assert(then.disabled);
        ck_assert_uint_eq(then.generation, t.generation);
        then.disabled = false;
        ck_assert_int_eq(tenants_update(st, &then, NULL, NULL, &e), ERR_NONE);
    }
}
END_TEST

static atomic_int writer; /* 1: the writer is held, 2: it may go on */

static err_code hold_writer(sqlite3 *db, void *arg, err *why)
{
    (void)db;
    (void)arg;
    (void)why;
    atomic_store(&writer, 1);
    while (atomic_load(&writer) == 1) sched_yield();
    return ERR_NONE;
}

static void *hold(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)store_write(st, hold_writer, NULL, NULL);
}

static void *change_weight(void *arg)
{
    tenant t = evil;
    (void)arg;
    t.weight = 5;
    return (void *)(intptr_t)tenants_update(st, &t, NULL, NULL, NULL);
}

static void *lock_out(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)tenants_disable(st, evil.id, NULL, NULL);
}

/* The same in that one order: the change waits for the writer when the lock-out comes. */
START_TEST(test_an_update_that_waits)
{
    pthread_t holds, changes, locks;
    void *changed;
    store_stats now = {0};
    tenant t;
    atomic_store(&writer, 0);
    ck_assert_int_eq(pthread_create(&holds, NULL, hold, NULL), 0);
    while (atomic_load(&writer) != 1) sched_yield();
    ck_assert_int_eq(pthread_create(&changes, NULL, change_weight, NULL), 0);
    for (; now.n_queued == 0; store_stats_get(st, &now)) sched_yield();
    ck_assert_int_eq(pthread_create(&locks, NULL, lock_out, NULL), 0);
    for (; now.n_lockouts == 0; store_stats_get(st, &now)) sched_yield();
    atomic_store(&writer, 2);
    pthread_join(holds, NULL);
    pthread_join(changes, &changed);
    pthread_join(locks, NULL);
    ck_assert_int_eq((int)(intptr_t)changed, ERR_CONFLICT);
    wait_durable();
    for (int i = 0; i < 2; i++, reopen()) {
        ck_assert_int_eq(tenants_get(st, evil.id, &t, &e), ERR_NONE);
        ck_assert(t.disabled && t.weight == 1);
    }
}
END_TEST

START_TEST(test_the_file)
{
    lockouts *lo;
    char path[100], junk[64];
    uint64_t last = 0;
    store_close(st);
    ck_assert_int_eq(lockouts_open(&lo, dir, &e), ERR_NONE);
    for (uint64_t i = 1; i <= 4095; i++) {
        uint64_t ticket = lockouts_note(lo, &(lockout){LOCKOUT_KEY, i, 1});
        ck_assert_uint_gt(ticket, last);
        last = ticket;
    }
    ck_assert_uint_eq(lockouts_note(lo, &(lockout){LOCKOUT_KEY, 5000, 1}), 0);
    ck_assert_uint_eq(lockouts_note(lo, &(lockout){LOCKOUT_KEY, 4095, 2}), last);
    ck_assert(!lockouts_wait(lo, last, 1000));
    lockouts_settle(lo, last - 2, true);
    ck_assert(lockouts_wait(lo, last - 2, 1000) && !lockouts_wait(lo, last, 1000));
    ck_assert_int_eq(lockouts_pending(lo), 2);
    lockouts_settle(lo, last, false);
    ck_assert(!lockouts_wait(lo, last, 60000000)); /* it was tried: there is nothing to wait for */
    ck_assert_int_eq(lockouts_pending(lo), 2);
    lockouts_close(lo);
    /* Two are left; a byte of the first is torn. */
    snprintf(path, sizeof path, "%s/lockouts", dir);
    int fd = open(path, O_RDWR);
    ck_assert_int_eq(pwrite(fd, "x", 1, 64 * 4094 + 24), 1);
    ck_assert_int_eq(lockouts_open(&lo, dir, &e), ERR_NONE);
    ck_assert_int_eq(lockouts_pending(lo), 1);
    lockouts_close(lo);
    memset(junk, 'x', sizeof junk);
    ck_assert_int_eq(pwrite(fd, junk, sizeof junk, 0), sizeof junk);
    close(fd);
    ck_assert_int_eq(lockouts_open(&lo, dir, &e), ERR_NONE);
    ck_assert_int_eq(lockouts_pending(lo), 0);
    lockouts_close(lo);
    open_it();
    ck_assert_int_eq(check_key(evil_key), ERR_NONE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("lockouts");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_revoked_on_a_broken_disk);
    tcase_add_test(tc, test_revoked_while_locked);
    tcase_add_test(tc, test_a_kill_resurrects_nobody);
    tcase_add_test(tc, test_suspended_then_resumed);
    tcase_add_test(tc, test_updates_meanwhile);
    tcase_add_test(tc, test_an_update_that_waits);
    tcase_add_test(tc, test_the_file);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
