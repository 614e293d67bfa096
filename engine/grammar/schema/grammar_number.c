/* grammar_number.c -- decimal numbers between two bounds, digit by digit.
 *
 * Integers: for every length, the digits run between those of the bounds, "tight" as long as they
 * are equal to one of them.  Bounds of any size are exact; where there is none, numbers have at
 * most GRAMMAR_DIGITS digits.  Fractions go on from there in the same way, with at most
 * GRAMMAR_DIGITS digits before the point and GRAMMAR_FRACTION after it; numbers without a bound
 * may have an exponent of two digits.  Minus zero is not written.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/automaton/grammar_automaton.h"

static const int64_t most = INT64_MAX;

static void digits(g_builder *b, int32_t from, int lo, int hi, int32_t to)
{
    assert(lo >= 0 && hi <= 9);
    if (lo <= hi) gb_bytes(b, from, '0' + lo, '0' + hi, STEP_PLAIN, to);
}

/* ---------------------------------------------------------------------- integers -- */

enum { WHOLE_DIGITS = 128 }; /* of a bound; a number in JSON has no more (engine/base/json.c) */

typedef struct {
    g_builder *b;
    int n;
    const char *lo, *hi;            /* n digits each */
    int32_t rest[WHOLE_DIGITS + 1]; /* state from which k more digits lead to the end */
} span;

static int32_t rest_of(span *s, int k)
{
    assert(k >= 0 && k <= WHOLE_DIGITS);
    if (s->rest[k] >= 0) return s->rest[k];
    s->rest[k] = gb_state(s->b);
    digits(s->b, s->rest[k], 0, 9, rest_of(s, k - 1));
    return s->rest[k];
}

static void between(span *s, int32_t from, int i, bool low, bool high, int32_t to)
{
    int lo = low ? s->lo[i] - '0' : 0, hi = high ? s->hi[i] - '0' : 9;
    int left = s->n - i - 1;
    if (left == 0) {
        digits(s->b, from, lo, hi, to);
        return;
    }
    if (low && high && lo == hi) {
        int32_t next = gb_state(s->b);
        digits(s->b, from, lo, lo, next);
        between(s, next, i + 1, true, true, to);
        return;
    }
    if (low) {
        int32_t next = gb_state(s->b);
        digits(s->b, from, lo, lo, next);
        between(s, next, i + 1, true, false, to);
    }
    if (high) {
        int32_t next = gb_state(s->b);
        digits(s->b, from, hi, hi, next);
        between(s, next, i + 1, false, true, to);
    }
    digits(s->b, from, lo + low, hi - high, rest_of(s, left));
}

/* Whole numbers, 0 <= lo <= hi, in digits without leading zeros. */
static void texts(g_builder *b, int32_t from, const char *lo, const char *hi, int32_t to)
{
    char nines[WHOLE_DIGITS + 1], least[WHOLE_DIGITS + 1];
    int n_lo = (int)strlen(lo), n_hi = (int)strlen(hi);
    span s = {.b = b};
    assert(n_lo > 0 && n_lo <= n_hi && n_hi <= WHOLE_DIGITS);
    memset(nines, '9', sizeof(nines));
    memset(least, '0', sizeof(least));
    least[0] = '1';
    for (int k = 0; k <= WHOLE_DIGITS; k++) s.rest[k] = -1;
    s.rest[0] = to;
    for (s.n = n_lo; s.n <= n_hi && !b->failed; s.n++) {
        s.lo = s.n == n_lo ? lo : least;
        s.hi = s.n == n_hi ? hi : nines;
        between(&s, from, 0, true, true, to);
    }
}

static void naturals(g_builder *b, int32_t from, int64_t lo, int64_t hi, int32_t to)
{
    char least[24], last[24];
    snprintf(least, sizeof(least), "%lld", (long long)lo);
    snprintf(last, sizeof(last), "%lld", (long long)hi);
    if (lo <= hi) texts(b, from, least, last, to);
}

/* A whole number of any size. */
typedef struct {
    bool minus, huge; /* huge: more digits than there is room for */
    char digit[WHOLE_DIGITS + 2];
} big_whole;

static int compare(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    return n != m ? (n < m ? -1 : 1) : strcmp(a, b);
}

/* One more, by magnitude. */
static void one_more(big_whole *w)
{
    int n = (int)strlen(w->digit), i = n - 1;
    while (i >= 0 && w->digit[i] == '9') w->digit[i--] = '0';
    if (i >= 0) {
        w->digit[i]++;
        return;
    }
    w->huge = n == WHOLE_DIGITS;
    memmove(w->digit + 1, w->digit, (size_t)n + 1);
    w->digit[0] = '1';
}

