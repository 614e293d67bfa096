/* sched_inside.h -- what the files of the scheduler share.  Private to sched*.c.
 *
 *   sched.c         the thread, the inbox, what callers ask and what is shown to them
 *   sched_plan.c    who runs in the next step: seats, adapters, pages, pre-emption
 *   sched_spec.c    rows for tokens that are guessed
 *   sched_draft.c   guesses of a draft model
 *   sched_beam.c    the sequences of a beam search, which share pages until they differ
 *   sched_sample.c  forward pass and sampling of a step; hidden states of prompts that have no
 *                   answer in tokens
 *   sched_restart.c what becomes of all when the device fails
 *   sched_flight.c  steps between their enqueueing and their settlement
 *   sched_settle.c  the step itself, and what becomes of its requests
 *   sched_place.c   how the engine describes itself to those that choose a node for a request
 *   sched_pages.c   pages of the prefix cache that come from another engine, or go there
 *   sched_state.c   recurrent states: snapshots for the prefix cache, and those before draft tokens
 *   sched_cause.c   where their time goes, for who is told why a promise broke
 *
 * Threads: the engine's, but for what the struct says.
 */
#ifndef ENGINE_SCHED_SCHED_INSIDE_H
#define ENGINE_SCHED_SCHED_INSIDE_H

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/memory/kv.h"
#include "engine/memory/state.h"
#include "engine/model/draft.h"
#include "engine/sample/spec.h"
#include "engine/sched/ahead.h"
#include "engine/sched/cost.h"
#include "engine/sched/fair.h"
#include "engine/sched/policy.h"
#include "engine/sched/promise.h"
#include "engine/sched/sched.h"

enum {
    SAMPLERS_MAX = 16,
    SCAN = 256, /* of those that wait, looked at for cancellation in one step */
};

/* What is gained by a guess must be so much more than what it costs: predictions err. */
#define SCHED_MARGIN 1.2
/* What is less likely is not tried, however cheap it looks. */
#define SCHED_LEAST_CHANCE 0.1

enum { STATE_WAITING, STATE_RUNNING, STATE_DONE };

/* ---- sched_flight.c: steps between their planning and their settlement */

/* Where the result of one sample_row goes. */
typedef struct draw_end {
    sampled *to;
    int seq;
    bool pick; /* else a score */
} draw_end;

/* Resources of an ended request that a row in flight still uses. */
typedef struct held {
    int32_t *page;
    int n_page;
    const lora_view *lora;
} held;

/* One sequence of a step: a request's next tokens. */
typedef struct flight_row {
    request *owner; /* NULL: it has ended since, and the row's result is discarded */
    int beam;       /* of a beam search: each has a row; its first row has 0 */
    int chunk;      /* tokens that are known */
    int pos0;
    double own_us; /* predicted time of its rows alone */
    int logit0;    /* first row of logits; -1: none */
    bool ends;     /* the last known token of the request is in this chunk */
    bool broken;   /* its logits are not numbers */
    bool late;     /* the mask of its grammar is not ready */
    bool undone;   /* draft tokens were wrong, so its state is the one before the step */
    int n_guess;   /* rows of drafted tokens behind the chunk, in owner->out.token */
    guess_source source;
    int pick0; /* row of logits from which its next token is drawn */
    int n_got; /* tokens that the step made for it, at most 1 + n_guess */
    held held; /* valid if owner is NULL */
} flight_row;

/* A step: under construction, then enqueued ("in flight"), then settled.  Its results count in
 * its requests from the moment it is enqueued (n_computed, n_ahead), so that the next step can be
 * planned on top of it. */
typedef struct flight {
    bool up;    /* enqueued, and its results have not been taken */
    bool ahead; /* enqueued while another was in flight */
    int n_seq, n_draw, mark;
    flight_row *row; /* [max_seqs] */
    sampled *picked; /* [max_logits], by rows of logits */
    draw_end *end;   /* [max_logits] */
    const sampled *got;

    /* For statistics: */
    cost_work work;
    double expected_us; /* predicted by the cost model; 0: no prediction yet */
    int n_rows, n_adapters, n_decode, n_out;
    int64_t seen_us, planned_us, computed_us;
} flight;

