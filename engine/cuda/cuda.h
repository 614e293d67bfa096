/* cuda.h -- the CUDA backend's inside: its state, its host code by file.
 *
 *     cuda.c      open/close, faults, the ops table
 *     memory.c    one arena, uploads through pinned staging on a stream of their own
 *     weights.c   matrices and tables in device memory
 *     linear.c    fused groups of matrices, be_linear
 *     rows.c      operations on rows: embeddings, norms, activations, sums
 *     logits.c    be_logits
 *     inside.c    which products have LoRA inside them
 *     experts.c   be_experts(): memory, launches, tables of adapters on experts
 *     products/   matrix products, the base's by blas.h; codes.c: quantised matrices as their
 *                 kernels read them; wait.h: how the host waits for the device
 *     adapter.c   packing, DoRA's gains, the tables that kernels read of each resident adapter
 *     step.c      what a step tells the kernels: one pinned block, one copy
 *     graph.c     decode steps recorded and replayed
 *     draw.c      sampling: rules and lists up, a few bytes a row back
 *     kv.c        KV pages, rope_append, attend
 *     tensor_parallel.c  several devices that share a model, each with all of the above
 *     rows/, *.cu kernels, behind C functions that launch them (rows.h, norms.h, ...)
 *
 * All of this is C and calls the runtime alone, so the same source runs on tests/emu/cuda_rt/.
 *
 * Threads: engine thread, except memory.c and adapter.c's packing, which loaders enter too.
 *
 * Contract: every cuda_<op>() that has a be_<op>() in engine/backend.h fulfils that one's
 * contract; what stands here is what is special on the device. Kernels are launched on one main
 * stream. Uploads have a stream of their own, and the main stream waits for them before a step
 * (cuda_await_uploads()).
 *
 * Errors: functions with an `err *e` may be called by any thread and write their reason there.
 * Functions without one run on the engine thread and mark the backend (CU()); later calls then
 * do nothing until be_sync() reports it.
 */
#ifndef ENGINE_CUDA_CUDA_H
#define ENGINE_CUDA_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "engine/backend_ops.h"
#include "engine/base/lock.h"
#include "engine/base/round.h"
#include "engine/cuda/attend.h"
#include "engine/cuda/experts.h"
#include "engine/cuda/products/blas.h"
#include "engine/cuda/products/codes.h"
#include "engine/cuda/products/gemm.h"
#include "engine/cuda/products/norms.h"
#include "engine/cuda/products/wait.h"
#include "engine/cuda/rows/exchange.h"
#include "engine/cuda/rows/kv.h"
#include "engine/cuda/rows/rows.h"
#include "engine/cuda/sample.h"
#include "engine/cuda/sgmv.h"

enum { CUDA_ALIGN = 256, CUDA_STAGES = 4, CUDA_STAGE_BYTES = 8 << 20, CUDA_FUSED_MAX = 3 };

/* ---- memory.c: one arena, cut into blocks ------------------------------------------------ */

typedef struct cuda_block cuda_block;

typedef struct cuda_stage {
    char *pinned;
    cudaEvent_t done; /* its last copy has been made */
    bool busy;
} cuda_stage;

typedef struct cuda_memory {
    char *base;
    size_t bytes, used;
    cuda_block *first;
    lock mu; /* guards the blocks */
    lock stage_mu;
    cond stage_free;
    cuda_stage stage[CUDA_STAGES];
    int n_stage, turn;
    cudaStream_t stream;     /* uploads */
    cudaEvent_t uploaded;    /* after the last of them */
    atomic_ullong uploads;   /* enqueued so far */
    unsigned long long seen; /* that the main stream waits for; engine thread */
} cuda_memory;

/* ---- weights.c, linear.c --------------------------------------------------------------------- */

typedef struct cuda_weight {
    weight head;
    void *p;          /* [rows][cuda_k()], row-major, zeros behind cols; or: */
    gemm_codes codes; /* form not GEMM_PLAIN: panels of codes (codes.h) */
} cuda_weight;

static inline bool cuda_by_codes(const weight *w)
{
    return ((const cuda_weight *)w)->codes.form != GEMM_PLAIN;
}

