/* experts.c -- be_experts() on the device: its memory, its launches, and the tables of adapters on
 * experts.
 *
 * A step's rows go through their experts at once, or, where that would take too much memory, so
 * many at a time; by the law of experts.h that changes no bit.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/round.h"
#include "engine/cuda/cuda.h"

enum {
    MEMORY_SHARE = 128, /* 1/128 of the arena is the most for values between two products */
    TABLE_SHARE = 256,  /* 1/256 of the arena is the most for tables of adapters on experts */
    TABLES_LEAST = 8,
    SLOTS_MOST = 1 << 15, /* of a grid */
    SOME_FROM = 4,        /* rows of an expert, on average, from which tiles are wider; */
    MANY_FROM = 24,       /* and as wide as they are */
};

/* ---- memory -------------------------------------------------------------------------------- */

/* Takes `bytes` at *at, on a border of 256. */
static void *part(char **at, size_t bytes)
{
    char *p = *at;
    *at += round_up_size(bytes, CUDA_ALIGN);
    return p;
}

/* The places of all parts for so many rows, from `mem` on; how many bytes they take. */
static size_t place(cuda_experts *x, char *mem, int rows)
{
    cu_experts *at = &x->at;
    char *p = mem;
    size_t slots = (size_t)rows * (size_t)x->top_k, word = sizeof(int32_t);
    size_t blocks = (size_t)rows / CU_EXPERTS_ROUTE_ROWS + 1, size = dtype_bytes(at->type);
    size_t dim8 = (size_t)round_up(x->dim, 8), ffn8 = (size_t)round_up(x->ffn, 8);
    size_t items = (size_t)grouped_items((int)slots, x->n, GROUPED_FEW);
    int planes = sgmv_planes(x->dim, at->type), down = sgmv_planes(x->ffn, at->type);
    at->expert = part(&p, slots * word);
    at->rank = part(&p, slots * word);
    at->slot = part(&p, slots * word);
    at->weight = part(&p, slots * sizeof(float));
    at->before = part(&p, blocks * (size_t)x->n * word);
    at->first = part(&p, ((size_t)x->n + 1) * word);
    at->row_of = part(&p, slots * word);
    at->expert_of = part(&p, slots * word);
    at->rows = part(&p, slots * dim8 * size);
    at->hidden = part(&p, slots * 2 * (size_t)x->ffn * sizeof(float));
    at->acted = part(&p, slots * ffn8 * size);
    at->out = part(&p, slots * (size_t)x->dim * sizeof(float));
    at->item = part(&p, items * sizeof(*at->item));
    at->n_item = part(&p, word);
    at->chunk = part(&p, slots * sizeof(*at->chunk));
    at->counts = part(&p, sizeof(*at->counts));
    x->v = part(&p, slots * SGMV_OUT_MAX * LORA_RANK_MAX * sizeof(float) *
                        (size_t)(planes > down ? planes : down));
    return (size_t)(p - mem);
}

/* What is there is of another model. */
void cuda_experts_reserve(cuda_state *cu, const step_bounds *most)
{
    cuda_experts *x = &cu->experts;
    if (x->n == most->experts && x->top_k == most->top_k && x->dim == most->dim &&
        x->ffn == most->expert_dim)
        return;
    cuda_give(cu, x->memory);
    *x = (cuda_experts){
        .n = most->experts, .top_k = most->top_k, .dim = most->dim, .ffn = most->expert_dim};
}

/* As many rows as a share of the arena bears, one at least. */
static err_code open_memory(cuda_state *cu, dtype type, err *e)
{
    cuda_experts *x = &cu->experts;
    char *none = NULL;
    if (x->memory) return ERR_NONE;
    x->at = (cu_experts){.type = type, .n = x->n, .top_k = x->top_k, .dim = x->dim, .ffn = x->ffn};
    x->rows = cu->max_rows < SLOTS_MOST / x->top_k ? cu->max_rows : SLOTS_MOST / x->top_k;
    while (x->rows > 1 && place(x, none, x->rows) > cu->mem.bytes / MEMORY_SHARE)
        x->rows = (x->rows + 1) / 2;
    size_t bytes = place(x, none, x->rows);
    x->memory = cuda_take(cu, bytes, false);
    if (!x->memory)
        return err_set(e, ERR_NOMEM, "not enough device memory for the rows of experts (%zu bytes)",
                       bytes);
    (void)place(x, x->memory, x->rows);
    return ERR_NONE;
}

