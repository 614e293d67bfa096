/* view_menu.c -- what may be done to rows: a menu, a question, a call.
 *
 *     a       view_open_menu(): what the table's rows allow, and drain
 *     Enter   a question with the row's name, or how many rows; before it the number of a limit,
 *             or a second menu of classes or keys
 *     y       a call for each tagged row, or the selected one, into view->action
 *     then    loratop_main.c sends them in this order
 *
 * Nothing leaves without a confirmed "y"; what is tagged is done to all of it. The server
 * audits. A key that may only look, --read-only and a replay open no menu.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "tui/client.h"
#include "tui/top/view.h"

enum {
    DO_SORT = 1,
    DO_CANCEL,
    DO_PIN,
    DO_UNPIN,
    DO_EVICT,
    DO_ROLLBACK,
    DO_WARM,
    DO_SUSPEND,
    DO_RESUME,
    DO_LIMIT,
    DO_CLASS,
    DO_SET_CLASS,
    DO_KEYS,
    DO_REVOKE,
    DO_DRAIN,
    DO_COLUMN,
};

enum { ENDED_US = 5000000 }; /* between two looks at what has ended */

static void add_item(view *v, int key, const char *label, int code, const char *argument)
{
    view_menu *m = &v->menu;
    if (m->n == VIEW_MENU_MAX) return;
    m->item[m->n].key = key;
    m->item[m->n].code = code;
    snprintf(m->item[m->n].label, sizeof(m->item[m->n].label), "%s", label);
    snprintf(m->item[m->n].argument, sizeof(m->item[m->n].argument), "%s",
             argument ? argument : "");
    m->n++;
}

static void open_menu(view *v, const char *title)
{
    v->menu = (view_menu){0};
    snprintf(v->menu.title, sizeof(v->menu.title), "%s", title);
    v->mode = MODE_MENU;
}

void view_open_sort(view *v)
{
    int n, table = view_table_of(v->screen);
    const view_column *c = view_columns(table, &n);
    open_menu(v, "Sort by");
    for (int i = 0; i < n; i++) {
        char number[16];
        snprintf(number, sizeof(number), "%d", i);
        add_item(v, 'a' + i, c[i].title, DO_SORT, number);
    }
    v->menu.at = v->table[table].sort;
}

void view_open_columns(view *v)
{
    int n, table = view_table_of(v->screen), at = v->mode == MODE_MENU ? v->menu.at : 0;
    const view_column *c = view_columns(table, &n);
    open_menu(v, "Columns (Enter: in or out)");
    for (int i = 1; i < n; i++) { /* the first stays */
        char label[40], number[16];
        bool hidden = v->table[table].hidden >> i & 1U;
        snprintf(label, sizeof(label), "[%c] %s", hidden ? ' ' : 'x', c[i].title);
        snprintf(number, sizeof(number), "%d", i);
        add_item(v, 'a' + i - 1, label, DO_COLUMN, number);
    }
    v->menu.at = at;
}

