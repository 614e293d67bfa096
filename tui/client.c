/* client.c -- HTTPS calls to lorad, on libcurl's multi handle, so that a call can be woken and
 * cancelled.
 *
 * A client has one connection, which libcurl keeps between calls; curl_easy_reset() clears
 * options only. Redirects are not followed, because the Authorization header would be sent to
 * the other host; compression and "Expect: 100-continue" are off.
 *
 * perform() polls in steps of POLL_MS. That is how client_cancel(), which a signal handler may
 * call (it only stores an atomic flag), ends a call, and how `idle_ms` is checked: a limit on
 * silence instead of on the whole transfer, so that a slow download of gigabytes is not cut.
 *
 * Callbacks cannot return an error through libcurl. They write it into call.why and return a
 * short count; the caller reports that sentence in place of libcurl's code. got_there() tells
 * "the server was never reached" (exit status 3 of loractl, safe to repeat) from "the connection
 * broke later".
 *
 * Keys are wiped before their memory is freed, also in libcurl's list of headers.
 */
#include "tui/client.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>
#include <openssl/x509_vfy.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "tui/sse.h"

enum { URL_MAX = 512, PATH_TEXT_MAX = 4096, POLL_MS = 100, ERROR_BODY_MAX = 1 << 20 };

static const json_limits reply_limits = {
    .max_bytes = CLIENT_BODY_MAX_BYTES, .max_depth = 64, .max_values = 4 << 20};

struct client {
    CURL *easy;
    CURLM *multi;
    char url[URL_MAX]; /* no slash at its end */
    char *ca_file, *cert_file, *cert_key_file, *agent;
    char *authorization; /* the whole header line; wiped before it is freed */
    int64_t connect_ms;
    atomic_bool cancelled;
    bool unreachable;
    char detail[CURL_ERROR_SIZE]; /* of a failure; libcurl may write here while `easy` lives */
};

/* One call's state, lent to the callbacks. */
typedef struct {
    client *c;
    const client_request *rq;
    client_reply *reply;
    sse_parser sse;
    size_t cap;       /* of reply->body */
    err why;          /* set by a callback that stops the transfer */
    int64_t moved_us; /* when bytes last moved */
    int64_t sent, received;
    bool event_stream;
} call;

/* ----------------------------------------------------------------------- lifetime -- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode global_state;

static void init_once(void)
{
    global_state = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static char *copy_or_null(const char *s)
{
    return s && *s ? strdup(s) : NULL;
}

static bool has_control(const char *s)
{
    for (; s && *s; s++) {
        if ((unsigned char)*s < 0x20 || *s == 0x7f) return true;
    }
    return false;
}

static err_code take_options(client *c, const client_options *o, err *e)
{
    size_t n = o->url ? strlen(o->url) : 0;
    if (n < 9 || strncasecmp(o->url, "https://", 8) != 0) {
        return err_set(e, ERR_INPUT, "'%.100s' is no https:// URL", o->url ? o->url : "");
    }
    if (n >= URL_MAX || has_control(o->url) || strpbrk(o->url, " ?#@")) {
        return err_set(e, ERR_INPUT, "'%.100s' is not the URL of a server", o->url);
    }
    if (has_control(o->key) || (o->key && strchr(o->key, ' '))) {
        return err_set(e, ERR_INPUT, "the key holds characters that no key has");
    }
    memcpy(c->url, o->url, n + 1);
    while (n && c->url[n - 1] == '/') c->url[--n] = 0;
    c->ca_file = copy_or_null(o->ca_file);
    c->cert_file = copy_or_null(o->cert_file);
    c->cert_key_file = copy_or_null(o->cert_key_file);
    c->agent = strdup(o->agent ? o->agent : "lorad-client/" LORAD_VERSION);
    c->connect_ms = o->connect_ms ? o->connect_ms : CLIENT_CONNECT_MS;
    if (o->key && *o->key && asprintf(&c->authorization, "Authorization: Bearer %s", o->key) < 0) {
        c->authorization = NULL;
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    return ERR_NONE;
}

err_code client_open(client **out, const client_options *o, err *e)
{
    *out = NULL;
    (void)pthread_once(&once, init_once);
    if (global_state != CURLE_OK) return err_set(e, ERR_INTERNAL, "libcurl does not start");
    client *c = calloc(1, sizeof(*c));
    if (!c) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = take_options(c, o, e);
    if (!rc) {
        c->easy = curl_easy_init();
        c->multi = curl_multi_init();
        if (!c->easy || !c->multi) rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc) {
        client_close(c);
        return rc;
    }
    *out = c;
    return ERR_NONE;
}

void client_close(client *c)
{
    if (!c) return;
    if (c->easy) curl_easy_cleanup(c->easy);
    if (c->multi) (void)curl_multi_cleanup(c->multi);
    if (c->authorization) explicit_bzero(c->authorization, strlen(c->authorization));
    free(c->authorization);
    free(c->ca_file);
    free(c->cert_file);
    free(c->cert_key_file);
    free(c->agent);
    free(c);
}

void client_cancel(client *c)
{
    atomic_store(&c->cancelled, true);
}

bool client_unreachable(const client *c)
{
    return c->unreachable;
}

/* ---------------------------------------------------------------------- callbacks -- */

