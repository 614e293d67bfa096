/* openai.c -- one table says what becomes of each field; small functions read them.
 *
 * The table is the promise of the API: a field that is not in it is unknown and is reported as
 * ignored.  Names are matched case-sensitively.
 */
#include "gateway/openai/openai.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_format.h"
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
    {"messages", CHAT, TAKEN},
    {"prompt", TEXT, TAKEN},
    {"echo", TEXT, TAKEN},
    {"best_of", TEXT, TAKEN},
    {"suffix", TEXT, REFUSED},
    {"max_tokens", BOTH, TAKEN},
    {"max_completion_tokens", CHAT, TAKEN},
    {"temperature", BOTH, TAKEN},
    {"top_p", BOTH, TAKEN},
    {"top_k", BOTH, TAKEN},
    {"min_p", BOTH, TAKEN},
    {"repetition_penalty", BOTH, TAKEN},
    {"presence_penalty", BOTH, TAKEN},
    {"frequency_penalty", BOTH, TAKEN},
    {"logit_bias", BOTH, TAKEN},
    {"seed", BOTH, TAKEN},
    {"n", BOTH, TAKEN},
    {"stop", BOTH, TAKEN},
    {"stop_token_ids", BOTH, TAKEN},
    {"include_stop_str_in_output", BOTH, TAKEN},
    {"ignore_eos", BOTH, TAKEN},
    {"min_tokens", BOTH, TAKEN},
    {"skip_special_tokens", BOTH, TAKEN},
    {"add_special_tokens", TEXT, TAKEN},
    {"add_generation_prompt", CHAT, TAKEN},
    {"truncate_prompt_tokens", BOTH, TAKEN},
    {"return_token_ids", BOTH, TAKEN},
    {"logprobs", BOTH, TAKEN},
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
    {"guided_grammar", BOTH, REFUSED},
    {"guided_whitespace_pattern", BOTH, REFUSED},
    {"structural_tag", BOTH, REFUSED},
    {"guided_decoding_backend", BOTH, IGNORED},
    {"grammar", BOTH, REFUSED},
    {"json_schema", BOTH, REFUSED},
    {"bad_words", BOTH, TAKEN},
    {"allowed_token_ids", BOTH, TAKEN},
    {"use_beam_search", BOTH, REFUSED},
    {"length_penalty", BOTH, REFUSED},
    {"lora", BOTH, REFUSED},
    {"adapter_id", BOTH, REFUSED},
    {"adapter_path", BOTH, REFUSED},
    {"merged_adapters", BOTH, REFUSED},
    {"n_discard", BOTH, REFUSED},
    {"id_slot", BOTH, REFUSED},
    {"tenant", BOTH, REFUSED},
};

typedef struct {
    const cJSON *body;
    const openai_limits *lim;
    arena *mem;
    openai_request *rq;
    openai_problem *p;
} parser;

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

static bool bad(parser *ps, const char *param, const err *e)
{
    return openai_refuse(ps->p, 400, "invalid_value", param, "%s", e->msg);
}

static bool no_memory(parser *ps, const char *param)
{
    return openai_refuse(ps->p, 400, "request_too_large", param,
                         "'%s' needs more memory than one request may use", param);
}

static bool is_set(const cJSON *v)
{
    return v && !cJSON_IsNull(v);
}

/* Named to the client once, however often it stands there. */
static bool ignore(parser *ps, const char *name)
{
    openai_request *rq = ps->rq;
    for (int i = 0; i < rq->n_ignored; i++) {
        if (strcmp(rq->ignored[i], name) == 0) return true;
    }
    if (rq->n_ignored < OPENAI_IGNORED_MAX) rq->ignored[rq->n_ignored++] = name;
    return true;
}

/* A member that is not known. */
static bool note_ignored(parser *ps, const char *where, const char *name)
{
    size_t cap = strlen(where) + strlen(name) + 2;
    char *full = arena_alloc(ps->mem, cap);
    if (!full) return no_memory(ps, where);
    snprintf(full, cap, "%s.%s", where, name);
    if (ps->lim->strict) {
        return openai_refuse(ps->p, 400, "unknown_parameter", full,
                             "Unrecognized request argument supplied: %.60s", full);
    }
    return ignore(ps, full);
}

