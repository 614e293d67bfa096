/* test_kv.c -- pages: a million random operations against a plain model of who holds what and what
 * lies where, and the rules of the prefix cache one by one. */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/memory/kv.h"
#include "tests/run_suite.h"

static devmem *ar;
static const kv_sight all; /* no window */

/* Pages without memory behind them. */
static kv_pages *open_kv(int n_pages, bool prefix_cache)
{
    err e;
    ck_assert_int_eq(devmem_create(&ar, NULL, n_pages, 64, 0, &e), ERR_NONE);
    return kv_create(ar, 4, prefix_cache);
}

static void close_kv(kv_pages *kv)
{
    devmem_counts c;
    kv_destroy(kv);
    devmem_count(ar, &c);
    ck_assert_int_eq(c.n_free, c.n_chunks); /* all of it came back */
    devmem_destroy(ar);
}

enum { PAGES = 40, PT = 4, SEQS = 12, LEN = 6 /* pages per sequence */, SNAPSHOTS = 7 };

static uint64_t rng = 1;

static int draw(int n)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (int)((rng >> 33) % (uint64_t)n);
}

typedef struct {
    int n_page, n_full;
    int32_t page[LEN];
    int32_t tokens[LEN * PT + 1];
    kv_domain d;
} seq;

/* What a page truly holds: the whole history up to its end, and whose. */
typedef struct {
    int n;
    int32_t tokens[LEN * PT];
    kv_domain d;
} truth;

/* Of a page that ends before either's adapter begins, the isolation alone counts. */
static bool same_domain(const kv_domain *a, const kv_domain *b, int page)
{
    static const kv_domain base;
    const kv_domain *x = page < a->from / PT ? &base : a, *y = page < b->from / PT ? &base : b;
    return a->isolation == b->isolation && x->from == y->from &&
           memcmp(x->digest, y->digest, sizeof(x->digest)) == 0;
}

/* Whose state each snapshot's slot holds; and how often one was found. */
static truth snap[SNAPSHOTS];
static uint64_t n_found;

/* Half of the sequences have states: they keep the pages up to the last snapshot. */
static void find_snapshot(kv_pages *kv, seq *s)
{
    int slot, m = kv_snapshot_get(kv, s->page, s->n_page, &slot);
    ck_assert_int_eq(m > 0, slot >= 0);
    if (m > 0) {
        n_found++;
        ck_assert_int_eq(snap[slot].n, m * PT);
        ck_assert_mem_eq(snap[slot].tokens, s->tokens, (size_t)m * PT * sizeof(int32_t));
        ck_assert(same_domain(&snap[slot].d, &s->d, m - 1));
    }
    while (s->n_page > m) kv_release(kv, s->page[--s->n_page]);
    s->n_full = s->n_page;
}

static uint64_t n_parts;

/* Of the page in which it parts from another text, a copy: the next page to be filled. */
static void continue_part(kv_pages *kv, seq *s, const truth *tr)
{
    kv_part part;
    int n = s->n_page, len = n * PT + draw(PT + 2);
    if (n == LEN || len > LEN * PT) return;
    if (!kv_part_begin(kv, &s->d, s->page, n, s->tokens, len, &part)) return;
    const truth *t = &tr[part.from];
    ck_assert(part.n_tokens > 0 && part.n_tokens < len - n * PT && part.page != part.from);
    ck_assert_int_eq(t->n, (n + 1) * PT);
    ck_assert_mem_eq(t->tokens, s->tokens, (size_t)(n * PT + part.n_tokens) * sizeof(int32_t));
    ck_assert(same_domain(&t->d, &s->d, n));
    s->page[s->n_page++] = part.page;
    kv_part_end(kv, &part);
    n_parts++;
}

static void put_snapshot(kv_pages *kv, const seq *s, int p)
{
    int instead = p > 0 && draw(3) == 0 ? s->page[p - 1] : -1;
    int slot = kv_snapshot_put(kv, s->page[p], instead);
    if (slot < 0) return;
    ck_assert_int_lt(slot, SNAPSHOTS);
    snap[slot].n = (p + 1) * PT;
    snap[slot].d = s->d;
    memcpy(snap[slot].tokens, s->tokens, (size_t)snap[slot].n * sizeof(int32_t));
}

