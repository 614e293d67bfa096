/* sched_draft.c -- guesses of a draft model (draft.h): for whom, how many, at what price.
 *
 * Where neither the text so far nor the form of an answer gives a guess that pays, sched_spec.c
 * leaves a wish here.  When all that is free has been guessed, the draft model runs for the wishes
 * that pay together: one pass for each token in a row, over all of them at once.  Its own time is
 * in the price, by a cost model of its own.  What it says is then guessed like anything else, so it
 * changes no answer; and whatever fails here leaves a step without guesses.
 *
 * Before it can say anything of a text, the draft model has to read it.  That is done by chunks,
 * within the time that the step leaves, and its price is spread over the tokens that the answer
 * should still have.  When a request gives up its seat, what was read is forgotten.
 *
 * How often it is right is counted by text, and begins with what it was for those before
 * (SPEC_DRAFT).  Where that does not pay, it is asked no more; but for a small share of the time
 * it is tried all the same, so that a change is seen.
 *
 * Threads: the engine's.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "engine/sched/sched_inside.h"

_Static_assert((int)DRAFT_MOST == (int)SPEC_MAX, "what is proposed can be guessed");

enum {
    LAG = 2 * SPEC_MAX, /* rows of text that the pass that proposes reads first, at most */
    USUAL = 2,          /* of them: what came in one step, where the last proposal was right */
    TRY_MOST_US = 1000000,
};

/* Of the steps' time, what goes into trying a draft model that does not pay. */
static const double try_share = 0.01;

/* A stream for which the draft model could propose something in this step. */
typedef struct wish {
    int s; /* in the step */
    request *rq;
    int most;       /* proposals */
    int behind;     /* rows of its text that are not read; at least 1 */
    double chance;  /* that a proposed token is accepted */
    double read_us; /* reading all of its text that is not read yet; 0: little */
    double once_us; /* of that, what this step is to bear */
    spec_guess got;
} wish;

typedef struct drafting {
    draft *d;
    model *m;
    cost_model cost;   /* of its passes */
    double credit_us;  /* time for trials */
    bool trying;       /* this step has one */
    int lag;           /* LAG, or what half a pass has room for */
    double tokens, us; /* of the step as it stands */
    wish *wish;        /* [max_seqs], most likely first */
    int n_wish;
    draft_part *part; /* [max_seqs] */
    int32_t *token;   /* [max_rows] */
} drafting;

/* The first n wishes get up to `depth` proposals each. */
typedef struct choice {
    int n, depth;
    double us; /* longer than the step without them */
} choice;

/* ---------------------------------------------------------------------------- life -- */

err_code sched_draft_create(sched *sc, err *e)
{
    const sched_config *c = &sc->cfg;
    if (!c->draft || c->speculate == 0) return ERR_NONE;
    const model_config *mc = model_get_config(c->draft);
    if (model_state_floats(mc) > 0)
        return err_set(
            e, ERR_UNSUPPORTED,
            "model.draft: a model of the family %s keeps a state, which takes no guessed "
            "token back",
            mc->family);
    size_t seqs = (size_t)c->max_seqs;
    drafting *dr = sc->spec.drafting = calloc(1, sizeof(*dr));
    if (!dr) return err_set(e, ERR_NOMEM, "no memory for drafts");
    dr->m = c->draft;
    dr->wish = calloc(seqs, sizeof(*dr->wish));
    dr->part = calloc(seqs, sizeof(*dr->part));
    dr->token = calloc((size_t)c->max_rows, sizeof(*dr->token));
    if (!dr->wish || !dr->part || !dr->token) return err_set(e, ERR_NOMEM, "no memory for drafts");
    const experts_config *x = &model_get_config(dr->m)->experts;
    cost_init(&dr->cost);
    cost_experts(&dr->cost, x->route.n, x->route.top_k);
    dr->lag = c->max_rows / 2 < LAG ? (c->max_rows + 1) / 2 : LAG;
    /* Those who run have no more pages than there are. */
    draft_config dc = {.max_texts = c->max_seqs,
                       .max_context = sc->mem.max_context,
                       .max_rows = c->max_rows,
                       .max_pages = sc->mem.n_pages};
    err_code rc = draft_create(&dr->d, &dc, c->draft, sc->be, e);
    if (!rc) sc->shared.stats.guess.draft_bytes = draft_kv_bytes(dr->d);
    return rc ? err_context(e, "model.draft") : ERR_NONE;
}

