/* test_tokenizer.c -- the same ids and the same text as Hugging Face's tokenizers, on
 * 2,100 strings in five kinds of tokenizer (tests/tools/make_tokenizer_goldens.py), and
 * the streaming detokeniser. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/text/tokenizer.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static const char *const kinds[] = {"gpt2", "llama3", "qwen2", "llama2", "mistral"};

enum { N_KINDS = 5, LEAST_STRINGS = 2000 };

static FILE *open_fixture(const char *a, const char *b)
{
    char path[256];
    snprintf(path, sizeof(path), "fixtures/tokenizers/%s/%s", a, b);
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s", path);
    return f;
}

/* Reads one line; "=" stands for the line `same`. Returns false at the end of the file. */
static bool read_line(FILE *f, const char *same, char **line, size_t *cap)
{
    if (getline(line, cap, f) < 0) return false;
    if (strcmp(*line, "=\n") == 0) {
        free(*line);
        *line = strdup(same);
        *cap = strlen(same) + 1;
    }
    return true;
}

/* Reads one line of hex into bytes. */
static bool read_hex(FILE *f, const char *same, char **line, size_t *cap, char **bytes, size_t *len)
{
    if (!read_line(f, same, line, cap)) return false;
    *len = (strlen(*line) - 1) / 2;
    *bytes = malloc(*len + 1);
    for (size_t i = 0; i < *len; i++) {
        unsigned v;
        ck_assert_int_eq(sscanf(*line + 2 * i, "%2x", &v), 1);
        (*bytes)[i] = (char)v;
    }
    return true;
}

static bool same_ids(const char *line, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        char *end;
        if (strtol(line, &end, 10) != ids[i]) return false;
        line = end;
    }
    return line[strspn(line, " \n")] == 0;
}

static void check_stream(const tokenizer *t, const int32_t *ids, int64_t n, const char *want,
                         size_t len)
{
    char *all = malloc((size_t)n * DETOK_MAX + 16);
    size_t m = 0;
    detok d;
    detok_init(&d, t, true);
    for (int64_t i = 0; i < n; i++) {
        size_t got = detok_push(&d, ids[i], all + m, DETOK_MAX);
        /* each piece stands on its own: no part of a sequence at either end */
        if (got) ck_assert(((unsigned char)all[m] & 0xC0) != 0x80);
        m += got;
    }
    m += detok_flush(&d, all + m, 16);
    ck_assert_uint_eq(m, len);
    ck_assert(memcmp(all, want, len) == 0);
    free(all);
}

/* make_tokenizer_goldens.py's MORE, with the ids that Hugging Face gives them. */
static const tok_added more[] = {
    {.id = 900, .content = "world", .single_word = true},
    {.id = 901, .content = "worl"},
    {.id = 902, .content = "user|>", .lstrip = true, .special = true},
    {.id = 903, .content = "def f", .lstrip = true, .rstrip = true},
    {.id = 904, .content = "//x.y", .rstrip = true},
};

enum { N_MORE = sizeof(more) / sizeof(*more) };

