/* h2.c -- HTTP/2 framing with nghttp2: one session per connection, whose callbacks translate
 * requests to HTTP/1.1 text and answers back.
 *
 *   HEADERS  pseudo fields + fields -> "METHOD path HTTP/1.1\r\n..."   -> owner.begin()
 *   DATA     -> owner.body(), owner.body_end()
 *   answer   "HTTP/1.1 200 ..." -> HEADERS (h2_answer()), then DATA from owner.read()
 *
 * Header blocks of two requests never interleave, so one collection buffer is enough. nghttp2
 * rejects upper-case names, connection-specific fields, unknown, duplicate or late pseudo fields,
 * and bodies of another length than declared. Characters that could end a line are checked here
 * again (fits_a_line()), because the text has only lines as structure.
 *
 * Flood control (`calm`): a budget that grows with time and with answered data; frames that carry
 * no request cost 1, resets and invalid frames 10. Below zero the connection is closed with
 * ENHANCE_YOUR_CALM. That covers the rapid-reset, SETTINGS, PING, CONTINUATION and ignored-frame
 * floods.
 *
 * No dynamic header tables: they would save little here and keep keys in memory. Source: RFC 9113.
 * Threads: the lobby's.
 */
#include "gateway/net/h2.h"

#include <assert.h>
#include <ctype.h>
#include <malloc.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    RESET_COST = 10,
    DATA_WORTH = 3,
    LIST_MOST = 4 * H2_LIST_BYTES, /* of a head; one between is refused with 431, one beyond ends
                                    * the connection */
    FIELD_COST = 32,               /* in a list's size beside name and value (RFC 9113, 6.5.2) */
    ANSWER_FIELDS = 64,
    ACKS_MAX = 100, /* that wait to be written */
    FRAME_HEAD = 9,
    STRANGE_BYTES = 1024, /* for one; a body that is refused may still come, up to H2_WINDOW */
};

typedef struct {
    char *p; /* [H2_HEAD_BYTES]; NULL: none */
    size_t n;
    bool over; /* there was more */
} text;

enum { METHOD, PATH, AUTHORITY, PSEUDOS };

struct h2 {
    nghttp2_session *session;
    h2_owner owner;
    text fields; /* of the head that comes */
    char *pseudo[PSEUDOS];
    size_t listed;       /* its size as a list */
    bool sized, starved; /* it has a Content-Length; there was no memory for a part of it */
    int n_continuations;
    int64_t calm, calm_us;  /* what is left, as of when */
    bool flooded, broken;   /* a frame could not be queued: no memory */
    int64_t strange;        /* bytes that no callback has seen: frames that nghttp2 ignores */
    const uint8_t *pending; /* nghttp2's, until it is asked for more */
    size_t n_pending;
};

/* ----------------------------------------------------------------------------- memory -- */

/* nghttp2's allocator: wipes memory, because it contains keys. */
static void wipe_and_free(void *p, void *ignored)
{
    (void)ignored;
    if (p) explicit_bzero(p, malloc_usable_size(p));
    free(p);
}

static void *get(size_t n, void *ignored)
{
    (void)ignored;
    return malloc(n);
}

static void *get_zeroed(size_t n, size_t each, void *ignored)
{
    (void)ignored;
    return calloc(n, each);
}

static void *change(void *p, size_t n, void *ignored)
{
    size_t had = p ? malloc_usable_size(p) : 0;
    void *more = malloc(n);
    if (!more) return NULL;
    if (p) memcpy(more, p, had < n ? had : n);
    wipe_and_free(p, ignored);
    return more;
}

static void forget(text *t)
{
    if (t->p) explicit_bzero(t->p, H2_HEAD_BYTES);
    free(t->p);
    *t = (text){NULL, 0, false};
}

static void forget_head(h2 *h)
{
    forget(&h->fields);
    for (int i = 0; i < PSEUDOS; i++) {
        free(h->pseudo[i]);
        h->pseudo[i] = NULL;
    }
    h->sized = h->starved = false;
}

