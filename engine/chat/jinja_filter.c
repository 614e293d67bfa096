/* jinja_filter.c -- Jinja's filters (value | name) and tests (value is name): a table of each, and
 * one function for each row.
 *
 * The parser resolves a name to an index of the table (jinja_filter_find(), jinja_test_find()), so
 * a rendering does no lookup by name.  A function gets a `call`: the run, the value and the
 * arguments, which jinja_arg() takes by position or name.
 *
 * Results are those of Jinja 3 in Python, including what differs from intuition: filters over
 * sequences give generators (JV_ITER), which are always true.  A wrong argument fails the run.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/chat/jinja_inside.h"

typedef struct {
    const char *name;
    jv (*run)(const jinja_call *c);
} filter;

typedef struct {
    const char *name;
    bool (*holds)(const jinja_call *c);
} test;

static jv wrong(const jinja_call *c)
{
    return jinja_fail(c->r, ERR_INPUT, "filter '%s': wrong arguments", c->name);
}

static jv text_of(const jinja_call *c)
{
    return jv_str(c->r, c->v);
}

/* -------------------------------------------------------------------------- texts -- */

/* trim(chars): white space, or these characters, from both ends. */
static jv f_trim(const jinja_call *c)
{
    jv chars = jinja_arg(c, 0, "chars", jv_none);
    if (chars.kind != JV_NONE && chars.kind != JV_STR) return wrong(c);
    return jv_strip(text_of(c), chars, true, true);
}

static jv f_upper(const jinja_call *c)
{
    return jv_upper(c->r, text_of(c));
}

static jv f_lower(const jinja_call *c)
{
    return jv_lower(c->r, text_of(c));
}

/* title: Jinja's own words, which begin behind spaces, - ( { [ and <; not str.title()'s. */
static jv f_title(const jinja_call *c)
{
    return jv_title(c->r, text_of(c), true);
}

static jv f_capitalize(const jinja_call *c)
{
    return jv_capitalize(c->r, text_of(c));
}

static jv f_string(const jinja_call *c)
{
    return text_of(c);
}

/* replace(old, new, count): count none or negative: all. The result keeps the authors of its
 * parts. */
static jv f_replace(const jinja_call *c)
{
    jv old = jinja_arg(c, 0, "old", jv_undefined), with = jinja_arg(c, 1, "new", jv_undefined);
    jv count = jinja_arg(c, 2, "count", jv_int(-1));
    if (count.kind == JV_NONE) count = jv_int(-1);
    if (count.kind != JV_INT) return wrong(c);
    return jv_replace(c->r, text_of(c), jv_str(c->r, old), jv_str(c->r, with), count.i);
}

/* indent(width, first, blank): width is a number of spaces, or the text itself. The first line and
 * empty lines stay as they are, unless the flags say so. */
static jv f_indent(const jinja_call *c)
{
    jv width = jinja_arg(c, 0, "width", jv_int(4)), newline = jv_ascii(c->r, "\n");
    bool first = jv_true(jinja_arg(c, 1, "first", jv_none)),
         blank = jv_true(jinja_arg(c, 2, "blank", jv_none));
    jv by = width;
    jbuf spaces = {0}, b = {0};
    if (width.kind == JV_INT && width.i <= 1000) {
        for (int64_t i = 0; i < width.i; i++) jbuf_ascii(c->r, &spaces, " ");
        by = jbuf_value(&spaces);
    }
    if (by.kind != JV_STR || c->v.kind != JV_STR) return wrong(c);
    jv lines = jv_lines(c->r, jinja_arith(c->r, JOP_ADD, c->v, newline), false);
    for (uint32_t i = 0; !c->r->rc && i < lines.list->n; i++) {
        jv line = lines.list->item[i];
        if (i) jbuf_add(c->r, &b, newline.s, 1);
        if (i ? blank || line.n : first) jbuf_add(c->r, &b, by.s, by.n);
        jbuf_add(c->r, &b, line.s, line.n);
    }
    return jv_marked(jbuf_value(&b), c->v.markup);
}

static jv f_escape(const jinja_call *c)
{
    return jv_escaped(c->r, text_of(c));
}

static jv f_safe(const jinja_call *c)
{
    return jv_marked(text_of(c), true);
}

