/* tokenize_api.c -- POST /tokenize and /detokenize, in vLLM's shapes. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http_status.h"
#include "gateway/limited.h"
#include "gateway/openai.h"
#include "gateway/server.h"

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
    err e;
    if (json_str(body, "model", &name, NULL, &e)) return refuse(x, "model", e.msg);
    if (!name) name = x->server->cfg->model_name;
    bool may = auth_may_use_model(x, name);
    if (may && strcmp(name, x->server->cfg->model_name) == 0)
        return vocabulary_acquire(x->server->vocabularies, NULL, out, &e) == ERR_NONE;
    if (may && x->tenant.id &&
        registry_acquire(x->server->registry, x->tenant.id, name, false, &v, &e) == ERR_NONE) {
        err_code rc = vocabulary_acquire(x->server->vocabularies, v, out, &e);
        registry_release(x->server->registry, v);
        return rc ? refuse_err(x, "model", &e) : true;
    }
    exchange_error(x, 404, "invalid_request_error", "model_not_found", "model",
                   "The model '%.100s' does not exist or you do not have access to it.", name);
    return false;
}

/* Not cJSON_AddItemReferenceToObject(): that loses its reference where there is no memory for the name. */
static bool add_copy(cJSON *to, const char *name, const cJSON *v)
{
    cJSON *copy = cJSON_Duplicate(v, true);
    if (copy && cJSON_AddItemToObject(to, name, copy)) return true;
    cJSON_Delete(copy);
    return false;
}

/* Messages go through the same checks as in /v1/chat/completions. */
static int64_t encode_chat(exchange *x, const tokenizer *tok, const cJSON *body, int32_t **ids)
{
    server *s = x->server;
    openai_request rq = {0};
    openai_problem p;
    openai_limits lim = {.n_vocab = tokenizer_vocab(tok),
                         .max_context = sched_max_context(s->sched),
                         .max_choices = 1,
                         .temperature = 1,
                         .top_p = 1};
    cJSON *copy = cJSON_CreateObject();
    bool ok = copy && cJSON_AddStringToObject(copy, "model", "m") &&
              add_copy(copy, "messages", json_get(body, "messages"));
    static const char *const more[] = {"add_generation_prompt", "chat_template_kwargs"};
    for (size_t i = 0; ok && i < sizeof(more) / sizeof(more[0]); i++) {
        const cJSON *v = json_get(body, more[i]);
        if (v) ok = add_copy(copy, more[i], v);
    }
    int64_t n = -1;
    err e = {ERR_NOMEM, "out of memory"};
    if (!ok) {
        exchange_starved(x);
    } else if (!openai_parse(&rq, true, copy, &lim, &x->arena, &p)) {
        exchange_error(x, p.status, p.type, p.code, p.param, "%s", p.msg);
    } else if (!s->chat) {
        (void)refuse(x, "messages", s->chat_problem);
    } else {
        int32_t *made;
        chat_ask ask = {.msgs = rq.msgs,
                        .n_msgs = (size_t)rq.n_msgs,
                        .add_generation_prompt = rq.add_generation_prompt,
                        .kwargs = rq.template_kwargs};
        n = chat_encode(s->chat, tok, &ask, &made, &e);
        *ids = n > 0 ? arena_calloc(&x->arena, (size_t)n, sizeof(**ids)) : NULL;
        if (*ids)
            memcpy(*ids, made, (size_t)n * sizeof(**ids));
        else
            n = refuse_err(x, "messages", &e) ? 0 : -1;
        free(made);
    }
    openai_request_clear(&rq);
    cJSON_Delete(copy);
    return n;
}

static int64_t encode_text(exchange *x, const tokenizer *tok, const cJSON *body, int32_t **ids)
{
    const char *text = NULL;
    bool special = true;
    err e;
    if (json_str(body, "prompt", &text, NULL, &e) ||
        json_bool(body, "add_special_tokens", &special, NULL, &e)) {
        (void)refuse(x, NULL, e.msg);
        return -1;
    }
    if (!text) {
        (void)refuse(x, "prompt", "'prompt' or 'messages' is required");
        return -1;
    }
    int flags = TOK_PARSE_SPECIAL | (special ? TOK_ADD_SPECIAL : 0);
    int64_t n = tokenizer_encode(tok, text, strlen(text), flags, NULL, 0);
    *ids = n >= 0 ? arena_calloc(&x->arena, (size_t)n + 1, sizeof(**ids)) : NULL;
    if (!*ids) {
        (void)refuse(x, "prompt", "the prompt is too large to tokenise in one request");
        return -1;
    }
    n = tokenizer_encode(tok, text, strlen(text), flags, *ids, (size_t)n);
    if (n < 0) exchange_starved(x);
    return n;
}

static void tokenize(exchange *x, const tokenizer *tok, const cJSON *body)
{
    int32_t *ids = NULL;
    int64_t n = json_get(body, "messages") ? encode_chat(x, tok, body, &ids)
                                           : encode_text(x, tok, body, &ids);
    if (n < 0) return;
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_int(&w, "count", n);
    jsonw_int(&w, "max_model_len", sched_max_context(x->server->sched));
    jsonw_open(&w, "tokens", '[');
    for (int64_t i = 0; i < n; i++) jsonw_int(&w, NULL, ids[i]);
    jsonw_close(&w, ']');
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

static void detokenize(exchange *x, const tokenizer *tok, const cJSON *body)
{
    const cJSON *v;
    const cJSON *tokens = json_get(body, "tokens");
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

/* The tenant's and key's limits of requests hold here, too, but are counted apart: who counts each prompt's
 * tokens first must not get half of the completions. */
static bool reserve(exchange *x, limits_ticket *ticket)
{
    limits_refusal why;
    limits *l = x->server->token_limits;
    bool ok = limits_reserve(l, &x->key, &x->tenant, NULL, 0, ticket, &why);
    limited_headers(x, l, NULL);
    if (ok) return true;
    if (strcmp(why.code, http_status_of(ERR_NOMEM)->code) == 0) {
        exchange_starved(x);
        return false;
    }
    limited_refuse(x, &why);
    exchange_error(x, why.status, why.type, why.code, NULL, "%s", why.msg);
    return false;
}

static void handle(exchange *x, void (*fn)(exchange *, const tokenizer *, const cJSON *))
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
        fn(x, vocab->tok, body);
        limits_settle(x->server->token_limits, &ticket, 0);
    }
    vocabulary_release(x->server->vocabularies, vocab);
}

void tokenize_handle(exchange *x)
{
    handle(x, tokenize);
}

void detokenize_handle(exchange *x)
{
    handle(x, detokenize);
}
