/* linear.c -- be_linear() on the CPU: base product and LoRA in one parallel sweep.
 *
 *   phase 1   pack the rows of x (transposed, rounded or quantised);  v = A x for rows with an
 *   adapter
 *   barrier
 *   phase 2   for each (projection, panel of columns): sums over k for all rows; then, while the
 *   sums are in cache, += scale B v, x DoRA gain, + bias, store to y
 *
 * Panels are 32 columns stored together (linear.h). An item is a group of panels for a chunk of
 * rows; threads take items from atomic counters. With several chunks each thread starts in its own
 * chunk, whose packed rows stay in its L2 cache while all weights pass; with one chunk each thread
 * reads one contiguous run of weights. Idle threads help the others.
 *
 * A panel's bits never depend on which thread computes it, nor on the other rows of the step: a sum
 * has one accumulator, k ascending.
 *
 * A grouped product (experts) is many such jobs behind one barrier, with the items of all jobs in
 * one sequence.
 *
 * Threads: called by the engine thread; the pool's threads run the items. Scratch belongs to the
 * backend; cpu_linear_most() bounds it.
 */
#include "engine/cpu/linear.h"

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/round.h"
#include "engine/cpu/fetch.h"

enum {
    ROW_CHUNK = 256, /* rows of one item, beside tiles and where all is quantised */
    VEC_CHUNK = 96,  /* elsewhere: a multiple of 16 and of each set's tile_rows */
    GROUP = 8,       /* panels of one item, where there are many rows */
    APART = 16,      /* counters of one part and the next: a cache line */
    MANY_ROWS = 64,  /* from here on */
    SUMS_OF_THREAD = GROUP * ROW_CHUNK * PANEL,
    /* Below this many multiply-adds one thread is faster than waking the pool. */
    SMALL_WORK = 1 << 15,
    PACK_LEAST = 4096, /* values of x in an item, where there are so many */
};

block_fn *linear_block_of(const linear_kernels *kern, packing pack)
{
    return pack == PACK_F32   ? kern->block_f32
           : pack == PACK_F16 ? kern->block_f16
                              : kern->block_bf16;
}

/* ------------------------------------------------------------------- linear -- */

typedef struct {
    const linear_kernels *kern;
    const quant_kernels *quants;
    const tile_kernels *tile; /* NULL: the set has none */
    const float *x;
    uint16_t *x16; /* [rows_pad][k_pad], beside tiles only */
    float *packed; /* [n_rows * d_in], elsewhere; NULL: one row, which is x itself */
    quant_rows quant[LINEAR_OUT_MAX]; /* of quantised outs: out o's are quant[quant_of[o]] */
    quant_rows rest[LINEAR_OUT_MAX];  /* of quant[i], where it has one */
    int quant_of[LINEAR_OUT_MAX], n_quant;
    int n_pack; /* items of x to pack: pack_row rows, pack_cols columns each */
    int pack_row, pack_cols;
    int shrink_row;          /* rows of an item of shrink */
    const linear_out *plain; /* an out that is not quantised, or NULL */
    float *v;                /* [n_out][n_rows][rank_max] */
    const linear_out *outs;
    const step_seg *seg; /* NULL: no LoRA */
    float *sums;         /* [thread][GROUP][ROW_CHUNK][PANEL], where group > 1 */
    int n_out, n_seg, n_rows, d_in, layer, expert, rank_max; /* expert -1: none */
    int chunk, n_chunk;                                      /* rows of an item */
    int group, n_group; /* panels of an item; items of a chunk */
    int n_part;
    bool tiles, ordered;
    float *turned; /* [n_rows][d_in], where some quantised out has an order of its own */
    atomic_int next_row, *next; /* of part i: next[i * APART] */
} linear_job;

static const cpu_weight *cpu_weight_of(const linear_out *o)
{
    return (const cpu_weight *)o->w;
}

static int groups_of(const linear_job *job, int o)
{
    return (cpu_weight_of(&job->outs[o])->n_panel + job->group - 1) / job->group;
}

static const lora_mat *mat_of(const linear_job *job, const step_seg *sg, const linear_out *o)
{
    if (!sg->lora || o->lora_proj < 0 || job->layer < 0) return NULL;
    if (job->expert >= 0) return lora_expert(sg->lora, job->layer, job->expert, o->lora_proj);
    if (o->lora_proj == LORA_HEAD) {
        const lora_head *head = sg->lora->head;
        return head && lora_mat_used(&head->mat) ? &head->mat : NULL;
    }
    const lora_mat *m = &sg->lora->mat[(size_t)job->layer * PROJ_COUNT + (size_t)o->lora_proj];
    return lora_mat_used(m) ? m : NULL;
}

