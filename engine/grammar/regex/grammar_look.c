/* grammar_look.c -- look-ahead assertions, (?=x) and (?!x), compiled away.
 *
 * The expression and the bodies of its look-aheads become separate NFAs. A new state is a pair of
 * an expression state and what is still owed there: for each open look-ahead the set of body states
 * it may be in.
 *
 *   pass a look-ahead     its start set is added to the owed list
 *   read a character      every owed set is advanced
 *   (?=x) settled         when its set contains the body's end
 *   (?!x) settled         when its set is empty; violated when it contains the body's end
 *   end of the text       every (?=x) must have ended, no (?!x) may end
 *
 * So the result is an NFA with alternatives only, which accepts exactly the same texts;
 * grammar_dfa.c takes it from there. Lists of owed sets are interned (keep()), pairs are found by a
 * hash table (part_of()) and expanded in the order of their creation.
 *
 * Limits: OWED_MAX, SETS_MAX, LISTS_MAX, PARTS_MAX and WORK_MAX; the result is ERR_LIMIT. The
 * number of pairs can be exponential in the number of look-aheads.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/regex/grammar_dfa_inside.h"

enum {
    OWED_MAX = 24,    /* look-aheads that are not settled at once */
    SETS_MAX = 6000,  /* states in their sets */
    LISTS_MAX = 4000, /* different ones of what is owed */
    SLOTS = 1 << 16,  /* more than twice PARTS_MAX */
    LIST_SLOTS = 1 << 13,
};

static_assert((int)SLOTS > 2 * (int)PARTS_MAX && LIST_SLOTS > 2 * LISTS_MAX, "a search ends");
typedef struct {
    int look, at, n; /* node; its set in `sets` */
} debt;

/* An owed list under construction. */
typedef struct {
    debt list[OWED_MAX];
    int n, n_sets;
    int sets[SETS_MAX];
} draft;

typedef struct {
    int state, owed, begin, part;
} place;

typedef struct {
    g_dfa *d, *raw;
    const regex_tree *p;
    int *first, *last;       /* [p->n] states of a look-ahead's body */
    int end, found;          /* the expression's last state, and that of d */
    int column[COLUMNS_MAX]; /* its class in d; -1: none yet */
    int *mark, stamp;        /* [PARTS_MAX] */
    /* Lists of what is owed, as they are kept: look, n, states of each, from at[k] to at[k + 1]. */
    int *pool, *at, *list_slot;
    int n_pool, cap_pool, n_lists;
    place *place; /* [PARTS_MAX] */
    int n, *slot;
    draft a, b;
} looker;

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* ---------------------------------------------------------------------- their sets -- */

static void put(looker *l, draft *w, int state)
{
    assert(state >= 0 && state < l->raw->n_parts);
    if (l->mark[state] == l->stamp) return;
    l->mark[state] = l->stamp;
    if (w->n_sets == SETS_MAX) l->d->failed = true;
    if (!l->d->failed) w->sets[w->n_sets++] = state;
}

/* Closure over edges without characters of the states from `from` on. */
static void close_over(looker *l, draft *w, int from, bool begin, bool end)
{
    for (int i = from; i < w->n_sets && !l->d->failed; i++) {
        for (int e = l->raw->head[w->sets[i]]; e >= 0; e = l->raw->edge[e].next) {
            const part_edge *x = &l->raw->edge[e];
            l->d->work++;
            if (x->kind == P_FREE || (x->kind == P_BEGIN && begin) || (x->kind == P_END && end))
                put(l, w, x->to);
        }
    }
}

static bool must_not(const looker *l, int look)
{
    return l->p->list[look].min > 0;
}

/* Adds the set from `from` on as an open look-ahead. False: it is violated. */
static bool owe(looker *l, draft *w, int look, int from)
{
    bool met = l->mark[l->last[look]] == l->stamp, not = must_not(l, look);
    int n = w->n_sets - from;
    assert(n >= 0);
    if (met || n == 0) {
        w->n_sets = from;
        return met != not ;
    }
    for (int i = 0; i < w->n && not ; i++) { /* negative ones: neither set may end, so their
                                              * union */
        debt *x = &w->list[i];
        if (x->look != look) continue;
        l->stamp++;
        for (int k = 0; k < n; k++) l->mark[w->sets[from + k]] = l->stamp;
        for (int k = 0; k < x->n; k++) put(l, w, w->sets[x->at + k]);
        *x = (debt){look, from, w->n_sets - from};
        return true;
    }
    if (w->n == OWED_MAX) l->d->failed = true;
    if (!l->d->failed) w->list[w->n++] = (debt){look, from, n};
    return true;
}

