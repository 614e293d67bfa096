/* bench_device.c -- the engine on a device at the size that counts: random weights of a model's
 * shape, no files, no network.
 *
 *     bench_device [--shape llama-3-8b|tiny] [--fraction F] [--scratch DIR]
 *     [--json FILE] [--without NAME,...] [FIGURE...]
 *
 *     copy       bytes a second that a copy inside the device reads and writes:
 *                the measure for what follows
 *     matrix     operations a second of one large BF16 product, as cuBLAS's heuristic would run it
 *     decode     a step of decode rows: bare, each row with an adapter of its
 *                own, all with the same one
 *     host       what of a decode step is no work of the device
 *     prefill    a step of whole prompts
 *     attention  attention alone, one layer after another
 *     many       the widest step, bare and with an adapter for each row, of 1,024
 *                that lie on the device (or as
 *                many as have room)
 *     mixed      decode rows beside a piece of a prompt, and each alone
 *     sweep      steps of 1 to 256 rows, bare and with adapters, and of rows
 *                over 128 to 32,768 positions, as far as there is room
 *
 * --without leaves kernels out as debug.cuda_without does: choices.py compares sweeps with and
 * without each.
 *
 * Everything goes through the backend's interface and engine/model/model.c, as when lorad serves.
 * The model is a sparse file in --scratch: its matrices are holes, and a kernel (noise.cu) makes
 * random values in their place on the device, so that 16 GB of weights cost no disk, no copy and no
 * time of the host.  Adapters are packed once and copied, as many as are asked for; K and V are
 * random pages in random order.  Times are medians by the host's clock around whole steps.  A
 * figure for which the device has no room is left out by name.  Each figure ends in a line CASE
 * <figure> <unit> (asked <bound>): ok|short.
 *
 * What is checked, on any shape: logits are finite and differ from row to row, an adapter changes
 * them, and a row's are the same bits in a step with others' adapters as alone.  Exit 1 where that
 * fails, 3 where a figure is short.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "engine/backend_ops.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/cuda/cuda.h"
#include "engine/model/model.h"
#include "tests/gpu/noise.h"
#ifdef BENCH_EMULATED
#    include "tests/emu/cuda_rt/emu_rt.h"
#endif

enum { ROWS_MAX = 8192, SEQS_MAX = 256, RUNS_MAX = 64, SPAN = 8, LORA_MAX = 1024 };

typedef struct shape {
    const char *name;
    int n_layer, dim, n_head, n_kv, head_dim, ffn, n_vocab, max_pos;
    int batch, kv;           /* decode */
    int prompts, prompt_len; /* prefill */
    int attn_batch, attn_len;
    int many, many_kv; /* rows and adapters of the widest step ... */
    int registered;    /* ... which are a part of so many */
    int rank, runs, square;
    size_t copy_bytes;
} shape;

static const shape shapes[] = {
    {"llama-3-8b", 32,   4096, 32,  8,    128, 14336, 128256, 32832,          32, 1024, 4, 2048,
     32,           8192, 256,  512, 1024, 16,  20,    8192,   (size_t)4 << 30},
    {"tiny", 2,  64, 4,  2, 64, 128, 320, 512, 4,  40,
     2,      24, 3,  70, 6, 40, 24,  8,   2,   64, (size_t)1 << 20},
};

static const shape *sh = &shapes[0];
static backend *be;
static backend_ops ops; /* backend_cuda's, but for where random weights come in */
static model *m;
static kv_pool *kv;
static int page_tokens, n_pages;
static int32_t *order; /* [n_pages], shuffled */
static lora_view views[LORA_MAX];
static lora_mat *mats[LORA_MAX];
static int n_view, spread = 1; /* every so many-th is in a step */
static char *noise;            /* for adapters, K and V; weights have their own on the device */
static size_t noise_bytes;
static bool pipelined; /* be_sync() is not to wait */
static double copy_rate, matrix_rate;
static FILE *json;
static int n_member, n_short;

/* ---- small things -------------------------------------------------------------------------- */

static void die(const char *what, const err *e)
{
    fprintf(stderr, "bench_device: %s: %s\n", what, e->msg);
    exit(1);
}

static void wrong(const char *what)
{
    fprintf(stderr, "bench_device: %s\n", what);
    exit(1);
}

static void ok(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess) return;
    fprintf(stderr, "bench_device: %s: %s\n", what, cudaGetErrorString(rc));
    exit(1);
}

static void note(const char *name, double v)
{
    if (json) fprintf(json, "%s\"%s\":%.6g", n_member++ ? "," : "{", name, v);
}

/* `at_least`: the bound is a floor. */
static void figure(const char *name, double v, const char *unit, double bound, bool at_least)
{
    bool good = at_least ? v >= bound : v <= bound;
    printf("CASE %-28s %.3f %s (asked %s%.3g): %s\n", name, v, unit,
           at_least ? ">= " : "<= ", bound, good ? "ok" : "short");
    (void)fflush(stdout);
    n_short += !good;
    note(name, v);
}

