/* test_refs.c -- what a schema's references mean: names, anchors, dots in addresses, dynamic
 * scopes, and the operator's documents, with bad ones refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/engine/grammar/automata.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static grammar_documents *documents;

static void setup(void)
{
    err e;
    ck_assert_msg(!grammar_documents_read(&documents, "http://d.example/=grammar/documents, ",
                                          "fixtures", &e),
                  "%s", e.msg);
    ck_assert_int_eq(grammar_documents_count(documents), 3);
}

static void teardown(void)
{
    grammar_documents_release(documents);
}

#define INNER                                                                                      \
    "\"list\":{\"$id\":\"list\",\"items\":{\"$dynamicRef\":\"#i\"},\"type\":\"array\",\"$defs\":{" \
    "\"d\":{\"$dynamicAnchor\":\"i\"}}}"

/* schema, what it takes, what it does not */
static const char *const cases[][3] = {
    /* By the operator's documents: their address, their own name, from one to the next. */
    {"{\"$ref\":\"http://d.example/list.json\"}", "[null,null]", "[1]"},
    {"{\"$ref\":\"https://example.com/list\"}", "[null]", "[1]"},
    {"{\"$ref\":\"http://d.example/more/part.json\"}", "{\"n\":1}", "{\"n\":null}"},
    {"{\"$ref\":\"http://d.example/more/part.json#/$defs/up\"}", "[null]", "[1]"},
    {"{\"$ref\":\"http://d.example/whole.json#word\"}", "\"w\"", "\"v\""},
    {"{\"$id\":\"http://d.example/x/y\",\"properties\":{\"a\":{\"$ref\":\"../whole.json#word\"},"
     "\"b\":{\"$ref\":\"#/properties/a\"}}}",
     "{\"b\":\"w\"}", "{\"b\":1}"},
    {"{\"properties\":{\"a\":{\"$ref\":\"https://example.com/list\"},\"b\":{\"$id\":\"urn:b\","
     "\"$defs\":{\"k\":{\"$dynamicAnchor\":\"item\",\"type\":\"integer\"}},\"$ref\":"
     "\"https://example.com/list\"}}}",
     "{\"a\":[null],\"b\":[7]}", "{\"a\":[null],\"b\":[null]}"},
    {"{\"properties\":{\"b\":{\"$id\":\"urn:b\",\"$defs\":{\"k\":{\"$dynamicAnchor\":\"item\","
     "\"type\":\"integer\"}},\"$ref\":\"https://example.com/list\"},"
     "\"a\":{\"$ref\":\"https://example.com/list\"}}}",
     "{\"b\":[7],\"a\":[null]}", "{\"a\":[7]}"},
    /* The outermost anchor counts, whatever stands between. */
    {"{\"$id\":\"http://r.example/root\",\"$ref\":\"list\",\"$defs\":{\"s\":{\"$dynamicAnchor\":"
     "\"i\",\"type\":\"string\"}," INNER "}}",
     "[\"a\"]", "[1]"},
    {"{\"$id\":\"http://r.example/root\",\"$ref\":\"between\",\"$defs\":{\"s\":{"
     "\"$dynamicAnchor\":\"i\",\"type\":\"integer\"},\"between\":{\"$id\":\"between\",\"$ref\":"
     "\"list\",\"$defs\":{\"x\":{\"$dynamicAnchor\":\"i\",\"type\":\"null\"}}}," INNER "}}",
     "[1]", "[null]"},
    {"{\"$id\":\"http://r.example/root\",\"properties\":{\"a\":{\"$ref\":\"numbers\"},\"b\":{"
     "\"$ref\":\"nulls\"}},\"$defs\":{\"numbers\":{\"$id\":\"numbers\",\"$ref\":\"list\",\"$defs\":"
     "{\"x\":{\"$dynamicAnchor\":\"i\",\"type\":\"integer\"}}},\"nulls\":{\"$id\":\"nulls\","
     "\"$ref\":\"list\",\"$defs\":{\"x\":{\"$dynamicAnchor\":\"i\",\"type\":\"null\"}}}," INNER
     "}}",
     "{\"a\":[1],\"b\":[null]}", "{\"a\":[1],\"b\":[2]}"},
    /* Not where the first stop is a plain anchor, or none. */
    {"{\"$id\":\"http://r.example/root\",\"$ref\":\"l\",\"$defs\":{\"s\":{\"$dynamicAnchor\":"
     "\"i\",\"type\":\"string\"},\"l\":{\"$id\":\"l\",\"$dynamicRef\":\"#i\",\"$defs\":{\"d\":{"
     "\"$anchor\":\"i\",\"type\":\"null\"}}}}}",
     "null", "\"a\""},
    {"{\"$id\":\"http://r.example/root\",\"$ref\":\"l\",\"$dynamicAnchor\":\"i\",\"$defs\":{"
     "\"l\":{\"$id\":\"l\",\"$dynamicRef\":\"#/$defs/d\",\"$defs\":{\"d\":{\"$dynamicAnchor\":"
     "\"i\",\"type\":\"null\"}}}}}",
     "null", "\"a\""},
    {"{\"$dynamicRef\":\"#a\",\"$ref\":\"#b\",\"$defs\":{\"a\":{\"$dynamicAnchor\":\"a\","
     "\"minimum\":3},\"b\":{\"$anchor\":\"b\",\"type\":\"integer\"}}}",
     "4", "2"},
    /* The same of draft 2019-09. */
    {"{\"$id\":\"http://r.example/root\",\"$recursiveAnchor\":true,\"$ref\":\"tree\","
     "\"required\":[\"k\"],\"$defs\":{\"tree\":{\"$id\":\"tree\",\"$recursiveAnchor\":true,"
     "\"properties\":{\"k\":{\"anyOf\":[{\"type\":\"null\"},{\"$recursiveRef\":\"#\"}]}}}}}",
     "{\"k\":{\"k\":null}}", "{\"k\":{}}"},
    {"{\"$id\":\"http://r.example/root\",\"$ref\":\"tree\",\"required\":[\"k\"],\"$defs\":{"
     "\"tree\":{\"$id\":\"tree\",\"properties\":{\"k\":{\"anyOf\":[{\"type\":\"null\"},{"
     "\"$recursiveRef\":\"#\"}]}}}}}",
     "{\"k\":{}}", "{}"},
    /* Where $id is no word, or not beside $ref. */
    {"{\"$schema\":\"http://json-schema.org/draft-04/schema#\",\"properties\":{\"a\":{\"$id\":"
     "\"/x\",\"$ref\":\"#/definitions/n\"}},\"definitions\":{\"n\":{\"type\":\"null\"}}}",
     "{\"a\":null}", "{\"a\":1}"},
    {"{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"properties\":{\"a\":{\"$id\":"
     "\"/x\",\"$ref\":\"#/definitions/n\"}},\"definitions\":{\"n\":{\"type\":\"null\"}}}",
     "{\"a\":null}", "{\"a\":1}"},
    /* Dots, fragments, pointers with odd characters. */
    {"{\"$id\":\"http://r.example/a/b.json\",\"$ref\":\"./c/../d.json#\",\"$defs\":{\"d\":{\"$id\":"
     "\"d.json\",\"type\":\"null\"}}}",
     "null", "1"},
    {"{\"$ref\":\"#/$defs/p%25q\",\"$defs\":{\"p%q\":{\"type\":\"null\"},\"p%25q\":{\"type\":"
     "\"integer\"}}}",
     "null", "1"},
    {"{\"$id\":\"urn:x:root\",\"$ref\":\"urn:x:other#t\",\"$defs\":{\"o\":{\"$id\":\"urn:x:other\","
     "\"$defs\":{\"t\":{\"$anchor\":\"t\",\"type\":\"null\"}}}}}",
     "null", "1"},
};

