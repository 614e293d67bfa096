/* completion_admit.c -- from the body to a request that may run.  completion_admit() is a chain of
 * steps, each of which may refuse and so end it; the main ones:
 *
 *   read_body         parse; another API's body (Messages, Responses) is translated first
 *   pick_class        service_tier, priority, or that of a batch
 *   resolve_model     base, adapter, alias or stack; pins the version until the end
 *   check_ids         token ids must exist in the model or the adapter
 *   ask_limits        only looks: is anything left?  Before the costly steps
 *   tokenise_all      prompts to ids, cut or refused if longer than the context
 *   reserve           takes the tokens of prompt and longest answer from all limits
 *   compile_form      the grammar, last, because it may take long
 *
 * A model that is unknown here may exist: resolve_model() lets a fleet's server catch up with the
 * journal once, then tries the tenant's source of adapters (first_fetch()).  A model that a key may
 * not use gives the same 404 as one that does not exist.
 *
 * Time in which the worker could not run (wall time less its CPU time, limits and tokenizer)
 * becomes run.stalled_us, which counts as `machine` if a target is missed.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/sched/sched.h"
#include "gateway/auth.h"
#include "gateway/http/http_status.h"
#include "gateway/http/inner.h"
#include "gateway/openai/completion_inside.h"
#include "gateway/openai/openai_tools.h"
#include "gateway/openai/prompt.h"
#include "gateway/ratelimit.h"
#include "gateway/watch/stats.h"
#include "storage/meter_file.h"

enum { STOP_IDS_MAX = MODEL_EOS_MAX + CHAT_STOP_MAX + OPENAI_STOP_ID_MAX + 1 };
enum { CATCH_UP_US = 300000 }; /* a look at the fleet's journal; one comes every 250 ms anyway */

/* ------------------------------------------------------------ body and model -- */

/* Whether the client prefers an error to an ignored field. */
static bool wants_strict(const completion *c)
{
    const char *v = exchange_header(c->x, "x-lorad-strict-params");
    return v && (strcmp(v, "true") == 0 || strcmp(v, "1") == 0);
}

static bool read_body(completion *c, bool chat)
{
    const cJSON *tree = c->ask.body;
    if (!tree && !exchange_read_json(c->x, &tree)) {
        c->problem.status = 0; /* answered already */
        return false;
    }
    openai_limits lim;
    if (c->ask.pooled) return completion_pooled_read(c, tree);
    if (c->ask.door && !c->ask.body)
        tree =
            c->ask.door->translate(c->ask.door_state, c->x, tree, &c->ask.drop_oldest, &c->problem);
    if (!tree) return false;
    c->ask.body = tree;
    prompt_limits(c->x, &lim);
    lim.strict = wants_strict(c);
    return openai_parse(&c->rq, chat, tree, &lim, &c->x->arena, &c->problem);
}

/* The same sentence for a model that is unknown and one that this key may not use. */
bool completion_no_such_model(completion *c, const char *name, const char *param)
{
    return openai_refuse(&c->problem, 404, "model_not_found", param,
                         "The model '%.100s' does not exist or you do not have access to it.",
                         name);
}

/* Refuses ids that the model and its adapter do not have. */
static bool check_ids(completion *c)
{
    err e;
    if (vocabulary_acquire(engine_of(c->srv)->vocabularies, c->use.adapter, &c->use.vocab, &e))
        return completion_refuse(c, &e, "model");
    return openai_check_ids(&c->rq, c->use.vocab->n_vocab, &c->problem);
}

/* A model without an output layer can only make vectors. */
static bool makes_text(completion *c)
{
    if (c->ask.pooled || !model_get_config(engine_of(c->srv)->model)->headless) return true;
    return openai_refuse(&c->problem, 400, "unsupported_model", "model",
                         "this model has no output layer and makes no text: it answers "
                         "/v1/embeddings, /v1/rerank, /v1/score and, with a head of classes, "
                         "/v1/classify");
}

