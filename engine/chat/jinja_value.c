/* jinja_value.c -- values of Jinja: constructors, comparison, iteration, text (str, repr) and JSON,
 * with the results of Python.
 *
 * Values are small structs, copied freely; lists, maps and texts are in the run's arena and are
 * never freed one by one.  A text is an array of code points, one uint32_t each, so indices and
 * slices are those of Python; bit 31 marks characters that came from a message and not from the
 * template (JCHAR_FOREIGN).  Every function that copies or escapes characters keeps the mark;
 * comparisons ignore it.
 *
 * Maps keep insertion order and are searched linearly, because those of templates are small; a
 * search counts as steps by their size.
 *
 * Nesting is bounded by NEST_MAX (enter()), so a deeply nested message can't exhaust the C stack.
 * Integers beyond 64 bits from JSON are kept as digits (JV_LONG).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/chat/jinja_inside.h"

enum { NEST_MAX = 100 };

const jv jv_undefined = {.kind = JV_UNDEFINED}, jv_none = {.kind = JV_NONE};

/* -------------------------------------------------------------------------- made -- */

jv jv_bool(bool b)
{
    return (jv){.kind = JV_BOOL, .b = b};
}

jv jv_int(int64_t i)
{
    return (jv){.kind = JV_INT, .i = i};
}

jv jv_float(double f)
{
    return (jv){.kind = JV_FLOAT, .f = f};
}

jv jv_chars(const jchar *s, size_t n)
{
    /* Pieces are taken from any text, also from one without characters. */
    static const jchar nothing[1];
    return (jv){.kind = JV_STR, .n = (uint32_t)n, .s = s ? s : nothing};
}

jv jv_marked(jv s, bool markup)
{
    s.markup = s.kind == JV_STR && markup;
    return s;
}

jv jv_utf8(arena *mem, const char *s, size_t len, bool foreign)
{
    jchar *out = len < UINT32_MAX ? arena_calloc(mem, len + 1, sizeof(*out)) : NULL;
    if (!out) return jv_undefined;
    size_t n = 0, used;
    for (size_t i = 0; i < len; i += used) {
        out[n++] = utf8_decode(s + i, len - i, &used) | (foreign ? JCHAR_FOREIGN : 0);
    }
    return jv_chars(out, n);
}

jv jv_ascii(jinja_run *r, const char *s)
{
    jv v = r->rc ? jv_undefined : jv_utf8(&r->mem, s, strlen(s), false);
    return v.kind == JV_STR ? v : jinja_no_memory(r);
}

jv jv_list(jinja_run *r, jv_kind kind, size_t room)
{
    jlist *l = r->rc ? NULL : arena_calloc(&r->mem, 1, sizeof(*l));
    if (l && room) l->item = arena_calloc(&r->mem, room, sizeof(*l->item));
    if (!l || (room && !l->item)) return jinja_no_memory(r);
    l->cap = (uint32_t)room;
    return (jv){.kind = kind, .list = l};
}

bool jv_push(jinja_run *r, jv list, jv v)
{
    if (r->rc) return false;
    jlist *l = list.list;
    if (l->n == l->cap) {
        uint32_t cap = 2 * l->cap + 4;
        jv *p = arena_calloc(&r->mem, cap, sizeof(*p));
        if (!p) {
            (void)jinja_no_memory(r);
            return false;
        }
        if (l->n) memcpy(p, l->item, l->n * sizeof(*p));
        l->item = p;
        l->cap = cap;
    }
    l->item[l->n++] = v;
    return true;
}

jv jv_pair(jinja_run *r, jv a, jv b)
{
    jv t = jv_list(r, JV_TUPLE, 2);
    (void)(jv_push(r, t, a) && jv_push(r, t, b));
    return t;
}

