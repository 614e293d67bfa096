/* graph.c -- decode steps as CUDA graphs: recorded once for each shape, then replayed with one
 * call.
 *
 * A shape is a padded number of rows and a kind of adapters (cuda_kind).  Launches of a step that
 * has one have the shape's sizes, and no argument depends on the step: tokens, pages, chunks,
 * adapters' tables and counts are read from the block that step.c sends before.
 *
 * Surplus blocks end at once.  A padding row has token -1 (zeros), slot -1 (no K and V are written)
 * and no logits; norms and products are computed for it, and nothing reads them.
 *
 *   step of a shape    1st: launched kernel by kernel   2nd: recorded   later: replayed
 *
 * The first step uses the padded sizes, too, so that whatever is loaded at its first use (kernels,
 * cuBLAS's) is there when the second is recorded.  If recording fails, or a graph would take the
 * device's last memory, the backend logs it once and uses no more graphs.
 *
 * cuBLAS's products are recorded with the workspace that blas.c passes at each call, in our arena;
 * so a graph owns no memory but its nodes.  At most CUDA_GRAPHS are kept; the least recently used
 * one is replaced.
 *
 * Threads: engine thread.  Loaders may call the runtime meanwhile, because recording is of this
 * thread alone.
 */
#include <assert.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/round.h"
#include "engine/cuda/cuda.h"

enum {
    ROWS_MOST = 512,        /* beyond, launches cost nothing beside the work */
    FREE_LEAST_SHARE = 256, /* of the device's memory has to be free for a record */
};

/* ---- shapes ---------------------------------------------------------------------------- */

/* Few enough that each is met often, near enough that padding costs little:
 * decode is bound by weights. */
static int padded(int n)
{
    int p = 1;
    while (p < n && p < 8) p *= 2;
    if (n <= p) return p;
    int each = n <= 64 ? 8 : n <= 128 ? 16 : 32;
    return round_up(n, each);
}

static bool is_whole(const lora_view *v)
{
    return (v->head && lora_mat_used(&v->head->mat)) || (v->embed && lora_mat_used(&v->embed->mat));
}

cuda_shape cuda_shape_of(const cuda_state *cu, const step *s)
{
    const cuda_shape exact = {CUDA_EXACT, s->n_rows, s->n_logit};
    if (!cu->graphs.on || s->n_logit == 0 || s->n_seq != s->n_rows || s->n_rows > ROWS_MOST)
        return exact;
    cuda_kind kind = CUDA_BARE;
    for (int i = 0; i < s->n_seg; i++) {
        const lora_view *v = s->seg[i].lora;
        if (!v) continue;
        /* products of matrices that come and go */
        if (v->head && (v->head->w || v->head->rows.n > 0)) return exact;
        if (v->norm) return exact; /* launches of their own, by segment */
        cuda_kind this = is_whole(v) ? CUDA_WHOLE : v->rank_max > 64 ? CUDA_RANK256 : CUDA_RANK64;
        if (this > kind) kind = this;
    }
    int n = padded(s->n_rows);
    if (n > cu->max_rows) n = cu->max_rows;
    assert(n >= s->n_rows);
    size_t logits = (size_t)n * (size_t)cu->step.stride * sizeof(float);
    return logits > cu->logits.bytes ? exact : (cuda_shape){kind, n, n};
}

/* ---- records ------------------------------------------------------------------------------ */

void cuda_graphs_drop(cuda_state *cu)
{
    cuda_graphs *gs = &cu->graphs;
    for (int i = 0; i < gs->n && !atomic_load(&cu->wait->hung); i++) {
        if (gs->g[i].exec) (void)cudaGraphExecDestroy(gs->g[i].exec);
    }
    gs->n = 0;
}

/* No more of them: `why`.  What is being served goes on. */
static void give_up(cuda_state *cu, const char *call, const char *why)
{
    cuda_graphs_drop(cu);
    cu->graphs.on = false;
    log_warn("engine", "CUDA graphs are off, kernels are launched one by one: %s: %s", call, why);
}

