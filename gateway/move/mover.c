/* mover.c -- hands requests over to other nodes of a fleet: because this node drains, or by roles.
 *
 *   engine: request leaves (FINISH_LEFT) --mover_take()--> order = prompt, answer so far, rules
 *      --POST MOVE_PATH--> other node continues; its tokens come back in the response body
 *      --push()--> the request's ring: the client's worker notices nothing
 *   mover_ask_prompt(): no engine has had it; the order is for one token, then it comes back
 *   mover_prefetch():   no request: the other node is told an adapter (MOVE_ADAPTERS_PATH)
 *
 * One thread with a libcurl multi handle, one transfer per request. Nodes come from roster.h. While
 * this node drains, a failure is followed by the next node; if all fail, and for a node that was
 * chosen by roles, the request is submitted to our own engine again (take_back()). Tokens are
 * numbered by their order, so a request can change nodes at any token.
 *
 * The other node computes only: limits, usage and the client's connection stay here. It asks for
 * the KV pages of the request by its random `pass` (mover_lend()), or computes the prompt again.
 * Both nodes must have the same fingerprint, so the bits are the same. Texts of prompts computed
 * for others stay in `texts` for some seconds, for the same question.
 *
 * Threads: the relay thread owns transfers; `mu` guards `fresh`, `texts`, and the list that lenders
 * search.
 */
#include "gateway/move/mover.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/hex.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/engine_parts.h"
#include "gateway/move/carry.h"
#include "gateway/move/node_door.h"
#include "gateway/move/roster.h"
#include "gateway/move/texts.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"
#include "storage/digest.h"

enum {
    LENT_MAX = 16,  /* concurrent transfers of pages out of this node: each takes a few MiB, a
                     * state, and a thread */
    LOOK_MS = 50,   /* interval of checks for cancelled requests */
    IDLE_MS = 1000, /* the same while nothing is at another node */
    SILENT_S = 20,  /* a node silent for so long is lost; it sends MOVE_PING when idle */
};

typedef enum { MOVE_LEFT, MOVE_PROMPT, MOVE_NOTICE } move_kind;

/* One moved request, from mover_take() or mover_ask_prompt() on; or a notice. */
typedef struct move {
    /* In the list of fresh ones, then of moved ones; the latter changes under mu. */
    struct move *next, *prev;
    mover *m;
    move_kind kind;
    request *rq; /* NULL: a notice */
    move_name name;
    move_from *from; /* of a prompt: where its pages are; written before it comes back */
    uint64_t tried;  /* of nodes, by the roster's index */
    int first;       /* the one that was chosen; ROSTER_NONE: any */
    int at;          /* the one that has it now */
    int64_t sent_us;
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
    roster *roster;
    char word[DOOR_WORD_MAX + 1];
    pthread_t thread;
    CURLM *multi;
    move *away; /* the thread's own; others look at it under mu */
    atomic_bool wants, stop;
    atomic_int n;      /* requests that are with us, or on their way */
    atomic_int n_lent; /* texts: mover_lend() */
    lock mu;           /* guards: */
    move *fresh;
    texts texts;
};

/* ------------------------------------------------------------------ the door -- */

static err_code make_door(const mover *m, const char *cert_path, char door[NODE_DOOR_MAX + 1],
                          err *e)
{
    return node_door_write(process_of(m->srv)->cfg->server.fleet_address, cert_path, m->word, door,
                           e);
}

void mover_renew(mover *m, const char *cert_path)
{
    err e;
    char door[NODE_DOOR_MAX + 1];
    if (!m) return;
    if (make_door(m, cert_path, door, &e))
        log_error("gateway", "%s", e.msg);
    else
        roster_renew(m->roster, door);
}

bool mover_knows(const mover *m, const char *word)
{
    return m && word && strlen(word) == DOOR_WORD_MAX && digest_same(word, m->word, DOOR_WORD_MAX);
}

/* ------------------------------------------------------------- one transfer -- */

static bool in_vocabulary(const mover *m, const request *rq, const sampled *t)
{
    int n = rq->n_vocab > 0 ? rq->n_vocab : model_get_config(engine_of(m->srv)->model)->n_vocab;
    int most = rq->rules.n_top > 0 ? rq->rules.n_top : 0;
    bool good = t->token >= 0 && t->token < n && t->n_top <= most;
    for (int i = 0; i < t->n_top; i++) good = good && t->top_id[i] >= 0 && t->top_id[i] < n;
    return good;
}

