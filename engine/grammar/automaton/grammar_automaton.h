/* grammar_automaton.h -- the pushdown automaton behind engine/grammar/grammar.h; for the grammar
 * files and their tests.
 *
 * A grammar is a set of rules; each rule is a small non-deterministic automaton over bytes whose
 * edges may call other rules. Example, an array of digits, `'[' D* ']'`:
 *
 *   rule A:  s0 --'['--> s1 --call D--> s1 --']'--> end       rule D:  s --'0'..'9'--> end
 *
 * A call pushes a frame (return state, counter, bounds); the end of a rule pops it. The counter
 * makes "at most 500 characters" or "3 to 7 items" a loop instead of hundreds of copies:
 *   STEP_COUNT  allowed while the counter is below the frame's upper bound; increments it
 *   STEP_LEAVE  allowed once the counter has reached the lower bound
 *   STEP_ENTER  sets the counter to zero and takes the bounds of the edge
 *   STEP_OPEN   an array with uniqueItems begins here
 *   STEP_NEW    allowed if the last item differs from all earlier items (grammar_unique.h)
 *
 * A configuration is a state, its frame's counter and bounds, and the stack below. The position of
 * a text is a set of configurations. Dropping some of them makes the language smaller, never wrong.
 *
 * Threads: the builder has one owner thread; a finished automaton is immutable.
 */
#ifndef ENGINE_GRAMMAR_AUTOMATON_GRAMMAR_AUTOMATON_H
#define ENGINE_GRAMMAR_AUTOMATON_GRAMMAR_AUTOMATON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"

enum {
    GRAMMAR_STATE_MAX = 60000, /* of one automaton */
    GRAMMAR_EDGE_MAX = 250000,
    GRAMMAR_DEPTH_MAX = 128, /* frames; what would need more is not generated */
    GRAMMAR_SET_MAX = 256,   /* configurations kept */
    GRAMMAR_TOKEN_MAX = 64,  /* longer tokens are never allowed under a grammar */
    GRAMMAR_NEVER = 1 << 20, /* `need` of a state from which no end is reached */
    GRAMMAR_DIGITS = 19,     /* of an integer part */
    GRAMMAR_FRACTION = 16,
};

typedef enum { EDGE_BYTES, EDGE_EPS, EDGE_CALL } edge_kind;
typedef enum { STEP_PLAIN, STEP_COUNT, STEP_LEAVE, STEP_ENTER, STEP_OPEN, STEP_NEW } edge_step;

typedef struct g_edge {
    uint8_t kind, step;
    uint8_t lo, hi; /* EDGE_BYTES */
    int32_t to;
    int32_t rule;   /* EDGE_CALL */
    int32_t bounds; /* STEP_ENTER and EDGE_CALL: index of the new frame's bounds; -1: none */
} g_edge;

typedef struct g_bounds {
    int32_t min, max; /* max < 0: none */
} g_bounds;

typedef struct g_rule {
    int32_t start, end; /* the end has no edges */
} g_rule;

typedef struct g_auto {
    g_edge *edge;   /* sorted by state: bytes first */
    int32_t *first; /* [n_states + 1] */
    int32_t *n_bytes;
    int32_t *need; /* [n_states] frames that the way to the rule's end takes at least */
    int32_t *rule_of;
    bool *is_end, *simple; /* simple: edges for bytes and nothing else */
    int n_states, n_edges;
    g_rule *rule;
    int n_rules;
    g_bounds *bounds;
    int n_bounds;
    int32_t root;  /* rule; called by nobody */
    bool compares; /* some edge is STEP_NEW */
    int n_shared;  /* states of the rules that stand first in every JSON grammar */
} g_auto;

/* Frees the arrays; a zeroed automaton is allowed. */
void g_auto_clear(g_auto *a);

/* ------------------------------------------------------------------- the builder -- */

typedef struct g_builder {
    g_edge *edge; /* with .from beside it, unsorted */
    int32_t *from;
    int32_t *owner; /* [n_states] rule */
    g_rule *rule;
    g_bounds *bounds;
    int n_states, n_edges, n_rules, n_bounds;
    int cap_states, cap_edges, cap_rules, cap_bounds;
    int32_t current; /* rule that new states belong to */
    bool failed;     /* too large, or no memory: sticky */
} g_builder;

