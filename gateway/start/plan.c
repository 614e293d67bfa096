/* plan.c -- the arithmetic of docs/howto/size.md, for the model and the machine at hand.
 *
 * Everything comes from config.json and the headers of the weights' files; nothing is loaded.  The
 * arena holds KV pages and adapters in equal chunks, so both are rounded up to chunks.
 */
#include "gateway/start/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/model/model.h"
#include "gateway/device.h"

enum { RANK = 16, REQUEST_TOKENS_MAX = 4096, MIB = 1 << 20 };
static const double gib = 1024.0 * MIB;
static const char *const kv_names[] = {
    [DT_F32] = "f32", [DT_F16] = "f16", [DT_BF16] = "bf16", [DT_I8] = "int8"};

typedef struct plan {
    size_t weights, token, state, adapter, chunk; /* bytes; token, state, adapter, chunk: of one */
    size_t arena, copies, swap, memory; /* memory: the device's, or main memory on the CPU */
    size_t states;                      /* of all sequences, and snapshots */
    int request;                        /* tokens of a request in the examples */
    int page;                           /* tokens of a KV page */
} plan;

/* An adapter of rank RANK on every linear layer outside mixtures of experts. */
static size_t adapter_bytes(const model_config *mc)
{
    size_t values = 0;
    for (int layer = 0; layer < mc->n_layer; layer++) {
        for (int p = 0; p < PROJ_COUNT; p++) {
            int d_out, d_in;
            bool low = p == PROJ_ROUTER || p == PROJ_SHARED_SCORE;
            if (low || !model_has_proj(mc, layer, (proj)p)) continue;
            model_layer_shape(mc, layer, (proj)p, &d_out, &d_in);
            values += RANK * ((size_t)d_out + (size_t)d_in);
        }
    }
    return values * dtype_bytes(mc->type);
}

static size_t chunks_of(size_t bytes, size_t chunk)
{
    return (bytes + chunk - 1) / chunk;
}

static void print_bytes(double bytes)
{
    if (bytes >= gib)
        printf("%.2f GiB", bytes / gib);
    else if (bytes >= MIB)
        printf("%.1f MiB", bytes / MIB);
    else
        printf("%.1f KiB", bytes / 1024);
}

static void print_room(const plan *p, int requests)
{
    size_t have = p->arena / p->chunk;
    size_t each = chunks_of((size_t)p->request, (size_t)p->page),
           adapter = chunks_of(p->adapter, p->chunk);
    if (adapter == 0) adapter = 1;
    size_t kv = p->token ? each * (size_t)requests : 0;
    printf("  %4d requests of %d tokens  ", requests, p->request);
    if (kv > have) {
        printf("do not fit: their KV needs ");
        print_bytes((double)kv * (double)p->chunk);
        printf("\n");
        return;
    }
    print_bytes((double)kv * (double)p->chunk);
    printf(" of KV, and memory for %zu adapters\n", (have - kv) / adapter);
}

static void print_plan(const plan *p, const model_config *mc, const model_survey *w,
                       const char *device, const char *kv_name, bool on_cpu)
{
    double total = (double)p->weights + (double)p->arena + (double)p->states;
    if (on_cpu) total += (double)p->copies + (double)p->swap;
    printf("model        %s, %d layers of %d, %d heads (%d kv), context %d\n"
           "machine      %s\n"
           "weights      %s, %.2f GiB\n"
           "KV           ",
           mc->family, mc->n_layer, mc->dim, mc->n_head, mc->n_kv_head, mc->max_pos, device,
           w->format, (double)p->weights / gib);
    print_bytes((double)p->token);
    printf(" of a token (%s), ", kv_name);
    print_bytes((double)p->token * p->request);
    printf(" of %d tokens\n", p->request);
    if (p->state) {
        printf("state        ");
        print_bytes((double)p->state);
        printf(" of a request, ");
        print_bytes((double)p->states);
        printf(" of all with snapshots (engine.snapshot_bytes)\n");
    }
    printf("adapter      ");
    print_bytes((double)p->adapter);
    printf(", rank %d on all linear layers\n"
           "arena        %.2f GiB (engine.kv_memory):\n",
           RANK, (double)p->arena / gib);
    for (int n = 1; n <= 256; n *= 4) print_room(p, n);
    printf("total        %.2f GiB of %.2f GiB%s: %s\n", total / gib, (double)p->memory / gib,
           on_cpu ? ", with copies of adapters and swap" : " of the device",
           total <= (double)p->memory ? "fits"
                                      : "does not fit; lower engine.kv_memory, or set "
                                        "model.weights to q8 or q4, or model.resident_bytes");
}

/* What a device leaves for the arena where engine.kv_memory is 0; a sixteenth of it stays free. */
static size_t arena_left(const config *c, const plan *p)
{
    double whole = strtod(c->engine.device_memory_fraction, NULL) * (double)p->memory;
    double room = whole - (double)p->weights;
    return room > 0 ? (size_t)(room - room / 16) : 0;
}

err_code plan_print(config *c, bool *fits, err *e)
{
    model_config mc;
    model_survey w;
    weight_rules rules;
    char device[512];
    plan p = {.copies = (size_t)c->adapters.host_memory, .swap = (size_t)c->engine.swap_bytes};
    err_code rc = model_config_read(c->model.path, &mc, e);
    if (!rc) rc = device_describe(c, device, sizeof(device), &rules, e);
    if (!rc) model_config_place(&mc, &rules);
    if (!rc) rc = model_config_pages(&mc, (int)c->engine.page_tokens, e);
    if (!rc)
        rc = model_survey_read(c->model.path, &mc, model_weights_form(c->model.weights), &rules,
                               false, (size_t)c->model.resident_bytes, &w, e);
    if (rc) return rc;
    bool on_cpu = strncmp(device, "cpu", 3) == 0;
    dtype type = model_kv_type(&mc, c->engine.kv_type);
    p.memory = on_cpu ? (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE)
                      : device_memory(&c->engine);
    p.weights = on_cpu ? w.memory_bytes : w.device_bytes;
    if (w.token_bytes > 0) p.weights = (size_t)c->model.resident_bytes + w.heads_bytes;
    p.token = model_kv_bytes(&mc, type);
    p.request = mc.max_pos < REQUEST_TOKENS_MAX ? mc.max_pos : REQUEST_TOKENS_MAX;
    p.state = model_state_floats(&mc) * sizeof(float);
    size_t slots = (size_t)c->engine.max_seqs * (strcmp(c->engine.speculate, "off") == 0 ? 1 : 2);
    if (p.state) p.states = p.state * slots + (size_t)c->engine.snapshot_bytes;
    p.adapter = adapter_bytes(&mc);
    p.page = (int)c->engine.page_tokens;
    p.chunk = p.token ? p.token * (size_t)p.page : MIB;
    if (on_cpu) device_arena(&c->engine, NULL);
    p.arena = c->engine.kv_memory ? (size_t)c->engine.kv_memory : arena_left(c, &p);
    print_plan(&p, &mc, &w, device, kv_names[type], on_cpu);
    double held = (double)p.weights + (double)p.arena + (double)p.states;
    *fits = held + (on_cpu ? (double)p.copies + (double)p.swap : 0) <= (double)p.memory;
    return ERR_NONE;
}
