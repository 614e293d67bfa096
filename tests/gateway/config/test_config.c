/* test_config.c -- options, their errors, and that conf/lorad.conf is what the program prints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/config/classes.h"
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

/* The options in which they differ, "a.b, c.d"; with a star those that need a restart. */
static const char *differences(const config *runs, const config *wanted)
{
    static char text[4096];
    config_changes list;
    err e;
    size_t n = 0;
    text[0] = 0;
    ck_assert_int_eq(config_compare(runs, wanted, &list, &e), ERR_NONE);
    for (int i = 0; i < list.n; i++) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s%s", n ? ", " : "",
                              list.each[i].name, list.each[i].live ? "" : "*");
    }
    free(list.each);
    return text;
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
    ck_assert_str_eq(differences(&c, &again), "");
}
END_TEST

/* The rows of config.c must keep each section together: config_print() begins a section where the
 * name of a row's section differs from the row before. */
START_TEST(no_section_is_printed_twice)
{
    static char printed[65536];
    config c;
    config_defaults(&c);
    FILE *f = fmemopen(printed, sizeof(printed), "w");
    config_print(&c, f);
    (void)fclose(f);
    int n = 0;
    for (char *at = strstr(printed, "\n["); at; at = strstr(at + 1, "\n["), n++) {
        char heading[CONFIG_NAME_MAX];
        snprintf(heading, sizeof(heading), "%.*s", (int)(strcspn(at + 1, "\n") + 2), at);
        ck_assert_msg(strstr(at + 1, heading) == NULL, "twice:%s", heading);
    }
    ck_assert_int_gt(n, 10);
}
END_TEST

