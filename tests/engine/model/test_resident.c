/* test_resident.c -- weights within a budget: how it is divided, which bytes are in memory at each
 * use of a block (by mincore() on a mapping of the same file), and that answers have the same bits.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/log.h"
#include "engine/model/model.h"
#include "engine/model/resident.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { PAGE = 4096, LAYERS = 10, BLOCKS = LAYERS + 1, EXPERTS = 6, BLOCK = 40 * PAGE };
enum { ONE_EXPERT = 8 * PAGE, VOCABULARY = 512, ROWS = 4 };

static char dir[64];
static backend *be;

static void setup(void)
{
    backend_config cfg = {.n_threads = 2};
    log_setup(LOG_NOTHING, LOG_TEXT);
    tmpdir_make(dir);
    ck_assert_int_eq(be_open(&be, &backend_cpu, &cfg, NULL), ERR_NONE);
}

static void teardown(void)
{
    be_close(be);
    tmpdir_remove(dir);
}

/* -------------------------------------------------------------------------- divide -- */

START_TEST(a_budget_for_all_streams_nothing)
{
    const size_t block[] = {10, 10, 10, 5};
    const resident_sizes s = {.n_block = 4, .block = block};
    bool stream[4];
    resident_plan p;
    ck_assert_int_eq(resident_divide(&s, 35, &p, stream, NULL), ERR_NONE);
    ck_assert(!stream[0] && !stream[1] && !stream[2] && !stream[3]);
    ck_assert(p.kept == 35 && p.streamed == 0 && p.token_bytes == 0);
}
END_TEST

START_TEST(streamed_layers_are_spread)
{
    size_t block[21];
    bool stream[21];
    resident_plan p;
    for (int i = 0; i < 21; i++) block[i] = 100;
    const resident_sizes s = {.n_block = 21, .block = block};
    for (size_t budget = 200; budget < 2200; budget += 50) {
        ck_assert_int_eq(resident_divide(&s, budget, &p, stream, NULL), ERR_NONE);
        ck_assert_uint_le(p.kept + p.window, budget);
        ck_assert_uint_eq(p.kept + p.streamed, 2100);
        if (budget < 2100) ck_assert_uint_ge(p.kept + p.window + 100, budget / 100 * 100);
        int run = 0, n = 0;
        for (int i = 0; i < 20; i++) n += stream[i];
        for (int i = 0; i < 20; i++) {
            run = stream[i] ? 0 : run + 1;
            if (n > 0) ck_assert_int_le(run, 20 / n + 1);
        }
    }
}
END_TEST

START_TEST(too_little_is_refused_with_the_least)
{
    const size_t block[] = {10, 30, 20, 5};
    const resident_sizes s = {
        .n_block = 4, .block = block, .n_expert = 8, .top_k = 2, .expert = 3, .experts = 72};
    resident_plan p;
    err e;
    ck_assert_int_eq(resident_divide(&s, 55, &p, NULL, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "model.resident_bytes is 55"));
    ck_assert_ptr_nonnull(strstr(e.msg, "at least 56 bytes"));
    ck_assert_int_eq(resident_divide(&s, 56, &p, NULL, &e), ERR_NONE);
}
END_TEST

START_TEST(experts_get_what_layers_leave)
{
    const size_t block[] = {10, 10, 10};
    const resident_sizes s = {.n_block = 3,
                              .block = block,
                              .n_expert = 10,
                              .top_k = 2,
                              .expert = 4,
                              .experts = 80,
                              .expert_layers = 2};
    resident_plan p;
    ck_assert_int_eq(resident_divide(&s, 30 + 8 + 40, &p, NULL, NULL), ERR_NONE);
    ck_assert_uint_eq(p.experts, 40);
    ck_assert_double_eq_tol(p.token_bytes, 0.5 * 2 * 2 * 4, 1e-9); /* half of them are not there */
}
END_TEST

/* ---------------------------------------------------------------------------- file -- */

static size_t file_bytes;

