/* bench_load.c -- a load generator for completions over HTTPS, one thread per request in flight.
 *
 *   bench_load --url https://localhost:8443 --key-file F --ca F --trace F --concurrency N
 *              [--model NAME] [--adapter-prefix P] [--vocab N] [--seed N] [--limit N] [--json F]
 *              [--gather yes]
 *
 * Each line of the trace is "arrival_ms adapter prompt_tokens output_tokens [class [tenant]]"
 * (workloads.py): the class is asked for as service_tier (up to a slash; the whole word names it in
 * the report), the tenant is a line of the key file.  With an adapter prefix the request's model is
 * prefix + adapter, else --model.  Adapter -1 always means --model.  Prompts are random token ids,
 * different in every request, so nothing is found in a cache; end-of-sequence is ignored, so each
 * request makes just the tokens asked for.  Requests with an arrival time wait for it (open loop),
 * up to --concurrency at once.  After SIGTERM nothing new is sent; what is under way is read to its
 * end and counted.  With --gather all connections are made (with TLS, by asking for the list of
 * models) before time begins, so that the first requests go out together.
 *
 * Prints one line of JSON: tokens per second over the whole run, time to first token and
 * inter-token latency (p50, p99, in milliseconds, as the client sees them), errors.
 * Where the trace names classes, the same of each beside: with the time per output token
 * after the first (TPOT, of a request), refusals (429), and the least tokens made in any
 * 10 s while arrivals went on.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <curl/curl.h>

#include "engine/base/clock.h"

enum {
    LINE_BYTES = 65536,
    KEY_BYTES = 256,
    CLASSES_MAX = 8,
    WINDOW_US = 10000000,
    GATHER_US = 3000000,
    WINDOWS_MAX = 4096
};

typedef struct {
    double arrival_ms;
    int adapter, prompt, output;
    int class, tenant; /* class: index in classes[], -1: none asked for */
} job;

typedef struct { /* latencies in microseconds */
    int64_t *v;
    size_t n, cap;
} series;

static struct {
    const char *url, *ca, *model, *prefix;
    char (*keys)[KEY_BYTES];
    int n_keys;
    int vocab, concurrency;
    bool gather;
    uint64_t seed;
    job *jobs;
    size_t n_jobs;
} opt = {.model = "base", .vocab = 256, .concurrency = 8, .seed = 1};

static atomic_size_t next_job;
static atomic_bool stopping;
static pthread_mutex_t stop_mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stop_now;
static pthread_cond_t all_here; /* with stop_mu */
static int n_here;
static int64_t t_start;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static series ttft, itl;
static uint64_t n_ok, n_failed, n_output;
static struct {
    char name[32];
    series ttft, tpot;
    uint64_t n_ok, n_failed, n_refused, n_output;
    uint32_t window[WINDOWS_MAX]; /* tokens */
} classes[CLASSES_MAX];
static int n_classes;
static char first_error[512];

typedef struct {
    char line[LINE_BYTES];
    size_t len;
    int64_t sent, first, last;
    int tokens, class;
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
    int64_t window = (now - t_start) / WINDOW_US;
    if (r->class < 0 || window >= WINDOWS_MAX) return;
    pthread_mutex_lock(&mu);
    classes[r->class].window[window] += (uint32_t)n;
    pthread_mutex_unlock(&mu);
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
        snprintf(model, sizeof(model), "%s%d", opt.prefix, j->adapter);
    } else {
        snprintf(model, sizeof(model), "%s", opt.model);
    }
    int at = snprintf(body, cap,
                      "{\"model\":\"%s\",\"max_tokens\":%d,\"ignore_eos\":true,\"stream\":true,"
                      "\"temperature\":0,\"return_token_ids\":true,\"prompt\":[",
                      model, j->output);
    if (j->class >= 0) {
        at = snprintf(body, cap,
                      "{\"model\":\"%s\",\"max_tokens\":%d,\"ignore_eos\":true,\"stream\":true,"
                      "\"temperature\":0,\"return_token_ids\":true,\"service_tier\":\"%.*s\","
                      "\"prompt\":[",
                      model, j->output, (int)strcspn(classes[j->class].name, "/"),
                      classes[j->class].name);
    }
    for (int i = 0; i < j->prompt; i++) {
        uint64_t r = mix(opt.seed * 1000003 + index * 4099 + (uint64_t)i);
        at += snprintf(body + at, cap - (size_t)at, "%s%d", i ? "," : "",
                       (int)(r % (uint64_t)opt.vocab));
    }
    snprintf(body + at, cap - (size_t)at, "]}");
    return body;
}

