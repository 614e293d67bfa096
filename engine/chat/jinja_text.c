/* jinja_text.c -- Jinja's methods of strings, as Python has them, on code points.
 *
 * Case mapping uses the C library's tables in a C.UTF-8 locale of its own, independent of the
 * process's: one code point to one, so letters that Python maps to several (the German sharp s) are
 * unchanged.  White space is Python's set, which includes U+001C to U+001F.
 *
 * Functions that return part of a text return a pointer into it, without a copy; texts are
 * immutable.  The mark of foreign characters (JCHAR_FOREIGN) passes through all of them.
 */
#include <locale.h>
#include <pthread.h>
#include <string.h>
#include <wctype.h>

#include "engine/chat/jinja_inside.h"
#include "engine/text/unicode/unicode.h"

/* For case and printability of code points, independent of the process's locale: made once, never
 * freed. */
static locale_t unicode_locale;
static pthread_once_t unicode_once = PTHREAD_ONCE_INIT;

static void make_locale(void)
{
    unicode_locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
}

static locale_t unicode(void)
{
    (void)pthread_once(&unicode_once, make_locale);
    return unicode_locale;
}

bool jchar_is_space(jchar c)
{
    c = JCHAR_CODE(c);
    return unicode_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

jchar jchar_upper(jchar c)
{
    jchar code = JCHAR_CODE(c), mark = c & JCHAR_FOREIGN;
    if (code < 128) return (code >= 'a' && code <= 'z' ? code - 32 : code) | mark;
    return (unicode() ? (jchar)towupper_l((wint_t)code, unicode()) : code) | mark;
}

jchar jchar_lower(jchar c)
{
    jchar code = JCHAR_CODE(c), mark = c & JCHAR_FOREIGN;
    if (code < 128) return (code >= 'A' && code <= 'Z' ? code + 32 : code) | mark;
    return (unicode() ? (jchar)towlower_l((wint_t)code, unicode()) : code) | mark;
}

bool jchar_is_printable(jchar c)
{
    static const unicode_range unseen[] = {/* formatting, private use */
                                           {0xAD, 0xAD},       {0x600, 0x605},     {0x61C, 0x61C},
                                           {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x180E, 0x180E},
                                           {0x200B, 0x200F},   {0x202A, 0x202E},   {0x2060, 0x206F},
                                           {0xE000, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},
                                           {0x1D173, 0x1D17A}, {0xE0000, 0x10FFFF}};
    c = JCHAR_CODE(c);
    if (c < 128) return c >= 0x20 && c < 0x7F;
    if (unicode_is_space(c)) return false;
    for (size_t i = 0; i < sizeof(unseen) / sizeof(unseen[0]); i++) {
        if (c >= unseen[i].first && c <= unseen[i].last) return false;
    }
    return !unicode() || iswprint_l((wint_t)c, unicode());
}

static bool is_alpha(jchar c)
{
    c = JCHAR_CODE(c);
    if (c < 128) return (c | 32) >= 'a' && (c | 32) <= 'z';
    return unicode_is_letter(c);
}

static bool is_digit(jchar c)
{
    c = JCHAR_CODE(c);
    return c < 128 ? c >= '0' && c <= '9' : unicode_is_number(c);
}

jv jv_substring(jv s, uint32_t from, uint32_t to)
{
    return jv_marked(jv_chars(s.s + from, to - from), s.markup);
}

/* ------------------------------------------------------------------------- found -- */

static bool same(const jchar *a, const jchar *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (JCHAR_CODE(a[i]) != JCHAR_CODE(b[i])) return false;
    }
    return true;
}

int64_t jv_search(jv s, jv what, uint32_t from)
{
    for (uint32_t i = from; i <= s.n && what.n <= s.n - i; i++) {
        if (same(s.s + i, what.s, what.n)) return i;
    }
    return -1;
}

static int64_t search_back(jv s, jv what, uint32_t to)
{
    for (int64_t i = (int64_t)to - what.n; i >= 0; i--) {
        if (same(s.s + i, what.s, what.n)) return i;
    }
    return -1;
}

