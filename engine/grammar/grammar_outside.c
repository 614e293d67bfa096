/* grammar_outside.c -- a token that is shown is its bytes; one that is not leaves free text as it
 * is. */
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
    static const char *const texts[] = {"triggers", "heads", "leads"}, *const lists[] = {"tags",
                                                                                         "first"};
    const cJSON *v;
    bool found = false;
    for (int i = 0; i < 3; i++)
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

/* Set 0 of the walk leads over the token's bytes, however many there are. */
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

/* The answer may end in this state of the root's rule: there text is free. */
static bool is_free(const g_auto *a, int32_t state)
{
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

/* The answer may end where set 0 is. */
static bool may_end(const g_walk *w)
{
    bool end = false;
    for (int i = w->conf_at[0]; i < w->conf_at[1]; i++)
        end |= w->conf[i].node == NODE_ROOT && w->a->is_end[w->conf[i].state];
    return end;
}

bool outside_walk(const outside *o, const bool *shown, int32_t token, g_walk *w, int *depth)
{
    int k = find(o, token);
    *depth = 0;
    if (k < 0) return false;
    return shown[k] ? walk_bytes(&o->list[k], w, depth) : may_end(w);
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
