/* bench_spec.c -- what guessed tokens gain: recorded answers on a real engine.
 *
 *   bench_spec MODEL_DIR TEXT_FILE STREAMS ROUNDS [base | DRAFT_DIR PERCENT]
 *
 * A model with random weights says nothing, so it is told what to say: the backend's logits are
 * computed as ever, then the token that the recorded answer has at that position is raised above
 * all others.  Time is that of a real step, of 1 + n rows with all their logits; guesses are right
 * as often as the text allows.  Tokens are pieces of words, numbers, marks and spaces as large
 * vocabularies cut them.  Streams have eight random r=16 adapters, or, with "base", none.
 *
 * Where a text names a form (a JSON schema), its answers are kept to it, and what it leaves open is
 * guessed by it, too.
 *
 * A draft model is told in the same way: in PERCENT of all places what comes, else something else.
 * Then both sides guess, one with it and one without.
 *
 * Each round serves the texts of the file (streams take them by turns) with guesses and without;
 * which goes first changes.  One line of JSON for each: seconds from the first token to the last of
 * all, seconds of the processor from the first prompt to the last token, tokens, guesses.
 * LORAD_BENCH_GUESS=0|1: rounds without, or with, alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "engine/backend_ops.h"
#include "engine/base/clock.h"
#include "engine/grammar/grammar.h"
#include "engine/sched/sched.h"

enum {
    TEXTS = 8,
    TOKENS = 1024,
    STREAMS = 64,
    ADAPTERS = 8,
    RANK = 16,
    PIECES = 8192,
    PAGES = 1 << 16,
    MAX_ROWS = 256,
    DRAFT_ANSWER = 64, /* tokens of an answer beside a draft model */
};

typedef struct {
    int32_t token[TOKENS];
    int n_prompt, n;
    char *schema; /* NULL: none */
    grammar *form;
} recorded;

typedef struct {
    request rq;
    meter meter;
    request_signal sg;
    int32_t prompt[TOKENS];
    const recorded *text;
    grammar_run *run;
} client;

static recorded texts[TEXTS];
static int n_texts;
static char *piece[PIECES];
static int n_pieces;

static backend *be;
static model *m, *draft; /* draft: or NULL */
static int draft_percent;
static lora_view views[ADAPTERS];
static client clients[STREAMS];
static backend_ops told; /* the CPU's, with tell() */
static client
    *who[2][PAGES]; /* by the first page of a sequence, in the model's pool and the draft's */
static int first_token,
    n_vocab; /* both models have those; from first_token on they name a client */

static void die(const char *what)
{
    fprintf(stderr, "bench_spec: %s\n", what);
    exit(2);
}

/* ----------------------------------------------------------------------- the texts -- */

static int32_t token_of(const char *s, size_t len)
{
    for (int i = 0; i < n_pieces; i++) {
        if (strlen(piece[i]) == len && memcmp(piece[i], s, len) == 0) return i;
    }
    if (n_pieces == PIECES) die("too many pieces");
    piece[n_pieces] = strndup(s, len);
    return n_pieces++;
}

static int kind_of(unsigned char c)
{
    return c >= '0' && c <= '9'                                          ? 2
           : (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c > 127 ? 1
           : c == ' '                                                    ? 3
           : c == '\n'                                                   ? 4
                                                                         : 5;
}

/* Bytes of the next piece: up to eight letters, three digits or three marks, a space before; spaces
 * and line feeds in a row. */
static size_t cut(const char *s)
{
    size_t n = s[0] == ' ' && s[1] && kind_of((unsigned char)s[1]) != 3 ? 1 : 0, from = n;
    int kind = kind_of((unsigned char)s[n]);
    size_t most = kind == 1 ? 8 : kind == 2 || kind == 5 ? 3 : 16;
    while (s[n] && n - from < most && kind_of((unsigned char)s[n]) == kind) n++;
    return n;
}

static int put(recorded *r, const char *line)
{
    for (; *line; line += cut(line)) {
        if (r->n == TOKENS) die("a text is too long");
        r->token[r->n++] = token_of(line, cut(line));
    }
    return r->n;
}

static void read_texts(const char *path)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    enum { PROMPT, FORM, ANSWER } part = PROMPT;
    if (!f) die("no such file");
    while (getline(&line, &cap, f) > 0) {
        recorded *r = &texts[n_texts > 0 ? n_texts - 1 : 0];
        if (strcmp(line, "=== prompt\n") == 0) {
            if (n_texts == TEXTS) die("too many texts");
            texts[n_texts++].n = 1; /* the first token names the client */
            part = PROMPT;
        } else if (strcmp(line, "=== form\n") == 0) {
            part = FORM;
        } else if (strcmp(line, "=== answer\n") == 0) {
            part = ANSWER;
        } else if (part == FORM) {
            r->schema = strdup(line);
        } else {
            if (r->schema && part == ANSWER) line[strcspn(line, "\n")] = '\0'; /* it ends there */
            (void)put(r, line);
        }
        r = &texts[n_texts - 1];
        if (part == PROMPT) r->n_prompt = r->n;
    }
    free(line);
    (void)fclose(f);
}

