/* completion.c -- one worker, one HTTP request, one struct request per choice.
 *
 * The order of life (each step undoes what the ones before it took, on every way out):
 *
 *     parse body -> resolve model (pin) -> tokenise -> reserve limits -> meter slots
 *     -> sched_submit -> tokens to text -> settle the ledger (durable) -> last byte -> release
 *
 * The status line of a stream is held back until the first token, so that a refusal by the
 * scheduler is a real 4xx or 5xx; after COMMIT_MS without a token the stream is begun all the same
 * and kept alive with comments, because silent connections are cut by proxies.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/request.h"
#include "engine/sched.h"
#include "gateway/auth.h"
#include "gateway/completion_text.h"
#include "gateway/deadline.h"
#include "gateway/handlers.h"
#include "gateway/http_status.h"
#include "gateway/inflight.h"
#include "gateway/listener.h"
#include "gateway/openai.h"
#include "gateway/openai_reply.h"
#include "gateway/openai_tools.h"
#include "gateway/server.h"
#include "gateway/stats.h"
#include "storage/digest.h"
#include "storage/ledger.h"
#include "storage/meter_file.h"

enum {
    WAIT_MS = 250,     /* how often a waiting worker looks whether it was told to stop */
    LOOK_MS = 20,      /* and whether the client is gone, where nobody tells it */
    COMMIT_MS = 10000, /* silence before a stream is begun without a token */
    PING_MS = 10000,   /* silence between comments after that */
    STOP_IDS_MAX = MODEL_EOS_MAX + CHAT_STOP_MAX + OPENAI_STOP_ID_MAX,
};

/* One choice: a request in the engine and the text made of its tokens. */
typedef struct choice {
    request rq;
    meter_slot *slot;
    inflight_entry live;
    uint64_t usage_id;
    completion_text text;
    tool_reader tools;    /* with c->tools: what the text says */
    openai_prompt prompt; /* ids, always */
    int index;
    int n_taken;   /* tokens popped from the ring */
    int n_shown;   /* of these, sent to the client with their log-probabilities */
    int n_text;    /* tokens that count as text: without the one that stopped it */
    size_t offset; /* bytes of text before the tokens not yet shown */
    bool submitted, done, started;
    int32_t stop_token;
    const char *finish; /* OpenAI's word; NULL while running */
} choice;

typedef struct completion {
    exchange *x;
    server *srv;
    openai_request rq;
    openai_problem problem;
    const adapter_version *adapter; /* NULL: the bare base */
    tool_style tools;               /* how calls are written; TOOLS_NONE: they are not looked for */
    grammar *form;                  /* what the answer must be; NULL: text */
    char label[MODEL_LABEL_MAX + 1]; /* "base", "name@7": for usage */
    int slo_class;
    choice *choices;
    int n_choices;
    request_signal signal;
    limits_ticket ticket;
    bool stream_open, client_gone;
    atomic_bool stop; /* an operator wants it ended */
    jsonw out;
    char id[64];
    int64_t started_wall_us, started_us, first_token_us;
    int status;
} completion;

/* ------------------------------------------------------------------ refusals -- */

static bool refuse_err(completion *c, const err *e, const char *param)
{
    const http_status *h = http_status_of(e->code);
    c->problem = (openai_problem){.status = h->status, .type = h->type, .code = h->code};
    (void)snprintf(c->problem.param, sizeof(c->problem.param), "%s", param ? param : "");
    (void)snprintf(c->problem.msg, sizeof(c->problem.msg), "%s", e->msg);
    return false;
}

static void send_problem(completion *c)
{
    const openai_problem *p = &c->problem;
    c->status = p->status;
    if (c->stream_open) {
        jsonw_reset(&c->out);
        openai_write_stream_error(&c->out, p->type, p->code, p->msg);
        if (!c->out.failed) (void)exchange_stream_write(c->x, c->out.text, c->out.len);
        exchange_stream_end(c->x);
        return;
    }
    exchange_error(c->x, p->status, p->type, p->code, p->param[0] ? p->param : NULL, "%s", p->msg);
}

/* ------------------------------------------------------------ body and model -- */

/* The client would rather be refused than have a field ignored. */
static bool wants_strict(const completion *c)
{
    const char *v = exchange_header(c->x, "x-lorad-strict-params");
    return v && (strcmp(v, "true") == 0 || strcmp(v, "1") == 0);
}

static bool read_body(completion *c, bool chat)
{
    const cJSON *tree;
    const char *text;
    size_t len;
    if (!exchange_read_json(c->x, &tree, &text, &len)) {
        c->problem.status = 0; /* answered already */
        return false;
    }
    const model_config *mc = model_get_config(c->srv->model);
    openai_limits lim = {.n_vocab = mc->n_vocab,
                         .max_context = sched_max_context(c->srv->sched),
                         .max_choices = (int)c->srv->cfg->server_max_choices,
                         .temperature = mc->gen_temperature >= 0 ? mc->gen_temperature : 1,
                         .top_p = mc->gen_top_p > 0 ? mc->gen_top_p : 1,
                         .top_k = mc->gen_top_k > 0 ? mc->gen_top_k : 0,
                         .strict = wants_strict(c)};
    return openai_parse(&c->rq, chat, tree, text, len, &lim, &c->x->arena, &c->problem);
}

