/* split_compile.c -- compiles the tree of a Split pattern to a program for the backtracking machine
 * in split_search.c.
 *
 *   a|b     BRANCH L1; a; JUMP end; L1: b          OP_BRANCH: try `next`, on failure `other`
 *   x*      L: BRANCH end; x; JUMP L               lazy: the two ways swapped
 *   [s]*    TRY                                    a loop without backtracking
 *
 * A greedy repetition of one character class needs no backtracking when nothing behind it can fail
 * (`sure`), because the longest match is then taken anyway: it becomes OP_TRY. That covers nearly
 * all of the patterns of GPT-2, Llama 3 and Qwen.
 *
 * first[op] is the set of characters with which an op can succeed, a fixed point over the program;
 * the search uses it to drop branches, and entry[c] is the op to begin with for each ASCII
 * character c.
 *
 * Every branch gets a number (`memo`) under which the search can record that it failed at a
 * position.
 *
 * Limits: SPLIT_OPS_MAX ops, SPLIT_BRANCHES_MAX branches; a pattern that can match the empty string
 * is rejected.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/text/split_inside.h"

typedef struct {
    split_regex *r;
    const split_node *nodes;
    err *e;
    err_code rc; /* the first failure */
} compiler;

static void refuse(compiler *k, err_code code, const char *what)
{
    if (!k->rc) k->rc = err_set(k->e, code, "tokenizer.json: Split pattern %s", what);
}

static int emit(compiler *k, split_op op)
{
    split_regex *r = k->r;
    if (r->n_ops == SPLIT_OPS_MAX) {
        refuse(k, ERR_LIMIT, "is too large with its repetitions written out");
        return 0;
    }
    r->ops[r->n_ops] = op;
    r->ops[r->n_ops].next = (int16_t)(r->n_ops + 1);
    r->ops[r->n_ops].memo = -1;
    return r->n_ops++;
}

/* Emits an op that can record where it failed. */
static int emit_branch(compiler *k, split_op op)
{
    int at = emit(k, op);
    if (k->r->n_memo == SPLIT_BRANCHES_MAX)
        refuse(k, ERR_LIMIT, "has too many branches");
    else
        k->r->ops[at].memo = (int16_t)k->r->n_memo++;
    return at;
}

/* Whether the node can match the empty string. */
static bool may_be_empty(const split_node *nodes, int at)
{
    const split_node *n = &nodes[at];
    bool all = true, any = false;
    if (n->kind == NODE_SET) return false;
    if (n->kind == NODE_REPEAT) return n->min == 0 || may_be_empty(nodes, n->child);
    if (n->kind != NODE_CAT && n->kind != NODE_ALT) return true;
    for (int c = n->child; c >= 0; c = nodes[c].next) {
        bool empty = may_be_empty(nodes, c);
        all &= empty;
        any |= empty;
    }
    return n->kind == NODE_CAT ? all : any;
}

/* Whether the node matches at every position. */
static bool never_fails(const split_node *nodes, int at)
{
    const split_node *n = &nodes[at];
    bool all = true, any = false;
    if (n->kind == NODE_REPEAT) return n->min == 0 || never_fails(nodes, n->child);
    if (n->kind != NODE_CAT && n->kind != NODE_ALT) return false;
    for (int c = n->child; c >= 0; c = nodes[c].next) {
        bool sure = never_fails(nodes, c);
        all &= sure;
        any |= sure;
    }
    return n->kind == NODE_CAT ? all : any;
}

static void emit_node(compiler *k, int at, bool sure);

static void emit_alternatives(compiler *k, const split_node *n, bool sure)
{
    int jumps = -1; /* jumps to the end, chained through `other` */
    for (int c = n->child; c >= 0 && !k->rc; c = k->nodes[c].next) {
        bool last = k->nodes[c].next < 0;
        int branch = last ? 0 : emit_branch(k, (split_op){.kind = OP_BRANCH});
        emit_node(k, c, sure);
        if (last || k->rc) continue;
        jumps = emit(k, (split_op){.kind = OP_JUMP, .other = (int16_t)jumps});
        k->r->ops[branch].other = (int16_t)k->r->n_ops;
    }
    while (jumps >= 0 && !k->rc) {
        int before = k->r->ops[jumps].other;
        k->r->ops[jumps].next = (int16_t)k->r->n_ops;
        jumps = before;
    }
}

