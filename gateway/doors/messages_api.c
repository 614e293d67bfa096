/* messages_api.c -- /v1/messages and /v1/messages/count_tokens: a completion as Anthropic's
 * content blocks.
 *
 * messages_input.c translates the body into a chat completion; here its tokens become blocks. At
 * most one block is open. Text of another kind closes it and opens the next one:
 *
 *     message_start
 *       content_block_start, content_block_delta ..., content_block_stop     (thinking)
 *       content_block_start, content_block_delta ..., content_block_stop     (text)
 *       content_block_start, input_json_delta ...,    content_block_stop     (each tool call)
 *     message_delta (stop_reason, usage), message_stop
 *
 * Without "stream" the same functions run with w = NULL: nothing is written, the blocks are
 * collected in r->content, and end() writes the object. So both forms cannot differ.
 *
 * A call that was cut by max_tokens has no valid JSON; its block has an empty input then. Error
 * sentences for prompts that are too long are Anthropic's, word for word, since Claude Code
 * reads the numbers in them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/doors/messages.h"
#include "gateway/handlers.h"

static void begin_event(jsonw *w, const char *type)
{
    char head[96];
    int n = snprintf(head, sizeof(head), "event: %s\ndata: ", type);
    jsonw_raw(w, head, (size_t)n);
    w->comma = false;
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "type", type);
}

static void end_event(jsonw *w)
{
    jsonw_close(w, '}');
    jsonw_raw(w, "\n\n", 2);
}

/* ------------------------------------------------------------------------- blocks -- */

static int index_of_block(const messages_run *r)
{
    return cJSON_GetArraySize(r->content);
}

/* The open block; `said`: with its text so far. */
static cJSON *block_of(const messages_run *r, bool said)
{
    const char *text = said && r->said.text ? r->said.text : "";
    cJSON *b = cJSON_CreateObject(), *input = NULL;
    if (r->open == BLOCK_THINKING) {
        door_add_text(b, "type", "thinking");
        door_add_text(b, "thinking", text);
        door_add_text(b, "signature", "");
    } else if (r->open == BLOCK_TEXT) {
        door_add_text(b, "type", "text");
        door_add_text(b, "text", text);
    } else {
        err e;
        bool whole = said && !json_parse(text, strlen(text), &json_limits_request, &input, &e);
        if (!whole || !cJSON_IsObject(input)) { /* it was cut */
            cJSON_Delete(input);
            input = cJSON_CreateObject();
        }
        door_add_text(b, "type", "tool_use");
        door_add_text(b, "id", r->call->id);
        door_add_text(b, "name", r->call->name);
        door_add(b, "input", input);
    }
    return b;
}

static void open_block(messages_run *r, jsonw *w, messages_block kind, const tool_call *call)
{
    r->open = kind;
    r->call = call;
    jsonw_reset(&r->said);
    if (!w) return;
    cJSON *b = block_of(r, false);
    begin_event(w, "content_block_start");
    jsonw_int(w, "index", index_of_block(r));
    door_write(w, "content_block", b);
    end_event(w);
    cJSON_Delete(b);
}

static void close_block(messages_run *r, jsonw *w)
{
    if (r->open == BLOCK_NONE) return;
    if (w) {
        begin_event(w, "content_block_stop");
        jsonw_int(w, "index", index_of_block(r));
        end_event(w);
    }
    door_append(r->content, block_of(r, true));
    r->open = BLOCK_NONE;
}

static void say_delta(messages_run *r, jsonw *w, const char *s, size_t len)
{
    static const char *const types[] = {"", "thinking_delta", "text_delta", "input_json_delta"};
    static const char *const members[] = {"", "thinking", "text", "partial_json"};
    if (len == 0) return;
    jsonw_raw(&r->said, s, len);
    if (!w) return;
    begin_event(w, "content_block_delta");
    jsonw_int(w, "index", index_of_block(r));
    jsonw_open(w, "delta", '{');
    jsonw_str(w, "type", types[r->open]);
    jsonw_strn(w, members[r->open], s, len);
    jsonw_close(w, '}');
    end_event(w);
}

static void say_text(messages_run *r, jsonw *w, messages_block kind, const char *s, size_t len)
{
    if (len == 0) return;
    if (r->open != kind) {
        close_block(r, w);
        open_block(r, w, kind, NULL);
    }
    say_delta(r, w, s, len);
}

/* `open`: what is new of the call that is open, and no more. */
static void say_calls(messages_run *r, jsonw *w, tool_reader *t, bool open)
{
    for (int i = 0; t && i < t->n_calls; i++) {
        tool_call *c = &t->call[i];
        if (c->told && open) return;
        if (c->told) {
            close_block(r, w);
            open_block(r, w, BLOCK_TOOL, c);
            c->told = false;
        }
        if (r->open == BLOCK_TOOL && r->call == c)
            say_delta(r, w, t->args.s + c->at + c->given, c->len - c->given);
        c->given = c->len;
    }
}

/* -------------------------------------------------------------------- the message -- */