void view_open_menu(view *v)
{
    bool read = v->read_only || v->replay || strcmp(view_data(v)->server.access, "admin") != 0;
    if (read) {
        view_say(v, v->now_us, "%s: nothing can be changed",
                 v->replay ? "this is a replay" : "this key may only look");
        return;
    }
    int table = view_source(view_table_of(v->screen));
    table_view *t = view_table(v);
    bool row = t && t->selected < t->n && !(t->order[t->selected] & VIEW_GROUP);
    open_menu(v, "What to do");
    if (row && table == TABLE_REQUESTS) add_item(v, 'c', "cancel request", DO_CANCEL, NULL);
    if (row && table == TABLE_ADAPTERS) {
        add_item(v, 'p', "pin: keep in memory", DO_PIN, NULL);
        add_item(v, 'u', "unpin", DO_UNPIN, NULL);
        add_item(v, 'e', "evict from memory", DO_EVICT, NULL);
        add_item(v, 'w', "warm: load now", DO_WARM, NULL);
        add_item(v, 'b', "roll back to the version before", DO_ROLLBACK, NULL);
    }
    if (row && table == TABLE_TENANTS) {
        add_item(v, 's', "suspend", DO_SUSPEND, NULL);
        add_item(v, 'r', "resume", DO_RESUME, NULL);
        add_item(v, 'm', "limit: requests per minute", DO_LIMIT, "requests_per_minute");
        add_item(v, 't', "limit: tokens per minute", DO_LIMIT, "tokens_per_minute");
        add_item(v, 'o', "limit: concurrent requests", DO_LIMIT, "max_concurrent");
        add_item(v, 'd', "limit: tokens per day", DO_LIMIT, "tokens_per_day");
        add_item(v, 'M', "limit: tokens per month", DO_LIMIT, "tokens_per_month");
        add_item(v, 'Q', "limit: queued requests", DO_LIMIT, "max_queued");
        add_item(v, 'c', "default class", DO_CLASS, NULL);
        add_item(v, 'k', "revoke a key", DO_KEYS, NULL);
    }
    add_item(v, 'D', "drain the server: finish and stop", DO_DRAIN, NULL);
}

/* ---------------------------------------------------------------------- the calls -- */

static void push(view *v, const char *method, const char *path, const char *body, const char *what)
{
    if (v->n_action == VIEW_ACTIONS_MAX) return;
    view_action *a = &v->action[v->n_action++];
    memset(a, 0, sizeof(*a));
    a->server = v->current;
    snprintf(a->method, sizeof(a->method), "%s", method);
    snprintf(a->path, sizeof(a->path), "%s", path);
    snprintf(a->body, sizeof(a->body), "%s", body);
    snprintf(a->what, sizeof(a->what), "%s", what);
}

static void push_adapter(view *v, const proto_adapter *a, const char *verb)
{
    char tenant[256], name[256], path[sizeof(v->action[0].path)], what[160];
    if (!client_escape(a->tenant, tenant, sizeof(tenant)) ||
        !client_escape(a->name, name, sizeof(name)))
        return;
    if (snprintf(path, sizeof(path), "/admin/v1/tenants/%s/adapters/%s/%s", tenant, name, verb) >=
        (int)sizeof(path))
        return;
    snprintf(what, sizeof(what), "%s %s/%s", verb, a->tenant, a->name);
    push(v, "POST", path, "", what);
}

static void push_tenant(view *v, const proto_tenant *t, const char *body, const char *verb)
{
    char name[256], path[300], what[160];
    if (!client_escape(t->name, name, sizeof(name))) return;
    snprintf(path, sizeof(path), "/admin/v1/tenants/%s", name);
    snprintf(what, sizeof(what), "%s %s", verb, t->name);
    push(v, "PATCH", path, body, what);
}

static void act_on(view *v, const void *row)
{
    char path[300], body[160], what[160], name[256];
    const proto_request *rq = row;
    switch (v->code) {
    case DO_CANCEL:
        if (!client_escape(rq->id, name, sizeof(name))) return;
        snprintf(path, sizeof(path), "/admin/v1/requests/%s", name);
        snprintf(what, sizeof(what), "cancel %s", rq->id);
        push(v, "DELETE", path, "", what);
        break;
    case DO_PIN: push_adapter(v, row, "pin"); break;
    case DO_UNPIN: push_adapter(v, row, "unpin"); break;
    case DO_EVICT: push_adapter(v, row, "evict"); break;
    case DO_WARM: push_adapter(v, row, "warm"); break;
    case DO_ROLLBACK: push_adapter(v, row, "rollback"); break;
    case DO_SUSPEND: push_tenant(v, row, "{\"disabled\":true}", "suspend"); break;
    case DO_RESUME: push_tenant(v, row, "{\"disabled\":false}", "resume"); break;
    case DO_LIMIT:
        snprintf(body, sizeof(body), "{\"limits\":{\"%s\":%lld}}", v->argument,
                 strtoll(v->input, NULL, 10));
        push_tenant(v, row, body, "set the limit of");
        break;
    case DO_SET_CLASS:
        snprintf(body, sizeof(body), "{\"default_class\":\"%s\"}", v->argument);
        push_tenant(v, row, body, "set the class of");
        break;
    default: break;
    }
}

