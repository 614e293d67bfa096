/* tensor_parallel.c -- a backend of several devices that share one model.
 *
 * Each device is a CUDA backend of its own (cuda.h) with some of the rows of every matrix; of
 * queries, keys and values it has whole heads with their pages.  One device sums a row of a matrix
 * from beginning to end.  So nothing is added across devices, and the bits are the same for every
 * number of them.  What is computed in parts is gathered by copies:
 *
 *   attention's output, the MLP's inner activations      rounded, before the product that reads
 *   them
 *   that product's result, in the residual stream        f32
 *   logits                                               f32, on the first device alone
 *
 * For that each device writes its columns into the memory of all others (rows/exchange.h).  Then
 * all streams wait for all.  Between two writes to the same place is an exchange after its last
 * read, so no device overwrites what another still reads.
 *
 * Norms and the input table are whole on each device and computed by all.  Adapters are whole on
 * each device, too: all of them shrink, and expand has a device's own columns.  Adapters' output
 * layers and sampling are on the first device.
 *
 * Memory is symmetric: what the model and adapters hold has the same offset from the beginning of
 * each device's arena, so one address is valid for all (cuda_here()).  An allocation is made on all
 * devices under one lock.
 *
 * A decode step is one graph.  It is recorded on the first device's stream, which all others join.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/pool.h"
#include "engine/cuda/cuda.h"

typedef struct tp_state {
    int n;
    backend dev[CU_DEVICES_MAX];
    cudaEvent_t told[CU_DEVICES_MAX]; /* behind what a device has enqueued for the others */
    float *logits[CU_DEVICES_MAX];    /* be_host_alloc()'s of each; the first is the caller's */
    const float *parted; /* the activation of which each device has its own columns, dense */
    lock mu;             /* memory of all devices is taken and given back in one order */
} tp_state;

typedef struct tp_kv {
    kv_pool head;
    kv_pool *part[CU_DEVICES_MAX]; /* of each device's heads */
} tp_kv;

static tp_state *tp_of(const backend *be)
{
    return (tp_state *)be->impl;
}

static cuda_state *state_of(const tp_state *tp, int i)
{
    return cuda_of(&tp->dev[i]);
}

/* The first failure of a device is the backend's. */
static bool take_failure(backend *be, int i)
{
    backend *d = &tp_of(be)->dev[i];
    if (d->failed.code && !be->failed.code) be->failed = d->failed;
    d->failed = (err){0};
    return be->failed.code == ERR_NONE;
}

/* for (int i = 0; enter(be, i); i++): calls are for device i.  False behind the last one, and where
 * one has failed. */
static bool enter(backend *be, int i)
{
    tp_state *tp = tp_of(be);
    if (i > 0 && !take_failure(be, i - 1)) return false;
    return i < tp->n && CU(&tp->dev[i], cudaSetDevice(state_of(tp, i)->device));
}

static const void *here(const backend *be, int i, const void *p)
{
    return cuda_here(state_of(tp_of(be), i), p);
}

static float *floats_here(const backend *be, int i, const float *p)
{
    return (float *)(uintptr_t)here(be, i, p);
}

/* ---- life -------------------------------------------------------------------------------- */

static err_code let_peers(const tp_state *tp, int i, err *e)
{
    cuda_state *cu = state_of(tp, i);
    err_code rc = CU_TRY(cu, cudaSetDevice(cu->device), e);
    for (int j = 0; !rc && j < tp->n; j++) {
        int other = state_of(tp, j)->device, can = 0;
        if (j == i) continue;
        rc = CU_TRY(cu, cudaDeviceCanAccessPeer(&can, cu->device, other), e);
        if (!rc && !can)
            return err_set(e, ERR_UNSUPPORTED,
                           "CUDA device %d cannot reach the memory of device %d, which tensor "
                           "parallel needs",
                           cu->device, other);
        if (rc) break;
        cudaError_t ce = cudaDeviceEnablePeerAccess(other, 0);
        if (ce == cudaErrorPeerAccessAlreadyEnabled)
            (void)cudaGetLastError(); /* of a backend before this one */
        else
            rc = CU_TRY(cu, ce, e);
    }
    return rc;
}

static err_code open_one(tp_state *tp, int i, const backend_config *cfg, err *e)
{
    backend *d = &tp->dev[i];
    *d = (backend){.ops = &backend_cuda, .config = *cfg};
    d->config.device = cfg->device + i;
    if (i > 0) d->config.n_threads = 1;
    err_code rc = backend_cuda.open(d, &d->config, e);
    if (rc) return rc;
    tp->n = i + 1;
    cuda_state *cu = cuda_of(d), *first = state_of(tp, 0);
    cu->early = false; /* what launches begin beside is another device's, too */
    cu->blas.ours = true;
    cu->wait = cu->blas.wait = first->wait;
    if (i > 0) {
        pool_destroy(cu->pool);
        cu->pool = first->pool;
    }
    if (cu->mem.bytes != first->mem.bytes || cu->n_sm != first->n_sm)
        return err_set(e, ERR_UNSUPPORTED,
                       "CUDA devices %d and %d are of different kinds: engine.tensor_parallel "
                       "requires equal devices",
                       first->device, cu->device);
    return CU_TRY(cu, cudaEventCreateWithFlags(&tp->told[i], cudaEventDisableTiming), e);
}

/* A device that is lost, or hangs, takes the others with it: their memory is mapped into its
 * context. */