static void open_seq(kv_pages *kv, seq *s, const truth *tr, uint64_t *hits)
{
    *s = (seq){.d = {.isolation = (uint64_t)draw(2)}};
    s->d.digest[31] = (uint8_t)draw(2);
    if (s->d.digest[31]) s->d.from = (int)draw(3) * (PT - 1);
    for (int i = 0; i <= LEN * PT; i++) s->tokens[i] = draw(8) ? 7 : draw(2);
    s->n_page = kv_match(kv, &s->d, &all, s->tokens, 1 + draw(LEN * PT + 1), s->page, LEN);
    s->n_full = s->n_page;
    for (int p = 0; p < s->n_page; p++) {
        const truth *t = &tr[s->page[p]];
        ck_assert_int_eq(t->n, (p + 1) * PT);
        ck_assert(memcmp(t->tokens, s->tokens, (size_t)t->n * sizeof(int32_t)) == 0);
        ck_assert(same_domain(&t->d, &s->d, p));
        (*hits)++;
    }
    s->n_full = s->n_page;
    if (draw(2))
        find_snapshot(kv, s);
    else
        continue_part(kv, s, tr);
}

static void close_seq(kv_pages *kv, seq *s, int *refs)
{
    for (int p = s->n_page - 1; p >= 0; p--) {
        kv_release(kv, s->page[p]);
        refs[s->page[p]]--;
    }
    s->n_page = s->n_full = 0;
}

static void fill_page(kv_pages *kv, seq *s, truth *tr, int *refs)
{
    int p = s->n_full++;
    truth *t = &tr[s->page[p]];
    t->n = (p + 1) * PT;
    t->d = s->d;
    memcpy(t->tokens, s->tokens, (size_t)t->n * sizeof(int32_t));
    refs[s->page[p]]--;
    if (draw(2))
        kv_publish(kv, &s->d, s->page, p, s->tokens + (size_t)p * PT);
    else
        kv_share(kv, &s->d, s->page, p, s->tokens + (size_t)p * PT);
    refs[s->page[p]]++;
    t = &tr[s->page[p]];
    ck_assert_int_eq(t->n, (p + 1) * PT);
    ck_assert_mem_eq(t->tokens, s->tokens, (size_t)t->n * sizeof(int32_t));
    ck_assert(same_domain(&t->d, &s->d, p));
    if (draw(3) == 0) put_snapshot(kv, s, p);
}

static void grow(kv_pages *kv, seq *s, int *refs)
{
    int available = kv_available(kv, true), page = kv_take(kv);
    ck_assert_int_eq(page >= 0, available > 0);
    if (page < 0) return;
    ck_assert_int_eq(refs[page], 0); /* never a page that somebody holds */
    refs[page] = 1;
    s->page[s->n_page++] = page;
}

static void compare(const kv_pages *kv, const int *refs)
{
    kv_counts c;
    int held = 0;
    for (int i = 0; i < PAGES; i++) held += refs[i] > 0;
    kv_count(kv, &c);
    ck_assert_int_eq(c.n_held, held);
    ck_assert_int_eq(kv_available(kv, true), PAGES - held);
    ck_assert(kv_check(kv));
}

START_TEST(a_million_operations_keep_every_invariant)
{
    kv_pages *kv = open_kv(PAGES, true);
    ck_assert(kv_keep_snapshots(kv, SNAPSHOTS));
    static seq s[SEQS];
    static truth tr[PAGES];
    int refs[PAGES] = {0};
    uint64_t hits = 0;
    memset(s, 0, sizeof(s));
    for (int op = 0; op < 1000000; op++) {
        seq *q = &s[draw(SEQS)];
        int what = draw(16);
        if (q->n_page == 0 && what < 12) {
            open_seq(kv, q, tr, &hits);
            for (int p = 0; p < q->n_page; p++) refs[q->page[p]]++;
        }
        if (q->n_full < q->n_page)
            fill_page(kv, q, tr, refs);
        else if (q->n_page < LEN && what < 13)
            grow(kv, q, refs);
        else if (what == 13 && q->n_page > 0)
            kv_forget(kv, q->page[draw(q->n_page)]);
        else
            close_seq(kv, q, refs);
        if (op % 64 == 0) compare(kv, refs);
    }
    ck_assert_uint_gt(hits, 10000);
    snapshot_counts sc;
    kv_snapshot_count(kv, &sc);
    ck_assert_uint_eq(sc.n_hits, n_found);
    ck_assert_uint_gt(n_parts, 1000);
    ck_assert_msg(n_found > 1000 && sc.n_evicted > 1000, "%d found, %d evicted", (int)n_found,
                  (int)sc.n_evicted);
    for (int i = 0; i < SEQS; i++) close_seq(kv, &s[i], refs);
    compare(kv, refs);
    close_kv(kv);
}
END_TEST