static void record_class(const reading *r, const char *error, bool refused)
{
    int c = r->class;
    classes[c].n_output += (uint64_t)r->tokens;
    classes[c].n_refused += refused;
    classes[c].n_failed += error && !refused;
    if (error) return;
    classes[c].n_ok++;
    series_add(&classes[c].ttft, r->first - r->sent);
    if (r->tokens > 1) series_add(&classes[c].tpot, (r->last - r->first) / (r->tokens - 1));
}

static void record(const reading *r, const char *error, bool refused)
{
    pthread_mutex_lock(&mu);
    n_output += (uint64_t)r->tokens;
    if (r->class >= 0) record_class(r, error, refused);
    if (error) {
        n_failed++;
        if (!first_error[0] && !(refused && r->class >= 0))
            snprintf(first_error, sizeof(first_error), "%s", error);
    } else {
        n_ok++;
        series_add(&ttft, r->first - r->sent);
        for (size_t i = 0; i < r->gaps.n; i++) series_add(&itl, r->gaps.v[i]);
    }
    pthread_mutex_unlock(&mu);
}

/* True: it is time; false: there will be nothing more. */
static bool wait_until(int64_t due_us)
{
    struct timespec end = {due_us / 1000000, due_us % 1000000 * 1000};
    pthread_mutex_lock(&stop_mu);
    while (!atomic_load(&stopping) && clock_now_us() < due_us)
        (void)pthread_cond_timedwait(&stop_now, &stop_mu, &end);
    pthread_mutex_unlock(&stop_mu);
    return !atomic_load(&stopping);
}

/* The one thread that SIGTERM reaches. */
static void *await_stop(void *arg)
{
    int got;
    (void)sigwait(arg, &got);
    pthread_mutex_lock(&stop_mu);
    atomic_store(&stopping, true);
    pthread_cond_broadcast(&stop_now);
    pthread_mutex_unlock(&stop_mu);
    return NULL;
}

static void listen_for_stop(void)
{
    static sigset_t set;
    pthread_t thread;
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&stop_now, &attr);
    (void)pthread_cond_init(&all_here, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pthread_create(&thread, NULL, await_stop, &set) != 0) abort();
    (void)pthread_detach(thread);
}

static void run_job(CURL *curl, reading *r, struct curl_slist *const *headers, size_t index)
{
    const job *j = &opt.jobs[index];
    int64_t due = t_start + (int64_t)(j->arrival_ms * 1000);
    if (!wait_until(due)) return;
    char *body = make_body(index);
    r->len = 0;
    r->tokens = 0;
    r->class = j->class;
    r->done = r->failed = false;
    r->gaps.n = 0;
    r->sent = clock_now_us();
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers[j->tenant]);
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    CURLcode rc = curl_easy_perform(curl);
    long status = 0;
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    char why[512];
    const char *error = NULL;
    if (rc != CURLE_OK || status != 200 || r->failed || !r->done || r->tokens != j->output) {
        snprintf(why, sizeof(why), "%s, status %ld, %d of %d tokens: %.300s",
                 curl_easy_strerror(rc), status, r->tokens, j->output, r->line);
        error = why;
    }
    record(r, error, status == 429);
    free(body);
}

/* Connects, and comes back when all workers have; asks again in between, as an
 * idle connection is dropped. */
