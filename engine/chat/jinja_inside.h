/* jinja_inside.h -- what the jinja_*.c files share: characters, values, the tree, one rendering.
 *
 * Values are small and copied; what they point to lies in the arena of the template (constants) or
 * of the run, is never changed once others may see it (namespaces and the list under construction
 * apart), and dies with it.
 *
 * A run fails once (r->rc); from then on its functions do nothing and give "undefined", so callers
 * need look only where they loop.
 */
#ifndef ENGINE_CHAT_JINJA_INSIDE_H
#define ENGINE_CHAT_JINJA_INSIDE_H

#include "engine/base/arena.h"
#include "engine/chat/jinja.h"

/* ------------------------------------------------------------------- characters -- */

/* A code point, and whether a stranger wrote it. */
typedef uint32_t jchar;
#define JCHAR_FOREIGN 0x80000000u
#define JCHAR_CODE(c) ((c)&0x1FFFFFu)

/* ----------------------------------------------------------------------- values -- */

typedef enum {
    JV_UNDEFINED,
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_LONG, /* whole, and beyond 64 bits: it can be written and compared, not reckoned with */
    JV_FLOAT,
    JV_STR,
    JV_LIST,
    JV_TUPLE,
    JV_ITER, /* what Jinja gives as a generator: always true, no length, read once */
    JV_MAP,
    JV_NAMESPACE,
    JV_LOOP,
    JV_MACRO,
    JV_METHOD,
    JV_GLOBAL,
} jv_kind;

typedef struct jlist jlist;
typedef struct jmap jmap;
typedef struct jloop jloop;
typedef struct jmacro jmacro;
typedef struct jmethod jmethod;

struct jv {
    jv_kind kind : 8;
    /* JV_STR: Jinja's Markup, what `safe` and `escape` give: other texts are escaped beside it. */
    bool markup : 1;
    uint32_t n; /* JV_STR: characters */
    union {
        bool b;
        int64_t i;
        double f;
        const jchar *s;
        jlist *list;
        jmap *map;
        jloop *loop;
        const jmacro *macro;
        const jmethod *method;
        int global;
        const char *what;   /* JV_UNDEFINED: its name, for messages; NULL */
        const char *digits; /* JV_LONG: as JSON has it */
    };
};

struct jlist {
    jv *item;
    uint32_t n, cap;
};

struct jmap {
    jv *key, *val;
    uint32_t n, cap;
};

struct jmethod {
    jv self;
    const char *name;
};

/* --------------------------------------------------------------------- the tree -- */

typedef enum {
    /* expressions */
    JN_CONST,
    JN_NAME,
    JN_LIST,
    JN_TUPLE,
    JN_MAP,    /* list: key, value, key ... */
    JN_ATTR,   /* a.value */
    JN_ITEM,   /* a[b] */
    JN_SLICE,  /* a[list[0]:list[1]:list[2]], each may be NULL */
    JN_CALL,   /* a(list), names */
    JN_FILTER, /* a | fn(list), names; a NULL: what a block holds */
    JN_TEST,
    JN_NOT,
    JN_NEG,
    JN_POS,
    JN_AND,
    JN_OR,
    JN_COMPARE, /* list, ops between */
    JN_ARITH,   /* likewise, from left to right */
    JN_CONCAT,
    JN_IF, /* b if a else c (may be NULL) */
    /* statements */
    JN_BODY,
    JN_TEXT,
    JN_PRINT,
    JN_FOR,          /* for names in a if b: c, else d; op: recursive */
    JN_BRANCH,       /* list: condition, body, ...; d: else */
    JN_SET,          /* names = a */
    JN_SET_ATTR,     /* name.value = a */
    JN_SET_BLOCK,    /* name = c through a (a filter, or NULL) */
    JN_MACRO,        /* name(names), list: their defaults, NULL without; c */
    JN_CALL_BLOCK,   /* call(names) a: c */
    JN_WITH,         /* names = list: c */
    JN_FILTER_BLOCK, /* c through a */
    JN_SCOPE,        /* c */
    JN_BREAK,
    JN_CONTINUE,
} jn_kind;

typedef enum {
    JOP_EQ,
    JOP_NE,
    JOP_LT,
    JOP_LE,
    JOP_GT,
    JOP_GE,
    JOP_IN,
    JOP_NOT_IN,
    JOP_ADD,
    JOP_SUB,
    JOP_MUL,
    JOP_DIV,
    JOP_FLOORDIV,
    JOP_MOD,
    JOP_POW,
} jop;