typedef struct sched_flights {
    flight each[2];
    bool overlaps;     /* steps may be enqueued while others run */
    int64_t landed_us; /* when the results of the last step arrived */
} sched_flights;

/* ---- sched.c: what other threads read and write; all guarded by sched.mu */
typedef struct sched_shared {
    cond work; /* signalled to the engine thread */
    request *inbox_head, *inbox_tail;
    struct page_job *jobs;
    cond job_done;
    int n_inside;    /* requests submitted and not finished */
    int most_inside; /* limit of n_inside, at most sched.cap */
    bool adjusted;   /* `wanted` is to replace cfg.classes */
    slo_class wanted[SLO_CLASS_MAX];
    bool draining, stop, broken, restarting; /* broken: permanently */
    uint64_t n_restarts;
    sched_legacy legacy; /* n_faults > 0: another process is to replace this one */
    promise_outlook outlook;
    place_node place; /* but prompt_us and n_prompts, which the outlook has */
    int n_begun;      /* running requests without a token */
    lengths *lengths;
    /* Actual over predicted time to first token: [class][0] of requests that could start at once,
     * [class][1] of those that had to wait. */
    double surprise[SLO_CLASS_MAX][2];
    sched_stats stats;
    cause_sums sums_shown;
} sched_shared;

/* ---- sched.c, sched_restart.c: memory for KV pages, and its sizes */
typedef struct sched_memory {
    devmem *arena, *own_arena; /* own_arena: NULL if the arena is the caller's */
    kv_pages *pages;
    kv_pool *kv;
    swap_pool *swap;    /* NULL: no swap */
    state_pool *states; /* one slot for each seat; NULL: the model keeps no state */
    int state_pages;    /* pages that one state takes in the swap */
    int n_snapshots;    /* slots of the prefix cache's snapshots of states */
    int snapshot_pages; /* sched_config's, or its default */
    double copy_us;     /* of a state, by what copies have taken */
    int page_tokens, n_pages, max_context;
    kv_sight see;     /* of a streaming model; window 0: everything is visible */
    int most_pages;   /* that one sequence holds at a time; INT_MAX: as many as it is long */
    int32_t *history; /* [max_context], at least a page: scratch for looking up pages */
} sched_memory;

/* ---- sched_plan.c: who runs, and who waits */
typedef struct sched_queue {
    request **list; /* running requests, then those that may get a seat in this step */
    int n, n_running;
    int n_seats; /* sequences that the running requests may have in a step */
    fair *fair;  /* waiting requests, and the service that each tenant got */
    int scan;    /* where the search for cancelled requests continues */
    ahead ahead;
    int depth; /* number of waiting requests whose adapters are prefetched */
} sched_queue;

/* The plan of one step. */
typedef struct sched_plan {
    policy_request *view; /* parallel to queue.list */
    policy_entry *entries, *held;
    int *order;
    bool *allowed;    /* may still be placed or pre-empted in this step */
    bool pages_short; /* a request waits for pages: nobody behind it may take them */
    bool rows_short;  /* the step's time is used up: nobody behind is seated */
    bool pace_short;  /* one more seat would slow streams down below their target */
    bool crowded;     /* the same, if only for tenants above their share */
    bool must_land;   /* the plan cannot be carried out while a step is in flight */
    int n_out;        /* streams that sit out this step */
    cost_work load;   /* of the step so far */
    double budget_us; /* of the step; INFINITY: no limit */
    double prompts;   /* share of the steps' time that prompts get */
    int least_chunk;  /* of the first prompt, whatever the budget */
    int rows_left, n_logit;
} sched_plan;

/* Arrays that sched.step points to, and those for its sampling. */
typedef struct sched_rows {
    int32_t *token, *pos, *from, *logit_row; /* [max_rows], logit_row [max_logits] */
    step_seq *seq;                           /* [max_seqs] */
    step_seg *seg;                           /* [2 * max_seqs] */
    sample_row *draw;                        /* [max_logits]; for backends that sample */
    const uint32_t **mask; /* [max_seqs]: tokens that the grammar allows; NULL: all */
} sched_rows;

/* ---- sched_sample.c */
typedef struct sched_pick {
    sampler *samplers[SAMPLERS_MAX];
    grammar_walk *walks[SAMPLERS_MAX];
    int n_samplers;
    const float *logits;
    float *hidden; /* hidden states on the host, some rows at a time */
} sched_pick;

