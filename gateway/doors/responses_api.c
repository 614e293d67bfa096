/* responses_api.c -- handlers of /v1/responses and /v1/conversations.
 *
 * A response is a chat completion in another form. responses_create() passes the body and a
 * completion_door to completion.c: its functions translate the request (responses_translate),
 * name parameters as this API does (rename_param), and write events or the object
 * (responses_say, end). Admission, scheduling, limits and usage are those of chat completions.
 *
 *     foreground:   body -> completion_handle_door() -> events / object -> row, if "store"
 *     background:   body -> row "queued" -> background_add() ... a worker runs the same body later
 *                   (x->inner) -> its events and its end go to the row; GET and ?stream follow it
 *
 * Stored rows are sealed with the server's key (storage/seal) and counted against the tenant's
 * quota of bytes and rows. An id is made before the work begins; a request that is repeated
 * after a restart has the same id, so the row is stored once.
 *
 * A row that says "running" while no worker holds it belongs to a server that stopped; find()
 * marks it as failed before it is shown.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/memory.h"
#include "gateway/auth.h"
#include "gateway/doors/background.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/http/inner.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

static void clear(responses_run *r)
{
    cJSON_Delete(r->chat);
    cJSON_Delete(r->spaces);
    cJSON_Delete(r->input);
    cJSON_Delete(r->response);
    jsonw_clear(&r->said);
    response_row_clear(&r->row);
}

/* ------------------------------------------------------------------------ create -- */

static void rename_param(openai_problem *p)
{
    static const struct {
        const char *theirs, *ours;
    } names[] = {{"messages", "input"},
                 {"max_completion_tokens", "max_output_tokens"},
                 {"max_tokens", "max_output_tokens"},
                 {"response_format", "text.format"},
                 {"reasoning_effort", "reasoning.effort"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strncmp(p->param, names[i].theirs, strlen(names[i].theirs)) == 0)
            snprintf(p->param, sizeof(p->param), "%s", names[i].ours);
    }
}

/* The row gets the object and the input as they are now.  False: *p says why. */
static bool keep(responses_run *r, bool running, openai_problem *p)
{
    err e;
    response_row_clear(&r->row);
    r->row.running = running;
    r->row.body = json_print(r->response);
    r->row.input = json_print(r->input);
    if (!r->row.body || !r->row.input)
        return openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
    const response_quota quota = {.bytes = r->x->conf->responses.tenant_bytes,
                                  .rows = r->x->conf->responses.tenant_rows};
    err_code rc =
        responses_put(store_of(r->srv), tenants_seal_key(tenants_of(r->srv)), &r->row, &quota, &e);
    if (!rc) return true;
    if (rc == ERR_LIMIT)
        return openai_refuse(p, 429, "storage_quota_exceeded", "store", "%s", e.msg);
    return openai_refuse(p, 503, "storage_unavailable", NULL, "the response cannot be stored: %s",
                         e.msg);
}

static bool end(void *state, jsonw *w, const openai_usage *u, bool stream, openai_problem *p)
{
    responses_run *r = state;
    responses_finish(r, stream ? w : NULL, u);
    if (r->said.failed)
        return openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
    if (r->store && !keep(r, false, p)) return false;
    if (stream) {
        bool cut = r->finish && strcmp(r->finish, "length") == 0;
        responses_event(r, w, cut ? "response.incomplete" : "response.completed");
    } else {
        door_write(w, NULL, r->response);
    }
    return true;
}

static void fail(void *state, jsonw *w, const openai_problem *p)
{
    responses_run *r = state;
    if (!w) return;
    jsonw_raw(w, "event: error\ndata: ", 19);
    w->comma = false;
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "type", "error");
    jsonw_int(w, "sequence_number", r->sequence++);
    jsonw_str(w, "code", p->code);
    jsonw_str(w, "message", p->msg);
    jsonw_str(w, "param", p->param[0] ? p->param : NULL);
    jsonw_close(w, '}');
    jsonw_raw(w, "\n\n", 2);
}

static const completion_door door = {.prefix = "resp",
                                     .endpoint = "responses",
                                     .translate = responses_translate,
                                     .rename = rename_param,
                                     .begin = responses_begin,
                                     .say = responses_say,
                                     .end = end,
                                     .fail = fail};