static bool grow(call *k, size_t want, size_t max)
{
    if (want > max) {
        (void)err_set(&k->why, ERR_LIMIT, "the answer is larger than %zu bytes", max);
        return false;
    }
    if (want + 1 <= k->cap) return true;
    size_t cap = 2 * want + 1024;
    char *bigger = realloc(k->reply->body, cap);
    if (!bigger) {
        (void)err_set(&k->why, ERR_NOMEM, "out of memory");
        return false;
    }
    k->reply->body = bigger;
    k->cap = cap;
    return true;
}

static bool keep_body(call *k, const char *bytes, size_t n)
{
    size_t max = k->rq->max_bytes ? k->rq->max_bytes : CLIENT_BODY_MAX_BYTES;
    if (k->reply->status >= 400 && max > ERROR_BODY_MAX) max = ERROR_BODY_MAX;
    if (!grow(k, k->reply->len + n, max)) return false;
    memcpy(k->reply->body + k->reply->len, bytes, n);
    k->reply->len += n;
    k->reply->body[k->reply->len] = 0;
    return true;
}

static size_t on_body_cb(char *bytes, size_t size, size_t n, void *arg)
{
    call *k = arg;
    long status = 0;
    n *= size;
    k->moved_us = clock_now_us();
    k->received += (int64_t)n;
    (void)curl_easy_getinfo(k->c->easy, CURLINFO_RESPONSE_CODE, &status);
    k->reply->status = (int)status;
    bool good = status >= 200 && status < 300, on;
    if (good && k->rq->on_event && k->event_stream) {
        on = sse_feed(&k->sse, bytes, n, &k->why) == ERR_NONE;
    } else if (good && k->rq->on_data) {
        on = k->rq->on_data(k->rq->on_arg, bytes, n);
        if (!on) (void)err_set(&k->why, ERR_CANCELLED, "stopped");
    } else {
        on = keep_body(k, bytes, n);
    }
    return on ? n : CURL_WRITEFUNC_ERROR;
}