START_TEST(a_reference_leads_where_jsonschema_says)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        g_auto a;
        err e;
        ck_assert_msg(!automaton_of(cases[i][0], documents, &a, &e), "%s: %s", cases[i][0], e.msg);
        ck_assert_msg(automaton_takes(&a, cases[i][1]), "%s: %s", cases[i][0], cases[i][1]);
        ck_assert_msg(!automaton_takes(&a, cases[i][2]), "%s: %s", cases[i][0], cases[i][2]);
        g_auto_clear(&a);
    }
}
END_TEST

START_TEST(what_nobody_has_is_refused_by_name)
{
    static const char *const none[][2] = {
        {"{\"$ref\":\"http://d.example/none.json\"}", "grammar.documents"},
        {"{\"$ref\":\"http://d.example/list.json#none\"}", "grammar.documents"},
        {"{\"$ref\":\"#/%00\"}", "nowhere"},
        {"{\"$ref\":\"http://d.example/list.json#/none\"}", "nowhere"},
        {"{\"$dynamicRef\":\"#none\"}", "'$dynamicRef'"},
        {"{\" copies\":1,\"$ref\":\"#a\",\"$defs\":{\"a\":{\"$anchor\":\"a\"}}}", "' copies'"},
    };
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        g_auto a;
        err e = {.msg = ""};
        ck_assert_int_ne(automaton_of(none[i][0], documents, &a, &e), ERR_NONE);
        ck_assert_msg(strstr(e.msg, none[i][1]) != NULL, "%s: %s", none[i][0], e.msg);
    }
}
END_TEST