static void tp_close(backend *be)
{
    tp_state *tp = tp_of(be);
    int lost = 0;
    if (!tp) return;
    for (int i = 0; i < tp->n; i++) {
        cuda_state *cu = state_of(tp, i);
        if (!lost) lost = atomic_load(&cu->lost);
        (void)cudaSetDevice(cu->device);
        if (cu->stream) (void)wait_stream(cu->wait, cu->stream);
        if (cu->mem.stream) (void)wait_stream(cu->wait, cu->mem.stream);
    }
    for (int i = 0; i < tp->n; i++) {
        cuda_state *cu = state_of(tp, i);
        (void)cudaSetDevice(cu->device);
        if (lost) atomic_store(&cu->lost, lost);
        if (tp->told[i]) (void)cudaEventDestroy(tp->told[i]);
        cuda_graphs_drop(cu);
    }
    for (int i = tp->n - 1; i >= 0; i--) {
        cuda_state *cu = state_of(tp, i);
        (void)cudaSetDevice(cu->device);
        if (i > 0) cu->pool = NULL; /* the first one's */
        backend_cuda.close(&tp->dev[i]);
        be->spent |= tp->dev[i].spent;
    }
    lock_free(&tp->mu);
    free(tp);
    be->impl = NULL;
}

static bool logits_met(void *self);

static err_code tp_open(backend *be, const backend_config *cfg, err *e)
{
    int n = cfg->n_device;
    if (n < 2 || n > CU_DEVICES_MAX)
        return err_set(e, ERR_INPUT, "tensor parallel is over 2 to %d devices", CU_DEVICES_MAX);
    tp_state *tp = calloc(1, sizeof(*tp));
    if (!tp) return err_set(e, ERR_NOMEM, "no memory for the CUDA backend");
    be->impl = tp;
    lock_init(&tp->mu, LOCK_CUDA_DEVICES);
    err_code rc = ERR_NONE;
    for (int i = 0; !rc && i < n; i++) rc = open_one(tp, i, cfg, e);
    uintptr_t base = rc ? 0 : (uintptr_t)state_of(tp, 0)->mem.base;
    for (int i = 0; !rc && i < n; i++) {
        cuda_state *cu = state_of(tp, i);
        cu->part = (cuda_part){.i = i,
                               .n = n,
                               .shift = (ptrdiff_t)((uintptr_t)cu->mem.base - base),
                               .logits_met = logits_met,
                               .self = tp}; /* not `be`, which another may follow (be_reopen()) */
        rc = let_peers(tp, i, e);
    }
    if (rc) {
        tp_close(be);
        return rc;
    }
    backend_caps caps = tp->dev[0].caps;
    caps.name = be->caps.name;
    caps.n_device = n;
    caps.extras &= ~(unsigned)(EXTRA_LATENT | EXTRA_EXPERTS | EXTRA_WIDE_NORM);
    (void)snprintf(caps.detail, sizeof(caps.detail), "%d x %.80s", n, tp->dev[0].caps.detail);
    be->caps = caps;
    return ERR_NONE;
}

static size_t tp_memory(int device)
{
    return backend_cuda.memory(device);
}

static bool tp_lost(const backend *be)
{
    const tp_state *tp = tp_of(be);
    bool lost = false;
    for (int i = 0; i < tp->n; i++) lost |= backend_cuda.lost(&tp->dev[i]);
    return lost;
}

/* What the worst of them asks for. */
static be_remedy tp_remedy(backend *be)
{
    tp_state *tp = tp_of(be);
    be_remedy worst = BE_HEALS_ITSELF;
    for (int i = 0; i < tp->n; i++) {
        (void)cudaSetDevice(state_of(tp, i)->device);
        be_remedy r = backend_cuda.remedy(&tp->dev[i]);
        tp->dev[i].failed = (err){0};
        if (r == BE_HEALS_NEVER || worst == BE_HEALS_ITSELF) worst = r;
    }
    tp->parted = NULL;
    return worst;
}

static const char *tp_suspect(const backend *be)
{
    const tp_state *tp = tp_of(be);
    const char *kernels = NULL;
    for (int i = 0; i < tp->n && !kernels; i++) kernels = backend_cuda.suspect(&tp->dev[i]);
    return kernels;
}

static uint64_t tp_order(const backend *be)
{
    return backend_cuda.order(&tp_of(be)->dev[0]);
}

static void tp_sync(backend *be)
{
    for (int i = 0; enter(be, i); i++) backend_cuda.sync(&tp_of(be)->dev[i]);
}

static int tp_mark(backend *be)
{
    int mark = enter(be, 0) ? backend_cuda.mark(&tp_of(be)->dev[0]) : 0;
    (void)take_failure(be, 0);
    return mark;
}

/* The first device's stream has waited for the others' part of the step. */
static void tp_await(backend *be, int mark)
{
    tp_state *tp = tp_of(be);
    if (!enter(be, 0)) return;
    backend_cuda.await(&tp->dev[0], mark);
    for (int i = 0; i < tp->n; i++) {
        int lost = atomic_load(&state_of(tp, i)->lost);
        if (lost) (void)CU(&tp->dev[i], (cudaError_t)lost); /* a loader met it */
        (void)take_failure(be, i);
    }
}

static void tp_parallel(backend *be, void (*fn)(void *arg, int i), void *arg, int n)
{
    backend_cuda.parallel(&tp_of(be)->dev[0], fn, arg, n);
}

/* ---- memory -------------------------------------------------------------------------------- */

/* NULL where devices would have it at different places, or one has none. */
static void *tp_alloc(backend *be, size_t bytes)
{
    tp_state *tp = tp_of(be);
    void *p[CU_DEVICES_MAX] = {NULL};
    bool ok = true;
    lock_take(&tp->mu);
    for (int i = 0; ok && i < tp->n; i++) {
        p[i] = cuda_alloc(&tp->dev[i], bytes);
        ok = p[i] && p[i] == here(be, i, p[0]);
        if (p[i] && !ok)
            log_error("engine", "the devices' memory is no longer divided in the same way");
    }
    for (int i = 0; !ok && i < tp->n; i++) cuda_give(state_of(tp, i), p[i]);
    lock_release(&tp->mu);
    return ok ? p[0] : NULL;
}

static void tp_free(backend *be, void *p)
{
    tp_state *tp = tp_of(be);
    lock_take(&tp->mu);
    for (int i = 0; i < tp->n; i++) cuda_give(state_of(tp, i), (void *)(uintptr_t)here(be, i, p));
    lock_release(&tp->mu);
}

