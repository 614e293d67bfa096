/* test_tool_reader.c -- tool calls in what models write: each family's way,
 * cut anywhere, broken anyhow. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/openai/tools/tool_reader.h"
#include "tests/run_suite.h"

/* "text|name(args)|name(args)", ids left out. */
static void show(tool_reader *r, char *out, size_t cap)
{
    int n = snprintf(out, cap, "%.*s", (int)r->text.len, r->text.s ? r->text.s : "");
    for (int i = 0; i < r->n_calls; i++) {
        const tool_call *c = &r->call[i];
        ck_assert_uint_ge(strlen(c->id), 9);
        n += snprintf(out + n, cap - (size_t)n, "|%s(%.*s)%s", c->name, (int)c->len,
                      r->args.s + c->at, c->whole ? "" : "...");
    }
}

typedef struct {
    tool_style style;
    bool opened, one;
    const char *text, *want;
} row;

#define BAR           "\xEF\xBD\x9C" /* DeepSeek's, and what it has for a blank */
#define LOW           "\xE2\x96\x81"
#define DS(what, how) "<" BAR "tool" LOW what LOW how BAR ">"
#define SEP           "<" BAR "tool" LOW "sep" BAR ">"

static const row rows[] = {
    {TOOLS_HERMES, false, false, "Hello {there} <b>", "Hello {there} <b>"},
    {TOOLS_HERMES, false, false,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "|f({\"a\": 1})"},
    {TOOLS_HERMES, false, false,
     "Let me "
     "see.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>\n<tool_call>{\"name\": "
     "\"g_2\", \"arguments\": {\"x\": \"}]\\\"{\", \"y\": [{}, {\"z\": []}]}}</tool_call>\n",
     "Let me see.|f({})|g_2({\"x\": \"}]\\\"{\", \"y\": [{}, {\"z\": []}]})"},
    {TOOLS_HERMES, false, true,
     "<tool_call>{\"name\":\"f\",\"arguments\":{}}</"
     "tool_call><tool_call>{\"name\":\"g\",\"arguments\":{}}"
     "</tool_call>",
     "|f({})"},
    {TOOLS_HERMES, false, false,
     "<tool_call>{\"arguments\": {\"q\": \"\\u00e9\"}, \"name\": \"f\"}</tool_call>",
     "|f({\"q\": \"\\u00e9\"})"},
    {TOOLS_HERMES, false, false, "<tool_call>{\"name\": \"now\"}</tool_call>after",
     "after|now({})"},
    {TOOLS_HERMES, false, false,
     "<tool_call>{\"name\":\"f\",\"arguments\":{},\"id\":\"}\"}</tool_call>x", "x|f({})"},
    {TOOLS_HERMES, false, false, "<tool_call>no object</tool_call>",
     "<tool_call>no object</tool_call>"},
    {TOOLS_HERMES, false, false, "<tool_call>{\"nam\": 1}", "<tool_call>{\"nam\": 1}"},
    {TOOLS_HERMES, false, false, "<tool_call>{\"name\": 5, \"arguments\": {}}",
     "<tool_call>{\"name\": 5, \"arguments\": {}}"},
    {TOOLS_HERMES, false, false, "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}",
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}"},
    {TOOLS_HERMES, false, false, "a <tool_cal", "a <tool_cal"},
    {TOOLS_HERMES, false, false, "<tool_call>{\"name\": \"f\"", ""},
    {TOOLS_HERMES, false, false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"cut",
     "|f({\"a\": \"cut)..."},
    {TOOLS_HERMES, false, false, "<tool_call>{\"name\": \"f\", \"arguments\": {}},</tool_call>",
     ",</tool_call>|f({})"},
    {TOOLS_HERMES, true, true, "{\"name\": \"f\", \"arguments\": {\"a\": true}}",
     "|f({\"a\": true})"},
    {TOOLS_MISTRAL, false, false,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": "
     "{}, "
     "\"id\": \"abc\"}]",
     "|f({\"a\": 1})|g({})"},
    {TOOLS_MISTRAL, false, false, "[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}", "|f({})"},
    {TOOLS_MISTRAL, false, false,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"nam\": 1}] end",
     ", {\"nam\": 1}] end|f({})"},
    {TOOLS_MISTRAL, false, false, "a list [1, 2]", "a list [1, 2]"},
    {TOOLS_MISTRAL, true, true, "{\"name\": \"f\", \"arguments\": {}}]", "|f({})"},
    {TOOLS_PHI, false, false,
     "I see. <|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, {\"name\": \"g\"}]"
     "<|/tool_call|>",
     "I see.|f({\"a\": [1]})|g({})"},
    {TOOLS_PHI, false, false, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}] <b>",
     " <b>|f({})"},
    {TOOLS_PHI, true, true, "{\"name\": \"f\", \"arguments\": {}}]", "|f({})"},
    {TOOLS_NEMOTRON, false, false,
     "I see.\n<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, {\"name\": \"g\", "
     "\"arguments\": {}}]</TOOLCALL>",
     "I see.|f({\"a\": [1]})|g({})"},
    {TOOLS_NEMOTRON, true, true, "{\"name\": \"f\", \"arguments\": {}}]", "|f({})"},
    {TOOLS_COMMAND, false, false,
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": "
     "{\"a\": "
     "\"]\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]"
     "<|END_ACTION|>",
     "|f({\"a\": \"]\"})|g({})"},
    {TOOLS_COMMAND, false, false, "<|START_ACTION|>[{\"name\": \"f\", \"parameters\": {}}]",
     "<|START_ACTION|>[{\"name\": \"f\", \"parameters\": {}}]"},
    {TOOLS_DEEPSEEK, false, false,
     "Well. " DS("calls", "begin")
         DS("call", "begin") "function" SEP "f\n```json\n{\"a\": 1}\n```" DS("call", "end") "\n" DS(
             "call", "begin") "function" SEP "g\n```json\n{}\n```" DS("call", "end")
             DS("calls", "end"),
     "Well.|f({\"a\": 1})|g({})"},
    {TOOLS_DEEPSEEK, false, false,
     DS("calls", "begin") DS("call", "begin") "f" SEP "{\"a\": \"}\"}" DS("call", "end")
         DS("call", "begin") "g" SEP "{}" DS("call", "end") DS("calls", "end"),
     "|f({\"a\": \"}\"})|g({})"},
    {TOOLS_DEEPSEEK, false, false, DS("calls", "begin") DS("call", "begin") SEP "{}",
     DS("call", "begin") SEP "{}"},
    {TOOLS_DEEPSEEK, false, false, "a " DS("call", "begin") "f" SEP "{}" DS("call", "end") " b",
     "a b|f({})"},
    {TOOLS_DEEPSEEK, false, false, "a <" BAR "tool" LOW "calls <x",
     "a <" BAR "tool" LOW "calls <x"},
    {TOOLS_XML, false, false,
     "Look:\n<tool_call>\n<function=f>\n<parameter=s>\n17\n</parameter>\n<parameter=n>\n17\n"
     "</parameter>\n<parameter=t>\na "
     "\"b\"\n<c>\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
     "<function=g>\n</function>\n</tool_call>",
     "Look:|f({\"s\": \"17\", \"n\": 17, \"t\": \"a \\\"b\\\"\\n<c>\"})|g({})"},
    {TOOLS_XML, false, false, "<tool_call><function=f><parameter=n>[1, {}]</parameter><parameter=",
     "|f({\"n\": [1, {}])..."},
    {TOOLS_XML, false, false, "<tool_call><function=></function>",
     "<tool_call><function=></function>"},
    {TOOLS_XML, true, true, "{\"name\": \"f\", \"arguments\": {}}", "|f({})"},
    {TOOLS_GLM, false, false,
     "Look:\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>17</arg_value>\n<arg_key>n</arg_key>\n"
     "<arg_value>17</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
     "Look:|f({\"s\": \"17\", \"n\": 17})|g({})"},
    {TOOLS_GLM, false, false,
     "<tool_call>f<arg_key>n</arg_key><arg_value>[1, {}]</arg_value><arg_key>s</arg_key><arg_value>"
     "a <b> \"c\"</arg_value></tool_call> x",
     " x|f({\"n\": [1, {}], \"s\": \"a <b> \\\"c\\\"\"})"},
    {TOOLS_GLM, false, false, "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1", "|f()..."},
    {TOOLS_GLM, false, false, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
     "|f({})"},
    {TOOLS_CHANNEL, false, false,
     "Well. to=functions.f <|constrain|>json<|message|>{\"a\": \"}\"}<|call|>",
     "Well.|f({\"a\": \"}\"})"},
    {TOOLS_CHANNEL, false, false,
     "to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>to=functions.g"
     "<|message|>{}",
     "|f({\"a\": 1})|g({})"},
    {TOOLS_CHANNEL, false, false, "to=functions.f<|message|>none", "to=functions.f<|message|>none"},
    {TOOLS_CHANNEL, false, false, "to=functions. <|message|>{}", "to=functions. <|message|>{}"},
    {TOOLS_PYTHON, false, false,
     "[f(s='it\\'s \"x\"', n=-1.5), g(), f(l=[True, (None, 'a,)')], d={'k': False})]",
     "|f({\"s\": \"it's \\u0022x\\u0022\", \"n\": -1.5})|g({})|f({\"l\": [true, [null, \"a,)\"]], "
     "\"d\": {\"k\": false}})"},
    {TOOLS_PYTHON, false, false, "\n<|python_start|>[ f( n = 3 , s=\"\\x41\\d\" ) ]<|python_end|>",
     "|f({\"n\": 3, \"s\": \"\\u0041\\\\d\"})"},
    {TOOLS_PYTHON, false, false, "[f(n=word, 7, s=\"cut", "|f({\"n\": \"word\")..."},
    {TOOLS_PYTHON, false, false, "[h(n=1)]", "[h(n=1)]"},
    {TOOLS_PYTHON, false, false, "See [f(n=1)]", "See [f(n=1)]"},
    {TOOLS_PYTHON, false, false, "[g(), h()] x", ", h()] x|g({})"},
    {TOOLS_LIQUID, false, false, "So. <|tool_call_start|>[f(n=1)]<|tool_call_end|> Done.",
     "So. Done.|f({\"n\": 1})"},
    {TOOLS_LIQUID, false, false,
     "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, g()]<|tool_call_end|>",
     "|f({\"a\": 1})|g({})"},
    {TOOLS_GEMMA, false, false,
     "So.\n<|tool_call>call:f{s:<|\"|>a \"b\", "
     "{c}:<|\"|>,n:-1.5e3,b:true,z:null,w:word}<tool_call|>"
     "<|tool_call>call:g{}<tool_call|> Done.",
     "So. Done.|f({\"s\": \"a \\\"b\\\", {c}:\", \"n\": -1.5e3, \"b\": true, \"z\": null, \"w\": "
     "\"word\"})|g({})"},
    {TOOLS_GEMMA, false, false,
     "<|tool_call>call:f{l:[1,<|\"|>x]<|\"|>,{k:<|\"|>v<|\"|>,<|\"|>q r<|\"|>:[]}], o:{a:{b:2}}}"
     "<tool_call|>",
     "|f({\"l\": [1,\"x]\",{\"k\":\"v\",\"q r\":[]}], \"o\": {\"a\":{\"b\":2}}})"},
    {TOOLS_GEMMA, false, false, "<|tool_call>call:f{\"s\":\"a,}\",<|\"|>n<|\"|>:3}",
     "|f({\"s\": \"a,}\", \"n\": 3})"},
    {TOOLS_GEMMA, false, false, "<|tool_call>call:f{s:<|\"|>cut", "|f()..."},
    {TOOLS_GEMMA, false, false, "<|tool_call>none{}", "<|tool_call>none{}"},
    {TOOLS_GEMMA, false, false, "a <|tool_cal", "a <|tool_cal"},
    {TOOLS_LLAMA, false, false, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "|f({\"a\": 1})"},
    {TOOLS_LLAMA, false, false, "\n <|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "|f({})"},
    {TOOLS_LLAMA, false, false,
     "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", "
     "\"parameters\": {\"b\": {}}}",
     "|f({})|g({\"b\": {}})"},
    {TOOLS_LLAMA, false, false, "{\"name\": \"unknown\", \"parameters\": {}}",
     "{\"name\": \"unknown\", \"parameters\": {}}"},
    {TOOLS_LLAMA, false, false, "{\"answer\": 42}", "{\"answer\": 42}"},
    {TOOLS_LLAMA, false, false, "It is {\"name\": \"f\", \"parameters\": {}}",
     "It is {\"name\": \"f\", \"parameters\": {}}"},
    {TOOLS_LLAMA, false, false, "<|python_tag|>print(1)", "<|python_tag|>print(1)"},
    {TOOLS_LLAMA, false, false,
     "{\"name\": \"f\", \"parameters\": {}}; no; {\"name\": \"g\", \"parameters\": {}}",
     "; no; {\"name\": \"g\", \"parameters\": {}}|f({})"},
    {TOOLS_LLAMA, true, true, "{\"name\": \"g\", \"parameters\": {}}", "|g({})"},
};