static void set_row(responses_run *r, const char *prefix)
{
    int64_t keep_us = r->x->conf->responses.keep_us;
    r->row.tenant_id = r->x->caller->tenant.id;
    r->row.created_us = clock_wall_us();
    r->row.expires_us = keep_us ? r->row.created_us + keep_us : 0;
    if (r->x->inner) /* the same when it comes again: stored once */
        snprintf(r->row.id, sizeof(r->row.id), "%s%032d%s", prefix, 0,
                 r->x->request_id + strlen("req_"));
    else
        door_make_id(prefix, r->row.id);
}

/* The thread that makes it is given an id, and with it that of the row. */
static bool queue(responses_run *r, const cJSON *body, bool *stream, openai_problem *p)
{
    uint64_t id = store_next_id(store_of(r->srv));
    bool drop_oldest;
    err e;
    snprintf(r->row.id, sizeof(r->row.id), "resp_%032d%016llx", 0, (unsigned long long)id);
    if (!process_of(r->srv)->background)
        return openai_refuse(p, 400, "unsupported_parameter", "background",
                             "'background': this server does not run responses in the background "
                             "(responses.background)");
    if (!responses_translate(r, r->x, body, &drop_oldest, p)) return false;
    if (!r->store)
        return openai_refuse(p, 400, "invalid_value", "background",
                             "'background' needs 'store': its answer is fetched later");
    door_set(r->response, "status", cJSON_CreateString("queued"));
    if (!keep(r, true, p)) return false;
    jsonw first;
    jsonw_init(&first);
    if (*stream) {
        responses_event(r, &first, "response.created");
        responses_event(r, &first, "response.queued");
        if (first.failed ||
            responses_put_events(store_of(r->srv), tenants_seal_key(tenants_of(r->srv)),
                                 r->row.tenant_id, r->row.id, "", &e))
            *stream = false; /* it goes on without */
    }
    err_code rc =
        background_add(process_of(r->srv)->background, r, id, body, *stream ? &first : NULL, &e);
    jsonw_clear(&first);
    if (!rc) return true;
    (void)responses_delete(store_of(r->srv), r->row.tenant_id, r->row.id, NULL);
    return openai_refuse(p, e.code == ERR_BUSY ? 429 : 503, "queue_full", "background", "%s",
                         e.msg);
}

static void create_in_background(responses_run *r, const cJSON *body)
{
    openai_problem p;
    bool stream = cJSON_IsTrue(json_get(body, "stream"));
    exchange_note(r->x, "background", "%s", r->row.id);
    if (!queue(r, body, &stream, &p))
        door_send_problem(r->x, &p);
    else if (stream)
        responses_follow(r->x, r->row.id, -1);
    else
        exchange_reply(r->x, 200, "application/json", r->row.body, strlen(r->row.body));
}

void responses_create(exchange *x)
{
    responses_run r = {.x = x, .srv = x->app};
    const cJSON *body;
    if (!exchange_read_json(x, &body)) return;
    jsonw_init(&r.said);
    set_row(&r, "resp_");
    if (x->inner && x->inner->hear) r.sequence = BACKGROUND_STREAM_START;
    if (!x->inner && cJSON_IsTrue(json_get(body, "background")))
        create_in_background(&r, body);
    else
        completion_handle_door(x, &door, &r);
    clear(&r);
}

/* The body as /tokenize would count the chat that it is. */
void responses_count(exchange *x)
{
    responses_run r = {.x = x, .srv = x->app};
    jsonw_init(&r.said);
    set_row(&r, "resp_");
    door_count(x, &door, &r, "response.input_tokens");
    clear(&r);
}

/* ----------------------------------------------------------------- what is stored -- */

static err_code is_of_kind(const exchange *x, bool conversation, err *e)
{
    bool is = strncmp(x->param[0], "conv_", 5) == 0;
    return is == conversation ? ERR_NONE : err_set(e, ERR_NOT_FOUND, "it is of another kind");
}

static void not_found(exchange *x, bool conversation, const err *e)
{
    if (e->code == ERR_NOT_FOUND)
        exchange_error(x, 404, "invalid_request_error", "not_found", NULL,
                       "There is no %s with the id '%.70s'.",
                       conversation ? "conversation" : "response", x->param[0]);
    else
        exchange_reply_err(x, e, NULL);
}

