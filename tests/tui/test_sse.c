/* test_sse.c -- events however the stream was cut, and streams that are none. */
#include <stdio.h>
#include <string.h>

#include <check.h>

#include "tests/run_suite.h"
#include "tui/sse.h"

typedef struct {
    char text[256];
    int n, stop_after;
} seen;

static bool collect(void *arg, const char *data, size_t len)
{
    seen *s = arg;
    ck_assert_uint_eq(strlen(data), len);
    size_t at = strlen(s->text);
    snprintf(s->text + at, sizeof(s->text) - at, "<%s>", data);
    return ++s->n != s->stop_after;
}

static const struct {
    const char *stream, *events;
} rows[] = {
    {"data: a\n\ndata: b\n\n", "<a><b>"},
    {"data:a\r\n\r\n", "<a>"},
    {": ping\n\ndata: a\n\n", "<a>"},
    {"event: x\nid: 7\nretry: 1\ndata: a\n\n", "<a>"},
    {"data: a\ndata: b\n\n", "<a\nb>"},
    {"data:  two\n\n", "< two>"},
    {"data:\n\n", "<>"},
    {"data: unfinished", ""},
    {"data: unfinished\n", ""},
    {"datum: x\n\ndata\n\n", ""},
    {"\n\n\n", ""},
};

/* Cut after every byte, and whole. */
START_TEST(grammar)
{
    const char *s = rows[_i].stream;
    for (size_t piece = 1; piece <= strlen(s); piece++) {
        seen got = {0};
        sse_parser p = {.on_event = collect, .arg = &got};
        err e;
        for (size_t at = 0; at < strlen(s); at += piece) {
            size_t n = strlen(s) - at < piece ? strlen(s) - at : piece;
            ck_assert_int_eq(sse_feed(&p, s + at, n, &e), ERR_NONE);
        }
        ck_assert_str_eq(got.text, rows[_i].events);
        sse_clear(&p);
    }
}
END_TEST

START_TEST(endless)
{
    static char junk[65536];
    seen got = {0};
    sse_parser p = {.on_event = collect, .arg = &got};
    err e;
    err_code rc = ERR_NONE;
    memset(junk, 'x', sizeof(junk));
    for (int i = 0; i < 64 && !rc; i++) rc = sse_feed(&p, junk, sizeof(junk), &e);
    ck_assert_int_eq(rc, ERR_LIMIT);
    sse_clear(&p);
    junk[sizeof(junk) - 1] = '\n';
    memcpy(junk, "data:", 5);
    for (rc = ERR_NONE; !rc;) rc = sse_feed(&p, junk, sizeof(junk), &e); /* lines of one event */
    ck_assert_int_eq(rc, ERR_LIMIT);
    ck_assert_int_eq(got.n, 0);
    sse_clear(&p);
}
END_TEST

START_TEST(stopped)
{
    seen got = {.stop_after = 2};
    sse_parser p = {.on_event = collect, .arg = &got};
    err e;
    static const char s[] = "data: a\n\ndata: b\n\ndata: c\n\n";
    ck_assert_int_eq(sse_feed(&p, s, sizeof(s) - 1, &e), ERR_CANCELLED);
    ck_assert_str_eq(got.text, "<a><b>");
    sse_clear(&p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sse");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, grammar, 0, (int)(sizeof(rows) / sizeof(rows[0])));
    tcase_add_test(tc, endless);
    tcase_add_test(tc, stopped);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
