/* grammar.c -- cache of compiled grammars, helper thread, and runs (one answer's position in its
 * grammar).
 *
 * A run is a set of configurations (state, counter, stack; grammar_automaton.h). Its mask is the
 * union of the masks of its states, plus the stack-dependent tokens that pass a trial walk:
 *
 *               state cheap: compose()                       grammar_run_accept()
 *   RUN_NEW -------------------------------> RUN_READY ---------------------------> RUN_NEW
 *      |       too much work: queue              ^
 *      +-----> RUN_QUEUED ---- helper: compute() +
 *
 * "Cheap" means that all state masks exist, or can be built with INLINE_WORK configurations, and
 * that at most INLINE_DEP_MAX tokens depend on the stack. State masks are published once with
 * compare-and-swap and never change, so readers take no lock.
 *
 * settle() reuses the last mask where it can: PLACE_SAME (inside a string most tokens change
 * nothing) keeps it; PLACE_NEARER (only counters moved towards their upper bound) retests only the
 * tokens that the last mask allowed.
 *
 * Threads: `maker.mu` guards the cache and the helper's queue. A queued run belongs to the helper,
 * which writes RUN_READY last (release order).
 */
#include "engine/grammar/grammar.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/grammar/automaton/grammar_unique.h"
#include "engine/grammar/grammar_lead.h"
#include "engine/grammar/grammar_outside.h"
#include "engine/grammar/regex/grammar_regex.h"
#include "engine/grammar/schema/grammar_schema.h"

enum {
    CACHE_MAX = 64,                /* compiled grammars kept */
    INLINE_DEP_MAX = 4096,         /* dependent tokens that the engine tries itself */
    DIRECT_DEP_MAX = 100000,       /* with more, the whole vocabulary is tried at once */
    INLINE_WORK = 6000,            /* configurations that the engine makes itself for a new mask */
    FIRST_WORK = 2000000,          /* and who begins an answer, for the first one */
    FREE_ROOM = GRAMMAR_TOKEN_MAX, /* a counter with so much room does not matter to any token */
};
static const size_t mask_bytes_max = (size_t)256 << 20; /* of all grammars together */

typedef _Atomic(state_mask *) mask_slot;

struct grammar {
    grammar_maker *maker;
    g_auto a;
    bool *shown;     /* of tags: which tokens outside of the trie their texts show; else NULL */
    bool free;       /* tags in free text */
    mask_slot *mask; /* [n_states - n_shared] */
    _Atomic size_t mask_bytes;
    atomic_int refs;
    char *key; /* what it was compiled from */
    size_t key_len;
    uint64_t hash, used; /* used: guarded by maker.mu */
};

struct grammar_maker {
    token_trie trie;
    outside outside;
    mask_slot *shared; /* masks of the rules that all JSON grammars have */
    int n_shared;
    _Atomic size_t mask_bytes;

    bool spells; /* a text is the concatenation of its tokens' bytes */
    lock mu;
    cond work;
    grammar *cache[CACHE_MAX];
    int n_cache;
    grammar_documents *documents; /* NULL: none; all in the cache was compiled with these */
    uint64_t clock;
    grammar_run *first, *last; /* for the helper */
    bool stop;
    grammar_walk *walk; /* the helper's */
    pthread_t thread;
};

typedef enum { RUN_NEW, RUN_QUEUED, RUN_READY } run_state;

struct grammar_run {
    grammar *g;   /* NULL: there is only a lead */
    g_lead *lead; /* NULL: the form begins at once */
    atomic_int refs;
    _Atomic int state; /* run_state; the helper writes RUN_READY last */
    grammar_run *next; /* in the helper's queue */
    bool complete, over, failed;
    bool starved;                 /* it failed for want of memory */
    char rest[GRAMMAR_TOKEN_MAX]; /* bytes to take before the next mask */
    int n_rest;
    uint32_t *mask, *before; /* [mask_words] of this place and, if `nearer`, of the one before */
    bool nearer;             /* as before but for counters that are nearer to their upper bound */
    g_conf conf[GRAMMAR_SET_MAX];
    int n_conf, n_node;
    g_node *node, *spare; /* [RUN_NODES] each */
    unique_text *text;    /* NULL: no edge asks for it */
    int32_t *stop_id;
    int n_stop_id;
};

/* ------------------------------------------------------------------ masks of states -- */

static mask_slot *slot_of(const grammar *g, int32_t state)
{
    assert(state >= 0 && state < g->a.n_states);
    return state < g->a.n_shared ? &g->maker->shared[state] : &g->mask[state - g->a.n_shared];
}

static state_mask *mask_of(const grammar *g, int32_t state)
{
    return atomic_load_explicit(slot_of(g, state), memory_order_acquire);
}

/* Builds and publishes the mask of a state; another thread may publish first. NULL: memory is
 * short, the limit of all masks is reached, or it needs more than `most` work. */
