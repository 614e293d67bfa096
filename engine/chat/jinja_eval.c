/* jinja_eval.c -- renders a template: eval() computes expressions, jinja_exec() statements, by
 * recursion over the tree; text is appended to the run's output.
 *
 * Names are interned by the lexer, so variables are found by comparing pointers.  A scope is a list
 * of variables with a pointer to the outer scope.  A loop's body gets a new scope for each item, as
 * in Jinja: an assignment there ends with the item.  A macro keeps the scope of its definition.
 * Scopes are in the run's arena and are never freed one by one, so nothing has to track who still
 * refers to them.
 *
 * Undefined is a value, as with Jinja's default: false, empty as a list, printed as nothing; to
 * call it or to take its attributes is an error.  `break` and `continue` set r->flow, which bodies
 * check after each statement.
 *
 * The first error is kept in r->rc; after that every function returns undefined at once, and loops
 * check r->rc.  Bounds against hostile input: STEPS_MAX (each node, item and 64 characters),
 * DEPTH_MAX (recursive macros), RANGE_MAX, and the arena's limit.
 */
#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/utf8.h"
#include "engine/chat/jinja_inside.h"

enum { STEPS_MAX = 20000000, DEPTH_MAX = 250, RANGE_MAX = 100000 };

typedef struct variable {
    const char *name; /* interned */
    jv value;
    struct variable *next;
} variable;

struct jscope {
    jscope *up;
    variable *vars;
};

struct jloop {
    const jv *item;
    uint32_t n, i;
    jv seen; /* loop.changed() */
    int depth;
};

struct jmacro {
    const jnode *node;
    const char *name;
    jscope *scope; /* where it was defined */
};

static jv eval(jinja_run *r, const jnode *n);

/* ----------------------------------------------------------------------- failing -- */

jv jinja_fail(jinja_run *r, err_code rc, const char *fmt, ...)
{
    if (!r->rc) {
        char msg[200];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(msg, sizeof(msg), fmt, ap);
        va_end(ap);
        r->rc = err_set(&r->why, rc, "%s", msg);
    }
    return jv_undefined;
}

bool jinja_step(jinja_run *r, size_t work)
{
    r->steps += (int64_t)work + 1;
    if (r->steps > STEPS_MAX)
        (void)jinja_fail(r, ERR_LIMIT, "the chat template takes too many steps for this request");
    return !r->rc;
}

jv jinja_no_memory(jinja_run *r)
{
    if (r->mem.starved) return jinja_fail(r, ERR_NOMEM, "out of memory");
    return jinja_fail(r, ERR_LIMIT, "the chat template needs too much memory for this request");
}

static jv undefined(const char *what)
{
    return (jv){.kind = JV_UNDEFINED, .what = what};
}

static jv used_undefined(jinja_run *r, jv v)
{
    return jinja_fail(r, ERR_INPUT, "'%.60s' is undefined", v.what ? v.what : "value");
}

/* --------------------------------------------------------------------- variables -- */

jscope *jinja_push_scope(jinja_run *r, jscope *up)
{
    jscope *s = r->rc ? NULL : arena_calloc(&r->mem, 1, sizeof(*s));
    if (!s) {
        (void)jinja_no_memory(r);
        return r->scope;
    }
    s->up = up;
    return s;
}

static variable *find_in(const jscope *s, const char *name)
{
    variable *v = s->vars;
    while (v && v->name != name) v = v->next;
    return v;
}

void jinja_assign(jinja_run *r, jscope *s, const char *name, jv value)
{
    variable *v = find_in(s, name);
    if (!v) {
        v = r->rc ? NULL : arena_calloc(&r->mem, 1, sizeof(*v));
        if (!v) {
            (void)jinja_no_memory(r);
            return;
        }
        v->name = name;
        v->next = s->vars;
        s->vars = v;
    }
    v->value = value;
}

static const char *const globals[] = {"range",           "dict",         "namespace",
                                      "raise_exception", "strftime_now", "joiner"};
enum { RANGE, DICT, NAMESPACE, RAISE, NOW };

static jv look_up(const jinja_run *r, const char *name)
{
    for (const jscope *s = r->scope; s; s = s->up) {
        const variable *v = find_in(s, name);
        if (v) return v->value;
    }
    for (int i = 0; i <= NOW; i++) {
        if (strcmp(globals[i], name) == 0) return (jv){.kind = JV_GLOBAL, .global = i};
    }
    return undefined(name);
}

/* ---------------------------------------------------------------------- looking in -- */

static jv method(jinja_run *r, jv self, const char *name)
{
    jmethod *m = r->rc ? NULL : arena_calloc(&r->mem, 1, sizeof(*m));
    if (!m) return jinja_no_memory(r);
    *m = (jmethod){self, name};
    return (jv){.kind = JV_METHOD, .method = m};
}

