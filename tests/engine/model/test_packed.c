/* test_packed.c -- packed weights from one start to the next: the same bits from the map, and a
 * file that is torn, foreign or of another model is none.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/log.h"
#include "engine/model/model.h"
#include "engine/model/packed.h"
#include "engine/program/mapping.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { HEADER_BYTES = 64, VOCABULARY = 512 };

static char dir[64], model_dir[80], kept_dir[80];
static backend *be;

static void copy_file(const char *from_dir, const char *name)
{
    char from[512], to[512], buf[4096];
    snprintf(from, sizeof(from), "%s/%s", from_dir, name);
    snprintf(to, sizeof(to), "%s/%s", model_dir, name);
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    ck_assert(in && out);
    for (size_t n; (n = fread(buf, 1, sizeof(buf), in)) > 0;)
        ck_assert_uint_eq(fwrite(buf, 1, n, out), n);
    ck_assert_int_eq(fclose(in) + fclose(out), 0);
}

static void setup(void)
{
    static const char base[] = "fixtures/models/llama-bf16";
    backend_config cfg = {.n_threads = 2};
    log_setup(LOG_NOTHING, LOG_TEXT);
    tmpdir_make(dir);
    snprintf(model_dir, sizeof(model_dir), "%s/model", dir);
    snprintf(kept_dir, sizeof(kept_dir), "%s/packed", dir);
    ck_assert_int_eq(mkdir(model_dir, 0700), 0);
    DIR *d = opendir(base);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *de; (de = readdir(d)) != NULL;) {
        if (strstr(de->d_name, ".json") || strstr(de->d_name, ".safetensors"))
            copy_file(base, de->d_name);
    }
    closedir(d);
    ck_assert_int_eq(be_open(&be, &backend_cpu, &cfg, NULL), ERR_NONE);
}

static void teardown(void)
{
    be_close(be);
    tmpdir_remove(dir);
}

/* Loads the model, and waits until its weights are kept. */
static model *load_as(uint64_t floor_bytes, weights_form weights)
{
    model *m;
    err e = {0};
    model_options o = {
        .packed_dir = kept_dir, .packed_floor_bytes = floor_bytes, .weights = weights};
    ck_assert_msg(model_load_with(&m, model_dir, be, 4, 4, &o, &e) == ERR_NONE, "%s", e.msg);
    while (!model_packed_settled(m)) (void)nanosleep(&(struct timespec){0, 1000000}, NULL);
    return m;
}

static model *load(uint64_t floor_bytes)
{
    return load_as(floor_bytes, WEIGHTS_AUTO);
}

static void expect_start(bool mapped)
{
    model *m = load(0);
    ck_assert_int_eq(model_packed_mapped(m), mapped);
    model_destroy(m);
}

/* How many files are kept; the name of the last goes to `path`. */
static int kept_files(char path[512])
{
    int n = 0;
    DIR *d = opendir(kept_dir);
    if (!d) return 0;
    for (struct dirent *de; (de = readdir(d)) != NULL;) {
        if (de->d_name[0] == '.') continue;
        snprintf(path, 512, "%s/%s", kept_dir, de->d_name);
        n++;
    }
    closedir(d);
    return n;
}

static void forward(model *m, float out[VOCABULARY])
{
    kv_pool *kv;
    err e = {0};
    attn_shape shape = model_attn_shape(m);
    ck_assert_int_eq(be_kv_create(be, &kv, &shape, 1, &e), ERR_NONE);
    int32_t token = 3, pos = 0, page = 0, row = 0;
    step_seq seq = {0, 1, 0, &page, 1, 0};
    step_seg seg = {0, 1, NULL};
    step s = {1, &token, &pos, 1, &seq, 1, &seg, 1, &row, NULL, 0, NULL, 0};
    const float *logits;
    ck_assert_int_le(model_get_config(m)->n_vocab, VOCABULARY);
    ck_assert_int_eq(model_forward(m, kv, &s, &logits, &e), ERR_NONE);
    memcpy(out, logits, (size_t)model_get_config(m)->n_vocab * sizeof(float));
    be_kv_destroy(be, kv);
}

