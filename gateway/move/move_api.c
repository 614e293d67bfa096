/* move_api.c -- POST /fleet/v1/requests: a request that another node of the fleet has begun; POST
 * /fleet/v1/pages: that node's keys and values of it, for who goes on.
 *
 * Nothing of it is charged or written here: the node that sent it keeps its books.  It ends without
 * MOVE_END where we cannot go on; that node has it then.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "gateway/handlers.h"
#include "gateway/http/connection.h"
#include "gateway/http/http_status.h"
#include "gateway/move/carry.h"
#include "gateway/move/mover.h"
#include "gateway/net/deadline.h"
#include "gateway/openai/vocabulary.h"

enum {
    WAIT_MS = 250,
    LOOK_MS = 20,
    PING_US = 5000000,
    COPY_US = 5000000, /* for the engine to copy some pages */
};

typedef struct guest {
    exchange *x;
    server *srv;
    request rq;
    meter unbilled;
    request_signal signal;
    move_name name;
    const adapter_version *adapter;
    const vocabulary *vocab;
} guest;

static bool is_node(exchange *x)
{
    const char *word = exchange_header(x, "Authorization");
    static const char bearer[] = "Bearer ";
    if (word && strncmp(word, bearer, strlen(bearer)) == 0 &&
        mover_knows(x->server->mover, word + strlen(bearer)))
        return true;
    exchange_error(x, 401, "authentication_error", "invalid_api_key", NULL,
                   "only the other servers of this one's fleet may ask this");
    return false;
}

/* The class and the adapter that the order names, and what its numbers must be for them. */
static err_code find_parts(guest *g, err *e)
{
    server *s = g->srv;
    const move_name *n = &g->name;
    int64_t retry_ms;
    if (strcmp(n->build, s->fingerprint) != 0)
        return err_set(e, ERR_CONFLICT, "this server computes as %s, not as %s", s->fingerprint,
                       n->build);
    g->rq.slo_class = -1;
    for (int i = 0; i < s->n_class; i++) {
        if (strcmp(s->class_name[i], n->class) == 0) g->rq.slo_class = i;
    }
    if (g->rq.slo_class < 0)
        return err_set(e, ERR_CONFLICT, "there is no class '%s' here", n->class);
    if (n->adapter[0]) {
        int64_t until_us = clock_now_us() + g->x->conf->classes[g->rq.slo_class].ttft_us;
        err_code rc = depot_acquire(s->depot, s->registry, n->owner, n->adapter, until_us,
                                    &g->adapter, &retry_ms, e);
        if (rc) return rc;
    }
    static const uint8_t bare[DIGEST_BYTES];
    if (n->version_id != (g->adapter ? g->adapter->id : 0) ||
        memcmp(n->digest, g->adapter ? g->adapter->digest : bare, DIGEST_BYTES) != 0)
        return err_set(e, ERR_CONFLICT, "'%s' is another version here", n->adapter);
    return vocabulary_acquire(s->vocabularies, g->adapter, &g->vocab, e);
}

static err_code give(guest *g, const int32_t *given, err *e)
{
    request *rq = &g->rq;
    int n = rq->n_given;
    rq->n_given = 0;
    rq->n_vocab = g->vocab->n_own;
    for (int i = 0; i < n; i++) {
        if (given[i] < 0 || given[i] >= g->vocab->n_vocab)
            return err_set(e, ERR_INPUT, "token id %d is not in the vocabulary of %d",
                           (int)given[i], g->vocab->n_vocab);
    }
    err_code rc = request_prepare(rq, e);
    for (int i = 0; !rc && i < n; i++) request_give(rq, given[i]);
    return rc;
}