static state_mask *make_mask(grammar *g, int32_t state, g_walk *w, uint64_t most)
{
    grammar_maker *m = g->maker;
    state_mask *have = mask_of(g, state);
    if (have || atomic_load(&m->mask_bytes) > mask_bytes_max) return have;
    state_mask *made = mask_build(&m->trie, &g->a, state, w, most);
    if (made && g->shown && !outside_add(&m->outside, g->shown, &g->a, state, w, made)) {
        mask_free(made);
        return NULL;
    }
    if (!made) return NULL;
    if (!atomic_compare_exchange_strong(slot_of(g, state), &have, made)) {
        mask_free(made);
        return have;
    }
    atomic_fetch_add(&m->mask_bytes, made->bytes);
    if (state >= g->a.n_shared) atomic_fetch_add(&g->mask_bytes, made->bytes);
    return made;
}

static void free_grammar(grammar *g)
{
    for (int s = 0; g->mask && s < g->a.n_states - g->a.n_shared; s++) {
        mask_free(atomic_load(&g->mask[s]));
    }
    assert(atomic_load(&g->maker->mask_bytes) >= atomic_load(&g->mask_bytes));
    atomic_fetch_sub(&g->maker->mask_bytes, atomic_load(&g->mask_bytes));
    free(g->mask);
    free(g->shown);
    free(g->key);
    g_auto_clear(&g->a);
    free(g);
}

void grammar_release(grammar *g)
{
    int refs = g ? atomic_fetch_sub(&g->refs, 1) : 0;
    assert(!g || refs > 0);
    if (refs == 1) free_grammar(g);
}

/* -------------------------------------------------------------------------- the mask -- */

static int depth_below(const grammar_run *r, const g_conf *f)
{
    return f->node < 0 ? 0 : r->node[f->node].depth;
}

/* All state masks exist, and at most `most` tokens depend on the stack. */
static bool is_cheap(const grammar_run *r, int most)
{
    int64_t dep = 0;
    for (int i = 0; i < r->n_conf; i++) {
        const g_conf *f = &r->conf[i];
        if (f->node == NODE_ROOT && r->g->a.is_end[f->state]) continue;
        const state_mask *m = mask_of(r->g, f->state);
        if (!m || depth_below(r, f) + m->depth > GRAMMAR_DEPTH_MAX) return false;
        dep += r->nearer ? 0 : m->n_dep;
    }
    return dep <= most;
}

static bool is_end(const grammar_run *r, const g_conf *f)
{
    return f->node == NODE_ROOT && r->g->a.is_end[f->state];
}

static bool try_token(grammar_run *r, g_walk *w, const g_conf *conf, int n, int32_t token,
                      int *depth);

typedef struct {
    grammar_run *r;
    g_walk *w;
} doubt;

/* Clears a token after which every continuation repeats an item of an array with uniqueItems.
 * `before` marks tokens that were tested already. */
static void look_at(void *arg, int32_t token)
{
    const doubt *d = arg;
    grammar_run *r = d->r;
    uint32_t bit = 1U << (token % 32);
    int depth;
    if (!(r->mask[token / 32] & bit) || (r->before[token / 32] & bit)) return;
    r->before[token / 32] |= bit;
    if (!try_token(r, d->w, r->conf, r->n_conf, token, &depth) || !unique_can_end(d->w, depth))
        r->mask[token / 32] &= ~bit;
}

static void leave_out_repetitions(grammar_run *r, g_walk *w)
{
    if (!r->text || !unique_is_open(r->text)) return;
    doubt d = {r, w};
    memset(r->before, 0, mask_words(r->g->maker->trie.n_vocab) * sizeof(*r->before));
    unique_doubtful(r->text, &r->g->maker->trie, look_at, &d);
}

static void compose(grammar_run *r, g_walk *w)
{
    const token_trie *t = &r->g->maker->trie;
    memset(r->mask, 0, mask_words(t->n_vocab) * sizeof(*r->mask));
    for (int i = 0; i < r->n_conf; i++) {
        const g_conf *f = &r->conf[i];
        if (is_end(r, f)) continue;
        mask_add(t, mask_of(r->g, f->state), &r->g->a, f, r->node, r->n_node, w, r->text,
                 r->nearer ? r->before : NULL, r->mask);
    }
    leave_out_repetitions(r, w);
}

static void add_stops(grammar_run *r)
{
    for (int i = 0; r->complete && i < r->n_stop_id; i++) {
        int32_t id = r->stop_id[i];
        r->mask[id / 32] |= 1U << (id % 32);
    }
    uint32_t any = 0;
    size_t words = mask_words(r->g->maker->trie.n_vocab);
    for (size_t i = 0; i < words; i++) any |= r->mask[i];
    if (!any) r->failed = true; /* the vocabulary can't spell it */
}

/* The masks of the states that are not there yet, as far as the work goes. */
static void make_masks(grammar_run *r, g_walk *w, uint64_t most)
{
    uint64_t begin = w->work;
    for (int i = 0; i < r->n_conf && w->work - begin < most; i++) {
        if (is_end(r, &r->conf[i])) continue;
        uint64_t left = most - (w->work - begin);
        (void)make_mask(r->g, r->conf[i].state, w, left < MASK_WORK_MAX ? left : MASK_WORK_MAX);
    }
}