/* Emits one optional repetition; returns the op whose `other` is the way out. */
static int emit_choice(compiler *k, const split_node *n, bool sure)
{
    const split_node *child = &k->nodes[n->child];
    bool set = child->kind == NODE_SET;
    if (set && (n->mode == REPEAT_POSSESSIVE || (n->mode == REPEAT_GREEDY && sure))) {
        split_op op = {.kind = OP_TRY, .set = (int16_t)child->set};
        return sure ? emit(k, op) : emit_branch(k, op);
    }
    int at = emit_branch(k, (split_op){.kind = OP_BRANCH});
    emit_node(k, n->child, false);
    return at;
}

/* Everything after the choice `at` is emitted: its way out leads here. */
static void end_choice(compiler *k, const split_node *n, int at)
{
    split_op *op = &k->r->ops[at];
    op->other = (int16_t)k->r->n_ops;
    if (op->kind != OP_BRANCH || n->mode != REPEAT_LAZY) return;
    int16_t next = op->next; /* lazy: first without */
    op->next = op->other;
    op->other = next;
}

static void emit_repeat(compiler *k, const split_node *n, bool sure)
{
    int choices[SPLIT_COUNT_MAX], n_choices = 0;
    if (n->max != 1 && may_be_empty(k->nodes, n->child))
        refuse(k, ERR_UNSUPPORTED, "repeats what may find nothing");
    for (int i = 0; i < n->min && !k->rc; i++) emit_node(k, n->child, false);
    if (n->max < 0 && !k->rc) {
        int at = emit_choice(k, n, sure);
        if (k->r->ops[at].kind == OP_TRY)
            k->r->ops[at].next = (int16_t)at;
        else
            k->r->ops[emit(k, (split_op){.kind = OP_JUMP})].next = (int16_t)at;
        if (!k->rc) end_choice(k, n, at);
    }
    for (int i = n->min; i < n->max && !k->rc; i++) choices[n_choices++] = emit_choice(k, n, sure);
    for (int i = 0; i < n_choices && !k->rc; i++) end_choice(k, n, choices[i]);
}

static void emit_set(compiler *k, int at)
{
    emit(k, (split_op){.kind = OP_SET, .set = (int16_t)k->nodes[at].set});
}

/* Emits a sequence of sets in reverse, for look-behind. */
static void emit_backwards(compiler *k, int first)
{
    for (int done = -1, at; done != first && !k->rc; done = at) {
        for (at = first; k->nodes[at].next != done;) at = k->nodes[at].next;
        emit_set(k, at);
    }
}

/* Emits the body of a look-around: alternatives of sets, as a flat list without branches. */
static void emit_looked(compiler *k, int at, bool behind)
{
    const split_node *n = &k->nodes[at];
    bool backwards = behind && n->kind == NODE_CAT;
    if (n->kind == NODE_SET) emit_set(k, at);
    if (backwards) emit_backwards(k, n->child);
    for (int c = n->kind == NODE_SET || backwards ? -1 : n->child; c >= 0; c = k->nodes[c].next) {
        emit_looked(k, c, behind);
        if (n->kind == NODE_ALT && k->nodes[c].next >= 0) emit(k, (split_op){.kind = OP_OR});
    }
}

static void emit_look(compiler *k, const split_node *n)
{
    int at = emit(k, (split_op){.kind = OP_LOOK, .negated = n->negated, .behind = n->behind});
    emit_looked(k, n->child, n->behind);
    emit(k, (split_op){.kind = OP_LOOKED});
    k->r->ops[at].other = (int16_t)k->r->n_ops;
}

/* sure: nothing after the node can fail. */
static void emit_node(compiler *k, int at, bool sure)
{
    const split_node *n = &k->nodes[at];
    if (k->rc) return;
    switch (n->kind) {
    case NODE_SET: emit(k, (split_op){.kind = OP_SET, .set = (int16_t)n->set}); break;
    case NODE_ALT: emit_alternatives(k, n, sure); break;
    case NODE_REPEAT: emit_repeat(k, n, sure); break;
    case NODE_LOOK: emit_look(k, n); break;
    case NODE_START: emit(k, (split_op){.kind = OP_START}); break;
    case NODE_END: emit(k, (split_op){.kind = OP_END}); break;
    case NODE_CAT:
        for (int c = n->child; c >= 0; c = k->nodes[c].next) {
            bool rest = sure;
            for (int d = k->nodes[c].next; d >= 0; d = k->nodes[d].next)
                rest = rest && never_fails(k->nodes, d);
            emit_node(k, c, rest);
        }
        break;
    }
}

