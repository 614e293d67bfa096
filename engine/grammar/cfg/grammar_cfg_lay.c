/* grammar_cfg_lay.c -- the rules of a context-free grammar as a pushdown automaton.
 *
 * A rule becomes a rule of the automaton and is called where it is named. A small rule
 * (INLINE_SIZE) that is not recursive is copied in place instead: a state that knows what follows
 * has fewer tokens that depend on the stack.
 *
 * A left-recursive rule cannot be called before a byte was read. Such rules are laid out bottom up,
 * together with all that are mutually left-recursive (left corners; Rosenkrantz and Lewis, 1970).
 * Inside rule A, up[B] is the state in which a B was just read:
 *
 *   sum: sum "+" term | term         start --term--> up[sum] --> end
 *                                    up[sum] --"+"--> . --term--> up[sum]
 *
 * A part that begins with B continues from up[B], any other one from the start; the end of a B
 * leads to up[B]; up[A] leads out. So "1+1+1" needs no stack at all.
 *
 * begins[] is the transitive closure of "can begin with" (Warshall's algorithm, one bit row per
 * rule). In Lark, what %ignore names may follow every terminal: before_spaces().
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/cfg/grammar_cfg.h"

enum {
    INLINE_SIZE = 400,   /* states of a rule that is laid out where it is named */
    INLINE_ROOM = 20000, /* of the automaton, up to which that is done */
    INLINE_DEPTH = 100,  /* trees in one another */
    SIZE_MAX_KNOWN = 1 << 20,
    COUNT_FROM = 9, /* so many repetitions of one class are counted, fewer are copied */
};

typedef struct {
    g_builder b;
    cfg *g;
    uint64_t *begins; /* [n_rules][words]: rules that a rule may begin with, at any depth */
    size_t words;
    int32_t *up;   /* [n_rules], of the rule that is laid out; -1: it begins otherwise */
    int32_t *todo; /* [n_rules] rules that are called */
    int n_todo;
    err *e;
    err_code rc;
} layout;

/* ------------------------------------------------------------------------ sizes -- */

static int32_t size_of_rule(cfg *g, int32_t rule, int depth);

/* Estimated number of states. */
static int64_t size_of(cfg *g, int32_t node, int depth)
{
    const cfg_node *x = &g->node[node];
    int64_t sum = 1;
    size_t n;
    switch ((cfg_kind)x->kind) {
    case CFG_TEXT: return x->n;
    case CFG_CLASS: return 2 + x->n;
    case CFG_REGEX: (void)cfg_regex_of(g, x, &n); return 2 + 2 * (int64_t)n;
    case CFG_RULE: return size_of_rule(g, x->at, depth + 1);
    case CFG_CAT:
    case CFG_ALT:
    case CFG_REPEAT: break;
    }
    for (int32_t c = x->child; c >= 0 && sum < SIZE_MAX_KNOWN; c = g->node[c].next)
        sum += 1 + size_of(g, c, depth + 1);
    if (x->kind == CFG_REPEAT) sum *= x->max > 0 ? x->max : x->min + 1;
    return sum < SIZE_MAX_KNOWN ? sum : SIZE_MAX_KNOWN;
}

/* Estimated states for one use of a rule: 1 if it is called. */
static int32_t size_of_rule(cfg *g, int32_t rule, int depth)
{
    cfg_rule *r = &g->rule[rule];
    if (r->size == 0 && depth < INLINE_DEPTH) {
        r->size = -1;
        int64_t size = size_of(g, r->def, depth);
        r->size = r->size == -1 && size <= INLINE_SIZE ? (int32_t)size + 1 : SIZE_MAX_KNOWN;
    } else if (r->size <= 0) {
        r->size = SIZE_MAX_KNOWN; /* recursive, or nested too deeply */
    }
    return r->size > INLINE_SIZE ? 1 : r->size;
}

/* ----------------------------------------------------------- what rules begin with -- */

static uint64_t *row_of(const layout *l, int32_t rule)
{
    return l->begins + (size_t)rule * l->words;
}

static bool has(const uint64_t *row, int32_t rule)
{
    return row[rule / 64] >> (rule % 64) & 1;
}

static void note_first(const cfg *g, int32_t node, uint64_t *row)
{
    const cfg_node *x = &g->node[node];
    if (x->kind == CFG_RULE) row[x->at / 64] |= 1ULL << (x->at % 64);
    bool all = x->kind == CFG_ALT;
    for (int32_t c = x->child; c >= 0; c = all ? g->node[c].next : -1) note_first(g, c, row);
}

