/* step.c -- a step as kernels read it: lists made on the host in one
 * pinned block, sent in one copy.
 *
 * Two blocks take turns, so that one can be filled while the other is still on its way.  Where
 * things lie in a block hangs on the step's shape alone (graph.c), but for the pages, which come
 * last; so what was recorded for a shape finds another step of it at the same addresses.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/cuda.h"

enum {
    CHUNK_ROWS = 32,
    DECODE_CHUNK_ROWS = 8,
    TILE_FROM = 64,
    ATTEND_GROUP_MAX = 64,
    PARTIALS_MOST = 1 << 14
};

/* Places things in the block one after another. */
typedef struct inbox {
    char *host, *device;
    size_t at, room;
    bool full;
} inbox;

static void *put(inbox *in, size_t bytes, const void **device)
{
    size_t at = in->at, end = at + (bytes + 15) / 16 * 16;
    if (end > in->room) {
        in->full = true;
        *device = NULL;
        return NULL;
    }
    in->at = end;
    *device = in->device + at;
    return in->host + at;
}

static int page_most(const cuda_state *cu)
{
    int each = (cu->max_context + CU_PAGE_TOKENS - 1) / CU_PAGE_TOKENS + 1;
    return cu->max_seqs * each;
}

/* Of all sequences at their longest, and no fewer than fill the device. */
int cuda_partials_most(const cuda_state *cu)
{
    size_t each = (size_t)cu->max_context / CU_SPLIT_TOKENS + 1, n = (size_t)cu->max_seqs * each;
    size_t least = (size_t)8 * (size_t)cu->n_sm;
    return (int)(n < least ? least : n < PARTIALS_MOST ? n : PARTIALS_MOST);
}

static size_t bytes_most(const cuda_state *cu)
{
    size_t rows = (size_t)cu->max_rows, n = 0;
    cu_attend_plan most;
    cu_attend_plan_limits(&most, cu->max_rows, cu->max_rows, page_most(cu), ATTEND_GROUP_MAX,
                          cuda_partials_most(cu));
    n += rows * (5 * sizeof(int32_t) + sizeof(cu_embed_alt) + sizeof(cu_expert_row));
    n += (size_t)most.max_seq * sizeof(cu_attend_seq);
    n += (size_t)(most.max_small + most.max_large) * sizeof(cu_attend_item);
    n += (size_t)most.max_page * sizeof(int32_t);
    n += 2 * (2 * rows + rows / 16 + 2) * sizeof(sgmv_chunk);
    n += 2 * sizeof(sgmv_counts) + sizeof(cu_attend_counts);
    return n + 32 * 16;
}

err_code cuda_step_open(cuda_state *cu, err *e)
{
    cuda_step *st = &cu->step;
    st->bytes = bytes_most(cu);
    st->seg = calloc((size_t)cu->max_rows, sizeof(*st->seg));
    st->head = calloc((size_t)cu->max_rows, sizeof(*st->head));
    st->device = cuda_take(cu, st->bytes, false);
    if (!st->seg || !st->head || !st->device)
        return err_set(e, ERR_NOMEM, "no memory for steps of %d rows", cu->max_rows);
    err_code rc = ERR_NONE;
    for (int i = 0; !rc && i < 2; i++) {
        rc = CU_TRY(cu, cudaHostAlloc((void **)&st->pinned[i], st->bytes, cudaHostAllocDefault), e);
        if (!rc) {
            rc = CU_TRY(cu, cudaEventCreateWithFlags(&st->copied[i], cudaEventDisableTiming), e);
        }
    }
    return rc;
}

void cuda_step_close(cuda_state *cu)
{
    cuda_step *st = &cu->step;
    for (int i = 0; i < 2; i++) {
        if (st->copied[i]) (void)cudaEventDestroy(st->copied[i]);
        wait_free_host(cu->wait, st->pinned[i]);
    }
    cuda_give(cu, st->device);
    free(st->seg);
    free(st->head);
    memset(st, 0, sizeof(*st));
}

/* ---- layout ------------------------------------------------------------------------------ */

typedef struct list_parts {
    sgmv_counts *counts;
    sgmv_chunk *chunk, *tile;
    int max_chunk, max_tile;
} list_parts;

