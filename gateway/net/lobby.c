/* lobby.c -- the event loop of a listener: accept, connection limits, phases with deadlines, and
 * the queue of ready requests for workers.
 *
 *   accept --> SHAKING --> HEAD --> queue --> worker --> KEPT (idle) --> HEAD ..
 *                |          |         \ no worker: 503    \ last answer: LINGERING --> closed
 *                +--> REFUSED (over a limit: answered, then closed)
 *
 * One thread, epoll, one-shot events: a connection is reported once and armed again when the lobby
 * next waits for it, so a connection that a worker has causes no wake-up here. Its bytes and TLS
 * are visitor.c's; HTTP/2 is streams.c's.
 *
 * All connections of a phase have the same time limit, so each phase's list is in deadline order
 * and only its head is checked (expire()). If descriptors run out, the oldest connection without a
 * request is closed (give_way()).
 *
 * Handshakes are expensive: take_events() runs at most SHAKES_MAX of them before it looks for other
 * events. A closed connection stays allocated until the end of the turn, because an event for it
 * may be in the same batch.
 *
 * Threads: the lobby's; `mu` guards only the queue and the returned list, which workers use.
 */
#include "gateway/net/lobby.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/net/lobby_inside.h"
#include "gateway/net/streams.h"

enum {
    EVENTS_MAX = 64,
    ACCEPTS_MAX = 64, /* of a socket in one turn */
    SHAKES_MAX = 2,   /* steps of handshakes before the next look at connections behind theirs */
    PAUSE_US = 100 * 1000,  /* pause of accept() when descriptors are exhausted */
    WARN_US = 10 * 1000000, /* between two log lines about the same problem */
    STOP_LOOK_MS = 50,      /* between looks whether streams have ended */
};

static const int64_t phase_us[PHASES] = {
    [PHASE_SHAKING] = LOBBY_SHAKE_US,    [PHASE_HEAD] = LOBBY_HEAD_US,
    [PHASE_KEPT] = LOBBY_KEPT_US,        [PHASE_REFUSED] = LOBBY_REFUSED_US,
    [PHASE_LINGERING] = LOBBY_LINGER_US, [PHASE_UNREAD] = LOBBY_KEPT_US};

int64_t lobby_now(const lobby *l)
{
    return l->o.now_us ? l->o.now_us() : clock_now_us();
}

/* ------------------------------------------------------------------------------ lists -- */

static void push(queue *q, visitor *v)
{
    assert(!v->next && !v->prev && q->first != v); /* in one list at a time */
    v->next = NULL;
    v->prev = q->last;
    if (q->last)
        q->last->next = v;
    else
        q->first = v;
    q->last = v;
}

static void take_off(queue *q, visitor *v)
{
    assert((v->prev || q->first == v) && (v->next || q->last == v)); /* it is in this one */
    if (v->prev)
        v->prev->next = v->next;
    else
        q->first = v->next;
    if (v->next)
        v->next->prev = v->prev;
    else
        q->last = v->prev;
    v->next = v->prev = NULL;
}

static visitor *pop(queue *q)
{
    visitor *v = q->first;
    if (v) take_off(q, v);
    return v;
}

/* Moves a connection to the list of a phase and starts its time limit. */
void lobby_enter(lobby *l, visitor *v, phase p)
{
    if (v->phase < PHASES) take_off(&l->phase[v->phase], v);
    v->phase = p;
    if (p >= PHASES) return;
    v->due_us = lobby_now(l) + phase_us[p];
    push(&l->phase[p], v);
}

/* -------------------------------------------------------------------------------- end -- */

void lobby_bury(lobby *l, visitor *v)
{
    lobby_enter(l, v, PHASE_GONE);
    visitor_clear(v);
    v->next = l->gone;
    l->gone = v;
}

