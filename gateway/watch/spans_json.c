/* spans_json.c -- requests as OTLP traces in JSON: one span for the request and one for each
 * phase.
 *
 *     chat <model>                          kind SERVER; parent: the client's traceparent
 *       admit  queue  adapter_load  prompt  decode  settle  send      kind INTERNAL
 *
 * Ids are 16 hex digits. A request's span has the request's id, and a phase's id is a hash of
 * it, so a repeated export has the same ids and collectors can drop duplicates. Times are
 * nanoseconds as text, computed from the request's wall clock at arrival plus monotonic
 * differences: a span never ends before it begins, even if the clock is set meanwhile.
 *
 * Attributes follow OpenTelemetry's conventions for generative AI; those without a convention
 * begin with "lorad.". Source: OTLP 1.x JSON encoding, semantic conventions gen_ai.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "gateway/watch/spans_inside.h"

enum { KIND_INTERNAL = 1, KIND_SERVER = 2, STATUS_ERROR = 2 };

static void begin_attribute(jsonw *w, const char *key)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "key", key);
    jsonw_open(w, "value", '{');
}

static void end_attribute(jsonw *w)
{
    jsonw_close(w, '}');
    jsonw_close(w, '}');
}

static void put_text(jsonw *w, const char *key, const char *value)
{
    if (!value[0]) return;
    begin_attribute(w, key);
    jsonw_str(w, "stringValue", value);
    end_attribute(w);
}

static void put_count(jsonw *w, const char *key, int64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRId64, value);
    begin_attribute(w, key);
    jsonw_str(w, "intValue", text);
    end_attribute(w);
}

static void put_real(jsonw *w, const char *key, double value)
{
    begin_attribute(w, key);
    jsonw_num(w, "doubleValue", value);
    end_attribute(w);
}

static void put_list(jsonw *w, const char *key, const char *value)
{
    if (!value[0]) return;
    begin_attribute(w, key);
    jsonw_open(w, "arrayValue", '{');
    jsonw_open(w, "values", '[');
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "stringValue", value);
    jsonw_close(w, '}');
    jsonw_close(w, ']');
    jsonw_close(w, '}');
    end_attribute(w);
}

/* ------------------------------------------------------------------------- spans -- */

/* Of a request's span its own id, of a phase's one that follows from it; never 0. */
static uint64_t span_id(uint64_t request, int phase)
{
    uint64_t id = request;
    if (phase >= 0) id = hash_bytes(HASH_BASIS ^ request, &phase, sizeof(phase));
    return id ? id : 1;
}

static void put_id(jsonw *w, const char *name, uint64_t id)
{
    char text[17];
    snprintf(text, sizeof(text), "%016" PRIx64, id);
    jsonw_str(w, name, text);
}

/* `at_us` of the monotonic clock. */
static void put_time(jsonw *w, const char *name, const span_request *r, int64_t at_us)
{
    char text[32];
    int64_t wall_us = r->began_wall_us + (at_us - r->at_us[SPAN_ARRIVED]);
    snprintf(text, sizeof(text), "%" PRId64 "000", wall_us);
    jsonw_str(w, name, text);
}

static void begin_span(jsonw *w, const span_request *r, int phase, const char *name,
                       int64_t from_us, int64_t to_us)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "traceId", r->trace.trace_id);
    put_id(w, "spanId", span_id(r->id, phase));
    if (phase >= 0)
        put_id(w, "parentSpanId", span_id(r->id, -1));
    else if (r->trace.parent_id[0])
        jsonw_str(w, "parentSpanId", r->trace.parent_id);
    jsonw_str(w, "name", name);
    jsonw_int(w, "kind", phase < 0 ? KIND_SERVER : KIND_INTERNAL);
    put_time(w, "startTimeUnixNano", r, from_us);
    put_time(w, "endTimeUnixNano", r, to_us);
}

static const char *operation_of(const span_request *r)
{
    return r->operation ? r->operation : "text_completion";
}

