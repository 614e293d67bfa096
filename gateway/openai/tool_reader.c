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

enum { HEAD_MAX = 64 << 10 }; /* bytes of an object before its arguments, after which it is none */

const char *tool_style_marker(tool_style style)
{
    static const char *const markers[] = {"", "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"};
    return markers[style];
}

const char *tool_style_opening(tool_style style)
{
    static const char *const openings[] = {"", "<tool_call>\n", "[TOOL_CALLS] [", ""};
    return openings[style];
}

const char *tool_style_arguments(tool_style style)
{
    return style == TOOLS_LLAMA ? "parameters" : "arguments";
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
    if (strcmp(key, "name") == 0) {
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

/* From the marker to the object; 0: more is needed; SIZE_MAX: no object follows. */
static size_t object_at(tool_reader *r, size_t at)
{
    size_t i = spaces(r, at);
    if (r->style == TOOLS_MISTRAL && i < r->raw.len && r->raw.s[i] == '[') i = spaces(r, i + 1);
    if (i >= r->raw.len) return 0;
    return r->raw.s[i] == '{' ? i : SIZE_MAX;
}

/* Before a call: text up to where one may begin, with the spaces before it.  True: look again. */
static bool before_call(tool_reader *r)
{
    const char *mark = tool_style_marker(r->style);
    bool whole;
    size_t from = find_mark(r, mark, &whole), first = spaces(r, 0), text = from, object;
    if (r->style == TOOLS_LLAMA && !r->began && first == r->raw.len) return false;
    if (r->style == TOOLS_LLAMA && !r->began && r->raw.s[first] == '{') {
        object = first;
        from = first;
    } else {
        while (text > 0 && strchr(" \t\r\n", r->raw.s[text - 1]) && r->raw.s[text - 1]) text--;
        if (text > 0) {
            r->began = true;
            as_text(r, text);
            from -= text;
        }
        if (!whole) return false;
        from += strlen(mark);
        object = object_at(r, from);
        if (object == 0) return false;
    }
    head h;
    verdict v = object == SIZE_MAX || r->n_calls == TOOL_CALLS_MAX ? NO_CALL : look(r, object, &h);
    if (v == MORE && r->raw.len > HEAD_MAX) v = NO_CALL;
    if (v == MORE) return false;
    r->began = true;
    if (v == NO_CALL) {
        as_text(r, object == SIZE_MAX ? from : object + 1);
        return true;
    }
    r->listed = r->style == TOOLS_MISTRAL;
    tell(r, &h);
    if (!h.valued) { /* a call without arguments */
        add(r, &r->args, "{}", 2);
        drop(r, h.end);
        end_call(r);
        return true;
    }
    if (h.named && h.value) {
        drop(r, h.value);
        r->inside = true;
        r->depth = 0;
        r->in_string = r->escaped = false;
    }
    return true;
}

/* Behind a call's arguments, where the marker that ends it begins.  True: look again. */
static bool end_marker(tool_reader *r, size_t at)
{
    static const char close[] = "</tool_call>";
    size_t left = r->raw.len - at, n = left < sizeof(close) - 1 ? left : sizeof(close) - 1;
    if (memcmp(r->raw.s + at, close, n) != 0) return before_call(r);
    if (n < sizeof(close) - 1) return false;
    drop(r, at + n);
    return true;
}

/* Behind a comma or the like: another call, or text after all.  True: look again. */
static bool next_call(tool_reader *r, size_t comma)
{
    head h;
    size_t object = spaces(r, comma + 1);
    if (object >= r->raw.len) return false;
    bool may = r->raw.s[object] == '{' && r->n_calls < TOOL_CALLS_MAX;
    verdict v = may ? look(r, object, &h) : NO_CALL;
    if (v == MORE && r->raw.len <= HEAD_MAX) return false;
    if (v != CALL) {
        as_text(r, comma + 1);
        return true;
    }
    tell(r, &h);
    drop(r, h.valued ? h.value : h.end);
    r->inside = h.valued;
    r->depth = 0;
    if (!h.valued) {
        add(r, &r->args, "{}", 2);
        end_call(r);
    }
    return true;
}

/* Behind a call's arguments: its object's end, the marker's, a comma ...  True: look again. */
static bool after_call(tool_reader *r)
{
    size_t i = spaces(r, 0);
    if (i >= r->raw.len) return false;
    char c = r->raw.s[i];
    bool listed = r->style == TOOLS_MISTRAL && r->listed;
    if (r->style == TOOLS_HERMES && c == '<') return end_marker(r, i);
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
    if (r->inside && r->depth >= 0) {
        if (!pass(r)) return false;
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
