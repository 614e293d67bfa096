/* test_lobby.c -- connections without a request, with the test's own clock and in its own thread.
 *
 * The lobby's turns are made by the test; clients are non-blocking sockets and TLS objects of the
 * same process, which take their steps between two turns.  So each step of a handshake, each byte
 * of a head and each deadline comes in the order that the test says.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <check.h>
#include <openssl/ssl.h>

#include "gateway/net/devcert.h"
#include "gateway/net/listen.h"
#include "gateway/net/lobby.h"
#include "gateway/net/tls.h"
#include "gateway/net/visitor.h"
#include "tests/gateway/loopback.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { WORKERS = 2, QUEUE = 1, HEAD_MAX = 200, PATIENCE = 2000, PER_CLIENT = 4, TOTAL = 6 };

static char dir[64], cert[96], key[96];
static SSL_CTX *server_ctx, *client_ctx;
static lobby *gate;
static peers *who;
static int port, plain_port;
static int64_t now = 1000000;
static _Atomic uint64_t n_connections, n_total, n_client;
static int n_answers, last_why;
static bool plain_allowed;

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

static void (*on_head)(void);

/* A head ends with an empty line, or is too long. */
static bool decided(const char *bytes, int n)
{
    if (on_head) on_head();
    return n >= HEAD_MAX || memmem(bytes, (size_t)n, "\r\n\r\n", 4);
}

static bool takes_plain(void *arg, const struct sockaddr_storage *from)
{
    (void)arg;
    return plain_allowed && from->ss_family == AF_INET;
}

static size_t answer(void *arg, const struct sockaddr_storage *from, lobby_refusal why, char *out)
{
    (void)arg;
    (void)from;
    n_answers++;
    last_why = (int)why;
    return (size_t)sprintf(out, "refused %d\r\n", (int)why);
}

static int open_port(bool tls)
{
    err e;
    char address[32];
    int fd[LISTEN_MAX], n = 0, p = loopback_free_port();
    snprintf(address, sizeof(address), "127.0.0.1:%d", p);
    ck_assert_msg(!listen_open(address, fd, &n, &e), "%s", e.msg);
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(lobby_listen(gate, fd[0], tls, &e), ERR_NONE);
    return p;
}

static void open_gate(int64_t total, int64_t per_client, int max_open)
{
    err e;
    who = max_open ? NULL : peers_create(total, per_client);
    lobby_options o = {.peers = who,
                       .n_connections = &n_connections,
                       .n_refused_total = &n_total,
                       .n_refused_per_client = &n_client,
                       .max_open = max_open,
                       .n_workers = WORKERS,
                       .n_queue = QUEUE,
                       .now_us = clock_of_test,
                       .context = context,
                       .decided = decided,
                       .takes_plain = takes_plain,
                       .refuse = answer};
    ck_assert_msg(!lobby_create(&gate, &o, &e), "%s", e.msg);
    port = open_port(true);
    plain_port = open_port(false);
}

static void setup(void)
{
    err e;
    tmpdir_make(dir);
    snprintf(cert, sizeof(cert), "%s/cert.pem", dir);
    snprintf(key, sizeof(key), "%s/key.pem", dir);
    ck_assert_msg(!devcert_write(cert, key, &e), "%s", e.msg);
    server_ctx = tls_context_make(&(tls_files){cert, key, NULL}, false, &e);
    ck_assert_ptr_nonnull(server_ctx);
    client_ctx = SSL_CTX_new(TLS_client_method());
    n_connections = n_total = n_client = 0;
    n_answers = 0;
    last_why = -1;
    plain_allowed = true;
    gate = NULL;
    who = NULL;
}

static void teardown(void)
{
    lobby_destroy(gate);
    peers_destroy(who);
    SSL_CTX_free(server_ctx);
    SSL_CTX_free(client_ctx);
    tmpdir_remove(dir);
}

static void settle(void)
{
    for (int i = 0; i < 3; i++) lobby_turn(gate, 0);
}

