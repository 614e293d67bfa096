/* mover.c -- one thread, one libcurl multi handle, one transfer for each request that is away. */
#include "gateway/move/mover.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/hex.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/move/carry.h"
#include "gateway/move/node_door.h"
#include "storage/digest.h"

enum {
    PEERS_MAX = 64,
    LENT_MAX = 16, /* texts whose pages are given at once: each takes a few MiB and a thread */
    LOOK_MS = 50,  /* how often it is seen that a client is gone */
    SILENT_S = 20, /* a node that says nothing for so long is lost; it has MOVE_PING */
    TELL_AGAIN_US = 1000000,
    ALIVE_US = 10000000, /* without a heartbeat for so long a node is not asked */
};

typedef struct peer {
    int n_here; /* requests of ours that it has */
    node_door door;
} peer;

/* One request, from mover_take() on. */
typedef struct move {
    /* Of the fresh ones, then of those that are elsewhere; those change under mu. */
    struct move *next, *prev;
    mover *m;
    request *rq;
    move_name name;
    uint64_t tried; /* of peers, by index */
    int at;         /* whose index has it now */
    CURL *curl;
    struct curl_slist *headers;
    void *order;
    int n_given;               /* tokens of the answer in it */
    char part[MOVE_TOKEN_MAX]; /* of a token that has not come whole */
    size_t n_part;
    int end; /* finish_reason that was said; FINISH_NONE: none */
} move;

struct mover {
    server *srv;
    carry *carry;
    char door[NODE_DOOR_MAX + 1], word[DOOR_WORD_MAX + 1];
    int64_t told, look_us; /* main thread: nodes_tell_door(); when it is next tried */
    peer peers[PEERS_MAX];
    int n_peer;
    pthread_t thread;
    CURLM *multi;
    move *away; /* the thread's own; others look at it under mu */
    atomic_bool wants, stop;
    atomic_int n;      /* requests that are with us, or on their way */
    atomic_int n_lent; /* texts: mover_lend() */
    lock mu;           /* guards: */
    move *fresh;
};

/* ------------------------------------------------------------------ the door -- */

static err_code make_door(mover *m, const char *cert_path, err *e)
{
    m->told = 0;
    m->look_us = 0;
    return node_door_write(m->srv->cfg->server_fleet_address, cert_path, m->word, m->door, e);
}

void mover_tell(mover *m)
{
    err e;
    int64_t now = clock_now_us();
    if (!m || now < m->look_us) return;
    m->look_us = now + TELL_AGAIN_US;
    if (nodes_tell_door(m->srv->store, m->door, &m->told, &e))
        log_warn("gateway", "the fleet was not told where this server takes requests: %s", e.msg);
}

void mover_renew(mover *m, const char *cert_path)
{
    err e;
    if (m && make_door(m, cert_path, &e)) log_error("gateway", "%s", e.msg);
}

bool mover_knows(const mover *m, const char *word)
{
    return m && word && strlen(word) == DOOR_WORD_MAX && digest_same(word, m->word, DOOR_WORD_MAX);
}

/* ------------------------------------------------------------- one transfer -- */

static bool in_vocabulary(const mover *m, const request *rq, const sampled *t)
{
    int n = rq->n_vocab > 0 ? rq->n_vocab : model_get_config(m->srv->model)->n_vocab;
    int most = rq->rules.n_top > 0 ? rq->rules.n_top : 0;
    bool good = t->token >= 0 && t->token < n && t->n_top <= most;
    for (int i = 0; i < t->n_top; i++) good = good && t->top_id[i] >= 0 && t->top_id[i] < n;
    return good;
}

