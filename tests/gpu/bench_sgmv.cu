/* bench_sgmv.cu -- the LoRA kernels on a real device: microseconds, achieved bandwidth and FLOP/s
 * over rows x ranks x popularity, for the four groups of projections of Llama-3-8B's shape in BF16.
 *
 *     nvcc -O3 -std=c++17 -arch=native -I. tests/gpu/bench_sgmv.cu engine/cuda/sgmv.cu
 *     engine/cuda/sgmv_f32.cu \
 *          -x cu engine/cuda/sgmv_plan.c -o bench_sgmv && ./bench_sgmv [--quick]
 *
 * Each launch takes the next of several layers, so that weights come from memory, not from the
 * second-level cache.  Bytes that must move: each adapter's A and B once, x once, y read and
 * written; bandwidth is these over the time of shrink and expand together, in percent of a copy's.
 *
 * First it holds the one thing that the emulator cannot show: that a row's bits are the same alone,
 * in chunks of 8, 16 and 32 rows, and in tiles.  A difference ends it with status 1.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "engine/cuda/sgmv.h"

enum { LAYERS = 6, ADAPTERS = 256, ROWS = 8192, MATS = LAYERS * 3 };

#define TRY(call)                                                          \
    do {                                                                   \
        cudaError_t code_ = (call);                                        \
        if (code_ != cudaSuccess) {                                        \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code_)); \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

typedef struct {
    const char *name;
    int d_in, n_out, d_out[3];
} group;

static const group groups[] = {{"qkv", 4096, 3, {4096, 1024, 1024}},
                               {"o", 4096, 1, {4096, 0, 0}},
                               {"gate-up", 4096, 2, {14336, 14336, 0}},
                               {"down", 14336, 1, {4096, 0, 0}}};
static const char *const kinds[] = {"identical", "distinct", "uniform", "zipf-1.5", "skewed"};

static uint64_t rng = 1;

static uint32_t draw(void)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(rng >> 33);
}

/* Small halves of either sign. */
static __global__ void fill(uint16_t *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761U ^ seed;
        h = (h ^ h >> 15) * 2246822519U;
        h ^= h >> 13;
        p[i] = (uint16_t)(0x3C00U | (h & 0x83FFU));
    }
}

static void *take(size_t bytes)
{
    void *p;
    TRY(cudaMalloc(&p, bytes));
    return p;
}

