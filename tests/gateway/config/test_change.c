/* test_change.c -- what a running server takes of another configuration, and who still reads the
 * one before. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gateway/config/change.h"
#include "gateway/config/running.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

/* The sources are what a test writes here; the owner refuses when it is told to. */
static config file;
static bool refuses;
static int n_certificates, n_followed;
static config followed;
static char dir[64];

static err_code read_file(void *self, config *out, err *e)
{
    (void)self;
    *out = file;
    return config_check(out, e);
}

static err_code prepare(void *self, const config *wanted, bool files, err *e)
{
    (void)self;
    (void)wanted;
    n_certificates += files;
    return refuses ? err_set(e, ERR_INPUT, "the certificate is bad") : ERR_NONE;
}

static void follow(void *self, const config *now)
{
    (void)self;
    n_followed++;
    followed = *now;
}

static live *l;
static change *ch;

static void assign(config *c, const char *name, const char *value)
{
    err e;
    ck_assert_msg(config_assign(c, name, value, CONFIG_FILE, &e) == ERR_NONE, "%s", e.msg);
}

static void setup(void)
{
    const change_owner owner = {NULL, read_file, prepare, follow};
    tmpdir_make(dir);
    config_defaults(&file);
    assign(&file, "model.path", "/m");
    assign(&file, "data.dir", dir);
    file.queue_room = file.engine.max_queued;
    file.connection_room = config_max_connections(&file.server);
    refuses = false;
    n_certificates = n_followed = 0;
    l = live_create(&file);
    ch = change_create(&file, l, &owner);
    ck_assert(l && ch);
    change_begin(ch);
}

static void teardown(void)
{
    change_destroy(ch);
    live_destroy(l);
    tmpdir_remove(dir);
}

static const char *names(const change_report *r, change_verdict v)
{
    static char text[3][1024];
    (void)change_names(r, v, text[v], sizeof(text[v]));
    return text[v];
}

