/* grammar_cfg.c -- parser of context-free grammars: llama.cpp's GBNF, and the part of Lark that
 * needs no lexer.
 *
 * Recursive descent into a tree per rule; the two languages share it and differ by the flag `lark`:
 *
 *   statement := name ("::=" | ":") alternatives | '%' command (Lark)
 *   alternatives := sequence ('|' sequence)*        repeated := primary ('*' | '+' | '?' | bounds)?
 *   primary := '(' .. ')' | literal | class | /regex/ | name
 *
 * A text whose first rule is defined with "::=" is GBNF. Line ends are white space: a rule ends
 * where the next one begins (a name and its sign). llama.cpp and Lark end a rule at its line, with
 * exceptions; every grammar that they accept is read with the same meaning.
 *
 * Nodes live in one array and are linked by index: child, last, next. A rule may be named before it
 * is defined; check() reports those that never are. Errors name the line.
 *
 * Limits: CFG_RULES_MAX, CFG_NODES_MAX, CFG_NEST_MAX. Source: llama.cpp's grammars/README.md;
 * Lark's grammar reference.
 */
#include "engine/grammar/cfg/grammar_cfg.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

int32_t cfg_fail(cfg *g, err_code rc, const char *fmt, ...)
{
    char what[256];
    int line = 1;
    va_list ap;
    if (g->rc) return 0;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    for (const char *s = g->start; s < g->s; s++) line += *s == '\n';
    g->rc = err_set(g->e, rc, "line %d of the grammar: %s", line, what);
    return 0;
}

/* Grows an array for one more entry. */
static bool grow(cfg *g, void **list, int n, int *cap, size_t size, int most)
{
    if (g->rc) return false;
    if (n >= most) return cfg_fail(g, ERR_LIMIT, "it is too large: more than %d parts", most);
    if (n < *cap) return true;
    int want = *cap ? *cap * 2 : 256;
    void *p = realloc(*list, (size_t)want * size);
    if (!p) return cfg_fail(g, ERR_NOMEM, "no memory");
    *list = p;
    *cap = want;
    return true;
}

int32_t cfg_add(cfg *g, cfg_kind kind)
{
    if (!grow(g, (void **)&g->node, g->n_nodes, &g->cap_nodes, sizeof(*g->node), CFG_NODES_MAX))
        return 0;
    g->node[g->n_nodes] = (cfg_node){.kind = (uint8_t)kind, .child = -1, .last = -1, .next = -1};
    return g->n_nodes++;
}

void cfg_adopt(cfg *g, int32_t parent, int32_t child)
{
    if (g->rc) return;
    assert(child > 0 && child < g->n_nodes && child != parent && g->node[child].next < 0);
    cfg_node *p = &g->node[parent];
    if (p->last >= 0)
        g->node[p->last].next = child;
    else
        p->child = child;
    p->last = child;
}

int32_t cfg_bytes(cfg *g, cfg_kind kind, const char *s, size_t n)
{
    int32_t x = cfg_add(g, kind);
    if (g->rc) return 0;
    g->node[x].at = g->n_text;
    g->node[x].n = (int32_t)n;
    assert(g->n_text + (ptrdiff_t)n <= CFG_GROWTH * (g->end - g->start));
    memcpy(g->text + g->n_text, s, n);
    g->n_text += (int)n;
    return x;
}

void cfg_range(cfg *g, int32_t cls, uint32_t lo, uint32_t hi)
{
    if (!grow(g, (void **)&g->range, g->n_ranges, &g->cap_ranges, sizeof(*g->range),
              CFG_RANGES_MAX))
        return;
    if (g->node[cls].n++ == 0) g->node[cls].at = g->n_ranges;
    assert(g->node[cls].at + g->node[cls].n == g->n_ranges + 1); /* side by side */
    g->range[g->n_ranges++] = (g_range){lo, hi};
}

static bool is_terminal(const char *name, size_t n)
{
    while (n > 0 && *name == '_') name++, n--;
    return n > 0 && *name >= 'A' && *name <= 'Z';
}

int32_t cfg_rule_named(cfg *g, const char *name, size_t n)
{
    uint64_t hash = hash_text(0, name, n);
    for (int i = 0; i < g->n_rules; i++) {
        const cfg_rule *r = &g->rule[i];
        if (r->hash == hash && r->n_name == n && memcmp(r->name, name, n) == 0) return i;
    }
    if (g->n_rules == CFG_RULES_MAX)
        return cfg_fail(g, ERR_LIMIT, "it has more than %d rules", CFG_RULES_MAX);
    g->rule[g->n_rules] = (cfg_rule){.name = name,
                                     .n_name = n,
                                     .hash = hash,
                                     .def = -1,
                                     .terminal = g->lark && is_terminal(name, n),
                                     .laid = -1};
    return g->n_rules++;
}