/* Builds the state masks of a new position if that is little work; otherwise the helper does it. */
static void make_small(grammar_run *r, g_walk *w)
{
    bool asks = r->g && atomic_load(&r->state) == RUN_NEW && !r->over && !r->failed;
    if (asks) make_masks(r, w, INLINE_WORK);
}

/* Runs on the helper: unlimited state masks, then a composed mask, or one walk over the whole
 * vocabulary. */
static void compute(grammar_run *r, g_walk *w)
{
    make_masks(r, w, UINT64_MAX);
    if (is_cheap(r, DIRECT_DEP_MAX)) {
        compose(r, w);
    } else {
        const token_trie *t = &r->g->maker->trie;
        memset(r->mask, 0, mask_words(t->n_vocab) * sizeof(*r->mask));
        if (!mask_direct(t, &r->g->a, r->conf, r->n_conf, r->node, r->n_node, w, r->text,
                         r->mask)) {
            r->failed = true;
        }
    }
    add_stops(r);
}

void grammar_run_prepare(grammar_run *r)
{
    if (!r->g) return;
    /* Test the state first: a queued run belongs to the helper. */
    if (atomic_load(&r->state) != RUN_NEW) return;
    if (r->over || r->failed || is_cheap(r, INLINE_DEP_MAX)) return;
    grammar_maker *m = r->g->maker;
    atomic_store(&r->state, RUN_QUEUED);
    atomic_fetch_add(&r->refs, 1);
    r->next = NULL;
    lock_take(&m->mu);
    assert(!m->first == !m->last);
    if (m->last)
        m->last->next = r;
    else
        m->first = r;
    m->last = r;
    cond_signal(&m->work);
    lock_release(&m->mu);
}

/* The reasoning part decides the mask, and does not need the mask of the grammar. */
static bool is_led(const grammar_run *r)
{
    return r->lead && lead_rules(r->lead) && !lead_asks_form(r->lead);
}

bool grammar_run_ready(const grammar_run *r)
{
    return is_led(r) || atomic_load_explicit(&r->state, memory_order_acquire) != RUN_QUEUED;
}

bool grammar_run_still(const grammar_run *r)
{
    return atomic_load_explicit(&r->state, memory_order_acquire) != RUN_QUEUED;
}

bool grammar_run_over(const grammar_run *r)
{
    return r->over && !(r->lead && lead_rules(r->lead));
}

bool grammar_run_failed(const grammar_run *r)
{
    return !is_led(r) && grammar_run_ready(r) && r->failed;
}

bool grammar_run_starved(const grammar_run *r)
{
    return grammar_run_failed(r) && r->starved;
}

/* ------------------------------------------------------------------------- accepting -- */

/* Copies a frame and those below it into r->spare; -3: no room. */
static int32_t keep_node(grammar_run *r, g_walk *w, int32_t i, int *n)
{
    int32_t chain[GRAMMAR_DEPTH_MAX + 2];
    int len = 0;
    while (i >= 0 && w->moved[i] < 0) {
        if (len == GRAMMAR_DEPTH_MAX + 2) return -3;
        chain[len++] = i;
        i = i < w->n_base ? w->base[i].parent : w->node[i - w->n_base].parent;
    }
    int32_t at = i >= 0 ? w->moved[i] : i;
    if (*n + len > RUN_NODES) return -3;
    while (len > 0) {
        int32_t k = chain[--len];
        r->spare[*n] = k < w->n_base ? w->base[k] : w->node[k - w->n_base];
        r->spare[*n].parent = at;
        at = w->moved[k] = (*n)++;
    }
    return at;
}

/* A counter so far from both bounds that no single token can reach one. */
static bool counts_freely(const g_auto *a, const g_conf *f)
{
    if (f->bounds < 0) return true;
    const g_bounds *b = &a->bounds[f->bounds];
    return f->c >= b->min && (b->max < 0 || b->max - f->c >= FREE_ROOM);
}

static bool same_frames(const grammar_run *r, int32_t x, int32_t y)
{
    while (x >= 0 && y >= 0) {
        const g_node *a = &r->node[x], *b = &r->spare[y];
        if (a->ret != b->ret || a->c != b->c || a->bounds != b->bounds) return false;
        x = a->parent;
        y = b->parent;
    }
    return x == y;
}

/* The counter has passed its lower bound and has not decreased: a string that grew, for example. */
static bool counts_on(const g_auto *a, const g_conf *x, const g_conf *y)
{
    return x->bounds < 0 || (x->c >= a->bounds[x->bounds].min && y->c >= x->c);
}

typedef enum { PLACE_NEW, PLACE_NEARER, PLACE_SAME } place_kind;

