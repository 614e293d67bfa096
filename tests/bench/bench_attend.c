/* bench_attend.c -- decode attention of one long context with one kv head, by threads or by types.
 *
 *   bench_attend [CONTEXT [HEADS]]
 *   bench_attend pages
 *
 * One row, HEADS heads (8) of 128 on one kv head, 16 layers (so that the keys come from memory, as
 * they do in a step).  Prints one line of JSON: seconds of all layers, the middle of 25 turns, in
 * turns: of bf16 on one thread and on as many as there are cores, and of int8 on these; and the
 * bytes of bf16's keys and values.  LORAD_BENCH_ISA as elsewhere.
 *
 * "pages": by the number of tokens in a page, bf16 and int8, on one thread, by its processor time.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/base/clock.h"

enum { LAYERS = 16, HEADS = 8, HEADS_MAX = 64, DIM = 128, TURNS = 25, CONTEXT = 8192 };

typedef struct {
    backend *be;
    kv_pool *kv;
    int32_t *page;
    int n_pages;
    double seconds[TURNS];
} side;

static void die(const char *what)
{
    fprintf(stderr, "bench_attend: %s\n", what);
    exit(2);
}

static void open_side(side *s, int threads, int page_tokens, int context, int heads, dtype type)
{
    err e;
    const char *isa = getenv("LORAD_BENCH_ISA");
    backend_config bc = {
        .n_threads = threads, .isa = isa ? isa : "auto", .page_tokens = page_tokens};
    if (be_open(&s->be, &backend_cpu, &bc, &e)) die(e.msg);
    attn_shape shape = {.n_layer = LAYERS,
                        .n_head = heads,
                        .n_kv_head = 1,
                        .head_dim = DIM,
                        .kv_type = type,
                        .scale = 1 / sqrtf((float)DIM)};
    s->n_pages = context / be_caps(s->be)->page_tokens + 1;
    if (be_kv_create(s->be, &s->kv, &shape, s->n_pages, &e)) die(e.msg);
    s->page = malloc((size_t)s->n_pages * sizeof(*s->page));
    size_t bytes = be_kv_page_bytes(s->be, &shape);
    uint16_t *some = malloc(bytes);
    if (!s->page || !some) die("no memory");
    for (size_t i = 0; i < bytes / 2; i++)
        some[i] = (uint16_t)(0x3C00U + i % 199U); /* small numbers */
    for (int i = 0; i < s->n_pages; i++) {
        s->page[i] = i % 7 * (s->n_pages / 7) + i / 7; /* here and there, as in a server */
        if (s->page[i] >= s->n_pages || i >= s->n_pages / 7 * 7) s->page[i] = i;
        be_kv_load(s->be, s->kv, i, some);
    }
    free(some);
}

static double turn(side *s, int context, int64_t now_us(void))
{
    static float q[HEADS_MAX * DIM], out[HEADS_MAX * DIM];
    int32_t pos = context - 1;
    for (int i = 0; i < HEADS_MAX * DIM; i++) q[i] = 0.01F * (float)(i % 61);
    step_seq seq = {.row0 = 0, .n_rows = 1, .pos0 = pos, .page = s->page, .n_page = s->n_pages};
    step st = {.n_rows = 1, .pos = &pos, .n_seq = 1, .seq = &seq};
    int64_t from = now_us();
    for (int layer = 0; layer < LAYERS; layer++) be_attend(s->be, s->kv, out, q, NULL, &st, layer);
    if (be_sync(s->be, NULL)) die("attention failed");
    return (double)(now_us() - from) / 1e6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle(side *s)
{
    qsort(s->seconds, TURNS, sizeof(double), by_value);
    return s->seconds[TURNS / 2];
}

/* Sizes of pages in turns. */
static int measure_pages(void)
{
    enum { SIZES = 7, HEADS_OF_GROUP = 4 };
    static const dtype types[] = {DT_BF16, DT_I8};
    static side s[2][SIZES];
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < SIZES; i++)
            open_side(&s[t][i], 1, 1 << i, CONTEXT, HEADS_OF_GROUP, types[t]);
    for (int n = -1; n < TURNS; n++)
        for (int k = 0; k < 2 * SIZES; k++) {
            side *one = &s[k / SIZES][k % SIZES];
            double took = turn(one, CONTEXT, clock_thread_us);
            if (n >= 0) one->seconds[n] = took;
        }
    printf("{\"backend\":\"%s\",\"context\":%d,\"heads\":%d", be_caps(s[0][0].be)->detail, CONTEXT,
           HEADS_OF_GROUP);
    for (int t = 0; t < 2; t++) {
        printf(",\"%s_s\":{", t ? "int8" : "bf16");
        for (int i = 0; i < SIZES; i++)
            printf("%s\"%d\":%.6f", i ? "," : "", 1 << i, middle(&s[t][i]));
        printf("}");
    }
    printf("}\n");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "pages") == 0) return measure_pages();
    int context = argc > 1 ? atoi(argv[1]) : CONTEXT, heads = argc > 2 ? atoi(argv[2]) : HEADS;
    if (argc > 3 || context < 1 || heads < 1 || heads > HEADS_MAX)
        die("usage: bench_attend [CONTEXT [HEADS]]");
    enum { ONE, ALL, INT8, SIDES };
    side s[SIDES] = {0};
    open_side(&s[ONE], 1, 0, context, heads, DT_BF16);
    open_side(&s[ALL], 0, 0, context, heads, DT_BF16);
    open_side(&s[INT8], 0, 0, context, heads, DT_I8);
    for (int i = -1; i < TURNS; i++) { /* the first is for the caches and the threads */
        for (int k = 0; k < SIDES; k++) {
            double took = turn(&s[k], context, clock_now_us);
            if (i >= 0) s[k].seconds[i] = took;
        }
    }
    printf("{\"backend\":\"%s\",\"context\":%d,\"heads\":%d,\"one_thread_s\":%.6f,"
           "\"all_threads_s\":%.6f,\"int8_s\":%.6f,\"kv_bytes\":%zu}\n",
           be_caps(s[ALL].be)->detail, context, heads, middle(&s[ONE]), middle(&s[ALL]),
           middle(&s[INT8]), (size_t)LAYERS * 2 * DIM * 2 * (size_t)context);
    return 0;
}
