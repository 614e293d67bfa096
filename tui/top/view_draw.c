/* view_draw.c -- the frame around every screen, the tables, and what lies over them.
 *
 *      row 0       title: server, model, uptime, state, what is wrong; interval, clock
 *      row 1       tabs, one for each screen
 *      rows 2...   the screen's own lines, or a table
 *      second to   a question, what is being typed, why data is old, the latest message, or the way
 *      last row    back (view_trail()), the first of these that there is
 *      last row    what F1 to F10 do
 *
 * Everything is drawn anew into cells; term.c sends the terminal what differs from the last
 * time. So no function here looks at what was on the screen before, and a test sees
 * the whole picture.
 *
 * Data stays on the screen while its server does not answer; is_stale() then says how old it is:
 * after three intervals, 3 s at least.
 *
 * Threads: loratop's only one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tui/text.h"
#include "tui/top/view.h"

enum { STALE_FLOOR_US = 3000000 };

static const char *const help[] = {
    "1-8 Tab S-Tab    overview, tenants, adapters, requests, engine, SLO, events, limits",
    "0 F2             all servers, and their sums (with more than one)",
    "up down j k      move; PgUp PgDn Home End g G too; the wheel",
    "left right       columns that did not fit (< > in the heading);  C  which there are",
    ": and a name     the screen of that name;  :adapters acme  with a filter",
    "/ F3, n          search, next hit;   \\ F4  filter (Esc drops it)",
    "< > F6           sort by the column before, after, or from a menu;  I  turn around",
    "t F5             tree: group by tenant, with sums; Enter on a group folds it",
    "e                requests: those that run, those that have ended; by TOOK the slowest",
    "Space, U         tag a row for an action, untag all",
    "Enter            down: class to tenants, tenant to requests, request to adapter",
    "Esc              back to where Enter was pressed;   d  all fields of a row",
    "a F9             actions on the row or the tagged rows; all ask first:",
    "                   requests: cancel;  adapters: pin, unpin, evict, warm, roll back",
    "                   tenants: suspend, resume, limits, class, revoke a key;  drain",
    "v                on the page of classes: how slow over time, or how often how slow",
    "p                pause the display;   + -  F8 F7  longer, shorter interval",
    "mouse            click tabs, headings, rows (twice: down), keys below",
    "H ? F1           this help;   q F10  quit (settings are kept)",
    "",
    "Tenants   TODAY tokens of the day, FAIR counter of fair sharing: the lowest runs first",
    "Adapters  TIER where the weights are (* pinned), USE sequences of the batch, LOAD latest load",
    "          LOAD/M, EVIC/M loads, evictions a minute; LATE missed by waiting for it; WAIT all",
    "Limits    used of what is allowed; AT LIMIT what refuses now, 429/M refusals a minute",
    "Requests  SLACK time left until its class wants the next token",
    "Ended     waited for a slot, for the adapter; prompt to first token; further ones; rest",
    "SLO%      requests that met both targets of their class: first token, and pace",
};

/* ------------------------------------------------------------------------- frame -- */

const char *view_server_state(const view_server *s, style *st)
{
    const proto_server *p = &s->data.server;
    *st = STYLE_BAD;
    if (!s->up) return "GONE";
    if (!p->healthy) return "FAILED";
    if (p->fleet_fenced) return "FENCED";
    if (p->restarting) return "RESTART";
    if (p->draining) return "draining";
    if (strcmp(p->storage, "full") == 0) return "NO SPOOL";
    if (!p->ready) return "starting";
    *st = STYLE_WARN;
    if (p->fleet_away_us > 0) return "DB away";
    if (strcmp(p->storage, "behind") == 0) return "spooling";
    *st = STYLE_GOOD;
    return "ready";
}

