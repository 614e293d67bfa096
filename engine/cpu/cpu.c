/* cpu.c -- opens the CPU backend: selects an instruction set (isa.c), starts the thread pool,
 * fills the table of operations.
 *
 * Every operation runs at once on the calling thread and the pool's, and has ended when its call
 * returns. So be_sync() has nothing to do, be_mark() and be_await() do not exist, and results
 * may be read where they were written.
 *
 * Memory is ordinary host memory with huge pages where it is large: a step reads every weight
 * once, and with 4 KiB pages it would miss the TLB on each of them. Arenas are mapped without
 * being touched; cpu_commit() touches them, from a thread of its own, before they are first
 * used.
 *
 * Scratch grows on the first use only: cpu_reserve() computes the most that any operation needs
 * for the largest step and takes it at load. So a step cannot fail for memory later.
 */
#include "engine/cpu/cpu.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/round.h"

/* ---------------------------------------------------------------------- life -- */

static void cpu_close(backend *be)
{
    cpu_state *cpu = be->impl;
    if (!cpu) return;
    pool_destroy(cpu->pool);
    for (int i = 0; i < CPU_SCRATCHES; i++) free(cpu->scratch[i].p);
    free(cpu);
    be->impl = NULL;
}

static err_code cpu_open(backend *be, const backend_config *cfg, err *e)
{
    int page = cfg->page_tokens ? cfg->page_tokens : CPU_KV_BLOCK;
    if (page < 1 || page > 2 * CPU_KV_BLOCK || page & (page - 1))
        return err_set(e, ERR_INPUT, "engine.page_tokens must be 1, 2, 4, 8, 16, 32 or 64, not %d",
                       page);
    cpu_state *cpu = calloc(1, sizeof(*cpu));
    if (!cpu) return err_set(e, ERR_NOMEM, "no memory for the CPU backend");
    be->impl = cpu;
    err_code rc = cpu_isa_parse(cfg->isa, &cpu->isa, e);
    if (!rc) rc = pool_create(&cpu->pool, cfg->n_threads, e);
    if (rc) {
        cpu_close(be);
        return rc;
    }
    be->caps.page_tokens = page;
    be->caps.lora_cols = CPU_LORA_COLS;
    be->caps.rules =
        (weight_rules){.takes = weight_source_usable, .host_rows = true, .absorbs = true};
    be->caps.kv_types = 1U << DT_F32 | 1U << DT_F16 | 1U << DT_BF16 | 1U << DT_I8;
    be->caps.extras = (1U << EXTRAS) - 1;
    snprintf(be->caps.detail, sizeof(be->caps.detail), "%s, %d threads", cpu_isa_name(cpu->isa),
             pool_threads(cpu->pool));
    return ERR_NONE;
}

/* -------------------------------------------------------------------- memory -- */

