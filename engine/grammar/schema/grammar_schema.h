/* grammar_schema.h -- what the files that compile a JSON schema share; see grammar_schema.c.
 *
 * Functions return false (or NULL) once c->rc is set: the first error is kept, with its path.
 *
 * Threads: owner thread.
 */
#ifndef ENGINE_GRAMMAR_SCHEMA_GRAMMAR_SCHEMA_H
#define ENGINE_GRAMMAR_SCHEMA_GRAMMAR_SCHEMA_H

#include "engine/grammar/automaton/grammar_automaton.h"
#include "engine/grammar/schema/grammar_documents.h"

enum {
    NODES_MAX = 4096,        /* subschemas with a rule */
    MERGES_MAX = 20000,      /* allOf, $ref beside other keywords */
    TWIN_NODES_MAX = 20000,  /* of a subschema that may be another's twin */
    TWIN_WORK_MAX = 5000000, /* of all of them together */
    NEST_MAX = 100,          /* of schemas in one another, merged ones included */
    REF_HOPS_MAX = 64,       /* a $ref to a $ref ... */
    LENGTH_MAX = 1 << 30,
    MERGED_NODES_MAX = 100000,
    PLAIN_MAX = 256,
    PAIRS_MAX = 64,            /* of the branches of two anyOf */
    MERGE_WORK_MAX = 10000000, /* members compared */
    COUNTED_MAX = 64,          /* members that are counted beside named ones */
    UNLIKE_MAX = 1000,         /* items that must be there and differ */
    OTHERS_MAX = 1000,         /* named members beside additionalProperties */
    KEY_MAX = 64,              /* characters of a member's name that the schema does not give */
};

typedef struct {
    const cJSON *node;
    int32_t rule;
    char *path;
    /* What it is made of, by what each part holds: of an allOf several.  parts: owned. */
    const cJSON *first, **parts;
    int n_parts;
    uint64_t digest; /* of what it says; 0: not known */
} known_rule;

typedef struct {
    g_builder b;
    const cJSON *root;
    int32_t string, bounded, integer, number, value, object, array; /* rules */
    known_rule *known; /* [NODES_MAX] in the order they were first named; built in that order */
    int n_known;
    cJSON *merged[MERGES_MAX]; /* owned */
    int n_merged;
    int64_t merged_nodes, merge_work, turned_nodes,
        twin_work; /* bounded: a small schema may ask for a lot */
    struct {
        const cJSON *of, *is;
        bool part;
    } plain[PLAIN_MAX]; /* what schema_plain() made last, by what it was made of */
    bool every_kind;    /* of values that no type is given for */
    int nest;
    char path[256];
    size_t path_len;
    err *e;
    err_code rc;
} schema_compiler;

/* What a keyword speaks of. */
typedef enum { OBJECT, ARRAY, STRING, NUMBER, ANY, REFUSED } word_kind;

typedef struct {
    const char *name;
    word_kind kind;
} keyword;

/* Keeps the first error, with the path; returns false. */
bool schema_fail(schema_compiler *c, err_code rc, const char *what);

/* ERR_UNSUPPORTED: "`word` ... `why`", with the path; returns false. */
bool schema_unsupported(schema_compiler *c, const char *word, const char *why);
/* The path grows; the old length is what schema_leave() wants. */
size_t schema_enter(schema_compiler *c, const char *name, int index);

/* Cuts the path back to what it was before schema_enter(). */
void schema_leave(schema_compiler *c, size_t old);

const keyword *schema_keyword(const char *name); /* NULL: it says nothing about the text */
const cJSON *schema_get(const cJSON *s, const char *name);

/* Refuses a keyword that would change the language and is not built; unknown words are ignored,
 * as JSON Schema says. */
bool schema_check_words(schema_compiler *c, const cJSON *s);

/* Has the schema a keyword other than `but` that is no note (title, description)? */
bool schema_says_more_than(const cJSON *s, const char *but);
/* A whole number from 0; *out untouched when absent. */
bool schema_take_size(schema_compiler *c, const cJSON *s, const char *name, int64_t *out);

