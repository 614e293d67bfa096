/* backend.h -- where the arithmetic happens: one device, one stream of operations.
 *
 * engine/model/model.c writes the forward pass once against these calls.  They live in
 * backend.c, which checks shapes and dispatches through backend_ops;
 * engine/cpu/ and engine/cuda/ hold the mathematics.  Operations are named after
 * the model, and are coarse, so that a backend can fuse: one be_linear() runs all
 * projections that share an input, their bias and the LoRA of every segment.
 *
 * Batch invariance is part of the contract: the result for a row is the same bits
 * whatever other rows stand in the step, however a prompt was cut into chunks and
 * wherever its pages lie.  So no operation may choose its order of summation by
 * the number of rows.  (Segments of different length must use the same order too.)
 *
 * Activations are f32 [rows][cols], row-major, dense, in backend memory.
 * Weights and adapters are opaque: the backend packs them as its kernels like.
 *
 * Errors are sticky: a failed operation marks the backend, later ones do nothing,
 * and be_sync() reports the first failure.
 *
 * Ownership: whoever created or allocated frees.
 * Threads:   engine thread only, except be_alloc(), be_free(), be_lora_*(), which the
 *            adapter loader may call at any time, and be_weight_*(), start-up only.
 */
#ifndef ENGINE_BACKEND_H
#define ENGINE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/lora.h"
#include "engine/mixer.h"
#include "engine/sample/sampler.h"
#include "engine/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DT_I8: keys and values alone, with a scale for each position of a head. */
typedef enum { DT_F32, DT_F16, DT_BF16, DT_I8 } dtype;

static inline size_t dtype_bytes(dtype t)
{
    return t == DT_F32 ? 4 : t == DT_I8 ? 1 : 2;
}

typedef struct backend backend;
typedef struct weight weight;               /* opaque: one packed matrix */
typedef struct kv_pool kv_pool;             /* opaque: K and V of all pages and layers */
typedef struct weight_source weight_source; /* engine/weight_source.h */

/* Bytes of a list of names of a backend's kernels, separated by commas or spaces. */
enum { BE_KERNELS_MAX = 64 };

typedef struct backend_config {
    int n_threads;   /* CPU: compute threads including the caller; 0: one per core */
    const char *isa; /* CPU: engine.isa */
    int page_tokens; /* positions in a KV page: CPU: 1, 2, 4 ... 64; CUDA: 32; 0: 32 */
    int device;      /* CUDA: ordinal; of several (backend_cuda_tp) the first */
    int n_device;    /* CUDA: that share the model, one behind another; 0: 1 */
    double fraction; /* CUDA: of the device's memory, for everything; 0: 0.9 */
    /* CUDA: the largest step; 0: 512 rows, 64 sequences, 8192 positions each */
    int max_rows, max_seqs, max_context;
    bool no_graphs;               /* CUDA: launch each kernel by itself, also in decode steps */
    char without[BE_KERNELS_MAX]; /* kernels that are not used; unknown names have no effect */
    /* CUDA: a device that does not end what it was given within so long hangs; 0: 25 s. */
    int64_t patience_us;
} backend_config;

/* Which quantised matrices a backend takes by their codes; others become plain values. */
typedef struct weight_rules {
    /* NULL: none.  `expert`: it is one of be_experts(). */
    bool (*takes)(const weight_source *src, bool expert);
    bool bf16;      /* where all matrices are BF16 or taken so; else it takes none */
    bool host_rows; /* be_embed() goes without a table: rows of it stand in `out` already */
    /* Pages of attention over latents hold these (attn_shape.v_in_k): it takes the matrix of keys
     * and values by head, too (latent_heads), for be_latent_query() and be_latent_answer().  False:
     * pages hold keys and values of all heads, of be_latent_spread(). */
    bool absorbs;
} weight_rules;

typedef struct backend_caps {
    const char *name;  /* "cpu", "cuda", "cuda-tp" */
    char detail[96];   /* "amx-bf16, 2 threads" */
    int page_tokens;   /* positions in one KV page; fixed once it is open */
    int n_device;      /* that share a model: a matrix takes 1/n on each; 0: 1 */
    int lora_cols;     /* B is packed in blocks of so many columns, each in one piece; 0: 1 */
    unsigned kv_types; /* that attention takes: bit 1 << dtype */
    bool f16_kv;       /* F16 models keep keys and values in F16 where nothing else is asked */
    unsigned extras;   /* what it computes beyond a Llama's operations: EXTRA_... */
    weight_rules rules;
} backend_caps;

