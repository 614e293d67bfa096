/* grammar_cfg_words.c -- terminals of a grammar: literals, classes, regular expressions, and Lark's
 * commands.
 *
 *   "text"    bytes after unescaping; "text"i in Lark: ASCII letters in either case
 *   [a-z]     ranges of code points, [^a-z] their complement; "a".."z" in Lark
 *   /regex/   a regular expression as in JSON Schema (engine/grammar/regex/grammar_regex.c),
 *             without flags
 *   %import   names of Lark's module `common` become the regular expressions of the table below
 *   %ignore   collects what may stand between terminals in one rule, (a | b | ...)*
 *
 * Unescaped text goes into cfg.text, which is CFG_GROWTH times as long as the source: no escape is
 * shorter than its UTF-8, but a byte that is no UTF-8 becomes three. An imported terminal has no
 * text of its own: its node has at = -1 - (index into `common`).
 *
 * Every error names the line (cfg_fail()) and leaves the cfg in a state that cfg_clear() can free.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hex.h"
#include "engine/base/utf8.h"
#include "engine/grammar/cfg/grammar_cfg.h"

/* The code point behind \x, \u or \U. */
static uint32_t hex(cfg *g, int digits)
{
    uint32_t v = 0;
    for (int i = 0; i < digits; i++, g->s++) {
        int d = g->s < g->end ? hex_digit(*g->s) : -1;
        if (d < 0) return (uint32_t)cfg_fail(g, ERR_INPUT, "a hexadecimal digit is missing");
        v = v * 16 + (uint32_t)d;
    }
    if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000))
        return (uint32_t)cfg_fail(g, ERR_INPUT, "a character that can't be");
    return v;
}

/* One character of a literal or a class; before the end of the source. */
static uint32_t one_char(cfg *g)
{
    static const char names[] = "tnrf", values[] = "\t\n\r\f";
    size_t used = 1;
    if (*g->s != '\\' || g->s + 1 == g->end) {
        uint32_t c = utf8_decode(g->s, (size_t)(g->end - g->s), &used);
        g->s += used;
        return c;
    }
    char c = g->s[1];
    const char *k = c ? strchr(names, c) : NULL;
    if (!k && ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) &&
        !strchr("xuU", c))
        return (uint32_t)cfg_fail(g, ERR_UNSUPPORTED, "the escape '\\%c' is not supported", c);
    g->s += 2;
    if (k) return (uint32_t)values[k - names];
    if (c == 'x' || c == 'u' || c == 'U') return hex(g, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    return (unsigned char)c;
}

/* "..": its bytes, appended to the text.  False: failed. */
static bool read_literal(cfg *g, int32_t x)
{
    g->s++;
    g->node[x].at = g->n_text;
    while (!g->rc && g->s < g->end && *g->s != '"') {
        uint32_t c = one_char(g);
        if (c == 0) (void)cfg_fail(g, ERR_INPUT, "a literal has the character 0");
        if (!g->rc) g->n_text += (int)utf8_encode(c, g->text + g->n_text);
    }
    if (!g->rc && !cfg_eat(g, "\"")) (void)cfg_fail(g, ERR_INPUT, "a '\"' is missing");
    assert(g->n_text <= CFG_GROWTH * (g->end - g->start));
    g->node[x].n = g->n_text - g->node[x].at;
    return !g->rc;
}

/* The one character of a literal that is an end of a range. */
static uint32_t end_of_range(cfg *g, int32_t x)
{
    const cfg_node *v = &g->node[x];
    size_t used = 0;
    uint32_t c = v->n ? utf8_decode(g->text + v->at, (size_t)v->n, &used) : 0;
    if (v->n == 0 || used != (size_t)v->n)
        (void)cfg_fail(g, ERR_INPUT, "an end of a range must be one character");
    return c;
}

/* Lark's "a".."z". */
static int32_t range(cfg *g, int32_t from)
{
    int32_t to = cfg_add(g, CFG_TEXT), x = cfg_add(g, CFG_CLASS);
    cfg_skip(g);
    if (g->rc) return 0;
    if (g->s >= g->end || *g->s != '"') return cfg_fail(g, ERR_INPUT, "a range has no end");
    if (!read_literal(g, to)) return 0;
    uint32_t lo = end_of_range(g, from), hi = end_of_range(g, to);
    if (!g->rc && hi < lo) return cfg_fail(g, ERR_INPUT, "a range that runs backwards");
    cfg_range(g, x, lo, hi);
    return x;
}

int32_t cfg_literal(cfg *g)
{
    int32_t x = cfg_add(g, CFG_TEXT);
    if (g->rc || !read_literal(g, x) || !g->lark) return x;
    const cfg_node *v = &g->node[x];
    if (cfg_eat(g, "i")) {
        g->node[x].other = true;
        for (int32_t i = 0; i < v->n; i++) {
            if ((unsigned char)g->text[v->at + i] >= 0x80)
                return cfg_fail(g, ERR_UNSUPPORTED, "'i' behind a literal that is not ASCII");
        }
    }
    const char *here = g->s;
    cfg_skip(g);
    if (cfg_eat(g, "..")) return range(g, x);
    g->s = here;
    return x;
}

