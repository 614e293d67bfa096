/* bench_idle.c -- holds N idle connections open, until it is killed.
 *
 *     bench_idle PORT N FIRST ADDRESSES     from 127.0.0.FIRST and the next ADDRESSES - 1
 *
 * A third never sends a byte, a third sends a ClientHello and never answers the server's flight, a
 * third has had one response.  Whoever is thrown out comes again, spread over the time.  One thread
 * on epoll, so that the attack costs the machine what the server spends on it and little else.  On
 * SIGUSR1 it prints how many are open, on SIGTERM a line of JSON: how many are, how often it was
 * thrown out or refused, the processor time it took.
 */
#include <arpa/inet.h>
#include <errno.h>
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

enum { TICK_MS = 20, EVENTS = 256, STARTS_PER_TICK = 40, KINDS = 3, HELLO_MAX = 2048 };

static const char request[] = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";

typedef enum { SILENT, HALF_SHAKEN, ANSWERED } kind;
typedef enum { CLOSED, CONNECTING, SHAKING, ASKING, IDLE } stage;

typedef struct {
    int fd;
    SSL *ssl;
    stage at;
} idle;

static volatile sig_atomic_t told_to_end, told_to_count;
static SSL_CTX *tls;
static int ep, port, first_address, n_addresses;
static long n_thrown, n_idle, n_early; /* early: before it was idle */
static char hello[HELLO_MAX];
static int hello_bytes;

static void on_signal(int sig)
{
    if (sig == SIGTERM)
        told_to_end = 1;
    else
        told_to_count = 1;
}

/* A ClientHello, which is the same for all that never go on. */
static void make_hello(void)
{
    SSL *ssl = SSL_new(tls);
    BIO *out = BIO_new(BIO_s_mem());
    if (!ssl || !out) abort();
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), out);
    (void)SSL_connect(ssl);
    hello_bytes = BIO_read(out, hello, sizeof(hello));
    SSL_free(ssl);
}

static void watch(idle *s, uint32_t events, int op)
{
    struct epoll_event e = {.events = events, .data.ptr = s};
    (void)epoll_ctl(ep, op, s->fd, &e);
}

static void drop(idle *s)
{
    n_thrown += s->at == IDLE;
    n_early += s->at != IDLE;
    n_idle -= s->at == IDLE;
    SSL_free(s->ssl);
    if (s->fd >= 0) (void)close(s->fd);
    *s = (idle){.fd = -1};
}

static void settle(idle *s)
{
    s->at = IDLE;
    n_idle++;
    watch(s, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
}

static void start(idle *s, int i)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = from;
    int yes = 1;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + (uint32_t)(first_address + i % n_addresses));
    to.sin_port = htons((uint16_t)port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *s = (idle){.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (s->fd < 0) return;
    (void)setsockopt(s->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof(yes));
    if (bind(s->fd, (struct sockaddr *)&from, sizeof(from)) != 0 ||
        (connect(s->fd, (struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS)) {
        drop(s);
        return;
    }
    s->at = CONNECTING;
    watch(s, EPOLLOUT | EPOLLRDHUP, EPOLL_CTL_ADD);
}

/* Handshake, request, response: as far as it goes now. */
static void go_on(idle *s)
{
    char got[4096];
    int rc = s->at == SHAKING ? SSL_do_handshake(s->ssl) : SSL_read(s->ssl, got, sizeof(got));
    if (rc <= 0) {
        if (SSL_get_error(s->ssl, rc) != SSL_ERROR_WANT_READ)
            drop(s);
        else
            watch(s, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
    } else if (s->at == SHAKING) {
        s->at = ASKING;
        if (SSL_write(s->ssl, request, sizeof(request) - 1) <= 0) drop(s);
    } else if (strncmp(got, "HTTP/1.1 401 ", 13) == 0) { /* it has no key */
        settle(s);
    } else {
        drop(s); /* 429 or 503 */
    }
}

static void on_connected(idle *s, kind k)
{
    if (k == HALF_SHAKEN && send(s->fd, hello, (size_t)hello_bytes, MSG_NOSIGNAL) != hello_bytes) {
        drop(s);
    } else if (k != ANSWERED) {
        settle(s);
    } else {
        s->ssl = SSL_new(tls);
        if (!s->ssl || SSL_set_fd(s->ssl, s->fd) != 1) abort();
        SSL_set_connect_state(s->ssl);
        s->at = SHAKING;
        go_on(s);
    }
}

/* The server's flight to one that never answers it, or the end. */
static bool still_there(const idle *s)
{
    char waste[4096];
    return recv(s->fd, waste, sizeof(waste), MSG_DONTWAIT) > 0;
}

static void on_event(idle *s, kind k, uint32_t events)
{
    bool ends = events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP);
    if (s->at == CONNECTING && !ends)
        on_connected(s, k);
    else if ((s->at == SHAKING || s->at == ASKING) && !ends)
        go_on(s);
    else if (ends || s->at != IDLE || k != HALF_SHAKEN || !still_there(s))
        drop(s);
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void count(void)
{
    told_to_count = 0;
    printf("%ld\n", n_idle);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: bench_idle PORT N FIRST ADDRESSES\n");
        return 2;
    }
    port = atoi(argv[1]);
    int n = atoi(argv[2]);
    first_address = atoi(argv[3]);
    n_addresses = atoi(argv[4]);
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
    tls = SSL_CTX_new(TLS_client_method());
    ep = epoll_create1(EPOLL_CLOEXEC);
    idle *all = n > 0 ? calloc((size_t)n, sizeof(*all)) : NULL;
    if (!all || !tls || ep < 0 || n_addresses < 1) return 1;
    (void)SSL_CTX_set_mode(tls, SSL_MODE_RELEASE_BUFFERS);
    make_hello();
    (void)signal(SIGTERM, on_signal);
    (void)signal(SIGUSR1, on_signal);
    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < n; i++) all[i].fd = -1;
    double begun = now_s(), turn = begun;
    for (int next = 0; !told_to_end;) {
        struct epoll_event got[EVENTS];
        int k = epoll_wait(ep, got, EVENTS, TICK_MS);
        for (int i = 0; i < k; i++) {
            idle *s = got[i].data.ptr;
            on_event(s, (kind)((s - all) % KINDS), got[i].events);
        }
        if (told_to_count) count();
        if (now_s() < turn) continue;
        turn = now_s() + TICK_MS / 1e3;
        for (int i = 0, started = 0; i < n && started < STARTS_PER_TICK;
             i++, next = (next + 1) % n) {
            if (all[next].at != CLOSED) continue;
            start(&all[next], next / KINDS);
            started++;
        }
    }
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    double cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                 (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    printf("{\"seconds\": %.2f, \"cpu_s\": %.3f, \"open\": %ld, \"thrown_out\": %ld, "
           "\"refused\": %ld}\n",
           now_s() - begun, cpu, n_idle, n_thrown, n_early);
    return 0;
}
