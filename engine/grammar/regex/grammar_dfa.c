/* grammar_dfa.c -- several regular expressions as one deterministic automaton, so that "matches P
 * but not Q" can be generated (see grammar_dfa.h).
 *
 *   expressions --Thompson--> NFA (parts, edges) --subset construction--> table next[state][column]
 *
 * A column is a class of characters that no expression distinguishes: cut() splits the code points
 * at all class boundaries, make_columns() joins the spans that belong to the same classes. finds[s]
 * is a bit set of the expressions that have matched in state s; an anchor is an edge that is open
 * only at the first or last position.
 *
 * gb_dfa() lays the table out for a wanted combination of matches and a range of lengths, in one of
 * three ways:
 *   lay_free()     no length limit: one automaton state per DFA state
 *   lay_exact()    one per (DFA state, length), while that product is small
 *   lay_counted()  a counted loop, then a home stretch along a shortest path to an accepting state;
 *                  the upper bound is reduced by the longest such path, so the end is always
 *                  reachable
 *
 * Limits: STATES_MAX states, WORK_MAX operations; beyond them ERR_LIMIT. Source: Aho, Sethi,
 * Ullman, Compilers, section 3.7 (subset construction).
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/grammar/regex/grammar_dfa_inside.h"

enum {
    STATES_MAX = 1500,
    SPANS_MAX = 4000,
    EXACT_FROM = 600,    /* states times lengths that are always laid out */
    EXACT_MAX = 8000,    /* and where counting won't do */
    FAR = GRAMMAR_NEVER, /* from here no wanted text ends */
    PLAIN_FIRST = ' ',
    PLAIN_LAST = '~',
};

static_assert(DFA_EXPRESSIONS_MAX <= 64, "finds has a bit for each");
g_dfa *dfa_create(bool plain)
{
    g_dfa *d = calloc(1, sizeof(*d));
    if (!d) return NULL;
    d->plain = plain;
    d->head = malloc(PARTS_MAX * sizeof(*d->head));
    d->failed = !d->head;
    return d;
}

void dfa_destroy(g_dfa *d)
{
    if (!d) return;
    for (int i = 0; i < d->n_cls; i++) free(d->cls[i]);
    free((void *)d->cls);
    free(d->edge);
    free(d->head);
    free(d->spans);
    free(d->has);
    free(d->pool);
    free(d->set_at);
    free(d->next);
    free(d->finds);
    free(d->mark);
    free(d->stack);
    free(d->gather);
    free(d);
}

/* ------------------------------------------------------------- the expressions -- */

int dfa_part(g_dfa *d)
{
    if (d->n_parts == PARTS_MAX) d->failed = true;
    if (d->failed) return 0;
    d->head[d->n_parts] = -1;
    return d->n_parts++;
}

void dfa_join(g_dfa *d, int from, part_kind kind, int cls, int to)
{
    if (d->failed) return;
    assert(from >= 0 && from < d->n_parts && to >= 0 && to < d->n_parts);
    assert(kind != P_CLASS || (cls >= 0 && cls < d->n_cls));
    if (d->n_edges == d->cap_edges) {
        int want = d->cap_edges ? d->cap_edges * 2 : 256;
        part_edge *edge = realloc(d->edge, (size_t)want * sizeof(*edge));
        if (!edge) {
            d->failed = true;
            return;
        }
        d->edge = edge;
        d->cap_edges = want;
    }
    d->edge[d->n_edges] = (part_edge){kind, cls, to, d->head[from]};
    d->head[from] = d->n_edges++;
}

/* Takes the class. */
int dfa_class(g_dfa *d, g_class *c)
{
    if (c && d->n_cls == d->cap_cls) {
        int want = d->cap_cls ? d->cap_cls * 2 : 64;
        g_class **cls = realloc((void *)d->cls, (size_t)want * sizeof(*cls));
        if (cls) {
            d->cls = cls;
            d->cap_cls = want;
        }
    }
    if (!c || c->failed || d->n_cls == d->cap_cls) {
        free(c);
        d->failed = true;
        return 0;
    }
    d->cls[d->n_cls] = c;
    return d->n_cls++;
}

static int add_chars(g_dfa *d, uint32_t lo, uint32_t hi)
{
    g_class *c = calloc(1, sizeof(*c));
    if (c) g_class_add(c, lo, hi);
    return dfa_class(d, c);
}

