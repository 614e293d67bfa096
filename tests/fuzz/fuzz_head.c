/* fuzz_head.c -- the head of a request: its bytes to fields, then all that reads the fields before anybody is
 * known: the guard, the trace, who asks, and which route it is. */
#include <stdlib.h>
#include <string.h>

#include <civetweb.h>

#include "gateway/guard.h"
#include "gateway/networks.h"
#include "gateway/route.h"
#include "tests/fuzz/fuzz.h"

/* Lines to fields, where whoever reads heads has no function for it. */
static bool split(char *s, struct mg_request_info *ri)
{
    char *save = NULL, *line = strtok_r(s, "\r\n", &save), *inner = NULL;
    if (!line) return false;
    ri->request_method = strtok_r(line, " ", &inner);
    ri->request_uri = strtok_r(NULL, " ", &inner);
    const char *version = strtok_r(NULL, " ", &inner);
    if (!version || strncmp(version, "HTTP/", 5) != 0) return false;
    ri->http_version = version + 5;
    while ((line = strtok_r(NULL, "\r\n", &save)) && ri->num_headers < MG_MAX_HEADERS) {
        char *colon = strchr(line, ':');
        if (!colon) return false;
        *colon = 0;
        char *value = colon + 1 + strspn(colon + 1, " \t");
        ri->http_headers[ri->num_headers++] = (struct mg_header){line, value};
    }
    return true;
}

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mg_request_info ri = {0};
    int status = 0;
    int64_t length = 0;
    bool chunked = false;
    char *text = fuzz_text(data, size);
    const network_address proxy = {.b = {10, 0, 0, 1}, .bits = 32};
    if (split(text, &ri)) {
        for (int i = 0; i < ri.num_headers; i++) {
            trace_context trace;
            if (trace_parse(ri.http_headers[i].value, &trace))
                FUZZ_CHECK(strlen(trace.trace_id) == 32);
        }
        network_address who = networks_client("10.0.0.0/8, ::1", proxy, &ri);
        char name[NETWORK_TEXT_MAX];
        networks_print(&who, name);
        const char *wrong = guard_check(&ri, &status, &length, &chunked);
        FUZZ_CHECK(wrong ? status >= 400 : length >= -1 && !(chunked && length >= 0));
        if (!wrong) match_routes(&ri);
    }
    free(text);
    return 0;
}
