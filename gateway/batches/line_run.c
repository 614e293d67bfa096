/* line_run.c -- runs one line of a batch through its API's handler, and decides what its answer
 * means.
 *
 * The handler sees an exchange without a connection (inner_request): the body is the line's, the
 * caller is the batch's tenant and key as they are now, and the answer is collected in memory.
 * So a line has the same checks, limits and usage records as the same request over HTTPS.
 *
 *     200                              answer -> output file
 *     429 of a rate limit, 499, 503    the line runs again after Retry-After
 *     429 insufficient_quota           runs again when the budget may have changed
 *     other 5xx                        at most TRIES_MAX times, then the error is its answer
 *     403 after the key was revoked    the batch ends: LINE_KEYLESS
 *     other 4xx                        answer -> error file
 *
 * An answer that cannot be written because the disk is full runs again later: LINE_AGAIN. After
 * any other error of the file it is not known whether the line was written (LINE_UNSURE), and
 * the batch is opened again, which reads the files.
 */
#include "gateway/batches/line_run.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/inner.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

enum {
    TRIES_MAX = 3,             /* tries of a line that fails by a fault of the server */
    FAULT_RETRY_MS = 1000,     /* wait after such a fault, times the tries so far */
    SUSPENDED_RETRY_MS = 5000, /* interval of retries while the tenant is suspended */
    QUOTA_RETRY_MS = 10000,    /* interval while its budget is used up: an operator can raise it */
    ROOM_RETRY_MS = 5000,      /* interval while the disk is too full for an answer */
    RETRY_MIN_MS = 100,
    ROOM_BYTES = 1 << 20, /* free disk space that a line requires, so that its answer fits */
};

static const struct {
    const char *url;
    batch_handler *run;
} handlers[] = {
    {"/v1/chat/completions", completion_handle_chat},
    {"/v1/completions", completion_handle_text},
    {"/v1/responses", responses_create},
    {"/v1/embeddings", embeddings_create},
};

batch_handler *batch_handler_of(const char *url)
{
    assert(url);
    for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++) {
        if (strcmp(url, handlers[i].url) == 0) return handlers[i].run;
    }
    return NULL;
}

const char *batch_endpoints(void)
{
    return "/v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings";
}

/* ---------------------------------------------------------------------------- writing -- */

static void begin_line(jsonw *w, uint64_t id, const char *custom_id)
{
    char head[BATCH_LINE_HEAD_BYTES];
    jsonw_init(w);
    jsonw_raw(w, head, (size_t)batch_journal_head(head, id));
    w->comma = true;
    jsonw_str(w, "custom_id", custom_id);
}

static uint64_t id_of(const line_job *j)
{
    assert(j->line >= 0 && j->row->first_id);
    return store_nth_id(store_of(j->srv), j->row->first_id, (uint64_t)j->line * BATCH_LINE_IDS);
}

/* A line has no line end within: between tokens of JSON white space is as good. */
static void flatten(char *s, size_t len)
{
    for (char *p = s; (p = memchr(p, '\n', len - (size_t)(p - s))); p++) *p = ' ';
}

static err_code write_answer(const line_job *j, const char *custom_id, inner_request *r, err *e)
{
    assert(r->answer && r->status >= 200);
    char request_id[40];
    jsonw w;
    snprintf(request_id, sizeof(request_id), "req_%016llx", (unsigned long long)r->id);
    flatten(r->answer, r->answer_len);
    begin_line(&w, r->id, custom_id);
    jsonw_open(&w, "response", '{');
    jsonw_int(&w, "status_code", r->status);
    jsonw_str(&w, "request_id", request_id);
    jsonw_json(&w, "body", r->answer, r->answer_len);
    jsonw_close(&w, '}');
    jsonw_null(&w, "error");
    jsonw_raw(&w, "}\n", 2);
    err_code rc =
        w.failed ? err_set(e, ERR_NOMEM, "out of memory")
                 : batch_journal_write(j->journal, r->status == 200 ? BATCH_OUTPUT : BATCH_ERRORS,
                                       w.text, w.len, true, e);
    jsonw_clear(&w);
    return rc;
}

err_code line_skip(const line_job *j, const char *code, const char *msg, err *e)
{
    batch_line line;
    jsonw w;
    err_code rc =
        batch_line_read(j->lines, j->line, process_of(j->srv)->cfg->server.max_body, &line, e);
    if (rc) return rc;
    begin_line(&w, id_of(j), line.custom_id);
    jsonw_null(&w, "response");
    jsonw_open(&w, "error", '{');
    jsonw_str(&w, "code", code);
    jsonw_str(&w, "message", msg);
    jsonw_close(&w, '}');
    jsonw_raw(&w, "}\n", 2);
    rc = w.failed ? err_set(e, ERR_NOMEM, "out of memory")
                  : batch_journal_write(j->journal, BATCH_ERRORS, w.text, w.len, false, e);
    jsonw_clear(&w);
    batch_line_clear(&line);
    return rc;
}

