/* openai_beams.c -- beam search and best_of: how many answers are made, and which are returned.
 *
 * vLLM's fields: with use_beam_search, `best_of` (or `n` where it is absent) is the number of beams
 * and `n` that of the answers.  Without it, best_of answers are drawn and the n with the highest
 * mean log-probability are returned, as OpenAI does.  What draws or streams is refused by name.
 */
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_inside.h"
#include "gateway/openai/openai_tools.h"

static bool refuse_with(openai_parser *ps, const char *param, const char *why)
{
    return openai_refuse(ps->p, 400, "unsupported_parameter", param,
                         "'%s' is not supported with 'use_beam_search': %s", param, why);
}

static bool take_ending(openai_parser *ps, beam_ending *out)
{
    const cJSON *v = json_get(ps->body, "early_stopping");
    const char *word = cJSON_GetStringValue(v);
    *out = cJSON_IsTrue(v) ? BEAM_ENDS_FULL : BEAM_ENDS_LIKELY;
    if (!openai_is_set(v) || cJSON_IsBool(v)) return true;
    if (word && strcmp(word, "never") == 0) {
        *out = BEAM_ENDS_NEVER;
        return true;
    }
    return openai_refuse(ps->p, 400, "invalid_value", "early_stopping",
                         "'early_stopping' must be true, false or \"never\"");
}

bool openai_take_choices(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    openai_beams *b = &rq->beams;
    int best_of = 0, most = ps->lim->max_beams;
    bool search = false;
    rq->n = 1;
    b->length_penalty = 1;
    if (!openai_take_int(ps, "n", 1, 128, &rq->n) ||
        !openai_take_int(ps, "best_of", 1, 128, &best_of) ||
        !openai_take_bool(ps, "use_beam_search", &search) ||
        !openai_take_num(ps, "length_penalty", -10, 10, &b->length_penalty) ||
        !take_ending(ps, &b->ending))
        return false;
    if (best_of && best_of < rq->n)
        return openai_refuse(ps->p, 400, "invalid_value", "best_of",
                             "'best_of' must be at least 'n'");
    rq->n_best = rq->n;
    if (search) b->width = best_of ? best_of : rq->n;
    if (b->width > most)
        return openai_refuse(ps->p, 400, "invalid_value", best_of ? "best_of" : "n",
                             "%d beams are more than this server allows (server.max_beams: %d)",
                             b->width, most);
    if (!search && best_of) rq->n = best_of;
    if (rq->n > ps->lim->max_choices / rq->n_prompts) {
        return openai_refuse(ps->p, 400, "invalid_value",
                             rq->n > rq->n_best ? "best_of"
                             : rq->n > 1        ? "n"
                                                : "prompt",
                             "%d prompt%s with n=%d: one request may have %d choices in all",
                             rq->n_prompts, rq->n_prompts == 1 ? "" : "s", rq->n,
                             ps->lim->max_choices);
    }
    return true;
}

/* The answers are compared before one of them is told. */
static bool check_best_of(openai_parser *ps)
{
    static const char *const needs_search[] = {"length_penalty", "early_stopping"};
    for (int i = 0; i < 2; i++) {
        if (openai_is_set(json_get(ps->body, needs_search[i])))
            return openai_refuse(ps->p, 400, "unsupported_parameter", needs_search[i],
                                 "'%s' is supported with 'use_beam_search': true only",
                                 needs_search[i]);
    }
    if (ps->rq->n_best == ps->rq->n || !ps->rq->stream) return true;
    return openai_refuse(ps->p, 400, "unsupported_parameter", "best_of",
                         "'best_of' greater than 'n' cannot be streamed");
}

bool openai_check_beams(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    sampling *r = &rq->rules;
    if (rq->beams.width == 0) return check_best_of(ps);
    static const char *const draws = "beam search does not sample";
    const struct {
        const char *param;
        bool neutral;
    } drawn[] = {{"temperature", r->temperature == 0},
                 {"top_p", r->top_p == 1},
                 {"top_k", r->top_k == 0},
                 {"min_p", r->min_p == 0}};
    for (size_t i = 0; i < sizeof(drawn) / sizeof(drawn[0]); i++) {
        if (!drawn[i].neutral && openai_is_set(json_get(ps->body, drawn[i].param)))
            return refuse_with(ps, drawn[i].param, draws);
    }
    if (rq->stream) return refuse_with(ps, "stream", "answers are known at the end");
    if (rq->echo) return refuse_with(ps, "echo", "only answers are returned");
    if (rq->prompt_top >= 0)
        return refuse_with(ps, "prompt_logprobs", "ask for them without beams");
    if (rq->n_stop > 0) return refuse_with(ps, "stop", "use 'stop_token_ids'");
    if (rq->chat && openai_has_tools(rq) && rq->callable)
        return refuse_with(ps, "tools", "set 'tool_choice' to \"none\" or leave it out");
    if (openai_is_set(json_get(ps->body, "logprobs_mode")) && r->logprobs != LOGPROBS_ADJUSTED)
        return refuse_with(ps, "logprobs_mode", "beams rank by adjusted_logprobs");
    if (rq->seed_given && !openai_ignore(ps, "seed")) return false;
    r->temperature = 0;
    r->top_p = 1;
    r->top_k = 0;
    r->min_p = 0;
    r->logprobs = LOGPROBS_ADJUSTED;
    return true;
}
