/* test_grammar.c -- which texts a grammar takes, judged before by jsonschema, re and lark
 * (tests/tools/make_grammar_golden.py); masks against the plain way of asking token by token; what
 * is refused, and that nothing hostile takes long or much. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <check.h>

#include "engine/base/json.h"
#include "engine/grammar/automaton/grammar_automaton.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/schema/grammar_schema.h"
#include "tests/run_suite.h"

static tokenizer *tok;
static grammar_maker *maker;
static grammar_walk *walk;
static int32_t eos;

static void setup(void)
{
    err e;
    ck_assert_msg(tokenizer_load(&tok, "../conf/demo/base", &e) == ERR_NONE, "%s", e.msg);
    ck_assert_msg(grammar_maker_create(&maker, tok, tokenizer_vocab(tok), &e) == ERR_NONE, "%s",
                  e.msg);
    walk = grammar_walk_create();
    eos = tokenizer_eos(tok);
    ck_assert_int_ge(eos, 0);
}

static void teardown(void)
{
    grammar_walk_destroy(walk);
    grammar_maker_destroy(maker);
    tokenizer_destroy(tok);
}

static err_code compile(const char *kind, const char *text, grammar **out, err *e)
{
    cJSON *tree = NULL;
    bool regex = strcmp(kind, "regex") == 0, cfg = strcmp(kind, "grammar") == 0;
    if (!regex && !cfg) {
        ck_assert_msg(json_parse(text, strlen(text), &json_limits_trusted, &tree, e) == ERR_NONE,
                      "%s: %s", text, e->msg);
    }
    grammar_spec spec = {.kind = regex                         ? GRAMMAR_REGEX
                                 : cfg                         ? GRAMMAR_CFG
                                 : strcmp(kind, "choice") == 0 ? GRAMMAR_CHOICE
                                                               : GRAMMAR_SCHEMA,
                         .json = tree,
                         .text = regex || cfg ? text : NULL};
    err_code rc = grammar_acquire(maker, &spec, out, e);
    cJSON_Delete(tree);
    return rc;
}

static grammar *must(const char *kind, const char *text)
{
    err e;
    grammar *g;
    ck_assert_msg(compile(kind, text, &g, &e) == ERR_NONE, "%.200s: %s", text, e.msg);
    return g;
}

static const uint32_t *mask_of(grammar_run *r)
{
    const uint32_t *m;
    while (!(m = grammar_run_mask(r, walk))) {
        struct timespec t = {0, 100000};
        (void)nanosleep(&t, NULL);
    }
    return m;
}

static bool allowed(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> (id % 32) & 1;
}

/* Whether the text goes through, token by token, and may end there. */
static bool takes(grammar *g, const char *text)
{
    int32_t ids[2048];
    int64_t n = tokenizer_encode(tok, text, strlen(text), 0, ids, 2048);
    ck_assert(n >= 0 && n < 2048);
    grammar_run *r = grammar_run_create(g, &eos, 1);
    bool ok = true;
    for (int64_t i = 0; i < n && ok; i++) {
        ok = !grammar_run_over(r) && allowed(mask_of(r), ids[i]);
        if (ok) grammar_run_accept(r, walk, ids[i]);
        ck_assert_msg(!grammar_run_failed(r), "%s: an allowed token is not taken", text);
    }
    if (ok && !grammar_run_over(r)) ok = allowed(mask_of(r), eos);
    grammar_run_release(r);
    return ok;
}

START_TEST(takes_and_refuses_what_jsonschema_does)
{
    FILE *f = fopen("fixtures/grammar/cases.jsonl", "r");
    ck_assert_ptr_nonnull(f);
    char *line = NULL;
    size_t cap = 0;
    int n_yes = 0, n_no = 0;
    while (getline(&line, &cap, f) > 0) {
        cJSON *tree = NULL;
        err e;
        ck_assert_int_eq(json_parse(line, strlen(line), &json_limits_trusted, &tree, &e), ERR_NONE);
        const char *kind = tree->child->string;
        char *spec = cJSON_IsString(tree->child) ? strdup(tree->child->valuestring)
                                                 : cJSON_PrintUnformatted(tree->child);
        grammar *g = must(kind, spec);
        const cJSON *v;
        cJSON_ArrayForEach(v, json_get(tree, "yes"))
        {
            ck_assert_msg(takes(g, v->valuestring), "%.300s does not take %s", spec,
                          v->valuestring);
            n_yes++;
        }
        cJSON_ArrayForEach(v, json_get(tree, "no"))
        {
            ck_assert_msg(!takes(g, v->valuestring), "%.300s takes %s", spec, v->valuestring);
            n_no++;
        }
        grammar_release(g);
        free(spec);
        cJSON_Delete(tree);
    }
    free(line);
    (void)fclose(f);
    ck_assert_int_gt(n_yes, 800);
    ck_assert_int_gt(n_no, 1800);
}
END_TEST

typedef struct {
    const char *kind, *spec, *text, *answer; /* answer: '+' taken, '-' not */
} single;

/* Names that begin alike, and some that no other key can come near. */
#define OTHERS                                                                              \
    "{\"type\":\"object\",\"properties\":{\"abd\":{\"type\":\"null\"},\"a\\\"\":{\"type\":" \
    "\"null\"},"                                                                            \
    "\"ab\":{\"type\":\"null\"},\"\\u00e9\":{\"type\":\"null\"}},"                          \
    "\"additionalProperties\":{\"type\":\"boolean\"}}"

/* An object that has this member alone; one whose kind is told by a member; one of any type. */
#define SHUT(name)                                                                            \
    "{\"properties\":{\"" name "\":{}},\"required\":[\"" name "\"],\"additionalProperties\":" \
    "false}"
#define ANY_KIND(name) "{\"properties\":{\"kind\":{\"pattern\":\"" name "\"},\"n\":{}}}"
#define KIND(name) \
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"" name "\"},\"n\":{}}}"

static const single singles[] = {
    {"schema", "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":12}", "-5", "+"},
    {"schema", "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":12}", "-6", "-"},
    {"schema", "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":12}", "13", "-"},
    {"schema", "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":12}", "-0", "-"},
    {"schema", "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":12}", "07", "-"},
    {"schema", "{\"type\":\"number\",\"minimum\":0.25,\"exclusiveMaximum\":3}", "0.25", "+"},
    {"schema", "{\"type\":\"number\",\"minimum\":0.25,\"exclusiveMaximum\":3}", "0.2499", "-"},
    {"schema", "{\"type\":\"number\",\"minimum\":0.25,\"exclusiveMaximum\":3}", "2.999", "+"},
    {"schema", "{\"type\":\"number\",\"minimum\":0.25,\"exclusiveMaximum\":3}", "3", "-"},
    {"schema", "{\"type\":\"number\",\"minimum\":0.25,\"exclusiveMaximum\":3}", "3.0", "-"},
    {"schema", "{\"type\":\"number\"}", "-1.5e-7", "+"},
    {"schema", "{\"type\":\"number\"}", "1.", "-"},
    {"schema", "{\"type\":\"number\"}", "-0", "-"},
    {"schema", "{\"type\":\"number\"}", "-0.5", "+"},
    {"schema", "{\"type\":\"string\"}", "\"\\u00e9\\n\\\"\"", "+"},
    {"schema", "{\"type\":\"string\"}", "\"\\ud83d\"", "-"},
    {"schema", "{\"type\":\"string\"}", "\"\\ue000\\uFFFD\"", "+"},
    {"schema", "{\"type\":\"string\"}", "\"\\u0000\"", "-"},
    {"schema", "{\"type\":\"string\"}", "\"a\nb\"", "-"},
    {"schema", "{\"type\":\"string\",\"maxLength\":2}", "\"\xF0\x9F\x98\x80\xC3\xA9\"", "+"},
    {"schema", "{\"type\":\"string\",\"maxLength\":2}", "\"abc\"", "-"},
    {"schema", "{\"type\":\"string\",\"minLength\":2}", "\"a\"", "-"},
    {"schema", "{\"type\":\"string\",\"pattern\":\"^a[\\\"\\\\\\\\]b$\"}", "\"a\\\"b\"", "+"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},"
     "\"additionalProperties\":{\"type\":\"boolean\"}}",
     "{\"a\":null,\"b\":true}", "+"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},"
     "\"additionalProperties\":{\"type\":\"boolean\"}}",
     "{\"a\":true}", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},"
     "\"additionalProperties\":{\"type\":\"boolean\"}}",
     "{\"\\u0061\":true}", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},"
     "\"additionalProperties\":{\"type\":\"boolean\"}}",
     "{\"ab\":true, \"\": false}", "+"},
    {"schema", OTHERS, "{\"ab\":null,\"a\":true}", "+"},
    {"schema", OTHERS, "{\"ab\":true}", "-"},
    {"schema", OTHERS, "{\"abd\":true}", "-"},
    {"schema", OTHERS, "{\"abc\":true}", "+"},
    {"schema", OTHERS, "{\"abde\":true}", "+"},
    {"schema", OTHERS, "{\"b\":true}", "+"},
    {"schema", OTHERS, "{\"\":true}", "+"},
    {"schema", OTHERS, "{\"ab\":null,\"ab\":true}", "-"},
    {"schema", OTHERS, "{\"\\u00e9\":true}", "-"},
    {"schema", "{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"type\":\"null\"}}}", "null", "+"},
    {"schema", "{\"type\":\"integer\",\"enum\":[1,\"1\",2.5]}", "\"1\"", "-"},
    {"schema", "{\"type\":\"integer\",\"enum\":[1,\"1\",2.5]}", "1", "+"},
    {"schema", "{\"const\":9007199254740991}", "9007199254740991", "+"},
    {"schema", "{\"const\":1180920442763083827}", "1180920442763083827", "+"},
    {"schema", "{\"const\":36893488147419103232}", "36893488147419103232", "+"},
    {"schema", "{\"enum\":[1000000000000000,1700000000000000]}", "1700000000000000", "+"},
    {"schema", "{\"enum\":[9007199254740993,9007199254740992]}", "9007199254740992", "+"},
    {"schema", "{\"enum\":[9007199254740993,9007199254740994]}", "9007199254740992", "-"},
    {"schema", "{\"const\":9007199254740993}", "9007199254740993", "+"}, /* not the cached one */
    {"schema", "{\"type\":\"integer\",\"minimum\":9007199254740993,\"maximum\":9007199254740993}",
     "9007199254740993", "+"},
    {"schema", "{\"type\":\"integer\",\"minimum\":9007199254740993,\"maximum\":9007199254740995}",
     "9007199254740992", "-"},
    {"schema", "{\"type\":\"integer\",\"exclusiveMaximum\":9007199254740995,\"minimum\":1}",
     "9007199254740994", "+"},
    {"schema", "{\"type\":\"integer\",\"exclusiveMaximum\":9007199254740995,\"minimum\":1}",
     "9007199254740995", "-"},
    {"schema",
     "{\"type\":\"integer\",\"minimum\":1180920442763083827,\"maximum\":9223372036854775807}",
     "1180920442763083826", "-"},
    {"schema",
     "{\"type\":\"integer\",\"minimum\":1180920442763083827,\"maximum\":9223372036854775807}",
     "9223372036854775807", "+"},
    {"schema", "{\"type\":\"integer\",\"maximum\":-9007199254740993}", "-9007199254740992", "-"},
    {"schema", "{\"type\":\"number\",\"minimum\":9007199254740993,\"maximum\":9007199254740995}",
     "9007199254740992", "-"},
    {"schema", "{\"type\":\"number\",\"minimum\":9007199254740993,\"maximum\":9007199254740995}",
     "9007199254740993.5", "+"},
    /* oneOf: branches that exclude each other, by what is said or by a member that is required. */
    {"schema", "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"},{\"type\":\"null\"}]}",
     "null", "+"},
    {"schema",
     "{\"oneOf\":[{\"type\":\"integer\",\"maximum\":4},{\"type\":\"number\",\"exclusiveMinimum\":4}"
     "]}",
     "4", "+"},
    {"schema", "{\"oneOf\":[{\"maxLength\":2},{\"minLength\":3,\"type\":\"string\"}]}", "\"abc\"",
     "+"},
    {"schema", "{\"oneOf\":[" SHUT("a") "," SHUT("b") "]}", "{\"b\":1}", "+"},
    {"schema", "{\"oneOf\":[" SHUT("a") "," SHUT("b") "]}", "{}", "-"},
    {"schema", "{\"oneOf\":[" KIND("x") "," KIND("y") "," KIND("z") "]}",
     "{\"kind\":\"z\",\"n\":1}", "+"},
    {"schema", "{\"oneOf\":[" KIND("x") "," KIND("y") "," KIND("z") "]}", "{\"n\":1}", "-"},
    {"schema",
     "{\"oneOf\":[{\"$ref\":\"#/$defs/x\"},{\"allOf\":[{\"properties\":{\"kind\":{\"enum\":[1]}},"
     "\"required\":[\"kind\"]}]}],\"$defs\":{\"x\":" KIND("x") "}}",
     "{\"kind\":1}", "+"},
    {"schema", "true", "[1,{\"a\":[null]}]", "+"},
    {"schema", "{}", "[1,]", "-"},
    {"regex", "a{3}", "aa", "-"},
    {"regex", "(a|b)*c", "abbac", "+"},
    {"regex", "(a*)*b", "aaab", "+"},
    {"regex", "^(x|y)$", "y", "+"},
    {"regex", "[\\w.-]+@[^@ ]+", "a.b-c@d\xC3\xA9", "+"},
    /* What dialects see differently is left out, also of what is negated. */
    {"regex", "[^\\S]", " ", "+"},
    {"regex", "[^\\S]", "\x05", "-"},
    {"regex", "[^\\s]", "b", "+"},
    {"regex", "[^\\s]", "\xC2\xA0", "-"},
    {"regex", "[^\\s]", "\x1C", "-"},
    {"regex", "[^\\w]", "-", "+"},
    {"regex", "[^\\w]", "\xC3\xA9", "-"},
    {"regex", "[^\\W]", "b", "+"},
    {"regex", "[^\\W]", "\xC3\xA9", "-"},
    {"regex", "[^\\d-]", "-", "-"},
    {"regex", "[^\\d-]", "\xD9\xA0", "-"},
    {"regex", "[^\\D]", "5", "+"},
    {"regex", "\\d{10,12}", "123456789", "-"},
    {"regex", "\\d{10,12}", "1234567890123", "-"},
    {"regex", "\\d{10,12}z?", "12345678901z", "+"},
    /* Many turns of a group. */
    {"regex", "(?:\\S+\\s){2,20}x", "ab c x", "+"},
    {"regex", "(?:\\S+\\s){2,20}x", "a x", "-"},
    {"regex", "(?:\\S+\\s){2,20}x", "a a a a a a a a a a a a a a a a a a a a x", "+"},
    {"regex", "(?:\\S+\\s){2,20}x", "a a a a a a a a a a a a a a a a a a a a a x", "-"},
    /* Look-aheads, anchors inside, properties. */
    {"regex", "^(?!ab)[a-z]*$", "ba", "+"},
    {"regex", "^(?!ab)[a-z]*$", "abc", "-"},
    {"regex", "^(?!ab$)[a-z]*$", "abc", "+"},
    {"regex", "^(?=.*b)[a-c]+$", "acb", "+"},
    {"regex", "^(?=.*b)[a-c]+$", "aca", "-"},
    {"regex", "((?!bad).)*", "a bat", "+"},
    {"regex", "((?!bad).)*", "abadb", "-"},
    {"regex", "(x(?=y)|y)+", "xyy", "+"},
    {"regex", "(x(?=y)|y)+", "yxx", "-"},
    {"regex", "(x(?!y)|y)+", "xxy", "-"},
    {"regex", "([a-z](?:(?!.*--)[a-z-]*[a-z])?)", "a-b", "+"},
    {"regex", "([a-z](?:(?!.*--)[a-z-]*[a-z])?)", "a--b", "-"},
    {"regex", "(?!^a|b)[a-c]{2}", "ca", "+"},
    {"regex", "(?!^a|b)[a-c]{2}", "bc", "-"},
    {"regex", "(?!\\s)[^x]", "\xC2\xA0", "-"},
    {"regex", "(?!a)[^x]", "\xC3\xA9", "+"},
    {"regex", "^([^,]+(,|$)){2,}$", "a,b", "+"},
    {"regex", "^([^,]+(,|$)){2,}$", "a,", "-"},
    {"regex", "a$|^b", "b", "+"},
    {"regex", "(^x$)|y", "x", "+"},
    {"regex", "(a|^)b", "ab", "+"},
    {"regex", "a(^b|c)", "ab", "-"},
    {"regex", "<(a)(/|\\1)>", "<a/>", "+"},
    {"regex", "<(a)(/|\\1)>", "<aa>", "-"},
    {"regex", "\\p{Lu}\\p{Letter}+", "\xC3\x89x\xE6\x97\xA5", "+"},
    {"regex", "\\p{Lu}\\p{Letter}+", "aa", "-"},
    {"regex", "[\\p{Nd}x]", "\xD9\xA1", "+"},
    {"regex", "\\P{L}", "a", "-"},
    {"regex", "\\P{L}", "1", "+"},
    {"regex", "[^\\p{L}]", "1", "+"},
    {"regex", "[^\\p{L}]", "\xCD\xB8", "-"},
    {"choice", "[\"ab\",\"abc\"]", "ab", "+"},
    {"choice", "[\"ab\",\"abc\"]", "abc", "+"},
    {"choice", "[\"ab\",\"abc\"]", "a", "-"},
};