static jv loop_attr(jinja_run *r, jv v, const char *name)
{
    const jloop *l = v.loop;
    int64_t i = l->i, n = l->n;
    const struct {
        const char *name;
        jv value;
    } known[] = {{"index", jv_int(i + 1)},        {"index0", jv_int(i)},
                 {"revindex", jv_int(n - i)},     {"revindex0", jv_int(n - i - 1)},
                 {"first", jv_bool(i == 0)},      {"last", jv_bool(i + 1 == n)},
                 {"length", jv_int(n)},           {"depth", jv_int(l->depth)},
                 {"depth0", jv_int(l->depth - 1)}};
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        if (strcmp(known[k].name, name) == 0) return known[k].value;
    }
    if (strcmp(name, "previtem") == 0) return i > 0 ? l->item[i - 1] : undefined("loop.previtem");
    if (strcmp(name, "nextitem") == 0)
        return i + 1 < n ? l->item[i + 1] : undefined("loop.nextitem");
    if (strcmp(name, "cycle") == 0) return method(r, v, "cycle"); /* not `name`: it may not last */
    if (strcmp(name, "changed") == 0) return method(r, v, "changed");
    return undefined("loop's attribute");
}

static bool short_ascii(jv s, char out[32])
{
    uint32_t i = 0;
    for (; i < s.n && i < 31; i++) {
        if (JCHAR_CODE(s.s[i]) >= 128) return false;
        out[i] = (char)JCHAR_CODE(s.s[i]);
    }
    out[i] = 0;
    return i == s.n;
}

/* A method by a name that was computed: the static name of it. */
static jv method_by(jinja_run *r, jv v, jv name)
{
    char text[32];
    if (!short_ascii(name, text)) return undefined(NULL);
    if (v.kind == JV_LOOP) return loop_attr(r, v, text);
    if (!jv_has_method(v, text)) return undefined(NULL);
    char *copy = arena_strndup(&r->mem, text, strlen(text));
    return copy ? method(r, v, copy) : jinja_no_memory(r);
}

jv jinja_attr(jinja_run *r, jv v, jv name)
{
    if (r->rc) return jv_undefined;
    if (v.kind == JV_UNDEFINED) return used_undefined(r, v);
    if (v.kind == JV_NAMESPACE) {
        const jv *found = jv_find(r, v, name);
        return found ? *found : undefined("namespace's attribute");
    }
    jv m = method_by(r, v, name);
    if (m.kind != JV_UNDEFINED || v.kind != JV_MAP) return m;
    const jv *found = jv_find(r, v, name);
    return found ? *found : undefined(NULL);
}

static bool index_in(jv key, uint32_t n, uint32_t *at)
{
    int64_t i = key.kind == JV_BOOL ? key.b : key.i;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return false;
    *at = (uint32_t)i;
    return true;
}

jv jinja_item_of(jinja_run *r, jv v, jv key)
{
    uint32_t at;
    if (r->rc) return jv_undefined;
    if (v.kind == JV_UNDEFINED) return used_undefined(r, v);
    if (v.kind == JV_MAP) {
        const jv *found = jv_find(r, v, key);
        if (found) return *found;
    }
    if (key.kind == JV_STR) {
        jv a = jinja_attr(r, v, key);
        return a.kind == JV_UNDEFINED ? undefined(NULL) : a;
    }
    if (key.kind != JV_INT && key.kind != JV_BOOL) return undefined("item");
    if (v.kind == JV_LIST || v.kind == JV_TUPLE) {
        return index_in(key, v.list->n, &at) ? v.list->item[at] : undefined("item");
    }
    if (v.kind == JV_STR) {
        return index_in(key, v.n, &at) ? jv_substring(v, at, at + 1) : undefined("character");
    }
    return undefined("item");
}

/* Python's slice.indices(). */
static bool slice_bounds(jinja_run *r, const jv part[3], int64_t n, int64_t *from, int64_t *to,
                         int64_t *step)
{
    for (int i = 0; i < 3; i++) {
        if (part[i].kind == JV_INT || part[i].kind == JV_NONE || part[i].kind == JV_BOOL) continue;
        if (part[i].kind == JV_UNDEFINED)
            (void)used_undefined(r, part[i]);
        else
            (void)jinja_fail(r, ERR_INPUT, "slice indices must be integers or None");
        return false;
    }
    *step = part[2].kind == JV_INT ? part[2].i : 1;
    if (*step == 0) {
        (void)jinja_fail(r, ERR_INPUT, "slice step cannot be zero");
        return false;
    }
    int64_t low = *step > 0 ? 0 : -1, high = *step > 0 ? n : n - 1;
    int64_t *out[2] = {from, to}, usual[2] = {*step > 0 ? low : high, *step > 0 ? high : low};
    for (int i = 0; i < 2; i++) {
        int64_t v = part[i].kind == JV_BOOL ? part[i].b : part[i].kind == JV_INT ? part[i].i : 0;
        if (part[i].kind == JV_NONE) {
            *out[i] = usual[i];
            continue;
        }
        if (v < 0) v = v < -n ? -n - 1 + n : v + n;
        *out[i] = v < low ? low : v > high ? high : v;
    }
    if (*step > n) *step = n + 1;
    if (*step < -n) *step = -n - 1;
    return true;
}

