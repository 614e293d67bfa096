/* test_view.c -- answers to data, data to rows, keys to screens and to
 * calls; all without a terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "tests/run_suite.h"
#include "tui/top/view.h"

static view v;
static cells c;

/* Of the class: its name, and what stands behind its counts. */
static const char *class_name = "standard", *class_more = "";

/* An answer with the given tables and the time `at`. */
static const char *answer(const char *head, int at, const char *tables)
{
    static char text[65536];
    snprintf(
        text, sizeof(text),
        "{\"object\":\"stats\",\"cursor\":\"1-%d\",%s,\"more\":false,"
        "\"server\":{\"version\":\"1\",\"model\":\"base\",\"access\":\"admin\",\"healthy\":true,"
        "\"ready\":true,\"at_us\":%d000000,\"now_us\":1700000000000000,\"max_seqs\":64},"
        "\"totals\":{\"made_tokens\":%d00,\"steps\":%d},\"rates\":{},"
        "\"engine\":{\"running\":3,\"pages\":100,\"pages_used\":25,\"kv_bytes\":1048576,\"adapter_"
        "bytes\":524288},"
        "\"classes\":[{\"name\":\"%s\",\"ttft_target_ms\":500,\"ttft_p50_ms\":12.5,"
        "\"missed\":3,\"missed_swap\":2,\"missed_machine\":1,%s"
        "\"attained\":1,\"ttft_hist\":[0,3,1]}],\"hist_bounds_us\":[100,1000],%s,\"gone\":{}}",
        at, head, at, at, at, class_name, class_more, tables);
    return text;
}

static const char three_tenants[] = "\"tenants\":["
                                    "{\"id\":\"1\",\"name\":\"acme\",\"state\":\"active\",\"day_"
                                    "tokens\":50,\"prompt_tokens\":10,\"adapters\":2},"
                                    "{\"id\":\"2\",\"name\":\"globex\",\"state\":\"active\",\"day_"
                                    "tokens\":500,\"prompt_tokens\":20},"
                                    "{\"id\":\"3\",\"name\":\"initech\",\"state\":\"disabled\","
                                    "\"day_tokens\":5,\"prompt_tokens\":0}]";

static const char adapters[] =
    "\"adapters\":["
    "{\"id\":\"11\",\"tenant\":\"acme\",\"name\":\"pirate\",\"tier\":\"host\",\"pinned\":true,"
    "\"hits\":5},"
    "{\"id\":\"12\",\"tenant\":\"acme\",\"name\":\"a/b\\u001b[31m\",\"tier\":\"disk\"},"
    "{\"id\":\"13\",\"tenant\":\"globex\",\"name\":\"shout\",\"tier\":\"host\",\"hits\":9}]";

static void start(int n_servers)
{
    static const char *const names[] = {"one", "two"};
    ck_assert(view_init(&v, names, n_servers));
    ck_assert(cells_resize(&c, 24, 80, true));
}

static void stop(void)
{
    view_clear(&v);
    cells_free(&c);
}

static void feed_it(const char *text)
{
    err e;
    ck_assert_msg(topdata_apply_text(view_data(&v), text, strlen(text), &e) == ERR_NONE, "%s",
                  e.msg);
    v.server[v.current].up = true;
    v.server[v.current].answered_us = 1000000;
}

static void press(const char *keys)
{
    for (; *keys; keys++) view_key(&v, *keys, 1000000);
}

static void draw(void)
{
    view_draw(&v, &c, 1000000, 1700000000000000);
}

static bool shows(const char *needle)
{
    bool found = false;
    draw();
    for (int y = 0; y < c.rows && !found; y++) {
        char *row = cells_row(&c, y);
        found = strstr(row, needle) != NULL;
        free(row);
    }
    return found;
}

/* The first text of row y of the table (0: the first below the heading). */
static void row_begins(int y, const char *want)
{
    draw();
    char *row = cells_row(&c, view_heading(&v) + 1 + y);
    ck_assert_msg(strncmp(row, want, strlen(want)) == 0, "row %d is '%s'", y, row);
    free(row);
}

START_TEST(deltas_add_change_and_remove)
{
    start(1);
    feed_it(answer("\"reset\":true", 1, three_tenants));
    topdata *d = view_data(&v);
    ck_assert_uint_eq(d->table[TABLE_TENANTS].n, 3);
    ck_assert_str_eq(d->cursor, "1-1");
    feed_it(answer("\"reset\":false", 3,
                   "\"tenants\":[{\"id\":\"1\",\"name\":\"acme\",\"prompt_tokens\":210}]"));
    int64_t i = rowset_find(&d->table[TABLE_TENANTS], 1);
    ck_assert_int_ge(i, 0);
    ck_assert(d->table[TABLE_TENANTS].side[i].rate == 100); /* 200 tokens in 2 s */
    ck_assert(d->now.output_tokens == 100);
    char gone[4000];
    snprintf(gone, sizeof(gone), "%s", answer("\"reset\":false", 4, "\"tenants\":[]"));
    (void)strcpy(strstr(gone, "\"gone\":{}"), "\"gone\":{\"tenants\":[\"2\"]}}");
    feed_it(gone);
    ck_assert_uint_eq(d->table[TABLE_TENANTS].n, 2);
    ck_assert_int_lt(rowset_find(&d->table[TABLE_TENANTS], 2), 0);
    ck_assert_int_ge(rowset_find(&d->table[TABLE_TENANTS], 3), 0);
    i = rowset_find(&d->table[TABLE_TENANTS], 1);
    ck_assert(d->table[TABLE_TENANTS].side[i].rate == 0);
    feed_it(answer("\"reset\":true", 5, "\"tenants\":[]"));
    ck_assert_uint_eq(d->table[TABLE_TENANTS].n, 0);
    stop();
}
END_TEST