void lobby_end(lobby *l, visitor *v)
{
    if (v->carrier) streams_end(l, v);
    if (v->counted) {
        peers_leave(l->o.peers, v->id);
        atomic_fetch_sub(l->o.n_connections, 1);
    }
    assert(l->n_open > 0 && l->n_refused >= v->refused);
    l->n_refused -= v->refused;
    l->n_open--;
    lobby_bury(l, v);
    spare_refill(&l->spare); /* out of what the connection gives back */
}

bool lobby_arm(lobby *l, visitor *v, uint32_t events)
{
    struct epoll_event e = {.events = events | EPOLLONESHOT, .data.ptr = v};
    if (epoll_ctl(l->epoll, EPOLL_CTL_MOD, v->fd, &e) == 0) return true;
    lobby_end(l, v);
    return false;
}

/* Closing a socket with unread bytes resets the connection and may destroy an answer on its way
 * (RFC 9112, 9.6): give the client time to read it and to close. */
void lobby_linger(lobby *l, visitor *v)
{
    if (v->carrier) streams_end(l, v);
    visitor_finish(v);
    v->drained_us = lobby_now(l) + LOBBY_DRAIN_US;
    lobby_enter(l, v, PHASE_LINGERING);
    (void)lobby_arm(l, v, EPOLLIN);
}

/* Many clients read an answer only after they have sent the whole body.  A connection over a limit
 * gets no more time, because it keeps others from an answer. */
static void drain(lobby *l, visitor *v)
{
    if (!visitor_drain(v, l->scratch) || lobby_now(l) >= v->drained_us) {
        lobby_end(l, v);
        return;
    }
    if (!v->refused) lobby_enter(l, v, PHASE_LINGERING);
    (void)lobby_arm(l, v, EPOLLIN);
}

static void refuse(lobby *l, visitor *v, lobby_refusal why)
{
    if (v->is_stream) {
        streams_refuse(l, v, why);
        return;
    }
    char text[LOBBY_REFUSAL_BYTES];
    size_t n = l->o.refuse(l->o.arg, &v->peer, why, text);
    visitor_write(v, text, n);
    lobby_linger(l, v);
}

/* Closes the oldest connection without a request. False: all have one. */
static bool give_way(lobby *l)
{
    static const phase order[] = {PHASE_REFUSED, PHASE_LINGERING, PHASE_SHAKING, PHASE_KEPT,
                                  PHASE_HEAD};
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        if (!l->phase[order[i]].first) continue;
        lobby_end(l, l->phase[order[i]].first);
        return true;
    }
    return false;
}

/* ---------------------------------------------------------------------------- workers -- */

bool lobby_queue(lobby *l, visitor *v, bool *closed)
{
    assert(v->phase == PHASE_WORKING); /* the links are the phases', too */
    lock_take(&l->mu);
    *closed = l->closed;
    bool ok = !*closed && l->n_ready + l->n_serving < l->o.n_workers + l->o.n_queue;
    if (ok) {
        v->due_us = lobby_now(l) + LOBBY_QUEUE_US;
        push(&l->ready, v);
        l->n_ready++;
        cond_signal(&l->ready_cond);
    }
    lock_release(&l->mu);
    return ok;
}

visitor *lobby_take(lobby *l)
{
    lock_take(&l->mu);
    while (!l->closed && !l->ready.first) cond_wait(&l->ready_cond, &l->mu);
    visitor *v = l->closed ? NULL : pop(&l->ready);
    if (v) {
        assert(l->n_ready > 0);
        l->n_ready--;
        l->n_serving++;
    }
    lock_release(&l->mu);
    return v;
}

bool lobby_withdraw(lobby *l, const visitor *v)
{
    lock_take(&l->mu);
    visitor *at = l->ready.first;
    while (at && at != v) at = at->next;
    if (at) {
        take_off(&l->ready, at);
        assert(l->n_ready > 0);
        l->n_ready--;
    }
    lock_release(&l->mu);
    return at;
}

