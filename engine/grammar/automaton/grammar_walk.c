/* grammar_walk.c -- simulation of the pushdown automaton: sets of configurations, one set per byte.
 *
 *   conf[]   | set 0 | set 1 | set 2 | ...      conf_at[d]: begin of set d
 *   node[]   frames pushed by these sets        node_at[d]: frames before set d
 *
 * walk_byte(d, b) computes set d + 1 from set d and truncates whatever was behind it, so trying the
 * next token of a trie reuses the sets of the common prefix. add() takes the closure over edges
 * without bytes: calls push a node, rule ends pop one, equal configurations are merged. Calls in
 * tail position push nothing.
 *
 * All sizes are bounded: GRAMMAR_SET_MAX configurations per set, WALK_CONFS for the sets of one
 * token, WALK_NODES new frames. What does not fit is dropped. The remaining texts are still valid,
 * and since the first ones are kept there is always a continuation.
 *
 * A walk may start in a state with an unknown stack (NODE_UNKNOWN, BOUNDS_UNKNOWN). Its counter
 * then counts from zero, and a configuration that would need to know more only sets `left`.
 *
 * Threads: a g_walk belongs to one thread. It allocates nothing.
 */
#include <assert.h>
#include <string.h>

#include "engine/grammar/automaton/grammar_unique.h"

static_assert((int)GRAMMAR_TOKEN_MAX < (int)WALK_DEEP && (int)GRAMMAR_DEPTH_MAX <= (int)RUN_NODES,
              "a token, a stack fit");
void walk_begin(g_walk *w, const g_auto *a, const g_node *base, int n_base)
{
    assert(n_base >= 0 && n_base <= RUN_NODES); /* w->moved has a place for each */
    w->a = a;
    w->base = base;
    w->n_base = n_base;
    w->unique = NULL;
    w->unlike = false;
    w->pos = w->here = 0;
    w->n_node = w->n_conf = 0;
    w->conf_at[0] = w->conf_at[1] = 0;
    w->node_at[0] = w->node_at[1] = 0;
    w->left_at[0] = false;
    w->left = false;
}

void walk_text(g_walk *w, struct unique_text *text)
{
    w->unique = text;
    w->pos = w->here = text ? unique_at(text) : 0;
}

const g_node *walk_node(const g_walk *w, int32_t i)
{
    assert(i >= 0 && i < w->n_base + w->n_node);
    return i < w->n_base ? &w->base[i] : &w->node[i - w->n_base];
}

static int depth_of(const g_walk *w, int32_t node)
{
    return node < 0 ? 0 : walk_node(w, node)->depth;
}

/* Whether the text can be finished from here; remembers how deep that is. */
static bool deep_enough(g_walk *w, const g_conf *f)
{
    assert(f->state >= 0 && f->state < w->a->n_states);
    int depth = depth_of(w, f->node) + w->a->need[f->state];
    if (depth > GRAMMAR_DEPTH_MAX) return false;
    if (depth > w->deepest) w->deepest = depth;
    return true;
}

static bool same(const g_conf *a, const g_conf *b)
{
    return a->state == b->state && a->c == b->c && a->node == b->node && a->bounds == b->bounds &&
           a->from == b->from;
}

/* Pushes a return frame; equal frames of one step share a node. Returns -3 if there is no room. */
static int32_t push(g_walk *w, int first_node, const g_conf *f, int32_t ret)
{
    for (int i = w->n_node - 1; i >= first_node; i--) {
        const g_node *n = &w->node[i];
        if (n->ret == ret && n->parent == f->node && n->c == f->c && n->bounds == f->bounds &&
            n->from == f->from) {
            return w->n_base + i;
        }
    }
    if (w->n_node == WALK_NODES) return -3;
    w->node[w->n_node] = (g_node){ret, f->c, f->bounds, f->node, depth_of(w, f->node) + 1, f->from};
    return w->n_base + w->n_node++;
}

