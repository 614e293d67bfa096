/* completion_answer.c -- what the client reads: chunks of a stream, or one whole answer.
 *
 * A client that sends x-lorad-resume: new with a stream of one choice gets a ticket (move/ticket.h)
 * in the answer's header of that name, and a number with each event: how many tokens were taken
 * before it; the last events count on.  The same body with the ticket, and the last event's number
 * in last-event-id, gives the events behind it.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/clock.h"
#include "gateway/move/ticket.h"
#include "gateway/openai/completion_inside.h"
#include "storage/digest.h"

/* ------------------------------------------------------- streams that go on -- */

/* All that its tokens depend on. */
static bool digest_of(const completion *c, uint8_t out[DIGEST_BYTES])
{
    const cJSON *tree;
    digest_state d;
    char *body = exchange_read_json(c->x, &tree) ? cJSON_PrintUnformatted(tree) : NULL;
    if (!body) return false;
    digest_begin(&d);
    digest_add(&d, c->rq.chat ? "chat" : "text", 4);
    digest_add(&d, engine_of(c->srv)->fingerprint, strlen(engine_of(c->srv)->fingerprint) + 1);
    digest_add(&d, c->use.label, strlen(c->use.label) + 1);
    if (c->use.adapter) digest_add(&d, c->use.adapter->digest, DIGEST_BYTES);
    if (c->use.stack) digest_add(&d, c->use.stack->digest, DIGEST_BYTES);
    digest_add(&d, body, strlen(body));
    digest_end(&d, out);
    cJSON_free(body);
    return true;
}

static bool give_ticket(completion *c)
{
    ticket t = {.started_wall_us = c->times.started_wall_us};
    char text[TICKET_TEXT];
    if (!c->rq.seed_given &&
        getrandom(&c->rq.rules.seed, sizeof(c->rq.rules.seed), 0) != sizeof(c->rq.rules.seed))
        return completion_no_memory(c);
    c->rq.seed_given = true;
    t.seed = c->rq.rules.seed;
    memcpy(t.id, c->reply.id, strnlen(c->reply.id, sizeof(t.id) - 1));
    if (!digest_of(c, t.asked) ||
        !ticket_write(tenants_of(c->srv), c->x->caller->tenant.id, &t, text))
        return completion_no_memory(c);
    exchange_add_header(c->x, "x-lorad-resume", "%s", text);
    return true;
}

/* The number of the last event that the client has; -1: it has none. */
static bool take_last(completion *c)
{
    const char *text = exchange_header(c->x, "last-event-id");
    char *end;
    c->ask.resume_after = -1;
    if (!text || !*text) return true;
    long n = strlen(text) < 10 ? strtol(text, &end, 10) : -1;
    c->ask.resume_after = n >= 0 && !*end && *text >= '0' && *text <= '9' ? (int)n : -1;
    return c->ask.resume_after >= 0 ||
           openai_refuse(&c->problem, 400, "invalid_value", "last-event-id",
                         "'last-event-id' must be the number of the last event that came");
}

static bool use_ticket(completion *c, const char *text)
{
    ticket t;
    uint8_t asked[DIGEST_BYTES];
    if (!ticket_read(tenants_of(c->srv), c->x->caller->tenant.id, text, &t) ||
        clock_wall_us() >= t.started_wall_us + c->x->conf->server.resume_us)
        return openai_refuse(&c->problem, 404, "stream_not_found", "x-lorad-resume",
                             "there is no such stream, or it has expired");
    if (!digest_of(c, asked)) return completion_no_memory(c);
    if (memcmp(asked, t.asked, DIGEST_BYTES) != 0)
        return openai_refuse(&c->problem, 409, "conflict", "x-lorad-resume",
                             "this is another request, or its adapter or the server's model has "
                             "changed since");
    c->rq.rules.seed = t.seed;
    c->rq.seed_given = true;
    c->times.started_wall_us = t.started_wall_us;
    memcpy(c->reply.id, t.id, sizeof(c->reply.id));
    exchange_add_header(c->x, "x-lorad-resume", "%s", text);
    exchange_note(c->x, "resumed", "%d", c->ask.resume_after);
    return take_last(c);
}

