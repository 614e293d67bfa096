/* test_sgmv.cu -- the LoRA kernels under the emulator: against double precision over popularities,
 * ranks and rows, and bit for bit against themselves in other company, other chunks, and tiles.
 *
 * Threads run in random order in all but the first case of each test; everything that the
 * emulator watches is watched.
 */
#include "engine/cuda/rows/rows.h"
#include "engine/cuda/sgmv.h"
#include "tests/emu/lora_world.h"
#include "tests/run_suite.h"

/* A step: rows, their adapters (-1: base), sorted. */
typedef struct {
    int n_rows, stride, chunk_rows, tile_from, odd; /* odd: unaligned outputs */
    const int *adapter;
    const float *x; /* [n_rows][d_in], rounded */
    const float *in[SGMV_OUT_MAX], *res, *bias[SGMV_OUT_MAX];
    bool spare;       /* grids larger than needed, as in a captured graph */
    bool gated, gelu; /* the gate of the first two is made in one launch, too */
} step_of;

/* Expand and gate in one launch, beside the two: the same bits. */
static void expand_gated(const sgmv_args *a, const step_of *s)
{
    size_t d = (size_t)a->out[0].d_out, bytes = (size_t)s->n_rows * d * 2;
    uint16_t *one = (uint16_t *)emu_alloc(bytes), *two = (uint16_t *)emu_alloc(bytes);
    ck_assert_int_eq(cu_sgmv_expand_gated(NULL, a, one, s->gelu), cudaSuccess);
    ck_assert_int_eq(cu_sgmv_expand(NULL, a), cudaSuccess);
    cu_silu_args g = {};
    g.gate = a->out[0].out;
    g.up = a->out[1].out;
    g.in_stride = a->out[0].out_stride;
    g.out16 = two;
    g.n_rows = s->n_rows;
    g.cols = (int)d;
    g.gelu = s->gelu;
    ck_assert_int_eq(cu_silu_mul(NULL, &g), cudaSuccess);
    for (size_t i = 0; i < bytes / 2; i++)
        ck_assert_msg(one[i] == two[i], "row %zu (adapter %d), column %zu: %x, not %x", i / d,
                      s->adapter[i / d], i % d, one[i], two[i]);
    emu_free(one);
    emu_free(two);
}

