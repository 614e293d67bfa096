/* openai_tools.c -- tools are checked here once; the template and the
 * grammar take them as they are. */
#include "gateway/openai/openai_tools.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_inside.h"

static bool bad(openai_problem *p, const char *param, const char *what)
{
    return openai_refuse(p, 400, "invalid_value", param, "'%s' %s", param, what);
}

static bool no_memory(openai_problem *p)
{
    return openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
}

static bool is_name(const cJSON *v)
{
    const char *s = cJSON_IsString(v) ? v->valuestring : "";
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return n > 0 && n <= TOOL_NAME_MAX && !s[n];
}

static const cJSON *function_named(const cJSON *tools, const char *name)
{
    const cJSON *t;
    cJSON_ArrayForEach(t, tools)
    {
        const cJSON *f = json_get(t, "function");
        if (strcmp(json_get(f, "name")->valuestring, name) == 0) return f;
    }
    return NULL;
}

static bool take_tool(const cJSON *all, const cJSON *t, int i, openai_problem *p)
{
    char param[64];
    const cJSON *type = cJSON_IsObject(t) ? json_get(t, "type") : NULL;
    const cJSON *f = cJSON_IsObject(t) ? json_get(t, "function") : NULL;
    snprintf(param, sizeof(param), "tools[%d].type", i);
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0)
        return bad(p, param, "must be 'function'");
    snprintf(param, sizeof(param), "tools[%d].function", i);
    if (!cJSON_IsObject(f)) return bad(p, param, "must be an object");
    const cJSON *name = json_get(f, "name"), *says = json_get(f, "description");
    const cJSON *parameters = json_get(f, "parameters"), *strict = json_get(f, "strict");
    snprintf(param, sizeof(param), "tools[%d].function.name", i);
    if (!is_name(name)) return bad(p, param, "must be 1 to 64 letters, digits, '_' or '-'");
    for (const cJSON *other = all->child; other != t; other = other->next) {
        const cJSON *theirs = json_get(json_get(other, "function"), "name");
        if (strcmp(theirs->valuestring, name->valuestring) == 0)
            return bad(p, param, "is the name of two tools");
    }
    snprintf(param, sizeof(param), "tools[%d].function.description", i);
    if (openai_is_set(says) && !cJSON_IsString(says)) return bad(p, param, "must be a string");
    snprintf(param, sizeof(param), "tools[%d].function.parameters", i);
    if (openai_is_set(parameters) && !cJSON_IsObject(parameters))
        return bad(p, param, "must be a JSON schema");
    snprintf(param, sizeof(param), "tools[%d].function.strict", i);
    if (openai_is_set(strict) && !cJSON_IsBool(strict))
        return bad(p, param, "must be true or false");
    return true;
}

static bool take_choice(openai_request *rq, const cJSON *v, openai_problem *p)
{
    static const struct {
        const char *name;
        tool_choice choice;
    } words[] = {
        {"none", TOOL_CHOICE_NONE}, {"auto", TOOL_CHOICE_AUTO}, {"required", TOOL_CHOICE_REQUIRED}};
    const char *word = cJSON_IsString(v) ? v->valuestring : NULL;
    for (size_t i = 0; word && i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(words[i].name, word) != 0) continue;
        rq->tool_choice = words[i].choice;
        return true;
    }
    const cJSON *type = cJSON_IsObject(v) ? json_get(v, "type") : NULL;
    const cJSON *f = cJSON_IsObject(v) ? json_get(v, "function") : NULL;
    const cJSON *name = cJSON_IsObject(f) ? json_get(f, "name") : NULL;
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0 ||
        !cJSON_IsString(name))
        return bad(p, "tool_choice", "must be none, auto, required or name a function");
    rq->tool_choice = TOOL_CHOICE_NAMED;
    rq->tool_named = function_named(rq->tools, name->valuestring);
    return rq->tool_named || bad(p, "tool_choice", "names a function that is not in 'tools'");
}

bool openai_take_tools(openai_request *rq, const cJSON *body, openai_problem *p)
{
    const cJSON *tools = json_get(body, "tools"), *t;
    const cJSON *choice = json_get(body, "tool_choice"),
                *many = json_get(body, "parallel_tool_calls");
    int i = 0, n = cJSON_IsArray(tools) ? cJSON_GetArraySize(tools) : 0;
    if (openai_is_set(tools) && (n < 1 || n > OPENAI_TOOLS_MAX)) {
        return openai_refuse(p, 400, "invalid_value", "tools",
                             "'tools' must be an array of 1 to %d tools", OPENAI_TOOLS_MAX);
    }
    if (!n) tools = NULL;
    cJSON_ArrayForEach(t, tools)
    {
        if (!take_tool(tools, t, i++, p)) return false;
    }
    rq->tools = tools;
    rq->tool_choice = n ? TOOL_CHOICE_AUTO : TOOL_CHOICE_NONE;
    if (openai_is_set(many) && !cJSON_IsBool(many))
        return bad(p, "parallel_tool_calls", "must be true or false");
    rq->one_call = cJSON_IsFalse(many);
    if (openai_is_set(choice) && !take_choice(rq, choice, p)) return false;
    if (!n && rq->tool_choice != TOOL_CHOICE_NONE)
        return bad(p, "tool_choice", "is allowed only with 'tools'");
    if (rq->tool_choice == TOOL_CHOICE_NONE) rq->tools = NULL; /* nothing for the model to see */
    return true;
}

