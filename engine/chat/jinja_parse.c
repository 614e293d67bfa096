/* jinja_parse.c -- tokens to a tree, by recursive descent; one function per level of precedence, as
 * in Jinja's own parser:
 *
 *   expression  a if b else c          sum      + -
 *   condition   or, and, not           concat   ~
 *   compare     == != < in not in      product  * / // %
 *                                      power    **
 *                                      unary    - + , then postfix: .a [b] (c) |filter `is` test
 *
 * Chains (a + b + c, a and b and c, elif) are one node with a list, so the tree is only as deep as
 * the template is nested, which NEST_MAX bounds.  A node's lists (items, names, operators) grow
 * together.
 *
 * body() reads statements until one of the given closing tags.  Unknown filters and tests are
 * errors when the template is read; inside of an `if` only when they are reached, as in Jinja,
 * because templates test for features there.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/chat/jinja_inside.h"

enum { NEST_MAX = 120, LIST_MAX = 20000 };

typedef struct {
    jinja *t;
    const jtoken *tok;
    int nest;
    int n_loops; /* for: break and continue need one */
    bool soft;   /* an unknown name is an error only when it is reached: inside of an if, as in
                * Jinja */
    const jtoken *unknown; /* the first unknown filter or test elsewhere */
    const char *unknown_kind;
    err *e;
    err_code rc;
} parser;

static jnode *expression(parser *p);
static jnode *condition(parser *p);
static jnode *unary(parser *p, bool with_filter);
static jnode *body(parser *p, const char *const *ends);

/* ------------------------------------------------------------------------ tokens -- */

static void *fail(parser *p, err_code rc, const char *what)
{
    if (!p->rc) p->rc = err_set(p->e, rc, "chat template, line %d: %s", p->tok->line, what);
    return NULL;
}

static bool is_op(const jtoken *t, const char *op)
{
    return t->kind == JT_OP && strcmp(t->name, op) == 0;
}

static bool is_word(const jtoken *t, const char *word)
{
    return t->kind == JT_NAME && strcmp(t->name, word) == 0;
}

static bool skip_op(parser *p, const char *op)
{
    if (!is_op(p->tok, op)) return false;
    p->tok++;
    return true;
}

static bool skip_word(parser *p, const char *word)
{
    if (!is_word(p->tok, word)) return false;
    p->tok++;
    return true;
}

static bool need_op(parser *p, const char *op)
{
    return skip_op(p, op) || fail(p, ERR_INPUT, "something else is expected here");
}

static bool need(parser *p, jtoken_kind kind)
{
    if (p->tok->kind != kind) return fail(p, ERR_INPUT, "something else is expected here");
    if (kind != JT_END) p->tok++;
    return true;
}

static const char *need_name(parser *p)
{
    if (p->tok->kind != JT_NAME) return fail(p, ERR_INPUT, "a name is expected here");
    return (p->tok++)->name;
}

/* ------------------------------------------------------------------------- nodes -- */

static jnode *node(parser *p, jn_kind kind)
{
    jnode *n = p->rc ? NULL : arena_calloc(&p->t->mem, 1, sizeof(*n));
    if (!n) return fail(p, ERR_LIMIT, "the template is too large");
    n->kind = kind;
    n->line = p->tok->line;
    return n;
}

/* Space for one more element in each of the node's lists. */
static bool room(parser *p, jnode *n)
{
    if (p->rc) return false;
    if (n->n & (n->n - 1)) return true; /* grows at powers of two */
    int cap = n->n ? 2 * n->n : 1;
    jnode **list = cap <= LIST_MAX ? arena_calloc(&p->t->mem, (size_t)cap, sizeof(*list)) : NULL;
    const char **names = list ? arena_calloc(&p->t->mem, (size_t)cap, sizeof(*names)) : NULL;
    uint8_t *ops = names ? arena_calloc(&p->t->mem, (size_t)cap, 1) : NULL;
    if (!ops) return fail(p, ERR_LIMIT, "the template is too large");
    if (n->n) {
        memcpy(list, n->list, (size_t)n->n * sizeof(*list));
        memcpy(names, n->names, (size_t)n->n * sizeof(*names));
        memcpy(ops, n->ops, (size_t)n->n);
    }
    n->list = list;
    n->names = names;
    n->ops = ops;
    return true;
}

