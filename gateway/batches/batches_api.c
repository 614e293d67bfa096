/* batches_api.c -- handlers of /v1/batches: they create, show and cancel rows; runner.c does the
 * work.
 *
 * Creation checks what can be checked without reading the input: the endpoint, the window, the
 * class that batches run in, the file's owner and purpose. The lines are checked later by the
 * runner, and their errors appear in the batch, as with OpenAI. The ids of both result files are
 * made now, so that they are the same after a restart.
 *
 * A cancelled batch becomes "cancelling" in the database first and is then reported to the
 * runner; lines that run finish, others do not start.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "gateway/auth.h"
#include "gateway/batches/batch_fields.h"
#include "gateway/batches/blob.h"
#include "gateway/batches/line_run.h"
#include "gateway/batches/runner.h"
#include "gateway/config/classes.h"
#include "gateway/doors/door_json.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/process_parts.h"
#include "gateway/rest/api_audit.h"
#include "gateway/tenant_parts.h"

enum { LIST_USUAL = 20, LIST_MAX = 100, KEEP_MIN_S = 3600, KEEP_MAX_S = 2592000 };

static void reply_batch(exchange *x, const batch_row *b)
{
    jsonw w;
    jsonw_init(&w);
    batch_write(&w, b, NULL);
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

static bool refuse(exchange *x, const char *code, const char *param, const char *msg)
{
    exchange_error(x, 400, "invalid_request_error", code, param, "%s", msg);
    return false;
}

/* ------------------------------------------------------------------------- create -- */

/* A member that must be a string; NULL: answered. */
static const char *take_text(exchange *x, const cJSON *body, const char *name)
{
    const cJSON *v = json_get(body, name);
    if (cJSON_IsString(v) && v->valuestring[0]) return v->valuestring;
    exchange_error(x, 400, "invalid_request_error",
                   v ? "invalid_value" : "missing_required_parameter", name,
                   "'%s' must be a string", name);
    return NULL;
}

static bool take_endpoint(exchange *x, const cJSON *body, batch_row *b)
{
    const char *s = take_text(x, body, "endpoint");
    if (!s) return false;
    if (!batch_handler_of(s)) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "endpoint",
                       "'endpoint' must be one of %s", batch_endpoints());
        return false;
    }
    snprintf(b->endpoint, sizeof(b->endpoint), "%s", s);
    return true;
}

static bool take_window(exchange *x, const cJSON *body, batch_row *b)
{
    const char *s = take_text(x, body, "completion_window");
    if (!s) return false;
    if (strcmp(s, "24h") != 0)
        return refuse(x, "invalid_value", "completion_window",
                      "'completion_window' must be \"24h\"");
    b->deadline_us = b->created_us + x->conf->batches.window_us;
    return true;
}

/* For how long what it writes is kept: the server's time, or less. */
static bool take_keep(exchange *x, const cJSON *body, batch_row *b)
{
    static const char name[] = "output_expires_after";
    const cJSON *v = json_get(body, name);
    int64_t s = 0;
    bool found = false;
    err e;
    b->keep_us = x->conf->files.keep_us;
    if (!v || cJSON_IsNull(v)) return true;
    if (!cJSON_IsObject(v) || !door_is(v, "anchor", "created_at"))
        return refuse(x, "invalid_value", name,
                      "'output_expires_after.anchor' must be \"created_at\"");
    if (json_int(v, "seconds", KEEP_MIN_S, KEEP_MAX_S, &s, &found, &e) || !found)
        return refuse(x, "invalid_value", name,
                      "'output_expires_after.seconds' must be a whole number from 3600 to 2592000");
    if (!b->keep_us || s * 1000000 < b->keep_us) b->keep_us = s * 1000000;
    return true;
}

static bool take_metadata(exchange *x, const cJSON *body, batch_row *b)
{
    openai_problem p;
    const cJSON *v = json_get(body, "metadata");
    if (!door_check_metadata(body, &p)) {
        exchange_error(x, p.status, p.type, p.code, "metadata", "%s", p.msg);
        return false;
    }
    if (!v || cJSON_IsNull(v)) return true;
    b->metadata = json_print(v);
    if (!b->metadata) exchange_starved(x);
    return b->metadata != NULL;
}