/* What some families ask of a backend besides a Llama's arithmetic; be_extra_name() says it. */
enum {
    EXTRA_SUMS = 1 << 0,          /* be_add(), be_scale(), be_rms_norm() in place */
    EXTRA_LAYER_NORM = 1 << 1,    /* be_layer_norm(), be_logits() without a norm */
    EXTRA_GELU = 1 << 2,          /* be_gate() of another activation than ACT_SILU */
    EXTRA_SCORE_CAP = 1 << 3,     /* attn_shape.cap */
    EXTRA_WINDOWS = 1 << 4,       /* attn_shape.layer_window */
    EXTRA_LOGITS = 1 << 5,        /* be_logits_bend() */
    EXTRA_ROPE_PAIRS = 1 << 6,    /* rope_table.pairs */
    EXTRA_WIDE_NORM = 1 << 7,     /* be_rms_norm() of what be_linear() made beside other outputs */
    EXTRA_NO_GATE = 1 << 8,       /* be_gate() without `up` */
    EXTRA_EXPERTS = 1 << 9,       /* be_experts() */
    EXTRA_SINKS = 1 << 10,        /* be_attend() with sinks */
    EXTRA_LATENT = 1 << 11,       /* be_latent_norm(), and what weight_rules.absorbs names; v_dim */
    EXTRA_CHUNKS = 1 << 12,       /* attn_shape.chunked */
    EXTRA_TEMPER = 1 << 13,       /* rope_table.q_scale */
    EXTRA_KEPT = 1 << 14,         /* attn_shape.kept */
    EXTRA_CONV = 1 << 15,         /* be_conv() */
    EXTRA_ACTS = 1 << 16,         /* activations after ACT_SWIGLU_CLAMPED */
    EXTRA_NORM_LAST = 1 << 17,    /* rope_table.norm_last */
    EXTRA_Q_GATE = 1 << 18,       /* be_q_take(), be_q_gate() */
    EXTRA_DELTA = 1 << 19,        /* be_delta() */
    EXTRA_SCAN = 1 << 20,         /* be_scan(), be_silu_conv(), be_scan_channels() */
    EXTRA_XIELU = 1 << 21,        /* be_xielu() */
    EXTRA_LOGIT_BIAS = 1 << 22,   /* be_logits_bias() */
    EXTRA_SPARSE_MIX = 1 << 23,   /* expert_route.jitter */
    EXTRA_BARE_EXPERTS = 1 << 24, /* be_experts() without gates */
    EXTRA_LAYER_HEADS = 1 << 25,  /* attn_shape.layer_heads, be_rope_append() without keys */
    EXTRA_PER_LAYER = 1 << 26,    /* rows of a table that the host reads in the midst of a step */
    EXTRA_SCALED_MIX = 1 << 27,   /* expert_set.scales */
    EXTRA_POSITIONS = 1 << 28,    /* be_positions() */
    EXTRA_STREAMS = 1 << 29,      /* be_streams_...(), be_match_rms(), be_gate_sparse() */
    EXTRA_APART = 1 << 30,        /* two norms of the stream before attention changes it */
    EXTRAS = 31,
};

/* One of them in words: "soft-capped scores". */
const char *be_extra_name(int bit);

/* Heads of keys and values of one layer. */
typedef struct attn_heads {
    int n_kv_head, head_dim;
} attn_heads;

/* Shape of attention, fixed for a model. */
typedef struct attn_shape {
    int n_layer, n_head, n_kv_head, head_dim;
    dtype kv_type; /* one of backend_caps.kv_types */
    int window;    /* sliding window in tokens; 0: none */
    float scale;   /* usually 1 / sqrt(head_dim) */
    float cap;     /* scores become cap * tanh(score / cap); 0: they do not */
    int v_dim;     /* of a head's values, and of its answer; 0: head_dim */
    /* A value is the first v_dim of its key, which pages hold once (weight_rules.absorbs).  In int8
     * these v_dim and the others of a key have a scale each. */
    bool v_in_k;
    bool chunked; /* a window does not slide: a row sees its own run of so many positions */
    /* The first positions, which each row sees beside its sliding window, of the same width in all
     * layers; 0: none.  A row's distance to them is counted within what it sees (attn_near()). */
    int kept;
    /* [n_layer], borrowed as long as the pool: each layer's window where they differ; `window` is
     * then the widest of them.  NULL: it is that of all layers. */
    const int *layer_window;
    /* [n_layer], borrowed likewise, where layers have other heads; n_kv_head and head_dim are then
     * the most of them.  NULL: all are alike. */
    const attn_heads *layer_heads;
} attn_shape;

/* The shape of one layer: with its own heads. */
static inline attn_shape attn_of_layer(const attn_shape *s, int layer)
{
    attn_shape own = *s;
    if (s->layer_heads) {
        own.n_kv_head = s->layer_heads[layer].n_kv_head;
        own.head_dim = s->layer_heads[layer].head_dim;
    }
    return own;
}

static inline int attn_window(const attn_shape *s, int layer)
{
    return s->layer_window ? s->layer_window[layer] : s->window;
}

/* The first position that a row at `pos` sees. */
static inline int attn_from(const attn_shape *s, int layer, int pos)
{
    int window = attn_window(s, layer);
    if (window == 0 || pos < window + s->kept) return 0; /* what is kept joins the window */
    return s->chunked ? pos - pos % window : pos - window + 1;
}

/* Where a row at `pos` stands for the positions that are kept: as if nothing lay between them and
 * its window (Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks"). */
static inline int attn_near(const attn_shape *s, int pos)
{
    int most = s->kept + s->window - 1;
    return s->kept > 0 && pos > most ? most : pos;
}

static inline int attn_v_dim(const attn_shape *s)
{
    return s->v_dim ? s->v_dim : s->head_dim;
}

/* One projection of be_linear(). */
typedef struct linear_out {
    float *y;          /* [n_rows][w rows] */
    const weight *w;   /* [d_out][d_in] */
    const float *bias; /* [d_out] or NULL */
    int lora_proj;     /* index in lora_mat[layer][...], or -1: never adapted */
    bool accumulate;   /* y += instead of y =   (the residual stream) */
    int stride;        /* of y's rows; 0: w's rows (no other is given to be_linear()) */
} linear_out;

enum { LINEAR_OUT_MAX = 3 };

