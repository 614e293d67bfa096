/* test_pieces.c -- Unigram, WordPiece, WordLevel: the same ids and the same text as Hugging Face's
 * tokenizers, on 1,000 strings in ten kinds of tokenizer (tests/tools/make_piece_goldens.py), at
 * once and token by token; hostile texts and files cost what they may. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/text/charsmap.h"
#include "engine/text/normal.h"
#include "engine/text/tokenizer.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { KINDS = 10, LEAST_STRINGS = 1000, TEXT_MAX = 4096, IDS_MAX = 4096 };

static const char *const kinds[KINDS] = {"t5",      "xlmr",  "albert",  "bytes", "never",
                                         "uncased", "cased", "accents", "words", "plain"};

static tokenizer *load(const char *kind)
{
    char dir[64];
    tokenizer *t;
    err e = {.msg = ""};
    snprintf(dir, sizeof(dir), "fixtures/pieces/%s", kind);
    ck_assert_msg(tokenizer_load(&t, dir, &e) == ERR_NONE, "%s: %s", kind, e.msg);
    return t;
}

static unsigned add_sum(unsigned h, const void *data, size_t len)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < len; i++) h = (h ^ p[i]) * 16777619U;
    return h;
}

static unsigned folded(unsigned h)
{
    return (h ^ h >> 16) & 0xFFFF;
}

/* Token by token it is the same text. */
static void check_stream(const tokenizer *t, const int32_t *ids, int64_t n, const char *want,
                         size_t len)
{
    static char all[IDS_MAX * 16];
    size_t m = 0;
    detok d;
    detok_init(&d, t, true);
    for (int64_t i = 0; i < n; i++) m += detok_push(&d, ids[i], all + m, DETOK_MAX);
    m += detok_flush(&d, all + m, 16);
    ck_assert_uint_eq(m, len);
    ck_assert(memcmp(all, want, len) == 0);
}

/* The two sums of one string. */
static unsigned long sums(const tokenizer *t, const char *text, size_t len)
{
    static int32_t ids[IDS_MAX];
    unsigned h = 2166136261U, g = 2166136261U;
    int64_t n = tokenizer_encode(t, text, len, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, ids, IDS_MAX);
    ck_assert(n >= 0 && n <= IDS_MAX);
    for (int64_t i = 0; i < n; i++) {
        unsigned char two[2] = {(unsigned char)ids[i], (unsigned char)(ids[i] >> 8)};
        h = add_sum(h, two, 2);
    }
    size_t back_len;
    char *back = tokenizer_decode(t, ids, (size_t)n, true, &back_len);
    g = add_sum(g, back, back_len);
    check_stream(t, ids, n, back, back_len);
    free(back);
    return (unsigned long)folded(h) << 16 | folded(g);
}

static size_t unhex(const char *line, char *out)
{
    size_t n = strcspn(line, "\n") / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        ck_assert_int_eq(sscanf(line + 2 * i, "%2x", &v), 1);
        out[i] = (char)v;
    }
    return n;
}

START_TEST(ids_and_texts_are_those_of_hugging_face)
{
    static char text[TEXT_MAX];
    FILE *strings = fopen("fixtures/pieces/strings.hex", "r"),
         *answers = fopen("fixtures/pieces/answers.txt", "r");
    char *line = NULL, *answer = NULL;
    size_t cap = 0, answer_cap = 0;
    tokenizer *t = load(kinds[_i]);
    int n = 0, bad = 0;
    ck_assert(strings && answers);
    for (; getline(&line, &cap, strings) > 0; n++) {
        ck_assert(getline(&answer, &answer_cap, answers) > 0 && strlen(line) < 2 * TEXT_MAX);
        char eight[9] = "";
        ck_assert_uint_ge(strlen(answer), (size_t)(_i + 1) * 8);
        memcpy(eight, answer + (size_t)_i * 8, 8);
        unsigned long want = strtoul(eight, NULL, 16);
        unsigned long got = sums(t, text, unhex(line, text));
        if (got != want && bad++ < 5)
            fprintf(stderr, "%s: %08lx, not %08lx: %s", kinds[_i], got, want, line);
    }
    ck_assert_msg(bad == 0, "%s: %d of %d strings differ", kinds[_i], bad, n);
    ck_assert_int_ge(n, LEAST_STRINGS);
    tokenizer_destroy(t);
    free(line);
    free(answer);
    (void)fclose(strings);
    (void)fclose(answers);
}
END_TEST

