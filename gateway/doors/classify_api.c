/* classify_api.c -- POST /v1/classify, in vLLM's shape: texts, and what class each is of. */
#include "engine/base/json.h"
#include "gateway/doors/pooled_json.h"
#include "gateway/engine_parts.h"
#include "gateway/handlers.h"

static bool read_body(void *state, exchange *x, const cJSON *body, openai_request *rq,
                      openai_problem *p)
{
    static const door_field fields[] = {{"input", DOOR_TAKEN}};
    *(const cJSON **)state = body;
    return pooled_fields(x, body, fields, 1, rq, p);
}

static bool ask(void *state, exchange *x, const pooled_model *m, openai_request *rq, bool *classify,
                openai_problem *p)
{
    const cJSON *const *body = state;
    const model_config *mc = model_get_config(engine_of(x->app)->model);
    *classify = true;
    if (m->n_label == 0)
        return openai_refuse(p, 400, "unsupported_model", "model",
                             "this model has no head of classes: neither the base's files nor the "
                             "adapter's modules_to_save hold one ('score' or 'classifier')");
    return openai_parse_inputs(rq, *body, "input", mc->n_vocab + mc->added_max, &x->arena, p);
}

static void write_one(jsonw *w, const pooled_answer *a, int i)
{
    const pooling *p = a->item[i];
    char room[24];
    int best = 0;
    for (int k = 1; k < p->n_label; k++) {
        if (p->label[k] > p->label[best]) best = k;
    }
    jsonw_open(w, NULL, '{');
    jsonw_int(w, "index", i);
    jsonw_str(w, "label", pooled_label(a->by->config, best, p->n_label, room));
    jsonw_open(w, "probs", '[');
    for (int k = 0; k < p->n_label; k++) jsonw_num(w, NULL, (double)p->label[k]);
    jsonw_close(w, ']');
    jsonw_int(w, "num_classes", p->n_label);
    jsonw_close(w, '}');
}

static void write_answer(void *state, jsonw *w, const pooled_answer *a)
{
    (void)state;
    pooled_open_list(w, a);
    for (int i = 0; i < a->n; i++) write_one(w, a, i);
    pooled_close_list(w, a);
}

void classify_create(exchange *x)
{
    static const completion_pooled api = {"classify", "classify", "input",
                                          read_body,  ask,        write_answer};
    const cJSON *body = NULL;
    completion_handle_pooled(x, &api, &body);
}