/* Publishes `n` pages of `tokens`, behind those that are there, and lets them go. */
static void put(kv_pages *kv, const kv_domain *d, const int32_t *tokens, int n)
{
    int32_t page[LEN];
    for (int i = kv_match(kv, d, &all, tokens, n * PT + 1, page, n); i < n; i++) {
        page[i] = kv_take(kv);
        ck_assert_int_ge(page[i], 0);
        kv_publish(kv, d, page, i, tokens + (size_t)i * PT);
    }
    for (int i = n - 1; i >= 0; i--) kv_release(kv, page[i]);
}

static int get(kv_pages *kv, const kv_domain *d, const int32_t *tokens, int n_tokens)
{
    int32_t page[LEN];
    int n = kv_match(kv, d, &all, tokens, n_tokens, page, LEN);
    for (int i = n - 1; i >= 0; i--) kv_release(kv, page[i]);
    return n;
}

START_TEST(hits_need_the_same_tokens_adapter_and_domain)
{
    kv_pages *kv = open_kv(PAGES, true);
    int32_t t[LEN * PT];
    for (int i = 0; i < LEN * PT; i++) t[i] = i;
    kv_domain d = {.isolation = 5}, other = {.isolation = 6}, adapted = d;
    adapted.digest[0] = 1;
    put(kv, &d, t, 3);
    ck_assert_int_eq(get(kv, &d, t, 3 * PT + 1), 3);
    ck_assert_int_eq(get(kv, &d, t, 3 * PT), 2); /* something is left to compute */
    ck_assert_int_eq(get(kv, &d, t, 1), 0);
    ck_assert_int_eq(get(kv, &other, t, 3 * PT + 1), 0);
    ck_assert_int_eq(get(kv, &adapted, t, 3 * PT + 1), 0);
    ck_assert_int_eq(get(kv, &d, t + PT, 2 * PT + 1), 0); /* a middle is no beginning */
    t[PT + 1]++;
    ck_assert_int_eq(get(kv, &d, t, 3 * PT + 1), 1);
    close_kv(kv);
}
END_TEST

/* Pages that end before an adapter begins are everybody's; those behind it belong to the adapter
 * that began there, though other texts and places of one page were the same. */
START_TEST(what_lies_before_the_adapter_is_the_bases)
{
    kv_pages *kv = open_kv(PAGES, true);
    int32_t t[LEN * PT];
    for (int i = 0; i < LEN * PT; i++) t[i] = i;
    kv_domain base = {.isolation = 5}, one = {.isolation = 5, .from = 2 * PT + 1}, two = one;
    kv_domain later = one, border = one, stranger = one;
    one.digest[0] = 1;
    later.digest[0] = border.digest[0] = stranger.digest[0] = 1;
    two.digest[0] = 2;
    later.from++; /* in the same page */
    border.from = 3 * PT;
    stranger.isolation = 6;
    put(kv, &one, t, 4);
    ck_assert_int_eq(get(kv, &one, t, 4 * PT + 1), 4);
    ck_assert_int_eq(get(kv, &base, t, 4 * PT + 1), 2);
    ck_assert_int_eq(get(kv, &two, t, 4 * PT + 1), 2);
    ck_assert_int_eq(get(kv, &later, t, 4 * PT + 1), 2);
    ck_assert_int_eq(get(kv, &border, t, 4 * PT + 1), 2);
    ck_assert_int_eq(get(kv, &stranger, t, 4 * PT + 1), 0);
    put(kv, &base, t, 4);
    ck_assert_int_eq(get(kv, &base, t, 4 * PT + 1), 4);
    ck_assert_int_eq(get(kv, &border, t, 4 * PT + 1), 3);
    ck_assert_int_eq(get(kv, &two, t, 4 * PT + 1), 2);
    ck_assert_int_eq(get(kv, &one, t, 4 * PT + 1), 4);
    ck_assert(kv_check(kv));
    close_kv(kv);
}
END_TEST