/* Twice the text, about twice the time: with room for a busy machine. */
START_TEST(a_megabyte_is_no_trouble)
{
    static const char *const bits[] = {
        "a", " ", "\xCC\x81", "\xE6\x97\xA5", "\r", "\xF3\xBF\xBF\xBD"};
    size_t len = 1 << 20;
    char *text = malloc(len + 4);
    tokenizer *t = load(kinds[_i]);
    for (size_t b = 0; b < sizeof(bits) / sizeof(*bits); b++) {
        size_t n = strlen(bits[b]), at = 0;
        for (; at + n <= len; at += n) memcpy(text + at, bits[b], n);
        ck_assert_int_ge(tokenizer_encode(t, text, at, 0, NULL, 0), 0);
    }
    tokenizer_destroy(t);
    free(text);
}
END_TEST

/* ---- files that are not as they should be --------------------------------------------------- */

static err_code load_text(const char *text, err *e)
{
    char dir[64], path[128];
    tokenizer *t;
    tmpdir_make(dir);
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    ck_assert(f && fputs(text, f) >= 0);
    (void)fclose(f);
    err_code rc = tokenizer_load(&t, dir, e);
    if (!rc) tokenizer_destroy(t);
    tmpdir_remove(dir);
    return rc;
}

#define PARTS   "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\"},"
#define UNIGRAM "{" PARTS "\"model\":{\"type\":\"Unigram\","
#define PRE(steps, vocab)                                                                 \
    "{" PARTS "\"pre_tokenizer\":" steps ",\"model\":{\"type\":\"Unigram\",\"unk_id\":0," \
    "\"vocab\":" vocab "}}"
#define NORMAL(step)                                                                  \
    "{" PARTS "\"normalizer\":" step ",\"model\":{\"type\":\"Unigram\",\"unk_id\":0," \
    "\"vocab\":[[\"a\",0]]}}"

START_TEST(what_is_not_known_is_refused_by_name)
{
    static const struct {
        const char *text;
        err_code rc;
        const char *says;
    } cases[] = {
        {UNIGRAM "\"unk_id\":0,\"vocab\":[[\"a\",0],[\"b\",-1]]}}", ERR_NONE, ""},
        {UNIGRAM "\"vocab\":[[\"a\",0]]}}", ERR_UNSUPPORTED, "unk_id"},
        {UNIGRAM "\"unk_id\":1,\"vocab\":[[\"a\",0]]}}", ERR_UNSUPPORTED, "unk_id"},
        {UNIGRAM "\"unk_id\":0,\"vocab\":[[\"a\"]]}}", ERR_CORRUPT, "piece 0"},
        {UNIGRAM "\"unk_id\":0,\"vocab\":[]}}", ERR_CORRUPT, "vocabulary"},
        {"{" PARTS "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"x\",\"vocab\":{\"a\":0}}}",
         ERR_UNSUPPORTED, "unk_token"},
        {"{" PARTS "\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"x\",\"vocab\":{\"a\":0}}}",
         ERR_UNSUPPORTED, "WordLevel"},
        {"{" PARTS "\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"a\",\"vocab\":{\"a\":0}}}",
         ERR_NONE, ""},
        {"{" PARTS "\"model\":{\"type\":\"Words\",\"vocab\":{\"a\":0}}}", ERR_UNSUPPORTED, "Words"},
        {PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":"
             "\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"first\"}]}",
             "[[\"a\",0]]"),
         ERR_UNSUPPORTED, "prepend_scheme"},
        {PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":"
             "\"\xE2\x96\x81\"},{\"type\":\"Digits\"}]}",
             "[[\"a\",0]]"),
         ERR_UNSUPPORTED, "behind Metaspace"},
        {NORMAL("{\"type\":\"NFKC\"}"), ERR_NONE, ""},
        {NORMAL("{\"type\":\"ByteLevel\"}"), ERR_UNSUPPORTED, "ByteLevel"},
        {NORMAL("{\"type\":\"Precompiled\",\"precompiled_charsmap\":null}"), ERR_UNSUPPORTED,
         "precompiled_charsmap"},
        {NORMAL("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AA\"}"), ERR_CORRUPT,
         "precompiled_charsmap"},
        {NORMAL("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"////////\"}"), ERR_CORRUPT,
         "precompiled_charsmap"},
        {NORMAL("{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}"),
         ERR_UNSUPPORTED, "Replace"},
        {NORMAL("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x*\"},\"content\":\"x\"}"),
         ERR_UNSUPPORTED, "pattern"},
        {NORMAL("{\"type\":\"Prepend\"}"), ERR_CORRUPT, "text"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        err e = {.msg = ""};
        ck_assert_msg(load_text(cases[i].text, &e) == cases[i].rc, "case %d: %s", (int)i, e.msg);
        ck_assert_msg(strstr(e.msg, cases[i].says), "case %d: %s", (int)i, e.msg);
    }
}
END_TEST