bool completion_pin(completion *c, const char *name, const char *param, const adapter_version **out)
{
    err e;
    if (!auth_may_use_model(c->x, name)) return completion_no_such_model(c, name, param);
    int64_t retry_ms,
        until_us = clock_now_us() + c->x->conf->classes.each[c->use.slo_class].ttft_us;
    err_code rc = depot_acquire(adapters_of(c->srv)->depot, registry_of(c->srv),
                                c->x->caller->tenant.id, name, until_us, out, &retry_ms, &e);
    if (rc == ERR_NOT_FOUND || rc == ERR_INPUT) return completion_no_such_model(c, name, param);
    if (rc == ERR_ELSEWHERE) exchange_retry_after(c->x, retry_ms);
    return rc ? completion_refuse(c, &e, param) : true;
}

void completion_label(const completion *c, const char *name, const adapter_version *v, char *out,
                      size_t cap)
{
    const char *slash = strchr(name, '/');
    bool others = slash && v->tenant_id != c->x->caller->tenant.id;
    snprintf(out, cap, "%.*s%s@%d", others ? (int)(slash - name) + 1 : 0, name, v->name,
             v->version);
}

bool completion_use_model(completion *c, const char *name, const char *param)
{
    if (strcmp(name, process_of(c->srv)->cfg->model.name) == 0) {
        snprintf(c->use.label, sizeof(c->use.label), "%.*s", MODEL_LABEL_MAX, name);
        return auth_may_use_model(c->x, name) || completion_no_such_model(c, name, param);
    }
    if (!completion_pin(c, name, param, &c->use.adapter)) return false;
    c->use.counted = c->use.adapter;
    completion_label(c, name, c->use.adapter, c->use.label, sizeof(c->use.label));
    return true;
}

static bool resolve_once(completion *c)
{
    if (c->rq.n_adapters > 0) return completion_resolve_stack(c);
    return completion_use_model(c, c->rq.model, "model") ||
           (c->problem.status == 404 && completion_resolve_named(c));
}

static bool is_unknown(const completion *c)
{
    return c->problem.status == 404 && c->rq.n_adapters == 0;
}

static bool resolve_again(completion *c)
{
    c->problem = (openai_problem){0};
    return resolve_once(c);
}

/* Fetches the adapter, if the tenant's come from another server and this is the first request for
 * it. */
static bool fetch_model(completion *c)
{
    int64_t retry_ms,
        until_us = clock_now_us() + c->x->conf->classes.each[c->use.slo_class].ttft_us;
    err e;
    if (!adapters_of(c->srv)->first_fetch || !auth_may_use_model(c->x, c->rq.model)) return false;
    err_code rc = adapters_of(c->srv)->first_fetch(c->x, c->rq.model, until_us, &retry_ms, &e);
    if (rc == ERR_NOT_FOUND) return false;
    if (!rc) return resolve_again(c);
    c->problem = (openai_problem){0};
    exchange_retry_after(c->x, retry_ms);
    return completion_refuse(c, &e, "model");
}

/* In a fleet, another server may have created it a moment ago. */
static bool resolve_model(completion *c)
{
    if (resolve_once(c)) return true;
    if (is_unknown(c) && store_in_fleet(store_of(c->srv))) {
        store_catch_up(store_of(c->srv), CATCH_UP_US);
        if (resolve_again(c)) return true;
    }
    return is_unknown(c) && fetch_model(c);
}

/* ---------------------------------------------------------------- tokens -- */

/* OpenAI's sentences: clients look for "maximum context length is" and the numbers behind it
 * (docs/reference/clients.md has the list). */
static bool too_long(completion *c, int64_t n)
{
    int context = sched_max_context(sched_of(c->srv)), asked = c->rq.max_tokens;
    bool alone = n >= context && !(n == context && asked == 0);
    const char *what = c->rq.chat ? "messages" : "prompt";
    const char *param = alone ? what : "max_tokens";
    if (alone || asked < 0)
        (void)openai_refuse(&c->problem, 400, "context_length_exceeded", param,
                            "This model's maximum context length is %d tokens. However, your %s "
                            "resulted in %lld tokens. Please reduce the length of the %s.",
                            context, what, (long long)n, what);
    else
        (void)openai_refuse(&c->problem, 400, "context_length_exceeded", param,
                            "This model's maximum context length is %d tokens. However, you "
                            "requested %lld tokens (%lld in the %s, %d in the completion). Please "
                            "reduce the length of the %s or completion.",
                            context, (long long)n + asked, (long long)n, what, asked, what);
    if (c->ask.door && c->ask.door->too_long) c->ask.door->too_long(&c->problem, n, asked, context);
    return false;
}

