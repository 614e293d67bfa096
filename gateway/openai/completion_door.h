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

#include "engine/model/pooled.h"
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
    /* The sentence about a prompt that is too long for the model, alone or with the `asked` tokens
     * of its answer (-1: no number was asked for).  NULL: OpenAI's. */
    void (*too_long)(openai_problem *p, int64_t prompt, int asked, int context);
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

/* ---- prompts that become vectors or scores of classes, not text (engine/sample/pooling.h) ---- */

/* The model that a request names. */
typedef struct pooled_model {
    const pooled_config *config;
    int dim;
    int n_label; /* classes of its head, the adapter's or else the base's; 0: it has none */
} pooled_model;

typedef struct pooled_answer {
    const pooled_model *by;
    const char *id, *model; /* model: as it was asked for */
    int64_t created_s;
    int n; /* prompts */
    pooling *const *item;
    const openai_prompt *prompt;
    int64_t n_tokens; /* of all prompts */
} pooled_answer;

/* Another API over them; the way is that of completions, and so are limits, classes and books. */
typedef struct completion_pooled {
    const char *prefix;   /* of ids */
    const char *endpoint; /* in usage: static, at most 31 bytes */
    const char *param;    /* the field that a prompt which is too long is in */
    /* Reads the body: the model's name, the class, all that needs no model.  False: *p says why. */
    bool (*read)(void *state, exchange *x, const cJSON *body, openai_request *rq,
                 openai_problem *p);
    /* Then its prompts, of which there is at least one.  *classify: the model's head is put over
     * them. */
    bool (*ask)(void *state, exchange *x, const pooled_model *m, openai_request *rq, bool *classify,
                openai_problem *p);
    void (*write)(void *state, jsonw *w, const pooled_answer *a);
} completion_pooled;

/* Reads nothing but the exchange's body, so a batch's line may come this way. */
void completion_handle_pooled(exchange *x, const completion_pooled *api, void *state);

#endif
