/* responses_input.c -- a body of the Responses API as one of a chat's.
 *
 * Items become messages: reasoning, an assistant's text and its calls that stand together are one
 * message.  What came before (previous_response_id, conversation) is read from the tenant's rows,
 * link by link, so that what is deleted is gone from all that goes on from it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/memory.h"
#include "gateway/auth.h"
#include "gateway/doors/responses.h"
#include "gateway/tenant_parts.h"

static const door_field fields[] = {
    {"model", DOOR_PASSED},
    {"input", DOOR_TAKEN},
    {"instructions", DOOR_TAKEN},
    {"max_output_tokens", DOOR_TAKEN},
#define SAMPLING(kind, name, low, high, neutral, most, gguf) {#name, DOOR_PASSED},
    SAMPLING_LIST(SAMPLING) /* temperature and top_p are OpenAI's, the others vLLM's */
#undef SAMPLING
    {"stream", DOOR_PASSED},
    {"stream_options", DOOR_TAKEN},
    {"store", DOOR_TAKEN},
    {"previous_response_id", DOOR_TAKEN},
    {"conversation", DOOR_TAKEN},
    {"background", DOOR_TAKEN},
    {"tools", DOOR_TAKEN},
    {"tool_choice", DOOR_TAKEN},
    {"parallel_tool_calls", DOOR_PASSED},
    {"text", DOOR_TAKEN},
    {"reasoning", DOOR_TAKEN},
    {"truncation", DOOR_TAKEN},
    {"metadata", DOOR_TAKEN},
    {"include", DOOR_TAKEN},
    {"top_logprobs", DOOR_TAKEN},
    {"max_tool_calls", DOOR_IGNORED},
    {"service_tier", DOOR_PASSED},
    {"user", DOOR_IGNORED},
    {"safety_identifier", DOOR_IGNORED},
    {"prompt_cache_key", DOOR_IGNORED},
    {"prompt_cache_retention", DOOR_IGNORED},
    {"prompt", DOOR_REFUSED},
    {"context_management", DOOR_REFUSED},
    {"moderation", DOOR_REFUSED},
    /* vLLM's, as for a chat */
    {"seed", DOOR_PASSED},
    {"stop", DOOR_PASSED},
    {"stop_token_ids", DOOR_PASSED},
    {"logit_bias", DOOR_PASSED},
    {"adapters", DOOR_PASSED},
    {"cache_salt", DOOR_PASSED},
    {"priority", DOOR_PASSED},
    {"structured_outputs", DOOR_PASSED},
    {"chat_template_kwargs", DOOR_PASSED},
    {"thinking_budget", DOOR_PASSED},
    {"include_reasoning", DOOR_PASSED},
};

static bool bad(openai_problem *p, const char *param, const char *what)
{
    return openai_refuse(p, 400, "invalid_value", param, "'%s' %s", param, what);
}

static bool unsupported(openai_problem *p, const char *param, const char *type)
{
    return openai_refuse(p, 400, "unsupported_parameter", param, "'%s': '%.60s' is not supported",
                         param, type);
}

/* ------------------------------------------------------------------------- items -- */

/* The texts of a content, joined, in a JSON string; NULL: *p says why. */
static cJSON *joined(const cJSON *content, openai_problem *p)
{
    static const char *const kinds[] = {"input_text", "output_text", "text", "summary_text",
                                        "reasoning_text"};
    const cJSON *part;
    jsonw all;
    if (!content || cJSON_IsNull(content)) return cJSON_CreateString("");
    if (cJSON_IsString(content)) return cJSON_Duplicate(content, false);
    if (!cJSON_IsArray(content)) {
        (void)bad(p, "input",
                  "has an item whose content is neither a string nor an array of parts");
        return NULL;
    }
    jsonw_init(&all);
    cJSON_ArrayForEach(part, content)
    {
        const char *type = door_text(part, "type"), *text = door_text(part, "text");
        size_t i = 0, n = sizeof(kinds) / sizeof(kinds[0]);
        while (type && i < n && strcmp(kinds[i], type) != 0) i++;
        if (type && strcmp(type, "refusal") == 0) text = door_text(part, "refusal");
        if (!type || (i == n && strcmp(type, "refusal") != 0)) {
            jsonw_clear(&all);
            (void)unsupported(p, "input", type ? type : "a content without a type");
            return NULL;
        }
        if (!text) {
            jsonw_clear(&all);
            (void)bad(p, "input", "has a part without its text");
            return NULL;
        }
        jsonw_raw(&all, text, strlen(text));
    }
    cJSON *out = cJSON_CreateString(all.text ? all.text : "");
    jsonw_clear(&all);
    return out;
}