/* Thousands of rows put and dropped in any order: the table of ids stays right. */
START_TEST(rows_are_found_after_many_changes)
{
    start(1);
    static bool there[3001];
    char text[256], whole[1024];
    memset(there, 0, sizeof(there));
    srand((unsigned)_i);
    const rowset *r = &view_data(&v)->table[TABLE_ADAPTERS];
    for (int k = 0; k < 4000; k++) {
        int id = rand() % 300 + 1;
        bool add = rand() % 2;
        snprintf(text, sizeof(text), "\"adapters\":[{\"id\":\"%d\",\"hits\":%d}]", id, id);
        snprintf(whole, sizeof(whole), "%s",
                 answer("\"reset\":false", k + 1, add ? text : "\"adapters\":[]"));
        snprintf(text, sizeof(text), "\"gone\":{\"adapters\":[\"%d\"]}}", id);
        if (!add) (void)strcpy(strstr(whole, "\"gone\":{}"), text);
        feed_it(whole);
        there[id] = add;
    }
    size_t n = 0;
    for (int id = 1; id <= 300; id++) {
        int64_t i = rowset_find(r, (uint64_t)id);
        ck_assert_int_eq(i >= 0, there[id]);
        if (i >= 0) ck_assert_int_eq(((proto_adapter *)rowset_row(r, (size_t)i))->hits, id);
        n += there[id];
    }
    ck_assert_uint_eq(r->n, n);
    stop();
}
END_TEST

START_TEST(a_bad_answer_changes_nothing)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"object\":\"list\"}",
        "null",
        "{\"object\":\"stats\",\"cursor\":7}",
        "{\"object\":\"stats\",\"cursor\":\"1\",\"reset\":true,\"server\":[]}",
    };
    static const char *const rows[] = {
        "\"tenants\":{}",
        "\"tenants\":[7]",
        "\"tenants\":[{\"name\":\"x\"}]",
        "\"tenants\":[{\"id\":5}]",
        "\"tenants\":[{\"id\":\"0x5\"}]",
        "\"tenants\":[{\"id\":\"5\",\"name\":7}]",
        "\"tenants\":[{\"id\":\"5\",\"running\":\"7\"}]",
        "\"adapters\":[{\"id\":\"5\",\"pinned\":1}]",
        "\"tenants\":[{\"id\":\"5\",\"running\":1e300}]",
    };
    start(1);
    feed_it(answer("\"reset\":true", 1, three_tenants));
    uint64_t version = view_data(&v)->version;
    err e;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_ne(topdata_apply_text(view_data(&v), bad[i], strlen(bad[i]), &e), ERR_NONE);
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *text = answer("\"reset\":true", 2, rows[i]);
        ck_assert_msg(topdata_apply_text(view_data(&v), text, strlen(text), &e) == ERR_CORRUPT,
                      "%s", rows[i]);
    }
    ck_assert_uint_eq(view_data(&v)->version, version);
    ck_assert_uint_eq(view_data(&v)->table[TABLE_TENANTS].n, 3);
    stop();
}
END_TEST

