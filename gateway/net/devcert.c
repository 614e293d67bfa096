/* devcert.c -- makes a certificate for a first trial: ECDSA P-256, by OpenSSL's X509 calls.
 *
 * A file holds the server's certificate and the authority that signed it.  Clients trust the file,
 * and so the authority: it outlives renewals, and a client with an older copy of the file still
 * trusts the server.  Authority and server have one key, as they lie in one folder anyway. */
#include "gateway/net/devcert.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

enum {
    LEAF_S = 397 * 86400, /* longer than that clients and scanners frown at */
    AUTHORITY_S = 3650 * 86400,
    CERTS_MAX = 2, /* of a file */
};

static const char authority[] = "lorad development";
static const char leaf_name[] = "lorad";
static const char hosts[] = "DNS:localhost,IP:127.0.0.1,IP:::1";

/* What a file holds: the server's certificate and its authority.  Up to 0.1 they were one. */
typedef struct certs {
    X509 *at[CERTS_MAX];
    int n;
} certs;

static void free_certs(certs *c)
{
    for (int i = 0; i < c->n; i++) X509_free(c->at[i]);
    c->n = 0;
}

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    if (!ext) return false;
    bool ok = X509_add_ext(cert, ext, -1) == 1;
    X509_EXTENSION_free(ext);
    return ok;
}

static bool set_name(X509_NAME *name, const char *text)
{
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)text, -1, -1,
                                      0) == 1;
}

/* Without extensions and signature; NULL: it could not be made. */
static X509 *make_bare(EVP_PKEY *key, const char *subject, long valid_s)
{
    X509 *cert = X509_new();
    if (!cert) return NULL;
    unsigned char serial[8];
    bool ok = RAND_bytes(serial, sizeof(serial)) == 1;
    uint64_t number = 0;
    for (size_t i = 0; i < sizeof(serial); i++) number = number << 8 | serial[i];
    ok = ok && X509_set_version(cert, 2) == 1 &&
         ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), number >> 1) == 1 &&
         X509_gmtime_adj(X509_getm_notBefore(cert), -300) &&
         X509_gmtime_adj(X509_getm_notAfter(cert), valid_s) && X509_set_pubkey(cert, key) == 1 &&
         set_name(X509_get_subject_name(cert), subject) &&
         set_name(X509_get_issuer_name(cert), authority);
    if (ok) return cert;
    X509_free(cert);
    return NULL;
}