/* PLACE_NEARER: the allowed tokens are a subset of those of the last mask. */
static place_kind compare(const grammar_run *r, const g_conf *conf, int n)
{
    place_kind kind = PLACE_SAME;
    if (n != r->n_conf) return PLACE_NEW;
    for (int i = 0; i < n; i++) {
        const g_conf *x = &r->conf[i], *y = &conf[i];
        if (x->state != y->state || x->bounds != y->bounds) return PLACE_NEW;
        bool count = x->c == y->c || (counts_freely(&r->g->a, x) && counts_freely(&r->g->a, y));
        if (!same_frames(r, x->node, y->node)) return PLACE_NEW;
        if (!count && !counts_on(&r->g->a, x, y)) return PLACE_NEW;
        if (!count) kind = PLACE_NEARER;
    }
    return kind;
}

/* Walks the bytes of a token; false: the grammar does not allow it. */
static bool walk_token(g_walk *w, const grammar *g, int32_t token, int *depth)
{
    const token_trie *t = &g->maker->trie;
    int place = token >= 0 && token < t->n_vocab ? t->place[token] : -1;
    if (place < 0) return g->shown && outside_walk(&g->maker->outside, g->shown, token, w, depth);
    const uint8_t *s = t->bytes + t->at[place];
    int len = (int)(t->at[place + 1] - t->at[place]);
    for (int i = 0; i < len; i++) {
        if (!walk_byte(w, i, s[i])) return false;
    }
    *depth = len;
    return true;
}

static bool try_token(grammar_run *r, g_walk *w, const g_conf *conf, int n, int32_t token,
                      int *depth)
{
    walk_begin(w, &r->g->a, r->node, r->n_node);
    walk_text(w, r->text);
    walk_set(w, conf, n);
    return walk_token(w, r->g, token, depth);
}

/* Set `depth` of the walk becomes the run's position. */
static void settle(grammar_run *r, g_walk *w, int depth)
{
    g_conf conf[GRAMMAR_SET_MAX];
    int n = 0, n_node = 0;
    assert(w->conf_at[depth + 1] - w->conf_at[depth] <= GRAMMAR_SET_MAX);
    memset(w->moved, 0xFF, (size_t)(w->n_base + w->n_node) * sizeof(*w->moved));
    for (int i = w->conf_at[depth]; i < w->conf_at[depth + 1]; i++) {
        g_conf f = w->conf[i];
        if (f.node >= 0) f.node = keep_node(r, w, f.node, &n_node);
        if (f.node >= NODE_ROOT) conf[n++] = f;
    }
    place_kind kind = atomic_load(&r->state) == RUN_READY ? compare(r, conf, n) : PLACE_NEW;
    memcpy(r->conf, conf, (size_t)n * sizeof(*conf));
    r->n_conf = n;
    r->n_node = n_node;
    g_node *old = r->node;
    r->node = r->spare;
    r->spare = old;
    if (r->text) {
        bool hung = unique_hangs(r->text);
        r->starved = !unique_take(r->text, w->pos + depth, r->conf, n, r->node);
        r->failed |= r->starved;
        if (hung || unique_hangs(r->text)) kind = PLACE_NEW;
    }
    if (kind == PLACE_SAME) return;
    r->nearer = kind == PLACE_NEARER;
    if (r->nearer) {
        uint32_t *mask = r->mask;
        r->mask = r->before;
        r->before = mask;
    }
    int ends = 0;
    for (int i = 0; i < n; i++) ends += is_end(r, &conf[i]);
    r->complete = ends > 0;
    r->over = ends == n;
    atomic_store(&r->state, RUN_NEW);
}

static void take_rest(grammar_run *r, grammar_walk *w)
{
    int n = r->n_rest, i = 0;
    r->n_rest = 0;
    walk_begin(w, &r->g->a, r->node, r->n_node);
    walk_text(w, r->text);
    walk_set(w, r->conf, r->n_conf);
    while (i < n && walk_byte(w, i, (uint8_t)r->rest[i])) i++;
    if (i == n) settle(r, w, n);
}

static const uint32_t *form_mask(grammar_run *r, grammar_walk *w)
{
    if (r->n_rest && atomic_load(&r->state) != RUN_QUEUED) take_rest(r, w);
    make_small(r, w);
    grammar_run_prepare(r);
    int state = atomic_load_explicit(&r->state, memory_order_acquire);
    if (state == RUN_QUEUED) return NULL;
    if (state == RUN_NEW && !r->over && !r->failed) {
        compose(r, w);
        add_stops(r);
        atomic_store(&r->state, RUN_READY);
    }
    return r->mask;
}

const uint32_t *grammar_run_mask(grammar_run *r, grammar_walk *w)
{
    if (is_led(r)) return lead_mask(r->lead, NULL);
    const uint32_t *form = form_mask(r, w);
    return form && r->lead && lead_rules(r->lead) ? lead_mask(r->lead, form) : form;
}

/* Bytes of the last reasoning token behind the closing mark: taken before the next mask, because
 * the helper may hold the run now. */
static void keep_rest(grammar_run *r)
{
    size_t len;
    const char *s = lead_rest(r->lead, &len);
    if (len == 0 || len > sizeof(r->rest)) return;
    memcpy(r->rest, s, len);
    r->n_rest = (int)len;
}

