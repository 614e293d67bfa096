/* grammar_mask.c -- the set of tokens that one automaton state allows, and the vocabulary trie that
 * it is computed with.
 *
 * The tokens, sorted by bytes, form a trie laid out in preorder, so a subtree is one contiguous
 * range of nodes and of tokens:
 *
 *   node:   a  ab  abc  abd  b  ...      node[i].skip: first node behind the subtree of i
 *
 * mask_build() walks one state over the trie with an unknown stack (NODE_UNKNOWN). Each token gets
 * a kind: allowed, allowed if the counter has k units left, dependent on the stack, or never.
 * `stays()` cuts the walk: where a state loops over every byte below a node (the inside of a JSON
 * string), the whole subtree is allowed without visiting it.
 *
 * A state_mask stores the allowed tokens as a list or a bitmap (DENSE), the counter limits as one
 * byte per token, and the dependent tokens in order with the length of the prefix shared with the
 * previous one. mask_add() combines it with a real stack; a failed prefix skips all tokens that
 * share it.
 *
 * Threads: the trie and finished masks are immutable; each thread brings its own g_walk.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/automaton/grammar_unique.h"

enum { DENSE = 32 }; /* one allowed token in so many: bits instead of a list */

/* ----------------------------------------------------------------------- the trie -- */

typedef struct {
    uint64_t first; /* eight bytes, the first one highest: nearly all comparisons end here */
    const char *s;
    uint32_t len;
    int32_t id;
} word;

static uint64_t first_bytes(const char *s, size_t len)
{
    uint64_t v = 0;
    for (size_t i = 0; i < sizeof(v); i++) v = v << 8 | (i < len ? (uint8_t)s[i] : 0);
    return v;
}