static bool append(parser *p, jnode *n, jnode *item, const char *name, int op)
{
    if (!n || !room(p, n)) return false;
    n->list[n->n] = item;
    n->names[n->n] = name;
    n->ops[n->n++] = (uint8_t)op;
    return true;
}

static jnode *constant(parser *p, jv v)
{
    jnode *n = node(p, JN_CONST);
    if (n) n->value = v;
    return n;
}

/* A name as a constant string. */
static jv name_value(parser *p, const char *name)
{
    jv v = jv_utf8(&p->t->mem, name, strlen(name), false);
    if (v.kind == JV_UNDEFINED) (void)fail(p, ERR_LIMIT, "the template is too large");
    return v;
}

/* ------------------------------------------------------------------- expressions -- */

static jnode *strings(parser *p)
{
    size_t total = 0;
    const jtoken *first = p->tok;
    while (p->tok->kind == JT_STR) total += (p->tok++)->value.n;
    if (p->tok == first + 1) return constant(p, first->value);
    jchar *s = arena_calloc(&p->t->mem, total + 1, sizeof(*s));
    if (!s) return fail(p, ERR_LIMIT, "the template is too large");
    size_t n = 0;
    for (const jtoken *t = first; t < p->tok; t++) {
        memcpy(s + n, t->value.s, t->value.n * sizeof(*s));
        n += t->value.n;
    }
    return constant(p, jv_chars(s, n));
}

/* Items up to `end`; a tuple in parentheses is one only with a comma. */
static jnode *items(parser *p, jn_kind kind, const char *end, bool *comma)
{
    jnode *n = node(p, kind);
    *comma = false;
    while (!p->rc && !skip_op(p, end)) {
        if (n->n && !*comma) return fail(p, ERR_INPUT, "a comma is missing");
        if (!append(p, n, expression(p), NULL, 0)) return NULL;
        *comma = skip_op(p, ",");
    }
    return n;
}

static jnode *map(parser *p)
{
    jnode *n = node(p, JN_MAP);
    bool comma = true;
    while (!p->rc && !skip_op(p, "}")) {
        if (!comma) return fail(p, ERR_INPUT, "a comma is missing");
        if (!append(p, n, expression(p), NULL, 0) || !need_op(p, ":") ||
            !append(p, n, expression(p), NULL, 0)) {
            return NULL;
        }
        comma = skip_op(p, ",");
    }
    return n;
}

static jnode *parenthesis(parser *p)
{
    bool comma;
    jnode *n = items(p, JN_TUPLE, ")", &comma);
    return n && n->n == 1 && !comma ? n->list[0] : n;
}

/* For jinja_reads(). */
static bool note_variable(parser *p, const char *name)
{
    jinja *t = p->t;
    for (int i = 0; i < t->n_vars; i++) {
        if (t->vars[i] == name) return true;
    }
    if (t->n_vars == t->cap_vars) {
        int cap = 2 * t->cap_vars + 16;
        const char **vars = arena_calloc(&t->mem, (size_t)cap, sizeof(*vars));
        if (!vars) return fail(p, ERR_LIMIT, "the template is too large");
        if (t->n_vars) memcpy(vars, t->vars, (size_t)t->n_vars * sizeof(*vars));
        t->vars = vars;
        t->cap_vars = cap;
    }
    t->vars[t->n_vars++] = name;
    return true;
}

static jnode *word(parser *p)
{
    static const struct {
        const char *name;
        jv value;
    } words[] = {
        {"true", {.kind = JV_BOOL, .b = true}},
        {"True", {.kind = JV_BOOL, .b = true}},
        {"false", {.kind = JV_BOOL, .b = false}},
        {"False", {.kind = JV_BOOL, .b = false}},
        {"none", {.kind = JV_NONE}},
        {"None", {.kind = JV_NONE}},
    };
    const char *name = (p->tok++)->name;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(words[i].name, name) == 0) return constant(p, words[i].value);
    }
    jnode *n = node(p, JN_NAME);
    if (!n || !note_variable(p, name)) return NULL;
    n->name = name;
    return n;
}

