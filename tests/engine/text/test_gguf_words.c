/* test_gguf_words.c -- a GGUF's vocabulary gives the ids of SentencePiece and of tokenizers
 * (make_quant_goldens.py wrote words.txt), and its chat template is found. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/hex.h"
#include "engine/files/documents.h"
#include "engine/files/gguf.h"
#include "engine/text/tokenizer.h"
#include "tests/run_suite.h"

static const char *const models[] = {"gguf-llama/model-00001-of-00002.gguf",
                                     "gguf-qwen3/model.gguf"};

static size_t from_hex(const char *s, char *out)
{
    size_t n = strcmp(s, "-") == 0 ? 0 : strlen(s) / 2;
    for (size_t i = 0; i < n; i++) out[i] = (char)hex_value(s + 2 * i, s + 2 * n, 2);
    return n;
}

static void check_line(const tokenizer *t, char *line)
{
    char text[256];
    int32_t ids[64];
    char *at = strtok(line, " \n");
    size_t len = from_hex(at, text);
    int64_t n = tokenizer_encode(t, text, len, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, ids, 64);
    int64_t i = 0;
    for (at = strtok(NULL, " \n"); at; at = strtok(NULL, " \n"), i++)
        ck_assert_msg(i < n && ids[i] == atoi(at), "'%.*s': id %d is %d, not %s", (int)len, text,
                      (int)i, i < n ? (int)ids[i] : -1, at);
    ck_assert_msg(i == n, "'%.*s' has %d ids, not %d", (int)len, text, (int)n, (int)i);
    size_t back_len;
    char *back = tokenizer_decode(t, ids, (size_t)n, true, &back_len);
    ck_assert_ptr_nonnull(back);
    if (!strstr(text, "<|im_start|>"))
        ck_assert_msg(back_len == len && memcmp(back, text, len) == 0, "'%.*s' comes back as '%s'",
                      (int)len, text, back);
    free(back);
}

START_TEST(ids_are_the_librarys)
{
    char path[128], line[1024];
    tokenizer *t;
    err e = {0};
    snprintf(path, sizeof(path), "fixtures/quant/%s", models[_i]);
    ck_assert_msg(!tokenizer_load(&t, path, &e), "%s", e.msg);
    strcpy(strrchr(path, '/'), "/words.txt");
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    int n = 0;
    for (; fgets(line, sizeof(line), f); n++) check_line(t, line);
    ck_assert_int_gt(n, 12);
    (void)fclose(f);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(ends_and_markers)
{
    tokenizer *t;
    err e = {0};
    ck_assert_msg(!tokenizer_load(&t, "fixtures/quant/gguf-qwen3/model.gguf", &e), "%s", e.msg);
    ck_assert_int_eq(tokenizer_eos(t), 2);
    ck_assert(tokenizer_is_special(t, tokenizer_find(t, "<|im_start|>")));
    ck_assert_int_lt(tokenizer_vocab(t), 300); /* what pads the vocabulary is no token */
    tokenizer_destroy(t);
    cJSON *j;
    ck_assert_int_eq(
        document_read("fixtures/quant/gguf-qwen3/model.gguf", "tokenizer_config.json", &j, &e), 0);
    const cJSON *list = json_get(j, "chat_template");
    ck_assert_ptr_nonnull(strstr(json_get(list->child, "template")->valuestring, "<|im_start|>"));
    cJSON_Delete(j);
    ck_assert_int_eq(document_read("fixtures/quant/gguf-qwen3/model.gguf", "config.json", &j, &e),
                     0);
    ck_assert_int_eq(cJSON_GetArraySize(json_get(j, "eos_token_id")), 2);
    cJSON_Delete(j);
}
END_TEST

