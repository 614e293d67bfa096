/* test_stacks.c -- which stacks are the same, what they hold, and what becomes of them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <check.h>

#include "adapters/store/stacks.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64];
static store *st;
static registry *reg;
static stacks *all;
static uint64_t acme;
static const adapter_version *one, *two;
static err e;
static uint64_t gone[4]; /* numbers of stacks that were forgotten */
static int n_gone;

static const adapter_version *publish(const char *name, int content, int rank)
{
    uint8_t digest[DIGEST_BYTES];
    char path[256];
    adapter_version v;
    const adapter_version *out;
    bool existed;
    digest_bytes(&content, sizeof content, digest);
    registry_path(reg, digest, path, sizeof path);
    mkdir(path, 0700);
    registry_new_version nv = {.tenant_id = acme,
                               .name = name,
                               .digest = digest,
                               .file_bytes = 1000,
                               .packed_bytes = 2000,
                               .rank_max = rank,
                               .info = "{}",
                               .activate = true};
    ck_assert_msg(registry_publish(reg, &nv, &v, &existed, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(registry_acquire(reg, acme, name, false, &out, &e), ERR_NONE);
    return out;
}

static void setup(void)
{
    tenant want = {.name = "acme"}, t;
    n_gone = 0;
    tmpdir_make(dir);
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
    ck_assert_int_eq(registry_create(&reg, st, NULL, &e), ERR_NONE);
    ck_assert_int_eq(tenants_create(st, &want, &t, &e), ERR_NONE);
    acme = t.id;
    all = stacks_create(reg);
    one = publish("one", 1, 8);
    two = publish("two", 2, 16);
}

static void teardown(void)
{
    registry_release(reg, one);
    registry_release(reg, two);
    stacks_destroy(all);
    registry_destroy(reg);
    store_close(st);
    tmpdir_remove(dir);
}

static const stack *get(float a, float b)
{
    const stack_part part[] = {{one, a}, {two, b}};
    const stack *out;
    ck_assert_msg(stacks_acquire(all, part, 2, 256, &out, &e) == ERR_NONE, "%s", e.msg);
    return out;
}

START_TEST(the_same_parts_and_scales_are_the_same_stack)
{
    const stack *a = get(0.5F, -1), *b = get(0.5F, -1), *c = get(0.5F, 1), *turned;
    const stack_part part[] = {{two, -1}, {one, 0.5F}};
    char label[64];
    ck_assert_int_eq(stacks_acquire(all, part, 2, 256, &turned, &e), ERR_NONE);
    ck_assert(a == b && a == turned && a != c && a->id != c->id);
    ck_assert(stacks_is(a->id) && !stacks_is(one->id));
    ck_assert_int_eq(a->rank, 24);
    ck_assert_mem_ne(a->digest, c->digest, DIGEST_BYTES);
    ck_assert(stacks_label(all, a->id, label, sizeof label));
    ck_assert_str_eq(label, "one@1*0.5+two@1*-1");
    ck_assert(!stacks_label(all, a->id, label, 10) && !stacks_label(all, 7, label, sizeof label));
    stacks_release(all, a);
    stacks_release(all, b);
    stacks_release(all, turned);
    stacks_release(all, c);
    const stack *again = get(0.5F, -1); /* nobody held it for a moment */
    ck_assert(again == a);
    stacks_release(all, again);
}
END_TEST

START_TEST(what_is_none_is_refused)
{
    const stack *out;
    stack_part part[STACK_PARTS_MAX + 1] = {{one, 1}, {one, 2}};
    ck_assert_int_eq(stacks_acquire(all, part, 2, 256, &out, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "'one'"));
    part[1].v = two;
    ck_assert_int_eq(stacks_acquire(all, part, 2, 23, &out, &e), ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(e.msg, "24"));
    ck_assert_int_eq(stacks_acquire(all, part, 0, 256, &out, &e), ERR_LIMIT);
    ck_assert_int_eq(stacks_acquire(all, part, STACK_PARTS_MAX + 1, 256, &out, &e), ERR_LIMIT);
    ck_assert_int_eq(stacks_acquire_id(all, one->id, &out, &e), ERR_NOT_FOUND);
}
END_TEST

/* A part that is deleted stays as long as the stack is held, and not longer. */
static void see_gone(void *self, uint64_t id)
{
    (void)self;
    if (n_gone < 4) gone[n_gone] = id;
    n_gone++;
}

START_TEST(it_pins_its_parts)
{
    const adapter_version *three = publish("three", 3, 4), *found;
    const stack_part part[] = {{one, 1}, {three, 2}};
    const stack *a, *b;
    uint64_t id = three->id;
    bool draining;
    ck_assert_int_eq(stacks_acquire(all, part, 2, 256, &a, &e), ERR_NONE);
    registry_release(reg, three);
    ck_assert_int_eq(registry_delete(reg, acme, "three", 0, true, &draining, &e), ERR_NONE);
    ck_assert(draining);
    ck_assert_int_eq(registry_acquire_id(reg, id, &found, &e), ERR_NONE);
    registry_release(reg, found);
    ck_assert_int_eq(stacks_acquire_id(all, a->id, &b, &e), ERR_NONE);
    ck_assert(a == b);
    uint64_t number = a->id;
    stacks_release(all, a);
    ck_assert_int_eq(registry_acquire_id(reg, id, &found, &e), ERR_NONE);
    registry_release(reg, found);
    stacks_release(all, b);
    ck_assert_int_ne(registry_acquire_id(reg, id, &found, &e), ERR_NONE);
    ck_assert_int_ne(stacks_acquire_id(all, number, &b, &e), ERR_NONE);
    const stack *other = get(1, 2);
    stacks_on_gone(all, see_gone, NULL);
    stacks_part_gone(all, id);
    ck_assert_int_eq(n_gone, 1);
    ck_assert_uint_eq(gone[0], number);
    stacks_part_gone(all, one->id); /* the other one is held */
    ck_assert_int_eq(n_gone, 1);
    stacks_release(all, other);
}
END_TEST

START_TEST(those_that_nobody_holds_are_forgotten_in_the_end)
{
    const stack *held = get(1, 1), *first = get(2, 1), *out;
    uint64_t id = first->id;
    stacks_release(all, first);
    stacks_on_gone(all, see_gone, NULL);
    for (int i = 0; i < STACKS_KEPT + 8; i++) stacks_release(all, get(3 + (float)i, 1));
    ck_assert_int_eq(stacks_acquire_id(all, id, &out, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(n_gone, 8);
    ck_assert_uint_eq(gone[0], id);
    const stack *same = get(1, 1), *later = get(2, 1);
    ck_assert(same == held && later->id != id); /* numbers are not used twice */
    stacks_release(all, held);
    stacks_release(all, same);
    stacks_release(all, later);
}
END_TEST

enum { THREADS = 4, TURNS = 1500 };

static void *use_some(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (int i = 0; i < TURNS; i++) {
        const stack_part part[] = {{one, (float)(1 + rand_r(&seed) % 3)}, {two, 1}};
        const stack *held, *again;
        char label[64];
        err mine;
        if (stacks_acquire(all, part, 1 + i % 2, 256, &held, &mine) != ERR_NONE) return arg;
        uint64_t id = held->id;
        bool same = held->part[0].v == one && stacks_label(all, id, label, sizeof label);
        same = same && stacks_acquire_id(all, id, &again, &mine) == ERR_NONE && again == held;
        if (i % 64 == 0) stacks_part_gone(all, two->id); /* those that nobody holds */
        stacks_release(all, held);
        if (!same) return arg;
        stacks_release(all, again);
    }
    return NULL;
}

START_TEST(many_threads_share_them)
{
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, use_some, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++) {
        void *bad;
        ck_assert_int_eq(pthread_join(t[i], &bad), 0);
        ck_assert_ptr_null(bad);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stacks");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_same_parts_and_scales_are_the_same_stack);
    tcase_add_test(tc, what_is_none_is_refused);
    tcase_add_test(tc, it_pins_its_parts);
    tcase_add_test(tc, those_that_nobody_holds_are_forgotten_in_the_end);
    tcase_add_test(tc, many_threads_share_them);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