/* --------------------------------------------------------------------------- judgement -- */

/* The batch's tenant and key as they are now.  LINE_ANSWERED: it may go on. */
static line_fate look_at_caller(line_job *j, caller *who)
{
    err e;
    err_code rc = auth_again(store_of(j->srv), j->row->tenant_id, j->row->key_id, who, &e);
    j->retry_ms = SUSPENDED_RETRY_MS;
    return rc == ERR_DENIED ? LINE_KEYLESS : rc ? LINE_AGAIN : LINE_ANSWERED;
}

static bool has_code(const inner_request *r, const char *code)
{
    cJSON *tree = NULL;
    err e;
    bool same = false;
    if (json_parse(r->answer, r->answer_len, &json_limits_request, &tree, &e)) return false;
    const cJSON *error = json_get(tree, "error");
    const cJSON *v = cJSON_IsObject(error) ? json_get(error, "code") : NULL;
    same = cJSON_IsString(v) && strcmp(v->valuestring, code) == 0;
    cJSON_Delete(tree);
    return same;
}

/* Should a client try this again?  A limit of rates passes, a budget is renewed, a fault of the
 * server's may; what is wrong with the request stays wrong. */
static bool comes_again(line_job *j, const inner_request *r)
{
    j->retry_ms = r->retry_ms;
    if (r->status == 429 && r->retry_ms < 0) {
        j->retry_ms = QUOTA_RETRY_MS;
        return has_code(r, "insufficient_quota");
    }
    if (r->status == 429 || r->status == 499 || r->status == 503 || r->status == 507) {
        if (j->retry_ms < 0) j->retry_ms = FAULT_RETRY_MS;
        return true;
    }
    if (r->status < 500) return false;
    j->n_tries++;
    j->retry_ms = (int64_t)FAULT_RETRY_MS * j->n_tries;
    return j->n_tries < TRIES_MAX;
}

static line_fate write_fate(line_job *j, const char *custom_id, inner_request *r)
{
    err e;
    err_code rc = write_answer(j, custom_id, r, &e);
    if (!rc) return r->status == 200 ? LINE_ANSWERED : LINE_REFUSED;
    log_error("gateway", "batch %s: an answer is not written and must be made again: %s",
              j->row->id, e.msg);
    j->retry_ms = ROOM_RETRY_MS;
    return rc == ERR_NO_ROOM || rc == ERR_NOMEM ? LINE_AGAIN : LINE_UNSURE;
}

static line_fate run_for(line_job *j, caller *who, const batch_line *line)
{
    inner_request r = {.method = "POST",
                       .path = j->row->endpoint,
                       .body = line->body,
                       .id = id_of(j),
                       .most_choices = BATCH_LINE_IDS,
                       .slo_class = j->slo_class,
                       .who = who,
                       .tenant = who->tenant.name,
                       .batch = j->row->id,
                       .conf = live_pin(process_of(j->srv)->live)};
    inner_run(&process_of(j->srv)->http, &r, batch_handler_of(j->row->endpoint));
    live_release(process_of(j->srv)->live, r.conf);
    line_fate fate = LINE_AGAIN;
    if (!comes_again(j, &r)) {
        fate = LINE_ANSWERED;
        if (r.status == 403) fate = look_at_caller(j, who); /* cut, for its key was revoked? */
        if (fate == LINE_ANSWERED) fate = write_fate(j, line->custom_id, &r);
    }
    inner_end(&r);
    return fate;
}

line_fate line_run(line_job *j)
{
    caller who = {0};
    batch_line line;
    err e;
    j->retry_ms = ROOM_RETRY_MS;
    if (storeroom_check(adapters_of(j->srv)->room, ROOM_BYTES, &e)) return LINE_AGAIN;
    line_fate fate = look_at_caller(j, &who);
    if (fate != LINE_ANSWERED) return fate;
    if (batch_line_read(j->lines, j->line, process_of(j->srv)->cfg->server.max_body, &line, &e)) {
        log_error("gateway", "batch %s: line %d cannot be read: %s", j->row->id, j->line + 1,
                  e.msg);
        return LINE_AGAIN;
    }
    fate = run_for(j, &who, &line);
    batch_line_clear(&line);
    if (j->retry_ms < RETRY_MIN_MS) j->retry_ms = RETRY_MIN_MS;
    return fate;
}