bool completion_resume(completion *c)
{
    const char *text = exchange_header(c->x, "x-lorad-resume");
    c->ask.resume_after = -1;
    if (!text || c->x->inner) return true;
    if (!c->x->conf->server.resume_us)
        return openai_refuse(&c->problem, 400, "unsupported_parameter", "x-lorad-resume",
                             "this server resumes no streams (server.resume)");
    if (c->ask.door || c->ask.pooled || !c->rq.stream || c->rq.n * c->rq.n_prompts != 1)
        return openai_refuse(&c->problem, 400, "unsupported_parameter", "x-lorad-resume",
                             "only streams of chat and completions with one choice are resumed");
    if (c->use.cascade.of)
        return openai_refuse(&c->problem, 400, "unsupported_parameter", "x-lorad-resume",
                             "a cascade's stream is not resumed");
    c->ask.numbered = true;
    return strcmp(text, "new") == 0 ? give_ticket(c) : use_ticket(c, text);
}

/* Tokens of the answer so far, the same whenever it is made. */
static int tokens_of(const choice *ch)
{
    assert(ch->n_beyond >= 0 && ch->n_beyond <= ch->n_taken);
    return ch->n_taken - ch->n_beyond;
}

bool completion_at_seam(const completion *c, const choice *ch)
{
    return c->ask.numbered && !c->run.past_seam && tokens_of(ch) == c->ask.resume_after;
}

/* Begins an event with its number, where events have some; false: the client has it. */
static bool begin_event(completion *c, int n)
{
    assert(n >= 0);
    char line[32];
    if (!c->ask.numbered) return true;
    if (n <= c->ask.resume_after) return false;
    jsonw_raw(&c->reply.out, line, (size_t)snprintf(line, sizeof(line), "id: %d\n", n));
    return true;
}

/* ---------------------------------------------------------------- what is said -- */

static void head_of(const completion *c, openai_head *h)
{
    *h = (openai_head){.chat = c->rq.chat,
                       .id = c->reply.id,
                       .created_s = c->times.started_wall_us / 1000000,
                       .model = c->rq.model,
                       .fingerprint = engine_of(c->srv)->fingerprint};
    /* What it was served as. Chat says it always; OpenAI's text completions have no such member. */
    if (c->rq.chat || c->rq.service_tier) h->service_tier = c->use.tier;
}

void completion_usage(const completion *c, openai_usage *u)
{
    *u = (openai_usage){0};
    for (int i = 0; i < c->run.n_choices; i++) {
        const choice *ch = &c->run.choices[i];
        const meter *m = ch->rq.meter;
        if (!m && !ch->booked) continue; /* it was never begun */
        if (i % c->rq.n == 0) {
            u->prompt_tokens += ch->prompt.n_ids;
            u->cached_tokens += m ? atomic_load(&m->cached_tokens) : ch->cached;
        }
        u->output_tokens += m ? completion_made(ch) : 0;
        u->reasoning_tokens += c->run.choices[i].n_thought;
    }
}

/* What may be shown since the last time. */
static const char *take_text(completion *c, choice *ch, size_t *len)
{
    if (c->use.tools) return tool_reader_take_text(&ch->tools, len);
    return c->use.thinking ? thinking_reader_take_text(&ch->thoughts, len)
                           : completion_text_take(&ch->text, len);
}

static void take_thoughts(const completion *c, choice *ch, openai_choice *out)
{
    const char *s = thinking_reader_take_thoughts(&ch->thoughts, &out->n_thoughts);
    out->thoughts = s;
    if (c->rq.hide_thoughts) out->n_thoughts = 0;
}

/* The token that ended a text completion is counted, so its id and its log-probability are listed
 * behind the others'; a chat lists the tokens of its content. */
static int counts_end(const completion *c, const choice *ch)
{
    return !c->rq.chat && ch->finish && ch->stop_token >= 0 && tokens_of(ch) > ch->n_text;
}

