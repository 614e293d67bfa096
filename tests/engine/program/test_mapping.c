/* test_mapping.c -- a mapped file that gets shorter: zeros and a note, and the process lives. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "engine/program/mapping.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { PAGES = 8, PAGE = 4096 };

static char dir[64], path[96];

static void setup(void)
{
    tmpdir_make(dir);
    snprintf(path, sizeof(path), "%s/file", dir);
    char page[PAGE];
    memset(page, 7, sizeof(page));
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    for (int i = 0; i < PAGES; i++) ck_assert_uint_eq(fwrite(page, PAGE, 1, f), 1);
    ck_assert_int_eq(fclose(f), 0);
}

static void teardown(void)
{
    tmpdir_remove(dir);
}

static char *map_file(void)
{
    int fd = open(path, O_RDONLY);
    char *map = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert(fd >= 0 && map != MAP_FAILED);
    (void)close(fd);
    return map;
}

/* In a child, for the loss is the process's.  The exit status: 0 as below, 1 otherwise. */
static int read_beyond(bool registered)
{
    pid_t child = fork();
    if (child == 0) {
        mapping_watch();
        char *map = map_file();
        if (registered) mapping_add(map, (size_t)PAGES * PAGE);
        bool ok = !mapping_lost() && truncate(path, 3 * PAGE) == 0;
        const volatile char *at = map;
        ok = ok && at[0] == 7 && at[3 * PAGE - 1] == 7 && !mapping_lost();
        ok = ok && at[5 * PAGE + 9] == 0 && mapping_lost();
        ok = ok && at[3 * PAGE] == 0 && at[PAGES * PAGE - 1] == 0 && at[2 * PAGE] == 7;
        mapping_remove(map);
        _exit(ok ? 0 : 1);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

START_TEST(a_registered_mapping_reads_zeros)
{
    int status = read_beyond(true);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

START_TEST(any_other_ends_the_process)
{
    int status = read_beyond(false);
    ck_assert(!WIFEXITED(status) || WEXITSTATUS(status) > 1); /* a sanitizer exits by itself */
}
END_TEST

START_TEST(the_table_has_room_again)
{
    static char place[4];
    for (int i = 0; i < 3 * MAPPINGS_MAX; i++) {
        mapping_add(place + i % 4, 1);
        mapping_remove(place + i % 4);
    }
    for (int i = 0; i < 2 * MAPPINGS_MAX; i++) mapping_add(place, 1); /* full: nothing happens */
    for (int i = 0; i < 2 * MAPPINGS_MAX; i++) mapping_remove(place);
    ck_assert_int_eq(WIFEXITED(read_beyond(true)), 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("mapping");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_registered_mapping_reads_zeros);
    tcase_add_test(tc, any_other_ends_the_process);
    tcase_add_test(tc, the_table_has_room_again);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
