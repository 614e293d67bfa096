/* charsmap.c -- SentencePiece's precompiled_charsmap: base64 of a double-array trie and its
 * replacement strings; and where graphemes end.
 *
 * Layout after base64: uint32 size of the trie in bytes, the units (little-endian uint32), then the
 * replacement strings, each with a NUL.
 *
 *   unit:  bits 0-7 label | 8 a key ends here | 9 offset counts 256 | 10-30 offset of the children
 *          | 31 set in a value, whose other bits are the position of its string
 *
 * A step of the search: at ^= byte; the unit there must have that byte as its label; at ^= offset.
 * Every index is checked, because the file is untrusted (charsmap_find()).
 *
 * A grapheme follows the rules of Unicode Annex 29 for extended clusters, without those that only
 * concern graphemes of six or more bytes (emoji sequences, Indic conjuncts): longer ones are never
 * looked up whole.
 *
 * Source: Aoe 1989 (double array); darts-clone's unit layout; Unicode Standard Annex 29.
 */
#include "engine/text/charsmap.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/unicode/unicode.h"

struct charsmap {
    uint32_t *unit;
    size_t n_units;
    char *text; /* NUL-ended each, and the last */
    size_t text_len;
};

static int digit_of(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Decodes base64; NUL-terminated. NULL: no memory, or not base64. */
static unsigned char *decode_base64(const char *s, size_t *len)
{
    size_t n = strlen(s);
    unsigned char *out = malloc(n + 1);
    uint32_t bits = 0;
    int n_bits = 0;
    *len = 0;
    while (n > 0 && s[n - 1] == '=') n--;
    for (size_t i = 0; out && i < n; i++) {
        int d = digit_of(s[i]);
        if (d < 0) {
            free(out);
            return NULL;
        }
        bits = bits << 6 | (uint32_t)d;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        out[(*len)++] = (unsigned char)(bits >> n_bits);
    }
    if (out) out[*len] = 0;
    return out;
}

static uint32_t little(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool take(charsmap *m, const unsigned char *raw, size_t len)
{
    size_t units = len >= 4 ? little(raw) : 0;
    if (units < 4 || units % 4 != 0 || units > len - 4) return false;
    m->n_units = units / 4;
    m->text_len = len - 4 - units;
    m->unit = malloc(units);
    m->text = malloc(m->text_len + 1);
    if (!m->unit || !m->text) return false;
    for (size_t i = 0; i < m->n_units; i++) m->unit[i] = little(raw + 4 + 4 * i);
    memcpy(m->text, raw + 4 + units, m->text_len);
    m->text[m->text_len] = 0;
    return true;
}

static bool is_text(const charsmap *m)
{
    uint32_t c;
    for (size_t i = 0; i < m->text_len;) {
        int used = m->text[i] ? utf8_read(m->text + i, m->text_len - i, &c) : 1;
        if (used <= 0) return false;
        i += (size_t)used;
    }
    return true;
}

err_code charsmap_read(charsmap **out, const char *text, err *e)
{
    size_t len;
    unsigned char *raw = decode_base64(text, &len);
    charsmap *m = raw ? calloc(1, sizeof(*m)) : NULL;
    bool ok = m && take(m, raw, len) && is_text(m);
    free(raw);
    *out = ok ? m : NULL;
    if (ok) return ERR_NONE;
    charsmap_destroy(m);
    return err_set(e, ERR_CORRUPT, "tokenizer.json: the precompiled_charsmap is malformed");
}

void charsmap_destroy(charsmap *m)
{
    if (!m) return;
    free(m->unit);
    free(m->text);
    free(m);
}

const char *charsmap_find(const charsmap *m, const char *s, size_t len)
{
    uint32_t unit = m->unit[0];
    size_t at = (size_t)(unit >> 10) << ((unit & 512U) >> 6);
    for (size_t i = 0; i < len && s[i]; i++) {
        at ^= (unsigned char)s[i];
        if (at >= m->n_units) return NULL;
        unit = m->unit[at];
        if ((unit & 0x800000FFU) != (unsigned char)s[i]) return NULL;
        at ^= (size_t)(unit >> 10) << ((unit & 512U) >> 6);
        if (at >= m->n_units) return NULL;
        if (!(unit >> 8 & 1)) continue;
        size_t from = m->unit[at] & 0x7FFFFFFFU;
        return from < m->text_len ? m->text + from : "";
    }
    return NULL;
}

/* Whether two characters belong to one grapheme. Rules that only concern graphemes of six bytes and
 * more are left out. */
static bool are_one(uint32_t a, uint32_t b, int flags)
{
    unicode_cluster x = unicode_run_of(unicode_clusters, unicode_clusters_n, a),
                    y = unicode_run_of(unicode_clusters, unicode_clusters_n, b);
    if (a == '\r' && b == '\n') return true;
    if (x == CLUSTER_CONTROL || y == CLUSTER_CONTROL) return false;
    if (y == CLUSTER_JOINS || x == CLUSTER_LEADS) return true;
    if (x == CLUSTER_L) return y == CLUSTER_L || y == CLUSTER_V || y == CLUSTER_SYLLABLE;
    bool open = x == CLUSTER_V || (x == CLUSTER_SYLLABLE && (a - 0xAC00) % 28 == 0);
    if (open || x == CLUSTER_T || x == CLUSTER_SYLLABLE)
        return y == CLUSTER_T || (open && y == CLUSTER_V);
    return x == CLUSTER_FLAG && y == CLUSTER_FLAG && flags % 2 == 1;
}

size_t charsmap_grapheme(const char *s, size_t len)
{
    size_t used, end;
    uint32_t c = utf8_decode(s, len, &used);
    int flags = 1;
    for (end = used; end < len; end += used) {
        uint32_t next = utf8_decode(s + end, len - end, &used);
        if (!are_one(c, next, flags)) break;
        flags++;
        c = next;
    }
    return end;
}
