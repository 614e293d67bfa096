/* test_settler.c -- usage whose database cannot be written: it waits in the spool, nothing is lost
 * or doubled, nobody waits for it, and it is written as soon as that is possible.
 *
 * Another connection of this process holds the write lock; for SQLite that is another program.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/clock.h"
#include "storage/settler.h"
#include "storage/store_sql.h"
#include "tests/run_suite.h"
#include "tests/storage/ledger_get.h"
#include "tests/tmpdir.h"

enum { RUNNING = 4, SPOOL = 16 };

static char dir[64], path[128];
static store *st;
static meter_file *mf;
static settler *sr;
static sqlite3 *other; /* who holds the lock */
static err e;

static void open_all(int running, int spool)
{
    ck_assert_msg(store_open(&st, dir, &(store_options){.create = true}, &e) == ERR_NONE, "%s",
                  e.msg);
    ck_assert_msg(meter_file_open(&mf, st, running, spool, NULL, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(settler_start(&sr, st, mf, &e), ERR_NONE);
}

static void close_all(void)
{
    settler_stop(sr);
    meter_file_close(mf);
    store_close(st);
    sr = NULL;
    mf = NULL;
    st = NULL;
}

static void setup(void)
{
    tmpdir_make(dir);
    snprintf(path, sizeof path, "%s/meters", dir);
    open_all(RUNNING, SPOOL);
}

static void teardown(void)
{
    close_all();
    sqlite3_close(other);
    other = NULL;
    tmpdir_remove(dir);
}

static void lock_database(void)
{
    char db[128];
    snprintf(db, sizeof db, "%s/lorad.db", dir);
    if (other == NULL) ck_assert_int_eq(sqlite3_open(db, &other), SQLITE_OK);
    sqlite3_busy_timeout(other, 5000);
    ck_assert_int_eq(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
}

static void unlock_database(void)
{
    ck_assert_int_eq(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
}

static meter_slot *acquire(uint64_t id, err_code want)
{
    meter_slot *s;
    meter_owner o = {.request_id = id,
                     .tenant_id = 3,
                     .key_id = 30,
                     .adapter_id = 300,
                     .started_wall_us = clock_wall_us(),
                     .model = "poet@2",
                     .slo_class = "batch",
                     .endpoint = "chat",
                     .price = {1000000, 500000, 2000000}};
    ck_assert_int_eq(meter_file_acquire(mf, &o, &s, &e), want);
    return s;
}

static usage_row row_of(uint64_t id)
{
    return (usage_row){.request_id = id,
                       .tenant_id = 3,
                       .prompt_tokens = 7,
                       .cached_tokens = 2,
                       .output_tokens = (uint32_t)id,
                       .cost = 1000 + (int64_t)id, /* as it was at the end, whatever prices are */
                       .status = 200,
                       .finish = "length",
                       .missed = (miss_cause)(id % MISS_CAUSES),
                       .queue_ms = 1,
                       .ttft_ms = 12,
                       .duration_ms = 34,
                       .started_wall_us = clock_wall_us(),
                       .ended_wall_us = clock_wall_us()};
}

static uint64_t end(uint64_t id)
{
    usage_row r = row_of(id);
    return settler_end(sr, acquire(id, ERR_NONE), &r);
}

static settler_stats look(void)
{
    settler_stats s;
    settler_stats_get(sr, &s);
    return s;
}

static void wait_until_ok(void)
{
    while (look().state != SPOOL_OK || look().n_waiting > 0) usleep(1000);
}

/* Each of these requests has one row with its own counts, and the day's sums are theirs. */
static void check_books(uint64_t first, uint64_t last)
{
    int64_t want = 0;
    ledger_sums day, month;
    for (uint64_t id = first; id <= last; id++) {
        usage_row got;
        ck_assert_msg(ledger_get(st, id, &got, &e) == ERR_NONE, "%d is lost", (int)id);
        ck_assert_uint_eq(got.output_tokens, id);
        ck_assert_uint_eq(got.prompt_tokens, 7);
        ck_assert_str_eq(got.model, "poet@2");
        ck_assert_str_eq(got.endpoint, "chat");
        ck_assert_str_eq(got.finish, "length");
        ck_assert_int_eq(got.missed, (int)(id % MISS_CAUSES));
        ck_assert_int_eq(got.duration_ms, 34);
        ck_assert_uint_eq(got.key_id, 30);
        ck_assert(!got.recovered);
        want += 7 + (int64_t)id;
    }
    ck_assert_int_eq(ledger_spent(st, 3, clock_wall_us(), &day, &month, &e), ERR_NONE);
    ck_assert_int_eq(day.tokens, want);
}

/* Whoever is told that it is durable finds it there; on a machine that does
 * much else some are not told. */
START_TEST(a_healthy_database_has_it_at_once)
{
    int n_told = 0;
    for (uint64_t id = 1; id <= 100; id++) {
        usage_row got;
        if (!settler_await(sr, end(id))) {
            wait_until_ok(); /* so that the spool has room for the next one */
            continue;
        }
        ck_assert_int_eq(ledger_get(st, id, &got, &e), ERR_NONE);
        n_told++;
    }
    ck_assert_int_gt(n_told, 0);
    wait_until_ok();
    check_books(1, 100);
    ck_assert_uint_eq(look().n_failures, 0);
}
END_TEST

START_TEST(nobody_waits_for_a_lock)
{
    lock_database();
    ck_assert(!settler_await(sr, end(1))); /* the first one learns of it ... */
    for (uint64_t id = 2; id <= 10; id++) ck_assert(!settler_await(sr, end(id)));
    settler_stats s = look();
    ck_assert_int_eq(s.state,
                     SPOOL_BEHIND); /* ... and the others are not held up, but for another turn */
    int64_t least_us = INT64_MAX;
    for (int i = 0; i < 20; i++) {
        int64_t start = clock_now_us(), took_us;
        ck_assert(!settler_await(sr, 10));
        took_us = clock_now_us() - start;
        if (took_us < least_us) least_us = took_us;
    }
    ck_assert_int_lt(least_us, 90000); /* each would wait for 100 ms */
    ck_assert_int_eq(s.n_waiting, 10);
    ck_assert_int_eq(s.n_spool, SPOOL);
    while (look().n_failures < 2) usleep(1000); /* it tries again and again */
    ck_assert_int_gt(look().oldest_us, 0);
    unlock_database();
    wait_until_ok();
    ck_assert_int_eq(look().oldest_us, 0);
    check_books(1, 10);
    uint64_t last = 11;
    while (!settler_await(sr, end(last))) { /* waited for again */
        wait_until_ok();
        last++;
    }
    wait_until_ok();
    check_books(1, last);
}
END_TEST

START_TEST(a_full_spool_keeps_room_for_those_that_run)
{
    meter_slot *run[RUNNING];
    lock_database();
    for (uint64_t id = 1; id <= SPOOL - 1; id++) (void)end(id);
    for (uint64_t i = 0; i < RUNNING; i++) run[i] = acquire(SPOOL + i, ERR_NONE);
    (void)acquire(99, ERR_BUSY); /* as many as may run: that is a queue */
    for (uint64_t i = 0; i < RUNNING; i++) {
        usage_row r = row_of(SPOOL + i);
        ck_assert(!settler_await(sr, settler_end(sr, run[i], &r)));
        ck_assert_int_eq(look().state, SPOOL_FULL);
        (void)acquire(99, ERR_IO);
    }
    ck_assert_int_eq(look().n_waiting, SPOOL - 1 + RUNNING);
    unlock_database();
    wait_until_ok();
    check_books(1, SPOOL - 1 + RUNNING);
    meter_file_release(mf, acquire(99, ERR_NONE)); /* served again */
}
END_TEST

static err_code write_nothing(sqlite3 *db, void *arg, err *why)
{
    (void)db, (void)arg, (void)why;
    return ERR_NONE;
}

/* An operator's write beside it has its patience and no more, and does not fail as "queue full". */
START_TEST(other_writes_are_answered_in_time)
{
    lock_database();
    (void)end(1);
    int64_t took_us;
    do { /* where much else is done, until it gets its turn in time */
        int64_t start = clock_now_us();
        ck_assert_int_eq(store_write_within(st, write_nothing, NULL, 400000, &e), ERR_IO);
        ck_assert_ptr_nonnull(strstr(e.msg, "locked"));
        took_us = clock_now_us() - start;
        ck_assert_int_ge(took_us, 390000); /* it had its chance ... */
    } while (took_us > 4500000);           /* ... and not SQLite's usual five seconds */
    store_stats s;
    store_stats_get(st, &s);
    ck_assert_uint_ge(s.n_lost, 1);
    unlock_database();
    wait_until_ok();
    ck_assert_int_eq(store_write_within(st, write_nothing, NULL, 400000, &e), ERR_NONE);
    check_books(1, 1);
}
END_TEST

START_TEST(a_full_disk)
{
    struct rlimit old, tight;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    tight = old;
    tight.rlim_cur = 4096;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &tight), 0);
    ck_assert(!settler_await(sr, end(1)));
    for (uint64_t id = 2; id <= 10; id++) ck_assert(!settler_await(sr, end(id)));
    ck_assert_int_eq(look().state, SPOOL_BEHIND);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    wait_until_ok();
    check_books(1, 10);
}
END_TEST

/* A stop and a start that cannot write keep what waits, whatever the sizes are
 * then; ids go on above it. */
START_TEST(what_waits_outlives_restarts)
{
    static const int sizes[][2] = {
        {RUNNING, SPOOL}, {RUNNING, 8 * SPOOL}, {2, 4}, {2, 4}, {64, 64}};
    lock_database();
    for (uint64_t id = 1; id <= 12; id++) (void)end(id);
    (void)acquire(13, ERR_NONE); /* cut short, as by a crash */
    uint64_t high = store_next_id(st) + (1u << 30);
    usage_row r = row_of(high);
    (void)settler_end(sr, acquire(high, ERR_NONE), &r);
    for (size_t i = 0; i < sizeof sizes / sizeof(*sizes); i++) {
        close_all();
        open_all(sizes[i][0], sizes[i][1]);
        ck_assert_int_eq(look().n_waiting, 14);
        ck_assert_int_ne(look().state, SPOOL_OK);
        ck_assert_uint_gt(store_next_id(st), high);
        ck_assert_int_ge(look().n_spool, 14); /* those that run have their slots besides */
    }
    unlock_database();
    wait_until_ok();
    usage_row got;
    ck_assert_int_eq(ledger_get(st, 13, &got, &e), ERR_NONE);
    ck_assert(got.recovered);
    ck_assert_str_eq(got.finish, "crash");
    ck_assert_int_eq(ledger_get(st, high, &got, &e), ERR_NONE);
    for (uint64_t id = 1; id <= 12; id++) {
        ck_assert_int_eq(ledger_get(st, id, &got, &e), ERR_NONE);
        ck_assert_uint_eq(got.output_tokens, id);
        ck_assert_int_eq(got.cost, 1000 + (int64_t)id);
        ck_assert(!got.recovered);
    }
    close_all();
    open_all(RUNNING, SPOOL); /* and the file has its size again */
    struct stat sb;
    ck_assert_int_eq(stat(path, &sb), 0);
    ck_assert_int_eq(sb.st_size, 4096 + (RUNNING + SPOOL) * METER_SLOT_BYTES);
}
END_TEST

/* Where a file of another size cannot be made, the old one is kept as it is. */
START_TEST(no_room_for_a_larger_spool)
{
    lock_database();
    for (uint64_t id = 1; id <= 12; id++) (void)end(id);
    close_all();
    struct rlimit old, tight;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    tight = old;
    tight.rlim_cur = 1 << 20;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &tight), 0);
    open_all(RUNNING, 1 << 15);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_int_eq(look().n_waiting, 12);
    ck_assert_int_eq(look().n_spool, SPOOL);
    unlock_database();
    wait_until_ok();
    check_books(1, 12);
}
END_TEST