START_TEST(debug_is_printed_where_it_is_set)
{
    static char printed[65536];
    config c, again;
    err e;
    ck_assert_int_eq(read_text(&c, "[debug]\noverlap = no\nloaders = 1\n", &e), ERR_NONE);
    FILE *f = fmemopen(printed, sizeof(printed), "w");
    config_print(&c, f);
    (void)fclose(f);
    ck_assert_ptr_nonnull(strstr(printed, "\n[debug]\n"));
    ck_assert_ptr_nonnull(strstr(printed, "\noverlap = no\n"));
    ck_assert_ptr_null(strstr(printed, "\nloaders = 1\n"));
    ck_assert_int_eq(read_text(&again, printed, &e), ERR_NONE);
    ck_assert(!again.debug.overlap);
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
    {"[server]\nmax_stream = 8\n", "did you mean 'server.max_streams'"},
    {"[server]\nmax_streams = many\n", "server.max_streams"},
    {"[server]\nmax_streams = 3\n", "4 to 4096"},
    {"[server]\nmax_streams = 99999999999999999999\n", "server.max_streams"},
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

/* A file of an earlier version is accepted as it is; the command line has no such history. */
START_TEST(old_names_are_accepted_in_files)
{
    config c;
    err e;
    ck_assert_msg(read_text(&c, "[server]\nthreads = 9\n[engine]\noverlap = no\n", &e) == ERR_NONE,
                  "%s", e.msg);
    ck_assert_int_eq(c.server.max_streams, 9);
    ck_assert(!c.debug.overlap);
    ck_assert_int_eq(read_text(&c, "[server]\nthreads = many\n", &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "server.max_streams"));
    ck_assert_int_eq(config_set(&c, "engine.overlap=no", &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "'engine.overlap' is now 'debug.overlap'"));
}
END_TEST

START_TEST(sources_override_each_other)
{
    config c;
    err e;
    ck_assert_int_eq(read_text(&c, "[server]\nmax_streams = 9\n[engine]\nkv_memory = 2GiB\n", &e),
                     ERR_NONE);
    ck_assert_int_eq(c.server.max_streams, 9);
    ck_assert(c.engine.kv_memory == INT64_C(2) << 30);
    ck_assert_int_eq(setenv("LORAD_SERVER_MAX_STREAMS", "10", 1), 0);
    ck_assert_int_eq(config_read_env(&c, &e), ERR_NONE);
    (void)unsetenv("LORAD_SERVER_MAX_STREAMS");
    ck_assert_int_eq(c.server.max_streams, 10);
    ck_assert_int_eq(config_set(&c, "server.max_streams=11", &e), ERR_NONE);
    ck_assert_int_eq(c.server.max_streams, 11);
    ck_assert_int_eq(config_set(&c, "server.max_streams", &e), ERR_INPUT);
    ck_assert_int_eq(config_set(&c, "nonsense=1", &e), ERR_INPUT);
}
END_TEST

START_TEST(options_must_fit_together)
{
    config c;
    err e;
    config_defaults(&c);
    ck_assert_int_eq(config_check(&c, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "model.path"));
    strcpy(c.model.path, "/m");
    ck_assert_int_eq(config_check(&c, &e), ERR_NONE);
    strcpy(c.model.pooling, "median");
    ck_assert_int_eq(config_check(&c, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "'median' is none of auto, last, cls, mean"));
    strcpy(c.model.pooling, "mean");
    ck_assert_int_eq(config_check(&c, &e), ERR_NONE);
    c.engine.max_rows = 15;
    ck_assert_int_eq(config_check(&c, &e), ERR_INPUT);
    c.engine.max_rows = 64;
    ck_assert_int_eq(config_check(&c, &e), ERR_NONE);
    c.engine.max_seqs = c.engine.max_rows + 1;
    ck_assert_int_eq(config_check(&c, &e), ERR_INPUT);
}
END_TEST

/* ------------------------------------------------------------------------- classes -- */

START_TEST(a_file_without_classes_has_three)
{
    config c;
    err e;
    char tier[CLASS_WORD_MAX + 1];
    ck_assert_msg(read_text(&c, "[server]\nmax_streams = 9\n", &e) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(c.classes.n, 3);
    ck_assert_int_eq(class_of_tier(&c.classes, "fast"), class_of_name(&c.classes, "interactive"));
    ck_assert_int_eq(class_of_tier(&c.classes, "scale"), class_of_name(&c.classes, "standard"));
    ck_assert_int_eq(class_of_tier(&c.classes, "batch"), 2);
    ck_assert_int_eq(class_of_tier(&c.classes, ""), -1);
    ck_assert_int_eq(class_of_tier(&c.classes, "prio"), -1);
    ck_assert_int_eq(class_of_tier(&c.classes, "priority,"), -1);
    ck_assert_int_eq(class_of_name(&c.classes, "flex"), -1);
    class_tier(&c.classes, 0, tier);
    ck_assert_str_eq(tier, "priority");
    ck_assert(c.classes.each[0].ttft_us == 500000 && c.classes.each[0].tpot_us == 50000);
    ck_assert_int_eq(c.classes.each[2].weight_milli, 1000);
}
END_TEST

#define SLO "ttft = 1s\ntpot = 20ms\n"

START_TEST(sections_are_all_classes_in_their_order)
{
    config c;
    err e;
    char tier[CLASS_WORD_MAX + 1];
    ck_assert_msg(read_text(&c,
                            "[class.gold]\nttft = 200ms\ntpot = 20ms\nweight = 2.5\n"
                            "overload = reject\ntiers = vip , priority\n"
                            "[classes]\ndefault = rest\n[class.rest]\n" SLO
                            "[class.n_8-ight]\n" SLO,
                            &e) == ERR_NONE,
                  "%s", e.msg);
    ck_assert_int_eq(c.classes.n, 3);
    const config_class *gold = &c.classes.each[0], *rest = &c.classes.each[1];
    ck_assert_str_eq(gold->name, "gold");
    ck_assert(gold->ttft_us == 200000 && gold->tpot_us == 20000 && gold->weight_milli == 2500);
    ck_assert_str_eq(gold->overload, "reject");
    ck_assert_int_eq(class_of_tier(&c.classes, "priority"), 0);
    ck_assert_str_eq(rest->overload, "queue");
    ck_assert_int_eq(rest->weight_milli, 1000);
    ck_assert_int_eq(class_of_name(&c.classes, "interactive"), -1);
    class_tier(&c.classes, 0, tier);
    ck_assert_str_eq(tier, "vip");
    class_tier(&c.classes, 1, tier);
    ck_assert_str_eq(tier, "rest");
    ck_assert_int_eq(class_of_tier(&c.classes, "n_8-ight"), 2);
}
END_TEST

#define EIGHT                                                                                 \
    "[class.a]\n" SLO "[class.b]\n" SLO "[class.c]\n" SLO "[class.d]\n" SLO "[class.e]\n" SLO \
    "[class.f]\n" SLO "[class.g]\n" SLO "[class.standard]\n" SLO

static const struct {
    const char *text, *says;
} bad_classes[] = {
    {EIGHT "[class.i]\n" SLO, "class.i is one too many: there can be at most 8"},
    {"[class.Gold]\n" SLO, "[a-z][a-z0-9_-]{0,15}"},
    {"[class.]\n" SLO, "[a-z][a-z0-9_-]{0,15}"},
    {"[class.abcdefghijklmnopq]\n" SLO, "class.abcdefghijklmnopq: a class's name must match"},
    {"[class.a]\n" SLO "[class.a]\n" SLO, "line 4: there are two classes 'a'"},
    {"[class.standard]\nttft = 1s\n", "class.standard.tpot is not set"},
    {"[class.standard]\ntpot = 1s\n", "class.standard.ttft is not set"},
    {"[class.a]\nttft = 0\n", "class.a.ttft: '0' is not a time"},
    {"[class.a]\nttft = 0s\n", "class.a.ttft: '0s' is outside 1 to 86400000000 microseconds"},
    {"[class.a]\ntpot = 25h\n", "class.a.tpot"},
    {"[class.a]\nweight = 0\n", "class.a.weight: '0' is outside 0.001 to 1000"},
    {"[class.a]\nweight = 4x\n", "class.a.weight: '4x' is not a number"},
    {"[class.a]\nspeed = 9\n", "unknown option 'class.a.speed'; a class has ttft, tpot, weight"},
    {"[class.standard]\n" SLO "overload = drop\n", "class.standard.overload: 'drop' is neither"},
    {"[class.standard]\n" SLO "tiers = a,Vip\n", "class.standard.tiers: 'Vip' does not match"},
    {"[class.standard]\n" SLO "tiers = auto\n", "class.standard.tiers: 'auto'"},
    {"[class.auto]\n" SLO, "class.auto: 'auto' asks for the default class"},
    {"[class.standard]\n" SLO "tiers = a,b,a\n", "'a' asks for the class 'standard' already"},
    {"[class.standard]\n" SLO "tiers = vip\n[class.b]\n" SLO "tiers = x, vip\n",
     "class.b.tiers: 'vip' asks for the class 'standard' already"},
    {"[class.standard]\n" SLO "tiers = b\n[class.b]\n" SLO,
     "class.standard.tiers: 'b' asks for the class 'b' already"},
    {"[class.standard]\n" SLO "[class.a-b]\n" SLO "[class.a_b]\n" SLO,
     "'a-b' and 'a_b' differ in - and _ alone"},
    {"[class.gold]\n" SLO, "classes.default: there is no class 'standard'"},
    {"[classes]\ndefault = flex\n", "classes.default: there is no class 'flex'"},
    {"[classes]\ngold = ttft:1s tpot:1s weight:1\n", "unknown option 'classes.gold'"},
    {"[classes]\nbatch = ttft:1s tpot:1s weight:1\n[class.batch]\n" SLO,
     "line 3: [class.batch] does not go together with the options of [classes]"},
    {"[class.batch]\n" SLO "[classes]\nbatch = ttft:1s tpot:1s weight:1\n",
     "line 5: classes.batch does not go together with the sections [class.NAME] above: write "
     "[class.batch]"},
    {"[classes]\nbatch = ttft:1s\n", "classes.batch needs ttft, tpot and weight"},
    {"[classes]\nbatch = ttft:1s tpot:x weight:1\n", "class.batch.tpot: 'x'"},
    {"[classes]\nbatch = fast\n", "classes.batch: 'fast' is not key:value"},
    {"[classes]\nbatch = ttft:1s tpot:1s weight:1 overload:\n", "class.batch.overload"},
};

START_TEST(each_mistake_of_classes_is_named)
{
    config c;
    err e;
    ck_assert_msg(read_text(&c, bad_classes[_i].text, &e) == ERR_INPUT, "taken: %s",
                  bad_classes[_i].text);
    ck_assert_msg(strstr(e.msg, bad_classes[_i].says) != NULL, "'%s' does not say '%s'", e.msg,
                  bad_classes[_i].says);
}
END_TEST

/* What lorad init wrote before there were sections still means the same. */
START_TEST(files_of_older_versions_are_read)
{
    config c, now;
    err e;
    ck_assert_msg(
        read_text(&c,
                  "[classes]\ninteractive = ttft:500ms tpot:50ms weight:4\n"
                  "standard = ttft:2s tpot:100ms weight:2\nbatch = ttft:60s tpot:1s weight:1\n",
                  &e) == ERR_NONE,
        "%s", e.msg);
    config_defaults(&now);
    ck_assert_str_eq(differences(&c, &now), "");
    ck_assert_int_eq(config_set(&c, "classes.batch=ttft:9s tpot:2s weight:0.5 overload:reject", &e),
                     ERR_NONE);
    ck_assert(c.classes.each[2].ttft_us == 9000000 && c.classes.each[2].weight_milli == 500);
    ck_assert_str_eq(c.classes.each[2].overload, "reject");
    ck_assert_str_eq(c.classes.each[2].tiers, "flex");
    ck_assert_int_eq(config_set(&c, "classes.batch=ttft:9s tpot:2s weight:1", &e), ERR_NONE);
    ck_assert_str_eq(c.classes.each[2].overload, "queue");
}
END_TEST

START_TEST(classes_are_overridden_and_added)
{
    config c, was;
    err e;
    config_defaults(&c);
    strcpy(c.model.path, "/m");
    was = c;
    ck_assert_int_eq(config_set(&c, "class.batch.ttft=9.5s", &e), ERR_NONE);
    ck_assert_int_eq(c.classes.each[2].ttft_us, 9500000);
    ck_assert_int_eq(setenv("LORAD_CLASS_BATCH_OVERLOAD", "reject", 1), 0);
    ck_assert_int_eq(config_read_env(&c, &e), ERR_NONE);
    (void)unsetenv("LORAD_CLASS_BATCH_OVERLOAD");
    ck_assert_str_eq(c.classes.each[2].overload, "reject");
    ck_assert_int_eq(setenv("LORAD_CLASSES_STANDARD", "ttft:3s tpot:1s weight:2", 1), 0);
    ck_assert_int_eq(config_read_env(&c, &e), ERR_NONE);
    (void)unsetenv("LORAD_CLASSES_STANDARD");
    ck_assert_int_eq(c.classes.each[1].ttft_us, 3000000);
    ck_assert_int_eq(config_set(&c, "class.night-run.ttft=1h", &e), ERR_NONE);
    ck_assert_int_eq(config_check(&c, &e), ERR_INPUT); /* it has no tpot yet */
    ck_assert_ptr_nonnull(strstr(e.msg, "class.night-run.tpot"));
    ck_assert_int_eq(setenv("LORAD_CLASS_NIGHT_RUN_TPOT", "2s", 1), 0);
    ck_assert_int_eq(config_read_env(&c, &e), ERR_NONE);
    (void)unsetenv("LORAD_CLASS_NIGHT_RUN_TPOT");
    ck_assert_msg(config_check(&c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(class_of_name(&c.classes, "night-run"), 3);
    ck_assert_str_eq(differences(&was, &c),
                     "class.standard.ttft*, class.standard.tpot*, class.batch.ttft*, "
                     "class.batch.overload*, class.night-run*");
    ck_assert_ptr_nonnull(strstr(differences(&c, &was), "class.night-run*"));
    ck_assert_str_eq(differences(&c, &c), "");
    was.classes.default_name[0] = 'x'; /* one of another set is no change of this one */
    ck_assert_ptr_nonnull(strstr(differences(&was, &c), "classes.default*"));
}
END_TEST

/* The text of an answer to lorad --print-conf, read again, is the same configuration. */
START_TEST(classes_are_printed_as_they_were_read)
{
    static char printed[65536];
    config c, again;
    err e;
    ck_assert_msg(read_text(&c, EIGHT "weight = 0.125\ntiers = x,y\noverload = reject\n", &e) ==
                      ERR_NONE,
                  "%s", e.msg);
    FILE *f = fmemopen(printed, sizeof(printed), "w");
    config_print(&c, f);
    (void)fclose(f);
    ck_assert_msg(read_text(&again, printed, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_str_eq(differences(&c, &again), "");
}
END_TEST

/* Every key of a class is explained with the others. */
START_TEST(the_keys_of_a_class_are_described)
{
    config_option_text o;
    int n = 0, of_class = 0, last = -1, log = -1;
    for (; config_describe(n, &o); n++) {
        ck_assert(o.help[0] && o.initial);
        if (strcmp(o.section, "class.NAME") == 0) of_class++, last = n;
        if (strcmp(o.section, "log") == 0 && log < 0) log = n;
    }
    ck_assert_int_eq(of_class, CONFIG_CLASS_OPTIONS);
    ck_assert_int_eq(log, last + 1);
    ck_assert(!config_describe(-1, &o));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, the_printed_file_is_the_committed_one);
    tcase_add_test(tc, debug_is_printed_where_it_is_set);
    tcase_add_test(tc, no_section_is_printed_twice);
    tcase_add_loop_test(tc, each_mistake_is_named, 0, (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(tc, old_names_are_accepted_in_files);
    tcase_add_test(tc, sources_override_each_other);
    tcase_add_test(tc, options_must_fit_together);
    tcase_add_test(tc, a_file_without_classes_has_three);
    tcase_add_test(tc, sections_are_all_classes_in_their_order);
    tcase_add_loop_test(tc, each_mistake_of_classes_is_named, 0,
                        (int)(sizeof(bad_classes) / sizeof(bad_classes[0])));
    tcase_add_test(tc, files_of_older_versions_are_read);
    tcase_add_test(tc, classes_are_overridden_and_added);
    tcase_add_test(tc, classes_are_printed_as_they_were_read);
    tcase_add_test(tc, the_keys_of_a_class_are_described);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