static void draw_title(view *v, cells *c)
{
    const view_server *s = &v->server[v->current];
    const proto_server *p = &s->data.server;
    char up[24], clock[16] = "";
    struct tm tm;
    /* A recording shows its own time. */
    time_t at = (time_t)((v->replay && s->data.any ? p->now_us : v->wall_us) / 1000000);
    if (gmtime_r(&at, &tm)) (void)strftime(clock, sizeof(clock), "%H:%M:%SZ", &tm);
    cells_fill(c, 0, 0, -1, STYLE_TITLE, ' ');
    int x = cells_printf(c, 0, 0, c->cols, STYLE_TITLE, "loratop %s", s->name);
    if (s->data.any) {
        text_span(p->uptime_s, up, sizeof(up));
        x += cells_printf(c, 0, x, c->cols - x, STYLE_TITLE, "  %s  up %s  ", p->model, up);
        style st;
        const char *state = view_server_state(s, &st);
        x += cells_text(c, 0, x, c->cols - x, st, state);
        if (p->storage[0] && strcmp(p->storage, "ok") != 0)
            x += cells_printf(c, 0, x, c->cols - x, st, ": %lld of %lld rows wait",
                              (long long)p->spool_used, (long long)p->spool_rows);
        if (p->disk_low)
            x += cells_printf(c, 0, x, c->cols - x, STYLE_WARN, "  disk low: uploads refused");
        if (p->gpu_unused[0])
            x += cells_text(c, 0, x, c->cols - x, STYLE_WARN, "  GPU UNUSED: see /readyz");
        int64_t days = (p->certificate_until_s - p->now_us / 1000000) / 86400;
        if (p->certificate_until_s && days < 14)
            x += cells_printf(c, 0, x, c->cols - x, days < 2 ? STYLE_BAD : STYLE_WARN,
                              days < 0 ? "  certificate EXPIRED" : "  certificate ends in %lld d",
                              (long long)days);
    }
    char right[64];
    snprintf(right, sizeof(right), "%s%s %.1fs %s", v->replay ? "REPLAY " : "",
             v->paused ? "PAUSED" : "", (double)v->interval_ms / 1e3, clock);
    int w = (int)strlen(right);
    if (c->cols - w > x) cells_right(c, 0, c->cols - w, w, STYLE_TITLE, right);
}

static void draw_tabs(view *v, cells *c)
{
    int x = 0, n = view_tabs(v), at = v->screen == SCREEN_ENDED ? SCREEN_REQUESTS : v->screen;
    for (int i = 0; i < n; i++) {
        char name[24];
        snprintf(name, sizeof(name), " %d %s%s", i == SCREEN_SERVERS ? 0 : i + 1,
                 view_screen_name((screen)i), view_tab_gap(v) ? " " : "");
        if (name[3] >= 'a') name[3] = (char)(name[3] - 32);
        style s = i == at ? STYLE_SELECT : STYLE_NORMAL;
        x += cells_text(c, 1, x, c->cols - x, s, name);
    }
}

/* Server away: how old is what is shown, and why. */
static bool is_stale(const view *v, char *why, size_t cap)
{
    const view_server *s = &v->server[v->current];
    int64_t limit = 3 * v->interval_ms * 1000;
    char age[24];
    if (limit < STALE_FLOOR_US) limit = STALE_FLOOR_US;
    if (v->replay) return false;
    int64_t old = v->now_us - s->answered_us;
    if (s->up && (v->paused || old < limit)) return false;
    text_span(old / 1000000, age, sizeof(age));
    if (s->answered_us == 0)
        snprintf(why, cap, "no answer yet: %s", s->error[0] ? s->error : "connecting");
    else
        snprintf(why, cap, "data is %s old: %s; it is tried again every few seconds", age,
                 s->error[0] ? s->error : "no answer");
    return true;
}