static void *halves(size_t n)
{
    uint16_t *p = (uint16_t *)take(n * 2);
    fill<<<1024, 256>>>(p, n, draw());
    TRY(cudaGetLastError());
    return p;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static int popularity(int *adapter, int n, int kind)
{
    int n_adapter = n < ADAPTERS ? n : ADAPTERS;
    for (int i = 0; i < n; i++) {
        double u = (double)draw() / 0x1p31;
        int a = 0;
        if (kind == 1) a = i % n_adapter;
        if (kind == 2) a = (int)(u * sqrt((double)n_adapter));
        if (kind == 4) a = draw() % 4 ? 0 : (int)(u * n_adapter);
        if (kind == 3) {
            double total = 0;
            for (int j = 1; j <= n_adapter; j++) total += pow(j, -1.5);
            for (u *= total; a + 1 < n_adapter && (u -= pow(a + 1, -1.5)) > 0;) a++;
        }
        adapter[i] = a;
    }
    qsort(adapter, (size_t)n, sizeof(*adapter), by_number);
    int distinct = 0;
    for (int i = 0; i < n; i++) distinct += i == 0 || adapter[i] != adapter[i - 1];
    return distinct;
}

static int n_sm;

typedef struct {
    sgmv_args args;
    sgmv_mat *mats; /* device, [ADAPTERS][MATS] */
    const group *g;
    int rank;
    size_t y_bytes;
    float *y;
} bench;

/* One buffer for all weights; adapters and layers are places in it, so that any rank fits. */
static void bench_open(bench *b, const group *g, int rank, const uint16_t *weights,
                       size_t n_weights)
{
    sgmv_mat *host = (sgmv_mat *)calloc((size_t)ADAPTERS * MATS, sizeof(*host));
    size_t at = 0;
    for (int i = 0; i < ADAPTERS * MATS; i++) {
        int o = i % 3;
        if (o >= g->n_out) continue;
        size_t a = sgmv_a_bytes(DT_BF16, rank, g->d_in) / 2,
               bb = sgmv_b_bytes(DT_BF16, rank, g->d_out[o]) / 2;
        if (at + a + bb > n_weights) at = 0;
        host[i].a = weights + at;
        host[i].b = weights + at + a;
        host[i].rank = host[i].a_first = rank;
        host[i].scale = 1;
        host[i].a_each = host[i].b_each = SGMV_COLS;
        host[i].b_first = INT32_MAX;
        at += a + bb;
    }
    memset(b, 0, sizeof(*b));
    b->g = g;
    b->rank = rank;
    b->mats = (sgmv_mat *)take((size_t)ADAPTERS * MATS * sizeof(*host));
    TRY(cudaMemcpy(b->mats, host, (size_t)ADAPTERS * MATS * sizeof(*host), cudaMemcpyHostToDevice));
    free(host);
}

/* Lists of one step. */
static void bench_step(bench *b, const int *adapter, int n, int chunk_rows, int tile_from,
                       void *lists)
{
    static sgmv_seg seg[ROWS];
    static sgmv_chunk chunk[2 * ROWS], tile[2 * ROWS];
    sgmv_counts counts;
    int n_seg = 0;
    for (int i = 0; i < n; i++) {
        if (i == 0 || adapter[i] != adapter[i - 1]) {
            sgmv_seg s = {b->mats + (size_t)adapter[i] * MATS, i, 0, b->rank};
            seg[n_seg++] = s;
        }
        seg[n_seg - 1].n_rows++;
    }
    int64_t floats =
        sgmv_plan(chunk, 2 * ROWS, tile, 2 * ROWS, &counts, seg, n_seg, chunk_rows, tile_from);
    char *at = (char *)lists;
    TRY(cudaMemcpy(at, &counts, sizeof(counts), cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(at + 256, chunk, sizeof(chunk), cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(at + 256 + sizeof(chunk), tile, sizeof(tile), cudaMemcpyHostToDevice));
    sgmv_args *a = &b->args;
    a->counts = (const sgmv_counts *)at;
    a->chunk = (const sgmv_chunk *)(at + 256);
    a->tile = (const sgmv_chunk *)(at + 256 + sizeof(chunk));
    a->type = DT_BF16;
    a->d_in = a->x_stride = b->g->d_in;
    a->v_plane = (size_t)floats;
    a->max_small = counts.n_small;
    a->max_tile = counts.n_tile;
    a->max_lora = counts.n_lora;
    a->max_all = counts.n_all;
    a->chunk_rows = chunk_rows;
    a->rank_max = b->rank;
    a->n_sm = n_sm;
    a->n_out = b->g->n_out;
}

static void bench_layer(bench *b, int layer)
{
    size_t at = 0;
    for (int o = 0; o < b->g->n_out; o++) {
        sgmv_out *out = &b->args.out[o];
        out->in = out->out = b->y + at;
        out->d_out = out->in_stride = out->out_stride = b->g->d_out[o];
        out->mat = layer * 3 + o;
        at += (size_t)b->g->d_out[o] * ROWS;
    }
}

static float ms_of(cudaStream_t st, bench *b, int repeats, bool shrink, bool expand)
{
    cudaEvent_t from, to;
    float ms, best = 1e9F;
    TRY(cudaEventCreate(&from));
    TRY(cudaEventCreate(&to));
    for (int turn = 0; turn < 4; turn++) { /* the first warms up */
        TRY(cudaEventRecord(from, st));
        for (int i = 0; i < repeats; i++) {
            bench_layer(b, i % LAYERS);
            if (shrink) TRY(cu_sgmv_shrink(st, &b->args));
            if (expand) TRY(cu_sgmv_expand(st, &b->args));
        }
        TRY(cudaEventRecord(to, st));
        TRY(cudaEventSynchronize(to));
        TRY(cudaEventElapsedTime(&ms, from, to));
        if (turn && ms < best) best = ms;
    }
    TRY(cudaEventDestroy(from));
    TRY(cudaEventDestroy(to));
    return best / (float)repeats;
}

/* The bits of 200 rows in every way of cutting them, and of some alone. */
static int invariant(cudaStream_t st, const group *g, int rank, const uint16_t *weights,
                     size_t n_weights, uint16_t *x, float *v, float *y, void *lists)
{
    enum { N = 200 };
    static const int ways[][2] = {{8, 0}, {16, 0}, {32, 0}, {32, 1}};
    static int adapter[N];
    size_t row = (size_t)g->d_out[0];
    float *first = (float *)malloc(N * row * 4), *now = (float *)malloc(N * row * 4);
    int bad = 0;
    bench b;
    bench_open(&b, g, rank, weights, n_weights);
    for (int i = 0; i < N; i++) adapter[i] = i < 100 ? 0 : i < 150 ? 1 : i - 148;
    for (int way = 0; way < 4 + 20; way++) {
        int alone = way < 4 ? -1 : (way - 4) * 10, n = alone < 0 ? N : 1;
        b.y = y;
        bench_step(&b, alone < 0 ? adapter : adapter + alone, n, way < 4 ? ways[way][0] : 8,
                   way < 4 ? ways[way][1] : 0, lists);
        b.args.x = x + (alone < 0 ? 0 : (size_t)alone * (size_t)g->d_in);
        b.args.v = v;
        bench_layer(&b, 0);
        TRY(cudaMemsetAsync(y, 0, (size_t)n * row * 4, st));
        TRY(cu_sgmv_shrink(st, &b.args));
        TRY(cu_sgmv_expand(st, &b.args));
        TRY(cudaStreamSynchronize(st));
        TRY(cudaMemcpy(way ? now : first, y, (size_t)n * row * 4, cudaMemcpyDeviceToHost));
        const float *want = first + (alone < 0 ? 0 : (size_t)alone * row);
        if (way && memcmp(want, now, (size_t)n * row * 4) != 0) {
            printf("bits differ: %s, rank %d, %s %d\n", g->name, rank,
                   alone < 0 ? "way" : "row alone", alone < 0 ? way : alone);
            bad++;
        }
    }
    TRY(cudaFree(b.mats));
    free(first);
    free(now);
    return bad;
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    static const int rows[] = {1, 8, 32, 64, 256, 2048, 8192}, ranks[] = {8, 16, 32, 64, 128};
    size_t n_weights = (size_t)3 << 30, v_floats = (size_t)ROWS * 3 * 128;
    cudaStream_t st;
    struct cudaDeviceProp prop;
    TRY(cudaGetDeviceProperties(&prop, 0));
    TRY(cu_sgmv_setup());
    n_sm = prop.multiProcessorCount;
    TRY(cudaStreamCreate(&st));
    uint16_t *weights = (uint16_t *)halves(n_weights),
             *x = (uint16_t *)halves((size_t)ROWS * 14336);
    float *v = (float *)take(SGMV_PLANES_MAX * v_floats * 4);
    float *y = (float *)take((size_t)ROWS * 14336 * 2 * 4);
    void *lists = take(256 + 4 * ROWS * sizeof(sgmv_chunk));
    TRY(cudaDeviceSynchronize());

    cudaEvent_t from, to;
    float ms;
    TRY(cudaEventCreate(&from));
    TRY(cudaEventCreate(&to));
    for (int i = 0; i < 2; i++) {
        TRY(cudaEventRecord(from, st));
        for (int j = 0; j < 4; j++)
            TRY(cudaMemcpyAsync(weights, weights + (n_weights >> 1), n_weights,
                                cudaMemcpyDeviceToDevice, st));
        TRY(cudaEventRecord(to, st));
        TRY(cudaEventSynchronize(to));
        TRY(cudaEventElapsedTime(&ms, from, to));
    }
    double copy = 8.0 * (double)n_weights / (ms * 1e-3);
    printf("%s, copy %.0f GB/s\n", prop.name, copy / 1e9);

    int bad = 0;
    for (int g = 0; g < 4; g++) {
        for (int r = 0; r < 5; r++)
            bad += invariant(st, &groups[g], ranks[r], weights, n_weights, x, v, y, lists);
    }
    printf("bits of a row, whatever its company: %s\n", bad ? "DIFFER" : "the same");
    if (bad) return 1;

    printf("%-8s %5s %5s %-10s %8s %10s %10s %8s %6s %8s\n", "group", "rows", "rank", "popularity",
           "adapters", "shrink us", "expand us", "GB/s", "%copy", "TFLOP/s");
    static int adapter[ROWS];
    for (int gi = 0; gi < 4; gi++) {
        const group *g = &groups[gi];
        for (int r = 0; r < 5; r++) {
            bench b;
            bench_open(&b, g, ranks[r], weights, n_weights);
            b.y = y;
            for (int n = 0; n < 7; n++) {
                for (int kind = 0; kind < 5; kind++) {
                    if (quick && (gi == 1 || kind > 1 || ranks[r] == 32 || rows[n] == 8)) continue;
                    int distinct = popularity(adapter, rows[n], kind);
                    bench_step(&b, adapter, rows[n], rows[n] > 256 ? 32 : 8, rows[n] > 256 ? 64 : 0,
                               lists);
                    b.args.x = x;
                    b.args.v = v;
                    int repeats = rows[n] > 256 ? 12 : 60;
                    float both = ms_of(st, &b, repeats, true, true),
                          shrink = ms_of(st, &b, repeats, true, false);
                    double d_out = g->d_out[0] + g->d_out[1] + g->d_out[2], d_in = g->d_in;
                    double bytes = (double)distinct * ranks[r] * (g->n_out * d_in + d_out) * 2 +
                                   (double)rows[n] * (d_in * 2 + d_out * 8);
                    double flop = 2.0 * rows[n] * ranks[r] * (g->n_out * d_in + d_out);
                    printf("%-8s %5d %5d %-10s %8d %10.1f %10.1f %8.0f %6.1f %8.1f\n", g->name,
                           rows[n], ranks[r], kinds[kind], distinct, shrink * 1e3,
                           (both - shrink) * 1e3, bytes / both / 1e6,
                           100 * bytes / (both * 1e-3) / copy, flop / both / 1e9);
                }
            }
            TRY(cudaFree(b.mats));
        }
    }
    return 0;
}
