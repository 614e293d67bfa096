/* messages_input.c -- translates a body of Anthropic's Messages API into one of a chat
 * completion.
 *
 * fields[] says for each member whether it is passed on, translated here, ignored or refused; an
 * unknown one is refused by name. Content blocks become messages:
 *
 *     system (string or blocks)          -> a message "system"
 *     user: tool_result                  -> a message "tool" for each, before the user's text
 *     user: text                         -> a message "user"
 *     assistant: text, thinking          -> "content", "reasoning" of one message
 *     assistant: tool_use                -> "tool_calls" of that message
 *     last message is the assistant's    -> continue_final_message
 *
 * A line that Claude Code puts into each request for billing is left out of the system prompt:
 * it differs every time, so no two requests would share a prefix in the cache.
 *
 * Allocation failures inside cJSON are counted (memory_failures()) and tested once at the end
 * instead of after each call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/memory.h"
#include "gateway/doors/messages.h"

static const door_field fields[] = {
    {"model", DOOR_PASSED},
    {"messages", DOOR_TAKEN},
    {"system", DOOR_TAKEN},
    {"max_tokens", DOOR_TAKEN},
    {"temperature", DOOR_TAKEN},
    {"top_p", DOOR_PASSED},
    {"top_k", DOOR_TAKEN},
    {"stop_sequences", DOOR_TAKEN},
    {"stream", DOOR_PASSED},
    {"tools", DOOR_TAKEN},
    {"tool_choice", DOOR_TAKEN},
    {"thinking", DOOR_TAKEN},
    {"output_config", DOOR_TAKEN},
    {"service_tier", DOOR_TAKEN},
    {"metadata", DOOR_TAKEN}, /* user_id: nobody reads it */
    {"cache_control", DOOR_TAKEN},
    {"container", DOOR_REFUSED},
    {"mcp_servers", DOOR_REFUSED},
    {"context_management", DOOR_IGNORED},
    /* vLLM's, as for a chat */
    {"seed", DOOR_PASSED},
    {"adapters", DOOR_PASSED},
    {"cache_salt", DOOR_PASSED},
    {"structured_outputs", DOOR_PASSED},
    {"chat_template_kwargs", DOOR_PASSED},
    {"ignore_eos", DOOR_PASSED},
};

static bool bad(openai_problem *p, const char *param, const char *what)
{
    return openai_refuse(p, 400, "invalid_value", param, "%s: %s", param, what);
}

static bool is_set(const cJSON *v)
{
    return v && !cJSON_IsNull(v);
}

/* A line of Claude Code's for its maker: another with each request, so that no prompt would begin
 * as the one before. */
static bool is_billing(const char *param, const char *text)
{
    static const char line[] = "x-anthropic-billing-header:";
    return strcmp(param, "system") == 0 && strncmp(text, line, sizeof(line) - 1) == 0;
}

/* Concatenates the text blocks of a message's content.  False: *p has the reason. */
static bool join(const cJSON *content, const char *param, jsonw *all, openai_problem *p)
{
    const cJSON *block;
    if (cJSON_IsString(content)) {
        jsonw_raw(all, content->valuestring, strlen(content->valuestring));
        return true;
    }
    if (!is_set(content)) return true;
    if (!cJSON_IsArray(content)) return bad(p, param, "must be a string or an array of blocks");
    cJSON_ArrayForEach(block, content)
    {
        const char *type = door_text(block, "type"), *text = door_text(block, "text");
        if (!type || strcmp(type, "text") != 0)
            return openai_refuse(p, 400, "unsupported_parameter", param,
                                 "%s: blocks of type '%.60s' are not supported here", param,
                                 type ? type : "?");
        if (!text) return bad(p, param, "a text block must have a string 'text'");
        if (!is_billing(param, text)) jsonw_raw(all, text, strlen(text));
    }
    return true;
}

static cJSON *add_message(cJSON *messages, const char *role)
{
    cJSON *m = cJSON_CreateObject();
    door_add_text(m, "role", role);
    door_append(messages, m);
    return m;
}

static bool add_joined(cJSON *m, const cJSON *content, const char *param, openai_problem *p)
{
    jsonw all;
    jsonw_init(&all);
    bool ok = join(content, param, &all, p);
    if (ok) door_add_text(m, "content", all.text ? all.text : "");
    jsonw_clear(&all);
    return ok;
}

/* ------------------------------------------------------------------------ messages -- */

typedef struct {
    cJSON *messages;
    const char *param; /* "messages.3" */
    jsonw text, thoughts;
    cJSON *calls;
    bool results; /* of tools: messages of their own */
    openai_problem *p;
} turn;

