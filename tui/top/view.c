/* view.c -- the state of loratop's user interface: which rows each table shows, selection, modes,
 * and the effect of keys and the mouse.
 *
 *   key --> view_key(): by mode (search, filter, input, menu, confirm, ..) else screen, table,
 *   program keys
 *   view_refresh(): rows of the data that match filter, class and tenant --> sorted index list
 *
 * It draws nothing and calls nothing: view_draw() (view_draw.c, view_panels.c) turns the state into
 * cells, and actions (view_menu.c) are left for the caller to carry out. Time is an argument, so
 * tests run keys against recorded data.
 *
 * The selection follows the id of its row, not its position, so it stays on a tenant while the
 * order changes. Enter goes down a trail (class, tenant, request, adapter), Esc goes back; the
 * trail keeps the filters.
 *
 * Threads: one.
 */
#include "tui/top/view.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"

enum { SAY_US = 6000000, FRAME_ROWS = 5 /* title, tabs, heading, message, keys */ };

static const char *const screen_names[SCREENS] = {"overview", "tenants", "adapters", "requests",
                                                  "engine",   "slo",     "events",   "limits",
                                                  "servers",  "ended"};

const char *view_screen_name(screen s)
{
    return screen_names[s];
}

int view_screen_of(const char *name)
{
    for (int i = 0; i < SCREENS; i++) {
        if (strcmp(name, screen_names[i]) == 0) return i;
    }
    return -1;
}

bool view_init(view *v, const char *const *names, int n_servers)
{
    memset(v, 0, sizeof(*v));
    v->server = calloc((size_t)n_servers, sizeof(*v->server));
    if (!v->server) return false;
    v->n_servers = n_servers;
    v->interval_ms = 1000;
    v->rows = 24;
    v->cols = 80;
    for (int i = 0; i < n_servers; i++) {
        snprintf(v->server[i].name, sizeof(v->server[i].name), "%s", names[i]);
        if (!topdata_init(&v->server[i].data)) return false;
    }
    for (int t = 0; t < VIEW_TABLES; t++) {
        v->table[t].sort = view_default_sort(t);
        v->table[t].descending = true;
        v->table[t].stale = true;
    }
    return true;
}

void view_clear(view *v)
{
    for (int i = 0; v->server && i < v->n_servers; i++) topdata_clear(&v->server[i].data);
    free(v->server);
    for (int t = 0; t < VIEW_TABLES; t++) {
        free(v->table[t].order);
        free(v->table[t].sorted);
        free(v->table[t].closed);
    }
    memset(v, 0, sizeof(*v));
}

void view_say(view *v, int64_t now_us, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(v->message, sizeof(v->message), fmt, ap);
    va_end(ap);
    v->message_until_us = now_us + SAY_US;
}

int view_table_of(screen s)
{
    switch (s) {
    case SCREEN_TENANTS: return TABLE_TENANTS;
    case SCREEN_ADAPTERS: return TABLE_ADAPTERS;
    case SCREEN_REQUESTS: return TABLE_REQUESTS;
    case SCREEN_EVENTS: return TABLE_EVENTS;
    case SCREEN_LIMITS: return VIEW_LIMITS;
    case SCREEN_ENDED: return VIEW_ENDED;
    default: return -1;
    }
}

topdata *view_data(view *v)
{
    return &v->server[v->current].data;
}

int view_source(int table)
{
    return table == VIEW_LIMITS ? TABLE_TENANTS : table;
}

const proto_field *view_fields(int table)
{
    return table == VIEW_ENDED ? top_ended_fields : proto_table_fields[view_source(table)];
}

rowset *view_rows(view *v, int table)
{
    topdata *d = view_data(v);
    return table == VIEW_ENDED ? &d->ended : &d->table[view_source(table)];
}

int view_tabs(const view *v)
{
    return v->n_servers > 1 ? SCREEN_SERVERS + 1 : SCREEN_SERVERS;
}

table_view *view_table(view *v)
{
    int t = view_table_of(v->screen);
    return t < 0 ? NULL : &v->table[t];
}

