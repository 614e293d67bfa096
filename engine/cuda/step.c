/* step.c -- a step as kernels read it: lists made on the host in one pinned block, sent in one copy.
 *
 * Two blocks take turns, so that one can be filled while the other is still on its way.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/cuda.h"

enum { CHUNK_ROWS = 32, TILE_FROM = 64, ATTEND_GROUP_MAX = 64 };

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

static size_t bytes_most(const cuda_state *cu)
{
    size_t rows = (size_t)cu->max_rows, n = 0;
    cu_attend_plan most;
    cu_attend_plan_limits(&most, cu->max_rows, cu->max_rows, page_most(cu), ATTEND_GROUP_MAX,
                          8 * cu->n_sm);
    n += rows * (4 * sizeof(int32_t) + sizeof(cu_embed_alt));
    n += (size_t)most.max_seq * sizeof(cu_attend_seq);
    n += (size_t)(most.max_small + most.max_large) * sizeof(cu_attend_item);
    n += (size_t)most.max_merge * sizeof(cu_attend_merge);
    n += (size_t)most.max_page * sizeof(int32_t);
    n += 4 * rows * sizeof(sgmv_chunk) + 2 * sizeof(sgmv_counts) + sizeof(cu_attend_counts);
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
        if (st->pinned[i]) (void)cudaFreeHost(st->pinned[i]);
    }
    cuda_give(cu, st->device);
    free(st->seg);
    free(st->head);
    memset(st, 0, sizeof(*st));
}

/* ---- filling ----------------------------------------------------------------------------- */

static const int32_t *put_ints(inbox *in, const int32_t *v, int n)
{
    const void *device;
    int32_t *to = put(in, (size_t)n * sizeof(*to), &device);
    if (to) memcpy(to, v, (size_t)n * sizeof(*to));
    return device;
}

static void fill_attention(cuda_state *cu, inbox *in, const step *s)
{
    cuda_step *st = &cu->step;
    const attn_shape *shape = &cu->kv->head.shape;
    int group = shape->n_head / shape->n_kv_head, pages = 0;
    for (int i = 0; i < s->n_seq; i++) pages += s->seq[i].n_page;
    const void *slot, *counts, *seq, *small, *large, *merge, *page;
    int32_t *slots = put(in, (size_t)s->n_rows * sizeof(*slots), &slot);
    cu_attend_plan *p = &st->plan;
    memset(p, 0, sizeof(*p));
    cu_attend_plan_limits(p, s->n_seq, s->n_rows, pages, group, cu->max_partial);
    cu_attend_counts *n = put(in, sizeof(*n), &counts);
    p->seq = put(in, (size_t)p->max_seq * sizeof(*p->seq), &seq);
    p->small = put(in, (size_t)p->max_small * sizeof(*p->small), &small);
    p->large = put(in, (size_t)p->max_large * sizeof(*p->large), &large);
    p->merge = put(in, (size_t)p->max_merge * sizeof(*p->merge), &merge);
    p->page = put(in, (size_t)p->max_page * sizeof(*p->page), &page);
    if (in->full || !cu_attend_plan_fill(p, s, group, shape->window)) {
        in->full = true;
        return;
    }
    cu_slots_fill(slots, s->n_rows, s);
    *n = p->counts;
    st->slot = slot;
    st->counts = counts;
    st->seq = seq;
    st->small = small;
    st->large = large;
    st->merge = merge;
    st->page = page;
}

/* The lists of the LoRA kernels for `n_rows` rows cut as st->seg says. */
static void fill_lists(cuda_state *cu, inbox *in, cuda_lists *l, int n_seg, int n_rows)
{
    const cuda_step *st = &cu->step;
    const void *counts, *chunk, *tile;
    int max_chunk = n_seg + n_rows / CHUNK_ROWS, max_tile = n_seg + n_rows / SGMV_TILE_ROWS;
    sgmv_counts *c = put(in, sizeof(*c), &counts);
    sgmv_chunk *chunks = put(in, (size_t)max_chunk * sizeof(*chunks), &chunk);
    sgmv_chunk *tiles = put(in, (size_t)max_tile * sizeof(*tiles), &tile);
    if (in->full) return;
    int64_t floats =
        sgmv_plan(chunks, max_chunk, tiles, max_tile, c, st->seg, n_seg, CHUNK_ROWS, TILE_FROM);
    if (floats < 0) {
        in->full = true;
        return;
    }
    bool all = l->all_rows;
    *l = (cuda_lists){.counts = counts,
                      .chunk = chunk,
                      .tile = tile,
                      .n_small = c->n_small,
                      .n_tile = c->n_tile,
                      .n_lora = c->n_lora,
                      .n_all = c->n_all,
                      .v_floats = (size_t)floats,
                      .all_rows = all};
}

