/* heap.h -- the one binary heap: an array of the caller's items whose first is before all others.
 *
 * Everything is inlined, so that a constant `heap_of` costs no call.  The caller owns
 * the array and counts the items; who wants to take an item out of the middle keeps its
 * place up to date in moved().
 *
 * Threads: the caller's.
 */
#ifndef ENGINE_BASE_HEAP_H
#define ENGINE_BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { HEAP_ITEM_MAX = 128 };

typedef struct heap_of {
    size_t item_bytes; /* at most HEAP_ITEM_MAX */
    bool (*before)(const void *self, const void *a, const void *b);
    void (*moved)(void *self, const void *item, size_t at); /* it stands at `at` now; may be NULL */
} heap_of;

#define HEAP_INLINE static inline __attribute__((always_inline))

HEAP_INLINE bool heap_is_before(const heap_of *h, void *self, const void *items, size_t a, size_t b)
{
    const char *v = items;
    return h->before(self, v + a * h->item_bytes, v + b * h->item_bytes);
}

HEAP_INLINE void heap_swap(const heap_of *h, void *self, void *items, size_t a, size_t b)
{
    char kept[HEAP_ITEM_MAX], *v = items, *x = v + a * h->item_bytes, *y = v + b * h->item_bytes;
    memcpy(kept, x, h->item_bytes);
    memcpy(x, y, h->item_bytes);
    memcpy(y, kept, h->item_bytes);
    if (h->moved) h->moved(self, x, a);
}

/* Puts the item at `at` down to where it belongs among n; all below it are in order. */
HEAP_INLINE void heap_sink(const heap_of *h, void *self, void *items, size_t n, size_t at)
{
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap_is_before(h, self, items, child + 1, child)) child++;
        if (!heap_is_before(h, self, items, child, at)) break;
        heap_swap(h, self, items, at, child);
    }
    if (h->moved) h->moved(self, (char *)items + at * h->item_bytes, at);
}

/* The same, up or down: after the item came, or changed, or took the place of one that left. */
HEAP_INLINE void heap_settle(const heap_of *h, void *self, void *items, size_t n, size_t at)
{
    for (size_t up; at > 0 && heap_is_before(h, self, items, at, up = (at - 1) / 2); at = up)
        heap_swap(h, self, items, at, up);
    heap_sink(h, self, items, n, at);
}

/* Of n items in any order. */
HEAP_INLINE void heap_make(const heap_of *h, void *self, void *items, size_t n)
{
    for (size_t at = n / 2; at-- > 0;) heap_sink(h, self, items, n, at);
}

#endif
