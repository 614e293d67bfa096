/* bench_engine.c -- the engine without the network: decode and prompt
 * processing on a model directory.
 *
 *   bench_engine MODEL_DIR [prompt[-N]|base-N|lora-N|sample|-]
 *
 * Prints one line of JSON: seconds for a step of one decode row, of eight, of eight with eight
 * random r=16 adapters on all seven layers (and on all experts), and for a prompt of 512 tokens;
 * medians.  Bytes of the weights (of experts: of all), and the multiply-adds of the prompt's linear
 * layers, stand beside.  With a second word only that is done, over and over, for a profiler to
 * look at; "sample" is eight rows with their tokens drawn, by top-k 40 and, step by step in turn,
 * by top-p alone.  "-" reads such words, a line each, and answers each with a line: for turns
 * with another program (tests/bench/peer).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/base/clock.h"
#include "engine/model/model.h"
#include "engine/sample/sampler.h"
#include "tests/bench/random_adapter.h"

enum { PROMPT = 512, STREAMS = 8, RANK = 16, CONTEXT = 256, PAGES = 160 };
enum { RUNS = 15, LONG_RUNS = 60, TURN_RUNS = 7, PROMPT_RUNS = 5, SAMPLE_RUNS = 41 };

static backend *be;
static model *m;
static kv_pool *kv;
static int32_t pages[STREAMS][PAGES];
static float *states; /* of a model whose layers keep one, [STREAMS] */
static lora_view views[STREAMS];
static const float *logits; /* of the last step */

/* Positions before a step of decode rows; before a prompt, where they were asked for. */
static int context = CONTEXT, before;

static bool alone; /* one thread: its processor time is told, which load beside does not move */

static int64_t now_us(void)
{
    return alone ? clock_thread_us() : clock_now_us();
}

static void die(const err *e)
{
    fprintf(stderr, "bench_engine: %s\n", e->msg);
    exit(2);
}

static void make_adapters(void)
{
    for (int a = 0; a < STREAMS; a++)
        random_adapter(be, m, RANK, 0.01F, (uint64_t)a + 1, &views[a]);
}

