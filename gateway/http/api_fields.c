/* api_fields.c -- what many handlers need: fields of bodies and queries, ids, times, lists. */
#include "gateway/http/api_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Those that there are, as far as they fit. */
static void list_known(const char *const *known, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = '\0';
    for (; *known && n + strlen(*known) + 3 < cap; known++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", *known);
}

bool api_only_fields(exchange *x, const cJSON *body, const char *const *known)
{
    if (!cJSON_IsObject(body)) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", NULL,
                       "the body must be a JSON object");
        return false;
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, body)
    {
        bool ok = false;
        for (const char *const *k = known; *k && !ok; k++) ok = strcmp(*k, v->string) == 0;
        if (ok) continue;
        char name[64], there[300];
        snprintf(name, sizeof(name), "%.60s", v->string);
        list_known(known, there, sizeof(there));
        exchange_error(x, 400, "invalid_request_error", "unknown_field", name,
                       "unknown field '%s'; the fields are: %s", name, there);
        return false;
    }
    return true;
}

uint64_t api_parse_id(const char *s)
{
    size_t n = strlen(s);
    if (n < 1 || n > 19 || strspn(s, "0123456789") != n) return 0;
    return strtoull(s, NULL, 10);
}

bool api_query_number(exchange *x, const char *name, uint64_t lo, uint64_t hi, uint64_t *out)
{
    const char *s = exchange_query(x, name);
    if (!s) return true;
    size_t n = strlen(s);
    uint64_t v = api_parse_id(s);
    if (n >= 1 && n <= 19 && strspn(s, "0123456789") == n && v >= lo && v <= hi) {
        *out = v;
        return true;
    }
    if (hi == UINT64_MAX)
        exchange_error(x, 400, "invalid_request_error", "invalid_value", name,
                       "'%s' must be a whole number", name);
    else
        exchange_error(x, 400, "invalid_request_error", "invalid_value", name,
                       "'%s' must be a whole number from %llu to %llu", name,
                       (unsigned long long)lo, (unsigned long long)hi);
    return false;
}

bool api_query_word(exchange *x, const char *name, const char *const *words, int *out)
{
    char all[160] = "";
    const char *s = exchange_query(x, name);
    if (!s) return true;
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], s) == 0) {
            *out = i;
            return true;
        }
        size_t n = strlen(all);
        snprintf(all + n, sizeof(all) - n, "%s%s", i ? ", " : "", words[i]);
    }
    exchange_error(x, 400, "invalid_request_error", "invalid_value", name, "'%s' must be one of %s",
                   name, all);
    return false;
}

bool api_query_flag(exchange *x, const char *name, bool *out)
{
    static const char *const words[] = {"false", "true", NULL};
    int i = *out;
    if (!api_query_word(x, name, words, &i)) return false;
    *out = i != 0;
    return true;
}

bool api_query_time(exchange *x, const char *name, int64_t *out_us)
{
    uint64_t s = UINT64_MAX;
    if (!api_query_number(x, name, 0, UINT64_C(1) << 40, &s)) return false;
    if (s != UINT64_MAX) *out_us = (int64_t)s * 1000000;
    return true;
}

void api_write_id(jsonw *w, const char *name, uint64_t id)
{
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)id);
    jsonw_str(w, name, id ? text : NULL);
}

void api_write_time(jsonw *w, const char *name, int64_t wall_us)
{
    if (wall_us)
        jsonw_int(w, name, wall_us / 1000000);
    else
        jsonw_null(w, name);
}

void api_list_begin(jsonw *w)
{
    jsonw_init(w);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "list");
    jsonw_open(w, "data", '[');
}

void api_list_end(exchange *x, jsonw *w, bool has_more)
{
    jsonw_close(w, ']');
    jsonw_bool(w, "has_more", has_more);
    jsonw_close(w, '}');
    exchange_reply_json(x, 200, w);
    jsonw_clear(w);
}
