/* batch_fields.c -- writes files, batches and lists of them as OpenAI does. */
#include "gateway/batches/batch_fields.h"

#include <string.h>

#include "gateway/auth.h"
#include "gateway/http/api_fields.h"

bool batch_page_read(exchange *x, size_t usual, size_t most, batch_page *out)
{
    static const char *const orders[] = {"asc", "desc", NULL};
    uint64_t limit = usual;
    int order = 1;
    *out = (batch_page){.tenant_id = x->caller->tenant.id, .after = exchange_query(x, "after")};
    if (!api_query_number(x, "limit", 1, most, &limit)) return false;
    if (!api_query_word(x, "order", orders, &order)) return false;
    out->limit = limit;
    out->oldest_first = order == 0;
    return true;
}

void batch_write_file(jsonw *w, const file_row *f)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "id", f->id);
    jsonw_str(w, "object", "file");
    jsonw_int(w, "bytes", f->bytes);
    jsonw_int(w, "created_at", f->created_us / 1000000);
    api_write_time(w, "expires_at", f->expires_us);
    jsonw_str(w, "filename", f->name);
    jsonw_str(w, "purpose", f->purpose);
    jsonw_str(w, "status", "processed");
    jsonw_null(w, "status_details");
    jsonw_close(w, '}');
}

static void write_times(jsonw *w, const batch_row *b)
{
    static const struct {
        const char *name;
        batch_status status;
    } ends[] = {{"completed_at", BATCH_COMPLETED},
                {"failed_at", BATCH_FAILED},
                {"expired_at", BATCH_EXPIRED},
                {"cancelled_at", BATCH_CANCELLED}};
    jsonw_int(w, "created_at", b->created_us / 1000000);
    api_write_time(w, "expires_at", b->deadline_us);
    api_write_time(w, "in_progress_at", b->begun_us);
    api_write_time(w, "finalizing_at", b->finalizing_us);
    api_write_time(w, "cancelling_at", b->cancelling_us);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        api_write_time(w, ends[i].name, b->status == ends[i].status ? b->ended_us : 0);
}

void batch_write(jsonw *w, const batch_row *b, const char *whose)
{
    bool ended = batch_has_ended(b->status);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "id", b->id);
    jsonw_str(w, "object", "batch");
    if (whose) jsonw_str(w, "tenant", whose);
    jsonw_str(w, "endpoint", b->endpoint);
    jsonw_json(w, "errors", b->errors, b->errors ? strlen(b->errors) : 0);
    jsonw_str(w, "input_file_id", b->input);
    jsonw_str(w, "completion_window", "24h");
    jsonw_str(w, "status", batch_status_name(b->status));
    jsonw_str(w, "output_file_id", ended && b->completed > 0 ? b->output : NULL);
    jsonw_str(w, "error_file_id", ended && b->failed > 0 ? b->error : NULL);
    write_times(w, b);
    jsonw_open(w, "request_counts", '{');
    jsonw_int(w, "total", b->total);
    jsonw_int(w, "completed", b->completed);
    jsonw_int(w, "failed", b->failed);
    jsonw_close(w, '}');
    jsonw_json(w, "metadata", b->metadata, b->metadata ? strlen(b->metadata) : 0);
    jsonw_close(w, '}');
}

void batch_list_end(exchange *x, jsonw *w, const char *first, const char *last, bool more)
{
    jsonw_close(w, ']');
    jsonw_str(w, "first_id", first);
    jsonw_str(w, "last_id", last);
    jsonw_bool(w, "has_more", more);
    jsonw_close(w, '}');
    exchange_reply_json(x, 200, w);
    jsonw_clear(w);
}

void batch_reply_err(exchange *x, const char *kind, const char *id, const err *e)
{
    if (e->code == ERR_NOT_FOUND)
        exchange_error(x, 404, "invalid_request_error", "not_found", NULL,
                       "There is no %s with the id '%.70s'.", kind, id);
    else
        exchange_reply_err(x, e, NULL);
}
