/* completion_choice.c -- one struct request per choice: prepared, submitted to the engine, its
 * tokens turned into text.
 *
 *   prepare_choice    text and readers, request, sampling rules, grammar; then a meter slot, where
 *                     its tokens are counted so that a crash loses none; then the list of running
 *                     requests
 *   completion_submit all are prepared before the first is submitted
 *   completion_take   request_next() -> detokenizer, stop sequences -> reasoning -> tool calls
 *
 * A prompt's n choices differ by their seeds.  Prompt tokens count for the first choice only.  With
 * beam search, only the first choice of a prompt runs; its answers become the tokens of the others
 * when it ends (take_beams()).
 *
 * Embeddings of many prompts: at most POOLED_AT_ONCE are in the engine, because meter slots are
 * few.  Each settles alone as it ends, and completion_submit_more() submits the next.
 *
 * Tokens that the engine had sampled before a stop was noticed are counted in n_beyond and not
 * paid.
 *
 * Other servers of a fleet that work on a choice: completion_place.c.
 */
#include <assert.h>
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
    assert(!c->rq.cache_salt || strlen(c->rq.cache_salt) <= OPENAI_SALT_MAX);
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

/* When the client stops waiting for a first byte, by its header: openai-python and others send
 * x-stainless-read-timeout, gateways x-request-timeout; in seconds.  0: none, or not valid. */
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
    return least > 0 ? c->times.started_us + (int64_t)(least * 1e6) : 0;
}

/* Adds it to the list of running requests, by which operators see and cancel it. */
static void announce(completion *c, choice *ch)
{
    inflight_info *f = &ch->live.info;
    *f = (inflight_info){.id = ch->usage_id,
                         .tenant_id = c->x->caller->tenant.id,
                         .key_id = c->x->caller->key.id,
                         .slo_class = c->use.slo_class,
                         .n_prompt = ch->rq.n_prompt,
                         .max_tokens = ch->rq.max_tokens,
                         .stream = c->rq.stream,
                         .arrived_us = c->times.started_us};
    snprintf(f->request_id, sizeof(f->request_id), "%s", c->x->request_id);
    snprintf(f->model, sizeof(f->model), "%s", c->use.label);
    ch->live.stop = &c->run.stop;
    ch->live.writing_us = &c->run.writing_us;
    inflight_add(tenants_of(c->srv)->inflight, &ch->live);
}

/* Whether reasoning may come before the answer's form. */
static bool thinks(const completion *c)
{
    return c->use.start != THINKING_OVER && thinking_close(c->use.thinking)[0];
}

/* The answer is calls, or a text of the format that the request asks for. */
static bool has_answer(const completion *c)
{
    grammar_spec answer;
    return c->use.form && grammar_answer_of(&c->rq.format, &answer);
}

