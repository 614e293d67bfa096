/* pack.c -- converts weights and adapters to the layouts that the CPU kernels read (linear.h).
 *
 * A panel is 32 rows of the matrix, stored column by column: element (row j, column k) is at
 * panel[k][j]. In tiles (AMX) pairs of k are stored together.
 *
 *   matrix [rows][cols]                panel p
 *   row 32p + 0:  a0 a1 a2 ..          a0 b0 c0 ..   k = 0
 *   row 32p + 1:  b0 b1 b2 ..   --->   a1 b1 c1 ..   k = 1
 *
 * That is a transposition, done in squares of 8 x 8 (16 bits) or 4 x 4 (32 bits) with vector
 * shuffles: three or two rounds of interleaving the upper with the lower half. A piece of PIECE
 * columns of all rows is done before the next, so reads are whole cache lines and writes stay in
 * L1.
 *
 * The thread that packs a panel touches its memory first, so the pages are zeroed in parallel and
 * near it. Threads: base weights by the pool's threads; an adapter by one loader thread.
 */
#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/base/round.h"
#include "engine/cpu/linear.h"

enum { PIECE = 256 }; /* of k; a multiple of K_BLOCK */

static uint16_t bf16_element(const void *src, size_t i)
{
    uint16_t h;
    memcpy(&h, (const char *)src + 2 * i, 2);
    return h;
}

/* ------------------------------------------------------------------ squares -- */

typedef uint16_t halves __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));
enum { HALVES = 8, WORDS = 4 };

/* Interleaves the upper with the lower rows: rotates the bits of (row, column) by one. After as
 * many rounds as a row index has bits, row and column are exchanged. */
