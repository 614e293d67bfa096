/* test_blas_load.c -- how cuBLAS is found: the sentences where it is not, and
 * every function where it is.
 *
 *     test_blas_load           what is said without it
 *     test_blas_load --real    the library of this machine; 77 where there is
 *                              none (no device is needed)
 */
#include <stdio.h>
#include <string.h>

#include <check.h>

#include "engine/cuda/products/blas.h"
#include "tests/run_suite.h"

START_TEST(says_what_to_install)
{
    static const char *const none[] = {"libcublasLt-that-is-not-there.so.13", "nor-this-one.so"};
    blas_api api;
    err e = {0};
    ck_assert_int_eq(blas_load_from(&api, none, 2, &e), ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.msg, "cuBLAS is not installed"));
    ck_assert_msg(strstr(e.msg, none[0]) != NULL, "the first file's reason: %s", e.msg);
    ck_assert_msg(strstr(e.msg, "install libcublas-13-0 (NVIDIA's Debian package)") != NULL, "%s",
                  e.msg);
    ck_assert_msg(strstr(e.msg, "lib folder in LD_LIBRARY_PATH)") != NULL, "cut: %s", e.msg);
}
END_TEST

START_TEST(names_the_function_that_is_missing)
{
    static const char *const other[] = {"not-there.so", "libc.so.6"};
    blas_api api;
    err e = {0};
    ck_assert_int_eq(blas_load_from(&api, other, 2, &e), ERR_UNSUPPORTED);
    ck_assert_str_eq(e.msg, "libc.so.6 has no cublasLtCreate: cuBLAS 12 or newer is needed");
}
END_TEST

/* Objects that need no device are made and taken down, with the attributes that blas.c sets. */
static int real(void)
{
    blas_api api = {0};
    err e = {0};
    if (blas_load(&api, &e)) {
        printf("%s\n", e.msg);
        return strstr(e.msg, "not installed") ? 77 : 1;
    }
    void *desc, *layout, *pref;
    int32_t transposed = LT_OP_T;
    uint32_t no_split = 0;
    uint64_t room = 1 << 20, cols = 24;
    int bad = api.version() < 120000;
    bad |= api.desc_create(&desc, LT_COMPUTE_32F, LT_R_32F);
    bad |= api.desc_set(desc, LT_DESC_TRANSA, &transposed, sizeof(transposed));
    bad |= api.layout_create(&layout, LT_R_16BF, 64, 16, 64);
    bad |= api.layout_set(layout, LT_LAYOUT_COLS, &cols, sizeof(cols));
    bad |= api.pref_create(&pref);
    bad |= api.pref_set(pref, LT_PREF_MAX_WORKSPACE, &room, sizeof(room));
    bad |= api.pref_set(pref, LT_PREF_REDUCTION_MASK, &no_split, sizeof(no_split));
    bad |= api.desc_set(desc, 4096, &transposed, sizeof(transposed)) == LT_SUCCESS;
    bad |= api.pref_destroy(pref) | api.layout_destroy(layout) | api.desc_destroy(desc);
    printf("cuBLASLt %zu: all functions there, attributes %s\n", api.version(),
           bad ? "REFUSED" : "taken");
    return bad != 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--real") == 0) return real();
    Suite *s = suite_create("blas_load");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, says_what_to_install);
    tcase_add_test(tc, names_the_function_that_is_missing);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
