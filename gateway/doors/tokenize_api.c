/* tokenize_api.c -- POST /tokenize and /detokenize, in vLLM's format.
 *
 * A chat is parsed and rendered by the functions that a completion uses (openai_parse(),
 * prompt_encode()), so the count is exactly what the model would read, tools and template
 * variables included. The other APIs count by tokenize_count() after they have translated their
 * body.
 *
 * Model names select a vocabulary: an adapter may add tokens. Access is checked as for a
 * completion, and a model that the caller may not use does not exist.
 *
 * Calls count against the tenant's and the key's rate limits in a table of their own
 * (token_limits), because a client that counts each prompt first would otherwise get half of its
 * completions.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/engine_parts.h"
#include "gateway/handlers.h"
#include "gateway/http/http_status.h"
#include "gateway/openai/openai.h"
#include "gateway/openai/prompt.h"
#include "gateway/openai/vocabulary.h"
#include "gateway/ratelimit.h"
#include "gateway/tenant_parts.h"

static bool refuse(exchange *x, const char *param, const char *msg)
{
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "%s", msg);
    return false;
}

/* What a request says wrong is 400, what the server lacks is not. */
static bool refuse_err(exchange *x, const char *param, const err *e)
{
    if (e->code == ERR_INPUT) return refuse(x, param, e->msg);
    exchange_reply_err(x, e, param);
    return false;
}

/* The model's tokenizer, to be released; a model that does not exist has none. */
static bool find_vocabulary(exchange *x, const cJSON *body, const vocabulary **out)
{
    const char *name = NULL;
    const adapter_version *v = NULL;
    openai_problem p;
    err e;
    if (json_str(body, "model", &name, NULL, &e)) return refuse(x, "model", e.msg);
    if (!name) name = x->conf->model.name;
    if (!openai_select_adapter(body, x->conf->model.name, &name, &p)) {
        exchange_error(x, p.status, p.type, p.code, p.param, "%s", p.msg);
        return false;
    }
    bool may = auth_may_use_model(x, name);
    if (may && strcmp(name, x->conf->model.name) == 0)
        return vocabulary_acquire(engine_of(x->app)->vocabularies, NULL, out, &e) == ERR_NONE;
    if (may && x->caller->tenant.id &&
        registry_acquire(registry_of(x->app), x->caller->tenant.id, name, false, &v, &e) ==
            ERR_NONE) {
        err_code rc = vocabulary_acquire(engine_of(x->app)->vocabularies, v, out, &e);
        registry_release(registry_of(x->app), v);
        return rc ? refuse_err(x, "model", &e) : true;
    }
    exchange_error(x, 404, "invalid_request_error", "model_not_found", "model",
                   "The model '%.100s' does not exist or you do not have access to it.", name);
    return false;
}

/* malloced ids become the exchange's; -1: answered. */
static int64_t keep_ids(exchange *x, int32_t *made, int64_t n, int64_t from, int32_t **ids)
{
    *ids = arena_calloc(&x->arena, (size_t)(n - from) + 1, sizeof(**ids));
    if (*ids) memcpy(*ids, made + from, (size_t)(n - from) * sizeof(**ids));
    free(made);
    if (*ids) return n - from;
    exchange_starved(x);
    return -1;
}

/* The body is read as that of /v1/chat/completions: what is counted is what the model would
 * read. */
static int64_t encode_chat(exchange *x, const vocabulary *v, const cJSON *body, openai_request *rq,
                           int32_t **ids)
{
    openai_problem p;
    openai_limits lim;
    tool_style tools;
    int32_t *made;
    int64_t busy_us = 0;
    err e;
    prompt_limits(x, &lim);
    lim.tokenize = true;
    if (!openai_parse(rq, true, body, &lim, &x->arena, &p) ||
        !openai_check_ids(rq, v->n_vocab, &p) ||
        !prompt_open_chat(engine_of(x->app), rq, &tools, &p)) {
        exchange_error(x, p.status, p.type, p.code, p.param[0] ? p.param : NULL, "%s", p.msg);
        return -1;
    }
    for (int i = 0; i < rq->n_ignored; i++) exchange_ignored_param(x, rq->ignored[i]);
    int64_t n = prompt_encode(x, v->tok, rq, tools, NULL, &made, &busy_us, &e);
    if (n >= 0) return keep_ids(x, made, n, prompt_excess(rq, n), ids);
    (void)refuse_err(x, "messages", &e);
    return -1;
}

static int64_t encode_text(exchange *x, const vocabulary *v, const cJSON *body, openai_request *rq,
                           int32_t **ids)
{
    openai_prompt p = {0};
    int32_t *made;
    int64_t busy_us = 0;
    err e;
    bool special = true;
    rq->add_special_tokens = true;
    if (json_str(body, "prompt", &p.text, NULL, &e) ||
        json_bool(body, "add_special_tokens", &rq->add_special_tokens, NULL, &e) ||
        json_bool(body, "parse_special", &special, NULL, &e) ||
        json_bool(body, "return_token_strs", &rq->return_token_strs, NULL, &e)) {
        (void)refuse(x, NULL, e.msg);
        return -1;
    }
    if (!p.text) {
        (void)refuse(x, "prompt", "'prompt' or 'messages' is required");
        return -1;
    }
    p.len = strlen(p.text);
    rq->plain_special = !special;
    int64_t n = prompt_encode(x, v->tok, rq, TOOLS_NONE, &p, &made, &busy_us, &e);
    if (n >= 0) return keep_ids(x, made, n, 0, ids);
    (void)refuse_err(x, "prompt", &e);
    return -1;
}

