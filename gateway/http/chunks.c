/* chunks.c -- reads chunked bodies byte by byte; each state says what may come next. */
#include "gateway/http/chunks.h"

#include <assert.h>
#include <ctype.h>
#include <stdbool.h>
#include <string.h>

typedef enum {
    AT_SIZE, /* a digit must come; the struct's zero */
    IN_SIZE,
    BEHIND_SIZE, /* white space before an extension */
    IN_EXTENSION,
    SIZE_LF,
    IN_DATA,
    DATA_CR,
    DATA_LF,
    AT_TRAILER, /* a field, or the empty line */
    IN_TRAILER_NAME,
    IN_TRAILER_VALUE,
    TRAILER_LF,
    LAST_LF,
    WHOLE,
    BROKEN,
} place;

static_assert(CHUNKS_DIGITS_MAX <= 16, "a size has more digits than its 64 bits hold");

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* What may stand in extensions and in the values of trailers. */
static bool is_text(char c)
{
    return c == '\t' || ((unsigned char)c >= 0x20 && c != 0x7f);
}

static place behind_size(chunks *c, char b)
{
    if (b == ' ' || b == '\t')
        return ++c->extension_bytes > CHUNKS_EXTENSION_MAX ? BROKEN : BEHIND_SIZE;
    return b == ';' ? IN_EXTENSION : BROKEN;
}

static place in_size(chunks *c, char b)
{
    int digit = digit_of(b);
    if (digit >= 0) {
        if (++c->n_digits > CHUNKS_DIGITS_MAX) return BROKEN;
        c->left = c->left << 4 | (unsigned)digit;
        return IN_SIZE;
    }
    if (c->n_digits == 0) return BROKEN;
    return b == '\r' ? SIZE_LF : behind_size(c, b);
}

static place in_extension(chunks *c, char b)
{
    if (b == '\r') return SIZE_LF;
    return is_text(b) && ++c->extension_bytes <= CHUNKS_EXTENSION_MAX ? IN_EXTENSION : BROKEN;
}

static place in_trailer(chunks *c, place at, char b)
{
    if (++c->trailer_bytes > CHUNKS_TRAILER_MAX) return BROKEN;
    if (at == IN_TRAILER_VALUE) {
        return b == '\r' ? TRAILER_LF : is_text(b) ? IN_TRAILER_VALUE : BROKEN;
    }
    if (b == '\r' && at == AT_TRAILER) return LAST_LF;
    if (b == ':' && at == IN_TRAILER_NAME) return IN_TRAILER_VALUE;
    bool token = isalnum((unsigned char)b) || (b && strchr("!#$%&'*+-.^_`|~", b));
    return token ? IN_TRAILER_NAME : BROKEN;
}

static place next_place(chunks *c, place at, char b)
{
    switch (at) {
    case AT_SIZE:
    case IN_SIZE: return in_size(c, b);
    case BEHIND_SIZE: return behind_size(c, b);
    case IN_EXTENSION: return in_extension(c, b);
    case SIZE_LF: return b != '\n' ? BROKEN : c->left ? IN_DATA : AT_TRAILER;
    case DATA_CR: return b == '\r' ? DATA_LF : BROKEN;
    case DATA_LF: return b == '\n' ? AT_SIZE : BROKEN;
    case TRAILER_LF: return b == '\n' ? AT_TRAILER : BROKEN;
    case LAST_LF: return b == '\n' ? WHOLE : BROKEN;
    default: return in_trailer(c, at, b);
    }
}

chunks_state chunks_read(chunks *c, const char *bytes, size_t n, size_t *used)
{
    place at = (place)c->place;
    size_t i = 0;
    while (i < n && at != IN_DATA && at != WHOLE && at != BROKEN) {
        if (at == AT_SIZE) c->n_digits = 0;
        at = next_place(c, at, bytes[i++]);
    }
    assert(at != IN_DATA || c->left > 0);
    *used = i;
    c->place = (int)at;
    return at == IN_DATA  ? CHUNKS_DATA
           : at == WHOLE  ? CHUNKS_END
           : at == BROKEN ? CHUNKS_BROKEN
                          : CHUNKS_MORE;
}

void chunks_took(chunks *c, size_t n)
{
    assert(c->place == IN_DATA && n <= c->left);
    c->left -= n;
    if (c->left == 0) c->place = DATA_CR;
}