static const step_seg *seg_of_row(const linear_job *job, int row)
{
    int lo = 0, hi = job->n_seg - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (job->seg[mid].row0 <= row)
            lo = mid;
        else
            hi = mid - 1;
    }
    return &job->seg[lo];
}

/* Shrink (v = A x) for rows [row, end), which share an adapter or have none, and one output. */
static void shrink_rows(linear_job *job, const step_seg *sg, int o, int row, int end)
{
    const lora_mat *m = mat_of(job, sg, &job->outs[o]);
    if (!m || m->rank == 0) return;
    assert(m->rank <= job->rank_max && row < end && end <= job->n_rows);
    float *v = job->v + ((size_t)o * job->n_rows + row) * job->rank_max;
    const lora_split *sp = m->split;
    const void *a = m->a;
    for (int r = 0, n, piece = 0; r < m->rank; r += n) {
        n = !sp ? m->rank : r == 0 ? sp->a_first : sp->a_each;
        if (n > m->rank - r) n = m->rank - r;
        job->kern->shrink(v + r, job->rank_max, end - row, a, job->outs[o].w->type == DT_BF16,
                          job->x + (size_t)row * job->d_in, n, job->d_in);
        if (r + n < m->rank) a = sp->a[piece++];
    }
}

void linear_pack_rows(float *dst, const float *src, int n, int d)
{
    assert(n > 0 && d > 0 && dst != src);
    enum { SOME = 128 }; /* of k, whose part of dst stays in the L1 cache */
    for (int k0 = 0; k0 < d; k0 += SOME) {
        int k1 = k0 + SOME < d ? k0 + SOME : d;
        for (int r = 0; r < n; r++) {
            for (int k = k0; k < k1; k++) dst[(size_t)k * n + r] = src[(size_t)r * d + k];
        }
    }
}

/* Rows [row, row + n), columns [k0, k1), for the quantised outs: each by its columns' order. */
static void round_rows(const linear_job *job, int row, int n, int k0, int k1)
{
    const int end = row + n, d = job->d_in;
    for (int o = 0, made = 0; o < job->n_out; o++) {
        const cpu_weight *w = cpu_weight_of(&job->outs[o]);
        if (w->pack != PACK_QUANT || job->quant_of[o] < made) continue;
        made = job->quant_of[o] + 1;
        const float *x = job->x + (size_t)row * d;
        float *turned = job->turned + (size_t)row * d;
        for (int r = 0; w->quant.order && r < n; r++) {
            for (int k = k0; k < k1; k++)
                turned[(size_t)r * d + k] = x[(size_t)r * d + w->quant.order[k]];
        }
        const quant_rows *to = &job->quant[made - 1];
        job->quants->round(to, row, n, w->quant.order ? turned : x, d, k0, k1);
        for (int r = end * to->planes; k0 == 0 && end == job->n_rows && r < to->rows; r++)
            quant_row_zero(to, r);
    }
}

static void pack_item(const linear_job *job, int item)
{
    int d = job->d_in, cuts = (d + job->pack_cols - 1) / job->pack_cols;
    int row = item / cuts * job->pack_row, k0 = item % cuts * job->pack_cols;
    int n = job->n_rows - row < job->pack_row ? job->n_rows - row : job->pack_row;
    assert(n > 0 && k0 < d);
    int k1 = d - k0 < job->pack_cols ? d : k0 + job->pack_cols;
    const float *x = job->x + (size_t)row * d;
    if (job->n_quant) round_rows(job, row, n, k0, k1);
    if (!job->plain || (!job->tiles && !job->packed)) return;
    if (!job->tiles) {
        linear_pack_rows(job->packed + (size_t)row * d, x, n, d);
        return;
    }
    int k_pad = cpu_weight_of(job->plain)->k_pad;
    for (int r = 0; r < n; r++)
        job->tile->round_row(job->x16, row + r, x + (size_t)r * d, d, k_pad);
}

/* Items are pieces of x to pack, then (shrink_row rows, output). */
static int prepare_items(const linear_job *job)
{
    int n_shrink = (job->n_rows + job->shrink_row - 1) / job->shrink_row * job->n_out;
    return job->n_pack + (job->seg ? n_shrink : 0);
}

