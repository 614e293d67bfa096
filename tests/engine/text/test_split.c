/* test_split.c -- texts are cut where Hugging Face's tokenizers cuts them, on 1,000 strings with 32
 * pre-tokenisers (tests/tools/make_split_goldens.py); patterns and texts that are hostile cost what
 * they may and no more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_inside.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { CASES_MAX = 64, TEXT_MAX = 4096, LEAST_STRINGS = 1000 };

/* ---- goldens -------------------------------------------------------------------------------- */

typedef struct {
    char name[64];
    splitter split;
    tokenizer *t;
} golden;

static FILE *open_fixture(const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "fixtures/splits/%s", name);
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s", path);
    return f;
}

static char *read_fixture(const char *name)
{
    FILE *f = open_fixture(name);
    char *text = NULL;
    size_t cap = 0;
    ck_assert(getdelim(&text, &cap, 0, f) > 0);
    (void)fclose(f);
    return text;
}

/* A tokenizer.json of these steps. */
static err_code load_steps(tokenizer **t, const char *steps, err *e)
{
    char dir[64], path[128], *model = read_fixture("model.json");
    tmpdir_make(dir);
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    ck_assert(f && fprintf(f,
                           "{\"added_tokens\":[],\"decoder\":{\"type\":\"ByteLevel\"},\"pre_"
                           "tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":%s},\"model\":%s}",
                           steps, model) > 0);
    (void)fclose(f);
    free(model);
    err_code rc = tokenizer_load(t, dir, e);
    tmpdir_remove(dir);
    return rc;
}

static void read_golden(golden *g, const char *line)
{
    cJSON *v = cJSON_Parse(line);
    const cJSON *list = json_get(v, "steps"), *each;
    err e = {.msg = ""};
    ck_assert_ptr_nonnull(v);
    snprintf(g->name, sizeof(g->name), "%s", json_get(v, "name")->valuestring);
    cJSON_ArrayForEach(each, list)
    {
        bool bytes = strcmp(json_get(each, "type")->valuestring, "ByteLevel") == 0;
        err_code rc = bytes ? tokenizer_read_byte_level(&g->split, each, &e)
                            : tokenizer_read_step(&g->split, each, &e);
        ck_assert_msg(rc == ERR_NONE, "%s: %s", g->name, e.msg);
    }
    char *steps = cJSON_PrintUnformatted(list);
    ck_assert_msg(load_steps(&g->t, steps, &e) == ERR_NONE, "%s: %s", g->name, e.msg);
    free(steps);
    cJSON_Delete(v);
}

static int read_goldens(golden *g)
{
    FILE *f = open_fixture("cases.jsonl");
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    while (n < CASES_MAX && getline(&line, &cap, f) > 0) read_golden(&g[n++], line);
    free(line);
    (void)fclose(f);
    return n;
}

static unsigned add_sum(unsigned h, const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)s[i]) * 16777619U;
    return h;
}

static unsigned ended(unsigned h)
{
    return (h ^ h >> 16) & 0xFFFF;
}

/* Of the pieces' bytes, each with a byte behind that no text has. */
static unsigned sum_pieces(const golden *g, const char *s, size_t len)
{
    split_text t;
    unsigned h = 2166136261U;
    ck_assert(splitter_run(&g->split, s, len, &t));
    for (size_t i = 0, end; i < t.n; i = end) {
        end = split_text_piece(&t, i);
        if (t.marks[i] & SPLIT_GONE) continue;
        for (size_t k = i; k < end; k++) {
            char bytes[UTF8_MAX];
            h = add_sum(h, bytes, utf8_encode(t.c[k] & 0xFFFFFF, bytes));
        }
        h = add_sum(h, "\xFF", 1);
    }
    split_text_clear(&t);
    return ended(h);
}

