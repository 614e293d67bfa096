/* rerank_api.c -- POST /v1/score and /v1/rerank, in vLLM's, Jina's and Cohere's shapes: how well
 * texts fit a text.
 *
 * A model with a head of one class reads both texts as one prompt, and its score is the answer.
 * Any other makes a vector of each text, and the answer is their cosine.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/doors/pooled_json.h"
#include "gateway/handlers.h"

typedef struct texts {
    openai_prompt *list;
    int n;
} texts;

typedef struct match {
    int index;
    double score;
} match;

typedef struct rerank {
    const cJSON *body;
    const char *first, *second; /* the members' names */
    texts left, right;          /* left: one for all of right, or as many */
    bool classify;              /* both are one prompt */
    bool show;                  /* return_documents */
    int64_t top;                /* 0: all */
    match *best;                /* [right.n], of the exchange's arena */
} rerank;

/* ---------------------------------------------------------------------------- request -- */

/* A string, or an object with a member `text`, as Cohere and Jina have it. */
static bool take_text(const cJSON *v, const char *name, openai_prompt *out, openai_problem *p)
{
    const char *text = cJSON_IsString(v) ? v->valuestring : door_text(v, "text");
    if (!text)
        return openai_refuse(p, 400, "invalid_value", name,
                             "'%s' must be a string, or hold strings or objects with a 'text'; "
                             "pictures and other contents are not supported",
                             name);
    *out = (openai_prompt){.text = text, .len = strlen(text)};
    return true;
}

static bool take_texts(const cJSON *body, const char *name, exchange *x, texts *out,
                       openai_problem *p)
{
    const cJSON *v = json_get(body, name), *each;
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 1, i = 0;
    if (!v || cJSON_IsNull(v))
        return openai_refuse(p, 400, "missing_required_parameter", name, "'%s' is required", name);
    if (n < 1 || n > OPENAI_INPUT_MAX)
        return openai_refuse(p, 400, "invalid_value", name, "'%s' must hold 1 to %d texts", name,
                             OPENAI_INPUT_MAX);
    out->n = n;
    out->list = arena_calloc(&x->arena, (size_t)n, sizeof(*out->list));
    if (!out->list) return openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
    if (!cJSON_IsArray(v)) return take_text(v, name, &out->list[0], p);
    cJSON_ArrayForEach(each, v)
    {
        if (!take_text(each, name, &out->list[i++], p)) return false;
    }
    return true;
}

static bool take_pair(rerank *r, exchange *x, openai_problem *p)
{
    if (!take_texts(r->body, r->first, x, &r->left, p) ||
        !take_texts(r->body, r->second, x, &r->right, p))
        return false;
    if (r->left.n == 1 || r->left.n == r->right.n) return true;
    return openai_refuse(p, 400, "invalid_value", r->first,
                         "'%s' has %d texts and '%s' has %d: it must have one, or as many",
                         r->first, r->left.n, r->second, r->right.n);
}