static bool add_result(turn *t, const cJSON *block)
{
    const char *id = door_text(block, "tool_use_id");
    if (!id) return bad(t->p, t->param, "a tool_result must have a string 'tool_use_id'");
    cJSON *m = add_message(t->messages, "tool");
    t->results = true;
    door_add_text(m, "tool_call_id", id);
    const cJSON *content = json_get(block, "content");
    if (is_set(content)) return add_joined(m, content, t->param, t->p);
    door_add_text(m, "content", "");
    return true;
}

static bool add_use(turn *t, const cJSON *block)
{
    const char *id = door_text(block, "id"), *name = door_text(block, "name");
    if (!id || !name) return bad(t->p, t->param, "a tool_use must have 'id' and 'name'");
    cJSON *call = cJSON_CreateObject(), *function = cJSON_CreateObject();
    door_add_text(call, "id", id);
    door_add_text(call, "type", "function");
    door_add_text(function, "name", name);
    door_copy_set(function, "input", block, "arguments");
    door_add(call, "function", function);
    if (!t->calls) t->calls = cJSON_CreateArray();
    door_append(t->calls, call);
    return true;
}

static bool add_text(turn *t, const cJSON *block, const char *member, jsonw *to)
{
    const char *text = door_text(block, member);
    if (!text)
        return openai_refuse(t->p, 400, "invalid_value", t->param,
                             "%s: a block must have a string '%s'", t->param, member);
    jsonw_raw(to, text, strlen(text));
    return true;
}

static bool add_block(turn *t, const cJSON *block, bool assistant)
{
    const char *type = door_text(block, "type");
    if (!type) return bad(t->p, t->param, "a block must have a type");
    if (strcmp(type, "text") == 0) return add_text(t, block, "text", &t->text);
    if (!assistant && strcmp(type, "tool_result") == 0) return add_result(t, block);
    if (assistant && strcmp(type, "tool_use") == 0) return add_use(t, block);
    if (assistant && strcmp(type, "thinking") == 0)
        return add_text(t, block, "thinking", &t->thoughts);
    if (assistant && strcmp(type, "redacted_thinking") == 0) return true; /* nobody can read it */
    return openai_refuse(t->p, 400, "unsupported_parameter", t->param,
                         "%s: blocks of type '%.60s' are not supported: this model reads text",
                         t->param, type);
}

/* What the blocks were, as a message behind those that they made at once. */
static void end_turn(turn *t, bool assistant)
{
    bool says = t->text.len > 0 || t->calls || t->thoughts.len > 0;
    if (!says && t->results) return;
    cJSON *m = add_message(t->messages, assistant ? "assistant" : "user");
    door_add_text(m, "content", t->text.text ? t->text.text : "");
    if (t->thoughts.len) door_add_text(m, "reasoning", t->thoughts.text);
    door_add(m, "tool_calls", t->calls);
    t->calls = NULL;
}

static bool take_message(cJSON *messages, const cJSON *v, int index, openai_problem *p)
{
    char param[32];
    const cJSON *block, *content = json_get(v, "content");
    snprintf(param, sizeof(param), "messages.%d", index);
    bool assistant = door_is(v, "role", "assistant"), system = door_is(v, "role", "system");
    if (!cJSON_IsObject(v) || (!assistant && !system && !door_is(v, "role", "user")))
        return bad(p, param, "'role' must be user or assistant");
    if (cJSON_IsString(content) || system)
        return add_joined(add_message(messages, door_text(v, "role")), content, param, p);
    if (is_set(content) && !cJSON_IsArray(content))
        return bad(p, param, "'content' must be a string or blocks");
    turn t = {.messages = messages, .param = param, .p = p};
    jsonw_init(&t.text);
    jsonw_init(&t.thoughts);
    bool ok = true;
    cJSON_ArrayForEach(block, content) ok = ok && add_block(&t, block, assistant);
    if (ok) end_turn(&t, assistant);
    cJSON_Delete(t.calls);
    jsonw_clear(&t.text);
    jsonw_clear(&t.thoughts);
    return ok;
}

/* The answer goes on with the last message, an assistant's text. */
static bool goes_on(const cJSON *messages)
{
    const cJSON *last = cJSON_GetArrayItem(messages, cJSON_GetArraySize(messages) - 1);
    const char *text = door_text(last, "content");
    return door_is(last, "role", "assistant") && text && text[0] && !json_get(last, "tool_calls");
}