static void tp_unmap(backend *be, void *p, size_t bytes)
{
    (void)bytes;
    tp_free(be, p);
}

static size_t tp_room(backend *be)
{
    return cuda_room(state_of(tp_of(be), 0));
}

static void tp_host_free(backend *be, void *p, size_t bytes)
{
    tp_state *tp = tp_of(be);
    assert(p == tp->logits[0]);
    lock_take(&tp->mu);
    for (int i = 0; i < tp->n; i++) {
        (void)cudaSetDevice(state_of(tp, i)->device);
        if (tp->logits[i]) backend_cuda.host_free(&tp->dev[i], tp->logits[i], bytes);
        tp->logits[i] = NULL;
    }
    lock_release(&tp->mu);
}

static void *tp_host_alloc(backend *be, size_t bytes)
{
    tp_state *tp = tp_of(be);
    bool ok = !tp->logits[0];
    lock_take(&tp->mu);
    for (int i = 0; ok && i < tp->n; i++) {
        ok = cudaSetDevice(state_of(tp, i)->device) == cudaSuccess;
        if (ok) tp->logits[i] = backend_cuda.host_alloc(&tp->dev[i], bytes);
        ok &= tp->logits[i] != NULL;
    }
    lock_release(&tp->mu);
    if (!ok && tp->logits[0]) tp_host_free(be, tp->logits[0], bytes);
    return ok ? tp->logits[0] : NULL;
}

static err_code tp_upload(backend *be, void *dst, const void *src, size_t bytes)
{
    tp_state *tp = tp_of(be);
    err_code rc = ERR_NONE;
    for (int i = 0; !rc && i < tp->n; i++)
        rc = cuda_upload(&tp->dev[i], (void *)(uintptr_t)here(be, i, dst), src, bytes);
    return rc;
}

static err_code tp_download(backend *be, void *dst, const void *src, size_t bytes)
{
    return cuda_download(&tp_of(be)->dev[0], dst, src, bytes);
}

static bool tp_pin(backend *be, void *p, size_t bytes)
{
    (void)be;
    if (cudaHostRegister(p, bytes, cudaHostRegisterPortable) == cudaSuccess) return true;
    (void)cudaGetLastError();
    return false;
}

static void tp_unpin(backend *be, void *p)
{
    if (!atomic_load(&state_of(tp_of(be), 0)->wait->hung)) (void)cudaHostUnregister(p);
}

/* ---- weights --------------------------------------------------------------------------------- */

typedef struct sliced {
    const weight_source *of;
    int row0;
} sliced;

static void read_sliced(const weight_source *s, int row, const weight_row *to)
{
    const sliced *is = s->impl;
    is->of->read_row(is->of, is->row0 + row, to);
}

/* Rows of `src` from is->row0 on. */
static weight_source slice_of(const sliced *is, int rows)
{
    weight_source s = *is->of;
    s.rows = rows;
    if (weight_source_quantised(&s)) {
        s.read_row = read_sliced;
        s.impl = is;
    } else {
        s.data = (const char *)s.data + (size_t)is->row0 * (size_t)s.cols * dtype_bytes(s.type);
    }
    return s;
}

static void tp_weight_destroy(backend *be, weight *w)
{
    tp_state *tp = tp_of(be);
    cuda_shared_weight *all = (cuda_shared_weight *)w;
    lock_take(&tp->mu);
    for (int i = 0; i < tp->n; i++) {
        if (all->part[i]) cuda_weight_destroy(&tp->dev[i], all->part[i]);
    }
    lock_release(&tp->mu);
    free(all);
}

static err_code tp_weight_create(backend *be, weight **out, const weight_source *src, err *e)
{
    tp_state *tp = tp_of(be);
    if (src->rows % tp->n != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "a matrix of %d rows: %d devices cannot share them evenly", src->rows,
                       tp->n);
    cuda_shared_weight *w = calloc(1, sizeof(*w));
    if (!w) return err_set(e, ERR_NOMEM, "no memory for a matrix");
    err_code rc = ERR_NONE;
    int rows = src->rows / tp->n;
    for (int i = 0; !rc && i < tp->n; i++) {
        const sliced is = {.of = src, .row0 = i * rows};
        weight_source part = slice_of(&is, rows);
        rc = cuda_weight_create(&tp->dev[i], &w->part[i], &part, e);
    }
    if (rc) {
        tp_weight_destroy(be, &w->head);
        return rc;
    }
    w->head = *w->part[0];
    w->head.rows = src->rows;
    *out = &w->head;
    return ERR_NONE;
}

/* An adapter's: whole on each device, though the first alone multiplies by it. */
static err_code tp_lora_weight_create(backend *be, weight **out, const void *src, dtype type,
                                      int rows, int cols, err *e)
{
    tp_state *tp = tp_of(be);
    cuda_shared_weight *w = calloc(1, sizeof(*w));
    if (!w) return err_set(e, ERR_NOMEM, "no memory for a matrix");
    err_code rc = ERR_NONE;
    lock_take(&tp->mu);
    for (int i = 0; !rc && i < tp->n; i++)
        rc = cuda_lora_weight_reserve(&tp->dev[i], &w->part[i], rows, cols, e);
    lock_release(&tp->mu);
    for (int i = 0; !rc && i < tp->n; i++)
        rc = cuda_lora_weight_fill(&tp->dev[i], w->part[i], src, type, e);
    if (rc) {
        tp_weight_destroy(be, &w->head);
        return rc;
    }
    w->head = *w->part[0];
    *out = &w->head;
    return ERR_NONE;
}

static void tp_table_destroy(backend *be, const void *table)
{
    tp_state *tp = tp_of(be);
    for (int i = 0; i < tp->n; i++) cuda_table_destroy(&tp->dev[i], here(be, i, table));
}

