/* test_spec.c -- guesses from the text so far: the longest match, the latest of them, within the
 * window; rates that follow what came. */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/sample/spec.h"
#include "tests/run_suite.h"

static spec_rates rates;
static spec_text *text;

static void setup(void)
{
    spec_rates_init(&rates);
    text = spec_text_create(1000);
    spec_text_begin(text, 0, &rates);
}

static void teardown(void)
{
    spec_text_destroy(text);
}

/* A token for each letter. */
static void say(const char *s, bool learns)
{
    for (; *s; s++) spec_text_add(text, *s, learns ? &rates : NULL);
}

static void expect(const char *want)
{
    spec_guess g;
    int n = (int)strlen(want);
    spec_text_guess(text, n > 0 ? n : 4, &g);
    ck_assert_int_eq(g.n, n);
    for (int i = 0; i < n; i++) ck_assert_int_eq(g.token[i], want[i]);
}

START_TEST(what_came_before_is_guessed)
{
    expect("");
    say("the red lamp stands; the", false);
    expect(" red lamp");
    say(" ", false);
    expect("red lamp stands");
    say("x", false);
    expect("");
}
END_TEST

START_TEST(the_longest_match_is_taken_and_the_latest_of_equals)
{
    say("1abcd 2xbce 3ybcf 4abc", false);
    expect("d 2x"); /* "abc" was there before; "bc" alone came later */
    say(" ", false);
    expect("4abc "); /* "c " is new: behind the latest space */
    say("#", false);
    expect("");
    say("5zbc", false);
    expect(" #5zbc #5z"); /* "bc" alone: the latest, and its guesses go on with themselves */
}
END_TEST

START_TEST(guesses_go_on_with_themselves)
{
    spec_guess g;
    say("aaaa", false);
    expect("aaaaaaaaaaaa");
    spec_text_guess(text, 100, &g);
    ck_assert_int_eq(g.n, SPEC_MAX);
}
END_TEST

START_TEST(chances_grow_with_the_context)
{
    spec_guess g;
    say("a long beginning that is the same, and a long beginning that is the same, and a", false);
    spec_text_guess(text, 16, &g);
    ck_assert_int_eq(g.n, 16);
    for (int i = 1; i < g.n; i++) ck_assert(g.chance[i] >= g.chance[i - 1]);
    say("bx bx b", false);
    spec_text_guess(text, 16, &g);
    ck_assert(g.chance[0] < 0.9);
}
END_TEST

/* What is further back than the window is not looked at, nor what was there before. */
START_TEST(old_text_is_forgotten)
{
    spec_text_destroy(text);
    text = spec_text_create(64);
    spec_text_begin(text, 1000, &rates);
    ck_assert_int_eq(spec_text_n(text), 1000);
    say("QZ!", false);
    for (int i = 0; i < 32; i++) say(i % 2 ? "ab" : "cd", false);
    say("QZ", false);
    ck_assert_int_eq(spec_text_n(text), 1069);
    expect("");
    say("?", false);
    for (int i = 0; i < 20; i++) say(i % 2 ? "ab" : "cd", false);
    say("QZ", false);
    expect("?c");
    for (int i = 0; i < 100000; i++) spec_text_add(text, rand() % 3, &rates); /* wraps and wraps */
    for (int i = 0; i < 1000; i++) say("xyz", false);
    expect("xyzx");
    spec_text_begin(text, 0, &rates);
    say("xy", false);
    expect("");
}
END_TEST

START_TEST(what_never_comes_is_no_more_believed)
{
    spec_guess g;
    double first;
    say("abX", false);
    say("ab", true);
    spec_text_guess(text, 1, &g);
    first = g.chance[0];
    for (int i = 0; i < 30; i++) { /* another letter each time */
        spec_text_add(text, 200 + i, &rates);
        say("ab", true);
    }
    spec_text_guess(text, 1, &g);
    ck_assert(g.chance[0] < first / 4);
    spec_rates unseen;
    spec_rates_init(&unseen);
    ck_assert(rates.hit[SPEC_2] < unseen.hit[SPEC_2]); /* others begin with less, too */
    ck_assert(rates.hit[SPEC_2] > unseen.hit[SPEC_2] / 2);
    for (int i = 0; i < 60; i++) say("!ab", true); /* and back, without one row for a guess */
    spec_text_guess(text, 1, &g);
    ck_assert(g.chance[0] > 0.8);
}
END_TEST

START_TEST(a_prompt_says_nothing_of_its_answer)
{
    spec_guess g;
    for (int i = 0; i < 100; i++) say("na", false);
    spec_text_guess(text, 1, &g);
    spec_rates unseen;
    spec_rates_init(&unseen);
    ck_assert_double_eq(g.chance[0], unseen.hit[SPEC_16]);
    ck_assert_mem_eq(&rates, &unseen, sizeof(rates));
}
END_TEST

START_TEST(forms_have_a_rate_of_their_own)
{
    for (int i = 0; i < 40; i++) {
        spec_text_form(text, 'p');
        spec_text_add(text, 300 + i, &rates); /* something else */
    }
    double then = spec_text_form_chance(text);
    ck_assert(then < 0.1);
    spec_text_form(text, -1); /* it says nothing, so nothing is learnt */
    say("p", true);
    ck_assert_double_eq(spec_text_form_chance(text), then);
    spec_text_form(text, 'p');
    say("p", true);
    ck_assert(spec_text_form_chance(text) > then);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("spec");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, what_came_before_is_guessed);
    tcase_add_test(tc, the_longest_match_is_taken_and_the_latest_of_equals);
    tcase_add_test(tc, guesses_go_on_with_themselves);
    tcase_add_test(tc, chances_grow_with_the_context);
    tcase_add_test(tc, old_text_is_forgotten);
    tcase_add_test(tc, what_never_comes_is_no_more_believed);
    tcase_add_test(tc, a_prompt_says_nothing_of_its_answer);
    tcase_add_test(tc, forms_have_a_rate_of_their_own);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
