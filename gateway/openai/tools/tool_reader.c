/* tool_reader.c -- the loop over an answer: text, markers, lists of calls, and their arguments.
 *
 *     text -> marker -> look at the call -> announce it -> arguments -> end markers -> text or call
 *
 * An object's arguments are passed through by a scanner that keeps its state (depth, inside a
 * string), so a long one costs its length once.
 */
#include "gateway/openai/tools/tool_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/hex.h"
#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "gateway/openai/tools/tool_reader_inside.h"

enum { HEAD_MAX = 64 << 10 }; /* bytes of an object before its arguments, after which it is none */

bool tool_reader_init(tool_reader *r, tool_style style, const cJSON *tools, int ways)
{
    *r = (tool_reader){.style = style, .tools = tools, .ways = ways};
    r->call = calloc(TOOL_CALLS_MAX, sizeof(*r->call));
    if (ways & TOOLS_OPENED)
        tool_reader_push(r, tool_style_opening(style), strlen(tool_style_opening(style)));
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

static void as_text(tool_reader *r, size_t n)
{
    /* Apart from text, what follows a call is the beginning of another one that was cut. */
    if (!(r->ways & TOOLS_APART && r->n_calls)) tool_add(r, &r->text, r->raw.s, n);
    tool_drop(r, n);
    r->behind = false;
}

/* ------------------------------------------------------------------------- one call -- */

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

static void announce_call(tool_reader *r, const tool_head *h)
{
    tool_call *c = &r->call[r->n_calls++];
    make_id(r, c->id);
    memcpy(c->name, h->name, sizeof(c->name));
    c->at = r->args.len;
    c->told = true;
    const cJSON *v;
    cJSON_ArrayForEach(v, r->texts) c->text |= strcmp(v->valuestring, c->name) == 0;
}

/* Its name is known: its arguments follow. */
static void begin_call(tool_reader *r, const tool_head *h, size_t at)
{
    r->tagged = style_of(r)->dialect->read && r->raw.s[at] != '{';
    announce_call(r, h);
    if (r->tagged) tool_add(r, &r->args, "{", 1);
    if (!h->valued) { /* a call without arguments */
        tool_add(r, &r->args, "{}", 2);
        tool_end_call(r, h->end);
        return;
    }
    tool_drop(r, h->value);
    r->inside = true;
    r->depth = 0;
    r->in_string = r->escaped = false;
}

/* Passes the object of arguments through; true: it has ended. */
static bool pass_arguments(tool_reader *r)
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
    tool_add(r, &r->args, r->raw.s, i);
    tool_call *c = &r->call[r->n_calls - 1];
    c->len = r->args.len - c->at;
    tool_drop(r, i);
    return over;
}

/* Other members after the arguments, up to the object's end. */
static bool end_object(tool_reader *r)
{
    static const scan_form form = {"{[", "}]", "}]", scan_string};
    size_t end = scan_value(r, 0, &form);
    if (end == SCAN_NONE) return false;
    tool_end_call(r, end + 1);
    return true;
}

/* ----------------------------------------------------------------- the whole answer -- */

/* From the marker to the call; raw.len: more is needed; SCAN_NONE: no call follows. */
static size_t call_at(const tool_reader *r, size_t at)
{
    const char *begins = style_of(r)->dialect->begins;
    size_t i = scan_spaces(r, at);
    if (style_of(r)->lists && i < r->raw.len && r->raw.s[i] == '[') i = scan_spaces(r, i + 1);
    return i == r->raw.len || !begins || scan_is_in(r->raw.s[i], begins) ? i : SCAN_NONE;
}

/* The call at `at`; one that does not end its beginning is none. */
static tool_verdict look_at_call(const tool_reader *r, size_t at, tool_head *h)
{
    if (at == SCAN_NONE || r->n_calls == TOOL_CALLS_MAX) return TOOL_NO_CALL;
    tool_verdict v = style_of(r)->dialect->look(r, at, h);
    return v == TOOL_MORE && r->raw.len > HEAD_MAX ? TOOL_NO_CALL : v;
}

/* The mark of a list before its first call is no text.  *at: where it might begin.  True: it was
 * dropped. */
static bool drop_list_mark(tool_reader *r, size_t *at)
{
    bool whole = false;
    const char *mark = style_of(r)->list;
    if (!mark) return false;
    size_t from = scan_mark(r, mark, &whole);
    if (from > *at) return false;
    *at = from;
    if (!whole) return false;
    size_t text = scan_trimmed(r, 0, from);
    if (text > 0) as_text(r, text);
    tool_drop(r, from - text + strlen(mark));
    return true;
}