static int by_bytes(const void *x, const void *y)
{
    const word *a = x, *b = y;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    size_t n = a->len < b->len ? a->len : b->len;
    int d = memcmp(a->s, b->s, n);
    if (d) return d;
    if (a->len != b->len) return a->len < b->len ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

void trie_clear(token_trie *t)
{
    free(t->node);
    free(t->id);
    free(t->at);
    free(t->bytes);
    free(t->place);
    *t = (token_trie){0};
}

static bool allocate(token_trie *t, const word *list, int n)
{
    size_t total = 0;
    for (int i = 0; i < n; i++) total += list[i].len;
    t->node = malloc((total + 1) * sizeof(*t->node));
    t->id = malloc(((size_t)n + 1) * sizeof(*t->id));
    t->at = malloc(((size_t)n + 1) * sizeof(*t->at));
    t->bytes = malloc(total + 1);
    t->place = malloc((size_t)t->n_vocab * sizeof(*t->place));
    return t->node && t->id && t->at && t->bytes && t->place;
}

static void plant(token_trie *t, const word *list, int n)
{
    int open[GRAMMAR_TOKEN_MAX + 1], depth = 0; /* nodes on the way to the last token */
    uint32_t used = 0;
    for (int i = 0; i < t->n_vocab; i++) t->place[i] = -1;
    for (int i = 0; i < n; i++) {
        const word *p = &list[i], *q = i ? &list[i - 1] : NULL;
        size_t same = 0;
        while (q && same < p->len && same < q->len && p->s[same] == q->s[same]) same++;
        assert(p->len > 0 && p->len <= GRAMMAR_TOKEN_MAX && p->id < t->n_vocab);
        while (depth > (int)same) t->node[open[--depth]].skip = t->n_nodes;
        for (size_t k = same; k < p->len; k++) {
            open[depth++] = t->n_nodes;
            t->node[t->n_nodes++] =
                (trie_node){.byte = (uint8_t)p->s[k], .depth = (uint8_t)(k + 1), .token = i};
        }
        t->node[open[depth - 1]].n_tokens++;
        t->id[i] = p->id;
        t->place[p->id] = i;
        t->at[i] = used;
        memcpy(t->bytes + used, p->s, p->len);
        used += (uint32_t)p->len;
    }
    t->at[n] = used;
    assert((size_t)t->n_nodes <= used); /* at most one for each byte */
    while (depth > 0) t->node[open[--depth]].skip = t->n_nodes;
    t->n_tokens = n;
}

/* 64 groups of bytes: marks and zero are alone, since classes of characters part them. */
static int group_of(int byte)
{
    static const char marks[] = " !\"#$%&'()*+,-./0:;<=>?@[\\]^_`{|}~";
    const char *mark = byte ? strchr(marks, byte) : NULL;
    if (byte >= 0x80) return 48 + (byte - 0x80) / 8;
    if (mark) return (int)(mark - marks);
    if (byte < ' ' || byte == 0x7F) return 40;
    if (byte <= '9') return 41;
    return 42 + (byte >= 'a' ? 2 : 0) + ((byte | 0x20) > 'f');
}

/* Fills the summaries from the last node to the first: children are stored behind their parent. */
static void note_bytes(token_trie *t)
{
    for (int b = 0; b < 256; b++) {
        assert(group_of(b) < 64); /* trie_node.below has a bit for each */
        t->group[b] = (uint8_t)group_of(b);
        t->top[b] = -1;
    }
    for (int i = 0; i < t->n_nodes; i = t->node[i].skip) t->top[t->node[i].byte] = i;
    for (int i = t->n_nodes - 1; i >= 0; i--) {
        trie_node *n = &t->node[i];
        for (int k = i + 1; k < n->skip; k = t->node[k].skip) {
            const trie_node *child = &t->node[k];
            n->below |= child->below | 1ULL << t->group[child->byte];
            if (child->tall >= n->tall) n->tall = (uint8_t)(child->tall + 1);
        }
    }
}

bool trie_build(token_trie *t, const tokenizer *tok, int n_vocab)
{
    assert(tok && n_vocab > 0);
    *t = (token_trie){.n_vocab = n_vocab};
    word *list = malloc((size_t)n_vocab * sizeof(*list));
    int n = 0;
    for (int32_t id = 0; list && id < n_vocab && id < tokenizer_vocab(tok); id++) {
        size_t len;
        const char *s = tokenizer_bytes(tok, id, &len);
        if (!s || len == 0 || len > GRAMMAR_TOKEN_MAX || tokenizer_is_special(tok, id) ||
            tokenizer_is_added(tok, id)) {
            continue;
        }
        list[n++] = (word){first_bytes(s, len), s, (uint32_t)len, id};
    }
    if (list && n) qsort(list, (size_t)n, sizeof(*list), by_bytes);
    bool ok = list && allocate(t, list, n);
    if (ok) plant(t, list, n);
    if (ok) note_bytes(t);
    free(list);
    if (!ok) trie_clear(t);
    return ok;
}

int32_t trie_longest(const token_trie *t, const uint8_t *s, int len, int *n)
{
    int32_t found = -1;
    int depth = 0;
    for (int i = 0, end = t->n_nodes; i < end && depth < len;) {
        const trie_node *at = &t->node[i];
        if (at->byte != s[depth]) {
            i = at->skip;
            continue;
        }
        depth++;
        if (at->n_tokens > 0) {
            found = t->id[at->token];
            *n = depth;
        }
        end = at->skip;
        i++;
    }
    return found;
}

/* --------------------------------------------------------------- one state's tokens -- */

/* The counter of the unknown bottom frame; *maybe: validity also depends on its lower bound. */
static int32_t bottom_count(const g_walk *w, const g_conf *f, bool *maybe)
{
    assert(w->n_base == 0);
    int32_t bounds = f->bounds, c = f->c, i = f->node; /* no frames from before: base is empty */
    while (i >= 0) {
        bounds = w->node[i].bounds;
        c = w->node[i].c;
        i = w->node[i].parent;
    }
    *maybe = bounds == BOUNDS_MAYBE;
    return *maybe || bounds == BOUNDS_UNKNOWN ? c : 0;
}

/* 0: allowed as it is; 1..KIND_MOST: if the counter has so much room; KIND_DEPENDS, KIND_NEVER. */
enum { KIND_MOST = 126, KIND_DEPENDS = 254, KIND_NEVER = 255 };

static_assert((int)GRAMMAR_TOKEN_MAX <= (int)KIND_MOST,
              "what a token counts is a kind, and less than 128");
static uint8_t kind_of(const g_walk *w, int depth, bool left)
{
    int32_t least = INT32_MAX, least_maybe = INT32_MAX;
    for (int i = w->conf_at[depth]; i < w->conf_at[depth + 1] && least > 0; i++) {
        bool maybe;
        int32_t k = bottom_count(w, &w->conf[i], &maybe);
        if (maybe && k < least_maybe) least_maybe = k;
        if (!maybe && k < least) least = k;
    }
    /* A configuration that has left its loop requires the room that it counted before: with no less
     * than another one needs, it adds nothing. */
    left = left || least_maybe < least;
    if (least == 0) return 0;
    if (left) return KIND_DEPENDS;
    if (least == INT32_MAX) return KIND_NEVER;
    return least <= KIND_MOST ? (uint8_t)least : KIND_DEPENDS;
}

/* A contiguous range of tokens of one kind. */
typedef struct {
    int32_t from, n;
    uint8_t kind;
} stretch;

/* The loops of a state. back: byte groups that lead entirely back to it (if counted: only back);
 * takes: groups of which some byte has an edge. */
typedef struct {
    int32_t state;
    bool known, counts;
    uint64_t back, takes;
} turn;

enum { TURNS = 16, LOOK_MAX = 8 };

typedef struct {
    const token_trie *t;
    const g_auto *a;
    g_walk *w;
    stretch *list;
    int n, cap;
    turn turn[TURNS]; /* of states that were asked for lately */
} sorter;

static const turn *turn_of(sorter *s, int32_t state)
{
    enum { PLAIN = 1, COUNT = 2, AWAY = 4 };
    turn *t = &s->turn[state % TURNS];
    if (t->known && t->state == state) return t;
    *t = (turn){.state = state, .known = true};
    uint8_t way[256] = {0};
    uint64_t other = 0;
    const g_edge *e = &s->a->edge[s->a->first[state]];
    for (int k = 0; k < s->a->n_bytes[state]; k++, e++) {
        int how = e->to != state ? AWAY : e->step == STEP_COUNT ? COUNT : PLAIN;
        t->counts |= how == COUNT;
        for (int b = e->lo; b <= e->hi; b++) way[b] |= (uint8_t)how;
    }
    for (int b = 0; b < 256; b++) {
        uint64_t bit = 1ULL << s->t->group[b];
        if (t->counts ? way[b] != COUNT : !(way[b] & PLAIN)) other |= bit;
        if (way[b]) t->takes |= bit;
    }
    t->back = ~other;
    return t;
}

/* No other configuration of this set accepts a byte that occurs below the node. */
static bool is_alone(sorter *s, const trie_node *n, const g_conf *f)
{
    const g_walk *w = s->w;
    for (int i = w->conf_at[n->depth]; i < w->conf_at[n->depth + 1]; i++) {
        const g_conf *other = &w->conf[i];
        if (other != f && (n->below & turn_of(s, other->state)->takes)) return false;
    }
    return true;
}

/* Below the node the walk stays in one loop: all tokens there are allowed, provided that the
 * counter has room for their bytes and *count more (-1: nothing is counted). */
static bool stays(sorter *s, const trie_node *n, bool left, int *count)
{
    const g_walk *w = s->w;
    int from = w->conf_at[n->depth], end = w->conf_at[n->depth + 1];
    for (int i = from; i < end && i < from + LOOK_MAX; i++) {
        const g_conf *f = &w->conf[i];
        const turn *t = turn_of(s, f->state);
        bool counts = t->counts, bottom = counts && f->node < 0 && f->bounds == BOUNDS_UNKNOWN;
        if (n->below & ~t->back) continue;
        int max = f->bounds < 0 ? -1 : s->a->bounds[f->bounds].max;
        bool room = !counts || max < 0 || max - f->c >= n->tall, maybe;
        *count = bottom ? f->c : -1;
        if (!bottom && room && bottom_count(w, f, &maybe) == 0 && !maybe) return true;
        if (bottom && !left && end - from <= LOOK_MAX && is_alone(s, n, f)) return true;
    }
    return false;
}

/* False: no memory. */
static bool emit(sorter *s, int32_t from, int n, int kind)
{
    stretch *last = s->n ? &s->list[s->n - 1] : NULL;
    assert(n >= 0 && (kind <= KIND_MOST || kind == KIND_DEPENDS || kind == KIND_NEVER));
    if (n == 0 || kind == KIND_NEVER) return true;
    assert(!last || from >= last->from + last->n); /* ascending, apart */
    if (last && last->kind == kind && last->from + last->n == from) {
        last->n += n;
        return true;
    }
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 256;
        stretch *more = realloc(s->list, (size_t)cap * sizeof(*more));
        if (!more) return false;
        s->list = more;
        s->cap = cap;
    }
    s->list[s->n++] = (stretch){from, n, (uint8_t)kind};
    return true;
}