/* The value of the header, if it is this one; trimmed, in out, control bytes as '?'. */
static bool header_is(const char *line, size_t n, const char *name, char *out, size_t cap)
{
    size_t len = strlen(name);
    if (n <= len || line[len] != ':' || strncasecmp(line, name, len) != 0) return false;
    const char *v = line + len + 1, *end = line + n;
    while (v < end && (*v == ' ' || *v == '\t')) v++;
    while (end > v && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ')) end--;
    size_t k = 0;
    for (; v < end && k + 1 < cap; v++) {
        out[k++] = (unsigned char)*v < 0x20 || (unsigned char)*v >= 0x7f ? '?' : *v;
    }
    out[k] = 0;
    return true;
}

static int64_t digits(const char *s)
{
    size_t n = strspn(s, "0123456789");
    return n && n <= 18 && !s[n] ? strtoll(s, NULL, 10) : -1;
}

static size_t on_header_cb(char *line, size_t size, size_t n, void *arg)
{
    call *k = arg;
    client_reply *r = k->reply;
    char v[64];
    n *= size;
    k->moved_us = clock_now_us();
    if (n > 5 && memcmp(line, "HTTP/", 5) == 0) { /* a new answer, after 100 Continue */
        r->retry_after_ms = r->upload_offset = -1;
        r->type[0] = r->request_id[0] = r->etag[0] = r->location[0] = 0;
        k->event_stream = false;
    } else if (header_is(line, n, "content-type", r->type, sizeof(r->type))) {
        k->event_stream = strncasecmp(r->type, "text/event-stream", 17) == 0;
    } else if (header_is(line, n, "retry-after", v, sizeof(v))) {
        if (r->retry_after_ms < 0 && digits(v) >= 0 && digits(v) < 1000000)
            r->retry_after_ms = digits(v) * 1000;
    } else if (header_is(line, n, "retry-after-ms", v, sizeof(v))) {
        if (digits(v) >= 0) r->retry_after_ms = digits(v);
    } else if (header_is(line, n, "upload-offset", v, sizeof(v))) {
        r->upload_offset = digits(v);
    } else if (!header_is(line, n, "x-request-id", r->request_id, sizeof(r->request_id)) &&
               !header_is(line, n, "etag", r->etag, sizeof(r->etag))) {
        (void)header_is(line, n, "location", r->location, sizeof(r->location));
    }
    return n;
}

static size_t on_read_cb(char *to, size_t size, size_t n, void *arg)
{
    call *k = arg;
    k->moved_us = clock_now_us();
    int64_t left = k->rq->source_bytes - k->sent;
    size_t cap = size * n;
    if (left <= 0) return 0;
    if ((int64_t)cap > left) cap = (size_t)left;
    size_t got = k->rq->source(k->rq->source_arg, to, cap);
    if (got == 0 || got > cap) {
        (void)err_set(&k->why, ERR_IO, "what is to be sent could not be read");
        return CURL_READFUNC_ABORT;
    }
    k->sent += (int64_t)got;
    return got;
}

static int on_seek_cb(void *arg, curl_off_t offset, int origin)
{
    call *k = arg;
    if (offset != 0 || origin != SEEK_SET || !k->rq->rewind || !k->rq->rewind(k->rq->source_arg))
        return CURL_SEEKFUNC_CANTSEEK;
    k->sent = 0;
    return CURL_SEEKFUNC_OK;
}

static int on_progress_cb(void *arg, curl_off_t dl_total, curl_off_t dl, curl_off_t ul_total,
                          curl_off_t ul)
{
    call *k = arg;
    (void)dl_total, (void)ul_total;
    if (k->rq->on_progress) k->rq->on_progress(k->rq->progress_arg, ul, dl);
    return 0;
}

/* ------------------------------------------------------------------------ the call -- */

#define SET(option, value) ok = ok && curl_easy_setopt(h, option, value) == CURLE_OK

static bool set_up_tls(client *c)
{
    CURL *h = c->easy;
    bool ok = true;
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    if (c->ca_file) {
        SET(CURLOPT_CAINFO, c->ca_file);
        SET(CURLOPT_CAPATH, (char *)NULL); /* this one, not the system's as well */
    }
#if LIBCURL_VERSION_NUM >= 0x075700 /* which keeps what it has read of it for a day */
    SET(CURLOPT_CA_CACHE_TIMEOUT, 0L);
#endif
    if (c->cert_file) SET(CURLOPT_SSLCERT, c->cert_file);
    if (c->cert_key_file) SET(CURLOPT_SSLKEY, c->cert_key_file);
    return ok;
}

static bool set_up_body(call *k)
{
    CURL *h = k->c->easy;
    const client_request *rq = k->rq;
    bool ok = true;
    if (strcmp(rq->method, "HEAD") == 0) {
        SET(CURLOPT_NOBODY, 1L);
    } else if (rq->source) {
        SET(CURLOPT_UPLOAD, 1L);
        SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)rq->source_bytes);
        SET(CURLOPT_READFUNCTION, on_read_cb);
        SET(CURLOPT_READDATA, k);
        SET(CURLOPT_SEEKFUNCTION, on_seek_cb);
        SET(CURLOPT_SEEKDATA, k);
        SET(CURLOPT_UPLOAD_BUFFERSIZE, 256L << 10);
    } else if (rq->body || strcmp(rq->method, "GET") != 0) {
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)rq->body_len);
        SET(CURLOPT_POSTFIELDS, rq->body ? rq->body : "");
    }
    SET(CURLOPT_CUSTOMREQUEST, rq->method);
    return ok;
}