/* The tokens not yet shown begin behind these. */
static void count_bytes(const completion *c, choice *ch, const int32_t *ids, int n)
{
    const openai_logprobs lp = {.tok = c->use.vocab->tok, .keep_special = c->rq.keep_special};
    for (int i = 0; i < n; i++) ch->offset += openai_text_bytes(&lp, ids[i]);
}

/* Describes the tokens of a choice from n_shown on. */
static void describe(const completion *c, choice *ch, openai_choice *out, openai_logprobs *lp,
                     const char *text, size_t len, bool first)
{
    *out = (openai_choice){.index = ch->index,
                           .text = text,
                           .len = len,
                           .first = first,
                           .finish = ch->finish,
                           .stop_string = ch->text.stop_hit,
                           .stop_token = ch->stop_token,
                           .calls = c->use.tools ? &ch->tools : NULL};
    if (c->use.thinking && !(first && c->rq.stream)) take_thoughts(c, ch, out);
    if (c->rq.logprobs) {
        *lp = (openai_logprobs){.tok = c->use.vocab->tok,
                                .token = ch->rq.out.ring + ch->n_shown,
                                .n_token = ch->n_text - ch->n_shown + counts_end(c, ch),
                                .ends = counts_end(c, ch),
                                .as_ids = c->rq.ids_for_tokens,
                                .keep_special = c->rq.keep_special,
                                .text_offset = ch->offset};
        if (first && c->rq.echo) {
            lp->prompt = ch->prompt.ids;
            lp->prompt_score = ch->rq.out.score;
            lp->n_prompt = ch->prompt.n_ids;
            lp->n_prompt_top = c->rq.rules.n_top;
        }
        out->logprobs = lp;
    }
    if (c->rq.return_token_ids) {
        out->ids = ch->rq.out.token + ch->n_shown;
        out->n_ids = ch->n_text - ch->n_shown + counts_end(c, ch);
        if (!ch->told_prompt) {
            out->prompt_ids = ch->prompt.ids;
            out->n_prompt_ids = ch->prompt.n_ids;
        }
        ch->told_prompt = true;
    }
    if (first && c->rq.echo) count_bytes(c, ch, ch->prompt.ids, ch->prompt.n_ids);
    count_bytes(c, ch, ch->rq.out.token + ch->n_shown, ch->n_text - ch->n_shown);
    assert(ch->n_shown <= ch->n_text);
    ch->n_shown = ch->n_text;
}

/* The prompt's own text, for echo. */
static char *echo_text(completion *c, const choice *ch, size_t *len)
{
    return tokenizer_decode(c->use.vocab->tok, ch->prompt.ids, (size_t)ch->prompt.n_ids,
                            !c->rq.keep_special, len);
}

bool completion_open_stream(completion *c)
{
    if (c->reply.stream_open) return true;
    c->reply.status = 200;
    c->reply.stream_open = exchange_stream_begin(c->x, "text/event-stream; charset=utf-8");
    if (!c->reply.stream_open) c->run.client_gone = true;
    return c->reply.stream_open;
}

static void add_chunk(completion *c, choice *ch, const char *text, size_t len, bool first)
{
    openai_head h;
    openai_choice oc;
    openai_logprobs lp;
    openai_usage u;
    head_of(c, &h);
    describe(c, ch, &oc, &lp, text, len, first);
    if (c->ask.door) {
        c->ask.door->say(c->ask.door_state, &c->reply.out, &oc);
        return;
    }
    int tokens = tokens_of(ch);
    if (!begin_event(c, first ? 0 : ch->finish ? tokens + 1 : tokens)) return;
    if (c->rq.continuous_usage) completion_usage(c, &u);
    openai_write_chunk(&c->reply.out, &h, &oc, c->rq.continuous_usage ? &u : NULL,
                       c->rq.include_usage);
}

static void begin_door(completion *c, jsonw *w)
{
    openai_head h;
    openai_usage u;
    head_of(c, &h);
    completion_usage(c, &u);
    c->ask.door->begin(c->ask.door_state, w, &h, &u);
}

