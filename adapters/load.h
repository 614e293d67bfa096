/* load.h -- brings one adapter from its files into the backend's memory.
 *
 * Two steps, so that the caller can look for room in between: begin() pins the version, reads the small
 * header and knows the packed size; weights() reads everything, compares it with the digest under which
 * it was published, and packs it (be_lora_pack).
 *
 * Ownership: begin() to clear(), whatever happened between; slab, extras and mat may be taken over (set NULL).
 * Threads:   a loader thread; no lock is held.
 */
#ifndef ADAPTERS_LOAD_H
#define ADAPTERS_LOAD_H

#include <stddef.h>
#include <stdint.h>

#include "adapters/extras.h"
#include "adapters/registry.h"
#include "adapters/validate.h"
#include "engine/backend.h"
#include "engine/lora.h"
#include "engine/model.h"

typedef struct adapter_load {
    registry *reg;
    backend *be;
    const model_config *base;
    const model *weights;     /* of the base; NULL: what needs them is refused */
    const adapter_version *v; /* pinned in the registry */
    int dir_fd;
    adapter_layout layout;
    lora_mat *mat; /* [n_layer][PROJ_COUNT] */
    void *slab;    /* from be_alloc() */
    adapter_extras extras;
    uint64_t bytes; /* packed */
    int rank_max;
} adapter_load;

/* Zeroes *ld first, so that clear is always safe.  ERR_NOT_FOUND, ERR_IO, or what validation says. */
err_code adapter_load_begin(adapter_load *ld, registry *reg, backend *be, const model_config *base,
                            const model *weights, uint64_t id, err *e);
/* ERR_CORRUPT when the files are not what was published. */
err_code adapter_load_weights(adapter_load *ld, err *e);
/* Gives back the pin (the last one may delete files: hold no lock). */
void adapter_load_clear(adapter_load *ld);

#endif
