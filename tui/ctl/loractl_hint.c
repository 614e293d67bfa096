/* loractl_hint.c -- after a refusal, the next step: when to come back, which key, which names. */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"
#include "tui/near.h"
#include "tui/text.h"

enum { LIST_MAX = 400 };

/* The code of OpenAI's error shape; "": it has none. */
static void code_of(const client_reply *r, char out[64])
{
    cJSON *tree = NULL;
    out[0] = 0;
    if (!r->body || client_reply_json(r, &tree, NULL)) return;
    const cJSON *e = cJSON_IsObject(tree) ? json_get(tree, "error") : NULL;
    const cJSON *code = cJSON_IsObject(e) ? json_get(e, "code") : NULL;
    if (cJSON_IsString(code)) snprintf(out, 64, "%s", code->valuestring);
    cJSON_Delete(tree);
}

void ctl_hint(ctl_side side, const client_reply *r)
{
    char code[64], span[32];
    bool admin = side == ADMIN_SIDE;
    code_of(r, code);
    if (r->retry_after_ms > 0) {
        text_span((r->retry_after_ms + 999) / 1000, span, sizeof(span));
        (void)ctl_fail("come back in %s", span);
    } else if (strcmp(code, "insufficient_scope") == 0) {
        (void)ctl_fail("a key with the scope comes from an operator: 'loractl key create%s "
                       "--scopes ...'; 'loractl whoami' shows what this one may",
                       admin ? "" : " --tenant NAME");
    } else if (strcmp(code, "invalid_api_key") == 0 || strcmp(code, "expired_api_key") == 0) {
        (void)ctl_fail("'loractl context set NAME --%skey' takes another key",
                       admin ? "admin-" : "");
    }
}

/* "1, 2, 4", of what stands under `field`. */
static void put_numbers(const cJSON *data, const char *field, char out[LIST_MAX])
{
    const cJSON *row;
    size_t n = 0;
    out[0] = 0;
    cJSON_ArrayForEach(row, data)
    {
        const cJSON *v = cJSON_IsObject(row) ? json_get(row, field) : NULL;
        if (!cJSON_IsNumber(v) || n + 24 > LIST_MAX) continue;
        n += (size_t)snprintf(out + n, LIST_MAX - n, "%s%.0f", n ? ", " : "", v->valuedouble);
    }
}

static void hint_adapter(ctl *c, const char *name)
{
    cJSON *tree = ctl_ask(c, TENANT_SIDE, "/v1/adapters?limit=1000");
    const cJSON *row, *data = cJSON_IsObject(tree) ? json_get(tree, "data") : NULL;
    near n = near_to(name);
    cJSON_ArrayForEach(row, data)
    {
        const cJSON *v = cJSON_IsObject(row) ? json_get(row, "name") : NULL;
        if (cJSON_IsString(v)) near_offer(&n, v->valuestring);
    }
    if (n.best)
        (void)ctl_fail("did you mean '%s'?", n.best);
    else if (data)
        (void)ctl_fail("'loractl adapter list' names those that there are");
    cJSON_Delete(tree);
}

void ctl_hint_version(ctl *c, const char *name)
{
    char list[LIST_MAX];
    if (c->http_status != 404) return;
    cJSON *tree = ctl_ask(c, TENANT_SIDE, "/v1/adapters/%s/versions", ctl_seg(name));
    const cJSON *data = cJSON_IsObject(tree) ? json_get(tree, "data") : NULL;
    put_numbers(data, "version", list);
    if (*list)
        (void)ctl_fail("'%s' has these versions: %s", name, list);
    else if (!tree)
        hint_adapter(c, name);
    cJSON_Delete(tree);
}

void ctl_hint_base(ctl *c, const char *config, size_t len)
{
    static const json_limits limits = {
        .max_bytes = 1 << 20, .max_depth = 32, .max_values = 1 << 16};
    cJSON *tree = NULL;
    if (c->http_status != 400 && c->http_status != 422) return;
    if (json_parse(config, len, &limits, &tree, NULL)) return;
    const cJSON *made = cJSON_IsObject(tree) ? json_get(tree, "base_model_name_or_path") : NULL;
    cJSON *models = ctl_ask(c, TENANT_SIDE, "/v1/models");
    const cJSON *row, *data = cJSON_IsObject(models) ? json_get(models, "data") : NULL;
    const char *base = NULL;
    cJSON_ArrayForEach(row, data)
    {
        const cJSON *id = cJSON_IsObject(row) ? json_get(row, "id") : NULL;
        const cJSON *parent = cJSON_IsObject(row) ? json_get(row, "parent") : NULL;
        if (!base && cJSON_IsString(id) && !cJSON_IsString(parent)) base = id->valuestring;
    }
    if (cJSON_IsString(made) && *made->valuestring)
        (void)ctl_fail("the adapter's files name '%s' as its base model; this server serves '%s'",
                       made->valuestring, base ? base : "another model");
    cJSON_Delete(models);
    cJSON_Delete(tree);
}
