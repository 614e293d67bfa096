/* openai_fields.c -- one field of a plain type each, and what is said where it is another.
 *
 * A field that is absent or null leaves *out as it is, so a default is set before. A wrong one
 * is a 400 that names the field and its limits, in OpenAI's words where OpenAI has some. What is
 * read stays in the request's tree or arena.
 *
 * Fields of other servers that select an adapter (lora_path, adapter_id, ...) are the same as
 * its name in 'model': they count where 'model' is the base or says the same, and two that
 * differ are refused, as nobody could know which one was meant.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_inside.h"

static bool bad(openai_parser *ps, const char *param, const err *e)
{
    return openai_refuse(ps->p, 400, "invalid_value", param, "%s", e->msg);
}

bool openai_no_memory(openai_parser *ps, const char *param)
{
    return openai_refuse(ps->p, 400, "request_too_large", param,
                         "'%s' needs more memory than one request may use", param);
}

bool openai_is_set(const cJSON *v)
{
    return v && !cJSON_IsNull(v);
}

bool openai_ignore(openai_parser *ps, const char *name)
{
    openai_request *rq = ps->rq;
    for (int i = 0; i < rq->n_ignored; i++) {
        if (strcmp(rq->ignored[i], name) == 0) return true;
    }
    if (rq->n_ignored < OPENAI_IGNORED_MAX) rq->ignored[rq->n_ignored++] = name;
    return true;
}

bool openai_note_unread(openai_parser *ps, const char *where, const char *name)
{
    size_t cap = strlen(where) + strlen(name) + 2;
    char *full = arena_alloc(ps->mem, cap);
    if (!full) return openai_no_memory(ps, where);
    snprintf(full, cap, "%s.%s", where, name);
    if (ps->lim->strict) {
        return openai_refuse(ps->p, 400, "unknown_parameter", full,
                             "Unrecognized request argument supplied: %.60s", full);
    }
    return openai_ignore(ps, full);
}

bool openai_take_int(openai_parser *ps, const char *name, int64_t lo, int64_t hi, int *out)
{
    err e;
    int64_t v = *out;
    if (json_int(ps->body, name, lo, hi, &v, NULL, &e)) return bad(ps, name, &e);
    *out = (int)v;
    return true;
}

bool openai_take_num(openai_parser *ps, const char *name, double lo, double hi, float *out)
{
    err e;
    double v = (double)*out;
    if (json_num(ps->body, name, lo, hi, &v, NULL, &e)) return bad(ps, name, &e);
    *out = (float)v;
    return true;
}

bool openai_take_bool(openai_parser *ps, const char *name, bool *out)
{
    err e;
    return json_bool(ps->body, name, out, NULL, &e) ? bad(ps, name, &e) : true;
}

bool openai_take_str(openai_parser *ps, const char *name, size_t max, const char **out)
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

bool openai_no_array(openai_parser *ps, const char *name, int lo, int hi, const char *items)
{
    char least[24] = "at most";
    if (lo > 0) snprintf(least, sizeof(least), "%d to", lo);
    return openai_refuse(ps->p, 400, "invalid_value", name, "'%s' must be an array of %s %d %s",
                         name, least, hi, items);
}

bool openai_take_array(openai_parser *ps, const char *name, int lo, int hi, const char *items,
                       const cJSON **out)
{
    const cJSON *v = json_get(ps->body, name);
    *out = NULL;
    if (!openai_is_set(v)) return true;
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : -1;
    if (n < lo || n > hi) return openai_no_array(ps, name, lo, hi, items);
    if (n > 0) *out = v;
    return true;
}

bool openai_take_ids(openai_parser *ps, const cJSON *list, const char *param, openai_prompt *out)
{
    int n = cJSON_GetArraySize(list);
    int32_t *ids = arena_calloc(ps->mem, (size_t)n + 1, sizeof(*ids));
    if (!ids) return openai_no_memory(ps, param);
    int i = 0;
    const cJSON *v;
    cJSON_ArrayForEach(v, list)
    {
        double d = cJSON_IsNumber(v) ? v->valuedouble : -1;
        if (!(d >= 0) || d != floor(d)) {
            return openai_refuse(ps->p, 400, "invalid_value", param,
                                 "'%s' must hold whole token ids of at least 0", param);
        }
        ids[i++] = d < ps->lim->n_vocab ? (int32_t)d : ps->lim->n_vocab; /* openai_check_ids() */
    }
    out->ids = ids;
    out->n_ids = n;
    return true;
}

/* ------------------------------------------------------------ adapters by a field -- */

bool openai_selects_adapter(const char *field)
{
    static const char *const names[] = {"lora_path",    "lora_adapter", "lora_name",
                                        "lora_request", "lora_id",      "loras",
                                        "adapter",      "adapter_name", "adapter_id"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], field) == 0) return true;
    return false;
}

/* The name of an adapter: a string, a list of one, or an object like vLLM's LoRARequest; else
 * NULL. */
static const char *adapter_named(const cJSON *v)
{
    if (cJSON_IsArray(v) && cJSON_GetArraySize(v) == 1) v = v->child;
    if (cJSON_IsObject(v))
        v = openai_is_set(json_get(v, "lora_name")) ? json_get(v, "lora_name")
                                                    : json_get(v, "name");
    return cJSON_IsString(v) && v->valuestring[0] && strlen(v->valuestring) <= 256 ? v->valuestring
                                                                                   : NULL;
}

/* Says nothing: null, "" and []. */
static bool is_empty(const cJSON *v)
{
    return !openai_is_set(v) || (cJSON_IsString(v) && !v->valuestring[0]) ||
           (cJSON_IsArray(v) && (!v->child || (cJSON_IsNull(v->child) && !v->child->next)));
}

bool openai_select_adapter(const cJSON *body, const char *base, const char **model,
                           openai_problem *p)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, body)
    {
        if (!openai_selects_adapter(v->string) || is_empty(v)) continue;
        const char *name = adapter_named(v);
        if (!name)
            return openai_refuse(p, 400, "invalid_value", v->string,
                                 "'%s' must be the name of one adapter: name it in 'model', or "
                                 "several in 'adapters'",
                                 v->string);
        if (openai_is_set(json_get(body, "adapters")))
            return openai_refuse(p, 400, "invalid_value", v->string,
                                 "'%s' and 'adapters' both select adapters: give 'adapters'",
                                 v->string);
        bool other = *model && strcmp(*model, name) != 0;
        if (other && (!base || strcmp(*model, base) != 0))
            return openai_refuse(p, 400, "invalid_value", v->string,
                                 "'%s' is '%.60s' and the model is '%.60s': name the adapter in "
                                 "'model' alone",
                                 v->string, name, *model);
        *model = name;
    }
    return true;
}