static void lay_repeat(g_dfa *d, const regex_tree *p, int base, const regex_node *x, int from,
                       int to)
{
    assert(x->min >= 0 && (x->max < 0 || x->min <= x->max));
    for (int k = 0; k < x->min && !d->failed; k++) {
        int next = dfa_part(d);
        dfa_lay(d, p, base, x->a, from, next);
        from = next;
    }
    if (x->max < 0) {
        int loop = dfa_part(d);
        dfa_join(d, from, P_FREE, 0, loop);
        dfa_lay(d, p, base, x->a, loop, loop);
        from = loop;
    }
    for (int k = x->min; k < x->max && !d->failed; k++) {
        int next = dfa_part(d);
        dfa_lay(d, p, base, x->a, from, next);
        dfa_join(d, from, P_FREE, 0, to);
        from = next;
    }
    dfa_join(d, from, P_FREE, 0, to);
}

/* base: the number of the tree's first class. */
void dfa_lay(g_dfa *d, const regex_tree *p, int base, int i, int from, int to)
{
    for (bool going = true; going && !d->failed;) {
        const regex_node *x = &p->list[i];
        going = false;
        switch (x->kind) {
        case R_EMPTY: dfa_join(d, from, P_FREE, 0, to); break;
        case R_BEGIN: dfa_join(d, from, P_BEGIN, 0, to); break;
        case R_END: dfa_join(d, from, P_END, 0, to); break;
        case R_LOOK: dfa_join(d, from, P_LOOK, i, to); break;
        case R_NEVER: break;
        case R_CLASS: dfa_join(d, from, P_CLASS, base + x->a, to); break;
        case R_REPEAT: lay_repeat(d, p, base, x, from, to); break;
        case R_ALT:
            dfa_lay(d, p, base, x->b, from, to);
            i = x->a;
            going = true;
            break;
        case R_CAT: {
            int mid = dfa_part(d);
            dfa_lay(d, p, base, x->b, mid, to);
            to = mid;
            i = x->a;
            going = true;
            break;
        }
        }
    }
}

static err_code too_large(err *e)
{
    return err_set(e, ERR_LIMIT, "the expressions are too large together");
}

static expression *begin(g_dfa *d, err *e)
{
    if (d->failed || d->n_list == DFA_EXPRESSIONS_MAX) {
        (void)too_large(e);
        return NULL;
    }
    expression *x = &d->list[d->n_list++];
    x->first = dfa_part(d);
    x->last = dfa_part(d);
    return x;
}

static err_code end(g_dfa *d, expression *x, err *e)
{
    x->end = d->n_parts;
    return d->failed ? too_large(e) : ERR_NONE;
}

err_code dfa_pattern(g_dfa *d, const char *pattern, size_t len, err *e)
{
    regex_tree p = {.s = pattern, .start = pattern, .end = pattern + len, .e = e};
    int root, base = d->n_cls;
    err_code rc = regex_parse(&p, &root);
    if (!rc && p.leaves && d->plain) rc = err_set(e, ERR_UNSUPPORTED, "a back reference");
    expression *x = rc ? NULL : begin(d, e);
    if (x) {
        for (int i = 0; i < p.n_cls && !p.looks; i++) {
            (void)dfa_class(d, p.cls[i]);
            p.cls[i] = NULL;
        }
        int any = add_chars(d, 1, 0x10FFFF), own = dfa_part(d);
        if (p.vague) d->plain = true;
        dfa_join(d, x->first, P_CLASS, any, p.looks ? own : x->first);
        if (p.looks) {
            dfa_join(d, own, P_CLASS, any, own);
            dfa_lay_looks(d, &p, root, x->first, own, x->last);
        } else {
            dfa_join(d, x->first, P_FREE, 0, own);
            if (!d->failed) dfa_lay(d, &p, base, root, own, x->last);
        }
        dfa_join(d, x->last, P_CLASS, any, x->last);
        rc = end(d, x, e);
    } else if (!rc) {
        rc = ERR_LIMIT;
    }
    regex_drop(&p);
    return rc;
}

