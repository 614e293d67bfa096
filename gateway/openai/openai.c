/* openai.c -- one table says what becomes of each field; small functions
 * read them (openai_inside.h).
 *
 * The table is the promise of the API: a field that is not in it is unknown and is reported as
 * ignored.  Names are matched case-sensitively.
 */
#include "gateway/openai/openai.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_inside.h"
#include "gateway/openai/openai_tools.h"

typedef enum { TAKEN, IGNORED, REFUSED } field_fate;
enum { CHAT = 1, TEXT = 2, BOTH = 3, TOKENIZE = 4 };

typedef struct {
    const char *name;
    int where;
    field_fate fate;
} field;

static const field fields[] = {
    {"model", BOTH, TAKEN},
    {"adapters", BOTH, TAKEN},
    {"messages", CHAT, TAKEN},
    {"prompt", TEXT, TAKEN},
    {"echo", TEXT, TAKEN},
    {"best_of", BOTH, TAKEN},
    {"suffix", TEXT, REFUSED},
    {"max_tokens", BOTH, TAKEN},
    {"max_completion_tokens", CHAT, TAKEN},
#define SAMPLING(kind, name, low, high, neutral, most, gguf) {#name, BOTH, TAKEN},
    SAMPLING_LIST(SAMPLING) /* sampling_list.h */
#undef SAMPLING
    {"logit_bias", BOTH, TAKEN},
    {"seed", BOTH, TAKEN},
    {"n", BOTH, TAKEN},
    {"use_beam_search", BOTH, TAKEN},
    {"length_penalty", BOTH, TAKEN},
    {"early_stopping", BOTH, TAKEN},
    {"stop", BOTH, TAKEN},
    {"stop_token_ids", BOTH, TAKEN},
    {"include_stop_str_in_output", BOTH, TAKEN},
    {"skip_special_tokens", BOTH, TAKEN},
    {"add_special_tokens", TEXT, TAKEN},
    {"parse_special", TEXT, TAKEN},
    {"add_generation_prompt", CHAT, TAKEN},
    {"truncate_prompt_tokens", BOTH, TAKEN},
    {"return_token_ids", BOTH, TAKEN},
    {"return_tokens_as_token_ids", BOTH, TAKEN},
    {"logprobs", BOTH, TAKEN},
    {"logprobs_mode", BOTH, TAKEN},
    {"top_logprobs", CHAT, TAKEN},
    {"stream", BOTH, TAKEN},
    {"stream_options", BOTH, TAKEN},
    {"service_tier", BOTH, TAKEN},
    {"cache_salt", BOTH, TAKEN},
    {"priority", BOTH, TAKEN},
    {"response_format", BOTH, TAKEN},
    {"tools", CHAT, TAKEN},
    {"tool_choice", CHAT, TAKEN},
    {"modalities", CHAT, TAKEN},
    {"user", BOTH, IGNORED},
    {"safety_identifier", BOTH, IGNORED},
    {"metadata", BOTH, IGNORED},
    {"store", BOTH, IGNORED},
    {"prompt_cache_key", BOTH, IGNORED},
    {"prompt_cache_retention", BOTH, IGNORED},
    {"parallel_tool_calls", CHAT, TAKEN},
    {"reasoning_effort", CHAT, TAKEN},
    {"thinking_budget", CHAT, TAKEN},
    {"thinking_token_budget", CHAT, TAKEN},
    {"include_reasoning", CHAT, TAKEN},
    {"verbosity", CHAT, IGNORED},
    {"prediction", CHAT, IGNORED},
    {"functions", CHAT, REFUSED},
    {"function_call", CHAT, REFUSED},
    {"audio", CHAT, REFUSED},
    {"web_search_options", CHAT, REFUSED},
    {"chat_template", BOTH, REFUSED},
    {"chat_template_kwargs", CHAT, TAKEN},
    {"continue_final_message", CHAT, TAKEN},
    {"documents", CHAT, TAKEN},
    {"prompt_embeds", BOTH, REFUSED},
    {"prompt_logprobs", BOTH, TAKEN},
    {"return_token_strs", TOKENIZE, TAKEN},
    {"structured_outputs", BOTH, TAKEN},
    {"guided_json", BOTH, TAKEN},
    {"guided_regex", BOTH, TAKEN},
    {"guided_choice", BOTH, TAKEN},
    {"guided_grammar", BOTH, TAKEN},
    {"guided_whitespace_pattern", BOTH, REFUSED},
    {"structural_tag", BOTH, REFUSED},
    {"guided_decoding_backend", BOTH, IGNORED},
    {"grammar", BOTH, TAKEN},
    {"json_schema", BOTH, REFUSED},
    {"bad_words", BOTH, TAKEN},
    {"allowed_token_ids", BOTH, TAKEN},
    {"lora", BOTH, REFUSED},
    {"adapter_path", BOTH, REFUSED},
    {"merged_adapters", BOTH, REFUSED},
    {"n_discard", BOTH, REFUSED},
    {"id_slot", BOTH, REFUSED},
    {"tenant", BOTH, REFUSED},
};