/* The message that an assistant's next item belongs to; made where there is none. */
cJSON *responses_assistant(cJSON *messages, bool fits(const cJSON *m))
{
    int n = cJSON_GetArraySize(messages);
    cJSON *last = n ? cJSON_GetArrayItem(messages, n - 1) : NULL;
    if (last && door_is(last, "role", "assistant") && fits(last)) return last;
    cJSON *m = cJSON_CreateObject();
    door_add_text(m, "role", "assistant");
    door_append(messages, m);
    return m;
}

static bool has_nothing(const cJSON *m)
{
    return !json_get(m, "content") && !json_get(m, "tool_calls") && !json_get(m, "reasoning");
}

static bool has_thoughts_alone(const cJSON *m)
{
    return !json_get(m, "content") && !json_get(m, "tool_calls");
}

static bool add_message(cJSON *messages, const cJSON *item, openai_problem *p)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char *role = door_text(item, "role");
    size_t i = 0, n = sizeof(roles) / sizeof(roles[0]);
    while (role && i < n && strcmp(roles[i], role) != 0) i++;
    if (!role || i == n)
        return bad(p, "input",
                   "has a message whose role is not user, assistant, system, developer");
    cJSON *text = joined(json_get(item, "content"), p);
    if (!text) return false;
    if (strcmp(role, "assistant") == 0) {
        door_add(responses_assistant(messages, has_thoughts_alone), "content", text);
        return true;
    }
    cJSON *m = cJSON_CreateObject();
    door_add_text(m, "role", role);
    door_add(m, "content", text);
    door_append(messages, m);
    return true;
}

static bool add_output(cJSON *messages, const cJSON *item, openai_problem *p)
{
    const char *id = door_text(item, "call_id");
    if (!id) id = door_text(item, "id"); /* local_shell has this alone */
    if (!id) return bad(p, "input", "has the output of a call without call_id");
    cJSON *text = joined(json_get(item, "output"), p);
    if (!text) return false;
    cJSON *m = cJSON_CreateObject();
    door_add_text(m, "role", "tool");
    door_add_text(m, "tool_call_id", id);
    door_add(m, "content", text);
    door_append(messages, m);
    return true;
}

/* Thoughts in the clear; those that only their maker can read are left out. */
static bool add_reasoning(cJSON *messages, const cJSON *item, openai_problem *p)
{
    const cJSON *content = json_get(item, "content"), *summary = json_get(item, "summary");
    const cJSON *from = content && !cJSON_IsNull(content) ? content : summary;
    cJSON *text = from && !cJSON_IsNull(from) ? joined(from, p) : cJSON_CreateString("");
    if (!text) return false;
    if (text->valuestring[0])
        door_add(responses_assistant(messages, has_nothing), "reasoning", text);
    else
        cJSON_Delete(text);
    return true;
}