/* ---- sched_spec.c, sched_draft.c */
typedef struct sched_spec {
    spec_text **texts; /* [max_seqs]; the first n_texts are free */
    int n_texts;
    spec_rates rates;          /* with which a text begins */
    struct drafting *drafting; /* NULL: no draft model */
    int64_t draft_us;          /* time that the draft model took in this iteration */
} sched_spec;

/* ---- sched_cause.c */
typedef struct sched_lost {
    cause_sums sums;
    int64_t looked_us;    /* up to here the time is accounted for; 0: nobody was inside */
    int64_t door_us;      /* of the latest plan; 0: somebody may have waited for a seat in it */
    int64_t door_lost_us; /* sums of MISS_MACHINE at door_us */
} sched_lost;

/* ---- sched_restart.c */
typedef struct sched_faults {
    bool dead;    /* as shared.broken */
    int n_faults; /* since the device last worked for a while */
    int n_good;   /* steps since the last fault */
} sched_faults;

struct sched {
    /* Set by sched_create(), and read by any thread. */
    sched_config cfg; /* its classes: written by the engine thread under mu */
    model *m;
    backend *be;
    const lora_source *source;
    int cap; /* requests that have room */
    board *board;
    telemetry *tele;
    pthread_t thread;
    _Atomic int64_t heartbeat_us;

    lock mu;
    sched_shared shared; /* guarded by mu */

    /* The engine thread's alone. */
    sched_memory mem;
    sched_faults faults;
    sched_queue queue;
    cost_model cost;
    sched_plan plan;
    step step; /* under construction */
    sched_rows rows;
    flight *now; /* the one under construction; the other one may be in flight */
    sched_flights fly;
    sched_pick pick;
    sched_spec spec;
    sched_lost lost;
    int64_t settle_us; /* of the iteration that has just ended */
    uint64_t n_prompt_tokens, n_output_tokens;
};

/* -------------------------------------------------------------------- history -- */

/* Tokens that were drawn, also those that steps in flight draw. */
static inline int n_drawn(const request *rq)
{
    int known = rq->beams ? beam_length(rq->beams->search)
                          : atomic_load_explicit(&rq->out.n_pushed, memory_order_relaxed);
    return known + rq->run.n_ahead;
}

static inline int history_len(const request *rq)
{
    return rq->n_prompt + n_drawn(rq);
}

/* The last n_ahead of the history are not. */
static inline bool is_known(const request *rq, int i)
{
    return i < history_len(rq) - rq->run.n_ahead;
}

/* A model whose layers keep a state can't take rows back: behind wrong draft tokens the state from
 * before the step returns, and the row that a mask is for waits for the mask. */
static inline bool keeps_state(const sched *sc)
{
    return sc->mem.states != NULL;
}

/* Nothing is left to plan: its last token is being drawn. */
static inline bool is_complete(const request *rq)
{
    return rq->run.n_ahead > 0 && n_drawn(rq) >= rq->max_tokens;
}

/* Tokens of the answer so far, in one of its beams. */
static inline const int32_t *output_of(const request *rq, int beam)
{
    return rq->beams ? beam_text(rq->beams->search, beam) : rq->out.token;
}

static inline int32_t history_of(const request *rq, int beam, int i)
{
    return i < rq->n_prompt ? rq->prompt[i] : output_of(rq, beam)[i - rq->n_prompt];
}

static inline int32_t history_at(const request *rq, int i)
{
    return history_of(rq, 0, i);
}

/* What its answer must be, in one of its beams; NULL: a text. */
static inline grammar_run *form_of(const request *rq, int beam)
{
    return rq->beams ? rq->beams->form[beam] : rq->grammar;
}

/* Sequences that it may have in a step: its seats. */
static inline int width_of(const request *rq)
{
    return rq->beams ? beam_width(rq->beams->search) : 1;
}

/* Sequences that it has in the next step: one until all of the prompt is computed. */
static inline int sequences_of(const request *rq)
{
    return rq->beams && rq->run.n_computed >= rq->n_prompt ? beam_live(rq->beams->search) : 1;
}

/* A block table [page_cap] of a beam search: behind the first one's and its places in the swap
 * stand the other beams', then as many as scratch.  (It has no state.) */
