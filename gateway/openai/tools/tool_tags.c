/* tool_tags.c -- calls whose arguments are written as tags: Qwen3-Coder's and GLM's.
 *
 *     <function=NAME> <parameter=KEY> VALUE </parameter> .. </function>
 *     NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> .. </tool_call>
 *
 * A value has no quotes: it is a text where the function's schema says so, or where it is no JSON.
 */
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/tools/tool_reader_inside.h"

typedef struct tag_words {
    const char *open, *key_end, *value, *close; /* of an argument */
    const char *over;                           /* behind the last one */
} tag_words;

static const tag_words xml_words = {"<parameter=", ">", "", "</parameter>", "</function>"};
static const tag_words glm_words = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
                                    "</tool_call>"};

static bool says_string(const cJSON *type)
{
    return cJSON_IsString(type) && strcmp(type->valuestring, "string") == 0;
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
        if (cJSON_IsString(type)) return says_string(type);
        cJSON_ArrayForEach(kind, type)
        {
            if (says_string(kind)) return true;
        }
    }
    return false;
}

/* The tag at `at`, as far as it has come: its key, its value; behind: where it ends. */
typedef struct tag {
    char key[TOOL_NAME_MAX + 1];
    size_t n_key, value, end, behind;
} tag;

static tool_verdict look_at_argument(const tool_reader *r, const tag_words *w, size_t at, tag *t)
{
    size_t from = at + strlen(w->open), key_end = scan_behind(r, from, w->key_end);
    t->behind = scan_behind(r, from, w->close);
    if (key_end == SCAN_NONE || t->behind == SCAN_NONE) return TOOL_MORE;
    t->n_key = key_end - strlen(w->key_end) - from;
    t->value = scan_spaces(r, key_end);
    t->end = t->behind - strlen(w->close);
    bool opened = scan_stands(r, t->value, w->value) == TOOL_CALL;
    t->value = w->value[0] ? t->value + strlen(w->value) : key_end;
    if (!opened || t->end < t->value || t->n_key == 0 || t->n_key > TOOL_NAME_MAX)
        return TOOL_NO_CALL;
    memcpy(t->key, r->raw.s + from, t->n_key);
    t->key[t->n_key] = 0;
    if (t->value < t->end && r->raw.s[t->value] == '\n') t->value++;
    if (t->value < t->end && r->raw.s[t->end - 1] == '\n') t->end--;
    return TOOL_CALL;
}

static bool read_tag(tool_reader *r, const tag_words *w)
{
    tag t;
    size_t i = scan_spaces(r, 0);
    if (i >= r->raw.len) return false;
    tool_verdict ends = scan_stands(r, i, w->over), argument = scan_stands(r, i, w->open);
    if (ends == TOOL_CALL) return tool_end_arguments(r, i + strlen(w->over));
    if (ends == TOOL_MORE || argument == TOOL_MORE) return false;
    if (argument == TOOL_CALL) argument = look_at_argument(r, w, i, &t);
    if (argument == TOOL_MORE) return false;
    if (argument == TOOL_NO_CALL) { /* nothing that belongs there */
        tool_drop(r, i + 1);
        return true;
    }
    const char *s = r->raw.s + t.value;
    size_t len = t.end - t.value;
    bool json = !is_text(r, r->call[r->n_calls - 1].name, t.key) && scan_is_json(s, len);
    tool_put_argument(r, t.key, t.n_key, s, len, json);
    tool_drop(r, t.behind);
    return true;
}

static tool_verdict look_at_function(const tool_reader *r, size_t at, tool_head *h)
{
    static const char function[] = "<function=";
    if (r->raw.s[at] == '{') return tool_object.look(r, at, h);
    *h = (tool_head){0};
    tool_verdict v = scan_stands(r, at, function);
    if (v != TOOL_CALL) return v;
    at += sizeof(function) - 1;
    const char *end = memchr(r->raw.s + at, '>', r->raw.len - at);
    if (!end) return r->raw.len - at > TOOL_NAME_MAX ? TOOL_NO_CALL : TOOL_MORE;
    if (!tool_take_name(r, at, (size_t)(end - r->raw.s), h)) return TOOL_NO_CALL;
    h->value = (size_t)(end - r->raw.s) + 1;
    h->valued = true;
    return TOOL_CALL;
}

static bool read_parameter(tool_reader *r)
{
    return read_tag(r, &xml_words);
}

static tool_verdict look_at_line(const tool_reader *r, size_t at, tool_head *h)
{
    return r->raw.s[at] == '{' ? tool_object.look(r, at, h) : tool_name_look(r, at, "\n<", 0, h);
}

static bool read_pair(tool_reader *r)
{
    return read_tag(r, &glm_words);
}

const tool_dialect tool_xml = {.look = look_at_function, .read = read_parameter, .begins = "{<"};
const tool_dialect tool_glm = {.look = look_at_line, .read = read_pair};