static void prepare_item(linear_job *job, int i)
{
    int n_out = job->n_out;
    if (i < job->n_pack) {
        pack_item(job, i);
        return;
    }
    int row = (i - job->n_pack) / n_out * job->shrink_row, o = (i - job->n_pack) % n_out;
    int end = row + job->shrink_row < job->n_rows ? row + job->shrink_row : job->n_rows;
    const step_seg *sg = seg_of_row(job, row);
    for (int to; row < end; row = to, sg++) {
        to = sg->row0 + sg->n_rows < end ? sg->row0 + sg->n_rows : end;
        shrink_rows(job, sg, o, row, to);
    }
}

static void prepare_thread(void *arg, int thread)
{
    (void)thread;
    linear_job *job = arg;
    int n_items = prepare_items(job);
    for (int i; (i = atomic_fetch_add(&job->next_row, 1)) < n_items;) prepare_item(job, i);
}

/* Prefetches what the epilogue of an item will read, while its products are computed: into L2,
 * because the weights replace what is in L1. */
static void fetch_b(const linear_job *job, int o, int p0, int row0, int n)
{
    const step_seg *sg = seg_of_row(job, row0);
    for (; sg < job->seg + job->n_seg && sg->row0 < row0 + n; sg++) {
        const lora_mat *m = mat_of(job, sg, &job->outs[o]);
        if (!m || m->rank == 0) continue;
        const weight *w = job->outs[o].w;
        cpu_fetch(lora_b_panel(m, p0, w->type), lora_bytes(w->type, m->rank, PANEL));
    }
}

static int panel_cols(const weight *w, int p)
{
    return w->rows - p * PANEL < PANEL ? w->rows - p * PANEL : PANEL;
}

/* DoRA: n rows of one panel times the gain of their columns. */
static void multiply(float *buf, int n, const float *gain, int cols)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < cols; j++) buf[i * PANEL + j] *= gain[j];
    }
}

/* Rows [row0, row0 + n) of panels [p0, p0 + n_panel) of one output: the panels' sums lie `stride`
 * floats apart in buf. */
static void add_lora(const linear_job *job, int o, int p0, int n_panel, float *buf, size_t stride,
                     int row0, int n)
{
    const linear_out *out = &job->outs[o];
    const step_seg *sg = seg_of_row(job, row0);
    for (int i = 0; i < n; sg++) {
        int end = sg->row0 + sg->n_rows - row0 < n ? sg->row0 + sg->n_rows - row0 : n;
        const lora_mat *m = mat_of(job, sg, out);
        for (int p = 0; m && p < n_panel; p++) {
            const float *v = job->v + ((size_t)o * job->n_rows + row0 + i) * job->rank_max;
            float *sums = buf + (size_t)p * stride + (size_t)i * PANEL;
            if (m->rank > 0)
                job->kern->expand(sums, end - i, lora_b_panel(m, p0 + p, out->w->type),
                                  out->w->type == DT_BF16, v, job->rank_max, m->scale, m->rank);
            if (m->gain)
                multiply(sums, end - i, m->gain + (size_t)(p0 + p) * PANEL,
                         panel_cols(out->w, p0 + p));
        }
        i = end;
    }
}

/* Bias, and out to y: one row of one panel. */
static void put_row(const linear_out *out, const float *bias, int row, int p, const float *buf)
{
    int d_out = out->w->rows, n0 = p * PANEL, cols = panel_cols(out->w, p);
    float *y = out->y + (size_t)row * (out->stride ? out->stride : d_out) + n0;
    if (out->accumulate && bias) {
        for (int j = 0; j < cols; j++) y[j] += buf[j] + bias[n0 + j];
    } else if (out->accumulate) {
        for (int j = 0; j < cols; j++) y[j] += buf[j];
    } else if (bias) {
        for (int j = 0; j < cols; j++) y[j] = buf[j] + bias[n0 + j];
    } else if (cols == PANEL) {
        memcpy(y, buf, PANEL * sizeof(*y));
    } else {
        memcpy(y, buf, (size_t)cols * sizeof(*y));
    }
}

/* The sums of x in 16 bits, two rows for each of n: those of both planes. */
static void add_planes(float *buf, int n_panel, size_t stride, int n)
{
    for (int p = 0; p < n_panel; p++, buf += stride) {
        for (int i = 0; i < n * PANEL; i++) {
            const float *high = buf + i / PANEL * 2 * PANEL + i % PANEL;
            buf[i] = high[0] + high[PANEL];
        }
    }
}