/* The file of the version before: "LRDMETR1", slots that end where the end begins now. */
START_TEST(an_older_file_is_settled)
{
    (void)acquire(1, ERR_NONE);
    meter_slot *s = acquire(2, ERR_NONE);
    atomic_store(&meter_slot_meter(s)->prompt_tokens, 7);
    atomic_store(&meter_slot_meter(s)->output_tokens, 2);
    for (int locked = 1; locked >= 0; locked--) {
        enum { OLD_BYTES = 448 };
        static char now[4096 + (RUNNING + SPOOL) * METER_SLOT_BYTES], old[4096 + 3 * OLD_BYTES];
        if (locked) {
            int fd = open(path, O_RDONLY);
            ck_assert_int_eq(read(fd, now, sizeof now), sizeof now);
            close(fd);
            memcpy(old, "LRDMETR1", 8);
            memcpy(old + 8, &(uint32_t[]){OLD_BYTES, 3}, 8);
            for (int i = 0; i < 3; i++)
                memcpy(old + 4096 + i * OLD_BYTES, now + 4096 + i * METER_SLOT_BYTES, OLD_BYTES);
            close_all();
            int to = open(path, O_WRONLY | O_TRUNC);
            ck_assert_int_eq(write(to, old, sizeof old), sizeof old);
            close(to);
            lock_database();
        } else {
            close_all();
            unlock_database();
        }
        open_all(RUNNING, SPOOL);
        ck_assert_int_eq(look().n_waiting, locked ? 2 : 0);
    }
    usage_row got;
    ck_assert_int_eq(ledger_get(st, 2, &got, &e), ERR_NONE);
    ck_assert(got.recovered);
    ck_assert_uint_eq(got.prompt_tokens, 7);
    ck_assert_uint_eq(got.output_tokens, 2);
    ck_assert_int_eq(got.cost, 7 * 1 + 2 * 2); /* of a crash: by the prices of its beginning */
    ck_assert_int_eq(ledger_get(st, 1, &got, &e), ERR_NONE);
}
END_TEST

