/* completion_choice.c -- one struct request per choice: made, submitted,
 * its tokens turned into text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/clock.h"
#include "engine/sched/sched.h"
#include "gateway/http/inner.h"
#include "gateway/openai/completion_inside.h"
#include "gateway/watch/stats.h"
#include "storage/digest.h"
#include "storage/meter_file.h"

enum { POOLED_AT_ONCE = 64 }; /* prompts of one request that are in the engine together */

/* ------------------------------------------------------------------- choices -- */

static uint64_t isolation_of(const completion *c)
{
    const char *salt = c->rq.cache_salt ? c->rq.cache_salt : "";
    size_t len = strlen(salt);
    unsigned char text[8 + OPENAI_SALT_MAX], digest[DIGEST_BYTES];
    memcpy(text, &c->x->caller->tenant.id, 8);
    memcpy(text + 8, salt, len);
    digest_bytes(text, 8 + len, digest);
    uint64_t out;
    memcpy(&out, digest, sizeof(out));
    return out;
}

/* When the client stops waiting for a first byte, by its own word: openai-python and
 * its kin say x-stainless-read-timeout, gateways say x-request-timeout; seconds.  0: it
 * does not say, or nonsense. */
static int64_t patience_of(const completion *c)
{
    static const char *const names[] = {"x-request-timeout", "x-stainless-read-timeout"};
    double least = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = exchange_header(c->x, names[i]);
        char *end;
        double s = text ? strtod(text, &end) : 0;
        if (!text || end == text || *end || !(s > 0) || s > 1e6) continue;
        least = least > 0 && least < s ? least : s;
    }
    return least > 0 ? c->started_us + (int64_t)(least * 1e6) : 0;
}

/* From here on operators see it, and may cancel it. */
static void announce(completion *c, choice *ch)
{
    inflight_info *f = &ch->live.info;
    *f = (inflight_info){.id = ch->usage_id,
                         .tenant_id = c->x->caller->tenant.id,
                         .key_id = c->x->caller->key.id,
                         .slo_class = c->slo_class,
                         .n_prompt = ch->rq.n_prompt,
                         .max_tokens = ch->rq.max_tokens,
                         .stream = c->rq.stream,
                         .arrived_us = c->started_us};
    snprintf(f->request_id, sizeof(f->request_id), "%s", c->x->request_id);
    snprintf(f->model, sizeof(f->model), "%s", c->label);
    ch->live.stop = &c->stop;
    inflight_add(c->srv->inflight, &ch->live);
}

/* Whether thoughts may come before the answer's form. */
static bool thinks(const completion *c)
{
    return c->start != THINKING_OVER && thinking_close(c->thinking)[0];
}

/* Makes ready the text that a choice's tokens become. */
static bool begin_text(completion *c, choice *ch)
{
    completion_text_init(&ch->text, &c->rq, c->vocab->tok);
    /* A chat's answer begins a text of its own; a completion goes on with the prompt's, or with the
     * last message. */
    if (!c->rq.chat || c->rq.continue_final)
        detok_go_on(&ch->text.detok, ch->prompt.ids, (size_t)ch->prompt.n_ids);
    thinking_reader_init(&ch->thoughts, c->thinking, c->start);
    for (int i = 0; thinking_mark(c->thinking, i); i++)
        completion_text_keep(&ch->text,
                             tokenizer_find(c->vocab->tok, thinking_mark(c->thinking, i)));
    if (!c->tools) return true;
    bool opened = c->rq.tool_choice >= TOOL_CHOICE_REQUIRED && !thinks(c);
    for (int i = 0; tool_style_mark(c->tools, i); i++)
        completion_text_keep(&ch->text,
                             tokenizer_find(c->vocab->tok, tool_style_mark(c->tools, i)));
    return tool_reader_init(&ch->tools, c->tools, c->rq.callable, c->rq.guided, opened,
                            c->rq.one_call) ||
           completion_no_memory(c);
}