typedef struct rope_table {
    const float *cos, *sin; /* [max_pos][rope_dim / 2], backend memory */
    /* The first rope_dim values of each head are turned; 0: none, the layer knows no positions. */
    int max_pos, rope_dim;
    bool pairs; /* neighbours are turned together; false: i and i + rope_dim / 2 (rotate-half) */
    /* Queries at pos are multiplied by 1 + q_scale * log(1 + floor((pos + q_from) / q_floor)); 0:
     * they are not. */
    float q_scale, q_floor;
    int q_from;
    bool norm_last; /* queries and keys are normed after they are turned */
    int first;      /* of the values that are turned; those before it are not (EXTRA_LATENT) */
} rope_table;

/* What the gate of an MLP goes through.  ACT_SWIGLU_CLAMPED also bends what it multiplies: gate is
 * at most 7, up within -7 and 7; (up + 1) * gate * sigmoid(1.702 gate), as GPT-OSS has it. */
typedef enum {
    ACT_SILU,
    ACT_GELU_TANH,
    ACT_SWIGLU_CLAMPED,
    ACT_RELU2, /* the square of what is above 0 */
    ACT_GELU,  /* x times the share of a normal distribution below x, exact */
    ACT_RELU,
    ACT_XIELU, /* be_xielu(), of an MLP without a gate */
} activation;

/* Of an activation with parameters of its own (Huang & Schlag 2024, "Deriving Activation Functions
 * Using Integration"): one number each, f32 in backend memory. */
typedef struct xielu_weights {
    const float *alpha_p, *alpha_n; /* before a softplus */
    const float *beta, *eps;
} xielu_weights;

/* Of a convolution, f32 in backend memory. */
typedef struct conv_weights {
    const float *taps; /* [taps][channels], the newest row's last */
    const float *bias; /* [channels] or NULL */
} conv_weights;

/* The delta rule's input: outputs of its layer's projections, in the order of delta_rules.form.
 * q, k and v hold the queries and keys of all groups and the values of all heads; or q holds all
 * three, one after another.  z holds a gate for each value, b how much each head writes, a how much
 * it forgets.  DELTA_FUSED: q holds the query, key, values and gates of each group, and b how much
 * its heads write and forget.  A pointer that the form does not use is not read. */
typedef struct delta_rows {
    const float *q, *k, *v, *z, *b, *a;
} delta_rows;

/* f32 in backend memory. */
typedef struct delta_weights {
    /* Of queries, keys and values, each [taps][its channels]; or [0] is that of all, [taps]
     * [channels], and the others are NULL. */
    const float *taps[3];
    const float *decay; /* [heads], a logarithm */
    const float *bias;  /* [heads], of what a row forgets; or [heads][rows] (rules.each) */
    const float *norm;  /* [cols], of a head's answer */
    delta_rules rules;
} delta_weights;

/* Of a selective scan, f32 in backend memory. */
typedef struct scan_weights {
    conv_weights conv;
    const float *decay;   /* [heads]: logarithms of how fast a head forgets */
    const float *dt_bias; /* [heads] */
    const float *skip;    /* [heads] */
    const float *norm;    /* [heads * cols] or NULL */
    scan_rules rules;
} scan_weights;

enum { EXPERTS_MAX = 1024 };

/* How a row's scores become its experts and their weights. */
typedef struct expert_route {
    int n, top_k;
    bool softmax_last; /* over the chosen scores; else over all, before they are chosen */
    bool sigmoid;      /* of each score, in place of the softmax: first or last, likewise */
    bool normed;       /* the chosen ones' weights sum to one */
    /* Experts stand in n_group groups of as many, and only those of the top_group highest ones can
     * be chosen; a group is as high as its group_best highest together.  0: there are none. */
    int n_group, top_group, group_best;
    float scale;   /* of the weights, at last */
    bool scale_in; /* they multiply what an expert reads, not what it answers */
    /* Above 0: each of two experts has its share among those whose scores are relatively that near
     * to its own (Liu et al. 2024, "GRIN"); the second one's are without the first. */
    float jitter;
} expert_route;

/* A layer's experts: MLPs of which a row takes the top_k with the highest scores. */
typedef struct expert_set {
    expert_route route;
    const float *choice_bias; /* [n], added to the scores for the choice alone; NULL: none */
    const float *scales;      /* [n], which multiply the weights at last; NULL: none */
    bool onto;                /* without `shared`: they are added to what stands in `out` */
    activation act;
    /* One matrix per expert, [n]: gate and up are [d][dim], down is [dim][d]. Without a gate (the
     * device needs EXTRA_BARE_EXPERTS), `gate` is NULL. */
    weight *const *gate, *const *up, *const *down;
    const void *there;                            /* what be_experts_prepare() made of them */
    const float *gate_bias, *up_bias, *down_bias; /* [n][d], [n][d], [n][dim]; NULL: none */
    /* Called before matrices of these n experts (ascending numbers) are read; NULL: nobody asks.
     * The CPU alone. */
    void (*use)(void *self, int layer, const int *expert, int n);
    void *use_self;
} expert_set;

/* ---- life ------------------------------------------------------------------ */

typedef struct backend_ops backend_ops; /* engine/backend_ops.h, for implementers */
extern const backend_ops backend_cpu;
enum { BACKEND_CPU_ISAS = 80 };
/* Writes the CPU's instruction sets in this binary, "portable, avx512"; size: BACKEND_CPU_ISAS. */
void backend_cpu_isas(char *out, size_t size);
#ifdef LORAD_CUDA
extern const backend_ops backend_cuda, backend_cuda_tp; /* tp: over several devices */
#endif

/* Bytes of a device's memory, before it is opened; 0: it cannot be, or nobody counts. */
size_t be_memory(const backend_ops *ops, int device);

