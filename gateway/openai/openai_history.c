/* openai_history.c -- calls in an assistant's earlier messages.
 *
 * Histories are imperfect: a call may have been cut by max_tokens, or made by another model.  So
 * its arguments are never a reason to refuse a request.  A text that is a JSON object becomes
 * that object, an empty one {}.  Any other stays text; a template that cannot write a text as
 * arguments gets the nearest object instead: what of the text was complete, or the text under one
 * name.
 *
 * A template that knows no tools is told of them, and of calls, in the texts of the messages.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_inside.h"
#include "gateway/openai/openai_tools.h"

enum { NEST_MAX = 64, CUTS_MAX = 64 }; /* of arguments that are cut: nesting, places to cut */

static bool no_call(openai_problem *p, int message, int call, const char *field, const char *what)
{
    char param[80];
    snprintf(param, sizeof(param), "messages[%d].tool_calls[%d]%s", message, call, field);
    return openai_refuse(p, 400, "invalid_value", param, "'%s' %s", param, what);
}

static bool no_memory(openai_problem *p)
{
    return openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
}

/* The object that a text is; NULL: it is none. */
static cJSON *object_of(const char *text, size_t len)
{
    json_limits lim = json_limits_request;
    cJSON *v = NULL;
    lim.last_wins = true;
    if (!json_parse(text, len, &lim, &v, NULL) && cJSON_IsObject(v)) return v;
    cJSON_Delete(v);
    return NULL;
}

static bool is_blank(const char *text)
{
    return !text[strspn(text, " \t\r\n")];
}

/* An object, or the text that is none.  NULL: no memory. */
static cJSON *copy_arguments(const cJSON *args)
{
    cJSON *object = NULL;
    if (!openai_is_set(args)) return cJSON_CreateObject();
    if (cJSON_IsObject(args)) return cJSON_Duplicate(args, true);
    char *text = cJSON_IsString(args) ? NULL : json_print(args);
    const char *s = cJSON_IsString(args) ? args->valuestring : text;
    if (s) object = is_blank(s) ? cJSON_CreateObject() : object_of(s, strlen(s));
    if (s && !object) object = cJSON_CreateString(s);
    free(text);
    return object;
}

/* Takes `arguments` over.  Members stand in this order in what templates print.  NULL: no
 * memory. */
static cJSON *make_call(const char *id, const char *name, cJSON *arguments)
{
    cJSON *call = cJSON_CreateObject(), *function = cJSON_CreateObject();
    bool ok = call && function && cJSON_AddStringToObject(call, "id", id) &&
              cJSON_AddStringToObject(call, "type", "function") &&
              cJSON_AddStringToObject(function, "name", name) &&
              cJSON_AddItemToObject(function, "arguments", arguments);
    if (!ok) cJSON_Delete(arguments);
    if (ok && cJSON_AddItemToObject(call, "function", function)) return call;
    cJSON_Delete(function);
    cJSON_Delete(call);
    return NULL;
}

static bool check_call(const cJSON *id, const char *type, const cJSON *name, int message, int i,
                       openai_problem *p)
{
    char field[32];
    if (!cJSON_IsString(id)) return no_call(p, message, i, ".id", "must be a string");
    if (!type) return no_call(p, message, i, ".type", "must be 'function' or 'custom'");
    snprintf(field, sizeof(field), ".%s.name", type);
    return cJSON_IsString(name) || no_call(p, message, i, field, "must be a string");
}

/* A custom tool's text as the arguments that the model wrote.  NULL: no memory. */
static cJSON *arguments_of_text(const cJSON *input)
{
    cJSON *o = cJSON_CreateObject();
    const char *text = cJSON_IsString(input) ? input->valuestring : "";
    if (o && cJSON_AddStringToObject(o, "input", text)) return o;
    cJSON_Delete(o);
    return NULL;
}

/* NULL: *p says why. */
static cJSON *copy_call(const cJSON *v, int message, int i, openai_problem *p)
{
    const cJSON *id = cJSON_IsObject(v) ? json_get(v, "id") : NULL;
    const cJSON *given = cJSON_IsObject(v) ? json_get(v, "type") : NULL;
    const char *type = openai_is_set(given) ? cJSON_GetStringValue(given) : "function";
    bool custom = type && strcmp(type, "custom") == 0;
    if (type && !custom && strcmp(type, "function") != 0) type = NULL;
    const cJSON *f = cJSON_IsObject(v) && type ? json_get(v, type) : NULL;
    const cJSON *name = cJSON_IsObject(f) ? json_get(f, "name") : NULL;
    if (!check_call(id, type, name, message, i, p)) return NULL;
    cJSON *arguments =
        custom ? arguments_of_text(json_get(f, "input")) : copy_arguments(json_get(f, "arguments"));
    cJSON *call = arguments ? make_call(id->valuestring, name->valuestring, arguments) : NULL;
    if (!call) (void)no_memory(p);
    return call;
}