/* Rows of the step by adapter; where an adapter has an input table of its own. */
static bool fill_rows(backend *be, inbox *in, const step *s)
{
    cuda_state *cu = cuda_of(be);
    cuda_step *st = &cu->step;
    cu_embed_alt *alt = NULL;
    st->alt = NULL;
    st->embeds = st->heads = st->rows.all_rows = false;
    for (int i = 0; i < s->n_seg; i++) {
        const step_seg *sg = &s->seg[i];
        st->seg[i] = (sgmv_seg){.row0 = sg->row0, .n_rows = sg->n_rows};
        if (!sg->lora) continue;
        const cuda_table *t = cuda_table_of(be, sg->lora);
        if (!t) return false;
        st->seg[i].mats = t->device;
        st->seg[i].rank_max = sg->lora->rank_max;
        st->rows.all_rows |= t->biased;
        st->embeds |= t->embeds;
        st->heads |= t->heads;
        if (!t->own_rows) continue;
        if (!alt) {
            const void *device;
            alt = put(in, (size_t)s->n_rows * sizeof(*alt), &device);
            if (!alt) return true;
            memset(alt, 0, (size_t)s->n_rows * sizeof(*alt));
            st->alt = device;
        }
        for (int r = sg->row0; r < sg->row0 + sg->n_rows; r++) {
            alt[r] = (cu_embed_alt){sg->lora->embed->table, sg->lora->embed->table_type};
        }
    }
    fill_lists(cu, in, &st->rows, s->n_seg, s->n_rows);
    return true;
}

/* Logits by adapter: their rows are those of logit_row, numbered anew. */
static void fill_heads(cuda_state *cu, inbox *in, const step *s)
{
    cuda_step *st = &cu->step;
    int n_seg = 0, at = 0;
    st->logits.all_rows = false;
    for (int i = 0; i < s->n_seg; i++) {
        const step_seg *sg = &s->seg[i];
        int from = at;
        const lora_head *head = sg->lora ? sg->lora->head : NULL;
        for (; at < s->n_logit && s->logit_row[at] < sg->row0 + sg->n_rows; at++) {
            st->head[at] = head ? head->w : NULL;
        }
        if (at == from) continue;
        bool used = head && lora_mat_used(&head->mat);
        st->seg[n_seg++] = (sgmv_seg){.mats = used ? st->seg[i].mats : NULL,
                                      .row0 = from,
                                      .n_rows = at - from,
                                      .rank_max = used ? head->mat.rank : 0};
        if (used && head->mat.rank == 0) st->logits.all_rows = true;
    }
    fill_lists(cu, in, &st->logits, n_seg, s->n_logit);
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
    int turn = (int)(++st->serial & 1);
    inbox in = {.host = st->pinned[turn], .device = st->device, .room = st->bytes};
    if (!CU(be, cudaEventSynchronize(st->copied[turn]))) return false;
    st->token = put_ints(&in, s->token, s->n_rows);
    st->pos = put_ints(&in, s->pos, s->n_rows);
    st->logit_row = put_ints(&in, s->logit_row, s->n_logit);
    fill_attention(cu, &in, s);
    if (!fill_rows(be, &in, s)) return false;
    fill_heads(cu, &in, s); /* last: it overwrites st->seg */
    if (in.full) {
        backend_fail(be, ERR_LIMIT, "a step of %d rows in %d sequences has no room", s->n_rows,
                     s->n_seq);
        return false;
    }
    cuda_await_uploads(be);
    st->of =
        CU(be, cudaMemcpyAsync(in.device, in.host, in.at, cudaMemcpyHostToDevice, cu->stream)) &&
                CU(be, cudaEventRecord(st->copied[turn], cu->stream))
            ? s
            : NULL;
    cu->x16_of = NULL;
    cu->n_alias = 0;
    return st->of != NULL;
}
