/* loractl_admin.c -- loractl's commands for tenants, keys and limits, with an operator's key.
 *
 * A changing command builds a JSON body from the options that were given and sends only these;
 * the server keeps every other setting. So `tenant set` is a PATCH with the members that were
 * named, and "none" lifts a setting where an empty value would be ambiguous.
 *
 * New keys exist in clear text only in the answer to their creation. show_new_key() writes them
 * to --out FILE (new, mode 600, never overwritten) or prints them once; out_is_free() tests the
 * file before the server is asked, so that a key is not made and then lost.
 *
 * Commands that lock somebody out ask first (ctl_confirm()), or need --yes where standard input
 * is not a terminal.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"

/* ------------------------------------------------------------------------- tenants -- */

static const column tenant_columns[] = {
    {"NAME", "name", CELL_TEXT, false},
    {"STATE", "state", CELL_TEXT, false},
    {"WEIGHT", "weight", CELL_NUM, false},
    {"CLASS", "default_class", CELL_TEXT, false},
    {"REQ/MIN", "limits.requests_per_minute", CELL_LIMIT, false},
    {"TOK/MIN", "limits.tokens_per_minute", CELL_LIMIT, false},
    {"CONC", "limits.max_concurrent", CELL_LIMIT, false},
    {"ID", "id", CELL_TEXT, true},
    {"CLASSES", "classes", CELL_LIST, true},
    {"TARGETS", "targets", CELL_LIST, true},
    {"MODELS", "models", CELL_LIST, true},
    {"SOURCE", "adapter_source", CELL_TEXT, true},
    {"NETWORKS", "networks", CELL_LIST, true},
    {"QUEUED", "limits.max_queued", CELL_LIMIT, true},
    {"TOK/DAY", "limits.tokens_per_day", CELL_LIMIT, true},
    {"TOK/MONTH", "limits.tokens_per_month", CELL_LIMIT, true},
    {"ADAPTERS", "limits.max_adapters", CELL_LIMIT, true},
    {"ADAPTER BYTES", "limits.max_adapter_bytes", CELL_LIMIT, true},
    {"MET", "met", CELL_INT, true},
    {"MISSED", "missed", CELL_INT, true},
    {"MOSTLY", "mostly", CELL_TEXT, true},
    {"CAUSES", "causes", CELL_LIST, true},
    {"CREATED", "created", CELL_TIME, false},
    {NULL, NULL, CELL_TEXT, false},
};

int ctl_tenant_list(void *p)
{
    ctl *c = p;
    cJSON *rows;
    int status = ctl_list(c, ADMIN_SIDE, "/admin/v1/tenants", "id", &rows);
    if (!status) ctl_add_causes(c, "tenants", rows);
    if (!status) status = ctl_print_rows(c, tenant_columns, rows);
    cJSON_Delete(rows);
    return status;
}

/* --networks A,B; none lifts the bounds. */
static void take_networks(const ctl *c, cJSON *body)
{
    const char *list = cli_value(&c->cli, "networks");
    if (!list) return;
    (void)cJSON_AddItemToObject(body, "networks", ctl_words(strcmp(list, "none") == 0 ? "" : list));
}

/* "300ms" or "2s" before the end or a comma, as milliseconds; "": *ms stays.  NULL: neither. */
static const char *take_ms(const char *s, double *ms)
{
    char *end = (char *)s;
    double v = *s && *s != ',' ? strtod(s, &end) : 0;
    if (end == s) return s;
    bool in_ms = strncmp(end, "ms", 2) == 0;
    if (!in_ms && *end != 's') return NULL;
    *ms = in_ms ? v : v * 1000;
    end += in_ms ? 2 : 1;
    return *end && *end != ',' ? NULL : end;
}