static void wake(lobby *l)
{
    uint64_t one = 1;
    ssize_t done = write(l->wake, &one, sizeof(one));
    (void)done; /* fails only if a wake-up is pending already */
}

void lobby_return(lobby *l, visitor *v, bool end)
{
    assert(v->phase == PHASE_WORKING);
    v->ends = end;
    lock_take(&l->mu);
    bool first = !l->returned.first;
    push(&l->returned, v);
    assert(l->n_serving > 0);
    l->n_serving--;
    lock_release(&l->mu);
    if (first) wake(l);
}

void lobby_drain(lobby *l)
{
    atomic_store(&l->draining, true);
    wake(l);
}

void lobby_close(lobby *l)
{
    struct epoll_event none = {0};
    for (int i = 0; i < l->n_doors; i++)
        (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, l->door[i].fd, &none);
    lock_take(&l->mu);
    l->closed = true;
    cond_broadcast(&l->ready_cond);
    lock_release(&l->mu);
}

/* ------------------------------------------------------------------------- connections -- */

static void on_ready(lobby *l, visitor *v)
{
    if (v->refused) {
        refuse(l, v, v->why);
        return;
    }
    bool closed;
    lobby_enter(l, v, PHASE_WORKING);
    if (lobby_queue(l, v, &closed)) return;
    if (closed)
        lobby_end(l, v);
    else
        refuse(l, v, LOBBY_NO_WORKER);
}

static void wait_for(lobby *l, visitor *v, uint32_t events)
{
    phase p = !v->shaken ? PHASE_SHAKING : v->kept && !v->len ? PHASE_KEPT : PHASE_HEAD;
    if (v->refused) p = PHASE_REFUSED;
    bool renew = v->refused && v->ssl && !v->renewed;
    v->renewed |= renew;
    if (v->phase != p || renew) lobby_enter(l, v, p);
    (void)lobby_arm(l, v, events | (v->tls && !v->ssl ? EPOLLRDHUP : 0));
}

static void look_at(lobby *l, visitor *v, bool hung_up)
{
    switch (visitor_advance(v, &l->o, hung_up, l->scratch)) {
    case VISITOR_READS: wait_for(l, v, EPOLLIN); break;
    case VISITOR_WRITES: wait_for(l, v, EPOLLOUT); break;
    case VISITOR_READY: on_ready(l, v); break;
    case VISITOR_STREAMS: streams_open(l, v); break;
    case VISITOR_PLAIN_HTTP: refuse(l, v, LOBBY_NEEDS_TLS); break;
    case VISITOR_CUT: refuse(l, v, LOBBY_HEAD_CUT); break;
    case VISITOR_ENDED:
        if (v->ssl && !v->shaken)
            lobby_linger(l, v); /* TLS has told the client why */
        else
            lobby_end(l, v);
    }
}

static void on_event(lobby *l, visitor *v, uint32_t events)
{
    if (v->is_stream || v->carrier) {
        streams_event(l, v, events);
        return;
    }
    if (v->phase >= PHASES) return; /* closed in this turn */
    if (v->phase != PHASE_LINGERING)
        look_at(l, v, events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR));
    else
        drain(l, v);
}

static void on_returned(lobby *l, visitor *v)
{
    if (v->is_stream) {
        streams_returned(l, v);
        return;
    }
    v->kept = true;
    if (v->ends)
        lobby_linger(l, v);
    else if (v->len && l->o.decided(v->buf, v->len))
        on_ready(l, v);
    else
        look_at(l, v, false); /* TLS may have read bytes that the socket will not report */
}

static void look_at_returned(lobby *l)
{
    lock_take(&l->mu);
    queue all = l->returned;
    l->returned = (queue){NULL, NULL};
    lock_release(&l->mu);
    for (visitor *v; (v = pop(&all));) on_returned(l, v);
}

/* ----------------------------------------------------------------------------- accept -- */