/* Where calls are held to their form. */
static const row guided_rows[] = {
    {TOOLS_LLAMA, false, false,
     " {\"name\": \"g\", \"parameters\": {}}; {\"name\":\"f\",\"parameters\":{}}", "|g({})|f({})"},
    {TOOLS_LLAMA, false, false,
     "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}", "|f({\"a\": 1})"},
    {TOOLS_LLAMA, false, false, "{\"parameters\": {}, \"name\": \"f\"}",
     "{\"parameters\": {}, \"name\": \"f\"}"},
    {TOOLS_LLAMA, false, false, "{ \"name\": \"f\", \"parameters\": {}}",
     "{ \"name\": \"f\", \"parameters\": {}}"},
    {TOOLS_LLAMA, false, false, "{\"name\": \"\\u0066\", \"parameters\": {}}",
     "{\"name\": \"\\u0066\", \"parameters\": {}}"},
    {TOOLS_LLAMA, false, false, "{\"name\": ", "{\"name\": "},
};

enum {
    N_ROWS = sizeof(rows) / sizeof(*rows),
    N_GUIDED = sizeof(guided_rows) / sizeof(*guided_rows)
};

static cJSON *tools(void)
{
    return cJSON_Parse(
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
        "\"string\"},\"n\":{\"type\":\"integer\"}}}}},{\"function\":{\"name\":\"g\"}}]");
}