jv jv_map(jinja_run *r, size_t room)
{
    jmap *m = r->rc ? NULL : arena_calloc(&r->mem, 1, sizeof(*m));
    if (m && room) {
        m->key = arena_calloc(&r->mem, room, sizeof(*m->key));
        m->val = arena_calloc(&r->mem, room, sizeof(*m->val));
    }
    if (!m || (room && (!m->key || !m->val))) return jinja_no_memory(r);
    m->cap = (uint32_t)room;
    return (jv){.kind = JV_MAP, .map = m};
}

const jv *jv_find(jinja_run *r, jv map, jv key)
{
    jmap *m = map.map;
    if (r->rc || !jinja_step(r, m->n / 8)) return NULL;
    for (uint32_t i = 0; i < m->n; i++) {
        if (jv_equal(r, m->key[i], key)) return &m->val[i];
    }
    return NULL;
}

static bool append(jinja_run *r, jmap *m, jv key, jv v)
{
    if (r->rc) return false;
    if (m->n == m->cap) {
        uint32_t cap = 2 * m->cap + 4;
        jv *k = arena_calloc(&r->mem, cap, sizeof(*k)), *w = arena_calloc(&r->mem, cap, sizeof(*w));
        if (!k || !w) {
            (void)jinja_no_memory(r);
            return false;
        }
        if (m->n) {
            memcpy(k, m->key, m->n * sizeof(*k));
            memcpy(w, m->val, m->n * sizeof(*w));
        }
        m->key = k;
        m->val = w;
        m->cap = cap;
    }
    m->key[m->n] = key;
    m->val[m->n++] = v;
    return true;
}

static bool is_hashable(jinja_run *r, jv key)
{
    if (key.kind == JV_LIST || key.kind == JV_MAP)
        (void)jinja_fail(r, ERR_INPUT, "unhashable type: '%s'", jv_type(key));
    return !r->rc;
}

bool jv_put(jinja_run *r, jv map, jv key, jv v)
{
    if (r->rc) return false;
    if (!is_hashable(r, key)) return false;
    jv *old = (jv *)(uintptr_t)jv_find(r, map, key);
    if (old) *old = v;
    return old || append(r, map.map, key, v);
}

static jv jv_long(jinja_run *r, const char *digits)
{
    size_t n = strlen(digits) + 1;
    char *copy = arena_alloc(&r->mem, n);
    if (!copy) return jinja_no_memory(r);
    return (jv){.kind = JV_LONG, .digits = memcpy(copy, digits, n)};
}

/* Numbers as Python's json reads them: with a point or an exponent a float, else an int of any
 * size. */
static jv from_json(jinja_run *r, const cJSON *v, bool foreign)
{
    const cJSON *c;
    if (cJSON_IsBool(v)) return jv_bool(cJSON_IsTrue(v));
    if (cJSON_IsNumber(v)) {
        int64_t i;
        if (v->valuestring && strpbrk(v->valuestring, ".eE")) return jv_float(v->valuedouble);
        if (json_whole(v, &i)) return jv_int(i);
        return v->valuestring ? jv_long(r, v->valuestring) : jv_float(v->valuedouble);
    }
    if (cJSON_IsString(v)) {
        jv s = jv_utf8(&r->mem, v->valuestring, strlen(v->valuestring), foreign);
        return s.kind == JV_STR ? s : jinja_no_memory(r);
    }
    if (cJSON_IsArray(v)) {
        jv list = jv_list(r, JV_LIST, (size_t)cJSON_GetArraySize(v));
        cJSON_ArrayForEach(c, v)
        {
            if (!jv_push(r, list, from_json(r, c, foreign))) break;
        }
        return list;
    }
    if (cJSON_IsObject(v)) {
        jv map = jv_map(r, (size_t)cJSON_GetArraySize(v));
        cJSON_ArrayForEach(c, v)
        {
            jv key = jv_utf8(&r->mem, c->string, strlen(c->string), foreign);
            if (key.kind != JV_STR) return jinja_no_memory(r);
            if (!append(r, map.map, key, from_json(r, c, foreign))) break; /* names are unique */
        }
        return map;
    }
    return jv_none;
}

jv jv_from_json(jinja_run *r, const cJSON *v, bool foreign)
{
    return r->rc ? jv_undefined : from_json(r, v, foreign);
}

