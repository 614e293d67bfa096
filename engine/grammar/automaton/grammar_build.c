/* grammar_build.c -- the builder of automata: rules, states and edges are appended, then
 * gb_finish() prunes and sorts them.
 *
 * gb_finish():
 *   1. groups the edges by target state and by called rule (counting sort)
 *   2. computes need[s] for each state: the fewest stack frames on any way to its rule's end
 *   3. drops edges into states that cannot reach an end, and lays the rest out by source state,
 *      edges with bytes first
 *   4. rejects a grammar without a finite text, and left recursion (a rule that calls itself before
 *      any byte)
 *
 * Step 2 is a breadth-first search backwards from the rules' ends, level by level: a call costs one
 * frame more than its rule. The runtime uses need[] to refuse a configuration that cannot finish
 * within GRAMMAR_DEPTH_MAX frames, so no sampled prefix is a dead end.
 *
 * gb_class() turns ranges of code points into ranges of UTF-8 bytes: a range is split until the
 * byte ranges at all positions are independent.
 *
 * Errors are sticky: after `failed` all calls do nothing, and gb_finish() reports it.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hex.h"
#include "engine/base/utf8.h"
#include "engine/grammar/automaton/grammar_automaton.h"

void gb_init(g_builder *b)
{
    *b = (g_builder){.current = -1};
}

void gb_clear(g_builder *b)
{
    free(b->edge);
    free(b->from);
    free(b->owner);
    free(b->rule);
    free(b->bounds);
    gb_init(b);
}

void g_auto_clear(g_auto *a)
{
    free(a->edge);
    free(a->first);
    free(a->n_bytes);
    free(a->need);
    free(a->rule_of);
    free(a->is_end);
    free(a->simple);
    free(a->rule);
    free(a->bounds);
    *a = (g_auto){0};
}

/* Room for one more of an array; `most` is its limit. */
static bool grow(g_builder *b, void **list, int n, int *cap, size_t size, int most)
{
    if (b->failed || n >= most) {
        b->failed = true;
        return false;
    }
    if (n < *cap) return true;
    int want = *cap ? *cap * 2 : 256;
    void *p = realloc(*list, (size_t)want * size);
    if (!p) {
        b->failed = true;
        return false;
    }
    *list = p;
    *cap = want;
    return true;
}

int32_t gb_state(g_builder *b)
{
    if (!grow(b, (void **)&b->owner, b->n_states, &b->cap_states, sizeof(*b->owner),
              GRAMMAR_STATE_MAX)) {
        return 0;
    }
    b->owner[b->n_states] = b->current;
    return b->n_states++;
}

int32_t gb_rule(g_builder *b)
{
    if (!grow(b, (void **)&b->rule, b->n_rules, &b->cap_rules, sizeof(*b->rule),
              GRAMMAR_STATE_MAX)) {
        return 0;
    }
    b->current = b->n_rules++;
    int32_t start = gb_state(b), end = gb_state(b);
    b->rule[b->current] = (g_rule){start, end};
    return b->current;
}

int32_t gb_bounds(g_builder *b, int32_t min, int32_t max)
{
    assert(min >= 0 && (max < 0 || min <= max));
    for (int i = 0; i < b->n_bounds; i++) {
        if (b->bounds[i].min == min && b->bounds[i].max == max) return i;
    }
    if (!grow(b, (void **)&b->bounds, b->n_bounds, &b->cap_bounds, sizeof(*b->bounds), 4096)) {
        return 0;
    }
    b->bounds[b->n_bounds] = (g_bounds){min, max};
    return b->n_bounds++;
}

static void add_edge(g_builder *b, int32_t from, g_edge e)
{
    if (b->failed) return;
    assert(from >= 0 && from < b->n_states && e.to >= 0 && e.to < b->n_states);
    assert(e.kind != EDGE_CALL || (e.rule >= 0 && e.rule < b->n_rules));
    assert(e.bounds < b->n_bounds);
    int cap = b->cap_edges;
    if (!grow(b, (void **)&b->edge, b->n_edges, &cap, sizeof(*b->edge), GRAMMAR_EDGE_MAX)) return;
    cap = b->cap_edges;
    if (!grow(b, (void **)&b->from, b->n_edges, &cap, sizeof(*b->from), GRAMMAR_EDGE_MAX)) return;
    b->cap_edges = cap;
    b->edge[b->n_edges] = e;
    b->from[b->n_edges++] = from;
}