/* As the engine would have handed it out.  False: it is none that may come. */
static bool push(move *v, const sampled *t)
{
    request *rq = v->rq;
    int64_t now = clock_now_us();
    if (t->token == MOVE_PING) return true;
    if (t->token == MOVE_END) v->end = t->rank;
    if (t->token == MOVE_END) return true;
    if (v->end || atomic_load(&rq->n_pushed) >= rq->max_tokens || !in_vocabulary(v->m, rq, t))
        return false;
    if (!rq->first_token_us) {
        rq->first_token_us = now;
        atomic_store(&rq->meter->first_token_ms, (uint32_t)((now - rq->arrived_us) / 1000));
    }
    rq->last_token_us = now;
    atomic_store(&rq->meter->prompt_tokens, (uint32_t)rq->n_prompt);
    atomic_fetch_add(&rq->meter->output_tokens, 1);
    request_push(rq, t);
    return true;
}

static size_t receive(char *data, size_t size, size_t n, void *arg)
{
    move *v = arg;
    long status = 0;
    (void)curl_easy_getinfo(v->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) return size * n;
    for (size_t at = 0; at < size * n;) {
        size_t more = size * n - at, room = sizeof(v->part) - v->n_part;
        sampled t;
        if (more > room) more = room;
        memcpy(v->part + v->n_part, data + at, more);
        at += more;
        v->n_part += more;
        int used;
        while ((used = move_take(v->part, v->n_part, &t)) > 0) {
            if (!push(v, &t)) return 0;
            v->n_part -= (size_t)used;
            memmove(v->part, v->part + used, v->n_part);
        }
        if (used < 0) return 0;
    }
    return size * n;
}

/* The peer with the least of ours that this request has not tried; -1: none. */
static int pick_peer(const mover *m, const move *v)
{
    int best = -1;
    for (int i = 0; i < m->n_peer; i++) {
        if (v->tried >> i & 1) continue;
        if (best < 0 || m->peers[i].n_here < m->peers[best].n_here) best = i;
    }
    return best;
}

static bool set_up(move *v, const peer *p, size_t len)
{
    CURL *c = v->curl;
    return node_door_post(c, &p->door, MOVE_PATH, v->order, len, &v->headers) &&
           !curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L) &&
           !curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)SILENT_S) &&
           !curl_easy_setopt(c, CURLOPT_PRIVATE, v) &&
           !curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, receive) &&
           !curl_easy_setopt(c, CURLOPT_WRITEDATA, v);
}

static void hang_up(move *v)
{
    if (v->curl) {
        (void)curl_multi_remove_handle(v->m->multi, v->curl);
        curl_easy_cleanup(v->curl);
        v->m->peers[v->at].n_here--;
        lock_take(&v->m->mu);
        if (v->prev) v->prev->next = v->next;
        if (!v->prev) v->m->away = v->next;
        if (v->next) v->next->prev = v->prev;
        lock_release(&v->m->mu);
    }
    curl_slist_free_all(v->headers);
    free(v->order);
    v->curl = NULL;
    v->headers = NULL;
    v->order = NULL;
    v->n_part = 0;
}

static bool ask(move *v, int at)
{
    err e;
    size_t len;
    mover *m = v->m;
    if (move_write(v->rq, &v->name, clock_now_us(), &v->order, &len, &e)) return false;
    v->curl = curl_easy_init();
    if (!v->curl) return false;
    v->at = at;
    m->peers[at].n_here++;
    v->n_given = atomic_load(&v->rq->n_pushed);
    lock_take(&m->mu);
    v->prev = NULL;
    v->next = m->away;
    if (v->next) v->next->prev = v;
    m->away = v;
    lock_release(&m->mu);
    return set_up(v, &m->peers[at], len) && !curl_multi_add_handle(m->multi, v->curl);
}

/* --------------------------------------------------------------- its end -- */

static void done(move *v, finish_reason why, const err *e)
{
    request *rq = v->rq;
    atomic_int *n = &v->m->n;
    hang_up(v);
    free(v);
    request_finish(rq, why, e);
    atomic_fetch_sub(n, 1);
}

/* Nobody has taken it, or whoever had is lost. */
static void take_back(move *v)
{
    err e;
    request *rq = v->rq;
    mover *m = v->m;
    rq->n_given = atomic_load(&rq->n_pushed);
    if (sched_submit(m->srv->sched, rq, &e)) {
        done(v, FINISH_ERROR, &e);
        return;
    }
    atomic_fetch_add(&m->srv->count.moves_back, 1);
    hang_up(v);
    free(v);
    atomic_fetch_sub(&m->n, 1);
}

