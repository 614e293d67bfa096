/* batch_job.c -- the beginning and the end of a batch. Each can be repeated from its start after
 * a crash.
 *
 *     validating -> in_progress -> finalizing -> completed
 *          |            |                     \-> cancelled, expired
 *          v            v
 *        failed     (lines run: line_run.c, runner.c)
 *
 * Beginning: check the input's lines once, take an id for every line (BATCH_LINE_IDS each, in
 * one range that is written to the row before a line runs), open both answer files. Since a
 * line's id follows from its number, a line that runs again after a crash has the same id, and
 * the ledger counts it once.
 *
 * Progress is not in the database but in the answer files: opening the journal reads which lines
 * have an answer. The row's counts are a copy for users.
 *
 * End: lines that did not run get an error in OpenAI's words, the row gets its final status
 * together with the rows of both files in one transaction. If that fails the row is restored, so
 * that the next attempt starts from the same state.
 */
#include "gateway/batches/batch_job.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "gateway/adapter_parts.h"
#include "gateway/batches/blob.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

batch_job *batch_job_create(const batch_row *row, int most)
{
    batch_job *j = calloc(1, sizeof(*j));
    batch_try *again = calloc(2 * (size_t)most, sizeof(*again));
    if (!j || !again) {
        free(j);
        free(again);
        return NULL;
    }
    j->row = *row;
    j->row.metadata = j->row.errors = NULL; /* the table has them */
    j->again = again;
    j->cancelling = row->status == BATCH_CANCELLING;
    return j;
}

static void close_files(batch_job *j)
{
    batch_lines_close(&j->lines);
    batch_journal_close(&j->journal);
    free(j->done.line);
    j->done = (batch_done){0};
    j->n_again = j->cursor = 0;
}

void batch_job_free(batch_job *j)
{
    close_files(j);
    batch_row_clear(&j->row);
    free(j->again);
    free(j);
}

/* -------------------------------------------------------------------------------- open -- */

/* Ends the row.  Where that fails, it is as it was: the next write of its counts must not end the
 * batch without its files. */
static err_code end_row(batch_job *j, server *srv, batch_status status, int64_t wall_us,
                        const file_row *files, size_t n, err *e)
{
    batch_status was = j->row.status;
    assert(!batch_has_ended(was) && batch_has_ended(status));
    j->row.status = status;
    j->row.ended_us = wall_us;
    err_code rc = batches_end(store_of(srv), &j->row, files, n, e);
    if (!rc) return ERR_NONE;
    j->row.status = was;
    j->row.ended_us = 0;
    return rc;
}

/* The batch is over before a line was run; `errors` (taken over) say why. */
static err_code end_early(batch_job *j, server *srv, batch_status status, char *errors, err *e)
{
    batch_row_clear(&j->row);
    j->row.errors = errors;
    err_code rc = end_row(j, srv, status, clock_wall_us(), NULL, 0, e);
    if (rc) batch_row_clear(&j->row);
    return rc;
}

/* In its row before a line runs: the ids are its lines' for ever. */
static err_code begin(batch_job *j, server *srv, err *e)
{
    batch_status now;
    uint64_t n = (uint64_t)j->lines.n * BATCH_LINE_IDS;
    j->row.total = j->lines.n;
    j->row.first_id = store_take_ids(store_of(srv), n);
    j->row.last_id = store_nth_id(store_of(srv), j->row.first_id, n - 1);
    j->row.status = BATCH_IN_PROGRESS;
    j->row.begun_us = clock_wall_us();
    err_code rc = batches_update(store_of(srv), &j->row, &now, e);
    if (rc) {
        j->row.first_id = 0;
        return rc;
    }
    j->cancelling |= now == BATCH_CANCELLING;
    return ERR_NONE;
}

static blob_place place_of(const batch_job *j, server *srv, const char *id)
{
    return (blob_place){process_of(srv)->cfg->data.dir, tenants_seal_key(tenants_of(srv)),
                        j->row.tenant_id, id};
}

/* As long as its row says: else it is damaged.  One whose time is over has none to be seen. */
static err_code check_length(const batch_job *j, server *srv, int64_t bytes, err *e)
{
    file_row f;
    err_code rc = files_get(store_of(srv), j->row.tenant_id, j->row.input, &f, e);
    if (rc == ERR_NOT_FOUND || (!rc && f.bytes == bytes)) return ERR_NONE;
    return rc ? rc
              : err_set(e, ERR_CORRUPT, "the input file is damaged: it is not as long as it was");
}

/* The input as it is: *errors is NULL, or what is wrong with it. */
static err_code open_input(batch_job *j, server *srv, char **errors, err *e)
{
    sealed_file file;
    const blob_place at = place_of(j, srv, j->row.input);
    *errors = NULL;
    int most = j->row.first_id ? INT32_MAX : (int)process_of(srv)->cfg->batches.max_lines;
    err_code rc = blob_open(&file, &at, false, e);
    if (!rc) rc = check_length(j, srv, file.n_bytes, e);
    if (!rc) rc = batch_lines_open(&j->lines, &file, most, e);
    sealed_file_close(&file);
    bool first = !j->row.first_id;
    if (!rc && first)
        rc = batch_lines_check(&j->lines, j->row.endpoint, process_of(srv)->cfg->server.max_body,
                               errors, e);
    if (rc == ERR_LIMIT) *errors = batch_lines_error("too_many_requests", e->msg);
    if (rc == ERR_NOT_FOUND || (rc == ERR_CORRUPT && first))
        *errors = batch_lines_error("invalid_file", e->msg);
    return *errors ? ERR_NONE : rc;
}

