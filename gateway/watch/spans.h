/* spans.h -- traces of completions, sent to a collector: OpenTelemetry's OTLP over HTTP, in JSON.
 *
 * A request is one span of the server with a child for each of its phases, named and attributed by
 * the conventions for generative AI.  A request whose caller has a sampled trace (traceparent)
 * belongs to it; of the others a share begins traces of its own.
 *
 * Never in the way: what is put goes into a ring of SPANS_MAX requests, and is lost, and counted,
 * when that is full.  One thread sends; a collector that is away is tried again a few times, then
 * what it was to get is dropped.
 *
 * https://opentelemetry.io/docs/specs/otlp/ 1.5, .../specs/semconv/gen-ai/ 1.37.
 *
 * Ownership: spans_destroy() frees.  Threads: spans_put() and spans_begin() any, the others main.
 */
#ifndef GATEWAY_WATCH_SPANS_H
#define GATEWAY_WATCH_SPANS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "gateway/http/trace.h"

enum { SPANS_MAX = 1024, SPAN_TEXT_MAX = 128 };

typedef struct spans spans;

typedef struct spans_config {
    const char *endpoint; /* an http or https URL; borrowed until spans_create() returns */
    const char *headers;  /* a file of lines "Name: value", or NULL */
    double sample;        /* share of requests without a caller's decision, 0 to 1 */
    const char *version;
    int node;
} spans_config;

/* When each phase of a request ended, on the monotonic clock; 0: it never did. */
typedef enum {
    SPAN_ARRIVED,   /* the request's head and body are read */
    SPAN_SUBMITTED, /* it is admitted, and with the scheduler */
    SPAN_SEATED,
    SPAN_FIRST_TOKEN,
    SPAN_LAST_TOKEN,
    SPAN_SETTLED, /* its books are written */
    SPAN_ENDED,   /* its answer is */
    SPAN_TIMES
} span_time;

/* One completion; plain values. */
typedef struct span_request {
    trace_context trace;
    uint64_t id; /* of the request: its span */
    int64_t at_us[SPAN_TIMES];
    int64_t began_wall_us; /* of SPAN_ARRIVED */
    int64_t load_us;       /* of the time before the seat: waited for its adapter */
    const char *operation; /* "chat", "text_completion", "embeddings"; static; NULL: the second */
    int status, max_tokens;
    int64_t prompt_tokens, cached_tokens, output_tokens;
    char asked[SPAN_TEXT_MAX], served[SPAN_TEXT_MAX]; /* model names: of the request, "name@7" */
    char tenant[SPAN_TEXT_MAX], class[SPAN_TEXT_MAX], finish[SPAN_TEXT_MAX];
    char missed[SPAN_TEXT_MAX]; /* why its promise was broken; empty: it was kept */
    char error[SPAN_TEXT_MAX];  /* the code of its error; empty: none */
} span_request;

typedef struct spans_stats {
    uint64_t n_sent, n_dropped, n_failures; /* requests, requests, answers that were none */
} spans_stats;

/* ERR_INPUT: no such URL, headers that are none; ERR_DENIED: their file may be read by others. */
err_code spans_create(spans **out, const spans_config *cfg, err *e);
/* Gives what is left one try of a few seconds.  NULL is fine. */
void spans_destroy(spans *s);

/* Is this request to be traced?  Where its caller has no trace, and it is, *t becomes one. */
bool spans_begin(const spans *s, trace_context *t);

/* Copies it; never waits. */
void spans_put(spans *s, const span_request *r);

void spans_get(spans *s, spans_stats *out);

#endif