/* ---------------------------------------------------------- typed fields -- */

static bool take_int(parser *ps, const char *name, int64_t lo, int64_t hi, int *out)
{
    err e;
    int64_t v = *out;
    if (json_int(ps->body, name, lo, hi, &v, NULL, &e)) return bad(ps, name, &e);
    *out = (int)v;
    return true;
}

static bool take_num(parser *ps, const char *name, double lo, double hi, float *out)
{
    err e;
    double v = (double)*out;
    if (json_num(ps->body, name, lo, hi, &v, NULL, &e)) return bad(ps, name, &e);
    *out = (float)v;
    return true;
}

static bool take_bool(parser *ps, const char *name, bool *out)
{
    err e;
    return json_bool(ps->body, name, out, NULL, &e) ? bad(ps, name, &e) : true;
}

static bool take_str(parser *ps, const char *name, size_t max, const char **out)
{
    err e;
    bool found = false;
    if (json_str(ps->body, name, out, &found, &e)) return bad(ps, name, &e);
    if (found && strlen(*out) > max) {
        return openai_refuse(ps->p, 400, "invalid_value", name, "'%s' is longer than %zu bytes",
                             name, max);
    }
    return true;
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

/* --------------------------------------------------------------- prompts -- */

static bool take_ids(parser *ps, const cJSON *list, const char *param, openai_prompt *out)
{
    int n = cJSON_GetArraySize(list);
    int32_t *ids = arena_calloc(ps->mem, (size_t)n + 1, sizeof(*ids));
    if (!ids) return no_memory(ps, param);
    int i = 0;
    const cJSON *v;
    cJSON_ArrayForEach(v, list)
    {
        double d = cJSON_IsNumber(v) ? v->valuedouble : -1;
        if (!(d >= 0 && d < ps->lim->n_vocab) || d != floor(d)) {
            return openai_refuse(ps->p, 400, "invalid_value", param,
                                 "'%s' must hold whole token ids from 0 to %d", param,
                                 ps->lim->n_vocab - 1);
        }
        ids[i++] = (int32_t)d;
    }
    out->ids = ids;
    out->n_ids = n;
    return true;
}

static bool take_prompt_item(parser *ps, const cJSON *v, const char *param, openai_prompt *out)
{
    if (cJSON_IsString(v)) {
        out->text = v->valuestring;
        out->len = strlen(v->valuestring);
        return true;
    }
    if (cJSON_IsArray(v)) return take_ids(ps, v, param, out);
    return openai_refuse(ps->p, 400, "invalid_value", param,
                         "'%s' must be a string or an array of token ids", param);
}

static bool take_prompt(parser *ps)
{
    openai_request *rq = ps->rq;
    const cJSON *v = json_get(ps->body, "prompt");
    if (!is_set(v)) {
        return openai_refuse(ps->p, 400, "missing_required_parameter", "prompt",
                             "'prompt' is required");
    }
    bool many = cJSON_IsArray(v) && !cJSON_IsNumber(v->child);
    int n = many ? cJSON_GetArraySize(v) : 1;
    if (n < 1 || n > OPENAI_PROMPT_MAX) {
        return openai_refuse(ps->p, 400, "invalid_value", "prompt",
                             "'prompt' must hold 1 to %d prompts", OPENAI_PROMPT_MAX);
    }
    rq->prompts = arena_calloc(ps->mem, (size_t)n, sizeof(*rq->prompts));
    if (!rq->prompts) return no_memory(ps, "prompt");
    rq->n_prompts = n;
    if (!many) return take_prompt_item(ps, v, "prompt", &rq->prompts[0]);
    int i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, v)
    {
        char param[32];
        snprintf(param, sizeof(param), "prompt[%d]", i);
        if (!take_prompt_item(ps, item, param, &rq->prompts[i])) return false;
        i++;
    }
    return true;
}

/* -------------------------------------------------------------- messages -- */