/* Whole on each device, beside its rows of a head of the same values. */
static err_code tp_table_create(backend *be, const void **out, const void *host, dtype type,
                                int n_vocab, int dim, const weight *same, err *e)
{
    tp_state *tp = tp_of(be);
    const void *p[CU_DEVICES_MAX] = {NULL};
    err_code rc = ERR_NONE;
    (void)same;
    for (int i = 0; !rc && i < tp->n; i++) {
        rc = cuda_table_create(&tp->dev[i], &p[i], host, type, n_vocab, dim, NULL, e);
        if (!rc && p[i] != here(be, i, p[0]))
            rc = err_set(e, ERR_DEVICE, "devices' memory is not cut alike");
    }
    for (int i = 0; rc && i < tp->n; i++)
        if (p[i]) cuda_table_destroy(&tp->dev[i], p[i]);
    if (!rc) *out = p[0];
    return rc;
}

static const weight *part_of(const weight *w, int i)
{
    return ((const cuda_shared_weight *)w)->part[i];
}

/* Room for whole rows that a product with w reads, of which each device computes its columns. */
static err_code grow_whole(cuda_state *cu, const weight *w, err *e)
{
    cuda_part *part = &cu->part;
    size_t bytes = (size_t)cu->max_rows * (size_t)cuda_k(w->type, w->cols) * dtype_bytes(w->type);
    if (bytes <= part->whole_bytes) return ERR_NONE;
    cuda_give(cu, part->whole);
    part->whole = cuda_take(cu, bytes, false);
    part->whole_bytes = bytes;
    return part->whole ? cuda_clear(cu, part->whole, bytes, e)
                       : err_set(e, ERR_NOMEM, "not enough device memory for steps of %d rows",
                                 cu->max_rows);
}

/* Expand reads B in whole blocks, so a device's columns of the layers' matrices are such. */
static err_code tp_prepare(backend *be, const weight *const *w, int n, err *e)
{
    tp_state *tp = tp_of(be);
    bool head = !state_of(tp, 0)->prepared;
    err_code rc = ERR_NONE;
    for (int k = 0; k < n; k++) {
        if (head || part_of(w[k], 0)->rows % SGMV_COLS == 0) continue;
        return err_set(e, ERR_UNSUPPORTED,
                       "a matrix of %d rows: each of %d devices needs whole blocks of %d rows",
                       w[k]->rows, tp->n, SGMV_COLS);
    }
    for (int i = 0; !rc && i < tp->n; i++) {
        const weight *part[LINEAR_OUT_MAX];
        for (int k = 0; k < n; k++) part[k] = part_of(w[k], i);
        rc = CU_TRY(state_of(tp, i), cudaSetDevice(state_of(tp, i)->device), e);
        if (!rc) rc = cuda_prepare(&tp->dev[i], part, n, e);
        if (!rc) rc = grow_whole(state_of(tp, i), part[0], e);
    }
    return rc;
}

static bool tp_reserve(backend *be, const step_bounds *most)
{
    tp_state *tp = tp_of(be);
    step_bounds part = *most;
    int *mlp = malloc((size_t)most->n_layer * sizeof(*mlp));
    bool ok = mlp != NULL;
    for (int l = 0; ok && l < most->n_layer; l++) mlp[l] = most->mlp[l] / tp->n;
    part.mlp = mlp;
    for (int i = 0; ok && i < tp->n; i++) {
        ok = cudaSetDevice(state_of(tp, i)->device) == cudaSuccess &&
             backend_cuda.reserve(&tp->dev[i], &part);
    }
    free(mlp);
    return ok;
}

/* ---- adapters -------------------------------------------------------------------------------- */

static err_code tp_lora_pack(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                             const void *b_src, dtype type, int rank, int d_in, int d_out, err *e)
{
    tp_state *tp = tp_of(be);
    err_code rc = ERR_NONE;
    for (int i = 0; !rc && i < tp->n; i++)
        rc = cuda_lora_pack(&tp->dev[i], base, (void *)(uintptr_t)here(be, i, a_dst),
                            (void *)(uintptr_t)here(be, i, b_dst), a_src, b_src, type, rank, d_in,
                            d_out, e);
    return rc;
}

static err_code tp_lora_pack_embed(backend *be, dtype base, void *a_dst, void *b_dst,
                                   const void *a_src, const void *b_src, dtype type, int rank,
                                   int n_vocab, int dim, err *e)
{
    tp_state *tp = tp_of(be);
    err_code rc = ERR_NONE;
    for (int i = 0; !rc && i < tp->n; i++)
        rc = cuda_lora_pack_embed(&tp->dev[i], base, (void *)(uintptr_t)here(be, i, a_dst),
                                  (void *)(uintptr_t)here(be, i, b_dst), a_src, b_src, type, rank,
                                  n_vocab, dim, e);
    return rc;
}

/* Each device's rows of the base. */
static err_code tp_lora_gain(backend *be, const weight *w, const lora_pair *pair,
                             const float *magnitude, float *gain, err *e)
{
    tp_state *tp = tp_of(be);
    err_code rc = ERR_NONE;
    size_t row = (size_t)pair->rank * dtype_bytes(pair->type);
    for (int i = 0, at = 0; !rc && i < tp->n; at += part_of(w, i++)->rows) {
        lora_pair part = *pair;
        part.b = (const char *)pair->b + (size_t)at * row;
        rc = cuda_lora_gain(&tp->dev[i], part_of(w, i), &part, magnitude + at, gain + at, e);
    }
    return rc;
}