/* TOOLS_APART: whether the answer begins as a call does, as far as it has come. */
static tool_verdict begins_call(const tool_reader *r)
{
    const tool_style_row *s = style_of(r);
    size_t at = scan_spaces(r, 0);
    if (at == r->raw.len) return TOOL_MORE;
    if (s->bare && r->raw.s[at] == s->bare) return TOOL_CALL;
    tool_verdict mark = scan_stands(r, at, s->marker);
    tool_verdict list = s->list ? scan_stands(r, at, s->list) : TOOL_NO_CALL;
    if (mark == TOOL_CALL || list == TOOL_CALL) return TOOL_CALL;
    return mark == TOOL_MORE || list == TOOL_MORE ? TOOL_MORE : TOOL_NO_CALL;
}

/* Finds the call whose marker begins at `from` (whole: all of it has come), or with which the
 * answer begins without one.  *marker: behind the marker.  What precedes it is text.  False: more
 * is needed. */
static bool find_call(tool_reader *r, size_t from, bool whole, size_t *marker, size_t *call)
{
    const tool_style_row *s = style_of(r);
    size_t first = scan_spaces(r, 0);
    bool bare = s->bare && !r->began;
    if (bare && first == r->raw.len) return false;
    if (bare && r->raw.s[first] == s->bare) {
        *marker = first;
        *call = s->lists ? call_at(r, first) : first;
        return *call != r->raw.len;
    }
    size_t text = scan_trimmed(r, 0, from);
    if (text > 0) {
        r->began = true;
        as_text(r, text);
        from -= text;
    }
    if (!whole) return false;
    *marker = from + strlen(s->marker);
    *call = s->dialect->framed ? from : call_at(r, *marker);
    return *call != r->raw.len;
}

/* Before a call: text up to where one may begin, with the spaces before it.  True: look again. */
static bool before_call(tool_reader *r)
{
    bool apart = r->ways & TOOLS_APART && !r->began;
    tool_verdict begins = apart ? begins_call(r) : TOOL_CALL;
    if (begins == TOOL_MORE) return false;
    r->plain = begins == TOOL_NO_CALL;
    if (r->plain) return true;
    bool whole;
    tool_head h;
    size_t from = scan_mark(r, style_of(r)->marker, &whole), marker, call;
    if (drop_list_mark(r, &from)) return true;
    if (!find_call(r, from, whole, &marker, &call)) return false;
    tool_verdict v = look_at_call(r, call, &h);
    if (v == TOOL_MORE) return false;
    r->began = true;
    if (v == TOOL_NO_CALL && apart) {
        r->plain = true;
        return true;
    }
    if (v == TOOL_NO_CALL) {
        as_text(r, call == SCAN_NONE ? marker : call + 1);
        return true;
    }
    r->listed = style_of(r)->lists;
    begin_call(r, &h, call);
    return true;
}

/* Behind a comma or the like: another call, or text after all.  True: look again. */
static bool next_call(tool_reader *r, size_t comma)
{
    tool_head h;
    size_t at = scan_spaces(r, comma + 1);
    if (at >= r->raw.len) return false;
    const char *begins = style_of(r)->dialect->begins;
    tool_verdict v = !begins || r->raw.s[at] == '{' ? look_at_call(r, at, &h) : TOOL_NO_CALL;
    if (v == TOOL_MORE) return false;
    if (v == TOOL_CALL)
        begin_call(r, &h, at);
    else
        as_text(r, comma + 1);
    return true;
}

/* Behind a call's arguments: the marker's end, a list's end, a comma ...  True: look again. */
static bool after_call(tool_reader *r)
{
    const char *const *closes = style_of(r)->closes;
    size_t i = scan_spaces(r, 0);
    if (i >= r->raw.len) return false;
    char c = r->raw.s[i];
    for (int k = 0; k < 3 && closes[k]; k++) {
        tool_verdict v = scan_stands(r, i, closes[k]);
        if (v == TOOL_CALL) tool_drop(r, i + strlen(closes[k]));
        if (v != TOOL_NO_CALL) return v == TOOL_CALL;
    }
    if (closes[0] && c == '<') return before_call(r);
    if (r->listed && c == ']') {
        r->listed = false;
        tool_drop(r, i + 1);
        return true;
    }
    bool llama = r->style == TOOLS_LLAMA;
    if (r->listed ? c == ',' : llama && (c == ';' || c == ',')) return next_call(r, i);
    if (!llama) return before_call(r);
    as_text(r, i + 1);
    return true;
}

