/* test_yaml.c -- block YAML of JSON: nesting, texts that need quotes, escapes. */
#include <stdio.h>
#include <stdlib.h>

#include <check.h>

#include "tests/run_suite.h"
#include "tui/yaml.h"

static void check(const char *json, const char *yaml)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    cJSON *v = cJSON_Parse(json);
    ck_assert_ptr_nonnull(v);
    yaml_print(f, v);
    (void)fclose(f);
    ck_assert_str_eq(text, yaml);
    cJSON_Delete(v);
    free(text);
}

START_TEST(nesting)
{
    check("{\"a\":{\"b\":[1,{\"c\":2,\"d\":[]},[3,4]],\"e\":{}},\"f\":null}",
          "a:\n  b:\n    - 1\n    - c: 2\n      d: []\n    - - 3\n      - 4\n  e: {}\nf: null\n");
    check("[]", "[]\n");
    check("[{\"name\":\"acme\",\"r\":1.5}]", "- name: acme\n  r: 1.5\n");
    check("true", "true\n");
}
END_TEST

START_TEST(texts_in_quotes)
{
    check(
        "{\"a\":\"yes\",\"b\":\"12\",\"c\":\"\",\"d\":\"x: y\",\"e\":\"a#b\",\"f\":\"2026-11-29\"}",
        "a: \"yes\"\nb: \"12\"\nc: \"\"\nd: \"x: y\"\ne: \"a#b\"\nf: \"2026-11-29\"\n");
    check("{\"No\":\"Null\",\"a b\":\"-\"}", "\"No\": \"Null\"\n\"a b\": \"-\"\n");
    check("[\"two\\nlines\",\"adapters/a@2\"]", "- \"two\\nlines\"\n- adapters/a@2\n");
}
END_TEST

START_TEST(a_terminal_obeys_nothing)
{
    check("[\"\\u001b[2J\",\"\\u009b\",\"\\u007f\",\"\\u202e\"]",
          "- \"\\u001b[2J\"\n- \"\\u009b\"\n- \"\\u007f\"\n- \"\\u202e\"\n");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("yaml");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, nesting);
    tcase_add_test(tc, texts_in_quotes);
    tcase_add_test(tc, a_terminal_obeys_nothing);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