static int ways_of(const row *t)
{
    return (t->opened ? TOOLS_OPENED : 0) | (t->one ? TOOLS_ONE : 0);
}

START_TEST(each_way_of_writing_calls_however_it_is_cut)
{
    bool guided = _i >= N_ROWS;
    const row *t = guided ? &guided_rows[_i - N_ROWS] : &rows[_i];
    cJSON *known = tools();
    char got[1024];
    size_t len = strlen(t->text);
    for (size_t step = 1; step <= len; step++) {
        tool_reader r;
        ck_assert(tool_reader_init(&r, t->style, known, ways_of(t) | (guided ? TOOLS_GUIDED : 0)));
        for (size_t i = 0; i < len; i += step)
            tool_reader_push(&r, t->text + i, len - i < step ? len - i : step);
        ck_assert_int_eq(tool_reader_done(&r), t->one);
        tool_reader_finish(&r);
        show(&r, got, sizeof(got));
        ck_assert_msg(strcmp(got, t->want) == 0, "by %zu: '%s', wanted '%s'", step, got, t->want);
        ck_assert(!r.failed);
        tool_reader_clear(&r);
    }
    cJSON_Delete(known);
}
END_TEST

/* Answers that are calls or a text of a format, and calls that are cut. */
static const struct {
    tool_style style;
    int ways;
    const char *text, *want;
} ways_rows[] = {
    {TOOLS_HERMES, TOOLS_APART, "{\"a\":\"<tool_call>{\"}", "{\"a\":\"<tool_call>{\"}"},
    {TOOLS_HERMES, TOOLS_APART, "yes <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
     "yes <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"},
    {TOOLS_HERMES, TOOLS_APART,
     "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\","
     "\"arguments\":{}}</tool_call>",
     "|f({})|g({})"},
    {TOOLS_HERMES, TOOLS_APART, "<tool_cab>", "<tool_cab>"},
    {TOOLS_XML, TOOLS_APART | TOOLS_GUIDED, "\"<tool_call><function=f></function>\"",
     "\"<tool_call><function=f></function>\""},
    {TOOLS_LLAMA, TOOLS_APART | TOOLS_GUIDED, "{\"a\": 1}", "{\"a\": 1}"},
    {TOOLS_LLAMA, TOOLS_APART | TOOLS_GUIDED, "{\"name\": \"f\", \"parameters\": {}}", "|f({})"},
    {TOOLS_LLAMA, TOOLS_APART | TOOLS_GUIDED,
     "[<|python_tag|>{\"name\": \"f\", \"parameters\": {}}]",
     "[<|python_tag|>{\"name\": \"f\", \"parameters\": {}}]"},
    {TOOLS_PYTHON, TOOLS_APART | TOOLS_GUIDED, "[1, 2]", "[1, 2]"},
    {TOOLS_PYTHON, TOOLS_APART | TOOLS_GUIDED, "[f(n=1), g()]", "|f({\"n\": 1})|g({})"},
    {TOOLS_HERMES, TOOLS_FORCED | TOOLS_OPENED, "{\"name\": \"f\", \"argu", ""},
    {TOOLS_HERMES, TOOLS_FORCED | TOOLS_OPENED, "{\"name\": \"f\", \"arguments\": {\"a",
     "|f({\"a)..."},
    {TOOLS_LLAMA, TOOLS_FORCED | TOOLS_OPENED, "{\"name\": \"f", ""},
    {TOOLS_LLAMA, TOOLS_GUIDED, "{\"name\": \"f\", \"para", ""},
    {TOOLS_LLAMA, TOOLS_GUIDED, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"par",
     "|f({})"},
    {TOOLS_HERMES, TOOLS_APART,
     "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool", "|f({})"},
    {TOOLS_HERMES, TOOLS_GUIDED, "So.\n<tool_call>\n{\"na", "So."},
    {TOOLS_MISTRAL, TOOLS_GUIDED, "[TOOL_CALLS] [{\"na", ""},
    {TOOLS_HERMES, TOOLS_GUIDED, "So. <tool_c", "So. <tool_c"},
};