/* ---- a layer's matrices ---------------------------------------------------------------------- */

static err_code check_set(const cuda_state *cu, const expert_set *set, err *e)
{
    const expert_route *r = &set->route;
    if (r->top_k > CU_EXPERTS_TOP)
        return err_set(e, ERR_UNSUPPORTED,
                       "%d experts of a row: the CUDA backend supports at most %d", r->top_k,
                       CU_EXPERTS_TOP);
    weight *const *const all[] = {set->gate, set->up, set->down};
    for (int i = 0; i < LORA_EXPERT_PROJS * r->n; i++)
        if (all[i / r->n][i % r->n]->type != cu->arith)
            return err_set(
                e, ERR_UNSUPPORTED,
                "the CUDA backend does not support experts of another type than the layers'");
    return ERR_NONE;
}

err_code cuda_experts_prepare(backend *be, void **there, const expert_set *set, err *e)
{
    cuda_state *cu = cuda_of(be);
    int n = set->route.n;
    assert(n == cu->experts.n && set->route.top_k == cu->experts.top_k);
    err_code rc = check_set(cu, set, e);
    if (!rc) rc = open_memory(cu, set->gate[0]->type, e);
    if (rc) return rc;
    size_t bytes = LORA_EXPERT_PROJS * (size_t)n * sizeof(void *);
    const void **p = malloc(bytes);
    *there = cuda_take(cu, bytes, false);
    for (int i = 0; p && i < n; i++) {
        p[i] = ((const cuda_weight *)set->gate[i])->p;
        p[n + i] = ((const cuda_weight *)set->up[i])->p;
        p[2 * n + i] = ((const cuda_weight *)set->down[i])->p;
    }
    rc = p && *there ? cuda_upload(be, *there, (const void *)p, bytes) : ERR_NOMEM;
    free((void *)p);
    return rc ? err_set(e, rc, "not enough device memory for the list of %d experts", n) : ERR_NONE;
}

/* ---- adapters -------------------------------------------------------------------------------- */

err_code cuda_expert_tables_open(cuda_state *cu, int n_layer, size_t stride, err *e)
{
    cuda_experts *x = &cu->experts;
    if (x->n == 0) return ERR_NONE;
    size_t n_mat = (size_t)n_layer * (size_t)x->n * LORA_EXPERT_PROJS;
    size_t more = n_mat * (size_t)cuda_pieces_most(x->dim > x->ffn ? x->dim : x->ffn, stride);
    x->table_more = more < INT32_MAX ? (int)more : INT32_MAX;
    x->table_bytes = round_up_size(n_mat * sizeof(sgmv_mat) + more * sizeof(void *), CUDA_ALIGN);
    size_t fit = cu->mem.bytes / TABLE_SHARE / x->table_bytes;
    size_t most = 2 * (size_t)cu->max_seqs; /* those of two steps */
    x->n_table = (int)(fit > most ? most : fit < TABLES_LEAST ? TABLES_LEAST : fit);
    size_t all = (size_t)x->n_table * x->table_bytes;
    x->table = calloc((size_t)x->n_table, sizeof(*x->table));
    x->table_memory = cuda_take(cu, all, false);
    err_code rc =
        CU_TRY(cu, cudaHostAlloc((void **)&x->table_pinned, all, cudaHostAllocDefault), e);
    if (rc) x->table_pinned = NULL;
    if (!rc && (!x->table || !x->table_memory))
        rc = err_set(e, ERR_NOMEM, "not enough device memory for adapters on experts (%zu bytes)",
                     all);
    if (rc) cuda_expert_tables_close(cu);
    return rc;
}

void cuda_expert_tables_close(cuda_state *cu)
{
    cuda_experts *x = &cu->experts;
    cuda_give(cu, x->table_memory);
    wait_free_host(cu->wait, x->table_pinned);
    free(x->table);
    x->table_memory = x->table_pinned = NULL;
    x->table = NULL;
    x->n_table = 0;
}

