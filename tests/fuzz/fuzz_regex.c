/* fuzz_regex.c -- the regular expressions of structured answers: "pattern NUL text", as a text and
 * inside a JSON string.  What they mean is differ.py's to say. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_walk.h"

static g_walk walk;

static bool takes(const char *pattern, const char *subject, bool json, bool *compiled)
{
    g_auto a;
    err e = {.msg = ""};
    *compiled = fuzz_walk_regex(&a, pattern, json, &e) == ERR_NONE;
    FUZZ_CHECK(*compiled || e.msg[0]);
    if (!*compiled) return false;
    bool yes = fuzz_walk_takes(&walk, &a, subject);
    g_auto_clear(&a);
    return yes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *pattern, *subject;
    int64_t least = 0, most = 0;
    bool compiled, in_json;
    err e;
    fuzz_split(data, size, 0, &pattern, &subject);
    bool yes = takes(pattern, subject, false, &compiled);
    (void)takes(pattern, subject, true, &in_json);
    if (compiled) {
        FUZZ_CHECK(!g_regex_lengths(pattern, strlen(pattern), &least, &most, &e));
        FUZZ_CHECK(least >= 0 && (most < 0 || most >= least));
        size_t n = strlen(subject);
        if (yes && n < FUZZ_WALK_MAX)
            FUZZ_CHECK((int64_t)n >= least && (most < 0 || n <= 4 * (size_t)most));
    }
    free(pattern);
    free(subject);
    return 0;
}
