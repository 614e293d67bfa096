/* sched.h -- the engine thread: which rows run in the next forward pass.
 *
 * Iteration-level scheduling (Orca) with chunked prefill (Sarathi-Serve) over paged KV (vLLM).
 * sched.c owns the thread, sched_plan.c and sched_settle.c execute; fair.c and policy.c decide and
 * touch nothing; kv.c keeps pages and the prefix cache.  Loop: drain the inbox, see cancellations,
 * policy_plan(), acquire adapters, reserve pages, build the step, model_forward(), sample, push,
 * retire.  Where the backend can (be_can_run_ahead()), the next step is planned and enqueued while
 * one runs (sched_flight.c).
 *
 * A request is never failed for lack of pages: it waits, or the latest arrival of the lowest class
 * is pre-empted and goes on later with identical tokens: its KV is recomputed, or was swapped to
 * host memory where that is cheaper.
 *
 * When the device fails, what runs ends with ERR_RESTARTING, the backend is reopened, the model
 * loaded again, and what had not begun goes on (sched_restart.c).
 *
 * Threads: sched_submit(), request_cancel(), sched_stats_get() from any thread.
 */
#ifndef ENGINE_SCHED_SCHED_H
#define ENGINE_SCHED_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/base/err.h"
#include "engine/lora.h"
#include "engine/memory/devmem.h"
#include "engine/memory/kv.h"
#include "engine/memory/state.h"
#include "engine/memory/swap.h"
#include "engine/model/model.h"
#include "engine/sample/spec.h"
#include "engine/sched/board.h"
#include "engine/sched/place.h"
#include "engine/sched/request.h"
#include "engine/sched/telemetry.h"

enum {
    SLO_CLASS_MAX = 8,
    SCHED_SCORE_ROWS = 16, /* rows at a time for a request that wants its prompt scored */
};

typedef struct slo_class {
    char name[32];
    int64_t ttft_us, tpot_us; /* targets */
    float weight;
    bool reject_on_overload; /* else queue */
    int rank;                /* 0 is the most urgent */
} slo_class;

/* What becomes of a pre-empted request's KV. */
typedef enum {
    PREEMPT_CHEAPER, /* by the cost model and what copies have taken */
    PREEMPT_RECOMPUTE,
    PREEMPT_SWAP, /* as long as there is room */
} preemption;

typedef struct sched_config {
    int max_rows;      /* rows in one step: decode rows + prefill tokens */
    int max_seqs;      /* sequences running at once */
    int max_queued;    /* waiting requests before sched_submit() answers ERR_BUSY */
    int max_context;   /* tokens per sequence, prompt and output */
    int max_logits;    /* rows of logits in one step; the value given to model_load() */
    devmem *arena;     /* for the KV pages; borrowed */
    size_t kv_bytes;   /* without one: budget of a page pool of the scheduler's own */
    int64_t ageing_us; /* waiting this long raises a request by one class; 0: 10 s */
    bool prefix_cache;
    /* Of a model whose layers keep a state: memory for the prefix cache's snapshots of states; less
     * than one takes: no prefix cache.  Pages that a snapshot must save at least; 0: 2. */
    size_t snapshot_bytes;
    int snapshot_pages;
    size_t swap_bytes; /* host memory for pages of pre-empted requests */
    preemption preemption;
    /* Before the second attempt to bring the device back, doubled for each; 0: 500 ms. */
    int64_t restart_wait_us;
    /* of the device, without many good steps in between, before it is given up; 0: 5 */
    int max_faults;
    /* Of a process before, whose place this one has taken (sched_replaced()): faults without many
     * good steps behind them, and restarts in all. */
    int n_faults;
    uint64_t n_restarts;
    int max_tenants; /* that have telemetry of their own */
    /* The most tokens that are guessed for a request in one step, up to SPEC_MAX; 0: none.  So many
     * as pay by the cost model, or, always, as can be guessed. */
    int speculate;
    bool speculate_always;
    /* A model that guesses, of the same tokenizer, loaded with max_rows and max_logits; NULL: none.
     * Borrowed; the scheduler loads it again where the device failed. */
    model *draft;
    /* The next step is planned when the tokens of the one before are known, never before. */
    bool no_overlap;
    int n_class;
    slo_class classes[SLO_CLASS_MAX];
} sched_config;