static jv slice(jinja_run *r, jv v, const jv part[3])
{
    int64_t from, to, step;
    bool text = v.kind == JV_STR;
    if (v.kind == JV_UNDEFINED) return used_undefined(r, v);
    if (!text && v.kind != JV_LIST && v.kind != JV_TUPLE)
        return jinja_fail(r, ERR_INPUT, "'%s' object cannot be sliced", jv_type(v));
    if (!slice_bounds(r, part, text ? v.n : v.list->n, &from, &to, &step)) return jv_undefined;
    if (text && step == 1)
        return jv_substring(v, (uint32_t)from, (uint32_t)(to > from ? to : from));
    jbuf b = {0};
    jv out = text ? jv_undefined : jv_list(r, v.kind, 0);
    for (int64_t i = from; !r->rc && (step > 0 ? i < to : i > to); i += step) {
        if (text)
            jbuf_add(r, &b, v.s + i, 1);
        else
            (void)jv_push(r, out, v.list->item[i]);
    }
    return text ? jv_marked(jbuf_value(&b), v.markup) : out;
}

/* -------------------------------------------------------------------- arithmetics -- */

static jv bad_operands(jinja_run *r, jop op, jv a, jv b)
{
    static const char *const names[] = {
        [JOP_ADD] = "+",       [JOP_SUB] = "-", [JOP_MUL] = "*", [JOP_DIV] = "/",
        [JOP_FLOORDIV] = "//", [JOP_MOD] = "%", [JOP_POW] = "**"};
    if (a.kind == JV_UNDEFINED) return used_undefined(r, a);
    if (b.kind == JV_UNDEFINED) return used_undefined(r, b);
    return jinja_fail(r, ERR_INPUT, "unsupported operand type(s) for %s: '%s' and '%s'", names[op],
                      jv_type(a), jv_type(b));
}

static jv too_large(jinja_run *r)
{
    return jinja_fail(r, ERR_INPUT, "a number is too large in the chat template");
}

static jv int_power(jinja_run *r, int64_t x, int64_t y)
{
    int64_t out = 1;
    if (y < 0) return jv_float(pow((double)x, (double)y));
    for (; y > 0; y--) {
        if (!jinja_step(r, 0) || __builtin_mul_overflow(out, x, &out)) return too_large(r);
    }
    return jv_int(out);
}

static jv int_arith(jinja_run *r, jop op, int64_t x, int64_t y)
{
    int64_t out = 0;
    bool over = false;
    if (y == 0 && (op == JOP_DIV || op == JOP_FLOORDIV || op == JOP_MOD))
        return jinja_fail(r, ERR_INPUT, "division by zero");
    switch (op) {
    case JOP_ADD: over = __builtin_add_overflow(x, y, &out); break;
    case JOP_SUB: over = __builtin_sub_overflow(x, y, &out); break;
    case JOP_MUL: over = __builtin_mul_overflow(x, y, &out); break;
    case JOP_DIV: return jv_float((double)x / (double)y);
    case JOP_POW: return int_power(r, x, y);
    default:
        assert(y != 0); /* a division or a remainder: asked above */
        if (y == -1) {
            over = op == JOP_FLOORDIV && __builtin_sub_overflow((int64_t)0, x, &out);
            break;
        }
        out = op == JOP_FLOORDIV ? x / y : x % y;
        if (x % y != 0 && (x < 0) != (y < 0)) out += op == JOP_FLOORDIV ? -1 : y;
    }
    return over ? too_large(r) : jv_int(out);
}

static jv float_arith(jinja_run *r, jop op, double x, double y)
{
    if (y == 0 && (op == JOP_DIV || op == JOP_FLOORDIV || op == JOP_MOD))
        return jinja_fail(r, ERR_INPUT, "float division by zero");
    switch (op) {
    case JOP_ADD: return jv_float(x + y);
    case JOP_SUB: return jv_float(x - y);
    case JOP_MUL: return jv_float(x * y);
    case JOP_DIV: return jv_float(x / y);
    case JOP_FLOORDIV: return jv_float(floor(x / y));
    case JOP_POW: return jv_float(pow(x, y));
    default: {
        double m = fmod(x, y);
        return jv_float(m != 0 && (m < 0) != (y < 0) ? m + y : m);
    }
    }
}