static double gib(size_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

static double seconds(int64_t from_us)
{
    return (double)(clock_now_us() - from_us) / 1e6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle(double *t, int n)
{
    qsort(t, (size_t)n, sizeof(*t), by_value);
    return t[n / 2];
}

static uint64_t rng = 88172645463325252ULL;

static uint64_t draw(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    return rng ^= rng << 17;
}

/* BF16 of both signs, between 2^-9 and 2^-5 in size, as cu_noise() makes them. */
static void make_noise(void)
{
    noise_bytes = 8 << 20;
    noise = malloc(noise_bytes);
    if (!noise) wrong("no memory for random weights");
    uint64_t *at = (uint64_t *)noise;
    for (size_t i = 0; i < noise_bytes / 8; i++) {
        uint64_t r = draw();
        at[i] = (r & 0x81FF81FF81FF81FFULL) | 0x3B003B003B003B00ULL;
    }
}

/* Another part of it for each matrix. */
static const void *noise_for(size_t bytes)
{
    size_t slack = noise_bytes - bytes;
    return noise + draw() % (slack / 64 + 1) * 64;
}

/* The same on the device, another part for each. */
static void fill_on_device(void *p, size_t bytes)
{
    static uint64_t seed;
    ok(cu_noise(NULL, p, bytes / 2, ++seed), "a random matrix");
    ok(cudaDeviceSynchronize(), "a random matrix");
}

/* ---- the model: a file with holes ------------------------------------------------------------ */

static err_code random_weight(backend *b, weight **out, const weight_source *src, err *e)
{
    weight_source none = *src;
    none.data = NULL; /* room alone */
    err_code rc = backend_cuda.weight_create(b, out, &none, e);
    if (!rc) fill_on_device(((cuda_weight *)*out)->p, be_weight_bytes(*out));
    return rc;
}

static err_code random_table(backend *b, const void **out, const void *host, dtype type,
                             int n_vocab, int dim, const weight *same, err *e)
{
    (void)host;
    err_code rc = backend_cuda.table_create(b, out, NULL, type, n_vocab, dim, same, e);
    if (!rc && !same)
        fill_on_device((void *)(uintptr_t)*out, (size_t)n_vocab * (size_t)dim * dtype_bytes(type));
    return rc;
}

static void bench_sync(backend *b)
{
    if (!pipelined) backend_cuda.sync(b);
}

typedef struct header {
    char *text;
    size_t n, at; /* of the text; of the data */
} header;

static void tensor(header *h, int layer, const char *name, int rows, int cols)
{
    char full[96], dims[40];
    size_t bytes = (size_t)rows * (size_t)(cols ? cols : 1) * 2;
    (void)(layer < 0 ? snprintf(full, sizeof(full), "%s", name)
                     : snprintf(full, sizeof(full), "model.layers.%d.%s", layer, name));
    snprintf(dims, sizeof(dims), cols ? "%d,%d" : "%d", rows, cols);
    h->n += (size_t)sprintf(h->text + h->n,
                            "%s\"%s.weight\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":"
                            "[%zu,%zu]}",
                            h->n > 8 ? "," : "{", full, dims, h->at, h->at + bytes);
    h->at += bytes;
}

static void write_config(const char *dir)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    if (!f) wrong("the scratch folder takes no file");
    fprintf(f,
            "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":"
            "\"silu\",\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
            "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
            "\"vocab_size\":%d,\"max_position_embeddings\":%d,\"rms_norm_eps\":1e-5,"
            "\"rope_theta\":500000.0,\"attention_bias\":false,\"mlp_bias\":false,"
            "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"bos_token_id\":1,"
            "\"eos_token_id\":2}",
            sh->dim, sh->ffn, sh->n_layer, sh->n_head, sh->n_kv, sh->head_dim, sh->n_vocab,
            sh->max_pos);
    (void)fclose(f);
}

/* Norms come first and are ones; matrices follow as one hole. */
static void write_weights(const char *dir)
{
    char path[512];
    header h = {.text = malloc((size_t)(sh->n_layer + 1) * 2048), .n = 8};
    if (!h.text) wrong("no memory");
    tensor(&h, -1, "model.norm", sh->dim, 0);
    for (int l = 0; l < sh->n_layer; l++) {
        tensor(&h, l, "input_layernorm", sh->dim, 0);
        tensor(&h, l, "post_attention_layernorm", sh->dim, 0);
    }
    size_t norms = h.at;
    tensor(&h, -1, "model.embed_tokens", sh->n_vocab, sh->dim);
    tensor(&h, -1, "lm_head", sh->n_vocab, sh->dim);
    for (int l = 0; l < sh->n_layer; l++) {
        int q = sh->n_head * sh->head_dim, k = sh->n_kv * sh->head_dim;
        tensor(&h, l, "self_attn.q_proj", q, sh->dim);
        tensor(&h, l, "self_attn.k_proj", k, sh->dim);
        tensor(&h, l, "self_attn.v_proj", k, sh->dim);
        tensor(&h, l, "self_attn.o_proj", sh->dim, q);
        tensor(&h, l, "mlp.gate_proj", sh->ffn, sh->dim);
        tensor(&h, l, "mlp.up_proj", sh->ffn, sh->dim);
        tensor(&h, l, "mlp.down_proj", sh->dim, sh->ffn);
    }
    h.text[h.n++] = '}';
    while (h.n % 64) h.text[h.n++] = ' ';
    uint64_t text = h.n - 8;
    memcpy(h.text, &text, 8);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    FILE *f = fopen(path, "wb");
    bool good = f && fwrite(h.text, 1, h.n, f) == h.n;
    const uint16_t one = 0x3F80;
    for (size_t i = 0; good && i < norms / 2; i++) good = fwrite(&one, 2, 1, f) == 1;
    if (f && fclose(f)) good = false;
    if (!good || truncate(path, (off_t)(h.n + h.at)))
        wrong("the scratch folder takes no file with holes");
    free(h.text);
}

static void load_model(const char *scratch)
{
    char dir[400], path[512];
    err e;
    snprintf(dir, sizeof(dir), "%s/bench_device.XXXXXX", scratch);
    if (!mkdtemp(dir)) wrong("there is no scratch folder (--scratch)");
    write_config(dir);
    write_weights(dir);
    int64_t from = clock_now_us();
    int rows = sh->prompts * sh->prompt_len > sh->many ? sh->prompts * sh->prompt_len : sh->many;
    err_code rc = model_load(&m, dir, be, rows, sh->many, &e);
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) { /* mapped files stay until they are unmapped */
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
    if (rc) die("the model", &e);
    double took = seconds(from);
    printf("%s: %.2f GiB of weights, loaded and products compared in %.1f s\n", sh->name,
           gib(model_weight_bytes(m)), took);
    note("load_s", took);
}

/* ---- pages and adapters ---------------------------------------------------------------------- */

static int pages_for(int tokens)
{
    return (tokens + page_tokens - 1) / page_tokens;
}

/* As many as the largest figure wants, or as fit beside `reserve` bytes. */
static void make_pages(size_t reserve)
{
    attn_shape as = model_attn_shape(m);
    size_t bytes = be_kv_page_bytes(be, &as), room = be_room(be);
    const int want[] = {sh->batch * pages_for(sh->kv), sh->prompts * pages_for(sh->prompt_len),
                        sh->attn_batch * pages_for(sh->attn_len),
                        sh->many * pages_for(sh->many_kv)};
    err e;
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        if (want[i] > n_pages) n_pages = want[i];
    }
    size_t fit = room > reserve ? (room - reserve) / bytes : 0;
    if ((size_t)n_pages > fit) n_pages = (int)fit;
    if (n_pages < want[0]) wrong("the device has no room for the pages of one decode step");
    if (be_kv_create(be, &kv, &as, n_pages, &e)) die("KV pages", &e);
    order = malloc((size_t)n_pages * sizeof(*order));
    char *page = malloc(bytes);
    if (!order || !page) wrong("no memory");
    for (size_t at = 0; at < bytes; at += noise_bytes) {
        size_t n = bytes - at < noise_bytes ? bytes - at : noise_bytes;
        memcpy(page + at, noise, n);
    }
    for (int i = 0; i < n_pages; i++) be_kv_load(be, kv, i, page);
    be_kv_copied(be);
    if (be_sync(be, &e)) die("KV pages", &e);
    free(page);
    for (int i = 0; i < n_pages; i++) order[i] = i;
    for (int i = n_pages - 1; i > 0; i--) {
        int j = (int)(draw() % (uint64_t)(i + 1)), x = order[i];
        order[i] = order[j];
        order[j] = x;
    }
}

