/* arena.h -- memory for the life of one exchange: many small pieces, one free.
 *
 * A bounded bump allocator.  Nothing is freed alone; arena_clear() frees all.
 * The limit keeps a single client from taking more than its share.
 * Threads: owner thread.
 */
#ifndef ENGINE_BASE_ARENA_H
#define ENGINE_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_block;

typedef struct arena {
    struct arena_block *blocks;
    size_t used_bytes;
    size_t limit_bytes;
    bool starved; /* the system had no memory: what was made since may be incomplete */
} arena;

/* No memory is taken until the first arena_alloc(). */
void arena_init(arena *a, size_t limit_bytes);
void arena_clear(arena *a);

/* Zeroed, aligned to 16 bytes; NULL when the limit is used up, or the
 * memory (then `starved` is set). */
void *arena_alloc(arena *a, size_t bytes);

/* count * size with an overflow check. */
void *arena_calloc(arena *a, size_t count, size_t size);

/* Copies `len` bytes and adds a NUL. */
char *arena_strndup(arena *a, const char *s, size_t len);

#endif