START_TEST(every_screen_shows_what_it_is_for)
{
    start(1);
    char both[8192];
    snprintf(both, sizeof(both),
             "%s,%s,\"requests\":[{\"id\":\"77\",\"tenant\":\"acme\",\"adapter\":\"pirate@1\","
             "\"class_name\":\"standard\",\"state\":\"decode\",\"arrived_us\":1699999999000000,"
             "\"due_us\":1700000000050000,\"output\":7,\"max_tokens\":48}],"
             "\"events\":[{\"id\":\"1\",\"time_us\":1700000000000000,\"kind\":\"key.revoke\","
             "\"level\":\"audit\",\"object\":\"abc\"}]",
             three_tenants, adapters);
    feed_it(answer("\"reset\":true", 1, both));
    ck_assert(shows("Tokens out/s") && shows("standard") && shows("3 of 64") && shows("25%"));
    ck_assert(shows("12ms")); /* TTFT p50 */
    press("2");
    ck_assert(shows("globex") && shows("disabled"));
    press("3");
    ck_assert(shows("pirate") && shows("host*"));
    ck_assert(shows("a/b?[31m")); /* the escape is harmless */
    press("4");
    ck_assert(shows("77 ") && shows("1.0s") && shows("+50ms") && shows("decode"));
    press("5");
    ck_assert(shows("Step time") && shows("Cost model") && shows("100 pages: 25 held"));
    ck_assert(shows("K pages 256 KiB") && shows("A adapters 512 KiB") && shows(". free 256 KiB"));
    ck_assert(shows("KKKKKAAAAA") && shows("AAAAA.....") && !shows("Kc"));
    press("6v");
    ck_assert(shows("TTFT") && shows("^ target"));
    ck_assert(shows("missed by swap 2, machine 1"));
    class_more = "\"verdict\":\"since 10:01:20\",";
    feed_it(answer("\"reset\":true", 1, both));
    ck_assert(shows("broken since 10:01:20") && !shows("missed by swap"));
    press("1");
    ck_assert(shows("standard broken since 10:01:20"));
    class_more =
        "\"verdict\":\"since 10:01:20 UTC: 12 of 181 missed (machine:12); first tokens 815 ms "
        "of 50 ms; tokens 620.8 ms of 400 ms\",";
    feed_it(answer("\"reset\":true", 1, both)); /* no word of it is lost at 80 */
    ck_assert(shows("181 missed (machine:12)") &&
              shows("    first tokens 815 ms of 50 ms; tokens"));
    ck_assert(shows("620.8 ms of 400 ms"));
    class_name = "a_class_of_letters"; /* where there is room */
    class_more = "";
    feed_it(answer("\"reset\":true", 1, both));
    ck_assert(!shows("a_class_of_letters") && shows(" SLO% GOOD/S"));
    ck_assert(cells_resize(&c, 24, 100, true));
    ck_assert(shows("a_class_of_letters"));
    ck_assert(cells_resize(&c, 24, 80, true));
    class_name = "standard";
    feed_it(answer("\"reset\":true", 1, both));
    press("6");
    press("7");
    ck_assert(shows("key.revoke"));
    press("\t");
    ck_assert_int_eq(v.screen, SCREEN_LIMITS);
    press("\t");
    ck_assert_int_eq(v.screen, SCREEN_OVERVIEW);
    for (int cols = 5; cols < 300; cols += 7) { /* any size */
        for (int rows = 1; rows < 70; rows += 9) {
            ck_assert(cells_resize(&c, rows, cols, cols % 2));
            for (int s = 0; s < SCREENS - 1; s++) {
                v.screen = (screen)s;
                draw();
                press("H");
                draw();
                press("x\n");
                draw();
                press("x");
            }
        }
    }
    stop();
}
END_TEST

/* By what the column is for, not by its place: one may be put in front of it. */
START_TEST(tables_begin_sorted_by_what_matters)
{
    static const char *const title[TABLES] = {"TOK/S", "USED", "AGE", "TIME"};
    start(1);
    for (int t = 0; t < TABLES; t++) {
        int n, n_first = 0;
        const view_column *col = view_columns(t, &n);
        for (int i = 0; i < n; i++) {
            n_first += col[i].first;
            ck_assert_int_eq(view_column_of(t, col[i].title), i); /* no title twice */
        }
        ck_assert_int_eq(n_first, 1);
        ck_assert_str_eq(col[view_default_sort(t)].title, title[t]);
        ck_assert_int_eq(v.table[t].sort, view_default_sort(t));
        ck_assert(v.table[t].descending);
        ck_assert_int_eq(view_column_of(t, "NONE"), -1);
    }
    stop();
}
END_TEST

START_TEST(tables_sort_filter_search_and_group)
{
    char both[4096];
    start(1);
    snprintf(both, sizeof(both), "%s,%s", three_tenants, adapters);
    feed_it(answer("\"reset\":true", 1, both));
    press("2>>>"); /* from TOK/S to TODAY */
    ck_assert_int_eq(v.table[TABLE_TENANTS].sort, view_column_of(TABLE_TENANTS, "TODAY"));
    row_begins(0, "globex");
    press("I");
    row_begins(0, "initech");
    press("\\glo\n");
    row_begins(0, "globex");
    ck_assert_uint_eq(v.table[TABLE_TENANTS].n, 1);
    view_key(&v, '\\', 1000000);
    view_key(&v, KEYS_ESC, 1000000);
    ck_assert_uint_eq((draw(), v.table[TABLE_TENANTS].n), 3);
    press("/acm\n");
    ck_assert_uint_eq(v.table[TABLE_TENANTS].selected_id, 1);
    feed_it(answer("\"reset\":false", 2,
                   "\"tenants\":[{\"id\":\"1\",\"name\":\"acme\",\"day_tokens\":9000}]"));
    draw(); /* it moves to the end, and the choice with it */
    ck_assert_uint_eq(v.table[TABLE_TENANTS].selected, 2);
    press("3t");
    row_begins(0, "\xe2\x96\xbc acme (2)");
    ck_assert(shows("globex (1)"));
    press("\n"); /* of a heading: folded, and back */
    row_begins(0, "+ acme (2)");
    row_begins(1, "\xe2\x96\xbc globex (1)");
    press("\n");
    row_begins(0, "\xe2\x96\xbc acme (2)");
    ck_assert_int_eq(v.mode, MODE_NORMAL);
    press("j\n");
    ck_assert(shows("Details"));
    press("x");
    view_mouse(&v, 1, 16, 1, 1000000); /* the second tab */
    ck_assert_int_eq(v.screen, SCREEN_TENANTS);
    view_mouse(&v, 2, 0, 1, 1000000); /* the heading of the first column */
    ck_assert_int_eq(v.table[TABLE_TENANTS].sort, 0);
    row_begins(0, "acme");
    view_mouse(&v, 5, 0, 1, 1000000);
    ck_assert_uint_eq(v.table[TABLE_TENANTS].selected, 2);
    stop();
}
END_TEST