/* tojson(ensure_ascii, indent, separators, sort_keys): transformers' own, which is json.dumps()
 * without HTML's escapes; not Jinja's. */
static jv f_tojson(const jinja_call *c)
{
    jv indent = jinja_arg(c, 1, "indent", jv_none),
       separators = jinja_arg(c, 2, "separators", jv_none);
    jv item = jv_ascii(c->r, indent.kind == JV_NONE ? ", " : ","), colon = jv_ascii(c->r, ": ");
    if (separators.kind != JV_NONE) {
        const jv *part;
        uint32_t n;
        if (!jv_items(c->r, separators, &part, &n) || n != 2) return wrong(c);
        item = part[0];
        colon = part[1];
    }
    bool ok = indent.kind == JV_NONE || indent.kind == JV_STR ||
              (indent.kind == JV_INT && indent.i <= 1000);
    if (!ok || item.kind != JV_STR || colon.kind != JV_STR) return wrong(c);
    jinja_dump how = {.ascii = jv_true(jinja_arg(c, 0, "ensure_ascii", jv_none)),
                      .sort = jv_true(jinja_arg(c, 3, "sort_keys", jv_none)),
                      .indent = indent,
                      .item = item.s,
                      .n_item = item.n,
                      .colon = colon.s,
                      .n_colon = colon.n};
    jbuf b = {0};
    jbuf_json(c->r, &b, c->v, &how, 0);
    return jbuf_value(&b);
}

/* ------------------------------------------------------------------------ numbers -- */

/* As int() and float() read a text, but without what only C reads (hexadecimal) or only Python
 * (underscores, digits of other scripts). */
static bool read_number(jv s, bool whole, double *d, int64_t *i)
{
    char text[64], *end;
    jv t = jv_strip(s, jv_none, true, true);
    if (t.n == 0 || t.n >= sizeof(text)) return false;
    for (uint32_t k = 0; k < t.n; k++) {
        jchar ch = JCHAR_CODE(t.s[k]);
        if (ch >= 128 || ch == 'x' || ch == 'X' || ch == 'p' || ch == 'P') return false;
        text[k] = (char)ch;
    }
    text[t.n] = 0;
    if (whole)
        *i = strtoll(text, &end, 10);
    else
        *d = strtod(text, &end);
    return !*end;
}

/* int(default): a text may be a float's, too. What is no number, or not finite, is the default. */
static jv f_int(const jinja_call *c)
{
    jv otherwise = jinja_arg(c, 0, "default", jv_int(0));
    double d = 0;
    int64_t i;
    if (c->v.kind == JV_UNDEFINED) return wrong(c);
    if (c->v.kind == JV_INT || c->v.kind == JV_LONG) return c->v;
    if (c->v.kind == JV_BOOL) return jv_int(c->v.b);
    if (c->v.kind == JV_STR && read_number(c->v, true, NULL, &i)) return jv_int(i);
    if (c->v.kind == JV_FLOAT)
        d = c->v.f;
    else if (c->v.kind != JV_STR || !read_number(c->v, false, &d, NULL))
        return otherwise;
    if (fabs(d) >= 9e18)
        return jinja_fail(c->r, ERR_INPUT, "filter 'int': the number is too large");
    return isfinite(d) ? jv_int((int64_t)d) : otherwise;
}

static jv f_float(const jinja_call *c)
{
    double d;
    if (c->v.kind == JV_UNDEFINED) return wrong(c);
    if (jv_is_number(c->v)) return jv_float(jv_number(c->v));
    if (c->v.kind == JV_STR && read_number(c->v, false, &d, NULL)) return jv_float(d);
    return jinja_arg(c, 0, "default", jv_float(0));
}

static jv f_abs(const jinja_call *c)
{
    if (c->v.kind == JV_FLOAT) return jv_float(fabs(c->v.f));
    if (!jv_is_number(c->v)) return wrong(c);
    jv zero = jv_int(0);
    return jinja_arith(c->r, jv_number(c->v) < 0 ? JOP_SUB : JOP_ADD, zero, c->v);
}

/* round(precision, method): ties of the exact value to even, as Python's round(); "ceil",
 * "floor". */
