/* test_quantise.c -- values that become codes when a model is loaded: each the nearest one. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include <check.h>

#include "engine/e4m3.h"
#include "engine/model/quantise.h"
#include "tests/run_suite.h"

enum { ROWS = 6, COLS = 96, LARGEST = 0x7E }; /* E4M3's 448 */

/* Every code is the nearest to its own value; between two of them the middle goes to the even one,
 * and what is a little off it to its own side. */
START_TEST(e4m3_rounds_to_the_nearest)
{
    const float *value = e4m3_floats();
    for (int code = 0; code <= LARGEST; code++) {
        ck_assert_int_eq(e4m3_from_f32(value[code]), code);
        ck_assert_int_eq(e4m3_from_f32(-value[code]), code | 0x80);
        ck_assert(value[code | 0x80] == -value[code]);
        if (code == LARGEST) break;
        float middle = (value[code] + value[code + 1]) / 2; /* exact */
        ck_assert_int_eq(e4m3_from_f32(middle), code + code % 2);
        ck_assert_int_eq(e4m3_from_f32(nextafterf(middle, 0)), code);
        ck_assert_int_eq(e4m3_from_f32(nextafterf(middle, 500)), code + 1);
    }
    ck_assert(value[1] == 0x1p-9F && value[8] == 0x1p-6F && value[LARGEST] == E4M3_MAX);
}
END_TEST

START_TEST(e4m3_ends_at_its_largest_number)
{
    ck_assert_int_eq(e4m3_from_f32(449), LARGEST);
    ck_assert_int_eq(e4m3_from_f32(FLT_MAX), LARGEST);
    ck_assert_int_eq(e4m3_from_f32(-INFINITY), LARGEST | 0x80);
    ck_assert_int_eq(e4m3_from_f32(NAN), 0x7F);
    ck_assert(isnan(e4m3_floats()[0x7F]) && isnan(e4m3_floats()[0xFF]));
}
END_TEST

/* Row 0 is zero; of the others each has another size. */
static void make_rows(float *v)
{
    for (int i = 0; i < ROWS * COLS; i++)
        v[i] = i < COLS ? 0 : ldexpf(sinf((float)i), i / COLS * 5 - 15);
}

/* How far a value may be off, in parts of its row's (E4M3: of its own) size. */
static const struct {
    quantise_form form;
    bool of_itself;
    double bound;
} forms[] = {
    {QUANTISE_Q8, false, 0.51 / 127},
    {QUANTISE_Q4, false, 1.01 / 8},
    {QUANTISE_FP8, true, 1.0 / 16 + 1e-6},
};

START_TEST(values_are_near_what_they_were)
{
    float v[ROWS * COLS];
    make_rows(v);
    weight_source plain = weight_source_plain(v, DT_F32, ROWS, COLS), q;
    ck_assert(weight_source_quantise(&q, &plain, forms[_i].form));
    void *mem = malloc(weight_row_bytes(&q));
    weight_row row = weight_row_place(&q, mem);
    for (int r = 0; r < ROWS; r++) {
        double most = 0;
        q.read_row(&q, r, &row);
        for (int k = 0; k < COLS; k++) most = fmax(most, fabs((double)v[r * COLS + k]));
        for (int k = 0; k < COLS; k++) {
            double is = v[r * COLS + k], size = forms[_i].of_itself ? fabs(is) : most;
            /* E4M3 below 2^-6 of its row's scale: half a last place. */
            double least = forms[_i].of_itself ? most / 448 / 1024 * 1.01 : 0;
            double off = fabs((double)weight_row_value(&q, &row, k) - is);
            ck_assert_msg(off <= size * forms[_i].bound + least, "row %d column %d: %g off %g", r,
                          k, off, is);
        }
    }
    free(mem);
}
END_TEST

/* What is no number is no code that a backend takes; columns that are no whole groups stay. */
START_TEST(what_cannot_be_quantised)
{
    float v[COLS] = {1, NAN};
    weight_source plain = weight_source_plain(v, DT_F32, 1, COLS), q;
    ck_assert(weight_source_quantise(&q, &plain, QUANTISE_FP8));
    void *mem = malloc(weight_row_bytes(&q));
    weight_row row = weight_row_place(&q, mem);
    q.read_row(&q, 0, &row);
    ck_assert_int_eq((uint8_t)row.codes[1], 0x7F);
    ck_assert_int_eq((uint8_t)row.codes[0], LARGEST);
    free(mem);
    plain.cols = COLS - 16;
    ck_assert(!weight_source_quantise(&q, &plain, QUANTISE_Q8));
    ck_assert(!weight_source_quantise(&q, &plain, QUANTISE_Q4));
    ck_assert(weight_source_quantise(&q, &plain, QUANTISE_FP8));
    plain.cols -= 8;
    ck_assert(!weight_source_quantise(&q, &plain, QUANTISE_FP8));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quantise");
    TCase *tc = tcase_create("quantise");
    tcase_add_test(tc, e4m3_rounds_to_the_nearest);
    tcase_add_test(tc, e4m3_ends_at_its_largest_number);
    tcase_add_loop_test(tc, values_are_near_what_they_were, 0, sizeof(forms) / sizeof(forms[0]));
    tcase_add_test(tc, what_cannot_be_quantised);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
