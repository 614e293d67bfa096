/* grammar_regex.h -- an expression as a tree: what grammar_regex.c and grammar_dfa.c share.
 *
 * Owner: who parses; regex_drop() frees what regex_parse() made, also after an error.
 * Threads: any thread, each its own tree.
 */
#ifndef ENGINE_GRAMMAR_GRAMMAR_REGEX_H
#define ENGINE_GRAMMAR_GRAMMAR_REGEX_H

#include "engine/grammar/grammar_inside.h"

typedef enum { R_EMPTY, R_CLASS, R_CAT, R_ALT, R_REPEAT, R_BEGIN, R_END, R_NEVER } regex_kind;

typedef struct {
    regex_kind kind;
    int a, b;     /* children; class number */
    int min, max; /* R_REPEAT; max < 0: no bound */
} regex_node;

typedef struct {
    const char *s, *start, *end;
    regex_node *list;
    int n, cap;
    g_class **cls;
    int n_cls, cap_cls;
    int nest;
    bool in_class; /* where NUL may be named, as the end of a range */
    err *e;
    err_code rc;
} regex_tree;

/* From p->s to p->end; start and e are set, all else is zero.  Anchors may stand anywhere. */
err_code regex_parse(regex_tree *p, int *root);
void regex_drop(regex_tree *p);

#endif
