/* held.h -- bytes of an answer that a reader holds: they come at the end and go at the front.
 *
 * Ownership: the reader frees `s`.  Threads: the reader's own.
 */
#ifndef ENGINE_CHAT_HELD_H
#define ENGINE_CHAT_HELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct held_bytes {
    char *s;
    size_t len, cap, given; /* given: taken already */
} held_bytes;

/* False: no memory, and nothing was added. */
static inline bool held_add(held_bytes *b, const char *s, size_t len)
{
    if (len == 0) return true;
    if (b->cap - b->len < len) {
        size_t cap = 2 * (b->len + len) + 256;
        char *p = realloc(b->s, cap);
        if (!p) return false;
        b->s = p;
        b->cap = cap;
    }
    memcpy(b->s + b->len, s, len);
    b->len += len;
    return true;
}

/* The first `n` bytes are done with. */
static inline void held_drop(held_bytes *b, size_t n)
{
    b->len -= n;
    if (b->len) memmove(b->s, b->s + n, b->len);
}

#endif
