/* tokenizer_added.c -- which added token begins here: sorted lists with links to shorter ones.
 *
 * In the order of their bytes a token stands behind those that it begins with, and whatever of the
 * list a text begins with, the last one that is not behind the text begins with it, too.  So one
 * bisection and a few links find all, however many there are: an adapter may bring thousands, and a
 * text may ask at each of its bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_inside.h"

static int by_content(const void *a, const void *b)
{
    const added_token *x = a, *y = b;
    int d = memcmp(x->content, y->content, x->len < y->len ? x->len : y->len);
    if (d != 0) return d;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return (x->id < y->id) - (x->id > y->id);
}

static bool begins_with(const char *s, size_t len, const added_token *a)
{
    return len >= a->len && memcmp(s, a->content, a->len) == 0;
}

err_code tokenizer_index_added(added_set *set, err *e)
{
    if (set->n > 0) qsort(set->list, (size_t)set->n, sizeof(*set->list), by_content);
    int at = 0;
    for (int k = 0; k < set->n; k++) {
        added_token *a = &set->list[k];
        if (k > 0 && a->len == a[-1].len && memcmp(a->content, a[-1].content, a->len) == 0)
            return err_set(e, ERR_INPUT,
                           "the added tokens %d and %d are both looked for as '%.60s'",
                           (int)a[-1].id, (int)a->id, a->content);
        for (; at <= (unsigned char)a->content[0]; at++) set->from[at] = k;
        a->shorter = k - 1;
        while (a->shorter >= 0 && !begins_with(a->content, a->len, &set->list[a->shorter]))
            a->shorter = set->list[a->shorter].shorter;
    }
    for (; at <= 256; at++) set->from[at] = set->n;
    return ERR_NONE;
}

/* Whether the text lies behind the token, or is it, or begins with it. */
static bool not_behind(const added_token *a, const char *s, size_t len)
{
    int d = memcmp(a->content, s, a->len < len ? a->len : len);
    return d < 0 || (d == 0 && a->len <= len);
}

int tokenizer_added_at(const added_set *set, const char *s, size_t len)
{
    if (len == 0) return -1;
    int from = set->from[(unsigned char)s[0]], lo = from, hi = set->from[(unsigned char)s[0] + 1];
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (not_behind(&set->list[mid], s, len))
            lo = mid + 1;
        else
            hi = mid;
    }
    int k = lo > from ? lo - 1 : -1;
    while (k >= 0 && !begins_with(s, len, &set->list[k])) k = set->list[k].shorter;
    return k;
}