/* Each resource enters the next with one more anchor bound, by every way through them. */
START_TEST(copies_are_bounded)
{
    static char text[40000];
    size_t n =
        (size_t)snprintf(text, sizeof(text), "{\"$id\":\"urn:r\",\"$ref\":\"urn:n0\",\"$defs\":{");
    for (int i = 0; i < 40; i++) {
        n += (size_t)snprintf(
            text + n, sizeof(text) - n,
            "%s\"n%d\":{\"$id\":\"urn:n%d\",\"$dynamicAnchor\":\"a%d\",\"anyOf\":[", i ? "," : "",
            i, i, i);
        for (int k = 0; k < 40; k++)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s{\"$ref\":\"urn:n%d\"}",
                                  k ? "," : "", k);
        n += (size_t)snprintf(text + n, sizeof(text) - n, "]}");
    }
    snprintf(text + n, sizeof(text) - n, "}}");
    g_auto a;
    err e;
    ck_assert_int_eq(automaton_of(text, documents, &a, &e), ERR_LIMIT);
    ck_assert_msg(strstr(e.msg, "names and references") != NULL, "%s", e.msg);
}
END_TEST

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    (void)fputs(text, f);
    (void)fclose(f);
}

START_TEST(a_bad_document_is_refused_by_name)
{
    static const char *const bad[][3] = {
        {"x.json", "{", "http://b.example/x.json"},
        {"x.json", "[]", "http://b.example/x.json: it is no schema"},
        {"x", "{\"$id\":\"http://b.example/good.json\"}", "two files have this address"},
        {"x", "{\"a\":1,\"a\":2}", "http://b.example/x"},
    };
    char dir[64], said[128];
    tmpdir_make(dir);
    snprintf(said, sizeof(said), "http://b.example/=%s", dir);
    write_file(dir, "good.json", "true");
    write_file(dir, ".hidden", "[");
    err e;
    grammar_documents *d;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_file(dir, bad[i][0], bad[i][1]);
        ck_assert_int_ne(grammar_documents_read(&d, said, "", &e), ERR_NONE);
        ck_assert_msg(strstr(e.msg, bad[i][2]) != NULL, "%s: %s", bad[i][1], e.msg);
        char path[512];
        snprintf(path, sizeof(path), "%s/%s", dir, bad[i][0]);
        ck_assert_int_eq(unlink(path), 0);
    }
    ck_assert_msg(!grammar_documents_read(&d, said, "", &e), "%s", e.msg);
    ck_assert(cJSON_IsTrue(grammar_documents_find(d, "http://b.example/good.json")));
    ck_assert_ptr_null(grammar_documents_find(d, "http://b.example/.hidden"));
    grammar_documents_release(d);
    ck_assert_int_eq(grammar_documents_read(&d, "nothing", "", &e), ERR_INPUT);
    ck_assert_int_eq(grammar_documents_read(&d, "http://b.example/=/no/such/folder", "", &e),
                     ERR_IO);
    ck_assert(!grammar_documents_read(&d, "", "", &e) && d == NULL);
    tmpdir_remove(dir);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("refs");
    TCase *t = tcase_create("refs");
    tcase_add_unchecked_fixture(t, setup, teardown);
    tcase_add_test(t, a_reference_leads_where_jsonschema_says);
    tcase_add_test(t, what_nobody_has_is_refused_by_name);
    tcase_add_test(t, copies_are_bounded);
    tcase_add_test(t, a_bad_document_is_refused_by_name);
    suite_add_tcase(s, t);
    return run_suite(s);
}
