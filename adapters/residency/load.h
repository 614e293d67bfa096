/* load.h -- brings one adapter up: from its files into a copy, from the copy
 * into chunks of the device.
 *
 * Steps, so that the caller can look for room in between and keep the copy: begin() pins the
 * version, and reads the small header unless there is a copy already; it knows how many chunks are
 * needed.  read() reads everything and compares it with the digest under which it was published.
 * pack() fills the chunks (be_lora_pack, or be_upload from a copy that is packed); what does not
 * fit into one goes on in the next (struct lora_split).
 *
 * Ownership: begin() to clear(), whatever happened between; copy, extras and mat may
 *            be taken over (set NULL).
 * Threads:   a loader thread; no lock is held.
 */
#ifndef ADAPTERS_RESIDENCY_LOAD_H
#define ADAPTERS_RESIDENCY_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/format/validate.h"
#include "adapters/residency/extras.h"
#include "adapters/residency/pace.h"
#include "adapters/store/copy.h"
#include "adapters/store/registry.h"
#include "adapters/store/stacks.h"
#include "engine/backend.h"
#include "engine/lora.h"
#include "engine/model/model.h"

/* What is the same for all loads. */
typedef struct load_env {
    registry *reg;
    stacks *stacks; /* NULL: there are none */
    backend *be;
    const model_config *base;
    const model *weights; /* of the base; NULL: what needs them is refused */
    size_t chunk_bytes;
    bool int8;  /* copies in int8 */
    bool keep;  /* copies are kept: pack() makes them such as go up again by a plain copy */
    pace *pace; /* what pack() moves, piece by piece; NULL: no bound */
} load_env;

typedef struct adapter_load {
    const load_env *env;
    const adapter_version *v;  /* pinned in the registry; NULL: of a stack */
    const stack *stack;        /* held; NULL: of a version */
    struct adapter_load *part; /* [stack->n], where there is no copy */
    int dir_fd;
    adapter_layout layout;
    /* The weights' file, checked, of which read() makes the copy; -1: it reads and checks. */
    int given_fd;
    uint64_t n_given;
    adapter_copy *copy;
    bool own_copy; /* made by read(): clear() frees it */
    /* [n_layer][PROJ_COUNT], then experts' (peft_mat()); one block with all it points to beside
     * the chunks */
    lora_mat *mat;
    adapter_extras extras;
    int n_chunks;
    int rank_max, n_vocab; /* n_vocab: 0 where it is the base's */
    int n_expert;          /* whose matrices mat has; 0: none's */
    bool hint;             /* nobody waits for it: pack() leaves others room */
} adapter_load;

/* Zeroes *ld first, so that clear is always safe.  copy: borrowed, or NULL.  ERR_NOT_FOUND,
 * ERR_IO, or what validation says. */
err_code adapter_load_begin(adapter_load *ld, const load_env *env, uint64_t id, adapter_copy *copy,
                            err *e);
/* Makes the copy; nothing to do where there is one.  ERR_DAMAGED: the files
 * are not what was published. */
err_code adapter_load_read(adapter_load *ld, err *e);
/* chunk: [n_chunks] addresses. */
err_code adapter_load_pack(adapter_load *ld, void *const *chunk, err *e);
/* Of its content, once it has begun. */
const uint8_t *adapter_load_digest(const adapter_load *ld);
/* Gives back the pin (the last one may delete files: hold no lock). */
void adapter_load_clear(adapter_load *ld);

/* The least that a chunk must have so that any adapter of this base can be cut into chunks. */
size_t adapter_chunk_least(const model_config *base, const backend *be);

#endif