/* The text parts of a content array, joined. */
static bool join_parts(parser *ps, const cJSON *parts, int index, chat_message *m)
{
    char param[64];
    size_t total = 0;
    int i = 0;
    const cJSON *part;
    cJSON_ArrayForEach(part, parts)
    {
        const cJSON *type = cJSON_IsObject(part) ? json_get(part, "type") : NULL;
        const cJSON *text = cJSON_IsObject(part) ? json_get(part, "text") : NULL;
        if (!cJSON_IsString(type) || strcmp(type->valuestring, "text") != 0) {
            snprintf(param, sizeof(param), "messages[%d].content[%d].type", index, i);
            return openai_refuse(ps->p, 400, "invalid_value", param,
                                 "only content parts of type 'text' are supported");
        }
        if (!cJSON_IsString(text)) {
            snprintf(param, sizeof(param), "messages[%d].content[%d].text", index, i);
            return openai_refuse(ps->p, 400, "invalid_value", param, "'text' must be a string");
        }
        total += strlen(text->valuestring);
        i++;
    }
    char *joined = arena_alloc(ps->mem, total + 1);
    if (!joined) return no_memory(ps, "messages");
    m->text = joined;
    m->len = total;
    cJSON_ArrayForEach(part, parts)
    {
        const char *s = json_get(part, "text")->valuestring;
        size_t n = strlen(s);
        memcpy(joined, s, n);
        joined += n;
    }
    return true;
}

static const char *known_role(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        if (strcmp(role, roles[i]) == 0) return roles[i];
    }
    return NULL;
}

static bool message_text(parser *ps, const cJSON *v, int index, const char *name, bool must,
                         const char **out)
{
    char param[64];
    const cJSON *t = json_get(v, name);
    if (cJSON_IsString(t)) *out = t->valuestring;
    if (cJSON_IsString(t) || (!must && !is_set(t))) return true;
    snprintf(param, sizeof(param), "messages[%d].%s", index, name);
    return openai_refuse(ps->p, 400,
                         must && !is_set(t) ? "missing_required_parameter" : "invalid_value", param,
                         "'%s' must be a string", name);
}

static bool take_message(parser *ps, const cJSON *v, int index, chat_message *m)
{
    char param[64];
    snprintf(param, sizeof(param), "messages[%d]", index);
    if (!cJSON_IsObject(v)) {
        return openai_refuse(ps->p, 400, "invalid_value", param, "a message must be an object");
    }
    const cJSON *role = json_get(v, "role");
    m->role = cJSON_IsString(role) ? known_role(role->valuestring) : NULL;
    if (!m->role) {
        snprintf(param, sizeof(param), "messages[%d].role", index);
        return openai_refuse(ps->p, 400, "invalid_value", param,
                             "'role' must be system, developer, user, assistant or tool");
    }
    static const char *const refused[] = {"function_call", "audio"};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (!is_set(json_get(v, refused[i]))) continue;
        snprintf(param, sizeof(param), "messages[%d].%s", index, refused[i]);
        return openai_refuse(ps->p, 400, "unsupported_parameter", param, "'%s' is not supported",
                             refused[i]);
    }
    /* What answers have beside these comes back in histories: it is read by nobody, and said so. */
    static const char *const read[] = {
        "role",         "content",           "name",        "tool_calls",
        "tool_call_id", "reasoning_content", "annotations", NULL};
    const cJSON *each;
    cJSON_ArrayForEach(each, v)
    {
        int i = 0;
        while (read[i] && strcmp(read[i], each->string) != 0) i++;
        if (!read[i] && is_set(each) && !note_ignored(ps, "messages", each->string)) return false;
    }
    const cJSON *calls = json_get(v, "tool_calls");
    bool assistant = strcmp(m->role, "assistant") == 0, tool = strcmp(m->role, "tool") == 0;
    if (!message_text(ps, v, index, "name", false, &m->name) ||
        (assistant && !message_text(ps, v, index, "reasoning_content", false, &m->reasoning)) ||
        (tool && !message_text(ps, v, index, "tool_call_id", true, &m->tool_call_id))) {
        return false;
    }
    if (is_set(calls)) {
        snprintf(param, sizeof(param), "messages[%d].tool_calls", index);
        if (!assistant) {
            return openai_refuse(ps->p, 400, "invalid_value", param,
                                 "only an assistant's message has 'tool_calls'");
        }
        if (!openai_take_calls(ps->rq, calls, index, m, ps->p)) return false;
        m->text = "";
        if (!is_set(json_get(v, "content"))) return true;
    }
    const cJSON *content = json_get(v, "content");
    if (cJSON_IsString(content)) {
        m->text = content->valuestring;
        m->len = strlen(content->valuestring);
        return true;
    }
    if (cJSON_IsArray(content) && content->child) return join_parts(ps, content, index, m);
    snprintf(param, sizeof(param), "messages[%d].content", index);
    return openai_refuse(ps->p, 400, "invalid_value", param,
                         "'content' must be a string or an array of text parts");
}

