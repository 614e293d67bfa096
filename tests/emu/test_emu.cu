/* test_emu.cu -- the emulator against what a device would do, and against kernels with faults
 * planted in them: each must be found, in order and in any random order of threads.
 */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/halves.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"
#include "engine/cuda/products/wgmma.h"
#include "tests/emu/cluster.h"
#include "tests/emu/emu.h"
#include "tests/run_suite.h"

enum { SEEDS = 5 };

static float *device_floats(size_t n, bool filled)
{
    float *p = (float *)emu_alloc(n * sizeof(float));
    for (size_t i = 0; filled && i < n; i++) p[i] = (float)i;
    if (filled) emu_wrote(p, n * sizeof(float));
    return p;
}

/* ---- what works ---------------------------------------------------------------------- */

/* out = in, reversed within the block through shared memory. */
static __global__ void reverse_kernel(float *out, const float *in)
{
    CU_SHARED(float, tile);
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = in[i];
    __syncthreads(); /* all of the tile is written */
    out[i] = tile[blockDim.x - 1 - threadIdx.x];
}

START_TEST(test_reverse)
{
    emu_seed((uint64_t)_i);
    float *in = device_floats(4096, true), *out = device_floats(4096, false);
    CU_LAUNCH(reverse_kernel, 16, 256, 1024, NULL, out, in);
    for (int i = 0; i < 4096; i++) ck_assert(out[i] == (float)(i / 256 * 256 + 255 - i % 256));
    ck_assert_ptr_null(emu_first_unwritten(out, 4096 * 4));
    emu_free(in);
    emu_free(out);
}
END_TEST

/* Sums of blocks by shuffles, one partial sum a warp, and one atomic counter. */
static __global__ void sum_kernel(float *out, uint32_t *count, const float *in)
{
    CU_STATIC_SHARED(float, part, 8);
    float v = cu_warp_sum(in[blockIdx.x * blockDim.x + threadIdx.x]);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads(); /* parts are there */
    if (threadIdx.x < 32) {
        float p = cu_warp_sum(threadIdx.x < 8 ? part[threadIdx.x] : 0);
        if (threadIdx.x == 0) out[blockIdx.x] = p;
    }
    if (cu_ballot(threadIdx.x % 2 == 0) != 0x55555555U) out[0] = -1;
    cu_atomic_add_u32(count, 1);
}

START_TEST(test_sum)
{
    emu_seed((uint64_t)_i);
    float *in = device_floats(1024, true), *out = device_floats(4, false);
    uint32_t *count = (uint32_t *)emu_alloc(4);
    *count = 0;
    emu_wrote(count, 4);
    CU_LAUNCH(sum_kernel, 4, 256, 0, NULL, out, count, in);
    for (int b = 0; b < 4; b++) ck_assert(out[b] == 256.0F * (float)b * 256 + 255 * 128);
    ck_assert_uint_eq(*count, 1024);
    emu_free(in);
    emu_free(out);
    emu_free(count);
}
END_TEST

/* d = a b of 16 x 16 and 16 x 8 halves by every road into fragments: plain loads as
 * intrin.h describes them, ldmatrix, and the k8 instruction twice; all must agree with
 * the definition of a product. */
static __global__ void mma_kernel(float *d, const uint16_t *a, const uint16_t *b, int bf16)
{
    CU_STATIC_SHARED(uint16_t, as, 16 * 16);
    CU_STATIC_SHARED(uint16_t, bs, 16 * 8);
    int lane = (int)threadIdx.x, g = lane / 4, q = lane % 4;
    cu_cp_async16(as + lane * 8, a + lane * 8);
    if (lane < 16) cu_cp_async16(bs + lane * 8, b + lane * 8);
    cu_cp_async_commit();
    CU_CP_ASYNC_WAIT(0);
    cu_syncwarp();

    uint32_t af[4], bf[2];
    for (int i = 0; i < 4; i++) {
        const uint16_t *p = as + (g + i % 2 * 8) * 16 + q * 2 + i / 2 * 8;
        af[i] = (uint32_t)p[1] << 16 | p[0];
    }
    for (int i = 0; i < 2; i++) {
        const uint16_t *p = bs + (q * 2 + i * 8) * 8 + g;
        bf[i] = (uint32_t)p[8] << 16 | p[0];
    }
    float sums[3][4] = {{0}};
    if (bf16)
        cu_mma_bf16_k16(sums[0], af, bf);
    else
        cu_mma_f16_k16(sums[0], af, bf);

    uint32_t al[4], bl[2];
    cu_ldmatrix_x4(al, as + (lane % 16) * 16 + lane / 16 * 8);
    cu_ldmatrix_x2_trans(bl, bs + (lane % 16) * 8);
    if (bf16)
        cu_mma_bf16_k16(sums[1], al, bl);
    else
        cu_mma_f16_k16(sums[1], al, bl);

    for (int h = 0; h < 2; h++) {
        if (bf16)
            cu_mma_bf16_k8(sums[2], af + 2 * h, bf[h]);
        else
            cu_mma_f16_k8(sums[2], af + 2 * h, bf[h]);
    }
    for (int road = 0; road < 3; road++) {
        for (int i = 0; i < 4; i++)
            d[road * 128 + (g + i / 2 * 8) * 8 + q * 2 + i % 2] = sums[road][i];
    }
}

