/* cpu.h -- the CPU backend's inside: its state, its thread pool, its operations by file.
 *
 *     cpu.c            open/close, memory, the ops table
 *     isa.c            instruction sets: built, supported, chosen; the kernels of each
 *     linear.c         be_linear, be_logits
 *     pack.c           be_weight_*, be_lora_pack
 *     quant.c          quantised weights: their packing
 *     dora.c           be_lora_gain
 *     linear_<isa>.c   kernels, compiled with the flags of their ISA (see CMakeLists.txt)
 *     attend.c, attend_<isa>.c    KV pages, rope_append, attend
 *     rows.c, rows_<isa>.c        embed, norms, gate, sums
 *     experts.c           be_experts
 *     latent.c            be_latent_*
 *     mixers/conv.c               be_conv
 *     mixers/delta.c              be_delta
 *     mixers/scan.c               be_scan
 *
 * Private to engine/cpu/ and its tests.  Threads: engine thread, which fans out through pool_run();
 * the configuration of AMX tiles is per thread and the kernels' business.
 *
 * Contract: every cpu_<op>() is the entry <op> of the table in cpu.c and fulfils the contract of
 * be_<op>() in engine/backend.h. An operation has ended when its call returns. All but the
 * packing functions run on the engine thread; cpu_weight_*(), cpu_lora_*() and the memory
 * functions are called by loaders, too.
 */
#ifndef ENGINE_CPU_CPU_H
#define ENGINE_CPU_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/backend_ops.h"
#include "engine/base/pool.h"

/* Ascending within x86-64 and within aarch64, where portable kernels have NEON: each level has what
 * the ones before it have (but AVX512 has no AVX-VNNI).  AMX and
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
    ISA_NEON,       /* NEON + dot products (Armv8.2-A) */
    ISA_I8MM,       /* + I8MM, BF16 (Armv8.6-A) */
    ISA_COUNT
} cpu_isa;

/* Of latents that stand in place of keys and values. */
enum { LATENT_RANK_MAX = 512, LATENT_ROPE_MAX = 128 };

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
    SCRATCH_HEADS,  /* latent.c: rows by head */
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

/* fn(arg, thread) on the pool's threads; with less work than `least`, on the calling thread alone,
 * because starting the others would cost more than they save.  Both count in one unit, the
 * caller's.  fn takes its work piece by piece from a counter that the caller has set to 0. */
static inline void cpu_run(backend *be, size_t work, size_t least,
                           void (*fn)(void *arg, int thread), void *arg)
{
    if (work < least)
        fn(arg, 0);
    else
        pool_run(cpu_of(be)->pool, fn, arg);
}

/* isa.c.  Any thread. */
/* Whether this binary contains the set's kernels. */
bool cpu_isa_built(cpu_isa isa);
/* Whether this processor has the instructions.  Asks Linux for AMX's tile state (arch_prctl). */
bool cpu_isa_supported(cpu_isa isa);
/* Both of the above. */
bool cpu_isa_runs(cpu_isa isa);
/* The best set that runs. */
cpu_isa cpu_isa_detect(void);
/* NULL or "auto": the best.  ERR_UNSUPPORTED if the set is not built or not supported. */
err_code cpu_isa_parse(const char *name, cpu_isa *out, err *e);

/* The name as engine.isa has it ("avx512vnni"); static. */
const char *cpu_isa_name(cpu_isa isa);

/* The kernels of one set; `linear` is NULL if it is not built. */
typedef struct cpu_kernels {
    const struct linear_kernels *linear; /* plain weights other than tiles */
    const struct quant_kernels *quant;
    const struct tile_kernels *tiles; /* BF16 weights; NULL: `linear` multiplies them */
    const struct attend_kernels *attend;
    const struct row_kernels *rows;
    const struct mixer_kernels *mixers;
} cpu_kernels;

/* The kernels of a set that runs on this processor; static, never NULL for cpu_isa_runs() sets. */
const cpu_kernels *cpu_kernels_of(cpu_isa isa);