/* Variables for the template ("enable_thinking"): nothing else reads them, and they are a stranger's. */
static bool take_kwargs(parser *ps)
{
    const cJSON *v = json_get(ps->body, "chat_template_kwargs"), *each;
    if (!is_set(v)) return true;
    if (!cJSON_IsObject(v) || cJSON_GetArraySize(v) > OPENAI_KWARGS_MAX) {
        return openai_refuse(ps->p, 400, "invalid_value", "chat_template_kwargs",
                             "'chat_template_kwargs' must be an object of at most %d variables",
                             OPENAI_KWARGS_MAX);
    }
    cJSON_ArrayForEach(each, v)
    {
        if (!chat_reserved(each->string)) continue;
        return openai_refuse(ps->p, 400, "invalid_value", "chat_template_kwargs",
                             "'chat_template_kwargs' cannot set '%s'", each->string);
    }
    ps->rq->template_kwargs = v;
    return true;
}

/* For templates that have such a variable; elsewhere it changes nothing. */
static bool take_effort(parser *ps)
{
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    const char *effort = NULL;
    if (!take_str(ps, "reasoning_effort", 16, &effort)) return false;
    if (!effort) return true;
    size_t i = 0, n = sizeof(known) / sizeof(known[0]);
    while (i < n && strcmp(known[i], effort) != 0) i++;
    if (i == n) {
        return openai_refuse(
            ps->p, 400, "invalid_value", "reasoning_effort",
            "'reasoning_effort' must be none, minimal, low, medium, high, xhigh or "
            "max");
    }
    if (!ps->lim->reads_effort) return ignore(ps, "reasoning_effort");
    ps->rq->effort = effort;
    return true;
}

/* What a template would not show is refused: an answer without the documents would look like one from them. */
static bool take_documents(parser *ps)
{
    const cJSON *v = json_get(ps->body, "documents"), *each, *part;
    if (!is_set(v)) return true;
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : -1;
    bool ok = n >= 0 && n <= OPENAI_DOCUMENTS_MAX;
    if (n == 0) return true;
    if (ok && !ps->lim->reads_documents) {
        return openai_refuse(ps->p, 400, "unsupported_parameter", "documents",
                             "'documents' is not supported: this model's chat template reads none");
    }
    cJSON_ArrayForEach(each, v)
    {
        ok &= cJSON_IsObject(each);
        cJSON_ArrayForEach(part, each) ok &= cJSON_IsString(part);
    }
    if (!ok) {
        return openai_refuse(ps->p, 400, "invalid_value", "documents",
                             "'documents' must be an array of at most %d objects of texts",
                             OPENAI_DOCUMENTS_MAX);
    }
    ps->rq->documents = v;
    return true;
}

/* An answer of its own, or more of the last message. */
static bool take_beginning(parser *ps)
{
    openai_request *rq = ps->rq;
    if (!take_bool(ps, "add_generation_prompt", &rq->add_generation_prompt) ||
        !take_bool(ps, "continue_final_message", &rq->continue_final)) {
        return false;
    }
    if (!rq->continue_final) return true;
    if (cJSON_IsTrue(json_get(ps->body, "add_generation_prompt"))) {
        return openai_refuse(ps->p, 400, "invalid_value", "continue_final_message",
                             "'continue_final_message' and 'add_generation_prompt' cannot both be "
                             "true");
    }
    rq->add_generation_prompt = false;
    return true;
}

static bool take_variables(parser *ps)
{
    return take_kwargs(ps) && take_effort(ps) && take_documents(ps) && take_beginning(ps);
}