/* Its prompt ran at the other node: as the engine would have noted it. */
static void see_first(const move *v, int64_t now)
{
    request *rq = v->rq;
    rq->times.first_token_us = now;
    atomic_store(&rq->meter->first_token_ms, (uint32_t)((now - rq->arrived_us) / 1000));
    if (rq->times.admitted_us) return;
    rq->times.admitted_us = v->sent_us;
    telemetry_seat(sched_telemetry(sched_of(v->m->srv)), rq);
    if (rq->waiting) atomic_fetch_sub(rq->waiting, 1);
}

static bool see_cached(const move *v, int n)
{
    if (v->kind != MOVE_PROMPT || n < 0 || n > v->rq->n_prompt) return false;
    atomic_store(&v->rq->meter->cached_tokens, (uint32_t)n);
    return true;
}

/* As the engine would have handed it out.  False: it is none that may come. */
static bool push(move *v, const sampled *t)
{
    request *rq = v->rq;
    int64_t now = clock_now_us();
    if (t->token == MOVE_PING) return true;
    if (t->token == MOVE_CACHED) return see_cached(v, t->rank);
    if (t->token == MOVE_END) v->end = t->rank;
    if (t->token == MOVE_END) return true;
    int most = v->kind == MOVE_PROMPT ? v->n_given + 1 : rq->max_tokens;
    if (v->end || atomic_load(&rq->out.n_pushed) >= most || !in_vocabulary(v->m, rq, t))
        return false;
    int64_t before = rq->times.last_token_us;
    if (!rq->times.first_token_us) see_first(v, now);
    rq->times.last_token_us = now;
    telemetry_token(sched_telemetry(sched_of(v->m->srv)), rq, before);
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
    if (status != 200 || v->kind == MOVE_NOTICE) return size * n;
    for (size_t at = 0; at < size * n;) {
        size_t more = size * n - at, room = sizeof(v->part) - v->n_part;
        assert(room > 0); /* what fills it is a token, or none */
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

/* The node that was chosen for it.  A request that left because this node drains may go to any. */
static int pick(const move *v)
{
    if (v->first >= 0 && !(v->tried >> v->first & 1)) return v->first;
    if (v->kind != MOVE_LEFT || (v->first >= 0 && !atomic_load(&v->m->wants))) return ROSTER_NONE;
    return roster_next(v->m->roster, v->tried);
}

static bool set_up(move *v, const node_door *door, size_t len)
{
    CURL *c = v->curl;
    const char *path = v->kind == MOVE_NOTICE ? MOVE_ADAPTERS_PATH : MOVE_PATH;
    return node_door_post(c, door, path, v->order, len, &v->headers) &&
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
        roster_return(v->m->roster, v->at);
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

static bool write_order(move *v, size_t *len)
{
    err e;
    if (v->kind == MOVE_NOTICE) return move_write_notice(&v->name, &v->order, len, &e) == ERR_NONE;
    v->n_given = atomic_load(&v->rq->out.n_pushed);
    int most = v->kind == MOVE_PROMPT ? v->n_given + 1 : v->rq->max_tokens;
    return move_write(v->rq, &v->name, most, clock_now_us(), &v->order, len, &e) == ERR_NONE;
}

static bool ask(move *v, int at)
{
    size_t len;
    node_door door;
    mover *m = v->m;
    if (!write_order(v, &len)) return false;
    v->curl = curl_easy_init();
    if (!v->curl) return false;
    v->at = at;
    v->sent_us = clock_now_us();
    roster_send(m->roster, at, &door);
    lock_take(&m->mu);
    v->prev = NULL;
    v->next = m->away;
    if (v->next) v->next->prev = v;
    m->away = v;
    lock_release(&m->mu);
    return set_up(v, &door, len) && !curl_multi_add_handle(m->multi, v->curl);
}

/* --------------------------------------------------------------- its end -- */

static void drop(move *v)
{
    hang_up(v);
    free(v);
}

static void done(move *v, finish_reason why)
{
    request *rq = v->rq;
    mover *m = v->m;
    drop(v);
    sched_ended_elsewhere(sched_of(m->srv), rq, why, NULL);
    request_finish(rq, why, NULL);
    atomic_fetch_sub(&m->n, 1);
}

static void cancelled(move *v)
{
    done(v, atomic_load(&v->rq->stopped) ? FINISH_STOP : FINISH_CANCELLED);
}

/* No peer accepted it, or the peer was lost: continue here. */
static void take_back(move *v)
{
    err e;
    request *rq = v->rq;
    mover *m = v->m;
    drop(v);
    rq->n_given = atomic_load(&rq->out.n_pushed);
    rq->again = true;
    if (sched_submit(sched_of(m->srv), rq, &e))
        request_finish(rq, FINISH_ERROR, &e);
    else
        atomic_fetch_add(&process_of(m->srv)->count.moves_back, 1);
    atomic_fetch_sub(&m->n, 1);
}

/* Its first token was made; whoever waits for it goes on with it (mover_forget()). */
static void come_back(move *v)
{
    request *rq = v->rq;
    *v->from = (move_from){.node = roster_number(v->m->roster, v->at), .pass = v->name.pass};
    atomic_fetch_add(&process_of(v->m->srv)->count.moves_prompts, 1);
    drop(v);
    request_finish(rq, FINISH_LEFT, NULL);
}

/* True: it is at another node; false: it is not ours any more. */
static bool send_on(move *v)
{
    hang_up(v);
    for (int at; (at = pick(v)) >= 0; hang_up(v)) {
        v->tried |= UINT64_C(1) << at;
        if (ask(v, at)) return true;
    }
    if (v->kind == MOVE_NOTICE)
        drop(v);
    else
        take_back(v);
    return false;
}

/* It asks too much of any node, or that one lacks its adapter: says nothing about the node. */
static bool is_own_fault(const move *v)
{
    long status = 0;
    (void)curl_easy_getinfo(v->curl, CURLINFO_RESPONSE_CODE, &status);
    return status == 400 || status == 404;
}

/* What its transfer has come to. */
static void see_end(move *v)
{
    const request *rq = v->rq;
    if (v->kind == MOVE_NOTICE) {
        drop(v);
        return;
    }
    int n = atomic_load(&rq->out.n_pushed);
    bool length = v->end == FINISH_LENGTH;
    if (v->end == FINISH_STOP || n >= rq->max_tokens || (length && v->kind == MOVE_LEFT)) {
        done(v, v->end == FINISH_STOP ? FINISH_STOP : FINISH_LENGTH);
    } else if (length && n > v->n_given) {
        come_back(v);
    } else {
        if (!is_own_fault(v)) roster_avoid(v->m->roster, v->at);
        (void)send_on(v);
    }
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
        bool left = v->kind == MOVE_LEFT;
        if (v->rq && atomic_load(&v->rq->cancel))
            cancelled(v);
        else if (send_on(v) && left)
            atomic_fetch_add(&process_of(m->srv)->count.moves_out, 1);
    }
}

/* Ends moves whose clients are gone or whose answers are complete. */
static void see_cancelled(mover *m)
{
    for (move *v = m->away, *next; v; v = next) {
        next = v->next;
        if (v->rq && atomic_load(&v->rq->cancel)) cancelled(v);
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
        (void)curl_multi_poll(m->multi, NULL, 0, m->away ? LOOK_MS : IDLE_MS, NULL);
    }
    return NULL;
}

/* -------------------------------------------------------------- what is lent -- */

/* mu is held. */
static move *find_locked(const mover *m, uint64_t pass)
{
    lock_assert_held(&m->mu);
    move *v = m->away;
    while (v && (!v->rq || v->name.pass != pass)) v = v->next;
    return v;
}

/* mu is held.  False: out of memory. */
static bool copy_away(const move *v, sched_text *out)
{
    size_t n_prompt = (size_t)v->rq->n_prompt, n = n_prompt + (size_t)v->n_given;
    int32_t *token = malloc(n * sizeof(*token));
    if (!token) return false;
    memcpy(token, v->rq->prompt, n_prompt * sizeof(*token));
    memcpy(token + n_prompt, v->rq->out.token, (n - n_prompt) * sizeof(*token));
    *out = (sched_text){.token = token, .n_token = (int)n};
    out->domain = move_domain(v->rq, &v->name);
    return true;
}

static err_code copy_text(mover *m, uint64_t pass, sched_text *out, err *e)
{
    lock_take(&m->mu);
    const move *v = find_locked(m, pass);
    const sched_text *kept = v ? NULL : texts_find(&m->texts, pass, clock_now_us());
    bool good = v ? copy_away(v, out) : kept && texts_copy(kept, out);
    lock_release(&m->mu);
    if (good) return ERR_NONE;
    return v || kept
               ? err_set(e, ERR_NOMEM, "out of memory")
               : err_set(e, ERR_NOT_FOUND, "no request with this pass runs at another server");
}

void mover_keep(mover *m, uint64_t pass, const sched_text *text)
{
    sched_text copy;
    if (!texts_copy(text, &copy)) return; /* its pages will not be found: they are computed again */
    lock_take(&m->mu);
    void *was = texts_add(&m->texts, pass, &copy, clock_now_us());
    lock_release(&m->mu);
    free(was);
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
    int was = atomic_fetch_sub(&m->n_lent, 1);
    assert(was > 0);
}

carry *mover_carry(const mover *m)
{
    return m->carry;
}

/* ------------------------------------------------------------------ the rest -- */

static bool start(mover *m)
{
    m->multi = curl_multi_init();
    if (!m->multi) return false;
    if (pthread_create(&m->thread, NULL, relay, m) == 0) return true;
    (void)curl_multi_cleanup(m->multi);
    m->multi = NULL;
    return false;
}

err_code mover_create(mover **out, server *s, const char *cert_path, err *e)
{
    uint8_t word[DOOR_WORD_BYTES];
    char door[NODE_DOOR_MAX + 1];
    mover *m = calloc(1, sizeof(*m));
    if (!m) return err_set(e, ERR_NOMEM, "out of memory");
    m->srv = s;
    random_bytes(word, sizeof(word));
    hex_write(word, sizeof(word), m->word);
    lock_init(&m->mu, LOCK_MOVER);
    err_code rc = make_door(m, cert_path, door, e);
    m->carry = carry_create(s);
    if (!rc && m->carry) m->roster = roster_create(s, m->carry, door);
    if (!rc && !(m->roster && start(m))) rc = err_set(e, ERR_NOMEM, "out of memory");
    if (!rc) carry_ask(m->carry, m->roster);
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
                 (unsigned long long)atomic_load(&process_of(m->srv)->count.moves_out),
                 (unsigned long long)atomic_load(&process_of(m->srv)->count.moves_back));
    }
    roster_destroy(m->roster);
    carry_destroy(m->carry);
    texts_clear(&m->texts);
    lock_free(&m->mu);
    free(m);
}

