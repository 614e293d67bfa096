/* test_auth.c -- who gets in, and what each of the others is told. */
#include <string.h>

#include <check.h>

#include "engine/base/clock.h"
#include "gateway/auth.h"
#include "tests/gateway/fake_server.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64], good[KEY_TEXT_LEN + 1], expired[KEY_TEXT_LEN + 1], revoked[KEY_TEXT_LEN + 1];
static char suspended[KEY_TEXT_LEN + 1], operators[KEY_TEXT_LEN + 1];
static tenant acme, off;

static uint64_t make_key(char text[KEY_TEXT_LEN + 1], const key_info *want)
{
    err e;
    key_info made;
    ck_assert_msg(keys_create(fake_server.tenants.store, want, text, &made, &e) == ERR_NONE, "%s",
                  e.msg);
    return made.id;
}

static void setup(void)
{
    err e;
    tmpdir_make(dir);
    ck_assert_int_eq(
        store_open(&fake_server.tenants.store, dir, &(store_options){.create = true}, &e),
        ERR_NONE);
    store *st = fake_server.tenants.store;
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "acme"}, &acme, &e), ERR_NONE);
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "off"}, &off, &e), ERR_NONE);
    key_info want = {.tenant_id = acme.id, .scopes = SCOPE_INFERENCE};
    make_key(good, &want);
    ck_assert_int_eq(keys_revoke(st, make_key(revoked, &want), NULL, &e), ERR_NONE);
    want.expires_wall_us = 1000;
    make_key(expired, &want);
    make_key(suspended, &(key_info){.tenant_id = off.id, .scopes = SCOPE_INFERENCE});
    make_key(operators, &(key_info){.scopes = SCOPE_ADMIN});
    off.disabled = true;
    off.generation = 0;
    ck_assert_int_eq(tenants_update(st, &off, NULL, NULL, &e), ERR_NONE);
}

static void teardown(void)
{
    store_close(fake_server.tenants.store);
    fake_server.tenants.store = NULL;
    tmpdir_remove(dir);
}

static bool check(const char *header, const char *value, unsigned scope)
{
    exchange *x = fake_call("GET", "/v1/models");
    if (header) fake_header(header, value);
    return auth_check(x, scope);
}

static char *bearer(const char *key)
{
    static char text[128];
    snprintf(text, sizeof(text), "Bearer %s", key);
    return text;
}

static void refused(const char *key, int status, const char *code)
{
    ck_assert(!check("Authorization", bearer(key), SCOPE_INFERENCE));
    ck_assert_int_eq(fake_status(), status);
    ck_assert_str_eq(fake_code(), code);
    ck_assert_int_eq(fake_said("WWW-Authenticate: Bearer"), status == 401);
    ck_assert_uint_eq(fake_caller.tenant.id, 0);
    ck_assert_ptr_null(strstr(fake_conn.out, key[0] ? key : "lk_0"));
}

START_TEST(each_bad_key_has_its_answer)
{
    char wrong[KEY_TEXT_LEN + 1], *digit = &wrong[30];
    refused("", 401, "invalid_api_key");
    refused("nonsense", 401, "invalid_api_key");
    refused("expired or suspended", 401, "invalid_api_key");
    refused(revoked, 401, "invalid_api_key");
    refused(expired, 401, "expired_api_key");
    refused(suspended, 403, "tenant_suspended");
    refused(operators, 403, "insufficient_scope");
    ck_assert_ptr_nonnull(strstr(fake_conn.out, "it lacks the scope inference\""));
    const char *const all[] = {good, expired, suspended};
    for (int i = 0; i < 3; i++) { /* who lacks the secret learns nothing about the key */
        memcpy(wrong, all[i], sizeof(wrong));
        *digit = *digit == 'x' ? 'y' : 'x';
        refused(wrong, 401, "invalid_api_key");
    }
}
END_TEST

START_TEST(no_header_is_no_key)
{
    ck_assert(!check(NULL, NULL, SCOPE_INFERENCE));
    ck_assert_int_eq(fake_status(), 401);
    ck_assert(!check("Authorization", good, SCOPE_INFERENCE)); /* no scheme */
    ck_assert(!check("Authorization", "Basic eDp5", SCOPE_INFERENCE));
    ck_assert_str_eq(fake_code(), "invalid_api_key");
}
END_TEST

START_TEST(all_ways_to_send_a_good_key)
{
    char text[128];
    ck_assert(check("Authorization", bearer(good), SCOPE_INFERENCE));
    ck_assert_uint_eq(fake_caller.tenant.id, acme.id);
    ck_assert_int_eq(fake_status(), -1); /* nothing said yet */
    ck_assert(check("api-key", good, SCOPE_INFERENCE));
    ck_assert(check("X-API-Key", good, SCOPE_INFERENCE));
    snprintf(text, sizeof(text), "bEARER   %s", good);
    ck_assert(check("authorization", text, SCOPE_INFERENCE | SCOPE_ADMIN));
    ck_assert(check("Authorization", bearer(operators), SCOPE_ADMIN));
    ck_assert_uint_eq(fake_caller.tenant.id, 0);
}
END_TEST

