/* test_jinja.c -- templates against what the real Jinja makes of them (fixtures/jinja, made by
 * tests/tools/make_jinja_golden.py); who wrote what; bounds; broken templates.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/json.h"
#include "engine/chat/jinja.h"
#include "tests/run_suite.h"

static int64_t clock_2024(void)
{
    return 1721995200; /* 26 July 2024, 12:00 UTC */
}

static jinja_run *run_of(const jinja *t, const cJSON *vars, size_t memory)
{
    const cJSON *v;
    jinja_run *r = jinja_begin(t, memory, clock_2024);
    ck_assert_ptr_nonnull(r);
    cJSON_ArrayForEach(v, vars) jinja_set_json(r, v->string, v, true);
    return r;
}

/* The text, malloced; NULL: an error. */
static char *rendered(const char *text, const cJSON *vars, err *e)
{
    jinja *t;
    jinja_text out;
    char *copy = NULL;
    if (jinja_read(&t, text, strlen(text), e)) return NULL;
    jinja_run *r = run_of(t, vars, 64 << 20);
    if (!jinja_render(r, &out, e)) {
        ck_assert_uint_eq(strlen(out.text), out.len);
        copy = strdup(out.text);
    }
    jinja_end(r);
    jinja_destroy(t);
    return copy;
}

static cJSON *parsed(const char *text)
{
    cJSON *v;
    err e;
    ck_assert_msg(!json_parse(text, strlen(text), &json_limits_trusted, &v, &e), "%s", e.msg);
    return v;
}

/* Calls `fn` for each line of the fixture but the first, which holds the variables. */
static int each_case(void (*fn)(const char *text, const cJSON *want, const cJSON *vars))
{
    FILE *f = fopen("fixtures/jinja/cases.jsonl", "rb");
    ck_assert_ptr_nonnull(f);
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    cJSON *head = NULL;
    while (getline(&line, &cap, f) > 0) {
        cJSON *c = parsed(line);
        if (!head) {
            head = c;
            continue;
        }
        fn(json_get(c, "t")->valuestring, json_get(c, "o"), json_get(head, "v"));
        cJSON_Delete(c);
        n++;
    }
    free(line);
    cJSON_Delete(head);
    ck_assert_int_eq(fclose(f), 0);
    return n;
}

static int wrong;

static void compare(const char *text, const cJSON *want, const cJSON *vars)
{
    err e = {.msg = ""};
    char *got = rendered(text, vars, &e);
    const char *wanted = cJSON_IsString(want) ? want->valuestring : NULL;
    if ((got == NULL) != (wanted == NULL) || (got && strcmp(got, wanted) != 0)) {
        wrong++;
        printf("---- %s\n---- wanted\n%s\n---- got\n%s\n", text, wanted ? wanted : "(error)",
               got ? got : e.msg);
    }
    ck_assert(got || e.msg[0]);
    free(got);
}

START_TEST(as_the_real_jinja)
{
    ck_assert_int_ge(each_case(compare), 600);
    ck_assert_int_eq(wrong, 0);
}
END_TEST

/* Strangers' bytes in [brackets]. */
START_TEST(who_wrote_what)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"a{{ u }}b", "a[<x> y]b"},
        {"{{ 'a' + u + 'b' }}{{ u }}", "a[<x> y]b[<x> y]"},
        {"{{ u | upper | trim }}-{{ u[1:3] }}-{{ u.split(' ') | join('+') }}",
         "[<X> Y]-[x>]-[<x>]+[y]"},
        {"{{ u | replace('x', 'y') }}", "[<]y[> y]"},
        {"{{ [u, 'b'] }}", "['[<x> y]', 'b']"},
        {"{{ o | tojson }}", "{\"[k]\": [\"[v\\n]\"]}"},
        {"{% set q %}({{ u }}){% endset %}{{ q }}", "([<x> y])"},
        {"{% macro m(x) %}({{ x }}){% endmacro %}{{ m(u) | title }}", "([<X> Y])"},
        {"{{ u ~ 'z' | indent }}{{ '%' ~ u[::-1] }}", "[<x> y]z%[y >x<]"},
        {"{{ 5 }}{{ n }}{{ u | length }}", "575"},
    };
    cJSON *vars = parsed("{\"u\":\"<x> y\",\"o\":{\"k\":[\"v\\n\"]},\"n\":7}");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        jinja *t;
        err e;
        jinja_text out;
        char shown[256];
        size_t n = 0, span = 0;
        ck_assert_msg(!jinja_read(&t, rows[i].text, strlen(rows[i].text), &e), "%s", e.msg);
        jinja_run *r = run_of(t, vars, 1 << 20);
        ck_assert_msg(!jinja_render(r, &out, &e), "%s", e.msg);
        for (size_t k = 0; k <= out.len; k++) {
            if (span < out.n_foreign && k == out.foreign[span].to) {
                shown[n++] = ']';
                span++;
            }
            if (span < out.n_foreign && k == out.foreign[span].from) shown[n++] = '[';
            shown[n++] = out.text[k];
        }
        ck_assert_str_eq(shown, rows[i].want);
        ck_assert_uint_eq(span, out.n_foreign);
        jinja_end(r);
        jinja_destroy(t);
    }
    cJSON_Delete(vars);
}
END_TEST