static jnode *primary(parser *p)
{
    bool comma;
    switch (p->tok->kind) {
    case JT_NAME: return word(p);
    case JT_STR: return strings(p);
    case JT_INT:
    case JT_FLOAT: return constant(p, (p->tok++)->value);
    default: break;
    }
    if (skip_op(p, "(")) return parenthesis(p);
    if (skip_op(p, "[")) return items(p, JN_LIST, "]", &comma);
    if (skip_op(p, "{")) return map(p);
    return fail(p, ERR_INPUT, "a value is expected here");
}

/* Arguments behind "(", into n->list; named ones have a name. */
static bool arguments(parser *p, jnode *n)
{
    bool comma = true;
    while (!p->rc && !skip_op(p, ")")) {
        if (!comma) return fail(p, ERR_INPUT, "a comma is missing");
        if (is_op(p->tok, "*") || is_op(p->tok, "**"))
            return fail(p, ERR_UNSUPPORTED, "* and ** in a call are not supported");
        const char *name = NULL;
        if (p->tok->kind == JT_NAME && is_op(p->tok + 1, "=")) {
            name = p->tok->name;
            p->tok += 2;
        }
        if (!append(p, n, expression(p), name, 0)) return false;
        comma = skip_op(p, ",");
    }
    return !p->rc;
}

static jnode *call(parser *p, jnode *what)
{
    jnode *n = node(p, JN_CALL);
    if (!n) return NULL;
    n->a = what;
    return arguments(p, n) ? n : NULL;
}

/* Behind "[": an index, or a slice. */
static jnode *subscript(parser *p, jnode *of)
{
    jnode *part[3] = {0};
    int colons = 0;
    while (!p->rc && !is_op(p->tok, "]")) {
        if (skip_op(p, ":")) {
            if (++colons > 2) return fail(p, ERR_INPUT, "a slice has three parts at most");
        } else if (part[colons]) {
            return fail(p, ERR_INPUT, "something else is expected here");
        } else {
            part[colons] = expression(p);
        }
    }
    if (!need_op(p, "]")) return NULL;
    jnode *n = node(p, colons ? JN_SLICE : JN_ITEM);
    if (!n) return NULL;
    if (!colons && !part[0]) return fail(p, ERR_INPUT, "an index is missing");
    n->a = of;
    n->b = part[0];
    for (int i = 0; colons && i < 3; i++) {
        if (!append(p, n, part[i], NULL, 0)) return NULL;
    }
    return n;
}

static jnode *attribute(parser *p, jnode *of)
{
    if (p->tok->kind == JT_INT) {
        jnode *n = node(p, JN_ITEM);
        if (!n) return NULL;
        n->a = of;
        n->b = constant(p, (p->tok++)->value);
        return n;
    }
    const char *name = need_name(p);
    jnode *n = name ? node(p, JN_ATTR) : NULL;
    if (!n) return NULL;
    n->a = of;
    n->name = name;
    n->value = name_value(p, name);
    return n;
}

static jnode *postfix(parser *p, jnode *n)
{
    while (n && !p->rc) {
        if (skip_op(p, "."))
            n = attribute(p, n);
        else if (skip_op(p, "["))
            n = subscript(p, n);
        else if (skip_op(p, "("))
            n = call(p, n);
        else
            return n;
    }
    return n;
}

/* The name before the token that is read next. */
static void note_unknown(parser *p, const char *kind)
{
    if (p->soft || p->unknown) return;
    p->unknown = p->tok - 1;
    p->unknown_kind = kind;
}

/* Behind "|". */
static jnode *filter(parser *p, jnode *of)
{
    const char *name = need_name(p);
    jnode *n = name ? node(p, JN_FILTER) : NULL;
    if (!n) return NULL;
    n->a = of;
    n->name = name;
    n->fn = jinja_filter_find(name);
    if (n->fn < 0) note_unknown(p, "filter");
    return skip_op(p, "(") && !arguments(p, n) ? NULL : n;
}

static const char *compare_word(const jtoken *t)
{
    static const struct {
        const char *op, *name;
    } ops[] = {{"==", "eq"}, {"!=", "ne"}, {"<", "lt"}, {"<=", "le"}, {">", "gt"}, {">=", "ge"}};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (is_op(t, ops[i].op)) return ops[i].name;
    }
    return NULL;
}