/* Tail call: the caller's frame is not needed if its rule ends right after the call. */
static bool is_tail(const g_walk *w, const g_conf *f, const g_edge *e)
{
    if (f->bounds == BOUNDS_MAYBE) return false;
    return w->a->is_end[e->to] && !(f->bounds == BOUNDS_UNKNOWN && f->c > 0);
}

static int32_t max_of(const g_walk *w, int32_t bounds)
{
    return bounds < 0 ? -1 : w->a->bounds[bounds].max;
}

/* Follows an edge without bytes; false: not allowed. */
static bool follow(g_walk *w, const g_conf *f, const g_edge *e, int first_node, g_conf *out)
{
    *out = (g_conf){e->to, f->c, f->bounds, f->node, f->from};
    if (e->kind == EDGE_CALL) {
        int32_t node = is_tail(w, f, e) ? f->node : push(w, first_node, f, e->to);
        if (node < NODE_UNKNOWN) return false;
        *out = (g_conf){w->a->rule[e->rule].start, 0, e->bounds, node, 0};
    } else if (e->step == STEP_NEW) {
        w->left |= !w->unique && !w->unlike;
        return w->unlike || (w->unique && unique_is_new(w->unique, f->from, w->here));
    } else if (e->step == STEP_ENTER) {
        if (f->bounds == BOUNDS_MAYBE) {
            w->left = true;
            return false;
        }
        out->c = 0;
        out->bounds = e->bounds;
    } else if (e->step == STEP_LEAVE) {
        if (f->bounds == BOUNDS_UNKNOWN || f->bounds == BOUNDS_MAYBE) {
            out->bounds = BOUNDS_MAYBE;
            return true;
        }
        if (f->bounds >= 0 && f->c < w->a->bounds[f->bounds].min) return false;
        out->c = 0;
        out->bounds = BOUNDS_NONE;
    }
    return true;
}

/* Appends to a list of at most `cap` entries unless it is there from `begin` on. */
static void note(g_conf *list, int begin, int *n, int cap, const g_conf *c)
{
    for (int i = begin; i < *n; i++) {
        if (same(&list[i], c)) return;
    }
    if (*n < cap) list[(*n)++] = *c;
}

/* Adds the closure of `first` over edges without bytes to the set that begins at conf[begin]. */
static void add(g_walk *w, int begin, int first_node, g_conf first)
{
    enum { SEEN_MAX = GRAMMAR_SET_MAX * 2 };
    const g_auto *a = w->a;
    if (a->simple[first.state] && w->n_conf == begin && w->n_conf < WALK_CONFS) {
        if (!deep_enough(w, &first)) return;
        w->conf[w->n_conf++] = first;
        w->work++;
        return;
    }
    int most = begin + GRAMMAR_SET_MAX < WALK_CONFS ? begin + GRAMMAR_SET_MAX : WALK_CONFS;
    g_conf seen[SEEN_MAX];
    int n_seen = 0, at = 0;
    seen[n_seen++] = first;
    while (at < n_seen) {
        g_conf f = seen[at++], next;
        w->work++;
        if (!deep_enough(w, &f)) continue;
        if (a->is_end[f.state] && f.node != NODE_ROOT) { /* back to the caller */
            if (f.node == NODE_UNKNOWN) {
                w->left = true;
                continue;
            }
            const g_node *n = walk_node(w, f.node);
            next = (g_conf){n->ret, n->c, n->bounds, n->parent, n->from};
            note(seen, 0, &n_seen, SEEN_MAX, &next);
            continue;
        }
        if (a->is_end[f.state] || a->n_bytes[f.state] > 0)
            note(w->conf, begin, &w->n_conf, most, &f);
        for (int k = a->first[f.state] + a->n_bytes[f.state]; k < a->first[f.state + 1]; k++) {
            if (follow(w, &f, &a->edge[k], first_node, &next))
                note(seen, 0, &n_seen, SEEN_MAX, &next);
        }
    }
}

