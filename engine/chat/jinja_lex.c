/* jinja_lex.c -- a template as tokens, with the white space that Jinja takes away.
 *
 * Between tags: "-" takes all white space on its side; without a sign, a block or comment takes the
 * spaces in front of it when nothing else stands on the line (lstrip_blocks) and one line end after
 * it (trim_blocks); "+" keeps both.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/chat/jinja_inside.h"

enum { TOKENS_MAX = 200000, NAME_LEN_MAX = 128, NEST_MAX = 200 };

typedef struct {
    jinja *t;
    const jchar *s;
    size_t n, at;
    int line;
    bool line_start; /* what was taken last ended a line, or nothing was */
    jtoken *tok;
    size_t n_tok, cap_tok;
    char nest[NEST_MAX]; /* brackets that are open inside a tag */
    int depth;
    err *e;
    err_code rc;
} lexer;

static bool fail(lexer *x, err_code rc, const char *what)
{
    if (!x->rc) x->rc = err_set(x->e, rc, "chat template, line %d: %s", x->line, what);
    return false;
}

static jtoken *add(lexer *x, jtoken_kind kind)
{
    if (x->n_tok == x->cap_tok) {
        size_t cap = 2 * x->cap_tok + 64;
        jtoken *p = cap <= TOKENS_MAX ? arena_calloc(&x->t->mem, cap, sizeof(*p)) : NULL;
        if (!p) {
            (void)fail(x, ERR_LIMIT, "the template is too large");
            return NULL;
        }
        if (x->n_tok) memcpy(p, x->tok, x->n_tok * sizeof(*p));
        x->tok = p;
        x->cap_tok = cap;
    }
    jtoken *k = &x->tok[x->n_tok++];
    *k = (jtoken){.kind = kind, .line = x->line};
    return k;
}

const char *jinja_interned(const jinja *t, const char *s)
{
    for (int i = 0; i < t->n_names; i++) {
        if (strcmp(t->names[i], s) == 0) return t->names[i];
    }
    return NULL;
}

/* NULL: no memory. */
static const char *intern(jinja *t, const char *s, size_t len)
{
    for (int i = 0; i < t->n_names; i++) {
        if (strlen(t->names[i]) == len && memcmp(t->names[i], s, len) == 0) return t->names[i];
    }
    if (t->n_names == t->cap_names) {
        int cap = 2 * t->cap_names + 64;
        const char **p = arena_calloc(&t->mem, (size_t)cap, sizeof(*p));
        if (!p) return NULL;
        if (t->n_names) memcpy(p, t->names, (size_t)t->n_names * sizeof(*p));
        t->names = p;
        t->cap_names = cap;
    }
    char *copy = arena_strndup(&t->mem, s, len);
    if (copy) t->names[t->n_names++] = copy;
    return copy;
}

static jchar peek(const lexer *x, size_t ahead)
{
    return x->at + ahead < x->n ? x->s[x->at + ahead] : 0;
}

static bool looking_at(const lexer *x, size_t at, const char *s)
{
    for (size_t i = 0; s[i]; i++) {
        if (at + i >= x->n || x->s[at + i] != (jchar)(unsigned char)s[i]) return false;
    }
    return true;
}

static void advance(lexer *x, size_t to)
{
    for (; x->at < to; x->at++) x->line += x->s[x->at] == '\n';
}

static size_t skip_space(const lexer *x, size_t at)
{
    while (at < x->n && jchar_is_space(x->s[at])) at++;
    return at;
}

/* Past a tag's end: "-" takes white space after it, a block's or comment's own end one line end. */
static void close_tag(lexer *x, size_t at, char sign, bool trim)
{
    size_t to = at + 2;
    if (sign == '-')
        to = skip_space(x, to);
    else if (sign == 0 && trim && to < x->n && x->s[to] == '\n')
        to++;
    advance(x, to);
    x->line_start = x->s[to - 1] == '\n';
}

static bool data(lexer *x, size_t from, size_t to)
{
    if (from >= to) return true;
    jtoken *k = add(x, JT_DATA);
    if (k) k->value = jv_chars(x->s + from, to - from);
    return k != NULL;
}

