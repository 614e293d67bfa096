/* documents_inside.h -- what a GGUF says in the form of other documents; private to engine/files/.
 *
 *     gguf_config.c      config.json, generation_config.json
 *     gguf_words.c       tokenizer.json, tokenizer_config.json
 *     gguf_merges.c      merges of a vocabulary, as they are listed or by scores
 */
#ifndef ENGINE_FILES_DOCUMENTS_INSIDE_H
#define ENGINE_FILES_DOCUMENTS_INSIDE_H

#include "engine/base/json.h"
#include "engine/files/gguf.h"
#include "engine/files/gguf_words.h"

/* Each fills an empty object. */
err_code gguf_make_config(const gguf *g, cJSON *out, err *e);
err_code gguf_make_generation(const gguf *g, cJSON *out, err *e);
err_code gguf_make_tokenizer_config(const gguf *g, cJSON *out, err *e);

enum { WORDS_MAX = 1 << 22, WORD_BYTES_MAX = 2048 };

/* The same but for "vocab" and "merges", which go to *words (zeroed before). */
err_code gguf_make_tokenizer(const gguf *g, cJSON *out, gguf_words *words, err *e);

#endif