static jv repeat(jinja_run *r, jv v, int64_t times)
{
    jbuf b = {0};
    bool text = v.kind == JV_STR;
    jv out = text ? jv_undefined : jv_list(r, v.kind, 0);
    if (text && v.n == 0) return v;
    for (int64_t k = 0; k < times && jinja_step(r, 0); k++) {
        if (text) jbuf_add(r, &b, v.s, v.n);
        for (uint32_t i = 0; !text && i < v.list->n; i++) (void)jv_push(r, out, v.list->item[i]);
        if (!text && v.list->n == 0) break;
    }
    return text ? jv_marked(jbuf_value(&b), v.markup) : out;
}

static bool is_sequence(jv v)
{
    return v.kind == JV_STR || v.kind == JV_LIST || v.kind == JV_TUPLE;
}

jv jinja_arith(jinja_run *r, jop op, jv a, jv b)
{
    if (r->rc) return jv_undefined;
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.kind == JV_FLOAT || b.kind == JV_FLOAT)
            return float_arith(r, op, jv_number(a), jv_number(b));
        return int_arith(r, op, a.kind == JV_BOOL ? a.b : a.i, b.kind == JV_BOOL ? b.b : b.i);
    }
    if (op == JOP_ADD && a.kind == b.kind && is_sequence(a)) {
        jbuf text = {0};
        if (a.kind == JV_STR) {
            bool markup = a.markup || b.markup;
            if (markup) a = jv_escaped(r, a);
            if (markup) b = jv_escaped(r, b);
            jbuf_add(r, &text, a.s, a.n);
            jbuf_add(r, &text, b.s, b.n);
            return jv_marked(jbuf_value(&text), markup);
        }
        jv out = jv_list(r, a.kind, (size_t)a.list->n + b.list->n);
        for (uint32_t i = 0; i < a.list->n; i++) (void)jv_push(r, out, a.list->item[i]);
        for (uint32_t i = 0; i < b.list->n; i++) (void)jv_push(r, out, b.list->item[i]);
        return out;
    }
    if (op == JOP_MUL && is_sequence(b)) {
        jv keep = a;
        a = b;
        b = keep;
    }
    if (op == JOP_MUL && is_sequence(a) && (b.kind == JV_INT || b.kind == JV_BOOL))
        return repeat(r, a, b.kind == JV_BOOL ? b.b : b.i);
    return bad_operands(r, op, a, b);
}

/* From left to right; a chain of joined texts is copied once. */
static jv arith_chain(jinja_run *r, const jnode *n)
{
    jbuf b = {0};
    bool building = false;
    jv v = eval(r, n->list[0]);
    for (int i = 1; i < n->n && !r->rc; i++) {
        jv next = eval(r, n->list[i]);
        bool texts = v.kind == JV_STR && next.kind == JV_STR;
        if (n->ops[i] != JOP_ADD || !texts || v.markup || next.markup) {
            v = jinja_arith(r, (jop)n->ops[i], v, next);
            building = false;
            continue;
        }
        if (!building) {
            b = (jbuf){0};
            jbuf_add(r, &b, v.s, v.n);
        }
        building = true;
        jbuf_add(r, &b, next.s, next.n);
        v = jbuf_value(&b);
    }
    return r->rc ? jv_undefined : v;
}

static bool holds(jinja_run *r, jop op, jv a, jv b)
{
    switch (op) {
    case JOP_EQ: return jv_equal(r, a, b);
    case JOP_NE: return !jv_equal(r, a, b);
    case JOP_LT: return jv_order(r, a, b) < 0;
    case JOP_LE: return jv_order(r, a, b) <= 0;
    case JOP_GT: return jv_order(r, a, b) > 0;
    case JOP_GE: return jv_order(r, a, b) >= 0;
    case JOP_IN: return jv_contains(r, b, a);
    default: return !jv_contains(r, b, a);
    }
}

static jv comparison(jinja_run *r, const jnode *n)
{
    jv left = eval(r, n->list[0]);
    for (int i = 1; i < n->n && !r->rc; i++) {
        jv right = eval(r, n->list[i]);
        if (!holds(r, (jop)n->ops[i], left, right)) return jv_bool(false);
        left = right;
    }
    return jv_bool(true);
}

/* -------------------------------------------------------------------------- calls -- */

