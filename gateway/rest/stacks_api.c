/* stacks_api.c -- stacks with a name: several adapters at their scales, asked for as one model.
 *
 *   PUT    /v1/stacks/{name}   {"adapters":[{"name","scale"?}...]} -> 201, the name's next version;
 *                              adapters are settled to their versions of this moment
 *   GET    /v1/stacks          the newest version of each
 *   GET    /v1/stacks/{name}   its versions, newest first
 *   DELETE /v1/stacks/{name}   all of them
 *
 * A request names one in `model`: "name", or "name@2".  It is answered, keyed and billed as one
 * that lists the adapters itself (gateway/openai/completion_stack.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/store/stacks.h"
#include "engine/base/json.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/rest/api_audit.h"
#include "gateway/server.h"
#include "storage/stacks/stack_rows.h"

enum { SCALE_MAX = 100 };

static void write_stack(jsonw *w, const stack_row *row)
{
    char model_id[TENANT_NAME_MAX + 16];
    snprintf(model_id, sizeof(model_id), "%s@%d", row->name, row->version);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "stack");
    jsonw_str(w, "name", row->name);
    jsonw_int(w, "version", row->version);
    jsonw_str(w, "model", model_id);
    jsonw_json(w, "adapters", row->parts, strlen(row->parts));
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

static bool bad_part(exchange *x, int i, const char *what)
{
    char param[32];
    snprintf(param, sizeof(param), "adapters[%d]", i);
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "'%s' %s", param, what);
    return false;
}

/* Pins it; false: answered. */
static bool take_part(exchange *x, const cJSON *item, parts *p)
{
    static const char *const known[] = {"name", "scale", NULL};
    const char *name = cJSON_IsObject(item) ? cJSON_GetStringValue(json_get(item, "name")) : NULL;
    double scale = 1;
    const adapter_version *v;
    char param[32];
    err e;
    snprintf(param, sizeof(param), "adapters[%d]", p->n);
    if (!name) return bad_part(x, p->n, "must be an object with a 'name'");
    if (!api_only_fields(x, item, known)) return false;
    if (json_num(item, "scale", -SCALE_MAX, SCALE_MAX, &scale, NULL, &e) || (float)scale == 0)
        return bad_part(x, p->n, "must have a 'scale' from -100 to 100, and not 0");
    err_code rc =
        auth_may_use_model(x, name)
            ? registry_acquire(x->server->registry, x->caller->tenant.id, name, false, &v, &e)
            : err_set(&e, ERR_NOT_FOUND, "not yours");
    if (rc) {
        exchange_error(x, 404, "invalid_request_error", "model_not_found", param,
                       "The model '%.100s' does not exist or you do not have access to it.", name);
        return false;
    }
    const char *slash = strchr(name, '/');
    snprintf(p->name[p->n], sizeof(p->name[0]), "%.*s%s@%d",
             slash && v->tenant_id != x->caller->tenant.id ? (int)(slash - name) + 1 : 0, name,
             v->name, v->version);
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
    err_code rc = stacks_acquire(x->server->stacks, p->part, p->n, LORA_RANK_MAX, &st, &e);
    if (!rc) stacks_release(x->server->stacks, st);
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

static void store_stack(exchange *x, const parts *p)
{
    stack_row row = {.tenant_id = x->caller->tenant.id};
    err e;
    snprintf(row.name, sizeof(row.name), "%s", x->param[0]);
    if (!write_parts(p, row.parts, sizeof(row.parts))) {
        exchange_starved(x);
        return;
    }
    if (stack_rows_add(x->server->store, &row, &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    api_audit(x, row.tenant_id, "stack.publish", row.name, row.parts);
    jsonw w;
    jsonw_init(&w);
    write_stack(&w, &row);
    exchange_reply_json(x, 201, &w);
    jsonw_clear(&w);
}

void stacks_put(exchange *x)
{
    static const char *const known[] = {"adapters", NULL};
    const cJSON *body, *item;
    adapter_entry taken;
    parts p = {.n = 0};
    err e;
    if (!adapter_need_tenant(x) || !exchange_read_json(x, &body) ||
        !api_only_fields(x, body, known))
        return;
    if (registry_check_name(x->server->registry, x->param[0], &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    if (!registry_get(x->server->registry, x->caller->tenant.id, x->param[0], &taken, NULL)) {
        exchange_error(x, 409, "conflict_error", "already_exists", "name",
                       "'%.64s' is an adapter: requests for it would never reach the stack",
                       x->param[0]);
        return;
    }
    const cJSON *list = json_get(body, "adapters");
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    bool ok = n >= 1 && n <= STACK_PARTS_MAX;
    if (!ok)
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "adapters",
                       "'adapters' must be an array of 1 to %d adapters", STACK_PARTS_MAX);
    for (item = ok ? list->child : NULL; item && ok; item = item->next) ok = take_part(x, item, &p);
    if (ok && check_parts(x, &p)) store_stack(x, &p);
    while (p.n > 0) registry_release(x->server->registry, p.part[--p.n].v);
}

/* ------------------------------------------------------------------------- looking -- */

static void list_stacks(exchange *x, const char *name)
{
    stack_row *list;
    size_t n;
    err e;
    if (!adapter_need_tenant(x)) return;
    if (stack_rows_list(x->server->store, x->caller->tenant.id, name, &list, &n, &e)) {
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
    if (stack_rows_drop(x->server->store, x->caller->tenant.id, x->param[0], &e)) {
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
