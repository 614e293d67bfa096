/* documents.h -- the JSON documents of a model: files in its directory, or what a GGUF says.
 *
 * A model's path names a directory as Hugging Face has it, or a GGUF (of several: the first).  A
 * GGUF's keys are given in the form of the documents that the directory would have (config.json,
 * generation_config.json, tokenizer_config.json, tokenizer.json without its vocabulary), so that
 * there is one reader of each, with one set of checks.  A key that changes the arithmetic and is
 * not known here is refused by name.
 *
 * Threads: any thread; no state.
 */
#ifndef ENGINE_FILES_DOCUMENTS_H
#define ENGINE_FILES_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/files/gguf_words.h"

enum { DOCUMENT_PATH_MAX = 4096 };

/* Whether a model's path names a GGUF: by its name. */
bool document_is_gguf(const char *path);

/* dir + "/" + name. */
err_code document_path(char *out, size_t size, const char *dir, const char *name, err *e);

/* The document `name` of the model at `path`: strict JSON, an object; the caller frees.
 * ERR_NOT_FOUND: it has none of this name. */
err_code document_read(const char *path, const char *name, cJSON **out, err *e);

/* tokenizer.json, likewise.  A GGUF's has no "vocab" and "merges": they are in *words, which the
 * caller clears (gguf_words_clear()); words->n is 0 where the document has them. */
err_code document_tokenizer_read(const char *path, cJSON **out, gguf_words *words, err *e);

/* A file's text, malloced, NUL-ended; NULL: there is none, or it is larger than 8 MiB. */
char *document_file_text(const char *file);

#endif
