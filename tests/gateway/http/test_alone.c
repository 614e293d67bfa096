/* test_alone.c -- HTTP without the rest of the server: a host of this test's own
 * behind a real TLS listener.
 *
 * The link line proves that gateway/http/ needs no more than its http_host; the tests
 * talk to it over a socket.
 */
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <check.h>
#include <openssl/ssl.h>

#include "gateway/http/listener.h"
#include "gateway/net/devcert.h"
#include "tests/gateway/loopback.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { WORKERS = 3, PATIENCE_S = 60 };

/* What a handler finds as x->app is the host's own affair. */
struct service {
    atomic_int answered;
    atomic_ullong last_id;
};

static char dir[64], cert[96], key[96];
static struct service own;
static http_host host;
static listener *gate;
static int port;
static SSL_CTX *client_ctx;
static sem_t gone_on; /* what "/wait" waits for */

/* ---- the server's side -------------------------------------------------------------------- */

static uint64_t next_id(void *app)
{
    struct service *s = app;
    return atomic_fetch_add(&s->last_id, 1) + 1;
}

/* Echoes a body; "/json" reads JSON, "/silent" forgets to answer, "/stream" answers in pieces. */
static void answer(exchange *x)
{
    const char *text;
    const cJSON *tree;
    size_t len;
    atomic_fetch_add(&own.answered, 1);
    exchange_note(x, "path_again", "%s", x->path);
    if (strcmp(x->path, "/silent") == 0) return;
    if (strcmp(x->path, "/wait") == 0) (void)sem_wait(&gone_on);
    if (strcmp(x->path, "/json") == 0) {
        if (exchange_read_json(x, &tree)) exchange_reply(x, 200, "application/json", "{}", 2);
    } else if (strcmp(x->path, "/stream") == 0) {
        bool on = exchange_stream_begin(x, "text/event-stream");
        for (int i = 0; on && i < 3; i++) on = exchange_stream_write(x, "data: x\n\n", 9);
        exchange_stream_end(x);
    } else if (exchange_read_body(x, 1000, &text, &len)) {
        exchange_add_header(x, "x-path", "%s", x->path);
        exchange_reply(x, 200, "text/plain", text, len);
    }
}

static void open_gate(void)
{
    err e;
    char address[32];
    port = loopback_free_port();
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    err_code rc = listener_open(&gate, &host, PLANE_INFERENCE, address, WORKERS,
                                &(tls_files){cert, key, NULL}, &e);
    ck_assert_msg(!rc, "%s", e.msg);
}

static void setup(void)
{
    err e;
    tmpdir_make(dir);
    snprintf(cert, sizeof(cert), "%s/cert.pem", dir);
    snprintf(key, sizeof(key), "%s/key.pem", dir);
    ck_assert_msg(!devcert_write(cert, key, &e), "%s", e.msg);
    memset(&own, 0, sizeof(own)); /* a case may follow another in the same process */
    memset(&host, 0, sizeof(host));
    gate = NULL;
    host.app = &own;
    host.answer = answer;
    host.next_id = next_id;
    host.max_body_bytes = 100;
    host.body_timeout_us = (int64_t)PATIENCE_S * 1000000;
    client_ctx = SSL_CTX_new(TLS_client_method());
}

static void teardown(void)
{
    listener_close(gate);
    SSL_CTX_free(client_ctx);
    tmpdir_remove(dir);
}

/* ---- the client's side -------------------------------------------------------------------- */

typedef struct {
    int fd;
    SSL *ssl;
    char got[8192]; /* what has come and was not looked at yet */
    size_t n;
} client;

static void dial(client *c)
{
    struct timeval patience = {.tv_sec = PATIENCE_S};
    c->n = 0;
    c->fd = loopback_connect(port);
    ck_assert_int_ge(c->fd, 0);
    (void)setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    c->ssl = SSL_new(client_ctx);
    ck_assert_int_eq(SSL_set_fd(c->ssl, c->fd), 1);
    ck_assert_int_eq(SSL_connect(c->ssl), 1);
}

static void hang_up(client *c)
{
    (void)SSL_shutdown(c->ssl);
    SSL_free(c->ssl);
    (void)close(c->fd);
}

static void say(client *c, const char *text)
{
    ck_assert_int_eq(SSL_write(c->ssl, text, (int)strlen(text)), (int)strlen(text));
}

/* False: the connection has ended. */
static bool hear(client *c)
{
    ck_assert_uint_lt(c->n, sizeof(c->got) - 1);
    int n = SSL_read(c->ssl, c->got + c->n, (int)(sizeof(c->got) - 1 - c->n));
    if (n <= 0) return false;
    c->n += (size_t)n;
    c->got[c->n] = 0;
    return true;
}