static jv f_round(const jinja_call *c)
{
    jv digits = jinja_arg(c, 0, "precision", jv_int(0)), how = jinja_arg(c, 1, "method", jv_none);
    if (!jv_is_number(c->v) || digits.kind != JV_INT || llabs(digits.i) > 15) return wrong(c);
    double by = pow(10, (double)digits.i), d = jv_number(c->v);
    if (jv_is(how, "ceil")) return jv_float(ceil(d * by) / by);
    if (jv_is(how, "floor")) return jv_float(floor(d * by) / by);
    if (c->v.kind != JV_FLOAT) return digits.i >= 0 ? jv_int((int64_t)d) : wrong(c);
    char text[400];
    if (digits.i < 0) return jv_float(nearbyint(d * by) / by);
    snprintf(text, sizeof(text), "%.*f", (int)digits.i, d); /* half to even, exactly */
    return jv_float(strtod(text, NULL));
}

/* ---------------------------------------------------------------------- sequences -- */

/* length: of an undefined value 0, as Jinja's has it. */
static jv f_length(const jinja_call *c)
{
    switch (c->v.kind) {
    case JV_UNDEFINED: return jv_int(0);
    case JV_STR: return jv_int(c->v.n);
    case JV_LIST:
    case JV_TUPLE: return jv_int(c->v.list->n);
    case JV_MAP: return jv_int(c->v.map->n);
    default: return jinja_fail(c->r, ERR_INPUT, "object of type '%s' has no len()", jv_type(c->v));
    }
}

/* "a.b.0" of an item, as make_attrgetter() reads it. */
static jv by_path(const jinja_call *c, jv item, jv path)
{
    if (path.kind == JV_INT) return jinja_item_of(c->r, item, path);
    if (path.kind != JV_STR) return wrong(c);
    for (uint32_t from = 0; from <= path.n && !c->r->rc;) {
        uint32_t to = from;
        int64_t number = 0;
        bool digits = true;
        for (; to < path.n && JCHAR_CODE(path.s[to]) != '.'; to++) {
            jchar ch = JCHAR_CODE(path.s[to]);
            digits &= ch >= '0' && ch <= '9' && to - from < 9;
            if (digits) number = number * 10 + (int64_t)(ch - '0');
        }
        jv key = digits && to > from ? jv_int(number) : jv_substring(path, from, to);
        item = jinja_item_of(c->r, item, key);
        from = to + 1;
    }
    return item;
}

/* join(d, attribute): of the items, or of what the path leads to in each. */
static jv f_join(const jinja_call *c)
{
    jv by = jv_str(c->r, jinja_arg(c, 0, "d", jv_undefined)),
       path = jinja_arg(c, 1, "attribute", jv_none);
    const jv *item;
    uint32_t n;
    jbuf b = {0};
    if (!jv_items(c->r, c->v, &item, &n)) return jv_undefined;
    for (uint32_t i = 0; i < n && !c->r->rc; i++) {
        if (i) jbuf_add(c->r, &b, by.s, by.n);
        jbuf_str(c->r, &b, path.kind == JV_NONE ? item[i] : by_path(c, item[i], path));
    }
    return jbuf_value(&b);
}

/* default(value, boolean): in place of an undefined value; with `boolean` of any that is false. */
static jv f_default(const jinja_call *c)
{
    bool falsy = jv_true(jinja_arg(c, 1, "boolean", jv_none)) && !jv_true(c->v);
    if (c->v.kind != JV_UNDEFINED && !falsy) return c->v;
    return jinja_arg(c, 0, "default_value", jv_chars(NULL, 0));
}

/* A new list of the items of any sequence; of a map its keys, of a text its characters. */
static jv listed(const jinja_call *c, jv_kind kind)
{
    const jv *item;
    uint32_t n;
    if (!jv_items(c->r, c->v, &item, &n)) return jv_undefined;
    jv out = jv_list(c->r, kind, n);
    for (uint32_t i = 0; i < n && !c->r->rc; i++) (void)jv_push(c->r, out, item[i]);
    return out;
}

static jv f_list(const jinja_call *c)
{
    return listed(c, JV_LIST);
}

static jv f_first(const jinja_call *c)
{
    const jv *item;
    uint32_t n;
    if (!jv_items(c->r, c->v, &item, &n)) return jv_undefined;
    return n ? item[0] : (jv){.kind = JV_UNDEFINED, .what = "first"};
}