/* ------------------------------------------------------------------------------- text -- */

static void add(text *t, const char *s, size_t n)
{
    assert(t->p && t->n <= H2_HEAD_BYTES);
    size_t room = H2_HEAD_BYTES - t->n;
    if (n > room) t->over = true;
    if (t->over) n = n < room ? n : room; /* an overlong head is refused later for its length */
    memcpy(t->p + t->n, s, n);
    t->n += n;
}

static void say(text *t, const char *s)
{
    add(t, s, strlen(s));
}

static bool is(const uint8_t *s, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(s, word, n) == 0;
}

/* No line can end within it, nor a name before its colon. */
static bool fits_a_line(const uint8_t *name, size_t n, const uint8_t *value, size_t n_value)
{
    for (size_t i = 0; i < n; i++) {
        if (!isgraph(name[i]) || (name[i] == ':' && i > 0)) return false;
    }
    for (size_t i = 0; i < n_value; i++) {
        if ((value[i] < ' ' && value[i] != '\t') || value[i] == 0x7f) return false;
    }
    return n > 0;
}

static void add_field(h2 *h, const uint8_t *name, size_t n, const uint8_t *value, size_t n_value)
{
    if (!h->fields.p && !(h->fields.p = malloc(H2_HEAD_BYTES))) {
        h->starved = true;
        return;
    }
    h->sized |= is(name, n, "content-length");
    add(&h->fields, (const char *)name, n);
    say(&h->fields, ": ");
    add(&h->fields, (const char *)value, n_value);
    say(&h->fields, "\r\n");
}

static void keep_pseudo(h2 *h, int which, const uint8_t *value, size_t n)
{
    assert(which >= 0 && which < PSEUDOS);
    h->pseudo[which] = malloc(n + 1);
    if (h->pseudo[which]) {
        memcpy(h->pseudo[which], value, n);
        h->pseudo[which][n] = 0;
    } else {
        h->starved = true;
    }
}

/* The head as HTTP/1.1 has it; false: no memory. */
static bool write_head(const h2 *h, bool chunked, text *t)
{
    *t = (text){malloc(H2_HEAD_BYTES), 0, false};
    if (!t->p || h->starved) return false;
    say(t, h->pseudo[METHOD] ? h->pseudo[METHOD] : "");
    say(t, " ");
    say(t, h->pseudo[PATH] ? h->pseudo[PATH] : "/");
    say(t, " HTTP/1.1\r\n");
    if (h->pseudo[AUTHORITY]) {
        say(t, "Host: ");
        say(t, h->pseudo[AUTHORITY]);
        say(t, "\r\n");
    }
    add(t, h->fields.p ? h->fields.p : "", h->fields.n);
    if (chunked) say(t, "Transfer-Encoding: chunked\r\n");
    say(t, "\r\n");
    t->over |= h->fields.over;
    if (t->over) {
        memset(t->p + t->n, 'x', H2_HEAD_BYTES - t->n);
        t->n = H2_HEAD_BYTES;
    }
    return true;
}

/* ------------------------------------------------------------------------------- calm -- */

static int spend(h2 *h, int cost)
{
    assert(cost > 0);
    h->calm -= cost;
    h->flooded |= h->calm < 0;
    return h->flooded ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *hd, void *arg)
{
    h2 *h = arg;
    (void)session;
    h->strange -= FRAME_HEAD + (hd->type == NGHTTP2_DATA ? 0 : (int64_t)hd->length);
    if (hd->type == NGHTTP2_HEADERS) h->n_continuations = 0;
    if (hd->type == NGHTTP2_CONTINUATION)
        return ++h->n_continuations > H2_CONTINUATIONS_MAX ? spend(h, H2_CALM_MAX + 1) : 0;
    bool ends = hd->flags & NGHTTP2_FLAG_END_STREAM;
    if (hd->type == NGHTTP2_HEADERS || (hd->type == NGHTTP2_DATA && (hd->length > 0 || ends)))
        return 0;
    return spend(h, hd->type == NGHTTP2_RST_STREAM ? RESET_COST : 1);
}

