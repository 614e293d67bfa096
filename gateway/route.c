/* route.c -- the tables of all paths, and the search for the one that a request means.
 *
 * A request's listener (plane) decides the table.  A row is a method, a pattern, the scopes of
 * which the key needs one, and a handler.  Patterns match by segments: {} is one segment, {*} the
 * rest.  A path that equals a pattern exactly matches only that one.
 *
 *   dispatch   slashes doubled or at the end are dropped (inference only)
 *              -> route found: key and scope, rate of writes, handler
 *              -> path without /v1: tried with it
 *              -> path known, method not: 405 with Allow, or the answer to OPTIONS
 *              -> unknown: 404 with the nearest route by edit distance
 *
 * Segments are percent-decoded one by one.  Those that another reader could take for another path
 * are refused: an encoded '/', a NUL, a backslash, control characters, "." and "..".
 *
 * The whole request sees one configuration, because it is pinned here (live_pin()).
 */
#include "gateway/route.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hex.h"
#include "gateway/auth.h"
#include "gateway/cors.h"
#include "gateway/handlers.h"
#include "gateway/process_parts.h"
#include "gateway/ratelimit.h"

enum {
    INFER = SCOPE_INFERENCE,
    READ = SCOPE_ADAPTERS_READ | SCOPE_ADAPTERS_WRITE,
    WRITE = SCOPE_ADAPTERS_WRITE,
    ADMIN = SCOPE_ADMIN,
    LOOK = SCOPE_ADMIN | SCOPE_ADMIN_READ,
};