bool responses_add_item(cJSON *messages, const cJSON *item, openai_problem *p)
{
    static const struct {
        const char *type;
        bool (*add)(cJSON *messages, const cJSON *item, openai_problem *p);
    } kinds[] = {{"message", add_message},
                 {"function_call", responses_add_call},
                 {"custom_tool_call", responses_add_call},
                 {"local_shell_call", responses_add_call},
                 {"apply_patch_call", responses_add_call},
                 {"function_call_output", add_output},
                 {"custom_tool_call_output", add_output},
                 {"local_shell_call_output", add_output},
                 {"apply_patch_call_output", add_output},
                 {"reasoning", add_reasoning}};
    if (!cJSON_IsObject(item)) return bad(p, "input", "has an item that is not an object");
    const char *type = door_text(item, "type");
    const cJSON *given = json_get(item, "type");
    if (!type && given && !cJSON_IsNull(given))
        return bad(p, "input", "has an item whose type is not a string");
    if (!type) type = "message";
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].type, type) == 0) return kinds[i].add(messages, item, p);
    }
    return unsupported(p, "input", type);
}

/* A message's content in parts, as items are listed. */
static void keep_content(cJSON *kept, const cJSON *item)
{
    const char *text = door_text(item, "content");
    bool theirs = door_is(item, "role", "assistant");
    if (!text) return;
    cJSON *parts = cJSON_CreateArray(), *part = cJSON_CreateObject();
    door_add_text(part, "type", theirs ? "output_text" : "input_text");
    door_add_text(part, "text", text);
    if (theirs) door_add(part, "annotations", cJSON_CreateArray());
    door_append(parts, part);
    cJSON_DeleteItemFromObjectCaseSensitive(kept, "content");
    door_add(kept, "content", parts);
}

void responses_item_id(responses_run *r, const char *prefix, char out[64])
{
    const char *own = strchr(r->row.id, '_');
    snprintf(out, 64, "%s%.48s%04x", prefix, own ? own + 1 : "", r->n_items++ & 0xFFFF);
}

cJSON *responses_keep_item(responses_run *r, const cJSON *item)
{
    static const struct {
        const char *type, *prefix;
    } kinds[] = {{"function_call", "fc_"},     {"function_call_output", "fco_"},
                 {"custom_tool_call", "ctc_"}, {"custom_tool_call_output", "ctco_"},
                 {"local_shell_call", "lsh_"}, {"local_shell_call_output", "lsho_"},
                 {"apply_patch_call", "apc_"}, {"apply_patch_call_output", "apco_"},
                 {"reasoning", "rs_"}};
    cJSON *kept = cJSON_Duplicate(item, true);
    const char *type = door_text(item, "type"), *prefix = "msg_";
    for (size_t i = 0; type && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].type, type) == 0) prefix = kinds[i].prefix;
    }
    if (!type && kept) door_add_text(kept, "type", "message");
    if (strcmp(prefix, "msg_") == 0) keep_content(kept, item);
    if (!door_text(item, "id") && kept) {
        char id[64];
        responses_item_id(r, prefix, id);
        cJSON_DeleteItemFromObjectCaseSensitive(kept, "id");
        door_add_text(kept, "id", id);
    }
    if (!door_text(item, "status") && kept && strcmp(prefix, "rs_") != 0) {
        cJSON_DeleteItemFromObjectCaseSensitive(kept, "status");
        door_add_text(kept, "status", "completed");
    }
    return kept;
}

/* ------------------------------------------------------------------ what is stored -- */

static bool parse_stored(const char *text, cJSON **out, openai_problem *p)
{
    err e;
    if (!json_parse(text, strlen(text), &json_limits_trusted, out, &e)) return true;
    return openai_refuse(p, 500, "internal_error", NULL, "a stored response cannot be read: %s",
                         e.msg);
}

static bool get_row(responses_run *r, const char *id, const char *param, const char *code,
                    response_row *row, openai_problem *p)
{
    err e;
    err_code rc = responses_get(store_of(r->srv), tenants_seal_key(tenants_of(r->srv)),
                                r->x->caller->tenant.id, id, row, &e);
    if (!rc) return true;
    if (rc == ERR_NOT_FOUND || rc == ERR_DENIED)
        return openai_refuse(p, rc == ERR_DENIED ? 409 : 404, code, param,
                             "'%s': there is no '%.70s'", param, id);
    return openai_refuse(p, 503, "storage_unavailable", NULL, "%s", e.msg);
}

