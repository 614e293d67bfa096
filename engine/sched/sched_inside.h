/* sched_inside.h -- what the files of the scheduler share.  Private to sched*.c.
 *
 *   sched.c         the thread, the inbox, what callers ask and what is shown to them
 *   sched_plan.c    who runs in the next step: seats, adapters, pages, pre-emption
 *   sched_spec.c    rows for tokens that are guessed
 *   sched_draft.c   guesses of a draft model
 *   sched_sample.c  forward pass and sampling of a step; hidden states of prompts that have no
 *                   answer in tokens
 *   sched_restart.c what becomes of all when the device fails
 *   sched_flight.c  steps between their enqueueing and their settlement
 *   sched_settle.c  the step itself, and what becomes of its requests
 *   sched_pages.c   pages of the prefix cache that come from another engine, or go there
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

/* Where the result of one sample_row goes. */
typedef struct draw_end {
    sampled *to;
    int seq;
    bool pick; /* else a score */
} draw_end;

/* What a row of a step in flight still uses, though its request has ended. */
typedef struct held {
    int32_t *page;
    int n_page;
    const lora_view *lora;
} held;

/* A step: under construction, then enqueued ("in flight"), then settled.  What it will have
 * brought is counted in its requests from its enqueueing on (n_computed, n_ahead), so that the
 * next one can be planned on top of it. */
typedef struct flight {
    bool up;    /* enqueued, and its results have not been taken */
    bool ahead; /* enqueued while another was in flight */
    int n_seq, n_draw, mark;
    request **owner;      /* [max_seqs]; NULL: has ended since, its row is discarded */
    int *chunk;           /* [max_seqs] */
    int *pos0;            /* [max_seqs] */
    double *own_us;       /* [max_seqs]: what its rows should take alone */
    int *logit0;          /* [max_seqs]: first row of logits, or -1 */
    bool *ends;           /* [max_seqs]: the last of what was known of the request */
    bool *broken;         /* [max_seqs]: logits that are not numbers */
    bool *late;           /* [max_seqs]: the mask of its grammar is not ready */
    int *n_guess;         /* [max_seqs]: rows of guessed tokens behind the chunk, in rq->output */
    guess_source *source; /* [max_seqs]: where they come from */
    int *pick0;           /* [max_seqs]: row of logits from which its next token is drawn */
    int *n_got;           /* [max_seqs]: tokens that came of it, at most 1 + n_guess */
    sampled *picked;      /* [max_logits], by rows of logits */
    held *held;           /* [max_seqs]: where owner is NULL */
    draw_end *end;        /* [max_logits] */
    const sampled *got;

    /* for the counts */
    cost_work work;
    double expected_us; /* by the cost model's terms; 0: not known yet */
    int n_rows, n_seg, n_adapters, n_decode, n_out;
    int64_t seen_us, planned_us, computed_us;
} flight;

struct sched {
    sched_config cfg;
    model *m;
    backend *be;
    const lora_source *source;
    devmem *arena, *own_arena; /* own_arena: NULL where it was lent */
    kv_pages *pages;
    kv_pool *kv;
    swap_pool *swap; /* NULL: there is none */
    int page_tokens, n_pages, max_context;
    kv_sight see;   /* of a model of streams; window 0: all is seen */
    int most_pages; /* that one sequence ever holds; INT_MAX: as many as it is long */

    pthread_t thread;
    lock mu; /* inbox, stats, flags */
    cond work;
    request *inbox_head, *inbox_tail;
    struct page_job *jobs; /* guarded by mu */
    cond job_done;
    int n_inside;                            /* submitted and not finished; guarded by mu */
    int most_inside;                         /* guarded by mu; at most cap */
    bool adjusted;                           /* `wanted` is to be cfg.classes; guarded by mu */
    slo_class wanted[SLO_CLASS_MAX];         /* guarded by mu */
    bool draining, stop, broken, restarting; /* broken: for good */
    uint64_t n_restarts;
    sched_legacy legacy;     /* n_faults > 0: another process is to come; guarded by mu */
    promise_outlook outlook; /* guarded by mu */
    lengths *lengths;        /* guarded by mu */
    board *board;
    /* Actual over predicted time to first token, of those that were to be served at once, and of
     * those that were to wait; guarded by mu. */
    double surprise[SLO_CLASS_MAX][2];
    sched_stats stats; /* guarded by mu */
    _Atomic int64_t heartbeat_us;
    telemetry *tele;
    cause_sums sums_shown; /* guarded by mu */

