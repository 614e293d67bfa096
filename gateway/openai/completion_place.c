/* completion_place.c -- choices that other nodes of the fleet work on: because this node drains, or
 * by the nodes' roles (engine/sched/place.h).
 *
 *   role prefill  the prompt is computed here; after its first token was sent to the client, the
 *                 choice leaves the engine, and another node fetches the pages and goes on
 *   role decode   another node computes the prompt and makes the first token; when that was sent
 *                 to the client, the pages are fetched and this engine goes on
 *
 * The client's connection, its text, limits and usage stay here.
 */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/sched/sched.h"
#include "gateway/move/carry.h"
#include "gateway/move/roster.h"
#include "gateway/openai/completion_inside.h"

enum { LOOK_US = 20000 }; /* in which the engine says how much of a prompt is cached */

/* Why a choice ends where it began, or NULL. */
static const char *why_stays(const completion *c, const choice *ch)
{
    if (c->ask.pooled) return "vectors";
    if (c->x->inner) return "background";
    if (c->use.stack) return "stack";
    if (c->rq.beams.width > 0) return "beams";
    if (ch->rq.grammar) return "grammar";
    if (c->use.bars) return "bars";
    return ch->rq.score_prompt ? "prompt_logprobs" : NULL;
}

static move_name name_of(const completion *c, const choice *ch)
{
    move_name n = {.owner = 0};
    const adapter_version *a = ch->rq.adapter_id ? c->use.adapter : NULL;
    snprintf(n.build, sizeof(n.build), "%s", engine_of(c->srv)->fingerprint);
    snprintf(n.class, sizeof(n.class), "%s", engine_of(c->srv)->class_name[c->use.slo_class]);
    if (!a) return n;
    snprintf(n.adapter, sizeof(n.adapter), "%s@%d", a->name, a->version);
    memcpy(n.digest, a->digest, sizeof(n.digest));
    n.owner = a->tenant_id;
    n.version_id = a->id;
    return n;
}

static void ask_to_leave(completion *c, choice *ch, int chosen)
{
    mover_expect(engine_of(c->srv)->mover);
    ch->leaving = true;
    ch->chosen = chosen;
    request_leave(&ch->rq);
}

void completion_leave(completion *c)
{
    c->run.asked_to_leave = true;
    for (int i = 0; i < c->run.n_begun; i++) {
        choice *ch = &c->run.choices[i];
        const char *why = why_stays(c, ch);
        if (ch->done) continue;
        exchange_note(c->x, "moved", "%s%s", why ? "no: " : "yes", why ? why : "");
        if (!why && !ch->leaving && !ch->abroad) ask_to_leave(c, ch, ROSTER_NONE);
    }
}

bool completion_left(completion *c, choice *ch)
{
    bool left = atomic_load(&ch->rq.finish) == FINISH_LEFT;
    if (ch->leaving) {
        ch->leaving = false;
        if (!left) mover_forget(engine_of(c->srv)->mover);
        if (!left) return false;
        move_name name = name_of(c, ch);
        request_go_on(&ch->rq);
        mover_take(engine_of(c->srv)->mover, &ch->rq, &name, ch->chosen);
        return true;
    }
    ch->abroad = false;
    ch->returned = left;
    return left;
}

/* ------------------------------------------------------------------------ by roles -- */

/* The table of nodes, if a node of another role may work on this choice; NULL: none. */
static roster *roster_for(const completion *c, const choice *ch)
{
    err e;
    mover *m = engine_of(c->srv)->mover;
    if (!m || !roster_divides(mover_roster(m)) || mover_wants(m)) return NULL;
    bool never = strcmp(c->x->conf->server.fleet_kv, "never") == 0;
    const sched *sc = sched_of(c->srv);
    if (never || why_stays(c, ch) || sched_pages_check(sc, &e)) return NULL;
    bool short_of_one = ch->rq.n_prompt <= sched_pages_least(sc) * sched_page_tokens(sc);
    if (sched_state_bytes(sc) > 0 && short_of_one) return NULL; /* there is no snapshot to move */
    return mover_roster(m);
}

static place_ask ask_of(const completion *c, const choice *ch)
{
    const sched *sc = sched_of(c->srv);
    return (place_ask){.n_prompt = ch->rq.n_prompt,
                       .n_output = ch->rq.run.length.mean,
                       .rank = ch->rq.adapter_id ? c->use.adapter->rank_max : 0,
                       .token_bytes = (double)sched_page_bytes(sc) / sched_page_tokens(sc),
                       .state_bytes = (double)sched_state_bytes(sc),
                       .tpot_us = (double)ch->rq.tpot_target_us,
                       .always = strcmp(c->x->conf->server.fleet_kv, "always") == 0};
}

