/* test_devmem.c -- chunks under KV pages and adapters: thousands of random scenarios against a
 * plain model of who owns what, the order of eviction rule by rule, and threads that race. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/memory/devmem.h"
#include "engine/memory/kv.h"
#include "tests/run_suite.h"

enum { CHUNKS_MAX = 64, LEASES = 12, PAGES_HELD = 40, PT = 4, PIECES = 9 };

static uint64_t rng;
static int owner; /* of leases whose owner does not matter */

static int draw(int n)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (int)((rng >> 33) % (uint64_t)n);
}

static devmem *open_devmem(int n, int cap)
{
    devmem *a;
    err e;
    ck_assert_int_eq(devmem_create(&a, NULL, n, 64, cap, &e), ERR_NONE);
    return a;
}

/* ------------------------------------------------------------------- random scenarios -- */

typedef struct {
    devmem_lease *l;
    int n, holds, chunk[PIECES];
    bool filling, pinned;
} adapter;

typedef struct {
    devmem *a;
    kv_pages *kv;
    int n_chunks, cap, n_page;
    int32_t page[CHUNKS_MAX]; /* held */
    adapter ad[LEASES];
    /* Of a held page: -2; of a lease that must be there: its index; else -1. */
    int owned[CHUNKS_MAX];
    int64_t now;
    uint64_t n_evicted, n_refused, next_token;
} world;

static void own(world *w, int chunk, int by)
{
    ck_assert(chunk >= 0 && chunk < w->n_chunks);
    ck_assert_int_eq(w->owned[chunk], -1); /* never twice */
    w->owned[chunk] = by;
}

/* Those that were evicted are learned of as residency learns of them. */
static void collect(world *w)
{
    for (adapter *ad; (ad = devmem_lost(w->a)) != NULL;) {
        ck_assert_int_eq(ad->holds, 0);
        ck_assert(!ad->filling && !ad->pinned);
        ck_assert(!devmem_lease_alive(ad->l));
        for (int i = 0; i < ad->n; i++) w->owned[ad->chunk[i]] = -1;
        devmem_lease_drop(ad->l);
        *ad = (adapter){0};
        w->n_evicted++;
    }
}

static void take_lease(world *w, int k)
{
    adapter *ad = &w->ad[k];
    int n = 1 + draw(PIECES);
    devmem_need need = draw(3) ? DEVMEM_DEMAND : DEVMEM_HINT;
    devmem_lease *l = devmem_lease_take(w->a, n, need, w->now, ad);
    collect(w);
    if (!l) {
        w->n_refused++;
        return;
    }
    *ad = (adapter){.l = l, .n = n, .filling = true};
    for (int i = 0; i < n; i++) {
        ad->chunk[i] = devmem_lease_chunk(l, i);
        own(w, ad->chunk[i], k);
    }
}

static void drop_lease(world *w, adapter *ad)
{
    for (int i = 0; i < ad->n; i++) w->owned[ad->chunk[i]] = -1;
    devmem_lease_drop(ad->l);
    *ad = (adapter){0};
}

static void touch_lease(world *w, int k)
{
    adapter *ad = &w->ad[k];
    int what = draw(12);
    if (!ad->l)
        take_lease(w, k);
    else if (ad->filling && what < 8) {
        devmem_lease_ready(ad->l, draw(2) ? DEVMEM_DEMAND : DEVMEM_HINT, draw(5000), w->now);
        ad->filling = false;
    } else if (what == 8) {
        ad->pinned = !ad->pinned && draw(4) == 0;
        devmem_lease_pin(ad->l, ad->pinned);
    } else if (ad->holds > 0 && what < 6) {
        devmem_lease_release(ad->l);
        ad->holds--;
    } else if (!ad->filling && what < 11) {
        ck_assert(devmem_lease_hold(ad->l, draw(10)));
        ad->holds++;
    } else if (ad->holds == 0) {
        drop_lease(w, ad);
    }
}

