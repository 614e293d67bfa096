/* completion_stack.c -- "adapters": several of the caller's adapters at once, each with a scale. */
#include <stdio.h>
#include <string.h>

#include "gateway/openai/completion_inside.h"

_Static_assert((int)OPENAI_ADAPTERS_MAX == (int)STACK_PARTS_MAX, "a body may ask for any stack");

static bool bad(completion *c, int i, const char *what)
{
    char param[32];
    snprintf(param, sizeof(param), "adapters[%d]", i);
    return openai_refuse(&c->problem, 400, "invalid_value", param, "'%.100s' %s",
                         c->rq.adapters[i].name, what);
}

/* Of all parts one may have limits of its own: a request is counted in one adapter. */
static bool find_counted(completion *c, int i)
{
    limits_adapter of;
    registry_limits(c->srv->registry, c->part[i], &of.id, &of.limits);
    const adapter_limits *l = &of.limits;
    if (!l->requests_per_minute && !l->tokens_per_minute && !l->max_concurrent) return true;
    if (c->counted) return bad(c, i, "has limits of its own, as another adapter of the stack has");
    c->counted = c->part[i];
    return true;
}

static bool pin_parts(completion *c)
{
    char param[32];
    for (int i = 0; i < c->rq.n_adapters; i++) {
        snprintf(param, sizeof(param), "adapters[%d]", i);
        const char *name = c->rq.adapters[i].name;
        if (strcmp(name, c->srv->cfg->model_name) == 0) return bad(c, i, "is no adapter");
        if (!completion_pin(c, name, param, &c->part[i])) return false;
    }
    return true;
}

/* In the stack's order, so that the same stack has one name. */
static bool label_stack(completion *c)
{
    size_t at = 0, cap = sizeof(c->label);
    for (int k = 0; k < c->stack->n && at < cap; k++) {
        char one[MODEL_LABEL_MAX + 1];
        int i = 0;
        while (c->part[i]->id != c->stack->part[k].v->id) i++;
        completion_label(c, c->rq.adapters[i].name, c->part[i], one, sizeof(one));
        int n = snprintf(c->label + at, cap - at, "%s%s*%.9g", k ? "+" : "", one,
                         (double)c->stack->part[k].scale);
        at += n > 0 ? (size_t)n : 0;
    }
    if (at < cap) return true;
    c->label[0] = 0;
    return openai_refuse(&c->problem, 400, "invalid_value", "adapters",
                         "the names and scales of 'adapters' take more than the %d bytes that a "
                         "usage row has for them",
                         MODEL_LABEL_MAX);
}

/* One adapter as it is needs no stack. */
static bool is_plain(completion *c)
{
    if (c->rq.n_adapters > 1 || c->rq.adapters[0].scale != 1) return false;
    c->adapter = c->counted = c->part[0];
    c->part[0] = NULL;
    completion_label(c, c->rq.adapters[0].name, c->adapter, c->label, sizeof(c->label));
    return true;
}

static bool take_stack(completion *c)
{
    stack_part part[STACK_PARTS_MAX];
    err e;
    for (int i = 0; i < c->rq.n_adapters; i++) {
        part[i] = (stack_part){c->part[i], c->rq.adapters[i].scale};
        if (c->part[i]->has_words)
            return bad(c, i, "is activated or adds tokens: it cannot be in a stack");
        if (!find_counted(c, i)) return false;
    }
    err_code rc =
        stacks_acquire(c->srv->stacks, part, c->rq.n_adapters, LORA_RANK_MAX, &c->stack, &e);
    if (rc == ERR_INPUT || rc == ERR_LIMIT)
        return openai_refuse(&c->problem, 400, "invalid_value", "adapters", "%s", e.msg);
    return rc ? completion_refuse(c, &e, "adapters") : label_stack(c);
}

bool completion_resolve_stack(completion *c)
{
    if (strcmp(c->rq.model, c->srv->cfg->model_name) != 0) {
        return openai_refuse(&c->problem, 400, "invalid_value", "model",
                             "with 'adapters', 'model' must be the base, '%.100s'",
                             c->srv->cfg->model_name);
    }
    return pin_parts(c) && (is_plain(c) || take_stack(c));
}
