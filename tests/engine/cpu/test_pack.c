/* test_pack.c -- packed weights, value by value, in each layout of linear.h. */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/cpu/linear.h"
#include "tests/run_suite.h"

static uint32_t rng = 1;

static uint16_t draw(void)
{
    rng = rng * 1664525U + 1013904223U;
    return (uint16_t)(rng >> 16);
}

/* Where column j and row k of a panel lie, in values. */
static size_t place(const cpu_weight *w, int j, int k)
{
    if (w->pack != PACK_TILE) return (size_t)k * PANEL + (size_t)j;
    size_t tile = (size_t)(k / K_BLOCK) * 2 + (size_t)j / 16;
    return tile * 512 + (size_t)(k % K_BLOCK / 2) * 32 + (size_t)(j % 16) * 2 + (size_t)(k % 2);
}

/* The bits of value (row, k) as they are to be packed; outside of the matrix 0. */
static uint32_t bits_at(const void *src, dtype type, int rows, int cols, int row, int k)
{
    if (row >= rows || k >= cols) return 0;
    size_t at = (size_t)row * (size_t)cols + (size_t)k;
    if (type == DT_F32) return ((const uint32_t *)src)[at];
    return ((const uint16_t *)src)[at];
}

static void check_pack(backend *be, packing pack, dtype type, int rows, int cols, bool alone)
{
    size_t size = type == DT_F32 ? 4 : 2, n = (size_t)rows * (size_t)cols * size;
    uint16_t *src = malloc(n); /* to the byte: the sanitizer sees what is read beyond */
    for (size_t i = 0; i < n / 2; i++) src[i] = draw();
    weight *head;
    weight_source source = weight_source_plain(src, type, rows, cols);
    ck_assert_int_eq(alone ? be_lora_weight_create(be, &head, src, type, rows, cols, NULL)
                           : be_weight_create(be, &head, &source, NULL),
                     ERR_NONE);
    const cpu_weight *w = (const cpu_weight *)head;
    ck_assert_int_eq(w->pack, pack);
    int k_end = pack == PACK_TILE ? w->k_pad : cols;
    for (int p = 0; p < w->n_panel; p++) {
        const char *panel = (const char *)w->data + (size_t)p * w->panel_bytes;
        for (int j = 0; j < PANEL; j++) {
            for (int k = 0; k < k_end; k++) {
                uint32_t got = pack == PACK_F32
                                   ? ((const uint32_t *)(const void *)panel)[place(w, j, k)]
                                   : ((const uint16_t *)(const void *)panel)[place(w, j, k)];
                uint32_t want = bits_at(src, type, rows, cols, p * PANEL + j, k);
                ck_assert_msg(got == want, "%d x %d, type %d, row %d, k %d: %x instead of %x", rows,
                              cols, (int)type, p * PANEL + j, k, got, want);
            }
        }
    }
    be_weight_destroy(be, head);
    free(src);
}

START_TEST(every_value_lies_where_kernels_look)
{
    static const int rows[] = {1, 31, 32, 75}, cols[] = {1, 7, 8, 31, 33, 255, 256, 257, 520, 1032};
    backend *be;
    backend_config bc = {.isa = "portable", .n_threads = 2};
    ck_assert_int_eq(be_open(&be, &backend_cpu, &bc, NULL), ERR_NONE);
    for (int r = 0; r < 4; r++) {
        for (int c = 0; c < 10; c++) {
            bool alone = (r + c) % 2;
            cpu_of(be)->isa = ISA_PORTABLE;
            check_pack(be, PACK_BF16, DT_BF16, rows[r], cols[c], alone);
            check_pack(be, PACK_F32, DT_F32, rows[r], cols[c], alone);
            check_pack(be, PACK_F16, DT_F16, rows[r], cols[c], alone);
            if (!cpu_isa_built(ISA_AVX512BF16)) continue;
            cpu_of(be)->isa = ISA_AVX512BF16; /* nothing is multiplied: any machine can */
            check_pack(be, PACK_TILE, DT_BF16, rows[r], cols[c], alone);
        }
    }
    cpu_of(be)->isa = ISA_PORTABLE;
    be_close(be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pack");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, every_value_lies_where_kernels_look);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
