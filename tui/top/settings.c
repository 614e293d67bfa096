/* settings.c -- the dashboard's settings file: written whole beside the old one, then renamed. */
#include "tui/top/settings.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool path_of(char *out, size_t cap, bool make)
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    char dir[PATH_MAX - 32];
    int n;
    if (xdg && xdg[0] == '/')
        n = snprintf(dir, sizeof(dir), "%s", xdg);
    else if (home && home[0] == '/')
        n = snprintf(dir, sizeof(dir), "%s/.config", home);
    else
        return false;
    if (n < 0 || (size_t)n >= sizeof(dir)) return false;
    if (make) (void)mkdir(dir, 0700);
    n = snprintf(out, cap, "%s/lorad", dir);
    if (n < 0 || (size_t)n >= cap) return false;
    if (make) (void)mkdir(out, 0700);
    n = snprintf(out, cap, "%s/lorad/loratop.conf", dir);
    return n > 0 && (size_t)n < cap;
}

/* "RANK,VERS"; the first column can't be hidden. */
static void hide(view *v, int table, const char *titles)
{
    char title[24];
    for (const char *p = titles; *p; p += strspn(p, ",")) {
        size_t n = strcspn(p, ",");
        snprintf(title, sizeof(title), "%.*s", (int)(n < 23 ? n : 23), p);
        int column = view_column_of(table, title);
        if (column > 0) v->table[table].hidden |= 1U << column;
        p += n;
    }
}

static bool save_hidden(FILE *f, const view *v, int table)
{
    int n;
    const view_column *c = view_columns(table, &n);
    const char *between = "";
    if (!v->table[table].hidden) return true;
    bool ok = fprintf(f, "%s.without = ", proto_table_names[table]) > 0;
    for (int i = 1; i < n && ok; i++) {
        if (!(v->table[table].hidden >> i & 1U)) continue;
        ok = fprintf(f, "%s%s", between, c[i].title) > 0;
        between = ",";
    }
    return ok && fputc('\n', f) != EOF;
}

static void take(view *v, const char *name, const char *value)
{
    long n = strtol(value, NULL, 10);
    if (strcmp(name, "interval_ms") == 0 && n >= 100 && n <= 60000) v->interval_ms = n;
    if (strcmp(name, "screen") == 0 && view_screen_of(value) >= 0) {
        v->screen = (screen)view_screen_of(value);
        if (v->screen == SCREEN_SERVERS) v->screen = SCREEN_OVERVIEW;
    }
    for (int t = 0; t < TABLES; t++) {
        char want[48];
        int column = view_column_of(t, value);
        snprintf(want, sizeof(want), "%s.sort", proto_table_names[t]);
        if (strcmp(name, want) == 0 && column >= 0) v->table[t].sort = column;
        snprintf(want, sizeof(want), "%s.descending", proto_table_names[t]);
        if (strcmp(name, want) == 0) v->table[t].descending = n == 1;
        snprintf(want, sizeof(want), "%s.tree", proto_table_names[t]);
        if (strcmp(name, want) == 0) v->table[t].tree = n == 1;
        snprintf(want, sizeof(want), "%s.without", proto_table_names[t]);
        if (strcmp(name, want) == 0) hide(v, t, value);
    }
}

void settings_load(view *v)
{
    char path[PATH_MAX], line[256], name[64], value[200];
    FILE *f = path_of(path, sizeof(path), false) ? fopen(path, "re") : NULL;
    if (!f) return;
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%63[a-z_.] = %199s", name, value) == 2) take(v, name, value);
    }
    (void)fclose(f);
}

void settings_save(const view *v)
{
    char path[PATH_MAX], fresh[PATH_MAX + 8];
    if (!path_of(path, sizeof(path), true)) return;
    snprintf(fresh, sizeof(fresh), "%s.new", path);
    FILE *f = fopen(fresh, "we");
    if (!f) return;
    bool ok = fprintf(f, "interval_ms = %lld\nscreen = %s\n", (long long)v->interval_ms,
                      view_screen_name(v->screen)) > 0;
    for (int t = 0; t < TABLES && ok; t++) {
        const table_view *w = &v->table[t];
        int n;
        const view_column *column = &view_columns(t, &n)[w->sort];
        ok = fprintf(f, "%s.sort = %s\n%s.descending = %d\n%s.tree = %d\n", proto_table_names[t],
                     column->title, proto_table_names[t], w->descending, proto_table_names[t],
                     w->tree) > 0 &&
             save_hidden(f, v, t);
    }
    if (fclose(f) != 0 || !ok || rename(fresh, path) != 0) (void)remove(fresh);
}