static void draw_bottom(view *v, cells *c, bool stale, const char *why)
{
    static const char *const keys[10] = {"Help", "Servrs", "Search", "Filter", "Tree",
                                         "Sort", "Faster", "Slower", "Action", "Quit"};
    int row = c->rows - 2;
    if (v->mode == MODE_COMMAND) {
        (void)cells_printf(c, row, 0, -1, STYLE_ACCENT, ":%s_   (a screen, then a filter; quit)",
                           v->input);
    } else if (v->mode == MODE_SEARCH || v->mode == MODE_FILTER) {
        (void)cells_printf(c, row, 0, -1, STYLE_ACCENT, "%s: %s_",
                           v->mode == MODE_SEARCH ? "Search" : "Filter", v->input);
    } else if (v->mode == MODE_INPUT) {
        (void)cells_printf(c, row, 0, -1, STYLE_WARN, "%s%s_", v->question, v->input);
    } else if (v->mode == MODE_CONFIRM) {
        (void)cells_text(c, row, 0, -1, STYLE_WARN, v->question);
    } else if (stale) {
        (void)cells_text(c, row, 0, -1, STYLE_BAD, why);
    } else if (v->message[0] && v->now_us < v->message_until_us) {
        (void)cells_text(c, row, 0, -1, STYLE_ACCENT, v->message);
    } else {
        char trail[3 * PROTO_NAME_CAP];
        view_trail(v, trail, sizeof(trail));
        (void)cells_text(c, row, 0, -1, STYLE_ACCENT, trail);
    }
    int x = 0, w = c->cols >= 80 ? 8 : c->cols / 10;
    for (int i = 0; i < 10 && w > 2; i++, x += w) {
        char f[8];
        snprintf(f, sizeof(f), "F%d", i + 1);
        (void)cells_text(c, c->rows - 1, x, w, STYLE_DIM, f);
        int k = (int)strlen(f);
        cells_fill(c, c->rows - 1, x + k, w - k, STYLE_KEY, ' ');
        if (w - k >= 4) (void)cells_text(c, c->rows - 1, x + k, w - k, STYLE_KEY, keys[i]);
    }
}

/* ------------------------------------------------------------------------- tables -- */

static void draw_cell(cells *c, int y, int x, int w, bool right, style s, const char *text)
{
    if (right)
        cells_right(c, y, x, w, s, text);
    else
        (void)cells_text(c, y, x, w, s, text);
}

static void draw_row(view *v, cells *c, int table, int y, uint32_t i, const view_layout *l)
{
    int n;
    const view_column *columns = view_columns(table, &n);
    const rowset *r = view_rows(v, table);
    const view_row row = {rowset_row(r, i), &r->side[i], view_data(v)->server.now_us};
    for (int k = 0; k < l->n; k++) {
        const view_column *col = &columns[l->at[k].column];
        char text[PROTO_TEXT_CAP + 4] = "";
        style s = col->cell(col, &row, text, sizeof(text));
        if (row.side->tagged) s = STYLE_TAGGED;
        draw_cell(c, y, l->at[k].x, l->at[k].width, col->right, s, text);
    }
}

/* Whose, how many, and what they add up to, where the name leaves room for it. */
static void draw_group(view *v, cells *c, int table, int y, uint32_t i, const view_layout *l)
{
    _Alignas(max_align_t) char row[VIEW_ROW_BYTES];
    row_side side;
    size_t first, n;
    int n_column;
    const view_column *columns = view_columns(table, &n_column);
    const char *tenant = view_tenant_of(table, rowset_row(view_rows(v, table), i));
    bool folded = view_is_folded(&v->table[table], tenant);
    view_group(v, table, tenant, &first, &n);
    int x = cells_printf(c, y, 0, -1, STYLE_ACCENT, "%s %s (%zu)",
                         folded    ? "+"
                         : c->utf8 ? "\xe2\x96\xbc"
                                   : "-",
                         tenant[0] ? tenant : "(server)", n);
    view_group_sum(v, table, first, n, row, &side);
    const view_row sums = {row, &side, view_data(v)->server.now_us};
    for (int k = 0; k < l->n; k++) {
        const view_column *col = &columns[l->at[k].column];
        char text[PROTO_TEXT_CAP + 4] = "";
        if (col->sum == SUM_NONE || l->at[k].x <= x) continue;
        style s = col->cell(col, &sums, text, sizeof(text));
        draw_cell(c, y, l->at[k].x, l->at[k].width, col->right, s, text);
    }
}

static void draw_titles(const view *v, cells *c, int table, int top, const view_layout *l)
{
    int n;
    const view_column *columns = view_columns(table, &n);
    const table_view *t = &v->table[table];
    cells_fill(c, top, 0, -1, STYLE_HEAD, ' ');
    for (int k = 0; k < l->n; k++) {
        const view_column *col = &columns[l->at[k].column];
        char title[24];
        bool sorted = l->at[k].column == t->sort;
        snprintf(title, sizeof(title), "%s%s", col->title,
                 !sorted         ? ""
                 : t->descending ? "v"
                                 : "^");
        draw_cell(c, top, l->at[k].x, l->at[k].width, col->right,
                  sorted ? STYLE_SELECT : STYLE_HEAD, title);
    }
    if (t->shift > 0 && l->n > 1) (void)cells_text(c, top, l->at[1].x - 1, 1, STYLE_SELECT, "<");
    if (l->more) (void)cells_text(c, top, c->cols - 1, 1, STYLE_SELECT, ">");
}

