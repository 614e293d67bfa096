/* cpu.h -- the CPU backend's inside: its state, its thread pool, its operations by file.
 *
 *     cpu.c            open/close, ISA choice, memory, the ops table
 *     linear.c         be_linear, be_logits; picks a kernel set
 *     pack.c           be_weight_*, be_lora_pack
 *     quant.c          quantised weights: their packing
 *     dora.c           be_lora_gain
 *     linear_<isa>.c   kernels, compiled with the flags of their ISA (see CMakeLists.txt)
 *     attend.c, attend_<isa>.c    KV pages, rope_append, attend
 *     rows.c, rows_<isa>.c        embed, norms, gate, sums
 *     experts/experts.c           be_experts
 *
 * Private to engine/cpu/ and its tests.  Threads: engine thread, which fans out through pool_run();
 * the configuration of AMX tiles is per thread and the kernels' business.
 */
#ifndef ENGINE_CPU_CPU_H
#define ENGINE_CPU_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/backend_ops.h"
#include "engine/base/pool.h"

/* Ascending: each level has what the ones before it have (but AVX512 has no AVX-VNNI).  AMX and
 * AVX512_BF16 may be used side by side only where their results are bit-identical for a row (they
 * are not for bf16 products: one level serves all products of a process). */
typedef enum {
    ISA_PORTABLE,
    ISA_AVX2,       /* AVX2 + FMA + F16C */
    ISA_AVXVNNI,    /* + AVX-VNNI */
    ISA_AVX512,     /* AVX2 + F, BW, DQ, VL */
    ISA_AVX512VNNI, /* + AVX512_VNNI */
    ISA_AVX512BF16, /* + AVX512_BF16 */
    ISA_AMX,        /* + AMX-TILE, AMX-BF16, AMX-INT8, permission granted by the kernel */
} cpu_isa;

enum { HUGE_BYTES = 2U << 20 }; /* alignment that lets the kernel use huge pages */

typedef enum {
    SCRATCH_X,      /* linear.c: packed activations */
    SCRATCH_QUANT,  /* the same rounded to int8, for each output */
    SCRATCH_SUMS,   /* of groups of panels */
    SCRATCH_SHRUNK, /* A x of adapters */
    SCRATCH_NEXT,   /* counters of parts */
    SCRATCH_NORMED, /* logits.c: rows after the last norm */
    SCRATCH_SEGS,   /* their segments */
    SCRATCH_TOKENS, /* what tokens' own rows give */
    SCRATCH_ATTEND, /* attend.c: the parts of long contexts */
    SCRATCH_JOBS,   /* linear.c: grouped products */
    SCRATCH_ROUTES, /* experts.c: who goes where */
    SCRATCH_EXPERT, /* rows as experts take and give them, */
    SCRATCH_HIDDEN, /* and what lies between */
    CPU_SCRATCHES
} cpu_scratch_use;

typedef struct cpu_state {
    cpu_isa isa;
    thread_pool *pool;
    struct {
        void *p;
        size_t bytes;
    } scratch[CPU_SCRATCHES]; /* grown by cpu_scratch() */
} cpu_state;

static inline cpu_state *cpu_of(backend *be)
{
    return (cpu_state *)be->impl;
}

/* What the machine can do; tiles are requested from the kernel here (arch_prctl). */
/* Whether this machine has it; the best that it has. */
bool cpu_isa_runs(cpu_isa isa);
cpu_isa cpu_isa_detect(void);
/* ERR_UNSUPPORTED if it can't run. */
err_code cpu_isa_parse(const char *name, cpu_isa *out, err *e);
const char *cpu_isa_name(cpu_isa isa);

/* 64-byte aligned scratch of at least `bytes`, contents undefined, valid until the next
 * call for that use.  NULL marks the backend as failed; within what be_reserve() was
 * told, that does not happen. */
void *cpu_scratch(backend *be, cpu_scratch_use use, size_t bytes);
/* The most that steps within these bounds ask for, each for its own uses:
 * linear.c, logits.c, attend.c, experts.c. */
void cpu_linear_most(const cpu_state *cpu, const step_bounds *most, size_t bytes[CPU_SCRATCHES]);
void cpu_logits_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES]);
void cpu_experts_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES]);
size_t cpu_attend_scratch(const cpu_state *cpu, int context, int head_dim);