void gb_bytes(g_builder *b, int32_t from, int lo, int hi, edge_step step, int32_t to)
{
    assert(lo >= 0 && lo <= hi && hi <= 255);
    add_edge(b, from, (g_edge){EDGE_BYTES, (uint8_t)step, (uint8_t)lo, (uint8_t)hi, to, -1, -1});
}

void gb_eps(g_builder *b, int32_t from, int32_t to)
{
    add_edge(b, from, (g_edge){EDGE_EPS, STEP_PLAIN, 0, 0, to, -1, -1});
}

void gb_enter(g_builder *b, int32_t from, int32_t bounds, int32_t to)
{
    add_edge(b, from, (g_edge){EDGE_EPS, STEP_ENTER, 0, 0, to, -1, bounds});
}

void gb_leave(g_builder *b, int32_t from, int32_t to)
{
    add_edge(b, from, (g_edge){EDGE_EPS, STEP_LEAVE, 0, 0, to, -1, -1});
}

void gb_new(g_builder *b, int32_t from, int32_t to)
{
    add_edge(b, from, (g_edge){EDGE_EPS, STEP_NEW, 0, 0, to, -1, -1});
}

void gb_call(g_builder *b, int32_t from, int32_t rule, int32_t bounds, int32_t to)
{
    add_edge(b, from, (g_edge){EDGE_CALL, STEP_PLAIN, 0, 0, to, rule, bounds});
}

void gb_text(g_builder *b, int32_t from, const char *s, size_t len, int32_t to)
{
    if (len == 0) gb_eps(b, from, to);
    for (size_t i = 0; i < len && !b->failed; i++) {
        int32_t next = i + 1 == len ? to : gb_state(b);
        gb_bytes(b, from, (unsigned char)s[i], (unsigned char)s[i], STEP_PLAIN, next);
        from = next;
    }
}

/* The builder's numbers of an automaton's rules and states; false: no memory. */
static bool import_states(g_builder *b, const g_auto *a, int32_t *rule, int32_t *state)
{
    for (int32_t r = 0; r < a->n_rules; r++) {
        const g_rule *from = &a->rule[r];
        rule[r] = from->start < a->n_shared ? r : gb_rule(b);
        if (b->failed) return false;
        state[from->start] = b->rule[rule[r]].start;
        state[from->end] = b->rule[rule[r]].end;
    }
    for (int32_t s = 0; s < a->n_states; s++) {
        const g_rule *own = &a->rule[a->rule_of[s]];
        b->current = rule[a->rule_of[s]];
        if (s < a->n_shared)
            state[s] = s;
        else if (s != own->start && s != own->end)
            state[s] = gb_state(b);
    }
    return !b->failed;
}

/* A byte as it stands inside of a JSON string, escaped. */
static void json_byte(g_builder *b, int32_t from, int byte, const g_edge *e)
{
    static const char letters[] = "b\bf\fn\nr\rt\t\"\"\\\\";
    char text[8] = "";
    for (const char *s = letters; *s; s += 2)
        if (s[1] == byte) snprintf(text, sizeof(text), "%c", s[0]);
    if (!text[0]) snprintf(text, sizeof(text), "u%04x", (unsigned)byte);
    int32_t next = gb_state(b);
    gb_bytes(b, from, '\\', '\\', (edge_step)e->step, next);
    gb_text(b, next, text, strlen(text), e->to);
}

static void add_json_bytes(g_builder *b, int32_t from, const g_edge *e)
{
    for (int lo = e->lo, hi; lo <= e->hi; lo = hi + 1) {
        bool special = lo < 0x20 || lo == '"' || lo == '\\';
        for (hi = lo; !special && hi < e->hi && hi + 1 != '"' && hi + 1 != '\\';) hi++;
        if (special)
            json_byte(b, from, lo, e);
        else
            gb_bytes(b, from, lo, hi, (edge_step)e->step, e->to);
    }
}

int32_t gb_import(g_builder *b, const g_auto *a, bool json)
{
    assert(b->failed || a->n_shared <= b->n_states);
    int32_t before = b->current, root = 0;
    int32_t *rule = calloc((size_t)a->n_rules + 1, sizeof(*rule));
    int32_t *state = calloc((size_t)a->n_states + 1, sizeof(*state));
    if (!rule || !state) b->failed = true;
    if (!b->failed && import_states(b, a, rule, state)) {
        for (int32_t s = a->n_shared; s < a->n_states; s++) {
            for (int32_t k = a->first[s]; k < a->first[s + 1]; k++) {
                g_edge e = a->edge[k];
                e.to = state[e.to];
                if (e.kind == EDGE_CALL) e.rule = rule[e.rule];
                if (e.bounds >= 0)
                    e.bounds = gb_bounds(b, a->bounds[e.bounds].min, a->bounds[e.bounds].max);
                b->current = rule[a->rule_of[s]];
                if (json && e.kind == EDGE_BYTES)
                    add_json_bytes(b, state[s], &e);
                else
                    add_edge(b, state[s], e);
            }
        }
        root = rule[a->root];
    }
    free(rule);
    free(state);
    b->current = before;
    return root;
}