typedef struct guess_counts {
    uint64_t made, right; /* rows of guessed tokens; of them, those that counted */
    uint64_t made_by[GUESS_SOURCES], right_by[GUESS_SOURCES];
    size_t draft_bytes, draft_used_bytes; /* of the draft model's KV pages */
    int64_t draft_us;                     /* sum: what it took; no part of plan_us or busy_us */
} guess_counts;

typedef struct step_counts {
    int rows, prefill, seqs, adapters; /* prefill: rows of prompts */
    int64_t us;
} step_counts;

typedef struct sched_stats {
    bool healthy;      /* false: the device failed for good, nothing is accepted any more */
    bool restarting;   /* it failed, and is brought back: requests wait */
    bool prefix_cache; /* false: it is off */
    uint64_t n_restarts;
    int n_running, n_waiting;
    int n_pages, n_pages_used, n_pages_cached; /* of the arena's chunks; adapters have some too */
    uint64_t n_steps, n_rows, n_prefill_tokens, n_decode_tokens;
    uint64_t n_out; /* times that a stream sat out a step (policy_trim()) */
    uint64_t n_prompt_tokens,
        n_output_tokens; /* as tenants are charged: recomputing adds nothing */
    uint64_t n_looked_up_tokens,
        n_cached_tokens; /* prompt tokens asked of the prefix cache, and found */
    uint64_t n_steps_ahead,
        n_discarded; /* steps enqueued while another ran; rows of them whose request had ended */
    guess_counts guess;
    uint64_t n_finished, n_cancelled, n_failed, n_preempted, n_adapter_waits;
    uint64_t n_swapped_out, n_swapped_in; /* requests; of the pre-empted, those with a copy */
    swap_counts swap;                     /* pages of them */
    state_counts state;                   /* of running sequences; all zero: the model has none */
    snapshot_counts snapshots;            /* of states, of the same size; n_slots 0: none */
    step_counts last;                     /* of the latest step */
    int64_t busy_us;                      /* sum over steps */
    int64_t plan_us, forward_us, sample_us, settle_us; /* sums: where an iteration's time goes */
    double cost_error; /* of the cost model: mean |predicted - took| / took over some 50 steps */
    double cost_step_us, cost_row_us; /* by it: a step before any row; a decode row, as of late */
} sched_stats;

typedef struct sched sched;

/* What the process that takes this one's place has to know (sched_config). */
typedef struct sched_legacy {
    int n_faults;
    uint64_t n_restarts;
} sched_legacy;

/* Makes the KV pool and starts the engine thread.  `source` may be NULL: no adapters.
 * Borrowed until sched_destroy(): model, backend, source.  ERR_UNSUPPORTED: the backend runs no
 * draft model. */
err_code sched_create(sched **out, const sched_config *cfg, model *m, backend *be,
                      const lora_source *source, err *e);

/* Other targets, weights and overload rules of the same classes, in their order, and another bound
 * for those that wait, at most sched_create()'s.  Requests that are inside keep their deadlines;
 * weights count for them too.  Within a tenth of a second.  Any thread. */
void sched_adjust(sched *sc, const slo_class *classes, int max_queued);

/* Cancels what still runs, waits for the thread, frees the pool. */
void sched_destroy(sched *sc);

/* Lends `rq` to the engine until its terminal event.  Nothing was lent unless ERR_NONE:
 *   ERR_INPUT  prompt empty, or prompt + max_tokens beyond max_context or beyond all pages, a token
 *              id outside the vocabulary, sampling rules out of range
 *   ERR_BUSY   the queue is full, the scheduler is draining, or the request's class rejects on
 *              overload and the first token would come later than its target
 *   ERR_DEVICE the device has failed, and could not be brought back
 * The stop token that ends a request is pushed like any other and counted; its text is the
 * gateway's to drop. */
err_code sched_submit(sched *sc, request *rq, err *e);

/* Microseconds until such a request (its tenant, class, adapter and lengths) would be let in, by
 * what is foreseen of its first token (promise.h), corrected by what became of earlier predictions.
 * 0: now, or not known yet.  Any thread. */
int64_t sched_retry_us(sched *sc, const request *rq);

