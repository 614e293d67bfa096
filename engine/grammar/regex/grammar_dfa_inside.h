/* grammar_dfa_inside.h -- the automaton with choices that a g_dfa begins as; for grammar_dfa.c and
 * grammar_look.c.
 */
#ifndef ENGINE_GRAMMAR_REGEX_GRAMMAR_DFA_INSIDE_H
#define ENGINE_GRAMMAR_REGEX_GRAMMAR_DFA_INSIDE_H

#include "engine/grammar/regex/grammar_dfa.h"
#include "engine/grammar/regex/grammar_regex.h"

enum {
    PARTS_MAX = 20000, /* states with choices */
    COLUMNS_MAX = 256,
    WORK_MAX = 8000000, /* edges passed */
};

typedef enum { P_FREE, P_BEGIN, P_END, P_CLASS, P_LOOK } part_kind;

typedef struct {
    part_kind kind;
    int cls, to, next; /* next edge of the same state; -1: none; cls of P_LOOK: its node */
} part_edge;

typedef struct {
    int first, end, last; /* its states; the one where it is found */
} expression;

typedef struct {
    uint32_t lo, hi;
    int column;
} span;

struct g_dfa {
    bool plain, failed; /* failed: too large, or no memory */
    part_edge *edge;
    int *head; /* [PARTS_MAX] */
    int n_parts, n_edges, cap_edges;
    g_class **cls; /* owned */
    int n_cls, cap_cls;
    expression list[DFA_EXPRESSIONS_MAX];
    int n_list;
    span *spans; /* of all characters that may be written */
    int n_spans, n_columns;
    bool *has; /* [n_cls][n_columns] */
    /* sets of states */
    int *pool, *set_at; /* set_at [STATES_MAX + 1] */
    int n_pool, cap_pool, n_states;
    int *next; /* [n_states][n_columns] */
    uint64_t *finds;
    int *mark, *stack, *gather; /* [PARTS_MAX] */
    int stamp;
    int64_t work;
};

int dfa_part(g_dfa *d); /* a new state */
void dfa_join(g_dfa *d, int from, part_kind kind, int cls, int to);
int dfa_class(g_dfa *d, g_class *c); /* takes the class; its number */
/* A part of an expression between two states; base: the number of the tree's first class. */
void dfa_lay(g_dfa *d, const regex_tree *p, int base, int i, int from, int to);
/* Cuts the characters where a class begins or ends: spans, columns, `has`. */
void dfa_cut(g_dfa *d);

/* grammar_look.c: a tree with look-aheads, between two states: `first` stands before all of the
 * text, `later` before what is left of it. */
void dfa_lay_looks(g_dfa *d, const regex_tree *p, int root, int first, int later, int to);

#endif
