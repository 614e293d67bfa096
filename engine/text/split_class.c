/* split_class.c -- classes of characters in pre-tokenizer expressions: \p{..}, \s, [...], and
 * single characters.
 *
 * A class is compiled into a split_set, which answers "is c in it" without a table of all code
 * points:
 *
 * - ASCII: a bit for each of 128 characters.
 * - General categories: a bit for each kind (unicode_kind), tested against the kind that
 * split_text stores in the top byte of each code point.
 * - Everything else: sorted, disjoint ranges in the expression's shared array, found by
 * bisection.
 * - A script (\p{Han}) has no bit of its own; it becomes ranges.
 *
 * [^...] inverts the ASCII bits and sets `negated` for the rest. [a&&[b]] is kept as two sets:
 * `within` names the second one. Characters in (?i:...) are expanded to both cases when the
 * class is built, so that matching never folds. What Oniguruma does and this parser does not
 * (nested unions, ligatures under case folding, bytes above 127) is rejected with
 * ERR_UNSUPPORTED, because a silently different split would give different token ids.
 */
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/split_inside.h"

#define KIND(k) (1U << UNICODE_##k)

/* The general categories; where a part of one is a kind of its own, with that. */
static const struct {
    const char *name;
    uint32_t kinds;
} categories[] = {
    {"L", KIND(LU) | KIND(LL) | KIND(LT) | KIND(LM) | KIND(LO)},
    {"Lu", KIND(LU)},
    {"Ll", KIND(LL)},
    {"Lt", KIND(LT)},
    {"Lm", KIND(LM)},
    {"Lo", KIND(LO)},
    {"M", KIND(MN) | KIND(MC) | KIND(ME)},
    {"Mn", KIND(MN)},
    {"Mc", KIND(MC)},
    {"Me", KIND(ME)},
    {"N", KIND(ND) | KIND(NL) | KIND(NO) | KIND(NO_WORD)},
    {"Nd", KIND(ND)},
    {"Nl", KIND(NL)},
    {"No", KIND(NO) | KIND(NO_WORD)},
    {"P", KIND(PC) | KIND(PD) | KIND(PS) | KIND(PE) | KIND(PI) | KIND(PF) | KIND(PO)},
    {"Pc", KIND(PC)},
    {"Pd", KIND(PD)},
    {"Ps", KIND(PS)},
    {"Pe", KIND(PE)},
    {"Pi", KIND(PI)},
    {"Pf", KIND(PF)},
    {"Po", KIND(PO)},
    {"S", KIND(SM) | KIND(SC) | KIND(SK) | KIND(SO) | KIND(SO_WORD)},
    {"Sm", KIND(SM)},
    {"Sc", KIND(SC)},
    {"Sk", KIND(SK)},
    {"So", KIND(SO) | KIND(SO_WORD)},
    {"Z", KIND(ZS) | KIND(ZL) | KIND(ZP)},
    {"Zs", KIND(ZS)},
    {"Zl", KIND(ZL)},
    {"Zp", KIND(ZP)},
    {"C", KIND(CC) | KIND(CC_SPACE) | KIND(CF) | KIND(CO) | KIND(CN)},
    {"Cc", KIND(CC) | KIND(CC_SPACE)},
    {"Cf", KIND(CF)},
    {"Co", KIND(CO)},
    {"Cn", KIND(CN)},
    /* \s, \w, \d as Oniguruma has them */
    {"\\s", KIND(ZS) | KIND(ZL) | KIND(ZP) | KIND(CC_SPACE)},
    {"\\w", KIND(LU) | KIND(LL) | KIND(LT) | KIND(LM) | KIND(LO) | KIND(MN) | KIND(MC) | KIND(ME) |
                KIND(ND) | KIND(NL) | KIND(PC) | KIND(SO_WORD) | KIND(NO_WORD)},
    {"\\d", KIND(ND)},
};

enum { CATEGORIES = sizeof(categories) / sizeof(*categories) };

static uint32_t kinds_of(const char *name, size_t len)
{
    for (int i = 0; i < CATEGORIES; i++) {
        if (strlen(categories[i].name) == len && memcmp(categories[i].name, name, len) == 0)
            return categories[i].kinds;
    }
    return 0;
}

