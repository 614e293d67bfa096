/* test_norms.cu -- engine/cuda/products/norms.cu against f64, and each row against itself in other
 * company. */
#include "engine/cuda/products/norms.h"
#include "tests/emu/device_data.h"
#include "tests/run_suite.h"

static const int dims[] = {48, 64, 257, 1000};
static const int row_counts[] = {0, 1, 7, 40};

/* Away from zero, as a stream is. */
static float *rows_of(int n, int dim)
{
    float *x = device_random((size_t)(n + 1) * dim, 1);
    for (int i = 0; i < n * dim; i++) x[i] += 3;
    return x;
}

static void check_layer_norm(int n, int dim, bool biased, bool in_place)
{
    cu_layer_norm_args a = {};
    float *x = rows_of(n, dim), *want = (float *)malloc((size_t)(n + 1) * dim * sizeof(float));
    a.x = x;
    a.out = in_place ? x : device_empty((size_t)(n + 1) * dim);
    a.out16 = biased ? (uint16_t *)emu_alloc((size_t)(n + 1) * dim * 2) : NULL;
    a.weight = device_random((size_t)dim, 2);
    a.bias = biased ? device_random((size_t)dim, 2) : NULL;
    a.eps = 1e-5F;
    a.n_rows = n;
    a.dim = dim;
    for (int i = 0; i < n; i++) {
        double mean = 0, square = 0;
        for (int k = 0; k < dim; k++) mean += x[i * dim + k];
        mean /= dim;
        for (int k = 0; k < dim; k++) square += pow(x[i * dim + k] - mean, 2);
        for (int k = 0; k < dim; k++)
            want[i * dim + k] =
                (float)((x[i * dim + k] - mean) / sqrt(square / dim + 1e-5) * a.weight[k] +
                        (biased ? a.bias[k] : 0));
    }
    ck_assert_int_eq(cu_layer_norm(NULL, &a), cudaSuccess);
    for (int i = 0; i < n * dim; i++) {
        check_near(a.out[i], want[i], 1e-5, "layer norm", (size_t)i);
        if (biased) ck_assert_uint_eq(a.out16[i], bf16_from_f32(a.out[i]));
    }
    if (n > 2 && !in_place) { /* its second row alone */
        cu_layer_norm_args one = a;
        one.x = x + dim;
        one.n_rows = 1;
        one.out = device_empty((size_t)dim);
        ck_assert_int_eq(cu_layer_norm(NULL, &one), cudaSuccess);
        ck_assert_mem_eq(one.out, a.out + dim, (size_t)dim * sizeof(float));
        emu_free(one.out);
    }
    free(want);
    if (!in_place) emu_free(a.out);
    if (biased) emu_free(a.out16);
    if (biased) emu_free((void *)a.bias);
    emu_free((void *)a.weight);
    emu_free(x);
}

START_TEST(layer_norms)
{
    emu_seed((uint64_t)_i);
    for (int n : row_counts) check_layer_norm(n, dims[_i], n % 2, n == 40);
}
END_TEST

/* The middle of wider rows, which stay as they are. */
START_TEST(norms_of_a_part)
{
    int dim = dims[_i], stride = dim + 24, n = 9;
    float *x = rows_of(n, stride), *w = device_random((size_t)dim, 2);
    float *before = (float *)malloc((size_t)n * stride * sizeof(float));
    memcpy(before, x, (size_t)n * stride * sizeof(float));
    float *out = rows_of(n, dim);
    uint16_t *out16 = (uint16_t *)emu_alloc((size_t)n * dim * 2);
    const cu_wide_norm_args a = {out, out16, x + 8, w, 1e-6F, n, dim, stride};
    ck_assert_int_eq(cu_wide_norm(NULL, &a), cudaSuccess);
    ck_assert_mem_eq(x, before, (size_t)n * stride * sizeof(float));
    for (int i = 0; i < n; i++) {
        const float *was = before + i * stride + 8;
        double square = 0;
        for (int k = 0; k < dim; k++) square += (double)was[k] * was[k];
        for (int k = 0; k < dim; k++) {
            check_near(out[i * dim + k], was[k] / sqrt(square / dim + 1e-6) * w[k], 1e-5, "part",
                       (size_t)k);
            ck_assert_uint_eq(out16[i * dim + k], bf16_from_f32(out[i * dim + k]));
        }
    }
    emu_free(out);
    emu_free(out16);
    free(before);
    emu_free(x);
    emu_free(w);
}
END_TEST

START_TEST(picked_rows)
{
    const int32_t index[] = {3, -1, 0, 8, 8};
    int dim = dims[_i];
    cu_pick_args a = {};
    float *x = rows_of(9, dim);
    a.x = x;
    a.out = device_random((size_t)5 * dim, 1);
    a.out16 = (uint16_t *)emu_alloc((size_t)5 * dim * 2);
    a.index = (int32_t *)to_device(index, sizeof(index));
    a.n_rows = 5;
    a.dim = dim;
    float *before = (float *)malloc((size_t)dim * sizeof(float));
    memcpy(before, a.out + dim, (size_t)dim * sizeof(float));
    ck_assert_int_eq(cu_pick_rows(NULL, &a), cudaSuccess);
    for (int i = 0; i < 5; i++) {
        const float *want = index[i] < 0 ? before : x + index[i] * dim;
        ck_assert_mem_eq(a.out + i * dim, want, (size_t)dim * sizeof(float));
        for (int k = 0; index[i] >= 0 && k < dim; k++)
            ck_assert_uint_eq(a.out16[i * dim + k], bf16_from_f32(want[k]));
    }
    free(before);
    emu_free(x);
    emu_free(a.out);
    emu_free(a.out16);
    emu_free((void *)a.index);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("norms");
    TCase *t = tcase_create("norms");
    tcase_set_timeout(t, 250);
    tcase_add_loop_test(t, layer_norms, 0, 4);
    tcase_add_loop_test(t, norms_of_a_part, 0, 4);
    tcase_add_loop_test(t, picked_rows, 0, 4);
    suite_add_tcase(s, t);
    return run_suite(s);
}
