/* grammar_regex.c -- regular expressions of JSON Schema (ECMA-262) and of guided_regex, as far as
 * they are regular.
 *
 *   pattern --recursive descent--> tree of regex_node --Thompson--> states of the byte automaton
 *
 * alternatives() > sequence() > repeated() > atom() is the grammar of the parser. Long
 * concatenations form a chain down the left child, and all walks over the tree iterate along it, so
 * recursion is bounded by NEST_MAX.
 *
 * The whole text must match: what matches as a whole also matches somewhere, as JSON Schema asks.
 * Where dialects differ, a class is the intersection of their meanings: \d is 0 to 9, \w is ASCII,
 * \D, \W and \S exclude what any dialect counts among \d, \w and \s.
 *
 *   x{20,}     of one class, from COUNT_FROM on: a counted loop, not copies
 *   min/max    gb_regex_sized() narrows the tree: fit() gives every growing part its share of the
 *              length
 *   a(?=b)     look-ahead and lengths that fit() cannot keep: grammar_look.c, grammar_dfa.c
 *
 * g_regex_finds() simulates the tree on sets of positions (no backtracking) for constants of a
 * schema.
 *
 * Source: ECMA-262, section 22.2; Thompson, CACM 11(6), 1968.
 */
#include "engine/grammar/regex/grammar_regex.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hex.h"
#include "engine/base/utf8.h"
#include "engine/text/unicode/unicode.h"

enum {
    NODES_MAX = 20000,
    CLASSES_MAX = 2000,
    NEST_MAX = 50,
    FIT_MAX = 1000,
    REPEAT_MAX = 10000,
    COUNT_FROM = 9, /* so many repetitions of one class are counted, fewer are copied */
};

typedef regex_node node;
typedef regex_tree parser;

static int fail(parser *p, err_code rc, const char *what)
{
    if (!p->rc)
        p->rc = err_set(p->e, rc, "%s at byte %d of the expression", what, (int)(p->s - p->start));
    return 0;
}

static int add(parser *p, regex_kind kind, int a, int b)
{
    if (p->rc) return 0;
    if (p->n == p->cap) {
        if (p->cap >= NODES_MAX) return fail(p, ERR_LIMIT, "too many parts");
        int want = p->cap ? p->cap * 2 : 64;
        node *list = realloc(p->list, (size_t)want * sizeof(*list));
        if (!list) return fail(p, ERR_NOMEM, "no memory");
        p->list = list;
        p->cap = want;
    }
    assert(a >= 0 && (a == 0 || a < (kind == R_CLASS ? p->n_cls : p->n)));
    assert(b >= 0 && (b == 0 || b < p->n)); /* below this node: no cycles */
    p->list[p->n] = (node){kind, a, b, 0, 0};
    return p->n++;
}

static g_class *new_class(parser *p, int *index)
{
    if (p->n_cls == p->cap_cls) {
        if (p->cap_cls >= CLASSES_MAX) {
            (void)fail(p, ERR_LIMIT, "too many classes");
            return NULL;
        }
        int want = p->cap_cls ? p->cap_cls * 2 : 16;
        g_class **list = realloc((void *)p->cls, (size_t)want * sizeof(*list));
        if (!list) {
            (void)fail(p, ERR_NOMEM, "no memory");
            return NULL;
        }
        p->cls = list;
        p->cap_cls = want;
    }
    g_class *c = calloc(1, sizeof(*c));
    if (!c) {
        (void)fail(p, ERR_NOMEM, "no memory");
        return NULL;
    }
    *index = p->n_cls;
    p->cls[p->n_cls++] = c;
    return c;
}

/* -------------------------------------------------------------------- characters -- */

static uint32_t next_char(parser *p)
{
    size_t used = 1;
    uint32_t c = utf8_decode(p->s, (size_t)(p->end - p->s), &used);
    p->s += used;
    return c;
}

static bool at(const parser *p, char c)
{
    return p->s < p->end && *p->s == c;
}

static bool eat(parser *p, char c)
{
    if (!at(p, c)) return false;
    p->s++;
    return true;
}

/* Adds \d, \w, \s or the complement: the characters on which all dialects agree, because the result
 * must match under each of them. False: another letter. */