/* --------------------------------------------------------------------- in messages -- */

static bool no_call(openai_problem *p, int message, int call, const char *field, const char *what)
{
    char param[80];
    snprintf(param, sizeof(param), "messages[%d].tool_calls[%d]%s", message, call, field);
    return bad(p, param, what);
}

/* Its arguments as an object, {} where the text is empty; NULL: *p says why. */
static cJSON *copy_arguments(const cJSON *args, int message, int i, openai_problem *p)
{
    cJSON *object = NULL;
    err e;
    const char *text = cJSON_IsString(args) ? args->valuestring : "";
    bool ok = cJSON_IsString(args) &&
              (!text[0] || !json_parse(text, strlen(text), &json_limits_request, &object, &e));
    if (!ok || (object && !cJSON_IsObject(object))) {
        cJSON_Delete(object);
        (void)no_call(p, message, i, ".function.arguments", "must be the text of a JSON object");
        return NULL;
    }
    if (!object) object = cJSON_CreateObject();
    if (!object) (void)no_memory(p);
    return object;
}

/* Takes `arguments` over.  Members stand in this order in what templates print.  NULL: no
 * memory. */
static cJSON *make_call(const char *id, const char *name, cJSON *arguments)
{
    cJSON *call = cJSON_CreateObject(), *function = cJSON_CreateObject();
    bool ok = call && function && cJSON_AddStringToObject(call, "id", id) &&
              cJSON_AddStringToObject(call, "type", "function") &&
              cJSON_AddStringToObject(function, "name", name) &&
              cJSON_AddItemToObject(function, "arguments", arguments);
    if (!ok) cJSON_Delete(arguments);
    if (ok && cJSON_AddItemToObject(call, "function", function)) return call;
    cJSON_Delete(function);
    cJSON_Delete(call);
    return NULL;
}

static bool check_call(const cJSON *id, const cJSON *type, const cJSON *name, int message, int i,
                       openai_problem *p)
{
    bool function = !openai_is_set(type) ||
                    (cJSON_IsString(type) && strcmp(type->valuestring, "function") == 0);
    if (!cJSON_IsString(id)) return no_call(p, message, i, ".id", "must be a string");
    if (!function) return no_call(p, message, i, ".type", "must be 'function'");
    return cJSON_IsString(name) || no_call(p, message, i, ".function.name", "must be a string");
}

/* One call, its arguments as an object; NULL: *p says why. */
static cJSON *copy_call(const cJSON *v, int message, int i, openai_problem *p)
{
    const cJSON *id = cJSON_IsObject(v) ? json_get(v, "id") : NULL;
    const cJSON *type = cJSON_IsObject(v) ? json_get(v, "type") : NULL;
    const cJSON *f = cJSON_IsObject(v) ? json_get(v, "function") : NULL;
    const cJSON *name = cJSON_IsObject(f) ? json_get(f, "name") : NULL;
    if (!check_call(id, type, name, message, i, p)) return NULL;
    cJSON *arguments = copy_arguments(json_get(f, "arguments"), message, i, p);
    if (!arguments) return NULL;
    cJSON *call = make_call(id->valuestring, name->valuestring, arguments);
    if (!call) (void)no_memory(p);
    return call;
}

bool openai_take_calls(openai_request *rq, const cJSON *calls, int index, chat_message *m,
                       openai_problem *p)
{
    int i = 0, n = cJSON_IsArray(calls) ? cJSON_GetArraySize(calls) : 0;
    if (n < 1 || n > TOOL_CALLS_MAX) {
        char param[48];
        snprintf(param, sizeof(param), "messages[%d].tool_calls", index);
        return bad(p, param, "must be an array of 1 to 128 calls");
    }
    if (!rq->owned) rq->owned = cJSON_CreateArray();
    cJSON *list = cJSON_CreateArray(), *call = NULL;
    if (!rq->owned || !list) {
        cJSON_Delete(list);
        return no_memory(p);
    }
    cJSON_AddItemToArray(rq->owned, list);
    const cJSON *v;
    cJSON_ArrayForEach(v, calls)
    {
        call = copy_call(v, index, i++, p);
        if (!call) return false;
        cJSON_AddItemToArray(list, call);
    }
    m->tool_calls = list;
    return true;
}

/* -------------------------------------------------------------------- forced calls -- */