typedef struct {
    const char *s;
    size_t len;
} piece;

static int by_bytes(const void *x, const void *y)
{
    const piece *a = x, *b = y;
    size_t n = a->len < b->len ? a->len : b->len;
    int d = n ? memcmp(a->s, b->s, n) : 0;
    return d ? d : a->len < b->len ? -1 : a->len > b->len;
}

/* Sorts the texts; each shares the states of its predecessor's common prefix (a trie). */
void gb_texts(g_builder *b, int32_t from, char *const *s, const size_t *len, size_t n, int32_t to)
{
    size_t longest = 0;
    for (size_t i = 0; i < n; i++) longest = len[i] > longest ? len[i] : longest;
    piece *list = malloc((n + 1) * sizeof(*list));
    int32_t *way = malloc((longest + 1) * sizeof(*way)); /* states along the last text */
    if (!list || !way) b->failed = true;
    for (size_t i = 0; !b->failed && i < n; i++) list[i] = (piece){s[i], len[i]};
    if (!b->failed) qsort(list, n, sizeof(*list), by_bytes);
    for (size_t i = 0; !b->failed && i < n; i++) {
        const piece *p = &list[i], *q = i ? &list[i - 1] : NULL;
        size_t same = 0;
        while (q && same < q->len && same < p->len && q->s[same] == p->s[same]) same++;
        if (q && same == p->len && same == q->len) continue; /* a duplicate */
        way[0] = from;
        for (size_t k = same; k < p->len && !b->failed; k++) {
            way[k + 1] = gb_state(b);
            int byte = (unsigned char)p->s[k];
            gb_bytes(b, way[k], byte, byte, STEP_PLAIN, way[k + 1]);
        }
        gb_eps(b, way[p->len], to);
    }
    free(list);
    free(way);
}

/* ------------------------------------------------------------------- finishing -- */

typedef struct {
    const g_builder *b;
    int32_t *into_first, *into; /* edges by the state they lead to */
    int32_t *call_first, *call; /* call edges by the rule they call */
    int32_t *need;
    int32_t *queue[2];
    int n[2];
} leveller;

/* Groups the edges by target state, or by called rule: counting sort. `first` has n_keys + 1
 * entries. */
static void group(const g_builder *b, int n_keys, bool calls, int32_t *first, int32_t *list)
{
    memset(first, 0, ((size_t)n_keys + 1) * sizeof(*first));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < b->n_edges; i++) {
            const g_edge *e = &b->edge[i];
            if (calls && e->kind != EDGE_CALL) continue;
            int key = calls ? e->rule : e->to;
            if (pass == 0)
                first[key + 1]++;
            else
                list[first[key]++] = i;
        }
        if (pass == 0) {
            for (int k = 0; k < n_keys; k++) first[k + 1] += first[k];
        }
    }
    for (int k = n_keys; k > 0; k--) first[k] = first[k - 1]; /* they moved on while filling */
    first[0] = 0;
}

static void offer(leveller *l, int32_t edge, int level)
{
    const g_edge *e = &l->b->edge[edge];
    int32_t s = l->b->from[edge];
    int need = l->need[e->to];
    if (need >= GRAMMAR_NEVER) return;
    if (e->kind == EDGE_CALL) {
        int inner = l->need[l->b->rule[e->rule].start];
        if (inner >= GRAMMAR_NEVER) return;
        if (inner + 1 > need) need = inner + 1;
    }
    if (need >= l->need[s] || need > level + 1) return;
    l->need[s] = need;
    int q = need > level;
    assert(l->n[q] < l->b->n_states); /* each state once */
    l->queue[q][l->n[q]++] = s;
}

/* Level by level: all states that need `level` frames are final before any state that needs more. A
 * state is in each queue at most once, because its need only falls from level + 1 to level. */