/* Runs the step; y[o] gets host arrays [n_rows][d_out]. */
static void run(const world *w, const step_of *s, float **y)
{
    int n = s->n_rows, x_stride = (w->d_in + 7) / 8 * 8 + 8;
    sgmv_seg seg[ADAPTERS_MAX + 1];
    int n_seg = segments(seg, w, s->adapter, n), max_chunk = n_seg + n / s->chunk_rows;
    int max_tile = n_seg + n / SGMV_TILE_ROWS;
    sgmv_chunk *chunk = (sgmv_chunk *)calloc((size_t)max_chunk + 1, sizeof(*chunk));
    sgmv_chunk *tile = (sgmv_chunk *)calloc((size_t)max_tile + 1, sizeof(*tile));
    sgmv_counts counts;
    int64_t floats = sgmv_plan(chunk, max_chunk, tile, max_tile, &counts, seg, n_seg, s->chunk_rows,
                               s->tile_from);
    ck_assert_int_ge(floats, 0);

    sgmv_args a = {};
    a.type = w->type;
    a.d_in = w->d_in;
    a.x_stride = x_stride;
    float *wide = (float *)malloc(((size_t)n * (size_t)w->d_in + 1) * 4);
    memcpy(wide, s->x, (size_t)n * (size_t)w->d_in * 4);
    float *x32 = (float *)to_device(wide, (size_t)n * (size_t)w->d_in * 4);
    void *x = x32, *x16 = NULL;
    if (w->type == DT_F32) {
        a.x_stride = w->d_in;
    } else {
        x16 = x = emu_alloc((size_t)n * (size_t)x_stride * 2);
        cu_round_rows(NULL, x16, x_stride, w->type, x32, w->d_in, n, w->d_in);
    }
    a.x = x;
    int planes = sgmv_planes(w->d_in, w->type);
    a.v = (float *)emu_alloc((size_t)planes * (size_t)floats * 4);
    a.v_plane = (size_t)floats;
    void *d_counts = to_device(&counts, sizeof(counts));
    void *d_chunk = to_device(chunk, (size_t)max_chunk * sizeof(*chunk));
    void *d_tile = to_device(tile, (size_t)max_tile * sizeof(*tile));
    a.counts = (sgmv_counts *)d_counts;
    a.chunk = (sgmv_chunk *)d_chunk;
    a.tile = (sgmv_chunk *)d_tile;
    int more = s->spare ? 3 : 0;
    a.max_small = counts.n_small + more;
    a.max_tile = counts.n_tile + more;
    a.max_lora = counts.n_lora + more;
    a.max_all = counts.n_all + more;
    a.chunk_rows = s->chunk_rows;
    a.rank_max = w->rank_max;
    a.n_sm = (int)(draw() % 3); /* how many groups of columns a block has changes no bit */
    a.all_rows = s->res || s->bias[0];
    a.n_out = w->n_out;
    void *held[SGMV_OUT_MAX * 4] = {NULL};
    int n_held = 0;
    float *out[SGMV_OUT_MAX];
    for (int o = 0; o < w->n_out; o++) {
        size_t d = (size_t)w->d_out[o], stride = d + (size_t)s->odd;
        float *host = (float *)malloc(((size_t)n * stride + 1) * 4);
        for (size_t i = 0; i < (size_t)n; i++) {
            for (size_t j = 0; j < stride; j++)
                host[i * stride + j] = j < d ? s->in[o][i * d + j] : -7;
        }
        out[o] = (float *)to_device(host, (size_t)n * stride * 4);
        held[n_held++] = out[o];
        free(host);
        sgmv_out so = {};
        so.in = so.out = out[o];
        so.in_stride = so.out_stride = (int)stride;
        so.d_out = (int)d;
        so.mat = o;
        if (s->res) {
            so.res = (float *)(held[n_held++] = to_device(s->res, (size_t)n * d * 4));
            so.res_stride = (int)d;
        }
        if (s->bias[o]) so.bias = (float *)(held[n_held++] = to_device(s->bias[o], d * 4));
        a.out[o] = so;
    }
    a.early = emu_begins_early();
    ck_assert_int_eq(cu_sgmv_shrink(NULL, &a), cudaSuccess);
    if (s->gated)
        expand_gated(&a, s);
    else
        ck_assert_int_eq(cu_sgmv_expand(NULL, &a), cudaSuccess);
    for (int o = 0; o < w->n_out; o++) {
        size_t d = (size_t)w->d_out[o], stride = d + (size_t)s->odd;
        y[o] = (float *)malloc(((size_t)n * d + 1) * 4);
        for (size_t i = 0; i < (size_t)n; i++) {
            memcpy(y[o] + i * d, out[o] + i * stride, d * 4);
            for (size_t j = d; j < stride; j++) ck_assert(out[o][i * stride + j] == -7);
        }
    }
    for (int i = 0; i < n_held; i++) emu_free(held[i]);
    emu_free(x32);
    emu_free(x16);
    emu_free(a.v);
    emu_free(d_counts);
    emu_free(d_chunk);
    emu_free(d_tile);
    free(wide);
    free(chunk);
    free(tile);
}