/* A copy of the GGUF whose texts are cut by `pre`: its name has another length. */
static void write_copy(const char *path, const char *pre)
{
    static char data[1 << 20];
    static const char key[] = "tokenizer.ggml.pre";
    FILE *f = fopen("fixtures/quant/gguf-qwen3/model.gguf", "rb");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(data, 1, sizeof(data) - 64, f); /* and zeros: the tensors may move */
    (void)fclose(f);
    char *at = memmem(data, n, key, sizeof(key) - 1);
    ck_assert(n < sizeof(data) - 64 && at);
    at += sizeof(key) - 1 + sizeof(uint32_t); /* the value's type */
    uint64_t was, len = strlen(pre);
    memcpy(&was, at, sizeof(was));
    f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, (size_t)(at - data), f), (size_t)(at - data));
    ck_assert_uint_eq(fwrite(&len, 1, sizeof(len), f), sizeof(len));
    ck_assert_uint_eq(fwrite(pre, 1, len, f), len);
    at += sizeof(was) + was;
    size_t rest = (size_t)(data + n + 64 - at);
    ck_assert_uint_eq(fwrite(at, 1, rest, f), rest);
    ck_assert_int_eq(fclose(f), 0);
}

/* The steps of one case of make_split_goldens.py, which the library has answered. */
static cJSON *steps_of(const char *name)
{
    static char line[8192];
    cJSON *steps = NULL;
    FILE *f = fopen("fixtures/splits/cases.jsonl", "rb");
    ck_assert_ptr_nonnull(f);
    while (!steps && fgets(line, sizeof(line), f)) {
        cJSON *j = cJSON_Parse(line);
        if (strcmp(json_get(j, "name")->valuestring, name) == 0)
            steps = cJSON_DetachItemFromObject(j, "steps");
        cJSON_Delete(j);
    }
    (void)fclose(f);
    ck_assert_ptr_nonnull(steps);
    return steps;
}

/* True where all that `asked` has is in `seen`, too; the library's cases have defaults besides. */
static bool asks_for(const cJSON *seen, const cJSON *asked)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, asked)
    {
        const cJSON *other = json_get(seen, v->string);
        if (strcmp(v->string, "trim_offsets") != 0 && !cJSON_Compare(v, other, true)) return false;
    }
    return true;
}

/* Each name of llama.cpp's, and the case of the library's that it stands for. */
START_TEST(names_are_the_librarys_steps)
{
    static const char *const names[][2] = {{"llama-bpe", "llama3"},
                                           {"llama3", "llama3"},
                                           {"llama-v3", "llama3"},
                                           {"smollm", "smollm2"},
                                           {"starcoder", "smollm2"},
                                           {"refact", "smollm2"},
                                           {"tekken", "tekken"},
                                           {"gpt-4o", "o200k"},
                                           {"llama4", "o200k"},
                                           {"qwen35", "qwen3.5"},
                                           {"dbrx", "llama3"},
                                           {"smaug-bpe", "llama3"},
                                           {"glm4", "llama3"},
                                           {"deepseek-v3", "deepseek3"},
                                           {"deepseek-coder", "deepseek2"},
                                           {"deepseek-llm", "deepseek-llm"},
                                           {"kimi-k2", "kimi"},
                                           {"command-r", "smollm2"},
                                           {"olmo", "gpt2"}};
    char path[64] = "/tmp/gguf-words-XXXXXX.gguf";
    int fd = mkstemps(path, 5);
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        cJSON *j = NULL, *steps = steps_of(names[i][1]);
        gguf_words words;
        err e = {0};
        write_copy(path, names[i][0]);
        ck_assert_msg(!document_tokenizer_read(path, &j, &words, &e), "%s: %s", names[i][0], e.msg);
        gguf_words_clear(&words);
        const cJSON *made = json_get(json_get(j, "pre_tokenizer"), "pretokenizers");
        ck_assert_int_eq(cJSON_GetArraySize(made), cJSON_GetArraySize(steps));
        for (int k = 0; k < cJSON_GetArraySize(steps); k++)
            ck_assert_msg(asks_for(cJSON_GetArrayItem(made, k), cJSON_GetArrayItem(steps, k)),
                          "%s: step %d is %s", names[i][0], k,
                          cJSON_PrintUnformatted(cJSON_GetArrayItem(made, k)));
        cJSON_Delete(j);
        cJSON_Delete(steps);
    }
    cJSON *j;
    err e = {0};
    write_copy(path, "somebodys");
    gguf_words words;
    ck_assert_int_eq(document_tokenizer_read(path, &j, &words, &e), ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.msg, "'somebodys'"));
    (void)unlink(path);
}
END_TEST