/* Tagged rows, or the selected one; returns how many, and calls fn unless it is NULL. */
static int on_rows(view *v, void (*fn)(view *v, const void *row))
{
    int table = view_table_of(v->screen), n = 0;
    table_view *t = view_table(v);
    if (!t) return 0;
    const rowset *r = view_rows(v, table);
    for (size_t i = 0; i < r->n; i++) {
        if (!r->side[i].tagged) continue;
        n++;
        if (fn) fn(v, rowset_row(r, i));
    }
    if (n || t->selected >= t->n || t->order[t->selected] & VIEW_GROUP) return n;
    if (fn) fn(v, rowset_row(r, t->order[t->selected]));
    return 1;
}

static void ask(view *v, const char *what)
{
    int table = view_source(view_table_of(v->screen)), n = on_rows(v, NULL);
    table_view *t = view_table(v);
    const char *name = "";
    if (n == 1 && t && t->selected < t->n && !(t->order[t->selected] & VIEW_GROUP)) {
        const void *row = rowset_row(view_rows(v, table), t->order[t->selected]);
        name = table == TABLE_TENANTS    ? ((const proto_tenant *)row)->name
               : table == TABLE_ADAPTERS ? ((const proto_adapter *)row)->name
                                         : ((const proto_request *)row)->id;
    }
    if (v->code == DO_DRAIN || v->code == DO_REVOKE)
        snprintf(v->question, sizeof(v->question), "%s? (y/n)", what);
    else if (name[0])
        snprintf(v->question, sizeof(v->question), "%s: %s? (y/n)", what, name);
    else
        snprintf(v->question, sizeof(v->question), "%s: %d rows? (y/n)", what, n);
    v->mode = MODE_CONFIRM;
}

static void ask_for_keys(view *v, const void *row)
{
    char name[256], path[300];
    const proto_tenant *t = row;
    if (!client_escape(t->name, name, sizeof(name))) return;
    snprintf(path, sizeof(path), "/admin/v1/keys?tenant=%s", name);
    push(v, "GET", path, "", "keys");
    if (v->n_action) v->action[v->n_action - 1].answer = ANSWER_KEYS;
}

void view_ask_ended(view *v, int64_t now_us)
{
    const table_view *t = &v->table[VIEW_ENDED];
    bool slow = t->sort == view_column_of(VIEW_ENDED, "TOOK") && t->descending;
    if (v->screen != SCREEN_ENDED || v->replay) {
        v->ended_us = 0;
        return;
    }
    if (v->ended_us && (v->paused || (slow == v->ended_slow && now_us - v->ended_us < ENDED_US)))
        return;
    v->ended_us = now_us;
    v->ended_slow = slow;
    push(v, "GET",
         slow ? "/admin/v1/requests?state=ended&limit=100&slow=1"
              : "/admin/v1/requests?state=ended&limit=100",
         "", "requests that have ended");
    if (v->n_action) v->action[v->n_action - 1].answer = ANSWER_ENDED;
}

void view_confirm_key(view *v, int key)
{
    v->mode = MODE_NORMAL;
    if (key != 'y' && key != 'Y') {
        view_say(v, v->now_us, "nothing was done");
        return;
    }
    char path[128];
    if (v->code == DO_DRAIN) {
        push(v, "POST", "/admin/v1/drain", "", "drain");
    } else if (v->code == DO_REVOKE) {
        snprintf(path, sizeof(path), "/admin/v1/keys/%s", v->argument);
        push(v, "DELETE", path, "", "revoke the key");
    } else {
        (void)on_rows(v, act_on);
    }
}