static size_t lora_bytes(void)
{
    const model_config *c = model_get_config(m);
    size_t bytes = 0;
    for (int i = 0; i < c->n_layer * PROJ_COUNT; i++) {
        int d_out, d_in;
        model_proj_shape(c, (proj)(i % PROJ_COUNT), &d_out, &d_in);
        if (d_in == 0) continue; /* none in this model */
        bytes += be_lora_a_bytes(be, c->type, sh->rank, d_in);
        bytes += be_lora_b_bytes(be, c->type, sh->rank, d_out);
    }
    return bytes;
}

/* The first is packed; the others are its bytes elsewhere. */
static void make_adapters(int n)
{
    const model_config *c = model_get_config(m);
    size_t bytes = lora_bytes();
    char *host = malloc(bytes);
    err e;
    if (!host) wrong("no memory");
    for (int v = n_view, first = v > 0 ? v : 1; v < n; v++) {
        char *at = be_alloc(be, bytes);
        if (!at) break;
        if (v > 0 && v == first && be_download(be, host, mats[0][PROJ_Q].a, bytes))
            wrong("an adapter does not come back");
        if (v > 0 && be_upload(be, at, host, bytes)) wrong("an adapter does not arrive");
        mats[v] = calloc((size_t)c->n_layer * PROJ_COUNT, sizeof(**mats));
        if (!mats[v]) wrong("no memory");
        for (int i = 0; i < c->n_layer * PROJ_COUNT; i++) {
            int d_out, d_in;
            model_proj_shape(c, (proj)(i % PROJ_COUNT), &d_out, &d_in);
            if (d_in == 0) continue; /* none in this model */
            char *b = at + be_lora_a_bytes(be, c->type, sh->rank, d_in);
            if (v == 0 &&
                be_lora_pack(be, c->type, at, b, noise_for((size_t)sh->rank * (size_t)d_in * 2),
                             noise_for((size_t)sh->rank * (size_t)d_out * 2), DT_BF16, sh->rank,
                             d_in, d_out, &e))
                die("an adapter", &e);
            mats[v][i] = (lora_mat){.a = at, .b = b, .rank = sh->rank, .scale = 2.0F};
            at = b + be_lora_b_bytes(be, c->type, sh->rank, d_out);
        }
        views[v] = (lora_view){.adapter_id = (uint64_t)v + 1,
                               .load_id = (uint64_t)v + 1,
                               .n_layer = c->n_layer,
                               .rank_max = sh->rank,
                               .mat = mats[v]};
        n_view = v + 1;
    }
    free(host);
}

