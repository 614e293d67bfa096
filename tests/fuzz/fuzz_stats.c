/* fuzz_stats.c -- /admin/v1/stats as loratop reads it: two answers, one after the other. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tui/top/topdata.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static topdata t;
    char *text[2];
    fuzz_split(data, size, 0, &text[0], &text[1]);
    if (!topdata_init(&t)) abort();
    for (int i = 0; i < 2; i++) {
        err e = {.msg = ""};
        uint64_t before = t.version;
        err_code rc = topdata_apply_text(&t, text[i], strlen(text[i]), &e);
        FUZZ_CHECK(rc == ERR_NONE ? t.version == before + 1 : e.msg[0] != 0);
        for (int k = 0; k < TABLES; k++) {
            for (size_t r = 0; r < t.table[k].n; r++)
                FUZZ_CHECK(rowset_find(&t.table[k], t.table[k].side[r].id) == (int64_t)r);
        }
    }
    topdata_clear(&t);
    free(text[0]);
    free(text[1]);
    return 0;
}