/* One less, by magnitude, which is not 0. */
static void one_less(big_whole *w)
{
    assert(strcmp(w->digit, "0") != 0);
    int i = (int)strlen(w->digit) - 1;
    while (w->digit[i] == '0') w->digit[i--] = '9';
    w->digit[i]--;
    if (w->digit[0] == '0' && w->digit[1]) memmove(w->digit, w->digit + 1, strlen(w->digit));
}

/* The next whole number above, or below. */
static void step(big_whole *w, bool up)
{
    bool zero = strcmp(w->digit, "0") == 0;
    if (zero) w->minus = !up;
    if (zero || up != w->minus)
        one_more(w);
    else
        one_less(w);
    if (strcmp(w->digit, "0") == 0) w->minus = false;
}

/* Cuts a decimal behind its point; true: something but zeros was cut off. */
static bool cut(const char *text, big_whole *out)
{
    const char *e = strpbrk(text, "eE"), *dot = strchr(text, '.');
    long exponent = e ? strtol(e + 1, NULL, 10) : 0, at = 0;
    size_t len = e ? (size_t)(e - text) : strlen(text), first = text[0] == '-';
    long point = (long)(dot && dot < text + len ? (size_t)(dot - text) - first : len - first);
    int n = 0;
    bool rest = false;
    *out = (big_whole){.minus = text[0] == '-'};
    if (exponent > 10000 || exponent < -10000) exponent = exponent > 0 ? 10000 : -10000;
    for (size_t i = first; i < len; i++) {
        if (text[i] == '.') continue;
        bool inside = at++ < point + exponent;
        if (!inside) rest |= text[i] != '0';
        if (!inside || (n == 0 && text[i] == '0')) continue;
        if (n < WHOLE_DIGITS) out->digit[n] = text[i];
        n++;
    }
    for (; n > 0 && at < point + exponent && n <= WHOLE_DIGITS; at++, n++)
        if (n < WHOLE_DIGITS) out->digit[n] = '0';
    out->huge = n > WHOLE_DIGITS;
    if (n == 0) out->digit[n++] = '0';
    if (!out->huge) out->digit[n] = 0;
    if (!rest && strcmp(out->digit, "0") == 0) out->minus = false;
    return rest;
}

/* The least whole number that a lower bound allows, or the greatest that an upper one does. */
static big_whole bound_of(const g_limit *l, bool is_lower)
{
    char text[40];
    big_whole w;
    if (l->exact)
        snprintf(text, sizeof(text), "%lld", (long long)l->whole);
    else
        snprintf(text, sizeof(text), "%.17g", l->value);
    bool rest = cut(l->text && !l->exact ? l->text : text, &w);
    if (w.huge) return w;
    bool minus = w.minus;
    if (rest && strcmp(w.digit, "0") == 0) w.minus = false;
    if (rest ? minus != is_lower : l->strict) step(&w, is_lower);
    return w;
}

/* As far as numbers without an upper bound go. */
static void set_end(big_whole *w, const char *least)
{
    size_t n = strlen(least);
    *w = (big_whole){.minus = false};
    snprintf(w->digit, sizeof(w->digit), "%lld", (long long)most);
    if (n < strlen(w->digit)) return;
    n += n < WHOLE_DIGITS;
    memset(w->digit, '9', n);
    w->digit[n] = 0;
}

void gb_integer(g_builder *b, int32_t from, const g_limit *lo, const g_limit *hi, int32_t to)
{
    big_whole a = {.huge = true, .minus = true}, z = {.huge = true};
    if (lo) a = bound_of(lo, true);
    if (hi) z = bound_of(hi, false);
    if ((a.huge && !a.minus) || (z.huge && z.minus)) return; /* beyond all that is written */
    const char *least = a.minus ? "0" : a.digit, *below = z.huge || !z.minus ? "1" : z.digit;
    if (z.huge) set_end(&z, least);
    if (a.huge) {
        set_end(&a, below);
        a.minus = true;
    }
    if (!z.minus && compare(least, z.digit) <= 0) texts(b, from, least, z.digit, to);
    if (!a.minus || compare(below, a.digit) > 0) return;
    int32_t minus = gb_state(b);
    gb_bytes(b, from, '-', '-', STEP_PLAIN, minus);
    texts(b, minus, below, a.digit, to);
}

/* --------------------------------------------------------------------- fractions -- */

typedef struct {
    int64_t whole;
    char frac[GRAMMAR_FRACTION + 1]; /* no zeros at the end */
    int n;
    bool strict;
} magnitude;

typedef struct {
    g_builder *b;
    int32_t to;
    int32_t free[GRAMMAR_FRACTION + 1]; /* after k digits: any more, or none */
} fractions;