/* Turns until the lobby has so many connections. */
static void wait_for(uint64_t n)
{
    for (int i = 0; i < PATIENCE && n_connections != n; i++) lobby_turn(gate, 1);
    ck_assert_uint_eq(n_connections, n);
}

static void pass(int64_t us)
{
    now += us;
    settle();
}

/* ---- clients --------------------------------------------------------------------------- */

typedef struct {
    int fd;
    SSL *ssl; /* NULL: none */
    char got[256];
    int n;
} client;

static client dial(int to)
{
    client c = {.fd = loopback_connect(to)};
    int yes = 1;
    ck_assert_int_ge(c.fd, 0);
    ck_assert_int_eq(setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)), 0);
    settle();
    return c;
}

static void hang_up(client *c)
{
    SSL_free(c->ssl);
    (void)close(c->fd);
    settle();
}

static void say(client *c, const char *text)
{
    int n = (int)strlen(text);
    int done =
        c->ssl ? SSL_write(c->ssl, text, n) : (int)send(c->fd, text, (size_t)n, MSG_NOSIGNAL);
    ck_assert_int_eq(done, n);
    settle();
}

/* Both ends by turns until the client's is complete. */
static void shake(client *c)
{
    c->ssl = SSL_new(client_ctx);
    ck_assert_int_eq(fcntl(c->fd, F_SETFL, O_NONBLOCK), 0);
    ck_assert_int_eq(SSL_set_fd(c->ssl, c->fd), 1);
    for (int i = 0; i < PATIENCE && SSL_connect(c->ssl) != 1; i++) lobby_turn(gate, 1);
    ck_assert_int_eq(SSL_is_init_finished(c->ssl), 1);
    settle();
}

/* Reads what has come.  False: the connection has ended. */
static bool hear(client *c)
{
    for (int n;;) {
        int room = (int)sizeof(c->got) - 1 - c->n;
        ck_assert_int_gt(room, 0);
        n = c->ssl ? SSL_read(c->ssl, c->got + c->n, room)
                   : (int)recv(c->fd, c->got + c->n, (size_t)room, MSG_DONTWAIT);
        if (n <= 0)
            return c->ssl ? SSL_get_error(c->ssl, n) == SSL_ERROR_WANT_READ
                          : n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        c->n += n;
        c->got[c->n] = 0;
    }
}

/* Turns until the lobby has ended it. */
static bool ended(client *c)
{
    for (int i = 0; i < PATIENCE; i++) {
        if (!hear(c)) return true;
        lobby_turn(gate, 1);
    }
    return false;
}

static bool was_refused(client *c, lobby_refusal why)
{
    char wanted[32];
    snprintf(wanted, sizeof(wanted), "refused %d\r\n", (int)why);
    return ended(c) && strcmp(c->got, wanted) == 0;
}

static visitor *take_any(void)
{
    int n = 0;
    for (int i = 0; i < PATIENCE && !n; i++) n = lobby_turn(gate, 1);
    ck_assert_int_gt(n, 0);
    return lobby_take(gate);
}

/* The next connection with a request, whose bytes are `text`. */
static visitor *take(const char *text)
{
    visitor *v = take_any();
    ck_assert_int_eq(v->len, (int)strlen(text));
    ck_assert_mem_eq(v->buf, text, (size_t)v->len);
    return v;
}

static void give_back(visitor *v, const char *rest, bool end)
{
    ck_assert(visitor_keep(v, rest, (int)strlen(rest)));
    lobby_return(gate, v, end);
    settle();
}

static const char request[] = "GET / HTTP/1.1\r\n\r\n";

/* ---- the tests --------------------------------------------------------------------------- */