void *cpu_block(size_t bytes)
{
    size_t padded = (bytes + 63) / 64 * 64;
    if (padded < bytes) return NULL;
    /* Not aligned_alloc(): sanitizers hold it to sizes that are multiples of the alignment. */
    void *p = NULL;
    if (posix_memalign(&p, bytes >= HUGE_BYTES ? HUGE_BYTES : 64, padded ? padded : 64) != 0)
        return NULL;
    if (bytes >= HUGE_BYTES) (void)madvise(p, bytes / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
    return p;
}

static void *cpu_alloc(backend *be, size_t bytes)
{
    (void)be;
    void *p = cpu_block(bytes);
    if (p) memset(p, 0, round_up_size(bytes, 64));
    return p;
}

static size_t mapped_bytes(size_t bytes)
{
    return (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

void *cpu_map(backend *be, size_t bytes)
{
    (void)be;
    size_t padded = mapped_bytes(bytes);
    void *p = padded < bytes
                  ? MAP_FAILED
                  : mmap(NULL, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    (void)madvise(p, padded, MADV_HUGEPAGE);
    return p;
}

void cpu_unmap(backend *be, void *p, size_t bytes)
{
    (void)be;
    (void)munmap(p, mapped_bytes(bytes));
}

enum { PAGE_BYTES = 4096, COPY_BYTES = 1 << 20 /* of one thread at a time */ };

/* The content stays as it is, also of what another thread writes at the same time.  By touches:
 * madvise(MADV_POPULATE_WRITE) holds the lock of all mappings while the system clears 2 MiB, and
 * whoever maps a file meanwhile waits until a thread of low priority has had its turn.  A fault has
 * held that of its own mapping alone since Linux 6.4. */
__attribute__((no_sanitize("thread"))) static bool cpu_commit(backend *be, void *p, size_t bytes)
{
    (void)be;
    for (size_t at = 0; at < bytes; at += PAGE_BYTES)
        (void)__atomic_fetch_or((uint8_t *)p + at, 0, __ATOMIC_RELAXED);
    return true;
}

static void cpu_free(backend *be, void *p)
{
    (void)be;
    free(p);
}

static err_code cpu_copy(backend *be, void *dst, const void *src, size_t bytes)
{
    (void)be;
    memcpy(dst, src, bytes);
    return ERR_NONE;
}

typedef struct copying {
    char *dst;
    const char *src;
    size_t bytes;
} copying;

static void copy_part(void *arg, int i)
{
    const copying *c = arg;
    size_t at = (size_t)i * COPY_BYTES, left = c->bytes - at;
    memcpy(c->dst + at, c->src + at, left < COPY_BYTES ? left : COPY_BYTES);
}

static void cpu_copy_within(backend *be, void *dst, const void *src, size_t bytes)
{
    assert((char *)dst + bytes <= (const char *)src || (const char *)src + bytes <= (char *)dst);
    copying c = {dst, src, bytes};
    pool_each(cpu_of(be)->pool, copy_part, &c, (int)((bytes + COPY_BYTES - 1) / COPY_BYTES));
}

static void cpu_sync(backend *be)
{
    (void)be; /* every operation has ended when its call returns */
}

static void *grown(cpu_state *cpu, cpu_scratch_use use, size_t bytes)
{
    assert((unsigned)use < CPU_SCRATCHES);
    if (bytes <= cpu->scratch[use].bytes) return cpu->scratch[use].p;
    size_t padded = (bytes + 4095) / 4096 * 4096;
    void *p = aligned_alloc(4096, padded);
    if (!p) return NULL;
    free(cpu->scratch[use].p);
    cpu->scratch[use].p = p;
    cpu->scratch[use].bytes = padded;
    return p;
}

void *cpu_scratch(backend *be, cpu_scratch_use use, size_t bytes)
{
    void *p = grown(cpu_of(be), use, bytes);
    if (!p) backend_fail(be, ERR_NOMEM, "no memory for %zu bytes of scratch", bytes);
    return p;
}

static bool cpu_reserve(backend *be, const step_bounds *most)
{
    cpu_state *cpu = cpu_of(be);
    size_t bytes[CPU_SCRATCHES] = {0};
    cpu_linear_most(cpu, most, bytes);
    cpu_logits_most(most, bytes);
    cpu_experts_most(most, bytes);
    cpu_latent_most(most, bytes);
    bytes[SCRATCH_ATTEND] = cpu_attend_scratch(cpu, most->context, most->head_dim);
    bool ok = true;
    for (int i = 0; i < CPU_SCRATCHES; i++)
        ok &= bytes[i] == 0 || grown(cpu, (cpu_scratch_use)i, bytes[i]) != NULL;
    return ok;
}

/* ------------------------------------------------------------------ parallel -- */

static void cpu_parallel(backend *be, void (*fn)(void *arg, int i), void *arg, int n)
{
    pool_each(cpu_of(be)->pool, fn, arg, n);
}

const backend_ops backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .map = cpu_map,
    .unmap = cpu_unmap,
    .commit = cpu_commit,
    .upload = cpu_copy,
    .download = cpu_copy,
    .copy = cpu_copy_within,
    .sync = cpu_sync,
    .weight_create = cpu_weight_create,
    .weight_destroy = cpu_weight_destroy,
    .weight_packed_bytes = cpu_weight_packed_bytes,
    .weight_adopt = cpu_weight_adopt,
    .weight_packed = cpu_weight_packed,
    .reserve = cpu_reserve,
    .lora_a_bytes = cpu_lora_a_bytes,
    .lora_b_bytes = cpu_lora_b_bytes,
    .lora_pack = cpu_lora_pack,
    .lora_weight_create = cpu_lora_weight_create,
    .lora_gain = cpu_lora_gain,
    .kv_page_bytes = cpu_kv_page_bytes,
    .kv_create = cpu_kv_create,
    .kv_attach = cpu_kv_attach,
    .kv_destroy = cpu_kv_destroy,
    .kv_save = cpu_kv_save,
    .kv_load = cpu_kv_load,
    .kv_copy = cpu_kv_copy,
    .embed = cpu_embed,
    .rms_norm = cpu_rms_norm,
    .layer_norm = cpu_layer_norm,
    .add = cpu_add,
    .scale = cpu_scale,
    .linear = cpu_linear,
    .latent_norm = cpu_latent_norm,
    .latent_query = cpu_latent_query,
    .latent_answer = cpu_latent_answer,
    .rope_append = cpu_rope_append,
    .attend = cpu_attend,
    .conv = cpu_conv,
    .delta = cpu_delta,
    .q_take = cpu_q_take,
    .q_gate = cpu_q_gate,
    .scan = cpu_scan,
    .silu_conv = cpu_silu_conv,
    .scan_channels = cpu_scan_channels,
    .xielu = cpu_xielu,
    .streams_predict = cpu_streams_predict,
    .streams_correct = cpu_streams_correct,
    .match_rms = cpu_match_rms,
    .gate_sparse = cpu_gate_sparse,
    .logits_bias = cpu_logits_bias,
    .gate = cpu_gate,
    .experts = cpu_experts,
    .logits = cpu_logits,
    .logits_bend = cpu_logits_bend,
    .parallel = cpu_parallel,
};