/* Its keys and values, where that takes less time than computing them.  It goes on in any case. */
static void bring_pages(guest *g)
{
    const request *rq = &g->rq;
    server_counters *count = &g->srv->count;
    int n_tokens;
    err e;
    carry_want w = {.text = {.token = rq->prompt, .n_token = rq->n_prompt + rq->n_given},
                    .rank = g->adapter ? g->adapter->rank_max : 0,
                    .mode = g->x->conf->server_fleet_kv,
                    .from = &g->name};
    w.text.domain.isolation = rq->isolation;
    if (g->adapter) w.text.domain.from = rq->adapter_from;
    memcpy(w.text.domain.digest, g->name.digest, sizeof(w.text.domain.digest));
    moved_kv why = carry_bring(mover_carry(g->srv->mover), &w, &n_tokens, &e);
    atomic_fetch_add(&count->moved_kv[why], 1);
    atomic_fetch_add(&count->moved_kv_tokens, (uint64_t)n_tokens);
    exchange_note(g->x, "kv", "%s", moved_kv_name(why));
    exchange_note_number(g->x, "kv_tokens", n_tokens, 0);
    if (why >= MOVED_KV_REFUSED)
        log_warn("gateway",
                 "request %llu of server %lld: KV of %d tokens came, the rest is computed here: %s",
                 (unsigned long long)rq->id, (long long)g->name.node, n_tokens, e.msg);
}

static err_code begin(guest *g, const char *order, size_t len, err *e)
{
    const int32_t *given;
    request *rq = &g->rq;
    int64_t now = clock_now_us();
    err_code rc = move_read(order, len, now, &g->x->arena, rq, &g->name, &given, e);
    if (rc) return rc;
    rc = find_parts(g, e);
    if (!rc) rc = give(g, given, e);
    if (rc) return rc;
    if (atomic_load(&g->srv->http.draining))
        return err_set(e, ERR_STOPPING, "this server drains, too");
    bring_pages(g);
    rq->again = true; /* who began it kept its promise, or did not */
    rq->arrived_us = now;
    rq->meter = &g->unbilled;
    rq->signal = &g->signal;
    return sched_submit(g->srv->sched, rq, e);
}

static bool say(guest *g, const sampled *t)
{
    char text[MOVE_TOKEN_MAX];
    return exchange_stream_write(g->x, text, move_put(t, text));
}

static void wake(void *signal)
{
    request_signal_wake(signal);
}

/* Passes its tokens on until it ends.  Whoever asked for it may be gone, and we may drain. */
static void follow(guest *g, bool open, int wait_ms)
{
    uint64_t seen = 0;
    int64_t spoke_us = clock_now_us();
    bool ended = false;
    sampled t;
    while (!ended) {
        while (request_next(&g->rq, &t, &ended)) {
            open = open && say(g, &t);
            spoke_us = clock_now_us();
        }
        if (ended) break;
        const sampled ping = {.token = MOVE_PING, .n_top = -1};
        if (clock_now_us() - spoke_us > PING_US) {
            open = open && say(g, &ping);
            spoke_us = clock_now_us();
        }
        if (!open || exchange_client_gone(g->x) || atomic_load(&g->srv->http.draining))
            request_cancel(&g->rq);
        (void)request_signal_wait(&g->signal, &seen, wait_ms);
    }
    int why = atomic_load(&g->rq.finish);
    const sampled end = {.token = MOVE_END, .rank = why, .n_top = -1};
    if (open && (why == FINISH_STOP || why == FINISH_LENGTH)) open = say(g, &end);
    if (open)
        exchange_stream_end(g->x);
    else
        exchange_drop(g->x);
}

static void run(guest *g, const char *order, size_t len)
{
    err e;
    err_code rc = begin(g, order, len, &e);
    if (rc) {
        exchange_reply_err(g->x, &e, NULL);
        return;
    }
    exchange_note(g->x, "from_request", "%llu", (unsigned long long)g->rq.id);
    atomic_fetch_add(&g->srv->count.moves_in, 1);
    int fd = connection_socket();
    bool watched = deadline_watch(fd, wake, &g->signal);
    follow(g, exchange_stream_begin(g->x, "application/octet-stream"), watched ? WAIT_MS : LOOK_MS);
    if (watched) deadline_unwatch(fd);
}