/* A result that lies in a fused product's rows instead of where the caller asked for it. */
typedef struct cuda_alias {
    const float *asked;
    float *at;
    int stride; /* floats */
} cuda_alias;

/* ---- adapter.c: what kernels read of an adapter, kept from step to step ---------------------- */

typedef struct cuda_table {
    uint64_t load_id, used; /* 0: empty; step of its last use */
    sgmv_mat *device;
    bool biased;   /* some matrix has a bias or a gain without a rank */
    bool embeds;   /* LoRA on the input table */
    bool own_rows; /* an input table of its own, or rows */
    bool heads;    /* LoRA on the output layer */
} cuda_table;

/* ---- step.c ---------------------------------------------------------------------------------- */

/* One plan of the LoRA kernels on the device, and the sizes of its grids. */
typedef struct cuda_lists {
    const sgmv_counts *counts;
    const sgmv_chunk *chunk, *tile;
    int32_t n_small, n_tile, n_lora, n_all;
    size_t v_floats;
    bool all_rows;
    int32_t chunk_rows, rank_max;
} cuda_lists;

/* What a record serves: steps without adapters, with ranks to 64, to 256, and with LoRA on the
 * input table or the output layer as well.  Other adapters of the same kind need no other
 * record. */
typedef enum {
    CUDA_EXACT, /* none: launches are of the step's own sizes */
    CUDA_BARE,
    CUDA_RANK64,
    CUDA_RANK256,
    CUDA_WHOLE,
} cuda_kind;

/* Sizes of a step's launches. */
typedef struct cuda_shape {
    cuda_kind kind;
    int n_rows, n_logit; /* the step's, or padded: where kind is not CUDA_EXACT */
} cuda_shape;

/* The step as it lies in device memory. */
typedef struct cuda_step {
    const step *of; /* NULL: none since the last cuda_sync() */
    cuda_shape shape;
    char *pinned[2], *device;
    cudaEvent_t copied[2];
    size_t bytes; /* of each */
    uint64_t serial;
    sgmv_seg *seg;          /* host scratch */
    const lora_head **head; /* [n_logit], host: whose output layer; NULL: the base's */
    int stride;             /* floats from one row of logits to the next */
    int head_cols;          /* most that LoRA on an output layer has */
    const int32_t *token, *from, *pos, *slot, *logit_row;
    const cu_embed_alt *alt;
    const cu_expert_row *expert; /* [n_rows], of models with experts */
    int expert_rank;             /* of adapters on experts, at most; 0: no row has one */
    cu_attend_plan plan;         /* host addresses; counts */
    const cu_attend_counts *counts;
    const cu_attend_seq *seq;
    const cu_attend_item *small, *large;
    const int32_t *page;
    cuda_lists rows, logits;
    bool embeds, heads;
} cuda_step;

/* ---- graph.c --------------------------------------------------------------------------------- */

enum { CUDA_GRAPHS = 64 };

typedef struct cuda_graph {
    cuda_shape shape;
    uint64_t used; /* serial of the step that used it last */
    bool tried;    /* its launches have been made once, unrecorded */
    cudaGraphExec_t exec;
} cuda_graph;

typedef struct cuda_graphs {
    bool on, recording, spoilt;
    bool again;      /* the step could not be recorded: its operations come once more */
    err why;         /* spoilt: the first call that could not be recorded */
    cuda_graph *now; /* recording: which one */
    cuda_graph g[CUDA_GRAPHS];
    int n;
} cuda_graphs;

typedef struct cuda_kv {
    kv_pool head;
    char *mem;
    size_t stride;
    bool own;
} cuda_kv;

/* Logits: memory of the caller, and where the product puts them. */
typedef struct cuda_logits {
    float *host, *device;
    size_t bytes;
} cuda_logits;

/* ---- draw.c ---------------------------------------------------------------------------------- */

/* Two for a step that runs and two for the next one: nobody waits before a
 * step of more than two rounds. */
enum { CUDA_DRAW_BLOCKS = 4 };

