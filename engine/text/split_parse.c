/* split_parse.c -- parses a Split pattern (the syntax of Oniguruma, as far as tokenizer.json files
 * use it) to a tree.
 *
 * Recursive descent: alternatives > sequence > repeated > atom; the depth is bounded by
 * SPLIT_NESTING_MAX. Nodes are in an array, linked by `child` and `next`.
 *
 * Supported: groups (capturing or not, with (?i:) for case), classes, escapes, greedy, lazy and
 * possessive repetitions, ^ and $, look-ahead and look-behind at fixed lists of characters. A
 * possessive repetition must be of one character class. Classes are in split_class.c.
 *
 * Everything else is rejected with the byte position and what precedes it, because a pattern that
 * is only nearly understood would change token ids.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/split_inside.h"

void split_refuse(split_parser *p, err_code code, const char *what)
{
    if (p->rc) return;
    size_t from = p->at > 12 ? p->at - 12 : 0;
    while (from > 0 && ((unsigned char)p->pattern[from] & 0xC0) == 0x80) from--;
    size_t to = p->at < p->len ? p->at : p->len;
    while (to < p->len && ((unsigned char)p->pattern[to] & 0xC0) == 0x80) to++;
    if (from > to) from = to;
    p->rc = err_set(p->e, code, "tokenizer.json: Split pattern %s, at byte %zu behind '%.*s'", what,
                    p->at, (int)(to - from), p->pattern + from);
}

int split_add_node(split_parser *p, split_node n)
{
    if (p->n_nodes == SPLIT_NODES_MAX) {
        split_refuse(p, ERR_LIMIT, "is too large");
        return 0;
    }
    p->nodes[p->n_nodes] = n;
    return p->n_nodes++;
}

static bool take(split_parser *p, const char *s)
{
    size_t n = strlen(s);
    if (p->len - p->at < n || memcmp(p->pattern + p->at, s, n) != 0) return false;
    p->at += n;
    return true;
}

static int parse_alternatives(split_parser *p);

/* Parses a group after its opening. */
static int parse_group(split_parser *p, bool fold)
{
    bool outer = p->fold;
    if (++p->depth > SPLIT_NESTING_MAX) split_refuse(p, ERR_LIMIT, "nests groups too deeply");
    p->fold |= fold;
    int node = p->rc ? 0 : parse_alternatives(p);
    p->fold = outer;
    p->depth--;
    if (!p->rc && !take(p, ")")) split_refuse(p, ERR_INPUT, "has a group without an end");
    return node;
}

/* Whether a node is a sequence, or alternatives of sequences, of single characters. */
static bool is_flat(const split_parser *p, int node)
{
    const split_node *n = &p->nodes[node];
    if (n->kind == NODE_SET) return true;
    if (n->kind != NODE_CAT && n->kind != NODE_ALT) return false;
    for (int k = n->child; k >= 0; k = p->nodes[k].next) {
        if (n->kind == NODE_CAT ? p->nodes[k].kind != NODE_SET : !is_flat(p, k)) return false;
    }
    return n->child >= 0;
}

static int parse_look(split_parser *p, bool negated, bool behind)
{
    int child = parse_group(p, false);
    if (!p->rc && !is_flat(p, child))
        split_refuse(p, ERR_UNSUPPORTED,
                     behind ? "has a look-behind at more than a few characters"
                            : "has a look-ahead at more than a few characters");
    split_node look = {.kind = NODE_LOOK, .negated = negated, .behind = behind, .child = child};
    return split_add_node(p, look);
}

/* One atom of a pre-tokeniser's pattern; returns its node. Groups do not capture; kinds of
 * groups that are not known are refused. */
static int parse_atom(split_parser *p)
{
    size_t used;
    if (take(p, "(?:")) return parse_group(p, false);
    if (take(p, "(?i:")) return parse_group(p, true);
    if (take(p, "(?!")) return parse_look(p, true, false);
    if (take(p, "(?=")) return parse_look(p, false, false);
    if (take(p, "(?<!")) return parse_look(p, true, true);
    if (take(p, "(?<=")) return parse_look(p, false, true);
    if (take(p, "(?")) {
        split_refuse(p, ERR_UNSUPPORTED, "has a group of a kind that is not known");
        return 0;
    }
    if (take(p, "(")) return parse_group(p, false);
    if (take(p, "^")) return split_add_node(p, (split_node){.kind = NODE_START});
    if (take(p, "$")) return split_add_node(p, (split_node){.kind = NODE_END});
    int set;
    if (take(p, "[")) {
        set = split_parse_class(p);
    } else if (take(p, "\\")) {
        set = split_parse_escape(p);
    } else if (take(p, ".")) {
        set = split_any_but_newline(p);
    } else {
        uint32_t c = utf8_decode(p->pattern + p->at, p->len - p->at, &used);
        if (c < 128 && strchr("*+?{", (int)c))
            split_refuse(p, ERR_UNSUPPORTED, "has a repetition of nothing, or of a repetition");
        p->at += used;
        set = split_one_character(p, c);
    }
    return split_add_node(p, (split_node){.kind = NODE_SET, .set = set});
}