bool jargs_take(const jargs *a, int place, const char *name, jv *out)
{
    if (place < a->n_pos) {
        *out = a->pos[place];
        return true;
    }
    for (int i = 0; i < a->n_named; i++) {
        if (strcmp(a->names[i], name) != 0) continue;
        *out = a->named[i];
        return true;
    }
    return false;
}

static bool eval_args(jinja_run *r, const jnode *n, jargs *a)
{
    *a = (jargs){0};
    if (n->n == 0) return !r->rc;
    a->pos = arena_calloc(&r->mem, (size_t)n->n, sizeof(*a->pos));
    a->named = arena_calloc(&r->mem, (size_t)n->n, sizeof(*a->named));
    a->names = arena_calloc(&r->mem, (size_t)n->n, sizeof(*a->names));
    if (!a->pos || !a->named || !a->names) {
        (void)jinja_no_memory(r);
        return false;
    }
    for (int i = 0; i < n->n && !r->rc; i++) {
        jv v = eval(r, n->list[i]);
        if (!n->names[i]) {
            a->pos[a->n_pos++] = v;
            continue;
        }
        a->names[a->n_named] = n->names[i];
        a->named[a->n_named++] = v;
    }
    return !r->rc;
}

/* The output of a body as a text. */
static jv capture(jinja_run *r, const jnode *body, jscope *scope)
{
    jbuf b = {0}, *out = r->out;
    jscope *old = r->scope;
    int flow = r->flow;
    r->out = &b;
    r->scope = scope;
    r->flow = 0;
    jinja_exec(r, body);
    r->flow = flow;
    r->out = out;
    r->scope = old;
    return r->rc ? jv_undefined : jbuf_value(&b);
}

static jv call_macro(jinja_run *r, const jmacro *m, const jargs *args, const jv *caller)
{
    const jnode *n = m->node;
    jscope *s = jinja_push_scope(r, m->scope), *old = r->scope;
    if (r->rc) return jv_undefined;
    if (args->n_pos > n->n) {
        return jinja_fail(r, ERR_INPUT, "macro '%.40s' accepts at most %d argument(s)", m->name,
                          n->n);
    }
    for (int i = 0; i < args->n_named; i++) {
        int k = 0;
        while (k < n->n && n->names[k] != args->names[i]) k++;
        if (k == n->n || k < args->n_pos) {
            return jinja_fail(r, ERR_INPUT, "macro '%.40s' has no keyword argument '%.40s'",
                              m->name, args->names[i]);
        }
    }
    r->scope = s;
    for (int i = 0; i < n->n && !r->rc; i++) {
        jv v;
        if (!jargs_take(args, i, n->names[i], &v))
            v = n->list[i] ? eval(r, n->list[i]) : undefined(n->names[i]);
        jinja_assign(r, s, n->names[i], v);
    }
    r->scope = old;
    const char *word = jinja_interned(r->t, "caller");
    if (word) jinja_assign(r, s, word, caller ? *caller : undefined("caller"));
    return capture(r, n->c, s);
}

static jv call_range(jinja_run *r, const jargs *a)
{
    int64_t v[3] = {0, 0, 1};
    if (a->n_pos < 1 || a->n_pos > 3) return jinja_fail(r, ERR_INPUT, "range(): wrong arguments");
    for (int i = 0; i < a->n_pos; i++) {
        if (a->pos[i].kind != JV_INT) return jinja_fail(r, ERR_INPUT, "range(): wrong arguments");
        v[a->n_pos == 1 ? 1 : i] = a->pos[i].i;
    }
    if (v[2] == 0) return jinja_fail(r, ERR_INPUT, "range() arg 3 must not be zero");
    jv out = jv_list(r, JV_LIST, 0);
    for (int64_t i = v[0]; (v[2] > 0 ? i < v[1] : i > v[1]) && !r->rc;) {
        (void)jv_push(r, out, jv_int(i));
        if (out.list->n > RANGE_MAX) return jinja_fail(r, ERR_LIMIT, "range too big");
        if (__builtin_add_overflow(i, v[2], &i)) break;
    }
    return out;
}

static jv call_dict(jinja_run *r, const jargs *a, jv_kind kind)
{
    jv map = jv_map(r, 0);
    if (a->n_pos > 1 || (a->n_pos && a->pos[0].kind != JV_MAP))
        return jinja_fail(r, ERR_INPUT, "dict(): wrong arguments");
    for (uint32_t i = 0; a->n_pos && i < a->pos[0].map->n; i++)
        (void)jv_put(r, map, a->pos[0].map->key[i], a->pos[0].map->val[i]);
    for (int i = 0; i < a->n_named && !r->rc; i++)
        (void)jv_put(r, map, jv_ascii(r, a->names[i]), a->named[i]);
    map.kind = kind;
    return r->rc ? jv_undefined : map;
}

