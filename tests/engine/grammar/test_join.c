/* test_join.c -- two schemas as one: their members, the names that patterns leave open, items, and
 * the expressions of a string. */
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/regex/grammar_dfa.h"
#include "tests/engine/grammar/automata.h"
#include "tests/run_suite.h"

/* Schema, what it takes up to a NULL, what it does not take. */
static const char *const cases[][10] = {
    /* AdditionalProperties speaks of what its own schema does not list. */
    {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{"
     "\"b\":{}}}]}",
     "{}", "{\"a\":1}", NULL, "{\"b\":1}", "{\"a\":1,\"b\":1}"},
    {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"integer\"}},{"
     "\"properties\":{\"b\":{\"minimum\":2}}}]}",
     "{\"a\":\"x\",\"b\":3}", NULL, "{\"b\":1}", "{\"b\":2.5}"},
    {"{\"properties\":{\"a\":{}},\"allOf\":[{\"patternProperties\":{\"^a\":{\"type\":\"null\"}},"
     "\"additionalProperties\":false}]}",
     "{\"a\":null}", "{}", NULL, "{\"a\":1}", "{\"b\":1}"},
    {"{\"properties\":{\"b\":{}},\"allOf\":[{\"patternProperties\":{\"^a\":{\"type\":\"null\"}},"
     "\"additionalProperties\":{\"type\":\"integer\"}}]}",
     "{\"b\":1}", "{\"b\":1,\"ab\":null}", "{\"b\":1,\"c\":2}", NULL, "{\"b\":null}",
     "{\"b\":1,\"ab\":2}", "{\"b\":1,\"c\":null}"},
    {"{\"allOf\":[{\"required\":[\"a\"]},{\"additionalProperties\":{\"type\":\"null\"}}]}",
     "{\"a\":null}", NULL, "{\"a\":1}", "{}"},
    /* Patterns of two parts. */
    {"{\"allOf\":[{\"patternProperties\":{\"^a\":{\"type\":\"integer\"}}},{\"patternProperties\":{"
     "\"b$\":{\"minimum\":5}}}]}",
     "{\"ab\":7}", "{\"ac\":1}", NULL, "{\"ab\":4}", "{\"ab\":5.5}", "{\"ac\":\"x\"}"},
    {"{\"allOf\":[{\"patternProperties\":{\"^a\":{}},\"additionalProperties\":false},{"
     "\"patternProperties\":{\"b$\":{\"type\":\"null\"}}}]}",
     "{\"ab\":null}", "{\"ac\":1}", NULL, "{\"ab\":1}", "{\"cb\":null}"},
    {"{\"allOf\":[{\"patternProperties\":{\"^a\":{}},\"additionalProperties\":{\"type\":"
     "\"integer\"}},{\"patternProperties\":{\"b$\":{\"minimum\":3}},\"additionalProperties\":{"
     "\"type\":\"number\"}}]}",
     "{\"ab\":4.5}", "{\"cb\":4}", "{\"ac\":1.5}", NULL, "{\"cb\":4.5}", "{\"cb\":2}",
     "{\"ac\":\"x\"}", "{\"c\":null}"},
    {"{\"allOf\":[{\"patternProperties\":{\"^a\":{}},\"additionalProperties\":false},{"
     "\"patternProperties\":{\"b$\":{}}},{\"properties\":{\"xb\":{}}}]}",
     "{\"ab\":1}", NULL, "{\"xb\":1}", "{\"cb\":1}"},
    {"{\"properties\":{\"xa\":{\"type\":\"integer\"}},\"patternProperties\":{\"^x\":{\"maximum\":3}"
     "},\"additionalProperties\":{\"type\":\"null\"}}",
     "{\"xa\":1,\"xb\":2}", "{\"xb\":2,\"c\":null}", "{\"xa\":2}", NULL, "{\"xa\":4}", "{\"xb\":4}",
     "{\"xa\":\"x\"}", "{\"c\":1}", "{\"xa\":1,\"xa\":\"x\"}"},
    {"{\"patternProperties\":{\"^x\":{\"type\":\"null\"}},\"propertyNames\":{\"minLength\":3,"
     "\"pattern\":\"y\"}}",
     "{\"xxy\":null}", NULL, "{\"xy\":null}", "{\"xxx\":null}", "{\"xxy\":1}"},
    /* Items place by place. */
    {"{\"allOf\":[{\"prefixItems\":[{\"minimum\":3}]},{\"items\":{\"type\":\"integer\"}}]}",
     "[4,1]", "[3]", NULL, "[2]", "[3.5]", "[4,\"x\"]"},
    {"{\"allOf\":[{\"prefixItems\":[{},{\"type\":\"null\"}]},{\"prefixItems\":[{\"type\":"
     "\"integer\"}],\"items\":false}]}",
     "[1]", "[]", NULL, "[1,null]", "[\"x\"]"},
    {"{\"allOf\":[{\"prefixItems\":[{\"type\":\"integer\"},{\"minimum\":2}]},{\"prefixItems\":[{"
     "\"minimum\":1},{\"type\":\"integer\"},{\"type\":\"null\"}]}]}",
     "[1,2,null]", "[1]", NULL, "[0]", "[1,1]", "[1,2,3]"},
    {"{\"type\":\"array\",\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{\"const\":2}}]}",
     "[1,2]", "[1,2,7]", NULL, "[1]", "[1,1]", "[]"},
    {"{\"type\":\"array\",\"minItems\":5,\"prefixItems\":[{\"type\":\"null\"}]}", "[null,1,2,3,4]",
     NULL, "[null,1,2,3]", "[1,1,2,3,4]"},
    /* What cannot be of one kind may be of another, where no type is given. */
    {"{\"contains\":false}", "1", "{}", "\"a\"", NULL, "[]", "[1]"},
    {"{\"contains\":{},\"minContains\":3,\"maxContains\":1}", "null", NULL, "[1,2,3]", "[]"},
    {"{\"required\":[\"a\"],\"additionalProperties\":false}", "[1]", NULL, "{}", "{\"a\":1}"},
    /* Recursion through allOf ends, and has one rule. */
    {"{\"$defs\":{\"a\":{\"properties\":{\"x\":{\"$ref\":\"#/$defs/a\"},\"y\":{}}},\"b\":{"
     "\"properties\":{\"x\":{\"$ref\":\"#/$defs/b\"},\"y\":{\"type\":\"integer\"}}}},\"allOf\":["
     "{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}]}",
     "{\"x\":{\"x\":{\"x\":{\"y\":1}}}}", NULL, "{\"x\":{\"x\":{\"x\":{\"y\":null}}}}"},
    /* Two patterns of a string. */
    {"{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"b$\"},{\"pattern\":\"[0-"
     "9]{3}\"}]}",
     "\"a123b\"", "\"a.b0001b\"", NULL, "\"a12b\"", "\"123b\"", "\"a123\""},
    {"{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^[a-c]+$\"},{\"pattern\":\"c\"}],"
     "\"minLength\":3,\"maxLength\":5}",
     "\"abc\"", "\"ccccc\"", NULL, "\"ac\"", "\"aaaaca\"", "\"aaa\"", "\"acd\""},
    {"{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^x|y$\"},{\"pattern\":\"é\"}]}", "\"xé\"",
     "\"éy\"", NULL, "\"é\"", "\"xy\"", "\"éx\""},
    {"{\"type\":\"string\",\"pattern\":\"^https?://.+$\",\"maxLength\":20}", "\"https://abc\"",
     "\"http://a\"", NULL, "\"http://\"", "\"https://abcdefghijklmnop\""},
};

START_TEST(what_two_parts_say_holds_for_both)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        g_auto a;
        err e;
        bool right = true;
        ck_assert_msg(!automaton_of(cases[i][0], NULL, &a, &e), "%s: %s", cases[i][0], e.msg);
        for (int k = 1; k < 10 && (cases[i][k] || right); k++) {
            if (cases[i][k])
                ck_assert_msg(automaton_takes(&a, cases[i][k]) == right, "%s: %s", cases[i][0],
                              cases[i][k]);
            else
                right = false;
        }
        g_auto_clear(&a);
    }
}
END_TEST