/* 64-byte aligned scratch of at least `bytes`, contents undefined, valid until the next
 * call for that use.  NULL marks the backend as failed; within what be_reserve() was
 * told, that does not happen. */
void *cpu_scratch(backend *be, cpu_scratch_use use, size_t bytes);
/* The most that steps within these bounds ask for, each for its own uses:
 * linear.c, logits.c, attend.c, experts.c, latent.c (after experts.c). */
void cpu_linear_most(const cpu_state *cpu, const step_bounds *most, size_t bytes[CPU_SCRATCHES]);
void cpu_logits_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES]);
void cpu_experts_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES]);
void cpu_latent_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES]);

/* Bytes of SCRATCH_ATTEND: for each thread the partial sums of the parts of a context of so many
 * positions. */
size_t cpu_attend_scratch(const cpu_state *cpu, int context, int head_dim);

/* Not zeroed, to a multiple of 64 bytes, for free(); what fills whole huge pages lies on them: a
 * part of one would take it all. */
void *cpu_block(size_t bytes);
/* Lazily zeroed, on huge pages as far as whole ones fit. */
void *cpu_map(backend *be, size_t bytes);

/* The same `bytes` as cpu_map() got; both round them up to whole huge pages. */
void cpu_unmap(backend *be, void *p, size_t bytes);

/* ---- operations, by file ------------------------------------------------------------- */

/* pack.c */
enum { CPU_LORA_COLS = 32 }; /* a panel */
err_code cpu_weight_create(backend *be, weight **out, const weight_source *src, err *e);
err_code cpu_lora_weight_create(backend *be, weight **out, const void *src, dtype type, int rows,
                                int cols, err *e);

/* Frees the weight; packed bytes only if it has made them itself (not cpu_weight_adopt()). */
void cpu_weight_destroy(backend *be, weight *w);
size_t cpu_weight_packed_bytes(const backend *be, const weight_source *src, uint32_t *layout);

/* A weight over bytes that packed.h has mapped: nothing is copied, and the mapping must outlive
 * it. */
err_code cpu_weight_adopt(backend *be, weight **out, const weight_source *src, const void *packed,
                          err *e);

/* The first of cpu_weight_packed_bytes() bytes, in the layout of that call; borrowed. */
const void *cpu_weight_packed(const weight *w);

/* Bytes of packed A and B for a base of that type, padded to the kernels' panels (CPU_LORA_COLS
 * columns of B). */
size_t cpu_lora_a_bytes(const backend *be, dtype base, int rank, int d_in);
size_t cpu_lora_b_bytes(const backend *be, dtype base, int rank, int d_out);

/* Packs on the calling thread; any thread but while the memory is in use. */
err_code cpu_lora_pack(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                       const void *b_src, dtype type, int rank, int d_in, int d_out, err *e);

/* linear.c */
void cpu_linear(backend *be, const float *x, const linear_out *outs, int n_out, const step *s,
                int layer);

/* In logits.c: the last norm, then the head for the wanted rows, by each segment's own norm and
 * head. */
void cpu_logits(backend *be, float *logits, const float *x, const float *norm_weight, float eps,
                int dim, const weight *head, const step *s);

/* experts.c */
void cpu_experts(backend *be, float *out, const float *x, const expert_set *set,
                 const float *scores, const float *shared, const step *s, int layer);

/* latent.c */
void cpu_latent_norm(backend *be, float *out, const float *x, const float *gain, float eps,
                     const latent_shape *shape, int n_rows);

/* In the absorbed form: multiplies each head's query by W_k, so that attention runs over
 * latents. */
void cpu_latent_query(backend *be, float *out, const float *q, const latent_heads *w,
                      const latent_shape *shape, const step *s, int layer);

/* And its answer by W_v, from latents back to values. */
void cpu_latent_answer(backend *be, float *out, const float *latents, const latent_heads *w,
                       const latent_shape *shape, const step *s, int layer);

/* mixers/conv.c */
void cpu_conv(backend *be, float *out, const float *x, const conv_weights *w,
              const mixer_shape *shape, const step *s, size_t at);

