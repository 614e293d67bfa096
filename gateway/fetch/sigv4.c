/* sigv4.c -- the chain of HMACs, in the order of the specification.
 *
 *     canonical   method, path, no query, headers in order of their names, SHA-256 of the body
 *     to sign     "AWS4-HMAC-SHA256", time, day/region/s3/aws4_request, SHA-256 of canonical
 *     key         HMAC of "AWS4" + secret over the day, the region, "s3", "aws4_request" in turn
 *     signature   HMAC of the text to sign by that key, in hexadecimal
 *
 * Source: AWS Signature Version 4 (the Authorization header's form). The key of a day is made
 * anew for each call and wiped: calls are far apart, and a cache of it would be one more secret
 * in memory.
 */
#include "gateway/fetch/sigv4.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "engine/base/hex.h"

enum { SHA = 32, HEX = 2 * SHA + 1, CANONICAL_MAX = 8192, KEY_MAX = 256 };

bool sigv4_path(const char *path, char *out, size_t cap)
{
    static const char unreserved[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/";
    size_t n = 0;
    for (; *path; path++) {
        if (n + 4 > cap) return false;
        if (strchr(unreserved, *path))
            out[n++] = *path;
        else
            n += (size_t)snprintf(out + n, 4, "%%%02X", (unsigned char)*path);
    }
    if (n >= cap) return false;
    out[n] = 0;
    return true;
}

static bool keyed(const void *key, size_t key_len, const char *text, unsigned char out[SHA])
{
    unsigned len = SHA;
    return HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, strlen(text), out,
                &len) != NULL;
}

/* The key of a day, a region and the service. */
static bool signing_key(const sigv4_key *k, const char *day, unsigned char out[SHA])
{
    char first[KEY_MAX];
    int n = snprintf(first, sizeof(first), "AWS4%s", k->secret);
    unsigned char a[SHA];
    bool ok = n < (int)sizeof(first) && keyed(first, (size_t)n, day, a) &&
              keyed(a, SHA, k->region, out) && keyed(out, SHA, "s3", a) &&
              keyed(a, SHA, "aws4_request", out);
    OPENSSL_cleanse(first, sizeof(first));
    return ok;
}

static bool sha_hex(const char *text, char out[HEX])
{
    unsigned char sha[SHA];
    unsigned len = SHA;
    if (!EVP_Digest(text, strlen(text), sha, &len, EVP_sha256(), NULL)) return false;
    hex_write(sha, SHA, out);
    out[2 * SHA] = 0;
    return true;
}

bool sigv4_authorize(const sigv4_key *key, const sigv4_call *call, time_t now,
                     char authorization[SIGV4_HEADER_MAX], char date[SIGV4_DATE_MAX])
{
    assert(key->id && key->secret && key->region);
    char text[CANONICAL_MAX], scope[128], hex[HEX], day[9];
    const bool session = key->session && *key->session;
    const char *names = session ? "host;x-amz-content-sha256;x-amz-date;x-amz-security-token"
                                : "host;x-amz-content-sha256;x-amz-date";
    unsigned char day_key[SHA], sha[SHA];
    struct tm t;
    if (!gmtime_r(&now, &t) || !strftime(date, SIGV4_DATE_MAX, "%Y%m%dT%H%M%SZ", &t)) return false;
    snprintf(day, sizeof(day), "%.8s", date);
    int n = snprintf(text, sizeof(text),
                     "%s\n%s\n\nhost:%s\nx-amz-content-sha256:%s\nx-amz-date:%s\n%s%s%s\n%s\n%s",
                     call->method, call->path, call->host, call->payload, date,
                     session ? "x-amz-security-token:" : "", session ? key->session : "",
                     session ? "\n" : "", names, call->payload);
    if (n >= (int)sizeof(text) || !sha_hex(text, hex)) return false;
    n = snprintf(scope, sizeof(scope), "%s/%s/s3/aws4_request", day, key->region);
    if (n >= (int)sizeof(scope)) return false;
    snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope, hex);
    bool ok = signing_key(key, day, day_key) && keyed(day_key, SHA, text, sha);
    OPENSSL_cleanse(day_key, sizeof(day_key));
    if (!ok) return false;
    hex_write(sha, SHA, hex);
    n = snprintf(authorization, SIGV4_HEADER_MAX,
                 "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s", key->id,
                 scope, names, hex);
    return n < SIGV4_HEADER_MAX;
}