START_TEST(the_least_recently_used_goes_first_and_tails_before_heads)
{
    kv_pages *kv = open_kv(6, true);
    int32_t a[3 * PT + 1], b[3 * PT + 1];
    for (int i = 0; i <= 3 * PT; i++) {
        a[i] = i;
        b[i] = 100 + i;
    }
    kv_domain d = {.isolation = 1};
    put(kv, &d, a, 3);
    put(kv, &d, b, 3);
    ck_assert_int_eq(get(kv, &d, a, 3 * PT + 1), 3); /* a is younger now */
    ck_assert_int_ge(kv_take(kv), 0);
    ck_assert_int_eq(get(kv, &d, b, 3 * PT + 1), 2);
    ck_assert_int_eq(get(kv, &d, a, 3 * PT + 1), 3);
    close_kv(kv);
}
END_TEST

/* As in kv.c, so that a collision can be made to order. */
static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15ULL;
    return h ^ (h >> 29);
}

/* Two domains whose hashes are equal: one word of the digest evens out the other isolation. */
START_TEST(equal_hashes_do_not_make_equal_pages)
{
    const uint64_t seed = 0x243F6A8885A308D3ULL;
    kv_pages *kv = open_kv(PAGES, true);
    kv_domain d = {.isolation = 5}, twin = {.isolation = 6};
    uint64_t word = mix(mix(seed, 5), 0) ^ mix(mix(seed, 6), 0);
    memcpy(twin.digest, &word, sizeof(word));
    int32_t t[3 * PT + 1] = {0};
    put(kv, &d, t, 2);
    ck_assert_int_eq(get(kv, &d, t, 3 * PT), 2);
    ck_assert_int_eq(get(kv, &twin, t, 3 * PT), 0);
    put(kv, &twin, t, 1); /* its own first page: what follows in d doesn't follow here */
    ck_assert_int_eq(get(kv, &twin, t, 3 * PT), 1);
    ck_assert_int_eq(get(kv, &d, t, 3 * PT), 2);
    ck_assert(kv_check(kv));
    close_kv(kv);
}
END_TEST

/* A token and the state of a root's hash behind it and the next. */
typedef struct {
    uint64_t hash;
    int32_t token;
} beginning;

static int by_hash(const void *x, const void *y)
{
    const beginning *a = x, *b = y;
    return a->hash < b->hash ? -1 : a->hash > b->hash;
}

/* Two texts of a page whose hashes are equal: where the hashes of two beginnings are nearly equal,
 * the third token evens out the rest.  (Behind one token they are spread too evenly for that.) */
static void make_twins(const kv_domain *d, int32_t *one, int32_t *other)
{
    enum { TRIES = 1 << 19 };
    beginning *b = malloc(TRIES * sizeof(*b));
    uint64_t root = mix(mix(0x243F6A8885A308D3ULL, d->isolation), 0), apart = 0;
    for (size_t i = 0; i < sizeof(d->digest); i += 8) root = mix(root, 0);
    for (int32_t t = 0; t < TRIES; t++) b[t] = (beginning){mix(mix(root, (uint64_t)t + 1), 1), t};
    qsort(b, TRIES, sizeof(*b), by_hash);
    int i = 0;
    for (; i + 1 < TRIES; i++) {
        apart = b[i].hash ^ b[i + 1].hash;
        if (apart > 1 && apart < INT32_MAX) break;
    }
    ck_assert_int_lt(i + 1, TRIES);
    one[0] = b[i].token;
    other[0] = b[i + 1].token;
    other[2] = (int32_t)((((uint64_t)one[2] + 1) ^ apart) - 1);
    free(b);
}

START_TEST(equal_hashes_do_not_make_equal_texts)
{
    kv_pages *kv = open_kv(PAGES, true);
    kv_domain d = {.isolation = 5};
    int32_t one[PT + 1] = {0}, other[PT + 1] = {0};
    make_twins(&d, one, other);
    put(kv, &d, one, 1);
    ck_assert_int_eq(get(kv, &d, one, PT + 1), 1);
    ck_assert_int_eq(get(kv, &d, other, PT + 1), 0);
    put(kv, &d, other, 1);
    ck_assert_int_eq(get(kv, &d, other, PT + 1), 1);
    ck_assert_int_eq(get(kv, &d, one, PT + 1), 1);
    ck_assert(kv_check(kv));
    close_kv(kv);
}
END_TEST

