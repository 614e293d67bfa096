/* fuzz_doors.c -- the bodies of /v1/messages ("m"), its count_tokens ("c") and /v1/responses ("r"),
 * then the JSON: refused with a sentence, or a chat's body that the chat's own parser takes or
 * refuses.  What is stored is not asked for. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/doors/messages.h"
#include "gateway/doors/responses.h"
#include "gateway/openai/openai.h"
#include "gateway/server.h"
#include "tests/fuzz/fuzz.h"

/* The chat's parser on what came of it. */
static void parse(const cJSON *chat, const cJSON *body)
{
    const openai_limits lim = {.n_vocab = 64,
                               .max_context = 128,
                               .max_choices = 8,
                               .thinks = true,
                               .defaults = {SAMPLING_MODEL_LIST(SAMPLING_NEUTRAL)}};
    openai_request rq = {0};
    openai_problem p = {.status = 0};
    arena a;
    arena_init(&a, 32 << 20);
    if (openai_parse(&rq, true, chat, &lim, &a, &p))
        FUZZ_CHECK(rq.n_msgs >= 1 && json_get(body, "model"));
    else
        FUZZ_CHECK(p.status >= 400 && p.status < 500 && p.msg[0]);
    openai_request_clear(&rq);
    arena_clear(&a);
}

static void messages(exchange *x, bool counting, const cJSON *body)
{
    messages_run r = {.counting = counting};
    openai_problem p = {.status = 0};
    bool drop;
    const cJSON *chat = messages_translate(&r, x, body, &drop, &p);
    if (chat)
        parse(chat, body);
    else
        FUZZ_CHECK(p.status >= 400 && p.status < 500 && p.msg[0]);
    cJSON_Delete(r.chat);
}

static void responses(exchange *x, const cJSON *body)
{
    responses_run r = {.x = x, .srv = x->app};
    openai_problem p = {.status = 0};
    bool drop;
    bool stored = json_get(body, "previous_response_id") || json_get(body, "conversation");
    const cJSON *chat = stored ? NULL : responses_translate(&r, x, body, &drop, &p);
    if (chat) {
        parse(chat, body);
        FUZZ_CHECK(cJSON_IsArray(r.output) && cJSON_IsArray(r.input));
    } else if (!stored) {
        FUZZ_CHECK(p.status >= 400 && p.status < 500 && p.msg[0]);
    }
    cJSON_Delete(r.chat);
    cJSON_Delete(r.input);
    cJSON_Delete(r.response);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static config cfg;
    static server srv;
    static exchange x;
    cJSON *tree;
    err e;
    cfg.responses.store = true;
    x = (exchange){.app = &srv, .conf = &cfg};
    if (size < 2) return 0;
    char *text = fuzz_text(data + 1, size - 1);
    if (!json_parse(text, size - 1, &json_limits_request, &tree, &e)) {
        if (data[0] == 'r')
            responses(&x, tree);
        else
            messages(&x, data[0] == 'c', tree);
        cJSON_Delete(tree);
    }
    free(text);
    return 0;
}
