/* tool_reader.c -- a small scanner over the bytes that are not yet understood.
 *
 * An object is looked at from its beginning each time more of it has come, until its name and the
 * place of its arguments are known: that is short.  The arguments themselves are passed through by
 * a scanner that keeps its state (depth, inside a string), so a long one costs its length once.
 */
#include "gateway/openai/tool_reader.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/json.h"
#include "engine/base/memory.h"

/* Bytes of an object before its arguments, after which it is none; of a channel's head. */
enum { HEAD_MAX = 64 << 10, CHANNEL_HEAD_MAX = 192 };

#define MARK(words) "<\xEF\xBD\x9C" words "\xEF\xBD\x9C>" /* DeepSeek's bars */
#define PART        "\xE2\x96\x81"                        /* what it has for a blank */
static const char ds_list[] = MARK("tool" PART "calls" PART "begin");
static const char ds_begin[] = MARK("tool" PART "call" PART "begin");
static const char ds_sep[] = MARK("tool" PART "sep");
static const char message_mark[] = "<|message|>"; /* of channels */
#define DS_END MARK("tool" PART "call" PART "end")

static const struct {
    const char *marker, *opening, *name, *arguments;
    bool lists;
    const char *close; /* of one call, or of the list */
} styles[TOOLS_STYLES] = {
    [TOOLS_NONE] = {"", "", "name", "arguments", false, ""},
    [TOOLS_HERMES] = {"<tool_call>", "<tool_call>\n", "name", "arguments", false, "</tool_call>"},
    [TOOLS_XML] = {"<tool_call>", "<tool_call>\n", "name", "arguments", false, "</tool_call>"},
    [TOOLS_GLM] = {"<tool_call>", "<tool_call>\n", "name", "arguments", false, "</tool_call>"},
    [TOOLS_MISTRAL] = {"[TOOL_CALLS]", "[TOOL_CALLS] [", "name", "arguments", true, ""},
    [TOOLS_PHI] = {"<|tool_call|>", "<|tool_call|>[", "name", "arguments", true, "<|/tool_call|>"},
    [TOOLS_COMMAND] = {"<|START_ACTION|>", "<|START_ACTION|>[", "tool_name", "parameters", true,
                       "<|END_ACTION|>"},
    [TOOLS_DEEPSEEK] = {ds_begin, "", "name", "parameters", false, ""},
    [TOOLS_CHANNEL] = {"to=functions.", "", "name", "parameters", false, "<|call|>"},
    [TOOLS_PYTHON] = {"<|python_start|>", "", "name", "parameters", true, "<|python_end|>"},
    [TOOLS_LIQUID] = {"<|tool_call_start|>", "", "name", "parameters", true, "<|tool_call_end|>"},
    [TOOLS_LLAMA] = {"<|python_tag|>", "", "name", "parameters", false, ""},
};

tool_style tool_style_of(const chat_template *ct)
{
    /* The first that is there. */
    static const struct {
        const char *text;
        tool_style style;
    } signs[] = {{ds_begin, TOOLS_DEEPSEEK},       {"<|START_ACTION|>", TOOLS_COMMAND},
                 {"to=functions.", TOOLS_CHANNEL}, {"<|call|>", TOOLS_CHANNEL},
                 {"<|tool_call|>", TOOLS_PHI},     {"<|tool_list_start|>", TOOLS_LIQUID},
                 {"<arg_key>", TOOLS_GLM},         {"<function=", TOOLS_XML},
                 {"<tool_call>", TOOLS_HERMES},    {"[TOOL_CALLS]", TOOLS_MISTRAL},
                 {"[func_name1(", TOOLS_PYTHON},   {"tools", TOOLS_LLAMA}};
    for (size_t i = 0; ct && i < sizeof(signs) / sizeof(signs[0]); i++)
        if (chat_template_says(ct, signs[i].text)) return signs[i].style;
    return TOOLS_NONE;
}

const char *tool_style_marker(tool_style style)
{
    return styles[style].marker;
}

const char *tool_style_mark(tool_style style, int i)
{
    if (i == 0) return styles[style].marker;
    if (i != 1) return NULL;
    return style == TOOLS_DEEPSEEK ? ds_sep : style == TOOLS_CHANNEL ? message_mark : NULL;
}

static bool is_python(tool_style style)
{
    return style == TOOLS_PYTHON || style == TOOLS_LIQUID;
}

/* The name stands in the frame, and the arguments alone are an object. */
static bool is_framed(tool_style style)
{
    return style == TOOLS_DEEPSEEK || style == TOOLS_CHANNEL;
}

bool tool_style_lists(tool_style style)
{
    return styles[style].lists && !is_python(style);
}

bool tool_style_names_outside(tool_style style)
{
    return is_framed(style) || is_python(style);
}

static bool is_tight(const chat_template *ct)
{
    return chat_template_says(ct, "</arg_key><arg_value>");
}