static int32_t free_after(fractions *f, int k)
{
    assert(k >= 0 && k <= GRAMMAR_FRACTION);
    if (f->free[k] >= 0) return f->free[k];
    f->free[k] = gb_state(f->b);
    gb_eps(f->b, f->free[k], f->to);
    if (k < GRAMMAR_FRACTION) digits(f->b, f->free[k], 0, 9, free_after(f, k + 1));
    return f->free[k];
}

static int32_t point(fractions *f, int32_t from)
{
    int32_t s = gb_state(f->b);
    gb_bytes(f->b, from, '.', '.', STEP_PLAIN, s);
    return s;
}

/* `s` is after the integer part: any fraction, or none. */
static void any_fraction(fractions *f, int32_t s)
{
    gb_eps(f->b, s, f->to);
    digits(f->b, point(f, s), 0, 9, free_after(f, 1));
}

/* After k digits that are equal to the bound's: at least the bound. */
static void at_least(fractions *f, int32_t s, int k, const magnitude *m)
{
    if (k >= m->n && !m->strict) {
        if (k > 0) gb_eps(f->b, s, free_after(f, k));
        if (k == 0) digits(f->b, s, 0, 9, free_after(f, 1)); /* a point wants a digit */
        return;
    }
    if (k == GRAMMAR_FRACTION) return;
    int d = k < m->n ? m->frac[k] - '0' : 0;
    digits(f->b, s, d + 1, 9, free_after(f, k + 1));
    int32_t next = gb_state(f->b);
    digits(f->b, s, d, d, next);
    at_least(f, next, k + 1, m);
}

/* The same from above; stopping early is less than the bound. */
static void at_most(fractions *f, int32_t s, int k, const magnitude *m)
{
    if (k > 0 && (k < m->n || !m->strict)) gb_eps(f->b, s, f->to);
    if (k >= m->n && !(k == 0 && !m->strict)) return;
    int d = k < m->n ? m->frac[k] - '0' : 0;
    digits(f->b, s, 0, d - 1, free_after(f, k + 1));
    int32_t next = gb_state(f->b);
    digits(f->b, s, d, d, next);
    at_most(f, next, k + 1, m);
}

static void from_both(fractions *f, int32_t s, int k, const magnitude *a, const magnitude *z)
{
    int lo = k < a->n ? a->frac[k] - '0' : 0, hi = k < z->n ? z->frac[k] - '0' : 0;
    if (k > 0 && k >= a->n && !a->strict && (k < z->n || !z->strict)) gb_eps(f->b, s, f->to);
    if (k == GRAMMAR_FRACTION || k >= z->n) return;
    if (lo == hi) {
        int32_t next = gb_state(f->b);
        digits(f->b, s, lo, lo, next);
        from_both(f, next, k + 1, a, z);
        return;
    }
    assert(lo < hi);
    int32_t low = gb_state(f->b), high = gb_state(f->b);
    digits(f->b, s, lo, lo, low);
    at_least(f, low, k + 1, a);
    digits(f->b, s, hi, hi, high);
    at_most(f, high, k + 1, z);
    digits(f->b, s, lo + 1, hi - 1, free_after(f, k + 1));
}

/* Accepts the decimals whose magnitudes lie from a to z. */
static void decimals(g_builder *b, int32_t from, const magnitude *a, const magnitude *z, int32_t to)
{
    assert(a->whole >= 0 && a->whole <= z->whole);
    fractions f = {.b = b, .to = to};
    for (int k = 0; k <= GRAMMAR_FRACTION; k++) f.free[k] = -1;
    if (z->whole - a->whole > 1) {
        int32_t s = gb_state(b);
        naturals(b, from, a->whole + 1, z->whole - 1, s);
        any_fraction(&f, s);
    }
    int32_t low = gb_state(b);
    naturals(b, from, a->whole, a->whole, low);
    if (a->whole == z->whole) {
        if (a->n == 0 && !a->strict && (z->n > 0 || !z->strict)) gb_eps(b, low, to);
        from_both(&f, point(&f, low), 0, a, z);
        return;
    }
    if (a->n == 0 && !a->strict) gb_eps(b, low, to);
    at_least(&f, point(&f, low), 0, a);
    int32_t high = gb_state(b);
    naturals(b, from, z->whole, z->whole, high);
    if (z->n > 0 || !z->strict) gb_eps(b, high, to);
    at_most(&f, point(&f, high), 0, z);
}