static bool starts(jv s, jv what)
{
    return what.n <= s.n && same(s.s, what.s, what.n);
}

static bool ends(jv s, jv what)
{
    return what.n <= s.n && same(s.s + s.n - what.n, what.s, what.n);
}

static bool in_set(jchar c, jv chars)
{
    if (chars.kind != JV_STR) return jchar_is_space(c);
    for (uint32_t i = 0; i < chars.n; i++) {
        if (JCHAR_CODE(chars.s[i]) == JCHAR_CODE(c)) return true;
    }
    return false;
}

jv jv_strip(jv s, jv chars, bool left, bool right)
{
    uint32_t from = 0, to = s.n;
    while (left && from < to && in_set(s.s[from], chars)) from++;
    while (right && to > from && in_set(s.s[to - 1], chars)) to--;
    return jv_substring(s, from, to);
}

/* ----------------------------------------------------------------------- changed -- */

jv jv_escaped(jinja_run *r, jv s)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    jbuf b = {0};
    if (s.markup) return s;
    for (uint32_t i = 0; i < s.n && !r->rc; i++) {
        jchar code = JCHAR_CODE(s.s[i]);
        const char *at = code && code < 128 ? strchr(from, (int)code) : NULL;
        if (!at) jbuf_add(r, &b, s.s + i, 1);
        for (const char *p = at ? to[at - from] : ""; *p; p++) {
            jchar out = (jchar)(unsigned char)*p | (s.s[i] & JCHAR_FOREIGN);
            jbuf_add(r, &b, &out, 1);
        }
    }
    return jv_marked(jbuf_value(&b), true);
}

/* What comes into a Markup by one of its methods. */
static jv beside(jinja_run *r, jv self, jv other)
{
    return self.markup ? jv_escaped(r, other) : other;
}

jv jv_replace(jinja_run *r, jv s, jv old, jv with, int64_t count)
{
    jbuf b = {0};
    uint32_t at = 0;
    if (!jinja_step(r, s.n / 16)) return jv_undefined;
    while (count != 0 && !r->rc) {
        int64_t next = jv_search(s, old, at);
        if (next < 0) break;
        if (old.n == 0) { /* before each character and at the end */
            jbuf_add(r, &b, with.s, with.n);
            if (at >= s.n) return jbuf_value(&b);
            jbuf_add(r, &b, s.s + at++, 1);
        } else {
            jbuf_add(r, &b, s.s + at, (size_t)next - at);
            jbuf_add(r, &b, with.s, with.n);
            at = (uint32_t)next + old.n;
        }
        if (count > 0) count--;
    }
    jbuf_add(r, &b, s.s + at, s.n - at);
    return jbuf_value(&b);
}

typedef enum { UPPER, LOWER, TITLE, TITLE_JINJA, CAPITALIZE, SWAP } case_way;

static jchar change_case(jchar c, case_way way, bool first)
{
    switch (way) {
    case UPPER: return jchar_upper(c);
    case LOWER: return jchar_lower(c);
    case SWAP: return jchar_upper(c) != c ? jchar_upper(c) : jchar_lower(c);
    default: return first ? jchar_upper(c) : jchar_lower(c);
    }
}

static jv with_case(jinja_run *r, jv s, case_way way)
{
    static const char breaks[] =
        "-({[<"; /* Jinja's filter "title": words begin after these and after spaces */
    jbuf b = {0};
    bool first = true;
    for (uint32_t i = 0; i < s.n && !r->rc; i++) {
        jchar c = change_case(s.s[i], way, first), code = JCHAR_CODE(s.s[i]);
        jbuf_add(r, &b, &c, 1);
        if (way == TITLE)
            first = !is_alpha(code);
        else if (way == TITLE_JINJA)
            first = jchar_is_space(code) || (code && code < 128 && strchr(breaks, (int)code));
        else
            first = false;
    }
    return jbuf_value(&b);
}

