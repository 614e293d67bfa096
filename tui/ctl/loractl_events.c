/* loractl_events.c -- loractl's commands for what happened: events and the audit, once or as they
 * come (--follow).
 *
 * The server keeps the last 1,000 events until it ends, and the audit in its database.  Following
 * asks once a second; a server that restarts or is away for a while is asked again.  An id is
 * printed once; ids of events begin again with each start of the server, so the time decides too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"
#include "tui/text.h"

enum { POLL_MS = 1000 };

static const column event_columns[] = {
    {"TIME", "time", CELL_TIME, false},     {"LEVEL", "level", CELL_TEXT, false},
    {"EVENT", "kind", CELL_TEXT, false},    {"TENANT", "tenant", CELL_TEXT, false},
    {"OBJECT", "object", CELL_TEXT, false}, {"DETAIL", "detail", CELL_TEXT, false},
    {"ID", "id", CELL_TEXT, true},          {NULL, NULL, CELL_TEXT, false},
};

static const column audit_columns[] = {
    {"TIME", "time", CELL_TIME, false},     {"ACTION", "action", CELL_TEXT, false},
    {"OBJECT", "object", CELL_TEXT, false}, {"DETAIL", "detail", CELL_TEXT, false},
    {"BY", "actor", CELL_TEXT, false},      {"KEY", "actor_key", CELL_TEXT, false},
    {"TENANT", "tenant", CELL_TEXT, true},  {"ID", "id", CELL_TEXT, true},
    {NULL, NULL, CELL_TEXT, false},
};

static uint64_t id_of(const cJSON *row)
{
    return strtoull(ctl_word(row, "id"), NULL, 10);
}

static int older_first(const void *a, const void *b)
{
    uint64_t x = id_of(*(cJSON *const *)a);
    uint64_t y = id_of(*(cJSON *const *)b);
    return x < y ? -1 : x > y;
}

/* Moves the rows of `from` of this level (NULL: any) into a new array, the oldest first. */
static cJSON *sorted(cJSON *from, const char *level)
{
    cJSON *out = cJSON_CreateArray();
    int n = cJSON_GetArraySize(from), kept = 0;
    cJSON **row = calloc((size_t)n + 1, sizeof(cJSON *));
    for (int i = 0; row && i < n; i++) {
        cJSON *one = cJSON_DetachItemFromArray(from, 0);
        if (level && strcmp(ctl_word(one, "level"), level) != 0)
            cJSON_Delete(one);
        else
            row[kept++] = one;
    }
    if (row) qsort(row, (size_t)kept, sizeof(cJSON *), older_first);
    for (int i = 0; i < kept; i++) cJSON_AddItemToArray(out, row[i]);
    free(row);
    return out;
}

/* *rows: what is new since *cursor (NULL: all that the server has), malloced. */
static int get_events(ctl *c, char **cursor, cJSON **rows)
{
    cJSON *tree, *row;
    *rows = NULL;
    int status =
        ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, "/admin/v1/stats?tables=events&limit=50000%s%s",
                 *cursor ? "&cursor=" : "", *cursor ? ctl_seg(*cursor) : "");
    cJSON *data =
        !status && cJSON_IsObject(tree) ? cJSON_GetObjectItemCaseSensitive(tree, "events") : NULL;
    if (!status && !cJSON_IsArray(data)) status = ctl_fail("the server's answer has no events");
    if (!status) {
        free(*cursor);
        *cursor = strdup(ctl_word(tree, "cursor"));
        *rows = sorted(data, cli_value(&c->cli, "level"));
    }
    cJSON_ArrayForEach(row, *rows)
    {
        cJSON_AddNumberToObject(row, "time", ctl_real(row, "time_us", 0) / 1e6);
    }
    cJSON_Delete(tree);
    return status;
}