/* A sequence comes with some pages: those claimed must be there, whatever loaders took before. */
static void take_pages(world *w)
{
    int room = CHUNKS_MAX - w->n_page, n = 1 + draw(6);
    if (n > room || !kv_claim(w->kv, n, draw(2))) return;
    if (draw(2)) { /* a loader comes between */
        int k = draw(LEASES);
        if (!w->ad[k].l) take_lease(w, k);
    }
    while (n-- > 0) {
        int c = kv_take(w->kv);
        collect(w);
        ck_assert_int_ge(c, 0);
        own(w, c, -2);
        w->page[w->n_page++] = c;
        if (draw(3)) {
            int32_t tokens[PT] = {(int32_t)w->next_token++, 1, 2, 3};
            kv_publish(w->kv, &(kv_domain){.isolation = 1}, &c, 0, tokens);
        }
    }
    (void)kv_claim(w->kv, 0, false);
}

static void give_page(world *w)
{
    if (w->n_page == 0) return;
    int i = draw(w->n_page);
    w->owned[w->page[i]] = -1;
    kv_release(w->kv, w->page[i]);
    w->page[i] = w->page[--w->n_page];
}

static void compare(world *w)
{
    devmem_counts c;
    int leased = 0;
    ck_assert(kv_check(w->kv));
    devmem_count(w->a, &c);
    for (int k = 0; k < LEASES; k++) {
        if (!w->ad[k].l) continue;
        leased += w->ad[k].n;
        ck_assert(devmem_lease_alive(w->ad[k].l)); /* all that were lost have been collected */
    }
    ck_assert_int_eq(c.n_pages_held, w->n_page);
    ck_assert_int_eq(c.n_lease_chunks, leased);
    ck_assert_int_le(leased, w->cap ? w->cap : w->n_chunks);
    ck_assert_int_eq(c.n_free + c.n_pages_held + c.n_pages_cached + c.n_lease_chunks, w->n_chunks);
}

static void scenario(int seed, uint64_t *evicted, uint64_t *refused)
{
    world w = {.next_token = 1};
    rng = (uint64_t)seed * 2654435761u + 1;
    w.n_chunks = 1 + draw(CHUNKS_MAX);
    w.cap = draw(3) ? 0 : 1 + draw(w.n_chunks);
    w.a = open_devmem(w.n_chunks, w.cap);
    w.kv = kv_create(w.a, PT, true);
    for (int i = 0; i < CHUNKS_MAX; i++) w.owned[i] = -1;
    for (int op = 0; op < 300; op++) {
        w.now += draw(DEVMEM_FRESH_US / 50);
        int what = draw(10);
        if (what < 5)
            touch_lease(&w, draw(LEASES));
        else if (what < 7)
            take_pages(&w);
        else
            give_page(&w);
        if (op % 16 == 0) devmem_reserve(w.a, draw(4) ? 0 : draw(5));
        if (op % 10 == 0) compare(&w);
    }
    while (w.n_page > 0) give_page(&w);
    for (int k = 0; k < LEASES; k++) {
        adapter *ad = &w.ad[k];
        while (ad->holds > 0 && ad->holds--) devmem_lease_release(ad->l);
        if (ad->l) drop_lease(&w, ad);
    }
    devmem_counts c;
    kv_destroy(w.kv);
    devmem_count(w.a, &c);
    ck_assert_int_eq(c.n_free, w.n_chunks); /* nothing leaked */
    devmem_destroy(w.a);
    *evicted += w.n_evicted;
    *refused += w.n_refused;
}

START_TEST(no_chunk_is_lost_or_used_twice)
{
    uint64_t evicted = 0, refused = 0;
    for (int seed = 1; seed <= 5000; seed++) scenario(seed, &evicted, &refused);
    ck_assert_uint_gt(evicted, 10000); /* the scenarios did meet what they are about */
    ck_assert_uint_gt(refused, 10000);
}
END_TEST

/* --------------------------------------------------------------------- the order -- */