const tool_frame *tool_style_frames(tool_style style, const chat_template *ct)
{
    static const tool_frame fenced[] = {{MARK("tool" PART "call" PART
                                              "begin") "function" MARK("tool" PART "sep"),
                                         "\n```json\n", "\n```" DS_END},
                                        {0}},
                            bare[] = {{ds_begin, ds_sep, DS_END}, {0}};
    static const char to[] = "to=functions.";
    static const tool_frame channel[] = {
        {to, " <|constrain|>json<|message|>", ""},
        {to, "<|channel|>commentary json<|message|>", ""},
        {to, "<|channel|>commentary <|constrain|>json<|message|>", ""},
        {0}};
    static const tool_frame xml[] = {
        {"<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"}, {0}};
    static const tool_frame glm[] = {{"<tool_call>", "\n", "</tool_call>"}, {0}},
                            tight[] = {{"<tool_call>", "", "</tool_call>"}, {0}};
    switch (style) {
    case TOOLS_DEEPSEEK: return chat_template_says(ct, "```json") ? fenced : bare;
    case TOOLS_CHANNEL: return channel;
    case TOOLS_XML: return xml;
    case TOOLS_GLM: return is_tight(ct) ? tight : glm;
    default: return NULL;
    }
}

const char *tool_style_members(tool_style style, const chat_template *ct)
{
    if (is_python(style)) return "python";
    if (style == TOOLS_GLM) return is_tight(ct) ? "glm-tight" : "glm";
    return style == TOOLS_XML ? "xml" : NULL;
}

const char *tool_style_opening(tool_style style)
{
    return styles[style].opening;
}

const char *tool_style_name(tool_style style)
{
    return styles[style].name;
}

const char *tool_style_arguments(tool_style style)
{
    return styles[style].arguments;
}

const char *tool_style_head(int i)
{
    static const char *const heads[] = {
        "{\"name\": ", "{\"name\":", "{\"type\": \"function\", \"name\": ",
        "{\"type\":\"function\",\"name\":", NULL};
    return heads[i];
}

bool tool_reader_init(tool_reader *r, tool_style style, const cJSON *tools, bool guided,
                      bool opened, bool one)
{
    *r = (tool_reader){.style = style, .tools = tools, .guided = guided, .one = one};
    r->call = calloc(TOOL_CALLS_MAX, sizeof(*r->call));
    if (opened) tool_reader_push(r, tool_style_opening(style), strlen(tool_style_opening(style)));
    return r->call && !r->failed;
}

void tool_reader_clear(tool_reader *r)
{
    free(r->raw.s);
    free(r->text.s);
    free(r->args.s);
    free(r->call);
    *r = (tool_reader){0};
}

static void add(tool_reader *r, held_bytes *b, const char *s, size_t len)
{
    if (!r->failed && !held_add(b, s, len)) r->failed = true;
}

static void drop(tool_reader *r, size_t n)
{
    held_drop(&r->raw, n);
}

static void as_text(tool_reader *r, size_t n)
{
    add(r, &r->text, r->raw.s, n);
    drop(r, n);
    r->behind = false;
}

static size_t spaces(const tool_reader *r, size_t at)
{
    while (at < r->raw.len && strchr(" \t\r\n", r->raw.s[at]) && r->raw.s[at]) at++;
    return at;
}

/* ---------------------------------------------------------------- one call's object -- */

typedef enum { MORE, NO_CALL, CALL } verdict; /* MORE: cannot be told yet */

typedef struct {
    char name[TOOL_NAME_MAX + 1];
    bool named, valued;
    size_t value, end; /* the arguments' first byte; behind the object, where it ends without any */
} head;

/* Behind the string at `at`, 0: it has no end yet. */
static size_t string_end(const tool_reader *r, size_t at)
{
    for (size_t i = at + 1; i < r->raw.len; i++) {
        if (r->raw.s[i] == '\\')
            i++;
        else if (r->raw.s[i] == '"')
            return i + 1;
    }
    return 0;
}

/* Behind the value at `at`; 0: it has no end yet. */
static size_t value_end(const tool_reader *r, size_t at)
{
    int depth = 0;
    for (size_t i = at; i < r->raw.len; i++) {
        char c = r->raw.s[i];
        if (c == '"') {
            i = string_end(r, i);
            if (!i) return 0;
            i--;
        }
        if (c == '{' || c == '[') depth++;
        if (depth == 0 && (c == ',' || c == '}' || c == ']')) return i;
        if (c == '}' || c == ']') depth--;
    }
    return 0;
}

static bool decoded(const tool_reader *r, size_t at, size_t end, char *out, size_t cap)
{
    cJSON *v;
    if (json_parse(r->raw.s + at, end - at, &json_limits_request, &v, NULL)) return false;
    bool ok = cJSON_IsString(v) && v->valuestring[0] && strlen(v->valuestring) < cap;
    if (ok) snprintf(out, cap, "%s", v->valuestring);
    cJSON_Delete(v);
    return ok;
}

