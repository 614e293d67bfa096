/* webhooks.c -- delivers events to an HTTP endpoint, in order, at least once, also over a restart.
 *
 *   webhooks_put() --queue in memory--> thread: append to the file --> POST, signed --> drop
 *                                          \ failure: pause 1 s to 60 s, doubling
 *
 * The file data.dir/webhooks has one body per line. A body is appended before its first attempt;
 * the file is emptied when the queue is, and rewritten when it has more than COMPACT_LINES lines.
 * So a line may be of an event that was delivered already: it is sent again after a restart, with
 * the same webhook-id, by which receivers detect duplicates. Events older than KEEP_US are given
 * up.
 *
 * Signature: HMAC-SHA-256 over "id.timestamp.body", as in Standard Webhooks.
 *
 * When the queue is full (WEBHOOKS_MAX), new events are dropped with a log line; nothing ever waits
 * for the receiver. Threads: any thread puts; one thread owns curl and the file; `mu` guards the
 * queue.
 */
#include "gateway/watch/webhooks.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <curl/curl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/fetch/fetch_headers.h"
#include "gateway/http/jsonw.h"
#include "storage/tenants.h"

enum {
    URL_MAX = 512,
    PATH_CAP = 1024,
    KEY_MIN = 24, /* as Standard Webhooks asks for */
    KEY_MAX = 64,
    ID_MAX = 64,
    LINE_MAX_BYTES = 4096,
    PAUSE_MIN_MS = 1000,
    PAUSE_MAX_MS = 60000,
    POST_MS = 5000,
    LAST_POST_MS = 2000,
    STOP_US = 5000000,
    COMPACT_LINES = 2 * WEBHOOKS_MAX
};
#define KEEP_US INT64_C(86400000000)

typedef struct hook {
    struct hook *next;
    char id[ID_MAX];
    int64_t created_wall_us;
    bool saved; /* it is in the file */
    char *body;
} hook;

struct webhooks {
    pthread_t thread;
    char url[URL_MAX], path[PATH_CAP], events[512];
    unsigned char key[KEY_MAX];
    size_t key_bytes;
    int node;
    /* Only the thread uses these three. */
    CURL *curl;
    int fd;      /* of data.dir/webhooks */
    int n_lines; /* lines of that file */

    lock mu; /* guards the fields below */
    cond work;
    hook *first, *last;
    uint64_t n_made;
    webhooks_stats stats;
    bool stop;
    int64_t stop_by_us;
};

/* ------------------------------------------------------------------------ the queue -- */

static void hook_free(hook *k)
{
    if (k) free(k->body);
    free(k);
}

static void append_locked(webhooks *h, hook *k)
{
    lock_assert_held(&h->mu);
    assert(!k->next && !h->first == (h->stats.n_waiting == 0));
    *(h->first ? &h->last->next : &h->first) = k;
    h->last = k;
    h->stats.n_waiting++;
}

static void drop_first(webhooks *h)
{
    lock_take(&h->mu);
    hook *k = h->first;
    assert(k && h->stats.n_waiting > 0);
    h->first = k->next;
    h->stats.n_waiting--;
    lock_release(&h->mu);
    hook_free(k);
}

static hook *hook_create(const char *id, int64_t created_wall_us, const char *body, size_t len)
{
    hook *k = calloc(1, sizeof(*k));
    if (k) k->body = malloc(len + 1);
    if (!k || !k->body) {
        hook_free(k);
        return NULL;
    }
    snprintf(k->id, sizeof(k->id), "%s", id);
    k->created_wall_us = created_wall_us;
    memcpy(k->body, body, len);
    k->body[len] = 0;
    return k;
}