static bool take_messages(parser *ps)
{
    openai_request *rq = ps->rq;
    const cJSON *v = json_get(ps->body, "messages");
    if (!is_set(v)) {
        return openai_refuse(ps->p, 400, "missing_required_parameter", "messages",
                             "'messages' is required");
    }
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 0;
    if (n < 1 || n > OPENAI_MESSAGE_MAX) {
        return openai_refuse(ps->p, 400, "invalid_value", "messages",
                             "'messages' must be an array of 1 to %d messages", OPENAI_MESSAGE_MAX);
    }
    rq->msgs = arena_calloc(ps->mem, (size_t)n, sizeof(*rq->msgs));
    if (!rq->msgs) return no_memory(ps, "messages");
    int i = 0;
    const cJSON *m;
    cJSON_ArrayForEach(m, v)
    {
        if (!take_message(ps, m, i, &rq->msgs[i])) return false;
        i++;
    }
    rq->n_msgs = n;
    rq->n_prompts = 1;
    return true;
}

/* -------------------------------------------------------------- sampling -- */

static bool take_seed(parser *ps)
{
    const cJSON *v = json_get(ps->body, "seed");
    int64_t seed = 0;
    ps->rq->seed_given = v && !cJSON_IsNull(v);
    if (ps->rq->seed_given && !json_whole(v, &seed)) {
        return openai_refuse(ps->p, 400, "invalid_value", "seed",
                             "'seed' must be an integer of at most 64 bits");
    }
    ps->rq->rules.seed = (uint64_t)seed;
    return true;
}

static bool take_bias_item(parser *ps, const cJSON *item, logit_bias *out)
{
    char *end;
    const char *name = item->string;
    long id = strtol(name, &end, 10);
    if (name[0] < '0' || name[0] > '9' || *end || id < 0 || id >= ps->lim->n_vocab) {
        return openai_refuse(ps->p, 400, "invalid_value", "logit_bias",
                             "a key of 'logit_bias' is not a token id from 0 to %d",
                             ps->lim->n_vocab - 1);
    }
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= -100 && item->valuedouble <= 100)) {
        return openai_refuse(ps->p, 400, "invalid_value", "logit_bias",
                             "the bias of token %ld must be a number from -100 to 100", id);
    }
    out->token = (int32_t)id;
    out->bias = (float)item->valuedouble;
    return true;
}

static bool take_bias(parser *ps)
{
    const cJSON *v = json_get(ps->body, "logit_bias");
    if (!is_set(v)) return true;
    if (!cJSON_IsObject(v)) {
        return openai_refuse(ps->p, 400, "invalid_value", "logit_bias",
                             "'logit_bias' must be an object of token ids");
    }
    int n = cJSON_GetArraySize(v);
    if (n > OPENAI_BIAS_MAX) {
        return openai_refuse(ps->p, 400, "invalid_value", "logit_bias",
                             "'logit_bias' has %d entries, the limit is %d", n, OPENAI_BIAS_MAX);
    }
    logit_bias *bias = arena_calloc(ps->mem, (size_t)n + 1, sizeof(*bias));
    if (!bias) return no_memory(ps, "logit_bias");
    int i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, v)
    {
        if (!take_bias_item(ps, item, &bias[i++])) return false;
    }
    ps->rq->rules.bias = bias;
    ps->rq->rules.n_bias = n;
    return true;
}

static bool add_stop(parser *ps, const cJSON *v)
{
    openai_request *rq = ps->rq;
    if (!cJSON_IsString(v) || strlen(v->valuestring) > OPENAI_STOP_BYTES_MAX) {
        return openai_refuse(ps->p, 400, "invalid_value", "stop",
                             "a stop string must have at most %d bytes", OPENAI_STOP_BYTES_MAX);
    }
    size_t len = strlen(v->valuestring);
    if (len == 0) return ignore(ps, "stop.empty"); /* stands everywhere, and ends nothing */
    rq->stop[rq->n_stop] = v->valuestring;
    rq->stop_len[rq->n_stop++] = len;
    return true;
}

static bool take_stop(parser *ps)
{
    const cJSON *v = json_get(ps->body, "stop");
    if (!is_set(v)) return true;
    if (cJSON_IsString(v)) return add_stop(ps, v);
    if (!cJSON_IsArray(v) || cJSON_GetArraySize(v) > OPENAI_STOP_MAX) {
        return openai_refuse(ps->p, 400, "invalid_value", "stop",
                             "'stop' must be a string or an array of at most %d strings",
                             OPENAI_STOP_MAX);
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, v)
    {
        if (!add_stop(ps, item)) return false;
    }
    return true;
}

