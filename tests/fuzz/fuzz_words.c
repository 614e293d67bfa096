/* fuzz_words.c -- the tokens that an adapter adds: "j" tokenizer.json, "c" tokenizer_config.json,
 * "a" added_tokens.json, "w" the line of JSON that is kept of them; then its text. */
#include <stdlib.h>
#include <string.h>

#include "adapters/format/words.h"
#include "tests/fuzz/fuzz.h"

static const char base_tokenizer[] = "{\"added_tokens\":[{\"id\":5,\"content\":\"<s>\",\"special\":"
                                     "true},{\"id\":6,\"content\":\"</s>\","
                                     "\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{"
                                     "\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                                     "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"
                                     "\"BPE\",\"unk_token\":\"!\",\"vocab\":{\"!\":0,\"a\":1,"
                                     "\"b\":2,\"ab\":3,\"\\u0120\":4},\"merges\":[\"a b\"]}}";

static void serve(const tokenizer *base, const words *w)
{
    static const char text[] = "ab <call>x</s> <call><call>";
    tokenizer *t;
    int32_t ids[64];
    err e;
    for (int i = 0; i < w->n_token; i++)
        FUZZ_CHECK(w->token[i].id >= 0 && w->token[i].id < w->n_vocab);
    FUZZ_CHECK(w->eos < w->n_vocab);
    if (tokenizer_extend(&t, base, w->token, w->n_token, &e)) return;
    int64_t n = tokenizer_encode(t, text, sizeof(text) - 1, TOK_PARSE_SPECIAL, ids, 64);
    FUZZ_CHECK(n >= 0);
    for (int64_t i = 0; i < n && i < 64; i++)
        FUZZ_CHECK(ids[i] >= 0 && ids[i] < tokenizer_vocab(t));
    tokenizer_destroy(t);
}

static void parse(const tokenizer *base, const char *text)
{
    words w;
    err e = {.msg = ""};
    if (!words_parse(text, &w, &e))
        serve(base, &w);
    else
        FUZZ_CHECK(e.msg[0]);
    words_clear(&w);
}

/* An adapter with 16 rows more than the base's table. */
static void read_folder(const tokenizer *base)
{
    peft_layer layers[64] = {0};
    adapter_pair pairs[64] = {0};
    const adapter_layout al = {
        .n_vocab = fuzz_base.n_vocab + 16,
        .pair = pairs,
        .peft = {.n_layer = fuzz_base.n_layer, .layer = layers, .n_vocab = fuzz_base.n_vocab + 16}};
    char *text = NULL;
    err e = {.msg = ""};
    FUZZ_CHECK(peft_expert_slots(fuzz_base.n_layer) <= 64);
    pairs[peft_embed_slot(fuzz_base.n_layer)].more.present = true;
    err_code rc = words_read(fuzz_dir(), &al, &fuzz_base, base, &text, &e);
    FUZZ_CHECK(rc != ERR_INTERNAL && rc != ERR_NOMEM && (rc == ERR_NONE || e.msg[0]));
    if (text) parse(base, text);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "added_tokens.json"};
    static tokenizer *base;
    err e;
    if (!base) {
        fuzz_put(names[0], base_tokenizer, sizeof(base_tokenizer) - 1);
        if (tokenizer_load(&base, fuzz_dir_path(), &e)) fuzz_fail(e.msg, __FILE__, __LINE__);
        fuzz_put(names[0], NULL, 0);
    }
    if (size < 1) return 0;
    if (data[0] == 'w') {
        char *text = fuzz_text(data + 1, size - 1);
        parse(base, text);
        free(text);
        return 0;
    }
    const char *name = names[data[0] == 'j' ? 0 : data[0] == 'c' ? 1 : 2];
    fuzz_put(name, data + 1, size - 1);
    read_folder(base);
    fuzz_put(name, NULL, 0);
    return 0;
}
