/* bench_logits.c -- what a model says after each token of some sequences: bench_logits MODEL
 *
 * A line of stdin is a sequence of token ids; for each of its tokens the logits [n_vocab] of the
 * next one go to stdout, f32.  LORAD_BENCH_ISA and LORAD_BENCH_WEIGHTS as bench_engine has them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/model/model.h"

enum { TOKENS_MAX = 512, PAGES = 64 };

static void die(const char *what)
{
    fprintf(stderr, "bench_logits: %s\n", what);
    exit(2);
}

static int read_ids(char *line, int32_t *token, int n_vocab)
{
    int n = 0;
    for (char *p = strtok(line, " \n"); p; p = strtok(NULL, " \n")) {
        long id = strtol(p, NULL, 10);
        if (n == TOKENS_MAX || id < 0 || id >= n_vocab) die("a line is too long, or has other ids");
        token[n++] = (int32_t)id;
    }
    return n;
}

static void say(model *m, kv_pool *kv, const int32_t *token, int n)
{
    int32_t pos[TOKENS_MAX], page[PAGES];
    for (int i = 0; i < n; i++) pos[i] = i;
    for (int i = 0; i < PAGES; i++) page[i] = i;
    step_seq seq = {0, n, 0, page, PAGES};
    step_seg seg = {0, n, NULL};
    step s = {.n_rows = n,
              .token = token,
              .pos = pos,
              .n_seq = 1,
              .seq = &seq,
              .n_seg = 1,
              .seg = &seg,
              .n_logit = n,
              .logit_row = pos};
    const float *logits;
    err e;
    if (model_forward(m, kv, &s, &logits, &e)) die(e.msg);
    for (int i = 0; i < n; i++) {
        size_t n_vocab = (size_t)model_get_config(m)->n_vocab;
        const float *row = logits + (size_t)i * (size_t)model_logit_stride(m);
        if (fwrite(row, sizeof(*row), n_vocab, stdout) != n_vocab) die("cannot write");
    }
}

int main(int argc, char **argv)
{
    static char line[16 * TOKENS_MAX];
    int32_t token[TOKENS_MAX];
    err e;
    backend *be;
    model *m;
    kv_pool *kv;
    const char *isa = getenv("LORAD_BENCH_ISA"), *weights = getenv("LORAD_BENCH_WEIGHTS");
    backend_config bc = {.isa = isa ? isa : "auto"};
    model_options options = {.weights = model_weights_form(weights ? weights : "auto")};
    if (argc != 2) die("usage: bench_logits MODEL");
    if (be_open(&be, &backend_cpu, &bc, &e)) die(e.msg);
    if (model_load_with(&m, argv[1], be, TOKENS_MAX, TOKENS_MAX, &options, &e)) die(e.msg);
    attn_shape shape = model_attn_shape(m);
    if (be_kv_create(be, &kv, &shape, PAGES, &e)) die(e.msg);
    while (fgets(line, sizeof(line), stdin)) {
        int n = read_ids(line, token, model_get_config(m)->n_vocab);
        if (n > 0) say(m, kv, token, n);
    }
    be_kv_destroy(be, kv);
    model_destroy(m);
    be_close(be);
    return 0;
}