static devmem_lease *load(devmem *a, int n, double cost_us, double popularity)
{
    devmem_lease *l = devmem_lease_take(a, n, DEVMEM_DEMAND, 0, &owner);
    ck_assert_ptr_nonnull(l);
    devmem_lease_ready(l, DEVMEM_DEMAND, cost_us, 0);
    ck_assert(devmem_lease_hold(l, popularity));
    devmem_lease_release(l);
    return l;
}

static void drop_all(devmem_lease **l, int n)
{
    for (int i = 0; i < n; i++) devmem_lease_drop(l[i]);
}

START_TEST(the_least_worth_goes_first)
{
    devmem *a = open_devmem(10, 0);
    devmem_lease *l[6];
    l[0] = load(a, 2, 1000, 1); /* 500 a chunk: recent, but cheap to bring back */
    l[1] = load(a, 2, 1000, 9); /* popular */
    l[2] = load(a, 2, 8000, 1); /* slow to load */
    l[3] = load(a, 4, 1000, 1); /* 250: much room for little */
    ck_assert(devmem_lease_hold(l[2], 1));
    l[4] = load(a, 1, 1000, 1);
    ck_assert(!devmem_lease_alive(l[3]));
    l[5] = load(a, 5, 900, 1);
    ck_assert(!devmem_lease_alive(l[0]) && devmem_lease_alive(l[1]) && devmem_lease_alive(l[2]));
    ck_assert(devmem_check(a));
    devmem_lease_release(l[2]);
    drop_all(l, 6);
    devmem_destroy(a);
}
END_TEST

/* Pages of the prefix cache and adapters compete by the same measure. */
START_TEST(pages_and_adapters_compete)
{
    devmem *a = open_devmem(8, 0);
    kv_pages *kv = kv_create(a, PT, true);
    kv_domain d = {.isolation = 1};
    int32_t page[4], tokens[4 * PT + 1];
    for (int i = 0; i <= 4 * PT; i++) tokens[i] = i;
    devmem_page_cost(a, 1000);
    for (int i = 0; i < 4; i++) {
        page[i] = kv_take(kv);
        kv_publish(kv, &d, page, i, tokens + (size_t)i * PT);
    }
    for (int i = 3; i >= 0; i--) kv_release(kv, page[i]);
    devmem_lease *cheap = load(a, 2, 1000, 1), *dear = load(a, 2, 9000, 1);
    devmem_lease *l = load(a, 2, 10, 1); /* 500 a chunk goes before pages of 1000 */
    ck_assert(!devmem_lease_alive(cheap) && devmem_lease_alive(dear));
    devmem_lease_drop(l);
    l = load(a, 4, 10, 1); /* now two pages, from the chain's end */
    ck_assert(devmem_lease_alive(dear));
    ck_assert_int_eq(kv_match(kv, &d, &(kv_sight){0}, tokens, 4 * PT + 1, page, 4), 2);
    ck_assert(devmem_lease_alive(l));
    ck_assert(kv_claim(kv, 6 - 2, true)); /* what is held is not counted */
    ck_assert(kv_claim(kv, 6, true));
    ck_assert(!kv_claim(kv, 7, true));
    (void)kv_claim(kv, 0, true);
    kv_release(kv, page[1]);
    kv_release(kv, page[0]);
    devmem_lease_drop(l);
    devmem_lease_drop(cheap);
    devmem_lease_drop(dear);
    kv_destroy(kv);
    devmem_destroy(a);
}
END_TEST

/* Pinned and held never; prefetched after all idle ones; what a request waits for last, and for a
 * loader only once nobody came. */
