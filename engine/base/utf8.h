/* utf8.h -- the one reader and writer of UTF-8.
 *
 * Strict, as Unicode's table 3-7 has it: shortest forms only, no surrogates,
 * nothing beyond U+10FFFF.  It knows no properties of characters
 * (engine/text/unicode/unicode.h) and no widths (tui/text.h).
 *
 * Threads: any; there is no state.
 */
#ifndef ENGINE_BASE_UTF8_H
#define ENGINE_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum {
    UTF8_MAX = 4,
    UTF8_BROKEN = 0xFFFD
}; /* bytes of a character; what stands for a broken one */

/* The character at s, of which n >= 1 bytes are there: its length in bytes, and *c is its
 * code point.  Where there is none, *c stays as it is, and the answer is 0 or less: minus
 * the number of bytes that do begin a character.  If that is -n, the text is cut short and
 * more bytes may complete it. */
int utf8_read(const char *s, size_t n, uint32_t *c);

/* The same for who replaces what is broken: UTF8_BROKEN then, and *used is the bytes that it stands
 * for, as Unicode recommends (the longest beginning of a character, at least one byte). */
uint32_t utf8_decode(const char *s, size_t n, size_t *used);

/* Writes a code point up to U+10FFFF; the number of bytes. */
size_t utf8_encode(uint32_t c, char out[UTF8_MAX]);

/* Where the last character of s[0 .. end) begins, for end >= 1; a broken one begins anywhere. */
size_t utf8_back(const char *s, size_t end);

#endif