static void check_singles(const single *s, size_t n)
{
    for (size_t i = 0; i < n; i++, s++) {
        grammar *g = must(s->kind, s->spec);
        ck_assert_msg(takes(g, s->text) == (s->answer[0] == '+'), "%s: %s", s->spec, s->text);
        grammar_release(g);
    }
}

START_TEST(takes_single_texts)
{
    check_singles(singles, sizeof(singles) / sizeof(singles[0]));
}
END_TEST

/* Keywords that are said by others, and what a member's name decides. */
static const single reduced[] = {
    {"schema", "{\"type\":\"integer\",\"readonly\":true,\"x-y\":1}", "1", "+"},
    {"schema", "{\"type\":\"string\",\"format\":\"topic\"}", "\"a\"", "+"},
    {"schema", "{\"type\":\"string\",\"format\":\"json-pointer\"}", "\"a\"", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"a\",\"b\"]},\"n\":{\"type\":"
     "\"integer\"}},\"required\":[\"k\"],\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}}},"
     "\"then\":{\"required\":[\"n\"]},\"else\":{\"properties\":{\"n\":false}}}",
     "{\"k\":\"a\",\"n\":1}", "+"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"a\",\"b\"]},\"n\":{\"type\":"
     "\"integer\"}},\"required\":[\"k\"],\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}}},"
     "\"then\":{\"required\":[\"n\"]},\"else\":{\"properties\":{\"n\":false}}}",
     "{\"k\":\"a\"}", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"a\",\"b\"]},\"n\":{\"type\":"
     "\"integer\"}},\"required\":[\"k\"],\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}}},"
     "\"then\":{\"required\":[\"n\"]},\"else\":{\"properties\":{\"n\":false}}}",
     "{\"k\":\"b\"}", "+"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"a\",\"b\"]},\"n\":{\"type\":"
     "\"integer\"}},\"required\":[\"k\"],\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}}},"
     "\"then\":{\"required\":[\"n\"]},\"else\":{\"properties\":{\"n\":false}}}",
     "{\"k\":\"b\",\"n\":1}", "-"},
    {"schema",
     "{\"type\":\"integer\",\"allOf\":[{\"if\":{\"minimum\":5},\"then\":{\"maximum\":7}},{\"if\":{"
     "\"minimum\":3},\"then\":{\"maximum\":9},\"else\":{\"maximum\":1}}]}",
     "6", "+"},
    {"schema",
     "{\"type\":\"integer\",\"allOf\":[{\"if\":{\"minimum\":5},\"then\":{\"maximum\":7}},{\"if\":{"
     "\"minimum\":3},\"then\":{\"maximum\":9},\"else\":{\"maximum\":1}}]}",
     "8", "-"},
    {"schema",
     "{\"type\":\"integer\",\"allOf\":[{\"if\":{\"minimum\":5},\"then\":{\"maximum\":7}},{\"if\":{"
     "\"minimum\":3},\"then\":{\"maximum\":9},\"else\":{\"maximum\":1}}]}",
     "2", "-"},
    {"schema",
     "{\"type\":\"integer\",\"allOf\":[{\"if\":{\"minimum\":5},\"then\":{\"maximum\":7}},{\"if\":{"
     "\"minimum\":3},\"then\":{\"maximum\":9},\"else\":{\"maximum\":1}}]}",
     "1", "+"},
    {"schema", "{\"not\":{\"type\":\"number\"}}", "1", "-"},
    {"schema", "{\"not\":{\"type\":\"number\"}}", "\"a\"", "+"},
    {"schema", "{\"not\":{\"type\":\"integer\"}}", "1.5", "+"},
    {"schema", "{\"not\":{\"type\":\"integer\"}}", "1.0", "-"},
    {"schema", "{\"type\":\"string\",\"not\":{\"enum\":[\"ab\",\"abc\",1]}}", "\"abc\"", "-"},
    {"schema", "{\"type\":\"string\",\"not\":{\"enum\":[\"ab\",\"abc\",1]}}", "\"abd\"", "+"},
    {"schema", "{\"not\":{\"const\":true}}", "true", "-"},
    {"schema", "{\"not\":{\"const\":true}}", "false", "+"},
    {"schema", "{\"not\":{\"const\":1}}", "1.0", "-"},
    {"schema", "{\"enum\":[1,2,3],\"not\":{\"const\":2}}", "2", "-"},
    {"schema", "{\"enum\":[1,2,3],\"not\":{\"const\":2}}", "3", "+"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"not\":{\"required\":[\"a\"]}}",
     "{\"a\":1}", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"not\":{\"required\":[\"a\"]}}",
     "{\"b\":1}", "+"},
    {"schema", "{\"type\":\"string\",\"not\":{\"minLength\":3}}", "\"abc\"", "-"},
    {"schema", "{\"type\":\"string\",\"not\":{\"minLength\":3}}", "\"ab\"", "+"},
    {"schema", "{\"not\":{\"not\":{\"type\":\"null\"}}}", "null", "+"},
    {"schema", "{\"not\":{\"not\":{\"type\":\"null\"}}}", "1", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"not\":{\"properties\":{"
     "\"a\":{\"maximum\":5}},\"required\":[\"a\"]}}",
     "{\"a\":5}", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"not\":{\"properties\":{"
     "\"a\":{\"maximum\":5}},\"required\":[\"a\"]}}",
     "{\"a\":6}", "+"},
    {"schema",
     "{\"allOf\":[{\"not\":{\"const\":\"a\"}},{\"not\":{\"const\":\"b\"}}],\"type\":\"string\"}",
     "\"b\"", "-"},
    {"schema",
     "{\"type\":[\"integer\",\"null\"],\"not\":{\"anyOf\":[{\"minimum\":3},{\"type\":\"null\"}]}}",
     "null", "-"},
    {"schema",
     "{\"type\":[\"integer\",\"null\"],\"not\":{\"anyOf\":[{\"minimum\":3},{\"type\":\"null\"}]}}",
     "2", "+"},
    {"schema", "{\"properties\":{\"a\":{},\"b\":{}},\"dependentRequired\":{\"a\":[\"b\"]}}",
     "{\"a\":1}", "-"},
    {"schema", "{\"properties\":{\"a\":{},\"b\":{}},\"dependentRequired\":{\"a\":[\"b\"]}}",
     "{\"a\":1,\"b\":1}", "+"},
    {"schema", "{\"properties\":{\"a\":{},\"b\":{}},\"dependentRequired\":{\"a\":[\"b\"]}}",
     "{\"b\":1}", "+"},
    {"schema",
     "{\"properties\":{\"a\":{},\"b\":{}},\"dependencies\":{\"a\":{\"properties\":{\"b\":{\"type\":"
     "\"null\"}}}}}",
     "{\"a\":1,\"b\":1}", "-"},
    {"schema",
     "{\"properties\":{\"a\":{},\"b\":{}},\"dependencies\":{\"a\":{\"properties\":{\"b\":{\"type\":"
     "\"null\"}}}}}",
     "{\"b\":1}", "+"},
    {"schema",
     "{\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"a\"],\"dependentSchemas\":{\"a\":{"
     "\"required\":[\"b\"]}}}",
     "{\"a\":1}", "-"},
    {"schema",
     "{\"properties\":{\"a\":{}},\"additionalProperties\":false,\"dependentRequired\":{\"c\":["
     "\"a\"]}}",
     "{}", "+"},
    {"schema", "{\"items\":[{\"type\":\"null\"}],\"additionalItems\":{\"type\":\"integer\"}}",
     "[null,1]", "+"},
    {"schema", "{\"items\":[{\"type\":\"null\"}],\"additionalItems\":{\"type\":\"integer\"}}",
     "[null,null]", "-"},
    {"schema", "{\"items\":[{\"type\":\"null\"}],\"additionalItems\":false}", "[null,null]", "-"},
    {"schema", "{\"contains\":{\"type\":\"null\"},\"minContains\":2}", "[null]", "-"},
    {"schema", "{\"contains\":{\"type\":\"null\"},\"minContains\":2}", "[null,null,1]", "+"},
    {"schema", "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"maxContains\":1}",
     "[5,6]", "-"},
    {"schema", "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"maxContains\":1}",
     "[5,1]", "+"},
    {"schema", "{\"contains\":{\"type\":\"null\"},\"minContains\":0}", "[]", "+"},
    {"schema",
     "{\"if\":{\"prefixItems\":[{\"const\":1}],\"minItems\":1},\"then\":{\"prefixItems\":[true,{"
     "\"const\":2}]},\"else\":true,\"unevaluatedItems\":{\"type\":\"null\"}}",
     "[null]", "+"},
    {"schema",
     "{\"if\":{\"prefixItems\":[{\"const\":1}],\"minItems\":1},\"then\":{\"prefixItems\":[true,{"
     "\"const\":2}]},\"else\":true,\"unevaluatedItems\":{\"type\":\"null\"}}",
     "[null,1]", "-"},
    {"schema",
     "{\"if\":{\"prefixItems\":[{\"const\":1}],\"minItems\":1},\"then\":{\"prefixItems\":[true,{"
     "\"const\":2}]},\"else\":true,\"unevaluatedItems\":{\"type\":\"null\"}}",
     "[1]", "+"},
    {"schema",
     "{\"contains\":{\"const\":1},\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],"
     "\"items\":{\"type\":\"integer\"}}",
     "[\"a\",1]", "+"},
    {"schema",
     "{\"contains\":{\"const\":1},\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],"
     "\"items\":{\"type\":\"integer\"}}",
     "[\"a\",2,1]", "+"},
    {"schema",
     "{\"contains\":{\"const\":1},\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],"
     "\"items\":{\"type\":\"integer\"}}",
     "[\"a\",2,3,1,4]", "+"},
    {"schema",
     "{\"contains\":{\"const\":1},\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],"
     "\"items\":{\"type\":\"integer\"}}",
     "[\"a\"]", "-"},
    {"schema",
     "{\"contains\":{\"const\":1},\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],"
     "\"items\":{\"type\":\"integer\"}}",
     "[\"a\",2]", "-"},
    {"schema",
     "{\"contains\":{\"const\":1},\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],"
     "\"items\":{\"type\":\"integer\"}}",
     "[\"a\",2,3]", "-"},
    {"schema",
     "{\"contains\":{\"const\":1},\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],"
     "\"items\":{\"type\":\"integer\"}}",
     "[1]", "-"},
    {"schema",
     "{\"contains\":{\"const\":1},\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],"
     "\"items\":{\"type\":\"integer\"}}",
     "[]", "-"},
    {"schema",
     "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"minContains\":2,"
     "\"maxContains\":3,\"maxItems\":5}",
     "[1,5,2,6]", "+"},
    {"schema",
     "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"minContains\":2,"
     "\"maxContains\":3,\"maxItems\":5}",
     "[5,6,7]", "+"},
    {"schema",
     "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"minContains\":2,"
     "\"maxContains\":3,\"maxItems\":5}",
     "[1,5,2,6,7]", "+"},
    {"schema",
     "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"minContains\":2,"
     "\"maxContains\":3,\"maxItems\":5}",
     "[5]", "-"},
    {"schema",
     "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"minContains\":2,"
     "\"maxContains\":3,\"maxItems\":5}",
     "[5,6,7,8]", "-"},
    {"schema",
     "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"minContains\":2,"
     "\"maxContains\":3,\"maxItems\":5}",
     "[1,2,3,4,5,6]", "-"},
    {"schema",
     "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"minContains\":2,"
     "\"maxContains\":3,\"maxItems\":5}",
     "[1,2,5,3,4,6]", "-"},
    {"schema",
     "{\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},\"minContains\":2,"
     "\"maxContains\":3,\"maxItems\":5}",
     "[1,1,1,1]", "-"},
    {"schema",
     "{\"items\":{\"enum\":[1,2,3,4]},\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{"
     "\"const\":2}}],\"minItems\":3}",
     "[2,3,1]", "+"},
    {"schema",
     "{\"items\":{\"enum\":[1,2,3,4]},\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{"
     "\"const\":2}}],\"minItems\":3}",
     "[1,2,4]", "+"},
    {"schema",
     "{\"items\":{\"enum\":[1,2,3,4]},\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{"
     "\"const\":2}}],\"minItems\":3}",
     "[1,2]", "-"},
    {"schema",
     "{\"items\":{\"enum\":[1,2,3,4]},\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{"
     "\"const\":2}}],\"minItems\":3}",
     "[1,3,4]", "-"},
    {"schema",
     "{\"items\":{\"enum\":[1,2,3,4]},\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{"
     "\"const\":2}}],\"minItems\":3}",
     "[2,2,3]", "-"},
    {"schema",
     "{\"contains\":{\"type\":\"null\"},\"maxContains\":0,\"items\":{\"type\":[\"null\","
     "\"integer\"]},\"minContains\":0}",
     "[]", "+"},
    {"schema",
     "{\"contains\":{\"type\":\"null\"},\"maxContains\":0,\"items\":{\"type\":[\"null\","
     "\"integer\"]},\"minContains\":0}",
     "[1,2]", "+"},
    {"schema",
     "{\"contains\":{\"type\":\"null\"},\"maxContains\":0,\"items\":{\"type\":[\"null\","
     "\"integer\"]},\"minContains\":0}",
     "[null]", "-"},
    {"schema",
     "{\"contains\":{\"type\":\"null\"},\"maxContains\":0,\"items\":{\"type\":[\"null\","
     "\"integer\"]},\"minContains\":0}",
     "[1,null]", "-"},
    {"schema",
     "{\"prefixItems\":[true,true],\"contains\":{\"const\":\"x\"},\"unevaluatedItems\":{\"type\":"
     "\"integer\"}}",
     "[1,\"x\"]", "+"},
    {"schema",
     "{\"prefixItems\":[true,true],\"contains\":{\"const\":\"x\"},\"unevaluatedItems\":{\"type\":"
     "\"integer\"}}",
     "[\"x\"]", "+"},
    {"schema",
     "{\"prefixItems\":[true,true],\"contains\":{\"const\":\"x\"},\"unevaluatedItems\":{\"type\":"
     "\"integer\"}}",
     "[1,2,\"x\",3]", "+"},
    {"schema",
     "{\"prefixItems\":[true,true],\"contains\":{\"const\":\"x\"},\"unevaluatedItems\":{\"type\":"
     "\"integer\"}}",
     "[1,2,\"y\"]", "-"},
    {"schema",
     "{\"prefixItems\":[true,true],\"contains\":{\"const\":\"x\"},\"unevaluatedItems\":{\"type\":"
     "\"integer\"}}",
     "[1,2]", "-"},
    {"schema", "{\"type\":\"array\",\"unevaluatedItems\":false}", "[1]", "-"},
    {"schema",
     "{\"prefixItems\":[{\"type\":\"null\"}],\"unevaluatedItems\":{\"type\":\"integer\"}}",
     "[null,2]", "+"},
    {"schema",
     "{\"allOf\":[{\"prefixItems\":[{\"type\":\"null\"}]}],\"unevaluatedItems\":{\"type\":"
     "\"integer\"}}",
     "[null,null]", "-"},
    {"schema", "{\"unevaluatedProperties\":false,\"allOf\":[{\"not\":{\"required\":[\"a\"]}}]}",
     "{}", "+"},
    {"schema", "{\"unevaluatedProperties\":false,\"allOf\":[{\"not\":{\"required\":[\"a\"]}}]}",
     "{\"a\":1}", "-"},
    {"schema",
     "{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{"
     "\"b\":{}}}]}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{"
     "\"b\":{}}}]}",
     "{\"a\":1,\"b\":1}", "-"},
    {"schema",
     "{\"properties\":{\"a\":{\"minimum\":2}},\"allOf\":[{\"properties\":{\"b\":{}},"
     "\"additionalProperties\":{\"type\":\"integer\"}}]}",
     "{\"a\":2,\"b\":null}", "+"},
    {"schema",
     "{\"properties\":{\"a\":{\"minimum\":2}},\"allOf\":[{\"properties\":{\"b\":{}},"
     "\"additionalProperties\":{\"type\":\"integer\"}}]}",
     "{\"a\":1}", "-"},
    {"schema",
     "{\"properties\":{\"a\":{\"minimum\":2}},\"allOf\":[{\"properties\":{\"b\":{}},"
     "\"additionalProperties\":{\"type\":\"integer\"}}]}",
     "{\"a\":2.5}", "-"},
    {"schema",
     "{\"properties\":{\"a\":{\"minimum\":2}},\"allOf\":[{\"properties\":{\"b\":{}},"
     "\"additionalProperties\":{\"type\":\"integer\"}}]}",
     "{\"a\":\"x\"}", "-"},
    {"schema",
     "{\"patternProperties\":{\"^b\":{\"type\":\"null\"}},\"allOf\":[{\"properties\":{\"a\":{},"
     "\"b\":{\"type\":[\"null\",\"integer\"]}},\"additionalProperties\":false}]}",
     "{\"a\":1,\"b\":null}", "+"},
    {"schema",
     "{\"patternProperties\":{\"^b\":{\"type\":\"null\"}},\"allOf\":[{\"properties\":{\"a\":{},"
     "\"b\":{\"type\":[\"null\",\"integer\"]}},\"additionalProperties\":false}]}",
     "{\"b\":1}", "-"},
    {"schema",
     "{\"patternProperties\":{\"^b\":{\"type\":\"null\"}},\"allOf\":[{\"properties\":{\"a\":{},"
     "\"b\":{\"type\":[\"null\",\"integer\"]}},\"additionalProperties\":false}]}",
     "{\"bc\":null}", "-"},
    {"schema",
     "{\"allOf\":[{\"properties\":{\"a\":{}},\"unevaluatedProperties\":false},{\"minProperties\":0}"
     ",{\"properties\":{\"b\":{}}}]}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"allOf\":[{\"properties\":{\"a\":{}},\"unevaluatedProperties\":false},{\"minProperties\":0}"
     ",{\"properties\":{\"b\":{}}}]}",
     "{\"a\":1,\"b\":1}", "-"},
    {"schema",
     "{\"allOf\":[{\"properties\":{\"a\":{}},\"unevaluatedProperties\":false},{\"minProperties\":0}"
     ",{\"properties\":{\"b\":{}}}]}",
     "{\"b\":1}", "-"},
    {"schema", "{\"items\":{\"type\":\"null\"},\"allOf\":[{\"prefixItems\":[true]}]}",
     "[null,null]", "+"},
    {"schema", "{\"items\":{\"type\":\"null\"},\"allOf\":[{\"prefixItems\":[true]}]}", "[1]", "-"},
    {"schema",
     "{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false,\"allOf\":[{\"prefixItems\":[{"
     "\"minimum\":3},{}]}]}",
     "[3]", "+"},
    {"schema",
     "{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false,\"allOf\":[{\"prefixItems\":[{"
     "\"minimum\":3},{}]}]}",
     "[]", "+"},
    {"schema",
     "{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false,\"allOf\":[{\"prefixItems\":[{"
     "\"minimum\":3},{}]}]}",
     "[2]", "-"},
    {"schema",
     "{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false,\"allOf\":[{\"prefixItems\":[{"
     "\"minimum\":3},{}]}]}",
     "[3,1]", "-"},
    {"schema",
     "{\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}},\"required\":[\"k\"]},\"then\":{"
     "\"properties\":{\"a\":{\"type\":\"null\"}}},\"else\":{\"properties\":{\"b\":{\"type\":"
     "\"null\"}}},\"unevaluatedProperties\":false}",
     "{\"k\":\"x\",\"a\":null}", "+"},
    {"schema",
     "{\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}},\"required\":[\"k\"]},\"then\":{"
     "\"properties\":{\"a\":{\"type\":\"null\"}}},\"else\":{\"properties\":{\"b\":{\"type\":"
     "\"null\"}}},\"unevaluatedProperties\":false}",
     "{\"b\":null}", "+"},
    {"schema",
     "{\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}},\"required\":[\"k\"]},\"then\":{"
     "\"properties\":{\"a\":{\"type\":\"null\"}}},\"else\":{\"properties\":{\"b\":{\"type\":"
     "\"null\"}}},\"unevaluatedProperties\":false}",
     "{}", "+"},
    {"schema",
     "{\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}},\"required\":[\"k\"]},\"then\":{"
     "\"properties\":{\"a\":{\"type\":\"null\"}}},\"else\":{\"properties\":{\"b\":{\"type\":"
     "\"null\"}}},\"unevaluatedProperties\":false}",
     "{\"k\":\"x\",\"b\":null}", "-"},
    {"schema",
     "{\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}},\"required\":[\"k\"]},\"then\":{"
     "\"properties\":{\"a\":{\"type\":\"null\"}}},\"else\":{\"properties\":{\"b\":{\"type\":"
     "\"null\"}}},\"unevaluatedProperties\":false}",
     "{\"k\":\"y\"}", "-"},
    {"schema",
     "{\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}},\"required\":[\"k\"]},\"then\":{"
     "\"properties\":{\"a\":{\"type\":\"null\"}}},\"else\":{\"properties\":{\"b\":{\"type\":"
     "\"null\"}}},\"unevaluatedProperties\":false}",
     "{\"a\":null}", "-"},
    {"schema",
     "{\"anyOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},"
     "\"required\":[\"b\"]}],\"unevaluatedProperties\":{\"type\":\"null\"}}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"anyOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},"
     "\"required\":[\"b\"]}],\"unevaluatedProperties\":{\"type\":\"null\"}}",
     "{\"a\":1,\"b\":2}", "+"},
    {"schema",
     "{\"anyOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},"
     "\"required\":[\"b\"]}],\"unevaluatedProperties\":{\"type\":\"null\"}}",
     "{\"a\":1,\"c\":null}", "+"},
    {"schema",
     "{\"anyOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},"
     "\"required\":[\"b\"]}],\"unevaluatedProperties\":{\"type\":\"null\"}}",
     "{\"a\":1,\"c\":2}", "-"},
    {"schema",
     "{\"anyOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},"
     "\"required\":[\"b\"]}],\"unevaluatedProperties\":{\"type\":\"null\"}}",
     "{}", "-"},
    {"schema",
     "{\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},"
     "\"required\":[\"b\"]}],\"unevaluatedProperties\":false}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},"
     "\"required\":[\"b\"]}],\"unevaluatedProperties\":false}",
     "{\"b\":1}", "+"},
    {"schema",
     "{\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},"
     "\"required\":[\"b\"]}],\"unevaluatedProperties\":false}",
     "{\"a\":1,\"b\":2}", "-"},
    {"schema",
     "{\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},"
     "\"required\":[\"b\"]}],\"unevaluatedProperties\":false}",
     "{}", "-"},
    {"schema",
     "{\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},"
     "\"required\":[\"b\"]}],\"unevaluatedProperties\":false}",
     "{\"a\":1,\"c\":2}", "-"},
    {"schema",
     "{\"properties\":{\"a\":{}},\"dependentSchemas\":{\"a\":{\"properties\":{\"b\":{}}}},"
     "\"unevaluatedProperties\":false}",
     "{\"a\":1,\"b\":2}", "+"},
    {"schema",
     "{\"properties\":{\"a\":{}},\"dependentSchemas\":{\"a\":{\"properties\":{\"b\":{}}}},"
     "\"unevaluatedProperties\":false}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"properties\":{\"a\":{}},\"dependentSchemas\":{\"a\":{\"properties\":{\"b\":{}}}},"
     "\"unevaluatedProperties\":false}",
     "{}", "+"},
    {"schema",
     "{\"properties\":{\"a\":{}},\"dependentSchemas\":{\"a\":{\"properties\":{\"b\":{}}}},"
     "\"unevaluatedProperties\":false}",
     "{\"b\":2}", "-"},
    {"schema",
     "{\"properties\":{\"a\":{}},\"not\":{\"not\":{\"properties\":{\"b\":{\"const\":1}},"
     "\"required\":[\"b\"]}},\"unevaluatedProperties\":{\"type\":\"integer\"}}",
     "{\"b\":1}", "+"},
    {"schema",
     "{\"properties\":{\"a\":{}},\"not\":{\"not\":{\"properties\":{\"b\":{\"const\":1}},"
     "\"required\":[\"b\"]}},\"unevaluatedProperties\":{\"type\":\"integer\"}}",
     "{\"b\":2}", "-"},
    {"schema",
     "{\"properties\":{\"a\":{}},\"not\":{\"not\":{\"properties\":{\"b\":{\"const\":1}},"
     "\"required\":[\"b\"]}},\"unevaluatedProperties\":{\"type\":\"integer\"}}",
     "{\"a\":1}", "-"},
    {"schema",
     "{\"allOf\":[{\"properties\":{\"a\":{}},\"unevaluatedProperties\":true}],"
     "\"unevaluatedProperties\":false}",
     "{\"a\":1,\"z\":2}", "+"},
    {"schema",
     "{\"$ref\":\"#/$defs/"
     "base\",\"properties\":{\"b\":{}},\"unevaluatedProperties\":false,\"$defs\":{\"base\":{"
     "\"properties\":{\"a\":{}},\"patternProperties\":{\"^x\":{\"type\":\"null\"}}}}}",
     "{\"b\":1,\"a\":1}", "+"},
    {"schema",
     "{\"$ref\":\"#/$defs/"
     "base\",\"properties\":{\"b\":{}},\"unevaluatedProperties\":false,\"$defs\":{\"base\":{"
     "\"properties\":{\"a\":{}},\"patternProperties\":{\"^x\":{\"type\":\"null\"}}}}}",
     "{\"c\":1}", "-"},
    {"schema",
     "{\"anyOf\":[{\"prefixItems\":[{\"const\":1}]},{\"prefixItems\":[true,{\"const\":2}],"
     "\"minItems\":2}],\"unevaluatedItems\":false}",
     "[1]", "+"},
    {"schema",
     "{\"anyOf\":[{\"prefixItems\":[{\"const\":1}]},{\"prefixItems\":[true,{\"const\":2}],"
     "\"minItems\":2}],\"unevaluatedItems\":false}",
     "[3,2]", "+"},
    {"schema",
     "{\"anyOf\":[{\"prefixItems\":[{\"const\":1}]},{\"prefixItems\":[true,{\"const\":2}],"
     "\"minItems\":2}],\"unevaluatedItems\":false}",
     "[3]", "-"},
    {"schema",
     "{\"anyOf\":[{\"prefixItems\":[{\"const\":1}]},{\"prefixItems\":[true,{\"const\":2}],"
     "\"minItems\":2}],\"unevaluatedItems\":false}",
     "[1,3]", "-"},
    {"schema",
     "{\"anyOf\":[{\"prefixItems\":[{\"const\":1}]},{\"prefixItems\":[true,{\"const\":2}],"
     "\"minItems\":2}],\"unevaluatedItems\":false}",
     "[3,2,1]", "-"},
    {"schema",
     "{\"if\":{\"prefixItems\":[{\"const\":1}],\"minItems\":1},\"then\":{\"prefixItems\":[true,{"
     "\"const\":2}]},\"else\":true,\"unevaluatedItems\":{\"type\":\"null\"}}",
     "[1,2]", "+"},
    {"schema",
     "{\"if\":{\"prefixItems\":[{\"const\":1}],\"minItems\":1},\"then\":{\"prefixItems\":[true,{"
     "\"const\":2}]},\"else\":true,\"unevaluatedItems\":{\"type\":\"null\"}}",
     "[1,2,null]", "+"},
    {"schema",
     "{\"if\":{\"prefixItems\":[{\"const\":1}],\"minItems\":1},\"then\":{\"prefixItems\":[true,{"
     "\"const\":2}]},\"else\":true,\"unevaluatedItems\":{\"type\":\"null\"}}",
     "[]", "+"},
    {"schema",
     "{\"if\":{\"prefixItems\":[{\"const\":1}],\"minItems\":1},\"then\":{\"prefixItems\":[true,{"
     "\"const\":2}]},\"else\":true,\"unevaluatedItems\":{\"type\":\"null\"}}",
     "[1,3]", "-"},
    {"schema",
     "{\"if\":{\"prefixItems\":[{\"const\":1}],\"minItems\":1},\"then\":{\"prefixItems\":[true,{"
     "\"const\":2}]},\"else\":true,\"unevaluatedItems\":{\"type\":\"null\"}}",
     "[2,2]", "-"},
    {"schema",
     "{\"if\":{\"prefixItems\":[{\"const\":1}],\"minItems\":1},\"then\":{\"prefixItems\":[true,{"
     "\"const\":2}]},\"else\":true,\"unevaluatedItems\":{\"type\":\"null\"}}",
     "[1,2,3]", "-"},
    {"schema",
     "{\"unevaluatedItems\":{\"type\":\"null\"},\"allOf\":[{\"contains\":{\"type\":\"integer\"}}]}",
     "[1,null]", "+"},
    {"schema",
     "{\"unevaluatedItems\":{\"type\":\"null\"},\"allOf\":[{\"contains\":{\"type\":\"integer\"}}]}",
     "[1,2]", "+"},
    {"schema",
     "{\"unevaluatedItems\":{\"type\":\"null\"},\"allOf\":[{\"contains\":{\"type\":\"integer\"}}]}",
     "[1,\"x\"]", "-"},
    {"schema",
     "{\"unevaluatedItems\":{\"type\":\"null\"},\"allOf\":[{\"contains\":{\"type\":\"integer\"}}]}",
     "[null]", "-"},
    {"schema",
     "{\"$schema\":\"https://json-schema.org/draft/2019-09/"
     "schema\",\"unevaluatedItems\":{\"type\":\"null\"},\"allOf\":[{\"contains\":{}}]}",
     "[null]", "+"},
    {"schema",
     "{\"$schema\":\"https://json-schema.org/draft/2019-09/"
     "schema\",\"unevaluatedItems\":{\"type\":\"null\"},\"allOf\":[{\"contains\":{}}]}",
     "[1]", "-"},
    {"schema",
     "{\"patternProperties\":{\"^x\":{\"type\":\"null\"}},\"additionalProperties\":false}",
     "{\"xy\":null}", "+"},
    {"schema",
     "{\"patternProperties\":{\"^x\":{\"type\":\"null\"}},\"additionalProperties\":false}",
     "{\"y\":null}", "-"},
    {"schema", "{\"patternProperties\":{\"^x$\":{\"type\":\"null\"}}}", "{\"xy\":null}", "-"},
    {"schema", "{\"patternProperties\":{\"^x\":{\"type\":\"integer\"},\"y$\":{\"minimum\":5}}}",
     "{\"xay\":4}", "-"},
    {"schema", "{\"patternProperties\":{\"^x\":{\"type\":\"integer\"},\"^y\":{\"type\":\"null\"}}}",
     "{\"x1\":4,\"y\":null}", "+"},
    {"schema", "{\"patternProperties\":{\"^x\":{\"type\":\"integer\"},\"^y\":{\"type\":\"null\"}}}",
     "{\"y1\":4}", "-"},
    {"schema",
     "{\"properties\":{\"xy\":{\"minimum\":2}},\"patternProperties\":{\"x\":{\"type\":\"integer\"}}"
     "}",
     "{\"xy\":1}", "-"},
    {"schema",
     "{\"properties\":{\"xy\":{\"minimum\":2}},\"patternProperties\":{\"x\":{\"type\":\"integer\"}}"
     "}",
     "{\"xy\":2}", "+"},
    {"schema",
     "{\"properties\":{\"xy\":{\"minimum\":2}},\"patternProperties\":{\"^y(a|b){2,3}|^[^x]\":{"
     "\"type\":\"string\"}}}",
     "{\"xy\":2}", "+"},
    {"schema",
     "{\"required\":[\"ax\"],\"patternProperties\":{\"x\":{\"type\":\"null\"}},"
     "\"additionalProperties\":false}",
     "{\"ax\":1}", "-"},
    {"schema", "{\"required\":[\"a\"],\"additionalProperties\":{\"type\":\"null\"}}", "{\"a\":1}",
     "-"},
    {"schema",
     "{\"properties\":{\"b\":{}},\"required\":[\"a\"],\"additionalProperties\":{\"type\":\"null\"}"
     "}",
     "{\"a\":null}", "+"},
    {"schema", "{\"propertyNames\":{\"maxLength\":2}}", "{\"abc\":1}", "-"},
    {"schema", "{\"propertyNames\":{\"maxLength\":2}}", "{\"ab\":1}", "+"},
    {"schema", "{\"propertyNames\":{\"pattern\":\"^a+$\"},\"properties\":{\"aa\":{},\"ab\":{}}}",
     "{\"ab\":1}", "-"},
    {"schema", "{\"propertyNames\":{\"pattern\":\"^a+$\"},\"properties\":{\"aa\":{},\"ab\":{}}}",
     "{\"aa\":1}", "+"},
    {"schema", "{\"propertyNames\":{\"enum\":[\"q\"]}}", "{\"q\":1}", "+"},
    {"schema", "{\"propertyNames\":{\"enum\":[\"q\"]}}", "{\"r\":1}", "-"},
    {"schema",
     "{\"allOf\":[{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]},{\"anyOf\":[{\"type\":"
     "\"null\"},{\"type\":\"string\"}]}]}",
     "null", "+"},
    {"schema",
     "{\"allOf\":[{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]},{\"anyOf\":[{\"type\":"
     "\"null\"},{\"type\":\"string\"}]}]}",
     "1", "-"},
    {"schema",
     "{\"allOf\":[{\"allOf\":[{\"minimum\":2}]},{\"allOf\":[{\"maximum\":3}]},{\"type\":"
     "\"integer\"}]}",
     "4", "-"},
    {"schema",
     "{\"allOf\":[{\"$ref\":\"#/$defs/a\",\"minimum\":2},{\"$ref\":\"#/$defs/"
     "b\",\"maximum\":5}],\"$defs\":{\"a\":{\"type\":\"integer\"},\"b\":{\"minimum\":4}}}",
     "4", "+"},
    {"schema",
     "{\"allOf\":[{\"$ref\":\"#/$defs/a\",\"minimum\":2},{\"$ref\":\"#/$defs/"
     "b\",\"maximum\":5}],\"$defs\":{\"a\":{\"type\":\"integer\"},\"b\":{\"minimum\":4}}}",
     "3", "-"},
    {"schema", "{\"pattern\":\"^a*$\",\"maxLength\":3}", "\"aaa\"", "+"},
    {"schema", "{\"pattern\":\"^a*$\",\"maxLength\":3}", "\"aaaa\"", "-"},
    {"schema", "{\"pattern\":\"^[a-z]+(?:-[a-z]+)*$\",\"minLength\":3,\"maxLength\":40}", "\"ab\"",
     "-"},
    {"schema", "{\"pattern\":\"^[a-z]+(?:-[a-z]+)*$\",\"minLength\":3,\"maxLength\":40}",
     "\"abc-d\"", "+"},
    {"schema", "{\"pattern\":\"^(x|[a-z]*|[0-9]{4,})$\",\"minLength\":2,\"maxLength\":5}", "\"x\"",
     "-"},
    {"schema", "{\"pattern\":\"^(x|[a-z]*|[0-9]{4,})$\",\"minLength\":2,\"maxLength\":5}",
     "\"12345\"", "+"},
    {"schema", "{\"pattern\":\"^(x|[a-z]*|[0-9]{4,})$\",\"minLength\":2,\"maxLength\":5}",
     "\"123456\"", "-"},
    {"schema", "{\"pattern\":\"^(\\\\S+ ){0,9}\\\\S+$\",\"maxLength\":30}", "\"ab cd\"", "+"},
    {"schema", "{\"pattern\":\"^[a-z]{2}:[a-z]*:[a-z]*$\",\"maxLength\":8,\"minLength\":8}",
     "\"ab:cd:ef\"", "+"},
    {"schema", "{\"pattern\":\"^[a-z]{2}:[a-z]*:[a-z]*$\",\"maxLength\":8,\"minLength\":8}",
     "\"ab:cd:e\"", "-"},
    {"schema", "{\"format\":\"email\",\"maxLength\":12}", "\"ab@cd.example.org\"", "-"},
    {"schema", "{\"pattern\":\"^(/[^/]+)*/?$\",\"minLength\":1}",
     "\"/a/a-name-that-has-more-than-16-characters\"", "+"},
    {"schema", "{\"pattern\":\"^(/[^/]+)*/?$\",\"minLength\":1}", "\"\"", "-"},
    /* What has a name of its own. */
    {"schema", "{\"$ref\":\"#i\",\"$defs\":{\"a\":{\"$anchor\":\"i\",\"type\":\"null\"}}}", "null",
     "+"},
    {"schema", "{\"$ref\":\"#i\",\"$defs\":{\"a\":{\"$anchor\":\"i\",\"type\":\"null\"}}}", "1",
     "-"},
    {"schema",
     "{\"$id\":\"http://x.y/a/root.json\",\"properties\":{\"n\":{\"$ref\":\"node.json#/$defs/"
     "v\"}},\"$defs\":{\"q\":{\"$id\":\"node.json\",\"$defs\":{\"v\":{\"$ref\":\"#w\"},\"z\":{\"$"
     "anchor\":\"w\",\"type\":\"integer\"}}}}}",
     "{\"n\":1}", "+"},
    {"schema",
     "{\"$id\":\"http://x.y/a/root.json\",\"properties\":{\"n\":{\"$ref\":\"node.json#/$defs/"
     "v\"}},\"$defs\":{\"q\":{\"$id\":\"node.json\",\"$defs\":{\"v\":{\"$ref\":\"#w\"},\"z\":{\"$"
     "anchor\":\"w\",\"type\":\"integer\"}}}}}",
     "{\"n\":null}", "-"},
    {"schema",
     "{\"$id\":\"http://x.y\",\"properties\":{\"n\":{\"$ref\":\"/"
     "b\"}},\"$defs\":{\"q\":{\"$id\":\"b\",\"type\":\"null\"},\"r\":{\"properties\":{\"$ref\":{\"$"
     "ref\":\"//x.y/b\"}}}}}",
     "{\"n\":null}", "+"},
    {"schema",
     "{\"properties\":{\"a\":{\"$dynamicRef\":\"#t\"}},\"$defs\":{\"q\":{\"$dynamicAnchor\":\"t\","
     "\"type\":\"null\"}}}",
     "{\"a\":1}", "-"},
    {"schema",
     "{\"$ref\":\"http://x.y/a%25b#/$defs/%7e0\",\"$defs\":{\"a\":{\"$id\":\"http://x.y/"
     "a%25b\",\"$defs\":{\"~0\":{\"type\":\"integer\"},\"~\":{\"type\":\"null\"}}}}}",
     "null", "+"},
};

