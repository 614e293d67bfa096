/* test_utf8.c -- every code point there and back, and every beginning of one, broken in every way
 * that Unicode's table 3-7 tells apart. */
#include <stdbool.h>
#include <string.h>

#include <check.h>

#include "engine/base/utf8.h"
#include "tests/run_suite.h"

static bool comes_back(uint32_t c)
{
    char s[UTF8_MAX + 1] = {0};
    uint32_t got = 0;
    int n = (int)utf8_encode(c, s);
    bool ok = n == (c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
    ok = ok && utf8_read(s, UTF8_MAX, &got) == n && got == c;
    for (int have = 1; have < n; have++) ok = ok && utf8_read(s, (size_t)have, &got) == -have;
    memmove(s + 1, s, (size_t)n);
    s[0] = 'x';
    return ok && utf8_back(s, (size_t)n + 1) == 1;
}

START_TEST(every_code_point_comes_back)
{
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        bool surrogate = c >= 0xD800 && c < 0xE000;
        if (!surrogate && !comes_back(c)) ck_abort_msg("U+%04X", c);
    }
}
END_TEST

static const struct {
    const char *text;
    int got;
} broken[] = {
    {"\x80z", 0},          {"\xBFz", 0},
    {"\xC0\x80z", 0},      {"\xC1\xBFz", 0},
    {"\xC2z", -1},         {"\xDF\xC0z", -1},
    {"\xE0\x9F\xBFz", -1}, {"\xE0\xA0z", -2},
    {"\xED\xA0\x80z", -1}, {"\xED\xBF\xBFz", -1},
    {"\xEF\xBFz", -2},     {"\xF0\x8F\xBF\xBFz", -1},
    {"\xF0\x90\x80z", -3}, {"\xF4\x90\x80\x80z", -1},
    {"\xF4\x8F\xBFz", -3}, {"\xF5\x80\x80\x80z", 0},
    {"\xFEz", 0},          {"\xFFz", 0},
};

START_TEST(what_is_broken_is_told_with_its_beginning)
{
    const char *s = broken[_i].text;
    size_t used;
    uint32_t c = 'c';
    ck_assert_int_eq(utf8_read(s, strlen(s), &c), broken[_i].got);
    ck_assert_uint_eq(c, 'c');
    ck_assert_uint_eq(utf8_decode(s, strlen(s), &used), UTF8_BROKEN);
    ck_assert_uint_eq(used, broken[_i].got < 0 ? (size_t)-broken[_i].got : 1);
}
END_TEST

START_TEST(the_replacement_itself_is_a_character)
{
    size_t used;
    uint32_t c;
    ck_assert_int_eq(utf8_read("\xEF\xBF\xBD", 3, &c), 3);
    ck_assert_uint_eq(utf8_decode("\xEF\xBF\xBD", 3, &used), UTF8_BROKEN);
    ck_assert_uint_eq(used, 3);
}
END_TEST

START_TEST(back_stays_within_the_text)
{
    ck_assert_uint_eq(utf8_back("\x80\x80\x80", 3), 0);
    ck_assert_uint_eq(utf8_back("ab", 2), 1);
    ck_assert_uint_eq(utf8_back("a", 1), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("utf8");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, every_code_point_comes_back);
    tcase_add_loop_test(tc, what_is_broken_is_told_with_its_beginning, 0,
                        (int)(sizeof(broken) / sizeof(broken[0])));
    tcase_add_test(tc, the_replacement_itself_is_a_character);
    tcase_add_test(tc, back_stays_within_the_text);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
