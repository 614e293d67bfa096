/* fuzz_connection.c -- the event loop of a listener, before a request has a worker.
 *
 * An input is a script: one byte per action of clients, of workers or of the clock (below);
 * bytes to send follow their action.  The loop turns after each.  What a worker receives must be
 * what its client sent, in order, and a head that head_parse() has decided.  At the end time passes
 * beyond every limit: no connection may be left then.
 *
 * Sockets of the family AF_UNIX replace TCP: they cost no ports.  The name of a client's socket
 * says which client a visitor belongs to.
 */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <civetweb.h>
#include <openssl/ssl.h>

#include "gateway/http/head.h"
#include "gateway/net/devcert.h"
#include "gateway/net/lobby.h"
#include "gateway/net/tls.h"
#include "gateway/net/visitor.h"
#include "tests/fuzz/fuzz.h"

enum { CONNECTIONS_MAX = 6, WORKERS = 2, QUEUE = 1, SENT_MAX = 1 << 17, BLOCK = 512 };

/* The action is the low three bits, its argument `arg` the five above. */
enum {
    SEND_FEW,  /* the next arg + 1 bytes of the script */
    SEND_MANY, /* a block of one byte, arg + 1 times BLOCK of it */
    SEND_REST, /* all bytes up to the next NUL */
    WAIT,      /* time passes */
    WORK,      /* arg & 1: a worker takes a request; else one answers and returns it, */
               /* arg & 2: for the last time */
    HANG_UP,   /* arg & 1: the sending side alone */
    SWITCH,    /* to connection arg */
    CONNECT,   /* one more, from now on the current one; arg & 1: to the socket with TLS */
};

typedef struct {
    int fd; /* -1: closed */
    uint8_t sent[SENT_MAX];
    size_t n_sent, n_seen; /* n_seen: of these, belonging to heads that workers have taken */
} client;

typedef struct {
    visitor *v;
    int n; /* length of its head; below 0: the head is refused */
} job;

static client clients[CONNECTIONS_MAX];
static int n_clients;
static job jobs[WORKERS];
static int n_jobs;
static SSL_CTX *tls_ctx;
static int door_fd[2] = {-1, -1};
static struct sockaddr_un door_name[2];
static int64_t now;
static _Atomic uint64_t n_open, n_total, n_client;

/* ---- the loop's owner ------------------------------------------------------------------- */

static int64_t clock_of_script(void)
{
    return now;
}

static SSL_CTX *context(void *arg)
{
    (void)arg;
    (void)SSL_CTX_up_ref(tls_ctx);
    return tls_ctx;
}

static bool takes_plain(void *arg, const struct sockaddr_storage *from)
{
    (void)arg;
    (void)from;
    return true;
}

static size_t refuse(void *arg, const struct sockaddr_storage *from, lobby_refusal why, char *out)
{
    (void)arg;
    (void)from;
    return (size_t)snprintf(out, LOBBY_REFUSAL_BYTES, "HTTP/1.1 503 %d\r\n\r\n", (int)why);
}

/* ---- sockets ---------------------------------------------------------------------------- */

static int named_socket(const char *what, int i, struct sockaddr_un *name)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *name = (struct sockaddr_un){.sun_family = AF_UNIX}; /* abstract: the first byte is NUL */
    snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "lorad-fuzz-%d-%s-%d", (int)getpid(),
             what, i);
    if (fd < 0) abort();
    /* The kernel may still know the name of a connection that has just been closed. */
    while (bind(fd, (struct sockaddr *)name, sizeof(*name)) != 0)
        if (errno != EADDRINUSE) abort();
    return fd;
}

static void open_once(void)
{
    char cert[128], key[128];
    err e;
    if (tls_ctx) return;
    (void)signal(SIGPIPE, SIG_IGN);
    snprintf(cert, sizeof(cert), "%s/cert.pem", fuzz_dir_path());
    snprintf(key, sizeof(key), "%s/key.pem", fuzz_dir_path());
    if (devcert_write(cert, key, &e)) abort();
    tls_ctx = tls_context_make(&(tls_files){cert, key, NULL}, false, &e);
    for (int i = 0; i < 2; i++) {
        door_fd[i] = named_socket("door", i, &door_name[i]);
        if (!tls_ctx || listen(door_fd[i], 16) != 0) abort();
    }
}

static void connect_client(bool tls)
{
    struct sockaddr_un name;
    if (n_clients == CONNECTIONS_MAX) return;
    client *c = &clients[n_clients];
    c->fd = named_socket("client", n_clients++, &name);
    c->n_sent = c->n_seen = 0;
    if (connect(c->fd, (struct sockaddr *)&door_name[tls], sizeof(name)) != 0) abort();
}

static void say(client *c, const uint8_t *bytes, size_t n)
{
    if (c->fd < 0 || n > SENT_MAX - c->n_sent) return;
    ssize_t done = send(c->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done <= 0) return;
    memcpy(c->sent + c->n_sent, bytes, (size_t)done);
    c->n_sent += (size_t)done;
}

/* ---- the worker ------------------------------------------------------------------------- */

static client *client_of(const visitor *v)
{
    struct sockaddr_un name;
    memcpy(&name, &v->peer, sizeof(name));
    const char *number = strrchr(name.sun_path + 1, '-');
    FUZZ_CHECK(number && number[1] >= '0' && number[1] < '0' + n_clients);
    return &clients[number[1] - '0'];
}