static bool add_shorthand(g_class *c, char letter)
{
    /* Characters that some dialect counts as white space, and control characters. */
    static const g_range blank[] = {
        {1, ' '},         {0x7F, 0xA0},     {0x1680, 0x1680}, {0x180E, 0x180E}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    g_class but = {0};
    switch (letter) {
    case 'd': g_class_add(c, '0', '9'); return true;
    case 'w':
        g_class_add(c, '0', '9');
        g_class_add(c, 'A', 'Z');
        g_class_add(c, 'a', 'z');
        g_class_add(c, '_', '_');
        return true;
    case 's':
        g_class_add(c, '\t', '\r');
        g_class_add(c, ' ', ' ');
        return true;
    case 'D':
        for (int i = 0; i < unicode_numbers_n; i++)
            g_class_add(&but, unicode_numbers[i].first, unicode_numbers[i].last);
        break;
    case 'W':
        g_class_add(&but, '0', '9');
        g_class_add(&but, 'A', 'Z');
        g_class_add(&but, '_', '_');
        g_class_add(&but, 'a', 'z');
        g_class_add(&but, 0x80, 0x10FFFF);
        break;
    case 'S':
        for (size_t i = 0; i < sizeof(blank) / sizeof(blank[0]); i++)
            g_class_add(&but, blank[i].lo, blank[i].hi);
        break;
    default: return false;
    }
    g_class_not(&but);
    g_class_add_all(c, &but);
    return true;
}

/* Behind \p or \P: a property's class is added; `widely`: with all that some dialect has in it. */
static bool add_property(parser *p, g_class *c, bool widely)
{
    bool opposite = *p->s++ == 'P';
    const char *name = p->s + 1,
               *end = at(p, '{') ? memchr(p->s, '}', (size_t)(p->end - p->s)) : NULL;
    g_class own = {.n = 0};
    p->vague |= p->in_not;
    if (!end || !g_class_property(&own, name, (size_t)(end - name), opposite != widely)) {
        (void)fail(p, ERR_UNSUPPORTED, "a Unicode property that is not known");
        return false;
    }
    p->s = end + 1;
    if (widely) g_class_not(&own);
    g_class_add_all(c, &own);
    return true;
}

/* In a negated class: the union over all dialects, so that the complement is their intersection. */
static bool add_shorthand_widely(g_class *c, char letter)
{
    g_class rest = {0};
    if (!add_shorthand(&rest, (char)(letter ^ ('a' ^ 'A')))) return false;
    g_class_not(&rest);
    g_class_add_all(c, &rest);
    return true;
}

static uint32_t hex(parser *p, int digits)
{
    uint32_t v = 0;
    for (int i = 0; i < digits; i++) {
        int d = p->s < p->end ? hex_digit(*p->s) : -1;
        if (d < 0) return (uint32_t)fail(p, ERR_INPUT, "a hexadecimal digit is missing");
        v = v * 16 + (uint32_t)d;
        p->s++;
    }
    return v;
}

/* Behind \\x or \\u. */
static uint32_t code_point(parser *p, char c)
{
    uint32_t v = 0;
    if (c == 'u' && eat(p, '{')) {
        while (p->s < p->end && *p->s != '}' && v <= 0x10FFFF && !p->rc) v = v * 16 + hex(p, 1);
        if (!eat(p, '}')) return (uint32_t)fail(p, ERR_INPUT, "a '}' is missing");
    } else {
        v = hex(p, c == 'x' ? 2 : 4);
    }
    if ((v == 0 && !p->in_class) || v > 0x10FFFF || (v >= 0xD800 && v < 0xE000))
        return (uint32_t)fail(p, ERR_UNSUPPORTED, "a character that can't be");
    return v;
}

/* Names an escape that is not one character, for the error message; NULL: it is one. */
static const char *unsupported(char c)
{
    if (c >= '0' && c <= '9') return "a back reference";
    if (c && strchr("bBAZG", c)) return "a word boundary or anchor";
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return "an escape that is not supported";
    return NULL;
}

/* After a backslash, where it stands for one character. */
static uint32_t escaped(parser *p)
{
    if (p->s == p->end) return (uint32_t)fail(p, ERR_INPUT, "a lone backslash");
    char c = *p->s;
    static const char names[] = "tnrfv", values[] = "\t\n\r\f\v";
    const char *k = c ? strchr(names, c) : NULL;
    if (k) {
        p->s++;
        return (uint32_t)values[k - names];
    }
    if (c == 'x' || c == 'u') {
        p->s++;
        return code_point(p, c);
    }
    const char *what = unsupported(c);
    return what ? (uint32_t)fail(p, ERR_UNSUPPORTED, what) : next_char(p);
}

/* One end of a range in brackets; *set: a shorthand, already added to the class. */
static uint32_t bracket_item(parser *p, g_class *c, bool negative, bool *set)
{
    *set = false;
    if (!eat(p, '\\')) return next_char(p);
    if (p->s < p->end && (negative ? add_shorthand_widely(c, *p->s) : add_shorthand(c, *p->s))) {
        p->s++;
        p->vague |= p->in_not;
        *set = true;
        return 0;
    }
    if (at(p, 'p') || at(p, 'P')) {
        *set = add_property(p, c, negative);
        return 0;
    }
    if (at(p, 'b')) {
        p->s++;
        return '\b';
    }
    if (at(p, '-')) {
        p->s++;
        return '-';
    }
    return escaped(p);
}

/* A class [...] behind its bracket: characters, ranges, escapes and sets; returns its node, 0
 * after a failure. */
static int bracket(parser *p)
{
    int index = 0;
    g_class *c = new_class(p, &index);
    if (!c) return 0;
    bool negative = eat(p, '^');
    p->vague |= negative && p->in_not;
    if (at(p, ']')) return fail(p, ERR_UNSUPPORTED, "an empty class");
    p->in_class = true;
    while (p->s < p->end && *p->s != ']' && !p->rc) {
        bool set, set2;
        if (at(p, '[') && p->s + 1 < p->end && p->s[1] == ':')
            return fail(p, ERR_UNSUPPORTED, "a POSIX class");
        uint32_t lo = bracket_item(p, c, negative, &set), hi = lo;
        if (!set && at(p, '-') && p->s + 1 < p->end && p->s[1] != ']') {
            p->s++;
            hi = bracket_item(p, c, negative, &set2);
            if (set2) {
                g_class_add(c, '-', '-');
                hi = lo;
            } else if (hi < lo) {
                return fail(p, ERR_INPUT, "a range that runs backwards");
            }
        }
        if (!set) g_class_add(c, lo, hi);
    }
    p->in_class = false;
    if (!eat(p, ']')) return fail(p, ERR_INPUT, "a ']' is missing");
    if (negative) g_class_not(c);
    if (c->failed) return fail(p, ERR_LIMIT, "too large a class");
    if (g_class_empty(c)) return fail(p, ERR_INPUT, "a class that has no character");
    return add(p, R_CLASS, index, 0);
}

static int one_char(parser *p, uint32_t ch)
{
    int index = 0;
    g_class *c = new_class(p, &index);
    if (!c) return 0;
    g_class_add(c, ch, ch);
    return add(p, R_CLASS, index, 0);
}

static int dot(parser *p)
{
    int index = 0;
    g_class *c = new_class(p, &index);
    if (!c) return 0;
    p->vague |= p->in_not;
    g_class_add(c, '\n', '\n');
    g_class_add(c, '\r', '\r');
    g_class_add(c, 0x2028, 0x2029);
    g_class_not(c);
    return add(p, R_CLASS, index, 0);
}

/* --------------------------------------------------------------------- structure -- */

static int alternatives(parser *p);

/* "(?=" or "(?!" has been read. */
static int look(parser *p, bool negative)
{
    if (p->in_look) return fail(p, ERR_UNSUPPORTED, "a look-around in another");
    p->in_look = p->looks = true;
    p->in_not = negative;
    int inner = alternatives(p);
    p->in_look = p->in_not = false;
    if (!eat(p, ')')) return fail(p, ERR_INPUT, "a ')' is missing");
    int x = add(p, R_LOOK, inner, 0);
    if (!p->rc) p->list[x].min = negative;
    return x;
}

static int group(parser *p)
{
    if (eat(p, '?')) {
        bool named = false;
        if (eat(p, 'P')) named = true;
        if (eat(p, ':')) {
            if (named) return fail(p, ERR_INPUT, "a group that is not understood");
        } else if (at(p, '<') && p->s + 1 < p->end && p->s[1] != '=' && p->s[1] != '!') {
            while (p->s < p->end && *p->s != '>') p->s++;
            if (!eat(p, '>')) return fail(p, ERR_INPUT, "a '>' is missing");
        } else if (!named && (at(p, '=') || at(p, '!'))) {
            return look(p, *p->s++ == '!');
        } else {
            return fail(p, ERR_UNSUPPORTED, "a look-around or flag");
        }
    }
    if (++p->nest > NEST_MAX) return fail(p, ERR_LIMIT, "too many groups in one another");
    int inner = alternatives(p);
    p->nest--;
    if (!eat(p, ')')) return fail(p, ERR_INPUT, "a ')' is missing");
    return inner;
}

/* "{2}", "{2,}", "{,2}": another '{' is itself, where nothing stands before it. */
static bool at_bounds(const parser *p)
{
    const char *s = p->s + 1;
    if (!at(p, '{')) return false;
    while (s < p->end && (*s == ',' || (*s >= '0' && *s <= '9'))) s++;
    return s > p->s + 1 && s < p->end && *s == '}';
}

/* What a group has matched is unknown here: the part is dropped (R_NEVER). */
static int back_reference(parser *p)
{
    if (p->in_not) return fail(p, ERR_UNSUPPORTED, "a back reference that must not match");
    while (p->s < p->end && *p->s >= '0' && *p->s <= '9') p->s++;
    if (at(p, 'k')) {
        while (p->s < p->end && *p->s != '>') p->s++;
        if (!eat(p, '>')) return fail(p, ERR_INPUT, "a '>' is missing");
    }
    p->leaves = true;
    return add(p, R_NEVER, 0, 0);
}

static int atom(parser *p)
{
    if (eat(p, '(')) return group(p);
    if (eat(p, '[')) return bracket(p);
    if (eat(p, '.')) return dot(p);
    if (eat(p, '^')) return add(p, R_BEGIN, 0, 0);
    p->vague |= at(p, '$') && p->in_not; /* some dialects: also before a final line break */
    if (eat(p, '$')) return add(p, R_END, 0, 0);
    if (at(p, '*') || at(p, '+') || at(p, '?') || at_bounds(p))
        return fail(p, ERR_INPUT, "nothing to repeat");
    if (!eat(p, '\\')) return one_char(p, next_char(p));
    if (p->s < p->end && strchr("dwsDWSpP", *p->s)) {
        int index = 0;
        g_class *c = new_class(p, &index);
        if (!c) return 0;
        p->vague |= p->in_not;
        if (at(p, 'p') || at(p, 'P'))
            (void)add_property(p, c, false);
        else
            (void)add_shorthand(c, *p->s++);
        if (c->failed) return fail(p, ERR_LIMIT, "too large a class");
        return add(p, R_CLASS, index, 0);
    }
    if (p->s < p->end && strchr("123456789k", *p->s)) return back_reference(p);
    return one_char(p, escaped(p));
}

/* {m}, {m,} or {m,n} after the brace; false: it is no quantifier. */
static bool braces(parser *p, int *min, int *max)
{
    const char *s = p->s;
    long v[2] = {0, -1};
    int digits[2] = {0, 0}, k = 0;
    for (; s < p->end && *s != '}'; s++) {
        if (*s == ',' && k == 0) {
            k = 1;
            v[1] = -1;
        } else if (*s >= '0' && *s <= '9' && digits[k] < 6) {
            v[k] = (v[k] < 0 ? 0 : v[k]) * 10 + (*s - '0');
            digits[k]++;
        } else {
            return false;
        }
    }
    if (s == p->end || digits[0] == 0) return false;
    p->s = s + 1;
    *min = (int)v[0];
    *max = k == 0 ? (int)v[0] : (int)v[1];
    return true;
}

/* An atom and the repetitions behind it. Lazy ones allow the same texts as greedy ones;
 * possessive ones do not, and are refused. */
static int repeated(parser *p)
{
    int x = atom(p);
    while (!p->rc && p->s < p->end) {
        int min = 0, max = -1;
        if (eat(p, '*')) {
        } else if (eat(p, '+')) {
            min = 1;
        } else if (eat(p, '?')) {
            max = 1;
        } else if (at(p, '{')) {
            p->s++;
            if (!braces(p, &min, &max)) return fail(p, ERR_UNSUPPORTED, "a '{' without numbers");
            if (max >= 0 && max < min) return fail(p, ERR_INPUT, "a range that runs backwards");
            if (min > REPEAT_MAX || max > REPEAT_MAX)
                return fail(p, ERR_LIMIT, "too many repetitions");
        } else {
            break;
        }
        if (at(p, '+')) return fail(p, ERR_UNSUPPORTED, "a possessive quantifier");
        (void)eat(p, '?'); /* lazy: the same texts */
        if (at(p, '*') || at(p, '?') || at_bounds(p))
            return fail(p, ERR_INPUT, "a repetition of a repetition");
        int r = add(p, R_REPEAT, x, 0);
        if (p->rc) return 0;
        p->list[r].min = min;
        p->list[r].max = max;
        x = r;
    }
    return x;
}

static int sequence(parser *p)
{
    int x = add(p, R_EMPTY, 0, 0);
    while (!p->rc && p->s < p->end && *p->s != '|' && *p->s != ')') {
        x = add(p, R_CAT, x, repeated(p));
    }
    return x;
}

static int alternatives(parser *p)
{
    int x = sequence(p);
    while (!p->rc && eat(p, '|')) x = add(p, R_ALT, x, sequence(p));
    return x;
}

/* Refuses anchors within the pattern, which nothing could match; at its ends they have no effect.
 * Returns whether node `i` can match the empty text. */
static bool anchors_ok(parser *p, int i, bool first, bool last)
{
    /* Long chains lean to the left: the loop goes down that side. */
    for (bool going = true; going && !p->rc;) {
        const node *x = &p->list[i];
        going = false;
        switch (x->kind) {
        case R_BEGIN:
            if (!first) (void)fail(p, ERR_UNSUPPORTED, "an anchor inside");
            break;
        case R_END:
            if (!last) (void)fail(p, ERR_UNSUPPORTED, "an anchor inside");
            break;
        case R_LOOK: (void)fail(p, ERR_UNSUPPORTED, "a look-around or flag"); break;
        case R_REPEAT: (void)anchors_ok(p, x->a, false, false); break;
        case R_ALT:
            (void)anchors_ok(p, x->b, first, last);
            i = x->a;
            going = true;
            break;
        case R_CAT: {
            regex_kind right = p->list[x->b].kind;
            bool bare = p->list[x->a].kind == R_EMPTY ||
                        (p->list[x->a].kind == R_CAT && p->list[p->list[x->a].b].kind == R_BEGIN &&
                         p->list[p->list[x->a].a].kind == R_EMPTY);
            (void)anchors_ok(p, x->b, first && bare, last);
            last = last && right == R_END;
            i = x->a;
            going = true;
            break;
        }
        case R_EMPTY:
        case R_NEVER:
        case R_CLASS: break;
        }
    }
    return !p->rc;
}

/* ------------------------------------------------------------------------ layout -- */

typedef struct {
    g_builder *b;
    const parser *p;
    bool json;
} layout;

/* step: of what is read first, where counts_first() holds. */
static void lay(layout *l, int i, int32_t from, edge_step step, int32_t to);

/* Whether every match begins with exactly one byte edge of the part, and the part counts nothing
 * itself: then the repetitions can be counted on that edge. */
static bool counts_first(const parser *p, int i, bool first)
{
    for (;;) {
        const node *x = &p->list[i];
        switch (x->kind) {
        case R_CLASS: return true;
        case R_REPEAT:
            if ((first && x->min == 0) || x->min >= COUNT_FROM || x->max >= COUNT_FROM)
                return false;
            i = x->a;
            break;
        case R_ALT:
            if (!counts_first(p, x->b, first)) return false;
            i = x->a;
            break;
        case R_CAT:
            if (first && p->list[x->a].kind == R_EMPTY) {
                i = x->b;
                break;
            }
            if (!counts_first(p, x->b, false)) return false;
            i = x->a;
            break;
        default: return !first && x->kind == R_EMPTY;
        }
    }
}

/* Lays a repetition of a larger part as a counted loop if copies would take COPIED_MAX states. */
static bool lay_turns(layout *l, const node *x, int32_t from, int32_t to)
{
    enum { COPIED_MAX = 1000 /* states */ };
    g_builder *b = l->b;
    int most = x->max < 0 ? x->min : x->max, before = b->n_states;
    if (most < COUNT_FROM || !counts_first(l->p, x->a, true)) return false;
    int32_t loop = gb_state(b), back = gb_state(b);
    lay(l, x->a, loop, STEP_COUNT, back);
    if ((int64_t)(b->n_states - before) * most < COPIED_MAX) return false;
    gb_enter(b, from, gb_bounds(b, x->min, x->max), loop);
    gb_eps(b, back, loop);
    gb_leave(b, loop, to);
    return true;
}

/* As in grammar_cfg_lay.c: a counted state for a long repetition of one class, else copies and a
 * loop. `step` is taken by the first character that is read. */
static void lay_repeat(layout *l, const node *x, int32_t from, edge_step step, int32_t to)
{
    assert(x->min >= 0 && (x->max < 0 || x->min <= x->max));
    g_builder *b = l->b;
    const node *child = &l->p->list[x->a];
    int most = x->max < 0 ? x->min : x->max;
    if (child->kind == R_CLASS && x->min > 0 && g_class_empty(l->p->cls[child->a])) return;
    if (child->kind == R_CLASS && most >= COUNT_FROM) {
        int32_t loop = gb_state(b);
        gb_enter(b, from, gb_bounds(b, x->min, x->max), loop);
        gb_class(b, loop, l->p->cls[child->a], l->json, STEP_COUNT, loop);
        gb_leave(b, loop, to);
        return;
    }
    if (step == STEP_PLAIN && lay_turns(l, x, from, to)) return;
    for (int k = 0; k < x->min && !b->failed; k++) {
        int32_t next = gb_state(b);
        lay(l, x->a, from, k ? STEP_PLAIN : step, next);
        from = next;
    }
    if (x->max < 0) {
        int32_t loop = gb_state(b);
        gb_eps(b, from, loop);
        lay(l, x->a, loop, STEP_PLAIN, loop);
        gb_eps(b, loop, to);
        return;
    }
    for (int k = x->min; k < x->max && !b->failed; k++) {
        int32_t next = gb_state(b);
        lay(l, x->a, from, STEP_PLAIN, next);
        gb_eps(b, from, to);
        from = next;
    }
    gb_eps(b, from, to);
}

/* Edges for a node between two states; recursion goes into right sides alone, so a long chain
 * needs no stack. */
static void lay(layout *l, int i, int32_t from, edge_step step, int32_t to)
{
    g_builder *b = l->b;
    for (bool going = true; going && !b->failed;) {
        const node *x = &l->p->list[i];
        going = false;
        switch (x->kind) {
        case R_EMPTY:
        case R_BEGIN:
        case R_END: gb_eps(b, from, to); break;
        case R_LOOK: /* anchors_ok() has refused it */
        case R_NEVER: break;
        case R_CLASS: gb_class(b, from, l->p->cls[x->a], l->json, step, to); break;
        case R_REPEAT: lay_repeat(l, x, from, step, to); break;
        case R_ALT:
            lay(l, x->b, from, step, to);
            i = x->a;
            going = true;
            break;
        case R_CAT: { /* from the right, so that a long chain needs no stack */
            int32_t mid = gb_state(b);
            bool bare = l->p->list[x->a].kind == R_EMPTY; /* then the right side is read first */
            lay(l, x->b, mid, bare ? step : STEP_PLAIN, to);
            to = mid;
            i = x->a;
            going = true;
            break;
        }
        }
    }
}

/* Does a part match any text at all? */
static bool may_match(const parser *p, int i)
{
    for (;; i = p->list[i].a) { /* down the left side of a chain */
        const node *x = &p->list[i];
        if (x->kind == R_NEVER) return false;
        if (x->kind == R_REPEAT && x->min == 0) return true;
        if (x->kind != R_CAT && x->kind != R_ALT && x->kind != R_REPEAT) return true;
        bool right = x->kind == R_REPEAT || may_match(p, x->b);
        if (x->kind == R_CAT && !right) return false;
        if (x->kind == R_ALT && right) return true;
    }
}

err_code regex_parse(parser *p, int *root)
{
    *root = alternatives(p);
    if (!p->rc && p->s < p->end) (void)fail(p, ERR_INPUT, "a ')' too many");
    if (!p->rc && p->leaves && !may_match(p, *root))
        (void)fail(p, ERR_UNSUPPORTED, "a back reference");
    assert(p->rc || p->nest == 0);
    return p->rc;
}

static err_code parse(parser *p, int *root)
{
    if (!regex_parse(p, root)) (void)anchors_ok(p, *root, true, true);
    return p->rc;
}

void regex_drop(parser *p)
{
    for (int i = 0; i < p->n_cls; i++) free(p->cls[i]);
    free((void *)p->cls);
    free(p->list);
}

/* ----------------------------------------------------------------------- lengths -- */

static const int64_t endless = (int64_t)1 << 40;

typedef struct {
    int64_t least, most;
} lengths;

static int64_t capped(int64_t v)
{
    return v < endless ? v : endless;
}

static lengths measure(const parser *p, int i)
{
    lengths sum = {0, 0};
    for (;;) { /* down the left side of a chain */
        const node *x = &p->list[i];
        lengths one = {0, 0};
        if (x->kind == R_CLASS) one = (lengths){1, 1};
        if (x->kind == R_REPEAT) {
            one = measure(p, x->a);
            one.least = capped(one.least * x->min);
            if (one.most > 0) one.most = x->max < 0 ? endless : capped(one.most * x->max);
        }
        if (x->kind == R_ALT) {
            lengths a = measure(p, x->a), b = measure(p, x->b);
            one.least = a.least < b.least ? a.least : b.least;
            one.most = a.most > b.most ? a.most : b.most;
        }
        if (x->kind == R_CAT) one = measure(p, x->b);
        sum.least = capped(sum.least + one.least);
        sum.most = capped(sum.most + one.most);
        if (x->kind != R_CAT) return sum;
        i = x->a;
    }
}

static void set_never(node *x)
{
    *x = (node){R_NEVER, 0, 0, 0, 0};
}

/* Number of repetitions whose length varies by more than COUNT_FROM. */
static int growing(const parser *p, int i)
{
    int n = 0;
    for (;; i = p->list[i].a) {
        const node *x = &p->list[i];
        bool pair = x->kind == R_CAT || x->kind == R_ALT;
        if (x->kind == R_REPEAT) {
            lengths one = measure(p, i);
            n += one.most - one.least > COUNT_FROM;
        }
        if (!pair) return n;
        n += growing(p, x->b);
    }
}

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Narrows a part to texts of lo to hi characters. If several parts of it can grow, each gets a
 * share of the length, so some valid texts are excluded. */
static void fit(parser *p, int i, int64_t lo, int64_t hi);

static void fit_pair(parser *p, const node *x, int64_t lo, int64_t hi)
{
    lengths a = measure(p, x->a), b = measure(p, x->b);
    int64_t room = hi - a.least - b.least, n = growing(p, x->a), m = growing(p, x->b);
    int64_t room_a = a.most - a.least, room_b = b.most - b.least;
    int64_t share = n == 0 ? room_a : m == 0 ? room - room_b : room * n / (n + m);
    if (share < 0) share = 0;
    share = least_of(share, least_of(room, room_a));
    if (room - share > room_b) share = least_of(room - room_b, room_a);
    assert(share >= 0 && share <= room);
    int64_t most_a = a.least + share, most_b = b.least + least_of(room - share, room_b);
    int64_t want = lo - a.least - b.least; /* more than they have by themselves */
    int64_t more_b = want > 0 ? least_of(want, most_b - b.least) : 0;
    int64_t more_a = want - more_b > 0 ? want - more_b : 0;
    fit(p, x->a, a.least + more_a, most_a);
    fit(p, x->b, b.least + more_b, most_b);
}

static void fit_repeat(parser *p, node *x, int64_t lo, int64_t hi)
{
    enum { SHORT = 16 };
    lengths one = measure(p, x->a);
    if (one.most == 0) return;
    bool open = hi >= endless - 1; /* no upper bound: nothing is cut */
    int64_t max = x->max < 0 ? endless : x->max;
    if (one.least < one.most && !open) { /* the same limit for every repetition */
        int64_t turns = least_of(max, hi / SHORT + 1);
        int64_t each = hi / turns > one.least ? hi / turns : one.least;
        if (x->min > 0 && hi / x->min < each) each = hi / x->min;
        one.most = least_of(one.most, each);
        fit(p, x->a, one.least, one.most);
    }
    if (one.most > 0 && !open) max = least_of(max, hi / one.most);
    if (lo > 0 && one.least == 0) set_never(x);
    if (one.least > 0 && (lo + one.least - 1) / one.least > x->min)
        x->min = (int)least_of((lo + one.least - 1) / one.least, REPEAT_MAX + 1);
    if (x->max >= 0 || !open) x->max = (int)least_of(max, REPEAT_MAX);
    if (x->max >= 0 && x->min > x->max) set_never(x);
}

static void fit(parser *p, int i, int64_t lo, int64_t hi)
{
    node *x = &p->list[i];
    lengths all = measure(p, i);
    if (all.least >= lo && all.most <= hi) return;
    if (all.least > hi || all.most < lo) {
        set_never(x);
    } else if (x->kind == R_CAT) {
        fit_pair(p, x, lo, hi);
    } else if (x->kind == R_ALT) {
        fit(p, x->a, lo, hi);
        fit(p, x->b, lo, hi);
    } else if (x->kind == R_REPEAT) {
        fit_repeat(p, x, lo, hi);
    }
}

bool regex_keeps(const regex_tree *p, int root, int64_t least, int64_t most)
{
    lengths all = measure(p, root);
    int vary = 0;
    if (all.least >= least && (most < 0 || all.most <= most)) return true;
    for (int i = 0; i < p->n; i++) {
        const node *x = &p->list[i];
        lengths one = measure(p, i);
        if ((x->kind == R_REPEAT && x->min != x->max) || (x->kind == R_ALT && one.least < one.most))
            vary += x->kind == R_REPEAT && p->list[x->a].kind == R_CLASS ? 1 : 2;
    }
    return vary < 2;
}

err_code gb_regex_sized(g_builder *b, int32_t from, const char *pattern, size_t len, int64_t least,
                        int64_t most, bool json, int32_t to, err *e)
{
    parser p = {.s = pattern, .start = pattern, .end = pattern + len, .e = e};
    int root = 0;
    bool sized = !parse(&p, &root) && (least > 0 || most >= 0);
    if (sized && p.n > FIT_MAX)
        (void)fail(&p, ERR_UNSUPPORTED, "lengths beside so long an expression");
    if (sized && !p.rc) fit(&p, root, least, most < 0 ? endless - 1 : most);
    if (!p.rc) {
        layout l = {b, &p, json};
        /* A loop leads back to its first state, so it gets one that nothing else leaves. */
        int32_t own = gb_state(b);
        gb_eps(b, from, own);
        lay(&l, root, own, STEP_PLAIN, to);
        if (b->failed) p.rc = err_set(e, ERR_LIMIT, "the expression is too large");
    }
    regex_drop(&p);
    return p.rc;
}

err_code gb_regex(g_builder *b, int32_t from, const char *pattern, size_t len, bool json,
                  int32_t to, err *e)
{
    return gb_regex_sized(b, from, pattern, len, 0, -1, json, to, e);
}

/* ---------------------------------------------------------------------- finding -- */

enum { TEXT_MAX = 256, CHAIN_MAX = 300, FIND_MAX = 20000 /* parts passed */ };

typedef struct {
    bool at[TEXT_MAX + 1]; /* places between characters */
} places;

typedef struct {
    const parser *p;
    const char *s;
    int n, work;
} finder;

static places pass(finder *f, int i, places from);

static bool in_class(const g_class *c, unsigned char ch)
{
    for (int i = 0; i < c->n; i++)
        if (ch >= c->r[i].lo && ch <= c->r[i].hi) return true;
    return false;
}

static bool unite(places *a, const places *b)
{
    bool more = false;
    for (int k = 0; k <= TEXT_MAX; k++) {
        more |= b->at[k] && !a->at[k];
        a->at[k] |= b->at[k];
    }
    return more;
}

/* Repeats until no new position is reached: at most as often as the text has positions. */
static places pass_repeat(finder *f, const node *x, places from)
{
    int least = x->min < f->n + 1 ? x->min : f->n + 1;
    for (int k = 0; k < least; k++) from = pass(f, x->a, from);
    places all = from;
    for (int k = least; x->max < 0 || k < x->max; k++) {
        from = pass(f, x->a, from);
        if (!unite(&all, &from)) break;
    }
    return all;
}

static places pass_look(finder *f, const node *x, places from)
{
    for (int k = 0; k <= f->n; k++) {
        if (!from.at[k]) continue;
        places one = {0};
        one.at[k] = true;
        one = pass(f, x->a, one);
        bool found = false;
        for (int i = k; i <= f->n; i++) found |= one.at[i];
        from.at[k] = found != (x->min > 0);
    }
    return from;
}

/* Positions after a part that begins at one of `from`. */
static places pass(finder *f, int i, places from)
{
    const node *x = &f->p->list[i];
    places out = {0};
    if (++f->work > FIND_MAX) return out;
    switch (x->kind) {
    case R_EMPTY: return from;
    case R_NEVER: return out;
    case R_BEGIN: out.at[0] = from.at[0]; return out;
    case R_END: out.at[f->n] = from.at[f->n]; return out;
    case R_LOOK: return pass_look(f, x, from);
    case R_CLASS:
        for (int k = 0; k < f->n; k++)
            out.at[k + 1] = from.at[k] && in_class(f->p->cls[x->a], (unsigned char)f->s[k]);
        return out;
    case R_REPEAT: return pass_repeat(f, x, from);
    case R_CAT: return pass(f, x->b, pass(f, x->a, from));
    case R_ALT: {
        places a = pass(f, x->a, from), b = pass(f, x->b, from);
        (void)unite(&a, &b);
        return a;
    }
    }
    return out;
}

err_code g_regex_finds(const char *pattern, size_t len, const char *text, bool *found, err *e)
{
    parser p = {.s = pattern, .start = pattern, .end = pattern + len, .e = e};
    finder f = {&p, text, (int)strnlen(text, TEXT_MAX + 1), 0};
    int root;
    bool plain = f.n <= TEXT_MAX;
    for (int i = 0; i < f.n; i++) plain = plain && text[i] >= ' ' && text[i] < 0x7F;
    if (!regex_parse(&p, &root) && (!plain || p.leaves || p.n > CHAIN_MAX))
        p.rc = err_set(e, ERR_UNSUPPORTED, "it is too long, or the text is not plain");
    assert(p.rc || f.n <= TEXT_MAX); /* places has one more */
    places anywhere, end = {0};
    memset(&anywhere, 0, sizeof(anywhere));
    for (int i = 0; i <= f.n && !p.rc; i++) anywhere.at[i] = true;
    if (!p.rc) end = pass(&f, root, anywhere);
    if (f.work > FIND_MAX) p.rc = err_set(e, ERR_UNSUPPORTED, "it takes too long to find");
    *found = false;
    for (int i = 0; i <= f.n; i++) *found |= i <= TEXT_MAX && end.at[i];
    regex_drop(&p);
    return p.rc;
}

/* ---------------------------------------------------------------------- example -- */

enum { EXAMPLE_PARTS_MAX = 5000 };

typedef struct {
    const parser *p;
    char *out;
    size_t size, len;
    int parts;
} writer;

/* A readable character of the class; 0: it has no printable ASCII. */
static char plain_char(const g_class *c)
{
    for (const char *s = "a0A-_. "; *s; s++)
        if (in_class(c, (unsigned char)*s)) return *s;
    for (unsigned char ch = '!'; ch < 0x7F; ch++)
        if (in_class(c, ch)) return (char)ch;
    return 0;
}

static bool write_example(writer *w, int i)
{
    const node *x = &w->p->list[i];
    if (++w->parts > EXAMPLE_PARTS_MAX) return false;
    switch (x->kind) {
    case R_EMPTY:
    case R_BEGIN:
    case R_LOOK:
    case R_END: return true;
    case R_NEVER: return false;
    case R_CLASS: {
        char ch = plain_char(w->p->cls[x->a]);
        if (!ch || w->len + 1 >= w->size) return false;
        w->out[w->len++] = ch;
        return true;
    }
    case R_REPEAT:
        for (int k = 0; k < x->min; k++)
            if (!write_example(w, x->a)) return false;
        return true;
    case R_CAT: return write_example(w, x->a) && write_example(w, x->b);
    case R_ALT: {
        size_t before = w->len;
        if (write_example(w, x->a)) return true;
        w->len = before;
        return write_example(w, x->b);
    }
    }
    return false;
}

bool g_regex_example(const char *pattern, size_t len, char *out, size_t size)
{
    assert(size > 0);
    err e;
    parser p = {.s = pattern, .start = pattern, .end = pattern + len, .e = &e};
    writer w = {&p, out, size, 0, 0};
    int root;
    bool found = !parse(&p, &root) && write_example(&w, root);
    out[found ? w.len : 0] = 0;
    regex_drop(&p);
    return found && !g_regex_finds(pattern, len, out, &found, &e) && found;
}
