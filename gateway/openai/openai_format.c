/* openai_format.c -- what form an answer must have: OpenAI's response_format, vLLM's
 * structured_outputs and its older guided_ fields, all brought into one grammar_spec. */
#include "gateway/openai/openai_format.h"

#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_inside.h"

typedef struct {
    openai_request *rq;
    openai_problem *p;
    const cJSON *body;
} reader;

static bool bad(reader *r, const char *param, const char *what)
{
    return openai_refuse(r->p, 400, "invalid_value", param, "'%s' %s", param, what);
}

static bool unsupported(reader *r, const char *param)
{
    return openai_refuse(r->p, 400, "unsupported_parameter", param, "'%s' is not supported", param);
}

/* Notes what form the answer must have; a second wish for one is refused. */
static bool ask(reader *r, const char *param, grammar_spec spec)
{
    openai_request *rq = r->rq;
    if (rq->format_param) {
        return openai_refuse(r->p, 400, "invalid_value", param,
                             "'%s' and '%s' both say what form the answer has: give one",
                             rq->format_param, param);
    }
    rq->format_param = param;
    rq->format = spec;
    return true;
}

/* A schema, or the text of one. */
static bool ask_schema(reader *r, const char *param, const cJSON *v)
{
    if (cJSON_IsString(v)) {
        err e;
        const char *s = v->valuestring;
        if (r->rq->format_tree) return bad(r, param, "is given twice");
        if (json_parse(s, strlen(s), &json_limits_request, &r->rq->format_tree, &e)) {
            return openai_refuse(r->p, 400, "invalid_value", param, "'%s' is no JSON: %s", param,
                                 e.msg);
        }
        v = r->rq->format_tree;
    }
    if (!cJSON_IsObject(v) && !cJSON_IsBool(v)) return bad(r, param, "must be a JSON schema");
    return ask(r, param, (grammar_spec){.kind = GRAMMAR_SCHEMA, .json = v});
}

static bool ask_regex(reader *r, const char *param, const cJSON *v)
{
    if (!cJSON_IsString(v)) return bad(r, param, "must be a string");
    return ask(r, param, (grammar_spec){.kind = GRAMMAR_REGEX, .regex = v->valuestring});
}

static bool ask_choice(reader *r, const char *param, const cJSON *v)
{
    if (!cJSON_IsArray(v)) return bad(r, param, "must be an array of strings");
    return ask(r, param, (grammar_spec){.kind = GRAMMAR_CHOICE, .json = v});
}

static bool ask_object(reader *r, const char *param, const cJSON *v)
{
    if (!cJSON_IsBool(v)) return bad(r, param, "must be true or false");
    if (cJSON_IsFalse(v)) return true;
    return ask(r, param, (grammar_spec){.kind = GRAMMAR_SCHEMA});
}

static bool take_response_format(reader *r)
{
    const cJSON *v = json_get(r->body, "response_format");
    if (!openai_is_set(v)) return true;
    const cJSON *type = cJSON_IsObject(v) ? json_get(v, "type") : NULL;
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    if (strcmp(name, "text") == 0) return true;
    if (strcmp(name, "json_object") == 0) {
        return ask(r, "response_format", (grammar_spec){.kind = GRAMMAR_SCHEMA});
    }
    if (strcmp(name, "json_schema") != 0) {
        return bad(r, "response_format", "must have the type text, json_object or json_schema");
    }
    const cJSON *in = json_get(v, "json_schema");
    const cJSON *schema = cJSON_IsObject(in) ? json_get(in, "schema") : NULL;
    if (!openai_is_set(schema)) {
        return openai_refuse(r->p, 400, "missing_required_parameter",
                             "response_format.json_schema.schema",
                             "'response_format.json_schema.schema' is required");
    }
    return ask_schema(r, "response_format.json_schema.schema", schema);
}

typedef struct {
    const char *name;
    bool (*take)(reader *r, const char *param, const cJSON *v); /* NULL: refused */
    const char *param;
} form;

static const form outputs[] = {
    {"json", ask_schema, "structured_outputs.json"},
    {"regex", ask_regex, "structured_outputs.regex"},
    {"choice", ask_choice, "structured_outputs.choice"},
    {"json_object", ask_object, "structured_outputs.json_object"},
    {"grammar", NULL, "structured_outputs.grammar"},
    {"structural_tag", NULL, "structured_outputs.structural_tag"},
    {"whitespace_pattern", NULL, "structured_outputs.whitespace_pattern"},
};

static const form guided[] = {
    {"guided_json", ask_schema, "guided_json"},
    {"guided_regex", ask_regex, "guided_regex"},
    {"guided_choice", ask_choice, "guided_choice"},
};

static bool take_outputs(reader *r)
{
    const cJSON *in = json_get(r->body, "structured_outputs"), *v;
    if (!openai_is_set(in)) return true;
    if (!cJSON_IsObject(in)) return bad(r, "structured_outputs", "must be an object");
    cJSON_ArrayForEach(v, in)
    {
        size_t i = 0, n = sizeof(outputs) / sizeof(outputs[0]);
        while (i < n && strcmp(outputs[i].name, v->string) != 0) i++;
        if (!openai_is_set(v)) continue;
        if (i < n && !outputs[i].take) return unsupported(r, outputs[i].param);
        if (i < n && !outputs[i].take(r, outputs[i].param, v)) return false;
        /* others (disable_any_whitespace ...) steer vLLM's backends: what they ask for is so
         * here */
        bool hint = strncmp(v->string, "disable_", 8) == 0 && cJSON_IsBool(v);
        if (i == n && !hint) {
            return openai_refuse(r->p, 400, "unsupported_parameter", "structured_outputs",
                                 "'structured_outputs.%.60s' is not supported", v->string);
        }
    }
    return true;
}

bool openai_take_format(openai_request *rq, const cJSON *body, openai_problem *p)
{
    reader r = {rq, p, body};
    if (!take_response_format(&r) || !take_outputs(&r)) return false;
    for (size_t i = 0; i < sizeof(guided) / sizeof(guided[0]); i++) {
        const cJSON *v = json_get(body, guided[i].name);
        if (openai_is_set(v) && !guided[i].take(&r, guided[i].param, v)) return false;
    }
    if (!rq->format_param || !rq->rules.ignore_eos) return true;
    rq->rules.ignore_eos = false; /* what is complete ends */
    if (rq->n_ignored < OPENAI_IGNORED_MAX) rq->ignored[rq->n_ignored++] = "ignore_eos";
    return true;
}

void openai_request_clear(openai_request *rq)
{
    cJSON_Delete(rq->format_tree);
    cJSON_Delete(rq->owned);
    rq->format_tree = rq->owned = NULL;
}
