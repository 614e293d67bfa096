/* fetch.c -- one file over HTTPS by libcurl, one hop at a time: redirects are followed here, not by
 * libcurl, so that each is checked.
 *
 * fetch_ask() performs a request; a redirect gives the next address, which follow() checks:
 * https:// only, never for S3 (whose signature covers the host), and credentials only while host
 * and port are the first ones (`home`).
 *
 * Three callbacks of libcurl do the rest.  open_socket() gets the resolved address before each
 * connection and refuses those that source_may_reach() excludes; so a DNS answer that changes
 * between check and use has no effect (DNS rebinding).  receive() passes the body of a 200 (or of
 * the 206 that was asked for) to the sink, and drops all others.  look() lets the caller stop the
 * transfer.
 *
 * A callback that stops the transfer puts the reason into hop.end; judge() prefers it to libcurl's
 * code.
 */
#include "gateway/fetch/fetch.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <curl/curl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "gateway/fetch/fetch_headers.h"

enum {
    HOPS = 5,
    CONNECT_MS = 10000,
    SLOW_BYTES_S = 1024, /* less than that ... */
    SLOW_S = 30,         /* ... for so long ends it */
};

typedef struct {
    const source_rules *rules;
    const fetch_sink *sink;
    const fetch_call *call;
    CURL *curl;
    bool begun, refused; /* refused: an address that may not be reached */
    fetch_end end;       /* of what a callback saw */
    err *e;
} hop;

/* Before a connection: checks the address that the name resolved to. */
static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *to)
{
    hop *h = arg;
    struct sockaddr_storage at = {.ss_family = AF_UNSPEC};
    if (purpose != CURLSOCKTYPE_IPCXN || to->addrlen > sizeof(at)) return CURL_SOCKET_BAD;
    memcpy(&at, &to->addr, to->addrlen);
    network_address a = networks_of_socket(&at);
    if (!source_may_reach(h->rules, &a)) {
        h->refused = true;
        return CURL_SOCKET_BAD;
    }
    return socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
}

static bool stop(hop *h, fetch_end end)
{
    assert(end != FETCH_OK);
    h->end = end;
    return false;
}

static bool is_rest(const hop *h, long status)
{
    return status == 206 && h->call->from && *h->call->from > 0;
}

/* Checks "bytes FIRST-LAST/SIZE" of a 206: from what was asked for to the end. */
static bool read_range(hop *h, curl_off_t *bytes)
{
    struct curl_header *c;
    long long first, last, size;
    if (curl_easy_header(h->curl, "Content-Range", 0, CURLH_HEADER, -1, &c) ||
        sscanf(c->value, "bytes %18lld-%18lld/%18lld", &first, &last, &size) != 3 ||
        first != *h->call->from || last + 1 != size) {
        err_set(h->e, ERR_INPUT, "the other server sent another part than it was asked for");
        return stop(h, FETCH_ANSWER);
    }
    *bytes = size;
    return true;
}

static bool begin(hop *h, long status)
{
    assert(!h->begun);
    curl_off_t bytes = -1;
    (void)curl_easy_getinfo(h->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &bytes);
    if (is_rest(h, status) && !read_range(h, &bytes)) return false;
    if (status == 200 && h->call->from) *h->call->from = 0;
    h->begun = true;
    return !h->sink->begin(h->sink->arg, bytes, h->e) || stop(h, FETCH_SINK);
}

static size_t receive(char *data, size_t size, size_t n, void *arg)
{
    hop *h = arg;
    long status = 0;
    size_t len = size * n;
    (void)curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && !is_rest(h, status)) return len; /* its words are not ours to tell */
    if (!h->begun && !begin(h, status)) return CURL_WRITEFUNC_ERROR;
    if (h->sink->take(h->sink->arg, data, len, h->e) && !stop(h, FETCH_SINK))
        return CURL_WRITEFUNC_ERROR;
    return len;
}

static int look(void *arg, curl_off_t all, curl_off_t got, curl_off_t to_send, curl_off_t sent)
{
    hop *h = arg;
    (void)all, (void)got, (void)to_send, (void)sent;
    return !h->end && h->call->still(h->call->still_arg, h->e) && !stop(h, FETCH_SINK);
}

bool fetch_add_header(struct curl_slist **list, const char *fmt, ...)
{
    char line[FETCH_HEADER_MAX];
    va_list args;
    va_start(args, fmt);
    bool fits = vsnprintf(line, sizeof(line), fmt, args) < (int)sizeof(line);
    va_end(args);
    struct curl_slist *more = fits ? curl_slist_append(*list, line) : NULL;
    OPENSSL_cleanse(line, sizeof(line));
    if (more) *list = more;
    return more != NULL;
}