void cuda_mat_here(const cuda_state *cu, cuda_writer *w, int at, int from, int d_out)
{
    sgmv_mat *m = &w->mats[at];
    const cuda_part *part = &cu->part;
    if (part->n == 1) return;
    m->a = cuda_here(cu, m->a);
    m->b = cuda_here(cu, m->b);
    m->gain = cuda_here(cu, m->gain);
    m->bias = cuda_here(cu, m->bias);
    for (int i = from; i < w->n; i++) w->more[i] = cuda_here(cu, w->more[i]);
    if (d_out == 0) return;
    int col0 = part->i * d_out;
    m->d_out = d_out;
    if (m->gain) m->gain += col0;
    if (m->bias) m->bias += col0;
    if (m->rank == 0) return;
    size_t each = (size_t)round_up(m->rank, 8) * dtype_bytes(cu->arith);
    assert(col0 % SGMV_COLS == 0);
    if (col0 < m->b_first) {
        m->b = (const char *)m->b + (size_t)col0 * each;
        if (m->b_first != INT32_MAX) m->b_first -= col0;
        return;
    }
    int piece = (col0 - m->b_first) / m->b_each, rest = (col0 - m->b_first) % m->b_each;
    m->b = (const char *)w->more[m->b_more - w->more_device + piece] + (size_t)rest * each;
    m->b_first = m->b_each - rest;
    m->b_more += piece + 1;
}

/* ---- KV pages -------------------------------------------------------------------------------- */

static attn_shape shape_of_part(const backend *be, const attn_shape *shape)
{
    attn_shape s = *shape;
    s.n_head /= tp_of(be)->n;
    s.n_kv_head /= tp_of(be)->n;
    return s;
}

static size_t tp_kv_page_bytes(const backend *be, const attn_shape *shape)
{
    attn_shape s = shape_of_part(be, shape);
    return cuda_kv_page_bytes(&tp_of(be)->dev[0], &s);
}

/* Saved pages are as one device would have them. */
static size_t tp_kv_saved_bytes(const backend *be, const attn_shape *shape)
{
    return cuda_kv_page_bytes(&tp_of(be)->dev[0], shape);
}

static void tp_kv_destroy(backend *be, kv_pool *pool)
{
    tp_state *tp = tp_of(be);
    tp_kv *kv = (tp_kv *)pool;
    cuda_graphs_drop(state_of(tp, 0));
    lock_take(&tp->mu);
    for (int i = 0; i < tp->n; i++) {
        (void)cudaSetDevice(state_of(tp, i)->device);
        if (kv->part[i]) cuda_kv_destroy(&tp->dev[i], kv->part[i]);
    }
    lock_release(&tp->mu);
    free(kv);
}

/* mem NULL: of its own. */
static err_code kv_open(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, void *mem,
                        size_t stride, err *e)
{
    tp_state *tp = tp_of(be);
    if (shape->n_kv_head % tp->n != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "%d heads of keys and values: %d devices cannot share them evenly",
                       shape->n_kv_head, tp->n);
    tp_kv *kv = calloc(1, sizeof(*kv));
    if (!kv) return err_set(e, ERR_NOMEM, "no memory for a pool of pages");
    kv->head = (kv_pool){.shape = *shape, .n_pages = n_pages, .page_tokens = CU_PAGE_TOKENS};
    attn_shape s = shape_of_part(be, shape);
    err_code rc = ERR_NONE;
    lock_take(&tp->mu);
    for (int i = 0; !rc && i < tp->n; i++) {
        rc = CU_TRY(state_of(tp, i), cudaSetDevice(state_of(tp, i)->device), e);
        if (!rc && mem)
            rc = cuda_kv_attach(&tp->dev[i], &kv->part[i], &s, n_pages,
                                (void *)(uintptr_t)here(be, i, mem), stride, e);
        else if (!rc)
            rc = cuda_kv_create(&tp->dev[i], &kv->part[i], &s, n_pages, e);
    }
    lock_release(&tp->mu);
    if (rc) {
        tp_kv_destroy(be, &kv->head);
        return rc;
    }
    *out = &kv->head;
    return ERR_NONE;
}

static err_code tp_kv_attach(backend *be, kv_pool **out, const attn_shape *shape, int n_pages,
                             void *mem, size_t stride, err *e)
{
    return kv_open(be, out, shape, n_pages, mem, stride, e);
}

static err_code tp_kv_create(backend *be, kv_pool **out, const attn_shape *shape, int n_pages,
                             err *e)
{
    return kv_open(be, out, shape, n_pages, NULL, 0, e);
}

/* One device's heads of a page, which stand together in each layer. */
static void kv_copy(backend *be, const kv_pool *pool, int page, char *host, bool save)
{
    tp_state *tp = tp_of(be);
    const attn_shape *s = &pool->shape;
    size_t layer = tp_kv_saved_bytes(be, s) / (size_t)s->n_layer, part = layer / (size_t)tp->n;
    for (int i = 0; enter(be, i); i++) {
        cuda_state *cu = state_of(tp, i);
        char *there = cu->kv->mem + (size_t)page * cu->kv->stride, *at = host + (size_t)i * part;
        cuda_await_uploads(&tp->dev[i]);
        if (save)
            (void)CU(&tp->dev[i],
                     cudaMemcpy2DAsync(at, layer, there, part, part, (size_t)s->n_layer,
                                       cudaMemcpyDeviceToHost, cu->stream));
        else
            (void)CU(&tp->dev[i],
                     cudaMemcpy2DAsync(there, part, at, layer, part, (size_t)s->n_layer,
                                       cudaMemcpyHostToDevice, cu->stream));
    }
}

static void tp_kv_save(backend *be, const kv_pool *pool, int page, void *host)
{
    kv_copy(be, pool, page, host, true);
}

static void tp_kv_load(backend *be, kv_pool *pool, int page, const void *host)
{
    kv_copy(be, pool, page, (char *)(uintptr_t)host, false);
}

static void tp_kv_copy(backend *be, kv_pool *pool, int from, int to)
{
    size_t bytes = tp_kv_saved_bytes(be, &pool->shape) / (size_t)tp_of(be)->n;
    for (int i = 0; enter(be, i); i++) {
        cuda_state *cu = state_of(tp_of(be), i);
        cuda_await_uploads(&tp_of(be)->dev[i]);
        (void)CU(&tp_of(be)->dev[i], cudaMemcpyAsync(cu->kv->mem + (size_t)to * cu->kv->stride,
                                                     cu->kv->mem + (size_t)from * cu->kv->stride,
                                                     bytes, cudaMemcpyDeviceToDevice, cu->stream));
    }
}