static unsigned sum_ids(const golden *g, const char *s, size_t len)
{
    static int32_t ids[2 * TEXT_MAX];
    unsigned h = 2166136261U;
    int64_t n = tokenizer_encode(g->t, s, len, 0, ids, 2 * TEXT_MAX);
    ck_assert(n >= 0 && n <= 2 * TEXT_MAX);
    for (int64_t i = 0; i < n; i++) {
        const char two[] = {(char)(ids[i] & 0xFF), (char)(ids[i] >> 8)};
        h = add_sum(h, two, 2);
    }
    return ended(h);
}

static size_t read_hex(char *line, char *out)
{
    size_t n = strcspn(line, "\n") / 2;
    ck_assert_uint_lt(n, TEXT_MAX);
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        ck_assert_int_eq(sscanf(line + 2 * i, "%2x", &v), 1);
        out[i] = (char)v;
    }
    return n;
}

/* A line has for each case eight hex digits, or a letter that is none for those of an earlier
 * case. */
static void read_answers(const char *line, int n_cases, unsigned want[CASES_MAX])
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZghijklmnopqrstuvwxyz";
    for (int k = 0; k < n_cases; k++) {
        const char *earlier = *line ? strchr(letters, *line) : NULL;
        if (earlier) {
            ck_assert_int_lt(earlier - letters, k);
            want[k] = want[earlier - letters];
            line++;
        } else {
            ck_assert_uint_ge(strspn(line, "0123456789abcdef"), 8);
            ck_assert_int_eq(sscanf(line, "%8x", &want[k]), 1);
            line += 8;
        }
    }
    ck_assert_str_eq(line, "\n");
}

START_TEST(pieces_and_ids_are_those_of_hugging_face)
{
    static golden g[CASES_MAX];
    static char text[TEXT_MAX];
    int n_cases = read_goldens(g), n_strings = 0, n_bad = 0;
    FILE *strings = open_fixture("strings.hex"), *answers = open_fixture("answers.txt");
    char *line = NULL, *answer = NULL;
    size_t cap = 0, answer_cap = 0;
    ck_assert_int_ge(n_cases, 32);
    while (getline(&line, &cap, strings) > 0) {
        size_t len = read_hex(line, text);
        ck_assert(getline(&answer, &answer_cap, answers) > 0);
        unsigned want[CASES_MAX];
        read_answers(answer, n_cases, want);
        for (int k = 0; k < n_cases; k++) {
            unsigned pieces = sum_pieces(&g[k], text, len), ids = sum_ids(&g[k], text, len);
            if ((pieces << 16 | ids) == want[k]) continue;
            if (n_bad++ < 20)
                fprintf(stderr, "%s: %s of %s", g[k].name,
                        pieces != want[k] >> 16 ? "pieces" : "ids", line);
        }
        n_strings++;
    }
    ck_assert_int_ge(n_strings, LEAST_STRINGS);
    ck_assert_msg(n_bad == 0, "%d of %d differ", n_bad, n_strings * n_cases);
    (void)fclose(strings);
    (void)fclose(answers);
    free(line);
    free(answer);
    for (int k = 0; k < n_cases; k++) {
        splitter_clear(&g[k].split);
        tokenizer_destroy(g[k].t);
    }
}
END_TEST

/* Marks are for texts that take long: asked for from the first step on, they change nothing. */
static void check_marks(const split_regex *r, const split_text *t, size_t from)
{
    split_search free = {0}, marked = {0};
    split_search_text(&free, r, t->c, t->n);
    split_search_text(&marked, r, t->c, t->n);
    split_search_piece(&free, from, t->n);
    split_search_piece(&marked, from, t->n);
    marked.free_steps = 0;
    for (size_t at = from, a[2], b[2];; at = a[1]) {
        bool found = split_search_next(&free, at, &a[0], &a[1]);
        ck_assert_int_eq(split_search_next(&marked, at, &b[0], &b[1]), found);
        if (!found) break;
        ck_assert(a[0] == b[0] && a[1] == b[1] && a[1] > a[0]);
    }
    split_search_clear(&free);
    split_search_clear(&marked);
}

