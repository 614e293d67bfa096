/* seal.h -- bytes of tenants' on the disk, encrypted with the operator's key (AES-256-GCM).
 *
 * Sealed bytes are a nonce of 12, the ciphertext, a tag of 16.  They open only under the label that
 * they were sealed with: whose they are, and where they belong.
 *
 * Threads: any.
 */
#ifndef STORAGE_SEAL_SEAL_H
#define STORAGE_SEAL_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

enum { SEAL_KEY_BYTES = 32, SEAL_NONCE = 12, SEAL_TAG = 16, SEAL_BYTES = SEAL_NONCE + SEAL_TAG };

/* key [SEAL_KEY_BYTES]; NULL: nothing is sealed. */
typedef const uint8_t *seal_key;

/* Reads a key file: 32 bytes, or 64 hexadecimal digits and white space behind them.  ERR_INPUT,
 * ERR_NOT_FOUND. */
err_code seal_read_key(const char *path, uint8_t key[SEAL_KEY_BYTES], err *e);

/* out [len + SEAL_BYTES]; len below 2 GiB.  False: there is no memory, or no randomness. */
bool seal_close(seal_key key, const char *label, const void *in, size_t len, uint8_t *out);
/* in [len + SEAL_BYTES], out [len].  False: another key or label, or they were changed. */
bool seal_open(seal_key key, const char *label, const uint8_t *in, size_t len, void *out);

#endif
