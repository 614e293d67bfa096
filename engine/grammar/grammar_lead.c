/* grammar_lead.c -- reasoning before a structured answer: free text between two marks, with a
 * budget of tokens.
 *
 * A state machine, each state with its own token mask:
 *
 *   BEFORE --open mark--> INSIDE --close mark, or budget spent--> WRITING --queue empty--> REST
 *      |                                                             ^
 *      +--- answer begins without reasoning -------------------------+
 *
 * BEFORE   the opening mark, or the beginning of the answer INSIDE   any token, but none that ends
 * the answer WRITING  exactly the tokens of `queue`, which the server dictates: the closing mark,
 * `gap`, `then` REST     no constraint from here; the grammar decides
 *
 * The closing mark is searched in the bytes of the tokens (Knuth-Morris-Pratt without a table),
 * because it can be one token, several, or a part of one. A "loose" grammar is free text with tags:
 * reasoning is then recognised if the model begins it, and never enforced.
 *
 * Threads: those of its run.
 */
#include "engine/grammar/grammar_lead.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDS_MAX = 96, MARK_MAX = 64 };

/* BEFORE: reasoning may begin; WRITING: the tokens of `queue` are dictated; REST: unconstrained. */
typedef enum { BEFORE, INSIDE, WRITING, REST } phase;

typedef struct {
    int32_t id[IDS_MAX];
    int n;
} ids;

struct g_lead {
    const tokenizer *tok;
    int n_vocab;
    phase now, next; /* next: behind the queue */
    bool form, loose, once, channel;
    const char *rest; /* of the last token, behind the mark */
    size_t n_rest;
    ids open, close, then; /* then: between the thoughts, or none, and the form */
    ids gap;               /* behind the mark that ends thoughts */
    ids queue;
    int at;                /* of the queue */
    char mark[MARK_MAX];   /* that ends the thoughts */
    size_t mark_len, seen; /* bytes of it that the text ends with */
    char first[MARK_MAX];  /* that begins them; n_first: bytes that the answer begins with */
    size_t n_first;
    int budget, n_made;
    uint32_t *any;  /* [words] all tokens, or all that do not end the answer */
    uint32_t *room; /* [words] */
};

static size_t words(const g_lead *l)
{
    return ((size_t)l->n_vocab + 31) / 32;
}

static bool has(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> (id % 32) & 1;
}

static void set(uint32_t *mask, int32_t id)
{
    mask[id / 32] |= 1U << (id % 32);
}

/* Tokenises a text; false: more than IDS_MAX tokens, an id beyond the vocabulary, or no memory. */
static bool encode(const g_lead *l, const char *text, ids *out)
{
    int64_t n = tokenizer_encode(l->tok, text, strlen(text), TOK_PARSE_SPECIAL, out->id, IDS_MAX);
    out->n = n > 0 && n <= IDS_MAX ? (int)n : 0;
    for (int i = 0; i < out->n; i++) {
        if (out->id[i] >= l->n_vocab) return false;
    }
    return n >= 0 && n <= IDS_MAX;
}

static void push(g_lead *l, const ids *more)
{
    assert(l->queue.n + more->n <= IDS_MAX);
    for (int i = 0; i < more->n && l->queue.n < IDS_MAX; i++)
        l->queue.id[l->queue.n++] = more->id[i];
}

static void write_queue(g_lead *l, phase next)
{
    l->at = 0;
    l->next = next;
    l->now = l->queue.n ? WRITING : next;
}

/* Leaves the reasoning; `forced`: the closing mark must still be written. */
static void leave(g_lead *l, bool forced)
{
    l->queue.n = 0;
    if (forced) push(l, &l->close);
    if (forced || l->once || (l->form && !l->loose)) push(l, &l->gap);
    if (l->form) push(l, &l->then);
    write_queue(l, REST);
}

static void enter(g_lead *l)
{
    l->seen = 0;
    l->now = INSIDE;
    if (l->budget == 0) leave(l, true);
}

static bool fill(g_lead *l, const grammar_lead *spec, const int32_t *stop_id, int n_stop_id)
{
    l->any = calloc(words(l) + 1, sizeof(*l->any));
    l->room = calloc(words(l) + 1, sizeof(*l->room));
    l->mark_len = strlen(spec->close);
    if (!l->any || !l->room || l->mark_len == 0 || l->mark_len >= MARK_MAX) return false;
    memcpy(l->mark, spec->close, l->mark_len);
    if (snprintf(l->first, sizeof(l->first), "%s", spec->open) >= MARK_MAX) return false;
    for (int32_t id = 0; id < l->n_vocab; id++) set(l->any, id);
    for (int i = 0; l->form && !l->loose && i < n_stop_id; i++) {
        int32_t id = stop_id[i];
        if (id >= 0 && id < l->n_vocab) l->any[id / 32] &= ~(1U << (id % 32));
    }
    return encode(l, spec->open, &l->open) && encode(l, spec->close, &l->close) &&
           encode(l, spec->gap, &l->gap) && encode(l, spec->then, &l->then) &&
           l->close.n + l->gap.n + l->then.n <= IDS_MAX;
}

