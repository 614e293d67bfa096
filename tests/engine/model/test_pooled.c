/* test_pooled.c -- what sentence-transformers' files and config.json say of vectors and classes. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <check.h>

#include "engine/model/pooled.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64];

static void put(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    ck_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void setup(void)
{
    char path[128];
    tmpdir_make(dir);
    snprintf(path, sizeof(path), "%s/1_Pooling", dir);
    ck_assert_int_eq(mkdir(path, 0700), 0);
}

static void teardown(void)
{
    tmpdir_remove(dir);
}

#define MODULE(kind) "{\"type\":\"sentence_transformers.models." kind "\",\"path\":\"1_Pooling\"}"

static void modules(const char *more, const char *mode)
{
    char text[512];
    snprintf(text, sizeof(text), "[" MODULE("Transformer") "," MODULE("Pooling") "%s]", more);
    put("modules.json", text);
    put("1_Pooling/config.json", mode);
}

START_TEST(without_files_it_is_the_last_state)
{
    pooled_config pc;
    err e;
    ck_assert_int_eq(pooled_read(&pc, dir, "auto", &e), ERR_NONE);
    ck_assert(pc.kind == POOL_LAST && pc.normalise && pc.max_tokens == 0 && !pc.problem[0]);
    pooled_clear(&pc);
    ck_assert_int_eq(pooled_read(&pc, dir, "mean", &e), ERR_NONE);
    ck_assert(pc.kind == POOL_MEAN && pc.normalise);
    pooled_clear(&pc);
}
END_TEST

START_TEST(files_say_how)
{
    static const struct {
        const char *text;
        pooling_kind kind;
    } modes[] = {
        {"{\"pooling_mode_lasttoken\":true,\"pooling_mode_mean_tokens\":false}", POOL_LAST},
        {"{\"pooling_mode_cls_token\":true}", POOL_FIRST},
        {"{\"pooling_mode_mean_tokens\":true}", POOL_MEAN},
        {"{\"pooling_mode_max_tokens\":true}", POOL_MAX},
        {"{\"pooling_mode_weightedmean_tokens\":true}", POOL_MEAN_LATE},
        {"{\"pooling_mode_mean_sqrt_len_tokens\":true}", POOL_MEAN_ROOT},
        {"{\"pooling_mode\":\"mean\"}", POOL_MEAN},
        {"{\"pooling_mode\":\"lasttoken\"}", POOL_LAST},
    };
    for (size_t i = 0; i < 2 * sizeof(modes) / sizeof(modes[0]); i++) {
        pooled_config pc;
        err e;
        bool unit = i % 2;
        modules(unit ? "," MODULE("Normalize") : "", modes[i / 2].text);
        put("sentence_bert_config.json", "{\"max_seq_length\":77,\"do_lower_case\":false}");
        ck_assert_msg(pooled_read(&pc, dir, "auto", &e) == ERR_NONE, "%s", e.msg);
        ck_assert_msg(pc.kind == modes[i / 2].kind && pc.normalise == unit, "%s",
                      modes[i / 2].text);
        ck_assert_int_eq(pc.max_tokens, 77);
        ck_assert_str_eq(pc.problem, "");
        pooled_clear(&pc);
    }
}
END_TEST

START_TEST(what_is_not_computed_is_named)
{
    static const struct {
        const char *more, *mode, *says;
    } cases[] = {
        {"," MODULE("Dense"), "{\"pooling_mode_mean_tokens\":true}", "'Dense'"},
        {"", "{\"pooling_mode_mean_tokens\":true,\"pooling_mode_max_tokens\":true}", "several"},
        {"", "{}", "no way"},
        {"", "{\"pooling_mode\":\"attention\"}", "no way"},
    };
    pooled_config pc;
    err e;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        modules(cases[i].more, cases[i].mode);
        ck_assert_int_eq(pooled_read(&pc, dir, "auto", &e), ERR_NONE);
        ck_assert_msg(strstr(pc.problem, cases[i].says), "%s", pc.problem);
        pooled_clear(&pc);
    }
    modules("", "{\"pooling_mode_mean_tokens\":true}");
    put("sentence_bert_config.json", "{\"do_lower_case\":true}");
    ck_assert_int_eq(pooled_read(&pc, dir, "auto", &e), ERR_NONE);
    ck_assert(strstr(pc.problem, "do_lower_case"));
    pooled_clear(&pc);
}
END_TEST

START_TEST(nonsense_is_refused)
{
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        {"modules.json", "{}", "must be an array"},
        {"modules.json", "[", "modules.json"},
        {"modules.json", "[{\"type\":\"x.Pooling\",\"path\":\"../etc\"}]",
         "plain name of a folder"},
        {"modules.json", "[{\"type\":\"x.Pooling\",\"path\":\"2_Pooling\"}]", "not there"},
        {"modules.json", "[{\"type\":\"x.Pooling\",\"path\":\"..\"}]", "plain name of a folder"},
        {"1_Pooling/config.json", "{\"pooling_mode_mean_tokens\":1}", "pooling_mode_mean_tokens"},
        {"sentence_bert_config.json", "{\"max_seq_length\":0}", "max_seq_length"},
        {"config.json", "{\"id2label\":{\"0\":\"a\",\"2\":\"b\"}}", "class 1"},
        {"config.json", "{\"id2label\":{\"0\":7}}", "class 0"},
        {"config.json", "{\"problem_type\":\"ranking\"}", "ranking"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        pooled_config pc;
        err e;
        modules("", "{\"pooling_mode_mean_tokens\":true}");
        put("sentence_bert_config.json", "{}");
        put("config.json", "{}");
        put(cases[i].name, cases[i].text);
        ck_assert_msg(pooled_read(&pc, dir, "auto", &e) != ERR_NONE, "%s", cases[i].text);
        ck_assert_msg(strstr(e.msg, cases[i].says), "%s: %s", cases[i].text, e.msg);
    }
}
END_TEST

START_TEST(scores_become_what_the_files_say)
{
    static const struct {
        const char *text;
        int n;
        float first; /* of the scores 1, 0, 0 */
    } cases[] = {
        {"{}", 3, 0.57611688F},
        {"{}", 1, 0.73105858F},
        {"{\"problem_type\":\"multi_label_classification\"}", 3, 0.73105858F},
        {"{\"problem_type\":\"regression\"}", 1, 1},
        {"{\"sentence_transformers\":{\"activation_fn\":\"torch.nn.modules.linear.Identity\"}}", 1,
         1},
        {"{\"problem_type\":\"single_label_classification\"}", 1, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float score[3] = {1, 0, 0};
        pooled_config pc;
        err e;
        put("config.json", cases[i].text);
        ck_assert_int_eq(pooled_read(&pc, dir, "auto", &e), ERR_NONE);
        pooled_scores(&pc, score, cases[i].n);
        ck_assert_msg(fabsf(score[0] - cases[i].first) < 1e-6F, "%s: %g", cases[i].text,
                      (double)score[0]);
        pooled_clear(&pc);
    }
}
END_TEST

START_TEST(classes_have_names)
{
    char room[24];
    pooled_config pc;
    err e;
    put("config.json", "{\"id2label\":{\"1\":\"bad\",\"0\":\"good\"}}");
    ck_assert_int_eq(pooled_read(&pc, dir, "auto", &e), ERR_NONE);
    ck_assert_str_eq(pooled_label(&pc, 0, 2, room), "good");
    ck_assert_str_eq(pooled_label(&pc, 1, 2, room), "bad");
    ck_assert_str_eq(pooled_label(&pc, 1, 3, room), "LABEL_1"); /* an adapter's head */
    pooled_clear(&pc);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pooled");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, without_files_it_is_the_last_state);
    tcase_add_test(tc, files_say_how);
    tcase_add_test(tc, what_is_not_computed_is_named);
    tcase_add_test(tc, nonsense_is_refused);
    tcase_add_test(tc, scores_become_what_the_files_say);
    tcase_add_test(tc, classes_have_names);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
