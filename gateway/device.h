/* device.h -- which backend serves: the one that the config asks for, or the
 * best that this machine has.
 *
 * Threads: start-up; device_gpu_present() any.
 */
#ifndef GATEWAY_DEVICE_H
#define GATEWAY_DEVICE_H

#include "engine/backend.h"
#include "gateway/config/config.h"

/* Resolves engine.max_rows and engine.max_seqs = 0 by the device that is asked for. */
void device_sizes(config_engine *c);

/* Opens the backend of engine.backend.  With auto, a machine without a usable device is served by
 * the CPU; a device that is there and fails (no memory left, say) is an error.  `without`: names of
 * kernels that are not used, besides those of the configuration.  `why` says in one sentence why it
 * is not CUDA. */
err_code device_open(backend **out, const config *c, const char *without, char *why, size_t size,
                     err *e);

/* Adds a name to a list such as `without`.  False: the list has it already. */
bool device_leave_out(char without[BE_KERNELS_MAX], const char *name);

/* Whether the machine whose /dev, /proc and /sys lie below `root` (normally "/") has an NVIDIA GPU:
 * by its device files, its driver's folder in /proc, or the PCI bus, which shows a GPU without a
 * driver too and is visible to a unit with PrivateDevices.  Any thread. */
bool device_gpu_present(const char *root);

/* One sentence for operators where the CPU serves for the reason `why` (device_open()) though
 * engine.backend is auto and the machine has an NVIDIA GPU; empty where all is as configured. */
void device_gpu_unused(const config *c, const char *why, char *out, size_t size);

/* The same for `lorad check`: "cuda: ..." or "cpu: ... (why)"; takes little of the device's
 * memory, and nothing stays open.  *rules: what it takes by its codes. */
err_code device_describe(const config *c, char *out, size_t size, weight_rules *rules, err *e);

/* Bytes of the CUDA device that the config names; 0: this binary has no CUDA, or there is none. */
size_t device_memory(const config_engine *c);

/* The compute capabilities that this binary has CUDA kernels for, or that it has none. */
const char *device_cuda_built(void);

/* Resolves engine.kv_memory = 0, once the model is loaded; be NULL: what it is on a CPU. */
void device_arena(config_engine *c, backend *be);

#endif
