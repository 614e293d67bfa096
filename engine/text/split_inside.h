/* split_inside.h -- a compiled pattern, shared by the split_*.c files alone.
 *
 *     split_parse.c    a pattern's text to a tree
 *     split_class.c    classes of characters, in the text
 *     split_compile.c  the tree to a program
 *     split_search.c   running it
 */
#ifndef ENGINE_TEXT_SPLIT_INSIDE_H
#define ENGINE_TEXT_SPLIT_INSIDE_H

#include "engine/text/split_regex.h"

/* A class of characters. ASCII has a bit for each character; all others are tested by kind and by
 * ranges, and `negated` inverts that test. */
typedef struct split_set {
    uint64_t ascii[2];
    uint32_t kinds;
    bool negated;
    const unicode_range *table; /* not this pattern's own; NULL: none */
    int n_table;
    int from, n; /* in the pattern's ranges */
    int within;  /* behind &&: number of a set, plus one, that it must be in too; 0: none */
} split_set;

typedef enum {
    NODE_SET,    /* set */
    NODE_CAT,    /* children one behind the other; none: nothing */
    NODE_ALT,    /* one of the children */
    NODE_REPEAT, /* child, min, max */
    NODE_LOOK,   /* child: alternatives of sets; negated, behind */
    NODE_START,
    NODE_END
} split_node_kind;

typedef enum { REPEAT_GREEDY, REPEAT_LAZY, REPEAT_POSSESSIVE } repeat_mode;

typedef struct split_node {
    split_node_kind kind;
    repeat_mode mode;
    bool negated, behind;
    int set, child, next; /* next: sibling; -1: none */
    int min, max;         /* max -1: no end */
} split_node;

typedef enum {
    OP_SET,    /* set, then next */
    OP_JUMP,   /* next: gone when the program is ready */
    OP_BRANCH, /* next, and if that fails other */
    OP_TRY,    /* of set: next, else other; never another way */
    OP_LOOK,   /* then sets (behind: the last first), OP_OR, OP_LOOKED; other: after those */
    OP_OR,
    OP_LOOKED,
    OP_START,
    OP_END,
    OP_FOUND
} split_op_kind;

typedef struct split_op {
    uint8_t kind;
    bool negated, behind;
    int16_t set, memo; /* memo: its bit at each place; -1: none */
    int16_t next, other;
} split_op;

/* What may stand first where an op is to succeed. */
typedef struct split_first {
    uint64_t ascii[2];
    uint32_t kinds;
    bool end; /* it may succeed at the end of the text */
} split_first;

struct split_regex {
    split_set *sets;
    unicode_range *ranges;
    split_op *ops;
    split_first *first; /* [n_ops] */
    int n_sets, n_ranges, n_ops, n_memo;
    int16_t entry[128]; /* the op where a search begins at this character; -1: finds nothing */
};

/* ---- split_parse.c -- */

typedef struct split_parser {
    const char *pattern;
    size_t len, at;
    split_node *nodes;
    int n_nodes, depth;
    bool fold;       /* in (?i:...) */
    int script;      /* its number, where the last escape was one's; 0: it was none's */
    bool not_script; /* all but it */
    uint32_t folded; /* the letter before, there: pairs of some fold to one character */
    split_regex *r;  /* whose sets and ranges these become */
    err *e;
    err_code rc; /* the first failure */
} split_parser;

/* The root node; p->rc says whether it failed. */
int split_parse(split_parser *p);
/* Notes a failure at this place of the pattern. */
void split_refuse(split_parser *p, err_code code, const char *what);

/* The node's number; 0 after a failure (p->rc). */
int split_add_node(split_parser *p, split_node n);

/* ---- split_class.c -- */

/* [...], of which the "[" is read; the set's number. */
int split_parse_class(split_parser *p);
/* Behind a "\": a character, or a set. */
int split_parse_escape(split_parser *p);

/* A set of this character alone, in both cases where (?i:...) is on. */
int split_one_character(split_parser *p, uint32_t c);

/* For ".". */
int split_any_but_newline(split_parser *p);

/* The set's number in the pattern. */
int split_add_set(split_parser *p, split_set s);

static inline bool split_in_set(const split_regex *r, const split_set *k, uint32_t c)
{
    uint32_t code = c & 0xFFFFFF;
    if (code < 128) return k->ascii[code >> 6] >> (code & 63) & 1;
    bool in = k->kinds >> (c >> 24) & 1;
    if (!in && k->n) in = unicode_in_ranges(r->ranges + k->from, k->n, code);
    if (!in && k->table) in = unicode_in_ranges(k->table, k->n_table, code);
    if (in == k->negated || !k->within) return in != k->negated;
    return split_in_set(r, &r->sets[k->within - 1], c);
}

#endif
