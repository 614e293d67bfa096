/* bench_load.c -- a load generator for completions over HTTPS, one thread per request in flight.
 *
 *   bench_load --url https://localhost:8443 --key-file F --ca F --trace F --concurrency N
 *              [--model NAME] [--adapter-prefix P] [--vocab N] [--seed N] [--limit N] [--json F]
 *
 * Each line of the trace is "arrival_ms adapter prompt_tokens output_tokens" (workloads.py).  With
 * an adapter prefix the request's model is prefix + adapter, else --model.  Adapter -1 always means
 * --model.  Prompts are random token ids, different in every request, so nothing is found in a
 * cache; end-of-sequence is ignored, so each request makes just the tokens asked for.  Requests
 * with an arrival time wait for it (open loop), up to --concurrency at once.
 *
 * Prints one line of JSON: tokens per second over the whole run, time to first token and
 * inter-token latency (p50, p99, in milliseconds, as the client sees them), errors.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <curl/curl.h>

#include "engine/base/clock.h"

enum { LINE_BYTES = 65536, KEY_BYTES = 256 };

typedef struct {
    double arrival_ms;
    int adapter, prompt, output;
} job;

typedef struct { /* latencies in microseconds */
    int64_t *v;
    size_t n, cap;
} series;

static struct {
    const char *url, *ca, *model, *prefix;
    char key[KEY_BYTES];
    int vocab, concurrency;
    uint64_t seed;
    job *jobs;
    size_t n_jobs;
} opt = {.model = "base", .vocab = 256, .concurrency = 8, .seed = 1};

static atomic_size_t next_job;
static int64_t t_start;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static series ttft, itl;
static uint64_t n_ok, n_failed, n_output;
static char first_error[512];

typedef struct {
    char line[LINE_BYTES];
    size_t len;
    int64_t sent, first, last;
    int tokens;
    bool done, failed;
    series gaps;
} reading;

static void series_add(series *s, int64_t v)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 1024;
        s->v = realloc(s->v, s->cap * sizeof(*s->v));
        if (!s->v) abort();
    }
    s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_ms(series *s, double p)
{
    if (s->n == 0) return 0;
    qsort(s->v, s->n, sizeof(*s->v), by_value);
    size_t i = (size_t)(p * (double)(s->n - 1) + 0.5);
    return (double)s->v[i] / 1000;
}

/* Counts the ids in "token_ids":[1,2]; a chunk usually holds one. */
static int count_ids(const char *line)
{
    const char *p = strstr(line, "\"token_ids\":[");
    if (!p) return 0;
    p += strlen("\"token_ids\":[");
    if (*p == ']') return 0;
    int n = 1;
    for (; *p && *p != ']'; p++) n += *p == ',';
    return n;
}

static void take_line(reading *r)
{
    r->line[r->len] = 0;
    if (strncmp(r->line, "data: ", 6) != 0) {
        if (r->len && r->line[0] == '{') r->failed = true; /* an error body */
        return;
    }
    if (strcmp(r->line, "data: [DONE]") == 0) {
        r->done = true;
        return;
    }
    if (strncmp(r->line, "data: {\"error\"", 14) == 0) r->failed = true;
    int n = count_ids(r->line);
    if (n == 0) return;
    int64_t now = clock_now_us();
    if (r->tokens == 0)
        r->first = now;
    else
        series_add(&r->gaps, (now - r->last) / n);
    for (int i = 1; i < n && r->tokens; i++) series_add(&r->gaps, (now - r->last) / n);
    r->last = now;
    r->tokens += n;
}

