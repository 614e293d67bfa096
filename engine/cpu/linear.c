/* linear.c -- be_linear(): base product and LoRA in one parallel sweep.
 *
 * Two phases with one barrier between them:
 *     1. rows of x are packed (beside tiles: rounded to bf16), and every (projection, row) with an
 *        adapter gets its v = A x (shrink);
 *     2. every (projection, panel of columns) is computed for all rows, and the panel's epilogue
 *        adds scale * B v (expand), DoRA's gain and the bias while the outputs are still in cache.
 * Rows without an adapter take no part in shrink or expand.  Work is handed out by an atomic
 * counter; which thread computes a panel never changes its bits.
 *
 * A grouped product (experts) is many such jobs with one barrier for all of them: the items of all
 * jobs stand in one row, of which each thread begins with a part.
 */
#include "engine/cpu/linear.h"

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
    /* Below this many multiply-adds the fan-out costs more than it gives. */
    SMALL_WORK = 1 << 15,
    PACK_LEAST = 4096, /* values of x in an item, where there are so many */
};

/* Of each instruction set: who multiplies plain weights that are no tiles, and quantised ones. */
static const struct {
    const linear_kernels *plain;
    const quant_kernels *quant;
} kernels[] = {[ISA_PORTABLE] = {&linear_portable, &quant_portable},
               [ISA_AVX2] = {&linear_avx2, &quant_avx2},
               [ISA_AVXVNNI] = {&linear_avxvnni, &quant_avxvnni},
               [ISA_AVX512] = {&linear_avx512, &quant_avx512},
               [ISA_AVX512VNNI] = {&linear_avx512vnni, &quant_avx512vnni},
               [ISA_AVX512BF16] = {&linear_avx512, &quant_avx512bf16},
               [ISA_AMX] = {&linear_avx512, &quant_amx}};

const linear_kernels *linear_kernels_of(const backend *be)
{
    return kernels[((const cpu_state *)be->impl)->isa].plain;
}

static const quant_kernels *quant_kernels_of(const backend *be)
{
    return kernels[((const cpu_state *)be->impl)->isa].quant;
}

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
    const float *x;
    uint16_t *x16; /* [rows_pad][k_pad], beside tiles only */
    float *packed; /* [n_rows * d_in], elsewhere; NULL: one row, which is x itself */
    quant_rows quant[LINEAR_OUT_MAX]; /* of quantised outs: out o's are quant[quant_of[o]] */
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
    bool tiles, amx, ordered;
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

/* Phase 1 for rows [row, end), which share an adapter or have none, and one output. */
static void shrink_rows(linear_job *job, const step_seg *sg, int o, int row, int end)
{
    const lora_mat *m = mat_of(job, sg, &job->outs[o]);
    if (!m || m->rank == 0) return;
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
    enum { SOME = 128 }; /* of k, whose place in dst stays in the first-level cache */
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
    const int end = row + n, filled = job->quant[0].rows, d = job->d_in;
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
        job->quants->round(&job->quant[made - 1], row, n, w->quant.order ? turned : x, d, k0, k1);
        for (int r = end; k0 == 0 && end == job->n_rows && r < filled; r++)
            quant_row_zero(&job->quant[made - 1], r);
    }
}

