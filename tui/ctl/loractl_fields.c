/* loractl_fields.c -- picking fields by name, and saying which there are. */
#include "tui/ctl/loractl_fields.h"

#include <stdio.h>
#include <string.h>

#include "tui/near.h"

enum { LISTED_MAX = 600, DEPTH = 3 };

typedef struct { /* a walk over the names that there are */
    near near;
    char best[FIELD_MAX]; /* the names are made while we walk */
    char *list;           /* top names, for people */
    size_t len;
} known_names;

static void offer(known_names *k, const char *path, bool top)
{
    const char *was = k->near.best, *last = strrchr(path, '.');
    if (last && !was && strcmp(last + 1, k->near.typed) == 0)
        k->near.best = path; /* the name is right, but it stands deeper */
    else
        near_offer(&k->near, path);
    if (k->near.best != was) {
        snprintf(k->best, sizeof(k->best), "%s", path);
        k->near.best = k->best;
    }
    size_t n = strlen(path);
    if (!top || k->len + n + 3 > LISTED_MAX) return;
    k->len +=
        (size_t)snprintf(k->list + k->len, LISTED_MAX - k->len, "%s%s", k->len ? ", " : "", path);
}

static void walk(known_names *k, const cJSON *v, const char *prefix, int depth)
{
    const cJSON *each;
    char path[FIELD_MAX];
    if (!cJSON_IsObject(v)) return;
    cJSON_ArrayForEach(each, v)
    {
        int n = snprintf(path, sizeof(path), "%s%s%s", prefix, *prefix ? "." : "", each->string);
        if (n < 0 || n >= (int)sizeof(path)) continue;
        offer(k, path, depth == 0);
        if (depth + 1 < DEPTH) walk(k, each, path, depth + 1);
    }
}

static bool unknown(const char *name, const column *columns, const cJSON *rows)
{
    char list[LISTED_MAX] = "";
    known_names k = {.near = near_to(name), .list = list};
    walk(&k, cJSON_GetArrayItem(rows, 0), "", 0);
    for (const column *c = columns; c && c->head; c++) offer(&k, c->path, k.len == 0);
    if (k.near.best)
        (void)ctl_usage("--fields: there is no field '%s'; did you mean '%s'?", name, k.near.best);
    else
        (void)ctl_usage("--fields: there is no field '%s'; there are: %s", name, list);
    return false;
}

static bool any_has(const cJSON *rows, const char *path)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        if (table_at(row, path)) return true;
    }
    return cJSON_GetArraySize(rows) == 0; /* nobody can say */
}

static const column *column_of(const column *columns, const char *path)
{
    for (const column *c = columns; c && c->head; c++) {
        if (strcmp(c->path, path) == 0) return c;
    }
    return NULL;
}

bool fields_take(const ctl *c, const column *columns, const cJSON *rows, fields *out)
{
    const char *p = cli_value(&c->cli, "fields");
    out->n = 0;
    while (p && *p) {
        size_t n = strcspn(p, ",");
        if (n == 0 || n >= FIELD_MAX || out->n == FIELDS_MAX) {
            (void)ctl_usage("--fields: names with commas between, at most %d of at most %d bytes",
                            FIELDS_MAX, FIELD_MAX - 1);
            return false;
        }
        char *path = out->path[out->n];
        memcpy(path, p, n);
        path[n] = 0;
        const column *known = column_of(columns, path);
        if (!known && !any_has(rows, path)) return unknown(path, columns, rows);
        out->columns[out->n++] =
            (column){known ? known->head : path, path, known ? known->kind : CELL_TEXT, false};
        p += n + (p[n] == ',');
    }
    out->columns[out->n] = (column){NULL, NULL, CELL_TEXT, false};
    if (cli_given(&c->cli, "fields") && out->n == 0) {
        (void)ctl_usage("--fields: name at least one field");
        return false;
    }
    return true;
}

cJSON *fields_pick(const fields *f, const cJSON *row)
{
    cJSON *out = cJSON_CreateObject();
    for (int i = 0; i < f->n; i++) {
        const cJSON *v = table_at(row, f->path[i]);
        (void)cJSON_AddItemToObject(out, f->path[i],
                                    v ? cJSON_Duplicate(v, true) : cJSON_CreateNull());
    }
    return out;
}
