/* responses.h -- one request of OpenAI's Responses API: a chat completion with other words.
 *
 *     body -> items (with those of what it goes on from) -> a chat's body        responses_input.c
 *     thoughts, text, calls -> items, events with their numbers                  responses_say.c
 *     create, get, delete, cancel, input items; conversations                    responses_api.c
 *     those that go on without their client                                      background.c
 *     their events, as they come and again                                       responses_stream.c
 *
 * Ownership: a run lives on its worker's stack.  Threads: that worker.
 */
#ifndef GATEWAY_DOORS_RESPONSES_H
#define GATEWAY_DOORS_RESPONSES_H

#include "gateway/doors/door_json.h"
#include "gateway/openai/completion_door.h"
#include "storage/seal/responses.h"

typedef struct server server;

enum { RESPONSES_CHAIN_MAX = 256, RESPONSES_ITEMS_MAX = 2048 };

/* From ITEM_CALL on: calls of functions, of custom tools, of the tools local_shell and
 * apply_patch. */
typedef enum {
    ITEM_NONE,
    ITEM_REASONING,
    ITEM_MESSAGE,
    ITEM_CALL,
    ITEM_CUSTOM,
    ITEM_SHELL,
    ITEM_PATCH
} responses_item;

typedef struct responses_run {
    exchange *x;
    server *srv;
    cJSON *chat;     /* the body as a chat's */
    cJSON *input;    /* this request's own items, each with its id */
    cJSON *response; /* the object, as it is known so far */
    cJSON *output;   /* its items; response's */
    response_row row;
    bool store, background;
    bool has_shell, has_patch; /* the tools local_shell, apply_patch are there */
    cJSON *spaces;             /* {"space__name": {"name", "namespace"}}; NULL: no namespaces */
    /* ---- what is said ---- */
    int n_items; /* ids of items given out */
    int sequence;
    responses_item open; /* the item that is being said */
    char item_id[64];
    const tool_call *call; /* of ITEM_CALL */
    jsonw said;            /* its text so far */
    const char *finish;
} responses_run;

/* responses_tools.c: tools of every kind as a chat's, and which of them may or must be called.
 * False: *p says why. */
bool responses_take_tools(responses_run *r, const cJSON *body, openai_problem *p);
/* The kind of item that a call of the chat's is. */
responses_item responses_kind_of(const responses_run *r, const tool_call *c);
/* The members of a call's item but for id, type and status; `text`: its arguments or its text.
 * False: they are no action of this kind. */
bool responses_describe_call(const responses_run *r, cJSON *item, const char *text);
/* An item of a call's, or of its output, as a chat's message. */
bool responses_add_call(cJSON *messages, const cJSON *item, openai_problem *p);

/* responses_stream.c: sends the events of a stored response whose numbers are above `after`, those
 * that are still to come as well; -1: all. */
void responses_follow(exchange *x, const char *id, int64_t after);

/* responses_input.c: completion_door.translate */
const cJSON *responses_translate(void *state, exchange *x, const cJSON *body, bool *drop_oldest,
                                 openai_problem *p);
/* The message that an assistant's next item belongs to: the last one, if it fits, or a new one. */
cJSON *responses_assistant(cJSON *messages, bool fits(const cJSON *m));
/* One more item of a conversation's, into the chat's messages.  False: *p says why. */
bool responses_add_item(cJSON *messages, const cJSON *item, openai_problem *p);
/* An input item as it is stored and listed: with an id, its content in parts. */
cJSON *responses_keep_item(responses_run *r, const cJSON *item);
/* An id of one of the run's items, by which it is found again: it has the row's in it. */
void responses_item_id(responses_run *r, const char *prefix, char out[64]);

/* responses_say.c */
void responses_begin(void *state, jsonw *w, const openai_head *h, const openai_usage *u);
void responses_say(void *state, jsonw *w, const openai_choice *c);
/* All items are said, and the object is whole. */
void responses_finish(responses_run *r, jsonw *w, const openai_usage *u);
/* Writes an event of this type with the response object in its present state. */
void responses_event(responses_run *r, jsonw *w, const char *type);

#endif