static int on_invalid_frame(nghttp2_session *session, const nghttp2_frame *frame, int error,
                            void *arg)
{
    (void)session;
    (void)frame;
    (void)error;
    return spend(arg, RESET_COST);
}

/* ----------------------------------------------------------------------------- requests -- */

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    h2 *h = arg;
    (void)session;
    (void)frame;
    forget_head(h);
    h->listed = 0;
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t n, const uint8_t *value, size_t n_value, uint8_t flags, void *arg)
{
    h2 *h = arg;
    (void)session;
    (void)flags;
    h->listed += n + n_value + FIELD_COST;
    if (h->listed > LIST_MOST) return spend(h, H2_CALM_MAX + 1);
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0; /* trailers: dropped */
    if (!fits_a_line(name, n, value, n_value)) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (is(name, n, ":method"))
        keep_pseudo(h, METHOD, value, n_value);
    else if (is(name, n, ":path"))
        keep_pseudo(h, PATH, value, n_value);
    else if (is(name, n, ":authority"))
        keep_pseudo(h, AUTHORITY, value, n_value);
    else if (is(name, n, "host") && h->pseudo[AUTHORITY] &&
             strlen(h->pseudo[AUTHORITY]) == n_value &&
             strncasecmp(h->pseudo[AUTHORITY], (const char *)value, n_value) == 0)
        return 0; /* the same again; a different one makes two Host lines, which are refused */
    else if (name[0] != ':')
        add_field(h, name, n, value, n_value);
    return 0;
}

/* Refuses a stream with an invalid value; nghttp2 alone would drop the field. */
static int on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame,
                             nghttp2_rcbuf *name, nghttp2_rcbuf *value, uint8_t flags, void *arg)
{
    h2 *h = arg;
    (void)session;
    (void)frame;
    (void)name;
    (void)flags;
    h->listed += nghttp2_rcbuf_get_buf(value).len + FIELD_COST;
    if (h->listed > LIST_MOST) return spend(h, H2_CALM_MAX + 1);
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static void begin(h2 *h, int32_t id, bool with_body)
{
    text t;
    bool chunked = with_body && !h->sized;
    void *s =
        write_head(h, chunked, &t) ? h->owner.begin(h->owner.arg, id, t.p, t.n, chunked) : NULL;
    forget(&t);
    forget_head(h);
    if (s)
        (void)nghttp2_session_set_stream_user_data(h->session, id, s);
    else
        h2_reset(h, id, true);
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    h2 *h = arg;
    bool ends = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        begin(h, frame->hd.stream_id, !ends);
        return 0;
    }
    void *s = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (s && ends) h->owner.body_end(s);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes,
                   size_t n, void *arg)
{
    h2 *h = arg;
    (void)flags;
    h->strange -= (int64_t)n;
    void *s = nghttp2_session_get_stream_user_data(session, id);
    if (s)
        h->owner.body(s, bytes, n);
    else
        h2_consumed(h, id, n);
    return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t error, void *arg)
{
    const h2 *h = arg;
    (void)error;
    void *s = nghttp2_session_get_stream_user_data(session, id);
    if (s) h->owner.over(s);
    return 0;
}

/* ------------------------------------------------------------------------------ answers -- */

static ssize_t read_answer(nghttp2_session *session, int32_t id, uint8_t *to, size_t cap,
                           uint32_t *flags, nghttp2_data_source *source, void *arg)
{
    const h2 *h = arg;
    (void)source;
    void *s = nghttp2_session_get_stream_user_data(session, id);
    ssize_t n = s ? h->owner.read(s, to, cap) : H2_CUT;
    if (n == H2_NOTHING_YET) return NGHTTP2_ERR_DEFERRED;
    if (n == H2_CUT) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (n == H2_ALL_READ) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return n > 0 ? n : 0;
}

