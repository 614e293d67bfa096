/* bucket.c -- an S3 bucket as a `remote`: PUT, GET, HEAD and DELETE by libcurl, one connection per
 * call.
 *
 * perform() makes up to four attempts with pauses of 150 ms, 450 ms and 1.35 s.  Only a transfer
 * error, 429 and 5xx are repeated.  Each attempt reads the keys again and signs anew (AWS Signature
 * Version 4), because credentials from a file rotate.  The signed address is also the one that is
 * sent: sign() replaces the path by its encoded form.
 *
 * PUT sends a file with its SHA-256 as the signed payload hash, so the store checks what it
 * received.  send_piece() reads with pread() at its own offset, and rewind_to() allows libcurl to
 * begin again.  GET passes a 200's body to a sink, beginning anew with each attempt.  DELETE of a
 * missing object is a success.
 *
 * stop() may come from another thread: transfers look at the flag in libcurl's progress callback,
 * pauses every 20 ms.
 */
#include "gateway/fetch/bucket.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "gateway/fetch/fetch_headers.h"
#include "gateway/fetch/source.h"

enum {
    TRIES = 4,
    FIRST_PAUSE_US = 150000, /* then three times as long, each time */
    NAP_US = 20000,
    CONNECT_MS = 10000,
    SLOW_BYTES_S = 1024,
    SLOW_S = 30,
};

static const uint64_t OBJECT_MAX = 5ull << 30; /* of one PUT */
static const char empty_sha[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

struct bucket {
    char base[SOURCE_URL_MAX]; /* endpoint/bucket/prefix */
    char host[SOURCE_HOST_MAX + 8];
    char region[128], ca_file[SOURCE_URL_MAX];
    int64_t timeout_us;
    err_code (*keys)(void *arg, bucket_keys *out, err *e);
    void *arg;
    atomic_bool stopped;
};

/* ---------------------------------------------------------------------------- addresses -- */

static const char *after(const char *text, const char *beginning)
{
    size_t n = strlen(beginning);
    return strncmp(text, beginning, n) == 0 ? text + n : NULL;
}

err_code bucket_check_url(const char *url, err *e)
{
    char as_https[SOURCE_URL_MAX];
    const char *rest = after(url, "s3://");
    if (!rest || !*rest || *rest == '/' || url[strlen(url) - 1] == '/')
        return err_set(e, ERR_INPUT, "is s3://bucket/prefix, without '/' at its end");
    if (snprintf(as_https, sizeof(as_https), "https://host/%s", rest) >= SOURCE_URL_MAX / 2)
        return err_set(e, ERR_INPUT, "is longer than %d", SOURCE_URL_MAX / 2);
    return source_check_base(as_https, e);
}

err_code bucket_check_endpoint(const char *endpoint, err *e)
{
    char as_https[SOURCE_URL_MAX];
    const char *plain = after(endpoint, "http://");
    if (!plain && !after(endpoint, "https://"))
        return err_set(e, ERR_INPUT, "is https://host[:port], or http://");
    if (endpoint[strlen(endpoint) - 1] == '/')
        return err_set(e, ERR_INPUT, "must not end with '/'");
    int n = snprintf(as_https, sizeof(as_https), "%s%s", plain ? "https://" : "",
                     plain ? plain : endpoint);
    if (n >= SOURCE_URL_MAX / 4)
        return err_set(e, ERR_INPUT, "is longer than %d", SOURCE_URL_MAX / 4);
    return source_check_base(as_https, e);
}

/* The value of the Host header: without the scheme's default port. */
static void host_of(const char *endpoint, char out[SOURCE_HOST_MAX + 8])
{
    const char *plain = after(endpoint, "http://");
    const char *at = plain ? plain : after(endpoint, "https://");
    const char *own = plain ? ":80" : ":443";
    snprintf(out, SOURCE_HOST_MAX + 8, "%.*s", (int)strcspn(at, "/"), at);
    size_t n = strlen(out), m = strlen(own);
    if (n > m && strcmp(out + n - m, own) == 0) out[n - m] = 0;
}

/* -------------------------------------------------------------------------- one attempt -- */

typedef struct {
    bucket *b;
    const char *method, *key;
    int fd;              /* of what is sent; -1: nothing */
    uint64_t bytes, at;  /* of it; how far it is sent; of a HEAD what it says */
    const char *payload; /* SHA-256 in digits */
    const remote_sink *sink;
    CURL *curl;
    bool begun, sunk; /* sunk: the sink has failed, and filled e */
    bool again;       /* another try may help */
    err *e;
} call;

static size_t send_piece(char *out, size_t size, size_t n, void *arg)
{
    call *c = arg;
    size_t cap = size * n, left = (size_t)(c->bytes - c->at);
    ssize_t got = pread(c->fd, out, left < cap ? left : cap, (off_t)c->at);
    if (got < 0 || (got == 0 && left > 0)) return CURL_READFUNC_ABORT;
    c->at += (uint64_t)got;
    return (size_t)got;
}

static int rewind_to(void *arg, curl_off_t offset, int origin)
{
    call *c = arg;
    if (origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
    c->at = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

static bool begin(call *c)
{
    c->begun = true;
    c->sunk = c->sink->begin(c->sink->arg, c->e) != ERR_NONE;
    return !c->sunk;
}

static size_t receive(char *data, size_t size, size_t n, void *arg)
{
    call *c = arg;
    long status = 0;
    size_t len = size * n;
    (void)curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 || !c->sink) return len;
    if (!c->begun && !begin(c)) return CURL_WRITEFUNC_ERROR;
    c->sunk = c->sink->take(c->sink->arg, data, len, c->e) != ERR_NONE;
    return c->sunk ? CURL_WRITEFUNC_ERROR : len;
}

static int look_stopped(void *arg, curl_off_t a, curl_off_t b, curl_off_t x, curl_off_t y)
{
    const call *c = arg;
    (void)a, (void)b, (void)x, (void)y;
    return atomic_load(&c->b->stopped);
}

static bool set_up(call *c, const char *url, struct curl_slist *headers)
{
    const bucket *b = c->b;
    CURL *h = c->curl;
    const struct {
        CURLoption option;
        long value;
    } numbers[] = {{CURLOPT_NOSIGNAL, 1},
                   {CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS},
                   {CURLOPT_TIMEOUT_MS, (long)(b->timeout_us / 1000)},
                   {CURLOPT_LOW_SPEED_LIMIT, SLOW_BYTES_S},
                   {CURLOPT_LOW_SPEED_TIME, SLOW_S},
                   {CURLOPT_FOLLOWLOCATION, 0},
                   {CURLOPT_NOPROGRESS, 0},
                   {CURLOPT_UPLOAD, c->fd >= 0},
                   {CURLOPT_NOBODY, strcmp(c->method, "HEAD") == 0}};
    bool ok = !curl_easy_setopt(h, CURLOPT_URL, url) &&
              !curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https") &&
              !curl_easy_setopt(h, CURLOPT_PROXY, "") &&
              !curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers) &&
              !curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, receive) &&
              !curl_easy_setopt(h, CURLOPT_WRITEDATA, c) &&
              !curl_easy_setopt(h, CURLOPT_READFUNCTION, send_piece) &&
              !curl_easy_setopt(h, CURLOPT_READDATA, c) &&
              !curl_easy_setopt(h, CURLOPT_SEEKFUNCTION, rewind_to) &&
              !curl_easy_setopt(h, CURLOPT_SEEKDATA, c) &&
              !curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, look_stopped) &&
              !curl_easy_setopt(h, CURLOPT_XFERINFODATA, c);
    for (size_t i = 0; ok && i < sizeof(numbers) / sizeof(*numbers); i++)
        ok = !curl_easy_setopt(h, numbers[i].option, numbers[i].value);
    if (ok && c->fd >= 0) ok = !curl_easy_setopt(h, CURLOPT_INFILESIZE_LARGE, (curl_off_t)c->bytes);
    if (ok && strcmp(c->method, "DELETE") == 0)
        ok = !curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, c->method);
    if (ok && *b->ca_file) ok = !curl_easy_setopt(h, CURLOPT_CAINFO, b->ca_file);
    return ok;
}