/* |v| in decimal, as the shortest text that means it; digits beyond ours are rounded inwards. */
static magnitude magnitude_of(const g_limit *l, bool lower)
{
    magnitude m = {.strict = l->strict};
    char text[400], *dot;
    double v = fabs(l->value);
    if (l->exact && l->whole >= -most) {
        m.whole = l->whole < 0 ? -l->whole : l->whole;
        return m;
    }
    if (v >= (double)most) return (magnitude){.whole = most, .strict = false};
    char shortest[40];
    for (int digits_wanted = 1; digits_wanted <= 17; digits_wanted++) {
        snprintf(shortest, sizeof(shortest), "%.*g", digits_wanted, v);
        if (strtod(shortest, NULL) == v) break;
    }
    /* Enough digits after the point that nothing of the shortest text is lost. */
    const char *e = strchr(shortest, 'e');
    int exponent = e ? (int)strtol(e + 1, NULL, 10) : 0, precision = 0;
    const char *p = strchr(shortest, '.');
    if (p) precision = (int)((e ? e : shortest + strlen(shortest)) - p - 1);
    precision -= exponent;
    if (precision < 0) precision = 0;
    if (precision > 300) precision = 300;
    snprintf(text, sizeof(text), "%.*f", precision, v);
    m.whole = strtoll(text, &dot, 10);
    const char *frac = *dot == '.' ? dot + 1 : "";
    size_t n = strlen(frac);
    while (n > 0 && frac[n - 1] == '0') n--;
    bool cut = n > GRAMMAR_FRACTION;
    if (cut) n = GRAMMAR_FRACTION;
    memcpy(m.frac, frac, n);
    while (n > 0 && m.frac[n - 1] == '0') n--;
    m.n = (int)n;
    if (cut) m.strict = lower; /* what was cut off makes the bound larger than what is left */
    return m;
}

/* Which bound is a magnitude's lower one depends on the sign. */
static void one_sign(g_builder *b, int32_t from, const g_limit *near, const g_limit *far,
                     bool negative, int32_t to)
{
    magnitude a = {.strict = negative}; /* zero has no sign */
    magnitude z = {.whole = most};
    double sign = negative ? -1 : 1;
    if (near && near->value * sign > 0) a = magnitude_of(near, true);
    if (near && near->value == 0 && near->strict) a.strict = true;
    if (far) {
        if (far->value * sign < 0) return;
        z = magnitude_of(far, false);
    }
    if (a.whole > z.whole) return;
    int cmp = strcmp(a.frac, z.frac); /* digits of fractions compare as texts */
    if (a.whole == z.whole && (cmp > 0 || (cmp == 0 && (a.strict || z.strict)))) return;
    int32_t s = from;
    if (negative) {
        s = gb_state(b);
        gb_bytes(b, from, '-', '-', STEP_PLAIN, s);
    }
    decimals(b, s, &a, &z, to);
}

static void exponent_form(g_builder *b, int32_t from, int32_t to)
{
    int32_t whole = gb_state(b), minus = gb_state(b), e = gb_state(b), sign = gb_state(b),
            one = gb_state(b);
    fractions f = {.b = b, .to = gb_state(b)};
    for (int k = 0; k <= GRAMMAR_FRACTION; k++) f.free[k] = -1;
    gb_eps(b, from, minus);
    int32_t after = gb_state(b);
    gb_bytes(b, from, '-', '-', STEP_PLAIN, after);
    /* minus zero is no number here: after a minus the first digit is not
     * zero, or a fraction follows */
    naturals(b, after, 1, most, whole);
    int32_t zero = gb_state(b);
    digits(b, after, 0, 0, zero);
    digits(b, point(&f, zero), 0, 9, free_after(&f, 1));
    naturals(b, minus, 0, most, whole);
    any_fraction(&f, whole);
    gb_eps(b, f.to, to);
    gb_bytes(b, f.to, 'e', 'e', STEP_PLAIN, e);
    gb_bytes(b, f.to, 'E', 'E', STEP_PLAIN, e);
    gb_bytes(b, e, '+', '+', STEP_PLAIN, sign);
    gb_bytes(b, e, '-', '-', STEP_PLAIN, sign);
    gb_eps(b, e, sign);
    digits(b, sign, 0, 9, one);
    gb_eps(b, one, to);
    digits(b, one, 0, 9, to);
}

void gb_number(g_builder *b, int32_t from, const g_limit *lo, const g_limit *hi, int32_t to)
{
    if (!lo && !hi) {
        exponent_form(b, from, to);
        return;
    }
    if (!hi || hi->value >= 0) {
        const g_limit zero = {.exact = true};
        one_sign(b, from, lo && lo->value >= 0 ? lo : &zero, hi, false, to);
    }
    if (!lo || lo->value < 0) one_sign(b, from, hi && hi->value <= 0 ? hi : NULL, lo, true, to);
}
