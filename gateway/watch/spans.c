/* spans.c -- exports traces of requests to an OpenTelemetry collector (OTLP over HTTP, JSON).
 *
 *   worker at the end of a request --spans_put()--> ring (oldest lost when full) --> thread:
 *   batches of up to BATCH requests --> POST
 *
 * spans_begin() decides whether a request is sampled: by the client's traceparent flag if it sent
 * one, else by the configured share. The spans of a request are written from its timestamps
 * afterwards (spans_json.c), so tracing costs nothing while it runs.
 *
 * A batch that the collector rejects for good is dropped; a temporary failure (no answer, 429, 502,
 * 503, 504) is retried for a limited time. Losses are counted (spans_get()), and logged once per
 * outage.
 *
 * Threads: any thread puts; one thread owns curl; `mu` guards the ring. Memory: the ring is
 * allocated at the start.
 */
#include "gateway/watch/spans.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

#include <curl/curl.h>

#include "engine/base/clock.h"
#include "engine/base/hex.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "engine/base/private_file.h"
#include "gateway/fetch/fetch_headers.h"
#include "gateway/watch/spans_inside.h"

enum {
    BATCH = 128, /* requests in one export */
    PAUSE_MS = 1000,
    TRIES = 5,
    POST_MS = 10000,
    LAST_POST_MS = 2000,
    HEADER_MAX = 1024,
    URL_MAX = 512,
    SAMPLED = 1, /* of traceparent's flags */
};

struct spans {
    pthread_t thread;
    char url[URL_MAX];
    struct curl_slist *headers;
    CURL *curl; /* the thread's */
    span_source source;
    double sample;
    bool told; /* the log knows that the collector is away; the thread's */

    lock mu; /* guards all below */
    cond work;
    span_request ring[SPANS_MAX];
    uint64_t n_put, n_taken;
    spans_stats stats;
    bool stop;
};

/* ----------------------------------------------------------------------- sampling -- */

static bool random_bytes(void *out, size_t n)
{
    return getrandom(out, n, GRND_NONBLOCK) == (ssize_t)n;
}

bool spans_begin(const spans *s, trace_context *t)
{
    unsigned char id[16];
    uint32_t draw;
    if (!s) return false;
    if (t->trace_id[0]) return hex_value(t->flags, t->flags + 2, 2) & SAMPLED;
    if (s->sample <= 0 || !random_bytes(&draw, sizeof(draw))) return false;
    if ((double)draw / 4294967296.0 >= s->sample || !random_bytes(id, sizeof(id))) return false;
    for (size_t i = 0; i < sizeof(id); i++) snprintf(t->trace_id + 2 * i, 3, "%02x", id[i]);
    return true;
}

/* --------------------------------------------------------------------- the thread -- */

static size_t ignore(char *data, size_t size, size_t n, void *arg)
{
    (void)data;
    (void)arg;
    return size * n;
}

/* One try; 0: no answer came. */
static long post(spans *s, const jsonw *w, long limit_ms)
{
    long status = 0;
    CURL *h = s->curl;
    bool ok = curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)w->len) == CURLE_OK &&
              curl_easy_setopt(h, CURLOPT_POSTFIELDS, w->text) == CURLE_OK &&
              curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, limit_ms) == CURLE_OK &&
              curl_easy_perform(h) == CURLE_OK;
    if (ok) (void)curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

static bool may_come_later(long status)
{
    return status == 0 || status == 429 || status == 502 || status == 503 || status == 504;
}

static void pause_locked(spans *s, int64_t ms)
{
    lock_assert_held(&s->mu);
    int64_t end_us = clock_now_us() + ms * 1000;
    while (!s->stop && cond_wait_until(&s->work, &s->mu, end_us)) continue;
}

/* Sends what is written, or gives it up. */
static void send_batch(spans *s, const jsonw *w, int n)
{
    long status = 0;
    for (int i = 0; i < TRIES; i++) {
        lock_take(&s->mu);
        bool last = s->stop;
        lock_release(&s->mu);
        status = w->failed ? 0 : post(s, w, last ? LAST_POST_MS : POST_MS);
        if (status / 100 == 2) break;
        lock_take(&s->mu);
        s->stats.n_failures++;
        if (!last) pause_locked(s, PAUSE_MS << i);
        lock_release(&s->mu);
        if (last || w->failed || !may_come_later(status)) break;
    }
    bool sent = status / 100 == 2;
    if (!sent && !s->told)
        log_warn("traces", "the collector does not accept traces (%ld); they are dropped", status);
    s->told = !sent;
    lock_take(&s->mu);
    *(sent ? &s->stats.n_sent : &s->stats.n_dropped) += (uint64_t)n;
    lock_release(&s->mu);
}

static int take_locked(spans *s, span_request *out)
{
    int n = 0;
    lock_assert_held(&s->mu);
    assert(s->n_taken <= s->n_put && s->n_put - s->n_taken <= SPANS_MAX);
    for (; n < BATCH && s->n_taken < s->n_put; n++) out[n] = s->ring[s->n_taken++ % SPANS_MAX];
    return n;
}