/* Refuses a text that is too long for any tokenization, before it is tokenised. */
static bool check_bytes(completion *c, const openai_prompt *p)
{
    size_t bytes = prompt_bytes(&c->rq, p);
    int most = sched_max_context(sched_of(c->srv));
    if (c->ask.drop_oldest || c->rq.truncate_prompt >= 0 ||
        vocabulary_may_fit(c->use.vocab, bytes, most))
        return true;
    return openai_refuse(&c->problem, 400, "context_length_exceeded",
                         c->rq.chat ? "messages" : "prompt",
                         "This server's maximum context length is %d tokens; the prompt has %zu "
                         "bytes, and so many tokens have at most %zu.",
                         most, bytes, (size_t)most * c->use.vocab->longest);
}

/* Leaves out about `share` of the messages, the oldest first, except the system's and the last of a
 * user; results of a call are dropped with it.  False: there is nothing to leave out. */
static bool drop_messages(openai_request *rq, double share)
{
    int first = 0, last = rq->n_msgs - 1, from;
    while (first < rq->n_msgs && strstr("system developer", rq->msgs[first].role)) first++;
    while (last > first && strcmp(rq->msgs[last].role, "user") != 0) last--;
    from = first + 1 + (int)(share * (last - first));
    while (from < last && strcmp(rq->msgs[from].role, "user") != 0) from++;
    if (from > last) from = last;
    if (from <= first) return false;
    memmove(&rq->msgs[first], &rq->msgs[from], (size_t)(rq->n_msgs - from) * sizeof(*rq->msgs));
    rq->n_msgs -= from - first;
    return true;
}

/* A prompt in ids, *made malloced.  With drop_oldest, messages are left out until it fits. */
static int64_t encode(completion *c, const openai_prompt *p, int32_t **made, err *e)
{
    int64_t most =
        sched_max_context(sched_of(c->srv)) - (c->rq.max_tokens > 0 ? c->rq.max_tokens : 1);
    for (;;) {
        int64_t n = prompt_encode(c->x, c->use.vocab->tok, &c->rq, c->use.tools, p, made,
                                  &c->use.encode_us, e);
        if (!c->ask.drop_oldest || n <= most) return n;
        if (!drop_messages(&c->rq, 0.5 * (double)(n - most) / (double)n)) return n;
        free(*made);
    }
}

/* Text to ids, cut if asked for, checked against the context. */
static bool tokenise(completion *c, openai_prompt *p)
{
    err e;
    if (!p->ids) {
        int32_t *made;
        if (!check_bytes(c, p)) return false;
        int64_t n = encode(c, p, &made, &e);
        if (n < 0) return completion_refuse(c, &e, c->rq.chat ? "messages" : "prompt");
        int64_t most = c->rq.truncate_prompt >= 0 ? INT32_MAX : sched_max_context(sched_of(c->srv));
        int32_t *ids = n <= most ? arena_calloc(&c->x->arena, (size_t)n + 1, sizeof(*ids)) : NULL;
        if (ids) memcpy(ids, made, (size_t)n * sizeof(*ids));
        free(made);
        if (!ids) return n <= most ? completion_no_memory(c) : too_long(c, n);
        p->ids = ids;
        p->n_ids = (int)n;
    }
    int excess = (int)prompt_excess(&c->rq, p->n_ids);
    assert(excess >= 0 && excess <= p->n_ids);
    p->ids += excess;
    p->n_ids -= excess;
    if (p->n_ids == 0) {
        return openai_refuse(&c->problem, 400, "empty_prompt", c->rq.chat ? "messages" : "prompt",
                             "the prompt has no tokens");
    }
    if (c->rq.chat) {
        c->use.thinking = engine_of(c->srv)->thinking;
        c->use.start = prompt_start(engine_of(c->srv), c->use.vocab->tok, &c->rq, c->use.tools,
                                    p->ids, p->n_ids);
    }
    int room = sched_max_context(sched_of(c->srv)) - p->n_ids;
    if (room < (c->rq.max_tokens == 0 ? 0 : 1)) return too_long(c, p->n_ids);
    return c->rq.max_tokens <= room || too_long(c, p->n_ids);
}

