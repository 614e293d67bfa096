/* digest.c -- libcrypto's SHA-256.
 *
 * By its old functions: EVP, which it recommends, allocates a context and fetches the algorithm under
 * locks for each digest, and a hash that can fail would have to be refused in a dozen places.  Both
 * come to the same assembly.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "storage/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/sha.h>

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
    static const char hex[] = "0123456789abcdef";
    for (int i = 0; i < DIGEST_BYTES; i++) {
        out[2 * i] = hex[in[i] >> 4];
        out[2 * i + 1] = hex[in[i] & 15];
    }
    out[2 * DIGEST_BYTES] = 0;
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

bool digest_from_hex(const char *hex, uint8_t out[DIGEST_BYTES])
{
    for (int i = 0; i < DIGEST_BYTES; i++) {
        int hi = nibble(hex[2 * i]);
        int lo = hi < 0 ? -1 : nibble(hex[2 * i + 1]);
        if (lo < 0) return false;
        out[i] = (uint8_t)(hi << 4 | lo);
    }
    return hex[2 * DIGEST_BYTES] == 0;
}

bool digest_same(const void *a, const void *b, size_t len)
{
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
