/* hash.h -- where things stand in the tables in memory: FNV-1a of bytes, a product of ids.
 *
 * No secret is in either, so whoever may choose the keys can make them collide: tables of
 * strangers' names are bounded.  Contents are told apart by engine/base/fingerprint.h or
 * storage/digest.h, not by this.
 *
 * Threads: any; there is no state.
 */
#ifndef ENGINE_BASE_HASH_H
#define ENGINE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_BASIS 14695981039346656037ULL
/* Files of ours (storage/meter_file.h, lockouts.h) were summed from this number, a digit short of
 * FNV's, since there are any.  It stays, so that every version reads what another wrote. */
#define HASH_BASIS_OF_FILES 1469598103934665603ULL
#define HASH_PRIME          1099511628211ULL
#define HASH_GOLDEN         0x9E3779B97F4A7C15ULL /* 2^64 divided by the golden ratio */

/* FNV-1a, going on from `h`: a basis, or the hash of what stands before. */
static inline uint64_t hash_bytes(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * HASH_PRIME;
    return h;
}

/* Of a text that belongs to somebody (0: to nobody).  All bits are good: a table takes the
 * lowest. */
static inline uint64_t hash_text(uint64_t owner, const char *text, size_t n)
{
    uint64_t h = hash_bytes(HASH_BASIS ^ owner * HASH_GOLDEN, text, n);
    return h ^ h >> 32;
}

/* Of a number; 32 bits, all good. */
static inline size_t hash_id(uint64_t id)
{
    return (size_t)(id * HASH_GOLDEN >> 32);
}

#endif