/* The address in its signed form, and the headers; NULL: `e` has the reason. */
static struct curl_slist *sign(call *c, char url[SIGV4_PATH_MAX])
{
    bucket *b = c->b;
    bucket_keys keys = {0};
    char path[SIGV4_PATH_MAX];
    struct curl_slist *headers = NULL;
    if (b->keys(b->arg, &keys, c->e)) return NULL;
    const sigv4_key key = {keys.id, keys.secret, keys.session, b->region};
    const sigv4_call named = {c->method, b->host, path, c->payload};
    int n = snprintf(url, SIGV4_PATH_MAX, "%s/%s", b->base, c->key);
    char *at = strchr(strstr(url, "://") + 3, '/');
    bool ok = n < SIGV4_PATH_MAX && sigv4_path(at, path, sizeof(path)) &&
              (size_t)(at - url) + strlen(path) < SIGV4_PATH_MAX;
    if (ok) memcpy(at, path, strlen(path) + 1);
    ok = ok && fetch_sign(&key, &named, &headers) && fetch_add_header(&headers, "Expect:");
    explicit_bzero(&keys, sizeof(keys));
    if (ok) return headers;
    curl_slist_free_all(headers);
    (void)err_set(c->e, ERR_IO, "the object's address or the keys are too long");
    return NULL;
}

