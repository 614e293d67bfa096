/* fuzz_chunks.c -- a chunked body: the same data, and the same end, in whatever pieces it comes. */
#include "gateway/http/chunks.h"
#include "tests/fuzz/fuzz.h"

typedef struct {
    chunks_state state;
    size_t eaten, n_data;
    uint32_t sum;
} seen;

static seen read_in(const uint8_t *data, size_t size, size_t piece)
{
    chunks c = {0};
    seen s = {.state = CHUNKS_MORE};
    while (s.eaten < size && (s.state == CHUNKS_MORE || s.state == CHUNKS_DATA)) {
        size_t n = size - s.eaten < piece ? size - s.eaten : piece, used = 0;
        s.state = chunks_read(&c, (const char *)data + s.eaten, n, &used);
        FUZZ_CHECK(used <= n && (s.state != CHUNKS_MORE || used == n));
        size_t of_data = s.state == CHUNKS_DATA ? n - used : 0;
        FUZZ_CHECK(s.state != CHUNKS_DATA || c.left > 0);
        if (of_data > c.left) of_data = (size_t)c.left;
        for (size_t i = 0; i < of_data; i++) s.sum = s.sum * 31 + data[s.eaten + used + i];
        s.n_data += of_data;
        if (of_data) chunks_took(&c, of_data);
        s.eaten += used + of_data;
    }
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    seen whole = read_in(data, size, size),
         cut = read_in(data, size, 1 + fuzz_hash(data, size) % 9);
    bool over = whole.state == CHUNKS_END || whole.state == CHUNKS_BROKEN;
    FUZZ_CHECK(over == (cut.state == CHUNKS_END || cut.state == CHUNKS_BROKEN));
    FUZZ_CHECK(!over || whole.state == cut.state);
    FUZZ_CHECK(whole.sum == cut.sum && whole.n_data == cut.n_data);
    FUZZ_CHECK(whole.state != CHUNKS_END || whole.eaten == cut.eaten);
    return 0;
}
