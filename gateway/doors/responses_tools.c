/* responses_tools.c -- tools of the Responses API as a chat's, and their calls as items.
 *
 * A chat has functions and custom tools.  local_shell and apply_patch become functions of that
 * name, with the members of their actions as arguments; the tools of a namespace become functions
 * named "namespace__name".  Tools that only a provider can execute go to the chat as they are: it
 * leaves them out, or says why not. */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/doors/responses.h"

static const char shell_tool[] =
    "{\"type\":\"function\",\"function\":{\"name\":\"local_shell\",\"description\":\"Runs a "
    "command in "
    "the user's shell.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"command\":{\"type\":"
    "\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1},\"working_directory\":{\"type\":"
    "\"string\"},\"timeout_ms\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":3600000}},"
    "\"required\":[\"command\"],\"additionalProperties\":false}}}";
static const char patch_tool[] =
    "{\"type\":\"function\",\"function\":{\"name\":\"apply_patch\",\"description\":\"Creates, "
    "updates "
    "or deletes a file; diff is a V4A diff.\",\"parameters\":{\"type\":\"object\",\"anyOf\":[{"
    "\"type\":\"object\",\"properties\":{\"type\":{\"enum\":[\"create_file\",\"update_file\"]},"
    "\"path\":{\"type\":\"string\"},\"diff\":{\"type\":\"string\"}},\"required\":[\"type\","
    "\"path\","
    "\"diff\"],\"additionalProperties\":false},{\"type\":\"object\",\"properties\":{\"type\":{"
    "\"enum\":"
    "[\"delete_file\"]},\"path\":{\"type\":\"string\"}},\"required\":[\"type\",\"path\"],"
    "\"additionalProperties\":false}]}}}";
static const char shell_name[] = "local_shell", patch_name[] = "apply_patch";

static bool bad(openai_problem *p, const char *param, const char *what)
{
    return openai_refuse(p, 400, "invalid_value", param, "'%s' %s", param, what);
}

/* ------------------------------------------------------------------------- tools -- */

/* A function's or custom tool's members where a chat has them: under the type's name. */
static cJSON *nested(const char *type, const cJSON *tool, const char *name)
{
    static const char *const members[] = {"description", "parameters", "strict", "format"};
    cJSON *out = cJSON_CreateObject(), *inner = cJSON_CreateObject();
    door_add_text(out, "type", type);
    if (name)
        door_add_text(inner, "name", name);
    else
        door_copy_set(inner, "name", tool, "name");
    for (size_t i = 0; tool && i < sizeof(members) / sizeof(members[0]); i++)
        door_copy_set(inner, members[i], tool, members[i]);
    door_add(out, type, inner);
    return out;
}

static bool is_called(const char *type)
{
    return type && (strcmp(type, "function") == 0 || strcmp(type, "custom") == 0);
}

/* The tools of a namespace, each under a name that has both. */
static bool take_namespace(responses_run *r, cJSON *list, const cJSON *space, openai_problem *p)
{
    const cJSON *tools = json_get(space, "tools"), *t;
    const char *prefix = door_text(space, "name");
    if (!prefix || !cJSON_IsArray(tools))
        return bad(p, "tools", "has a namespace without 'name' or 'tools'");
    if (!r->spaces) r->spaces = cJSON_CreateObject();
    cJSON_ArrayForEach(t, tools)
    {
        char both[160];
        const char *type = door_text(t, "type"), *name = door_text(t, "name");
        if (!is_called(type) || !name)
            return bad(p, "tools", "has a namespace with a tool that is not a function");
        snprintf(both, sizeof(both), "%.70s__%.70s", prefix, name);
        cJSON *own = cJSON_CreateObject();
        door_add_text(own, "name", name);
        door_add_text(own, "namespace", prefix);
        door_add(r->spaces, both, own);
        door_append(list, nested(type, t, both));
    }
    return true;
}

static bool take_tool(responses_run *r, cJSON *list, const cJSON *tool, openai_problem *p)
{
    const char *type = door_text(tool, "type");
    if (!type)
        return openai_refuse(p, 400, "unsupported_parameter", "tools",
                             "'tools': a tool without a type is not supported");
    if (strcmp(type, "namespace") == 0) return take_namespace(r, list, tool, p);
    bool shell = strcmp(type, shell_name) == 0, patch = strcmp(type, patch_name) == 0;
    r->has_shell |= shell;
    r->has_patch |= patch;
    cJSON *out = is_called(type) ? nested(type, tool, NULL)
                 : shell         ? cJSON_Parse(shell_tool)
                 : patch         ? cJSON_Parse(patch_tool)
                                 : cJSON_CreateObject();
    if (!is_called(type) && !shell && !patch) door_add_text(out, "type", type);
    door_append(list, out);
    return true;
}

/* A choice of one tool, as a chat has it. */
static cJSON *chosen(const cJSON *choice)
{
    const char *type = door_text(choice, "type"), *space = door_text(choice, "namespace");
    bool own = type && (strcmp(type, shell_name) == 0 || strcmp(type, patch_name) == 0);
    char both[160];
    if (is_called(type) && space)
        snprintf(both, sizeof(both), "%.70s__%.70s", space,
                 door_text(choice, "name") ? door_text(choice, "name") : "");
    if (is_called(type)) return nested(type, choice, space ? both : NULL);
    return own ? nested("function", NULL, type) : cJSON_Duplicate(choice, true);
}