static void tp_kv_copied(backend *be)
{
    for (int i = 0; enter(be, i); i++) cuda_kv_copied(&tp_of(be)->dev[i]);
}

/* ---- exchanges --------------------------------------------------------------------------- */

/* The stream of device i waits for what device j has told. */
static void wait_for(tp_state *tp, int i, int j)
{
    (void)CU(&tp->dev[i], cudaStreamWaitEvent(state_of(tp, i)->stream, tp->told[j], 0));
}

static void tell(tp_state *tp, int i)
{
    (void)CU(&tp->dev[i], cudaEventRecord(tp->told[i], state_of(tp, i)->stream));
}

/* What each device does from here on comes after what all others have done so far. */
static void meet(backend *be)
{
    tp_state *tp = tp_of(be);
    for (int i = 0; enter(be, i); i++) tell(tp, i);
    for (int i = 0; enter(be, i); i++) {
        for (int j = 0; j < tp->n; j++)
            if (j != i) wait_for(tp, i, j);
    }
}

/* The same for the first device alone, or for all others. */
static void meet_first(backend *be)
{
    tp_state *tp = tp_of(be);
    for (int i = 0; enter(be, i); i++)
        if (i > 0) tell(tp, i);
    for (int j = 1; enter(be, 0) && j < tp->n; j++) wait_for(tp, 0, j);
    (void)take_failure(be, 0);
}

static void follow_first(backend *be)
{
    tp_state *tp = tp_of(be);
    for (int i = 0; enter(be, i); i++) {
        if (i == 0)
            tell(tp, 0);
        else
            wait_for(tp, i, 0);
    }
}

/* Brings the columns of x [n_rows][cols] together on all devices, rounded as a product with w reads
 * them. */
static void join_columns(backend *be, const float *x, const weight *w, const step *s)
{
    tp_state *tp = tp_of(be);
    int cols = w->cols / tp->n;
    size_t size = dtype_bytes(w->type);
    for (int i = 0; enter(be, i); i++) {
        cuda_state *cu = state_of(tp, i);
        if (!cuda_step_enter(&tp->dev[i], s)) continue;
        cu_push_args a = {.n_to = tp->n,
                          .n_rows = cu->step.shape.n_rows,
                          .width = (size_t)cols * size,
                          .from_stride = (size_t)cuda_k(w->type, cols) * size,
                          .to_stride = (size_t)cuda_k(w->type, w->cols) * size};
        a.from = cuda_rounded(&tp->dev[i], floats_here(be, i, x), w->type, a.n_rows, cols);
        for (int j = 0; j < tp->n; j++)
            a.to[j] = (char *)state_of(tp, j)->part.whole + (size_t)(i * cols) * size;
        if (a.from) (void)CU(&tp->dev[i], cu_push_rows(cu->stream, &a));
    }
    meet(be);
    for (int i = 0; i < tp->n; i++) state_of(tp, i)->part.whole_of = floats_here(be, i, x);
}

/* Each device's columns of y [n_rows][cols] into all others' y. */
static void share_columns(backend *be, const float *y, int cols)
{
    tp_state *tp = tp_of(be);
    int each = cols / tp->n;
    for (int i = 0; enter(be, i); i++) {
        cuda_state *cu = state_of(tp, i);
        cu_push_args a = {.from = floats_here(be, i, y) + i * each,
                          .n_rows = cu->step.shape.n_rows,
                          .width = (size_t)each * sizeof(float),
                          .from_stride = (size_t)cols * sizeof(float),
                          .to_stride = (size_t)cols * sizeof(float)};
        for (int j = 0; j < tp->n; j++)
            if (j != i) a.to[a.n_to++] = floats_here(be, j, y) + i * each;
        (void)CU(&tp->dev[i], cu_push_rows(cu->stream, &a));
        if (cu->x16_of == floats_here(be, i, y)) cu->x16_of = NULL;
    }
    meet(be);
}

/* ---- operations ------------------------------------------------------------------------ */

/* Lists of the others are on their way before the first device launches what may be a record of all
 * of them. */
static bool tp_step_begin(backend *be, const step *s)
{
    tp_state *tp = tp_of(be);
    cuda_graphs *first = &state_of(tp, 0)->graphs;
    bool again = first->again, run;
    tp->parted = NULL;
    for (int i = 1; i < tp->n && enter(be, i); i++) {
        cuda_state *cu = state_of(tp, i);
        cu->graphs.on = first->on;
        cu->part.whole_of = NULL;
        if (!again) cu->step.of = NULL;
        cu->x16_of = cu->gate16_of = NULL;
        cu->n_alias = 0;
        (void)cuda_step_enter(&tp->dev[i], s);
    }
    if (!take_failure(be, tp->n - 1)) return true;
    state_of(tp, 0)->part.whole_of = NULL;
    meet_first(be);
    if (!enter(be, 0)) return true;
    run = cuda_step_begin(&tp->dev[0], s);
    if (!take_failure(be, 0)) return true;
    for (int i = 1; i < tp->n; i++) {
        state_of(tp, i)->graphs.recording = first->recording;
        state_of(tp, i)->graphs.spoilt = false;
    }
    follow_first(be);
    return run;
}

static bool tp_step_end(backend *be, const step *s)
{
    tp_state *tp = tp_of(be);
    cuda_graphs *first = &state_of(tp, 0)->graphs;
    if (!first->recording) return true;
    meet_first(be);
    for (int i = 1; i < tp->n; i++) {
        cuda_graphs *gs = &state_of(tp, i)->graphs;
        if (gs->spoilt) cuda_graph_spoil(state_of(tp, 0), "", gs->why.msg);
        gs->recording = false;
    }
    (void)cudaSetDevice(state_of(tp, 0)->device);
    tp->dev[0].failed = be->failed; /* it has to know */
    bool done = cuda_step_end(&tp->dev[0], s);
    if (take_failure(be, 0) && done) follow_first(be);
    return done;
}