void sched_draft_destroy(sched *sc)
{
    drafting *dr = sc->spec.drafting;
    if (!dr) return;
    draft_destroy(dr->d);
    free(dr->wish);
    free(dr->part);
    free(dr->token);
    free(dr);
}

void sched_draft_unload(sched *sc)
{
    if (sc->spec.drafting) draft_unload(sc->spec.drafting->d);
}

err_code sched_draft_reload(sched *sc, err *e)
{
    return sc->spec.drafting ? draft_reload(sc->spec.drafting->d, e) : ERR_NONE;
}

void sched_draft_leave(sched *sc, request *rq)
{
    if (!rq->run.draft) return;
    draft_leave(sc->spec.drafting->d, rq->run.draft);
    rq->run.draft = NULL;
}

size_t sched_draft_used_bytes(const sched *sc)
{
    return sc->spec.drafting ? draft_kv_used_bytes(sc->spec.drafting->d) : 0;
}

/* -------------------------------------------------------------------------- wishes -- */

/* Brings what the draft model has of a text to what the text is; rows that it has not read. */
static int behind_of(drafting *dr, request *rq)
{
    int known = history_len(rq), n = 0;
    if (!rq->run.draft) rq->run.draft = draft_enter(dr->d);
    do n = draft_sure(rq->run.draft);
    while (n < known && draft_confirm(rq->run.draft, history_at(rq, n)));
    /* The last token is read again where it is in the cache: what comes behind it is asked. */
    draft_cut(rq->run.draft, n < known ? n : known - 1);
    return known - draft_sure(rq->run.draft);
}

/* All that has to be read is in its vocabulary. */
static bool can_read(const sched *sc, const request *rq, int from)
{
    int n = history_len(rq), n_vocab = draft_vocab(sc->spec.drafting->d);
    if (vocab_of(sc, rq) <= n_vocab) return true;
    for (int i = from; i < n; i++) {
        if (history_at(rq, i) >= n_vocab) return false;
    }
    return true;
}

void sched_draft_wish(sched *sc, int s, int most)
{
    drafting *dr = sc->spec.drafting;
    request *rq = sc->now->row[s].owner;
    if (!dr || most < 1) return;
    int room = draft_context(dr->d) - history_len(rq);
    if (room < 1) return;
    int behind = behind_of(dr, rq);
    if (!can_read(sc, rq, history_len(rq) - behind)) return;
    assert(dr->n_wish < sc->cfg.max_seqs && behind > 0);
    dr->wish[dr->n_wish++] = (wish){.s = s,
                                    .rq = rq,
                                    .most = most < room ? most : room,
                                    .behind = behind,
                                    .chance = spec_text_draft_chance(rq->run.text)};
}

/* Those with the best chance first, of equals those who have least to read. */
static int by_chance(const void *a, const void *b)
{
    const wish *x = a, *y = b;
    if (x->chance != y->chance) return x->chance > y->chance ? -1 : 1;
    return x->behind != y->behind ? (x->behind < y->behind ? -1 : 1) : x->s - y->s;
}

/* --------------------------------------------------------------------------- price -- */

/* Until its passes are known, each is taken for one of the large model. */
static const cost_model *cost_of(const sched *sc)
{
    const drafting *dr = sc->spec.drafting;
    return dr->cost.n < COST_LEARNING ? &sc->cost : &dr->cost;
}