static jv f_last(const jinja_call *c)
{
    const jv *item;
    uint32_t n;
    if (c->v.kind == JV_ITER)
        return jinja_fail(c->r, ERR_INPUT, "'generator' object is not reversible");
    if (!jv_items(c->r, c->v, &item, &n)) return jv_undefined;
    return n ? item[n - 1] : (jv){.kind = JV_UNDEFINED, .what = "last"};
}

/* reverse: of a text a text, else an iterator, which has no length. */
static jv f_reverse(const jinja_call *c)
{
    if (c->v.kind == JV_STR) {
        jbuf b = {0};
        for (uint32_t i = c->v.n; i > 0 && !c->r->rc; i--) jbuf_add(c->r, &b, c->v.s + i - 1, 1);
        return jv_marked(jbuf_value(&b), c->v.markup);
    }
    jv out = listed(c, JV_ITER);
    for (uint32_t i = 0; !c->r->rc && i < out.list->n / 2; i++) {
        jv *a = &out.list->item[i], *z = &out.list->item[out.list->n - 1 - i], keep = *a;
        *a = *z;
        *z = keep;
    }
    return out;
}

/* items: pairs of a map, in its order; of an undefined value none. */
static jv f_items(const jinja_call *c)
{
    jv out = jv_list(c->r, JV_ITER, 0);
    if (c->v.kind == JV_UNDEFINED || c->r->rc) return out;
    if (c->v.kind != JV_MAP)
        return jinja_fail(c->r, ERR_INPUT, "Can only get item pairs from a mapping.");
    const jmap *m = c->v.map;
    for (uint32_t i = 0; i < m->n && !c->r->rc; i++)
        (void)jv_push(c->r, out, jv_pair(c->r, m->key[i], m->val[i]));
    return out;
}

/* What sorting and comparing goes by. */
static jv key_of(const jinja_call *c, jv item, jv path, bool case_sensitive)
{
    jv key = path.kind == JV_NONE ? item : by_path(c, item, path);
    return key.kind == JV_STR && !case_sensitive ? jv_lower(c->r, key) : key;
}

/* Stable, by insertion with bisection: lists in templates are short, and steps are counted. */
static jv sorted(const jinja_call *c, jv list, jv path, bool case_sensitive, bool reverse)
{
    uint32_t n = list.list->n;
    jv keys = jv_list(c->r, JV_LIST, n), out = jv_list(c->r, JV_LIST, n);
    for (uint32_t i = 0; i < n && !c->r->rc; i++) {
        jv key = key_of(c, list.list->item[i], path, case_sensitive);
        uint32_t lo = 0, hi = i;
        while (lo < hi && !c->r->rc) {
            uint32_t mid = (lo + hi) / 2;
            int order = jv_order(c->r, key, keys.list->item[mid]);
            if (reverse ? order > 0 : order < 0)
                hi = mid;
            else
                lo = mid + 1;
        }
        if (!jinja_step(c->r, (i - lo) / 8) || !jv_push(c->r, keys, key)) break;
        if (!jv_push(c->r, out, key)) break;
        memmove(keys.list->item + lo + 1, keys.list->item + lo, (i - lo) * sizeof(jv));
        memmove(out.list->item + lo + 1, out.list->item + lo, (i - lo) * sizeof(jv));
        keys.list->item[lo] = key;
        out.list->item[lo] = list.list->item[i];
    }
    return out;
}

/* sort(reverse, case_sensitive, attribute); without case by default, as Jinja's. */
static jv f_sort(const jinja_call *c)
{
    jv list = listed(c, JV_LIST);
    if (c->r->rc) return jv_undefined;
    return sorted(c, list, jinja_arg(c, 2, "attribute", jv_none),
                  jv_true(jinja_arg(c, 1, "case_sensitive", jv_none)),
                  jv_true(jinja_arg(c, 0, "reverse", jv_none)));
}

/* dictsort(case_sensitive, by, reverse): pairs of a map, by "key" or "value". */
static jv f_dictsort(const jinja_call *c)
{
    if (c->v.kind != JV_MAP) return wrong(c);
    jv pairs = f_items(c), by = jinja_arg(c, 1, "by", jv_none);
    if (c->r->rc) return jv_undefined;
    return sorted(c, pairs, jv_int(jv_is(by, "value")),
                  jv_true(jinja_arg(c, 0, "case_sensitive", jv_none)),
                  jv_true(jinja_arg(c, 2, "reverse", jv_none)));
}