START_TEST(test_mma)
{
    emu_seed((uint64_t)_i);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        uint16_t *a = (uint16_t *)emu_alloc(512), *b = (uint16_t *)emu_alloc(256);
        float *d = device_floats(384, false), av[256], bv[128];
        for (int i = 0; i < 256; i++) {
            av[i] = (float)(i * 37 % 101 - 50) / 4;
            a[i] = bf16 ? cu_bf16_of(av[i]) : cu_f16_of(av[i]);
        }
        for (int i = 0; i < 128; i++) {
            bv[i] = (float)(i * 53 % 97 - 48) / 8;
            b[i] = bf16 ? cu_bf16_of(bv[i]) : cu_f16_of(bv[i]);
        }
        emu_wrote(a, 512);
        emu_wrote(b, 256);
        CU_LAUNCH(mma_kernel, 1, 32, 0, NULL, d, a, b, bf16);
        for (int m = 0; m < 16; m++) {
            for (int n = 0; n < 8; n++) {
                float want = 0; /* exact: few bits */
                for (int k = 0; k < 16; k++) want += av[m * 16 + k] * bv[k * 8 + n];
                for (int road = 0; road < 3; road++)
                    ck_assert_msg(d[road * 128 + m * 8 + n] == want, "road %d (%d, %d): %g not %g",
                                  road, m, n, (double)d[road * 128 + m * 8 + n], (double)want);
            }
        }
        emu_free(a);
        emu_free(b);
        emu_free(d);
    }
}
END_TEST

/* The last block sums what all blocks left in global memory: ordered by fences and an atomic. */
static __global__ void last_block_kernel(float *out, float *part, uint32_t *count, int fence)
{
    CU_STATIC_SHARED(int, last, 1);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = (float)blockIdx.x;
        if (fence) __threadfence();
        *last = cu_atomic_add_u32(count, 1) == gridDim.x - 1;
    }
    __syncthreads(); /* all know whether they are in the last block */
    if (*last && threadIdx.x == 0) {
        float sum = 0;
        for (unsigned i = 0; i < gridDim.x; i++) sum += part[i];
        *out = sum;
    }
}

static emu_fault_kind run_last_block(int fence, unsigned cluster, float *sum)
{
    float *part = device_floats(8, false), *out = device_floats(1, false);
    uint32_t *count = (uint32_t *)emu_alloc(4);
    *count = 0;
    emu_wrote(count, 4);
    CU_LAUNCH_CLUSTER(last_block_kernel, 8, 64, 0, NULL, false, cluster, out, part, count, fence);
    emu_fault_kind k = emu_take_fault(NULL, 0);
    *sum = *out;
    emu_free(part);
    emu_free(out);
    emu_free(count);
    return k;
}

START_TEST(test_last_block)
{
    float sum;
    emu_catch_faults();
    emu_seed((uint64_t)_i);
    for (unsigned cluster = 1; cluster <= 4; cluster += 3) { /* blocks side by side as well */
        ck_assert_int_eq(run_last_block(1, cluster, &sum), EMU_OK);
        ck_assert(sum == 28);
        ck_assert_int_eq(run_last_block(0, cluster, &sum), EMU_RACE);
    }
}
END_TEST

/* ---- warps with a barrier of their own --------------------------------------------------- */

enum named_plant {
    NAMED_NOTHING,
    NAMED_OTHERS_ROOM, /* one group reads the other's room, behind its own barrier alone */
    NAMED_NO_BARRIER,
    NAMED_TWO_NAMES,
    NAMED_LONELY, /* fewer come than it waits for */
    NAMED_UNFENCED,
    NAMED_NEVER, /* looks for what nobody does */
    N_NAMED
};

/* Two warps hand values to one another by a barrier of their own; the third hands one to the first
 * by a word that it changes behind a fence; then all meet.  Each block has a word and a value. */