START_TEST(ids_and_texts_are_those_of_hugging_face)
{
    const char *kind = kinds[_i % N_KINDS];
    bool added = _i >= N_KINDS;
    char dir[128], *line = NULL, *plain_line = NULL, *ids_line = NULL, *dec_line = NULL;
    size_t cap = 0, plain_cap = 0, ids_cap = 0, dec_cap = 0;
    err e;
    tokenizer *t, *base = NULL;
    snprintf(dir, sizeof(dir), "fixtures/tokenizers/%s", kind);
    ck_assert_msg(tokenizer_load(&t, dir, &e) == ERR_NONE, "%s: %s", kind, e.msg);
    if (added) {
        base = t;
        ck_assert_msg(tokenizer_extend(&t, base, more, N_MORE, &e) == ERR_NONE, "%s", e.msg);
        ck_assert_int_eq(tokenizer_vocab(t), 905);
    }
    FILE *strings = open_fixture(".", "strings.hex"), *plain = open_fixture(kind, "ids.txt"),
         *ids_file = open_fixture(kind, added ? "more_ids.txt" : "ids.txt");
    FILE *decoded = open_fixture(kind, added ? "more_decoded.hex" : "decoded.hex");
    char *text, *want;
    size_t len, want_len;
    int n_strings = 0, n_bad = 0;
    while (read_hex(strings, "", &line, &cap, &text, &len)) {
        ck_assert(read_line(plain, "", &plain_line, &plain_cap));
        ck_assert(read_line(ids_file, plain_line, &ids_line, &ids_cap));
        ck_assert(read_hex(decoded, line, &dec_line, &dec_cap, &want, &want_len));
        int flags = TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL;
        int64_t n = tokenizer_encode(t, text, len, flags, NULL, 0);
        int32_t *ids = malloc(((size_t)n + 1) * sizeof(*ids));
        ck_assert_int_eq(tokenizer_encode(t, text, len, flags, ids, (size_t)n), n);
        if (!same_ids(ids_line, ids, n)) {
            if (n_bad++ < 3) fprintf(stderr, "%s: ids differ: %s", kind, line);
        } else {
            size_t got_len;
            char *got = tokenizer_decode(t, ids, (size_t)n, true, &got_len);
            if (got_len != want_len || memcmp(got, want, want_len) != 0) {
                if (n_bad++ < 3) fprintf(stderr, "%s: text differs: %s", kind, line);
            } else {
                check_stream(t, ids, n, want, want_len);
            }
            free(got);
        }
        free(ids);
        free(text);
        free(want);
        n_strings++;
    }
    ck_assert_int_ge(n_strings, LEAST_STRINGS);
    ck_assert_msg(n_bad == 0, "%s: %d of %d strings differ", kind, n_bad, n_strings);
    (void)fclose(strings);
    (void)fclose(plain);
    (void)fclose(ids_file);
    (void)fclose(decoded);
    free(line);
    free(plain_line);
    free(ids_line);
    free(dec_line);
    tokenizer_destroy(t);
    tokenizer_destroy(base);
}
END_TEST

START_TEST(what_the_base_has_is_not_added)
{
    static const tok_added bad[][2] = {
        {{.id = 900, .content = ""}},
        {{.id = 0, .content = "<new>"}, {.id = 900, .content = "a"}},
        {{.id = 900, .content = "<a>"}, {.id = 900, .content = "<b>"}},
        {{.id = 900, .content = "<a>"}, {.id = 901, .content = "<a>"}}};
    tokenizer *base, *t;
    err e;
    ck_assert_int_eq(tokenizer_load(&base, "fixtures/tokenizers/llama3", NULL), ERR_NONE);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(tokenizer_extend(&t, base, bad[i], i == 0 ? 1 : 2, &e), ERR_INPUT);
    const tok_added renamed = {.id = 0, .content = "<new>", .special = true};
    int32_t ids[32];
    ck_assert_int_eq(tokenizer_extend(&t, base, &renamed, 1, &e), ERR_NONE);
    ck_assert_int_eq(tokenizer_encode(t, "<new>", 5, TOK_PARSE_SPECIAL, ids, 32), 1);
    ck_assert_int_eq(ids[0], 0);
    ck_assert_int_gt(tokenizer_encode(t, "<|bos|>", 7, TOK_PARSE_SPECIAL, ids, 32), 1);
    tokenizer_destroy(t);
    tokenizer_destroy(base);
}
END_TEST

