/* admin_config.c -- the server's configuration, for operators' keys: what is in force and who said
 * it, what a reload would change, changes by name, a reload. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/config/change.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/process_parts.h"
#include "gateway/rest/admin_fields.h"
#include "gateway/rest/api_audit.h"
#include "storage/audit.h"

enum { ASK_MAX = 64 };

/* ------------------------------------------------------------------------- looking -- */

static void write_item(jsonw *w, config_item *item)
{
    config_hide(item->value);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "option", item->name);
    jsonw_str(w, "value", item->value);
    jsonw_str(w, "default", item->initial);
    jsonw_str(w, "source", config_source_name(item->from));
    jsonw_bool(w, "live", item->live);
    jsonw_close(w, '}');
}

static void write_change(jsonw *w, config_change *c)
{
    config_hide(c->value);
    config_hide(c->wanted);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "option", c->name);
    jsonw_str(w, "value", c->value);
    jsonw_str(w, "wanted", c->wanted);
    jsonw_str(w, "source", config_source_name(c->wanted_from));
    jsonw_bool(w, "live", c->live);
    jsonw_close(w, '}');
}

static void list_differences(exchange *x)
{
    config_changes list;
    jsonw w;
    err e;
    if (change_look(process_of(x->app)->change, &list, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    api_list_begin(&w);
    for (int i = 0; i < list.n; i++) write_change(&w, &list.each[i]);
    api_list_end(x, &w, false);
    free(list.each);
}

void admin_config_get(exchange *x)
{
    config_item item;
    jsonw w;
    bool pending = false;
    if (!api_query_flag(x, "pending", &pending)) return;
    if (pending) {
        list_differences(x);
        return;
    }
    api_list_begin(&w);
    for (int i = 0; config_item_at(x->conf, i, &item); i++) write_item(&w, &item);
    api_list_end(x, &w, false);
}

/* ------------------------------------------------------------------------ changing -- */

static void write_names(jsonw *w, const char *name, const change_report *r, change_verdict verdict)
{
    jsonw_open(w, name, '[');
    for (int i = 0; i < r->n; i++) {
        if (r->line[i].verdict == verdict) jsonw_str(w, NULL, r->line[i].name);
    }
    jsonw_close(w, ']');
}

static void reply_changed(exchange *x, const char *action, change_report *done)
{
    jsonw w;
    char names[CONFIG_TEXT_MAX], detail[AUDIT_DETAIL_MAX];
    (void)change_names(done, CHANGE_TAKEN, names, sizeof(names));
    change_detail(done, detail, sizeof(detail));
    api_audit(x, 0, action, names, detail);
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    write_names(&w, "taken", done, CHANGE_TAKEN);
    write_names(&w, "unchanged", done, CHANGE_SAME);
    write_names(&w, "needs_restart", done, CHANGE_RESTART);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
    free(done->line);
}

void admin_reload(exchange *x)
{
    change_report done;
    err e;
    if (change_reload(process_of(x->app)->change, &done, &e)) {
        bool ours = e.code == ERR_NOMEM || e.code == ERR_CONFLICT;
        (void)err_context(&e, "nothing was reloaded");
        if (ours)
            exchange_reply_err(x, &e, NULL);
        else
            (void)admin_refuse(x, &e, NULL);
        return;
    }
    reply_changed(x, "server.reload", &done);
}

/* A value as a file has it; in the arena.  NULL: no memory. */
static const char *text_of(exchange *x, const cJSON *v)
{
    if (cJSON_IsString(v)) return v->valuestring;
    if (cJSON_IsBool(v)) return cJSON_IsTrue(v) ? "yes" : "no";
    char *printed = json_print(v), *text = NULL;
    if (printed) text = arena_calloc(&x->arena, strlen(printed) + 1, 1);
    if (text) strcpy(text, printed);
    free(printed);
    return text;
}

/* How many; -1: answered. */
static int read_asks(exchange *x, const cJSON *body, change_ask ask[ASK_MAX])
{
    const cJSON *v;
    int n = 0;
    if (!cJSON_IsObject(body)) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", NULL,
                       "the body must be a JSON object");
        return -1;
    }
    cJSON_ArrayForEach(v, body)
    {
        if (n == ASK_MAX || cJSON_IsArray(v) || cJSON_IsObject(v)) {
            exchange_error(x, 400, "invalid_request_error", "invalid_value", v->string,
                           "an option is a text, a number, true, false or null, and at most %d "
                           "are changed at once",
                           ASK_MAX);
            return -1;
        }
        ask[n] = (change_ask){v->string, cJSON_IsNull(v) ? NULL : text_of(x, v)};
        if (!cJSON_IsNull(v) && !ask[n].value) {
            exchange_starved(x);
            return -1;
        }
        n++;
    }
    if (n > 0) return n;
    exchange_error(x, 400, "invalid_request_error", "invalid_value", NULL,
                   "the body names no option: {\"log.level\":\"debug\"}");
    return -1;
}

void admin_config_patch(exchange *x)
{
    change_ask ask[ASK_MAX];
    change_report done;
    const cJSON *body;
    err e;
    int bad;
    if (!exchange_read_json(x, &body)) return;
    int n = read_asks(x, body, ask);
    if (n < 0) return;
    if (!change_set(process_of(x->app)->change, ask, n, &done, &bad, &e)) {
        reply_changed(x, "server.config", &done);
        return;
    }
    if (e.code == ERR_INPUT || e.code == ERR_LIMIT)
        (void)admin_refuse(x, &e, bad >= 0 ? ask[bad].name : NULL);
    else
        exchange_reply_err(x, &e, NULL);
}