/* An empty builder. Failures (no memory, more states than GRAMMAR_STATE_MAX) are sticky: later
 * calls do nothing and return state 0, and gb_finish() reports it. */
void gb_init(g_builder *b);

/* Frees what a builder has; after gb_finish(), too. */
void gb_clear(g_builder *b);

/* A new state of the current rule. */
int32_t gb_state(g_builder *b);
int32_t gb_rule(g_builder *b); /* with start and end; becomes the current one */
void gb_bytes(g_builder *b, int32_t from, int lo, int hi, edge_step step, int32_t to);

/* An edge that takes no byte. */
void gb_eps(g_builder *b, int32_t from, int32_t to);

/* Eps edges that begin a counted loop and leave it: see STEP_ENTER and STEP_LEAVE above. */
void gb_enter(g_builder *b, int32_t from, int32_t bounds, int32_t to);

/* Only taken once the counter has reached the frame's lower bound. */
void gb_leave(g_builder *b, int32_t from, int32_t to);
void gb_new(g_builder *b, int32_t from, int32_t to); /* STEP_NEW */
void gb_call(g_builder *b, int32_t from, int32_t rule, int32_t bounds, int32_t to);

/* An index for these bounds; equal ones may share an index. max < 0: no upper bound. */
int32_t gb_bounds(g_builder *b, int32_t min, int32_t max);
/* The bytes one after the other. */
void gb_text(g_builder *b, int32_t from, const char *s, size_t len, int32_t to);
/* Copies the rules of a finished automaton and returns its root's.  Rules of its `n_shared` states
 * are taken to be the builder's own, which has the same ones first.  `json`: of its texts as they
 * stand inside of a JSON string, control characters, quotes and backslashes escaped. */
int32_t gb_import(g_builder *b, const g_auto *a, bool json);
/* One of the texts; common beginnings share their states. */
void gb_texts(g_builder *b, int32_t from, char *const *s, const size_t *len, size_t n, int32_t to);

/* Moves what was built into *a, cuts what leads nowhere, and computes `need`.  ERR_LIMIT: too
 * large; ERR_INPUT: there is no finite text at all, or a rule begins with itself. */
err_code gb_finish(g_builder *b, int32_t root, int n_shared, g_auto *a, err *e);

/* ---------------------------------------------------------------- code points -- */

typedef struct g_range {
    uint32_t lo, hi;
} g_range;

enum { GRAMMAR_RANGES_MAX = 768 };

typedef struct g_class {
    g_range r[GRAMMAR_RANGES_MAX];
    int n;
    bool failed;
} g_class;

/* Adds code points lo to hi, both included; ranges stay sorted and apart. Too many ranges:
 * c->failed. */
void g_class_add(g_class *c, uint32_t lo, uint32_t hi);

/* Adds all of another class. */
void g_class_add_all(g_class *c, const g_class *from);
bool g_class_empty(const g_class *c); /* no character of it can be written */
void g_class_not(g_class *c);         /* among all Unicode scalar values but NUL */

/* One character of the class as UTF-8; `json`: as it stands inside a JSON string, escaped where it
 * must be.  `step` is that of the first byte. */
void gb_class(g_builder *b, int32_t from, const g_class *c, bool json, edge_step step, int32_t to);

/* ------------------------------------------------------------------ the languages -- */

/* A regular expression that the whole text must match (no look-around, no back references: linear).
 * ERR_INPUT says what is not understood; ERR_UNSUPPORTED what is not supported. */
err_code gb_regex(g_builder *b, int32_t from, const char *pattern, size_t len, bool json,
                  int32_t to, err *e);

/* The same, of texts of `least` to `most` characters (< 0: no bound); where several parts of it may
 * grow, not of all of these. */
err_code gb_regex_sized(g_builder *b, int32_t from, const char *pattern, size_t len, int64_t least,
                        int64_t most, bool json, int32_t to, err *e);

/* Whether the pattern matches somewhere in a text of plain ASCII.  ERR_UNSUPPORTED where dialects
 * may differ. */
err_code g_regex_finds(const char *pattern, size_t len, const char *text, bool *found, err *e);

/* A short text of plain ASCII in which the pattern is found; false: none is known. */
bool g_regex_example(const char *pattern, size_t len, char *out, size_t size);