bool openai_refuse(openai_problem *p, int status, const char *code, const char *param,
                   const char *fmt, ...)
{
    p->status = status;
    p->type = status == 429 ? "rate_limit_error" : "invalid_request_error";
    p->code = code;
    snprintf(p->param, sizeof(p->param), "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->msg, sizeof(p->msg), fmt, ap);
    va_end(ap);
    return false;
}

static bool above(openai_problem *p, const char *param, const int32_t *ids, int n, int n_vocab)
{
    for (int i = 0; i < n; i++) {
        if (ids[i] < n_vocab) continue;
        (void)openai_refuse(p, 400, "invalid_value", param,
                            "'%s' must hold whole token ids from 0 to %d", param, n_vocab - 1);
        return true;
    }
    return false;
}

bool openai_check_ids(const openai_request *rq, int n_vocab, openai_problem *p)
{
    for (int i = 0; i < rq->n_prompts && rq->prompts; i++) {
        const openai_prompt *one = &rq->prompts[i];
        if (one->ids && above(p, "prompt", one->ids, one->n_ids, n_vocab)) return false;
    }
    if (above(p, "allowed_token_ids", rq->allowed, rq->n_allowed, n_vocab)) return false;
    for (int i = 0; i < rq->rules.n_bias; i++) {
        if (rq->rules.bias[i].token < n_vocab) continue;
        return openai_refuse(p, 400, "invalid_value", "logit_bias",
                             "a key of 'logit_bias' is not a token id from 0 to %d", n_vocab - 1);
    }
    return !above(p, "stop_token_ids", rq->rules.stop_id, rq->rules.n_stop_id, n_vocab);
}

/* ------------------------------------------------------- lengths, choices -- */

static bool take_max_tokens(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    int old_name = -1, new_name = -1;
    int lo = rq->echo || (!rq->chat && rq->prompt_top >= 0) ? 0 : 1; /* 0: score the prompt alone */
    int hi = INT32_MAX; /* what does not fit is told with the length of the prompt */
    if (!openai_take_int(ps, "max_tokens", lo, hi, &old_name)) return false;
    if (rq->chat && !openai_take_int(ps, "max_completion_tokens", 1, hi, &new_name)) return false;
    if (old_name >= 0 && new_name >= 0 && old_name != new_name) {
        return openai_refuse(ps->p, 400, "invalid_value", "max_tokens",
                             "'max_tokens' and 'max_completion_tokens' differ: give one");
    }
    rq->max_tokens = new_name >= 0 ? new_name : old_name;
    if (rq->max_tokens < 0 && !rq->chat && ps->lim->max_new_tokens <= 0)
        rq->max_tokens = OPENAI_TEXT_MAX_TOKENS;
    if (rq->max_tokens >= 0 && rq->rules.min_tokens > rq->max_tokens) {
        return openai_refuse(ps->p, 400, "invalid_value", "min_tokens",
                             "'min_tokens' is greater than 'max_tokens'");
    }
    return true;
}

/* One of `adapters`: {"name": text, "scale": number, 1 where it is absent}. */
static bool take_adapter(openai_parser *ps, const cJSON *v, openai_adapter *out)
{
    const cJSON *of, *o = cJSON_IsObject(v) ? v : NULL, *scale = o ? json_get(o, "scale") : NULL;
    char param[32];
    snprintf(param, sizeof(param), "adapters[%d]", ps->rq->n_adapters);
    *out = (openai_adapter){o ? cJSON_GetStringValue(json_get(o, "name")) : NULL, 1};
    if (!out->name || !out->name[0] || strlen(out->name) > 256)
        return openai_refuse(ps->p, 400, "invalid_value", param,
                             "'%s' must be an object with a 'name' of 1 to 256 bytes", param);
    cJSON_ArrayForEach(of, o)
    {
        bool known = strcmp(of->string, "name") == 0 || strcmp(of->string, "scale") == 0;
        if (!known && !openai_note_unread(ps, param, of->string)) return false;
    }
    if (openai_is_set(scale)) out->scale = (float)cJSON_GetNumberValue(scale);
    if (!(fabsf(out->scale) <= OPENAI_ADAPTER_SCALE_MAX) || out->scale == 0)
        return openai_refuse(ps->p, 400, "invalid_value", param,
                             "the 'scale' of '%s' must be a number from -%d to %d, and not 0",
                             param, OPENAI_ADAPTER_SCALE_MAX, OPENAI_ADAPTER_SCALE_MAX);
    return true;
}

static bool take_adapters(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    const cJSON *list, *v;
    if (!openai_take_array(ps, "adapters", 1, OPENAI_ADAPTERS_MAX, "adapters", &list)) return false;
    cJSON_ArrayForEach(v, list)
    {
        if (!take_adapter(ps, v, &rq->adapters[rq->n_adapters])) return false;
        rq->n_adapters++;
    }
    return true;
}

/* -1: as many as leave room for the answer. */
static bool take_truncation(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    int keep = 0, answer = rq->max_tokens >= 0 ? rq->max_tokens : 1;
    if (!openai_take_int(ps, "truncate_prompt_tokens", -1, ps->lim->max_context, &keep))
        return false;
    if (keep > 0) rq->truncate_prompt = keep;
    if (keep < 0)
        rq->truncate_prompt = answer < ps->lim->max_context ? ps->lim->max_context - answer : 1;
    if (keep || !openai_is_set(json_get(ps->body, "truncate_prompt_tokens"))) return true;
    return openai_refuse(ps->p, 400, "invalid_value", "truncate_prompt_tokens",
                         "'truncate_prompt_tokens' must be -1 or a number from 1 to %d",
                         ps->lim->max_context);
}

static bool take_stream(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    if (!openai_take_bool(ps, "stream", &rq->stream)) return false;
    const cJSON *opt = json_get(ps->body, "stream_options");
    if (!openai_is_set(opt)) return true;
    if (!cJSON_IsObject(opt)) {
        return openai_refuse(ps->p, 400, "invalid_value", "stream_options",
                             "'stream_options' must be an object");
    }
    if (!rq->stream) {
        return openai_refuse(ps->p, 400, "invalid_value", "stream_options",
                             "'stream_options' needs 'stream': true");
    }
    const cJSON *each;
    cJSON_ArrayForEach(each, opt)
    {
        /* Without padding is how streams are: only who asks for it gets something else. */
        bool done = strcmp(each->string, "include_usage") == 0 ||
                    strcmp(each->string, "continuous_usage_stats") == 0 ||
                    (strcmp(each->string, "include_obfuscation") == 0 && cJSON_IsFalse(each));
        if (!done && openai_is_set(each) && !openai_note_unread(ps, "stream_options", each->string))
            return false;
    }
    openai_parser inner = *ps;
    inner.body = opt;
    return openai_take_bool(&inner, "include_usage", &rq->include_usage) &&
           openai_take_bool(&inner, "continuous_usage_stats", &rq->continuous_usage);
}

/* ----------------------------------------- fields with one supported value -- */

static bool check_modalities(openai_parser *ps)
{
    const cJSON *v = json_get(ps->body, "modalities");
    if (!openai_is_set(v)) return true;
    const cJSON *first = cJSON_IsArray(v) ? v->child : NULL;
    if (first && !first->next && cJSON_IsString(first) && strcmp(first->valuestring, "text") == 0) {
        return true;
    }
    return openai_refuse(ps->p, 400, "unsupported_parameter", "modalities",
                         "'modalities' is supported with [\"text\"] only");
}

/* ----------------------------------------------------------------- the whole -- */

static const field *find_field(const char *name, int where)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if ((fields[i].where & where) && strcmp(fields[i].name, name) == 0) return &fields[i];
    }
    return NULL;
}

