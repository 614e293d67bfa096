/* extent.h -- how much memory an adapter takes beside its file, and in which
 * form: from its layout alone.
 *
 * validate.c's caller asks before it is published, residency/ before it is loaded, and
 * residency/extras.c makes exactly what is counted here.  `base` is the base's config; where a
 * function says `shape`, it is that with the adapter's vocabulary (extent_shape()).
 *
 * Threads: any thread; pure.
 */
#ifndef ADAPTERS_FORMAT_EXTENT_H
#define ADAPTERS_FORMAT_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/format/layout.h"
#include "engine/backend.h"
#include "engine/model/model.h"

/* A piece of the packed adapter takes a multiple of this. */
enum { EXTENT_ALIGN = 256 };
static inline uint64_t extent_padded(uint64_t bytes)
{
    return (bytes + EXTENT_ALIGN - 1) / EXTENT_ALIGN * EXTENT_ALIGN;
}

/* Bytes of the whole packed adapter in `be`'s memory. */
uint64_t extent_packed_bytes(const adapter_layout *al, const model_config *base, const backend *be);

/* Of it, what is beside A and B of the layers; 0: nothing is. */
uint64_t extent_bytes(const adapter_layout *al, const model_config *base, const backend *be);

/* ---- the parts of extent_bytes(), for who makes them ------------------------------------- */

/* `base` with the adapter's vocabulary: the shape of all its tables. */
model_config extent_shape(const adapter_layout *al, const model_config *base);

/* The one piece that all lie in, but for an own output layer, which is beside it. */
uint64_t extent_slab_bytes(const adapter_layout *al, const model_config *shape, const backend *be);

/* A vector of floats as long as the slot's output, as it lies in the slab. */
uint64_t extent_vector_bytes(const model_config *shape, size_t slot);

/* The head of classes, which is in host memory, as floats. */
uint64_t extent_score_bytes(const adapter_layout *al, const model_config *base);

/* Does the slot get a bias: its own, lora_B's on top of the base's, or the base's times a gain? */
bool extent_biased(const adapter_layout *al, const model_config *base, size_t slot);

/* The type that a slot's A and B are packed beside. */
dtype extent_pack_type(const adapter_layout *al, const model_config *shape, size_t slot);

/* At most so many rows of its own has the slot's table; their tokens in the slab; their type. */
size_t extent_row_count(const adapter_layout *al, const model_config *shape, size_t slot);
uint64_t extent_id_bytes(const adapter_layout *al, const model_config *shape, size_t slot);
dtype extent_row_type(const model_config *shape, size_t slot);

#endif