/* The choices of one prompt share what it is scored with, but for echo, which begins each text. */
static void ask_scores(const completion *c, const choice *ch, request *rq)
{
    bool echo = c->rq.echo && c->rq.logprobs;
    int top = echo ? c->rq.rules.n_top : 0;
    rq->score_prompt = echo || (c->rq.prompt_top >= 0 && ch->index % c->rq.n == 0);
    if (rq->score_prompt) rq->score_top = c->rq.prompt_top > top ? c->rq.prompt_top : top;
}

/* Without a seed of the client's every request draws anew; the choices of
 * one prompt always differ. */
static void set_rules(const completion *c, const choice *ch, request *rq)
{
    rq->bars = c->bars;
    rq->rules = c->rq.rules;
    if (!c->rq.seed_given && getrandom(&rq->rules.seed, sizeof(rq->rules.seed), 0) < 0)
        rq->rules.seed = ch->usage_id;
    rq->rules.seed += (uint64_t)(ch->index % c->rq.n);
}

/* Milliseconds in one of the headers by which the pickers of the inference gateway pass on a
 * target; 0: none, or no number within TARGET_MS_MAX. */
static int64_t target_header_us(const exchange *x, const char *name, const char *newer)
{
    const char *text = exchange_header(x, newer);
    char *end;
    if (!text) text = exchange_header(x, name);
    if (!text) return 0;
    double ms = strtod(text, &end);
    return end > text && !*end && ms > 0 && ms <= TARGET_MS_MAX ? (int64_t)(ms * 1000) : 0;
}

/* A client may ask for less than it is promised, never for more: a class is what it pays for. */
static target targets_asked(const completion *c)
{
    const config_class *sc = &c->x->conf->classes[c->slo_class];
    target t = targets_of(&c->x->caller->tenant, sc->name, sc->ttft_us, sc->tpot_us);
    int64_t ttft = target_header_us(c->x, "x-slo-ttft-ms", "x-llm-d-slo-ttft-ms");
    int64_t tpot = target_header_us(c->x, "x-slo-tpot-ms", "x-llm-d-slo-tpot-ms");
    if (ttft > t.ttft_us) t.ttft_us = ttft;
    if (tpot > t.tpot_us) t.tpot_us = tpot;
    return t;
}

static void set_times(const completion *c, const choice *ch, request *rq)
{
    target own = targets_asked(c);
    rq->slo_class = c->slo_class;
    /* Who followed another of the same request comes only now. */
    rq->arrived_us = ch->index < POOLED_AT_ONCE ? c->started_us : clock_now_us();
    rq->ttft_deadline_us = rq->arrived_us + own.ttft_us;
    rq->tpot_target_us = own.tpot_us;
    rq->limits_us = c->limits_us;
    rq->stalled_us = c->stalled_us;
    rq->expires_us = c->started_us + c->x->conf->server_request_timeout_us;
    rq->patience_us = patience_of(c);
}

/* What the answer must be, behind thoughts where there may be some.  False: no memory. */
static bool begin_form(const completion *c, request *rq)
{
    bool led = thinks(c) && (c->form || c->rq.thinking_budget >= 0);
    bool forced = c->rq.tool_choice >= TOOL_CHOICE_REQUIRED;
    const grammar_lead lead = {.tok = c->srv->tok,
                               .n_vocab = model_get_config(c->srv->model)->n_vocab,
                               .open =
                                   c->start == THINKING_OPENED ? "" : thinking_open(c->thinking),
                               .close = thinking_close(c->thinking),
                               .gap = thinking_gap(c->thinking, c->tools && !forced),
                               .once = c->thinking == THINKING_CHANNEL,
                               .then = forced ? tool_style_opening(c->tools) : "",
                               .budget = c->rq.thinking_budget};
    if (!c->form && !led) return true;
    rq->grammar =
        led ? grammar_run_create_led(c->form, &lead, rq->rules.stop_id, rq->rules.n_stop_id)
            : grammar_run_create(c->form, rq->rules.stop_id, rq->rules.n_stop_id);
    if (rq->grammar) grammar_run_prepare(rq->grammar);
    return rq->grammar != NULL;
}