/* The same sentence for a model that is unknown and one that this key may not use. */
static bool no_such_model(completion *c)
{
    return openai_refuse(&c->problem, 404, "model_not_found", "model",
                         "The model '%.100s' does not exist or you do not have access to it.",
                         c->rq.model);
}

static bool resolve_model(completion *c)
{
    if (!auth_may_use_model(c->x, c->rq.model)) return no_such_model(c);
    if (strcmp(c->rq.model, c->srv->cfg->model_name) == 0) {
        (void)snprintf(c->label, sizeof(c->label), "%.*s", MODEL_LABEL_MAX,
                       c->srv->cfg->model_name);
        return true;
    }
    err e;
    err_code rc =
        registry_acquire(c->srv->registry, c->x->tenant.id, c->rq.model, false, &c->adapter, &e);
    if (rc == ERR_NOT_FOUND || rc == ERR_INPUT) return no_such_model(c);
    if (rc) return refuse_err(c, &e, "model");
    /* Another tenant's, shared: "owner/name@7". */
    const char *slash = strchr(c->rq.model, '/');
    int owner =
        slash && c->adapter->tenant_id != c->x->tenant.id ? (int)(slash - c->rq.model) + 1 : 0;
    (void)snprintf(c->label, sizeof(c->label), "%.*s%s@%d", owner, c->rq.model, c->adapter->name,
                   c->adapter->version);
    return true;
}

/* ---------------------------------------------------------------- tokens -- */

static bool too_long(completion *c, int64_t n)
{
    return openai_refuse(&c->problem, 400, "context_length_exceeded",
                         c->rq.chat ? "messages" : "prompt",
                         "This server's maximum context length is %d tokens; the prompt has %lld.",
                         sched_max_context(c->srv->sched), (long long)n);
}

static int64_t encode_text(completion *c, const openai_prompt *p, int32_t **ids, err *e)
{
    int flags = TOK_PARSE_SPECIAL | (c->rq.add_special_tokens ? TOK_ADD_SPECIAL : 0);
    int64_t n = tokenizer_encode(c->srv->tok, p->text, p->len, flags, NULL, 0);
    *ids = n >= 0 ? malloc(((size_t)n + 1) * sizeof(**ids)) : NULL;
    if (!*ids) return err_set(e, ERR_NOMEM, "no memory to tokenise the prompt");
    return tokenizer_encode(c->srv->tok, p->text, p->len, flags, *ids, (size_t)n);
}

static int64_t encode_chat(completion *c, int32_t **ids, err *e)
{
    chat_ask ask = {
        .msgs = c->rq.msgs,
        .n_msgs = (size_t)c->rq.n_msgs,
        .add_generation_prompt = c->rq.add_generation_prompt,
        .tools = c->rq.tools,
        .opening = c->rq.tool_choice >= TOOL_CHOICE_REQUIRED ? tool_style_opening(c->tools) : NULL,
        .kwargs = c->rq.template_kwargs};
    return chat_encode(c->srv->chat, c->srv->tok, &ask, ids, e);
}

/* Text to ids, cut if asked for, checked against the context. */
static bool tokenise(completion *c, openai_prompt *p)
{
    err e;
    if (!p->ids) {
        int32_t *made = NULL;
        int64_t n = c->rq.chat ? encode_chat(c, &made, &e) : encode_text(c, p, &made, &e);
        if (n < 0) {
            free(made);
            return refuse_err(c, &e, c->rq.chat ? "messages" : "prompt");
        }
        int64_t most = c->rq.truncate_prompt >= 0 ? INT32_MAX : sched_max_context(c->srv->sched);
        int32_t *ids = n <= most ? arena_calloc(&c->x->arena, (size_t)n + 1, sizeof(*ids)) : NULL;
        if (ids) memcpy(ids, made, (size_t)n * sizeof(*ids));
        free(made);
        if (!ids) return too_long(c, n);
        p->ids = ids;
        p->n_ids = (int)n;
    }
    if (c->rq.truncate_prompt >= 0 && p->n_ids > c->rq.truncate_prompt) {
        p->ids += p->n_ids - c->rq.truncate_prompt;
        p->n_ids = c->rq.truncate_prompt;
    }
    if (p->n_ids == 0) {
        return openai_refuse(&c->problem, 400, "empty_prompt", c->rq.chat ? "messages" : "prompt",
                             "the prompt has no tokens");
    }
    int room = sched_max_context(c->srv->sched) - p->n_ids;
    if (room < (c->rq.max_tokens == 0 ? 0 : 1)) return too_long(c, p->n_ids);
    if (c->rq.max_tokens > room) {
        return openai_refuse(&c->problem, 400, "context_length_exceeded", "max_tokens",
                             "This server's maximum context length is %d tokens; the prompt has %d "
                             "and max_tokens asks for %d.",
                             sched_max_context(c->srv->sched), p->n_ids, c->rq.max_tokens);
    }
    return true;
}

