/* fair.h -- who waits, and who is next: deficit rounds of tenants and classes, with deadlines.
 *
 * Waiting requests stand in flows, one for each (tenant, class), in order of arrival.  fair_pick()
 * merges the heads of the flows.  Of two heads the first rule that tells them apart decides
 * (goes_before() in fair.c; each rule is a small function there):
 *
 *     1. aged: a head that has waited for its turn longer than the ageing bound goes first; of such
 *        the one that has for longest.
 *     2. tenant: by rounds of deficit (VTC's counters, DLPM's quantum).  Who is within a quantum of
 *        the least served one is in this round, an abuser in a later one, whatever its class.
 *     3. class: by rounds in the same way, with their weights.  The lowest gets its share.
 *     4. company: only while adapters wait for room.  An adapter in use goes before one that needs
 *        a load; of the latter, the one that most wait for, with the shortest answers.
 *     5. near: who is about to miss its deadline and can still meet it; the earliest first (EDF).
 *     6. rank: the more urgent class.  A prompt that cannot meet its target anyway counts as one
 *        class lower (FastServe's skip-join).
 *     7. served: the tenant that was served least.
 *     8. arrival.
 *
 * Nobody starves, by rule 1: once a head is aged, no free seat is given to anybody but heads that
 * are older, of which there is one for each other flow, and those that come back pre-empted.  These
 * cannot return for ever: from rank x bound after their arrival on, only older ones pre-empt them
 * (policy.h).  Who is about to miss a deadline may still take the seat of a weaker one that runs.
 * tests/sim/test_props.c holds every seat of every scenario to it.
 *
 * Who is not named at all, whatever the rules say (may_be_named()):
 *     - who waits for its adapter lets others of its flow pass (Chameleon's bypass).  Few adapters
 *       are asked for at once;
 *     - while adapters wait for room, who has time to spare waits for company;
 *     - if that lasts, adapters that are long in use take nobody new, until what was asked for is
 *       there (LoRAX's cycle time).
 *
 * A request is charged what it is expected to cost when it is seated, and settled when it leaves:
 * counters are integers and end as what was really used, exactly.
 *
 * A pick costs O(flows that wait), the rest O(1), but O(flow) where somebody pre-empted waits
 * behind others of his flow.  Nothing is allocated after fair_create().  There
 * is no clock: the same calls give the same picks.
 * Threads: the caller's; one at a time.
 */
#ifndef ENGINE_SCHED_FAIR_H
#define ENGINE_SCHED_FAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sched/promise.h"

enum {
    FAIR_TENANTS = PROMISE_TENANTS, /* counters; the least served is forgotten first */
    FAIR_PICKS = 64,                /* the most that one pick names */
    FAIR_OUTPUT_PRICE = 2,          /* an output token costs as much as two prompt tokens (VTC) */
};

typedef struct fair_class {
    int rank;        /* 0 is the most urgent */
    double weight;   /* of its share when all classes wait */
    int64_t ttft_us; /* target for the first token; 0: none */
} fair_class;

typedef struct fair_config {
    int n_class, cap; /* cap: requests at once, waiting and running */
    int64_t ageing_us;
    fair_class classes[PROMISE_CLASSES];
} fair_config;

typedef struct fair_job {
    void *who;
    uint64_t tenant, adapter;        /* adapter 0: none */
    double weight;                   /* of the tenant */
    int slo;                         /* class */
    int64_t arrived_us, deadline_us; /* of the first token; 0: none */
    int prompt, output;              /* tokens to compute; to make, as far as that is known */
} fair_job;

typedef struct fair fair;

/* NULL: out of memory. */
fair *fair_create(const fair_config *cfg);

/* NULL is allowed; what waits is the caller's. */
void fair_destroy(fair *f);

/* Other weights and targets of the same classes, in their order.  Of those that are seated or have
 * been, everything stays as it was charged. */
void fair_set_classes(fair *f, const fair_class *classes);

/* A request begins to wait; the ticket names it until fair_leave().  At most `cap` at once. */
int fair_enter(fair *f, const fair_job *job, int64_t now_us);

/* fair_job.who of the ticket. */
void *fair_who(const fair *f, int ticket);

/* From waiting to running, and back to its old place (pre-empted). */
void fair_seat(fair *f, int ticket, int64_t now_us);

/* To its old place in its flow, with what it was charged taken back as far as it did not compute
 * it. */
void fair_back(fair *f, int ticket, int64_t now_us);

/* Its adapter was asked for and is not there yet. */
void fair_block(fair *f, int ticket, int64_t now_us);

/* It computed so many prompt tokens and made so many output tokens. */
void fair_charge(fair *f, int ticket, int prompt, int output);

/* It ended, in whatever state. */
void fair_leave(fair *f, int ticket, int64_t now_us);

/* Names the first of those that wait, at most `want` <= FAIR_PICKS, in the order in which they
 * should be seated. */
int fair_pick(fair *f, int64_t now_us, int want, int *tickets);

/* Waiting requests one after the other, `n` at a time, from *cursor on (first 0; moves round). */
int fair_scan(const fair *f, int *cursor, int n, int *tickets);

/* How many wait: not seated, not left. */
int fair_waiting(const fair *f);

/* False: it is seated. */
bool fair_is_waiting(const fair *f, int ticket);

/* Whether it has stood first in its flow for longer than the ageing bound: nobody but such goes
 * before, and of these who has for longest.  What it stood there before it was pre-empted, or
 * pushed back by one that was, counts. */
bool fair_is_aged(const fair *f, int ticket, int64_t now_us);

/* How long it has stood first in its flow; 0: it never did. */
int64_t fair_age_us(const fair *f, int ticket, int64_t now_us);

/* Whether its tenant has more of the seats than its weight among those who are inside. */
bool fair_is_rich(const fair *f, int ticket);

/* How many of those who run use its adapter, itself included; 1: it has none. */
int fair_sharers(const fair *f, int ticket);

/* Virtual tokens over weight that the tenant of this request has been charged, in 1/65536. */
int64_t fair_served(const fair *f, int ticket);

/* The counter in place `i`, in virtual tokens over weight; false: there are no more. */
bool fair_tenant(const fair *f, int i, uint64_t *id, double *served, int *inside);

/* Whether somebody runs with this adapter, or needs none. */
bool fair_in_use(const fair *f, uint64_t adapter);

/* What tokens cost, for the outlook and the rule of deadlines; row_us 0: not known yet. */
void fair_set_prices(fair *f, double row_us, double output_us, double step_us);

/* Brings a copy of what waits up to date; only tenants that changed since the last call are
 * touched, so always with the same `o`. */
void fair_publish(fair *f, promise_outlook *o, int64_t now_us);

/* All invariants: lists, sums, and that every counter is what was charged.  For tests. */
bool fair_check(const fair *f);

#endif