/* What sampling reads and writes. */
typedef struct cuda_draw {
    char *pinned[CUDA_DRAW_BLOCKS], *device; /* rules and lists; the pinned ones take turns */
    cudaEvent_t copied[CUDA_DRAW_BLOCKS];
    size_t bytes; /* of each */
    unsigned turn, call;
    int max;      /* rows */
    int stride;   /* tokens of one at most */
    sampled *out; /* [max], on the device */
    /* [max], pinned; calls take turns: the next step's comes while this one is read. */
    sampled *answer[2];
} cuda_draw;

/* ---- experts.c ------------------------------------------------------------------------------- */

/* What kernels read of an adapter on experts. */
typedef struct cuda_expert_table {
    uint64_t load_id, used; /* 0: empty; step of its last use */
    const sgmv_mat *device; /* [n_layer][n][3] */
} cuda_expert_table;

typedef struct cuda_experts {
    int n, top_k, dim, ffn; /* step_bounds'; n 0: the model has none */
    int rows;               /* of a step that go through experts at once */
    void *memory;           /* of `at`, and of v */
    cu_experts at;          /* places in it */
    float *v;
    cuda_expert_table *table;
    int n_table, table_more;
    size_t table_bytes; /* of one */
    char *table_memory, *table_pinned;
} cuda_experts;

/* ---- tensor_parallel.c ----------------------------------------------------------------------- */

/* One of the devices that share a model. */
typedef struct cuda_part {
    int i, n; /* n 1: it is alone */
    /* Bytes from what lies on the first device to the same thing here: all that the model and
     * adapters know are the first one's addresses. */
    ptrdiff_t shift;
    const float *whole_of; /* an activation whose columns all have brought together in `whole` */
    void *whole;           /* [max_rows][whole_cols], rounded as products take it */
    size_t whole_bytes;
    /* On the first: the others' columns of the logits are there.  False: the backend is marked. */
    bool (*logits_met)(void *self);
    void *self;
} cuda_part;

/* A matrix whose rows the devices share; or one that each has whole. */
typedef struct cuda_shared_weight {
    weight head;
    weight *part[CU_DEVICES_MAX];
} cuda_shared_weight;

/* MLPs that all rows go through. */
typedef struct cuda_mlps {
    int *cols;       /* [n_layer]: each one's width on this device; 0: the layer has none */
    bool gate_apart; /* no product has their activation */
} cuda_mlps;

typedef struct cuda_state {
    int device, n_sm;
    size_t shared_per_sm;
    bool early; /* the device lets launches begin before those before have ended */
    /* The cudaError_t of the first fault that a device does not recover from; 0: healthy. */
    atomic_int lost;
    device_wait own_wait, *wait; /* one for all that share a model: they wait for each other */
    cudaStream_t stream;
    cudaStream_t side;          /* what runs beside a product: linear.c */
    cudaEvent_t forked, joined; /* of it */
    cudaEvent_t mark[2];        /* of be_mark() */
    unsigned n_mark;
    cuda_memory mem;
    blas blas;
    void *workspace;
    struct thread_pool *pool; /* of the host, for be_parallel() */
    int max_rows, max_seqs, max_context;
    dtype arith; /* of the layers' matrices */
    dtype head_type;
    bool prepared; /* be_prepare() has had the head */
    cuda_part part;
    int n_vocab, dim;
    cuda_mlps mlp;
    latent_shape latent; /* step_bounds', like q_rank */
    int q_rank;
    const void *shared_table; /* the input table that is the head's matrix */

    /* x of the next product, already rounded, where an operation has written it so */
    void *x16;
    const float *x16_of;
    cuda_alias alias[CUDA_FUSED_MAX];
    int n_alias;
    /* Gate and up whose expand, or whose product, is left to be_gate(); NULL, 0: none.  linear.c */
    const weight *late;
    int late_rows; /* of both: the product as well; 0: it has been made */
    sgmv_args late_args;
    bool late_shrunk;
    bool late_inside; /* the product has LoRA inside */
    void *gate16;     /* what a product has gated, and whose that is */
    const float *gate16_of;
    int gate16_cols;
    float *t; /* [max_rows][t_cols]: fused products, and what is added to the residual stream */
    float *v; /* of the LoRA kernels */
    uint32_t *drawn; /* of products with LoRA inside; NULL: the device makes none */
    int t_cols, x_cols;
    size_t v_floats;
    cu_rope_args turn; /* of this layer, left to be_attend(); k NULL: it has been done */
    float *partial;    /* of attention */
    int max_partial;
    cuda_step step;
    cuda_graphs graphs;
    cuda_kv *kv;
    cuda_logits logits;
    cuda_draw draw;
    cuda_table *table;
    int n_table, n_layer;
    char *table_memory, *table_pinned;
    size_t table_bytes; /* of one */
    int table_more;     /* addresses behind the matrices of one */
    cuda_experts experts;
} cuda_state;

