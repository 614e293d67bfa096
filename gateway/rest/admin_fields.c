/* admin_fields.c -- what the operators' handlers share: fields, lists, the tenant of a path. */
#include "gateway/rest/admin_fields.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/http/api_fields.h"
#include "gateway/http/networks.h"
#include "gateway/tenant_parts.h"

bool admin_find_tenant(exchange *x, const char *which, tenant *out)
{
    err e;
    err_code rc = tenants_find(store_of(x->app), which, out, &e);
    uint64_t id = api_parse_id(which);
    if (rc && id) rc = tenants_get(store_of(x->app), id, out, &e);
    if (!rc) return true;
    exchange_error(x, 404, "invalid_request_error", "tenant_not_found", "tenant",
                   "there is no tenant '%.80s'", which);
    return false;
}

bool admin_refuse(exchange *x, const err *e, const char *param)
{
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "%s", e->msg);
    return false;
}

bool admin_take_networks(exchange *x, const cJSON *body, char out[NETWORKS_MAX])
{
    const cJSON *v = json_get(body, "networks"), *each;
    char list[NETWORKS_MAX] = "", one[NETWORK_TEXT_MAX];
    size_t n = 0;
    err e;
    if (!v || cJSON_IsNull(v)) return true;
    bool ok = cJSON_IsArray(v);
    cJSON_ArrayForEach(each, v)
    {
        ok = ok && cJSON_IsString(each) && n + NETWORK_TEXT_MAX + 1 < sizeof(list);
        if (!ok) break;
        if (networks_canonical(each->valuestring, one, &e)) return admin_refuse(x, &e, "networks");
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", n ? "," : "", one);
    }
    if (ok) {
        memcpy(out, list, sizeof(list));
        return true;
    }
    exchange_error(x, 400, "invalid_request_error", "invalid_value", "networks",
                   "'networks' must be an array of CIDR blocks, together shorter than %d bytes",
                   NETWORKS_MAX - NETWORK_TEXT_MAX);
    return false;
}

void admin_write_list(jsonw *w, const char *name, const char *list)
{
    jsonw_open(w, name, '[');
    while (*list) {
        size_t n = strcspn(list, ",");
        jsonw_strn(w, NULL, list, n);
        list += n + (list[n] == ',');
    }
    jsonw_close(w, ']');
}

void admin_write_durable(jsonw *w, bool durable)
{
    if (!durable) jsonw_bool(w, "durable", false);
}