    /* engine thread only */
    cause_sums sums;
    int64_t looked_us;    /* what passed before is in no pause; 0: nobody was inside */
    int64_t door_us;      /* of the latest plan; 0: somebody may have waited for a seat in it */
    int64_t door_lost_us; /* what was MISS_MACHINE's by then */
    bool dead;            /* as broken */
    int n_faults;         /* since the device last worked for a while */
    int n_good;           /* steps since the last fault */
    request **list;       /* those who run, then those who may be seated in this step */
    int n, cap, n_running;
    policy_request *view;
    policy_entry *plan, *held;
    int *order;
    bool *allowed;     /* may still be placed or pre-empted in this step */
    bool pages_short;  /* someone waits for pages: nobody behind may take them */
    bool rows_short;   /* for time in the step: nobody behind is seated */
    bool pace_short;   /* one more seat, and streams would lose their pace ... */
    bool crowded;      /* ... if it were one of a tenant that has more than its share */
    int n_out;         /* streams that sit out the step under construction */
    fair *fair;        /* who waits, and what each tenant was served */
    int scan;          /* where the look for cancelled ones goes on */
    int64_t settle_us; /* of the iteration that has just ended */
    uint64_t n_prompt_tokens, n_output_tokens;

    ahead ahead;
    int depth;         /* of those that wait: whose adapters are fetched */
    spec_text **texts; /* [max_seqs], the first n_texts of which are nobody's */
    int n_texts;
    spec_rates rates;          /* with which a text begins */
    struct drafting *drafting; /* NULL: there is no draft model */
    int64_t draft_us;          /* what it took of the iteration */
    cost_model cost;
    cost_work load;   /* of the step under construction */
    double budget_us; /* INFINITY: no bound */
    double prompts;   /* their share of the steps' time */
    int least_chunk;  /* of the first prompt, whatever the budget */

    /* the step under construction */
    step step;
    int rows_left, n_logit;
    int32_t *token, *pos, *from, *logit_row; /* [max_rows], the last [max_logits] */
    step_seq *seq;
    step_seg *seg; /* [2 * max_seqs] */
    /* [max_context], a page at least: of one request, while pages are looked up. */
    int32_t *history;
    flight flights[2];
    flight *now;         /* the one under construction; the other may be in flight */
    request **row_owner; /* [n_seq], its owner */
    int *chunk;          /* [n_seq], its own */
    bool overlaps;       /* steps may be enqueued while others run */
    bool must_land;      /* the plan cannot be carried out while a step is in flight */
    int64_t landed_us;   /* when the last one's results were there */
    sampler *samplers[SAMPLERS_MAX];
    grammar_walk *walks[SAMPLERS_MAX];
    int n_samplers;
    const float *logits;
    float *states; /* hidden states on the host, some rows at a time */

    /* for backends that sample */
    sample_row *draw;      /* [max_logits] */
    const uint32_t **mask; /* [n_seq]: what the grammar allows, or NULL */
};

/* -------------------------------------------------------------------- history -- */

/* Tokens that were drawn, also those that steps in flight draw. */
static inline int n_drawn(const request *rq)
{
    return atomic_load_explicit(&rq->n_pushed, memory_order_relaxed) + rq->n_ahead;
}

static inline int history_len(const request *rq)
{
    return rq->n_prompt + n_drawn(rq);
}

/* The last n_ahead of the history are not. */
static inline bool is_known(const request *rq, int i)
{
    return i < history_len(rq) - rq->n_ahead;
}

/* Nothing is left to plan: its last token is being drawn. */
static inline bool is_complete(const request *rq)
{
    return rq->n_ahead > 0 && n_drawn(rq) >= rq->max_tokens;
}

static inline int32_t history_at(const request *rq, int i)
{
    return i < rq->n_prompt ? rq->prompt[i] : rq->output[i - rq->n_prompt];
}

/* Ids that its answer is made of. */
static inline int vocab_of(const sched *sc, const request *rq)
{
    return rq->n_vocab > 0 ? rq->n_vocab : model_get_config(sc->m)->n_vocab;
}

static inline int left_of(const request *rq)
{
    return history_len(rq) - rq->n_computed;
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
    int64_t first = rq->first_token_us ? rq->first_token_us : now_us;
    int64_t last = rq->n_ahead > 0 ? now_us : rq->last_token_us;
    return made > 0 ? policy_due_us(first, last, made, rq->tpot_target_us) : 0;
}

/* Time until a stream's next token is due; INFINITY: none is, or not yet. */
static inline double slack_of(const request *rq, int64_t now_us)
{
    if (!rq->last_token_us || !rq->tpot_target_us) return INFINITY;
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
    if (!rq->lora) return;
    d->from = rq->adapter_from;
    memcpy(d->digest, rq->lora->digest, sizeof(d->digest));
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
    return (positions + sc->page_tokens - 1) / sc->page_tokens;
}