static bool take_messages(messages_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *system = json_get(body, "system"), *list = json_get(body, "messages"), *v;
    cJSON *messages = cJSON_CreateArray();
    int i = 0;
    door_add(r->chat, "messages", messages);
    if (is_set(system) && !add_joined(add_message(messages, "system"), system, "system", p))
        return false;
    if (!cJSON_IsArray(list) || !list->child)
        return bad(p, "messages", "must be an array of at least one message");
    cJSON_ArrayForEach(v, list)
    {
        if (!take_message(messages, v, i++, p)) return false;
    }
    if (goes_on(messages)) door_add_bool(r->chat, "continue_final_message", true);
    return true;
}

/* ------------------------------------------------------------------------- others -- */

/* Off unless it is asked for, where the model has a switch. */
static bool take_thinking(messages_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *v = json_get(body, "thinking"), *config = json_get(body, "output_config");
    const char *effort = door_text(config, "effort");
    bool on = door_is(v, "type", "enabled"), adaptive = door_is(v, "type", "adaptive");
    if (is_set(v) && !on && !adaptive && !door_is(v, "type", "disabled"))
        return bad(p, "thinking", "must have the type enabled, adaptive or disabled");
    if (on) {
        const cJSON *budget = json_get(v, "budget_tokens");
        if (!cJSON_IsNumber(budget) || budget->valuedouble < 1)
            return bad(p, "thinking", "'budget_tokens' must be a number of at least 1");
        door_copy_set(r->chat, "budget_tokens", v, "thinking_budget");
    }
    if (on || adaptive || effort)
        door_add_text(r->chat, "reasoning_effort", effort ? effort : "medium");
    else
        door_add_text(r->chat, "reasoning_effort", "none");
    return true;
}

static bool take_output(messages_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *config = json_get(body, "output_config"), *format;
    if (!is_set(config)) return true;
    format = json_get(config, "format");
    if (!is_set(format)) return true;
    if (!door_is(format, "type", "json_schema"))
        return bad(p, "output_config", "'format' must have the type json_schema");
    cJSON *out = cJSON_CreateObject(), *schema = cJSON_CreateObject();
    door_add_text(out, "type", "json_schema");
    door_add_text(schema, "name", "answer");
    door_copy_set(schema, "schema", format, "schema");
    door_add(out, "json_schema", schema);
    door_add(r->chat, "response_format", out);
    return true;
}

/* Anthropic takes none that is empty or of white space alone. */
static bool check_stops(const cJSON *body, openai_problem *p)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, json_get(body, "stop_sequences"))
    {
        const char *s = cJSON_GetStringValue(v);
        if (s && !s[strspn(s, " \t\r\n\f\v")])
            return bad(p, "stop_sequences", "must each have a character other than white space");
    }
    return true;
}

static bool take_rest(messages_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *most = json_get(body, "max_tokens"), *t = json_get(body, "temperature");
    if (!door_text(body, "model"))
        return openai_refuse(p, 400, "missing_required_parameter", "model",
                             "model: it is required");
    if (!r->counting && !is_set(most))
        return openai_refuse(p, 400, "missing_required_parameter", "max_tokens",
                             "max_tokens: it is required");
    if (is_set(t) && !(cJSON_IsNumber(t) && t->valuedouble >= 0 && t->valuedouble <= 1))
        return bad(p, "temperature", "must be a number from 0 to 1");
    const cJSON *k = json_get(body, "top_k");
    if (is_set(k) && !(cJSON_IsNumber(k) && k->valuedouble >= 0))
        return bad(p, "top_k", "must be a number of at least 0");
    const char *tier = door_text(body, "service_tier");
    if (is_set(json_get(body, "service_tier")) &&
        !(tier && (strcmp(tier, "auto") == 0 || strcmp(tier, "standard_only") == 0)))
        return bad(p, "service_tier", "must be auto or standard_only");
    door_copy_set(r->chat, "max_tokens", body, "max_tokens");
    door_copy_set(r->chat, "temperature", body, "temperature");
    door_copy_set(r->chat, "top_k", body, "top_k");
    door_copy_set(r->chat, "stop_sequences", body, "stop");
    return check_stops(body, p) && take_thinking(r, body, p) && take_output(r, body, p);
}

const cJSON *messages_translate(void *state, exchange *x, const cJSON *body, bool *drop_oldest,
                                openai_problem *p)
{
    messages_run *r = state;
    uint64_t failures = memory_failures();
    *drop_oldest = false;
    r->chat = cJSON_CreateObject();
    bool ok = door_sort(x, body, fields, sizeof(fields) / sizeof(fields[0]), r->chat, p) &&
              take_messages(r, body, p) && messages_take_tools(r, body, p) && take_rest(r, body, p);
    if (ok && memory_failures() == failures) return r->chat;
    if (ok) (void)openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
    return NULL;
}