/* Behind "is". */
static jnode *test(parser *p, jnode *of)
{
    bool negated = skip_word(p, "not");
    const char *name = compare_word(p->tok);
    if (name)
        p->tok++;
    else
        name = need_name(p);
    jnode *n = name ? node(p, JN_TEST) : NULL;
    if (!n) return NULL;
    n->a = of;
    n->name = name;
    n->fn = jinja_test_find(name);
    if (n->fn < 0) note_unknown(p, "test");
    const jtoken *t = p->tok;
    bool value = t->kind == JT_STR || t->kind == JT_INT || t->kind == JT_FLOAT || is_op(t, "[") ||
                 is_op(t, "{") ||
                 (t->kind == JT_NAME && !is_word(t, "else") && !is_word(t, "or") &&
                  !is_word(t, "and") && !is_word(t, "is"));
    if (skip_op(p, "(")) {
        if (!arguments(p, n)) return NULL;
    } else if (value && !append(p, n, postfix(p, primary(p)), NULL, 0)) {
        return NULL;
    }
    if (!negated) return n;
    jnode *not = node(p, JN_NOT);
    if (not ) not ->a = n;
    return not ;
}

static jnode *filters(parser *p, jnode *n)
{
    while (n && !p->rc) {
        if (skip_op(p, "|"))
            n = filter(p, n);
        else if (skip_word(p, "is"))
            n = test(p, n);
        else if (skip_op(p, "("))
            n = call(p, n);
        else
            return n;
    }
    return n;
}

static jnode *unary(parser *p, bool with_filter)
{
    if (++p->nest > NEST_MAX) return fail(p, ERR_LIMIT, "the template is nested too deep");
    jnode *n;
    bool minus = skip_op(p, "-");
    if (minus || skip_op(p, "+")) {
        n = node(p, minus ? JN_NEG : JN_POS);
        if (n) n->a = unary(p, false);
    } else {
        n = primary(p);
    }
    n = postfix(p, n);
    if (with_filter) n = filters(p, n);
    p->nest--;
    return n;
}

static jnode *operand(parser *p)
{
    return unary(p, true);
}

typedef struct {
    const char *op;
    jop code;
} arith;

/* Left to right; the operators of one level. */
static jnode *chain(parser *p, const arith *ops, jnode *(*next)(parser *p))
{
    jnode *first = next(p), *n = NULL;
    while (!p->rc) {
        const arith *o = ops;
        while (o->op && !is_op(p->tok, o->op)) o++;
        if (!o->op) break;
        p->tok++;
        if (!n) {
            n = node(p, JN_ARITH);
            if (!append(p, n, first, NULL, 0)) return NULL;
        }
        if (!append(p, n, next(p), NULL, o->code)) return NULL;
    }
    return n ? n : first;
}

static jnode *power(parser *p)
{
    static const arith ops[] = {{"**", JOP_POW}, {NULL, 0}};
    return chain(p, ops, operand);
}

static jnode *product(parser *p)
{
    static const arith ops[] = {
        {"*", JOP_MUL}, {"/", JOP_DIV}, {"//", JOP_FLOORDIV}, {"%", JOP_MOD}, {NULL, 0}};
    return chain(p, ops, power);
}

static jnode *concat(parser *p)
{
    jnode *first = product(p), *n = NULL;
    while (!p->rc && skip_op(p, "~")) {
        if (!n) {
            n = node(p, JN_CONCAT);
            if (!append(p, n, first, NULL, 0)) return NULL;
        }
        if (!append(p, n, product(p), NULL, 0)) return NULL;
    }
    return n ? n : first;
}

static jnode *sum(parser *p)
{
    static const arith ops[] = {{"+", JOP_ADD}, {"-", JOP_SUB}, {NULL, 0}};
    return chain(p, ops, concat);
}

/* The comparison at this token; false: none. */
static bool comparison(parser *p, jop *op)
{
    static const arith ops[] = {{"==", JOP_EQ}, {"!=", JOP_NE}, {"<=", JOP_LE}, {"<", JOP_LT},
                                {">=", JOP_GE}, {">", JOP_GT},  {NULL, 0}};
    for (const arith *o = ops; o->op; o++) {
        *op = o->code;
        if (skip_op(p, o->op)) return true;
    }
    *op = JOP_IN;
    if (skip_word(p, "in")) return true;
    if (!is_word(p->tok, "not") || !is_word(p->tok + 1, "in")) return false;
    *op = JOP_NOT_IN;
    p->tok += 2;
    return true;
}