START_TEST(vocabularies_are_the_same_token_by_token)
{
    tokenizer *a, *b, *other, *renamed, *plain;
    err e;
    ck_assert_int_eq(tokenizer_load(&a, "fixtures/tokenizers/llama3", NULL), ERR_NONE);
    ck_assert_int_eq(tokenizer_load(&b, "fixtures/tokenizers/llama3", NULL), ERR_NONE);
    ck_assert_int_eq(tokenizer_load(&other, "fixtures/tokenizers/llama2", NULL), ERR_NONE);
    ck_assert_int_eq(tokenizer_check_same(a, b, &e), ERR_NONE);
    ck_assert_int_eq(tokenizer_check_same(a, other, &e), ERR_INPUT);
    tok_added one = {.id = 0, .content = "<new>", .special = true};
    ck_assert_int_eq(tokenizer_extend(&renamed, a, &one, 1, &e), ERR_NONE);
    ck_assert_int_eq(tokenizer_check_same(a, renamed, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "token 0 is '"));
    ck_assert_ptr_nonnull(strstr(e.msg, "'<new>' in the other"));
    one.special = false;
    ck_assert_int_eq(tokenizer_extend(&plain, b, &one, 1, &e), ERR_NONE);
    ck_assert_int_eq(tokenizer_check_same(renamed, plain, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "token 0 is special in one"));
    tokenizer_destroy(plain);
    tokenizer_destroy(renamed);
    tokenizer_destroy(other);
    tokenizer_destroy(b);
    tokenizer_destroy(a);
}
END_TEST

enum { NESTED = 300, NESTED_LEN = 6 };

/* Every token, asked one by one. */
static int longest_of(const tok_added *list, int n, const char *s)
{
    int best = -1;
    for (int k = 0; k < n; k++) {
        size_t len = strlen(list[k].content);
        if (strncmp(s, list[k].content, len) == 0 &&
            (best < 0 || len > strlen(list[best].content))) {
            best = k;
        }
    }
    return best;
}

static char random_letter(unsigned *seed)
{
    return "<ab"[rand_r(seed) % 3];
}

START_TEST(of_many_that_begin_alike_the_longest_is_found)
{
    static char content[NESTED][NESTED_LEN + 1];
    static tok_added list[NESTED];
    unsigned seed = 7;
    tokenizer *base, *t;
    err e;
    ck_assert_int_eq(tokenizer_load(&base, "fixtures/tokenizers/llama3", NULL), ERR_NONE);
    for (int k = 0; k < NESTED;) {
        int len = 2 + rand_r(&seed) % (NESTED_LEN - 1);
        content[k][0] = '<';
        for (int i = 1; i < len; i++) content[k][i] = random_letter(&seed);
        content[k][len] = 0;
        int twin = longest_of(list, k, content[k]);
        if (tokenizer_find(base, content[k]) >= 0) continue;
        if (twin >= 0 && strcmp(content[twin], content[k]) == 0) continue;
        list[k] = (tok_added){.id = 900 + k, .content = content[k]};
        k++;
    }
    ck_assert_msg(tokenizer_extend(&t, base, list, NESTED, &e) == ERR_NONE, "%s", e.msg);
    for (int round = 0; round < 500; round++) {
        char text[41] = "";
        int32_t want[64], got[64];
        int64_t n = 0;
        for (int i = 0; i < 40; i++) text[i] = random_letter(&seed);
        for (const char *s = text, *from = s;; s++) {
            int k = *s ? longest_of(list, NESTED, s) : -1;
            if (*s && k < 0) continue;
            n += tokenizer_encode(base, from, (size_t)(s - from), 0, want + n, (size_t)(64 - n));
            if (!*s) break;
            want[n++] = list[k].id;
            from = s + strlen(list[k].content);
            s = from - 1;
        }
        ck_assert_int_eq(tokenizer_encode(t, text, 40, 0, got, 64), n);
        ck_assert_msg(memcmp(got, want, (size_t)n * sizeof(*got)) == 0, "%s", text);
    }
    for (int k = 0; k < NESTED; k++) ck_assert_int_eq(tokenizer_find(t, content[k]), list[k].id);
    tokenizer_destroy(t);
    tokenizer_destroy(base);
}
END_TEST