static void add_kinds(split_set *s, uint32_t kinds)
{
    s->kinds |= kinds;
    for (uint32_t c = 0; c < 128; c++) {
        if (kinds >> (unicode_with_kind(c) >> 24) & 1) s->ascii[c >> 6] |= 1ULL << (c & 63);
    }
}

static void add_range(split_parser *p, split_set *s, uint32_t first, uint32_t last)
{
    for (uint32_t c = first; c <= last && c < 128; c++) s->ascii[c >> 6] |= 1ULL << (c & 63);
    if (last < 128) return;
    if (p->r->n_ranges == SPLIT_RANGES_MAX) {
        split_refuse(p, ERR_LIMIT, "has too many ranges");
        return;
    }
    p->r->ranges[p->r->n_ranges++] = (unicode_range){first < 128 ? 128 : first, last};
    s->n++;
}

/* With (?i:...) a letter stands for its other case too, and two for one beyond ASCII. */
static void add_folded(split_parser *p, split_set *s, uint32_t c)
{
    uint32_t lower = c | 0x20;
    add_range(p, s, c, c);
    if (!p->fold || lower < 'a' || lower > 'z') return;
    add_range(p, s, c ^ 0x20, c ^ 0x20);
    if (lower == 's') add_range(p, s, 0x17F, 0x17F);
    if (lower == 'k') add_range(p, s, 0x212A, 0x212A);
}

int split_add_set(split_parser *p, split_set s)
{
    if (p->r->n_sets == SPLIT_SETS_MAX) {
        split_refuse(p, ERR_LIMIT, "has too many classes");
        return 0;
    }
    p->r->sets[p->r->n_sets] = s;
    return p->r->n_sets++;
}

/* What [^...] is of [...]. */
static void negate(split_set *s)
{
    s->ascii[0] = ~s->ascii[0];
    s->ascii[1] = ~s->ascii[1];
    s->negated = !s->negated;
}

int split_any_but_newline(split_parser *p)
{
    split_set s = {.ascii = {1ULL << '\n', 0}};
    negate(&s);
    return split_add_set(p, s);
}

/* Pairs of letters that one character folds to (ß, ligatures): Oniguruma finds that too. */
static void check_pair(split_parser *p, uint32_t c)
{
    static const char pairs[][3] = {"ss", "ff", "fi", "fl", "st"};
    uint32_t lower = c < 128 ? c | 0x20 : c;
    for (size_t i = 0; p->fold && i < sizeof(pairs) / sizeof(*pairs); i++) {
        if (p->folded == (uint32_t)pairs[i][0] && lower == (uint32_t)pairs[i][1])
            split_refuse(p, ERR_UNSUPPORTED, "has letters of a ligature in (?i:...)");
    }
    p->folded = lower;
}

int split_one_character(split_parser *p, uint32_t c)
{
    split_set s = {.from = p->r->n_ranges};
    if (p->fold && c >= 128)
        split_refuse(p, ERR_UNSUPPORTED, "has characters beyond ASCII in (?i:...)");
    check_pair(p, c);
    add_folded(p, &s, c);
    return split_add_set(p, s);
}

/* ---- escapes -------------------------------------------------------------------------------- */

/* The number of a script by its name, in which cases, spaces, "-" and "_" do not count; 0: none. */
static int script_named(const char *s, size_t len)
{
    char name[64];
    size_t n = 0;
    for (size_t i = 0; i < len && n + 1 < sizeof(name); i++)
        if (!strchr(" -_", s[i])) name[n++] = (char)(s[i] | 0x20);
    name[n] = 0;
    for (int i = 0; i < unicode_script_names_n; i++)
        if (strcmp(unicode_script_names[i], name) == 0) return i + 1;
    return 0;
}

/* What an escape stands for: kinds, or the last one's script. */
static void add_escaped(split_parser *p, split_set *s, uint32_t kinds)
{
    if (!p->script) add_kinds(s, kinds);
    for (int i = 0; p->script && i < unicode_scripts_n; i++) {
        uint32_t run = unicode_scripts[i];
        uint32_t next = i + 1 < unicode_scripts_n ? unicode_scripts[i + 1] & 0xFFFFFF : 0x110000;
        if (((int)(run >> 24) == p->script) != p->not_script)
            add_range(p, s, run & 0xFFFFFF, next - 1);
    }
    p->script = 0;
}