static bool take_stop_ids(parser *ps)
{
    const cJSON *v = json_get(ps->body, "stop_token_ids");
    if (!is_set(v)) return true;
    if (!cJSON_IsArray(v) || cJSON_GetArraySize(v) > OPENAI_STOP_ID_MAX) {
        return openai_refuse(ps->p, 400, "invalid_value", "stop_token_ids",
                             "'stop_token_ids' must be an array of at most %d token ids",
                             OPENAI_STOP_ID_MAX);
    }
    openai_prompt ids = {0};
    if (!take_ids(ps, v, "stop_token_ids", &ids)) return false;
    ps->rq->rules.stop_id = ids.ids;
    ps->rq->rules.n_stop_id = ids.n_ids;
    return true;
}

static bool take_allowed(parser *ps)
{
    const cJSON *v = json_get(ps->body, "allowed_token_ids");
    if (!is_set(v)) return true;
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 0;
    if (n < 1 || n > ps->lim->n_vocab) {
        return openai_refuse(ps->p, 400, "invalid_value", "allowed_token_ids",
                             "'allowed_token_ids' must be an array of 1 to %d token ids",
                             ps->lim->n_vocab);
    }
    openai_prompt ids = {0};
    if (!take_ids(ps, v, "allowed_token_ids", &ids)) return false;
    ps->rq->allowed = ids.ids;
    ps->rq->n_allowed = ids.n_ids;
    return true;
}

static bool take_bad_words(parser *ps)
{
    const cJSON *v = json_get(ps->body, "bad_words"), *item;
    if (!is_set(v)) return true;
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : -1;
    if (n < 0 || n > OPENAI_BAD_MAX) {
        return openai_refuse(ps->p, 400, "invalid_value", "bad_words",
                             "'bad_words' must be an array of at most %d words", OPENAI_BAD_MAX);
    }
    ps->rq->bad = arena_calloc(ps->mem, (size_t)n + 1, sizeof(*ps->rq->bad));
    if (!ps->rq->bad) return no_memory(ps, "bad_words");
    cJSON_ArrayForEach(item, v)
    {
        const char *word = cJSON_IsString(item) ? item->valuestring : "";
        if (word[strspn(word, " \t\n\v\f\r")] == 0 || strlen(word) > OPENAI_BAD_WORD_BYTES_MAX) {
            return openai_refuse(ps->p, 400, "invalid_value", "bad_words",
                                 "a word of 'bad_words' must have 1 to %d bytes, and more than "
                                 "white space",
                                 OPENAI_BAD_WORD_BYTES_MAX);
        }
        ps->rq->bad[ps->rq->n_bad++] = word;
    }
    return true;
}

/* A number in (0, hi]. */
static bool take_positive(parser *ps, const char *name, double hi, float *out)
{
    if (!take_num(ps, name, 0, hi, out)) return false;
    if (*out > 0) return true;
    return openai_refuse(ps->p, 400, "invalid_value", name,
                         "'%s' must be greater than 0 and at most %g", name, hi);
}

static bool take_sampling(parser *ps)
{
    sampling *r = &ps->rq->rules;
    r->temperature = ps->lim->temperature;
    r->top_p = ps->lim->top_p;
    r->top_k = ps->lim->top_k;
    r->min_p = ps->lim->min_p;
    r->repetition_penalty = ps->lim->repetition_penalty > 0 ? ps->lim->repetition_penalty : 1;
    r->n_top = -1;
    bool ok = take_num(ps, "temperature", 0, 2, &r->temperature) &&
              take_positive(ps, "top_p", 1, &r->top_p) &&
              take_int(ps, "top_k", -1, ps->lim->n_vocab, &r->top_k) &&
              take_num(ps, "min_p", 0, 1, &r->min_p) &&
              take_positive(ps, "repetition_penalty", 10, &r->repetition_penalty) &&
              take_num(ps, "presence_penalty", -2, 2, &r->presence_penalty) &&
              take_num(ps, "frequency_penalty", -2, 2, &r->frequency_penalty) &&
              take_bool(ps, "ignore_eos", &r->ignore_eos) &&
              take_int(ps, "min_tokens", 0, ps->lim->max_context, &r->min_tokens);
    if (!ok) return false;
    if (r->top_k < 0) r->top_k = 0; /* -1 is vLLM's "off" */
    return take_bias(ps) && take_stop(ps) && take_stop_ids(ps) && take_allowed(ps) &&
           take_bad_words(ps);
}