START_TEST(keywords_that_others_say_are_kept)
{
    check_singles(reduced, sizeof(reduced) / sizeof(reduced[0]));
}
END_TEST

static const single steps_and_values[] = {
    {"schema", "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0,\"maximum\":99.5}", "0",
     "+"},
    {"schema", "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0,\"maximum\":99.5}", "19.99",
     "+"},
    {"schema", "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0,\"maximum\":99.5}", "99.5",
     "+"},
    {"schema", "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0,\"maximum\":99.5}", "99.50",
     "+"},
    {"schema", "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0,\"maximum\":99.5}", "7",
     "+"},
    {"schema", "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0,\"maximum\":99.5}", "-0.01",
     "-"},
    {"schema", "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0,\"maximum\":99.5}", "99.51",
     "-"},
    {"schema", "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0,\"maximum\":99.5}", "0.001",
     "-"},
    {"schema", "{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0,\"maximum\":99.5}", "100",
     "-"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-50,\"maximum\":1000}", "-49",
     "+"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-50,\"maximum\":1000}", "0",
     "+"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-50,\"maximum\":1000}", "7",
     "+"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-50,\"maximum\":1000}", "994",
     "+"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-50,\"maximum\":1000}", "-56",
     "-"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-50,\"maximum\":1000}", "8",
     "-"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-50,\"maximum\":1000}", "1001",
     "-"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-50,\"maximum\":1000}", "07",
     "-"},
    {"schema",
     "{\"type\":\"number\",\"multipleOf\":2.5,\"exclusiveMinimum\":-5,\"exclusiveMaximum\":105}",
     "-2.5", "+"},
    {"schema",
     "{\"type\":\"number\",\"multipleOf\":2.5,\"exclusiveMinimum\":-5,\"exclusiveMaximum\":105}",
     "100", "+"},
    {"schema",
     "{\"type\":\"number\",\"multipleOf\":2.5,\"exclusiveMinimum\":-5,\"exclusiveMaximum\":105}",
     "2.5", "+"},
    {"schema",
     "{\"type\":\"number\",\"multipleOf\":2.5,\"exclusiveMinimum\":-5,\"exclusiveMaximum\":105}",
     "-5", "-"},
    {"schema",
     "{\"type\":\"number\",\"multipleOf\":2.5,\"exclusiveMinimum\":-5,\"exclusiveMaximum\":105}",
     "105", "-"},
    {"schema",
     "{\"type\":\"number\",\"multipleOf\":2.5,\"exclusiveMinimum\":-5,\"exclusiveMaximum\":105}",
     "2.25", "-"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":2.5}", "5", "+"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":2.5}", "-10", "+"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":2.5}", "2", "-"},
    {"schema", "{\"type\":\"integer\",\"multipleOf\":2.5}", "2.5", "-"},
    {"schema", "{\"multipleOf\":86400}", "172800", "+"},
    {"schema", "{\"multipleOf\":86400}", "0", "+"},
    {"schema", "{\"multipleOf\":86400}", "86401", "-"},
    {"schema", "{\"type\":\"number\",\"allOf\":[{\"multipleOf\":0.3},{\"multipleOf\":0.2}]}", "0.6",
     "+"},
    {"schema", "{\"type\":\"number\",\"allOf\":[{\"multipleOf\":0.3},{\"multipleOf\":0.2}]}", "12",
     "+"},
    {"schema", "{\"type\":\"number\",\"allOf\":[{\"multipleOf\":0.3},{\"multipleOf\":0.2}]}", "0.3",
     "-"},
    {"schema", "{\"type\":\"number\",\"allOf\":[{\"multipleOf\":0.3},{\"multipleOf\":0.2}]}",
     "0.02", "-"},
    {"schema", "{\"enum\":[\"a\",\"abc\",\"abcd\"],\"maxLength\":3,\"minLength\":2}", "\"abc\"",
     "+"},
    {"schema", "{\"enum\":[\"a\",\"abc\",\"abcd\"],\"maxLength\":3,\"minLength\":2}", "\"a\"", "-"},
    {"schema", "{\"enum\":[\"a\",\"abc\",\"abcd\"],\"maxLength\":3,\"minLength\":2}", "\"abcd\"",
     "-"},
    {"schema", "{\"enum\":[1,2,3,4.5],\"minimum\":2,\"multipleOf\":1.5}", "3", "+"},
    {"schema", "{\"enum\":[1,2,3,4.5],\"minimum\":2,\"multipleOf\":1.5}", "4.5", "+"},
    {"schema", "{\"enum\":[1,2,3,4.5],\"minimum\":2,\"multipleOf\":1.5}", "1", "-"},
    {"schema", "{\"enum\":[1,2,3,4.5],\"minimum\":2,\"multipleOf\":1.5}", "2", "-"},
    {"schema", "{\"enum\":[[1],[1,1],[]],\"uniqueItems\":true,\"minItems\":1}", "[1]", "+"},
    {"schema", "{\"enum\":[[1],[1,1],[]],\"uniqueItems\":true,\"minItems\":1}", "[1,1]", "-"},
    {"schema", "{\"enum\":[[1],[1,1],[]],\"uniqueItems\":true,\"minItems\":1}", "[]", "-"},
    {"schema",
     "{\"enum\":[{\"a\":1},{\"a\":\"x\"},{\"b\":1}],\"properties\":{\"a\":{\"type\":\"integer\"}},"
     "\"required\":[\"a\"]}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"enum\":[{\"a\":1},{\"a\":\"x\"},{\"b\":1}],\"properties\":{\"a\":{\"type\":\"integer\"}},"
     "\"required\":[\"a\"]}",
     "{\"a\":\"x\"}", "-"},
    {"schema",
     "{\"enum\":[{\"a\":1},{\"a\":\"x\"},{\"b\":1}],\"properties\":{\"a\":{\"type\":\"integer\"}},"
     "\"required\":[\"a\"]}",
     "{\"b\":1}", "-"},
    {"schema", "{\"enum\":[\"ab\",\"cd\",5],\"pattern\":\"^a\"}", "\"ab\"", "+"},
    {"schema", "{\"type\":\"integer\",\"minimum\":9223372036854775808}", "9223372036854775808",
     "+"},
    {"schema", "{\"type\":\"integer\",\"minimum\":9223372036854775808}", "9223372036854775807",
     "-"},
    {"schema", "{\"type\":\"integer\",\"minimum\":9223372036854775808}", "46116860184273879040",
     "+"},
    {"schema", "{\"type\":\"integer\",\"exclusiveMinimum\":9223372036854775807}",
     "9223372036854775808", "+"},
    {"schema", "{\"type\":\"integer\",\"exclusiveMinimum\":9223372036854775807}",
     "9223372036854775807", "-"},
    {"schema", "{\"type\":\"integer\",\"maximum\":9223372036854775809}", "9223372036854775809",
     "+"},
    {"schema", "{\"type\":\"integer\",\"maximum\":9223372036854775809}", "9223372036854775810",
     "-"},
    {"schema", "{\"type\":\"integer\",\"maximum\":9223372036854775809}", "-1", "+"},
    {"schema",
     "{\"type\":\"integer\",\"minimum\":9223372036854775807,\"maximum\":9223372036854775809}",
     "9223372036854775808", "+"},
    {"schema",
     "{\"type\":\"integer\",\"minimum\":9223372036854775807,\"maximum\":9223372036854775809}",
     "9223372036854775809", "+"},
    {"schema",
     "{\"type\":\"integer\",\"minimum\":9223372036854775807,\"maximum\":9223372036854775809}",
     "9223372036854775806", "-"},
    {"schema", "{\"type\":\"integer\",\"maximum\":-9223372036854775809}", "-9223372036854775809",
     "+"},
    {"schema", "{\"type\":\"integer\",\"maximum\":-9223372036854775809}", "-9223372036854775808",
     "-"},
    {"schema",
     "{\"type\":\"integer\",\"minimum\":1000000000000000000000000000000,\"maximum\":"
     "1000000000000000000000000000009}",
     "1000000000000000000000000000009", "+"},
    {"schema",
     "{\"type\":\"integer\",\"minimum\":1000000000000000000000000000000,\"maximum\":"
     "1000000000000000000000000000009}",
     "1000000000000000000000000000010", "-"},
    {"schema",
     "{\"type\":\"integer\",\"minimum\":1000000000000000000000000000000,\"maximum\":"
     "1000000000000000000000000000009}",
     "100000000000000000000000000000", "-"},
    {"schema", "{\"type\":\"integer\",\"minimum\":1e30,\"maximum\":1.5e30}",
     "1000000000000000000000000000000", "+"},
    {"schema", "{\"type\":\"integer\",\"minimum\":1e30,\"maximum\":1.5e30}",
     "1500000000000000000000000000000", "+"},
    {"schema", "{\"type\":\"integer\",\"minimum\":1e30,\"maximum\":1.5e30}",
     "1500000000000000000000000000001", "-"},
    {"schema", "{\"type\":\"integer\",\"minimum\":-1.5,\"maximum\":0.5}", "-1", "+"},
    {"schema", "{\"type\":\"integer\",\"minimum\":-1.5,\"maximum\":0.5}", "-2", "-"},
    {"schema", "{\"type\":\"integer\",\"minimum\":-1.5,\"maximum\":0.5}", "0", "+"},
    {"schema", "{\"type\":\"integer\",\"minimum\":-1.5,\"maximum\":0.5}", "1", "-"},
    {"schema", "{\"type\":\"integer\",\"exclusiveMinimum\":-2,\"exclusiveMaximum\":1}", "-1", "+"},
    {"schema", "{\"type\":\"integer\",\"exclusiveMinimum\":-2,\"exclusiveMaximum\":1}", "0", "+"},
    {"schema", "{\"type\":\"integer\",\"exclusiveMinimum\":-2,\"exclusiveMaximum\":1}", "1", "-"},
    {"schema", "{\"type\":\"integer\",\"exclusiveMinimum\":-2,\"exclusiveMaximum\":1}", "-2", "-"},
    {"schema",
     "{\"type\":\"integer\",\"minimum\":99999999999999999999.5,\"maximum\":100000000000000000001}",
     "100000000000000000000", "+"},
    {"schema",
     "{\"type\":\"integer\",\"minimum\":99999999999999999999.5,\"maximum\":100000000000000000001}",
     "99999999999999999999", "-"},
    {"schema", "{\"type\":\"integer\",\"minimum\":1e-5}", "1", "+"},
    {"schema", "{\"type\":\"integer\",\"minimum\":1e-5}", "0", "-"},
    {"schema", "{\"type\":\"integer\",\"maximum\":1e300}", "5", "+"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\",\"x-lorad-grammar\":"
     "\"start: \\\"*** Begin\\\" LF line+ \\\"*** End\\\"\\nline: (\\\"+\\\" | \\\"-\\\") /(.*)/ "
     "LF -> l\\n%import common.LF\"}},\"required\":[\"input\"],\"additionalProperties\":false}",
     "{\"input\":\"*** Begin\\n+a\\n*** End\"}", "+"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\",\"x-lorad-grammar\":"
     "\"start: \\\"*** Begin\\\" LF line+ \\\"*** End\\\"\\nline: (\\\"+\\\" | \\\"-\\\") /(.*)/ "
     "LF -> l\\n%import common.LF\"}},\"required\":[\"input\"],\"additionalProperties\":false}",
     "{\"input\": \"*** Begin\\n+a \\\"b\\\" \\\\ c\\t\\n-x\\n*** End\"}", "+"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\",\"x-lorad-grammar\":"
     "\"start: \\\"*** Begin\\\" LF line+ \\\"*** End\\\"\\nline: (\\\"+\\\" | \\\"-\\\") /(.*)/ "
     "LF -> l\\n%import common.LF\"}},\"required\":[\"input\"],\"additionalProperties\":false}",
     "{\"input\":\"*** Begin\\n*** End\"}", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\",\"x-lorad-grammar\":"
     "\"start: \\\"*** Begin\\\" LF line+ \\\"*** End\\\"\\nline: (\\\"+\\\" | \\\"-\\\") /(.*)/ "
     "LF -> l\\n%import common.LF\"}},\"required\":[\"input\"],\"additionalProperties\":false}",
     "{\"input\":\"+a\\n\"}", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\",\"x-lorad-grammar\":"
     "\"root ::= [\\\\t\\\\n-z]+\"}},\"required\":[\"input\"],\"additionalProperties\":false}",
     "{\"input\":\"a\\tb\\u0001\"}", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\",\"x-lorad-grammar\":"
     "\"root ::= [\\\\t\\\\n-z]+\"}},\"required\":[\"input\"],\"additionalProperties\":false}",
     "{\"input\":\"a\\tb\\n\"}", "+"},
    {"schema", "{\"type\":\"object\",\"properties\":{}}", "{}", "+"},
    {"schema", "{\"type\":\"object\",\"properties\":{}}", "{\"a\":1}", "-"},
    {"schema", "{\"type\":\"object\",\"properties\":{},\"required\":[]}", "{\"a\":1}", "-"},
    {"schema", "{\"type\":\"object\"}", "{\"a\":1}", "+"},
    {"schema", "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":true}", "{\"a\":1}",
     "+"},
    {"schema", "{\"type\":\"object\",\"properties\":{},\"minProperties\":1}", "{\"a\":1}", "+"},
    {"schema", "{\"properties\":{},\"patternProperties\":{\"^a\":{}}}", "{\"a\":1}", "+"},
    {"schema", "{\"enum\":[\"ab\",\"cd\",5],\"pattern\":\"^a\"}", "5", "+"},
    {"schema", "{\"enum\":[\"ab\",\"cd\",5],\"pattern\":\"^a\"}", "\"cd\"", "-"},
    {"schema", "{\"oneOf\":[{\"enum\":[1,\"x\"]},{\"type\":\"number\",\"minimum\":2}]}", "1", "+"},
    {"schema", "{\"oneOf\":[{\"enum\":[1,\"x\"]},{\"type\":\"number\",\"minimum\":2}]}", "\"x\"",
     "+"},
    {"schema", "{\"oneOf\":[{\"enum\":[1,\"x\"]},{\"type\":\"number\",\"minimum\":2}]}", "2", "+"},
    {"schema", "{\"oneOf\":[{\"enum\":[1,\"x\"]},{\"type\":\"number\",\"minimum\":2}]}", "1.5",
     "-"},
};

