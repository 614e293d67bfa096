/* test_heap.c -- items come out in order, however they came in, and places
 * are known while they move. */
#include <stdlib.h>

#include <check.h>

#include "engine/base/heap.h"
#include "tests/run_suite.h"

enum { N = 500 };

typedef struct {
    int worth, at;
} thing;

static thing things[N];

static bool less(const void *self, const void *a, const void *b)
{
    (void)self;
    return (*(thing *const *)a)->worth < (*(thing *const *)b)->worth;
}

static void moved(void *self, const void *item, size_t at)
{
    ++*(int *)self;
    (*(thing *const *)item)->at = (int)at;
}

static const heap_of of_things = {sizeof(thing *), less, moved};

static bool holds(thing **heap, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (heap[i]->at != (int)i) return false;
        if (i > 0 && heap[(i - 1) / 2]->worth > heap[i]->worth) return false;
    }
    return true;
}

START_TEST(order_and_places_hold_through_every_change)
{
    thing *heap[N];
    size_t n = 0;
    int moves = 0;
    srand((unsigned)_i);
    for (int i = 0; i < N; i++) {
        things[i].worth = rand() % 100;
        heap[n++] = &things[i];
        heap_settle(&of_things, &moves, (void *)heap, n, n - 1);
    }
    ck_assert(holds(heap, n));
    for (int i = 0; i < N; i++) { /* anybody's worth may change */
        thing *t = &things[rand() % N];
        t->worth = rand() % 100;
        heap_settle(&of_things, &moves, (void *)heap, n, (size_t)t->at);
        ck_assert(holds(heap, n));
    }
    while (n > 0) { /* and anybody may leave */
        size_t at = n % 3 == 0 ? (size_t)rand() % n : 0;
        heap[at] = heap[--n];
        if (at < n) heap_settle(&of_things, &moves, (void *)heap, n, at);
        ck_assert(holds(heap, n));
    }
    ck_assert_int_gt(moves, N);
}
END_TEST

static bool int_less(const void *self, const void *a, const void *b)
{
    (void)self;
    return *(const int *)a < *(const int *)b;
}

START_TEST(any_order_becomes_a_heap)
{
    static const heap_of ints = {sizeof(int), int_less, NULL};
    int v[100], last = -1;
    for (int n = 0; n <= 100; n++) {
        for (int i = 0; i < n; i++) v[i] = (i * 37 + 11) % 101;
        heap_make(&ints, NULL, v, (size_t)n);
        last = -1;
        for (int left = n; left > 0;) {
            ck_assert_int_gt(v[0], last); /* none is there twice */
            last = v[0];
            v[0] = v[--left];
            heap_sink(&ints, NULL, v, (size_t)left, 0);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("heap");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, order_and_places_hold_through_every_change, 0, 5);
    tcase_add_test(tc, any_order_becomes_a_heap);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