err_code dfa_names(g_dfa *d, const char *const *names, int n, err *e)
{
    expression *x = begin(d, e);
    if (!x) return ERR_LIMIT;
    int chars[128];
    for (int k = 0; k < 128; k++) chars[k] = -1;
    for (int i = 0; i < n && !d->failed; i++) {
        int at = x->first;
        const char *s = names[i], *stop = s + strlen(s);
        while (s < stop && !d->failed) {
            size_t used = 1;
            uint32_t ch = utf8_decode(s, (size_t)(stop - s), &used);
            int cls = ch < 128 ? chars[ch] : -1, to = dfa_part(d);
            if (cls < 0) cls = add_chars(d, ch, ch);
            if (ch < 128) chars[ch] = cls;
            dfa_join(d, at, P_CLASS, cls, to);
            at = to;
            s += used;
        }
        dfa_join(d, at, P_END, 0, x->last);
    }
    return end(d, x, e);
}

/* -------------------------------------------------------------------- columns -- */

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static bool class_has(const g_class *c, uint32_t ch)
{
    for (int i = 0; i < c->n; i++)
        if (ch >= c->r[i].lo && ch <= c->r[i].hi) return true;
    return false;
}

/* The characters, cut wherever a class begins or ends. */
static void cut(g_dfa *d)
{
    size_t n = 0, cap = 6;
    for (int i = 0; i < d->n_cls; i++) cap += 2 * (size_t)d->cls[i]->n;
    uint32_t first = d->plain ? PLAIN_FIRST : 1, last = d->plain ? PLAIN_LAST : 0x10FFFF;
    uint32_t *at = malloc(cap * sizeof(*at));
    d->spans = malloc(SPANS_MAX * sizeof(*d->spans));
    if (!at || !d->spans) {
        free(at);
        d->failed = true;
        return;
    }
    at[n++] = first;
    if (!d->plain) at[n++] = 0xD800;
    if (!d->plain) at[n++] = 0xE000;
    for (int i = 0; i < d->n_cls; i++) {
        for (int k = 0; k < d->cls[i]->n; k++) {
            g_range r = d->cls[i]->r[k];
            if (r.lo > first && r.lo <= last) at[n++] = r.lo;
            if (r.hi >= first && r.hi < last) at[n++] = r.hi + 1;
        }
    }
    assert(n <= cap);
    qsort(at, n, sizeof(*at), by_value);
    for (size_t i = 0; i < n; i++) {
        uint32_t hi = last;
        if (i + 1 < n && at[i + 1] == at[i]) continue;
        if (i + 1 < n) hi = at[i + 1] - 1;
        if (at[i] >= 0xD800 && at[i] < 0xE000) continue;
        if (d->n_spans == SPANS_MAX) d->failed = true;
        if (!d->failed) d->spans[d->n_spans++] = (span){at[i], hi, 0};
    }
    free(at);
}

/* Spans that no class tells apart share a column. */
static void make_columns(g_dfa *d)
{
    int moved[COLUMNS_MAX];
    d->n_columns = 1;
    for (int i = 0; i < d->n_cls && !d->failed; i++) {
        int n = d->n_columns, inside[COLUMNS_MAX] = {0}, outside[COLUMNS_MAX] = {0};
        d->work += d->n_spans;
        for (int k = 0; k < d->n_spans; k++) {
            bool in = class_has(d->cls[i], d->spans[k].lo);
            (in ? inside : outside)[d->spans[k].column]++;
        }
        for (int k = 0; k < n; k++) {
            moved[k] = k;
            if (!inside[k] || !outside[k]) continue;
            if (d->n_columns == COLUMNS_MAX) d->failed = true;
            if (!d->failed) moved[k] = d->n_columns++;
        }
        for (int k = 0; k < d->n_spans && d->n_columns > n; k++)
            if (class_has(d->cls[i], d->spans[k].lo))
                d->spans[k].column = moved[d->spans[k].column];
    }
    d->has = calloc((size_t)d->n_cls * (size_t)d->n_columns + 1, sizeof(*d->has));
    if (!d->has) d->failed = true;
    for (int i = 0; i < d->n_cls && !d->failed; i++)
        for (int k = 0; k < d->n_spans; k++)
            if (class_has(d->cls[i], d->spans[k].lo))
                d->has[(size_t)i * (size_t)d->n_columns + (size_t)d->spans[k].column] = true;
}

void dfa_cut(g_dfa *d)
{
    if (!d->failed) cut(d);
    if (!d->failed) make_columns(d);
}

/* ------------------------------------------------------------------------ sets -- */

