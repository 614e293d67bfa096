/* completion_admit.c -- from the body to a request that may run: parsed, its model pinned, its
 * prompt in ids, its limits reserved, the form of its answer compiled.
 */
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

enum { STOP_IDS_MAX = MODEL_EOS_MAX + CHAT_STOP_MAX + OPENAI_STOP_ID_MAX + 1 };
enum { CATCH_UP_US = 300000 }; /* a look at the fleet's journal; one comes every 250 ms anyway */

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
    if (!exchange_read_json(c->x, &tree)) {
        c->problem.status = 0; /* answered already */
        return false;
    }
    openai_limits lim;
    if (c->pooled) return completion_pooled_read(c, tree);
    if (c->door) tree = c->door->translate(c->door_state, c->x, tree, &c->drop_oldest, &c->problem);
    if (!tree) return false;
    prompt_limits(c->x, &lim);
    lim.strict = wants_strict(c);
    return openai_parse(&c->rq, chat, tree, &lim, &c->x->arena, &c->problem);
}

/* The same sentence for a model that is unknown and one that this key may not use. */
static bool no_such_model(completion *c, const char *name, const char *param)
{
    return openai_refuse(&c->problem, 404, "model_not_found", param,
                         "The model '%.100s' does not exist or you do not have access to it.",
                         name);
}

/* Refuses ids that the model and its adapter do not have. */
static bool check_ids(completion *c)
{
    err e;
    if (vocabulary_acquire(c->srv->vocabularies, c->adapter, &c->vocab, &e))
        return completion_refuse(c, &e, "model");
    return openai_check_ids(&c->rq, c->vocab->n_vocab, &c->problem);
}

/* A model without an output layer makes vectors alone. */
static bool makes_text(completion *c)
{
    if (c->pooled || !model_get_config(c->srv->model)->headless) return true;
    return openai_refuse(&c->problem, 400, "unsupported_model", "model",
                         "this model has no output layer and makes no text: it answers "
                         "/v1/embeddings, /v1/rerank, /v1/score and, with a head of classes, "
                         "/v1/classify");
}

