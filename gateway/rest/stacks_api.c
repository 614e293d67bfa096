/* stacks_api.c -- stacks with a name: several adapters at their scales, asked for as one model; and
 * cascades, whose models are asked one after another until an answer passes its checks.
 *
 *   PUT    /v1/stacks/{name}   {"adapters":[{"name","scale"?}...]} -> 201, the name's next version;
 *                              adapters are settled to their versions of this moment
 *                              {"cascade":[{"name","min_logprob"?,"complete"?}...]}: the same
 *   GET    /v1/stacks          the newest version of each
 *   GET    /v1/stacks/{name}   its versions, newest first
 *   DELETE /v1/stacks/{name}   all of them
 *
 * A request names one in `model`: "name", or "name@2".  It is answered, keyed and billed as one
 * that lists the adapters itself (gateway/openai/completion_stack.c, completion_cascade.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/store/stacks.h"
#include "engine/base/json.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/rest/api_audit.h"
#include "gateway/tenant_parts.h"
#include "storage/stack_rows.h"

enum { SCALE_MAX = 100, LOGPROB_LEAST = -100 };

static void write_stack(jsonw *w, const stack_row *row)
{
    char model_id[TENANT_NAME_MAX + 16];
    snprintf(model_id, sizeof(model_id), "%s@%d", row->name, row->version);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "stack");
    jsonw_str(w, "name", row->name);
    jsonw_int(w, "version", row->version);
    jsonw_str(w, "model", model_id);
    if (row->parts[0] == '{') { /* {"cascade":[...]}: its member becomes ours */
        const char *list = strchr(row->parts, '[');
        jsonw_json(w, "cascade", list, strlen(list) - 1);
    } else {
        jsonw_json(w, "adapters", row->parts, strlen(row->parts));
    }
    api_write_time(w, "created", row->created_wall_us);
    jsonw_close(w, '}');
}

/* ----------------------------------------------------------------------- a new one -- */

typedef struct parts {
    stack_part part[STACK_PARTS_MAX];
    char name[STACK_PARTS_MAX][TENANT_NAME_MAX + ADAPTER_NAME_MAX + 16]; /* with their versions */
    double scale[STACK_PARTS_MAX];                                       /* as it was written */
    int n;
} parts;

static bool bad_item(exchange *x, const char *list, int i, const char *what)
{
    char param[32];
    snprintf(param, sizeof(param), "%s[%d]", list, i);
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "'%s' %s", param, what);
    return false;
}

static bool bad_part(exchange *x, int i, const char *what)
{
    return bad_item(x, "adapters", i, what);
}

/* False: answered. */
static bool not_there(exchange *x, const char *list, int i, const char *name)
{
    char param[32];
    snprintf(param, sizeof(param), "%s[%d]", list, i);
    exchange_error(x, 404, "invalid_request_error", "model_not_found", param,
                   "The model '%.100s' does not exist or you do not have access to it.", name);
    return false;
}

/* Pins the adapter that item i of the list names, and writes its name with its version.  False:
 * answered. */
static bool pin_item(exchange *x, const char *list, int i, const char *name,
                     const adapter_version **v, char *full, size_t cap)
{
    err e;
    if (!auth_may_use_model(x, name) ||
        registry_acquire(registry_of(x->app), x->caller->tenant.id, name, false, v, &e))
        return not_there(x, list, i, name);
    const char *slash = strchr(name, '/');
    bool others = slash && (*v)->tenant_id != x->caller->tenant.id;
    snprintf(full, cap, "%.*s%s@%d", others ? (int)(slash - name) + 1 : 0, name, (*v)->name,
             (*v)->version);
    return true;
}

static const char *name_of(const cJSON *item)
{
    return cJSON_IsObject(item) ? cJSON_GetStringValue(json_get(item, "name")) : NULL;
}

