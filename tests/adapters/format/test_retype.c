/* test_retype.c -- which weights are written anew in F32, and that nothing else changes. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "adapters/format/retype.h"
#include "engine/model/safetensors.h"
#include "tests/adapters/make_adapter.h"
#include "tests/run_suite.h"

#define Q  "base_model.model.model.layers.0.self_attn.q_proj."
#define ON "base_model.model.model.embed_tokens."

/* Types of A and B of q_proj, of a norm, of A and B of the input table. */
static const struct {
    const char *type[5], *becomes[5]; /* NULL: all stay, and nothing is written */
} files[] = {
    {{"F32", "F32", "F16", "F32", "F32"}, {NULL}},
    {{"BF16", "BF16", "F32", "F16", "F16"}, {NULL}},
    {{"F64", "F64", "F16", "F32", "F32"}, {"F32", "F32", "F16", "F32", "F32"}},
    {{"F64", "BF16", "F64", "F32", "F32"}, {"F32", "F32", "F32", "F32", "F32"}},
    {{"F16", "F32", "BF16", "BF16", "BF16"}, {"F32", "F32", "BF16", "BF16", "BF16"}},
    {{"BF16", "F16", "F16", "F32", "BF16"}, {"F32", "F32", "F16", "F32", "F32"}},
    {{"I32", "F32", "F16", "F32", "F32"}, {NULL}},
};
static const char *const names[] = {Q "lora_A.weight", Q "lora_B.weight",
                                    "base_model.model.model.norm.weight", ON "lora_embedding_A",
                                    ON "lora_embedding_B"};

static int file_of(const void *data, size_t n)
{
    char path[] = "/tmp/lorad-retype-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    unlink(path);
    ck_assert_int_eq(write(fd, data, n), (ssize_t)n);
    return fd;
}

static uint8_t *all_of(int fd, size_t *n)
{
    *n = (size_t)lseek(fd, 0, SEEK_END);
    uint8_t *data = malloc(*n + 1);
    ck_assert_int_eq(pread(fd, data, *n, 0), (ssize_t)*n);
    return data;
}

static double value_at(const st_tensor *t, size_t i)
{
    float narrow;
    double wide;
    if (t->dtype == ST_F64) {
        memcpy(&wide, (const char *)t->data + i * sizeof wide, sizeof wide);
        return wide;
    }
    st_read_f32(t, i, 1, &narrow);
    return (double)narrow;
}

static void check_tensor(const safetensors *old, const safetensors *new, const char *name,
                         const char *type)
{
    const st_tensor *was = safetensors_find(old, name), *is = safetensors_find(new, name);
    ck_assert_ptr_nonnull(is);
    ck_assert_str_eq(st_dtype_name(is->dtype), type);
    ck_assert_int_eq(is->ndim, was->ndim);
    ck_assert_uint_eq(is->count, was->count);
    for (size_t i = 0; i < is->count; i++)
        ck_assert(value_at(is, i) == (double)(float)value_at(was, i));
}

START_TEST(only_what_must_changes)
{
    const int rows[] = {4, 32, 32, 4, 32}, cols[] = {32, 4, 0, 64, 4};
    st_maker m = {0};
    retype *r = NULL;
    err e;
    for (int i = 0; i < 5; i++)
        st_tensor_add(&m, names[i], files[_i].type[i], rows[i], cols[i], 0.25f);
    bytes old = st_finish(&m);
    int in = file_of(old.p, old.n), config_in = file_of("{\"r\":4}", 7);
    int config = file_of("", 0), out = file_of("", 0);
    ck_assert_int_eq(retype_open(&r, in, 1 << 20, &e), ERR_NONE);
    ck_assert_int_eq(r != NULL, files[_i].becomes[0] != NULL);
    if (r) {
        size_t n, n_config;
        ck_assert_msg(retype_write(r, config_in, config, out, &e) == ERR_NONE, "%s", e.msg);
        uint8_t *made = all_of(out, &n), *text = all_of(config, &n_config);
        ck_assert_uint_le(n, retype_bytes(r));
        ck_assert(n_config == 7 && memcmp(text, "{\"r\":4}", 7) == 0);
        safetensors *was, *is;
        ck_assert_int_eq(safetensors_open_memory(&was, old.p, old.n, &st_limits_upload, &e), 0);
        ck_assert_int_eq(safetensors_open_memory(&is, made, n, &st_limits_upload, &e), 0);
        ck_assert_int_eq(safetensors_count(is), 5);
        for (int i = 0; i < 5; i++) check_tensor(was, is, names[i], files[_i].becomes[i]);
        safetensors_close(was);
        safetensors_close(is);
        retype_close(r);
        ck_assert_int_eq(retype_open(&r, out, 1 << 20, &e), ERR_NONE);
        ck_assert_ptr_null(r); /* there is nothing left to do */
        ck_assert_int_eq(retype_open(&r, in, n - 512, &e), ERR_LIMIT);
        free(made);
        free(text);
    }
    close(in);
    close(config_in);
    close(config);
    close(out);
    bytes_free(&old);
}
END_TEST

START_TEST(what_is_no_file_of_tensors)
{
    retype *r;
    err e;
    int in = file_of("no tensors at all", 17);
    ck_assert_int_eq(retype_open(&r, in, 1 << 20, &e), ERR_CORRUPT);
    ck_assert_ptr_null(r);
    close(in);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("retype");
    TCase *tc = tcase_create("retype");
    tcase_add_loop_test(tc, only_what_must_changes, 0, (int)(sizeof files / sizeof(*files)));
    tcase_add_test(tc, what_is_no_file_of_tensors);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
