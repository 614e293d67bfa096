/* sim.h -- the scheduler on modelled devices, with a virtual clock.
 *
 * The server's own object code decides: engine/sched/fair.c, policy.c, promise.c,
 * cost.c and kv.c; server.c does with it what engine/sched/sched.c does.  Modelled
 * are the time of a step and the adapters' slots (device.c) and the requests
 * (workload.c).  baseline.c holds the policies to compare with. One run has no
 * thread, no clock of the machine, and depends on nothing but its seed.
 */
#ifndef TESTS_SIM_H
#define TESTS_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/memory/devmem.h"
#include "engine/memory/kv.h"
#include "engine/sched/cost.h"
#include "engine/sched/fair.h"
#include "engine/sched/lengths.h"
#include "engine/sched/place.h"

enum { SIM_CLASSES = 3, SIM_SECOND = 1000000, SIM_PAGE = 16 };

/* ---- what comes in ---- */

typedef enum { MIX_DISTINCT, MIX_UNIFORM, MIX_SKEWED, MIX_IDENTICAL } sim_mix;

typedef struct sim_load {
    uint64_t seed;
    int n, tenants, adapters;
    double rate;                     /* requests per second */
    double cv;                       /* of the gaps: Gamma arrivals */
    double abuser;                   /* share of all requests that tenant 0 sends; 0: nobody does */
    double uneven;                   /* tenant i of the others sends like (i + 1)^-uneven */
    double skew;                     /* of adapters' popularity, with MIX_SKEWED */
    double burst;                    /* rate of 5 s out of 30 over the mean of the rest; 1: none */
    double classes[SIM_CLASSES];     /* shares of requests */
    double mean_prompt, mean_output; /* log-normal, as ShareGPT's */
    int max_prompt, max_tokens;
    sim_mix mix;
} sim_load;

typedef struct sim_arrival {
    int64_t us;
    uint32_t adapter; /* 0: none */
    int16_t tenant, slo;
    int16_t prompt, output, max_tokens;
} sim_arrival;

/* Allocates [l->n], sorted by time; NULL: out of memory. */
sim_arrival *sim_workload(const sim_load *l);
uint64_t sim_random(uint64_t *state);
double sim_uniform(uint64_t *state); /* in (0, 1) */

/* ---- the device ---- */

typedef struct sim_device {
    double base_us, prefill_us, decode_us, context_us, rank_us, noise;
    double hiccup, hiccup_us; /* share of steps that others hold up, by at most so much */
    int max_rows, max_seqs, n_pages, slots;
    double load_us; /* of one rank-16 adapter, from host memory */
} sim_device;

int sim_rank(uint32_t adapter);
double sim_step_us(const sim_device *d, const cost_work *w, uint64_t *state);

typedef struct sim_slots sim_slots;
sim_slots *sim_slots_create(const sim_device *d, int adapters);
void sim_slots_destroy(sim_slots *s);
/* Resident and held until release; else it is asked for and comes in the order
 * of asking. */
bool sim_slots_acquire(sim_slots *s, uint32_t adapter, int64_t now_us);
void sim_slots_release(sim_slots *s, uint32_t adapter, int64_t now_us);
/* When it would be there, asked for now; 0: it is. */
int64_t sim_slots_eta(const sim_slots *s, uint32_t adapter, int64_t now_us);
void sim_slots_run(sim_slots *s, int64_t now_us); /* time goes by */
int64_t sim_slots_next(const sim_slots *s);       /* when the copy under way ends, or INT64_MAX */
uint64_t sim_slots_loads(const sim_slots *s);     /* so far */
typedef enum { SLOT_AWAY, SLOT_ASKED, SLOT_RESIDENT } sim_slot_state;
sim_slot_state sim_slots_state(const sim_slots *s, uint32_t adapter);
/* Resident and asked for, as vllm:lora_requests_info counts them. */
int sim_slots_listed(const sim_slots *s);

/* ---- a run ---- */

typedef struct sim_class {
    int64_t ttft_us, tpot_us;
    double weight;
} sim_class;

typedef enum {
    SIM_LORAD,
    SIM_FCFS,
    SIM_VLLM,
    SIM_PRIORITY,
    SIM_SLORA,
    SIM_EDF,
    SIM_VTC,
    SIM_SARATHI,
    SIM_QOSERVE,
    SIM_EVEN /* lorad, but that each stream has a row in each step, and seats are given to all */
} sim_policy;
extern const char *const sim_policies[];
enum { SIM_POLICIES = 10 };

