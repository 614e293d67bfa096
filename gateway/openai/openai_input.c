/* openai_input.c -- reads from a request's body what the model is to read: prompts, messages,
 * and the variables of the chat template.
 *
 * All functions read a JSON tree that lives as long as the request and point into it: strings
 * are not copied, except for content that consists of several text parts, which is joined in the
 * request's arena. A function returns false after it has filled ps->p with status, code, the
 * parameter's path ("messages[2].content[0].type") and a sentence.
 *
 * Histories are accepted as clients send them back: members that only answers have (annotations,
 * refusal) are noted as unread instead of being refused, content may be null or missing, and an
 * empty list of tool calls is allowed for any role.
 *
 * What changes the answer but cannot be done is refused (documents without a template that shows
 * them); what can only help is ignored and named in the response's header (openai_ignore()),
 * such as reasoning_effort for a model without a switch.
 */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_inside.h"
#include "gateway/openai/openai_tools.h"

/* --------------------------------------------------------------- prompts -- */

static bool take_prompt_item(openai_parser *ps, const cJSON *v, const char *param,
                             openai_prompt *out)
{
    if (cJSON_IsString(v)) {
        out->text = v->valuestring;
        out->len = strlen(v->valuestring);
        return true;
    }
    if (cJSON_IsArray(v)) return openai_take_ids(ps, v, param, out);
    return openai_refuse(ps->p, 400, "invalid_value", param,
                         "'%s' must be a string or an array of token ids", param);
}

static bool take_prompts(openai_parser *ps, const char *name, int most)
{
    openai_request *rq = ps->rq;
    const cJSON *v = json_get(ps->body, name);
    if (!openai_is_set(v)) {
        return openai_refuse(ps->p, 400, "missing_required_parameter", name, "'%s' is required",
                             name);
    }
    bool many = cJSON_IsArray(v) && !cJSON_IsNumber(v->child);
    int n = many ? cJSON_GetArraySize(v) : 1;
    if (n < 1 || n > most) {
        return openai_refuse(ps->p, 400, "invalid_value", name, "'%s' must hold 1 to %d prompts",
                             name, most);
    }
    rq->prompts = arena_calloc(ps->mem, (size_t)n, sizeof(*rq->prompts));
    if (!rq->prompts) return openai_no_memory(ps, name);
    rq->n_prompts = n;
    if (!many) return take_prompt_item(ps, v, name, &rq->prompts[0]);
    int i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, v)
    {
        char param[32];
        snprintf(param, sizeof(param), "%s[%d]", name, i);
        if (!take_prompt_item(ps, item, param, &rq->prompts[i])) return false;
        i++;
    }
    return true;
}

bool openai_take_prompt(openai_parser *ps)
{
    return take_prompts(ps, "prompt", OPENAI_PROMPT_MAX);
}

bool openai_parse_inputs(openai_request *rq, const cJSON *body, const char *name, int n_vocab,
                         arena *a, openai_problem *p)
{
    const openai_limits lim = {.n_vocab = n_vocab};
    openai_parser ps = {body, &lim, a, rq, p};
    return take_prompts(&ps, name, OPENAI_INPUT_MAX);
}

/* -------------------------------------------------------------- messages -- */

/* The text parts of a content array, joined. */
static bool join_parts(openai_parser *ps, const cJSON *parts, int index, chat_message *m)
{
    char param[64];
    size_t total = 0;
    int i = 0;
    const cJSON *part;
    cJSON_ArrayForEach(part, parts)
    {
        const cJSON *type = cJSON_IsObject(part) ? json_get(part, "type") : NULL;
        const cJSON *text = cJSON_IsObject(part) ? json_get(part, "text") : NULL;
        if (!cJSON_IsString(type) || strcmp(type->valuestring, "text") != 0) {
            snprintf(param, sizeof(param), "messages[%d].content[%d].type", index, i);
            return openai_refuse(ps->p, 400, "invalid_value", param,
                                 "only content parts of type 'text' are supported");
        }
        if (!cJSON_IsString(text)) {
            snprintf(param, sizeof(param), "messages[%d].content[%d].text", index, i);
            return openai_refuse(ps->p, 400, "invalid_value", param, "'text' must be a string");
        }
        total += strlen(text->valuestring);
        i++;
    }
    char *joined = arena_alloc(ps->mem, total + 1);
    if (!joined) return openai_no_memory(ps, "messages");
    m->text = joined;
    m->len = total;
    cJSON_ArrayForEach(part, parts)
    {
        const char *s = json_get(part, "text")->valuestring;
        size_t n = strlen(s);
        memcpy(joined, s, n);
        joined += n;
    }
    return true;
}

static const char *known_role(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        if (strcmp(role, roles[i]) == 0) return roles[i];
    }
    return NULL;
}

