/* request.h -- one completion, from socket to token and back, in one struct.
 *
 * The gateway worker that read the HTTP request owns this struct for its whole life.  It fills
 * zone 1, calls sched_submit(), sleeps in request_next() and clears the struct after the
 * terminal event.  In between the engine borrows it.  Because the owner always waits for the
 * terminal event there is no reference count, and because the token ring holds every token the
 * request may produce, the engine thread never blocks on a slow client.
 *
 *     gateway worker                         engine thread
 *     request_init, fill zone 1
 *     request_prepare
 *     sched_submit  ----- pointer ----->     zone 2 is now the engine's
 *     request_next  <---- tokens  ------     request_push
 *     request_cancel ---- flag    ----->     seen at the next step boundary
 *     request_next  <---- finish  ------     request_finish: last touch
 *     request_clear
 *
 * A request with n choices is n structs that share one prompt; one worker waits on all of
 * them through a shared `request_signal`.
 */
#ifndef ENGINE_SCHED_REQUEST_H
#define ENGINE_SCHED_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/lock.h"
#include "engine/base/meter.h"
#include "engine/grammar/grammar.h"
#include "engine/lora.h"
#include "engine/sample/bars.h"
#include "engine/sample/beam.h"
#include "engine/sample/pooling.h"
#include "engine/sample/sampler.h"
#include "engine/sched/lengths.h"
#include "engine/watch/cause.h"

typedef enum {
    FINISH_NONE, /* still running */
    FINISH_STOP, /* a stop token id, or the gateway saw a stop string */
    FINISH_LENGTH,
    FINISH_CANCELLED,
    FINISH_ERROR,
    FINISH_LEFT, /* the engine has let go of it (request_leave()): it is not over */
} finish_reason;

/* The waiting side: one per worker, shared by all choices of one HTTP request. */
typedef struct request_signal {
    lock mu;
    cond ready;
    uint64_t events; /* pushes, finishes and wakes so far; guarded by mu */
} request_signal;

/* Around the life of the worker's wait; no request may use it when it is cleared. */
void request_signal_init(request_signal *sg);

/* Frees lock and condition. */
void request_signal_clear(request_signal *sg);
/* Waits until `events` differs from *seen (then updates *seen, returns true) or timeout_ms pass. */
bool request_signal_wait(request_signal *sg, uint64_t *seen, int timeout_ms);
/* Ends a wait for another reason than a token.  Any thread, while sg lives. */
void request_signal_wake(request_signal *sg);

/* The engine's own state of a request: nobody else reads it. */
typedef struct request_run {
    struct request *next; /* queue link */
    const lora_view *lora;
    int32_t *page;        /* block table, owned by the scheduler */
    int n_page, page_cap; /* entries, KV_GONE among them, and their capacity */
    int n_gone;           /* entries that are KV_GONE */
    int n_table;          /* block tables in use: one, or, of a beam search, one of each beam */
    int32_t *swap_slot;  /* [page_cap], behind `page`: places of its pages while it is pre-empted */
    int n_swapped;       /* entries of swap_slot in use */
    int32_t *state_swap; /* behind those: places of its state, valid if n_swapped > 0 */
    int state_slot;      /* valid while it has a seat; 0 if the model keeps no states */
    int state_spare;     /* its state before a step with draft tokens; valid if guarded */
    bool guarded;
    bool replays; /* draft tokens were wrong: accepted rows are computed again with the next one */
    /* Snapshots of its state (sched_state.c), all 0 without a seat.  Positions: where the prefix
     * cache's pages end, the nearest snapshot so far, the next one; pages before the answer's. */
    int branch, snapped, snapshot_at, answer_pages;
    int n_computed; /* positions whose KV is in pages (or swapped), steps in flight included */
    int n_ahead; /* tokens that steps in flight draw: they have positions, and are not known yet */
    int draw_at; /* row of the latest of them in the last be_sample(); valid if n_ahead > 0 */
    int state;   /* private to sched.c */
    int ticket;  /* fair.h; private to sched.c */
    int telemetry_slot;     /* private to telemetry.c */
    double expected_us;     /* time to first token as predicted when it was submitted; 0: unknown */
    bool expected_wait;     /* promise_waits() then */
    lengths_guess length;   /* of its answer, as predicted then */
    bool grammar_late;      /* its mask was not ready: it waits alone until it is */
    bool stuck;             /* bars and grammar together allow no token */
    uint32_t *mask;         /* [bars_words()], of each beam, owned; NULL without bars */
    int redo;               /* positions that it had when it was pre-empted */
    struct spec_text *text; /* of prompt and output, for guesses; lent to it with its seat */
    struct draft_text *draft; /* the same, in the draft model's cache */
} request_run;

/* The engine writes it; others read it after the finish. */
typedef struct request_times {
    int64_t admitted_us, first_token_us, last_token_us; /* admitted_us 0: it never ran */
    int n_preempted;
    cause_clock clock; /* where its time went */
} request_times;

/* Tokens on their way from the engine to the gateway. */
typedef struct request_output {
    /* [max_tokens], owned; slot i is written before n_pushed passes i.  NULL: no log-probabilities
     * are wanted (rules.n_top), and `token` has all. */
    sampled *ring;
    /* [max_tokens], the bare tokens, engine writes; behind n_pushed, guesses */
    int32_t *token;
    /* [n_prompt] if score_prompt; entry 0 is unused; engine writes before the first push or the
     * finish. */
    sampled *score;
    atomic_int n_pushed; /* engine raises */
    int n_popped;        /* gateway only */
    int n_foreign;       /* of the first tokens, those of request_give(): `times` are not theirs */
} request_output;