START_TEST(a_handshake_in_slices)
{
    open_gate(0, 0, 0);
    client c = dial(port);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    SSL *ssl = SSL_new(client_ctx);
    char piece[4096];
    SSL_set_bio(ssl, in, out);
    for (int i = 0; i < PATIENCE && SSL_connect(ssl) != 1; i++) {
        for (int n; (n = BIO_read(out, piece, 1)) > 0;) { /* byte by byte */
            ck_assert_int_eq(send(c.fd, piece, 1, MSG_NOSIGNAL), 1);
            lobby_turn(gate, 0);
        }
        lobby_turn(gate, 1);
        ssize_t got = recv(c.fd, piece, sizeof(piece), MSG_DONTWAIT);
        if (got > 0) ck_assert_int_eq(BIO_write(in, piece, (int)got), (int)got);
    }
    ck_assert_int_eq(SSL_is_init_finished(ssl), 1);
    ck_assert_int_eq(SSL_write(ssl, request, sizeof(request) - 1), sizeof(request) - 1);
    for (int n; (n = BIO_read(out, piece, 3)) > 0; lobby_turn(gate, 0))
        ck_assert_int_eq(send(c.fd, piece, (size_t)n, MSG_NOSIGNAL), n);
    settle();
    give_back(take(request), "", true);
    SSL_free(ssl);
    hang_up(&c);
    wait_for(0);
}
END_TEST

enum { SHAKERS = 20 };
static client shaker[SHAKERS];
static int n_answered;