static bool is_known(const tool_reader *r, const char *name)
{
    const cJSON *t;
    cJSON_ArrayForEach(t, r->tools)
    {
        const cJSON *f = json_get(t, "function");
        const cJSON *n = f ? json_get(f, "name") : NULL;
        if (cJSON_IsString(n) && strcmp(n->valuestring, name) == 0) return true;
    }
    return false;
}

/* One member whose name stands at `*at`. */
static verdict member(const tool_reader *r, size_t *at, head *h)
{
    char key[32] = "";
    size_t key_end = r->raw.s[*at] == '"' ? string_end(r, *at) : 0;
    if (r->raw.s[*at] != '"') return NO_CALL;
    if (!key_end) return MORE;
    (void)decoded(r, *at, key_end, key, sizeof(key));
    size_t i = spaces(r, key_end);
    if (i >= r->raw.len) return MORE;
    if (r->raw.s[i] != ':') return NO_CALL;
    i = spaces(r, i + 1);
    if (i >= r->raw.len) return MORE;
    bool value = strcmp(key, "arguments") == 0 || strcmp(key, "parameters") == 0;
    if (value && r->raw.s[i] != '{') return NO_CALL;
    if (value && !h->valued) {
        h->value = i;
        h->valued = true;
        if (h->named) return CALL;
    }
    size_t end = r->raw.s[i] == '"' ? string_end(r, i) : value_end(r, i);
    if (!end) return MORE;
    if (strcmp(key, styles[r->style].name) == 0) {
        if (!decoded(r, i, end, h->name, sizeof(h->name))) return NO_CALL;
        if (r->style == TOOLS_LLAMA && !is_known(r, h->name)) return NO_CALL;
        h->named = true;
    }
    *at = end;
    return MORE;
}

/* Whether the object begins with a head and a plain name: no other is held to its form. */
static verdict look_at_head(const tool_reader *r, size_t at)
{
    const char *s = r->raw.s + at;
    size_t left = r->raw.len - at;
    verdict v = NO_CALL;
    for (int i = 0; tool_style_head(i); i++) {
        size_t n = strlen(tool_style_head(i));
        if (memcmp(s, tool_style_head(i), left < n ? left : n) != 0) continue;
        if (left <= n) {
            v = MORE;
            continue;
        }
        if (s[n] != '"') continue;
        size_t end = string_end(r, at + n);
        if (!end) return MORE;
        return memchr(s + n, '\\', end - at - n) ? NO_CALL : CALL;
    }
    return v;
}

/* The object at `at`, as far as it has come. */
static verdict look(const tool_reader *r, size_t at, head *h)
{
    *h = (head){0};
    verdict begins = r->guided && r->style == TOOLS_LLAMA ? look_at_head(r, at) : CALL;
    if (begins != CALL) return begins;
    for (size_t i = spaces(r, at + 1); i < r->raw.len;) {
        if (r->raw.s[i] == '}') {
            h->end = i + 1;
            return h->named ? CALL : NO_CALL;
        }
        size_t was = i;
        verdict v = member(r, &i, h);
        if (v != MORE || i == was) return v;
        i = spaces(r, i);
        if (i < r->raw.len && r->raw.s[i] == ',') {
            i = spaces(r, i + 1);
        } else if (i < r->raw.len && r->raw.s[i] != '}') {
            return NO_CALL;
        }
    }
    return MORE;
}

static void make_id(const tool_reader *r, char *out)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    uint8_t dice[24] = {0};
    size_t n = r->style == TOOLS_MISTRAL ? 9 : 24, at = 0; /* Mistral's templates insist on nine */
    if (getrandom(dice, sizeof(dice), 0) < 0) memcpy(dice, &r, sizeof(r));
    if (r->style != TOOLS_MISTRAL) at = (size_t)snprintf(out, TOOL_ID_MAX, "call_");
    for (size_t i = 0; i < n; i++) out[at++] = letters[dice[i] % (sizeof(letters) - 1)];
    out[at] = 0;
}

static void tell(tool_reader *r, const head *h)
{
    tool_call *c = &r->call[r->n_calls++];
    make_id(r, c->id);
    memcpy(c->name, h->name, sizeof(c->name));
    c->at = r->args.len;
    c->told = true;
}

static void end_call(tool_reader *r)
{
    tool_call *c = &r->call[r->n_calls - 1];
    c->len = r->args.len - c->at;
    c->whole = true;
    r->inside = false;
    r->behind = true;
}