/* Of a sequence of so many, at any one time. */
static inline int pages_held_for(const sched *sc, int positions)
{
    int n = pages_for(sc, positions);
    return n < sc->most_pages ? n : sc->most_pages;
}

/* Positions that a row behind `n` others attends to, for the cost model. */
static inline int seen_of(const sched *sc, int n)
{
    int most = sc->see.kept + sc->see.window;
    return sc->see.window > 0 && n > most ? most : n;
}

/* What its next n positions need of it. */
static inline const lora_view *lora_of(const request *rq, int n)
{
    return rq->n_computed + n > rq->adapter_from ? rq->lora : NULL;
}

static inline int rank_of(const request *rq, int n)
{
    const lora_view *v = lora_of(rq, n);
    return v ? v->rank_max : 0;
}

/* An adapter is read once for all rows of a step that use it: a request's part of that. */
static inline double rank_share(const sched *sc, const request *rq, int n)
{
    return (double)rank_of(rq, n) / fair_sharers(sc->fair, rq->ticket);
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
    int seen = seen_of(sc, rq->n_computed);
    if (n == 1 && left_of(rq) == 1) {
        w->decode++;
        w->attended += seen + 1;
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
    return sc->cfg.classes[rq->slo_class].reject_on_overload && rq->admitted_us == 0 &&
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
void sched_cause_computed(sched *sc, request *rq, int end, int64_t now);
void sched_cause_gave_way(sched *sc, request *rq, int64_t now);
void sched_cause_first(sched *sc, request *rq, int64_t now);
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
void sched_spec_destroy(sched *sc);
/* The request gives up its seat. */
void sched_spec_leave(sched *sc, request *rq);
/* Adds guesses to the step that is planned, as far as they pay: n_guess of its sequences. */
void sched_guess(sched *sc, int64_t now);
/* How many of the guesses are worth their rows, at most `most`: tokens in a microsecond must
 * rise by them.  `load` is the step so far, by which `tokens` are made; both grow by what is taken.
 * `context`: positions before the first guess.  The step stays below bound_us. */
int sched_guess_worth(const cost_model *c, cost_work *load, double *tokens, const spec_guess *g,
                      int most, int context, double bound_us);
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
void sched_draft_destroy(sched *sc);
void sched_draft_unload(sched *sc);
err_code sched_draft_reload(sched *sc, err *e);
void sched_draft_leave(sched *sc, request *rq);
size_t sched_draft_used_bytes(const sched *sc);
/* A step is planned: nobody wishes anything; then sequence s would have up to `most` guesses; then
 * those get some that pay, on top of the sc->load and so many tokens that the step has already. */
void sched_draft_begin(sched *sc);
void sched_draft_wish(sched *sc, int s, int most);
void sched_draft(sched *sc, double tokens, double bound_us);

/* ---- sched_pages.c */
/* The first of those who wait to have pages copied; mu is held.  NULL: nobody does. */
struct page_job *sched_take_job(sched *sc);
/* He gets it. */
void sched_do_job(sched *sc, struct page_job *j);
/* The engine ends: nobody gets it any more. */
void sched_end_jobs(sched *sc);

/* ---- sched_sample.c, of prompts that are pooled */
err_code sched_pool_create(sched *sc, err *e);
void sched_pool_destroy(sched *sc);
/* All of a prompt was given.  False: *e says why nothing can be made of it. */
bool sched_pool_end(const sched *sc, request *rq, err *e);

/* ---- sched_flight.c */
bool sched_flights_create(sched *sc);
void sched_flights_destroy(sched *sc);
/* The step that is in flight, or NULL. */
flight *sched_in_flight(sched *sc);
/* Whether what waits should see the results of what is in flight first. */
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

/* From running to waiting: gives back the seat, the pages and the adapter. */
void sched_leave_seat(sched *sc, request *rq);

/* Full pages from position `before` to `end` become findable by their
 * content, all of which is known. */
void sched_publish_pages(sched *sc, request *rq, int before, int end);

/* Its copy in host memory is not needed any more. */
void sched_swap_forget(sched *sc, request *rq);

/* The last touch of the request; the list is tidied by sched_sweep(). */
void sched_finish(sched *sc, request *rq, finish_reason why, const err *cause);
void sched_finish_all(sched *sc, finish_reason why, const err *cause);

/* Forgets running requests that have ended; the others keep their order. */
void sched_sweep(sched *sc);

#endif
