/* test_copy.c -- adapters in int8: the bound on the error for every type and every kind of
 * values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "adapters/store/copy.h"
#include "engine/model/safetensors.h"
#include "tests/run_suite.h"

enum { N_LAYER = 1, A_LEN = 1000, B_LEN = 333, V_LEN = 10 };

static uint64_t rng = 5;

static float draw(void)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (float)((double)(rng >> 11) / 9007199254740992.0 * 2 - 1);
}

static float value(int kind, int i)
{
    if (kind == 0) return draw();
    if (kind == 1) return 0;
    if (kind == 2)
        return i == 17 ? 3e4F : draw() * 1e-3F; /* an outlier spoils its own group only */
    return draw() * expf(draw() * 8);
}

static void put(uint8_t *to, dtype type, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    uint16_t h = (uint16_t)(u >> 16);
    if (type == DT_F32)
        memcpy(to, &u, 4);
    else if (type == DT_BF16)
        memcpy(to, &h, 2);
    else {
        _Float16 f = (_Float16)v;
        memcpy(to, &f, 2);
    }
}

static void read_all(const uint8_t *file, const adapter_tensor *t, float *out)
{
    static const st_dtype types[] = {[DT_F32] = ST_F32, [DT_F16] = ST_F16, [DT_BF16] = ST_BF16};
    uint64_t n = t->bytes / dtype_bytes(t->type);
    st_tensor view = {
        .dtype = types[t->type], .count = n, .bytes = t->bytes, .data = file + t->offset};
    st_read_f32(&view, 0, n, out);
}

static adapter_tensor tensor(uint64_t *at, dtype type, uint64_t n)
{
    adapter_tensor t = {
        .offset = *at, .bytes = n * dtype_bytes(type), .type = type, .present = true};
    *at += t.bytes;
    return t;
}

/* kind in the upper digit, type in the lower. */
START_TEST(test_bound)
{
    dtype type = (dtype)(_i % 3);
    adapter_layout al = {.peft = {.n_layer = N_LAYER},
                         .pair = calloc(peft_expert_slots(N_LAYER), sizeof(adapter_pair))};
    uint64_t at = 3; /* nothing is aligned */
    al.pair[2].a = tensor(&at, type, A_LEN);
    al.pair[2].b = tensor(&at, type, B_LEN);
    al.pair[2].magnitude = tensor(&at, type, V_LEN);
    uint8_t *file = malloc((size_t)at);
    adapter_tensor *t[3] = {&al.pair[2].a, &al.pair[2].b, &al.pair[2].magnitude};
    int n[3] = {A_LEN, B_LEN, V_LEN};
    static float want[3][A_LEN], got[A_LEN];
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < n[k]; i++)
            put(file + t[k]->offset + (size_t)i * dtype_bytes(type), type, value(_i / 3, i));
        read_all(file, t[k], want[k]);
    }
    adapter_copy *c = copy_make(&al, file, at, true);
    ck_assert_ptr_nonnull(c);
    ck_assert_ptr_null(al.pair); /* taken over */
    ck_assert_uint_lt(c->bytes, (A_LEN + B_LEN) * 108 / 100 + V_LEN * 4 + 8);
    void *spare;
    const uint8_t *image = copy_open(c, &spare);
    const adapter_tensor *o[3] = {&c->layout.pair[2].a, &c->layout.pair[2].b,
                                  &c->layout.pair[2].magnitude};
    for (int k = 0; k < 3; k++) {
        read_all(image, o[k], got);
        for (int i = 0; i < n[k]; i++) {
            float top = 0;
            for (int j = i / COPY_GROUP * COPY_GROUP; j < n[k] && j / COPY_GROUP == i / COPY_GROUP;
                 j++)
                top = fmaxf(top, fabsf(want[k][j]));
            float bound = k == 2 ? 0 : top / 254 * 1.00001f;
            ck_assert_float_le(fabsf(got[i] - want[k][i]), bound);
        }
    }
    free(spare);
    copy_free(c);
}
END_TEST

START_TEST(test_short_file)
{
    adapter_layout al = {.peft = {.n_layer = N_LAYER},
                         .pair = calloc(peft_expert_slots(N_LAYER), sizeof(adapter_pair))};
    uint64_t at = 0;
    al.pair[0].a = tensor(&at, DT_F32, 100);
    ck_assert_ptr_null(copy_make(&al, malloc(399), 399, true));
    al = (adapter_layout){.peft = {.n_layer = N_LAYER},
                          .pair = calloc(peft_expert_slots(N_LAYER), sizeof(adapter_pair))};
    al.pair[0].a = (adapter_tensor){.offset = UINT64_MAX - 3, .bytes = 8, .present = true};
    ck_assert_ptr_null(copy_make(&al, malloc(400), 400, false));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("copy");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, test_bound, 0, 12);
    tcase_add_test(tc, test_short_file);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