/* Opens a device and makes *out, which be_close() frees. `cfg` is copied, except `isa`, which
 * must be a string that outlives the call. ERR_UNSUPPORTED: there is no such device, or this
 * build has no kernels for it; ERR_NOMEM: not enough memory on it. On an error *out is not set.
 * Main thread. */
err_code be_open(backend **out, const backend_ops *ops, const backend_config *cfg, err *e);

/* Waits for what runs, and frees the backend with all of its own memory. Weights, pools and
 * memory that the caller made must have been destroyed before. NULL is allowed. */
void be_close(backend *be);
/* True from the first failure on that only be_reopen() heals; also of
 * calls by loaders.  Any thread. */
bool be_lost(const backend *be);
/* What heals the failure that be_sync() has reported, by what the device's maker promises. */
typedef enum {
    BE_HEALS_REOPENED, /* be_reopen() */
    BE_HEALS_ITSELF,   /* the step failed and nothing else: the failure is forgotten by this call */
    BE_HEALS_NEVER,    /* not in this process: another one has to take its place */
} be_remedy;

/* Returns what the engine must do after an error of be_sync(). The call also clears an error that
 * needs no repair, such as a step that ran out of memory. Engine thread. */
be_remedy be_remedy_of(backend *be);
/* After a failure that BE_HEALS_NEVER: the name of the kernels that were being tried then, for the
 * next process to open the backend without them; NULL: none were. */
const char *be_suspect(const backend *be);
/* Whether a list such as backend_config.without has the name. */
bool be_has_kernel(const char *list, const char *name);
/* After the model is loaded: a number that two servers with the same weights, device, library and
 * build share only if they sum their products in the same order; 0: there is only one order.  It is
 * part of system_fingerprint, so that no stream moves between different orders. */
uint64_t be_order(const backend *be);
/* Closes the device and opens it again with the same configuration.  All that was made of this
 * backend was destroyed or forgotten before, and no other thread is in one of its calls.  On
 * failure the backend can be asked for its remedy, reopened again or closed, nothing else. */
err_code be_reopen(backend *be, err *e);

/* Returns the capabilities of the device, borrowed. They do not change while the device is open.
 * Any thread. */
const backend_caps *be_caps(const backend *be);

/* Backend memory, zeroed, 64-byte aligned (CUDA: 256); NULL when there is none. */
void *be_alloc(backend *be, size_t bytes);

/* Takes back what be_alloc() gave; NULL is allowed. Operations that use the memory must have
 * ended. Any thread. */
void be_free(backend *be, void *p);
/* The same for large areas that fill up slowly: memory comes with the first touch where the system
 * can do that.  The size is given back with them. */
void *be_map(backend *be, size_t bytes);

/* Takes back what be_map() gave, with the same number of bytes. */
void be_unmap(backend *be, void *p, size_t bytes);
/* Whether be_map() gives memory only with the first touch; then be_commit() is that touch
 * for a part of it, whatever others do with it meanwhile.  False: the system can't, or
 * has no memory.  Any thread. */
bool be_commits(const backend *be);
bool be_commit(backend *be, void *p, size_t bytes);
/* Bytes that be_alloc() and be_map() can still give in one piece; 0: nobody counts (host
 * memory). */
size_t be_room(backend *be);
/* Host memory that the device can write at full speed, zeroed; be_logits() wants its result
 * there. */
void *be_host_alloc(backend *be, size_t bytes);

/* Takes back what be_host_alloc() gave, with the same number of bytes; NULL is allowed. */
void be_host_free(backend *be, void *p, size_t bytes);

/* Copies `bytes` from host memory into the backend's. `src` is the caller's again when the call
 * returns; steps that are enqueued later see the bytes. ERR_DEVICE: the backend has failed. Any
 * thread. */
err_code be_upload(backend *be, void *dst, const void *src, size_t bytes);

/* Copies `bytes` from the backend's memory to the host, after all uploads so far. Waits for the
 * copy, but not for operations that are enqueued: for their results call be_sync() first. Any
 * thread. */
err_code be_download(backend *be, void *dst, const void *src, size_t bytes);
/* Within the backend's memory, in order with operations: behind those before it, before those
 * after it.  The areas do not overlap.  Only where be_can_copy(). */
void be_copy(backend *be, void *dst, const void *src, size_t bytes);
bool be_can_copy(const backend *be);

/* First failure since be_open() or the last be_sync(); waits for all operations. */
err_code be_sync(backend *be, err *e);

/* ---- weights ------------------------------------------------------------------ */

/* Packs a matrix that lies in host memory.  The arithmetic type follows: BF16 weights multiply
 * BF16-rounded activations with f32 sums where the machine has the instruction; F32 and F16
 * weights multiply f32 activations.  Quantised ones: by backend_caps.rules. */
err_code be_weight_create(backend *be, weight **out, const weight_source *src, err *e);

/* Frees a weight; NULL is allowed. No operation may still read it. One that was adopted leaves
 * its bytes alone. */
void be_weight_destroy(backend *be, weight *w);

/* What be_weight_create() makes of such a source, for who keeps it (engine/model/packed.h): its
 * bytes, and a number for their layout, which is another one where kernels of this machine or of
 * this release read other bytes.  Of `src` only its shape is looked at.  0: this backend's weights
 * cannot be kept. */
size_t be_weight_packed_bytes(const backend *be, const weight_source *src, uint32_t *layout);
/* A weight over such bytes, 64-byte aligned, which stay as they are and where they are as long.  Of
 * `src` only its shape is looked at. */
err_code be_weight_adopt(backend *be, weight **out, const weight_source *src, const void *packed,
                         err *e);
