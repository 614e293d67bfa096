/* test_text.c -- strangers' texts on a terminal: what is let through, what is
 * cut, whatever the pieces. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "tests/run_suite.h"
#include "tui/text.h"

static const struct {
    const char *in, *out;
    int columns, width;
} rows[] = {
    {"plain", "plain", 0, 5},
    {"a\x1b[31mb", "a?[31mb", 0, 7},
    {"a\r\n\tb\x7f", "a???b?", 0, 6},
    {"\xc2\x9b"
     "2J",
     "?2J", 0, 3}, /* C1 */
    {"\xe2\x80\xae"
     "exe",
     "?exe", 0, 4},                             /* right-to-left override */
    {"\xe2\x80\x8bx\xef\xbb\xbf", "?x?", 0, 3}, /* zero width */
    {"\xff\xc3(\xe2\x82",
     "??"
     "(??",
     0, 5},                                            /* broken */
    {"\xc0\xaf\xed\xa0\x80\xf5\x80", "???????", 0, 7}, /* overlong, surrogate, too high */
    {"h\xc3\xa9", "h\xc3\xa9", 0, 2},
    {"\xe6\xbc\xa2\xe5\xad\x97", "\xe6\xbc\xa2\xe5\xad\x97", 0, 4},
    {"abcdef", "abcdef", 6, 6},
    {"abcdef", "abcd\xe2\x80\xa6", 5, 5},
    {"\xe6\xbc\xa2\xe5\xad\x97", "\xe6\xbc\xa2\xe2\x80\xa6", 3, 3},
    {"\xe6\xbc\xa2\xe5\xad\x97", "\xe2\x80\xa6", 2, 1}, /* half a letter is none */
    {"", "", 5, 0},
};

START_TEST(clean)
{
    char out[256];
    int columns = rows[_i].columns;
    ck_assert_int_eq(text_clean(rows[_i].in, out, sizeof(out), columns), rows[_i].width);
    ck_assert_str_eq(out, rows[_i].out);
    if (columns == 0) ck_assert_int_eq(text_width(rows[_i].in), rows[_i].width);
}
END_TEST

/* An answer in pieces of every size is the same, and no piece leaves a broken letter. */
START_TEST(pieces)
{
    static const char in[] = "h\xc3\xa9 \xe6\xbc\xa2\n\t\x1b]0;x\x07 \xf0\x9f\x99\x82 \xff end";
    static const char want[] = "h\xc3\xa9 \xe6\xbc\xa2\n\t?]0;x? \xf0\x9f\x99\x82 ? end";
    for (size_t piece = 1; piece <= sizeof(in); piece++) {
        char *text = NULL;
        size_t n = 0;
        text_carry carry = {.n = 0};
        FILE *f = open_memstream(&text, &n);
        for (size_t at = 0; at < sizeof(in) - 1; at += piece) {
            size_t len = sizeof(in) - 1 - at < piece ? sizeof(in) - 1 - at : piece;
            text_print(f, in + at, len, &carry);
        }
        (void)fclose(f);
        ck_assert_str_eq(text, want);
        free(text);
    }
}
END_TEST

START_TEST(sizes)
{
    char out[32];
    static const struct {
        double v;
        const char *bytes, *span;
    } r[] = {
        {0, "0 B", "0s"},           {999, "999 B", "16m39s"},    {1024, "1.0 KiB", "17m04s"},
        {5, "5 B", "5s"},           {1536, "1.5 KiB", "25m36s"}, {1048576, "1.0 MiB", "12d03h"},
        {7200, "7.0 KiB", "2h00m"}, {90, "90 B", "1m30s"}};
    for (size_t i = 0; i < sizeof(r) / sizeof(r[0]); i++) {
        text_bytes(r[i].v, out, sizeof(out));
        ck_assert_str_eq(out, r[i].bytes);
        text_span((int64_t)r[i].v, out, sizeof(out));
        ck_assert_str_eq(out, r[i].span);
    }
}
END_TEST

int main(void)
{
    if (!setlocale(LC_CTYPE, "C.UTF-8")) return 77;
    Suite *s = suite_create("text");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, clean, 0, (int)(sizeof(rows) / sizeof(rows[0])));
    tcase_add_test(tc, pieces);
    tcase_add_test(tc, sizes);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