/* Tokens of the prompt that this node need not compute. */
static int cached_of(const completion *c, const choice *ch)
{
    err e;
    int n_page = 0;
    double us;
    move_name name = name_of(c, ch);
    const request *rq = &ch->rq;
    sched_text text = {
        .domain = move_domain(rq, &name), .token = rq->prompt, .n_token = rq->n_prompt};
    int64_t until_us = clock_now_us() + LOOK_US;
    if (sched_pages_look(sched_of(c->srv), &text, 0, until_us, &n_page, &us, &e)) return 0;
    return n_page * sched_page_tokens(sched_of(c->srv));
}

/* The node that will probably generate its tokens loads the adapter meanwhile. */
static void tell_adapter(completion *c, choice *ch, roster *r)
{
    if (roster_role(r) != ROLE_PREFILL || !ch->rq.adapter_id) return;
    place_ask a = ask_of(c, ch);
    int at = roster_foresee_stream(r, &a);
    if (at == ROSTER_NONE) return;
    move_name name = name_of(c, ch);
    mover_prefetch(engine_of(c->srv)->mover, &name, at);
}

bool completion_place_prompt(completion *c, choice *ch)
{
    roster *r = roster_for(c, ch);
    mover *m = engine_of(c->srv)->mover;
    if (!r) return false;
    sched_foresee(sched_of(c->srv), &ch->rq);
    tell_adapter(c, ch, r);
    if (roster_role(r) != ROLE_DECODE || c->run.n_choices > 1) return false;
    place_ask a = ask_of(c, ch);
    a.n_cached = cached_of(c, ch);
    int at = roster_place_prompt(r, &a);
    if (at == ROSTER_NONE) return false;
    move_name name = name_of(c, ch);
    ch->abroad = mover_ask_prompt(m, &ch->rq, &name, at, &ch->from);
    if (!ch->abroad) return false;
    exchange_note_number(c->x, "prompt_node", roster_number(r, at), 0);
    if (ch->rq.adapter_id) residency_warm(residency_of(c->srv), ch->rq.adapter_id);
    return true;
}

/* Pages of the prompt come from the node that has computed it. */
static void bring_pages(completion *c, choice *ch)
{
    const request *rq = &ch->rq;
    move_name name = name_of(c, ch);
    size_t n_prompt = (size_t)rq->n_prompt, n = n_prompt + (size_t)rq->n_given;
    int32_t *token = arena_alloc(&c->x->arena, n * sizeof(*token));
    int n_tokens;
    if (!token) return; /* they are computed here */
    memcpy(token, rq->prompt, n_prompt * sizeof(*token));
    memcpy(token + n_prompt, rq->out.token, (n - n_prompt) * sizeof(*token));
    carry_want w = {.text = {.domain = move_domain(rq, &name), .token = token, .n_token = (int)n},
                    .rank = rq->adapter_id ? c->use.adapter->rank_max : 0,
                    .mode = c->x->conf->server.fleet_kv,
                    .node = ch->from.node,
                    .pass = ch->from.pass,
                    .request = rq->id};
    moved_kv why = carry_bring(mover_carry(engine_of(c->srv)->mover), &w, &n_tokens);
    exchange_note(c->x, "kv", "%s", moved_kv_name(why));
    exchange_note_number(c->x, "kv_tokens", n_tokens, 0);
}

/* Its first token came from another node. */
static void go_on_here(completion *c, choice *ch)
{
    err e;
    mover *m = engine_of(c->srv)->mover;
    request *rq = &ch->rq;
    ch->returned = false;
    request_go_on(rq);
    if (mover_wants(m)) { /* this node drains, and so does not begin with it */
        move_name name = name_of(c, ch);
        mover_take(m, rq, &name, ROSTER_NONE);
        return;
    }
    if (atomic_load(&rq->cancel)) {
        request_finish(rq, atomic_load(&rq->stopped) ? FINISH_STOP : FINISH_CANCELLED, NULL);
    } else {
        bring_pages(c, ch);
        if (sched_submit(sched_of(c->srv), rq, &e)) request_finish(rq, FINISH_ERROR, &e);
    }
    mover_forget(m);
}

/* Its first token was sent: whether another node generates the others. */
static void place_stream_of(completion *c, choice *ch)
{
    roster *r = roster_for(c, ch);
    ch->placed = true;
    if (!r || roster_role(r) != ROLE_PREFILL) return;
    place_ask a = ask_of(c, ch);
    int at = roster_place_stream(r, &a);
    if (at == ROSTER_NONE) return;
    exchange_note_number(c->x, "stream_node", roster_number(r, at), 0);
    ask_to_leave(c, ch, at);
}

void completion_place_streams(completion *c)
{
    for (int i = 0; i < c->run.n_begun; i++) {
        choice *ch = &c->run.choices[i];
        bool new = !ch->placed && !ch->done && !ch->leaving && ch->n_taken > 0;
        if (ch->returned)
            go_on_here(c, ch);
        else if (new && !ch->abroad)
            place_stream_of(c, ch);
    }
}