static int bytes_of(const token_trie *t, int place)
{
    return (int)(t->at[place + 1] - t->at[place]);
}

/* The tokens from place `from` to the end of the subtree; of one kind, if count < 0. */
static bool emit_below(sorter *s, const trie_node *n, int32_t from, int kind, int count)
{
    const token_trie *t = s->t;
    int32_t end = n->skip < t->n_nodes ? t->node[n->skip].token : t->n_tokens;
    if (count < 0) return emit(s, from, end - from, kind);
    bool ok = true;
    for (int p = from; p < end && ok; p++) ok = emit(s, p, 1, count + bytes_of(t, p) - n->depth);
    return ok;
}

/* Appends the ranges of allowed tokens of a subtree. False: more work than `most`, or no memory. */
static bool sort_subtree(sorter *s, int32_t top, uint64_t most)
{
    const token_trie *t = s->t;
    g_walk *w = s->w;
    bool inherited[GRAMMAR_TOKEN_MAX + 2], ok = true;
    inherited[0] = false;
    for (int i = top; i < t->node[top].skip && ok;) {
        const trie_node *n = &t->node[i];
        int d = n->depth, count = -1;
        bool goes_on = walk_byte(w, d - 1, n->byte);
        bool left = inherited[d - 1] || w->left_at[d];
        inherited[d] = left;
        if (w->work > most) return false;
        if (!goes_on) {
            if (left) ok = emit_below(s, n, n->token, KIND_DEPENDS, -1);
            i = n->skip;
            continue;
        }
        if (n->n_tokens) ok = emit(s, n->token, n->n_tokens, kind_of(w, d, left));
        bool skips = n->below && stays(s, n, left, &count);
        if (skips && ok) ok = emit_below(s, n, n->token + n->n_tokens, 0, count);
        i = skips ? n->skip : i + 1;
    }
    return ok;
}

