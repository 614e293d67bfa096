/* bench_slow.c -- slow clients: holds N sockets open that send a byte now and
 * then, until it is killed.
 *
 *     bench_slow PORT N [SECONDS]       a byte each SECONDS (5) on every socket, spread evenly
 *
 * Half of them never finish the TLS handshake, half have, and never finish a header.  Whoever is
 * thrown out comes again at once.  One thread on epoll, so that the attack costs the machine what
 * the server spends on it and little else.  On SIGTERM it prints a line of JSON: what it has sent,
 * how often it was thrown out, the processor time it took.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <openssl/ssl.h>

enum { TICK_MS = 100, EVENTS = 256 };

/* The beginning of a ClientHello that never ends: a record of 512 bytes,
 * version 1.2, random, no session. */
static const unsigned char hello[512] = {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3};
static const char header[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";

typedef enum { CLOSED, CONNECTING, SHAKING, DRIPPING } stage;

typedef struct {
    int fd;
    SSL *ssl; /* NULL: never speaks TLS to its end */
    stage at;
    size_t sent;
} slow;

static volatile sig_atomic_t told_to_end;
static SSL_CTX *tls;
static int ep, port;
static long n_sent, n_thrown, n_shaken;

static void on_term(int sig)
{
    (void)sig;
    told_to_end = 1;
}

static void watch(slow *s, uint32_t events, int op)
{
    struct epoll_event e = {.events = events, .data.ptr = s};
    (void)epoll_ctl(ep, op, s->fd, &e);
}

static void drop(slow *s)
{
    SSL_free(s->ssl);
    if (s->fd >= 0) (void)close(s->fd);
    *s = (slow){.fd = -1};
}

static void start(slow *s, bool with_tls)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *s = (slow){.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (s->fd < 0) return;
    if (connect(s->fd, (struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS) {
        drop(s);
        return;
    }
    if (with_tls) {
        s->ssl = SSL_new(tls);
        if (!s->ssl || SSL_set_fd(s->ssl, s->fd) != 1) abort();
        SSL_set_connect_state(s->ssl);
    }
    s->at = CONNECTING;
    watch(s, EPOLLOUT | EPOLLRDHUP, EPOLL_CTL_ADD);
}

static void shake(slow *s)
{
    s->at = SHAKING;
    int rc = SSL_do_handshake(s->ssl);
    if (rc == 1) {
        n_shaken++;
        s->at = DRIPPING;
        (void)SSL_write(s->ssl, header, sizeof(header) - 1);
        watch(s, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
        return;
    }
    int why = SSL_get_error(s->ssl, rc);
    if (why == SSL_ERROR_WANT_READ)
        watch(s, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
    else if (why != SSL_ERROR_WANT_WRITE)
        drop(s);
}

/* What the server says is its 408, or its farewell: both mean that we are thrown out. */
static void on_event(slow *s, uint32_t events)
{
    char said[4096];
    if (s->at == CONNECTING && !(events & (EPOLLERR | EPOLLHUP))) {
        if (s->ssl) {
            shake(s);
        } else {
            s->at = DRIPPING;
            watch(s, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
        }
    } else if (s->at == SHAKING && !(events & (EPOLLERR | EPOLLHUP))) {
        shake(s);
    } else if (s->ssl && s->at == DRIPPING && !(events & (EPOLLRDHUP | EPOLLERR | EPOLLHUP))) {
        int n = SSL_read(s->ssl, said, sizeof(said)); /* mostly tickets */
        if (n > 0 || SSL_get_error(s->ssl, n) != SSL_ERROR_WANT_READ) drop(s);
    } else {
        drop(s);
    }
    if (s->at == CLOSED) n_thrown++;
}

static void drip(slow *s)
{
    if (s->at != DRIPPING) return;
    int n = s->ssl ? SSL_write(s->ssl, "x", 1)
                   : (int)send(s->fd, hello + s->sent % sizeof(hello), 1, MSG_NOSIGNAL);
    if (n == 1) {
        s->sent++;
        n_sent++;
    }
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_slow PORT N [SECONDS]\n");
        return 2;
    }
    port = atoi(argv[1]);
    int n = atoi(argv[2]);
    double every = argc > 3 ? strtod(argv[3], NULL) : 5;
    slow *all = calloc((size_t)n, sizeof(*all));
    tls = SSL_CTX_new(TLS_client_method());
    ep = epoll_create1(EPOLL_CLOEXEC);
    if (!all || !tls || ep < 0 || n < 1 || !(every > 0)) return 1;
    (void)signal(SIGTERM, on_term);
    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < n; i++) all[i].fd = -1;
    double begun = now_s(), turn = begun;
    int next = 0;
    while (!told_to_end) {
        struct epoll_event got[EVENTS];
        int k = epoll_wait(ep, got, EVENTS, TICK_MS);
        for (int i = 0; i < k; i++) on_event(got[i].data.ptr, got[i].events);
        if (now_s() < turn) continue;
        turn = now_s() + TICK_MS / 1e3;
        for (int i = 0; i < n; i++) {
            if (all[i].at == CLOSED) start(&all[i], i % 2);
        }
        int due = (int)(n * TICK_MS / 1e3 / every) + 1;
        for (int i = 0; i < due; i++, next = (next + 1) % n) drip(&all[next]);
    }
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    double cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                 (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    int open = 0;
    for (int i = 0; i < n; i++) open += all[i].at == DRIPPING;
    printf("{\"seconds\": %.2f, \"cpu_s\": %.3f, \"bytes\": %ld, \"thrown_out\": %ld, "
           "\"handshakes\": %ld, \"open\": %d}\n",
           now_s() - begun, cpu, n_sent, n_thrown, n_shaken, open);
    return 0;
}