/* No new requests; true once none is left or false at the deadline. */
bool sched_drain(sched *sc, int64_t timeout_us);

void sched_stats_get(sched *sc, sched_stats *out);

/* What predictions of answers' lengths came to in a class.  Any thread. */
void sched_lengths_get(sched *sc, int class, lengths_record *out);

/* The requests in the engine and the tenants' counters; see board.h.  Any thread but the
 * engine's. */
board *sched_board(sched *sc);
/* What became of requests; the gateway adds what it refuses.  Lives as long as the scheduler. */
telemetry *sched_telemetry(const sched *sc);

/* Positions in one KV page, and its bytes; bytes of a sequence's recurrent state, 0: none. */
int sched_page_tokens(const sched *sc);
size_t sched_page_bytes(const sched *sc);
size_t sched_state_bytes(const sched *sc);

/* A text whose keys and values go from one engine to another, which computes the same bits: its
 * whole pages (sched_text_pages()), by the prefix caches of both. */
typedef struct sched_text {
    kv_domain domain;
    const int32_t *token; /* [n_token], borrowed for the call */
    int n_token;
} sched_text;

/* All but the one with the last token, which the next row is made of. */
int sched_text_pages(const sched *sc, const sched_text *t);
/* How many more pages than this engine another one needs, so that it is worth to be asked: 1, or
 * those that a snapshot of a state saves at least. */
int sched_pages_least(const sched *sc);

/* Whether pages can be saved and loaded here at all: ERR_UNSUPPORTED says why not. */
err_code sched_pages_check(const sched *sc, err *e);

/* Each waits for the engine thread, which does one such thing between two steps, at most until
 * until_us.  Any thread.  ERR_UNSUPPORTED: there is no prefix cache, or the model is one of
 * streams; ERR_TIMEOUT; ERR_NOMEM; ERR_STOPPING; ERR_DEVICE.
 *
 * How many pages of its beginning the prefix cache has, for a model with states up to the last one
 * with a snapshot; microseconds that computing the others would take with an adapter of this rank,
 * 0: not known. */
err_code sched_pages_look(sched *sc, const sched_text *t, int rank, int64_t until_us, int *n_have,
                          double *us, err *e);
/* Copies pages [first, first + n) out, as far as the cache has them: *n_done of them, each of
 * sched_page_bytes(), behind one another. */
err_code sched_pages_save(sched *sc, const sched_text *t, int first, int n, void *out,
                          int64_t until_us, int *n_done, err *e);
/* Copies them into pages that nobody holds, and publishes those: *n_done stand in the cache then.
 * Fewer than n: there is no more room, or what comes before them is not there any more. */
err_code sched_pages_load(sched *sc, const sched_text *t, int first, int n, const void *in,
                          int64_t until_us, int *n_done, err *e);
/* The same for the snapshot of a state at the end of n_pages pages, of sched_state_bytes().  Not
 * *done: the prefix cache has no such snapshot, or not all of the pages. */
err_code sched_state_save(sched *sc, const sched_text *t, int n_pages, void *out, int64_t until_us,
                          bool *done, err *e);
err_code sched_state_load(sched *sc, const sched_text *t, int n_pages, const void *in,
                          int64_t until_us, bool *done, err *e);

/* This engine, as the choice of a node sees it (place.h): all but role, setup_us and byte_us, which
 * are 0.  Any thread. */
void sched_place_get(sched *sc, place_node *out);
/* For a request that another engine begins: what is foreseen of it (run.length), and that it has
 * come, as sched_submit() does it.  Before either; not while an engine has it. */
void sched_foresee(sched *sc, request *rq);
/* One that other engines have finished: its outcome and times count as if it had ended here.  Call
 * it before request_finish(). */
void sched_ended_elsewhere(sched *sc, request *rq, finish_reason why, const err *cause);

/* Largest prompt + output that can ever be served (max_context, pages). */
int sched_max_context(const sched *sc);

/* Whether the device failed so that only another process can use it (BE_HEALS_NEVER): everything
 * has ended with ERR_RESTARTING, and so does what still comes.  *out is for that process. */
bool sched_replaced(sched *sc, sched_legacy *out);

/* Monotonic time of the last heartbeat of the engine thread, for health checks; idle counts. */
int64_t sched_heartbeat_us(const sched *sc);

#endif