/* Prepares the readers of a choice's tokens. */
static bool begin_text(completion *c, choice *ch)
{
    completion_text_init(&ch->text, &c->rq, c->use.vocab->tok);
    /* A chat's answer begins a text of its own; a completion goes on with the prompt's, or with the
     * last message. */
    if (!c->rq.chat || c->rq.continue_final)
        detok_go_on(&ch->text.detok, ch->prompt.ids, (size_t)ch->prompt.n_ids);
    thinking_reader_init(&ch->thoughts, c->use.thinking, c->use.start);
    for (int i = 0; thinking_mark(c->use.thinking, i); i++)
        completion_text_keep(&ch->text,
                             tokenizer_find(c->use.vocab->tok, thinking_mark(c->use.thinking, i)));
    if (!c->use.tools) return true;
    bool forced = c->rq.tool_choice >= TOOL_CHOICE_REQUIRED;
    for (int i = 0; tool_style_mark(c->use.tools, i); i++)
        completion_text_keep(&ch->text,
                             tokenizer_find(c->use.vocab->tok, tool_style_mark(c->use.tools, i)));
    int ways = (c->rq.guided ? TOOLS_GUIDED : 0) | (forced && !thinks(c) ? TOOLS_OPENED : 0) |
               (c->rq.one_call ? TOOLS_ONE : 0) | (forced ? TOOLS_FORCED : 0) |
               (has_answer(c) ? TOOLS_APART : 0);
    if (!tool_reader_init(&ch->tools, c->use.tools, c->rq.callable, ways))
        return completion_no_memory(c);
    ch->tools.texts = c->rq.texts;
    return true;
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
    rq->bars = c->use.bars;
    rq->rules = c->rq.rules;
    if (!c->rq.seed_given && getrandom(&rq->rules.seed, sizeof(rq->rules.seed), 0) < 0)
        rq->rules.seed = ch->usage_id;
    rq->rules.seed += (uint64_t)(ch->index % c->rq.n);
    if (c->rq.n_best < c->rq.n && rq->rules.n_top < 0) rq->rules.n_top = 0; /* they are compared */
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

/* A client may ask for looser targets than its class's, never for tighter ones. */
static target targets_asked(const completion *c)
{
    assert(c->use.slo_class >= 0 && c->use.slo_class < c->x->conf->classes.n);
    const config_class *sc = &c->x->conf->classes.each[c->use.slo_class];
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
    rq->slo_class = c->use.slo_class;
    /* a later prompt of the same request arrives only now */
    rq->arrived_us = ch->index < POOLED_AT_ONCE ? c->times.started_us : clock_now_us();
    rq->ttft_deadline_us = rq->arrived_us + own.ttft_us;
    rq->tpot_target_us = own.tpot_us;
    rq->limits_us = c->use.limits_us;
    rq->stalled_us = c->run.stalled_us;
    rq->expires_us = c->times.started_us + c->x->conf->server.request_timeout_us;
    rq->patience_us = patience_of(c);
}

/* Whether its answer is found by the beam search of the first choice of its prompt. */
static bool follows(const completion *c, const choice *ch)
{
    return c->rq.beams.width > 0 && ch->index % c->rq.n > 0;
}

/* The grammar of the answer, after reasoning if there may be some; *out NULL: any text.  False: no
 * memory. */
static bool make_form(const completion *c, const request *rq, grammar_run **out)
{
    bool led = thinks(c) && (c->use.form || c->rq.thinking_budget >= 0);
    bool forced = c->rq.tool_choice >= TOOL_CHOICE_REQUIRED;
    const grammar_lead lead = {
        .tok = engine_of(c->srv)->tok,
        .n_vocab = model_get_config(engine_of(c->srv)->model)->n_vocab,
        .open = c->use.start == THINKING_OPENED ? "" : thinking_open(c->use.thinking),
        .close = thinking_close(c->use.thinking),
        .gap = has_answer(c) ? thinking_gap_apart(c->use.thinking)
                             : thinking_gap(c->use.thinking, c->use.tools && !forced),
        .once = c->use.thinking == THINKING_CHANNEL,
        .then = forced ? tool_style_opening(c->use.tools) : "",
        .budget = c->rq.thinking_budget};
    if (!c->use.form && !led) return true;
    *out = led ? grammar_run_create_led(c->use.form, &lead, rq->rules.stop_id, rq->rules.n_stop_id)
               : grammar_run_create(c->use.form, rq->rules.stop_id, rq->rules.n_stop_id);
    return *out != NULL;
}

static bool begin_form(completion *c, choice *ch)
{
    request *rq = &ch->rq;
    if (follows(c, ch)) return true;
    for (int i = 0; rq->beams && i < c->rq.beams.width; i++) {
        if (!make_form(c, rq, &rq->beams->form[i])) return completion_no_memory(c);
    }
    if (!rq->beams && !make_form(c, rq, &rq->grammar)) return completion_no_memory(c);
    grammar_run *first = rq->beams ? rq->beams->form[0] : rq->grammar;
    if (first) grammar_run_prepare(first);
    return true;
}

static bool begin_beams(completion *c, choice *ch)
{
    request *rq = &ch->rq;
    const openai_beams *b = &c->rq.beams;
    if (b->width == 0 || follows(c, ch)) return true;
    const beam_rules rules = {.width = b->width,
                              .max_tokens = rq->max_tokens,
                              .length_penalty = b->length_penalty,
                              .ending = b->ending,
                              .n_top = rq->rules.n_top};
    ch->beams.search = beam_create(&rules);
    if (!ch->beams.search) return completion_no_memory(c);
    rq->beams = &ch->beams;
    int tops = beam_tops(b->width, rq->rules.n_stop_id);
    if (rq->rules.n_top < tops) rq->rules.n_top = tops;
    if (tops <= SAMPLE_TOP_MAX) return true;
    return openai_refuse(&c->problem, 400, "invalid_value", "use_beam_search",
                         "%d beams with %d stop tokens: together they may be %d", b->width,
                         rq->rules.n_stop_id, SAMPLE_TOP_MAX);
}

void completion_beams_clear(choice *ch)
{
    for (int i = 0; i < BEAMS_MAX; i++) grammar_run_release(ch->beams.form[i]);
    beam_destroy(ch->beams.search);
}

/* Prepares its vector.  A head of classes uses the last state, whatever embeddings use. */
static bool begin_pool(completion *c, choice *ch)
{
    pooling_kind kind = c->ask.classify ? POOL_LAST : c->ask.by.config->kind;
    return pooling_init(&ch->pool, kind, c->ask.by.dim, c->ask.classify) || completion_no_memory(c);
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
    rq->n_vocab = c->use.vocab->n_own;
    rq->prompt = ch->prompt.ids;
    rq->n_prompt = ch->prompt.n_ids;
    int from = vocabulary_invoked_at(c->use.vocab, rq->prompt, rq->n_prompt);
    if (from >= 0) { /* else without the adapter, at the same price */
        rq->adapter_id = c->use.stack ? c->use.stack->id : completion_adapter_id(c);
        rq->adapter_from = from;
    }
    rq->max_tokens = completion_output_room(c, &ch->prompt);
    rq->weight = c->x->caller->tenant.weight > 0 ? (float)c->x->caller->tenant.weight : 1;
    rq->signal = &c->run.signal;
    if (ch->index == 0) rq->waiting = c->use.ticket.waiting; /* one HTTP request counts once */
    ask_scores(c, ch, rq);
    set_rules(c, ch, rq);
    set_times(c, ch, rq);
    if (c->ask.pooled) rq->pool = &ch->pool;
    if (!begin_beams(c, ch)) return false;
    if (request_prepare(rq, &e)) return completion_refuse(c, &e, "max_tokens");
    return begin_form(c, ch);
}

/* The slot in which its tokens are counted; it survives a crash. */
static bool take_slot(completion *c, choice *ch)
{
    assert(!ch->slot);
    meter_owner owner = {.request_id = ch->usage_id,
                         .tenant_id = c->x->caller->tenant.id,
                         .key_id = c->x->caller->key.id,
                         .adapter_id = completion_adapter_id(c),
                         .started_wall_us = completion_booked_us(c),
                         .choice = ch->index % c->rq.n,
                         .price = c->use.price};
    err e;
    snprintf(owner.model, sizeof(owner.model), "%s", c->use.label);
    snprintf(owner.slo_class, sizeof(owner.slo_class), "%s",
             engine_of(c->srv)->class_name[c->use.slo_class]);
    snprintf(owner.endpoint, sizeof(owner.endpoint), "%s", completion_endpoint(c));
    err_code rc = meter_file_acquire(engine_of(c->srv)->meters, &owner, &ch->slot, &e);
    if (rc == ERR_IO) return completion_no_spool(c);
    if (rc) return completion_refuse(c, &e, NULL);
    ch->rq.meter = meter_slot_meter(ch->slot);
    return true;
}

/* A request of the server itself has fixed ids, so that its usage is recognised if it is repeated.
 */
static uint64_t usage_id_of(const completion *c, int index)
{
    const inner_request *own = c->x->inner;
    return own ? store_nth_id(store_of(c->srv), own->id, (uint64_t)index)
               : store_next_id(store_of(c->srv));
}

static bool prepare_choice(completion *c, choice *ch, int index)
{
    assert(c->rq.n > 0 && index >= 0 && index < c->run.n_choices && !ch->slot && !ch->submitted);
    ch->index = index;
    ch->stop_token = -1;
    ch->prompt = c->rq.prompts[index / c->rq.n];
    ch->usage_id = usage_id_of(c, index);
    bool begun = c->ask.pooled ? begin_pool(c, ch) : begin_text(c, ch);
    if (follows(c, ch)) return begun && begin_request(c, ch); /* nothing is computed for it */
    if (!begun || !begin_request(c, ch) || !take_slot(c, ch)) return false;
    announce(c, ch);
    return true;
}

void completion_say_when(completion *c, const choice *ch)
{
    exchange_retry_after(c->x, engine_retry_after_ms(engine_of(c->srv), &ch->rq));
}

static bool refused(completion *c, const choice *ch, const err *e)
{
    miss_cause why = ch->rq.missed.why; /* none: what it asks for is wrong */
    if (why)
        stats_refused(process_of(c->srv)->stats, c->x->caller->tenant.id, c->use.slo_class, why);
    completion_say_when(c, ch);
    return completion_refuse(c, e, NULL);
}

bool completion_submit(completion *c)
{
    assert(c->run.n_choices > 0 && c->run.n_begun == 0);
    int n = c->run.n_choices;
    if (c->ask.pooled && n > POOLED_AT_ONCE) n = POOLED_AT_ONCE;
    c->run.n_begun = n;
    for (int i = 0; i < n; i++) {
        if (!prepare_choice(c, &c->run.choices[i], i)) return false;
    }
    int64_t now = clock_now_us(); /* the engine may begin one before this returns */
    for (int i = 0; i < n; i++) {
        err e;
        choice *ch = &c->run.choices[i];
        if (follows(c, ch)) continue;
        if (!completion_place_prompt(c, ch) && sched_submit(sched_of(c->srv), &ch->rq, &e))
            return refused(c, ch, &e);
        ch->submitted = true;
    }
    c->times.submitted_us = now;
    return true;
}

/* Submits one more, prepared at the first attempt.  False: not now, or c->run.refused. */
static bool submit_next(completion *c, int running)
{
    assert(c->run.n_begun < c->run.n_choices);
    choice *ch = &c->run.choices[c->run.n_begun];
    err e;
    if (!ch->slot && !prepare_choice(c, ch, c->run.n_begun)) {
        c->run.refused = true;
        return false;
    }
    if (sched_submit(sched_of(c->srv), &ch->rq, &e)) {
        c->run.refused = e.code != ERR_BUSY || running == 0;
        return c->run.refused && refused(c, ch, &e);
    }
    ch->submitted = true;
    c->run.n_begun++;
    return true;
}

void completion_submit_more(completion *c)
{
    int running = 0;
    for (int i = 0; i < c->run.n_begun; i++) running += !c->run.choices[i].done;
    while (!c->run.closed && !c->run.refused && c->run.n_begun < c->run.n_choices &&
           running < POOLED_AT_ONCE && submit_next(c, running))
        running++;
}

void completion_cancel(completion *c)
{
    for (int i = 0; i < c->run.n_choices; i++) {
        if (c->run.choices[i].submitted) request_cancel(&c->run.choices[i].rq);
    }
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

/* Passes new text to the readers of reasoning and calls.  True: nothing more is wanted. */
static bool read_text(const completion *c, choice *ch)
{
    assert(c->use.thinking || c->use.tools);
    size_t len;
    const char *text = completion_text_take(&ch->text, &len);
    if (c->use.thinking) {
        bool was = thinking_reader_inside(&ch->thoughts);
        thinking_reader_push(&ch->thoughts, text, len);
        if (ch->done) thinking_reader_finish(&ch->thoughts);
        if (was || thinking_reader_inside(&ch->thoughts)) ch->n_thought = ch->n_text;
        if (c->use.tools) text = thinking_reader_take_text(&ch->thoughts, &len);
    }
    if (!c->use.tools) return false;
    tool_reader_push(&ch->tools, text, len);
    return tool_reader_done(&ch->tools);
}

/* If the client named the function, OpenAI's finish reason is "stop". */
static void finish_calls(const completion *c, choice *ch)
{
    tool_reader_finish(&ch->tools);
    bool called = ch->tools.n_calls && c->rq.tool_choice != TOOL_CHOICE_NAMED;
    if (called && strcmp(ch->finish, "stop") == 0) ch->finish = "tool_calls";
}

uint32_t completion_made(const choice *ch)
{
    assert(atomic_load(&ch->rq.meter->output_tokens) >= (uint32_t)ch->n_beyond);
    return atomic_load(&ch->rq.meter->output_tokens) - (uint32_t)ch->n_beyond;
}

/* Nothing is sent before the vector is complete.  Meter slots are few: with many prompts each
 * releases its own. */
static bool take_vector(completion *c, choice *ch)
{
    sampled none;
    (void)request_next(&ch->rq, &none, &ch->done);
    if (!ch->done) return false;
    ch->finish = finish_word(ch);
    bool good = strcmp(ch->finish, "stop") == 0;
    if (good && c->run.n_choices > POOLED_AT_ONCE) completion_settle_one(c, ch);
    return true;
}

/* Answer k of an ended search becomes the tokens of a choice. */
static bool push_answer(const beam_search *b, int k, request *to)
{
    assert(k >= 0 && k < beam_answers(b));
    size_t n = (size_t)beam_answer_length(b, k);
    sampled *token = calloc(n, sizeof(*token));
    int *trail = calloc(n, sizeof(*trail));
    bool good = token && trail;
    if (good) beam_answer(b, k, token, trail);
    for (size_t i = 0; good && i < n; i++) request_push(to, &token[i]);
    free(token);
    free(trail);
    return good;
}

/* If the beam search of this choice has ended, all choices of its prompt get their answers. */
static void take_beams(completion *c, choice *ch)
{
    assert(!ch->beams.search ||
           (ch->index % c->rq.n == 0 && ch->index + c->rq.n <= c->run.n_choices));
    beam_search *b = ch->beams.search;
    int finish = atomic_load_explicit(&ch->rq.finish, memory_order_acquire);
    if (!b || finish == FINISH_NONE) return;
    bool found = finish == FINISH_STOP || finish == FINISH_LENGTH;
    for (int k = 0; k < c->rq.n; k++) {
        choice *to = ch + k;
        to->dropped = !found || k >= beam_answers(b);
        if (!to->dropped && !push_answer(b, k, &to->rq)) c->run.starved = true;
        if (k == 0) continue;
        bool cut = !to->dropped && beam_answer_cut(b, k);
        finish_reason why = found ? cut ? FINISH_LENGTH : FINISH_STOP : (finish_reason)finish;
        request_finish(&to->rq, why, found ? NULL : &ch->rq.why);
    }
    beam_destroy(b);
    ch->beams.search = NULL;
}

bool completion_take(completion *c, choice *ch, int most)
{
    if (ch->done) return false;
    take_beams(c, ch);
    if (ch->beams.search) return false;
    bool news = false, done = false, seam;
    sampled t;
    if (c->ask.pooled) return take_vector(c, ch);
    for (int n = 0; !(seam = completion_at_seam(c, ch)) && n < most; n++) {
        if (!request_next(&ch->rq, &t, &done)) break;
        ch->n_taken++;
        news = true;
        if (c->times.first_token_us == 0) c->times.first_token_us = clock_now_us();
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
        if (c->use.tools || c->use.thinking) stop |= read_text(c, ch);
        if (stop) request_stop(&ch->rq);
    }
    assert(ch->n_text + ch->n_beyond <= ch->n_taken);
    c->run.past_seam |= seam;
    if (seam) return true;
    if (done && completion_left(c, ch)) return news;
    if (done) completion_text_finish(&ch->text);
    c->run.starved |= ch->text.failed || ch->tools.failed;
    if (!done) return news;
    ch->done = true;
    ch->finish = ch->text.stop_hit || tool_reader_done(&ch->tools) ? "stop" : finish_word(ch);
    if (c->use.tools || c->use.thinking) (void)read_text(c, ch);
    if (c->use.tools) finish_calls(c, ch);
    c->run.starved |= ch->tools.failed || ch->thoughts.failed;
    return true;
}
