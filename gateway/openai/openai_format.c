/* openai_format.c -- reads which format an answer must have, into one grammar_spec.
 *
 *     response_format              OpenAI: text, json_object, json_schema, structural_tag
 *     structured_outputs.*         vLLM: json, regex, choice, grammar, json_object, structural_tag
 *     guided_*                     vLLM's older names
 *     grammar                      llama.cpp: GBNF
 *
 * Two of them in one request are an error, not a precedence: ask() keeps the name of the first
 * for the message. Nothing is compiled here; engine/grammar does it after admission, with its
 * own limits.
 *
 * Structural tags (a schema between literal texts, as XGrammar defines them) become one tree:
 * each tag's schema moves to $defs as f<i>, and its $refs are rewritten to point there
 * (openai_move_refs()). The tree is owned by the request (format_tree).
 *
 * A format ends the answer when it is complete, so ignore_eos is ignored with one.
 */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_inside.h"
#include "gateway/openai/openai_tools.h"

enum { TAGS_MAX = 128, TRIGGER_MAX = 256 };

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
                             "'%s' and '%s' both select a format for the answer: send only one",
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
            return openai_refuse(r->p, 400, "invalid_value", param, "'%s' is not JSON: %s", param,
                                 e.msg);
        }
        v = r->rq->format_tree;
    }
    if (!cJSON_IsObject(v) && !cJSON_IsBool(v)) return bad(r, param, "must be a JSON schema");
    return ask(r, param, (grammar_spec){.kind = GRAMMAR_SCHEMA, .json = v});
}

static bool ask_text(reader *r, const char *param, const cJSON *v, grammar_kind kind)
{
    if (!cJSON_IsString(v)) return bad(r, param, "must be a string");
    return ask(r, param, (grammar_spec){.kind = kind, .text = v->valuestring});
}

static bool ask_regex(reader *r, const char *param, const cJSON *v)
{
    return ask_text(r, param, v, GRAMMAR_REGEX);
}

static bool ask_grammar(reader *r, const char *param, const cJSON *v)
{
    return ask_text(r, param, v, GRAMMAR_CFG);
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

/* ---- structural tags ------------------------------------------------------------------------ */

/* One tag: its schema goes to $defs as f<i>. */
static bool add_tag(cJSON *root, const cJSON *begin, const cJSON *schema, const cJSON *end, int i)
{
    char name[16], path[32];
    bool failed = false;
    snprintf(name, sizeof(name), "f%d", i);
    snprintf(path, sizeof(path), "#/$defs/f%d", i);
    cJSON *own = cJSON_Duplicate(schema, true), *tag = cJSON_CreateObject();
    if (own) openai_move_refs(own, i, &failed);
    bool ok =
        own && cJSON_AddItemToObject(cJSON_GetObjectItemCaseSensitive(root, "$defs"), name, own);
    if (!ok) cJSON_Delete(own);
    cJSON *ref = tag ? cJSON_AddObjectToObject(tag, "schema") : NULL;
    ok = ok && !failed && ref && cJSON_AddStringToObject(ref, "$ref", path) &&
         cJSON_AddStringToObject(tag, "begin", begin->valuestring) &&
         cJSON_AddStringToObject(tag, "end", end->valuestring) &&
         cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(root, "tags"), tag);
    if (!ok) cJSON_Delete(tag);
    return ok;
}

/* {"begin", "schema", "end"}, or with "content" {"type": "json_schema", "json_schema"}. */
static const char *take_tag(cJSON *root, const cJSON *v, int i)
{
    const cJSON *begin = json_get(v, "begin"), *end = json_get(v, "end");
    const cJSON *schema = json_get(v, "schema"), *content = json_get(v, "content");
    const char *type = cJSON_GetStringValue(json_get(content, "type"));
    if (content && (!type || strcmp(type, "json_schema") != 0))
        return "must have contents of the type json_schema";
    if (content) schema = json_get(content, "json_schema");
    if (!cJSON_IsString(begin) || !cJSON_IsString(end)) return "must each have a begin and an end";
    if (!cJSON_IsObject(schema) && !cJSON_IsBool(schema)) return "must each have a schema";
    return add_tag(root, begin, schema, end, i) ? NULL : "are too large";
}

static bool begins(const cJSON *tag, const cJSON *trigger)
{
    const char *s = trigger->valuestring;
    return strncmp(json_get(tag, "begin")->valuestring, s, strlen(s)) == 0;
}

static const char *check_triggers(const cJSON *triggers)
{
    const cJSON *t;
    int n = cJSON_IsArray(triggers) ? cJSON_GetArraySize(triggers) : 0;
    if (n < 1 || n > TAGS_MAX) return "must be an array of 1 to 128 texts";
    cJSON_ArrayForEach(t, triggers)
    {
        const char *s = cJSON_GetStringValue(t);
        if (!s || !s[0] || strlen(s) > TRIGGER_MAX) return "must be texts of 1 to 256 bytes";
    }
    return NULL;
}