static inline int32_t *table_of(const request *rq, int beam)
{
    return rq->run.page + (beam == 0 ? 0 : (size_t)(beam + 1) * (size_t)rq->run.page_cap);
}

/* Ids that its answer is made of. */
static inline int vocab_of(const sched *sc, const request *rq)
{
    return rq->n_vocab > 0 ? rq->n_vocab : model_get_config(sc->m)->n_vocab;
}

static inline int left_of(const request *rq)
{
    return history_len(rq) - rq->run.n_computed;
}

/* All that is left of it is rows of an answer: the next one, and those that are computed again. */
static inline bool decodes(const request *rq)
{
    return left_of(rq) == 1 || rq->run.replays;
}

/* Scores are handed over by the first push and must not be written again after it. */
static inline bool scores(const request *rq)
{
    return rq->score_prompt && n_drawn(rq) == 0;
}

/* When its next token is due, as if the steps in flight were over now; 0: the first is not made. */
static inline int64_t due_of(const request *rq, int64_t now_us)
{
    int made = n_drawn(rq);
    int64_t first = rq->times.first_token_us ? rq->times.first_token_us : now_us;
    int64_t last = rq->run.n_ahead > 0 ? now_us : rq->times.last_token_us;
    return made > 0 ? policy_due_us(first, last, made, rq->tpot_target_us) : 0;
}

/* Time until a stream's next token is due; INFINITY: none is, or not yet. */
static inline double slack_of(const request *rq, int64_t now_us)
{
    if (!rq->times.last_token_us || !rq->tpot_target_us) return INFINITY;
    return (double)(due_of(rq, now_us) - now_us);
}

/* Rows of logits that a chunk of n tokens needs. */
static inline int logits_of(const request *rq, int n)
{
    if (rq->pool) return 0;
    return scores(rq) ? n : n == left_of(rq) ? 1 : 0;
}

static inline void domain_of(const request *rq, kv_domain *d)
{
    *d = (kv_domain){.isolation = rq->isolation};
    if (!rq->run.lora) return;
    d->from = rq->adapter_from;
    memcpy(d->digest, rq->run.lora->digest, sizeof(d->digest));
}

static inline bool is_stop(const request *rq, int32_t token)
{
    for (int i = 0; i < rq->rules.n_stop_id; i++) {
        if (rq->rules.stop_id[i] == token) return true;
    }
    return false;
}

static inline int pages_for(const sched *sc, int positions)
{
    return (positions + sc->mem.page_tokens - 1) / sc->mem.page_tokens;
}

/* Of a sequence of so many, at any one time. */
static inline int pages_held_for(const sched *sc, int positions)
{
    int n = pages_for(sc, positions);
    return n < sc->mem.most_pages ? n : sc->mem.most_pages;
}

/* Positions that a row behind `n` others attends to, for the cost model. */
static inline int seen_of(const sched *sc, int n)
{
    int most = sc->mem.see.kept + sc->mem.see.window;
    return sc->mem.see.window > 0 && n > most ? most : n;
}

/* What its next n positions need of it. */
static inline const lora_view *lora_of(const request *rq, int n)
{
    return rq->run.n_computed + n > rq->adapter_from ? rq->run.lora : NULL;
}

static inline int rank_of(const request *rq, int n)
{
    const lora_view *v = lora_of(rq, n);
    return v ? v->rank_max : 0;
}

/* An adapter is read once for all rows of a step that use it: a request's part of that. */
static inline double rank_share(const sched *sc, const request *rq, int n)
{
    return (double)rank_of(rq, n) / fair_sharers(sc->queue.fair, rq->run.ticket);
}

/* An adapter's view goes back to its source; NULL: there is none. */
static inline void view_release(const sched *sc, const lora_view *v)
{
    if (v && sc->source->release) sc->source->release(sc->source->self, v);
}

/* The work of n rows of this request, on top of what is in the step.  One row of a prompt that has
 * more is no decode row: it costs what a prompt's row costs.  `rank`: what its adapter adds. */
static inline void count_work(const sched *sc, cost_work *w, const request *rq, int n, double rank)
{
    int seen = seen_of(sc, rq->run.n_computed);
    if (n == left_of(rq) && decodes(rq)) {
        w->decode += n;
        w->attended += (double)n * seen + (double)n * (n + 1) / 2;
        w->ranks += rank;
    } else {
        *w = cost_with_chunk(w, n, seen, rank);
    }
}