/* --target CLASS=TTFT,TPOT into an object by class. */
static bool take_target(cJSON *targets, const char *text)
{
    char class[64];
    const char *eq = strchr(text, '='), *p = eq ? eq + 1 : "";
    double ms[2] = {-1, -1};
    bool none = strcmp(p, "none") == 0, ok = eq && eq > text && (size_t)(eq - text) < sizeof(class);
    for (int i = 0; ok && !none && i < 2; i++) {
        const char *end = take_ms(p, &ms[i]);
        ok = end && (*end == 0 || i == 0);
        p = !ok || *end == 0 ? "" : end + 1;
    }
    if (!ok || (!none && ms[0] < 0 && ms[1] < 0)) {
        (void)ctl_usage("--target: '%s' is not CLASS=TTFT,TPOT, such as gold=300ms,40ms or "
                        "gold=none",
                        text);
        return false;
    }
    snprintf(class, sizeof(class), "%.*s", (int)(eq - text), text);
    if (none) return cJSON_AddNullToObject(targets, class) != NULL;
    cJSON *one = cJSON_AddObjectToObject(targets, class);
    if (ms[0] >= 0) (void)cJSON_AddNumberToObject(one, "ttft_ms", ms[0]);
    if (ms[1] >= 0) (void)cJSON_AddNumberToObject(one, "tpot_ms", ms[1]);
    return true;
}

static bool take_targets(const ctl *c, cJSON *body)
{
    const char *text = cli_each(&c->cli, "target", 0);
    cJSON *targets = text ? cJSON_AddObjectToObject(body, "targets") : NULL;
    for (int i = 1; text; i++) {
        if (!take_target(targets, text)) return false;
        text = cli_each(&c->cli, "target", i);
    }
    return true;
}

/* The options that tenant create and tenant set share. */
static bool take_settings(ctl *c, cJSON *body)
{
    const char *weight = cli_value(&c->cli, "weight"), *class = cli_value(&c->cli, "class"),
               *classes = cli_value(&c->cli, "classes"), *models = cli_value(&c->cli, "models"),
               *source = cli_value(&c->cli, "source");
    if (weight) {
        char *end;
        double v = strtod(weight, &end);
        if (end == weight || *end || !(v > 0)) {
            (void)ctl_usage("--weight: '%s' must be a number above zero", weight);
            return false;
        }
        (void)cJSON_AddNumberToObject(body, "weight", v);
    }
    if (class) (void)cJSON_AddStringToObject(body, "default_class", class);
    if (classes) (void)cJSON_AddItemToObject(body, "classes", ctl_words(classes));
    if (models) (void)cJSON_AddItemToObject(body, "models", ctl_words(models));
    if (source) (void)cJSON_AddStringToObject(body, "adapter_source", source);
    take_networks(c, body);
    if (!take_targets(c, body)) return false;
    const char *pairs[CLI_OPTIONS_MAX];
    int n = 0;
    while (n < CLI_OPTIONS_MAX && (pairs[n] = cli_each(&c->cli, "limit", n))) n++;
    if (n == 0) return true;
    return ctl_pairs(cJSON_AddObjectToObject(body, "limits"), pairs, n);
}

static int send_tenant(ctl *c, const char *method, const char *path, cJSON *body)
{
    cJSON *tree;
    int status = ctl_call(c, ADMIN_SIDE, method, body, &tree, "%s", path);
    if (!status) status = ctl_print_row(c, tenant_columns, tree);
    cJSON_Delete(tree);
    return status;
}

static int send_to_tenant(ctl *c, const char *method, const char *name, cJSON *body)
{
    char path[1200];
    snprintf(path, sizeof(path), "/admin/v1/tenants/%s", ctl_seg(name));
    return send_tenant(c, method, path, body);
}

int ctl_tenant_show(void *p)
{
    ctl *c = p;
    cJSON *tree, *rows = cJSON_CreateArray();
    int status =
        ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, "/admin/v1/tenants/%s", ctl_seg(c->cli.arg[0]));
    if (!status && tree) {
        (void)cJSON_AddItemReferenceToArray(rows, tree);
        ctl_add_causes(c, "tenants", rows);
    }
    if (!status) status = ctl_print_row(c, tenant_columns, cJSON_GetArrayItem(rows, 0));
    cJSON_Delete(rows);
    cJSON_Delete(tree);
    return status;
}