/* ------------------------------------------------------------------ visible rows -- */

typedef struct {
    const char *group, *text; /* group: the tenant, in a tree */
    double number;
    uint64_t id;
    uint32_t index;
    bool descending;
} sort_key;

static int compare(const void *pa, const void *pb)
{
    const sort_key *a = pa, *b = pb;
    int c = a->group ? strcmp(a->group, b->group) : 0;
    if (c) return c;
    c = a->text ? strcmp(a->text, b->text) : a->number < b->number ? -1 : a->number > b->number;
    if (c == 0) c = a->id < b->id ? -1 : a->id > b->id;
    return a->descending ? -c : c;
}

static bool room_for(table_view *t, size_t n)
{
    if (n <= t->cap) return true;
    uint32_t *order = realloc(t->order, 2 * n * sizeof(*order));
    if (order) t->order = order;
    uint32_t *sorted = realloc(t->sorted, 2 * n * sizeof(*sorted));
    if (sorted) t->sorted = sorted;
    if (!order || !sorted) return false;
    t->cap = 2 * n;
    return true;
}

static void find_selected(view *v, int table)
{
    table_view *t = &v->table[table];
    const rowset *r = view_rows(v, table);
    int64_t want = t->selected_id ? rowset_find(r, t->selected_id) : -1;
    for (size_t i = 0; want >= 0 && i < t->n; i++) {
        if (t->order[i] == (uint32_t)want) {
            t->selected = i;
            return;
        }
    }
    if (t->selected >= t->n) t->selected = t->n ? t->n - 1 : 0;
}

/* Does the tenant have requests of the class now, or would those that ask for none be? */
static bool uses_class(view *v, const proto_tenant *t, const char *class_name)
{
    const topdata *d = view_data(v);
    const rowset *r = &d->table[TABLE_REQUESTS];
    for (int i = 0; !t->default_class[0] && i < d->n_class; i++) {
        if (d->classes[i].is_default && strcmp(d->classes[i].name, class_name) == 0) return true;
    }
    for (size_t i = 0; i < r->n; i++) {
        const proto_request *q = rowset_row(r, i);
        if (strcmp(q->class_name, class_name) == 0 && strcmp(q->tenant, t->name) == 0) return true;
    }
    return strcmp(t->default_class, class_name) == 0;
}

/* Of the class and the tenant that Enter has led to? */
static bool is_of(view *v, int table, const void *row)
{
    const table_view *t = &v->table[table];
    if (t->tenant[0] && strcmp(view_tenant_of(table, row), t->tenant) != 0) return false;
    if (!t->class_name[0]) return true;
    if (table == TABLE_TENANTS) return uses_class(v, row, t->class_name);
    if (table == VIEW_ENDED) return strcmp(((const top_ended *)row)->class, t->class_name) == 0;
    return table != TABLE_REQUESTS ||
           strcmp(((const proto_request *)row)->class_name, t->class_name) == 0;
}

void view_refresh(view *v, int table)
{
    table_view *t = &v->table[table];
    const topdata *d = view_data(v);
    const rowset *r = view_rows(v, table);
    int n_columns;
    const view_column *column = &view_columns(table, &n_columns)[t->sort];
    if (!t->stale && t->seen == d->version) return;
    sort_key *keys = malloc((r->n + 1) * sizeof(*keys));
    if (!keys || !room_for(t, 2 * r->n + 1)) {
        free(keys);
        return;
    }
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        const void *row = rowset_row(r, i);
        if (!view_matches(table, row, t->filter) || !is_of(v, table, row)) continue;
        sort_key *k = &keys[n++];
        *k = (sort_key){.id = r->side[i].id, .index = (uint32_t)i, .descending = t->descending};
        k->number = column->key(column, &(view_row){row, &r->side[i], d->server.now_us}, &k->text);
        if (t->tree) k->group = view_tenant_of(table, row);
    }
    qsort(keys, n, sizeof(*keys), compare);
    bool folded = false;
    t->n = 0;
    t->n_sorted = n;
    for (size_t i = 0; i < n; i++) {
        t->sorted[i] = keys[i].index;
        if (t->tree && (i == 0 || strcmp(keys[i].group, keys[i - 1].group) != 0)) {
            t->order[t->n++] = keys[i].index | VIEW_GROUP;
            folded = view_is_folded(t, keys[i].group);
        }
        if (!folded) t->order[t->n++] = keys[i].index;
    }
    free(keys);
    t->seen = d->version;
    t->stale = false;
    find_selected(v, table);
}