START_TEST(what_is_forgotten_is_never_handed_out)
{
    kv_pages *kv = open_kv(8, true);
    int32_t t[2 * PT + 1] = {0}, page[2];
    kv_domain d = {.isolation = 1};
    for (int i = 0; i < 2; i++) {
        page[i] = kv_take(kv);
        kv_publish(kv, &d, page, i, t);
    }
    kv_forget(kv, page[0]);
    ck_assert_int_eq(get(kv, &d, t, 2 * PT + 1), 0);
    ck_assert(kv_check(kv));
    kv_release(kv, page[1]);
    kv_release(kv, page[0]);
    ck_assert(kv_check(kv));
    put(kv, &d, t, 1); /* the same root again: the orphan must not hang on to it */
    ck_assert_int_eq(get(kv, &d, t, 2 * PT + 1), 1);
    close_kv(kv);
}
END_TEST

/* Publishes the first n pages of `tokens`, with snapshots at the ends of those in `at`. */
static void put_with(kv_pages *kv, const kv_domain *d, const int32_t *tokens, int n, unsigned at)
{
    int32_t page[LEN];
    int have = kv_match(kv, d, &all, tokens, n * PT + 1, page, n);
    for (int i = 0; i < n; i++) {
        if (i >= have) page[i] = kv_take(kv);
        kv_share(kv, d, page, i, tokens + (size_t)i * PT);
        if (at >> i & 1) (void)kv_snapshot_put(kv, page[i], -1);
    }
    for (int i = n - 1; i >= 0; i--) kv_release(kv, page[i]);
}

/* Pages up to the last snapshot of this text. */
static int found(kv_pages *kv, const kv_domain *d, const int32_t *tokens, int n_tokens)
{
    int32_t page[LEN];
    int slot, n = kv_match(kv, d, &all, tokens, n_tokens, page, LEN);
    int m = kv_snapshot_get(kv, page, n, &slot);
    for (int i = n - 1; i >= 0; i--) kv_release(kv, page[i]);
    return m;
}

START_TEST(a_state_continues_only_at_a_snapshot_of_its_own_text)
{
    kv_pages *kv = open_kv(20, true);
    ck_assert(kv_keep_snapshots(kv, 2));
    int32_t t[LEN * PT + 1], u[LEN * PT + 1];
    for (int i = 0; i <= LEN * PT; i++) t[i] = u[i] = i;
    u[2 * PT + 1] = 99; /* branches within the third page */
    kv_domain d = {.isolation = 1}, salted = {.isolation = 2}, adapted = {.isolation = 1};
    adapted.digest[0] = 1;
    put_with(kv, &d, t, 4, 1 << 1 | 1 << 3);
    ck_assert_int_eq(found(kv, &d, t, LEN * PT), 4);
    ck_assert_int_eq(found(kv, &d, t, 4 * PT), 2); /* a token is left to compute */
    ck_assert_int_eq(found(kv, &d, u, LEN * PT), 2);
    ck_assert_int_eq(found(kv, &salted, t, LEN * PT), 0);
    ck_assert_int_eq(found(kv, &adapted, t, LEN * PT), 0);
    put_with(kv, &adapted, t, 4, 0); /* pages alone */
    ck_assert_int_eq(get(kv, &adapted, t, LEN * PT), 4);
    ck_assert_int_eq(found(kv, &adapted, t, LEN * PT), 0);
    /* The inner one was used before the outer one, and goes. */
    ck_assert_int_eq(found(kv, &d, t, LEN * PT), 4);
    put_with(kv, &d, u, 3, 1 << 2);
    ck_assert_int_eq(found(kv, &d, t, LEN * PT), 4);
    ck_assert_int_eq(found(kv, &d, t, 4 * PT), 0);
    ck_assert_int_eq(found(kv, &d, u, LEN * PT), 3);
    ck_assert(kv_check(kv));
    close_kv(kv);
}
END_TEST

START_TEST(a_snapshot_goes_with_its_page)
{
    enum { N = 5 };
    kv_pages *kv = open_kv(N, true);
    snapshot_counts c;
    ck_assert(kv_keep_snapshots(kv, 3));
    int32_t t[LEN * PT + 1] = {0}, page[N];
    kv_domain d = {.isolation = 1};
    put_with(kv, &d, t, 3, 1 | 1 << 2);
    for (int i = 0; i < N; i++) page[i] = kv_take(kv); /* somebody needs all of them */
    kv_snapshot_count(kv, &c);
    ck_assert(c.n_used == 0 && c.n_taken == 2 && c.n_evicted == 0);
    for (int i = 0; i < N; i++) kv_release(kv, page[i]);
    ck_assert_int_eq(found(kv, &d, t, LEN * PT), 0);
    put_with(kv, &d, t, 3, 1 << 2);
    kv_clear(kv);
    kv_snapshot_count(kv, &c);
    ck_assert(c.n_used == 0 && kv_check(kv));
    close_kv(kv);
}
END_TEST

