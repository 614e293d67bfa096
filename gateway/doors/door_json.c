/* door_json.c -- cJSON's adders, without leaks where they fail.
 *
 * door_add() and its kin take the value in every case: a tree that is incomplete for want of
 * memory is found by the one who prints it, so a translation needs no check for each member.
 *
 * door_sort() gives each member of a body its fate by the API's table:
 *
 *     DOOR_TAKEN     this API reads it itself
 *     DOOR_PASSED    goes on into the chat request, as it is
 *     DOOR_IGNORED   named in the header of ignored parameters; so is a member that the table
 *                    does not know, unless the client is strict: then it is a 400
 *     DOOR_REFUSED   a 400 that names it: its effect would be missed
 */
#include "gateway/doors/door_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/json.h"
#include "gateway/handlers.h"

void door_add(cJSON *o, const char *name, cJSON *v)
{
    if (v && (!o || !cJSON_AddItemToObject(o, name, v))) cJSON_Delete(v);
}

void door_set(cJSON *o, const char *name, cJSON *v)
{
    cJSON_DeleteItemFromObjectCaseSensitive(o, name);
    door_add(o, name, v);
}

void door_append(cJSON *list, cJSON *v)
{
    if (v && (!list || !cJSON_AddItemToArray(list, v))) cJSON_Delete(v);
}

void door_add_text(cJSON *o, const char *name, const char *s)
{
    door_add(o, name, s ? cJSON_CreateString(s) : cJSON_CreateNull());
}

void door_add_number(cJSON *o, const char *name, double v)
{
    door_add(o, name, cJSON_CreateNumber(v));
}

void door_add_seconds(cJSON *o, const char *name, int64_t wall_us)
{
    int64_t s = wall_us / 1000000;
    door_add_number(o, name, (double)s);
}

void door_add_bool(cJSON *o, const char *name, bool v)
{
    door_add(o, name, cJSON_CreateBool(v));
}

void door_copy(cJSON *o, const char *name, const cJSON *from)
{
    const cJSON *v = json_get(from, name);
    door_add(o, name, v ? cJSON_Duplicate(v, true) : cJSON_CreateNull());
}

void door_copy_set(cJSON *o, const char *name, const cJSON *from, const char *as)
{
    const cJSON *v = json_get(from, name);
    if (v && !cJSON_IsNull(v)) door_add(o, as, cJSON_Duplicate(v, true));
}

const char *door_text(const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_IsObject(o) ? json_get(o, name) : NULL;
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

bool door_is(const cJSON *o, const char *name, const char *text)
{
    const char *s = door_text(o, name);
    return s && strcmp(s, text) == 0;
}

void door_write(jsonw *w, const char *name, const cJSON *tree)
{
    char *text = json_print(tree);
    if (!text) {
        w->failed = true;
        return;
    }
    if (w->comma) jsonw_raw(w, ",", 1);
    if (name) {
        w->comma = false;
        jsonw_str(w, NULL, name);
        jsonw_raw(w, ":", 1);
    }
    jsonw_raw(w, text, strlen(text));
    w->comma = true;
    free(text);
}

void door_make_id(const char *prefix, char *out)
{
    uint8_t dice[24] = {0};
    if (getrandom(dice, sizeof(dice), 0) < 0) memcpy(dice, &out, sizeof(out));
    int at = snprintf(out, 16, "%s", prefix);
    for (size_t i = 0; i < sizeof(dice); i++, at += 2)
        (void)snprintf(out + at, 3, "%02x", (unsigned)dice[i]);
}

/* The client would rather be refused than have a field ignored. */
static bool wants_strict(const exchange *x)
{
    const char *v = exchange_header(x, "x-lorad-strict-params");
    return v && (strcmp(v, "true") == 0 || strcmp(v, "1") == 0);
}

bool door_sort(exchange *x, const cJSON *body, const door_field *fields, size_t n, cJSON *chat,
               openai_problem *p)
{
    const cJSON *v;
    if (!cJSON_IsObject(body))
        return openai_refuse(p, 400, "invalid_value", NULL, "the body must be a JSON object");
    cJSON_ArrayForEach(v, body)
    {
        size_t i = 0;
        while (i < n && strcmp(fields[i].name, v->string) != 0) i++;
        bool selects = i == n && openai_selects_adapter(v->string);
        door_fate fate = i < n ? fields[i].fate : selects ? DOOR_PASSED : DOOR_IGNORED;
        if (cJSON_IsNull(v) || fate == DOOR_TAKEN) continue;
        if (fate == DOOR_PASSED) {
            if (chat) door_add(chat, v->string, cJSON_Duplicate(v, true));
        } else if (fate == DOOR_REFUSED) {
            return openai_refuse(p, 400, "unsupported_parameter", v->string,
                                 "'%s' is not supported", fields[i].name);
        } else if (i == n && wants_strict(x)) {
            return openai_refuse(p, 400, "unknown_parameter", v->string,
                                 "Unrecognized request argument supplied: %.60s", v->string);
        } else {
            exchange_ignored_param(x, v->string);
        }
    }
    return true;
}

bool door_check_metadata(const cJSON *body, openai_problem *p)
{
    const cJSON *metadata = json_get(body, "metadata"), *each;
    if (!metadata || cJSON_IsNull(metadata)) return true;
    bool ok = cJSON_IsObject(metadata) && cJSON_GetArraySize(metadata) <= 16;
    if (!ok) metadata = NULL;
    cJSON_ArrayForEach(each, metadata)
    {
        ok &=
            cJSON_IsString(each) && strlen(each->valuestring) <= 512 && strlen(each->string) <= 64;
    }
    return ok || openai_refuse(p, 400, "invalid_value", "metadata",
                               "'metadata' must be an object of at most 16 strings of 512 bytes");
}

void door_send_problem(exchange *x, const openai_problem *p)
{
    exchange_error(x, p->status, p->type, p->code, p->param[0] ? p->param : NULL, "%s", p->msg);
}

void door_count(exchange *x, const completion_door *door, void *state, const char *object)
{
    const cJSON *body;
    bool drop;
    openai_problem p;
    int64_t n;
    if (!exchange_read_json(x, &body)) return;
    const cJSON *chat = door->translate(state, x, body, &drop, &p);
    if (!chat) {
        door_send_problem(x, &p);
        return;
    }
    if (!tokenize_count(x, chat, &n)) return;
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    if (object) jsonw_str(&w, "object", object);
    jsonw_int(&w, "input_tokens", n);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}