typedef struct jnode jnode;
struct jnode {
    jn_kind kind;
    int line;
    int fn; /* JN_FILTER, JN_TEST: which */
    bool flag;
    const char *name;
    jv value;
    jnode *a, *b, *c, *d;
    jnode **list;
    const char **names;
    uint8_t *ops;
    int n; /* of list; JN_FOR, JN_SET, JN_MACRO, JN_WITH: of names */
};

struct jinja {
    arena mem;
    jnode *root;
    const char **names; /* interned: names are compared by address */
    int n_names, cap_names;
    const char **vars; /* of these, the names of variables that it looks at */
    int n_vars, cap_vars;
};

/* ------------------------------------------------------------------- the tokens -- */

typedef enum {
    JT_END,
    JT_DATA,
    JT_PRINT_BEGIN,
    JT_PRINT_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STR,
    JT_INT,
    JT_FLOAT,
    JT_OP,
} jtoken_kind;

typedef struct jtoken {
    jtoken_kind kind;
    int line;
    jv value;         /* JT_DATA, JT_STR, JT_INT, JT_FLOAT */
    const char *name; /* JT_NAME, interned; JT_OP: its text */
} jtoken;

/* The template's tokens, in t->mem, closed by JT_END. */
err_code jinja_lex(jinja *t, const char *text, size_t len, jtoken **out, err *e);
const char *jinja_interned(const jinja *t, const char *s); /* NULL: the template has no such name */

/* ------------------------------------------------------------------ a rendering -- */

typedef struct jbuf { /* text under construction, in the run's arena */
    jchar *s;
    uint32_t n, cap;
} jbuf;

typedef struct jscope jscope;

struct jinja_run {
    const jinja *t;
    arena mem;
    jscope *globals, *scope;
    jbuf *out;
    jv block; /* what a filter of a block gets */
    int64_t (*now)(void);
    int64_t steps;
    int depth; /* of the evaluation */
    int nest;  /* of a value that is compared or written */
    int flow;  /* 0, JN_BREAK or JN_CONTINUE */
    err_code rc;
    err why;
    jlist *list; /* under construction: jinja_set_list() */
    char *text;  /* rendered */
    tok_span *spans;
};

typedef struct jargs { /* of one call */
    jv *pos;
    int n_pos;
    const char **names;
    jv *named;
    int n_named;
} jargs;

extern const jv jv_undefined, jv_none;

/* Notes the first error with the template's line, and returns "undefined". Further errors change
 * nothing. */