/* Those bytes of a weight. */
const void *be_weight_packed(const backend *be, const weight *w);

/* Bytes that the packed matrix takes, padding included: what a step reads of it. */
size_t be_weight_bytes(const weight *w);

/* The arithmetic type of products with this matrix: `base` of be_lora_pack() for LoRA beside it.
 * A matrix that is kept by its codes has the type of the values that they stand for. */
dtype be_weight_type(const weight *w);

/* The input table: *out is what be_embed() takes for the raw [n_vocab][dim] matrix `host`, which
 * stays where it is as long.  `same`: a weight made of the same matrix (tied embeddings), or
 * NULL. */
err_code be_table_create(backend *be, const void **out, const void *host, dtype type, int n_vocab,
                         int dim, const weight *same, err *e);

/* Frees what be_table_create() made. The caller's matrix, and a weight that it shares, stay.
 * NULL is allowed. */
void be_table_destroy(backend *be, const void *table);

/* These weights will be the `w` of the outs of one be_linear() (one alone: also of be_logits()).
 * After all weights were made, before the first step; may take its time. */
err_code be_prepare(backend *be, const weight *const *w, int n, err *e);

/* The same for a layer's experts: what be_experts() finds there, for be_free(); it may be NULL.
 * ERR_UNSUPPORTED: this backend has no such experts. */
err_code be_experts_prepare(backend *be, void **there, const expert_set *set, err *e);

/* What keys and values of a row are made of, where they are kept in short (DeepSeek-AI 2024,
 * DeepSeek-V2, section 2.1): x [n_rows][rank + rope] is its latent and a key that all heads share.
 * nope: of a head's other key, v: of its value. */
typedef struct latent_shape {
    int rank, rope, nope, v, n_head;
} latent_shape;

/* The matrix of all heads' keys and values (PROJ_V) by head, for the absorbed form of attention
 * (section 2.1.2 there): W_k q in place of q, and W_v of the summed latents in place of summed
 * values. */
typedef struct latent_heads {
    weight *const *key;   /* [n_head]: [rank][nope], turned */
    weight *const *value; /* [n_head]: [v][rank] */
    dtype lora_type;      /* of the whole matrix: what LoRA beside it was packed for */
} latent_heads;

/* What no step exceeds: rows, rows of logits and their stride, columns of x, of the last layer's
 * (dim), positions of a sequence; and the size of a head. */
typedef struct step_bounds {
    int rows, logits, stride, cols, dim, context, head_dim;
    int experts, top_k, expert_dim; /* of a layer, of a row; what an expert is wide; 0: none */
    /* [n_layer], borrowed for the call: what the MLP that all rows take is wide; 0: none. */
    const int *mlp;
    int n_layer;
    activation act;      /* of these MLPs */
    latent_shape latent; /* rank 0: there is none */
    int q_rank;          /* of a latent of queries; 0: there is none */
} step_bounds;

/* Memory for such steps, so that they allocate nothing.  Again where the
 * bounds grow; between steps. */
err_code be_reserve(backend *be, const step_bounds *most, err *e);

/* ---- adapters ----------------------------------------------------------------- */

/* Bytes that one packed pair takes for a base of type `base`.  Proportional to the rank, and A's to
 * d_in, so that a part of the rows of A, or of B's blocks of lora_cols columns, can be packed
 * elsewhere (struct lora_split). */
size_t be_lora_a_bytes(const backend *be, dtype base, int rank, int d_in);

/* The same for B [d_out][rank]. Both depend only on the arguments, so sizes can be planned
 * before anything is loaded. Any thread. */
size_t be_lora_b_bytes(const backend *be, dtype base, int rank, int d_out);

/* Packs A [rank][d_in] and B [d_out][rank] (host, row-major, `type`) into memory from be_alloc()
 * or be_map(); a_dst or b_dst may be NULL: only the other.  Precision: that of `base` (F32 for
 * F32 and F16, BF16 for BF16). */
err_code be_lora_pack(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                      const void *b_src, dtype type, int rank, int d_in, int d_out, err *e);

/* The same for LoRA on the input table: A [rank][n_vocab] is packed row by token, B [dim][rank] as
 * any.  Sizes: be_lora_a_bytes(rank, n_vocab), be_lora_b_bytes(rank, dim). */
err_code be_lora_pack_embed(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                            const void *b_src, dtype type, int rank, int n_vocab, int dim, err *e);

/* be_weight_create() of plain values for a loader thread: packs on the calling thread alone. */
err_code be_lora_weight_create(backend *be, weight **out, const void *src, dtype type, int rows,
                               int cols, err *e);

/* DoRA's gain of an adapted layer (Liu et al. 2024, section 4.3: the norm is a constant once
 * trained): gain[i] = magnitude[i] / ||W_i + scale * B_i A||_2 for each row of w, A and B taken
 * as be_lora_pack() would round them.  All in host memory; magnitude and gain f32 [d_out].  For
 * a loader thread: rank * d_in * d_out multiply-adds on it.  ERR_INPUT when a row all but
 * vanishes or a gain is not finite. */
typedef struct lora_pair {
    const void *a, *b; /* [rank][d_in], [d_out][rank], row-major, `type`, aligned for it */
    dtype type;
    int rank;
    float scale;
} lora_pair;
err_code be_lora_gain(backend *be, const weight *w, const lora_pair *pair, const float *magnitude,
                      float *gain, err *e);

/* ---- KV pages ----------------------------------------------------------------- */

/* A page on the device (of several: on each), and as be_kv_save() writes it. */
size_t be_kv_page_bytes(const backend *be, const attn_shape *shape);