/* Pins it; false: answered. */
static bool take_part(exchange *x, const cJSON *item, parts *p)
{
    static const char *const known[] = {"name", "scale", NULL};
    const char *name = name_of(item);
    double scale = 1;
    const adapter_version *v;
    err e;
    if (!name) return bad_part(x, p->n, "must be an object with a 'name'");
    if (!api_only_fields(x, item, known)) return false;
    if (json_num(item, "scale", -SCALE_MAX, SCALE_MAX, &scale, NULL, &e) || (float)scale == 0)
        return bad_part(x, p->n, "must have a 'scale' from -100 to 100, and not 0");
    if (!pin_item(x, "adapters", p->n, name, &v, p->name[p->n], sizeof(p->name[0]))) return false;
    p->scale[p->n] = scale;
    p->part[p->n++] = (stack_part){v, (float)scale};
    return !v->has_words ||
           bad_part(x, p->n - 1, "is activated or adds tokens: it cannot be in a stack");
}

/* Could it be served?  False: answered. */
static bool check_parts(exchange *x, const parts *p)
{
    const stack *st;
    err e;
    bool plain = p->n == 1 && p->part[0].scale == 1; /* that adapter; else the base has a share */
    if (!plain && !auth_may_use_model(x, x->conf->model.name)) {
        exchange_error(x, 404, "invalid_request_error", "model_not_found", "adapters",
                       "The model '%.100s' does not exist or you do not have access to it.",
                       x->conf->model.name);
        return false;
    }
    err_code rc =
        stacks_acquire(adapters_of(x->app)->stacks, p->part, p->n, LORA_RANK_MAX, &st, &e);
    if (!rc) stacks_release(adapters_of(x->app)->stacks, st);
    if (rc)
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "adapters", "%s", e.msg);
    return !rc;
}

static bool write_parts(const parts *p, char *out, size_t cap)
{
    jsonw w;
    jsonw_init_fixed(&w, out, cap - 1);
    jsonw_open(&w, NULL, '[');
    for (int i = 0; i < p->n; i++) {
        jsonw_open(&w, NULL, '{');
        jsonw_str(&w, "name", p->name[i]);
        jsonw_num(&w, "scale", p->scale[i]);
        jsonw_close(&w, '}');
    }
    jsonw_close(&w, ']');
    if (!w.failed) out[w.len] = 0;
    return !w.failed;
}

/* `row` with its parts. */
static void store_row(exchange *x, stack_row *row)
{
    err e;
    row->tenant_id = x->caller->tenant.id;
    snprintf(row->name, sizeof(row->name), "%s", x->param[0]);
    if (stack_rows_add(store_of(x->app), row, &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    api_audit(x, row->tenant_id, "stack.publish", row->name, row->parts);
    jsonw w;
    jsonw_init(&w);
    write_stack(&w, row);
    exchange_reply_json(x, 201, &w);
    jsonw_clear(&w);
}

static void store_stack(exchange *x, const parts *p)
{
    stack_row row = {0};
    if (write_parts(p, row.parts, sizeof(row.parts)))
        store_row(x, &row);
    else
        exchange_starved(x);
}

/* -------------------------------------------------------------------- a new cascade -- */

/* False: answered. */
static bool write_step(exchange *x, jsonw *w, const cJSON *item, int i, bool last)
{
    static const char *const known[] = {"name", "min_logprob", "complete", NULL};
    const char *name = name_of(item), *base = x->conf->model.name;
    char full[TENANT_NAME_MAX + ADAPTER_NAME_MAX + 16];
    double least = 0;
    bool bounded = false, complete = false;
    const adapter_version *v = NULL;
    err e;
    if (!name) return bad_item(x, "cascade", i, "must be an object with a 'name'");
    if (!api_only_fields(x, item, known)) return false;
    if (json_num(item, "min_logprob", LOGPROB_LEAST, 0, &least, &bounded, &e))
        return bad_item(x, "cascade", i, "must have a 'min_logprob' from -100 to 0");
    if (json_bool(item, "complete", &complete, NULL, &e))
        return bad_item(x, "cascade", i, "must have true or false as 'complete'");
    if (last == (bounded || complete))
        return bad_item(x, "cascade", i,
                        last ? "is the last: its answer is sent without a check"
                             : "must have 'min_logprob', or true as 'complete'");
    if (strcmp(name, base) == 0) {
        if (!auth_may_use_model(x, base)) return not_there(x, "cascade", i, base);
        snprintf(full, sizeof(full), "%s", base);
    } else if (!pin_item(x, "cascade", i, name, &v, full, sizeof(full))) {
        return false;
    }
    if (v) registry_release(registry_of(x->app), v);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "name", full);
    if (bounded) jsonw_num(w, "min_logprob", least);
    if (complete) jsonw_bool(w, "complete", true);
    jsonw_close(w, '}');
    return true;
}

static void put_cascade(exchange *x, const cJSON *list)
{
    stack_row row = {0};
    jsonw w;
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (n < 2 || n > STACK_PARTS_MAX) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "cascade",
                       "'cascade' must be an array of 2 to %d models", STACK_PARTS_MAX);
        return;
    }
    jsonw_init_fixed(&w, row.parts, sizeof(row.parts) - 1);
    jsonw_open(&w, NULL, '{');
    jsonw_open(&w, "cascade", '[');
    for (int i = 0; i < n; i++)
        if (!write_step(x, &w, cJSON_GetArrayItem(list, i), i, i == n - 1)) return;
    jsonw_close(&w, ']');
    jsonw_close(&w, '}');
    if (w.failed) {
        exchange_starved(x);
        return;
    }
    row.parts[w.len] = 0;
    store_row(x, &row);
}