START_TEST(two_different_keys_are_ambiguous)
{
    exchange *x = fake_call("GET", "/");
    fake_header("Authorization", bearer(good));
    fake_header("x-api-key", good);
    ck_assert(auth_check(x, SCOPE_INFERENCE)); /* the same one twice is fine */
    x = fake_call("GET", "/");
    fake_header("Authorization", bearer(good));
    fake_header("x-api-key", operators);
    ck_assert(!auth_check(x, SCOPE_INFERENCE));
    ck_assert_int_eq(fake_status(), 400);
    ck_assert_str_eq(fake_code(), "ambiguous_credentials");
    x = fake_call("GET", "/");
    fake_header("api-key", operators);
    fake_header("x-api-key", good);
    ck_assert(!auth_check(x, SCOPE_INFERENCE));
    ck_assert_int_eq(fake_status(), 400);
}
END_TEST

/* Every set of scopes against every set that is asked for. */
START_TEST(a_scope_is_needed)
{
    char text[KEY_TEXT_LEN + 1];
    for (unsigned have = 1; have < SCOPE_ADMIN; have++) {
        make_key(text, &(key_info){.tenant_id = acme.id, .scopes = have});
        for (unsigned need = 1; need <= SCOPE_ALL; need++) {
            bool ok = (have & need) != 0;
            ck_assert_int_eq(check("Authorization", bearer(text), need), ok);
            ck_assert_int_eq(fake_status(), ok ? -1 : 403);
        }
    }
}
END_TEST

/* The tenant's list and the key's own: both must hold the client. */
START_TEST(a_key_works_from_its_networks)
{
    static const struct {
        uint8_t b[4];
        bool of_tenant, of_key;
    } from[] = {{{10, 1, 2, 3}, true, true},
                {{10, 2, 2, 3}, true, false},
                {{192, 0, 2, 3}, false, true},
                {{198, 51, 100, 1}, false, false}};
    char bound[KEY_TEXT_LEN + 1], plain[KEY_TEXT_LEN + 1], own[KEY_TEXT_LEN + 1];
    err e;
    tenant fenced = {.name = "fenced", .networks = "10.0.0.0/8"};
    ck_assert_int_eq(tenants_create(fake_server.tenants.store, &fenced, &fenced, &e), ERR_NONE);
    key_info want = {.scopes = SCOPE_INFERENCE, .tenant_id = fenced.id};
    make_key(plain, &want);
    snprintf(want.networks, sizeof(want.networks), "10.1.0.0/16,192.0.2.0/24");
    make_key(bound, &want);
    want.tenant_id = acme.id;
    make_key(own, &want);
    for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
        bool a = from[i].of_tenant, b = from[i].of_key;
        const struct {
            const char *key;
            bool ok;
        } asks[] = {{good, true}, {plain, a}, {own, b}, {bound, a && b}};
        for (size_t k = 0; k < sizeof(asks) / sizeof(asks[0]); k++) {
            exchange *x = fake_call("GET", "/v1/models");
            x->peer = (network_address){.bits = 32};
            memcpy(x->peer.b, from[i].b, 4);
            fake_header("Authorization", bearer(asks[k].key));
            ck_assert_int_eq(auth_check(x, SCOPE_INFERENCE), asks[k].ok);
            if (!asks[k].ok) ck_assert_str_eq(fake_code(), "network_not_allowed");
        }
    }
}
END_TEST

START_TEST(the_list_of_models)
{
    exchange *x = fake_call("GET", "/");
    ck_assert(auth_may_use_model(x, "anything"));
    snprintf(x->caller->tenant.models, sizeof(x->caller->tenant.models), "base,polite");
    ck_assert(auth_may_use_model(x, "base"));
    ck_assert(auth_may_use_model(x, "polite@7"));
    ck_assert(auth_may_use_model(x, "polite:default"));
    ck_assert(!auth_may_use_model(x, "polit"));
    ck_assert(!auth_may_use_model(x, "politer"));
    ck_assert(!auth_may_use_model(x, "pirate@7"));
    ck_assert(!auth_may_use_model(x, "base,polite"));
    ck_assert(!auth_may_use_model(x, ""));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("auth");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, each_bad_key_has_its_answer);
    tcase_add_test(tc, no_header_is_no_key);
    tcase_add_test(tc, all_ways_to_send_a_good_key);
    tcase_add_test(tc, two_different_keys_are_ambiguous);
    tcase_add_test(tc, a_scope_is_needed);
    tcase_add_test(tc, a_key_works_from_its_networks);
    tcase_add_test(tc, the_list_of_models);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