static int page_rows(const view *v)
{
    return v->rows > FRAME_ROWS + 1 ? v->rows - FRAME_ROWS : 1;
}

static void select_row(view *v, int table, int64_t at)
{
    table_view *t = &v->table[table];
    view_refresh(v, table);
    if (t->n == 0) return;
    if (at < 0) at = 0;
    if (at >= (int64_t)t->n) at = (int64_t)t->n - 1;
    t->selected = (size_t)at;
    uint32_t i = t->order[at];
    t->selected_id = i & VIEW_GROUP ? 0 : view_rows(v, table)->side[i].id;
}

static void set_sort(view *v, int column)
{
    table_view *t = view_table(v);
    int n;
    if (!t) return;
    const view_column *c = view_columns(view_table_of(v->screen), &n);
    t->sort = (column + n) % n;
    t->descending = c[t->sort].right;
    t->stale = true;
}

/* ------------------------------------------------------------------------ typing -- */

static void find_next(view *v, size_t from)
{
    int table = view_table_of(v->screen);
    if (table < 0 || !v->search[0]) return;
    table_view *t = &v->table[table];
    view_refresh(v, table);
    for (size_t k = 0; k < t->n; k++) {
        size_t i = (from + k) % t->n;
        if (t->order[i] & VIEW_GROUP) continue;
        if (view_matches(table, rowset_row(view_rows(v, table), t->order[i]), v->search)) {
            select_row(v, table, (int64_t)i);
            return;
        }
    }
    view_say(v, v->now_us, "nothing matches '%s'", v->search);
}

static void typed(view *v)
{
    table_view *t = view_table(v);
    if (!t) return;
    if (v->mode == MODE_SEARCH) {
        snprintf(v->search, sizeof(v->search), "%s", v->input);
        find_next(v, t->selected);
    } else if (v->mode == MODE_FILTER) {
        snprintf(t->filter, sizeof(t->filter), "%s", v->input);
        t->stale = true;
    }
}

static void show_screen(view *v, int s);

/* ":" and the beginning of a screen's name; behind it, a filter of its table. */
static void command(view *v)
{
    size_t n = strcspn(v->input, " ");
    int s = 0;
    v->mode = MODE_NORMAL;
    if (strncmp(v->input, "quit", n) == 0 && n > 0) v->quit = true;
    while (s < SCREENS && (n == 0 || strncmp(v->input, screen_names[s], n) != 0)) s++;
    if (v->quit || n == 0) return;
    if (s == SCREENS) {
        view_say(v, v->now_us, "':%s' is no screen", v->input);
        return;
    }
    show_screen(v, s);
    table_view *t = view_table(v);
    if (!t) return;
    snprintf(t->filter, sizeof(t->filter), "%s", v->input + n + (v->input[n] == ' '));
    t->stale = true;
}

static void input_key(view *v, int key)
{
    size_t n = strlen(v->input);
    if (key == KEYS_ESC) {
        if (v->mode == MODE_FILTER) { /* the filter goes with it */
            v->input[0] = 0;
            typed(v);
        }
        v->mode = MODE_NORMAL;
        return;
    }
    if (key == KEYS_ENTER) {
        if (v->mode == MODE_INPUT)
            view_input_done(v);
        else if (v->mode == MODE_COMMAND)
            command(v);
        else
            v->mode = MODE_NORMAL;
        return;
    }
    if (key == KEYS_BACKSPACE && n > 0) {
        v->input[n - 1] = 0;
    } else if (key >= 0x20 && key < 0x7f && n + 1 < sizeof(v->input)) {
        v->input[n] = (char)key;
        v->input[n + 1] = 0;
    } else if (key == KEYS_F1 + 2 && v->mode == MODE_SEARCH) {
        find_next(v, view_table(v)->selected + 1);
        return;
    }
    typed(v);
}

