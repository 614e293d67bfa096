/* fuzz_tokenizer.c -- tokenizer.json: what is taken encodes and decodes without harm. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

static void encode(const tokenizer *t, const char *text, size_t len, int flags)
{
    enum { CAP = 512 };
    static int32_t ids[CAP];
    char out[DETOK_MAX + 1];
    detok d;
    int64_t n = tokenizer_encode(t, text, len, flags, ids, CAP);
    FUZZ_CHECK(n >= 0 && tokenizer_encode(t, text, len, flags, NULL, 0) == n);
    if (n > CAP) n = CAP;
    detok_init(&d, t, false);
    for (int64_t i = 0; i < n; i++) {
        FUZZ_CHECK(ids[i] >= 0 && ids[i] < tokenizer_vocab(t));
        FUZZ_CHECK(detok_push(&d, ids[i], out, sizeof(out)) <= sizeof(out));
    }
    (void)detok_flush(&d, out, sizeof(out));
    size_t n_text = 0;
    char *whole = tokenizer_decode(t, ids, (size_t)n, true, &n_text);
    FUZZ_CHECK(whole && strlen(whole) <= n_text);
    free(whole);
}

static void guarded(const tokenizer *t, const char *text, size_t len)
{
    const tok_span foreign[] = {{1, 4}, {5, len}};
    const tok_guard guard = {.foreign = foreign, .n_foreign = len > 6 ? 2 : 0};
    int32_t ids[512];
    FUZZ_CHECK(tokenizer_encode_guarded(t, text, len, &guard, ids, 512) >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        " ab  abc<x> a<s>b\n12345 don't \xC3\xA9\xE2\x96\x81\xFF \xF0\x9F\x98\x80";
    tokenizer *t;
    err e = {.msg = ""};
    fuzz_put("tokenizer.json", data, size);
    if (tokenizer_load(&t, fuzz_dir_path(), &e)) {
        FUZZ_CHECK(e.msg[0]);
        return 0;
    }
    encode(t, text, sizeof(text) - 1, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL);
    encode(t, (const char *)data, size < 200 ? size : 200, 0);
    guarded(t, text, sizeof(text) - 1);
    tokenizer_destroy(t);
    return 0;
}