static void load(const looker *l, draft *w, int owed)
{
    assert(owed >= 0 && owed < l->n_lists);
    w->n = w->n_sets = 0;
    for (int i = l->at[owed]; i < l->at[owed + 1]; i += 2 + l->pool[i + 1]) {
        int n = l->pool[i + 1];
        memcpy(w->sets + w->n_sets, l->pool + i + 2, (size_t)n * sizeof(int));
        w->list[w->n++] = (debt){l->pool[i], w->n_sets, n};
        w->n_sets += n;
    }
    assert(w->n <= OWED_MAX && w->n_sets <= SETS_MAX);
}

/* ----------------------------------------------------------------- lists, and places -- */

static int order(const draft *w, const debt *x, const debt *y)
{
    if (x->look != y->look) return x->look - y->look;
    if (x->n != y->n) return x->n - y->n;
    return memcmp(w->sets + x->at, w->sets + y->at, (size_t)x->n * sizeof(int));
}

/* Canonical order, so that equal lists compare equal. */
static void sort(draft *w)
{
    for (int i = 0; i < w->n; i++) {
        debt x = w->list[i];
        int k = i;
        qsort(w->sets + x.at, (size_t)x.n, sizeof(int), by_number);
        for (; k > 0 && order(w, &w->list[k - 1], &x) > 0; k--) w->list[k] = w->list[k - 1];
        w->list[k] = x;
    }
}

static void append(looker *l, int v)
{
    if (l->n_pool == l->cap_pool) {
        int want = l->cap_pool * 2 + 4096;
        int *pool = realloc(l->pool, (size_t)want * sizeof(*pool));
        if (!pool) {
            l->d->failed = true;
            return;
        }
        l->pool = pool;
        l->cap_pool = want;
    }
    l->pool[l->n_pool++] = v;
}

/* The number of a list; list 0 is empty. */
static int keep(looker *l, draft *w)
{
    if (w->n == 0) return 0;
    int from = l->n_pool;
    sort(w);
    for (int i = 0; i < w->n; i++) {
        const debt *x = &w->list[i];
        if (i > 0 && order(w, x - 1, x) == 0) continue;
        append(l, x->look);
        append(l, x->n);
        for (int k = 0; k < x->n; k++) append(l, w->sets[x->at + k]);
    }
    if (l->d->failed) return 0;
    int n = l->n_pool - from;
    uint32_t h = 2166136261U;
    for (int i = from; i < l->n_pool; i++) h = (h ^ (uint32_t)l->pool[i]) * 16777619U;
    int slot = (int)(h % LIST_SLOTS);
    for (; l->list_slot[slot] > 0; slot = (slot + 1) % LIST_SLOTS) {
        int k = l->list_slot[slot];
        l->d->work += n;
        if (l->at[k + 1] - l->at[k] != n ||
            memcmp(l->pool + l->at[k], l->pool + from, (size_t)n * sizeof(int)) != 0)
            continue;
        l->n_pool = from;
        return k;
    }
    if (l->n_lists == LISTS_MAX) {
        l->d->failed = true;
        return 0;
    }
    l->list_slot[slot] = l->n_lists;
    l->at[l->n_lists + 1] = l->n_pool;
    assert(l->n_lists < LISTS_MAX);
    return l->n_lists++;
}

/* The state of d for an expression state and an owed list. */
static int part_of(looker *l, int state, int owed, bool begin)
{
    if (state == l->end && owed == 0) return l->found;
    uint32_t h = ((uint32_t)state * 2 + begin) * 2654435761U + (uint32_t)owed * 40503U;
    int slot = (int)((h >> 8) % SLOTS);
    for (; l->slot[slot] >= 0; slot = (slot + 1) % SLOTS) {
        const place *x = &l->place[l->slot[slot]];
        if (x->state == state && x->owed == owed && x->begin == begin) return x->part;
    }
    int part = dfa_part(l->d);
    if (l->n == PARTS_MAX) l->d->failed = true;
    if (l->d->failed) return 0;
    l->slot[slot] = l->n;
    l->place[l->n++] = (place){state, owed, begin, part};
    return part;
}

/* ------------------------------------------------------------------------ the edges -- */