static int on_sent(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    h2 *h = arg;
    (void)session;
    if (frame->hd.type != NGHTTP2_DATA) return 0;
    h->calm = h->calm + DATA_WORTH < H2_CALM_MAX ? h->calm + DATA_WORTH : H2_CALM_MAX;
    return 0;
}

static bool of_connection(const char *name)
{
    return !strcmp(name, "connection") || !strcmp(name, "keep-alive") ||
           !strcmp(name, "transfer-encoding");
}

/* "name: value" up to `end`, whose bytes are overwritten. */
static bool read_field(char *line, char *end, nghttp2_nv *out)
{
    char *colon = memchr(line, ':', (size_t)(end - line));
    if (!colon || colon == line) return false;
    *colon = 0;
    for (char *p = line; p < colon; p++) *p = (char)tolower((unsigned char)*p);
    char *value = colon + 1;
    while (value < end && *value == ' ') value++;
    *out = (nghttp2_nv){.name = (uint8_t *)line,
                        .value = (uint8_t *)value,
                        .namelen = (size_t)(colon - line),
                        .valuelen = (size_t)(end - value)};
    return true;
}

bool h2_answer(h2 *h, int32_t id, char *head, size_t n)
{
    static const char version[] = "HTTP/1.1 ";
    char *at = head + sizeof(version) - 1, *end = head + n;
    if (n < sizeof(version) + 3 || memcmp(head, version, sizeof(version) - 1) != 0) return false;
    nghttp2_nv nv[ANSWER_FIELDS] = {
        {.name = (uint8_t *)":status", .value = (uint8_t *)at, .namelen = 7, .valuelen = 3}};
    size_t n_nv = 1;
    for (char *lf; (lf = memmem(at, (size_t)(end - at), "\r\n", 2)) && n_nv < ANSWER_FIELDS;) {
        char *line = lf + 2;
        char *next = memmem(line, (size_t)(end - line), "\r\n", 2);
        if (!next) return false;
        if (next == line) break;
        if (!read_field(line, next, &nv[n_nv])) return false;
        if (!of_connection(line)) n_nv++;
        at = next;
    }
    if (*nv[0].value == '1')
        return nghttp2_submit_headers(h->session, NGHTTP2_FLAG_NONE, id, NULL, nv, n_nv, NULL) == 0;
    nghttp2_data_provider body = {.read_callback = read_answer};
    return nghttp2_submit_response(h->session, id, nv, n_nv, &body) == 0;
}

static void check(h2 *h, int rc)
{
    h->broken |= rc < 0 && nghttp2_is_fatal(rc);
}

void h2_resume(h2 *h, int32_t id)
{
    check(h, nghttp2_session_resume_data(h->session, id));
}

void h2_reset(h2 *h, int32_t id, bool refused)
{
    check(h, nghttp2_submit_rst_stream(h->session, NGHTTP2_FLAG_NONE, id,
                                       refused ? NGHTTP2_REFUSED_STREAM : NGHTTP2_INTERNAL_ERROR));
}

void h2_stop_body(h2 *h, int32_t id)
{
    check(h, nghttp2_submit_rst_stream(h->session, NGHTTP2_FLAG_NONE, id, NGHTTP2_NO_ERROR));
}

void h2_consumed(h2 *h, int32_t id, size_t n)
{
    check(h, nghttp2_session_consume(h->session, id, n));
}

void h2_go_away(h2 *h)
{
    (void)nghttp2_submit_goaway(h->session, NGHTTP2_FLAG_NONE,
                                nghttp2_session_get_last_proc_stream_id(h->session),
                                NGHTTP2_NO_ERROR, NULL, 0);
}

/* -------------------------------------------------------------------------------- bytes -- */