static bool message_text(openai_parser *ps, const cJSON *v, int index, const char *name, bool must,
                         const char **out)
{
    char param[64];
    const cJSON *t = json_get(v, name);
    if (cJSON_IsString(t)) *out = t->valuestring;
    if (cJSON_IsString(t) || (!must && !openai_is_set(t))) return true;
    snprintf(param, sizeof(param), "messages[%d].%s", index, name);
    return openai_refuse(ps->p, 400,
                         must && !openai_is_set(t) ? "missing_required_parameter" : "invalid_value",
                         param, "'%s' must be a string", name);
}

/* What is refused in a message, and what is read by nobody: answers have it, so
 * it comes back in histories. */
static bool sort_members(openai_parser *ps, const cJSON *v, int index)
{
    static const char *const refused[] = {"function_call", "audio"};
    static const char *const read[] = {"role",       "content",      "name",
                                       "tool_calls", "tool_call_id", "reasoning_content",
                                       "reasoning",  "annotations",  NULL};
    char param[64];
    const cJSON *each;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (!openai_is_set(json_get(v, refused[i]))) continue;
        snprintf(param, sizeof(param), "messages[%d].%s", index, refused[i]);
        return openai_refuse(ps->p, 400, "unsupported_parameter", param, "'%s' is not supported",
                             refused[i]);
    }
    cJSON_ArrayForEach(each, v)
    {
        int i = 0;
        while (read[i] && strcmp(read[i], each->string) != 0) i++;
        if (!read[i] && openai_is_set(each) && !openai_note_unread(ps, "messages", each->string))
            return false;
    }
    return true;
}

/* An assistant's calls of tools. */
static bool take_calls(openai_parser *ps, const cJSON *calls, int index, chat_message *m)
{
    char param[64];
    snprintf(param, sizeof(param), "messages[%d].tool_calls", index);
    bool empty = cJSON_IsArray(calls) && !calls->child;
    if (strcmp(m->role, "assistant") != 0 && !empty) {
        return openai_refuse(ps->p, 400, "invalid_value", param,
                             "only an assistant's message has 'tool_calls'");
    }
    return openai_take_calls(ps->rq, calls, index, m, ps->p);
}

/* Histories have messages without content (null, an empty array, or none): their text is empty. */
static bool take_content(openai_parser *ps, const cJSON *content, int index, chat_message *m)
{
    char param[64];
    m->text = "";
    if (!openai_is_set(content)) return true;
    if (cJSON_IsString(content)) {
        m->text = content->valuestring;
        m->len = strlen(content->valuestring);
        return true;
    }
    if (cJSON_IsArray(content)) return join_parts(ps, content, index, m);
    snprintf(param, sizeof(param), "messages[%d].content", index);
    return openai_refuse(ps->p, 400, "invalid_value", param,
                         "'content' must be a string or an array of text parts");
}

static bool take_role(openai_parser *ps, const cJSON *v, int index, chat_message *m)
{
    char param[64];
    snprintf(param, sizeof(param), "messages[%d]", index);
    if (!cJSON_IsObject(v)) {
        return openai_refuse(ps->p, 400, "invalid_value", param, "a message must be an object");
    }
    const cJSON *role = json_get(v, "role");
    m->role = cJSON_IsString(role) ? known_role(role->valuestring) : NULL;
    if (m->role) return true;
    snprintf(param, sizeof(param), "messages[%d].role", index);
    return openai_refuse(ps->p, 400, "invalid_value", param,
                         "'role' must be system, developer, user, assistant or tool");
}

static bool take_message(openai_parser *ps, const cJSON *v, int index, chat_message *m)
{
    if (!take_role(ps, v, index, m) || !sort_members(ps, v, index)) return false;
    bool assistant = strcmp(m->role, "assistant") == 0, tool = strcmp(m->role, "tool") == 0;
    if (!message_text(ps, v, index, "name", false, &m->name) ||
        (assistant && !message_text(ps, v, index, "reasoning", false, &m->reasoning)) ||
        (assistant && !message_text(ps, v, index, "reasoning_content", false, &m->reasoning)) ||
        (tool && !message_text(ps, v, index, "tool_call_id", true, &m->tool_call_id))) {
        return false;
    }
    const cJSON *calls = json_get(v, "tool_calls");
    if (openai_is_set(calls) && !take_calls(ps, calls, index, m)) return false;
    return take_content(ps, json_get(v, "content"), index, m);
}

/* Variables for the template ("enable_thinking"): nothing else reads them,
 * and they are a stranger's. */
static bool take_kwargs(openai_parser *ps)
{
    const cJSON *v = json_get(ps->body, "chat_template_kwargs"), *each;
    if (!openai_is_set(v)) return true;
    if (!cJSON_IsObject(v) || cJSON_GetArraySize(v) > OPENAI_KWARGS_MAX) {
        return openai_refuse(ps->p, 400, "invalid_value", "chat_template_kwargs",
                             "'chat_template_kwargs' must be an object of at most %d variables",
                             OPENAI_KWARGS_MAX);
    }
    cJSON_ArrayForEach(each, v)
    {
        if (!chat_reserved(each->string)) continue;
        return openai_refuse(ps->p, 400, "invalid_value", "chat_template_kwargs",
                             "'chat_template_kwargs' cannot set '%s'", each->string);
    }
    ps->rq->template_kwargs = v;
    return true;
}