static inline lengths_ask length_ask(const request *rq)
{
    return (lengths_ask){rq->tenant_id, rq->adapter_id, rq->slo_class, rq->max_tokens};
}

/* What was promised to it: its class's target, or its tenant's own. */
static inline int64_t ttft_target_us(const sched *sc, const request *rq)
{
    return rq->ttft_deadline_us ? rq->ttft_deadline_us - rq->arrived_us
                                : sc->cfg.classes[rq->slo_class].ttft_us;
}

/* S-LoRA's early abort: nothing was computed for it, and it would come too late. */
static inline bool is_too_late(const sched *sc, const request *rq, int64_t now)
{
    return sc->cfg.classes[rq->slo_class].reject_on_overload && rq->times.admitted_us == 0 &&
           rq->ttft_deadline_us && now > rq->ttft_deadline_us;
}

/* ---------------------------------------------------------- between the files -- */

/* ---- sched_cause.c: what the requests' clocks (cause.h) are told */

/* The engine looked; what has passed since it did so last, beyond what it needs between steps,
 * is lost to the machine. */
void sched_cause_look(sched *sc, int64_t now);
/* An iteration begins, after a step or a sleep; and its plan is made. */
void sched_cause_begin(sched *sc, int64_t now, bool slept);
/* It slept, for nobody was inside, and found the first of the new ones only now. */
void sched_cause_woke(sched *sc, int64_t came_us, int64_t now);

/* The plan is made. If seats, pages and rows are left, time from now on counts as waiting for
 * adapters for all requests that still wait. */
void sched_cause_planned(sched *sc, int64_t now);
/* What `n` rows of it should take alone; call it before they count as computed. */
double sched_cause_own_us(const sched *sc, const request *rq, int n);
/* A step took so long. */
void sched_cause_step(sched *sc, const flight *f, int64_t took_us);
/* All waited for that, from `began_us` until now. */
void sched_cause_lost(sched *sc, miss_cause why, int64_t began_us, int64_t now);
/* It has its seat, and `kept` positions; KV up to `end`; gives its seat up; has its first token;
 * ends. */
void sched_cause_seat(sched *sc, request *rq, int kept, int64_t now);

/* Its KV reaches up to position `end`: after a preemption, the time to compute lost positions
 * again ends there. */
void sched_cause_computed(sched *sc, request *rq, int end, int64_t now);

/* It was preempted and has lost its KV. */
void sched_cause_gave_way(sched *sc, request *rq, int64_t now);

/* It has its first token: the clock notes by how much it was late. */
void sched_cause_first(sched *sc, request *rq, int64_t now);

/* It has ended; its clock has the cause of a miss now. */
void sched_cause_end(sched *sc, request *rq, int64_t now);
/* Why it still waits though its first token was due; MISS_NONE: it is not late, or runs: what it
 * needs itself is known at its end. */
miss_cause sched_cause_overdue(const sched *sc, const request *rq, int64_t now,
                               const int64_t loads_us[2]);
/* For it: what loads have taken so far, of the disk and in all.  Takes the source's lock. */
void sched_cause_loads(const sched *sc, int64_t us[2]);

/* Takes over what was submitted since the last step. */
void sched_take_inbox(sched *sc);

/* Ends it if it was cancelled, or has no time left. */
void sched_see_end(sched *sc, request *rq, int64_t now);

/* The same for all that run and some of those that wait. */
void sched_see_ends(sched *sc, int64_t now);

/* The pool that pages live in, and that of swapped ones. */
err_code sched_open_pool(sched *sc, err *e);

/* The device has failed: brings it back, or gives up for good. */
void sched_restart(sched *sc, const err *why);
/* Steps that came to their end. */
void sched_step_was_good(sched *sc);

/* Chooses and seats who runs next, and builds the step; its n_seq is 0 where nobody can run. */
void sched_plan_step(sched *sc, int64_t now);

/* Pages for the next n positions of a running request; false: they were not claimed. */
bool sched_extend(sched *sc, request *rq, int n);

