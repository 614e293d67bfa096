/* chunks.h -- the framing of a chunked body (RFC 9112, 7.1), whatever the pieces in which it comes.
 *
 * Extensions and trailers are read, checked and dropped; both are bounded, so that a body of
 * nothing but framing ends.
 *
 * Ownership: the caller's struct, zeroed before first use.  Threads: any thread.
 */
#ifndef GATEWAY_HTTP_CHUNKS_H
#define GATEWAY_HTTP_CHUNKS_H

#include <stddef.h>
#include <stdint.h>

enum {
    CHUNKS_EXTENSION_MAX = 16384, /* bytes, of all chunks of a body together */
    CHUNKS_TRAILER_MAX = 8192,
    CHUNKS_DIGITS_MAX = 15, /* of a size; so that sums of sizes do not overflow */
};

typedef enum {
    CHUNKS_MORE,   /* all was framing, and there is more to come */
    CHUNKS_DATA,   /* `left` bytes of data are next: the caller's, who tells by chunks_took() */
    CHUNKS_END,    /* the body is whole */
    CHUNKS_BROKEN, /* no chunked body; stays so */
} chunks_state;

typedef struct chunks {
    uint64_t left; /* bytes of the current chunk that have not been taken */

    /* private */
    int place, n_digits, extension_bytes, trailer_bytes;
} chunks;

/* Reads framing from the first of the n bytes; *used: how many it was.  Stops before data. */
chunks_state chunks_read(chunks *c, const char *bytes, size_t n, size_t *used);

/* So many bytes of data have been taken: at most `left`. */
void chunks_took(chunks *c, size_t n);

#endif