/* References inside a function's schema lead from its own root, which lies deeper now.  Sets
 * *failed when memory is short. */
static void move_refs(cJSON *s, int fn, bool *failed)
{
    static const char *const values[] = {"const", "enum", "default", "examples", "example"};
    cJSON *v;
    cJSON_ArrayForEach(v, s)
    {
        bool data = false;
        for (size_t i = 0; v->string && i < sizeof(values) / sizeof(values[0]); i++)
            data |= strcmp(values[i], v->string) == 0;
        if (data) continue;
        if (v->string && strcmp(v->string, "$ref") == 0 && cJSON_IsString(v) &&
            v->valuestring[0] == '#') {
            char path[512];
            int n = snprintf(path, sizeof(path), "#/$defs/f%d%s", fn, v->valuestring + 1);
            if (n >= (int)sizeof(path) || !cJSON_SetValuestring(v, path)) *failed = true;
        } else if (v->child) {
            move_refs(v, fn, failed);
        }
    }
}

/* {"name": "f", "arguments": {...}}, its arguments at #/$defs/f<fn>. */
static cJSON *schema_of_call(const cJSON *f, int fn, const char *arguments)
{
    char ref[32];
    snprintf(ref, sizeof(ref), "#/$defs/f%d", fn);
    const char *const words[] = {"name", arguments};
    cJSON *s = cJSON_CreateObject(), *required = cJSON_CreateStringArray(words, 2);
    cJSON *properties = s ? cJSON_AddObjectToObject(s, "properties") : NULL;
    cJSON *name = properties ? cJSON_AddObjectToObject(properties, "name") : NULL;
    cJSON *args = properties ? cJSON_AddObjectToObject(properties, arguments) : NULL;
    bool ok = name && args && required && cJSON_AddStringToObject(s, "type", "object") &&
              cJSON_AddBoolToObject(s, "additionalProperties", false) &&
              cJSON_AddStringToObject(name, "const", json_get(f, "name")->valuestring) &&
              cJSON_AddStringToObject(args, "$ref", ref);
    if (!ok || !cJSON_AddItemToObject(s, "required", required)) {
        cJSON_Delete(required);
        cJSON_Delete(s);
        return NULL;
    }
    return s;
}

/* The arguments' own schema; a function without one takes none. */
static cJSON *schema_of_arguments(const cJSON *f, int fn)
{
    const cJSON *given = json_get(f, "parameters");
    bool failed = false;
    if (openai_is_set(given) && given->child) {
        cJSON *s = cJSON_Duplicate(given, true);
        if (s) move_refs(s, fn, &failed);
        if (s && !failed && !json_get(s, "type") && !json_get(s, "$ref") && !json_get(s, "anyOf"))
            failed = !cJSON_AddStringToObject(s, "type", "object");
        if (!failed) return s;
        cJSON_Delete(s);
        return NULL;
    }
    cJSON *s = cJSON_CreateObject();
    if (s && cJSON_AddStringToObject(s, "type", "object") &&
        cJSON_AddObjectToObject(s, "properties") &&
        cJSON_AddBoolToObject(s, "additionalProperties", false)) {
        return s;
    }
    cJSON_Delete(s);
    return NULL;
}

bool openai_force_call(openai_request *rq, tool_style style, openai_problem *p)
{
    if (rq->tool_choice != TOOL_CHOICE_REQUIRED && rq->tool_choice != TOOL_CHOICE_NAMED)
        return true;
    if (rq->format_param) {
        return openai_refuse(p, 400, "invalid_value", "tool_choice",
                             "'%s' and 'tool_choice' both say what the answer is: give one",
                             rq->format_param);
    }
    cJSON *root = cJSON_CreateObject();
    cJSON *defs = root ? cJSON_AddObjectToObject(root, "$defs") : NULL;
    cJSON *any = defs ? cJSON_AddArrayToObject(root, "anyOf") : NULL;
    const cJSON *t;
    int fn = 0;
    bool ok = any != NULL;
    cJSON_ArrayForEach(t, rq->tools)
    {
        const cJSON *f = json_get(t, "function");
        char name[16];
        if (!ok || (rq->tool_named && f != rq->tool_named)) continue;
        snprintf(name, sizeof(name), "f%d", fn);
        cJSON *args = schema_of_arguments(f, fn);
        cJSON *call = schema_of_call(f, fn++, tool_style_arguments(style));
        ok = args && call && cJSON_AddItemToObject(defs, name, args);
        if (!ok) cJSON_Delete(args);
        if (ok) ok = cJSON_AddItemToArray(any, call);
        if (!ok) cJSON_Delete(call);
    }
    if (!ok) {
        cJSON_Delete(root);
        return no_memory(p);
    }
    rq->format_tree = root;
    rq->format_param = "tools";
    rq->format = (grammar_spec){.kind = GRAMMAR_SCHEMA, .json = root};
    rq->one_call = true;
    rq->rules.ignore_eos = false;
    return true;
}