/* So that the selected row is among those that are shown. */
static void scroll(table_view *t, int rows)
{
    if (t->selected < t->top) t->top = t->selected;
    if (rows > 0 && t->selected >= t->top + (size_t)rows) t->top = t->selected - (size_t)rows + 1;
    if (t->top >= t->n) t->top = 0;
}

/* Which of how many, in the line of the tabs where there is room. */
static void draw_count(view *v, cells *c, int table)
{
    const table_view *t = &v->table[table];
    char count[VIEW_INPUT_MAX + 64];
    int n = snprintf(count, sizeof(count), "%s%s%s%zu of %zu", t->filter[0] ? "filter '" : "",
                     t->filter, t->filter[0] ? "' " : "", t->n ? t->selected + 1 : 0, t->n);
    if (t->n_sorted < view_rows(v, table)->n)
        snprintf(count + n, sizeof(count) - (size_t)n, " (%zu)", view_rows(v, table)->n);
    int w = (int)strlen(count);
    if (c->cols > w + 78 && table == view_table_of(v->screen))
        cells_right(c, 1, c->cols - w, w, STYLE_DIM, count);
}

void view_draw_table(view *v, cells *c, int table, int top, int rows)
{
    table_view *t = &v->table[table];
    view_refresh(v, table);
    view_layout l;
    view_lay_out(v, table, c->cols, &l);
    draw_titles(v, c, table, top, &l);
    rows--;
    scroll(t, rows);
    for (int y = 0; y < rows && t->top + (size_t)y < t->n; y++) {
        size_t at = t->top + (size_t)y;
        uint32_t i = t->order[at];
        if (i & VIEW_GROUP)
            draw_group(v, c, table, top + 1 + y, i & ~VIEW_GROUP, &l);
        else
            draw_row(v, c, table, top + 1 + y, i, &l);
        if (at == t->selected) cells_paint(c, top + 1 + y, 0, -1, STYLE_SELECT);
    }
    if (t->n == 0) {
        (void)cells_text(c, top + 1, 1, -1, STYLE_DIM,
                         t->filter[0] ? "nothing matches the filter" : "none");
    }
    draw_count(v, c, table);
}

/* ------------------------------------------------------------------------ overlays -- */

static void draw_box(cells *c, int top, int left, int h, int w, const char *title)
{
    uint32_t across = c->utf8 ? 0x2500 : '-', down = c->utf8 ? 0x2502 : '|';
    for (int y = 0; y < h; y++) {
        cells_fill(c, top + y, left, w, STYLE_NORMAL, y == 0 || y == h - 1 ? across : ' ');
        cells_fill(c, top + y, left, 1, STYLE_NORMAL, y == 0 || y == h - 1 ? '+' : down);
        cells_fill(c, top + y, left + w - 1, 1, STYLE_NORMAL, y == 0 || y == h - 1 ? '+' : down);
    }
    (void)cells_printf(c, top, left + 2, w - 4, STYLE_TITLE, " %s ", title);
}

static void draw_help(view *v, cells *c)
{
    int n = (int)(sizeof(help) / sizeof(help[0])), h = n + 2, w = c->cols < 92 ? c->cols : 92;
    if (h > c->rows - 2) h = c->rows - 2;
    if (v->help_top > n - (h - 2)) v->help_top = n - (h - 2);
    int left = (c->cols - w) / 2;
    draw_box(c, 1, left, h, w, "Help (any key closes)");
    for (int y = 0; y < h - 2; y++) {
        (void)cells_text(c, 2 + y, left + 2, w - 4, STYLE_NORMAL, help[v->help_top + y]);
    }
}