/* What a $ref that stands alone leads to; other schemas are their own. */
const cJSON *schema_target(schema_compiler *c, const cJSON *s);
int64_t schema_nodes(const cJSON *s);            /* values in it, itself included */
cJSON *schema_own(schema_compiler *c, cJSON *s); /* freed with the compiler */
cJSON *schema_merge(schema_compiler *c, const cJSON *a, const cJSON *b);
/* The same without a copy: it refers to what s holds, which must outlive it; the caller's. */
cJSON *schema_share(const cJSON *s);
/* A copy whose members are shared: they may be taken out and put in, not changed. */
cJSON *schema_shallow(const cJSON *s);
/* The array at a word of a shallow copy, which may be added to; made where there is none. */
cJSON *schema_list(cJSON *out, const char *word);
cJSON *schema_pair(const cJSON *a, const cJSON *b); /* {"allOf": [a, b]}, the caller's */
cJSON *schema_both(schema_compiler *c, const cJSON *a, const cJSON *b); /* the same, owned */
cJSON *schema_without(schema_compiler *c, const cJSON *s, const char *name);

/* Copies of the values that both arrays have, in the order of `a`; the caller's. */
cJSON *schema_common_values(const cJSON *a, const cJSON *b);

/* Is `t` one of the types? `types`: a word or an array of words; NULL: false. */
bool schema_type_has(const cJSON *types, const char *t);
/* Is the value of one of the types?  1.0 is an integer. */
bool schema_value_is(const cJSON *types, const cJSON *value);
/* The values that const or else enum lists, one by one: the first (`at` is NULL), or the one behind
 * `at`. */
const cJSON *schema_next_value(const cJSON *s, const cJSON *at);
/* Is it one of the strings of a schema's `required`? */
bool schema_requires(const cJSON *required, const char *name);

/* A keyword of lorad's: the string is a text of this grammar, in Lark's language or GBNF. */
#define SCHEMA_GRAMMAR "x-lorad-grammar"

/* A word of ours in a joined schema: [{"patternProperties": {..}, "additionalProperties": s}, ..],
 * what parts say of names that their own patterns do not match, while those of others do. */
#define SCHEMA_OTHERS "\x01others"

/* grammar_join.c: what is said of members that are not named; NULL: nothing. */
const cJSON *schema_additional(const cJSON *s);
/* Does it speak of members beyond their number? */
bool schema_speaks_of_members(const cJSON *s);
/* The members of a schema and of a part of it, into `out`, a copy of a. */
bool schema_join_members(schema_compiler *c, cJSON *out, const cJSON *a, const cJSON *b);
/* What is said of a member that `s` does not list, but for its patterns; NULL: nothing. */
const cJSON *schema_of_unlisted(schema_compiler *c, const cJSON *s, const char *name);

/* Does it say anything about items (items, prefixItems)? */
bool schema_has_items(const cJSON *s);
void schema_join_items(cJSON *out, const cJSON *a, const cJSON *b); /* place by place */

/* Rules of a member's key and of its value. */
typedef struct {
    int32_t key, bounds, value;
} member_rules;

enum { OPEN_MAX = 32 }; /* kinds of names that patterns tell apart */

/* grammar_keys.c: of members beside those of these names, as patternProperties, propertyNames and
 * additionalProperties have them: out [OPEN_MAX].  Returns how many; -1: it is not known which
 * names match. */
int schema_open_members(schema_compiler *c, const cJSON *s, const char *const *names, int n,
                        member_rules *out);

/* grammar_refs.c: of a keyword, whether its members are names, each with a schema; whether what it
 * holds is data, no schema. */
bool schema_is_map(const char *word);

/* Of enum, const, default and examples: "$ref" inside is no reference. */
bool schema_holds_data(const char *word);
/* grammar_refs.c: a copy whose references are paths, the caller's; NULL: none is needed.  What
 * leads nowhere that is known stays as it is.  ERR_LIMIT: too much of them. */
err_code schema_resolved(const cJSON *root, const grammar_documents *d, cJSON **out, err *e);

/* grammar_plain.c: the same in the words that are built, or `s`.  `part`: it stands beside others.
 * NULL and an error. */
const cJSON *schema_plain(schema_compiler *c, const cJSON *s, bool part);
/* Does it hold others, of which more may be joined to it? */
bool schema_has_parts(const cJSON *s);

/* grammar_unevaluated.c: what the schema says, without unevaluatedProperties and unevaluatedItems;
 * the caller's. */
cJSON *schema_without_unevaluated(schema_compiler *c, const cJSON *s);

/* What it leaves out, one by one: the first (`at` is NULL), or the one behind `at`. */
const cJSON *schema_next_out(const cJSON *s, const cJSON *at);
/* The values that it lists; NULL: none. */
const cJSON *schema_left_out(const cJSON *s);

/* grammar_opposite.c: a schema of values that `s` does not hold for, the caller's; NULL: none is
 * known.  `beside`: what it will be joined with, or NULL. */