/* mixers/delta.c */
void cpu_delta(backend *be, float *out, const delta_rows *x, const delta_weights *w,
               const mixer_shape *shape, const step *s, size_t at);

/* mixers/scan.c */
void cpu_scan(backend *be, float *out, float *x, const scan_weights *w, const mixer_shape *shape,
              const step *s, size_t at);

/* dora.c */
err_code cpu_lora_gain(backend *be, const weight *w, const lora_pair *pair, const float *magnitude,
                       float *gain, err *e);

/* attend.c */
enum { CPU_KV_BLOCK = 32 }; /* positions that attention takes at a time; the usual page */
size_t cpu_kv_page_bytes(const backend *be, const attn_shape *shape);

/* A pool with memory of its own; of several pools each is independent. */
err_code cpu_kv_create(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, err *e);
err_code cpu_kv_attach(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, void *mem,
                       size_t stride, err *e);
void cpu_kv_destroy(backend *be, kv_pool *kv);

/* Copies at once; cpu_kv_save() and cpu_kv_load() are memcpy() of a page without its padding. */
void cpu_kv_save(backend *be, const kv_pool *kv, int page, void *host);
void cpu_kv_load(backend *be, kv_pool *kv, int page, const void *host);
void cpu_kv_copy(backend *be, kv_pool *kv, int from, int to);

/* Parallel over rows: a thread norms and rotates the heads of a row and writes its K and V. */
void cpu_rope_append(backend *be, kv_pool *kv, float *q, float *k, const float *v,
                     const float *q_norm, const float *k_norm, float norm_eps,
                     const rope_table *rope, const step *s, int layer);

/* Parallel over rows and heads and, when these are fewer than twice the threads, also over parts
 * of the context. Parts have fixed borders and are merged in order, so the bits do not depend on
 * the number of threads. */
void cpu_attend(backend *be, const kv_pool *kv, float *out, const float *q, const float *sinks,
                const step *s, int layer);

/* rows.c */
void cpu_embed(backend *be, float *out, const void *table, dtype type, int dim, const step *s);

/* Rows are spread over the pool; a row is summed by one thread. */
void cpu_rms_norm(backend *be, float *out, const float *x, const float *weight, float eps, int row0,
                  int n_rows, int dim);
void cpu_layer_norm(backend *be, float *out, const float *x, const float *weight, const float *bias,
                    float eps, int row0, int n_rows, int dim);
void cpu_q_take(backend *be, float *q, const float *x, size_t n, int dim);
void cpu_q_gate(backend *be, float *out, const float *x, size_t n, int dim);
void cpu_silu_conv(backend *be, float *x, const conv_weights *w, const mixer_shape *shape,
                   const step *s, size_t at);
void cpu_scan_channels(backend *be, float *out, const channel_rows *x, const channel_weights *w,
                       const mixer_shape *shape, const step *s, size_t at);
void cpu_xielu(backend *be, float *x, const xielu_weights *w, size_t n);
void cpu_streams_predict(backend *be, const stream_set *set, const float *coefs, float *first);
void cpu_streams_correct(backend *be, const stream_set *set, const float *coefs, const float *x,
                         const float *scale, float *first);
void cpu_match_rms(backend *be, float *y, const float *x, float least, int n_rows, int dim);
void cpu_gate_sparse(backend *be, float *gate, float by, int n_rows, int dim);
void cpu_logits_bias(backend *be, float *logits, int n_rows, int stride, const float *bias, int n);
void cpu_gate(backend *be, activation act, float *gate, const float *up, size_t n);
void cpu_add(backend *be, float *x, const float *y, float scale, size_t n);
void cpu_scale(backend *be, float *x, float scale, size_t n);
void cpu_logits_bend(backend *be, float *logits, int n_rows, int stride, float scale, float cap);
/* One row of rms_norm, on the calling thread; used by cpu_logits too. */
void cpu_rms_norm_row(cpu_isa isa, float *out, const float *x, const float *weight, float eps,
                      int dim);

#endif