/* GBNF's [..], [^..] and the point. */
int32_t cfg_class(cfg *g)
{
    int32_t x = cfg_add(g, CFG_CLASS);
    if (g->rc) return 0;
    if (cfg_eat(g, ".")) {
        g->node[x].other = true;
        return x;
    }
    g->s++;
    g->node[x].other = cfg_eat(g, "^");
    while (!g->rc && g->s < g->end && *g->s != ']') {
        uint32_t lo = one_char(g), hi = lo;
        if (g->s + 1 < g->end && *g->s == '-' && g->s[1] != ']') {
            g->s++;
            hi = one_char(g);
        }
        if (!g->rc && hi < lo) return cfg_fail(g, ERR_INPUT, "a range that runs backwards");
        cfg_range(g, x, lo, hi);
    }
    if (!g->rc && !cfg_eat(g, "]")) return cfg_fail(g, ERR_INPUT, "a ']' is missing");
    return x;
}

/* Lark's /../: as a regular expression of a schema, engine/grammar/regex/grammar_regex.c. */
int32_t cfg_expression(cfg *g)
{
    const char *from = ++g->s;
    while (g->s < g->end && *g->s != '/') g->s += *g->s == '\\' && g->s + 1 < g->end ? 2 : 1;
    size_t n = (size_t)(g->s - from);
    if (g->s >= g->end) return cfg_fail(g, ERR_INPUT, "a '/' is missing");
    g->s++;
    while (cfg_eat(g, "u")) continue;
    if (g->s < g->end && *g->s && strchr("imslx", *g->s))
        return cfg_fail(g, ERR_UNSUPPORTED, "the flag '%c' of an expression is not supported",
                        *g->s);
    return cfg_bytes(g, CFG_REGEX, from, n);
}

/* ----------------------------------------------------------------------- commands -- */

/* Lark's module `common`, as regular expressions written for this file. */
static const struct {
    const char *name, *regex;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9A-Fa-f]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+\\-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+\\-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+\\-]?[0-9]+)?"},
    {"SIGNED_FLOAT",
     "[+\\-]?([0-9]+[eE][+\\-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+\\-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+\\-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+\\-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+\\-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

const char *cfg_regex_of(const cfg *g, const cfg_node *x, size_t *n)
{
    assert(x->kind == CFG_REGEX);
    const char *s = x->at < 0 ? common[-1 - x->at].regex : g->text + x->at;
    *n = x->at < 0 ? strlen(s) : (size_t)x->n;
    return s;
}

/* Imports one name of `common`, under its own name or an alias. */
static void import(cfg *g, const char *name, size_t n, const char *as, size_t n_as)
{
    size_t i = 0, most = sizeof(common) / sizeof(common[0]);
    while (i < most && (strlen(common[i].name) != n || memcmp(common[i].name, name, n) != 0)) i++;
    if (i == most) {
        (void)cfg_fail(g, ERR_UNSUPPORTED, "'common.%.*s' is not supported", (int)n, name);
        return;
    }
    int32_t rule = cfg_rule_named(g, as, n_as), x = cfg_add(g, CFG_REGEX);
    if (g->rc) return;
    if (g->rule[rule].def >= 0) {
        (void)cfg_fail(g, ERR_INPUT, "the rule '%.*s' is given twice", (int)n_as, as);
        return;
    }
    g->node[x].at = -1 - (int32_t)i;
    g->rule[rule].def = x;
}

static void imports(cfg *g)
{
    cfg_skip(g);
    if (!cfg_eat(g, "common")) {
        (void)cfg_fail(g, ERR_UNSUPPORTED, "only 'common' can be imported from");
        return;
    }
    cfg_skip(g);
    bool list = cfg_eat(g, "(");
    if (!list && !cfg_eat(g, ".")) (void)cfg_fail(g, ERR_INPUT, "%%import without a name");
    do {
        cfg_skip(g);
        const char *name = g->s, *as = name;
        size_t n = cfg_name(g, name), n_as = n;
        g->s += n;
        cfg_skip(g);
        if (!list && cfg_eat(g, "->")) {
            cfg_skip(g);
            as = g->s;
            n_as = cfg_name(g, as);
            g->s += n_as;
        }
        if (n == 0 || n_as == 0)
            (void)cfg_fail(g, ERR_INPUT, "%%import without a name");
        else
            import(g, name, n, as, n_as);
    } while (!g->rc && list && cfg_eat(g, ","));
    if (!g->rc && list && !cfg_eat(g, ")")) (void)cfg_fail(g, ERR_INPUT, "a ')' is missing");
}

/* Adds an alternative to what may stand between terminals. */
static void ignore(cfg *g)
{
    static const char name[] = "%ignore"; /* no rule can be called so */
    bool first = g->ignored < 0;
    if (first) {
        g->ignored = cfg_rule_named(g, name, strlen(name));
        int32_t def = cfg_add(g, CFG_REPEAT), any = cfg_add(g, CFG_ALT);
        if (g->rc) return;
        g->node[def].max = -1;
        cfg_adopt(g, def, any);
        g->rule[g->ignored].terminal = true;
        g->rule[g->ignored].def = def;
    }
    g->in_terminal = true;
    int32_t what = cfg_alternatives(g);
    g->in_terminal = false;
    if (!g->rc) cfg_adopt(g, g->node[g->rule[g->ignored].def].child, what);
}

void cfg_command(cfg *g)
{
    if (cfg_eat(g, "%ignore"))
        ignore(g);
    else if (cfg_eat(g, "%import"))
        imports(g);
    else
        (void)cfg_fail(g, ERR_UNSUPPORTED,
                       "'%.12s': of lines with '%%' only %%ignore and %%import "
                       "are supported",
                       g->s);
}