START_TEST(calls_apart_and_calls_that_are_cut)
{
    cJSON *known = tools();
    for (size_t k = 0; k < sizeof(ways_rows) / sizeof(*ways_rows); k++) {
        size_t len = strlen(ways_rows[k].text);
        for (size_t step = 1; step <= len; step++) {
            char got[1024];
            tool_reader r;
            ck_assert(tool_reader_init(&r, ways_rows[k].style, known, ways_rows[k].ways));
            for (size_t i = 0; i < len; i += step)
                tool_reader_push(&r, ways_rows[k].text + i, len - i < step ? len - i : step);
            tool_reader_finish(&r);
            show(&r, got, sizeof(got));
            ck_assert_msg(strcmp(got, ways_rows[k].want) == 0, "%zu by %zu: '%s', wanted '%s'", k,
                          step, got, ways_rows[k].want);
            tool_reader_clear(&r);
        }
    }
    cJSON_Delete(known);
}
END_TEST

/* A custom tool's text, decoded as its pieces come. */
START_TEST(the_text_of_a_custom_tool)
{
    static const char written[] =
        "<tool_call>{\"name\": \"p\", \"arguments\": {\"input\": \"a\\n\\\"b\\\" \\\\ "
        "\\u00e9\\ud83d\\ude00\\ud83dx {\\/}\"}}</tool_call>";
    static const char want[] = "a\n\"b\" \\ \xC3\xA9\xF0\x9F\x98\x80\xEF\xBF\xBDx {/}";
    cJSON *names = cJSON_Parse("[\"p\"]");
    for (size_t step = 1; step < sizeof(written); step++) {
        held_bytes got = {0};
        tool_reader r;
        ck_assert(tool_reader_init(&r, TOOLS_HERMES, NULL, 0));
        r.texts = names;
        for (size_t i = 0; i < sizeof(written) - 1; i += step) {
            size_t left = sizeof(written) - 1 - i;
            tool_reader_push(&r, written + i, left < step ? left : step);
            if (r.n_calls) ck_assert(tool_reader_take_news(&r, &r.call[0], &got));
        }
        ck_assert(r.n_calls == 1 && r.call[0].text && r.call[0].given == r.call[0].len);
        ck_assert_uint_eq(got.len, sizeof(want) - 1);
        ck_assert_int_eq(memcmp(got.s, want, got.len), 0);
        free(got.s);
        tool_reader_clear(&r);
    }
    cJSON_Delete(names);
}
END_TEST