/* True: it is at another node; false: it is not ours any more. */
static bool send_on(move *v)
{
    hang_up(v);
    for (int at; (at = pick_peer(v->m, v)) >= 0; hang_up(v)) {
        v->tried |= UINT64_C(1) << at;
        if (ask(v, at)) return true;
    }
    take_back(v);
    return false;
}

/* What its transfer has come to. */
static void see_end(move *v)
{
    const request *rq = v->rq;
    bool whole = v->end == FINISH_STOP || v->end == FINISH_LENGTH;
    bool full = atomic_load(&rq->n_pushed) >= rq->max_tokens;
    if (whole || full)
        done(v, whole ? (finish_reason)v->end : FINISH_LENGTH, NULL);
    else
        (void)send_on(v);
}

/* ---------------------------------------------------------------- the thread -- */

static void start_fresh(mover *m)
{
    lock_take(&m->mu);
    move *v = m->fresh;
    m->fresh = NULL;
    lock_release(&m->mu);
    for (move *next; v; v = next) {
        next = v->next;
        if (atomic_load(&v->rq->cancel))
            done(v, atomic_load(&v->rq->stopped) ? FINISH_STOP : FINISH_CANCELLED, NULL);
        else if (send_on(v))
            atomic_fetch_add(&m->srv->count.moves_out, 1);
    }
}

/* Clients that are gone, and answers that are complete. */
static void see_cancelled(mover *m)
{
    for (move *v = m->away, *next; v; v = next) {
        next = v->next;
        if (atomic_load(&v->rq->cancel))
            done(v, atomic_load(&v->rq->stopped) ? FINISH_STOP : FINISH_CANCELLED, NULL);
    }
}

static void *relay(void *arg)
{
    mover *m = arg;
    int running, left;
    while (!atomic_load(&m->stop)) {
        start_fresh(m);
        (void)curl_multi_perform(m->multi, &running);
        for (CURLMsg *msg; (msg = curl_multi_info_read(m->multi, &left));) {
            move *v = NULL;
            (void)curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&v);
            see_end(v);
        }
        see_cancelled(m);
        (void)curl_multi_poll(m->multi, NULL, 0, LOOK_MS, NULL);
    }
    return NULL;
}

/* -------------------------------------------------------------- what is lent -- */

/* mu is held. */
static move *find_locked(const mover *m, uint64_t pass)
{
    lock_assert_held(&m->mu);
    move *v = m->away;
    while (v && v->name.pass != pass) v = v->next;
    return v;
}

static err_code copy_text(mover *m, uint64_t pass, sched_text *out, err *e)
{
    lock_take(&m->mu);
    const move *v = find_locked(m, pass);
    size_t n = v ? (size_t)v->rq->n_prompt + (size_t)v->n_given : 0;
    int32_t *token = v ? malloc(n * sizeof(*token)) : NULL;
    if (token) {
        size_t n_prompt = (size_t)v->rq->n_prompt;
        memcpy(token, v->rq->prompt, n_prompt * sizeof(*token));
        memcpy(token + n_prompt, v->rq->output, (n - n_prompt) * sizeof(*token));
        *out = (sched_text){.token = token, .n_token = (int)n};
        out->domain.isolation = v->rq->isolation;
        if (v->rq->adapter_id) out->domain.from = v->rq->adapter_from;
        memcpy(out->domain.digest, v->name.digest, sizeof(out->domain.digest));
    }
    lock_release(&m->mu);
    if (token) return ERR_NONE;
    return v ? err_set(e, ERR_NOMEM, "out of memory")
             : err_set(e, ERR_NOT_FOUND, "no request with this pass is at another server");
}

