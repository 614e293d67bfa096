/* grammar_multiple.c -- multipleOf: decimal numbers that a step divides.
 *
 * Everything is counted in whole numbers: a step of 0.25 makes at most two digits behind the point,
 * and of the digits, read as one whole number, multiples of 25.  The automaton goes along the
 * digits with their remainder.  Where a step has too many remainders, the multiples nearest to zero
 * are listed.  Arithmetic is that of decimals, not that of doubles.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

enum {
    DIGITS = 18,       /* digits of a number, so that it fits 64 bits */
    DIGITS_EXACT = 15, /* digits of a number with a fraction: a double is exact up to there */
    STATES_MAX = 4000, /* states of one number's automaton, approximately */
    LISTED_MAX = 1000, /* up to so many multiples are listed one by one */
    FEW_DIGITS = 6,    /* numbers with fewer digits need no automaton */
    NUMBER_TEXT = 64,
    NOT_MAX = 8,        /* steps that `not` names for one number */
    TRIED_MAX = 100000, /* numbers that are looked at one by one */
    MORE_DIGITS = 2,    /* behind the point, than the steps have themselves */
};

typedef __int128 wide;

/* m * 10^e; no zeros at the end of m. */
typedef struct {
    int64_t m;
    int e;
} decimal;

static int64_t power(int n)
{
    assert(n >= 0 && n <= DIGITS);
    int64_t p = 1;
    while (n-- > 0) p *= 10;
    return p;
}

static decimal shortened(int64_t m, int e)
{
    for (; m != 0 && m % 10 == 0; e++) m /= 10;
    return (decimal){m, m ? e : 0};
}

/* False: more digits than DIGITS, or no decimal. */
static bool read_decimal(const char *s, decimal *out)
{
    int64_t m = 0;
    int e = 0, sign = 1, digits = 0;
    bool behind = false;
    if (*s == '-') {
        sign = -1;
        s++;
    }
    for (; (*s >= '0' && *s <= '9') || *s == '.'; s++) {
        if (*s == '.') {
            behind = true;
            continue;
        }
        if (digits == DIGITS && *s != '0') return false;
        if (digits < DIGITS) m = m * 10 + (*s - '0');
        if (m > 0 && digits < DIGITS)
            digits++;
        else if (m > 0)
            e++; /* a zero that does not fit */
        e -= behind;
    }
    if (*s == 'e' || *s == 'E') e += (int)strtol(s + 1, NULL, 10);
    *out = shortened(sign * m, e);
    return e > -400 && e < 400;
}

/* The shortest decimal that means the double. */
static bool decimal_of_double(double v, decimal *out)
{
    char text[NUMBER_TEXT];
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    return read_decimal(text, out);
}

