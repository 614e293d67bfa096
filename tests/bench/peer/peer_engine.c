/* peer_engine.c -- llama.cpp, or ik_llama.cpp, without its server: what bench_engine does, by them.
 *
 *   peer_engine MODEL.gguf [ADAPTER.gguf...]
 *   peer_engine --quantize FROM.gguf TO.gguf Q8_0|Q4_0|Q4_K_S
 *
 * Reads words from standard input, a line each, and answers each with a line of JSON: the
 * processor time of a step of one thread, the median of some.
 *
 *   base-N     a token of N streams in one batch, 256 positions before each
 *   lora-N     the same, an adapter each: a batch has one adapter, so N steps of one stream
 *   prompt-N   a prompt of N tokens
 *
 * peer_engines.py compiles it with the peer's own header.  Their names differ: with
 * -DPEER_IK it is ik_llama.cpp's.
 */
#include <llama.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS = 8, CONTEXT = 256, PROMPT = 512, RUNS = 7 };

static struct llama_model *model;
static struct llama_batch batch;
static int n_adapter;

/* One for plain steps, one for adapters: ik_llama.cpp's flash attention refuses these. */
typedef struct {
    struct llama_context *ctx;
    unsigned char *history;
    size_t bytes;
    int streams; /* that have it */
} side;

static side plain, adapted;
static struct llama_context *ctx; /* of the one at work */

static void die(const char *what)
{
    fprintf(stderr, "peer_engine: %s\n", what);
    exit(2);
}

#ifdef PEER_IK
typedef struct llama_lora_adapter adapter;

static adapter *open_adapter(const char *path)
{
    return llama_lora_adapter_init(model, path);
}

static void use_adapter(adapter *a)
{
    llama_lora_adapter_clear(ctx);
    if (llama_lora_adapter_set(ctx, a, 1.0F)) die("the adapter is refused");
}

static void forget(int sequence, int from)
{
    (void)llama_kv_cache_seq_rm(ctx, sequence, from, -1);
}

static size_t state_bytes(void)
{
    return llama_state_seq_get_size(ctx, 0, 0);
}

static bool get_state(unsigned char *to, size_t bytes)
{
    return llama_state_seq_get_data(ctx, to, bytes, 0, 0) == bytes;
}

static bool set_state(const unsigned char *from, size_t bytes, int sequence)
{
    return llama_state_seq_set_data(ctx, from, bytes, sequence, 0) > 0;
}

static void set_attention(struct llama_context_params *p, bool lora)
{
    p->flash_attn = !lora;
}
#else
typedef struct llama_adapter_lora adapter;

static adapter *open_adapter(const char *path)
{
    return llama_adapter_lora_init(model, path);
}

static void use_adapter(adapter *a)
{
    float scale = 1.0F;
    if (llama_set_adapters_lora(ctx, &a, 1, &scale)) die("the adapter is refused");
}

static void forget(int sequence, int from)
{
    (void)llama_memory_seq_rm(llama_get_memory(ctx), sequence, from, -1);
}

static size_t state_bytes(void)
{
    return llama_state_seq_get_size(ctx, 0);
}

static bool get_state(unsigned char *to, size_t bytes)
{
    return llama_state_seq_get_data(ctx, to, bytes, 0) == bytes;
}

static bool set_state(const unsigned char *from, size_t bytes, int sequence)
{
    return llama_state_seq_set_data(ctx, from, bytes, sequence) > 0;
}

static void set_attention(struct llama_context_params *p, bool lora)
{
    (void)lora;
    p->flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
}
#endif

static adapter *adapters[STREAMS];

/* Of this process, whichever thread computes. */
static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void add_token(int sequence, int pos, int i, bool last)
{
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    int at = batch.n_tokens++;
    batch.token[at] = (sequence * 7919 + i * 31 + 11) % n_vocab;
    batch.pos[at] = pos;
    batch.n_seq_id[at] = 1;
    batch.seq_id[at][0] = sequence;
    batch.logits[at] = last;
}

static void decode(void)
{
    if (llama_decode(ctx, batch)) die("llama_decode() failed");
    llama_synchronize(ctx);
    batch.n_tokens = 0;
}

