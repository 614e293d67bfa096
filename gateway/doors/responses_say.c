/* responses_say.c -- a completion's tokens as items and events of the Responses API, in OpenAI's
 * order.
 *
 * At most one item is open. It is opened, extended and closed; the next one opens only then:
 *
 *     response.output_item.added -> content_part.added -> *.delta ... -> *.done
 *         -> content_part.done -> response.output_item.done
 *
 * Without a stream the same functions run with w = NULL, and r->output collects the closed
 * items. So the object and the events always agree. Every event has a sequence number, by which
 * a client can resume.
 *
 * Calls of shell and patch tools have no delta events in OpenAI's API. Their text is collected
 * and the item is shown when it is complete; one that was cut by the token limit is not an
 * action and is dropped.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "gateway/doors/responses.h"

static void begin_event(responses_run *r, jsonw *w, const char *type)
{
    char head[96];
    int n = snprintf(head, sizeof(head), "event: %s\ndata: ", type);
    assert(n > 0 && n < (int)sizeof(head));
    jsonw_raw(w, head, (size_t)n);
    w->comma = false;
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "type", type);
    jsonw_int(w, "sequence_number", r->sequence++);
}

static void end_event(jsonw *w)
{
    jsonw_close(w, '}');
    jsonw_raw(w, "\n\n", 2);
}

void responses_event(responses_run *r, jsonw *w, const char *type)
{
    begin_event(r, w, type);
    door_write(w, "response", r->response);
    end_event(w);
}

/* ------------------------------------------------------------------------- items -- */

static int index_of_item(const responses_run *r)
{
    return cJSON_GetArraySize(r->output);
}

/* The part of an item's content that holds its text. */
static cJSON *part_of(responses_item kind, const char *text)
{
    cJSON *part = cJSON_CreateObject();
    door_add_text(part, "type", kind == ITEM_REASONING ? "reasoning_text" : "output_text");
    door_add_text(part, "text", text);
    if (kind == ITEM_REASONING) return part;
    door_add(part, "annotations", cJSON_CreateArray());
    door_add(part, "logprobs", cJSON_CreateArray());
    return part;
}

/* The open item with its text so far; status NULL: as it is when it is opened, without text.
 * Returns NULL for a call that was cut before it described an action. */
static cJSON *item_of(const responses_run *r, const char *status)
{
    assert(r->open > ITEM_NONE && r->open <= ITEM_PATCH);
    const char *text = status && r->said.text ? r->said.text : "";
    cJSON *item = cJSON_CreateObject(), *content = NULL;
    static const char *const types[] = {"",
                                        "reasoning",
                                        "message",
                                        "function_call",
                                        "custom_tool_call",
                                        "local_shell_call",
                                        "apply_patch_call"};
    door_add_text(item, "id", r->item_id);
    door_add_text(item, "type", types[r->open]);
    if (r->open != ITEM_CUSTOM) door_add_text(item, "status", status ? status : "in_progress");
    if (r->open >= ITEM_CALL) {
        if (responses_describe_call(r, item, text)) return item;
        cJSON_Delete(item);
        return NULL;
    }
    content = cJSON_CreateArray();
    if (status) door_append(content, part_of(r->open, text));
    if (r->open == ITEM_REASONING) door_add(item, "summary", cJSON_CreateArray());
    door_add(item, "content", content);
    if (r->open == ITEM_MESSAGE) door_add_text(item, "role", "assistant");
    return item;
}

static void say_item(responses_run *r, jsonw *w, const char *type, const cJSON *item)
{
    if (!w) return;
    begin_event(r, w, type);
    jsonw_int(w, "output_index", index_of_item(r));
    door_write(w, "item", item);
    end_event(w);
}

/* The members that tell which item an event is about. */
static void begin_about(responses_run *r, jsonw *w, const char *type)
{
    assert(r->open > ITEM_NONE && r->open < ITEM_SHELL); /* actions have no such events */
    begin_event(r, w, type);
    jsonw_str(w, "item_id", r->item_id);
    jsonw_int(w, "output_index", index_of_item(r));
    if (r->open < ITEM_CALL) jsonw_int(w, "content_index", 0);
}

static void say_part(responses_run *r, jsonw *w, const char *type, const char *text)
{
    if (!w || r->open >= ITEM_CALL) return;
    cJSON *part = part_of(r->open, text);
    begin_about(r, w, type);
    door_write(w, "part", part);
    end_event(w);
    cJSON_Delete(part);
}

/* OpenAI has no events for the pieces of such an item. */
static bool is_action(const responses_run *r)
{
    return r->open == ITEM_SHELL || r->open == ITEM_PATCH;
}

static void open_item(responses_run *r, jsonw *w, responses_item kind, const tool_call *call)
{
    assert(r->open == ITEM_NONE && kind > ITEM_NONE && kind <= ITEM_PATCH);
    static const char *const prefixes[] = {"", "rs_", "msg_", "fc_", "ctc_", "lsh_", "apc_"};
    r->open = kind;
    r->call = call;
    responses_item_id(r, prefixes[kind], r->item_id);
    jsonw_reset(&r->said);
    if (is_action(r)) return; /* it is shown when it is whole */
    cJSON *item = item_of(r, NULL);
    say_item(r, w, "response.output_item.added", item);
    cJSON_Delete(item);
    say_part(r, w, "response.content_part.added", "");
}