static bool decimal_of(const cJSON *v, decimal *out)
{
    if (!cJSON_IsNumber(v)) return false;
    return v->valuestring ? read_decimal(v->valuestring, out)
                          : decimal_of_double(v->valuedouble, out);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    assert(a > 0 && b >= 0);
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* The least whole number that both divide; 0: too large. */
static int64_t common_multiple(int64_t a, int64_t b)
{
    wide m = (wide)(a / common_divisor(a, b)) * b;
    return m < power(DIGITS) ? (int64_t)m : 0;
}

holding schema_is_multiple(const cJSON *value, const cJSON *step)
{
    decimal v, d;
    if (!decimal_of(value, &v) || !decimal_of(step, &d) || d.m <= 0) return HOLDS_UNKNOWN;
    if (v.m == 0) return HOLDS;
    if (v.e < d.e) return HOLDS_NOT; /* it has no zero at its end */
    wide rest = v.m % d.m;
    for (int e = v.e; e > d.e && rest; e--) rest = rest * 10 % d.m;
    return rest ? HOLDS_NOT : HOLDS;
}

cJSON *schema_common_multiple(const cJSON *a, const cJSON *b)
{
    decimal x, y;
    if (!decimal_of(a, &x) || !decimal_of(b, &y) || x.m <= 0 || y.m <= 0) return NULL;
    int e = x.e < y.e ? x.e : y.e;
    if (x.e - e >= DIGITS || y.e - e >= DIGITS) return NULL;
    wide p = (wide)x.m * power(x.e - e), q = (wide)y.m * power(y.e - e);
    if (p >= power(DIGITS) || q >= power(DIGITS)) return NULL;
    int64_t m = common_multiple((int64_t)p, (int64_t)q);
    char text[NUMBER_TEXT];
    (void)snprintf(text, sizeof(text), "%llde%d", (long long)m, e);
    return m > 0 && m < power(DIGITS_EXACT) ? cJSON_CreateNumber(strtod(text, NULL)) : NULL;
}

/* -------------------------------------------------------------------- the automaton -- */

/* Whole numbers that `mod` divides, of which the last `behind` digits stand behind a point, and
 * `zeros` zeros behind all. */
typedef struct {
    g_builder *b;
    int64_t mod;
    int64_t yes,
        no[NOT_MAX]; /* with n_no: those that `yes` divides, and none of `no`; mod: of all */
    int n_no;
    int behind, zeros, n;
    char lo[24], hi[24];
    int32_t *rest; /* [(DIGITS + 1) * mod] states, by digits that are left and the remainder; 0 */
    int32_t to;
} multiples;

static void digit(multiples *m, int32_t from, int d, int32_t to)
{
    gb_bytes(m->b, from, '0' + d, '0' + d, STEP_PLAIN, to);
}

/* Before the digit that has `left` digits behind it and itself: a point, or nothing. */
static int32_t at_point(multiples *m, int32_t from, int left)
{
    if (m->behind == 0 || left != m->behind) return from;
    int32_t s = gb_state(m->b);
    gb_bytes(m->b, from, '.', '.', STEP_PLAIN, s);
    return s;
}

static bool is_wanted(const multiples *m, int64_t n)
{
    if (m->n_no == 0) return n % m->mod == 0;
    for (int i = 0; i < m->n_no; i++)
        if (n % m->no[i] == 0) return false;
    return n % m->yes == 0;
}

static int32_t rest_of(multiples *m, int left, int64_t remainder)
{
    assert(left >= 0 && left <= DIGITS && remainder >= 0 && remainder < m->mod);
    int32_t *known = &m->rest[(size_t)left * (size_t)m->mod + (size_t)remainder];
    if (*known || m->b->failed) return *known;
    int32_t from = *known = gb_state(m->b);
    if (left == 0) {
        if (is_wanted(m, remainder))
            gb_text(m->b, from, "000000000000000000", (size_t)m->zeros, m->to);
        return from;
    }
    from = at_point(m, from, left);
    for (int d = 0; d <= 9; d++)
        digit(m, from, d, rest_of(m, left - 1, (remainder * 10 + d) % m->mod));
    return *known;
}

/* Digits from the i-th on, as long as they are those of a bound. */
static void between(multiples *m, int32_t from, int i, bool low, bool high, int64_t remainder)
{
    int left = m->n - i;
    if ((!low && !high) || left == 0 || m->b->failed) {
        gb_eps(m->b, from, rest_of(m, left, remainder));
        return;
    }
    from = at_point(m, from, left);
    for (int d = low ? m->lo[i] - '0' : 0; d <= (high ? m->hi[i] - '0' : 9); d++) {
        bool still_low = low && d == m->lo[i] - '0', still_high = high && d == m->hi[i] - '0';
        int64_t next = (remainder * 10 + d) % m->mod;
        if (!still_low && !still_high) {
            digit(m, from, d, rest_of(m, left - 1, next));
            continue;
        }
        int32_t s = gb_state(m->b);
        digit(m, from, d, s);
        between(m, s, i + 1, still_low, still_high, next);
    }
}

/* From lo to hi, 0 <= lo <= hi; at least one digit stands before the point. */
static void naturals(multiples *m, int32_t from, int64_t lo, int64_t hi)
{
    for (int n = m->behind + 1; n <= DIGITS && !m->b->failed; n++) {
        int64_t first = n == m->behind + 1 ? 0 : power(n - 1), last = power(n) - 1;
        int64_t a = lo > first ? lo : first, z = hi < last ? hi : last;
        if (a > z) continue;
        m->n = n;
        (void)snprintf(m->lo, sizeof(m->lo), "%0*lld", n, (long long)a);
        (void)snprintf(m->hi, sizeof(m->hi), "%0*lld", n, (long long)z);
        between(m, from, 0, true, true, 0);
    }
}

static int64_t divided(int64_t a, int64_t by, bool up)
{
    int64_t q = a / by, r = a % by;
    return up ? q + (r > 0) : q - (r < 0);
}

/* Text of n with `behind` digits behind the point and `zeros` at the end. */
static void number_text(char *out, size_t size, int64_t n, int behind, int zeros)
{
    int64_t p = power(behind), a = n < 0 ? -n : n;
    const char *sign = n < 0 ? "-" : "";
    if (behind > 0)
        (void)snprintf(out, size, "%s%lld.%0*lld", sign, (long long)(a / p), behind,
                       (long long)(a % p));
    else
        (void)snprintf(out, size, "%s%lld%.*s", sign, (long long)a, n ? zeros : 0,
                       "000000000000000000");
}

/* Multiples from lo to hi, the nearest to zero first, up to LISTED_MAX. */
static void listed(multiples *m, int32_t from, int64_t lo, int64_t hi)
{
    int64_t step = m->n_no > 0 ? m->yes : m->mod, tried = 0;
    int64_t a = divided(lo, step, true), z = divided(hi, step, false);
    char(*text)[NUMBER_TEXT] = calloc(LISTED_MAX, sizeof(*text));
    char **at = calloc(LISTED_MAX, sizeof(*at));
    size_t *len = calloc(LISTED_MAX, sizeof(*len)), n = 0;
    int64_t k = a > 0 ? a : z < 0 ? z : 0, down = k - 1;
    if (!text || !at || !len) m->b->failed = true;
    while (!m->b->failed && n < LISTED_MAX && (k <= z || down >= a) && tried++ < TRIED_MAX) {
        bool up = k <= z && (down < a || k <= -down);
        int64_t value = up ? k++ : down--;
        if (!is_wanted(m, value * step)) continue;
        number_text(text[n], sizeof(text[n]), value * step, m->behind, m->zeros);
        at[n] = text[n];
        len[n] = strlen(text[n]);
        n++;
    }
    if (!m->b->failed) gb_texts(m->b, from, at, len, n, m->to);
    free(text);
    free((void *)at);
    free(len);
}

/* Those from lo to hi with `behind` digits behind the point. */
static void one_length(multiples *m, int32_t from, int64_t lo, int64_t hi, int lengths)
{
    assert(m->mod > 0 && lengths > 0);
    int digits = (int)(STATES_MAX / (m->mod < STATES_MAX ? m->mod : STATES_MAX) / lengths);
    int64_t step = m->n_no > 0 ? m->yes : m->mod;
    int64_t a = divided(lo, step, true), z = divided(hi, step, false);
    if (a > z) return;
    int64_t most = power(digits < DIGITS ? digits : DIGITS) - 1;
    bool all = lo >= -most && hi <= most;
    if (z - a < LISTED_MAX / lengths || (digits < FEW_DIGITS && !all) || lo > most || hi < -most) {
        listed(m, from, lo, hi);
        return;
    }
    m->rest = calloc((size_t)(DIGITS + 1) * (size_t)m->mod, sizeof(*m->rest));
    if (!m->rest) {
        m->b->failed = true;
        return;
    }
    if (lo < -most) lo = -most;
    if (hi > most) hi = most;
    int zeros = m->zeros;
    if (hi > 0) naturals(m, from, lo > 0 ? lo : 1, hi);
    if (lo < 0) {
        int32_t minus = gb_state(m->b);
        gb_bytes(m->b, from, '-', '-', STEP_PLAIN, minus);
        naturals(m, minus, hi < 0 ? -hi : 1, -lo);
    }
    free(m->rest);
    m->rest = NULL;
    if (lo > 0 || hi < 0 || m->n_no > 0) return; /* zero is a multiple of all */
    char zero[NUMBER_TEXT];
    number_text(zero, sizeof(zero), 0, m->behind, zeros);
    gb_text(m->b, from, zero, strlen(zero), m->to);
}

/* --------------------------------------------------------------------- the keyword -- */

/* A bound as a whole number of 10^e, inwards; beyond `most` it is that.  False: nothing is left. */
static bool scaled(const g_limit *l, int e, bool lower, int64_t most, int64_t *out)
{
    decimal d = {0};
    *out = lower ? -most : most;
    if (!l) return true;
    bool negative = l->exact ? l->whole < 0 : l->value < 0;
    if (l->exact && l->whole > -power(DIGITS) && l->whole < power(DIGITS))
        d = shortened(l->whole, 0);
    else if (l->exact || !decimal_of_double(l->value, &d))
        return negative == lower;
    int shift = d.e - e;
    wide v = d.m;
    for (int i = 0; i < shift && v < most && v > -most; i++) v *= 10;
    bool cut = false;
    for (int i = shift; i < 0 && (v != 0); i++) {
        cut |= v % 10 != 0;
        v /= 10;
    }
    cut |= shift < 0 && v == 0 && d.m != 0;
    if (cut && lower && d.m > 0) v++;
    if (cut && !lower && d.m < 0) v--;
    if (!cut && l->strict) v += lower ? 1 : -1;
    if (lower ? v > most : v < -most) return false;
    if (lower ? v > -most : v < most) *out = (int64_t)v;
    return true;
}

/* A whole number that has a fraction as its step has a whole one, too. */
static bool whole_step(decimal *d)
{
    if (d->e >= 0) return true;
    if (d->e < -DIGITS) return false;
    int64_t p = power(-d->e), m = common_multiple(d->m, p);
    if (m == 0) return false;
    *d = shortened(m / p, 0);
    return true;
}

bool schema_build_multiple(schema_compiler *c, const cJSON *step, bool whole, const g_limit *lo,
                           const g_limit *hi, int32_t from, int32_t to)
{
    decimal d;
    if (!cJSON_IsNumber(step) || step->valuedouble <= 0)
        return schema_fail(c, ERR_INPUT, "'multipleOf' must be a number above 0");
    bool fits = decimal_of(step, &d) && d.m > 0 && d.e < DIGITS && d.e > -GRAMMAR_FRACTION;
    if (!fits || (whole && !whole_step(&d)))
        return schema_unsupported(c, "multipleOf", " with so many digits");
    int behind = d.e < 0 ? -d.e : 0, zeros = d.e > 0 ? d.e : 0;
    int64_t most = power(behind > 0 ? DIGITS_EXACT : DIGITS - zeros) - 1;
    for (int f = 0; f <= behind && !c->b.failed; f++) { /* with f digits behind the point */
        int64_t a, z;
        int64_t mod = d.m / common_divisor(d.m, power(behind - f));
        multiples m = {.b = &c->b, .mod = mod, .behind = f, .zeros = zeros, .to = to};
        if (!scaled(lo, zeros - f, true, most, &a) || !scaled(hi, zeros - f, false, most, &z))
            continue;
        one_length(&m, from, a, z, behind + 1);
    }
    return true;
}

/* The step in units of 10^-f: what it divides of whole numbers of them; 0: too large. */
static int64_t in_units(decimal d, int f)
{
    if (d.e + f < 0) return d.e + f < -DIGITS ? 0 : d.m / common_divisor(d.m, power(-d.e - f));
    if (d.e + f >= DIGITS || (wide)d.m * power(d.e + f) >= power(DIGITS)) return 0;
    return d.m * power(d.e + f);
}

bool schema_build_no_multiple(schema_compiler *c, const cJSON *s, bool whole, const g_limit *lo,
                              const g_limit *hi, int32_t from, int32_t to)
{
    const cJSON *step = schema_get(s, "multipleOf");
    decimal yes = {1, -MORE_DIGITS}, no[NOT_MAX];
    int n = 0, behind = 0;
    bool fits = !step || (decimal_of(step, &yes) && yes.m > 0);
    for (const cJSON *v = NULL; fits && (v = schema_next_out(s, v));) {
        const cJSON *x = schema_get(v, "multipleOf");
        if (!x) continue;
        fits = n < NOT_MAX && decimal_of(x, &no[n]) && no[n].m > 0 && no[n].e > -DIGITS / 2;
        if (fits && -no[n].e > behind) behind = -no[n].e;
        n++;
    }
    if (!step) behind += MORE_DIGITS;
    if (step && -yes.e > behind) behind = -yes.e;
    if (!step) yes.e = -behind;
    if (whole) behind = 0;
    if (!fits || behind > DIGITS / 2) return schema_unsupported(c, "multipleOf", " in 'not'");
    for (int f = 0; f <= behind && !c->b.failed; f++) {
        int64_t a, z, most = power(DIGITS_EXACT) - 1;
        multiples m = {.b = &c->b, .n_no = n, .behind = f, .to = to};
        m.mod = m.yes = in_units(yes, f);
        for (int i = 0; i < n; i++) {
            m.no[i] = in_units(no[i], f);
            if (m.no[i] == 0) m.no[i] = power(DIGITS); /* nothing but zero is written of these */
            m.mod = m.mod > 0 ? common_multiple(m.mod, m.no[i]) : 0;
        }
        if (m.yes == 0) continue;
        if (m.mod == 0) m.mod = power(DIGITS); /* too many remainders: they are listed */
        if (scaled(lo, -f, true, most, &a) && scaled(hi, -f, false, most, &z))
            one_length(&m, from, a, z, behind + 1);
    }
    return true;
}
