/* tls_reserve.c -- slots of one size in static memory, chained while they are free.
 *
 * The pages of the reserve are touched when the first slot is taken: until
 * then it costs address space.
 */
#include "gateway/net/tls_reserve.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "engine/base/lock.h"

enum { SLOT_BYTES = 128, SLOTS = 4096 }; /* a worker has two or three at once */

typedef union slot {
    union slot *next; /* while it is free */
    alignas(16) unsigned char bytes[SLOT_BYTES];
} slot;

static struct {
    lock mu;
    slot *free;    /* given back */
    size_t n_used; /* ever: the slots above have never been taken */
    slot slots[SLOTS];
} reserve = {.mu = LOCK_INITIALIZER(LOCK_TLS_RESERVE)};

static bool is_slot(const void *p)
{
    return (uintptr_t)p >= (uintptr_t)reserve.slots &&
           (uintptr_t)p < (uintptr_t)(reserve.slots + SLOTS);
}

static void *take(size_t bytes)
{
    if (bytes > SLOT_BYTES) return NULL;
    lock_take(&reserve.mu);
    slot *s = reserve.free;
    if (s)
        reserve.free = s->next;
    else if (reserve.n_used < SLOTS)
        s = &reserve.slots[reserve.n_used++];
    lock_release(&reserve.mu);
    return s;
}

static void give_back(slot *s)
{
    lock_take(&reserve.mu);
    s->next = reserve.free;
    reserve.free = s;
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
    if (is_slot(p))
        give_back(p);
    else
        free(p);
}

static void *change(void *p, size_t bytes, const char *file, int line)
{
    if (!p) return get(bytes, file, line);
    if (!is_slot(p)) return realloc(p, bytes);
    if (bytes <= SLOT_BYTES) return p;
    void *more = malloc(bytes);
    if (!more) return NULL;
    memcpy(more, p, SLOT_BYTES);
    give_back(p);
    return more;
}

bool tls_reserve_install(void)
{
    return CRYPTO_set_mem_functions(get, change, put) == 1;
}
