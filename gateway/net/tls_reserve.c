/* tls_reserve.c -- slots of two sizes in static memory, chained while they are free.
 *
 * The pages of the reserve are touched when a slot is taken for the first time: until
 * then it costs address space.
 */
#include "gateway/net/tls_reserve.h"

#include <assert.h>
#include <malloc.h>
#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "engine/base/lock.h"

enum {
    SMALL_BYTES = 128,
    SMALL = 4096, /* a worker has two or three at once */
    /* The buffer of a TLS record, which an idle connection does not keep, and a request's head. */
    LARGE_BYTES = 24 << 10,
    LARGE = 1024,
    SIZES = 2,
};

typedef struct slot {
    struct slot *next; /* while it is free */
} slot;

static alignas(16) unsigned char small[SMALL][SMALL_BYTES], large[LARGE][LARGE_BYTES];

typedef struct {
    unsigned char *base;
    size_t bytes, n; /* of a slot; slots */
    slot *free;      /* slots that were used and returned */
    size_t n_used;   /* slots that were used at least once */
} size_class;

static struct {
    lock mu;
    size_class size[SIZES];
} reserve = {.mu = LOCK_INITIALIZER(LOCK_TLS_RESERVE),
             .size = {{.base = small[0], .bytes = SMALL_BYTES, .n = SMALL},
                      {.base = large[0], .bytes = LARGE_BYTES, .n = LARGE}}};

/* NULL: it is the heap's. */
static size_class *class_of(const void *p)
{
    for (int i = 0; i < SIZES; i++) {
        size_class *c = &reserve.size[i];
        uintptr_t at = (uintptr_t)p - (uintptr_t)c->base;
        if (at < c->bytes * c->n) return c;
    }
    return NULL;
}

static void *take(size_t bytes)
{
    size_class *c = &reserve.size[bytes > SMALL_BYTES];
    if (bytes > c->bytes) return NULL;
    lock_take(&reserve.mu);
    slot *s = c->free;
    if (s)
        c->free = s->next;
    else if (c->n_used < c->n)
        s = (slot *)(void *)(c->base + c->bytes * c->n_used++);
    lock_release(&reserve.mu);
    return s;
}

static void give_back(size_class *c, slot *s)
{
    assert(((uintptr_t)s - (uintptr_t)c->base) % c->bytes == 0);
    lock_take(&reserve.mu);
    s->next = c->free;
    c->free = s;
    lock_release(&reserve.mu);
}

static void *get(size_t bytes, const char *file, int line)
{
    (void)file;
    (void)line;
    void *p = malloc(bytes);
    return p ? p : take(bytes);
}

static void put(void *p, const char *file, int line)
{
    (void)file;
    (void)line;
    size_class *c = class_of(p);
    if (c)
        give_back(c, p);
    else
        free(p);
}

static void *change(void *p, size_t bytes, const char *file, int line)
{
    if (!p) return get(bytes, file, line);
    size_class *c = class_of(p);
    void *more = c ? NULL : realloc(p, bytes);
    if (more || (c && bytes <= c->bytes)) return c ? p : more;
    more = get(bytes, file, line);
    if (!more) return NULL;
    size_t had = c ? c->bytes : malloc_usable_size(p);
    memcpy(more, p, had < bytes ? had : bytes);
    put(p, file, line);
    return more;
}

bool tls_reserve_install(void)
{
    return CRYPTO_set_mem_functions(get, change, put) == 1;
}
