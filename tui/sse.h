/* sse.h -- server-sent events out of a byte stream, however it was cut.
 *
 * Knows the part of WHATWG's grammar that lorad and OpenAI's API use: lines end in LF or CR LF,
 * `data:` lines of one event are joined by LF, an empty line ends it, comments and other fields are
 * skipped.  What the server sends is not trusted: an event is bounded.
 *
 * Ownership: the caller's struct; sse_clear() frees.  Threads: owner thread.
 */
#ifndef TUI_SSE_H
#define TUI_SSE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

enum { SSE_EVENT_MAX_BYTES = 1 << 20 };

typedef struct sse_parser {
    /* Called for every event with its data, NUL-ended; false: stop.  Set by the owner. */
    bool (*on_event)(void *arg, const char *data, size_t len);
    void *arg;

    /* private to sse.c */
    char *line, *data;
    size_t line_len, line_cap, data_len, data_cap;
    bool has_data;
} sse_parser;

/* ERR_LIMIT: an event or line beyond SSE_EVENT_MAX_BYTES.  ERR_CANCELLED:
 * on_event said stop.  ERR_NOMEM. */
err_code sse_feed(sse_parser *p, const char *bytes, size_t len, err *e);

void sse_clear(sse_parser *p);

#endif
