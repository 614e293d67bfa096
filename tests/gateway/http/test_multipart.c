/* test_multipart.c -- forms in every cut: what is handed on, and what is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/http/multipart.h"
#include "tests/run_suite.h"

typedef struct {
    char text[1024]; /* "[name|file|data]" for each part; a field has no second bar */
    size_t n;
} told;

static void tell(told *t, const char *s, size_t len)
{
    ck_assert_uint_lt(t->n + len, sizeof(t->text));
    memcpy(t->text + t->n, s, len);
    t->n += len;
    t->text[t->n] = 0;
}

static err_code on_begin(void *arg, const char *name, const char *file, err *e)
{
    (void)e;
    tell(arg, "[", 1);
    tell(arg, name, strlen(name));
    if (file) tell(arg, "|", 1);
    if (file) tell(arg, file, strlen(file));
    tell(arg, "|", 1);
    return ERR_NONE;
}

static err_code on_data(void *arg, const void *data, size_t len, err *e)
{
    (void)e;
    ck_assert_uint_gt(len, 0);
    tell(arg, data, len);
    return ERR_NONE;
}

static err_code on_end(void *arg, err *e)
{
    (void)e;
    tell(arg, "]", 1);
    return ERR_NONE;
}

/* Reads the body in pieces of `cut`. */
static err_code read_all(const char *type, const char *body, size_t len, size_t cut, told *t,
                         err *e)
{
    multipart m;
    const multipart_sink sink = {on_begin, on_data, on_end, t};
    *t = (told){.n = 0};
    err_code rc = multipart_begin(&m, type, &sink, e);
    for (size_t at = 0; !rc && at < len; at += cut) {
        size_t n = len - at < cut ? len - at : cut;
        char *piece = malloc(n); /* so that a sanitizer sees a read behind it */
        memcpy(piece, body + at, n);
        rc = multipart_feed(&m, piece, n, e);
        free(piece);
    }
    return rc ? rc : multipart_finish(&m, e);
}

#define TYPE    "multipart/form-data; boundary=xy"
#define FIELD   "--xy\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n"
#define FILE_OF "Content-Disposition: form-data; name=\"file\"; filename="
#define END     "\r\n--xy--\r\n"

static const struct {
    const char *type, *body, *told;
} good[] = {
    {TYPE, "--xy--", ""},
    {TYPE, FIELD "1" END, "[a|1]"},
    {TYPE, FIELD END, "[a|]"},
    {TYPE, "before\r\n" FIELD "1" END "behind --xy", "[a|1]"},
    {TYPE, FIELD "\r\n--x\r\r\n--x\r\n" END, "[a|\r\n--x\r\r\n--x\r\n]"},
    {TYPE, FIELD "1\r\n--xy \t\r\n" FILE_OF "\"f;g\\\"h.txt\"\r\nContent-Type: x\r\n\r\n2" END,
     "[a|1][file|f;g\"h.txt|2]"},
    {"Multipart/Form-Data; charset=utf-8; Boundary=\"x y\"",
     "--x y\r\nX: y\r\ncontent-disposition: form-data; name=n\r\n\r\n1\r\n--x y--", "[n|1]"},
};

START_TEST(a_form_in_any_cut)
{
    size_t len = strlen(good[_i].body);
    for (size_t cut = 1; cut <= len; cut++) {
        told t;
        err e = {0};
        err_code rc = read_all(good[_i].type, good[_i].body, len, cut, &t, &e);
        ck_assert_msg(rc == ERR_NONE, "%s", e.msg);
        ck_assert_str_eq(t.text, good[_i].told);
    }
}
END_TEST

static const struct {
    const char *type, *body;
} bad[] = {
    {NULL, "--xy--"},
    {"application/json", "--xy--"},
    {"multipart/form-data", "--xy--"},
    {"multipart/form-data; boundary=", "--xy--"},
    {"multipart/form-data; boundary", "--xy--"},
    {TYPE, "--xy\r\nContent-Disposition: form-data; name\r\n\r\nx\r\n--xy--"},
    {"multipart/form-data; boundary=\"xy", "--xy--"},
    {"multipart/form-data; boundary="
     "01234567890123456789012345678901234567890123456789012345678901234567890",
     "--xy--"},
    {TYPE, ""},
    {TYPE, FIELD "1"},
    {TYPE, FIELD "1\r\n--xy-"},
    {TYPE, FIELD "1\r\n--xyz\r\n"},
    {TYPE, "--xy\r\nContent-Disposition: form-data\r\n\r\n1" END},
    {TYPE, "--xy\r\nX: y\r\n\r\n1" END},
    {TYPE, "--xy\r\n\r\n1" END},
    {TYPE, "--xy\r\n" FILE_OF "\"a\x01\"\r\n\r\n1" END},
    {TYPE, "--xy\r\n" FILE_OF "\"\xff\"\r\n\r\n1" END},
    {TYPE, "--xy\r\n" FILE_OF "\"open\r\n\r\n1" END},
    {TYPE, "--xy\r\n" FILE_OF "\"a\"; filename*=utf-8''b\r\n\r\n1" END},
};

START_TEST(a_bad_form)
{
    size_t len = strlen(bad[_i].body);
    for (size_t cut = 1; cut <= len + 1; cut++) {
        told t;
        err e = {0};
        ck_assert_int_eq(read_all(bad[_i].type, bad[_i].body, len, cut, &t, &e), ERR_INPUT);
        ck_assert_str_ne(e.msg, "");
    }
}
END_TEST

START_TEST(heads_are_bounded)
{
    static char body[2 * MULTIPART_HEAD_MAX];
    told t;
    err e;
    int n = snprintf(body, sizeof(body), "--xy\r\nX: ");
    memset(body + n, 'a', sizeof(body) - (size_t)n);
    ck_assert_int_eq(read_all(TYPE, body, sizeof(body), 100, &t, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "4096"));
    n = 0;
    for (int i = 0; i < 65; i++) n += snprintf(body + n, sizeof(body) - (size_t)n, FIELD "\r\n");
    ck_assert_int_eq(read_all(TYPE, body, (size_t)n, 100, &t, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "64 parts"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("multipart");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, a_form_in_any_cut, 0, (int)(sizeof(good) / sizeof(good[0])));
    tcase_add_loop_test(tc, a_bad_form, 0, (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(tc, heads_are_bounded);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