/* State of a thread while it runs items: a buffer for sums, and the current tile configuration. */
typedef struct {
    float *buf;
    int tiles; /* linear_configure() */
} linear_seat;

/* Panels [p0, p0 + n_panel) of output o for rows [row0, row0 + n). */
static void run_item(const linear_job *job, linear_seat *seat, int o, int p0, int n_panel, int row0,
                     int n)
{
    float *buf = seat->buf;
    const cpu_weight *w = cpu_weight_of(&job->outs[o]);
    if (job->seg) fetch_b(job, o, p0, row0, n);
    int planes = w->pack == PACK_QUANT ? w->quant.planes : 1;
    int pad = round_up(n * planes, PANEL); /* kernels may write whole blocks of rows */
    assert(n > 0 && pad <= ROW_CHUNK && n_panel <= job->group && n_panel <= GROUP); /* seat->buf */
    if (w->pack == PACK_TILE) linear_configure(job->tile, &seat->tiles, LINEAR_TILE_PAIRS);
    if (w->pack == PACK_QUANT) {
        const quant_rows *x = &job->quant[job->quant_of[o]];
        if (x->tiled) linear_configure(job->tile, &seat->tiles, w->quant.k);
        job->quants->block(buf, pad, w, p0, n_panel, x, row0 * planes, n * planes);
        if (w->quant.outliers) job->quants->rest(buf, pad, w, p0, n_panel, x->rest, row0, n);
    } else if (w->pack != PACK_TILE) {
        block_fn *fn = linear_block_of(job->kern, w->pack);
        fn(buf, pad, w, p0, n_panel, job->packed ? job->packed : job->x, row0, n);
    } else if (n_panel > 1 || w->coded.bits) {
        job->tile->block(buf, pad, w, p0, n_panel, job->x16, row0, n);
    } else {
        job->tile->panel(buf, w, p0, job->x16, row0, n);
    }
    size_t stride = (size_t)pad * PANEL;
    if (planes > 1) add_planes(buf, n_panel, stride, n);
    if (job->seg) add_lora(job, o, p0, n_panel, buf, stride, row0, n);
    const linear_out *out = &job->outs[o];
    const step_seg *sg = job->seg ? seg_of_row(job, row0) : NULL;
    for (int i = 0; i < n; i++) {
        if (sg && row0 + i >= sg->row0 + sg->n_rows) sg++;
        const lora_mat *m = sg ? mat_of(job, sg, out) : NULL;
        const float *bias = m && m->bias ? m->bias : out->bias;
        for (int p = 0; p < n_panel; p++) {
            put_row(out, bias, row0 + i, p0 + p, buf + p * stride + (size_t)i * PANEL);
        }
    }
}

/* One group of panels for chunk c of the rows. */
static void panels_item(const linear_job *job, linear_seat *seat, int c, int item)
{
    int row0 = c * job->chunk, o = 0;
    int n = job->n_rows - row0 < job->chunk ? job->n_rows - row0 : job->chunk;
    while (item >= groups_of(job, o)) item -= groups_of(job, o++);
    assert(o < job->n_out && n > 0);
    int p0 = item * job->group, left = cpu_weight_of(&job->outs[o])->n_panel - p0;
    run_item(job, seat, o, p0, left < job->group ? left : job->group, row0, n);
}

/* The first item of a part, where parts are runs of panels. */
static int part_start(const linear_job *job, int part)
{
    return (int)((int64_t)job->n_group * part / job->n_part);
}

/* Items are (chunk of rows, group of panels), in parts that threads share out.  With several chunks
 * a part is a chunk: each thread begins with one of its own, whose rows stay in its second-level
 * cache while all weights pass; threads on different chunks pass over the same weights at about the
 * same time, so that memory gives them once.  With one chunk a part is a run of panels, so that
 * each thread reads one long stretch of memory.  Whoever is done helps the others. */
static void panels_thread(void *arg, int thread)
{
    linear_job *job = arg;
    alignas(64) float own[ROW_CHUNK * PANEL];
    linear_seat seat = {job->group > 1 ? job->sums + (size_t)thread * SUMS_OF_THREAD : own, 0};
    for (int turn = 0; turn < job->n_part; turn++) {
        int part = (thread + turn) % job->n_part, end = job->n_group, c = part;
        if (job->n_chunk == 1) {
            end = part_start(job, part + 1);
            c = 0;
        }
        for (int item; (item = atomic_fetch_add(&job->next[part * APART], 1)) < end;)
            panels_item(job, &seat, c, item);
    }
    linear_configure(job->tile, &seat.tiles, 0);
}