/* Text is not held back longer than it must be, arguments not at all. */
START_TEST(comes_as_it_is_made)
{
    tool_reader r;
    size_t len;
    ck_assert(tool_reader_init(&r, TOOLS_HERMES, NULL, 0));
    tool_reader_push(&r, "abc <", 5);
    (void)tool_reader_take_text(&r, &len);
    ck_assert_uint_eq(len, 3);
    tool_reader_push(&r, "tool_call>{\"name\":\"f\",\"arguments\":{\"a", 37);
    ck_assert_int_eq(r.n_calls, 1);
    ck_assert_uint_eq(r.call[0].len, 3);
    ck_assert(tool_reader_has_news(&r) && r.call[0].told);
    r.call[0].told = false;
    r.call[0].given = 3;
    ck_assert(!tool_reader_has_news(&r));
    tool_reader_push(&r, "b", 1);
    ck_assert(tool_reader_has_news(&r));
    tool_reader_clear(&r);
}
END_TEST

static uint32_t lot = 7;

static uint32_t draw(uint32_t n)
{
    lot = lot * 1664525u + 1013904223u;
    return (lot >> 8) % n;
}

START_TEST(broken_calls_do_no_harm)
{
    static const char odd[] = "{}[]\"\\,:<>; \n\x01";
    cJSON *known = tools();
    for (int i = 0; i < 20000; i++) {
        const row *t = &rows[draw(N_ROWS)];
        size_t len = strlen(t->text);
        char *s = strdup(t->text);
        for (uint32_t k = 0; k < 1 + draw(4); k++)
            s[draw((uint32_t)len)] = odd[draw(sizeof(odd) - 1)];
        if (draw(4) == 0) len = draw((uint32_t)len + 1);
        tool_reader r;
        ck_assert(tool_reader_init(&r, t->style, known, ways_of(t) | (int)draw(2) * TOOLS_GUIDED));
        for (size_t at = 0; at < len;) {
            size_t n = 1 + draw(9);
            if (n > len - at) n = len - at;
            char *piece = malloc(n); /* as large as it is */
            memcpy(piece, s + at, n);
            tool_reader_push(&r, piece, n);
            free(piece);
            at += n;
        }
        tool_reader_finish(&r);
        ck_assert_int_le(r.n_calls, TOOL_CALLS_MAX);
        for (int k = 0; k < r.n_calls; k++)
            ck_assert_uint_le(r.call[k].at + r.call[k].len, r.args.len);
        tool_reader_clear(&r);
        free(s);
    }
    cJSON_Delete(known);
}
END_TEST

