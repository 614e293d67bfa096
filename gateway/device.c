/* device.c -- opens the backend: CUDA if there is a device, else the CPU; and the sizes that
 * depend on the device.
 *
 * With engine.backend = auto a missing device, or a build without CUDA, falls back to the CPU,
 * and the reason is kept for the log and /readyz. A device that exists but fails is an error:
 * serving on the CPU without being asked would hide the fault behind a slow server.
 * device_gpu_unused() reports an NVIDIA GPU that no driver serves, which it finds in sysfs.
 *
 * Zero in max_rows, max_seqs and kv_memory means "chosen here": from the device's memory for the
 * first two; for the arena everything that is left after the weights, less a sixteenth for what
 * adapters have outside of it.
 */
#include "gateway/device.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GIB_SHIFT = 30, MIB = 1 << 20 };

/* Prompts want many rows at once where there is room for what each row takes beside the weights. */
void device_sizes(config_engine *c)
{
    static const struct {
        size_t bytes;
        int rows, seqs;
    } by[] = {{(size_t)75 << GIB_SHIFT, 8192, 256}, {(size_t)20 << GIB_SHIFT, 2048, 256}};
    size_t bytes = 0;
    int rows = 512, seqs = 64;
#ifdef LORAD_CUDA
    bool ask = (c->max_rows == 0 || c->max_seqs == 0) && strcmp(c->backend, "cpu") != 0;
    if (ask) bytes = be_memory(&backend_cuda, (int)c->device);
#endif
    for (size_t i = sizeof(by) / sizeof(by[0]); i-- > 0;) {
        if (bytes < by[i].bytes) continue;
        rows = by[i].rows;
        seqs = by[i].seqs;
    }
    if (c->max_rows == 0) c->max_rows = c->max_seqs > rows ? c->max_seqs : rows;
    if (c->max_seqs == 0) c->max_seqs = c->max_rows < seqs ? c->max_rows : seqs;
}

bool device_leave_out(char without[BE_KERNELS_MAX], const char *name)
{
    size_t at = strlen(without);
    if (be_has_kernel(without, name)) return false;
    snprintf(without + at, BE_KERNELS_MAX - at, "%s%s", at ? "," : "", name);
    return true;
}

/* Those of `without` and of debug.cuda_without; ERR_INPUT: the option names none of them. */
static err_code read_without(char out[BE_KERNELS_MAX], const config_debug *c, const char *without,
                             err *e)
{
    static const char known[] = "wgmma, chain, inside";
    const char *at = c->cuda_without;
    snprintf(out, BE_KERNELS_MAX, "%s", without);
    for (size_t n; *(at += strspn(at, ", ")) != '\0'; at += n) {
        char name[BE_KERNELS_MAX] = "";
        n = strcspn(at, ", ");
        if (n < sizeof(name)) memcpy(name, at, n);
        if (!be_has_kernel(known, name))
            return err_set(e, ERR_INPUT, "debug.cuda_without: '%.*s' is none of %s",
                           n < 40 ? (int)n : 40, at, known);
        device_leave_out(out, name);
    }
    return ERR_NONE;
}

static backend_config describe(const config *c, double fraction)
{
    return (backend_config){.n_threads = (int)c->engine.threads,
                            .page_tokens = (int)c->engine.page_tokens,
                            .isa = c->engine.isa,
                            .device = (int)c->engine.device,
                            .n_device = (int)c->engine.tensor_parallel,
                            .fraction = fraction,
                            .max_rows = (int)c->engine.max_rows,
                            .max_seqs = (int)c->engine.max_seqs,
                            .max_context = (int)c->engine.max_context,
                            .no_graphs = !c->debug.cuda_graphs,
                            .patience_us = c->engine.cuda_patience_us};
}

static err_code try_cuda(backend **out, const backend_config *bc, err *e)
{
#ifdef LORAD_CUDA
    return be_open(out, bc->n_device > 1 ? &backend_cuda_tp : &backend_cuda, bc, e);
#else
    (void)out;
    (void)bc;
    return err_set(e, ERR_UNSUPPORTED,
                   "this lorad was built without CUDA: install the package lorad-cuda, or build "
                   "with -DLORAD_CUDA=ON");
#endif
}

