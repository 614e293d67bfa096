/* peer_logits.c -- llama.cpp's logits after each token of some sequences: peer_logits MODEL.gguf
 *
 * What bench_logits does, by llama.cpp with its defaults, on the processor.  kl_real.py compiles it
 * with the peer's own header.
 */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 512 };

static void die(const char *what)
{
    fprintf(stderr, "peer_logits: %s\n", what);
    exit(2);
}

static void quiet(enum ggml_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int read_ids(char *line, llama_token *token)
{
    int n = 0;
    for (char *p = strtok(line, " \n"); p; p = strtok(NULL, " \n")) {
        if (n == TOKENS_MAX) die("a line is too long");
        token[n++] = (llama_token)strtol(p, NULL, 10);
    }
    return n;
}

static void say(struct llama_context *ctx, struct llama_batch *batch, const llama_token *token,
                int n, size_t n_vocab)
{
    llama_memory_clear(llama_get_memory(ctx), true);
    batch->n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch->token[i] = token[i];
        batch->pos[i] = i;
        batch->n_seq_id[i] = 1;
        batch->seq_id[i][0] = 0;
        batch->logits[i] = 1;
    }
    if (llama_decode(ctx, *batch)) die("llama_decode() failed");
    for (int i = 0; i < n; i++) {
        const float *row = llama_get_logits_ith(ctx, i);
        if (fwrite(row, sizeof(*row), n_vocab, stdout) != n_vocab) die("cannot write");
    }
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    static char line[16 * TOKENS_MAX];
    llama_token token[TOKENS_MAX];
    if (argc != 2) die("usage: peer_logits MODEL.gguf");
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) die("cannot load the model");
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = p.n_batch = p.n_ubatch = TOKENS_MAX;
    p.n_threads = p.n_threads_batch = 2;
    struct llama_context *ctx = llama_init_from_model(model, p);
    if (!ctx) die("no context");
    struct llama_batch batch = llama_batch_init(TOKENS_MAX, 0, 1);
    size_t n_vocab = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    while (fgets(line, sizeof(line), stdin)) {
        int n = read_ids(line, token);
        if (n > 0) say(ctx, &batch, token, n, n_vocab);
    }
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