/* Refuses what cannot be honoured, and notes what has no effect. */
static bool sort_fields(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    const cJSON *v;
    cJSON_ArrayForEach(v, ps->body)
    {
        int where = (rq->chat ? CHAT : TEXT) | (ps->lim->tokenize ? TOKENIZE : 0);
        const field *f = find_field(v->string, where);
        if (cJSON_IsNull(v) || (f && f->fate == TAKEN) || openai_selects_adapter(v->string))
            continue;
        bool adapters = f && (strstr(f->name, "adapter") || strcmp(f->name, "lora") == 0);
        if (adapters && f->fate == REFUSED) {
            return openai_refuse(ps->p, 400, "unsupported_parameter", f->name,
                                 "'%s' is not supported: name the adapter in 'model', or several "
                                 "in 'adapters'",
                                 f->name);
        }
        if (f && f->fate == REFUSED) {
            return openai_refuse(ps->p, 400, "unsupported_parameter", f->name,
                                 "'%s' is not supported", f->name);
        }
        if (!f && ps->lim->strict) {
            return openai_refuse(ps->p, 400, "unknown_parameter", v->string,
                                 "Unrecognized request argument supplied: %.60s", v->string);
        }
        if (rq->n_ignored < OPENAI_IGNORED_MAX) rq->ignored[rq->n_ignored++] = v->string;
    }
    return true;
}

