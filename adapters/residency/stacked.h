/* stacked.h -- the adapters of a stack as one: their A's below each other, their B's side by side.
 *
 * What PEFT's add_weighted_adapter(combination_type="cat") makes: A of each part is multiplied by
 * its weight and its own scale, in F32, so the whole has the scale 1.  (PEFT goes on to multiply
 * by sqrt(rank) where the first part has use_rslora; that is not done.)
 *
 * Ownership: the caller's.  Threads: any thread; nothing is shared.
 */
#ifndef ADAPTERS_RESIDENCY_STACKED_H
#define ADAPTERS_RESIDENCY_STACKED_H

#include <stdint.h>

#include "adapters/format/layout.h"
#include "engine/base/err.h"
#include "engine/model/model.h"

/* ERR_UNSUPPORTED names what such an adapter has beside A and B: DoRA's magnitudes, biases, whole
 * modules, trained rows. */
err_code stacked_check(const adapter_layout *al, const model_config *base, err *e);

/* The layout of the whole, which has all parts' matrices, in a file of out->file_bytes.  Each part
 * has passed stacked_check().  Zeroes *out first; adapter_layout_clear() frees.  ERR_LIMIT: ranks
 * that add up to more than LORA_RANK_MAX; ERR_NOMEM. */
err_code stacked_layout(const adapter_layout *const *part, int n, const model_config *base,
                        adapter_layout *out, err *e);

/* Adds a part (file: what its layout tells of), `share` times, to `to`, the file of `whole`.
 * row0: [slots] rows of each slot that earlier parts have taken; grows by this part's.
 * False: a tensor ends beyond `bytes`. */
bool stacked_add(const adapter_layout *whole, uint8_t *to, const adapter_layout *part,
                 const uint8_t *file, uint64_t bytes, float share, int *row0,
                 const model_config *base);

#endif
