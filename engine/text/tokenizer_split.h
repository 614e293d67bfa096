/* tokenizer_split.h -- pre-tokenisers: where a text is cut before merging.
 *
 * The regular expressions of GPT-2, Llama-3 and Qwen2 as hand-written scanners; they are recognised
 * by their exact pattern text.  Threads: any thread.
 */
#ifndef ENGINE_TEXT_TOKENIZER_SPLIT_H
#define ENGINE_TEXT_TOKENIZER_SPLIT_H

#include <stddef.h>
#include <stdint.h>

typedef enum { SPLIT_NONE, SPLIT_GPT2, SPLIT_LLAMA3, SPLIT_QWEN2 } split_kind;

/* SPLIT_NONE: not one of ours. */
split_kind split_from_regex(const char *pattern);

/* End of the piece that starts at `from`, in code points; from < n. */
size_t split_next(split_kind kind, const uint32_t *c, size_t n, size_t from);

#endif
