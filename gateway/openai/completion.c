/* completion.c -- one worker, one HTTP request, one struct request per choice.
 *
 * The order of life (each step undoes what the ones before it took, on every way out):
 *
 *     parse body -> resolve model (pin) -> tokenise -> reserve limits -> meter slots
 *     -> sched_submit -> tokens to text -> settle (spool, ledger) -> last byte -> release
 *
 * The status line of a stream is held back until the first token, so that a refusal by the
 * scheduler is a real 4xx or 5xx; after COMMIT_MS without a token the stream is begun all the same
 * and kept alive with comments, because silent connections are cut by proxies.
 */
#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "gateway/handlers.h"
#include "gateway/http/connection.h"
#include "gateway/http/http_status.h"
#include "gateway/net/deadline.h"
#include "gateway/openai/completion_inside.h"
#include "gateway/watch/spans.h"
#include "gateway/watch/stats.h"

enum {
    PROBLEM_BYTES = 4096,    /* a sentence, escaped */
    RESTART_RETRY_MS = 5000, /* a guess: weights come from the page cache */
    SPOOL_RETRY_MS = 5000,   /* a disk is not emptied sooner */
    WAIT_MS = 250,           /* how often a waiting worker looks whether it was told to stop */
    LOOK_MS = 20,            /* and whether the client is gone, where nobody tells it */
    COMMIT_MS = 10000,       /* silence before a stream is begun without a token */
    PING_MS = 10000,         /* silence between comments after that */
    STREAM_TOKENS = 256,     /* of all choices together */
};

/* ------------------------------------------------------------------ refusals -- */

bool completion_refuse(completion *c, const err *e, const char *param)
{
    assert(e->code != ERR_NONE);
    const http_status *h = http_status_of(e->code);
    c->problem = (openai_problem){.status = h->status, .type = h->type, .code = h->code};
    snprintf(c->problem.param, sizeof(c->problem.param), "%s", param ? param : "");
    snprintf(c->problem.msg, sizeof(c->problem.msg), "%s", e->msg);
    return false;
}

bool completion_no_memory(completion *c)
{
    const err e = {ERR_NOMEM, "out of memory, try again"};
    return completion_refuse(c, &e, NULL);
}

bool completion_no_spool(completion *c)
{
    telemetry_refuse(sched_telemetry(sched_of(c->srv)), c->use.slo_class, c->x->caller->tenant.id,
                     OUTCOME_REFUSED, MISS_STORAGE);
    exchange_note(c->x, "missed", "%s", miss_cause_name(MISS_STORAGE));
    stats_refused(process_of(c->srv)->stats, c->x->caller->tenant.id, c->use.slo_class,
                  MISS_STORAGE);
    exchange_retry_after(c->x, SPOOL_RETRY_MS);
    return openai_refuse(&c->problem, 503, "storage_unavailable", NULL,
                         "usage cannot be written at present and its spool is full");
}

/* The answer is c->problem: an error, or the last event of a stream that has begun. */
static void send_problem(completion *c)
{
    const openai_problem *p = &c->problem;
    assert(p->status >= 400 && p->type && p->code);
    c->reply.status = p->status;
    if (c->ask.door && !c->reply.stream_open) {
        c->ask.door->rename(&c->problem);
        c->ask.door->fail(c->ask.door_state, NULL, p);
    }
    if (c->reply.stream_open) {
        char text[PROBLEM_BYTES];
        jsonw w;
        jsonw_init_fixed(&w, text,
                         sizeof(text)); /* on the stack: the problem may be a lack of memory */
        if (c->ask.door)
            c->ask.door->fail(c->ask.door_state, &w, p);
        else
            openai_write_stream_error(&w, p->type, p->code, p->msg);
        if (!w.failed && exchange_stream_write(c->x, w.text, w.len)) exchange_stream_end(c->x);
        return;
    }
    if (strcmp(p->code, http_status_of(ERR_NOMEM)->code) == 0) {
        exchange_starved(c->x);
        return;
    }
    exchange_error(c->x, p->status, p->type, p->code, p->param[0] ? p->param : NULL, "%s", p->msg);
}

/* ----------------------------------------------------------------- the wait -- */

/* Tokens that one event of a stream may have: a client that does not read for a while would
 * otherwise get all that was made meanwhile in one piece, with 2 KB of text for each token. */
static int most_at_once(const completion *c)
{
    assert(c->run.n_choices > 0);
    int each = STREAM_TOKENS / c->run.n_choices;
    return !c->rq.stream || c->use.cascade.held ? INT_MAX : each > 1 ? each : 1;
}

