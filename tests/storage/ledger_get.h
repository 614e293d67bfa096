/* ledger_get.h -- one request's row as the database has it, for tests: the server itself
 * reads only sums and pages.
 *
 * Threads: any thread.
 */
#ifndef TESTS_STORAGE_LEDGER_GET_H
#define TESTS_STORAGE_LEDGER_GET_H

#include <string.h>

#include "storage/ledger.h"
#include "storage/store_sql.h"

/* ERR_NOT_FOUND: there is none. */
static inline err_code ledger_get(store *st, uint64_t request_id, usage_row *out, err *e)
{
    memset(out, 0, sizeof(*out));
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(
        &q, db,
        "SELECT request_id, tenant_id, key_id, adapter_id, model, slo_class, endpoint,"
        " prompt_tokens, cached_tokens, output_tokens, status, finish, ttft_ms, duration_ms,"
        " started_us, ended_us, recovered, queue_ms, missed, cost FROM usage WHERE request_id=?");
    sql_int(&q, (int64_t)request_id);
    bool found = sql_row(&q);
    if (found) {
        out->request_id = (uint64_t)sql_col_int(&q, 0);
        out->tenant_id = (uint64_t)sql_col_int(&q, 1);
        out->key_id = (uint64_t)sql_col_int(&q, 2);
        out->adapter_id = (uint64_t)sql_col_int(&q, 3);
        sql_col_text(&q, 4, out->model, sizeof out->model);
        sql_col_text(&q, 5, out->slo_class, sizeof out->slo_class);
        sql_col_text(&q, 6, out->endpoint, sizeof out->endpoint);
        out->prompt_tokens = (uint32_t)sql_col_int(&q, 7);
        out->cached_tokens = (uint32_t)sql_col_int(&q, 8);
        out->output_tokens = (uint32_t)sql_col_int(&q, 9);
        out->status = (int)sql_col_int(&q, 10);
        sql_col_text(&q, 11, out->finish, sizeof out->finish);
        out->ttft_ms = sql_col_int(&q, 12);
        out->duration_ms = sql_col_int(&q, 13);
        out->started_wall_us = sql_col_int(&q, 14);
        out->ended_wall_us = sql_col_int(&q, 15);
        out->recovered = sql_col_int(&q, 16) != 0;
        out->queue_ms = sql_col_int(&q, 17);
        out->cost = sql_col_int(&q, 19);
        char missed[24];
        sql_col_text(&q, 18, missed, sizeof missed);
        for (int k = 0; k < MISS_CAUSES; k++) {
            if (strcmp(missed, miss_cause_name(k)) == 0) out->missed = (miss_cause)k;
        }
    }
    err_code rc = sql_end(&q, "read the usage", e);
    store_read_end(st, db);
    if (!rc && !found) rc = err_set(e, ERR_NOT_FOUND, "no such request");
    return rc;
}

#endif
