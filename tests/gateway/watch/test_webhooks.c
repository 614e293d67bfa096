/* test_webhooks.c -- the bound of waiting events and a stop, while no receiver answers. */
#include <stdio.h>
#include <string.h>

#include <check.h>

#include "engine/base/clock.h"
#include "gateway/watch/webhooks.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { MORE = 5 };

static char dir[64];

static webhooks *open_webhooks(void)
{
    /* No program listens on the discard port of this machine. */
    webhooks_config c = {.url = "http://127.0.0.1:9/",
                         .secret = "a secret of 24 characters",
                         .events = "",
                         .dir = dir};
    webhooks *h;
    err e;
    ck_assert_msg(webhooks_create(&h, &c, &e) == ERR_NONE, "%s", e.msg);
    return h;
}

static void put(webhooks *h, int from, int to)
{
    for (int i = from; i < to; i++) {
        proto_event e = {.time_us = clock_wall_us()};
        snprintf(e.kind, sizeof(e.kind), "limit.near");
        snprintf(e.detail, sizeof(e.detail), "event %d", i);
        webhooks_put(h, &e);
    }
}

static void expect(webhooks *h, uint64_t dropped)
{
    webhooks_stats st;
    webhooks_get(h, &st);
    ck_assert_uint_eq(st.n_waiting, WEBHOOKS_MAX);
    ck_assert_uint_eq(st.n_full, dropped);
    ck_assert_uint_eq(st.n_sent + st.n_rejected + st.n_expired, 0);
}

/* The file has the first n_event events, in their order. */
static void expect_file(int n_event)
{
    char path[80], line[1024], detail[32];
    int n = 0;
    snprintf(path, sizeof(path), "%s/webhooks", dir);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    for (; fgets(line, sizeof(line), f); n++) {
        snprintf(detail, sizeof(detail), "\"event %d\"", n);
        ck_assert_ptr_nonnull(strstr(line, detail));
    }
    ck_assert_int_eq(n, n_event);
    ck_assert_int_eq(fclose(f), 0);
}

START_TEST(a_full_queue_drops_the_newest)
{
    tmpdir_make(dir);
    webhooks *h = open_webhooks();
    put(h, 0, WEBHOOKS_MAX + MORE);
    expect(h, MORE);
    webhooks_destroy(h);
    expect_file(WEBHOOKS_MAX);
    h = open_webhooks();
    put(h, WEBHOOKS_MAX, WEBHOOKS_MAX + 1);
    expect(h, 1);
    webhooks_destroy(h);
    expect_file(WEBHOOKS_MAX);
    tmpdir_remove(dir);
}
END_TEST

/* The thread may see the stop at any point of its round: while it waits, too. */
START_TEST(a_stop_behind_events_keeps_them)
{
    enum { ROUNDS = 300, EVENTS = 40 };
    for (int i = 0; i < ROUNDS; i++) {
        tmpdir_make(dir);
        webhooks *h = open_webhooks();
        put(h, 0, EVENTS);
        webhooks_destroy(h);
        expect_file(EVENTS);
        tmpdir_remove(dir);
    }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("webhooks");
    tcase_add_test(tc, a_full_queue_drops_the_newest);
    tcase_add_test(tc, a_stop_behind_events_keeps_them);
    Suite *s = suite_create("webhooks");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
