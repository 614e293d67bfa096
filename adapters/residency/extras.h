/* extras.h -- what an adapter brings beside A and B of the layers: DoRA's gains, biases, norms, a
 * head of classes, and what it does to the input table and the output layer.
 *
 * A gain needs the base's weights (be_lora_gain), a bias may be a sum, the input table's A is
 * turned.  Rows of single tokens, and of tokens that the base does not have, are kept alone
 * (lora_rows).  All lie in one piece of backend memory of their own; a whole output layer, and rows
 * of one, are weights of their own.
 *
 * Ownership: extras_clear() frees.  Threads: a loader thread.
 */
#ifndef ADAPTERS_RESIDENCY_EXTRAS_H
#define ADAPTERS_RESIDENCY_EXTRAS_H

#include <stddef.h>
#include <stdint.h>

#include "adapters/format/layout.h"
#include "adapters/residency/pace.h"
#include "engine/backend.h"
#include "engine/model/model.h"
#include "engine/sample/pooling.h"

typedef struct adapter_extras {
    void *slab; /* NULL: there are none */
    weight *own_head, *head_rows;
    int32_t *head_id, *embed_id; /* of single rows; the view's */
    lora_head *head;             /* for the view; NULL: the base's */
    lora_embed *embed;           /* likewise */
    const float **norm;          /* likewise */
    pooling_head *score_head;    /* likewise, and what it points to; host memory */
} adapter_extras;

/* `file`: the whole weights' file in memory, checked; `mat`: as adapter_load's, gets gain and
 * bias.  `base` NULL: ERR_UNSUPPORTED when weights of the base are needed.  Tables go up in pieces,
 * at the pace of `speed` (NULL: at once); `hint`: nobody waits.  Zeroes *out first. */
err_code extras_make(adapter_extras *out, const adapter_layout *al, const model_config *config,
                     const model *base, backend *be, const uint8_t *file, lora_mat *mat,
                     pace *speed, bool hint, err *e);
void extras_clear(adapter_extras *ex, backend *be);

#endif