void grammar_run_accept(grammar_run *r, grammar_walk *w, int32_t token)
{
    const uint32_t *form = r->lead && lead_asks_form(r->lead) ? r->mask : NULL;
    if (r->lead && lead_rules(r->lead) && !lead_accept(r->lead, token, form)) {
        keep_rest(r);
        return;
    }
    for (int i = 0; r->complete && i < r->n_stop_id; i++) {
        if (r->stop_id[i] == token) {
            r->over = true;
            return;
        }
    }
    int depth = 0;
    bool ok = try_token(r, w, r->conf, r->n_conf, token, &depth);
    /* The set of all configurations may have overflowed: retry one by one. */
    for (int i = 0; !ok && i < r->n_conf; i++) {
        ok = try_token(r, w, &r->conf[i], 1, token, &depth);
    }
    if (!ok) {
        r->failed = true;
        return;
    }
    settle(r, w, depth);
    make_small(r, w);
    grammar_run_prepare(r);
}

static int last_byte(const token_trie *t, int32_t token)
{
    int place = token >= 0 && token < t->n_vocab ? t->place[token] : -1;
    return place < 0 ? -1 : t->bytes[t->at[place + 1] - 1];
}

/* Tokens of the one text that the grammar leaves behind set 0 of the walk; end[i]: bytes up to the
 * end of the i-th.  Returns how many. */
static int only_tokens(const grammar *g, g_walk *w, int last, int most, int32_t *out, int *end)
{
    const token_trie *t = &g->maker->trie;
    uint8_t text[GRAMMAR_TOKEN_MAX];
    int len = walk_only(w, last, text), n = 0;
    if (len > 0 && text[len - 1] == ' ') len--; /* the next token begins with it, as a rule */
    for (int from = 0, bytes = 0; from < len && n < most; from += bytes) {
        int32_t token = -1;
        if (g->shown)
            token = outside_longest(&g->maker->outside, g->shown, text + from, len - from, &bytes);
        if (token < 0) token = trie_longest(t, text + from, len - from, &bytes);
        if (token < 0) break;
        assert(bytes > 0 && from + bytes <= len);
        out[n] = token;
        end[n++] = from + bytes;
    }
    return n;
}

/* Takes k such tokens, as long as what is guessed there (up to `likely`) is no other, or less
 * likely; from there on it is not what comes.  Returns how many. */
static int take_only(grammar_guess *g, int *likely, const int32_t *only, int k)
{
    int i = 0;
    for (; i < k && g->n < g->most; i++, g->n++) {
        bool same = g->n < *likely && g->token[g->n] == only[i];
        if (!same && g->n < *likely && g->chance[g->n] >= g->sure) break;
        if (!same) *likely = 0;
        if (!same || g->chance[g->n] < g->sure) g->chance[g->n] = g->sure;
        g->token[g->n] = only[i];
    }
    return i;
}

void grammar_run_expect(const grammar_run *r, grammar_walk *w, int32_t last, grammar_guess *g)
{
    assert(g->n >= 0 && g->most >= 0);
    int likely = g->n, depth;
    g->only = -1;
    if ((r->lead && lead_rules(r->lead)) || !grammar_run_ready(r) || r->over || r->failed) return;
    const token_trie *t = &r->g->maker->trie;
    walk_begin(w, &r->g->a, r->node, r->n_node);
    w->unlike = true;
    walk_set(w, r->conf, r->n_conf);
    for (g->n = 0; g->n < g->most;) {
        int32_t only[GRAMMAR_TOKEN_MAX];
        int end[GRAMMAR_TOKEN_MAX];
        int k = only_tokens(r->g, w, last_byte(t, last), g->most - g->n, only, end);
        if (g->n == 0 && k > 0) g->only = only[0];
        int took = take_only(g, &likely, only, k);
        if (took == 0 && g->n >= likely) return;
        if (took > 0) {
            depth = end[took - 1];
        } else if (walk_token(w, r->g, g->token[g->n], &depth)) {
            g->n++;
        } else {
            likely = 0; /* the grammar excludes the draft */
            continue;
        }
        walk_go_on(w, depth);
        last = g->token[g->n - 1];
    }
}

/* ----------------------------------------------------------------------------- runs -- */

grammar_walk *grammar_walk_create(void)
{
    return calloc(1, sizeof(g_walk));
}

void grammar_walk_destroy(grammar_walk *w)
{
    free(w);
}

void grammar_run_release(grammar_run *r)
{
    int refs = r ? atomic_fetch_sub(&r->refs, 1) : 0;
    assert(!r || refs > 0);
    if (refs != 1) return;
    grammar_release(r->g);
    lead_destroy(r->lead);
    free(r->mask);
    free(r->before);
    free(r->node);
    free(r->spare);
    free(r->stop_id);
    unique_destroy(r->text);
    free(r);
}