/* {L}, {^L}, {Han} behind \p or \P. */
static uint32_t category(split_parser *p, bool negated)
{
    const char *s = p->pattern + p->at, *close = memchr(s, '}', p->len - p->at);
    if (p->at >= p->len || *s != '{' || !close) {
        split_refuse(p, ERR_INPUT, "has \\p without {...}");
        return 0;
    }
    p->at += (size_t)(close - s) + 1;
    s++;
    if (*s == '^') {
        negated = !negated;
        s++;
    }
    uint32_t kinds = kinds_of(s, (size_t)(close - s));
    p->script = kinds ? 0 : script_named(s, (size_t)(close - s));
    p->not_script = negated;
    if (!kinds && !p->script)
        split_refuse(p, ERR_UNSUPPORTED,
                     "has \\p{...} with a name that is neither a general category nor a script");
    else if (p->fold)
        split_refuse(p, ERR_UNSUPPORTED, "has \\p in (?i:...)");
    return negated ? ~kinds : kinds;
}

/* Hexadecimal digits: of \xHH, \x{...}, \uHHHH. */
static uint32_t code_point(split_parser *p, int digits, bool braces)
{
    uint32_t c = 0;
    int n = 0;
    for (; p->at < p->len && n < digits; n++, p->at++) {
        const char *hex = "0123456789abcdef";
        char lower = p->pattern[p->at];
        if (lower >= 'A' && lower <= 'F') lower = (char)(lower | 0x20);
        const char *found = lower ? strchr(hex, lower) : NULL;
        if (!found) break;
        c = c * 16 + (uint32_t)(found - hex);
    }
    bool closed = !braces || (p->at < p->len && p->pattern[p->at++] == '}');
    if (!closed || n == 0 || (!braces && n < digits) || c > 0x10FFFF)
        split_refuse(p, ERR_INPUT, "has a malformed code point");
    else if (digits == 2 && c >= 128)
        split_refuse(p, ERR_UNSUPPORTED, "has a byte that is not ASCII");
    return c;
}

/* Behind a "\": true and kinds, or false and one character. */
static bool escape(split_parser *p, uint32_t *kinds, uint32_t *c)
{
    static const char from[] = "rntfvae", to[] = "\r\n\t\f\v\a\x1b";
    char s = p->at < p->len ? p->pattern[p->at++] : 0;
    const char *plain = s ? strchr(from, s) : NULL;
    *c = (unsigned char)s;
    if (plain) {
        *c = (unsigned char)to[plain - from];
    } else if (s == 'p' || s == 'P') {
        *kinds = category(p, s == 'P');
        return true;
    } else if (s && strchr("sdwSDW", s)) {
        const char name[] = {'\\', (char)(s | 0x20), 0};
        *kinds = kinds_of(name, 2);
        if (s < 'a') *kinds = ~*kinds;
        if (p->fold && (s | 0x20) == 'w') split_refuse(p, ERR_UNSUPPORTED, "has \\w in (?i:...)");
        return true;
    } else if (s == 'x') {
        bool braces = p->at < p->len && p->pattern[p->at] == '{';
        p->at += braces;
        *c = code_point(p, braces ? 6 : 2, braces);
    } else if (s == 'u') {
        *c = code_point(p, 4, false);
    } else if (s <= ' ' || s > '~' || (s >= '0' && s <= '9') ||
               ((s | 0x20) >= 'a' && (s | 0x20) <= 'z')) {
        split_refuse(p, ERR_UNSUPPORTED, "has an escape that is not known");
    }
    return false;
}

int split_parse_escape(split_parser *p)
{
    uint32_t kinds = 0, c = 0;
    if (!escape(p, &kinds, &c)) return split_one_character(p, c);
    split_set s = {.from = p->r->n_ranges};
    p->folded = 0;
    add_escaped(p, &s, kinds);
    return split_add_set(p, s);
}

/* ---- [...] ---------------------------------------------------------------------------------- */

static bool next_is(const split_parser *p, size_t ahead, char c)
{
    return p->at + ahead < p->len && p->pattern[p->at + ahead] == c;
}