static void reload(const char *taken, const char *left)
{
    change_report r;
    err e;
    ck_assert_msg(change_reload(ch, &r, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_str_eq(names(&r, CHANGE_TAKEN), taken);
    ck_assert_str_eq(names(&r, CHANGE_RESTART), left);
    free(r.line);
}

static void set(const char *name, const char *value, const char *taken, const char *same,
                const char *left)
{
    change_ask ask = {name, value};
    change_report r;
    err e;
    int bad;
    ck_assert_msg(change_set(ch, &ask, 1, &r, &bad, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_str_eq(names(&r, CHANGE_TAKEN), taken);
    ck_assert_str_eq(names(&r, CHANGE_SAME), same);
    ck_assert_str_eq(names(&r, CHANGE_RESTART), left);
    free(r.line);
}

static int64_t batch_ttft(void)
{
    const config *c = live_pin(l);
    int64_t us = c->classes.each[2].ttft_us;
    live_release(l, c);
    return us;
}

START_TEST(a_reload_takes_what_is_live)
{
    assign(&file, "class.batch.ttft", "9s");
    assign(&file, "engine.max_rows", "1024");
    assign(&file, "log.level", "debug");
    reload("class.batch.ttft, log.level", "engine.max_rows");
    ck_assert_int_eq(batch_ttft(), 9000000);
    ck_assert_int_eq(followed.engine.max_rows, 0);
    ck_assert_int_eq(n_certificates, 1);
    reload("", "engine.max_rows");
    assign(&file, "engine.max_rows", "0");
    reload("", "");
}
END_TEST

START_TEST(a_bound_goes_up_to_that_of_the_start)
{
    assign(&file, "engine.max_queued", "16");
    reload("engine.max_queued", "");
    assign(&file, "engine.max_queued", "1024");
    reload("engine.max_queued", "");
    assign(&file, "engine.max_queued", "1025");
    reload("", "engine.max_queued");
    assign(&file, "server.max_streams", "400");
    assign(&file, "server.max_connections", "3000"); /* more than it has descriptors for */
    reload("", "server.max_streams, server.max_connections, engine.max_queued");
}
END_TEST

START_TEST(other_classes_need_a_restart_as_a_whole)
{
    assign(&file, "class.night.ttft", "1h");
    assign(&file, "class.night.tpot", "1s");
    assign(&file, "class.batch.ttft", "9s");
    assign(&file, "classes.default", "night");
    assign(&file, "log.level", "warn");
    reload("log.level", "classes.default, class.batch.ttft, class.night");
    ck_assert_int_eq(batch_ttft(), 60000000);
}
END_TEST

START_TEST(what_is_refused_changes_nothing)
{
    change_report r;
    err e;
    int bad;
    assign(&file, "log.level", "debug");
    refuses = true;
    ck_assert_int_eq(change_reload(ch, &r, &e), ERR_INPUT);
    ck_assert_int_eq(n_followed, 0);
    refuses = false;
    const change_ask two[] = {{"log.level", "warn"}, {"class.batch.weight", "0"}};
    ck_assert_int_eq(change_set(ch, two, 2, &r, &bad, &e), ERR_INPUT);
    ck_assert_int_eq(bad, 1);
    ck_assert_ptr_nonnull(strstr(e.msg, "class.batch.weight: '0' is outside"));
    const change_ask apart[] = {{"class.batch.tiers", "gold"}, {"class.standard.tiers", "gold"}};
    ck_assert_int_eq(change_set(ch, apart, 2, &r, &bad, &e), ERR_INPUT);
    ck_assert_int_eq(bad, -1);
    const change_ask unknown[] = {{"log.lvel", "warn"}};
    ck_assert_int_eq(change_set(ch, unknown, 1, &r, &bad, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "did you mean 'log.level'"));
    const change_ask other[] = {{"class.gold.ttft", "1s"}};
    ck_assert_int_eq(change_set(ch, other, 1, &r, &bad, &e), ERR_INPUT);
    ck_assert_int_eq(n_followed, 0);
    reload("log.level", "");
}
END_TEST

START_TEST(what_was_set_by_name_outlives_reloads)
{
    set("class.batch.ttft", "5s", "class.batch.ttft", "", "");
    set("class.batch.ttft", "5s", "", "class.batch.ttft", "");
    set("engine.max_rows", "1024", "", "", "engine.max_rows");
    ck_assert_int_eq(n_certificates, 0);
    assign(&file, "class.batch.ttft", "7s");
    reload("", "");
    ck_assert_int_eq(batch_ttft(), 5000000);
    set("class.batch.ttft", NULL, "class.batch.ttft", "", "");
    ck_assert_int_eq(batch_ttft(), 7000000);
    ck_assert_int_eq(n_certificates, 1); /* of the reload */
}
END_TEST

/* The admin API does not choose which files the server reads; a reload does. */
START_TEST(paths_are_not_set_by_name)
{
    static const char *const paths[] = {
        "server.tls_cert",    "server.tls_key", "admin.client_ca",   "data.dir",       "model.path",
        "responses.key_file", "adapters.roots", "grammar.documents", "sources.ca_file"};
    change_report r;
    err e;
    int bad;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        const change_ask ask[] = {{paths[i], "/"}};
        ck_assert_int_eq(change_set(ch, ask, 1, &r, &bad, &e), ERR_INPUT);
        ck_assert_int_eq(bad, 0);
        ck_assert_ptr_nonnull(strstr(e.msg, paths[i]));
    }
    ck_assert_int_eq(n_followed, 0);
    assign(&file, "server.tls_cert", "other.pem");
    reload("server.tls_cert", "");
}
END_TEST

START_TEST(a_look_changes_nothing)
{
    config_changes list;
    err e;
    assign(&file, "class.batch.ttft", "9s");
    ck_assert_int_eq(change_look(ch, &list, &e), ERR_NONE);
    ck_assert_int_eq(list.n, 1);
    ck_assert_str_eq(list.each[0].value, "60s");
    ck_assert_str_eq(list.each[0].wanted, "9s");
    ck_assert(list.each[0].live && list.each[0].wanted_from == CONFIG_FILE);
    free(list.each);
    ck_assert_int_eq(batch_ttft(), 60000000);
}
END_TEST

START_TEST(the_file_says_what_runs)
{
    static config got;
    config_changes list;
    err e;
    set("class.batch.ttft", "5s", "class.batch.ttft", "", "");
    ck_assert_msg(running_read(dir, &got, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(got.queue_room, 1024);
    ck_assert_int_eq(got.connection_room, 2000);
    ck_assert_int_eq(config_compare(&got, &file, &list, &e), ERR_NONE);
    ck_assert_int_eq(list.n, 1);
    ck_assert_str_eq(list.each[0].value, "5s");
    ck_assert_int_eq(list.each[0].from, CONFIG_ADMIN);
    free(list.each);
    ck_assert_int_eq(running_read("/nowhere", &got, &e), ERR_NOT_FOUND);
}
END_TEST

START_TEST(secrets_are_hidden)
{
    static const char *const pairs[][2] = {
        {"https://user:secret@host:4318/v1/traces", "https://user:***@host:4318/v1/traces"},
        {"https://host/v1?key=secret&x=y", "https://host/v1?***"},
        {"postgres://user@host/db", "postgres://user@host/db"},
        {"https://host/a:b@c", "https://host/a:b@c"},
        {"/plain/path?x=y", "/plain/path?x=y"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        char value[CONFIG_TEXT_MAX];
        strcpy(value, pairs[i][0]);
        config_hide(value);
        ck_assert_str_eq(value, pairs[i][1]);
    }
}
END_TEST

START_TEST(details_fit_and_are_whole)
{
    change_report r;
    err e;
    char text[80];
    assign(&file, "log.level", "debug");
    assign(&file, "log.format", "json");
    assign(&file, "server.cors_origins", "https://a-very-long-name-of-an-origin.example");
    assign(&file, "engine.max_rows", "1024");
    ck_assert_int_eq(change_reload(ch, &r, &e), ERR_NONE);
    change_detail(&r, text, sizeof(text));
    free(r.line);
    size_t n = strlen(text);
    ck_assert(n > 2 && text[0] == '{' && text[n - 1] == '}');
    ck_assert_ptr_nonnull(strstr(text, "\"needs_restart\":[\"engine.max_rows\"]"));
}
END_TEST

/* Two options that are always changed together are never seen apart, and what was pinned stays. */
static atomic_bool over;

static void *look(void *arg)
{
    bool *wrong = arg;
    while (!atomic_load(&over)) {
        const config *c = live_pin(l);
        int64_t ttft = c->classes.each[2].ttft_us;
        if (ttft != c->classes.each[1].ttft_us) *wrong = true;
        if (c->classes.each[2].ttft_us != ttft) *wrong = true;
        live_release(l, c);
        sched_yield(); /* more readers than processors must not keep the writer waiting */
    }
    return NULL;
}

START_TEST(readers_see_one_configuration)
{
    enum { READERS = 3, ROUNDS = 300 };
    pthread_t thread[READERS];
    bool wrong[READERS] = {false};
    change_report r;
    err e;
    int bad;
    const config *first = live_pin(l);
    const change_ask begin[] = {{"class.batch.ttft", "1ms"}, {"class.standard.ttft", "1ms"}};
    ck_assert_int_eq(change_set(ch, begin, 2, &r, &bad, &e), ERR_NONE);
    free(r.line);
    atomic_store(&over, false);
    for (int i = 0; i < READERS; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, look, &wrong[i]), 0);
    for (int i = 2; i < ROUNDS; i++) {
        char value[32];
        snprintf(value, sizeof(value), "%dms", i);
        const change_ask both[] = {{"class.batch.ttft", value}, {"class.standard.ttft", value}};
        ck_assert_int_eq(change_set(ch, both, 2, &r, &bad, &e), ERR_NONE);
        free(r.line);
    }
    atomic_store(&over, true);
    for (int i = 0; i < READERS; i++) {
        ck_assert_int_eq(pthread_join(thread[i], NULL), 0);
        ck_assert(!wrong[i]);
    }
    ck_assert_int_eq(first->classes.each[2].ttft_us, 60000000);
    live_release(l, first);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("change");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_reload_takes_what_is_live);
    tcase_add_test(tc, a_bound_goes_up_to_that_of_the_start);
    tcase_add_test(tc, other_classes_need_a_restart_as_a_whole);
    tcase_add_test(tc, what_is_refused_changes_nothing);
    tcase_add_test(tc, what_was_set_by_name_outlives_reloads);
    tcase_add_test(tc, paths_are_not_set_by_name);
    tcase_add_test(tc, a_look_changes_nothing);
    tcase_add_test(tc, the_file_says_what_runs);
    tcase_add_test(tc, secrets_are_hidden);
    tcase_add_test(tc, details_fit_and_are_whole);
    tcase_add_test(tc, readers_see_one_configuration);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
