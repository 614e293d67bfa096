/* jinja_format.c -- str.format(), as Python's string.Formatter does it.
 *
 * Fields by place, by name or in turn, with attributes and items, !s and !r, and the
 * usual specifications of texts and numbers.  What is not here ("!a", "n", "c", "#")
 * is an error when it is met.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/chat/jinja_inside.h"

enum { WIDTH_MAX = 1 << 16, PRECISION_MAX = 60, NUMBER_MAX = 512 };

typedef struct {
    jinja_run *r;
    const jargs *args;
    int next; /* of the fields without a name; -1: fields have numbers */
    bool markup;
} formatter;

typedef struct {
    jchar fill;
    char align, sign, group, type; /* 0: not given */
    int width, precision;          /* -1: not given */
} spec;

static jv bad(formatter *f, const char *what)
{
    return jinja_fail(f->r, ERR_INPUT, "format(): %s", what);
}

/* ------------------------------------------------------------------------ specifications -- */

static jchar code_at(jv s, uint32_t i)
{
    return i < s.n ? JCHAR_CODE(s.s[i]) : 0;
}

static bool is_one_of(jchar c, const char *set)
{
    return c && c < 128 && strchr(set, (int)c);
}

static int number_at(jv s, uint32_t *i, int otherwise, int max)
{
    int n = 0;
    uint32_t from = *i;
    for (; code_at(s, *i) >= '0' && code_at(s, *i) <= '9' && n <= max; (*i)++)
        n = n * 10 + (int)(code_at(s, *i) - '0');
    return *i == from ? otherwise : n;
}

static bool read_spec(formatter *f, jv s, spec *out)
{
    uint32_t i = 0;
    *out = (spec){.fill = ' '};
    if (is_one_of(code_at(s, 1), "<>^=")) out->fill = s.s[i++];
    if (is_one_of(code_at(s, i), "<>^=")) out->align = (char)code_at(s, i++);
    if (is_one_of(code_at(s, i), "+- ")) out->sign = (char)code_at(s, i++);
    if (code_at(s, i) == '0') {
        i++;
        if (!out->align) {
            out->align = '0'; /* '=' for numbers, '<' for texts */
            out->fill = '0';
        }
    }
    out->width = number_at(s, &i, -1, WIDTH_MAX);
    if (is_one_of(code_at(s, i), ",_")) out->group = (char)code_at(s, i++);
    out->precision = -1;
    if (code_at(s, i) == '.') {
        i++;
        out->precision = number_at(s, &i, -2, WIDTH_MAX);
    }
    if (i < s.n && code_at(s, i) < 128) out->type = (char)code_at(s, i++);
    bool ok = i == s.n && out->width <= WIDTH_MAX && out->precision != -2;
    if (!ok) (void)bad(f, "a specification is not understood");
    return ok;
}

static void fill(formatter *f, jbuf *b, const spec *sp, int64_t n)
{
    for (int64_t i = 0; i < n && !f->r->rc; i++) jbuf_add(f->r, b, &sp->fill, 1);
}

/* `head` is a sign, before which or behind which the filling stands. */
static void padded(formatter *f, jbuf *b, const spec *sp, jv head, jv body, char align)
{
    int64_t missing = sp->width > 0 ? (int64_t)sp->width - head.n - body.n : 0;
    if (missing < 0) missing = 0;
    int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    fill(f, b, sp, left);
    jbuf_add(f->r, b, head.s, head.n);
    if (align == '=') fill(f, b, sp, missing);
    jbuf_add(f->r, b, body.s, body.n);
    if (align == '<' || align == '^') fill(f, b, sp, missing - left);
}

static void write_text(formatter *f, jbuf *b, jv s, const spec *sp)
{
    if ((sp->type && sp->type != 's') || sp->sign || sp->group || sp->align == '=') {
        (void)bad(f, "a specification does not fit a text");
        return;
    }
    if (sp->precision >= 0 && (uint32_t)sp->precision < s.n) s.n = (uint32_t)sp->precision;
    bool plain = !sp->align || sp->align == '0';
    padded(f, b, sp, jv_chars(NULL, 0), s, plain ? '<' : sp->align);
}