static void gather(CURL *curl, struct curl_slist *headers)
{
    char url[512];
    snprintf(url, sizeof(url), "%s/v1/models", opt.url);
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    bool here = false;
    for (;;) {
        CURLcode rc = curl_easy_perform(curl);
        if (rc != CURLE_OK) fprintf(stderr, "bench_load: gathering: %s\n", curl_easy_strerror(rc));
        int64_t again = clock_now_us() + GATHER_US;
        struct timespec end = {again / 1000000, again % 1000000 * 1000};
        pthread_mutex_lock(&stop_mu);
        if (!here && ++n_here == opt.concurrency) {
            t_start = clock_now_us();
            pthread_cond_broadcast(&all_here);
        }
        here = true;
        int timed_out = 0;
        while (n_here < opt.concurrency && !timed_out)
            timed_out = pthread_cond_timedwait(&all_here, &stop_mu, &end);
        bool all = n_here == opt.concurrency;
        pthread_mutex_unlock(&stop_mu);
        if (all) return;
    }
}

static void *worker(void *arg)
{
    (void)arg;
    reading *r = calloc(1, sizeof(*r));
    CURL *curl = curl_easy_init();
    if (!r || !curl) abort();
    char url[512], auth[KEY_BYTES + 32];
    snprintf(url, sizeof(url), "%s/v1/completions", opt.url);
    struct curl_slist **headers = calloc((size_t)opt.n_keys, sizeof(struct curl_slist *));
    if (!headers) abort();
    for (int i = 0; i < opt.n_keys; i++) {
        snprintf(auth, sizeof(auth), "Authorization: Bearer %s", opt.keys[i]);
        headers[i] = curl_slist_append(NULL, auth);
        headers[i] = curl_slist_append(headers[i], "Content-Type: application/json");
        headers[i] = curl_slist_append(headers[i], "Expect:");
    }
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, r);
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT, 1800L);
    /* The server drops a connection that was idle for 8 s: never send on one that may be gone. */
    (void)curl_easy_setopt(curl, CURLOPT_MAXAGE_CONN, 5L);
    if (opt.ca) (void)curl_easy_setopt(curl, CURLOPT_CAINFO, opt.ca);
    if (opt.gather) gather(curl, headers[0]);
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    for (;;) {
        size_t i = atomic_fetch_add(&next_job, 1);
        if (i >= opt.n_jobs) break;
        run_job(curl, r, headers, i);
    }
    curl_easy_cleanup(curl);
    for (int i = 0; i < opt.n_keys; i++) curl_slist_free_all(headers[i]);
    free(headers);
    free(r->gaps.v);
    free(r);
    return NULL;
}

static FILE *must_open(const char *path)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (f) return f;
    perror(path);
    exit(2);
}

static int class_of(const char *name)
{
    int i = 0;
    while (i < n_classes && strcmp(classes[i].name, name) != 0) i++;
    if (i == CLASSES_MAX) {
        fprintf(stderr, "bench_load: more than %d classes\n", CLASSES_MAX);
        exit(2);
    }
    if (i == n_classes) snprintf(classes[n_classes++].name, sizeof(classes[i].name), "%s", name);
    return i;
}

static void read_trace(const char *path, size_t limit)
{
    FILE *f = must_open(path);
    size_t cap = 0;
    char line[256];
    while (opt.n_jobs < limit && fgets(line, sizeof(line), f)) {
        job j = {.class = -1};
        char class[32];
        int n = sscanf(line, "%lf %d %d %d %31s %d", &j.arrival_ms, &j.adapter, &j.prompt,
                       &j.output, class, &j.tenant);
        if (n < 4 || j.tenant < 0 || j.tenant >= opt.n_keys) {
            fprintf(stderr, "bench_load: cannot use this line of the trace: %s\n", line);
            exit(2);
        }
        if (n > 4) j.class = class_of(class);
        if (opt.n_jobs == cap) {
            cap = cap ? 2 * cap : 256;
            opt.jobs = realloc(opt.jobs, cap * sizeof(*opt.jobs));
            if (!opt.jobs) abort();
        }
        opt.jobs[opt.n_jobs++] = j;
    }
    if (f != stdin) (void)fclose(f);
}