/* One line of JSON; jsonw escapes what would end it. */
static hook *hook_of(const webhooks *h, const char *id, const proto_event *e)
{
    jsonw w;
    hook *k = NULL;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "id", id);
    jsonw_str(&w, "type", e->kind);
    jsonw_int(&w, "timestamp", e->time_us / 1000000);
    jsonw_str(&w, "level", e->level);
    jsonw_int(&w, "node", h->node);
    jsonw_str(&w, "tenant", e->tenant[0] ? e->tenant : NULL);
    jsonw_str(&w, "object", e->object[0] ? e->object : NULL);
    jsonw_str(&w, "detail", e->detail[0] ? e->detail : NULL);
    jsonw_close(&w, '}');
    if (!w.failed) k = hook_create(id, e->time_us, w.text, w.len);
    jsonw_clear(&w);
    return k;
}

void webhooks_put(webhooks *h, const proto_event *event)
{
    char id[ID_MAX];
    if (!h || !list_allows(h->events, event->kind)) return;
    lock_take(&h->mu);
    bool full = h->stats.n_waiting >= WEBHOOKS_MAX;
    uint64_t n = ++h->n_made;
    lock_release(&h->mu);
    /* Events of the same microsecond, and of two processes with one node number, get different ids.
     */
    snprintf(id, sizeof(id), "evt_%d_%llx_%llu", h->node, (unsigned long long)event->time_us,
             (unsigned long long)n);
    hook *k = full ? NULL : hook_of(h, id, event);
    lock_take(&h->mu);
    if (k) append_locked(h, k);
    if (!k) h->stats.n_full++;
    cond_signal(&h->work);
    lock_release(&h->mu);
    if (!k)
        log_warn("webhooks", "event %s (%s) is dropped: %s", id, event->kind,
                 full ? "too many events wait" : "out of memory");
}

void webhooks_get(webhooks *h, webhooks_stats *out)
{
    lock_take(&h->mu);
    *out = h->stats;
    lock_release(&h->mu);
}

/* ------------------------------------------------------------------------- the file -- */

static bool write_line(int fd, const char *body)
{
    char line[LINE_MAX_BYTES];
    int n = snprintf(line, sizeof(line), "%s\n", body);
    return n > 0 && n < (int)sizeof(line) && write(fd, line, (size_t)n) == n;
}

/* Replaces the file by one with the waiting events. Only this thread removes events. */
static void write_anew(webhooks *h)
{
    char fresh[PATH_CAP + 8];
    snprintf(fresh, sizeof(fresh), "%s.new", h->path);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    int n = 0;
    bool ok = fd >= 0;
    lock_take(&h->mu);
    hook *last = h->last;
    lock_release(&h->mu);
    for (hook *k = h->first; ok && k; k = k == last ? NULL : k->next, n++)
        ok = write_line(fd, k->body);
    if (ok && rename(fresh, h->path) == 0) {
        close(h->fd);
        h->fd = fd;
        h->n_lines = n;
    } else if (fd >= 0) {
        close(fd);
        unlink(fresh);
    }
}

/* Appends what came since the last call. */
static void save(webhooks *h)
{
    for (;;) {
        lock_take(&h->mu);
        hook *k = h->first;
        while (k && k->saved) k = k->next;
        lock_release(&h->mu);
        if (!k) return;
        if (!write_line(h->fd, k->body))
            log_warn("webhooks", "event %s is not in %s: a restart loses it", k->id, h->path);
        lock_take(&h->mu);
        k->saved = true;
        lock_release(&h->mu);
        if (++h->n_lines > COMPACT_LINES) write_anew(h);
    }
}

/* Parses a line; lines that are not our events are skipped. */
static hook *hook_of_line(const char *line, size_t len)
{
    static const json_limits small = {
        .max_bytes = LINE_MAX_BYTES, .max_depth = 4, .max_values = 64};
    cJSON *tree = NULL;
    const char *id = NULL;
    int64_t at_s = 0;
    hook *k = NULL;
    if (json_parse(line, len, &small, &tree, NULL)) return NULL;
    if (cJSON_IsObject(tree) && !json_str(tree, "id", &id, NULL, NULL) && id &&
        strlen(id) < ID_MAX && strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(id) &&
        !json_int(tree, "timestamp", 0, INT64_C(1) << 40, &at_s, NULL, NULL))
        k = hook_create(id, at_s * 1000000, line, len);
    cJSON_Delete(tree);
    return k;
}