err_code mover_lend(mover *m, uint64_t pass, sched_text *out, err *e)
{
    err_code rc = ERR_NONE;
    if (atomic_fetch_add(&m->n_lent, 1) >= LENT_MAX)
        rc = err_set(e, ERR_BUSY, "pages of %d requests are given already", LENT_MAX);
    if (!rc) rc = copy_text(m, pass, out, e);
    if (rc) atomic_fetch_sub(&m->n_lent, 1);
    return rc;
}

void mover_lent(mover *m, sched_text *text)
{
    free((void *)text->token);
    atomic_fetch_sub(&m->n_lent, 1);
}

carry *mover_carry(const mover *m)
{
    return m->carry;
}

/* ------------------------------------------------------------------ the rest -- */

err_code mover_create(mover **out, server *s, const char *cert_path, err *e)
{
    uint8_t word[DOOR_WORD_BYTES];
    mover *m = calloc(1, sizeof(*m));
    if (!m) return err_set(e, ERR_NOMEM, "out of memory");
    m->srv = s;
    random_bytes(word, sizeof(word));
    hex_write(word, sizeof(word), m->word);
    lock_init(&m->mu, LOCK_MOVER);
    m->carry = carry_create(s);
    err_code rc = m->carry ? make_door(m, cert_path, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc) mover_destroy(m);
    if (!rc) *out = m;
    return rc;
}

void mover_destroy(mover *m)
{
    if (!m) return;
    if (m->multi) {
        atomic_store(&m->stop, true);
        (void)curl_multi_wakeup(m->multi);
        (void)pthread_join(m->thread, NULL);
        (void)curl_multi_cleanup(m->multi);
        log_info("gateway", "%llu running requests went on at other servers, %llu came back",
                 (unsigned long long)atomic_load(&m->srv->count.moves_out),
                 (unsigned long long)atomic_load(&m->srv->count.moves_back));
    }
    carry_destroy(m->carry);
    lock_free(&m->mu);
    free(m);
}

void mover_begin(mover *m)
{
    err e;
    fleet_member *list;
    size_t n;
    if (!m) return;
    if (nodes_list(m->srv->store, &list, &n, &e)) {
        log_warn("gateway", "what runs stays here: %s", e.msg);
        return;
    }
    for (size_t i = 0; i < n && m->n_peer < PEERS_MAX; i++) {
        const fleet_member *o = &list[i];
        bool may = o->node != nodes_self(m->srv->store) && !o->drains && o->silent_us >= 0 &&
                   o->silent_us < ALIVE_US;
        if (may && node_door_read(o->door, &m->peers[m->n_peer].door)) m->n_peer++;
    }
    free(list);
    m->multi = m->n_peer ? curl_multi_init() : NULL;
    if (m->multi && pthread_create(&m->thread, NULL, relay, m) != 0) {
        (void)curl_multi_cleanup(m->multi);
        m->multi = NULL;
    }
    atomic_store(&m->wants, m->multi != NULL);
    log_info("gateway", "draining: %d other servers are asked to go on with what runs", m->n_peer);
}

bool mover_wants(const mover *m)
{
    return m && atomic_load(&m->wants);
}

bool mover_idle(const mover *m)
{
    return !m || atomic_load(&m->n) == 0;
}

void mover_expect(mover *m)
{
    atomic_fetch_add(&m->n, 1);
}

void mover_forget(mover *m)
{
    atomic_fetch_sub(&m->n, 1);
}

void mover_take(mover *m, request *rq, const move_name *name)
{
    move *v = calloc(1, sizeof(*v));
    if (!v) {
        const err none = {ERR_NOMEM, "out of memory, try again"};
        request_finish(rq, FINISH_ERROR, &none);
        mover_forget(m);
        return;
    }
    *v = (move){.m = m, .rq = rq, .name = *name};
    v->name.node = nodes_self(m->srv->store);
    random_bytes(&v->name.pass, sizeof(v->name.pass));
    lock_take(&m->mu);
    v->next = m->fresh;
    m->fresh = v;
    lock_release(&m->mu);
    (void)curl_multi_wakeup(m->multi);
}