/* Passes the arguments through; true: they, or what came of them, are done. */
static bool pass(tool_reader *r)
{
    size_t i = 0;
    bool over = false;
    for (; i < r->raw.len && !over; i++) {
        char c = r->raw.s[i];
        if (r->in_string) {
            if (!r->escaped && c == '"') r->in_string = false;
            r->escaped = !r->escaped && c == '\\';
        } else if (c == '"') {
            r->in_string = true;
        } else if (c == '{' || c == '[') {
            r->depth++;
        } else if (c == '}' || c == ']') {
            over = --r->depth == 0;
        }
    }
    add(r, &r->args, r->raw.s, i);
    tool_call *c = &r->call[r->n_calls - 1];
    c->len = r->args.len - c->at;
    drop(r, i);
    return over;
}

/* ----------------------------------------------------------------- the whole answer -- */

/* Where `mark` begins in what is held, or could still: *whole says which. */
static size_t find_mark(const tool_reader *r, const char *mark, bool *whole)
{
    size_t len = strlen(mark);
    const char *at = memmem(r->raw.s, r->raw.len, mark, len);
    *whole = at != NULL;
    if (at) return (size_t)(at - r->raw.s);
    size_t n = r->raw.len < len - 1 ? r->raw.len : len - 1;
    while (n > 0 && memcmp(r->raw.s + r->raw.len - n, mark, n) != 0) n--;
    return r->raw.len - n;
}

/* ------------------------------------------------------------------ other objects -- */

/* Whether `mark` stands at `at`; MORE: as far as it has come. */
static verdict stands(const tool_reader *r, size_t at, const char *mark)
{
    size_t n = strlen(mark), left = r->raw.len - at;
    if (memcmp(r->raw.s + at, mark, left < n ? left : n) != 0) return NO_CALL;
    return left < n ? MORE : CALL;
}

/* Takes raw[at .. end) over as the name, the spaces around it left out. */
static bool take_name(const tool_reader *r, size_t at, size_t end, head *h)
{
    while (at < end && (r->raw.s[at] == ' ' || r->raw.s[at] == '\n')) at++;
    while (end > at && (r->raw.s[end - 1] == ' ' || r->raw.s[end - 1] == '\n')) end--;
    if (at == end || end - at > TOOL_NAME_MAX) return false;
    memcpy(h->name, r->raw.s + at, end - at);
    h->name[end - at] = 0;
    return h->named = true;
}

/* DeepSeek's call at `at`. */
static verdict look_at_frame(const tool_reader *r, size_t at, head *h)
{
    *h = (head){0};
    verdict v = stands(r, at, ds_begin);
    if (v != CALL) return v;
    at += sizeof(ds_begin) - 1;
    const char *sep = memmem(r->raw.s + at, r->raw.len - at, ds_sep, sizeof(ds_sep) - 1);
    if (!sep) return MORE;
    size_t end = (size_t)(sep - r->raw.s), i = end + sizeof(ds_sep) - 1;
    if (!take_name(r, at, end, h)) return NO_CALL;
    if (strcmp(h->name, "function") == 0) {
        const char *line = memchr(r->raw.s + i, '\n', r->raw.len - i);
        if (!line) return MORE;
        end = (size_t)(line - r->raw.s);
        if (!take_name(r, i, end, h)) return NO_CALL;
        i = spaces(r, end);
        v = i < r->raw.len ? stands(r, i, "```json") : MORE;
        if (v != CALL) return v;
        i += strlen("```json");
    }
    i = spaces(r, i);
    if (i >= r->raw.len) return MORE;
    h->value = i;
    h->valued = r->raw.s[i] == '{';
    return h->valued ? CALL : NO_CALL;
}

/* <function=NAME> at `at`. */
static verdict look_at_tag(const tool_reader *r, size_t at, head *h)
{
    static const char tag[] = "<function=";
    *h = (head){0};
    verdict v = stands(r, at, tag);
    if (v != CALL) return v;
    at += sizeof(tag) - 1;
    const char *end = memchr(r->raw.s + at, '>', r->raw.len - at);
    if (!end) return r->raw.len - at > TOOL_NAME_MAX ? NO_CALL : MORE;
    if (!take_name(r, at, (size_t)(end - r->raw.s), h)) return NO_CALL;
    h->value = (size_t)(end - r->raw.s) + 1;
    h->valued = true;
    return CALL;
}

/* The call of a channel at `at`: who it is to, what else its head says, the arguments. */
static verdict look_at_channel(const tool_reader *r, size_t at, head *h)
{
    *h = (head){0};
    at += strlen(styles[TOOLS_CHANNEL].marker);
    size_t left = r->raw.len - at, n = sizeof(message_mark) - 1;
    const char *message = memmem(r->raw.s + at, left, message_mark, n);
    if (!message) return left > CHANNEL_HEAD_MAX ? NO_CALL : MORE;
    size_t end = at, head_end = (size_t)(message - r->raw.s), i = spaces(r, head_end + n);
    while (end < head_end && !strchr(" <\n", r->raw.s[end])) end++;
    if (head_end - at > CHANNEL_HEAD_MAX || !take_name(r, at, end, h)) return NO_CALL;
    if (i >= r->raw.len) return MORE;
    h->value = i;
    h->valued = r->raw.s[i] == '{';
    return h->valued ? CALL : NO_CALL;
}