/* unique(case_sensitive, attribute): the first item of each key, in order. A search for each:
 * lists are short, and comparisons count as steps. */
static jv f_unique(const jinja_call *c)
{
    const jv *item;
    uint32_t n;
    bool exact = jv_true(jinja_arg(c, 0, "case_sensitive", jv_none));
    jv path = jinja_arg(c, 1, "attribute", jv_none), out = jv_list(c->r, JV_ITER, 0);
    jv seen = jv_list(c->r, JV_LIST, 0);
    if (!jv_items(c->r, c->v, &item, &n)) return jv_undefined;
    for (uint32_t i = 0; i < n && !c->r->rc; i++) {
        jv key = key_of(c, item[i], path, exact);
        if (key.kind == JV_LIST || key.kind == JV_MAP)
            return wrong(c); /* Python's cannot be in a set */
        if (c->r->rc || jv_contains(c->r, seen, key)) continue;
        (void)jv_push(c->r, seen, key);
        (void)jv_push(c->r, out, item[i]);
    }
    return out;
}

/* min, max */
static jv extreme(const jinja_call *c, int sign)
{
    const jv *item;
    uint32_t n;
    bool exact = jv_true(jinja_arg(c, 0, "case_sensitive", jv_none));
    jv path = jinja_arg(c, 1, "attribute", jv_none), best = {.kind = JV_UNDEFINED}, best_key = best;
    if (!jv_items(c->r, c->v, &item, &n)) return jv_undefined;
    for (uint32_t i = 0; i < n && !c->r->rc; i++) {
        jv key = key_of(c, item[i], path, exact);
        if (i && jv_order(c->r, key, best_key) * sign <= 0) continue;
        best = item[i];
        best_key = key;
    }
    return best;
}

static jv f_min(const jinja_call *c)
{
    return extreme(c, -1);
}

static jv f_max(const jinja_call *c)
{
    return extreme(c, 1);
}

/* sum(attribute, start): by the language's +, so texts can be added, too. */
static jv f_sum(const jinja_call *c)
{
    const jv *item;
    uint32_t n;
    jv path = jinja_arg(c, 0, "attribute", jv_none), total = jinja_arg(c, 1, "start", jv_int(0));
    if (!jv_items(c->r, c->v, &item, &n)) return jv_undefined;
    for (uint32_t i = 0; i < n && !c->r->rc; i++) {
        jv v = path.kind == JV_NONE ? item[i] : by_path(c, item[i], path);
        total = jinja_arith(c->r, JOP_ADD, total, v);
    }
    return total;
}

/* A filter's or test's name out of an argument; all of ours are short and ASCII. */
static bool name_of(jv v, char out[32])
{
    uint32_t i = 0;
    if (v.kind != JV_STR || v.n > 31) return false;
    for (; i < v.n; i++) {
        if (JCHAR_CODE(v.s[i]) >= 128) return false;
        out[i] = (char)JCHAR_CODE(v.s[i]);
    }
    out[i] = 0;
    return true;
}

/* The arguments but the first `n`. */
static jargs rest(const jargs *a, int n)
{
    jargs out = *a;
    out.pos = a->n_pos > n ? a->pos + n : a->pos;
    out.n_pos = a->n_pos > n ? a->n_pos - n : 0;
    return out;
}

/* map(attribute=path, default=v), or map(filter's name, its arguments). */
static jv f_map(const jinja_call *c)
{
    const jv *item;
    uint32_t n;
    jv path, otherwise = jinja_arg(c, 99, "default", jv_none), out = jv_list(c->r, JV_ITER, 0);
    char name[32];
    int fn = -1;
    bool by_attribute = c->args->n_pos == 0 && jargs_take(c->args, 99, "attribute", &path);
    if (!by_attribute) {
        if (c->args->n_pos == 0 || !name_of(c->args->pos[0], name)) return wrong(c);
        fn = jinja_filter_find(name);
        if (fn < 0) return jinja_fail(c->r, ERR_INPUT, "No filter named '%s'.", name);
    }
    jargs more = rest(c->args, 1);
    if (!jv_true(c->v)) return out; /* whatever it is */
    if (!jv_items(c->r, c->v, &item, &n)) return jv_undefined;
    for (uint32_t i = 0; i < n && jinja_step(c->r, 0); i++) {
        jv v = by_attribute ? by_path(c, item[i], path) : jinja_filter(c->r, fn, item[i], &more);
        if (by_attribute && v.kind == JV_UNDEFINED && otherwise.kind != JV_NONE) v = otherwise;
        (void)jv_push(c->r, out, v);
    }
    return out;
}