/* ---------------------------------------------------------------------- compared -- */

bool jv_is(jv s, const char *ascii)
{
    if (s.kind != JV_STR) return false;
    uint32_t i = 0;
    for (; i < s.n && ascii[i]; i++) {
        if (JCHAR_CODE(s.s[i]) != (jchar)(unsigned char)ascii[i]) return false;
    }
    return i == s.n && !ascii[i];
}

bool jv_is_number(jv v)
{
    return v.kind == JV_INT || v.kind == JV_FLOAT || v.kind == JV_BOOL;
}

double jv_number(jv v)
{
    return v.kind == JV_FLOAT ? v.f : v.kind == JV_INT ? (double)v.i : (double)v.b;
}

static int64_t whole(jv v)
{
    return v.kind == JV_BOOL ? v.b : v.i;
}

const char *jv_type(jv v)
{
    static const char *const names[] = {[JV_UNDEFINED] = "Undefined",
                                        [JV_NONE] = "NoneType",
                                        [JV_BOOL] = "bool",
                                        [JV_INT] = "int",
                                        [JV_LONG] = "int",
                                        [JV_FLOAT] = "float",
                                        [JV_STR] = "str",
                                        [JV_LIST] = "list",
                                        [JV_TUPLE] = "tuple",
                                        [JV_ITER] = "generator",
                                        [JV_MAP] = "dict",
                                        [JV_NAMESPACE] = "Namespace",
                                        [JV_LOOP] = "LoopContext",
                                        [JV_MACRO] = "Macro",
                                        [JV_METHOD] = "method",
                                        [JV_GLOBAL] = "function"};
    return names[v.kind];
}

bool jv_true(jv v)
{
    switch (v.kind) {
    case JV_UNDEFINED:
    case JV_NONE: return false;
    case JV_BOOL: return v.b;
    case JV_INT: return v.i != 0;
    case JV_FLOAT: return v.f != 0;
    case JV_STR: return v.n > 0;
    case JV_LIST:
    case JV_TUPLE: return v.list->n > 0;
    case JV_MAP: return v.map->n > 0;
    default: return true;
    }
}

static int compare_text(jv a, jv b)
{
    uint32_t n = a.n < b.n ? a.n : b.n;
    for (uint32_t i = 0; i < n; i++) {
        jchar x = JCHAR_CODE(a.s[i]), y = JCHAR_CODE(b.s[i]);
        if (x != y) return x < y ? -1 : 1;
    }
    return a.n < b.n ? -1 : a.n > b.n;
}

static bool enter(jinja_run *r)
{
    if (r->rc || ++r->nest > NEST_MAX) {
        (void)jinja_fail(r, ERR_LIMIT, "a value is nested too deep for the chat template");
        return false;
    }
    return jinja_step(r, 1);
}

static bool equal_lists(jinja_run *r, const jlist *a, const jlist *b)
{
    bool same = a->n == b->n && enter(r);
    for (uint32_t i = 0; same && i < a->n; i++) same = jv_equal(r, a->item[i], b->item[i]);
    if (a->n == b->n) r->nest--;
    return same && !r->rc;
}

static bool equal_maps(jinja_run *r, jv a, jv b)
{
    bool same = a.map->n == b.map->n && enter(r);
    for (uint32_t i = 0; same && i < a.map->n; i++) {
        const jv *other = jv_find(r, b, a.map->key[i]);
        same = other && jv_equal(r, a.map->val[i], *other);
    }
    if (a.map->n == b.map->n) r->nest--;
    return same && !r->rc;
}