static inline cuda_state *cuda_of(const backend *be)
{
    return (cuda_state *)be->impl;
}

/* On this device, what lies at p on the first one. */
static inline const void *cuda_here(const cuda_state *cu, const void *p)
{
    return p ? (const char *)p + cu->part.shift : NULL;
}

static inline const weight *cuda_weight_here(const cuda_state *cu, const weight *w)
{
    if (cu->part.n == 1 || !w) return w;
    return ((const cuda_shared_weight *)w)->part[cu->part.i];
}

/* ---- faults (cuda.c) ------------------------------------------------------------------------- */

/* Every call of the runtime goes through one of these two. CU() is for the engine thread: it marks
 * the backend (sticky; be_sync() reports it) and is false. CU_TRY() is for all other threads: it
 * writes the reason into *e and returns its code (ERR_NOMEM for memory, else ERR_DEVICE). */
bool cuda_sticky(cudaError_t code); /* a new context heals it, or a new process */
bool cuda_ok(backend *be, cudaError_t code, const char *call, const char *file, int line);
#define CU(be, call) cuda_ok((be), (call), #call, __FILE__, __LINE__)
err_code cuda_err(cuda_state *cu, cudaError_t code, const char *call, err *e);
#define CU_TRY(cu, call, e) cuda_err((cu), (call), #call, (e))

/* ---- memory.c, what the others call ---------------------------------------------------------- */
/* Before all else, so that cuda_memory_close() may follow whatever fails. */
void cuda_memory_init(cuda_memory *m);

/* Takes `bytes` of the device's memory in one piece, and the pinned stages. ERR_NOMEM or
 * ERR_DEVICE; cuda_memory_close() must follow in any case. */
err_code cuda_memory_open(cuda_state *cu, size_t bytes, err *e);

/* Gives everything back, also after a failed open; then the struct is zero. No thread may be in
 * an upload. */
void cuda_memory_close(cuda_state *cu);
/* `low`: from the beginning, one after another (matrices, so that some lie side by side); else from
 * the end.  Not zeroed.  NULL: no room. */
void *cuda_take(cuda_state *cu, size_t bytes, bool low);

/* Gives a block back to the arena; NULL is allowed. Kernels that use it must have ended. Any
 * thread. */
void cuda_give(cuda_state *cu, void *p);
size_t cuda_room(cuda_state *cu); /* the largest block that is free */

/* A piece of pinned memory to fill, at most CUDA_STAGE_BYTES; then its copy is enqueued. */
err_code cuda_stage_begin(cuda_state *cu, cuda_stage **out, err *e);

/* Enqueues the copy of the first `bytes` of the stage to dst and gives the stage back, also on
 * an error: it is not the caller's any more. */
err_code cuda_stage_send(cuda_state *cu, cuda_stage *st, void *dst, size_t bytes, err *e);
/* Engine thread: what follows on the main stream runs after all uploads enqueued so far. */
void cuda_await_uploads(backend *be);

/* Zeroes on the upload stream. */
err_code cuda_clear(cuda_state *cu, void *p, size_t bytes, err *e);

/* As cuda_take(), from the end of the arena, and zeroed on the upload stream. */
void *cuda_alloc(backend *be, size_t bytes);

/* The arena's blocks are given back at once; see cuda_give(). */
void cuda_free(backend *be, void *p);

/* The device maps nothing lazily, so this is cuda_free(). */
void cuda_unmap(backend *be, void *p, size_t bytes);