int ctl_tenant_set(void *p)
{
    ctl *c = p;
    cJSON *body = cJSON_CreateObject();
    if (!take_settings(c, body)) {
        cJSON_Delete(body);
        return CTL_USAGE;
    }
    return send_to_tenant(c, "PATCH", c->cli.arg[0], body);
}

static int set_disabled(ctl *c, bool disabled)
{
    cJSON *body = cJSON_CreateObject();
    (void)cJSON_AddBoolToObject(body, "disabled", disabled);
    return send_to_tenant(c, "PATCH", c->cli.arg[0], body);
}

int ctl_tenant_suspend(void *p)
{
    ctl *c = p;
    if (!ctl_confirm(c, "Every request with a key of '%s' will be refused.", c->cli.arg[0]))
        return CTL_REFUSED;
    return set_disabled(c, true);
}

int ctl_tenant_resume(void *p)
{
    return set_disabled(p, false);
}

int ctl_tenant_delete(void *p)
{
    ctl *c = p;
    if (!ctl_confirm(c, "Tenant '%s' and its keys will be refused from now on.", c->cli.arg[0]))
        return CTL_REFUSED;
    return send_to_tenant(c, "DELETE", c->cli.arg[0], NULL);
}

/* ---------------------------------------------------------------------------- keys -- */

static const column key_columns[] = {
    {"ID", "id", CELL_TEXT, false},
    {"PUBLIC ID", "public_id", CELL_TEXT, false},
    {"TENANT", "tenant", CELL_TEXT, false},
    {"NAME", "name", CELL_TEXT, false},
    {"SCOPES", "scopes", CELL_LIST, false},
    {"EXPIRES", "expires_at", CELL_TIME, false},
    {"REVOKED", "revoked", CELL_TIME, false},
    {"LAST USED", "last_used", CELL_TIME, false},
    {"SECRETS", "secrets", CELL_INT, true},
    {"REQ/MIN", "requests_per_minute", CELL_LIMIT, true},
    {"TOK/MIN", "tokens_per_minute", CELL_LIMIT, true},
    {"CONC", "max_concurrent", CELL_LIMIT, true},
    {"NETWORKS", "networks", CELL_LIST, true},
    {"CREATED", "created", CELL_TIME, true},
    {NULL, NULL, CELL_TEXT, false},
};

int ctl_key_list(void *p)
{
    ctl *c = p;
    cJSON *rows;
    char path[1200] = "/admin/v1/keys?all=true";
    const char *tenant = cli_value(&c->cli, "tenant");
    if (tenant) snprintf(path, sizeof(path), "/admin/v1/keys?tenant=%s", ctl_seg(tenant));
    int status = ctl_list(c, ADMIN_SIDE, path, "id", &rows);
    if (!status) status = ctl_print_rows(c, key_columns, rows);
    cJSON_Delete(rows);
    return status;
}

/* Into a new file that only its owner may read. */
static int write_key_file(const char *path, const char *key)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        if (fd >= 0) (void)close(fd);
        return ctl_fail("%s: %s", path, strerror(errno));
    }
    bool ok = fprintf(f, "%s\n", key) > 0;
    ok = fclose(f) == 0 && ok;
    return ok ? CTL_OK : ctl_fail("%s: %s", path, strerror(errno));
}