static void begin_job(lobby *l)
{
    struct mg_request_info ri = {0};
    head_refusal why;
    if (n_jobs == WORKERS) return;
    visitor *v = lobby_take(l);
    FUZZ_CHECK(v && !v->tls && v->buf && v->len > 0 && v->len <= LOBBY_HEAD_BYTES);
    client *c = client_of(v);
    FUZZ_CHECK((size_t)v->len <= c->n_sent - c->n_seen);
    FUZZ_CHECK(memcmp(c->sent + c->n_seen, v->buf, (size_t)v->len) == 0);
    char *head = fuzz_text((const uint8_t *)v->buf, (size_t)v->len);
    int n = head_parse(head, v->len, &ri, &why);
    FUZZ_CHECK(n != 0 && n <= v->len);
    free(head);
    if (n > 0) c->n_seen += (size_t)n;
    jobs[n_jobs++] = (job){v, n};
}

/* As gateway/http/connection.c does. */
static void end_job(lobby *l, bool end)
{
    char rest[LOBBY_HEAD_BYTES];
    if (n_jobs == 0) return;
    job j = jobs[--n_jobs];
    int n = j.n > 0 && !end ? j.v->len - j.n : 0;
    if (n) memcpy(rest, j.v->buf + j.n, (size_t)n);
    visitor_write(j.v, "HTTP/1.1 200 OK\r\n\r\n", 19);
    FUZZ_CHECK(visitor_keep(j.v, rest, n));
    lobby_return(l, j.v, end || j.n < 0);
}

/* ---- scripts ---------------------------------------------------------------------------- */

static void hang_up(client *c, bool half)
{
    if (c->fd < 0) return;
    if (half) {
        (void)shutdown(c->fd, SHUT_WR);
        return;
    }
    (void)close(c->fd);
    c->fd = -1;
}

/* The bytes of the script that the action at `at` has used. */
static size_t act(lobby *l, int *current, int n_ready, const uint8_t *at, size_t left)
{
    static const int64_t times[] = {1000, 1000000, 2000000, 10000000, 31000000, 61000000};
    uint8_t block[32 * BLOCK];
    client *c = &clients[*current];
    unsigned arg = at[0] >> 3;
    size_t n = left - 1;
    const uint8_t *nul;
    switch (at[0] & 7) {
    case SEND_FEW:
        if (n > arg + 1) n = arg + 1;
        say(c, at + 1, n);
        return 1 + n;
    case SEND_MANY:
        if (n == 0) return 1;
        memset(block, at[1], (arg + 1) * BLOCK);
        say(c, block, (arg + 1) * BLOCK);
        return 2;
    case SEND_REST:
        nul = n ? memchr(at + 1, 0, n) : NULL;
        if (nul) n = (size_t)(nul - at - 1);
        say(c, at + 1, n);
        return 1 + n + (nul != NULL);
    case WAIT: now += times[arg % (sizeof(times) / sizeof(times[0]))]; return 1;
    case WORK:
        if (!(arg & 1))
            end_job(l, arg & 2);
        else if (n_ready > 0)
            begin_job(l);
        return 1;
    case HANG_UP: hang_up(c, arg & 1); return 1;
    case SWITCH: *current = (int)arg % n_clients; return 1;
    default:
        connect_client(arg & 1);
        *current = n_clients - 1;
        return 1;
    }
}

static lobby *create(peers *who)
{
    err e;
    lobby *l;
    const lobby_options o = {.peers = who,
                             .n_connections = &n_open,
                             .n_refused_total = &n_total,
                             .n_refused_per_client = &n_client,
                             .max_open = 2,
                             .n_workers = WORKERS,
                             .n_queue = QUEUE,
                             .now_us = clock_of_script,
                             .context = context,
                             .decided = head_decided,
                             .takes_plain = takes_plain,
                             .refuse = refuse};
    if (lobby_create(&l, &o, &e)) abort();
    for (int i = 0; i < 2; i++)
        if (lobby_listen(l, dup(door_fd[i]), i == 1, &e)) abort();
    return l;
}

/* Whatever was sent, every connection ends. */
static void outlast(lobby *l)
{
    for (int i = 0; i < 8; i++) {
        for (int n = lobby_turn(l, 0); n > 0; n--) {
            begin_job(l);
            end_job(l, true);
        }
        now += LOBBY_KEPT_US;
    }
    (void)lobby_turn(l, 0);
    FUZZ_CHECK(n_open == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    open_once();
    now = 1000000;
    n_open = n_total = n_client = 0;
    n_clients = n_jobs = 0;
    int total = data[0] & 1 ? 1 : 4, current = 0;
    peers *limits = peers_create(total, total);
    lobby *l = create(limits);
    connect_client(data[0] & 2);
    int n_ready = lobby_turn(l, 0);
    for (size_t i = 1; i < size;) {
        i += act(l, &current, n_ready, data + i, size - i);
        n_ready = lobby_turn(l, 0);
        FUZZ_CHECK(n_ready >= 0 && n_ready + n_jobs <= WORKERS + QUEUE);
        FUZZ_CHECK(n_open <= (uint64_t)total);
    }
    while (n_jobs > 0) end_job(l, false);
    if (data[0] & 4) outlast(l); /* else it is destroyed with all that it has */
    lobby_destroy(l);
    peers_destroy(limits);
    for (int i = 0; i < n_clients; i++) hang_up(&clients[i], false);
    return 0;
}