/* One answer with a Content-Length, whole, in `all`; what follows it stays in c->got. */
static int hear_answer(client *c, char all[8192])
{
    int status = -1;
    const char *end, *length;
    c->got[c->n] = 0;
    while (!(end = strstr(c->got, "\r\n\r\n"))) ck_assert_msg(hear(c), "no head: %s", c->got);
    length = strstr(c->got, "\r\nContent-Length: ");
    ck_assert_msg(length && length < end, "no length: %s", c->got);
    size_t whole = (size_t)(end + 4 - c->got) + strtoul(length + 18, NULL, 10);
    while (c->n < whole) ck_assert_msg(hear(c), "cut short: %s", c->got);
    memcpy(all, c->got, whole);
    all[whole] = 0;
    memmove(c->got, c->got + whole, c->n - whole);
    c->n -= whole;
    ck_assert_int_eq(sscanf(all, "HTTP/1.1 %d ", &status), 1);
    return status;
}

static const char *body_of(const char *all)
{
    return strstr(all, "\r\n\r\n") + 4;
}

/* ---- the tests ---------------------------------------------------------------------------- */

START_TEST(a_request_is_answered)
{
    client c;
    char all[8192];
    open_gate();
    dial(&c);
    say(&c, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ck_assert_int_eq(hear_answer(&c, all), 200);
    ck_assert_str_eq(body_of(all), "");
    ck_assert_ptr_nonnull(strstr(all, "\r\nx-path: /hello\r\n"));
    ck_assert_ptr_nonnull(strstr(all, "\r\nx-request-id: req_0000000000000001\r\n"));
    ck_assert_ptr_nonnull(strstr(all, "\r\nConnection: keep-alive\r\n"));
    ck_assert_uint_eq(atomic_load(&host.count.connections), 1);
    ck_assert_int_gt(atomic_load(&host.cert_expires_wall_us), 0);
    hang_up(&c);
}
END_TEST

START_TEST(a_connection_serves_many_requests)
{
    client c;
    char all[8192], say_it[200];
    open_gate();
    dial(&c);
    for (int i = 0; i < 5; i++) {
        snprintf(say_it, sizeof(say_it),
                 "POST /n HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n%d", i);
        say(&c, say_it);
        ck_assert_int_eq(hear_answer(&c, all), 200);
        ck_assert_int_eq(atoi(body_of(all)), i);
    }
    /* Two at once; the second asks for the end. */
    say(&c, "GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"
            "GET /b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    ck_assert_int_eq(hear_answer(&c, all), 200);
    ck_assert_ptr_nonnull(strstr(all, "\r\nx-path: /a\r\n"));
    ck_assert_int_eq(hear_answer(&c, all), 200);
    ck_assert_ptr_nonnull(strstr(all, "\r\nx-path: /b\r\n"));
    ck_assert_ptr_nonnull(strstr(all, "\r\nConnection: close\r\n"));
    ck_assert(!hear(&c));
    ck_assert_int_eq(atomic_load(&own.answered), 7);
    hang_up(&c);
}
END_TEST

START_TEST(a_body_comes_in_chunks)
{
    client c;
    char all[8192];
    open_gate();
    dial(&c);
    say(&c, "POST /c HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel");
    say(&c, "lo\r\n");
    say(&c, "6;x=y\r\n, all\n\r\n0\r\n\r\n");
    ck_assert_int_eq(hear_answer(&c, all), 200);
    ck_assert_str_eq(body_of(all), "hello, all\n");
    say(&c, "POST /c HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n");
    ck_assert_int_eq(hear_answer(&c, all), 413); /* before it comes */
    ck_assert(!hear(&c));
    hang_up(&c);
}
END_TEST

START_TEST(a_body_has_the_limit_of_the_host)
{
    client c;
    char all[8192], text[400];
    open_gate();
    for (int n = 100; n <= 101; n++) {
        dial(&c);
        int len = snprintf(text, sizeof(text),
                           "POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                           "application/json\r\nContent-Length: %d\r\n\r\n",
                           n);
        snprintf(text + len, sizeof(text) - (size_t)len, "{}%*s", n - 2, "");
        say(&c, text);
        ck_assert_int_eq(hear_answer(&c, all), n == 100 ? 200 : 413);
        hang_up(&c);
    }
}
END_TEST

static const struct {
    const char *head;
    int status;
} refused[] = {
    {"GET / HTTP/1.1\r\n\r\n", 400}, /* no Host */
    {"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505},
    {"GET /\r\n\r\n", 400},
    {"GET / HTTP/1.1\nHost: localhost\n\n", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400},
    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
    {"GET / HTTP/1.1\r\nHost: a\r\nExpect: the-best\r\n\r\n", 417},
};

START_TEST(a_head_is_refused_before_anybody_answers)
{
    client c;
    char all[8192];
    open_gate();
    dial(&c);
    say(&c, refused[_i].head);
    ck_assert_int_eq(hear_answer(&c, all), refused[_i].status);
    ck_assert_ptr_nonnull(strstr(all, "\"error\":{"));
    ck_assert_ptr_nonnull(strstr(all, "\r\nx-request-id: req_"));
    ck_assert(!hear(&c)); /* nobody knows where the next one would begin */
    hang_up(&c);
    ck_assert_int_eq(atomic_load(&own.answered), 0);
    listener_close(gate); /* after which all is counted */
    gate = NULL;
    ck_assert_uint_eq(atomic_load(&host.count.requests[refused[_i].status / 100]), 1);
    ck_assert_uint_eq(atomic_load(&host.count.connections), 0);
}
END_TEST

START_TEST(plain_http_is_told_of_https)
{
    char text[1024];
    size_t n = 0;
    ssize_t got;
    open_gate();
    int fd = loopback_connect(port);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    while ((got = recv(fd, text + n, sizeof(text) - 1 - n, 0)) > 0) n += (size_t)got;
    text[n] = 0;
    ck_assert_ptr_nonnull(strstr(text, "HTTP/1.1 400 "));
    ck_assert_ptr_nonnull(strstr(text, "https_required"));
    (void)close(fd);
}
END_TEST

START_TEST(what_has_no_answer_is_an_error)
{
    client c;
    char all[8192];
    open_gate();
    dial(&c);
    say(&c, "GET /silent HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ck_assert_int_eq(hear_answer(&c, all), 500);
    hang_up(&c);
}
END_TEST

START_TEST(a_stream_comes_in_chunks)
{
    client c;
    open_gate();
    dial(&c);
    say(&c, "GET /stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    while (hear(&c)) {
    }
    ck_assert_ptr_nonnull(strstr(c.got, "\r\nTransfer-Encoding: chunked\r\n"));
    ck_assert_str_eq(strstr(c.got, "\r\n\r\n") + 4,
                     "9\r\ndata: x\n\n\r\n9\r\ndata: x\n\n\r\n9\r\ndata: x\n\n\r\n0\r\n\r\n");
    hang_up(&c);
}
END_TEST

START_TEST(a_drain_ends_each_connection_with_its_answer)
{
    client c;
    char all[8192];
    open_gate();
    dial(&c);
    say(&c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ck_assert_int_eq(hear_answer(&c, all), 200);
    ck_assert_ptr_nonnull(strstr(all, "\r\nConnection: keep-alive\r\n"));
    atomic_store(&host.draining, true);
    say(&c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ck_assert_int_eq(hear_answer(&c, all), 200);
    ck_assert_ptr_nonnull(strstr(all, "\r\nConnection: close\r\n"));
    ck_assert(!hear(&c));
    hang_up(&c);
}
END_TEST

START_TEST(a_client_has_so_many_connections_as_the_host_says)
{
    client first, second;
    char all[8192];
    host.max_connections = 10;
    host.max_connections_per_ip = 1;
    open_gate();
    dial(&first);
    say(&first, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ck_assert_int_eq(hear_answer(&first, all), 200);
    dial(&second);
    say(&second, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ck_assert_int_eq(hear_answer(&second, all), 429);
    ck_assert_ptr_nonnull(strstr(all, "too_many_connections"));
    ck_assert(!hear(&second));
    ck_assert_uint_eq(atomic_load(&host.count.refused_per_ip), 1);
    ck_assert_int_eq(atomic_load(&own.answered), 1);
    hang_up(&second);
    hang_up(&first);
}
END_TEST

START_TEST(beyond_the_workers_and_the_queue_requests_are_refused)
{
    enum { N = WORKERS + LISTENER_QUEUE };
    static client c[N + 1];
    char all[8192];
    ck_assert_int_eq(sem_init(&gone_on, 0, 0), 0);
    open_gate();
    for (int i = 0; i < N; i++) {
        dial(&c[i]);
        say(&c[i], "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    dial(&c[N]);
    say(&c[N], "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ck_assert_int_eq(hear_answer(&c[N], all), 503); /* at once, or after 2 s */
    ck_assert_ptr_nonnull(strstr(all, "\"too_many_streams\""));
    ck_assert_ptr_nonnull(strstr(all, "\r\nretry-after: 1\r\n"));
    ck_assert(!hear(&c[N]));
    for (int i = 0; i < N; i++) ck_assert_int_eq(sem_post(&gone_on), 0);
    int n_answered = 0;
    for (int i = 0; i < N; i++) n_answered += hear_answer(&c[i], all) == 200;
    ck_assert_int_ge(n_answered, WORKERS);
    for (int i = 0; i <= N; i++) hang_up(&c[i]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("alone");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_request_is_answered);
    tcase_add_test(tc, a_connection_serves_many_requests);
    tcase_add_test(tc, a_body_comes_in_chunks);
    tcase_add_test(tc, a_body_has_the_limit_of_the_host);
    tcase_add_loop_test(tc, a_head_is_refused_before_anybody_answers, 0,
                        (int)(sizeof(refused) / sizeof(refused[0])));
    tcase_add_test(tc, plain_http_is_told_of_https);
    tcase_add_test(tc, what_has_no_answer_is_an_error);
    tcase_add_test(tc, a_stream_comes_in_chunks);
    tcase_add_test(tc, a_drain_ends_each_connection_with_its_answer);
    tcase_add_test(tc, a_client_has_so_many_connections_as_the_host_says);
    tcase_add_test(tc, beyond_the_workers_and_the_queue_requests_are_refused);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