static jnode *compare(parser *p)
{
    jnode *first = sum(p), *n = NULL;
    jop op;
    while (!p->rc && comparison(p, &op)) {
        if (!n) {
            n = node(p, JN_COMPARE);
            if (!append(p, n, first, NULL, 0)) return NULL;
        }
        if (!append(p, n, sum(p), NULL, op)) return NULL;
    }
    return n ? n : first;
}

static jnode *negation(parser *p)
{
    bool negated = false, any = false;
    while (skip_word(p, "not")) {
        negated = !negated;
        any = true;
    }
    jnode *n = compare(p);
    for (int i = 0; any && i < 1 + !negated; i++) {
        jnode *not = node(p, JN_NOT);
        if (not ) not ->a = n;
        n = not ;
    }
    return n;
}

static jnode *joined(parser *p, const char *op, jn_kind kind, jnode *(*next)(parser *p))
{
    jnode *first = next(p), *n = NULL;
    while (!p->rc && skip_word(p, op)) {
        if (!n) {
            n = node(p, kind);
            if (!append(p, n, first, NULL, 0)) return NULL;
        }
        if (!append(p, n, next(p), NULL, 0)) return NULL;
    }
    return n ? n : first;
}

static jnode *conjunction(parser *p)
{
    return joined(p, "and", JN_AND, negation);
}

/* Without "a if b else c". */
static jnode *condition(parser *p)
{
    return joined(p, "or", JN_OR, conjunction);
}

static jnode *expression(parser *p)
{
    if (++p->nest > NEST_MAX) return fail(p, ERR_LIMIT, "the template is nested too deep");
    const jtoken *unknown = p->unknown;
    bool soft = p->soft;
    jnode *n = condition(p);
    while (!p->rc && skip_word(p, "if")) {
        jnode *choice = node(p, JN_IF);
        if (!choice) return NULL;
        p->unknown = unknown;
        p->soft = true;
        choice->a = condition(p);
        choice->b = n;
        if (skip_word(p, "else")) choice->c = expression(p);
        n = choice;
    }
    p->soft = soft;
    p->nest--;
    return n;
}

/* a, b, c without parentheses. */
static jnode *tuple(parser *p, jnode *(*next)(parser *p))
{
    jnode *first = next(p);
    if (!is_op(p->tok, ",")) return first;
    jnode *n = node(p, JN_TUPLE);
    if (!append(p, n, first, NULL, 0)) return NULL;
    while (!p->rc && skip_op(p, ",")) {
        if (p->tok->kind == JT_BLOCK_END || p->tok->kind == JT_PRINT_END) break;
        if (!append(p, n, next(p), NULL, 0)) return NULL;
    }
    return n;
}

/* -------------------------------------------------------------------- statements -- */

static bool block_end(parser *p)
{
    return need(p, JT_BLOCK_END);
}

/* Names to assign to: a, or a, b, in parentheses or not. */
static bool targets(parser *p, jnode *n)
{
    bool paren = skip_op(p, "(");
    do {
        const char *name = need_name(p);
        if (!name || !append(p, n, NULL, name, 0)) return false;
    } while (skip_op(p, ",") && p->tok->kind == JT_NAME && !is_word(p->tok, "in"));
    return !paren || need_op(p, ")");
}

static const char *const
    end_for[] = {"else", "endfor", NULL},
    *const end_if[] = {"elif", "else", "endif", NULL}, *const end_macro[] = {"endmacro", NULL},
    *const end_set[] = {"endset", NULL}, *const end_call[] = {"endcall", NULL},
    *const end_with[] = {"endwith", NULL}, *const end_filter[] = {"endfilter", NULL},
    *const end_generation[] = {"endgeneration", NULL};

/* A body with names of its own. */
static jnode *inner_body(parser *p, const char *const *ends)
{
    bool soft = p->soft;
    p->soft = false;
    jnode *n = body(p, ends);
    p->soft = soft;
    return n;
}