static void pack_item(const linear_job *job, int item)
{
    int d = job->d_in, cuts = (d + job->pack_cols - 1) / job->pack_cols;
    int row = item / cuts * job->pack_row, k0 = item % cuts * job->pack_cols;
    int n = job->n_rows - row < job->pack_row ? job->n_rows - row : job->pack_row;
    int k1 = d - k0 < job->pack_cols ? d : k0 + job->pack_cols;
    const float *x = job->x + (size_t)row * d;
    if (job->n_quant) round_rows(job, row, n, k0, k1);
    if (!job->plain || (!job->tiles && !job->packed)) return;
    if (!job->tiles) {
        linear_pack_rows(job->packed + (size_t)row * d, x, n, d);
        return;
    }
    int k_pad = cpu_weight_of(job->plain)->k_pad;
    for (int r = 0; r < n; r++) linear_round_row(job->x16, row + r, x + (size_t)r * d, d, k_pad);
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

/* B's part for one panel of columns. */
static const char *b_of(const lora_mat *m, int p, const weight *w)
{
    const lora_split *sp = m->split;
    int col = p * PANEL;
    if (!sp || col < sp->b_first) return (const char *)m->b + lora_bytes(w->type, m->rank, col);
    col -= sp->b_first;
    return (const char *)sp->b[col / sp->b_each] + lora_bytes(w->type, m->rank, col % sp->b_each);
}

/* What the epilogue of an item will read, on its way while the item's products are computed: to the
 * second-level cache, since the weights' own lines take the places of what comes to the first. */
static void fetch_b(const linear_job *job, int o, int p0, int row0, int n)
{
    const step_seg *sg = seg_of_row(job, row0);
    for (; sg < job->seg + job->n_seg && sg->row0 < row0 + n; sg++) {
        const lora_mat *m = mat_of(job, sg, &job->outs[o]);
        if (!m || m->rank == 0) continue;
        const weight *w = job->outs[o].w;
        cpu_fetch(b_of(m, p0, w), lora_bytes(w->type, m->rank, PANEL));
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
                job->kern->expand(sums, end - i, b_of(m, p0 + p, out->w), out->w->type == DT_BF16,
                                  v, job->rank_max, m->scale, m->rank);
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

/* What a thread has while it takes items: room for an item's sums, and what its tiles are for. */
typedef struct {
    float *buf;
    int tiles; /* linear_tiles() */
} linear_seat;

/* Panels [p0, p0 + n_panel) of output o for rows [row0, row0 + n). */
static void run_item(const linear_job *job, linear_seat *seat, int o, int p0, int n_panel, int row0,
                     int n)
{
    float *buf = seat->buf;
    const cpu_weight *w = cpu_weight_of(&job->outs[o]);
    if (job->seg) fetch_b(job, o, p0, row0, n);
    int pad = round_up(n, PANEL); /* kernels may write whole blocks of rows */
    if (w->pack == PACK_TILE && job->amx) linear_tiles(&seat->tiles, LINEAR_TILE_PAIRS);
    if (w->pack == PACK_QUANT) {
        const quant_rows *x = &job->quant[job->quant_of[o]];
        if (x->tiled) linear_tiles(&seat->tiles, w->quant.k);
        job->quants->block(buf, pad, w, p0, n_panel, x, row0, n);
    } else if (w->pack != PACK_TILE) {
        block_fn *fn = linear_block_of(job->kern, w->pack);
        fn(buf, pad, w, p0, n_panel, job->packed ? job->packed : job->x, row0, n);
    } else if (n_panel > 1 || w->coded.bits) {
        block_fn *fn = job->amx ? linear_block_tile : linear_block_pairs;
        fn(buf, pad, w, p0, n_panel, job->x16, row0, n);
    } else {
        panel_fn *fn = job->amx ? linear_panel_tile : linear_panel_pairs;
        fn(buf, w, p0, job->x16, row0, n);
    }
    size_t stride = (size_t)pad * PANEL;
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
    linear_tiles(&seat.tiles, 0);
}

/* As many panels an item as leave each thread some items. */
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

static void run(backend *be, cpu_state *cpu, size_t work, void (*fn)(void *arg, int thread),
                void *arg)
{
    (void)be;
    if (work < SMALL_WORK)
        fn(arg, 0);
    else
        pool_run(cpu->pool, fn, arg);
}

/* Who of the step's rows has an adapter on this layer. */
static void find_lora(linear_job *job, const step *s)
{
    if (!s || !any_lora(s, job->layer)) return;
    job->seg = s->seg;
    job->n_seg = s->n_seg;
    for (int i = 0; i < s->n_seg; i++) {
        int rank = s->seg[i].lora ? s->seg[i].lora->rank_max : 0;
        if (rank > job->rank_max) job->rank_max = rank;
    }
}

/* Rows are packed whole, but where there are fewer groups of them than threads: then by columns, if
 * all is quantised. */
static void cut_packing(linear_job *job, int n_threads)
{
    job->pack_row = job->tiles ? SHRINK_ROWS : job->plain ? job->kern->tile_rows : QUANT_SOME;
    int groups = (job->n_rows + job->pack_row - 1) / job->pack_row, unit = 1;
    int cuts = (n_threads + groups - 1) / groups;
    size_t most = (size_t)job->n_rows * (size_t)job->d_in / PACK_LEAST;
    if ((size_t)cuts > most) cuts = (int)most;
    for (int i = 0; i < job->n_quant; i++)
        if (job->quant[i].span > unit) unit = job->quant[i].span;
    job->pack_cols = job->plain || cuts < 2 ? job->d_in : round_up(job->d_in / cuts, unit);
    if (job->tiles || job->n_quant || job->n_rows > 1)
        job->n_pack = groups * ((job->d_in + job->pack_cols - 1) / job->pack_cols);
}

/* How the work is cut: rows to pack, chunks of rows, groups of panels, parts. */
static void cut(linear_job *job, int n_threads)
{
    cut_packing(job, n_threads);
    job->chunk = job->tiles || !job->plain ? ROW_CHUNK : VEC_CHUNK;
    job->n_chunk = (job->n_rows + job->chunk - 1) / job->chunk;
    /* Rows that share no adapter gain nothing from one another, and are for as many threads. */
    job->shrink_row = 2 * job->n_seg > job->n_rows ? 1 : SHRINK_ROWS;
    job->group = job->n_rows >= MANY_ROWS ? group_size(job, n_threads) : 1;
    for (int o = 0; o < job->n_out; o++) job->n_group += groups_of(job, o);
    job->n_part = job->n_chunk > 1 ? job->n_chunk : n_threads;
}

/* The rows of x that out o reads: those of an out before it; job->n_quant: new ones. */
static int rows_of(const linear_job *job, int o)
{
    const quant_form *f = &cpu_weight_of(&job->outs[o])->quant;
    for (int i = 0; i < o && !f->order; i++) {
        const cpu_weight *w = cpu_weight_of(&job->outs[i]);
        if (w->pack == PACK_QUANT && !w->quant.order && quant_span(&w->quant) == quant_span(f))
            return job->quant_of[i];
    }
    return job->n_quant;
}

static bool tiled(const linear_job *job)
{
    return job->n_rows >= job->quants->tiles_from;
}

/* Who of the outs reads x in which form. */
static void find_forms(linear_job *job, const cpu_state *cpu)
{
    for (int o = 0; o < job->n_out; o++) {
        const cpu_weight *w = cpu_weight_of(&job->outs[o]);
        if (w->pack != PACK_QUANT) {
            job->plain = &job->outs[o];
            job->tiles = w->pack == PACK_TILE;
            job->amx = job->tiles && cpu->isa == ISA_AMX;
            continue;
        }
        int rows = rows_of(job, o);
        if (rows == job->n_quant)
            job->quant[job->n_quant++] =
                (quant_rows){.span = quant_span(&w->quant), .tiled = tiled(job)};
        job->quant_of[o] = rows;
        job->ordered |= w->quant.order != NULL;
    }
}

/* What a job keeps of its own from the first phase to the second, in bytes. */
typedef struct linear_room {
    size_t x, quant, shrunk;
} linear_room;

/* Of one of the forms of x that quantised outs read. */
static size_t place_rows(const linear_job *job, quant_rows *q, void *mem)
{
    int rows = tiled(job) ? round_up(job->n_rows, QUANT_TILE)
                          : quant_filled(job->n_rows, job->quants->fill_from);
    return quant_rows_place(q, mem, rows, job->d_in);
}

static linear_room room_of(const linear_job *job)
{
    int k_pad = round_up(job->d_in, K_BLOCK);
    size_t rows = (size_t)job->n_rows, cols = (size_t)job->d_in;
    linear_room r = {0};
    if (job->tiles)
        r.x = (size_t)round_up(job->n_rows, 16) * (size_t)k_pad * sizeof(*job->x16);
    else if (job->plain && job->n_rows > 1)
        r.x = round_up_size(rows * cols * sizeof(float), 64);
    if (job->n_quant)
        r.quant = (size_t)job->n_quant * place_rows(job, NULL, NULL) +
                  round_up_size(job->ordered ? rows * cols * sizeof(float) : 0, 64);
    if (job->seg)
        r.shrunk =
            (size_t)job->n_out * rows * (size_t)(job->rank_max ? job->rank_max : 1) * sizeof(float);
    return r;
}

static void take_quant(linear_job *job, char *p)
{
    size_t each = place_rows(job, NULL, NULL);
    for (int i = 0; i < job->n_quant; i++)
        (void)place_rows(job, &job->quant[i], p + each * (size_t)i);
    job->turned = (float *)(void *)(p + each * (size_t)job->n_quant);
}

/* NULL where nothing is wanted. */
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

/* What pads the last tile. */
static void zero_pad(const linear_job *job)
{
    for (int row = job->n_rows; job->tiles && row < round_up(job->n_rows, 16); row++)
        linear_zero_row(job->x16, row, cpu_weight_of(job->plain)->k_pad);
}

void cpu_linear_most(const cpu_state *cpu, const step_bounds *most, size_t bytes[CPU_SCRATCHES])
{
    size_t rows = (size_t)(most->rows > most->logits ? most->rows : most->logits);
    size_t threads = (size_t)pool_threads(cpu->pool), chunks = rows / VEC_CHUNK + 1;
    size_t rows_pad = (rows + 15) / 16 * 16, cols = (size_t)round_up(most->cols, K_BLOCK);
    bytes[SCRATCH_X] = rows_pad * cols * sizeof(float);
    bytes[SCRATCH_QUANT] =
        LINEAR_OUT_MAX * quant_rows_place(NULL, NULL, (int)rows_pad, most->cols) +
        rows * cols * sizeof(float);
    bytes[SCRATCH_SUMS] = threads * SUMS_OF_THREAD * sizeof(float);
    bytes[SCRATCH_SHRUNK] = LINEAR_OUT_MAX * rows * LORA_RANK_MAX * sizeof(float);
    bytes[SCRATCH_NEXT] = (threads > chunks ? threads : chunks) * APART * sizeof(atomic_int);
}

void cpu_linear_groups_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES])
{
    size_t rows = (size_t)most->rows, cols = (size_t)round_up(most->cols, K_BLOCK);
    bytes[SCRATCH_X] = rows * cols * sizeof(float);
    /* A group of so few rows as are filled has at most as many more. */
    bytes[SCRATCH_QUANT] = 2 * (quant_rows_place(NULL, NULL, 2 * most->rows, most->cols) +
                                rows * cols * sizeof(float));
    bytes[SCRATCH_SHRUNK] = 2 * rows * LORA_RANK_MAX * sizeof(float);
}

void cpu_linear_rows(backend *be, const float *x, const linear_out *outs, int n_out, int n_rows,
                     const step *s, int layer)
{
    cpu_state *cpu = cpu_of(be);
    const cpu_weight *first = cpu_weight_of(&outs[0]);
    linear_job job = {.kern = linear_kernels_of(be),
                      .quants = quant_kernels_of(be),
                      .x = x,
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
    if (job.n_pack || job.seg) run(be, cpu, prepare, prepare_thread, &job);
    run(be, cpu, work, panels_thread, &job);
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
            seat.buf = job->group > 1 ? job->sums + (size_t)thread * SUMS_OF_THREAD : own;
            int item = i - b->panels[j];
            panels_item(job, &seat, item / job->n_group, item % job->n_group);
        }
    }
    linear_tiles(&seat.tiles, 0);
}

static void group_job(backend *be, const linear_group *g, int layer, linear_job *job)
{
    cpu_state *cpu = cpu_of(be);
    *job = (linear_job){.kern = linear_kernels_of(be),
                        .quants = quant_kernels_of(be),
                        .x = g->x,
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
    if (b.prepare[n] > 0) run(be, cpu, prepare, batch_prepare_thread, &b);
    run(be, cpu, work, batch_panels_thread, &b);
}

void cpu_linear(backend *be, const float *x, const linear_out *outs, int n_out, const step *s,
                int layer)
{
    cpu_linear_rows(be, x, outs, n_out, s->n_rows, s, layer);
}