bool h2_receive(h2 *h, const uint8_t *bytes, size_t n, int64_t now_us)
{
    h->calm += (now_us - h->calm_us) * H2_CALM_RATE / 1000000;
    if (h->calm > H2_CALM_MAX) h->calm = H2_CALM_MAX;
    h->calm_us = now_us;
    ssize_t used = nghttp2_session_mem_recv(h->session, bytes, n);
    h->strange += (int64_t)n;
    if (h->strange > STRANGE_BYTES) {
        (void)spend(h, (int)(h->strange / STRANGE_BYTES));
        h->strange %= STRANGE_BYTES;
    }
    if (used == NGHTTP2_ERR_FLOODED) h->flooded = true;
    if (h->flooded) (void)nghttp2_session_terminate_session(h->session, NGHTTP2_ENHANCE_YOUR_CALM);
    return !h->flooded && used == (ssize_t)n && nghttp2_session_want_read(h->session);
}

size_t h2_send(h2 *h, uint8_t *to, size_t cap)
{
    assert(cap > 0);
    size_t n = 0;
    for (;;) {
        if (!h->n_pending) {
            ssize_t got = nghttp2_session_mem_send(h->session, &h->pending);
            if (got < 0) h->broken = true;
            if (got <= 0) return n;
            h->n_pending = (size_t)got;
        }
        size_t some = h->n_pending < cap - n ? h->n_pending : cap - n;
        memcpy(to + n, h->pending, some);
        h->pending += some;
        h->n_pending -= some;
        n += some;
        if (n == cap) return n;
    }
}

bool h2_done(const h2 *h)
{
    if (h->broken) return true;
    return !h->n_pending && !nghttp2_session_want_read(h->session) &&
           !nghttp2_session_want_write(h->session);
}

bool h2_flooded(const h2 *h)
{
    return h->flooded;
}

/* ----------------------------------------------------------------------------- lifetime -- */

static bool make_session(h2 *h, nghttp2_session_callbacks *cb, nghttp2_option *option)
{
    nghttp2_mem mem = {NULL, get, wipe_and_free, get_zeroed, change};
    nghttp2_session_callbacks_set_on_begin_frame_callback(cb, on_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_invalid_header_callback2(cb, on_invalid_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(cb, on_invalid_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_frame_send_callback(cb, on_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_close);
    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_max_outbound_ack(option, ACKS_MAX);
    nghttp2_option_set_max_deflate_dynamic_table_size(option, 0);
    return nghttp2_session_server_new3(&h->session, cb, h, option, &mem) == 0;
}

h2 *h2_create(const h2_owner *o, int64_t now_us)
{
    static const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, H2_STREAMS_MAX},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2_STREAM_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, H2_LIST_BYTES},
        {NGHTTP2_SETTINGS_HEADER_TABLE_SIZE, 0},
    };
    nghttp2_session_callbacks *cb = NULL;
    nghttp2_option *option = NULL;
    h2 *h = calloc(1, sizeof(*h));
    if (!h) return NULL;
    h->owner = *o;
    h->calm = H2_CALM_MAX;
    h->calm_us = now_us;
    bool made =
        nghttp2_session_callbacks_new(&cb) == 0 && nghttp2_option_new(&option) == 0 &&
        make_session(h, cb, option) &&
        nghttp2_submit_settings(h->session, NGHTTP2_FLAG_NONE, settings,
                                sizeof(settings) / sizeof(settings[0])) == 0 &&
        nghttp2_session_set_local_window_size(h->session, NGHTTP2_FLAG_NONE, 0, H2_WINDOW) == 0;
    nghttp2_session_callbacks_del(cb);
    nghttp2_option_del(option);
    if (made) return h;
    h2_destroy(h);
    return NULL;
}

void h2_destroy(h2 *h)
{
    if (!h) return;
    nghttp2_session_del(h->session);
    forget_head(h);
    free(h);
}