/* A new key is shown once, or goes into --out FILE; -o name prints nothing else. */
static int show_new_key(const ctl *c, cJSON *tree)
{
    const cJSON *key = cJSON_IsObject(tree) ? json_get(tree, "key") : NULL;
    const char *file = cli_value(&c->cli, "out");
    int status = CTL_OK;
    if (!cJSON_IsString(key)) return ctl_fail("the server's answer holds no key");
    if (file) {
        status = write_key_file(file, key->valuestring);
        if (status) {
            (void)ctl_fail("the key was made but not kept: revoke it, and make another");
            return status;
        }
        cJSON_DeleteItemFromObjectCaseSensitive(tree, "key");
        (void)ctl_print_row(c, key_columns, tree);
    } else if (c->format == TABLE_NAME) {
        static const column only_key[] = {{"KEY", "key", CELL_TEXT, false},
                                          {NULL, NULL, CELL_TEXT, false}};
        (void)ctl_print_row(c, only_key, tree);
    } else {
        static const column with_key[] = {{"KEY", "key", CELL_TEXT, false},
                                          {NULL, NULL, CELL_TEXT, false}};
        (void)ctl_print_row(c, key_columns, tree);
        if (c->format == TABLE_PEOPLE || c->format == TABLE_WIDE) {
            table_print_one(stdout, with_key, tree, 0, false);
            fprintf(stderr, "The key is shown this once: keep it.\n");
        }
    }
    return status;
}

static bool out_is_free(const ctl *c)
{
    const char *file = cli_value(&c->cli, "out");
    if (!file || access(file, F_OK) != 0) return true;
    (void)ctl_usage("%s is there already", file);
    return false;
}

/* The options that key create and key set share. */
static bool take_key_settings(ctl *c, cJSON *body)
{
    const char *name = cli_value(&c->cli, "name"), *expires = cli_value(&c->cli, "expires");
    int64_t when = 0;
    bool ok = true;
    if (expires) {
        int64_t span = ctl_span(expires);
        ok = strchr(expires, '-') ? ctl_time(expires, &when) : span > 0;
        if (!strchr(expires, '-')) when = (int64_t)time(NULL) + span;
        if (!ok) (void)ctl_usage("--expires: '%s' is neither a span (30d) nor a date", expires);
    }
    static const char *const limits[] = {"requests-per-minute", "tokens-per-minute",
                                         "max-concurrent"};
    for (int i = 0; ok && i < 3; i++) {
        const char *v = cli_value(&c->cli, limits[i]);
        char pair[96];
        const char *one = pair;
        if (!v) continue;
        snprintf(pair, sizeof(pair), "%s=%.40s", limits[i], v);
        ok = ctl_pairs(body, &one, 1);
    }
    if (name) (void)cJSON_AddStringToObject(body, "name", name);
    if (when) (void)cJSON_AddNumberToObject(body, "expires_at", (double)when);
    take_networks(c, body);
    return ok;
}

/* Makes the key that `body` (taken over) describes, of a tenant or (NULL) of none, and shows it. */
static int send_key(ctl *c, cJSON *body, const char *tenant, const char *scopes)
{
    cJSON *tree;
    if (tenant) (void)cJSON_AddStringToObject(body, "tenant", tenant);
    (void)cJSON_AddItemToObject(body, "scopes", ctl_words(scopes));
    int status = ctl_call(c, ADMIN_SIDE, "POST", body, &tree, "/admin/v1/keys");
    if (!status) status = show_new_key(c, tree);
    cJSON_Delete(tree);
    return status;
}

int ctl_key_create(void *p)
{
    ctl *c = p;
    cJSON *body = cJSON_CreateObject();
    const char *tenant = cli_value(&c->cli, "tenant"), *scopes = cli_value(&c->cli, "scopes");
    bool admin = scopes && strncmp(scopes, "admin", 5) == 0, ok = out_is_free(c);
    if (ok && !tenant && !admin) {
        (void)ctl_usage("--tenant is needed (only a key with the scope admin has none)");
        ok = false;
    }
    if (!ok || !take_key_settings(c, body)) {
        cJSON_Delete(body);
        return CTL_USAGE;
    }
    return send_key(c, body, tenant, scopes ? scopes : "inference");
}

int ctl_tenant_create(void *p)
{
    ctl *c = p;
    const char *name = c->cli.arg[0];
    cJSON *body = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(body, "name", name);
    if (!take_settings(c, body) || !out_is_free(c)) {
        cJSON_Delete(body);
        return CTL_USAGE;
    }
    int status = send_tenant(c, "POST", "/admin/v1/tenants", body);
    if (status || !cli_given(&c->cli, "out")) return status;
    return send_key(c, cJSON_CreateObject(), name, "inference,adapters.read,adapters.write");
}