/* Decimal numbers from lo to hi (NULL: no bound), written as JSON. */
typedef struct g_limit {
    double value;
    bool strict; /* not the value itself */
    bool exact;  /* the value is `whole`, which a double may not hold */
    int64_t whole;
    const char *text; /* the schema's digits, for whole numbers beyond 64 bits; NULL: not kept */
} g_limit;

/* Whole numbers without a fraction or an exponent; and numbers with both, as JSON writes them. */
void gb_integer(g_builder *b, int32_t from, const g_limit *lo, const g_limit *hi, int32_t to);

/* With at most GRAMMAR_DIGITS digits before the point and GRAMMAR_FRACTION behind it. */
void gb_number(g_builder *b, int32_t from, const g_limit *lo, const g_limit *hi, int32_t to);

/* A context-free grammar, in GBNF or in Lark's language (engine/grammar/cfg/grammar_cfg.h). 
 * ERR_INPUT and ERR_UNSUPPORTED say in which line what is wrong. */
err_code grammar_build_cfg(g_auto *out, const char *source, err *e);

/* Free text with tags: grammar_spec's json, GRAMMAR_TAGS.  Its root rule has the text between and
 * around the forms, and nothing else.  `answer`: the form of a text without tags; NULL: free. */
err_code grammar_build_tags(g_auto *out, const cJSON *spec, const g_auto *answer, err *e);

/* ---------------------------------------------------------------------- the walk -- */

typedef struct g_node { /* a frame below */
    int32_t ret, c, bounds, parent;
    int32_t depth;
    int32_t from; /* as g_conf's */
} g_node;

typedef struct g_conf {
    int32_t state, c, bounds, node;
    int32_t from; /* bytes of the answer up to the frame's array, its bracket included; 0: none */
} g_conf;

enum {
    NODE_ROOT = -1,    /* nothing below */
    NODE_UNKNOWN = -2, /* a state by itself: what is below is not known */
    BOUNDS_NONE = -1,
    BOUNDS_UNKNOWN = -2,
    BOUNDS_MAYBE = -3, /* of an unknown frame that has left its loop, if it might */
    WALK_CONFS = 8192,
    WALK_NODES = 8192,
    WALK_DEEP = 512,  /* bytes that a walk goes */
    RUN_NODES = 1024, /* frames that a run keeps between tokens */
};

/* Where one thread tries bytes: sets of configurations, one per byte of a token. */
typedef struct g_walk {
    const g_auto *a;
    const g_node *base; /* frames of the text so far, not changed */
    int n_base;
    struct unique_text *unique; /* the answer's; NULL: not known (grammar_unique.h) */
    bool unlike;                /* whoever asks is told that an item is new */
    int32_t pos, here;          /* bytes of the answer up to set 0, and to the set being made */
    int n_node, n_conf;
    int conf_at[WALK_DEEP + 2], node_at[WALK_DEEP + 2];
    bool left_at[WALK_DEEP + 2]; /* some way led out of what is known */
    bool left;
    uint64_t work; /* configurations made so far */
    int deepest;   /* most frames that one of them needs to be finished */
    g_conf conf[WALK_CONFS];
    g_node node[WALK_NODES];
    int32_t moved[WALK_NODES + RUN_NODES]; /* where accepted frames went */
} g_walk;

/* Begins on an automaton, with the frames of the text so far, which are borrowed and not
 * changed. One thread owns the walk. */
void walk_begin(g_walk *w, const g_auto *a, const g_node *base, int n_base);
/* It goes on behind this text; to be called once it has begun. */
void walk_text(g_walk *w, struct unique_text *text);

/* A frame by its number, of the text so far or made by this walk. */
const g_node *walk_node(const g_walk *w, int32_t i);
/* Set 0 gets the configuration, closed over what needs no byte. */
void walk_add(g_walk *w, g_conf c);
/* Set 0 becomes these, which are closed already. */
void walk_set(g_walk *w, const g_conf *c, int n);
/* Set depth + 1 from set depth.  False: it is empty. */
bool walk_byte(g_walk *w, int depth, uint8_t byte);
/* Set `depth` becomes set 0, with what was made on the way to it. */
void walk_go_on(g_walk *w, int depth);
/* The bytes that can follow set 0 where there is no choice but of a space: that is taken behind ':'
 * and ',', as most write JSON.  `last`: the byte before; text [GRAMMAR_TOKEN_MAX].  Returns how
 * many. */
int walk_only(g_walk *w, int last, uint8_t *text);

#endif
