/* gguf_words.h -- the vocabulary of a GGUF: what its tokenizer.json would have as "vocab" and
 * "merges".  It is no JSON, because a start would wait a second for 262,144 words in that form.
 */
#ifndef ENGINE_FILES_GGUF_WORDS_H
#define ENGINE_FILES_GGUF_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/files/gguf.h"

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

/* Ids of words: `left` and `right` side by side become `whole`. */
typedef struct gguf_merge {
    int left, right, whole;
} gguf_merge;

typedef struct gguf_words {
    gguf_word *word;   /* [n] by id */
    gguf_merge *merge; /* [n_merges], the best first */
    int n, n_merges;
    char *texts; /* of all words */
} gguf_words;

/* Whether an id has a text in the vocabulary. */
static inline bool gguf_word_used(const gguf_word *w)
{
    return w->type != WORD_UNUSED && w->len > 0;
}

void gguf_words_clear(gguf_words *w);

/* A SentencePiece model merges what has the best score.  Fills words->merge in the order in which
 * Hugging Face's converter ranks all ways to put a word together of two. */
err_code gguf_make_merges(gguf_words *words, err *e);
/* The file's own merges, "left right". */
err_code gguf_read_merges(const gguf_value *v, gguf_words *words, err *e);

#endif
