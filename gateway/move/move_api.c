/* move_api.c -- POST /fleet/v1/requests: a request that another node of the fleet has begun, or
 * whose first token is to be made here; POST /fleet/v1/pages: that node's keys and values of it,
 * and a snapshot of its state, for who goes on; POST /fleet/v1/adapters: an adapter that a request
 * will need.
 *
 * Nothing of it is charged or written here: the node that sent it keeps its books.  It ends without
 * MOVE_END where we cannot go on; that node has it then.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "gateway/adapter_parts.h"
#include "gateway/engine_parts.h"
#include "gateway/handlers.h"
#include "gateway/http/connection.h"
#include "gateway/http/http_status.h"
#include "gateway/move/carry.h"
#include "gateway/move/mover.h"
#include "gateway/net/deadline.h"
#include "gateway/openai/vocabulary.h"
#include "gateway/process_parts.h"

enum {
    WAIT_MS = 250,
    LOOK_MS = 20,
    PING_US = 5000000,
    COPY_US = 5000000,    /* for the engine to copy some pages */
    EXPECT_US = 10000000, /* for the files of an adapter to come */
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
    bool prompt_only; /* its first token is made here, then its pages are asked for */
} guest;

static bool is_node(exchange *x)
{
    const char *word = exchange_header(x, "Authorization");
    static const char bearer[] = "Bearer ";
    if (word && strncmp(word, bearer, strlen(bearer)) == 0 &&
        mover_knows(engine_of(x->app)->mover, word + strlen(bearer)))
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
    if (strcmp(n->build, engine_of(s)->fingerprint) != 0)
        return err_set(e, ERR_CONFLICT, "this server computes as %s, not as %s",
                       engine_of(s)->fingerprint, n->build);
    g->rq.slo_class = -1;
    for (int i = 0; i < engine_of(s)->n_class; i++) {
        if (strcmp(engine_of(s)->class_name[i], n->class) == 0) g->rq.slo_class = i;
    }
    if (g->rq.slo_class < 0)
        return err_set(e, ERR_CONFLICT, "there is no class '%s' here", n->class);
    if (n->adapter[0]) {
        int64_t until_us = clock_now_us() + g->x->conf->classes.each[g->rq.slo_class].ttft_us;
        err_code rc = depot_acquire(adapters_of(s)->depot, registry_of(s), n->owner, n->adapter,
                                    until_us, &g->adapter, &retry_ms, e);
        if (rc) return rc;
    }
    static const uint8_t bare[DIGEST_BYTES];
    if (n->version_id != (g->adapter ? g->adapter->id : 0) ||
        memcmp(n->digest, g->adapter ? g->adapter->digest : bare, DIGEST_BYTES) != 0)
        return err_set(e, ERR_CONFLICT, "'%s' is another version here", n->adapter);
    return vocabulary_acquire(engine_of(s)->vocabularies, g->adapter, &g->vocab, e);
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

/* Its text so far. */
static sched_text text_of(const guest *g)
{
    const request *rq = &g->rq;
    return (sched_text){.domain = move_domain(rq, &g->name),
                        .token = rq->prompt,
                        .n_token = rq->n_prompt + rq->n_given};
}

/* Its keys and values, where that takes less time than computing them.  It goes on in any case. */
static void bring_pages(guest *g)
{
    int n_tokens;
    carry_want w = {.text = text_of(g),
                    .rank = g->adapter ? g->adapter->rank_max : 0,
                    .mode = g->x->conf->server.fleet_kv,
                    .node = g->name.node,
                    .pass = g->name.pass,
                    .request = g->rq.id};
    moved_kv why = carry_bring(mover_carry(engine_of(g->srv)->mover), &w, &n_tokens);
    exchange_note(g->x, "kv", "%s", moved_kv_name(why));
    exchange_note_number(g->x, "kv_tokens", n_tokens, 0);
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
    if (atomic_load(&process_of(g->srv)->http.draining))
        return err_set(e, ERR_STOPPING, "this server drains, too");
    const config_class *class = &g->x->conf->classes.each[rq->slo_class];
    g->prompt_only = rq->n_given == 0 && rq->max_tokens == 1;
    if (rq->n_given == 0) rq->ttft_deadline_us = now + class->ttft_us;
    rq->tpot_target_us = class->tpot_us;
    if (!g->prompt_only) bring_pages(g);
    rq->again = true; /* who began it kept its promise, or did not */
    rq->arrived_us = now;
    rq->meter = &g->unbilled;
    rq->signal = &g->signal;
    return sched_submit(sched_of(g->srv), rq, e);
}

static bool say(guest *g, const sampled *t)
{
    char text[MOVE_TOKEN_MAX];
    return exchange_stream_write(g->x, text, move_put(t, text));
}

/* Before its first token. */
static bool say_cached(guest *g)
{
    const sampled t = {
        .token = MOVE_CACHED, .rank = (int)atomic_load(&g->unbilled.cached_tokens), .n_top = -1};
    return say(g, &t);
}

/* Whoever asked for the prompt fetches its pages.  The text ends with the token that was made, so
 * the prompt's last page is among them if it is full. */
static void keep_text(const guest *g)
{
    sched_text t = text_of(g);
    size_t n = (size_t)t.n_token;
    int32_t *token = arena_alloc(&g->x->arena, (n + 1) * sizeof(*token));
    if (!token) return;
    memcpy(token, t.token, n * sizeof(*token));
    token[n] = g->rq.out.token[0];
    t.token = token;
    t.n_token++;
    mover_keep(engine_of(g->srv)->mover, g->name.pass, &t);
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
            if (g->prompt_only) open = open && say_cached(g);
            open = open && say(g, &t);
            spoke_us = clock_now_us();
        }
        if (ended) break;
        const sampled ping = {.token = MOVE_PING, .n_top = -1};
        if (clock_now_us() - spoke_us > PING_US) {
            open = open && say(g, &ping);
            spoke_us = clock_now_us();
        }
        if (!open || exchange_client_gone(g->x) || atomic_load(&process_of(g->srv)->http.draining))
            request_cancel(&g->rq);
        (void)request_signal_wait(&g->signal, &seen, wait_ms);
    }
    int why = atomic_load(&g->rq.finish);
    const sampled end = {.token = MOVE_END, .rank = why, .n_top = -1};
    if (g->prompt_only && why == FINISH_LENGTH) keep_text(g);
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
    atomic_fetch_add(&process_of(g->srv)->count.moves_in, 1);
    int fd = connection_socket();
    bool watched = deadline_watch(fd, wake, &g->signal);
    follow(g, exchange_stream_begin(g->x, "application/octet-stream"), watched ? WAIT_MS : LOOK_MS);
    if (watched) deadline_unwatch(fd);
}