/* A map whose units lead anywhere: what is found is a text of it, or nothing. */
START_TEST(a_map_of_noise_finds_nothing_outside_of_itself)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned seed = 5;
    int read = 0;
    for (int round = 0; round < 2000; round++) {
        char text[512];
        err e;
        charsmap *m;
        memcpy(text, "MAAAA", 5); /* 48 bytes of units */
        for (int i = 5; i < 80; i++) text[i] = digits[rand_r(&seed) % 64];
        memcpy(text + 68, "AGFhAAAAAAAA", 13);
        if (charsmap_read(&m, text, &e)) continue;
        read++;
        for (int c = 1; c < 256; c++) {
            char s[3] = {(char)c, 'a', 0};
            const char *to = charsmap_find(m, s, 2);
            ck_assert(!to || strlen(to) < 80);
        }
        charsmap_destroy(m);
    }
    ck_assert_int_gt(read, 100);
    err e;
    charsmap *far; /* "\1" leads to a text two gigabytes away */
    ck_assert_int_eq(charsmap_read(&far,
                                   "MAAAAAAAAAABDQAA8P//fwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
                                   "AAAAAAAAAGEA",
                                   &e),
                     ERR_NONE);
    ck_assert_str_eq(charsmap_find(far, "\1", 1), "");
    charsmap_destroy(far);
}
END_TEST

/* What a step makes of a stranger's character is the stranger's. */
START_TEST(steps_keep_whose_each_byte_is)
{
    static const char file[] = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{"
                               "\"type\":\"Lowercase\"},{\"type\":"
                               "\"Replace\",\"pattern\":{\"Regex\":\"[ab]{2}\"},\"content\":"
                               "\"xyz\"},{\"type\":\"Prepend\","
                               "\"prepend\":\"_\"}]}";
    static const char text[] = "\xEF\xAC\x81"
                               "AB c";
    unsigned char taint[] = {1, 1, 1, 0, 1, 0, 1};
    cJSON *v = cJSON_Parse(file);
    normaliser n = {0};
    tok_normal out;
    ck_assert_int_eq(normaliser_read(&n, v, NULL), ERR_NONE);
    ck_assert(normaliser_run(&n, text, sizeof(text) - 1, taint, &out));
    ck_assert_str_eq(out.s, "_fixyz c");
    ck_assert_int_eq(memcmp(out.taint, "\0\1\1\1\1\1\0\1", 8), 0);
    tok_normal_clear(&out);
    normaliser_clear(&n);
    cJSON_Delete(v);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pieces");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, ids_and_texts_are_those_of_hugging_face, 0, KINDS);
    tcase_add_loop_test(tc, a_megabyte_is_no_trouble, 0, KINDS);
    tcase_add_test(tc, what_is_not_known_is_refused_by_name);
    tcase_add_test(tc, a_map_of_noise_finds_nothing_outside_of_itself);
    tcase_add_test(tc, steps_keep_whose_each_byte_is);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