/* Forward pass and sampling of sc->now, enqueued where the backend samples, else done. */
err_code sched_launch(sched *sc, err *e);
/* Waits for it: picked, n_got, broken and late of its sequences, scores of prompts; computed_us:
 * when the pass was over (with sampling, where the device does both). */
err_code sched_collect(sched *sc, flight *f, err *e);

/* Launches the step and settles the one before it; then also this one, unless it may stay in flight
 * while the next one is planned.  `seen_us`: when the iteration began. */
void sched_run_step(sched *sc, int64_t seen_us);
/* Settles what is in flight, if anything is. */
void sched_land(sched *sc);

/* ---- sched_spec.c */
bool sched_spec_create(sched *sc);

/* Frees what sched_spec_create() made; also after that has failed. */
void sched_spec_destroy(sched *sc);
/* The request gives up its seat. */
void sched_spec_leave(sched *sc, request *rq);
/* Adds guesses to the step that is planned, as far as they pay: n_guess of its sequences. */
void sched_guess(sched *sc, int64_t now);
/* How many of the guesses are worth their rows, at most `most`: tokens in a microsecond must
 * rise by them.  `load` is the step so far, by which `tokens` are made; both grow by what is taken.
 * `context`: positions before the first guess.  The step stays below bound_us.  copy_us: a state is
 * copied first, and where one guess is wrong, the rows of the others are computed again; -1: there
 * is no state. */
int sched_guess_worth(const cost_model *c, cost_work *load, double *tokens, const spec_guess *g,
                      int most, int context, double bound_us, double copy_us);
/* copy_us for this model. */
double sched_undo_us(const sched *sc);
/* n rows of guesses, as far as there are pages, behind the one of sequence s. */
void sched_guess_place(sched *sc, int s, const spec_guess *g, int n);
/* The work of `n` guessed rows behind `context` positions, on top of `w`. */
cost_work sched_guess_work(const cost_work *w, int n, int context);
/* Whether guesses would pay that need the tokens of the step in flight. */
bool sched_spec_should_land(sched *sc);
/* Whether the row behind the k-th that draws for a sequence counts: the k-th gave this token. */
bool sched_goes_on(const flight *f, int s, int k, int32_t token);
/* n_got and broken of a sequence all of whose rows were sampled. */
void sched_verify(flight *f, int s);

/* ---- sched_draft.c; all but create do nothing where there is no draft model */
err_code sched_draft_create(sched *sc, err *e);

/* Frees it; the model itself belongs to the caller. */
void sched_draft_destroy(sched *sc);

/* Around a restart of the device: gives back what lies there, and takes it again. */
void sched_draft_unload(sched *sc);

/* Takes it again on the device that was reopened; ERR_NONE without a draft model. */
err_code sched_draft_reload(sched *sc, err *e);

/* The request has ended or gave up its seat: what the draft model has read of it is forgotten. */
void sched_draft_leave(sched *sc, request *rq);

/* Bytes of the draft model's KV that texts use now. */
size_t sched_draft_used_bytes(const sched *sc);
/* A step is planned: nobody wishes anything; then sequence s would have up to `most` guesses; then
 * those get some that pay, on top of the step's load and so many tokens that it has already. */
void sched_draft_begin(sched *sc);

/* Sequence s of the planned step would take up to `most` draft tokens. Nothing where the draft
 * model cannot read its text. */
void sched_draft_wish(sched *sc, int s, int most);

/* Runs the draft model for the wishes that pay together, and places their tokens. tokens: what
 * the step yields without them; bound_us: the longest that the step may take. */
void sched_draft(sched *sc, double tokens, double bound_us);

/* ---- sched_beam.c: the block tables of a beam search */
/* ERR_INPUT, ERR_UNSUPPORTED, ERR_LIMIT: it can't run here. */
err_code sched_beam_check(const sched *sc, const request *rq, err *e);
/* Pages that so many positions need at most, with the prompt's shared. */
int sched_beam_pages(const sched *sc, const request *rq, int positions);
/* Pages to be taken for its next n positions: each beam writes to pages of its own. */
int sched_beam_need(sched *sc, request *rq, int n);
/* Takes them; what beams share of the page that they write to is copied.  False: there are none. */
bool sched_beam_extend(sched *sc, request *rq, int n);
/* The masks of all its forms are there. */
bool sched_beam_ready(sched *sc, const request *rq);
/* All of its rows, of which s is the first, were sampled. */
void sched_beam_settle(sched *sc, flight *f, int s, int64_t now);

