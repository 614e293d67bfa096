/* fuzz_jinja.c -- chat templates: read, and rendered for one conversation.  What they
 * print is differ.py's to say; here: who wrote what (spans in order, apart, within
 * the text), and the bounds. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/chat/jinja.h"
#include "tests/fuzz/fuzz.h"

static const char variables[] =
    "{\"s\":\"  Hello, "
    "World!\\n\",\"e\":\"\",\"i\":7,\"f\":2.5,\"no\":false,\"nil\":null,\"list\":[3,1,2,1],"
    "\"words\":[\"b\",\"A\",\"c\"],\"map\":{\"b\":1,\"a\":\"x\",\"items\":[1,2]},\"messages\":["
    "{\"role\":\"system\",\"content\":\" Be brief. \"},{\"role\":\"user\",\"content\":\"Hi "
    "<b>&\\u2028\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\","
    "\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"q\":\"\\u00fc\\\"\",\"n\":3}}}]}],\"tools\":[{\"type\":"
    "\"function\","
    "\"function\":{\"name\":\"f\",\"parameters\":{}}}],\"add_generation_prompt\":true,\"bos_"
    "token\":\"<s>\"}";

static int64_t then(void)
{
    return 1721995200;
}

static void render(const jinja *t, const cJSON *vars)
{
    jinja_text out;
    err e = {.msg = ""};
    const cJSON *v;
    jinja_run *r = jinja_begin(t, 4 << 20, then);
    if (!r) abort();
    cJSON_ArrayForEach(v, vars) jinja_set_json(r, v->string, v, true);
    if (!jinja_render(r, &out, &e)) {
        size_t at = 0;
        FUZZ_CHECK(out.text[out.len] == 0);
        for (size_t i = 0; i < out.n_foreign; i++) {
            FUZZ_CHECK(out.foreign[i].from >= at && out.foreign[i].to > out.foreign[i].from);
            at = out.foreign[i].to + 1;
        }
        FUZZ_CHECK(at <= out.len + 1);
    } else {
        FUZZ_CHECK(e.msg[0]);
    }
    jinja_end(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static cJSON *vars;
    err e = {.msg = ""};
    jinja *t;
    if (!vars && json_parse(variables, strlen(variables), &json_limits_trusted, &vars, &e)) abort();
    char *text = fuzz_text(data, size);
    if (!jinja_read(&t, text, size, &e)) {
        render(t, vars);
        jinja_destroy(t);
    } else {
        FUZZ_CHECK(e.msg[0]);
    }
    free(text);
    return 0;
}