/* Sorts all subtrees whose first byte has an edge. */
static bool sort_tokens(sorter *s, int32_t state, uint64_t most)
{
    const g_auto *a = s->a;
    bool wanted[256] = {false}, ok = true;
    const g_conf start = {state, 0, BOUNDS_UNKNOWN,
                          a->rule_of[state] == a->root ? NODE_ROOT : NODE_UNKNOWN, 0};
    const g_edge *e = &a->edge[a->first[state]];
    for (int k = 0; k < a->n_bytes[state]; k++, e++)
        memset(wanted + e->lo, true, (size_t)e->hi - e->lo + 1);
    walk_begin(s->w, a, NULL, 0);
    walk_set(s->w, &start, 1);
    most = s->w->work + most;
    for (int b = 0; b < 256 && ok; b++)
        if (wanted[b] && s->t->top[b] >= 0) ok = sort_subtree(s, s->t->top[b], most);
    return ok;
}

static int common(const token_trie *t, int a, int b)
{
    const uint8_t *x = t->bytes + t->at[a], *y = t->bytes + t->at[b];
    uint32_t n = t->at[a + 1] - t->at[a], m = t->at[b + 1] - t->at[b], k = 0;
    while (k < n && k < m && x[k] == y[k]) k++;
    return (int)k;
}