/* The body and its closing tag. */
static jnode *closed_body(parser *p, const char *const *ends)
{
    if (!block_end(p)) return NULL;
    jnode *n = inner_body(p, ends);
    if (p->rc) return NULL;
    p->tok++; /* its name */
    return block_end(p) ? n : NULL;
}

static jnode *for_loop(parser *p)
{
    jnode *n = node(p, JN_FOR);
    if (!n || !targets(p, n)) return NULL;
    if (!skip_word(p, "in")) return fail(p, ERR_INPUT, "'in' is expected here");
    n->a = tuple(p, condition);
    bool soft = p->soft;
    p->soft = false;
    if (skip_word(p, "if")) n->b = expression(p);
    p->soft = soft;
    n->flag = skip_word(p, "recursive");
    if (n->flag) return fail(p, ERR_UNSUPPORTED, "recursive loops are not supported");
    if (!block_end(p)) return NULL;
    p->n_loops++;
    n->c = inner_body(p, end_for);
    p->n_loops--;
    if (p->rc) return NULL;
    if (skip_word(p, "else")) {
        static const char *const last[] = {"endfor", NULL};
        if (!block_end(p)) return NULL;
        n->d = inner_body(p, last);
        if (p->rc) return NULL;
    }
    p->tok++;
    return block_end(p) ? n : NULL;
}

static jnode *branches(parser *p)
{
    jnode *n = node(p, JN_BRANCH);
    bool more = true, soft = p->soft;
    p->soft = true;
    while (more && !p->rc) {
        if (!append(p, n, tuple(p, expression), NULL, 0) || !block_end(p) ||
            !append(p, n, body(p, end_if), NULL, 0)) {
            return NULL;
        }
        more = skip_word(p, "elif");
    }
    if (p->rc) return NULL;
    if (skip_word(p, "else")) {
        static const char *const last[] = {"endif", NULL};
        if (!block_end(p)) return NULL;
        n->d = body(p, last);
        if (p->rc) return NULL;
    }
    p->soft = soft;
    p->tok++;
    return block_end(p) ? n : NULL;
}

static jnode *set(parser *p)
{
    jnode *n = node(p, JN_SET);
    if (!n) return NULL;
    if (p->tok->kind == JT_NAME && is_op(p->tok + 1, ".")) {
        n->kind = JN_SET_ATTR;
        n->name = need_name(p);
        p->tok++;
        const char *name = need_name(p);
        if (!name) return NULL;
        n->value = name_value(p, name);
    } else if (!targets(p, n)) {
        return NULL;
    }
    if (skip_op(p, "=")) {
        n->a = tuple(p, expression);
        return n->a && block_end(p) ? n : NULL;
    }
    if (n->kind != JN_SET || n->n != 1) return fail(p, ERR_INPUT, "'=' is expected here");
    n->kind = JN_SET_BLOCK;
    n->name = n->names[0];
    bool soft = p->soft;
    p->soft = false;
    while (!p->rc && skip_op(p, "|")) n->a = filter(p, n->a);
    p->soft = soft;
    n->c = closed_body(p, end_set);
    return p->rc ? NULL : n;
}

/* (a, b=1) */
static bool parameters(parser *p, jnode *n)
{
    if (!need_op(p, "(")) return false;
    bool soft = p->soft;
    p->soft = false;
    while (!p->rc && !skip_op(p, ")")) {
        if (n->n && !need_op(p, ",")) return false;
        const char *name = need_name(p);
        jnode *otherwise = name && skip_op(p, "=") ? expression(p) : NULL;
        if (!name || !append(p, n, otherwise, name, 0)) return false;
    }
    p->soft = soft;
    return !p->rc;
}

static jnode *macro(parser *p)
{
    jnode *n = node(p, JN_MACRO);
    if (!n || !(n->name = need_name(p)) || !parameters(p, n)) return NULL;
    int loops = p->n_loops;
    p->n_loops = 0;
    n->c = closed_body(p, end_macro);
    p->n_loops = loops;
    return p->rc ? NULL : n;
}

