/* fuzz_split.c -- the regular expressions that cut texts: "pattern NUL text".  What is compiled
 * takes few steps, finds something or nothing, and finds the same with marks and without. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/split_regex.h"
#include "tests/fuzz/fuzz.h"

enum { TEXT_MAX = 2048 };

/* Every branch once at each place, with as much of the program behind it as there can be. */
static uint64_t steps_allowed(size_t n)
{
    return (uint64_t)(n + 1) * 64 + (uint64_t)(n + 1) * SPLIT_BRANCHES_MAX * SPLIT_OPS_MAX;
}

static void search(const split_regex *r, const uint32_t *c, size_t n)
{
    split_search without = {0}, with = {0};
    split_search_text(&without, r, c, n);
    split_search_text(&with, r, c, n);
    split_search_piece(&without, 0, n);
    split_search_piece(&with, 0, n);
    with.free_steps = 0;
    for (size_t from = 0, a[2], b[2];; from = a[1]) {
        bool found = split_search_next(&without, from, &a[0], &a[1]);
        FUZZ_CHECK(split_search_next(&with, from, &b[0], &b[1]) == found);
        if (!found) break;
        FUZZ_CHECK(a[0] == b[0] && a[1] == b[1] && a[0] >= from && a[1] > a[0] && a[1] <= n);
    }
    FUZZ_CHECK(without.steps <= steps_allowed(n) && with.steps <= steps_allowed(n));
    split_search_clear(&without);
    split_search_clear(&with);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *pattern, *subject;
    static uint32_t c[TEXT_MAX];
    size_t n = 0, used;
    split_regex *r;
    err e = {.msg = ""};
    fuzz_split(data, size, 0, &pattern, &subject);
    if (split_regex_compile(&r, pattern, &e)) {
        FUZZ_CHECK(e.msg[0] && !r);
    } else {
        size_t len = strlen(subject);
        for (size_t i = 0; i < len && n < TEXT_MAX; i += used)
            c[n++] = unicode_with_kind(utf8_decode(subject + i, len - i, &used));
        search(r, c, n);
        split_regex_destroy(r);
    }
    free(pattern);
    free(subject);
    return 0;
}