const route routes_inference[] = {
    {"POST", "/v1/chat/completions", INFER, completion_handle_chat},
    {"POST", "/v1/completions", INFER, completion_handle_text},
    {"POST", "/v1/responses", INFER, responses_create},
    {"POST", "/v1/responses/input_tokens", INFER, responses_count},
    {"GET", "/v1/responses/{}", INFER, responses_get_one},
    {"DELETE", "/v1/responses/{}", INFER, responses_delete_one},
    {"POST", "/v1/responses/{}/cancel", INFER, responses_cancel},
    {"GET", "/v1/responses/{}/input_items", INFER, responses_input_items},
    {"POST", "/v1/conversations", INFER, conversations_create},
    {"GET", "/v1/conversations/{}", INFER, conversations_get},
    {"DELETE", "/v1/conversations/{}", INFER, conversations_delete},
    {"GET", "/v1/conversations/{}/items", INFER, conversations_items},
    {"POST", "/v1/embeddings", INFER, embeddings_create},
    {"POST", "/v1/rerank", INFER, rerank_create},
    {"POST", "/v2/rerank", INFER, rerank_create},
    {"POST", "/v1/score", INFER, score_create},
    {"POST", "/v1/classify", INFER, classify_create},
    {"POST", "/v1/files", INFER, files_upload},
    {"GET", "/v1/files", INFER, files_page},
    {"GET", "/v1/files/{}", INFER, files_get_one},
    {"GET", "/v1/files/{}/content", INFER, files_content},
    {"DELETE", "/v1/files/{}", INFER, files_drop},
    {"POST", "/v1/batches", INFER, batches_create},
    {"GET", "/v1/batches", INFER, batches_page},
    {"GET", "/v1/batches/{}", INFER, batches_get_one},
    {"POST", "/v1/batches/{}/cancel", INFER, batches_cancel_one},
    {"POST", "/v1/messages", INFER, messages_create},
    {"POST", "/v1/messages/count_tokens", INFER, messages_count},
    {"POST", "/tokenize", INFER, tokenize_handle},
    {"POST", "/v1/tokenize", INFER, tokenize_handle},
    {"POST", "/detokenize", INFER, detokenize_handle},
    {"POST", "/v1/detokenize", INFER, detokenize_handle},
    {"GET", "/version", INFER, version_get},
    {"GET", "/v1/models", INFER, models_list},
    {"GET", "/v1/models/{*}", INFER, models_get},
    {"GET", "/v1/key", INFER | READ, key_whoami},
    {"GET", "/v1/usage", INFER, usage_get},
    {"GET", "/v1/adapters", READ, adapters_list},
    {"GET", "/v1/adapters/{}", READ, adapters_get},
    {"PATCH", "/v1/adapters/{}", WRITE, adapters_patch},
    {"DELETE", "/v1/adapters/{}", WRITE, adapters_delete},
    {"POST", "/v1/adapters/{}/versions", WRITE, uploads_begin},
    {"GET", "/v1/adapters/{}/versions", READ, adapters_versions},
    {"GET", "/v1/adapters/{}/versions/{}", READ, adapters_version},
    {"DELETE", "/v1/adapters/{}/versions/{}", WRITE, adapters_version_delete},
    {"GET", "/v1/adapters/{}/versions/{}/files/{}", READ, uploads_file},
    {"PUT", "/v1/adapters/{}/versions/{}/files/{}", WRITE, uploads_put},
    {"PATCH", "/v1/adapters/{}/versions/{}/files/{}", WRITE, uploads_patch},
    {"POST", "/v1/adapters/{}/versions/{}/commit", WRITE, uploads_commit},
    {"POST", "/v1/adapters/{}/versions/{}/activate", WRITE, adapters_activate},
    {"GET", "/v1/adapters/{}/events", READ, adapters_events},
    {"GET", "/v1/adapters/{}/usage", READ, adapters_usage},
    {"PUT", "/v1/adapters/{}/aliases/{}", WRITE, adapters_alias_put},
    {"DELETE", "/v1/adapters/{}/aliases/{}", WRITE, adapters_alias_delete},
    {"POST", "/v1/adapters/{}/rollback", WRITE, adapters_rollback},
    {"POST", "/v1/adapters/{}/pin", WRITE, adapters_pin},
    {"POST", "/v1/adapters/{}/unpin", WRITE, adapters_unpin},
    {"POST", "/v1/adapters/{}/warm", WRITE, adapters_warm},
    {"GET", "/v1/stacks", READ, stacks_list},
    {"PUT", "/v1/stacks/{}", WRITE, stacks_put},
    {"GET", "/v1/stacks/{}", READ, stacks_get},
    {"DELETE", "/v1/stacks/{}", WRITE, stacks_delete},
    {"GET", "/v1/source_credentials", READ, source_credentials_list},
    {"PUT", "/v1/source_credentials/{}", WRITE, source_credentials_put},
    {"DELETE", "/v1/source_credentials/{}", WRITE, source_credentials_delete},
    {"POST", "/v1/load_lora_adapter", WRITE, lora_load_adapter}, /* vLLM's, for trainers */
    {"POST", "/v1/unload_lora_adapter", WRITE, lora_unload_adapter},
    {"POST", "/pause", WRITE, vllm_pause},
    {"POST", "/resume", WRITE, vllm_resume},
    {"POST", "/reset_prefix_cache", WRITE, vllm_reset_prefix_cache},
    {"GET", "/server_info", INFER, vllm_server_info},
    {"GET", "/", 0, page_get},
    {"GET", "/page.css", 0, page_style},
    {"GET", "/page.js", 0, page_script},
    {"GET", "/openapi.json", 0, page_openapi},
    {"GET", "/health", 0, health_live}, /* vLLM's probes */
    {"GET", "/ping", 0, health_live},
    {"POST", "/ping", 0, health_live},
    {"POST", "/fleet/v1/requests", 0, move_take_request}, /* by a word of their own */
    {"POST", "/fleet/v1/pages", 0, move_give_pages},
    {"POST", "/fleet/v1/adapters", 0, move_expect_adapter},
    {NULL, NULL, 0, NULL},
};