static void begin_input(view *v, view_mode mode)
{
    table_view *t = view_table(v);
    if (!t) return;
    v->mode = mode;
    snprintf(v->input, sizeof(v->input), "%s", mode == MODE_FILTER ? t->filter : "");
}

/* ------------------------------------------------------------------- down and back -- */

static void narrow(table_view *t, const char *class_name, const char *tenant)
{
    snprintf(t->class_name, sizeof(t->class_name), "%s", class_name);
    snprintf(t->tenant, sizeof(t->tenant), "%s", tenant);
    t->stale = true;
}

/* All is shown again. */
static void forget_trail(view *v)
{
    for (int t = 0; t < VIEW_TABLES; t++) {
        if (v->table[t].class_name[0] || v->table[t].tenant[0]) narrow(&v->table[t], "", "");
    }
    v->n_back = 0;
}

static void go_down(view *v, screen to, const char *class_name, const char *tenant, uint64_t id)
{
    if (v->n_back == VIEW_BACK_MAX) return;
    view_place *p = &v->back[v->n_back++];
    const table_view *from = view_table(v);
    *p = (view_place){.screen = v->screen};
    if (from) {
        p->selected_id = from->selected_id;
        memcpy(p->class_name, from->class_name, sizeof(p->class_name));
        memcpy(p->tenant, from->tenant, sizeof(p->tenant));
    }
    v->screen = to;
    table_view *t = view_table(v);
    narrow(t, class_name, tenant);
    t->filter[0] = 0;
    t->selected_id = id;
    t->selected = 0;
}

static bool go_back(view *v)
{
    if (v->n_back == 0) return false;
    const view_place *p = &v->back[--v->n_back];
    table_view *t = view_table(v);
    if (t) narrow(t, "", "");
    v->screen = p->screen;
    t = view_table(v);
    if (t) {
        narrow(t, p->class_name, p->tenant);
        t->selected_id = p->selected_id;
    }
    return true;
}

/* The adapter's row of a request's "name@3"; 0: it has none. */
static uint64_t adapter_of(view *v, int table, const void *row)
{
    const rowset *r = view_rows(v, TABLE_ADAPTERS);
    if (table != TABLE_REQUESTS && table != VIEW_ENDED) return 0;
    const char *label = table == VIEW_ENDED ? ((const top_ended *)row)->model
                                            : ((const proto_request *)row)->adapter;
    size_t n = strcspn(label, "@");
    for (size_t i = 0; n > 0 && i < r->n; i++) {
        const proto_adapter *a = rowset_row(r, i);
        if (strcmp(a->tenant, view_tenant_of(table, row)) == 0 && strlen(a->name) == n &&
            memcmp(a->name, label, n) == 0)
            return r->side[i].id;
    }
    return 0;
}

/* Class to tenants, tenant to requests, request to adapter; what has nothing below shows all its
 * fields. */
static void enter(view *v)
{
    int table = view_table_of(v->screen);
    const topdata *d = view_data(v);
    if (table < 0) {
        bool classes = v->screen == SCREEN_OVERVIEW || v->screen == SCREEN_SLO;
        if (classes && v->class_at < (size_t)d->n_class)
            go_down(v, SCREEN_TENANTS, d->classes[v->class_at].name, "", 0);
        return;
    }
    table_view *t = view_table(v);
    view_refresh(v, table);
    if (t->selected >= t->n) return;
    const void *row = rowset_row(view_rows(v, table), t->order[t->selected] & ~VIEW_GROUP);
    if (t->order[t->selected] & VIEW_GROUP) {
        view_fold(v, table, view_tenant_of(table, row));
        return;
    }
    uint64_t adapter = adapter_of(v, table, row);
    if (table == TABLE_TENANTS || table == VIEW_LIMITS)
        go_down(v, SCREEN_REQUESTS, t->class_name, ((const proto_tenant *)row)->name, 0);
    else if (adapter)
        go_down(v, SCREEN_ADAPTERS, "", view_tenant_of(table, row), adapter);
    else
        v->mode = MODE_DETAIL;
}

