/* device.c -- opens the backend: CUDA where there is a device, else the CPU. */
#include "gateway/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GIB_SHIFT = 30, MIB = 1 << 20 };

/* Prompts want many rows at once where there is room for what each row takes beside the weights. */
void device_sizes(config *c)
{
    static const struct {
        size_t bytes;
        int rows, seqs;
    } by[] = {{(size_t)75 << GIB_SHIFT, 8192, 256}, {(size_t)20 << GIB_SHIFT, 2048, 256}};
    size_t bytes = 0;
    int rows = 512, seqs = 64;
#ifdef LORAD_CUDA
    bool ask = (c->engine_max_rows == 0 || c->engine_max_seqs == 0) &&
               strcmp(c->engine_backend, "cpu") != 0;
    if (ask) bytes = be_memory(&backend_cuda, (int)c->engine_device);
#endif
    for (size_t i = sizeof(by) / sizeof(by[0]); i-- > 0;) {
        if (bytes < by[i].bytes) continue;
        rows = by[i].rows;
        seqs = by[i].seqs;
    }
    if (c->engine_max_rows == 0)
        c->engine_max_rows = c->engine_max_seqs > rows ? c->engine_max_seqs : rows;
    if (c->engine_max_seqs == 0)
        c->engine_max_seqs = c->engine_max_rows < seqs ? c->engine_max_rows : seqs;
}

/* The kernels that engine.cuda_without names, 1U << each; ERR_INPUT: a name is none of theirs. */
static err_code read_without(unsigned *out, const config *c, err *e)
{
    const char *at = c->engine_cuda_without;
    *out = 0;
    for (size_t n; *(at += strspn(at, ", ")) != '\0'; at += n) {
        int i = 0;
        n = strcspn(at, ", ");
        while (i < BE_TRIAL_N &&
               (strncmp(at, be_trial_name[i], n) != 0 || be_trial_name[i][n] != '\0'))
            i++;
        if (i == BE_TRIAL_N)
            return err_set(e, ERR_INPUT,
                           "engine.cuda_without: '%.*s' is none of wgmma, chain, cluster, inside",
                           n < 40 ? (int)n : 40, at);
        *out |= 1U << i;
    }
    return ERR_NONE;
}

static backend_config describe(const config *c, double fraction, unsigned without)
{
    return (backend_config){.n_threads = (int)c->engine_threads,
                            .isa = c->engine_isa,
                            .device = (int)c->engine_device,
                            .n_device = (int)c->engine_tensor_parallel,
                            .fraction = fraction,
                            .max_rows = (int)c->engine_max_rows,
                            .max_seqs = (int)c->engine_max_seqs,
                            .max_context = (int)c->engine_max_context,
                            .no_graphs = !c->engine_cuda_graphs,
                            .without = without,
                            .patience_us = c->engine_cuda_patience_us};
}

static err_code try_cuda(backend **out, const backend_config *bc, err *e)
{
#ifdef LORAD_CUDA
    return be_open(out, bc->n_device > 1 ? &backend_cuda_tp : &backend_cuda, bc, e);
#else
    (void)out;
    (void)bc;
    return err_set(e, ERR_UNSUPPORTED, "this lorad was built without CUDA");
#endif
}

static err_code open_any(backend **out, const config *c, double fraction, unsigned without,
                         char *why, size_t size, err *e)
{
    unsigned asked_without;
    err reason = {0};
    err_code bad = read_without(&asked_without, c, e);
    if (bad) return bad;
    backend_config bc = describe(c, fraction, without | asked_without);
    why[0] = '\0';
    if (strcmp(c->engine_backend, "cpu") == 0) {
        snprintf(why, size, "engine.backend is cpu");
    } else {
        err_code rc = try_cuda(out, &bc, &reason);
        if (!rc) return ERR_NONE;
        bool asked = strcmp(c->engine_backend, "cuda") == 0 || bc.n_device > 1;
        if (rc != ERR_UNSUPPORTED || asked) return err_set(e, rc, "engine.backend: %s", reason.msg);
        snprintf(why, size, "%s", reason.msg);
    }
    return be_open(out, &backend_cpu, &bc, e);
}

err_code device_open(backend **out, const config *c, unsigned without, char *why, size_t size,
                     err *e)
{
    double fraction = strtod(c->engine_device_memory_fraction, NULL);
    return open_any(out, c, fraction, without, why, size, e);
}

err_code device_describe(const config *c, char *out, size_t size, weight_rules *rules, err *e)
{
    backend *be;
    char why[256];
    err_code rc = open_any(&be, c, 0.02, 0, why, sizeof(why), e);
    if (rc) return rc;
    const backend_caps *caps = be_caps(be);
    *rules = caps->rules;
    snprintf(out, size, "%s: %s%s%s%s", caps->name, caps->detail, why[0] ? " (" : "", why,
             why[0] ? ")" : "");
    be_close(be);
    return ERR_NONE;
}

/* A sixteenth stays for what adapters have beside the arena: gains, biases, own embeddings. */
void device_arena(config *c, backend *be)
{
    if (c->engine_kv_memory != 0) return;
    size_t room = be ? be_room(be) : 0;
    c->engine_kv_memory =
        room == 0 ? (int64_t)1 << GIB_SHIFT : (int64_t)((room - room / 16) / MIB) * MIB;
}