bool jv_equal(jinja_run *r, jv a, jv b)
{
    if (r->rc) return false;
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.kind == JV_FLOAT || b.kind == JV_FLOAT) return jv_number(a) == jv_number(b);
        return whole(a) == whole(b);
    }
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case JV_UNDEFINED:
    case JV_NONE: return true;
    case JV_STR: return a.n == b.n && jinja_step(r, a.n / 64) && compare_text(a, b) == 0;
    case JV_LONG: return strcmp(a.digits, b.digits) == 0;
    case JV_LIST:
    case JV_TUPLE: return a.list == b.list || equal_lists(r, a.list, b.list);
    case JV_MAP: return a.map == b.map || equal_maps(r, a, b);
    case JV_GLOBAL: return a.global == b.global;
    default: return a.list == b.list; /* identity */
    }
}

int jv_order(jinja_run *r, jv a, jv b)
{
    if (r->rc) return 0;
    if (jv_is_number(a) && jv_is_number(b)) {
        double x = jv_number(a), y = jv_number(b);
        if (a.kind != JV_FLOAT && b.kind != JV_FLOAT) {
            return whole(a) < whole(b) ? -1 : whole(a) > whole(b);
        }
        return x < y ? -1 : x > y;
    }
    if (a.kind == JV_STR && b.kind == JV_STR) return compare_text(a, b);
    if (a.kind == b.kind && (a.kind == JV_LIST || a.kind == JV_TUPLE)) {
        uint32_t i = 0, n = a.list->n < b.list->n ? a.list->n : b.list->n;
        if (!enter(r)) return 0;
        while (i < n && jv_equal(r, a.list->item[i], b.list->item[i])) i++;
        int order = i < n ? jv_order(r, a.list->item[i], b.list->item[i])
                          : (a.list->n > n) - (b.list->n > n);
        r->nest--;
        return order;
    }
    if (a.kind == JV_UNDEFINED || b.kind == JV_UNDEFINED) {
        const char *what = a.kind == JV_UNDEFINED ? a.what : b.what;
        (void)jinja_fail(r, ERR_INPUT, "'%s' is undefined", what ? what : "value");
        return 0;
    }
    (void)jinja_fail(r, ERR_INPUT, "'<' not supported between instances of '%s' and '%s'",
                     jv_type(a), jv_type(b));
    return 0;
}

/* -------------------------------------------------------------------- looked into -- */

bool jv_items(jinja_run *r, jv v, const jv **item, uint32_t *n)
{
    *item = NULL;
    *n = 0;
    if (r->rc) return false;
    switch (v.kind) {
    case JV_UNDEFINED: return true;
    case JV_LIST:
    case JV_TUPLE:
        *item = v.list->item;
        *n = v.list->n;
        return true;
    case JV_ITER:
        *item = v.list->item;
        *n = v.list->n;
        v.list->n = 0;
        return true;
    case JV_MAP:
        *item = v.map->key;
        *n = v.map->n;
        return true;
    case JV_STR: {
        jv list = jv_list(r, JV_LIST, v.n);
        for (uint32_t i = 0; i < v.n && !r->rc; i++) (void)jv_push(r, list, jv_chars(v.s + i, 1));
        if (r->rc) return false;
        *item = list.list->item;
        *n = list.list->n;
        return true;
    }
    default:
        (void)jinja_fail(r, ERR_INPUT, "'%s' object is not iterable", jv_type(v));
        return false;
    }
}

bool jv_contains(jinja_run *r, jv where, jv what)
{
    if (r->rc) return false;
    if (where.kind == JV_STR) {
        if (what.kind != JV_STR) {
            (void)jinja_fail(r, ERR_INPUT, "'in <string>' requires string as left operand, not %s",
                             jv_type(what));
            return false;
        }
        return jinja_step(r, where.n / 64) && jv_search(where, what, 0) >= 0;
    }
    if (where.kind == JV_MAP) return is_hashable(r, what) && jv_find(r, where, what) != NULL;
    const jv *item;
    uint32_t n;
    if (!jv_items(r, where, &item, &n)) return false;
    for (uint32_t i = 0; i < n && jinja_step(r, 1); i++) {
        if (jv_equal(r, item[i], what)) return true;
    }
    return false;
}

/* ------------------------------------------------------------------------ written -- */