/* What stands in one of these documents under that id, taken out of it. */
static cJSON *take_item(cJSON *list, const char *id)
{
    cJSON *v;
    cJSON_ArrayForEach(v, list)
    {
        if (door_is(v, "id", id)) return cJSON_DetachItemViaPointer(list, v);
    }
    return NULL;
}

static cJSON *item_of_row(const response_row *row, const char *id, openai_problem *p)
{
    cJSON *input = NULL, *body = NULL, *item = NULL;
    if (parse_stored(row->input, &input, p) && parse_stored(row->body, &body, p)) {
        item = take_item(input, id);
        if (!item) item = take_item(cJSON_GetObjectItemCaseSensitive(body, "output"), id);
    }
    cJSON_Delete(input);
    cJSON_Delete(body);
    return item;
}

/* The item that an item_reference means: ids of items have their row's in them. */
static bool find_item(responses_run *r, const cJSON *reference, cJSON **out, openai_problem *p)
{
    static const char *const rows[] = {"resp_", "conv_"};
    const char *id = door_text(reference, "id"), *own = id ? strchr(id, '_') : NULL;
    size_t n = own ? strlen(own + 1) : 0;
    *out = NULL;
    if (!id) return bad(p, "input", "has an item_reference without an id");
    for (int i = 0; i < 2 && !*out && n > 4 && n <= 52; i++) {
        char row_id[RESPONSES_ID_MAX + 1];
        response_row row;
        snprintf(row_id, sizeof(row_id), "%s%.*s", rows[i], (int)n - 4, own + 1);
        if (!get_row(r, row_id, "input", "item_not_found", &row, p)) {
            if (p->status != 404) return false;
            continue;
        }
        *out = item_of_row(&row, id, p);
        response_row_clear(&row);
    }
    return *out || openai_refuse(p, 404, "item_not_found", "input",
                                 "'input': there is no item with the id '%.70s'", id);
}

/* Own items: into the messages, and kept. */
static bool take_input(responses_run *r, cJSON *messages, const cJSON *body, openai_problem *p)
{
    const cJSON *input = json_get(body, "input"), *item;
    if (cJSON_IsString(input)) {
        cJSON *one = cJSON_CreateObject();
        door_add_text(one, "role", "user");
        door_add_text(one, "content", input->valuestring);
        door_append(r->input, responses_keep_item(r, one));
        door_append(messages, one);
        return true;
    }
    if (!input || cJSON_IsNull(input)) {
        if (r->row.previous[0] || r->row.conversation[0]) return true;
        return openai_refuse(p, 400, "missing_required_parameter", "input", "'input' is required");
    }
    if (!cJSON_IsArray(input) || cJSON_GetArraySize(input) > RESPONSES_ITEMS_MAX)
        return bad(p, "input", "must be a string or an array of at most 2048 items");
    cJSON_ArrayForEach(item, input)
    {
        cJSON *meant = NULL;
        bool ok = !door_is(item, "type", "item_reference") || find_item(r, item, &meant, p);
        const cJSON *one = meant ? meant : item;
        ok = ok && responses_add_item(messages, one, p);
        if (ok) door_append(r->input, responses_keep_item(r, one));
        cJSON_Delete(meant);
        if (!ok) return false;
    }
    return true;
}

/* ------------------------------------------------------------------ what came before -- */

static bool add_all(cJSON *messages, const cJSON *items, openai_problem *p)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, items)
    {
        if (!responses_add_item(messages, item, p)) return false;
    }
    return true;
}

/* A stored response: what it was asked, and what it said. */
static bool add_row(cJSON *messages, const response_row *row, openai_problem *p)
{
    cJSON *input = NULL, *body = NULL;
    bool ok = parse_stored(row->input, &input, p) && parse_stored(row->body, &body, p) &&
              add_all(messages, input, p) && add_all(messages, json_get(body, "output"), p);
    cJSON_Delete(input);
    cJSON_Delete(body);
    return ok;
}