/* The same in double precision, with a bound for the error from the sum of magnitudes. */
static void check_row(const world *w, const step_of *s, int row, int o, const float *y)
{
    int d = w->d_out[o], id = s->adapter[row];
    const plain_mat none = {};
    const plain_mat *pm = id < 0 ? &none : &w->plain[id][o];
    double v[LORA_RANK_MAX], mag[LORA_RANK_MAX];
    for (int r = 0; r < pm->rank; r++) {
        v[r] = mag[r] = 0;
        for (int k = 0; k < w->d_in; k++) {
            double t = (double)pm->a[r * w->d_in + k] * (double)s->x[row * w->d_in + k];
            v[r] += t;
            mag[r] += fabs(t);
        }
    }
    for (int c = 0; c < d; c++) {
        double sum = 0, size = 0;
        for (int r = 0; r < pm->rank; r++) {
            sum += (double)pm->b[c * pm->rank + r] * v[r];
            size += fabs((double)pm->b[c * pm->rank + r]) * mag[r];
        }
        double in = (double)s->in[o][row * d + c];
        double want = in + (double)pm->scale * sum, bound = fabs(in) + (double)pm->scale * size;
        if (pm->gain) want *= (double)pm->gain[c], bound *= 2;
        const float *bias = pm->bias ? pm->bias : s->bias[o];
        if (bias) want += (double)bias[c], bound += 2;
        if (s->res) want += (double)s->res[row * d + c], bound += 2;
        double miss = fabs((double)y[c] - want);
        ck_assert_msg(miss <= bound * 0x1p-16 + 1e-7,
                      "row %d (adapter %d, rank %d) output %d column %d: %.9g, not %.9g (bound %g)",
                      row, id, pm->rank, o, c, (double)y[c], want, bound * 0x1p-16);
    }
}

/* ---- who has which adapter ---------------------------------------------------------------- */

enum { IDENTICAL, DISTINCT, UNIFORM, ZIPF, SKEWED, N_POPULARITY };

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void popularity(int *adapter, int n, int kind, int n_adapter, bool bases)
{
    for (int i = 0; i < n; i++) {
        double u = (double)draw() / 0x1p31;
        int a = 0;
        if (kind == DISTINCT) a = i % n_adapter;
        if (kind == UNIFORM) a = (int)(u * sqrt((double)n_adapter));
        if (kind == SKEWED) a = draw() % 4 ? 0 : (int)(u * n_adapter);
        if (kind == ZIPF) {
            double total = 0;
            for (int j = 1; j <= n_adapter; j++) total += pow(j, -1.5);
            for (u *= total; a + 1 < n_adapter && (u -= pow(a + 1, -1.5)) > 0;) a++;
        }
        adapter[i] = bases && draw() % 6 == 0 ? -1 : a;
    }
    qsort(adapter, (size_t)n, sizeof(*adapter), by_number);
}

typedef struct {
    step_of s;
    int adapter[300];
    float *own[8];
} rows_of;

static void rows_make(rows_of *r, const world *w, int n, int kind)
{
    memset(r, 0, sizeof(*r));
    popularity(r->adapter, n, kind, w->n_adapter, kind != IDENTICAL);
    r->s.n_rows = n;
    r->s.adapter = r->adapter;
    r->s.x = r->own[0] = random_floats((size_t)n * (size_t)w->d_in, 1, w->type);
    for (int o = 0; o < w->n_out; o++)
        r->s.in[o] = r->own[1 + o] = random_floats((size_t)n * (size_t)w->d_out[o], 4, DT_F32);
    r->s.chunk_rows = 8;
}

static void rows_free(rows_of *r)
{
    for (int i = 0; i < 8; i++) free(r->own[i]);
}