/* A tokenizer of the fixtures in which `from`, at its first place, has become `to`. */
static err_code load_changed(tokenizer **t, const char *kind, const char *from, const char *to,
                             err *e)
{
    char dir[64], path[128];
    tmpdir_make(dir);
    FILE *in = open_fixture(kind, "tokenizer.json");
    char *text = NULL;
    size_t cap = 0;
    ck_assert(getdelim(&text, &cap, 0, in) > 0);
    (void)fclose(in);
    char *at = strstr(text, from);
    ck_assert_ptr_nonnull(at);
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    FILE *out = fopen(path, "w");
    ck_assert(out && fprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    (void)fclose(out);
    free(text);
    err_code rc = tokenizer_load(t, dir, e);
    tmpdir_remove(dir);
    return rc;
}

/* Hugging Face's ByteLevel adds one unless there is a space already; other white space is none. */
START_TEST(a_prefix_space_comes_before_all_but_a_space)
{
    static const char *const texts[][2] = {
        {"\na b", " \na b"}, {"\tx", " \tx"}, {" x", " x"}, {"x", " x"}};
    tokenizer *plain, *with;
    ck_assert_int_eq(tokenizer_load(&plain, "fixtures/tokenizers/gpt2", NULL), ERR_NONE);
    ck_assert_int_eq(load_changed(&with, "gpt2", "\"add_prefix_space\":false",
                                  "\"add_prefix_space\":true", NULL),
                     ERR_NONE);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        int32_t got[64], want[64];
        int64_t n = tokenizer_encode(with, texts[i][0], strlen(texts[i][0]), 0, got, 64);
        ck_assert_int_eq(tokenizer_encode(plain, texts[i][1], strlen(texts[i][1]), 0, want, 64), n);
        ck_assert(n > 0 && memcmp(got, want, (size_t)n * sizeof(*got)) == 0);
    }
    tokenizer_destroy(plain);
    tokenizer_destroy(with);
}
END_TEST

/* What is made of a prompt's own tokens goes on behind its text: the whole is the decoding of
 * all. */
START_TEST(a_text_that_goes_on_keeps_its_space)
{
    static const char text[] = "it is the first of the many";
    for (int kind = 0; kind < N_KINDS; kind++) {
        char dir[64], got[256], part[DETOK_MAX];
        int32_t ids[64];
        tokenizer *t;
        snprintf(dir, sizeof(dir), "fixtures/tokenizers/%s", kinds[kind]);
        ck_assert_int_eq(tokenizer_load(&t, dir, NULL), ERR_NONE);
        int64_t n = tokenizer_encode(t, text, strlen(text), TOK_ADD_SPECIAL, ids, 64);
        ck_assert(n > 4 && n < 64);
        for (int64_t cut = 0; cut <= n; cut++) {
            size_t len, m;
            char *head = tokenizer_decode(t, ids, (size_t)cut, true, &m);
            memcpy(got, head, m);
            free(head);
            detok d;
            detok_init(&d, t, true);
            detok_go_on(&d, ids, (size_t)cut);
            for (int64_t i = cut; i < n; i++) {
                len = detok_push(&d, ids[i], part, sizeof(part));
                memcpy(got + m, part, len);
                m += len;
            }
            ck_assert_msg(m == strlen(text) && memcmp(got, text, m) == 0, "%s, %d: %.*s",
                          kinds[kind], (int)cut, (int)m, got);
        }
        tokenizer_destroy(t);
    }
}
END_TEST

static bool has_id(const int32_t *ids, int64_t n, int32_t id)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] == id) return true;
    }
    return false;
}

/* Behind the normaliser, too, a special token is one only where all that it came of is the
 * template's: not where a stranger's accent has been composed with the template's letter. */