/* ------------------------------------------------------- lengths, choices -- */

static bool take_max_tokens(parser *ps)
{
    openai_request *rq = ps->rq;
    int old_name = -1, new_name = -1;
    int lo = rq->echo || (!rq->chat && rq->prompt_top >= 0) ? 0 : 1; /* 0: score the prompt alone */
    int hi = ps->lim->max_context;
    if (!take_int(ps, "max_tokens", lo, hi, &old_name)) return false;
    if (rq->chat && !take_int(ps, "max_completion_tokens", 1, hi, &new_name)) return false;
    if (old_name >= 0 && new_name >= 0 && old_name != new_name) {
        return openai_refuse(ps->p, 400, "invalid_value", "max_tokens",
                             "'max_tokens' and 'max_completion_tokens' differ: give one");
    }
    rq->max_tokens = new_name >= 0 ? new_name : old_name;
    if (rq->max_tokens < 0 && !rq->chat) rq->max_tokens = OPENAI_TEXT_MAX_TOKENS;
    if (rq->max_tokens >= 0 && rq->rules.min_tokens > rq->max_tokens) {
        return openai_refuse(ps->p, 400, "invalid_value", "min_tokens",
                             "'min_tokens' is greater than 'max_tokens'");
    }
    return true;
}

static bool take_choices(parser *ps)
{
    openai_request *rq = ps->rq;
    int best_of = 0;
    rq->n = 1;
    if (!take_int(ps, "n", 1, 128, &rq->n)) return false;
    if (!rq->chat && !take_int(ps, "best_of", 1, 20, &best_of)) return false;
    if (best_of && best_of != rq->n) {
        return openai_refuse(ps->p, 400, "unsupported_parameter", "best_of",
                             "'best_of' is supported only where it equals 'n'");
    }
    if (rq->n > ps->lim->max_choices / rq->n_prompts) {
        return openai_refuse(ps->p, 400, "invalid_value", rq->n > 1 ? "n" : "prompt",
                             "%d prompts with n=%d are more than the %d choices one request may "
                             "have",
                             rq->n_prompts, rq->n, ps->lim->max_choices);
    }
    return true;
}

/* Of the prompt, in one piece: a stream has begun before they are known. */
static bool take_prompt_logprobs(parser *ps)
{
    ps->rq->prompt_top = -1;
    if (!take_int(ps, "prompt_logprobs", 0, SAMPLE_TOP_MAX, &ps->rq->prompt_top)) return false;
    if (ps->rq->prompt_top < 0 || !cJSON_IsTrue(json_get(ps->body, "stream"))) return true;
    return openai_refuse(ps->p, 400, "invalid_value", "prompt_logprobs",
                         "'prompt_logprobs' is not supported with 'stream'");
}

/* -1: as many as leave room for the answer. */
static bool take_truncation(parser *ps)
{
    openai_request *rq = ps->rq;
    int keep = 0, answer = rq->max_tokens >= 0 ? rq->max_tokens : 1;
    if (!take_int(ps, "truncate_prompt_tokens", -1, ps->lim->max_context, &keep)) return false;
    if (keep > 0) rq->truncate_prompt = keep;
    if (keep < 0)
        rq->truncate_prompt = answer < ps->lim->max_context ? ps->lim->max_context - answer : 1;
    if (keep || !is_set(json_get(ps->body, "truncate_prompt_tokens"))) return true;
    return openai_refuse(ps->p, 400, "invalid_value", "truncate_prompt_tokens",
                         "'truncate_prompt_tokens' must be -1 or a number from 1 to %d",
                         ps->lim->max_context);
}

