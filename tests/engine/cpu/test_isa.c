/* test_isa.c -- which instruction set is taken: the best that is built and supported, or the one
 * that is named, or an error that says why not. */
#include <stdio.h>
#include <string.h>

#include <check.h>

#include "engine/cpu/cpu.h"
#include "tests/run_suite.h"

START_TEST(a_named_set_is_taken_or_refused_with_the_reason)
{
    cpu_isa named = _i, taken = ISA_PORTABLE;
    const char *name = cpu_isa_name(named);
    char built[BACKEND_CPU_ISAS], wanted[96];
    backend_cpu_isas(built, sizeof(built));
    err e = {0};
    err_code code = cpu_isa_parse(name, &taken, &e);
    if (cpu_isa_runs(named)) {
        ck_assert_int_eq(code, ERR_NONE);
        ck_assert_int_eq(taken, named);
        return;
    }
    ck_assert_int_eq(code, ERR_UNSUPPORTED);
    if (!cpu_isa_built(named))
        snprintf(wanted, sizeof(wanted), "built without %s kernels; it has %s.", name, built);
    else
        snprintf(wanted, sizeof(wanted), "processor does not support %s;", name);
    ck_assert_msg(strstr(e.msg, wanted) && strncmp(e.msg, "engine.isa: ", 12) == 0, "%s", e.msg);
}
END_TEST

START_TEST(the_list_has_what_is_built)
{
    char built[BACKEND_CPU_ISAS], again[BACKEND_CPU_ISAS] = "";
    backend_cpu_isas(built, sizeof(built));
    for (int i = ISA_PORTABLE; i < ISA_COUNT; i++) {
        if (!cpu_isa_built((cpu_isa)i)) continue;
        if (again[0]) strcat(again, ", ");
        strcat(again, cpu_isa_name((cpu_isa)i));
    }
    ck_assert_str_eq(built, again);
    ck_assert(cpu_isa_built(ISA_PORTABLE) && strncmp(built, "portable", 8) == 0);
    char small[4] = "abc";
    backend_cpu_isas(small, sizeof(small));
    ck_assert_str_eq(small, "por");
}
END_TEST

START_TEST(auto_is_the_best_and_other_names_are_refused)
{
    cpu_isa taken = ISA_PORTABLE;
    err e = {0};
    ck_assert_int_eq(cpu_isa_parse("auto", &taken, &e), ERR_NONE);
    ck_assert_int_eq(taken, cpu_isa_detect());
    printf("auto: %s\n", cpu_isa_name(taken)); /* read by tests/aarch64/run.sh */
    for (int i = (int)taken + 1; i < ISA_COUNT; i++) ck_assert(!cpu_isa_runs((cpu_isa)i));
    ck_assert_int_eq(cpu_isa_parse("sse2", &taken, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.msg, "unknown instruction set 'sse2'") != NULL, "%s", e.msg);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("isa");
    TCase *t = tcase_create("isa");
    suite_add_tcase(s, t);
    tcase_add_loop_test(t, a_named_set_is_taken_or_refused_with_the_reason, ISA_PORTABLE,
                        ISA_COUNT);
    tcase_add_test(t, the_list_has_what_is_built);
    tcase_add_test(t, auto_is_the_best_and_other_names_are_refused);
    return run_suite(s);
}