static bool find_first(layout *l)
{
    int n = l->g->n_rules;
    l->words = ((size_t)n + 63) / 64;
    l->begins = calloc((size_t)n * l->words, sizeof(*l->begins));
    if (!l->begins) return false;
    for (int i = 0; i < n; i++) note_first(l->g, l->g->rule[i].def, row_of(l, i));
    for (int k = 0; k < n; k++) { /* Warshall */
        for (int i = 0; i < n; i++) {
            if (!has(row_of(l, i), k)) continue;
            for (size_t w = 0; w < l->words; w++) row_of(l, i)[w] |= row_of(l, k)[w];
        }
    }
    return true;
}

/* ------------------------------------------------------------------------ layout -- */

/* How a node is laid out. */
typedef struct {
    bool spaced; /* what is ignored may follow each terminal */
    bool first;  /* nothing of the rule has been read */
} mode;

static void lay(layout *l, int32_t node, int32_t from, int32_t to, mode m);

/* Copies a rule in place, or calls it. */
static void refer(layout *l, int32_t rule, int32_t from, int32_t to, bool spaced)
{
    assert(rule >= 0 && rule < l->g->n_rules && l->g->rule[rule].def >= 0);
    cfg_rule *r = &l->g->rule[rule];
    if (r->size == 0) (void)size_of_rule(l->g, rule, 0);
    if (r->size <= INLINE_SIZE && l->b.n_states + r->size < INLINE_ROOM) {
        lay(l, r->def, from, to, (mode){.spaced = spaced && !r->terminal});
        return;
    }
    if (r->laid < 0) {
        int32_t current = l->b.current;
        r->laid = gb_rule(&l->b);
        l->b.current = current;
        assert(l->n_todo < l->g->n_rules); /* each rule once */
        l->todo[l->n_todo++] = rule;
    }
    gb_call(&l->b, from, r->laid, BOUNDS_NONE, to);
}

/* The state in which a terminal must end so that ignored text can follow before `to`. */
static int32_t before_spaces(layout *l, int32_t to, bool spaced)
{
    if (!spaced || l->g->ignored < 0) return to;
    int32_t end = gb_state(&l->b);
    refer(l, l->g->ignored, end, to, false);
    return end;
}

static void lay_class(layout *l, const cfg_node *x, int32_t from, edge_step step, int32_t to)
{
    assert(x->n == 0 || x->at + x->n <= l->g->n_ranges);
    g_class c = {0};
    for (int32_t i = 0; i < x->n; i++)
        g_class_add(&c, l->g->range[x->at + i].lo, l->g->range[x->at + i].hi);
    if (x->other) g_class_not(&c);
    gb_class(&l->b, from, &c, false, step, to);
}

/* A literal in either case. */
static void lay_folded(layout *l, const cfg_node *x, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < x->n && !l->b.failed; i++) {
        int c = (unsigned char)l->g->text[x->at + i], low = c | 0x20;
        bool letter = low >= 'a' && low <= 'z';
        int32_t next = i + 1 == x->n ? to : gb_state(&l->b);
        gb_bytes(&l->b, from, letter ? low : c, letter ? low : c, STEP_PLAIN, next);
        if (letter) gb_bytes(&l->b, from, low & ~0x20, low & ~0x20, STEP_PLAIN, next);
        from = next;
    }
    if (x->n == 0) gb_eps(&l->b, from, to);
}

/* x{min,max} between two states. A long repetition of one class counts in a state (gb_enter());
 * all else is unrolled: min copies, then a loop, or max - min copies that may be left before
 * each. */
static void lay_repeat(layout *l, const cfg_node *x, int32_t from, int32_t to, mode m)
{
    assert(x->child >= 0 && x->min >= 0 && (x->max < 0 || x->min <= x->max));
    g_builder *b = &l->b;
    const cfg_node *child = &l->g->node[x->child];
    mode then = {.spaced = m.spaced};
    int min = x->min, max = x->max, most = max < 0 ? min : max;
    bool apart = m.spaced && l->g->ignored >= 0;
    if (child->kind == CFG_CLASS && most >= COUNT_FROM && !apart) {
        int32_t loop = gb_state(b);
        gb_enter(b, from, gb_bounds(b, min, max), loop);
        lay_class(l, child, loop, STEP_COUNT, loop);
        gb_leave(b, loop, to);
        return;
    }
    for (int k = 0; (k < min || (m.first && k == 0 && max != 0)) && !b->failed; k++) {
        int32_t next = gb_state(b);
        if (k >= min) gb_eps(b, from, to);
        lay(l, x->child, from, next, k == 0 ? m : then);
        from = next;
    }
    int done = m.first && min == 0 ? 1 : min;
    if (max < 0) {
        int32_t loop = gb_state(b);
        gb_eps(b, from, loop);
        lay(l, x->child, loop, loop, then);
        gb_eps(b, loop, to);
        return;
    }
    for (int k = done; k < max && !b->failed; k++) {
        int32_t next = gb_state(b);
        lay(l, x->child, from, next, then);
        gb_eps(b, from, to);
        from = next;
    }
    gb_eps(b, from, to);
}

