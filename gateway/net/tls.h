/* tls.h -- contexts of TLS: a certificate, its rules, whose certificates clients must show.
 *
 * A context is complete when it is made and never changed again; a new
 * certificate is a new context.
 * Threads: any; a context is read by all handshakes that have it.
 */
#ifndef GATEWAY_NET_TLS_H
#define GATEWAY_NET_TLS_H

#include <stdbool.h>
#include <stdint.h>

#include <openssl/ssl.h>

#include "engine/base/err.h"
#include "engine/base/log.h"

/* PEM files; borrowed. */
typedef struct tls_files {
    const char *cert, *key;
    /* Who signs the clients' certificates on the admin plane; NULL: none are asked for. */
    const char *client_ca;
} tls_files;

/* ERR_INPUT: `what`, and why, as OpenSSL's oldest error of this thread says; its errors are
 * cleared. */
err_code tls_error(err *e, const char *what);

/* A context with this certificate, or NULL; `ask`: clients must show one of
 * files->client_ca, if any. */
SSL_CTX *tls_context_make(const tls_files *files, bool ask, err *e);

/* Before a handshake: if the client offers HTTP/2 by ALPN, it gets it; without this call it gets
 * HTTP/1.1. */
void tls_offer_h2(SSL *ssl);
/* After it: which of them. */
bool tls_chose_h2(const SSL *ssl);

/* Until when its certificate is good, in microseconds of the wall clock; 0: unknown. */
int64_t tls_context_expiry(const SSL_CTX *ctx);

/* The same in words, "good until 2027-01-31"; LOG_WARN within the last TLS_EXPIRY_WARN_DAYS,
 * LOG_ERROR when it is over, else LOG_INFO. */
enum { TLS_EXPIRY_WARN_DAYS = 14 };
log_level tls_expiry_text(int64_t expires_wall_us, char *out, size_t cap);

#endif