void view_trail(const view *v, char *out, size_t cap)
{
    const table_view *t = &v->table[view_table_of(v->screen) < 0 ? 0 : view_table_of(v->screen)];
    out[0] = 0;
    if (v->n_back > 0)
        snprintf(out, cap, "of %s%s%s   (Esc: back)", t->class_name,
                 t->class_name[0] && t->tenant[0] ? ", " : "", t->tenant);
}

/* -------------------------------------------------------------------------- keys -- */

static void show_screen(view *v, int s)
{
    if (s == SCREEN_SERVERS && v->n_servers < 2) s = 0;
    forget_trail(v);
    v->screen = (screen)s;
}

static void step_screen(view *v, int by)
{
    int n = view_tabs(v), at = v->screen == SCREEN_ENDED ? SCREEN_REQUESTS : (int)v->screen;
    show_screen(v, (at + by + n) % n);
}

/* Sideways over the columns; one at least stays beside the first. */
static void scroll_columns(view *v, int by)
{
    int n, shown = 0, table = view_table_of(v->screen);
    table_view *t = &v->table[table];
    view_layout l;
    view_lay_out(v, table, v->cols, &l);
    (void)view_columns(table, &n);
    for (int i = 0; i < n; i++) shown += !(t->hidden >> i & 1U);
    if (by > 0 && !l.more) return;
    t->shift += by;
    if (t->shift > shown - 2) t->shift = shown - 2;
    if (t->shift < 0) t->shift = 0;
}

static void change_interval(view *v, bool longer)
{
    static const int64_t steps[] = {100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000};
    int n = (int)(sizeof(steps) / sizeof(steps[0])), i = 0;
    while (i < n - 1 && steps[i] < v->interval_ms) i++;
    i += longer ? 1 : -1;
    v->interval_ms = steps[i < 0 ? 0 : i >= n ? n - 1 : i];
    view_say(v, v->now_us, "every %.1f s", (double)v->interval_ms / 1e3);
}

static void tag(view *v)
{
    int table = view_table_of(v->screen);
    table_view *t = view_table(v);
    if (!t) return;
    view_refresh(v, table);
    if (t->selected < t->n && !(t->order[t->selected] & VIEW_GROUP)) {
        row_side *s = &view_rows(v, table)->side[t->order[t->selected]];
        s->tagged = !s->tagged;
    }
    select_row(v, table, (int64_t)t->selected + 1);
}

static void untag_all(view *v)
{
    int table = view_table_of(v->screen);
    if (table < 0) return;
    rowset *r = view_rows(v, table);
    for (size_t i = 0; i < r->n; i++) r->side[i].tagged = false;
}

static void use_server(view *v, size_t i)
{
    if (i >= (size_t)v->n_servers) return;
    v->current = (int)i;
    for (int t = 0; t < VIEW_TABLES; t++) {
        v->table[t].stale = true;
        v->table[t].selected_id = 0;
    }
    forget_trail(v);
    v->class_at = 0;
    v->screen = SCREEN_OVERVIEW;
}

static size_t moved(size_t at, int64_t by, int64_t n)
{
    int64_t to = (int64_t)at + by;
    return (size_t)(to < 0 || n == 0 ? 0 : to >= n ? n - 1 : to);
}

