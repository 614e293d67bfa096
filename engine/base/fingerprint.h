/* fingerprint.h -- 64 bits that tell whether two long pieces of data are the same, at memory speed.
 *
 * Not cryptographic: who makes two pieces collide on purpose deceives only himself, so use it for
 * nothing that others rely on.
 */
#ifndef ENGINE_BASE_FINGERPRINT_H
#define ENGINE_BASE_FINGERPRINT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/hash.h"

typedef struct fingerprint {
    uint64_t lane[4], bytes;
} fingerprint;

static inline void fingerprint_begin(fingerprint *f)
{
    *f = (fingerprint){.lane = {0x243f6a8885a308d3u, 0x13198a2e03707344u, 0xa4093822299f31d0u,
                                0x082efa98ec4e6c89u}};
}

/* Every piece but the last has a multiple of 32 bytes. */
static inline void fingerprint_add(fingerprint *f, const void *data, size_t n)
{
    const char *p = data;
    f->bytes += n;
    while (n > 0) {
        uint64_t w[4] = {0};
        size_t now = n < sizeof w ? n : sizeof w;
        memcpy(w, p, now);
        for (int i = 0; i < 4; i++) {
            uint64_t v = (f->lane[i] ^ w[i]) * HASH_GOLDEN;
            f->lane[i] = v ^ v >> 29;
        }
        p += now;
        n -= now;
    }
}

/* Never 0. */
static inline uint64_t fingerprint_end(const fingerprint *f)
{
    uint64_t v = f->bytes;
    for (int i = 0; i < 4; i++) v = (v ^ f->lane[i]) * 0xbf58476d1ce4e5b9u ^ v >> 31;
    return v != 0 ? v : 1;
}

#endif