/* A name at `at` that ends before one of the bytes `ends`; `behind`: of these are dropped. */
static verdict look_at_name(const tool_reader *r, size_t at, const char *ends, size_t behind,
                            head *h)
{
    *h = (head){0};
    size_t end = at;
    while (end < r->raw.len && !(r->raw.s[end] && strchr(ends, r->raw.s[end]))) end++;
    if (end - at > TOOL_NAME_MAX) return NO_CALL;
    if (end == r->raw.len) return MORE;
    if (!take_name(r, at, end, h)) return NO_CALL;
    h->value = end + behind;
    h->valued = true;
    return !is_python(r->style) || is_known(r, h->name) ? CALL : NO_CALL;
}

/* Whether the function's schema says that its argument `key` is a text. */
static bool is_text(const tool_reader *r, const char *function, const char *key)
{
    const cJSON *t, *kind;
    cJSON_ArrayForEach(t, r->tools)
    {
        const cJSON *f = json_get(t, "function");
        const char *name = cJSON_GetStringValue(json_get(f, "name"));
        if (!name || strcmp(name, function) != 0) continue;
        const cJSON *type =
            json_get(json_get(json_get(json_get(f, "parameters"), "properties"), key), "type");
        if (cJSON_IsString(type)) return strcmp(type->valuestring, "string") == 0;
        cJSON_ArrayForEach(kind, type)
        {
            if (cJSON_IsString(kind) && strcmp(kind->valuestring, "string") == 0) return true;
        }
    }
    return false;
}

/* One argument: `plain`, as it stands, else as a text. */
static void put_argument(tool_reader *r, const char *key, const char *value, size_t len, bool plain)
{
    const tool_call *c = &r->call[r->n_calls - 1];
    cJSON *name = cJSON_CreateString(key), *text = NULL;
    char *own = malloc(len + 1), *quoted = NULL, *label = json_print(name);
    if (own) { /* what is held has no 0 at its end, so strndup() is not for it */
        memcpy(own, value, len);
        own[len] = 0;
    }
    if (!plain && own) text = cJSON_CreateString(own);
    if (text) quoted = json_print(text);
    if (r->args.len > c->at + 1) add(r, &r->args, ", ", 2);
    if (label) add(r, &r->args, label, strlen(label));
    add(r, &r->args, ": ", 2);
    if (plain)
        add(r, &r->args, value, len);
    else if (quoted)
        add(r, &r->args, quoted, strlen(quoted));
    if (!label || !own || (!plain && !quoted)) r->failed = true;
    cJSON_Delete(name);
    cJSON_Delete(text);
    free(own);
    free(quoted);
    free(label);
    r->call[r->n_calls - 1].len = r->args.len - c->at;
}

static bool is_json(const char *value, size_t len)
{
    cJSON *v = NULL;
    bool is = !json_parse(value, len, &json_limits_request, &v, NULL);
    cJSON_Delete(v);
    return is;
}

/* Behind the last argument, at `n`. */
static bool end_arguments(tool_reader *r, size_t n)
{
    add(r, &r->args, "}", 1);
    drop(r, n);
    r->tagged = false;
    end_call(r);
    return true;
}

/* An argument written as tags: <parameter=KEY>VALUE</parameter>, or GLM's. */
typedef struct {
    const char *open, *key_end, *value, *close, *over;
} tag_words;

static const tag_words xml_words = {"<parameter=", ">", "", "</parameter>", "</function>"};
static const tag_words glm_words = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
                                    "</tool_call>"};

/* Where `mark` ends, looked for from `at`; 0: it has not come. */
static size_t behind_mark(const tool_reader *r, size_t at, const char *mark)
{
    size_t n = strlen(mark);
    const char *found = memmem(r->raw.s + at, r->raw.len - at, mark, n);
    return found ? (size_t)(found - r->raw.s) + n : 0;
}