void grammar_run_copy(grammar_run *to, const grammar_run *from)
{
    assert(!from->lead == !to->lead && !from->text == !to->text);
    if (from->lead) lead_copy(to->lead, from->lead);
    if (!from->g) return;
    assert(to->g == from->g && grammar_run_still(to) && grammar_run_still(from));
    size_t bytes = mask_words(from->g->maker->trie.n_vocab) * sizeof(*from->mask);
    memcpy(to->mask, from->mask, bytes);
    memcpy(to->before, from->before, bytes);
    memcpy(to->conf, from->conf, sizeof(to->conf));
    memcpy(to->node, from->node, (size_t)from->n_node * sizeof(*from->node));
    memcpy(to->rest, from->rest, sizeof(to->rest));
    to->n_conf = from->n_conf;
    to->n_node = from->n_node;
    to->n_rest = from->n_rest;
    to->complete = from->complete;
    to->over = from->over;
    to->nearer = from->nearer;
    to->starved = from->starved || (from->text && !unique_copy(to->text, from->text));
    to->failed = from->failed || to->starved;
    atomic_store(&to->state, atomic_load(&from->state));
}

static bool begin_run(grammar_run *r)
{
    g_walk *w = grammar_walk_create();
    if (!w) return false;
    walk_begin(w, &r->g->a, NULL, 0);
    walk_text(w, r->text);
    walk_add(w, (g_conf){r->g->a.rule[r->g->a.root].start, 0, BOUNDS_NONE, NODE_ROOT, 0});
    settle(r, w, 0);
    make_masks(r, w, FIRST_WORK);
    r->over = false; /* where only the empty text is allowed, the first token is one that ends it */
    grammar_walk_destroy(w);
    return true;
}

grammar_run *grammar_run_create(grammar *g, const int32_t *stop_id, int n_stop_id)
{
    grammar_run *r = calloc(1, sizeof(*r));
    if (!r) return NULL;
    r->g = g;
    atomic_fetch_add(&g->refs, 1);
    atomic_store(&r->refs, 1);
    r->mask = calloc(mask_words(g->maker->trie.n_vocab), sizeof(*r->mask));
    r->before = calloc(mask_words(g->maker->trie.n_vocab), sizeof(*r->before));
    r->node = calloc(RUN_NODES, sizeof(*r->node));
    r->spare = calloc(RUN_NODES, sizeof(*r->spare));
    r->stop_id = calloc((size_t)n_stop_id + 1, sizeof(*r->stop_id));
    if (g->a.compares) r->text = unique_create();
    bool got = r->mask && r->before && r->node && r->spare && r->stop_id;
    if (!got || (g->a.compares && !r->text) || !begin_run(r)) {
        grammar_run_release(r);
        return NULL;
    }
    for (int i = 0; i < n_stop_id; i++) {
        if (stop_id[i] >= 0 && stop_id[i] < g->maker->trie.n_vocab) {
            r->stop_id[r->n_stop_id++] = stop_id[i];
        }
    }
    return r;
}

static grammar_run *create_lead_alone(void)
{
    grammar_run *r = calloc(1, sizeof(*r));
    if (r) atomic_store(&r->refs, 1);
    return r;
}

grammar_run *grammar_run_create_led(grammar *g, const grammar_lead *lead, const int32_t *stop_id,
                                    int n_stop_id)
{
    grammar_run *r = g ? grammar_run_create(g, stop_id, n_stop_id) : create_lead_alone();
    bool loose = g && g->free;
    if (r) r->lead = lead_create(lead, g != NULL, loose, stop_id, n_stop_id);
    if (!r || r->lead) return r;
    grammar_run_release(r);
    return NULL;
}

/* --------------------------------------------------------------------------- helper -- */

static void *helper(void *arg)
{
    grammar_maker *m = arg;
    (void)pthread_setname_np(pthread_self(), "grammar");
    lock_take(&m->mu);
    while (!m->stop || m->first) {
        grammar_run *r = m->first;
        if (!r) {
            cond_wait(&m->work, &m->mu);
            continue;
        }
        m->first = r->next;
        if (!m->first) m->last = NULL;
        lock_release(&m->mu);
        uint64_t failures = memory_failures();
        assert(atomic_load(&r->state) == RUN_QUEUED);
        compute(r, m->walk);
        r->starved = r->failed && memory_failures() != failures;
        atomic_store_explicit(&r->state, RUN_READY, memory_order_release);
        grammar_run_release(r);
        lock_take(&m->mu);
    }
    lock_release(&m->mu);
    return NULL;
}

/* Without memory a compiler fails in many ways, or makes a grammar that
 * lacks a part of its schema. */
static err_code or_no_memory(err_code rc, g_auto *a, uint64_t failures, err *e)
{
    if (memory_failures() == failures) return rc;
    if (!rc) g_auto_clear(a);
    return err_set(e, ERR_NOMEM, "out of memory");
}