/* ---- steps ----------------------------------------------------------------------------------- */

typedef enum { BARE, DISTINCT, SHARED } who;

/* Two of each, so that one can be built while the other is on its way. */
typedef struct steps {
    step s[2];
    step_seq seq[SEQS_MAX];
    step_seg seg[SEQS_MAX];
    int32_t token[ROWS_MAX], pos[ROWS_MAX], logit[SEQS_MAX];
} steps;

static steps st;

/* n_seq sequences of n_rows rows each, the last at position `len` - 1,
 * from the `first`-th place on. */
static void build(int first, int n_seq, int n_rows, int len, who w)
{
    int n = 0, each = pages_for(len);
    for (int i = 0; i < n_seq; i++) {
        int who_am_i = first + i;
        st.seq[i] =
            (step_seq){n, n_rows, len - n_rows, order + (size_t)who_am_i * (size_t)each, each, 0};
        st.seg[i] = (step_seg){n, n_rows, w == DISTINCT ? &views[who_am_i * spread] : NULL};
        for (int k = 0; k < n_rows; k++, n++) {
            st.token[n] = (int32_t)((who_am_i * 7919 + k * 31 + 11) % sh->n_vocab);
            st.pos[n] = len - n_rows + k;
        }
        st.logit[i] = n - 1;
    }
    if (w != DISTINCT) st.seg[0] = (step_seg){0, n, w == SHARED ? &views[0] : NULL};
    st.s[0] = (step){.n_rows = n,
                     .token = st.token,
                     .pos = st.pos,
                     .n_seq = n_seq,
                     .seq = st.seq,
                     .n_seg = w == DISTINCT ? n_seq : 1,
                     .seg = st.seg,
                     .n_logit = n_seq,
                     .logit_row = st.logit};
    st.s[1] = st.s[0];
}

/* Behind the rows that build() made of sequences of `len` positions: the first `rows` of a prompt,
 * whose pages follow theirs. */
static void add_prompt(int len, int rows)
{
    step *s = &st.s[0];
    int i = s->n_seq, from = s->n_rows;
    st.seq[i] =
        (step_seq){from, rows, 0, order + (size_t)i * (size_t)pages_for(len), pages_for(rows), 0};
    for (int k = 0; k < rows; k++) {
        st.token[from + k] = (int32_t)((k * 31 + 17) % sh->n_vocab);
        st.pos[from + k] = k;
    }
    st.seg[0].n_rows += rows;
    st.logit[i] = from + rows - 1;
    s->n_rows += rows;
    s->n_seq++;
    s->n_logit++;
    st.s[1] = *s;
}

/* A step as the scheduler runs it: logits stay, greedy tokens come back. */
static void forward(int turn)
{
    static const sampling greedy = {.top_p = 1, .repetition_penalty = 1, .n_top = -1};
    sample_row rows[SEQS_MAX];
    int n = st.s[0].n_logit;
    err e;
    for (int i = 0; i < n; i++) rows[i] = (sample_row){.logit = i, .score = -1, .rules = &greedy};
    if (model_enqueue(m, kv, &st.s[turn & 1], &e)) die("a step", &e);
    const sampled *out = model_sample(m, rows, n);
    if (be_sync(be, &e)) die("a step", &e);
    if (pipelined) return;
    for (int i = 0; i < n; i++) {
        if (!out || out[i].token < 0 || out[i].token >= sh->n_vocab) wrong("a token is none");
    }
}