/* Inside of a call written as tags: a whole argument, or the end.  True: look again. */
static bool read_tag(tool_reader *r)
{
    const tag_words *w = r->style == TOOLS_GLM ? &glm_words : &xml_words;
    const tool_call *c = &r->call[r->n_calls - 1];
    size_t i = spaces(r, 0);
    if (i >= r->raw.len) return false;
    verdict ends = stands(r, i, w->over), begins = stands(r, i, w->open);
    if (ends == CALL) return end_arguments(r, i + strlen(w->over));
    if (ends == MORE || begins == MORE) return false;
    if (begins == NO_CALL) { /* nothing that belongs there */
        drop(r, i + 1);
        return true;
    }
    size_t from = i + strlen(w->open), key_end = behind_mark(r, from, w->key_end);
    size_t behind = behind_mark(r, from, w->close);
    if (!key_end || !behind) return false;
    size_t n = key_end - strlen(w->key_end) - from, value = spaces(r, key_end);
    size_t end = behind - strlen(w->close);
    bool opened = stands(r, value, w->value) == CALL;
    value = w->value[0] ? value + strlen(w->value) : key_end;
    if (!opened || end < value || n == 0 || n > TOOL_NAME_MAX) {
        drop(r, i + 1);
        return true;
    }
    char key[TOOL_NAME_MAX + 1];
    memcpy(key, r->raw.s + from, n);
    key[n] = 0;
    if (value < end && r->raw.s[value] == '\n') value++;
    if (value < end && r->raw.s[end - 1] == '\n') end--;
    const char *s = r->raw.s + value;
    put_argument(r, key, s, end - value, !is_text(r, c->name, key) && is_json(s, end - value));
    drop(r, behind);
    return true;
}

/* ------------------------------------------------------------------- Python's calls -- */

/* Behind the string at `at` in quotes of its own kind; 0: it has no end yet. */
static size_t quoted_end(const tool_reader *r, size_t at)
{
    for (size_t i = at + 1; i < r->raw.len; i++) {
        if (r->raw.s[i] == '\\')
            i++;
        else if (r->raw.s[i] == r->raw.s[at])
            return i + 1;
    }
    return 0;
}

/* Where the argument at `at` ends: a comma or the call's own bracket; 0: it has no end yet. */
static size_t literal_end(const tool_reader *r, size_t at)
{
    int depth = 0;
    for (size_t i = at; i < r->raw.len; i++) {
        char c = r->raw.s[i];
        if (c == '"' || c == '\'') {
            i = quoted_end(r, i);
            if (!i) return 0;
            i--;
        } else if (c == '(' || c == '[' || c == '{') {
            depth++;
        } else if (depth == 0 && (c == ',' || c == ')')) {
            return i;
        } else if (c == ')' || c == ']' || c == '}') {
            depth--;
        }
    }
    return 0;
}

/* Python's string s[0 .. len), its quotes included, as JSON's. */
static void add_quoted(tool_reader *r, held_bytes *out, const char *s, size_t len)
{
    char code[8];
    add(r, out, "\"", 1);
    for (size_t i = 1; i + 1 < len; i++) {
        bool escape = s[i] == '\\' && i + 2 < len;
        if (escape && s[i + 1] == 'x' && i + 4 < len) {
            snprintf(code, sizeof(code), "\\u00%.2s", s + i + 2);
            add(r, out, code, 6);
            i += 3;
        } else if (escape) {
            i++;
            if (!strchr("'\"\\/bfnrtu", s[i])) add(r, out, "\\\\", 2);
            if (s[i] != '\'' && strchr("\"\\/bfnrtu", s[i])) add(r, out, "\\", 1);
            add(r, out, s + i, 1);
        } else if ((unsigned char)s[i] < ' ' || s[i] == '"') {
            snprintf(code, sizeof(code), "\\u%04x", (unsigned char)s[i]);
            add(r, out, code, 6);
        } else {
            add(r, out, s + i, 1);
        }
    }
    add(r, out, "\"", 1);
}

/* Python's literal as JSON; what is none comes out as it stands. */
static void add_literal(tool_reader *r, held_bytes *out, size_t at, size_t end)
{
    static const struct {
        const char *python, *json;
    } words[] = {{"True", "true"}, {"False", "false"}, {"None", "null"}, {"(", "["}, {")", "]"}};
    while (at < end) {
        const char *s = r->raw.s + at;
        size_t n = *s == '"' || *s == '\'' ? quoted_end(r, at) : 0, k = 0;
        if (n && n <= end) {
            add_quoted(r, out, s, n - at);
            at = n;
            continue;
        }
        for (; k < sizeof(words) / sizeof(words[0]); k++) {
            n = strlen(words[k].python);
            if (n <= end - at && memcmp(s, words[k].python, n) == 0) break;
        }
        bool word = k < sizeof(words) / sizeof(words[0]);
        add(r, out, word ? words[k].json : s, word ? strlen(words[k].json) : 1);
        at += word ? n : 1;
    }
}