static err_code load(webhooks *h, err *e)
{
    char line[LINE_MAX_BYTES];
    h->fd = open(h->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    FILE *f = h->fd < 0 ? NULL : fdopen(dup(h->fd), "r");
    if (!f) return err_set(e, ERR_IO, "%s: %s", h->path, strerror(errno));
    while (fgets(line, sizeof(line), f)) {
        size_t n = strcspn(line, "\n");
        hook *k = line[n] ? hook_of_line(line, n) : NULL; /* a last line without end was cut */
        h->n_lines++;
        if (!k) continue;
        k->saved = true;
        if (h->stats.n_waiting == WEBHOOKS_MAX) drop_first(h); /* delivered before, most likely */
        lock_take(&h->mu);
        append_locked(h, k);
        lock_release(&h->mu);
    }
    (void)fclose(f);
    return ERR_NONE;
}

/* ---------------------------------------------------------------------- the thread -- */

static size_t ignore(char *data, size_t size, size_t n, void *arg)
{
    (void)data;
    (void)arg;
    return size * n;
}

/* "v1," and the base64 of the signature over "ID.TIMESTAMP.BODY". */
static bool sign(const webhooks *h, const hook *k, int64_t at_s, char *out, size_t cap)
{
    assert(h->key_bytes >= KEY_MIN && h->key_bytes <= KEY_MAX);
    unsigned char mac[32], text[48];
    unsigned n = sizeof(mac);
    size_t len = strlen(k->body) + ID_MAX + 32;
    char *signed_text = malloc(len);
    if (!signed_text) return false;
    int wrote = snprintf(signed_text, len, "%s.%lld.%s", k->id, (long long)at_s, k->body);
    bool ok = HMAC(EVP_sha256(), h->key, (int)h->key_bytes, (const unsigned char *)signed_text,
                   (size_t)wrote, mac, &n) != NULL;
    free(signed_text);
    if (!ok) return false;
    EVP_EncodeBlock(text, mac, (int)n);
    snprintf(out, cap, "v1,%s", (const char *)text);
    return true;
}

static struct curl_slist *headers_of(const webhooks *h, const hook *k)
{
    char signature[80];
    int64_t at_s = clock_wall_us() / 1000000;
    struct curl_slist *list = NULL;
    if (sign(h, k, at_s, signature, sizeof(signature)) &&
        fetch_add_header(&list, "webhook-id: %s", k->id) &&
        fetch_add_header(&list, "webhook-timestamp: %lld", (long long)at_s) &&
        fetch_add_header(&list, "webhook-signature: %s", signature) &&
        fetch_add_header(&list, "Content-Type: application/json"))
        return list;
    curl_slist_free_all(list);
    return NULL;
}

/* One try; 0: no answer came. */
static long post(webhooks *h, const hook *k, long limit_ms)
{
    long status = 0;
    CURL *c = h->curl;
    struct curl_slist *headers = headers_of(h, k);
    bool ok = headers && curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE, (long)strlen(k->body)) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_POSTFIELDS, k->body) == CURLE_OK &&
              curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, limit_ms) == CURLE_OK &&
              curl_easy_perform(c) == CURLE_OK;
    if (ok) (void)curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    return status;
}

static bool is_rejected(long status)
{
    return status / 100 == 4 && status != 408 && status != 425 && status != 429;
}

typedef enum { HOOK_SENT, HOOK_LATER, HOOK_REJECTED, HOOK_EXPIRED } hook_end;

