/* seal.c -- OpenSSL's AES-256-GCM, a nonce at random for each. */
#include "storage/seal/seal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include <openssl/evp.h>

#include "engine/base/hex.h"

err_code seal_read_key(const char *path, uint8_t key[SEAL_KEY_BYTES], err *e)
{
    char text[2 * SEAL_KEY_BYTES + 16];
    FILE *f = fopen(path, "rbe");
    if (!f) return err_set(e, ERR_NOT_FOUND, "the key file cannot be read");
    size_t n = fread(text, 1, sizeof(text), f);
    (void)fclose(f);
    if (n == SEAL_KEY_BYTES) {
        memcpy(key, text, n);
        return ERR_NONE;
    }
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) && text[n - 1]) n--;
    bool ok = n == 2 * (size_t)SEAL_KEY_BYTES;
    for (int i = 0; ok && i < SEAL_KEY_BYTES; i++) {
        int byte = hex_value(text + 2 * i, text + n, 2);
        ok = byte >= 0;
        key[i] = (uint8_t)byte;
    }
    explicit_bzero(text, sizeof(text));
    return ok ? ERR_NONE
              : err_set(e, ERR_INPUT, "the key file must hold 32 bytes or 64 hexadecimal digits");
}

static bool run_cipher(EVP_CIPHER_CTX *c, const char *label, const uint8_t *in, size_t len,
                       uint8_t *out)
{
    int n = 0, more = 0;
    return len < INT32_MAX &&
           EVP_CipherUpdate(c, NULL, &n, (const uint8_t *)label, (int)strlen(label)) == 1 &&
           (len == 0 || EVP_CipherUpdate(c, out, &n, in, (int)len) == 1) &&
           (len == 0 || (size_t)n == len) && EVP_CipherFinal_ex(c, out + len, &more) == 1;
}

bool seal_close(seal_key key, const char *label, const void *in, size_t len, uint8_t *out)
{
    assert(key && label);
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    bool ok = c && getrandom(out, SEAL_NONCE, 0) == SEAL_NONCE &&
              EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, out, 1) == 1 &&
              run_cipher(c, label, in, len, out + SEAL_NONCE) &&
              EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, SEAL_TAG, out + SEAL_NONCE + len) == 1;
    EVP_CIPHER_CTX_free(c);
    return ok;
}

bool seal_open(seal_key key, const char *label, const uint8_t *in, size_t len, void *out)
{
    assert(key && label);
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    const uint8_t *body = in + SEAL_NONCE;
    bool ok = c && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, in, 0) == 1 &&
              EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, SEAL_TAG,
                                  (void *)(uintptr_t)(body + len)) == 1 &&
              run_cipher(c, label, body, len, out);
    EVP_CIPHER_CTX_free(c);
    return ok;
}