static void tp_embed(backend *be, float *out, const void *table, dtype type, int dim, const step *s)
{
    for (int i = 0; enter(be, i); i++)
        cuda_embed(&tp_of(be)->dev[i], floats_here(be, i, out), here(be, i, table), type, dim, s);
}

static void tp_positions(backend *be, float *out, const float *table, int n, int dim, const step *s)
{
    for (int i = 0; enter(be, i); i++)
        cuda_positions(&tp_of(be)->dev[i], floats_here(be, i, out), floats_here(be, i, table), n,
                       dim, s);
}

static void tp_rms_norm(backend *be, float *out, const float *x, const float *gain, float eps,
                        int row0, int n_rows, int dim)
{
    for (int i = 0; enter(be, i); i++)
        cuda_rms_norm(&tp_of(be)->dev[i], floats_here(be, i, out), floats_here(be, i, x),
                      floats_here(be, i, gain), eps, row0, n_rows, dim);
}

static void tp_layer_norm(backend *be, float *out, const float *x, const float *gain,
                          const float *bias, float eps, int row0, int n_rows, int dim)
{
    for (int i = 0; enter(be, i); i++)
        cuda_layer_norm(&tp_of(be)->dev[i], floats_here(be, i, out), floats_here(be, i, x),
                        floats_here(be, i, gain), floats_here(be, i, bias), eps, row0, n_rows, dim);
}

static void tp_add(backend *be, float *x, const float *y, float scale, size_t n)
{
    for (int i = 0; enter(be, i); i++)
        cuda_add(&tp_of(be)->dev[i], floats_here(be, i, x), floats_here(be, i, y), scale, n);
}

static void tp_scale(backend *be, float *x, float scale, size_t n)
{
    for (int i = 0; enter(be, i); i++)
        cuda_scale(&tp_of(be)->dev[i], floats_here(be, i, x), scale, n);
}

/* Results that are read row by row are brought together; queries, keys, values, gate and up stay
 * where they are. */
static void tp_linear(backend *be, const float *x, const linear_out *outs, int n_out, const step *s,
                      int layer)
{
    tp_state *tp = tp_of(be);
    bool whole = outs[0].lora_proj == PROJ_O || outs[0].lora_proj == PROJ_DOWN;
    assert(!whole || n_out == 1);
    if (x == tp->parted) join_columns(be, x, outs[0].w, s);
    for (int i = 0; enter(be, i); i++) {
        linear_out mine[LINEAR_OUT_MAX];
        for (int k = 0; k < n_out; k++) {
            const weight *w = part_of(outs[k].w, i);
            mine[k] = outs[k];
            mine[k].w = w;
            mine[k].y = floats_here(be, i, outs[k].y) + (whole ? i * w->rows : 0);
            mine[k].stride = whole ? outs[k].w->rows : 0;
            if (outs[k].bias) mine[k].bias = floats_here(be, i, outs[k].bias) + i * w->rows;
        }
        cuda_linear(&tp->dev[i], floats_here(be, i, x), mine, n_out, s, layer);
        state_of(tp, i)->part.whole_of = NULL;
    }
    if (whole) share_columns(be, outs[0].y, outs[0].w->rows);
}

static void tp_rope_append(backend *be, kv_pool *kv, float *q, float *k, const float *v,
                           const float *q_norm, const float *k_norm, float norm_eps,
                           const rope_table *rope, const step *s, int layer)
{
    for (int i = 0; enter(be, i); i++) {
        rope_table mine = *rope;
        mine.cos = floats_here(be, i, rope->cos);
        mine.sin = floats_here(be, i, rope->sin);
        cuda_rope_append(&tp_of(be)->dev[i], ((tp_kv *)kv)->part[i], floats_here(be, i, q),
                         floats_here(be, i, k), floats_here(be, i, v), floats_here(be, i, q_norm),
                         floats_here(be, i, k_norm), norm_eps, &mine, s, layer);
    }
}

static void tp_attend(backend *be, const kv_pool *kv, float *out, const float *q,
                      const float *sinks, const step *s, int layer)
{
    tp_state *tp = tp_of(be);
    int heads = kv->shape.n_head / tp->n;
    for (int i = 0; enter(be, i); i++) {
        const float *own = sinks ? floats_here(be, i, sinks) + i * heads : NULL;
        cuda_attend(&tp->dev[i], ((const tp_kv *)kv)->part[i], floats_here(be, i, out),
                    floats_here(be, i, q), own, s, layer);
    }
    tp->parted = out;
}

static void tp_gate(backend *be, activation act, float *gate, const float *up, size_t n)
{
    tp_state *tp = tp_of(be);
    for (int i = 0; enter(be, i); i++)
        cuda_gate(&tp->dev[i], act, floats_here(be, i, gate), floats_here(be, i, up),
                  n / (size_t)tp->n);
    tp->parted = gate;
}

static void tp_xielu(backend *be, float *x, const xielu_weights *w, size_t n)
{
    tp_state *tp = tp_of(be);
    for (int i = 0; enter(be, i); i++) {
        const xielu_weights mine = {floats_here(be, i, w->alpha_p), floats_here(be, i, w->alpha_n),
                                    floats_here(be, i, w->beta), floats_here(be, i, w->eps)};
        cuda_xielu(&tp->dev[i], floats_here(be, i, x), &mine, n / (size_t)tp->n);
    }
    tp->parted = x;
}

static bool logits_met(void *self)
{
    tp_state *tp = self;
    for (int j = 1; j < tp->n; j++) wait_for(tp, 0, j);
    return tp->dev[0].failed.code == ERR_NONE;
}

