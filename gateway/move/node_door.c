/* node_door.c -- see node_door.h; the fingerprint is as curl has it. */
#include "gateway/move/node_door.h"

#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "gateway/fetch/fetch_headers.h"
#include "storage/digest.h"

enum { CONNECT_MS = 3000, PATH_MAX_BYTES = 64 };

/* "sha256//" and the digest of the public key in Base64. */
static err_code read_pin(const char *path, char pin[DOOR_PIN_MAX + 1], err *e)
{
    uint8_t digest[DIGEST_BYTES];
    unsigned char *der = NULL;
    FILE *f = fopen(path, "re");
    X509 *cert = f ? PEM_read_X509(f, NULL, NULL, NULL) : NULL;
    if (f) (void)fclose(f);
    int n = cert ? i2d_X509_PUBKEY(X509_get_X509_PUBKEY(cert), &der) : -1;
    X509_free(cert);
    if (n < 0) return err_set(e, ERR_INPUT, "server.fleet_address: no certificate in %s", path);
    digest_bytes(der, (size_t)n, digest);
    OPENSSL_free(der);
    strcpy(pin, "sha256//"); /* NOLINT(clang-analyzer-security.insecureAPI.strcpy): it fits */
    (void)EVP_EncodeBlock((unsigned char *)pin + 8, digest, DIGEST_BYTES);
    return ERR_NONE;
}

err_code node_door_write(const char *address, const char *cert_path, const char *word,
                         char out[NODE_DOOR_MAX + 1], err *e)
{
    char pin[DOOR_PIN_MAX + 1];
    err_code rc = read_pin(cert_path, pin, e);
    if (rc) return rc;
    int n = snprintf(out, NODE_DOOR_MAX + 1, "%s %s %s", address, pin, word);
    return n <= NODE_DOOR_MAX ? ERR_NONE
                              : err_set(e, ERR_INPUT, "server.fleet_address is too long");
}

bool node_door_read(const char *text, node_door *out)
{
    _Static_assert(NODE_DOOR_MAX == 511 && DOOR_PIN_MAX == 64 && DOOR_WORD_MAX == 64,
                   "as the format has them");
    *out = (node_door){.url = ""};
    return sscanf(text, "%511s %64s %64s", out->url, out->pin, out->word) == 3 &&
           strncmp(out->url, "https://", 8) == 0 && strncmp(out->pin, "sha256//", 8) == 0;
}

bool node_door_post(CURL *c, const node_door *d, const char *path, const void *body, size_t len,
                    struct curl_slist **headers)
{
    char url[NODE_DOOR_MAX + PATH_MAX_BYTES];
    snprintf(url, sizeof(url), "%s%s", d->url, path);
    if (!fetch_add_header(headers, "Authorization: Bearer %s", d->word) ||
        !fetch_add_header(headers, "Content-Type: application/octet-stream") ||
        !fetch_add_header(headers, "Expect:"))
        return false;
    const struct {
        CURLoption option;
        long value;
    } numbers[] = {{CURLOPT_NOSIGNAL, 1},
                   {CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS},
                   {CURLOPT_SSL_VERIFYPEER, 0}, /* its key is the one that its row names */
                   {CURLOPT_SSL_VERIFYHOST, 0},
                   {CURLOPT_FOLLOWLOCATION, 0},
                   {CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1}, /* no stream waits for another */
                   {CURLOPT_POST, 1},
                   {CURLOPT_POSTFIELDSIZE, (long)len}};
    bool ok = !curl_easy_setopt(c, CURLOPT_URL, url) &&
              !curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "https") &&
              !curl_easy_setopt(c, CURLOPT_PROXY, "") &&
              !curl_easy_setopt(c, CURLOPT_PINNEDPUBLICKEY, d->pin) &&
              !curl_easy_setopt(c, CURLOPT_HTTPHEADER, *headers) &&
              !curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    for (size_t i = 0; ok && i < sizeof(numbers) / sizeof(*numbers); i++)
        ok = !curl_easy_setopt(c, numbers[i].option, numbers[i].value);
    return ok;
}
