/* test_wal.c -- damage in a write-ahead log: whatever SQLite discards of it is reported. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <check.h>

#include "storage/audit.h"
#include "storage/wal_check.h"
#include "storage/watch/self_check.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { ROWS = 40, FLIPS = 60 };

static char dir[64], damaged[80];

static void copy_file(const char *name)
{
    char from[160], to[160], buf[4096];
    snprintf(from, sizeof(from), "%s/%s", dir, name);
    snprintf(to, sizeof(to), "%s/%s", damaged, name);
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    ck_assert(in && out);
    for (size_t n; (n = fread(buf, 1, sizeof(buf), in)) > 0;)
        ck_assert_uint_eq(fwrite(buf, 1, n, out), n);
    ck_assert_int_eq(fclose(in) + fclose(out), 0);
}

static store *st; /* open all the time: its log is not emptied */

static void setup(void)
{
    err e;
    tmpdir_make(dir);
    snprintf(damaged, sizeof(damaged), "%s/copy", dir);
    ck_assert_int_eq(mkdir(damaged, 0700), 0);
    ck_assert_msg(store_open(&st, dir, &(store_options){.create = true}, &e) == ERR_NONE, "%s",
                  e.msg);
    for (int i = 0; i < ROWS; i++)
        ck_assert_int_eq(audit_append(st, 1, 0, "test", "x", NULL, &e), ERR_NONE);
}

static void teardown(void)
{
    store_close(st);
    tmpdir_remove(dir);
}

static void fresh_copy(char wal[160])
{
    char shm[160];
    snprintf(wal, 160, "%s/lorad.db-wal", damaged);
    snprintf(shm, sizeof(shm), "%s/lorad.db-shm", damaged);
    (void)unlink(shm);
    copy_file("lorad.db");
    copy_file("lorad.db-wal");
}

/* Rows that the copy has; -1: it is refused. */
static int rows_of_copy(void)
{
    store *copy;
    audit_row *rows;
    size_t n;
    err e;
    if (store_open(&copy, damaged, NULL, &e)) return -1;
    err_code rc = audit_list(copy, 0, 0, 0, &rows, &n, &e);
    if (!rc) free(rows);
    store_close(copy);
    return rc ? -1 : (int)n;
}

static void flip(const char *path, off_t at, int bit)
{
    uint8_t byte;
    int fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= (uint8_t)(1 << bit);
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    (void)close(fd);
}

START_TEST(a_whole_log_is_not_damaged)
{
    char wal[160];
    wal_report r;
    fresh_copy(wal);
    ck_assert(!wal_check(wal, &r));
    ck_assert_int_gt(r.valid, ROWS);
    ck_assert_int_eq(r.discarded, 0);
    ck_assert_int_eq(rows_of_copy(), ROWS);
    ck_assert(!wal_check("/nonexistent", &r));
}
END_TEST

/* What a kill leaves: a last frame that was not written to its end. */
START_TEST(a_log_that_was_cut_is_not_damaged)
{
    char wal[160];
    struct stat s;
    wal_report r;
    for (int cut = 1; cut < 9000; cut += 997) {
        fresh_copy(wal);
        ck_assert_int_eq(stat(wal, &s), 0);
        ck_assert_int_eq(truncate(wal, s.st_size - cut), 0);
        ck_assert(!wal_check(wal, &r));
    }
}
END_TEST

START_TEST(what_is_discarded_is_reported)
{
    char wal[160];
    struct stat s;
    unsigned seed = (unsigned)time(NULL), at = seed;
    int lost = 0;
    printf("what_is_discarded_is_reported: seed %u\n", seed);
    for (int i = 0; i < FLIPS; i++) {
        wal_report r;
        fresh_copy(wal);
        ck_assert_int_eq(stat(wal, &s), 0);
        off_t where = (off_t)((size_t)rand_r(&at) % (size_t)s.st_size);
        flip(wal, where, rand_r(&at) % 8);
        bool told = wal_check(wal, &r);
        int n = rows_of_copy();
        lost += n < ROWS;
        ck_assert_msg(n == ROWS || told, "seed %u, byte %lld: %d rows of %d", seed,
                      (long long)where, n, ROWS);
        ck_assert_msg(told || r.discarded == 0, "seed %u, byte %lld", seed, (long long)where);
    }
    ck_assert_int_gt(lost, FLIPS / 2);
}
END_TEST

/* A frame that looks like one of an earlier log: commits follow that are of this one. */
START_TEST(a_wrong_salt_in_the_middle_is_reported)
{
    enum { HEADER = 32, FRAME = 24 + 4096, AT = 10 };
    char wal[160];
    wal_report r;
    for (int salt = 8; salt < 16; salt += 4) {
        fresh_copy(wal);
        flip(wal, HEADER + AT * FRAME + salt, 0);
        ck_assert(wal_check(wal, &r));
        ck_assert_int_eq(r.valid, AT);
        ck_assert_int_gt(r.discarded, ROWS / 2);
        ck_assert_int_lt(rows_of_copy(), ROWS);
    }
}
END_TEST

/* The whole database is walked: garbage in a page that nobody reads is found. */
START_TEST(a_damaged_database_is_seen_while_it_is_open)
{
    char path[160], page[4096];
    self_check *c;
    self_check_state s = {0};
    err e;
    ck_assert_int_eq(self_check_start(&c, st, 20000, &e), ERR_NONE);
    while (s.checked_wall_us == 0) {
        (void)usleep(1000);
        self_check_get(c, &s);
    }
    ck_assert(!s.damaged);
    ck_assert(store_scrub(st, 5000000)); /* the log is empty: pages come from the file */
    snprintf(path, sizeof(path), "%s/lorad.db", dir);
    memset(page, 0x5a, sizeof(page));
    int fd = open(path, O_RDWR);
    for (int i = 3; i < 30; i++)
        ck_assert_int_eq(pwrite(fd, page, sizeof(page), (off_t)i * 4096), (ssize_t)sizeof(page));
    (void)close(fd);
    for (int i = 0; i < 2000 && !s.damaged; i++) {
        (void)usleep(5000);
        self_check_get(c, &s);
    }
    ck_assert(s.damaged);
    self_check_stop(c);
    self_check_get(NULL, &s);
    ck_assert(!s.damaged && s.checked_wall_us == 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wal");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_whole_log_is_not_damaged);
    tcase_add_test(tc, a_log_that_was_cut_is_not_damaged);
    tcase_add_test(tc, what_is_discarded_is_reported);
    tcase_add_test(tc, a_wrong_salt_in_the_middle_is_reported);
    tcase_add_test(tc, a_damaged_database_is_seen_while_it_is_open);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