void mover_begin(mover *m)
{
    err e;
    if (!m) return;
    if (roster_look(m->roster, &e)) {
        log_warn("gateway", "what runs stays here: %s", e.msg);
        return;
    }
    int n = roster_size(m->roster);
    atomic_store(&m->wants, n > 0);
    log_info("gateway", "draining: %d other servers are asked to go on with what runs", n);
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
    int was = atomic_fetch_sub(&m->n, 1);
    assert(was > 0); /* mover_expect() came before */
}

roster *mover_roster(const mover *m)
{
    return m->roster;
}

static void hand_over(mover *m, move *v)
{
    v->name.node = nodes_self(store_of(m->srv));
    random_bytes(&v->name.pass, sizeof(v->name.pass));
    lock_take(&m->mu);
    v->next = m->fresh;
    m->fresh = v;
    lock_release(&m->mu);
    (void)curl_multi_wakeup(m->multi);
}

void mover_take(mover *m, request *rq, const move_name *name, int first)
{
    move *v = calloc(1, sizeof(*v));
    if (!v) {
        const err none = {ERR_NOMEM, "out of memory, try again"};
        request_finish(rq, FINISH_ERROR, &none);
        mover_forget(m);
        return;
    }
    *v = (move){.m = m, .kind = MOVE_LEFT, .rq = rq, .name = *name, .first = first};
    hand_over(m, v);
}

bool mover_ask_prompt(mover *m, request *rq, const move_name *name, int first, move_from *from)
{
    move *v = calloc(1, sizeof(*v));
    if (!v) return false;
    *v = (move){.m = m, .kind = MOVE_PROMPT, .rq = rq, .name = *name, .first = first, .from = from};
    mover_expect(m);
    hand_over(m, v);
    return true;
}

void mover_prefetch(mover *m, const move_name *name, int at)
{
    if (!name->version_id || !roster_tell_adapter(m->roster, at, name->version_id)) return;
    move *v = calloc(1, sizeof(*v));
    if (!v) return; /* it loads the adapter when the request comes */
    *v = (move){.m = m, .kind = MOVE_NOTICE, .name = *name, .first = at};
    hand_over(m, v);
}