static __global__ void named_kernel(float *out, uint32_t *word, float *value, int plant)
{
    CU_STATIC_SHARED(float, room, 96);
    int t = (int)threadIdx.x;
    out += blockIdx.x * 64;
    word += blockIdx.x;
    value += blockIdx.x;
    room[t] = (float)t;
    if (t < 64) {
        if (plant != NAMED_NO_BARRIER) cu_barrier_of(1, plant == NAMED_LONELY ? 96 : 64);
        float other = room[plant == NAMED_OTHERS_ROOM ? 64 + t % 32 : 63 - t];
        if (plant == NAMED_TWO_NAMES) cu_barrier_of(2, 64);
        if (t == 0) {
            uint32_t wanted = plant == NAMED_NEVER ? 2 : 1;
            while (cu_atomic_add_u32(word, 0) < wanted) cu_pause();
            other += *value;
        }
        out[t] = other;
    } else if (t == 64) {
        *value = 100;
        if (plant != NAMED_UNFENCED) cu_threadfence();
        (void)cu_atomic_add_u32(word, 1);
    }
    __syncthreads(); /* all rooms are full */
    if (t < 64) out[t] += room[64 + t % 32];
}

START_TEST(test_named_barrier)
{
    int plant = _i / SEEDS % N_NAMED, blocks = _i / SEEDS / N_NAMED + 1; /* side by side */
    char msg[600];
    float *out = device_floats(128, false), *value = device_floats(2, false);
    uint32_t *word = (uint32_t *)emu_alloc(8);
    memset(word, 0, 8);
    emu_wrote(word, 8);
    emu_seed((uint64_t)(_i % SEEDS));
    emu_catch_faults();
    CU_LAUNCH_CLUSTER(named_kernel, (unsigned)blocks, 96, 0, NULL, false, (unsigned)blocks, out,
                      word, value, plant);
    emu_fault_kind found = emu_take_fault(msg, sizeof(msg));
    bool early = found == EMU_RACE || found == EMU_UNINIT; /* by the order of threads */
    bool right = plant == NAMED_NOTHING                                    ? found == EMU_OK
                 : plant == NAMED_OTHERS_ROOM || plant == NAMED_NO_BARRIER ? early
                 : plant == NAMED_UNFENCED                                 ? found == EMU_RACE
                                                                           : found == EMU_DIVERGED;
    ck_assert_msg(right, "plant %d, seed %d: found %d: %s", plant, _i % SEEDS, found, msg);
    for (int i = 0; plant == NAMED_NOTHING && i < 64 * blocks; i++)
        ck_assert(out[i] == (float)(63 - i % 64 + (i % 64 == 0 ? 100 : 0) + 64 + i % 32));
    emu_free(out);
    emu_free(value);
    emu_free(word);
}
END_TEST

/* ---- planted faults --------------------------------------------------------------------- */

enum plant {
    NOTHING,
    SHARED_OVERRUN,
    SHARED_UNDERRUN,
    GLOBAL_OVERRUN,
    HOST_MEMORY,
    SHARED_UNWRITTEN,
    GLOBAL_UNWRITTEN,
    NO_BARRIER,
    NO_SYNCWARP,
    WRITE_AFTER_READ,
    BLOCKS_COLLIDE,
    NO_WAIT,
    WAIT_TOO_FEW,
    WAIT_NO_BARRIER,
    LEFT_IN_FLIGHT,
    BARRIER_IN_BRANCH,
    TWO_BARRIERS,
    EARLY_END,
    SHUFFLE_IN_BRANCH,
    MISALIGNED,
    SOURCE_CHANGES,
    N_PLANT
};

/* What is missing shows itself as a race or as a read too early, by the order of the threads. */
enum { RACE_OR_EARLY = 100 };
static const int expected[N_PLANT] = {
    EMU_OK,        EMU_BOUNDS,     EMU_BOUNDS,    EMU_BOUNDS,   EMU_BOUNDS,   EMU_UNINIT,
    RACE_OR_EARLY, RACE_OR_EARLY,  RACE_OR_EARLY, EMU_RACE,     EMU_RACE,     EMU_UNINIT,
    EMU_UNINIT,    RACE_OR_EARLY,  EMU_IN_FLIGHT, EMU_DIVERGED, EMU_DIVERGED, EMU_DIVERGED,
    EMU_DIVERGED,  EMU_MISALIGNED, EMU_RACE};