static size_t on_data(char *data, size_t size, size_t n, void *arg)
{
    reading *r = arg;
    for (size_t i = 0; i < size * n; i++) {
        if (data[i] == '\n') {
            take_line(r);
            r->len = 0;
        } else if (r->len < LINE_BYTES - 1) {
            r->line[r->len++] = data[i];
        }
    }
    return size * n;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

static char *make_body(size_t index)
{
    const job *j = &opt.jobs[index];
    size_t cap = 512 + strlen(opt.model) + 8 * (size_t)j->prompt;
    char *body = malloc(cap);
    if (!body) abort();
    char model[256];
    if (opt.prefix && j->adapter >= 0) {
        (void)snprintf(model, sizeof(model), "%s%d", opt.prefix, j->adapter);
    } else {
        (void)snprintf(model, sizeof(model), "%s", opt.model);
    }
    int at = snprintf(body, cap,
                      "{\"model\":\"%s\",\"max_tokens\":%d,\"ignore_eos\":true,\"stream\":true,"
                      "\"temperature\":0,\"return_token_ids\":true,\"prompt\":[",
                      model, j->output);
    for (int i = 0; i < j->prompt; i++) {
        uint64_t r = mix(opt.seed * 1000003 + index * 4099 + (uint64_t)i);
        at += snprintf(body + at, cap - (size_t)at, "%s%d", i ? "," : "",
                       (int)(r % (uint64_t)opt.vocab));
    }
    (void)snprintf(body + at, cap - (size_t)at, "]}");
    return body;
}

static void record(const reading *r, const char *error)
{
    pthread_mutex_lock(&mu);
    n_output += (uint64_t)r->tokens;
    if (error) {
        n_failed++;
        if (!first_error[0]) (void)snprintf(first_error, sizeof(first_error), "%s", error);
    } else {
        n_ok++;
        series_add(&ttft, r->first - r->sent);
        for (size_t i = 0; i < r->gaps.n; i++) series_add(&itl, r->gaps.v[i]);
    }
    pthread_mutex_unlock(&mu);
}

static void run_job(CURL *curl, reading *r, size_t index)
{
    const job *j = &opt.jobs[index];
    int64_t due = t_start + (int64_t)(j->arrival_ms * 1000);
    int64_t now = clock_now_us();
    if (due > now) (void)usleep((useconds_t)(due - now));
    char *body = make_body(index);
    r->len = 0;
    r->tokens = 0;
    r->done = r->failed = false;
    r->gaps.n = 0;
    r->sent = clock_now_us();
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    CURLcode rc = curl_easy_perform(curl);
    long status = 0;
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    char why[512];
    const char *error = NULL;
    if (rc != CURLE_OK || status != 200 || r->failed || !r->done || r->tokens != j->output) {
        (void)snprintf(why, sizeof(why), "%s, status %ld, %d of %d tokens: %.300s",
                       curl_easy_strerror(rc), status, r->tokens, j->output, r->line);
        error = why;
    }
    record(r, error);
    free(body);
}

static void *worker(void *arg)
{
    (void)arg;
    reading *r = calloc(1, sizeof(*r));
    CURL *curl = curl_easy_init();
    if (!r || !curl) abort();
    char url[512], auth[KEY_BYTES + 32];
    (void)snprintf(url, sizeof(url), "%s/v1/completions", opt.url);
    (void)snprintf(auth, sizeof(auth), "Authorization: Bearer %s", opt.key);
    struct curl_slist *headers = curl_slist_append(NULL, auth);
    headers = curl_slist_append(headers, "Content-Type: application/json");
    headers = curl_slist_append(headers, "Expect:");
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, r);
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT, 1800L);
    if (opt.ca) (void)curl_easy_setopt(curl, CURLOPT_CAINFO, opt.ca);
    for (;;) {
        size_t i = atomic_fetch_add(&next_job, 1);
        if (i >= opt.n_jobs) break;
        run_job(curl, r, i);
    }
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    free(r->gaps.v);
    free(r);
    return NULL;
}

