/* tool_scan.c -- scanners over the bytes that are not understood yet, and the parts of a call.
 *
 * r->raw has what the model has written and nobody has taken yet, which may end anywhere. So a
 * scanner has three answers: found, not this, and TOOL_MORE or SCAN_NONE where the end of the
 * bytes leaves it open; the caller then waits for more.
 *
 *     scan_*      look only
 *     tool_*      build: a call's name, then "{", arguments as JSON, "}" into r->args
 *
 * scan_mark() says where a mark begins, or may begin in the last bytes: all before that can be
 * sent as text. Memory that is short sets r->failed, which the reader looks at after each piece.
 *
 * Threads: the reader's owner.
 */
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/tools/tool_reader_inside.h"

size_t scan_spaces(const tool_reader *r, size_t at)
{
    while (at < r->raw.len && scan_is_in(r->raw.s[at], " \t\r\n")) at++;
    return at;
}

size_t scan_trimmed(const tool_reader *r, size_t from, size_t end)
{
    while (end > from && scan_is_in(r->raw.s[end - 1], " \t\r\n")) end--;
    return end;
}

tool_verdict scan_stands(const tool_reader *r, size_t at, const char *mark)
{
    size_t n = strlen(mark), left = r->raw.len - at;
    if (memcmp(r->raw.s + at, mark, left < n ? left : n) != 0) return TOOL_NO_CALL;
    return left < n ? TOOL_MORE : TOOL_CALL;
}

size_t scan_mark(const tool_reader *r, const char *mark, bool *whole)
{
    size_t len = strlen(mark);
    const char *at = memmem(r->raw.s, r->raw.len, mark, len);
    *whole = at != NULL;
    if (at) return (size_t)(at - r->raw.s);
    size_t n = r->raw.len < len - 1 ? r->raw.len : len - 1;
    while (n > 0 && memcmp(r->raw.s + r->raw.len - n, mark, n) != 0) n--;
    return r->raw.len - n;
}

size_t scan_behind(const tool_reader *r, size_t at, const char *mark)
{
    size_t n = strlen(mark);
    const char *found = memmem(r->raw.s + at, r->raw.len - at, mark, n);
    return found ? (size_t)(found - r->raw.s) + n : SCAN_NONE;
}

size_t scan_quoted(const tool_reader *r, size_t at)
{
    for (size_t i = at + 1; i < r->raw.len; i++) {
        if (r->raw.s[i] == '\\')
            i++;
        else if (r->raw.s[i] == r->raw.s[at])
            return i + 1;
    }
    return SCAN_NONE;
}

size_t scan_string(const tool_reader *r, size_t at)
{
    return r->raw.s[at] == '"' ? scan_quoted(r, at) : at;
}

size_t scan_value(const tool_reader *r, size_t at, const scan_form *form)
{
    int depth = 0;
    while (at < r->raw.len) {
        char c = r->raw.s[at];
        size_t behind = form->string(r, at);
        if (behind == SCAN_NONE) return SCAN_NONE;
        if (behind > at) {
            at = behind;
            continue;
        }
        if (depth == 0 && scan_is_in(c, form->ends)) return at;
        depth += scan_is_in(c, form->opens);
        depth -= scan_is_in(c, form->closes);
        at++;
    }
    return SCAN_NONE;
}

bool scan_is_json(const char *s, size_t len)
{
    cJSON *v = NULL;
    bool is = !json_parse(s, len, &json_limits_request, &v, NULL);
    cJSON_Delete(v);
    return is;
}

/* ---- parts of a call ------------------------------------------------------------------ */

bool tool_take_name(const tool_reader *r, size_t at, size_t end, tool_head *h)
{
    while (at < end && scan_is_in(r->raw.s[at], " \n")) at++;
    while (end > at && scan_is_in(r->raw.s[end - 1], " \n")) end--;
    if (at == end || end - at > TOOL_NAME_MAX || memchr(r->raw.s + at, 0, end - at)) return false;
    memcpy(h->name, r->raw.s + at, end - at);
    h->name[end - at] = 0;
    return h->named = true;
}

tool_verdict tool_name_look(const tool_reader *r, size_t at, const char *ends, size_t behind,
                            tool_head *h)
{
    *h = (tool_head){0};
    size_t end = at;
    while (end < r->raw.len && !scan_is_in(r->raw.s[end], ends)) end++;
    if (end - at > TOOL_NAME_MAX) return TOOL_NO_CALL;
    if (end == r->raw.len) return TOOL_MORE;
    if (!tool_take_name(r, at, end, h)) return TOOL_NO_CALL;
    h->value = end + behind;
    h->valued = true;
    return TOOL_CALL;
}

bool tool_is_known(const tool_reader *r, const char *name)
{
    const cJSON *t;
    cJSON_ArrayForEach(t, r->tools)
    {
        const char *n = cJSON_GetStringValue(json_get(json_get(t, "function"), "name"));
        if (n && strcmp(n, name) == 0) return true;
    }
    return false;
}

void tool_add(tool_reader *r, held_bytes *b, const char *s, size_t len)
{
    if (!r->failed && !held_add(b, s, len)) r->failed = true;
}

void tool_add_string(tool_reader *r, held_bytes *b, const char *s, size_t len)
{
    char *own = malloc(len + 1); /* what is held has no 0 at its end, so strndup() is not for it */
    cJSON *v = NULL;
    if (own) {
        memcpy(own, s, len);
        own[len] = 0;
        v = cJSON_CreateString(own);
    }
    char *text = v ? json_print(v) : NULL;
    if (text)
        tool_add(r, b, text, strlen(text));
    else
        r->failed = true;
    cJSON_Delete(v);
    free(text);
    free(own);
}

void tool_drop(tool_reader *r, size_t n)
{
    held_drop(&r->raw, n);
}

void tool_put_argument(tool_reader *r, const char *key, size_t key_len, const char *value,
                       size_t len, bool json)
{
    tool_call *c = &r->call[r->n_calls - 1];
    if (r->args.len > c->at + 1) tool_add(r, &r->args, ", ", 2);
    tool_add_string(r, &r->args, key, key_len);
    tool_add(r, &r->args, ": ", 2);
    (json ? tool_add : tool_add_string)(r, &r->args, value, len);
    c->len = r->args.len - c->at;
}

void tool_end_call(tool_reader *r, size_t n)
{
    tool_call *c = &r->call[r->n_calls - 1];
    tool_drop(r, n);
    c->len = r->args.len - c->at;
    c->whole = true;
    r->inside = false;
    r->behind = true;
}

bool tool_end_arguments(tool_reader *r, size_t n)
{
    tool_add(r, &r->args, "}", 1);
    r->tagged = false;
    tool_end_call(r, n);
    return true;
}
