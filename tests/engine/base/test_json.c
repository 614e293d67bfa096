/* test_json.c -- what the strict scan takes and what it refuses. */
#include <stdlib.h>
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
    json_limits lim = {100, 3, 5, false};
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
    ck_assert(json_whole(json_get(t, "big"), &i) && i == 9007199254740993LL);
    ck_assert_int_eq(json_int(t, "big", 0, INT64_MAX, &i, &found, &e), ERR_INPUT); /* not exact */
    ck_assert(!json_whole(json_get(t, "f"), &i) && !json_whole(json_get(t, "s"), &i));
    ck_assert(!json_whole(json_get(t, "nobody"), &i));
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

/* What json.loads and json.dumps of Python leave as it is, a double does not. */
START_TEST(numbers_keep_their_text)
{
    static const char text[] =
        "[9007199254740991,9007199254740993,1180920442763083827,-9223372036854775808,"
        "18446744073709551616,1000000000000000,1.0,-0.0,1e5,123456789012345,0,{\"x\":[2.50,7]}]";
    cJSON *t;
    err e;
    ck_assert_int_eq(json_parse(text, strlen(text), &json_limits_request, &t, &e), ERR_NONE);
    cJSON *copy = cJSON_Duplicate(t, true);
    char *printed = json_print(copy);
    ck_assert_str_eq(printed, text);
    ck_assert_ptr_null(cJSON_GetArrayItem(t, 9)->valuestring);
    int64_t i = 0;
    ck_assert(json_whole(cJSON_GetArrayItem(t, 1), &i) && i == 9007199254740993);
    ck_assert(json_whole(cJSON_GetArrayItem(t, 3), &i) && i == INT64_MIN);
    ck_assert(json_whole(cJSON_GetArrayItem(t, 8), &i) && i == 100000);
    ck_assert(!json_whole(cJSON_GetArrayItem(t, 4), &i));
    ck_assert(json_same(t, copy));
    free(printed);
    cJSON_Delete(copy);
    cJSON_Delete(t);
}
END_TEST

START_TEST(numbers_are_compared_by_value)
{
    static const struct {
        const char *a, *b;
        int order;
    } pairs[] = {{"9007199254740992", "9007199254740993", -1},
                 {"-9007199254740992", "-9007199254740993", 1},
                 {"1.0", "1", 0},
                 {"1e3", "1000", 0},
                 {"18446744073709551616", "18446744073709551617", -1},
                 {"-18446744073709551616", "-18446744073709551617", 1},
                 {"2", "10", -1},
                 {"1e300", "-1e300", 1}};
    for (size_t k = 0; k < sizeof(pairs) / sizeof(pairs[0]); k++) {
        cJSON *a, *b;
        ck_assert(!json_parse(pairs[k].a, strlen(pairs[k].a), &json_limits_request, &a, NULL) &&
                  !json_parse(pairs[k].b, strlen(pairs[k].b), &json_limits_request, &b, NULL));
        int order = json_order(a, b);
        ck_assert_msg((order > 0) - (order < 0) == pairs[k].order, "%s %s", pairs[k].a, pairs[k].b);
        ck_assert_int_eq(json_same(a, b), pairs[k].order == 0);
        cJSON_Delete(a);
        cJSON_Delete(b);
    }
}
END_TEST

/* Where the last one wins, at every depth and whatever the escapes of the name. */
START_TEST(the_last_of_several_members)
{
    static const char text[] = "{\"a\":1,\"b\":{\"c\":[{\"d\":1,\"d\":2}],\"c\":[{\"d\":3,"
                               "\"\\u0064\":4}]},\"a\":2,\"a\":3.50}";
    json_limits lim = json_limits_request;
    cJSON *v;
    err e;
    ck_assert_int_eq(json_parse(text, sizeof(text) - 1, &lim, &v, &e), ERR_INPUT);
    lim.last_wins = true;
    ck_assert_int_eq(json_parse(text, sizeof(text) - 1, &lim, &v, &e), ERR_NONE);
    char *got = json_print(v);
    ck_assert_str_eq(got, "{\"b\":{\"c\":[{\"d\":4}]},\"a\":3.50}");
    free(got);
    cJSON_Delete(v);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("json");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, the_last_of_several_members);
    tcase_add_loop_test(tc, good_texts_are_taken, 0, (int)(sizeof(good) / sizeof(good[0])));
    tcase_add_loop_test(tc, bad_texts_are_refused, 0, (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(tc, every_truncation_is_refused);
    tcase_add_test(tc, a_nul_byte_ends_nothing);
    tcase_add_test(tc, limits_are_kept);
    tcase_add_test(tc, members_are_typed);
    tcase_add_test(tc, numbers_keep_their_text);
    tcase_add_test(tc, numbers_are_compared_by_value);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