/* 64 threads turn 64 pairs of 16-byte pieces around: correct but for the plant. */
static __global__ void planted_kernel(float *out, const float *in, const float *host, int plant)
{
    CU_SHARED(float, s); /* [64 * 4 + 64] */
    float *extra = s + 256;
    int t = (int)threadIdx.x, other = t ^ 1, far = 63 - t;
    cu_cp_async16(s + 4 * t, in + 4 * t);
    cu_cp_async_commit();
    if (plant == SOURCE_CHANGES && blockIdx.x == 0 && t == 9) const_cast<float *>(in)[4 * t] += 1;
    if (plant == WAIT_TOO_FEW) {
        CU_CP_ASYNC_WAIT(1);
    } else if (plant != NO_WAIT) {
        CU_CP_ASYNC_WAIT(0);
    }
    if (plant == EARLY_END && t == 5) return;
    if (plant != WAIT_NO_BARRIER) __syncthreads(); /* all pieces are there */
    float x = s[4 * far];
    if (plant != SHARED_UNWRITTEN) extra[t] = x;
    if (plant != NO_SYNCWARP) cu_syncwarp();
    x += extra[other];
    if (plant != NO_BARRIER) __syncthreads(); /* all have read their neighbour's */
    if (plant == NO_BARRIER) x += extra[far];
    if (plant == WRITE_AFTER_READ) x += extra[far];
    if (plant == SHARED_OVERRUN && t == 63) x += extra[t + 1];
    if (plant == SHARED_UNDERRUN && t == 0) s[-1] = x;
    if (plant == MISALIGNED && t == 3) x += cu_ld_f32x4(s + 1).x;
    extra[t] = x;
    if (plant == SHUFFLE_IN_BRANCH && t < 8) x += cu_shfl_xor_f32(x, 1);
    if (plant == GLOBAL_UNWRITTEN && t == 9) x += out[100];
    if (plant == GLOBAL_OVERRUN && t == 9) out[128] = x;
    if (plant == HOST_MEMORY && t == 9) x += *host;
    if (plant == BARRIER_IN_BRANCH && t < 32) __syncthreads();
    if (plant == TWO_BARRIERS) {
        if (t < 32)
            __syncthreads();
        else
            __syncthreads();
    }
    if (plant == LEFT_IN_FLIGHT && t == 0) cu_cp_async16(s, in);
    out[(plant == BLOCKS_COLLIDE ? 0 : blockIdx.x * 64) + (unsigned)t] = x;
}

START_TEST(test_planted)
{
    int plant = _i / SEEDS;
    char msg[600];
    float *in = device_floats(256, true), *out = device_floats(128, false);
    float *host = (float *)calloc(1, sizeof(*host));
    emu_seed((uint64_t)(_i % SEEDS));
    emu_catch_faults();
    CU_LAUNCH(planted_kernel, 2, 64, 320 * 4, NULL, out, in, host, plant);
    emu_fault_kind found = emu_take_fault(msg, sizeof(msg));
    bool right = found == expected[plant] ||
                 (expected[plant] == RACE_OR_EARLY && (found == EMU_RACE || found == EMU_UNINIT));
    ck_assert_msg(right, "plant %d, seed %d: found %d, not %d: %s", plant, _i % SEEDS, found,
                  expected[plant], msg);
    if (plant == NOTHING) {
        for (int i = 0; i < 128; i++)
            ck_assert(out[i] == (float)(4 * (63 - i % 64) + 4 * (63 - (i % 64 ^ 1))));
    }
    /* and the emulator goes on as if nothing had been */
    CU_LAUNCH(planted_kernel, 2, 64, 320 * 4, NULL, out, in, host, (int)NOTHING);
    ck_assert_int_eq(emu_take_fault(msg, sizeof(msg)), EMU_OK);
    emu_free(in);
    emu_free(out);
    free(host);
}
END_TEST

/* Of an access that is wider than what was done there before, the second half has the fault. */
static const int half_faults[] = {EMU_OK, EMU_UNINIT, EMU_RACE, EMU_RACE};

static __global__ void half_kernel(uint16_t *halves, int plant)
{
    uint32_t *whole = (uint32_t *)halves;
    if (threadIdx.x == 0 && plant == 2) halves[2] = halves[1];
    if (threadIdx.x == 0 && plant == 3) halves[1] = 1;
    if (threadIdx.x == 32) whole[0] = plant < 2 ? whole[0] + 1 : 7;
}

START_TEST(test_wide_over_narrow)
{
    int plant = _i / SEEDS;
    uint16_t *halves = (uint16_t *)emu_alloc(8);
    memset(halves, 0, 8);
    emu_wrote(halves, plant == 1 ? 2 : 8);
    emu_seed((uint64_t)(_i % SEEDS));
    emu_catch_faults();
    CU_LAUNCH(half_kernel, 1, 64, 0, NULL, halves, plant);
    ck_assert_int_eq(emu_take_fault(NULL, 0), half_faults[plant]);
    emu_free(halves);
}
END_TEST

/* ---- products of a warpgroup ------------------------------------------------------------ */