/* Counts the connection. False: it is over a limit, and too many wait for their refusal already. */
static bool count_in(lobby *l, visitor *v)
{
    if (!l->o.peers) return l->n_open < l->o.max_open || give_way(l);
    peer_verdict verdict = peers_enter(l->o.peers, v->id);
    v->counted = verdict == PEER_ADMITTED;
    v->refused = !v->counted;
    if (v->counted) {
        atomic_fetch_add(l->o.n_connections, 1);
        return true;
    }
    bool total = verdict == PEER_TOTAL_FULL;
    v->why = total ? LOBBY_TOTAL_FULL : LOBBY_CLIENT_FULL;
    atomic_fetch_add(total ? l->o.n_refused_total : l->o.n_refused_per_client, 1);
    return l->n_refused < LOBBY_REFUSED_MAX;
}

static void note_closed(lobby *l)
{
    int64_t now = lobby_now(l);
    l->n_closed++;
    if (l->closed_us && now - l->closed_us < WARN_US) return;
    log_warn("listener", "%d connections over a limit were closed without an answer", l->n_closed);
    l->closed_us = now;
    l->n_closed = 0;
}

/* A connection that was accepted: counted and put into epoll, else closed again. One that is
 * over a limit is kept until it has been told so; over TLS that takes the handshake first. */
static void admit(lobby *l, const door *d, int fd, const struct sockaddr_storage *from)
{
    int yes = 1, unsent = LOBBY_UNSENT_BYTES;
    visitor made = {.phase = PHASE_WORKING,
                    .fd = fd,
                    .tls = d->tls,
                    .shaken = !d->tls,
                    .id = peers_identify(from),
                    .peer = *from};
    bool in = count_in(l, &made);
    visitor *v = in ? malloc(sizeof(*v)) : NULL;
    struct epoll_event none = {.events = EPOLLONESHOT, .data.ptr = v};
    if (!v || epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &none) != 0) {
        if (!in) note_closed(l);
        if (made.counted) peers_leave(l->o.peers, made.id);
        if (made.counted) atomic_fetch_sub(l->o.n_connections, 1);
        (void)close(fd);
        spare_refill(&l->spare);
        free(v);
        return;
    }
    *v = made;
    l->n_open++;
    l->n_refused += v->refused;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
    if (!v->tls && v->refused)
        refuse(l, v, v->why);
    else if (!v->tls && !l->o.takes_plain(l->o.arg, &v->peer))
        refuse(l, v, LOBBY_NEEDS_TLS);
    else
        wait_for(l, v, EPOLLIN);
}

static void set_doors(lobby *l, uint32_t events)
{
    for (int i = 0; i < l->n_doors; i++) {
        struct epoll_event e = {.events = events, .data.ptr = &l->door[i]};
        (void)epoll_ctl(l->epoll, EPOLL_CTL_MOD, l->door[i].fd, &e);
    }
}

/* Whether accept() may be tried again at once. */
static bool accept_again(lobby *l, int error)
{
    if (error == EINTR || error == ECONNABORTED) return true;
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return false;
    int64_t now = lobby_now(l);
    if (!l->warned_us || now - l->warned_us > WARN_US) {
        l->warned_us = now;
        log_warn("listener", "a connection can't be taken: %s", strerror(error));
    }
    if (spare_give(&l->spare) || give_way(l)) return true;
    l->resume_us = now + PAUSE_US; /* otherwise the listening sockets would be reported
                                    * continuously */
    set_doors(l, 0);
    return false;
}

