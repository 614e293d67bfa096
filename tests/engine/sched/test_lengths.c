/* test_lengths.c -- learnt lengths: quantiles that hold, bounds that are no lengths, who borrows
 * from whom, and memory that does not grow. */
#include <math.h>
#include <stdlib.h>

#include <check.h>

#include "engine/sched/lengths.h"
#include "tests/run_suite.h"

static uint64_t seed;

static int drawn(int lo, int hi) /* both included */
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return lo + (int)((seed >> 33) % (uint64_t)(hi - lo + 1));
}

/* One request as the scheduler has it: looked up, answered, learnt from. */
static lengths_guess serve(lengths *l, const lengths_ask *ask, int natural)
{
    lengths_guess g = lengths_look(l, ask);
    bool cut = natural >= ask->max_tokens;
    lengths_learn(l, ask, &g, cut ? ask->max_tokens : natural, cut);
    return g;
}

static void setup(void)
{
    seed = 7;
}

START_TEST(the_bound_is_all_until_something_is_known)
{
    lengths *l = lengths_create(2, 16);
    lengths_ask ask = {1, 0, 0, 300}, other = {1, 0, 1, 300};
    for (int i = 0; i < 10; i++) {
        lengths_guess g = serve(l, &ask, 20);
        ck_assert(g.mean == 300 && g.p90 == 300);
    }
    for (int i = 0; i < 5; i++) (void)serve(l, &ask, 20);
    lengths_guess g = lengths_look(l, &ask);
    ck_assert_msg(g.p90 >= 20 && g.p90 < 25, "%d", g.p90);
    ck_assert_msg(g.mean >= 20 && g.mean < 25, "%d", g.mean);
    g = lengths_look(l, &other);
    ck_assert_int_eq(g.p90, 300); /* another class knows nothing of it */
    lengths_destroy(l);
}
END_TEST

START_TEST(nine_of_ten_are_no_longer_than_the_guess)
{
    lengths *l = lengths_create(1, 16);
    lengths_ask ask = {1, 2, 0, 4000};
    lengths_guess g = {0, 0};
    for (int i = 0; i < 6000; i++) g = serve(l, &ask, drawn(1, 1000));
    lengths_record r;
    lengths_record_get(l, 0, &r);
    double held = (double)r.held / (double)(r.held + r.exceeded);
    ck_assert_msg(held > 0.885 && held < 0.915, "%.4f", held);
    ck_assert_msg(abs(g.p90 - 900) < 60, "%d", g.p90);
    ck_assert_msg(abs(g.mean - 500) < 40, "%d", g.mean);
    ck_assert_uint_lt(r.bounded, 20);
    double loss = r.loss / (double)(r.held + r.exceeded); /* of the true quantile: 45 */
    ck_assert_msg(loss > 40 && loss < 50, "%.2f", loss);
    lengths_destroy(l);
}
END_TEST

START_TEST(each_length_has_a_bin)
{
    for (int n = 1; n < 3000000; n += 1 + n / 3) {
        lengths *l = lengths_create(1, 4);
        lengths_ask ask = {1, 0, 0, 1 << 30};
        for (int i = 0; i < 15; i++) (void)serve(l, &ask, n);
        lengths_guess g = lengths_look(l, &ask);
        double most = n < 16 ? n : 1.25 * n;
        if (n < 1 << 20)
            ck_assert_msg(g.p90 >= 0.8 * n && g.p90 <= most && g.mean >= 0.8 * n && g.mean <= most,
                          "%d: %d %d", n, g.mean, g.p90);
        else
            ck_assert_int_ge(g.p90, 1 << 19);
        lengths_destroy(l);
    }
}
END_TEST

/* Half of the answers are cut at 100, half at 127 (one octave of bounds); they'd be 1 to 200. */
START_TEST(what_was_cut_off_would_have_been_longer)
{
    lengths *l = lengths_create(1, 16);
    lengths_ask shorter = {1, 0, 0, 100}, longer = {1, 0, 0, 127};
    double low = 0, high = 0;
    for (int i = 0; i < 4000; i++) {
        lengths_guess a = serve(l, &shorter, drawn(1, 200)), b = serve(l, &longer, drawn(1, 200));
        ck_assert(a.p90 <= 100 && b.p90 <= 127);
        if (i < 1000) continue;
        low += a.mean / 3000.0;
        high += b.mean / 3000.0;
    }
    ck_assert_msg(fabs(low - 75.25) < 2.5, "%.2f", low); /* the sum of the shares that go on */
    ck_assert_msg(fabs(high - 86.99) < 2.5, "%.2f", high);
    lengths_record r;
    lengths_record_get(l, 0, &r);
    ck_assert_uint_gt(r.bounded, 7800); /* nine of ten would be 180: the bound is the guess */
    lengths_destroy(l);
}
END_TEST

/* Nobody knows whether an answer that its client broke off early would have held. */
START_TEST(a_client_that_leaves_proves_nothing)
{
    lengths *l = lengths_create(1, 16);
    lengths_ask ask = {1, 0, 0, 4000};
    lengths_record before, after;
    for (int i = 0; i < 500; i++) (void)serve(l, &ask, drawn(400, 600));
    lengths_record_get(l, 0, &before);
    lengths_guess g = lengths_look(l, &ask);
    for (int i = 0; i < 200; i++) lengths_learn(l, &ask, &g, 5, true);
    lengths_record_get(l, 0, &after);
    ck_assert(before.held == after.held && before.exceeded == after.exceeded);
    lengths_guess now = lengths_look(l, &ask);
    ck_assert_msg(abs(now.p90 - g.p90) <= g.p90 / 8 && abs(now.mean - g.mean) <= g.mean / 8,
                  "%d %d", now.mean, now.p90);
    lengths_learn(l, &ask, &g, 3999, true); /* but one that is longer already has exceeded it */
    lengths_record_get(l, 0, &after);
    ck_assert_uint_eq(after.exceeded, before.exceeded + 1);
    lengths_destroy(l);
}
END_TEST

