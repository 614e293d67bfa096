/* kinds.h -- converts other PEFT adapter types into LoRA, where the result is exactly the same.
 *
 *   LoHa   (w1_a w1_b) o (w2_a w2_b), the elementwise product of two products of rank r.  It has
 *          rank r * r: its columns are those of w1_a times those of w2_a (Hyeon-Woo et al. 2022)
 *   LoKr   W1 (x) W2, a Kronecker product.  Its rank is the product of the factors' ranks; a factor
 *          that is stored as one matrix has its shorter side as rank (Yeh et al. 2024)
 *   VeRA   diag(b) B diag(d) A.  All layers share A and B; each layer's vectors b and d are
 *          multiplied into its own copy (Kopiczko et al. 2024)
 *   IA3    a gain for each output.  Gains of an MLP's inner values become gains of the outputs of
 *          up_proj (Liu et al. 2022)
 *
 * The conversion computes in F32 and writes adapter_config.json and adapter_model.safetensors.  An
 * adapter whose rank would exceed the limit is refused, because no shorter product is exact.
 *
 * Threads: any; one thread at a time for one conversion.
 */
#ifndef ADAPTERS_FORMAT_KINDS_H
#define ADAPTERS_FORMAT_KINDS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/model/model.h"

typedef struct kinds kinds;

/* Looks at an adapter_config.json and the header of its weights, both open files that are borrowed
 * until kinds_close().  *out NULL without an error: it is LoRA, or nothing that is known here.
 *   ERR_INPUT, ERR_CORRUPT, ERR_UNSUPPORTED  what is wrong with it, by name
 *   ERR_LIMIT  the rank, or a file beyond `max_bytes`; rank_max 0: LORA_RANK_MAX */
err_code kinds_open(kinds **out, int config_fd, int weights_fd, const model_config *base,
                    int rank_max, uint64_t max_bytes, err *e);
/* Of the weights to be written, nearly. */
uint64_t kinds_bytes(const kinds *k);
/* Writes both files, which are open and empty.  Needs memory for one module at a time. */
err_code kinds_write(const kinds *k, int config_fd, int weights_fd, err *e);
/* NULL is fine. */
void kinds_close(kinds *k);

#endif