g_lead *lead_create(const grammar_lead *spec, bool form, bool loose, const int32_t *stop_id,
                    int n_stop_id)
{
    g_lead *l = calloc(1, sizeof(*l));
    if (!l) return NULL;
    l->tok = spec->tok;
    l->n_vocab = spec->n_vocab;
    l->budget = spec->budget;
    l->form = form;
    l->channel = spec->once;
    l->once = spec->once && spec->budget >= 0;
    l->loose = loose;
    if (!fill(l, spec, stop_id, n_stop_id)) {
        lead_destroy(l);
        return NULL;
    }
    if (l->open.n == 0) enter(l);
    return l;
}

void lead_destroy(g_lead *l)
{
    if (!l) return;
    free(l->any);
    free(l->room);
    free(l);
}

void lead_copy(g_lead *to, const g_lead *from)
{
    assert(to->n_vocab == from->n_vocab);
    uint32_t *any = to->any, *room = to->room; /* `any` depends on the spec only; `room` is
                                                * scratch */
    *to = *from;
    to->any = any;
    to->room = room;
}

bool lead_rules(const g_lead *l)
{
    return !l->form || l->now != REST;
}

bool lead_asks_form(const g_lead *l)
{
    return l->form && l->now == BEFORE && l->then.n == 0;
}

const uint32_t *lead_mask(g_lead *l, const uint32_t *form)
{
    bool any = l->now == INSIDE || (!l->form && l->now != WRITING);
    if (any) return l->any;
    if (form)
        memcpy(l->room, form, words(l) * sizeof(*l->room));
    else
        memset(l->room, 0, words(l) * sizeof(*l->room));
    if (l->now == WRITING) {
        assert(l->at < l->queue.n);
        set(l->room, l->queue.id[l->at]);
    } else {
        assert(l->now == BEFORE && l->open.n > 0);
        set(l->room, l->open.id[0]);
        if (l->then.n) set(l->room, l->then.id[0]);
    }
    return l->room;
}

/* Advances the search for the closing mark by one byte. */
static void see_byte(g_lead *l, char c)
{
    assert(l->seen < l->mark_len);
    while (l->seen > 0 && l->mark[l->seen] != c) {
        size_t n = l->seen - 1; /* the longest shorter beginning that the text ends with */
        while (n > 0 && memcmp(l->mark, l->mark + l->seen - n, n) != 0) n--;
        l->seen = n;
    }
    if (l->mark[l->seen] == c) l->seen++;
}

/* Accounts for one more reasoning token. */
static void think(g_lead *l, int32_t token)
{
    size_t len = 0;
    const char *s = tokenizer_bytes(l->tok, token, &len);
    size_t i = 0;
    for (; s && i < len && l->seen < l->mark_len; i++) see_byte(l, s[i]);
    l->n_made++;
    if (l->loose && l->seen == l->mark_len && i < len) {
        l->rest = s + i;
        l->n_rest = len - i;
    }
    if (l->seen == l->mark_len)
        leave(l, false);
    else if (l->budget >= 0 && l->n_made >= l->budget)
        leave(l, true);
}

/* Without a constraint, recognises the opening mark at the beginning of the answer. */
static void watch(g_lead *l, int32_t token)
{
    size_t len = 0;
    const char *s = tokenizer_bytes(l->tok, token, &len);
    for (size_t i = 0; s && i < len; i++) {
        if (l->n_first == 0 && strchr(" \t\r\n", s[i])) continue;
        if (s[i] != l->first[l->n_first]) {
            l->now = REST;
            return;
        }
        if (!l->first[++l->n_first]) {
            enter(l);
            return;
        }
    }
    if (!s) l->now = REST;
}

/* The first token of `all` was sampled: the rest of it is dictated. */
static void go_on(g_lead *l, const ids *all, phase next)
{
    assert(all->n > 0);
    l->queue.n = 0;
    for (int i = 1; i < all->n; i++) l->queue.id[l->queue.n++] = all->id[i];
    write_queue(l, next);
    if (l->now == INSIDE) enter(l);
}

/* Returns true if the answer has begun with this token. */
static bool begin(g_lead *l, int32_t token, const uint32_t *form)
{
    /* The opening mark of a channel starts reasoning, calls and answers alike: reasoning has
     * priority. */
    bool theirs = form && has(form, token) && !(l->channel && token == l->open.id[0]);
    if (!l->form || l->loose) {
        watch(l, token);
        return l->form && l->now != INSIDE && l->now != WRITING;
    }
    if (!theirs && token == l->open.id[0]) {
        go_on(l, &l->open, INSIDE);
        return false;
    }
    if (l->then.n == 0) {
        l->now = REST;
        return true;
    }
    go_on(l, &l->then, REST);
    return false;
}

const char *lead_rest(const g_lead *l, size_t *len)
{
    *len = l->n_rest;
    return l->rest;
}

bool lead_accept(g_lead *l, int32_t token, const uint32_t *form)
{
    l->n_rest = 0;
    switch (l->now) {
    case BEFORE: return begin(l, token, form);
    case INSIDE: think(l, token); break;
    case WRITING:
        assert(l->at < l->queue.n);
        if (++l->at < l->queue.n) break;
        l->now = l->next;
        if (l->now == INSIDE) enter(l);
        break;
    case REST: break;
    }
    return false;
}