static void count_answered(void)
{
    char byte;
    n_answered = 0;
    for (int i = 0; i < SHAKERS; i++)
        n_answered += recv(shaker[i].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

START_TEST(a_request_goes_before_handshakes)
{
    open_gate(0, 0, 0);
    client c = dial(port);
    shake(&c);
    for (int i = 0; i < SHAKERS; i++) shaker[i] = dial(port);
    for (int i = 0; i < SHAKERS; i++) {
        client *s = &shaker[i];
        s->ssl = SSL_new(client_ctx);
        ck_assert_int_eq(fcntl(s->fd, F_SETFL, O_NONBLOCK), 0);
        ck_assert_int_eq(SSL_set_fd(s->ssl, s->fd), 1);
        ck_assert_int_ne(SSL_connect(s->ssl), 1); /* its hello is here before the request */
    }
    ck_assert_int_eq(SSL_write(c.ssl, request, sizeof(request) - 1), sizeof(request) - 1);
    n_answered = -1;
    on_head = count_answered;
    (void)lobby_turn(gate, 0);
    on_head = NULL;
    ck_assert_int_eq(n_answered, 0);
    count_answered();
    ck_assert_int_eq(n_answered, SHAKERS); /* in the same turn */
    give_back(take(request), "", true);
    for (int i = 0; i < SHAKERS; i++) hang_up(&shaker[i]);
    hang_up(&c);
    wait_for(0);
}
END_TEST

/* A client that does not complete its first record costs no TLS object. */
START_TEST(tls_begins_with_a_whole_record)
{
    open_gate(0, 0, 0);
    client c = dial(port);
    static const unsigned char half[300] = {0x16, 3, 1, 2, 0, 1};
    ck_assert_int_eq(send(c.fd, half, sizeof(half), MSG_NOSIGNAL), (int)sizeof(half));
    settle();
    wait_for(1);
    pass(LOBBY_SHAKE_US - 1);
    wait_for(1);
    pass(1);
    wait_for(0);
    ck_assert(ended(&c) && c.n == 0); /* not even an alert: nothing of TLS was there */
    hang_up(&c);
}
END_TEST

START_TEST(a_head_in_single_bytes)
{
    open_gate(0, 0, 0);
    client c = dial(port);
    shake(&c);
    for (const char *p = request; *p; p++) say(&c, (const char[]){*p, 0});
    give_back(take(request), "", false);
    say(&c, request); /* the same connection again */
    give_back(take(request), "", true);
    ck_assert(ended(&c) && c.n == 0);
    wait_for(1); /* it lingers until the client closes, too */
    hang_up(&c);
    wait_for(0);
    ck_assert_int_eq(n_answers, 0);
}
END_TEST

START_TEST(a_head_beyond_the_limit_goes_to_a_worker)
{
    enum { PART = HEAD_MAX * 3 / 4 };
    char text[PART + 1];
    memset(text, 'x', PART);
    text[PART] = 0;
    open_gate(0, 0, 0);
    client c = dial(port);
    shake(&c);
    say(&c, text);
    say(&c, text); /* past a step of LOOK_BYTES: no line has ended */
    visitor *v = take_any();
    ck_assert_int_ge(v->len, HEAD_MAX);
    give_back(v, "", true);
    ck_assert(ended(&c));
    hang_up(&c);
}
END_TEST

START_TEST(each_phase_has_its_deadline)
{
    open_gate(0, 0, 0);
    client silent = dial(port), plain = dial(plain_port), quiet = dial(port), slow = dial(port);
    shake(&quiet);
    shake(&slow);
    say(&slow, "GET / HT");
    pass(LOBBY_HEAD_US - 1);
    wait_for(4);
    pass(1);
    ck_assert(ended(&silent) && silent.n == 0);
    ck_assert(ended(&plain) && plain.n == 0);
    ck_assert(ended(&quiet) && quiet.n == 0);
    ck_assert(was_refused(&slow, LOBBY_HEAD_LATE));
    ck_assert_int_eq(n_answers, 1);
    wait_for(1); /* which lingers */
    pass(LOBBY_LINGER_US);
    wait_for(0);

    client kept = dial(plain_port);
    say(&kept, request);
    give_back(take(request), "", false);
    pass(LOBBY_KEPT_US - 1);
    wait_for(1);
    pass(1);
    ck_assert(ended(&kept) && kept.n == 0);
    wait_for(0);
    client *all[] = {&silent, &plain, &quiet, &slow, &kept};
    for (int i = 0; i < 5; i++) hang_up(all[i]);
}
END_TEST

/* Reads while the client sends after its last answer, for LOBBY_DRAIN_US at most. */
START_TEST(who_still_sends_can_read_the_answer)
{
    enum { BODY_BYTES = 24 << 20 };
    open_gate(0, 0, 0);
    client c = dial(plain_port);
    char piece[1 << 16] = {0};
    say(&c, request);
    visitor *v = take(request);
    visitor_write(v, "413", 3);
    give_back(v, "", true);
    for (int sent = 0; sent < BODY_BYTES;) {
        ssize_t n = send(c.fd, piece, sizeof(piece), MSG_NOSIGNAL | MSG_DONTWAIT);
        ck_assert(n > 0 || errno == EAGAIN);
        if (n > 0) sent += (int)n;
        lobby_turn(gate, 0);
    }
    ck_assert(ended(&c) && strcmp(c.got, "413") == 0);
    for (int64_t us = 0; us < LOBBY_DRAIN_US; us += LOBBY_LINGER_US - 1) {
        wait_for(1);
        ck_assert_int_eq(send(c.fd, "x", 1, MSG_NOSIGNAL), 1);
        for (int i = 0; i < 5; i++) lobby_turn(gate, 1);
        pass(LOBBY_LINGER_US - 1);
    }
    ck_assert_int_eq(send(c.fd, "x", 1, MSG_NOSIGNAL), 1);
    wait_for(0);
    hang_up(&c);
}
END_TEST

START_TEST(a_worker_has_a_connection_for_as_long_as_it_likes)
{
    open_gate(0, 0, 0);
    client c = dial(plain_port);
    say(&c, request);
    visitor *v = take(request);
    say(&c, "the body"); /* wakes nobody here */
    pass(LOBBY_SHAKE_US + LOBBY_HEAD_US + LOBBY_KEPT_US);
    ck_assert(hear(&c));
    give_back(v, request, false); /* and has read the next one with it */
    char both[64];
    snprintf(both, sizeof(both), "%s", request);
    v = take(both);
    give_back(v, "", true);
    hang_up(&c);
    wait_for(0);
}
END_TEST

START_TEST(clients_that_leave_are_counted_out)
{
    open_gate(0, 0, 0);
    static const unsigned char hello[] = {0x16, 3, 1, 2, 0, 1, 0};
    for (int i = 0; i < 8; i++) {
        client c = dial(port);
        if (i % 4 == 1) ck_assert_int_eq(send(c.fd, hello, 3, MSG_NOSIGNAL), 3);
        if (i % 4 == 2) ck_assert_int_eq(send(c.fd, hello, 7, MSG_NOSIGNAL), 7);
        if (i % 4 == 3) { /* in the middle of the handshake: its first flight is there */
            c.ssl = SSL_new(client_ctx);
            ck_assert_int_eq(fcntl(c.fd, F_SETFL, O_NONBLOCK), 0);
            ck_assert_int_eq(SSL_set_fd(c.ssl, c.fd), 1);
            ck_assert_int_eq(SSL_connect(c.ssl), -1);
        }
        settle();
        wait_for(1);
        hang_up(&c);
        wait_for(0);
    }
    client c = dial(port);
    shake(&c);
    say(&c, "GET");
    (void)SSL_shutdown(c.ssl); /* half closed within a head */
    settle();
    ck_assert(was_refused(&c, LOBBY_HEAD_CUT));
    hang_up(&c);
    wait_for(0);
}
END_TEST

START_TEST(garbage_gets_an_alert_and_http_an_answer)
{
    open_gate(0, 0, 0);
    client c = dial(port);
    static const char hello[] = {0x16, 3, 1, 0, 6, 1, 0, 0, 2, 3, 3}; /* without its fields */
    ck_assert_int_eq(send(c.fd, hello, sizeof(hello), MSG_NOSIGNAL), (int)sizeof(hello));
    ck_assert(ended(&c) && c.n > 0 && c.got[0] == 0x15);
    wait_for(1); /* the client may read the alert */
    hang_up(&c);
    c = dial(port);
    say(&c, "\x01\x02\x03\x04\x05\x06\x07");
    ck_assert(ended(&c));
    hang_up(&c);
    c = dial(port);
    say(&c, request);
    ck_assert(was_refused(&c, LOBBY_NEEDS_TLS));
    hang_up(&c);
    plain_allowed = false;
    c = dial(plain_port);
    ck_assert(was_refused(&c, LOBBY_NEEDS_TLS));
    hang_up(&c);
    wait_for(0);
}
END_TEST

START_TEST(limits_come_before_tls)
{
    open_gate(TOTAL, PER_CLIENT, 0);
    client mine[PER_CLIENT];
    for (int i = 0; i < PER_CLIENT; i++) mine[i] = dial(plain_port);
    wait_for(PER_CLIENT);
    client more = dial(plain_port); /* without TLS the answer needs nothing of the client */
    ck_assert(was_refused(&more, LOBBY_CLIENT_FULL));
    client late = dial(port);
    shake(&late);
    say(&late, request);
    ck_assert(was_refused(&late, LOBBY_CLIENT_FULL));
    ck_assert_uint_eq(n_client, 2);
    hang_up(&more);
    hang_up(&late);
    hang_up(&mine[0]);
    wait_for(PER_CLIENT - 1);
    client again = dial(plain_port);
    say(&again, request);
    give_back(take(request), "", true);
    hang_up(&again);
    peers_limit(who, PER_CLIENT - 1, 0);
    client last = dial(plain_port);
    ck_assert(was_refused(&last, LOBBY_TOTAL_FULL));
    ck_assert_uint_eq(n_total, 1);
    hang_up(&last);
    for (int i = 1; i < PER_CLIENT; i++) hang_up(&mine[i]);
    wait_for(0);
}
END_TEST

START_TEST(silent_refused_ones_are_few_and_short)
{
    client c[LOBBY_REFUSED_MAX + 8];
    open_gate(1, 1, 0);
    client first = dial(port);
    for (int i = 0; i < LOBBY_REFUSED_MAX + 8; i++) c[i] = dial(port);
    for (int i = LOBBY_REFUSED_MAX; i < LOBBY_REFUSED_MAX + 8; i++) ck_assert(ended(&c[i]));
    for (int i = 0; i < LOBBY_REFUSED_MAX; i++) ck_assert(hear(&c[i]));
    pass(LOBBY_REFUSED_US);
    for (int i = 0; i < LOBBY_REFUSED_MAX + 8; i++) {
        ck_assert(ended(&c[i]));
        hang_up(&c[i]);
    }
    wait_for(1);
    ck_assert_int_eq(n_answers, 0);
    client next = dial(port); /* there is a place for it again */
    ck_assert(hear(&next));
    hang_up(&next);
    hang_up(&first);
}
END_TEST

START_TEST(without_peers_the_oldest_idle_one_gives_way)
{
    open_gate(0, 0, 3);
    client worked = dial(plain_port), old, newer, fresh, none;
    say(&worked, request);
    visitor *v = take(request);
    old = dial(plain_port);
    newer = dial(plain_port);
    fresh = dial(plain_port);
    ck_assert(ended(&old) && hear(&newer) && hear(&fresh) && hear(&worked));
    say(&newer, request);
    visitor *w = take(request);
    say(&fresh, request);
    none = dial(plain_port); /* all have a request */
    ck_assert(ended(&none));
    give_back(v, "", true);
    give_back(w, "", true);
    client *all[] = {&worked, &old, &newer, &fresh, &none};
    for (int i = 0; i < 5; i++) hang_up(all[i]);
}
END_TEST

START_TEST(beyond_the_workers_and_the_queue_the_lobby_answers)
{
    client c[WORKERS + QUEUE + 1];
    visitor *v[WORKERS];
    open_gate(0, 0, 0);
    for (int i = 0; i < WORKERS + QUEUE + 1; i++) {
        c[i] = dial(plain_port);
        say(&c[i], request);
        if (i < WORKERS) v[i] = take(request);
    }
    ck_assert(was_refused(&c[WORKERS + QUEUE], LOBBY_NO_WORKER));
    pass(LOBBY_QUEUE_US - 1);
    ck_assert(hear(&c[WORKERS]));
    pass(1); /* it has waited for long enough */
    ck_assert(was_refused(&c[WORKERS], LOBBY_NO_WORKER));
    ck_assert_int_eq(n_answers, 2);
    for (int i = 0; i < WORKERS; i++) give_back(v[i], "", true);
    client late = dial(plain_port);
    say(&late, request);
    pass(2 * LOBBY_QUEUE_US); /* a worker is free, if slow: nothing is refused */
    give_back(take(request), "", true);
    hang_up(&late);
    for (int i = 0; i < WORKERS + QUEUE + 1; i++) hang_up(&c[i]);
    wait_for(0);
}
END_TEST

/* As many as the machine's limit of descriptors allows, both ends in this process. */
START_TEST(ten_thousand_are_counted)
{
    struct rlimit r;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &r), 0);
    r.rlim_cur = r.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &r);
    int n = r.rlim_cur > 20200 ? 10000 : (int)(r.rlim_cur - 200) / 2;
    client *c = calloc((size_t)n, sizeof(*c));
    ck_assert_ptr_nonnull(c);
    open_gate(0, 0, 0);
    for (int i = 0; i < n; i++) {
        c[i].fd = loopback_connect(i % 2 ? port : plain_port);
        ck_assert_int_ge(c[i].fd, 0);
        if (i % 100 == 0) settle();
    }
    wait_for((uint64_t)n);
    ck_assert_int_eq(peers_open(who), n);
    for (int i = 0; i < n; i += 2) {
        (void)close(c[i].fd);
        if (i % 100 == 0) settle();
    }
    wait_for((uint64_t)n / 2);
    pass(LOBBY_SHAKE_US);
    wait_for(0);
    ck_assert_int_eq(peers_open(who), 0);
    for (int i = 1; i < n; i += 2) (void)close(c[i].fd);
    free(c);
}
END_TEST

