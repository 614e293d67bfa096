/* fuzz_tar.c -- a tar as a stream: the same files in whatever pieces it comes. */
#include <stdlib.h>
#include <string.h>

#include "adapters/format/tar.h"
#include "tests/fuzz/fuzz.h"

typedef struct {
    uint64_t sum, left;
    bool open;
} seen;

static err_code begin(void *self, const char *name, uint64_t bytes, err *e)
{
    seen *s = self;
    (void)e;
    FUZZ_CHECK(!s->open && name[0] && !strchr(name, '/') && strcmp(name, "..") != 0);
    s->open = true;
    s->left = bytes;
    s->sum = s->sum * 31 + fuzz_hash((const uint8_t *)name, strlen(name)) + bytes;
    return ERR_NONE;
}

static err_code take(void *self, const void *bytes, size_t len, err *e)
{
    seen *s = self;
    (void)e;
    FUZZ_CHECK(s->open && len <= s->left);
    s->left -= len;
    for (size_t i = 0; i < len; i++) s->sum = s->sum * 31 + ((const uint8_t *)bytes)[i];
    return ERR_NONE;
}

static err_code end(void *self, err *e)
{
    seen *s = self;
    (void)e;
    FUZZ_CHECK(s->open && s->left == 0);
    s->open = false;
    return ERR_NONE;
}

static err_code feed(const uint8_t *data, size_t size, size_t piece, seen *out)
{
    const tar_limits limits = {.max_bytes = 1 << 20, .max_files = 200};
    const tar_sink sink = {out, begin, take, end};
    err e = {.msg = ""};
    tar_reader *t = tar_create(&limits, &sink);
    if (!t) abort();
    err_code rc = ERR_NONE;
    for (size_t at = 0; at < size && !rc; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        rc = tar_write(t, data + at, n, &e);
    }
    if (!rc) rc = tar_finish(t, &e);
    FUZZ_CHECK(rc == ERR_NONE ? !out->open : e.msg[0] != 0);
    tar_destroy(t);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    seen whole = {0}, cut = {0};
    err_code rc = feed(data, size, size + 1, &whole);
    FUZZ_CHECK(feed(data, size, 1 + fuzz_hash(data, size) % 700, &cut) == rc);
    FUZZ_CHECK(rc || whole.sum == cut.sum);
    return 0;
}
