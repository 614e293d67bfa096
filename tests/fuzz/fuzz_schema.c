/* fuzz_schema.c -- JSON schemas of structured answers: "schema NUL text", and the automaton takes
 * the text.  What a text must look like to be taken is held by
 * tests/engine/grammar/test_grammar.c; here: it is JSON. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_walk.h"

static g_walk walk;

static void compile(const cJSON *schema, const char *subject)
{
    g_auto a;
    err e = {.msg = ""};
    err_code rc = grammar_build_schema(&a, schema, NULL, &e);
    FUZZ_CHECK(rc != ERR_INTERNAL && (rc == ERR_NONE || e.msg[0]));
    if (rc) return;
    size_t n = strlen(subject);
    if (fuzz_walk_takes(&walk, &a, subject) && n < FUZZ_WALK_MAX)
        FUZZ_CHECK(json_check(subject, n, &json_limits_request, &e) == ERR_NONE);
    g_auto_clear(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text, *subject;
    cJSON *schema;
    err e;
    fuzz_split(data, size, 0, &text, &subject);
    if (!json_parse(text, strlen(text), &json_limits_request, &schema, &e))
        compile(schema, subject);
    cJSON_Delete(schema);
    free(text);
    free(subject);
    return 0;
}
