/* fuzz_body.c -- the bodies of /v1/chat/completions and /v1/completions: "c" or "t" (upper
 * case: strict), then the JSON. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai.h"
#include "gateway/openai/openai_tools.h"
#include "tests/fuzz/fuzz.h"

static void check(const openai_request *rq, const openai_limits *lim)
{
    FUZZ_CHECK(rq->model && rq->n >= 1 && rq->n_prompts >= 1 &&
               rq->n * rq->n_prompts <= lim->max_choices);
    FUZZ_CHECK(rq->n_stop <= OPENAI_STOP_MAX && rq->n_ignored <= OPENAI_IGNORED_MAX);
    FUZZ_CHECK(rq->max_tokens >= -1 && rq->max_tokens <= lim->max_context);
    FUZZ_CHECK(!rq->chat || rq->n_msgs >= 1);
    for (int i = 0; i < rq->n_msgs; i++) {
        const chat_message *m = &rq->msgs[i];
        FUZZ_CHECK(m->role && (m->text || !m->len) && (!m->text || strlen(m->text) == m->len));
    }
    for (int i = 0; i < rq->n_prompts && !rq->chat; i++)
        FUZZ_CHECK(rq->prompts[i].text ? strlen(rq->prompts[i].text) == rq->prompts[i].len
                                       : rq->prompts[i].n_ids >= 0);
}

static void parse(bool chat, bool strict, const cJSON *tree)
{
    const openai_limits lim = {.n_vocab = 64,
                               .max_context = 128,
                               .max_choices = 8,
                               .max_beams = 4,
                               .defaults = {SAMPLING_MODEL_LIST(SAMPLING_NEUTRAL)},
                               .strict = strict};
    openai_request rq = {0};
    openai_problem p = {.status = 0};
    arena a;
    arena_init(&a, 32 << 20);
    if (openai_parse(&rq, chat, tree, &lim, &a, &p)) {
        check(&rq, &lim);
        if (rq.tool_choice == TOOL_CHOICE_REQUIRED || rq.tool_choice == TOOL_CHOICE_NAMED)
            (void)openai_form_calls(&rq, TOOLS_HERMES, NULL, &p);
        (void)openai_check_ids(&rq, 32, &p);
    } else {
        FUZZ_CHECK(p.status >= 400 && p.status < 500 && p.msg[0] && p.type);
    }
    openai_request_clear(&rq);
    arena_clear(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cJSON *tree;
    err e;
    if (size < 2) return 0;
    char *text = fuzz_text(data + 1, size - 1);
    if (!json_parse(text, size - 1, &json_limits_request, &tree, &e)) {
        parse(tolower(data[0]) == 'c', isupper(data[0]), tree);
        cJSON_Delete(tree);
    }
    free(text);
    return 0;
}