static void on_door(lobby *l, const door *d)
{
    for (int i = 0; i < ACCEPTS_MAX && !l->resume_us; i++) {
        struct sockaddr_storage from = {0};
        socklen_t len = sizeof(from);
        int fd = accept4(d->fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            admit(l, d, fd, &from);
        else if (!accept_again(l, errno))
            return;
    }
}

/* -------------------------------------------------------------------------- deadlines -- */

static void on_due(lobby *l, visitor *v)
{
    if (v->is_stream || v->carrier) {
        streams_due(l, v);
        return;
    }
    if (v->phase == PHASE_HEAD && v->len > 0) {
        refuse(l, v, LOBBY_HEAD_LATE);
        return;
    }
    if (v->phase == PHASE_KEPT || v->phase == PHASE_HEAD) visitor_finish(v);
    lobby_end(l, v);
}

/* Returns a request that has waited too long while all workers are busy, or NULL. */
static visitor *take_overdue(lobby *l)
{
    lock_take(&l->mu);
    visitor *v = l->ready.first;
    bool late = v && v->due_us <= lobby_now(l) && l->n_serving >= l->o.n_workers;
    if (late) {
        take_off(&l->ready, v);
        assert(l->n_ready > 0);
        l->n_ready--;
    }
    lock_release(&l->mu);
    return late ? v : NULL;
}

static void expire(lobby *l)
{
    int64_t now = lobby_now(l);
    for (int p = 0; p < PHASES; p++) {
        for (visitor *v; (v = l->phase[p].first) && v->due_us <= now;) on_due(l, v);
    }
    for (visitor *v; (v = take_overdue(l));) refuse(l, v, LOBBY_NO_WORKER);
    if (l->resume_us && l->resume_us <= now) {
        l->resume_us = 0;
        set_doors(l, EPOLLIN);
    }
}

static int64_t first_due(lobby *l)
{
    int64_t due = l->resume_us ? l->resume_us : INT64_MAX;
    for (int p = 0; p < PHASES; p++) {
        const visitor *v = l->phase[p].first;
        if (v && v->due_us < due) due = v->due_us;
    }
    lock_take(&l->mu);
    const visitor *v = l->ready.first;
    /* While a worker is free it takes the request soon; no deadline is needed. */
    if (v && l->n_serving >= l->o.n_workers && v->due_us < due) due = v->due_us;
    if (v && l->n_serving < l->o.n_workers && due > lobby_now(l) + LOBBY_QUEUE_US)
        due = lobby_now(l) + LOBBY_QUEUE_US;
    lock_release(&l->mu);
    return due;
}

/* ------------------------------------------------------------------------------- loop -- */

static void dispatch(lobby *l, const struct epoll_event *e)
{
    uintptr_t at = (uintptr_t)e->data.ptr;
    uint64_t waste;
    if (e->data.ptr == &l->wake) {
        ssize_t got = read(l->wake, &waste, sizeof(waste));
        (void)got;
    } else if (at >= (uintptr_t)l->door && at < (uintptr_t)(l->door + l->n_doors)) {
        on_door(l, e->data.ptr);
    } else {
        on_event(l, e->data.ptr, e->events);
    }
}

static bool is_handshake(const lobby *l, const struct epoll_event *e)
{
    uintptr_t at = (uintptr_t)e->data.ptr;
    if (e->data.ptr == &l->wake) return false;
    if (at >= (uintptr_t)l->door && at < (uintptr_t)(l->door + l->n_doors)) return false;
    const visitor *v = e->data.ptr;
    return !v->is_stream && !v->shaken;
}

/* A handshake step computes signatures, and anybody can request thousands of them: events of
 * established connections are handled first and wait for at most SHAKES_MAX steps. */
static void take_events(lobby *l, int wait_ms)
{
    struct epoll_event event[EVENTS_MAX], shake[EVENTS_MAX];
    int n_shakes = 0, next = 0;
    do {
        int n =
            n_shakes < EVENTS_MAX ? epoll_wait(l->epoll, event, EVENTS_MAX - n_shakes, wait_ms) : 0;
        for (int i = 0; i < n; i++) {
            if (is_handshake(l, &event[i]))
                shake[n_shakes++] = event[i];
            else
                dispatch(l, &event[i]);
        }
        look_at_returned(l);
        for (int i = 0; i < SHAKES_MAX && next < n_shakes; i++) dispatch(l, &shake[next++]);
        wait_ms = 0;
    } while (next < n_shakes);
}

int lobby_turn(lobby *l, int wait_ms)
{
    int64_t due = first_due(l);
    if (due != INT64_MAX) {
        int64_t left_ms = (due - lobby_now(l) + 999) / 1000;
        if (left_ms < 0) left_ms = 0;
        if (wait_ms < 0 || left_ms < wait_ms) wait_ms = (int)left_ms;
    }
    take_events(l, wait_ms);
    if (!l->told && atomic_load(&l->draining)) streams_drain(l);
    expire(l);
    for (visitor *v; (v = l->gone);) {
        l->gone = v->next;
        free(v);
    }
    lock_take(&l->mu);
    int n = l->n_ready;
    lock_release(&l->mu);
    return n;
}

static void *run(void *arg)
{
    lobby *l = arg;
    (void)pthread_setname_np(pthread_self(), "lobby");
    while (!atomic_load(&l->stop)) (void)lobby_turn(l, -1);
    /* Deliver what workers have written to streams. */
    int64_t end_us = lobby_now(l) + LOBBY_LINGER_US;
    while (l->n_streams > 0 && lobby_now(l) < end_us) (void)lobby_turn(l, STOP_LOOK_MS);
    return NULL;
}

/* --------------------------------------------------------------------------- lifetime -- */

static bool watch(lobby *l, int fd, void *what)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = what};
    return epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