/* ------------------------------------------------------------------------ words -- */

void cfg_skip(cfg *g)
{
    while (g->s < g->end) {
        bool comment = *g->s == '#' || (g->lark && *g->s == '/' && g->s[1] == '/');
        if (comment)
            while (g->s < g->end && *g->s != '\n') g->s++;
        else if (strchr(" \t\r\n", *g->s))
            g->s++;
        else
            return;
    }
}

bool cfg_eat(cfg *g, const char *what)
{
    size_t n = strlen(what);
    if ((size_t)(g->end - g->s) < n || memcmp(g->s, what, n) != 0) return false;
    g->s += n;
    return true;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

size_t cfg_name(const cfg *g, const char *s)
{
    const char *from = s;
    while (s < g->end && (is_letter(*s) || is_digit(*s) || (!g->lark && *s == '-'))) s++;
    bool begins = s > from && (!g->lark || is_letter(*from));
    return begins ? (size_t)(s - from) : 0;
}

/* Whether a rule begins here. *body: the beginning of its definition. */
static bool at_statement(const cfg *g, const char **name, size_t *n_name, const char **body)
{
    const char *s = g->s, *sign = g->lark ? ":" : "::=";
    if (g->lark && s < g->end && (*s == '?' || *s == '!')) s++;
    *name = s;
    *n_name = cfg_name(g, s);
    if (*n_name == 0) return false;
    s += *n_name;
    if (g->lark && s < g->end && *s == '.' && is_digit(s[1])) {
        for (s++; s < g->end && is_digit(*s);) s++;
    }
    while (s < g->end && strchr(" \t\r\n", *s)) s++;
    *body = s + strlen(sign);
    return strncmp(s, sign, strlen(sign)) == 0;
}

static bool at_end_of_sequence(const cfg *g)
{
    const char *name, *body;
    size_t n;
    if (g->s >= g->end || *g->s == '|' || *g->s == ')') return true;
    if (g->lark && (*g->s == ']' || *g->s == '%' || (*g->s == '-' && g->s[1] == '>'))) return true;
    return at_statement(g, &name, &n, &body);
}

/* ------------------------------------------------------------------- expressions -- */

static int32_t reference(cfg *g)
{
    size_t n = cfg_name(g, g->s);
    const char *name = g->s;
    if (n == 0)
        return cfg_fail(g, ERR_INPUT, "'%.8s': neither a name, a literal nor a group", g->s);
    g->s += n;
    if (g->lark && g->s < g->end && *g->s == '{')
        return cfg_fail(g, ERR_UNSUPPORTED, "'%.*s': templates are not supported", (int)n, name);
    if (g->in_terminal && !is_terminal(name, n))
        return cfg_fail(g, ERR_INPUT, "a terminal refers to the rule '%.*s'", (int)n, name);
    int32_t rule = cfg_rule_named(g, name, n), x = cfg_add(g, CFG_RULE);
    if (g->rc) return 0;
    g->node[x].at = rule;
    return x;
}

static int32_t repeat(cfg *g, int32_t of, int min, int max)
{
    int32_t x = cfg_add(g, CFG_REPEAT);
    if (g->rc) return 0;
    g->node[x].min = min;
    g->node[x].max = max;
    cfg_adopt(g, x, of);
    return x;
}

static int32_t group(cfg *g, const char *close)
{
    if (++g->nest > CFG_NEST_MAX)
        return cfg_fail(g, ERR_LIMIT, "more than %d groups in one another", CFG_NEST_MAX);
    int32_t x = cfg_alternatives(g);
    g->nest--;
    if (!g->rc && !cfg_eat(g, close)) return cfg_fail(g, ERR_INPUT, "a '%s' is missing", close);
    return x;
}

static int32_t primary(cfg *g)
{
    if (cfg_eat(g, "(")) return group(g, ")");
    if (*g->s == '"') return cfg_literal(g);
    if (g->lark && cfg_eat(g, "[")) return repeat(g, group(g, "]"), 0, 1);
    if (g->lark && *g->s == '/') return cfg_expression(g);
    if (!g->lark && (*g->s == '[' || *g->s == '.')) return cfg_class(g);
    return reference(g);
}

static int number(cfg *g, int otherwise)
{
    int v = 0;
    if (g->s >= g->end || !is_digit(*g->s)) return otherwise;
    for (; g->s < g->end && is_digit(*g->s) && v <= CFG_REPEAT_MAX; g->s++)
        v = v * 10 + *g->s - '0';
    if (v > CFG_REPEAT_MAX)
        (void)cfg_fail(g, ERR_LIMIT, "more than %d repetitions", CFG_REPEAT_MAX);
    return v;
}

/* Reads the bounds behind '{' (GBNF: "{2}", "{2,}", "{,5}", "{2,5}") or '~' (Lark: "~2", "~2..5").
 */
static int32_t bounded(cfg *g, int32_t x)
{
    cfg_skip(g);
    int min = number(g, -1), max = min;
    cfg_skip(g);
    bool more = cfg_eat(g, g->lark ? ".." : ",");
    cfg_skip(g);
    if (more) max = number(g, -1);
    cfg_skip(g);
    bool closed = g->lark || cfg_eat(g, "}");
    bool said = min >= 0 || (more && !g->lark && max >= 0), open = more && max < 0;
    if (!closed || !said || (open && g->lark))
        return cfg_fail(g, ERR_INPUT, "a repetition without its numbers");
    if (min < 0) min = 0;
    if (max >= 0 && max < min) return cfg_fail(g, ERR_INPUT, "a repetition that runs backwards");
    return repeat(g, x, min, max);
}

static int32_t repeated(cfg *g)
{
    int32_t x = primary(g);
    if (g->rc) return 0;
    cfg_skip(g);
    /* In Lark '?' before a name belongs to the rule that begins there. */
    bool modifier = g->lark && g->s < g->end && *g->s == '?' && is_letter(g->s[1]);
    if (cfg_eat(g, "*")) return repeat(g, x, 0, -1);
    if (cfg_eat(g, "+")) return repeat(g, x, 1, -1);
    if (!modifier && cfg_eat(g, "?")) return repeat(g, x, 0, 1);
    return cfg_eat(g, g->lark ? "~" : "{") ? bounded(g, x) : x;
}

static int32_t sequence(cfg *g)
{
    int32_t x = cfg_add(g, CFG_CAT);
    for (cfg_skip(g); !g->rc && !at_end_of_sequence(g); cfg_skip(g)) cfg_adopt(g, x, repeated(g));
    if (g->lark && !g->rc && cfg_eat(g, "->")) { /* a name in the tree */
        cfg_skip(g);
        g->s += cfg_name(g, g->s);
        cfg_skip(g);
    }
    return x;
}

int32_t cfg_alternatives(cfg *g)
{
    int32_t x = cfg_add(g, CFG_ALT);
    do {
        cfg_adopt(g, x, sequence(g));
    } while (!g->rc && cfg_eat(g, "|"));
    return x;
}

/* -------------------------------------------------------------------- statements -- */

static void statement(cfg *g)
{
    const char *name, *body;
    size_t n;
    if (g->lark && *g->s == '%') {
        cfg_command(g);
        return;
    }
    if (!at_statement(g, &name, &n, &body)) {
        (void)cfg_fail(g, ERR_INPUT, "a rule should begin here: a name and '%s'",
                       g->lark ? ":" : "::=");
        return;
    }
    int32_t rule = cfg_rule_named(g, name, n);
    if (!g->rc && g->rule[rule].def >= 0)
        (void)cfg_fail(g, ERR_INPUT, "the rule '%.*s' is given twice", (int)n, name);
    if (g->rc) return;
    g->s = body;
    g->in_terminal = g->rule[rule].terminal;
    int32_t def = cfg_alternatives(g);
    g->in_terminal = false;
    g->rule[rule].def = def;
}

static void check(cfg *g)
{
    for (int i = 0; i < g->n_rules; i++) {
        const cfg_rule *r = &g->rule[i];
        if (r->def >= 0) continue;
        if (i != g->root) g->s = r->name;
        (void)cfg_fail(g, ERR_INPUT, "there is no rule '%.*s'", (int)r->n_name, r->name);
    }
}

err_code cfg_read(cfg *g, const char *source, err *e)
{
    size_t n = strlen(source);
    const char *name, *body;
    *g = (cfg){.s = source, .start = source, .end = source + n, .ignored = -1, .e = e};
    g->text = malloc(CFG_GROWTH * n + 1);
    if (!g->text) (void)cfg_fail(g, ERR_NOMEM, "no memory");
    (void)cfg_add(g, CFG_CAT); /* number 0: nothing */
    cfg_skip(g);
    g->lark = !at_statement(g, &name, &n, &body); /* a first rule with '::=' is GBNF's */
    const char *root = g->lark ? "start" : "root";
    g->root = cfg_rule_named(g, root, strlen(root));
    for (cfg_skip(g); !g->rc && g->s < g->end; cfg_skip(g)) statement(g);
    check(g);
    assert(g->rc || (g->nest == 0 && g->s == g->end));
    return g->rc;
}

void cfg_clear(cfg *g)
{
    free(g->node);
    free(g->range);
    free(g->text);
    g->node = NULL;
    g->range = NULL;
    g->text = NULL;
}