/* The text before a tag, as much as the tag leaves of it. */
static bool data_before(lexer *x, size_t from, size_t to, char sign, bool block)
{
    size_t end = to;
    if (sign == '-') {
        while (end > from && jchar_is_space(x->s[end - 1])) end--;
    } else if (sign == 0 && block) {
        size_t line = to;
        while (line > from && x->s[line - 1] != '\n') line--;
        if ((line > from || x->line_start) && skip_space(x, line) >= to) end = line;
    }
    return data(x, from, end);
}

static char sign_at(const lexer *x, size_t at)
{
    return at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? (char)x->s[at] : 0;
}

/* ------------------------------------------------------------------- inside tags -- */

static int digit_of(jchar c)
{
    if (c >= '0' && c <= '9') return (int)(c - '0');
    if (c >= 'a' && c <= 'f') return (int)(c - 'a') + 10;
    if (c >= 'A' && c <= 'F') return (int)(c - 'A') + 10;
    return 99;
}

/* `digits` digits from `at`; false: there are fewer. */
static bool read_code(const lexer *x, size_t at, size_t end, int digits, int base, jchar *out)
{
    jchar v = 0;
    for (int i = 0; i < digits; i++) {
        int d = at + (size_t)i < end ? digit_of(x->s[at + (size_t)i]) : 99;
        if (d >= base) return false;
        v = v * (jchar)base + (jchar)d;
    }
    *out = v;
    return v <= 0x10FFFF;
}

/* One escape after the backslash at `at`; writes at most two characters. */
static size_t unescape(lexer *x, size_t at, size_t end, jchar *out, size_t *n)
{
    static const char from[] = "nrtabfv\\'\"";
    static const char to[] = "\n\r\t\a\b\f\v\\'\"";
    jchar c = x->s[at + 1];
    const char *known = c > 0 && c < 128 ? strchr(from, (int)c) : NULL;
    if (c >= '0' && c <= '7') {
        jchar v = 0;
        size_t i = at + 1;
        for (; i < end && i < at + 4 && x->s[i] >= '0' && x->s[i] <= '7'; i++)
            v = v * 8 + x->s[i] - '0';
        out[(*n)++] = v;
        return i;
    }
    if (c == '\n') return at + 2;
    if (known) {
        out[(*n)++] = (jchar)(unsigned char)to[known - from];
        return at + 2;
    }
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits || c == 'N') {
        jchar v = 0;
        if (!digits || !read_code(x, at + 2, end, digits, 16, &v) || (v >= 0xD800 && v < 0xE000)) {
            (void)fail(x, ERR_INPUT, "an escape in a string is not understood");
        }
        out[(*n)++] = v;
        return at + 2 + (size_t)digits;
    }
    out[(*n)++] = '\\';
    out[(*n)++] = c;
    return at + 2;
}

static bool string(lexer *x)
{
    jchar quote = peek(x, 0);
    size_t from = x->at + 1, end = from, n = 0;
    while (end < x->n && x->s[end] != quote) end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n) return fail(x, ERR_INPUT, "a string has no end");
    jchar *s = arena_calloc(&x->t->mem, end - from + 1, sizeof(*s));
    jtoken *k = add(x, JT_STR);
    if (!s || !k) return fail(x, ERR_LIMIT, "the template is too large");
    for (size_t i = from; i < end && !x->rc;) {
        if (x->s[i] == '\\')
            i = unescape(x, i, end, s, &n);
        else
            s[n++] = x->s[i++];
    }
    k->value = jv_chars(s, n);
    advance(x, end + 1);
    return !x->rc;
}

