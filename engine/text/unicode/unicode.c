/* unicode.c -- looks properties of characters up in the generated tables; normal forms.
 *
 * Every table is sorted, and every look-up is a bisection over ranges or runs; ASCII has a
 * direct table. A run is the first code point of a stretch with one value, with the value in
 * bits 24 to 31.
 *
 * Normalisation is that of UAX #15, in three passes over one buffer: decompose each code point
 * (Hangul by arithmetic, all others recursively), sort combining marks by their class, compose
 * pairs if the form is a composed one. The caller passes a stretch that begins and ends where
 * unicode_form_begins() allows it, so that long texts are normalised piece by piece.
 *
 * Sorting is stable. Long runs of marks do not occur in any language; hostile ones are sorted in
 * pieces of 256, so that the time stays linear.
 */
#include "engine/text/unicode/unicode.h"

bool unicode_in_ranges(const unicode_range *t, int n, uint32_t c)
{
    int lo = 0, hi = n - 1;
    while (lo <= hi) {
        int mid = (lo + hi) / 2;
        if (c < t[mid].first)
            hi = mid - 1;
        else if (c > t[mid].last)
            lo = mid + 1;
        else
            return true;
    }
    return false;
}

uint32_t unicode_run_of(const uint32_t *runs, int n, uint32_t c)
{
    int lo = 0, hi = n - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if ((runs[mid] & 0xFFFFFF) <= c)
            lo = mid;
        else
            hi = mid - 1;
    }
    return runs[lo] >> 24;
}

uint32_t unicode_with_kind(uint32_t c)
{
    if (c < 128) return c | (uint32_t)unicode_ascii_kinds[c] << 24;
    return c | unicode_run_of(unicode_kinds, unicode_kinds_n, c) << 24;
}

/* In a table of first, last and a value: that of c; NULL: none. */
static const unicode_triple *triple_of(const unicode_triple *t, int n, uint32_t c)
{
    int lo = 0, hi = n - 1;
    while (lo <= hi) {
        int mid = (lo + hi) / 2;
        if (c < t[mid].a)
            hi = mid - 1;
        else if (c > t[mid].b)
            lo = mid + 1;
        else
            return &t[mid];
    }
    return NULL;
}

size_t unicode_to_lower(uint32_t c, uint32_t out[2])
{
    const unicode_triple *t = triple_of(unicode_lower, unicode_lower_n, c);
    out[0] = t ? c + t->c : c;
    out[1] = 0x307;
    return c == 0x130 ? 2 : 1;
}

bool unicode_is_letter(uint32_t c)
{
    if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    return unicode_with_kind(c) >> 24 <= UNICODE_LO;
}

bool unicode_is_number(uint32_t c)
{
    if (c < 0x80) return c >= '0' && c <= '9';
    return unicode_in_ranges(unicode_numbers, unicode_numbers_n, c);
}

bool unicode_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

bool unicode_is_word(uint32_t c)
{
    if (c < 0x80) return (c >= '0' && c <= '9') || (c | 0x20) - 'a' < 26U || c == '_';
    return unicode_in_ranges(unicode_words, unicode_words_n, c);
}

/* ---------------------------------------------------------------- normal forms -- */

enum { S_BASE = 0xAC00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11A7, S_COUNT = 11172 };

static unsigned combining_class(uint32_t c)
{
    const unicode_triple *t = c < 0x300 ? NULL : triple_of(unicode_classes, unicode_classes_n, c);
    return t ? t->c : 0;
}

bool unicode_form_begins(unicode_form f, uint32_t c)
{
    if (c < 0x300 && !(f.compatible && c >= 0x80)) return true;
    return !unicode_in_ranges(unicode_joins, unicode_joins_n, c) &&
           !(f.compatible &&
             unicode_in_ranges(unicode_joins_compatible, unicode_joins_compatible_n, c));
}