static const float *logits_of_step(void)
{
    const float *logits;
    err e;
    if (model_forward(m, kv, &st.s[0], &logits, &e)) die("a step", &e);
    return logits;
}

/* Seconds of the step that was built. */
static double step_s(void)
{
    double t[RUNS_MAX];
    for (int i = 0; i < 2; i++) forward(0);
    for (int i = 0; i < sh->runs; i++) {
        int64_t from = clock_now_us();
        forward(0);
        t[i] = seconds(from);
    }
    return middle(t, sh->runs);
}

/* The same where nobody waits for a step before the next one is enqueued: the device's own time. */
static double device_s(void)
{
    double t[RUNS_MAX];
    for (int i = 0; i < sh->runs; i++) {
        forward(0);
        int64_t from = clock_now_us();
        pipelined = true;
        for (int k = 1; k < SPAN; k++) forward(k);
        pipelined = false;
        forward(SPAN);
        t[i] = seconds(from) / SPAN;
    }
    return middle(t, sh->runs);
}

static size_t kv_bytes_of(int n_seq, int len)
{
    return (size_t)n_seq * (size_t)len * (size_t)sh->n_kv * (size_t)sh->head_dim * 2 * 2 *
           (size_t)sh->n_layer;
}

static void check_results(void)
{
    size_t n = (size_t)sh->n_vocab;
    float *alone = malloc(n * sizeof(float)), *bare = malloc(n * sizeof(float));
    if (!alone || !bare) wrong("no memory");
    build(1, 1, 1, sh->kv, BARE);
    memcpy(bare, logits_of_step(), n * sizeof(float));
    build(1, 1, 1, sh->kv, DISTINCT);
    memcpy(alone, logits_of_step(), n * sizeof(float));
    build(0, sh->batch, 1, sh->kv, DISTINCT);
    const float *all = logits_of_step();
    for (size_t i = 0; i < n * (size_t)sh->batch; i++) {
        if (!isfinite(all[i])) wrong("a logit is not finite");
    }
    if (memcmp(all, all + n, n * sizeof(float)) == 0) wrong("two rows have the same logits");
    if (memcmp(bare, alone, n * sizeof(float)) == 0) wrong("an adapter changes nothing");
    if (memcmp(all + n, alone, n * sizeof(float)) != 0)
        wrong("a row's logits are others beside others' adapters than alone");
    free(alone);
    free(bare);
}

/* ---- figures --------------------------------------------------------------------------------- */