static bool set_up(call *k, struct curl_slist *headers)
{
    client *c = k->c;
    CURL *h = c->easy;
    char url[URL_MAX + PATH_TEXT_MAX];
    int n = snprintf(url, sizeof(url), "%s%s", c->url, k->rq->path);
    if (n < 0 || (size_t)n >= sizeof(url)) return false;
    int64_t timeout = k->rq->timeout_ms ? k->rq->timeout_ms : CLIENT_CALL_MS;
    bool ok = true;
    curl_easy_reset(h); /* options only: the connection stays */
    SET(CURLOPT_ERRORBUFFER, k->c->detail);
    SET(CURLOPT_URL, url);
    SET(CURLOPT_PROTOCOLS_STR, "https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_USERAGENT, c->agent);
    SET(CURLOPT_HTTPHEADER, headers);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)c->connect_ms);
    SET(CURLOPT_TIMEOUT_MS, timeout > 0 ? (long)timeout : 0L);
    SET(CURLOPT_WRITEFUNCTION, on_body_cb);
    SET(CURLOPT_WRITEDATA, k);
    SET(CURLOPT_HEADERFUNCTION, on_header_cb);
    SET(CURLOPT_HEADERDATA, k);
    SET(CURLOPT_XFERINFOFUNCTION, on_progress_cb);
    SET(CURLOPT_XFERINFODATA, k);
    SET(CURLOPT_NOPROGRESS, 0L);
    return ok && set_up_tls(c) && set_up_body(k);
}

static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = curl_slist_append(*list, line);
    if (more) *list = more;
    return more != NULL;
}

static bool make_headers(call *k, struct curl_slist **list)
{
    const client_request *rq = k->rq;
    char type[128];
    bool ok = add_header(list, "Expect:") && add_header(list, "Accept-Encoding:");
    if (rq->body || rq->source) {
        snprintf(type, sizeof(type), "Content-Type: %s", rq->type ? rq->type : "application/json");
        ok = ok && add_header(list, type);
    } else {
        ok = ok && add_header(list, "Content-Type:");
    }
    if (k->c->authorization) ok = ok && add_header(list, k->c->authorization);
    for (int i = 0; i < CLIENT_HEADERS_MAX && rq->headers[i]; i++) {
        ok = ok && !has_control(rq->headers[i]) && add_header(list, rq->headers[i]);
    }
    return ok;
}

static void free_headers(struct curl_slist *list)
{
    for (struct curl_slist *l = list; l; l = l->next) explicit_bzero(l->data, strlen(l->data));
    curl_slist_free_all(list);
}