static bool take_one(completion *c, choice *ch)
{
    bool was_done = ch->done;
    bool fresh = completion_take(c, ch, most_at_once(c));
    /* The chunk that ends the last choice waits for the books. */
    bool hold = ch->done && !was_done;
    bool sent = c->rq.stream && !c->use.cascade.held;
    if (sent && fresh && !hold && !c->run.client_gone && completion_open_stream(c))
        completion_add_news(c, ch);
    return fresh;
}

static bool take_all(completion *c, bool *all_done)
{
    bool news = false;
    *all_done = true;
    for (int i = 0; i < c->run.n_begun; i++) {
        choice *ch = &c->run.choices[i];
        bool was_past = c->run.past_seam;
        news |= take_one(c, ch);
        if (c->run.past_seam != was_past) news |= take_one(c, ch); /* behind what the client has */
        *all_done &= ch->done;
    }
    int begun = c->run.n_begun;
    if (begun < c->run.n_choices) completion_submit_more(c);
    *all_done &= c->run.n_begun == begun;
    *all_done &= begun == c->run.n_choices || c->run.closed || c->run.refused;
    return news;
}

/* Comments keep proxies from cutting a silent stream. */
static void keep_alive(completion *c, int64_t *last_us)
{
    int64_t silent_ms = (clock_now_us() - *last_us) / 1000;
    if (!c->rq.stream || c->use.cascade.held || c->run.client_gone ||
        silent_ms < (c->reply.stream_open ? PING_MS : COMMIT_MS)) {
        return;
    }
    if (completion_open_stream(c) && !exchange_stream_write(c->x, ": ping\n\n", 8))
        c->run.client_gone = true;
    *last_us = clock_now_us();
}

static void wake(void *signal)
{
    request_signal_wake(signal);
}

/* Until every choice has ended.  A gone client cancels; the engine still says when it is done. */
static void wait_watched(completion *c, int wait_ms)
{
    uint64_t seen = 0;
    int64_t last_us = clock_now_us();
    bool cancelled = false;
    for (;;) {
        bool all_done, news = take_all(c, &all_done);
        if (news) {
            completion_flush(c);
            last_us = clock_now_us();
        }
        if (all_done) return;
        bool cut = atomic_load(&process_of(c->srv)->cut);
        bool stop = atomic_load(&c->run.stop);
        bool ended = cut || stop || c->run.starved || c->run.refused;
        if (!cancelled && (ended || c->run.client_gone || exchange_client_gone(c->x))) {
            c->run.client_gone |= !ended;
            cancelled = true;
            c->run.closed = true;
            completion_cancel(c);
        }
        if (!c->run.asked_to_leave && !cancelled && mover_wants(engine_of(c->srv)->mover))
            completion_leave(c);
        completion_place_streams(c);
        keep_alive(c, &last_us);
        if (!news || !c->rq.stream) (void)request_signal_wait(&c->run.signal, &seen, wait_ms);
    }
}

static void wait_all(completion *c)
{
    int fd = connection_socket();
    bool watched = deadline_watch(fd, wake, &c->run.signal);
    wait_watched(c, watched || c->x->inner ? WAIT_MS : LOOK_MS); /* nobody leaves from within */
    if (watched) deadline_unwatch(fd);
}

/* Takes back what was lent when not all choices could be submitted. */
static void abandon(completion *c)
{
    completion_cancel(c);
    uint64_t seen = 0;
    for (int i = 0; i < c->run.n_choices; i++) {
        while (c->run.choices[i].submitted && !c->run.choices[i].done) {
            (void)completion_take(c, &c->run.choices[i], INT_MAX);
            if (!c->run.choices[i].done) (void)request_signal_wait(&c->run.signal, &seen, WAIT_MS);
        }
    }
}

/* ------------------------------------------------------------- the last bytes -- */

/* It was ended from outside.  True. */
static bool cut_off(completion *c)
{
    if (atomic_load(&c->run.stop)) {
        exchange_add_header(c->x, "x-should-retry", "false");
        return !openai_refuse(&c->problem, 403, "request_cancelled", NULL,
                              "an operator has cancelled this request");
    }
    return !openai_refuse(&c->problem, 503, "shutting_down", NULL, "the server is shutting down");
}