enum {
    WG_NO_FAULT,
    WG_NO_PROXY_FENCE,
    WG_NO_BARRIER,
    WG_NO_REGISTER_FENCE,
    WG_NO_COMMIT,
    WG_NO_WAIT,
    WG_EARLY_STORE,
    WG_HALF_A_GROUP,
    WG_SHIFTED,
    N_WGMMA
};
static const int wgmma_faults[] = {EMU_OK,       EMU_UNFENCED,  EMU_RACE,
                                   EMU_UNFENCED, EMU_IN_FLIGHT, EMU_IN_FLIGHT,
                                   EMU_RACE,     EMU_DIVERGED,  EMU_MISALIGNED};
enum { W_BASE = WGMMA_M * WGMMA_ROW, WGMMA_BYTES = W_BASE + WGMMA_N * WGMMA_ROW + WGMMA_ALIGN };

/* out [64][192] = 1 + x [64][64] w [192][64]^T; rows are copied by a thread each. */
static __global__ void wgmma_kernel(float *out, const uint16_t *x, const uint16_t *w, int plant)
{
    CU_SHARED(unsigned char, raw);
    uint32_t at = cu_wgmma_address(raw), base = (at + WGMMA_ALIGN - 1) & ~(WGMMA_ALIGN - 1U);
    unsigned char *to = raw + (base - at);
    int t = (int)threadIdx.x, g = t % 32 / 4, q = t % 4;
    for (int row = t; row < WGMMA_M + WGMMA_N; row += 128) {
        bool of_x = row < WGMMA_M;
        const uint16_t *from = of_x ? x + row * 64 : w + (row - WGMMA_M) * 64;
        for (int i = 0; i < 8; i++)
            cu_st16(to + (of_x ? 0 : (int)W_BASE) + WGMMA_PIECE(of_x ? row : row - WGMMA_M, i),
                    cu_ldg16(from + i * 8));
    }
    if (plant != WG_NO_PROXY_FENCE) cu_fence_async();
    if (plant != WG_NO_BARRIER) __syncthreads(); /* all rows are there */
    if (plant == WG_HALF_A_GROUP && t >= 64) return;
    float d[WGMMA_REGS];
    for (int i = 0; i < WGMMA_REGS; i++) d[i] = 1;
    uint64_t a = cu_wgmma_operand(base + (plant == WG_SHIFTED ? 2 * WGMMA_ROW : 0)),
             b = cu_wgmma_operand(base + W_BASE);
    if (plant != WG_NO_REGISTER_FENCE) cu_wgmma_fence();
    for (int i = 0; i < 4; i++) cu_wgmma<true>(d, a + i * WGMMA_NEXT, b + i * WGMMA_NEXT, 1);
    if (plant != WG_NO_COMMIT) cu_wgmma_commit();
    if (plant == WG_EARLY_STORE && t == 5) cu_st16(to, make_uint4(0, 0, 0, 0));
    if (plant != WG_NO_WAIT) CU_WGMMA_WAIT(0);
    for (int i = 0; i < WGMMA_REGS; i++)
        out[(t / 32 * 16 + g + i / 2 % 2 * 8) * WGMMA_N + i / 4 * 8 + 2 * q + i % 2] = d[i];
}

START_TEST(test_wgmma)
{
    int plant = _i / SEEDS;
    char msg[600];
    size_t n_x = (size_t)WGMMA_M * 64, n_w = (size_t)WGMMA_N * 64;
    uint16_t *x = (uint16_t *)emu_alloc(2 * n_x), *w = (uint16_t *)emu_alloc(2 * n_w);
    float *out = device_floats((size_t)WGMMA_M * WGMMA_N, false);
    for (size_t i = 0; i < n_x; i++) x[i] = bf16_from_f32((float)((int)(i * 37 % 101) - 50));
    for (size_t i = 0; i < n_w; i++) w[i] = bf16_from_f32((float)((int)(i * 53 % 97) - 48));
    emu_wrote(x, 2 * n_x);
    emu_wrote(w, 2 * n_w);
    emu_seed((uint64_t)(_i % SEEDS));
    emu_catch_faults();
    CU_LAUNCH(wgmma_kernel, 1, 128, WGMMA_BYTES, NULL, out, x, w, plant);
    emu_fault_kind found = emu_take_fault(msg, sizeof(msg));
    ck_assert_msg((int)found == wgmma_faults[plant], "plant %d, seed %d: found %d, not %d: %s",
                  plant, _i % SEEDS, found, wgmma_faults[plant], msg);
    for (int i = 0; plant == WG_NO_FAULT && i < WGMMA_M * WGMMA_N; i++) {
        float want = 1;
        for (int k = 0; k < 64; k++)
            want += bf16_to_f32(x[i / WGMMA_N * 64 + k]) * bf16_to_f32(w[i % WGMMA_N * 64 + k]);
        ck_assert_msg(out[i] == want, "[%d][%d]: %g, not %g", i / WGMMA_N, i % WGMMA_N, out[i],
                      want);
    }
    emu_free(x);
    emu_free(w);
    emu_free(out);
}
END_TEST