/* How this model writes calls, from its template. */
static bool prepare_tools(completion *c)
{
    if (!c->rq.tools) return true;
    const chat_template *ct = c->srv->chat;
    c->tools = chat_template_says(ct, "<tool_call>")    ? TOOLS_HERMES
               : chat_template_says(ct, "[TOOL_CALLS]") ? TOOLS_MISTRAL
               : chat_template_says(ct, "tools")        ? TOOLS_LLAMA
                                                        : TOOLS_NONE;
    if (c->tools == TOOLS_NONE) {
        return openai_refuse(&c->problem, 400, "unsupported_parameter", "tools",
                             "'tools' is not supported: this model's chat template has none");
    }
    return openai_force_call(&c->rq, c->tools, &c->problem);
}

static bool tokenise_all(completion *c)
{
    if (c->rq.chat) {
        if (!c->srv->chat) {
            return openai_refuse(&c->problem, 400, "unsupported_model", "model",
                                 "this model has no chat template; use /v1/completions");
        }
        c->rq.prompts = arena_calloc(&c->x->arena, 1, sizeof(*c->rq.prompts));
        if (!c->rq.prompts) return too_long(c, 0);
        if (!prepare_tools(c)) return false;
    }
    for (int i = 0; i < c->rq.n_prompts; i++) {
        if (!tokenise(c, &c->rq.prompts[i])) return false;
    }
    return true;
}

/* The model's end-of-sequence ids, the template's, and the request's own. */
static bool set_stop_ids(completion *c)
{
    sampling *r = &c->rq.rules;
    int32_t *ids = arena_calloc(&c->x->arena, STOP_IDS_MAX, sizeof(*ids));
    if (!ids) return too_long(c, 0);
    int n = 0;
    if (!r->ignore_eos) {
        const model_config *mc = model_get_config(c->srv->model);
        for (int i = 0; i < mc->n_eos; i++) ids[n++] = mc->eos_id[i];
        if (c->srv->chat) n += chat_stop_ids(c->srv->chat, ids + n, CHAT_STOP_MAX);
    }
    for (int i = 0; i < r->n_stop_id; i++) ids[n++] = r->stop_id[i];
    r->stop_id = ids;
    r->n_stop_id = n;
    return true;
}

/* ---------------------------------------------------------- limits, classes -- */

/* vLLM's priority, as far as the tenant may: sooner or later than others is another class. */
static const char *tier_of(const completion *c)
{
    if (c->rq.service_tier || c->rq.priority == 0) return c->rq.service_tier;
    char reason[128];
    const char *tier = c->rq.priority < 0 ? "priority" : "flex";
    bool may = server_class_of(c->srv, &c->x->tenant, tier, reason, sizeof(reason)) >= 0;
    return may ? tier : NULL;
}

static bool pick_class(completion *c)
{
    char reason[128];
    c->slo_class = server_class_of(c->srv, &c->x->tenant, tier_of(c), reason, sizeof(reason));
    if (c->slo_class >= 0) return true;
    return openai_refuse(&c->problem, 400, "invalid_value", "service_tier", "%s", reason);
}

/* Tokens one prompt may produce. */
static int output_room(const completion *c, const openai_prompt *p)
{
    int room = sched_max_context(c->srv->sched) - p->n_ids;
    return c->rq.max_tokens >= 0 ? c->rq.max_tokens : room;
}

static void add_rate_headers(completion *c)
{
    limits_view v;
    limits_look(c->srv->limits, &c->x->key, &c->x->tenant, &v);
    if (v.requests_limit > 0) {
        exchange_add_header(c->x, "x-ratelimit-limit-requests", "%lld",
                            (long long)v.requests_limit);
        exchange_add_header(c->x, "x-ratelimit-remaining-requests", "%lld",
                            (long long)v.requests_left);
        exchange_add_header(c->x, "x-ratelimit-reset-requests", "%lldms",
                            (long long)v.requests_reset_ms);
    }
    if (v.tokens_limit > 0) {
        exchange_add_header(c->x, "x-ratelimit-limit-tokens", "%lld", (long long)v.tokens_limit);
        exchange_add_header(c->x, "x-ratelimit-remaining-tokens", "%lld", (long long)v.tokens_left);
        exchange_add_header(c->x, "x-ratelimit-reset-tokens", "%lldms",
                            (long long)v.tokens_reset_ms);
    }
}

static bool reserve(completion *c)
{
    int64_t tokens = 0;
    for (int i = 0; i < c->rq.n_prompts; i++) {
        tokens += c->rq.prompts[i].n_ids;
        tokens += (int64_t)c->rq.n * output_room(c, &c->rq.prompts[i]);
    }
    limits_refusal why;
    bool ok = limits_reserve(c->srv->limits, &c->x->key, &c->x->tenant, tokens, &c->ticket, &why);
    add_rate_headers(c);
    if (ok) return true;
    atomic_fetch_add(&c->srv->count.rate_limited, 1);
    telemetry_refuse(sched_telemetry(c->srv->sched), c->slo_class, c->x->tenant.id,
                     OUTCOME_LIMITED);
    stats_refused(c->srv->stats, c->x->tenant.id, c->slo_class, true);
    if (why.retry_ms >= 0)
        exchange_retry_after(c->x, why.retry_ms);
    else
        exchange_add_header(c->x, "x-should-retry", "false");
    c->problem = (openai_problem){.status = 429, .type = why.type, .code = why.code};
    (void)snprintf(c->problem.msg, sizeof(c->problem.msg), "%s", why.msg);
    return false;
}

