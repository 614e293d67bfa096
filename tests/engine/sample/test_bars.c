/* test_bars.c -- what may not come: single tokens, sequences, both beside a form, against
 * a plain walk of the text. */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/sample/bars.h"
#include "tests/run_suite.h"

enum { VOCAB = 77, WORDS = (VOCAB + 31) / 32, TEXT = 40 };

static uint64_t rng = 1;

static int below(int n)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (int)((rng >> 33) % (uint64_t)n);
}

static bool has(const uint32_t *mask, int id)
{
    return mask[id / 32] >> id % 32 & 1;
}

typedef struct {
    int32_t id[4];
    int n;
    bool in_prompt;
} rule;

/* Written from the definition: the token, put behind the text, ends a sequence. */
static bool plain_bars(const rule *r, int n_rule, const bars_text *t, int32_t token)
{
    int32_t all[2 * TEXT + 1];
    for (int k = 0; k < n_rule; k++) {
        int n = r[k].in_prompt ? t->n_prompt : 0;
        memcpy(all, t->prompt, (size_t)n * sizeof(*all));
        memcpy(all + n, t->output, (size_t)t->n_output * sizeof(*all));
        n += t->n_output;
        all[n++] = token;
        if (n >= r[k].n && memcmp(all + n - r[k].n, r[k].id, (size_t)r[k].n * sizeof(*all)) == 0)
            return true;
    }
    return false;
}

static void random_text(int32_t *ids)
{
    for (int i = 0; i < TEXT; i++) ids[i] = below(3); /* sequences shall stand often */
}

START_TEST(masks_are_what_a_plain_walk_finds)
{
    for (int round = 0; round < 300; round++) {
        int32_t only[30], prompt[TEXT], output[TEXT];
        rule rules[8];
        uint32_t room[WORDS], form[WORDS];
        bool few = round % 3 == 0, formed = round % 4 == 0;
        for (int i = 0; i < 30; i++) only[i] = below(VOCAB);
        bars *b = bars_create(VOCAB, few ? only : NULL, 30);
        ck_assert_ptr_nonnull(b);
        ck_assert_int_eq(bars_words(b), WORDS);
        bool reads = false;
        for (int k = 0; k < 8; k++) {
            rules[k] = (rule){.n = 1 + below(4), .in_prompt = below(2)};
            for (int i = 0; i < 4; i++) rules[k].id[i] = below(3);
            ck_assert(bars_forbid(b, rules[k].id, rules[k].n, rules[k].in_prompt));
            reads |= rules[k].n > 1;
        }
        ck_assert_int_eq(bars_read_text(b), reads);
        random_text(prompt);
        random_text(output);
        for (int w = 0; w < WORDS; w++)
            form[w] = (uint32_t)below(1 << 30) | (uint32_t)below(4) << 30;
        form[WORDS - 1] &= (1U << VOCAB % 32) - 1;
        bars_text t = {prompt, output, below(TEXT), round % 6};
        const uint32_t *mask = bars_mask(b, formed ? form : NULL, VOCAB, &t, room);
        int left = 0;
        for (int id = 0; id < 32 * WORDS; id++) {
            bool listed = !few;
            for (int i = 0; few && i < 30; i++) listed |= only[i] == id;
            bool may =
                id < VOCAB && listed && (!formed || has(form, id)) && !plain_bars(rules, 8, &t, id);
            left += may;
            ck_assert_msg(!mask || has(mask, id) == may, "round %d, token %d", round, id);
        }
        ck_assert_int_eq(mask != NULL, left > 0);
        bars_destroy(b);
    }
}
END_TEST

/* A prompt lies in memory of its own: nothing before it is read. */
START_TEST(a_sequence_longer_than_the_text_bars_nothing)
{
    int32_t *prompt = malloc(2 * sizeof(*prompt)), output[1] = {3};
    prompt[0] = 1;
    prompt[1] = 2;
    const int32_t long_one[] = {9, 1, 2, 3, 4}, whole[] = {1, 2, 3, 4}, own[] = {2, 3, 5};
    uint32_t room[WORDS];
    bars *b = bars_create(VOCAB, NULL, 0);
    ck_assert(bars_forbid(b, long_one, 5, true) && bars_forbid(b, own, 3, false));
    bars_text t = {prompt, output, 2, 1};
    const uint32_t *mask = bars_mask(b, NULL, 0, &t, room);
    ck_assert(has(mask, 4) && has(mask, 5));
    ck_assert(bars_forbid(b, whole, 4, true));
    mask = bars_mask(b, NULL, 0, &t, room);
    ck_assert(!has(mask, 4) && has(mask, 5));
    bars_destroy(b);
    free(prompt);
}
END_TEST

START_TEST(ids_of_nobody_and_long_sequences_are_passed_over)
{
    int32_t many[BARS_SEQUENCE_MAX + 1] = {0}, only[] = {-1, VOCAB, 1 << 30, 5},
                                     wild[] = {4, VOCAB};
    uint32_t room[WORDS];
    const bars_text nothing = {0};
    bars *b = bars_create(VOCAB, only, 4);
    ck_assert(bars_forbid(b, wild, 2, true) && bars_forbid(b, wild + 1, 1, true));
    ck_assert(bars_forbid(b, many, BARS_SEQUENCE_MAX + 1, true) && bars_forbid(b, many, 0, true));
    ck_assert(!bars_read_text(b));
    const uint32_t *mask = bars_mask(b, NULL, 0, &nothing, room);
    for (int id = 0; id < 32 * WORDS; id++) ck_assert_int_eq(has(mask, id), id == 5);
    int32_t five = 5;
    ck_assert(bars_forbid(b, &five, 1, false));
    ck_assert_ptr_null(bars_mask(b, NULL, 0, &nothing, room));
    bars_destroy(b);
    bars_destroy(NULL);
    ck_assert_ptr_null(bars_create(0, NULL, 0));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("bars");
    TCase *c = tcase_create("all");
    tcase_add_test(c, masks_are_what_a_plain_walk_finds);
    tcase_add_test(c, a_sequence_longer_than_the_text_bars_nothing);
    tcase_add_test(c, ids_of_nobody_and_long_sequences_are_passed_over);
    suite_add_tcase(s, c);
    return run_suite(s);
}