/* ---- clusters ------------------------------------------------------------------------------ */

enum {
    CL_NO_FAULT,
    CL_NO_INIT,
    CL_NO_FENCE,
    CL_NO_MEETING,
    CL_NO_WAIT,
    CL_ONE_WAITS,
    CL_HANDED_OVER_EARLY,
    CL_NOT_HANDED_OVER,
    CL_MORE_BYTES,
    CL_MORE_ARRIVALS,
    CL_SOURCE_CHANGES,
    CL_TARGET_CHANGES,
    CL_LEFT_IN_FLIGHT,
    CL_ENDS,
    CL_ARRIVES_TWICE,
    CL_MISALIGNED,
    CL_TO_NOBODY,
    CL_OUTSIDE,
    CL_PLAIN_ACCESS,
    CL_COLLIDE,
    CL_NAMED_TELLS,   /* no fault: one waits, and all know by a barrier with a name */
    CL_NAMED_TOO_FEW, /* one warp's says that the block has read */
    N_CLUSTER
};
static const int cluster_faults[] = {
    EMU_OK,        EMU_UNINIT, EMU_UNFENCED, RACE_OR_EARLY,  EMU_UNINIT, RACE_OR_EARLY,
    RACE_OR_EARLY, EMU_RACE,   EMU_DIVERGED, EMU_RACE,       EMU_RACE,   EMU_RACE,
    EMU_IN_FLIGHT, EMU_ENDED,  EMU_DIVERGED, EMU_MISALIGNED, EMU_CONFIG, EMU_BOUNDS,
    EMU_BOUNDS,    EMU_RACE,   EMU_OK,       EMU_RACE};
enum { CL_BLOCKS = 2, CL_THREADS = 64, CL_STAGES = 5, CL_ROOMS = 2, CL_SHARED = 64 + 2 * 64 * 4 };

/* out[block][t]: the sum over stages of in[stage][63 - t].  Each block sends one half of a stage to
 * both, into one of two rooms; with CL_NAMED_TOO_FEW the first one sends all. */
static __global__ void cluster_kernel(float *out, float *in, float **where, int plant)
{
    CU_SHARED(float, s);
    uint64_t *full = (uint64_t *)s, *empty = full + CL_ROOMS;
    int t = (int)threadIdx.x, me = (int)cu_cluster_rank(), n = CL_STAGES;
    float *rooms = s + 16, sum = 0;
    if (t == 0 && plant != CL_NO_INIT) {
        for (int i = 0; i < CL_ROOMS; i++) {
            cu_barrier_init(full + i, 1);
            cu_barrier_init(empty + i, CL_BLOCKS);
        }
        if (plant != CL_NO_FENCE) cu_fence_barriers();
    }
    cu_syncwarp();
    if (plant != CL_NO_MEETING) cu_cluster_arrive();
    if (plant == CL_ARRIVES_TWICE && t == 3) cu_cluster_arrive();
    if (plant != CL_NO_MEETING) cu_cluster_wait();
    if (plant == CL_PLAIN_ACCESS && me == 0 && t == 9) sum = **where;
    for (int i = 0; i < n; i++) {
        uint64_t *f = full + i % CL_ROOMS, *e = empty + i % CL_ROOMS;
        float *room = rooms + i % CL_ROOMS * 64;
        if (t == 0) {
            if (i >= CL_ROOMS && plant != CL_NOT_HANDED_OVER)
                cu_barrier_wait(e, (uint32_t)(i / CL_ROOMS - 1) & 1);
            cu_barrier_expect(f, plant == CL_MORE_BYTES ? 272 : 256);
            if (plant != CL_NAMED_TOO_FEW)
                cu_send(room + me * 32 + (plant == CL_OUTSIDE ? 4096 : 0), in + i * 64 + me * 32,
                        plant == CL_MISALIGNED ? 8 : 128, f, plant == CL_TO_NOBODY ? 4 : 3);
            else if (me == 0)
                cu_send(room, in + i * 64, 256, f, 3);
            if (plant == CL_MORE_ARRIVALS && i == 1) cu_barrier_arrive(f, (uint32_t)me);
            if (plant == CL_SOURCE_CHANGES && i == 2) in[i * 64 + me * 32] += 1;
            if (plant == CL_TARGET_CHANGES && i == 2) room[me * 32 + 5] = 1;
        }
        if (plant != CL_NO_WAIT && ((plant != CL_ONE_WAITS && plant != CL_NAMED_TELLS) || t == 0))
            cu_barrier_wait(f, (uint32_t)(i / CL_ROOMS) & 1);
        if (plant == CL_NAMED_TELLS) cu_barrier_of(1, CL_THREADS);
        if (plant == CL_HANDED_OVER_EARLY && t < CL_BLOCKS) cu_barrier_arrive(e, (uint32_t)t);
        sum += room[63 - t];
        if (plant == CL_NAMED_TOO_FEW && me == 1)
            cu_barrier_of(1 + t / CU_WARP, CU_WARP);
        else
            __syncthreads(); /* all have read the stage */
        if (plant != CL_HANDED_OVER_EARLY && t < CL_BLOCKS) cu_barrier_arrive(e, (uint32_t)t);
    }
    if (plant == CL_LEFT_IN_FLIGHT && t == 0 && me == 0) {
        cu_barrier_wait(empty + n % CL_ROOMS, (uint32_t)(n / CL_ROOMS - 1) & 1);
        cu_send(rooms + n % CL_ROOMS * 64, in, 128, full + n % CL_ROOMS, 1);
    }
    if (plant == CL_NO_FAULT && me == 1 && t == 0) where[blockIdx.x / CL_BLOCKS] = rooms;
    cu_syncwarp();
    out[(plant == CL_COLLIDE ? 0 : (int)blockIdx.x * 64) + t] = sum;
    if (plant == CL_ENDS) return;
    cu_cluster_arrive();
    cu_cluster_wait();
}