/* Copies through pinned stages and returns when the last piece is enqueued: `src` is free again,
 * and steps enqueued later see the bytes. Any thread. */
err_code cuda_upload(backend *be, void *dst, const void *src, size_t bytes);

/* Reads what was uploaded (weights, biases) on the upload stream and waits for it. It is not
 * ordered with the main stream. Any thread. */
err_code cuda_download(backend *be, void *dst, const void *src, size_t bytes);

/* ---- graph.c --------------------------------------------------------------------------------- */

/* The padded shape of a step. A decode step's launches have the sizes of its shape, and their
 * arguments depend on that shape alone: what differs between steps of one shape is in the block of
 * step.c, at fixed addresses. */
cuda_shape cuda_shape_of(const cuda_state *cu, const step *s);

/* Chooses the step's shape and, where a recorded graph of that shape exists, launches it: false,
 * the caller leaves the operations out. Else true, and recording may have begun. */
bool cuda_step_begin(backend *be, const step *s);

/* Ends the recording and launches it. False: it could not be recorded; the operations must be
 * enqueued again and are launched one by one. */
bool cuda_step_end(backend *be, const step *s);
/* While recording: what cannot be recorded is no fault of the device; the step
 * is launched plainly then. */
void cuda_graph_spoil(cuda_state *cu, const char *call, const char *why);
/* What has been recorded is void: its operands move, or the backend closes. */
void cuda_graphs_drop(cuda_state *cu);

/* ---- step.c, adapter.c ----------------------------------------------------------------------- */

/* Whether launches of this step may begin early (launch.h): where its lists come from the host, all
 * in one copy. */
static inline bool cuda_early(const cuda_state *cu)
{
    return cu->early && cu->step.shape.kind != CUDA_EXACT;
}

/* Room for steps of max_rows rows; once, after the model's scratch is known. */
err_code cuda_step_open(cuda_state *cu, err *e);

/* Frees what cuda_step_open() took; also after a failed open. */
void cuda_step_close(cuda_state *cu);
/* Partial sums of attention that a step may list. */
int cuda_partials_most(const cuda_state *cu);
/* Uploads the step's lists, once for each step.  False: the backend is marked as failed. */
bool cuda_step_enter(backend *be, const step *s);
/* The device's table of a view, uploaded if it is not there yet; NULL: the backend is marked. */
const cuda_table *cuda_table_of(backend *be, const lora_view *view);

/* Memory for the tables of 2 * max_seqs adapters, pinned and on the device: twice as many as one
 * step can use, so that the table that is replaced is never one of the step before. `stride`:
 * bytes from one KV page to the next, which bounds the pieces of an adapter. ERR_LIMIT: pages
 * are too small; ERR_NOMEM. */
err_code cuda_tables_open(cuda_state *cu, int n_layer, size_t stride, err *e);

/* Frees the tables; nothing where there are none. */
void cuda_tables_close(cuda_state *cu);
/* A table on its way: matrices, and the addresses of their further pieces. */
typedef struct cuda_writer {
    sgmv_mat *mats;
    const void **more;
    const void *const *more_device;
    int n, most;
    bool biased; /* some matrix has a bias or a gain without a rank */
} cuda_writer;
/* False: the matrix lies in more pieces than the table can list. */
bool cuda_write_mat(cuda_writer *w, int at, const lora_mat *m, int d_out);
/* Addresses of one matrix at most, if pieces are as large as a page of the pool. */
int cuda_pieces_most(int cols, size_t stride);

/* Notes the sizes of models with experts (cu->experts); the memory is taken when they are
 * prepared. */
void cuda_experts_reserve(cuda_state *cu, const step_bounds *most);
/* After the layer's other products were prepared. */
err_code cuda_experts_prepare(backend *be, void **there, const expert_set *set, err *e);

/* be_experts(): routes rows, sorts them by expert, runs the grouped products (grouped.h) and
 * adds their answers, in rounds of as many rows as fit the scratch. */
void cuda_experts_run(backend *be, float *out, const float *x, const expert_set *set,
                      const float *scores, const float *shared, const step *s, int layer);