/* UTF-8, truncated to `cap`. */
static void to_utf8(jv v, char *out, size_t cap)
{
    size_t n = 0;
    for (uint32_t i = 0; i < v.n && n + 5 < cap; i++) n += utf8_encode(JCHAR_CODE(v.s[i]), out + n);
    out[n] = 0;
}

static jv call_now(jinja_run *r, const jargs *a)
{
    char format[128], text[512];
    struct tm tm;
    time_t now = (time_t)r->now();
    if (a->n_pos != 1 || a->pos[0].kind != JV_STR || !localtime_r(&now, &tm))
        return jinja_fail(r, ERR_INPUT, "strftime_now(): wrong arguments");
    to_utf8(a->pos[0], format, sizeof(format));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* strftime() writes dates and nothing else */
    size_t n = strftime(text, sizeof(text), format, &tm);
#pragma GCC diagnostic pop
    jv v = jv_utf8(&r->mem, text, n, false);
    return v.kind == JV_STR ? v : jinja_no_memory(r);
}

static jv call_global(jinja_run *r, int which, const jargs *a)
{
    char text[180] = "";
    switch (which) {
    case RANGE: return call_range(r, a);
    case DICT: return call_dict(r, a, JV_MAP);
    case NAMESPACE: return call_dict(r, a, JV_NAMESPACE);
    case NOW: return call_now(r, a);
    default: break;
    }
    if (a->n_pos) to_utf8(jv_str(r, a->pos[0]), text, sizeof(text));
    return jinja_fail(r, ERR_INPUT, "%s",
                      text[0] ? text : "the chat template refuses this conversation");
}

static jv loop_method(jinja_run *r, const jmethod *m, const jargs *a)
{
    jloop *l = m->self.loop;
    if (a->n_pos == 0) return jinja_fail(r, ERR_INPUT, "no items for cycling given");
    if (strcmp(m->name, "cycle") == 0) return a->pos[l->i % (uint32_t)a->n_pos];
    jv now = jv_list(r, JV_TUPLE, 0);
    for (int i = 0; i < a->n_pos; i++) (void)jv_push(r, now, a->pos[i]);
    bool changed = l->seen.kind == JV_UNDEFINED || !jv_equal(r, l->seen, now);
    l->seen = now;
    return jv_bool(changed);
}

static jv call(jinja_run *r, const jnode *n, const jv *caller)
{
    jargs a;
    jv what = eval(r, n->a);
    if (!eval_args(r, n, &a)) return jv_undefined;
    switch (what.kind) {
    case JV_UNDEFINED: return used_undefined(r, what);
    case JV_MACRO: return call_macro(r, what.macro, &a, caller);
    case JV_GLOBAL: return call_global(r, what.global, &a);
    case JV_METHOD:
        return what.method->self.kind == JV_LOOP ? loop_method(r, what.method, &a)
                                                 : jv_call_method(r, what.method, &a);
    default: return jinja_fail(r, ERR_INPUT, "'%s' object is not callable", jv_type(what));
    }
}

static jv filtered(jinja_run *r, const jnode *n)
{
    jargs a;
    jv v = n->a ? eval(r, n->a) : r->block;
    if (!eval_args(r, n, &a)) return jv_undefined;
    if (n->fn < 0) return jinja_fail(r, ERR_INPUT, "No filter named '%.60s' found.", n->name);
    return jinja_filter(r, n->fn, v, &a);
}

/* ------------------------------------------------------------------- expressions -- */

static jv sequence(jinja_run *r, const jnode *n)
{
    jv out = jv_list(r, n->kind == JN_LIST ? JV_LIST : JV_TUPLE, (size_t)n->n);
    for (int i = 0; i < n->n && !r->rc; i++) (void)jv_push(r, out, eval(r, n->list[i]));
    return out;
}

static jv mapping(jinja_run *r, const jnode *n)
{
    jv out = jv_map(r, (size_t)n->n / 2);
    for (int i = 0; i + 1 < n->n && !r->rc; i += 2) {
        jv key = eval(r, n->list[i]);
        (void)jv_put(r, out, key, eval(r, n->list[i + 1]));
    }
    return out;
}

/* and, or: the value that decides. */
static jv decided(jinja_run *r, const jnode *n)
{
    jv v = jv_undefined;
    for (int i = 0; i < n->n && !r->rc; i++) {
        v = eval(r, n->list[i]);
        if (jv_true(v) == (n->kind == JN_OR)) break;
    }
    return v;
}

