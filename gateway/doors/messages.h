/* messages.h -- one request of Anthropic's Messages API: a chat completion with other words.
 *
 *     body -> a chat's body                                      messages_input.c
 *     tools and tool_choice                                      messages_tools.c
 *     thoughts, text, calls -> content blocks, events; handlers  messages_api.c
 *
 * Ownership: a run lives on its worker's stack.  Threads: that worker.
 */
#ifndef GATEWAY_DOORS_MESSAGES_H
#define GATEWAY_DOORS_MESSAGES_H

#include "gateway/doors/door_json.h"
#include "gateway/openai/completion_door.h"

typedef enum { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL } messages_block;

typedef struct messages_run {
    cJSON *chat;   /* the body as a chat's */
    bool counting; /* the body is that of count_tokens */
    /* ---- what is said ---- */
    char id[64];
    cJSON *content;      /* blocks that are closed */
    messages_block open; /* the one that is being said */
    jsonw said;          /* its text so far */
    const tool_call *call;
    char model[264];
    const char *tier, *finish, *stop;
} messages_run;

/* completion_door.translate */
const cJSON *messages_translate(void *state, exchange *x, const cJSON *body, bool *drop_oldest,
                                openai_problem *p);

/* Adds to the chat what body's tools and tool_choice ask for; false: *p says why not. */
bool messages_take_tools(messages_run *r, const cJSON *body, openai_problem *p);

#endif
