/* digest.h -- SHA-256, hexadecimal, constant-time comparison and random bytes.
 *
 * A thin cover over libcrypto, so that the rest of the tree names one hash in one way.  Nothing
 * here allocates, so nothing here can fail.
 * Threads: any thread; a streaming digest belongs to its owner.
 */
#ifndef STORAGE_DIGEST_H
#define STORAGE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DIGEST_BYTES = 32, DIGEST_HEX = 65 /* with the NUL */ };

/* One-shot SHA-256. */
void digest_bytes(const void *data, size_t len, uint8_t out[DIGEST_BYTES]);

/* Streaming SHA-256: begin, add ..., end.  One that nobody wants is just forgotten. */
typedef struct digest_state {
    uint32_t own[28]; /* private: libcrypto's context */
} digest_state;

/* Streaming: the digest of all bytes that were added, in order; pieces may have any size. */
void digest_begin(digest_state *d);

/* May be called any number of times between digest_begin() and digest_end(). */
void digest_add(digest_state *d, const void *data, size_t len);

/* Writes the digest; the state must not be used again without digest_begin(). */
void digest_end(digest_state *d, uint8_t out[DIGEST_BYTES]);

/* 64 lower-case digits and a NUL. */
void digest_hex(const uint8_t in[DIGEST_BYTES], char out[DIGEST_HEX]);
/* Exactly 64 lower-case digits, or false. */
bool digest_from_hex(const char *hex, uint8_t out[DIGEST_BYTES]);

/* Takes the same time wherever the first difference lies. */
bool digest_same(const void *a, const void *b, size_t len);

/* Bytes nobody can guess.  Aborts if the system has none: nothing safe can be done then. */
void random_bytes(void *out, size_t len);

#endif