static jv concatenated(jinja_run *r, const jnode *n)
{
    jbuf b = {0};
    for (int i = 0; i < n->n && !r->rc; i++) jbuf_str(r, &b, eval(r, n->list[i]));
    return jbuf_value(&b);
}

static jv sign(jinja_run *r, const jnode *n)
{
    jv v = eval(r, n->a);
    if (r->rc) return jv_undefined;
    if (v.kind == JV_UNDEFINED) return used_undefined(r, v);
    if (!jv_is_number(v))
        return jinja_fail(r, ERR_INPUT, "bad operand type for a sign: '%s'", jv_type(v));
    return jinja_arith(r, n->kind == JN_NEG ? JOP_SUB : JOP_ADD, jv_int(0), v);
}

static jv sliced(jinja_run *r, const jnode *n)
{
    jv part[3], v = eval(r, n->a);
    for (int i = 0; i < 3; i++) part[i] = n->list[i] ? eval(r, n->list[i]) : jv_none;
    return r->rc ? jv_undefined : slice(r, v, part);
}

static jv attr(jinja_run *r, const jnode *n)
{
    jv v = eval(r, n->a);
    jv out = jinja_attr(r, v, n->value);
    if (out.kind == JV_UNDEFINED) out.what = n->name;
    return out;
}

static jv tested(jinja_run *r, const jnode *n)
{
    jargs a;
    jv v = eval(r, n->a);
    if (!eval_args(r, n, &a)) return jv_undefined;
    if (n->fn < 0) return jinja_fail(r, ERR_INPUT, "No test named '%.60s' found.", n->name);
    return jv_bool(jinja_test(r, n->fn, v, &a));
}

static jv eval_one(jinja_run *r, const jnode *n)
{
    switch (n->kind) {
    case JN_CONST: return n->value;
    case JN_NAME: return look_up(r, n->name);
    case JN_LIST:
    case JN_TUPLE: return sequence(r, n);
    case JN_MAP: return mapping(r, n);
    case JN_ATTR: return attr(r, n);
    case JN_ITEM: {
        jv v = eval(r, n->a);
        return jinja_item_of(r, v, eval(r, n->b));
    }
    case JN_SLICE: return sliced(r, n);
    case JN_CALL: return call(r, n, NULL);
    case JN_FILTER: return filtered(r, n);
    case JN_TEST: return tested(r, n);
    case JN_NOT: return jv_bool(!jv_true(eval(r, n->a)));
    case JN_NEG:
    case JN_POS: return sign(r, n);
    case JN_AND:
    case JN_OR: return decided(r, n);
    case JN_COMPARE: return comparison(r, n);
    case JN_ARITH: return arith_chain(r, n);
    case JN_CONCAT: return concatenated(r, n);
    case JN_IF:
        if (jv_true(eval(r, n->a))) return eval(r, n->b);
        return n->c ? eval(r, n->c) : undefined("the inline if without else");
    default: return jinja_fail(r, ERR_INTERNAL, "a statement in an expression");
    }
}

static bool enter(jinja_run *r)
{
    if (r->depth >= DEPTH_MAX)
        (void)jinja_fail(r, ERR_LIMIT, "the chat template nests too many calls");
    r->depth++;
    return jinja_step(r, 0);
}

static jv eval(jinja_run *r, const jnode *n)
{
    jv v = enter(r) ? eval_one(r, n) : jv_undefined;
    r->depth--;
    return r->rc ? jv_undefined : v;
}

/* --------------------------------------------------------------------- statements -- */

static void unpack(jinja_run *r, jscope *s, const jnode *n, jv v)
{
    const jv *item;
    uint32_t count;
    if (n->n == 1) {
        jinja_assign(r, s, n->names[0], v);
        return;
    }
    if (!jv_items(r, v, &item, &count)) return;
    if (count != (uint32_t)n->n) {
        (void)jinja_fail(r, ERR_INPUT, "%u values cannot be unpacked into %d", count, n->n);
        return;
    }
    for (int i = 0; i < n->n; i++) jinja_assign(r, s, n->names[i], item[i]);
}

/* The items that the loop's condition keeps. */
static bool keep_items(jinja_run *r, const jnode *n, const jv **item, uint32_t *count)
{
    jv kept = jv_list(r, JV_LIST, *count);
    jscope *old = r->scope;
    for (uint32_t i = 0; i < *count && !r->rc; i++) {
        r->scope = jinja_push_scope(r, old);
        unpack(r, r->scope, n, (*item)[i]);
        if (jv_true(eval(r, n->b)) && !r->rc) (void)jv_push(r, kept, (*item)[i]);
    }
    r->scope = old;
    if (r->rc) return false;
    *item = kept.list->item;
    *count = kept.list->n;
    return true;
}