/* What would take for ever, all memory or all of the stack ends in an error. */
START_TEST(bombs_are_bounded)
{
    static const char *const texts[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for a in range(64) %}{% set ns.s = [ns.s, ns.s] %}{% "
        "endfor %}"
        "{{ ns.s }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{{ range(1000000000) }}",
        "{{ 'x' * 1000000000000 }}",
        "{{ [1] * 1000000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
        "{{ 'x' | indent(100000000) }}",
        "{{ 'x'.center(100000000) }}",
        "{{ [[[[]]]] | tojson(indent=100000) }}",
        "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ strftime_now('%Y' * 1000) | length }}{{ nothing.x }}",
        "{{ nothing | int }}",
        "{{ nothing | float(1) }}",
        "{{ 1e22 | int }}",
        "{{ '1e22' | int(0) }}",
        "{{ [[1], 2] | unique | list }}",
        "{{ 1 if 2 is string if 3 else 4 }}", /* `if` is the test's argument */
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        err e = {.msg = ""};
        char *s = rendered(texts[i], NULL, &e);
        ck_assert_msg(!s, "%s", texts[i]);
        ck_assert(e.msg[0]);
    }
}
END_TEST

static char *repeated(const char *head, const char *unit, int n, const char *tail)
{
    size_t u = strlen(unit), h = strlen(head);
    char *s = malloc(h + u * (size_t)n + strlen(tail) + 1);
    ck_assert_ptr_nonnull(s);
    memcpy(s, head, h);
    for (int i = 0; i < n; i++) memcpy(s + h + (size_t)i * u, unit, u);
    strcpy(s + h + (size_t)n * u, tail);
    return s;
}