START_TEST(marks_change_nothing)
{
    static golden g[CASES_MAX];
    static char text[TEXT_MAX];
    int n_cases = read_goldens(g);
    FILE *strings = open_fixture("strings.hex");
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, strings) > 0) {
        const splitter none = {.n = 0};
        split_text t;
        ck_assert(splitter_run(&none, text, read_hex(line, text), &t));
        for (int k = 0; k < n_cases && t.n > 1; k++) {
            const split_regex *r = g[k].split.steps[0].regex;
            if (r) check_marks(r, &t, t.n > 5 ? 1 : 0);
        }
        split_text_clear(&t);
    }
    free(line);
    (void)fclose(strings);
    for (int k = 0; k < n_cases; k++) {
        splitter_clear(&g[k].split);
        tokenizer_destroy(g[k].t);
    }
}
END_TEST

/* Where a piece ends a branch fails that goes on where the next one begins. */
START_TEST(pieces_have_marks_of_their_own)
{
    split_search s = {.n = 0};
    split_regex *r;
    uint32_t c[4];
    size_t start, end;
    for (int i = 0; i < 4; i++) c[i] = unicode_with_kind((uint32_t) "abac"[i]);
    ck_assert_int_eq(split_regex_compile(&r, "(?:a|b)*c", NULL), ERR_NONE);
    split_search_text(&s, r, c, 4);
    s.free_steps = 0;
    split_search_piece(&s, 0, 2);
    ck_assert(!split_search_next(&s, 0, &start, &end));
    split_search_piece(&s, 2, 4);
    ck_assert(split_search_next(&s, 2, &start, &end));
    ck_assert(start == 2 && end == 4);
    split_search_clear(&s);
    split_regex_destroy(r);
}
END_TEST

/* ---- time ----------------------------------------------------------------------------------- */

static uint64_t steps_of(const char *pattern, const char *unit, size_t times, const char *tail)
{
    splitter s = {.n = 0};
    split_step step = {.behavior = SPLIT_ISOLATED};
    split_text t;
    err e = {.msg = ""};
    size_t n = strlen(unit), len = n * times + strlen(tail);
    char *text = malloc(len + 1);
    for (size_t i = 0; i < times; i++) memcpy(text + i * n, unit, n);
    strcpy(text + n * times, tail);
    ck_assert_msg(split_regex_compile(&step.regex, pattern, &e) == ERR_NONE, "%s: %s", pattern,
                  e.msg);
    ck_assert(splitter_add(&s, step));
    ck_assert(splitter_run(&s, text, len, &t));
    uint64_t steps = t.steps;
    split_text_clear(&t);
    splitter_clear(&s);
    free(text);
    return steps;
}

/* Backtracking alone takes a square of the length, or worse, for each of these. */
START_TEST(steps_are_linear_in_the_text)
{
    static const struct {
        const char *pattern, *unit, *tail;
        unsigned per_unit;
    } hostile[] = {
        {"\\s+$", " ", "x", 8},
        {"\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", " ", "x", 12},
        {"a*b", "a", "", 8},
        {"x?a++b", "a", "", 12},
        {"a+?b", "a", "", 12},
        {"(?:a+)+b", "a", "", 16},
        {"(?:a|a|aa)+b", "a", "", 40},
        {"(?:a?b?c?d?x|[abcd])+y", "abcd", "", 120},
        {"(?:a*b?)(?:a*b?)(?:a*b?)(?:a*b?)x", "a", "", 40},
        {"[\\p{Lu}\\p{Lo}]*[\\p{Ll}\\p{Lo}]+1", "\xE4\xB8\xAD", "", 16},
        {"(?:.*.*.*=)+z", "a=", "", 60},
        {"(?:a{1,20}){1,20}b", "a", "", 1200},
    };
    enum { N = 50000, FREE_STEPS = 33 * 4 }; /* without marks, for units of at most 4 */
    for (size_t i = 0; i < sizeof(hostile) / sizeof(*hostile); i++) {
        uint64_t got = steps_of(hostile[i].pattern, hostile[i].unit, N, hostile[i].tail);
        ck_assert_msg(got <= (uint64_t)(hostile[i].per_unit + FREE_STEPS) * N,
                      "%s: %llu steps of each", hostile[i].pattern, (unsigned long long)(got / N));
    }
}
END_TEST