static void settle_levels(leveller *l)
{
    const g_builder *b = l->b;
    for (int s = 0; s < b->n_states; s++) l->need[s] = GRAMMAR_NEVER;
    for (int r = 0; r < b->n_rules; r++) {
        l->need[b->rule[r].end] = 0;
        l->queue[0][l->n[0]++] = b->rule[r].end;
    }
    for (int level = 0; l->n[0] > 0; level++) {
        for (int i = 0; i < l->n[0]; i++) {
            int32_t s = l->queue[0][i];
            if (l->need[s] != level) continue;
            for (int k = l->into_first[s]; k < l->into_first[s + 1]; k++) {
                offer(l, l->into[k], level);
            }
            int32_t r = b->owner[s];
            if (r < 0 || b->rule[r].start != s) continue;
            for (int k = l->call_first[r]; k < l->call_first[r + 1]; k++) {
                offer(l, l->call[k], level);
            }
        }
        int32_t *done = l->queue[0];
        l->queue[0] = l->queue[1];
        l->n[0] = l->n[1];
        l->queue[1] = done;
        l->n[1] = 0;
    }
}

static bool edge_lives(const g_builder *b, const int32_t *need, int i)
{
    const g_edge *e = &b->edge[i];
    if (need[e->to] >= GRAMMAR_NEVER) return false;
    return e->kind != EDGE_CALL || need[b->rule[e->rule].start] < GRAMMAR_NEVER;
}

static void lay_out(const g_builder *b, g_auto *a)
{
    for (int i = 0; i < b->n_edges; i++) {
        if (edge_lives(b, a->need, i)) a->first[b->from[i] + 1]++;
    }
    for (int s = 0; s < b->n_states; s++) a->first[s + 1] += a->first[s];
    for (int pass = 0; pass < 2; pass++) { /* bytes before the others */
        for (int i = 0; i < b->n_edges; i++) {
            const g_edge *e = &b->edge[i];
            if ((e->kind == EDGE_BYTES) != (pass == 0) || !edge_lives(b, a->need, i)) continue;
            int32_t s = b->from[i];
            a->edge[a->first[s]++] = *e;
            a->compares |= e->step == STEP_NEW;
            if (pass == 0) a->n_bytes[s]++;
        }
    }
    for (int s = b->n_states; s > 0; s--) a->first[s] = a->first[s - 1];
    a->first[0] = 0;
    assert(a->first[b->n_states] <= b->n_edges);
    a->n_edges = a->first[b->n_states];
    for (int r = 0; r < b->n_rules; r++) a->is_end[b->rule[r].end] = true;
    for (int s = 0; s < b->n_states; s++) {
        int n = a->first[s + 1] - a->first[s];
        a->simple[s] = n > 0 && n == a->n_bytes[s];
        a->rule_of[s] = b->owner[s];
    }
}

/* ------------------------------------------------------ rules that begin with themselves -- */

typedef struct {
    const g_auto *a;
    uint8_t *colour; /* of rules: 0 new, 1 open, 2 done */
    uint8_t *empty;  /* of rules: 1 if they may be the empty text */
    bool *seen;      /* of states */
    bool cyclic;
} first_calls;

/* Whether the rule's end is reached without a byte; also walks what it may call first. */
static void look_first(first_calls *f, int32_t rule, int depth)
{
    if (f->colour[rule] == 2) return;
    if (f->colour[rule] == 1 || depth > 1000) {
        f->cyclic = true;
        return;
    }
    f->colour[rule] = 1;
    const g_auto *a = f->a;
    int cap = 64, n = 0;
    int32_t *todo = malloc((size_t)cap * sizeof(*todo));
    if (todo) todo[n++] = a->rule[rule].start;
    while (todo && n > 0 && !f->cyclic) {
        int32_t s = todo[--n];
        if (f->seen[s]) continue;
        f->seen[s] = true;
        if (s == a->rule[rule].end) f->empty[rule] = 1;
        for (int k = a->first[s] + a->n_bytes[s]; k < a->first[s + 1]; k++) {
            const g_edge *e = &a->edge[k];
            if (e->kind == EDGE_CALL) {
                look_first(f, e->rule, depth + 1);
                if (!f->empty[e->rule]) continue;
            }
            if (n == cap) {
                int32_t *more = realloc(todo, (size_t)cap * 2 * sizeof(*todo));
                if (!more) {
                    f->cyclic = true;
                    break;
                }
                todo = more;
                cap *= 2;
            }
            todo[n++] = e->to;
        }
    }
    if (!todo) f->cyclic = true;
    free(todo);
    f->colour[rule] = 2;
}

