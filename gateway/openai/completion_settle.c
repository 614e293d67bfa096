/* completion_settle.c -- the end of a request in figures: usage rows, limits, the log line, the
 * trace.
 *
 *   fill_row            a usage row from the choice's meter: tokens, cost, times, cause of a miss
 *   settler_end         marks the meter slot as ended, with the row (crash-safe from here on)
 *   limits_settle       replaces the reservation by what was used
 *   settler_await       waits until the settler's thread has written it, at most about 100 ms
 *
 * So a client that has its whole answer normally finds its usage in the database.  If the database
 * is slow or not available, the row stays in the mapped file and is written later
 * (storage/settler.h).  A choice that was never submitted gives its slot back without a row.
 *
 * A prompt counts once, with the first of its n choices.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "gateway/openai/completion_inside.h"
#include "gateway/watch/spans.h"
#include "gateway/watch/stats.h"
#include "storage/ledger.h"
#include "storage/settler.h"

uint64_t completion_adapter_id(const completion *c)
{
    return c->use.adapter ? c->use.adapter->id : 0;
}

const char *completion_endpoint(const completion *c)
{
    if (c->ask.pooled) return c->ask.pooled->endpoint;
    return c->ask.door ? c->ask.door->endpoint : c->rq.chat ? "chat" : "completions";
}

/* A usage row's begin decides the day of its budget.  Midnight or a changed clock may be between
 * the request's begin and its reservation, and a resumed stream has the begin of the first; then it
 * is the reservation's. */
int64_t completion_booked_us(const completion *c)
{
    static const int64_t DAY_US = INT64_C(86400) * 1000000;
    bool same = c->times.started_wall_us / DAY_US == c->use.ticket.wall_us / DAY_US;
    return same || c->use.ticket.wall_us == 0 ? c->times.started_wall_us : c->use.ticket.wall_us;
}

static void fill_row(const completion *c, const choice *ch, usage_row *row)
{
    const meter *m = ch->rq.meter;
    *row = (usage_row){.request_id = ch->usage_id,
                       .tenant_id = c->x->caller->tenant.id,
                       .key_id = c->x->caller->key.id,
                       .adapter_id = completion_adapter_id(c),
                       .output_tokens = completion_made(ch),
                       .status = c->run.client_gone ? 499 : c->reply.status,
                       .queue_ms = -1,
                       .ttft_ms = -1,
                       .duration_ms = (clock_now_us() - c->times.started_us) / 1000,
                       .started_wall_us = completion_booked_us(c),
                       .ended_wall_us = clock_wall_us()};
    if (ch->index % c->rq.n == 0) { /* a prompt counts once, for all of its choices */
        row->prompt_tokens = atomic_load(&m->prompt_tokens);
        row->cached_tokens = atomic_load(&m->cached_tokens);
    }
    row->cost =
        price_cost(&c->use.price, row->prompt_tokens, row->cached_tokens, row->output_tokens);
    row->missed = ch->rq.missed.why;
    if (ch->rq.times.admitted_us)
        row->queue_ms = (ch->rq.times.admitted_us - ch->rq.arrived_us) / 1000;
    if (ch->rq.times.first_token_us)
        row->ttft_ms = (ch->rq.times.first_token_us - c->times.started_us) / 1000;
    snprintf(row->model, sizeof(row->model), "%s", c->use.label);
    snprintf(row->slo_class, sizeof(row->slo_class), "%s",
             engine_of(c->srv)->class_name[c->use.slo_class]);
    snprintf(row->endpoint, sizeof(row->endpoint), "%s", completion_endpoint(c));
    snprintf(row->finish, sizeof(row->finish), "%s", ch->finish ? ch->finish : "error");
}

static void count_usage(server_counters *count, const usage_row *row)
{
    atomic_fetch_add(&count->prompt_tokens, row->prompt_tokens);
    atomic_fetch_add(&count->cached_tokens, row->cached_tokens);
    atomic_fetch_add(&count->output_tokens, row->output_tokens);
}

/* Adds its usage to c->run.booked, with the settler's turn to wait for. */
static void settle_choice(completion *c, choice *ch)
{
    meter_slot *slot = ch->slot;
    usage_row row;
    if (!slot) return;
    fill_row(c, ch, &row);
    ch->slot = NULL; /* it may belong to another request at once */
    ch->rq.meter = NULL;
    if (!ch->submitted) {
        meter_file_release(engine_of(c->srv)->meters, slot);
        return;
    }
    assert(row.cost >= 0);
    c->run.booked.turn = settler_end(engine_of(c->srv)->settler, slot, &row);
    count_usage(&process_of(c->srv)->count, &row);
    uint64_t owner_id = c->use.adapter ? c->use.adapter->tenant_id : row.tenant_id;
    stats_note(process_of(c->srv)->stats, &row, owner_id, &ch->rq, c->x->request_id);
    c->run.booked.tokens += (int64_t)row.prompt_tokens + row.output_tokens;
    c->run.booked.cost += row.cost;
}

void completion_settle_one(completion *c, choice *ch)
{
    assert(!ch->booked && ch->slot && ch->done);
    ch->cached = atomic_load(&ch->rq.meter->cached_tokens);
    ch->booked = true;
    c->reply.status = 200;
    settle_choice(c, ch);
    inflight_remove(tenants_of(c->srv)->inflight, &ch->live);
}