static bool write_all(const cuda_state *cu, cuda_writer *w, const lora_view *view)
{
    const cuda_experts *x = &cu->experts;
    int n_mat = view->n_layer * x->n * LORA_EXPERT_PROJS;
    for (int i = 0; i < n_mat; i++) {
        bool down = i % LORA_EXPERT_PROJS == PROJ_DOWN - PROJ_GATE;
        if (!cuda_write_mat(w, i, &view->expert[i], down ? x->dim : x->ffn)) return false;
    }
    return true;
}

const sgmv_mat *cuda_expert_mats(backend *be, const lora_view *view)
{
    cuda_state *cu = cuda_of(be);
    cuda_experts *x = &cu->experts;
    cuda_expert_table *t = &x->table[0];
    for (int i = 0; i < x->n_table; i++) {
        cuda_expert_table *at = &x->table[i];
        if (view->load_id != 0 && at->load_id == view->load_id) {
            at->used = cu->step.serial;
            return at->device;
        }
        if (at->used < t->used) t = at;
    }
    if (view->n_layer != cu->n_layer || view->n_expert != x->n) {
        backend_fail(be, ERR_LIMIT, "an adapter on other experts than the model's");
        return NULL;
    }
    if (t->used == cu->step.serial) {
        backend_fail(be, ERR_LIMIT, "a step uses more than %d adapters on experts", x->n_table);
        return NULL;
    }
    /* Its last copy may still be on its way where its step was the one before. */
    if (t->used + 1 == cu->step.serial && !CU(be, wait_stream(cu->wait, cu->stream))) return NULL;
    size_t at = (size_t)(t - x->table) * x->table_bytes;
    size_t mats = (size_t)view->n_layer * (size_t)x->n * LORA_EXPERT_PROJS * sizeof(sgmv_mat);
    char *device = x->table_memory + at, *pinned = x->table_pinned + at;
    cuda_writer w = {.mats = (sgmv_mat *)(void *)pinned,
                     .more = (const void **)(void *)(pinned + mats),
                     .more_device = (const void *const *)(void *)(device + mats),
                     .most = x->table_more};
    *t = (cuda_expert_table){.load_id = 0};
    if (!write_all(cu, &w, view)) {
        backend_fail(be, ERR_LIMIT, "an adapter's memory has more pieces than a step can list");
        return NULL;
    }
    if (!CU(be, cudaMemcpyAsync(device, pinned, mats + (size_t)w.n * sizeof(void *),
                                cudaMemcpyHostToDevice, cu->stream)))
        return NULL;
    *t = (cuda_expert_table){.load_id = view->load_id,
                             .used = cu->step.serial,
                             .device = (const sgmv_mat *)(void *)device};
    return t->device;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Only sizes of grids and of tiles hang on the number of rows. */
static int tile_of(int slots, int n)
{
    return slots < SOME_FROM * n   ? GROUPED_FEW
           : slots < MANY_FROM * n ? GROUPED_SOME
                                   : GROUPED_MANY;
}

/* What both products have in common. */
static grouped_args grouped_of(const cu_experts *x)
{
    return (grouped_args){.type = x->type,
                          .rows = x->n_rows * x->top_k,
                          .n_group = x->n,
                          .tile = x->tile,
                          .item = x->item,
                          .n_item = x->n_item,
                          .group_of = x->expert_of,
                          .n_rows = x->first + x->n};
}

/* LoRA on what a grouped product has made, in place. */
static bool adapt(backend *be, const cu_experts *x, sgmv_args *a)
{
    cuda_state *cu = cuda_of(be);
    int slots = x->n_rows * x->top_k;
    a->type = x->type;
    a->v = cu->experts.v;
    a->v_plane = (size_t)slots * SGMV_OUT_MAX * (size_t)x->v_rank;
    a->counts = x->counts;
    a->chunk = x->chunk;
    a->max_small = a->max_lora = a->max_all = slots;
    a->chunk_rows = x->chunk_rows;
    a->rank_max = x->v_rank;
    return CU(be, cu_sgmv_shrink(cu->stream, a)) && CU(be, cu_sgmv_expand(cu->stream, a));
}

static bool up(backend *be, const cu_experts *x, const expert_set *set, bool lora)
{
    cuda_state *cu = cuda_of(be);
    const void *const *w = set->there;
    size_t ffn = (size_t)x->ffn;
    grouped_args p = grouped_of(x);
    p.w[0] = w;
    p.w[1] = w + x->n;
    p.x = x->rows;
    p.y = x->hidden;
    p.n_mat = 2;
    p.n = x->ffn;
    p.k = cuda_k(x->type, x->dim);
    p.x_stride = round_up(x->dim, 8);
    p.y_stride = 2 * x->ffn;
    sgmv_args a = {.x = x->rows, .x_stride = p.x_stride, .d_in = x->dim, .n_out = 2};
    for (int i = 0; i < 2; i++) {
        float *at = x->hidden + (size_t)i * ffn;
        a.out[i] = (sgmv_out){.in = at,
                              .out = at,
                              .in_stride = p.y_stride,
                              .out_stride = p.y_stride,
                              .d_out = x->ffn,
                              .mat = i};
    }
    return CU(be, cu_grouped(cu->stream, &p)) && (!lora || adapt(be, x, &a)) &&
           CU(be, cu_experts_act(cu->stream, x, set->act, set->gate_bias, set->up_bias));
}

static bool down(backend *be, const cu_experts *x, const expert_set *set, bool lora)
{
    cuda_state *cu = cuda_of(be);
    const void *const *w = set->there;
    grouped_args p = grouped_of(x);
    p.w[0] = w + 2 * x->n;
    p.x = x->acted;
    p.y = x->out;
    p.n_mat = 1;
    p.n = x->dim;
    p.k = cuda_k(x->type, x->ffn);
    p.x_stride = round_up(x->ffn, 8);
    p.y_stride = x->dim;
    sgmv_args a = {.x = x->acted, .x_stride = p.x_stride, .d_in = x->ffn, .n_out = 1};
    a.out[0] = (sgmv_out){.in = x->out,
                          .out = x->out,
                          .in_stride = x->dim,
                          .out_stride = x->dim,
                          .d_out = x->dim,
                          .mat = PROJ_DOWN - PROJ_GATE};
    return CU(be, cu_grouped(cu->stream, &p)) && (!lora || adapt(be, x, &a));
}

void cuda_experts_run(backend *be, float *out, const float *x, const expert_set *set,
                      const float *scores, const float *shared, const step *s, int layer)
{
    cuda_state *cu = cuda_of(be);
    const expert_route *r = &set->route;
    if (!cuda_step_enter(be, s)) return;
    const cuda_step *st = &cu->step;
    const int n = st->shape.n_rows, most = cu->experts.rows;
    const bool lora = st->expert_rank > 0;
    cuda_alias as = cuda_where(cu, scores, r->n), ag = {.at = NULL, .stride = 1};
    if (shared) ag = cuda_where(cu, shared, 1);
    cu_experts c = cu->experts.at;
    c.route = *r;
    c.choice_bias = set->choice_bias;
    c.score_stride = as.stride;
    c.shared_stride = ag.stride;
    c.layer = layer;
    c.v_rank = round_up(st->expert_rank, 8);
    for (int row = 0; row < n; row += most) {
        size_t before = (size_t)row * (size_t)c.dim;
        const float *gate = shared ? ag.at + (size_t)row * (size_t)ag.stride : NULL;
        c.n_rows = n - row < most ? n - row : most;
        c.tile = tile_of(c.n_rows * c.top_k, c.n);
        c.chunk_rows = c.tile == GROUPED_FEW ? 8 : 32;
        c.scores = as.at + (size_t)row * (size_t)as.stride;
        c.live = st->slot + row;
        c.x = x + before;
        c.adapter = lora ? st->expert + row : NULL;
        bool ok = CU(be, cu_experts_sort(cu->stream, &c)) &&
                  (!lora || CU(be, cu_experts_chunks(cu->stream, &c))) && up(be, &c, set, lora) &&
                  down(be, &c, set, lora) &&
                  CU(be, cu_experts_combine(cu->stream, &c, out + before, set->down_bias, gate,
                                            set->onto));
        if (!ok) return;
    }
}