/* The same page as be_kv_save() writes it to the host: without the padding that some backends
 * have between heads, and the same on every device that has the shape. */
size_t be_kv_saved_bytes(const backend *be, const attn_shape *shape);

/* A pool of n_pages pages, zeroed, in memory of its own. `shape` is copied; its lists
 * (layer_window, layer_heads) are borrowed as long as the pool. ERR_UNSUPPORTED: heads or types
 * that the backend has no kernels for; ERR_NOMEM. Engine thread, as all below; CUDA has one pool
 * at a time. */
err_code be_kv_create(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, err *e);
/* Pages in memory that the caller keeps (be_map()): page i lies at mem + i * stride, and stride is
 * at least be_kv_page_bytes(), a multiple of 64. */
err_code be_kv_attach(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, void *mem,
                      size_t stride, err *e);

/* Frees the pool, and its memory if be_kv_create() made it. No operation may be running. NULL is
 * allowed. */
void be_kv_destroy(backend *be, kv_pool *kv);
/* Copies one page of all layers to host memory of be_kv_saved_bytes() and back, bit for bit,
 * after all that was enqueued before.  Done, and `host` the caller's again, after
 * be_kv_copied(): one wait for many pages. */
void be_kv_save(backend *be, const kv_pool *kv, int page, void *host);
void be_kv_load(backend *be, kv_pool *kv, int page, const void *host);

/* Waits for all copies of pages that were enqueued, and no longer than that. */
void be_kv_copied(backend *be);
/* Copies one page of all layers into another, behind all that was enqueued before. */
void be_kv_copy(backend *be, kv_pool *kv, int from, int to);
/* Host memory for such copies, of the caller's, that the device may reach by itself: several times
 * as fast.  False: it may not, and copies are as slow as they are; then it is not unpinned. */
bool be_pin(backend *be, void *p, size_t bytes);

/* Takes back what be_pin() did; the memory stays the caller's. Only where be_pin() was true. */
void be_unpin(backend *be, void *p);

/* ---- the model's operations: enqueue and return ---------------------------------- */

/* Around the operations of a step, from be_embed() to be_logits():
 *
 *     do {
 *         if (be_step_begin(be, s)) ... the operations ...
 *     } while (!be_step_end(be, s));
 *
 * so that a backend may record them and replay them for a later step of the same shape.  begin is
 * false where it has just enqueued such a record: the operations are left out.  end is false where
 * recording failed: they have to be enqueued again, and will not be recorded.  So they must be the
 * same calls with the same operands for every step with logits, but for what stands in the step. */
bool be_step_begin(backend *be, const step *s);

/* False: enqueue the operations of this step again (see above). */
bool be_step_end(backend *be, const step *s);

/* out[i] = table[token[i]], by the segment's lora_embed where there is one; `table` is the
 * base's, of be_table_create().  NULL, where weight_rules.host_rows: the base's rows stand in out
 * already. */
void be_embed(backend *be, float *out, const void *table, dtype type, int dim, const step *s);
/* out[i] = table[pos[i]]; table [n][dim], f32 in backend memory.  No adapter replaces its rows.
 * (EXTRA_POSITIONS) */
void be_positions(backend *be, float *out, const float *table, int n, int dim, const step *s);

/* out = rms_norm(x) * weight, over n_rows rows of `dim` from row0 on;
 * weight f32 in backend memory. */
void be_rms_norm(backend *be, float *out, const float *x, const float *weight, float eps, int row0,
                 int n_rows, int dim);

/* out = (x - mean(x)) / std(x) * weight + bias, likewise; bias may be NULL. */
void be_layer_norm(backend *be, float *out, const float *x, const float *weight, const float *bias,
                   float eps, int row0, int n_rows, int dim);

/* x += scale * y; x *= scale.  n values. */
void be_add(backend *be, float *x, const float *y, float scale, size_t n);

/* In place; the order of additions does not matter, since each value is by itself. */
void be_scale(backend *be, float *x, float scale, size_t n);

/* Each out: y (+)= x W^T + bias + LoRA of each segment for `layer` (layer < 0: no LoRA).
 * All outs share x [n_rows][d_in] and one weight type.  s gives rows and segments. */
void be_linear(backend *be, const float *x, const linear_out *outs, int n_out, const step *s,
               int layer);

/* out [n_rows][rank] = rms_norm(the latent of x) * weight; out == x: in place, the shared key stays
 * behind it. */
void be_latent_norm(backend *be, float *out, const float *x, const float *weight, float eps,
                    const latent_shape *shape, int n_rows);
/* From kv [n_rows][n_head][nope + v] and the shared key in x: k [n_rows][n_head][nope + rope] and v
 * [n_rows][n_head][v].  (!weight_rules.absorbs) */
void be_latent_spread(backend *be, float *k, float *v, const float *kv, const float *x,
                      const latent_shape *shape, int n_rows);
/* Queries of heads [n_rows][n_head][nope + rope], not yet rotated, as they meet latents: out
 * [n_rows][n_head][rank + rope].  With each segment's LoRA on PROJ_V: W_k of a row's adapter is
 * gain (W + scale B A), and a bias of keys adds the same to all scores of a query.
 * (weight_rules.absorbs) */
void be_latent_query(backend *be, float *out, const float *q, const latent_heads *w,
                     const latent_shape *shape, const step *s, int layer);
/* Of what attention answers, latents [n_rows][n_head][rank]: values of heads, out [n_rows][n_head]
 * [v], with LoRA likewise.  (weight_rules.absorbs) */