/* Inside of NAME(..): a whole argument, or the end.  True: look again. */
static bool read_python(tool_reader *r)
{
    size_t i = spaces(r, 0), n = 0;
    char key[TOOL_NAME_MAX + 1];
    if (i < r->raw.len && r->raw.s[i] == ',') i = spaces(r, i + 1);
    if (i >= r->raw.len) return false;
    if (r->raw.s[i] == ')') return end_arguments(r, i + 1);
    size_t end = literal_end(r, i);
    if (!end) return false;
    while (i + n < end && n <= TOOL_NAME_MAX && !strchr("= \t\n\"'([{", r->raw.s[i + n])) n++;
    size_t equals = spaces(r, i + n);
    if (n > 0 && n <= TOOL_NAME_MAX && equals < end && r->raw.s[equals] == '=') {
        held_bytes json = {0};
        size_t value = spaces(r, equals + 1), last = end;
        while (last > value && strchr(" \t\r\n", r->raw.s[last - 1])) last--;
        memcpy(key, r->raw.s + i, n);
        key[n] = 0;
        add_literal(r, &json, value, last);
        bool plain = !r->failed && json.len && is_json(json.s, json.len);
        put_argument(r, key, plain ? json.s : r->raw.s + value, plain ? json.len : last - value,
                     plain);
        free(json.s);
    } /* else it has no name: which one it is cannot be told */
    drop(r, end);
    return true;
}

/* From the marker to the object; 0: more is needed; SIZE_MAX: no object follows. */
static size_t object_at(tool_reader *r, size_t at)
{
    size_t i = spaces(r, at);
    if (styles[r->style].lists && i < r->raw.len && r->raw.s[i] == '[') i = spaces(r, i + 1);
    if (i >= r->raw.len) return 0;
    bool tag = r->style == TOOLS_XML, named = r->style == TOOLS_GLM || is_python(r->style);
    return r->raw.s[i] == '{' || named || (tag && r->raw.s[i] == '<') ? i : SIZE_MAX;
}

/* The call at `at`, in the style's way. */
static verdict look_at_call(const tool_reader *r, size_t at, head *h)
{
    if (r->style == TOOLS_DEEPSEEK) return look_at_frame(r, at, h);
    if (r->style == TOOLS_CHANNEL) return look_at_channel(r, at, h);
    if (is_python(r->style)) return look_at_name(r, at, "(", 1, h);
    if (r->style == TOOLS_GLM && r->raw.s[at] != '{') return look_at_name(r, at, "\n<", 0, h);
    return r->raw.s[at] == '<' ? look_at_tag(r, at, h) : look(r, at, h);
}

/* Its name is known: its arguments follow. */
static void begin_call(tool_reader *r, const head *h, size_t at)
{
    bool named = r->style == TOOLS_XML || r->style == TOOLS_GLM || is_python(r->style);
    r->tagged = named && r->raw.s[at] != '{';
    tell(r, h);
    if (r->tagged) add(r, &r->args, "{", 1);
    if (!h->valued) { /* a call without arguments */
        add(r, &r->args, "{}", 2);
        drop(r, h->end);
        end_call(r);
        return;
    }
    drop(r, h->value);
    r->inside = true;
    r->depth = 0;
    r->in_string = r->escaped = false;
}

/* DeepSeek's mark before its first call is no text.  *at: where it might begin.  True: it was
 * dropped. */
static bool drop_list_mark(tool_reader *r, size_t *at)
{
    bool whole;
    size_t from = find_mark(r, ds_list, &whole), text = from;
    if (r->style != TOOLS_DEEPSEEK || from > *at) return false;
    *at = from;
    if (!whole) return false;
    while (text > 0 && strchr(" \t\r\n", r->raw.s[text - 1]) && r->raw.s[text - 1]) text--;
    if (text > 0) as_text(r, text);
    drop(r, from - text + sizeof(ds_list) - 1);
    return true;
}

/* Before a call: text up to where one may begin, with the spaces before it.  True: look again. */
static bool before_call(tool_reader *r)
{
    const char *mark = tool_style_marker(r->style);
    bool whole;
    size_t from = find_mark(r, mark, &whole), first = spaces(r, 0), object;
    if (drop_list_mark(r, &from)) return true;
    size_t text = from;
    char bare = r->style == TOOLS_LLAMA ? '{' : r->style == TOOLS_PYTHON ? '[' : 0;
    if (bare && !r->began && first == r->raw.len) return false;
    if (bare && !r->began && r->raw.s[first] == bare) {
        object = bare == '[' ? object_at(r, first) : first;
        if (bare == '[' && object == 0) return false;
        from = first;
    } else {
        while (text > 0 && strchr(" \t\r\n", r->raw.s[text - 1]) && r->raw.s[text - 1]) text--;
        if (text > 0) {
            r->began = true;
            as_text(r, text);
            from -= text;
        }
        if (!whole) return false;
        size_t behind = from + strlen(mark);
        object = is_framed(r->style) ? from : object_at(r, behind);
        from = behind;
        if (object == 0 && !is_framed(r->style)) return false;
    }
    head h;
    verdict v =
        object == SIZE_MAX || r->n_calls == TOOL_CALLS_MAX ? NO_CALL : look_at_call(r, object, &h);
    if (v == MORE && r->raw.len > HEAD_MAX) v = NO_CALL;
    if (v == MORE) return false;
    r->began = true;
    if (v == NO_CALL) {
        as_text(r, object == SIZE_MAX ? from : object + 1);
        return true;
    }
    r->listed = styles[r->style].lists;
    begin_call(r, &h, object);
    return true;
}

