/* test_reserve.c -- the database's reserve on a disk that is full; the
 * rules for floors and shares. */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <check.h>

#include "storage/audit.h"
#include "storage/disk.h"
#include "storage/reserve.h"
#include "storage/store.h"
#include "tests/run_suite.h"
#include "tests/storage/smalldisk.h"
#include "tests/tmpdir.h"

static char dir[64];
static err e;

static void setup(void)
{
    tmpdir_make(dir);
}

static void teardown(void)
{
    small_disk_end(dir);
    tmpdir_remove(dir);
}

static bool held(store *st)
{
    store_stats s;
    store_stats_get(st, &s);
    return s.reserve_held;
}

static void wait_held(store *st)
{
    const struct timespec pause = {0, 10000000};
    for (int i = 0; !held(st) && i < 6000; i++) nanosleep(&pause, NULL);
    ck_assert(held(st));
}

START_TEST(test_given_up_and_made_anew)
{
    char detail[1000], path[100];
    store *st;
    if (!small_disk(dir, "32m")) return;
    memset(detail, 'x', sizeof detail - 1);
    detail[sizeof detail - 1] = 0;
    snprintf(path, sizeof path, "%s/reserve", dir);
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
    ck_assert(held(st) && access(path, F_OK) == 0);
    ck_assert(small_disk_fill(dir, 0));
    /* Nothing is refused as the reserve is given up, nor for a while after it. */
    int n = 0;
    for (; held(st) && n < 20000; n++)
        ck_assert_msg(audit_append(st, 1, 0, "fill", "x", detail, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(!held(st) && access(path, F_OK) != 0);
    for (int i = 0; i < 10; i++)
        ck_assert_msg(audit_append(st, 1, 0, "fill", "x", detail, &e) == ERR_NONE, "%s", e.msg);
    /* Then the disk is full, and says so; nothing is made anew. */
    err_code code = ERR_NONE;
    for (int i = 0; code == ERR_NONE && i < 20000; i++)
        code = audit_append(st, 1, 0, "fill", "x", detail, &e);
    ck_assert_msg(code == ERR_NO_ROOM, "%d", code);
    ck_assert(!store_healthy(st) && !held(st));
    small_disk_empty(dir);
    wait_held(st); /* by itself, without a write */
    ck_assert(access(path, F_OK) == 0);
    ck_assert_int_eq(audit_append(st, 1, 0, "after", "x", NULL, &e), ERR_NONE);
    store_close(st);
    /* A start on a full disk lives on it as well. */
    ck_assert(small_disk_fill(dir, 0));
    ck_assert_int_eq(store_open(&st, dir, NULL, &e), ERR_NONE);
    ck_assert_int_eq(audit_append(st, 1, 0, "after", "x", NULL, &e), ERR_NONE);
    ck_assert(!held(st));
    store_close(st);
    /* Without it the start works as well: it comes later. */
    small_disk_empty(dir);
    ck_assert(small_disk_fill(dir, 128 << 10)); /* for the shared memory of a fresh log */
    ck_assert_int_eq(store_open(&st, dir, NULL, &e), ERR_NONE);
    ck_assert(!held(st));
    small_disk_empty(dir);
    wait_held(st);
    store_close(st);
}
END_TEST

/* Other errors than a full disk cost nothing. */
START_TEST(test_kept_while_there_is_room)
{
    reserve *r;
    if (!small_disk(dir, "32m")) return;
    ck_assert_int_eq(reserve_open(&r, dir, &e), ERR_NONE);
    ck_assert(reserve_held(r) && !reserve_give_up(r) && reserve_held(r));
    ck_assert(small_disk_fill(dir, 0));
    ck_assert(reserve_give_up(r) && !reserve_held(r));
    reserve_close(r);
}
END_TEST

START_TEST(test_floors_and_shares)
{
    disk_room now;
    ck_assert_uint_eq(disk_floor_bytes("/nonexistent", 0), 0);
    ck_assert_uint_eq(disk_floor_bytes("/nonexistent", 77), 77);
    ck_assert(!disk_look("/nonexistent", &now));
    if (!small_disk(dir, "16m")) return;
    ck_assert(disk_look(dir, &now));
    ck_assert_uint_eq(now.total_bytes, 16 << 20);
    ck_assert_uint_le(now.free_bytes, 16 << 20);
    ck_assert(!now.inodes_short);
    ck_assert_uint_eq(disk_floor_bytes(dir, 0), 2 << 20);
    ck_assert_uint_eq(disk_share_bytes(dir), 4 << 20);
    small_disk_end(dir);
    /* A tmpfs may be larger than the memory: it is a number. */
    ck_assert(small_disk(dir, "10g"));
    ck_assert_uint_eq(disk_floor_bytes(dir, 0), UINT64_C(1) << 30);
    ck_assert_uint_eq(disk_share_bytes(dir), UINT64_C(1) << 30);
    small_disk_end(dir);
    ck_assert(small_disk(dir, "1000g"));
    ck_assert_uint_eq(disk_floor_bytes(dir, 0), UINT64_C(50) << 30);
    ck_assert_uint_eq(disk_share_bytes(dir), (UINT64_C(1000) << 30) / 64);
    small_disk_end(dir);
    ck_assert(small_disk(dir, "10m,nr_inodes=100"));
    for (int i = 0; i < 97; i++) {
        char path[100];
        snprintf(path, sizeof path, "%s/%d", dir, i);
        FILE *f = fopen(path, "w");
        if (f != NULL) fclose(f);
    }
    ck_assert(disk_look(dir, &now) && now.inodes_short);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("reserve");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_given_up_and_made_anew);
    tcase_add_test(tc, test_kept_while_there_is_room);
    tcase_add_test(tc, test_floors_and_shares);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