static void write_pieces(jsonw *w, const tokenizer *tok, const int32_t *ids, int64_t n)
{
    char text[TOK_PIECE_MAX];
    jsonw_open(w, "token_strs", '[');
    for (int64_t i = 0; i < n; i++) {
        size_t len = tokenizer_piece(tok, ids[i], text);
        jsonw_strn(w, NULL, text, len);
    }
    jsonw_close(w, ']');
}

static void tokenize(exchange *x, const vocabulary *v, const cJSON *body)
{
    int32_t *ids = NULL;
    openai_request rq = {0};
    int64_t n = json_get(body, "messages") ? encode_chat(x, v, body, &rq, &ids)
                                           : encode_text(x, v, body, &rq, &ids);
    bool pieces = rq.return_token_strs;
    openai_request_clear(&rq);
    if (n < 0) return;
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_int(&w, "count", n);
    jsonw_int(&w, "max_model_len", sched_max_context(sched_of(x->app)));
    jsonw_open(&w, "tokens", '[');
    for (int64_t i = 0; i < n; i++) jsonw_int(&w, NULL, ids[i]);
    jsonw_close(&w, ']');
    if (pieces) write_pieces(&w, v->tok, ids, n);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

static void detokenize(exchange *x, const vocabulary *vocab, const cJSON *body)
{
    const cJSON *v;
    const cJSON *tokens = json_get(body, "tokens");
    const tokenizer *tok = vocab->tok;
    size_t n = 0;
    int32_t *ids =
        cJSON_IsArray(tokens)
            ? arena_calloc(&x->arena, (size_t)cJSON_GetArraySize(tokens) + 1, sizeof(*ids))
            : NULL;
    if (!ids) {
        (void)refuse(x, "tokens", "'tokens' must be an array of token ids");
        return;
    }
    cJSON_ArrayForEach(v, tokens)
    {
        double d = cJSON_IsNumber(v) ? v->valuedouble : -1;
        if (!(d >= 0 && d < tokenizer_vocab(tok)) || d != (double)(int32_t)d) {
            (void)refuse(x, "tokens", "'tokens' holds something that is not a token id");
            return;
        }
        ids[n++] = (int32_t)d;
    }
    size_t len = 0;
    char *text = tokenizer_decode(tok, ids, n, false, &len);
    if (!text) {
        exchange_starved(x);
        return;
    }
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_strn(&w, "prompt", text, len);
    jsonw_close(&w, '}');
    free(text);
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

/* The tenant's and key's limits of requests hold here, too, but are counted apart: who counts each
 * prompt's tokens first must not get half of the completions. */
static bool reserve(exchange *x, limits_ticket *ticket)
{
    limits_refusal why;
    limits *l = tenants_of(x->app)->token_limits;
    bool ok = limits_reserve(l, &x->caller->key, &x->caller->tenant, NULL, 0, 0, ticket, &why);
    ratelimit_headers(x, l, NULL);
    if (ok) return true;
    if (strcmp(why.code, http_status_of(ERR_NOMEM)->code) == 0) {
        exchange_starved(x);
        return false;
    }
    ratelimit_refuse(x, &why);
    exchange_error(x, why.status, why.type, why.code, NULL, "%s", why.msg);
    return false;
}

static void handle(exchange *x, void (*fn)(exchange *, const vocabulary *, const cJSON *))
{
    const cJSON *body;
    const vocabulary *vocab;
    limits_ticket ticket;
    if (!exchange_read_json(x, &body)) return;
    if (!cJSON_IsObject(body)) {
        (void)refuse(x, NULL, "the body must be a JSON object");
        return;
    }
    if (!find_vocabulary(x, body, &vocab)) return;
    if (reserve(x, &ticket)) {
        fn(x, vocab, body);
        limits_settle(tenants_of(x->app)->token_limits, &ticket, 0, 0);
    }
    vocabulary_release(engine_of(x->app)->vocabularies, vocab);
}

bool tokenize_count(exchange *x, const cJSON *chat, int64_t *n)
{
    const vocabulary *vocab;
    limits_ticket ticket;
    openai_request rq = {0};
    int32_t *ids = NULL;
    *n = -1;
    if (!find_vocabulary(x, chat, &vocab)) return false;
    if (reserve(x, &ticket)) {
        *n = encode_chat(x, vocab, chat, &rq, &ids);
        openai_request_clear(&rq);
        limits_settle(tenants_of(x->app)->token_limits, &ticket, 0, 0);
    }
    vocabulary_release(engine_of(x->app)->vocabularies, vocab);
    return *n >= 0;
}

void tokenize_handle(exchange *x)
{
    handle(x, tokenize);
}

void detokenize_handle(exchange *x)
{
    handle(x, detokenize);
}