void jbuf_add(jinja_run *r, jbuf *b, const jchar *s, size_t n)
{
    if (r->rc || n == 0 || !jinja_step(r, n / 64)) return;
    if (b->cap - b->n < n) {
        size_t cap = 2 * ((size_t)b->n + n) + 32;
        jchar *p = cap < UINT32_MAX ? arena_calloc(&r->mem, cap, sizeof(*p)) : NULL;
        if (!p) {
            (void)jinja_no_memory(r);
            return;
        }
        if (b->n) memcpy(p, b->s, b->n * sizeof(*p));
        b->s = p;
        b->cap = (uint32_t)cap;
    }
    memcpy(b->s + b->n, s, n * sizeof(*s));
    b->n += (uint32_t)n;
}

void jbuf_ascii(jinja_run *r, jbuf *b, const char *s)
{
    for (; *s; s++) {
        jchar c = (jchar)(unsigned char)*s;
        jbuf_add(r, b, &c, 1);
    }
}

jv jbuf_value(const jbuf *b)
{
    return jv_chars(b->s, b->n);
}

/* The shortest digits that give the same number again, as Python's repr(). */
static void write_float(jinja_run *r, jbuf *b, double d)
{
    char text[64], digits[32], out[512];
    if (!isfinite(d)) {
        jbuf_ascii(r, b, isnan(d) ? "nan" : d > 0 ? "inf" : "-inf");
        return;
    }
    int precision = 0;
    do {
        snprintf(text, sizeof(text), "%.*e", precision, d);
    } while (strtod(text, NULL) != d && ++precision < 17);
    int n = 0, exponent = atoi(strchr(text, 'e') + 1);
    for (const char *s = text; *s != 'e'; s++) {
        if (*s >= '0' && *s <= '9') digits[n++] = *s;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    digits[n] = 0;
    const char *sign = text[0] == '-' ? "-" : "";
    if (exponent < -4 || exponent >= 16) {
        snprintf(out, sizeof(out), "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        snprintf(out, sizeof(out), "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
    } else {
        int k = snprintf(out, sizeof(out), "%s", sign);
        for (int i = 0; i <= exponent || i < n; i++) {
            if (i == exponent + 1) out[k++] = '.';
            out[k++] = i < n ? digits[i] : '0';
        }
        if (n <= exponent + 1) {
            out[k++] = '.';
            out[k++] = '0';
        }
        out[k] = 0;
    }
    jbuf_ascii(r, b, out);
}

static void write_int(jinja_run *r, jbuf *b, int64_t i)
{
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)i);
    jbuf_ascii(r, b, text);
}

/* "\\", a letter and so many digits of `v`; an escape for a stranger's
 * character is a stranger's, too. */
static void escape(jinja_run *r, jbuf *b, jchar from, char letter, int digits, unsigned v)
{
    char text[16];
    jchar mark = from & JCHAR_FOREIGN;
    int n = snprintf(text, sizeof(text), "\\%c", letter);
    if (digits) snprintf(text + n, sizeof(text) - (size_t)n, "%0*x", digits, v);
    for (const char *s = text; *s; s++) {
        jchar c = (jchar)(unsigned char)*s | mark;
        jbuf_add(r, b, &c, 1);
    }
}

/* Python's repr() of a text: in single quotes unless it has some and no double ones. */
static void repr_text(jinja_run *r, jbuf *b, jv v)
{
    bool single = false, twice = false;
    for (uint32_t i = 0; i < v.n; i++) {
        single |= JCHAR_CODE(v.s[i]) == '\'';
        twice |= JCHAR_CODE(v.s[i]) == '"';
    }
    jchar quote = single && !twice ? '"' : '\'';
    jbuf_add(r, b, &quote, 1);
    for (uint32_t i = 0; i < v.n && !r->rc; i++) {
        jchar c = JCHAR_CODE(v.s[i]);
        if (c == quote || c == '\\')
            escape(r, b, v.s[i], (char)c, 0, 0);
        else if (c == '\n')
            escape(r, b, v.s[i], 'n', 0, 0);
        else if (c == '\r')
            escape(r, b, v.s[i], 'r', 0, 0);
        else if (c == '\t')
            escape(r, b, v.s[i], 't', 0, 0);
        else if (jchar_is_printable(c))
            jbuf_add(r, b, v.s + i, 1);
        else
            escape(r, b, v.s[i],
                   c < 0x100     ? 'x'
                   : c < 0x10000 ? 'u'
                                 : 'U',
                   c < 0x100     ? 2
                   : c < 0x10000 ? 4
                                 : 8,
                   c);
    }
    jbuf_add(r, b, &quote, 1);
}