static void expect_same(const weight *a, const weight *b)
{
    ck_assert_uint_eq(be_weight_bytes(a), be_weight_bytes(b));
    ck_assert_mem_eq(be_weight_packed(be, a), be_weight_packed(be, b), be_weight_bytes(a));
}

static void expect_same_answers(model *a, model *b)
{
    float first[VOCABULARY] = {0}, second[VOCABULARY] = {0};
    forward(a, first);
    forward(b, second);
    ck_assert_mem_eq(first, second, sizeof(first));
    ck_assert(first[0] != first[1]);
}

START_TEST(the_next_start_maps_the_same_bits)
{
    model *a = load(0), *b = load(0);
    const model_config *ca = model_get_config(a), *cb = model_get_config(b);
    ck_assert(!model_packed_mapped(a) && model_packed_mapped(b));
    for (int i = 0; i < ca->n_layer; i++) {
        for (int p = PROJ_Q; p < PROJ_COUNT; p++)
            if (model_has_proj(ca, i, (proj)p))
                expect_same(model_proj_weight(a, i, (proj)p), model_proj_weight(b, i, (proj)p));
    }
    expect_same(model_head_weight(a), model_head_weight(b));
    ck_assert_uint_eq(model_weight_bytes(a), model_weight_bytes(b));
    ck_assert(ca->head_print == cb->head_print && ca->embed_print == cb->embed_print);
    ck_assert(ca->head_type == cb->head_type && ca->head_print != 0);
    expect_same_answers(a, b);
    model_destroy(a);
    model_destroy(b);
}
END_TEST

/* What is quantised at load is quantised once; another form is another key. */
START_TEST(quantised_weights_are_kept)
{
    static const weights_form forms[] = {WEIGHTS_Q8, WEIGHTS_FP8, WEIGHTS_Q4};
    size_t last = SIZE_MAX;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        model *a = load_as(0, forms[i]), *b = load_as(0, forms[i]);
        ck_assert(!model_packed_mapped(a) && model_packed_mapped(b));
        ck_assert_uint_eq(model_weight_bytes(a), model_weight_bytes(b));
        ck_assert_uint_lt(model_weight_bytes(a), last);
        last = model_weight_bytes(a);
        expect_same_answers(a, b);
        model_destroy(a);
        model_destroy(b);
    }
}
END_TEST

