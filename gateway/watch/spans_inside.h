/* spans_inside.h -- what spans.c and spans_json.c share.  Private to both. */
#ifndef GATEWAY_WATCH_SPANS_INSIDE_H
#define GATEWAY_WATCH_SPANS_INSIDE_H

#include "gateway/http/jsonw.h"
#include "gateway/watch/spans.h"

/* Who speaks: OTLP's resource. */
typedef struct span_source {
    char host[64];
    const char *version;
    int node;
} span_source;

/* One export of n requests; w->failed: no memory. */
void spans_write(jsonw *w, const span_source *from, const span_request *r, int n);

#endif
