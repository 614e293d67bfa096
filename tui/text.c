/* text.c -- which characters a terminal may get, and their widths from the C library.
 *
 * Names and answers come from strangers, so what a terminal would obey (controls, escapes) and
 * what makes one text look like another (characters of no width, of direction, tags) becomes
 * "?", as does what is no UTF-8 or what this terminal cannot show.
 *
 * A stream comes in pieces that may end inside a character: text_carry keeps at most four bytes
 * until the rest is there.
 *
 * Numbers have at most four digits and a unit: 9999, 10.0k, 123M; bytes in steps of 1,024, spans
 * of time as their two largest units.
 */
#include "tui/text.h"

#include <assert.h>
#include <langinfo.h>
#include <math.h>
#include <string.h>
#include <wchar.h>

#include "engine/base/utf8.h"

/* Nothing that a terminal would obey, and nothing that makes one text look like another. */
static bool harmless(uint32_t cp)
{
    if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0xad) return false;
    if (cp >= 0x200b && cp <= 0x200f) return false; /* zero width, direction marks */
    if (cp >= 0x2028 && cp <= 0x202e) return false; /* separators, direction overrides */
    if (cp >= 0x2060 && cp <= 0x206f) return false;
    if (cp == 0x061c || cp == 0x180e || cp == 0xfeff) return false;
    if (cp >= 0xfff9 && cp <= 0xfffb) return false;
    return cp < 0xe0000;
}

static bool utf8_terminal(void)
{
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

/* What stands for the next character: its bytes in out (at most 4), its width; advances *s. */
static int next(const char **s, size_t *n, bool utf8, char out[5])
{
    uint32_t cp = 0;
    int len = utf8_read(*s, *n, &cp), width = 1;
    bool good = len > 0 && harmless(cp) && (cp < 0x80 || utf8);
    if (good && cp >= 0x80) width = wcwidth((wchar_t)cp);
    if (good && width >= 0) {
        memcpy(out, *s, (size_t)len);
        out[len] = 0;
    } else {
        memcpy(out, "?", 2);
        width = 1;
    }
    if (len < 1) len = 1;
    *s += len;
    *n -= (size_t)len;
    return width;
}

int text_width(const char *s)
{
    char ch[5];
    size_t n = strlen(s);
    bool utf8 = utf8_terminal();
    int width = 0;
    while (n) width += next(&s, &n, utf8, ch);
    return width;
}

int text_clean(const char *s, char *out, size_t cap, int columns)
{
    char ch[5];
    size_t n = strlen(s), at = 0;
    bool utf8 = utf8_terminal(), cut = columns > 0 && text_width(s) > columns;
    int width = 0, room = cut ? columns - 1 : columns;
    while (n) {
        int w = next(&s, &n, utf8, ch);
        size_t len = strlen(ch);
        if ((columns > 0 && width + w > room) || at + len + 4 > cap) break;
        memcpy(out + at, ch, len);
        at += len;
        width += w;
    }
    if (cut) {
        const char *dots = utf8 ? "\xe2\x80\xa6" : "~";
        memcpy(out + at, dots, strlen(dots));
        at += strlen(dots);
        width++;
    }
    assert(at < cap);
    out[at] = 0;
    return width;
}

void text_print(FILE *f, const char *s, size_t len, text_carry *carry)
{
    bool utf8 = utf8_terminal();
    char ch[5];
    assert(carry->n >= 0 && carry->n <= 4);
    while (len || carry->n == 4) {
        while (carry->n < 4 && len) { /* at least one whole sequence, if there is one */
            carry->bytes[carry->n++] = *s++;
            len--;
        }
        const char *p = carry->bytes;
        size_t n = (size_t)carry->n;
        while (n) {
            uint32_t cp;
            if (utf8_read(p, n, &cp) == -(int)n) break; /* the rest comes with the next piece */
            if (*p == '\n' || *p == '\t') {
                (void)fputc(*p++, f);
                n--;
                continue;
            }
            (void)next(&p, &n, utf8, ch);
            (void)fputs(ch, f);
        }
        memmove(carry->bytes, p, n);
        carry->n = (int)n;
    }
}

void text_count(double v, char *out, size_t cap)
{
    static const char unit[] = " kMGTPE";
    int u = 0;
    if (!isfinite(v)) v = 0;
    while (fabs(v) >= 9999.5 && u < 6) {
        v /= 1000;
        u++;
    }
    if (u == 0)
        snprintf(out, cap, fabs(v) < 9.95 && v != floor(v) ? "%.1f" : "%.0f", v);
    else
        snprintf(out, cap, fabs(v) < 99.95 ? "%.1f%c" : "%.0f%c", v, unit[u]);
}

void text_bytes(double v, char *out, size_t cap)
{
    static const char unit[] = "BKMGTPE";
    int u = 0;
    if (!isfinite(v)) v = 0;
    while (fabs(v) >= 1023.5 && u < 6) {
        v /= 1024;
        u++;
    }
    if (u == 0)
        snprintf(out, cap, "%.0f B", v);
    else
        snprintf(out, cap, fabs(v) < 99.95 ? "%.1f %ciB" : "%.0f %ciB", v, unit[u]);
}

void text_span(int64_t s, char *out, size_t cap)
{
    if (s < 0) s = 0;
    if (s < 60)
        snprintf(out, cap, "%llds", (long long)s);
    else if (s < 3600)
        snprintf(out, cap, "%lldm%02llds", (long long)(s / 60), (long long)(s % 60));
    else if (s < 86400)
        snprintf(out, cap, "%lldh%02lldm", (long long)(s / 3600), (long long)(s / 60 % 60));
    else
        snprintf(out, cap, "%lldd%02lldh", (long long)(s / 86400), (long long)(s / 3600 % 24));
}

void text_ms(double ms, char *out, size_t cap)
{
    if (ms < 0)
        snprintf(out, cap, "-");
    else if (ms < 9.95)
        snprintf(out, cap, "%.1fms", ms);
    else if (ms < 9999.5)
        snprintf(out, cap, "%.0fms", ms);
    else
        snprintf(out, cap, "%.1fs", ms / 1000);
}
