/* digest.c -- libcrypto's SHA-256.
 *
 * By its old functions: EVP, which it recommends, allocates a context and fetches the algorithm
 * under locks for each digest, and a hash that can fail would have to be refused in a dozen places.
 * Both come to the same assembly.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "storage/digest.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "engine/base/hex.h"

_Static_assert(sizeof(digest_state) == sizeof(SHA256_CTX), "digest_state holds libcrypto's");

static SHA256_CTX *context_of(digest_state *d)
{
    return (SHA256_CTX *)d->own;
}

void digest_bytes(const void *data, size_t len, uint8_t out[DIGEST_BYTES])
{
    digest_state d;
    digest_begin(&d);
    digest_add(&d, data, len);
    digest_end(&d, out);
}

void digest_begin(digest_state *d)
{
    (void)SHA256_Init(context_of(d)); /* none of these three can fail */
}

void digest_add(digest_state *d, const void *data, size_t len)
{
    (void)SHA256_Update(context_of(d), data, len);
}

void digest_end(digest_state *d, uint8_t out[DIGEST_BYTES])
{
    (void)SHA256_Final(out, context_of(d));
}

void digest_hex(const uint8_t in[DIGEST_BYTES], char out[DIGEST_HEX])
{
    hex_write(in, DIGEST_BYTES, out);
    out[2 * DIGEST_BYTES] = 0;
}

bool digest_from_hex(const char *hex, uint8_t out[DIGEST_BYTES])
{
    const char *end = hex + strspn(hex, HEX_DIGITS);
    if (end - hex != DIGEST_HEX - 1 || *end) return false;
    for (int i = 0; i < DIGEST_BYTES; i++) out[i] = (uint8_t)hex_value(hex + 2 * i, end, 2);
    return true;
}

bool digest_same(const void *a, const void *b, size_t len)
{
    assert(a && b && len > 0);
    return CRYPTO_memcmp(a, b, len) == 0;
}

void random_bytes(void *out, size_t len)
{
    uint8_t *p = out;
    while (len > 0) {
        size_t want = len > 256 ? 256 : len; /* never interrupted up to 256 bytes */
        ssize_t n = getrandom(p, want, 0);
        if (n < 0) {
            fprintf(stderr, "digest: getrandom failed\n");
            abort();
        }
        p += n;
        len -= (size_t)n;
    }
}