static void draw_menu(view *v, cells *c)
{
    const view_menu *m = &v->menu;
    int w = 56 < c->cols ? 56 : c->cols, h = m->n + 2, first = 0;
    if (h > c->rows - 3) h = c->rows - 3;
    if (m->at >= h - 2) first = m->at - (h - 2) + 1;
    int left = (c->cols - w) / 2, top = (c->rows - h) / 2;
    draw_box(c, top, left, h, w, m->title);
    for (int y = 0; y < h - 2 && first + y < m->n; y++) {
        int i = first + y;
        style s = i == m->at ? STYLE_SELECT : STYLE_NORMAL;
        cells_fill(c, top + 1 + y, left + 1, w - 2, s, ' ');
        if (m->item[i].key)
            (void)cells_printf(c, top + 1 + y, left + 2, 3, s, "%c", m->item[i].key);
        (void)cells_text(c, top + 1 + y, left + 5, w - 7, s, m->item[i].label);
    }
}

static void draw_detail(view *v, cells *c)
{
    int table = view_table_of(v->screen), y = 1;
    const table_view *t = view_table(v);
    if (table < 0 || t->selected >= t->n || t->order[t->selected] & VIEW_GROUP) {
        v->mode = MODE_NORMAL;
        return;
    }
    const void *row = rowset_row(view_rows(v, table), t->order[t->selected]);
    const proto_field *f = view_fields(table);
    int n = 0;
    while (f[n].name) n++;
    int w = c->cols < 76 ? c->cols : 76, h = n + 2 < c->rows - 2 ? n + 2 : c->rows - 2;
    int left = (c->cols - w) / 2;
    draw_box(c, 1, left, h, w, "Details (any key closes)");
    for (; f->name && y < h - 1; f++, y++) {
        const char *at = (const char *)row + f->offset;
        (void)cells_text(c, 1 + y, left + 2, 22, STYLE_DIM, f->name);
        int x = left + 25, room = w - 27;
        switch (f->kind) {
        case PROTO_TEXT: (void)cells_text(c, 1 + y, x, room, STYLE_NORMAL, at); break;
        case PROTO_INT:
            (void)cells_printf(c, 1 + y, x, room, STYLE_NORMAL, "%lld",
                               (long long)*(const int64_t *)(const void *)at);
            break;
        case PROTO_NUM:
            (void)cells_printf(c, 1 + y, x, room, STYLE_NORMAL, "%.6g",
                               *(const double *)(const void *)at);
            break;
        case PROTO_BOOL:
            (void)cells_text(c, 1 + y, x, room, STYLE_NORMAL,
                             *(const bool *)(const void *)at ? "yes" : "no");
            break;
        }
    }
}

void view_draw(view *v, cells *c, int64_t now_us, int64_t wall_us)
{
    char why[256] = "";
    v->now_us = now_us;
    v->wall_us = wall_us;
    v->rows = c->rows;
    v->cols = c->cols;
    v->utf8 = c->utf8;
    for (int i = 0; i < c->rows * c->cols; i++) c->at[i] = (cell){' ', STYLE_NORMAL};
    if (c->rows < 5 || c->cols < 20) {
        (void)cells_text(c, 0, 0, -1, STYLE_NORMAL, "too small");
        return;
    }
    int rows = c->rows - 4, table = view_table_of(v->screen);
    int top = view_heading(v);
    if (top > 2) view_draw_sum(v, c, 2);
    if (table >= 0) view_draw_table(v, c, table, top, rows - (top - 2));
    switch (v->screen) {
    case SCREEN_OVERVIEW: view_draw_overview(v, c, 2, rows); break;
    case SCREEN_ENGINE: view_draw_engine(v, c, 2, rows); break;
    case SCREEN_SLO: view_draw_slo(v, c, 2, rows); break;
    case SCREEN_SERVERS: view_draw_servers(v, c, 2, rows); break;
    default: break;
    }
    bool stale = is_stale(v, why, sizeof(why));
    if (stale && v->screen != SCREEN_SERVERS) cells_dim(c);
    draw_title(v, c);
    draw_tabs(v, c);
    if (table >= 0 && c->cols <= 100) { /* the count did not fit beside the tabs */
        char count[48];
        snprintf(count, sizeof(count), "%zu/%zu",
                 v->table[table].n ? v->table[table].selected + 1 : 0, v->table[table].n);
        int w = (int)strlen(count);
        cells_right(c, c->rows - 2, c->cols - w, w, STYLE_DIM, count);
    }
    draw_bottom(v, c, stale, why);
    if (v->mode == MODE_HELP) draw_help(v, c);
    if (v->mode == MODE_MENU) draw_menu(v, c);
    if (v->mode == MODE_DETAIL) draw_detail(v, c);
}