/* Its vector.  Heads of classes stand over the last state, whatever embeddings are made of. */
static bool begin_pool(completion *c, choice *ch)
{
    pooling_kind kind = c->classify ? POOL_LAST : c->by.config->kind;
    return pooling_init(&ch->pool, kind, c->by.dim, c->classify) || completion_no_memory(c);
}

static bool begin_request(completion *c, choice *ch)
{
    request *rq = &ch->rq;
    err e;
    request_init(rq);
    rq->id = ch->usage_id;
    rq->background = c->x->inner != NULL;
    rq->tenant_id = c->x->caller->tenant.id;
    rq->isolation = isolation_of(c);
    rq->n_vocab = c->vocab->n_own;
    rq->prompt = ch->prompt.ids;
    rq->n_prompt = ch->prompt.n_ids;
    int from = vocabulary_invoked_at(c->vocab, rq->prompt, rq->n_prompt);
    if (from >= 0) { /* else it runs bare, whatever will be paid */
        rq->adapter_id = c->stack ? c->stack->id : completion_adapter_id(c);
        rq->adapter_from = from;
    }
    rq->max_tokens = completion_output_room(c, &ch->prompt);
    rq->weight = c->x->caller->tenant.weight > 0 ? (float)c->x->caller->tenant.weight : 1;
    rq->signal = &c->signal;
    if (ch->index == 0) rq->waiting = c->ticket.waiting; /* one HTTP request counts once */
    ask_scores(c, ch, rq);
    set_rules(c, ch, rq);
    set_times(c, ch, rq);
    if (c->pooled) rq->pool = &ch->pool;
    if (request_prepare(rq, &e)) return completion_refuse(c, &e, "max_tokens");
    return begin_form(c, rq) || completion_no_memory(c);
}

/* Where its tokens are counted, so that a crash does not lose them. */
static bool take_slot(completion *c, choice *ch)
{
    meter_owner owner = {.request_id = ch->usage_id,
                         .tenant_id = c->x->caller->tenant.id,
                         .key_id = c->x->caller->key.id,
                         .adapter_id = completion_adapter_id(c),
                         .started_wall_us = completion_booked_us(c),
                         .choice = ch->index % c->rq.n};
    err e;
    snprintf(owner.model, sizeof(owner.model), "%s", c->label);
    snprintf(owner.slo_class, sizeof(owner.slo_class), "%s", c->srv->class_name[c->slo_class]);
    snprintf(owner.endpoint, sizeof(owner.endpoint), "%s", completion_endpoint(c));
    err_code rc = meter_file_acquire(c->srv->meters, &owner, &ch->slot, &e);
    if (rc == ERR_IO) return completion_no_spool(c);
    if (rc) return completion_refuse(c, &e, NULL);
    ch->rq.meter = meter_slot_meter(ch->slot);
    return true;
}

/* A request from within has ids of its own, so that its usage is known when it comes again. */
static uint64_t usage_id_of(const completion *c, int index)
{
    const inner_request *own = c->x->inner;
    return own ? store_nth_id(c->srv->store, own->id, (uint64_t)index)
               : store_next_id(c->srv->store);
}

static bool prepare_choice(completion *c, choice *ch, int index)
{
    ch->index = index;
    ch->stop_token = -1;
    ch->prompt = c->rq.prompts[index / c->rq.n];
    ch->usage_id = usage_id_of(c, index);
    bool begun = c->pooled ? begin_pool(c, ch) : begin_text(c, ch);
    if (!begun || !begin_request(c, ch) || !take_slot(c, ch)) return false;
    announce(c, ch);
    return true;
}

void completion_say_when(completion *c, const choice *ch)
{
    exchange_retry_after(c->x, server_retry_after_ms(c->srv, &ch->rq));
}