START_TEST(ranks_come_before_worth)
{
    devmem *a = open_devmem(8, 0);
    kv_pages *kv = kv_create(a, PT, true);
    devmem_lease *held = load(a, 1, 1, 1), *pinned = load(a, 1, 1, 1), *idle = load(a, 2, 1e6, 9);
    ck_assert(devmem_lease_hold(held, 1));
    devmem_lease_pin(pinned, true);
    devmem_lease *hinted = devmem_lease_take(a, 2, DEVMEM_HINT, 0, &owner);
    devmem_lease *waited = devmem_lease_take(a, 2, DEVMEM_DEMAND, 0, &owner);
    devmem_lease_ready(hinted, DEVMEM_HINT, 1, 0);
    devmem_lease_ready(waited, DEVMEM_DEMAND, 1, 0);
    ck_assert_ptr_null(
        devmem_lease_take(a, 3, DEVMEM_HINT, 1, &owner)); /* only idle ones for a hint */
    devmem_lease *l = devmem_lease_take(a, 1, DEVMEM_HINT, 1, &owner);
    ck_assert(!devmem_lease_alive(idle) && devmem_lease_alive(hinted));
    devmem_lease_drop(l);
    l = devmem_lease_take(a, 4, DEVMEM_DEMAND, 1, &owner);
    ck_assert(!devmem_lease_alive(hinted) && devmem_lease_alive(waited));
    ck_assert_ptr_null(devmem_lease_take(a, 1, DEVMEM_DEMAND, 1, &owner));
    devmem_lease *late = devmem_lease_take(a, 1, DEVMEM_DEMAND, DEVMEM_FRESH_US, &owner);
    ck_assert_ptr_nonnull(late);
    ck_assert(!devmem_lease_alive(waited));
    devmem_lease_drop(late);
    devmem_lease_drop(l);
    l = devmem_lease_take(a, 6, DEVMEM_DEMAND, 1, &owner);
    devmem_lease_ready(l, DEVMEM_DEMAND, 1, 1);
    ck_assert_int_ge(kv_take(kv), 0); /* a running sequence comes before what only waits */
    ck_assert(!devmem_lease_alive(l));
    ck_assert(devmem_lease_alive(held) && devmem_lease_alive(pinned));
    ck_assert_int_eq(devmem_lease_limit(a, NULL), 7);
    ck_assert_int_eq(devmem_lease_limit(a, pinned), 8);
    devmem_lease_release(held);
    drop_all((devmem_lease *[]){held, pinned, idle, hinted, waited, l}, 6);
    kv_destroy(kv);
    devmem_destroy(a);
}
END_TEST

START_TEST(claims_and_reserves_hold)
{
    devmem *a = open_devmem(6, 4);
    kv_pages *kv = kv_create(a, PT, true);
    ck_assert_ptr_null(
        devmem_lease_take(a, 5, DEVMEM_DEMAND, 0, &owner)); /* over the bound on adapters */
    ck_assert(kv_claim(kv, 4, true));
    ck_assert_ptr_null(devmem_lease_take(a, 3, DEVMEM_DEMAND, 0, &owner));
    devmem_lease *l = devmem_lease_take(a, 2, DEVMEM_DEMAND, 0, &owner);
    ck_assert_ptr_nonnull(l);
    for (int i = 0; i < 4; i++) ck_assert_int_ge(kv_take(kv), 0);
    ck_assert_int_eq(kv_take(kv), -1);
    devmem_lease_drop(l);
    devmem_reserve(a, 2);
    ck_assert_int_eq(kv_available(kv, true), 0);
    ck_assert_int_eq(kv_available(kv, false), 2); /* who runs may go on */
    ck_assert(!kv_claim(kv, 1, true));
    ck_assert(kv_claim(kv, 1, false));
    (void)kv_claim(kv, 0, false);
    l = devmem_lease_take(a, 2, DEVMEM_DEMAND, 0, &owner);
    ck_assert_ptr_nonnull(l);
    devmem_lease_drop(l);
    kv_destroy(kv);
    devmem_destroy(a);
}
END_TEST