/* Panels per item, so that each thread still gets about four items. */
static int group_size(const linear_job *job, int n_threads)
{
    int panels = 0;
    for (int o = 0; o < job->n_out; o++) panels += cpu_weight_of(&job->outs[o])->n_panel;
    int group = panels * job->n_chunk / (4 * n_threads);
    return group < 1 ? 1 : group > GROUP ? GROUP : group;
}

static bool any_lora(const step *s, int layer)
{
    for (int i = 0; layer >= 0 && i < s->n_seg; i++) {
        if (s->seg[i].lora) return true;
    }
    return false;
}

/* Finds the segments with an adapter on this layer. */
static void find_lora(linear_job *job, const step *s)
{
    if (!s || !any_lora(s, job->layer)) return;
    job->seg = s->seg;
    job->n_seg = s->n_seg;
    for (int i = 0; i < s->n_seg; i++) {
        int rank = s->seg[i].lora ? s->seg[i].lora->rank_max : 0;
        assert(rank >= 0 && rank <= LORA_RANK_MAX);
        if (rank > job->rank_max) job->rank_max = rank;
    }
}

/* Rows are packed whole, but where there are fewer groups of them than threads: then by columns, if
 * all is quantised. */
static void cut_packing(linear_job *job, int n_threads)
{
    assert(job->n_rows > 0 && job->d_in > 0 && n_threads > 0);
    job->pack_row = job->tiles ? SHRINK_ROWS : job->plain ? job->kern->tile_rows : QUANT_SOME;
    int groups = (job->n_rows + job->pack_row - 1) / job->pack_row;
    int cuts = (n_threads + groups - 1) / groups;
    size_t most = (size_t)job->n_rows * (size_t)job->d_in / PACK_LEAST;
    if ((size_t)cuts > most) cuts = (int)most;
    job->pack_cols = job->plain || cuts < 2 ? job->d_in : round_up(job->d_in / cuts, QUANT_K);
    if (job->tiles || job->n_quant || job->n_rows > 1)
        job->n_pack = groups * ((job->d_in + job->pack_cols - 1) / job->pack_cols);
}

/* Divides the work: rows to pack, chunks of rows, groups of panels, parts. */
static void cut(linear_job *job, int n_threads)
{
    cut_packing(job, n_threads);
    job->chunk = job->tiles || !job->plain ? ROW_CHUNK : VEC_CHUNK;
    for (int i = 0; i < job->n_quant; i++)
        if (job->quant[i].planes * job->chunk > ROW_CHUNK) job->chunk = ROW_CHUNK / 2;
    job->n_chunk = (job->n_rows + job->chunk - 1) / job->chunk;
    /* Rows that share no adapter gain nothing from one another, and are for as many threads. */
    job->shrink_row = 2 * job->n_seg > job->n_rows ? 1 : SHRINK_ROWS;
    job->group = job->n_rows >= MANY_ROWS ? group_size(job, n_threads) : 1;
    for (int o = 0; o < job->n_out; o++) job->n_group += groups_of(job, o);
    job->n_part = job->n_chunk > 1 ? job->n_chunk : n_threads;
    assert(job->n_group > 0 && job->n_part > 0 && job->group <= GROUP);
}

/* The rows of x that out o reads: those of an out before it; job->n_quant: new ones. */
static int rows_of(const linear_job *job, int o)
{
    const quant_form *f = &cpu_weight_of(&job->outs[o])->quant;
    for (int i = 0; i < o && !f->order; i++) {
        const cpu_weight *w = cpu_weight_of(&job->outs[i]);
        if (w->pack == PACK_QUANT && !w->quant.order && w->quant.k == f->k &&
            w->quant.planes == f->planes)
            return job->quant_of[i];
    }
    return job->n_quant;
}

