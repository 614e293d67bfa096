/* h2.h -- the HTTP/2 of one connection: bytes in, bytes out, and the streams of its owner between.
 *
 * nghttp2 reads and writes frames and keeps windows.  Here are its limits, what a client may ask
 * for in vain before the connection ends, and the two languages: a stream's head becomes the text
 * of an HTTP/1.1 head, for which there is one parser (gateway/http/head.h), and the text of an
 * answer's head becomes fields.
 *
 * Ownership: whoever created it destroys it.  Threads: one.  Knows no socket, and blocks never.
 */
#ifndef GATEWAY_NET_H2_H
#define GATEWAY_NET_H2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    H2_STREAMS_MAX = 100,         /* of a connection, at once */
    H2_HEAD_BYTES = 40 << 10,     /* of a head's text; longer ones are cut, and refused for that */
    H2_LIST_BYTES = 32768,        /* of a head's fields, as clients are told */
    H2_STREAM_WINDOW = 512 << 10, /* of a body that has not been consumed */
    H2_WINDOW = 1 << 20,          /* of all bodies of the connection */
    H2_CONTINUATIONS_MAX = 4,     /* frames of a head behind its first */
    /* A frame that asks for nothing takes one from what a connection has, a stream that is reset or
     * malformed takes ten; a second brings it RATE, a frame of data that it is sent three. */
    H2_CALM_RATE = 200,
    H2_CALM_MAX = 2000,
};

typedef struct h2 h2;

/* What h2_owner.read() says besides a number of bytes. */
enum { H2_NOTHING_YET = 0, H2_ALL_READ = -1, H2_CUT = -2 };

typedef struct h2_owner {
    void *arg;
    /* A request: the text of its head (n bytes, which it may change; gone afterwards).  Its body,
     * if any, comes framed as the head says: `chunked` asks the owner to frame it in chunks.  The
     * owner's stream; NULL: it is refused, and the client may ask again. */
    void *(*begin)(void *arg, int32_t id, const char *head, size_t n, bool chunked);
    /* Of the body; the owner tells by h2_consumed() when it has no more need of memory. */
    void (*body)(void *stream, const uint8_t *bytes, size_t n);
    void (*body_end)(void *stream);
    /* The next bytes of the answer's body: how many, or one of the above. */
    ssize_t (*read)(void *stream, uint8_t *to, size_t cap);
    /* It is closed: no call has it any more.  Not called by h2_destroy(). */
    void (*over)(void *stream);
} h2_owner;

/* NULL: no memory.  Copies *o. */
h2 *h2_create(const h2_owner *o, int64_t now_us);
void h2_destroy(h2 *h);

/* Bytes of the client.  False: there is nothing to read any more; what h2_send() has is to be
 * written, and the connection closed. */
bool h2_receive(h2 *h, const uint8_t *bytes, size_t n, int64_t now_us);
/* Fills `to` with what is to be written; how many bytes; 0: nothing now. */
size_t h2_send(h2 *h, uint8_t *to, size_t cap);
/* Everything has been said by both sides, or can't be. */
bool h2_done(const h2 *h);
/* Whether the connection was closed because of a flood of frames. */
bool h2_flooded(const h2 *h);

/* The head of an answer, 1xx or the last, n bytes with its empty line, which are overwritten.
 * False: it is none. */
bool h2_answer(h2 *h, int32_t id, char *head, size_t n);
/* Where h2_owner.read() had nothing yet there is something now. */
void h2_resume(h2 *h, int32_t id);
/* Ends the stream; `refused`: nothing has been done for it. */
void h2_reset(h2 *h, int32_t id, bool refused);
/* The answer is whole, and the rest of the body is unwanted (RFC 9113, 8.1). */
void h2_stop_body(h2 *h, int32_t id);
/* So many bytes of bodies may come in place of these; of a stream that is over, too. */
void h2_consumed(h2 *h, int32_t id, size_t n);
/* No further stream; those that run go on. */
void h2_go_away(h2 *h);

#endif
