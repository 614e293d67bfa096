/* backend_ops.h -- the table a backend fills; read by backend.c and implementers alone.
 *
 * Arguments have been checked by backend.c.  An operation reports trouble through
 * backend_fail(), never by return value.
 */
#ifndef ENGINE_BACKEND_OPS_H
#define ENGINE_BACKEND_OPS_H

#include "engine/backend.h"
#include "engine/weight_source.h"

#ifdef __cplusplus
extern "C" {
#endif

struct backend {
    const backend_ops *ops;
    backend_caps caps;
    void *impl;            /* the implementation's own state */
    err failed;            /* first failure; code ERR_NONE: healthy */
    backend_config config; /* that it was opened with */
    bool open;             /* false: be_reopen() failed */
    bool spent;            /* nothing heals its device in this process */
};

struct backend_ops {
    const char *name;

    err_code (*open)(backend *be, const backend_config *cfg, err *e); /* sets caps and impl */
    void (*close)(backend *be);
    /* Bytes of a device's memory, before it is opened; 0: it cannot be.  NULL: the host's. */
    size_t (*memory)(int device);
    bool (*lost)(const backend *be);           /* NULL: never */
    be_remedy (*remedy)(backend *be);          /* NULL: BE_HEALS_REOPENED */
    const char *(*suspect)(const backend *be); /* NULL: nothing is tried */
    uint64_t (*order)(const backend *be);      /* NULL: 0 */
    void *(*alloc)(backend *be, size_t bytes);
    void (*free)(backend *be, void *p);
    void *(*map)(backend *be, size_t bytes); /* NULL: alloc and free do */
    void (*unmap)(backend *be, void *p, size_t bytes);
    bool (*commit)(backend *be, void *p,
                   size_t bytes);                   /* NULL: all of it is there from the start */
    size_t (*room)(backend *be);                    /* NULL: 0 */
    void *(*host_alloc)(backend *be, size_t bytes); /* NULL: plain memory */
    void (*host_free)(backend *be, void *p, size_t bytes);
    err_code (*upload)(backend *be, void *dst, const void *src, size_t bytes);
    err_code (*download)(backend *be, void *dst, const void *src, size_t bytes);
    void (*copy)(backend *be, void *dst, const void *src, size_t bytes); /* NULL: it cannot */
    void (*sync)(backend *be);

    err_code (*weight_create)(backend *be, weight **out, const weight_source *src, err *e);
    void (*weight_destroy)(backend *be, weight *w);
    /* All or none: weights that can be kept. */
    size_t (*weight_packed_bytes)(const backend *be, const weight_source *src, uint32_t *layout);
    err_code (*weight_adopt)(backend *be, weight **out, const weight_source *src,
                             const void *packed, err *e);
    const void *(*weight_packed)(const weight *w);

    /* NULL: the table itself. */
    err_code (*table_create)(backend *be, const void **out, const void *host, dtype type,
                             int n_vocab, int dim, const weight *same, err *e);
    void (*table_destroy)(backend *be, const void *table);
    err_code (*prepare)(backend *be, const weight *const *w, int n, err *e); /* NULL: nothing */
    /* NULL: nothing */
    err_code (*experts_prepare)(backend *be, void **there, const expert_set *set, err *e);
    bool (*reserve)(backend *be, const step_bounds *most); /* NULL: nothing */

    size_t (*lora_a_bytes)(const backend *be, dtype base, int rank, int d_in);
    size_t (*lora_b_bytes)(const backend *be, dtype base, int rank, int d_out);
    err_code (*lora_pack)(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                          const void *b_src, dtype type, int rank, int d_in, int d_out, err *e);

    /* NULL for backends that keep A's values in order: lora_pack() packs embeddings, too */
    err_code (*lora_pack_embed)(backend *be, dtype base, void *a_dst, void *b_dst,
                                const void *a_src, const void *b_src, dtype type, int rank,
                                int n_vocab, int dim, err *e);

    err_code (*lora_weight_create)(backend *be, weight **out, const void *src, dtype type, int rows,
                                   int cols, err *e);
    err_code (*lora_gain)(backend *be, const weight *w, const lora_pair *pair,
                          const float *magnitude, float *gain, err *e);

    size_t (*kv_page_bytes)(const backend *be, const attn_shape *shape);
    size_t (*kv_saved_bytes)(const backend *be, const attn_shape *shape); /* NULL: as many */
    err_code (*kv_create)(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, err *e);
    err_code (*kv_attach)(backend *be, kv_pool **out, const attn_shape *shape, int n_pages,
                          void *mem, size_t stride, err *e);
    void (*kv_destroy)(backend *be, kv_pool *kv);
    void (*kv_save)(backend *be, const kv_pool *kv, int page, void *host);
    void (*kv_load)(backend *be, kv_pool *kv, int page, const void *host);
    void (*kv_copy)(backend *be, kv_pool *kv, int from, int to);
    void (*kv_copied)(backend *be); /* NULL: they are when kv_save and kv_load return */
    /* Both or none: host memory from and to which copies are fast from now on; false: it is not. */
    bool (*pin)(backend *be, void *p, size_t bytes);
    void (*unpin)(backend *be, void *p);

    /* Both or none: around the operations of a step; see be_step_begin(). */
    bool (*step_begin)(backend *be, const step *s);
    bool (*step_end)(backend *be, const step *s);

    void (*embed)(backend *be, float *out, const void *table, dtype type, int dim, const step *s);
    /* NULL: embed() does it, for a step whose tokens are positions. */
    void (*positions)(backend *be, float *out, const float *table, int n, int dim, const step *s);
    void (*rms_norm)(backend *be, float *out, const float *x, const float *weight, float eps,
                     int row0, int n_rows, int dim);
    /* NULL: backend_caps.extras says no. */
    void (*layer_norm)(backend *be, float *out, const float *x, const float *weight,
                       const float *bias, float eps, int row0, int n_rows, int dim);
    void (*add)(backend *be, float *x, const float *y, float scale, size_t n);
    void (*scale)(backend *be, float *x, float scale, size_t n);
    void (*logits_bend)(backend *be, float *logits, int n_rows, int stride, float scale, float cap);
    void (*logits_bias)(backend *be, float *logits, int n_rows, int stride, const float *bias,
                        int n);

    void (*linear)(backend *be, const float *x, const linear_out *outs, int n_out, const step *s,
                   int layer);
    /* NULL: backend_caps.extras says no. */
    void (*latent_norm)(backend *be, float *out, const float *x, const float *weight, float eps,
                        const latent_shape *shape, int n_rows);
    void (*latent_spread)(backend *be, float *k, float *v, const float *kv, const float *x,
                          const latent_shape *shape, int n_rows);
    void (*latent_query)(backend *be, float *out, const float *q, const latent_heads *w,
                         const latent_shape *shape, const step *s, int layer);
    void (*latent_answer)(backend *be, float *out, const float *latents, const latent_heads *w,
                          const latent_shape *shape, const step *s, int layer);
    void (*rope_append)(backend *be, kv_pool *kv, float *q, float *k, const float *v,
                        const float *q_norm, const float *k_norm, float norm_eps,
                        const rope_table *rope, const step *s, int layer);
    void (*attend)(backend *be, const kv_pool *kv, float *out, const float *q, const float *sinks,
                   const step *s, int layer);
    void (*conv)(backend *be, float *out, const float *x, const conv_weights *w,
                 const mixer_shape *shape, const step *s, size_t at);
    void (*delta)(backend *be, float *out, const delta_rows *x, const delta_weights *w,
                  const mixer_shape *shape, const step *s, size_t at);
    void (*q_take)(backend *be, float *q, const float *x, size_t n, int dim);
    void (*q_gate)(backend *be, float *out, const float *x, size_t n, int dim);
    void (*scan)(backend *be, float *out, float *x, const scan_weights *w, const mixer_shape *shape,
                 const step *s, size_t at);
    void (*silu_conv)(backend *be, float *x, const conv_weights *w, const mixer_shape *shape,
                      const step *s, size_t at);
    void (*scan_channels)(backend *be, float *out, const channel_rows *x, const channel_weights *w,
                          const mixer_shape *shape, const step *s, size_t at);
    void (*xielu)(backend *be, float *x, const xielu_weights *w, size_t n);
    void (*streams_predict)(backend *be, const stream_set *set, const float *coefs, float *first);
    void (*streams_correct)(backend *be, const stream_set *set, const float *coefs, const float *x,
                            const float *scale, float *first);
    void (*match_rms)(backend *be, float *y, const float *x, float least, int n_rows, int dim);
    void (*gate_sparse)(backend *be, float *gate, float by, int n_rows, int dim);
    void (*gate)(backend *be, activation act, float *gate, const float *up, size_t n);
    void (*experts)(backend *be, float *out, const float *x, const expert_set *set,
                    const float *scores, const float *shared, const step *s, int layer);
    void (*logits)(backend *be, float *logits, const float *x, const float *norm_weight, float eps,
                   int dim, const weight *head, const step *s);
    void (*logits_fetch)(backend *be, float *logits, size_t n); /* NULL: they are there */
    const sampled *(*sample)(backend *be, float *logits, int n_vocab, const sample_row *rows,
                             int n); /* NULL: the host does */
    int (*mark)(backend *be);        /* both or none: be_can_run_ahead() */
    void (*await)(backend *be, int mark);
    void (*parallel)(backend *be, void (*fn)(void *arg, int i), void *arg, int n);
};

/* The head of every backend's weight and kv_pool: implementations put it first. */
struct weight {
    int rows, cols;
    dtype type;
    size_t bytes; /* of backend memory */
};

struct kv_pool {
    attn_shape shape;
    int n_pages, page_tokens;
};

/* Marks the backend as failed; the first message stays. */
void backend_fail(backend *be, err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif

#endif