/* The first chunk, with nothing of the answer: the prompt where it is echoed, in chat the
 * role, as OpenAI sends it. */
static void begin_choice(completion *c, choice *ch)
{
    ch->started = true;
    if (c->ask.door) {
        begin_door(c, &c->reply.out);
        return;
    }
    if (!c->rq.echo && !c->rq.chat) return;
    size_t len = 0;
    char *prompt = c->rq.echo ? echo_text(c, ch, &len) : NULL;
    c->run.starved |= c->rq.echo && !prompt;
    int n_text = ch->n_text;
    const char *finish = ch->finish;
    ch->n_text = 0;
    ch->finish = NULL;
    add_chunk(c, ch, prompt ? prompt : "", prompt ? len : 0, true);
    ch->n_text = n_text;
    ch->finish = finish;
    free(prompt);
}

/* Why it ended stands in a chunk of its own, behind all that was said. */
void completion_add_news(completion *c, choice *ch)
{
    if (!ch->started) begin_choice(c, ch);
    size_t len;
    const char *text = take_text(c, ch, &len), *finish = ch->finish;
    bool calls = c->use.tools && tool_reader_has_news(&ch->tools);
    bool tokens = (c->rq.logprobs || c->rq.return_token_ids) && ch->n_text > ch->n_shown;
    bool thoughts = ch->thoughts.thoughts.len > ch->thoughts.thoughts.given;
    ch->finish = NULL;
    if (len || thoughts || calls || tokens) add_chunk(c, ch, text, len, false);
    ch->finish = finish;
    if (finish) add_chunk(c, ch, "", 0, false);
}

void completion_flush(completion *c)
{
    c->run.starved |= c->reply.out.failed;
    if (!c->run.client_gone && !c->run.starved && c->reply.out.len) {
        atomic_store(&c->run.writing_us, clock_now_us());
        c->run.client_gone = !exchange_stream_write(c->x, c->reply.out.text, c->reply.out.len);
        atomic_store(&c->run.writing_us, 0);
    }
    jsonw_reset(&c->reply.out);
}

/* A door's answer, which has one choice. */
static bool compose_door(completion *c)
{
    assert(c->run.n_choices == 1);
    openai_choice oc;
    openai_usage u;
    choice *ch = &c->run.choices[0];
    size_t len;
    if (c->rq.stream) {
        if (!completion_open_stream(c)) return true;
        completion_add_news(c, ch);
    } else {
        begin_door(c, NULL);
        const char *text = take_text(c, ch, &len);
        describe(c, ch, &oc, NULL, text, len, false);
        c->ask.door->say(c->ask.door_state, NULL, &oc);
    }
    completion_usage(c, &u);
    return c->ask.door->end(c->ask.door_state, &c->reply.out, &u, c->rq.stream, &c->problem);
}

static void compose_end(completion *c)
{
    for (int i = 0; i < c->run.n_choices && completion_open_stream(c); i++)
        completion_add_news(c, &c->run.choices[i]);
    if (c->rq.include_usage && begin_event(c, tokens_of(&c->run.choices[0]) + 2)) {
        openai_head h;
        openai_usage u;
        head_of(c, &h);
        completion_usage(c, &u);
        openai_write_chunk(&c->reply.out, &h, NULL, &u, false);
    }
    jsonw_raw(&c->reply.out, "data: [DONE]\n\n", 14);
}

/* What the first choice of each prompt was scored with. */
static const openai_logprobs *score_of(completion *c, const choice *ch)
{
    if (c->rq.prompt_top < 0) return NULL;
    openai_logprobs *lp = arena_calloc(&c->x->arena, 1, sizeof(*lp));
    c->run.starved |= !lp;
    if (!lp) return NULL;
    *lp = (openai_logprobs){.tok = c->use.vocab->tok,
                            .prompt = ch->prompt.ids,
                            .prompt_score =
                                c->run.choices[ch->index - ch->index % c->rq.n].rq.out.score,
                            .n_prompt = ch->prompt.n_ids,
                            .n_prompt_top = c->rq.prompt_top};
    return lp;
}