static void fig_copy(void)
{
    cudaStream_t s;
    double t[RUNS_MAX];
    char *a = be_alloc(be, sh->copy_bytes), *b = be_alloc(be, sh->copy_bytes);
    err e;
    if (!a || !b) wrong("no room for a copy");
    if (be_sync(be, &e)) die("a copy", &e);
    ok(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreate");
    ok(cudaMemsetAsync(a, 1, sh->copy_bytes, s), "cudaMemset");
    ok(cudaStreamSynchronize(s), "cudaMemset");
    for (int i = 0; i < 6; i++) {
        int64_t from = clock_now_us();
        for (int k = 0; k < 4; k++)
            ok(cudaMemcpyAsync(b, a, sh->copy_bytes, cudaMemcpyDeviceToDevice, s), "cudaMemcpy");
        ok(cudaStreamSynchronize(s), "cudaMemcpy");
        t[i] = seconds(from) / 4;
    }
    copy_rate = 2.0 * (double)sh->copy_bytes / middle(t, 6);
    ok(cudaStreamDestroy(s), "cudaStreamDestroy");
    be_free(be, a);
    be_free(be, b);
    printf("copy %.2f TB/s read and written\n", copy_rate / 1e12);
    note("copy_tb_s", copy_rate / 1e12);
}

/* What the heuristic names first, with no regard to bits. */
static void fig_matrix(void)
{
    blas_api lt;
    lt_heuristic found;
    cudaStream_t s;
    void *handle, *desc, *in, *out, *pref;
    int n = sh->square, got = 0;
    size_t bytes = (size_t)n * (size_t)n * 2, workspace = 32 << 20;
    int32_t transposed = LT_OP_T;
    uint64_t un = (uint64_t)n, room = workspace;
    const float one = 1, zero = 0;
    double t[RUNS_MAX];
    err e;
    if (blas_load(&lt, &e)) die("the matrix rate", &e);
    char *x = be_alloc(be, bytes), *w = be_alloc(be, bytes), *y = be_alloc(be, 2 * bytes),
         *space = be_alloc(be, workspace);
    if (!x || !w || !y || !space) wrong("no room for a product");
    fill_on_device(x, bytes);
    fill_on_device(w, bytes);
    ok(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreate");
    ok(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    int bad = lt.create(&handle);
    bad |= lt.desc_create(&desc, LT_COMPUTE_32F, LT_R_32F);
    bad |= lt.desc_set(desc, LT_DESC_TRANSA, &transposed, sizeof(transposed));
    bad |= lt.layout_create(&in, LT_R_16BF, un, un, n);
    bad |= lt.layout_create(&out, LT_R_32F, un, un, n);
    bad |= lt.pref_create(&pref);
    bad |= lt.pref_set(pref, LT_PREF_MAX_WORKSPACE, &room, sizeof(room));
    bad |= lt.heuristic(handle, desc, in, in, out, out, pref, 1, &found, &got);
    if (bad || got < 1) wrong("cuBLAS names no product");
    for (int i = 0; i < 6; i++) {
        int64_t from = clock_now_us();
        for (int k = 0; k < SPAN; k++)
            bad |= lt.matmul(handle, desc, &one, w, in, x, in, &zero, y, out, y, out, &found.algo,
                             space, workspace, s);
        ok(cudaStreamSynchronize(s), "cublasLtMatmul");
        t[i] = seconds(from) / SPAN;
    }
    if (bad) wrong("cublasLtMatmul fails");
    matrix_rate = 2.0 * n * (double)n * n / middle(t, 6);
    (void)(lt.pref_destroy(pref) | lt.layout_destroy(in) | lt.layout_destroy(out));
    (void)(lt.desc_destroy(desc) | lt.destroy(handle));
    ok(cudaStreamDestroy(s), "cudaStreamDestroy");
    char *all[] = {x, w, y, space};
    for (int i = 0; i < 4; i++) be_free(be, all[i]);
    printf("matrix %.1f TFLOP/s in BF16, %d cubed\n", matrix_rate / 1e12, n);
    note("matrix_tflop_s", matrix_rate / 1e12);
}

static void fig_decode(void)
{
    double bytes = (double)(model_weight_bytes(m) + kv_bytes_of(sh->batch, sh->kv));
    build(0, sh->batch, 1, sh->kv, BARE);
    double bare = step_s();
    build(0, sh->batch, 1, sh->kv, DISTINCT);
    double distinct = step_s();
    build(0, sh->batch, 1, sh->kv, SHARED);
    double shared = step_s(), more = (double)lora_bytes() * sh->batch / copy_rate;
    printf("decode of %d rows over %d: bare %.3f ms, %d adapters %.3f ms, one adapter %.3f "
           "ms; the adapters' "
           "bytes alone %.3f ms\n",
           sh->batch, sh->kv, bare * 1e3, sh->batch, distinct * 1e3, shared * 1e3, more * 1e3);
    note("decode_bare_ms", bare * 1e3);
    note("decode_distinct_ms", distinct * 1e3);
    note("decode_shared_ms", shared * 1e3);
    figure("decode_of_copy", bytes / bare / copy_rate, "of the copy's bandwidth", 0.8, true);
    figure("decode_distinct", distinct / bare, "of the bare step", 1.15, false);
    figure("decode_shared", shared / bare, "of the bare step", 1.06, false);
}

static void fig_host(void)
{
    build(0, sh->batch, 1, sh->kv, DISTINCT);
    double whole = step_s(), device = device_s();
    double share = whole > device ? (whole - device) / whole : 0;
    printf("a step of %d adapters: %.3f ms, of which the device works %.3f ms\n", sh->batch,
           whole * 1e3, device * 1e3);
    figure("host_share", 100 * share, "% of a decode step", 3, false);
}

static void fig_prefill(void)
{
    const model_config *c = model_get_config(m);
    double rows = (double)sh->prompts * sh->prompt_len, linear = 0;
    for (int p = 0; p < PROJ_COUNT; p++) {
        int d_out, d_in;
        model_proj_shape(c, (proj)p, &d_out, &d_in);
        linear += (double)d_out * d_in;
    }
    double flop = 2 * linear * c->n_layer * rows + 2.0 * sh->prompts * sh->dim * sh->n_vocab;
    flop += 4.0 * sh->prompts * sh->n_head * sh->head_dim * sh->n_layer * (double)sh->prompt_len *
            (sh->prompt_len + 1) / 2;
    build(0, sh->prompts, sh->prompt_len, sh->prompt_len, BARE);
    double t = step_s();
    printf("prefill of %d x %d: %.2f ms, %.1f TFLOP/s\n", sh->prompts, sh->prompt_len, t * 1e3,
           flop / t / 1e12);
    note("prefill_ms", t * 1e3);
    figure("prefill_of_matrix", flop / t / matrix_rate, "of the matrix rate", 0.6, true);
    build(0, sh->prompts, sh->prompt_len, sh->prompt_len, DISTINCT);
    t = step_s();
    printf("the same with %d adapters: %.2f ms\n", sh->prompts, t * 1e3);
    note("prefill_distinct_ms", t * 1e3);
}

static void fig_attention(void)
{
    size_t cols = (size_t)sh->n_head * (size_t)sh->head_dim;
    size_t bytes = (size_t)sh->attn_batch * cols * sizeof(float);
    double t[RUNS_MAX];
    err e;
    float *q = be_alloc(be, bytes), *out = be_alloc(be, bytes);
    if (!q || !out || be_upload(be, q, noise, bytes)) wrong("no room for attention's rows");
    build(0, sh->attn_batch, 1, sh->attn_len, BARE);
    for (int i = -2; i < sh->runs; i++) {
        int64_t from = clock_now_us();
        for (int l = 0; l < sh->n_layer; l++) be_attend(be, kv, out, q, NULL, &st.s[0], l);
        if (be_sync(be, &e)) die("attention", &e);
        if (i >= 0) t[i] = seconds(from);
    }
    double s = middle(t, sh->runs), read = (double)kv_bytes_of(sh->attn_batch, sh->attn_len);
    printf("attention of %d rows over %d: %.1f us a layer, %.2f TB/s\n", sh->attn_batch,
           sh->attn_len, s / sh->n_layer * 1e6, read / s / 1e12);
    figure("attention_of_copy", read / s / copy_rate, "of the copy's bandwidth", 0.85, true);
    be_free(be, q);
    be_free(be, out);
}

static void fig_many(void)
{
    make_adapters(sh->registered);
    if (n_view < sh->many) {
        printf("many: left out, the device has room for %d adapters of %d\n", n_view, sh->many);
        return;
    }
    build(0, sh->many, 1, sh->many_kv, BARE);
    double bare = step_s();
    spread = n_view / sh->many;
    build(0, sh->many, 1, sh->many_kv, DISTINCT);
    spread = 1;
    double with = step_s();
    printf("%d rows over %d: bare %.0f tokens/s, %d of %d adapters %.0f tokens/s\n", sh->many,
           sh->many_kv, sh->many / bare, sh->many, n_view, sh->many / with);
    note("many_adapters", n_view);
    note("many_bare_tokens_s", sh->many / bare);
    note("many_distinct_tokens_s", sh->many / with);
    /* An H200's bytes alone would give 20,513; 0.6 of that. */
    figure("many_tokens", sh->many / with, "tokens/s", 12300, true);
}

/* Most steps of a loaded server hold decode rows and a piece of a prompt. */
static void fig_mixed(void)
{
    int chunk = sh->prompt_len / 4;
    if (sh->batch * pages_for(sh->kv) + pages_for(chunk) > n_pages) {
        printf("mixed: left out, the device has room for %d KV pages\n", n_pages);
        return;
    }
    build(0, sh->batch, 1, sh->kv, BARE);
    double decode = step_s();
    build(0, 1, chunk, chunk, BARE);
    double prompt = step_s();
    build(0, sh->batch, 1, sh->kv, BARE);
    add_prompt(sh->kv, chunk);
    double both = step_s();
    printf("%d decode rows %.3f ms, %d rows of a prompt %.3f ms, together %.3f ms\n", sh->batch,
           decode * 1e3, chunk, prompt * 1e3, both * 1e3);
    note("mixed_ms", both * 1e3);
    figure("mixed_of_parts", both / (decode + prompt), "of its parts", 1.1, false);
}

/* One step of the sweep: who 0 to 2 as in `who`. */
static void sweep_step(int rows, int len, who w)
{
    static const char *const names[] = {"bare", "distinct", "shared"};
    char name[64];
    build(0, rows, 1, len, w);
    double ms = step_s() * 1e3;
    snprintf(name, sizeof(name), "step_%d_%d_%s_ms", rows, len, names[w]);
    printf("STEP %d rows over %d, %s: %.3f ms\n", rows, len, names[w], ms);
    (void)fflush(stdout);
    note(name, ms);
}

static void fig_sweep(void)
{
    static const int rows[] = {1, 8, 16, 32, 64, 128, 256}, lens[] = {128, 2048, 8192, 32768};
    make_adapters(sh->many < 64 ? sh->many : 64);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i] > sh->many || rows[i] * pages_for(sh->many_kv) > n_pages) continue;
        sweep_step(rows[i], sh->many_kv, BARE);
        sweep_step(rows[i], sh->many_kv, SHARED);
        if (rows[i] <= n_view) sweep_step(rows[i], sh->many_kv, DISTINCT);
    }
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        int fit = n_pages / pages_for(lens[i]), n = fit < sh->batch ? fit : sh->batch;
        if (n > 0 && lens[i] < sh->max_pos) sweep_step(n, lens[i], BARE);
    }
}

