/* test_inflight.c -- workers come and go while operators look and stop. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/inflight.h"
#include "tests/run_suite.h"

static void fill(inflight_entry *e, uint64_t id, const char *request, atomic_bool *stop)
{
    *e = (inflight_entry){.info = {.id = id}, .stop = stop};
    snprintf(e->info.request_id, sizeof(e->info.request_id), "%s", request);
}

START_TEST(order_and_stop)
{
    inflight *f = inflight_create();
    inflight_entry e[4];
    atomic_bool stop[2] = {false, false};
    inflight_info *list, info;
    size_t n;
    fill(&e[0], 10, "req_a", &stop[0]);
    fill(&e[1], 11, "req_a", &stop[0]);
    fill(&e[2], 12, "req_b", &stop[1]);
    memset(&e[3], 0, sizeof(e[3]));
    inflight_remove(f, &e[3]); /* was never there */
    for (int i = 0; i < 3; i++) inflight_add(f, &e[i]);
    ck_assert(inflight_list(f, &list, &n));
    ck_assert_uint_eq(n, 3);
    for (size_t i = 0; i < n; i++) ck_assert_uint_eq(list[i].id, 10 + i);
    free(list);
    ck_assert(!inflight_stop(f, "13", &info));
    ck_assert(!inflight_stop(f, "1", &info)); /* no prefix of an id */
    ck_assert(!inflight_stop(f, "", &info));
    ck_assert(!inflight_stop(f, "req_", &info));
    ck_assert(!atomic_load(&stop[0]) && !atomic_load(&stop[1]));
    ck_assert(inflight_stop(f, "11", &info));
    ck_assert_uint_eq(info.id, 11);
    ck_assert(atomic_load(&stop[0]) && !atomic_load(&stop[1]));
    ck_assert(inflight_stop(f, "req_b", NULL));
    ck_assert(atomic_load(&stop[1]));
    inflight_remove(f, &e[1]); /* from the middle, the end, the beginning */
    inflight_remove(f, &e[2]);
    inflight_remove(f, &e[2]);
    inflight_remove(f, &e[0]);
    ck_assert(inflight_list(f, &list, &n));
    ck_assert_uint_eq(n, 0);
    free(list);
    inflight_destroy(f);
}
END_TEST

/* Who is shut out takes nobody with him. */
START_TEST(only_its_own_are_stopped)
{
    static const struct {
        uint64_t tenant, key;
    } whose[] = {{1, 10}, {1, 11}, {2, 20}, {0, 30}};
    static const struct {
        uint64_t tenant, key;
        bool stops[4];
    } asks[] = {{1, 0, {true, true, false, false}},
                {0, 11, {false, true, false, false}},
                {2, 0, {false, false, true, false}},
                {3, 0, {false}},
                {0, 0, {false}},
                {2, 10, {true, false, true, false}}};
    inflight *f = inflight_create();
    inflight_entry e[4];
    atomic_bool stop[4];
    for (int i = 0; i < 4; i++) {
        fill(&e[i], (uint64_t)i + 1, "req", &stop[i]);
        e[i].info.tenant_id = whose[i].tenant;
        e[i].info.key_id = whose[i].key;
        inflight_add(f, &e[i]);
    }
    for (size_t k = 0; k < sizeof(asks) / sizeof(asks[0]); k++) {
        int n = 0;
        for (int i = 0; i < 4; i++) {
            atomic_store(&stop[i], false);
            n += asks[k].stops[i];
        }
        ck_assert_int_eq(inflight_stop_all(f, asks[k].tenant, asks[k].key), n);
        for (int i = 0; i < 4; i++) ck_assert_int_eq(atomic_load(&stop[i]), asks[k].stops[i]);
    }
    for (int i = 0; i < 4; i++) inflight_remove(f, &e[i]);
    inflight_destroy(f);
}
END_TEST

/* More than the list's first guess. */
START_TEST(many)
{
    enum { MANY = 1000 };
    inflight *f = inflight_create();
    inflight_entry *e = calloc(MANY, sizeof(*e));
    atomic_bool stop = false;
    inflight_info *list;
    size_t n;
    for (int i = 0; i < MANY; i++) {
        fill(&e[i], (uint64_t)i + 1, "req_x", &stop);
        inflight_add(f, &e[i]);
    }
    ck_assert(inflight_list(f, &list, &n));
    ck_assert_uint_eq(n, MANY);
    ck_assert_uint_eq(list[MANY - 1].id, MANY);
    free(list);
    for (int i = 0; i < MANY; i++) inflight_remove(f, &e[i]);
    inflight_destroy(f);
    free(e);
}
END_TEST

enum { WORKERS = 4, ROUNDS = 2000 };

static void *work(void *arg)
{
    inflight *f = arg;
    for (int i = 0; i < ROUNDS; i++) {
        inflight_entry e;
        atomic_bool stop = false;
        fill(&e, 1 + (uint64_t)i % 7, "req_w", &stop);
        inflight_add(f, &e);
        (void)atomic_load(&stop);
        inflight_remove(f, &e);
    }
    return NULL;
}

START_TEST(at_once)
{
    inflight *f = inflight_create();
    pthread_t t[WORKERS];
    for (int i = 0; i < WORKERS; i++) ck_assert_int_eq(pthread_create(&t[i], NULL, work, f), 0);
    for (int i = 0; i < ROUNDS; i++) {
        inflight_info *list;
        size_t n;
        ck_assert(inflight_list(f, &list, &n));
        ck_assert_uint_le(n, WORKERS);
        free(list);
        (void)inflight_stop(f, i % 2 ? "3" : "req_w", NULL);
    }
    for (int i = 0; i < WORKERS; i++) (void)pthread_join(t[i], NULL);
    inflight_destroy(f); /* asserts that it is empty */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("inflight");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, order_and_stop);
    tcase_add_test(tc, only_its_own_are_stopped);
    tcase_add_test(tc, many);
    tcase_add_test(tc, at_once);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