static void read_trace(const char *path, size_t limit)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (!f) {
        perror(path);
        exit(2);
    }
    size_t cap = 0;
    job j;
    while (opt.n_jobs < limit &&
           fscanf(f, "%lf %d %d %d", &j.arrival_ms, &j.adapter, &j.prompt, &j.output) == 4) {
        if (opt.n_jobs == cap) {
            cap = cap ? 2 * cap : 256;
            opt.jobs = realloc(opt.jobs, cap * sizeof(*opt.jobs));
            if (!opt.jobs) abort();
        }
        opt.jobs[opt.n_jobs++] = j;
    }
    if (f != stdin) (void)fclose(f);
}

static void read_key(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f || !fgets(opt.key, sizeof(opt.key), f)) {
        perror(path);
        exit(2);
    }
    opt.key[strcspn(opt.key, "\r\n")] = 0;
    (void)fclose(f);
}

static void report(FILE *f, double wall_s)
{
    (void)fprintf(f,
                  "{\"requests\":%" PRIu64 ",\"errors\":%" PRIu64 ",\"output_tokens\":%" PRIu64
                  ",\"wall_s\":%.3f,\"tokens_per_s\":%.2f,\"ttft_p50_ms\":%.2f,"
                  "\"ttft_p99_ms\":%.2f,\"itl_p50_ms\":%.3f,\"itl_p99_ms\":%.3f}\n",
                  n_ok, n_failed, n_output, wall_s, (double)n_output / wall_s,
                  percentile_ms(&ttft, 0.5), percentile_ms(&ttft, 0.99), percentile_ms(&itl, 0.5),
                  percentile_ms(&itl, 0.99));
}

int main(int argc, char **argv)
{
    const char *trace = NULL, *json = NULL;
    size_t limit = SIZE_MAX;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *v = argv[i + 1];
        if (strcmp(name, "--url") == 0)
            opt.url = v;
        else if (strcmp(name, "--key-file") == 0)
            read_key(v);
        else if (strcmp(name, "--ca") == 0)
            opt.ca = v;
        else if (strcmp(name, "--trace") == 0)
            trace = v;
        else if (strcmp(name, "--model") == 0)
            opt.model = v;
        else if (strcmp(name, "--adapter-prefix") == 0)
            opt.prefix = v;
        else if (strcmp(name, "--concurrency") == 0)
            opt.concurrency = atoi(v);
        else if (strcmp(name, "--vocab") == 0)
            opt.vocab = atoi(v);
        else if (strcmp(name, "--seed") == 0)
            opt.seed = strtoull(v, NULL, 10);
        else if (strcmp(name, "--limit") == 0)
            limit = strtoull(v, NULL, 10);
        else if (strcmp(name, "--json") == 0)
            json = v;
        else {
            (void)fprintf(stderr, "bench_load: unknown option %s\n", name);
            return 2;
        }
    }
    if (!opt.url || !opt.key[0] || !trace || opt.concurrency < 1 || opt.vocab < 1) {
        (void)fprintf(stderr, "bench_load: --url, --key-file and --trace are needed\n");
        return 2;
    }
    read_trace(trace, limit);
    (void)curl_global_init(CURL_GLOBAL_ALL);
    pthread_t *threads = calloc((size_t)opt.concurrency, sizeof(*threads));
    if (!threads) abort();
    t_start = clock_now_us();
    for (int i = 0; i < opt.concurrency; i++) {
        if (pthread_create(&threads[i], NULL, worker, NULL) != 0) abort();
    }
    for (int i = 0; i < opt.concurrency; i++) (void)pthread_join(threads[i], NULL);
    double wall_s = (double)(clock_now_us() - t_start) / 1e6;
    report(stdout, wall_s);
    if (first_error[0]) (void)fprintf(stderr, "bench_load: first error: %s\n", first_error);
    if (json) {
        FILE *f = fopen(json, "w");
        if (!f) {
            perror(json);
            return 2;
        }
        report(f, wall_s);
        (void)fclose(f);
    }
    free(threads);
    free(opt.jobs);
    free(ttft.v);
    free(itl.v);
    curl_global_cleanup();
    return n_failed ? 1 : 0;
}