/* What the answer must be, compiled; on this worker, after the limits are reserved. */
static bool compile_form(completion *c)
{
    if (!c->rq.format_param) return true;
    err e;
    err_code rc = grammar_acquire(c->srv->grammars, &c->rq.format, &c->form, &e);
    if (!rc) return true;
    if (rc == ERR_NOMEM) return refuse_err(c, &e, c->rq.format_param);
    return openai_refuse(&c->problem, 400,
                         rc == ERR_UNSUPPORTED ? "unsupported_parameter" : "invalid_value",
                         c->rq.format_param, "%s: %s", c->rq.format_param, e.msg);
}

/* ------------------------------------------------------------------- choices -- */

static uint64_t isolation_of(const completion *c)
{
    const char *salt = c->rq.cache_salt ? c->rq.cache_salt : "";
    size_t len = strlen(salt);
    unsigned char text[8 + OPENAI_SALT_MAX], digest[DIGEST_BYTES];
    memcpy(text, &c->x->tenant.id, 8);
    memcpy(text + 8, salt, len);
    digest_bytes(text, 8 + len, digest);
    uint64_t out;
    memcpy(&out, digest, sizeof(out));
    return out;
}

/* When the client stops waiting for a first byte, by its own word: openai-python and its kin say
 * x-stainless-read-timeout, gateways say x-request-timeout; seconds.  0: it does not say, or nonsense. */
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

/* To operators. */
static void announce(completion *c, choice *ch)
{
    inflight_info *f = &ch->live.info;
    *f = (inflight_info){.id = ch->usage_id,
                         .tenant_id = c->x->tenant.id,
                         .key_id = c->x->key.id,
                         .slo_class = c->slo_class,
                         .n_prompt = ch->rq.n_prompt,
                         .max_tokens = ch->rq.max_tokens,
                         .stream = c->rq.stream,
                         .arrived_us = c->started_us};
    (void)snprintf(f->request_id, sizeof(f->request_id), "%s", c->x->request_id);
    (void)snprintf(f->model, sizeof(f->model), "%s", c->label);
    ch->live.stop = &c->stop;
    inflight_add(c->srv->inflight, &ch->live);
}

static bool prepare_choice(completion *c, choice *ch, int index)
{
    err e;
    ch->index = index;
    ch->stop_token = -1;
    ch->prompt = c->rq.prompts[index / c->rq.n];
    completion_text_init(&ch->text, &c->rq, c->srv->tok);
    if (c->tools) {
        bool opened = c->rq.tool_choice >= TOOL_CHOICE_REQUIRED;
        ch->text.kept = tokenizer_find(c->srv->tok, tool_style_marker(c->tools));
        if (!tool_reader_init(&ch->tools, c->tools, c->rq.tools, opened, c->rq.one_call)) {
            return openai_refuse(&c->problem, 503, "overloaded", NULL, "out of memory, try again");
        }
    }
    request *rq = &ch->rq;
    request_init(rq);
    ch->usage_id = store_next_id(c->srv->store);
    rq->id = ch->usage_id;
    rq->tenant_id = c->x->tenant.id;
    rq->isolation = isolation_of(c);
    rq->adapter_id = c->adapter ? c->adapter->id : 0;
    rq->prompt = ch->prompt.ids;
    rq->n_prompt = ch->prompt.n_ids;
    rq->max_tokens = output_room(c, &ch->prompt);
    rq->score_prompt = c->rq.echo && c->rq.logprobs;
    rq->rules = c->rq.rules;
    if (!c->rq.seed_given && getrandom(&rq->rules.seed, sizeof(rq->rules.seed), 0) < 0) {
        rq->rules.seed = ch->usage_id;
    }
    rq->rules.seed += (uint64_t)(index % c->rq.n); /* choices of one prompt differ */
    const slo_class *sc = &c->srv->classes[c->slo_class];
    rq->slo_class = c->slo_class;
    rq->weight = c->x->tenant.weight > 0 ? (float)c->x->tenant.weight : 1;
    rq->arrived_us = c->started_us;
    rq->ttft_deadline_us = c->started_us + sc->ttft_us;
    rq->tpot_target_us = sc->tpot_us;
    rq->expires_us = c->started_us + c->srv->cfg->server_request_timeout_us;
    rq->patience_us = patience_of(c);
    rq->signal = &c->signal;
    if (index == 0) rq->waiting = c->ticket.waiting; /* one HTTP request counts once */
    if (request_prepare(rq, &e)) return refuse_err(c, &e, "max_tokens");
    if (c->form) {
        rq->grammar = grammar_run_create(c->form, rq->rules.stop_id, rq->rules.n_stop_id);
        if (!rq->grammar) {
            return openai_refuse(&c->problem, 503, "overloaded", NULL, "out of memory, try again");
        }
        grammar_run_prepare(rq->grammar);
    }

    meter_owner owner = {.request_id = ch->usage_id,
                         .tenant_id = c->x->tenant.id,
                         .key_id = c->x->key.id,
                         .adapter_id = rq->adapter_id,
                         .started_wall_us = c->started_wall_us,
                         .choice = index % c->rq.n};
    (void)snprintf(owner.model, sizeof(owner.model), "%s", c->label);
    (void)snprintf(owner.slo_class, sizeof(owner.slo_class), "%s", sc->name);
    (void)snprintf(owner.endpoint, sizeof(owner.endpoint), "%s",
                   c->rq.chat ? "chat" : "completions");
    if (meter_file_acquire(c->srv->meters, &owner, &ch->slot, &e)) return refuse_err(c, &e, NULL);
    rq->meter = meter_slot_meter(ch->slot);
    announce(c, ch);
    return true;
}