/* Not zeroed, to a multiple of 64 bytes, for free(); what fills whole huge pages lies on them: a
 * part of one would take it all. */
void *cpu_block(size_t bytes);
/* Lazily zeroed, on huge pages as far as whole ones fit. */
void *cpu_map(backend *be, size_t bytes);
void cpu_unmap(backend *be, void *p, size_t bytes);

/* ---- operations, by file ------------------------------------------------------------- */

/* pack.c */
enum { CPU_LORA_COLS = 32 }; /* a panel */
err_code cpu_weight_create(backend *be, weight **out, const weight_source *src, err *e);
err_code cpu_lora_weight_create(backend *be, weight **out, const void *src, dtype type, int rows,
                                int cols, err *e);
void cpu_weight_destroy(backend *be, weight *w);
size_t cpu_weight_packed_bytes(const backend *be, const weight_source *src, uint32_t *layout);
err_code cpu_weight_adopt(backend *be, weight **out, const weight_source *src, const void *packed,
                          err *e);
const void *cpu_weight_packed(const weight *w);
size_t cpu_lora_a_bytes(const backend *be, dtype base, int rank, int d_in);
size_t cpu_lora_b_bytes(const backend *be, dtype base, int rank, int d_out);
err_code cpu_lora_pack(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                       const void *b_src, dtype type, int rank, int d_in, int d_out, err *e);

/* linear.c */
void cpu_linear(backend *be, const float *x, const linear_out *outs, int n_out, const step *s,
                int layer);
void cpu_logits(backend *be, float *logits, const float *x, const float *norm_weight, float eps,
                int dim, const weight *head, const step *s);

/* experts/experts.c */
void cpu_experts(backend *be, float *out, const float *x, const expert_set *set,
                 const float *scores, const float *shared, const step *s, int layer);

/* dora.c */
err_code cpu_lora_gain(backend *be, const weight *w, const lora_pair *pair, const float *magnitude,
                       float *gain, err *e);

/* attend.c */
enum { CPU_PAGE_TOKENS = 32 };
size_t cpu_kv_page_bytes(const backend *be, const attn_shape *shape);
err_code cpu_kv_create(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, err *e);
err_code cpu_kv_attach(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, void *mem,
                       size_t stride, err *e);
void cpu_kv_destroy(backend *be, kv_pool *kv);
void cpu_kv_save(backend *be, const kv_pool *kv, int page, void *host);
void cpu_kv_load(backend *be, kv_pool *kv, int page, const void *host);
void cpu_rope_append(backend *be, kv_pool *kv, float *q, float *k, const float *v,
                     const float *q_norm, const float *k_norm, float norm_eps,
                     const rope_table *rope, const step *s, int layer);
void cpu_attend(backend *be, const kv_pool *kv, float *out, const float *q, const float *sinks,
                const step *s, int layer);

/* rows.c */
void cpu_embed(backend *be, float *out, const void *table, dtype type, int dim, const step *s);
void cpu_rms_norm(backend *be, float *out, const float *x, const float *weight, float eps, int row0,
                  int n_rows, int dim);
void cpu_layer_norm(backend *be, float *out, const float *x, const float *weight, const float *bias,
                    float eps, int row0, int n_rows, int dim);
void cpu_latent_norm(backend *be, float *out, const float *x, const float *gain, float eps,
                     const latent_shape *shape, int n_rows);
void cpu_latent_spread(backend *be, float *k, float *v, const float *kv, const float *x,
                       const latent_shape *shape, int n_rows);
void cpu_gate(backend *be, activation act, float *gate, const float *up, size_t n);
void cpu_add(backend *be, float *x, const float *y, float scale, size_t n);
void cpu_scale(backend *be, float *x, float scale, size_t n);
void cpu_logits_bend(backend *be, float *logits, int n_rows, int stride, float scale, float cap);
/* The kernels of a set: rows.h. */
const struct row_kernels *rows_kernels_of(cpu_isa isa);
/* One row of rms_norm, on the calling thread; used by cpu_logits too. */
void cpu_rms_norm_row(cpu_isa isa, float *out, const float *x, const float *weight, float eps,
                      int dim);

#endif
