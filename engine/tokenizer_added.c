/* tokenizer_added.c -- which added token begins here: a sorted list with links to shorter ones.
 *
 * In the order of their bytes a token stands behind those that it begins with, and whatever of the list a text
 * begins with, the last one that is not behind the text begins with it, too.  So one bisection and a few links
 * find all, however many there are: an adapter may bring thousands, and a text may ask at each of its bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_inside.h"

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

void tokenizer_index_added(tokenizer *t)
{
    if (t->n_added > 0) qsort(t->added, (size_t)t->n_added, sizeof(*t->added), by_content);
    int at = 0;
    for (int k = 0; k < t->n_added; k++) {
        added_token *a = &t->added[k];
        for (; at <= (unsigned char)a->content[0]; at++) t->added_from[at] = k;
        a->shorter = k - 1;
        while (a->shorter >= 0 && !begins_with(a->content, a->len, &t->added[a->shorter]))
            a->shorter = t->added[a->shorter].shorter;
    }
    for (; at <= 256; at++) t->added_from[at] = t->n_added;
}

/* Whether the text lies behind the token, or is it, or begins with it. */
static bool not_behind(const added_token *a, const char *s, size_t len)
{
    int d = memcmp(a->content, s, a->len < len ? a->len : len);
    return d < 0 || (d == 0 && a->len <= len);
}

int tokenizer_added_at(const tokenizer *t, const char *s, size_t len)
{
    if (len == 0) return -1;
    int from = t->added_from[(unsigned char)s[0]], lo = from,
        hi = t->added_from[(unsigned char)s[0] + 1];
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (not_behind(&t->added[mid], s, len))
            lo = mid + 1;
        else
            hi = mid;
    }
    int k = lo > from ? lo - 1 : -1;
    while (k >= 0 && !begins_with(s, len, &t->added[k])) k = t->added[k].shorter;
    return k;
}
