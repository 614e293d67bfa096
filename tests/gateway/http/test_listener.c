/* test_listener.c -- a certificate is swapped while clients shake hands; none of them may
 * notice. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "gateway/http/listener.h"
#include "gateway/net/devcert.h"
#include "tests/gateway/loopback.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { CLIENTS = 4, HANDSHAKES = 100 };

static char dir[64], cert[2][96], key[2][96];
static X509 *known[2];
static http_host host;
static listener *gate;
static int port;

static X509 *read_certificate(const char *path)
{
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    X509 *x = PEM_read_X509(f, NULL, NULL, NULL);
    (void)fclose(f);
    ck_assert_ptr_nonnull(x);
    return x;
}

static void setup(void)
{
    err e;
    char address[32];
    tmpdir_make(dir);
    for (int i = 0; i < 2; i++) {
        snprintf(cert[i], sizeof(cert[i]), "%s/cert%d.pem", dir, i);
        snprintf(key[i], sizeof(key[i]), "%s/key%d.pem", dir, i);
        ck_assert_msg(devcert_write(cert[i], key[i], &e) == ERR_NONE, "%s", e.msg);
        ck_assert_int_eq(chmod(cert[i], 0600), 0); /* it is taken as a key, once */
        known[i] = read_certificate(cert[i]);
    }
    port = loopback_free_port();
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    err_code rc = listener_open(&gate, &host, PLANE_INFERENCE, address, CLIENTS + 1,
                                &(tls_files){cert[0], key[0], NULL}, &e);
    ck_assert_msg(rc == ERR_NONE, "%s", e.msg);
}

static void teardown(void)
{
    listener_close(gate);
    for (int i = 0; i < 2; i++) X509_free(known[i]);
    tmpdir_remove(dir);
}

/* One handshake: which certificate was shown; -1: it failed. */
static int shake(SSL_CTX *ctx)
{
    int shown = -1, fd = loopback_connect(port);
    SSL *ssl = SSL_new(ctx);
    if (fd >= 0 && ssl && SSL_set_fd(ssl, fd) == 1 && SSL_connect(ssl) == 1) {
        X509 *x = SSL_get1_peer_certificate(ssl);
        for (int i = 0; i < 2; i++) {
            if (x && X509_cmp(x, known[i]) == 0) shown = i;
        }
        X509_free(x);
        (void)SSL_shutdown(ssl);
    }
    SSL_free(ssl);
    if (fd >= 0) (void)close(fd);
    return shown;
}

static int shown_now(void)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    int shown = shake(ctx);
    SSL_CTX_free(ctx);
    return shown;
}

static atomic_int running, wrong, seen[2];

static void *client(void *arg)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (*(const int *)arg % 2) (void)SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
    for (int i = 0; i < HANDSHAKES; i++) {
        int shown = shake(ctx);
        if (shown < 0)
            atomic_fetch_add(&wrong, 1);
        else
            atomic_fetch_add(&seen[shown], 1);
    }
    SSL_CTX_free(ctx);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

START_TEST(no_handshake_fails_while_certificates_are_swapped)
{
    pthread_t t[CLIENTS];
    int number[CLIENTS];
    err e;
    atomic_store(&running, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        number[i] = i;
        ck_assert_int_eq(pthread_create(&t[i], NULL, client, &number[i]), 0);
    }
    for (int n = 1; atomic_load(&running) > 0; n++) {
        err_code rc = listener_reload(&gate, 1, &(tls_files){cert[n % 2], key[n % 2], NULL}, &e);
        ck_assert_msg(rc == ERR_NONE, "%s", e.msg);
    }
    for (int i = 0; i < CLIENTS; i++) ck_assert_int_eq(pthread_join(t[i], NULL), 0);
    ck_assert_int_eq(atomic_load(&wrong), 0);
    ck_assert_int_eq(atomic_load(&seen[0]) + atomic_load(&seen[1]), CLIENTS * HANDSHAKES);
}
END_TEST

START_TEST(a_bad_pair_changes_nothing)
{
    err e;
    ck_assert_int_eq(shown_now(), 0);
    ck_assert_int_eq(listener_reload(&gate, 1, &(tls_files){cert[1], key[0], NULL}, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.msg, "is not the certificate's") != NULL, "%s", e.msg);
    ck_assert_int_eq(shown_now(), 0);

    EVP_PKEY *rsa = EVP_RSA_gen(2048); /* of another kind than the certificate's */
    char path[96];
    snprintf(path, sizeof(path), "%s/rsa.pem", dir);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(PEM_write_PrivateKey(f, rsa, NULL, NULL, 0, NULL, NULL), 1);
    (void)fclose(f);
    ck_assert_int_eq(chmod(path, 0600), 0);
    EVP_PKEY_free(rsa);
    ck_assert_int_eq(listener_reload(&gate, 1, &(tls_files){cert[1], path, NULL}, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.msg, "is not the certificate's") != NULL, "%s", e.msg);
    ck_assert_int_eq(listener_reload(&gate, 1, &(tls_files){key[1], key[1], NULL}, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.msg, "server.tls_cert") != NULL, "%s", e.msg);
    ck_assert_int_eq(listener_reload(&gate, 1, &(tls_files){cert[1], cert[1], NULL}, &e),
                     ERR_INPUT);
    ck_assert_msg(strstr(e.msg, "can't be used") != NULL, "%s", e.msg);
    ck_assert_int_eq(listener_reload(&gate, 1, &(tls_files){"/nowhere", key[1], NULL}, &e),
                     ERR_INPUT);
    ck_assert_int_eq(shown_now(), 0);
    ck_assert_int_eq(listener_reload(&gate, 1, &(tls_files){cert[1], key[1], NULL}, &e), ERR_NONE);
    ck_assert_int_eq(shown_now(), 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("listener");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, no_handshake_fails_while_certificates_are_swapped);
    tcase_add_test(tc, a_bad_pair_changes_nothing);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