void mask_free(state_mask *m)
{
    if (!m) return;
    free(m->list);
    free(m->bits);
    free(m->room);
    free(m->dep);
    free(m->dep_same);
    free(m->more);
    free(m);
}

/* Two passes over the stretches: sizes, then contents. Few tokens are a list, many a set of
 * bits; tokens whose fate depends on the stack are kept in the trie's order, each with how many
 * bytes it shares with the one before, so that a walk repeats nothing. */
static bool fill(state_mask *m, const sorter *s)
{
    const token_trie *t = s->t;
    size_t words = mask_words(t->n_vocab);
    int n_free = 0, counted = 0, n_dep = 0;
    for (int i = 0; i < s->n; i++) {
        int kind = s->list[i].kind;
        *(kind == 0 ? &n_free : kind == KIND_DEPENDS ? &m->n_dep : &counted) += s->list[i].n;
    }
    m->dep = malloc(((size_t)m->n_dep + 1) * sizeof(*m->dep));
    m->dep_same = malloc((size_t)m->n_dep + 1);
    m->bytes = sizeof(*m) + (size_t)m->n_dep * 5;
    if (counted || n_free > t->n_vocab / DENSE) {
        m->bits = calloc(words, sizeof(*m->bits));
        m->bytes += words * sizeof(*m->bits);
        if (!m->bits) return false;
    } else {
        m->list = malloc(((size_t)n_free + 1) * sizeof(*m->list));
        m->bytes += (size_t)n_free * sizeof(*m->list);
        if (!m->list) return false;
    }
    if (counted) {
        m->room = malloc((size_t)t->n_vocab);
        m->bytes += (size_t)t->n_vocab;
        if (!m->room) return false;
        memset(m->room, KIND_NEVER, (size_t)t->n_vocab);
    }
    if (!m->dep || !m->dep_same) return false;
    for (const stretch *x = s->list; x < s->list + s->n; x++) {
        for (int p = x->from; p < x->from + x->n; p++) {
            int32_t id = t->id[p];
            if (x->kind == KIND_DEPENDS) {
                m->dep_same[n_dep] = (uint8_t)(n_dep ? common(t, m->dep[n_dep - 1], p) : 0);
                m->dep[n_dep++] = p;
            } else if (m->bits) {
                m->bits[id / 32] |= 1U << (id % 32);
            } else {
                m->list[m->n_list++] = id;
            }
            if (m->room && x->kind != KIND_DEPENDS) m->room[id] = x->kind;
        }
        if (x->kind <= KIND_MOST && x->kind > m->max_room) m->max_room = x->kind;
    }
    assert(n_dep == m->n_dep && (m->bits || m->n_list == n_free));
    return true;
}

state_mask *mask_build(const token_trie *t, const g_auto *a, int32_t state, g_walk *w,
                       uint64_t most)
{
    sorter s = {.t = t, .a = a, .w = w};
    state_mask *m = calloc(1, sizeof(*m));
    w->deepest = 0;
    bool ok = m && sort_tokens(&s, state, most);
    if (ok) m->depth = w->deepest;
    if (ok) ok = fill(m, &s);
    free(s.list);
    if (ok) return m;
    mask_free(m);
    return NULL;
}

/* ------------------------------------------------------------------ a mask of a text -- */

static void allow(uint32_t *out, int32_t id)
{
    out[id / 32] |= 1U << (id % 32);
}