static err_code judge(call *c, CURLcode rc)
{
    long status = 0;
    curl_off_t length = -1;
    (void)curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    if (c->sunk) return c->e->code;
    c->again = rc || status == 429 || status >= 500;
    if (rc)
        return err_set(c->e, ERR_IO, "the object store cannot be reached: %s",
                       curl_easy_strerror(rc));
    bool gone = strcmp(c->method, "DELETE") == 0 && (status == 204 || status == 404);
    if (status == 404 && !gone) return err_set(c->e, ERR_NOT_FOUND, "the store has no %s", c->key);
    if (status != 200 && !gone)
        return err_set(c->e, ERR_IO, "the object store answered %ld to %s %s", status, c->method,
                       c->key);
    (void)curl_easy_getinfo(c->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (strcmp(c->method, "HEAD") == 0) c->bytes = length > 0 ? (uint64_t)length : 0;
    if (c->sink && !c->begun && !begin(c)) return c->e->code;
    return ERR_NONE;
}

static err_code attempt(call *c)
{
    char url[SIGV4_PATH_MAX];
    struct curl_slist *headers = sign(c, url);
    c->at = 0;
    c->begun = c->again = false;
    if (!headers) return c->e->code;
    c->curl = curl_easy_init();
    bool ok = c->curl && set_up(c, url, headers);
    err_code rc = ok ? judge(c, curl_easy_perform(c->curl))
                     : err_set(c->e, ERR_NOMEM, "no memory for a call of the object store");
    curl_easy_cleanup(c->curl);
    curl_slist_free_all(headers);
    return rc;
}

/* False: stop() was called meanwhile. */
static bool nap(const bucket *b, int64_t us)
{
    const struct timespec piece = {0, NAP_US * 1000};
    int64_t end_us = clock_now_us() + us;
    while (!atomic_load(&b->stopped) && clock_now_us() < end_us) (void)nanosleep(&piece, NULL);
    return !atomic_load(&b->stopped);
}

static err_code perform(call *c)
{
    err_code rc = ERR_NONE;
    int64_t pause_us = FIRST_PAUSE_US;
    for (int i = 0; i < TRIES; i++) {
        rc = attempt(c);
        if (!rc || !c->again || i == TRIES - 1 || !nap(c->b, pause_us)) break;
        pause_us *= 3;
    }
    return rc;
}

/* ------------------------------------------------------------------------------- calls -- */

static err_code put(void *self, const char *key, int fd, uint64_t bytes,
                    const uint8_t sha[DIGEST_BYTES], err *e)
{
    char hex[DIGEST_HEX];
    digest_hex(sha, hex);
    call c = {
        .b = self, .method = "PUT", .key = key, .fd = fd, .bytes = bytes, .payload = hex, .e = e};
    if (bytes > OBJECT_MAX)
        return err_set(e, ERR_LIMIT, "a file of %llu bytes is too large for the object store: %llu",
                       (unsigned long long)bytes, (unsigned long long)OBJECT_MAX);
    return perform(&c);
}

static err_code get(void *self, const char *key, const remote_sink *sink, err *e)
{
    call c = {.b = self,
              .method = "GET",
              .key = key,
              .fd = -1,
              .payload = empty_sha,
              .sink = sink,
              .e = e};
    return perform(&c);
}

static err_code size_of(void *self, const char *key, uint64_t *bytes, err *e)
{
    call c = {.b = self, .method = "HEAD", .key = key, .fd = -1, .payload = empty_sha, .e = e};
    err_code rc = perform(&c);
    *bytes = c.bytes;
    return rc;
}

static err_code drop(void *self, const char *key, err *e)
{
    call c = {.b = self, .method = "DELETE", .key = key, .fd = -1, .payload = empty_sha, .e = e};
    return perform(&c);
}

static void stop(void *self)
{
    bucket *b = self;
    atomic_store(&b->stopped, true);
}

err_code bucket_open(bucket **out, const bucket_config *c, err *e)
{
    *out = NULL;
    if (bucket_check_url(c->url, e) || bucket_check_endpoint(c->endpoint, e)) return e->code;
    bucket *b = calloc(1, sizeof(*b));
    if (!b) return err_set(e, ERR_NOMEM, "out of memory");
    snprintf(b->base, sizeof(b->base), "%s/%s", c->endpoint, after(c->url, "s3://"));
    host_of(c->endpoint, b->host);
    snprintf(b->region, sizeof(b->region), "%s", c->region);
    snprintf(b->ca_file, sizeof(b->ca_file), "%s", c->ca_file);
    b->timeout_us = c->timeout_us;
    b->keys = c->keys;
    b->arg = c->arg;
    *out = b;
    return ERR_NONE;
}

void bucket_close(bucket *b)
{
    free(b);
}

remote bucket_remote(bucket *b)
{
    return (remote){put, get, size_of, drop, stop, b};
}
