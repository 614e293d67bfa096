/* dora.c -- what DoRA needs at load time: the length of each row of W + scale * B A.
 *
 * For row i, with b = row i of B:
 *     ||W_i + s b A||^2 = ||W_i||^2 + 2 s b . (A W_i^T) + s^2 b (A A^T) b^T
 * A W^T is the base product with A's rows as x, so the step's own kernels do the bulk of it;
 * ||W_i||^2 is computed once per weight and kept; A A^T is small.  The sums are put together in
 * double: what cancels there is at most what the adapter takes away of the row.
 *
 * Threads: a loader thread; the pool is the engine's and takes no part.
 */
#include <assert.h>
#include <math.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/base/round.h"
#include "engine/cpu/linear.h"

/* Below this share of ||W_i||^2, what is left of a row is rounding. */
static const double VANISHED = 1e-5;

typedef struct {
    const cpu_weight *w;
    const lora_pair *pair;
    const linear_kernels *kern;
    const tile_kernels *tile; /* NULL: the set has none */
    int rank, d_in;
    float *x;      /* A as f32 [rank][d_in] */
    uint16_t *x16; /* the same as tiles, beside tiles only */
    float *packed; /* the same packed, elsewhere */
    float *panel;  /* one panel of a W of codes [d_in][PANEL] */
    float *gram;   /* A A^T [rank][rank] */
    float *p;      /* A W^T of one panel [rank, padded][PANEL] */
    float *b;      /* B of one panel [rank][PANEL] */
    const double *squares;
} gain_job;

/* Value i as the step will multiply it. */
static float value_at(const gain_job *g, const void *src, size_t i)
{
    float f = float_at(src, g->pair->type, i);
    return g->w->head.type == DT_BF16 ? bf16_to_f32(bf16_from_f32(f)) : f;
}

static void read_b(const gain_job *g, int panel)
{
    assert(panel >= 0 && panel < g->w->n_panel);
    int cols = g->w->head.rows - panel * PANEL;
    memset(g->b, 0, (size_t)g->rank * PANEL * sizeof(*g->b));
    for (int j = 0; j < PANEL && j < cols; j++) {
        size_t row = (size_t)(panel * PANEL + j) * g->rank;
        for (int r = 0; r < g->rank; r++)
            g->b[r * PANEL + j] = value_at(g, g->pair->b, row + (size_t)r);
    }
}

/* Adds the squares of one panel's values; they lie in groups of PANEL: one of each column, or, in
 * tiles, two of each of 16 columns. */
static void add_squares(const cpu_weight *w, int panel, double out[PANEL], float *floats)
{
    if (floats) {
        quant_panel_f32(floats, w, panel);
        for (int i = 0; i < w->head.cols * PANEL; i++)
            out[i % PANEL] += (double)floats[i] * (double)floats[i];
        return;
    }
    const char *data = (const char *)w->data + (size_t)panel * w->panel_bytes;
    dtype type = w->pack == PACK_F32 ? DT_F32 : w->pack == PACK_F16 ? DT_F16 : DT_BF16;
    int k_end = w->pack == PACK_TILE ? w->k_pad : w->head.cols;
    for (int k = 0; k < k_end; k++) {
        int half = k / 16 % 2 * 16; /* a tile is 16 such groups; two tiles make a K_BLOCK */
        for (int j = 0; j < PANEL; j++) {
            double v = (double)float_at(data, type, (size_t)k * PANEL + (size_t)j);
            out[w->pack == PACK_TILE ? half + j / 2 : j] += v * v;
        }
    }
}

/* Made by whoever comes first; another's copy is dropped. */
static const double *squares_of(cpu_weight *w, float *floats)
{
    double *have = atomic_load(&w->squares);
    if (have) return have;
    double *s = calloc((size_t)w->n_panel * PANEL, sizeof(*s));
    if (!s) return NULL;
    for (int p = 0; p < w->n_panel; p++) add_squares(w, p, s + (size_t)p * PANEL, floats);
    if (atomic_compare_exchange_strong(&w->squares, &have, s)) return s;
    free(s);
    return have;
}

/* A as floats and packed as rows of x, and the Gram matrix A A^T [rank][rank]: with it the norm
 * of a row of W + s B A takes no product of the whole. */