/* ----------------------------------------------------------------------- the forms -- */

static bool is_shown(int byte)
{
    return (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
}

/* Bytes as byte-level vocabularies write them (GPT-2). */
static void add_piece(cJSON *vocab, const char *s, size_t len, int id)
{
    char name[64];
    int n = 0;
    for (size_t i = 0; i < len && n < 60; i++) {
        int byte = (unsigned char)s[i], code = byte;
        if (!is_shown(byte)) {
            code = 256;
            for (int b = 0; b < byte; b++) code += !is_shown(b);
        }
        if (code >= 128) name[n++] = (char)(0xC0 | code >> 6);
        name[n++] = (char)(code < 128 ? code : 0x80 | (code & 63));
    }
    name[n] = '\0';
    if (!cJSON_GetObjectItemCaseSensitive(vocab, name)) cJSON_AddNumberToObject(vocab, name, id);
}

/* The pieces, and behind them all bytes, as tokenizer.json has them. */
static tokenizer *make_tokenizer(void)
{
    char dir[] = "/tmp/bench_spec.XXXXXX", path[64];
    cJSON *doc = cJSON_Parse("{\"model\":{\"type\":\"BPE\",\"merges\":[]},\"decoder\":{\"type\":"
                             "\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                             "\"add_prefix_space\":false,\"use_regex\":true}}");
    cJSON *vocab = cJSON_AddObjectToObject(cJSON_GetObjectItem(doc, "model"), "vocab");
    for (int i = 0; i < n_pieces; i++) add_piece(vocab, piece[i], strlen(piece[i]), i);
    for (int b = 0; b < 256; b++) add_piece(vocab, &(char){(char)b}, 1, n_pieces + b);
    char *s = cJSON_PrintUnformatted(doc);
    if (!s || !mkdtemp(dir)) die("no vocabulary");
    (void)snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    if (!f || fputs(s, f) < 0 || fclose(f)) die("the vocabulary was not written");
    tokenizer *out;
    err e;
    if (tokenizer_load(&out, dir, &e)) die(e.msg);
    (void)unlink(path);
    (void)rmdir(dir);
    free(s);
    cJSON_Delete(doc);
    return out;
}

static void make_forms(void)
{
    grammar_maker *maker = NULL;
    err e;
    for (int i = 0; i < n_texts; i++) {
        if (!texts[i].schema) continue;
        if (!maker && grammar_maker_create(&maker, make_tokenizer(), n_vocab, &e)) die(e.msg);
        grammar_spec spec = {.kind = GRAMMAR_SCHEMA, .json = cJSON_Parse(texts[i].schema)};
        if (grammar_acquire(maker, &spec, &texts[i].form, &e)) die(e.msg);
    }
}

/* ------------------------------------------------------------------ what is to be said -- */

/* Which client a sequence is, known since its first token went by. */
static client *client_of(const step *s, const step_seq *q, bool drafts)
{
    client **c = &who[drafts][q->page[0]];
    if (q->pos0 == 0) *c = &clients[s->token[q->row0] - first_token];
    return *c;
}

/* What comes at a place, or, where the draft model errs, something else. */
static int32_t told_at(const recorded *r, int at, bool drafts)
{
    uint32_t h = ((uint32_t)(r - texts) * TOKENS + (uint32_t)at) * 2654435761U;
    bool errs = drafts && (int)((h >> 8) % 100) >= draft_percent;
    return errs ? (r->token[at] + 1) % first_token : r->token[at];
}

static void tell(backend *b, float *logits, const float *x, const float *norm_weight, float eps,
                 int dim, const weight *head, const step *s)
{
    bool drafts = draft && head == model_head_weight(draft);
    int own = model_get_config(drafts ? draft : m)->n_vocab;
    int stride = s->logit_stride ? s->logit_stride : own, logit = 0;
    backend_cpu.logits(b, logits, x, norm_weight, eps, dim, head, s);
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *q = &s->seq[i];
        const recorded *r = client_of(s, q, drafts)->text;
        for (; logit < s->n_logit && s->logit_row[logit] < q->row0 + q->n_rows; logit++) {
            int next = s->pos[s->logit_row[logit]] + 1;
            if (next >= r->n) continue;
            logits[(size_t)logit * (size_t)stride + told_at(r, next, drafts)] = 1e6F;
        }
    }
}

