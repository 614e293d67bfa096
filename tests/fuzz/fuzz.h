/* fuzz.h -- what the harnesses of the parsers share.
 *
 * A harness is one file, fuzz_<noun>.c, with LLVMFuzzerTestOneInput() and nothing that keeps state
 * from one input to the next.  libFuzzer and AFL++ drive it (tests/fuzz/run.sh), and so does
 * replay.c, in every preset and with no clang.  An input that must never be is told by FUZZ_CHECK,
 * which aborts: the drivers keep the input then, as they do for what the sanitizers find.
 *
 * Threads: one.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Called once by every driver; in fuzz.c. */
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define FUZZ_CHECK(claim) ((claim) ? (void)0 : fuzz_fail(#claim, __FILE__, __LINE__))
void fuzz_fail(const char *claim, const char *file, int line) __attribute__((noreturn));

/* The bytes with a NUL behind them, in a block of just that size; free(). */
char *fuzz_text(const uint8_t *data, size_t size);

/* Cuts the input at its first `mark`: *head is what stands before it (all, where there is none),
 * *tail the rest.  Both as fuzz_text(). */
void fuzz_split(const uint8_t *data, size_t size, char mark, char **head, char **tail);

/* A small generator for decisions that hang on the input alone. */
uint32_t fuzz_hash(const uint8_t *data, size_t size);

/* A folder of this process in memory, removed at its end; and its path. */
int fuzz_dir(void);
const char *fuzz_dir_path(void);
/* The file `name` of that folder has these bytes from now on; NULL: it is gone. */
void fuzz_put(const char *name, const void *bytes, size_t len);

/* A small Llama with grouped heads: 2 layers, dim 16, 64 tokens. */
extern const model_config fuzz_base;

#endif