static bool tokenise_all(completion *c)
{
    if (c->ask.pooled) return completion_pooled_prompts(c);
    if (c->rq.chat) {
        if (!prompt_open_chat(engine_of(c->srv), &c->rq, &c->use.tools, &c->problem)) return false;
        c->rq.prompts = arena_calloc(&c->x->arena, 1, sizeof(*c->rq.prompts));
        if (!c->rq.prompts) return completion_no_memory(c);
    }
    for (int i = 0; i < c->rq.n_prompts; i++) {
        if (!tokenise(c, &c->rq.prompts[i])) return false;
    }
    return true;
}

/* Leaves each id once; returns how many. */
static int each_once(int32_t *ids, int n)
{
    int kept = 0;
    for (int i = 0, k; i < n; i++) {
        for (k = 0; k < kept && ids[k] != ids[i]; k++) continue;
        if (k == kept) ids[kept++] = ids[i];
    }
    return kept;
}

/* The model's end-of-sequence ids, the adapter's, the template's, and the request's own. */
static bool set_stop_ids(completion *c)
{
    sampling *r = &c->rq.rules;
    int32_t *ids = arena_calloc(&c->x->arena, STOP_IDS_MAX, sizeof(*ids));
    if (!ids) return completion_no_memory(c);
    int n = 0;
    if (!r->ignore_eos) {
        const model_config *mc = model_get_config(engine_of(c->srv)->model);
        for (int i = 0; i < mc->n_eos; i++) ids[n++] = mc->eos_id[i];
        if (c->use.vocab->eos >= 0) ids[n++] = c->use.vocab->eos;
        if (engine_of(c->srv)->chat)
            n += chat_stop_ids(engine_of(c->srv)->chat, ids + n, CHAT_STOP_MAX);
    }
    for (int i = 0; i < r->n_stop_id; i++) ids[n++] = r->stop_id[i];
    assert(n <= STOP_IDS_MAX);
    r->stop_id = ids;
    r->n_stop_id = each_once(ids, n);
    return true;
}

/* ---------------------------------------------------------- limits, classes -- */

/* vLLM's `priority` as a class, as far as the tenant may use it. */
static const char *tier_of(const completion *c)
{
    if (c->rq.service_tier || c->rq.priority == 0) return c->rq.service_tier;
    char reason[128];
    const char *tier = c->rq.priority < 0 ? "priority" : "flex";
    bool may = tenant_class(&c->x->conf->classes, &c->x->caller->tenant, tier, reason,
                            sizeof(reason)) >= 0;
    return may ? tier : NULL;
}

/* The class of a batch is fixed; a body that names another is refused. */
static bool pick_inner_class(completion *c)
{
    const char *tier = c->rq.service_tier;
    c->use.slo_class = c->x->inner->slo_class;
    class_tier(&c->x->conf->classes, c->use.slo_class, c->use.tier);
    bool same = !tier || class_of_tier(&c->x->conf->classes, tier) == c->use.slo_class;
    return same || openai_refuse(&c->problem, 400, "invalid_value", "service_tier",
                                 "a line of a batch runs in the class '%s': leave 'service_tier' "
                                 "out, or say \"auto\"",
                                 engine_of(c->srv)->class_name[c->use.slo_class]);
}

static bool pick_class(completion *c)
{
    if (c->x->inner) return pick_inner_class(c);
    char reason[256];
    c->use.slo_class = tenant_class(&c->x->conf->classes, &c->x->caller->tenant, tier_of(c), reason,
                                    sizeof(reason));
    if (c->use.slo_class >= 0) {
        class_tier(&c->x->conf->classes, c->use.slo_class, c->use.tier);
        return true;
    }
    return openai_refuse(&c->problem, 400, "invalid_value", "service_tier", "%s", reason);
}