bool completion_pin(completion *c, const char *name, const char *param, const adapter_version **out)
{
    err e;
    if (!auth_may_use_model(c->x, name)) return no_such_model(c, name, param);
    int64_t retry_ms, until_us = clock_now_us() + c->x->conf->classes[c->slo_class].ttft_us;
    err_code rc = depot_acquire(c->srv->depot, c->srv->registry, c->x->caller->tenant.id, name,
                                until_us, out, &retry_ms, &e);
    if (rc == ERR_NOT_FOUND || rc == ERR_INPUT) return no_such_model(c, name, param);
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

static bool resolve_once(completion *c)
{
    if (c->rq.n_adapters > 0) return completion_resolve_stack(c);
    if (strcmp(c->rq.model, c->srv->cfg->model_name) == 0) {
        if (!auth_may_use_model(c->x, c->rq.model)) return no_such_model(c, c->rq.model, "model");
        snprintf(c->label, sizeof(c->label), "%.*s", MODEL_LABEL_MAX, c->srv->cfg->model_name);
        return true;
    }
    if (!completion_pin(c, c->rq.model, "model", &c->adapter))
        return c->problem.status == 404 && completion_resolve_named(c);
    c->counted = c->adapter;
    completion_label(c, c->rq.model, c->adapter, c->label, sizeof(c->label));
    return true;
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

/* Where the tenant's adapters come from elsewhere, by its first request. */
static bool fetch_model(completion *c)
{
    int64_t retry_ms, until_us = clock_now_us() + c->x->conf->classes[c->slo_class].ttft_us;
    err e;
    if (!c->srv->first_fetch || !auth_may_use_model(c->x, c->rq.model)) return false;
    err_code rc = c->srv->first_fetch(c->x, c->rq.model, until_us, &retry_ms, &e);
    if (rc == ERR_NOT_FOUND) return false;
    if (!rc) return resolve_again(c);
    c->problem = (openai_problem){0};
    exchange_retry_after(c->x, retry_ms);
    return completion_refuse(c, &e, "model");
}

/* In a fleet another node may have made it a moment ago. */
static bool resolve_model(completion *c)
{
    if (resolve_once(c)) return true;
    if (is_unknown(c) && store_in_fleet(c->srv->store)) {
        store_catch_up(c->srv->store, CATCH_UP_US);
        if (resolve_again(c)) return true;
    }
    return is_unknown(c) && fetch_model(c);
}

/* ---------------------------------------------------------------- tokens -- */

static bool too_long(completion *c, int64_t n)
{
    return openai_refuse(&c->problem, 400, "context_length_exceeded",
                         c->rq.chat ? "messages" : "prompt",
                         "This server's maximum context length is %d tokens; the prompt has %lld.",
                         sched_max_context(c->srv->sched), (long long)n);
}

/* Leaves out about `share` of the messages, the oldest first, but for the system's and the last of
 * a user's; what answers a call goes with it.  False: there is nothing to leave out. */
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

/* A prompt in ids, *made malloced; of one that is too long what was said last, where that is
 * asked for. */
static int64_t encode(completion *c, const openai_prompt *p, int32_t **made, err *e)
{
    int64_t most = sched_max_context(c->srv->sched) - (c->rq.max_tokens > 0 ? c->rq.max_tokens : 1);
    for (;;) {
        int64_t n = prompt_encode(c->srv, c->vocab->tok, &c->rq, c->tools, p, made, e);
        if (!c->drop_oldest || n <= most) return n;
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
        int64_t n = encode(c, p, &made, &e);
        if (n < 0) return completion_refuse(c, &e, c->rq.chat ? "messages" : "prompt");
        int64_t most = c->rq.truncate_prompt >= 0 ? INT32_MAX : sched_max_context(c->srv->sched);
        int32_t *ids = n <= most ? arena_calloc(&c->x->arena, (size_t)n + 1, sizeof(*ids)) : NULL;
        if (ids) memcpy(ids, made, (size_t)n * sizeof(*ids));
        free(made);
        if (!ids) return n <= most ? completion_no_memory(c) : too_long(c, n);
        p->ids = ids;
        p->n_ids = (int)n;
    }
    int excess = (int)prompt_excess(&c->rq, p->n_ids);
    p->ids += excess;
    p->n_ids -= excess;
    if (p->n_ids == 0) {
        return openai_refuse(&c->problem, 400, "empty_prompt", c->rq.chat ? "messages" : "prompt",
                             "the prompt has no tokens");
    }
    if (c->rq.chat) {
        c->thinking = c->srv->thinking;
        c->start = prompt_start(c->srv, c->vocab->tok, &c->rq, c->tools, p->ids, p->n_ids);
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

static bool tokenise_all(completion *c)
{
    if (c->pooled) return completion_pooled_prompts(c);
    if (c->rq.chat) {
        if (!prompt_open_chat(c->srv, &c->rq, &c->tools, &c->problem)) return false;
        c->rq.prompts = arena_calloc(&c->x->arena, 1, sizeof(*c->rq.prompts));
        if (!c->rq.prompts) return completion_no_memory(c);
    }
    for (int i = 0; i < c->rq.n_prompts; i++) {
        if (!tokenise(c, &c->rq.prompts[i])) return false;
    }
    return true;
}

/* The model's end-of-sequence ids, the adapter's, the template's, and the request's own. */
static bool set_stop_ids(completion *c)
{
    sampling *r = &c->rq.rules;
    int32_t *ids = arena_calloc(&c->x->arena, STOP_IDS_MAX, sizeof(*ids));
    if (!ids) return completion_no_memory(c);
    int n = 0;
    if (!r->ignore_eos) {
        const model_config *mc = model_get_config(c->srv->model);
        for (int i = 0; i < mc->n_eos; i++) ids[n++] = mc->eos_id[i];
        if (c->vocab->eos >= 0) ids[n++] = c->vocab->eos;
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
    bool may =
        server_class_of(c->x->conf, &c->x->caller->tenant, tier, reason, sizeof(reason)) >= 0;
    return may ? tier : NULL;
}

/* Its class is settled; a body that names another would be answered with less than it asks. */
static bool pick_inner_class(completion *c)
{
    const char *tier = c->rq.service_tier;
    c->slo_class = c->x->inner->slo_class;
    class_tier(c->x->conf, c->slo_class, c->tier);
    bool same = !tier || class_of_tier(c->x->conf, tier) == c->slo_class;
    return same || openai_refuse(&c->problem, 400, "invalid_value", "service_tier",
                                 "a line of a batch runs in the class '%s': leave 'service_tier' "
                                 "out, or say \"auto\"",
                                 c->srv->class_name[c->slo_class]);
}

static bool pick_class(completion *c)
{
    if (c->x->inner) return pick_inner_class(c);
    char reason[256];
    c->slo_class =
        server_class_of(c->x->conf, &c->x->caller->tenant, tier_of(c), reason, sizeof(reason));
    if (c->slo_class >= 0) {
        class_tier(c->x->conf, c->slo_class, c->tier);
        return true;
    }
    return openai_refuse(&c->problem, 400, "invalid_value", "service_tier", "%s", reason);
}

int completion_output_room(const completion *c, const openai_prompt *p)
{
    int room = sched_max_context(c->srv->sched) - p->n_ids;
    int most = model_get_config(c->srv->model)->gen_max_tokens;
    if (c->rq.max_tokens >= 0) return c->rq.max_tokens;
    return most > 0 && most < room ? most : room;
}

static bool limited(completion *c, const limits_adapter *a, const limits_refusal *why)
{
    if (strcmp(why->code, http_status_of(ERR_NOMEM)->code) == 0) return completion_no_memory(c);
    ratelimit_headers(c->x, c->srv->limits, a);
    ratelimit_refuse(c->x, why);
    telemetry_refuse(sched_telemetry(c->srv->sched), c->slo_class, c->x->caller->tenant.id,
                     OUTCOME_LIMITED, MISS_NONE);
    stats_refused(c->srv->stats, c->x->caller->tenant.id, c->slo_class, MISS_NONE);
    c->problem = (openai_problem){.status = why->status, .type = why->type, .code = why->code};
    snprintf(c->problem.msg, sizeof(c->problem.msg), "%s", why->msg);
    return false;
}

/* The limits of its adapter, if it has one. */
static const limits_adapter *adapter_limits_of(const completion *c, limits_adapter *of)
{
    if (!c->counted) return NULL;
    registry_limits(c->srv->registry, c->counted, &of->id, &of->limits);
    return of;
}

/* Before a prompt of megabytes is tokenised for a request that is refused anyway. */
static bool ask_limits(completion *c)
{
    limits_refusal why;
    limits_adapter of;
    const limits_adapter *a = adapter_limits_of(c, &of);
    int64_t began_us = clock_now_us();
    bool may = limits_ask(c->srv->limits, &c->x->caller->key, &c->x->caller->tenant, a, &why);
    c->limits_us += clock_now_us() - began_us;
    return may || limited(c, a, &why);
}

/* Where usage can't be kept, work is refused before it costs anything. */
static bool ask_spool(completion *c)
{
    meter_file_stats st;
    meter_file_stats_get(c->srv->meters, &st);
    return !st.full || completion_no_spool(c);
}

static bool reserve(completion *c)
{
    int64_t tokens = 0;
    for (int i = 0; i < c->rq.n_prompts; i++) {
        tokens += c->rq.prompts[i].n_ids;
        tokens += (int64_t)c->rq.n * completion_output_room(c, &c->rq.prompts[i]);
    }
    limits_refusal why;
    limits_adapter of;
    const limits_adapter *a = adapter_limits_of(c, &of);
    int64_t began_us = clock_now_us();
    bool may = limits_reserve(c->srv->limits, &c->x->caller->key, &c->x->caller->tenant, a, tokens,
                              &c->ticket, &why);
    c->limits_us += clock_now_us() - began_us;
    if (!may) return limited(c, a, &why);
    ratelimit_headers(c->x, c->srv->limits, a);
    return true;
}

/* ------------------------------------------------------- what must not come -- */

/* A word as it begins a text and as it stands within one. */
static bool forbid_word(completion *c, const char *word, size_t len)
{
    char text[OPENAI_BAD_WORD_BYTES_MAX + 2] = " ";
    int32_t ids[BARS_SEQUENCE_MAX];
    size_t skip = strspn(word, " \t\n\v\f\r");
    memcpy(text + 1, word + skip, len - skip);
    for (int spaced = 0; spaced < 2; spaced++) {
        int64_t n = tokenizer_encode(c->vocab->tok, text + !spaced, len - skip + (size_t)spaced,
                                     TOK_PARSE_SPECIAL, ids, BARS_SEQUENCE_MAX);
        if (n < 0) return completion_no_memory(c);
        if (n > BARS_SEQUENCE_MAX) {
            return openai_refuse(&c->problem, 400, "invalid_value", "bad_words",
                                 "a word of 'bad_words' has more than %d tokens",
                                 BARS_SEQUENCE_MAX);
        }
        if (!bars_forbid(c->bars, ids, (int)n, false)) return completion_no_memory(c);
    }
    return true;
}

/* generation_config.json's: each sequence behind its length. */
static bool forbid_model(completion *c)
{
    const model_config *mc = model_get_config(c->srv->model);
    for (int i = 0; i < mc->n_gen_barred; i += 1 + mc->gen_barred[i]) {
        if (!bars_forbid(c->bars, mc->gen_barred + i + 1, mc->gen_barred[i], true))
            return completion_no_memory(c);
    }
    return true;
}

static bool find_bars(completion *c)
{
    const openai_request *rq = &c->rq;
    if (!rq->allowed && !rq->n_bad && !model_get_config(c->srv->model)->n_gen_barred) return true;
    c->bars = bars_create(c->vocab->n_vocab, rq->allowed, rq->n_allowed);
    if (!c->bars) return completion_no_memory(c);
    if (!forbid_model(c)) return false;
    for (int i = 0; i < rq->n_bad; i++) {
        if (!forbid_word(c, rq->bad[i], strlen(rq->bad[i]))) return false;
    }
    const bars_text nothing = {0};
    uint32_t *room = arena_calloc(&c->x->arena, (size_t)bars_words(c->bars), sizeof(*room));
    if (!room) return completion_no_memory(c);
    if (bars_mask(c->bars, NULL, 0, &nothing, room)) return true;
    return openai_refuse(&c->problem, 400, "invalid_value",
                         rq->allowed ? "allowed_token_ids" : "bad_words",
                         "no token is left that may come");
}

/* What the answer must be, compiled; on this worker, after the limits are reserved. */
static bool compile_form(completion *c)
{
    /* Tokens that only an adapter has can be no part of a form. */
    if (c->rq.guided && c->vocab->tok != c->srv->tok && !openai_free_calls(&c->rq, &c->problem))
        return false;
    if (!c->rq.format_param) return true;
    err e;
    err_code rc = grammar_acquire(c->srv->grammars, &c->rq.format, &c->form, &e);
    if (rc && rc != ERR_NOMEM && c->rq.guided) {
        rc = openai_loosen_calls(&c->rq, c->srv->grammars, &e);
        if (!rc) rc = grammar_acquire(c->srv->grammars, &c->rq.format, &c->form, &e);
        if (rc == ERR_LIMIT) return openai_free_calls(&c->rq, &c->problem); /* all together */
    }
    if (!rc) return true;
    if (rc == ERR_NOMEM) return completion_refuse(c, &e, c->rq.format_param);
    return openai_refuse(&c->problem, 400,
                         rc == ERR_UNSUPPORTED ? "unsupported_parameter" : "invalid_value",
                         c->rq.format_param, "%s: %s", c->rq.format_param, e.msg);
}

/* Whether the prompts invoke an activated adapter: PEFT runs the others bare, and so do we. */
static void tell_invoked(completion *c)
{
    int n = 0, of = c->rq.n_prompts;
    if (c->vocab->n_invocation == 0) return;
    for (int i = 0; i < of; i++) {
        const openai_prompt *p = &c->rq.prompts[i];
        n += vocabulary_invoked_at(c->vocab, p->ids, p->n_ids) >= 0;
    }
    const char *word = n == of ? "true" : n == 0 ? "false" : "some";
    exchange_add_header(c->x, "x-adapter-invoked", "%s", word);
    exchange_note(c->x, "invoked", "%s", word);
}

/* Which weights answer, to the byte. */
static void tell_version(completion *c)
{
    char hex[DIGEST_HEX];
    if (!c->adapter && !c->stack) return;
    digest_hex(c->stack ? c->stack->digest : c->adapter->digest, hex);
    exchange_add_header(c->x, "x-adapter-version", "%s", c->label);
    exchange_add_header(c->x, "x-adapter-digest", "%s", hex);
}

bool completion_admit(completion *c, bool chat)
{
    if (!read_body(c, chat)) return false;
    int64_t began_us = clock_now_us() - clock_thread_us();
    if (!pick_class(c) || !resolve_model(c) || !makes_text(c) || !check_ids(c)) return false;
    if (!completion_resume(c)) return false;
    if (!ask_limits(c) || !ask_spool(c) || !tokenise_all(c)) return false;
    if (!c->pooled && (!set_stop_ids(c) || !find_bars(c))) return false;
    if (!reserve(c)) return false;
    c->stalled_us = clock_now_us() - clock_thread_us() - began_us - c->limits_us;
    if (!compile_form(c)) return false;
    int n = c->rq.n * c->rq.n_prompts;
    c->choices = calloc((size_t)n, sizeof(*c->choices));
    if (!c->choices) {
        return completion_no_memory(c);
    }
    c->n_choices = n;
    tell_version(c);
    tell_invoked(c);
    for (int i = 0; i < c->rq.n_ignored; i++) exchange_ignored_param(c->x, c->rq.ignored[i]);
    return true;
}