START_TEST(nobody_forges_a_normalized_special_token)
{
    static const tok_added role = {
        .id = 900, .content = "<r\xC3\xA9>", .special = true, .normalized = true};
    static const char text[] = "<re\xCC\x81> \xE6\x97\xA5<r\xC3\xA9>\xE6\x97\xA5";
    const struct {
        tok_span foreign;
        bool found;
    } cases[] = {
        {{7, 10}, true}, {{0, 10}, true}, {{3, 5}, true}, {{0, 17}, false}, {{10, 17}, true}};
    tokenizer *base, *t;
    int32_t ids[64];
    ck_assert_int_eq(tokenizer_load(&base, "fixtures/tokenizers/qwen2", NULL), ERR_NONE);
    ck_assert_int_eq(tokenizer_extend(&t, base, &role, 1, NULL), ERR_NONE);
    ck_assert_int_eq(tokenizer_find(t, role.content), 900);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tok_guard guard = {.foreign = &cases[i].foreign, .n_foreign = 1};
        int64_t n = tokenizer_encode_guarded(t, text, sizeof(text) - 1, &guard, ids, 64);
        ck_assert(n > 0 && n <= 64);
        ck_assert_msg(has_id(ids, n, 900) == cases[i].found, "case %d", (int)i);
    }
    tok_guard accent = {.foreign = &(tok_span){3, 5}, .n_foreign = 1};
    int64_t n = tokenizer_encode_guarded(t, text, 6, &accent, ids, 64);
    ck_assert(!has_id(ids, n, 900));
    n = tokenizer_encode_guarded(t, text, 6, &(tok_guard){0}, ids, 64);
    ck_assert(n == 1 && ids[0] == 900);
    tokenizer_destroy(t);
    tokenizer_destroy(base);
}
END_TEST

/* Where the spaces end that each of them strips is looked for once: looking each time takes
 * hours. */
START_TEST(a_megabyte_of_spaces_that_tokens_strip_is_no_trouble)
{
    static const tok_added space = {.id = 900, .content = " ", .lstrip = true, .rstrip = true};
    size_t len = 1 << 20;
    char *text = malloc(len);
    memset(text, ' ', len);
    tokenizer *base, *t;
    ck_assert_int_eq(tokenizer_load(&base, "fixtures/tokenizers/qwen2", NULL), ERR_NONE);
    ck_assert_int_eq(tokenizer_extend(&t, base, &space, 1, NULL), ERR_NONE);
    ck_assert_int_eq(tokenizer_encode(t, text, len, 0, NULL, 0), (int64_t)len);
    tokenizer_destroy(t);
    tokenizer_destroy(base);
    free(text);
}
END_TEST