static bool refused(completion *c, const choice *ch, const err *e)
{
    miss_cause why = ch->rq.missed.why; /* none: what it asks for is wrong */
    if (why) stats_refused(c->srv->stats, c->x->caller->tenant.id, c->slo_class, why);
    completion_say_when(c, ch);
    return completion_refuse(c, e, NULL);
}

bool completion_submit(completion *c)
{
    int n = c->n_choices;
    if (c->pooled && n > POOLED_AT_ONCE) n = POOLED_AT_ONCE;
    c->n_begun = n;
    for (int i = 0; i < n; i++) {
        if (!prepare_choice(c, &c->choices[i], i)) return false;
    }
    int64_t now = clock_now_us(); /* the engine may seat one before we are back */
    for (int i = 0; i < n; i++) {
        err e;
        if (sched_submit(c->srv->sched, &c->choices[i].rq, &e))
            return refused(c, &c->choices[i], &e);
        c->choices[i].submitted = true;
    }
    c->submitted_us = now;
    return true;
}

/* One more, prepared the first time it is tried.  False: not now, or c->refused. */
static bool submit_next(completion *c, int running)
{
    choice *ch = &c->choices[c->n_begun];
    err e;
    if (!ch->slot && !prepare_choice(c, ch, c->n_begun)) {
        c->refused = true;
        return false;
    }
    if (sched_submit(c->srv->sched, &ch->rq, &e)) {
        c->refused = e.code != ERR_BUSY || running == 0;
        return c->refused && refused(c, ch, &e);
    }
    ch->submitted = true;
    c->n_begun++;
    return true;
}

void completion_submit_more(completion *c)
{
    int running = 0;
    for (int i = 0; i < c->n_begun; i++) running += !c->choices[i].done;
    while (!c->closed && !c->refused && c->n_begun < c->n_choices && running < POOLED_AT_ONCE &&
           submit_next(c, running))
        running++;
}

void completion_cancel(completion *c)
{
    for (int i = 0; i < c->n_choices; i++) {
        if (c->choices[i].submitted) request_cancel(&c->choices[i].rq);
    }
}

/* Why a choice ends where it began, or NULL. */
static const char *why_stays(const completion *c, const choice *ch)
{
    if (c->pooled) return "vectors";
    if (c->x->inner) return "background";
    if (c->stack) return "stack";
    if (ch->rq.grammar) return "grammar";
    if (c->bars) return "bars";
    return ch->rq.score_prompt ? "prompt_logprobs" : NULL;
}

void completion_leave(completion *c)
{
    c->asked_to_leave = true;
    for (int i = 0; i < c->n_begun; i++) {
        choice *ch = &c->choices[i];
        const char *why = why_stays(c, ch);
        if (ch->done) continue;
        exchange_note(c->x, "moved", "%s%s", why ? "no: " : "yes", why ? why : "");
        if (why) continue;
        mover_expect(c->srv->mover);
        ch->leaving = true;
        request_leave(&ch->rq);
    }
}

/* The engine has let go of it: another node goes on.  False: it has ended. */
static bool go_on_elsewhere(completion *c, choice *ch)
{
    bool left = atomic_load(&ch->rq.finish) == FINISH_LEFT;
    move_name name = {.owner = 0};
    if (!ch->leaving) return false;
    ch->leaving = false;
    if (!left) mover_forget(c->srv->mover);
    if (!left) return false;
    snprintf(name.build, sizeof(name.build), "%s", c->srv->fingerprint);
    snprintf(name.class, sizeof(name.class), "%s", c->srv->class_name[c->slo_class]);
    if (ch->rq.adapter_id) {
        snprintf(name.adapter, sizeof(name.adapter), "%s@%d", c->adapter->name,
                 c->adapter->version);
        memcpy(name.digest, c->adapter->digest, sizeof(name.digest));
        name.owner = c->adapter->tenant_id;
        name.version_id = c->adapter->id;
    }
    request_go_on(&ch->rq);
    mover_take(c->srv->mover, &ch->rq, &name);
    return true;
}

/* ------------------------------------------------------------ tokens to text -- */

