/* test_route.c -- paths against patterns, and what is said where nothing fits. */
#include <string.h>

#include <check.h>

#include "gateway/route.h"
#include "tests/gateway/fake_server.h"
#include "tests/run_suite.h"

static const struct {
    const char *pattern, *path, *p0, *p1; /* p0 "-": no match; NULL: no such parameter */
} rows[] = {
    {"/v1/models", "/v1/models", NULL, NULL},
    {"/v1/models", "/v1/models/", "-", NULL},
    {"/v1/models", "/v1/Models", "-", NULL},
    {"/v1/models", "/v1/model", "-", NULL},
    {"/v1/models", "/v1/modelss", "-", NULL},
    {"/v1/models", "/v1//models", "-", NULL},
    {"/v1/models", "//v1/models", "-", NULL},
    {"/v1/models", "/v1/%6dodels", "-", NULL}, /* literals are not decoded */
    {"/v1/models", "v1/models", "-", NULL},
    {"/v1/models", "", "-", NULL},
    {"/v1/models", "/", "-", NULL},
    {"/a/{}", "/a/b", "b", NULL},
    {"/a/{}", "/a/", "-", NULL},
    {"/a/{}", "/a", "-", NULL},
    {"/a/{}", "/a/b/", "-", NULL},
    {"/a/{}", "/a/b/c", "-", NULL},
    {"/a/{}", "/a/%41%7a", "Az", NULL},
    {"/a/{}", "/a/x+y", "x+y", NULL}, /* a plus is a space in queries alone */
    {"/a/{}", "/a/%C3%A9", "\xc3\xa9", NULL},
    {"/a/{}", "/a/%25%34%31", "%41", NULL}, /* once, not twice */
    {"/a/{}", "/a/{}", "{}", NULL},
    {"/a/{}", "/a/...", "...", NULL},
    {"/a/{}", "/a/.", "-", NULL},
    {"/a/{}", "/a/..", "-", NULL},
    {"/a/{}", "/a/%2e%2E", "-", NULL},
    {"/a/{}", "/a/.%2e", "-", NULL},
    {"/a/{}", "/a/b%2fc", "-", NULL},
    {"/a/{}", "/a/b%5Cc", "-", NULL},
    {"/a/{}", "/a/b\\c", "-", NULL},
    {"/a/{}", "/a/b%00", "-", NULL},
    {"/a/{}", "/a/b%0a", "-", NULL},
    {"/a/{}", "/a/b%7f", "-", NULL},
    {"/a/{}", "/a/%", "-", NULL},
    {"/a/{}", "/a/%4", "-", NULL},
    {"/a/{}", "/a/%4g", "-", NULL},
    {"/a/{}", "/a/%-1", "-", NULL},
    {"/a/{}/v/{}", "/a/x/v/7", "x", "7"},
    {"/a/{}/v/{}", "/a/x/w/7", "-", NULL},
    {"/a/{}/v/{}", "/a//v/7", "-", NULL},
    {"/a/{}/v/{}", "/a/x/v", "-", NULL},
    {"/m/{*}", "/m/a/b", "a/b", NULL},
    {"/m/{*}", "/m/a%2fb@7:x", "a/b@7:x", NULL},
    {"/m/{*}", "/m/", "-", NULL},
    {"/m/{*}", "/m/a%00", "-", NULL},
    {"/m/{*}", "/m/..", "-", NULL},
};

START_TEST(patterns)
{
    exchange *x = fake_call("GET", "");
    bool want = !rows[_i].p0 || strcmp(rows[_i].p0, "-") != 0;
    ck_assert_msg(route_match(x, rows[_i].pattern, rows[_i].path) == want, "'%s' and '%s'",
                  rows[_i].pattern, rows[_i].path);
    if (!want) return;
    ck_assert_int_eq(x->n_param, (rows[_i].p0 != NULL) + (rows[_i].p1 != NULL));
    if (rows[_i].p0) ck_assert_str_eq(x->param[0], rows[_i].p0);
    if (rows[_i].p1) ck_assert_str_eq(x->param[1], rows[_i].p1);
}
END_TEST