/* A run of bytes that breaks: what was whole is out, the rest is U+FFFD, byte by byte. */
START_TEST(bytes_that_are_no_text)
{
    static const struct {
        const char *bytes, *whole, *streamed;
    } cases[] = {
        {"\xE9l(", "\uFFFD\uFFFD\uFFFD", "\uFFFD\uFFFD\uFFFD"},
        {"A\xE9l", "\uFFFD\uFFFD\uFFFD", "A\uFFFD\uFFFD"},
        {"A\xE6\x97\xA5", "A\u65E5", "A\u65E5"},
        {"\xE6\x97", "\uFFFD\uFFFD", "\uFFFD\uFFFD"},
        {" \xF0\x9F\x98\x80\xF0", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD", "\U0001F600\uFFFD"}};
    tokenizer *t;
    ck_assert_int_eq(tokenizer_load(&t, "fixtures/tokenizers/llama2", NULL), ERR_NONE);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int32_t ids[16];
        char name[8], got[128];
        size_t n = strlen(cases[i].bytes), m = 0, len;
        detok d;
        detok_init(&d, t, true);
        for (size_t k = 0; k < n; k++) {
            snprintf(name, sizeof(name), "<0x%02X>", (unsigned char)cases[i].bytes[k]);
            ids[k] = tokenizer_find(t, name);
            m += detok_push(&d, ids[k], got + m, sizeof(got) - m);
        }
        m += detok_flush(&d, got + m, sizeof(got) - m);
        got[m] = 0;
        ck_assert_str_eq(got, cases[i].streamed);
        char *whole = tokenizer_decode(t, ids, n, true, &len);
        ck_assert_str_eq(whole, cases[i].whole);
        free(whole);
    }
    tokenizer_destroy(t);
}
END_TEST

START_TEST(special_tokens_are_parsed_only_when_asked)
{
    tokenizer *t;
    ck_assert_int_eq(tokenizer_load(&t, "fixtures/tokenizers/llama3", NULL), ERR_NONE);
    int32_t ids[64], special = tokenizer_find(t, "<|eot_id|>");
    ck_assert_int_ge(special, 0);
    ck_assert(tokenizer_is_special(t, special));
    ck_assert_int_eq(tokenizer_encode(t, "<|eot_id|>", 10, TOK_PARSE_SPECIAL, ids, 64), 1);
    ck_assert_int_eq(ids[0], special);
    int64_t n = tokenizer_encode(t, "<|eot_id|>", 10, 0, ids, 64);
    ck_assert_int_gt(n, 1);
    for (int64_t i = 0; i < n; i++) ck_assert_int_ne(ids[i], special);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(a_megabyte_of_one_letter_is_no_trouble)
{
    tokenizer *t;
    size_t len = 1 << 20;
    char *text = malloc(len);
    memset(text, 'a', len);
    for (int i = 0; i < N_KINDS; i++) {
        char dir[128];
        snprintf(dir, sizeof(dir), "fixtures/tokenizers/%s", kinds[i]);
        ck_assert_int_eq(tokenizer_load(&t, dir, NULL), ERR_NONE);
        int64_t n = tokenizer_encode(t, text, len, 0, NULL, 0);
        ck_assert(n > 0 && n < (int64_t)len);
        tokenizer_destroy(t);
    }
    free(text);
}
END_TEST

/* With each of them asked at each byte this takes minutes. */
START_TEST(a_megabyte_that_thousands_of_added_tokens_begin_like_is_no_trouble)
{
    enum { N = 4096 };
    static char content[N][16];
    static tok_added list[N];
    tokenizer *base, *t;
    size_t len = 1 << 20;
    char *text = malloc(len);
    memset(text, '<', len);
    for (int k = 0; k < N; k++) {
        snprintf(content[k], sizeof(content[k]), "<x%d", k);
        list[k] = (tok_added){.id = 900 + k, .content = content[k]};
    }
    ck_assert_int_eq(tokenizer_load(&base, "fixtures/tokenizers/llama3", NULL), ERR_NONE);
    ck_assert_int_eq(tokenizer_extend(&t, base, list, N, NULL), ERR_NONE);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(tokenizer_encode(t, text, len, 0, NULL, 0),
                         tokenizer_encode(base, text, len, 0, NULL, 0));
    tokenizer_destroy(t);
    tokenizer_destroy(base);
    free(text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, ids_and_texts_are_those_of_hugging_face, 0, 2 * N_KINDS);
    tcase_add_test(tc, what_the_base_has_is_not_added);
    tcase_add_test(tc, vocabularies_are_the_same_token_by_token);
    tcase_add_test(tc, of_many_that_begin_alike_the_longest_is_found);
    tcase_add_test(tc, a_prefix_space_comes_before_all_but_a_space);
    tcase_add_test(tc, a_text_that_goes_on_keeps_its_space);
    tcase_add_test(tc, nobody_forges_a_normalized_special_token);
    tcase_add_test(tc, a_megabyte_of_spaces_that_tokens_strip_is_no_trouble);
    tcase_add_test(tc, bytes_that_are_no_text);
    tcase_add_test(tc, special_tokens_are_parsed_only_when_asked);
    tcase_add_test(tc, a_megabyte_of_one_letter_is_no_trouble);
    tcase_add_test(tc, a_megabyte_that_thousands_of_added_tokens_begin_like_is_no_trouble);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