/* {% for %}: items after its inline `if`, each in a scope of its own, so an assignment does not
 * outlast it; the `else` where there is no item. */
static void loop(jinja_run *r, const jnode *n)
{
    const jv *item;
    uint32_t count;
    jv all = eval(r, n->a);
    if (!jv_items(r, all, &item, &count)) return;
    if (n->b && !keep_items(r, n, &item, &count)) return;
    jscope *old = r->scope;
    jloop *l = arena_calloc(&r->mem, 1, sizeof(*l));
    const char *word = jinja_interned(r->t, "loop");
    if (!l) {
        (void)jinja_no_memory(r);
        return;
    }
    *l = (jloop){.item = item, .n = count, .depth = 1};
    for (; l->i < count && !r->rc && r->flow != JN_BREAK; l->i++) {
        r->flow = 0;
        r->scope = jinja_push_scope(r, old);
        if (word) jinja_assign(r, r->scope, word, (jv){.kind = JV_LOOP, .loop = l});
        unpack(r, r->scope, n, item[l->i]);
        jinja_exec(r, n->c);
    }
    r->flow = 0;
    r->scope = old;
    if (count == 0 && n->d) {
        r->scope = jinja_push_scope(r, old);
        jinja_exec(r, n->d);
        r->scope = old;
    }
}

static void branch(jinja_run *r, const jnode *n)
{
    for (int i = 0; i + 1 < n->n && !r->rc; i += 2) {
        if (!jv_true(eval(r, n->list[i]))) continue;
        jinja_exec(r, n->list[i + 1]);
        return;
    }
    if (n->d && !r->rc) jinja_exec(r, n->d);
}

static void set_attr(jinja_run *r, const jnode *n)
{
    jv v = eval(r, n->a), of = look_up(r, n->name);
    if (r->rc) return;
    if (of.kind != JV_NAMESPACE)
        (void)jinja_fail(r, ERR_INPUT, "cannot assign attribute on non-namespace object");
    else
        (void)jv_put(r, of, n->value, v);
}

static jv macro_value(jinja_run *r, const jnode *n, const char *name)
{
    jmacro *m = r->rc ? NULL : arena_calloc(&r->mem, 1, sizeof(*m));
    if (!m) return jinja_no_memory(r);
    *m = (jmacro){n, name, r->scope};
    return (jv){.kind = JV_MACRO, .macro = m};
}

/* A body's text through the filters, NULL: none. */
static jv through(jinja_run *r, const jnode *body, const jnode *filters)
{
    jv text = capture(r, body, jinja_push_scope(r, r->scope)), old = r->block;
    if (!filters) return text;
    r->block = text;
    jv v = eval(r, filters);
    r->block = old;
    return v;
}

static void with(jinja_run *r, const jnode *n)
{
    jscope *old = r->scope, *s = jinja_push_scope(r, old);
    for (int i = 0; i < n->n && !r->rc; i++) jinja_assign(r, s, n->names[i], eval(r, n->list[i]));
    r->scope = s;
    jinja_exec(r, n->c);
    r->scope = old;
}

static void exec_one(jinja_run *r, const jnode *n)
{
    switch (n->kind) {
    case JN_BODY:
        for (int i = 0; i < n->n && !r->rc && !r->flow; i++) jinja_exec(r, n->list[i]);
        return;
    case JN_TEXT: jbuf_add(r, r->out, n->value.s, n->value.n); return;
    case JN_PRINT: jbuf_str(r, r->out, eval(r, n->a)); return;
    case JN_FOR: loop(r, n); return;
    case JN_BRANCH: branch(r, n); return;
    case JN_SET: unpack(r, r->scope, n, eval(r, n->a)); return;
    case JN_SET_ATTR: set_attr(r, n); return;
    case JN_SET_BLOCK: jinja_assign(r, r->scope, n->name, through(r, n->c, n->a)); return;
    case JN_MACRO: jinja_assign(r, r->scope, n->name, macro_value(r, n, n->name)); return;
    case JN_CALL_BLOCK: {
        jv caller = macro_value(r, n, "caller");
        if (!r->rc) jbuf_str(r, r->out, call(r, n->a, &caller));
        return;
    }
    case JN_WITH: with(r, n); return;
    case JN_SCOPE:
    case JN_FILTER_BLOCK: jbuf_str(r, r->out, through(r, n->c, n->a)); return;
    case JN_BREAK:
    case JN_CONTINUE: r->flow = (int)n->kind; return;
    default: (void)jinja_fail(r, ERR_INTERNAL, "an expression as a statement");
    }
}

void jinja_exec(jinja_run *r, const jnode *n)
{
    if (enter(r)) exec_one(r, n);
    r->depth--;
}