static void outputs_free(const world *w, float **y)
{
    for (int o = 0; o < w->n_out; o++) free(y[o]);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const int rank_lists[][8] = {{8}, {16}, {24}, {64}, {128}, {1, 5, 8, 16, 24, 64, 100, 256}};
enum { N_RANKS = sizeof(rank_lists) / sizeof(rank_lists[0]) };

/* Every popularity, list of ranks and number of rows; widths and ways of cutting take turns. */
START_TEST(test_matrix)
{
    static const int rows[] = {0, 1, 7, 64, 130};
    static const int widths[][4] = {
        {200, 192, 64, 64}, {1160, 72, 40, 8}, {72, 136, 520, 64}, {40, 64, 64, 64}};
    int kind = _i / N_RANKS, list[9] = {0}, turn = 0;
    memcpy(list, rank_lists[_i % N_RANKS], sizeof(rank_lists[0]));
    rng_state = (uint64_t)_i + 1;
    for (int type = 0; type < 3; type++) {
        if (type != DT_BF16 && _i % 3 != type) continue; /* dtype F32 is 0, F16 is 1 */
        for (int n = 0; n < (type == DT_BF16 ? 5 : 3); n++, turn++) {
            static const int chunk_rows[] = {8, 32, 16};
            const int *width = widths[(turn + _i) % 4];
            world *w = (world *)malloc(sizeof(*w));
            rows_of r;
            float *y[SGMV_OUT_MAX];
            int n_adapter = kind == DISTINCT ? min_of(rows[n] + 1, 20) : 8;
            emu_seed((uint64_t)(turn ? turn * 31 + _i : 0));
            world_make(w, (dtype)type, width[0], width + 1, SGMV_OUT_MAX, n_adapter, list, false);
            rows_make(&r, w, rows[n], kind);
            r.s.chunk_rows = chunk_rows[turn % 3];
            r.s.tile_from = turn % 2 ? 16 : 0;
            r.s.spare = turn % 4 == 3;
            r.s.odd = turn % 5 == 4;
            run(w, &r.s, y);
            for (int i = 0; i < rows[n]; i++) {
                for (int o = 0; o < w->n_out; o++)
                    check_row(w, &r.s, i, o, y[o] + (size_t)i * (size_t)w->d_out[o]);
            }
            outputs_free(w, y);
            rows_free(&r);
            world_free(w);
            free(w);
        }
    }
}
END_TEST

/* Many planes: d_in of an MLP's last matrix. */
START_TEST(test_long_rows)
{
    static const int ranks[] = {16, 24, 0}, d_out = 64;
    world *w = (world *)malloc(sizeof(*w));
    rng_state = 77;
    emu_seed(5);
    ck_assert_int_eq(sgmv_planes(9000, DT_BF16), 5);
    ck_assert_int_eq(sgmv_planes(8192, DT_BF16), 8);
    ck_assert_int_eq(sgmv_planes(1, DT_BF16), 1);
    world_make(w, DT_BF16, 9000, &d_out, 1, 2, ranks, false);
    float *y[2];
    rows_of r;
    rows_make(&r, w, 20, ZIPF);
    for (int tiles = 0; tiles < 2; tiles++) {
        r.s.tile_from = tiles;
        run(w, &r.s, y + tiles);
        for (int i = 0; i < r.s.n_rows; i++)
            check_row(w, &r.s, i, 0, y[tiles] + (size_t)i * (size_t)d_out);
    }
    ck_assert_int_eq(memcmp(y[0], y[1], (size_t)r.s.n_rows * (size_t)d_out * 4), 0);
    free(y[0]);
    free(y[1]);
    rows_free(&r);
    world_free(w);
    free(w);
}
END_TEST

/* The bits of a row: alone, among neighbours, in chunks of every size, in tiles. */
START_TEST(test_invariance)
{
    static const int d_out[] = {192, 64, 72}, ranks[] = {5, 8, 16, 24, 80, 0};
    dtype type = _i == 0 ? DT_BF16 : _i == 1 ? DT_F16 : DT_F32;
    world *w = (world *)malloc(sizeof(*w));
    rng_state = (uint64_t)_i + 9;
    world_make(w, type, 1480, d_out, 3, 3, ranks, true);
    rows_of r;
    float *all[SGMV_OUT_MAX], *y[SGMV_OUT_MAX];
    rows_make(&r, w, 76, ZIPF);
    run(w, &r.s, all);
    static const int ways[][2] = {{32, 0}, {16, 20}, {32, 1}, {8, 1}};
    for (int way = 0; way < 4; way++) {
        emu_seed((uint64_t)way + 1);
        r.s.chunk_rows = ways[way][0];
        r.s.tile_from = ways[way][1];
        run(w, &r.s, y);
        for (int o = 0; o < 3; o++) {
            size_t bytes = (size_t)r.s.n_rows * (size_t)d_out[o] * 4;
            ck_assert_msg(memcmp(all[o], y[o], bytes) == 0, "way %d, output %d", way, o);
        }
        outputs_free(w, y);
    }
    for (int row = 0; row < r.s.n_rows; row += 17) { /* alone, and the rest of a prompt cut there */
        for (int many = 0; many < 2; many++) {
            step_of s = r.s;
            s.n_rows = many ? r.s.n_rows - row : 1;
            s.adapter += row;
            s.x += (size_t)row * (size_t)w->d_in;
            s.chunk_rows = many ? 32 : 8;
            s.tile_from = many ? 33 : 0;
            for (int o = 0; o < 3; o++) s.in[o] += (size_t)row * (size_t)d_out[o];
            run(w, &s, y);
            for (int o = 0; o < 3; o++) {
                size_t bytes = (size_t)s.n_rows * (size_t)d_out[o] * 4;
                ck_assert(memcmp(all[o] + (size_t)row * (size_t)d_out[o], y[o], bytes) == 0);
            }
            outputs_free(w, y);
        }
    }
    outputs_free(w, all);
    rows_free(&r);
    world_free(w);
    free(w);
}
END_TEST

/* Residual, biases of base and adapter, DoRA's gains, rows of the base; aligned or not. */
START_TEST(test_finish)
{
    static const int d_out[] = {200, 200, 200}, ranks[] = {8, 20, 0};
    dtype type = _i % 2 ? DT_F32 : DT_BF16;
    world *w = (world *)malloc(sizeof(*w));
    rng_state = (uint64_t)_i + 3;
    emu_seed((uint64_t)_i);
    world_make(w, type, 104, d_out, 3, 6, ranks, true);
    rows_of r;
    float *y[SGMV_OUT_MAX];
    rows_make(&r, w, 40, UNIFORM);
    r.s.odd = _i & 2 ? 3 : 0;
    r.s.res = r.own[5] = random_floats(40 * 200, 2, DT_F32);
    r.own[6] = random_floats(200, 2, DT_F32);
    for (int o = 0; o < 3; o++) r.s.bias[o] = r.own[6];
    r.s.spare = true;
    run(w, &r.s, y);
    for (int i = 0; i < 40; i++) {
        for (int o = 0; o < 3; o++) check_row(w, &r.s, i, o, y[o] + (size_t)i * 200);
    }
    outputs_free(w, y);
    rows_free(&r);
    world_free(w);
    free(w);
}
END_TEST

/* out = table row + scale B A[token]. */
START_TEST(test_gather)
{
    enum { VOCAB = 50, DIM = 72, WIDE = 136, RANK = 12, ROWS = 10 };
    dtype type = (dtype)_i;
    rng_state = (uint64_t)_i + 1;
    emu_seed((uint64_t)_i);
    float *a = random_floats(RANK * VOCAB, 1, type), *b = random_floats(DIM * RANK, 1, type);
    size_t a_bytes = sgmv_a_bytes(type, RANK, VOCAB), b_bytes = sgmv_b_bytes(type, RANK, DIM);
    void *ah = malloc(a_bytes), *bh = malloc(b_bytes);
    sgmv_pack_embed(type, ah, bh, a, b, DT_F32, RANK, VOCAB, DIM);
    sgmv_mat m = {};
    m.a = to_device(ah, a_bytes);
    m.b = to_device(bh, b_bytes);
    m.rank = m.a_first = RANK;
    m.a_each = m.b_each = SGMV_COLS;
    m.b_first = INT32_MAX;
    m.scale = 1.5F;
    m.n_in = VOCAB;
    m.d_out = DIM; /* of the launch's WIDE: what lies behind stays */
    sgmv_mat *mats = (sgmv_mat *)to_device(&m, sizeof(m));
    sgmv_seg seg[2] = {{NULL, 0, 3, 0}, {mats, 3, ROWS - 3, RANK}};
    sgmv_chunk chunk[4] = {};
    sgmv_counts counts;
    int64_t floats = sgmv_plan(chunk, 4, NULL, 0, &counts, seg, 2, 8, 0);
    int32_t ids[ROWS];
    float y[ROWS * WIDE];
    for (int i = 0; i < ROWS; i++) ids[i] = (int32_t)(draw() % VOCAB);
    ids[5] = -1;
    ids[6] = VOCAB;
    for (int i = 0; i < ROWS * WIDE; i++) y[i] = uniform();
    float *out = (float *)to_device(y, sizeof(y));
    int32_t *token = (int32_t *)to_device(ids, sizeof(ids));
    sgmv_args args = {};
    args.type = type;
    args.d_in = 1;
    args.v = (float *)emu_alloc((size_t)floats * 4);
    args.v_plane = (size_t)floats;
    args.counts = (sgmv_counts *)to_device(&counts, sizeof(counts));
    args.chunk = (sgmv_chunk *)to_device(chunk, sizeof(chunk));
    args.max_lora = counts.n_lora;
    args.chunk_rows = 8;
    args.rank_max = RANK;
    args.n_out = 1;
    args.out[0].in = args.out[0].out = out;
    args.out[0].in_stride = args.out[0].out_stride = args.out[0].d_out = WIDE;
    args.early = emu_begins_early();
    ck_assert_int_eq(cu_sgmv_gather(NULL, &args, token), cudaSuccess);
    ck_assert_int_eq(cu_sgmv_expand(NULL, &args), cudaSuccess);
    for (int i = 0; i < ROWS; i++) {
        for (int c = 0; c < WIDE; c++) {
            double want = (double)y[i * WIDE + c];
            bool has = i >= 3 && c < DIM && ids[i] >= 0 && ids[i] < VOCAB;
            for (int r = 0; has && r < RANK; r++)
                want += 1.5 * (double)a[r * VOCAB + ids[i]] * (double)b[c * RANK + r];
            ck_assert_msg(fabs((double)out[i * WIDE + c] - want) < 1e-4, "row %d column %d", i, c);
        }
    }
    emu_free((void *)m.a);
    emu_free((void *)m.b);
    emu_free(mats);
    emu_free(out);
    emu_free(token);
    emu_free(args.v);
    emu_free((void *)args.counts);
    emu_free((void *)args.chunk);
    free(a);
    free(b);
    free(ah);
    free(bh);
}
END_TEST

/* Lists that are too short are refused; empty segments and empty steps are nothing. */
START_TEST(test_plan)
{
    sgmv_mat *m = (sgmv_mat *)(uintptr_t)64;
    sgmv_seg seg[] = {
        {m, 0, 0, 8}, {NULL, 0, 5, 0}, {m, 5, 70, 12}, {m + 1, 75, 0, 8}, {m + 2, 75, 9, 256}};
    sgmv_chunk chunk[20], tile[4];
    sgmv_counts n;
    int64_t floats = sgmv_plan(chunk, 20, tile, 4, &n, seg, 5, 32, 64);
    ck_assert_int_eq(floats, (70 * 16 + 9 * 256) * SGMV_OUT_MAX);
    ck_assert_int_eq(n.n_small, 1);
    ck_assert_int_eq(n.n_lora, 4);
    ck_assert_int_eq(n.n_all, 5);
    ck_assert_int_eq(n.n_tile, 2);
    ck_assert(chunk[0].mats == m + 2 && chunk[0].row0 == 75 && chunk[0].n_rows == 9 &&
              chunk[0].v_rank == 256);
    ck_assert(chunk[3].row0 == 69 && chunk[3].n_rows == 6);
    ck_assert_uint_eq(chunk[3].v0, chunk[1].v0 + 64 * 16 * SGMV_OUT_MAX);
    ck_assert(tile[1].row0 == 69 && tile[1].n_rows == 6 && tile[1].v0 == chunk[3].v0);
    ck_assert(chunk[4].mats == NULL && chunk[4].n_rows == 5);
    ck_assert_int_eq(sgmv_plan(chunk, 4, tile, 4, &n, seg, 5, 32, 64), -1);
    ck_assert_int_eq(sgmv_plan(chunk, 20, tile, 1, &n, seg, 5, 32, 64), -1);
    ck_assert_int_eq(sgmv_plan(chunk, 20, tile, 4, &n, seg, 2, 32, 64), 0);
    ck_assert_int_eq(n.n_lora, 0);
}
END_TEST

/* Every half survives, and f32 is rounded to the nearest: the device's
 * words for it are the host's. */
START_TEST(test_rounding)
{
    enum { N = 4096 };
    static float x[N];
    emu_seed(0);
    for (int i = 0; i < N; i++) {
        uint32_t u = draw() << 1 ^ draw();
        u = (u & 0x807FFFFFU) | (100 + draw() % 50) << 23;
        memcpy(&x[i], &u, 4);
#ifdef LORAD_EMU
        ck_assert(f16_from_f32(x[i]) == __builtin_bit_cast(uint16_t, (_Float16)x[i]));
#endif
    }
    float *in = (float *)to_device(x, sizeof(x));
    for (int type = DT_F16; type <= DT_BF16; type++) {
        uint16_t *out = (uint16_t *)emu_alloc(64 * 72 * 2);
        cu_round_rows(NULL, out, 72, (dtype)type, in, 64, 64, 63);
        for (int i = 0; i < 64; i++) {
            for (int j = 0; j < 64; j++) {
                float f = j < 63 ? x[i * 64 + j] : 0;
                uint16_t want = type == DT_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
                ck_assert_uint_eq(out[i * 72 + j], want);
            }
        }
        emu_free(out);
    }
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = f16_to_f32((uint16_t)h);
        if (f == f) ck_assert_uint_eq(f16_from_f32(f), h);
    }
    emu_free(in);
}
END_TEST
/* Gate and up: several blocks of columns, the last one short; chunks of 1 to 8 rows; ranks
 * with and without halves; rows of the base; biases. */
