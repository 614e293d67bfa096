/* draft_model.h -- the model that guesses (model.draft): loaded, and compared with the base.
 *
 * Ownership: a loaded model is the caller's.  Threads: the main thread.
 */
#ifndef GATEWAY_START_DRAFT_MODEL_H
#define GATEWAY_START_DRAFT_MODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/backend.h"
#include "engine/base/err.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "gateway/config/config.h"

/* *out is NULL where none is configured, or nothing is to be guessed.  ERR_UNSUPPORTED: not on this
 * backend.  ERR_INPUT: its vocabulary is not `tok`. */
err_code draft_model_load(model **out, const config *c, backend *be, const tokenizer *tok, err *e);

/* The same checks without its weights, for a backend that is the CPU or not; what it is and the
 * most that its KV pages take, as text. */
err_code draft_model_describe(const config *c, const model_config *base, const tokenizer *tok,
                              bool on_cpu, char *out, size_t size, err *e);

#endif