START_TEST(more_parameters_than_there_is_room_for)
{
    exchange *x = fake_call("GET", "");
    ck_assert(route_match(x, "/{}/{}/{}/{}", "/a/b/c/d"));
    ck_assert_int_eq(x->n_param, EXCHANGE_PARAM_MAX);
    ck_assert(!route_match(x, "/{}/{}/{}/{}/{}", "/a/b/c/d/e"));
}
END_TEST

static const char *ask(plane p, const char *method, const char *path)
{
    exchange *x = fake_call(method, path);
    x->plane = p;
    route_dispatch(x);
    return fake_code();
}

START_TEST(where_nothing_fits)
{
    ck_assert_str_eq(ask(PLANE_INFERENCE, "GET", "/v1/nothing"), "unknown_url");
    ck_assert_int_eq(fake_status(), 404);
    ck_assert_str_eq(ask(PLANE_INFERENCE, "GET", "/v1/v1/models"), "unknown_url");
    ck_assert_str_eq(ask(PLANE_INFERENCE, "GET", "/admin/v1/tenants"), "unknown_url");
    ck_assert_str_eq(ask(PLANE_INFERENCE, "GET", "/metrics"), "unknown_url");
    ck_assert_str_eq(ask(PLANE_ADMIN, "GET", "/v1/models"), "unknown_url");
    ck_assert_str_eq(ask(PLANE_ADMIN, "GET", "/tenants"), "unknown_url");
    ck_assert_str_eq(ask(PLANE_METRICS, "GET", "/admin/v1/stats"), "unknown_url");
    ck_assert_str_eq(ask(PLANE_METRICS, "GET", ""), "unknown_url");
}
END_TEST

/* Slashes that mean nothing, and what is said of a path that is nearly one of ours. */
START_TEST(slashes_and_the_nearest_route)
{
    static const struct {
        const char *method, *path, *said;
    } near[] = {
        {"POST", "/v1/chat/completion", "; the nearest is POST /v1/chat/completions\""},
        {"POST", "/chat/completion", "; the nearest is POST /v1/chat/completions\""},
        {"GET", "/v1/v1/models", "; the nearest is GET /v1/models\""},
        {"GET", "/v1/response/resp_1234567890", "; the nearest is GET /v1/responses/{}\""},
        {"DELETE", "/v1/response/resp_1234567890", "; the nearest is DELETE /v1/responses/{}\""},
        {"POST", "/v1/embedding", "; the nearest is POST /v1/embeddings\""},
        {"GET", "/x", "no such URL: GET /x\""},
        {"POST", "/v1/responses/compact", "this server does not compact conversations"},
        {"POST", "//v1//responses/compact/", "this server does not compact conversations"},
    };
    static const char *const same[] = {"/v1/models",  "/v1//models",  "/v1/models/",
                                       "//v1/models", "/v1/models//", "///v1///models///",
                                       "//models//"};
    for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++) {
        ck_assert_str_eq(ask(PLANE_INFERENCE, "PUT", same[i]), "method_not_allowed");
        ck_assert(fake_said("Allow: GET, HEAD, OPTIONS"));
    }
    ck_assert_str_eq(ask(PLANE_ADMIN, "PUT", "/admin/v1//tenants"), "unknown_url");
    for (size_t i = 0; i < sizeof(near) / sizeof(*near); i++) {
        ck_assert_str_eq(ask(PLANE_INFERENCE, near[i].method, near[i].path), "unknown_url");
        ck_assert_int_eq(fake_status(), 404);
        ck_assert_msg(strstr(fake_conn.out, near[i].said) != NULL, "%s: %s", near[i].path,
                      fake_conn.out);
    }
}
END_TEST