/* A key's id: a number stays, a public id (or a whole key) is looked up in the list. */
static int key_id_of(ctl *c, const char *which, char out[32])
{
    cJSON *rows;
    const cJSON *row;
    size_t n = strspn(which, "0123456789");
    out[0] = 0;
    if (n && !which[n] && n < 24) {
        snprintf(out, 32, "%s", which);
        return CTL_OK;
    }
    int status = ctl_list(c, ADMIN_SIDE, "/admin/v1/keys?all=true", "id", &rows);
    cJSON_ArrayForEach(row, rows)
    {
        const cJSON *pub = json_get(row, "public_id"), *id = json_get(row, "id");
        if (!cJSON_IsString(pub) || !cJSON_IsString(id) || !*pub->valuestring) continue;
        bool whole = strncmp(which, "lk_", 3) == 0 &&
                     strncmp(which + 3, pub->valuestring, strlen(pub->valuestring)) == 0;
        if (whole || strcmp(pub->valuestring, which) == 0) snprintf(out, 32, "%s", id->valuestring);
    }
    cJSON_Delete(rows);
    if (!status && !*out) status = ctl_fail("there is no such key");
    return status;
}

int ctl_key_set(void *p)
{
    ctl *c = p;
    cJSON *tree, *body = cJSON_CreateObject();
    char id[32];
    int status = take_key_settings(c, body) ? key_id_of(c, c->cli.arg[0], id) : CTL_USAGE;
    if (status) {
        cJSON_Delete(body);
        return status;
    }
    status = ctl_call(c, ADMIN_SIDE, "PATCH", body, &tree, "/admin/v1/keys/%s", id);
    if (!status) status = ctl_print_row(c, key_columns, tree);
    cJSON_Delete(tree);
    return status;
}

int ctl_key_rotate(void *p)
{
    ctl *c = p;
    cJSON *tree;
    char id[32];
    const char *grace = cli_value(&c->cli, "grace");
    int64_t seconds = grace ? ctl_span(grace) : 86400;
    if (seconds < 0) return ctl_usage("--grace: '%s' is not a duration (1h, 7d)", grace);
    if (!out_is_free(c)) return CTL_USAGE;
    int status = key_id_of(c, c->cli.arg[0], id);
    if (status) return status;
    status = ctl_call(c, ADMIN_SIDE, "POST", NULL, &tree,
                      "/admin/v1/keys/%s/rotate?grace_seconds=%lld", id, (long long)seconds);
    if (!status) status = show_new_key(c, tree);
    cJSON_Delete(tree);
    return status;
}

int ctl_key_revoke(void *p)
{
    ctl *c = p;
    int status = CTL_OK;
    for (int i = 0; !status && i < c->cli.n_arg; i++) {
        char id[32];
        cJSON *tree = NULL;
        status = key_id_of(c, c->cli.arg[i], id);
        if (status) break;
        if (!ctl_confirm(c, "Key %s will never be accepted again.", id)) return CTL_REFUSED;
        status = ctl_call(c, ADMIN_SIDE, "DELETE", NULL, &tree, "/admin/v1/keys/%s", id);
        if (!status) ctl_done(c, tree, "key %s revoked", id);
        cJSON_Delete(tree);
    }
    return status;
}

/* -------------------------------------------------------------------------- limits -- */

static const column limit_columns[] = {
    {"LIMIT", "limit", CELL_TEXT, false},
    {"SET TO", "value", CELL_LIMIT, false},
    {"IN USE", "used", CELL_INT, false},
    {NULL, NULL, CELL_TEXT, false},
};