static void lay_sequence(layout *l, const cfg_node *x, int32_t from, int32_t to, mode m)
{
    if (x->child < 0) gb_eps(&l->b, from, to);
    for (int32_t c = x->child; c >= 0 && !l->b.failed; c = l->g->node[c].next) {
        int32_t next = l->g->node[c].next < 0 ? to : gb_state(&l->b);
        lay(l, c, from, next, m);
        from = next;
        m.first = false;
    }
}

/* Edges for a node of the grammar between two states. `m` says whether ignored text may follow,
 * and whether the left corner of a left-recursive rule is replaced (m.first). */
static void lay(layout *l, int32_t node, int32_t from, int32_t to, mode m)
{
    const cfg_node *x = &l->g->node[node];
    g_builder *b = &l->b;
    if (b->failed || l->rc) return;
    switch ((cfg_kind)x->kind) {
    case CFG_TEXT:
        to = before_spaces(l, to, m.spaced);
        if (x->other)
            lay_folded(l, x, from, to);
        else
            gb_text(b, from, l->g->text + x->at, (size_t)x->n, to);
        return;
    case CFG_CLASS: lay_class(l, x, from, STEP_PLAIN, before_spaces(l, to, m.spaced)); return;
    case CFG_REGEX: {
        size_t n;
        const char *s = cfg_regex_of(l->g, x, &n);
        l->rc = gb_regex(b, from, s, n, false, before_spaces(l, to, m.spaced), l->e);
        return;
    }
    case CFG_RULE:
        if (m.first && l->up[x->at] >= 0) {
            gb_eps(b, l->up[x->at], to);
            return;
        }
        if (l->g->rule[x->at].terminal) to = before_spaces(l, to, m.spaced);
        refer(l, x->at, from, to, m.spaced);
        return;
    case CFG_CAT: lay_sequence(l, x, from, to, m); return;
    case CFG_ALT:
        for (int32_t c = x->child; c >= 0; c = l->g->node[c].next) lay(l, c, from, to, m);
        return;
    case CFG_REPEAT: lay_repeat(l, x, from, to, m); return;
    }
}

/* Lays out a called rule, with all rules that are mutually left-recursive with it. */
static void lay_rule(layout *l, int32_t rule)
{
    cfg *g = l->g;
    g_builder *b = &l->b;
    const cfg_rule *r = &g->rule[rule];
    if (b->failed || l->rc) return;
    b->current = r->laid;
    int32_t start = b->rule[r->laid].start, end = b->rule[r->laid].end;
    if (!has(row_of(l, rule), rule)) {
        lay(l, r->def, start, end, (mode){.spaced = !r->terminal});
        return;
    }
    for (int i = 0; i < g->n_rules; i++) {
        bool with = has(row_of(l, rule), i) && has(row_of(l, i), rule);
        l->up[i] = with ? gb_state(b) : -1;
    }
    for (int i = 0; i < g->n_rules; i++) {
        if (l->up[i] >= 0)
            lay(l, g->rule[i].def, start, l->up[i],
                (mode){.spaced = !g->rule[i].terminal, .first = true});
    }
    gb_eps(b, l->up[rule], end);
    memset(l->up, 0xFF, (size_t)g->n_rules * sizeof(*l->up));
}

static int32_t lay_all(layout *l)
{
    g_builder *b = &l->b;
    int n = l->g->n_rules;
    l->up = malloc((size_t)n * sizeof(*l->up));
    l->todo = malloc((size_t)n * sizeof(*l->todo));
    if (!l->up || !l->todo || !find_first(l)) {
        l->rc = err_set(l->e, ERR_NOMEM, "no memory");
        return 0;
    }
    memset(l->up, 0xFF, (size_t)n * sizeof(*l->up));
    int32_t root = gb_rule(b);
    if (b->failed) return 0;
    int32_t start = b->rule[root].start, end = b->rule[root].end, from = start;
    if (l->g->ignored >= 0) {
        from = gb_state(b);
        refer(l, l->g->ignored, start, from, false);
    }
    refer(l, l->g->root, from, end, true);
    while (l->n_todo > 0) lay_rule(l, l->todo[--l->n_todo]);
    return root;
}

err_code grammar_build_cfg(g_auto *out, const char *source, err *e)
{
    cfg *g = calloc(1, sizeof(*g));
    layout l = {.g = g, .e = e};
    int32_t root = 0;
    if (!g) return err_set(e, ERR_NOMEM, "no memory");
    gb_init(&l.b);
    l.rc = cfg_read(g, source, e);
    if (!l.rc) root = lay_all(&l);
    err_code rc = l.rc;
    if (rc)
        gb_clear(&l.b);
    else
        rc = gb_finish(&l.b, root, 0, out, e);
    free(l.begins);
    free(l.up);
    free(l.todo);
    cfg_clear(g);
    free(g);
    return rc;
}