START_TEST(test_gated)
{
    static const int d_out[] = {584, 584}, ranks[] = {8, 20, 40, 0};
    world *w = (world *)malloc(sizeof(*w));
    rng_state = (uint64_t)_i + 17;
    emu_seed((uint64_t)_i);
    world_make(w, DT_BF16, 72, d_out, 2, 6, ranks, _i % 2);
    rows_of r;
    float *y[SGMV_OUT_MAX];
    rows_make(&r, w, 21, _i == 2 ? IDENTICAL : UNIFORM);
    r.own[6] = random_floats(584, 2, DT_F32);
    for (int o = 0; o < 2 && _i != 1; o++) r.s.bias[o] = r.own[6];
    r.s.spare = r.s.gated = true;
    r.s.gelu = _i == 1;
    run(w, &r.s, y);
    for (int i = 0; i < 21; i += 5) {
        for (int o = 0; o < 2; o++) check_row(w, &r.s, i, o, y[o] + (size_t)i * 584);
    }
    outputs_free(w, y);
    rows_free(&r);
    world_free(w);
    free(w);
}
END_TEST

int main(void)
{
    if (cu_sgmv_setup() != cudaSuccess) return 1;
    Suite *s = suite_create("sgmv");
    TCase *tc = tcase_create("sgmv");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, test_matrix, 0, (int)N_POPULARITY * (int)N_RANKS);
    tcase_add_test(tc, test_long_rows);
    tcase_add_loop_test(tc, test_invariance, 0, 3);
    tcase_add_loop_test(tc, test_finish, 0, 4);
    tcase_add_loop_test(tc, test_gated, 0, 3);
    tcase_add_loop_test(tc, test_gather, 0, 3);
    tcase_add_test(tc, test_plan);
    tcase_add_test(tc, test_rounding);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