/* The chain up to and with `id`, oldest first. */
static bool add_chain(responses_run *r, cJSON *messages, const char *id, openai_problem *p)
{
    response_row *rows = calloc(RESPONSES_CHAIN_MAX, sizeof(*rows));
    int n = 0;
    bool ok = rows || openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
    while (ok && id[0]) {
        if (n == RESPONSES_CHAIN_MAX) {
            ok = openai_refuse(p, 400, "invalid_value", "previous_response_id",
                               "'previous_response_id': the chain has more than %d responses",
                               RESPONSES_CHAIN_MAX);
            break;
        }
        ok = get_row(r, id, "previous_response_id", "previous_response_not_found", &rows[n], p);
        if (ok) id = rows[n++].previous;
    }
    if (ok && n && rows[0].running)
        ok = openai_refuse(p, 400, "invalid_value", "previous_response_id",
                           "'previous_response_id': that response is still running");
    for (int i = n - 1; i >= 0; i--) {
        if (ok) ok = add_row(messages, &rows[i], p);
        response_row_clear(&rows[i]);
    }
    free(rows);
    return ok;
}

static bool add_conversation(responses_run *r, cJSON *messages, openai_problem *p)
{
    response_row own = {0}, *rows = NULL;
    size_t n = 0;
    cJSON *first = NULL;
    err e;
    if (!get_row(r, r->row.conversation, "conversation", "conversation_not_found", &own, p))
        return false;
    bool ok = parse_stored(own.input, &first, p) && add_all(messages, first, p);
    cJSON_Delete(first);
    response_row_clear(&own);
    err_code rc = ok ? responses_list(store_of(r->srv), tenants_seal_key(tenants_of(r->srv)),
                                      r->x->caller->tenant.id, r->row.conversation,
                                      RESPONSES_ITEMS_MAX, &rows, &n, &e)
                     : ERR_NONE;
    if (rc == ERR_LIMIT) ok = openai_refuse(p, 400, "invalid_value", "conversation", "%s", e.msg);
    if (rc && rc != ERR_LIMIT) ok = openai_refuse(p, 503, "storage_unavailable", NULL, "%s", e.msg);
    for (size_t i = 0; i < n; i++) {
        if (ok && !rows[i].running) ok = add_row(messages, &rows[i], p);
        response_row_clear(&rows[i]);
    }
    free(rows);
    return ok;
}

static bool take_id(const cJSON *v, const char *param, char *out, openai_problem *p)
{
    if (cJSON_IsString(v) && v->valuestring[0] && strlen(v->valuestring) <= RESPONSES_ID_MAX) {
        snprintf(out, RESPONSES_ID_MAX + 1, "%s", v->valuestring);
        return true;
    }
    return bad(p, param, "must be an id of at most 63 bytes");
}

/* previous_response_id, conversation (an id, or an object with one). */
static bool take_before(responses_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *previous = json_get(body, "previous_response_id");
    const cJSON *conversation = json_get(body, "conversation");
    bool first = previous && !cJSON_IsNull(previous);
    bool second = conversation && !cJSON_IsNull(conversation);
    if (first && second)
        return bad(p, "conversation", "and 'previous_response_id' cannot both be given");
    if (first && !take_id(previous, "previous_response_id", r->row.previous, p)) return false;
    if (cJSON_IsObject(conversation)) conversation = json_get(conversation, "id");
    return !second || take_id(conversation, "conversation", r->row.conversation, p);
}

/* ------------------------------------------------------------------------- others -- */