static cuda_graph *find(cuda_state *cu, const cuda_shape *shape)
{
    cuda_graphs *gs = &cu->graphs;
    cuda_graph *g = NULL, *old = &gs->g[0];
    for (int i = 0; i < gs->n && !g; i++) {
        cuda_graph *at = &gs->g[i];
        if (at->shape.kind == shape->kind && at->shape.n_rows == shape->n_rows) g = at;
        if (at->used < old->used) old = at;
    }
    if (!g) {
        g = gs->n < CUDA_GRAPHS ? &gs->g[gs->n++] : old;
        if (g == old && g->exec) (void)cudaGraphExecDestroy(g->exec);
        *g = (cuda_graph){.shape = *shape};
    }
    assert(gs->n <= CUDA_GRAPHS && g - gs->g < gs->n);
    g->used = cu->step.serial;
    return g;
}

void cuda_graph_spoil(cuda_state *cu, const char *call, const char *why)
{
    cuda_graphs *gs = &cu->graphs;
    if (!gs->spoilt)
        (void)err_set(&gs->why, ERR_DEVICE, "%.*s%s%s", (int)strcspn(call, "("), call,
                      call[0] ? ": " : "", why);
    gs->spoilt = true;
}

/* The record is launched, or there will be none. */
static bool launch(backend *be, cuda_graph *g)
{
    cuda_state *cu = cuda_of(be);
    cudaError_t ce = cudaGraphLaunch(g->exec, cu->stream);
    if (ce == cudaSuccess) return true;
    if (cuda_sticky(ce)) return CU(be, ce);
    (void)cudaGetLastError();
    give_up(cu, "cudaGraphLaunch", cudaGetErrorString(ce));
    return false;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Whether the operations are to be enqueued. */
bool cuda_step_begin(backend *be, const step *s)
{
    cuda_state *cu = cuda_of(be);
    cuda_graphs *gs = &cu->graphs;
    if (!gs->again) cu->step.of = NULL; /* may be that of a step that failed, at the same address */
    gs->again = false;
    if (!cuda_step_enter(be, s) || cu->step.shape.kind == CUDA_EXACT || !gs->on) return true;
    cuda_graph *g = find(cu, &cu->step.shape);
    if (g->exec) return !launch(be, g);
    if (!g->tried) {
        g->tried = true;
        return true;
    }
    cudaError_t ce = cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal);
    if (ce == cudaSuccess) {
        gs->recording = true;
        gs->spoilt = false;
        gs->now = g;
    } else if (cuda_sticky(ce)) {
        (void)CU(be, ce);
    } else {
        give_up(cu, "cudaStreamBeginCapture", cudaGetErrorString(ce));
    }
    return true;
}

/* From what has been recorded to what can be launched; the graph itself is not needed any more. */
static cudaError_t instantiate(cuda_graph *g, cudaGraph_t graph)
{
    size_t free_bytes, total;
    cudaError_t ce = cudaMemGetInfo(&free_bytes, &total);
    if (ce == cudaSuccess && free_bytes < total / FREE_LEAST_SHARE)
        ce = cudaErrorMemoryAllocation; /* others need it more */
    return ce == cudaSuccess ? cudaGraphInstantiate(&g->exec, graph, 0) : ce;
}

/* Whether the step's operations are on their way. */
bool cuda_step_end(backend *be, const step *s)
{
    cuda_state *cu = cuda_of(be);
    cuda_graphs *gs = &cu->graphs;
    cudaGraph_t graph = NULL;
    (void)s;
    if (!gs->recording) return true;
    gs->recording = false;
    cudaError_t ce = cudaStreamEndCapture(cu->stream, &graph);
    if (!gs->spoilt && ce != cudaSuccess)
        cuda_graph_spoil(cu, "cudaStreamEndCapture", cudaGetErrorString(ce));
    if (be->failed.code == ERR_NONE && !gs->spoilt) {
        ce = instantiate(gs->now, graph);
        if (ce != cudaSuccess) cuda_graph_spoil(cu, "cudaGraphInstantiate", cudaGetErrorString(ce));
    }
    if (graph) (void)cudaGraphDestroy(graph);
    if (be->failed.code != ERR_NONE) return true; /* be_sync() says why */
    if (ce != cudaSuccess && cuda_sticky(ce)) return !CU(be, ce);
    if (!gs->spoilt && launch(be, gs->now)) return true;
    if (be->failed.code != ERR_NONE) return true;
    if (gs->spoilt) {
        (void)cudaGetLastError(); /* it is said here, not by the next launch */
        give_up(cu, "a decode step", gs->why.msg);
    }
    cu->x16_of = cu->gate16_of = NULL;
    cu->n_alias = 0;
    gs->again = true;
    return false;
}