bool fetch_sign(const sigv4_key *key, const sigv4_call *call, struct curl_slist **headers)
{
    char authorization[SIGV4_HEADER_MAX], date[SIGV4_DATE_MAX];
    return sigv4_authorize(key, call, time(NULL), authorization, date) &&
           fetch_add_header(headers, "Authorization: %s", authorization) &&
           fetch_add_header(headers, "x-amz-date: %s", date) &&
           fetch_add_header(headers, "x-amz-content-sha256: %s", call->payload) &&
           (!key->session || !*key->session ||
            fetch_add_header(headers, "x-amz-security-token: %s", key->session));
}

/* Signs an S3 request; its address is rewritten to the encoded form that was signed. */
static bool sign(const sigv4_key *key, const source *s, char url[SIGV4_PATH_MAX],
                 struct curl_slist **headers)
{
    char path[SIGV4_PATH_MAX], host[SOURCE_HOST_MAX + 8];
    const sigv4_call call = {"GET", host, path, SIGV4_UNSIGNED};
    char *at = strchr(strstr(url, "://") + 3, '/');

    snprintf(host, sizeof(host), s->port == 443 ? "%s" : "%s:%d", s->host, s->port);
    if (!at || !sigv4_path(at, path, sizeof(path)) ||
        (size_t)(at - url) + strlen(path) >= SIGV4_PATH_MAX)
        return false;
    strcpy(at, path); /* NOLINT(clang-analyzer-security.insecureAPI.strcpy): measured above */
    return !key->id || fetch_sign(key, &call, headers);
}

bool fetch_authorization(const fetch_secret *secret, char out[FETCH_HEADER_MAX])
{
    unsigned char pair[FETCH_HEADER_MAX / 2];
    int n = 0;
    *out = 0;
    if (secret->bearer)
        return snprintf(out, FETCH_HEADER_MAX, "Bearer %s", secret->bearer) < FETCH_HEADER_MAX;
    if (!secret->username) return true;
    n = snprintf((char *)pair, sizeof(pair), "%s:%s", secret->username, secret->password);
    if (n >= (int)sizeof(pair)) return false;
    memcpy(out, "Basic ", 7);
    (void)EVP_EncodeBlock((unsigned char *)out + 6, pair, n);
    OPENSSL_cleanse(pair, sizeof(pair));
    return true;
}

static bool prepare(hop *h, const char *url, struct curl_slist *headers)
{
    const struct {
        CURLoption option;
        long value;
    } numbers[] = {{CURLOPT_NOSIGNAL, 1},
                   {CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS},
                   {CURLOPT_TIMEOUT_MS, (long)(h->rules->timeout_us / 1000)},
                   {CURLOPT_LOW_SPEED_LIMIT, SLOW_BYTES_S},
                   {CURLOPT_LOW_SPEED_TIME, SLOW_S},
                   {CURLOPT_FOLLOWLOCATION, 0}};
    CURL *c = h->curl;
    bool ok = !curl_easy_setopt(c, CURLOPT_URL, url) &&
              !curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "https") &&
              !curl_easy_setopt(c, CURLOPT_PROXY, "") &&
              !curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers) &&
              !curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, receive) &&
              !curl_easy_setopt(c, CURLOPT_WRITEDATA, h) &&
              !curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_socket) &&
              !curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, h);
    for (size_t i = 0; ok && i < sizeof(numbers) / sizeof(*numbers); i++)
        ok = !curl_easy_setopt(c, numbers[i].option, numbers[i].value);
    if (ok && h->call->still)
        ok = !curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L) &&
             !curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, look) &&
             !curl_easy_setopt(c, CURLOPT_XFERINFODATA, h);
    if (ok && *h->rules->ca_file) ok = !curl_easy_setopt(c, CURLOPT_CAINFO, h->rules->ca_file);
    return ok;
}

static fetch_end judge(hop *h, CURLcode rc, long status, bool s3)
{
    if (h->end) return h->end;
    if (h->refused) {
        err_set(h->e, ERR_DENIED, "its host's address is not one that may be reached");
        return FETCH_REFUSED;
    }
    if (rc) {
        err_set(h->e, ERR_IO, "the other server cannot be read: %s", curl_easy_strerror(rc));
        return FETCH_AWAY;
    }
    err_set(h->e, ERR_INPUT, "the other server answered %ld", status);
    if (status == 404 || (s3 && status == 403)) return FETCH_MISSING;
    return status == 429 || status >= 500 ? FETCH_AWAY : FETCH_ANSWER;
}

