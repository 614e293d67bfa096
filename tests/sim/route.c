/* route.c -- which of several nodes gets a request: what an operator may put before lorad.
 *
 * least        whoever has the fewest requests, whatever their adapters
 * picker       the endpoint picker of the Gateway API Inference Extension: the sum of its scores
 *              for queue, KV use and adapters (queue-scorer, kv-cache-utilization-scorer,
 *              lora-affinity-scorer), of figures that are up to scrape_us old; the best, at
 *              random among equals
 * rendezvous   each adapter has `replicas` homes by highest random weight (Thaler and
 *              Ravishankar 1998): the first of them that has at most `balance` times the mean of
 *              requests (bounded loads, Mirrokni et al. 2018), or else the least loaded of
 *              them; the base model goes to the least loaded of all
 * advice       whoever foretells the first token soonest, as a header of lorad's could say it at
 *              best: of this very request, with nothing forgotten and nothing old
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

const char *const sim_routes[] = {"least", "picker", "rendezvous", "advice"};

/* Of one node, as its /metrics said. */
typedef struct {
    int waiting, listed;
    double kv;
    char *slot; /* [adapters + 1] of sim_slot_state */
} scraped;

struct sim_router {
    const sim_setup *set;
    sim_node *first;
    const sim_arrival *a;
    int n, adapters;
    int64_t scraped_us;
    uint64_t random;
    scraped seen[SIM_NODES_MAX];
};

sim_router *sim_router_open(const sim_setup *s, sim_node *first, int n, const sim_arrival *a,
                            int adapters)
{
    sim_router *r = calloc(1, sizeof(*r));
    if (!r) return NULL;
    *r = (sim_router){.set = s,
                      .first = first,
                      .a = a,
                      .n = n,
                      .adapters = adapters,
                      .scraped_us = INT64_MIN / 2,
                      .random = 11};
    bool ok = n <= SIM_NODES_MAX;
    for (int k = 0; k < n && ok; k++)
        ok = (r->seen[k].slot = calloc((size_t)adapters + 1, 1)) != NULL;
    if (ok) return r;
    sim_router_close(r);
    return NULL;
}

void sim_router_close(sim_router *r)
{
    for (int k = 0; r && k < SIM_NODES_MAX; k++) free(r->seen[k].slot);
    free(r);
}

static void scrape(sim_router *r, int64_t now_us)
{
    if (now_us - r->scraped_us < r->set->scrape_us) return;
    r->scraped_us = now_us;
    for (int k = 0; k < r->n; k++) {
        const sim_node *node = sim_node_at(r->first, k);
        const sim_slots *slots = sim_node_slots(node);
        scraped *s = &r->seen[k];
        s->waiting = sim_node_waiting(node);
        s->kv = sim_node_kv(node);
        s->listed = sim_slots_listed(slots);
        for (int i = 1; i <= r->adapters; i++)
            s->slot[i] = (char)sim_slots_state(slots, (uint32_t)i);
    }
}

/* max_lora is what lorad says: as many as have a seat. */
static double affinity(const sim_router *r, const scraped *s, uint32_t adapter)
{
    if (adapter == 0) return 0;
    if (s->slot[adapter] == SLOT_RESIDENT) return 1;
    if (s->listed < r->set->device.max_seqs) return 0.8;
    return s->slot[adapter] == SLOT_ASKED ? 0.6 : 0;
}

static int picked(sim_router *r, int id)
{
    int least = INT32_MAX, most = 0, best = 0, n_best = 0;
    double top = -1;
    scrape(r, r->a[id].us);
    for (int k = 0; k < r->n; k++) {
        if (r->seen[k].waiting < least) least = r->seen[k].waiting;
        if (r->seen[k].waiting > most) most = r->seen[k].waiting;
    }
    for (int k = 0; k < r->n; k++) {
        const scraped *s = &r->seen[k];
        double queue = most > least ? (double)(most - s->waiting) / (most - least) : 1;
        double score = queue + 1 - s->kv + r->set->affinity * affinity(r, s, r->a[id].adapter);
        if (score > top + 1e-12) n_best = 0;
        if (score < top - 1e-12) continue;
        top = n_best == 0 ? score : top;
        if (sim_random(&r->random) % (uint64_t)++n_best == 0) best = k;
    }
    return best;
}

/* The same for all who ask, and of another node for 1 in n adapters when one comes. */
static uint64_t draw_of(uint32_t adapter, int node)
{
    uint64_t state = (uint64_t)adapter << 32 | (uint64_t)node;
    return sim_random(&state);
}

/* The k-th best home of an adapter. */
static int home(const sim_router *r, uint32_t adapter, int k)
{
    for (int node = 0; node < r->n; node++) {
        int above = 0;
        for (int other = 0; other < r->n; other++)
            above += draw_of(adapter, other) > draw_of(adapter, node);
        if (above == k) return node;
    }
    abort(); /* two draws of 64 bits were the same */
}

/* Whoever has the lowest price, at random among equals. */
static int cheapest(sim_router *r, int id, double (*price)(const sim_node *k, int id))
{
    int best = 0, n_best = 0;
    double least = 0;
    for (int k = 0; k < r->n; k++) {
        double p = price(sim_node_at(r->first, k), id);
        if (n_best > 0 && p > least) continue;
        if (n_best == 0 || p < least) n_best = 0;
        least = p;
        if (sim_random(&r->random) % (uint64_t)++n_best == 0) best = k;
    }
    return best;
}

static double load_price(const sim_node *k, int id)
{
    (void)id;
    return sim_node_load(k);
}

static int hashed(sim_router *r, int id)
{
    uint32_t adapter = r->a[id].adapter;
    int sum = 1, best = 0, n = r->set->replicas < r->n ? r->set->replicas : r->n;
    if (adapter == 0) return cheapest(r, id, load_price);
    for (int k = 0; k < r->n; k++) sum += sim_node_load(sim_node_at(r->first, k));
    for (int k = 0; k < n; k++) {
        int node = home(r, adapter, k), load = sim_node_load(sim_node_at(r->first, node));
        if (load <= r->set->balance * sum / r->n) return node;
        if (k == 0 || load < sim_node_load(sim_node_at(r->first, best))) best = node;
    }
    return best;
}

int sim_route(sim_router *r, int id)
{
    if (r->n == 1) return 0;
    switch (r->set->route) {
    case ROUTE_PICKER: return picked(r, id);
    case ROUTE_RENDEZVOUS: return hashed(r, id);
    case ROUTE_ADVICE: return cheapest(r, id, sim_node_foretold_us);
    case ROUTE_LEAST: break;
    }
    return cheapest(r, id, load_price);
}
