/* lines.h -- a batch's input: JSON lines, each a request with an id of the client's.
 *
 * The file is read once for where its lines begin, and then line by line.  Blank lines are none.
 *
 * Ownership: the caller's structs.  Threads: once opened, any.
 */
#ifndef GATEWAY_BATCHES_LINES_H
#define GATEWAY_BATCHES_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"
#include "storage/seal/sealed_file.h"

enum { BATCH_CUSTOM_ID_MAX = 256 }; /* bytes */

typedef struct batch_lines {
    sealed_file file;
    int n;
    struct batch_line_place {
        int64_t at;
        int32_t len; /* without its end */
    } * place;       /* [n] */
} batch_lines;

typedef struct batch_line {
    cJSON *tree;
    const char *custom_id; /* in the tree, as is: */
    const cJSON *body;
} batch_line;

/* Takes the file, also where it fails.  ERR_LIMIT: it has more than max_lines, or a line of 2 GiB;
 * ERR_CORRUPT, ERR_IO. */
err_code batch_lines_open(batch_lines *l, sealed_file *f, int max_lines, err *e);
/* Harmless for one that is all zero. */
void batch_lines_close(batch_lines *l);

/* Line i; it must have been checked.  `max_body`: bytes of a request's body. */
err_code batch_line_read(const batch_lines *l, int i, int64_t max_body, batch_line *out, err *e);
void batch_line_clear(batch_line *line);

/* Checks all lines: JSON, custom_id unique, POST to `endpoint`, a body with a model and without a
 * stream.  *errors is NULL, or what is wrong with the first hundred of them, as OpenAI writes it
 * (malloced).  ERR_IO, ERR_NOMEM: it could not look. */
err_code batch_lines_check(const batch_lines *l, const char *endpoint, int64_t max_body,
                           char **errors, err *e);
/* The same shape for one error that is of no line. */
char *batch_lines_error(const char *code, const char *msg);

#endif
