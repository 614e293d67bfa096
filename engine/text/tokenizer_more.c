/* tokenizer_more.c -- a tokenizer with more added tokens than its base, whose tables it shares.
 *
 * The sets of added tokens are the base's and the new ones', in one order, so that the longest wins
 * whoever brought it.  The new entries are few: a sorted array, looked into first, for a reserved
 * token of the base may have got another name.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_inside.h"

const entry *tokenizer_entry(const tokenizer *t, int32_t id)
{
    static const entry none;
    int lo = 0, hi = t->n_more;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (t->more[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < t->n_more && t->more[lo].id == id) return &t->more[lo].e;
    return id >= 0 && id < t->n_base ? &t->entries[id] : &none;
}

void tokenizer_free_more(tokenizer *t)
{
    for (int i = 0; t->more && i < t->n_more; i++) {
        free(t->more[i].e.content);
        free(t->more[i].e.text);
    }
    for (int i = 0; t->patterns && i < t->n_more; i++) free(t->patterns[i]);
    free(t->patterns);
    free(t->more);
    free(t->raw.list);
    free(t->normal.list);
    free(t);
}

static int by_id(const void *a, const void *b)
{
    const more_entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int by_content(const void *a, const void *b)
{
    return strcmp((*(const tok_added *const *)a)->content, (*(const tok_added *const *)b)->content);
}

/* Each new one is neither the base's nor there twice. */
static err_code check(const tokenizer *base, const tok_added *list, int n, err *e)
{
    const tok_added **order = malloc(((size_t)n + 1) * sizeof(*order));
    if (!order) return err_set(e, ERR_NOMEM, "no memory for added tokens");
    err_code rc = ERR_NONE;
    for (int i = 0; i < n && !rc; i++) {
        const tok_added *a = order[i] = &list[i];
        if (!a->content[0] || a->id < 0)
            rc = err_set(e, ERR_INPUT, "an added token is empty");
        else if (tokenizer_entry(base, a->id)->text && !tokenizer_entry(base, a->id)->added)
            rc = err_set(e, ERR_INPUT, "added token '%.60s': id %d is another token of the base",
                         a->content, (int)a->id);
        else if (tokenizer_find(base, a->content) >= 0)
            rc = err_set(e, ERR_INPUT, "added token '%.60s' with id %d is token %d of the base",
                         a->content, (int)a->id, (int)tokenizer_find(base, a->content));
    }
    if (!rc) qsort(order, (size_t)n, sizeof(*order), by_content);
    for (int i = 1; i < n && !rc; i++) {
        if (strcmp(order[i - 1]->content, order[i]->content) == 0)
            rc = err_set(e, ERR_INPUT, "added token '%.60s' is there twice", order[i]->content);
    }
    free(order);
    return rc;
}

/* Both lists are short where they meet: a base has at most hundreds of added tokens. */
static bool renamed(const tok_added *list, int n, int32_t id)
{
    for (int i = 0; i < n; i++) {
        if (list[i].id == id) return true;
    }
    return false;
}

/* The base's set, but for what gets another name, with room for the new ones. */
static bool copy_set(added_set *to, const added_set *from, const tok_added *list, int n)
{
    to->n = 0;
    to->list = malloc(((size_t)from->n + (size_t)n + 1) * sizeof(*to->list));
    for (int k = 0; to->list && k < from->n; k++)
        if (!renamed(list, n, from->list[k].id)) to->list[to->n++] = from->list[k];
    return to->list != NULL;
}

static err_code add(tokenizer *t, const tok_added *a, err *e)
{
    added_token seek;
    more_entry *m = &t->more[t->n_more];
    err_code rc = tokenizer_looked_for(t, a, &seek, e);
    if (rc) return rc;
    t->patterns[t->n_more++] = seek.content;
    m->id = a->id;
    m->e = (entry){.byte = -1};
    added_set *set = a->normalized ? &t->normal : &t->raw;
    set->list[set->n] = seek;
    if (a->id >= t->n_vocab) t->n_vocab = a->id + 1;
    rc = tokenizer_make_added(t, &m->e, a, seek.content, e);
    set->list[set->n++].name = m->e.content;
    return rc;
}

err_code tokenizer_extend(tokenizer **out, const tokenizer *base, const tok_added *list, int n,
                          err *e)
{
    *out = NULL;
    err_code rc = check(base, list, n, e);
    if (rc) return rc;
    tokenizer *t = malloc(sizeof(*t));
    if (!t) return err_set(e, ERR_NOMEM, "no memory for added tokens");
    *t = *base;
    t->base = base;
    t->n_more = 0;
    t->more = calloc((size_t)n + 1, sizeof(*t->more));
    t->patterns = calloc((size_t)n + 1, sizeof(*t->patterns));
    bool ok = copy_set(&t->raw, &base->raw, list, n) & copy_set(&t->normal, &base->normal, list, n);
    if (!ok || !t->more || !t->patterns) rc = err_set(e, ERR_NOMEM, "no memory for added tokens");
    for (int i = 0; i < n && !rc; i++) rc = add(t, &list[i], e);
    for (int i = 0; i < n && !rc; i++)
        if (list[i].normalized) tokenizer_hide(t, t->patterns[i], &t->more[i].e);
    if (!rc) qsort(t->more, (size_t)n, sizeof(*t->more), by_id);
    for (int i = 1; i < n && !rc; i++) {
        if (t->more[i - 1].id == t->more[i].id)
            rc = err_set(e, ERR_INPUT, "two added tokens have the id %d", (int)t->more[i].id);
    }
    if (!rc) rc = tokenizer_index_added(&t->raw, e);
    if (!rc) rc = tokenizer_index_added(&t->normal, e);
    if (rc)
        tokenizer_free_more(t);
    else
        *out = t;
    return rc;
}