static double run_step(int n_seq, int rows, int pos0, bool lora)
{
    static int32_t token[STREAMS * PROMPT], pos[STREAMS * PROMPT];
    step_seq seq[STREAMS];
    step_seg seg[STREAMS];
    int32_t logit[STREAMS];
    int n = 0;
    for (int s = 0; s < n_seq; s++) {
        seq[s] = (step_seq){n, rows, pos0, pages[s], PAGES, s};
        seg[s] = (step_seg){n, rows, lora ? &views[s] : NULL};
        for (int i = 0; i < rows; i++, n++) {
            token[n] = (int32_t)((s * 7919 + i * 31 + 11) % model_get_config(m)->n_vocab);
            pos[n] = pos0 + i;
        }
        logit[s] = n - 1;
    }
    step st = {.n_rows = n,
               .state = states,
               .state_stride = model_state_floats(model_get_config(m)),
               .token = token,
               .pos = pos,
               .n_seq = n_seq,
               .seq = seq,
               .n_seg = lora ? n_seq : 1,
               .seg = seg,
               .n_logit = n_seq,
               .logit_row = logit};
    if (!lora) seg[0] = (step_seg){0, n, NULL};
    err e;
    int64_t from = now_us();
    if (model_forward(m, kv, &st, &logits, &e)) die(&e);
    return (double)(now_us() - from) / 1e6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(int n_seq, int rows, int pos0, bool lora, int runs)
{
    double t[64];
    (void)run_step(n_seq, rows, pos0, lora);
    for (int i = 0; i < runs; i++) t[i] = run_step(n_seq, rows, pos0, lora);
    qsort(t, (size_t)runs, sizeof(*t), by_value);
    return t[runs / 2];
}

static struct {
    sampler *by[STREAMS];
    sampling rules;
    sampled out[STREAMS];
} draw;

static void draw_row(void *arg, int i)
{
    float *row = (float *)arg + (size_t)i * (size_t)model_logit_stride(m);
    sampling own = draw.rules;
    own.seed = (uint64_t)i;
    sampler_pick(draw.by[i], row, &own, NULL, NULL, 0, NULL, 0, &draw.out[i]);
}

/* A step of all streams with its tokens, in seconds. */
static double drawn_step(int top_k, float top_p)
{
    draw.rules = (sampling){
        .temperature = 0.8F, .top_k = top_k, .top_p = top_p, .repetition_penalty = 1, .n_top = -1};
    double s = run_step(STREAMS, 1, context, false);
    int64_t from = clock_now_us();
    be_parallel(be, draw_row, (void *)(uintptr_t)logits, STREAMS);
    return s + (double)(clock_now_us() - from) / 1e6;
}

static void compare_draws(void)
{
    double k[SAMPLE_RUNS], p[SAMPLE_RUNS];
    int n = model_get_config(m)->n_vocab;
    for (int i = 0; i < STREAMS; i++) {
        if (!(draw.by[i] = sampler_create(n))) abort();
    }
    for (int i = -3; i < SAMPLE_RUNS; i++) {
        double a = drawn_step(40, 1), b = drawn_step(0, 0.95F);
        if (i < 0) continue; /* the first bring things in */
        k[i] = a;
        p[i] = b;
    }
    qsort(k, SAMPLE_RUNS, sizeof(*k), by_value);
    qsort(p, SAMPLE_RUNS, sizeof(*p), by_value);
    printf("{\"vocabulary\":%d,\"top_k_s\":%.6f,\"top_p_s\":%.6f}\n", n, k[SAMPLE_RUNS / 2],
           p[SAMPLE_RUNS / 2]);
}

/* Of the linear layers, for a prompt of so many rows. */
static double linear_flop(int rows)
{
    const model_config *c = model_get_config(m);
    double sum = 0;
    for (int i = 0; i < c->n_layer * PROJ_COUNT; i++) {
        int d_out, d_in, layer = i / PROJ_COUNT, p = i % PROJ_COUNT;
        bool mixed = c->layer[layer] & LAYER_EXPERTS && p >= PROJ_GATE && p <= PROJ_DOWN;
        model_layer_shape(c, layer, (proj)p, &d_out, &d_in);
        if (model_has_proj(c, layer, (proj)p)) sum += (double)d_out * d_in;
        if (mixed) model_expert_shape(c, (proj)p, &d_out, &d_in);
        if (mixed) sum += (double)c->experts.route.top_k * d_out * d_in;
    }
    return 2 * sum * rows;
}

/* Some history to attend to: the first stream's, and copies of it. */
static void make_history(void)
{
    for (int i = 0; i < STREAMS * PAGES; i++) pages[i / PAGES][i % PAGES] = i;
    for (int at = 0; at < context; at += CONTEXT) (void)run_step(1, CONTEXT, at, false);
    attn_shape shape = model_attn_shape(m);
    void *page = malloc(be_kv_saved_bytes(be, &shape));
    if (!page) abort();
    for (int i = 0; i < context / be_caps(be)->page_tokens; i++) {
        be_kv_save(be, kv, pages[0][i], page);
        be_kv_copied(be);
        for (int s = 1; s < STREAMS; s++) be_kv_load(be, kv, pages[s][i], page);
        be_kv_copied(be);
    }
    free(page);
}

static void measure_all(void)
{
    double one = median(1, 1, context, false, RUNS), one_lora = median(1, 1, context, true, RUNS);
    double eight = median(STREAMS, 1, context, false, RUNS);
    double eight_lora = median(STREAMS, 1, context, true, RUNS);
    double prompt = median(1, PROMPT, before, false, PROMPT_RUNS);
    double prompt_lora = median(1, PROMPT, before, true, 3);
    printf("{\"backend\":\"%s\",\"one_s\":%.6f,\"one_lora_s\":%.6f,\"eight_s\":%.6f,"
           "\"eight_lora_s\":%.6f,\"prompt_s\":%.6f,\"prompt_lora_s\":%.6f,"
           "\"weight_bytes\":%zu,\"prompt_tokens\":%d,\"linear_flop\":%.6g}\n",
           be_caps(be)->detail, one, one_lora, eight, eight_lora, prompt, prompt_lora,
           model_weight_bytes(m), PROMPT, linear_flop(PROMPT));
}

/* What a word asks for. */
typedef struct {
    bool prompt, lora, draws;
    int n; /* streams, or rows of the prompt */
} task;

/* False: nothing. */
static bool task_of(task *t, const char *word)
{
    *t = (task){.lora = strncmp(word, "lora-", 5) == 0, .draws = strcmp(word, "sample") == 0};
    t->prompt = strcmp(word, "prompt") == 0 || strncmp(word, "prompt-", 7) == 0;
    if (t->prompt)
        t->n = word[6] == '-' ? atoi(word + 7) : PROMPT;
    else if (t->lora || strncmp(word, "base-", 5) == 0)
        t->n = atoi(word + 5);
    return t->draws || (t->n >= 1 && t->n <= (t->prompt ? PROMPT : STREAMS));
}

static void measure(const task *t, int runs, int prompt_runs)
{
    if (t->draws)
        compare_draws();
    else if (t->prompt)
        printf("{\"prompt_s\":%.6f,\"linear_flop\":%.6g}\n",
               median(1, t->n, before, false, prompt_runs), linear_flop(t->n));
    else
        printf("{\"streams\":%d,\"decode_s\":%.6f,\"weight_bytes\":%zu}\n", t->n,
               median(t->n, 1, context, t->lora, runs), model_weight_bytes(m));
    (void)fflush(stdout);
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_engine MODEL_DIR [prompt[-N]|base-N|lora-N|sample|-]\n");
    return 2;
}

static int measure_in_turns(void)
{
    char line[32];
    task t;
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (!task_of(&t, line)) return usage();
        measure(&t, TURN_RUNS, 1);
    }
    return 0;
}