static hook_end try_once(webhooks *h, const hook *k, bool last)
{
    if (clock_wall_us() - k->created_wall_us > KEEP_US) {
        log_warn("webhooks", "event %s is given up: it was not accepted for 24 hours", k->id);
        return HOOK_EXPIRED;
    }
    long status = post(h, k, last ? LAST_POST_MS : POST_MS);
    if (status / 100 == 2) return HOOK_SENT;
    if (is_rejected(status)) {
        log_warn("webhooks", "event %s is given up: the receiver answered %ld", k->id, status);
        return HOOK_REJECTED;
    }
    return HOOK_LATER;
}

/* Counts; a hook that has ended is taken out, and an empty queue empties the file. */
static void settle(webhooks *h, hook_end end)
{
    lock_take(&h->mu);
    h->stats.n_sent += end == HOOK_SENT;
    h->stats.n_rejected += end == HOOK_REJECTED;
    h->stats.n_expired += end == HOOK_EXPIRED;
    h->stats.n_failures += end == HOOK_LATER || end == HOOK_REJECTED;
    lock_release(&h->mu);
    if (end == HOOK_LATER) return;
    drop_first(h);
    lock_take(&h->mu);
    bool empty = !h->first;
    lock_release(&h->mu);
    if (empty && ftruncate(h->fd, 0) == 0) h->n_lines = 0;
}

/* The event that is due, all of the queue being in the file; NULL: look again, or *over.  What was
 * seen of the queue before a wait does not hold after it. */
static hook *wait_for_due(webhooks *h, int64_t next_us, bool *last, bool *over)
{
    save(h);
    lock_take(&h->mu);
    hook *k = h->first;
    int64_t now = clock_now_us();
    bool all_saved = !k || h->last->saved, due = k && (h->stop || now >= next_us);
    *last = h->stop;
    *over = all_saved && h->stop && (!k || now >= h->stop_by_us);
    if (all_saved && !due && !h->stop) { /* until the next try, or until more is to be saved */
        if (k)
            (void)cond_wait_until(&h->work, &h->mu, next_us);
        else
            cond_wait(&h->work, &h->mu);
    }
    lock_release(&h->mu);
    return all_saved && due && !*over ? k : NULL;
}

static void *send_main(void *arg)
{
    webhooks *h = arg;
    int64_t pause_ms = 0, next_us = 0; /* pause_ms 0: the last try was good */
    (void)pthread_setname_np(pthread_self(), "webhooks");
    for (bool last = false, over = false; !over;) {
        hook *k = wait_for_due(h, next_us, &last, &over);
        if (!k) continue;
        hook_end end = try_once(h, k, last);
        settle(h, end);
        if (end == HOOK_LATER && last) break;
        if (end == HOOK_LATER && pause_ms == 0)
            log_warn("webhooks", "the receiver does not accept events; they wait and are retried");
        pause_ms = end != HOOK_LATER              ? 0
                   : pause_ms == 0                ? PAUSE_MIN_MS
                   : 2 * pause_ms <= PAUSE_MAX_MS ? 2 * pause_ms
                                                  : PAUSE_MAX_MS;
        next_us = clock_now_us() + pause_ms * 1000;
    }
    return NULL;
}

/* ---------------------------------------------------------------------------- life -- */

static err_code check_url(webhooks *h, const char *url, err *e)
{
    bool http = strncasecmp(url, "http://", 7) == 0 && url[7];
    bool https = strncasecmp(url, "https://", 8) == 0 && url[8];
    if (!http && !https)
        return err_set(e, ERR_INPUT, "webhooks.url must be an http or https URL, not '%.80s'", url);
    if ((size_t)snprintf(h->url, sizeof(h->url), "%s", url) >= sizeof(h->url))
        return err_set(e, ERR_LIMIT, "webhooks.url is longer than %d bytes", URL_MAX - 1);
    return ERR_NONE;
}

