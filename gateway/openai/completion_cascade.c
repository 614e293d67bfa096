/* completion_cascade.c -- a chain of models under one name: the first answer that passes its checks
 * is sent (storage/stack_rows.h has the chain, gateway/rest/stacks_api.c its API).
 *
 * Each step is a completion of its own, with its own limits, usage row and bill.  Nothing of a step
 * that has checks is sent before they have passed; the last step has none and is streamed as usual.
 *
 *     ask step 0 -> checks -> failed: settle, release, ask step 1 -> ... -> send
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/completion_inside.h"

bool completion_take_step(completion *c, const cJSON *steps)
{
    const cJSON *now = cJSON_GetArrayItem(steps, c->ask.step), *least;
    const char *name = cJSON_GetStringValue(json_get(now, "name"));
    char param[32];
    c->problem = (openai_problem){0};
    if (c->ask.pooled)
        return openai_refuse(&c->problem, 400, "unsupported_model", "model",
                             "'%.100s' is a cascade, which makes text alone", c->rq.model);
    if (!name) return completion_no_such_model(c, c->rq.model, "model");
    least = json_get(now, "min_logprob");
    c->use.cascade = (completion_step){.of = cJSON_GetArraySize(steps),
                                       .bounded = least != NULL,
                                       .least = least ? cJSON_GetNumberValue(least) : 0,
                                       .complete = cJSON_IsTrue(json_get(now, "complete"))};
    c->use.cascade.held = c->use.cascade.bounded || c->use.cascade.complete;
    if (c->use.cascade.bounded && c->rq.rules.n_top < 0) c->rq.rules.n_top = 0;
    snprintf(param, sizeof(param), "cascade[%d]", c->ask.step);
    return completion_use_model(c, name, param);
}

/* Of the least likely answer. */
static double least_mean(const completion *c)
{
    double least = 0;
    for (int i = 0; i < c->run.n_begun; i++) {
        const choice *ch = &c->run.choices[i];
        double mean = ch->dropped ? 0 : completion_mean_logprob(ch);
        if (mean < least) least = mean;
    }
    return least;
}

bool completion_fails_checks(const completion *c)
{
    const completion_step *s = &c->use.cascade;
    for (int i = 0; s->complete && i < c->run.n_begun; i++) {
        const choice *ch = &c->run.choices[i];
        if (!ch->dropped && (!ch->finish || strcmp(ch->finish, "length") == 0)) return true;
    }
    return s->bounded && !(least_mean(c) >= s->least);
}

void completion_note_step(completion *c)
{
    size_t at = strlen(c->ask.trail), cap = CASCADE_TRAIL_BYTES;
    assert(at < cap);
    int n = snprintf(c->ask.trail + at, cap - at, "%s%s", at ? ", " : "", c->use.label);
    at += n > 0 && (size_t)n < cap - at ? (size_t)n : 0;
    if (c->use.cascade.bounded)
        snprintf(c->ask.trail + at, cap - at, ";logprob=%.4f", least_mean(c));
}

void completion_tell_cascade(completion *c)
{
    assert(c->use.cascade.of > 0 && c->ask.step < c->use.cascade.of);
    exchange_add_header(c->x, "x-lorad-cascade", "%s", c->ask.trail);
    exchange_note(c->x, "cascade", "%d/%d", c->ask.step + 1, c->use.cascade.of);
}
