/* bench_machine.c -- what this machine can do: read bandwidth and the peak of products.
 *
 * Bandwidth: all cores sum a buffer of 1 GiB (far beyond the caches), middle of 9 passes.  Peak:
 * all cores run be_linear()'s own instruction (AMX tiles, VDPBF16PS, FMA of the set's width, or,
 * portable, a multiplication and an addition of four) on operands that stay in registers or in
 * the first-level cache.  LORAD_BENCH_ISA names the set; else it is the best that the machine
 * has.  Prints one line of JSON.
 */
#include <immintrin.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/cpu/cpu.h"

enum { PASSES = 9, REPEAT = 20000000, ACCUMULATORS = 12 };

static const size_t buffer_bytes = (size_t)1 << 30;
static unsigned char *buffer;
static int n_threads;
static pthread_barrier_t gate;
static atomic_ullong sink;
static int64_t *began_us, *ended_us; /* of each thread, by its own clock: others may wake late */

__attribute__((target("avx2"))) static uint64_t read_avx2(const unsigned char *p, size_t n)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i + 128 <= n; i += 128) {
        a = _mm256_add_epi64(a, _mm256_load_si256((const __m256i *)(p + i)));
        b = _mm256_add_epi64(b, _mm256_load_si256((const __m256i *)(p + i + 32)));
        c = _mm256_add_epi64(c, _mm256_load_si256((const __m256i *)(p + i + 64)));
        d = _mm256_add_epi64(d, _mm256_load_si256((const __m256i *)(p + i + 96)));
    }
    a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
    return (uint64_t)_mm256_extract_epi64(a, 0) + (uint64_t)_mm256_extract_epi64(a, 3);
}

/* Where there is no AVX2. */
static uint64_t read_sse2(const unsigned char *p, size_t n)
{
    __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;
    for (size_t i = 0; i + 64 <= n; i += 64) {
        a = _mm_add_epi64(a, _mm_load_si128((const __m128i *)(p + i)));
        b = _mm_add_epi64(b, _mm_load_si128((const __m128i *)(p + i + 16)));
        c = _mm_add_epi64(c, _mm_load_si128((const __m128i *)(p + i + 32)));
        d = _mm_add_epi64(d, _mm_load_si128((const __m128i *)(p + i + 48)));
    }
    a = _mm_add_epi64(_mm_add_epi64(a, b), _mm_add_epi64(c, d));
    return (uint64_t)_mm_cvtsi128_si64(a);
}

static void *read_part(void *arg)
{
    uint64_t (*read)(const unsigned char *p, size_t n) =
        __builtin_cpu_supports("avx2") ? read_avx2 : read_sse2;
    size_t i = (size_t)(intptr_t)arg, part = buffer_bytes / (size_t)n_threads;
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(&gate);
        began_us[i] = clock_now_us();
        atomic_fetch_add(&sink, read(buffer + i * part, part));
        ended_us[i] = clock_now_us();
        pthread_barrier_wait(&gate);
    }
    return NULL;
}

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
} __attribute__((packed)) tile_config;

__attribute__((target("amx-tile,amx-bf16"))) static void amx_loop(int n)
{
    alignas(64) tile_config cfg = {.palette = 1};
    static alignas(64) uint16_t data[512];
    for (int i = 0; i < 8; i++) {
        cfg.colsb[i] = 64;
        cfg.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&cfg) : "memory"); /* gcc 12's intrinsic names 8 bytes of it */
    _tile_loadconfig(&cfg);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, data, 64);
    _tile_loadd(5, data, 64);
    _tile_loadd(6, data, 64);
    _tile_loadd(7, data, 64);
    for (int i = 0; i < n; i += 4) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

/* Twelve sums of the named kind of register (mm), from zero, `product` of registers 14 and 15 being
 * added n times.  In assembler: a compiler that stores the sums on the way measures that. */
