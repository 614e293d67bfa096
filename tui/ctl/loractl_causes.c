/* loractl_causes.c -- kept and broken promises by /stats, beside rows of other answers. */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"

static const cJSON *named(const cJSON *rows, const char *name)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        const cJSON *v = cJSON_IsObject(row) ? json_get(row, "name") : NULL;
        if (cJSON_IsString(v) && strcmp(v->valuestring, name) == 0) return row;
    }
    return NULL;
}

/* What is not 0 of missed_CAUSE into "causes", the largest with its share into "mostly". */
static void add_causes(cJSON *row, const cJSON *seen, double missed)
{
    const cJSON *v, *most = NULL;
    char mostly[96];
    cJSON *causes = cJSON_AddObjectToObject(row, "causes");
    cJSON_ArrayForEach(v, seen)
    {
        if (strncmp(v->string, "missed_", 7) != 0 || !cJSON_IsNumber(v) || v->valuedouble <= 0)
            continue;
        (void)cJSON_AddNumberToObject(causes, v->string + 7, v->valuedouble);
        if (!most || v->valuedouble > most->valuedouble) most = v;
    }
    if (!most || missed <= 0) return;
    snprintf(mostly, sizeof(mostly), "%s %.0f%%", most->string + 7,
             100 * most->valuedouble / missed);
    (void)cJSON_AddStringToObject(row, "mostly", mostly);
}

static void add_seen(cJSON *row, const cJSON *seen)
{
    const cJSON *met = json_get(seen, "met"), *missed = json_get(seen, "missed");
    if (!cJSON_IsNumber(met) || !cJSON_IsNumber(missed)) return;
    (void)cJSON_AddNumberToObject(row, "met", met->valuedouble);
    (void)cJSON_AddNumberToObject(row, "missed", missed->valuedouble);
    add_causes(row, seen, missed->valuedouble);
}

void ctl_add_causes(ctl *c, const char *table, cJSON *rows)
{
    cJSON *row, *stats;
    if (c->format == TABLE_NAME) return;
    stats = ctl_ask(c, ADMIN_SIDE, "/admin/v1/stats");
    const cJSON *all = cJSON_IsObject(stats) ? json_get(stats, table) : NULL;
    cJSON_ArrayForEach(row, rows)
    {
        const cJSON *name = cJSON_IsObject(row) ? json_get(row, "name") : NULL;
        const cJSON *seen = cJSON_IsString(name) ? named(all, name->valuestring) : NULL;
        if (seen) add_seen(row, seen);
    }
    cJSON_Delete(stats);
}
