/* bench_logits.c -- what a model says after each token of some sequences: bench_logits MODEL [ids]
 *
 * A line of stdin is a sequence of token ids; for each of its tokens the logits [n_vocab] of the
 * next one go to stdout, f32.  LORAD_BENCH_ISA, LORAD_BENCH_WEIGHTS and LORAD_BENCH_ACTIVATIONS as
 * bench_engine has them; LORAD_BENCH_LORA is the largest value of a random adapter of rank 16 on
 * all layers.  With `ids` stdin is a text, and its token ids are printed, without those that a
 * tokenizer adds, after a line with the size of the vocabulary and the first of those (-1: none).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "tests/bench/random_adapter.h"

enum { TOKENS_MAX = 512, PAGES = 64, TEXT_MAX = 1 << 20, RANK = 16 };

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

static void say(model *m, kv_pool *kv, const lora_view *lora, const int32_t *token, int n)
{
    int32_t pos[TOKENS_MAX], page[PAGES];
    for (int i = 0; i < n; i++) pos[i] = i;
    for (int i = 0; i < PAGES; i++) page[i] = i;
    step_seq seq = {0, n, 0, page, PAGES, 0};
    step_seg seg = {0, n, lora};
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
    (void)fflush(stdout); /* sequences may be asked for one by one */
}

static int print_ids(const char *path)
{
    static char text[TEXT_MAX];
    static int32_t ids[TEXT_MAX];
    err e;
    model_config c;
    tokenizer *tok;
    size_t len = fread(text, 1, sizeof(text), stdin);
    if (model_config_read(path, &c, &e) || tokenizer_load(&tok, path, &e)) die(e.msg);
    int64_t n = tokenizer_encode(tok, text, len, TOK_ADD_SPECIAL, ids, TEXT_MAX);
    int32_t bos = n > 0 && ids[0] == tokenizer_bos(tok) ? ids[0] : -1;
    printf("%d %d\n", c.n_vocab, bos);
    for (int64_t i = bos < 0 ? 0 : 1; i < n; i++) printf("%d ", ids[i]);
    printf("\n");
    tokenizer_destroy(tok);
    return 0;
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
    const char *words = getenv("LORAD_BENCH_ACTIVATIONS");
    model_options options = {.weights = model_weights_form(weights ? weights : "auto"),
                             .activations = model_activations_form(words ? words : "mixed")};
    if (argc == 3 && strcmp(argv[2], "ids") == 0) return print_ids(argv[1]);
    if (argc != 2) die("usage: bench_logits MODEL [ids]");
    if (be_open(&be, &backend_cpu, &bc, &e)) die(e.msg);
    if (model_load_with(&m, argv[1], be, TOKENS_MAX, TOKENS_MAX, &options, &e)) die(e.msg);
    attn_shape shape = model_attn_shape(m);
    if (be_kv_create(be, &kv, &shape, PAGES, &e)) die(e.msg);
    const char *lora = getenv("LORAD_BENCH_LORA");
    lora_view adapter;
    if (lora) random_adapter(be, m, RANK, strtof(lora, NULL), 1, &adapter);
    while (fgets(line, sizeof(line), stdin)) {
        int n = read_ids(line, token, model_get_config(m)->n_vocab);
        if (n > 0) say(m, kv, lora ? &adapter : NULL, token, n);
    }
    be_kv_destroy(be, kv);
    model_destroy(m);
    be_close(be);
    return 0;
}