int completion_output_room(const completion *c, const openai_prompt *p)
{
    int room = sched_max_context(sched_of(c->srv)) - p->n_ids;
    int most = model_get_config(engine_of(c->srv)->model)->gen_max_tokens;
    if (c->rq.max_tokens >= 0) return c->rq.max_tokens;
    return most > 0 && most < room ? most : room;
}

static bool limited(completion *c, const limits_adapter *a, const limits_refusal *why)
{
    if (strcmp(why->code, http_status_of(ERR_NOMEM)->code) == 0) return completion_no_memory(c);
    ratelimit_headers(c->x, tenants_of(c->srv)->limits, a);
    ratelimit_refuse(c->x, why);
    if (why->limit)
        stats_limited(process_of(c->srv)->stats, c->x->caller->tenant.id, why->scope, why->limit);
    telemetry_refuse(sched_telemetry(sched_of(c->srv)), c->use.slo_class, c->x->caller->tenant.id,
                     OUTCOME_LIMITED, MISS_NONE);
    stats_refused(process_of(c->srv)->stats, c->x->caller->tenant.id, c->use.slo_class, MISS_NONE);
    c->problem = (openai_problem){.status = why->status, .type = why->type, .code = why->code};
    snprintf(c->problem.msg, sizeof(c->problem.msg), "%s", why->msg);
    return false;
}

/* The limits of its adapter, if it has one. */
static const limits_adapter *adapter_limits_of(const completion *c, limits_adapter *of)
{
    if (!c->use.counted) return NULL;
    registry_limits(registry_of(c->srv), c->use.counted, &of->id, &of->limits);
    return of;
}

/* Before a long prompt is tokenised for a request that is refused anyway. */
static bool ask_limits(completion *c)
{
    limits_refusal why;
    limits_adapter of;
    const limits_adapter *a = adapter_limits_of(c, &of);
    int64_t began_us = clock_now_us();
    bool may =
        limits_ask(tenants_of(c->srv)->limits, &c->x->caller->key, &c->x->caller->tenant, a, &why);
    c->use.limits_us += clock_now_us() - began_us;
    return may || limited(c, a, &why);
}

/* If usage can't be recorded, requests are refused before they cost anything. */
static bool ask_spool(completion *c)
{
    meter_file_stats st;
    meter_file_stats_get(engine_of(c->srv)->meters, &st);
    return !st.full || completion_no_spool(c);
}

static void add_surcharge(const completion *c, const adapter_version *v, token_price *p)
{
    assert(p->prompt >= 0 && p->cached >= 0 && p->output >= 0);
    limits_adapter of;
    if (!v) return;
    registry_limits(registry_of(c->srv), v, &of.id, &of.limits);
    price_add(p, &of.limits.surcharge);
}

/* The class's price, plus the surcharge of each adapter. */
static token_price price_of(const completion *c)
{
    const config_class *k = &c->x->conf->classes.each[c->use.slo_class];
    token_price p = {.prompt = k->price_prompt,
                     .cached = k->price_cached < 0 ? k->price_prompt : k->price_cached,
                     .output = k->price_output};
    add_surcharge(c, c->use.adapter, &p);
    for (int i = 0; c->use.stack && i < c->use.stack->n; i++) add_surcharge(c, c->use.part[i], &p);
    return p;
}

static bool reserve(completion *c)
{
    int64_t prompt = 0, output = 0;
    for (int i = 0; i < c->rq.n_prompts; i++) {
        prompt += c->rq.prompts[i].n_ids;
        int made = c->rq.beams.width > 0 ? c->rq.beams.width : c->rq.n;
        output += (int64_t)made * completion_output_room(c, &c->rq.prompts[i]);
    }
    c->use.price = price_of(c);
    int64_t tokens = prompt + output, cost = price_cost_most(&c->use.price, prompt, output);
    assert(tokens >= 0 && cost >= 0);
    limits_refusal why;
    limits_adapter of;
    const limits_adapter *a = adapter_limits_of(c, &of);
    int64_t began_us = clock_now_us();
    bool may = limits_reserve(tenants_of(c->srv)->limits, &c->x->caller->key, &c->x->caller->tenant,
                              a, tokens, cost, &c->use.ticket, &why);
    c->use.limits_us += clock_now_us() - began_us;
    if (!may) return limited(c, a, &why);
    ratelimit_headers(c->x, tenants_of(c->srv)->limits, a);
    return true;
}