/* ---- what may come first -------------------------------------------------------------------- */

static bool join_first(split_first *to, const split_first *from)
{
    split_first was = *to;
    to->ascii[0] |= from->ascii[0];
    to->ascii[1] |= from->ascii[1];
    to->kinds |= from->kinds;
    to->end |= from->end;
    return was.ascii[0] != to->ascii[0] || was.ascii[1] != to->ascii[1] || was.kinds != to->kinds ||
           was.end != to->end;
}

static split_first first_of_set(const split_set *s)
{
    split_first f = {.ascii = {s->ascii[0], s->ascii[1]}};
    f.kinds = s->negated ? ~s->kinds : s->n || s->table ? ~0U : s->kinds;
    return f;
}

static bool find_first(split_regex *r, int at)
{
    static const split_first any = {{~0ULL, ~0ULL}, ~0U, true};
    const split_op *op = &r->ops[at];
    split_first f = {.end = false}, *to = &r->first[at];
    if (op->kind == OP_SET || op->kind == OP_TRY) f = first_of_set(&r->sets[op->set]);
    bool changed = join_first(to, &f);
    if (op->kind == OP_BRANCH || op->kind == OP_JUMP)
        changed |= join_first(to, &r->first[op->next]);
    if (op->kind == OP_BRANCH || op->kind == OP_TRY)
        changed |= join_first(to, &r->first[op->other]);
    if (op->kind >= OP_LOOK) changed |= join_first(to, &any);
    return changed;
}

/* The op that a jump ends at. */
static int16_t landed(const split_regex *r, int16_t at)
{
    while (r->ops[at].kind == OP_JUMP) at = r->ops[at].next;
    return at;
}

static bool may_begin(const split_regex *r, int at, int c)
{
    return r->first[at].ascii[c >> 6] >> (c & 63) & 1;
}

/* Precomputes, for each ASCII character, the first alternative that can begin with it. */
static void find_entries(split_regex *r)
{
    for (int c = 0; c < 128; c++) {
        int16_t at = 0;
        while (r->ops[at].kind == OP_BRANCH && !may_begin(r, r->ops[at].next, c))
            at = r->ops[at].other;
        r->entry[c] = may_begin(r, at, c) ? at : -1;
    }
}

static err_code compile_tree(split_regex *r, const split_node *nodes, int root, err *e)
{
    compiler k = {.r = r, .nodes = nodes, .e = e};
    if (may_be_empty(nodes, root)) refuse(&k, ERR_UNSUPPORTED, "may find nothing at all");
    emit_node(&k, root, true);
    emit(&k, (split_op){.kind = OP_FOUND});
    if (k.rc) return k.rc;
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = r->n_ops - 1; i >= 0; i--) changed |= find_first(r, i);
    }
    for (int i = 0; i < r->n_ops; i++) {
        if (r->ops[i].kind != OP_FOUND) r->ops[i].next = landed(r, r->ops[i].next);
        if (r->ops[i].kind == OP_BRANCH || r->ops[i].kind == OP_TRY)
            r->ops[i].other = landed(r, r->ops[i].other);
    }
    find_entries(r);
    return ERR_NONE;
}

/* ---- patterns ------------------------------------------------------------------------------- */

static split_regex *make_room(void)
{
    split_regex *r = calloc(1, sizeof(*r));
    if (!r) return NULL;
    r->sets = calloc(SPLIT_SETS_MAX, sizeof(*r->sets));
    r->ranges = calloc(SPLIT_RANGES_MAX, sizeof(*r->ranges));
    r->ops = calloc(SPLIT_OPS_MAX, sizeof(*r->ops));
    r->first = calloc(SPLIT_OPS_MAX, sizeof(*r->first));
    if (r->sets && r->ranges && r->ops && r->first) return r;
    split_regex_destroy(r);
    return NULL;
}