/* A bit for each of eight bytes that are at most `most` (less than 128), the first one lowest. */
static uint32_t at_most(const uint8_t *bytes, unsigned most)
{
    const uint64_t ones = 0x0101010101010101ULL;
    uint64_t x;
    memcpy(&x, bytes, sizeof(x));
    uint64_t more = (x & 0x7F * ones) + (0x7F - most) * ones; /* its high bits: more than that */
    uint64_t good = ~(more | x) >> 7 & ones;
    return (uint32_t)(good * 0x0102040810204080ULL >> 56);
}

static void add_counted(const state_mask *m, int n_vocab, int room, uint32_t *out)
{
    assert(m->room && room >= 0); /* no counter is above its upper bound */
    unsigned most = room < 0x7F ? (unsigned)room : 0x7F;
    int whole = n_vocab / 32 * 32;
    for (int base = 0; base < whole; base += 32) {
        uint32_t bits = 0;
        for (int k = 0; k < 32; k += 8) bits |= at_most(m->room + base + k, most) << k;
        out[base / 32] |= bits;
    }
    for (int id = whole; id < n_vocab; id++)
        out[id / 32] |= (uint32_t)(m->room[id] <= most) << (id % 32);
}

void mask_add(const token_trie *t, const state_mask *m, const g_auto *a, const g_conf *f,
              const g_node *node, int n_node, g_walk *w, struct unique_text *text,
              const uint32_t *among, uint32_t *out)
{
    int max = f->bounds >= 0 ? a->bounds[f->bounds].max : -1;
    size_t words = mask_words(t->n_vocab);
    if (m->room && max >= 0 && max - f->c < m->max_room) {
        add_counted(m, t->n_vocab, max - f->c, out);
    } else if (m->bits) {
        for (size_t i = 0; i < words; i++) out[i] |= m->bits[i];
    }
    for (int i = 0; i < m->n_list; i++) {
        assert(m->list[i] >= 0 && m->list[i] < t->n_vocab);
        allow(out, m->list[i]);
    }
    for (int i = 0; i < m->n_more; i++) allow(out, m->more[i]);
    if (m->n_dep == 0) return;
    walk_begin(w, a, node, n_node);
    walk_text(w, text);
    walk_set(w, f, 1);
    int good = 0; /* bytes of the last token that led somewhere, its sets are there */
    int shared = GRAMMAR_TOKEN_MAX; /* bytes that this token has in common with that one */
    for (int i = 0; i < m->n_dep; i++) {
        int p = m->dep[i];
        const uint8_t *s = t->bytes + t->at[p];
        int len = (int)(t->at[p + 1] - t->at[p]), id = t->id[p];
        if (m->dep_same[i] < shared) shared = m->dep_same[i];
        if (among && !(among[id / 32] >> (id % 32) & 1)) continue;
        if (shared > good) continue; /* the same bytes failed before */
        good = shared;
        shared = GRAMMAR_TOKEN_MAX;
        while (good < len && walk_byte(w, good, s[good])) good++;
        if (good == len && unique_can_end(w, len)) allow(out, id);
    }
}

bool mask_direct(const token_trie *t, const g_auto *a, const g_conf *f, int n, const g_node *node,
                 int n_node, g_walk *w, struct unique_text *text, uint32_t *out)
{
    walk_begin(w, a, node, n_node);
    walk_text(w, text);
    walk_set(w, f, n);
    uint64_t begin = w->work;
    for (int i = 0; i < t->n_nodes;) {
        const trie_node *at = &t->node[i];
        bool goes_on = walk_byte(w, at->depth - 1, at->byte);
        if (w->work - begin > MASK_WORK_MAX) return false;
        bool may = goes_on && at->n_tokens > 0 && unique_can_end(w, at->depth);
        for (int k = 0; may && k < at->n_tokens; k++) allow(out, t->id[at->token + k]);
        i = goes_on ? i + 1 : at->skip;
    }
    return true;
}