static void put_attributes(jsonw *w, const span_request *r)
{
    const int64_t *at = r->at_us;
    jsonw_open(w, "attributes", '[');
    put_text(w, "gen_ai.operation.name", operation_of(r));
    put_text(w, "gen_ai.provider.name", "lorad");
    put_text(w, "gen_ai.request.model", r->asked);
    put_text(w, "gen_ai.response.model", r->served);
    if (r->max_tokens > 0) put_count(w, "gen_ai.request.max_tokens", r->max_tokens);
    if (at[SPAN_SUBMITTED]) {
        put_count(w, "gen_ai.usage.input_tokens", r->prompt_tokens);
        put_count(w, "gen_ai.usage.cache_read.input_tokens", r->cached_tokens);
        put_count(w, "gen_ai.usage.output_tokens", r->output_tokens);
    }
    if (at[SPAN_FIRST_TOKEN])
        put_real(w, "gen_ai.server.time_to_first_token",
                 (double)(at[SPAN_FIRST_TOKEN] - at[SPAN_ARRIVED]) / 1e6);
    put_list(w, "gen_ai.response.finish_reasons", r->finish);
    put_count(w, "http.response.status_code", r->status);
    put_text(w, "error.type", r->error);
    put_text(w, "lorad.tenant", r->tenant);
    put_text(w, "lorad.class", r->class);
    put_text(w, "lorad.missed", r->missed);
    jsonw_close(w, ']');
}

static void put_phase(jsonw *w, const span_request *r, int phase, const char *name, int64_t from_us,
                      int64_t to_us)
{
    if (!from_us || to_us < from_us) return;
    begin_span(w, r, phase, name, from_us, to_us);
    jsonw_close(w, '}');
}

/* Waiting for an adapter stands behind the wait for a seat, for only who has one waits for it. */
static void put_phases(jsonw *w, const span_request *r)
{
    const int64_t *at = r->at_us;
    int64_t load = at[SPAN_SEATED] - r->load_us;
    if (load < at[SPAN_SUBMITTED]) load = at[SPAN_SUBMITTED];
    put_phase(w, r, SPAN_ARRIVED, "admit", at[SPAN_ARRIVED], at[SPAN_SUBMITTED]);
    put_phase(w, r, SPAN_SUBMITTED, "queue", at[SPAN_SUBMITTED], load);
    if (r->load_us > 0)
        put_phase(w, r, SPAN_TIMES, "adapter_load", at[SPAN_SUBMITTED] ? load : 0, at[SPAN_SEATED]);
    put_phase(w, r, SPAN_SEATED, "prompt", at[SPAN_SEATED], at[SPAN_FIRST_TOKEN]);
    put_phase(w, r, SPAN_FIRST_TOKEN, "decode", at[SPAN_FIRST_TOKEN], at[SPAN_LAST_TOKEN]);
    put_phase(w, r, SPAN_LAST_TOKEN, "settle", at[SPAN_LAST_TOKEN], at[SPAN_SETTLED]);
    put_phase(w, r, SPAN_SETTLED, "send", at[SPAN_SETTLED], at[SPAN_ENDED]);
}

static void put_request(jsonw *w, const span_request *r)
{
    char name[SPAN_TEXT_MAX + 24];
    snprintf(name, sizeof(name), "%s %s", operation_of(r), r->asked);
    begin_span(w, r, -1, name, r->at_us[SPAN_ARRIVED], r->at_us[SPAN_ENDED]);
    put_attributes(w, r);
    if (r->status >= 500) {
        jsonw_open(w, "status", '{');
        jsonw_int(w, "code", STATUS_ERROR);
        jsonw_str(w, "message", r->error);
        jsonw_close(w, '}');
    }
    jsonw_close(w, '}');
    put_phases(w, r);
}

void spans_write(jsonw *w, const span_source *from, const span_request *r, int n)
{
    jsonw_open(w, NULL, '{');
    jsonw_open(w, "resourceSpans", '[');
    jsonw_open(w, NULL, '{');
    jsonw_open(w, "resource", '{');
    jsonw_open(w, "attributes", '[');
    put_text(w, "service.name", "lorad");
    put_text(w, "service.version", from->version);
    put_text(w, "host.name", from->host);
    put_count(w, "lorad.node", from->node);
    jsonw_close(w, ']');
    jsonw_close(w, '}');
    jsonw_open(w, "scopeSpans", '[');
    jsonw_open(w, NULL, '{');
    jsonw_open(w, "scope", '{');
    jsonw_str(w, "name", "lorad");
    jsonw_str(w, "version", from->version);
    jsonw_close(w, '}');
    jsonw_open(w, "spans", '[');
    for (int i = 0; i < n; i++) put_request(w, &r[i]);
    jsonw_close(w, ']');
    jsonw_close(w, '}');
    jsonw_close(w, ']');
    jsonw_close(w, '}');
    jsonw_close(w, ']');
    jsonw_close(w, '}');
}
