/* split.c -- nodes with roles: the server's own choice (engine/sched/place.c), on what nodes know
 * of one another, and the wire between them.
 *
 * What a node knows of another is up to facts_us old, and counts what it has sent there since.
 * Each node receives one transfer at a time, so a busy wire delays; what transfers took is
 * measured as the server measures it.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

static const double newest = 0.2; /* as in gateway/move/carry.c */

typedef struct {
    sim_handoff *list; /* unordered */
    int n, cap;
    int64_t wire_us;          /* until then it receives pages */
    double setup_us, byte_us; /* as measured; 0: not yet */
} inbox;

struct sim_split {
    const sim_setup *set;
    sim_node *first;
    const sim_arrival *a;
    int n;
    inbox box[SIM_NODES_MAX];
    place_node *known; /* [n][n]: of each, what it knows of each */
    int64_t *known_us; /* [n]: when it learnt that */
    uint64_t prompts, streams;
};

sim_split *sim_split_open(const sim_setup *s, sim_node *first, int n, const sim_arrival *a)
{
    sim_split *p = calloc(1, sizeof(*p));
    if (!p) return NULL;
    size_t count = (size_t)n;
    p->set = s;
    p->first = first;
    p->a = a;
    p->n = n;
    p->known = calloc(count * count, sizeof(*p->known));
    p->known_us = calloc(count, sizeof(*p->known_us));
    for (int k = 0; p->known_us && k < n; k++) p->known_us[k] = INT64_MIN / 2;
    if (p->known && p->known_us && n <= SIM_NODES_MAX) return p;
    sim_split_close(p);
    return NULL;
}

void sim_split_close(sim_split *p)
{
    if (!p) return;
    for (int k = 0; k < p->n; k++) free(p->box[k].list);
    free(p->known);
    free(p->known_us);
    free(p);
}

void sim_split_count(const sim_split *p, sim_result *out)
{
    if (!p) return;
    out->moved_prompts = p->prompts;
    out->moved_streams = p->streams;
}

static node_role role_of(const sim_split *p, int k)
{
    const sim_roles *r = &p->set->roles;
    return k < r->prefill ? ROLE_PREFILL : k < r->prefill + r->decode ? ROLE_DECODE : ROLE_BOTH;
}

static void describe(const sim_split *p, int k, place_node *out)
{
    const sim_scheduler *s = sim_node_scheduler(sim_node_at(p->first, k));
    s->describe(s->self, out);
    out->role = role_of(p, k);
    out->setup_us = p->box[k].setup_us;
    out->byte_us = p->box[k].byte_us;
}

static place_node *peers_of(sim_split *p, int at, int64_t now_us)
{
    place_node *mine = p->known + (size_t)at * (size_t)p->n;
    if (now_us - p->known_us[at] < p->set->roles.facts_us) return mine;
    p->known_us[at] = now_us;
    for (int k = 0; k < p->n; k++) describe(p, k, &mine[k]);
    mine[at].free_seats = 0; /* it is no peer of itself */
    return mine;
}

static place_ask ask_of(const sim_split *p, int at, int id)
{
    const sim_arrival *a = &p->a[id];
    const sim_scheduler *s = sim_node_scheduler(sim_node_at(p->first, at));
    return (place_ask){.n_prompt = a->prompt,
                       .n_output = s->expect(s->self, id).mean,
                       .rank = sim_rank(a->adapter),
                       .token_bytes = p->set->roles.token_bytes,
                       .tpot_us = (double)p->set->classes[a->slo].tpot_us,
                       .always = p->set->roles.always};
}

static void send(sim_split *p, int to, const sim_handoff *h)
{
    inbox *b = &p->box[to];
    if (b->n == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 64;
        b->list = realloc(b->list, (size_t)b->cap * sizeof(*b->list));
        if (!b->list) abort();
    }
    b->list[b->n++] = *h;
}

/* When the pages of so many positions have come to a node. */
static int64_t bring(sim_split *p, int to, int tokens, int64_t now_us)
{
    const sim_roles *r = &p->set->roles;
    inbox *b = &p->box[to];
    double bytes = tokens * r->token_bytes;
    int64_t begin = b->wire_us > now_us ? b->wire_us : now_us;
    b->wire_us = begin + (int64_t)(r->setup_us + bytes * r->byte_us);
    double setup = (double)(begin - now_us) + r->setup_us, share = b->byte_us > 0 ? newest : 1;
    b->setup_us += share * (setup - b->setup_us);
    b->byte_us += share * (r->byte_us - b->byte_us);
    return b->wire_us;
}

int sim_split_arrive(sim_split *p, int at, int id, int64_t now_us, sim_handoff *h)
{
    place_node self, *peer = peers_of(p, at, now_us);
    place_ask ask = ask_of(p, at, id);
    describe(p, at, &self);
    int to = place_prompt(&ask, &self, peer, p->n);
    if (to == PLACE_HERE) return at;
    place_add_prompt(&ask, &peer[to]);
    *h = (sim_handoff){.id = id,
                       .home = at,
                       .prompt_only = true,
                       .due_us = now_us + (int64_t)p->set->roles.setup_us};
    send(p, to, h);
    p->prompts++;
    return to;
}

bool sim_split_first(sim_split *p, int at, const sim_seq *q, int64_t now_us)
{
    place_node self, *peer = peers_of(p, at, now_us);
    place_ask ask = ask_of(p, at, q->id);
    int to = q->home;
    if (!q->prompt_only) {
        if (role_of(p, at) != ROLE_PREFILL) return false;
        describe(p, at, &self);
        to = place_stream(&ask, &self, peer, p->n);
        if (to == PLACE_HERE) return false;
        place_add_stream(&ask, &peer[to]);
        p->streams++;
    }
    int whole = p->a[q->id].prompt / SIM_PAGE * SIM_PAGE;
    sim_handoff h = {.id = q->id,
                     .home = q->prompt_only ? to : at,
                     .made = q->made,
                     .given = whole,
                     .due_us = bring(p, to, whole, now_us),
                     .first_us = q->first_us,
                     .last_us = q->last_us,
                     .length = q->length};
    send(p, to, &h);
    return true;
}

bool sim_split_take(sim_split *p, int at, int64_t now_us, sim_handoff *h)
{
    inbox *b = &p->box[at];
    int best = -1;
    for (int i = 0; i < b->n; i++) {
        if (b->list[i].due_us <= now_us && (best < 0 || b->list[i].due_us < b->list[best].due_us))
            best = i;
    }
    if (best < 0) return false;
    *h = b->list[best];
    b->list[best] = b->list[--b->n];
    return true;
}

int64_t sim_split_next(const sim_split *p, int at)
{
    int64_t next = INT64_MAX;
    for (int i = 0; i < p->box[at].n; i++) {
        if (p->box[at].list[i].due_us < next) next = p->box[at].list[i].due_us;
    }
    return next;
}

void sim_split_refuse(sim_split *p, const sim_handoff *h, int64_t now_us)
{
    sim_handoff back = *h;
    back.prompt_only = false;
    back.due_us = now_us + (int64_t)p->set->roles.setup_us;
    send(p, h->home, &back);
}

void sim_split_end(sim_split *p, int at, const sim_seq *q)
{
    if (q->home == at || q->made == 0) return;
    const sim_scheduler *s = sim_node_scheduler(sim_node_at(p->first, q->home));
    s->learn(s->self, q->id, q->length, q->made);
}
