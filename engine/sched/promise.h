/* promise.h -- when would a request have its first token, came it now?
 *
 * The outlook is a copy of what waits, by tenant and class, with the prices of tokens; it can be
 * read while the scheduler works on.  Admission asks it before anything is queued: what could not
 * keep its class's target is refused while that is cheap (S-LoRA's early abort, QLM's estimate
 * "queued work over throughput").  Two estimates, the later one counts, and a cold adapter's load,
 * which goes on beside, where that takes longer still:
 *   - a fair device: before this request goes what its tenant has waiting in classes as urgent, and
 *     of every other tenant at most as much (VTC's bound), a quantum on top;
 *   - the flow as it went: what waits in (tenant, class) over the share of the device that the flow
 *     had while it waited.  A tenant that sends more than its share learns it here.
 *
 * Both targets are promised: where one more stream would cost others their pace (policy_seats()),
 * there is no free seat, and what is predicted is when there will be one.
 *
 * Pure.  Threads: the caller's; fair.c fills it.
 */
#ifndef ENGINE_SCHED_PROMISE_H
#define ENGINE_SCHED_PROMISE_H

#include <stdbool.h>
#include <stdint.h>

enum { PROMISE_CLASSES = 8, PROMISE_TENANTS = 1024 };

typedef struct promise_tenant {
    float work_us[PROMISE_CLASSES]; /* of what waits, in device time */
    float share[PROMISE_CLASSES];   /* of the device, while something waited; 0: not known */
    int n[PROMISE_CLASSES];
} promise_tenant;

typedef struct promise_outlook {
    int n_class, n_tenant, rank[PROMISE_CLASSES];
    uint64_t id[PROMISE_TENANTS];
    promise_tenant tenant[PROMISE_TENANTS];
    double row_us, output_us; /* prices: a prompt token, an output token's share of a step */
    double step_us;           /* a decode step; row_us 0: nothing is known yet */
    double begun_us[PROMISE_CLASSES]; /* prompt work of running requests without a token */
    double job_us;                    /* work of a request of mean cost */
    double quantum_us;                /* what a tenant may be ahead of another */
    double fetch_us; /* from asking for an adapter to a seat, while they wait for room; else 0 */
    int free_seats, n_waiting;
    int64_t prompt_tokens; /* of those that wait */
    bool crowded; /* some wait though seats are free: for prompts' turn, or for streams' pace */
} promise_outlook;

typedef struct promise_ask {
    uint64_t tenant;
    int slo, n_prompt, n_output; /* class, prompt tokens, tokens that it will probably make */
    double load_us;              /* until its adapter is there (lora_source.eta); 0: it is */
} promise_ask;

/* Whether it would wait for others that wait already. */
bool promise_waits(const promise_outlook *o, const promise_ask *a);

/* Microseconds; 0: not known yet. */
double promise_ttft_us(const promise_outlook *o, const promise_ask *a);

/* One more request is on its way that fair.c has not seen. */
void promise_add(promise_outlook *o, const promise_ask *a);

/* A request that is predicted to wait for longer should be refused: what is predicted must leave a
 * part of the target for what was not foreseen.  Where its flow has a queue, who asks for more work
 * than half of the mean must leave more: in the place of one large request several small ones are
 * in time. */
double promise_most_us(const promise_outlook *o, const promise_ask *a, int64_t ttft_us);

/* The factor by which predictions of this kind were wrong, brought up to
 * date by one that came true. */
void promise_learn(double *surprise, double expected_us, double actual_us);

#endif
