/* devcert.c -- makes a certificate for a first trial: ECDSA P-256, by OpenSSL's X509 calls. */
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

enum { VALID_S = 397 * 86400 }; /* longer than that clients and scanners frown at */

static const char subject[] = "lorad development";

static bool add_extension(X509 *cert, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, cert, cert, NULL, NULL, 0);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    if (!ext) return false;
    bool ok = X509_add_ext(cert, ext, -1) == 1;
    X509_EXTENSION_free(ext);
    return ok;
}

static X509 *make_cert(EVP_PKEY *key)
{
    X509 *cert = X509_new();
    if (!cert) return NULL;
    unsigned char serial[8];
    X509_NAME *name = X509_get_subject_name(cert);
    bool ok = RAND_bytes(serial, sizeof(serial)) == 1;
    uint64_t number = 0;
    for (size_t i = 0; i < sizeof(serial); i++) number = number << 8 | serial[i];
    ok = ok && X509_set_version(cert, 2) == 1 &&
         ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), number >> 1) == 1 &&
         X509_gmtime_adj(X509_getm_notBefore(cert), -300) &&
         X509_gmtime_adj(X509_getm_notAfter(cert), VALID_S) && X509_set_pubkey(cert, key) == 1 &&
         X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)subject, -1,
                                    -1, 0) == 1 &&
         X509_set_issuer_name(cert, name) == 1 &&
         add_extension(cert, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1,IP:::1") &&
         add_extension(cert, NID_basic_constraints, "critical,CA:TRUE") &&
         add_extension(cert, NID_key_usage, "critical,digitalSignature,keyCertSign") &&
         add_extension(cert, NID_ext_key_usage, "serverAuth") &&
         add_extension(cert, NID_subject_key_identifier, "hash") &&
         X509_sign(cert, key, EVP_sha256()) > 0;
    if (ok) return cert;
    X509_free(cert);
    return NULL;
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
    X509 *cert = key ? make_cert(key) : NULL;
    err_code rc = cert ? ERR_NONE : err_set(e, ERR_INTERNAL, "the certificate could not be made");
    FILE *kf = rc ? NULL : create(key_path, 0600, e), *cf = kf ? create(cert_path, 0644, e) : NULL;
    if (!rc && (!kf || !cf)) rc = e->code;
    if (!rc && (PEM_write_PrivateKey(kf, key, NULL, NULL, 0, NULL, NULL) != 1 ||
                PEM_write_X509(cf, cert) != 1)) {
        rc = err_set(e, ERR_IO, "the certificate could not be written");
    }
    if (kf && fclose(kf) != 0 && !rc) rc = err_set(e, ERR_IO, "the key could not be written");
    if (cf && fclose(cf) != 0 && !rc)
        rc = err_set(e, ERR_IO, "the certificate could not be written");
    X509_free(cert);
    EVP_PKEY_free(key);
    return rc;
}

static X509 *read_cert(const char *path)
{
    FILE *f = fopen(path, "r");
    X509 *cert = f ? PEM_read_X509(f, NULL, NULL, NULL) : NULL;
    if (f) (void)fclose(f);
    return cert;
}

static EVP_PKEY *read_key(const char *path)
{
    FILE *f = fopen(path, "r");
    EVP_PKEY *key = f ? PEM_read_PrivateKey(f, NULL, NULL, NULL) : NULL;
    if (f) (void)fclose(f);
    return key;
}

/* Its issuer is itself, and its name is the one that we give. */
static bool is_ours(X509 *cert)
{
    char name[64] = "";
    X509_NAME *n = X509_get_subject_name(cert);
    return X509_NAME_cmp(n, X509_get_issuer_name(cert)) == 0 &&
           X509_NAME_get_text_by_NID(n, NID_commonName, name, sizeof(name)) > 0 &&
           strcmp(name, subject) == 0;
}

/* Beside the old one, then in its place: whoever reads sees one or the other. */
static err_code replace_cert(const char *path, X509 *cert, err *e)
{
    char part[PATH_MAX];
    int n = snprintf(part, sizeof(part), "%s.new", path);
    if (n < 0 || (size_t)n >= sizeof(part))
        return err_set(e, ERR_INPUT, "the path of the certificate is too long");
    (void)unlink(part);
    FILE *f = create(part, 0644, e);
    if (!f) return e->code;
    bool ok = PEM_write_X509(f, cert) == 1 && fflush(f) == 0 && fsync(fileno(f)) == 0;
    ok = fclose(f) == 0 && ok && rename(part, path) == 0;
    if (ok) return ERR_NONE;
    (void)unlink(part);
    return err_set(e, ERR_IO, "%s could not be written", path);
}

err_code devcert_renew(const char *cert_path, const char *key_path, err *e)
{
    err_code rc = ERR_NONE;
    X509 *old = read_cert(cert_path), *cert = NULL;
    EVP_PKEY *key = read_key(key_path);
    if (!old || !key)
        rc = err_set(e, ERR_NOT_FOUND, "%s could not be read", old ? key_path : cert_path);
    else if (!is_ours(old))
        rc = err_set(e, ERR_CONFLICT, "%s was not made by lorad init: renew it where it comes from",
                     cert_path);
    else if (X509_check_private_key(old, key) != 1)
        rc = err_set(e, ERR_CONFLICT, "%s is not the key of %s", key_path, cert_path);
    else if (!(cert = make_cert(key)))
        rc = err_set(e, ERR_INTERNAL, "the certificate could not be made");
    if (!rc) rc = replace_cert(cert_path, cert, e);
    X509_free(old);
    X509_free(cert);
    EVP_PKEY_free(key);
    return rc;
}
