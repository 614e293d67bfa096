/* arena.c -- blocks of doubling use, newest first. */
#include "engine/base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/round.h"

enum { BLOCK_BYTES = 16 * 1024, ALIGN = 16 };

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    alignas(ALIGN) unsigned char data[];
};

void arena_init(arena *a, size_t limit_bytes)
{
    *a = (arena){.limit_bytes = limit_bytes};
}

void arena_clear(arena *a)
{
    struct arena_block *b = a->blocks;
    while (b) {
        struct arena_block *next = b->next;
        free(b);
        b = next;
    }
    a->blocks = NULL;
    a->used_bytes = 0;
}

void *arena_alloc(arena *a, size_t bytes)
{
    if (bytes > a->limit_bytes) return NULL;
    size_t need = round_up_size(bytes, ALIGN);
    if (need == 0) need = ALIGN;
    if (need > a->limit_bytes - a->used_bytes) return NULL;
    struct arena_block *b = a->blocks;
    if (!b || b->size - b->used < need) {
        size_t size = need > BLOCK_BYTES ? need : (size_t)BLOCK_BYTES;
        b = calloc(1, sizeof(*b) + size);
        if (!b) {
            a->starved = true;
            return NULL;
        }
        b->size = size;
        b->next = a->blocks;
        a->blocks = b;
    }
    void *p = b->data + b->used;
    b->used += need;
    a->used_bytes += need;
    return p;
}

void *arena_calloc(arena *a, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size) return NULL;
    return arena_alloc(a, count * size);
}

char *arena_strndup(arena *a, const char *s, size_t len)
{
    if (len == SIZE_MAX) return NULL;
    char *p = arena_alloc(a, len + 1);
    if (p) memcpy(p, s, len); /* arena memory is zeroed: the NUL stands */
    return p;
}