static bool move_key(view *v, int key)
{
    int64_t by = 0;
    switch (key) {
    case KEYS_UP:
    case 'k': by = -1; break;
    case KEYS_DOWN:
    case 'j': by = 1; break;
    case KEYS_PAGE_UP: by = -page_rows(v); break;
    case KEYS_PAGE_DOWN: by = page_rows(v); break;
    case KEYS_HOME:
    case 'g': by = INT32_MIN; break;
    case KEYS_END:
    case 'G': by = INT32_MAX; break;
    default: return false;
    }
    if (v->screen == SCREEN_SERVERS) {
        v->server_at = moved(v->server_at, by, v->n_servers);
    } else if (v->screen == SCREEN_OVERVIEW || v->screen == SCREEN_SLO) {
        v->class_at = moved(v->class_at, by, view_data(v)->n_class);
    } else if (view_table(v)) {
        select_row(v, view_table_of(v->screen), (int64_t)view_table(v)->selected + by);
    }
    return true;
}

/* From the requests that run to those that have ended, of the same class and tenant; and back. */
static void swap_ended(view *v)
{
    const table_view *from = view_table(v);
    v->screen = v->screen == SCREEN_ENDED ? SCREEN_REQUESTS : SCREEN_ENDED;
    narrow(view_table(v), from->class_name, from->tenant);
}

/* The keys that mean something on a table. False: it is none of them, or there is no table. */
static bool table_key(view *v, int key)
{
    table_view *t = view_table(v);
    if (!t) return false;
    switch (key) {
    case '/':
    case KEYS_F1 + 2: begin_input(v, MODE_SEARCH); return true;
    case '\\':
    case KEYS_F1 + 3: begin_input(v, MODE_FILTER); return true;
    case 'n': find_next(v, t->selected + 1); return true;
    case '<':
    case ',': set_sort(v, t->sort - 1); return true;
    case '>':
    case '.': set_sort(v, t->sort + 1); return true;
    case 'I':
        t->descending = !t->descending;
        t->stale = true;
        return true;
    case 't':
    case KEYS_F1 + 4:
        t->tree = !t->tree && view_source(view_table_of(v->screen)) != TABLE_TENANTS;
        t->stale = true;
        return true;
    case ' ': tag(v); return true;
    case 'U': untag_all(v); return true;
    case KEYS_F1 + 5: view_open_sort(v); return true;
    case 'd':
        if (t->selected < t->n) v->mode = MODE_DETAIL;
        return true;
    case KEYS_RIGHT: scroll_columns(v, 1); return true;
    case KEYS_LEFT: scroll_columns(v, -1); return true;
    case 'C': view_open_columns(v); return true;
    case 'e':
        if (v->screen == SCREEN_REQUESTS || v->screen == SCREEN_ENDED) swap_ended(v);
        return true;
    default: return false;
    }
}

/* Keys that go to another screen. */
static bool screen_key(view *v, int key)
{
    switch (key) {
    case '0':
    case KEYS_F1 + 1: show_screen(v, SCREEN_SERVERS); return true;
    case '\t':
    case KEYS_RIGHT: step_screen(v, 1); return true;
    case KEYS_BACKTAB:
    case KEYS_LEFT: step_screen(v, -1); return true;
    default: break;
    }
    bool number = key >= '1' && key < '1' + SCREEN_SERVERS;
    if (number) show_screen(v, key - '1');
    return number;
}

/* Keys that do the same on every screen. */
static void program_key(view *v, int key)
{
    switch (key) {
    case 'q':
    case 'Q':
    case KEYS_F10: v->quit = true; break;
    case 'H':
    case 'h':
    case '?':
    case KEYS_F1:
        v->mode = MODE_HELP;
        v->help_top = 0;
        break;
    case 'p':
    case 'P':
        v->paused = !v->paused;
        view_say(v, v->now_us, v->paused ? "paused" : "goes on");
        break;
    case '+':
    case '=':
    case KEYS_F1 + 7: change_interval(v, true); break;
    case '-':
    case KEYS_F1 + 6: change_interval(v, false); break;
    case 'v': v->histograms = !v->histograms; break;
    case 'a':
    case KEYS_F1 + 8: view_open_menu(v); break;
    case ':':
        v->mode = MODE_COMMAND;
        v->input[0] = 0;
        break;
    default: break;
    }
}

