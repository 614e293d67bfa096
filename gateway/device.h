/* device.h -- which backend serves: the one that the config asks for, or the
 * best that this machine has.
 *
 * Threads: start-up.
 */
#ifndef GATEWAY_DEVICE_H
#define GATEWAY_DEVICE_H

#include "engine/backend.h"
#include "gateway/config/config.h"

/* Resolves engine.max_rows and engine.max_seqs = 0 by the device that is asked for. */
void device_sizes(config *c);

/* Opens the backend of engine.backend.  With auto, a machine without a usable device is served by
 * the CPU; a device that is there and fails (no memory left, say) is an error.  `without`: kernels
 * that are not used, besides those of the configuration.  `why` says in one sentence why it is not
 * CUDA. */
err_code device_open(backend **out, const config *c, unsigned without, char *why, size_t size,
                     err *e);

/* The same for `lorad check`: "cuda: ..." or "cpu: ... (why)"; takes little of the device's
 * memory, and nothing stays open.  *rules: what it takes by its codes. */
err_code device_describe(const config *c, char *out, size_t size, weight_rules *rules, err *e);

/* Resolves engine.kv_memory = 0, once the model is loaded; be NULL: what it is on a CPU. */
void device_arena(config *c, backend *be);

#endif
