/* test_room.c -- a device's memory: what does not fit is refused with the sums, what runs out is an
 * answer, and pages go to the host and back bit for bit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/model/model.h"
#include "tests/emu/cuda_rt/emu_rt.h"
#include "tests/run_suite.h"

static const size_t mib = (size_t)1 << 20;
static backend *be;
static err e;

static err_code open_with(size_t device_bytes, double fraction)
{
    backend_config bc = {
        .n_threads = 1, .fraction = fraction, .max_rows = 16, .max_seqs = 4, .max_context = 128};
    emu_rt_device(1, device_bytes);
    return be_open(&be, &backend_cuda, &bc, &e);
}

static size_t taken(void)
{
    emu_rt_counts n;
    emu_rt_count(&n);
    return n.device_bytes + n.pinned_bytes;
}

START_TEST(a_model_too_large_is_refused_with_the_sum)
{
    model *m = NULL;
    ck_assert_int_eq(open_with(40 * mib, 0.9), ERR_NONE);
    double room = (double)be_room(be) / (double)(1 << 30);
    ck_assert_int_eq(model_load(&m, "../conf/demo/base", be, 16, 8, &e), ERR_NOMEM);
    ck_assert_ptr_null(m);
    char sum[64];
    snprintf(sum, sizeof(sum), "the device has %.2f GiB for them", room);
    ck_assert_msg(strstr(e.msg, "the weights take 0.01 GiB") != NULL, "%s", e.msg);
    ck_assert_msg(strstr(e.msg, sum) != NULL, "%s, not '%s'", e.msg, sum);
    ck_assert_int_eq(be_sync(be, &e), ERR_NONE); /* no fault of the device */
    be_close(be);
    ck_assert_uint_eq(taken(), 0);
    ck_assert_int_eq(open_with(96 * mib, 0.9), ERR_NONE); /* with more of it, it fits */
    ck_assert_msg(model_load(&m, "../conf/demo/base", be, 16, 8, &e) == ERR_NONE, "%s", e.msg);
    model_destroy(m);
    be_close(be);
    ck_assert_uint_eq(taken(), 0);
}
END_TEST

START_TEST(memory_that_others_have_is_named)
{
    backend *other;
    ck_assert_int_eq(open_with(128 * mib, 0.5), ERR_NONE);
    other = be;
    ck_assert_int_eq(open_with(128 * mib, 0.75), ERR_NOMEM);
    ck_assert_msg(strstr(e.msg, "device-memory-fraction 0.75 of 0.1 GiB is 0.1 GiB") != NULL, "%s",
                  e.msg);
    be_close(other);
    ck_assert_int_eq(open_with(128 * mib, 0.75), ERR_NONE);
    be_close(be);
    ck_assert_uint_eq(taken(), 0);
}
END_TEST

START_TEST(an_arena_that_is_full_says_no_and_goes_on)
{
    enum { MOST = 64 };
    void *p[MOST];
    int n = 0;
    ck_assert_int_eq(open_with(96 * mib, 0.9), ERR_NONE);
    size_t before = be_room(be);
    while (n < MOST && (p[n] = be_alloc(be, 3 * mib)) != NULL) n++;
    ck_assert_int_gt(n, 4);
    ck_assert_int_lt(n, MOST);
    ck_assert_ptr_null(be_map(be, 3 * mib));
    ck_assert_int_eq(be_sync(be, &e), ERR_NONE);
    for (int i = 0; i < n; i += 2) be_free(be, p[i]); /* holes of that size serve again */
    void *again = be_alloc(be, 3 * mib);
    ck_assert_ptr_nonnull(again);
    be_free(be, again);
    for (int i = 1; i < n; i += 2) be_free(be, p[i]);
    ck_assert_uint_eq(be_room(be), before);
    be_close(be);
    ck_assert_uint_eq(taken(), 0);
}
END_TEST

START_TEST(pages_come_back_bit_for_bit)
{
    enum { PAGES = 6 };
    attn_shape shape = {
        .n_layer = 3, .n_head = 4, .n_kv_head = 2, .head_dim = 16, .kv_type = DT_BF16, .scale = 1};
    kv_pool *kv;
    ck_assert_int_eq(open_with(96 * mib, 0.9), ERR_NONE);
    ck_assert_int_eq(be_kv_create(be, &kv, &shape, PAGES, &e), ERR_NONE);
    size_t bytes = be_kv_page_bytes(be, &shape);
    unsigned char *was = malloc(bytes), *now = malloc(bytes);
    be_kv_save(be, kv, 5, now); /* of the clearing alone, which is still on its way */
    be_kv_copied(be);
    for (size_t i = 0; i < bytes; i++) ck_assert_int_eq(now[i], 0);
    for (int page = 0; page < PAGES; page++) {
        for (size_t i = 0; i < bytes; i++) was[i] = (unsigned char)(i * 31 + (size_t)page * 7 + 1);
        be_kv_load(be, kv, page, was);
        be_kv_copied(be);
        memset(was, 0xEE, bytes); /* the caller's again */
    }
    be_kv_copy(be, kv, 2, 4);
    for (int page = PAGES - 1; page >= 0; page--) {
        size_t from = page == 4 ? 2 : (size_t)page;
        be_kv_save(be, kv, page, now);
        be_kv_copied(be);
        for (size_t i = 0; i < bytes; i++)
            ck_assert_int_eq(now[i], (unsigned char)(i * 31 + from * 7 + 1));
    }
    ck_assert_int_eq(be_sync(be, &e), ERR_NONE);
    be_kv_destroy(be, kv);
    be_close(be);
    ck_assert_uint_eq(taken(), 0);
    free(was);
    free(now);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("room");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_model_too_large_is_refused_with_the_sum);
    tcase_add_test(tc, memory_that_others_have_is_named);
    tcase_add_test(tc, an_arena_that_is_full_says_no_and_goes_on);
    tcase_add_test(tc, pages_come_back_bit_for_bit);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