/* What only the compatible forms make of it; 0: nothing. */
static size_t make_compatible(uint32_t c, uint32_t *out)
{
    const unicode_triple *t = triple_of(unicode_single, unicode_single_n, c);
    if (t) out[0] = c + t->c;
    if (t) return 1;
    int lo = 0, hi = unicode_longer_n - 1;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (unicode_longer[mid].first < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (unicode_longer[lo].first != c) return 0;
    size_t n = unicode_longer[lo].last & 0xFF;
    for (size_t i = 0; i < n; i++) out[i] = unicode_longer_text[(unicode_longer[lo].last >> 8) + i];
    return n;
}

static size_t decompose(uint32_t c, uint32_t *out)
{
    if (c >= S_BASE && c < S_BASE + S_COUNT) {
        uint32_t s = c - S_BASE;
        out[0] = L_BASE + s / 588;
        out[1] = V_BASE + s % 588 / 28;
        out[2] = T_BASE + s % 28;
        return s % 28 ? 3 : 2;
    }
    int lo = 0, hi = unicode_decomposed_n - 1;
    while (c >= 0xC0 && lo <= hi) {
        int mid = (lo + hi) / 2;
        const unicode_triple *t = &unicode_decomposed[mid];
        if (c < t->a)
            hi = mid - 1;
        else if (c > t->a)
            lo = mid + 1;
        else {
            size_t n = decompose(t->b, out); /* at most 4 in all, by Unicode's stability policy */
            if (t->c) out[n++] = t->c;
            return n;
        }
    }
    out[0] = c;
    return 1;
}

static uint32_t compose(uint32_t a, uint32_t b)
{
    if (a >= L_BASE && a < L_BASE + 19 && b >= V_BASE && b < V_BASE + 21) {
        return S_BASE + ((a - L_BASE) * 21 + (b - V_BASE)) * 28;
    }
    if (a >= S_BASE && a < S_BASE + S_COUNT && (a - S_BASE) % 28 == 0 && b > T_BASE &&
        b < T_BASE + 28) {
        return a + (b - T_BASE);
    }
    int lo = 0, hi = unicode_composed_n - 1;
    while (lo <= hi) {
        int mid = (lo + hi) / 2;
        const unicode_triple *t = &unicode_composed[mid];
        if (a < t->a || (a == t->a && b < t->b))
            hi = mid - 1;
        else if (a > t->a || b > t->b)
            lo = mid + 1;
        else
            return t->c;
    }
    return 0;
}

/* Stable merge sort of combining marks by class.  */
static void sort_marks(uint32_t *s, size_t n, uint32_t *tmp)
{
    for (size_t w = 1; w < n; w *= 2) {
        for (size_t i = 0; i < n; i += 2 * w) {
            size_t mid = i + w < n ? i + w : n, end = i + 2 * w < n ? i + 2 * w : n;
            size_t a = i, b = mid, k = i;
            while (a < mid || b < end) {
                bool left = b >= end || (a < mid && combining_class(s[a]) <= combining_class(s[b]));
                tmp[k++] = left ? s[a++] : s[b++];
            }
        }
        for (size_t i = 0; i < n; i++) s[i] = tmp[i];
    }
}

/* Marks behind one another in the order of their classes. */
static void sort_run(uint32_t *s, size_t n)
{
    uint32_t tmp[256]; /* hostile runs are sorted in pieces: no language stacks 256 marks */
    for (size_t k = 1; n <= 32 && k < n; k++) { /* short: insertion */
        uint32_t c = s[k];
        size_t j = k;
        for (; j > 0 && combining_class(s[j - 1]) > combining_class(c); j--) s[j] = s[j - 1];
        s[j] = c;
    }
    for (size_t k = 0; n > 32 && k < n; k += 256) sort_marks(s + k, n - k < 256 ? n - k : 256, tmp);
}

static void sort_all(uint32_t *s, size_t n)
{
    for (size_t i = 0, end; i < n; i = end + 1) {
        end = i;
        while (end < n && combining_class(s[end])) end++;
        sort_run(s + i, end - i);
    }
}

static size_t compose_all(uint32_t *s, size_t n)
{
    size_t w = 0, starter = SIZE_MAX;
    unsigned last_class = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned cc = combining_class(s[i]);
        if (starter != SIZE_MAX && (w == starter + 1 || last_class < cc)) {
            uint32_t c = compose(s[starter], s[i]);
            if (c && (w == starter + 1 || last_class != 0)) {
                s[starter] = c;
                continue;
            }
        }
        if (cc == 0) starter = w;
        last_class = cc;
        s[w++] = s[i];
    }
    return w;
}

size_t unicode_normal_form(unicode_form f, const uint32_t *in, size_t n, uint32_t *out)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        size_t used = f.compatible && in[i] >= 0x80 ? make_compatible(in[i], out + m) : 0;
        m += used ? used : decompose(in[i], out + m);
    }
    sort_all(out, m);
    return f.composed ? compose_all(out, m) : m;
}
