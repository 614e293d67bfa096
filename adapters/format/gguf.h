/* gguf.h -- a LoRA adapter in llama.cpp's file format, rewritten as what PEFT would have saved.
 *
 * Done once, on arrival: what is stored, digested and loaded is the same two files as for any other
 * adapter, and they pass the same validation.  What llama.cpp's converter does to the matrices is
 * undone (q and k of a Llama have their rows in another order there).
 *
 * The file comes from a stranger: engine/files/gguf.h checks it, and no more is written than the
 * file holds.
 *
 * Source: llama.cpp's reader of adapters for the scale.
 *
 * Threads: any thread; no state.
 */
#ifndef ADAPTERS_FORMAT_GGUF_H
#define ADAPTERS_FORMAT_GGUF_H

#include <stdint.h>

#include "engine/base/err.h"
#include "engine/model/model.h"

/* Reads `fd` (a regular file of `bytes`) and writes the two files to the open, empty files
 * config_fd and weights_fd.  Neither is synced.  ERR_CORRUPT: no well-formed GGUF;
 * ERR_INPUT, ERR_UNSUPPORTED: no adapter for this base, or of a kind that is not read;
 * ERR_LIMIT; ERR_IO, ERR_NOMEM. */
err_code gguf_convert(int fd, uint64_t bytes, const model_config *base, int config_fd,
                      int weights_fd, err *e);

#endif
