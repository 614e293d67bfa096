/* tool_named.c -- calls whose arguments are named one by one in a notation of their own: Python's
 * NAME(KEY=VALUE, ..) of Llama and Liquid, and Gemma 4's call:NAME{KEY:VALUE, ..}.
 *
 * A value is translated to JSON; what is not JSON then is a text as it was written.  An argument
 * without a name is left out, because nothing says which one it is.
 */
#include <stdio.h>
#include <string.h>

#include "gateway/openai/tools/tool_reader_inside.h"

/* A notation. */
typedef struct named_form {
    scan_form value;
    char close, equals; /* behind the last argument; between key and value */
    /* The argument's key at `at`, r->raw[*from ..] of *n bytes; returns the position behind it. */
    size_t (*key)(const tool_reader *r, size_t at, size_t end, size_t *from, size_t *n);
    /* raw[at .. end) as JSON, as far as it can be. */
    void (*translate)(tool_reader *r, held_bytes *out, size_t at, size_t end);
} named_form;

static void put(tool_reader *r, const named_form *form, const char *key, size_t n, size_t value,
                size_t end)
{
    held_bytes json = {0};
    form->translate(r, &json, value, end);
    if (!r->failed && json.len && scan_is_json(json.s, json.len))
        tool_put_argument(r, key, n, json.s, json.len, true);
    else
        tool_put_argument(r, key, n, r->raw.s + value, end - value, false);
    free(json.s);
}

static bool read_argument(tool_reader *r, const named_form *form)
{
    size_t i = scan_spaces(r, 0), from = 0, n = 0;
    if (i < r->raw.len && r->raw.s[i] == ',') i = scan_spaces(r, i + 1);
    if (i >= r->raw.len) return false;
    if (r->raw.s[i] == form->close) return tool_end_arguments(r, i + 1);
    size_t end = scan_value(r, i, &form->value);
    if (end == SCAN_NONE) return false;
    size_t equals = scan_spaces(r, form->key(r, i, end, &from, &n));
    if (n > 0 && n <= TOOL_NAME_MAX && equals < end && r->raw.s[equals] == form->equals) {
        size_t value = scan_spaces(r, equals + 1);
        put(r, form, r->raw.s + from, n, value, scan_trimmed(r, value, end));
    }
    tool_drop(r, end);
    return true;
}

/* ---- Python's literals ---------------------------------------------------------------- */

static size_t python_string(const tool_reader *r, size_t at)
{
    return r->raw.s[at] == '"' || r->raw.s[at] == '\'' ? scan_quoted(r, at) : at;
}

static size_t python_key(const tool_reader *r, size_t at, size_t end, size_t *from, size_t *n)
{
    *from = at;
    while (at + *n < end && *n <= TOOL_NAME_MAX && !strchr("= \t\n\"'([{", r->raw.s[at + *n])) ++*n;
    return at + *n;
}

/* Python's string s[0 .. len), its quotes included, as JSON's. */
static void add_quoted(tool_reader *r, held_bytes *out, const char *s, size_t len)
{
    char code[8];
    tool_add(r, out, "\"", 1);
    for (size_t i = 1; i + 1 < len; i++) {
        bool escape = s[i] == '\\' && i + 2 < len;
        if (escape && s[i + 1] == 'x' && i + 4 < len) {
            snprintf(code, sizeof(code), "\\u00%.2s", s + i + 2);
            tool_add(r, out, code, 6);
            i += 3;
        } else if (escape) {
            i++;
            if (!strchr("'\"\\/bfnrtu", s[i])) tool_add(r, out, "\\\\", 2);
            if (s[i] != '\'' && strchr("\"\\/bfnrtu", s[i])) tool_add(r, out, "\\", 1);
            tool_add(r, out, s + i, 1);
        } else if ((unsigned char)s[i] < ' ' || s[i] == '"') {
            snprintf(code, sizeof(code), "\\u%04x", (unsigned char)s[i]);
            tool_add(r, out, code, 6);
        } else {
            tool_add(r, out, s + i, 1);
        }
    }
    tool_add(r, out, "\"", 1);
}

