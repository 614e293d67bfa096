/* kinds.h -- other kinds of PEFT, which become LoRA on the way in where their arithmetic is one.
 *
 *   LoHa   (w1_a w1_b) o (w2_a w2_b), elementwise: a product of the rank r * r, whose columns are
 *          those of w1_a times those of w2_a (Hyeon-Woo et al. 2022)
 *   LoKr   W1 (x) W2: the product of both factors' own factors, of the product of their ranks, a
 *          whole factor having its shorter side as rank (Yeh et al. 2024)
 *   VeRA   diag(b) B diag(d) A: both vectors go into the matrices that all layers share (Kopiczko
 *          et al. 2024)
 *   IA3    a gain for each output; of an MLP's inner values too, which are the outputs of up_proj
 *          (Liu et al. 2022)
 *
 * All is computed in F32 and written as the two files that everything else knows.  What would have
 * a rank above the limit is refused: there is no shorter exact product.
 *
 * Threads: any thread; one conversion belongs to one.
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