/* For templates that have such a variable; elsewhere it changes nothing. */
static bool take_effort(openai_parser *ps)
{
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    const char *effort = NULL;
    if (!openai_take_str(ps, "reasoning_effort", 16, &effort)) return false;
    if (!effort) return true;
    size_t i = 0, n = sizeof(known) / sizeof(known[0]);
    while (i < n && strcmp(known[i], effort) != 0) i++;
    if (i == n) {
        return openai_refuse(
            ps->p, 400, "invalid_value", "reasoning_effort",
            "'reasoning_effort' must be none, minimal, low, medium, high, xhigh or "
            "max");
    }
    if (ps->lim->reads_switch) ps->rq->thinking = strcmp(effort, "none") ? 1 : -1;
    if (ps->lim->reads_effort) ps->rq->effort = effort;
    if (ps->lim->reads_effort || ps->lim->reads_switch) return true;
    return openai_ignore(ps, "reasoning_effort");
}

/* How long a model may think, under DashScope's name and vLLM's, and whether thoughts are shown. */
static bool take_thinking(openai_parser *ps)
{
    static const char *const names[] = {"thinking_budget", "thinking_token_budget"};
    openai_request *rq = ps->rq;
    bool show = true;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        int budget = -1;
        if (!openai_take_int(ps, names[i], 0, ps->lim->max_context, &budget)) return false;
        if (budget < 0) continue;
        if (!ps->lim->thinks) return openai_ignore(ps, names[i]);
        if (rq->thinking_budget >= 0 && rq->thinking_budget != budget) {
            return openai_refuse(ps->p, 400, "invalid_value", names[i],
                                 "'%s' and '%s' differ: give one", names[0], names[1]);
        }
        rq->thinking_budget = budget;
    }
    if (!openai_take_bool(ps, "include_reasoning", &show)) return false;
    rq->hide_thoughts = !show;
    return true;
}

/* What a template would not show is refused: an answer without the documents
 * would look like one from them. */
static bool take_documents(openai_parser *ps)
{
    static const char items[] = "objects of texts";
    const cJSON *list, *each, *part;
    if (!openai_take_array(ps, "documents", 0, OPENAI_DOCUMENTS_MAX, items, &list)) return false;
    if (!list) return true;
    if (!ps->lim->reads_documents) {
        return openai_refuse(ps->p, 400, "unsupported_parameter", "documents",
                             "'documents' is not supported: this model's chat template reads none");
    }
    bool ok = true;
    cJSON_ArrayForEach(each, list)
    {
        ok &= cJSON_IsObject(each);
        cJSON_ArrayForEach(part, each) ok &= cJSON_IsString(part);
    }
    ps->rq->documents = list;
    return ok || openai_no_array(ps, "documents", 0, OPENAI_DOCUMENTS_MAX, items);
}

/* An answer of its own, or more of the last message. */
static bool take_beginning(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    if (!openai_take_bool(ps, "add_generation_prompt", &rq->add_generation_prompt) ||
        !openai_take_bool(ps, "continue_final_message", &rq->continue_final)) {
        return false;
    }
    if (!rq->continue_final) return true;
    if (cJSON_IsTrue(json_get(ps->body, "add_generation_prompt"))) {
        return openai_refuse(ps->p, 400, "invalid_value", "continue_final_message",
                             "'continue_final_message' and 'add_generation_prompt' cannot both be "
                             "true");
    }
    rq->add_generation_prompt = false;
    return true;
}

bool openai_take_variables(openai_parser *ps)
{
    return take_kwargs(ps) && take_effort(ps) && take_thinking(ps) && take_documents(ps) &&
           take_beginning(ps);
}

bool openai_take_messages(openai_parser *ps)
{
    openai_request *rq = ps->rq;
    const cJSON *list, *m;
    if (!openai_is_set(json_get(ps->body, "messages"))) {
        return openai_refuse(ps->p, 400, "missing_required_parameter", "messages",
                             "'messages' is required");
    }
    if (!openai_take_array(ps, "messages", 1, OPENAI_MESSAGE_MAX, "messages", &list)) return false;
    rq->msgs = arena_calloc(ps->mem, (size_t)cJSON_GetArraySize(list), sizeof(*rq->msgs));
    if (!rq->msgs) return openai_no_memory(ps, "messages");
    cJSON_ArrayForEach(m, list)
    {
        if (!take_message(ps, m, rq->n_msgs, &rq->msgs[rq->n_msgs])) return false;
        rq->n_msgs++;
    }
    rq->n_prompts = 1;
    return true;
}