static inline void mix_halves(halves to[HALVES], const halves from[HALVES])
{
    for (int i = 0; i < HALVES / 2; i++) {
        halves a = from[i], b = from[i + HALVES / 2];
        to[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        to[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    }
}

static inline void mix_words(words to[WORDS], const words from[WORDS])
{
    for (int i = 0; i < WORDS / 2; i++) {
        words a = from[i], b = from[i + WORDS / 2];
        to[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        to[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    }
}

/* to[k][j] = row[j][k] for n <= 8 of k; 8 can be read. */
static inline void turn_halves(uint16_t *to, const char *const row[HALVES], int n)
{
    halves a[HALVES], b[HALVES];
    for (int j = 0; j < HALVES; j++) memcpy(&a[j], row[j], sizeof(a[j]));
    mix_halves(b, a);
    mix_halves(a, b);
    mix_halves(b, a);
    for (int k = 0; k < n; k++) memcpy(to + (size_t)k * PANEL, &b[k], sizeof(b[k]));
}

/* The same, 4 and 4, `stride` from one k to the next. */
static inline void turn_words(uint32_t *to, int stride, const char *const row[WORDS], int n)
{
    words a[WORDS], b[WORDS];
    for (int j = 0; j < WORDS; j++) memcpy(&a[j], row[j], sizeof(a[j]));
    mix_words(b, a);
    mix_words(a, b);
    for (int k = 0; k < n; k++) memcpy(to + (size_t)k * stride, &a[k], sizeof(a[k]));
}

/* ------------------------------------------------------------------- panels -- */

typedef struct {
    cpu_weight *w;
    const void *src;
    atomic_int next;
} pack_job;

/* Returns n values of a matrix row from k0 on: in place, or copied to `stage` with zeros behind if
 * the row ends earlier. */
static const char *piece_of(const pack_job *job, int row, int k0, int n, float *stage)
{
    const weight *w = &job->w->head;
    size_t size = w->type == DT_F32 ? 4 : 2, at = (size_t)row * (size_t)w->cols + (size_t)k0;
    const char *from = (const char *)job->src + at * size;
    int have = row >= w->rows ? 0 : w->cols - k0 < n ? w->cols - k0 : n;
    if (have == n && n % HALVES == 0) return from;
    memset(stage, 0, PIECE * sizeof(*stage));
    memcpy(stage, from, (size_t)have * size);
    return (const char *)stage;
}

/* n values of k from k0 on, HALVES rows from j0 on. */
static void pack_halves(const pack_job *job, char *panel, int p, int j0, int k0, int n)
{
    assert(n > 0 && n <= PIECE && p < job->w->n_panel && j0 + HALVES <= PANEL);
    alignas(64) float stage[HALVES][PIECE];
    const char *row[HALVES];
    for (int j = 0; j < HALVES; j++) row[j] = piece_of(job, p * PANEL + j0 + j, k0, n, stage[j]);
    uint16_t *to = (uint16_t *)(void *)panel + (size_t)k0 * PANEL + j0;
    for (int k = 0; k < n; k += HALVES, to += HALVES * PANEL) {
        turn_halves(to, row, n - k < HALVES ? n - k : HALVES);
        for (int j = 0; j < HALVES; j++) row[j] += sizeof(halves);
    }
}

/* The same with WORDS rows: floats, or, in tiles, pairs of k. */
static void pack_words(const pack_job *job, char *panel, int p, int j0, int k0, int n)
{
    assert(n > 0 && n <= PIECE && p < job->w->n_panel && j0 + WORDS <= PANEL);
    alignas(64) float stage[WORDS][PIECE];
    const char *row[WORDS];
    for (int j = 0; j < WORDS; j++) row[j] = piece_of(job, p * PANEL + j0 + j, k0, n, stage[j]);
    bool tiles = job->w->pack == PACK_TILE;
    int per_word = tiles ? 2 : 1, stride = tiles ? 16 : PANEL, n_word = n / per_word;
    uint32_t *to = (uint32_t *)(void *)panel + (size_t)k0 / per_word * PANEL;
    for (int i = 0; i < n_word; i += WORDS) {
        int at = tiles ? i / 16 * 2 * 256 + j0 / 16 * 256 + i % 16 * 16 + j0 % 16 : i * PANEL + j0;
        turn_words(to + at, stride, row, n_word - i < WORDS ? n_word - i : WORDS);
        for (int j = 0; j < WORDS; j++) row[j] += sizeof(words);
    }
}

static void pack_panel(const pack_job *job, int p)
{
    const cpu_weight *w = job->w;
    char *panel = (char *)w->data + (size_t)p * w->panel_bytes;
    int k_end = w->pack == PACK_TILE ? w->k_pad : w->head.cols;
    for (int k = 0; k < k_end; k += PIECE) {
        int n = k_end - k < PIECE ? k_end - k : PIECE;
        if (w->pack == PACK_BF16 || w->pack == PACK_F16) {
            for (int j = 0; j < PANEL; j += HALVES) pack_halves(job, panel, p, j, k, n);
        } else {
            for (int j = 0; j < PANEL; j += WORDS) pack_words(job, panel, p, j, k, n);
        }
    }
}

static void pack_thread(void *arg, int thread)
{
    (void)thread;
    pack_job *job = arg;
    for (int p; (p = atomic_fetch_add(&job->next, 1)) < job->w->n_panel;) pack_panel(job, p);
}

static void quant_shape(cpu_weight *w, const weight_source *src)
{
    size_t tail = 0;
    if (src->floats) {
        w->coded = coded_form_of(src, w->pack == PACK_TILE, &w->panel_bytes);
    } else {
        w->pack = PACK_QUANT;
        w->quant = quant_form_of(src, &w->panel_bytes, &tail);
    }
    w->head.bytes = w->panel_bytes * (size_t)w->n_panel + tail;
}

/* The order of a quantised weight lies behind its panels. */
static void find_order(cpu_weight *w, const weight_source *src)
{
    const char *tail = (const char *)w->data + w->panel_bytes * (size_t)w->n_panel;
    if (weight_source_quantised(src) && src->order)
        w->quant.order = (const int *)(const void *)tail;
}

/* A weight of this shape without its data. */
static cpu_weight *weight_shape(const backend *be, const weight_source *src)
{
    cpu_weight *w = calloc(1, sizeof(*w));
    if (!w) return NULL;
    const cpu_kernels *set = cpu_kernels_of(((const cpu_state *)be->impl)->isa);
    w->head = (weight){.rows = src->rows, .cols = src->cols, .type = src->type};
    bool plain_f16 = src->type == DT_F16 && !weight_source_quantised(src);
    w->pack = plain_f16              ? PACK_F16
              : src->type != DT_BF16 ? PACK_F32
              : set->tiles           ? PACK_TILE
                                     : PACK_BF16;
    w->k_pad = round_up(src->cols, K_BLOCK);
    w->n_panel = round_up(src->rows, PANEL) / PANEL;
    assert(w->k_pad >= src->cols && (size_t)w->n_panel * PANEL >= (size_t)src->rows);
    if (weight_source_quantised(src)) {
        quant_shape(w, src);
        return w;
    }
    int k = w->pack == PACK_TILE ? w->k_pad : src->cols;
    w->panel_bytes = (size_t)k * PANEL * (w->pack == PACK_F32 ? 4 : 2);
    w->head.bytes = w->panel_bytes * (size_t)w->n_panel;
    assert(w->n_panel > 0 && w->panel_bytes > 0);
    return w;
}

static err_code pack(cpu_weight *w, const weight_source *src, thread_pool *pool, err *e)
{
    if (weight_source_quantised(src)) return quant_pack(w, src, pool, e);
    pack_job job = {.w = w, .src = src->data};
    if (pool)
        pool_run(pool, pack_thread, &job);
    else
        pack_thread(&job, 0);
    return ERR_NONE;
}

static err_code weight_create(backend *be, weight **out, const weight_source *src,
                              thread_pool *pool, err *e)
{
    cpu_weight *w = weight_shape(be, src);
    if (!w) return err_set(e, ERR_NOMEM, "no memory for a weight");
    w->data = cpu_block(w->head.bytes);
    err_code rc = w->data ? pack(w, src, pool, e)
                          : err_set(e, ERR_NOMEM, "no memory for a weight of %d x %d (%zu bytes)",
                                    src->rows, src->cols, w->head.bytes);
    if (rc) {
        cpu_weight_destroy(be, &w->head);
        return rc;
    }
    find_order(w, src);
    *out = &w->head;
    return ERR_NONE;
}

err_code cpu_weight_create(backend *be, weight **out, const weight_source *src, err *e)
{
    return weight_create(be, out, src, cpu_of(be)->pool, e);
}

/* The pool is the engine thread's. */
err_code cpu_lora_weight_create(backend *be, weight **out, const void *src, dtype type, int rows,
                                int cols, err *e)
{
    weight_source plain = weight_source_plain(src, type, rows, cols);
    return weight_create(be, out, &plain, NULL, e);
}

/* Of each packing: another number when its bytes change. */
static uint32_t layout_of(const cpu_weight *w)
{
    static const uint32_t layouts[] = {
        [PACK_F32] = 1, [PACK_BF16] = 2, [PACK_TILE] = 3, [PACK_QUANT] = 5, [PACK_F16] = 6};
    return w->coded.bits ? (w->pack == PACK_TILE ? 8 : 7) : layouts[w->pack];
}

size_t cpu_weight_packed_bytes(const backend *be, const weight_source *src, uint32_t *layout)
{
    cpu_weight *w = weight_shape(be, src);
    if (!w) return 0;
    size_t bytes = w->head.bytes;
    *layout = layout_of(w);
    free(w);
    return bytes;
}

err_code cpu_weight_adopt(backend *be, weight **out, const weight_source *src, const void *packed,
                          err *e)
{
    cpu_weight *w = weight_shape(be, src);
    if (!w) return err_set(e, ERR_NOMEM, "no memory for a weight");
    w->data = (void *)(uintptr_t)packed;
    w->adopted = true;
    find_order(w, src);
    if (w->quant.order && !quant_order_ok(w->quant.order, src->cols)) {
        free(w);
        return err_set(e, ERR_CORRUPT, "a packed matrix names a column that it does not have");
    }
    *out = &w->head;
    return ERR_NONE;
}

const void *cpu_weight_packed(const weight *w)
{
    return ((const cpu_weight *)w)->data;
}

void cpu_weight_destroy(backend *be, weight *w)
{
    (void)be;
    if (!w) return;
    if (!((cpu_weight *)w)->adopted) free(((cpu_weight *)w)->data);
    free(atomic_load(&((cpu_weight *)w)->squares));
    free(w);
}

/* ----------------------------------------------------------------- adapters -- */

size_t cpu_lora_a_bytes(const backend *be, dtype base, int rank, int d_in)
{
    (void)be;
    return lora_bytes(base, rank, d_in);
}

size_t cpu_lora_b_bytes(const backend *be, dtype base, int rank, int d_out)
{
    (void)be;
    return lora_bytes(base, rank, round_up(d_out, PANEL));
}

/* dst[i][j] = src[i * row + j * col] as it is packed (bf16 beside bf16 weights, else f32), rows
 * dense.  Inlined for each pair of types, so that the loops are plain. */
static inline __attribute__((always_inline)) void lora_block(void *dst, const bool bf16,
                                                             const void *src, const dtype type,
                                                             int n_row, int n_col, size_t row,
                                                             size_t col, int width)
{
    uint16_t *h = dst;
    float *f = dst;
    for (int i = 0; i < n_row; i++) {
        for (int j = 0; j < n_col; j++) {
            size_t from = (size_t)i * row + (size_t)j * col, to = (size_t)i * (size_t)width + j;
            if (bf16 && type == DT_BF16)
                h[to] = bf16_element(src, from);
            else if (bf16)
                h[to] = bf16_from_f32(float_at(src, type, from));
            else
                f[to] = float_at(src, type, from);
        }
    }
}

static void lora_convert(void *dst, bool bf16, const void *src, dtype type, int n_row, int n_col,
                         size_t row, size_t col, int width)
{
    if (bf16 && type == DT_F32)
        lora_block(dst, true, src, DT_F32, n_row, n_col, row, col, width);
    else if (bf16 && type == DT_BF16)
        lora_block(dst, true, src, DT_BF16, n_row, n_col, row, col, width);
    else if (bf16)
        lora_block(dst, true, src, DT_F16, n_row, n_col, row, col, width);
    else if (type == DT_F32)
        lora_block(dst, false, src, DT_F32, n_row, n_col, row, col, width);
    else if (type == DT_BF16)
        lora_block(dst, false, src, DT_BF16, n_row, n_col, row, col, width);
    else
        lora_block(dst, false, src, DT_F16, n_row, n_col, row, col, width);
}

/* B's halves as they are: columns of a panel from rows of `rank`, by squares. */
static void lora_turn(uint16_t *panel, const char *src, int rank, int cols)
{
    assert(rank > 0 && cols > 0 && cols <= PANEL);
    size_t each = (size_t)rank * sizeof(*panel);
    int whole = rank - rank % HALVES;
    for (int j = 0; j < cols; j += HALVES) {
        const char *row[HALVES];
        bool square = cols - j >= HALVES;
        int end = square ? j + HALVES : cols;
        for (int i = 0; i < HALVES && square; i++) row[i] = src + (size_t)(j + i) * each;
        for (int k = 0; k < whole && square; k += HALVES) {
            turn_halves(panel + (size_t)k * PANEL + j, row, HALVES);
            for (int i = 0; i < HALVES; i++) row[i] += sizeof(halves);
        }
        for (int i = j; i < end; i++)
            for (int k = square ? whole : 0; k < rank; k++)
                panel[(size_t)k * PANEL + i] = bf16_element(src + (size_t)i * each, (size_t)k);
    }
}

err_code cpu_lora_pack(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                       const void *b_src, dtype type, int rank, int d_in, int d_out, err *e)
{
    (void)be;
    (void)e;
    assert(rank > 0 && d_in > 0 && d_out > 0);
    bool bf16 = base == DT_BF16;
    size_t from = type == DT_F32 ? 4 : 2, to = bf16 ? 2 : 4;
    bool same = type == (bf16 ? DT_BF16 : DT_F32);
    if (a_dst && same)
        memcpy(a_dst, a_src, (size_t)rank * (size_t)d_in * to);
    else if (a_dst)
        lora_convert(a_dst, bf16, a_src, type, rank, d_in, (size_t)d_in, 1, d_in);
    for (int n = 0; b_dst && n < d_out; n += PANEL) {
        int cols = d_out - n < PANEL ? d_out - n : PANEL;
        char *panel = (char *)b_dst + (size_t)n * (size_t)rank * to;
        const char *src = (const char *)b_src + (size_t)n * (size_t)rank * from;
        if (cols < PANEL) memset(panel, 0, (size_t)rank * PANEL * to);
        if (bf16 && same)
            lora_turn((uint16_t *)(void *)panel, src, rank, cols);
        else
            lora_convert(panel, bf16, src, type, rank, cols, 1, (size_t)rank, PANEL);
    }
    return ERR_NONE;
}