/* The kernels, and the forms of x that the outs read. */
static void find_forms(linear_job *job, const cpu_state *cpu)
{
    const cpu_kernels *set = cpu_kernels_of(cpu->isa);
    job->kern = set->linear;
    job->quants = set->quant;
    job->tile = set->tiles;
    for (int o = 0; o < job->n_out; o++) {
        const cpu_weight *w = cpu_weight_of(&job->outs[o]);
        assert(w->head.cols == job->d_in);
        if (w->pack != PACK_QUANT) {
            assert(!job->plain ||
                   job->tiles == (w->pack == PACK_TILE)); /* x is packed in one way */
            job->plain = &job->outs[o];
            job->tiles = w->pack == PACK_TILE;
            continue;
        }
        int rows = rows_of(job, o);
        if (rows == job->n_quant) {
            const int planes = w->quant.planes;
            job->quant[job->n_quant++] =
                (quant_rows){.span = w->quant.k,
                             .planes = planes,
                             .tiled = job->n_rows * planes >= job->quants->tiles_from};
        }
        if (w->quant.outliers) job->quant[rows].rest = &job->rest[rows];
        job->quant_of[o] = rows;
        job->ordered |= w->quant.order != NULL;
    }
}

/* What a job keeps of its own from the first phase to the second, in bytes. */
typedef struct linear_room {
    size_t x, quant, shrunk;
} linear_room;

/* Of the i-th of the forms of x that quantised outs read; `mem` NULL: its bytes alone. */
static size_t place_rows(linear_job *job, int i, quant_rows *q, void *mem)
{
    int rows = job->n_rows * job->quant[i].planes;
    rows = job->quant[i].tiled ? round_up(rows, QUANT_TILE)
                               : quant_filled(rows, job->quants->fill_from);
    size_t bytes = quant_rows_place(q, mem, rows, job->d_in);
    if (!job->quant[i].rest) return bytes;
    if (mem) {
        job->rest[i] = (quant_rows){.span = job->quant[i].span, .planes = 1};
        mem = (char *)mem + bytes;
    }
    return bytes + quant_rows_place(mem ? &job->rest[i] : NULL, mem, rows, job->d_in);
}

static linear_room room_of(linear_job *job)
{
    int k_pad = round_up(job->d_in, K_BLOCK);
    size_t rows = (size_t)job->n_rows, cols = (size_t)job->d_in;
    linear_room r = {0};
    if (job->tiles)
        r.x = (size_t)round_up(job->n_rows, 16) * (size_t)k_pad * sizeof(*job->x16);
    else if (job->plain && job->n_rows > 1)
        r.x = round_up_size(rows * cols * sizeof(float), 64);
    if (job->ordered) r.quant = round_up_size(rows * cols * sizeof(float), 64);
    for (int i = 0; i < job->n_quant; i++) r.quant += place_rows(job, i, NULL, NULL);
    if (job->seg)
        r.shrunk =
            (size_t)job->n_out * rows * (size_t)(job->rank_max ? job->rank_max : 1) * sizeof(float);
    return r;
}

static void take_quant(linear_job *job, char *p)
{
    for (int i = 0; i < job->n_quant; i++) p += place_rows(job, i, &job->quant[i], p);
    job->turned = (float *)(void *)p;
}

/* NULL if bytes is 0. */
static void *some(backend *be, cpu_scratch_use use, size_t bytes)
{
    return bytes ? cpu_scratch(be, use, bytes) : NULL;
}

/* Room for all of them together; false: the backend is marked as failed.  cpu_linear_most() and
 * cpu_experts_most() say how much it can be. */
static bool take_scratch(backend *be, linear_job *job, int n_job)
{
    linear_room all = {0};
    size_t threads = (size_t)pool_threads(cpu_of(be)->pool);
    bool grouped = false;
    for (int i = 0; i < n_job; i++) {
        linear_room r = room_of(&job[i]);
        all.x += r.x;
        all.quant += r.quant;
        all.shrunk += r.shrunk;
        grouped |= job[i].group > 1;
    }
    size_t sum_bytes = grouped ? threads * SUMS_OF_THREAD * sizeof(float) : 0;
    char *x = some(be, SCRATCH_X, all.x), *v = some(be, SCRATCH_SHRUNK, all.shrunk);
    char *quant = some(be, SCRATCH_QUANT, all.quant);
    float *sums = some(be, SCRATCH_SUMS, sum_bytes);
    if ((all.x && !x) || (all.shrunk && !v) || (all.quant && !quant) || (grouped && !sums))
        return false;
    for (int i = 0; i < n_job; i++) {
        linear_room r = room_of(&job[i]);
        if (r.x && job[i].tiles) job[i].x16 = (uint16_t *)(void *)x;
        if (r.x && !job[i].tiles) job[i].packed = (float *)(void *)x;
        if (r.quant) take_quant(&job[i], quant);
        if (r.shrunk) job[i].v = (float *)(void *)v;
        job[i].sums = sums;
        if (r.x) x += r.x;
        if (r.quant) quant += r.quant;
        if (r.shrunk) v += r.shrunk;
    }
    return true;
}