START_TEST(steps_and_listed_values_are_kept)
{
    check_singles(steps_and_values, sizeof(steps_and_values) / sizeof(steps_and_values[0]));
}
END_TEST

/* The mask against asking for each token alone in a run of its own. */
static void check_masks(grammar *g, const char *text)
{
    int32_t ids[512];
    int64_t n = tokenizer_encode(tok, text, strlen(text), 0, ids, 512);
    grammar_run *r = grammar_run_create(g, &eos, 1);
    for (int64_t at = 0; at < n; at++) {
        const uint32_t *mask = mask_of(r);
        for (int32_t id = 0; id < tokenizer_vocab(tok); id++) {
            grammar_run *alone = grammar_run_create(g, &eos, 1);
            for (int64_t k = 0; k < at; k++) grammar_run_accept(alone, walk, ids[k]);
            ck_assert(!grammar_run_failed(alone) || !grammar_run_ready(alone));
            while (!grammar_run_ready(alone)) sched_yield();
            grammar_run_accept(alone, walk, id);
            while (!grammar_run_ready(alone)) sched_yield();
            size_t len;
            ck_assert_msg(allowed(mask, id) == !grammar_run_failed(alone),
                          "%s: after %lld tokens: %s", text, (long long)at,
                          tokenizer_bytes(tok, id, &len));
            grammar_run_release(alone);
        }
        grammar_run_accept(r, walk, ids[at]);
    }
    grammar_run_release(r);
}

