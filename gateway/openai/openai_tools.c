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

static bool take_word(openai_request *rq, const cJSON *v)
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
    return false;
}

/* {"type": "function", "function": {"name"}}, or, as Responses has it, {"type": "function",
 * "name"}. */
static const char *allowed_name(const cJSON *v)
{
    const cJSON *f = cJSON_IsObject(v) ? json_get(v, "function") : NULL;
    const cJSON *type = cJSON_IsObject(v) ? json_get(v, "type") : NULL;
    const cJSON *name = cJSON_IsObject(f) ? json_get(f, "name")
                        : f || !type      ? NULL
                                          : json_get(v, "name");
    bool function = cJSON_IsString(type) && strcmp(type->valuestring, "function") == 0;
    return function ? cJSON_GetStringValue(name) : NULL;
}

/* The model sees all tools, and may call these. */
static bool allow_only(openai_request *rq, const cJSON *list, openai_problem *p)
{
    const cJSON *v, *t;
    cJSON *callable = cJSON_CreateArray();
    if (!rq->owned) rq->owned = cJSON_CreateArray();
    if (!callable || !rq->owned) {
        cJSON_Delete(callable);
        return no_memory(p);
    }
    cJSON_AddItemToArray(rq->owned, callable);
    cJSON_ArrayForEach(v, list)
    {
        const char *name = allowed_name(v);
        if (!name || !function_named(rq->tools, name))
            return bad(p, "tool_choice", "allows a function that is not in 'tools'");
    }
    cJSON_ArrayForEach(t, rq->tools)
    {
        bool allowed = false;
        const char *name = json_get(json_get(t, "function"), "name")->valuestring;
        cJSON_ArrayForEach(v, list) allowed |= strcmp(allowed_name(v), name) == 0;
        if (allowed && !cJSON_AddItemReferenceToArray(callable, (cJSON *)t)) return no_memory(p);
    }
    rq->callable = callable;
    return callable->child || bad(p, "tool_choice", "allows no tool");
}

/* {"type": "allowed_tools", "mode", "tools"}, in chat inside of "allowed_tools". */
static bool take_allowed(openai_request *rq, const cJSON *v, openai_problem *p)
{
    const cJSON *in = json_get(v, "allowed_tools"), *list;
    if (!cJSON_IsObject(in)) in = v;
    list = json_get(in, "tools");
    if (!cJSON_IsArray(list)) return bad(p, "tool_choice", "must have an array 'tools'");
    if (!take_word(rq, json_get(in, "mode")) || rq->tool_choice == TOOL_CHOICE_NONE)
        return bad(p, "tool_choice", "must have the mode auto or required");
    return allow_only(rq, list, p);
}

static bool take_choice(openai_request *rq, const cJSON *v, openai_problem *p)
{
    if (take_word(rq, v)) return true;
    const cJSON *type = cJSON_IsObject(v) ? json_get(v, "type") : NULL;
    if (cJSON_IsString(type) && strcmp(type->valuestring, "allowed_tools") == 0)
        return take_allowed(rq, v, p);
    const cJSON *f = cJSON_IsObject(v) ? json_get(v, "function") : NULL;
    const cJSON *name = cJSON_IsObject(f) ? json_get(f, "name") : NULL;
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0 ||
        !cJSON_IsString(name))
        return bad(p, "tool_choice",
                   "must be none, auto, required, allowed_tools or name a function");
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
    rq->tools = rq->callable = tools;
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
