/* tls.c -- OpenSSL contexts from PEM files, and the rules that all listeners share.
 *
 *   TLS 1.2 (ECDHE with AES-GCM or ChaCha20 only) and 1.3; no renegotiation, no compression
 *   ALPN: h2 if offered to this connection (tls_offer_h2()), else http/1.1
 *   sessions: tickets only, no server-side cache; none at all with client certificates, so each
 *   handshake verifies one
 *   memory: an idle connection holds no buffers; plain text is wiped
 *
 * SSL_OP_IGNORE_UNEXPECTED_EOF: after a deadline has shut the socket down for reading, the 408 must
 * still be written. HTTP's own framing says what is complete.
 *
 * A context never changes after tls_context_make(); a reload makes a new one
 * (gateway/http/listener.c). The key file must not be readable by others (private_file_check()).
 */
#include "gateway/net/tls.h"

#include <string.h>

#include <openssl/err.h>
#include <openssl/x509err.h>

#include "engine/base/clock.h"
#include "engine/base/private_file.h"

static const char ciphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20"; /* for TLS 1.2; all ciphers of 1.3
                                                              * are acceptable */

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
        /* OpenSSL also compares it with the certificate here. */
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

/* Clients must present a certificate signed by one of these authorities. */
static err_code ask_clients(SSL_CTX *ctx, const char *ca_path, err *e)
{
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(ca_path);
    if (!names || SSL_CTX_load_verify_locations(ctx, ca_path, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return tls_error(e, "the clients' authorities (admin.client_ca) can't be used");
    }
    SSL_CTX_set_client_CA_list(ctx, names); /* owns them */
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    /* No session is resumed: every handshake verifies a certificate. */
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET);
    (void)SSL_CTX_set_num_tickets(ctx, 0);
    return ERR_NONE;
}

/* ------------------------------------------------------------------------------- ALPN -- */

static const unsigned char h2[] = "\x02h2", http1[] = "\x08http/1.1";

/* A list of length-prefixed names (RFC 7301). */
static const unsigned char *find_name(const unsigned char *list, unsigned n,
                                      const unsigned char *wanted)
{
    for (unsigned i = 0; i < n && list[i] < n - i; i += 1U + list[i]) {
        if (list[i] == wanted[0] && memcmp(list + i + 1, wanted + 1, wanted[0]) == 0)
            return list + i;
    }
    return NULL;
}

static int choose(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                  const unsigned char *offered, unsigned n, void *ignored)
{
    (void)ignored;
    const unsigned char *name = SSL_get_app_data(ssl) ? find_name(offered, n, h2) : NULL;
    if (!name) name = find_name(offered, n, http1);
    if (!name) return SSL_TLSEXT_ERR_NOACK; /* as without ALPN: HTTP/1.1 */
    *out = name + 1;
    *out_len = *name;
    return SSL_TLSEXT_ERR_OK;
}

void tls_offer_h2(SSL *ssl)
{
    static char yes;
    (void)SSL_set_app_data(ssl, &yes);
}

bool tls_chose_h2(const SSL *ssl)
{
    const unsigned char *name;
    unsigned n;
    SSL_get0_alpn_selected(ssl, &name, &n);
    return n == h2[0] && memcmp(name, h2 + 1, n) == 0;
}

static void set_rules(SSL_CTX *ctx)
{
    SSL_CTX_set_alpn_select_cb(ctx, choose, NULL);
    (void)SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    /* A read that ends without TLS's farewell must not void the connection: after a
     * deadline has shut it down for reading, the 408 is still to be written.  HTTP's own
     * framing tells what is whole. */
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                       SSL_OP_CIPHER_SERVER_PREFERENCE |
                                       SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CLEANSE_PLAINTEXT);
    (void)SSL_CTX_set_cipher_list(ctx, ciphers);
    /* An idle connection holds no buffers, and tickets alone resume sessions: no cache grows. */
    (void)SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    (void)SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
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

SSL_CTX *tls_context_make(const tls_files *files, bool ask, err *e)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) {
        (void)tls_error(e, "TLS");
        return NULL;
    }
    set_rules(ctx);
    if (load_pair(ctx, files->cert, files->key, e) ||
        (ask && files->client_ca && ask_clients(ctx, files->client_ca, e))) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    return ctx;
}