/* Passes a look-ahead edge. */
static void pass(looker *l, const place *at, const part_edge *x)
{
    load(l, &l->a, at->owed);
    int from = l->a.n_sets;
    l->stamp++;
    put(l, &l->a, l->first[x->cls]);
    close_over(l, &l->a, from, at->begin, false);
    if (!owe(l, &l->a, x->cls, from)) return;
    dfa_join(l->d, at->part, P_FREE, 0, part_of(l, x->to, keep(l, &l->a), at->begin));
}

/* The owed list after a character; -1: a look-ahead is violated. */
static int owed_behind(looker *l, int owed, int column)
{
    if (owed == 0) return 0;
    load(l, &l->a, owed);
    l->b.n = l->b.n_sets = 0;
    for (int i = 0; i < l->a.n && !l->d->failed; i++) {
        const debt *x = &l->a.list[i];
        int from = l->b.n_sets;
        l->stamp++;
        for (int k = 0; k < x->n; k++) {
            for (int e = l->raw->head[l->a.sets[x->at + k]]; e >= 0; e = l->raw->edge[e].next) {
                const part_edge *y = &l->raw->edge[e];
                size_t cell = (size_t)y->cls * (size_t)l->raw->n_columns + (size_t)column;
                l->d->work++;
                if (y->kind == P_CLASS && l->raw->has[cell]) put(l, &l->b, y->to);
            }
        }
        close_over(l, &l->b, from, false, false);
        if (!owe(l, &l->b, x->look, from)) return -1;
    }
    return keep(l, &l->b);
}

/* Whether all look-aheads hold if the text ends here. */
static bool is_paid(looker *l, int owed, bool begin)
{
    load(l, &l->a, owed);
    for (int i = 0; i < l->a.n; i++) {
        const debt *x = &l->a.list[i];
        l->b.n_sets = 0;
        l->stamp++;
        for (int k = 0; k < x->n; k++) put(l, &l->b, l->a.sets[x->at + k]);
        close_over(l, &l->b, 0, begin, true);
        if ((l->mark[l->last[x->look]] == l->stamp) == must_not(l, x->look)) return false;
    }
    return true;
}

/* The class of a column, in d. */
static int class_of(looker *l, int column)
{
    if (l->column[column] >= 0) return l->column[column];
    g_class *c = calloc(1, sizeof(*c));
    for (int i = 0; c && i < l->raw->n_spans; i++)
        if (l->raw->spans[i].column == column)
            g_class_add(c, l->raw->spans[i].lo, l->raw->spans[i].hi);
    return l->column[column] = dfa_class(l->d, c);
}

static void expand(looker *l, int i)
{
    const place at = l->place[i];
    int behind[COLUMNS_MAX]; /* -2: not known yet */
    for (int k = 0; k < l->raw->n_columns; k++) behind[k] = -2;
    for (int e = l->raw->head[at.state]; e >= 0 && !l->d->failed; e = l->raw->edge[e].next) {
        const part_edge *x = &l->raw->edge[e];
        if (x->kind == P_LOOK) pass(l, &at, x);
        if (x->kind == P_FREE || x->kind == P_END || (x->kind == P_BEGIN && at.begin))
            dfa_join(l->d, at.part, x->kind == P_END ? P_END : P_FREE, 0,
                     part_of(l, x->to, at.owed, at.begin));
        for (int k = 0; k < l->raw->n_columns && x->kind == P_CLASS && !l->d->failed; k++) {
            if (!l->raw->has[(size_t)x->cls * (size_t)l->raw->n_columns + (size_t)k]) continue;
            if (behind[k] == -2) behind[k] = owed_behind(l, at.owed, k);
            if (behind[k] >= 0)
                dfa_join(l->d, at.part, P_CLASS, class_of(l, k),
                         part_of(l, x->to, behind[k], false));
        }
    }
    if (at.state == l->end && is_paid(l, at.owed, at.begin))
        dfa_join(l->d, at.part, P_END, 0, l->found);
    if (l->d->work > WORK_MAX) l->d->failed = true;
}