static int make_file(void)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/weights", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    ck_assert_int_ge(fd, 0);
    uint32_t *page = malloc(PAGE);
    ck_assert_ptr_nonnull(page);
    file_bytes = (size_t)BLOCKS * BLOCK + (size_t)LAYERS * EXPERTS * ONE_EXPERT;
    for (size_t i = 0; i < file_bytes / PAGE; i++) {
        for (size_t k = 0; k < PAGE / sizeof(*page); k++) page[k] = (uint32_t)(i * 31 + k);
        ck_assert_int_eq(write(fd, page, PAGE), PAGE);
    }
    free(page);
    ck_assert_int_eq(fsync(fd), 0);
    return fd;
}

/* Bytes of [at, at + bytes) in the page cache. */
static size_t cached(int fd, size_t at, size_t bytes)
{
    static unsigned char there[1 << 16];
    ck_assert_uint_le(bytes / PAGE, sizeof(there));
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)at);
    ck_assert(map != MAP_FAILED);
    ck_assert_int_eq(mincore(map, bytes, there), 0);
    ck_assert_int_eq(munmap(map, bytes), 0);
    size_t n = 0;
    for (size_t i = 0; i < bytes / PAGE; i++) n += there[i] & 1;
    return n * PAGE;
}

/* Layers, then the output layer, then experts. */
static resident_file lay_out(int fd, resident_run *run, bool experts)
{
    size_t at = 0;
    for (int i = 0; i < BLOCKS; i++, at += BLOCK) run[i] = (resident_run){at, BLOCK};
    for (int i = 0; i < LAYERS * EXPERTS; i++, at += ONE_EXPERT)
        run[BLOCKS + i] = (resident_run){at, ONE_EXPERT};
    void *map = mmap(NULL, file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert(map != MAP_FAILED);
    return (resident_file){.map = map,
                           .fd = fd,
                           .bytes = file_bytes,
                           .n_block = BLOCKS,
                           .n_expert = experts ? EXPERTS : 0,
                           .top_k = experts ? 2 : 0,
                           .block = run,
                           .expert = experts ? run + BLOCKS : NULL};
}

static void expect_content(const resident_file *f, const resident_run *r)
{
    for (size_t at = r->at; at < r->at + r->bytes; at += PAGE) {
        uint32_t word;
        memcpy(&word, f->map + at, sizeof(word));
        ck_assert_uint_eq(word, (uint32_t)(at / PAGE * 31));
    }
}

static size_t resident_bytes(const resident *r)
{
    resident_counts c;
    resident_count(r, &c);
    return c.resident_bytes;
}

static uint64_t read_bytes(const resident *r)
{
    resident_counts c;
    resident_count(r, &c);
    return c.read_bytes;
}

/* Half of the blocks fit.  Whatever is in use is in memory; in all it is never more than the
 * budget, also not in the page cache. */
START_TEST(a_cycle_stays_within_the_budget)
{
    int fd = make_file();
    resident_run run[BLOCKS + LAYERS * EXPERTS];
    resident_file f = lay_out(fd, run, false);
    const size_t budget = (size_t)BLOCKS * BLOCK / 2;
    resident *r;
    ck_assert_int_eq(resident_create(&r, &f, budget, NULL), ERR_NONE);
    for (int turn = 0; turn < 20; turn++) {
        int last = turn % 5 == 4 ? LAYERS : BLOCKS; /* some steps have no logits */
        for (int i = 0; i < last; i++) {
            resident_use(r, i);
            ck_assert_uint_eq(cached(fd, run[i].at, BLOCK), BLOCK);
            expect_content(&f, &run[i]);
            ck_assert_uint_le(resident_bytes(r), budget);
            ck_assert_uint_le(cached(fd, 0, file_bytes), budget);
        }
    }
    /* What stays was read once: a step reads the others. */
    uint64_t before = read_bytes(r), streamed;
    for (int i = 0; i < BLOCKS; i++) resident_use(r, i);
    streamed = read_bytes(r) - before;
    resident_plan p;
    size_t block[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) block[i] = BLOCK;
    const resident_sizes s = {.n_block = BLOCKS, .block = block};
    ck_assert_int_eq(resident_divide(&s, budget, &p, NULL, NULL), ERR_NONE);
    ck_assert_uint_ge(streamed + BLOCK, p.streamed); /* the last one may still be on its way */
    ck_assert_uint_le(streamed, p.streamed + BLOCK);
    resident_destroy(r);
    ck_assert_int_eq(munmap(f.map, f.bytes), 0);
    ck_assert_int_eq(close(fd), 0);
}
END_TEST

/* Two experts of each layer are used in most steps, another one now and then. */
START_TEST(frequent_experts_stay)
{
    int fd = make_file();
    resident_run run[BLOCKS + LAYERS * EXPERTS];
    resident_file f = lay_out(fd, run, true);
    const size_t budget = (size_t)BLOCKS * BLOCK + (2 + 2 * LAYERS) * (size_t)ONE_EXPERT;
    const size_t layer = (size_t)EXPERTS * ONE_EXPERT;
    resident *r;
    ck_assert_int_eq(resident_create(&r, &f, budget, NULL), ERR_NONE);
    uint64_t before = 0;
    for (int turn = 0; turn < 40; turn++) {
        /* First the wrong ones are kept: the frequent ones have to take their place. */
        int rare[2] = {turn % 2, 4}, usual[2] = {2, 3}, all[EXPERTS] = {0, 1, 2, 3, 4, 5};
        bool is_rare = turn < 2 || turn % 8 == 7;
        if (turn == 20) before = read_bytes(r);
        for (int i = 0; i < LAYERS; i++) {
            resident_use(r, i);
            resident_experts(r, i,
                             turn == 10 ? all
                             : is_rare  ? rare
                                        : usual,
                             turn == 10 ? EXPERTS : 2);
            const resident_run *e = run + BLOCKS + i * EXPERTS;
            expect_content(&f, e + (is_rare ? 4 : 3));
            ck_assert_uint_le(resident_bytes(r), budget + (turn == 10 ? layer : 0));
        }
        resident_use(r, LAYERS);
        ck_assert_uint_le(cached(fd, 0, file_bytes), budget + layer);
        /* The last layer's experts are dropped in the background. */
        while (resident_bytes(r) > budget) (void)nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    /* Of the last 20 steps (20 to 39) three used rare ones. */
    ck_assert_uint_eq(read_bytes(r) - before, 3ULL * 2 * LAYERS * ONE_EXPERT);
    resident_destroy(r);
    ck_assert_int_eq(munmap(f.map, f.bytes), 0);
    ck_assert_int_eq(close(fd), 0);
}
END_TEST

START_TEST(the_disk_is_measured)
{
    int fd = make_file();
    char path[128];
    double rate = 0;
    err e;
    snprintf(path, sizeof(path), "%s/weights", dir);
    ck_assert_int_eq(resident_disk_rate(path, 1 << 20, &rate, &e), ERR_NONE);
    ck_assert(rate > 0);
    snprintf(path, sizeof(path), "%s/none", dir);
    ck_assert_int_eq(resident_disk_rate(path, 1 << 20, &rate, &e), ERR_IO);
    ck_assert_int_eq(close(fd), 0);
}
END_TEST

/* --------------------------------------------------------------------------- model -- */

static model *load(const char *path, size_t budget, err_code want, err *e)
{
    char packed[80];
    model *m = NULL;
    snprintf(packed, sizeof(packed), "%s/packed", dir);
    model_options o = {.packed_dir = packed, .resident_bytes = budget};
    err_code rc = model_load_with(&m, path, be, ROWS, ROWS, &o, e);
    ck_assert_msg(rc == want, "%s: %s", path, rc ? e->msg : "was loaded");
    while (m && !model_packed_settled(m)) (void)nanosleep(&(struct timespec){0, 1000000}, NULL);
    return m;
}

/* Prompts of four rows, then three rows one by one. */
static void answers(model *m, float *out)
{
    kv_pool *kv;
    err e = {0};
    attn_shape shape = model_attn_shape(m);
    int n = model_get_config(m)->n_vocab;
    ck_assert_int_le(n, VOCABULARY);
    ck_assert_int_eq(be_kv_create(be, &kv, &shape, 1, &e), ERR_NONE);
    for (int k = 0; k < 4; k++) {
        int rows = k == 0 ? ROWS : 1, at = k == 0 ? 0 : ROWS + k - 1, last = rows - 1;
        int32_t token[ROWS], pos[ROWS], page = 0;
        for (int i = 0; i < rows; i++) {
            pos[i] = at + i;
            token[i] = (at + i) * 7 % 50 + 1;
        }
        step_seq seq = {0, rows, at, &page, 1, 0};
        step_seg seg = {0, rows, NULL};
        step s = {rows, token, pos, 1, &seq, 1, &seg, 1, &last, NULL, 0, NULL, 0};
        const float *logits;
        ck_assert_msg(model_forward(m, kv, &s, &logits, &e) == ERR_NONE, "%s", e.msg);
        memcpy(out + (size_t)k * VOCABULARY, logits, (size_t)n * sizeof(float));
    }
    be_kv_destroy(be, kv);
}

/* The least budget that the refusal names. */
static size_t least_of(const char *path)
{
    err e;
    ck_assert_ptr_null(load(path, 1, ERR_INPUT, &e));
    const char *at = strstr(e.msg, "at least ");
    ck_assert_msg(at != NULL, "%s", e.msg);
    return strtoull(at + 9, NULL, 10);
}

/* With the least budget, the least and some, half, and all: each against the plain one. */
static void expect_same_bits(const char *path)
{
    float *plain = calloc(8, VOCABULARY * sizeof(float)), *mine = plain + (size_t)4 * VOCABULARY;
    ck_assert_ptr_nonnull(plain);
    err e = {0};
    size_t least = least_of(path);
    model *m = load(path, least, ERR_NONE, &e); /* packs to the disk */
    size_t all = model_weight_bytes(m);
    answers(m, mine);
    resident_counts c;
    model_resident(m, &c);
    ck_assert_uint_eq(c.budget_bytes, least);
    ck_assert_uint_gt(c.read_bytes, all); /* some of them again */
    model_destroy(m);
    m = load(path, 0, ERR_NONE, &e);
    ck_assert(model_packed_mapped(m)); /* the same file serves both */
    answers(m, plain);
    model_resident(m, &c);
    ck_assert(c.budget_bytes == 0 && plain[0] != plain[1]);
    model_destroy(m);
    ck_assert_mem_eq(plain, mine, (size_t)4 * VOCABULARY * sizeof(float));
    for (int i = 1; i < 4; i++) {
        m = load(path, least + (2 * all - least) * (size_t)i / 3, ERR_NONE, &e);
        answers(m, mine);
        model_destroy(m);
        ck_assert_mem_eq(plain, mine, (size_t)4 * VOCABULARY * sizeof(float));
    }
    free(plain);
}

static const char *const models[] = {
    "fixtures/models/llama-bf16",         "fixtures/models/qwen3-f32",
    "fixtures/families/models/qwen3-moe", "fixtures/families/models/gemma4-moe",
    "fixtures/families/models/gpt-oss",   "fixtures/families/models/deepseek-v3", /* latents */
    "fixtures/families/models/gemma4",    "fixtures/families/models/phi3",
};

START_TEST(answers_have_the_same_bits)
{
    expect_same_bits(models[_i]);
}
END_TEST

START_TEST(no_packed_directory_is_refused)
{
    model *m;
    err e;
    model_options o = {.resident_bytes = 1 << 20};
    ck_assert_int_eq(model_load_with(&m, models[0], be, ROWS, ROWS, &o, &e), ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.msg, "model.resident_bytes"));
}
END_TEST

START_TEST(streams_of_other_layers_are_refused)
{
    model *m;
    err e;
    model_options o = {.resident_bytes = 1 << 30, .packed_dir = dir};
    const char *path = "fixtures/families/models/gemma3n";
    ck_assert_int_eq(model_load_with(&m, path, be, ROWS, ROWS, &o, &e), ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.msg, "model.resident_bytes must be 0"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("resident");
    TCase *c = tcase_create("divide");
    tcase_add_test(c, a_budget_for_all_streams_nothing);
    tcase_add_test(c, streamed_layers_are_spread);
    tcase_add_test(c, too_little_is_refused_with_the_least);
    tcase_add_test(c, experts_get_what_layers_leave);
    suite_add_tcase(s, c);
    c = tcase_create("file");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, a_cycle_stays_within_the_budget);
    tcase_add_test(c, frequent_experts_stay);
    tcase_add_test(c, the_disk_is_measured);
    suite_add_tcase(s, c);
    c = tcase_create("model");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, answers_have_the_same_bits, 0, sizeof(models) / sizeof(models[0]));
    tcase_add_test(c, no_packed_directory_is_refused);
    tcase_add_test(c, streams_of_other_layers_are_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