#ifdef BENCH_EMULATED
static bool own_products;

/* What steps launch, for predict.py. */
static void fig_launches(void)
{
    static const struct {
        const char *kind;
        int seqs, rows;
        who w;
    } kinds[] = {{"bare", 3, 1, BARE}, {"adapters", 3, 1, DISTINCT}, {"prompts", 1, 40, BARE}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        build(0, kinds[i].seqs, kinds[i].rows, sh->kv, kinds[i].w);
        printf("LAUNCHES %s: ", kinds[i].kind);
        emu_rt_trace(stdout);
        forward(0);
        emu_rt_trace(NULL);
        printf("\n");
    }
}
#endif

/* ---- main ------------------------------------------------------------------------------------ */

typedef struct job {
    const char *name;
    void (*run)(void);
    int rows, len; /* pages that it needs; 0: none */
} job;

static bool asked(int argc, char **argv, int from, const char *name)
{
    for (int i = from; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) return true;
    }
    return from >= argc;
}

static int options(int argc, char **argv, backend_config *bc, const char **scratch)
{
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        const char *v = argv[i + 1];
        if (strcmp(argv[i], "--fraction") == 0) bc->fraction = strtod(v, NULL);
#ifdef BENCH_EMULATED
        else if (strcmp(argv[i], "--products") == 0) /* "own": without cuBLAS's */
            own_products = strcmp(v, "own") == 0;
#endif
        else if (strcmp(argv[i], "--without") == 0)
            snprintf(bc->without, sizeof(bc->without), "%s", v);
        else if (strcmp(argv[i], "--scratch") == 0)
            *scratch = v;
        else if (strcmp(argv[i], "--json") == 0 && (json = fopen(v, "w")))
            continue;
        else if (strcmp(argv[i], "--shape") == 0) {
            sh = NULL;
            for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
                if (strcmp(shapes[k].name, v) == 0) sh = &shapes[k];
            }
            if (!sh) return -1;
        } else
            return -1;
    }
    return i < argc && argv[i][0] == '-' ? -1 : i;
}

