/* batch_fields.h -- what /v1/files and /v1/batches share of their answers: objects and lists.
 *
 * Threads: workers.
 */
#ifndef GATEWAY_BATCHES_BATCH_FIELDS_H
#define GATEWAY_BATCHES_BATCH_FIELDS_H

#include "gateway/http/exchange.h"
#include "storage/batches/batches.h"

/* ?after=, ?limit= (from 1 to `most`, `usual` where it is not said), ?order=; the caller's tenant.
 * False: answered. */
bool batch_page_read(exchange *x, size_t usual, size_t most, batch_page *out);

void batch_write_file(jsonw *w, const file_row *f);
/* `whose`: beside OpenAI's members whose it is, for operators; NULL: for the tenant itself. */
void batch_write(jsonw *w, const batch_row *b, const char *whose);

/* The end of an OpenAI list: ids may be NULL where it is empty. */
void batch_list_end(exchange *x, jsonw *w, const char *first, const char *last, bool more);

/* 404 for what the tenant does not have, whoever has it. */
void batch_reply_err(exchange *x, const char *kind, const char *id, const err *e);

#endif
