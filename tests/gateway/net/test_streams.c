/* test_streams.c -- streams of HTTP/2 in a lobby, with the test's own clock and in its own thread.
 *
 * The client is nghttp2's, on a TLS socket of the same process.  Client and lobby take turns, so
 * each request, answer and deadline comes in the order that the test says.
 */
#include <fcntl.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <check.h>
#include <openssl/ssl.h>

#include "gateway/net/devcert.h"
#include "gateway/net/h2.h"
#include "gateway/net/listen.h"
#include "gateway/net/lobby.h"
#include "gateway/net/tls.h"
#include "gateway/net/visitor.h"
#include "tests/gateway/loopback.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum {
    WORKERS = 2,
    QUEUE = 1,
    PATIENCE = 2000,
    TOTAL = 12,
    PER_CLIENT = 6,
    IDS = 64,
    BIG = 150000
};

static char dir[64];
static SSL_CTX *server_ctx, *client_ctx;
static lobby *gate;
static peers *who;
static int port;
static int64_t now;
static _Atomic uint64_t n_connections, n_total, n_client, n_http2, n_floods;
static atomic_bool offered;

/* ---- the lobby's owner ---------------------------------------------------------------- */

static int64_t clock_of_test(void)
{
    return now;
}

static SSL_CTX *context(void *arg)
{
    (void)arg;
    (void)SSL_CTX_up_ref(server_ctx);
    return server_ctx;
}

static bool decided(const char *bytes, int n)
{
    return memmem(bytes, (size_t)n, "\r\n\r\n", 4);
}

static size_t refuse(void *arg, const struct sockaddr_storage *from, lobby_refusal why, char *out)
{
    (void)arg;
    (void)from;
    return (size_t)sprintf(out, "HTTP/1.1 %d Refused\r\nConnection: close\r\n\r\nno",
                           500 + (int)why);
}

static void setup(void)
{
    err e;
    char cert[96], key[96], address[32];
    int fd[LISTEN_MAX], n = 0;
    tmpdir_make(dir);
    snprintf(cert, sizeof(cert), "%s/cert.pem", dir);
    snprintf(key, sizeof(key), "%s/key.pem", dir);
    ck_assert_msg(!devcert_write(cert, key, &e), "%s", e.msg);
    server_ctx = tls_context_make(&(tls_files){cert, key, NULL}, false, &e);
    client_ctx = SSL_CTX_new(TLS_client_method());
    ck_assert(server_ctx && client_ctx);
    ck_assert_int_eq(SSL_CTX_set_alpn_protos(client_ctx, (const unsigned char *)"\x02h2", 3), 0);
    now = 1000000;
    offered = true;
    who = peers_create(TOTAL, PER_CLIENT);
    lobby_options o = {.peers = who,
                       .n_connections = &n_connections,
                       .n_refused_total = &n_total,
                       .n_refused_per_client = &n_client,
                       .http2 = &offered,
                       .n_http2 = &n_http2,
                       .n_http2_floods = &n_floods,
                       .n_workers = WORKERS,
                       .n_queue = QUEUE,
                       .now_us = clock_of_test,
                       .context = context,
                       .decided = decided,
                       .refuse = refuse};
    ck_assert_msg(!lobby_create(&gate, &o, &e), "%s", e.msg);
    port = loopback_free_port();
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    ck_assert(!listen_open(address, fd, &n, &e) && !lobby_listen(gate, fd[0], true, &e));
}

static void teardown(void)
{
    lobby_destroy(gate);
    ck_assert_int_eq(peers_open(who), 0);
    peers_destroy(who);
    SSL_CTX_free(server_ctx);
    SSL_CTX_free(client_ctx);
    tmpdir_remove(dir);
}

/* ---- the client ------------------------------------------------------------------------ */

typedef struct {
    SSL *ssl;
    nghttp2_session *session;
    int status[IDS], bytes[IDS];
    int error[IDS]; /* with which the stream was closed; -1: it was not */
    int away;       /* the code of a GOAWAY; -1: none */
    bool gone;
} client;

static client one;