/* Runs the transfer to its end.  ERR_NONE: *result says how it went. */
static err_code perform(call *k, CURLcode *result)
{
    client *c = k->c;
    int running = 1, left;
    k->moved_us = clock_now_us();
    while (running) {
        if (atomic_load(&c->cancelled)) return err_set(&k->why, ERR_CANCELLED, "cancelled");
        int64_t idle_us = k->rq->idle_ms * 1000;
        if (idle_us && clock_now_us() - k->moved_us > idle_us) {
            return err_set(&k->why, ERR_TIMEOUT, "the server was silent for %lld seconds",
                           (long long)(k->rq->idle_ms / 1000));
        }
        CURLMcode m = curl_multi_perform(c->multi, &running);
        if (!m && running) m = curl_multi_poll(c->multi, NULL, 0, POLL_MS, NULL);
        if (m) return err_set(&k->why, ERR_INTERNAL, "libcurl: %s", curl_multi_strerror(m));
    }
    *result = CURLE_RECV_ERROR;
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left));) {
        if (m->msg == CURLMSG_DONE && m->easy_handle == c->easy) *result = m->data.result;
    }
    return ERR_NONE;
}

static bool got_there(CURLcode rc, client *c)
{
    curl_off_t ready = 0;
    (void)curl_easy_getinfo(c->easy, CURLINFO_PRETRANSFER_TIME_T, &ready);
    return rc != CURLE_COULDNT_CONNECT && rc != CURLE_COULDNT_RESOLVE_HOST &&
           rc != CURLE_COULDNT_RESOLVE_PROXY && rc != CURLE_PEER_FAILED_VERIFICATION &&
           rc != CURLE_SSL_CONNECT_ERROR && rc != CURLE_SSL_CACERT_BADFILE && ready > 0;
}

/* Host and port of the URL, for messages. */
static const char *host_of(const client *c)
{
    return c->url + 8;
}

/* In TLS 1.3 a client learns only after its own handshake that the server wants another
 * certificate, or any: by an alert, or, where it was not read in time, by the connection's end. */
static bool certificate_refused(const client *c)
{
    static const char *const alerts[] = {
        "alert certificate required", "alert unknown ca",          "alert bad certificate",
        "alert certificate expired",  "alert certificate unknown", "alert unsupported certificate",
        "alert handshake failure"};
    for (size_t i = 0; i < sizeof(alerts) / sizeof(alerts[0]); i++) {
        if (strstr(c->detail, alerts[i])) return true;
    }
    return false;
}

/* What went wrong, in words that say what to do: who was asked, and whether it is the address,
 * the server, its certificate or ours. c->unreachable: nothing was answered at all. */
static err_code explain(call *k, CURLcode rc, err *e)
{
    client *c = k->c;
    const char *host = host_of(c);
    bool refused = certificate_refused(c);
    long verdict = X509_V_OK;
    c->unreachable = !got_there(rc, c) || refused;
    if (k->why.code) {
        if (e) *e = k->why;
        return k->why.code;
    }
    if (refused && c->cert_file)
        return err_set(e, ERR_DENIED, "%s: it does not accept the client certificate %s", host,
                       c->cert_file);
    if (refused)
        return err_set(e, ERR_DENIED, "%s: it asks for a client certificate (LORAD_CERT)", host);
    if (rc == CURLE_SEND_ERROR && c->unreachable)
        return err_set(e, ERR_IO,
                       "%s: it ends the connection after the handshake; it may ask for %s client "
                       "certificate (LORAD_CERT)",
                       host, c->cert_file ? "another" : "a");
    switch (rc) {
    case CURLE_COULDNT_RESOLVE_HOST: return err_set(e, ERR_IO, "%s: there is no such host", host);
    case CURLE_COULDNT_CONNECT: return err_set(e, ERR_IO, "%s: no server answers there", host);
    case CURLE_PEER_FAILED_VERIFICATION:
        (void)curl_easy_getinfo(c->easy, CURLINFO_SSL_VERIFYRESULT, &verdict);
        if (verdict == X509_V_ERR_CERT_HAS_EXPIRED)
            return err_set(e, ERR_DENIED,
                           "%s: its certificate has expired; its operator must renew it", host);
        return err_set(e, ERR_DENIED,
                       "%s: its certificate is not trusted, or is for another name%s", host,
                       c->ca_file ? "" : " (the CA file says which authority to trust)");
    case CURLE_SSL_CACERT_BADFILE:
        return err_set(e, ERR_DENIED, "the CA file %s can't be used", c->ca_file ? c->ca_file : "");
    case CURLE_SSL_CERTPROBLEM:
        return err_set(e, ERR_DENIED, "the client certificate %s can't be used",
                       c->cert_file ? c->cert_file : "");
    case CURLE_OPERATION_TIMEDOUT:
        return err_set(e, ERR_TIMEOUT, "%s: %s", host,
                       c->unreachable ? "no answer in time" : "the answer took too long");
    case CURLE_OUT_OF_MEMORY: return err_set(e, ERR_NOMEM, "out of memory");
    default: return err_set(e, ERR_IO, "%s: %s", host, curl_easy_strerror(rc));
    }
}