static const column all_limits_columns[] = {
    {"TENANT", "tenant", CELL_TEXT, false},
    {"REQ/MIN", "limits.requests_per_minute", CELL_LIMIT, false},
    {"TOK/MIN", "limits.tokens_per_minute", CELL_LIMIT, false},
    {"CONC", "limits.max_concurrent", CELL_LIMIT, false},
    {"RUNNING", "used.max_concurrent", CELL_INT, false},
    {"QUEUED", "limits.max_queued", CELL_LIMIT, false},
    {"TOK/DAY", "limits.tokens_per_day", CELL_LIMIT, false},
    {"TODAY", "used.tokens_per_day", CELL_INT, false},
    {"TOK/MONTH", "limits.tokens_per_month", CELL_LIMIT, true},
    {"THIS MONTH", "used.tokens_per_month", CELL_INT, true},
    {"COST/DAY", "limits.cost_per_day", CELL_LIMIT, true},
    {"COST/MONTH", "limits.cost_per_month", CELL_LIMIT, true},
    {"ADAPTERS", "limits.max_adapters", CELL_LIMIT, true},
    {"ADAPTER BYTES", "limits.max_adapter_bytes", CELL_LIMIT, true},
    {NULL, NULL, CELL_TEXT, false},
};

static int print_limits(const ctl *c, const cJSON *tree)
{
    const cJSON *each, *limits = cJSON_IsObject(tree) ? json_get(tree, "limits") : NULL;
    if (!cJSON_IsObject(limits)) return ctl_fail("the server's answer holds no limits");
    if (c->format == TABLE_JSON && !cli_given(&c->cli, "fields")) {
        ctl_print_json(c, tree);
        return CTL_OK;
    }
    const cJSON *used = json_get(tree, "used"), *share = json_get(tree, "tenant_bytes");
    cJSON *rows = cJSON_CreateArray();
    cJSON_ArrayForEach(each, limits)
    {
        cJSON *row = cJSON_CreateObject();
        const cJSON *u = cJSON_IsObject(used) ? json_get(used, each->string) : NULL;
        /* Without one of its own the server's holds. */
        bool theirs = strcmp(each->string, "max_adapter_bytes") == 0 && cJSON_IsNumber(share);
        (void)cJSON_AddStringToObject(row, "limit",
                                      theirs ? "adapters.tenant_bytes" : each->string);
        (void)cJSON_AddNumberToObject(row, "value", (theirs ? share : each)->valuedouble);
        if (cJSON_IsNumber(u)) (void)cJSON_AddNumberToObject(row, "used", u->valuedouble);
        (void)cJSON_AddItemToArray(rows, row);
    }
    int status = ctl_print_rows(c, limit_columns, rows);
    cJSON_Delete(rows);
    return status;
}

/* "TENANT" or "TENANT/ADAPTER" as the path of its limits. */
static const char *limits_path(const char *which)
{
    static char path[2200];
    char owner[256];
    const char *slash = strchr(which, '/');
    size_t n = slash ? (size_t)(slash - which) : strlen(which);
    snprintf(owner, sizeof(owner), "%.*s", (int)(n < 255 ? n : 255), which);
    snprintf(path, sizeof(path), "/admin/v1/limits/%s%s%s", ctl_seg(owner), slash ? "/" : "",
             slash ? ctl_seg(slash + 1) : "");
    return path;
}

int ctl_limits_show(void *p)
{
    ctl *c = p;
    cJSON *tree;
    int status;
    if (c->cli.n_arg == 0) {
        status = ctl_list(c, ADMIN_SIDE, "/admin/v1/limits", "id", &tree);
        if (!status) status = ctl_print_rows(c, all_limits_columns, tree);
    } else {
        status = ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, "%s", limits_path(c->cli.arg[0]));
        if (!status) status = print_limits(c, tree);
    }
    cJSON_Delete(tree);
    return status;
}

int ctl_limits_set(void *p)
{
    ctl *c = p;
    cJSON *tree, *body = cJSON_CreateObject();
    if (!ctl_pairs(body, c->cli.arg + 1, c->cli.n_arg - 1)) {
        cJSON_Delete(body);
        return CTL_USAGE;
    }
    int status = ctl_call(c, ADMIN_SIDE, "PATCH", body, &tree, "%s", limits_path(c->cli.arg[0]));
    if (!status) status = print_limits(c, tree);
    cJSON_Delete(tree);
    return status;
}