cJSON *schema_opposite(schema_compiler *c, const cJSON *s, const cJSON *beside);
/* Of the values that `s` lists those for which `other` does not hold; *unsaid: of some that is not
 * known, and they are left out.  The caller's; NULL: it lists none. */
cJSON *schema_values_but(schema_compiler *c, const cJSON *s, const cJSON *other, bool *unsaid);
/* {word: value}; takes the value. */
cJSON *schema_saying(const char *word, cJSON *value);
/* [a, b]; takes both, of which either may be NULL. */
cJSON *schema_these(cJSON *a, cJSON *b);

/* grammar_branches.c: any of the branches of anyOf, or exactly one of those of oneOf. */
bool schema_build_branches(schema_compiler *c, const cJSON *s, const char *word, int32_t from,
                           int32_t to);

/* grammar_apart.c: is it proven that what is written for one never holds for the other? */
bool schema_apart(schema_compiler *c, const cJSON *written, const cJSON *other);
/* Does no value hold for both? */
bool schema_holds_apart(schema_compiler *c, const cJSON *a, const cJSON *b);
/* A member by which two objects are apart wherever both have it; NULL: none is known. */
const char *schema_telling_member(schema_compiler *c, const cJSON *a, const cJSON *b);

/* grammar_contains.c: an array of `min` to `max` items (< 0: no bound) with `contains`. */
bool schema_build_contains(schema_compiler *c, const cJSON *s, bool unlike, int64_t min,
                           int64_t max, int32_t from, int32_t to);
/* An item, to a state (< 0: a new one), which is returned; `unlike`: no earlier one is the same. */
int32_t schema_put_item(schema_compiler *c, int32_t from, int32_t item, bool unlike, int32_t to);

int32_t schema_space(schema_compiler *c, int32_t from); /* one, or none */
void schema_byte(g_builder *b, int32_t from, char ch, edge_step step, int32_t to);
/* grammar_values.c: does the value hold for the schema? */
typedef enum { HOLDS_NOT, HOLDS, HOLDS_UNKNOWN } holding;

/* The answer for a value that the schema lists; HOLDS_UNKNOWN: it hangs on what is not judged
 * here. */
holding schema_holds(schema_compiler *c, const cJSON *s, const cJSON *value);
/* The same of what the schema says beside the values that it lists. */
holding schema_holds_beside(schema_compiler *c, const cJSON *s, const cJSON *value);

/* grammar_multiple.c: numbers that multipleOf lets through. */
holding schema_is_multiple(const cJSON *value, const cJSON *step);
cJSON *schema_common_multiple(const cJSON *a, const cJSON *b); /* the step of both; or NULL */
/* Multiples of the step between the bounds (NULL: none); `whole`: without a fraction. */
bool schema_build_multiple(schema_compiler *c, const cJSON *step, bool whole, const g_limit *lo,
                           const g_limit *hi, int32_t from, int32_t to);
/* Numbers that are a multiple of none of the steps under `not`. With fractions only some of these
 * numbers are built. */
bool schema_build_no_multiple(schema_compiler *c, const cJSON *s, bool whole, const g_limit *lo,
                              const g_limit *hi, int32_t from, int32_t to);

/* A rule's start and end; 0 once the builder has failed. */
int32_t schema_start(const schema_compiler *c, int32_t rule);
int32_t schema_end(const schema_compiler *c, int32_t rule);

/* The rule of a schema, which is built later. */
int32_t schema_rule(schema_compiler *c, const cJSON *s);
/* grammar_tags.c: free text with tags in it; or tags, or else what `answer` accepts. */
bool grammar_put_tags(schema_compiler *c, const cJSON *spec, const g_auto *answer, int32_t from,
                      int32_t to);

/* Is the expression found in a member's name? */
bool schema_matches(schema_compiler *c, const char *pattern, const char *name, bool *found);
/* Our expression for a format; NULL: it says nothing. */
const char *schema_format(const char *name);

/* A string: pattern, format and lengths joined into one automaton. */
bool schema_build_string(schema_compiler *c, const cJSON *s, int32_t from, int32_t to);

/* A number: bounds, multipleOf; `whole`: an integer. */
bool schema_build_number(schema_compiler *c, const cJSON *s, bool whole, int32_t from, int32_t to);

/* A JSON schema; NULL: any object.  `documents`: what it may refer to; may be NULL.
 * ERR_UNSUPPORTED names the keyword and its path. */
err_code grammar_build_schema(g_auto *out, const cJSON *schema, const grammar_documents *documents,
                              err *e);

#endif