/* Long contexts, then many adapters, then long contexts: all of it serves each time. */
START_TEST(nothing_is_split_beforehand)
{
    enum { N = 500, EACH = 7 };
    devmem *a = open_devmem(N, 0);
    kv_pages *kv = kv_create(a, PT, true);
    int32_t page[N], tokens[PT] = {0};
    devmem_lease *l[N / EACH];
    devmem_counts c;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            page[i] = kv_take(kv);
            ck_assert_int_ge(page[i], 0);
            tokens[0] = round * N + i;
            kv_publish(kv, &(kv_domain){.isolation = 1}, page + i, 0, tokens);
        }
        devmem_count(a, &c);
        ck_assert_int_eq(c.n_pages_held, N);
        for (int i = 0; i < N; i++) kv_release(kv, page[i]);
        for (void *o; (o = devmem_lost(a)) != NULL;) ck_assert_ptr_eq(o, &owner);
        for (int i = 0; round > 0 && i < N / EACH; i++) devmem_lease_drop(l[i]);
        if (round > 0) break;
        for (int i = 0; i < N / EACH; i++) l[i] = load(a, EACH, 1000, 1);
        devmem_count(a, &c);
        ck_assert_int_ge(c.n_lease_chunks * 100, N * 95);
        for (int i = 0; i < N / EACH; i++) ck_assert(devmem_lease_alive(l[i]));
    }
    ck_assert(kv_check(kv));
    kv_destroy(kv);
    devmem_count(a, &c);
    ck_assert_int_eq(c.n_free, N);
    devmem_destroy(a);
}
END_TEST

/* ------------------------------------------------------------------------ races -- */

typedef struct {
    devmem *a;
    int *memory; /* one word a chunk, written by whoever owns it, without a lock */
    atomic_int stop;
} race;

/* A loader and its engine in one: what it wrote is there as long as it holds the lease. */
static void *load_and_use(void *arg)
{
    race *r = arg;
    for (int i = 0; !atomic_load(&r->stop); i++) {
        int n = 1 + i % 5;
        devmem_lease *l =
            devmem_lease_take(r->a, n, i % 2 ? DEVMEM_DEMAND : DEVMEM_HINT, i, &owner);
        if (!l) continue;
        for (int k = 0; k < n; k++) r->memory[devmem_lease_chunk(l, k)] = i;
        int first = devmem_lease_chunk(l, 0);
        devmem_lease_ready(l, DEVMEM_DEMAND, 100, i);
        if (devmem_lease_hold(l, 1)) {
            ck_assert_int_eq(r->memory[first], i);
            devmem_lease_release(l);
        }
        devmem_lease_drop(l);
    }
    return NULL;
}

START_TEST(threads_race)
{
    enum { N = 24 };
    race r = {.a = open_devmem(N, 0), .memory = calloc(N, sizeof(int))};
    kv_pages *kv = kv_create(r.a, PT, true);
    pthread_t th[2];
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&th[i], NULL, load_and_use, &r), 0);
    rng = 7;
    for (int i = 0; i < 20000; i++) {
        int32_t page[8];
        int n = 1 + draw(8), got = 0;
        if (!kv_claim(kv, n, true)) continue;
        for (; got < n; got++) {
            page[got] = kv_take(kv);
            ck_assert_int_ge(page[got], 0); /* claimed: no loader was faster */
            r.memory[page[got]] = -i;
            kv_publish(kv, &(kv_domain){.isolation = 1}, page + got, 0, (int32_t[PT]){i, got});
        }
        for (int k = 0; k < n; k++) ck_assert_int_eq(r.memory[page[k]], -i);
        for (int k = n - 1; k >= 0; k--) kv_release(kv, page[k]);
    }
    atomic_store(&r.stop, 1);
    for (int i = 0; i < 2; i++) pthread_join(th[i], NULL);
    ck_assert(kv_check(kv));
    kv_destroy(kv);
    devmem_counts c;
    devmem_count(r.a, &c);
    ck_assert_int_eq(c.n_free, N);
    devmem_destroy(r.a);
    free(r.memory);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("devmem");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 250);
    tcase_add_test(tc, no_chunk_is_lost_or_used_twice);
    tcase_add_test(tc, the_least_worth_goes_first);
    tcase_add_test(tc, pages_and_adapters_compete);
    tcase_add_test(tc, ranks_come_before_worth);
    tcase_add_test(tc, claims_and_reserves_hold);
    tcase_add_test(tc, nothing_is_split_beforehand);
    tcase_add_test(tc, threads_race);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