/* Each tag begins with a trigger, each trigger begins a tag. */
static const char *check_pairs(const cJSON *triggers, const cJSON *tags)
{
    const cJSON *t, *v;
    cJSON_ArrayForEach(v, tags)
    {
        bool ok = false;
        cJSON_ArrayForEach(t, triggers) ok |= begins(v, t);
        if (!ok) return "must each begin with one of the triggers";
    }
    cJSON_ArrayForEach(t, triggers)
    {
        bool ok = false;
        cJSON_ArrayForEach(v, tags) ok |= begins(v, t);
        if (!ok) return "must have one that begins with each of the triggers";
    }
    return NULL;
}

static bool take_tags(reader *r, const char *param, const cJSON *triggers, const cJSON *tags,
                      const char *list)
{
    char where[96];
    const char *amiss = check_triggers(triggers);
    snprintf(where, sizeof(where), "%s.triggers", param);
    if (amiss) return bad(r, where, amiss);
    cJSON *root = cJSON_CreateObject();
    const cJSON *v;
    int n = cJSON_IsArray(tags) ? cJSON_GetArraySize(tags) : 0, i = 0;
    const char *why = n < 1 || n > TAGS_MAX ? "must be an array of 1 to 128 tags" : NULL;
    bool ok = root && !r->rq->format_tree && cJSON_AddObjectToObject(root, "$defs") &&
              cJSON_AddArrayToObject(root, "tags");
    snprintf(where, sizeof(where), "%s.%s", param, list);
    cJSON_ArrayForEach(v, tags) if (ok && !why) why = take_tag(root, v, i++);
    if (ok && !why) why = check_pairs(triggers, json_get(root, "tags"));
    cJSON *copy = ok && !why ? cJSON_Duplicate(triggers, true) : NULL;
    ok = copy && cJSON_AddItemToObject(root, "triggers", copy);
    if (ok) {
        r->rq->format_tree = root;
        return ask(r, param, (grammar_spec){.kind = GRAMMAR_TAGS, .json = root});
    }
    cJSON_Delete(root);
    return bad(r, where, why ? why : "is given twice, or memory is short");
}

/* {"triggers", "structures"}, or as XGrammar has it now, {"format": {"type": "triggered_tags"}}. */
static bool ask_tags(reader *r, const char *param, const cJSON *v)
{
    const cJSON *format = json_get(v, "format");
    if (!format)
        return take_tags(r, param, json_get(v, "triggers"), json_get(v, "structures"),
                         "structures");
    const char *type = cJSON_GetStringValue(json_get(format, "type"));
    static const char *const words[] = {"at_least_one", "stop_after_first"};
    char where[96];
    snprintf(where, sizeof(where), "%s.format", param);
    if (!type || strcmp(type, "triggered_tags") != 0)
        return bad(r, where, "must have the type triggered_tags");
    for (int i = 0; i < 2; i++)
        if (cJSON_IsTrue(json_get(format, words[i])))
            return bad(r, where, "asks for at_least_one or stop_after_first: not supported");
    return take_tags(r, param, json_get(format, "triggers"), json_get(format, "tags"),
                     "format.tags");
}

/* vLLM's: the text of such an object. */
static bool ask_tags_text(reader *r, const char *param, const cJSON *v)
{
    err e;
    cJSON *tree = NULL;
    const char *s = cJSON_GetStringValue(v);
    if (!s && !cJSON_IsObject(v)) return bad(r, param, "must be an object, or the text of one");
    if (s && json_parse(s, strlen(s), &json_limits_request, &tree, &e))
        return openai_refuse(r->p, 400, "invalid_value", param, "'%s' is not JSON: %s", param,
                             e.msg);
    bool ok = ask_tags(r, param, tree ? tree : v);
    cJSON_Delete(tree);
    return ok;
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
    if (strcmp(name, "structural_tag") == 0) return ask_tags(r, "response_format", v);
    if (strcmp(name, "json_schema") != 0) {
        return bad(r, "response_format",
                   "must have the type text, json_object, json_schema or structural_tag");
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
    {"grammar", ask_grammar, "structured_outputs.grammar"},
    {"structural_tag", ask_tags_text, "structured_outputs.structural_tag"},
    {"whitespace_pattern", NULL, "structured_outputs.whitespace_pattern"},
};

static const form guided[] = {
    {"guided_json", ask_schema, "guided_json"},
    {"guided_regex", ask_regex, "guided_regex"},
    {"guided_choice", ask_choice, "guided_choice"},
    {"guided_grammar", ask_grammar, "guided_grammar"},
    {"grammar", ask_grammar, "grammar"},
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
