/* utf8.c -- reads and writes UTF-8; nothing is read beyond the first byte that does not fit. */
#include "engine/base/utf8.h"

static int length_of(unsigned char lead)
{
    return lead < 0x80   ? 1
           : lead < 0xC2 ? 0
           : lead < 0xE0 ? 2
           : lead < 0xF0 ? 3
           : lead < 0xF5 ? 4
                         : 0;
}

int utf8_read(const char *text, size_t n, uint32_t *c)
{
    const unsigned char *s = (const unsigned char *)text;
    int len = length_of(s[0]);
    uint32_t v = len == 1 ? s[0] : s[0] & (0x7FU >> len);
    for (int i = 1; i < len; i++) {
        /* Only the second byte can make a long form, a surrogate or too great a code point. */
        unsigned lo = i > 1 ? 0x80 : s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
        unsigned hi = i > 1 ? 0xBF : s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
        if ((size_t)i >= n || s[i] < lo || s[i] > hi) return -i;
        v = v << 6 | (s[i] & 0x3FU);
    }
    if (len > 0) *c = v;
    return len;
}

uint32_t utf8_decode(const char *s, size_t n, size_t *used)
{
    uint32_t c = UTF8_BROKEN;
    int len = utf8_read(s, n, &c);
    *used = len > 0 ? (size_t)len : len < 0 ? (size_t)-len : 1;
    return c;
}

size_t utf8_encode(uint32_t c, char out[UTF8_MAX])
{
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[n] | c);
    return n;
}

size_t utf8_back(const char *s, size_t end)
{
    do end--;
    while (end > 0 && ((unsigned char)s[end] & 0xC0) == 0x80);
    return end;
}
