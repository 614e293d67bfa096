/* pooled_json.c -- fields that every API of vectors takes. */
#include "gateway/doors/pooled_json.h"

#include <assert.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/process_parts.h"

enum { FIELDS_MAX = 48, MODEL_BYTES_MAX = 256, TRUNCATE_MAX = 1 << 22, PRIORITY_MAX = 1000000 };

/* vLLM's, besides each API's own. */
static const door_field common[] = {
    {"model", DOOR_TAKEN},
    {"user", DOOR_IGNORED},
    {"request_id", DOOR_IGNORED},
    {"service_tier", DOOR_TAKEN},
    {"cache_salt", DOOR_TAKEN},
    {"priority", DOOR_TAKEN},
    {"truncate_prompt_tokens", DOOR_TAKEN},
    {"add_special_tokens", DOOR_TAKEN},
    {"mm_processor_kwargs", DOOR_REFUSED},
    {"softmax", DOOR_REFUSED},
    {"activation", DOOR_REFUSED},
    {"use_activation", DOOR_REFUSED},
    {"truncation_side", DOOR_REFUSED},
    {"chat_template", DOOR_REFUSED},
    {"chat_template_kwargs", DOOR_REFUSED},
    {"instruction", DOOR_REFUSED},
    {"messages", DOOR_REFUSED},
    {"adapters", DOOR_REFUSED}, /* stacks are for text */
};
enum { COMMON = sizeof(common) / sizeof(common[0]) };

static bool wrong(openai_problem *p, const char *name, const err *e)
{
    return openai_refuse(p, 400, "invalid_value", name, "%s", e->msg);
}

bool pooled_int(const cJSON *body, const char *name, int64_t lo, int64_t hi, int64_t *out,
                openai_problem *p)
{
    err e;
    return json_int(body, name, lo, hi, out, NULL, &e) == ERR_NONE || wrong(p, name, &e);
}

bool pooled_bool(const cJSON *body, const char *name, bool *out, openai_problem *p)
{
    err e;
    return json_bool(body, name, out, NULL, &e) == ERR_NONE || wrong(p, name, &e);
}

static bool take_text(const cJSON *body, const char *name, size_t most, const char **out,
                      openai_problem *p)
{
    err e;
    if (json_str(body, name, out, NULL, &e)) return wrong(p, name, &e);
    if (!*out || strlen(*out) <= most) return true;
    return openai_refuse(p, 400, "invalid_value", name, "'%s' is longer than %zu bytes", name,
                         most);
}

/* -1: as long as the model takes. */
static bool take_truncation(const cJSON *body, openai_request *rq, openai_problem *p)
{
    int64_t keep = -2;
    if (!pooled_int(body, "truncate_prompt_tokens", -1, TRUNCATE_MAX, &keep, p)) return false;
    if (keep == 0)
        return openai_refuse(p, 400, "invalid_value", "truncate_prompt_tokens",
                             "'truncate_prompt_tokens' must be -1 or a number from 1 to %d",
                             TRUNCATE_MAX);
    rq->truncate_prompt = keep == -2 ? -1 : keep == -1 ? 0 : (int)keep;
    return true;
}

bool pooled_fields(exchange *x, const cJSON *body, const door_field *own, size_t n,
                   openai_request *rq, openai_problem *p)
{
    door_field all[FIELDS_MAX];
    assert(n + COMMON <= FIELDS_MAX);
    int64_t priority = 0;
    memcpy(all, own, n * sizeof(*own));
    memcpy(all + n, common, sizeof(common));
    if (!door_sort(x, body, all, n + COMMON, NULL, p) ||
        !take_text(body, "model", MODEL_BYTES_MAX, &rq->model, p) ||
        !take_text(body, "service_tier", 32, &rq->service_tier, p) ||
        !take_text(body, "cache_salt", OPENAI_SALT_MAX, &rq->cache_salt, p) ||
        !pooled_int(body, "priority", -PRIORITY_MAX, PRIORITY_MAX, &priority, p))
        return false;
    rq->priority = (int)priority;
    if (!openai_select_adapter(body, x->conf->model.name, &rq->model, p)) return false;
    return take_truncation(body, rq, p) &&
           pooled_bool(body, "add_special_tokens", &rq->add_special_tokens, p);
}

void pooled_write_usage(jsonw *w, const pooled_answer *a)
{
    jsonw_open(w, "usage", '{');
    jsonw_int(w, "prompt_tokens", a->n_tokens);
    jsonw_int(w, "total_tokens", a->n_tokens);
    jsonw_close(w, '}');
}

void pooled_open_list(jsonw *w, const pooled_answer *a)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "id", a->id);
    jsonw_str(w, "object", "list");
    jsonw_int(w, "created", a->created_s);
    jsonw_str(w, "model", a->model);
    jsonw_open(w, "data", '[');
}

void pooled_close_list(jsonw *w, const pooled_answer *a)
{
    jsonw_close(w, ']');
    pooled_write_usage(w, a);
    jsonw_close(w, '}');
}