/* Without logits a step would not say who its sequences are. */
static void embed(backend *b, float *out, const void *table, dtype type, int dim, const step *s)
{
    bool drafts = draft && dim == model_get_config(draft)->dim;
    for (int i = 0; i < s->n_seq; i++) (void)client_of(s, &s->seq[i], drafts);
    backend_cpu.embed(b, out, table, type, dim, s);
}

/* ------------------------------------------------------------------------ the engine -- */

static void make_adapters(void)
{
    const model_config *c = model_get_config(m);
    size_t most = (size_t)RANK * 16384;
    float *x = malloc(most * sizeof(*x));
    if (!x) abort();
    for (size_t i = 0; i < most; i++) x[i] = ((float)(i * 7919 % 1000) / 1000 - 0.5F) * 0.02F;
    for (int a = 0; a < ADAPTERS; a++) {
        lora_mat *mat = calloc((size_t)c->n_layer * PROJ_COUNT, sizeof(*mat));
        if (!mat) abort();
        for (int i = 0; i < c->n_layer * PROJ_COUNT; i++) {
            int d_out, d_in;
            err e;
            model_proj_shape(c, (proj)(i % PROJ_COUNT), &d_out, &d_in);
            if (d_in == 0) continue; /* none in this model */
            if (d_out > 16384 || d_in > 16384) die("the model is too large");
            void *pa = be_alloc(be, be_lora_a_bytes(be, c->type, RANK, d_in));
            void *pb = be_alloc(be, be_lora_b_bytes(be, c->type, RANK, d_out));
            if (be_lora_pack(be, c->type, pa, pb, x, x, DT_F32, RANK, d_in, d_out, &e)) die(e.msg);
            mat[i] = (lora_mat){.a = pa, .b = pb, .rank = RANK, .scale = 2.0F};
        }
        views[a] = (lora_view){
            .adapter_id = (uint64_t)a + 1, .n_layer = c->n_layer, .rank_max = RANK, .mat = mat};
    }
    free(x);
}

static err_code acquire(void *self, uint64_t id, const lora_view **out, err *e)
{
    (void)self;
    (void)e;
    *out = &views[id - 1];
    return ERR_NONE;
}

static sched *start(int streams, int speculate, bool drafts)
{
    static const lora_source source = {.acquire = acquire};
    attn_shape shape = model_attn_shape(m);
    sched_config sc = {.max_rows = MAX_ROWS,
                       .max_seqs = streams,
                       .max_queued = STREAMS,
                       .max_context = TOKENS,
                       .max_logits = STREAMS + SCHED_SCORE_ROWS,
                       .kv_bytes =
                           (size_t)streams * (TOKENS / 32 + 4) * be_kv_page_bytes(be, &shape),
                       .preemption = PREEMPT_RECOMPUTE,
                       .speculate = speculate,
                       .draft = drafts ? draft : NULL,
                       .n_class = 1,
                       .classes = {{.name = "all"}}};
    sched *out;
    err e;
    if (sched_create(&out, &sc, m, be, &source, &e)) die(e.msg);
    return out;
}

static void begin(client *c, const recorded *text, bool lora, int most)
{
    int i = (int)(c - clients), n = text->n - text->n_prompt;
    *c = (client){.text = text};
    request_init(&c->rq);
    request_signal_init(&c->sg);
    memcpy(c->prompt, text->token, sizeof(c->prompt));
    c->prompt[0] = first_token + i;
    c->rq.prompt = c->prompt;
    c->rq.n_prompt = text->n_prompt;
    c->rq.max_tokens = n < most ? n : most;
    c->rq.adapter_id = lora ? (uint64_t)(i % ADAPTERS) + 1 : 0;
    c->rq.arrived_us = clock_now_us();
    c->rq.meter = &c->meter;
    c->rq.signal = &c->sg;
    c->rq.rules.temperature = 0;
    if (text->form) c->rq.grammar = c->run = grammar_run_create(text->form, NULL, 0);
    if (c->run) grammar_run_prepare(c->run);
    if (request_prepare(&c->rq, NULL)) die("no memory");
}

/* Tokens that came; they are what was recorded, or all figures mean nothing. */
static int finish(client *c)
{
    uint64_t seen = 0;
    bool done = false;
    sampled t;
    int n = 0;
    while (!done) {
        while (request_next(&c->rq, &t, &done)) {
            if (t.token != c->text->token[c->text->n_prompt + n]) die("another token came");
            n++;
        }
        if (!done) (void)request_signal_wait(&c->sg, &seen, 100);
    }
    grammar_run_release(c->run);
    request_clear(&c->rq);
    request_signal_clear(&c->sg);
    return n;
}

