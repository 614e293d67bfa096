/* roster.c -- a table of the fleet's nodes under one lock, and a thread that renews it.
 *
 * The thread writes this node's address and load to its row of table `nodes`, then reads all
 * rows, every second where some node has a role and every five seconds otherwise. Workers only
 * read the table: choosing a node never waits for the database.
 *
 * Three ages decide what a peer is used for:
 *
 *     silent for less than FRESH_US (3 s)    requests are placed there by its load
 *     silent for less than ALIVE_US (10 s)   requests are sent there when this node is drained
 *     longer, or draining                    nothing
 *
 * Between two reads the peer's load is out of date by what this node itself sent there. So
 * place() adds each placed request to its copy of the peer's load (place_add_prompt(),
 * place_add_stream()); the next read replaces the copy. A peer that refused a request is avoided
 * for AVOID_US.
 *
 * Entries are never removed, so an index names the same node for the life of the process;
 * requests hold indexes. The table of adapters that peers were told is a direct-mapped cache by
 * version: a collision only sends the hint once more.
 */
#include "gateway/move/roster.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/engine_parts.h"
#include "gateway/move/carry.h"
#include "gateway/move/facts.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

enum {
    LOOK_US = 1000000,   /* interval, where a node has a role */
    REST_US = 5000000,   /* interval, where none has */
    ALIVE_US = 10000000, /* a node that was silent for longer is not asked */
    FRESH_US = 3000000,  /* nothing is placed at a node that was silent for longer */
    AVOID_US = 5000000,
    TELL_AGAIN_US = 10000000, /* a node is told the same adapter again after this time */
    TOLD = 256,
};

typedef struct peer {
    int number;
    bool may;    /* it accepts requests: alive, not draining, its door is known */
    bool placed; /* requests can be placed there: `place` is fresh */
    node_door door;
    place_node place;
    int64_t avoid_us; /* until then nothing is placed there */
    int n_here;       /* requests of this node that it has */
} peer;

/* A node that was told an adapter. */
typedef struct told_adapter {
    uint64_t version_id;
    int at;
    int64_t us;
} told_adapter;

struct roster {
    server *srv;
    carry *carry;
    node_role role;
    pthread_t thread;
    bool runs, failed; /* failed: the last look, which was logged; the thread's */
    atomic_bool divides;
    lock mu; /* guards all below */
    cond renewed;
    char door[NODE_DOOR_MAX + 1];
    int64_t told_door; /* nodes_tell_door() */
    bool stop, again;
    peer peer[ROSTER_MAX];
    int n;
    told_adapter told[TOLD]; /* the latest, by version */
};

/* ------------------------------------------------------------------------ the thread -- */

/* mu is held.  NULL: there are too many. */
static peer *peer_of(roster *r, int number)
{
    lock_assert_held(&r->mu);
    for (int i = 0; i < r->n; i++) {
        if (r->peer[i].number == number) return &r->peer[i];
    }
    if (r->n == ROSTER_MAX) return NULL;
    r->peer[r->n] = (peer){.number = number};
    return &r->peer[r->n++];
}

/* mu is held. */
static void take_member(roster *r, const fleet_member *m)
{
    lock_assert_held(&r->mu);
    node_door door;
    peer *p = peer_of(r, m->node);
    if (!p) return;
    bool alive = m->silent_us >= 0 && m->silent_us < ALIVE_US;
    p->may = alive && !m->drains && node_door_read(m->door, &door);
    if (p->may) p->door = door;
    p->placed = p->may && m->silent_us < FRESH_US && facts_read(m->facts, &p->place);
}

/* mu is held.  Has a node that accepts requests a role, or this one? */
static bool any_role(const roster *r)
{
    lock_assert_held(&r->mu);
    bool any = r->role != ROLE_BOTH;
    for (int i = 0; i < r->n && !any; i++)
        any = r->peer[i].placed && r->peer[i].place.role != ROLE_BOTH;
    return any;
}