static void say_when_to_come_back(completion *c, const choice *ch)
{
    exchange_retry_after(
        c->x, server_retry_after_ms(c->srv, ch->rq.tenant_id, c->slo_class, ch->rq.n_prompt));
}

static bool submit_all(completion *c)
{
    for (int i = 0; i < c->n_choices; i++) {
        if (!prepare_choice(c, &c->choices[i], i)) return false;
    }
    for (int i = 0; i < c->n_choices; i++) {
        err e;
        if (sched_submit(c->srv->sched, &c->choices[i].rq, &e)) {
            stats_refused(c->srv->stats, c->x->tenant.id, c->slo_class, false);
            say_when_to_come_back(c, &c->choices[i]);
            return refuse_err(c, &e, NULL);
        }
        c->choices[i].submitted = true;
    }
    return true;
}

static void cancel_all(completion *c)
{
    for (int i = 0; i < c->n_choices; i++) {
        if (c->choices[i].submitted) request_cancel(&c->choices[i].rq);
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
    case FINISH_NONE: break;
    }
    return "stop";
}

/* The text so far goes to the reader of calls.  True: nothing more is wanted. */
static bool read_calls(choice *ch)
{
    size_t len;
    const char *text = completion_text_take(&ch->text, &len);
    tool_reader_push(&ch->tools, text, len);
    return tool_reader_done(&ch->tools);
}

/* Who named the function knows that it is called: OpenAI says "stop" then. */
static void finish_calls(const completion *c, choice *ch)
{
    (void)read_calls(ch);
    tool_reader_finish(&ch->tools);
    bool called = ch->tools.n_calls && c->rq.tool_choice != TOOL_CHOICE_NAMED;
    if (called && strcmp(ch->finish, "stop") == 0) ch->finish = "tool_calls";
}

/* Takes what the engine has made for one choice.  True if there is news for the client. */
static bool take_tokens(completion *c, choice *ch)
{
    if (ch->done) return false;
    bool news = false, done = false;
    sampled t;
    while (request_next(&ch->rq, &t, &done)) {
        ch->n_taken++;
        news = true;
        if (c->first_token_us == 0) c->first_token_us = clock_now_us();
        if (ch->text.stop_hit || tool_reader_done(&ch->tools))
            continue; /* made while the cancel was on its way */
        if (is_stop_token(&ch->rq, t.token)) {
            ch->stop_token = t.token;
            continue;
        }
        ch->n_text++;
        bool stop = completion_text_push(&ch->text, t.token);
        if (c->tools) stop |= read_calls(ch);
        if (stop) request_stop(&ch->rq);
    }
    if (!done) return news;
    completion_text_finish(&ch->text);
    ch->done = true;
    ch->finish = ch->text.stop_hit || tool_reader_done(&ch->tools) ? "stop" : finish_word(ch);
    if (c->tools) finish_calls(c, ch);
    return true;
}

/* ------------------------------------------------------------------ answers -- */

static void head_of(const completion *c, openai_head *h)
{
    *h = (openai_head){.chat = c->rq.chat,
                       .id = c->id,
                       .created_s = c->started_wall_us / 1000000,
                       .model = c->rq.model,
                       .service_tier = c->srv->classes[c->slo_class].name,
                       .fingerprint = c->srv->fingerprint};
    if (!c->rq.service_tier)
        h->service_tier = "default";
    else
        h->service_tier = c->rq.service_tier;
}

static void usage_of(const completion *c, openai_usage *u)
{
    *u = (openai_usage){0};
    for (int i = 0; i < c->n_choices; i++) {
        const meter *m = c->choices[i].rq.meter;
        if (i % c->rq.n == 0) {
            u->prompt_tokens += c->choices[i].prompt.n_ids;
            u->cached_tokens += atomic_load(&m->cached_tokens);
        }
        u->output_tokens += atomic_load(&m->output_tokens);
    }
}

