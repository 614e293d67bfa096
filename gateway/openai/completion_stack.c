/* completion_stack.c -- "adapters": several of the caller's adapters at once, each with a scale.
 *
 *     names      each pinned as 'model' would be
 *     plain      one adapter at scale 1 is that adapter
 *     stack      else stacks_acquire(): one set of weights, shared by all who ask for the same
 *     label      "a@2*0.5+b@1*1" in the stack's order, which the usage has
 *
 * The base answers where scales are small, so the caller's models must have it. At most one part
 * may have limits of its own, since a request is counted in one adapter. Adapters with words of
 * their own are refused: there is one tokenizer for a prompt.
 *
 * A named stack (PUT /v1/stacks/NAME) is the same list from the database; a cascade goes on in
 * completion_cascade.c.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/auth.h"
#include "gateway/openai/completion_inside.h"
#include "storage/ledger.h"
#include "storage/stack_rows.h"

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
    assert(i >= 0 && i < c->rq.n_adapters && c->use.part[i]);
    limits_adapter of;
    registry_limits(registry_of(c->srv), c->use.part[i], &of.id, &of.limits);
    const adapter_limits *l = &of.limits;
    if (!l->requests_per_minute && !l->tokens_per_minute && !l->max_concurrent) return true;
    if (c->use.counted)
        return bad(c, i, "has limits of its own, as another adapter of the stack has");
    c->use.counted = c->use.part[i];
    return true;
}

static bool pin_parts(completion *c)
{
    assert(c->rq.n_adapters > 0 && c->rq.n_adapters <= STACK_PARTS_MAX);
    char param[32];
    for (int i = 0; i < c->rq.n_adapters; i++) {
        snprintf(param, sizeof(param), "adapters[%d]", i);
        const char *name = c->rq.adapters[i].name;
        if (strcmp(name, process_of(c->srv)->cfg->model.name) == 0)
            return bad(c, i, "is no adapter");
        if (!completion_pin(c, name, param, &c->use.part[i])) return false;
    }
    return true;
}

/* In the stack's order, so that the same stack has one name. */
static bool label_stack(completion *c)
{
    size_t at = 0, cap = sizeof(c->use.label);
    for (int k = 0; k < c->use.stack->n && at < cap; k++) {
        char one[MODEL_LABEL_MAX + 1];
        int i = 0;
        while (c->use.part[i]->id != c->use.stack->part[k].v->id) i++;
        completion_label(c, c->rq.adapters[i].name, c->use.part[i], one, sizeof(one));
        int n = snprintf(c->use.label + at, cap - at, "%s%s*%.9g", k ? "+" : "", one,
                         (double)c->use.stack->part[k].scale);
        at += n > 0 ? (size_t)n : 0;
    }
    if (at < cap) return true;
    c->use.label[0] = 0;
    return openai_refuse(&c->problem, 400, "invalid_value", "adapters",
                         "the names and scales of 'adapters' take more than the %d bytes that a "
                         "usage row has for them",
                         MODEL_LABEL_MAX);
}

/* One adapter as it is needs no stack. */
static bool is_plain(completion *c)
{
    assert(!c->use.adapter && c->use.part[0]);
    if (c->rq.n_adapters > 1 || c->rq.adapters[0].scale != 1) return false;
    c->use.adapter = c->use.counted = c->use.part[0];
    c->use.part[0] = NULL;
    completion_label(c, c->rq.adapters[0].name, c->use.adapter, c->use.label, sizeof(c->use.label));
    return true;
}

static bool take_stack(completion *c)
{
    stack_part part[STACK_PARTS_MAX];
    err e;
    /* With small scales the base computes the answer, so the tenant's models must have the base. */
    if (!auth_may_use_model(c->x, process_of(c->srv)->cfg->model.name))
        return completion_no_such_model(c, process_of(c->srv)->cfg->model.name, "model");
    for (int i = 0; i < c->rq.n_adapters; i++) {
        part[i] = (stack_part){c->use.part[i], c->rq.adapters[i].scale};
        if (c->use.part[i]->has_words)
            return bad(c, i, "is activated or adds tokens: it cannot be in a stack");
        if (!find_counted(c, i)) return false;
    }
    err_code rc = stacks_acquire(adapters_of(c->srv)->stacks, part, c->rq.n_adapters, LORA_RANK_MAX,
                                 &c->use.stack, &e);
    if (rc == ERR_INPUT || rc == ERR_LIMIT)
        return openai_refuse(&c->problem, 400, "invalid_value", "adapters", "%s", e.msg);
    return rc ? completion_refuse(c, &e, "adapters") : label_stack(c);
}

bool completion_resolve_stack(completion *c)
{
    if (strcmp(c->rq.model, process_of(c->srv)->cfg->model.name) != 0) {
        return openai_refuse(&c->problem, 400, "invalid_value", "model",
                             "with 'adapters', 'model' must be the base, '%.100s'",
                             process_of(c->srv)->cfg->model.name);
    }
    return pin_parts(c) && (is_plain(c) || take_stack(c));
}

/* "name", or "name@2"; false: there is no such stack, or its name is none. */
static bool find_named(const completion *c, stack_row *row)
{
    char name[TENANT_NAME_MAX + 1];
    const char *asked = c->rq.model, *at = strchr(asked, '@');
    size_t n = at ? (size_t)(at - asked) : strlen(asked), digits = at ? strlen(at + 1) : 0;
    bool ok = n <= TENANT_NAME_MAX && digits <= 9 &&
              (!at || (digits > 0 && at[1] != '0' && strspn(at + 1, "0123456789") == digits));
    if (!ok || !auth_may_use_model(c->x, asked)) return false;
    memcpy(name, asked, n);
    name[n] = 0;
    return stack_rows_get(store_of(c->srv), c->x->caller->tenant.id, name, at ? atoi(at + 1) : 0,
                          row, NULL) == ERR_NONE;
}

bool completion_resolve_named(completion *c)
{
    stack_row row;
    cJSON *list = NULL;
    const cJSON *v;
    err e;
    if (!find_named(c, &row)) return false;
    if (json_parse(row.parts, strlen(row.parts), &json_limits_trusted, &list, &e))
        return completion_refuse(c, &e, "model");
    if (cJSON_IsObject(list)) {
        bool ok = completion_take_step(c, json_get(list, "cascade"));
        cJSON_Delete(list);
        return ok;
    }
    cJSON_ArrayForEach(v, list)
    {
        const char *name = cJSON_GetStringValue(json_get(v, "name"));
        size_t len = name ? strlen(name) + 1 : 0;
        bool room = len && c->rq.n_adapters < OPENAI_ADAPTERS_MAX;
        char *own = room ? arena_alloc(&c->x->arena, len) : NULL;
        if (!own) break;
        memcpy(own, name, len);
        c->rq.adapters[c->rq.n_adapters++] =
            (openai_adapter){own, (float)cJSON_GetNumberValue(json_get(v, "scale"))};
    }
    bool whole = c->rq.n_adapters == cJSON_GetArraySize(list);
    cJSON_Delete(list);
    if (!whole) return completion_no_memory(c);
    c->problem = (openai_problem){0};
    return pin_parts(c) && (is_plain(c) || take_stack(c));
}
