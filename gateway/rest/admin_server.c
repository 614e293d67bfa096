/* admin_server.c -- the server itself, for operators' keys: classes, audit log, backup, drain,
 * and the fleet's nodes.
 *
 * Backup writes a consistent copy of the database to a path on the server, while it runs; the
 * path must be absolute and its folder writable, which is tested first for a clear message.
 * Drain only sets a flag: the main thread stops accepting, and the process ends when the last
 * request has.
 *
 * A node's state is derived from its row: "stopped" without a lease, "silent" when the lease has
 * expired, else "draining" or "alive". A fenced node can write
 * nothing until it starts again. The configuration's handlers are in admin_config.c.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/move/facts.h"
#include "gateway/process_parts.h"
#include "gateway/rest/api_audit.h"
#include "gateway/tenant_parts.h"
#include "storage/audit.h"
#include "storage/backup.h"
#include "storage/fleet/lease.h"
#include "storage/fleet/nodes.h"
#include "storage/keys.h"

static void write_tiers(jsonw *w, const char *list)
{
    const char *word;
    int len;
    jsonw_open(w, "tiers", '[');
    while (class_next_tier(&list, &word, &len)) jsonw_strn(w, NULL, word, (size_t)len);
    jsonw_close(w, ']');
}

void admin_classes(exchange *x)
{
    jsonw w;
    const config *conf = x->conf;
    int by_default = class_of_name(&conf->classes, conf->classes.default_name);
    api_list_begin(&w);
    for (int i = 0; i < conf->classes.n; i++) {
        const config_class *c = &conf->classes.each[i];
        jsonw_open(&w, NULL, '{');
        jsonw_str(&w, "name", c->name);
        jsonw_int(&w, "ttft_ms", c->ttft_us / 1000);
        jsonw_int(&w, "tpot_ms", c->tpot_us / 1000);
        jsonw_num(&w, "weight", (double)c->weight_milli / 1000);
        jsonw_bool(&w, "default", i == by_default);
        jsonw_str(&w, "overload", c->overload);
        write_tiers(&w, c->tiers);
        jsonw_close(&w, '}');
    }
    api_list_end(x, &w, false);
}

/* The name of who did it; null: the server, or the key has none or is gone. */
static void write_actor(exchange *x, jsonw *w, uint64_t key_id)
{
    key_info k;
    bool known = key_id && !keys_get(store_of(x->app), key_id, &k, NULL) && k.name[0];
    jsonw_str(w, "actor", known ? k.name : NULL);
}

void admin_audit(exchange *x)
{
    audit_row *rows;
    size_t n;
    err e;
    uint64_t before = 0;
    if (!api_query_number(x, "before", 0, UINT64_MAX, &before)) return;
    if (audit_list(store_of(x->app), 0, before, 100, &rows, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) {
        jsonw_open(&w, NULL, '{');
        api_write_id(&w, "id", rows[i].id);
        api_write_time(&w, "time", rows[i].wall_us);
        api_write_id(&w, "actor_key", rows[i].actor_key_id);
        write_actor(x, &w, rows[i].actor_key_id);
        api_write_id(&w, "tenant", rows[i].tenant_id);
        jsonw_str(&w, "action", rows[i].action);
        jsonw_str(&w, "object", rows[i].object);
        jsonw_str(&w, "detail", rows[i].detail[0] ? rows[i].detail : NULL);
        jsonw_close(&w, '}');
    }
    api_list_end(x, &w, n == 100);
    free(rows);
}

static void reply_done(exchange *x, int status, const char *what)
{
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "status", what);
    jsonw_close(&w, '}');
    exchange_reply_json(x, status, &w);
    jsonw_clear(&w);
}

void admin_backup(exchange *x)
{
    static const char *const known[] = {"path", NULL};
    const cJSON *body;
    const char *path = NULL;
    err e;
    if (!exchange_read_json(x, &body) || !api_only_fields(x, body, known)) return;
    if (json_str(body, "path", &path, NULL, &e) || !path || path[0] != '/') {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "path",
                       "'path' must be an absolute path on the server");
        return;
    }
    char folder[PATH_MAX];
    size_t n = (size_t)(strrchr(path, '/') - path);
    if (n >= sizeof(folder)) n = sizeof(folder) - 1;
    memcpy(folder, path, n);
    folder[n] = 0;
    if (access(n ? folder : "/", W_OK | X_OK) != 0) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "path",
                       "the server cannot write into the folder of 'path'");
        return;
    }
    if (backup_write(store_of(x->app), path, &e)) {
        exchange_reply_err(x, &e, "path");
        return;
    }
    api_audit(x, 0, "server.backup", path, NULL);
    reply_done(x, 200, "written");
}

void admin_drain(exchange *x)
{
    api_audit(x, 0, "server.drain", "", NULL);
    reply_done(x, 202, "draining");
    atomic_store(&process_of(x->app)->drain_wanted, true);
}

/* ------------------------------------------------------------------------ the fleet -- */

static const char *state_of(const fleet_member *m)
{
    return m->silent_us < 0                 ? "stopped"
           : m->silent_us >= LEASE_VALID_US ? "silent"
           : m->drains                      ? "draining"
                                            : "alive";
}

void admin_nodes(exchange *x)
{
    fleet_member *list;
    place_node place;
    size_t n;
    err e;
    if (nodes_list(store_of(x->app), &list, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) {
        jsonw_open(&w, NULL, '{');
        jsonw_str(&w, "object", "node");
        jsonw_int(&w, "node", list[i].node);
        jsonw_str(&w, "name", list[i].name);
        jsonw_str(&w, "state", state_of(&list[i]));
        jsonw_bool(&w, "this", list[i].node == (int)x->conf->server.node);
        if (facts_read(list[i].facts, &place))
            jsonw_str(&w, "role", node_role_name(place.role));
        else
            jsonw_null(&w, "role");
        if (list[i].silent_us >= 0)
            jsonw_int(&w, "silent_ms", list[i].silent_us / 1000);
        else
            jsonw_null(&w, "silent_ms");
        jsonw_int(&w, "epoch", list[i].epoch);
        jsonw_int(&w, "applied", list[i].applied);
        jsonw_int(&w, "behind", list[i].behind);
        jsonw_close(&w, '}');
    }
    api_list_end(x, &w, false);
    free(list);
}

typedef err_code (*node_change)(store *st, int node, err *e);

static void change_node(exchange *x, node_change fn, int status, const char *done,
                        const char *action)
{
    err e;
    char *end;
    long node = strtol(x->param[0], &end, 10);
    if (*end || x->param[0][0] < '0' || x->param[0][0] > '9' || node > 255) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "node",
                       "a node's number must be from 0 to 255");
        return;
    }
    if (fn(store_of(x->app), (int)node, &e)) {
        exchange_reply_err(x, &e, "node");
        return;
    }
    api_audit(x, 0, action, x->param[0], NULL);
    reply_done(x, status, done);
}

void admin_node_drain(exchange *x)
{
    change_node(x, nodes_drain, 202, "draining", "node.drain");
}

void admin_node_fence(exchange *x)
{
    change_node(x, nodes_fence, 200, "fenced", "node.fence");
}