/* A beam search (sample/beam.h).  The gateway's; the engine uses it until the finish. */
typedef struct request_beams {
    beam_search *search;
    grammar_run *form[BEAMS_MAX]; /* [width]: of each live beam, the others spare; or all NULL */
} request_beams;

typedef struct request {
    /* ---- zone 1: gateway writes before sched_submit(), then read-only ---- */
    uint64_t id;
    uint64_t tenant_id;  /* fairness and prefix-cache isolation */
    uint64_t isolation;  /* hash of tenant and cache_salt: prefix cache domain */
    uint64_t adapter_id; /* 0: the bare base model */
    int adapter_from;    /* rows of positions before it run bare (activated LoRA); below n_prompt */
    int n_vocab; /* of the adapter, where it is not the base's (lora_view.n_vocab); 0: the base's */
    const int32_t *prompt; /* [n_prompt], borrowed from the gateway's arena */
    int n_prompt;
    int max_tokens;    /* >= 0; 0 only with score_prompt or pool */
    int n_given;       /* tokens of the answer that were there before: request_give() */
    bool again;        /* it was inside before: also a server that drains takes it */
    bool score_prompt; /* log-probabilities of the prompt's own tokens are wanted */
    int score_top;     /* of these, with so many alternatives */
    /* The prompt becomes this instead of an answer (max_tokens 0, no score_prompt); NULL: it does
     * not.  The gateway's; the engine writes it until the finish. */
    pooling *pool;
    /* Answers are searched for instead of drawn, `grammar` is NULL, and rules.n_top at least
     * beam_tops(); the best one's tokens are pushed at the end, output tokens are metered as they
     * are computed.  NULL: they are drawn. */
    request_beams *beams;
    sampling rules;
    grammar_run *grammar; /* what the answer must be, or NULL; the gateway's to release */
    const bars *bars;     /* what must not come, or NULL; for the vocabulary of n_vocab; borrowed */
    int slo_class;        /* index into the scheduler's classes */
    bool background;      /* it runs in no step that others' first tokens wait for */
    float weight;         /* of the tenant in fair sharing; 1 is normal */
    /* Monotonic; 0: none.  The targets are the class's, or its tenant's own. */
    int64_t arrived_us, ttft_deadline_us, tpot_target_us;
    /* Of the time since its arrival: looking up the tenant's limits; work that stood still. */
    int64_t limits_us, stalled_us;
    int64_t expires_us; /* give up (FINISH_ERROR, ERR_TIMEOUT) when still running then; 0: never */
    /* The same, when no token was made until then: the client's own deadline. */
    int64_t patience_us;
    meter *meter; /* counts that survive a crash; never NULL */
    /* A count that the engine lowers by one when the request first runs, and not at all if it never
     * does; may be NULL. */
    _Atomic int64_t *waiting;
    request_signal *signal;

    /* ---- zone 2: engine thread only, between submit and finish ---- */
    request_run run;
    request_times times;

    /* ---- zone 3: shared; see who touches each field ---- */
    atomic_bool cancel;  /* gateway sets, engine reads */
    atomic_bool stopped; /* the same: it ends because a stop string was seen */
    atomic_bool leave;   /* the same: it ends with FINISH_LEFT */
    request_output out;
    cause_verdict missed; /* the promise: kept, or why not; valid with `finish` or a refusal */
    _Atomic int finish;   /* finish_reason; engine writes last */
    err why;              /* valid once finish == FINISH_ERROR */
} request;

/* Zeroes the struct, so that clear is always safe; sets neutral sampling rules. */
void request_init(request *rq);
/* Allocates ring and output for max_tokens.  ERR_NOMEM; ERR_INPUT for negative counts. */
err_code request_prepare(request *rq, err *e);
/* Frees what prepare made.  Not while the engine has it. */
void request_clear(request *rq);

/* Engine side: never block, never fail.  After request_finish() the engine never looks at the
 * struct again. */
void request_push(request *rq, const sampled *t);

/* The terminal event: sets `finish` and wakes the owner. `cause` is copied (FINISH_ERROR; else
 * NULL). */
void request_finish(request *rq, finish_reason why, const err *cause);

/* Gateway side.  Takes the next token if there is one: true and *out.  Else false, and *done says
 * whether the request has ended (then read rq->finish).  Never waits (request_signal_wait does). */
bool request_next(request *rq, sampled *out, bool *done);

/* Asks for the end: the engine sees it at the next step and finishes with FINISH_CANCELLED. Any
 * thread while the owner has not cleared it. */
void request_cancel(request *rq);
/* No more tokens are wanted, for what was asked is complete: ends it with FINISH_STOP. */
void request_stop(request *rq);
/* The engine shall let go of it: FINISH_LEFT, unless it ends before. */
void request_leave(request *rq);
/* After FINISH_LEFT and what request_next() still has: it runs again, as if it had been
 * pre-empted.  Whoever has it now pushes its tokens and finishes it, or submits it once more. */
void request_go_on(request *rq);
/* One more token of an answer that somebody else began, after request_prepare() and before
 * sched_submit(): request_next() has those behind it alone. */
void request_give(request *rq, int32_t token);

#endif