static jnode *call_block(parser *p)
{
    jnode *n = node(p, JN_CALL_BLOCK);
    if (!n || (is_op(p->tok, "(") && !parameters(p, n))) return NULL;
    n->a = expression(p);
    if (n->a && n->a->kind != JN_CALL) return fail(p, ERR_INPUT, "a call is expected here");
    int loops = p->n_loops;
    p->n_loops = 0;
    n->c = closed_body(p, end_call);
    p->n_loops = loops;
    return p->rc ? NULL : n;
}

static jnode *with(parser *p)
{
    jnode *n = node(p, JN_WITH);
    while (!p->rc && p->tok->kind != JT_BLOCK_END) {
        if (n->n && !need_op(p, ",")) return NULL;
        const char *name = need_name(p);
        if (!name || !need_op(p, "=") || !append(p, n, expression(p), name, 0)) return NULL;
    }
    if (!n) return NULL;
    n->c = closed_body(p, end_with);
    return p->rc ? NULL : n;
}

static jnode *filter_block(parser *p)
{
    jnode *n = node(p, JN_FILTER_BLOCK);
    if (!n) return NULL;
    bool soft = p->soft;
    p->soft = false;
    n->a = filter(p, NULL);
    while (!p->rc && skip_op(p, "|")) n->a = filter(p, n->a);
    p->soft = soft;
    n->c = closed_body(p, end_filter);
    return p->rc ? NULL : n;
}

static jnode *generation(parser *p)
{
    jnode *n = node(p, JN_SCOPE);
    if (!n) return NULL;
    n->c = closed_body(p, end_generation);
    return p->rc ? NULL : n;
}

static jnode *leave_loop(parser *p, jn_kind kind)
{
    if (p->n_loops == 0) return fail(p, ERR_INPUT, "break and continue need a loop");
    jnode *n = node(p, kind);
    return block_end(p) ? n : NULL;
}

static jnode *jump_out(parser *p)
{
    return leave_loop(p, JN_BREAK);
}

static jnode *jump_on(parser *p)
{
    return leave_loop(p, JN_CONTINUE);
}

static jnode *statement(parser *p)
{
    static const struct {
        const char *name;
        jnode *(*parse)(parser *p);
    } tags[] = {{"for", for_loop},         {"if", branches},      {"set", set},
                {"macro", macro},          {"call", call_block},  {"with", with},
                {"break", jump_out},       {"continue", jump_on}, {"filter", filter_block},
                {"generation", generation}};
    for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++) {
        if (skip_word(p, tags[i].name)) return tags[i].parse(p);
    }
    return fail(p, ERR_UNSUPPORTED, "a tag is not supported");
}

static bool at_end(const parser *p, const char *const *ends)
{
    for (; *ends; ends++) {
        if (is_word(p->tok, *ends)) return true;
    }
    return false;
}

/* Until one of the tags in `ends` (its name is the next token), or the end of
 * all where there are none. */
static jnode *body(parser *p, const char *const *ends)
{
    if (++p->nest > NEST_MAX) return fail(p, ERR_LIMIT, "the template is nested too deep");
    jnode *n = node(p, JN_BODY), *one;
    while (!p->rc) {
        jtoken_kind kind = p->tok->kind;
        if (kind == JT_END) {
            if (*ends) return fail(p, ERR_INPUT, "a block has no end");
            break;
        }
        const jtoken *t = p->tok++;
        if (kind == JT_DATA) {
            one = node(p, JN_TEXT);
            if (one) one->value = t->value;
        } else if (kind == JT_PRINT_BEGIN) {
            one = node(p, JN_PRINT);
            if (one) one->a = tuple(p, expression);
            if (!need(p, JT_PRINT_END)) return NULL;
        } else {
            if (at_end(p, ends)) break;
            one = statement(p);
        }
        if (!append(p, n, one, NULL, 0)) return NULL;
    }
    p->nest--;
    return p->rc ? NULL : n;
}

err_code jinja_parse(jinja *t, const jtoken *tokens, err *e)
{
    static const char *const none[] = {NULL};
    parser p = {.t = t, .tok = tokens, .e = e};
    t->root = body(&p, none);
    if (!p.rc && p.unknown) {
        return err_set(e, ERR_UNSUPPORTED, "chat template, line %d: no %s named '%.40s'",
                       p.unknown->line, p.unknown_kind,
                       p.unknown->kind == JT_NAME ? p.unknown->name : "?");
    }
    return p.rc;
}