/* The base64 of "whsec_...", strictly. */
static bool decode(const char *text, size_t n, unsigned char *out, size_t *len)
{
    unsigned char bytes[3 * (2 * KEY_MAX / 4) + 3];
    size_t pad = n >= 2 && text[n - 1] == '=' ? 1 + (text[n - 2] == '=') : 0;
    if (n == 0 || n % 4 != 0 || n > sizeof(bytes) / 3 * 4) return false;
    int made = EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)n);
    if (made < 0 || (size_t)made - pad > KEY_MAX) return false;
    *len = (size_t)made - pad;
    memcpy(out, bytes, *len);
    OPENSSL_cleanse(bytes, sizeof(bytes));
    return true;
}

static err_code take_secret(webhooks *h, const char *secret, err *e)
{
    size_t n = strcspn(secret, "\r\n");
    bool coded = strncmp(secret, "whsec_", 6) == 0;
    bool ok = secret[n + strspn(secret + n, "\r\n")] == 0;
    if (ok && coded) ok = decode(secret + 6, n - 6, h->key, &h->key_bytes);
    if (ok && !coded && n <= KEY_MAX) memcpy(h->key, secret, h->key_bytes = n);
    if (ok && h->key_bytes >= KEY_MIN) return ERR_NONE;
    return err_set(e, ERR_INPUT,
                   "webhooks.secret_file must hold one line: whsec_ and the base64 of %d to %d "
                   "bytes, or %d to %d characters",
                   KEY_MIN, KEY_MAX, KEY_MIN, KEY_MAX);
}

err_code webhooks_check(const char *url, const char *secret, err *e)
{
    webhooks h = {0};
    err_code rc = check_url(&h, url, e);
    if (!rc) rc = take_secret(&h, secret, e);
    OPENSSL_cleanse(h.key, sizeof(h.key));
    return rc;
}

static bool make_handle(webhooks *h)
{
    CURL *c = h->curl = curl_easy_init();
    return c && curl_easy_setopt(c, CURLOPT_URL, h->url) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, ignore) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_NOPROXY, "*") == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_USERAGENT, "lorad") == CURLE_OK;
}

static void release(webhooks *h)
{
    while (h->first) drop_first(h);
    if (h->curl) curl_easy_cleanup(h->curl);
    if (h->fd >= 0) close(h->fd);
    cond_free(&h->work);
    lock_free(&h->mu);
    OPENSSL_cleanse(h->key, sizeof(h->key));
    free(h);
}

err_code webhooks_create(webhooks **out, const webhooks_config *cfg, err *e)
{
    *out = NULL;
    webhooks *h = calloc(1, sizeof(*h));
    if (!h || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(h);
        return err_set(e, ERR_NOMEM, "no memory for webhooks");
    }
    lock_init(&h->mu, LOCK_WEBHOOKS);
    cond_init(&h->work);
    h->fd = -1;
    h->node = cfg->node;
    snprintf(h->events, sizeof(h->events), "%s", cfg->events);
    snprintf(h->path, sizeof(h->path), "%s/webhooks", cfg->dir);
    err_code rc = check_url(h, cfg->url, e);
    if (!rc) rc = take_secret(h, cfg->secret, e);
    if (!rc) rc = load(h, e);
    if (!rc && !make_handle(h)) rc = err_set(e, ERR_NOMEM, "no memory for webhooks");
    if (!rc && pthread_create(&h->thread, NULL, send_main, h) != 0)
        rc = err_set(e, ERR_NOMEM, "cannot start the thread that sends webhooks");
    if (rc)
        release(h);
    else
        *out = h;
    return rc;
}

void webhooks_destroy(webhooks *h)
{
    if (!h) return;
    lock_take(&h->mu);
    h->stop = true;
    h->stop_by_us = clock_now_us() + STOP_US;
    cond_signal(&h->work);
    lock_release(&h->mu);
    (void)pthread_join(h->thread, NULL);
    release(h);
}