jv jinja_fail(jinja_run *r, err_code rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool jinja_step(jinja_run *r, size_t work); /* false: failed */

/* jinja_value.c */
jv jv_bool(bool b);

/* Constructors of small values; they allocate nothing and cannot fail. */
jv jv_int(int64_t i);
jv jv_float(double f);

/* A text over n characters that stay where they are: s must live as long as the run. s NULL: an
 * empty text. */
jv jv_chars(const jchar *s, size_t n);
jv jv_ascii(jinja_run *r, const char *s);                        /* the template's own */
jv jv_utf8(arena *mem, const char *s, size_t len, bool foreign); /* undefined: no memory */
jv jv_list(jinja_run *r, jv_kind kind, size_t room);

/* Appends to a list that is under construction. False: the run has failed. */
bool jv_push(jinja_run *r, jv list, jv v);

/* The tuple (a, b). */
jv jv_pair(jinja_run *r, jv a, jv b);

/* A map with room for so many members; it grows. */
jv jv_map(jinja_run *r, size_t room);

/* Sets a member, replacing one with an equal key. Fails for keys that Python cannot hash. */
bool jv_put(jinja_run *r, jv map, jv key, jv v);
const jv *jv_find(jinja_run *r, jv map, jv key); /* NULL: none */
jv jv_from_json(jinja_run *r, const cJSON *v, bool foreign);

/* Is it this text? */
bool jv_is(jv s, const char *ascii);

/* Python's bool(v). */
bool jv_true(jv v);

/* Python's a == b; texts are equal whoever wrote them. Counts as steps by size. */
bool jv_equal(jinja_run *r, jv a, jv b);
int jv_order(jinja_run *r, jv a, jv b); /* <0, 0, >0; fails where Python does */
bool jv_is_number(jv v);                /* bool too */
double jv_number(jv v);
const char *jv_type(jv v); /* Python's name, for messages */
/* The items that iterating gives; a generator is used up.  False: not iterable. */
bool jv_items(jinja_run *r, jv v, const jv **item, uint32_t *n);

/* Python's `what in where`. */
bool jv_contains(jinja_run *r, jv where, jv what);

/* Appends to a text under construction; a failed allocation fails the run. */
void jbuf_add(jinja_run *r, jbuf *b, const jchar *s, size_t n);
void jbuf_ascii(jinja_run *r, jbuf *b, const char *s);
void jbuf_str(jinja_run *r, jbuf *b, jv v);  /* Python's str() */
void jbuf_repr(jinja_run *r, jbuf *b, jv v); /* repr() */
jv jbuf_value(const jbuf *b);
jv jv_str(jinja_run *r, jv v); /* Jinja's soft_str(): Markup stays it */
jv jv_marked(jv s, bool markup);
jv jv_escaped(jinja_run *r, jv s); /* as Markup; what is it already stays as it is */
typedef struct jinja_dump {
    bool ascii, sort;
    jv indent; /* none, a number or a string */
    const jchar *item, *colon;
    size_t n_item, n_colon;
} jinja_dump;

/* Appends the value as json.dumps() would write it. level: how deep it stands, for the indent. */
void jbuf_json(jinja_run *r, jbuf *b, jv v, const jinja_dump *how, int level);

/* jinja_text.c: strings */
bool jchar_is_space(jchar c); /* str.isspace(), str.strip() */
jchar jchar_upper(jchar c);

/* Simple case mapping, one character to one; jv_upper() and jv_lower() use the full one. */
jchar jchar_lower(jchar c);

/* str.isprintable(): what repr() does not escape. */
bool jchar_is_printable(jchar c);
int64_t jv_search(jv s, jv what, uint32_t from);    /* -1: not there */
jv jv_strip(jv s, jv chars, bool left, bool right); /* chars: none for spaces */
jv jv_replace(jinja_run *r, jv s, jv old, jv with, int64_t count);

/* Results of the methods of str (upper, lower, title, capitalize, splitlines): new texts in the
 * run's arena that keep each character's author. */
jv jv_upper(jinja_run *r, jv s);
jv jv_lower(jinja_run *r, jv s);
jv jv_title(jinja_run *r, jv s, bool words_by_jinja);
jv jv_capitalize(jinja_run *r, jv s);
jv jv_lines(jinja_run *r, jv s, bool keep);

/* Characters [from, to); nothing is copied. */
jv jv_substring(jv s, uint32_t from, uint32_t to);
/* A method of a string, a map or a list; jv_has_method() says whether there is one. */
bool jv_has_method(jv self, const char *name);
jv jinja_format(jinja_run *r, jv how, const jargs *args); /* jinja_format.c: str.format() */
jv jv_call_method(jinja_run *r, const jmethod *m, const jargs *args);

/* jinja_filter.c */
int jinja_filter_find(const char *name); /* -1: none */
int jinja_test_find(const char *name);

/* Calls a filter by its number; an error of its arguments is Python's sentence. */
jv jinja_filter(jinja_run *r, int fn, jv v, const jargs *args);

/* Calls a test (`is defined`) by its number. */
bool jinja_test(jinja_run *r, int fn, jv v, const jargs *args);

/* jinja_eval.c */
jv jinja_no_memory(jinja_run *r);

/* A new scope within `up`; in the run's arena. NULL: the run has failed. */
jscope *jinja_push_scope(jinja_run *r, jscope *up);

/* Sets a name in this scope alone; inner scopes see it, outer ones do not. */
void jinja_assign(jinja_run *r, jscope *s, const char *name, jv value);

/* Runs statements and writes to r->out; returns at the first error, and after break or continue
 * with r->flow set. */
void jinja_exec(jinja_run *r, const jnode *n);
jv jinja_attr(jinja_run *r, jv v, jv name);   /* v.name */
jv jinja_item_of(jinja_run *r, jv v, jv key); /* v[key] */
jv jinja_arith(jinja_run *r, jop op, jv a, jv b);
/* An argument by place or name; false: not given. */
bool jargs_take(const jargs *a, int place, const char *name, jv *out);

/* A call of a filter, a test or a method on `v`. */
typedef struct jinja_call {
    jinja_run *r;
    jv v;
    const jargs *args;
    const char *name; /* of what is called */
} jinja_call;

/* An argument by place or name; `otherwise` where it is not given. */
static inline jv jinja_arg(const jinja_call *c, int place, const char *name, jv otherwise)
{
    jv v;
    return jargs_take(c->args, place, name, &v) ? v : otherwise;
}

/* jinja_parse.c */
err_code jinja_parse(jinja *t, const jtoken *tokens, err *e);

#endif