START_TEST(who_computed_a_page_twice_goes_on_behind_the_first_one)
{
    kv_pages *kv = open_kv(8, true);
    int32_t t[LEN * PT + 1] = {0}, a[2], b[2];
    kv_domain d = {.isolation = 1};
    a[0] = kv_take(kv);
    b[0] = kv_take(kv);
    kv_share(kv, &d, a, 0, t);
    kv_share(kv, &d, b, 0, t);
    ck_assert_int_eq(a[0], b[0]);
    b[1] = kv_take(kv);
    kv_share(kv, &d, b, 1, t + PT);
    kv_counts c;
    kv_count(kv, &c);
    ck_assert_int_eq(c.n_held, 2);
    kv_release(kv, a[0]);
    kv_release(kv, b[1]);
    kv_release(kv, b[0]);
    ck_assert_int_eq(get(kv, &d, t, LEN * PT), 2);
    ck_assert(kv_check(kv));
    close_kv(kv);
}
END_TEST

START_TEST(switched_off_it_only_counts_pages)
{
    kv_pages *kv = open_kv(4, false);
    int32_t t[PT + 1] = {0};
    kv_domain d = {.isolation = 1};
    put(kv, &d, t, 1);
    ck_assert_int_eq(get(kv, &d, t, PT + 1), 0);
    for (int i = 0; i < 4; i++) ck_assert_int_ge(kv_take(kv), 0);
    ck_assert_int_eq(kv_take(kv), -1);
    close_kv(kv);
}
END_TEST

/* 4 tokens a page; of 6 pages the first and the last stay, and what a window of 3 tokens sees. */
START_TEST(what_a_window_does_not_see_is_not_held)
{
    enum { N = 6 };
    static const kv_sight see = {.kept = 2, .window = 3};
    kv_pages *kv = open_kv(8, true);
    kv_domain d = {.isolation = 1};
    int32_t tokens[N * PT + 1], page[N];
    for (int i = 0; i <= N * PT; i++) tokens[i] = i;
    for (int i = 0; i < N; i++) page[i] = kv_take(kv);
    for (int i = 0; i < N; i++) kv_publish(kv, &d, page, i, tokens + (ptrdiff_t)i * PT);
    for (int i = 0; i < N; i++) kv_release(kv, page[i]);
    int32_t got[N];
    ck_assert_int_eq(kv_match(kv, &d, &see, tokens, N * PT + 1, got, N), N);
    kv_counts c;
    kv_count(kv, &c);
    ck_assert(c.n_held == 2 && c.n_cached == N - 2 && kv_check(kv));
    for (int i = 0; i < N; i++) ck_assert_int_eq(got[i], i % (N - 1) ? KV_GONE : page[i]);
    kv_release(kv, got[0]);
    kv_release(kv, got[N - 1]);
    for (int n = 0, from, to; n < 40; n++) { /* n tokens: the next sees n - 2 and on */
        kv_unseen(kv, &see, n, &from, &to);
        int first = n - see.window + 1, parent = n / PT - 1;
        int end = first < 0 ? 0 : first / PT < parent ? first / PT : parent;
        ck_assert(from == 1 && to == (end > 1 ? end : 1));
    }
    close_kv(kv);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kv");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 250);
    tcase_add_test(tc, what_a_window_does_not_see_is_not_held);
    tcase_add_test(tc, a_million_operations_keep_every_invariant);
    tcase_add_test(tc, hits_need_the_same_tokens_adapter_and_domain);
    tcase_add_test(tc, what_lies_before_the_adapter_is_the_bases);
    tcase_add_test(tc, the_least_recently_used_goes_first_and_tails_before_heads);
    tcase_add_test(tc, equal_hashes_do_not_make_equal_pages);
    tcase_add_test(tc, equal_hashes_do_not_make_equal_texts);
    tcase_add_test(tc, what_is_forgotten_is_never_handed_out);
    tcase_add_test(tc, a_state_continues_only_at_a_snapshot_of_its_own_text);
    tcase_add_test(tc, a_snapshot_goes_with_its_page);
    tcase_add_test(tc, who_computed_a_page_twice_goes_on_behind_the_first_one);
    tcase_add_test(tc, switched_off_it_only_counts_pages);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
