/* test_stats_journal.c -- changes in order, pages, marks, and readers who come too late; the
 * book. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/watch/stats_book.h"
#include "gateway/watch/stats_journal.h"
#include "tests/run_suite.h"

enum { A, B, N, IDS = 2000 };

typedef struct {
    int v[8];
} row;

/* A reader's own copy of both tables. */
typedef struct {
    int v[N][IDS + 1]; /* by id; -1: no such row */
    int n_rows, n_gone;
} copy;

static void take(void *arg, int table, uint64_t id, const void *r)
{
    copy *c = arg;
    c->n_rows += r != NULL;
    c->n_gone += r == NULL;
    c->v[table][id] = r ? ((const row *)r)->v[0] : -1;
}

static void put(journal *j, int table, uint64_t id, int v)
{
    row r = {{v}};
    ck_assert(journal_put(j, table, id, &r));
}

static copy *fresh(void)
{
    copy *c = malloc(sizeof(*c));
    memset(c, 0xff, sizeof(*c));
    c->n_rows = c->n_gone = 0;
    return c;
}

static journal *make(void)
{
    const size_t bytes[N] = {sizeof(row), sizeof(row)};
    journal *j = journal_create(bytes, N);
    ck_assert_ptr_nonnull(j);
    return j;
}

static uint64_t sync(journal *j, uint64_t since, size_t page, copy *c)
{
    bool more = true, reset;
    while (more) {
        since = journal_read(j, since, page, &more, &reset, take, c);
        if (reset) {
            memset(c->v, 0xff, sizeof(c->v));
        }
    }
    return since;
}

static int count(const journal *j, int table)
{
    int n = 0;
    for (int id = 1; id <= IDS; id++) n += journal_row(j, table, (uint64_t)id) != NULL;
    return n;
}

START_TEST(a_reader_gets_what_changed_and_no_more)
{
    journal *j = make();
    copy *c = fresh();
    for (int i = 1; i <= 100; i++) put(j, i % 2, (uint64_t)i, i);
    uint64_t at = sync(j, 0, 1000, c);
    ck_assert_int_eq(c->n_rows, 100);
    c->n_rows = 0;
    at = sync(j, at, 1000, c);
    ck_assert_int_eq(c->n_rows, 0);
    put(j, A, 4, 4); /* the same bytes: no change */
    put(j, A, 6, 66);
    put(j, A, 6, 67);
    journal_begin(j, B); /* anew, without 7 */
    for (int i = 1; i <= 99; i += 2) {
        if (i != 7) put(j, B, (uint64_t)i, i);
    }
    journal_end(j, B);
    at = sync(j, at, 1000, c);
    ck_assert_int_eq(c->n_rows, 1);
    ck_assert_int_eq(c->n_gone, 1);
    ck_assert_int_eq(c->v[A][6], 67);
    ck_assert_int_eq(c->v[B][7], -1);
    put(j, B, 7, 8); /* it comes back */
    (void)sync(j, at, 1000, c);
    ck_assert_int_eq(c->v[B][7], 8);
    ck_assert_int_eq(count(j, B), 50);
    ck_assert_ptr_nonnull(journal_row(j, A, 6));
    ck_assert_ptr_null(journal_row(j, B, 6));
    free(c);
    journal_destroy(j);
}
END_TEST

START_TEST(a_table_anew_drops_what_was_not_put)
{
    journal *j = make();
    copy *c = fresh();
    for (int i = 1; i <= 50; i++) put(j, A, (uint64_t)i, i);
    put(j, B, 1, 1);
    uint64_t at = sync(j, 0, 7, c);
    journal_begin(j, A);
    for (int i = 1; i <= 50; i += 2) put(j, A, (uint64_t)i, i);
    journal_end(j, A);
    c->n_rows = 0;
    (void)sync(j, at, 7, c);
    ck_assert_int_eq(c->n_rows, 0);
    ck_assert_int_eq(c->n_gone, 25);
    ck_assert_int_eq(count(j, A), 25);
    ck_assert_int_eq(c->v[B][1], 1);
    free(c);
    journal_destroy(j);
}
END_TEST

/* The whole table anew, with two of three. */
static void thin_out(journal *j, int t, copy *truth)
{
    journal_begin(j, t);
    for (int id = 1; id <= IDS; id++) {
        if (truth->v[t][id] >= 0 && rand() % 3)
            put(j, t, (uint64_t)id, truth->v[t][id]);
        else
            truth->v[t][id] = -1;
    }
    journal_end(j, t);
}