START_TEST(where_only_the_empty_text_is_allowed_the_first_token_ends_it)
{
    static const char *const text[] = {"", "()", "a{0}"};
    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++) {
        grammar *g = must("regex", text[i]);
        grammar_run *r = grammar_run_create(g, &eos, 1);
        const uint32_t *mask = mask_of(r);
        for (int32_t id = 0; id < tokenizer_vocab(tok); id++)
            ck_assert_int_eq(allowed(mask, id), id == eos);
        ck_assert(!grammar_run_over(r) && !grammar_run_failed(r));
        grammar_run_accept(r, walk, eos);
        ck_assert(grammar_run_over(r) && !grammar_run_failed(r));
        grammar_run_release(r);
        grammar_release(g);
    }
}
END_TEST

START_TEST(masks_are_what_asking_each_token_says)
{
    grammar *g =
        must("schema", "{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\","
                       "\"minLength\":2,\"maxLength\":5},\"n\":{\"type\":\"array\",\"items\":"
                       "{\"type\":\"number\",\"minimum\":1},\"maxItems\":2}}}");
    check_masks(g, "{\"s\":\"ab \xC3\xA9\", \"n\":[1.5, 22]}");
    grammar_release(g);
    g = must("regex", "([a-z]{2,12} ){0,3}\\d+");
    check_masks(g, "the lamp 12");
    grammar_release(g);
}
END_TEST

/* Where a loop takes all that follows, tokens are not looked at one by one: loops that end within a
 * token, that others stand beside, that count, and those of keys that are no names. */
START_TEST(masks_of_loops_are_what_asking_each_token_says)
{
    static const char *const forms[][3] = {
        {"regex", " [a-zA-Z]{0,9}", " a"},
        {"regex", "[a-z]{9,10}[a-z]*x", "zqzqzqzqzqzq"},
        {"regex", "([a-f]+|[a-z ]{9,14})z", "diecisi"},
        {"schema", "{\"type\":\"string\",\"maxLength\":12}", "\"veintidos"},
        {"schema", OTHERS, "{\"abc"},
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        grammar *g = must(forms[i][0], forms[i][1]);
        check_masks(g, forms[i][2]);
        grammar_release(g);
    }
}
END_TEST

static const single unlike[] = {
    {"schema", "{\"uniqueItems\":true}", "[]", "+"},
    {"schema", "{\"uniqueItems\":true}", "[\"a\",\"b\",\"a \"]", "+"},
    {"schema", "{\"uniqueItems\":true}", "[1, true, \"1\", [1], [true]]", "+"},
    {"schema", "{\"uniqueItems\":true}", "[{\"a\":1},{\"a\":2}]", "+"},
    {"schema", "{\"uniqueItems\":true}", "[[1,2],[2,1]]", "+"},
    {"schema", "{\"uniqueItems\":true}", "[1,10]", "+"},
    {"schema", "{\"uniqueItems\":true}", "[\"a\", \"a\"]", "-"},
    {"schema", "{\"uniqueItems\":true}", "[\"a\",\"\\u0061\"]", "-"},
    {"schema", "{\"uniqueItems\":true}", "[1,1.0]", "-"},
    {"schema", "{\"uniqueItems\":true}", "[10,2,1e1]", "-"},
    {"schema", "{\"uniqueItems\":true}", "[0.5,5E-1]", "-"},
    {"schema", "{\"uniqueItems\":true}", "[{\"a\":1,\"b\":2},{\"b\": 2, \"a\": 1}]", "-"},
    {"schema", "{\"uniqueItems\":true}", "[{\"a\":1,\"a\":2},{\"a\":2}]", "-"},
    {"schema", "{\"uniqueItems\":true}", "[[1, 2],[1,2]]", "-"},
    {"schema", "{\"uniqueItems\":true}", "[null,1,null]", "-"},
    {"schema", "{\"uniqueItems\":true}", "[\"/\",\"\\/\"]", "-"},
    {"schema", "{\"items\":{\"type\":\"array\",\"uniqueItems\":true},\"uniqueItems\":true}",
     "[[1,2],[2,1],[1]]", "+"},
    {"schema", "{\"items\":{\"type\":\"array\",\"uniqueItems\":true},\"uniqueItems\":true}",
     "[[1,1]]", "-"},
    {"schema", "{\"items\":{\"type\":\"array\",\"uniqueItems\":true},\"uniqueItems\":true}",
     "[[1],[2],[1]]", "-"},
    {"schema", "{\"items\":{\"type\":\"array\",\"uniqueItems\":true},\"uniqueItems\":true}",
     "[[1, 2],[3],[1,2]]", "-"},
    {"schema",
     "{\"prefixItems\":[{\"type\":\"boolean\"},{\"type\":\"boolean\"}],\"items\":{\"type\":"
     "\"null\"},\"uniqueItems\":true}",
     "[true,false,null]", "+"},
    {"schema",
     "{\"prefixItems\":[{\"type\":\"boolean\"},{\"type\":\"boolean\"}],\"items\":{\"type\":"
     "\"null\"},\"uniqueItems\":true}",
     "[true]", "+"},
    {"schema",
     "{\"prefixItems\":[{\"type\":\"boolean\"},{\"type\":\"boolean\"}],\"items\":{\"type\":"
     "\"null\"},\"uniqueItems\":true}",
     "[true,true]", "-"},
    {"schema",
     "{\"prefixItems\":[{\"type\":\"boolean\"},{\"type\":\"boolean\"}],\"items\":{\"type\":"
     "\"null\"},\"uniqueItems\":true}",
     "[true,false,null,null]", "-"},
    {"schema", "{\"items\":{\"enum\":[\"a\",\"b\"]},\"uniqueItems\":true}", "[\"a\",\"b\"]", "+"},
    {"schema", "{\"items\":{\"enum\":[\"a\",\"b\"]},\"uniqueItems\":true}", "[\"b\"]", "+"},
    {"schema", "{\"items\":{\"enum\":[\"a\",\"b\"]},\"uniqueItems\":true}", "[\"a\",\"b\",\"a\"]",
     "-"},
    {"schema", "{\"items\":{\"enum\":[\"a\",\"b\"]},\"uniqueItems\":true}", "[\"b\",\"b\"]", "-"},
    {"schema",
     "{\"anyOf\":[{\"items\":{\"const\":1},\"uniqueItems\":true},{\"items\":{\"const\":1},"
     "\"minItems\":3,\"maxItems\":3}]}",
     "[1]", "+"},
    {"schema",
     "{\"anyOf\":[{\"items\":{\"const\":1},\"uniqueItems\":true},{\"items\":{\"const\":1},"
     "\"minItems\":3,\"maxItems\":3}]}",
     "[1,1,1]", "+"},
    {"schema",
     "{\"anyOf\":[{\"items\":{\"const\":1},\"uniqueItems\":true},{\"items\":{\"const\":1},"
     "\"minItems\":3,\"maxItems\":3}]}",
     "[1,1]", "-"},
    {"schema",
     "{\"items\":{\"type\":\"string\"},\"uniqueItems\":true,\"contains\":{\"const\":\"q\"}}",
     "[\"q\",\"r\"]", "+"},
    {"schema",
     "{\"items\":{\"type\":\"string\"},\"uniqueItems\":true,\"contains\":{\"const\":\"q\"}}",
     "[\"q\",\"q\"]", "-"},
    {"schema", "{\"allOf\":[{\"uniqueItems\":true},{\"uniqueItems\":false}],\"type\":\"array\"}",
     "[1,2]", "+"},
    {"schema", "{\"allOf\":[{\"uniqueItems\":true},{\"uniqueItems\":false}],\"type\":\"array\"}",
     "[1,1]", "-"},
    {"schema", "{\"properties\":{\"x\":{\"uniqueItems\":true},\"y\":{\"uniqueItems\":true}}}",
     "{\"x\":[1,2],\"y\":[1,2]}", "+"},
    {"schema", "{\"properties\":{\"x\":{\"uniqueItems\":true},\"y\":{\"uniqueItems\":true}}}",
     "{\"x\":[1,2],\"y\":[1,1]}", "-"},
    {"schema", "{\"type\":\"object\",\"minProperties\":2}", "{\"a\":1,\"b\":2}", "+"},
    {"schema", "{\"type\":\"object\",\"minProperties\":2}", "{\"a\":1,\"b\":2, \"c\":3}", "+"},
    {"schema", "{\"type\":\"object\",\"minProperties\":2}", "{\"a\":1}", "-"},
    {"schema", "{\"type\":\"object\",\"minProperties\":2}", "{\"a\":1,\"a\":2}", "-"},
    {"schema", "{\"type\":\"object\",\"minProperties\":2}", "{\"a\":1, \"\\u0061\":2}", "-"},
    {"schema", "{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":3}",
     "{\"a\":1,\"b\":1,\"c\":1}", "+"},
    {"schema", "{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":3}",
     "{\"a\":1,\"x\":1,\"y\":2}", "+"},
    {"schema", "{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":3}",
     "{\"x\":1,\"y\":2,\"z\":3}", "+"},
    {"schema", "{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":3}",
     "{\"a\":1,\"x\":1,\"x\":2}", "-"},
    {"schema", "{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":3}", "{\"a\":1,\"b\":1}",
     "-"},
    {"schema",
     "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":2}",
     "{\"a\":1,\"c\":1}", "+"},
    {"schema",
     "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":2}",
     "{\"b\":1,\"c\":1}", "+"},
    {"schema",
     "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":2}",
     "{\"a\":1}", "-"},
    {"schema",
     "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":2}",
     "{\"a\":1,\"b\":1,\"c\":1}", "-"},
};

START_TEST(items_and_names_differ)
{
    check_singles(unlike, sizeof(unlike) / sizeof(unlike[0]));
    grammar *g = must("schema", "{\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}");
    check_masks(g, "[\"ab\", \"a\"]");
    grammar_release(g);
}
END_TEST

/* Of so few values that an answer comes to all of them. */
static const char *const of_few[] = {
    "{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",\"redder\"]},\"uniqueItems\":true,"
    "\"minItems\":3}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":11},"
    "\"uniqueItems\":true,\"minItems\":11}",
    "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":"
    "0,\"maximum\":2},\"minItems\":1,\"maxItems\":2,\"uniqueItems\":true},\"uniqueItems\":true,"
    "\"minItems\":9}",
    "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
    "\"boolean\"},\"b\":{\"enum\":[1,2]}},\"required\":[\"a\"],\"additionalProperties\":false},"
    "\"uniqueItems\":true,\"minItems\":6}",
    "{\"type\":\"array\",\"items\":{\"pattern\":\"^[ab]{0,2}$\"},\"uniqueItems\":true,\"minItems\":"
    "7}",
    "{\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1,\"multipleOf\":"
    "0.25},\"uniqueItems\":true,\"minItems\":5}",
    "{\"type\":[\"array\",\"null\"],\"items\":{\"type\":[\"boolean\",\"null\"]},\"uniqueItems\":"
    "true}",
};

/* Draws one answer; it must come to its end. */
static void draw_to_the_end(grammar *g, const char *spec, uint32_t *seed)
{
    grammar_run *r = grammar_run_create(g, &eos, 1);
    int n = 0;
    for (; !grammar_run_over(r) && n < 400; n++) {
        const uint32_t *mask = mask_of(r);
        ck_assert_msg(!grammar_run_failed(r), "%s: a corner", spec);
        int32_t got = eos;
        uint32_t seen = 0;
        for (int32_t id = 0; id < tokenizer_vocab(tok); id++) {
            if (!allowed(mask, id) || id == eos) continue;
            *seed = *seed * 1664525 + 1013904223;
            if ((*seed >> 8) % ++seen == 0) got = id;
        }
        grammar_run_accept(r, walk, got);
    }
    ck_assert_msg(n < 400 && !grammar_run_failed(r), "%s: no end", spec);
    grammar_run_release(r);
}

START_TEST(items_that_differ_end_in_no_corner)
{
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof(of_few) / sizeof(of_few[0]); i++) {
        grammar *g = must("schema", of_few[i]);
        for (int k = 0; k < 15; k++) draw_to_the_end(g, of_few[i], &seed);
        grammar_release(g);
    }
}
END_TEST