static atomic_int *take_counters(backend *be, int n)
{
    return cpu_scratch(be, SCRATCH_NEXT, (size_t)n * APART * sizeof(atomic_int));
}

/* Zeros the rows that pad the last tile. */
static void zero_pad(const linear_job *job)
{
    for (int row = job->n_rows; job->tiles && row < round_up(job->n_rows, 16); row++)
        job->tile->zero_row(job->x16, row, cpu_weight_of(job->plain)->k_pad);
}

void cpu_linear_most(const cpu_state *cpu, const step_bounds *most, size_t bytes[CPU_SCRATCHES])
{
    size_t rows = (size_t)(most->rows > most->logits ? most->rows : most->logits);
    size_t threads = (size_t)pool_threads(cpu->pool), chunks = rows / VEC_CHUNK + 1;
    size_t rows_pad = (rows + 15) / 16 * 16, cols = (size_t)round_up(most->cols, K_BLOCK);
    bytes[SCRATCH_X] = rows_pad * cols * sizeof(float);
    bytes[SCRATCH_QUANT] =
        LINEAR_OUT_MAX * quant_rows_place(NULL, NULL, 2 * (int)rows_pad, most->cols) +
        rows * cols * sizeof(float);
    bytes[SCRATCH_SUMS] = threads * SUMS_OF_THREAD * sizeof(float);
    bytes[SCRATCH_SHRUNK] = LINEAR_OUT_MAX * rows * LORA_RANK_MAX * sizeof(float);
    bytes[SCRATCH_NEXT] = (threads > chunks ? threads : chunks) * APART * sizeof(atomic_int);
}

void cpu_linear_groups_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES])
{
    size_t rows = (size_t)most->rows, cols = (size_t)round_up(most->cols, K_BLOCK);
    bytes[SCRATCH_X] = rows * cols * sizeof(float);
    /* A group of so few rows as are filled has at most as many more; each in two planes. */
    bytes[SCRATCH_QUANT] = 2 * (quant_rows_place(NULL, NULL, 4 * most->rows, most->cols) +
                                rows * cols * sizeof(float));
    bytes[SCRATCH_SHRUNK] = 2 * rows * LORA_RANK_MAX * sizeof(float);
}

void cpu_linear_rows(backend *be, const float *x, const linear_out *outs, int n_out, int n_rows,
                     const step *s, int layer)
{
    assert(n_out > 0 && n_out <= LINEAR_OUT_MAX && n_rows > 0);
    cpu_state *cpu = cpu_of(be);
    const cpu_weight *first = cpu_weight_of(&outs[0]);
    linear_job job = {.x = x,
                      .outs = outs,
                      .n_out = n_out,
                      .n_rows = n_rows,
                      .d_in = first->head.cols,
                      .layer = layer,
                      .expert = -1};
    find_forms(&job, cpu);
    find_lora(&job, s);
    cut(&job, pool_threads(cpu->pool));
    job.next = take_counters(be, job.n_part);
    if (!job.next || !take_scratch(be, &job, 1)) return;
    zero_pad(&job);
    for (int i = 0; i < job.n_part; i++) {
        atomic_init(&job.next[i * APART], job.n_chunk > 1 ? 0 : part_start(&job, i));
    }
    size_t work = 0;
    for (int o = 0; o < n_out; o++) work += (size_t)outs[o].w->rows * first->head.cols * n_rows;
    size_t prepare =
        (size_t)n_rows * job.d_in * ((job.n_pack ? 1 : 0) + (size_t)n_out * job.rank_max);
    if (job.n_pack || job.seg) cpu_run(be, prepare, SMALL_WORK, prepare_thread, &job);
    cpu_run(be, work, SMALL_WORK, panels_thread, &job);
}

/* ------------------------------------------------------------------ grouped -- */

/* Jobs side by side; the items of job j are [first[j], first[j + 1]). */
typedef struct linear_batch {
    linear_job *job;
    int n_job, n_part;
    int *prepare, *panels; /* [n_job + 1]: first items */
    atomic_int next_row, *next;
} linear_batch;