static void take_choice(responses_run *r, const cJSON *choice)
{
    if (!cJSON_IsObject(choice) || !door_is(choice, "type", "allowed_tools")) {
        door_add(r->chat, "tool_choice",
                 cJSON_IsObject(choice) ? chosen(choice) : cJSON_Duplicate(choice, true));
        return;
    }
    const cJSON *t, *tools = json_get(choice, "tools");
    cJSON *out = cJSON_CreateObject(), *list = cJSON_CreateArray();
    door_add_text(out, "type", "allowed_tools");
    door_copy_set(out, "mode", choice, "mode");
    cJSON_ArrayForEach(t, tools)
    {
        const char *type = door_text(t, "type");
        bool ours =
            !type || is_called(type) || !strcmp(type, shell_name) || !strcmp(type, patch_name);
        if (ours) door_append(list, chosen(t)); /* the others are left out of the tools, too */
    }
    if (cJSON_IsArray(tools))
        door_add(out, "tools", list);
    else
        cJSON_Delete(list);
    door_add(r->chat, "tool_choice", out);
}

bool responses_take_tools(responses_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *tools = json_get(body, "tools"), *choice = json_get(body, "tool_choice"), *t;
    if (choice && !cJSON_IsNull(choice)) take_choice(r, choice);
    if (!tools || cJSON_IsNull(tools)) return true;
    if (!cJSON_IsArray(tools)) return bad(p, "tools", "must be an array");
    cJSON *list = cJSON_CreateArray();
    bool ok = true;
    cJSON_ArrayForEach(t, tools) ok = ok && take_tool(r, list, t, p);
    door_add(r->chat, "tools", list);
    return ok;
}

/* ------------------------------------------------------------------------- calls -- */

responses_item responses_kind_of(const responses_run *r, const tool_call *c)
{
    if (c->text) return ITEM_CUSTOM;
    if (r->has_shell && strcmp(c->name, shell_name) == 0) return ITEM_SHELL;
    if (r->has_patch && strcmp(c->name, patch_name) == 0) return ITEM_PATCH;
    return ITEM_CALL;
}

static void add_name(const responses_run *r, cJSON *item)
{
    const cJSON *own = r->spaces ? json_get(r->spaces, r->call->name) : NULL;
    door_add_text(item, "name", own ? door_text(own, "name") : r->call->name);
    if (own) door_add_text(item, "namespace", door_text(own, "namespace"));
}

/* The arguments as an action; NULL: they are none. */
static cJSON *action_of(const responses_run *r, const char *text)
{
    cJSON *action = NULL;
    bool shell = r->open == ITEM_SHELL;
    if (json_parse(text, strlen(text), &json_limits_request, &action, NULL)) return NULL;
    bool is = shell ? cJSON_IsArray(json_get(action, "command"))
                    : door_text(action, "type") && door_text(action, "path");
    if (!is) {
        cJSON_Delete(action);
        return NULL;
    }
    if (shell) {
        door_set(action, "type", cJSON_CreateString("exec"));
        if (!json_get(action, "env")) door_add(action, "env", cJSON_CreateObject());
    }
    return action;
}

bool responses_describe_call(const responses_run *r, cJSON *item, const char *text)
{
    door_add_text(item, "call_id", r->call->id);
    if (r->open == ITEM_CALL || r->open == ITEM_CUSTOM) {
        door_add_text(item, r->open == ITEM_CALL ? "arguments" : "input", text);
        add_name(r, item);
        return true;
    }
    cJSON *action = action_of(r, text);
    if (action) door_add(item, r->open == ITEM_SHELL ? "action" : "operation", action);
    return action != NULL;
}

static bool is_any(const cJSON *m)
{
    return m != NULL;
}

/* The function that was called, with what it was given. */
static cJSON *function_of(const cJSON *item)
{
    const char *space = door_text(item, "namespace"), *name = door_text(item, "name");
    char both[160];
    cJSON *f = cJSON_CreateObject();
    if (space) snprintf(both, sizeof(both), "%.70s__%.70s", space, name ? name : "");
    if (door_is(item, "type", "local_shell_call")) {
        door_add_text(f, "name", shell_name);
        door_copy_set(f, "action", item, "arguments");
    } else if (door_is(item, "type", "apply_patch_call")) {
        door_add_text(f, "name", patch_name);
        door_copy_set(f, "operation", item, "arguments");
    } else {
        door_add_text(f, "name", space ? both : name);
        door_copy_set(f, "arguments", item, "arguments");
        door_copy_set(f, "input", item, "input");
    }
    return f;
}

bool responses_add_call(cJSON *messages, const cJSON *item, openai_problem *p)
{
    const char *id = door_text(item, "call_id");
    bool custom = door_is(item, "type", "custom_tool_call");
    cJSON *f = id ? function_of(item) : NULL;
    if (!id || !door_text(f, "name")) {
        cJSON_Delete(f);
        return bad(p, "input", "has a call of a tool without call_id or name");
    }
    cJSON *m = responses_assistant(messages, is_any);
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(m, "tool_calls"), *call = cJSON_CreateObject();
    if (!calls) {
        calls = cJSON_CreateArray();
        door_add(m, "tool_calls", calls);
    }
    door_add_text(call, "id", id);
    door_add_text(call, "type", custom ? "custom" : "function");
    door_add(call, custom ? "custom" : "function", f);
    door_append(calls, call);
    return true;
}