void move_take_request(exchange *x)
{
    const char *order;
    size_t len;
    guest g = {.x = x, .srv = x->server};
    if (!is_node(x)) return;
    if (!exchange_read_body(x, (size_t)x->conf->server_max_body, &order, &len)) return;
    request_signal_init(&g.signal);
    run(&g, order, len);
    request_clear(&g.rq);
    vocabulary_release(x->server->vocabularies, g.vocab);
    registry_release(x->server->registry, g.adapter);
    request_signal_clear(&g.signal);
}

/* ------------------------------------------------------------------------ pages -- */

/* Some pages of a text that another node has now: `first` and on, n of them, in `buffer`. */
typedef struct lending {
    exchange *x;
    const sched_text *text;
    unsigned char *buffer;
    int at, n;
} lending;

static err_code copy_out(lending *l, err *e)
{
    sched *sc = l->x->server->sched;
    int left = sched_text_pages(sc, l->text) - l->at, most = carry_pages_at_once(sc);
    l->n = 0;
    if (left <= 0) return ERR_NONE;
    return sched_pages_save(sc, l->text, l->at, left < most ? left : most, l->buffer,
                            clock_now_us() + COPY_US, &l->n, e);
}

static bool send_pages(lending *l)
{
    const sched *sc = l->x->server->sched;
    size_t bytes = sched_page_bytes(sc);
    bool open = true;
    for (int i = 0; i < l->n && open; i++) {
        uint8_t digest[DIGEST_BYTES];
        const unsigned char *page = l->buffer + (size_t)i * bytes;
        move_digest(l->text, l->at + i, sched_page_tokens(sc), page, bytes, digest);
        open = exchange_stream_write(l->x, (const char *)digest, sizeof(digest)) &&
               exchange_stream_write(l->x, (const char *)page, bytes);
    }
    l->at += l->n;
    return open;
}

/* As far as they are there: what is missing is computed by who asks. */
static void lend(exchange *x, const sched_text *text, int first)
{
    err e;
    const sched *sc = x->server->sched;
    size_t most = (size_t)carry_pages_at_once(sc) * sched_page_bytes(sc);
    lending l = {.x = x, .text = text, .buffer = calloc(1, most), .at = first};
    move_pages head;
    err_code rc = l.buffer ? copy_out(&l, &e) : err_set(&e, ERR_NOMEM, "out of memory");
    if (!rc && l.n == 0) rc = err_set(&e, ERR_NOT_FOUND, "none of its pages is here any more");
    if (rc) {
        exchange_reply_err(x, &e, NULL);
        free(l.buffer);
        return;
    }
    move_write_pages(x->server->fingerprint, sched_page_bytes(sc), sched_page_tokens(sc), first,
                     &head);
    bool open = exchange_stream_begin(x, "application/octet-stream") &&
                exchange_stream_write(x, (const char *)&head, sizeof(head));
    while (open && l.n > 0) {
        open = send_pages(&l);
        if (open && copy_out(&l, &e)) l.n = 0;
    }
    exchange_note_number(x, "kv_pages", l.at - first, 0);
    if (open)
        exchange_stream_end(x);
    else
        exchange_drop(x);
    free(l.buffer);
}

void move_give_pages(exchange *x)
{
    const char *body;
    size_t len;
    move_ask ask;
    sched_text text;
    err e;
    if (!is_node(x)) return;
    if (!exchange_read_body(x, sizeof(ask), &body, &len)) return;
    err_code rc = move_read_ask(body, len, &ask, &e);
    if (!rc && strcmp(ask.build, x->server->fingerprint) != 0)
        rc = err_set(&e, ERR_CONFLICT, "this server computes as %s", x->server->fingerprint);
    if (!rc) rc = mover_lend(x->server->mover, ask.pass, &text, &e);
    if (rc) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    lend(x, &text, (int)ask.first);
    mover_lent(x->server->mover, &text);
}