double completion_mean_logprob(const choice *ch)
{
    double sum = 0;
    int n = ch->rq.out.ring ? tokens_of(ch) : 0;
    for (int i = 0; i < n; i++) sum += (double)ch->rq.out.ring[i].logprob;
    return n > 0 ? sum / n : -INFINITY;
}

/* The choices of the prompt of `first` that are answered, the best first where more were made;
 * returns how many. */
static int pick_choices(const completion *c, choice *first, choice **out)
{
    int n = 0;
    for (int i = 0; i < c->rq.n; i++) {
        int at = n;
        if (first[i].dropped) continue;
        for (; c->rq.n_best < c->rq.n && at > 0; at--) {
            if (completion_mean_logprob(out[at - 1]) >= completion_mean_logprob(&first[i])) break;
            out[at] = out[at - 1];
        }
        out[at] = &first[i];
        n++;
    }
    return n < c->rq.n_best ? n : c->rq.n_best;
}

/* All choices that are answered, and the index that the client reads of each; returns how many. */
static int list_choices(const completion *c, choice **out, int *index)
{
    assert(c->rq.n > 0 && c->run.n_choices % c->rq.n == 0);
    int n = 0;
    for (int i = 0; i < c->run.n_choices; i += c->rq.n) {
        int some = pick_choices(c, &c->run.choices[i], out + n);
        for (int k = 0; k < some; k++) index[n + k] = i / c->rq.n * c->rq.n_best + k;
        assert(some >= 0 && some <= c->rq.n);
        n += some;
    }
    return n;
}

/* An answer that is no stream: all choices that were answered, the prompt in front of each where
 * it is asked for. Memory that is short is c->run.starved. */
static void compose_whole(completion *c)
{
    openai_head h;
    openai_usage u;
    head_of(c, &h);
    completion_usage(c, &u);
    choice **answered = arena_calloc(&c->x->arena, (size_t)c->run.n_choices, sizeof(*answered));
    int *index = arena_calloc(&c->x->arena, (size_t)c->run.n_choices, sizeof(*index));
    openai_choice *list = arena_calloc(&c->x->arena, (size_t)c->run.n_choices, sizeof(*list));
    openai_logprobs *lps = arena_calloc(&c->x->arena, (size_t)c->run.n_choices, sizeof(*lps));
    if (!list || !lps || !answered || !index) {
        c->run.starved = true;
        return;
    }
    int n = list_choices(c, answered, index);
    for (int i = 0; i < n; i++) {
        choice *ch = answered[i];
        size_t len;
        const char *text = take_text(c, ch, &len);
        if (c->rq.echo) {
            size_t n_prompt = 0;
            char *prompt = echo_text(c, ch, &n_prompt);
            char *whole = arena_alloc(&c->x->arena, n_prompt + len + 1);
            if (prompt && whole) {
                memcpy(whole, prompt, n_prompt);
                memcpy(whole + n_prompt, text, len);
                text = whole;
                len += n_prompt;
            }
            c->run.starved |= !prompt || !whole;
            free(prompt);
        }
        describe(c, ch, &list[i], &lps[i], text, len, true);
        list[i].index = index[i];
        list[i].prompt = score_of(c, ch);
    }
    openai_write_answer(&c->reply.out, &h, list, n, &u);
}

bool completion_compose(completion *c)
{
    if (c->run.client_gone) return true;
    if (c->ask.pooled) {
        completion_pooled_compose(c);
    } else if (c->ask.door) {
        if (!compose_door(c)) return false;
    } else if (c->rq.stream)
        compose_end(c);
    else
        compose_whole(c);
    c->run.starved |= c->reply.out.failed;
    return !c->run.starved || completion_no_memory(c);
}

void completion_send(completion *c)
{
    assert(!c->run.starved);
    if (!c->rq.stream) {
        exchange_reply(c->x, 200, "application/json", c->reply.out.text, c->reply.out.len);
        return;
    }
    completion_flush(c);
    if (!c->run.client_gone) exchange_stream_end(c->x);
}