static int on_header(nghttp2_session *session, const nghttp2_frame *f, const uint8_t *name,
                     size_t n, const uint8_t *value, size_t n_value, uint8_t flags, void *arg)
{
    (void)session;
    (void)n_value;
    (void)flags;
    ck_assert(memcmp(name, "connection", n < 10 ? n : 10) != 0);
    if (n == 7) ((client *)arg)->status[f->hd.stream_id] = atoi((const char *)value);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes,
                   size_t n, void *arg)
{
    (void)session;
    (void)flags;
    (void)bytes;
    ((client *)arg)->bytes[id] += (int)n;
    return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t error, void *arg)
{
    (void)session;
    ((client *)arg)->error[id] = (int)error;
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *f, void *arg)
{
    (void)session;
    if (f->hd.type == NGHTTP2_GOAWAY) ((client *)arg)->away = (int)f->goaway.error_code;
    return 0;
}

/* The client takes and gives what there is, and so does the lobby. */
static void turn(void)
{
    const uint8_t *out;
    uint8_t in[16384];
    ssize_t n;
    while (!one.gone && (n = nghttp2_session_mem_send(one.session, &out)) > 0)
        one.gone = SSL_write(one.ssl, out, (int)n) != n;
    lobby_turn(gate, 1);
    while (!one.gone && (n = SSL_read(one.ssl, in, sizeof(in))) > 0)
        ck_assert_int_eq(nghttp2_session_mem_recv(one.session, in, (size_t)n), n);
    if (!one.gone) one.gone = (SSL_get_shutdown(one.ssl) & SSL_RECEIVED_SHUTDOWN) != 0;
}

static void settle(void)
{
    for (int i = 0; i < 8; i++) turn();
}

/* What must come comes at some time. */
#define UNTIL(what)                                                                \
    do {                                                                           \
        for (int patience = 0; patience < PATIENCE && !(what); patience++) turn(); \
        ck_assert(what);                                                           \
    } while (0)

static void pass(int64_t us)
{
    now += us;
    settle();
}

/* window: of each stream. */
static void dial(uint32_t window)
{
    nghttp2_session_callbacks *cb;
    nghttp2_option *option;
    nghttp2_settings_entry setting = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window};
    int fd = loopback_connect(port);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    memset(&one, 0, sizeof(one));
    memset(one.error, -1, sizeof(one.error));
    one.away = -1;
    one.ssl = SSL_new(client_ctx);
    ck_assert_int_eq(SSL_set_fd(one.ssl, fd), 1);
    for (int i = 0; i < PATIENCE && SSL_connect(one.ssl) != 1; i++) lobby_turn(gate, 1);
    ck_assert_int_eq(SSL_is_init_finished(one.ssl), 1);
    ck_assert_int_eq(nghttp2_session_callbacks_new(&cb), 0);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    ck_assert_int_eq(nghttp2_option_new(&option), 0);
    nghttp2_option_set_no_auto_window_update(option, 1);
    ck_assert_int_eq(nghttp2_session_client_new2(&one.session, cb, &one, option), 0);
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(cb);
    ck_assert_int_eq(nghttp2_submit_settings(one.session, 0, &setting, 1), 0);
    settle();
}

static void hang_up(void)
{
    (void)close(SSL_get_fd(one.ssl));
    one.gone = true;
    UNTIL(n_http2 == 0);
    SSL_free(one.ssl);
    nghttp2_session_del(one.session);
}

#define NV(name, value)                                                                \
    {                                                                                  \
        (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(value), sizeof(name) - 1, \
            sizeof(value) - 1, 0                                                       \
    }

static int32_t ask(void)
{
    const nghttp2_nv nv[] = {NV(":method", "GET"), NV(":scheme", "https"), NV(":path", "/x?y"),
                             NV(":authority", "a"), NV("x-api-key", "k")};
    int32_t id = nghttp2_submit_request(one.session, NULL, nv, 5, NULL, NULL);
    ck_assert(id > 0 && id < IDS);
    settle();
    return id;
}

/* ---- the worker -------------------------------------------------------------------------- */

static visitor *take(void)
{
    static const char text[] = "GET /x?y HTTP/1.1\r\nHost: a\r\nx-api-key: k\r\n\r\n";
    UNTIL(lobby_turn(gate, 0) > 0);
    visitor *v = lobby_take(gate);
    ck_assert(v->is_stream && v->len == (int)sizeof(text) - 1);
    ck_assert_mem_eq(v->buf, text, sizeof(text) - 1);
    return v;
}

/* Writes an answer with a body of n bytes, and returns the stream. */
static void answer(visitor *v, int n, bool cut)
{
    static char body[BIG];
    static const char head[] =
        "HTTP/1.1 200 OK\r\nContent-Type: a\r\nConnection: keep-alive\r\n\r\n";
    ck_assert_int_eq(send(v->fd, head, sizeof(head) - 1, MSG_NOSIGNAL), sizeof(head) - 1);
    if (n) ck_assert_int_eq(send(v->fd, body, (size_t)n, MSG_NOSIGNAL), n);
    v->cut = cut;
    lobby_return(gate, v, false);
    settle();
}

static bool client_is_gone(const visitor *v)
{
    struct pollfd p = {.fd = v->fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP));
}

