/* openai_sampling.c -- reads how tokens are chosen: sampling parameters, biases, stop strings
 * and ids, bad words, log probabilities.
 *
 * Plain numbers are rows of engine/sample/sampling_list.h: name, kind, bounds, neutral value.
 * The list is expanded here into one reader per row, so a new number needs no code in this file.
 * What needs memory or a shape of its own (logit_bias, stop, bad_words, allowed_token_ids) has a
 * function.
 *
 * Token ids are checked against the widest vocabulary here, since the adapter is not known yet,
 * and against the model's own by openai_check_ids() later. Lists are allocated in the request's
 * arena.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_inside.h"

static bool take_seed(openai_parser *ps)
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

static bool take_bias_item(openai_parser *ps, const cJSON *item, logit_bias *out)
{
    char *end;
    const char *name = item->string;
    long id = strtol(name, &end, 10);
    if (name[0] < '0' || name[0] > '9' || *end || id < 0) {
        return openai_refuse(ps->p, 400, "invalid_value", "logit_bias",
                             "a key of 'logit_bias' is not a token id");
    }
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= -100 && item->valuedouble <= 100)) {
        return openai_refuse(ps->p, 400, "invalid_value", "logit_bias",
                             "the bias of token %ld must be a number from -100 to 100", id);
    }
    out->token = id < ps->lim->n_vocab ? (int32_t)id : ps->lim->n_vocab; /* openai_check_ids() */
    out->bias = (float)item->valuedouble;
    return true;
}

