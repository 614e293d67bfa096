/* fuzz_cfg.c -- context-free grammars, GBNF and Lark: "grammar NUL text".  What they mean is
 * tests/tools/make_grammar_golden.py's to say. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_walk.h"

static g_walk walk;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *source, *subject;
    g_auto a;
    err e = {.msg = ""};
    fuzz_split(data, size, 0, &source, &subject);
    err_code rc = grammar_build_cfg(&a, source, &e);
    FUZZ_CHECK(rc == ERR_NONE || e.msg[0]);
    FUZZ_CHECK(rc == ERR_NONE || rc == ERR_INPUT || rc == ERR_UNSUPPORTED || rc == ERR_LIMIT);
    if (!rc) {
        FUZZ_CHECK(a.need[a.rule[a.root].start] <= GRAMMAR_DEPTH_MAX);
        (void)fuzz_walk_takes(&walk, &a, subject);
        g_auto_clear(&a);
    }
    free(source);
    free(subject);
    return 0;
}