/* The parts of a step in the pinned block; cuda_step has their places on the device. */
typedef struct parts {
    int32_t *token, *from, *pos, *logit_row, *slot;
    cu_embed_alt *alt;
    cu_expert_row *expert;
    cu_attend_counts *counts;
    list_parts rows, logits;
} parts;

#define PUT(in, host, device, n)                                \
    do {                                                        \
        const void *d_;                                         \
        (host) = put((in), (size_t)(n) * sizeof(*(host)), &d_); \
        (device) = d_;                                          \
    } while (0)

static void lay_lists(inbox *in, list_parts *p, cuda_lists *l, const cuda_shape *shape, int n_seg,
                      int n_rows)
{
    bool exact = shape->kind == CUDA_EXACT;
    p->max_chunk = exact ? n_seg + n_rows / CHUNK_ROWS : n_rows;
    p->max_tile = exact ? n_seg + n_rows / SGMV_TILE_ROWS : 2 * (n_rows / TILE_FROM);
    PUT(in, p->counts, l->counts, 1);
    PUT(in, p->chunk, l->chunk, p->max_chunk);
    PUT(in, p->tile, l->tile, p->max_tile);
}

/* False: the step has no room. */
static bool lay_out(cuda_state *cu, inbox *in, parts *p, const step *s)
{
    cuda_step *st = &cu->step;
    cu_attend_plan *plan = &st->plan;
    const cuda_shape *shape = &st->shape;
    const attn_shape *attn = &cu->kv->head.shape;
    int n = shape->n_rows, n_seq = shape->kind == CUDA_EXACT ? s->n_seq : n, pages = 0;
    for (int i = 0; i < s->n_seq; i++) pages += s->seq[i].n_page;
    memset(plan, 0, sizeof(*plan));
    cu_attend_plan_limits(plan, n_seq, n, pages, attn->n_head / attn->n_kv_head, cu->max_partial);
    PUT(in, p->token, st->token, n);
    PUT(in, p->from, st->from, n);
    PUT(in, p->pos, st->pos, n);
    PUT(in, p->logit_row, st->logit_row, shape->n_logit);
    PUT(in, p->slot, st->slot, n);
    PUT(in, p->alt, st->alt, n);
    PUT(in, p->expert, st->expert, cu->experts.n > 0 ? n : 0);
    PUT(in, p->counts, st->counts, 1);
    PUT(in, plan->seq, st->seq, plan->max_seq);
    PUT(in, plan->small, st->small, plan->max_small);
    PUT(in, plan->large, st->large, plan->max_large);
    lay_lists(in, &p->rows, &st->rows, shape, s->n_seg, n);
    lay_lists(in, &p->logits, &st->logits, shape, s->n_seg, shape->n_logit);
    PUT(in, plan->page, st->page, plan->max_page);
    return !in->full;
}

/* ---- filling ----------------------------------------------------------------------------- */

/* `rest` behind the step's own. */
static void fill_ints(int32_t *to, const int32_t *v, int n, int n_padded, int32_t rest)
{
    assert(n >= 0 && n <= n_padded);
    memcpy(to, v, (size_t)n * sizeof(*to));
    for (int i = n; i < n_padded; i++) to[i] = rest;
}

static bool fill_attention(cuda_state *cu, const parts *p, const step *s)
{
    cuda_step *st = &cu->step;
    const attn_shape *shape = &cu->kv->head.shape;
    if (!cu_attend_plan_fill(&st->plan, s, shape->n_head / shape->n_kv_head, shape->window))
        return false;
    cu_slots_fill(p->slot, st->shape.n_rows, s);
    *p->counts = st->plan.counts;
    return true;
}

