/* grammar_outside.c -- tokens that are not in the vocabulary trie: special, added, and overlong
 * ones.
 *
 * JSON and the other strict grammars exclude them all. Free text with tags (grammar_tags.c) needs
 * them: the marks around tool calls are special tokens in most models.
 *
 * For one grammar each such token is either shown or not (outside_shown()): it is shown if it is an
 * ordinary added token or occurs in a mark of the tags. A shown token counts as its bytes and is
 * walked like any other. A hidden one has no bytes in the text, so it is allowed wherever text is
 * free, and changes nothing.
 *
 * The list is sorted by id, so find() is a binary search; it has a few hundred entries at most in
 * the usual vocabularies, so outside_longest() scans it.
 *
 * Threads: immutable after outside_build().
 */
#include "engine/grammar/grammar_outside.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"

bool outside_build(outside *o, const token_trie *t, const tokenizer *tok)
{
    *o = (outside){.list = malloc(((size_t)t->n_vocab + 1) * sizeof(*o->list))};
    for (int32_t id = 0; o->list && id < t->n_vocab && id < tokenizer_vocab(tok); id++) {
        size_t len;
        const char *s = t->place[id] < 0 ? tokenizer_bytes(tok, id, &len) : NULL;
        if (s && len > 0)
            o->list[o->n++] = (outside_token){s, len, id, tokenizer_is_special(tok, id)};
    }
    outside_token *less = o->list ? realloc(o->list, ((size_t)o->n + 1) * sizeof(*less)) : NULL;
    if (less) o->list = less;
    return o->list != NULL;
}

void outside_clear(outside *o)
{
    free(o->list);
    *o = (outside){0};
}

/* Whether the text of some mark is made of it. */
static bool is_said(const cJSON *v, const outside_token *x)
{
    const char *s = cJSON_GetStringValue(v);
    return s && memmem(s, strlen(s), x->s, x->len) != NULL;
}

static bool is_mark(const cJSON *tags, const outside_token *x)
{
    static const char *const texts[] = {"triggers", "heads", "leads", "before", "marks"};
    static const char *const lists[] = {"tags", "first"};
    const cJSON *v;
    bool found = is_said(json_get(tags, "lead"), x);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        cJSON_ArrayForEach(v, json_get(tags, texts[i])) found |= is_said(v, x);
    for (int i = 0; i < 2; i++)
        cJSON_ArrayForEach(v, json_get(tags, lists[i])) found |=
            is_said(json_get(v, "begin"), x) || is_said(json_get(v, "end"), x);
    return found;
}

bool *outside_shown(const outside *o, const cJSON *tags)
{
    bool *shown = malloc(((size_t)o->n + 1) * sizeof(*shown));
    for (int i = 0; shown && i < o->n; i++)
        shown[i] = !o->list[i].special || is_mark(tags, &o->list[i]);
    return shown;
}

/* Walks the token's bytes from set 0; tokens longer than one walk continue with walk_go_on(). */
static bool walk_bytes(const outside_token *x, g_walk *w, int *depth)
{
    *depth = 0;
    for (size_t i = 0; i < x->len; i++) {
        if (*depth == GRAMMAR_TOKEN_MAX) {
            walk_go_on(w, *depth);
            *depth = 0;
        }
        if (!walk_byte(w, (*depth)++, (uint8_t)x->s[i])) return false;
    }
    return true;
}

/* Text is free in a state of the root rule from which the answer may end. */
static bool is_free(const g_auto *a, int32_t state)
{
    if (a->rule_of[state] != a->root) return false;
    for (int k = a->first[state] + a->n_bytes[state]; k < a->first[state + 1]; k++)
        if (a->edge[k].kind == EDGE_EPS && a->is_end[a->edge[k].to]) return true;
    return false;
}

bool outside_add(const outside *o, const bool *shown, const g_auto *a, int32_t state, g_walk *w,
                 state_mask *m)
{
    int depth;
    if (a->rule_of[state] != a->root) return true;
    bool open = is_free(a, state);
    m->more = malloc(((size_t)o->n + 1) * sizeof(*m->more));
    if (!m->more) return false;
    for (int i = 0; i < o->n; i++) {
        bool may = open && !shown[i];
        if (shown[i]) {
            const g_conf start = {state, 0, BOUNDS_NONE, NODE_ROOT, 0};
            walk_begin(w, a, NULL, 0);
            walk_set(w, &start, 1);
            may = walk_bytes(&o->list[i], w, &depth);
        }
        if (may) m->more[m->n_more++] = o->list[i].id;
    }
    m->bytes += (size_t)m->n_more * sizeof(*m->more);
    return true;
}

static int find(const outside *o, int32_t id)
{
    int lo = 0, hi = o->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (o->list[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < o->n && o->list[lo].id == id ? lo : -1;
}

/* Whether text is free in set 0. */
static bool stands_free(const g_walk *w)
{
    bool open = false;
    for (int i = w->conf_at[0]; i < w->conf_at[1]; i++) open |= is_free(w->a, w->conf[i].state);
    return open;
}

bool outside_walk(const outside *o, const bool *shown, int32_t token, g_walk *w, int *depth)
{
    int k = find(o, token);
    *depth = 0;
    if (k < 0) return false;
    return shown[k] ? walk_bytes(&o->list[k], w, depth) : stands_free(w);
}

int32_t outside_longest(const outside *o, const bool *shown, const uint8_t *s, int len, int *n)
{
    int32_t found = -1;
    *n = 0;
    for (int i = 0; i < o->n; i++) {
        const outside_token *x = &o->list[i];
        if (!shown[i] || x->len > (size_t)len || x->len <= (size_t)*n) continue;
        if (memcmp(x->s, s, x->len) != 0) continue;
        found = x->id;
        *n = (int)x->len;
    }
    return found;
}