jv jv_upper(jinja_run *r, jv s)
{
    return jv_marked(with_case(r, s, UPPER), s.markup);
}

jv jv_lower(jinja_run *r, jv s)
{
    return jv_marked(with_case(r, s, LOWER), s.markup);
}

jv jv_title(jinja_run *r, jv s, bool words_by_jinja)
{
    return with_case(r, s, words_by_jinja ? TITLE_JINJA : TITLE);
}

jv jv_capitalize(jinja_run *r, jv s)
{
    return jv_marked(with_case(r, s, CAPITALIZE), s.markup);
}

static bool is_line_end(jchar c)
{
    c = JCHAR_CODE(c);
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

jv jv_lines(jinja_run *r, jv s, bool keep)
{
    jv out = jv_list(r, JV_LIST, 0);
    uint32_t from = 0;
    while (from < s.n && !r->rc) {
        uint32_t to = from, next;
        while (to < s.n && !is_line_end(s.s[to])) to++;
        next = to + (to < s.n);
        if (to + 1 < s.n && JCHAR_CODE(s.s[to]) == '\r' && JCHAR_CODE(s.s[to + 1]) == '\n') next++;
        if (!jv_push(r, out, jv_substring(s, from, keep ? next : to))) break;
        from = next;
    }
    return out;
}

/* ----------------------------------------------------------------------- methods -- */

static jv wrong(const jinja_call *c)
{
    return jinja_fail(c->r, ERR_INPUT, "%s(): wrong arguments", c->name);
}

static jv strip_method(const jinja_call *c)
{
    jv chars = jinja_arg(c, 0, "", jv_none);
    if (chars.kind != JV_NONE && chars.kind != JV_STR) return wrong(c);
    return jv_strip(c->v, chars, c->name[0] != 'r', c->name[0] != 'l');
}

static bool matches_any(const jinja_call *c, jv what, bool (*fits)(jv s, jv what))
{
    if (what.kind == JV_STR) return fits(c->v, what);
    if (what.kind != JV_TUPLE) {
        (void)wrong(c);
        return false;
    }
    for (uint32_t i = 0; i < what.list->n; i++) {
        if (what.list->item[i].kind == JV_STR && fits(c->v, what.list->item[i])) return true;
    }
    return false;
}

static jv starts_method(const jinja_call *c)
{
    return jv_bool(matches_any(c, jinja_arg(c, 0, "", jv_none), c->name[0] == 's' ? starts : ends));
}

static jv remove_method(const jinja_call *c)
{
    jv what = jinja_arg(c, 0, "", jv_none), s = c->v;
    if (what.kind != JV_STR) return wrong(c);
    if (c->name[6] == 'p') return starts(s, what) ? jv_substring(s, what.n, s.n) : s;
    return ends(s, what) ? jv_substring(s, 0, s.n - what.n) : s;
}

static jv split_spaces(const jinja_call *c, int64_t most)
{
    jv s = c->v, out = jv_list(c->r, JV_LIST, 0);
    uint32_t at = 0;
    for (int64_t k = 0; !c->r->rc; k++) {
        while (at < s.n && jchar_is_space(s.s[at])) at++;
        if (at >= s.n) break;
        uint32_t to = at;
        if (k == most) {
            (void)jv_push(c->r, out, jv_substring(s, at, s.n));
            break;
        }
        while (to < s.n && !jchar_is_space(s.s[to])) to++;
        (void)jv_push(c->r, out, jv_substring(s, at, to));
        at = to;
    }
    return out;
}

static jv split_method(const jinja_call *c)
{
    jv s = c->v, by = jinja_arg(c, 0, "sep", jv_none),
       count = jinja_arg(c, 1, "maxsplit", jv_int(-1));
    bool back = c->name[0] == 'r';
    if (count.kind != JV_INT || (by.kind != JV_NONE && (by.kind != JV_STR || by.n == 0)))
        return wrong(c);
    if (!jinja_step(c->r, s.n / 16)) return jv_undefined;
    if (by.kind == JV_NONE && !back) return split_spaces(c, count.i);
    if (by.kind == JV_NONE && count.i < 0) return split_spaces(c, -1);
    if (by.kind == JV_NONE) return wrong(c);
    jv out = jv_list(c->r, JV_LIST, 0);
    uint32_t from = 0, to = s.n;
    for (int64_t k = 0; k != count.i && !c->r->rc; k++) {
        int64_t at = back ? search_back(s, by, to) : jv_search(s, by, from);
        if (at < 0) break;
        if (back) {
            (void)jv_push(c->r, out, jv_substring(s, (uint32_t)at + by.n, to));
            to = (uint32_t)at;
        } else {
            (void)jv_push(c->r, out, jv_substring(s, from, (uint32_t)at));
            from = (uint32_t)at + by.n;
        }
    }
    (void)jv_push(c->r, out, jv_substring(s, from, to));
    for (uint32_t i = 0; back && !c->r->rc && i < out.list->n / 2; i++) {
        jv *a = &out.list->item[i], *z = &out.list->item[out.list->n - 1 - i], keep = *a;
        *a = *z;
        *z = keep;
    }
    return out;
}

static jv partition_method(const jinja_call *c)
{
    jv s = c->v, by = jinja_arg(c, 0, "", jv_none), out = jv_list(c->r, JV_TUPLE, 3);
    if (by.kind != JV_STR || by.n == 0) return wrong(c);
    bool back = c->name[0] == 'r';
    int64_t at = back ? search_back(s, by, s.n) : jv_search(s, by, 0);
    uint32_t i = (uint32_t)at;
    jv none = jv_substring(s, 0, 0);
    jv parts[3] = {s, none, none};
    if (at >= 0) {
        parts[0] = jv_substring(s, 0, i);
        parts[1] = jv_substring(s, i, i + by.n);
        parts[2] = jv_substring(s, i + by.n, s.n);
    } else if (back) {
        parts[0] = none;
        parts[2] = s;
    }
    for (int k = 0; k < 3; k++) (void)jv_push(c->r, out, parts[k]);
    return out;
}

static jv replace_method(const jinja_call *c)
{
    jv old = jinja_arg(c, 0, "", jv_none), with = jinja_arg(c, 1, "", jv_none);
    jv count = jinja_arg(c, 2, "count", jv_int(-1));
    if (old.kind != JV_STR || with.kind != JV_STR || count.kind != JV_INT) return wrong(c);
    jv out = jv_replace(c->r, c->v, old, beside(c->r, c->v, with), count.i);
    return jv_marked(out, c->v.markup);
}

static jv case_method(const jinja_call *c)
{
    static const struct {
        const char *name;
        case_way way;
    } ways[] = {{"upper", UPPER}, {"lower", LOWER},           {"casefold", LOWER},
                {"title", TITLE}, {"capitalize", CAPITALIZE}, {"swapcase", SWAP}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        if (strcmp(ways[i].name, c->name) == 0)
            return jv_marked(with_case(c->r, c->v, ways[i].way), c->v.markup);
    }
    return wrong(c);
}

static jv find_method(const jinja_call *c)
{
    jv what = jinja_arg(c, 0, "", jv_none), from = jinja_arg(c, 1, "", jv_int(0));
    if (what.kind != JV_STR || from.kind != JV_INT) return wrong(c);
    jv s = c->v;
    int64_t start = from.i < 0 ? from.i + s.n : from.i;
    if (start < 0) start = 0;
    bool back = c->name[0] == 'r';
    int64_t at = start > s.n ? -1
                 : back      ? search_back(s, what, s.n)
                             : jv_search(s, what, (uint32_t)start);
    if (at < start) at = -1;
    bool must = strcmp(c->name, "index") == 0 || strcmp(c->name, "rindex") == 0;
    if (at < 0 && must) return jinja_fail(c->r, ERR_INPUT, "substring not found");
    return jv_int(at);
}

static jv count_method(const jinja_call *c)
{
    jv what = jinja_arg(c, 0, "", jv_none), s = c->v;
    if (what.kind != JV_STR) return wrong(c);
    if (what.n == 0) return jv_int((int64_t)s.n + 1);
    int64_t n = 0, at = 0;
    while ((at = jv_search(s, what, (uint32_t)at)) >= 0) {
        n++;
        at += what.n;
    }
    return jv_int(n);
}

static jv join_method(const jinja_call *c)
{
    const jv *item;
    uint32_t n;
    jbuf b = {0};
    if (!jv_items(c->r, jinja_arg(c, 0, "", jv_none), &item, &n)) return jv_undefined;
    for (uint32_t i = 0; i < n; i++) {
        if (item[i].kind != JV_STR) return wrong(c);
        jv text = beside(c->r, c->v, item[i]);
        if (i) jbuf_add(c->r, &b, c->v.s, c->v.n);
        jbuf_add(c->r, &b, text.s, text.n);
    }
    return jv_marked(jbuf_value(&b), c->v.markup);
}

static bool is_upper(jchar c)
{
    return jchar_lower(c) != c;
}

static bool is_lower(jchar c)
{
    return jchar_upper(c) != c;
}

static bool is_alnum(jchar c)
{
    return is_alpha(c) || is_digit(c);
}

static jv is_method(const jinja_call *c)
{
    static const struct {
        const char *name;
        bool (*fits)(jchar c), (*never)(jchar c); /* never: some of the first, none of these */
    } tests[] = {{"isdigit", is_digit, NULL},     {"isdecimal", is_digit, NULL},
                 {"isnumeric", is_digit, NULL},   {"isalpha", is_alpha, NULL},
                 {"isalnum", is_alnum, NULL},     {"isspace", jchar_is_space, NULL},
                 {"isupper", is_upper, is_lower}, {"islower", is_lower, is_upper}};
    for (size_t k = 0; k < sizeof(tests) / sizeof(tests[0]); k++) {
        if (strcmp(tests[k].name, c->name) != 0) continue;
        bool any = false, all = c->v.n > 0, never = true;
        for (uint32_t i = 0; i < c->v.n; i++) {
            bool fits = tests[k].fits(c->v.s[i]);
            any |= fits;
            all &= fits;
            if (tests[k].never) never &= !tests[k].never(c->v.s[i]);
        }
        return jv_bool(tests[k].never ? any && never : all);
    }
    return wrong(c);
}

static jv pad_method(const jinja_call *c)
{
    jv width = jinja_arg(c, 0, "", jv_none), fill = jinja_arg(c, 1, "", jv_none), s = c->v;
    jchar with = c->name[0] == 'z' ? '0' : fill.kind == JV_STR && fill.n == 1 ? fill.s[0] : ' ';
    if (width.kind != JV_INT || width.i > (1 << 20)) return wrong(c);
    int64_t missing = width.i > s.n ? width.i - s.n : 0, left = 0;
    if (c->name[0] == 'r' || c->name[0] == 'z') left = missing;
    if (c->name[0] == 'c') left = missing / 2 + (missing & width.i & 1);
    jbuf b = {0};
    bool sign =
        c->name[0] == 'z' && s.n && (JCHAR_CODE(s.s[0]) == '-' || JCHAR_CODE(s.s[0]) == '+');
    if (sign) jbuf_add(c->r, &b, s.s, 1);
    for (int64_t i = 0; i < left && !c->r->rc; i++) jbuf_add(c->r, &b, &with, 1);
    jbuf_add(c->r, &b, s.s + sign, s.n - sign);
    for (int64_t i = left; i < missing && !c->r->rc; i++) jbuf_add(c->r, &b, &with, 1);
    return jv_marked(jbuf_value(&b), s.markup);
}

static jv format_method(const jinja_call *c)
{
    return jinja_format(c->r, c->v, c->args);
}

static jv lines_method(const jinja_call *c)
{
    return jv_lines(c->r, c->v, jv_true(jinja_arg(c, 0, "keepends", jv_none)));
}

static jv get_method(const jinja_call *c)
{
    jv key;
    if (!jargs_take(c->args, 0, "", &key)) return wrong(c);
    const jv *v = jv_find(c->r, c->v, key);
    return v ? *v : jinja_arg(c, 1, "", jv_none);
}

static jv items_method(const jinja_call *c)
{
    const jmap *m = c->v.map;
    jv out = jv_list(c->r, JV_LIST, m->n);
    for (uint32_t i = 0; i < m->n && !c->r->rc; i++) {
        jv v = c->name[0] == 'k'   ? m->key[i]
               : c->name[0] == 'v' ? m->val[i]
                                   : jv_pair(c->r, m->key[i], m->val[i]);
        (void)jv_push(c->r, out, v);
    }
    return out;
}

static jv copy_method(const jinja_call *c)
{
    return c->v; /* nothing is changed in place */
}

static jv place_method(const jinja_call *c)
{
    jv what;
    int64_t n = 0;
    if (!jargs_take(c->args, 0, "", &what)) return wrong(c);
    for (uint32_t i = 0; i < c->v.list->n && jinja_step(c->r, 1); i++) {
        bool is = jv_equal(c->r, c->v.list->item[i], what);
        if (is && c->name[0] == 'i') return jv_int(i);
        n += is;
    }
    if (c->name[0] == 'i') return jinja_fail(c->r, ERR_INPUT, "the value is not in the list");
    return jv_int(n);
}

typedef struct {
    const char *name;
    jv (*run)(const jinja_call *c);
} method;

static const method text_methods[] = {{"strip", strip_method},
                                      {"lstrip", strip_method},
                                      {"rstrip", strip_method},
                                      {"startswith", starts_method},
                                      {"endswith", starts_method},
                                      {"removeprefix", remove_method},
                                      {"removesuffix", remove_method},
                                      {"split", split_method},
                                      {"rsplit", split_method},
                                      {"partition", partition_method},
                                      {"rpartition", partition_method},
                                      {"replace", replace_method},
                                      {"upper", case_method},
                                      {"lower", case_method},
                                      {"casefold", case_method},
                                      {"title", case_method},
                                      {"capitalize", case_method},
                                      {"swapcase", case_method},
                                      {"find", find_method},
                                      {"rfind", find_method},
                                      {"index", find_method},
                                      {"rindex", find_method},
                                      {"count", count_method},
                                      {"join", join_method},
                                      {"isdigit", is_method},
                                      {"isdecimal", is_method},
                                      {"isnumeric", is_method},
                                      {"isalpha", is_method},
                                      {"isalnum", is_method},
                                      {"isspace", is_method},
                                      {"isupper", is_method},
                                      {"islower", is_method},
                                      {"zfill", pad_method},
                                      {"ljust", pad_method},
                                      {"rjust", pad_method},
                                      {"center", pad_method},
                                      {"splitlines", lines_method},
                                      {"format", format_method},
                                      {NULL, NULL}};
static const method map_methods[] = {{"get", get_method},    {"items", items_method},
                                     {"keys", items_method}, {"values", items_method},
                                     {"copy", copy_method},  {NULL, NULL}};
static const method list_methods[] = {
    {"index", place_method}, {"count", place_method}, {"copy", copy_method}, {NULL, NULL}};

static const method *find_method_of(jv self, const char *name)
{
    const method *m = self.kind == JV_STR                             ? text_methods
                      : self.kind == JV_MAP                           ? map_methods
                      : self.kind == JV_LIST || self.kind == JV_TUPLE ? list_methods
                                                                      : NULL;
    for (; m && m->name; m++) {
        if (strcmp(m->name, name) == 0) return m;
    }
    return NULL;
}

bool jv_has_method(jv self, const char *name)
{
    return find_method_of(self, name) != NULL;
}

jv jv_call_method(jinja_run *r, const jmethod *m, const jargs *args)
{
    const method *found = find_method_of(m->self, m->name);
    jinja_call c = {r, m->self, args, m->name};
    return r->rc ? jv_undefined : found->run(&c);
}