bool openai_take_calls(openai_request *rq, const cJSON *calls, int index, chat_message *m,
                       openai_problem *p)
{
    int i = 0, n = cJSON_IsArray(calls) ? cJSON_GetArraySize(calls) : -1;
    if (n < 0 || n > TOOL_CALLS_MAX) {
        char param[48];
        snprintf(param, sizeof(param), "messages[%d].tool_calls", index);
        return openai_refuse(p, 400, "invalid_value", param,
                             "'%s' must be an array of at most %d calls", param, TOOL_CALLS_MAX);
    }
    if (n == 0) return true;
    cJSON *list = cJSON_CreateArray(), *call = NULL;
    if (!list || !openai_own(rq, list)) {
        cJSON_Delete(list);
        return no_memory(p);
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, calls)
    {
        call = copy_call(v, index, i++, p);
        if (!call) return false;
        cJSON_AddItemToArray(list, call);
    }
    m->tool_calls = list;
    return true;
}

/* ------------------------------------------------------------------ the nearest object -- */

/* Text of an object that ends before the object does: where it may be cut, and what is open. */
typedef struct {
    size_t at[CUTS_MAX]; /* the last places behind which a member may end */
    int n_at;
    char open[NEST_MAX];
    int depth;
    bool in_string;
} cut_text;

static void note_cut(cut_text *c, size_t at)
{
    assert(c->n_at >= 0 && c->n_at <= CUTS_MAX);
    if (c->n_at == CUTS_MAX) memmove(c->at, c->at + 1, --c->n_at * sizeof(c->at[0]));
    c->at[c->n_at++] = at;
}

/* Reads s[0 .. len); false: nested too deeply, or closed more often than opened. */
static bool read_cut(cut_text *c, const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (c->in_string) {
            if (s[i] == '"') c->in_string = false;
            if (s[i] == '\\') i++;
        } else if (s[i] == '"') {
            c->in_string = true;
        } else if (s[i] == '{' || s[i] == '[') {
            if (c->depth == NEST_MAX) return false;
            c->open[c->depth++] = s[i] == '{' ? '}' : ']';
            note_cut(c, i + 1);
        } else if (s[i] == '}' || s[i] == ']') {
            if (c->depth == 0) return false;
            c->depth--;
            note_cut(c, i + 1);
        } else if (s[i] == ',') {
            note_cut(c, i);
        }
    }
    return true;
}

/* s[0 .. len), closed; NULL: that is no object, or no memory. */
static cJSON *closed(const char *s, size_t len, bool at_end)
{
    cut_text c = {.n_at = 0};
    char *text = read_cut(&c, s, len) ? malloc(len + NEST_MAX + 2) : NULL;
    if (!text) return NULL;
    memcpy(text, s, len);
    if (at_end && c.in_string) text[len++] = '"';
    assert(c.depth <= NEST_MAX);
    while (c.depth > 0) text[len++] = c.open[--c.depth];
    cJSON *v = object_of(text, len);
    free(text);
    return v;
}

/* What of a cut object is there; NULL: nothing that is one. */
static cJSON *nearest(const char *s)
{
    size_t len = strlen(s);
    cut_text c = {.n_at = 0};
    if (s[strspn(s, " \t\r\n")] != '{' || !read_cut(&c, s, len)) return NULL;
    cJSON *v = closed(s, len, true);
    for (int i = c.n_at - 1; !v && i >= 0; i--) v = closed(s, c.at[i], false);
    return v;
}