/* The newest page of the audit, or the one before an id; *more: there are older ones. */
static int get_audit(ctl *c, const char *before, cJSON **rows, bool *more)
{
    cJSON *tree;
    *rows = NULL;
    int status = ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, "/admin/v1/audit%s%s",
                          before ? "?before=" : "", before ? ctl_seg(before) : "");
    cJSON *data = !status && cJSON_IsObject(tree) ? cJSON_DetachItemFromObject(tree, "data") : NULL;
    if (!status && !cJSON_IsArray(data)) status = ctl_fail("the server's answer is not a list");
    *more = !status && cJSON_IsTrue(json_get(tree, "has_more"));
    if (!status)
        *rows = data;
    else
        cJSON_Delete(data);
    cJSON_Delete(tree);
    return status;
}

/* One line for people, or one JSON object. */
static void print_row(const ctl *c, const column *columns, const cJSON *row)
{
    if (c->format == TABLE_JSON) {
        ctl_print_json(c, row);
        return;
    }
    char clean[400], clock[32] = "";
    time_t at = (time_t)ctl_real(row, "time", 0);
    struct tm tm;
    if (gmtime_r(&at, &tm)) (void)strftime(clock, sizeof(clock), "%Y-%m-%d %H:%M:%SZ", &tm);
    printf("%s", clock);
    for (const column *k = columns + 1; k->head; k++) {
        if (k->wide && c->format != TABLE_WIDE) continue;
        (void)text_clean(ctl_word(row, k->path), clean, sizeof(clean), 90);
        if (*clean) printf("  %s", clean);
    }
    printf("\n");
}

/* Where a follower is. */
typedef struct {
    char *cursor; /* of events; malloced */
    double time;  /* of the last event that was printed */
    uint64_t id;  /* of the last row that was printed */
} follower;

static int new_events(ctl *c, void *state)
{
    follower *f = state;
    cJSON *rows;
    const cJSON *row;
    int status = get_events(c, &f->cursor, &rows);
    cJSON_ArrayForEach(row, rows)
    {
        double at = ctl_real(row, "time", 0);
        uint64_t id = id_of(row);
        if (at < f->time || (at <= f->time && id <= f->id)) continue;
        f->time = at;
        f->id = id;
        print_row(c, event_columns, row);
    }
    cJSON_Delete(rows);
    return status;
}

int ctl_events(void *p)
{
    ctl *c = p;
    follower f = {0};
    cJSON *rows = NULL;
    bool follow = cli_given(&c->cli, "follow");
    int status = follow ? ctl_repeat(c, POLL_MS, new_events, &f) : get_events(c, &f.cursor, &rows);
    if (!follow && !status) status = ctl_print_rows(c, event_columns, rows);
    cJSON_Delete(rows);
    free(f.cursor);
    return status;
}

/* Prints the audit since the last row: reads pages from the newest back to it.  Where one fails,
 * nothing is printed, and the next turn begins again. */
static int new_audit(ctl *c, void *state)
{
    follower *f = state;
    cJSON *all = cJSON_CreateArray(), *page, *row;
    char before[32] = "";
    bool more = true, known = false;
    int status = CTL_OK;
    while (!status && more && !known) {
        status = get_audit(c, *before ? before : NULL, &page, &more);
        while (!status && (row = cJSON_DetachItemFromArray(page, 0)) != NULL) {
            known |= id_of(row) <= f->id;
            snprintf(before, sizeof(before), "%s", ctl_word(row, "id"));
            if (known)
                cJSON_Delete(row);
            else
                cJSON_AddItemToArray(all, row);
        }
        cJSON_Delete(page);
        if (f->id == 0) break; /* at the start the newest page suffices */
    }
    cJSON *rows = sorted(all, NULL);
    const cJSON *one;
    cJSON_ArrayForEach(one, rows)
    {
        if (status) break;
        f->id = id_of(one);
        print_row(c, audit_columns, one);
    }
    cJSON_Delete(rows);
    cJSON_Delete(all);
    return status;
}

int ctl_audit(void *p)
{
    ctl *c = p;
    cJSON *rows;
    follower f = {0};
    bool more;
    if (cli_given(&c->cli, "follow")) return ctl_repeat(c, POLL_MS, new_audit, &f);
    int status = get_audit(c, cli_value(&c->cli, "before"), &rows, &more);
    if (!status) status = ctl_print_rows(c, audit_columns, rows);
    cJSON_Delete(rows);
    return status;
}