/* The expression and the bodies, each between two states of l->raw. */
static int lay_apart(looker *l, const regex_tree *p, int root)
{
    g_dfa *raw = l->raw;
    for (int i = 0; i < p->n_cls; i++) {
        g_class *c = malloc(sizeof(*c));
        if (c) *c = *p->cls[i];
        (void)dfa_class(raw, c);
    }
    g_class *any = calloc(1, sizeof(*any));
    if (any) g_class_add(any, 1, 0x10FFFF);
    int all = dfa_class(raw, any), start = dfa_part(raw);
    l->end = dfa_part(raw);
    if (!raw->failed) dfa_lay(raw, p, 0, root, start, l->end);
    dfa_join(raw, l->end, P_CLASS, all, l->end);
    for (int i = 0; i < p->n && !raw->failed; i++) {
        if (p->list[i].kind != R_LOOK) continue;
        l->first[i] = dfa_part(raw);
        l->last[i] = dfa_part(raw);
        if (!raw->failed) dfa_lay(raw, p, 0, p->list[i].a, l->first[i], l->last[i]);
    }
    dfa_cut(raw);
    return start;
}

static bool make_room(looker *l, const g_dfa *d, size_t n)
{
    l->raw = dfa_create(d->plain);
    l->first = calloc(n, sizeof(int));
    l->last = calloc(n, sizeof(int));
    l->mark = calloc(PARTS_MAX, sizeof(int));
    l->at = calloc(LISTS_MAX + 2, sizeof(int));
    l->list_slot = calloc(LIST_SLOTS, sizeof(int));
    l->place = malloc(PARTS_MAX * sizeof(*l->place));
    l->slot = malloc(SLOTS * sizeof(int));
    if (l->slot) memset(l->slot, 0xFF, SLOTS * sizeof(int));
    memset(l->column, 0xFF, sizeof(l->column));
    l->n_lists = 1;
    return l->raw && l->first && l->last && l->mark && l->at && l->list_slot && l->place && l->slot;
}

void dfa_lay_looks(g_dfa *d, const regex_tree *p, int root, int first, int later, int to)
{
    looker *l = calloc(1, sizeof(*l));
    if (!l || !make_room(l, d, (size_t)p->n)) d->failed = true;
    if (!d->failed) {
        l->d = d;
        l->p = p;
        l->found = to;
        int start = lay_apart(l, p, root);
        d->failed |= l->raw->failed;
        dfa_join(d, first, P_BEGIN, 0, part_of(l, start, 0, true));
        dfa_join(d, later, P_FREE, 0, part_of(l, start, 0, false));
        for (int i = 0; i < l->n && !d->failed; i++) expand(l, i);
    }
    if (l) {
        dfa_destroy(l->raw);
        free(l->first);
        free(l->last);
        free(l->mark);
        free(l->pool);
        free(l->at);
        free(l->list_slot);
        free(l->place);
        free(l->slot);
    }
    free(l);
}

/* --------------------------------------------------------------------- the pattern -- */

/* Lays out the pattern by way of a DFA. ERR_INPUT: it matches no text. */
static err_code found(g_builder *b, int32_t from, const char *pattern, int64_t least, int64_t most,
                      bool json, int32_t to, err *e)
{
    g_dfa *d = dfa_create(false);
    err_code rc = d ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory");
    if (!rc) rc = dfa_pattern(d, pattern, strlen(pattern), e);
    if (!rc) rc = dfa_finish(d, e);
    if (!rc) rc = gb_dfa(b, from, d, 1, 1, least, most, json, to, e);
    dfa_destroy(d);
    return rc;
}

err_code gb_pattern(g_builder *b, int32_t from, const char *pattern, size_t len, int64_t least,
                    int64_t most, bool whole, bool json, int32_t to, err *e)
{
    regex_tree p = {.s = pattern, .start = pattern, .end = pattern + len, .e = e};
    int root;
    err_code rc = regex_parse(&p, &root), laid = ERR_UNSUPPORTED;
    bool sized = !rc && least > 0 && most < 0 && !p.looks && !regex_keeps(&p, root, least, most);
    regex_drop(&p);
    char *text = rc ? NULL : malloc(len + 8);
    if (!text) return rc ? rc : err_set(e, ERR_NOMEM, "no memory");
    snprintf(text, len + 8, "^(?:%.*s)$", (int)len, pattern);
    if (!sized) laid = gb_regex_sized(b, from, pattern, len, least, most, json, to, e);
    if (laid == ERR_UNSUPPORTED) {
        rc = found(b, from, text, least, most, json, to, e);
        text[len + 4] = 0;
        if (rc == ERR_INPUT && !whole) rc = found(b, from, text + 4, least, most, json, to, e);
        laid = rc == ERR_INPUT ? ERR_NONE : rc; /* then no text is generated */
    }
    if (sized && laid == ERR_LIMIT && !b->failed)
        laid = gb_regex_sized(b, from, pattern, len, least, most, json, to, e);
    free(text);
    return laid;
}