void move_take_request(exchange *x)
{
    const char *order;
    size_t len;
    guest g = {.x = x, .srv = x->app};
    if (!is_node(x)) return;
    if (!exchange_read_body(x, (size_t)x->conf->server.max_body, &order, &len)) return;
    request_signal_init(&g.signal);
    run(&g, order, len);
    request_clear(&g.rq);
    vocabulary_release(engine_of(x->app)->vocabularies, g.vocab);
    registry_release(registry_of(x->app), g.adapter);
    request_signal_clear(&g.signal);
}

/* --------------------------------------------------------------------- an adapter -- */

/* Files and weights come while the prompt is computed elsewhere.  What is refused here is refused
 * again, with its reason, when the request comes. */
void move_expect_adapter(exchange *x)
{
    const char *body;
    size_t len;
    move_name name;
    int64_t retry_ms;
    const adapter_version *v = NULL;
    err e;
    if (!is_node(x)) return;
    if (!exchange_read_body(x, sizeof(move_notice), &body, &len)) return;
    err_code rc = move_read_notice(body, len, &name, &e);
    if (!rc)
        rc = depot_acquire(adapters_of(x->app)->depot, registry_of(x->app), name.owner,
                           name.adapter, clock_now_us() + EXPECT_US, &v, &retry_ms, &e);
    if (rc) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    if (v->id == name.version_id) residency_warm(residency_of(x->app), v->id);
    registry_release(registry_of(x->app), v);
    exchange_reply(x, 202, "application/json", "{}", 2);
}

