/* completion_door.h -- another API's way to a chat completion: a translation at the door.
 *
 * The body becomes that of /v1/chat/completions, and goes the one way that all completions go:
 * admission, limits, engine, books.  What comes of it is told to the door piece by piece, and the
 * door says it in its own API's words.
 *
 * Ownership: `state` is the door's, for one exchange.  Threads: the exchange's worker.
 */
#ifndef GATEWAY_OPENAI_COMPLETION_DOOR_H
#define GATEWAY_OPENAI_COMPLETION_DOOR_H

#include "gateway/http/exchange.h"
#include "gateway/openai/openai.h"
#include "gateway/openai/openai_reply.h"

typedef struct completion_door {
    const char *prefix;   /* of ids in the log */
    const char *endpoint; /* in usage: static, at most 31 bytes */
    /* The body as a chat's, which `state` keeps.  *drop_oldest: what is too long loses its first
     * messages.  NULL: *p says why. */
    const cJSON *(*translate)(void *state, exchange *x, const cJSON *body, bool *drop_oldest,
                              openai_problem *p);
    /* Names a parameter of the chat's body as the door's own. */
    void (*rename)(openai_problem *p);
    /* The answer begins; w NULL: it is not streamed. */
    void (*begin)(void *state, jsonw *w, const openai_head *h, const openai_usage *u);
    /* What is new of its one choice; calls: the door notes what it has given. */
    void (*say)(void *state, jsonw *w, const openai_choice *c);
    /* The end of the stream, or the whole answer.  False: *p says why there is none. */
    bool (*end)(void *state, jsonw *w, const openai_usage *u, bool stream, openai_problem *p);
    /* There is no answer, or no more of it.  `w` has little room, NULL: no stream has begun. */
    void (*fail)(void *state, jsonw *w, const openai_problem *p);
} completion_door;

void completion_handle_door(exchange *x, const completion_door *door, void *state);

#endif