static bool is_name_char(jchar c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* A number's text, without underscores, on its way to strtod(). */
typedef struct {
    char s[128];
    size_t n;
} digits;

enum { WHOLE_MAX = 64, FRACTION_MAX = 96, EXPONENT_MAX = 120 }; /* digits.n behind each part */

/* From *at on, as long as they are digits of `base` and there is room for `most`. */
static void take_digits(const lexer *x, size_t *at, int base, size_t most, digits *d)
{
    for (; *at < x->n && d->n < most && digit_of(x->s[*at]) < base; ++*at)
        d->s[d->n++] = (char)x->s[*at];
}

/* Digits may stand apart: 1_000. */
static void take_whole(const lexer *x, size_t *at, int base, digits *d)
{
    while (*at < x->n && d->n < WHOLE_MAX) {
        if (x->s[*at] == '_')
            ++*at;
        else if (digit_of(x->s[*at]) < base)
            d->s[d->n++] = (char)x->s[(*at)++];
        else
            break;
    }
}

/* The fraction and the exponent, if any. */
static void take_rest(const lexer *x, size_t *at, digits *d)
{
    if (*at + 1 < x->n && x->s[*at] == '.' && digit_of(x->s[*at + 1]) < 10) {
        d->s[d->n++] = '.';
        ++*at;
        take_digits(x, at, 10, FRACTION_MAX, d);
    }
    if (*at >= x->n || (x->s[*at] | 32) != 'e') return;
    size_t k = *at + 1;
    if (k < x->n && (x->s[k] == '+' || x->s[k] == '-')) k++;
    if (k >= x->n || digit_of(x->s[k]) >= 10) return;
    while (*at < k) d->s[d->n++] = (char)x->s[(*at)++];
    take_digits(x, at, 10, EXPONENT_MAX, d);
}

/* Of 0x, 0o and 0b; else 10. */
static int base_of(const lexer *x)
{
    if (peek(x, 0) != '0') return 10;
    switch (peek(x, 1) | 32) {
    case 'x': return 16;
    case 'o': return 8;
    case 'b': return 2;
    default: return 10;
    }
}

static bool number(lexer *x)
{
    digits d = {.n = 0};
    int base = base_of(x);
    size_t at = x->at + (base == 10 ? 0 : 2);
    take_whole(x, &at, base, &d);
    size_t whole_end = at;
    bool follows_dot =
        x->n_tok && x->tok[x->n_tok - 1].kind == JT_OP && x->tok[x->n_tok - 1].name[0] == '.';
    if (base == 10 && !follows_dot) take_rest(x, &at, &d);
    bool whole = at == whole_end;
    d.s[d.n] = 0;
    jtoken *k = add(x, whole ? JT_INT : JT_FLOAT);
    if (!k) return false;
    errno = 0;
    k->value = whole ? jv_int(strtoll(d.s, NULL, base)) : jv_float(strtod(d.s, NULL));
    if (d.n == 0 || errno || (at < x->n && is_name_char(x->s[at]))) {
        return fail(x, ERR_INPUT, "a number is not understood");
    }
    advance(x, at);
    return true;
}

static bool name(lexer *x)
{
    char text[NAME_LEN_MAX];
    size_t n = 0;
    while (n < sizeof(text) && is_name_char(peek(x, n))) {
        text[n] = (char)peek(x, n);
        n++;
    }
    jtoken *k = add(x, JT_NAME);
    if (!k || n == sizeof(text) || !(k->name = intern(x->t, text, n))) {
        return fail(x, ERR_LIMIT, "a name is too long");
    }
    advance(x, x->at + n);
    return true;
}

static bool operator_token(lexer *x)
{
    static const char *const ops[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                      "<",  ">",  "=",  ".",  ":",  "|",  ","};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (!looking_at(x, x->at, ops[i])) continue;
        jtoken *k = add(x, JT_OP);
        if (!k) return false;
        k->name = ops[i];
        char c = ops[i][0];
        if (strchr("[({", c)) {
            if (x->depth == NEST_MAX) return fail(x, ERR_LIMIT, "brackets are nested too deep");
            x->nest[x->depth++] = c == '(' ? ')' : (char)(c + 2);
        } else if (strchr("])}", c) && (x->depth == 0 || x->nest[--x->depth] != c)) {
            return fail(x, ERR_INPUT, "brackets do not match");
        }
        advance(x, x->at + strlen(ops[i]));
        return true;
    }
    return fail(x, ERR_INPUT, "a character has no meaning here");
}