/* Digits in threes before the point. */
static void group_digits(char *text, size_t cap, char by)
{
    size_t whole = strspn(text, "0123456789"), n = strlen(text);
    for (size_t i = whole; i > 3 && n + 1 < cap; n++) {
        i -= 3;
        memmove(text + i + 1, text + i, n - i + 1);
        text[i] = by;
    }
}

/* A number without its sign; false: there is no such type here. */
static bool digits_of(jv v, const spec *sp, char out[NUMBER_MAX])
{
    int precision = sp->precision < 0 ? 6 : sp->precision;
    bool whole = v.kind == JV_INT || v.kind == JV_BOOL;
    uint64_t u = v.kind == JV_BOOL  ? v.b
                 : v.kind != JV_INT ? 0
                 : v.i < 0          ? 0 - (uint64_t)v.i
                                    : (uint64_t)v.i;
    double d = fabs(jv_number(v));
    switch (whole && !sp->type ? 'd' : sp->type) {
    case 'd': snprintf(out, NUMBER_MAX, "%llu", (unsigned long long)u); break;
    case 'x': snprintf(out, NUMBER_MAX, "%llx", (unsigned long long)u); break;
    case 'X': snprintf(out, NUMBER_MAX, "%llX", (unsigned long long)u); break;
    case 'f':
    case 'F': snprintf(out, NUMBER_MAX, "%.*f", precision, d); return true;
    case 'e': snprintf(out, NUMBER_MAX, "%.*e", precision, d); return true;
    case 'g': snprintf(out, NUMBER_MAX, "%.*g", precision, d); return true;
    case '%': snprintf(out, NUMBER_MAX, "%.*f%%", precision, d * 100); return true;
    default: return false;
    }
    return whole && sp->precision < 0;
}

static void write_number(formatter *f, jbuf *b, jv v, const spec *sp)
{
    char text[NUMBER_MAX] = "", sign[2] = "";
    bool minus = v.kind == JV_FLOAT ? signbit(v.f) : v.kind == JV_INT && v.i < 0;
    if (v.kind == JV_FLOAT && !sp->type && sp->precision < 0 && !sp->group) {
        jv s = jv_str(f->r, v); /* as it is printed */
        for (uint32_t i = minus; i < s.n && i + 1 < NUMBER_MAX; i++)
            text[i - minus] = (char)JCHAR_CODE(s.s[i]);
    } else if (sp->precision > PRECISION_MAX || (sp->group && is_one_of((jchar)sp->type, "xXeg")) ||
               !digits_of(v, sp, text)) {
        (void)bad(f, "a specification does not fit a number");
        return;
    }
    if (sp->group) group_digits(text, sizeof(text), sp->group);
    sign[0] = minus ? '-' : sp->sign == '-' ? 0 : sp->sign;
    if (sp->group && sp->align == '0' && sp->width > 0) { /* Python groups the zeros, too */
        (void)bad(f, "a specification does not fit a number");
        return;
    }
    padded(f, b, sp, jv_ascii(f->r, sign), jv_ascii(f->r, text),
           sp->align == '0' ? '='
           : sp->align      ? sp->align
                            : '>');
}

static jv formatted(formatter *f, jv v, jv how)
{
    jbuf b = {0};
    spec sp;
    if (how.n == 0) {
        jbuf_str(f->r, &b, v);
    } else if (!read_spec(f, how, &sp)) {
        return jv_undefined;
    } else if (v.kind == JV_STR && v.markup && f->markup) {
        return bad(f, "Unsupported format specification for Markup.");
    } else if (v.kind == JV_STR) {
        write_text(f, &b, v, &sp);
    } else if (jv_is_number(v)) {
        write_number(f, &b, v, &sp);
    } else {
        return bad(f, "a specification does not fit a value");
    }
    return jbuf_value(&b);
}

/* ---------------------------------------------------------------------------------- fields -- */

static bool whole_number(jv s, int64_t *out)
{
    *out = 0;
    for (uint32_t i = 0; i < s.n; i++) {
        jchar c = JCHAR_CODE(s.s[i]);
        if (c < '0' || c > '9' || i > 8) return false;
        *out = *out * 10 + (int64_t)(c - '0');
    }
    return s.n > 0;
}