static void repr_items(jinja_run *r, jbuf *b, const jlist *l)
{
    for (uint32_t i = 0; i < l->n && !r->rc; i++) {
        if (i) jbuf_ascii(r, b, ", ");
        jbuf_repr(r, b, l->item[i]);
    }
}

static void repr_map(jinja_run *r, jbuf *b, const jmap *m)
{
    jbuf_ascii(r, b, "{");
    for (uint32_t i = 0; i < m->n && !r->rc; i++) {
        if (i) jbuf_ascii(r, b, ", ");
        jbuf_repr(r, b, m->key[i]);
        jbuf_ascii(r, b, ": ");
        jbuf_repr(r, b, m->val[i]);
    }
    jbuf_ascii(r, b, "}");
}

void jbuf_repr(jinja_run *r, jbuf *b, jv v)
{
    if (!enter(r)) return;
    switch (v.kind) {
    case JV_UNDEFINED: jbuf_ascii(r, b, "Undefined"); break;
    case JV_NONE: jbuf_ascii(r, b, "None"); break;
    case JV_BOOL: jbuf_ascii(r, b, v.b ? "True" : "False"); break;
    case JV_INT: write_int(r, b, v.i); break;
    case JV_LONG: jbuf_ascii(r, b, v.digits); break;
    case JV_FLOAT: write_float(r, b, v.f); break;
    case JV_STR:
        if (v.markup) jbuf_ascii(r, b, "Markup(");
        repr_text(r, b, v);
        if (v.markup) jbuf_ascii(r, b, ")");
        break;
    case JV_LIST:
        jbuf_ascii(r, b, "[");
        repr_items(r, b, v.list);
        jbuf_ascii(r, b, "]");
        break;
    case JV_TUPLE:
        jbuf_ascii(r, b, "(");
        repr_items(r, b, v.list);
        jbuf_ascii(r, b, v.list->n == 1 ? ",)" : ")");
        break;
    case JV_MAP: repr_map(r, b, v.map); break;
    default:
        (void)jinja_fail(r, ERR_INPUT, "the chat template prints a value of type %s", jv_type(v));
    }
    r->nest--;
}

void jbuf_str(jinja_run *r, jbuf *b, jv v)
{
    if (v.kind == JV_STR)
        jbuf_add(r, b, v.s, v.n);
    else if (v.kind != JV_UNDEFINED)
        jbuf_repr(r, b, v);
}

jv jv_str(jinja_run *r, jv v)
{
    if (v.kind == JV_STR) return v;
    jbuf b = {0};
    jbuf_str(r, &b, v);
    return jbuf_value(&b);
}

/* --------------------------------------------------------------------------- JSON -- */

static void json_text(jinja_run *r, jbuf *b, jv v, bool ascii)
{
    static const char from[] = "\b\f\n\r\t\"\\", to[] = "bfnrt\"\\";
    jbuf_ascii(r, b, "\"");
    for (uint32_t i = 0; i < v.n && !r->rc; i++) {
        jchar c = JCHAR_CODE(v.s[i]);
        const char *known = c > 0 && c < 128 ? strchr(from, (int)c) : NULL;
        if (known)
            escape(r, b, v.s[i], to[known - from], 0, 0);
        else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000 && c != 0x7F))
            escape(r, b, v.s[i], 'u', 4, c);
        else if (ascii && c >= 0x10000) {
            escape(r, b, v.s[i], 'u', 4, 0xD800 + ((c - 0x10000) >> 10));
            escape(r, b, v.s[i], 'u', 4, 0xDC00 + ((c - 0x10000) & 0x3FF));
        } else
            jbuf_add(r, b, v.s + i, 1);
    }
    jbuf_ascii(r, b, "\"");
}

