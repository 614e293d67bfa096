/* fuzz_head.c -- the head of a request: its bytes to fields, then all that reads the fields before
 * anybody is known: the guard, the trace, who asks, and which route it is. */
#include <stdlib.h>
#include <string.h>

#include <civetweb.h>

#include "gateway/http/guard.h"
#include "gateway/http/head.h"
#include "gateway/http/networks.h"
#include "gateway/route.h"
#include "tests/fuzz/fuzz.h"

static void match_routes(const struct mg_request_info *ri)
{
    static const route *const tables[] = {routes_inference, routes_admin, routes_metrics};
    static exchange x;
    arena_init(&x.arena, EXCHANGE_ARENA_BYTES);
    for (int t = 0; t < 3; t++) {
        for (const route *r = tables[t]; r->method; r++) {
            if (!route_match(&x, r->pattern, ri->request_uri)) continue;
            for (int i = 0; i < x.n_param; i++)
                FUZZ_CHECK(x.param[i][0] && strcmp(x.param[i], "..") != 0 &&
                           !strchr(x.param[i], '\\'));
        }
    }
    arena_clear(&x.arena);
}

static void read_fields(const struct mg_request_info *ri)
{
    const network_address proxy = {.b = {10, 0, 0, 1}, .bits = 32};
    int status = 0;
    int64_t length = 0;
    bool chunked = false;
    char name[NETWORK_TEXT_MAX];
    for (int i = 0; i < ri->num_headers; i++) {
        const char *v = ri->http_headers[i].value;
        trace_context trace;
        if (trace_parse(v, &trace)) FUZZ_CHECK(strlen(trace.trace_id) == 32);
        (void)guard_host_valid(v, strlen(v));
    }
    network_address who = networks_client("10.0.0.0/8, ::1", proxy, ri);
    networks_print(&who, name);
    (void)guard_keeps_alive(ri);
    const char *wrong = guard_check(ri, &status, &length, &chunked);
    FUZZ_CHECK(wrong ? status >= 400 && status < 600 : length >= -1 && !(chunked && length >= 0));
    if (!wrong) match_routes(ri);
}

/* All fields are texts within the head. */
static void check_fields(const struct mg_request_info *ri, const char *head, size_t len)
{
    FUZZ_CHECK(ri->request_method[0] && ri->request_uri[0] && ri->num_headers <= HEAD_FIELDS_MAX);
    FUZZ_CHECK(ri->http_version && strncmp(ri->http_version, "1.", 2) == 0);
    for (int i = 0; i < ri->num_headers; i++) {
        const char *n = ri->http_headers[i].name, *v = ri->http_headers[i].value;
        FUZZ_CHECK(n >= head && n + strlen(n) < head + len && n[0]);
        FUZZ_CHECK(v >= head && v + strlen(v) < head + len && !strpbrk(v, "\r\n"));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mg_request_info ri = {0}, early = {0};
    head_refusal r = {0};
    char *whole = fuzz_text(data, size), *part = fuzz_text(data, size);
    int n = head_parse(whole, (int)size, &ri, &r);
    FUZZ_CHECK(n <= (int)size && (n >= 0 || (r.status >= 400 && r.status < 600 && r.why[0])));
    if (n == 0) FUZZ_CHECK(size == 0 || memcmp(whole, data, size) == 0);
    if (n > 0) {
        /* No beginning of it was one already, nor was it refused. */
        FUZZ_CHECK(head_parse(part, (int)(fuzz_hash(data, size) % (uint32_t)n), &early, &r) == 0);
        check_fields(&ri, whole, (size_t)n);
        read_fields(&ri);
    }
    free(whole);
    free(part);
    return 0;
}