/* What may be shown since the last time. */
static const char *take_text(completion *c, choice *ch, size_t *len)
{
    return c->tools ? tool_reader_take_text(&ch->tools, len) : completion_text_take(&ch->text, len);
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
                           .calls = c->tools ? &ch->tools : NULL};
    if (c->rq.logprobs) {
        *lp = (openai_logprobs){.tok = c->srv->tok,
                                .token = ch->rq.ring + ch->n_shown,
                                .n_token = ch->n_text - ch->n_shown,
                                .text_offset = ch->offset};
        if (first && c->rq.echo) {
            lp->prompt = ch->prompt.ids;
            lp->prompt_score = ch->rq.prompt_score;
            lp->n_prompt = ch->prompt.n_ids;
        }
        out->logprobs = lp;
    }
    if (c->rq.return_token_ids) {
        out->ids = ch->rq.output + ch->n_shown;
        out->n_ids = ch->n_text - ch->n_shown;
        if (first) {
            out->prompt_ids = ch->prompt.ids;
            out->n_prompt_ids = ch->prompt.n_ids;
        }
    }
    for (int i = ch->n_shown; i < ch->n_text; i++) {
        size_t n = 0;
        if (tokenizer_bytes(c->srv->tok, ch->rq.output[i], &n)) ch->offset += n;
    }
    ch->n_shown = ch->n_text;
}

/* The prompt's own text, for echo. */
static char *echo_text(completion *c, const choice *ch, size_t *len)
{
    return tokenizer_decode(c->srv->tok, ch->prompt.ids, (size_t)ch->prompt.n_ids,
                            !c->rq.keep_special, len);
}

static bool open_stream(completion *c)
{
    if (c->stream_open) return true;
    c->status = 200;
    c->stream_open = exchange_stream_begin(c->x, "text/event-stream; charset=utf-8");
    if (!c->stream_open) c->client_gone = true;
    return c->stream_open;
}

static void add_chunk(completion *c, choice *ch, const char *text, size_t len, bool first)
{
    openai_head h;
    openai_choice oc;
    openai_logprobs lp;
    openai_usage u;
    head_of(c, &h);
    describe(c, ch, &oc, &lp, text, len, first);
    if (c->rq.continuous_usage) usage_of(c, &u);
    openai_write_chunk(&c->out, &h, &oc, c->rq.continuous_usage ? &u : NULL, c->rq.include_usage);
}

/* Appends the chunks of one choice that there is something to say about. */
static void add_news(completion *c, choice *ch)
{
    if (!ch->started) {
        ch->started = true;
        if (c->rq.echo) {
            size_t len = 0;
            char *prompt = echo_text(c, ch, &len);
            int n_text = ch->n_text;
            const char *finish = ch->finish;
            ch->n_text = 0; /* the prompt alone */
            ch->finish = NULL;
            add_chunk(c, ch, prompt ? prompt : "", prompt ? len : 0, true);
            ch->n_text = n_text;
            ch->finish = finish;
            free(prompt);
        } else if (c->rq.chat) {
            int n_text = ch->n_text;
            const char *finish = ch->finish;
            ch->n_text = 0; /* the role alone, as OpenAI sends it */
            ch->finish = NULL;
            add_chunk(c, ch, "", 0, true);
            ch->n_text = n_text;
            ch->finish = finish;
        }
    }
    size_t len;
    const char *text = take_text(c, ch, &len);
    bool calls = c->tools && tool_reader_has_news(&ch->tools);
    bool tokens = (c->rq.logprobs || c->rq.return_token_ids) && ch->n_text > ch->n_shown;
    if (len || calls || tokens || ch->finish) add_chunk(c, ch, text, len, false);
}

static void flush_stream(completion *c)
{
    if (c->client_gone || c->out.len == 0) return;
    if (c->out.failed || !exchange_stream_write(c->x, c->out.text, c->out.len)) {
        c->client_gone = true;
    }
    jsonw_reset(&c->out);
}

/* ----------------------------------------------------------------- the wait -- */

static bool take_all(completion *c, bool *all_done)
{
    bool news = false;
    *all_done = true;
    for (int i = 0; i < c->n_choices; i++) {
        choice *ch = &c->choices[i];
        bool was_done = ch->done;
        bool fresh = take_tokens(c, ch);
        news |= fresh;
        *all_done &= ch->done;
        /* The chunk that ends the last choice waits for the ledger. */
        bool hold = ch->done && !was_done;
        if (c->rq.stream && fresh && !hold && !c->client_gone && open_stream(c)) add_news(c, ch);
    }
    return news;
}

/* Comments keep proxies from cutting a silent stream. */
static void keep_alive(completion *c, int64_t *last_us)
{
    int64_t silent_ms = (clock_now_us() - *last_us) / 1000;
    if (!c->rq.stream || c->client_gone || silent_ms < (c->stream_open ? PING_MS : COMMIT_MS)) {
        return;
    }
    if (open_stream(c) && !exchange_stream_write(c->x, ": ping\n\n", 8)) c->client_gone = true;
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
        bool all_done;
        if (take_all(c, &all_done)) {
            flush_stream(c);
            last_us = clock_now_us();
        }
        if (all_done) return;
        bool cut = atomic_load(&c->srv->cut);
        bool stop = atomic_load(&c->stop);
        if (!cancelled && (cut || stop || c->client_gone || exchange_client_gone(c->x))) {
            c->client_gone |= !cut && !stop;
            cancelled = true;
            cancel_all(c);
        }
        keep_alive(c, &last_us);
        (void)request_signal_wait(&c->signal, &seen, wait_ms);
    }
}

static void wait_all(completion *c)
{
    int fd = listener_socket();
    bool watched = deadline_watch(fd, wake, &c->signal);
    wait_watched(c, watched ? WAIT_MS : LOOK_MS);
    if (watched) deadline_unwatch(fd);
}