/* As cuda_tables_open(), for adapters on experts; nothing for models without experts. */
err_code cuda_expert_tables_open(cuda_state *cu, int n_layer, size_t stride, err *e);

/* Frees them; nothing where there are none. */
void cuda_expert_tables_close(cuda_state *cu);
/* The device's matrices of a view on experts; NULL: the backend is marked. */
const sgmv_mat *cuda_expert_mats(backend *be, const lora_view *view);

static inline int cuda_head_mat(const cuda_state *cu)
{
    return cu->n_layer * PROJ_COUNT;
}
static inline int cuda_embed_mat(const cuda_state *cu)
{
    return cu->n_layer * PROJ_COUNT + 1;
}
static inline int cuda_vocab_of(const cuda_state *cu, const lora_view *view)
{
    return view->n_vocab ? view->n_vocab : cu->n_vocab;
}

/* `n` values of another type, rounded to nearest, in memory that the caller frees; ERR_INPUT
 * where one becomes infinite. */
err_code cuda_convert(void **out, dtype to, const void *src, dtype from, size_t n, err *e);

/* Where a result lies that somebody asked for at `p`, `cols` wide. */
cuda_alias cuda_where(const cuda_state *cu, const float *p, int cols);
/* Rows of an operation that is told of n: in a padded step no row has its own. */
static inline int cuda_step_rows(const cuda_state *cu, int n)
{
    return cu->step.of && cu->step.shape.kind != CUDA_EXACT ? cu->step.shape.n_rows : n;
}
/* How wide rows of x and of matrices are for products: on 16 bytes. */
static inline int cuda_k(dtype type, int cols)
{
    return type == DT_F32 ? cols : round_up(cols, 8);
}
/* RMS norm of `dim` values of rows that lie apart, into dense rows for a product. */
void cuda_norm_part(backend *be, float *out, const cuda_alias *x, const float *gain, float eps,
                    int n_rows, int dim);

/* ---- tensor_parallel.c, what a device calls ------------------------------------------------- */

/* The matrix as it lies on this device; of a projection (d_out columns here) that the devices share
 * this one's columns, which are whole blocks.  `from`: its first further piece in the table. */
void cuda_mat_here(const cuda_state *cu, cuda_writer *w, int at, int from, int d_out);
/* This device's columns of all rows of logits; the first one then has all of them. */
bool cuda_multiply_shared(backend *be, const weight *base, const void *x, int n);

/* ---- linear.c, inside.c ---------------------------------------------------------------------- */

/* y = the rows_of_w rows of w and those behind them by x, with what `more` adds.  False: the
 * backend is marked, or the recording spoilt. */
bool cuda_multiply(backend *be, const weight *w, int rows_of_w, const void *x, float *y, int n_rows,
                   blas_sum more);
/* The common arguments of LoRA kernels for the rows of `l`. */
sgmv_args cuda_lora_args(const cuda_state *cu, const cuda_lists *l, dtype type, const void *x,
                         int d_in);
/* The shrink of all outputs, beside the product that is enqueued next; cuda_finish() waits for it
 * and launches what comes after the product. */
void cuda_begin_shrink(backend *be, const sgmv_args *a, bool adapted);
void cuda_finish(backend *be, sgmv_args *a, bool adapted, bool all_rows);
/* The gate and up that cuda_linear() has left (cuda_state.late), and their gate. */
void cuda_finish_gated(backend *be, const float *gate, bool gelu);
/* A result is where the caller asked for it: cuda_where() knows no other place. */
void cuda_forget(cuda_state *cu, const float *y);
/* The product of x, which is lora->x, into y, the shrink of LoRA beside it, and its expand;
 * `gated`: into there, and gated. */
void cuda_beside(backend *be, const weight *w, int rows_of_w, sgmv_args *lora, float *y,
                 uint16_t *gated);
/* When the plan of such matrices has been made: which sizes of steps go inside. */
err_code cuda_inside_try(backend *be, const weight *w, int rows_of_w, err *e);
/* Whether this step's product of w, rows_of_w of its rows, is made with LoRA inside; `gated`: and
 * be_gate() behind it. */
bool cuda_inside_takes(const cuda_state *cu, const weight *w, int rows_of_w, const sgmv_args *lora,
                       bool gated);