static err_code open_any(backend **out, const config *c, double fraction, const char *without,
                         char *why, size_t size, err *e)
{
    err reason = {0};
    backend_config bc = describe(c, fraction);
    err_code bad = read_without(bc.without, &c->debug, without, e);
    if (bad) return bad;
    why[0] = '\0';
    if (strcmp(c->engine.backend, "cpu") == 0) {
        snprintf(why, size, "engine.backend is cpu");
    } else {
        err_code rc = try_cuda(out, &bc, &reason);
        if (!rc) return ERR_NONE;
        bool asked = strcmp(c->engine.backend, "cuda") == 0 || bc.n_device > 1;
        if (rc != ERR_UNSUPPORTED || asked) return err_set(e, rc, "engine.backend: %s", reason.msg);
        snprintf(why, size, "%s", reason.msg);
    }
    return be_open(out, &backend_cpu, &bc, e);
}

err_code device_open(backend **out, const config *c, const char *without, char *why, size_t size,
                     err *e)
{
    double fraction = strtod(c->engine.device_memory_fraction, NULL);
    return open_any(out, c, fraction, without, why, size, e);
}

/* Reads a PCI attribute such as "0x10de"; -1 where it is not there. */
static long pci_value(const char *devices, const char *device, const char *attribute)
{
    char path[PATH_MAX];
    char text[16] = "";
    int n = snprintf(path, sizeof(path), "%s/%s/%s", devices, device, attribute);
    FILE *f = n < (int)sizeof(path) ? fopen(path, "re") : NULL;
    if (!f) return -1;
    bool read = fgets(text, sizeof(text), f) != NULL;
    (void)fclose(f);
    return read ? strtol(text, NULL, 16) : -1;
}

/* Looks for a display controller (class 0x03) of NVIDIA (vendor 0x10de). */
static bool pci_has_gpu(const char *devices)
{
    enum { NVIDIA = 0x10de, DISPLAY = 0x03, CLASS_SHIFT = 16 };
    bool found = false;
    DIR *d = opendir(devices);
    if (!d) return false;
    for (const struct dirent *at; !found && (at = readdir(d));) {
        found = at->d_name[0] != '.' && pci_value(devices, at->d_name, "vendor") == NVIDIA &&
                pci_value(devices, at->d_name, "class") >> CLASS_SHIFT == DISPLAY;
    }
    (void)closedir(d);
    return found;
}

bool device_gpu_present(const char *root)
{
    static const char *const files[] = {"dev/nvidiactl", "dev/nvidia0", "proc/driver/nvidia"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        int n = snprintf(path, sizeof(path), "%s/%s", root, files[i]);
        if (n < (int)sizeof(path) && access(path, F_OK) == 0) return true;
    }
    int n = snprintf(path, sizeof(path), "%s/sys/bus/pci/devices", root);
    return n < (int)sizeof(path) && pci_has_gpu(path);
}

void device_gpu_unused(const config *c, const char *why, char *out, size_t size)
{
    out[0] = '\0';
    if (!why[0] || strcmp(c->engine.backend, "auto") != 0) return;
    if (!device_gpu_present(c->debug.device_root)) return;
    snprintf(out, size, "the CPU serves and an NVIDIA GPU is unused: %s", why);
}

err_code device_describe(const config *c, char *out, size_t size, weight_rules *rules, err *e)
{
    backend *be;
    char why[256];
    err_code rc = open_any(&be, c, 0.02, "", why, sizeof(why), e);
    if (rc) return rc;
    const backend_caps *caps = be_caps(be);
    *rules = caps->rules;
    snprintf(out, size, "%s: %s%s%s%s", caps->name, caps->detail, why[0] ? " (" : "", why,
             why[0] ? ")" : "");
    be_close(be);
    return ERR_NONE;
}

size_t device_memory(const config_engine *c)
{
#ifdef LORAD_CUDA
    return be_memory(&backend_cuda, (int)c->device);
#else
    (void)c;
    return 0;
#endif
}

const char *device_cuda_built(void)
{
#if !defined(LORAD_CUDA)
    return "left out";
#elif defined(LORAD_CUDA_ARCHS)
    return LORAD_CUDA_ARCHS;
#else
    return "emulated";
#endif
}

/* A sixteenth stays for what adapters have beside the arena: gains, biases, own embeddings. */
void device_arena(config_engine *c, backend *be)
{
    if (c->kv_memory != 0) return;
    size_t room = be ? be_room(be) : 0;
    c->kv_memory = room == 0 ? (int64_t)1 << GIB_SHIFT : (int64_t)((room - room / 16) / MIB) * MIB;
}
