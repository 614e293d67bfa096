/* openai_tools.c -- tools are checked here once; the template and the grammar take them as they
 * are.
 *
 * Functions and custom tools are called by the model and executed by the client.  A custom tool
 * takes a text; the model calls it as a function of one text, `input`, and the answer has that
 * text.  Tools that only a provider can execute are left out and named as ignored.
 */
#include "gateway/openai/openai_tools.h"

#include <stdio.h>
#include <stdlib.h>
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

bool openai_own(openai_request *rq, cJSON *tree)
{
    if (!rq->owned) rq->owned = cJSON_CreateArray();
    return rq->owned && (!tree || cJSON_AddItemToArray(rq->owned, tree));
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

/* ---- kinds of tools ------------------------------------------------------------------------ */

/* The beginning of a provider's tool, which runs where the provider is: no model calls it. */
static bool is_provided(const char *type)
{
    static const char *const known[] = {
        "web_search",       "web_fetch", "file_search", "code_",        "computer",
        "image_generation", "mcp",       "tool_",       "programmatic", "shell",
        "memory_",          "bash_",     "text_",       "advisor_",     "browser"};
    for (size_t i = 0; type && i < sizeof(known) / sizeof(known[0]); i++)
        if (strncmp(type, known[i], strlen(known[i])) == 0) return true;
    return false;
}

/* One entry of `tools` while it is read. */
typedef struct {
    openai_parser *ps;
    cJSON *list, *texts; /* what is called; names of those of them that take a text */
    int i;
    const char *omitted; /* the type of a provider's tool; NULL: there was none */
} tool_list;

static bool wrong(tool_list *l, const char *member, const char *what)
{
    char param[96];
    snprintf(param, sizeof(param), "tools[%d]%s", l->i, member);
    return bad(l->ps->p, param, what);
}

/* Takes `tool` over, or borrows it.  Its function has a name that no other has. */
static bool keep_tool(tool_list *l, const cJSON *tool, bool own, const char *where)
{
    const char *name = json_get(json_get(tool, "function"), "name")->valuestring;
    bool twice = function_named(l->list, name) != NULL;
    bool kept = !twice && (own ? cJSON_AddItemToArray(l->list, (cJSON *)tool)
                               : cJSON_AddItemReferenceToArray(l->list, (cJSON *)tool));
    if (own && !kept) cJSON_Delete((cJSON *)tool);
    return twice ? wrong(l, where, "is the name of two tools") : kept || no_memory(l->ps->p);
}

static bool take_function(tool_list *l, const cJSON *t)
{
    const cJSON *f = json_get(t, "function");
    if (!cJSON_IsObject(f)) return wrong(l, ".function", "must be an object");
    const cJSON *says = json_get(f, "description"), *parameters = json_get(f, "parameters"),
                *strict = json_get(f, "strict");
    if (!is_name(json_get(f, "name")))
        return wrong(l, ".function.name", "must be 1 to 64 letters, digits, '_' or '-'");
    if (openai_is_set(says) && !cJSON_IsString(says))
        return wrong(l, ".function.description", "must be a string");
    if (openai_is_set(parameters) && !cJSON_IsObject(parameters))
        return wrong(l, ".function.parameters", "must be a JSON schema");
    if (openai_is_set(strict) && !cJSON_IsBool(strict))
        return wrong(l, ".function.strict", "must be true or false");
    return keep_tool(l, t, false, ".function.name");
}

/* The schema of a text, in the format that a custom tool asks for.  NULL: *what says why. */
static cJSON *schema_of_text(const cJSON *format, const char **what)
{
    const cJSON *in = json_get(format, "grammar"), *from = cJSON_IsObject(in) ? in : format;
    const char *type = cJSON_GetStringValue(json_get(format, "type"));
    const char *syntax = cJSON_GetStringValue(json_get(from, "syntax"));
    const char *definition = cJSON_GetStringValue(json_get(from, "definition"));
    cJSON *s = cJSON_CreateObject();
    bool ok = s && cJSON_AddStringToObject(s, "type", "string"), lark = false;
    *what = NULL;
    if (openai_is_set(format) && !type) *what = "must have the type text or grammar";
    if (type && strcmp(type, "text") != 0) {
        lark = syntax && strcmp(syntax, "lark") == 0;
        bool known = strcmp(type, "grammar") == 0 && (lark || (syntax && !strcmp(syntax, "regex")));
        if (!known || !definition)
            *what = "must have the type text, or grammar with the syntax lark or regex and a "
                    "definition";
        else if (lark)
            ok = ok && cJSON_AddStringToObject(s, "x-lorad-grammar", definition);
        else {
            size_t size = strlen(definition) + 16;
            char *whole = malloc(size);
            if (whole) snprintf(whole, size, "^(%s)$", definition);
            ok = ok && whole && cJSON_AddStringToObject(s, "pattern", whole);
            free(whole);
        }
    }
    if (ok && !*what) return s;
    cJSON_Delete(s);
    return NULL;
}

/* A function of one text: {"input": schema}. */
static cJSON *function_of_text(const char *name, const cJSON *says, cJSON *schema)
{
    static const char *const input = "input";
    cJSON *t = cJSON_CreateObject(), *required = cJSON_CreateStringArray(&input, 1);
    bool ok = t && cJSON_AddStringToObject(t, "type", "function");
    cJSON *f = ok ? cJSON_AddObjectToObject(t, "function") : NULL;
    ok = f && cJSON_AddStringToObject(f, "name", name) &&
         (!cJSON_IsString(says) || cJSON_AddStringToObject(f, "description", says->valuestring));
    cJSON *s = ok ? cJSON_AddObjectToObject(f, "parameters") : NULL;
    ok = s && cJSON_AddStringToObject(s, "type", "object");
    cJSON *properties = ok ? cJSON_AddObjectToObject(s, "properties") : NULL;
    ok = properties && cJSON_AddItemToObject(properties, input, schema);
    if (!ok) cJSON_Delete(schema);
    ok = ok && cJSON_AddBoolToObject(s, "additionalProperties", false) && required;
    if (ok && cJSON_AddItemToObject(s, "required", required)) return t;
    cJSON_Delete(required);
    cJSON_Delete(t);
    return NULL;
}

/* A tool that takes a text, as the client executes it: called as a function of one text. */
static bool take_custom(tool_list *l, const cJSON *t)
{
    const char *what;
    const cJSON *c = json_get(t, "custom"), *name = json_get(c, "name");
    if (!cJSON_IsObject(c)) return wrong(l, ".custom", "must be an object");
    if (!is_name(name))
        return wrong(l, ".custom.name", "must be 1 to 64 letters, digits, '_' or '-'");
    cJSON *schema = schema_of_text(json_get(c, "format"), &what);
    if (!schema) return what ? wrong(l, ".custom.format", what) : no_memory(l->ps->p);
    cJSON *tool = function_of_text(name->valuestring, json_get(c, "description"), schema);
    cJSON *known = cJSON_CreateString(name->valuestring);
    if (!tool || !known || !cJSON_AddItemToArray(l->texts, known)) {
        cJSON_Delete(tool);
        cJSON_Delete(known);
        return no_memory(l->ps->p);
    }
    return keep_tool(l, tool, true, ".custom.name");
}

/* A provider's tool is left out, and named as ignored. */
static bool omit_tool(tool_list *l, const char *type)
{
    openai_parser *ps = l->ps;
    size_t size = strlen(type) + sizeof("tools.");
    char *name = arena_alloc(ps->mem, size);
    if (!name) return openai_no_memory(ps, "tools");
    snprintf(name, size, "tools.%s", type);
    l->omitted = type;
    if (!ps->lim->strict) return openai_ignore(ps, name);
    return openai_refuse(ps->p, 400, "unsupported_parameter", "tools",
                         "'tools': '%.60s' is a tool that only its provider can execute", type);
}

static bool take_tool(tool_list *l, const cJSON *t)
{
    const char *type = cJSON_IsObject(t) ? cJSON_GetStringValue(json_get(t, "type")) : NULL;
    if (type && strcmp(type, "function") == 0) return take_function(l, t);
    if (type && strcmp(type, "custom") == 0) return take_custom(l, t);
    if (type && strlen(type) <= TOOL_NAME_MAX && is_provided(type)) return omit_tool(l, type);
    return wrong(l, ".type", "must be 'function' or 'custom'");
}

/* rq->tools from the body's, each once, each of them a function. */
static bool take_list(openai_parser *ps, const cJSON *tools)
{
    openai_request *rq = ps->rq;
    tool_list l = {.ps = ps, .list = cJSON_CreateArray(), .texts = cJSON_CreateArray()};
    const cJSON *t;
    bool first = l.list && openai_own(rq, l.list), second = l.texts && openai_own(rq, l.texts);
    if (!first) cJSON_Delete(l.list);
    if (!second) cJSON_Delete(l.texts);
    if (!first || !second) return no_memory(ps->p);
    cJSON_ArrayForEach(t, tools)
    {
        if (!take_tool(&l, t)) return false;
        l.i++;
    }
    if (!l.list->child && l.omitted)
        return openai_refuse(ps->p, 400, "unsupported_parameter", "tools",
                             "'tools' has none that can be called: only its provider can execute "
                             "'%.60s'; add a function",
                             l.omitted);
    rq->tools = rq->callable = l.list->child ? l.list : NULL;
    rq->texts = l.texts->child ? l.texts : NULL;
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
 * "name"}; likewise of the type custom. */
static const char *allowed_name(const cJSON *v)
{
    const char *type = cJSON_IsObject(v) ? cJSON_GetStringValue(json_get(v, "type")) : NULL;
    bool known = type && (strcmp(type, "function") == 0 || strcmp(type, "custom") == 0);
    const cJSON *f = known ? json_get(v, type) : NULL;
    return known ? cJSON_GetStringValue(json_get(f ? f : v, "name")) : NULL;
}

/* The model sees all tools, and may call these. */
static bool allow_only(openai_request *rq, const cJSON *list, openai_problem *p)
{
    const cJSON *v, *t;
    cJSON *callable = cJSON_CreateArray();
    if (!callable || !openai_own(rq, callable)) {
        cJSON_Delete(callable);
        return no_memory(p);
    }
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
    const char *type = cJSON_IsObject(v) ? cJSON_GetStringValue(json_get(v, "type")) : NULL;
    if (type && strcmp(type, "allowed_tools") == 0) return take_allowed(rq, v, p);
    if (is_provided(type))
        return openai_refuse(p, 400, "unsupported_parameter", "tool_choice",
                             "'tool_choice': only its provider can execute '%.60s'", type);
    const char *name = type && cJSON_IsObject(json_get(v, type)) ? allowed_name(v) : NULL;
    if (!name)
        return bad(p, "tool_choice",
                   "must be none, auto, required, allowed_tools or name a function");
    rq->tool_choice = TOOL_CHOICE_NAMED;
    rq->tool_named = function_named(rq->tools, name);
    return rq->tool_named || bad(p, "tool_choice", "names a function that is not in 'tools'");
}

bool openai_take_tools(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    openai_problem *p = ps->p;
    const cJSON *tools = json_get(ps->body, "tools"), *choice = json_get(ps->body, "tool_choice"),
                *many = json_get(ps->body, "parallel_tool_calls");
    bool given = cJSON_IsArray(tools);
    if ((openai_is_set(tools) && !given) || cJSON_GetArraySize(tools) > OPENAI_TOOLS_MAX)
        return openai_refuse(p, 400, "invalid_value", "tools",
                             "'tools' must be an array of at most %d tools", OPENAI_TOOLS_MAX);
    if (given && tools->child && !take_list(ps, tools)) return false;
    rq->tool_choice = rq->tools ? TOOL_CHOICE_AUTO : TOOL_CHOICE_NONE;
    if (openai_is_set(many) && !cJSON_IsBool(many))
        return bad(p, "parallel_tool_calls", "must be true or false");
    rq->one_call = cJSON_IsFalse(many);
    if (openai_is_set(choice) && !take_choice(rq, choice, p)) return false;
    bool empty = given && !rq->tools;
    if (empty && rq->tool_choice == TOOL_CHOICE_AUTO) rq->tool_choice = TOOL_CHOICE_NONE;
    if (!rq->tools && rq->tool_choice != TOOL_CHOICE_NONE)
        return bad(p, "tool_choice", "is allowed only with 'tools'");
    if (rq->tool_choice == TOOL_CHOICE_NONE) rq->tools = NULL; /* nothing for the model to see */
    return true;
}