/* No column is lost for good: sideways, and by choice. */
START_TEST(columns_scroll_and_can_be_taken_out)
{
    char both[4096];
    start(1);
    snprintf(both, sizeof(both), "%s,%s", three_tenants, adapters);
    feed_it(answer("\"reset\":true", 1, both));
    press("3");
    ck_assert(shows("TIER") && !shows("BACK"));
    for (int i = 0; i < 40 && !shows("BACK"); i++) view_key(&v, KEYS_RIGHT, 1000000);
    ck_assert(shows("BACK") && shows("ADAPTER") && shows("shout") && !shows("TIER"));
    int shift = v.table[TABLE_ADAPTERS].shift;
    view_key(&v, KEYS_RIGHT, 1000000); /* no further than there is something */
    ck_assert_int_eq(v.table[TABLE_ADAPTERS].shift, shift);
    view_layout l;
    view_lay_out(&v, TABLE_ADAPTERS, c.cols, &l);
    view_mouse(&v, view_heading(&v), l.at[1].x + 1, 1, 1000000); /* what stands there now */
    ck_assert_int_eq(v.table[TABLE_ADAPTERS].sort, l.at[1].column);
    for (int i = 0; i < 40; i++) view_key(&v, KEYS_LEFT, 1000000);
    ck_assert(shows("TIER") && v.screen == SCREEN_ADAPTERS);
    press("C"); /* TENANT is the first that can go */
    ck_assert(shows("[x] TENANT"));
    press("\n");
    ck_assert(shows("[ ] TENANT"));
    press("\033");
    draw();
    char *row = cells_row(&c, view_heading(&v));
    ck_assert_msg(!strstr(row, "TENANT") && strstr(row, "TIER"), "%s", row);
    free(row);
    press("Ca\033");
    ck_assert_uint_eq(v.table[TABLE_ADAPTERS].hidden, 0);
    view_key(&v, KEYS_RIGHT, 1000000);
    press("1");
    view_key(&v, KEYS_RIGHT, 1000000); /* where there is no table, the next screen */
    ck_assert_int_eq(v.screen, SCREEN_TENANTS);
    stop();
}
END_TEST

START_TEST(a_group_has_sums)
{
    start(1);
    feed_it(answer("\"reset\":true", 1,
                   "\"adapters\":[{\"id\":\"1\",\"tenant\":\"acme\",\"name\":\"x\",\"hits\":"
                   "120,\"memory_bytes\":1048576},{\"id\":\"2\",\"tenant\":\"acme\",\"name\":"
                   "\"y\",\"hits\":3,\"memory_bytes\":1048576},{\"id\":\"3\",\"tenant\":"
                   "\"globex\",\"name\":\"z\",\"hits\":7000}]"));
    press("3t");
    draw();
    char *row = cells_row(&c, view_heading(&v) + 1);
    ck_assert_msg(strstr(row, "acme (2)") && strstr(row, "2.0 MiB") && strstr(row, " 123"), "%s",
                  row);
    free(row);
    press("\n"); /* folded, it has them still */
    draw();
    row = cells_row(&c, view_heading(&v) + 1);
    ck_assert_msg(strstr(row, "+ acme (2)") && strstr(row, " 123"), "%s", row);
    free(row);
    ck_assert_uint_eq(v.table[TABLE_ADAPTERS].n, 3);
    stop();
}
END_TEST

START_TEST(a_command_goes_to_its_screen)
{
    char both[4096];
    start(1);
    snprintf(both, sizeof(both), "%s,%s", three_tenants, adapters);
    feed_it(answer("\"reset\":true", 1, both));
    press(":ad shout\n");
    ck_assert_int_eq(v.screen, SCREEN_ADAPTERS);
    ck_assert(shows("shout") && !shows("pirate"));
    press(":nonsense\n");
    ck_assert_int_eq(v.screen, SCREEN_ADAPTERS);
    ck_assert(shows("':nonsense' is no screen"));
    press(":\033"); /* nothing */
    press(":limits\n");
    ck_assert_int_eq(v.screen, SCREEN_LIMITS);
    ck_assert(!v.quit);
    press(":q\n");
    ck_assert(v.quit);
    stop();
}
END_TEST