void be_latent_answer(backend *be, float *out, const float *latents, const latent_heads *w,
                      const latent_shape *shape, const step *s, int layer);

/* In place on q [n_rows][n_head*head_dim] and k [n_rows][n_kv_head*head_dim]: optional RMS norm
 * per head (q_norm, k_norm f32 [head_dim] or NULL), rotation by pos, then K and V go to the
 * pages of each sequence.  With attn_shape.kept q is [2][n_rows][..]: the second half becomes what
 * the first was, normed and rotated by attn_near() (EXTRA_KEPT).  k NULL: queries alone, of a layer
 * that reads the keys and values of an earlier one (EXTRA_LAYER_HEADS).  v NULL with k: values are
 * in the keys. */
void be_rope_append(backend *be, kv_pool *kv, float *q, float *k, const float *v,
                    const float *q_norm, const float *k_norm, float norm_eps,
                    const rope_table *rope, const step *s, int layer);

/* Causal attention of each row over its sequence's pages, with the layer's window; of what is kept
 * before it, with the second half of q.  No page that lies between the two is read.  sinks f32
 * [n_head] in backend memory, or NULL: one more score for each head, which belongs to no position:
 * it takes its share of the softmax and adds nothing (EXTRA_SINKS). */
void be_attend(backend *be, const kv_pool *kv, float *out, const float *q, const float *sinks,
               const step *s, int layer);

/* A causal convolution of each channel over the rows of its sequence, the oldest row first:
 * out [n_rows][channels] = c * (bias + sum over taps of tap * (b * v)), where b, c and v are the
 * thirds of x [n_rows][3 * channels] (LFM2).  The rows before pos0 stand in the states, `at` floats
 * behind a slot's begin, and the last taps - 1 values of b * v are left there.  (EXTRA_CONV) */
void be_conv(backend *be, float *out, const float *x, const conv_weights *w,
             const mixer_shape *shape, const step *s, size_t at);

/* The gated delta rule along each sequence: queries, keys and values go through the convolution and
 * silu, queries and keys of a head have length 1 then, queries 1 / sqrt(rows) in place of it.  With
 * a head's state S [rows][cols] each row does
 *
 *     S = exp(-exp(decay) * softplus(a + bias)) * S      (one factor, or one for each row of S)
 *     S = S + k (v - S^T k)^T * most * sigmoid(b)
 *     out [n_rows][heads][cols] = rms_norm(S^T q) * norm * silu(z)
 *
 * The states are as be_conv() has them, of mixer_state_floats().  (EXTRA_DELTA) */
void be_delta(backend *be, float *out, const delta_rows *x, const delta_weights *w,
              const mixer_shape *shape, const step *s, size_t at);

/* x [n][2 * dim]: of each head of a row a query and a gate.  q [n][dim] becomes the queries; out
 * [n][dim] is multiplied by the gates' sigmoid.  n: heads of all rows.  (EXTRA_Q_GATE) */
void be_q_take(backend *be, float *q, const float *x, size_t n, int dim);

/* Multiplies attention's answer by the gates, in place; see be_q_take(). */
void be_q_gate(backend *be, float *out, const float *x, size_t n, int dim);

/* The selective scan of Mamba-2 (Dao and Gu 2024) along each sequence.  x: [rows][scan_in()], which
 * it overwrites; the convolution's part of it goes through silu.  Row t of a head, with its group's
 * B and C, changes the state [rows][cols] to a * state + B (dt * x)^T, with dt = softplus(dt +
 * dt_bias) within the rules' bounds and a = exp(-dt * exp(decay)), and answers C^T state + skip *
 * x; times silu of the gate, and normed.  out: [rows][scan_out()]. */
void be_scan(backend *be, float *out, float *x, const scan_weights *w, const mixer_shape *shape,
             const step *s, size_t at);

/* Of a selective scan of channels, f32 in backend memory. */
typedef struct channel_weights {
    const float *decay;           /* [channels][rows] */
    const float *skip;            /* [channels] */
    const float *b_norm, *c_norm; /* [rows] */
    float eps;                    /* of these norms */
} channel_weights;

/* The scan's input of each row: x and dt are [channels]; the second half of in, [2 * channels], is
 * a gate; B and C begin at `first` in bc, [first + 2 * rows]. */
typedef struct channel_rows {
    const float *x, *dt, *in, *bc;
    int first;
} channel_rows;

/* A convolution along each sequence, in place, and silu.  x [rows][channels]; the states are as
 * be_conv() has them.  (EXTRA_SCAN) */
void be_silu_conv(backend *be, float *x, const conv_weights *w, const mixer_shape *shape,
                  const step *s, size_t at);
/* The selective scan of Mamba (Gu and Dao 2023) along each sequence, of a shape with one head.  Row
 * t, with B and C normed, changes the state [channels][rows] to exp(-dt * exp(decay)) * state +
 * dt * x * B, with dt = softplus(dt), and answers (C^T state + skip * x) times silu of the gate.
 * (EXTRA_SCAN) */
void be_scan_channels(backend *be, float *out, const channel_rows *x, const channel_weights *w,
                      const mixer_shape *shape, const step *s, size_t at);

/* x, in place: (alpha_p x + beta) x above 0, else alpha_n (expm1(min(x, eps)) - x) + beta x; the
 * two alphas behind their softplus, and alpha_n with beta added. */
void be_xielu(backend *be, float *x, const xielu_weights *w, size_t n);
/* Streams that each layer updates together (Baykal et al. 2023, "Alternating Updates"): n of them,
 * each of n_rows x dim values, `apart` from one to the next, in backend memory. */
