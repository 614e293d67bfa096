/* test_json.c -- what the strict scan takes and what it refuses. */
#include <string.h>

#include <check.h>

#include "engine/base/json.h"
#include "tests/run_suite.h"

static const char *const good[] = {
    "{}",
    "[]",
    " [ ] ",
    "0",
    "-0",
    "1e3",
    "-1.5E-2",
    "\"\"",
    "\"\\u00e9\\n\\/\"",
    "true",
    "null",
    "\"\\ud83d\\ude00\"",
    "{\"a\":{\"a\":1},\"b\":[{\"a\":1},{\"a\":2}]}",
    "[1,[2,[3]]]\n",
    "\"\xF0\x9F\x98\x80\xE2\x82\xAC\"",
};

static const char *const bad[] = {
    "",
    " ",
    "{",
    "}",
    "[",
    "]",
    "[1",
    "[1,",
    "[1,]",
    "[,1]",
    "{\"a\"}",
    "{\"a\":}",
    "{\"a\":1,}",
    "{a:1}",
    "{'a':1}",
    "{1:1}",
    "[1 2]",
    "{\"a\" 1}",
    "01",
    "-",
    "-01",
    "+1",
    ".5",
    "1.",
    "1.e3",
    "1e",
    "1e+",
    "0x10",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "tru",
    "True",
    "nul",
    "\"",
    "\"\\\"",
    "\"\\x\"",
    "\"\\u12\"",
    "\"\\u12g4\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\\udc00\"",
    "\"\\ud800\\u0041\"",
    "\"a\nb\"",
    "\"a\tb\"",
    "\"\x01\"",
    "\"\x80\"",
    "\"\xC0\x80\"",
    "\"\xC1\xBF\"",
    "\"\xE0\x80\x80\"",
    "\"\xED\xA0\x80\"",
    "\"\xF4\x90\x80\x80\"",
    "\"\xF8\x88\x80\x80\x80\"",
    "\"\xC3\"",
    "\"\xE2\x82\"",
    "{} {}",
    "[] x",
    "1 2",
    "\xEF\xBB\xBF{}",
    "{\"a\":1,\"a\":2}",
    "{\"a\":1,\"\\u0061\":2}",
    "[{\"x\":{\"k\":1,\"k\":1}}]",
    "/**/{}",
    "[1]//",
    "\f1",
    "\v1",
    "\xC2\xA0"
    "1",
};

START_TEST(good_texts_are_taken)
{
    err e;
    cJSON *tree;
    err_code rc = json_parse(good[_i], strlen(good[_i]), &json_limits_request, &tree, &e);
    ck_assert_msg(rc == ERR_NONE, "%s: %s", good[_i], rc ? e.msg : "");
    cJSON_Delete(tree);
}
END_TEST

START_TEST(bad_texts_are_refused)
{
    err e;
    cJSON *tree;
    err_code rc = json_parse(bad[_i], strlen(bad[_i]), &json_limits_request, &tree, &e);
    ck_assert_msg(rc == ERR_INPUT, "case %d was taken: %s", _i, bad[_i]);
    ck_assert_ptr_null(tree);
    ck_assert(e.msg[0]);
}
END_TEST

START_TEST(every_truncation_is_refused)
{
    const char *text = "{\"a\":[1,2.5e3,{\"b\":\"x\\u00e9\\ud83d\\ude00\"}],\"c\":true,\"d\":null}";
    for (size_t n = 0; n < strlen(text); n++) {
        ck_assert_msg(json_check(text, n, &json_limits_request, NULL) == ERR_INPUT, "%zu bytes", n);
    }
}
END_TEST

START_TEST(a_nul_byte_ends_nothing)
{
    const char text[] = "{\"a\":1}\0{\"b\":2}";
    ck_assert_int_eq(json_check(text, sizeof(text) - 1, &json_limits_request, NULL), ERR_INPUT);
}
END_TEST