static bool read_create(exchange *x, batch_row *b)
{
    static const char *const known[] = {
        "input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after", NULL};
    const cJSON *body;
    if (!exchange_read_json(x, &body) || !api_only_fields(x, body, known)) return false;
    const char *input = take_text(x, body, "input_file_id");
    if (!input) return false;
    if (strlen(input) > BATCH_ID_MAX)
        return refuse(x, "invalid_value", "input_file_id",
                      "'input_file_id' is not the id of a file");
    snprintf(b->input, sizeof(b->input), "%s", input);
    return take_endpoint(x, body, b) && take_window(x, body, b) && take_keep(x, body, b) &&
           take_metadata(x, body, b);
}

/* A batch runs in one class, which the tenant may be barred from. */
static bool check_class(exchange *x)
{
    const config *c = x->conf;
    const char *class =
        c->batches.class[0] ? c->batches.class : c->classes.each[c->classes.n - 1].name;
    if (list_allows(x->caller->tenant.classes, class)) return true;
    exchange_error(x, 403, "permission_error", "class_not_allowed", NULL,
                   "batches run in the class '%s', which this tenant may not use", class);
    return false;
}

/* Files that are no batch's input are not for reading.  False: answered. */
static bool check_input(exchange *x, const batch_row *b)
{
    file_row f;
    err e;
    if (files_get(store_of(x->app), b->tenant_id, b->input, &f, &e)) {
        batch_reply_err(x, "file", b->input, &e);
        return false;
    }
    return strcmp(f.purpose, "batch") == 0 ||
           refuse(x, "invalid_value", "input_file_id",
                  "the input file must have the purpose \"batch\"");
}

static void create(exchange *x, batch_row *b)
{
    const batch_quota quota = {.unfinished = x->conf->batches.tenant_batches,
                               .ended = x->conf->batches.tenant_ended};
    err e;
    err_code rc = batches_put(store_of(x->app), b, &quota, &e);
    if (rc == ERR_LIMIT) {
        exchange_error(x, 429, "rate_limit_error", "batch_limit_exceeded", NULL, "%s", e.msg);
        return;
    }
    if (!rc) rc = batch_runner_add(process_of(x->app)->batches, b, &e);
    if (rc) {
        batch_reply_err(x, "file", b->input, &e);
        return;
    }
    api_audit(x, b->tenant_id, "batch.create", b->id, NULL);
    reply_batch(x, b);
}

void batches_create(exchange *x)
{
    batch_row b = {.tenant_id = x->caller->tenant.id,
                   .key_id = x->caller->key.id,
                   .created_us = clock_wall_us()};
    door_make_id("batch_", b.id);
    door_make_id("file-", b.output);
    door_make_id("file-", b.error);
    if (atomic_load(&process_of(x->app)->http.draining))
        exchange_error(x, 503, "server_error", "shutting_down", NULL,
                       "the server is shutting down");
    else if (check_class(x) && read_create(x, &b) && check_input(x, &b))
        create(x, &b);
    batch_row_clear(&b);
}

/* ------------------------------------------------------------------- list, get, cancel -- */

void batches_page(exchange *x)
{
    batch_page p;
    batch_row *list;
    size_t n;
    bool more;
    err e;
    if (!batch_page_read(x, LIST_USUAL, LIST_MAX, &p)) return;
    if (batches_list(store_of(x->app), &p, &list, &n, &more, &e)) {
        batch_reply_err(x, "batch", p.after ? p.after : "", &e);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) batch_write(&w, &list[i], NULL);
    batch_list_end(x, &w, n ? list[0].id : NULL, n ? list[n - 1].id : NULL, more);
    batch_rows_free(list, n);
}

void batches_get_one(exchange *x)
{
    batch_row b;
    err e;
    if (batches_get(store_of(x->app), x->caller->tenant.id, x->param[0], &b, &e)) {
        batch_reply_err(x, "batch", x->param[0], &e);
        return;
    }
    reply_batch(x, &b);
    batch_row_clear(&b);
}

void batches_cancel_one(exchange *x)
{
    batch_row b;
    err e;
    uint64_t tenant_id = x->caller->tenant.id;
    if (batches_cancel(store_of(x->app), tenant_id, x->param[0], clock_wall_us(), &b, &e)) {
        batch_reply_err(x, "batch", x->param[0], &e);
        return;
    }
    batch_runner_cancel(process_of(x->app)->batches, b.id);
    api_audit(x, tenant_id, "batch.cancel", b.id, NULL);
    reply_batch(x, &b);
    batch_row_clear(&b);
}