int main(int argc, char **argv)
{
    err e;
    const char *isa = getenv("LORAD_BENCH_ISA");         /* default: the best that runs here */
    const char *threads = getenv("LORAD_BENCH_THREADS"); /* default: one per core */
    backend_config bc = {.isa = isa ? isa : "auto", .n_threads = threads ? atoi(threads) : 0};
    alone = bc.n_threads == 1;
    task t;
    const bool turns = argc == 3 && strcmp(argv[2], "-") == 0;
    if (argc < 2 || argc > 3 || (argc == 3 && !turns && !task_of(&t, argv[2]))) return usage();
    if (be_open(&be, &backend_cpu, &bc, &e)) die(&e);
    /* Mapped from this directory where an earlier run has kept them; else kept there first. */
    const char *weights = getenv("LORAD_BENCH_WEIGHTS");   /* as model.weights */
    const char *words = getenv("LORAD_BENCH_ACTIVATIONS"); /* as model.activations */
    model_options options = {.packed_dir = getenv("LORAD_BENCH_PACKED"),
                             .weights = model_weights_form(weights ? weights : "auto"),
                             .activations = model_activations_form(words ? words : "mixed")};
    if (model_load_with(&m, argv[1], be, PROMPT, STREAMS, &options, &e)) die(&e);
    while (!model_packed_settled(m)) (void)usleep(10000);
    const char *positions = getenv("LORAD_BENCH_CONTEXT"); /* before the rows: a multiple of 256 */
    if (positions) before = context = atoi(positions) / CONTEXT * CONTEXT;
    if (context < CONTEXT || context + PROMPT > PAGES * be_caps(be)->page_tokens) return usage();
    attn_shape shape = model_attn_shape(m);
    if (be_kv_create(be, &kv, &shape, STREAMS * PAGES, &e)) die(&e);
    states = calloc(STREAMS * model_state_floats(model_get_config(m)) + 1, sizeof(*states));
    if (!states) abort();
    make_history();
    make_adapters();
    if (turns) return measure_in_turns();
    if (argc == 2)
        measure_all();
    else
        measure(&t, LONG_RUNS, PROMPT_RUNS);
    return 0;
}