/* Shrinks an array; if that fails it stays as it is. */
static void *shrunk(void *array, size_t n, size_t each)
{
    void *less = realloc(array, (n ? n : 1) * each);
    return less ? less : array;
}

static err_code done(split_regex *r, err_code rc, split_regex **out)
{
    *out = NULL;
    if (rc) {
        split_regex_destroy(r);
        return rc;
    }
    r->sets = shrunk(r->sets, (size_t)r->n_sets, sizeof(*r->sets));
    r->ranges = shrunk(r->ranges, (size_t)r->n_ranges, sizeof(*r->ranges));
    r->ops = shrunk(r->ops, (size_t)r->n_ops, sizeof(*r->ops));
    r->first = shrunk(r->first, (size_t)r->n_ops, sizeof(*r->first));
    *out = r;
    return ERR_NONE;
}

typedef int make_tree(split_parser *p, const void *of);

/* A tree from a text or in another way, then its program. */
static err_code compile(split_regex **out, const char *pattern, make_tree *make, const void *of,
                        err *e)
{
    split_parser p = {.pattern = pattern, .r = make_room(), .e = e};
    *out = NULL;
    p.nodes = calloc(SPLIT_NODES_MAX, sizeof(*p.nodes));
    if (!p.nodes || !p.r) {
        free(p.nodes);
        split_regex_destroy(p.r);
        return err_set(e, ERR_NOMEM, "no memory for a Split pattern");
    }
    int root = make(&p, of);
    err_code rc = p.rc ? p.rc : compile_tree(p.r, p.nodes, root, e);
    free(p.nodes);
    return done(p.r, rc, out);
}

static int parse(split_parser *p, const void *of)
{
    (void)of;
    return split_parse(p);
}

err_code split_regex_compile(split_regex **out, const char *pattern, err *e)
{
    return compile(out, pattern, parse, NULL, e);
}

err_code split_regex_literal(split_regex **out, const char *text, err *e)
{
    static const char special[] = "\\.+*?()|[]{}^$#&-~";
    size_t len = strlen(text), n = 0;
    char *pattern = malloc(2 * len + 1);
    if (!pattern) return err_set(e, ERR_NOMEM, "no memory for a Split pattern");
    for (size_t i = 0; i < len; i++) {
        if (strchr(special, text[i])) pattern[n++] = '\\';
        pattern[n++] = text[i];
    }
    pattern[n] = 0;
    err_code rc = split_regex_compile(out, pattern, e);
    free(pattern);
    return rc;
}

/* ---- tables --------------------------------------------------------------------------------- */

typedef struct {
    const unicode_range *ranges;
    int n;
} table;

static int add_table(split_parser *p, const table *t)
{
    split_set s = {.table = t->ranges, .n_table = t->n};
    for (uint32_t c = 0; c < 128; c++) {
        if (unicode_in_ranges(t->ranges, t->n, c)) s.ascii[c >> 6] |= 1ULL << (c & 63);
    }
    return split_add_set(p, s);
}

static int one_of_table(split_parser *p, const void *of)
{
    return split_add_node(p, (split_node){.kind = NODE_SET, .set = add_table(p, of), .next = -1});
}

/* \w+|[^\w\s]+ with a table for \w. */
static int words_of_table(split_parser *p, const void *of)
{
    p->pattern = "\\w+|[^\\s]+";
    int root = split_parse(p), set = add_table(p, of);
    split_set *words = &p->r->sets[0], *others = &p->r->sets[1];
    *words = p->r->sets[set];
    others->table = words->table;
    others->n_table = words->n_table;
    for (int i = 0; i < 2; i++) others->ascii[i] &= ~words->ascii[i];
    return root;
}

err_code split_regex_ranges(split_regex **out, const unicode_range *ranges, int n, err *e)
{
    const table t = {ranges, n};
    return compile(out, "", one_of_table, &t, e);
}

err_code split_regex_words(split_regex **out, const unicode_range *ranges, int n, err *e)
{
    const table t = {ranges, n};
    return compile(out, "", words_of_table, &t, e);
}

void split_regex_destroy(split_regex *r)
{
    if (!r) return;
    free(r->sets);
    free(r->ranges);
    free(r->ops);
    free(r->first);
    free(r);
}
