/* completion_settle.c -- the end of a request in figures: usage rows, limits, the log line. */
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
    return c->adapter ? c->adapter->id : 0;
}

const char *completion_endpoint(const completion *c)
{
    if (c->pooled) return c->pooled->endpoint;
    return c->door ? c->door->endpoint : c->rq.chat ? "chat" : "completions";
}

/* Midnight, or a clock that was set, may lie between a request's begin and its reservation, and a
 * stream that is resumed has the begin of the first. */
int64_t completion_booked_us(const completion *c)
{
    static const int64_t DAY_US = INT64_C(86400) * 1000000;
    bool same = c->started_wall_us / DAY_US == c->ticket.wall_us / DAY_US;
    return same || c->ticket.wall_us == 0 ? c->started_wall_us : c->ticket.wall_us;
}

static void fill_row(const completion *c, const choice *ch, usage_row *row)
{
    const meter *m = ch->rq.meter;
    *row = (usage_row){.request_id = ch->usage_id,
                       .tenant_id = c->x->caller->tenant.id,
                       .key_id = c->x->caller->key.id,
                       .adapter_id = completion_adapter_id(c),
                       .output_tokens = completion_made(ch),
                       .status = c->client_gone ? 499 : c->status,
                       .queue_ms = -1,
                       .ttft_ms = -1,
                       .duration_ms = (clock_now_us() - c->started_us) / 1000,
                       .started_wall_us = completion_booked_us(c),
                       .ended_wall_us = clock_wall_us()};
    if (ch->index % c->rq.n == 0) { /* one prompt is paid once, however many choices it has */
        row->prompt_tokens = atomic_load(&m->prompt_tokens);
        row->cached_tokens = atomic_load(&m->cached_tokens);
    }
    row->missed = ch->rq.missed.why;
    if (ch->rq.admitted_us) row->queue_ms = (ch->rq.admitted_us - ch->rq.arrived_us) / 1000;
    if (ch->rq.first_token_us) row->ttft_ms = (ch->rq.first_token_us - c->started_us) / 1000;
    snprintf(row->model, sizeof(row->model), "%s", c->label);
    snprintf(row->slo_class, sizeof(row->slo_class), "%s", c->srv->class_name[c->slo_class]);
    snprintf(row->endpoint, sizeof(row->endpoint), "%s", completion_endpoint(c));
    snprintf(row->finish, sizeof(row->finish), "%s", ch->finish ? ch->finish : "error");
}

/* What it used; *turn: to be waited for. */
static int64_t settle_choice(completion *c, choice *ch, uint64_t *turn)
{
    meter_slot *slot = ch->slot;
    usage_row row;
    if (!slot) return 0;
    fill_row(c, ch, &row);
    ch->slot = NULL; /* it may be another request's at once */
    ch->rq.meter = NULL;
    if (!ch->submitted) {
        meter_file_release(c->srv->meters, slot);
        return 0;
    }
    *turn = settler_end(c->srv->settler, slot, &row);
    server_count_usage(c->srv, &row, 1);
    stats_note(c->srv->stats, &row, &ch->rq, c->x->request_id);
    return (int64_t)row.prompt_tokens + row.output_tokens;
}

void completion_settle_one(completion *c, choice *ch)
{
    ch->cached = atomic_load(&ch->rq.meter->cached_tokens);
    ch->booked = true;
    c->status = 200;
    c->booked_tokens += settle_choice(c, ch, &c->turn);
    inflight_remove(c->srv->inflight, &ch->live);
}

void completion_settle(completion *c)
{
    uint64_t turn = c->turn;
    int64_t used = c->booked_tokens;
    for (int i = 0; i < c->n_choices; i++) used += settle_choice(c, &c->choices[i], &turn);
    if (c->n_choices && c->choices[0].rq.admitted_us) limits_has_run(&c->ticket);
    limits_settle(c->srv->limits, &c->ticket, used);
    (void)settler_await(c->srv->settler, turn); /* else the spool has it */
    c->settled_us = clock_now_us();
}

/* Why the promise was broken: "queue", of several choices "queue:2,machine:1".  The class with
 * the most rows beside it, or -1. */