/* Of a pass that has these rows, too. */
static void add_part(cost_work *w, int n, int context)
{
    *w = n == 1 ? sched_guess_work(w, 1, context) : cost_with_chunk(w, n, context, 0);
}

/* Tokens that the answer should still have. */
static double left_to_say(const request *rq)
{
    int made = n_drawn(rq);
    double left = fmax(rq->run.length.mean - made, made / 4.0);
    return fmax(1, fmin(left, rq->max_tokens - made));
}

static void price_reading(const sched *sc, wish *w)
{
    const cost_work none = {0};
    if (w->behind <= USUAL) return;
    cost_work read = cost_with_chunk(&none, w->behind, history_len(w->rq) - w->behind, 0);
    w->read_us = cost_predict(cost_of(sc), &read);
    w->once_us = w->read_us * fmin(1, (1 + w->chance) / left_to_say(w->rq));
}

/* As deep as asked, but for what is too unlikely. */
static int depth_of(const wish *w, int depth)
{
    double sure = w->chance;
    int n = 0;
    for (; n < depth && n < w->most && sure >= SCHED_LEAST_CHANCE; n++) sure *= w->chance;
    return n;
}

static double gain_of(const wish *w, int n)
{
    double sure = 1, sum = 0;
    for (int i = 0; i < n; i++) sum += sure *= w->chance;
    return sum;
}

/* The first n wishes at one depth: rows of the step and of the passes as they grow. */
typedef struct bill {
    cost_work step, first, next;
    double gain, once_us;
    double read_us; /* what is read in the first pass */
    int rows;
} bill;

static double bill_us(const sched *sc, const bill *b, int depth)
{
    const cost_model *c = cost_of(sc);
    double passes = cost_predict(c, &b->first);
    if (depth > 1) passes += (depth - 1) * cost_predict(c, &b->next);
    return cost_predict(&sc->cost, &b->step) - sc->spec.drafting->us + passes;
}

/* A state is copied, and where a proposal is wrong, rows are computed again. */
static double undo_us(const sched *sc, const bill *b, const wish *w, int n)
{
    double copy_us = sched_undo_us(sc);
    if (copy_us < 0) return 0;
    cost_work more = sched_guess_work(&b->step, n, w->rq->run.n_computed + 1);
    double rows_us = cost_predict(&sc->cost, &more) - cost_predict(&sc->cost, &b->step);
    return copy_us + (1 - pow(w->chance, n)) * rows_us;
}

static void add_wish(const sched *sc, bill *b, const wish *w, int n)
{
    int context = history_len(w->rq), read = w->read_us > 0 ? 1 : w->behind;
    b->once_us += undo_us(sc, b, w, n);
    b->step = sched_guess_work(&b->step, n, w->rq->run.n_computed + 1);
    add_part(&b->first, read, context - read);
    add_part(&b->next, 1, context);
    b->gain += gain_of(w, n);
    b->once_us += w->once_us;
    b->read_us += w->behind <= sc->spec.drafting->lag ? w->read_us : 0;
    b->rows += n;
}

/* The most tokens in a microsecond, if that are so many more that it pays. */
static choice choose(const sched *sc, int rows, double bound_us)
{
    const drafting *dr = sc->spec.drafting;
    choice best = {0};
    double most = 0;
    for (int depth = 1; depth <= sc->cfg.speculate; depth++) {
        bill b = {.step = sc->plan.load};
        for (int i = 0; i < dr->n_wish; i++) {
            int n = depth_of(&dr->wish[i], depth);
            if (n == 0 || b.rows + n > rows) break;
            add_wish(sc, &b, &dr->wish[i], n);
            double us = bill_us(sc, &b, depth), all_us = us + b.once_us;
            double rate = (dr->tokens + b.gain) / (dr->us + all_us);
            if (dr->us + us + b.read_us > bound_us) break;
            if (rate <= most || b.gain * dr->us < SCHED_MARGIN * dr->tokens * all_us) continue;
            most = rate;
            best = (choice){i + 1, depth, us + b.read_us};
        }
    }
    return best;
}