/* ---- the tests --------------------------------------------------------------------------- */

START_TEST(a_stream_is_answered)
{
    dial(65535);
    int32_t a = ask(), b = ask();
    visitor *v = take(), *w = take();
    answer(w, 100, false); /* in any order */
    answer(v, 0, false);
    UNTIL(one.status[a] == 200 && one.error[a] == NGHTTP2_NO_ERROR && one.bytes[a] == 0);
    UNTIL(one.status[b] == 200 && one.error[b] == NGHTTP2_NO_ERROR && one.bytes[b] == 100);
    ck_assert_uint_eq(n_http2, 1);
    hang_up();
}
END_TEST

START_TEST(a_stream_that_is_cut_is_reset)
{
    dial(65535);
    int32_t id = ask();
    answer(take(), 100, true);
    UNTIL(one.status[id] == 200 && one.error[id] == NGHTTP2_INTERNAL_ERROR);
    id = ask();
    lobby_return(gate, take(), true); /* nothing was answered */
    settle();
    UNTIL(one.status[id] == 0 && one.error[id] == NGHTTP2_INTERNAL_ERROR);
    hang_up();
}
END_TEST

/* Before a request, and between two. */
START_TEST(an_idle_connection_ends)
{
    dial(65535);
    pass(LOBBY_HEAD_US - 1);
    ck_assert_int_eq(one.away, -1);
    pass(1);
    UNTIL(one.away == NGHTTP2_NO_ERROR && one.gone);
    hang_up();
    dial(65535);
    (void)ask();
    visitor *v = take();
    pass(10 * LOBBY_KEPT_US); /* as long as its worker takes */
    ck_assert_int_eq(one.away, -1);
    answer(v, 10, false);
    pass(LOBBY_KEPT_US - 1);
    (void)nghttp2_submit_ping(one.session, 0, NULL);
    settle();
    ck_assert_int_eq(one.away, -1);
    pass(1);
    UNTIL(one.away == NGHTTP2_NO_ERROR && one.gone);
    hang_up();
}
END_TEST

START_TEST(a_request_that_waits_too_long_is_refused)
{
    dial(65535);
    int32_t id[4] = {ask(), ask(), 0, 0};
    visitor *v = take(), *w = take();
    id[2] = ask();
    id[3] = ask(); /* for which the queue has no place */
    UNTIL(one.status[id[3]] == 500 + LOBBY_NO_WORKER && one.error[id[3]] == NGHTTP2_NO_ERROR);
    pass(LOBBY_QUEUE_US - 1);
    ck_assert_int_eq(one.status[id[2]], 0);
    pass(1);
    UNTIL(one.status[id[2]] == 500 + LOBBY_NO_WORKER && one.bytes[id[2]] == 2);
    answer(v, 1, false);
    answer(w, 1, false);
    UNTIL(one.bytes[id[0]] == 1 && one.bytes[id[1]] == 1);
    hang_up();
}
END_TEST

/* The pair's buffer has it, for a while. */
START_TEST(an_answer_that_is_not_read_is_dropped)
{
    dial(1000);
    int32_t id = ask();
    answer(take(), BIG, false);
    UNTIL(one.bytes[id] == 1000);
    pass(LOBBY_KEPT_US - 1);
    ck_assert_int_eq(one.error[id], -1);
    pass(1);
    UNTIL(one.error[id] == NGHTTP2_INTERNAL_ERROR);
    hang_up();
}
END_TEST

START_TEST(the_oldest_unread_answer_makes_room)
{
    int32_t id[2 * (WORKERS + QUEUE) + 1];
    peers_limit(who, 0, 0);
    dial(10);
    for (int i = 0; i < 2 * (WORKERS + QUEUE); i++) {
        id[i] = ask();
        answer(take(), BIG, false);
    }
    ck_assert_int_eq(one.error[id[0]], -1);
    int32_t last = ask();
    UNTIL(one.error[id[0]] == NGHTTP2_INTERNAL_ERROR);
    ck_assert_int_eq(one.error[id[1]], -1);
    answer(take(), 5, false);
    UNTIL(one.error[last] == NGHTTP2_NO_ERROR);
    hang_up();
}
END_TEST