START_TEST(a_closed_lobby_leaves_clients_in_the_backlog)
{
    open_gate(0, 0, 0);
    client old = dial(plain_port), busy = dial(plain_port);
    say(&busy, request);
    visitor *v = take(request);
    lobby_close(gate);
    ck_assert_ptr_null(lobby_take(gate));
    client next = dial(plain_port); /* for whoever listens next */
    say(&next, request);
    ck_assert_uint_eq(n_connections, 2);
    ck_assert(hear(&next));
    say(&old, request);
    ck_assert(ended(&old)); /* without an answer */
    give_back(v, "", true);
    ck_assert(ended(&busy));
    ck_assert_int_eq(n_answers, 0);
    client *all[] = {&old, &busy, &next};
    for (int i = 0; i < 3; i++) hang_up(all[i]);
}
END_TEST

static void *worker(void *arg)
{
    atomic_int *served = arg;
    for (visitor *v; (v = lobby_take(gate));) {
        atomic_fetch_add(served, 1);
        visitor_write(v, "done", 4);
        bool keeps = v->len > 4 && v->buf[0] == 'G';
        (void)visitor_keep(v, NULL, 0);
        lobby_return(gate, v, !keeps);
    }
    return NULL;
}

START_TEST(workers_and_the_thread_end_with_it)
{
    err e;
    pthread_t t[WORKERS];
    atomic_int served = 0;
    open_gate(0, 0, 0);
    ck_assert_int_eq(lobby_start(gate, &e), ERR_NONE);
    for (int i = 0; i < WORKERS; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, worker, &served), 0);
    int fd = loopback_connect(port), plain = loopback_connect(plain_port);
    SSL *ssl = SSL_new(client_ctx);
    ck_assert_int_eq(SSL_set_fd(ssl, fd), 1);
    ck_assert_int_eq(SSL_connect(ssl), 1);
    char got[8];
    for (int i = 0; i < 50; i++) { /* handed to and fro */
        ck_assert_int_eq(SSL_write(ssl, request, sizeof(request) - 1), sizeof(request) - 1);
        ck_assert_int_eq(SSL_read(ssl, got, 4), 4);
    }
    lobby_close(gate);
    for (int i = 0; i < WORKERS; i++) ck_assert_int_eq(pthread_join(t[i], NULL), 0);
    ck_assert_int_eq(served, 50);
    lobby_destroy(gate); /* cuts what is open */
    gate = NULL;
    ck_assert_int_le(SSL_read(ssl, got, 4), 0);
    ck_assert_int_le(recv(plain, got, 4, 0), 0);
    ck_assert_uint_eq(n_connections, 0);
    SSL_free(ssl);
    (void)close(fd);
    (void)close(plain);
}
END_TEST