/* text.format as response_format. */
static bool take_text(responses_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *text = json_get(body, "text");
    if (!text || cJSON_IsNull(text)) return true;
    if (!cJSON_IsObject(text)) return bad(p, "text", "must be an object");
    if (door_text(text, "verbosity")) exchange_ignored_param(r->x, "text.verbosity");
    const cJSON *format = json_get(text, "format");
    if (!format || cJSON_IsNull(format)) return true;
    cJSON *out = cJSON_CreateObject();
    door_copy_set(out, "type", format, "type");
    if (door_is(format, "type", "json_schema")) {
        cJSON *schema = cJSON_CreateObject();
        door_copy_set(schema, "name", format, "name");
        door_copy_set(schema, "schema", format, "schema");
        door_copy_set(schema, "strict", format, "strict");
        door_add(out, "json_schema", schema);
    }
    door_add(r->chat, "response_format", out);
    return true;
}

static bool take_reasoning(responses_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *v = json_get(body, "reasoning"), *each;
    if (!v || cJSON_IsNull(v)) return true;
    if (!cJSON_IsObject(v)) return bad(p, "reasoning", "must be an object");
    door_copy_set(r->chat, "effort", v, "reasoning_effort");
    cJSON_ArrayForEach(each, v)
    {
        if (strcmp(each->string, "effort") != 0 && !cJSON_IsNull(each))
            exchange_ignored_param(r->x, "reasoning.summary"); /* thoughts are given as they are */
    }
    return true;
}

static bool take_bool(const cJSON *body, const char *name, bool *out, openai_problem *p)
{
    err e;
    if (!json_bool(body, name, out, NULL, &e)) return true;
    return openai_refuse(p, 400, "invalid_value", name, "%s", e.msg);
}

/* What is asked for beside the answer: what can be had, and what has no effect here. */
static bool take_include(responses_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *list = json_get(body, "include"), *v;
    if (!list || cJSON_IsNull(list)) return true;
    if (!cJSON_IsArray(list)) return bad(p, "include", "must be an array");
    cJSON_ArrayForEach(v, list)
    {
        const char *what = cJSON_IsString(v) ? v->valuestring : "?";
        if (strcmp(what, "reasoning.encrypted_content") != 0)
            return unsupported(p, "include", what);
        exchange_ignored_param(r->x, "include.reasoning.encrypted_content");
    }
    return true;
}

static bool take_rest(responses_run *r, const cJSON *body, bool *drop_oldest, openai_problem *p)
{
    const cJSON *truncation = json_get(body, "truncation"), *top = json_get(body, "top_logprobs");
    r->store = r->x->conf->responses.store;
    if (!take_bool(body, "store", &r->store, p)) return false;
    if (!take_bool(body, "background", &r->background, p)) return false;
    if (r->store && !r->x->conf->responses.store)
        return openai_refuse(p, 400, "unsupported_parameter", "store",
                             "'store': this server stores no responses");
    *drop_oldest = door_is(body, "truncation", "auto");
    if (truncation && !cJSON_IsNull(truncation) && !*drop_oldest &&
        !door_is(body, "truncation", "disabled"))
        return bad(p, "truncation", "must be 'auto' or 'disabled'");
    if (top && !cJSON_IsNull(top) && !(cJSON_IsNumber(top) && top->valuedouble == 0))
        return unsupported(p, "top_logprobs", "a number above 0");
    if (!door_check_metadata(body, p)) return false;
    door_copy_set(r->chat, "max_output_tokens", body, "max_completion_tokens");
    return take_include(r, body, p);
}

/* --------------------------------------------------------------------- the object -- */

static void copy_or(cJSON *o, const char *name, const cJSON *body, cJSON *otherwise)
{
    const cJSON *v = json_get(body, name);
    bool given = v && !cJSON_IsNull(v);
    door_add(o, name, given ? cJSON_Duplicate(v, true) : otherwise);
    if (given) cJSON_Delete(otherwise);
}