/* The likeliest of them, though it does not pay, or nobody knows what it costs. */
static choice try_one(sched *sc, double bound_us)
{
    drafting *dr = sc->spec.drafting;
    const wish *w = &dr->wish[0];
    bool learning = dr->cost.n < COST_LEARNING;
    int depth = learning && w->most > 1 ? 2 : 1; /* one row and more, both are learnt */
    bill b = {.step = sc->plan.load};
    add_wish(sc, &b, w, depth);
    double us = bill_us(sc, &b, depth);
    dr->credit_us = fmin(TRY_MOST_US, dr->credit_us + try_share * dr->us);
    if (dr->us + us + b.read_us > bound_us || (!learning && us + w->read_us > dr->credit_us))
        return (choice){0};
    dr->trying = !learning;
    return (choice){1, depth, us + b.read_us};
}

static choice choose_always(const sched *sc, int rows)
{
    int n = sc->spec.drafting->n_wish, depth = sc->cfg.speculate;
    if (n > rows) n = rows;
    while (depth > 1 && n * depth > rows) depth--;
    return (choice){n, n > 0 ? depth : 0, 0};
}

/* -------------------------------------------------------------------------- passes -- */

static err_code run_pass(sched *sc, int n, err *e)
{
    drafting *dr = sc->spec.drafting;
    cost_work w = {0};
    for (int i = 0; i < n; i++) add_part(&w, dr->part[i].n, draft_sure(dr->part[i].text));
    int64_t began_us = clock_now_us();
    err_code rc = n > 0 ? draft_run(dr->d, dr->part, n, e) : ERR_NONE;
    if (!rc && n > 0) cost_observe(&dr->cost, &w, (double)(clock_now_us() - began_us));
    return rc;
}

/* The next n tokens of a text to be read. */
static draft_part part_of(const sched *sc, const wish *w, int n, int *rows)
{
    int32_t *to = sc->spec.drafting->token + *rows;
    int from = draft_sure(w->rq->run.draft);
    for (int i = 0; i < n; i++) to[i] = history_at(w->rq, from + i);
    *rows += n;
    return (draft_part){.text = w->rq->run.draft, .token = to, .n = n};
}

/* Rows that can be read within so much time; before that is known, few. */
static int rows_in(const sched *sc, const wish *w, double us)
{
    const cost_work none = {0};
    int most = sc->cfg.max_rows, context = history_len(w->rq) - w->behind;
    return isinf(us) ? most : cost_chunk(cost_of(sc), &none, us, most, context, 0);
}

/* One pass over texts that are far behind, in what is left of the step's time. */
static err_code catch_up(sched *sc, const choice *c, double us, err *e)
{
    drafting *dr = sc->spec.drafting;
    int n = 0, rows = 0, most = -1;
    for (int i = 0; i < c->n; i++) {
        wish *w = &dr->wish[i];
        if (w->behind <= dr->lag) continue;
        if (most < 0) most = rows_in(sc, w, us);
        if (most <= rows) break;
        int all = w->behind - 1; /* the last token is read when it is asked what comes behind it */
        dr->part[n] = part_of(sc, w, all < most - rows ? all : most - rows, &rows);
        w->behind -= dr->part[n++].n;
    }
    return run_pass(sc, n, e);
}

/* The pass that reads the last tokens, and proposes the first ones.  Returns how many texts it
 * has. */
static int first_pass(sched *sc, const choice *c, err *e)
{
    drafting *dr = sc->spec.drafting;
    int n = 0, rows = 0;
    for (int i = 0; i < c->n; i++) {
        wish *w = &dr->wish[i];
        if (w->behind > dr->lag || w->behind > sc->cfg.max_rows - rows) continue;
        dr->wish[n] = *w;
        dr->part[n] = part_of(sc, w, w->behind, &rows);
        dr->part[n++].pick = true;
    }
    dr->n_wish = n;
    return run_pass(sc, n, e) ? 0 : n;
}

