/* fuzz_sse.c -- server-sent events: the same events in whatever pieces the stream comes. */
#include "tests/fuzz/fuzz.h"
#include "tui/sse.h"

typedef struct {
    uint32_t sum;
    int n;
} seen;

static bool take(void *arg, const char *data, size_t len)
{
    seen *s = arg;
    FUZZ_CHECK(data[len] == 0);
    s->sum = s->sum * 31 + fuzz_hash((const uint8_t *)data, len);
    s->n++;
    return s->n < 100;
}

/* In pieces of up to `piece` bytes. */
static err_code feed(const uint8_t *data, size_t size, size_t piece, seen *out)
{
    sse_parser p = {.on_event = take, .arg = out};
    err e;
    err_code rc = ERR_NONE;
    for (size_t at = 0; at < size && !rc; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        rc = sse_feed(&p, (const char *)data + at, n, &e);
    }
    FUZZ_CHECK(rc == ERR_NONE || rc == ERR_CANCELLED);
    sse_clear(&p);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    seen whole = {0}, cut = {0};
    err_code rc = feed(data, size, size + 1, &whole);
    FUZZ_CHECK(feed(data, size, 1 + fuzz_hash(data, size) % 61, &cut) == rc);
    FUZZ_CHECK(whole.n == cut.n && whole.sum == cut.sum);
    return 0;
}