/* What is known of the response before it has begun, in the order of OpenAI's documentation. */
static void describe(responses_run *r, const cJSON *body)
{
    cJSON *o = r->response = cJSON_CreateObject();
    cJSON *text = cJSON_CreateObject(), *format = cJSON_CreateObject();
    cJSON *conversation = r->row.conversation[0] ? cJSON_CreateObject() : cJSON_CreateNull();
    const cJSON *asked = json_get(body, "text"), *reasoning = json_get(body, "reasoning");
    door_add_text(o, "id", r->row.id);
    door_add_text(o, "object", "response");
    door_add_seconds(o, "created_at", r->row.created_us);
    door_add_text(o, "status", "in_progress");
    door_add_bool(o, "background", r->background);
    door_add(o, "error", cJSON_CreateNull());
    door_add(o, "incomplete_details", cJSON_CreateNull());
    door_copy(o, "instructions", body);
    door_copy(o, "max_output_tokens", body);
    door_copy(o, "max_tool_calls", body);
    door_copy(o, "model", body);
    r->output = cJSON_CreateArray();
    door_add(o, "output", r->output);
    copy_or(o, "parallel_tool_calls", body, cJSON_CreateTrue());
    door_add_text(o, "previous_response_id", r->row.previous[0] ? r->row.previous : NULL);
    if (r->row.conversation[0]) door_add_text(conversation, "id", r->row.conversation);
    door_add(o, "conversation", conversation);
    cJSON *thinks = cJSON_CreateObject();
    if (cJSON_IsObject(reasoning)) {
        door_copy(thinks, "effort", reasoning);
        door_add(thinks, "summary", cJSON_CreateNull());
    }
    door_add(o, "reasoning", thinks);
    door_add_text(o, "service_tier", "default");
    door_add_bool(o, "store", r->store);
    copy_or(o, "temperature", body, cJSON_CreateNumber(1));
    door_add_text(format, "type", "text");
    copy_or(text, "format", asked, format);
    door_add(o, "text", text);
    copy_or(o, "tool_choice", body, cJSON_CreateString("auto"));
    copy_or(o, "tools", body, cJSON_CreateArray());
    door_add_number(o, "top_logprobs", 0);
    copy_or(o, "top_p", body, cJSON_CreateNumber(1));
    copy_or(o, "truncation", body, cJSON_CreateString("disabled"));
    door_add(o, "usage", cJSON_CreateNull());
    door_copy(o, "user", body);
    copy_or(o, "metadata", body, cJSON_CreateObject());
}

const cJSON *responses_translate(void *state, exchange *x, const cJSON *body, bool *drop_oldest,
                                 openai_problem *p)
{
    responses_run *r = state;
    uint64_t failures = memory_failures();
    cJSON *messages = cJSON_CreateArray();
    r->chat = cJSON_CreateObject();
    r->input = cJSON_CreateArray();
    door_add(r->chat, "messages", messages);
    bool ok = door_sort(x, body, fields, sizeof(fields) / sizeof(fields[0]), r->chat, p) &&
              take_rest(r, body, drop_oldest, p) && take_before(r, body, p);
    const cJSON *says = ok ? json_get(body, "instructions") : NULL;
    if (says && !cJSON_IsNull(says)) {
        cJSON *m = cJSON_CreateObject();
        door_add_text(m, "role", "system");
        door_add(m, "content", cJSON_Duplicate(says, true));
        door_append(messages, m);
        if (!cJSON_IsString(says)) ok = bad(p, "instructions", "must be a string");
    }
    if (ok && r->row.previous[0]) ok = add_chain(r, messages, r->row.previous, p);
    if (ok && r->row.conversation[0]) ok = add_conversation(r, messages, p);
    ok = ok && take_input(r, messages, body, p) && responses_take_tools(r, body, p) &&
         take_text(r, body, p) && take_reasoning(r, body, p);
    if (!ok) return NULL;
    describe(r, body);
    cJSON *m;
    cJSON_ArrayForEach(m, messages)
    {
        bool bare = door_is(m, "role", "assistant") && has_thoughts_alone(m);
        if (bare) door_add_text(m, "content", "");
    }
    if (memory_failures() == failures) return r->chat;
    (void)openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
    return NULL;
}