static jv by_place(formatter *f, int64_t i)
{
    return i < f->args->n_pos ? f->args->pos[i] : bad(f, "there are not so many arguments");
}

static jv first_of(formatter *f, jv name)
{
    int64_t i;
    if (name.n == 0 || whole_number(name, &i)) {
        bool turn = name.n == 0, mixed = turn ? f->next < 0 : f->next > 0;
        if (mixed) return bad(f, "fields with and without numbers");
        if (!turn) f->next = -1;
        return by_place(f, turn ? f->next++ : i);
    }
    for (int k = 0; k < f->args->n_named; k++) {
        if (jv_is(name, f->args->names[k])) return f->args->named[k];
    }
    return bad(f, "a field names no argument");
}

/* "0", "name", "a.b[c]" */
static jv field(formatter *f, jv name)
{
    uint32_t at = 0;
    while (at < name.n && !is_one_of(code_at(name, at), ".[")) at++;
    jv v = first_of(f, jv_substring(name, 0, at));
    while (at < name.n && !f->r->rc) {
        bool item = code_at(name, at++) == '[';
        uint32_t from = at;
        while (at < name.n && !is_one_of(code_at(name, at), item ? "]" : ".[")) at++;
        jv key = jv_substring(name, from, at);
        int64_t i;
        if (key.n == 0 || (item && at == name.n)) return bad(f, "a field's name is not understood");
        if (!item)
            v = jinja_attr(f->r, v, key);
        else
            v = jinja_item_of(f->r, v, whole_number(key, &i) ? jv_int(i) : key);
        at += item;
    }
    return v;
}

static jv text(formatter *f, jv how, int depth);

/* Behind "{": the field up to its "}"; *i is behind that. */
static jv replacement(formatter *f, jv how, uint32_t *i, int depth)
{
    uint32_t from = *i, at = from, open = 0;
    bool item = false;
    for (; at < how.n && (item || !is_one_of(code_at(how, at), "!:}{")); at++)
        item = code_at(how, at) == '[' || (item && code_at(how, at) != ']');
    jv v = field(f, jv_substring(how, from, at)), by = jv_chars(NULL, 0);
    jchar convert = 0;
    if (code_at(how, at) == '!') {
        convert = code_at(how, at + 1);
        at += 2;
        if (!is_one_of(convert, "sr") || !is_one_of(code_at(how, at), ":}"))
            return bad(f, "a conversion is not understood");
    }
    if (code_at(how, at) == ':') {
        from = ++at;
        for (; at < how.n && (open || code_at(how, at) != '}'); at++)
            open += (code_at(how, at) == '{') - (uint32_t)(code_at(how, at) == '}');
        by = jv_substring(how, from, at);
        if (depth == 0) by = text(f, by, 1);
    }
    if (code_at(how, at) != '}') return bad(f, "a field has no end");
    *i = at + 1;
    jbuf b = {0};
    if (convert == 'r') jbuf_repr(f->r, &b, v);
    if (convert == 's') jbuf_str(f->r, &b, v);
    if (convert) v = jbuf_value(&b);
    jv out = formatted(f, v, by);
    return f->markup && !(v.kind == JV_STR && v.markup) ? jv_escaped(f->r, out) : out;
}

static jv text(formatter *f, jv how, int depth)
{
    jbuf b = {0};
    for (uint32_t i = 0; i < how.n && !f->r->rc;) {
        jchar c = code_at(how, i);
        if (!is_one_of(c, "{}")) {
            jbuf_add(f->r, &b, how.s + i++, 1);
        } else if (code_at(how, i + 1) == c) {
            jbuf_add(f->r, &b, how.s + i, 1);
            i += 2;
        } else if (c == '}') {
            return bad(f, "Single '}' encountered in format string");
        } else {
            i++;
            jv piece = replacement(f, how, &i, depth);
            if (!f->r->rc) jbuf_add(f->r, &b, piece.s, piece.n);
        }
    }
    return f->r->rc ? jv_undefined : jbuf_value(&b);
}

jv jinja_format(jinja_run *r, jv how, const jargs *args)
{
    formatter f = {.r = r, .args = args, .markup = how.markup};
    return jv_marked(text(&f, how, 0), how.markup);
}