/* Behind a call's arguments, where the marker that ends it begins.  True: look again. */
static bool end_marker(tool_reader *r, size_t at)
{
    const char *close = styles[r->style].close;
    verdict v = stands(r, at, close);
    if (v == NO_CALL) return before_call(r);
    if (v == CALL) drop(r, at + strlen(close));
    return v == CALL;
}

/* Behind a call of DeepSeek's: what closes it, or another.  True: look again. */
static bool after_frame(tool_reader *r, size_t i)
{
    static const char *const closes[] = {"```", DS_END, MARK("tool" PART "calls" PART "end")};
    head h;
    for (size_t k = 0; k < sizeof(closes) / sizeof(closes[0]); k++) {
        verdict v = stands(r, i, closes[k]);
        if (v == CALL) drop(r, i + strlen(closes[k]));
        if (v != NO_CALL) return v == CALL;
    }
    verdict v = r->n_calls < TOOL_CALLS_MAX ? look_at_frame(r, i, &h) : NO_CALL;
    if (v == MORE && r->raw.len <= HEAD_MAX) return false;
    if (v != CALL) return before_call(r);
    begin_call(r, &h, i);
    return true;
}

/* Behind a comma or the like: another call, or text after all.  True: look again. */
static bool next_call(tool_reader *r, size_t comma)
{
    head h;
    size_t object = spaces(r, comma + 1);
    if (object >= r->raw.len) return false;
    bool may = (r->raw.s[object] == '{' || is_python(r->style)) && r->n_calls < TOOL_CALLS_MAX;
    verdict v = may ? look_at_call(r, object, &h) : NO_CALL;
    if (v == MORE && r->raw.len <= HEAD_MAX) return false;
    if (v != CALL) {
        as_text(r, comma + 1);
        return true;
    }
    begin_call(r, &h, object);
    return true;
}

/* Behind a call's arguments: its object's end, the marker's, a comma ...  True: look again. */
static bool after_call(tool_reader *r)
{
    size_t i = spaces(r, 0);
    if (i >= r->raw.len) return false;
    char c = r->raw.s[i];
    bool listed = r->listed;
    if (r->style == TOOLS_DEEPSEEK) return after_frame(r, i);
    if (styles[r->style].close[0] == '<' && c == '<') return end_marker(r, i);
    if (listed && c == ']') {
        r->listed = false;
        drop(r, i + 1);
        return true;
    }
    if (listed ? c == ',' : r->style == TOOLS_LLAMA && (c == ';' || c == ','))
        return next_call(r, i);
    if (r->style != TOOLS_LLAMA) return before_call(r);
    as_text(r, i + 1);
    return true;
}

/* Other members after the arguments, up to the object's end. */
static bool end_object(tool_reader *r)
{
    int depth = 1;
    for (size_t i = 0; i < r->raw.len; i++) {
        char c = r->raw.s[i];
        if (c == '"') {
            i = string_end(r, i);
            if (!i) return false;
            i--;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && --depth == 0) {
            drop(r, i + 1);
            end_call(r);
            return true;
        }
    }
    return false;
}

static bool advance(tool_reader *r)
{
    if (r->inside && r->tagged) return is_python(r->style) ? read_python(r) : read_tag(r);
    if (r->inside && r->depth >= 0) {
        if (!pass(r)) return false;
        if (is_framed(r->style)) { /* nothing around them */
            end_call(r);
            return true;
        }
        r->depth = -1; /* the object's own end is still to come */
    }
    if (r->inside) return end_object(r);
    return r->behind ? after_call(r) : before_call(r);
}

void tool_reader_push(tool_reader *r, const char *s, size_t len)
{
    uint64_t failures = memory_failures();
    add(r, &r->raw, s, len);
    while (!r->failed && r->raw.len && !tool_reader_done(r) && advance(r)) {
    }
    /* What could not be looked at would be taken for text. */
    if (memory_failures() != failures) r->failed = true;
}

void tool_reader_finish(tool_reader *r)
{
    if (!r->call) return;
    bool junk = tool_reader_done(r) || r->inside || (r->n_calls && spaces(r, 0) == r->raw.len);
    if (!junk) as_text(r, r->raw.len);
    r->raw.len = 0;
}

bool tool_reader_done(const tool_reader *r)
{
    return r->one && r->n_calls == 1 && r->call[0].whole;
}

const char *tool_reader_take_text(tool_reader *r, size_t *len)
{
    const char *s = r->text.s ? r->text.s + r->text_given : "";
    *len = r->text.len - r->text_given;
    r->text_given = r->text.len;
    return s;
}

bool tool_reader_has_news(const tool_reader *r)
{
    for (int i = 0; i < r->n_calls; i++) {
        if (r->call[i].told || r->call[i].given < r->call[i].len) return true;
    }
    return false;
}