START_TEST(deep_and_long_templates)
{
    static const struct {
        const char *head, *unit, *tail;
        int n;
        bool reads;
    } rows[] = {
        {"{{ ", "(", "", 5000, false},
        {"{{ ", "[", "", 100, false},
        {"{{ ", "-", "1 }}", 5000, false},
        {"{{ ", "not ", "1 }}", 5000, true},
        {"{{ 1", " + 1", " }}", 5000, true},
        {"{{ 1", " if 1 else 1", " }}", 5000, false},
        {"{{ u", " | trim", " }}", 100, true},
        {"{{ u", ".x", " }}", 5000, true},
        {"", "{% if 1 %}", "", 5000, false},
        {"", "{% for x in y %}", "", 110, false},
        {"{% if a %}", "{% elif a %}x", "{% endif %}", 4000, true},
        {"", "{{ a }}", "", 8000, true},
        {"", "{{ 'a' }}{% set a = 1 %}", "", 100000, false},
        {"{{ a", "a", " }}", 5000, false},
        {"{{ 1", "1", " }}", 5000, false},
        {"{# ", "x", "", 5000, false},
        {"", "{", "", 5000, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        err e = {.msg = ""};
        jinja *t;
        char *s = repeated(rows[i].head, rows[i].unit, rows[i].n, rows[i].tail);
        err_code rc = jinja_read(&t, s, strlen(s), &e);
        ck_assert_msg((rc == ERR_NONE) == rows[i].reads, "%zu: %s", i, e.msg);
        ck_assert(!rc || e.msg[0]);
        if (!rc) {
            jinja_text out;
            jinja_run *r = run_of(t, NULL, 1 << 20);
            (void)jinja_render(r, &out, &e);
            jinja_end(r);
        }
        jinja_destroy(t);
        free(s);
    }
}
END_TEST

static uint32_t lot = 1;

static uint32_t draw(uint32_t n)
{
    lot = lot * 1664525u + 1013904223u;
    return (lot >> 8) % n;
}

/* Bytes changed, lost and doubled: read and rendered without harm (the sanitizers look on). */
static void mutate(const char *text, const cJSON *want, const cJSON *vars)
{
    static const char odd[] = "{}%#'\"\\-+[]()*|\n\x01~.:,=<>\xff\xc3";
    size_t len = strlen(text);
    (void)want;
    for (int i = 0; i < 6; i++) {
        char *broken = malloc(len + 8);
        ck_assert_ptr_nonnull(broken);
        memcpy(broken, text, len + 1);
        for (uint32_t k = 0; k < 1 + draw(3) && len; k++) {
            uint32_t at = draw((uint32_t)len);
            if (draw(3) == 0)
                memmove(broken + at, broken + at + 1, strlen(broken) - at);
            else
                broken[at] = odd[draw(sizeof(odd) - 1)];
            len = strlen(broken);
            if (!len) break;
        }
        if (len && draw(6) == 0) broken[draw((uint32_t)len)] = 0;
        err e = {.msg = ""};
        char *exact = strdup(broken); /* as large as it is, so that a step beyond is seen */
        char *out = rendered(exact, vars, &e);
        ck_assert(out || e.msg[0]);
        free(out);
        free(exact);
        free(broken);
        len = strlen(text);
    }
}

START_TEST(broken_templates_do_no_harm)
{
    ck_assert_int_ge(each_case(mutate), 600);
}
END_TEST

/* Any amount of memory that is too little is an error and nothing else. */
START_TEST(short_of_memory)
{
    static const char text[] = "{% for m in list %}{% set x %}{{ m | tojson(indent=2) }}{% endset "
                               "%}{{ x | upper }}{% endfor %}"
                               "{% macro f(a, b=[1]) %}{{ a.items() | list }}{{ b }}{% endmacro "
                               "%}{{ f({'a': list | sort}) }}";
    cJSON *vars = parsed("{\"list\":[\"abcdefgh\",\"b\",\"c\"]}");
    jinja *t;
    err e;
    int ok = 0;
    ck_assert_msg(!jinja_read(&t, text, strlen(text), &e), "%s", e.msg);
    for (size_t memory = 0; memory < 40000; memory += 16) {
        jinja_text out;
        jinja_run *r = run_of(t, vars, memory);
        err_code rc = jinja_render(r, &out, &e);
        ck_assert(rc == ERR_NONE || rc == ERR_LIMIT);
        ck_assert(rc == ERR_NONE || !ok); /* more is never worse */
        ok += rc == ERR_NONE;
        jinja_end(r);
    }
    ck_assert_int_gt(ok, 0);
    jinja_destroy(t);
    cJSON_Delete(vars);
}
END_TEST

/* As Python's json.loads reads numbers, and str() and json.dumps() write them. */
START_TEST(numbers_are_those_of_the_body)
{
    static const struct {
        const char *json, *text;
    } number[] = {{"9007199254740993", "9007199254740993"},
                  {"1180920442763083827", "1180920442763083827"},
                  {"-9223372036854775808", "-9223372036854775808"},
                  {"18446744073709551617", "18446744073709551617"},
                  {"1700000000000000", "1700000000000000"},
                  {"1.0", "1.0"},
                  {"-0.0", "-0.0"},
                  {"-0", "0"},
                  {"1e5", "100000.0"},
                  {"1e22", "1e+22"},
                  {"0.10", "0.1"}};
    for (size_t i = 0; i < sizeof(number) / sizeof(number[0]); i++) {
        char json[128], wanted[256];
        snprintf(json, sizeof(json), "{\"n\":%s,\"l\":[%s]}", number[i].json, number[i].json);
        snprintf(wanted, sizeof(wanted), "%s %s [%s] True", number[i].text, number[i].text,
                 number[i].text);
        cJSON *vars = parsed(json);
        err e;
        char *got =
            rendered("{{ n }} {{ n|tojson }} {{ l }} {{ n is number and n == l[0] }}", vars, &e);
        ck_assert_msg(got != NULL, "%s: %s", json, e.msg);
        ck_assert_str_eq(got, wanted);
        free(got);
        ck_assert_ptr_null(rendered("{{ n // 0 }}", vars, &e)); /* and nothing is reckoned wrong */
        cJSON_Delete(vars);
    }
}
END_TEST

/* `part` with each # as n digits. */
static void put_digits(char *text, const char *part, int n)
{
    for (; *part; part++) {
        int times = *part == '#' ? n : 1;
        memset(text, *part == '#' ? '1' : *part, (size_t)times);
        text += times;
    }
    *text = 0;
}

/* However many digits a template writes, in whatever part of a number. */
START_TEST(numbers_of_any_length_end)
{
    static const char *const part[] = {"{{ # }}",   "{{ #.5 }}",   "{{ #.# }}",
                                       "{{ 1.# }}", "{{ #e+5 }}",  "{{ #.5e-# }}",
                                       "{{ 0b# }}", "{{ 0x#_# }}", "{{ 1e# }}"};
    char text[1024];
    for (int n = 1; n < 200; n++) {
        for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
            err whatever;
            put_digits(text, part[i], n);
            char *got = rendered(text, NULL, &whatever);
            ck_assert_msg(got || n > 2, "%s: %s", text, whatever.msg);
            free(got);
        }
    }
    err e;
    char *got = rendered("{{ 0x1F + 0b1_01 + 0o17 }} {{ 1_000.25e-1 }} {{ 2E2 }}", NULL, &e);
    ck_assert_ptr_nonnull(got);
    ck_assert_str_eq(got, "51 100.025 200.0");
    free(got);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("jinja");
    TCase *tc = tcase_create("jinja");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, as_the_real_jinja);
    tcase_add_test(tc, numbers_are_those_of_the_body);
    tcase_add_test(tc, numbers_of_any_length_end);
    tcase_add_test(tc, who_wrote_what);
    tcase_add_test(tc, bombs_are_bounded);
    tcase_add_test(tc, deep_and_long_templates);
    tcase_add_test(tc, broken_templates_do_no_harm);
    tcase_add_test(tc, short_of_memory);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
