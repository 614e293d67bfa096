/* completion_pooled.c -- prompts that become vectors or class scores (embeddings, classify,
 * rerank): what differs from text generation, before the engine and after it.
 *
 * The life of such a request is that of a completion (admission, adapter, limits, usage); it
 * produces no tokens, but one vector or one row of scores for each prompt. The endpoint's
 * callbacks (ask.pooled) read the body, choose vectors or scores, and write the answer.
 *
 * Prompts longer than the model allows are refused, or cut if truncate_prompt_tokens is given.
 * Cutting keeps the special tokens at both ends, as Hugging Face's tokenizers do: cut() finds
 * where the bare text lies within the encoded one and shortens that part.
 *
 * A pair (rerank with a cross-encoder) is the first text with its marks followed by the second
 * with its own.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/sched/sched.h"
#include "gateway/http/inner.h"
#include "gateway/openai/completion_inside.h"
#include "gateway/openai/prompt.h"
#include "storage/adapter_rows.h"

bool completion_pooled_read(completion *c, const cJSON *body)
{
    openai_request *rq = &c->rq;
    *rq = (openai_request){.add_special_tokens = true,
                           .n = 1,
                           .prompt_top = -1,
                           .thinking_budget = -1,
                           .truncate_prompt = -1,
                           .rules = {SAMPLING_LIST(SAMPLING_NEUTRAL).n_top = -1}};
    if (!c->ask.pooled->read(c->ask.door_state, c->x, body, rq, &c->problem)) return false;
    if (rq->service_tier && strcmp(rq->service_tier, "auto") == 0) rq->service_tier = NULL;
    if (rq->model && rq->model[0]) return true;
    return openai_refuse(&c->problem, 400, "missing_required_parameter", "model",
                         "'model' is required");
}

/* ------------------------------------------------------------------------- the model -- */

/* Classes of the adapter's own head, as its row says; the base's where it has none. */
static bool find_labels(completion *c)
{
    const pooling_head *own = model_score_head(engine_of(c->srv)->model);
    char info[ADAPTER_INFO_MAX];
    cJSON *j = NULL;
    int64_t n = 0;
    err e;
    c->ask.by.n_label = own ? own->n_label : 0;
    if (!c->use.adapter) return true;
    err_code rc = adapter_rows_info(store_of(c->srv), c->use.adapter->id, info, sizeof(info), &e);
    if (!rc) rc = json_parse(info, strlen(info), &json_limits_trusted, &j, &e);
    if (!rc) rc = json_int(j, "labels", 1, POOLING_LABELS_MAX, &n, NULL, &e);
    cJSON_Delete(j);
    if (rc) return completion_refuse(c, &e, "model");
    if (n > 0) c->ask.by.n_label = (int)n;
    return true;
}

static bool find_model(completion *c)
{
    c->ask.by.config = &engine_of(c->srv)->pooled;
    c->ask.by.dim = model_get_config(engine_of(c->srv)->model)->dim;
    return find_labels(c);
}

/* --------------------------------------------------------------------------- prompts -- */

static int room_of(const completion *c)
{
    int room = sched_max_context(sched_of(c->srv)), own = c->ask.by.config->max_tokens;
    return own > 0 && own < room ? own : room;
}

static bool too_long(completion *c, int64_t n)
{
    return openai_refuse(&c->problem, 400, "context_length_exceeded", c->ask.pooled->param,
                         "This model's maximum context length is %d tokens. However, your input "
                         "has %lld tokens. Please reduce the length of the input.",
                         room_of(c), (long long)n);
}

/* Ids of a text in the arena, *n of them; NULL: no memory. */
static int32_t *encode(completion *c, const char *text, size_t len, int special, int64_t *n)
{
    int32_t *made;
    *n = prompt_encode_text(c->x, c->use.vocab->tok, text, len, TOK_PARSE_SPECIAL | special, &made,
                            &c->use.encode_us);
    int32_t *ids = *n >= 0 ? arena_calloc(&c->x->arena, (size_t)*n + 1, sizeof(*ids)) : NULL;
    if (ids) memcpy(ids, made, (size_t)*n * sizeof(*ids));
    free(made);
    return ids;
}

/* A text's first tokens and the marks around it, as many as are kept: as Hugging Face's tokenizers
 * cut. */
static bool cut(completion *c, openai_prompt *p, int keep)
{
    int64_t n_bare;
    const int32_t *bare = encode(c, p->text, p->len, 0, &n_bare);
    if (!bare) return completion_no_memory(c);
    int marks = p->n_ids - (int)n_bare, before = 0;
    while (before < marks && memcmp(p->ids + before, bare, (size_t)n_bare * sizeof(*bare)) != 0)
        before++;
    int text = keep > marks ? keep - marks : 0, after = marks - before;
    assert(marks >= 0 && after >= 0 && text >= 0);
    int32_t *ids = arena_calloc(&c->x->arena, (size_t)(text + marks) + 1, sizeof(*ids));
    if (!ids) return completion_no_memory(c);
    memcpy(ids, p->ids, (size_t)(before + text) * sizeof(*ids));
    memcpy(ids + before + text, p->ids + p->n_ids - after, (size_t)after * sizeof(*ids));
    p->ids = ids;
    p->n_ids = text + marks;
    return true;
}