START_TEST(other_methods)
{
    ck_assert_str_eq(ask(PLANE_INFERENCE, "DELETE", "/v1/models"), "method_not_allowed");
    ck_assert_int_eq(fake_status(), 405);
    ck_assert(fake_said("Allow: GET, HEAD, OPTIONS"));
    (void)ask(PLANE_INFERENCE, "OPTIONS", "/v1/adapters/x");
    ck_assert_int_eq(fake_status(), 200);
    ck_assert(fake_said("Allow: GET, HEAD, PATCH, DELETE, OPTIONS"));
    ck_assert(fake_said("Content-Length: 0") && !strstr(fake_conn.out, "\r\nContent-Type"));
    (void)ask(PLANE_METRICS, "OPTIONS", "*");
    ck_assert_int_eq(fake_status(), 200);
    ck_assert_str_eq(ask(PLANE_INFERENCE, "OPTIONS", "/v1/nothing"), "unknown_url");
    (void)ask(PLANE_INFERENCE, "PUT", "/chat/completions"); /* without /v1 as well */
    ck_assert(fake_said("Allow: POST, OPTIONS"));
    (void)ask(PLANE_INFERENCE, "HEAD", "/v1/completions"); /* HEAD goes where GET goes */
    ck_assert_int_eq(fake_status(), 405);
    (void)ask(PLANE_INFERENCE, "get", "/v1/models");
    ck_assert_int_eq(fake_status(), 405);
}
END_TEST

/* Default deny: every route but health and metrics asks for a scope, and refuses who has no key.
 * Where nodes of the fleet speak to each other it is a word of theirs, not a scope.
 */
START_TEST(every_route_asks_for_a_key)
{
    const route *const tables[] = {routes_inference, routes_admin};
    for (int t = 0; t < 2; t++) {
        for (const route *r = tables[t]; r->method; r++) {
            static const char *const open[] = {"/health",  "/ping",     "/",
                                               "/page.js", "/page.css", "/openapi.json"};
            bool is_open = false;
            for (size_t i = 0; i < sizeof(open) / sizeof(*open); i++)
                is_open |= strcmp(r->pattern, open[i]) == 0;
            if (is_open) continue;
            char path[128];
            size_t n = 0;
            for (const char *p = r->pattern; *p; p++) { /* {} and {*} become x */
                if (*p == '}') path[n++] = 'x';
                if (*p != '{' && *p != '}' && *p != '*') path[n++] = *p;
            }
            path[n] = 0;
            bool of_nodes = strncmp(r->pattern, "/fleet/", 7) == 0;
            ck_assert_msg(of_nodes || r->scope != 0, "%s %s is open to all", r->method, r->pattern);
            ck_assert_int_eq((r->scope & SCOPE_ADMIN) != 0, t == 1);
            if (strcmp(r->method, "GET") != 0) /* who may only read changes nothing */
                ck_assert_uint_eq(r->scope & (SCOPE_ADAPTERS_READ | SCOPE_ADMIN_READ), 0);
            const char *code = ask(t ? PLANE_ADMIN : PLANE_INFERENCE, r->method, path);
            bool typed =
                strncmp(path, "/v1/messages", 12) == 0; /* Anthropic's errors have no code */
            ck_assert_msg(typed ? strstr(fake_conn.out, "authentication_error") != NULL
                                : strcmp(code, "invalid_api_key") == 0,
                          "%s %s: %.80s", r->method, path, fake_conn.out);
            ck_assert_int_eq(fake_status(), 401);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("route");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, patterns, 0, (int)(sizeof(rows) / sizeof(rows[0])));
    tcase_add_test(tc, more_parameters_than_there_is_room_for);
    tcase_add_test(tc, where_nothing_fits);
    tcase_add_test(tc, other_methods);
    tcase_add_test(tc, slashes_and_the_nearest_route);
    tcase_add_test(tc, every_route_asks_for_a_key);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
