/* test_peers.c -- connections counted in all and by client; a /64 is one client. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include <check.h>

#include "gateway/net/peers.h"
#include "tests/run_suite.h"

static peer_id of(const char *text)
{
    struct sockaddr_storage ss = {0};
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        memcpy(&ss, &v4, sizeof(v4));
    else if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1)
        memcpy(&ss, &v6, sizeof(v6));
    return peers_identify(&ss);
}

static bool same(const char *a, const char *b)
{
    peer_id x = of(a), y = of(b);
    return x.bits == y.bits && x.family == y.family;
}

START_TEST(who_is_one_client)
{
    ck_assert(same("192.0.2.1", "192.0.2.1"));
    ck_assert(!same("192.0.2.1", "192.0.2.2"));
    ck_assert(same("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"));
    ck_assert(!same("2001:db8:1:2::1", "2001:db8:1:3::1"));
    ck_assert(same("::ffff:192.0.2.1", "192.0.2.1"));
    ck_assert(!same("::ffff:192.0.2.1", "::ffff:192.0.2.2"));
    ck_assert(!same("::1", "0.0.0.1"));
    ck_assert(!same("::", "nobody"));
}
END_TEST

START_TEST(both_limits)
{
    peers *p = peers_create(5, 2);
    ck_assert_int_eq(peers_enter(p, of("192.0.2.1")), PEER_ADMITTED);
    ck_assert_int_eq(peers_enter(p, of("192.0.2.1")), PEER_ADMITTED);
    ck_assert_int_eq(peers_enter(p, of("192.0.2.1")), PEER_CLIENT_FULL);
    ck_assert_int_eq(peers_enter(p, of("::ffff:192.0.2.1")), PEER_CLIENT_FULL);
    ck_assert_int_eq(peers_enter(p, of("2001:db8::1")), PEER_ADMITTED);
    ck_assert_int_eq(peers_enter(p, of("2001:db8::2")), PEER_ADMITTED);
    ck_assert_int_eq(peers_enter(p, of("2001:db8::3")), PEER_CLIENT_FULL);
    ck_assert_int_eq(peers_enter(p, of("192.0.2.2")), PEER_ADMITTED);
    ck_assert_int_eq(peers_enter(p, of("192.0.2.3")), PEER_TOTAL_FULL);
    ck_assert_int_eq(peers_open(p), 5); /* those refused are not counted */
    peers_leave(p, of("192.0.2.1"));
    ck_assert_int_eq(peers_enter(p, of("192.0.2.1")), PEER_ADMITTED);
    peers_leave(p, of("203.0.113.9")); /* never entered: nothing happens */
    ck_assert_int_eq(peers_open(p), 5);
    peers_destroy(p);
}
END_TEST

START_TEST(no_limit)
{
    peers *p = peers_create(0, 0);
    for (int i = 0; i < 10000; i++) {
        ck_assert_int_eq(peers_enter(p, of("192.0.2.1")), PEER_ADMITTED);
    }
    ck_assert_int_eq(peers_open(p), 10000);
    peers_destroy(p);
}
END_TEST

/* More clients than the table has buckets, come and gone. */
START_TEST(many_clients)
{
    peers *p = peers_create(0, 1);
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < 5000; i++) {
            ck_assert_int_eq(peers_enter(p, (peer_id){i, 4}), PEER_ADMITTED);
            ck_assert_int_eq(peers_enter(p, (peer_id){i, 4}), PEER_CLIENT_FULL);
        }
        for (uint64_t i = 0; i < 5000; i++) peers_leave(p, (peer_id){i, 4});
        ck_assert_int_eq(peers_open(p), 0);
    }
    peers_destroy(p);
}
END_TEST

static peers *shared;

static void *come_and_go(void *arg)
{
    (void)arg;
    for (int i = 0; i < 5000; i++) {
        peer_id id = {(uint64_t)(i % 7), 4};
        if (peers_enter(shared, id) == PEER_ADMITTED) peers_leave(shared, id);
    }
    return NULL;
}

START_TEST(threads_leave_nothing_behind)
{
    pthread_t t[4];
    shared = peers_create(3, 1);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&t[i], NULL, come_and_go, NULL), 0);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_join(t[i], NULL), 0);
    ck_assert_int_eq(peers_open(shared), 0);
    peers_destroy(shared);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("peers");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, who_is_one_client);
    tcase_add_test(tc, both_limits);
    tcase_add_test(tc, no_limit);
    tcase_add_test(tc, many_clients);
    tcase_add_test(tc, threads_leave_nothing_behind);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