/* One list of addresses is with TLS, one without. */
START_TEST(two_lists_of_addresses_fit)
{
    open_gate(10, 10, 0);
    for (int i = 2; i < 2 * LISTEN_MAX - 1; i++) (void)open_port(i % 2 == 0);
    int last = open_port(false);
    int fd = loopback_connect(last);
    ck_assert_int_ge(fd, 0);
    for (int i = 0; i < 100 && n_connections == 0; i++) (void)lobby_turn(gate, 1000);
    ck_assert_int_eq(n_connections, 1);
    (void)close(fd);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gateway/lobby");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_handshake_in_slices);
    tcase_add_test(tc, tls_begins_with_a_whole_record);
    tcase_add_test(tc, a_request_goes_before_handshakes);
    tcase_add_test(tc, a_head_in_single_bytes);
    tcase_add_test(tc, a_head_beyond_the_limit_goes_to_a_worker);
    tcase_add_test(tc, each_phase_has_its_deadline);
    tcase_add_test(tc, who_still_sends_can_read_the_answer);
    tcase_add_test(tc, a_worker_has_a_connection_for_as_long_as_it_likes);
    tcase_add_test(tc, clients_that_leave_are_counted_out);
    tcase_add_test(tc, garbage_gets_an_alert_and_http_an_answer);
    tcase_add_test(tc, limits_come_before_tls);
    tcase_add_test(tc, silent_refused_ones_are_few_and_short);
    tcase_add_test(tc, without_peers_the_oldest_idle_one_gives_way);
    tcase_add_test(tc, beyond_the_workers_and_the_queue_the_lobby_answers);
    tcase_add_test(tc, ten_thousand_are_counted);
    tcase_add_test(tc, a_closed_lobby_leaves_clients_in_the_backlog);
    tcase_add_test(tc, two_lists_of_addresses_fit);
    tcase_add_test(tc, workers_and_the_thread_end_with_it);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