/* Which node gets a request (route.c). */
typedef enum { ROUTE_LEAST, ROUTE_PICKER, ROUTE_RENDEZVOUS, ROUTE_ADVICE } sim_route_kind;
extern const char *const sim_routes[];
enum { SIM_ROUTES = 4, SIM_NODES_MAX = 64 };

/* Nodes with roles, for the server's policy (split.c). */
typedef struct sim_roles {
    int prefill, decode; /* so many nodes, from the first on; the others do both; 0, 0: all do */
    double token_bytes;  /* KV of one position */
    double setup_us, byte_us; /* of a transfer between two nodes */
    int64_t facts_us;         /* how old what they know of one another may be */
    bool always;              /* all move that can */
} sim_roles;

typedef struct sim_setup {
    int nodes; /* 0, 1: one */
    sim_roles roles;
    sim_route_kind route;
    int replicas;      /* rendezvous: homes of each adapter */
    double balance;    /* rendezvous: a home may have so many times the mean; 0: never the first */
    double affinity;   /* picker: weight of an adapter that is there; the queue's is 1, KV's 1 */
    int64_t scrape_us; /* picker: how old what it knows may be */
    sim_device device;
    sim_class classes[SIM_CLASSES];
    int64_t ageing_us;
    sim_policy policy;
    int skip_tenant;    /* its requests are left out; -1: nobody's */
    bool check;         /* invariants in every step; ends the process where one is broken */
    bool queue;         /* nobody is refused */
    bool blind;         /* admission does not see where adapters are */
    uint64_t max_steps; /* 0: until all have ended */
} sim_setup;

typedef enum { SIM_NEVER, SIM_REFUSED, SIM_ABORTED, SIM_DONE } sim_end;

typedef struct sim_outcome {
    int64_t first_us, last_us, seated_us; /* 0: never */
    uint8_t end, ends, preempted;
} sim_outcome;

typedef struct sim_result {
    sim_outcome *of; /* [n], owned */
    int64_t end_us;
    uint64_t steps, rows, computed, recomputed, loads, hash; /* hash: of the schedule */
    uint64_t moved_prompts, moved_streams;
    double plan_s; /* processor time of planning */
    double cost_error;
    int64_t longest_wait_us; /* of a request that was seated */
    /* With check: free seats given to others while a head was over its ageing
     * bound, and had been for longer. */
    int passed;
} sim_result;

bool sim_run(const sim_setup *s, const sim_arrival *a, int n, int tenants, int adapters,
             sim_result *out);
void sim_result_clear(sim_result *r);

/* ---- inside: what server.c and baseline.c share (engine.c) ---- */

typedef struct sim_seq {                     /* a request in the system */
    int id;                                  /* index of its arrival */
    int computed, made, ticket, done_prompt; /* positions with KV; tokens; fair.h */
    int64_t arrived_us, deadline_us, first_us, last_us, charged_us;
    double expected_us;
    bool expected_wait;
    lengths_guess length;
    bool running, ever;
    int n_page, n_preempted, chunk;
    int32_t *page;
    int given;        /* positions whose KV came from another node, until it has a seat */
    bool prompt_only; /* its first token goes to `home` */
    bool came;        /* from another node, with its first token */
    int home;         /* the node that accepted it */
} sim_seq;

/* A request on its way from one node to another. */
typedef struct sim_handoff {
    int id, home, made, given;
    bool prompt_only;
    int64_t due_us, first_us, last_us;
    lengths_guess length;
} sim_handoff;

typedef struct sim_split sim_split;

typedef struct sim_engine {
    const sim_setup *set;
    const sim_arrival *a;
    int n, tenants;
    sim_result *out;
    devmem *arena;
    kv_pages *pages;
    sim_slots *slots;
    int64_t now_us;
    uint64_t noise;
    sim_seq *seqs; /* [cap], pool */
    int *free_seq, n_free, cap;
    int32_t *page_pool;
    int *running, n_running; /* seqs with a seat */
    cost_model cost;
    cost_work work;
    uint64_t *read, *counted; /* [adapters + 1]: the step in which it was, by what is placed */
    int rows_left;
    int index;        /* of the node */
    sim_split *split; /* NULL: no node has a role */
} sim_engine;

