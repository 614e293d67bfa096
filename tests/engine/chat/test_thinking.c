/* test_thinking.c -- thoughts and answers in what models write: each family's way, cut anywhere,
 * broken anyhow. */
#include <stdio.h>
#include <string.h>

#include <check.h>

#include "engine/chat/thinking.h"
#include "tests/run_suite.h"

typedef struct {
    thinking_style style;
    thinking_start start;
    const char *text, *want; /* "thoughts|answer" */
} row;

static const row rows[] = {
    {THINKING_TAG, THINKING_MAY, "<think>\nOne, two.\n</think>\n\nThree.", "One, two.|Three."},
    {THINKING_TAG, THINKING_MAY, "\n <think>a</think>b", "a|b"},
    {THINKING_TAG, THINKING_MAY, "Just so. <think>no</think>", "|Just so. <think>no</think>"},
    {THINKING_TAG, THINKING_MAY, "<thin", "|<thin"},
    {THINKING_TAG, THINKING_MAY, "<thing>", "|<thing>"},
    {THINKING_TAG, THINKING_MAY, "  spaces stay", "|  spaces stay"},
    {THINKING_TAG, THINKING_MAY, "<think>\n\n</think>\n\nb", "|b"},
    {THINKING_TAG, THINKING_MAY, "<think>a </thin k> b</think>", "a </thin k> b|"},
    {THINKING_TAG, THINKING_MAY, "<think>cut", "cut|"},
    {THINKING_TAG, THINKING_MAY, "<think>cut </thi", "cut </thi|"},
    {THINKING_TAG, THINKING_OPENED, "\nso it goes\n</think>\n\nYes. </think>",
     "so it goes|Yes. </think>"},
    {THINKING_TAG, THINKING_OPENED, "<think>\nmore</think>x", "<think>\nmore|x"},
    {THINKING_TAG, THINKING_OPENED, "</think>x", "|x"},
    {THINKING_TAG, THINKING_OVER, "<think>a</think>b", "|<think>a</think>b"},
    {THINKING_BRACKET, THINKING_MAY, "[THINK]a[/THINK]b", "a|b"},
    {THINKING_SEED, THINKING_MAY, "<seed:think>a</seed:think>b", "a|b"},
    {THINKING_COMMAND, THINKING_MAY, "<|START_THINKING|>a<|END_THINKING|>b", "a|b"},
    {THINKING_GRANITE, THINKING_MAY, "Here is my thought process: a\n\nHere is my response: b",
     "a|b"},
    {THINKING_THOUGHT, THINKING_MAY, "<|channel>thought\nHm.\n<channel|>Yes.", "Hm.|Yes."},
    {THINKING_THOUGHT, THINKING_MAY, "<|channel>though", "|<|channel>though"},
    {THINKING_THOUGHT, THINKING_OPENED, "\nHm.<channel|>Yes.", "Hm.|Yes."},
    {THINKING_THOUGHT, THINKING_MAY, "<|channel>thought\n<channel|>Yes.", "|Yes."},
    {THINKING_CHANNEL, THINKING_MAY,
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
     "Hm.|Yes."},
    {THINKING_CHANNEL, THINKING_MAY,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|"
     ">"
     "<|start|>assistant<|channel|>commentary<|message|>Let me. <|end|><|start|>assistant"
     "<|channel|>final<|message|>c",
     "ab|Let me.c"},
    {THINKING_CHANNEL, THINKING_MAY, "<|channel|>final<|message|>Yes.", "|Yes."},
    {THINKING_CHANNEL, THINKING_MAY, "No channel.", "|No channel."},
    {THINKING_CHANNEL, THINKING_MAY, "to", "|to"},
    {THINKING_CHANNEL, THINKING_MAY, "to be", "|to be"},
    {THINKING_CHANNEL, THINKING_MAY,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>analysis<|message|>b<|end|"
     ">",
     "ab|to=functions.f <|constrain|>json<|message|>{}<|call|>"},
    {THINKING_CHANNEL, THINKING_MAY,
     " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}",
     "|to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}"},
    {THINKING_CHANNEL, THINKING_OPENED, "a<|end|><|start|>assistant<|channel|>final<|message|>b",
     "a|b"},
    {THINKING_CHANNEL, THINKING_MAY, "<b>bold</b>", "|<b>bold</b>"},
    {THINKING_CHANNEL, THINKING_MAY, "<|channel|>analysis<|message|>cut", "cut|"},
    {THINKING_CHANNEL, THINKING_MAY, "<|channel|>analysis<|message|>a<|end|><|start|>assi", "a|"},
    {THINKING_NONE, THINKING_OVER, "<think>a</think>b", "|<think>a</think>b"},
};

static void check(const row *w, size_t piece)
{
    thinking_reader r;
    char got[1024];
    size_t n, m, len = strlen(w->text);
    thinking_reader_init(&r, w->style, w->start);
    for (size_t at = 0; at < len; at += piece)
        thinking_reader_push(&r, w->text + at, len - at < piece ? len - at : piece);
    thinking_reader_finish(&r);
    const char *thoughts = thinking_reader_take_thoughts(&r, &n);
    const char *text = thinking_reader_take_text(&r, &m);
    snprintf(got, sizeof(got), "%.*s|%.*s", (int)n, thoughts, (int)m, text);
    ck_assert(!r.failed);
    ck_assert_msg(strcmp(got, w->want) == 0, "\"%s\" by %zu: \"%s\" is not \"%s\"", w->text, piece,
                  got, w->want);
    thinking_reader_clear(&r);
}

START_TEST(thoughts_are_told_from_answers_wherever_they_are_cut)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t piece = 1; piece <= strlen(rows[i].text); piece++) check(&rows[i], piece);
    }
}
END_TEST

START_TEST(thoughts_come_as_they_are_made)
{
    thinking_reader r;
    size_t n;
    thinking_reader_init(&r, THINKING_TAG, THINKING_OPENED);
    thinking_reader_push(&r, "one two", 7);
    (void)thinking_reader_take_thoughts(&r, &n);
    ck_assert_uint_eq(n, 7);
    ck_assert(thinking_reader_inside(&r));
    thinking_reader_push(&r, " \n</th", 6);
    (void)thinking_reader_take_thoughts(&r, &n);
    ck_assert_uint_eq(n, 0);
    thinking_reader_push(&r, "ink>x", 5);
    (void)thinking_reader_take_text(&r, &n);
    ck_assert_uint_eq(n, 1);
    ck_assert(!thinking_reader_inside(&r));
    thinking_reader_clear(&r);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("thinking");
    TCase *t = tcase_create("reader");
    tcase_add_test(t, thoughts_are_told_from_answers_wherever_they_are_cut);
    tcase_add_test(t, thoughts_come_as_they_are_made);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
