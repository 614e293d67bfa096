/* lora_world.h -- adapters on the emulated device and their values on the host, for tests of the
 * LoRA kernels. */
#ifndef TESTS_EMU_LORA_WORLD_H
#define TESTS_EMU_LORA_WORLD_H

#include <stdio.h>

#include "engine/cuda/sgmv.h"
#include "tests/emu/device_data.h"

enum { ADAPTERS_MAX = 130, MATS = 3, WORDS_MAX = 64 };

static float uniform(void)
{
    return (float)draw() / (float)(1U << 30) - 1.0F;
}

static float rounded(float f, dtype type)
{
    return type == DT_F32    ? f
           : type == DT_BF16 ? bf16_to_f32(bf16_from_f32(f))
                             : f16_to_f32(f16_from_f32(f));
}

/* Values and where they lie: host floats as the device has them, after rounding. */
typedef struct {
    float *a, *b, *gain, *bias; /* [rank][d_in], [d_out][rank] */
    int rank;
    float scale;
} plain_mat;

typedef struct {
    dtype type;
    int d_in, n_out, d_out[SGMV_OUT_MAX], n_adapter, rank_max;
    plain_mat plain[ADAPTERS_MAX][MATS];
    sgmv_mat *mats[ADAPTERS_MAX]; /* on the device */
    void *held[ADAPTERS_MAX * MATS * 12];
    int n_held;
} world;

static void *hold(world *w, void *p)
{
    ck_assert_int_lt(w->n_held, (int)(sizeof(w->held) / sizeof(w->held[0])));
    return w->held[w->n_held++] = p;
}

static float *random_floats(size_t n, float scale, dtype type)
{
    float *v = (float *)malloc((n + 1) * sizeof(*v));
    for (size_t i = 0; i < n; i++) v[i] = rounded(uniform() * scale, type);
    return v;
}

/* Packs rows [row0, row0 + n) of A into a piece of its own. */
static void *a_piece(world *w, const plain_mat *pm, int row0, int n)
{
    size_t bytes = sgmv_a_bytes(w->type, n, w->d_in);
    void *host = malloc(bytes);
    sgmv_pack(w->type, host, NULL, pm->a + (size_t)row0 * (size_t)w->d_in, NULL, DT_F32, n, w->d_in,
              1);
    void *p = hold(w, to_device(host, bytes));
    free(host);
    return p;
}

static void *b_piece(world *w, const plain_mat *pm, int col0, int n)
{
    size_t bytes = sgmv_b_bytes(w->type, pm->rank, n);
    void *host = malloc(bytes);
    sgmv_pack(w->type, NULL, host, NULL, pm->b + (size_t)col0 * (size_t)pm->rank, DT_F32, pm->rank,
              1, n);
    void *p = hold(w, to_device(host, bytes));
    free(host);
    return p;
}

static int min_of(int a, int b)
{
    return a < b ? a : b;
}

/* One matrix, in several pieces now and then. */
static sgmv_mat device_mat(world *w, plain_mat *pm, int d_out, bool pieces)
{
    lora_mat lm = {};
    lora_split sp = {};
    const void *a_more[WORDS_MAX], *b_more[WORDS_MAX], *more[2 * WORDS_MAX];
    int a_first = pm->rank, b_first = d_out;
    lm.rank = pm->rank;
    lm.scale = pm->scale;
    if (pieces && pm->rank > 4) a_first = 4;
    if (pieces && d_out > SGMV_COLS) b_first = SGMV_COLS;
    lm.a = a_piece(w, pm, 0, a_first);
    lm.b = b_piece(w, pm, 0, b_first);
    if (a_first < pm->rank || b_first < d_out) {
        sp = (lora_split){.a_first = a_first,
                          .a_each = 8,
                          .b_first = b_first,
                          .b_each = SGMV_COLS,
                          .a = a_more,
                          .b = b_more};
        for (int r = a_first, i = 0; r < pm->rank; r += 8)
            a_more[i++] = a_piece(w, pm, r, min_of(8, pm->rank - r));
        for (int c = b_first, i = 0; c < d_out; c += SGMV_COLS)
            b_more[i++] = b_piece(w, pm, c, min_of(SGMV_COLS, d_out - c));
        lm.split = &sp;
    }
    if (pm->gain) lm.gain = (float *)hold(w, to_device(pm->gain, (size_t)d_out * 4));
    if (pm->bias) lm.bias = (float *)hold(w, to_device(pm->bias, (size_t)d_out * 4));
    sgmv_mat out;
    void *table = emu_alloc(sizeof(more));
    int n = sgmv_mat_of(&out, &lm, d_out, more, (const void *const *)table);
    ck_assert_int_le(n, 2 * WORDS_MAX);
    memcpy(table, more, (size_t)n * sizeof(*more));
    emu_wrote(table, (size_t)n * sizeof(*more));
    hold(w, table);
    return out;
}