/* oneOf and `not`: one branch, and ways in which the others fail. */
static const single opposites[] = {
    {"schema",
     "{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\","
     "\"properties\":{\"a\":{},\"b\":{},\"c\":{}}}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\","
     "\"properties\":{\"a\":{},\"b\":{},\"c\":{}}}",
     "{\"a\":1,\"c\":2}", "+"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\","
     "\"properties\":{\"a\":{},\"b\":{},\"c\":{}}}",
     "{\"b\":1,\"c\":2}", "+"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\","
     "\"properties\":{\"a\":{},\"b\":{},\"c\":{}}}",
     "{\"a\":1,\"b\":1}", "-"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\","
     "\"properties\":{\"a\":{},\"b\":{},\"c\":{}}}",
     "{\"c\":2}", "-"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"r\"]},{\"required\":[\"l\",\"w\"]},{\"required\":[\"h\",\"w\"]}]"
     ",\"type\":\"object\",\"properties\":{\"h\":{},\"l\":{},\"r\":{},\"w\":{}}}",
     "{\"r\":1}", "+"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"r\"]},{\"required\":[\"l\",\"w\"]},{\"required\":[\"h\",\"w\"]}]"
     ",\"type\":\"object\",\"properties\":{\"h\":{},\"l\":{},\"r\":{},\"w\":{}}}",
     "{\"r\":1,\"w\":1}", "+"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"r\"]},{\"required\":[\"l\",\"w\"]},{\"required\":[\"h\",\"w\"]}]"
     ",\"type\":\"object\",\"properties\":{\"h\":{},\"l\":{},\"r\":{},\"w\":{}}}",
     "{\"l\":1,\"w\":1}", "+"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"r\"]},{\"required\":[\"l\",\"w\"]},{\"required\":[\"h\",\"w\"]}]"
     ",\"type\":\"object\",\"properties\":{\"h\":{},\"l\":{},\"r\":{},\"w\":{}}}",
     "{\"h\":1,\"l\":1,\"w\":1}", "-"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"r\"]},{\"required\":[\"l\",\"w\"]},{\"required\":[\"h\",\"w\"]}]"
     ",\"type\":\"object\",\"properties\":{\"h\":{},\"l\":{},\"r\":{},\"w\":{}}}",
     "{\"r\":1,\"w\":1,\"l\":1}", "-"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"r\"]},{\"required\":[\"l\",\"w\"]},{\"required\":[\"h\",\"w\"]}]"
     ",\"type\":\"object\",\"properties\":{\"h\":{},\"l\":{},\"r\":{},\"w\":{}}}",
     "{\"l\":1,\"r\":1,\"w\":1}", "-"},
    {"schema", "{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}", "1", "+"},
    {"schema", "{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}", "3", "-"},
    {"schema", "{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}", "2.5", "+"},
    {"schema", "{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}", "1.5", "-"},
    {"schema", "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"},{\"type\":\"null\"}]}",
     "1.25", "+"},
    {"schema", "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"},{\"type\":\"null\"}]}",
     "1", "-"},
    {"schema", "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"},{\"type\":\"null\"}]}",
     "1.0", "-"},
    {"schema", "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"},{\"type\":\"null\"}]}",
     "null", "+"},
    {"schema", "{\"type\":\"string\",\"oneOf\":[{\"minLength\":2},{\"maxLength\":4}]}", "\"foo\"",
     "-"},
    {"schema", "{\"type\":\"string\",\"oneOf\":[{\"minLength\":2},{\"maxLength\":4}]}", "\"fooba\"",
     "+"},
    {"schema", "{\"type\":\"string\",\"oneOf\":[{\"minLength\":2},{\"maxLength\":4}]}", "\"f\"",
     "+"},
    {"schema", "{\"oneOf\":[{\"enum\":[\"ab\"]},{\"type\":\"string\"}]}", "\"ab\"", "-"},
    {"schema", "{\"oneOf\":[{\"enum\":[\"ab\"]},{\"type\":\"string\"}]}", "\"abc\"", "+"},
    {"schema",
     "{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"type\":\"string\",\"pattern\":\"b$\"}"
     "]}",
     "\"ac\"", "+"},
    {"schema",
     "{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"type\":\"string\",\"pattern\":\"b$\"}"
     "]}",
     "\"ab\"", "-"},
    {"schema",
     "{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"type\":\"string\",\"pattern\":\"b$\"}"
     "]}",
     "\"cb\"", "+"},
    {"schema",
     "{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"type\":\"string\",\"pattern\":\"b$\"}"
     "]}",
     "\"c\"", "-"},
    {"schema",
     "{\"oneOf\":[{\"type\":\"object\"},{\"type\":\"object\",\"properties\":{\"$ref\":{\"type\":"
     "\"string\"}},\"required\":[\"$ref\"]}]}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"oneOf\":[{\"type\":\"object\"},{\"type\":\"object\",\"properties\":{\"$ref\":{\"type\":"
     "\"string\"}},\"required\":[\"$ref\"]}]}",
     "{\"$ref\":\"x\"}", "-"},
    {"schema",
     "{\"oneOf\":[{\"type\":\"array\",\"items\":{\"type\":[\"number\",\"null\"]}},{\"type\":"
     "\"array\",\"items\":{\"type\":\"array\"}}]}",
     "[]", "-"},
    {"schema",
     "{\"oneOf\":[{\"type\":\"array\",\"items\":{\"type\":[\"number\",\"null\"]}},{\"type\":"
     "\"array\",\"items\":{\"type\":\"array\"}}]}",
     "[1,null]", "+"},
    {"schema",
     "{\"oneOf\":[{\"type\":\"array\",\"items\":{\"type\":[\"number\",\"null\"]}},{\"type\":"
     "\"array\",\"items\":{\"type\":\"array\"}}]}",
     "[[]]", "+"},
    {"schema", "{\"enum\":[1,2,\"x\",[3]],\"oneOf\":[{\"type\":\"number\"},{\"enum\":[2,\"x\"]}]}",
     "1", "+"},
    {"schema", "{\"enum\":[1,2,\"x\",[3]],\"oneOf\":[{\"type\":\"number\"},{\"enum\":[2,\"x\"]}]}",
     "2", "-"},
    {"schema", "{\"enum\":[1,2,\"x\",[3]],\"oneOf\":[{\"type\":\"number\"},{\"enum\":[2,\"x\"]}]}",
     "\"x\"", "+"},
    {"schema", "{\"enum\":[1,2,\"x\",[3]],\"oneOf\":[{\"type\":\"number\"},{\"enum\":[2,\"x\"]}]}",
     "[3]", "-"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"b\"],\"oneOf\":[{"
     "\"properties\":{\"a\":{\"type\":\"string\"}},\"additionalProperties\":false},{\"required\":["
     "\"a\"]}]}",
     "{\"a\":\"x\",\"b\":1}", "+"},
    {"schema",
     "{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"b\"],\"oneOf\":[{"
     "\"properties\":{\"a\":{\"type\":\"string\"}},\"additionalProperties\":false},{\"required\":["
     "\"a\"]}]}",
     "{\"b\":1}", "-"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"a\"]},{\"not\":{\"required\":[\"a\"]}},{\"required\":[\"b\"]}],"
     "\"properties\":{\"a\":{},\"b\":{}}}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"a\"]},{\"not\":{\"required\":[\"a\"]}},{\"required\":[\"b\"]}],"
     "\"properties\":{\"a\":{},\"b\":{}}}",
     "{}", "+"},
    {"schema",
     "{\"oneOf\":[{\"required\":[\"a\"]},{\"not\":{\"required\":[\"a\"]}},{\"required\":[\"b\"]}],"
     "\"properties\":{\"a\":{},\"b\":{}}}",
     "{\"a\":1,\"b\":1}", "-"},
    {"schema", "{\"type\":\"object\",\"properties\":{\"a\":{\"oneOf\":[true,{}]},\"b\":{}}}",
     "{\"b\":1}", "+"},
    {"schema", "{\"type\":\"object\",\"properties\":{\"a\":{\"oneOf\":[true,{}]},\"b\":{}}}",
     "{\"a\":1}", "-"},
    {"schema", "{\"type\":\"string\",\"not\":{\"pattern\":\"^a*$\"}}", "\"\"", "-"},
    {"schema", "{\"type\":\"string\",\"not\":{\"pattern\":\"^a*$\"}}", "\"aa\"", "-"},
    {"schema", "{\"type\":\"string\",\"not\":{\"pattern\":\"^a*$\"}}", "\"ab\"", "+"},
    {"schema", "{\"type\":\"string\",\"minLength\":2,\"not\":{\"enum\":[\"ab\"]}}", "\"ab\"", "-"},
    {"schema", "{\"type\":\"string\",\"minLength\":2,\"not\":{\"enum\":[\"ab\"]}}", "\"a\"", "-"},
    {"schema", "{\"type\":\"string\",\"minLength\":2,\"not\":{\"enum\":[\"ab\"]}}", "\"ac\"", "+"},
    {"schema", "{\"type\":\"integer\",\"not\":{\"anyOf\":[{\"multipleOf\":2},{\"multipleOf\":3}]}}",
     "4", "-"},
    {"schema", "{\"type\":\"integer\",\"not\":{\"anyOf\":[{\"multipleOf\":2},{\"multipleOf\":3}]}}",
     "9", "-"},
    {"schema", "{\"type\":\"integer\",\"not\":{\"anyOf\":[{\"multipleOf\":2},{\"multipleOf\":3}]}}",
     "25", "+"},
    {"schema", "{\"type\":\"integer\",\"not\":{\"anyOf\":[{\"multipleOf\":2},{\"multipleOf\":3}]}}",
     "-7", "+"},
    {"schema", "{\"type\":\"integer\",\"not\":{\"anyOf\":[{\"multipleOf\":2},{\"multipleOf\":3}]}}",
     "0", "-"},
    {"schema", "{\"type\":\"number\",\"minimum\":0,\"maximum\":3,\"not\":{\"multipleOf\":1}}", "2",
     "-"},
    {"schema", "{\"type\":\"number\",\"minimum\":0,\"maximum\":3,\"not\":{\"multipleOf\":1}}",
     "0.5", "+"},
    {"schema", "{\"type\":\"number\",\"minimum\":0,\"maximum\":3,\"not\":{\"multipleOf\":1}}",
     "2.75", "+"},
    {"schema", "{\"type\":\"number\",\"minimum\":0,\"maximum\":3,\"not\":{\"multipleOf\":1}}",
     "3.5", "-"},
    {"schema", "{\"type\":\"integer\",\"not\":{\"enum\":[1,3]}}", "1", "-"},
    {"schema", "{\"type\":\"integer\",\"not\":{\"enum\":[1,3]}}", "2", "+"},
    {"schema", "{\"type\":\"integer\",\"not\":{\"enum\":[1,3]}}", "3", "-"},
    {"schema", "{\"type\":\"integer\",\"not\":{\"enum\":[1,3]}}", "4", "+"},
    {"schema", "{\"type\":\"object\",\"not\":{\"additionalProperties\":{\"type\":\"null\"}}}",
     "{\"other\":1}", "+"},
    {"schema", "{\"type\":\"object\",\"not\":{\"additionalProperties\":{\"type\":\"null\"}}}",
     "{\"other\":null}", "-"},
    {"schema", "{\"type\":\"object\",\"not\":{\"additionalProperties\":{\"type\":\"null\"}}}", "{}",
     "-"},
    {"schema", "{\"not\":{\"propertyNames\":{\"enum\":[\"a\"]}}}", "{\"a\":1}", "-"},
    {"schema", "{\"not\":{\"propertyNames\":{\"enum\":[\"a\"]}}}", "{\"other\":1}", "+"},
    {"schema", "{\"not\":{\"items\":{\"type\":\"integer\"}}}", "[\"a\"]", "+"},
    {"schema", "{\"not\":{\"items\":{\"type\":\"integer\"}}}", "[1]", "-"},
    {"schema", "{\"not\":{\"items\":{\"type\":\"integer\"}}}", "[]", "-"},
    {"schema", "{\"not\":{\"contains\":{\"type\":\"integer\"}}}", "[\"a\"]", "+"},
    {"schema", "{\"not\":{\"contains\":{\"type\":\"integer\"}}}", "[]", "+"},
    {"schema", "{\"not\":{\"contains\":{\"type\":\"integer\"}}}", "[\"a\",1]", "-"},
    {"schema", "{\"not\":{\"const\":{\"a\":1}},\"type\":\"object\"}", "{\"a\":1}", "-"},
    {"schema", "{\"not\":{\"const\":{\"a\":1}},\"type\":\"object\"}", "{\"a\":2}", "+"},
    {"schema", "{\"not\":{\"const\":{\"a\":1}},\"type\":\"object\"}", "{}", "+"},
    {"schema",
     "{\"not\":{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]},\"type\":\"object\","
     "\"properties\":{\"a\":{},\"b\":{}}}",
     "{\"a\":1,\"b\":1}", "+"},
    {"schema",
     "{\"not\":{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]},\"type\":\"object\","
     "\"properties\":{\"a\":{},\"b\":{}}}",
     "{}", "+"},
    {"schema",
     "{\"not\":{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]},\"type\":\"object\","
     "\"properties\":{\"a\":{},\"b\":{}}}",
     "{\"a\":1}", "-"},
    {"schema",
     "{\"not\":{\"if\":{\"required\":[\"a\"]},\"then\":{\"required\":[\"b\"]}},\"properties\":{"
     "\"a\":{},\"b\":{}}}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"not\":{\"if\":{\"required\":[\"a\"]},\"then\":{\"required\":[\"b\"]}},\"properties\":{"
     "\"a\":{},\"b\":{}}}",
     "{\"a\":1,\"b\":1}", "-"},
    {"schema",
     "{\"not\":{\"dependentRequired\":{\"a\":[\"b\"]}},\"properties\":{\"a\":{},\"b\":{}}}",
     "{\"a\":1}", "+"},
    {"schema",
     "{\"not\":{\"dependentRequired\":{\"a\":[\"b\"]}},\"properties\":{\"a\":{},\"b\":{}}}",
     "{\"a\":1,\"b\":1}", "-"},
    {"schema",
     "{\"not\":{\"dependentRequired\":{\"a\":[\"b\"]}},\"properties\":{\"a\":{},\"b\":{}}}", "{}",
     "-"},
};

START_TEST(one_branch_holds_and_no_other)
{
    check_singles(opposites, sizeof(opposites) / sizeof(opposites[0]));
}
END_TEST

typedef struct {
    const char *kind, *spec;
    err_code rc;
    const char *says;
} refused;

static const refused refusals[] = {
    {"schema", "{\"not\":{}}", ERR_INPUT, "no finite text"},
    {"schema", "{\"not\":{\"unevaluatedItems\":false}}", ERR_UNSUPPORTED, "'not' at #"},
    {"schema", "{\"properties\":{\"a\":{\"items\":{\"extends\":true}}}}", ERR_UNSUPPORTED,
     "'extends' at #/properties/a/items"},
    {"schema", "{\"contains\":{},\"minContains\":64}", ERR_UNSUPPORTED, "'minContains'"},
    {"schema", "{\"contains\":[true]}", ERR_INPUT, "'contains' must be a schema"},
    {"schema",
     "{\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{\"const\":2}},{\"contains\":{"
     "\"const\":3}},"
     "{\"contains\":{\"const\":4}}]}",
     ERR_UNSUPPORTED, "'contains'"},
    {"schema", "{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}",
     ERR_INPUT, "no finite text"},
    {"schema",
     "{\"type\":\"array\",\"uniqueItems\":true,\"contains\":{\"const\":1},\"minContains\":2}",
     ERR_INPUT, "no finite text"},
    {"schema", "{\"uniqueItems\":true,\"minItems\":2000}", ERR_UNSUPPORTED, "'uniqueItems'"},
    {"schema",
     "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":3,\"items\":{\"type\":\"boolean\"}}",
     ERR_INPUT, "no finite text"},
    {"schema", "{\"properties\":{\"a\":{}},\"minProperties\":100000,\"maxProperties\":200000}",
     ERR_UNSUPPORTED, "'minProperties'"},
    {"schema", "{\"multipleOf\":0.1234567890123456789}", ERR_UNSUPPORTED, "'multipleOf'"},
    {"schema", "{\"multipleOf\":0}", ERR_INPUT, "above 0"},
    {"schema", "{\"items\":{\"pattern\":[\"a\",\"b\"]}}", ERR_INPUT, "must be a string"},
    {"schema", "{\"properties\":{\"enum\":{\"pattern\":[\"a\"]}}}", ERR_INPUT, "must be a string"},
    {"schema", "{\"anyOf\":[{\"\\u0001others\":[{}]}]}", ERR_INPUT, "byte 1"},
    {"schema", "{\"enum\":[\"\u00e9\"],\"pattern\":\"a\"}", ERR_UNSUPPORTED, "'pattern'"},
    {"schema", "{\"$ref\":\"https://example.com/x\"}", ERR_UNSUPPORTED, "$ref"},
    {"schema", "{\"$ref\":\"#/$defs/none\"}", ERR_INPUT, "nowhere"},
    {"schema", "{\"$ref\":\"#\"}", ERR_INPUT, "back to itself"},
    {"schema", "{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", ERR_INPUT, "itself"},
    {"schema", "{\"type\":\"text\"}", ERR_INPUT, "'type'"},
    {"schema", "{\"type\":\"string\",\"minLength\":5,\"maxLength\":4}", ERR_INPUT,
     "no finite text"},
    {"schema", "{\"type\":\"string\",\"minLength\":-1}", ERR_INPUT, "whole number"},
    {"schema", "{\"enum\":[]}", ERR_INPUT, "no finite text"},
    {"schema", "false", ERR_INPUT, "no finite text"},
    {"schema", "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", ERR_INPUT, "no finite text"},
    {"schema", "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     ERR_INPUT, "no finite text"},
    {"schema", "[]", ERR_INPUT, "object or a boolean"},
    {"schema", "{\"oneOf\":[true,{}]}", ERR_INPUT, "no finite text"},
    {"schema", "{\"oneOf\":[{\"enum\":[1,2]},{\"enum\":[2,1]}]}", ERR_INPUT, "no finite text"},
    {"schema", "{\"oneOf\":[[[]],{\"type\":\"null\"}]}", ERR_INPUT, "a schema must be"},
    {"regex", "(a)\\1", ERR_UNSUPPORTED, "back reference"},
    {"regex", "(a)(?!\\1)b", ERR_UNSUPPORTED, "must not match"},
    {"regex", "(?<=a)b", ERR_UNSUPPORTED, "look-around"},
    {"regex", "(?=a(?=b))a", ERR_UNSUPPORTED, "look-around in another"},
    {"regex", "a$b", ERR_INPUT, "no finite text"},
    {"schema", "{\"pattern\":\"(?=a)b\",\"type\":\"string\"}", ERR_INPUT, "no finite text"},
    {"regex", "\\p{Word}", ERR_UNSUPPORTED, "property"},
    {"regex", "(a", ERR_INPUT, "')'"},
    {"regex", "a)", ERR_INPUT, "')'"},
    {"regex", "[z-a]", ERR_INPUT, "backwards"},
    {"regex", "[^\\s\\S]", ERR_INPUT, "no character"},
    {"regex", "*a", ERR_INPUT, "nothing to repeat"},
    {"regex", "a|{2}", ERR_INPUT, "nothing to repeat"},
    {"regex", "a???", ERR_INPUT, "repetition"},
    {"regex", "a{2}{,3}", ERR_INPUT, "repetition"},
    {"regex", "\\", ERR_INPUT, "backslash"},
    {"regex", "((((a{1000}){1000}){1000}){1000})", ERR_LIMIT, "large"},
    {"regex", "(.|\\n){20000}", ERR_LIMIT, "repetitions"},
    {"grammar", "root ::= \"a\"\nroot ::= \"b\"", ERR_INPUT,
     "line 2 of the grammar: the rule 'root'"},
    {"grammar", "root ::= (\n\"a\" | x", ERR_INPUT, "line 2 of the grammar: a ')'"},
    {"grammar", "root ::= a\na ::= b", ERR_INPUT, "line 2 of the grammar: there is no rule 'b'"},
    {"grammar", "a ::= \"a\"", ERR_INPUT, "no rule 'root'"},
    {"grammar", "start: \"a\"\n$", ERR_INPUT, "line 2"},
    {"grammar", "", ERR_INPUT, "no rule 'start'"},
    {"grammar", "root ::= root | \"(\" root \")\"", ERR_INPUT, "no finite text"},
    {"grammar", "root ::= x? root \"a\" | \"b\"\nx ::= \"x\"", ERR_INPUT, "refers to itself"},
    {"grammar", "root ::= [z-a]", ERR_INPUT, "backwards"},
    {"grammar", "root ::= \"a\"{3,2}", ERR_INPUT, "backwards"},
    {"grammar", "root ::= \"a\"{x}", ERR_INPUT, "without its numbers"},
    {"grammar", "root ::= \"a\"{10001}", ERR_LIMIT, "10000 repetitions"},
    {"grammar", "root ::= \"\\ud800\"", ERR_INPUT, "can't be"},
    {"grammar", "root ::= \"\\q\"", ERR_UNSUPPORTED, "\\q"},
    {"grammar", "root ::= <[1000]>", ERR_INPUT, "'<[1000]>'"},
    {"grammar", "start: a{b}\nb: \"x\"", ERR_UNSUPPORTED, "templates"},
    {"grammar", "start: /a/i", ERR_UNSUPPORTED, "flag 'i'"},
    {"grammar", "start: /a(?=b)/", ERR_UNSUPPORTED, "look-around"},
    {"grammar", "start: A\nA: b\nb: \"x\"", ERR_INPUT, "a terminal refers to the rule 'b'"},
    {"grammar", "%import python.NAME\nstart: NAME", ERR_UNSUPPORTED, "only 'common'"},
    {"grammar", "%import common.NONE\nstart: NONE", ERR_UNSUPPORTED, "common.NONE"},
    {"grammar", "%declare X\nstart: X", ERR_UNSUPPORTED, "%declare"},
    {"choice", "[]", ERR_INPUT, "at least one"},
    {"choice", "[\"a\",1]", ERR_INPUT, "choice 1"},
};

START_TEST(refuses_by_name)
{
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const refused *x = &refusals[i];
        grammar *g;
        err e = {.msg = ""};
        err_code rc = compile(x->kind, x->spec, &g, &e);
        ck_assert_msg(rc == x->rc, "%s: %d %s", x->spec, rc, e.msg);
        ck_assert_msg(strstr(e.msg, x->says) != NULL, "%s: %s", x->spec, e.msg);
        ck_assert_ptr_null(g);
    }
}
END_TEST

