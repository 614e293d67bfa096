/* embeddings_api.c -- POST /v1/embeddings, OpenAI's: texts or tokens become vectors. */
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "engine/base/json.h"
#include "gateway/doors/pooled_json.h"
#include "gateway/engine_parts.h"
#include "gateway/handlers.h"

typedef struct embeddings {
    const cJSON *body;
    int dimensions; /* 0: all */
    bool base64;
} embeddings;

static const door_field fields[] = {
    {"input", DOOR_TAKEN},     {"encoding_format", DOOR_TAKEN}, {"dimensions", DOOR_TAKEN},
    {"normalize", DOOR_TAKEN}, {"embed_dtype", DOOR_REFUSED},   {"endianness", DOOR_REFUSED},
};

static bool read_body(void *state, exchange *x, const cJSON *body, openai_request *rq,
                      openai_problem *p)
{
    embeddings *em = state;
    em->body = body;
    if (!pooled_fields(x, body, fields, sizeof(fields) / sizeof(fields[0]), rq, p)) return false;
    const char *format = door_text(body, "encoding_format");
    const cJSON *given = json_get(body, "encoding_format");
    em->base64 = format && strcmp(format, "base64") == 0;
    bool known = em->base64 || (format && strcmp(format, "float") == 0);
    if (!given || cJSON_IsNull(given) || known) return true;
    return openai_refuse(p, 400, "invalid_value", "encoding_format",
                         "'encoding_format' must be 'float' or 'base64'");
}

/* Vectors are shortened by Matryoshka's way: their first values, made as long as before. */
static bool take_dimensions(embeddings *em, const pooled_model *m, openai_problem *p)
{
    int64_t n = 0;
    bool normalize = m->config->normalise;
    if (!pooled_int(em->body, "dimensions", 1, m->dim, &n, p) ||
        !pooled_bool(em->body, "normalize", &normalize, p))
        return false;
    em->dimensions = (int)n;
    if (normalize == m->config->normalise) return true;
    return openai_refuse(p, 400, "unsupported_parameter", "normalize",
                         "'normalize' is supported only as the model has it, which is %s",
                         m->config->normalise ? "true" : "false");
}

static bool ask(void *state, exchange *x, const pooled_model *m, openai_request *rq, bool *classify,
                openai_problem *p)
{
    embeddings *em = state;
    const model_config *mc = model_get_config(engine_of(x->app)->model);
    *classify = false;
    return take_dimensions(em, m, p) &&
           openai_parse_inputs(rq, em->body, "input", mc->n_vocab + mc->added_max, &x->arena, p);
}

/* Little-endian floats, as OpenAI's clients read them. */
static void write_base64(jsonw *w, const float *v, int n)
{
    size_t bytes = (size_t)n * sizeof(*v), room = (bytes + 2) / 3 * 4 + 1;
    char *text = malloc(room);
    if (!text) {
        w->failed = true;
        return;
    }
    int len = EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)v, (int)bytes);
    jsonw_strn(w, "embedding", text, (size_t)len);
    free(text);
}

static void write_floats(jsonw *w, const float *v, int n)
{
    jsonw_open(w, "embedding", '[');
    for (int i = 0; i < n; i++) jsonw_num(w, NULL, (double)v[i]);
    jsonw_close(w, ']');
}

static void write_one(const embeddings *em, jsonw *w, const pooled_answer *a, int i)
{
    float *v = a->item[i]->vector;
    int n = em->dimensions ? em->dimensions : a->by->dim;
    if (em->dimensions && a->by->config->normalise) pooling_normalise(v, n);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "embedding");
    jsonw_int(w, "index", i);
    (em->base64 ? write_base64 : write_floats)(w, v, n);
    jsonw_close(w, '}');
}

static void write_answer(void *state, jsonw *w, const pooled_answer *a)
{
    const embeddings *em = state;
    jsonw_reserve(w, (size_t)a->n * (size_t)a->by->dim * (em->base64 ? 6 : 13));
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "list");
    jsonw_open(w, "data", '[');
    for (int i = 0; i < a->n; i++) write_one(em, w, a, i);
    jsonw_close(w, ']');
    jsonw_str(w, "model", a->model);
    pooled_write_usage(w, a);
    jsonw_close(w, '}');
}

void embeddings_create(exchange *x)
{
    static const completion_pooled api = {"embd",    "embeddings", "input",
                                          read_body, ask,          write_answer};
    embeddings em = {.dimensions = 0};
    completion_handle_pooled(x, &api, &em);
}