/* From behind a tag's opening to behind its end. */
static bool inside(lexer *x, const char *end, bool block)
{
    x->depth = 0;
    while (!x->rc) {
        advance(x, skip_space(x, x->at));
        if (x->at >= x->n) return fail(x, ERR_INPUT, "a tag has no end");
        char sign = sign_at(x, x->at);
        if (sign == '+' && !block) sign = 0; /* an operator there */
        size_t at = x->at + (sign != 0);
        if (x->depth == 0 && looking_at(x, at, end)) {
            if (!add(x, block ? JT_BLOCK_END : JT_PRINT_END)) return false;
            close_tag(x, at, sign, block);
            return true;
        }
        jchar c = peek(x, 0);
        if (c == '\'' || c == '"')
            (void)string(x);
        else if (c >= '0' && c <= '9')
            (void)number(x);
        else if (is_name_char(c))
            (void)name(x);
        else
            (void)operator_token(x);
    }
    return false;
}

/* ------------------------------------------------------------------ between tags -- */

/* "{% raw %}" or "{% endraw %}" at `at`: where it ends, before its "%}"; 0: it is none. */
static size_t word_tag(const lexer *x, size_t at, const char *word, char *opening, char *closing)
{
    *opening = sign_at(x, at + 2);
    size_t i = skip_space(x, at + 2 + (*opening != 0));
    if (!looking_at(x, i, word)) return 0;
    i = skip_space(x, i + strlen(word));
    *closing = sign_at(x, i);
    i += *closing != 0;
    return looking_at(x, i, "%}") ? i : 0;
}

static bool raw(lexer *x, size_t end, char sign)
{
    close_tag(x, end, sign, false);
    size_t from = x->at, to, close = 0;
    char opening = 0, closing = 0;
    for (to = from; to < x->n; to++) {
        if (looking_at(x, to, "{%") && (close = word_tag(x, to, "endraw", &opening, &closing)))
            break;
    }
    if (!close) return fail(x, ERR_INPUT, "raw has no end");
    if (!data_before(x, from, to, opening, true)) return false;
    close_tag(x, close, closing, true);
    return true;
}

static bool comment(lexer *x, size_t at)
{
    size_t end = at + 2;
    while (end < x->n && !looking_at(x, end, "#}")) end++;
    if (end >= x->n) return fail(x, ERR_INPUT, "a comment has no end");
    close_tag(x, end, end > at + 2 ? sign_at(x, end - 1) : 0, true);
    return true;
}

static bool next_tag(lexer *x)
{
    size_t from = x->at, at = from;
    while (at < x->n && !(x->s[at] == '{' && at + 1 < x->n &&
                          (x->s[at + 1] == '{' || x->s[at + 1] == '%' || x->s[at + 1] == '#'))) {
        at++;
    }
    if (at >= x->n) {
        x->at = x->n;
        return data(x, from, x->n);
    }
    char what = (char)x->s[at + 1], sign = sign_at(x, at + 2), opening, closing;
    if (!data_before(x, from, at, sign, what != '{')) return false;
    advance(x, at);
    if (what == '#') return comment(x, at + (sign != 0));
    size_t end = what == '%' ? word_tag(x, at, "raw", &opening, &closing) : 0;
    if (end) return raw(x, end, closing);
    if (!add(x, what == '%' ? JT_BLOCK_BEGIN : JT_PRINT_BEGIN)) return false;
    advance(x, at + 2 + (sign != 0));
    return inside(x, what == '%' ? "%}" : "}}", what == '%');
}

/* Code points with one kind of line end; one at the very end is no part of the template. */
static bool decode(lexer *x, const char *text, size_t len)
{
    jchar *s = arena_calloc(&x->t->mem, len + 1, sizeof(*s));
    if (!s) return fail(x, ERR_LIMIT, "the template is too large");
    size_t n = 0, used;
    for (size_t i = 0; i < len; i += used) {
        jchar c = utf8_decode(text + i, len - i, &used);
        if (c == '\r') {
            c = '\n';
            if (i + 1 < len && text[i + 1] == '\n') used = 2;
        }
        s[n++] = c;
    }
    if (n && s[n - 1] == '\n') n--;
    x->s = s;
    x->n = n;
    return true;
}

err_code jinja_lex(jinja *t, const char *text, size_t len, jtoken **out, err *e)
{
    lexer x = {.t = t, .line = 1, .line_start = true, .e = e};
    bool ok = decode(&x, text, len);
    while (ok && x.at < x.n) ok = next_tag(&x);
    if (ok) (void)add(&x, JT_END); /* x.rc says whether it could */
    *out = x.tok;
    return x.rc;
}