bool cuda_multiply_shared(backend *be, const weight *base, const void *x, int n)
{
    cuda_state *cu = cuda_of(be);
    float *y = cu->logits.device + (size_t)cu->part.i * (size_t)base->rows;
    if (!cuda_multiply(be, base, base->rows, x, y, n, (blas_sum){.stride = cu->step.stride}))
        return false;
    return cu->part.i > 0 || cu->part.logits_met(cu->part.self);
}

/* The first device comes last: it waits for the others' columns. */
static void tp_logits(backend *be, float *logits, const float *x, const float *norm_weight,
                      float eps, int dim, const weight *head, const step *s)
{
    tp_state *tp = tp_of(be);
    float *all = state_of(tp, 0)->logits.device;
    if (logits != tp->logits[0]) {
        backend_fail(be, ERR_LIMIT, "the logits are not in memory of be_host_alloc()");
        return;
    }
    for (int i = tp->n - 1; i >= 0; i--) {
        backend *d = &tp->dev[i];
        cuda_state *cu = cuda_of(d);
        const weight *w = part_of(head, i);
        if (!CU(d, cudaSetDevice(cu->device))) break;
        cuda_logits_run(d, tp->logits[i], floats_here(be, i, x), floats_here(be, i, norm_weight),
                        eps, dim, w, s);
        if (i == 0) break;
        size_t from = (size_t)i * (size_t)w->rows, row = (size_t)cu->step.stride * sizeof(float);
        cu_push_args a = {.from = cu->logits.device + from,
                          .to = {all + from},
                          .n_to = 1,
                          .n_rows = cu->step.shape.n_logit,
                          .width = (size_t)w->rows * sizeof(float),
                          .from_stride = row,
                          .to_stride = row};
        (void)CU(d, cu_push_rows(cu->stream, &a));
        tell(tp, i);
        if (!take_failure(be, i)) break;
    }
    for (int i = 0; i < tp->n; i++) (void)take_failure(be, i);
}

static void tp_logits_bend(backend *be, float *logits, int n_rows, int stride, float scale,
                           float cap)
{
    if (!enter(be, 0)) return;
    cuda_logits_bend(&tp_of(be)->dev[0], logits, n_rows, stride, scale, cap);
    (void)take_failure(be, 0);
}

static void tp_logits_bias(backend *be, float *logits, int n_rows, int stride, const float *bias,
                           int n)
{
    if (!enter(be, 0)) return;
    cuda_logits_bias(&tp_of(be)->dev[0], logits, n_rows, stride, bias, n);
    (void)take_failure(be, 0);
}

static void tp_logits_fetch(backend *be, float *logits, size_t n)
{
    if (!enter(be, 0)) return;
    cuda_logits_fetch(&tp_of(be)->dev[0], logits, n);
    (void)take_failure(be, 0);
}

/* The next step takes its tokens on each device (cu_take_tokens()). */
static const sampled *tp_sample(backend *be, float *logits, int n_vocab, const sample_row *rows,
                                int n)
{
    tp_state *tp = tp_of(be);
    if (!enter(be, 0)) return NULL;
    const sampled *answer = cuda_sample(&tp->dev[0], logits, n_vocab, rows, n);
    const cuda_draw *made = &state_of(tp, 0)->draw;
    if (!take_failure(be, 0) || !answer || n == 0) return answer;
    follow_first(be);
    for (int i = 0; enter(be, i); i++) {
        if (i > 0)
            (void)CU(&tp->dev[i],
                     cudaMemcpyAsync(state_of(tp, i)->draw.out, made->out,
                                     (size_t)n * sizeof(*made->out), cudaMemcpyDeviceToDevice,
                                     state_of(tp, i)->stream));
    }
    return be->failed.code ? NULL : answer;
}

const backend_ops backend_cuda_tp = {
    .name = "cuda-tp",
    .open = tp_open,
    .close = tp_close,
    .memory = tp_memory,
    .lost = tp_lost,
    .remedy = tp_remedy,
    .suspect = tp_suspect,
    .order = tp_order,
    .alloc = tp_alloc,
    .free = tp_free,
    .map = tp_alloc,
    .unmap = tp_unmap,
    .room = tp_room,
    .host_alloc = tp_host_alloc,
    .host_free = tp_host_free,
    .upload = tp_upload,
    .download = tp_download,
    .sync = tp_sync,
    .weight_create = tp_weight_create,
    .weight_destroy = tp_weight_destroy,
    .table_create = tp_table_create,
    .table_destroy = tp_table_destroy,
    .prepare = tp_prepare,
    .reserve = tp_reserve,
    .lora_a_bytes = cuda_lora_a_bytes,
    .lora_b_bytes = cuda_lora_b_bytes,
    .lora_pack = tp_lora_pack,
    .lora_pack_embed = tp_lora_pack_embed,
    .lora_weight_create = tp_lora_weight_create,
    .lora_gain = tp_lora_gain,
    .kv_page_bytes = tp_kv_page_bytes,
    .kv_saved_bytes = tp_kv_saved_bytes,
    .kv_create = tp_kv_create,
    .kv_attach = tp_kv_attach,
    .kv_destroy = tp_kv_destroy,
    .kv_save = tp_kv_save,
    .kv_load = tp_kv_load,
    .kv_copy = tp_kv_copy,
    .kv_copied = tp_kv_copied,
    .pin = tp_pin,
    .unpin = tp_unpin,
    .step_begin = tp_step_begin,
    .step_end = tp_step_end,
    .embed = tp_embed,
    .positions = tp_positions,
    .rms_norm = tp_rms_norm,
    .layer_norm = tp_layer_norm,
    .linear = tp_linear,
    .rope_append = tp_rope_append,
    .attend = tp_attend,
    .gate = tp_gate,
    .xielu = tp_xielu,
    .add = tp_add,
    .scale = tp_scale,
    .logits_bend = tp_logits_bend,
    .logits_bias = tp_logits_bias,
    .logits = tp_logits,
    .logits_fetch = tp_logits_fetch,
    .sample = tp_sample,
    .mark = tp_mark,
    .await = tp_await,
    .parallel = tp_parallel,
};