/* The filters select and reject; with `attr`: selectattr and rejectattr. */
static jv chosen(const jinja_call *c, bool attr, bool wanted)
{
    const jv *item;
    uint32_t n;
    jv out = jv_list(c->r, JV_ITER, 0);
    char name[32];
    int fn = -1;
    if (c->args->n_pos < attr) return wrong(c);
    if (c->args->n_pos > attr) {
        if (!name_of(c->args->pos[attr], name)) return wrong(c);
        fn = jinja_test_find(name);
        if (fn < 0) return jinja_fail(c->r, ERR_INPUT, "No test named '%s'.", name);
    }
    jargs more = rest(c->args, 1 + attr);
    if (!jv_true(c->v)) return out;
    if (!jv_items(c->r, c->v, &item, &n)) return jv_undefined;
    for (uint32_t i = 0; i < n && jinja_step(c->r, 0); i++) {
        jv v = attr ? by_path(c, item[i], c->args->pos[0]) : item[i];
        bool is = fn >= 0 ? jinja_test(c->r, fn, v, &more) : jv_true(v);
        if (is == wanted) (void)jv_push(c->r, out, item[i]);
    }
    return out;
}

static jv f_select(const jinja_call *c)
{
    return chosen(c, false, true);
}

static jv f_reject(const jinja_call *c)
{
    return chosen(c, false, false);
}

static jv f_selectattr(const jinja_call *c)
{
    return chosen(c, true, true);
}

static jv f_rejectattr(const jinja_call *c)
{
    return chosen(c, true, false);
}

/* batch(linecount, fill_with): rows of that many items; the last one filled, if it is said with
 * what. */
static jv f_batch(const jinja_call *c)
{
    const jv *item;
    uint32_t n;
    jv size = jinja_arg(c, 0, "linecount", jv_none), fill = jinja_arg(c, 1, "fill_with", jv_none);
    jv out = jv_list(c->r, JV_ITER, 0), row = jv_undefined;
    if (size.kind != JV_INT || size.i < 1) return wrong(c);
    if (!jv_items(c->r, c->v, &item, &n)) return jv_undefined;
    for (uint32_t i = 0; i < n && !c->r->rc; i++) {
        if (i % (uint64_t)size.i == 0) {
            row = jv_list(c->r, JV_LIST, 0);
            (void)jv_push(c->r, out, row);
        }
        if (!c->r->rc) (void)jv_push(c->r, row, item[i]);
    }
    while (n && fill.kind != JV_NONE && !c->r->rc && row.list->n < size.i)
        (void)jv_push(c->r, row, fill);
    return out;
}

/* groupby(attribute, case_sensitive): sorted, then runs of equal keys as pairs (key, items). The
 * key is as the first item has it; Jinja's `default` is not read. */
static jv f_groupby(const jinja_call *c)
{
    jv list = listed(c, JV_LIST), path = jinja_arg(c, 0, "attribute", jv_none), out,
       group = jv_undefined, last;
    bool exact = jv_true(jinja_arg(c, 2, "case_sensitive", jv_none));
    if (c->r->rc) return jv_undefined;
    jv all = sorted(c, list, path, exact, false);
    out = jv_list(c->r, JV_LIST, 0);
    last = jv_undefined;
    for (uint32_t i = 0; !c->r->rc && i < all.list->n; i++) {
        jv item = all.list->item[i], key = key_of(c, item, path, exact);
        if (i == 0 || !jv_equal(c->r, key, last)) {
            group = jv_list(c->r, JV_LIST, 0);
            (void)jv_push(c->r, out, jv_pair(c->r, by_path(c, item, path), group));
            last = key;
        }
        if (!c->r->rc) (void)jv_push(c->r, group, item);
    }
    return out;
}