const route routes_admin[] = {
    {"POST", "/admin/v1/tenants", ADMIN, admin_tenant_create},
    {"GET", "/admin/v1/tenants", LOOK, admin_tenants_list},
    {"GET", "/admin/v1/tenants/{}", LOOK, admin_tenant_get},
    {"PATCH", "/admin/v1/tenants/{}", ADMIN, admin_tenant_patch},
    {"DELETE", "/admin/v1/tenants/{}", ADMIN, admin_tenant_delete},
    {"POST", "/admin/v1/tenants/{}/adapters/{}/{}", ADMIN, admin_adapter_act},
    {"POST", "/admin/v1/keys", ADMIN, admin_key_create},
    {"GET", "/admin/v1/keys", LOOK, admin_keys_list},
    {"GET", "/admin/v1/keys/{}", LOOK, admin_key_get},
    {"PATCH", "/admin/v1/keys/{}", ADMIN, admin_key_patch},
    {"POST", "/admin/v1/keys/{}/rotate", ADMIN, admin_key_rotate},
    {"DELETE", "/admin/v1/keys/{}", ADMIN, admin_key_revoke},
    {"GET", "/admin/v1/limits", LOOK, admin_limits_list},
    {"GET", "/admin/v1/limits/{}", LOOK, admin_limits_get},
    {"PATCH", "/admin/v1/limits/{}", ADMIN, admin_limits_patch},
    {"GET", "/admin/v1/limits/{}/{}", LOOK, admin_adapter_limits_get},
    {"PATCH", "/admin/v1/limits/{}/{}", ADMIN, admin_adapter_limits_patch},
    {"GET", "/admin/v1/requests", LOOK, admin_requests_list},
    {"DELETE", "/admin/v1/requests/{}", ADMIN, admin_request_cancel},
    {"GET", "/admin/v1/stats", LOOK, admin_stats},
    {"GET", "/admin/v1/history", LOOK, admin_history},
    {"GET", "/admin/v1/classes", LOOK, admin_classes},
    {"GET", "/admin/v1/adapters", LOOK, admin_adapters},
    {"POST", "/admin/v1/adapters/register", ADMIN, admin_adapters_register},
    {"GET", "/admin/v1/usage", LOOK, admin_usage},
    {"GET", "/admin/v1/audit", LOOK, admin_audit},
    {"POST", "/admin/v1/backup", ADMIN, admin_backup},
    {"POST", "/admin/v1/drain", ADMIN, admin_drain},
    {"GET", "/admin/v1/nodes", LOOK, admin_nodes},
    {"POST", "/admin/v1/nodes/{}/drain", ADMIN, admin_node_drain},
    {"POST", "/admin/v1/nodes/{}/fence", ADMIN, admin_node_fence},
    {"POST", "/admin/v1/reload", ADMIN, admin_reload},
    {"GET", "/admin/v1/config", LOOK, admin_config_get},
    {"PATCH", "/admin/v1/config", ADMIN, admin_config_patch},
    {NULL, NULL, 0, NULL},
};

const route routes_metrics[] = {
    {"GET", "/healthz", 0, health_live},
    {"GET", "/readyz", 0, health_ready},
    {"GET", "/metrics", 0, metrics_get},
    {NULL, NULL, 0, NULL},
};

/* --------------------------------------------------------------------- matching -- */

/* Percent-decodes; NULL for what another reader could take for another path.  `rest`: may have
 * slashes. */
static char *decode_segment(exchange *x, const char *s, size_t len, bool rest)
{
    char *out = arena_alloc(&x->arena, len + 1);
    if (!out || len == 0) return NULL;
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if (c == '%') {
            int byte = hex_value(s + i + 1, s + len, 2);
            if (byte < 0) return NULL;
            c = (char)byte;
            i += 2;
            if (c == 0 || c == '\\' || (c == '/' && !rest)) return NULL;
        }
        if ((unsigned char)c < 0x20 || c == 0x7f || c == '\\') return NULL;
        out[n++] = c;
    }
    out[n] = 0;
    return strcmp(out, ".") == 0 || strcmp(out, "..") == 0 ? NULL : out;
}

bool route_match(exchange *x, const char *pattern, const char *path)
{
    x->n_param = 0;
    while (*pattern == '/' && *path == '/') {
        pattern++;
        path++;
        size_t want = strcspn(pattern, "/"), have = strcspn(path, "/");
        if (strcmp(pattern, "{*}") == 0) {
            assert(x->n_param < EXCHANGE_PARAM_MAX); /* patterns are ours */
            char *p = decode_segment(x, path, strlen(path), true);
            if (!p) return false;
            x->param[x->n_param++] = p;
            return true;
        }
        if (want == 2 && memcmp(pattern, "{}", 2) == 0) {
            char *p = decode_segment(x, path, have, false);
            if (!p || x->n_param == EXCHANGE_PARAM_MAX) return false;
            x->param[x->n_param++] = p;
        } else if (want != have || memcmp(pattern, path, want) != 0) {
            return false;
        }
        pattern += want;
        path += have;
    }
    return !*pattern && !*path;
}

/* ------------------------------------------------------------------- dispatching -- */

static const route *table_of(plane p)
{
    return p == PLANE_INFERENCE ? routes_inference
           : p == PLANE_ADMIN   ? routes_admin
                                : routes_metrics;
}

/* HEAD is GET without the body. */
static bool same_method(const char *asked, const char *route_method)
{
    if (strcmp(asked, "HEAD") == 0) return strcmp(route_method, "GET") == 0;
    return strcmp(asked, route_method) == 0;
}

static void allow_method(char *allow, size_t cap, const char *method)
{
    size_t n = strlen(allow);
    snprintf(allow + n, cap - n, "%s%s", n ? ", " : "", method);
}