err_code client_call(client *c, const client_request *rq, client_reply *reply, err *e)
{
    struct curl_slist *headers = NULL;
    CURLcode result = CURLE_OK;
    long status = 0;
    *reply = (client_reply){.retry_after_ms = -1, .upload_offset = -1};
    call k = {.c = c, .rq = rq, .reply = reply};
    k.sse.on_event = rq->on_event;
    k.sse.arg = rq->on_arg;
    c->unreachable = false;
    c->detail[0] = 0;
    if (!make_headers(&k, &headers) || !set_up(&k, headers) ||
        curl_multi_add_handle(c->multi, c->easy) != CURLM_OK) {
        free_headers(headers);
        return err_set(e, ERR_INPUT, "the request can't be made");
    }
    err_code rc = perform(&k, &result);
    (void)curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    reply->status = (int)status;
    if (rc || result != CURLE_OK) rc = explain(&k, result, e);
    (void)curl_multi_remove_handle(c->multi, c->easy);
    free_headers(headers);
    sse_clear(&k.sse);
    atomic_store(&c->cancelled, false);
    if (rc && !k.why.code && status >= 400)
        return ERR_NONE; /* a refusal that cut the upload short */
    return rc;
}

/* ------------------------------------------------------------------------- replies -- */

void client_reply_clear(client_reply *r)
{
    free(r->body);
    r->body = NULL;
    r->len = 0;
}

bool client_reply_ok(const client_reply *r)
{
    return r->status >= 200 && r->status < 300;
}

err_code client_reply_json(const client_reply *r, cJSON **out, err *e)
{
    err why;
    *out = NULL;
    if (!r->body || json_parse(r->body, r->len, &reply_limits, out, &why)) {
        return err_set(e, ERR_CORRUPT, "the server's answer is not JSON: %s",
                       r->body ? why.msg : "it is empty");
    }
    return ERR_NONE;
}

void client_reply_error(const client_reply *r, char *out, size_t cap)
{
    cJSON *tree = NULL;
    const char *msg = NULL;
    if (r->body && json_parse(r->body, r->len, &reply_limits, &tree, NULL) == ERR_NONE) {
        const cJSON *error = json_get(tree, "error");
        const cJSON *m = cJSON_IsObject(error) ? json_get(error, "message") : NULL;
        if (cJSON_IsString(m)) msg = m->valuestring;
    }
    if (msg && *msg)
        snprintf(out, cap, "%s", msg);
    else
        snprintf(out, cap, "the server answered %d", r->status);
    for (char *p = out; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    }
    cJSON_Delete(tree);
}

bool client_escape(const char *s, char *out, size_t cap)
{
    size_t n = 0;
    for (; *s; s++) {
        unsigned char ch = (unsigned char)*s;
        bool plain = isalnum(ch) || strchr("-._~", ch);
        if (n + (plain ? 1 : 3) >= cap) return false;
        n += (size_t)snprintf(out + n, cap - n, plain ? "%c" : "%%%02X", ch);
    }
    out[n] = 0;
    return true;
}
