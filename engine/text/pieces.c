/* pieces.c -- the trie is laid out level by level from the sorted pieces. */
#include "engine/text/pieces.h"

#include <stdlib.h>
#include <string.h>

static int by_bytes(const void *x, const void *y)
{
    const piece *a = x, *b = y;
    int d = memcmp(a->s, b->s, a->len < b->len ? a->len : b->len);
    return d ? d : (a->len > b->len) - (a->len < b->len);
}

/* The pieces below a node: [from, to), which share their first `depth` bytes. */
typedef struct {
    size_t from, to, depth;
} span;

/* Nodes of the trie: one for each byte that a piece does not share with the one before. */
static size_t count(const piece *list, size_t n)
{
    size_t nodes = 1;
    for (size_t i = 0; i < n; i++) {
        size_t same = 0, most = i ? list[i - 1].len : 0;
        while (same < most && same < list[i].len && list[i].s[same] == list[i - 1].s[same]) same++;
        nodes += list[i].len - same;
    }
    return nodes;
}

/* Puts the children of node `at` behind all others. */
static void spread(piece_set *p, const piece *list, span *of, int32_t at)
{
    span s = of[at];
    piece_node *node = &p->node[at];
    if (list[s.from].len == s.depth && s.depth > 0) node->id = list[s.from++].id;
    node->first = p->n;
    while (s.from < s.to) {
        char byte = list[s.from].s[s.depth];
        size_t to = s.from + 1;
        while (to < s.to && list[to].s[s.depth] == byte) to++;
        of[p->n] = (span){s.from, to, s.depth + 1};
        p->node[p->n++] = (piece_node){.id = -1, .byte = (uint8_t)byte};
        node->n++;
        s.from = to;
    }
}

bool pieces_build(piece_set *p, piece *list, size_t n)
{
    *p = (piece_set){0};
    if (n > 0) qsort(list, n, sizeof(*list), by_bytes);
    size_t nodes = count(list, n);
    span *of = nodes < INT32_MAX ? malloc(nodes * sizeof(*of)) : NULL;
    p->node = of ? malloc(nodes * sizeof(*p->node)) : NULL;
    bool ok = p->node != NULL;
    if (ok) {
        p->node[p->n++] = (piece_node){.id = -1};
        of[0] = (span){0, n, 0};
        for (int32_t at = 0; n > 0 && at < p->n; at++) spread(p, list, of, at);
    }
    free(of);
    return ok;
}

void pieces_clear(piece_set *p)
{
    free(p->node);
    *p = (piece_set){0};
}

int32_t pieces_step(const piece_set *p, int32_t node, char byte)
{
    int32_t lo = p->node[node].first, hi = lo + p->node[node].n;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (p->node[mid].byte == (uint8_t)byte) return mid;
        if (p->node[mid].byte < (uint8_t)byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}