/* The second text of a pair stands behind the first, with marks of its own, as the tokenizers of
 * models that go on with a text join them. */
static bool join(completion *c, openai_prompt *p, int special)
{
    int64_t n_pair;
    const int32_t *pair = encode(c, p->pair, p->pair_len, special, &n_pair);
    int32_t *ids = pair && n_pair + p->n_ids <= INT32_MAX
                       ? arena_calloc(&c->x->arena, (size_t)(n_pair + p->n_ids) + 1, sizeof(*ids))
                       : NULL;
    if (!ids) return completion_no_memory(c);
    memcpy(ids, p->ids, (size_t)p->n_ids * sizeof(*ids));
    memcpy(ids + p->n_ids, pair, (size_t)n_pair * sizeof(*ids));
    p->ids = ids;
    p->n_ids += (int)n_pair;
    return true;
}

/* The model's vocabulary may be smaller than the widest that there is. */
static bool check_ids(completion *c, const openai_prompt *p)
{
    for (int i = 0; i < p->n_ids; i++) {
        if (p->ids[i] >= c->use.vocab->n_vocab)
            return openai_refuse(&c->problem, 400, "invalid_value", c->ask.pooled->param,
                                 "'%s' must hold token ids from 0 to %d", c->ask.pooled->param,
                                 c->use.vocab->n_vocab - 1);
    }
    return true;
}

static bool make_ids(completion *c, openai_prompt *p)
{
    int special = c->rq.add_special_tokens ? TOK_ADD_SPECIAL : 0;
    int64_t n;
    if (p->ids) return true;
    p->ids = encode(c, p->text, p->len, special, &n);
    if (!p->ids || n > INT32_MAX) return completion_no_memory(c);
    p->n_ids = (int)n;
    return !p->pair || join(c, p, special);
}

/* truncate_prompt_tokens: the first ones stay; 0: as many as there is room for. */
static bool tokenise(completion *c, openai_prompt *p)
{
    int keep = c->rq.truncate_prompt ? c->rq.truncate_prompt : room_of(c);
    size_t bytes = p->ids ? 0 : p->len + p->pair_len;
    if (c->rq.truncate_prompt < 0 && !vocabulary_may_fit(c->use.vocab, bytes, room_of(c)))
        return openai_refuse(&c->problem, 400, "context_length_exceeded", c->ask.pooled->param,
                             "This model's maximum input length is %d tokens; the input has %zu "
                             "bytes, and so many tokens have at most %zu.",
                             room_of(c), bytes, (size_t)room_of(c) * c->use.vocab->longest);
    if (!make_ids(c, p)) return false;
    bool long_text = c->rq.truncate_prompt >= 0 && p->n_ids > keep;
    if (long_text && p->text && !p->pair && !cut(c, p, keep)) return false;
    if (long_text && p->n_ids > keep) p->n_ids = keep;
    if (p->n_ids > room_of(c)) return too_long(c, p->n_ids);
    return p->n_ids > 0 || openai_refuse(&c->problem, 400, "empty_prompt", c->ask.pooled->param,
                                         "an input has no tokens");
}

bool completion_pooled_prompts(completion *c)
{
    if (!find_model(c)) return false;
    if (!c->ask.pooled->ask(c->ask.door_state, c->x, &c->ask.by, &c->rq, &c->ask.classify,
                            &c->problem))
        return false;
    if (!c->ask.classify && c->ask.by.config->problem[0])
        return openai_refuse(&c->problem, 400, "unsupported_model", "model", "%s",
                             c->ask.by.config->problem);
    if (c->x->inner && c->rq.n_prompts > c->x->inner->most_choices)
        return openai_refuse(&c->problem, 400, "invalid_value", c->ask.pooled->param,
                             "a line of a batch has at most %d inputs", c->x->inner->most_choices);
    for (int i = 0; i < c->rq.n_prompts; i++) {
        if (!check_ids(c, &c->rq.prompts[i]) || !tokenise(c, &c->rq.prompts[i])) return false;
    }
    return true;
}

/* ---------------------------------------------------------------------------- answer -- */

void completion_pooled_compose(completion *c)
{
    pooling **item = arena_calloc(&c->x->arena, (size_t)c->run.n_choices, sizeof(*item));
    openai_usage u;
    completion_usage(c, &u);
    c->run.starved |= !item;
    if (!item) return;
    for (int i = 0; i < c->run.n_choices; i++) {
        pooling *p = item[i] = &c->run.choices[i].pool;
        if (c->ask.classify)
            pooled_scores(c->ask.by.config, p->label, p->n_label);
        else if (c->ask.by.config->normalise)
            pooling_normalise(p->vector, p->dim);
    }
    const pooled_answer a = {.by = &c->ask.by,
                             .id = c->reply.id,
                             .model = c->rq.model,
                             .created_s = c->times.started_wall_us / 1000000,
                             .n = c->run.n_choices,
                             .item = item,
                             .prompt = c->rq.prompts,
                             .n_tokens = u.prompt_tokens};
    c->ask.pooled->write(c->ask.door_state, &c->reply.out, &a);
}