/* Decimal digits; none: 0. */
static int number(split_parser *p)
{
    int n = 0;
    for (; p->at < p->len && p->pattern[p->at] >= '0' && p->pattern[p->at] <= '9'; p->at++)
        n = n > SPLIT_COUNT_MAX ? n : 10 * n + (p->pattern[p->at] - '0');
    if (n > SPLIT_COUNT_MAX) split_refuse(p, ERR_LIMIT, "repeats something too often");
    return n;
}

/* {n} {n,} {n,m}, of which the "{" is read. */
static bool parse_counts(split_parser *p, int *min, int *max)
{
    size_t from = p->at;
    *min = *max = number(p);
    bool some = p->at > from, comma = take(p, ",");
    if (comma) *max = p->at < p->len && p->pattern[p->at] != '}' ? number(p) : -1;
    if (!some || !take(p, "}") || (*max >= 0 && *max < *min) || *max == 0)
        split_refuse(p, ERR_UNSUPPORTED, "has a repetition of an unknown kind");
    return comma;
}

static repeat_mode parse_mode(split_parser *p, bool counted, bool comma)
{
    bool lazy = take(p, "?"), possessive = !lazy && take(p, "+");
    if (counted && (possessive || (lazy && !comma)))
        split_refuse(p, ERR_UNSUPPORTED, "has '+' or '?' behind a counted repetition");
    return lazy ? REPEAT_LAZY : possessive ? REPEAT_POSSESSIVE : REPEAT_GREEDY;
}

static int parse_repeated(split_parser *p)
{
    split_node n = {.kind = NODE_REPEAT, .max = -1, .next = -1};
    bool counted = false, comma = false;
    n.child = parse_atom(p);
    if (p->rc) return 0;
    if (take(p, "?"))
        n.max = 1;
    else if (take(p, "+"))
        n.min = 1;
    else if (take(p, "{")) {
        counted = true;
        comma = parse_counts(p, &n.min, &n.max);
    } else if (!take(p, "*"))
        return n.child;
    n.mode = parse_mode(p, counted, comma);
    if (n.mode == REPEAT_POSSESSIVE && p->nodes[n.child].kind != NODE_SET)
        split_refuse(p, ERR_UNSUPPORTED, "has a possessive repetition of more than one character");
    return split_add_node(p, n);
}

/* Appends a child to a node. */
static void append(split_parser *p, int parent, int *last, int child)
{
    if (p->rc) return;
    p->nodes[child].next = -1;
    if (*last < 0)
        p->nodes[parent].child = child;
    else
        p->nodes[*last].next = child;
    *last = child;
}

static int parse_sequence(split_parser *p)
{
    int parent = split_add_node(p, (split_node){.kind = NODE_CAT, .child = -1}), last = -1;
    while (!p->rc && p->at < p->len && p->pattern[p->at] != '|' && p->pattern[p->at] != ')')
        append(p, parent, &last, parse_repeated(p));
    return parent;
}

static int parse_alternatives(split_parser *p)
{
    int parent = split_add_node(p, (split_node){.kind = NODE_ALT, .child = -1}), last = -1;
    do {
        p->folded = 0;
        append(p, parent, &last, parse_sequence(p));
    } while (!p->rc && take(p, "|"));
    return parent;
}

/* ---- the whole ------------------------------------------------------------------------------ */

int split_parse(split_parser *p)
{
    p->len = strlen(p->pattern);
    if (p->len == 0 || p->len > SPLIT_PATTERN_MAX) {
        p->rc = err_set(p->e, ERR_LIMIT,
                        "tokenizer.json: a Split pattern has %zu bytes, outside of 1..%d", p->len,
                        SPLIT_PATTERN_MAX);
        return 0;
    }
    int root = parse_alternatives(p);
    if (!p->rc && p->at < p->len) split_refuse(p, ERR_INPUT, "has a ')' without a group");
    return root;
}
