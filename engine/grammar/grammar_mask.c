/* grammar_mask.c -- which tokens a state allows, and the trie of the vocabulary that tells.
 *
 * The tokens, sorted by bytes, stand in a trie laid out in preorder: a subtree is one
 * stretch of nodes and of tokens.  A state is tried with NODE_UNKNOWN below it; the
 * walk goes down the trie once.
 */
#include "engine/grammar/grammar_mask.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { DENSE = 32 }; /* one allowed token in so many: bits instead of a list */

/* ----------------------------------------------------------------------- the trie -- */

typedef struct {
    const char *s;
    size_t len;
    int32_t id;
} word;

static int by_bytes(const void *x, const void *y)
{
    const word *a = x, *b = y;
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
    while (depth > 0) t->node[open[--depth]].skip = t->n_nodes;
    t->n_tokens = n;
}

/* From the last node to the first: those below one stand behind it. */
static void note_bytes_below(token_trie *t)
{
    for (int i = t->n_nodes - 1; i >= 0; i--) {
        trie_node *n = &t->node[i];
        for (int k = i + 1; k < n->skip; k = t->node[k].skip)
            n->below |= t->node[k].below | 1ULL << (t->node[k].byte >> 2);
    }
}

bool trie_build(token_trie *t, const tokenizer *tok, int n_vocab)
{
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
        list[n++] = (word){s, len, id};
    }
    if (list && n) qsort(list, (size_t)n, sizeof(*list), by_bytes);
    bool ok = list && allocate(t, list, n);
    if (ok) plant(t, list, n);
    if (ok) note_bytes_below(t);
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