/* The checksums' first number lacks a digit of FNV's, as it always did in these files. */
static uint64_t sum_of_the_first_version(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* A file made here byte by byte, as versions before this one left it. */
START_TEST(a_file_of_another_version_is_settled)
{
    static char file[4096 + 2 * METER_SLOT_BYTES] = "LRDMETR2";
    meter_owner o = {.request_id = 9, .tenant_id = 3, .model = "poet@2", .endpoint = "chat"};
    /* Without prices: what stands there is not the owner's. */
    uint64_t sum = sum_of_the_first_version(&o, offsetof(meter_owner, price));
    char *slot = file + 4096;
    o.price = (token_price){1000000, 1000000, 1000000};
    memcpy(file + 8, &(uint32_t[]){METER_SLOT_BYTES, 2}, 8);
    memcpy(slot, &(uint32_t){0x5553}, 4); /* used */
    memcpy(slot + 8, &sum, sizeof sum);
    memcpy(slot + 64, &(uint32_t[]){7, 0, 2}, 12);
    memcpy(slot + 128, &o, sizeof o);
    close_all();
    int to = open(path, O_WRONLY | O_TRUNC);
    ck_assert_int_eq(write(to, file, sizeof file), sizeof file);
    close(to);
    open_all(RUNNING, SPOOL);
    usage_row got;
    ck_assert_int_eq(ledger_get(st, 9, &got, &e), ERR_NONE);
    ck_assert(got.recovered);
    ck_assert_uint_eq(got.prompt_tokens, 7);
    ck_assert_uint_eq(got.output_tokens, 2);
    ck_assert_int_eq(got.cost, 0);
}
END_TEST

/* Many workers, and a lock that comes and goes: turns are kept, each row is there once. */
enum { WORKERS = 4, EACH = 100 };

static void *work(void *arg)
{
    uint64_t first = *(uint64_t *)arg;
    for (uint64_t id = first; id < first + EACH; id++) {
        meter_slot *s;
        meter_owner o = {
            .request_id = id, .tenant_id = 3, .key_id = 30, .model = "poet@2", .endpoint = "chat"};
        while (meter_file_acquire(mf, &o, &s, NULL) != ERR_NONE) usleep(100);
        usage_row r = row_of(id), got;
        bool durable = settler_await(sr, settler_end(sr, s, &r));
        if (durable && ledger_get(st, id, &got, NULL) != ERR_NONE) abort();
    }
    return NULL;
}

START_TEST(workers_and_a_lock_that_comes_and_goes)
{
    pthread_t th[WORKERS];
    uint64_t first[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        first[i] = 1 + (uint64_t)i * EACH;
        pthread_create(&th[i], NULL, work, &first[i]);
    }
    for (int i = 0; i < 3; i++) {
        lock_database();
        usleep(20000);
        unlock_database();
        usleep(20000);
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(th[i], NULL);
    wait_until_ok();
    for (uint64_t id = 1; id <= WORKERS * EACH; id++) {
        usage_row got;
        ck_assert_int_eq(ledger_get(st, id, &got, &e), ERR_NONE);
        ck_assert_uint_eq(got.output_tokens, id);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("settler");
    TCase *tc = tcase_create("settler");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_healthy_database_has_it_at_once);
    tcase_add_test(tc, nobody_waits_for_a_lock);
    tcase_add_test(tc, a_full_spool_keeps_room_for_those_that_run);
    tcase_add_test(tc, other_writes_are_answered_in_time);
    tcase_add_test(tc, a_full_disk);
    tcase_add_test(tc, what_waits_outlives_restarts);
    tcase_add_test(tc, no_room_for_a_larger_spool);
    tcase_add_test(tc, an_older_file_is_settled);
    tcase_add_test(tc, a_file_of_another_version_is_settled);
    tcase_add_test(tc, workers_and_a_lock_that_comes_and_goes);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