/* One launch, into lora->out[] or `gated`.  False: the backend is marked. */
bool cuda_inside_run(backend *be, const weight *w, int rows_of_w, const sgmv_args *lora,
                     uint16_t *gated, bool gelu);

/* ---- the ops, by file ------------------------------------------------------------------------ */

/* Uploads a plain matrix in its own type, rows padded to cuda_k(), or packs a quantised one by its
 * codes where codes_takes() it. ERR_NOMEM names the bytes in use. Start-up. */
err_code cuda_weight_create(backend *be, weight **out, const weight_source *src, err *e);
/* Rows of a quantised matrix as its products multiply them, f32; the first is a multiple of
 * GEMM_PANEL. */
err_code cuda_codes_read(backend *be, const cuda_weight *w, int row0, int n, float *out, err *e);

/* A matrix that an adapter brings (its own output layer), in the type of the base's head. Loader
 * threads. */
err_code cuda_lora_weight_create(backend *be, weight **out, const void *src, dtype type, int rows,
                                 int cols, err *e);
/* The same in two: room, then values. */
err_code cuda_lora_weight_reserve(backend *be, weight **out, int rows, int cols, err *e);

/* Uploads the values into a matrix of cuda_lora_weight_reserve(); `type` is converted if it
 * differs. ERR_INPUT: a value is too large for the type. */
err_code cuda_lora_weight_fill(backend *be, weight *w, const void *src, dtype type, err *e);

/* Frees its blocks; recorded graphs that used it must have been dropped. */
void cuda_weight_destroy(backend *be, weight *w);

/* Copies the input table to the device, or shares the head's matrix if `same` is one (tied
 * embeddings). */
err_code cuda_table_create(backend *be, const void **out, const void *host, dtype type, int n_vocab,
                           int dim, const weight *same, err *e);

/* Frees the copy; a shared matrix stays. */
void cuda_table_destroy(backend *be, const void *table);

/* Plans the products of these matrices for all numbers of rows: which kernels make them with one
 * order of summation (blas.h), whether the matrices lie side by side and are one product, and
 * scratch for the widest. The first call must be the head's. Start-up. */
err_code cuda_prepare(backend *be, const weight *const *w, int n, err *e);
/* x of a product in its type, rows cuda_k(type, cols) apart; NULL: the backend is marked. */
const void *cuda_rounded(backend *be, const float *x, dtype type, int n_rows, int cols);

/* be_linear(): one product for all outs that lie side by side, with shrink and expand of LoRA on
 * the side stream. Results may stay in the product's own rows (cuda_alias) until an operation
 * asks for them by cuda_where(). */
void cuda_linear(backend *be, const float *x, const linear_out *outs, int n_out, const step *s,
                 int layer);

/* be_logits(): last norm, the base's head, then rows of adapters with a head or LoRA of their
 * own. */
void cuda_logits_run(backend *be, float *logits, const float *x, const float *norm_weight,
                     float eps, int dim, const weight *head, const step *s);

/* Enqueues the copy of the first n floats of the logits to the caller's memory. */
void cuda_logits_fetch(backend *be, float *logits, size_t n);
/* With the memory of logits, when the vocabulary is known. */
err_code cuda_draw_open(backend *be, int stride, err *e);

/* Frees what sampling has; also after a failed open. */
void cuda_draw_close(cuda_state *cu);

/* be_sample(): rounds of rules and lists up, a kernel for each round, one copy of the answers
 * down. The result is pinned memory, one of two blocks that take turns. */
const sampled *cuda_sample(backend *be, float *logits, int n_vocab, const sample_row *rows, int n);

/* Rows of the table, f32, by each segment's own table or LoRA where it has one. */
void cuda_embed(backend *be, float *out, const void *table, dtype type, int dim, const step *s);
void cuda_positions(backend *be, float *out, const float *table, int n, int dim, const step *s);

/* With BF16 products the rows are also written rounded (cu->x16), for the product that follows;
 * without experts, whose router reads f32, and out of place, they are written only so. */
void cuda_rms_norm(backend *be, float *out, const float *x, const float *gain, float eps, int row0,
                   int n_rows, int dim);
