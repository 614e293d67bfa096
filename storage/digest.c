/* digest.c -- OpenSSL's EVP behind five functions. */
#include "storage/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

struct digest_state {
    EVP_MD_CTX *ctx;
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "digest: %s failed\n", what);
    abort();
}

void digest_bytes(const void *data, size_t len, uint8_t out[DIGEST_BYTES])
{
    unsigned n = 0;
    if (EVP_Digest(data, len, out, &n, EVP_sha256(), NULL) != 1 || n != DIGEST_BYTES)
        die("SHA-256");
}

digest_state *digest_begin(void)
{
    digest_state *d = malloc(sizeof *d);
    if (d == NULL) die("malloc");
    d->ctx = EVP_MD_CTX_new();
    if (d->ctx == NULL || EVP_DigestInit_ex(d->ctx, EVP_sha256(), NULL) != 1) die("SHA-256");
    return d;
}

void digest_add(digest_state *d, const void *data, size_t len)
{
    if (EVP_DigestUpdate(d->ctx, data, len) != 1) die("SHA-256");
}

void digest_end(digest_state *d, uint8_t out[DIGEST_BYTES])
{
    unsigned n = 0;
    if (EVP_DigestFinal_ex(d->ctx, out, &n) != 1 || n != DIGEST_BYTES) die("SHA-256");
    digest_drop(d);
}

void digest_drop(digest_state *d)
{
    if (d == NULL) return;
    EVP_MD_CTX_free(d->ctx);
    free(d);
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
        if (n < 0) die("getrandom");
        p += n;
        len -= (size_t)n;
    }
}