static bool begins_with_itself(const g_auto *a)
{
    first_calls f = {.a = a,
                     .colour = calloc((size_t)a->n_rules, 1),
                     .empty = calloc((size_t)a->n_rules, 1),
                     .seen = calloc((size_t)a->n_states, sizeof(bool))};
    f.cyclic = !f.colour || !f.empty || !f.seen;
    for (int r = 0; r < a->n_rules && !f.cyclic; r++) look_first(&f, r, 0);
    free(f.colour);
    free(f.empty);
    free(f.seen);
    return f.cyclic;
}

err_code gb_finish(g_builder *b, int32_t root, int n_shared, g_auto *a, err *e)
{
    *a = (g_auto){0};
    if (b->failed) {
        gb_clear(b);
        return err_set(e, ERR_LIMIT, "it is too large: more than %d states", GRAMMAR_STATE_MAX);
    }
    assert(root >= 0 && root < b->n_rules && n_shared >= 0 && n_shared <= b->n_states);
    size_t n = (size_t)b->n_states, m = (size_t)b->n_edges, k = (size_t)b->n_rules;
    a->edge = calloc(m + 1, sizeof(*a->edge));
    a->first = calloc(n + 1, sizeof(*a->first));
    a->n_bytes = calloc(n, sizeof(*a->n_bytes));
    a->need = calloc(n, sizeof(*a->need));
    a->rule_of = calloc(n, sizeof(*a->rule_of));
    a->is_end = calloc(n, sizeof(*a->is_end));
    a->simple = calloc(n, sizeof(*a->simple));
    leveller l = {.b = b,
                  .into_first = calloc(n + 1, sizeof(int32_t)),
                  .into = calloc(m + 1, sizeof(int32_t)),
                  .call_first = calloc(k + 1, sizeof(int32_t)),
                  .call = calloc(m + 1, sizeof(int32_t)),
                  .need = a->need,
                  .queue = {calloc(n + 1, sizeof(int32_t)), calloc(n + 1, sizeof(int32_t))}};
    bool got = a->edge && a->first && a->n_bytes && a->need && a->rule_of && a->is_end &&
               a->simple && l.into_first && l.into && l.call_first && l.call && l.queue[0] &&
               l.queue[1];
    if (got) {
        group(b, b->n_states, false, l.into_first, l.into);
        group(b, b->n_rules, true, l.call_first, l.call);
        settle_levels(&l);
        lay_out(b, a);
    }
    free(l.into_first);
    free(l.into);
    free(l.call_first);
    free(l.call);
    free(l.queue[0]);
    free(l.queue[1]);
    a->n_states = b->n_states;
    a->rule = b->rule;
    a->n_rules = b->n_rules;
    a->bounds = b->bounds;
    a->n_bounds = b->n_bounds;
    a->root = root;
    a->n_shared = n_shared;
    b->rule = NULL;
    b->bounds = NULL;
    gb_clear(b);
    err_code rc = ERR_NONE;
    if (!got)
        rc = err_set(e, ERR_NOMEM, "no memory for it");
    else if (a->need[a->rule[root].start] > GRAMMAR_DEPTH_MAX)
        rc = err_set(e, ERR_INPUT, "no finite text satisfies it");
    else if (begins_with_itself(a))
        rc = err_set(e, ERR_INPUT, "it refers to itself before any text (left recursion)");
    if (rc) g_auto_clear(a);
    return rc;
}

/* ----------------------------------------------------------------- code points -- */

static int by_lo(const void *x, const void *y)
{
    const g_range *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

/* Sorted, apart. */
static void tidy(g_class *c)
{
    qsort(c->r, (size_t)c->n, sizeof(c->r[0]), by_lo);
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        if (n && c->r[i].lo <= c->r[n - 1].hi + 1) {
            if (c->r[i].hi > c->r[n - 1].hi) c->r[n - 1].hi = c->r[i].hi;
        } else {
            c->r[n++] = c->r[i];
        }
    }
    c->n = n;
}

void g_class_add(g_class *c, uint32_t lo, uint32_t hi)
{
    if (lo > hi) return;
    assert(hi <= 0x10FFFF);
    if (c->n == GRAMMAR_RANGES_MAX) tidy(c);
    if (c->n == GRAMMAR_RANGES_MAX) {
        c->failed = true;
        return;
    }
    c->r[c->n++] = (g_range){lo, hi};
}

void g_class_add_all(g_class *c, const g_class *from)
{
    c->failed |= from->failed;
    for (int i = 0; i < from->n; i++) g_class_add(c, from->r[i].lo, from->r[i].hi);
}