static void write_usage(const messages_run *r, jsonw *w, const openai_usage *u, bool start)
{
    jsonw_open(w, "usage", '{');
    jsonw_int(w, "input_tokens", u->prompt_tokens - u->cached_tokens);
    jsonw_int(w, "cache_creation_input_tokens", 0);
    jsonw_int(w, "cache_read_input_tokens", u->cached_tokens);
    jsonw_int(w, "output_tokens", u->output_tokens);
    if (start && r->tier) jsonw_str(w, "service_tier", "standard");
    jsonw_close(w, '}');
}

static const char *reason_of(const messages_run *r)
{
    bool called = false;
    const cJSON *b;
    cJSON_ArrayForEach(b, r->content) called |= door_is(b, "type", "tool_use");
    if (r->finish && strcmp(r->finish, "length") == 0) return "max_tokens";
    if (called) return "tool_use";
    return r->stop ? "stop_sequence" : "end_turn";
}

static void write_message(const messages_run *r, jsonw *w, const openai_usage *u, bool start)
{
    jsonw_str(w, "id", r->id);
    jsonw_str(w, "type", "message");
    jsonw_str(w, "role", "assistant");
    jsonw_str(w, "model", r->model);
    door_write(w, "content", r->content);
    jsonw_str(w, "stop_reason", start ? NULL : reason_of(r));
    jsonw_str(w, "stop_sequence", start ? NULL : r->stop);
    write_usage(r, w, u, true);
}

static void begin(void *state, jsonw *w, const openai_head *h, const openai_usage *u)
{
    messages_run *r = state;
    door_make_id("msg_", r->id);
    snprintf(r->model, sizeof(r->model), "%s", h->model);
    r->tier = h->service_tier;
    if (!w) return;
    begin_event(w, "message_start");
    jsonw_open(w, "message", '{');
    write_message(r, w, u, true);
    jsonw_close(w, '}');
    end_event(w);
}

static void say(void *state, jsonw *w, const openai_choice *c)
{
    messages_run *r = state;
    say_text(r, w, BLOCK_THINKING, c->thoughts, c->n_thoughts);
    say_calls(r, w, c->calls, true); /* text follows the rest of a call, not the other way round */
    say_text(r, w, BLOCK_TEXT, c->text, c->len);
    say_calls(r, w, c->calls, false);
    if (c->finish) r->finish = c->finish;
    if (c->finish) r->stop = c->stop_string;
    if (w && r->said.failed) w->failed = true;
}

static bool end(void *state, jsonw *w, const openai_usage *u, bool stream, openai_problem *p)
{
    messages_run *r = state;
    close_block(r, stream ? w : NULL);
    if (r->said.failed || !r->content)
        return openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
    if (!stream) {
        jsonw_open(w, NULL, '{');
        write_message(r, w, u, false);
        jsonw_close(w, '}');
        return true;
    }
    begin_event(w, "message_delta");
    jsonw_open(w, "delta", '{');
    jsonw_str(w, "stop_reason", reason_of(r));
    jsonw_str(w, "stop_sequence", r->stop);
    jsonw_close(w, '}');
    write_usage(r, w, u, false);
    end_event(w);
    begin_event(w, "message_stop");
    end_event(w);
    return true;
}

static void fail(void *state, jsonw *w, const openai_problem *p)
{
    (void)state;
    if (!w) return;
    begin_event(w, "error");
    jsonw_open(w, "error", '{');
    jsonw_str(w, "type", exchange_error_kind(p->status));
    jsonw_str(w, "message", p->msg);
    jsonw_close(w, '}');
    end_event(w);
}

static void rename_param(openai_problem *p)
{
    if (strncmp(p->param, "response_format", 15) == 0)
        snprintf(p->param, sizeof(p->param), "output_config");
}

/* Anthropic's sentences: Claude Code asks for less behind the second, and compacts behind the
 * first. */
static void too_long(openai_problem *p, int64_t prompt, int asked, int context)
{
    if (prompt >= context)
        snprintf(p->msg, sizeof(p->msg), "prompt is too long: %lld tokens > %d maximum",
                 (long long)prompt, context);
    else
        snprintf(p->msg, sizeof(p->msg),
                 "input length and `max_tokens` exceed context limit: %lld + %d > %d, decrease "
                 "input length or `max_tokens` and try again",
                 (long long)prompt, asked, context);
}

static const completion_door door = {.prefix = "msg",
                                     .endpoint = "messages",
                                     .translate = messages_translate,
                                     .rename = rename_param,
                                     .too_long = too_long,
                                     .begin = begin,
                                     .say = say,
                                     .end = end,
                                     .fail = fail};

static void clear(messages_run *r)
{
    cJSON_Delete(r->chat);
    cJSON_Delete(r->content);
    jsonw_clear(&r->said);
}

void messages_create(exchange *x)
{
    messages_run r = {.content = cJSON_CreateArray()};
    jsonw_init(&r.said);
    completion_handle_door(x, &door, &r);
    clear(&r);
}

/* The body as /tokenize would count the chat that it is. */
void messages_count(exchange *x)
{
    messages_run r = {.counting = true};
    jsonw_init(&r.said);
    door_count(x, &door, &r, NULL);
    clear(&r);
}