/* ---- sched_settle.c, of results */
void sched_fail_numbers(sched *sc, request *rq);

/* The answer cannot satisfy its grammar any more: it ends with an error that has the grammar's
 * reason. */
void sched_fail_form(sched *sc, request *rq, const grammar_run *form);
/* So many tokens were made for it in this step. */
void sched_meter_output(sched *sc, request *rq, int n, int64_t now);

/* ---- sched_pages.c */
/* The first of those who wait to have pages copied; mu is held.  NULL: nobody does. */
struct page_job *sched_take_job(sched *sc);
/* He gets it. */
void sched_do_job(sched *sc, struct page_job *j);
/* The engine ends: nobody gets it any more. */
void sched_end_jobs(sched *sc);

/* ---- sched_state.c; the model keeps states, or nothing happens */
/* Finds the next position whose state the prefix cache should have.  Of the request's next n rows,
 * those before it. */
int sched_snapshot_cut(sched *sc, request *rq, int n);
/* Its state is that of n_computed, and all pages before that are published: takes the snapshot if
 * this is the position. */
void sched_snapshot_take(sched *sc, request *rq);
/* Of the pages that were found for a request without a seat, those behind the last snapshot go
 * back.  Returns the snapshot's slot, -1: there is none; sched_snapshot_restore() copies it, before
 * the next one is taken. */
int sched_snapshot_find(sched *sc, request *rq);

/* Copies the snapshot (slot >= 0) into the request's own state; its n_computed is the snapshot's
 * position. */
void sched_snapshot_restore(sched *sc, request *rq, int slot);
/* Before a step is launched: copies the states of those that have draft tokens in it. */
void sched_state_guard(sched *sc);
/* Gives the copy up, or (undone) puts it in the place of the state.  Nothing without a copy. */
void sched_state_unguard(sched *sc, request *rq, bool undone);

/* ---- sched_sample.c, of prompts that are pooled */
err_code sched_pool_create(sched *sc, err *e);

/* Frees the room for hidden states; nothing where there is none. */
void sched_pool_destroy(sched *sc);
/* All of a prompt was given.  False: *e says why nothing can be made of it. */
bool sched_pool_end(const sched *sc, request *rq, err *e);

/* ---- sched_flight.c */
bool sched_flights_create(sched *sc);

/* Frees both; nothing may be in flight. */
void sched_flights_destroy(sched *sc);
/* The step that is in flight, or NULL. */
flight *sched_in_flight(sched *sc);
/* Whether the step in flight should be settled first, because waiting requests depend on it. */
bool sched_should_land(sched *sc);
/* Whether the next step can be planned before the tokens of this one are known. */
bool sched_may_fly(const sched *sc, const flight *f);
/* sc->now is in flight; the next step is built in the other. */
void sched_take_off(sched *sc);
/* The request ends: what the step in flight uses of it stays until that is over. */
void sched_hold(sched *sc, request *rq);
/* The row of a request that has ended: gives up what was held for it. */
void sched_let_go(sched *sc, flight *f, int s);
/* The device has failed: nothing is in flight any more. */
void sched_drop_flights(sched *sc);

/* What place.h asks, brought up to date.  mu is not held. */
void sched_place_show(sched *sc);
/* From running to waiting: gives back the seat, the pages and the adapter. */
void sched_leave_seat(sched *sc, request *rq);

/* The word that books and statistics have for an end. */
request_outcome sched_outcome_of(finish_reason why);

/* Full pages from position `before` to `end` become findable by their
 * content, all of which is known. */
void sched_publish_pages(sched *sc, request *rq, int before, int end);

/* Its copy in host memory is not needed any more. */
void sched_swap_forget(sched *sc, request *rq);

/* The last touch of the request; the list is tidied by sched_sweep(). */
void sched_finish(sched *sc, request *rq, finish_reason why, const err *cause);

/* Ends all requests that run or wait; those in the inbox are not known here yet. */
void sched_finish_all(sched *sc, finish_reason why, const err *cause);

/* Forgets running requests that have ended; the others keep their order. */
void sched_sweep(sched *sc);

#endif