#define CLEAR(r)   "pxor %%xmm" #r ", %%xmm" #r "\n\t"
#define TWELVE(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)
#define LOOP(product, n)                                                                           \
    __asm__ volatile(TWELVE(CLEAR) CLEAR(14) CLEAR(15)                                             \
                     :                                                                             \
                     :                                                                             \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",     \
                       "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");                                \
    for (int k = 0; k < (n); k += ACCUMULATORS) {                                                  \
        __asm__ volatile(TWELVE(product)                                                           \
                         :                                                                         \
                         :                                                                         \
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                           "xmm9", "xmm10", "xmm11", "xmm12");                                     \
    }

#define PAIRS512(r) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #r "\n\t"
#define FMA512(r)   "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #r "\n\t"
#define FMA256(r)   "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #r "\n\t"
#define SSE2(r) \
    "movaps %%xmm14, %%xmm12\n\tmulps %%xmm15, %%xmm12\n\taddps %%xmm12, %%xmm" #r "\n\t"

static void bf16_loop(int n)
{
    LOOP(PAIRS512, n)
}

static void fma512_loop(int n)
{
    LOOP(FMA512, n)
}

static void fma256_loop(int n)
{
    LOOP(FMA256, n)
}

static void sse2_loop(int n)
{
    LOOP(SSE2, n)
}

/* Turns of each set's loop in a pass, and floating-point operations of one. */
static const struct {
    void (*loop)(int n);
    int n;
    double flop;
} peaks[] = {[ISA_PORTABLE] = {sse2_loop, REPEAT * 4, 2.0 * 4},
             [ISA_AVX2] = {fma256_loop, REPEAT * 4, 2.0 * 8},
             [ISA_AVXVNNI] = {fma256_loop, REPEAT * 4, 2.0 * 8},
             [ISA_AVX512] = {fma512_loop, REPEAT * 4, 2.0 * 16},
             [ISA_AVX512VNNI] = {fma512_loop, REPEAT * 4, 2.0 * 16},
             [ISA_AVX512BF16] = {bf16_loop, REPEAT * 4, 2.0 * 32},
             [ISA_AMX] = {amx_loop, REPEAT, 2.0 * 16 * 16 * 32}};
static cpu_isa isa;

static void *matrix_part(void *arg)
{
    size_t i = (size_t)(intptr_t)arg;
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(&gate);
        began_us[i] = clock_now_us();
        peaks[isa].loop(peaks[isa].n);
        ended_us[i] = clock_now_us();
        pthread_barrier_wait(&gate);
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of the middle pass, from the first thread's start to the last one's end.
 * Not of the best: what it is set against are medians too, and a shared memory gives
 * a moment twice the usual. */
static double middle_pass(void *(*fn)(void *))
{
    double seconds[PASSES];
    pthread_t *t = calloc((size_t)n_threads, sizeof(*t));
    if (!t) abort();
    for (int i = 0; i < n_threads; i++) {
        if (pthread_create(&t[i], NULL, fn, (void *)(intptr_t)i) != 0) abort();
    }
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(&gate);
        pthread_barrier_wait(&gate);
        int64_t from = INT64_MAX, to = 0;
        for (int i = 0; i < n_threads; i++) {
            if (began_us[i] < from) from = began_us[i];
            if (ended_us[i] > to) to = ended_us[i];
        }
        seconds[pass] = (double)(to - from) / 1e6;
    }
    for (int i = 0; i < n_threads; i++) (void)pthread_join(t[i], NULL);
    free(t);
    qsort(seconds, PASSES, sizeof(*seconds), by_value);
    return seconds[PASSES / 2];
}

int main(void)
{
    n_threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    isa = cpu_isa_detect();
    err e;
    const char *name = getenv("LORAD_BENCH_ISA");
    if (name && cpu_isa_parse(name, &isa, &e)) {
        fprintf(stderr, "bench_machine: %s\n", e.msg);
        return 2;
    }
    began_us = calloc((size_t)n_threads, sizeof(*began_us));
    ended_us = calloc((size_t)n_threads, sizeof(*ended_us));
    buffer = aligned_alloc(1 << 21, buffer_bytes);
    if (!began_us || !ended_us || !buffer) {
        fprintf(stderr, "bench_machine: needs 1 GiB of memory\n");
        return 2;
    }
    (void)madvise(buffer, buffer_bytes, MADV_HUGEPAGE);
    memset(buffer, 1, buffer_bytes);
    pthread_barrier_init(&gate, NULL, (unsigned)n_threads + 1);
    double gb_s = (double)buffer_bytes / middle_pass(read_part) / 1e9;
    double gflops = peaks[isa].flop * peaks[isa].n * n_threads / middle_pass(matrix_part) / 1e9;
    printf("{\"threads\":%d,\"isa\":\"%s\",\"read_gb_per_s\":%.2f,\"peak_gflops\":%.1f}\n",
           n_threads, cpu_isa_name(isa), gb_s, gflops);
    free(buffer);
    free(began_us);
    free(ended_us);
    return 0;
}