/* mu is held. */
static bool is_divided(const roster *r)
{
    lock_assert_held(&r->mu);
    bool any = false;
    for (int i = 0; i < r->n; i++) any |= r->peer[i].placed && r->peer[i].place.role != r->role;
    return any && r->role != ROLE_BOTH;
}

err_code roster_look(roster *r, err *e)
{
    fleet_member *list;
    size_t n;
    err_code rc = nodes_list(store_of(r->srv), &list, &n, e);
    lock_take(&r->mu);
    for (int i = 0; i < r->n; i++) r->peer[i].may = r->peer[i].placed = false;
    for (size_t i = 0; i < n; i++) {
        if (list[i].node != nodes_self(store_of(r->srv))) take_member(r, &list[i]);
    }
    atomic_store(&r->divides, is_divided(r));
    lock_release(&r->mu);
    free(list);
    return rc;
}

static void describe(const roster *r, place_node *out)
{
    sched_place_get(sched_of(r->srv), out);
    out->role = r->role;
    carry_speed(r->carry, &out->setup_us, &out->byte_us);
}

/* Door and facts of this node. */
static err_code tell(roster *r, bool load, err *e)
{
    char door[NODE_DOOR_MAX + 1], facts[NODE_FACTS_MAX + 1];
    place_node self;
    lock_take(&r->mu);
    memcpy(door, r->door, sizeof(door));
    int64_t told = r->told_door, was = told;
    lock_release(&r->mu);
    err_code rc = nodes_tell_door(store_of(r->srv), door, &told, e);
    lock_take(&r->mu);
    if (r->told_door == was && strcmp(door, r->door) == 0) r->told_door = told;
    lock_release(&r->mu);
    if (rc || (!load && told == was)) return rc;
    describe(r, &self);
    facts_write(&self, facts);
    return nodes_tell_facts(store_of(r->srv), facts, e);
}

static void renew(roster *r)
{
    err e;
    lock_take(&r->mu);
    bool load = any_role(r);
    lock_release(&r->mu);
    err_code rc = tell(r, load, &e);
    if (!rc) rc = roster_look(r, &e);
    if (rc && !r->failed)
        log_warn("gateway", "this server and the others of the fleet don't hear of each other: %s",
                 e.msg);
    r->failed = rc != ERR_NONE;
}

static void *keep(void *arg)
{
    roster *r = arg;
    (void)pthread_setname_np(pthread_self(), "roster");
    lock_take(&r->mu);
    while (!r->stop) {
        r->again = false;
        lock_release(&r->mu);
        renew(r);
        lock_take(&r->mu);
        int64_t until_us = clock_now_us() + (any_role(r) ? LOOK_US : REST_US);
        if (r->failed || r->told_door == 0) until_us = clock_now_us() + LOOK_US;
        while (!r->stop && !r->again && cond_wait_until(&r->renewed, &r->mu, until_us)) continue;
    }
    lock_release(&r->mu);
    return NULL;
}

roster *roster_create(server *s, carry *c, const char *door)
{
    roster *r = calloc(1, sizeof(*r));
    if (!r) return NULL;
    r->srv = s;
    r->carry = c;
    r->role = node_role_of(process_of(s)->cfg->server.fleet_role);
    lock_init(&r->mu, LOCK_ROSTER);
    cond_init(&r->renewed);
    roster_renew(r, door);
    r->runs = pthread_create(&r->thread, NULL, keep, r) == 0;
    if (r->runs) return r;
    roster_destroy(r);
    return NULL;
}

void roster_destroy(roster *r)
{
    if (!r) return;
    lock_take(&r->mu);
    r->stop = true;
    cond_signal(&r->renewed);
    lock_release(&r->mu);
    if (r->runs) pthread_join(r->thread, NULL);
    cond_free(&r->renewed);
    lock_free(&r->mu);
    free(r);
}

