/* trace.h -- W3C Trace Context: which trace of the caller's a request belongs to.
 *
 * The trace's id goes into the log line; the answer's `traceparent` has it too, with the span id
 * that the request's own id gives, so that spans (gateway/watch/spans.h) can be joined to log
 * lines.  https://www.w3.org/TR/trace-context/ 3.2.
 *
 * Threads: any thread.
 */
#ifndef GATEWAY_HTTP_TRACE_H
#define GATEWAY_HTTP_TRACE_H

#include <stdbool.h>

typedef struct trace_context {
    char trace_id[33]; /* 32 hex digits; empty: the request has no trace */
    char parent_id[17];
    char flags[3];
} trace_context;

/* Reads a traceparent header.  False, and *out empty, for anything that the standard calls invalid
 * (which is then to be treated as if it were absent). */
bool trace_parse(const char *header, trace_context *out);

#endif