static err_code lay(const char *const *patterns, int n, uint64_t found, int64_t least, int64_t most,
                    g_auto *a)
{
    err e;
    g_builder b;
    g_dfa *d = dfa_create(false);
    for (int i = 0; i < n; i++) ck_assert(!dfa_pattern(d, patterns[i], strlen(patterns[i]), &e));
    ck_assert_msg(!dfa_finish(d, &e), "%s", e.msg);
    gb_init(&b);
    int32_t rule = gb_rule(&b);
    err_code rc = gb_dfa(&b, b.rule[rule].start, d, found, ((uint64_t)1 << n) - 1, least, most,
                         false, b.rule[rule].end, &e);
    if (rc)
        gb_clear(&b);
    else
        ck_assert_msg(!gb_finish(&b, rule, 0, a, &e), "%s", e.msg);
    dfa_destroy(d);
    return rc;
}

/* Every text of up to six of these letters, by what each expression finds in it alone. */
START_TEST(an_automaton_finds_what_each_expression_finds)
{
    static const char *const patterns[] = {"^a|b$", "ab", "^(a|bb)*$", "^$|c(^|a$)"};
    enum { N = 4, LONGEST = 6 };
    for (uint64_t found = 0; found < 1 << N; found++) {
        for (int bound = 0; bound < 4; bound++) {
            int64_t least = bound ? 2 : 0, most = bound == 2 ? 4 : bound == 3 ? 400 : -1;
            g_auto a;
            bool any = !lay(patterns, N, found, least, most, &a);
            for (int code = 0; code < 1 << (2 * LONGEST); code++) {
                char text[LONGEST + 1] = "";
                int len = 0;
                for (int rest = code; rest & 3; rest >>= 2) text[len++] = "?abc"[rest & 3];
                if (len < LONGEST && code >> (2 * len)) continue;
                uint64_t have = 0;
                for (int i = 0; i < N - 1; i++) {
                    bool is;
                    err e;
                    ck_assert(!g_regex_finds(patterns[i], strlen(patterns[i]), text, &is, &e));
                    have |= (uint64_t)is << i;
                }
                bool last = len == 0 || (len > 1 && strcmp(text + len - 2, "ca") == 0);
                have |= (uint64_t)last << (N - 1);
                bool wanted = have == found && len >= least && (most < 0 || len <= most);
                bool is =
                    any && automaton_takes(&a, text); /* where it counts, some may be left out */
                ck_assert_msg(is == wanted || (bound == 3 && !is), "'%s' %d: %d", text, bound,
                              (int)found);
            }
            if (any) g_auto_clear(&a);
        }
    }
}
END_TEST

START_TEST(expressions_too_large_together_are_refused)
{
    g_auto a;
    err e;
    ck_assert_int_eq(
        automaton_of("{\"type\":\"string\",\"allOf\":[{\"pattern\":\"a.{30}b\"},{\"pattern\":"
                     "\"b.{30}a\"}]}",
                     NULL, &a, &e),
        ERR_LIMIT);
    ck_assert_msg(strstr(e.msg, "too large together") != NULL, "%s", e.msg);
    ck_assert_int_ne(
        automaton_of("{\"patternProperties\":{\"a.{30}b\":{},\"b.{30}a\":{}}}", NULL, &a, &e),
        ERR_NONE);
    ck_assert_msg(strstr(e.msg, "patternProperties") != NULL, "%s", e.msg);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("join");
    TCase *t = tcase_create("join");
    tcase_add_test(t, what_two_parts_say_holds_for_both);
    tcase_add_test(t, an_automaton_finds_what_each_expression_finds);
    tcase_add_test(t, expressions_too_large_together_are_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