static bool is_stop_token(const request *rq, int32_t token)
{
    for (int i = 0; i < rq->rules.n_stop_id; i++) {
        if (rq->rules.stop_id[i] == token) return true;
    }
    return false;
}

static const char *finish_word(const choice *ch)
{
    switch ((finish_reason)atomic_load(&ch->rq.finish)) {
    case FINISH_LENGTH: return "length";
    case FINISH_CANCELLED: return "cancelled";
    case FINISH_ERROR: return "error";
    case FINISH_STOP:
    case FINISH_LEFT:
    case FINISH_NONE: break;
    }
    return "stop";
}

/* The text so far goes to the readers of thoughts and of calls.  True: nothing more is wanted. */
static bool read_text(const completion *c, choice *ch)
{
    size_t len;
    const char *text = completion_text_take(&ch->text, &len);
    if (c->thinking) {
        bool was = thinking_reader_inside(&ch->thoughts);
        thinking_reader_push(&ch->thoughts, text, len);
        if (ch->done) thinking_reader_finish(&ch->thoughts);
        if (was || thinking_reader_inside(&ch->thoughts)) ch->n_thought = ch->n_text;
        if (c->tools) text = thinking_reader_take_text(&ch->thoughts, &len);
    }
    if (!c->tools) return false;
    tool_reader_push(&ch->tools, text, len);
    return tool_reader_done(&ch->tools);
}

/* Who named the function knows that it is called: OpenAI says "stop" then. */
static void finish_calls(const completion *c, choice *ch)
{
    tool_reader_finish(&ch->tools);
    bool called = ch->tools.n_calls && c->rq.tool_choice != TOOL_CHOICE_NAMED;
    if (called && strcmp(ch->finish, "stop") == 0) ch->finish = "tool_calls";
}

uint32_t completion_made(const choice *ch)
{
    return atomic_load(&ch->rq.meter->output_tokens) - (uint32_t)ch->n_beyond;
}

/* Nothing is told before it is there.  Meters are few: of many prompts each gives its own back. */
static bool take_vector(completion *c, choice *ch)
{
    sampled none;
    (void)request_next(&ch->rq, &none, &ch->done);
    if (!ch->done) return false;
    ch->finish = finish_word(ch);
    bool good = strcmp(ch->finish, "stop") == 0;
    if (good && c->n_choices > POOLED_AT_ONCE) completion_settle_one(c, ch);
    return true;
}

bool completion_take(completion *c, choice *ch)
{
    if (ch->done) return false;
    bool news = false, done = false, seam;
    sampled t;
    if (c->pooled) return take_vector(c, ch);
    while (!(seam = completion_at_seam(c, ch)) && request_next(&ch->rq, &t, &done)) {
        ch->n_taken++;
        news = true;
        if (c->first_token_us == 0) c->first_token_us = clock_now_us();
        if (ch->text.stop_hit || tool_reader_done(&ch->tools)) {
            ch->n_beyond++; /* made in the same step, or while the cancel was on its way */
            continue;
        }
        if (is_stop_token(&ch->rq, t.token)) {
            ch->stop_token = t.token;
            continue;
        }
        ch->n_text++;
        bool stop = completion_text_push(&ch->text, t.token);
        if (c->tools || c->thinking) stop |= read_text(c, ch);
        if (stop) request_stop(&ch->rq);
    }
    c->past_seam |= seam;
    if (seam) return true;
    if (done && go_on_elsewhere(c, ch)) return news;
    if (done) completion_text_finish(&ch->text);
    c->starved |= ch->text.failed || ch->tools.failed;
    if (!done) return news;
    ch->done = true;
    ch->finish = ch->text.stop_hit || tool_reader_done(&ch->tools) ? "stop" : finish_word(ch);
    if (c->tools || c->thinking) (void)read_text(c, ch);
    if (c->tools) finish_calls(c, ch);
    c->starved |= ch->tools.failed || ch->thoughts.failed;
    return true;
}