/* The lists of the LoRA kernels for rows cut as st->seg says, and the sizes of their launches. */
static bool fill_lists(cuda_state *cu, const list_parts *p, cuda_lists *l, int n_seg, int n_padded)
{
    const cuda_step *st = &cu->step;
    cuda_kind kind = st->shape.kind;
    l->chunk_rows = kind == CUDA_EXACT ? CHUNK_ROWS : DECODE_CHUNK_ROWS;
    l->rank_max = kind == CUDA_RANK64 ? 64 : LORA_RANK_MAX;
    int64_t floats = sgmv_plan(p->chunk, p->max_chunk, p->tile, p->max_tile, p->counts, st->seg,
                               n_seg, l->chunk_rows, TILE_FROM);
    if (floats < 0) return false;
    if (kind == CUDA_EXACT) {
        l->n_small = p->counts->n_small;
        l->n_tile = p->counts->n_tile;
        l->n_lora = p->counts->n_lora;
        l->n_all = p->counts->n_all;
        l->v_floats = (size_t)floats;
        return true;
    }
    bool lora = kind != CUDA_BARE; /* bounds; kernels read the counts */
    l->n_small = l->n_lora = lora ? n_padded : 0;
    l->n_tile = lora ? p->max_tile : 0;
    l->n_all = n_padded;
    l->v_floats = (size_t)n_padded * SGMV_OUT_MAX * (size_t)l->rank_max;
    l->all_rows = lora;
    return true;
}

static cu_embed_alt own_rows(const cuda_state *cu, const lora_view *view)
{
    const lora_embed *em = view->embed;
    return (cu_embed_alt){.table = cuda_here(cu, em->table),
                          .rows = cuda_here(cu, em->rows.table),
                          .id = cuda_here(cu, em->rows.id_there),
                          .type = em->table_type,
                          .n_vocab = cuda_vocab_of(cu, view),
                          .rows_type = em->rows.type,
                          .n_rows = em->rows.n};
}

/* The adapter on experts of a segment's rows. */
static bool fill_experts(backend *be, const parts *p, const step_seg *sg)
{
    cuda_step *st = &cuda_of(be)->step;
    cu_expert_row row = {.mats = cuda_expert_mats(be, sg->lora), .rank = sg->lora->rank_max};
    if (!row.mats) return false;
    for (int i = 0; i < sg->n_rows; i++) p->expert[sg->row0 + i] = row;
    int rank = sg->lora->rank_max > 0 ? sg->lora->rank_max : 1; /* gains alone have chunks, too */
    if (rank > st->expert_rank) st->expert_rank = rank;
    return true;
}

/* Rows of the step by adapter; where an adapter has an input table of its own. */
static bool fill_rows(backend *be, const parts *p, const step *s)
{
    cuda_state *cu = cuda_of(be);
    cuda_step *st = &cu->step;
    bool whole = st->shape.kind == CUDA_WHOLE;
    st->embeds = st->heads = whole;
    st->rows.all_rows = false;
    memset(p->alt, 0, (size_t)st->shape.n_rows * sizeof(*p->alt));
    bool mixed = cu->experts.n > 0;
    if (mixed) memset(p->expert, 0, (size_t)st->shape.n_rows * sizeof(*p->expert));
    st->expert_rank = 0;
    for (int i = 0; i < s->n_seg; i++) {
        const step_seg *sg = &s->seg[i];
        assert(sg->row0 >= 0 && sg->n_rows > 0 && sg->row0 + sg->n_rows <= st->shape.n_rows);
        st->seg[i] = (sgmv_seg){.row0 = sg->row0, .n_rows = sg->n_rows};
        if (!sg->lora) continue;
        const cuda_table *t = cuda_table_of(be, sg->lora);
        if (!t) return false;
        assert(sg->lora->rank_max >= 0 && sg->lora->rank_max <= LORA_RANK_MAX);
        st->seg[i].mats = t->device;
        st->seg[i].rank_max = sg->lora->rank_max;
        st->rows.all_rows |= t->biased;
        st->embeds |= t->embeds;
        st->heads |= t->heads;
        if (mixed && sg->lora->expert && !fill_experts(be, p, sg)) return false;
        for (int r = sg->row0; t->own_rows && r < sg->row0 + sg->n_rows; r++) {
            p->alt[r] = own_rows(cu, sg->lora);
        }
    }
    /* A record serves other adapters, too. */
    cuda_kind kind = st->shape.kind;
    if (kind != CUDA_EXACT)
        st->expert_rank = kind == CUDA_BARE ? 0 : kind == CUDA_RANK64 ? 64 : LORA_RANK_MAX;
    return true;
}