int main(int argc, char **argv)
{
    const char *scratch = "/tmp";
    err e;
    backend_config bc = {.fraction = 0.92};
    int from = options(argc, argv, &bc, &scratch);
    if (from < 0) {
        fprintf(stderr,
                "usage: bench_device [--shape llama-3-8b|tiny] [--fraction F] [--scratch DIR] "
                "[--json FILE] [--without NAME,...] "
                "[decode|host|prefill|attention|many|mixed|sweep]...\n");
        return 2;
    }
    const job jobs[] = {
#ifdef BENCH_EMULATED
        {"launches", fig_launches, 3, sh->kv}, /* first: what is replayed is not launched */
#endif
        {"decode", fig_decode, sh->batch, sh->kv},
        {"host", fig_host, sh->batch, sh->kv},
        {"prefill", fig_prefill, sh->prompts, sh->prompt_len},
        {"attention", fig_attention, sh->attn_batch, sh->attn_len},
        {"many", fig_many, sh->many, sh->many_kv},
        {"mixed", fig_mixed, sh->batch, sh->kv},
        {"sweep", fig_sweep, 1, sh->many_kv}};
#ifdef BENCH_EMULATED
    emu_rt_device(1, (size_t)160 << 20);
#endif
    ops = backend_cuda;
    ops.weight_create = random_weight;
    ops.table_create = random_table;
    ops.sync = bench_sync;
    bc.max_rows = sh->prompts * sh->prompt_len > sh->many ? sh->prompts * sh->prompt_len : sh->many;
    bc.max_seqs = sh->many > sh->batch ? sh->many : sh->batch;
    bc.max_context = sh->max_pos;
    log_setup(LOG_DEBUG, LOG_TEXT); /* how each product was chosen */
    if (be_open(&be, &ops, &bc, &e)) {
        fprintf(stderr, "bench_device: %s\n", e.msg);
        return e.code == ERR_UNSUPPORTED ? 77 : 1;
    }
    printf("%s\n", be_caps(be)->detail);
    page_tokens = be_caps(be)->page_tokens;
    make_noise();
    fig_copy();
    fig_matrix();
#ifdef BENCH_EMULATED
    emu_rt_no_cublas(own_products);
#endif
    load_model(scratch);
    make_pages((size_t)sh->many * (lora_bytes() + ((size_t)1 << 20)));
    make_adapters(sh->batch);
    if (n_view < sh->batch) wrong("the device has no room for the adapters of one decode step");
    check_results();
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        const job *j = &jobs[i];
        if (!asked(argc, argv, from, j->name)) continue;
        int need = j->rows * pages_for(j->len);
        if (need > n_pages)
            printf("%s: left out, it takes %d KV pages and the device has room for %d\n", j->name,
                   need, n_pages);
        else
            j->run();
        (void)fflush(stdout);
    }
    if (json) {
        fprintf(json, "%s}\n", n_member ? "" : "{");
        if (fclose(json)) wrong("the JSON file cannot be written");
    }
    for (int v = 0; v < n_view; v++) {
        be_free(be, (void *)(uintptr_t)mats[v][0].a);
        free(mats[v]);
    }
    be_kv_destroy(be, kv);
    model_destroy(m);
    be_close(be);
    free(order);
    free(noise);
    return n_short ? 3 : 0;
}