static err_code open_journal(batch_job *j, server *srv, err *e)
{
    sealed_file file[BATCH_FILES] = {{0}};
    const blob_place output = place_of(j, srv, j->row.output),
                     errors = place_of(j, srv, j->row.error);
    j->done = (batch_done){
        .line = calloc((size_t)j->lines.n, 1), .n = j->lines.n, .first_id = j->row.first_id};
    if (!j->done.line) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = blob_open(&file[BATCH_OUTPUT], &output, true, e);
    if (!rc) rc = blob_open(&file[BATCH_ERRORS], &errors, true, e);
    if (!rc) rc = batch_journal_open(&j->journal, file, adapters_of(srv)->room, &j->done, e);
    for (int k = 0; k < BATCH_FILES; k++) sealed_file_close(&file[k]);
    return rc;
}

err_code batch_job_open(batch_job *j, server *srv, bool *ended, err *e)
{
    char *errors;
    bool late = clock_wall_us() >= j->row.deadline_us;
    close_files(j);
    if (!j->row.first_id && (j->cancelling || late)) {
        *ended = true;
        return end_early(j, srv, j->cancelling ? BATCH_CANCELLED : BATCH_EXPIRED, NULL, e);
    }
    err_code rc = open_input(j, srv, &errors, e);
    if (!rc && errors) {
        *ended = true;
        return end_early(j, srv, BATCH_FAILED, errors, e);
    }
    if (!rc && !j->row.first_id) rc = begin(j, srv, e);
    if (!rc) rc = open_journal(j, srv, e);
    j->open = rc == ERR_NONE;
    if (rc) close_files(j);
    return rc;
}

/* ------------------------------------------------------------------------------- close -- */

static bool is_whole(const batch_job *j)
{
    return j->done.count[BATCH_OUTPUT] + j->done.count[BATCH_ERRORS] == j->done.n;
}

/* Why lines were not run: OpenAI's words. */
static batch_status why_not(const batch_job *j, const char **code, const char **msg)
{
    *code = "batch_expired";
    *msg = "This request could not be executed before the completion window expired.";
    if (!j->cancelling && !j->keyless) return BATCH_EXPIRED;
    *code = "batch_cancelled";
    *msg = j->cancelling ? "This request was not executed: the batch was cancelled."
                         : "This request was not executed: the batch's API key is not valid any "
                           "more.";
    return BATCH_CANCELLED;
}

static err_code write_rest(batch_job *j, server *srv, const char *code, const char *msg, err *e)
{
    err_code rc = ERR_NONE;
    for (int i = 0; !rc && i < j->done.n; i++) {
        const line_job l = {srv, &j->row, &j->lines, &j->journal, .line = i};
        if (j->done.line[i]) continue;
        rc = line_skip(&l, code, msg, e);
        if (rc) break;
        j->done.line[i] = 1;
        j->done.count[BATCH_ERRORS]++;
    }
    return rc ? rc : batch_journal_sync(&j->journal, e);
}

/* finalizing, unless somebody cancels it first. */
static err_code finalize(batch_job *j, server *srv, err *e)
{
    batch_status now;
    j->row.status = BATCH_FINALIZING;
    if (!j->row.finalizing_us) j->row.finalizing_us = clock_wall_us();
    err_code rc = batches_update(store_of(srv), &j->row, &now, e);
    if (!rc) j->cancelling |= now == BATCH_CANCELLING;
    return rc;
}

static err_code write_end(batch_job *j, server *srv, batch_status status, err *e)
{
    const batch_row *b = &j->row;
    const char *const ids[BATCH_FILES] = {b->output, b->error};
    static const char *const names[BATCH_FILES] = {"output", "error"};
    file_row files[BATCH_FILES];
    size_t n = 0;
    int64_t now = clock_wall_us();
    for (int k = 0; k < BATCH_FILES; k++) {
        if (j->journal.file[k].n_bytes == 0) continue;
        file_row *f = &files[n++];
        *f = (file_row){.tenant_id = b->tenant_id,
                        .purpose = "batch_output",
                        .bytes = j->journal.file[k].n_bytes,
                        .created_us = now,
                        .expires_us = b->keep_us ? now + b->keep_us : 0};
        snprintf(f->id, sizeof(f->id), "%s", ids[k]);
        snprintf(f->name, sizeof(f->name), "%s_%s.jsonl", b->id, names[k]);
    }
    return end_row(j, srv, status, now, files, n, e);
}

/* One that nothing was written to. */
static void remove_empty(batch_job *j, server *srv)
{
    const char *const ids[BATCH_FILES] = {j->row.output, j->row.error};
    for (int k = 0; k < BATCH_FILES; k++) {
        err e;
        if (j->journal.file[k].n_bytes == 0)
            (void)blob_remove(process_of(srv)->cfg->data.dir, j->row.tenant_id, ids[k], &e);
    }
}

err_code batch_job_close(batch_job *j, server *srv, err *e)
{
    const char *code, *msg;
    bool whole = is_whole(j);
    err_code rc = whole ? finalize(j, srv, e) : ERR_NONE;
    batch_status status = why_not(j, &code, &msg);
    if (!rc && !whole) rc = write_rest(j, srv, code, msg, e);
    if (rc == ERR_IO) j->open = false; /* what stands there is to be read anew */
    if (rc) return rc;
    j->row.completed = j->done.count[BATCH_OUTPUT];
    j->row.failed = j->done.count[BATCH_ERRORS];
    rc = write_end(j, srv, whole && !j->cancelling ? BATCH_COMPLETED : status, e);
    if (!rc) remove_empty(j, srv);
    return rc;
}