typedef struct stream_set {
    float *x;
    size_t apart;
    int n, n_rows, dim;
} stream_set;
enum { STREAMS_MAX = 8 };

/* Stream i += the sum over k of coefs[row][i * n + k] * stream k, all as they were before.  first
 * [n_rows][dim]: a copy of stream 0 then.  (EXTRA_STREAMS) */
void be_streams_predict(backend *be, const stream_set *set, const float *coefs, float *first);
/* Stream i += (1 + coefs[row][i]) * (x - stream 0), all as they were before.  first: stream 0 then,
 * each column multiplied by scale [dim]; NULL: by 1. */
void be_streams_correct(backend *be, const stream_set *set, const float *coefs, const float *x,
                        const float *scale, float *first);
/* Multiplies each row of y so that its root mean square is that of the row of x; the mean square of
 * y counts as at least `least`. */
void be_match_rms(backend *be, float *y, const float *x, float least, int n_rows, int dim);
/* Subtracts from each value of a row the row's mean plus `by` standard deviations, in place;
 * negative results become 0. */
void be_gate_sparse(backend *be, float *gate, float by, int n_rows, int dim);

/* gate = act(gate) * up, n values; up NULL: act(gate). */
void be_gate(backend *be, activation act, float *gate, const float *up, size_t n);

/* out [n_rows][dim] (+)= for each row of x the sum over its experts of weight * down(act(gate x) *
 * up x), with each segment's LoRA on experts.  scores [n_rows][n]: the router's; of equal ones the
 * expert with the lower number comes first.  shared [n_rows][1], or NULL: out is multiplied by its
 * sigmoid and added to; without it, out is overwritten, or added to (expert_set.onto).  Vectors are
 * f32 in backend memory. */
void be_experts(backend *be, float *out, const float *x, const expert_set *set, const float *scores,
                const float *shared, const step *s, int layer);

/* logits [n_logit][s->logit_stride, or rows of head] = rms_norm(x[logit_row]) head^T, by the
 * segment's norm and lora_head where it has them; `logits` is of be_host_alloc(), x [n_rows][dim].
 * norm_weight NULL: x stands as it is, and no segment has a norm.  be_sample() finds them there;
 * the host does after be_logits_fetch() of the first n_rows and be_sync(). */
void be_logits(backend *be, float *logits, const float *x, const float *norm_weight, float eps,
               int dim, const weight *head, const step *s);
/* Adds bias [n] to the first n logits of each row, before be_logits_bend(). */
void be_logits_bias(backend *be, float *logits, int n_rows, int stride, const float *bias, int n);
/* The logits of these rows become scale * logit, then, where cap is not 0, cap * tanh(logit / cap).
 * `stride` from one row to the next; before they are fetched or sampled. */
void be_logits_bend(backend *be, float *logits, int n_rows, int stride, float scale, float cap);

/* Enqueues the copy of the first n_rows rows of n_vocab logits to where the host reads them;
 * nothing where they are in host memory already. Readable after be_sync(). */
void be_logits_fetch(backend *be, float *logits, int n_rows, int n_vocab);

/* ---- sampling where the logits are ------------------------------------------------ */

/* What one row of logits is for: sampler_pick(), or sampler_score() of the token `score`. */
typedef struct sample_row {
    int logit;             /* which row of be_logits(); no two of a call share one */
    int32_t score;         /* -1: pick */
    int n_top;             /* alternatives to a scored token */
    const sampling *rules; /* at most SAMPLE_BIAS_MAX biases, SAMPLE_STOP_MAX stop ids */
    const int32_t *prompt,
        *output; /* together at most max_context; read where a penalty asks for them */
    int n_prompt, n_output;
    const uint32_t *allowed; /* as sampler_pick() has it, or NULL */
    int n_vocab;             /* tokens that are there; 0: the call's */
} sample_row;

/* Whether be_sample() is to be called.  A backend whose logits the host reads as they are (the CPU)
 * leaves sampling to the caller's threads. */
bool be_can_sample(const backend *be);

/* Enqueues the sampling of `n` rows of what be_logits() has enqueued; what they point to is copied
 * before it returns.  The result [n] can be read after be_sync() and until the next call (see
 * be_can_run_ahead()); it, and nothing of the size of the vocabulary, is what is copied to the
 * host.  All of a request's rules are kept, also the token mask of a grammar (uploaded: an eighth
 * of a byte a token) and the scoring of prompts (echo), so logits never have to go to the host.
 * Changes the logits.  The tokens are those of sampler.h up to the rounding of exp(): the same draw
 * numbers, in f64.  n = 0 is allowed.  NULL: the backend is marked as failed. */
const sampled *be_sample(backend *be, float *logits, int n_vocab, const sample_row *rows, int n);

/* ---- a step while the one before it runs -------------------------------------------- */

/* Whether be_mark() and be_await() may be called, and steps have `from`.  All that a step and its
 * sampling point to is then copied before the calls that enqueue them return, and what be_sample()
 * returned is kept until its next call but one. */
bool be_can_run_ahead(const backend *be);
/* Marks all that has been enqueued so far; at most two marks are not awaited yet. */
int be_mark(backend *be);
/* Waits for the operations before that mark, and for none behind it.  As be_sync() it
 * reports the first failure. */
err_code be_await(backend *be, int mark, err *e);

/* Runs fn(arg, i) for i in [0, n) on the backend's host threads (sampling of many rows). */
void be_parallel(backend *be, void (*fn)(void *arg, int i), void *arg, int n);

#ifdef __cplusplus
}
#endif

#endif
