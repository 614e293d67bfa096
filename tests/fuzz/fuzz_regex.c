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

/* What is narrowed to a length takes nothing but what the whole takes, of that length. */
static void check_sized(const char *pattern, const char *subject, bool yes)
{
    enum { LEAST = 2, MOST = 5 };
    err e;
    bool found;
    g_auto a;
    g_builder b;
    gb_init(&b);
    int32_t root = gb_rule(&b);
    err_code rc = gb_regex_sized(&b, b.rule[root].start, pattern, strlen(pattern), LEAST, MOST,
                                 false, b.rule[root].end, &e);
    if (rc) gb_clear(&b);
    if (!rc && !gb_finish(&b, root, 0, &a, &e)) {
        int n = 0;
        for (const char *p = subject; *p; p++) n += ((unsigned char)*p & 0xC0) != 0x80;
        bool sized = fuzz_walk_takes(&walk, &a, subject);
        FUZZ_CHECK(!sized || (yes && n >= LEAST && n <= MOST));
        g_auto_clear(&a);
    }
    if (!g_regex_finds(pattern, strlen(pattern), subject, &found, &e)) FUZZ_CHECK(found || !yes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *pattern, *subject;
    bool compiled, in_json;
    fuzz_split(data, size, 0, &pattern, &subject);
    bool yes = takes(pattern, subject, false, &compiled);
    (void)takes(pattern, subject, true, &in_json);
    if (compiled && strlen(subject) < FUZZ_WALK_MAX) check_sized(pattern, subject, yes);
    free(pattern);
    free(subject);
    return 0;
}
