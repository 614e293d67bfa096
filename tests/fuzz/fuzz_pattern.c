/* fuzz_pattern.c -- PEFT's regular expressions: "pattern NUL text".  What they
 * mean is differ.py's to say. */
#include <stdlib.h>
#include <string.h>

#include "adapters/format/pattern.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text, *subject;
    pattern *p;
    err e = {.msg = ""};
    uint64_t work = 0, again = 0;
    fuzz_split(data, size, 0, &text, &subject);
    if (strlen(subject) > 64) subject[64] = 0;
    err_code rc = pattern_create(&p, text, &e);
    FUZZ_CHECK((rc == ERR_NONE) == (p != NULL));
    if (p) {
        bool yes = pattern_matches(p, subject, &work);
        FUZZ_CHECK(pattern_matches(p, subject, &again) == yes && again == work);
        uint64_t passes = strstr(text, "(?") ? 140 : 2; /* look-ahead: by how deep repeats nest */
        uint64_t steps = ((uint64_t)strlen(subject) + 2) * ((uint64_t)pattern_size(p) + 1);
        FUZZ_CHECK(work <= steps * passes);
        pattern_destroy(p);
    } else {
        FUZZ_CHECK(e.msg[0]);
    }
    free(text);
    free(subject);
    return 0;
}