void roster_renew(roster *r, const char *door)
{
    lock_take(&r->mu);
    snprintf(r->door, sizeof(r->door), "%s", door);
    r->told_door = 0;
    r->again = true;
    cond_signal(&r->renewed);
    lock_release(&r->mu);
}

/* -------------------------------------------------------------------------- the table -- */

int roster_size(roster *r)
{
    int n = 0;
    lock_take(&r->mu);
    for (int i = 0; i < r->n; i++) n += r->peer[i].may;
    lock_release(&r->mu);
    return n;
}

int roster_next(roster *r, uint64_t tried)
{
    int best = ROSTER_NONE;
    lock_take(&r->mu);
    for (int i = 0; i < r->n; i++) {
        if (!r->peer[i].may || tried >> i & 1) continue;
        if (best < 0 || r->peer[i].n_here < r->peer[best].n_here) best = i;
    }
    lock_release(&r->mu);
    return best;
}

void roster_send(roster *r, int at, node_door *door)
{
    lock_take(&r->mu);
    *door = r->peer[at].door;
    r->peer[at].n_here++;
    lock_release(&r->mu);
}

void roster_return(roster *r, int at)
{
    lock_take(&r->mu);
    r->peer[at].n_here--;
    lock_release(&r->mu);
}

void roster_avoid(roster *r, int at)
{
    lock_take(&r->mu);
    r->peer[at].avoid_us = clock_now_us() + AVOID_US;
    lock_release(&r->mu);
}

bool roster_tell_adapter(roster *r, int at, uint64_t version_id)
{
    const told_adapter fresh = {version_id, at, clock_now_us()};
    lock_take(&r->mu);
    told_adapter *t = &r->told[version_id % TOLD];
    bool again = t->version_id == version_id && t->at == at && fresh.us - t->us < TELL_AGAIN_US;
    if (!again) *t = fresh;
    lock_release(&r->mu);
    return !again;
}

int roster_number(roster *r, int at)
{
    lock_take(&r->mu);
    int number = r->peer[at].number;
    lock_release(&r->mu);
    return number;
}

bool roster_door(roster *r, int64_t number, node_door *out)
{
    bool found = false;
    lock_take(&r->mu);
    for (int i = 0; i < r->n && !found; i++) {
        found = r->peer[i].number == number && r->peer[i].may;
        if (found) *out = r->peer[i].door;
    }
    lock_release(&r->mu);
    return found;
}

/* -------------------------------------------------------------------------- the choice -- */

node_role roster_role(const roster *r)
{
    return r->role;
}

bool roster_divides(const roster *r)
{
    return atomic_load(&r->divides);
}

typedef int (*choose)(const place_ask *a, const place_node *self, const place_node *peer, int n);
typedef void (*add)(const place_ask *a, place_node *to);

static int place(roster *r, const place_ask *a, choose fn, add count)
{
    place_node self, list[ROSTER_MAX];
    int index[ROSTER_MAX], n = 0;
    int64_t now = clock_now_us();
    if (!roster_divides(r)) return ROSTER_NONE;
    describe(r, &self);
    lock_take(&r->mu);
    for (int i = 0; i < r->n; i++) {
        if (!r->peer[i].placed || now < r->peer[i].avoid_us) continue;
        list[n] = r->peer[i].place;
        index[n++] = i;
    }
    int best = fn(a, &self, list, n);
    if (best >= 0 && count) count(a, &r->peer[index[best]].place);
    lock_release(&r->mu);
    return best >= 0 ? index[best] : ROSTER_NONE;
}

int roster_place_prompt(roster *r, const place_ask *a)
{
    return place(r, a, place_prompt, place_add_prompt);
}

int roster_place_stream(roster *r, const place_ask *a)
{
    return place(r, a, place_stream, place_add_stream);
}

int roster_foresee_stream(roster *r, const place_ask *a)
{
    return place(r, a, place_stream, NULL);
}
