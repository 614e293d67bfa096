/* grammar_regex.h -- an expression as a tree: what grammar_regex.c and grammar_dfa.c share.
 *
 * Owner: who parses; regex_drop() frees what regex_parse() made, also after an error.
 * Threads: any thread, each its own tree.
 */
#ifndef ENGINE_GRAMMAR_REGEX_GRAMMAR_REGEX_H
#define ENGINE_GRAMMAR_REGEX_GRAMMAR_REGEX_H

#include "engine/grammar/automaton/grammar_automaton.h"

typedef enum {
    R_EMPTY,
    R_CLASS,
    R_CAT,
    R_ALT,
    R_REPEAT,
    R_BEGIN,
    R_END,
    R_LOOK, /* a look-ahead: what follows begins with `a`; min 1: does not */
    R_NEVER
} regex_kind;

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
    bool in_look, in_not;
    bool looks;  /* it has look-aheads */
    bool vague;  /* what one must not find is read alike by all dialects in plain text only */
    bool leaves; /* it matches more: a back reference is read as what never matches */
    err *e;
    err_code rc;
} regex_tree;

/* From p->s to p->end; start and e are set, all else is zero.  Anchors may stand anywhere. */
err_code regex_parse(regex_tree *p, int *root);
void regex_drop(regex_tree *p);
/* Does gb_regex_sized() write all of its texts of these lengths? */
bool regex_keeps(const regex_tree *p, int root, int64_t least, int64_t most);

/* grammar_property.c: \p{name}, or \P{name}; false: it is not known. */
bool g_class_property(g_class *c, const char *name, size_t len, bool opposite);

/* grammar_look.c: as gb_regex_sized(), also with look-aheads and anchors inside.  Where no text
 * matches as a whole, one in which it is found is, as JSON Schema wants it; not so if `whole`. */
err_code gb_pattern(g_builder *b, int32_t from, const char *pattern, size_t len, int64_t least,
                    int64_t most, bool whole, bool json, int32_t to, err *e);

#endif