static int job_of(const int *first, int n_job, int item)
{
    int lo = 0, hi = n_job - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (first[mid] <= item)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static void batch_prepare_thread(void *arg, int thread)
{
    (void)thread;
    linear_batch *b = arg;
    for (int i; (i = atomic_fetch_add(&b->next_row, 1)) < b->prepare[b->n_job];) {
        int j = job_of(b->prepare, b->n_job, i);
        prepare_item(&b->job[j], i - b->prepare[j]);
    }
}

static int batch_start(const linear_batch *b, int part)
{
    return (int)((int64_t)b->panels[b->n_job] * part / b->n_part);
}

static void batch_panels_thread(void *arg, int thread)
{
    linear_batch *b = arg;
    alignas(64) float own[ROW_CHUNK * PANEL];
    linear_seat seat = {own, 0};
    for (int turn = 0; turn < b->n_part; turn++) {
        int part = (thread + turn) % b->n_part, end = batch_start(b, part + 1);
        for (int i; (i = atomic_fetch_add(&b->next[part * APART], 1)) < end;) {
            int j = job_of(b->panels, b->n_job, i);
            const linear_job *job = &b->job[j];
            assert(i >= b->panels[j] && i < b->panels[j + 1]);
            seat.buf = job->group > 1 ? job->sums + (size_t)thread * SUMS_OF_THREAD : own;
            int item = i - b->panels[j];
            panels_item(job, &seat, item / job->n_group, item % job->n_group);
        }
    }
    linear_configure(b->job->tile, &seat.tiles, 0);
}

static void group_job(backend *be, const linear_group *g, int layer, linear_job *job)
{
    cpu_state *cpu = cpu_of(be);
    *job = (linear_job){.x = g->x,
                        .outs = g->outs,
                        .n_out = g->n_out,
                        .n_rows = g->n_rows,
                        .d_in = g->outs[0].w->cols,
                        .layer = layer,
                        .expert = g->expert};
    find_forms(job, cpu);
    const step s = {.n_seg = g->n_seg, .seg = g->seg};
    find_lora(job, g->seg ? &s : NULL);
    cut(job, pool_threads(cpu->pool));
}

/* The items of each, and how much work they are. */
static void batch_count(linear_batch *b, size_t *prepare, size_t *work)
{
    *prepare = *work = 0;
    b->prepare[0] = b->panels[0] = 0;
    for (int j = 0; j < b->n_job; j++) {
        const linear_job *job = &b->job[j];
        size_t values = (size_t)job->n_rows * (size_t)job->d_in;
        b->prepare[j + 1] = b->prepare[j] + prepare_items(job);
        b->panels[j + 1] = b->panels[j] + job->n_chunk * job->n_group;
        *prepare += values * (1 + (size_t)job->n_out * (size_t)job->rank_max);
        for (int o = 0; o < job->n_out; o++) *work += values * (size_t)job->outs[o].w->rows;
    }
}

size_t cpu_linear_groups_bytes(int n)
{
    return (size_t)n * (sizeof(linear_job) + 2 * sizeof(int)) + 2 * sizeof(int);
}

void cpu_linear_groups(backend *be, const linear_group *groups, int n, int layer)
{
    assert(n > 0);
    cpu_state *cpu = cpu_of(be);
    linear_batch b = {.n_job = n, .n_part = pool_threads(cpu->pool)};
    b.job = cpu_scratch(be, SCRATCH_JOBS, cpu_linear_groups_bytes(n));
    b.next = take_counters(be, b.n_part);
    if (!b.job || !b.next) return;
    b.prepare = (int *)(void *)(b.job + n);
    b.panels = b.prepare + n + 1;
    for (int j = 0; j < n; j++) group_job(be, &groups[j], layer, &b.job[j]);
    if (!take_scratch(be, b.job, n)) return;
    for (int j = 0; j < n; j++) zero_pad(&b.job[j]);
    size_t prepare, work;
    batch_count(&b, &prepare, &work);
    for (int i = 0; i < b.n_part; i++) atomic_init(&b.next[i * APART], batch_start(&b, i));
    if (b.prepare[n] > 0) cpu_run(be, prepare, SMALL_WORK, batch_prepare_thread, &b);
    cpu_run(be, work, SMALL_WORK, batch_panels_thread, &b);
}

void cpu_linear(backend *be, const float *x, const linear_out *outs, int n_out, const step *s,
                int layer)
{
    cpu_linear_rows(be, x, outs, n_out, s->n_rows, s, layer);
}