static void normal_key(view *v, int key)
{
    if (view_table(v)) view_refresh(v, view_table_of(v->screen));
    if (move_key(v, key) || table_key(v, key) || screen_key(v, key)) return;
    if (key == KEYS_ENTER && v->screen == SCREEN_SERVERS)
        use_server(v, v->server_at);
    else if (key == KEYS_ENTER)
        enter(v);
    else if (key == KEYS_ESC && go_back(v))
        return;
    else
        program_key(v, key);
}

void view_key(view *v, int key, int64_t now_us)
{
    v->now_us = now_us;
    if (key == '\r') key = KEYS_ENTER;
    if (key == 127 || key == 8) key = KEYS_BACKSPACE;
    switch (v->mode) {
    case MODE_NORMAL: normal_key(v, key); break;
    case MODE_SEARCH:
    case MODE_FILTER:
    case MODE_COMMAND:
    case MODE_INPUT: input_key(v, key); break;
    case MODE_MENU: view_menu_key(v, key); break;
    case MODE_CONFIRM: view_confirm_key(v, key); break;
    case MODE_HELP:
        if (key == KEYS_DOWN || key == 'j' || key == KEYS_PAGE_DOWN)
            v->help_top += key == KEYS_PAGE_DOWN ? 10 : 1;
        else if (key == KEYS_UP || key == 'k' || key == KEYS_PAGE_UP)
            v->help_top -= key == KEYS_PAGE_UP ? 10 : 1;
        else
            v->mode = MODE_NORMAL;
        if (v->help_top < 0) v->help_top = 0;
        break;
    case MODE_DETAIL:
        if (!move_key(v, key)) v->mode = MODE_NORMAL;
        break;
    }
}

/* Behind the line in words, where there is one. */
int view_heading(const view *v)
{
    bool sum = v->screen == SCREEN_ADAPTERS || v->screen == SCREEN_LIMITS;
    return sum && v->rows > 10 ? 3 : 2;
}

int view_tab_gap(const view *v)
{
    return v->cols >= 90;
}

/* The tabs stand in row 1, each " N Name", with a space behind where there is room. */
static int tab_at(const view *v, int col)
{
    int x = 0, n = view_tabs(v);
    for (int i = 0; i < n; i++) {
        x += (int)strlen(screen_names[i]) + 3 + view_tab_gap(v);
        if (col < x) return i;
    }
    return -1;
}

static void click_heading(view *v, int col)
{
    int table = view_table_of(v->screen);
    table_view *t = &v->table[table];
    view_layout l;
    view_lay_out(v, table, v->cols, &l);
    for (int i = 0; i < l.n; i++) {
        if (col > l.at[i].x + l.at[i].width) continue;
        if (t->sort == l.at[i].column)
            t->descending = !t->descending;
        else
            set_sort(v, l.at[i].column);
        t->stale = true;
        return;
    }
}

void view_mouse(view *v, int row, int col, int button, int64_t now_us)
{
    v->now_us = now_us;
    if (button == 4 || button == 5) {
        view_key(v, button == 4 ? KEYS_UP : KEYS_DOWN, now_us);
        return;
    }
    if (v->mode == MODE_HELP || v->mode == MODE_DETAIL) {
        v->mode = MODE_NORMAL;
        return;
    }
    if (v->mode != MODE_NORMAL) return;
    int table = view_table_of(v->screen), tab = tab_at(v, col);
    if (row == 1 && tab >= 0) {
        show_screen(v, tab);
    } else if (row == v->rows - 1) {
        normal_key(v, KEYS_F1 + col / 8);
    } else if (table >= 0 && row == view_heading(v)) {
        click_heading(v, col);
    } else if (table >= 0 && row > view_heading(v) && row < v->rows - 2) {
        size_t at = v->table[table].top + (size_t)(row - view_heading(v) - 1);
        bool again = at == v->table[table].selected;
        if (at < v->table[table].n) select_row(v, table, (int64_t)at);
        if (again && at < v->table[table].n) enter(v);
    } else if (v->screen == SCREEN_SERVERS && row > 2) {
        use_server(v, (size_t)(row - 3));
    }
}