/* All streams at once; returns seconds from the first token to the last of all. */
static double serve(sched *sc, int streams, int from, bool lora, int most, int *tokens)
{
    int64_t first = INT64_MAX, last = 0;
    for (int i = 0; i < streams; i++) {
        begin(&clients[i], &texts[(from + i) % n_texts], lora, most);
        if (sched_submit(sc, &clients[i].rq, NULL)) die("not taken");
    }
    *tokens = 0;
    for (int i = 0; i < streams; i++) {
        *tokens += finish(&clients[i]);
        const request *rq = &clients[i].rq;
        if (rq->times.first_token_us < first) first = rq->times.first_token_us;
        if (rq->times.last_token_us > last) last = rq->times.last_token_us;
    }
    return (double)(last - first) / 1e6;
}

/* Of this process, its threads together. */
static double cpu_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure(const char *path, int streams, int round, bool lora, bool with)
{
    int speculate = with || draft ? 8 : 0, most = draft ? DRAFT_ANSWER : TOKENS;
    sched *sc = start(streams, speculate, with);
    sched_stats before, after;
    double s = 0;
    int tokens = 0, n;
    (void)serve(sc, streams, 0, lora, 24, &n);                   /* what steps cost is learnt ... */
    for (int from = 0; draft && from < n_texts; from += streams) /* ... and guesses are worth */
        (void)serve(sc, streams, from, lora, 24, &n);
    sched_stats_get(sc, &before);
    double cpu = cpu_s();
    for (int from = 0; from < n_texts; from += streams) {
        s += serve(sc, streams, from, lora, most, &n);
        tokens += n;
    }
    cpu = cpu_s() - cpu;
    sched_stats_get(sc, &after);
    sched_destroy(sc);
    printf("{\"text\":\"%s\",\"streams\":%d,\"round\":%d,\"lora\":%s,\"with\":%s,\"s\":%.4f,"
           "\"tokens\":%d,\"steps\":%d,\"guessed\":%d,\"right\":%d,\"drafted\":%d,"
           "\"draft_s\":%.4f,\"cpu_s\":%.4f}\n",
           path, streams, round, lora ? "true" : "false", with ? "true" : "false", s, tokens,
           (int)(after.n_steps - before.n_steps), (int)(after.guess.made - before.guess.made),
           (int)(after.guess.right - before.guess.right),
           (int)(after.guess.made_by[GUESS_DRAFT] - before.guess.made_by[GUESS_DRAFT]),
           (double)(after.guess.draft_us - before.guess.draft_us) / 1e6, cpu);
    (void)fflush(stdout);
}

static void load_draft(const char *dir, int percent)
{
    err e;
    draft_percent = percent;
    if (model_load(&draft, dir, be, MAX_ROWS, STREAMS + SCHED_SCORE_ROWS, &e)) die(e.msg);
    const model_config *c = model_get_config(draft);
    if (c->dim == model_get_config(m)->dim) die("the draft model is as wide as the model");
    if (c->n_vocab < n_vocab) n_vocab = c->n_vocab;
}

int main(int argc, char **argv)
{
    err e;
    const char *isa = getenv("LORAD_BENCH_ISA"), *threads = getenv("LORAD_BENCH_THREADS"),
               *only = getenv("LORAD_BENCH_GUESS");
    backend_config bc = {.isa = isa ? isa : "auto", .n_threads = threads ? atoi(threads) : 0};
    int streams = argc > 3 ? atoi(argv[3]) : 0, rounds = argc > 4 ? atoi(argv[4]) : 0;
    bool lora = !(argc == 6 && strcmp(argv[5], "base") == 0);
    if (argc < 5 || argc > 7 || streams < 1 || streams > STREAMS || rounds < 1) {
        fprintf(stderr, "usage: bench_spec MODEL_DIR TEXT_FILE STREAMS ROUNDS [base | DRAFT_DIR "
                        "PERCENT]\n");
        return 2;
    }
    read_texts(argv[2]);
    told = backend_cpu;
    told.logits = tell;
    told.embed = embed;
    if (be_open(&be, &told, &bc, &e)) die(e.msg);
    if (model_load(&m, argv[1], be, MAX_ROWS, STREAMS + SCHED_SCORE_ROWS, &e)) die(e.msg);
    n_vocab = model_get_config(m)->n_vocab;
    if (argc == 7) load_draft(argv[5], atoi(argv[6]));
    first_token = n_vocab - STREAMS;
    if (n_pieces > first_token) die("the vocabulary is too small");
    make_adapters();
    make_forms();
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < 2; k++)
            if (!only || atoi(only) == (i + k) % 2) measure(argv[2], streams, i, lora, (i + k) % 2);
    }
    return 0;
}