/* ---- refusals ------------------------------------------------------------------------------- */

static void check_refused(const char *pattern, err_code want, const char *why)
{
    split_regex *r;
    err e = {.msg = ""};
    err_code rc = split_regex_compile(&r, pattern, &e);
    ck_assert_msg(rc == want && strstr(e.msg, why) && !r, "%.60s: %d %s", pattern, rc, e.msg);
    ck_assert_ptr_nonnull(strstr(e.msg, "Split pattern"));
}

START_TEST(patterns_of_another_kind_are_refused_by_name)
{
    static const struct {
        const char *pattern;
        err_code rc;
        const char *why;
    } bad[] = {
        {"a(?<name>b)", ERR_UNSUPPORTED, "group of a kind"},
        {"a(?<=b*)", ERR_UNSUPPORTED, "look-behind at more"},
        {"a(?<!(b|c)d)", ERR_UNSUPPORTED, "look-behind at more"},
        {"(?<=b)", ERR_UNSUPPORTED, "may find nothing"},
        {"(?i)a", ERR_UNSUPPORTED, "group of a kind"},
        {"(?>a)", ERR_UNSUPPORTED, "group of a kind"},
        {"(a)\\1", ERR_UNSUPPORTED, "escape"},
        {"\\bx", ERR_UNSUPPORTED, "escape"},
        {"x\\", ERR_UNSUPPORTED, "escape"},
        {"\\p{Alphabetic}", ERR_UNSUPPORTED, "general category nor a script"},
        {"\\pL", ERR_INPUT, "\\p without"},
        {"\\p{L", ERR_INPUT, "\\p without"},
        {"[[:alpha:]]", ERR_UNSUPPORTED, "class in a class"},
        {"[a&&b]", ERR_UNSUPPORTED, "class in a class"},
        {"[^a&&[b]]", ERR_UNSUPPORTED, "&& in [^...]"},
        {"[a&&[b]c]", ERR_UNSUPPORTED, "members behind &&"},
        {"[a&&[b]", ERR_INPUT, "class without an end"},
        {"[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a&&[a", ERR_LIMIT,
         "nests classes"},
        {"[]a]", ERR_UNSUPPORTED, "first member"},
        {"[a-c-e]", ERR_UNSUPPORTED, "begins no range"},
        {"[\\d-a]", ERR_UNSUPPORTED, "begins no range"},
        {"[b-a]", ERR_INPUT, "range has no end"},
        {"[a-\\d]", ERR_INPUT, "range has no end"},
        {"[a", ERR_INPUT, "class without an end"},
        {"[", ERR_INPUT, "class without an end"},
        {"(a", ERR_INPUT, "group without an end"},
        {"a)", ERR_INPUT, "without a group"},
        {"*a", ERR_UNSUPPORTED, "repetition of nothing"},
        {"a+*", ERR_UNSUPPORTED, "of a repetition"},
        {"a{2}+", ERR_UNSUPPORTED, "behind a counted"},
        {"a{,2}", ERR_UNSUPPORTED, "of an unknown kind"},
        {"a{3,2}", ERR_UNSUPPORTED, "of an unknown kind"},
        {"a{65}", ERR_LIMIT, "too often"},
        {"a{99999999999}", ERR_LIMIT, "too often"},
        {"(?:ab)++", ERR_UNSUPPORTED, "possessive"},
        {"a*", ERR_UNSUPPORTED, "may find nothing"},
        {"a|", ERR_UNSUPPORTED, "may find nothing"},
        {"(?!a)", ERR_UNSUPPORTED, "may find nothing"},
        {"(?:a*)+b", ERR_UNSUPPORTED, "repeats what may find nothing"},
        {"a(?!b*)", ERR_UNSUPPORTED, "look-ahead"},
        {"a(?=(b))", ERR_UNSUPPORTED, "look-ahead"},
        {"(?i:\xC3\xA9)", ERR_UNSUPPORTED, "beyond ASCII"},
        {"(?i:[a-\xC3\xA9])", ERR_UNSUPPORTED, "beyond ASCII"},
        {"(?i:\\p{Lu})", ERR_UNSUPPORTED, "\\p in (?i"},
        {"(?i:[^a])", ERR_UNSUPPORTED, "[^...] in (?i"},
        {"(?i:miss)", ERR_UNSUPPORTED, "ligature"},
        {"(?:(?:(?:a{64}){64}){64}){64}", ERR_LIMIT, "too large"},
        {"(?:a?b){64}(?:a?b){64}(?:a?b){64}(?:a?b){64}(?:a?b){64}(?:a?b){64}(?:a?b){64}(?:a?b){64}"
         "a?b",
         ERR_LIMIT, "too many branches"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        check_refused(bad[i].pattern, bad[i].rc, bad[i].why);
}
END_TEST

/* `unit` as often as it takes to be `n` of them. */
static void check_long(const char *unit, size_t n, const char *why)
{
    size_t len = strlen(unit);
    char *pattern = calloc(n, len + 1);
    for (size_t i = 0; i < n; i++) memcpy(pattern + i * len, unit, len);
    check_refused(pattern, ERR_LIMIT, why);
    free(pattern);
}

START_TEST(patterns_have_limits)
{
    check_refused("", ERR_LIMIT, "0 bytes, outside of 1..8192");
    check_long("a", SPLIT_PATTERN_MAX + 1, "8193 bytes");
    check_long("(", SPLIT_NESTING_MAX + 1, "too deeply");
    check_long("a", SPLIT_SETS_MAX + 1, "too many classes");
    check_long("(a|", SPLIT_NESTING_MAX + 1, "too deeply");
    check_long("^", SPLIT_NODES_MAX, "too large");
}
END_TEST

static void check_steps(const char *steps, const char *why)
{
    tokenizer *t;
    err e = {.msg = ""};
    err_code rc = load_steps(&t, steps, &e);
    ck_assert_msg(rc == ERR_UNSUPPORTED || rc == ERR_LIMIT, "%s: %d", steps, rc);
    ck_assert_msg(strstr(e.msg, why) != NULL, "%s: %s", steps, e.msg);
}

START_TEST(other_steps_are_refused_by_name)
{
#define BYTES  "{\"type\":\"ByteLevel\",\"use_regex\":false}"
#define DIGITS "{\"type\":\"Digits\"},"
    check_steps("[{\"type\":\"UnicodeScripts\"}," BYTES "]", "'UnicodeScripts' is not");
    check_steps("[" BYTES ",{\"type\":\"Digits\"}]", "behind ByteLevel 'Digits'");
    check_steps("[{\"type\":\"Split\",\"behavior\":\"Isolated\"}," BYTES "]",
                "without one pattern");
    check_steps("[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Any\"}," BYTES
                "]",
                "behavior 'Any'");
    check_steps(
        "[{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Isolated\"}," BYTES "]",
        "outside of 1..8192");
    check_steps("[" DIGITS DIGITS DIGITS DIGITS DIGITS DIGITS DIGITS DIGITS DIGITS DIGITS DIGITS
                    DIGITS DIGITS DIGITS DIGITS DIGITS DIGITS BYTES "]",
                "more than 16 steps");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("split");
    TCase *all = tcase_create("all");
    tcase_add_test(all, pieces_and_ids_are_those_of_hugging_face);
    tcase_add_test(all, marks_change_nothing);
    tcase_add_test(all, pieces_have_marks_of_their_own);
    tcase_add_test(all, steps_are_linear_in_the_text);
    tcase_add_test(all, patterns_of_another_kind_are_refused_by_name);
    tcase_add_test(all, patterns_have_limits);
    tcase_add_test(all, other_steps_are_refused_by_name);
    suite_add_tcase(s, all);
    return run_suite(s);
}