/* Takes back what was lent when not all choices could be submitted. */
static void abandon(completion *c)
{
    cancel_all(c);
    uint64_t seen = 0;
    for (int i = 0; i < c->n_choices; i++) {
        while (c->choices[i].submitted && !c->choices[i].done) {
            (void)take_tokens(c, &c->choices[i]);
            if (!c->choices[i].done) (void)request_signal_wait(&c->signal, &seen, WAIT_MS);
        }
    }
}

/* ----------------------------------------------------------------- settlement -- */

static void fill_row(const completion *c, const choice *ch, usage_row *row)
{
    const meter *m = ch->rq.meter;
    *row = (usage_row){.request_id = ch->usage_id,
                       .tenant_id = c->x->tenant.id,
                       .key_id = c->x->key.id,
                       .adapter_id = ch->rq.adapter_id,
                       .output_tokens = atomic_load(&m->output_tokens),
                       .status = c->client_gone ? 499 : c->status,
                       .ttft_ms = -1,
                       .duration_ms = (clock_now_us() - c->started_us) / 1000,
                       .started_wall_us = c->started_wall_us,
                       .ended_wall_us = clock_wall_us()};
    if (ch->index % c->rq.n == 0) { /* one prompt is paid once, however many choices it has */
        row->prompt_tokens = atomic_load(&m->prompt_tokens);
        row->cached_tokens = atomic_load(&m->cached_tokens);
    }
    if (ch->rq.first_token_us) row->ttft_ms = (ch->rq.first_token_us - c->started_us) / 1000;
    (void)snprintf(row->model, sizeof(row->model), "%s", c->label);
    (void)snprintf(row->slo_class, sizeof(row->slo_class), "%s",
                   c->srv->classes[c->slo_class].name);
    (void)snprintf(row->endpoint, sizeof(row->endpoint), "%s", c->rq.chat ? "chat" : "completions");
    (void)snprintf(row->finish, sizeof(row->finish), "%s", ch->finish ? ch->finish : "error");
}

/* Durable before the last byte goes out.  If the disk refuses, the meter slots stay in use, so
 * nothing is lost: they are settled at the next start. */
static void settle(completion *c)
{
    usage_row *rows = calloc((size_t)c->n_choices, sizeof(*rows));
    err e = {.msg = "no memory"};
    size_t n = 0;
    for (int i = 0; rows && i < c->n_choices; i++) {
        if (c->choices[i].submitted) fill_row(c, &c->choices[i], &rows[n++]);
    }
    bool ok = rows && (n == 0 || ledger_settle(c->srv->store, rows, n, &e) == ERR_NONE);
    if (!ok) log_error("gateway", "usage of %s is not settled yet: %s", c->id, e.msg);
    int64_t used = 0;
    for (size_t i = 0; ok && i < n; i++) used += rows[i].prompt_tokens + rows[i].output_tokens;
    for (int i = 0; i < c->n_choices; i++) {
        choice *ch = &c->choices[i];
        if (ch->slot && (ok || !ch->submitted)) {
            /* The answer still reports usage: keep the counts beyond the slot. */
            meter *copy = arena_alloc(&c->x->arena, sizeof(*copy));
            if (copy) {
                atomic_store(&copy->cached_tokens, atomic_load(&ch->rq.meter->cached_tokens));
                atomic_store(&copy->prompt_tokens, atomic_load(&ch->rq.meter->prompt_tokens));
                atomic_store(&copy->output_tokens, atomic_load(&ch->rq.meter->output_tokens));
                ch->rq.meter = copy;
                meter_file_release(c->srv->meters, ch->slot);
                ch->slot = NULL;
            }
        }
    }
    if (c->n_choices && c->choices[0].rq.admitted_us) limits_has_run(&c->ticket);
    limits_settle(c->srv->limits, &c->ticket, used);
    if (ok) server_count_usage(c->srv, rows, n);
    free(rows);
}

/* What the log line says: of all choices the tokens, of the first one the times. */
static void describe_for_log(const completion *c)
{
    exchange *x = c->x;
    openai_usage u;
    (void)snprintf(x->log_model, sizeof(x->log_model), "%s", c->label);
    x->log_class = c->srv->classes[c->slo_class].name;
    if (c->n_choices == 0 || !c->choices[0].submitted) return;
    const choice *ch = &c->choices[0];
    const request *rq = &ch->rq;
    usage_of(c, &u);
    x->log_prompt = u.prompt_tokens;
    x->log_cached = u.cached_tokens;
    x->log_output = u.output_tokens;
    if (rq->admitted_us) x->log_queue_us = rq->admitted_us - rq->arrived_us;
    if (rq->first_token_us) x->log_ttft_us = rq->first_token_us - rq->arrived_us;
    int made = atomic_load(&rq->n_pushed);
    if (made > 1) x->log_tpot_us = (rq->last_token_us - rq->first_token_us) / (made - 1);
    (void)snprintf(x->log_finish, sizeof(x->log_finish), "%s", ch->finish ? ch->finish : "error");
}

/* ------------------------------------------------------------- the last bytes -- */

