/* test_cells.c -- no text can leave its field or disturb the screen; graphs and bars. */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "tests/run_suite.h"
#include "tui/top/cells.h"

static cells grid(int rows, int cols, bool utf8)
{
    cells c = {0};
    ck_assert(cells_resize(&c, rows, cols, utf8));
    return c;
}

static void row_is(const cells *c, int row, const char *want)
{
    char *got = cells_row(c, row);
    ck_assert_str_eq(got, want);
    free(got);
}

START_TEST(text_is_cut_to_its_field)
{
    cells c = grid(2, 20, true);
    ck_assert_int_eq(cells_text(&c, 0, 0, 8, STYLE_NORMAL, "short"), 5);
    ck_assert_int_eq(cells_text(&c, 0, 8, 5, STYLE_NORMAL, "exact"), 5);
    (void)cells_text(&c, 0, 14, 4, STYLE_NORMAL, "longer than that");
    row_is(&c, 0, "short   exact lon~");
    cells_right(&c, 1, 0, 6, STYLE_NORMAL, "42");
    (void)cells_text(&c, 1, 17, -1, STYLE_NORMAL, "beyond the edge");
    row_is(&c, 1, "    42           be~");
    (void)cells_text(&c, 7, 0, 5, STYLE_NORMAL, "no row"); /* nothing is written outside */
    (void)cells_text(&c, 0, 25, 5, STYLE_NORMAL, "no column");
    cells_free(&c);
}
END_TEST

START_TEST(hostile_text_is_harmless)
{
    static const char *const all[][2] = {
        {"\x1b[2J\x1b]0;x\x07", "?[2J?]0;x?"},
        {"a\r\nb\tc\x7f", "a??b?c?"},
        {"e\xcc\x81\xcc\x82\xcc\x83x", "e???x"}, /* combining */
        {"\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d!", "???"
                                              "?!"}, /* right-to-left */
        {"a\xe2\x80\xae"
         "b",
         "a?b"}, /* override of the direction */
        {"a\xe2\x80\x8b"
         "b",
         "a?b"},                                          /* zero width */
        {"\xf0\x9f\x98\x80!", "?!"},                      /* beyond the plane, emoji */
        {"\xc3\x28\xff\xfe\x80", "?(???"},                /* broken */
        {"\xc0\xaf\xe0\x80\xaf\xed\xa0\x80", "????????"}, /* overlong, surrogate */
        {"\xc2\x9b"
         "31m\xc2\xad",
         "?31m?"}, /* C1, soft hyphen */
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
        {"\xe5\x90\x8d\xe5\x89\x8d", "\xe5\x90\x8d\xe5\x89\x8d"}, /* wide, kept */
    };
    cells c = grid(1, 40, true);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        ck_assert(cells_resize(&c, 1, 40, true));
        (void)cells_text(&c, 0, 0, 40, STYLE_NORMAL, all[i][0]);
        row_is(&c, 0, all[i][1]);
    }
    cells_free(&c);
}
END_TEST

START_TEST(wide_characters_take_two_cells_or_none)
{
    cells c = grid(1, 10, true);
    ck_assert_int_eq(cells_text(&c, 0, 0, 4, STYLE_NORMAL, "\xe5\x90\x8d\xe5\x89\x8d"), 4);
    ck_assert_uint_eq(c.at[1].ch, 0);
    (void)cells_text(&c, 0, 1, 1, STYLE_NORMAL, "x"); /* over a half: the other half goes */
    row_is(&c, 0, " x\xe5\x89\x8d");
    (void)cells_text(&c, 0, 5, 2, STYLE_NORMAL, "\xe5\x90\x8d\xe5\x89\x8d\xe5\x90\x8d");
    row_is(&c, 0, " x\xe5\x89\x8d  ~");        /* it does not fit beside the mark */
    ck_assert(cells_resize(&c, 1, 10, false)); /* ASCII */
    (void)cells_text(&c, 0, 0, 10, STYLE_NORMAL, "\xe5\x90\x8d\xc3\xbc-");
    row_is(&c, 0,
           "?"
           "?-");
    cells_free(&c);
}
END_TEST

/* Any bytes at any place: the grid stays whole, and every character has its width. */
START_TEST(random_bytes_keep_the_grid_whole)
{
    cells c = grid(6, 30, true);
    srand((unsigned)_i);
    for (int k = 0; k < 20000; k++) {
        char text[24];
        size_t n = (size_t)(rand() % 23);
        for (size_t i = 0; i < n; i++) text[i] = (char)(rand() % 255 + 1);
        if (k % 3 == 0) memcpy(text, "\xe5\x90\x8d\xe5\x89\x8d", n < 6 ? 0 : 6);
        text[n] = 0;
        (void)cells_text(&c, rand() % 6, rand() % 30, rand() % 12, STYLE_NORMAL, text);
    }
    for (int y = 0; y < 6; y++) {
        for (int x = 0; x < 30; x++) {
            uint32_t ch = c.at[y * 30 + x].ch;
            bool wide = ch >= 0x3041;
            ck_assert(ch == 0 || ch >= 0x20);
            ck_assert(ch < 0x7f || ch > 0xa0);
            if (wide) ck_assert(x < 29 && c.at[y * 30 + x + 1].ch == 0);
            if (ch == 0) ck_assert(x > 0 && c.at[y * 30 + x - 1].ch >= 0x3041);
        }
    }
    cells_free(&c);
}
END_TEST

START_TEST(graphs_and_bars)
{
    static const double v[] = {0, 1, 2, 3, 4, 4};
    cells c = grid(3, 10, true);
    cells_graph(&c, 0, 0, 1, 4, STYLE_GOOD, v, 6, 4); /* six samples: three columns, at the right */
    row_is(&c, 0, " \xe2\xa2\x80\xe2\xa3\xb4\xe2\xa3\xbf");
    cells_graph(&c, 1, 0, 2, 1, STYLE_GOOD, v, 2, 1);
    row_is(&c, 1, "\xe2\xa2\xb8");
    row_is(&c, 2, "\xe2\xa2\xb8");
    c.blocks = true; /* no braille: what every console's font has */
    ck_assert_int_eq(cells_per(&c), 1);
    cells_graph(&c, 0, 0, 1, 6, STYLE_GOOD, v, 6, 4);
    row_is(&c, 0, " _\xe2\x96\x84\xe2\x96\x84\xe2\x96\x88\xe2\x96\x88");
    c.blocks = false;
    ck_assert_int_eq(cells_per(&c), 2);
    ck_assert(cells_resize(&c, 3, 10, false));
    ck_assert_int_eq(cells_per(&c), 1);
    cells_graph(&c, 0, 0, 1, 6, STYLE_GOOD, v, 6, 4);
    row_is(&c, 0, " .:|##");
    cells_bar(&c, 1, 0, 10, 0.5, STYLE_GOOD, 0.25, STYLE_ACCENT);
    row_is(&c, 1, "[||||::  ]");
    cells_bar(&c, 2, 0, 10, 7, STYLE_GOOD, -1, STYLE_ACCENT); /* nonsense stays inside */
    row_is(&c, 2, "[||||||||]");
    cells_free(&c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cells");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, text_is_cut_to_its_field);
    tcase_add_test(tc, hostile_text_is_harmless);
    tcase_add_test(tc, wide_characters_take_two_cells_or_none);
    tcase_add_loop_test(tc, random_bytes_keep_the_grid_whole, 0, 5);
    tcase_add_test(tc, graphs_and_bars);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
