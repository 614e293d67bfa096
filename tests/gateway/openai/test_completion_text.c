/* test_completion_text.c -- stop strings: random texts, however they are cut into
 * tokens, against a plain search. */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/openai/completion_text.h"
#include "tests/run_suite.h"

enum { TEXT = 40, TOKENS = 64 };

static tokenizer *tok;
static uint64_t rng;

static void setup(void)
{
    err e;
    ck_assert_msg(tokenizer_load(&tok, "fixtures/tokenizers/gpt2", &e) == ERR_NONE, "%s", e.msg);
}

static void teardown(void)
{
    tokenizer_destroy(tok);
}

static unsigned draw(unsigned n)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(rng >> 33) % n;
}

static void draw_text(char *out, unsigned n)
{
    for (unsigned i = 0; i < n; i++) out[i] = (char)('a' + draw(3));
    out[n] = 0;
}

/* Random pieces of the text as tokens; returns how many. */
static int cut(const char *text, int32_t *ids)
{
    int n = 0;
    for (size_t at = 0, len = strlen(text); at < len;) {
        size_t piece = 1 + draw(4);
        if (piece > len - at) piece = len - at;
        int64_t got = tokenizer_encode(tok, text + at, piece, 0, ids + n, (size_t)(TOKENS - n));
        ck_assert(got > 0 && n + got <= TOKENS);
        n += (int)got;
        at += piece;
    }
    return n;
}

/* Where the first of the stop strings begins in text[0, len); -1: none is
 * whole.  *which: its number. */
static int first_stop(const openai_request *rq, const char *text, size_t len, int *which)
{
    for (size_t at = 0; at < len; at++) {
        for (int i = 0; i < rq->n_stop; i++) {
            if (len - at < rq->stop_len[i] || memcmp(text + at, rq->stop[i], rq->stop_len[i]) != 0)
                continue;
            *which = i;
            return (int)at;
        }
    }
    return -1;
}

/* Of `said` bytes of the text so many were shown: none from which on a stop string may still
 * come. */
static void nothing_too_early(const openai_request *rq, const char *text, size_t said, size_t shown)
{
    for (size_t at = 0; at < shown; at++) {
        size_t n = said - at;
        for (int i = 0; i < rq->n_stop; i++) {
            bool may = n < rq->stop_len[i] && memcmp(text + at, rq->stop[i], n) == 0;
            ck_assert_msg(!may, "%zu of '%.*s' before '%s'", shown, (int)said, text, rq->stop[i]);
        }
    }
}

static void take(completion_text *ct, char *shown, size_t *len)
{
    size_t n;
    const char *more = completion_text_take(ct, &n);
    ck_assert_uint_le(*len + n, TEXT);
    memcpy(shown + *len, more, n);
    *len += n;
}

static void one_text(const openai_request *rq, const char *text)
{
    int32_t ids[TOKENS];
    char shown[TEXT + 1];
    int n = cut(text, ids), which = -1, at = -1;
    size_t said = 0, len = 0;
    completion_text ct;
    completion_text_init(&ct, rq, tok);
    for (int i = 0; i < n && at < 0; i++) {
        size_t bytes;
        (void)tokenizer_bytes(tok, ids[i], &bytes);
        said += bytes;
        at = first_stop(rq, text, said, &which);
        ck_assert_int_eq(completion_text_push(&ct, ids[i]), at >= 0);
        take(&ct, shown, &len);
        if (at < 0) nothing_too_early(rq, text, said, len);
    }
    completion_text_finish(&ct);
    take(&ct, shown, &len);
    size_t want = said;
    if (at >= 0) want = (size_t)at + (rq->include_stop ? rq->stop_len[which] : 0);
    ck_assert_msg(len == want && memcmp(shown, text, len) == 0, "'%.*s' of '%s'", (int)len, shown,
                  text);
    ck_assert_ptr_eq(ct.stop_hit, at >= 0 ? rq->stop[which] : NULL);
    completion_text_clear(&ct);
}

START_TEST(stop_strings_end_the_text_and_are_held_back)
{
    int hits = 0;
    rng = 7;
    for (int round = 0; round < 3000; round++) {
        char stops[3][6], text[TEXT + 1];
        int which;
        openai_request rq = {.n_stop = (int)draw(4), .include_stop = round % 2};
        for (int i = 0; i < rq.n_stop; i++) {
            draw_text(stops[i], 1 + draw(5));
            rq.stop[i] = stops[i];
            rq.stop_len[i] = strlen(stops[i]);
        }
        draw_text(text, 1 + draw(TEXT));
        hits += first_stop(&rq, text, strlen(text), &which) >= 0;
        one_text(&rq, text);
    }
    ck_assert_int_gt(hits, 1000);
    ck_assert_int_lt(hits, 2500);
}
END_TEST

/* A character of several tokens comes whole, and one that never does at the end, as U+FFFD. */
START_TEST(characters_are_not_split)
{
    int32_t ids[TOKENS];
    openai_request rq = {.n_stop = 0};
    completion_text ct;
    size_t n;
    int64_t got = tokenizer_encode(tok, "\xf0\x9f\x8e\x89", 4, 0, ids, TOKENS);
    ck_assert_int_gt(got, 1);
    completion_text_init(&ct, &rq, tok);
    for (int i = 0; i + 1 < (int)got; i++) {
        ck_assert(!completion_text_push(&ct, ids[i]));
        (void)completion_text_take(&ct, &n);
        ck_assert_uint_eq(n, 0);
    }
    ck_assert(!completion_text_push(&ct, ids[got - 1]));
    ck_assert_mem_eq(completion_text_take(&ct, &n), "\xf0\x9f\x8e\x89", 4);
    ck_assert_uint_eq(n, 4);
    ck_assert(!completion_text_push(&ct, ids[0]));
    completion_text_finish(&ct);
    ck_assert_mem_eq(completion_text_take(&ct, &n), "\xef\xbf\xbd", 3);
    ck_assert_uint_eq(n, 3);
    completion_text_clear(&ct);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("completion_text");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, stop_strings_end_the_text_and_are_held_back);
    tcase_add_test(tc, characters_are_not_split);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
