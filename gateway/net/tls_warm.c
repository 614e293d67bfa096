/* tls_warm.c -- a client and a server of OpenSSL that write into each other's memory. */
#include "gateway/net/tls_warm.h"

enum { TURNS_MAX = 20 }; /* a handshake takes three or four */

/* Both ends of one connection; frees what it is given. */
static bool shake(SSL *server, SSL *client)
{
    BIO *a = NULL, *b = NULL;
    bool done = server && client && BIO_new_bio_pair(&a, 0, &b, 0) == 1;
    if (done) {
        SSL_set_bio(server, a, a); /* each owns its half */
        SSL_set_bio(client, b, b);
        SSL_set_accept_state(server);
        SSL_set_connect_state(client);
        bool here = false, there = false;
        char byte = 0;
        for (int i = 0; i < TURNS_MAX && !(here && there); i++) {
            there = SSL_do_handshake(client) == 1;
            here = SSL_do_handshake(server) == 1;
        }
        /* Data, too: the first record takes the tickets with it. */
        done = here && there && SSL_write(server, &byte, 1) == 1 && SSL_read(client, &byte, 1) == 1;
    }
    SSL_free(client);
    SSL_free(server);
    return done;
}

err_code tls_warm_up(const tls_files *files, err *e)
{
    SSL_CTX *ours = tls_context_make(files, false, e);
    if (!ours) return ERR_INPUT;
    SSL_CTX *theirs = SSL_CTX_new(TLS_client_method());
    bool done = theirs;
    for (int version = TLS1_3_VERSION; done && version >= TLS1_2_VERSION; version--) {
        done = SSL_CTX_set_max_proto_version(theirs, version) == 1 &&
               shake(SSL_new(ours), SSL_new(theirs));
    }
    SSL_CTX_free(theirs);
    SSL_CTX_free(ours);
    return done ? ERR_NONE : tls_error(e, "a first handshake of TLS fails with this certificate");
}