/* Logits by adapter: their rows are those of logit_row, numbered anew.  Returns the segments. */
static int fill_heads(cuda_state *cu, const step *s)
{
    cuda_step *st = &cu->step;
    int n_seg = 0, at = 0;
    st->logits.all_rows = false;
    st->head_cols = cu->n_vocab;
    for (int i = 0; i < s->n_seg; i++) {
        const step_seg *sg = &s->seg[i];
        int from = at;
        const lora_head *head = sg->lora ? sg->lora->head : NULL;
        for (; at < s->n_logit && s->logit_row[at] < sg->row0 + sg->n_rows; at++) {
            st->head[at] = head;
        }
        if (at == from) continue;
        bool used = head && lora_mat_used(&head->mat);
        st->seg[n_seg++] = (sgmv_seg){.mats = used ? st->seg[i].mats : NULL,
                                      .row0 = from,
                                      .n_rows = at - from,
                                      .rank_max = used ? head->mat.rank : 0};
        if (used && head->mat.rank == 0) st->logits.all_rows = true;
        if (used && sg->lora->n_vocab > st->head_cols) st->head_cols = sg->lora->n_vocab;
    }
    assert(at == s->n_logit && at <= st->shape.n_logit); /* each logit row is in a segment */
    for (; at < st->shape.n_logit; at++) st->head[at] = NULL;
    return n_seg;
}

/* Tokens that the step before picks: the host has not seen them. */
static bool take_tokens(backend *be, const step *s)
{
    cuda_state *cu = cuda_of(be);
    if (!s->from) return true;
    cu_take_args a = {.token = (int32_t *)cu->step.token,
                      .from = cu->step.from,
                      .made = (const int32_t *)(const void *)cu->draw.out,
                      .stride = (int)(sizeof(sampled) / sizeof(int32_t)),
                      .n_rows = s->n_rows};
    return CU(be, cu_take_tokens(cu->stream, &a));
}

static bool no_room(backend *be, const step *s)
{
    backend_fail(be, ERR_LIMIT, "a step of %d rows in %d sequences does not fit", s->n_rows,
                 s->n_seq);
    return false;
}

bool cuda_step_enter(backend *be, const step *s)
{
    cuda_state *cu = cuda_of(be);
    cuda_step *st = &cu->step;
    if (st->of == s) return true;
    if (s->n_rows > cu->max_rows || s->n_seg > s->n_rows || !cu->kv) {
        backend_fail(be, ERR_LIMIT, "a step of %d rows on a backend opened for %d", s->n_rows,
                     cu->max_rows);
        return false;
    }
    /* The thread that opened the backend need not be the one that runs steps. */
    if (!CU(be, cudaSetDevice(cu->device))) return false;
    int turn = (int)(++st->serial & 1);
    inbox in = {.host = st->pinned[turn], .device = st->device, .room = st->bytes};
    parts p;
    if (!CU(be, wait_event(cu->wait, st->copied[turn]))) return false;
    st->stride = s->logit_stride ? s->logit_stride : cu->n_vocab;
    st->shape = cuda_shape_of(cu, s);
    const cuda_shape *shape = &st->shape;
    assert(shape->n_rows >= s->n_rows && shape->n_rows <= cu->max_rows);
    assert(shape->n_logit >= s->n_logit);
    if (!lay_out(cu, &in, &p, s) || !fill_attention(cu, &p, s)) return no_room(be, s);
    fill_ints(p.token, s->token, s->n_rows, shape->n_rows, -1);
    if (s->from) fill_ints(p.from, s->from, s->n_rows, shape->n_rows, -1);
    fill_ints(p.pos, s->pos, s->n_rows, shape->n_rows, 0);
    fill_ints(p.logit_row, s->logit_row, s->n_logit, shape->n_logit, -1);
    if (!fill_rows(be, &p, s)) return false;
    if (!fill_lists(cu, &p.rows, &st->rows, s->n_seg, shape->n_rows)) return no_room(be, s);
    int n_seg = fill_heads(cu, s); /* overwrites st->seg */
    if (!fill_lists(cu, &p.logits, &st->logits, n_seg, shape->n_logit)) return no_room(be, s);
    cuda_await_uploads(be);
    st->of =
        CU(be, cudaMemcpyAsync(in.device, in.host, in.at, cudaMemcpyHostToDevice, cu->stream)) &&
                CU(be, cudaEventRecord(st->copied[turn], cu->stream)) && take_tokens(be, s)
            ? s
            : NULL;
    cu->x16_of = cu->gate16_of = NULL;
    cu->n_alias = 0;
    return st->of != NULL;
}