void completion_settle(completion *c)
{
    for (int i = 0; i < c->run.n_choices; i++) settle_choice(c, &c->run.choices[i]);
    if (c->run.n_choices && c->run.choices[0].rq.times.admitted_us) limits_has_run(&c->use.ticket);
    limits_settle(tenants_of(c->srv)->limits, &c->use.ticket, c->run.booked.tokens,
                  c->run.booked.cost);
    (void)settler_await(engine_of(c->srv)->settler, c->run.booked.turn); /* else the spool has it */
    c->times.settled_us = clock_now_us();
}

/* Why the target was missed: "queue", of several choices "queue:2,machine:1".  The class with the
 * most rows beside it, or -1. */
static int missed_text(const completion *c, char *text, size_t cap)
{
    int n[MISS_CAUSES] = {0}, beside = -1;
    text[0] = 0;
    for (int i = 0; i < c->run.n_choices; i++) {
        const cause_verdict *v = &c->run.choices[i].rq.missed;
        assert((unsigned)v->why < MISS_CAUSES);
        n[v->why]++;
        if (v->why && v->beside >= 0) beside = v->beside;
    }
    for (int k = MISS_NONE + 1; k < MISS_CAUSES; k++) {
        size_t at = strlen(text);
        if (n[k] == 0) continue;
        snprintf(text + at, cap - at, "%s%s", at ? "," : "", miss_cause_name(k));
        at = strlen(text);
        if (c->run.n_choices > 1) snprintf(text + at, cap - at, ":%d", n[k]);
    }
    return beside;
}

static void note_missed(const completion *c)
{
    char text[80];
    int beside = missed_text(c, text, sizeof(text));
    if (text[0]) exchange_note(c->x, "missed", "%s", text);
    if (beside >= 0) exchange_note(c->x, "beside", "%s", engine_of(c->srv)->class_name[beside]);
}

static void note_ms(exchange *x, const char *name, int64_t us)
{
    exchange_note_number(x, name, (double)us / 1000, 2);
}

void completion_log(completion *c)
{
    exchange *x = c->x;
    openai_usage *u = &c->reply.used;
    if (c->use.label[0]) exchange_note(x, "model", "%s", c->use.label);
    exchange_note(x, "class", "%s", engine_of(c->srv)->class_name[c->use.slo_class]);
    note_missed(c);
    if (c->run.n_choices == 0 || !c->run.choices[0].submitted) return;
    const choice *ch = &c->run.choices[0];
    const request *rq = &ch->rq;
    completion_usage(c, u);
    exchange_note_number(x, "prompt_tokens", (double)u->prompt_tokens, 0);
    exchange_note_number(x, "cached_tokens", (double)u->cached_tokens, 0);
    exchange_note_number(x, "output_tokens", (double)u->output_tokens, 0);
    if (rq->times.admitted_us) note_ms(x, "queue_ms", rq->times.admitted_us - rq->arrived_us);
    if (rq->times.first_token_us) note_ms(x, "ttft_ms", rq->times.first_token_us - rq->arrived_us);
    int made = atomic_load(&rq->out.n_pushed);
    if (made > 1)
        note_ms(x, "tpot_ms", (rq->times.last_token_us - rq->times.first_token_us) / (made - 1));
    exchange_note(x, "finish", "%s", ch->finish ? ch->finish : "error");
}

/* The times of its first choice. */
static void span_times(const completion *c, int64_t at[SPAN_TIMES])
{
    const request *rq = c->run.n_choices ? &c->run.choices[0].rq : NULL;
    at[SPAN_ARRIVED] = c->times.started_us;
    at[SPAN_SUBMITTED] = c->times.submitted_us;
    if (rq) {
        at[SPAN_SEATED] = rq->times.admitted_us;
        at[SPAN_FIRST_TOKEN] = rq->times.first_token_us;
        at[SPAN_LAST_TOKEN] = rq->times.last_token_us;
    }
    at[SPAN_SETTLED] = c->times.settled_us;
    at[SPAN_ENDED] = clock_now_us();
}

void completion_trace(const completion *c)
{
    if (!c->ask.traced) return;
    const exchange *x = c->x;
    span_request r = {.trace = x->trace,
                      .id = strtoull(x->request_id + strlen("req_"), NULL, 16),
                      .began_wall_us = c->times.started_wall_us,
                      .operation = c->ask.pooled ? c->ask.pooled->endpoint
                                   : c->rq.chat  ? "chat"
                                                 : NULL,
                      .status = c->run.client_gone ? 499 : x->status,
                      .prompt_tokens = c->reply.used.prompt_tokens,
                      .cached_tokens = c->reply.used.cached_tokens,
                      .output_tokens = c->reply.used.output_tokens};
    span_times(c, r.at_us);
    if (c->run.n_choices) {
        r.load_us = c->run.choices[0].rq.times.clock.first_load_us;
        r.max_tokens = c->run.choices[0].rq.max_tokens;
        if (c->run.choices[0].finish)
            snprintf(r.finish, sizeof(r.finish), "%s", c->run.choices[0].finish);
    }
    snprintf(r.asked, sizeof(r.asked), "%s", c->rq.model ? c->rq.model : "");
    snprintf(r.served, sizeof(r.served), "%s", c->use.label);
    snprintf(r.tenant, sizeof(r.tenant), "%s", x->caller->tenant.name);
    snprintf(r.class, sizeof(r.class), "%s", engine_of(c->srv)->class_name[c->use.slo_class]);
    snprintf(r.error, sizeof(r.error), "%s", c->problem.code ? c->problem.code : "");
    (void)missed_text(c, r.missed, sizeof(r.missed));
    spans_put(engine_of(c->srv)->spans, &r);
}