static const char ended[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"5\",\"request_id\":\"req_5\",\"tenant\":\"acme\","
    "\"model\":\"pirate@1\",\"class\":\"standard\",\"status\":200,\"missed\":\"queue\","
    "\"ended\":1699999990,\"duration_ms\":4200,\"ttft_ms\":4000,\"queue_ms\":3900.5,"
    "\"adapter_ms\":0,\"prompt_ms\":99.5,\"decode_ms\":150,\"rest_ms\":50},"
    "{\"id\":\"6\",\"tenant\":\"globex\",\"model\":\"base\",\"class\":\"batch\",\"missed\":null,"
    "\"ended\":1699999995,\"duration_ms\":90,\"ttft_ms\":null,\"decode_ms\":80}]}";

/* They are asked for where they are looked at, and come back with where their time went. */
START_TEST(what_has_ended_is_shown_with_its_phases)
{
    char both[4096];
    err e;
    start(1);
    snprintf(both, sizeof(both), "%s,%s", three_tenants, adapters);
    feed_it(answer("\"reset\":true", 1, both));
    view_ask_ended(&v, 1000000);
    ck_assert_int_eq(v.n_action, 0);
    press("4e");
    ck_assert_int_eq(v.screen, SCREEN_ENDED);
    view_ask_ended(&v, 1000000);
    view_ask_ended(&v, 2000000); /* not so soon again */
    ck_assert_int_eq(v.n_action, 1);
    ck_assert_int_eq(v.action[0].answer, ANSWER_ENDED);
    ck_assert_str_eq(v.action[0].path, "/admin/v1/requests?state=ended&limit=100");
    ck_assert(topdata_apply_ended(view_data(&v), ended, strlen(ended), &e) == ERR_NONE);
    row_begins(0, "     5s    90ms -");
    ck_assert(shows("3900ms") && shows("queue") && shows("acme"));
    press(">"); /* by the time that they took: the slowest of an hour */
    row_begins(0, "    10s  4200ms queue");
    view_ask_ended(&v, 2000000);
    ck_assert_int_eq(v.n_action, 2);
    ck_assert_ptr_nonnull(strstr(v.action[1].path, "&slow=1"));
    press("\n"); /* down to its adapter */
    ck_assert_int_eq(v.screen, SCREEN_ADAPTERS);
    ck_assert_uint_eq(v.table[TABLE_ADAPTERS].selected_id, 11);
    press("\033");
    ck_assert_int_eq(v.screen, SCREEN_ENDED);
    press("e");
    ck_assert_int_eq(v.screen, SCREEN_REQUESTS);
    static const char *const bad[] = {"",
                                      "{}",
                                      "{\"data\":{}}",
                                      "{\"data\":[7]}",
                                      "{\"data\":[{\"id\":\"x\"}]}",
                                      "{\"data\":[{\"id\":\"5\",\"queue_ms\":\"1\"}]}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert(topdata_apply_ended(view_data(&v), bad[i], strlen(bad[i]), &e) != ERR_NONE);
    ck_assert_uint_eq(view_data(&v)->ended.n, 2);
    stop();
}
END_TEST

static style style_at(int row, int col)
{
    draw();
    return (style)c.at[row * c.cols + col].style;
}

/* Class, tenants, requests, adapter; and each step back to where it was begun. */
START_TEST(enter_goes_down_and_escape_comes_back)
{
    char all[8192];
    start(1);
    snprintf(all, sizeof(all),
             "%s,%s,\"requests\":[{\"id\":\"77\",\"tenant\":\"globex\",\"adapter\":\"shout@1\","
             "\"class_name\":\"standard\"},{\"id\":\"78\",\"tenant\":\"acme\","
             "\"class_name\":\"batch\"},{\"id\":\"79\",\"tenant\":\"globex\","
             "\"class_name\":\"batch\"}]",
             three_tenants, adapters);
    feed_it(answer("\"reset\":true", 1, all));
    draw();
    press("\n"); /* the first class */
    ck_assert_int_eq(v.screen, SCREEN_TENANTS);
    row_begins(0, "globex");
    ck_assert_uint_eq(v.table[TABLE_TENANTS].n, 1);
    ck_assert(shows("of standard   (Esc: back)"));
    press("\n");
    ck_assert_int_eq(v.screen, SCREEN_REQUESTS);
    row_begins(0, "77");
    ck_assert_uint_eq(v.table[TABLE_REQUESTS].n, 1);
    press("\n");
    ck_assert_int_eq(v.screen, SCREEN_ADAPTERS);
    ck_assert(shows("of globex") && !shows("pirate"));
    ck_assert_uint_eq(v.table[TABLE_ADAPTERS].selected_id, 13);
    press("\n");
    ck_assert(shows("Details"));
    press("\033");
    ck_assert_int_eq(v.mode, MODE_NORMAL);
    press("\033");
    ck_assert_int_eq(v.screen, SCREEN_REQUESTS);
    press("\033");
    ck_assert_int_eq(v.screen, SCREEN_TENANTS);
    ck_assert_uint_eq((draw(), v.table[TABLE_TENANTS].n), 1);
    press("\033");
    ck_assert_int_eq(v.screen, SCREEN_OVERVIEW);
    press("\0333"); /* nothing is left of it */
    ck_assert(shows("pirate"));
    press("2\n1"); /* another screen by its number: all of it */
    press("4");
    ck_assert_uint_eq((draw(), v.table[TABLE_REQUESTS].n), 3);
    for (int i = 0; i < 2 * VIEW_BACK_MAX; i++) press("2\n"); /* no end of it */
    stop();
}
END_TEST

START_TEST(limits_name_who_is_at_one)
{
    static const char tenants[] =
        "\"tenants\":[{\"id\":\"1\",\"name\":\"acme\",\"max_concurrent\":4,\"running\":4},"
        "{\"id\":\"2\",\"name\":\"globex\",\"tokens_per_day\":1000,\"day_tokens\":910},"
        "{\"id\":\"3\",\"name\":\"initech\",\"requests_per_minute\":60,\"minute_requests\":40,"
        "\"limited\":%d}]";
    char text[1024];
    start(1);
    snprintf(text, sizeof(text), tenants, 0);
    feed_it(answer("\"reset\":true", 1, text));
    press("8");
    ck_assert(shows("at a limit now: acme (at once)") && shows("4/4") && shows("910/1000"));
    ck_assert(!shows("initech ("));
    row_begins(0, "acme");
    snprintf(text, sizeof(text), tenants, 30);
    feed_it(answer("\"reset\":false", 2, text));
    ck_assert(shows("initech (requests/min)") && shows("60 refusals a minute"));
    row_begins(0, "initech");
    feed_it(answer("\"reset\":false", 602, "\"tenants\":[]"));
    ck_assert(shows("0 refusals a minute") && !shows("initech ("));
    stop();
}
END_TEST

START_TEST(the_thrasher_is_named)
{
    static const char rows[] =
        "\"adapters\":[{\"id\":\"11\",\"tenant\":\"acme\",\"name\":\"pirate\",\"loads\":%d,"
        "\"evictions\":%d},{\"id\":\"12\",\"tenant\":\"acme\",\"name\":\"json\",\"loads\":%d}]";
    char text[1024];
    start(1);
    snprintf(text, sizeof(text), rows, 5, 4, 900);
    feed_it(answer("\"reset\":true", 1, text));
    press("3");
    ck_assert(shows("0.0 loads/s") && !shows("most:"));
    snprintf(text, sizeof(text), rows, 25, 19, 901);
    feed_it(answer("\"reset\":false", 2, text));
    ck_assert(shows("most: acme/pirate, 40/min") && !shows("Thrashing"));
    ck_assert(cells_resize(&c, 24, 120, true));
    ck_assert(shows("LOAD/M EVIC/M") && shows("    40     30")); /* loads, evictions a minute */
    stop();
}
END_TEST

START_TEST(what_came_too_late_is_red)
{
    start(1);
    class_more = "\"tpot_target_ms\":1,";
    feed_it(answer("\"reset\":true", 1, three_tenants));
    press("6v");
    draw();
    int y = 0, red = 0;
    for (; y < c.rows; y++) {
        char *row = cells_row(&c, y);
        bool found = strncmp(row, "TTFT ", 5) == 0;
        free(row);
        if (found) break;
    }
    ck_assert_int_lt(y, c.rows);
    for (int x = 5; x < 8; x++) red += style_at(y, x) == STYLE_BAD;
    ck_assert_int_eq(red, 0); /* its target is 500 ms: no bound is beyond it */
    class_more = "";
    stop();
}
END_TEST

static err_code take_past(const char *text)
{
    err e;
    return topdata_apply_past(view_data(&v), text, strlen(text), &e);
}

#define SPAN(name, start, ttft, more)                                                   \
    "{\"name\":\"" name "\",\"start\":" start ",\"seconds\":10,\"met\":1,\"missed\":0," \
    "\"ttft_p99_ms\":" ttft ",\"tpot_p99_ms\":null" more "}"

/* Of the server's own history, whose newest span stands at the right; late ones are red. */
START_TEST(it_opens_with_what_was)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{\"data\":7}",
        "{\"data\":[7]}",
        "{\"data\":[{\"name\":\"x\"}]}",
        "{\"data\":[" SPAN("standard", "-10", "5", "") "]}",
        "{\"data\":[" SPAN("standard", "1e300", "5", "") "]}",
        "{\"data\":[" SPAN("standard", "1699999970", "5", "") ",{}]}"};
    start(1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(take_past(bad[i]) != ERR_NONE, "%s", bad[i]);
    feed_it(answer("\"reset\":true", 1, three_tenants));
    ck_assert_int_eq(topdata_past_from(view_data(&v)), 1700000000 - 1800);
    ck_assert_int_eq(
        take_past("{\"data\":[" SPAN("standard", "1699999970", "20", "") "," SPAN(
            "standard", "1699999990", "900", "") "," SPAN("other", "1699999990", "1", "") "]}"),
        ERR_NONE);
    ck_assert_int_eq(topdata_past_from(view_data(&v)), 1699999991);
    ck_assert_ptr_null(topdata_past(view_data(&v), "standard", 1699999980));
    ck_assert(topdata_past(view_data(&v), "standard", 1699999990)->ttft_ms == 900);
    press("6");
    ck_assert(shows("TTFT99") && shows("900ms") && shows("10 s a point") && !shows("^ target"));
    int y = 0, red = 0, good = 0;
    for (bool found = false; !found && y < c.rows; y += !found) {
        char *row = cells_row(&c, y);
        found = strncmp(row, "TTFT99", 6) == 0;
        free(row);
    }
    for (int x = 16; x < 79; x++) {
        red += style_at(y, x) == STYLE_BAD;
        good += c.at[y * c.cols + x].ch != ' ' && style_at(y, x) == STYLE_GOOD;
    }
    ck_assert_int_eq(red, 1);
    ck_assert(style_at(y, 78) == STYLE_BAD && good == 0);
    stop();
}
END_TEST

START_TEST(charts_say_how_long_ago)
{
    start(1);
    for (int i = 1; i < 200; i++) feed_it(answer("\"reset\":false", i, three_tenants));
    ck_assert(cells_resize(&c, 40, 200, true));
    ck_assert(shows("now") && shows("-2m") && shows("-1m"));
    press("5");
    ck_assert(shows("now") && shows("-2m"));
    stop();
}
END_TEST

START_TEST(actions_ask_and_name_their_rows)
{
    char both[4096];
    start(1);
    snprintf(both, sizeof(both), "%s,%s,\"requests\":[{\"id\":\"77\",\"tenant\":\"acme\"}]",
             three_tenants, adapters);
    feed_it(answer("\"reset\":true", 1, both));
    press("4ac");
    ck_assert(shows("cancel request: 77? (y/n)"));
    press("n");
    ck_assert_int_eq(v.n_action, 0);
    press("acy");
    ck_assert_int_eq(v.n_action, 1);
    ck_assert_str_eq(v.action[0].method, "DELETE");
    ck_assert_str_eq(v.action[0].path, "/admin/v1/requests/77");
    v.n_action = 0;
    press("3/a/b\nap");
    ck_assert(shows("? (y/n)"));
    press("y"); /* a hostile name is encoded in the path */
    ck_assert_str_eq(v.action[0].path, "/admin/v1/tenants/acme/adapters/a%2Fb%1B%5B31m/pin");
    v.n_action = 0;
    press("g   "); /* three tagged */
    press("aby");
    ck_assert_int_eq(v.n_action, 3);
    v.n_action = 0;
    press("2/acme\nam600\n");
    ck_assert(shows("set requests_per_minute to 600: acme? (y/n)"));
    press("y");
    ck_assert_str_eq(v.action[0].method, "PATCH");
    ck_assert_str_eq(v.action[0].path, "/admin/v1/tenants/acme");
    ck_assert_str_eq(v.action[0].body, "{\"limits\":{\"requests_per_minute\":600}}");
    v.n_action = 0;
    press("aM9\ny");
    ck_assert_str_eq(v.action[0].body, "{\"limits\":{\"tokens_per_month\":9}}");
    v.n_action = 0;
    press("am6x\n"); /* no number */
    ck_assert_int_eq(v.mode, MODE_NORMAL);
    press("aca");
    press("y");
    ck_assert_str_eq(v.action[0].body, "{\"default_class\":\"standard\"}");
    v.n_action = 0;
    press("ak");
    ck_assert_int_eq(v.n_action, 1);
    ck_assert_int_eq(v.action[0].answer, ANSWER_KEYS);
    v.n_action = 0;
    static const char keys[] =
        "{\"data\":[{\"id\":\"5\",\"public_id\":\"old\",\"revoked\":9},"
        "{\"id\":\"6\",\"public_id\":\"live\",\"name\":\"app\",\"revoked\":null}]}";
    view_keys_came(&v, keys, strlen(keys), 1000000);
    ck_assert(shows("live") && !shows("old"));
    press("ay");
    ck_assert_str_eq(v.action[0].path, "/admin/v1/keys/6");
    ck_assert_str_eq(v.action[0].method, "DELETE");
    v.n_action = 0;
    press("aDy");
    ck_assert_str_eq(v.action[0].path, "/admin/v1/drain");
    v.n_action = 0;
    (void)strcpy(view_data(&v)->server.access, "read"); /* a key that may only look */
    press("a");
    ck_assert_int_eq(v.mode, MODE_NORMAL);
    ck_assert(shows("may only look"));
    stop();
}
END_TEST

START_TEST(old_data_is_dimmed_with_its_age)
{
    start(2);
    feed_it(answer("\"reset\":true", 1, three_tenants));
    v.server[0].up = false;
    (void)strcpy(v.server[0].error, "connection refused");
    view_draw(&v, &c, 1000000 + 42000000, 1700000000000000);
    char *last = cells_row(&c, 22);
    ck_assert_ptr_nonnull(strstr(last, "data is 42s old: connection refused"));
    free(last);
    ck_assert_int_eq(c.at[5 * 80].style, STYLE_DIM);
    press("0");
    ck_assert(shows("SERVER") && shows("GONE") && shows("two"));
    press("j\n");
    ck_assert_int_eq(v.current, 1);
    press("p");
    ck_assert(v.paused);
    press("+");
    ck_assert_int_eq(v.interval_ms, 2000);
    press("q");
    ck_assert(v.quit);
    stop();
}
END_TEST

START_TEST(what_a_server_is_doing)
{
    static const struct {
        const char *had, *is, *word;
        style drawn;
    } state[] = {
        {"", "", "ready", STYLE_GOOD},
        {"\"ready\":true", "\"ready\":false", "starting", STYLE_BAD},
        {"\"ready\":true", "\"draining\":true", "draining", STYLE_BAD},
        {"\"ready\":true", "\"restarting\":true", "RESTART", STYLE_BAD},
        {"\"healthy\":true", "\"healthy\":false", "FAILED", STYLE_BAD},
        {"\"ready\":true", "\"ready\":true,\"storage\":\"ok\"", "ready", STYLE_GOOD},
        {"\"ready\":true", "\"ready\":true,\"storage\":\"behind\"", "spooling", STYLE_WARN},
        {"\"ready\":true", "\"ready\":false,\"storage\":\"full\"", "NO SPOOL", STYLE_BAD},
        {"\"ready\":true", "\"ready\":true,\"fleet\":true,\"fleet_fenced\":true", "FENCED",
         STYLE_BAD},
        {"\"ready\":true", "\"ready\":true,\"fleet\":true,\"fleet_away_us\":9", "DB away",
         STYLE_WARN},
    };
    for (size_t i = 0; i < sizeof(state) / sizeof(state[0]); i++) {
        char text[65536];
        const char *made = answer("\"reset\":true", 1, three_tenants);
        const char *at = strstr(made, state[i].had);
        snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - made), made, state[i].is,
                 at + strlen(state[i].had));
        start(2);
        feed_it(text);
        style st;
        ck_assert_str_eq(view_server_state(&v.server[0], &st), state[i].word);
        ck_assert_int_eq(st, state[i].drawn);
        ck_assert(shows(state[i].word)); /* in the title ... */
        press("0");
        ck_assert(shows(state[i].word));
        stop();
    }
}
END_TEST