/* Random changes; readers of all page sizes and habits end with the truth. */
START_TEST(every_reader_ends_with_the_truth)
{
    journal *j = make();
    copy *truth = fresh(), *reader[3] = {fresh(), fresh(), fresh()};
    uint64_t at[3] = {0};
    const size_t page[3] = {7, 50, 100000};
    srand((unsigned)_i + 1);
    for (int i = 0; i < 40000; i++) {
        int t = rand() % N, id = rand() % IDS + 1, v = rand() % 5;
        put(j, t, (uint64_t)id, v);
        truth->v[t][id] = v;
        if (rand() % 100 == 0) thin_out(j, t, truth);
        for (int r = 1; r < 3; r++) {
            if (rand() % (r * 3000) == 0) at[r] = sync(j, at[r], page[r], reader[r]);
        }
        if (i == 3000) at[0] = sync(j, 0, page[0], reader[0]); /* then not for a long time */
    }
    for (int r = 0; r < 3; r++) {
        at[r] = sync(j, at[r], page[r], reader[r]);
        ck_assert_mem_eq(reader[r]->v, truth->v, sizeof(truth->v));
        free(reader[r]);
    }
    free(truth);
    journal_destroy(j);
}
END_TEST

START_TEST(a_cursor_from_the_future_starts_over)
{
    journal *j = make();
    copy *c = fresh();
    bool more, reset;
    put(j, A, 1, 5);
    ck_assert_uint_eq(journal_read(j, 99, 10, &more, &reset, take, c), 1);
    ck_assert(reset);
    ck_assert_int_eq(c->n_rows, 1);
    journal_forget(j, A, 1);
    ck_assert_int_eq(count(j, A), 0);
    free(c);
    journal_destroy(j);
}
END_TEST

/* -------------------------------------------------------------------- the book -- */

static usage_row used(uint64_t tenant, int status, int64_t ttft_ms, int64_t whole_ms, uint32_t out)
{
    usage_row u = {.tenant_id = tenant,
                   .adapter_id = 5,
                   .prompt_tokens = 10,
                   .output_tokens = out,
                   .status = status,
                   .ttft_ms = ttft_ms,
                   .duration_ms = whole_ms,
                   .ended_wall_us = 77};
    (void)strcpy(u.model, "pirate@3");
    return u;
}

static void count_drained(void *arg, uint64_t id, const book_counts *c)
{
    (void)id;
    *(uint64_t *)arg += c->ended;
}

START_TEST(requests_add_up_and_meet_their_targets_or_not)
{
    book *b = book_create();
    book_counts c = {0};
    usage_row good = used(1, 200, 100, 1000, 10), late = used(1, 200, 900, 1000, 10),
              slow = used(1, 200, 100, 9100, 10), gone = used(1, 499, 100, 200, 2),
              broken = used(1, 500, -1, 200, 0);
    late.missed = MISS_QUEUE; /* what the engine has judged */
    slow.missed = MISS_MACHINE;
    broken.missed = MISS_RESTART;
    const usage_row *all[] = {&good, &late, &slow, &gone, &broken};
    for (size_t i = 0; i < 5; i++) book_note(b, all[i], 2, 1000, 1);
    book_refused(b, 1, 2, MISS_NONE);
    book_refused(b, 1, 2, MISS_QUEUE);
    ck_assert(book_get(b, BOOK_TENANT, 1, &c));
    ck_assert_uint_eq(c.ended, 3);
    ck_assert_uint_eq(c.met, 1);
    ck_assert_uint_eq(c.missed, 4); /* late, slow, broken, refused; not the client that left */
    ck_assert_uint_eq(c.cause[MISS_QUEUE], 2);
    ck_assert_uint_eq(c.cause[MISS_MACHINE], 1);
    ck_assert_uint_eq(c.cause[MISS_RESTART], 1);
    ck_assert_uint_eq(c.cause[MISS_NONE], 0);
    ck_assert_uint_eq(c.failed, 1);
    ck_assert_uint_eq(c.limited, 1);
    ck_assert_uint_eq(c.refused, 1);
    ck_assert_uint_eq(c.prompt_tokens, 50);
    ck_assert(book_get(b, BOOK_CLASS, 2, &c));
    ck_assert_uint_eq(c.met, 1);
    ck_assert(book_get(b, BOOK_ADAPTER, book_adapter_key(1, "pirate"), &c));
    ck_assert_int_eq(c.last_wall_us, 77);
    ck_assert(!book_get(b, BOOK_ADAPTER, book_adapter_key(2, "pirate"), &c));
    uint64_t sum = 0;
    book_drain(b, BOOK_ADAPTER, count_drained, &sum);
    ck_assert_uint_eq(sum, 3);
    book_drain(b, BOOK_ADAPTER, count_drained, &sum);
    ck_assert_uint_eq(sum, 3); /* nothing new */
    book_note(b, &good, 2, 0, 1);
    book_forget(b, BOOK_ADAPTER, book_adapter_key(1, "pirate"));
    book_drain(b, BOOK_ADAPTER, count_drained, &sum);
    ck_assert_uint_eq(sum, 3);
    book_destroy(b);
}
END_TEST