/* ------------------------------------------------------- what must not come -- */

/* Forbids a word's tokens, both with and without a space before it. */
static bool forbid_word(completion *c, const char *word, size_t len)
{
    assert(len <= OPENAI_BAD_WORD_BYTES_MAX);
    char text[OPENAI_BAD_WORD_BYTES_MAX + 2] = " ";
    int32_t ids[BARS_SEQUENCE_MAX];
    size_t skip = strspn(word, " \t\n\v\f\r");
    memcpy(text + 1, word + skip, len - skip);
    for (int spaced = 0; spaced < 2; spaced++) {
        int64_t n = tokenizer_encode(c->use.vocab->tok, text + !spaced, len - skip + (size_t)spaced,
                                     TOK_PARSE_SPECIAL, ids, BARS_SEQUENCE_MAX);
        if (n < 0) return completion_no_memory(c);
        if (n > BARS_SEQUENCE_MAX) {
            return openai_refuse(&c->problem, 400, "invalid_value", "bad_words",
                                 "a word of 'bad_words' has more than %d tokens",
                                 BARS_SEQUENCE_MAX);
        }
        if (!bars_forbid(c->use.bars, ids, (int)n, false)) return completion_no_memory(c);
    }
    return true;
}

/* Those of generation_config.json: each sequence follows its length. */
static bool forbid_model(completion *c)
{
    const model_config *mc = model_get_config(engine_of(c->srv)->model);
    for (int i = 0; i < mc->n_gen_barred; i += 1 + mc->gen_barred[i]) {
        if (!bars_forbid(c->use.bars, mc->gen_barred + i + 1, mc->gen_barred[i], true))
            return completion_no_memory(c);
    }
    return true;
}

static bool find_bars(completion *c)
{
    const openai_request *rq = &c->rq;
    if (!rq->allowed && !rq->n_bad && !model_get_config(engine_of(c->srv)->model)->n_gen_barred)
        return true;
    c->use.bars = bars_create(c->use.vocab->n_vocab, rq->allowed, rq->n_allowed);
    if (!c->use.bars) return completion_no_memory(c);
    if (!forbid_model(c)) return false;
    for (int i = 0; i < rq->n_bad; i++) {
        if (!forbid_word(c, rq->bad[i], strlen(rq->bad[i]))) return false;
    }
    const bars_text nothing = {0};
    uint32_t *room = arena_calloc(&c->x->arena, (size_t)bars_words(c->use.bars), sizeof(*room));
    if (!room) return completion_no_memory(c);
    if (bars_mask(c->use.bars, NULL, 0, &nothing, room)) return true;
    return openai_refuse(&c->problem, 400, "invalid_value",
                         rq->allowed ? "allowed_token_ids" : "bad_words",
                         "no token is left that may come");
}

/* If the arguments' schemas can't be kept, the grammar of calls with any arguments. */
static err_code loosen(completion *c, err *e)
{
    err_code rc = openai_loosen_calls(&c->rq, engine_of(c->srv)->grammars, e);
    return rc ? rc : grammar_acquire(engine_of(c->srv)->grammars, &c->rq.format, &c->use.form, e);
}

/* Which field a form that does not compile came from: a format beside tools is tried alone. */
static const char *field_of(completion *c, err *e)
{
    err own;
    grammar_spec answer;
    grammar *g = NULL;
    if (!grammar_answer_of(&c->rq.format, &answer)) return c->rq.format_param;
    err_code rc = grammar_acquire(engine_of(c->srv)->grammars, &answer, &g, &own);
    grammar_release(g);
    if (rc) *e = own;
    return rc || e->code == ERR_INPUT ? c->rq.format_param : "tools";
}