/* vLLM's names for the two sides of a score. */
static const char *const sides[][2] = {
    {"text_1", "text_2"}, {"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}};
enum { SIDES = sizeof(sides) / sizeof(sides[0]) };

static bool has(const cJSON *body, const char *name)
{
    const cJSON *v = json_get(body, name);
    return v && !cJSON_IsNull(v);
}

/* Which of them the body has; nothing of another one. */
static bool find_sides(rerank *r, openai_problem *p)
{
    int k = 0;
    while (k < SIDES && !has(r->body, sides[k][1])) k++;
    r->first = sides[k % SIDES][0];
    r->second = sides[k % SIDES][1];
    for (int i = 0; i < 2 * SIDES; i++) {
        const char *name = sides[i / 2][i % 2];
        if (!has(r->body, name) || strcmp(name, r->first) == 0 || strcmp(name, r->second) == 0)
            continue;
        return openai_refuse(p, 400, "invalid_value", name,
                             "'%s' is of another request than '%s': scores are of text_1 and "
                             "text_2, queries and documents (or items), or data_1 and data_2",
                             name, r->second);
    }
    return true;
}

static bool read_score(void *state, exchange *x, const cJSON *body, openai_request *rq,
                       openai_problem *p)
{
    static const door_field fields[] = {
        {"text_1", DOOR_TAKEN},  {"text_2", DOOR_TAKEN},
        {"queries", DOOR_TAKEN}, {"documents", DOOR_TAKEN},
        {"items", DOOR_TAKEN},   {"data_1", DOOR_TAKEN},
        {"data_2", DOOR_TAKEN},  {"encoding_format", DOOR_REFUSED},
    };
    rerank *r = state;
    r->body = body;
    return pooled_fields(x, body, fields, sizeof(fields) / sizeof(fields[0]), rq, p) &&
           find_sides(r, p) && take_pair(r, x, p);
}

static bool read_rerank(void *state, exchange *x, const cJSON *body, openai_request *rq,
                        openai_problem *p)
{
    static const door_field fields[] = {
        {"query", DOOR_TAKEN},
        {"documents", DOOR_TAKEN},
        {"top_n", DOOR_TAKEN},
        {"return_documents", DOOR_TAKEN},
        {"rank_fields", DOOR_REFUSED},
        {"max_chunks_per_doc", DOOR_REFUSED},
        {"max_tokens_per_doc", DOOR_REFUSED},
        {"return_embeddings", DOOR_REFUSED},
    };
    rerank *r = state;
    r->body = body;
    if (!pooled_fields(x, body, fields, sizeof(fields) / sizeof(fields[0]), rq, p)) return false;
    const cJSON *query = json_get(body, "query");
    if (cJSON_IsArray(query))
        return openai_refuse(p, 400, "invalid_value", "query", "'query' must be one text");
    return take_pair(r, x, p) && pooled_int(body, "top_n", 0, INT32_MAX, &r->top, p) &&
           pooled_bool(body, "return_documents", &r->show, p);
}

/* The texts of a pair are one prompt, or each text is one. */
static void list_prompts(const rerank *r, openai_request *rq)
{
    assert(r->right.n > 0 && (r->left.n == 1 || r->left.n == r->right.n));
    int lone = r->classify ? 0 : r->left.n;
    rq->n_prompts = lone + r->right.n;
    for (int i = 0; i < lone; i++) rq->prompts[i] = r->left.list[i];
    for (int i = 0; i < r->right.n; i++) {
        openai_prompt *to = &rq->prompts[lone + i];
        *to = r->right.list[i];
        if (!r->classify) continue;
        *to = r->left.list[r->left.n == 1 ? 0 : i];
        to->pair = r->right.list[i].text;
        to->pair_len = r->right.list[i].len;
    }
}

static bool ask(void *state, exchange *x, const pooled_model *m, openai_request *rq, bool *classify,
                openai_problem *p)
{
    rerank *r = state;
    *classify = r->classify = m->n_label > 0;
    if (m->n_label > 1)
        return openai_refuse(p, 400, "unsupported_model", "model",
                             "this model has a head of %d classes; scores are made by a head of "
                             "one, or by vectors",
                             m->n_label);
    size_t n = (size_t)r->left.n + (size_t)r->right.n;
    rq->prompts = arena_calloc(&x->arena, n, sizeof(*rq->prompts));
    r->best = arena_calloc(&x->arena, (size_t)r->right.n, sizeof(*r->best));
    if (!rq->prompts || !r->best)
        return openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
    list_prompts(r, rq);
    return true;
}

/* ----------------------------------------------------------------------------- answer -- */

static double score_of(const rerank *r, const pooled_answer *a, int i)
{
    assert(i >= 0 && i < r->right.n && a->n == (r->classify ? r->right.n : r->left.n + r->right.n));
    if (r->classify) return (double)a->item[i]->label[0];
    const pooling *left = a->item[r->left.n == 1 ? 0 : i], *right = a->item[r->left.n + i];
    return pooling_cosine(left->vector, right->vector, a->by->dim);
}

/* The best first, of equals the first. */
static int by_score(const void *a, const void *b)
{
    const match *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->index - y->index;
}

static void write_score(void *state, jsonw *w, const pooled_answer *a)
{
    const rerank *r = state;
    pooled_open_list(w, a);
    for (int i = 0; i < r->right.n; i++) {
        jsonw_open(w, NULL, '{');
        jsonw_int(w, "index", i);
        jsonw_str(w, "object", "score");
        jsonw_num(w, "score", score_of(r, a, i));
        jsonw_close(w, '}');
    }
    pooled_close_list(w, a);
}

static void write_match(const rerank *r, jsonw *w, const match *m)
{
    assert(m->index >= 0 && m->index < r->right.n);
    const openai_prompt *doc = &r->right.list[m->index];
    jsonw_open(w, NULL, '{');
    jsonw_int(w, "index", m->index);
    jsonw_num(w, "relevance_score", m->score);
    if (r->show) {
        jsonw_open(w, "document", '{');
        jsonw_strn(w, "text", doc->text, doc->len);
        jsonw_close(w, '}');
    }
    jsonw_close(w, '}');
}

static void write_rerank(void *state, jsonw *w, const pooled_answer *a)
{
    const rerank *r = state;
    int n = r->right.n;
    for (int i = 0; i < n; i++) r->best[i] = (match){i, score_of(r, a, i)};
    qsort(r->best, (size_t)n, sizeof(*r->best), by_score);
    if (r->top > 0 && r->top < n) n = (int)r->top;
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "id", a->id);
    jsonw_str(w, "model", a->model);
    pooled_write_usage(w, a);
    jsonw_open(w, "results", '[');
    for (int i = 0; i < n; i++) write_match(r, w, &r->best[i]);
    jsonw_close(w, ']');
    jsonw_close(w, '}');
}

void score_create(exchange *x)
{
    static const completion_pooled api = {"score", "score", "text_2", read_score, ask, write_score};
    rerank r = {.top = 0};
    completion_handle_pooled(x, &api, &r);
}

void rerank_create(exchange *x)
{
    static const completion_pooled api = {"rerank",    "rerank", "documents",
                                          read_rerank, ask,      write_rerank};
    rerank r = {.first = "query", .second = "documents", .show = true};
    completion_handle_pooled(x, &api, &r);
}