/* Puts an object in the place of arguments that are text. */
static bool mend(cJSON *function)
{
    cJSON *args = cJSON_GetObjectItemCaseSensitive(function, "arguments");
    if (!cJSON_IsString(args)) return false;
    cJSON *object = nearest(args->valuestring);
    if (!object) {
        object = cJSON_CreateObject();
        if (object) cJSON_AddStringToObject(object, "arguments", args->valuestring);
    }
    if (object && cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", object))
        return true;
    cJSON_Delete(object);
    return false;
}

bool openai_mend_calls(const openai_request *rq)
{
    bool any = false;
    for (int i = 0; i < rq->n_msgs; i++) {
        cJSON *call; /* of a list that the request owns: openai_take_calls() made it */
        cJSON_ArrayForEach(call, (cJSON *)rq->msgs[i].tool_calls) any |=
            mend(cJSON_GetObjectItemCaseSensitive(call, "function"));
    }
    return any;
}

/* ------------------------------------------------------- a template without tools -- */

/* As llama.cpp has it, tools stand in the system message, or before the first user's; earlier calls
 * become the text that the model writes for one, and their results what a user says.  Results side
 * by side become one message, with what the user says behind them: many templates refuse two of a
 * user in a row. */
static const char how[] =
    "You can call the functions below. To call one, answer with nothing but a JSON object: "
    "{\"name\": its name, \"parameters\": an object of its arguments}.";

/* a, b and c in one; malloced, NULL: no memory.  `a` is freed. */
static char *joined(char *a, const char *b, const char *c)
{
    size_t n = a ? strlen(a) : 0, m = strlen(b), k = c ? strlen(c) : 0;
    char *all = a && c ? realloc(a, n + m + k + 1) : NULL;
    if (!all) {
        free(a);
        return NULL;
    }
    memcpy(all + n, b, m);
    memcpy(all + n + m, c, k + 1);
    return all;
}

/* Takes `text` over. */
static bool set_text(openai_request *rq, chat_message *m, char *text)
{
    cJSON *v = text ? cJSON_CreateString(text) : NULL;
    free(text);
    if (!v || !openai_own(rq, v)) {
        cJSON_Delete(v);
        return false;
    }
    m->text = v->valuestring;
    m->len = strlen(v->valuestring);
    return true;
}

static char *text_of(const chat_message *m)
{
    return m->text ? strndup(m->text, m->len) : strdup("");
}

static char *tools_text(const openai_request *rq)
{
    char *text = strdup(how);
    const cJSON *t;
    cJSON_ArrayForEach(t, rq->tools)
    {
        char *f = json_print(json_get(t, "function"));
        text = joined(text, "\n", f);
        free(f);
    }
    return text;
}

static bool is_system(const chat_message *m)
{
    return strcmp(m->role, "system") == 0 || strcmp(m->role, "developer") == 0;
}

static bool tools_told(openai_request *rq)
{
    int at = 0;
    while (at < rq->n_msgs && !is_system(&rq->msgs[at])) at++;
    bool system = at < rq->n_msgs;
    if (!system) at = 0;
    while (!system && at < rq->n_msgs && strcmp(rq->msgs[at].role, "user") != 0) at++;
    if (at == rq->n_msgs) return true; /* nobody to tell */
    chat_message *m = &rq->msgs[at];
    char *tools = tools_text(rq), *said = text_of(m);
    char *all = system ? joined(said, m->len ? "\n\n" : "", tools) : joined(tools, "\n\n", said);
    free(system ? tools : said);
    return set_text(rq, m, all);
}

/* As the model writes a call. */
static bool write_calls(openai_request *rq, chat_message *m)
{
    char *text = text_of(m);
    const cJSON *call;
    cJSON_ArrayForEach(call, m->tool_calls)
    {
        const cJSON *f = json_get(call, "function");
        char *name = json_print(json_get(f, "name")), *args = json_print(json_get(f, "arguments"));
        text = joined(text, text && text[0] ? "\n{\"name\": " : "{\"name\": ", name);
        text = joined(text, ", \"parameters\": ", args);
        text = joined(text, "}", "");
        free(name);
        free(args);
    }
    m->tool_calls = NULL;
    return set_text(rq, m, text);
}

static bool write_result(openai_request *rq, chat_message *m)
{
    char *said = text_of(m), *text = joined(strdup("The function's result: "), "", said);
    free(said);
    m->role = "user";
    m->name = m->tool_call_id = NULL;
    return set_text(rq, m, text);
}

static bool add_text(openai_request *rq, chat_message *to, const chat_message *more)
{
    char *said = text_of(more), *text = joined(text_of(to), "\n", said);
    free(said);
    return set_text(rq, to, text);
}

static bool history_told(openai_request *rq)
{
    bool ok = true, behind = false; /* what was kept last is a result */
    int n = rq->n_msgs;
    rq->n_msgs = 0;
    for (int i = 0; i < n && ok; i++) {
        chat_message m = rq->msgs[i];
        assert(rq->n_msgs <= i && (!behind || rq->n_msgs > 0));
        bool result = strcmp(m.role, "tool") == 0;
        if (m.tool_calls) ok = write_calls(rq, &m);
        if (result) ok = write_result(rq, &m);
        if (behind && strcmp(m.role, "user") == 0)

            ok = ok && add_text(rq, &rq->msgs[rq->n_msgs - 1], &m);
        else
            rq->msgs[rq->n_msgs++] = m;
        behind = result;
    }
    return ok;
}

bool openai_has_tools(const openai_request *rq)
{
    bool some = rq->tools != NULL;
    for (int i = 0; i < rq->n_msgs; i++)
        some |= rq->msgs[i].tool_calls || strcmp(rq->msgs[i].role, "tool") == 0;
    return some;
}

bool openai_tell_tools(openai_request *rq, openai_problem *p)
{
    return tools_told(rq) || no_memory(p);
}

bool openai_tell_history(openai_request *rq, openai_problem *p)
{
    return history_told(rq) || no_memory(p);
}