/* Of those that answer, and of no other. */
START_TEST(servers_have_sums)
{
    start(2);
    for (v.current = 0; v.current < 2; v.current++)
        feed_it(answer("\"reset\":true", 1, three_tenants));
    topdata *other = &v.server[1].data;
    v.current = 0;
    other->engine.running = 40;
    other->engine.pages = 300;
    other->engine.pages_used = 275;
    other->engine.adapters_resident = 2;
    other->now.output_tokens = 1500;
    other->classes[0].met = 7;
    press("0");
    ck_assert(shows("one               ready        0       0     3     0    25      0   0.0"));
    ck_assert(shows("all: 2 of 2 answer             0    1500    43     0    75      2  53.8"));
    v.server[1].up = false;
    ck_assert(shows("all: 1 of 2 answer             0       0     3     0    25      0   0.0"));
    v.server[1].up = true;
    other->server.fleet = true;
    other->server.fleet_behind = 12;
    ck_assert(cells_resize(&c, 7, 120, true));
    ck_assert(shows("all: 2 of 2 answer")); /* even where a server has no line */
    ck_assert(cells_resize(&c, 24, 120, true));
    ck_assert(shows("12 behind"));
    stop();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("view");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, deltas_add_change_and_remove);
    tcase_add_loop_test(tc, rows_are_found_after_many_changes, 0, 3);
    tcase_add_test(tc, a_bad_answer_changes_nothing);
    tcase_add_test(tc, every_screen_shows_what_it_is_for);
    tcase_add_test(tc, tables_begin_sorted_by_what_matters);
    tcase_add_test(tc, tables_sort_filter_search_and_group);
    tcase_add_test(tc, columns_scroll_and_can_be_taken_out);
    tcase_add_test(tc, a_group_has_sums);
    tcase_add_test(tc, a_command_goes_to_its_screen);
    tcase_add_test(tc, what_has_ended_is_shown_with_its_phases);
    tcase_add_test(tc, enter_goes_down_and_escape_comes_back);
    tcase_add_test(tc, limits_name_who_is_at_one);
    tcase_add_test(tc, the_thrasher_is_named);
    tcase_add_test(tc, what_came_too_late_is_red);
    tcase_add_test(tc, it_opens_with_what_was);
    tcase_add_test(tc, charts_say_how_long_ago);
    tcase_add_test(tc, actions_ask_and_name_their_rows);
    tcase_add_test(tc, old_data_is_dimmed_with_its_age);
    tcase_add_test(tc, what_a_server_is_doing);
    tcase_add_test(tc, servers_have_sums);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
