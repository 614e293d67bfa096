/* fuzz_calls.c -- tool calls in what a model wrote (a letter for the family, "o": Hermes's, opened
 * already; then the text): the same calls in whatever pieces it comes. */
#include <stdlib.h>
#include <string.h>

#include "gateway/openai/tools/tool_reader.h"
#include "tests/fuzz/fuzz.h"

static void read_in_pieces(tool_reader *r, const cJSON *tools, const uint8_t *data, size_t size,
                           size_t piece)
{
    static const char letters[] = "hxmpcdl"; /* as the styles stand in their enum */
    const char *at_letter = data[0] ? strchr(letters, data[0]) : NULL;
    tool_style style =
        at_letter ? (tool_style)(TOOLS_HERMES + (at_letter - letters)) : TOOLS_HERMES;
    if (!tool_reader_init(r, style, tools, data[0] % 32)) abort();
    for (size_t at = 1; at < size; at += piece)
        tool_reader_push(r, (const char *)data + at, size - at < piece ? size - at : piece);
    tool_reader_finish(r);
    FUZZ_CHECK(!r->failed && r->n_calls <= TOOL_CALLS_MAX);
    for (int i = 0; i < r->n_calls; i++)
        FUZZ_CHECK(r->call[i].name[0] && r->call[i].at + r->call[i].len <= r->args.len);
}

static bool same_bytes(const held_bytes *a, const held_bytes *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->s, b->s, a->len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static cJSON *tools;
    tool_reader whole, cut;
    if (!tools)
        tools = cJSON_Parse(
            "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]");
    if (size < 1) return 0;
    read_in_pieces(&whole, tools, data, size, size);
    read_in_pieces(&cut, tools, data, size, 1 + fuzz_hash(data, size) % 5);
    FUZZ_CHECK(whole.n_calls == cut.n_calls && same_bytes(&whole.text, &cut.text) &&
               same_bytes(&whole.args, &cut.args));
    tool_reader_clear(&whole);
    tool_reader_clear(&cut);
    return 0;
}