/* What the answer must be, compiled; on this worker, after the limits are reserved. */
static bool compile_form(completion *c)
{
    err e;
    grammar_spec answer;
    bool formed = grammar_answer_of(&c->rq.format, &answer);
    /* Tokens that only an adapter has can't be in a grammar. */
    if (c->rq.guided && !formed && c->use.vocab->tok != engine_of(c->srv)->tok &&
        !openai_free_calls(&c->rq, &c->problem))
        return false;
    if (!c->rq.format_param) return true;
    err_code rc = grammar_acquire(engine_of(c->srv)->grammars, &c->rq.format, &c->use.form, &e);
    if (rc && rc != ERR_NOMEM && c->rq.guided) rc = loosen(c, &e);
    if (rc == ERR_LIMIT && c->rq.guided && !formed)
        return openai_free_calls(&c->rq, &c->problem); /* all together */
    if (!rc) return true;
    if (rc == ERR_NOMEM) return completion_refuse(c, &e, c->rq.format_param);
    const char *param = field_of(c, &e);
    return openai_refuse(&c->problem, 400,
                         e.code == ERR_UNSUPPORTED ? "unsupported_parameter" : "invalid_value",
                         param, "%s: %s", param, e.msg);
}

/* Whether the prompts invoke an activated adapter: PEFT runs the others bare, and so do we.  False:
 * the base would answer, which the tenant may not use. */
static bool check_invoked(completion *c)
{
    int n = 0, of = c->rq.n_prompts;
    if (c->use.vocab->n_invocation == 0) return true;
    for (int i = 0; i < of; i++) {
        const openai_prompt *p = &c->rq.prompts[i];
        n += vocabulary_invoked_at(c->use.vocab, p->ids, p->n_ids) >= 0;
    }
    const char *word = n == of ? "true" : n == 0 ? "false" : "some";
    exchange_add_header(c->x, "x-adapter-invoked", "%s", word);
    exchange_note(c->x, "invoked", "%s", word);
    if (n == of || auth_may_use_model(c->x, process_of(c->srv)->cfg->model.name)) return true;
    return openai_refuse(&c->problem, 400, "invalid_value", c->rq.chat ? "messages" : "prompt",
                         "the prompt does not invoke '%.100s': the base would answer it, and you "
                         "do not have access to the base",
                         c->rq.model);
}

/* Headers that identify the weights by their digest. */
static void tell_version(completion *c)
{
    char hex[DIGEST_HEX];
    if (!c->use.adapter && !c->use.stack) return;
    digest_hex(c->use.stack ? c->use.stack->digest : c->use.adapter->digest, hex);
    exchange_add_header(c->x, "x-adapter-version", "%s", c->use.label);
    exchange_add_header(c->x, "x-adapter-digest", "%s", hex);
}

bool completion_admit(completion *c, bool chat)
{
    if (!read_body(c, chat)) return false;
    int64_t began_us = clock_now_us() - clock_thread_us();
    if (!pick_class(c) || !resolve_model(c) || !makes_text(c) || !check_ids(c)) return false;
    if (!completion_resume(c)) return false;
    if (!ask_limits(c) || !ask_spool(c) || !tokenise_all(c)) return false;
    if (!check_invoked(c)) return false;
    if (!c->ask.pooled && (!set_stop_ids(c) || !find_bars(c))) return false;
    if (!reserve(c)) return false;
    c->run.stalled_us =
        clock_now_us() - clock_thread_us() - began_us - c->use.limits_us - c->use.encode_us;
    if (!compile_form(c)) return false;
    int n = c->rq.n * c->rq.n_prompts;
    assert(n > 0 && !c->run.choices);
    c->run.choices = calloc((size_t)n, sizeof(*c->run.choices));
    if (!c->run.choices) {
        return completion_no_memory(c);
    }
    c->run.n_choices = n;
    tell_version(c);
    for (int i = 0; i < c->rq.n_ignored; i++) exchange_ignored_param(c->x, c->rq.ignored[i]);
    return true;
}