/* A text of `n` copies. */
static char *times(const char *piece, int n, const char *end)
{
    size_t len = strlen(piece);
    char *s = malloc((size_t)n * len + strlen(end) + 1);
    for (int i = 0; i < n; i++) memcpy(s + (size_t)i * len, piece, len);
    memcpy(s + (size_t)n * len, end, strlen(end) + 1);
    return s;
}

START_TEST(hostile_grammars_end_soon)
{
    /* Two thousand optional members, ten thousand choices, groups in
     * groups, ambiguous repetitions. */
    char *s = times("(a|b|ab)*", 40, "c"), key[64];
    grammar *g = must("regex", s);
    ck_assert(takes(g, "ababc"));
    grammar_release(g);
    free(s);
    s = times("(", 200, "a");
    err e;
    ck_assert_int_eq(compile("regex", s, &g, &e), ERR_LIMIT);
    free(s);
    cJSON *schema = cJSON_CreateObject(), *props = cJSON_AddObjectToObject(schema, "properties");
    for (int i = 0; i < 2000; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        cJSON_AddTrueToObject(props, key);
    }
    grammar_spec spec = {.kind = GRAMMAR_SCHEMA, .json = schema};
    ck_assert_msg(grammar_acquire(maker, &spec, &g, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(takes(g, "{\"k0\":1,\"k1\":[],\"k2\":null}"));
    grammar_release(g);
    cJSON_Delete(schema);
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < 10000; i++) {
        snprintf(key, sizeof(key), "choice %d", i);
        cJSON_AddItemToArray(list, cJSON_CreateString(key));
    }
    spec = (grammar_spec){.kind = GRAMMAR_CHOICE, .json = list};
    ck_assert_msg(grammar_acquire(maker, &spec, &g, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(takes(g, "choice 9999"));
    ck_assert(!takes(g, "choice 10000"));
    grammar_release(g);
    cJSON_Delete(list);
}
END_TEST

START_TEST(hostile_context_free_grammars_end_soon)
{
    static const struct {
        const char *begin, *piece, *end;
        int n;
        const char *says;
    } bad[] = {
        {"root ::= ", "(", "", 200, "groups in one another"},
        {"root ::= ", "\"a\" ", "", 60000, "more than"},
        {"root ::= ", "a? ", "\na ::= root \"x\" | \"y\"", 2000, "itself"},
        {"root ::= ", "((\"a\"{9} | \"b\"){1000}){1000}", "", 1, "large"},
        {"root ::= ", "[a-b", "", 11000, "parts"},
    };
    grammar *g;
    err e;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *tail = times(bad[i].piece, bad[i].n, bad[i].end), *s = times(bad[i].begin, 1, tail);
        err_code rc = compile("grammar", s, &g, &e);
        ck_assert_msg(rc && strstr(e.msg, bad[i].says), "%.40s: %d %s", s, rc, e.msg);
        free(tail);
        free(s);
    }
    /* Each of 60 rules names the next one twice: 2^60 states if all were laid out in place. */
    char *s = malloc(100000), *at = s + sprintf(s, "root ::= r0\n");
    for (int i = 0; i < 60; i++) at += sprintf(at, "r%d ::= r%d r%d | \"a\"\n", i, i + 1, i + 1);
    sprintf(at, "r60 ::= \"b\"");
    ck_assert_msg(compile("grammar", s, &g, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(takes(g, "a") && !takes(g, "c"));
    grammar_release(g);
    free(s);
    /* Ambiguous beyond all counting: what is taken is still right. */
    g = must("grammar", "start: a\na: a a | a a a | \"x\" | a \"y\" ");
    ck_assert(takes(g, "xxyxxxyyx") && !takes(g, "yx"));
    grammar_release(g);
}
END_TEST

START_TEST(what_begins_with_itself_needs_no_stack)
{
    grammar *g = must("grammar", "start: sum\nsum: sum \"+\" \"1\" | \"1\"");
    char *s = times("1+", 400, "1");
    ck_assert(takes(g, s));
    free(s);
    grammar_release(g);
    g = must("grammar", "root ::= \"(\" root \")\" | \"x\"");
    check_masks(g, "((x");
    grammar_release(g);
    g = must("grammar", "start: sum\nsum: sum \"+\" INT | INT\nINT: /[0-9]/+\n%ignore \" \"");
    check_masks(g, " 12 + 3");
    grammar_release(g);
}
END_TEST

/* Small texts that would ask for hours or gigabytes if nobody counted. */
START_TEST(what_multiplies_is_refused)
{
    char *many = times("1,", 20000, "2"), *refs = times("{\"$ref\":\"#/$defs/e\"},", 400, "{}");
    size_t n = 2 * strlen(many) + strlen(refs) + 400;
    char *s = malloc(n), key[32];
    grammar *g;
    err e;
    snprintf(s, n, "{\"$defs\":{\"e\":{\"enum\":[%s]}},\"enum\":[%.20000s0],\"allOf\":[%s]}", many,
             many, refs);
    ck_assert_int_eq(compile("schema", s, &g, &e), ERR_LIMIT);
    free(s);
    free(many);
    free(refs);
    char *parts =
        times("{\"anyOf\":[{\"properties\":{\"a\":true}},{\"required\":[\"b\"]}]},", 30, "{}");
    n = strlen(parts) + 100;
    s = malloc(n);
    snprintf(s, n, "{\"anyOf\":[%s],\"unevaluatedProperties\":false}", parts);
    grammar_release(must("schema", s)); /* all are one of two ways */
    snprintf(s, n, "{\"allOf\":[%s],\"unevaluatedProperties\":false}", parts);
    ck_assert_int_eq(compile("schema", s, &g, &e), ERR_LIMIT);
    free(s);
    free(parts);
    cJSON *schema = cJSON_CreateObject(), *props = cJSON_AddObjectToObject(schema, "properties");
    cJSON_AddTrueToObject(schema, "additionalProperties");
    for (int i = 0; i < 3000; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        cJSON_AddTrueToObject(props, key);
    }
    grammar_spec spec = {.kind = GRAMMAR_SCHEMA, .json = schema};
    ck_assert_int_eq(grammar_acquire(maker, &spec, &g, &e), ERR_LIMIT);
    cJSON_Delete(schema);
}
END_TEST

/* What is expected behind the text, as bytes, where `likely` was guessed; each token of it is one
 * that the mask allows. */
static void expects_of(const char *kind, const char *form, const char *text, const char *likely,
                       double chance, int most, const char *want)
{
    int32_t ids[64], out[64];
    double chances[64];
    char got[256] = "";
    grammar_guess guess = {.token = out, .chance = chances, .most = most, .sure = 0.5};
    guess.n = (int)tokenizer_encode(tok, likely, strlen(likely), 0, out, 64);
    for (int k = 0; k < guess.n; k++) chances[k] = chance;
    grammar *g = must(kind, form);
    grammar_run *r = grammar_run_create(g, &eos, 1);
    int64_t n = tokenizer_encode(tok, text, strlen(text), 0, ids, 64);
    for (int64_t k = 0; k < n; k++) {
        ck_assert(allowed(mask_of(r), ids[k]));
        grammar_run_accept(r, walk, ids[k]);
    }
    (void)mask_of(r); /* ready */
    grammar_run_expect(r, walk, n > 0 ? ids[n - 1] : -1, &guess);
    ck_assert_int_le(guess.n, most);
    for (int k = 0; k < guess.n; k++) {
        size_t len;
        ck_assert(chances[k] == 0.5 || (chances[k] == chance && *likely));
        const char *bytes = tokenizer_bytes(tok, out[k], &len);
        strncat(got, bytes, len);
        ck_assert(allowed(mask_of(r), out[k]));
        grammar_run_accept(r, walk, out[k]);
    }
    ck_assert_str_eq(got, want);
    grammar_run_release(r);
    grammar_release(g);
}

static void expects(const char *kind, const char *form, const char *text, int most,
                    const char *want)
{
    expects_of(kind, form, text, "", 0, most, want);
}

static const char *two = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},"
                         "\"age\":{\"type\":\"integer\"}},\"required\":[\"name\",\"age\"],"
                         "\"additionalProperties\":false}";

START_TEST(what_the_form_leaves_is_expected)
{
    expects("schema", two, "", 16, "{\"name\": \"");
    expects("schema", two, "{\"na", 16, "me\": \"");
    expects("schema", two, "{\"name\": \"Bob", 16, ""); /* a string goes on or ends */
    expects("schema", two, "{\"name\": \"Bob\"", 16, ", \"age\":");
    expects("schema", two, "{\"name\": \"Bob\", \"age\": 12", 16, "");
    expects("choice", "[\"abcdef\",\"abcdeg\"]", "", 16, "abcde");
    expects("choice", "[\"a b\"]", "a", 16, " b"); /* no other space is taken away */
    expects("regex", "ab*", "a", 16, "");          /* it may end here */
    expects("regex", "(ab){3}", "ab", 16, "abab");
    expects("regex", "(ab){3}", "ab", 0, "");
    expects("regex", "x{200}", "x", 1, "x");
}
END_TEST

/* Behind a guess of another kind, too; and that ends where the form does not allow it. */
START_TEST(what_the_form_leaves_follows_other_guesses)
{
    expects_of("schema", two, "{\"name\": \"Bob", "\"", 0.4, 16, "\", \"age\":");
    expects_of("schema", two, "{\"name\": \"Bob", "by\"", 0.9, 16, "by\", \"age\":");
    expects_of("schema", two, "{\"name\": \"Bob\"", "; 5", 0.9, 16, ", \"age\":");
    expects_of("schema", two, "{\"name\": \"Bob\"", ", \"age\": 34}, {", 0.9, 16, ", \"age\": 34}");
    expects_of("schema", two, "{\"name\": \"Bob\"", ",\"age\": 34}", 0.9, 16, ",\"age\": 34}");
    expects_of("schema", two, "{\"name\": \"Bob\"", ",\"age\": 34}", 0.4, 16, ", \"age\":");
    expects_of("regex", "(ab){3}", "ab", "ab", 0.4, 1, "a");
    expects_of("regex", "[a-z]+", "x", "yz0", 0.4, 16, "yz");
}
END_TEST

START_TEST(nesting_ends_where_the_stack_does)
{
    grammar *g = must("schema", "{\"type\":\"array\"}");
    int32_t ids[512];
    char *s = times("[", 400, "");
    int64_t n = tokenizer_encode(tok, s, strlen(s), 0, ids, 512);
    grammar_run *r = grammar_run_create(g, &eos, 1);
    int64_t k = 0;
    for (; k < n && allowed(mask_of(r), ids[k]); k++) grammar_run_accept(r, walk, ids[k]);
    ck_assert_int_gt(k, 20); /* deep, but not for ever */
    ck_assert_int_lt(k, n);
    for (int i = 0; i < 500 && !grammar_run_over(r); i++) { /* and there is a way out */
        const uint32_t *mask = mask_of(r);
        int32_t close;
        ck_assert_int_eq(tokenizer_encode(tok, "]", 1, 0, &close, 1), 1);
        ck_assert(allowed(mask, close));
        grammar_run_accept(r, walk, close);
    }
    ck_assert(grammar_run_over(r));
    grammar_run_release(r);
    grammar_release(g);
    free(s);
}
END_TEST

START_TEST(one_compilation_serves_all)
{
    grammar *a = must("schema", "{\"type\":\"null\"}"),
            *b = must("schema", "{ \"type\": \"null\" }");
    ck_assert_ptr_eq(a, b);
    char spec[64];
    for (int i = 0; i < 200; i++) { /* more than the cache holds: what is in use stays whole */
        snprintf(spec, sizeof(spec), "{\"const\":%d}", i);
        grammar_release(must("schema", spec));
    }
    ck_assert(takes(a, "null"));
    grammar_release(a);
    grammar_release(b);
}
END_TEST

static int n_set(const uint32_t *mask)
{
    int n = 0;
    for (int32_t id = 0; id < tokenizer_vocab(tok); id++) n += allowed(mask, id);
    return n;
}

static int32_t one_token(const char *text)
{
    int32_t id;
    ck_assert_int_eq(tokenizer_encode(tok, text, strlen(text), 0, &id, 1), 1);
    return id;
}

/* Takes the text's tokens, each of which must be allowed. */
static void feed(grammar_run *r, const char *text)
{
    int32_t ids[256];
    int64_t n = tokenizer_encode(tok, text, strlen(text), 0, ids, 256);
    for (int64_t i = 0; i < n; i++) {
        ck_assert_msg(allowed(mask_of(r), ids[i]), "'%s' at %lld", text, (long long)i);
        grammar_run_accept(r, walk, ids[i]);
    }
}

/* Takes what alone is allowed, as long as that is so. */
static void follow(grammar_run *r, char *out, size_t cap)
{
    size_t len = 0;
    while (!grammar_run_over(r) && n_set(mask_of(r)) == 1 && len + 64 < cap) {
        int32_t id = 0;
        size_t n;
        while (!allowed(mask_of(r), id)) id++;
        const char *s = tokenizer_bytes(tok, id, &n);
        if (id != eos) memcpy(out + len, s, n);
        if (id != eos) len += n;
        grammar_run_accept(r, walk, id);
    }
    out[len] = 0;
}

static grammar_lead lead_of(const char *open, const char *then, int budget)
{
    return (grammar_lead){.tok = tok,
                          .n_vocab = tokenizer_vocab(tok),
                          .open = open,
                          .close = "</think>",
                          .gap = "\n\n",
                          .then = then,
                          .budget = budget};
}

START_TEST(the_form_begins_behind_the_thoughts)
{
    char text[256];
    grammar *g = must("choice", "[\"yes\",\"no\"]");
    grammar_lead lead = lead_of("", "", -1);
    grammar_run *r = grammar_run_create_led(g, &lead, &eos, 1);
    ck_assert(!allowed(mask_of(r), eos)); /* or there would be no answer */
    ck_assert_int_eq(n_set(mask_of(r)), tokenizer_vocab(tok) - 1);
    feed(r, "no </thin <</think");
    ck_assert(!grammar_run_over(r));
    grammar_guess none = {.token = (int32_t[8]){0}, .chance = (double[8]){0}, .most = 8, .sure = 1};
    grammar_run_expect(r, walk, eos, &none);
    ck_assert(none.n == 0 && none.only < 0);
    feed(r, ">");
    follow(r, text, sizeof(text));
    ck_assert_str_eq(text, "\n\n");
    ck_assert(!allowed(mask_of(r), one_token("<")));
    feed(r, "yes");
    follow(r, text, sizeof(text));
    ck_assert(grammar_run_over(r));
    grammar_run_release(r);
    grammar_release(g);
}
END_TEST

START_TEST(thoughts_end_with_their_budget)
{
    char text[256];
    grammar *g = must("choice", "[\"y\"]");
    for (int budget = 0; budget < 4; budget++) {
        grammar_lead lead = lead_of("", "<call>", budget);
        grammar_run *r = grammar_run_create_led(g, &lead, &eos, 1);
        for (int i = 0; i < budget; i++) {
            ck_assert_int_gt(n_set(mask_of(r)), 1);
            grammar_run_accept(r, walk, one_token("n"));
        }
        follow(r, text, sizeof(text));
        ck_assert_str_eq(text, "</think>\n\n<call>y");
        ck_assert(grammar_run_over(r));
        grammar_run_release(r);
    }
    grammar_lead lead = lead_of("<think>", "", 2); /* without a form */
    grammar_run *r = grammar_run_create_led(NULL, &lead, &eos, 1);
    ck_assert(allowed(mask_of(r), eos));
    feed(r, " <think>");
    feed(r, "nn");
    follow(r, text, sizeof(text));
    ck_assert_str_eq(text, "</think>\n\n");
    for (int i = 0; i < 9; i++) feed(r, "n");
    ck_assert(allowed(mask_of(r), eos) && !grammar_run_over(r) && !grammar_run_failed(r));
    grammar_run_release(r);
    grammar_release(g);
}
END_TEST

START_TEST(a_model_that_may_think_may_answer_at_once)
{
    char text[256];
    grammar *g = must("choice", "[\"y\"]");
    grammar_lead lead = lead_of("<think>", "", 1);
    grammar_run *r = grammar_run_create_led(g, &lead, &eos, 1);
    ck_assert_int_eq(n_set(mask_of(r)), 2);
    feed(r, "y");
    follow(r, text, sizeof(text));
    ck_assert(grammar_run_over(r));
    grammar_run_release(r);
    r = grammar_run_create_led(g, &lead, &eos, 1);
    int32_t ids[32];
    ck_assert_int_gt(tokenizer_encode(tok, "<think>", 7, TOK_PARSE_SPECIAL, ids, 32), 0);
    grammar_run_accept(r, walk, ids[0]);
    follow(r, text, sizeof(text)); /* the rest of its mark */
    feed(r, "n");
    follow(r, text, sizeof(text));
    ck_assert_str_eq(text, "</think>\n\ny");
    grammar_run_release(r);
    lead = lead_of("<think>", "<call>", -1);
    r = grammar_run_create_led(g, &lead, &eos, 1);
    ck_assert(!allowed(mask_of(r), one_token("y")));
    ck_assert_int_eq(tokenizer_encode(tok, "<call>", 6, TOK_PARSE_SPECIAL, ids, 32) > 0, 1);
    ck_assert(allowed(mask_of(r), ids[0]));
    grammar_run_release(r);
    grammar_release(g);
}
END_TEST

/* ---- tags ----------------------------------------------------------------------------------- */

static grammar *must_tags(const char *text)
{
    err e = {.msg = ""};
    grammar *g;
    cJSON *tree = cJSON_Parse(text);
    ck_assert_ptr_nonnull(tree);
    grammar_spec spec = {.kind = GRAMMAR_TAGS, .json = tree};
    ck_assert_msg(grammar_acquire(maker, &spec, &g, &e) == ERR_NONE, "%s: %s", text, e.msg);
    cJSON_Delete(tree);
    return g;
}

static const char marked[] =
    "{\"triggers\":[\"<c>\",\"<cc\"],\"tags\":[{\"begin\":\"<c>\",\"schema\":{\"enum\":[1,2]},"
    "\"end\":"
    "\"</c>\"},{\"begin\":\"<cc=\",\"schema\":{\"type\":\"boolean\"},\"end\":\"\"}]}";
static const char headed[] = "{\"leads\":[\"<|assistant|>\"],\"heads\":[\"{\\\"f\\\"\"],\"first\":["
                             "{\"begin\":\"{\\\"f\\\":\","
                             "\"schema\":{\"enum\":[1,2]},\"end\":\"}\"}]}";

/* A trigger that begins again inside of itself; one that stands in the midst of tokens. */
static const char again[] = "{\"triggers\":[\"aab\"],\"tags\":[{\"begin\":\"aab\",\"schema\":{"
                            "\"enum\":[1]},\"end\":\";\"}]}";
static const char common_letter[] =
    "{\"triggers\":[\"e\"],\"tags\":[{\"begin\":\"e=\",\"schema\":{\"enum\":[1]},\"end\":\"\"}]}";

static const char differing[] = "{\"triggers\":[\"<c>\"],\"tags\":[{\"begin\":\"<c>\",\"schema\":{"
                                "\"items\":{\"type\":\"integer\"},"
                                "\"uniqueItems\":true},\"end\":\"</c>\"}]}";

START_TEST(free_text_has_its_tags)
{
    static const struct {
        const char *form, *text;
        bool yes;
    } cases[] = {
        {marked, "", true},
        {marked, "any < text <b> </c> {} \xE6\x97\xA5 \xFF", true},
        {marked, "a <c>1</c> b <c>2</c><c>1</c>", true},
        {marked, "a <<c>2</c>", true},
        {marked, "a <c<c>2</c>", true},
        {marked, "<cc=true <c>1</c>", true},
        {marked, "<cc=false", true},
        {marked, "<c>3</c>", false},
        {marked, "<c>1", false},
        {marked, "<c> 1</c>", false},
        {marked, "<cc", false},
        {marked, "<ccc", false},
        {marked, "a <c<c>3</c>", false},
        {again, "aaab1;aaaab1; aa", true},
        {again, "aaab2;", false},
        {common_letter, "a b e=1 c", true},
        {common_letter, "the", false},
        {headed, "{\"f\":1}", true},
        {headed, " \n {\"f\":2} ; {\"f\":1},{\"f\":1} x {\"f\":9}", true},
        {headed, "{\"g\":9} {\"f\":9}", true},
        {headed, "{\"f", true},
        {headed, "x {\"f\":9}", true},
        {headed, "{\"f\":1} {\"f\":9}", true},
        {headed, "{\"f\":9}", false},
        {headed, "{\"f\":1}; {\"f\":9}", false},
        {headed, "{\"f\" :1}", false},
        {differing, "a <c>[1,2]</c> [ <c>[1, 2]</c>", true},
        {differing, "a <c>[1,2]</c> <c>[2,2]</c>", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        grammar *g = must_tags(cases[i].form);
        ck_assert_msg(takes(g, cases[i].text) == cases[i].yes, "'%s'", cases[i].text);
        if (cases[i].yes) check_masks(g, cases[i].text);
        grammar_release(g);
    }
}
END_TEST

/* The same tags with a form for the answer: {"kind", "json"} or {"kind", "text"}. */
static grammar *must_answer(const char *tags, const char *answer)
{
    char text[2048];
    snprintf(text, sizeof(text), "%.*s,\"answer\":%s}", (int)strlen(tags) - 1, tags, answer);
    return must_tags(text);
}

static const char listed[] =
    "{\"leads\":[\"<p>\"],\"members\":\"python\",\"heads\":[\"[f(\",\"f(\"],\"first\":["
    "{\"begin\":\"[f(\",\"schema\":{\"properties\":{\"a\":{\"enum\":[1,2]}}},\"end\":\")\"},"
    "{\"begin\":\"f(\",\"schema\":{\"properties\":{\"a\":{\"enum\":[1,2]}}},\"end\":\")\"}]}";
static const char prefixed[] =
    "{\"before\":[\"<b>\"],\"lead\":\"<l>\",\"triggers\":[\"<c>\"],\"tags\":[{\"begin\":\"<c>\","
    "\"schema\":{\"enum\":[1]},\"end\":\"\"}]}";
static const char open_xml[] =
    "{\"members\":\"xml\",\"triggers\":[\"<c>\"],\"tags\":[{\"begin\":\"<c>\",\"schema\":{"
    "\"type\":\"object\"},\"end\":\"</f>\\n</c>\"}]}";

#define AN_A   "{\"kind\":0,\"json\":{\"properties\":{\"a\":{\"enum\":[1]}},\"required\":[\"a\"]}}"
#define ANY    "{\"kind\":0}"
#define A_TEXT "{\"kind\":0,\"json\":{\"type\":\"string\"}}"
#define A_NODE                                                                            \
    "{\"kind\":0,\"json\":{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"n\":{" \
    "\"$ref\":\"#/$defs/n\"}},\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}}"
#define A_LIST                                                                           \
    "{\"kind\":0,\"json\":{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":" \
    "\"integer\"}}}"
#define A_PATTERN "{\"kind\":1,\"text\":\"[0-9]{2,3}\"}"
#define A_CHOICE  "{\"kind\":2,\"json\":[\"yes\",\"no\",\"<d>\"]}"
#define A_GRAMMAR "{\"kind\":4,\"text\":\"root ::= \\\"a\\\" root | \\\"b\\\"\"}"

START_TEST(an_answer_is_its_form_or_tags)
{
    static const struct {
        const char *tags, *answer, *text;
        bool yes;
    } cases[] = {
        {marked, AN_A, "{\"a\":1}", true},
        {marked, AN_A, "{\"a\": 1}", true},
        {marked, AN_A, "<c>1</c>", true},
        {marked, AN_A, "<c>1</c>\n<c>2</c> <cc=true", true},
        {marked, AN_A, "<c>1</c>{\"a\":1}", false},
        {marked, AN_A, "{\"a\":1}<c>1</c>", false},
        {marked, AN_A, "", false},
        {marked, AN_A, "so {\"a\":1}", false},
        {marked, AN_A, "<c>3</c>", false},
        {marked, AN_A, "<c>1</c>  \n<c>1</c>", false},
        {marked, ANY, "{\"b\":{\"c\":[\"<c>\"]}}", true},
        {marked, A_TEXT, "\"<c>9\"", true},
        {marked, A_NODE, "{\"n\":{\"n\":{}}}", true},
        {marked, A_NODE, "{\"n\":{\"m\":{}}}", false},
        {marked, A_LIST, "[1,2]", true},
        {marked, A_LIST, "[1,1]", false},
        {marked, A_LIST, "<c>1</c>", true},
        {marked, A_PATTERN, "123", true},
        {marked, A_PATTERN, "1", false},
        {marked, A_PATTERN, "<cc=false", true},
        {marked, A_CHOICE, "<d>", true},
        {marked, A_CHOICE, "<c>2</c>", true},
        {marked, A_CHOICE, "maybe", false},
        {marked, A_GRAMMAR, "aaab", true},
        {marked, A_GRAMMAR, "aaa", false},
        {differing, A_LIST, "<c>[1,2]</c>", true},
        {differing, A_LIST, "<c>[1,1]</c>", false},
        {headed, AN_A, "{\"a\":1}", true},
        {headed, AN_A, "{\"f\":1}; {\"f\":2}", true},
        {headed, AN_A, "<|assistant|>{\"f\":1}", true},
        {headed, AN_A, "<|assistant|>{\"a\":1}", false},
        {headed, AN_A, "{\"f\":1}{\"a\":1}", false},
        {headed, AN_A, "{\"f\":3}", false},
        {listed, AN_A, "{\"a\":1}", true},
        {listed, AN_A, "[f(a=1), f(a=2)]", true},
        {listed, AN_A, "<p>[f(a=1)]", true},
        {listed, AN_A, "[f(a=1)", false},
        {listed, AN_A, "f(a=1)", false},
        {listed, A_LIST, "[1]", true},
        {prefixed, AN_A, "<l>{\"a\":1}", true},
        {prefixed, AN_A, "{\"a\":1}", false},
        {prefixed, AN_A, "<b><c>1<c>1", true},
        {prefixed, AN_A, "<b> <c>1", true},
        {prefixed, AN_A, "<b>{\"a\":1}", false},
        {open_xml, AN_A, "<c><x>anything</f>\n</c>", true},
        {open_xml, AN_A, "<c><x>anything", false},
        {open_xml, AN_A, "{\"a\":1}", true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        grammar *g = must_answer(cases[i].tags, cases[i].answer);
        ck_assert_msg(takes(g, cases[i].text) == cases[i].yes, "%zu: %s '%s'", i, cases[i].answer,
                      cases[i].text);
        if (cases[i].yes) check_masks(g, cases[i].text);
        grammar_release(g);
    }
}
END_TEST

/* Special tokens are nothing in free text, and nowhere else; but where a mark is made of one, it
 * counts as that. */
START_TEST(special_tokens_stand_in_free_text_alone)
{
    grammar *g = must_tags(marked);
    int32_t user = tokenizer_find(tok, "<|user|>"), lead = tokenizer_find(tok, "<|assistant|>");
    grammar_run *r = grammar_run_create(g, &eos, 1);
    ck_assert(allowed(mask_of(r), user) && allowed(mask_of(r), eos));
    feed(r, "<c");
    ck_assert(allowed(mask_of(r), user));
    grammar_run_accept(r, walk, user); /* no text: the mark goes on */
    feed(r, ">");
    ck_assert(!allowed(mask_of(r), user) && !allowed(mask_of(r), eos));
    feed(r, "1</c");
    ck_assert(!allowed(mask_of(r), user) && n_set(mask_of(r)) > 0);
    feed(r, ">");
    ck_assert(allowed(mask_of(r), user) && !grammar_run_failed(r));
    grammar_run_release(r);
    grammar_release(g);
    g = must_tags(headed);
    r = grammar_run_create(g, &eos, 1);
    feed(r, "text ");
    ck_assert(allowed(mask_of(r), lead));
    grammar_run_accept(r, walk, lead);
    feed(r, " {\"f\"");
    ck_assert_int_eq(n_set(mask_of(r)), 1);
    grammar_run_release(r);
    grammar_release(g);
}
END_TEST

START_TEST(tags_begin_behind_the_thoughts)
{
    grammar *g = must_tags(marked);
    grammar_lead lead = lead_of("<think>", "", -1);
    grammar_run *r = grammar_run_create_led(g, &lead, &eos, 1);
    feed(r, "<think>");
    feed(r, "what <c>9 is, or <c>");
    ck_assert(allowed(mask_of(r), eos)); /* who thinks may end, as without a form */
    feed(r, "</think>");
    ck_assert(allowed(mask_of(r), eos) && allowed(mask_of(r), one_token("<")));
    feed(r, "so <c>1</c");
    ck_assert_int_eq(n_set(mask_of(r)), 1);
    grammar_run_release(r);
    r = grammar_run_create_led(g, &lead, &eos, 1);
    feed(r, "at once <c>");
    ck_assert(!allowed(mask_of(r), eos) && !allowed(mask_of(r), one_token("9")));
    grammar_run_release(r);
    grammar_release(g);
}
END_TEST

START_TEST(tags_that_cannot_be_are_refused)
{
    static const char *const bad[][2] = {
        {"{\"triggers\":[\"a\"],\"tags\":[]}", "no tag begins"},
        {"{\"triggers\":[\"a\"],\"tags\":[{\"begin\":\"b\",\"schema\":true,\"end\":\"\"}]}",
         "trigger"},
        {"{\"triggers\":[\"\"],\"tags\":[]}", "1 to 4096"},
        {"{\"triggers\":[\"a\"],\"tags\":[{\"begin\":\"a\",\"schema\":{\"extends\":{}},\"end\":"
         "\"\"}]}",
         "'extends'"},
        {"{\"triggers\":[\"<c>\"],\"tags\":[],\"answer\":{\"kind\":1,\"text\":\".*\"}}",
         "can begin with '<c>'"},
        {"{\"heads\":[\"{\\\"f\\\"\"],\"first\":[],\"answer\":" ANY "}", "can begin with '{\"f\"'"},
        {"{\"triggers\":[\"<c>\"],\"tags\":[],\"answer\":{\"kind\":1,\"text\":\"(\"}}", ""},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        grammar *g;
        err e = {.msg = ""};
        cJSON *tree = cJSON_Parse(bad[i][0]);
        ck_assert_ptr_nonnull(tree);
        grammar_spec spec = {.kind = GRAMMAR_TAGS, .json = tree};
        ck_assert_msg(grammar_acquire(maker, &spec, &g, &e) != ERR_NONE, "%s", bad[i][0]);
        ck_assert_msg(strstr(e.msg, bad[i][1]) != NULL, "%s: %s", bad[i][0], e.msg);
        cJSON_Delete(tree);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("grammar");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 240);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, free_text_has_its_tags);
    tcase_add_test(t, an_answer_is_its_form_or_tags);
    tcase_add_test(t, special_tokens_stand_in_free_text_alone);
    tcase_add_test(t, tags_begin_behind_the_thoughts);
    tcase_add_test(t, tags_that_cannot_be_are_refused);
    tcase_add_test(t, takes_and_refuses_what_jsonschema_does);
    tcase_add_test(t, takes_single_texts);
    tcase_add_test(t, keywords_that_others_say_are_kept);
    tcase_add_test(t, steps_and_listed_values_are_kept);
    tcase_add_test(t, items_and_names_differ);
    tcase_add_test(t, items_that_differ_end_in_no_corner);
    tcase_add_test(t, masks_are_what_asking_each_token_says);
    tcase_add_test(t, masks_of_loops_are_what_asking_each_token_says);
    tcase_add_test(t, where_only_the_empty_text_is_allowed_the_first_token_ends_it);
    tcase_add_test(t, one_branch_holds_and_no_other);
    tcase_add_test(t, refuses_by_name);
    tcase_add_test(t, hostile_grammars_end_soon);
    tcase_add_test(t, hostile_context_free_grammars_end_soon);
    tcase_add_test(t, what_begins_with_itself_needs_no_stack);
    tcase_add_test(t, what_multiplies_is_refused);
    tcase_add_test(t, what_the_form_leaves_is_expected);
    tcase_add_test(t, what_the_form_leaves_follows_other_guesses);
    tcase_add_test(t, nesting_ends_where_the_stack_does);
    tcase_add_test(t, one_compilation_serves_all);
    tcase_add_test(t, the_form_begins_behind_the_thoughts);
    tcase_add_test(t, thoughts_end_with_their_budget);
    tcase_add_test(t, a_model_that_may_think_may_answer_at_once);
    suite_add_tcase(s, t);
    return run_suite(s);
}