/* ranks: 0-terminated list, drawn from; some targets are missing. */
static void world_make(world *w, dtype type, int d_in, const int *d_out, int n_out, int n_adapter,
                       const int *ranks, bool extras)
{
    memset(w, 0, sizeof(*w));
    w->type = type;
    w->d_in = d_in;
    w->n_out = n_out;
    w->n_adapter = n_adapter;
    int n_rank = 0;
    for (; ranks[n_rank]; n_rank++)
        w->rank_max = ranks[n_rank] > w->rank_max ? ranks[n_rank] : w->rank_max;
    for (int i = 0; i < n_adapter; i++) {
        sgmv_mat mats[MATS] = {};
        for (int o = 0; o < n_out; o++) {
            plain_mat *pm = &w->plain[i][o];
            if (n_out > 1 && draw() % 5 == 0) continue;
            size_t rank = (size_t)ranks[draw() % (unsigned)n_rank];
            w->d_out[o] = d_out[o];
            pm->rank = (int)rank;
            pm->scale = 0.5F + (float)(draw() % 4);
            pm->a = random_floats(rank * (size_t)d_in, 0.5F, type);
            pm->b = random_floats(rank * (size_t)d_out[o], 0.5F, type);
            if (extras && i % 3 == 1) pm->gain = random_floats((size_t)d_out[o], 2, DT_F32);
            if (extras && i % 2 == 1) pm->bias = random_floats((size_t)d_out[o], 2, DT_F32);
            mats[o] = device_mat(w, pm, d_out[o], draw() % 3 == 0);
        }
        w->mats[i] = (sgmv_mat *)hold(w, to_device(mats, sizeof(mats)));
    }
    for (int o = 0; o < n_out; o++) w->d_out[o] = d_out[o];
}

static void world_free(world *w)
{
    for (int i = 0; i < w->n_held; i++) emu_free(w->held[i]);
    for (int i = 0; i < w->n_adapter; i++) {
        for (int o = 0; o < w->n_out; o++) {
            plain_mat *pm = &w->plain[i][o];
            free(pm->a);
            free(pm->b);
            free(pm->gain);
            free(pm->bias);
        }
    }
}

/* Of rows in a step, adapter[row] each (-1: the base), sorted. */
static int segments(sgmv_seg *seg, const world *w, const int *adapter, int n_rows)
{
    int n = 0;
    for (int i = 0; i < n_rows; i++) {
        const sgmv_mat *mats = adapter[i] < 0 ? NULL : w->mats[adapter[i]];
        if (n == 0 || adapter[i] != adapter[i - 1]) {
            sgmv_seg sg = {};
            sg.mats = mats;
            sg.row0 = i;
            for (int o = 0; o < w->n_out && mats; o++)
                sg.rank_max = sg.rank_max > mats[o].rank ? sg.rank_max : mats[o].rank;
            seg[n++] = sg;
        }
        seg[n - 1].n_rows++;
    }
    return n;
}

#endif