/* ------------------------------------------------------------------------ pages -- */

/* Some pages of a text that another node has now: `at` and on, n of them, in `buffer`. */
typedef struct lending {
    exchange *x;
    const sched_text *text;
    unsigned char *buffer;
    int at, n, end;
} lending;

/* Of a model with states, pages behind the last snapshot are of no use. */
static err_code find_end(lending *l, err *e)
{
    double us;
    sched *sc = sched_of(l->x->app);
    l->end = sched_text_pages(sc, l->text);
    if (sched_state_bytes(sc) == 0) return ERR_NONE;
    return sched_pages_look(sc, l->text, 0, clock_now_us() + COPY_US, &l->end, &us, e);
}

static err_code copy_out(lending *l, err *e)
{
    sched *sc = sched_of(l->x->app);
    int left = l->end - l->at, most = carry_pages_at_once(sc);
    l->n = 0;
    if (left <= 0) return ERR_NONE;
    return sched_pages_save(sc, l->text, l->at, left < most ? left : most, l->buffer,
                            clock_now_us() + COPY_US, &l->n, e);
}

static bool send_pages(lending *l)
{
    const sched *sc = sched_of(l->x->app);
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

/* Behind all pages before it.  Without it, whoever asked computes them. */
static bool send_state(const lending *l)
{
    err e;
    bool done, open = true;
    uint8_t digest[DIGEST_BYTES];
    sched *sc = sched_of(l->x->app);
    size_t bytes = sched_state_bytes(sc);
    if (bytes == 0 || l->at < l->end) return true;
    unsigned char *state = malloc(bytes);
    if (state &&
        !sched_state_save(sc, l->text, l->end, state, clock_now_us() + COPY_US, &done, &e) &&
        done) {
        move_state_digest(l->text, l->end, sched_page_tokens(sc), state, bytes, digest);
        open = exchange_stream_write(l->x, (const char *)digest, sizeof(digest)) &&
               exchange_stream_write(l->x, (const char *)state, bytes);
    }
    free(state);
    return open;
}

/* As far as they are there: what is missing is computed by who asks. */
static void lend(exchange *x, const sched_text *text, int first)
{
    err e;
    const sched *sc = sched_of(x->app);
    size_t most = (size_t)carry_pages_at_once(sc) * sched_page_bytes(sc);
    lending l = {.x = x, .text = text, .buffer = calloc(1, most), .at = first};
    move_pages head;
    err_code rc = l.buffer ? find_end(&l, &e) : err_set(&e, ERR_NOMEM, "out of memory");
    if (!rc) rc = copy_out(&l, &e);
    if (!rc && l.n == 0) rc = err_set(&e, ERR_NOT_FOUND, "none of its pages is here any more");
    if (rc) {
        exchange_reply_err(x, &e, NULL);
        free(l.buffer);
        return;
    }
    move_write_pages(engine_of(x->app)->fingerprint, sched_page_bytes(sc), sched_page_tokens(sc),
                     first, &head);
    if (sched_state_bytes(sc) > 0) move_add_state(sched_state_bytes(sc), l.end, &head);
    bool open = exchange_stream_begin(x, "application/octet-stream") &&
                exchange_stream_write(x, (const char *)&head, sizeof(head));
    while (open && l.n > 0) {
        open = send_pages(&l);
        if (open && copy_out(&l, &e)) l.n = 0;
    }
    open = open && send_state(&l);
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
    if (!rc && strcmp(ask.build, engine_of(x->app)->fingerprint) != 0)
        rc =
            err_set(&e, ERR_CONFLICT, "this server computes as %s", engine_of(x->app)->fingerprint);
    if (!rc) rc = mover_lend(engine_of(x->app)->mover, ask.pass, &text, &e);
    if (rc) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    lend(x, &text, (int)ask.first);
    mover_lent(engine_of(x->app)->mover, &text);
}