/* Chat: a bool and top_logprobs; text: a number. */
static bool take_logprobs(parser *ps)
{
    openai_request *rq = ps->rq;
    int n_top = -1;
    if (!rq->chat) {
        if (!take_int(ps, "logprobs", 0, SAMPLE_TOP_MAX, &n_top)) return false;
        rq->logprobs = n_top >= 0;
        rq->rules.n_top = n_top;
        return true;
    }
    if (!take_bool(ps, "logprobs", &rq->logprobs)) return false;
    if (!take_int(ps, "top_logprobs", 0, SAMPLE_TOP_MAX, &n_top)) return false;
    if (n_top >= 0 && !rq->logprobs) {
        return openai_refuse(ps->p, 400, "invalid_value", "top_logprobs",
                             "'top_logprobs' needs 'logprobs': true");
    }
    rq->rules.n_top = !rq->logprobs ? -1 : n_top < 0 ? 0 : n_top;
    return true;
}

static bool take_stream(parser *ps)
{
    openai_request *rq = ps->rq;
    if (!take_bool(ps, "stream", &rq->stream)) return false;
    const cJSON *opt = json_get(ps->body, "stream_options");
    if (!is_set(opt)) return true;
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
        if (!done && is_set(each) && !note_ignored(ps, "stream_options", each->string))
            return false;
    }
    parser inner = *ps;
    inner.body = opt;
    return take_bool(&inner, "include_usage", &rq->include_usage) &&
           take_bool(&inner, "continuous_usage_stats", &rq->continuous_usage);
}

/* ----------------------------------------- fields with one supported value -- */

static bool check_modalities(parser *ps)
{
    const cJSON *v = json_get(ps->body, "modalities");
    if (!is_set(v)) return true;
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
static bool sort_fields(parser *ps)
{
    openai_request *rq = ps->rq;
    const cJSON *v;
    cJSON_ArrayForEach(v, ps->body)
    {
        int where = (rq->chat ? CHAT : TEXT) | (ps->lim->tokenize ? TOKENIZE : 0);
        const field *f = find_field(v->string, where);
        if (cJSON_IsNull(v) || (f && f->fate == TAKEN)) continue;
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

bool openai_parse(openai_request *out, bool chat, const cJSON *body, const openai_limits *lim,
                  arena *a, openai_problem *p)
{
    *out = (openai_request){.chat = chat,
                            .add_generation_prompt = true,
                            .add_special_tokens = true,
                            .truncate_prompt = -1};
    parser ps = {body, lim, a, out, p};
    if (!cJSON_IsObject(body)) {
        return openai_refuse(p, 400, "invalid_value", NULL, "the body must be a JSON object");
    }
    if (!sort_fields(&ps)) return false;
    if (!take_str(&ps, "model", 256, &out->model)) return false;
    if (!lim->tokenize && (!out->model || !out->model[0])) {
        return openai_refuse(p, 400, "missing_required_parameter", "model", "'model' is required");
    }
    bool skip_special = true;
    bool ok = (chat ? take_messages(&ps) && take_variables(&ps) : take_prompt(&ps)) &&
              take_sampling(&ps) && take_seed(&ps) && take_prompt_logprobs(&ps) &&
              (chat || take_bool(&ps, "echo", &out->echo)) && take_max_tokens(&ps) &&
              take_choices(&ps) && take_logprobs(&ps) && take_stream(&ps) &&
              take_bool(&ps, "include_stop_str_in_output", &out->include_stop) &&
              take_bool(&ps, "skip_special_tokens", &skip_special) &&
              take_bool(&ps, "add_special_tokens", &out->add_special_tokens) &&
              take_bool(&ps, "return_token_ids", &out->return_token_ids) &&
              (!lim->tokenize || take_bool(&ps, "return_token_strs", &out->return_token_strs)) &&
              take_truncation(&ps) && take_str(&ps, "service_tier", 32, &out->service_tier) &&
              take_str(&ps, "cache_salt", OPENAI_SALT_MAX, &out->cache_salt) &&
              take_int(&ps, "priority", -1000000, 1000000, &out->priority) &&
              openai_take_format(out, body, p) && (!chat || openai_take_tools(out, body, p)) &&
              check_modalities(&ps);
    if (!ok) return false;
    out->keep_special = !skip_special;
    if (out->service_tier && strcmp(out->service_tier, "auto") == 0) out->service_tier = NULL;
    return true;
}
