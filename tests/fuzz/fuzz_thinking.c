/* fuzz_thinking.c -- thoughts in what a model wrote (a digit for the style, "m", "o" or "x" for how
 * it starts, then the text): split alike in whatever pieces it comes, and no byte from nowhere. */
#include <stdlib.h>
#include <string.h>

#include "engine/chat/thinking.h"
#include "tests/fuzz/fuzz.h"

static void read_in_pieces(thinking_reader *r, const uint8_t *data, size_t size, size_t piece)
{
    thinking_start start = data[1] == 'o'   ? THINKING_OPENED
                           : data[1] == 'x' ? THINKING_OVER
                                            : THINKING_MAY;
    thinking_reader_init(r, data[0] % THINKING_STYLES, start);
    for (size_t at = 2; at < size; at += piece)
        thinking_reader_push(r, (const char *)data + at, size - at < piece ? size - at : piece);
    thinking_reader_finish(r);
    FUZZ_CHECK(!r->failed && r->thoughts.len + r->text.len <= size - 2);
}

static bool same_bytes(const held_bytes *a, const held_bytes *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->s, b->s, a->len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    thinking_reader whole, cut;
    if (size < 2) return 0;
    read_in_pieces(&whole, data, size, size);
    read_in_pieces(&cut, data, size, 1 + fuzz_hash(data, size) % 5);
    FUZZ_CHECK(same_bytes(&whole.text, &cut.text) && same_bytes(&whole.thoughts, &cut.thoughts));
    thinking_reader_clear(&whole);
    thinking_reader_clear(&cut);
    return 0;
}