static bool any_error(completion *c)
{
    for (int i = 0; i < c->n_choices; i++) {
        const choice *ch = &c->choices[i];
        if (atomic_load(&ch->rq.finish) == FINISH_ERROR && !ch->text.stop_hit) {
            if (ch->rq.why.code == ERR_BUSY) say_when_to_come_back(c, ch);
            return !refuse_err(c, &ch->rq.why, NULL);
        }
        if (strcmp(ch->finish, "cancelled") == 0 && !c->client_gone && atomic_load(&c->stop)) {
            exchange_add_header(c->x, "x-should-retry", "false");
            return !openai_refuse(&c->problem, 403, "request_cancelled", NULL,
                                  "an operator has cancelled this request");
        }
        if (strcmp(ch->finish, "cancelled") == 0 && !c->client_gone) {
            return !openai_refuse(&c->problem, 503, "shutting_down", NULL,
                                  "the server is shutting down");
        }
    }
    return false;
}

static void end_stream(completion *c)
{
    for (int i = 0; i < c->n_choices && open_stream(c); i++) add_news(c, &c->choices[i]);
    if (c->rq.include_usage) {
        openai_head h;
        openai_usage u;
        head_of(c, &h);
        usage_of(c, &u);
        openai_write_chunk(&c->out, &h, NULL, &u, false);
    }
    jsonw_raw(&c->out, "data: [DONE]\n\n", 14);
    flush_stream(c);
    if (!c->client_gone) exchange_stream_end(c->x);
}

static void send_whole(completion *c)
{
    openai_head h;
    openai_usage u;
    head_of(c, &h);
    usage_of(c, &u);
    openai_choice *list = arena_calloc(&c->x->arena, (size_t)c->n_choices, sizeof(*list));
    openai_logprobs *lps = arena_calloc(&c->x->arena, (size_t)c->n_choices, sizeof(*lps));
    if (!list || !lps) {
        (void)openai_refuse(&c->problem, 500, "internal_error", NULL, "out of memory");
        send_problem(c);
        return;
    }
    for (int i = 0; i < c->n_choices; i++) {
        choice *ch = &c->choices[i];
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
            free(prompt);
        }
        describe(c, ch, &list[i], &lps[i], text, len, true);
    }
    c->status = 200;
    openai_write_answer(&c->out, &h, list, c->n_choices, &u);
    if (c->out.failed) {
        (void)openai_refuse(&c->problem, 500, "internal_error", NULL, "out of memory");
        send_problem(c);
        return;
    }
    exchange_reply(c->x, 200, "application/json", c->out.text, c->out.len);
}

/* --------------------------------------------------------------------- whole -- */

static bool admit(completion *c, bool chat)
{
    if (!read_body(c, chat) || !resolve_model(c) || !tokenise_all(c) || !set_stop_ids(c)) {
        return false;
    }
    if (!pick_class(c) || !reserve(c) || !compile_form(c)) return false;
    int n = c->rq.n * c->rq.n_prompts;
    c->choices = calloc((size_t)n, sizeof(*c->choices));
    if (!c->choices) {
        return openai_refuse(&c->problem, 503, "overloaded", NULL, "out of memory, try again");
    }
    c->n_choices = n;
    for (int i = 0; i < c->rq.n_ignored; i++) exchange_ignored_param(c->x, c->rq.ignored[i]);
    return true;
}

static void finish(completion *c)
{
    for (int i = 0; i < c->n_choices; i++) {
        choice *ch = &c->choices[i];
        inflight_remove(c->srv->inflight, &ch->live);
        completion_text_clear(&ch->text);
        tool_reader_clear(&ch->tools);
        request_clear(&ch->rq);
        grammar_run_release(ch->rq.grammar);
    }
    free(c->choices);
    grammar_release(c->form);
    openai_request_clear(&c->rq);
    limits_settle(c->srv->limits, &c->ticket, 0);
    if (c->adapter) registry_release(c->srv->registry, c->adapter);
    jsonw_clear(&c->out);
    request_signal_clear(&c->signal);
}

static void run(completion *c, bool chat)
{
    if (!admit(c, chat)) {
        if (c->problem.status) send_problem(c);
        return;
    }
    if (!submit_all(c)) {
        abandon(c);
        c->status = c->problem.status;
        settle(c);
        describe_for_log(c);
        send_problem(c);
        return;
    }
    wait_all(c);
    bool failed = any_error(c);
    if (failed)
        c->status = c->problem.status;
    else
        c->status = 200;
    settle(c);
    describe_for_log(c);
    if (c->client_gone)
        exchange_drop(c->x);
    else if (failed)
        send_problem(c);
    else if (c->rq.stream)
        end_stream(c);
    else
        send_whole(c);
}

static void handle(exchange *x, bool chat)
{
    completion c = {
        .x = x, .srv = x->server, .started_us = clock_now_us(), .started_wall_us = clock_wall_us()};
    (void)snprintf(c.id, sizeof(c.id), "%s-%s", chat ? "chatcmpl" : "cmpl", x->request_id);
    request_signal_init(&c.signal);
    jsonw_init(&c.out);
    run(&c, chat);
    finish(&c);
}

void completion_handle_chat(exchange *x)
{
    handle(x, true);
}

void completion_handle_text(exchange *x)
{
    handle(x, false);
}
