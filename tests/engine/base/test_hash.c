/* test_hash.c -- published values of FNV-1a, the number that files are summed
 * from, and hexadecimal digits. */
#include <stdbool.h>
#include <string.h>

#include <check.h>

#include "engine/base/hash.h"
#include "engine/base/hex.h"
#include "tests/run_suite.h"

START_TEST(bytes_are_hashed_as_published)
{
    ck_assert_uint_eq(hash_bytes(HASH_BASIS, "", 0), 0xcbf29ce484222325u);
    ck_assert_uint_eq(hash_bytes(HASH_BASIS, "a", 1), 0xaf63dc4c8601ec8cu);
    ck_assert_uint_eq(hash_bytes(HASH_BASIS, "foobar", 6), 0x85944171f73967e8u);
    uint64_t h = hash_bytes(HASH_BASIS, "foo", 3);
    ck_assert_uint_eq(hash_bytes(h, "bar", 3), 0x85944171f73967e8u);
}
END_TEST

/* Whoever changes it loses the usage that waits in files of versions before. */
START_TEST(files_keep_their_number)
{
    ck_assert_uint_eq(HASH_BASIS_OF_FILES, 1469598103934665603u);
}
END_TEST

/* Low bits choose the bucket: as many keys as buckets leave none with many. */
START_TEST(buckets_are_filled_alike)
{
    enum { N = 4096 };
    static int of_id[N], of_text[N];
    for (uint64_t i = 0; i < N; i++) {
        int id = ++of_id[hash_id(i * 4096) & (N - 1)];
        int text = ++of_text[hash_text(i, "poet", 4) & (N - 1)];
        ck_assert_int_lt(id, 12);
        ck_assert_int_lt(text, 12);
    }
}
END_TEST

START_TEST(digits_are_read_and_written)
{
    const uint8_t bytes[] = {0x00, 0x09, 0xaf, 0xff};
    char text[9] = {0};
    hex_write(bytes, 4, text);
    ck_assert_str_eq(text, "0009afff");
    ck_assert_int_eq(hex_value(text + 4, text + 8, 4), 0xafff);
    const char *mixed = "1aB";
    ck_assert_int_eq(hex_value(mixed, mixed + 3, 3), 0x1ab);
    ck_assert_int_eq(hex_value(mixed, mixed + 2, 3), -1); /* cut short */
    const char *wrong = "1g";
    ck_assert_int_eq(hex_value(wrong, wrong + 2, 2), -1);
    for (int c = 0; c < 256; c++) {
        bool is = c != 0 && strchr("0123456789abcdefABCDEF", c);
        ck_assert_int_eq(hex_digit((char)c) >= 0, is);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("hash");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, bytes_are_hashed_as_published);
    tcase_add_test(tc, files_keep_their_number);
    tcase_add_test(tc, buckets_are_filled_alike);
    tcase_add_test(tc, digits_are_read_and_written);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