static int missed_text(const completion *c, char *text, size_t cap)
{
    int n[MISS_CAUSES] = {0}, beside = -1;
    text[0] = 0;
    for (int i = 0; i < c->n_choices; i++) {
        const cause_verdict *v = &c->choices[i].rq.missed;
        n[v->why]++;
        if (v->why && v->beside >= 0) beside = v->beside;
    }
    for (int k = MISS_NONE + 1; k < MISS_CAUSES; k++) {
        size_t at = strlen(text);
        if (n[k] == 0) continue;
        snprintf(text + at, cap - at, "%s%s", at ? "," : "", miss_cause_name(k));
        at = strlen(text);
        if (c->n_choices > 1) snprintf(text + at, cap - at, ":%d", n[k]);
    }
    return beside;
}

static void note_missed(const completion *c)
{
    char text[80];
    int beside = missed_text(c, text, sizeof(text));
    if (text[0]) exchange_note(c->x, "missed", "%s", text);
    if (beside >= 0) exchange_note(c->x, "beside", "%s", c->srv->class_name[beside]);
}

static void note_ms(exchange *x, const char *name, int64_t us)
{
    exchange_note_number(x, name, (double)us / 1000, 2);
}

void completion_log(completion *c)
{
    exchange *x = c->x;
    openai_usage *u = &c->used;
    if (c->label[0]) exchange_note(x, "model", "%s", c->label);
    exchange_note(x, "class", "%s", c->srv->class_name[c->slo_class]);
    note_missed(c);
    if (c->n_choices == 0 || !c->choices[0].submitted) return;
    const choice *ch = &c->choices[0];
    const request *rq = &ch->rq;
    completion_usage(c, u);
    exchange_note_number(x, "prompt_tokens", (double)u->prompt_tokens, 0);
    exchange_note_number(x, "cached_tokens", (double)u->cached_tokens, 0);
    exchange_note_number(x, "output_tokens", (double)u->output_tokens, 0);
    if (rq->admitted_us) note_ms(x, "queue_ms", rq->admitted_us - rq->arrived_us);
    if (rq->first_token_us) note_ms(x, "ttft_ms", rq->first_token_us - rq->arrived_us);
    int made = atomic_load(&rq->n_pushed);
    if (made > 1) note_ms(x, "tpot_ms", (rq->last_token_us - rq->first_token_us) / (made - 1));
    exchange_note(x, "finish", "%s", ch->finish ? ch->finish : "error");
}

/* The times of its first choice. */
static void span_times(const completion *c, int64_t at[SPAN_TIMES])
{
    const request *rq = c->n_choices ? &c->choices[0].rq : NULL;
    at[SPAN_ARRIVED] = c->started_us;
    at[SPAN_SUBMITTED] = c->submitted_us;
    if (rq) {
        at[SPAN_SEATED] = rq->admitted_us;
        at[SPAN_FIRST_TOKEN] = rq->first_token_us;
        at[SPAN_LAST_TOKEN] = rq->last_token_us;
    }
    at[SPAN_SETTLED] = c->settled_us;
    at[SPAN_ENDED] = clock_now_us();
}

void completion_trace(const completion *c)
{
    if (!c->traced) return;
    const exchange *x = c->x;
    span_request r = {.trace = x->trace,
                      .id = strtoull(x->request_id + strlen("req_"), NULL, 16),
                      .began_wall_us = c->started_wall_us,
                      .operation = c->pooled    ? c->pooled->endpoint
                                   : c->rq.chat ? "chat"
                                                : NULL,
                      .status = c->client_gone ? 499 : x->status,
                      .prompt_tokens = c->used.prompt_tokens,
                      .cached_tokens = c->used.cached_tokens,
                      .output_tokens = c->used.output_tokens};
    span_times(c, r.at_us);
    if (c->n_choices) {
        r.load_us = c->choices[0].rq.clock.first_load_us;
        r.max_tokens = c->choices[0].rq.max_tokens;
        if (c->choices[0].finish) snprintf(r.finish, sizeof(r.finish), "%s", c->choices[0].finish);
    }
    snprintf(r.asked, sizeof(r.asked), "%s", c->rq.model ? c->rq.model : "");
    snprintf(r.served, sizeof(r.served), "%s", c->label);
    snprintf(r.tenant, sizeof(r.tenant), "%s", x->caller->tenant.name);
    snprintf(r.class, sizeof(r.class), "%s", c->srv->class_name[c->slo_class]);
    snprintf(r.error, sizeof(r.error), "%s", c->problem.code ? c->problem.code : "");
    (void)missed_text(c, r.missed, sizeof(r.missed));
    spans_put(c->srv->spans, &r);
}
