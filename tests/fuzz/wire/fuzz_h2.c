/* fuzz_h2.c -- frames of HTTP/2 behind a client's preface, in two sizes of pieces.
 *
 * The text that is made of a head is one head for head.h, and nothing behind it: no field has ended
 * a line.  Bodies have the length that their head says.  Every stream that began is closed once, or
 * left when the connection ends.
 */
#include <stdlib.h>
#include <string.h>

#include <civetweb.h>

#include "gateway/http/head.h"
#include "gateway/net/h2.h"
#include "tests/fuzz/fuzz.h"

enum { STREAMS = 256, OUT = 4096 };

typedef struct {
    h2 *h;
    int32_t id;
    int64_t length, got; /* length -1: not said */
    int left;            /* of the answer's body */
    bool open, ended;
} stream;

static h2 *connection;
static stream all[STREAMS];
static int n_all;

static void *begin(void *arg, int32_t id, const char *head, size_t n, bool chunked)
{
    struct mg_request_info ri = {0};
    head_refusal r;
    (void)arg;
    if (n_all == STREAMS) return NULL;
    stream *s = &all[n_all++];
    *s = (stream){.h = connection, .id = id, .length = -1, .left = id % 7 * 1000, .open = true};
    char *text = fuzz_text((const uint8_t *)head, n);
    int len = head_parse(text, (int)n, &ri, &r);
    FUZZ_CHECK(len < 0 || len == (int)n);
    int framed = 0;
    for (int i = 0; len > 0 && i < ri.num_headers; i++) {
        if (strcasecmp(ri.http_headers[i].name, "transfer-encoding") == 0) framed++;
        if (strcasecmp(ri.http_headers[i].name, "content-length") == 0)
            s->length = strtoll(ri.http_headers[i].value, NULL, 10);
    }
    FUZZ_CHECK(len < 0 || (framed == chunked && (!chunked || s->length < 0)));
    free(text);
    char answer[] = "HTTP/1.1 200 OK\r\nContent-Type: a\r\nConnection: close\r\nX: \r\n\r\n";
    FUZZ_CHECK(h2_answer(connection, id, answer, sizeof(answer) - 1));
    return s;
}

static void body(void *arg, const uint8_t *bytes, size_t n)
{
    stream *s = arg;
    FUZZ_CHECK(s->open && !s->ended && n > 0);
    s->got += (int64_t)n + (bytes[0] & 0); /* its first byte can be read */
    FUZZ_CHECK(s->length < 0 || s->got <= s->length);
    if (s->id % 3) h2_consumed(s->h, s->id, n);
}

static void body_end(void *arg)
{
    stream *s = arg;
    FUZZ_CHECK(s->open && !s->ended && (s->length < 0 || s->got == s->length));
    s->ended = true;
}

static ssize_t read_body(void *arg, uint8_t *to, size_t cap)
{
    stream *s = arg;
    FUZZ_CHECK(s->open);
    if (s->id % 11 == 5) return H2_CUT;
    if (s->id % 13 == 5 && !s->ended) return H2_NOTHING_YET;
    if (!s->left) return H2_ALL_READ;
    int n = s->left < (int)cap ? s->left : (int)cap;
    memset(to, 'a', (size_t)n);
    s->left -= n;
    return n;
}

static void over(void *arg)
{
    stream *s = arg;
    FUZZ_CHECK(s->open);
    s->open = false;
}

static void feed(const uint8_t *data, size_t size, size_t piece)
{
    static const char first[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    static uint8_t out[OUT];
    const h2_owner owner = {NULL, begin, body, body_end, read_body, over};
    int64_t now_us = 1;
    n_all = 0;
    connection = h2_create(&owner, now_us);
    FUZZ_CHECK(connection);
    bool on = h2_receive(connection, (const uint8_t *)first, sizeof(first), now_us);
    for (size_t at = 0, n; on && at < size; at += n) {
        n = size - at < piece ? size - at : piece;
        on = h2_receive(connection, data + at, n, now_us += 1000);
        for (int i = 0; i < 64 && h2_send(connection, out, OUT) == OUT; i++) continue;
        if (fuzz_hash(data, at) % 64 == 0 && n_all) h2_resume(connection, all[n_all - 1].id);
    }
    if (!on) (void)h2_send(connection, out, OUT);
    h2_go_away(connection);
    (void)h2_send(connection, out, OUT);
    (void)h2_done(connection);
    h2_destroy(connection);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    feed(data, size, size ? size : 1);
    feed(data, size, 1 + fuzz_hash(data, size) % 17);
    return 0;
}
