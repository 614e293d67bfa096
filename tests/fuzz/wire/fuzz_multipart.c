/* fuzz_multipart.c -- multipart/form-data: "Content-Type NUL body", the same parts in whatever
 * pieces the body comes. */
#include <stdlib.h>
#include <string.h>

#include "gateway/http/multipart.h"
#include "tests/fuzz/fuzz.h"

typedef struct {
    uint32_t sum; /* of all that was told, where one call ends and another begins left out */
    size_t bytes;
    int begun, ended;
} seen;

static void note(seen *s, const void *data, size_t len)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++) s->sum = s->sum * 31 + p[i];
}

static err_code begin(void *arg, const char *name, const char *file, err *e)
{
    seen *s = arg;
    (void)e;
    FUZZ_CHECK(s->begun == s->ended && s->begun < MULTIPART_PARTS_MAX);
    FUZZ_CHECK(strlen(name) <= MULTIPART_NAME_MAX && (!file || strlen(file) <= MULTIPART_NAME_MAX));
    for (const char *p = name; *p; p++) FUZZ_CHECK((unsigned char)*p >= 0x20);
    note(s, name, strlen(name) + 1);
    if (file) note(s, file, strlen(file) + 1);
    s->begun++;
    return ERR_NONE;
}

static err_code data_of(void *arg, const void *data, size_t len, err *e)
{
    seen *s = arg;
    (void)e;
    FUZZ_CHECK(s->begun == s->ended + 1 && len > 0);
    note(s, data, len);
    s->bytes += len;
    return ERR_NONE;
}

static err_code end(void *arg, err *e)
{
    seen *s = arg;
    (void)e;
    FUZZ_CHECK(s->begun == ++s->ended);
    return ERR_NONE;
}

/* In pieces of up to `piece` bytes. */
static err_code feed(const char *type, const uint8_t *body, size_t size, size_t piece, seen *s)
{
    const multipart_sink sink = {.begin = begin, .data = data_of, .end = end, .arg = s};
    multipart m;
    err e = {.msg = ""};
    err_code rc = multipart_begin(&m, type, &sink, &e);
    for (size_t at = 0; at < size && !rc; at += piece)
        rc = multipart_feed(&m, body + at, size - at < piece ? size - at : piece, &e);
    if (!rc) rc = multipart_finish(&m, &e);
    FUZZ_CHECK(rc == ERR_NONE || (rc == ERR_INPUT && e.msg[0]));
    FUZZ_CHECK(rc || s->begun == s->ended);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t head = nul ? (size_t)(nul - data) : size;
    char *type = fuzz_text(data, head);
    const uint8_t *body = nul ? nul + 1 : data + size;
    size_t n = (size_t)(data + size - body);
    seen whole = {0}, cut = {0};
    err_code rc = feed(type, body, n, n + 1, &whole);
    FUZZ_CHECK(feed(type, body, n, 1 + fuzz_hash(data, size) % 7, &cut) == rc);
    FUZZ_CHECK(whole.sum == cut.sum && whole.bytes == cut.bytes && whole.bytes <= n);
    FUZZ_CHECK(whole.begun == cut.begun && whole.ended == cut.ended);
    free(type);
    return 0;
}