START_TEST(limits_are_kept)
{
    json_limits lim = {100, 3, 5};
    err e;
    ck_assert_int_eq(json_check("[[[1]]]", 7, &lim, &e), ERR_NONE);
    ck_assert_int_eq(json_check("[[[[]]]]", 8, &lim, &e), ERR_LIMIT);
    ck_assert_int_eq(json_check("[1,2,3,4]", 9, &lim, &e), ERR_NONE);
    ck_assert_int_eq(json_check("[1,2,3,4,5]", 11, &lim, &e), ERR_LIMIT);
    char big[102];
    memset(big, ' ', sizeof(big));
    ck_assert_int_eq(json_check(big, 101, &lim, &e), ERR_LIMIT);
    /* a hundred thousand brackets must not end the stack */
    static char deep[100000];
    memset(deep, '[', sizeof(deep));
    ck_assert_int_eq(json_check(deep, sizeof(deep), &json_limits_request, &e), ERR_LIMIT);
}
END_TEST

START_TEST(members_are_typed)
{
    const char *text =
        "{\"i\":7,\"f\":1.5,\"s\":\"x\",\"b\":true,\"n\":null,\"big\":9007199254740993,"
        "\"in\":{\"big\":1}}";
    cJSON *t;
    ck_assert_int_eq(json_parse(text, strlen(text), &json_limits_request, &t, NULL), ERR_NONE);
    err e;
    bool found;
    int64_t i = -1;
    ck_assert_int_eq(json_int(t, "i", 0, 10, &i, &found, &e), ERR_NONE);
    ck_assert(found && i == 7);
    ck_assert_int_eq(json_int(t, "i", 8, 10, &i, &found, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "'i'"));
    ck_assert_ptr_nonnull(strstr(e.msg, "10"));
    ck_assert_int_eq(json_int(t, "f", 0, 10, &i, &found, &e), ERR_INPUT);
    ck_assert_int_eq(json_int(t, "s", 0, 10, &i, &found, &e), ERR_INPUT);
    i = 5;
    ck_assert_int_eq(json_int(t, "n", 0, 10, &i, &found, &e), ERR_NONE);
    ck_assert(!found && i == 5);
    ck_assert_int_eq(json_int(t, "I", 0, 10, &i, &found, &e), ERR_NONE);
    ck_assert(!found);
    ck_assert_int_eq(json_int64_text(text, strlen(text), "big", &i, &found, &e), ERR_NONE);
    ck_assert(found && i == 9007199254740993LL);
    ck_assert_int_eq(json_int64_text(text, strlen(text), "f", &i, &found, &e), ERR_INPUT);
    ck_assert_int_eq(json_int64_text(text, strlen(text), "s", &i, &found, &e), ERR_INPUT);
    ck_assert_int_eq(json_int64_text(text, strlen(text), "nobody", &i, &found, &e), ERR_NONE);
    ck_assert(!found);
    bool b = false;
    ck_assert_int_eq(json_bool(t, "b", &b, &found, &e), ERR_NONE);
    ck_assert(b);
    ck_assert_int_eq(json_bool(t, "i", &b, &found, &e), ERR_INPUT);
    const char *s = NULL;
    ck_assert_int_eq(json_str(t, "s", &s, &found, &e), ERR_NONE);
    ck_assert_str_eq(s, "x");
    double d = 0;
    ck_assert_int_eq(json_num(t, "f", 0, 1, &d, &found, &e), ERR_INPUT);
    cJSON_Delete(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("json");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, good_texts_are_taken, 0, (int)(sizeof(good) / sizeof(good[0])));
    tcase_add_loop_test(tc, bad_texts_are_refused, 0, (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(tc, every_truncation_is_refused);
    tcase_add_test(tc, a_nul_byte_ends_nothing);
    tcase_add_test(tc, limits_are_kept);
    tcase_add_test(tc, members_are_typed);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
