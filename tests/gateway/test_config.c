/* test_config.c -- options, their errors, and that conf/lorad.conf is what the program prints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/config.h"
#include "tests/run_suite.h"

static err_code read_text(config *c, const char *text, err *e)
{
    char path[] = "/tmp/lorad-conf-XXXXXX";
    int fd = mkstemp(path);
    ck_assert(fd >= 0);
    FILE *f = fdopen(fd, "w");
    (void)fputs(text, f);
    (void)fclose(f);
    config_defaults(c);
    err_code rc = config_read_file(c, path, e);
    (void)remove(path);
    return rc;
}

START_TEST(the_printed_file_is_the_committed_one)
{
    static char printed[65536], committed[65536];
    config c;
    config_defaults(&c);
    FILE *f = fmemopen(printed, sizeof(printed), "w");
    config_print(&c, f);
    (void)fclose(f);
    f = fopen("../conf/lorad.conf", "r");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(committed, 1, sizeof(committed) - 1, f);
    (void)fclose(f);
    committed[n] = 0;
    ck_assert_msg(strcmp(printed, committed) == 0,
                  "run: build/release/lorad --print-conf >conf/lorad.conf");
    err e;
    config again;
    ck_assert_msg(read_text(&again, printed, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_mem_eq(&again, &c, sizeof(c));
}
END_TEST

static const struct {
    const char *text, *says;
} bad[] = {
    {"listen = x\n", "first [section]"},
    {"[nothing]\n", "unknown section"},
    {"[server\n", "malformed"},
    {"[server]\nlisten\n", "key = value"},
    {"[server]\nlisten_on = x\n", "unknown option 'server.listen_on'"},
    {"[server]\nthreds = 8\n", "did you mean 'server.threads'"},
    {"[server]\nthreads = many\n", "server.threads"},
    {"[server]\nthreads = 3\n", "4 to 4096"},
    {"[server]\nthreads = 99999999999999999999\n", "server.threads"},
    {"[server]\nbody_timeout = 5\n", "a time such as"},
    {"[server]\nbody_timeout = 5 parsecs\n", "a time such as"},
    {"[server]\nmax_body = 1KB!\n", "a size such as"},
    {"[server]\nmax_body = -5\n", "a size such as"},
    {"[engine]\nprefix_cache = maybe\n", "neither yes nor no"},
    {"[engine]\nkv_memory = 1e300GiB\n", "engine.kv_memory"},
};

START_TEST(each_mistake_is_named)
{
    config c;
    err e;
    ck_assert_msg(read_text(&c, bad[_i].text, &e) == ERR_INPUT, "taken: %s", bad[_i].text);
    ck_assert_msg(strstr(e.msg, bad[_i].says) != NULL, "'%s' does not say '%s'", e.msg,
                  bad[_i].says);
    ck_assert_ptr_nonnull(strstr(e.msg, "line "));
}
END_TEST

START_TEST(sources_override_each_other)
{
    config c;
    err e;
    ck_assert_int_eq(read_text(&c, "[server]\nthreads = 9\n[engine]\nkv_memory = 2GiB\n", &e),
                     ERR_NONE);
    ck_assert_int_eq(c.server_threads, 9);
    ck_assert(c.engine_kv_memory == INT64_C(2) << 30);
    ck_assert_int_eq(setenv("LORAD_SERVER_THREADS", "10", 1), 0);
    ck_assert_int_eq(config_read_env(&c, &e), ERR_NONE);
    (void)unsetenv("LORAD_SERVER_THREADS");
    ck_assert_int_eq(c.server_threads, 10);
    ck_assert_int_eq(config_set(&c, "server.threads=11", &e), ERR_NONE);
    ck_assert_int_eq(c.server_threads, 11);
    ck_assert_int_eq(config_set(&c, "server.threads", &e), ERR_INPUT);
    ck_assert_int_eq(config_set(&c, "nonsense=1", &e), ERR_INPUT);
}
END_TEST

START_TEST(classes_and_relations)
{
    config c;
    err e;
    config_class k;
    ck_assert_int_eq(config_parse_class("ttft:1s tpot:20ms weight:2.5", &k, &e), ERR_NONE);
    ck_assert(k.ttft_us == 1000000 && k.tpot_us == 20000 && k.weight == 2.5 && !k.reject);
    ck_assert_int_eq(config_parse_class("overload:reject ttft:1s tpot:1s weight:1", &k, &e), 0);
    ck_assert(k.reject);
    ck_assert_int_eq(config_parse_class("overload:queue ttft:1s tpot:1s weight:1", &k, &e), 0);
    ck_assert(!k.reject);
    static const char *const wrong[] = {"ttft:1s", "ttft:1s tpot:x weight:1",
                                        "ttft:1s tpot:1s weight:1 overload:drop",
                                        "ttft:1s tpot:1s weight:1 overload:"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ck_assert_int_eq(config_parse_class(wrong[i], &k, &e), ERR_INPUT);
    }
    config_defaults(&c);
    ck_assert_int_eq(config_check(&c, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "model.path"));
    strcpy(c.model_path, "/m");
    ck_assert_int_eq(config_check(&c, &e), ERR_NONE);
    c.engine_max_seqs = c.engine_max_rows + 1;
    ck_assert_int_eq(config_check(&c, &e), ERR_INPUT);
}
END_TEST

/* A row of classes.h is an option with a place of its own, and all that requests may say for it. */
START_TEST(a_class_is_one_row)
{
    config c;
    err e;
    char text[128];
    config_defaults(&c);
    strcpy(c.model_path, "/m");
    for (int i = 0; i < SERVER_CLASSES; i++) {
        config_option_text option;
        int rows = 0;
        for (int k = 0; config_describe(k, &option); k++)
            rows +=
                strcmp(option.section, "classes") == 0 && strcmp(option.key, class_name(i)) == 0;
        ck_assert_int_eq(rows, 1);
        snprintf(text, sizeof(text), "classes.%s=ttft:%ds tpot:1s weight:1", class_name(i), i + 1);
        ck_assert_int_eq(config_set(&c, text, &e), ERR_NONE);
        ck_assert_str_eq(c.classes[i], strchr(text, '=') + 1);
        snprintf(text, sizeof(text), "classes.default=%s", class_name(i));
        ck_assert_int_eq(config_set(&c, text, &e), ERR_NONE);
        ck_assert_msg(config_check(&c, &e) == ERR_NONE, "%s", e.msg);
        ck_assert_int_eq(class_of_name(class_name(i)), i);
        ck_assert_int_eq(class_of_tier(class_name(i)), i);
        ck_assert_int_ge(class_of_tier(class_tier(i)), 0);
        ck_assert_str_eq(class_tier(class_of_tier(class_tier(i))), class_tier(i));
        strcpy(c.classes[i], "ttft:1s");
        ck_assert_int_eq(config_check(&c, &e), ERR_INPUT);
        ck_assert_ptr_nonnull(strstr(e.msg, class_name(i)));
        strcpy(c.classes[i], "ttft:1s tpot:1s weight:1");
    }
    ck_assert_str_eq(class_name(class_of_tier("fast")), "interactive");
    ck_assert_str_eq(class_name(class_of_tier("scale")), "standard");
    ck_assert_int_eq(class_of_tier(""), -1);
    ck_assert_int_eq(class_of_name("flex"), -1);
    ck_assert_int_eq(config_set(&c, "classes.default=flex", &e), ERR_NONE);
    ck_assert_int_eq(config_check(&c, &e), ERR_INPUT);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, the_printed_file_is_the_committed_one);
    tcase_add_loop_test(tc, each_mistake_is_named, 0, (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(tc, sources_override_each_other);
    tcase_add_test(tc, classes_and_relations);
    tcase_add_test(tc, a_class_is_one_row);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
