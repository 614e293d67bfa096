/* test_chunks.c -- chunked bodies in every cut; broken and endless ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/http/chunks.h"
#include "tests/run_suite.h"

#define END "0\r\n\r\n"

/* Reads in pieces of `cut`; the data in out[], and how many bytes belonged to the body. */
static chunks_state read_all(const char *text, size_t len, size_t cut, char *out, size_t *eaten)
{
    chunks c = {0};
    chunks_state state = CHUNKS_MORE;
    size_t at = 0, n_out = 0;
    while (at < len && (state == CHUNKS_MORE || state == CHUNKS_DATA)) {
        size_t n = len - at < cut ? len - at : cut, used;
        char *piece = malloc(n); /* so that a sanitizer sees a read behind it */
        memcpy(piece, text + at, n);
        state = chunks_read(&c, piece, n, &used);
        ck_assert_uint_le(used, n);
        size_t data = state == CHUNKS_DATA ? n - used : 0;
        if (data > c.left) data = (size_t)c.left;
        memcpy(out + n_out, piece + used, data);
        n_out += data;
        if (data) chunks_took(&c, data);
        at += used + data;
        free(piece);
    }
    out[n_out] = 0;
    *eaten = at;
    return state;
}

static const struct {
    const char *body, *data;
} good[] = {
    {END, ""},
    {"5\r\nhello\r\n" END, "hello"},
    {"5\r\nhello\r\n1\r\n \r\n0005\r\nworld\r\n000\r\n\r\n", "hello world"},
    {"A\r\n0123456789\r\na\r\n0123456789\r\n" END, "01234567890123456789"},
    {"2;x\r\n\r\n\r\n" END, "\r\n"},
    {"2 ;a=b;c=\"d e\" ; f\r\nab\r\n0;last\r\n\r\n", "ab"},
    {"1\r\na\r\n0\r\nX: y\r\nEmpty:\r\n\r\n", "a"},
};

START_TEST(a_body_in_any_cut)
{
    char text[256], out[256];
    int len = snprintf(text, sizeof(text), "%sGET / HTTP/1.1\r\n", good[_i].body);
    for (size_t cut = 1; cut <= (size_t)len; cut++) {
        size_t eaten;
        ck_assert_int_eq(read_all(text, (size_t)len, cut, out, &eaten), CHUNKS_END);
        ck_assert_str_eq(out, good[_i].data);
        ck_assert_uint_eq(eaten, strlen(good[_i].body)); /* the next request is left alone */
    }
}
END_TEST

static const char *const bad[] = {
    "\r\n",
    " 1\r\na\r\n",
    "g\r\n",
    "0x1\r\na\r\n",
    "-1\r\n",
    "+1\r\na\r\n",
    ";x\r\n",
    "1\na\r\n",
    "1\ra",
    "1\r\r\n",
    "1 \r\na\r\n",
    "1 2\r\n",
    "1;a\nb\r\n",
    "1;a\x01\r\n",
    "1\r\nab\r\n",
    "1\r\na\n",
    "1\r\na\r\r",
    "1\r\na1\r\n",
    "1111111111111111\r\n",
    "FFFFFFFFFFFFFFFFFFFF\r\n",
    "0000000000000001\r\na\r\n",
    "0\r\n\n",
    "0\r\n \r\n",
    "0\r\nX y: z\r\n",
    "0\r\nX\r\n",
    "0\r\n: x\r\n",
    "0\r\nX: a\n",
    "0\r\nX: a\x7f\r\n",
    "0\r\n\r\r",
};

START_TEST(a_broken_body)
{
    char out[64];
    size_t eaten, len = strlen(bad[_i]);
    for (size_t cut = 1; cut <= len; cut++) {
        ck_assert_int_eq(read_all(bad[_i], len, cut, out, &eaten), CHUNKS_BROKEN);
    }
}
END_TEST

START_TEST(broken_stays_broken)
{
    chunks c = {0};
    size_t used;
    ck_assert_int_eq(chunks_read(&c, "x", 1, &used), CHUNKS_BROKEN);
    ck_assert_int_eq(chunks_read(&c, END, 5, &used), CHUNKS_BROKEN);
    ck_assert_uint_eq(used, 0);
}
END_TEST

/* How many bytes of framing a body may have that never gets to its data. */
static size_t endless(const char *begin, const char *again)
{
    chunks c = {0};
    size_t used, total = 0;
    chunks_state state = chunks_read(&c, begin, strlen(begin), &used);
    while (state != CHUNKS_BROKEN) {
        ck_assert_uint_lt(total, 1 << 20);
        for (const char *p = again; *p && state != CHUNKS_BROKEN; p++) {
            if (state == CHUNKS_DATA) chunks_took(&c, 1);
            state = chunks_read(&c, p, state != CHUNKS_DATA, &used);
            total++;
        }
    }
    return total;
}

START_TEST(framing_is_bounded)
{
    ck_assert_uint_eq(endless("1;", "x"), CHUNKS_EXTENSION_MAX + 1);
    ck_assert_uint_eq(endless("1", " "), CHUNKS_EXTENSION_MAX + 1);
    ck_assert_uint_lt(endless("", "1;0123456789\r\na\r\n"), 2 * CHUNKS_EXTENSION_MAX);
    ck_assert_uint_eq(endless("0\r\n", "X"), CHUNKS_TRAILER_MAX + 1);
    ck_assert_uint_lt(endless("0\r\n", "X: y\r\n"), 2 * CHUNKS_TRAILER_MAX);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("chunks");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, a_body_in_any_cut, 0, (int)(sizeof(good) / sizeof(good[0])));
    tcase_add_loop_test(tc, a_broken_body, 0, (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(tc, broken_stays_broken);
    tcase_add_test(tc, framing_is_bounded);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