START_TEST(the_narrow_borrows_from_the_wide)
{
    lengths *l = lengths_create(1, 64);
    lengths_ask brief = {1, 7, 0, 1000}, wordy = {2, 7, 0, 1000};
    for (int i = 0; i < 400; i++) {
        (void)serve(l, &brief, drawn(8, 12));
        (void)serve(l, &wordy, drawn(400, 600));
    }
    ck_assert_int_le(lengths_look(l, &brief).mean, 30);
    ck_assert_int_ge(lengths_look(l, &wordy).mean, 450);
    ck_assert_int_le(lengths_look(l, &(lengths_ask){1, 8, 0, 1000}).mean, 60); /* its tenant's */
    int unknown = lengths_look(l, &(lengths_ask){3, 0, 0, 1000}).mean;         /* the class's */
    ck_assert_msg(unknown > 150 && unknown < 400, "%d", unknown);
    for (int i = 0; i < 60; i++) (void)serve(l, &(lengths_ask){1, 8, 0, 1000}, 500);
    ck_assert_int_ge(lengths_look(l, &(lengths_ask){1, 8, 0, 1000}).mean, 350); /* its own by now */
    ck_assert_int_le(lengths_look(l, &brief).mean, 40);
    lengths_destroy(l);
}
END_TEST

/* Clients who ask for twice what they need say how much that is. */
START_TEST(a_bound_says_something)
{
    lengths *l = lengths_create(1, 64);
    for (int i = 0; i < 3000; i++) {
        int natural = drawn(10, 900), bound = 16;
        while (bound <= natural) bound *= 2;
        (void)serve(l, &(lengths_ask){1, 0, 0, bound}, natural);
    }
    lengths_guess g = lengths_look(l, &(lengths_ask){1, 0, 0, 128});
    ck_assert_msg(g.mean > 80 && g.mean < 115, "%d", g.mean);
    g = lengths_look(l, &(lengths_ask){1, 0, 0, 512});
    ck_assert_msg(g.mean > 320 && g.mean < 450, "%d", g.mean);
    lengths_destroy(l);
}
END_TEST

START_TEST(a_change_is_followed_and_the_share_kept)
{
    lengths *l = lengths_create(1, 64);
    lengths_ask ask = {1, 1, 0, 100000};
    double scale = 10;
    lengths_record at, r;
    for (int i = 0; i < 15000; i++) { /* lengths grow fiftyfold and fall again, all the time */
        scale *= (i / 3000) % 2 ? 1 / 1.0013 : 1.0013;
        (void)serve(l, &ask, (int)(scale * drawn(10, 40) / 10));
        if (i == 999) lengths_record_get(l, 0, &at);
    }
    lengths_record_get(l, 0, &r);
    double held =
        (double)(r.held - at.held) / (double)(r.held + r.exceeded - at.held - at.exceeded);
    ck_assert_msg(held > 0.88 && held < 0.92, "%.4f", held);
    for (int i = 0; i < 3000; i++) (void)serve(l, &ask, 5000);
    ck_assert_int_ge(lengths_look(l, &ask).mean, 4000);
    lengths_destroy(l);
}
END_TEST

START_TEST(what_was_used_longest_ago_is_forgotten)
{
    lengths *l = lengths_create(1, 8);
    lengths_ask kept = {1, 1, 0, 1000};
    for (int i = 0; i < 3000; i++) {
        (void)serve(l, &kept, 300);
        lengths_ask other = {(uint64_t)(100 + i), 1, 0, 1000};
        for (int k = 0; k < 3; k++) (void)serve(l, &other, 10);
        ck_assert(i < 50 || lengths_look(l, &kept).mean >= 230);
    }
    lengths_ask gone = {100, 1, 0, 1000}, never = {99, 1, 0, 1000};
    ck_assert_int_eq(lengths_look(l, &gone).mean, lengths_look(l, &never).mean);
    lengths_destroy(l);
}
END_TEST

START_TEST(no_bound_is_too_small_or_too_large)
{
    lengths *l = lengths_create(1, 8);
    static const int bounds[] = {0, 1, 2, 15, 16, 17, 1 << 20, 1 << 24, 2147483647};
    for (int i = 0; i < 400; i++) {
        int bound = bounds[drawn(0, 8)];
        lengths_guess g = serve(l, &(lengths_ask){1, 0, 0, bound}, drawn(0, 2000000));
        ck_assert(g.mean >= 0 && g.mean <= bound && g.p90 >= 0 && g.p90 <= bound);
    }
    lengths_destroy(l);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("lengths");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, the_bound_is_all_until_something_is_known);
    tcase_add_test(tc, nine_of_ten_are_no_longer_than_the_guess);
    tcase_add_test(tc, each_length_has_a_bin);
    tcase_add_test(tc, what_was_cut_off_would_have_been_longer);
    tcase_add_test(tc, a_client_that_leaves_proves_nothing);
    tcase_add_test(tc, the_narrow_borrows_from_the_wide);
    tcase_add_test(tc, a_bound_says_something);
    tcase_add_test(tc, a_change_is_followed_and_the_share_kept);
    tcase_add_test(tc, what_was_used_longest_ago_is_forgotten);
    tcase_add_test(tc, no_bound_is_too_small_or_too_large);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
