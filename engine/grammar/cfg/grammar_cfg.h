/* grammar_cfg.h -- context-free grammars as texts: llama.cpp's GBNF, a part of Lark's language.
 *
 *     text -> rules, each a tree   grammar_cfg.c, grammar_cfg_words.c (names, literals, imports)
 *     rules -> automaton           grammar_cfg_lay.c
 *
 * In GBNF a text fits `root`, byte by byte.  In Lark it fits `start` if it can be cut into
 * terminals in any way at all, with what is ignored between them (Lark's own dynamic_complete);
 * priorities and the shape of the tree do not matter.
 *
 * Sources: llama.cpp's grammars/README.md; Lark's "Grammar Reference".
 * Bounds: so many rules, nodes, ranges; what a repetition copies, the builder bounds.
 * Threads: a cfg belongs to one.
 */
#ifndef ENGINE_GRAMMAR_CFG_GRAMMAR_CFG_H
#define ENGINE_GRAMMAR_CFG_GRAMMAR_CFG_H

#include "engine/grammar/automaton/grammar_automaton.h"

enum {
    CFG_RULES_MAX = 900,
    CFG_NODES_MAX = 60000,
    CFG_RANGES_MAX = 20000,
    CFG_NEST_MAX = 50,
    CFG_REPEAT_MAX = 10000,
    CFG_GROWTH = 3, /* bytes of `text` for one of the source: a broken one becomes U+FFFD */
};

typedef enum { CFG_TEXT, CFG_CLASS, CFG_REGEX, CFG_RULE, CFG_CAT, CFG_ALT, CFG_REPEAT } cfg_kind;

typedef struct cfg_node {
    uint8_t kind;
    bool other;          /* CFG_TEXT: in either case; CFG_CLASS: all characters but these */
    int32_t at, n;       /* bytes of `text`; ranges; CFG_RULE: its number */
    int32_t child, last; /* of CAT, ALT, REPEAT; -1: none */
    int32_t next;        /* of the same parent */
    int32_t min, max;    /* CFG_REPEAT; max < 0: no bound */
} cfg_node;

typedef struct cfg_rule {
    const char *name; /* of the source, or a static text */
    size_t n_name;
    uint64_t hash;
    int32_t def;   /* node; -1: not given yet */
    bool terminal; /* nothing is ignored inside */
    /* ---- of the layout ---- */
    int32_t laid; /* the builder's rule; -1: none */
    int32_t size; /* states, about; 0: not known, -1: being counted */
} cfg_rule;

typedef struct cfg {
    const char *s, *start, *end;
    bool lark;
    bool in_terminal;
    int nest;
    cfg_node *node;
    int n_nodes, cap_nodes;
    g_range *range;
    int n_ranges, cap_ranges;
    char *text; /* of literals and expressions, their escapes read; CFG_GROWTH times the source */
    int n_text;
    cfg_rule rule[CFG_RULES_MAX];
    int n_rules;
    int32_t root;
    int32_t ignored; /* rule: what may stand between terminals, any number of times; -1: nothing */
    err *e;
    err_code rc;
} cfg;

/* All of the source, or *e says in which line what is wrong.  cfg_clear() in any case. */
err_code cfg_read(cfg *g, const char *source, err *e);

/* Frees nodes, ranges and text; a zeroed struct is allowed. */
void cfg_clear(cfg *g);

/* ---- for the readers ---- */

/* The first failure stays.  Returns 0. */
int32_t cfg_fail(cfg *g, err_code rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A new node without children; 0 after a failure. */
int32_t cfg_add(cfg *g, cfg_kind kind);

/* Makes `child` the last child of `parent`. */
void cfg_adopt(cfg *g, int32_t parent, int32_t child);
int32_t cfg_bytes(cfg *g, cfg_kind kind, const char *s, size_t n); /* CFG_TEXT or CFG_REGEX */
void cfg_range(cfg *g, int32_t cls, uint32_t lo, uint32_t hi);
int32_t cfg_rule_named(cfg *g, const char *name, size_t n); /* made where it is new */
void cfg_skip(cfg *g);                                      /* blanks, line ends, comments */
bool cfg_eat(cfg *g, const char *what);
size_t cfg_name(const cfg *g, const char *s); /* bytes of the name that begins at s */
int32_t cfg_alternatives(cfg *g);

/* grammar_cfg_words.c: what stands for itself, and Lark's lines that begin with '%'. */
int32_t cfg_literal(cfg *g);

/* A class in brackets: a CFG_CLASS node with its ranges. */
int32_t cfg_class(cfg *g);

/* /.../ of Lark, with its flags. */
int32_t cfg_expression(cfg *g);

/* A line that begins with '%': %import and %ignore; others are refused. */
void cfg_command(cfg *g);
/* The text of a CFG_REGEX, which may be one of Lark's own. */
const char *cfg_regex_of(const cfg *g, const cfg_node *x, size_t *n);

#endif