static void *send_main(void *arg)
{
    spans *s = arg;
    span_request *batch = calloc(BATCH, sizeof(*batch));
    (void)pthread_setname_np(pthread_self(), "traces");
    lock_take(&s->mu);
    while (batch) {
        /* Some company for each: an export is worth more than one request. */
        if (s->n_put - s->n_taken < BATCH) pause_locked(s, PAUSE_MS);
        int n = take_locked(s, batch);
        if (n == 0 && s->stop) break;
        if (n == 0) continue;
        lock_release(&s->mu);
        jsonw w;
        jsonw_init(&w);
        spans_write(&w, &s->source, batch, n);
        send_batch(s, &w, n);
        jsonw_clear(&w);
        lock_take(&s->mu);
    }
    lock_release(&s->mu);
    free(batch);
    return NULL;
}

/* --------------------------------------------------------------------- from outside -- */

void spans_put(spans *s, const span_request *r)
{
    lock_take(&s->mu);
    if (s->n_put - s->n_taken == SPANS_MAX) {
        s->stats.n_dropped++;
    } else {
        s->ring[s->n_put++ % SPANS_MAX] = *r;
        if (s->n_put - s->n_taken == BATCH) cond_signal(&s->work);
    }
    lock_release(&s->mu);
}

void spans_get(spans *s, spans_stats *out)
{
    lock_take(&s->mu);
    *out = s->stats;
    lock_release(&s->mu);
}

/* --------------------------------------------------------------------------- life -- */

/* A name of a header's characters, a colon. */
static bool is_header(const char *line)
{
    size_t n = strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");
    return n > 0 && line[n] == ':';
}

static err_code read_headers(spans *s, const char *path, err *e)
{
    char line[HEADER_MAX];
    err_code rc = ERR_NONE;
    if (private_file_check(path, "traces.headers", e)) return e->code;
    FILE *f = fopen(path, "re");
    if (!f) return err_set(e, ERR_NOT_FOUND, "traces.headers: %s: %s", path, strerror(errno));
    for (int i = 1; !rc && fgets(line, sizeof(line), f); i++) {
        size_t n = strcspn(line, "\r\n");
        bool whole = line[n] || feof(f);
        line[n] = 0;
        if (!n) continue;
        if (!whole || !is_header(line))
            rc = err_set(e, ERR_INPUT, "traces.headers: line %d of %s is not a header", i, path);
        else if (!fetch_add_header(&s->headers, "%s", line))
            rc = err_set(e, ERR_NOMEM, "no memory for traces");
    }
    (void)fclose(f);
    explicit_bzero(line, sizeof(line));
    return rc;
}

static err_code check_url(spans *s, const char *url, err *e)
{
    bool http = strncasecmp(url, "http://", 7) == 0 && url[7];
    bool https = strncasecmp(url, "https://", 8) == 0 && url[8];
    if (!http && !https)
        return err_set(e, ERR_INPUT, "traces.endpoint: '%.80s' is not an http or https URL", url);
    if ((size_t)snprintf(s->url, sizeof(s->url), "%s", url) >= sizeof(s->url))
        return err_set(e, ERR_LIMIT, "traces.endpoint is longer than %d bytes", URL_MAX - 1);
    return ERR_NONE;
}

static bool make_handle(spans *s)
{
    if (!fetch_add_header(&s->headers, "Content-Type: application/json") ||
        !fetch_add_header(&s->headers, "Expect:"))
        return false;
    CURL *h = s->curl = curl_easy_init();
    return h && curl_easy_setopt(h, CURLOPT_URL, s->url) == CURLE_OK &&
           curl_easy_setopt(h, CURLOPT_HTTPHEADER, s->headers) == CURLE_OK &&
           curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, ignore) == CURLE_OK &&
           curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           curl_easy_setopt(h, CURLOPT_NOPROXY, "*") == CURLE_OK &&
           curl_easy_setopt(h, CURLOPT_USERAGENT, "lorad") == CURLE_OK;
}

static void release(spans *s)
{
    if (s->curl) curl_easy_cleanup(s->curl);
    curl_slist_free_all(s->headers);
    cond_free(&s->work);
    lock_free(&s->mu);
    free(s);
}

err_code spans_create(spans **out, const spans_config *cfg, err *e)
{
    *out = NULL;
    spans *s = calloc(1, sizeof(*s));
    if (!s || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(s);
        return err_set(e, ERR_NOMEM, "no memory for traces");
    }
    assert(cfg->sample >= 0 && cfg->sample <= 1);
    lock_init(&s->mu, LOCK_SPANS);
    cond_init(&s->work);
    s->sample = cfg->sample;
    s->source = (span_source){.version = cfg->version, .node = cfg->node};
    (void)gethostname(s->source.host, sizeof(s->source.host) - 1);
    err_code rc = check_url(s, cfg->endpoint, e);
    if (!rc && cfg->headers) rc = read_headers(s, cfg->headers, e);
    if (!rc && !make_handle(s)) rc = err_set(e, ERR_NOMEM, "no memory for traces");
    if (!rc && pthread_create(&s->thread, NULL, send_main, s) != 0)
        rc = err_set(e, ERR_NOMEM, "can't start the thread that sends traces");
    if (rc)
        release(s);
    else
        *out = s;
    return rc;
}

void spans_destroy(spans *s)
{
    if (!s) return;
    lock_take(&s->mu);
    s->stop = true;
    cond_signal(&s->work);
    lock_release(&s->mu);
    (void)pthread_join(s->thread, NULL);
    release(s);
}