static bool advance(tool_reader *r)
{
    if (r->plain) {
        as_text(r, r->raw.len);
        return false;
    }
    if (r->inside && r->tagged) return style_of(r)->dialect->read(r);
    if (r->inside && r->depth >= 0) {
        if (!pass_arguments(r)) return false;
        if (style_of(r)->dialect->framed) { /* nothing around them */
            tool_end_call(r, 0);
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
    tool_add(r, &r->raw, s, len);
    while (!r->failed && r->raw.len && !tool_reader_done(r) && advance(r)) {
    }
    /* What could not be looked at would be taken for text. */
    if (memory_failures() != failures) r->failed = true;
}

/* The answer was cut inside of a call whose arguments have not begun. */
static bool is_cut_call(const tool_reader *r)
{
    size_t at = scan_spaces(r, 0);
    if (r->ways & TOOLS_FORCED) return true;
    if (r->plain || at == r->raw.len) return false;
    bool headed = r->ways & TOOLS_GUIDED && r->style == TOOLS_LLAMA && (r->behind || !r->began);
    if (headed && r->behind && strchr(";,", r->raw.s[at])) at = scan_spaces(r, at + 1);
    if (headed && at < r->raw.len && tool_object_begins(r, at) == TOOL_CALL) return true;
    if (at == r->raw.len) return false;
    return r->style != TOOLS_NONE && scan_stands(r, at, style_of(r)->marker) == TOOL_CALL;
}

void tool_reader_finish(tool_reader *r)
{
    if (!r->call) return;
    bool junk = tool_reader_done(r) || r->inside ||
                (r->n_calls && scan_spaces(r, 0) == r->raw.len) || is_cut_call(r);
    if (!junk) as_text(r, r->raw.len);
    r->raw.len = 0;
}

bool tool_reader_done(const tool_reader *r)
{
    return r->ways & TOOLS_ONE && r->n_calls == 1 && r->call[0].whole;
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

/* ------------------------------------------------------------------ a custom tool's text -- */

/* One escape of a JSON string at s[0 .. len), decoded; its bytes; 0: it has no end yet. */
static size_t unescape(const char *s, size_t len, char out[4], size_t *n)
{
    static const char letters[] = "b\bf\fn\nr\rt\t";
    if (len < 2) return 0;
    *n = 1;
    out[0] = s[1];
    for (const char *l = letters; *l; l += 2)
        if (*l == s[1]) out[0] = l[1];
    if (s[1] != 'u') return 2;
    if (len < 6) return 0;
    int high = hex_value(s + 2, s + len, 4), low = -1;
    size_t used = 6;
    if (high >= 0xD800 && high < 0xDC00) {
        if (len < 12) return 0;
        if (s[6] == '\\' && s[7] == 'u') low = hex_value(s + 8, s + len, 4);
        if (low >= 0xDC00 && low < 0xE000) used = 12;
    }
    uint32_t c = high < 0 || (high >= 0xD800 && high < 0xE000) ? UTF8_BROKEN : (uint32_t)high;
    if (used == 12) c = 0x10000 + (((uint32_t)high - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
    *n = utf8_encode(c, out);
    return used;
}

/* As far as the text of {"input": text} has come. */
static bool take_text(tool_reader *r, tool_call *c, held_bytes *out)
{
    const char *s = r->args.s + c->at;
    size_t i = c->given;
    while (i < c->len && c->at_text < 2) {
        char byte[4] = {s[i]};
        size_t n = 1, used = 1;
        if (c->at_text == 1 && s[i] == '\\') used = unescape(s + i, c->len - i, byte, &n);
        if (used == 0) break;
        bool quote = s[i] == '"',
             begins = c->at_text == 0 && quote && i > 0 && strchr(": ", s[i - 1]);
        if (c->at_text == 1 && !quote && !held_add(out, byte, n)) return false;
        if (begins || (c->at_text == 1 && quote)) c->at_text++;
        i += used;
    }
    c->given = c->at_text == 2 ? c->len : i;
    return true;
}

bool tool_reader_take_news(tool_reader *r, tool_call *c, held_bytes *out)
{
    if (c->text) return take_text(r, c, out);
    bool ok = c->given == c->len || held_add(out, r->args.s + c->at + c->given, c->len - c->given);
    c->given = c->len;
    return ok;
}