/* Takes what the pass proposed; those who want more stay in front.  Returns how many they are. */
static int take_picks(sched *sc, int n, int depth)
{
    drafting *dr = sc->spec.drafting;
    int more = 0;
    for (int i = 0; i < n; i++) {
        wish *w = &dr->wish[i];
        int32_t t = dr->part[i].picked;
        if (t < 0 || t >= vocab_of(sc, w->rq)) continue;
        w->got.token[w->got.n++] = t;
        int most = sc->cfg.speculate_always ? w->most : depth_of(w, depth);
        if (is_stop(w->rq, t) || w->got.n >= most || w->got.n >= depth) continue;
        wish last = dr->wish[more];
        dr->wish[more] = *w;
        if (more != i) *w = last;
        more++;
    }
    for (int i = 0; i < more; i++) {
        wish *w = &dr->wish[i];
        dr->part[i] = (draft_part){.text = w->rq->run.draft,
                                   .token = &w->got.token[w->got.n - 1],
                                   .n = 1,
                                   .guessed = true,
                                   .pick = true};
    }
    return more;
}

static void propose(sched *sc, const choice *c)
{
    err e;
    drafting *dr = sc->spec.drafting;
    int n = first_pass(sc, c, &e);
    while (n > 0) {
        n = take_picks(sc, n, c->depth);
        if (n > 0 && run_pass(sc, n, &e)) break; /* the step itself will meet it, too */
    }
    for (int i = 0; i < dr->n_wish; i++) {
        wish *w = &dr->wish[i];
        if (w->got.n == 0) continue;
        spec_text_draft(w->rq->run.text, &w->got);
        sched_guess_place(sc, w->s, &w->got, w->got.n);
    }
}

void sched_draft_begin(sched *sc)
{
    if (sc->spec.drafting) sc->spec.drafting->n_wish = 0;
}

void sched_draft(sched *sc, double tokens, double bound_us)
{
    err e;
    drafting *dr = sc->spec.drafting;
    if (!dr || dr->n_wish == 0) return;
    bool always = sc->cfg.speculate_always;
    int free_rows = sc->cfg.max_logits - sc->plan.n_logit;
    int rows = sc->plan.rows_left < free_rows ? sc->plan.rows_left : free_rows;
    if (rows < 1 || (!always && sc->cost.n < COST_LEARNING)) return;
    dr->tokens = tokens;
    dr->us = cost_predict(&sc->cost, &sc->plan.load);
    for (int i = 0; i < dr->n_wish; i++) price_reading(sc, &dr->wish[i]);
    qsort(dr->wish, (size_t)dr->n_wish, sizeof(*dr->wish), by_chance);
    choice c = always ? choose_always(sc, rows) : choose(sc, rows, bound_us);
    dr->trying = false;
    if (c.n == 0 && !always) c = try_one(sc, bound_us);
    if (c.n == 0) return;
    int64_t began_us = clock_now_us();
    cost_work row = sched_guess_work(&sc->plan.load, 1, history_len(dr->wish[0].rq));
    /* Whoever waits for this step waits at most for another one. */
    double spare_us = always ? INFINITY : fmin(bound_us - dr->us - c.us, dr->us);
    double row_us = cost_predict(&sc->cost, &row) - dr->us;
    if (catch_up(sc, &c, spare_us, &e) == ERR_NONE) propose(sc, &c);
    int64_t now = clock_now_us();
    sched_cause_lost(sc, MISS_DECODE_STEPS, began_us, now);
    sc->spec.draft_us += now - began_us;
    if (dr->trying) dr->credit_us -= (double)(now - began_us) + row_us;
}