/* Much, and deep: time and memory stay in proportion. */
START_TEST(huge_and_deep)
{
    static const char begin[] = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":";
    static char block[4096];
    tool_reader r;
    memset(block, '[', sizeof(block));
    ck_assert(tool_reader_init(&r, TOOLS_HERMES, NULL, 0));
    tool_reader_push(&r, begin, sizeof(begin) - 1);
    for (int i = 0; i < 2000; i++) tool_reader_push(&r, block, sizeof(block));
    tool_reader_finish(&r);
    ck_assert_int_eq(r.n_calls, 1);
    ck_assert(!r.call[0].whole && r.call[0].len > 2000 * sizeof(block));
    tool_reader_clear(&r);

    /* a head without end is text at last */
    ck_assert(tool_reader_init(&r, TOOLS_HERMES, NULL, 0));
    tool_reader_push(&r, "<tool_call>{\"x\":\"", 17);
    memset(block, 'y', sizeof(block));
    for (int i = 0; i < 100; i++) tool_reader_push(&r, block, sizeof(block));
    ck_assert_uint_ge(r.text.len, 90 * sizeof(block));
    tool_reader_clear(&r);

    ck_assert(tool_reader_init(&r, TOOLS_HERMES, NULL, 0));
    for (int i = 0; i < 500; i++)
        tool_reader_push(&r, "<tool_call>{\"name\":\"f\"}</tool_call>", 35);
    tool_reader_finish(&r);
    ck_assert_int_eq(r.n_calls, TOOL_CALLS_MAX);
    tool_reader_clear(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tool_reader");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, each_way_of_writing_calls_however_it_is_cut, 0, N_ROWS + N_GUIDED);
    tcase_add_test(tc, calls_apart_and_calls_that_are_cut);
    tcase_add_test(tc, the_text_of_a_custom_tool);
    tcase_add_test(tc, comes_as_it_is_made);
    tcase_add_test(tc, broken_calls_do_no_harm);
    tcase_add_test(tc, huge_and_deep);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