void view_input_done(view *v)
{
    size_t n = strlen(v->input);
    v->mode = MODE_NORMAL;
    if (n == 0 || n > 15 || strspn(v->input, "0123456789") != n) {
        view_say(v, v->now_us, "a limit is a whole number; 0: none");
        return;
    }
    char what[100];
    snprintf(what, sizeof(what), "set %s to %s", v->argument, v->input);
    ask(v, what);
}

/* An item was chosen: done at once where it only changes the display, else a second menu, a
 * number to type, or the question. */
static void pick(view *v, int i)
{
    view_menu *m = &v->menu;
    table_view *t = view_table(v);
    v->mode = MODE_NORMAL;
    if (i < 0 || i >= m->n) return;
    char label[80];
    snprintf(label, sizeof(label), "%s", m->item[i].label);
    v->code = m->item[i].code;
    snprintf(v->argument, sizeof(v->argument), "%s", m->item[i].argument);
    switch (v->code) {
    case DO_SORT:
        if (!t) break;
        t->sort = atoi(v->argument);
        t->stale = true;
        break;
    case DO_COLUMN:
        if (!t) break;
        t->hidden ^= 1U << atoi(v->argument);
        t->shift = 0;
        v->mode = MODE_MENU; /* for the next */
        m->at = i;
        view_open_columns(v);
        break;
    case DO_LIMIT:
        v->mode = MODE_INPUT;
        v->input[0] = 0;
        snprintf(v->question, sizeof(v->question), "%s (0: none): ", v->argument);
        break;
    case DO_CLASS: {
        const topdata *d = view_data(v);
        open_menu(v, "Default class");
        for (int k = 0; k < d->n_class; k++) {
            if (strspn(d->classes[k].name, "abcdefghijklmnopqrstuvwxyz0123456789._-") !=
                    strlen(d->classes[k].name) ||
                strlen(d->classes[k].name) >= sizeof(v->argument))
                continue; /* goes into JSON as it is */
            add_item(v, 'a' + k, d->classes[k].name, DO_SET_CLASS, d->classes[k].name);
        }
        break;
    }
    case DO_KEYS: (void)on_rows(v, ask_for_keys); break;
    default: ask(v, label);
    }
}

void view_menu_key(view *v, int key)
{
    view_menu *m = &v->menu;
    if (key == KEYS_UP && m->at > 0) m->at--;
    if (key == KEYS_DOWN && m->at + 1 < m->n) m->at++;
    if (key == KEYS_ESC || key == 'q' || key == KEYS_F10) v->mode = MODE_NORMAL;
    if (key == KEYS_ENTER) pick(v, m->at);
    for (int i = 0; v->mode == MODE_MENU && i < m->n; i++) {
        if (m->item[i].key == key && key != 'q') {
            pick(v, i);
            return;
        }
    }
}

void view_keys_came(view *v, const char *json, size_t len, int64_t now_us)
{
    cJSON *tree;
    err e;
    v->now_us = now_us;
    if (v->mode != MODE_NORMAL || json_parse(json, len, &json_limits_trusted, &tree, &e)) return;
    const cJSON *list = json_get(tree, "data"), *k;
    open_menu(v, "Revoke which key");
    cJSON_ArrayForEach(k, list)
    {
        const char *id = NULL, *public_id = NULL, *name = NULL;
        if (!cJSON_IsObject(k) || json_str(k, "id", &id, NULL, &e) ||
            json_str(k, "public_id", &public_id, NULL, &e) || json_str(k, "name", &name, NULL, &e))
            continue;
        const cJSON *revoked = json_get(k, "revoked");
        if (!id || strspn(id, "0123456789") != strlen(id) || cJSON_IsNumber(revoked)) continue;
        char label[72];
        snprintf(label, sizeof(label), "%.20s  %.40s", public_id ? public_id : "?",
                 name ? name : "");
        add_item(v, v->menu.n < 26 ? 'a' + v->menu.n : 0, label, DO_REVOKE, id);
    }
    cJSON_Delete(tree);
    if (v->menu.n == 0) {
        v->mode = MODE_NORMAL;
        view_say(v, now_us, "this tenant has no live key");
    }
}