START_TEST(test_cluster)
{
    int plant = _i / SEEDS;
    char msg[600];
    float *in = device_floats(CL_STAGES * 64, true), *out = device_floats(4 * 64, false);
    float **where = (float **)emu_alloc(2 * sizeof(*where));
    emu_seed((uint64_t)(_i % SEEDS));
    emu_catch_faults();
    for (int first = 1; first >= 0; first--) { /* without a fault, and with it */
        int now = first ? (int)CL_NO_FAULT : plant;
        CU_LAUNCH_CLUSTER(cluster_kernel, first ? 2 : 4, CL_THREADS, CL_SHARED, NULL, false,
                          CL_BLOCKS, out, in, where, now);
        emu_fault_kind found = emu_take_fault(msg, sizeof(msg));
        int want = cluster_faults[now];
        bool right =
            found == want || (want == RACE_OR_EARLY && (found == EMU_RACE || found == EMU_UNINIT));
        ck_assert_msg(right, "plant %d, seed %d: found %d, not %d: %s", now, _i % SEEDS, found,
                      want, msg);
    }
    for (int i = 0; i < 128; i++)
        ck_assert_msg(plant != CL_NO_FAULT ||
                          out[i] == (float)(CL_STAGES * (63 - i % 64) + 64 * 10),
                      "[%d]: %g", i, out[i]);
    CU_LAUNCH_CLUSTER(cluster_kernel, 3, CL_THREADS, CL_SHARED, NULL, false, CL_BLOCKS, out, in,
                      where, 0);
    ck_assert_int_eq(emu_take_fault(msg, sizeof(msg)), EMU_CONFIG); /* no whole clusters */
    emu_free(in);
    emu_free(out);
    emu_free(where);
}
END_TEST

/* ---- launches that begin early ----------------------------------------------------------------
 * */

enum early_plant {
    WELL,
    READS_BEFORE,
    COPIES_BEFORE,
    WRITES_BEFORE,
    ONE_DOES_NOT_WAIT,
    STILL_LOAD,
    READS_FIRST_OF_THREE, /* all of them begin early but the first, which wrote it */
    N_EARLY
};

/* out = 2 in + fixed; a launch before wrote `in`, nobody writes `fixed`. */
static __global__ void early_kernel(float *out, const float *in, const float *fixed, int plant)
{
    CU_STATIC_SHARED(float, room, 64 * 4);
    int t = (int)threadIdx.x;
    float x = fixed[t];
    cu_grid_go();
    if (plant == READS_BEFORE && t == 7) x += in[t];
    if (plant == COPIES_BEFORE) cu_cp_async16(room + 4 * t, in + t / 4 * 4);
    if (plant == WRITES_BEFORE && t == 7) out[t] = x;
    if (plant != ONE_DOES_NOT_WAIT || t != 7) cu_grid_wait();
    cu_cp_async_commit();
    CU_CP_ASYNC_WAIT(0);
    float y = plant == STILL_LOAD ? cu_f32_of_bits(cu_ldg4(in + t)) : in[t];
    if (plant == ONE_DOES_NOT_WAIT && t == 7) return;
    out[t] = 2 * y + x;
}