static X509 *make_authority(EVP_PKEY *key)
{
    X509 *cert = make_bare(key, authority, AUTHORITY_S);
    if (cert && add_extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
        add_extension(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign") &&
        add_extension(cert, cert, NID_subject_key_identifier, "hash") &&
        X509_sign(cert, key, EVP_sha256()) > 0)
        return cert;
    X509_free(cert);
    return NULL;
}

/* Of the authority's key, which is the server's. */
static X509 *make_leaf(EVP_PKEY *key, X509 *issuer)
{
    X509 *cert = make_bare(key, leaf_name, LEAF_S);
    if (cert && add_extension(cert, issuer, NID_subject_alt_name, hosts) &&
        add_extension(cert, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
        add_extension(cert, issuer, NID_key_usage, "critical,digitalSignature") &&
        add_extension(cert, issuer, NID_ext_key_usage, "serverAuth") &&
        add_extension(cert, issuer, NID_subject_key_identifier, "hash") &&
        add_extension(cert, issuer, NID_authority_key_identifier, "keyid:always") &&
        X509_sign(cert, key, EVP_sha256()) > 0)
        return cert;
    X509_free(cert);
    return NULL;
}

static bool outlives(const X509 *cert, int64_t seconds)
{
    int days, rest;
    return ASN1_TIME_diff(&days, &rest, NULL, X509_get0_notAfter(cert)) == 1 &&
           days * INT64_C(86400) + rest >= seconds;
}

/* Whether a certificate is our authority's own. */
static bool is_authority(X509 *cert)
{
    char name[64] = "";
    X509_NAME *n = X509_get_subject_name(cert);
    return X509_NAME_cmp(n, X509_get_issuer_name(cert)) == 0 &&
           X509_NAME_get_text_by_NID(n, NID_commonName, name, sizeof(name)) > 0 &&
           strcmp(name, authority) == 0;
}

/* A new certificate, with the authority of `old` as long as that one lasts.  False: it could not be
 * made. */
static bool make_certs(EVP_PKEY *key, const certs *old, certs *out)
{
    X509 *kept = NULL;
    for (int i = 0; i < old->n; i++) {
        if (is_authority(old->at[i]) && outlives(old->at[i], LEAF_S)) kept = old->at[i];
    }
    X509 *issuer = kept && X509_up_ref(kept) ? kept : make_authority(key);
    X509 *leaf = issuer ? make_leaf(key, issuer) : NULL;
    *out = (certs){.at = {leaf, issuer}, .n = CERTS_MAX};
    return leaf != NULL;
}

static bool write_certs(FILE *f, const certs *c)
{
    for (int i = 0; i < c->n; i++) {
        if (PEM_write_X509(f, c->at[i]) != 1) return false;
    }
    return true;
}

static FILE *create(const char *path, mode_t mode, err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (f) return f;
    (void)err_set(e, errno == EEXIST ? ERR_EXISTS : ERR_IO, "%s: %s", path, strerror(errno));
    if (fd >= 0) (void)close(fd);
    return NULL;
}

err_code devcert_write(const char *cert_path, const char *key_path, err *e)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    certs made = {.n = 0}, none = {.n = 0};
    err_code rc = key && make_certs(key, &none, &made)
                      ? ERR_NONE
                      : err_set(e, ERR_INTERNAL, "the certificate could not be made");
    FILE *kf = rc ? NULL : create(key_path, 0600, e), *cf = kf ? create(cert_path, 0644, e) : NULL;
    if (!rc && (!kf || !cf)) rc = e->code;
    if (!rc && (PEM_write_PrivateKey(kf, key, NULL, NULL, 0, NULL, NULL) != 1 ||
                !write_certs(cf, &made))) {
        rc = err_set(e, ERR_IO, "the certificate could not be written");
    }
    if (kf && fclose(kf) != 0 && !rc) rc = err_set(e, ERR_IO, "the key could not be written");
    if (cf && fclose(cf) != 0 && !rc)
        rc = err_set(e, ERR_IO, "the certificate could not be written");
    free_certs(&made);
    EVP_PKEY_free(key);
    return rc;
}

static void read_certs(const char *path, certs *out)
{
    FILE *f = fopen(path, "r");
    *out = (certs){.n = 0};
    while (f && out->n < CERTS_MAX) {
        X509 *cert = PEM_read_X509(f, NULL, NULL, NULL);
        if (!cert) break;
        out->at[out->n++] = cert;
    }
    if (f) (void)fclose(f);
}

static EVP_PKEY *read_key(const char *path)
{
    FILE *f = fopen(path, "r");
    EVP_PKEY *key = f ? PEM_read_PrivateKey(f, NULL, NULL, NULL) : NULL;
    if (f) (void)fclose(f);
    return key;
}

/* Of our authority: the authority itself, or a certificate that it comes with. */
static bool is_ours(const certs *c)
{
    return is_authority(c->at[0]) || (c->n > 1 && is_authority(c->at[1]) &&
                                      X509_verify(c->at[0], X509_get0_pubkey(c->at[1])) == 1);
}

/* Beside the old one, then in its place: whoever reads sees one or the other. */
static err_code replace_certs(const char *path, const certs *c, err *e)
{
    char part[PATH_MAX];
    int n = snprintf(part, sizeof(part), "%s.new", path);
    if (n < 0 || (size_t)n >= sizeof(part))
        return err_set(e, ERR_INPUT, "the path of the certificate is too long");
    (void)unlink(part);
    FILE *f = create(part, 0644, e);
    if (!f) return e->code;
    bool ok = write_certs(f, c) && fflush(f) == 0 && fsync(fileno(f)) == 0;
    ok = fclose(f) == 0 && ok && rename(part, path) == 0;
    if (ok) return ERR_NONE;
    (void)unlink(part);
    return err_set(e, ERR_IO, "%s could not be written", path);
}

err_code devcert_renew(const char *cert_path, const char *key_path, err *e)
{
    err_code rc = ERR_NONE;
    certs old, made = {.n = 0};
    EVP_PKEY *key = read_key(key_path);
    read_certs(cert_path, &old);
    if (!old.n || !key)
        rc = err_set(e, ERR_NOT_FOUND, "%s could not be read", old.n ? key_path : cert_path);
    else if (!is_ours(&old))
        rc = err_set(e, ERR_CONFLICT, "%s was not made by lorad init: renew it where it comes from",
                     cert_path);
    else if (X509_check_private_key(old.at[0], key) != 1)
        rc = err_set(e, ERR_CONFLICT, "%s is not the key of %s", key_path, cert_path);
    else if (!make_certs(key, &old, &made))
        rc = err_set(e, ERR_INTERNAL, "the certificate could not be made");
    if (!rc) rc = replace_certs(cert_path, &made, e);
    free_certs(&old);
    free_certs(&made);
    EVP_PKEY_free(key);
    return rc;
}