START_TEST(an_adapter_is_counted_for_its_owner_whoever_uses_it)
{
    book *b = book_create();
    book_counts c = {0};
    usage_row own = used(1, 200, 100, 1000, 10), other = used(2, 200, 100, 1000, 30);
    snprintf(other.model, sizeof(other.model), "acme/pirate@1");
    book_note(b, &own, 0, 0, 1);
    book_note(b, &other, 0, 0, 1);
    ck_assert(book_get(b, BOOK_ADAPTER, book_adapter_key(1, "pirate"), &c));
    ck_assert_uint_eq(c.ended, 2);
    ck_assert_uint_eq(c.output_tokens, 40);
    ck_assert(!book_get(b, BOOK_ADAPTER, book_adapter_key(2, "acme/pirate"), &c));
    ck_assert(book_get(b, BOOK_TENANT, 2, &c));
    ck_assert_uint_eq(c.output_tokens, 30); /* who used it is the tenant all the same */
    book_destroy(b);
}
END_TEST

START_TEST(the_busiest_adapters_come_first)
{
    enum { SENT = 9, CAP = 4 };
    static const int tokens[SENT] = {30, 10, 90, 20, 80, 50, 40, 70, 60};
    book_adapter top[CAP];
    book *b = book_create();
    ck_assert_int_eq(book_busiest(b, top, CAP), 0);
    for (int i = 0; i < SENT; i++) {
        usage_row u = used(1, 200, 100, 1000, (uint64_t)tokens[i]);
        snprintf(u.model, sizeof(u.model), "a%d@%d", tokens[i], i);
        book_note(b, &u, 0, 1000 * i, 1);
    }
    usage_row bare = used(1, 200, 100, 1000, 1000);
    bare.adapter_id = 0;
    book_note(b, &bare, 0, 0, 1); /* the base is none */
    ck_assert_int_eq(book_busiest(b, top, CAP), CAP);
    for (int i = 0; i < CAP; i++) {
        char want[8];
        snprintf(want, sizeof(want), "a%d", 90 - 10 * i);
        ck_assert_str_eq(top[i].name, want);
        ck_assert_uint_eq(top[i].tenant_id, 1);
    }
    ck_assert_int_eq(top[0].c.adapter_us, 2000);
    ck_assert_uint_eq(top[0].c.ended, 1);
    book_destroy(b);
}
END_TEST

START_TEST(percentiles_lie_in_the_right_bucket)
{
    book *b = book_create();
    book_counts c = {0};
    ck_assert(book_percentile_ms(c.ttft, 0.5) < 0);
    for (int i = 1; i <= 100; i++) {
        usage_row u = used(1, 200, i * 10, i * 10 + 1, 1);
        book_note(b, &u, 0, 0, 1);
    }
    ck_assert(book_get(b, BOOK_CLASS, 0, &c));
    double p50 = book_percentile_ms(c.ttft, 0.5), p99 = book_percentile_ms(c.ttft, 0.99);
    ck_assert(p50 > 400 && p50 < 630);
    ck_assert(p99 > 900 && p99 <= 1000);
    ck_assert(book_percentile_ms(c.tpot, 0.5) < 0); /* one token has no pace */
    book_destroy(b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stats");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_reader_gets_what_changed_and_no_more);
    tcase_add_test(tc, a_table_anew_drops_what_was_not_put);
    tcase_add_loop_test(tc, every_reader_ends_with_the_truth, 0, 3);
    tcase_add_test(tc, a_cursor_from_the_future_starts_over);
    tcase_add_test(tc, requests_add_up_and_meet_their_targets_or_not);
    tcase_add_test(tc, an_adapter_is_counted_for_its_owner_whoever_uses_it);
    tcase_add_test(tc, the_busiest_adapters_come_first);
    tcase_add_test(tc, percentiles_lie_in_the_right_bucket);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