/* Whether the path equals a pattern; then it is no parameter of another one. */
static bool is_exact(const route *table, const char *path)
{
    bool found = false;
    for (const route *r = table; r->method; r++) found |= strcmp(r->pattern, path) == 0;
    return found;
}

/* The routes that fit the path; the one that fits the method too, and all methods for Allow. */
static const route *find_in(exchange *x, const route *table, const char *path, char *allow,
                            size_t cap)
{
    const route *hit = NULL;
    char *kept[EXCHANGE_PARAM_MAX];
    int n_kept = 0;
    bool exact = is_exact(table, path);
    for (const route *r = table; r->method; r++) {
        if ((exact && strcmp(r->pattern, path) != 0) || !route_match(x, r->pattern, path)) continue;
        allow_method(allow, cap, r->method);
        if (strcmp(r->method, "GET") == 0) allow_method(allow, cap, "HEAD");
        if (hit || !same_method(x->method, r->method)) continue;
        hit = r;
        n_kept = x->n_param;
        memcpy(kept, x->param, sizeof(kept));
    }
    if (hit) {
        x->n_param = n_kept;
        memcpy(x->param, kept, sizeof(kept));
    }
    return hit;
}

static const route *find(exchange *x, const char *path, char *allow, size_t cap)
{
    const route *r = find_in(x, table_of(x->plane), path, allow, cap);
    if (r || allow[0] || x->plane != PLANE_INFERENCE) return r;
    if (!networks_hold(x->conf->metrics.inference_networks, &x->peer)) return NULL;
    return find_in(x, routes_metrics, path, allow, cap); /* for an endpoint picker */
}

/* The answer to OPTIONS, and for a known path with another method. */
static void say_allowed(exchange *x, char *allow, size_t cap)
{
    bool asked = strcmp(x->method, "OPTIONS") == 0;
    allow_method(allow, cap, "OPTIONS");
    exchange_add_header(x, "Allow", "%s", allow);
    if (asked && x->plane == PLANE_INFERENCE)
        cors_preflight(x, x->conf->server.cors_origins, allow);
    if (asked) {
        exchange_reply(x, 200, NULL, "", 0);
    } else {
        exchange_error(x, 405, "invalid_request_error", "method_not_allowed", NULL,
                       "%s is not allowed here; %s is", x->method, allow);
    }
}

#define BASE_STAYS ": the base's weights stay as they are; send adapters, by /v1/load_lora_adapter"

/* The reason, for URLs that clients of OpenAI and vLLM know and this server does not have; "":
 * none. */
static const char *why_not(const char *path)
{
    static const struct {
        const char *prefix, *why;
    } others[] = {
        {"/v1/realtime", ": this server has no realtime sessions; /v1/responses streams"},
        {"/v1/responses/compact", ": this server does not compact conversations; \"truncation\": "
                                  "\"auto\" omits the oldest messages"},
        {"/v1/images", ": this server makes no images, it answers with text"},
        {"/v1/videos", ": this server makes no videos, it answers with text"},
        {"/v1/audio", ": this server neither hears nor speaks, it reads and writes text"},
        {"/init_weight_transfer_engine", BASE_STAYS},
        {"/get_world_size", BASE_STAYS},
        {"/start_weight_update", BASE_STAYS},
        {"/update_weights", BASE_STAYS},
        {"/finish_weight_update", BASE_STAYS},
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (strncmp(path, others[i].prefix, strlen(others[i].prefix)) == 0) return others[i].why;
    }
    return "";
}

/* Clients whose base URL ends with a slash ask for /v1//models or /v1/models/: a slash that follows
 * another, or ends the path, means nothing. */
static void drop_slashes(char *path)
{
    size_t n = 0;
    for (const char *s = path; *s; s++)
        if (*s != '/' || n == 0 || path[n - 1] != '/') path[n++] = *s;
    if (n > 1 && path[n - 1] == '/') n--;
    path[n] = 0;
}

enum { NEAR_MAX = 64 }; /* bytes of paths that are compared */

/* The pattern with the path's own segments in the places of {}. */
static void fill_in(const char *pattern, const char *path, char out[NEAR_MAX + 1])
{
    size_t n = 0;
    while (*pattern && n < NEAR_MAX) {
        if (*pattern == '/' && *path == '/') path++;
        size_t have = strcspn(path, "/");
        if (pattern[0] == '/' && pattern[1] == '{' && have) {
            n += (size_t)snprintf(out + n, NEAR_MAX + 1 - n, "/%.*s", (int)have, path);
            pattern += 1 + strcspn(pattern + 1, "/");
        } else {
            size_t literal = 1 + strcspn(pattern + 1, "/");
            n += (size_t)snprintf(out + n, NEAR_MAX + 1 - n, "%.*s", (int)literal, pattern);
            pattern += literal;
        }
        path += have;
    }
    out[n < NEAR_MAX ? n : NEAR_MAX] = 0;
}