static void prompt_of(int sequence, int n)
{
    for (int i = 0; i < n; i++) add_token(sequence, i, i, i == n - 1);
    decode();
}

static void make_history(side *to)
{
    prompt_of(0, CONTEXT);
    to->bytes = state_bytes();
    to->history = malloc(to->bytes);
    if (!to->history || !get_state(to->history, to->bytes)) die("no history");
    to->streams = 1;
}

/* So many streams have a copy of it, and no other is in the cache: ik_llama.cpp's attention walks
 * over all that is there. */
static void set_history(side *of, int n)
{
    ctx = of->ctx;
    if (of->streams == n) return;
    for (int s = 0; s < STREAMS; s++) forget(s, 0);
    for (int s = 0; s < n; s++) {
        if (!set_state(of->history, of->bytes, s)) die("no history");
    }
    of->streams = n;
}

static void one_batch(int n)
{
    for (int s = 0; s < n; s++) add_token(s, CONTEXT, 0, true);
    decode();
    for (int s = 0; s < n; s++) forget(s, CONTEXT);
}

static void one_by_one(int n)
{
    for (int i = 0; i < n; i++) {
        use_adapter(adapters[i]);
        one_batch(1);
    }
}

/* In seconds. */
static double time_of(void (*work)(int), int n)
{
    double from = now_s();
    work(n);
    return now_s() - from;
}

static void one_prompt(int n)
{
    prompt_of(0, n);
    forget(0, 0);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *word)
{
    double took[RUNS];
    bool lora = strncmp(word, "lora-", 5) == 0, prompt = strncmp(word, "prompt-", 7) == 0;
    if (!lora && !prompt && strncmp(word, "base-", 5) != 0) die(word);
    int n = atoi(strchr(word, '-') + 1), runs = prompt ? 1 : RUNS;
    if (n < 1 || n > (prompt ? PROMPT : STREAMS) || (lora && n > n_adapter)) die(word);
    void (*work)(int) = prompt ? one_prompt : lora ? one_by_one : one_batch;
    set_history(lora ? &adapted : &plain, prompt ? 0 : lora ? 1 : n);
    (void)time_of(work, n);
    for (int i = 0; i < runs; i++) took[i] = time_of(work, n);
    qsort(took, (size_t)runs, sizeof(*took), by_value);
    printf("{\"%s\":%.6f}\n", prompt ? "prompt_s" : "decode_s", took[runs / 2]);
    (void)fflush(stdout);
}

static int quantize(const char *from, const char *to, const char *form)
{
    struct llama_model_quantize_params p = llama_model_quantize_default_params();
    p.ftype = strcmp(form, "Q8_0") == 0     ? LLAMA_FTYPE_MOSTLY_Q8_0
              : strcmp(form, "Q4_0") == 0   ? LLAMA_FTYPE_MOSTLY_Q4_0
              : strcmp(form, "Q4_K_S") == 0 ? LLAMA_FTYPE_MOSTLY_Q4_K_S
                                            : LLAMA_FTYPE_GUESSED;
    if (p.ftype == LLAMA_FTYPE_GUESSED) die(form);
    return llama_model_quantize(from, to, &p) ? 2 : 0;
}

static void open_side(side *to, bool lora)
{
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = STREAMS * PROMPT * 2;
    p.n_batch = p.n_ubatch = PROMPT;
    p.n_seq_max = STREAMS;
    p.n_threads = p.n_threads_batch = 1;
    set_attention(&p, lora);
    to->ctx = ctx = llama_init_from_model(model, p);
    if (!ctx) die("no context");
    make_history(to);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--quantize") == 0) return quantize(argv[2], argv[3], argv[4]);
    if (argc < 2 || argc > 2 + STREAMS) die("usage: peer_engine MODEL.gguf [ADAPTER.gguf...]");
    llama_backend_init();
    model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) die(argv[1]);
    for (; n_adapter < argc - 2; n_adapter++) {
        adapters[n_adapter] = open_adapter(argv[2 + n_adapter]);
        if (!adapters[n_adapter]) die(argv[2 + n_adapter]);
    }
    batch = llama_batch_init(PROMPT, 0, 1);
    open_side(&plain, false);
    if (n_adapter > 0) open_side(&adapted, true);
    char line[32];
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        measure(line);
    }
    return 0;
}