/* The first challenge of a 401 with a known scheme. */
static void take_challenge(CURL *c, char out[FETCH_CHALLENGE_MAX])
{
    struct curl_header *h;
    *out = 0;
    for (size_t i = 0; !curl_easy_header(c, "WWW-Authenticate", i, CURLH_HEADER, -1, &h); i++) {
        bool known = strncasecmp(h->value, "Bearer ", 7) == 0 ||
                     strncasecmp(h->value, "Basic ", 6) == 0 || strcasecmp(h->value, "Basic") == 0;
        if (!known || strlen(h->value) >= FETCH_CHALLENGE_MAX) continue;
        snprintf(out, FETCH_CHALLENGE_MAX, "%s", h->value);
        return;
    }
}

static bool add_headers(const source *s, const fetch_call *call, bool home,
                        char url[SIGV4_PATH_MAX], struct curl_slist **headers)
{
    if (call->accept && !fetch_add_header(headers, "Accept: %s", call->accept)) return false;
    if (call->from && *call->from > 0 &&
        !fetch_add_header(headers, "Range: bytes=%lld-", (long long)*call->from))
        return false;
    if (!home) return true;
    if (call->s3) return sign(call->s3, s, url, headers);
    return !call->authorization || !*call->authorization ||
           fetch_add_header(headers, "Authorization: %s", call->authorization);
}

static fetch_end one_hop(hop *h, const source *s, char url[SIGV4_PATH_MAX], const fetch_call *call,
                         bool home, char next[SIGV4_PATH_MAX])
{
    struct curl_slist *headers = NULL;
    char *to = NULL;
    long status = 0;
    *next = 0;
    if (!add_headers(s, call, home, url, &headers) || !prepare(h, url, headers)) {
        err_set(h->e, ERR_INPUT, "the credentials or the address are too long");
        curl_slist_free_all(headers);
        return FETCH_ANSWER;
    }
    CURLcode rc = curl_easy_perform(h->curl);
    curl_slist_free_all(headers);
    (void)curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (call->status) *call->status = status;
    if (!rc && (status == 200 || is_rest(h, status)) && (h->begun || begin(h, status)))
        return FETCH_OK;
    if (!rc && status == 401 && home && call->challenge) take_challenge(h->curl, call->challenge);
    (void)curl_easy_getinfo(h->curl, CURLINFO_REDIRECT_URL, &to);
    if (!rc && !h->end && status / 100 == 3 && to && strlen(to) < SIGV4_PATH_MAX) {
        snprintf(next, SIGV4_PATH_MAX, "%s", to);
        return FETCH_OK;
    }
    return judge(h, rc, status, s->s3);
}

/* Where a redirect leads to; *home: still the server that the credentials are for. */
static fetch_end follow(const source *s, const char *to, bool *home, err *e)
{
    char host[SOURCE_HOST_MAX];
    int port;
    if (source_host_of(to, host, &port, e)) {
        err_set(e, ERR_DENIED, "it is redirected to an address that is not plain https://");
        return FETCH_REFUSED;
    }
    if (s->s3) {
        err_set(e, ERR_DENIED,
                "the endpoint redirects; sources.s3_endpoint must be the bucket's own");
        return FETCH_REFUSED;
    }
    *home = *home && port == s->port && strcasecmp(host, s->host) == 0;
    return FETCH_OK;
}

fetch_end fetch_ask(const source *s, const fetch_call *call, const source_rules *r,
                    const fetch_sink *sink, err *e)
{
    hop h = {.rules = r, .sink = sink, .call = call, .curl = curl_easy_init(), .e = e};
    char at[SIGV4_PATH_MAX], next[SIGV4_PATH_MAX];
    bool home = true;
    fetch_end end = FETCH_OK;
    snprintf(at, sizeof(at), "%s", call->url);
    if (call->challenge) *call->challenge = 0;
    if (!h.curl) {
        err_set(e, ERR_NOMEM, "out of memory");
        return FETCH_AWAY;
    }
    for (int i = 0;; i++) {
        end = one_hop(&h, s, at, call, home, next);
        if (end || !*next) break;
        if (i == HOPS) {
            err_set(e, ERR_DENIED, "it is redirected more than %d times", HOPS);
            end = FETCH_REFUSED;
            break;
        }
        end = follow(s, next, &home, e);
        if (end) break;
        memcpy(at, next, sizeof(at));
        curl_easy_reset(h.curl);
    }
    curl_easy_cleanup(h.curl);
    return end;
}

fetch_end fetch_file(const source *s, const char *url, const source_rules *r,
                     const fetch_secret *secret, const fetch_sink *sink, err *e)
{
    char authorization[FETCH_HEADER_MAX];
    const fetch_call call = {
        .url = url, .authorization = authorization, .s3 = s->s3 ? &secret->s3 : NULL};
    fetch_end end = FETCH_ANSWER;
    if (fetch_authorization(secret, authorization))
        end = fetch_ask(s, &call, r, sink, e);
    else
        err_set(e, ERR_INPUT, "the credentials are too long");
    OPENSSL_cleanse(authorization, sizeof(authorization));
    return end;
}