int sim_left(const sim_engine *e, const sim_seq *q);
sim_seq *sim_take(sim_engine *e, int id);
void sim_finish(sim_engine *e, sim_seq *q, sim_end how); /* gives the place in the pool back */
bool sim_seat(sim_engine *e, sim_seq *q, int positions); /* pages for so many; or nothing */
void sim_unseat(sim_engine *e, sim_seq *q);
bool sim_extend(sim_engine *e, sim_seq *q, int positions);
void sim_place(sim_engine *e, sim_seq *q, int n);

typedef struct sim_scheduler {
    void *self;
    void (*arrive)(void *self, int id);
    void (*plan)(void *self);                                      /* places rows */
    void (*token)(void *self, sim_seq *q, int prompt, int output); /* settled */
    void (*gone)(void *self, sim_seq *q); /* finished, before its place is given back */
    void (*stepped)(void *self, const cost_work *w, double us);
    bool (*empty)(const void *self); /* nobody waits */
    void (*destroy)(void *self);
    /* When the request would have its first token, were it here; NULL: it does not say. */
    double (*foretell)(void *self, int id);
    /* For nodes with roles. */
    bool (*resume)(void *self, const sim_handoff *h); /* comes from another node; false: refused */
    void (*left)(void *self, sim_seq *q);             /* goes to another node */
    void (*learn)(void *self, int id, lengths_guess was, int made); /* it ended at another node */
    void (*describe)(void *self, place_node *out);
    lengths_guess (*expect)(void *self, int id);
} sim_scheduler;

bool sim_server_open(sim_scheduler *s, sim_engine *e);
bool sim_baseline_open(sim_scheduler *s, sim_engine *e);

/* ---- nodes, and who chooses among them (route.c) ---- */

typedef struct sim_node sim_node;
typedef struct sim_router sim_router;
sim_node *sim_node_at(sim_node *first, int i);
int sim_node_load(const sim_node *k); /* requests in it */
int sim_node_waiting(const sim_node *k);
double sim_node_kv(const sim_node *k); /* share of pages held */
const sim_slots *sim_node_slots(const sim_node *k);
double sim_node_foretold_us(const sim_node *k, int id);

sim_router *sim_router_open(const sim_setup *s, sim_node *first, int n, const sim_arrival *a,
                            int adapters);
void sim_router_close(sim_router *r);
/* The node of the request, which arrives now. */
int sim_route(sim_router *r, int id);

/* ---- nodes with roles (split.c) ---- */

sim_scheduler *sim_node_scheduler(sim_node *k);
/* NULL: out of memory. */
sim_split *sim_split_open(const sim_setup *s, sim_node *first, int n, const sim_arrival *a);
void sim_split_close(sim_split *p);
/* It arrives at node `at`: the node that gets it, with what is sent there. */
int sim_split_arrive(sim_split *p, int at, int id, int64_t now_us, sim_handoff *h);
/* A first token was made at node `at`.  True: the request goes on at another node. */
bool sim_split_first(sim_split *p, int at, const sim_seq *q, int64_t now_us);
/* The first that is due at the node by now; false: none is. */
bool sim_split_take(sim_split *p, int at, int64_t now_us, sim_handoff *h);
int64_t sim_split_next(const sim_split *p, int at); /* when the next one is due, or INT64_MAX */
/* The node refused what it got: back to the one that accepted it. */
void sim_split_refuse(sim_split *p, const sim_handoff *h, int64_t now_us);
void sim_split_count(const sim_split *p, sim_result *out); /* moved_*; NULL: nothing */
/* It ended at node `at`, after `made` tokens. */
void sim_split_end(sim_split *p, int at, const sim_seq *q);

/* ---- figures ---- */

typedef struct sim_figures {
    double good[SIM_CLASSES], good_honest[SIM_CLASSES], good_per_s; /* shares of arrivals */
    double honest_good, all_good;
    double ttft50[SIM_CLASSES], ttft99[SIM_CLASSES], tpot50[SIM_CLASSES],
        tpot99[SIM_CLASSES]; /* s */
    double ttft99_honest[SIM_CLASSES];
    double late; /* admitted and then missed */
    double late_class[SIM_CLASSES], refused[SIM_CLASSES];
    double wasted; /* share of computed tokens that served no good request */
    double jain;   /* over tenants that wanted more than they got */
    int backlogged;
    double batch_share, batch_least; /* of the service; least over any 60 s, in tokens per s */
    double per_s;
} sim_figures;

void sim_measure(const sim_setup *s, const sim_arrival *a, int n, int tenants, int honest_from,
                 const sim_result *r, sim_figures *f);
void sim_print(FILE *to, const char *name, const sim_figures *f);

#endif