err_code grammar_maker_create(grammar_maker **out, const tokenizer *tok, int n_vocab, err *e)
{
    *out = NULL;
    grammar_maker *m = calloc(1, sizeof(*m));
    g_auto any;
    uint64_t failures = memory_failures();
    err_code rc = grammar_build_schema(&any, NULL, NULL, e);
    rc = or_no_memory(rc, &any, failures, e);
    if (!rc) {
        if (m) {
            m->n_shared = any.n_shared;
            m->shared = calloc((size_t)m->n_shared, sizeof(*m->shared));
            m->walk = grammar_walk_create();
        }
        g_auto_clear(&any);
    }
    bool ok = m && m->shared && m->walk && trie_build(&m->trie, tok, n_vocab) &&
              outside_build(&m->outside, &m->trie, tok);
    if (ok) m->spells = tokenizer_spells(tok);
    if (ok) {
        lock_init(&m->mu, LOCK_GRAMMAR_MAKER);
        cond_init(&m->work);
        if (pthread_create(&m->thread, NULL, helper, m) == 0) {
            *out = m;
            return ERR_NONE;
        }
        lock_free(&m->mu);
        cond_free(&m->work);
    }
    if (m) {
        trie_clear(&m->trie);
        outside_clear(&m->outside);
        grammar_walk_destroy(m->walk);
        free(m->shared);
    }
    free(m);
    return rc ? rc : err_set(e, ERR_NOMEM, "no memory or thread for structured outputs");
}

void grammar_maker_destroy(grammar_maker *m)
{
    if (!m) return;
    lock_take(&m->mu);
    m->stop = true;
    cond_signal(&m->work);
    lock_release(&m->mu);
    (void)pthread_join(m->thread, NULL);
    for (int i = 0; i < m->n_cache; i++) grammar_release(m->cache[i]);
    grammar_documents_release(m->documents);
    for (int s = 0; s < m->n_shared; s++) mask_free(atomic_load(&m->shared[s]));
    free(m->shared);
    grammar_walk_destroy(m->walk);
    trie_clear(&m->trie);
    outside_clear(&m->outside);
    cond_free(&m->work);
    lock_free(&m->mu);
    free(m);
}

/* ------------------------------------------------------------------------ compiling -- */

static err_code build_regex(g_auto *out, const char *pattern, err *e)
{
    g_builder b;
    gb_init(&b);
    int32_t root = gb_rule(&b);
    int32_t start = b.failed ? 0 : b.rule[root].start, end = b.failed ? 0 : b.rule[root].end;
    err_code rc = gb_pattern(&b, start, pattern, strlen(pattern), 0, -1, true, false, end, e);
    if (rc) {
        gb_clear(&b);
        return rc;
    }
    return gb_finish(&b, root, 0, out, e);
}

/* One of some texts, as they are: a trie between start and end. */
static err_code build_choice(g_auto *out, const cJSON *list, err *e)
{
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0, i = 0;
    if (n < 1) return err_set(e, ERR_INPUT, "it must be an array of at least one string");
    char **text = calloc((size_t)n, sizeof(*text));
    size_t *len = calloc((size_t)n, sizeof(*len));
    g_builder b;
    gb_init(&b);
    err_code rc = text && len ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory");
    const cJSON *v;
    cJSON_ArrayForEach(v, list)
    {
        if (rc) break;
        if (!cJSON_IsString(v) || !v->valuestring[0]) {
            rc = err_set(e, ERR_INPUT, "choice %d must be a string that is not empty", i);
            break;
        }
        text[i] = v->valuestring;
        len[i] = strlen(v->valuestring);
        i++;
    }
    int32_t root = gb_rule(&b);
    if (!rc && !b.failed) gb_texts(&b, b.rule[root].start, text, len, (size_t)n, b.rule[root].end);
    free((void *)text);
    free(len);
    if (rc) {
        gb_clear(&b);
        return rc;
    }
    return gb_finish(&b, root, 0, out, e);
}

/* The kind and the text: equal keys, equal grammars. */
static char *key_of(const grammar_spec *spec, size_t *len)
{
    char *text = spec->text ? strdup(spec->text) : spec->json ? json_print(spec->json) : strdup("");
    if (!text) return NULL;
    *len = strlen(text) + 1;
    char *key = malloc(*len + 1);
    if (key) {
        key[0] = (char)('0' + (int)spec->kind + (spec->json ? 8 : 0));
        memcpy(key + 1, text, *len);
    }
    free(text);
    return key;
}

static grammar *find(grammar_maker *m, const char *key, size_t len, uint64_t hash)
{
    grammar *hit = NULL;
    lock_take(&m->mu);
    for (int i = 0; i < m->n_cache && !hit; i++) {
        grammar *g = m->cache[i];
        if (g->hash == hash && g->key_len == len && memcmp(g->key, key, len) == 0) hit = g;
    }
    if (hit) {
        hit->used = ++m->clock;
        atomic_fetch_add(&hit->refs, 1);
    }
    lock_release(&m->mu);
    return hit;
}

static grammar_documents *hold_documents(grammar_maker *m)
{
    lock_take(&m->mu);
    grammar_documents *d = grammar_documents_hold(m->documents);
    lock_release(&m->mu);
    return d;
}