/* attr(name): an attribute alone, never an item; maps have none that a template may read. */
static jv f_attr(const jinja_call *c)
{
    jv name = jinja_arg(c, 0, "name", jv_none);
    if (name.kind != JV_STR) return wrong(c);
    return c->v.kind == JV_MAP ? jv_undefined : jinja_attr(c->r, c->v, name);
}

static const filter filters[] = {
    {"trim", f_trim},
    {"tojson", f_tojson},
    {"length", f_length},
    {"count", f_length},
    {"join", f_join},
    {"upper", f_upper},
    {"lower", f_lower},
    {"title", f_title},
    {"capitalize", f_capitalize},
    {"default", f_default},
    {"d", f_default},
    {"list", f_list},
    {"map", f_map},
    {"select", f_select},
    {"reject", f_reject},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
    {"items", f_items},
    {"first", f_first},
    {"last", f_last},
    {"string", f_string},
    {"int", f_int},
    {"float", f_float},
    {"replace", f_replace},
    {"indent", f_indent},
    {"reverse", f_reverse},
    {"sort", f_sort},
    {"dictsort", f_dictsort},
    {"unique", f_unique},
    {"min", f_min},
    {"max", f_max},
    {"sum", f_sum},
    {"abs", f_abs},
    {"round", f_round},
    {"batch", f_batch},
    {"groupby", f_groupby},
    {"attr", f_attr},
    {"e", f_escape},
    {"escape", f_escape},
    {"safe", f_safe},
};

int jinja_filter_find(const char *name)
{
    for (size_t i = 0; i < sizeof(filters) / sizeof(filters[0]); i++) {
        if (strcmp(filters[i].name, name) == 0) return (int)i;
    }
    return -1;
}

/* An error of the run before it, or in it, gives an undefined value; the caller looks at r->rc. */
jv jinja_filter(jinja_run *r, int fn, jv v, const jargs *args)
{
    if (r->rc) return jv_undefined;
    jinja_call c = {r, v, args, filters[fn].name};
    jv out = filters[fn].run(&c);
    return r->rc ? jv_undefined : out;
}

/* -------------------------------------------------------------------------- tests -- */

static bool t_defined(const jinja_call *c)
{
    return c->v.kind != JV_UNDEFINED;
}

static bool t_undefined(const jinja_call *c)
{
    return c->v.kind == JV_UNDEFINED;
}

static bool t_none(const jinja_call *c)
{
    return c->v.kind == JV_NONE;
}

static bool t_string(const jinja_call *c)
{
    return c->v.kind == JV_STR;
}

static bool t_escaped(const jinja_call *c)
{
    return c->v.markup;
}

static bool t_mapping(const jinja_call *c)
{
    return c->v.kind == JV_MAP;
}

/* Texts, lists, tuples, iterators and maps; an undefined value is empty, and so it is. */
static bool t_iterable(const jinja_call *c)
{
    return c->v.kind >= JV_STR ? c->v.kind <= JV_MAP : c->v.kind == JV_UNDEFINED;
}

static bool t_sequence(const jinja_call *c)
{
    jv_kind k = c->v.kind; /* what has a length and items; an undefined value has both */
    return k == JV_STR || k == JV_LIST || k == JV_TUPLE || k == JV_MAP || k == JV_UNDEFINED;
}

static bool t_number(const jinja_call *c)
{
    return jv_is_number(c->v) || c->v.kind == JV_LONG;
}

static bool t_integer(const jinja_call *c)
{
    return c->v.kind == JV_INT || c->v.kind == JV_LONG;
}

static bool t_float(const jinja_call *c)
{
    return c->v.kind == JV_FLOAT;
}

static bool t_boolean(const jinja_call *c)
{
    return c->v.kind == JV_BOOL;
}

static bool t_true(const jinja_call *c)
{
    return c->v.kind == JV_BOOL && c->v.b;
}

static bool t_false(const jinja_call *c)
{
    return c->v.kind == JV_BOOL && !c->v.b;
}

static bool t_callable(const jinja_call *c)
{
    return c->v.kind >= JV_MACRO;
}