static bool take_bias(openai_parser *ps)
{
    const cJSON *v = json_get(ps->body, "logit_bias");
    if (!openai_is_set(v)) return true;
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
    if (!bias) return openai_no_memory(ps, "logit_bias");
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

static bool add_stop(openai_parser *ps, const cJSON *v)
{
    openai_request *rq = ps->rq;
    if (!cJSON_IsString(v) || strlen(v->valuestring) > OPENAI_STOP_BYTES_MAX) {
        return openai_refuse(ps->p, 400, "invalid_value", "stop",
                             "a stop string must have at most %d bytes", OPENAI_STOP_BYTES_MAX);
    }
    size_t len = strlen(v->valuestring);
    if (len == 0) return openai_ignore(ps, "stop.empty"); /* matches everywhere: no stop */
    rq->stop[rq->n_stop] = v->valuestring;
    rq->stop_len[rq->n_stop++] = len;
    return true;
}

static bool take_stop(openai_parser *ps)
{
    const cJSON *v = json_get(ps->body, "stop");
    if (!openai_is_set(v)) return true;
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

static bool take_id_list(openai_parser *ps, const char *name, int lo, int hi, openai_prompt *out)
{
    const cJSON *list;
    if (!openai_take_array(ps, name, lo, hi, "token ids", &list)) return false;
    return !list || openai_take_ids(ps, list, name, out);
}

static bool take_stop_ids(openai_parser *ps)
{
    openai_prompt ids = {0};
    if (!take_id_list(ps, "stop_token_ids", 0, OPENAI_STOP_ID_MAX, &ids)) return false;
    ps->rq->rules.stop_id = ids.ids;
    ps->rq->rules.n_stop_id = ids.n_ids;
    return true;
}

static bool take_allowed(openai_parser *ps)
{
    openai_prompt ids = {0};
    if (!take_id_list(ps, "allowed_token_ids", 1, ps->lim->n_vocab, &ids)) return false;
    ps->rq->allowed = ids.ids;
    ps->rq->n_allowed = ids.n_ids;
    return true;
}

static bool take_bad_words(openai_parser *ps)
{
    const cJSON *list, *item;
    if (!openai_take_array(ps, "bad_words", 0, OPENAI_BAD_MAX, "words", &list)) return false;
    if (!list) return true;
    ps->rq->bad = arena_calloc(ps->mem, (size_t)cJSON_GetArraySize(list), sizeof(*ps->rq->bad));
    if (!ps->rq->bad) return openai_no_memory(ps, "bad_words");
    cJSON_ArrayForEach(item, list)
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

/* One reader for each kind of sampling_list.h. */
#define take_real                             openai_take_num
#define take_whole                            openai_take_int
#define take_flag(ps, name, low, high, value) openai_take_bool(ps, name, value)

static bool take_above(openai_parser *ps, const char *name, double low, double high, float *out)
{
    if (!openai_take_num(ps, name, low, high, out)) return false;
    if ((double)*out > low) return true;
    return openai_refuse(ps->p, 400, "invalid_value", name,
                         "'%s' must be greater than %g and at most %g", name, low, high);
}

bool openai_take_sampling(openai_parser *ps)
{
    sampling *r = &ps->rq->rules;
    const sampling_defaults *from = &ps->lim->defaults;
    int n_vocab = ps->lim->n_vocab, max_context = ps->lim->max_context; /* of sampling_list.h */
    *r = (sampling){
        SAMPLING_REQUEST_LIST(SAMPLING_NEUTRAL) SAMPLING_MODEL_LIST(SAMPLING_COPY).n_top = -1};
#define TAKE(kind, name, low, high, neutral, most, gguf) \
    if (!take_##kind(ps, #name, low, high, &r->name)) return false;
    SAMPLING_LIST(TAKE)
#undef TAKE
    if (r->top_k < 0) r->top_k = 0; /* -1 is vLLM's "off" */
    return take_bias(ps) && take_stop(ps) && take_stop_ids(ps) && take_allowed(ps) &&
           take_bad_words(ps) && take_seed(ps);
}

bool openai_logprobs_mode(const char *word, logprobs_mode *out)
{
    static const char *const words[] = {[LOGPROBS_ADJUSTED] = "adjusted_logprobs",
                                        [LOGPROBS_PROCESSED] = "processed_logprobs",
                                        [LOGPROBS_RAW] = "raw_logprobs"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(word, words[i]) != 0) continue;
        *out = (logprobs_mode)i;
        return true;
    }
    return false;
}

static bool take_logprobs_mode(openai_parser *ps)
{
    const char *word = NULL;
    logprobs_mode *mode = &ps->rq->rules.logprobs;
    *mode = ps->lim->logprobs;
    if (!openai_take_str(ps, "logprobs_mode", 32, &word)) return false;
    if (word && !openai_logprobs_mode(word, mode)) {
        return openai_refuse(ps->p, 400, "invalid_value", "logprobs_mode",
                             "'logprobs_mode' must be raw_logprobs, processed_logprobs or "
                             "adjusted_logprobs: answers hold no logits");
    }
    if (*mode != LOGPROBS_RAW || !ps->lim->no_raw) return true;
    return openai_refuse(ps->p, 400, "unsupported_parameter", "logprobs_mode",
                         "raw_logprobs are not supported on this server's device");
}

/* Chat: a bool and top_logprobs; text: a number. */
bool openai_take_logprobs(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    int n_top = -1;
    if (!take_logprobs_mode(ps)) return false;
    if (!rq->chat) {
        if (!openai_take_int(ps, "logprobs", 0, SAMPLE_TOP_MAX, &n_top)) return false;
        rq->logprobs = n_top >= 0;
        rq->rules.n_top = n_top;
        return true;
    }
    if (!openai_take_bool(ps, "logprobs", &rq->logprobs)) return false;
    if (!openai_take_int(ps, "top_logprobs", 0, SAMPLE_TOP_MAX, &n_top)) return false;
    if (n_top >= 0 && !rq->logprobs) {
        return openai_refuse(ps->p, 400, "invalid_value", "top_logprobs",
                             "'top_logprobs' needs 'logprobs': true");
    }
    rq->rules.n_top = !rq->logprobs ? -1 : n_top < 0 ? 0 : n_top;
    return true;
}

bool openai_take_prompt_logprobs(openai_parser *ps)
{
    ps->rq->prompt_top = -1;
    if (!openai_take_int(ps, "prompt_logprobs", 0, SAMPLE_TOP_MAX, &ps->rq->prompt_top))
        return false;
    if (ps->rq->prompt_top < 0 || !cJSON_IsTrue(json_get(ps->body, "stream"))) return true;
    return openai_refuse(ps->p, 400, "invalid_value", "prompt_logprobs",
                         "'prompt_logprobs' is not supported with 'stream'");
}
