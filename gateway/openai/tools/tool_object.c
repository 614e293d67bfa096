/* tool_object.c -- calls that are JSON objects: {"name": .., "arguments": {..}}.
 *
 * The members are read in whatever order they come, until the name and the place of the arguments
 * are known.
 */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/tools/tool_reader_inside.h"

static const scan_form member_form = {"{[", "}]", ",}]", scan_string};

static bool decoded(const tool_reader *r, size_t at, size_t end, char *out, size_t cap)
{
    cJSON *v;
    if (json_parse(r->raw.s + at, end - at, &json_limits_request, &v, NULL)) return false;
    bool ok = cJSON_IsString(v) && v->valuestring[0] && strlen(v->valuestring) < cap;
    if (ok) snprintf(out, cap, "%s", v->valuestring);
    cJSON_Delete(v);
    return ok;
}

/* One member whose name begins at `*at`; TOOL_MORE with another `*at`: the next one can follow. */
static tool_verdict read_member(const tool_reader *r, size_t *at, tool_head *h)
{
    char key[32] = "";
    if (r->raw.s[*at] != '"') return TOOL_NO_CALL;
    size_t key_end = scan_quoted(r, *at);
    if (key_end == SCAN_NONE) return TOOL_MORE;
    (void)decoded(r, *at, key_end, key, sizeof(key));
    size_t i = scan_spaces(r, key_end);
    if (i >= r->raw.len) return TOOL_MORE;
    if (r->raw.s[i] != ':') return TOOL_NO_CALL;
    i = scan_spaces(r, i + 1);
    if (i >= r->raw.len) return TOOL_MORE;
    bool value = strcmp(key, "arguments") == 0 || strcmp(key, "parameters") == 0;
    if (value && r->raw.s[i] != '{') return TOOL_NO_CALL;
    if (value && !h->valued) {
        h->value = i;
        h->valued = true;
        if (h->named) return TOOL_CALL;
    }
    size_t end = r->raw.s[i] == '"' ? scan_quoted(r, i) : scan_value(r, i, &member_form);
    if (end == SCAN_NONE) return TOOL_MORE;
    if (strcmp(key, style_of(r)->name) == 0) {
        if (!decoded(r, i, end, h->name, sizeof(h->name))) return TOOL_NO_CALL;
        if (r->style == TOOLS_LLAMA && !tool_is_known(r, h->name)) return TOOL_NO_CALL;
        h->named = true;
    }
    *at = end;
    return TOOL_MORE;
}

const char *tool_style_head(int i)
{
    static const char *const heads[] = {
        "{\"name\": ", "{\"name\":", "{\"type\": \"function\", \"name\": ",
        "{\"type\":\"function\",\"name\":", NULL};
    return heads[i];
}

tool_verdict tool_object_begins(const tool_reader *r, size_t at)
{
    tool_verdict v = TOOL_NO_CALL;
    for (int i = 0; tool_style_head(i); i++) {
        tool_verdict head = scan_stands(r, at, tool_style_head(i));
        size_t name = at + strlen(tool_style_head(i));
        if (head == TOOL_CALL && name == r->raw.len) head = TOOL_MORE;
        if (head == TOOL_MORE) v = TOOL_MORE;
        if (head != TOOL_CALL || r->raw.s[name] != '"') continue;
        size_t end = scan_quoted(r, name);
        if (end == SCAN_NONE) return TOOL_MORE;
        return memchr(r->raw.s + name, '\\', end - name) ? TOOL_NO_CALL : TOOL_CALL;
    }
    return v;
}

static tool_verdict look(const tool_reader *r, size_t at, tool_head *h)
{
    *h = (tool_head){0};
    bool headed = r->ways & TOOLS_GUIDED && r->style == TOOLS_LLAMA;
    tool_verdict begins = headed ? tool_object_begins(r, at) : TOOL_CALL;
    if (begins != TOOL_CALL) return begins;
    for (size_t i = scan_spaces(r, at + 1); i < r->raw.len;) {
        if (r->raw.s[i] == '}') {
            h->end = i + 1;
            return h->named ? TOOL_CALL : TOOL_NO_CALL;
        }
        size_t was = i;
        tool_verdict v = read_member(r, &i, h);
        if (v != TOOL_MORE || i == was) return v;
        i = scan_spaces(r, i);
        if (i < r->raw.len && r->raw.s[i] == ',') {
            i = scan_spaces(r, i + 1);
        } else if (i < r->raw.len && r->raw.s[i] != '}') {
            return TOOL_NO_CALL;
        }
    }
    return TOOL_MORE;
}

const tool_dialect tool_object = {.look = look, .begins = "{"};
