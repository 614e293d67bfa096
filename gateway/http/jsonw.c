/* jsonw.c -- builds JSON in a text that grows: commas, escapes, and whether memory was there.
 *
 * One flag, `comma`, is all the state of the nesting: it is off behind an opening bracket and on
 * behind a value or a closing one. Memory that is short sets `failed`, and all later calls do
 * nothing, so a caller looks once, at the end.
 *
 * A string reserves six bytes for each of its own before it is escaped (\u001f is the longest),
 * so the loop needs no check. Bytes from 0x80 on go as they are: text is valid UTF-8 here.
 */
#include "gateway/http/jsonw.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void jsonw_init(jsonw *w)
{
    *w = (jsonw){0};
}

void jsonw_init_fixed(jsonw *w, char *text, size_t cap)
{
    assert(text && cap > 0);
    *w = (jsonw){.text = text, .cap = cap, .fixed = true};
}

void jsonw_clear(jsonw *w)
{
    if (!w->fixed) free(w->text);
    jsonw_init(w);
}

void jsonw_reset(jsonw *w)
{
    w->len = 0;
    w->comma = false;
    w->failed = false;
}

static bool reserve(jsonw *w, size_t more)
{
    assert(w->len <= w->cap);
    if (w->failed) return false;
    if (more < w->cap - w->len) return true; /* strictly: room for the NUL */
    if (w->fixed) {
        w->failed = true;
        return false;
    }
    size_t cap = w->cap ? w->cap : 512;
    while (cap - w->len <= more) {
        if (cap > SIZE_MAX / 2) {
            w->failed = true;
            return false;
        }
        cap *= 2;
    }
    char *p = realloc(w->text, cap);
    if (!p) {
        w->failed = true;
        return false;
    }
    w->text = p;
    w->cap = cap;
    return true;
}

void jsonw_reserve(jsonw *w, size_t bytes)
{
    (void)reserve(w, bytes);
}

void jsonw_raw(jsonw *w, const char *s, size_t len)
{
    if (!reserve(w, len)) return;
    memcpy(w->text + w->len, s, len);
    w->len += len;
    w->text[w->len] = 0;
}

static void put_escaped(jsonw *w, const char *s, size_t len)
{
    if (!reserve(w, 6 * len + 2)) return;
    char *p = w->text + w->len;
    *p++ = '"';
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        static const char short_for[] = "btn?fr"; /* \b \t \n . \f \r are 8 to 13 */
        if (c == '"' || c == '\\') {
            *p++ = '\\';
            *p++ = (char)c;
        } else if (c >= 8 && c <= 13 && c != 11) {
            *p++ = '\\';
            *p++ = short_for[c - 8];
        } else if (c < 0x20 || c == 0x7f) {
            p += sprintf(p, "\\u%04x", (unsigned)c);
        } else {
            *p++ = (char)c;
        }
    }
    *p++ = '"';
    *p = 0;
    w->len = (size_t)(p - w->text);
    assert(w->len < w->cap); /* six bytes for each were reserved */
}

static void begin_value(jsonw *w, const char *name)
{
    if (w->comma) jsonw_raw(w, ",", 1);
    w->comma = true;
    if (name) {
        put_escaped(w, name, strlen(name));
        jsonw_raw(w, ":", 1);
    }
}

void jsonw_open(jsonw *w, const char *name, char bracket)
{
    assert(bracket == '{' || bracket == '[');
    begin_value(w, name);
    jsonw_raw(w, &bracket, 1);
    w->comma = false;
}

void jsonw_close(jsonw *w, char bracket)
{
    assert(bracket == '}' || bracket == ']');
    jsonw_raw(w, &bracket, 1);
    w->comma = true;
}

void jsonw_strn(jsonw *w, const char *name, const char *s, size_t len)
{
    begin_value(w, name);
    put_escaped(w, s, len);
}

void jsonw_json(jsonw *w, const char *name, const char *text, size_t len)
{
    begin_value(w, name);
    jsonw_raw(w, text ? text : "null", text ? len : 4);
}

void jsonw_str(jsonw *w, const char *name, const char *s)
{
    if (!s) {
        jsonw_null(w, name);
        return;
    }
    jsonw_strn(w, name, s, strlen(s));
}

void jsonw_int(jsonw *w, const char *name, int64_t v)
{
    char buf[24];
    int n = snprintf(buf, sizeof(buf), "%lld", (long long)v);
    begin_value(w, name);
    jsonw_raw(w, buf, (size_t)n);
}

void jsonw_num(jsonw *w, const char *name, double v)
{
    if (!isfinite(v)) {
        jsonw_null(w, name);
        return;
    }
    char buf[40];
    int n = snprintf(buf, sizeof(buf), "%.9g", v);
    begin_value(w, name);
    jsonw_raw(w, buf, (size_t)n);
}

void jsonw_bool(jsonw *w, const char *name, bool v)
{
    begin_value(w, name);
    jsonw_raw(w, v ? "true" : "false", v ? 4 : 5);
}

void jsonw_null(jsonw *w, const char *name)
{
    begin_value(w, name);
    jsonw_raw(w, "null", 4);
}