/* By the language's %, which takes the sign of the divisor: -1 is odd. */
static bool divisible(const jinja_call *c, jv by, int64_t rest_is)
{
    jv m = jinja_arith(c->r, JOP_MOD, c->v, by);
    return jv_is_number(m) && jv_number(m) == (double)rest_is;
}

static bool t_odd(const jinja_call *c)
{
    return divisible(c, jv_int(2), 1);
}

static bool t_even(const jinja_call *c)
{
    return divisible(c, jv_int(2), 0);
}

static bool t_divisible(const jinja_call *c)
{
    return divisible(c, jinja_arg(c, 0, "num", jv_none), 0);
}

static bool t_eq(const jinja_call *c)
{
    return jv_equal(c->r, c->v, jinja_arg(c, 0, "other", jv_undefined));
}

static bool t_ne(const jinja_call *c)
{
    return !t_eq(c);
}

static bool t_lt(const jinja_call *c)
{
    return jv_order(c->r, c->v, jinja_arg(c, 0, "other", jv_undefined)) < 0;
}

static bool t_gt(const jinja_call *c)
{
    return jv_order(c->r, c->v, jinja_arg(c, 0, "other", jv_undefined)) > 0;
}

static bool t_le(const jinja_call *c)
{
    return !t_gt(c);
}

static bool t_ge(const jinja_call *c)
{
    return !t_lt(c);
}

static bool t_in(const jinja_call *c)
{
    return jv_contains(c->r, jinja_arg(c, 0, "seq", jv_undefined), c->v);
}

/* Python's `is`, as far as values without identity allow it: equal, and of one type. */
static bool t_sameas(const jinja_call *c)
{
    jv other = jinja_arg(c, 0, "other", jv_undefined);
    return c->v.kind == other.kind && jv_equal(c->r, c->v, other);
}

/* str.isupper(), str.islower(): all letters with a case are of this one, and there is one at
 * least. */
static bool all_in_case(const jinja_call *c, jchar (*other)(jchar))
{
    jv s = text_of(c);
    bool any = false;
    for (uint32_t i = 0; i < s.n; i++) {
        if (other(s.s[i]) != s.s[i]) return false;
        any |= jchar_upper(s.s[i]) != s.s[i] || jchar_lower(s.s[i]) != s.s[i];
    }
    return any;
}

static bool t_upper(const jinja_call *c)
{
    return all_in_case(c, jchar_upper);
}

static bool t_lower(const jinja_call *c)
{
    return all_in_case(c, jchar_lower);
}

static bool t_filter(const jinja_call *c)
{
    char name[32];
    return name_of(c->v, name) && jinja_filter_find(name) >= 0;
}

static bool t_test(const jinja_call *c)
{
    char name[32];
    return name_of(c->v, name) && jinja_test_find(name) >= 0;
}

static const test tests[] = {
    {"defined", t_defined},
    {"undefined", t_undefined},
    {"none", t_none},
    {"string", t_string},
    {"escaped", t_escaped},
    {"mapping", t_mapping},
    {"iterable", t_iterable},
    {"sequence", t_sequence},
    {"number", t_number},
    {"integer", t_integer},
    {"float", t_float},
    {"boolean", t_boolean},
    {"true", t_true},
    {"false", t_false},
    {"callable", t_callable},
    {"odd", t_odd},
    {"even", t_even},
    {"divisibleby", t_divisible},
    {"eq", t_eq},
    {"equalto", t_eq},
    {"ne", t_ne},
    {"lt", t_lt},
    {"lessthan", t_lt},
    {"gt", t_gt},
    {"greaterthan", t_gt},
    {"le", t_le},
    {"ge", t_ge},
    {"in", t_in},
    {"sameas", t_sameas},
    {"upper", t_upper},
    {"lower", t_lower},
    {"filter", t_filter},
    {"test", t_test},
    {"==", t_eq},
    {"!=", t_ne},
    {"<", t_lt},
    {">", t_gt},
    {"<=", t_le},
    {">=", t_ge},
};

int jinja_test_find(const char *name)
{
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        if (strcmp(tests[i].name, name) == 0) return (int)i;
    }
    return -1;
}

bool jinja_test(jinja_run *r, int fn, jv v, const jargs *args)
{
    if (r->rc) return false;
    jinja_call c = {r, v, args, tests[fn].name};
    return tests[fn].holds(&c) && !r->rc;
}