/* What the unknown frame has counted; *maybe: it also depends on the lower bound. */
static int32_t bottom_count(const g_walk *w, const g_conf *f, bool *maybe)
{
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
enum { KIND_MOST = 200, KIND_DEPENDS = 254, KIND_NEVER = 255 };

static uint8_t kind_of(const g_walk *w, int depth, bool left)
{
    int32_t least = INT32_MAX, least_maybe = INT32_MAX;
    for (int i = w->conf_at[depth]; i < w->conf_at[depth + 1] && least > 0; i++) {
        bool maybe;
        int32_t k = bottom_count(w, &w->conf[i], &maybe);
        if (maybe && k < least_maybe) least_maybe = k;
        if (!maybe && k < least) least = k;
    }
    /* A way that has left its loop wants room for what it counted before: with no less than
     * another it opens nothing new. */
    left = left || least_maybe < least;
    if (least == 0) return 0;
    if (left) return KIND_DEPENDS;
    if (least == INT32_MAX) return KIND_NEVER;
    return least <= KIND_MOST ? (uint8_t)least : KIND_DEPENDS;
}

/* Free text is in no trigger there, and no token of the subtree begins one. */
static bool stays_home(const g_auto *a, const g_walk *w, const trie_node *n)
{
    int from = w->conf_at[n->depth];
    return a->home && w->conf_at[n->depth + 1] - from == 2 && w->conf[from].state == a->home &&
           !(n->below & a->leave_home);
}

/* kind[place] for all tokens.  False: too much work. */
static bool sort_tokens(const token_trie *t, const g_auto *a, int32_t state, g_walk *w,
                        uint8_t *kind)
{
    bool inherited[GRAMMAR_TOKEN_MAX + 2] = {false};
    bool root = a->rule_of[state] == a->root;
    walk_begin(w, a, NULL, 0);
    const g_conf start = {state, 0, BOUNDS_UNKNOWN, root ? NODE_ROOT : NODE_UNKNOWN};
    walk_set(w, &start, 1);
    memset(kind, KIND_NEVER, (size_t)t->n_tokens);
    uint64_t begin = w->work;
    for (int i = 0; i < t->n_nodes;) {
        const trie_node *n = &t->node[i];
        int d = n->depth;
        bool goes_on = walk_byte(w, d - 1, n->byte);
        bool left = inherited[d - 1] || w->left_at[d];
        inherited[d] = left;
        if (w->work - begin > MASK_WORK_MAX) return false;
        bool home = goes_on && stays_home(a, w, n);
        if (!goes_on || home) {
            int end = n->skip < t->n_nodes ? t->node[n->skip].token : t->n_tokens;
            if (left || home)
                memset(kind + n->token, home ? 0 : KIND_DEPENDS, (size_t)(end - n->token));
            i = n->skip;
            continue;
        }
        if (n->n_tokens) memset(kind + n->token, kind_of(w, d, left), n->n_tokens);
        i++;
    }
    return true;
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

static bool fill(state_mask *m, const token_trie *t, const uint8_t *kind, const int n_of[256])
{
    size_t words = mask_words(t->n_vocab);
    int counted = 0;
    for (int k = 1; k <= KIND_MOST; k++) counted += n_of[k];
    m->n_dep = n_of[KIND_DEPENDS];
    m->dep = malloc(((size_t)m->n_dep + 1) * sizeof(*m->dep));
    m->dep_same = malloc((size_t)m->n_dep + 1);
    m->bytes = sizeof(*m) + (size_t)m->n_dep * 5;
    if (counted || n_of[0] > t->n_vocab / DENSE) {
        m->bits = calloc(words, sizeof(*m->bits));
        m->bytes += words * sizeof(*m->bits);
        if (!m->bits) return false;
    } else {
        m->list = malloc(((size_t)n_of[0] + 1) * sizeof(*m->list));
        m->bytes += (size_t)n_of[0] * sizeof(*m->list);
        if (!m->list) return false;
    }
    if (counted) {
        m->room = malloc((size_t)t->n_vocab);
        m->bytes += (size_t)t->n_vocab;
        if (!m->room) return false;
        memset(m->room, KIND_NEVER, (size_t)t->n_vocab);
    }
    if (!m->dep || !m->dep_same) return false;
    int n_dep = 0;
    for (int p = 0; p < t->n_tokens; p++) {
        int32_t id = t->id[p];
        if (kind[p] == KIND_DEPENDS) {
            m->dep_same[n_dep] = (uint8_t)(n_dep ? common(t, m->dep[n_dep - 1], p) : 0);
            m->dep[n_dep++] = p;
        } else if (kind[p] <= KIND_MOST) {
            if (m->bits)
                m->bits[id / 32] |= 1U << (id % 32);
            else
                m->list[m->n_list++] = id;
            if (m->room) m->room[id] = kind[p];
            if (kind[p] > m->max_room) m->max_room = kind[p];
        }
    }
    return true;
}

state_mask *mask_build(const token_trie *t, const g_auto *a, int32_t state, g_walk *w)
{
    uint8_t *kind = malloc((size_t)t->n_tokens + 1);
    state_mask *m = calloc(1, sizeof(*m));
    w->deepest = 0;
    bool ok = kind && m && sort_tokens(t, a, state, w, kind);
    if (ok) {
        m->depth = w->deepest;
        int n_of[256] = {0};
        for (int p = 0; p < t->n_tokens; p++) n_of[kind[p]]++;
        ok = fill(m, t, kind, n_of);
    }
    free(kind);
    if (ok) return m;
    mask_free(m);
    return NULL;
}

/* ------------------------------------------------------------------ a mask of a text -- */

static void allow(uint32_t *out, int32_t id)
{
    out[id / 32] |= 1U << (id % 32);
}

static void add_counted(const state_mask *m, int n_vocab, int room, uint32_t *out)
{
    for (int base = 0; base < n_vocab; base += 32) {
        int n = n_vocab - base < 32 ? n_vocab - base : 32;
        uint32_t bits = 0;
        for (int k = 0; k < n; k++) bits |= (uint32_t)(m->room[base + k] <= room) << k;
        out[base / 32] |= bits;
    }
}

void mask_add(const token_trie *t, const state_mask *m, const g_auto *a, const g_conf *f,
              const g_node *node, int n_node, g_walk *w, const uint32_t *among, uint32_t *out)
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
        if (good == len) allow(out, id);
    }
}

bool mask_direct(const token_trie *t, const g_auto *a, const g_conf *f, int n, const g_node *node,
                 int n_node, g_walk *w, uint32_t *out)
{
    walk_begin(w, a, node, n_node);
    walk_set(w, f, n);
    uint64_t begin = w->work;
    for (int i = 0; i < t->n_nodes;) {
        const trie_node *at = &t->node[i];
        bool goes_on = walk_byte(w, at->depth - 1, at->byte);
        if (w->work - begin > MASK_WORK_MAX) return false;
        for (int k = 0; goes_on && k < at->n_tokens; k++) allow(out, t->id[at->token + k]);
        i = goes_on ? i + 1 : at->skip;
    }
    return true;
}