static void translate_python(tool_reader *r, held_bytes *out, size_t at, size_t end)
{
    static const struct {
        const char *python, *json;
    } words[] = {{"True", "true"}, {"False", "false"}, {"None", "null"}, {"(", "["}, {")", "]"}};
    while (at < end) {
        const char *s = r->raw.s + at;
        size_t behind = python_string(r, at), n = 0, k = 0;
        if (behind > at && behind <= end) {
            add_quoted(r, out, s, behind - at);
            at = behind;
            continue;
        }
        for (; k < sizeof(words) / sizeof(words[0]); k++) {
            n = strlen(words[k].python);
            if (n <= end - at && memcmp(s, words[k].python, n) == 0) break;
        }
        bool word = k < sizeof(words) / sizeof(words[0]);
        tool_add(r, out, word ? words[k].json : s, word ? strlen(words[k].json) : 1);
        at += word ? n : 1;
    }
}

static bool read_python(tool_reader *r)
{
    static const named_form form = {
        {"([{", ")]}", ",)", python_string}, ')', '=', python_key, translate_python};
    return read_argument(r, &form);
}

static tool_verdict look_at_python(const tool_reader *r, size_t at, tool_head *h)
{
    tool_verdict v = tool_name_look(r, at, "(", 1, h);
    return v == TOOL_CALL && !tool_is_known(r, h->name) ? TOOL_NO_CALL : v;
}

static tool_verdict look_at_liquid(const tool_reader *r, size_t at, tool_head *h)
{
    return r->raw.s[at] == '{' ? tool_object.look(r, at, h) : look_at_python(r, at, h);
}

/* ---- Gemma 4's ------------------------------------------------------------------------ */

enum { QUOTE_BYTES = sizeof(TOOL_QUOTE) - 1 };

/* Whichever quotes it has. */
static size_t gemma_string(const tool_reader *r, size_t at)
{
    if (r->raw.s[at] == '"') return scan_quoted(r, at);
    tool_verdict v = scan_stands(r, at, TOOL_QUOTE);
    return v == TOOL_NO_CALL ? at
           : v == TOOL_MORE  ? SCAN_NONE
                             : scan_behind(r, at + QUOTE_BYTES, TOOL_QUOTE);
}

static size_t gemma_key(const tool_reader *r, size_t at, size_t end, size_t *from, size_t *n)
{
    size_t behind = gemma_string(r, at), quote = r->raw.s[at] == '"' ? 1 : QUOTE_BYTES;
    if (behind > at) {
        *from = at + quote;
        *n = behind - at - 2 * quote;
        return behind;
    }
    *from = at;
    while (at + *n < end && r->raw.s[at + *n] != ':') ++*n;
    return at + *n;
}

/* Words that are none of JSON's are strings, keys among them. */
static void translate_gemma(tool_reader *r, held_bytes *out, size_t at, size_t end)
{
    while (at < end && !r->failed) {
        const char *s = r->raw.s + at;
        size_t behind = gemma_string(r, at), n = 0;
        if (behind > at && behind <= end) {
            if (*s == '"')
                tool_add(r, out, s, behind - at);
            else
                tool_add_string(r, out, s + QUOTE_BYTES, behind - at - 2 * (size_t)QUOTE_BYTES);
            at = behind;
            continue;
        }
        while (at + n < end && !strchr("{}[]:, \t\r\n", s[n])) n++;
        size_t next = scan_spaces(r, at + n);
        bool key = n > 0 && next < end && r->raw.s[next] == ':';
        if (n == 0)
            tool_add(r, out, s, 1);
        else if (n == 4 && memcmp(s, "None", 4) == 0 && !key)
            tool_add(r, out, "null", 4);
        else if (!key && scan_is_json(s, n))
            tool_add(r, out, s, n);
        else
            tool_add_string(r, out, s, n);
        at += n ? n : 1;
    }
}

static bool read_gemma(tool_reader *r)
{
    static const named_form form = {
        {"{[", "}]", ",}", gemma_string}, '}', ':', gemma_key, translate_gemma};
    return read_argument(r, &form);
}

static tool_verdict look_at_gemma(const tool_reader *r, size_t at, tool_head *h)
{
    static const char call[] = "call:";
    *h = (tool_head){0};
    tool_verdict v = scan_stands(r, at, call);
    return v == TOOL_CALL ? tool_name_look(r, at + sizeof(call) - 1, "{", 1, h) : v;
}

const tool_dialect tool_python = {.look = look_at_python, .read = read_python};
const tool_dialect tool_liquid = {.look = look_at_liquid, .read = read_python};
const tool_dialect tool_gemma = {.look = look_at_gemma, .read = read_gemma};