/* The file is written by pieces, whose borders lie within matrices or between them. */
START_TEST(matrices_lie_across_pieces)
{
    enum { N = 5, MIB = 1 << 20 };
    static const size_t bytes[N] = {5 * MIB + 123, 3 * MIB - 4096, 20, 17 * MIB + 1, 4096};
    const uint64_t notes[PACKED_NOTES] = {3, 4};
    const packed_plan plan = {.key = 77, .n = N, .bytes = bytes};
    const void *data[N];
    for (size_t i = 0; i < N; i++) {
        uint8_t *m = malloc(bytes[i]);
        for (size_t k = 0; k < bytes[i]; k++) m[k] = (uint8_t)(k * 31 + k / 4096 + i);
        data[i] = m;
    }
    packed_keeper *k = packed_keep(kept_dir, 0, &plan, data, notes);
    ck_assert_ptr_nonnull(k);
    while (!packed_keep_done(k)) (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    packed_keep_end(k);
    packed_file *f = packed_open(kept_dir, &plan, be);
    ck_assert_ptr_nonnull(f);
    for (size_t i = 0; i < N; i++) {
        ck_assert_int_eq(memcmp(packed_at(f, i), data[i], bytes[i]), 0);
        free((void *)data[i]);
    }
    packed_close(f);
}
END_TEST

/* An engine that restarts maps them again. */
START_TEST(a_model_that_comes_back_maps)
{
    float first[VOCABULARY] = {0}, again[VOCABULARY] = {0};
    err e = {0};
    model *m = load(0);
    forward(m, first);
    model_unload(m);
    ck_assert_msg(model_reload(m, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(model_packed_mapped(m));
    forward(m, again);
    ck_assert_mem_eq(first, again, sizeof(first));
    model_destroy(m);
}
END_TEST

static void flip(const char *path, off_t at)
{
    char byte;
    int fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= (char)(1 << (at & 7));
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    (void)close(fd);
}

/* A byte of the header, whichever it is: the notes, too. */
START_TEST(a_changed_header_is_seen)
{
    char path[512];
    expect_start(false);
    ck_assert_int_eq(kept_files(path), 1);
    for (int at = 0; at < HEADER_BYTES; at += 5) {
        flip(path, at);
        expect_start(false);
        expect_start(true);
    }
}
END_TEST

/* The offsets of all bytes of the file that are not zero: a flip in padding changes nothing. */
static size_t used_offsets(const char *path, off_t **out)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    char *all = malloc((size_t)st.st_size);
    off_t *at = malloc((size_t)st.st_size * sizeof(*at));
    size_t n = 0;
    int fd = open(path, O_RDONLY);
    ck_assert_int_eq(pread(fd, all, (size_t)st.st_size, 0), st.st_size);
    (void)close(fd);
    for (off_t i = 0; i < st.st_size; i++)
        if (all[i]) at[n++] = i;
    free(all);
    *out = at;
    return n;
}

/* One flipped bit at random places of the matrices, the table and the header: the next start packs
 * the weights again, and the answers stay the same. */
START_TEST(a_flipped_bit_is_never_served)
{
    char path[512];
    off_t *at;
    float first[VOCABULARY] = {0}, again[VOCABULARY] = {0};
    unsigned seed = (unsigned)time(NULL), r = seed;
    ck_assert_int_eq(packed_check(kept_dir), PACKED_NONE);
    model *m = load(0);
    forward(m, first);
    model_destroy(m);
    ck_assert_int_eq(kept_files(path), 1);
    size_t n = used_offsets(path, &at);
    printf("a_flipped_bit_is_never_served: seed %u\n", seed);
    for (int i = 0; i < 200; i++) {
        ck_assert_int_eq(packed_check(kept_dir), PACKED_INTACT);
        off_t where = at[(size_t)rand_r(&r) % n];
        flip(path, where);
        ck_assert_msg(packed_check(kept_dir) == PACKED_DAMAGED, "seed %u, byte %lld", seed,
                      (long long)where);
        m = load(0);
        ck_assert_msg(!model_packed_mapped(m), "seed %u, byte %lld", seed, (long long)where);
        forward(m, again);
        ck_assert_mem_eq(first, again, sizeof(first));
        model_destroy(m);
    }
    free(at);
    expect_start(true);
}
END_TEST

START_TEST(a_file_of_another_length_is_none)
{
    char path[512];
    struct stat st;
    expect_start(false);
    ck_assert_int_eq(kept_files(path), 1);
    ck_assert_int_eq(stat(path, &st), 0);
    const off_t lengths[] = {0, 20, HEADER_BYTES, st.st_size / 2, st.st_size - 1, st.st_size + 1};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        ck_assert_int_eq(truncate(path, lengths[i]), 0);
        expect_start(false);
        expect_start(true);
    }
}
END_TEST

/* The model's files were written to: another key, and the file of the old one goes. */
/* Under a running engine a file that gets shorter is a failure of the device. */
START_TEST(a_file_that_shrinks_fails_the_step)
{
    char path[512];
    float first[VOCABULARY] = {0};
    kv_pool *kv;
    err e = {0};
    expect_start(false);
    ck_assert_int_eq(kept_files(path), 1);
    mapping_watch();
    model *m = load(0);
    ck_assert(model_packed_mapped(m));
    forward(m, first);
    ck_assert_int_eq(truncate(path, 0), 0);
    attn_shape shape = model_attn_shape(m);
    ck_assert_int_eq(be_kv_create(be, &kv, &shape, 1, &e), ERR_NONE);
    int32_t token = 3, pos = 0, page = 0, row = 0;
    step_seq seq = {0, 1, 0, &page, 1, 0};
    step_seg seg = {0, 1, NULL};
    step s = {1, &token, &pos, 1, &seq, 1, &seg, 1, &row, NULL, 0, NULL, 0};
    const float *logits;
    ck_assert_int_eq(model_forward(m, kv, &s, &logits, &e), ERR_DEVICE);
    ck_assert_ptr_nonnull(strstr(e.msg, "shorter"));
    ck_assert_int_eq(be_remedy_of(be), BE_HEALS_NEVER);
    be_kv_destroy(be, kv);
    model_destroy(m);
}
END_TEST

START_TEST(another_model_is_packed_anew)
{
    char first[512], second[512], shard[512], foreign[512];
    expect_start(false);
    ck_assert_int_eq(kept_files(first), 1);
    snprintf(foreign, sizeof(foreign), "%s/notes", kept_dir);
    ck_assert_int_eq(close(open(foreign, O_CREAT | O_WRONLY, 0600)), 0);
    snprintf(shard, sizeof(shard), "%s/model-00002-of-00003.safetensors", model_dir);
    const struct timespec times[2] = {{1000, 0}, {1000, 1}};
    ck_assert_int_eq(utimensat(AT_FDCWD, shard, times, 0), 0);
    expect_start(false);
    ck_assert_int_eq(access(first, F_OK), -1);
    ck_assert_int_eq(access(foreign, F_OK), 0); /* not ours to remove */
    ck_assert_int_eq(unlink(foreign), 0);
    ck_assert_int_eq(kept_files(second), 1);
    ck_assert_str_ne(first, second);
    expect_start(true);
}
END_TEST

START_TEST(where_there_is_no_room_nothing_is_kept)
{
    char path[512];
    model *m = load(UINT64_MAX);
    ck_assert(!model_packed_mapped(m));
    model_destroy(m);
    ck_assert_int_eq(kept_files(path), 0);
    expect_start(false);
}
END_TEST

/* Whoever ends in the middle leaves a whole file or none. */
START_TEST(an_end_in_the_middle)
{
    char path[512];
    for (int i = 0; i < 20; i++) {
        model *m;
        model_options o = {.packed_dir = kept_dir};
        ck_assert_int_eq(model_load_with(&m, model_dir, be, 4, 4, &o, NULL), ERR_NONE);
        model_destroy(m);
        int n = kept_files(path);
        ck_assert_int_le(n, 1);
        if (n == 1) ck_assert_ptr_nonnull(strstr(path, ".weights"));
        if (n == 1) ck_assert_int_eq(unlink(path), 0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("packed");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_next_start_maps_the_same_bits);
    tcase_add_test(tc, quantised_weights_are_kept);
    tcase_add_test(tc, matrices_lie_across_pieces);
    tcase_add_test(tc, a_model_that_comes_back_maps);
    tcase_add_test(tc, a_changed_header_is_seen);
    tcase_add_test(tc, a_flipped_bit_is_never_served);
    tcase_add_test(tc, a_file_of_another_length_is_none);
    tcase_add_test(tc, another_model_is_packed_anew);
    tcase_add_test(tc, where_there_is_no_room_nothing_is_kept);
    tcase_add_test(tc, an_end_in_the_middle);
    tcase_add_test(tc, a_file_that_shrinks_fails_the_step); /* the loss is this process's */
    suite_add_tcase(s, tc);
    return run_suite(s);
}
