/* yaml.c -- block YAML: one line for each member or item, two spaces for each level. */
#include "tui/yaml.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tui/table.h"

/* Words that YAML 1.1 readers take for null and booleans. */
static const char *const reserved[] = {"null", "true", "false", "yes", "no", "on",
                                       "off",  "y",    "n",     "~",   "nan"};

static bool is_plain(const char *s)
{
    static const char fit[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/@+-";
    if (!*s || strspn(s, fit) != strlen(s)) return false;
    for (size_t i = 0; i < sizeof(reserved) / sizeof(*reserved); i++) {
        if (strcasecmp(s, reserved[i]) == 0) return false;
    }
    /* A number, a date, or "-" and "---". */
    return (s[0] >= 'a' && s[0] <= 'z') || (s[0] >= 'A' && s[0] <= 'Z') || s[0] == '/' ||
           s[0] == '_';
}

static void put_scalar(FILE *f, const cJSON *v)
{
    if (cJSON_IsString(v) && is_plain(v->valuestring)) {
        (void)fputs(v->valuestring, f);
        return;
    }
    char *text = cJSON_PrintUnformatted(v);
    for (const char *p = text; p && *p;) p += table_put_escaped(f, p);
    cJSON_free(text);
}

static void put_key(FILE *f, const char *key)
{
    cJSON v = {.type = cJSON_String, .valuestring = (char *)key};
    put_scalar(f, &v);
}

static bool is_empty(const cJSON *v)
{
    return !(cJSON_IsArray(v) || cJSON_IsObject(v)) || !v->child;
}

/* Lines at this depth; `first`: the first of them goes on where "- " stands. */
static void put_block(FILE *f, const cJSON *v, int depth, bool first)
{
    const cJSON *m;
    cJSON_ArrayForEach(m, v)
    {
        fprintf(f, "%*s", first ? 0 : 2 * depth, "");
        first = false;
        if (cJSON_IsObject(v)) {
            put_key(f, m->string);
            (void)fputc(':', f);
        } else {
            (void)fputc('-', f);
        }
        if (is_empty(m)) {
            (void)fputc(' ', f);
            put_scalar(f, m);
            (void)fputc('\n', f);
        } else if (cJSON_IsObject(v)) {
            (void)fputc('\n', f);
            put_block(f, m, depth + 1, false);
        } else {
            (void)fputc(' ', f);
            put_block(f, m, depth + 1, true);
        }
    }
}

void yaml_print(FILE *f, const cJSON *value)
{
    if (is_empty(value)) {
        put_scalar(f, value);
        (void)fputc('\n', f);
        return;
    }
    put_block(f, value, 0, true);
}