static void read_keys(const char *path)
{
    FILE *f = must_open(path);
    char line[KEY_BYTES];
    while (fgets(line, sizeof(line), f)) {
        opt.keys = realloc(opt.keys, (size_t)(opt.n_keys + 1) * sizeof(*opt.keys));
        if (!opt.keys) abort();
        line[strcspn(line, "\r\n")] = 0;
        memcpy(opt.keys[opt.n_keys++], line, sizeof(line));
    }
    if (f != stdin) (void)fclose(f);
}

/* In whole windows up to the last arrival. */
static uint32_t least_of(int c)
{
    int64_t n = (int64_t)(opt.jobs[opt.n_jobs - 1].arrival_ms * 1000) / WINDOW_US;
    uint32_t least = n > 0 ? UINT32_MAX : 0;
    for (int64_t i = 0; i < n && i < WINDOWS_MAX; i++) {
        if (classes[c].window[i] < least) least = classes[c].window[i];
    }
    return least;
}

static void report_class(FILE *f, int c)
{
    fprintf(f,
            "%s\"%s\":{\"requests\":%" PRIu64 ",\"errors\":%" PRIu64 ",\"refused\":%" PRIu64
            ",\"output_tokens\":%" PRIu64 ",\"ttft_p50_ms\":%.2f,\"ttft_p99_ms\":%.2f,"
            "\"tpot_p50_ms\":%.3f,\"tpot_p99_ms\":%.3f,\"least_tokens_10s\":%" PRIu32 "}",
            c ? "," : "", classes[c].name, classes[c].n_ok, classes[c].n_failed,
            classes[c].n_refused, classes[c].n_output, percentile_ms(&classes[c].ttft, 0.5),
            percentile_ms(&classes[c].ttft, 0.99), percentile_ms(&classes[c].tpot, 0.5),
            percentile_ms(&classes[c].tpot, 0.99), least_of(c));
}

static void report(FILE *f, double wall_s)
{
    fprintf(f,
            "{\"requests\":%" PRIu64 ",\"errors\":%" PRIu64 ",\"output_tokens\":%" PRIu64
            ",\"wall_s\":%.3f,\"tokens_per_s\":%.2f,\"ttft_p50_ms\":%.2f,"
            "\"ttft_p99_ms\":%.2f,\"itl_p50_ms\":%.3f,\"itl_p99_ms\":%.3f",
            n_ok, n_failed, n_output, wall_s, (double)n_output / wall_s, percentile_ms(&ttft, 0.5),
            percentile_ms(&ttft, 0.99), percentile_ms(&itl, 0.5), percentile_ms(&itl, 0.99));
    for (int c = 0; c < n_classes; c++) {
        if (c == 0) (void)fputs(",\"classes\":{", f);
        report_class(f, c);
    }
    (void)fputs(n_classes ? "}}\n" : "}\n", f);
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
            read_keys(v);
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
        else if (strcmp(name, "--gather") == 0)
            opt.gather = strcmp(v, "yes") == 0;
        else {
            fprintf(stderr, "bench_load: unknown option %s\n", name);
            return 2;
        }
    }
    if (!opt.url || opt.n_keys == 0 || !trace || opt.concurrency < 1 || opt.vocab < 1) {
        fprintf(stderr, "bench_load: --url, --key-file and --trace are needed\n");
        return 2;
    }
    read_trace(trace, limit);
    (void)curl_global_init(CURL_GLOBAL_ALL);
    pthread_t *threads = calloc((size_t)opt.concurrency, sizeof(*threads));
    if (!threads) abort();
    listen_for_stop();
    t_start = clock_now_us();
    for (int i = 0; i < opt.concurrency; i++) {
        if (pthread_create(&threads[i], NULL, worker, NULL) != 0) abort();
    }
    for (int i = 0; i < opt.concurrency; i++) (void)pthread_join(threads[i], NULL);
    double wall_s = (double)(clock_now_us() - t_start) / 1e6;
    report(stdout, wall_s);
    if (first_error[0]) fprintf(stderr, "bench_load: first error: %s\n", first_error);
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
    free(opt.keys);
    for (int c = 0; c < n_classes; c++) {
        free(classes[c].ttft.v);
        free(classes[c].tpot.v);
    }
    free(ttft.v);
    free(itl.v);
    curl_global_cleanup();
    return n_failed ? 1 : 0;
}