/* The caller's row of that kind; false: answered. */
static bool find(exchange *x, bool conversation, response_row *row)
{
    err e;
    server *s = x->app;
    bool held = process_of(s)->background &&
                background_holds(process_of(s)->background, x->caller->tenant.id, x->param[0]);
    err_code rc = is_of_kind(x, conversation, &e);
    if (!rc)
        rc = responses_get(store_of(s), tenants_seal_key(tenants_of(s)), x->caller->tenant.id,
                           x->param[0], row, &e);
    if (!rc && row->running && !held) {
        rc = background_lost(s, row, &e);
        if (rc) response_row_clear(row);
    }
    if (rc) not_found(x, conversation, &e);
    return rc == ERR_NONE;
}

static bool parse_stored(exchange *x, const char *text, cJSON **out)
{
    err e;
    if (!json_parse(text, strlen(text), &json_limits_trusted, out, &e)) return true;
    exchange_reply_err(x, &e, NULL);
    return false;
}

void responses_get_one(exchange *x)
{
    response_row row;
    static const char *const words[] = {"false", "true", NULL};
    int stream = 0;
    uint64_t after = 0;
    bool from = exchange_query(x, "starting_after") != NULL;
    if (!api_query_word(x, "stream", words, &stream)) return;
    if (!api_query_number(x, "starting_after", 0, INT32_MAX - 1, &after)) return;
    if (!find(x, false, &row)) return;
    if (stream)
        responses_follow(x, row.id, from ? (int64_t)after : -1);
    else
        exchange_reply(x, 200, "application/json", row.body, strlen(row.body));
    response_row_clear(&row);
}

static void drop(exchange *x, bool conversation)
{
    err e;
    err_code rc = is_of_kind(x, conversation, &e);
    if (!rc && process_of(x->app)->background) /* else its end would store it anew */
        (void)background_cancel(process_of(x->app)->background, x->caller->tenant.id, x->param[0]);
    if (!rc) rc = responses_delete(store_of(x->app), x->caller->tenant.id, x->param[0], &e);
    if (rc) {
        not_found(x, conversation, &e);
        return;
    }
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "id", x->param[0]);
    jsonw_str(&w, "object", conversation ? "conversation.deleted" : "response");
    jsonw_bool(&w, "deleted", true);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

void responses_delete_one(exchange *x)
{
    drop(x, false);
}

void responses_cancel(exchange *x)
{
    response_row row;
    cJSON *tree = NULL;
    if (process_of(x->app)->background)
        (void)background_cancel(process_of(x->app)->background, x->caller->tenant.id, x->param[0]);
    if (!find(x, false, &row)) return;
    bool was = parse_stored(x, row.body, &tree);
    if (was && cJSON_IsTrue(json_get(tree, "background")))
        exchange_reply(x, 200, "application/json", row.body, strlen(row.body));
    else if (was)
        exchange_error(x, 400, "invalid_request_error", "invalid_value", NULL,
                       "only a response that runs in the background can be cancelled");
    cJSON_Delete(tree);
    response_row_clear(&row);
}

/* A page of items, as ?limit=, ?after= and ?order= ask. */
static void list_items(exchange *x, const cJSON *items)
{
    const char *limit = exchange_query(x, "limit"), *after = exchange_query(x, "after");
    const char *order = exchange_query(x, "order");
    char *end = NULL;
    long most = limit ? strtol(limit, &end, 10) : 20;
    if (limit && (*end || most < 1 || most > 100)) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "limit",
                       "'limit' must be a number from 1 to 100");
        return;
    }
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "order",
                       "'order' must be asc or desc");
        return;
    }
    bool up = order && strcmp(order, "asc") == 0, seen = !after, more = false;
    int n = cJSON_GetArraySize(items), given = 0;
    const char *first = "", *last = "";
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "object", "list");
    jsonw_open(&w, "data", '[');
    for (int i = 0; i < n; i++) {
        const cJSON *item = cJSON_GetArrayItem(items, up ? i : n - 1 - i);
        const char *id = door_text(item, "id") ? door_text(item, "id") : "";
        if (seen && given == most) more = true;
        if (seen && given < most) {
            door_write(&w, NULL, item);
            if (given++ == 0) first = id;
            last = id;
        }
        seen |= after && strcmp(id, after) == 0;
    }
    jsonw_close(&w, ']');
    jsonw_str(&w, "first_id", first);
    jsonw_str(&w, "last_id", last);
    jsonw_bool(&w, "has_more", more);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