err_code lobby_create(lobby **out, const lobby_options *o, err *e)
{
    *out = NULL;
    lobby *l = calloc(1, sizeof(*l));
    if (!l) return err_set(e, ERR_NOMEM, "no memory for a listener");
    l->o = *o;
    lock_init(&l->mu, LOCK_LOBBY);
    cond_init(&l->ready_cond);
    spare_open(&l->spare);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->epoll < 0 || l->wake < 0 || !watch(l, l->wake, &l->wake)) {
        lobby_destroy(l);
        return err_set(e, ERR_IO, "a listener's event loop can't be made: %s", strerror(errno));
    }
    *out = l;
    return ERR_NONE;
}

err_code lobby_listen(lobby *l, int fd, bool tls, err *e)
{
    assert(l->n_doors >= 0 && l->n_doors < LOBBY_DOORS_MAX);
    door *d = &l->door[l->n_doors];
    *d = (door){fd, tls};
    l->n_doors++;
    if (watch(l, fd, d)) return ERR_NONE;
    return err_set(e, ERR_IO, "a listening socket can't be watched: %s", strerror(errno));
}

err_code lobby_start(lobby *l, err *e)
{
    (void)signal(SIGPIPE, SIG_IGN); /* TLS writes without MSG_NOSIGNAL */
    l->started = pthread_create(&l->thread, NULL, run, l) == 0;
    return l->started ? ERR_NONE : err_set(e, ERR_NOMEM, "can't start a listener's thread");
}

static void end_all(lobby *l, queue *q)
{
    for (visitor *v; (v = pop(q));) {
        v->phase = PHASE_WORKING;
        lobby_end(l, v);
    }
}

void lobby_destroy(lobby *l)
{
    if (!l) return;
    atomic_store(&l->stop, true);
    if (l->started) {
        wake(l);
        (void)pthread_join(l->thread, NULL);
    }
    look_at_returned(l);
    streams_end_all(l);
    for (int p = 0; p < PHASES; p++) end_all(l, &l->phase[p]);
    end_all(l, &l->ready);
    end_all(l, &l->returned);
    for (visitor *v; (v = l->gone);) {
        l->gone = v->next;
        free(v);
    }
    for (int i = 0; i < l->n_doors; i++) (void)close(l->door[i].fd);
    if (l->epoll >= 0) (void)close(l->epoll);
    if (l->wake >= 0) (void)close(l->wake);
    spare_close(&l->spare);
    cond_free(&l->ready_cond);
    lock_free(&l->mu);
    free(l);
}