/* One member: true and kinds, or false and one character. */
static bool member(split_parser *p, uint32_t *kinds, uint32_t *c)
{
    size_t used;
    if (next_is(p, 0, '\\')) {
        p->at++;
        return escape(p, kinds, c);
    }
    if (next_is(p, 0, '[') || (next_is(p, 0, '&') && next_is(p, 1, '&')))
        split_refuse(p, ERR_UNSUPPORTED, "has a class in a class");
    *c = utf8_decode(p->pattern + p->at, p->len - p->at, &used);
    p->at += used;
    return false;
}

/* a-b, of which the "-" is next. */
static void range(split_parser *p, split_set *s, uint32_t first)
{
    uint32_t last = 0, kinds;
    p->at++;
    if (member(p, &kinds, &last) || last < first) {
        split_refuse(p, ERR_INPUT, "has a class whose range has no end");
        return;
    }
    if (!p->fold)
        add_range(p, s, first, last);
    else if (last >= 128)
        split_refuse(p, ERR_UNSUPPORTED, "has characters beyond ASCII in (?i:...)");
    for (uint32_t c = first; p->fold && c <= last && last < 128; c++) add_folded(p, s, c);
}

static void take_member(split_parser *p, split_set *s, bool first)
{
    uint32_t kinds = 0, c = 0;
    bool dash = next_is(p, 0, '-') && !first && !next_is(p, 1, ']'), set = member(p, &kinds, &c);
    bool to = next_is(p, 0, '-') && !next_is(p, 1, ']');
    if (dash || (set && to)) {
        split_refuse(p, ERR_UNSUPPORTED, "has a '-' in a class that begins no range");
    } else if (set) {
        add_escaped(p, s, kinds);
    } else if (to) {
        range(p, s, c);
    } else {
        if (p->fold && c >= 128)
            split_refuse(p, ERR_UNSUPPORTED, "has characters beyond ASCII in (?i:...)");
        add_folded(p, s, c);
    }
}

/* For the search in them. */
static void sort_ranges(unicode_range *r, int n)
{
    for (int i = 1; i < n; i++) {
        unicode_range one = r[i];
        int k = i;
        for (; k > 0 && r[k - 1].first > one.first; k--) r[k] = r[k - 1];
        r[k] = one;
    }
}

/* Ranges that touch or overlap become one. */
static int join_ranges(unicode_range *r, int n)
{
    int m = 0;
    sort_ranges(r, n);
    for (int i = 0; i < n; i++) {
        if (m > 0 && r[i].first <= r[m - 1].last + 1) {
            if (r[i].last > r[m - 1].last) r[m - 1].last = r[i].last;
        } else {
            r[m++] = r[i];
        }
    }
    return m;
}

/* &&[...] at the end of a class, of which "&&[" is read: what is in both. */
static void intersect(split_parser *p, split_set *s, bool but)
{
    if (but) split_refuse(p, ERR_UNSUPPORTED, "has && in [^...]");
    if (++p->depth > SPLIT_NESTING_MAX) split_refuse(p, ERR_LIMIT, "nests classes too deeply");
    if (p->rc) return;
    int other = split_parse_class(p);
    p->depth--;
    if (!p->rc && p->at < p->len && !next_is(p, 0, ']'))
        split_refuse(p, ERR_UNSUPPORTED, "has members behind && in a class");
    s->within = other + 1;
    for (int i = 0; i < 2; i++) s->ascii[i] &= p->r->sets[other].ascii[i];
}

int split_parse_class(split_parser *p)
{
    split_set s = {.from = p->r->n_ranges};
    bool but = next_is(p, 0, '^'), first = true;
    p->folded = 0;
    p->at += but;
    if (but && p->fold) split_refuse(p, ERR_UNSUPPORTED, "has [^...] in (?i:...)");
    if (next_is(p, 0, ']')) split_refuse(p, ERR_UNSUPPORTED, "has ']' as a class's first member");
    bool both = false;
    while (!p->rc && p->at < p->len && !next_is(p, 0, ']') && !both) {
        both = !first && next_is(p, 0, '&') && next_is(p, 1, '&') && next_is(p, 2, '[');
        if (!both) take_member(p, &s, first);
        first = false;
    }
    s.n = join_ranges(p->r->ranges + s.from, s.n);
    p->r->n_ranges = s.from + s.n;
    if (both) {
        p->at += 3;
        intersect(p, &s, but);
    }
    if (p->at >= p->len) split_refuse(p, ERR_INPUT, "has a class without an end");
    p->at++;
    if (but) negate(&s);
    return split_add_set(p, s);
}