void responses_input_items(exchange *x)
{
    response_row row;
    cJSON *items = NULL;
    if (!find(x, false, &row)) return;
    if (parse_stored(x, row.input, &items)) list_items(x, items);
    cJSON_Delete(items);
    response_row_clear(&row);
}

/* ---------------------------------------------------------------- conversations -- */

static bool keep_first_items(responses_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *items = json_get(body, "items"), *item;
    cJSON *messages = cJSON_CreateArray();
    bool ok = !items || cJSON_IsNull(items) ||
              (cJSON_IsArray(items) && cJSON_GetArraySize(items) <= 20) ||
              openai_refuse(p, 400, "invalid_value", "items",
                            "'items' must be an array of at most 20 items");
    if (!ok) items = NULL;
    cJSON_ArrayForEach(item, items)
    {
        ok = ok && responses_add_item(messages, item, p);
        if (ok) door_append(r->input, responses_keep_item(r, item));
    }
    cJSON_Delete(messages);
    return ok;
}

void conversations_create(exchange *x)
{
    const cJSON *body;
    openai_problem p;
    if (!exchange_read_json(x, &body)) return;
    responses_run r = {.x = x, .srv = x->app, .store = true};
    jsonw_init(&r.said);
    set_row(&r, "conv_");
    snprintf(r.row.conversation, sizeof(r.row.conversation), "%s", r.row.id);
    r.input = cJSON_CreateArray();
    r.response = cJSON_CreateObject();
    door_add_text(r.response, "id", r.row.id);
    door_add_text(r.response, "object", "conversation");
    door_add_seconds(r.response, "created_at", r.row.created_us);
    const cJSON *metadata = cJSON_IsObject(body) ? json_get(body, "metadata") : NULL;
    door_add(r.response, "metadata",
             cJSON_IsObject(metadata) ? cJSON_Duplicate(metadata, true) : cJSON_CreateObject());
    bool ok = (cJSON_IsObject(body) ||
               openai_refuse(&p, 400, "invalid_value", NULL, "the body must be a JSON object")) &&
              door_check_metadata(body, &p) && keep_first_items(&r, body, &p) &&
              keep(&r, false, &p);
    if (ok)
        exchange_reply(x, 200, "application/json", r.row.body, strlen(r.row.body));
    else
        door_send_problem(x, &p);
    clear(&r);
}

void conversations_get(exchange *x)
{
    response_row row;
    if (!find(x, true, &row)) return;
    exchange_reply(x, 200, "application/json", row.body, strlen(row.body));
    response_row_clear(&row);
}

void conversations_delete(exchange *x)
{
    drop(x, true);
}

/* Takes the items of `text` over into `all`. */
static bool add_items(exchange *x, const char *text, const char *member, cJSON *all)
{
    cJSON *tree = NULL;
    if (!parse_stored(x, text, &tree)) return false;
    cJSON *list = member ? cJSON_GetObjectItemCaseSensitive(tree, member) : tree;
    for (cJSON *v = list ? list->child : NULL, *next; v; v = next) {
        next = v->next;
        door_append(all, cJSON_DetachItemViaPointer(list, v));
    }
    cJSON_Delete(tree);
    return true;
}

void conversations_items(exchange *x)
{
    response_row row, *rows = NULL;
    size_t n = 0;
    err e;
    if (!find(x, true, &row)) return;
    cJSON *all = cJSON_CreateArray();
    bool ok = add_items(x, row.input, NULL, all);
    response_row_clear(&row);
    if (ok &&
        responses_list(store_of(x->app), tenants_seal_key(tenants_of(x->app)), x->caller->tenant.id,
                       x->param[0], RESPONSES_ITEMS_MAX, &rows, &n, &e)) {
        ok = false;
        exchange_reply_err(x, &e, NULL);
    }
    for (size_t i = 0; i < n; i++) {
        ok = ok && add_items(x, rows[i].input, NULL, all) &&
             add_items(x, rows[i].body, "output", all);
        response_row_clear(&rows[i]);
    }
    free(rows);
    if (ok) list_items(x, all);
    cJSON_Delete(all);
}