static void say_done(responses_run *r, jsonw *w, const char *text)
{
    static const char *const types[] = {
        "", "response.reasoning_text.done", "response.output_text.done",
        "response.function_call_arguments.done", "response.custom_tool_call_input.done"};
    static const char *const members[] = {"", "text", "text", "arguments", "input"};
    if (!w) return;
    begin_about(r, w, types[r->open]);
    jsonw_str(w, members[r->open], text);
    if (r->open == ITEM_MESSAGE) {
        jsonw_open(w, "logprobs", '[');
        jsonw_close(w, ']');
    }
    end_event(w);
}

static void close_item(responses_run *r, jsonw *w, bool whole)
{
    if (r->open == ITEM_NONE) return;
    const char *text = r->said.text ? r->said.text : "";
    cJSON *item = item_of(r, whole ? "completed" : "incomplete");
    if (!item) { /* what was cut is no action yet, and is not told */
        r->open = ITEM_NONE;
        return;
    }
    if (is_action(r)) {
        door_set(item, "status", cJSON_CreateString("in_progress"));
        say_item(r, w, "response.output_item.added", item);
        door_set(item, "status", cJSON_CreateString("completed"));
    } else {
        say_done(r, w, text);
    }
    say_part(r, w, "response.content_part.done", text);
    say_item(r, w, "response.output_item.done", item);
    door_append(r->output, item);
    r->open = ITEM_NONE;
}

static void say_delta(responses_run *r, jsonw *w, const char *s, size_t len)
{
    static const char *const types[] = {
        "", "response.reasoning_text.delta", "response.output_text.delta",
        "response.function_call_arguments.delta", "response.custom_tool_call_input.delta"};
    if (len == 0) return;
    jsonw_raw(&r->said, s, len);
    if (!w || is_action(r)) return;
    begin_about(r, w, types[r->open]);
    jsonw_strn(w, "delta", s, len);
    if (r->open == ITEM_MESSAGE) {
        jsonw_open(w, "logprobs", '[');
        jsonw_close(w, ']');
    }
    end_event(w);
}

/* ----------------------------------------------------------------- a completion's life -- */

void responses_begin(void *state, jsonw *w, const openai_head *h, const openai_usage *u)
{
    responses_run *r = state;
    (void)u;
    cJSON_DeleteItemFromObjectCaseSensitive(r->response, "service_tier");
    door_add_text(r->response, "service_tier", h->service_tier ? h->service_tier : "default");
    if (!w) return;
    if (r->sequence == 0) responses_event(r, w, "response.created");
    responses_event(r, w, "response.in_progress");
}

static void say_text(responses_run *r, jsonw *w, responses_item kind, const char *s, size_t len)
{
    if (len == 0) return;
    if (r->open != kind) {
        close_item(r, w, true);
        open_item(r, w, kind, NULL);
    }
    say_delta(r, w, s, len);
}

/* `open`: what is new of the call that is open, and no more. */
static void say_calls(responses_run *r, jsonw *w, tool_reader *t, bool open)
{
    for (int i = 0; t && i < t->n_calls; i++) {
        tool_call *c = &t->call[i];
        if (c->told && open) return;
        if (c->told) {
            close_item(r, w, true);
            open_item(r, w, responses_kind_of(r, c), c);
            c->told = false;
        }
        held_bytes news = {0};
        if (!tool_reader_take_news(t, c, &news)) r->said.failed = true;
        if (r->open >= ITEM_CALL && r->call == c) say_delta(r, w, news.s, news.len);
        free(news.s);
    }
}

void responses_say(void *state, jsonw *w, const openai_choice *c)
{
    responses_run *r = state;
    say_text(r, w, ITEM_REASONING, c->thoughts, c->n_thoughts);
    say_calls(r, w, c->calls, true); /* text follows the rest of a call, not the other way round */
    say_text(r, w, ITEM_MESSAGE, c->text, c->len);
    say_calls(r, w, c->calls, false);
    if (c->finish) r->finish = c->finish;
    if (w && r->said.failed) w->failed = true;
}

static cJSON *usage_of(const openai_usage *u)
{
    cJSON *o = cJSON_CreateObject(), *in = cJSON_CreateObject(), *out = cJSON_CreateObject();
    door_add_number(o, "input_tokens", (double)u->prompt_tokens);
    door_add_number(in, "cached_tokens", (double)u->cached_tokens);
    door_add_number(in, "cache_write_tokens", 0);
    door_add(o, "input_tokens_details", in);
    door_add_number(o, "output_tokens", (double)u->output_tokens);
    door_add_number(out, "reasoning_tokens", (double)u->reasoning_tokens);
    door_add(o, "output_tokens_details", out);
    door_add_number(o, "total_tokens", (double)(u->prompt_tokens + u->output_tokens));
    return o;
}

void responses_finish(responses_run *r, jsonw *w, const openai_usage *u)
{
    bool cut = r->finish && strcmp(r->finish, "length") == 0;
    close_item(r, w, !cut);
    if (!index_of_item(r)) open_item(r, w, ITEM_MESSAGE, NULL); /* it said nothing */
    close_item(r, w, !cut);
    door_set(r->response, "status", cJSON_CreateString(cut ? "incomplete" : "completed"));
    door_set(r->response, "usage", usage_of(u));
    if (cut) {
        cJSON *why = cJSON_CreateObject();
        door_add_text(why, "reason", "max_output_tokens");
        door_set(r->response, "incomplete_details", why);
    } else {
        door_add_seconds(r->response, "completed_at", clock_wall_us());
    }
}