void stacks_put(exchange *x)
{
    static const char *const known[] = {"adapters", "cascade", NULL};
    const cJSON *body, *item, *cascade;
    adapter_entry taken;
    parts p = {.n = 0};
    err e;
    if (!adapter_need_tenant(x) || !exchange_read_json(x, &body) ||
        !api_only_fields(x, body, known))
        return;
    if (registry_check_name(registry_of(x->app), x->param[0], &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    if (!registry_get(registry_of(x->app), x->caller->tenant.id, x->param[0], &taken, NULL)) {
        exchange_error(x, 409, "conflict_error", "already_exists", "name",
                       "'%.64s' is an adapter: requests for it would never reach the stack",
                       x->param[0]);
        return;
    }
    const cJSON *list = json_get(body, "adapters");
    if ((cascade = json_get(body, "cascade"))) {
        if (list)
            exchange_error(x, 400, "invalid_request_error", "invalid_value", "cascade",
                           "give 'adapters' or 'cascade', not both");
        else
            put_cascade(x, cascade);
        return;
    }
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    bool ok = n >= 1 && n <= STACK_PARTS_MAX;
    if (!ok)
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "adapters",
                       "'adapters' must be an array of 1 to %d adapters", STACK_PARTS_MAX);
    for (item = ok ? list->child : NULL; item && ok; item = item->next) ok = take_part(x, item, &p);
    if (ok && check_parts(x, &p)) store_stack(x, &p);
    while (p.n > 0) registry_release(registry_of(x->app), p.part[--p.n].v);
}

/* ------------------------------------------------------------------------- looking -- */

static void list_stacks(exchange *x, const char *name)
{
    stack_row *list;
    size_t n;
    err e;
    if (!adapter_need_tenant(x)) return;
    if (stack_rows_list(store_of(x->app), x->caller->tenant.id, name, &list, &n, &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) write_stack(&w, &list[i]);
    api_list_end(x, &w, false);
    free(list);
}

void stacks_list(exchange *x)
{
    list_stacks(x, NULL);
}

void stacks_get(exchange *x)
{
    list_stacks(x, x->param[0]);
}

void stacks_delete(exchange *x)
{
    err e;
    if (!adapter_need_tenant(x)) return;
    if (stack_rows_drop(store_of(x->app), x->caller->tenant.id, x->param[0], &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    api_audit(x, x->caller->tenant.id, "stack.delete", x->param[0], NULL);
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "object", "stack");
    jsonw_str(&w, "name", x->param[0]);
    jsonw_bool(&w, "deleted", true);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}
