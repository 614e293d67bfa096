/* documents_inside.h -- what a GGUF says in the form of other documents; private to engine/files/.
 *
 *     gguf_config.c      config.json, generation_config.json
 *     gguf_words.c       tokenizer.json, tokenizer_config.json
 *     gguf_merges.c      merges of a SentencePiece vocabulary, by its scores
 */
#ifndef ENGINE_FILES_DOCUMENTS_INSIDE_H
#define ENGINE_FILES_DOCUMENTS_INSIDE_H

#include "engine/base/json.h"
#include "engine/files/gguf.h"

/* Each fills an empty object. */
err_code gguf_make_config(const gguf *g, cJSON *out, err *e);
err_code gguf_make_generation(const gguf *g, cJSON *out, err *e);
err_code gguf_make_tokenizer(const gguf *g, cJSON *out, err *e);
err_code gguf_make_tokenizer_config(const gguf *g, cJSON *out, err *e);

/* Types of tokens, as llama.cpp counts them. */
enum {
    WORD_NORMAL = 1,
    WORD_UNKNOWN,
    WORD_CONTROL,
    WORD_USER,
    WORD_UNUSED,
    WORD_BYTE,
};

typedef struct gguf_word {
    const char *s; /* `len` bytes of UTF-8, NUL-ended */
    uint32_t len;
    int type;
    float score;
} gguf_word;

/* A SentencePiece model merges what has the best score.  Into `merges`, an empty array, "left
 * right" in the order in which Hugging Face's converter ranks all ways to put a word together of
 * two. */
err_code gguf_make_merges(const gguf_word *word, int n, cJSON *merges, err *e);

#endif