void g_class_not(g_class *c)
{
    tidy(c);
    g_class out = {.failed = c->failed};
    uint32_t at = 1; /* NUL is never generated */
    for (int i = 0; i < c->n; i++) {
        if (c->r[i].lo > at) g_class_add(&out, at, c->r[i].lo - 1);
        if (c->r[i].hi + 1 > at) at = c->r[i].hi + 1;
    }
    g_class_add(&out, at, 0x10FFFF);
    *c = out;
}

bool g_class_empty(const g_class *c)
{
    for (int i = 0; i < c->n; i++) {
        if (c->r[i].lo < 0xD800 || c->r[i].hi >= 0xE000) return c->r[i].hi == 0;
    }
    return true;
}

typedef struct {
    g_builder *b;
    int32_t from, to;
    edge_step step;
} target;

/* A range whose ends have the same length: split until every byte's range is
 * independent of the others. */
static void add_range(const target *t, uint32_t lo, uint32_t hi, int n)
{
    assert(lo <= hi && n >= 1 && n <= UTF8_MAX);
    for (int i = 1; i < n; i++) {
        uint32_t low_bits = (1U << (6 * i)) - 1;
        if ((lo & ~low_bits) == (hi & ~low_bits)) continue;
        if (lo & low_bits) {
            add_range(t, lo, lo | low_bits, n);
            add_range(t, (lo | low_bits) + 1, hi, n);
            return;
        }
        if ((hi & low_bits) != low_bits) {
            add_range(t, lo, (hi & ~low_bits) - 1, n);
            add_range(t, hi & ~low_bits, hi, n);
            return;
        }
    }
    char a[UTF8_MAX], z[UTF8_MAX];
    size_t n_lo = utf8_encode(lo, a), n_hi = utf8_encode(hi, z);
    assert(n_lo == (size_t)n && n_hi == (size_t)n);
    int32_t s = t->from;
    for (int i = 0; i < n; i++) {
        int32_t next = i + 1 == n ? t->to : gb_state(t->b);
        gb_bytes(t->b, s, (uint8_t)a[i], (uint8_t)z[i], i == 0 ? t->step : STEP_PLAIN, next);
        s = next;
    }
}

static void add_scalars(const target *t, uint32_t lo, uint32_t hi)
{
    static const g_range lengths[] = {
        {1, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    static const int bytes[] = {1, 2, 3, 3, 4};
    for (int i = 0; i < 5; i++) {
        uint32_t a = lo > lengths[i].lo ? lo : lengths[i].lo;
        uint32_t z = hi < lengths[i].hi ? hi : lengths[i].hi;
        if (a <= z) add_range(t, a, z, bytes[i]);
    }
}

static void add_escaped(const target *t, uint32_t c)
{
    static const char from[] = "\"\\\b\f\n\r\t", as[] = "\"\\bfnrt";
    const char *one = c < 0x80 && c ? strchr(from, (int)c) : NULL;
    int32_t s = gb_state(t->b);
    gb_bytes(t->b, t->from, '\\', '\\', t->step, s);
    char text[8] = "u0000";
    if (one) {
        gb_text(t->b, s, as + (one - from), 1, t->to);
        return;
    }
    text[3] = HEX_DIGITS[c >> 4 & 15];
    text[4] = HEX_DIGITS[c & 15];
    gb_text(t->b, s, text, 5, t->to);
}

void gb_class(g_builder *b, int32_t from, const g_class *c, bool json, edge_step step, int32_t to)
{
    g_class own = *c;
    target t = {b, from, to, step};
    if (own.failed) b->failed = true;
    tidy(&own);
    for (int i = 0; i < own.n && !b->failed; i++) {
        uint32_t lo = own.r[i].lo, hi = own.r[i].hi;
        if (!json) {
            add_scalars(&t, lo, hi);
            continue;
        }
        for (uint32_t k = lo ? lo : 1; k < 0x20 && k <= hi; k++) add_escaped(&t, k);
        if (lo <= '"' && '"' <= hi) add_escaped(&t, '"');
        if (lo <= '\\' && '\\' <= hi) add_escaped(&t, '\\');
        static const g_range plain[] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10FFFF}};
        for (int k = 0; k < 3; k++) {
            uint32_t a = lo > plain[k].lo ? lo : plain[k].lo;
            uint32_t z = hi < plain[k].hi ? hi : plain[k].hi;
            if (a <= z) add_scalars(&t, a, z);
        }
    }
}