static bool any_error(completion *c)
{
    if (c->run.starved) return !completion_no_memory(c);
    if (c->run.refused) return true;
    for (int i = 0; i < c->run.n_begun; i++) {
        const choice *ch = &c->run.choices[i];
        if (atomic_load(&ch->rq.finish) == FINISH_ERROR && !ch->text.stop_hit) {
            if (ch->rq.why.code == ERR_BUSY) completion_say_when(c, ch);
            if (ch->rq.why.code == ERR_RESTARTING) exchange_retry_after(c->x, RESTART_RETRY_MS);
            return !completion_refuse(c, &ch->rq.why, NULL);
        }
        if (strcmp(ch->finish, "cancelled") == 0 && !c->run.client_gone) return cut_off(c);
    }
    return c->run.n_begun < c->run.n_choices && !c->run.client_gone && cut_off(c);
}

/* --------------------------------------------------------------------- whole -- */

static void finish(completion *c)
{
    for (int i = 0; i < c->run.n_choices; i++) {
        choice *ch = &c->run.choices[i];
        inflight_remove(tenants_of(c->srv)->inflight, &ch->live);
        completion_text_clear(&ch->text);
        thinking_reader_clear(&ch->thoughts);
        tool_reader_clear(&ch->tools);
        request_clear(&ch->rq);
        pooling_clear(&ch->pool);
        grammar_run_release(ch->rq.grammar);
        completion_beams_clear(ch);
    }
    free(c->run.choices);
    grammar_release(c->use.form);
    bars_destroy(c->use.bars);
    openai_request_clear(&c->rq);
    limits_settle(tenants_of(c->srv)->limits, &c->use.ticket, 0, 0);
    vocabulary_release(engine_of(c->srv)->vocabularies, c->use.vocab);
    if (c->use.adapter) registry_release(registry_of(c->srv), c->use.adapter);
    stacks_release(adapters_of(c->srv)->stacks, c->use.stack);
    for (int i = 0; i < STACK_PARTS_MAX; i++) registry_release(registry_of(c->srv), c->use.part[i]);
    jsonw_clear(&c->reply.out);
    request_signal_clear(&c->run.signal);
}

/* True: the next step of a cascade is to answer. */
static bool run(completion *c, bool chat)
{
    if (!completion_admit(c, chat)) {
        if (c->problem.status) send_problem(c);
        return false;
    }
    if (c->use.cascade.of && !c->use.cascade.held) {
        completion_note_step(c);
        completion_tell_cascade(c);
    }
    if (!completion_submit(c)) {
        abandon(c);
        c->reply.status = c->problem.status;
        completion_log(c);
        completion_settle(c);
        send_problem(c);
        return false;
    }
    wait_all(c);
    bool failed = any_error(c);
    bool held = c->use.cascade.held, judged = held && !failed && !c->run.client_gone;
    bool next = judged && completion_fails_checks(c);
    if (judged) completion_note_step(c);
    if (held && !next) completion_tell_cascade(c);
    failed |= !next && !failed && !completion_compose(c);
    c->reply.status = failed ? c->problem.status : 200;
    completion_log(c);
    completion_settle(c);
    if (next) return true;
    if (c->run.client_gone)
        exchange_drop(c->x);
    else if (failed)
        send_problem(c);
    else
        completion_send(c);
    return false;
}

static void handle(exchange *x, bool chat, const completion_door *door,
                   const completion_pooled *pooled, void *state)
{
    const char *prefix = door ? door->prefix : pooled ? pooled->prefix : chat ? "chatcmpl" : "cmpl";
    char trail[CASCADE_TRAIL_BYTES] = "";
    completion_ask ask = {.door = door, .pooled = pooled, .door_state = state, .trail = trail};
    const exchange_mark mark = exchange_get_mark(x);
    for (bool again = true; again; ask.step++) {
        completion c = {.x = x,
                        .srv = x->app,
                        .ask = ask,
                        .times.started_us = clock_now_us(),
                        .times.started_wall_us = clock_wall_us()};
        snprintf(c.reply.id, sizeof(c.reply.id), "%s-%s", prefix, x->request_id);
        request_signal_init(&c.run.signal);
        jsonw_init(&c.reply.out);
        c.ask.traced = spans_begin(engine_of(x->app)->spans, &x->trace);
        again = run(&c, chat);
        completion_trace(&c);
        finish(&c);
        ask.body = c.ask.body;
        ask.drop_oldest = c.ask.drop_oldest;
        if (again) exchange_rewind(x, &mark);
    }
}

void completion_handle_chat(exchange *x)
{
    handle(x, true, NULL, NULL, NULL);
}

void completion_handle_door(exchange *x, const completion_door *door, void *state)
{
    handle(x, true, door, NULL, state);
}

void completion_handle_pooled(exchange *x, const completion_pooled *api, void *state)
{
    handle(x, false, NULL, api, state);
}

void completion_handle_text(exchange *x)
{
    handle(x, false, NULL, NULL, NULL);
}