void cuda_layer_norm(backend *be, float *out, const float *x, const float *gain, const float *bias,
                     float eps, int row0, int n_rows, int dim);

/* If the product that makes `gate` and `up`, or its LoRA, was left to this call (cu->late), both
 * are done in one launch. */
void cuda_gate(backend *be, activation act, float *gate, const float *up, size_t n);
void cuda_xielu(backend *be, float *x, const xielu_weights *w, size_t n);
void cuda_add(backend *be, float *x, const float *y, float scale, size_t n);
void cuda_scale(backend *be, float *x, float scale, size_t n);
void cuda_logits_bend(backend *be, float *logits, int n_rows, int stride, float scale, float cap);
void cuda_logits_bias(backend *be, float *logits, int n_rows, int stride, const float *bias, int n);

/* Sizes and layout are those of sgmv_plan.h. Loader threads. */
size_t cuda_lora_a_bytes(const backend *be, dtype base, int rank, int d_in);
size_t cuda_lora_b_bytes(const backend *be, dtype base, int rank, int d_out);

/* Packs straight into a pinned stage where the matrix fits one, else through host memory. Loader
 * threads. */
err_code cuda_lora_pack(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                        const void *b_src, dtype type, int rank, int d_in, int d_out, err *e);
err_code cuda_lora_pack_embed(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                              const void *b_src, dtype type, int rank, int n_vocab, int dim,
                              err *e);

/* Downloads the matrix in pieces of 64 rows and computes on the host, in f32 with a double sum.
 * Loader threads. */
err_code cuda_lora_gain(backend *be, const weight *w, const lora_pair *pair, const float *magnitude,
                        float *gain, err *e);

/* All layers of CU_PAGE_TOKENS positions; the layout is rows/kv.h's. Depends on the shape only. */
size_t cuda_kv_page_bytes(const backend *be, const attn_shape *shape);

/* A pool in the arena; see cuda_kv_attach(). */
err_code cuda_kv_create(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, err *e);

/* Also takes what depends on the shape of heads: attention's scratch and the tables of adapters.
 * ERR_UNSUPPORTED: there is a pool already, or heads are larger than CU_HEAD_DIM_MAX or odd. */
err_code cuda_kv_attach(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, void *mem,
                        size_t stride, err *e);

/* Drops recorded graphs first, which have the pool's addresses. */
void cuda_kv_destroy(backend *be, kv_pool *kv);

/* Copies between page and host on the main stream, after the uploads so far; `host` should be
 * pinned (cuda_pin()), else the driver copies twice. Done after cuda_kv_copied(). */
void cuda_kv_save(backend *be, const kv_pool *kv, int page, void *host);
void cuda_kv_load(backend *be, kv_pool *kv, int page, const void *host);
void cuda_kv_copy(backend *be, kv_pool *kv, int from, int to);
void cuda_kv_copied(backend *be);

/* Locks the caller's pages in memory for the device. False: the system does not allow that much;
 * copies then go through the driver's buffers. */
bool cuda_pin(backend *be, void *p, size_t bytes);
void cuda_unpin(backend *be, void *p);

/* In decode steps it may leave its work to the cuda_attend() that follows (cu->turn); see kv.c. */
void cuda_rope_append(backend *be, kv_pool *kv, float *q, float *k, const float *v,
                      const float *q_norm, const float *k_norm, float norm_eps,
                      const rope_table *rope, const step *s, int layer);

/* One kernel for rows of decode steps and one for chunks of prompts (attend.h); long contexts
 * are split over blocks, whose partial sums are merged in a fixed order. */
void cuda_attend(backend *be, const kv_pool *kv, float *out, const float *q, const float *sinks,
                 const step *s, int layer);

/* Attention over latents, in the form that spreads them into keys and values of all heads
 * (be_latent_spread()). */
void cuda_latent_norm(backend *be, float *out, const float *x, const float *gain, float eps,
                      const latent_shape *shape, int n_rows);
void cuda_latent_spread(backend *be, float *k, float *v, const float *kv, const float *x,
                        const latent_shape *shape, int n_rows);

#endif