/* Of six that the address may have, one is the connection with its first stream. */
START_TEST(streams_count)
{
    dial(10);
    for (int i = 0; i < PER_CLIENT; i++) {
        (void)ask();
        answer(take(), BIG, false);
    }
    ck_assert_int_eq(peers_open(who), PER_CLIENT);
    int32_t id = ask();
    UNTIL(one.status[id] == 500 + LOBBY_CLIENT_FULL && n_client == 1);
    hang_up();
    ck_assert_int_eq(peers_open(who), 0);
}
END_TEST

/* What a worker still does counts, though its client has reset it or is gone. */
START_TEST(a_client_that_goes_is_seen_and_counted)
{
    dial(65535);
    (void)ask();
    int32_t id = ask();
    visitor *v = take(), *w = take();
    ck_assert_int_eq(peers_open(who), 2);
    (void)nghttp2_submit_rst_stream(one.session, 0, id, NGHTTP2_CANCEL);
    settle();
    UNTIL(client_is_gone(w));
    ck_assert(!client_is_gone(v));
    ck_assert_int_eq(peers_open(who), 2);
    hang_up();
    ck_assert(client_is_gone(v) && peers_open(who) == 2 && n_connections == 0);
    lobby_return(gate, v, true);
    lobby_return(gate, w, true);
    (void)lobby_turn(gate, 0);
    ck_assert_int_eq(peers_open(who), 0);
}
END_TEST

START_TEST(a_reset_takes_a_request_out_of_the_queue)
{
    dial(65535);
    int32_t id = ask();
    UNTIL(lobby_turn(gate, 0) > 0);
    (void)nghttp2_submit_rst_stream(one.session, 0, id, NGHTTP2_CANCEL);
    UNTIL(lobby_turn(gate, 0) == 0);
    hang_up();
}
END_TEST

START_TEST(a_drain_is_told)
{
    dial(65535);
    int32_t id = ask();
    visitor *v = take();
    lobby_drain(gate);
    UNTIL(one.away == NGHTTP2_NO_ERROR);
    ck_assert(!one.gone);
    answer(v, 10, false);
    UNTIL(one.error[id] == NGHTTP2_NO_ERROR && one.bytes[id] == 10 && one.gone);
    hang_up();
}
END_TEST

START_TEST(a_closed_lobby_refuses_streams)
{
    dial(65535);
    lobby_close(gate);
    int32_t id = ask();
    UNTIL(one.error[id] == NGHTTP2_REFUSED_STREAM);
    hang_up();
}
END_TEST

/* A refusal is written in HTTP/1.1: nobody over a limit gets HTTP/2. */
START_TEST(it_is_offered_where_it_may_be)
{
    offered = false;
    for (int i = 0; i < 2; i++) {
        int fd = loopback_connect(port);
        SSL *ssl = SSL_new(client_ctx);
        ck_assert(fd >= 0 && fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && SSL_set_fd(ssl, fd) == 1);
        for (int k = 0; k < PATIENCE && SSL_connect(ssl) != 1; k++) lobby_turn(gate, 1);
        ck_assert(SSL_is_init_finished(ssl) && !tls_chose_h2(ssl));
        SSL_free(ssl);
        (void)close(fd);
        lobby_turn(gate, 1);
        offered = true;
        peers_limit(who, 0, 1);
        ck_assert_int_eq(peers_enter(who, (peer_id){0x7f000001, 4}),
                         i ? PEER_CLIENT_FULL : PEER_ADMITTED);
    }
    peers_leave(who, (peer_id){0x7f000001, 4});
}
END_TEST

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    Suite *s = suite_create("streams");
    TCase *t = tcase_create("streams");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_stream_is_answered);
    tcase_add_test(t, a_stream_that_is_cut_is_reset);
    tcase_add_test(t, an_idle_connection_ends);
    tcase_add_test(t, a_request_that_waits_too_long_is_refused);
    tcase_add_test(t, an_answer_that_is_not_read_is_dropped);
    tcase_add_test(t, the_oldest_unread_answer_makes_room);
    tcase_add_test(t, streams_count);
    tcase_add_test(t, a_client_that_goes_is_seen_and_counted);
    tcase_add_test(t, a_reset_takes_a_request_out_of_the_queue);
    tcase_add_test(t, a_drain_is_told);
    tcase_add_test(t, a_closed_lobby_refuses_streams);
    tcase_add_test(t, it_is_offered_where_it_may_be);
    suite_add_tcase(s, t);
    return run_suite(s);
}