START_TEST(test_early)
{
    int plant = _i / SEEDS;
    char msg[600];
    float *fixed = device_floats(64, true), *a = device_floats(64, false);
    float *b = device_floats(64, false), *c = device_floats(64, false);
    emu_seed((uint64_t)(_i % SEEDS));
    emu_catch_faults();
    for (int early = 0; early < 2; early++) { /* the same launches in a row: nothing is amiss */
        bool third = plant == READS_FIRST_OF_THREE;
        CU_LAUNCH(early_kernel, 1, 64, 0, NULL, a, fixed, fixed, (int)WELL);
        CU_LAUNCH_EARLY(early_kernel, 1, 64, 0, NULL, early != 0, b, a, fixed,
                        third ? (int)WELL : plant);
        if (third)
            CU_LAUNCH_EARLY(early_kernel, 1, 64, 0, NULL, early != 0, c, a, fixed,
                            (int)READS_BEFORE);
        emu_fault_kind found = emu_take_fault(msg, sizeof(msg));
        ck_assert_msg(found == (early && plant != WELL ? EMU_EARLY : EMU_OK),
                      "plant %d, early %d: found %d: %s", plant, early, found, msg);
        for (int i = 0; plant == WELL && i < 64; i++) ck_assert(b[i] == (float)(7 * i));
    }
    emu_free(fixed);
    emu_free(a);
    emu_free(b);
    emu_free(c);
}
END_TEST

START_TEST(test_refused_launches)
{
    float *in = device_floats(256, true), *out = device_floats(256, false);
    emu_catch_faults();
    CU_LAUNCH(reverse_kernel, 0, 256, 1024, NULL, out, in);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidConfiguration);
    ck_assert_int_eq(emu_take_fault(NULL, 0), EMU_CONFIG);
    CU_LAUNCH(reverse_kernel, 1, 1025, 4100, NULL, out, in);
    ck_assert_int_eq(emu_take_fault(NULL, 0), EMU_CONFIG);
    CU_LAUNCH(reverse_kernel, 1, 256, 49 << 10, NULL, out, in);
    ck_assert_int_eq(emu_take_fault(NULL, 0), EMU_CONFIG);
    ck_assert_int_eq(CU_ALLOW_SHARED(reverse_kernel, 64 << 10), cudaSuccess);
    CU_LAUNCH(reverse_kernel, 1, 256, 49 << 10, NULL, out, in);
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    CU_LAUNCH(reverse_kernel, 1, 256, 1023, NULL, out, in); /* the tile ends too early */
    ck_assert_int_eq(emu_take_fault(NULL, 0), EMU_BOUNDS);
    CU_LAUNCH(reverse_kernel, 1, 256, 0, NULL, out, in);
    ck_assert_int_eq(emu_take_fault(NULL, 0), EMU_BOUNDS);
    emu_free(in);
    emu_free(out);
}
END_TEST

/* A device reaches another's memory where it may, in the one direction. */
START_TEST(test_another_devices_memory)
{
    char msg[256];
    float *own = device_floats(256, true);
    emu_device(1);
    float *other = device_floats(256, true);
    emu_device(0);
    emu_catch_faults();
    CU_LAUNCH(reverse_kernel, 1, 256, 1024, NULL, other, own);
    ck_assert_int_eq(emu_take_fault(msg, sizeof(msg)), EMU_BOUNDS);
    ck_assert_ptr_nonnull(strstr(msg, "device 0 reaches into the memory of device 1"));
    emu_allow_peer(0, 1);
    CU_LAUNCH(reverse_kernel, 1, 256, 1024, NULL, other, own);
    ck_assert_int_eq(emu_take_fault(NULL, 0), EMU_OK);
    emu_device(1);
    CU_LAUNCH(reverse_kernel, 1, 256, 1024, NULL, other, own);
    ck_assert_int_eq(emu_take_fault(NULL, 0), EMU_BOUNDS);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("emu");
    TCase *tc = tcase_create("emu");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, test_reverse, 0, SEEDS);
    tcase_add_loop_test(tc, test_sum, 0, SEEDS);
    tcase_add_loop_test(tc, test_mma, 0, SEEDS);
    tcase_add_loop_test(tc, test_named_barrier, 0, 2 * (int)N_NAMED * (int)SEEDS);
    tcase_add_loop_test(tc, test_last_block, 0, SEEDS);
    tcase_add_loop_test(tc, test_planted, 0, (int)N_PLANT * (int)SEEDS);
    tcase_add_loop_test(tc, test_wide_over_narrow, 0, 4 * SEEDS);
    tcase_add_loop_test(tc, test_wgmma, 0, (int)N_WGMMA * (int)SEEDS);
    tcase_add_loop_test(tc, test_cluster, 0, (int)N_CLUSTER * (int)SEEDS);
    tcase_add_loop_test(tc, test_early, 0, (int)N_EARLY * (int)SEEDS);
    tcase_add_test(tc, test_refused_launches);
    tcase_add_test(tc, test_another_devices_memory);
    suite_add_tcase(s, tc);
    return run_suite_as(s, CK_NOFORK);
}