void grammar_maker_take_documents(grammar_maker *m, grammar_documents *d)
{
    grammar *gone[CACHE_MAX];
    lock_take(&m->mu);
    grammar_documents *old = m->documents;
    int n = m->n_cache;
    memcpy(gone, m->cache, (size_t)n * sizeof(*gone));
    m->n_cache = 0;
    m->documents = d;
    lock_release(&m->mu);
    for (int i = 0; i < n; i++) grammar_release(gone[i]);
    grammar_documents_release(old);
    if (d)
        log_info("grammar", "%d documents that schemas can refer to", grammar_documents_count(d));
}

/* Inserts into the cache, which holds its own reference, and evicts the least recently used
 * grammar. A grammar compiled with documents that were replaced meanwhile is not kept. */
static void remember(grammar_maker *m, grammar *g, const grammar_documents *d)
{
    grammar *out = NULL;
    lock_take(&m->mu);
    if (d != m->documents) {
        lock_release(&m->mu);
        return;
    }
    int at = m->n_cache;
    if (m->n_cache < CACHE_MAX) {
        m->n_cache++;
    } else {
        at = 0;
        for (int i = 1; i < m->n_cache; i++) {
            if (m->cache[i]->used < m->cache[at]->used) at = i;
        }
        out = m->cache[at];
    }
    m->cache[at] = g;
    g->used = ++m->clock;
    atomic_fetch_add(&g->refs, 1);
    lock_release(&m->mu);
    grammar_release(out);
}

bool grammar_answer_of(const grammar_spec *tags, grammar_spec *out)
{
    const cJSON *v = tags->kind == GRAMMAR_TAGS ? json_get(tags->json, "answer") : NULL;
    const cJSON *kind = v ? json_get(v, "kind") : NULL;
    if (!kind) return false;
    *out = (grammar_spec){.kind = (grammar_kind)kind->valueint,
                          .json = json_get(v, "json"),
                          .text = cJSON_GetStringValue(json_get(v, "text"))};
    return true;
}

static err_code build_plain(g_auto *out, const grammar_spec *spec, const grammar_documents *d,
                            err *e)
{
    switch (spec->kind) {
    case GRAMMAR_SCHEMA: return grammar_build_schema(out, spec->json, d, e);
    case GRAMMAR_REGEX: return build_regex(out, spec->text, e);
    case GRAMMAR_CFG: return grammar_build_cfg(out, spec->text, e);
    case GRAMMAR_CHOICE: return build_choice(out, spec->json, e);
    case GRAMMAR_TAGS: break;
    }
    return grammar_build_tags(out, spec->json, NULL, e);
}

static err_code build(g_auto *out, const grammar_spec *spec, const grammar_documents *d, err *e)
{
    g_auto answer;
    grammar_spec own;
    if (!grammar_answer_of(spec, &own)) return build_plain(out, spec, d, e);
    err_code rc = build_plain(&answer, &own, d, e);
    if (rc) return rc;
    rc = grammar_build_tags(out, spec->json, &answer, e);
    g_auto_clear(&answer);
    return rc;
}

err_code grammar_acquire(grammar_maker *m, const grammar_spec *spec, grammar **out, err *e)
{
    *out = NULL;
    size_t len = 0;
    if (!m->spells)
        return err_set(
            e, ERR_UNSUPPORTED,
            "this model's tokenizer is WordPiece, whose decoder changes what tokens say");
    char *key = key_of(spec, &len);
    if (!key) return err_set(e, ERR_NOMEM, "no memory");
    if (len > GRAMMAR_TEXT_MAX) {
        free(key);
        return err_set(e, ERR_LIMIT, "it is larger than %d bytes", GRAMMAR_TEXT_MAX);
    }
    uint64_t hash = hash_text(0, key, len);
    *out = find(m, key, len, hash);
    if (*out) {
        free(key);
        return ERR_NONE;
    }
    uint64_t failures = memory_failures();
    grammar *g = calloc(1, sizeof(*g));
    err_code rc = g ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory");
    grammar_documents *d = hold_documents(m);
    if (!rc) rc = build(&g->a, spec, d, e);
    if (g) rc = or_no_memory(rc, &g->a, failures, e);
    if (rc) {
        grammar_documents_release(d);
        free(key);
        free(g);
        return rc;
    }
    g->maker = m;
    g->key = key;
    g->key_len = len;
    g->hash = hash;
    atomic_store(&g->refs, 1);
    assert(g->a.n_shared <= m->n_shared); /* whose masks are the maker's */
    g->mask = calloc((size_t)(g->a.n_states - g->a.n_shared) + 1, sizeof(*g->mask));
    bool tags = spec->kind == GRAMMAR_TAGS;
    g->free = tags && !json_get(spec->json, "answer");
    if (tags) g->shown = outside_shown(&m->outside, spec->json);
    bool kept = g->mask && (!tags || g->shown);
    if (kept) remember(m, g, d);
    grammar_documents_release(d);
    if (!kept) {
        grammar_release(g);
        return err_set(e, ERR_NOMEM, "no memory");
    }
    *out = g;
    return ERR_NONE;
}