/* What the answer goes on from. */
static bool take_input(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    bool special = true;
    bool ok = rq->chat ? openai_take_messages(ps) && openai_take_variables(ps)
                       : openai_take_prompt(ps) && openai_take_bool(ps, "echo", &rq->echo) &&
                             openai_take_bool(ps, "parse_special", &special);
    rq->plain_special = !special;
    return ok && openai_take_bool(ps, "add_special_tokens", &rq->add_special_tokens);
}

/* How its tokens are chosen, and how many. */
static bool take_tokens(openai_parser *ps)
{
    return openai_take_sampling(ps) && openai_take_prompt_logprobs(ps) && take_max_tokens(ps) &&
           take_truncation(ps) && openai_take_choices(ps) && openai_take_logprobs(ps);
}

/* Fields that say what the answer shows of its tokens. */
static bool take_shape(openai_parser *ps, bool *skip_special)
{
    openai_request *rq = ps->rq;
    return take_stream(ps) &&
           openai_take_bool(ps, "include_stop_str_in_output", &rq->include_stop) &&
           openai_take_bool(ps, "skip_special_tokens", skip_special) &&
           openai_take_bool(ps, "return_token_ids", &rq->return_token_ids) &&
           openai_take_bool(ps, "return_tokens_as_token_ids", &rq->ids_for_tokens) &&
           (!ps->lim->tokenize ||
            openai_take_bool(ps, "return_token_strs", &rq->return_token_strs)) &&
           openai_take_format(rq, ps->body, ps->p) && (!rq->chat || openai_take_tools(ps));
}

/* Fields that say how urgent the request is and what it may use. */
static bool take_service(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    return openai_take_str(ps, "service_tier", 32, &rq->service_tier) &&
           openai_take_str(ps, "cache_salt", OPENAI_SALT_MAX, &rq->cache_salt) &&
           openai_take_int(ps, "priority", -1000000, 1000000, &rq->priority);
}

bool openai_parse(openai_request *out, bool chat, const cJSON *body, const openai_limits *lim,
                  arena *a, openai_problem *p)
{
    *out = (openai_request){.chat = chat,
                            .add_generation_prompt = true,
                            .add_special_tokens = true,
                            .thinking_budget = -1,
                            .truncate_prompt = -1};
    openai_parser ps = {body, lim, a, out, p};
    if (!cJSON_IsObject(body)) {
        return openai_refuse(p, 400, "invalid_value", NULL, "the body must be a JSON object");
    }
    if (!sort_fields(&ps)) return false;
    if (!openai_take_str(&ps, "model", 256, &out->model)) return false;
    if (!lim->tokenize && (!out->model || !out->model[0])) {
        return openai_refuse(p, 400, "missing_required_parameter", "model", "'model' is required");
    }
    if (!openai_select_adapter(body, lim->base, &out->model, p)) return false;
    bool skip_special = true;
    bool ok = take_input(&ps) && take_tokens(&ps) && take_shape(&ps, &skip_special) &&
              take_service(&ps) && check_modalities(&ps) && take_adapters(&ps) &&
              openai_check_beams(&ps);
    if (!ok) return false;
    out->keep_special = !skip_special;
    if (out->service_tier && strcmp(out->service_tier, "auto") == 0) out->service_tier = NULL;
    return true;
}
