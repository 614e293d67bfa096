/* hex.h -- hexadecimal digits, read and written.
 *
 * Readers take both cases; whose format has small letters only looks with
 * strspn(text, HEX_DIGITS) first.
 *
 * Threads: any; there is no state.
 */
#ifndef ENGINE_BASE_HEX_H
#define ENGINE_BASE_HEX_H

#include <stddef.h>
#include <stdint.h>

#define HEX_DIGITS "0123456789abcdef"

/* The value of a digit, or -1. */
static inline int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The value of the n <= 7 digits that [s, end) begins with, or -1. */
static inline int hex_value(const char *s, const char *end, int n)
{
    int v = 0;
    for (int i = 0; i < n; i++) {
        int d = s + i < end ? hex_digit(s[i]) : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* 2 n digits; no NUL. */
static inline void hex_write(const uint8_t *bytes, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        *out++ = HEX_DIGITS[bytes[i] >> 4];
        *out++ = HEX_DIGITS[bytes[i] & 15];
    }
}

#endif
