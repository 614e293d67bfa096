/* tls.c -- makes contexts of OpenSSL from PEM files. */
#include "gateway/net/tls.h"

#include <openssl/err.h>
#include <openssl/x509err.h>

#include "engine/base/clock.h"
#include "engine/base/private_file.h"

static const char ciphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20"; /* TLS 1.2; 1.3 has only good ones */

err_code tls_error(err *e, const char *what)
{
    char why[160];
    ERR_error_string_n(ERR_get_error(), why, sizeof(why));
    ERR_clear_error();
    return err_set(e, ERR_INPUT, "%s: %.150s", what, why);
}

static err_code load_pair(SSL_CTX *ctx, const char *cert_path, const char *key_path, err *e)
{
    err_code rc = private_file_check(key_path, "the private key (server.tls_key)", e);
    if (rc) return rc;
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, cert_path) != 1) {
        return tls_error(e, "the certificate (server.tls_cert) can't be used");
    }
    if (SSL_CTX_use_PrivateKey_file(ctx, key_path, SSL_FILETYPE_PEM) != 1) {
        /* This compares with the certificate, too. */
        bool foreign = ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH ||
                       ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_TYPE_MISMATCH;
        return tls_error(e, foreign ? "the private key (server.tls_key) is not the certificate's"
                                    : "the private key (server.tls_key) can't be used");
    }
    if (SSL_CTX_check_private_key(ctx) != 1) {
        return tls_error(e, "the private key (server.tls_key) is not the certificate's");
    }
    return ERR_NONE;
}

/* Whoever can't show a certificate that one of these has signed gets no further than TLS. */
static err_code ask_clients(SSL_CTX *ctx, const char *ca_path, err *e)
{
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(ca_path);
    if (!names || SSL_CTX_load_verify_locations(ctx, ca_path, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return tls_error(e, "the clients' authorities (admin.client_ca) can't be used");
    }
    SSL_CTX_set_client_CA_list(ctx, names); /* owns them */
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return ERR_NONE;
}

void tls_context_rules(SSL_CTX *ctx, tls_info_fn *info)
{
    (void)SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    /* A read that ends without TLS's farewell must not void the connection: after a
     * deadline has shut it down for reading, the 408 is still to be written.  HTTP's own
     * framing tells what is whole. */
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                       SSL_OP_CIPHER_SERVER_PREFERENCE |
                                       SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CLEANSE_PLAINTEXT);
    (void)SSL_CTX_set_cipher_list(ctx, ciphers);
    SSL_CTX_set_info_callback(ctx, info);
}

int64_t tls_context_expiry(const SSL_CTX *ctx)
{
    int days, seconds;
    const X509 *cert = SSL_CTX_get0_certificate(ctx);
    if (!cert || !ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(cert))) return 0;
    return clock_wall_us() + (days * INT64_C(86400) + seconds) * 1000000;
}

log_level tls_expiry_text(int64_t expires_wall_us, char *out, size_t cap)
{
    const int64_t day = 86400 * INT64_C(1000000);
    int64_t left = expires_wall_us - clock_wall_us();
    time_t at = (time_t)(expires_wall_us / 1000000);
    struct tm tm;
    char date[32];
    (void)gmtime_r(&at, &tm);
    (void)strftime(date, sizeof(date), "%Y-%m-%d", &tm);
    if (expires_wall_us == 0) {
        snprintf(out, cap, "good for an unknown time");
        return LOG_WARN;
    }
    if (left <= 0) {
        snprintf(out, cap, "expired on %s: clients refuse it", date);
        return LOG_ERROR;
    }
    if (left > TLS_EXPIRY_WARN_DAYS * day) {
        snprintf(out, cap, "good until %s", date);
        return LOG_INFO;
    }
    snprintf(out, cap, "good until %s, %lld days from now: renew it", date,
             (long long)(left / day));
    return LOG_WARN;
}

SSL_CTX *tls_context_make(const tls_files *files, bool ask, tls_info_fn *info, err *e)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) {
        (void)tls_error(e, "TLS");
        return NULL;
    }
    tls_context_rules(ctx, info);
    if (load_pair(ctx, files->cert, files->key, e) ||
        (ask && files->client_ca && ask_clients(ctx, files->client_ca, e))) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    return ctx;
}