static err_code gain_begin(gain_job *g, err *e)
{
    assert(g->rank > 0 && g->rank <= LORA_RANK_MAX);
    size_t n = (size_t)g->rank * g->d_in;
    int pad = round_up(g->rank, PANEL);
    bool tiles = g->w->pack == PACK_TILE;
    g->x = malloc((n + 64) * sizeof(*g->x));
    g->gram = malloc((size_t)g->rank * g->rank * sizeof(*g->gram));
    g->p = aligned_alloc(64, (size_t)pad * PANEL * sizeof(*g->p));
    g->b = malloc((size_t)g->rank * PANEL * sizeof(*g->b));
    if (tiles)
        g->x16 = aligned_alloc(64, (size_t)pad * g->w->k_pad * 2);
    else
        g->packed = malloc((n + 64) * sizeof(*g->packed));
    if (!g->x || !g->gram || !g->p || !g->b || (!g->x16 && !g->packed))
        return err_set(e, ERR_NOMEM, "no memory for the norms of a DoRA adapter");
    for (size_t i = 0; i < n; i++) g->x[i] = value_at(g, g->pair->a, i);
    for (int r = 0; tiles && r < pad; r++) {
        if (r < g->rank)
            g->tile->round_row(g->x16, r, g->x + (size_t)r * g->d_in, g->d_in, g->w->k_pad);
        else
            g->tile->zero_row(g->x16, r, g->w->k_pad);
    }
    for (int r = 0, some = g->kern->tile_rows; !tiles && r < g->rank; r += some) {
        int rows = g->rank - r < some ? g->rank - r : some;
        size_t at = (size_t)r * g->d_in;
        linear_pack_rows(g->packed + at, g->x + at, rows, g->d_in);
    }
    for (int r = 0; r < g->rank; r += SHRINK_ROWS) {
        int rows = g->rank - r < SHRINK_ROWS ? g->rank - r : SHRINK_ROWS;
        g->kern->shrink(g->gram + (size_t)r * g->rank, g->rank, rows, g->x, false,
                        g->x + (size_t)r * g->d_in, g->rank, g->d_in);
    }
    return ERR_NONE;
}

/* A W^T for one panel of W's rows. */
static void project(const gain_job *g, int panel)
{
    int pad = round_up(g->rank, PANEL);
    if (g->w->pack == PACK_QUANT) {
        cpu_weight one = {.head = {.rows = PANEL, .cols = g->d_in, .type = DT_F32},
                          .pack = PACK_F32,
                          .n_panel = 1,
                          .panel_bytes = (size_t)g->d_in * PANEL * sizeof(float),
                          .data = g->panel};
        quant_panel_f32(g->panel, g->w, panel);
        g->kern->block_f32(g->p, pad, &one, 0, 1, g->packed, 0, g->rank);
    } else {
        bool tiles = g->w->pack == PACK_TILE;
        block_fn *fn = tiles ? g->tile->block : linear_block_of(g->kern, g->w->pack);
        const void *x = tiles ? (const void *)g->x16 : g->packed;
        fn(g->p, pad, g->w, panel, 1, x, 0, g->rank);
    }
}

/* Squared lengths of one panel's rows. */
static void lengths(const gain_job *g, int panel, double out[PANEL])
{
    double s = (double)g->pair->scale, cross[PANEL] = {0}, own[PANEL] = {0};
    project(g, panel);
    read_b(g, panel);
    for (int r = 0; r < g->rank; r++) {
        float t[PANEL] = {0};
        for (int q = 0; q < g->rank; q++) {
            float gq = g->gram[(size_t)r * g->rank + q];
            for (int j = 0; j < PANEL; j++) t[j] += gq * g->b[q * PANEL + j];
        }
        for (int j = 0; j < PANEL; j++) {
            double b = (double)g->b[r * PANEL + j];
            cross[j] += b * (double)g->p[(size_t)r * PANEL + j];
            own[j] += b * (double)t[j];
        }
    }
    for (int j = 0; j < PANEL; j++)
        out[j] = g->squares[panel * PANEL + j] + 2 * s * cross[j] + s * s * own[j];
}

static err_code gains(const gain_job *g, const float *magnitude, float *gain, err *e)
{
    for (int panel = 0; panel < g->w->n_panel; panel++) {
        double len[PANEL];
        lengths(g, panel, len);
        for (int j = 0; j < PANEL && panel * PANEL + j < g->w->head.rows; j++) {
            int i = panel * PANEL + j;
            bool there = len[j] > VANISHED * g->squares[i] && len[j] > 0;
            gain[i] = there ? (float)((double)magnitude[i] / sqrt(len[j])) : INFINITY;
            if (!isfinite(gain[i]))
                return err_set(e, ERR_INPUT,
                               "DoRA: the norm of row %d of W + scale * B A is zero or not finite",
                               i);
        }
    }
    return ERR_NONE;
}

err_code cpu_lora_gain(backend *be, const weight *w, const lora_pair *pair, const float *magnitude,
                       float *gain, err *e)
{
    const cpu_kernels *set = cpu_kernels_of(cpu_of(be)->isa);
    gain_job g = {.w = (const cpu_weight *)w,
                  .pair = pair,
                  .kern = set->linear,
                  .tile = set->tiles,
                  .rank = pair->rank,
                  .d_in = w->cols};
    bool quant = g.w->pack == PACK_QUANT || g.w->coded.bits;
    if (quant) g.panel = aligned_alloc(64, (size_t)g.d_in * PANEL * sizeof(*g.panel));
    if (!quant || g.panel) g.squares = squares_of((cpu_weight *)(uintptr_t)g.w, g.panel);
    err_code code = g.squares ? gain_begin(&g, e)
                              : err_set(e, ERR_NOMEM, "no memory for the norms of a DoRA adapter");
    if (code == ERR_NONE) {
        int tiles = 0;
        if (g.w->pack == PACK_TILE) linear_configure(g.tile, &tiles, LINEAR_TILE_PAIRS);
        code = gains(&g, magnitude, gain, e);
        linear_configure(g.tile, &tiles, 0);
    }
    free(g.x);
    free(g.x16);
    free(g.packed);
    free(g.panel);
    free(g.gram);
    free(g.p);
    free(g.b);
    return code;
}
