/* test_populate.c -- memory is there before it is used, a stretch ahead and no
 * further; what others write stays. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <check.h>

#include "engine/memory/devmem.h"
#include "engine/memory/populate.h"
#include "tests/run_suite.h"

enum { MIB = 1 << 20, AREA = 96 * MIB, CHUNK = 64 * 1024, WAIT_S = 60 };

static backend *be;

static void open_backend(void)
{
    err e;
    backend_config cfg = {.n_threads = 1};
    ck_assert_int_eq(be_open(&be, &backend_cpu, &cfg, &e), ERR_NONE);
}

static void close_backend(void)
{
    be_close(be);
}

/* Old kernels can't; then everything else must work. */
static bool can_commit(void)
{
    void *p = be_map(be, 4 * MIB);
    ck_assert_ptr_nonnull(p);
    bool can = be_commit(be, p, 4 * MIB);
    be_unmap(be, p, 4 * MIB);
    return can;
}

/* Bytes of it that the system has given, page by page. */
static size_t resident(void *mem, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = bytes / page, sum = 0;
    unsigned char *in = malloc(n);
    ck_assert_ptr_nonnull(in);
    ck_assert_int_eq(mincore(mem, bytes, in), 0);
    for (size_t i = 0; i < n; i++) sum += (in[i] & 1) * page;
    free(in);
    return sum;
}

static bool comes_to(void *mem, size_t bytes)
{
    for (int i = 0; i < WAIT_S * 1000 && resident(mem, bytes) < bytes; i++) (void)usleep(1000);
    return resident(mem, bytes) == bytes;
}

START_TEST(test_ahead_of_use)
{
    uint8_t *mem = be_map(be, AREA);
    ck_assert_ptr_nonnull(mem);
    ck_assert_uint_eq(resident(mem, AREA), 0);
    memset(mem + 5 * MIB, 0x5a, 3 * MIB);
    populate *p = populate_start(be, mem, AREA);
    ck_assert_ptr_nonnull(p);
    if (can_commit()) {
        ck_assert(comes_to(mem, POPULATE_AHEAD)); /* before anybody has said anything */
        populate_reach(p, 20 * MIB + 1);
        populate_reach(p, 7 * MIB); /* no news */
        ck_assert(comes_to(mem, POPULATE_AHEAD + 20 * MIB));
        (void)usleep(20000);
        ck_assert_uint_le(resident(mem, AREA), POPULATE_AHEAD + 24 * MIB); /* a piece too much */
        populate_reach(p, AREA - 3);
        ck_assert(comes_to(mem, AREA));
        populate_reach(p, AREA); /* the thread has ended: no harm */
    }
    for (int i = 0; i < 3 * MIB; i++) ck_assert_uint_eq(mem[5 * MIB + i], 0x5a);
    populate_stop(p);
    be_unmap(be, mem, AREA);
}
END_TEST

/* Whoever takes chunks, for pages or for adapters, moves the mark. */
START_TEST(test_arena)
{
    devmem *a;
    err e;
    ck_assert_int_eq(devmem_create(&a, be, AREA / CHUNK, CHUNK, 0, &e), ERR_NONE);
    uint8_t *mem = devmem_memory(a);
    bool can = can_commit();
    if (can) ck_assert(comes_to(mem, POPULATE_AHEAD));
    for (int i = 0; i < 10 * MIB / CHUNK; i++) {
        devmem_lock(a);
        int c = devmem_page_take_locked(a);
        devmem_unlock(a);
        ck_assert_int_eq(c, i);
    }
    if (can) ck_assert(comes_to(mem, POPULATE_AHEAD + 10 * MIB));
    devmem_lease *l = devmem_lease_take(a, 10 * MIB / CHUNK, DEVMEM_DEMAND, 0, NULL);
    ck_assert_ptr_nonnull(l);
    if (can) ck_assert(comes_to(mem, POPULATE_AHEAD + 20 * MIB));
    devmem_lease_drop(l);
    for (int i = 0; i < 10 * MIB / CHUNK; i++) {
        devmem_lock(a);
        devmem_page_free_locked(a, i);
        devmem_unlock(a);
    }
    devmem_unmap(a); /* as when a device is brought back */
    ck_assert_int_eq(devmem_remap(a, &e), ERR_NONE);
    if (can) ck_assert(comes_to(devmem_memory(a), POPULATE_AHEAD));
    devmem_destroy(a);
}
END_TEST

START_TEST(test_nothing_to_do)
{
    uint8_t *mem = be_map(be, 3 * MIB); /* less than a stretch */
    populate *p = populate_start(be, mem, 3 * MIB);
    ck_assert_ptr_nonnull(p);
    if (can_commit()) ck_assert(comes_to(mem, 3 * MIB));
    populate_stop(p);
    p = populate_start(be, mem, 3 * MIB); /* stopped at any time */
    populate_stop(p);
    be_unmap(be, mem, 3 * MIB);
    ck_assert_ptr_null(populate_start(be, NULL, 0));
    populate_reach(NULL, 1);
    populate_stop(NULL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("populate");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 4 * WAIT_S);
    tcase_add_checked_fixture(tc, open_backend, close_backend);
    tcase_add_test(tc, test_ahead_of_use);
    tcase_add_test(tc, test_arena);
    tcase_add_test(tc, test_nothing_to_do);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