void walk_add(g_walk *w, g_conf c)
{
    assert(c.state >= 0 && c.state < w->a->n_states);
    add(w, 0, 0, c);
    w->conf_at[1] = w->n_conf;
    w->node_at[1] = w->n_node;
    w->left_at[0] = w->left;
}

void walk_set(g_walk *w, const g_conf *c, int n)
{
    assert(n >= 0 && n <= GRAMMAR_SET_MAX);
    memcpy(w->conf, c, (size_t)n * sizeof(*c));
    w->n_conf = w->conf_at[1] = n;
    w->node_at[1] = w->n_node = 0;
    w->left_at[0] = w->left = false;
}

bool walk_byte(g_walk *w, int depth, uint8_t byte)
{
    assert(depth >= 0 && depth < WALK_DEEP);
    const g_auto *a = w->a;
    int from = w->conf_at[depth], begin = w->conf_at[depth + 1];
    int first_node = w->node_at[depth + 1];
    w->n_conf = begin;
    w->n_node = first_node;
    w->left = false;
    w->here = w->pos + depth + 1;
    if (w->unique) unique_put(w->unique, w->here - 1, byte);
    for (int i = from; i < begin; i++) {
        g_conf f = w->conf[i];
        int first = a->first[f.state];
        for (int k = first; k < first + a->n_bytes[f.state]; k++) {
            const g_edge *e = &a->edge[k];
            if (byte < e->lo || byte > e->hi) continue;
            g_conf next = {e->to, f.c, f.bounds, f.node, f.from};
            if (e->step == STEP_OPEN) next.from = w->here;
            if (e->step == STEP_COUNT) {
                int32_t max = max_of(w, f.bounds);
                if (max >= 0 && f.c >= max) continue;
                if (f.bounds == BOUNDS_UNKNOWN || max >= 0 ||
                    (f.bounds >= 0 && f.c < a->bounds[f.bounds].min)) {
                    next.c++; /* past the lower bound without an upper one: the exact count is
                               * irrelevant */
                }
            }
            add(w, begin, first_node, next);
        }
    }
    w->conf_at[depth + 2] = w->n_conf;
    w->node_at[depth + 2] = w->n_node;
    w->left_at[depth + 1] = w->left;
    return w->n_conf > begin;
}

void walk_go_on(g_walk *w, int depth)
{
    assert(depth >= 0 && depth <= WALK_DEEP);
    int from = w->conf_at[depth], n = w->conf_at[depth + 1] - from;
    assert(n >= 0 && from + n <= WALK_CONFS);
    memmove(w->conf, w->conf + from, (size_t)n * sizeof(*w->conf));
    w->n_conf = w->conf_at[1] = n;
    w->n_node = w->node_at[1] = w->node_at[depth + 1];
    w->left_at[0] = w->left_at[depth];
    w->pos += depth;
}

/* The only byte that can follow set `depth`; -1: there are several, or the text may end here. */
static int only_byte(const g_walk *w, int depth, int last)
{
    const g_auto *a = w->a;
    int byte = -1;
    bool space = false;
    for (int i = w->conf_at[depth]; i < w->conf_at[depth + 1]; i++) {
        int32_t state = w->conf[i].state;
        if (a->is_end[state]) return -1;
        for (int k = a->first[state]; k < a->first[state] + a->n_bytes[state]; k++) {
            const g_edge *e = &a->edge[k];
            bool other = e->lo != e->hi || (e->lo != ' ' && byte >= 0 && byte != e->lo);
            if (other) return -1;
            if (e->lo == ' ')
                space = true;
            else
                byte = e->lo;
        }
    }
    return space && (byte < 0 || last == ':' || last == ',') ? ' ' : byte;
}

int walk_only(g_walk *w, int last, uint8_t *text)
{
    int n = 0;
    for (; n < GRAMMAR_TOKEN_MAX; n++) {
        int byte = only_byte(w, n, n > 0 ? text[n - 1] : last);
        if (byte < 0 || !walk_byte(w, n, (uint8_t)byte)) break;
        text[n] = (uint8_t)byte;
    }
    return n;
}