static void json_line(jinja_run *r, jbuf *b, const jinja_dump *how, int level)
{
    if (how->indent.kind == JV_NONE) return;
    jbuf_ascii(r, b, "\n");
    for (int i = 0; i < level && !r->rc; i++) {
        if (how->indent.kind == JV_STR) jbuf_add(r, b, how->indent.s, how->indent.n);
        for (int64_t k = 0; how->indent.kind == JV_INT && k < how->indent.i; k++)
            jbuf_ascii(r, b, " ");
    }
}

/* Positions of the keys in the order in which they are written. */
static uint32_t *key_order(jinja_run *r, const jmap *m, bool sort)
{
    uint32_t *at = arena_calloc(&r->mem, (size_t)m->n + 1, sizeof(*at));
    if (!at) {
        (void)jinja_no_memory(r);
        return NULL;
    }
    for (uint32_t i = 0; i < m->n && !r->rc; i++) {
        uint32_t k = i;
        if (!jinja_step(r, i / 8)) return NULL;
        for (; sort && k > 0 && jv_order(r, m->key[i], m->key[at[k - 1]]) < 0; k--)
            at[k] = at[k - 1];
        at[k] = i;
    }
    return r->rc ? NULL : at;
}

static void json_map(jinja_run *r, jbuf *b, const jmap *m, const jinja_dump *how, int level)
{
    const uint32_t *at = key_order(r, m, how->sort);
    jbuf_ascii(r, b, "{");
    for (uint32_t i = 0; at && i < m->n && !r->rc; i++) {
        jv key = m->key[at[i]];
        if (i) jbuf_add(r, b, how->item, how->n_item);
        json_line(r, b, how, level + 1);
        if (key.kind != JV_STR) { /* numbers, true and none become names */
            jbuf inner = {0};
            jbuf_json(r, &inner, key, how, level);
            key = jbuf_value(&inner);
        }
        json_text(r, b, key, how->ascii);
        jbuf_add(r, b, how->colon, how->n_colon);
        jbuf_json(r, b, m->val[at[i]], how, level + 1);
    }
    if (m->n) json_line(r, b, how, level);
    jbuf_ascii(r, b, "}");
}

static void json_list(jinja_run *r, jbuf *b, const jlist *l, const jinja_dump *how, int level)
{
    jbuf_ascii(r, b, "[");
    for (uint32_t i = 0; i < l->n && !r->rc; i++) {
        if (i) jbuf_add(r, b, how->item, how->n_item);
        json_line(r, b, how, level + 1);
        jbuf_json(r, b, l->item[i], how, level + 1);
    }
    if (l->n) json_line(r, b, how, level);
    jbuf_ascii(r, b, "]");
}

void jbuf_json(jinja_run *r, jbuf *b, jv v, const jinja_dump *how, int level)
{
    if (!enter(r)) return;
    switch (v.kind) {
    case JV_NONE: jbuf_ascii(r, b, "null"); break;
    case JV_BOOL: jbuf_ascii(r, b, v.b ? "true" : "false"); break;
    case JV_INT: write_int(r, b, v.i); break;
    case JV_LONG: jbuf_ascii(r, b, v.digits); break;
    case JV_FLOAT:
        if (isfinite(v.f))
            write_float(r, b, v.f);
        else
            jbuf_ascii(r, b, isnan(v.f) ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity");
        break;
    case JV_STR: json_text(r, b, v, how->ascii); break;
    case JV_LIST:
    case JV_TUPLE: json_list(r, b, v.list, how, level); break;
    case JV_MAP: json_map(r, b, v.map, how, level); break;
    default:
        (void)jinja_fail(r, ERR_INPUT, "Object of type %s is not JSON serializable", jv_type(v));
    }
    r->nest--;
}