/* Bytes to put in, leave out or change to make one text the other (Levenshtein). */
static int distance(const char *a, const char *b)
{
    int row[NEAR_MAX + 1], n = (int)strlen(b);
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            int least = row[j] < row[j - 1] ? row[j] : row[j - 1];
            diagonal = row[j];
            row[j] = least + 1 < change ? least + 1 : change;
        }
    }
    return row[n];
}

/* The route whose path differs least, if that is no more than half of it; else NULL.  The page at
 * / is near every short path, and none of an API's. */
static const route *nearest(const exchange *x)
{
    const route *best = NULL;
    size_t len = strlen(x->path);
    int least = (int)len / 2 + 1;
    if (len > NEAR_MAX) return NULL;
    for (const route *r = table_of(x->plane); r->method; r++) {
        char path[NEAR_MAX + 1];
        if (!r->pattern[1]) continue;
        fill_in(r->pattern, x->path, path);
        int d = distance(x->path, path);
        bool better = d < least || (d == least && best && same_method(x->method, r->method) &&
                                    !same_method(x->method, best->method));
        if (!better) continue;
        best = r;
        least = d;
    }
    return best;
}

static void say_unknown(exchange *x)
{
    const char *why = x->plane == PLANE_INFERENCE ? why_not(x->path) : "";
    const route *near = why[0] ? NULL : nearest(x);
    exchange_error(x, 404, "invalid_request_error", "unknown_url", NULL,
                   "no such URL: %s %.200s%s%s%s%s%s", x->method, x->path, why,
                   near ? "; the nearest is " : "", near ? near->method : "", near ? " " : "",
                   near ? near->pattern : "");
}

/* Whether requests_per_minute limits it here.  Inference reserves by itself, when it knows its
 * tokens; an upload's pieces are bounded by the size that it began with. */
static bool changes_state(const route *r)
{
    static void (*const others[])(exchange *) = {
        responses_delete_one, responses_cancel, conversations_create, conversations_delete,
        files_upload,         files_drop,       batches_create,       batches_cancel_one};
    if (strcmp(r->method, "GET") == 0) return false;
    if (r->scope == WRITE) return r->fn != uploads_put && r->fn != uploads_patch;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (r->fn == others[i]) return true;
    }
    return false;
}

static void dispatch(exchange *x)
{
    char allow[128] = "", with_v1[sizeof(x->path) + 4];
    const char *path = x->path;
    if (x->plane == PLANE_INFERENCE) drop_slashes(x->path);
    x->errors_typed = x->plane == PLANE_INFERENCE && (strncmp(path, "/v1/messages", 12) == 0 ||
                                                      strncmp(path, "/messages", 9) == 0);
    const route *r = find(x, path, allow, sizeof(allow));
    if (!r && !allow[0] && x->plane == PLANE_INFERENCE && strncmp(path, "/v1/", 4) != 0) {
        snprintf(with_v1, sizeof(with_v1), "/v1%s", path); /* some clients leave it out */
        r = find(x, with_v1, allow, sizeof(allow));
    }
    if (strcmp(path, "*") == 0) { /* OPTIONS for the whole server */
        allow_method(allow, sizeof(allow), "GET, HEAD, POST, PUT, PATCH, DELETE");
        say_allowed(x, allow, sizeof(allow));
        return;
    }
    if (!r && (!allow[0] || (x->plane == PLANE_INFERENCE && why_not(path)[0]))) {
        say_unknown(x);
        return;
    }
    if (!r) {
        say_allowed(x, allow, sizeof(allow));
        return;
    }
    if (r->scope && !auth_check(x, r->scope)) return;
    if (x->caller->tenant.id && changes_state(r) && !ratelimit_write(x)) return;
    r->fn(x);
}

void route_dispatch(exchange *x)
{
    caller who = {0};
    x->caller = &who;
    x->conf = live_pin(process_of(x->app)->live);
    if (x->plane == PLANE_INFERENCE) cors_allow(x, x->conf->server.cors_origins);
    dispatch(x);
    live_release(process_of(x->app)->live, x->conf);
    x->conf = NULL;
    x->caller = NULL;
}