/* Adds what is reached without a character to the gathered parts; marks are those of d->stamp. */
static int close_over(g_dfa *d, int n, bool at_begin, bool at_end)
{
    int deep = 0;
    for (int i = 0; i < n; i++) d->stack[deep++] = d->gather[i];
    while (deep > 0) {
        int at = d->stack[--deep];
        for (int e = d->head[at]; e >= 0; e = d->edge[e].next) {
            const part_edge *x = &d->edge[e];
            bool open = x->kind == P_FREE || (x->kind == P_BEGIN && at_begin) ||
                        (x->kind == P_END && at_end);
            d->work++;
            if (!open || d->mark[x->to] == d->stamp) continue;
            d->mark[x->to] = d->stamp;
            d->gather[n++] = x->to;
            d->stack[deep++] = x->to;
        }
    }
    assert(n <= d->n_parts); /* each once */
    return n;
}

/* Drops the other parts of an expression that has matched for good (its last part loops). */
static int settle(g_dfa *d, int n)
{
    for (int i = 0; i < d->n_list; i++) {
        const expression *x = &d->list[i];
        if (d->mark[x->last] != d->stamp || d->head[x->last] < 0) continue;
        int left = 0;
        for (int k = 0; k < n; k++) {
            int at = d->gather[k];
            if (at < x->first || at >= x->end || at == x->last) d->gather[left++] = at;
        }
        n = left;
    }
    return n;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static bool keep(g_dfa *d, int n)
{
    if (d->n_pool + n > d->cap_pool) {
        int want = (d->n_pool + n) * 2 + 1024;
        int *pool = realloc(d->pool, (size_t)want * sizeof(*pool));
        if (!pool) return false;
        d->pool = pool;
        d->cap_pool = want;
    }
    memcpy(d->pool + d->n_pool, d->gather, (size_t)n * sizeof(*d->gather));
    d->n_pool += n;
    return true;
}

/* The DFA state of the gathered set, created if it is new; `table` is a hash table of them. */
static int state_of(g_dfa *d, int n, int *table, int size, bool at_begin)
{
    qsort(d->gather, (size_t)n, sizeof(*d->gather), by_number);
    uint32_t h = 2166136261U;
    for (int i = 0; i < n; i++) h = (h ^ (uint32_t)d->gather[i]) * 16777619U;
    int slot = (int)(h % (uint32_t)size);
    for (; table[slot] >= 0; slot = (slot + 1) % size) {
        int s = table[slot], at = d->set_at[s];
        d->work += n;
        if (d->set_at[s + 1] - at == n &&
            memcmp(d->pool + at, d->gather, (size_t)n * sizeof(*d->gather)) == 0)
            return s;
    }
    if (d->n_states == STATES_MAX || !keep(d, n)) {
        d->failed = true;
        return -1;
    }
    int s = d->n_states++;
    d->set_at[d->n_states] = d->n_pool;
    if (!at_begin) table[slot] = s; /* only the first state passes P_BEGIN */
    d->stamp++;
    for (int i = 0; i < n; i++) d->mark[d->gather[i]] = d->stamp;
    (void)close_over(d, n, at_begin, true);
    for (int i = 0; i < d->n_list; i++)
        if (d->mark[d->list[i].last] == d->stamp) d->finds[s] |= (uint64_t)1 << i;
    return s;
}

static int follow(g_dfa *d, int s, int column, int *table, int size)
{
    int n = 0;
    d->stamp++;
    for (int i = d->set_at[s]; i < d->set_at[s + 1]; i++) {
        for (int e = d->head[d->pool[i]]; e >= 0; e = d->edge[e].next) {
            const part_edge *x = &d->edge[e];
            d->work++;
            if (x->kind != P_CLASS || d->mark[x->to] == d->stamp) continue;
            if (!d->has[(size_t)x->cls * (size_t)d->n_columns + (size_t)column]) continue;
            d->mark[x->to] = d->stamp;
            d->gather[n++] = x->to;
        }
    }
    n = settle(d, close_over(d, n, false, false));
    return state_of(d, n, table, size, false);
}

/* Numbers its values anew from 0; returns how many there are. */
static int squeeze(int *kind, int n, int most)
{
    assert(most <= 2 * COLUMNS_MAX);
    int moved[2 * COLUMNS_MAX], used = 0;
    for (int k = 0; k < most; k++) moved[k] = -1;
    for (int k = 0; k < n; k++) {
        if (moved[kind[k]] < 0) moved[kind[k]] = used++;
        kind[k] = moved[kind[k]];
    }
    return used;
}

/* Columns that no edge out of the state tells apart lead to the same one. */
static void follow_all(g_dfa *d, int s, int *table, int size)
{
    int kind[COLUMNS_MAX] = {0}, moved[COLUMNS_MAX], n = 1, seen = -1;
    for (int i = d->set_at[s]; i < d->set_at[s + 1]; i++) {
        for (int e = d->head[d->pool[i]]; e >= 0; e = d->edge[e].next) {
            int cls = d->edge[e].cls, before = n;
            if (d->edge[e].kind != P_CLASS || cls == seen) continue;
            seen = cls;
            for (int k = 0; k < before; k++) moved[k] = -1;
            const bool *has = d->has + (size_t)cls * (size_t)d->n_columns;
            for (int k = 0; k < d->n_columns; k++) {
                if (!has[k]) continue;
                if (moved[kind[k]] < 0) moved[kind[k]] = n++;
                kind[k] = moved[kind[k]];
            }
            n = squeeze(kind, d->n_columns, n);
            d->work += d->n_columns;
        }
    }
    int to[COLUMNS_MAX];
    for (int k = 0; k < n; k++) to[k] = -1;
    for (int k = 0; k < d->n_columns && !d->failed; k++) {
        if (to[kind[k]] < 0) to[kind[k]] = follow(d, s, k, table, size);
        d->next[(size_t)s * (size_t)d->n_columns + (size_t)k] = to[kind[k]];
    }
}

static bool make_room(g_dfa *d)
{
    assert(d->n_columns > 0 && d->n_columns <= COLUMNS_MAX);
    size_t parts = (size_t)d->n_parts + 1;
    d->set_at = calloc(STATES_MAX + 1, sizeof(*d->set_at));
    d->finds = calloc(STATES_MAX, sizeof(*d->finds));
    d->next = malloc((size_t)STATES_MAX * (size_t)d->n_columns * sizeof(*d->next));
    d->mark = calloc(parts, sizeof(*d->mark));
    d->stack = calloc(parts, sizeof(*d->stack));
    d->gather = calloc(parts, sizeof(*d->gather));
    return d->set_at && d->finds && d->next && d->mark && d->stack && d->gather;
}

err_code dfa_finish(g_dfa *d, err *e)
{
    enum { SLOTS = 4 * STATES_MAX };
    dfa_cut(d);
    int *table = d->failed ? NULL : malloc(SLOTS * sizeof(*table)), n = 0;
    if (!table || !make_room(d)) {
        free(table);
        return too_large(e);
    }
    for (int i = 0; i < SLOTS; i++) table[i] = -1;
    d->stamp++;
    for (int i = 0; i < d->n_list; i++) {
        d->gather[n] = d->list[i].first;
        d->mark[d->gather[n++]] = d->stamp;
    }
    n = settle(d, close_over(d, n, true, false));
    (void)state_of(d, n, table, SLOTS, true);
    for (int s = 0; s < d->n_states && !d->failed; s++) {
        follow_all(d, s, table, SLOTS);
        if (d->work > WORK_MAX) d->failed = true;
    }
    free(table);
    return d->failed ? too_large(e) : ERR_NONE;
}

static int next_of(const g_dfa *d, int s, int column)
{
    return d->next[(size_t)s * (size_t)d->n_columns + (size_t)column];
}

int dfa_combinations(const g_dfa *d, uint64_t *out, int most)
{
    int n = 0;
    for (int s = 0; s < d->n_states; s++) {
        bool known = false;
        for (int i = 0; i < n && i < most && !known; i++) known = out[i] == d->finds[s];
        if (known) continue;
        if (n < most) out[n] = d->finds[s];
        if (++n > most) break;
    }
    return n;
}

uint64_t dfa_finds(const g_dfa *d, const char *text)
{
    assert(d->n_states > 0); /* dfa_finish() succeeded */
    const char *stop = text + strlen(text);
    int s = 0;
    while (text < stop) {
        size_t used = 1;
        uint32_t ch = utf8_decode(text, (size_t)(stop - text), &used);
        int i = 0;
        while (i < d->n_spans && (ch < d->spans[i].lo || ch > d->spans[i].hi)) i++;
        if (i == d->n_spans) return 0; /* no generated text has this character */
        s = next_of(d, s, d->spans[i].column);
        text += used;
    }
    return d->finds[s];
}

/* -------------------------------------------------------------------- layout -- */

typedef struct {
    g_builder *b;
    const g_dfa *d;
    bool *ends;   /* [n_states] a wanted text may end there */
    int *far;     /* [n_states] characters to the nearest end; FAR: none is reached */
    bool *onward; /* [n_states] endlessly many characters may follow */
    bool *laid;   /* [n_states] an edge leads there already */
    bool json;
} plan;

/* Two fixed points, from the last state back: far[s], how few characters lead from s to an end
 * (FAR: none do), and onward[s], whether a text from s can go on for ever and
 * still be completed at any place. */
static void look_ahead(plan *p)
{
    const g_dfa *d = p->d;
    for (int s = 0; s < d->n_states; s++) {
        p->far[s] = p->ends[s] ? 0 : FAR;
        p->onward[s] = true;
    }
    for (bool more = true; more;) {
        more = false;
        for (int s = d->n_states - 1; s >= 0; s--) {
            for (int k = 0; k < d->n_columns; k++) {
                int t = next_of(d, s, k);
                if (p->far[t] + 1 >= p->far[s]) continue;
                p->far[s] = p->far[t] + 1;
                more = true;
            }
        }
    }
    for (bool more = true; more;) {
        more = false;
        for (int s = d->n_states - 1; s >= 0; s--) {
            bool goes = false;
            for (int k = 0; k < d->n_columns && p->onward[s] && !goes; k++) {
                int t = next_of(d, s, k);
                goes = p->onward[t] && p->far[t] < FAR;
            }
            more |= p->onward[s] && !goes;
            p->onward[s] = goes;
        }
    }
}

/* An edge with all characters that lead from s to t. */
static void edge(const plan *p, int s, int t, int32_t from, edge_step step, int32_t to)
{
    g_class chars = {.n = 0};
    for (int i = 0; i < p->d->n_spans; i++) {
        const span *x = &p->d->spans[i];
        if (next_of(p->d, s, x->column) != t) continue;
        if (chars.n && chars.r[chars.n - 1].hi + 1 == x->lo)
            chars.r[chars.n - 1].hi = x->hi;
        else
            g_class_add(&chars, x->lo, x->hi);
    }
    gb_class(p->b, from, &chars, p->json, step, to);
}

/* Edges to the states that are in `use` (NULL: any) and nearer to an end than `below`. */
static void edges(const plan *p, int s, const bool *use, int below, int32_t from, edge_step step,
                  const int32_t *to)
{
    for (int k = 0; k < p->d->n_columns && !p->b->failed; k++) {
        int t = next_of(p->d, s, k);
        if (p->laid[t] || (use && !use[t]) || p->far[t] >= below) continue;
        edge(p, s, t, from, step, to[t]);
        p->laid[t] = true;
    }
    for (int k = 0; k < p->d->n_columns; k++) p->laid[next_of(p->d, s, k)] = false;
}

/* One state per DFA state and length; without an upper bound all lengths from `least` on share one.
 */
static bool lay_exact(const plan *p, int32_t from, int64_t least, int64_t most, int32_t to)
{
    int n = p->d->n_states, levels = (int)(most < 0 ? least : most) + 1;
    bool *good = calloc((size_t)n * (size_t)levels, sizeof(*good));
    int32_t *state = malloc((size_t)n * (size_t)levels * sizeof(*state));
    bool any = false;
    if (!good || !state) p->b->failed = true;
    for (int k = levels - 1; k >= 0 && !p->b->failed; k--) {
        for (int s = 0; s < n; s++) {
            bool ok = (k >= least && p->ends[s]) || (most < 0 && k >= least && p->far[s] < FAR);
            for (int c = 0; c < p->d->n_columns && !ok && k + 1 < levels; c++) {
                int t = next_of(p->d, s, c);
                ok = good[(k + 1) * n + t];
            }
            good[k * n + s] = ok;
            state[k * n + s] = ok ? gb_state(p->b) : -1;
        }
    }
    for (int k = 0; k < levels && !p->b->failed; k++) {
        int up = k + 1 < levels ? k + 1 : k;
        for (int s = 0; s < n && (k + 1 < levels || most < 0); s++) {
            if (good[k * n + s])
                edges(p, s, good + up * n, FAR, state[k * n + s], STEP_PLAIN, state + up * n);
        }
        for (int s = 0; s < n; s++)
            if (k >= least && p->ends[s]) gb_eps(p->b, state[k * n + s], to);
    }
    any = !p->b->failed && good[0];
    if (any) gb_eps(p->b, from, state[0]);
    free(good);
    free(state);
    return any;
}

/* Counts the characters, and stops counting early enough that an accepting state stays reachable.
 */
static bool lay_counted(const plan *p, int32_t from, int64_t least, int64_t most, int32_t to)
{
    int n = p->d->n_states, farthest = 0;
    const bool *use = least > 0 ? p->onward : NULL;
    if (p->far[0] >= FAR || (use && !use[0])) return false;
    for (int s = 0; s < n; s++)
        if (p->far[s] < FAR && (!use || use[s]) && p->far[s] > farthest) farthest = p->far[s];
    if (most >= 0 && most - farthest < least) return false;
    int32_t *count = malloc((size_t)n * sizeof(*count)), *home = malloc((size_t)n * sizeof(*home));
    if (!count || !home) p->b->failed = true;
    for (int s = 0; s < n && !p->b->failed; s++) {
        bool reaches = p->far[s] < FAR;
        count[s] = reaches && (!use || use[s]) ? gb_state(p->b) : -1;
        home[s] = reaches ? gb_state(p->b) : -1;
    }
    for (int s = 0; s < n && !p->b->failed; s++) {
        if (home[s] >= 0) edges(p, s, NULL, p->far[s], home[s], STEP_PLAIN, home);
        if (home[s] >= 0 && p->ends[s]) gb_eps(p->b, home[s], to);
        if (count[s] < 0) continue;
        edges(p, s, use, FAR, count[s], STEP_COUNT, count);
        gb_leave(p->b, count[s], home[s]);
    }
    if (!p->b->failed) {
        int32_t bounds = gb_bounds(p->b, (int32_t)least, most < 0 ? -1 : (int32_t)most - farthest);
        gb_enter(p->b, from, bounds, count[0]);
    }
    free(count);
    free(home);
    return true;
}

static bool lay_free(const plan *p, int32_t from, int32_t to)
{
    int n = p->d->n_states;
    int32_t *state = malloc((size_t)n * sizeof(*state));
    if (!state) p->b->failed = true;
    for (int s = 0; s < n && !p->b->failed; s++) state[s] = p->far[s] < FAR ? gb_state(p->b) : -1;
    for (int s = 0; s < n && !p->b->failed; s++) {
        if (state[s] < 0) continue;
        edges(p, s, NULL, FAR, state[s], STEP_PLAIN, state);
        if (p->ends[s]) gb_eps(p->b, state[s], to);
    }
    bool any = !p->b->failed && state[0] >= 0;
    if (any) gb_eps(p->b, from, state[0]);
    free(state);
    return any;
}

err_code gb_dfa(g_builder *b, int32_t from, const g_dfa *d, uint64_t found, uint64_t of,
                int64_t least, int64_t most, bool json, int32_t to, err *e)
{
    assert(d->n_states > 0 && least >= 0);
    size_t n = (size_t)d->n_states;
    plan p = {b, d, calloc(n, 1), calloc(n, sizeof(int)), calloc(n, 1), calloc(n, 1), json};
    bool any = false, large = false;
    if (!p.ends || !p.far || !p.onward || !p.laid) {
        b->failed = true;
    } else {
        for (int s = 0; s < d->n_states; s++) p.ends[s] = (d->finds[s] & of) == (found & of);
        look_ahead(&p);
        int64_t size = (int64_t)n * ((most < 0 ? least : most) + 1);
        if (most < 0 && least == 0)
            any = lay_free(&p, from, to);
        else if (size <= EXACT_FROM)
            any = lay_exact(&p, from, least, most, to);
        else
            any = lay_counted(&p, from, least, most, to);
        large = !any && size > EXACT_MAX;
        if (!any && size > EXACT_FROM && size <= EXACT_MAX)
            any = lay_exact(&p, from, least, most, to);
    }
    free(p.ends);
    free(p.far);
    free(p.onward);
    free(p.laid);
    if (b->failed || (large && !any)) return too_large(e);
    return any ? ERR_NONE : err_set(e, ERR_INPUT, "no text satisfies the expressions");
}