/* A rank of its own for each way to make a word of two: by its score, then the longer left part. */
static int slow_rank(const gguf_words *w, const gguf_merge *a, const gguf_merge *b)
{
    float s = w->word[a->whole].score, t = w->word[b->whole].score;
    if (s != t) return s > t ? -1 : 1;
    int d = (int)w->word[b->left].len - (int)w->word[a->left].len;
    if (!d) d = (int)w->word[b->right].len - (int)w->word[a->right].len;
    if (!d) d = a->whole - b->whole;
    return d ? d : a->left - b->left;
}

/* All pairs of words in their order, whether scores are sorted, equal or neither: _i. */
START_TEST(merges_are_ranked_by_scores)
{
    static const char *const texts[] = {"a",  "b",   "ab",  "ba",   "abab", "aba", "bab",  "c",
                                        "ca", "abc", "bca", "abca", "c",    "a b", "cabca"};
    enum { N = sizeof(texts) / sizeof(*texts) };
    gguf_word word[N];
    gguf_words w = {.word = word, .n = N};
    err e;
    for (int i = 0; i < N; i++)
        word[i] = (gguf_word){.s = texts[i],
                              .len = (uint32_t)strlen(texts[i]),
                              .type = i == 5 ? WORD_USER : WORD_NORMAL,
                              .score = _i == 0   ? (float)-i
                                       : _i == 1 ? 0
                                                 : (float)(i * 7 % 5)};
    ck_assert_int_eq(gguf_make_merges(&w, &e), ERR_NONE);
    int found = 0;
    for (int whole = 0; whole < N; whole++) {
        bool first = word[whole].type == WORD_NORMAL && !strchr(texts[whole], ' ');
        for (int i = 0; i < whole; i++) first &= strcmp(texts[i], texts[whole]) != 0;
        for (int left = 0; left < N && first; left++)
            for (int right = 0; right < 12; right++) {
                char both[16];
                snprintf(both, sizeof(both), "%s%s", texts[left], texts[right]);
                found += left < 12 && left != 5 && right != 5 && strcmp(both, texts[whole]) == 0;
            }
    }
    ck_assert_int_gt(found, 8);
    ck_assert_int_eq(w.n_merges, found);
    for (int i = 1; i < found; i++)
        ck_assert_msg(slow_rank(&w, &w.merge[i - 1], &w.merge[i]) < 0, "merge %d", i);
    free(w.merge);
}
END_TEST

/* "left right" by ids, and what is no merge. */
START_TEST(listed_merges_are_of_words)
{
    static const struct {
        const char *text;
        err_code rc;
        int left, right, whole;
    } cases[] = {{"a b", ERR_NONE, 0, 1, 2},
                 {"ab", ERR_CORRUPT, 0, 0, 0},
                 {"b b", ERR_CORRUPT, 0, 0, 0},
                 {"c b", ERR_CORRUPT, 0, 0, 0},
                 {"a ", ERR_CORRUPT, 0, 0, 0}};
    gguf_word word[] = {{"a", 1, WORD_NORMAL, 0},
                        {"b", 1, WORD_USER, 0},
                        {"ab", 2, WORD_NORMAL, 0},
                        {"c", 1, WORD_UNUSED, 0},
                        {"cb", 2, WORD_NORMAL, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint8_t data[32] = {(uint8_t)strlen(cases[i].text)};
        memcpy(data + 8, cases[i].text, strlen(cases[i].text));
        const gguf_value v = {.kind = GGUF_ARRAY,
                              .item = GGUF_TEXT,
                              .count = 1,
                              .at = data,
                              .end = data + 8 + strlen(cases[i].text)};
        gguf_words w = {.word = word, .n = 5};
        err e = {0};
        ck_assert_int_eq(gguf_read_merges(&v, &w, &e), cases[i].rc);
        ck_assert(cases[i].rc
                      ? strstr(e.msg, "merge 0") != NULL
                      : w.merge[0].left == cases[i].left && w.merge[0].right == cases[i].right &&
                            w.merge[0].whole == cases[i].whole);
        free(w.merge);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf_words");
    TCase *t = tcase_create("gguf_words");
    tcase_add_loop_test(t, ids_are_the_librarys, 0, 2);
    tcase_add_test(t, ends_and_markers);
    tcase_add_test(t, names_are_the_librarys_steps);
    tcase_add_loop_test(t, merges_are_ranked_by_scores, 0, 3);
    tcase_add_test(t, listed_merges_are_of_words);
    suite_add_tcase(s, t);
    return run_suite(s);
}
