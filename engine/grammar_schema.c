/* grammar_schema.c -- a JSON schema as an automaton.
 *
 * What is written is a subset of what the schema allows, chosen so that it always validates: members in
 * the schema's order, none that it does not name unless additionalProperties is given, at most one
 * space between tokens, oneOf as anyOf, a pattern matched as a whole.  A keyword that would be
 * disregarded is refused by name.
 *
 * Every subschema is a rule; $ref calls the rule of its target, so recursion costs nothing.  The rules for
 * strings, numbers and arbitrary values stand first in every automaton, so that all grammars share
 * their masks.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar_inside.h"

enum {
    NODES_MAX = 4096,  /* subschemas with a rule */
    MERGES_MAX = 512,  /* allOf, $ref beside other keywords */
    NEST_MAX = 100,    /* of schemas in one another, merged ones included */
    REF_HOPS_MAX = 64, /* a $ref to a $ref ... */
    LENGTH_MAX = 1 << 30,
};

typedef struct {
    const cJSON *node;
    int32_t rule;
    char *path;
} known_rule;

typedef struct {
    g_builder b;
    const cJSON *root;
    int32_t string, bounded, integer, number, value, object, array; /* rules */
    known_rule *known; /* [NODES_MAX] in the order they were first named; built in that order */
    int n_known;
    cJSON *merged[MERGES_MAX]; /* owned */
    int n_merged;
    int nest;
    char path[256];
    size_t path_len;
    err *e;
    err_code rc;
} compiler;

static bool build(compiler *c, const cJSON *s, int32_t from, int32_t to);

static bool fail(compiler *c, err_code rc, const char *what)
{
    if (!c->rc) c->rc = err_set(c->e, rc, "%s at %s", what, c->path);
    return false;
}

static bool unsupported(compiler *c, const char *keyword, const char *why)
{
    if (!c->rc) {
        c->rc = err_set(c->e, ERR_UNSUPPORTED, "the keyword '%.60s' at %s is not supported%s",
                        keyword, c->path, why);
    }
    return false;
}

/* ---------------------------------------------------------------------- the path -- */

static size_t enter(compiler *c, const char *name, int index)
{
    size_t old = c->path_len;
    char part[80];
    if (index >= 0)
        (void)snprintf(part, sizeof(part), "/%.40s/%d", name, index);
    else
        (void)snprintf(part, sizeof(part), "/%.70s", name);
    size_t n = strlen(part);
    if (old + n < sizeof(c->path)) {
        memcpy(c->path + old, part, n + 1);
        c->path_len = old + n;
    }
    return old;
}

static void leave(compiler *c, size_t old)
{
    c->path_len = old;
    c->path[old] = 0;
}

/* ---------------------------------------------------------- pieces every schema needs -- */

static int32_t space(g_builder *b, int32_t from)
{
    int32_t to = gb_state(b);
    gb_bytes(b, from, ' ', ' ', STEP_PLAIN, to);
    gb_eps(b, from, to);
    return to;
}

static void byte(g_builder *b, int32_t from, char ch, edge_step step, int32_t to)
{
    gb_bytes(b, from, (unsigned char)ch, (unsigned char)ch, step, to);
}

/* One character of a JSON string, escaped or not; never NUL or half a surrogate pair. */
static void string_char(g_builder *b, int32_t from, edge_step step, int32_t to)
{
    g_class plain = {.n = 0};
    g_class_add(&plain, 0x20, '"' - 1);
    g_class_add(&plain, '"' + 1, '\\' - 1);
    g_class_add(&plain, '\\' + 1, 0x10FFFF);
    gb_class(b, from, &plain, false, step, to);
    int32_t back = gb_state(b);
    byte(b, from, '\\', step, back);
    for (const char *s = "\"\\/bfnrt"; *s; s++) byte(b, back, *s, STEP_PLAIN, to);
    int32_t any[4]; /* k more hexadecimal digits */
    any[0] = to;
    static const char sets[][2] = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
    for (int k = 1; k < 4; k++) {
        any[k] = gb_state(b);
        for (int i = 0; i < 3; i++)
            gb_bytes(b, any[k], sets[i][0], sets[i][1], STEP_PLAIN, any[k - 1]);
    }
    int32_t zero = gb_state(b), u = zero;
    byte(b, back, 'u', STEP_PLAIN, u);
    for (int k = 3; k >= 0; k--) { /* digits so far are zeros; k more after this one */
        gb_bytes(b, u, '1', '9', STEP_PLAIN, any[k]);
        for (int i = 1; i < 3; i++) {
            int hi = k == 3 ? sets[i][0] + 2 : sets[i][1]; /* D800 to DFFF begin with d */
            gb_bytes(b, u, sets[i][0], hi, STEP_PLAIN, any[k]);
        }
        if (k == 3) {
            int32_t d = gb_state(b);
            byte(b, u, 'd', STEP_PLAIN, d);
            byte(b, u, 'D', STEP_PLAIN, d);
            gb_bytes(b, d, '0', '7', STEP_PLAIN, any[2]);
            for (int i = 1; i < 3; i++)
                gb_bytes(b, u, sets[i][0] + 4, sets[i][1], STEP_PLAIN, any[3]);
        }
        if (k > 0) {
            int32_t next = gb_state(b);
            byte(b, u, '0', STEP_PLAIN, next);
            u = next;
        }
    }
}

/* A rule's start and end; 0 once the builder has failed. */
static int32_t start_of(const compiler *c, int32_t rule)
{
    return c->b.failed ? 0 : c->b.rule[rule].start;
}

static int32_t end_of(const compiler *c, int32_t rule)
{
    return c->b.failed ? 0 : c->b.rule[rule].end;
}

/* "[" items "]" of one rule: L counts the commas. */
static void list(compiler *c, int32_t from, int32_t item, int64_t min, int64_t max, int32_t to)
{
    g_builder *b = &c->b;
    int32_t open = gb_state(b), close = gb_state(b);
    byte(b, from, '[', STEP_PLAIN, open);
    open = space(b, open);
    byte(b, close, ']', STEP_PLAIN, to);
    if (min == 0) gb_eps(b, open, close);
    if (max == 0) return;
    int32_t first = gb_state(b), loop = gb_state(b), comma = gb_state(b), out = gb_state(b);
    gb_enter(b, open,
             gb_bounds(b, (int32_t)(min > 0 ? min - 1 : 0), (int32_t)(max < 0 ? -1 : max - 1)),
             first);
    gb_call(b, first, item, BOUNDS_NONE, loop);
    byte(b, loop, ',', STEP_COUNT, comma);
    gb_call(b, space(b, comma), item, BOUNDS_NONE, loop);
    gb_leave(b, loop, out);
    gb_eps(b, space(b, out), close);
}

static void member(compiler *c, int32_t from, int32_t key, int32_t value, int32_t to)
{
    g_builder *b = &c->b;
    int32_t colon = gb_state(b), after = gb_state(b);
    gb_call(b, from, key, BOUNDS_NONE, colon);
    byte(b, colon, ':', STEP_PLAIN, after);
    gb_call(b, space(b, after), value, BOUNDS_NONE, to);
}

/* "{" pairs "}" of any keys. */
static void map(compiler *c, int32_t from, int32_t key, int32_t value, int64_t min, int64_t max,
                int32_t to)
{
    g_builder *b = &c->b;
    int32_t open = gb_state(b), close = gb_state(b);
    byte(b, from, '{', STEP_PLAIN, open);
    open = space(b, open);
    byte(b, close, '}', STEP_PLAIN, to);
    if (min == 0) gb_eps(b, open, close);
    if (max == 0) return;
    int32_t first = gb_state(b), loop = gb_state(b), comma = gb_state(b), out = gb_state(b);
    gb_enter(b, open, gb_bounds(b, 0, (int32_t)(max < 0 ? -1 : max - 1)), first);
    member(c, first, key, value, loop);
    byte(b, loop, ',', STEP_COUNT, comma);
    member(c, space(b, comma), key, value, loop);
    gb_leave(b, loop, out);
    gb_eps(b, space(b, out), close);
}

static void literals(compiler *c, int32_t from, int32_t to)
{
    gb_text(&c->b, from, "true", 4, to);
    gb_text(&c->b, from, "false", 5, to);
    gb_text(&c->b, from, "null", 4, to);
}

/* The rules that all grammars begin with, always in the same order. */
static void build_shared(compiler *c)
{
    g_builder *b = &c->b;
    c->string = gb_rule(b);
    int32_t loop = gb_state(b), out = gb_state(b);
    byte(b, start_of(c, c->string), '"', STEP_PLAIN, loop);
    string_char(b, loop, STEP_PLAIN, loop);
    byte(b, loop, '"', STEP_PLAIN, end_of(c, c->string));

    c->bounded = gb_rule(b);
    loop = gb_state(b);
    byte(b, start_of(c, c->bounded), '"', STEP_PLAIN, loop);
    string_char(b, loop, STEP_COUNT, loop);
    gb_leave(b, loop, out);
    byte(b, out, '"', STEP_PLAIN, end_of(c, c->bounded));

    c->integer = gb_rule(b);
    gb_integer(b, start_of(c, c->integer), NULL, NULL, end_of(c, c->integer));
    c->number = gb_rule(b);
    gb_number(b, start_of(c, c->number), NULL, NULL, end_of(c, c->number));

    c->value = gb_rule(b);
    c->object = gb_rule(b);
    c->array = gb_rule(b);
    map(c, start_of(c, c->object), c->string, c->value, 0, -1, end_of(c, c->object));
    list(c, start_of(c, c->array), c->value, 0, -1, end_of(c, c->array));
    int32_t from = start_of(c, c->value), to = end_of(c, c->value);
    const int32_t kinds[] = {c->string, c->number, c->object, c->array};
    for (int i = 0; i < 4; i++) gb_call(b, from, kinds[i], BOUNDS_NONE, to);
    literals(c, from, to);
}

/* --------------------------------------------------------------------- keywords -- */

typedef enum { NOTE, OBJECT, ARRAY, STRING, NUMBER, ANY } word_kind;

typedef struct {
    const char *name;
    word_kind kind;
} keyword;

/* What is not here is refused. */
static const keyword keywords[] = {
    {"title", NOTE},
    {"description", NOTE},
    {"default", NOTE},
    {"example", NOTE},
    {"examples", NOTE},
    {"$schema", NOTE},
    {"$id", NOTE},
    {"id", NOTE},
    {"$comment", NOTE},
    {"$defs", NOTE},
    {"definitions", NOTE},
    {"deprecated", NOTE},
    {"readOnly", NOTE},
    {"writeOnly", NOTE},
    {"discriminator", NOTE},
    {"contentEncoding", NOTE},
    {"contentMediaType", NOTE},
    {"strict", NOTE},
    {"properties", OBJECT},
    {"required", OBJECT},
    {"additionalProperties", OBJECT},
    {"unevaluatedProperties", OBJECT},
    {"minProperties", OBJECT},
    {"maxProperties", OBJECT},
    {"items", ARRAY},
    {"prefixItems", ARRAY},
    {"minItems", ARRAY},
    {"maxItems", ARRAY},
    {"uniqueItems", ARRAY},
    {"minLength", STRING},
    {"maxLength", STRING},
    {"pattern", STRING},
    {"format", STRING},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"multipleOf", NUMBER},
    {"type", ANY},
    {"nullable", ANY},
    {"enum", ANY},
    {"const", ANY},
    {"anyOf", ANY},
    {"oneOf", ANY},
    {"allOf", ANY},
    {"$ref", ANY},
};

static const keyword *keyword_of(const char *name)
{
    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++) {
        if (strcmp(keywords[i].name, name) == 0) return &keywords[i];
    }
    return NULL;
}

static const cJSON *get(const cJSON *s, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(s, name);
}

static bool is_note(const char *name)
{
    const keyword *k = keyword_of(name);
    return (k && k->kind == NOTE) || strncmp(name, "x-", 2) == 0;
}

/* All keywords are known; *only says whether there is one that says anything besides `but`. */
static bool check_words(compiler *c, const cJSON *s)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, s)
    {
        if (!keyword_of(v->string) && !is_note(v->string)) return unsupported(c, v->string, "");
    }
    return true;
}

static bool says_more_than(const cJSON *s, const char *but)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, s)
    {
        if (strcmp(v->string, but) != 0 && !is_note(v->string)) return true;
    }
    return false;
}

/* A whole number from 0; *out untouched when absent. */
static bool take_size(compiler *c, const cJSON *s, const char *name, int64_t *out)
{
    const cJSON *v = get(s, name);
    if (!v) return true;
    double d = cJSON_IsNumber(v) ? v->valuedouble : -1;
    if (!(d >= 0 && d <= 1e15) || d != floor(d)) {
        size_t old = enter(c, name, -1);
        (void)fail(c, ERR_INPUT, "a whole number is wanted");
        leave(c, old);
        return false;
    }
    *out = d < LENGTH_MAX ? (int64_t)d : LENGTH_MAX;
    return true;
}

static bool check_order(compiler *c, int64_t min, int64_t max)
{
    if (max < 0 || min <= max) return true;
    return fail(c, ERR_INPUT, "the lower bound is above the upper one");
}

/* ----------------------------------------------------------------------- merging -- */

/* The target of "#/a/b"; NULL and an error when there is none. */
static const cJSON *target_of(compiler *c, const cJSON *s)
{
    for (int hop = 0; hop < REF_HOPS_MAX; hop++) {
        const cJSON *ref = get(s, "$ref");
        if (!ref || says_more_than(s, "$ref")) return s;
        const char *p = cJSON_IsString(ref) ? ref->valuestring : "";
        if (*p++ != '#') {
            (void)unsupported(c, "$ref", " (only '#/...' of the same schema)");
            return NULL;
        }
        const cJSON *at = c->root;
        while (at && *p == '/') {
            char name[256];
            size_t n = 0;
            for (p++; *p && *p != '/' && n + 1 < sizeof(name); p++) {
                char ch = *p;
                if (ch == '~' && (p[1] == '0' || p[1] == '1')) ch = *++p == '0' ? '~' : '/';
                name[n++] = ch;
            }
            name[n] = 0;
            at = cJSON_IsArray(at) ? cJSON_GetArrayItem(at, (int)strtol(name, NULL, 10))
                                   : get(at, name);
        }
        if (!at || *p) {
            (void)fail(c, ERR_INPUT, "a $ref that leads nowhere");
            return NULL;
        }
        s = at;
        if (!cJSON_IsObject(s)) return s;
    }
    (void)fail(c, ERR_INPUT, "a $ref that leads back to itself");
    return NULL;
}

/* Takes ownership of `s`; NULL and an error if there is no room. */
static cJSON *own(compiler *c, cJSON *s)
{
    if (s && c->n_merged < MERGES_MAX) {
        c->merged[c->n_merged++] = s;
        return s;
    }
    cJSON_Delete(s);
    (void)fail(c, ERR_LIMIT, "too many allOf and $ref");
    return NULL;
}

static cJSON *both(const cJSON *a, const cJSON *b)
{
    cJSON *all = cJSON_CreateObject(), *items = cJSON_AddArrayToObject(all, "allOf");
    cJSON_AddItemToArray(items, cJSON_Duplicate(a, true));
    cJSON_AddItemToArray(items, cJSON_Duplicate(b, true));
    return all;
}

static bool type_has(const cJSON *types, const char *t)
{
    const cJSON *v;
    if (cJSON_IsString(types)) return strcmp(types->valuestring, t) == 0;
    cJSON_ArrayForEach(v, types)
    {
        if (cJSON_IsString(v) && strcmp(v->valuestring, t) == 0) return true;
    }
    return false;
}

static cJSON *common_types(const cJSON *a, const cJSON *b)
{
    static const char *const names[] = {"object", "array",   "string", "integer",
                                        "number", "boolean", "null"};
    cJSON *out = cJSON_CreateArray();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        bool whole = strcmp(names[i], "integer") == 0;
        bool in_a = type_has(a, names[i]) || (whole && type_has(a, "number"));
        bool in_b = type_has(b, names[i]) || (whole && type_has(b, "number"));
        if (in_a && in_b) cJSON_AddItemToArray(out, cJSON_CreateString(names[i]));
    }
    return out;
}

static cJSON *common_values(const cJSON *a, const cJSON *b)
{
    cJSON *out = cJSON_CreateArray();
    const cJSON *x, *y;
    cJSON_ArrayForEach(x, a)
    {
        cJSON_ArrayForEach(y, b)
        {
            if (cJSON_Compare(x, y, true)) {
                cJSON_AddItemToArray(out, cJSON_Duplicate(x, true));
                break;
            }
        }
    }
    return out;
}

static cJSON *all_members(const cJSON *a, const cJSON *b)
{
    cJSON *out = cJSON_Duplicate(a, true);
    const cJSON *v;
    cJSON_ArrayForEach(v, b)
    {
        const cJSON *mine = get(a, v->string);
        if (mine)
            cJSON_ReplaceItemInObjectCaseSensitive(out, v->string, both(mine, v));
        else
            cJSON_AddItemToObject(out, v->string, cJSON_Duplicate(v, true));
    }
    return out;
}

static cJSON *all_names(const cJSON *a, const cJSON *b)
{
    cJSON *out = cJSON_Duplicate(a, true);
    const cJSON *v, *w;
    cJSON_ArrayForEach(v, b)
    {
        bool known = false;
        cJSON_ArrayForEach(w, a) known |= cJSON_Compare(v, w, true);
        if (!known) cJSON_AddItemToArray(out, cJSON_Duplicate(v, true));
    }
    return out;
}

/* The stricter of two values of one keyword; NULL: they can't be joined. */
static cJSON *join(const char *name, const cJSON *a, const cJSON *b)
{
    static const char *const lower[] = {"minimum",  "exclusiveMinimum", "minLength",
                                        "minItems", "minProperties",    NULL};
    static const char *const upper[] = {"maximum",  "exclusiveMaximum", "maxLength",
                                        "maxItems", "maxProperties",    NULL};
    if (cJSON_Compare(a, b, true)) return cJSON_Duplicate(a, true);
    for (int i = 0; lower[i]; i++) {
        bool low = strcmp(name, lower[i]) == 0, high = strcmp(name, upper[i]) == 0;
        if ((!low && !high) || !cJSON_IsNumber(a) || !cJSON_IsNumber(b)) continue;
        bool take_a = low ? a->valuedouble > b->valuedouble : a->valuedouble < b->valuedouble;
        return cJSON_Duplicate(take_a ? a : b, true);
    }
    if (strcmp(name, "type") == 0) return common_types(a, b);
    if (strcmp(name, "enum") == 0) return common_values(a, b);
    if (strcmp(name, "required") == 0) return all_names(a, b);
    if (strcmp(name, "properties") == 0) return all_members(a, b);
    if (strcmp(name, "items") == 0) return both(a, b);
    if (strcmp(name, "additionalProperties") == 0) {
        if (cJSON_IsFalse(a) || cJSON_IsFalse(b)) return cJSON_CreateFalse();
        if (cJSON_IsTrue(a)) return cJSON_Duplicate(b, true);
        return cJSON_IsTrue(b) ? cJSON_Duplicate(a, true) : both(a, b);
    }
    return NULL;
}

/* additionalProperties: false speaks of its own schema's properties only. */
static bool closes_out(const cJSON *closed, const cJSON *other)
{
    const cJSON *v, *p = get(closed, "properties");
    const cJSON *add = get(closed, "additionalProperties");
    if (!add || cJSON_IsTrue(add)) return false;
    cJSON_ArrayForEach(v, get(other, "properties"))
    {
        if (!get(p, v->string)) return true;
    }
    return false;
}

/* What satisfies both; owned by the compiler. */
static cJSON *merge(compiler *c, const cJSON *a, const cJSON *b)
{
    if (!cJSON_IsObject(a) || !cJSON_IsObject(b)) {
        bool none = cJSON_IsFalse(a) || cJSON_IsFalse(b);
        return own(c,
                   none ? cJSON_CreateFalse() : cJSON_Duplicate(cJSON_IsObject(a) ? a : b, true));
    }
    if (closes_out(a, b) || closes_out(b, a)) {
        (void)unsupported(c, "additionalProperties", " where another part adds properties");
        return NULL;
    }
    cJSON *out = own(c, cJSON_Duplicate(a, true));
    const cJSON *v;
    for (v = out ? b->child : NULL; v; v = v->next) {
        const cJSON *mine = get(a, v->string);
        if (is_note(v->string)) {
            if (!mine) cJSON_AddItemToObject(out, v->string, cJSON_Duplicate(v, true));
            continue;
        }
        if (!mine) {
            cJSON_AddItemToObject(out, v->string, cJSON_Duplicate(v, true));
            continue;
        }
        cJSON *joined = join(v->string, mine, v);
        if (!joined) {
            (void)unsupported(c, v->string, " where two parts say it differently");
            return NULL;
        }
        cJSON_ReplaceItemInObjectCaseSensitive(out, v->string, joined);
    }
    return out;
}

static cJSON *without(compiler *c, const cJSON *s, const char *name)
{
    cJSON *out = own(c, cJSON_Duplicate(s, true));
    if (out) cJSON_DeleteItemFromObjectCaseSensitive(out, name);
    return out;
}

/* ----------------------------------------------------------------------- the rules -- */

/* The rule of a subschema; a new one is built later, so that no chain of $ref is too long. */
static int32_t rule_of(compiler *c, const cJSON *s)
{
    g_builder *b = &c->b;
    if (cJSON_IsObject(s)) s = target_of(c, s);
    if (!s || c->rc) return c->value;
    if (cJSON_IsTrue(s) || (cJSON_IsObject(s) && !says_more_than(s, ""))) return c->value;
    for (int i = 0; i < c->n_known; i++) {
        if (c->known[i].node == s) return c->known[i].rule;
    }
    char *path = c->n_known < NODES_MAX && !b->failed ? strdup(c->path) : NULL;
    if (!path) {
        (void)fail(c, ERR_LIMIT, "the schema is too large");
        return c->value;
    }
    int32_t before = b->current, rule = gb_rule(b);
    b->current = before;
    c->known[c->n_known++] = (known_rule){s, rule, path};
    return rule;
}

static void build_all_rules(compiler *c)
{
    for (int i = 0; i < c->n_known && !c->rc; i++) {
        int32_t rule = c->known[i].rule;
        c->b.current = rule;
        c->path_len = strlen(c->known[i].path);
        memcpy(c->path, c->known[i].path, c->path_len + 1);
        (void)build(c, c->known[i].node, start_of(c, rule), end_of(c, rule));
    }
}

static int32_t rule_at(compiler *c, const cJSON *s, const char *name, int index)
{
    size_t old = enter(c, name, index);
    int32_t rule = rule_of(c, s);
    leave(c, old);
    return rule;
}

/* ------------------------------------------------------------------------- strings -- */

typedef struct {
    const char *name, *pattern; /* NULL: says nothing that a grammar could hold */
} format;

#define B255 "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define DATE                                                                                    \
    "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)" \
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define LABEL "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
#define HOST  LABEL "(\\." LABEL "){1,4}"

static const format formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration",
     "P([1-9][0-9]{0,3}D(T[1-9][0-9]{0,3}[HMS])?|T[1-9][0-9]{0,3}[HMS]|[1-9][0-9]{0,3}[WMY])"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"},
    {"email", "[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30}){0,3}@" HOST},
    {"idn-email", "[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30}){0,3}@" HOST},
    {"hostname", HOST},
    {"ipv4", B255 "(\\." B255 "){3}"},
    {"ipv6", "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}"},
    {"uri", "https?://" HOST
            "(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]{0,40}){0,8}(\\?[A-Za-z0-9._~=&-]{0,60})?"},
    {"uri-reference", "(https?://" HOST ")?(/[A-Za-z0-9._~-]{1,40}){1,8}"},
    {"byte", "([A-Za-z0-9+/]{4}){0,64}([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
    {"password", NULL},
    {"binary", NULL},
    {"textarea", NULL},
    {"path", NULL},
    {"file-path", NULL},
    {"directory-path", NULL},
    {"phone", NULL},
    {"color", NULL},
};

static bool check_lengths(compiler *c, const char *pattern, const char *word, int64_t min,
                          int64_t max)
{
    int64_t least = 0, most = 0;
    err e;
    if (g_regex_lengths(pattern, strlen(pattern), &least, &most, &e)) return true; /* said later */
    if (least < min)
        return unsupported(c, "minLength",
                           strcmp(word, "pattern") == 0 ? " beside a pattern that allows less"
                                                        : " beside this format");
    if (max >= 0 && (most < 0 || most > max)) {
        return unsupported(c, "maxLength",
                           strcmp(word, "pattern") == 0 ? " beside a pattern that allows more"
                                                        : " beside this format");
    }
    return true;
}

static bool build_string(compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    g_builder *b = &c->b;
    const cJSON *pattern = get(s, "pattern"), *form = get(s, "format");
    int64_t min = 0, max = -1;
    if (!take_size(c, s, "minLength", &min) || !take_size(c, s, "maxLength", &max)) return false;
    if (!check_order(c, min, max)) return false;
    const char *text = NULL, *word = "pattern";
    if (pattern) {
        if (!cJSON_IsString(pattern)) return fail(c, ERR_INPUT, "'pattern' must be a string");
        text = pattern->valuestring;
    } else if (form) {
        size_t i = 0, n = sizeof(formats) / sizeof(formats[0]);
        const char *name = cJSON_IsString(form) ? form->valuestring : "";
        while (i < n && strcmp(formats[i].name, name) != 0) i++;
        if (i == n) return fail(c, ERR_UNSUPPORTED, "the format is not supported");
        text = formats[i].pattern;
        word = "format";
    }
    if (!text) {
        bool free_length = min == 0 && max < 0;
        gb_call(b, from, free_length ? c->string : c->bounded,
                free_length ? BOUNDS_NONE : gb_bounds(b, (int32_t)min, (int32_t)max), to);
        return true;
    }
    if (!check_lengths(c, text, word, min, max)) return false;
    /* A rule of its own: its loops count in a frame of their own. */
    int32_t before = b->current, rule = gb_rule(b);
    int32_t open = gb_state(b), close = gb_state(b);
    byte(b, start_of(c, rule), '"', STEP_PLAIN, open);
    err e;
    err_code rc = gb_regex(b, open, text, strlen(text), true, close, &e);
    byte(b, close, '"', STEP_PLAIN, end_of(c, rule));
    b->current = before;
    gb_call(b, from, rule, BOUNDS_NONE, to);
    if (rc) {
        char what[sizeof(e.msg) + 16];
        (void)snprintf(what, sizeof(what), "'pattern': %.180s", e.msg);
        return fail(c, rc, what);
    }
    return true;
}

/* ------------------------------------------------------------------------- numbers -- */

static bool take_limit(compiler *c, const cJSON *s, bool lower, g_limit *out, bool *given)
{
    const cJSON *v = get(s, lower ? "minimum" : "maximum");
    const cJSON *x = get(s, lower ? "exclusiveMinimum" : "exclusiveMaximum");
    *given = false;
    if ((v && !cJSON_IsNumber(v)) || (x && !cJSON_IsNumber(x) && !cJSON_IsBool(x))) {
        return fail(c, ERR_INPUT, "a bound must be a number");
    }
    if (v) {
        *out = (g_limit){v->valuedouble, cJSON_IsTrue(x)}; /* draft 4: a flag */
        *given = true;
    }
    if (cJSON_IsNumber(x)) {
        bool tighter =
            !*given || (lower ? x->valuedouble >= out->value : x->valuedouble <= out->value);
        if (tighter) *out = (g_limit){x->valuedouble, true};
        *given = true;
    }
    return true;
}

static bool build_number(compiler *c, const cJSON *s, bool whole, int32_t from, int32_t to)
{
    g_limit lo, hi;
    bool has_lo, has_hi;
    const cJSON *step = get(s, "multipleOf");
    if (step && cJSON_IsNumber(step) && step->valuedouble == 1)
        whole = true;
    else if (step)
        return unsupported(c, "multipleOf", "");
    if (!take_limit(c, s, true, &lo, &has_lo) || !take_limit(c, s, false, &hi, &has_hi)) {
        return false;
    }
    if (!has_lo && !has_hi) {
        gb_call(&c->b, from, whole ? c->integer : c->number, BOUNDS_NONE, to);
        return true;
    }
    /* Not called but here: two numbers never stand beside each other in one frame. */
    if (whole)
        gb_integer(&c->b, from, has_lo ? &lo : NULL, has_hi ? &hi : NULL, to);
    else
        gb_number(&c->b, from, has_lo ? &lo : NULL, has_hi ? &hi : NULL, to);
    return true;
}

/* -------------------------------------------------------------------------- arrays -- */

static bool build_array(compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    g_builder *b = &c->b;
    int64_t min = 0, max = -1;
    if (!take_size(c, s, "minItems", &min) || !take_size(c, s, "maxItems", &max)) return false;
    if (!check_order(c, min, max)) return false;
    const cJSON *items = get(s, "items"), *prefix = get(s, "prefixItems");
    if (cJSON_IsTrue(get(s, "uniqueItems")) && max != 0 && max != 1) {
        return unsupported(c, "uniqueItems", "");
    }
    if (cJSON_IsArray(items)) return unsupported(c, "items", " as an array (use prefixItems)");
    if (prefix && !cJSON_IsArray(prefix))
        return fail(c, ERR_INPUT, "'prefixItems' must be an array");
    int32_t item = items ? rule_at(c, items, "items", -1) : c->value;
    int n = prefix ? cJSON_GetArraySize(prefix) : 0, i = 0;
    if (n == 0) {
        list(c, from, item, min, cJSON_IsFalse(items) ? 0 : max, to);
        return !c->rc;
    }
    int32_t at = gb_state(b), close = gb_state(b);
    byte(b, from, '[', STEP_PLAIN, at);
    at = space(b, at);
    byte(b, space(b, close), ']', STEP_PLAIN, to);
    const cJSON *v;
    cJSON_ArrayForEach(v, prefix)
    {
        if (max >= 0 && i >= max) break;
        if (i >= min) gb_eps(b, at, close);
        if (i > 0) {
            int32_t comma = gb_state(b);
            byte(b, at, ',', STEP_PLAIN, comma);
            at = space(b, comma);
        }
        int32_t next = gb_state(b);
        gb_call(b, at, rule_at(c, v, "prefixItems", i), BOUNDS_NONE, next);
        at = next;
        i++;
    }
    int64_t least = min > i ? min - i : 0, most = max < 0 ? -1 : max - i;
    if (!items || cJSON_IsFalse(items)) { /* what is not described is not written */
        if (least > 0) return fail(c, ERR_INPUT, "more items are wanted than are described");
        gb_eps(b, at, close);
        return !c->rc;
    }
    int32_t loop = gb_state(b), comma = gb_state(b);
    gb_enter(b, at, gb_bounds(b, (int32_t)least, (int32_t)most), loop);
    byte(b, loop, ',', STEP_COUNT, comma);
    gb_call(b, space(b, comma), item, BOUNDS_NONE, loop);
    gb_leave(b, loop, close);
    return !c->rc;
}

/* ------------------------------------------------------------------------- objects -- */

static void print_text(compiler *c, int32_t from, const cJSON *v, int32_t to)
{
    char *text = cJSON_PrintUnformatted(v);
    if (text)
        gb_text(&c->b, from, text, strlen(text), to);
    else
        c->b.failed = true;
    cJSON_free(text);
}

static void key_text(compiler *c, int32_t from, const char *name, int32_t to)
{
    cJSON *v = cJSON_CreateString(name);
    print_text(c, from, v, to);
    cJSON_Delete(v);
}

/* Keys of other members: ASCII without escapes, and none of the names.  Such a key is never a name in
 * disguise. */
static void other_keys(compiler *c, int32_t from, const cJSON *props, int32_t to)
{
    g_builder *b = &c->b;
    int32_t at = gb_state(b), any = gb_state(b);
    byte(b, from, '"', STEP_PLAIN, at);
    static const char plain[][2] = {{' ', '!'}, {'#', '['}, {']', '~'}};
    for (int i = 0; i < 3; i++) gb_bytes(b, any, plain[i][0], plain[i][1], STEP_PLAIN, any);
    byte(b, any, '"', STEP_PLAIN, to);
    int n = cJSON_GetArraySize(props), k = 0;
    const char **name = calloc((size_t)n + 1, sizeof(*name));
    int32_t *place = calloc((size_t)n + 1, sizeof(*place)); /* state that each name has come to */
    if (!name || !place) b->failed = true;
    const cJSON *v;
    for (v = props ? props->child : NULL; v && !b->failed; v = v->next) {
        name[k] = v->string;
        place[k++] = at;
    }
    /* Level by level: names that are equal so far are in the same state. */
    for (size_t depth = 0; !b->failed; depth++) {
        bool more = false;
        for (int i = 0; i < n; i++) {
            if (!name[i] || place[i] < 0) continue;
            int32_t s = place[i];
            int32_t next[128];
            bool ends = false;
            memset(next, 0xFF, sizeof(next));
            for (int j = i; j < n; j++) {
                if (place[j] != s) continue;
                unsigned char ch = (unsigned char)name[j][depth];
                if (ch == 0) ends = true;
                if (ch >= 0x20 && ch < 0x7F && ch != '"' && ch != '\\') {
                    if (next[ch] < 0) next[ch] = gb_state(b);
                    place[j] = -2 - next[ch];
                    more = true;
                } else {
                    place[j] = -1; /* ends, or goes where no such key does */
                }
            }
            if (!ends) byte(b, s, '"', STEP_PLAIN, to);
            for (int ch = 0x20; ch < 0x7F && !b->failed; ch++) {
                if (ch == '"' || ch == '\\') continue;
                gb_bytes(b, s, ch, ch, STEP_PLAIN, next[ch] >= 0 ? next[ch] : any);
            }
        }
        for (int i = 0; i < n; i++) {
            if (place[i] <= -2) place[i] = -2 - place[i];
        }
        if (!more) break;
    }
    free((void *)name);
    free(place);
}

static bool is_required(const cJSON *required, const char *name)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, required)
    {
        if (cJSON_IsString(v) && strcmp(v->valuestring, name) == 0) return true;
    }
    return false;
}

typedef struct {
    const char *name;
    const cJSON *schema; /* NULL: any value */
    bool required;
} property;

/* Named members in order, then those that are required without being described. */
static property *properties_of(compiler *c, const cJSON *props, const cJSON *required, int *n)
{
    int cap = cJSON_GetArraySize(props) + cJSON_GetArraySize(required);
    property *list_of = calloc((size_t)cap + 1, sizeof(*list_of));
    *n = 0;
    if (!list_of) {
        (void)fail(c, ERR_NOMEM, "no memory");
        return NULL;
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, props)
    {
        list_of[(*n)++] = (property){v->string, v, is_required(required, v->string)};
    }
    cJSON_ArrayForEach(v, required)
    {
        if (!cJSON_IsString(v)) {
            (void)fail(c, ERR_INPUT, "'required' must be an array of strings");
            break;
        }
        if (!get(props, v->valuestring)) list_of[(*n)++] = (property){v->valuestring, NULL, true};
    }
    return list_of;
}

/* `"name": value` */
static void named(compiler *c, int32_t from, const property *p, int32_t value, int32_t to)
{
    g_builder *b = &c->b;
    int32_t colon = gb_state(b), after = gb_state(b);
    key_text(c, from, p->name, colon);
    byte(b, colon, ':', STEP_PLAIN, after);
    gb_call(b, space(b, after), value, BOUNDS_NONE, to);
}

static void with_names(compiler *c, const property *p, int n, const cJSON *props, int32_t other,
                       bool may_be_empty, int32_t from, int32_t to)
{
    g_builder *b = &c->b;
    int32_t open = gb_state(b), close = gb_state(b);
    byte(b, from, '{', STEP_PLAIN, open);
    int32_t none = space(b, open), some = -1; /* nothing written yet; something */
    int32_t out = space(b, close);
    byte(b, out, '}', STEP_PLAIN, to);
    int last = n - 1; /* the last that must be there */
    while (last >= 0 && !p[last].required) last--;
    /* The way out is said first: it must not be lost where a set has more ways than it keeps. */
    if (last < 0 && may_be_empty) gb_eps(b, none, out);
    for (int i = 0; i < n && !b->failed && !c->rc; i++) {
        int32_t after = gb_state(b), next_none = -1;
        if (i >= last) gb_eps(b, after, close);
        size_t old = enter(c, "properties", -1), deep = enter(c, p[i].name, -1);
        int32_t value = p[i].schema ? rule_of(c, p[i].schema) : c->value;
        leave(c, deep);
        leave(c, old);
        if (none >= 0) named(c, none, &p[i], value, after);
        if (some >= 0) {
            int32_t comma = gb_state(b);
            byte(b, some, ',', STEP_PLAIN, comma);
            named(c, space(b, comma), &p[i], value, after);
        }
        if (!p[i].required) {
            if (some >= 0) gb_eps(b, some, after);
            next_none = none;
        }
        none = next_none;
        some = after;
    }
    if (other >= 0) {
        int32_t loop = gb_state(b), comma = gb_state(b), before = b->current, keys = gb_rule(b);
        other_keys(c, start_of(c, keys), props, end_of(c, keys));
        b->current = before;
        if (none >= 0) member(c, none, keys, other, loop);
        if (some >= 0) gb_eps(b, some, loop);
        byte(b, loop, ',', STEP_PLAIN, comma);
        member(c, space(b, comma), keys, other, loop);
        gb_eps(b, loop, close);
    }
}

static bool build_object(compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    const cJSON *props = get(s, "properties"), *required = get(s, "required");
    const cJSON *add = get(s, "additionalProperties"), *more = get(s, "unevaluatedProperties");
    int64_t min = 0, max = -1;
    if (props && !cJSON_IsObject(props))
        return fail(c, ERR_INPUT, "'properties' must be an object");
    if (required && !cJSON_IsArray(required)) {
        return fail(c, ERR_INPUT, "'required' must be an array of strings");
    }
    if (more && !cJSON_IsFalse(more)) return unsupported(c, "unevaluatedProperties", "");
    if (!take_size(c, s, "minProperties", &min) || !take_size(c, s, "maxProperties", &max)) {
        return false;
    }
    if (!check_order(c, min, max)) return false;
    int n = 0, n_required = 0;
    property *p = properties_of(c, props, required, &n);
    for (int i = 0; p && i < n; i++) n_required += p[i].required;
    bool closed = cJSON_IsFalse(add) || cJSON_IsFalse(more);
    int32_t other = -1;
    if (add && !closed) other = rule_at(c, add, "additionalProperties", -1);
    if (min > 1 && min > n_required) (void)unsupported(c, "minProperties", " above 1 here");
    if (p && n == 0 && !closed) {
        if (other < 0) other = c->value;
        map(c, from, c->string, other, min, max, to);
    } else if (p) {
        if (max >= 0 && (other >= 0 || n > max))
            (void)unsupported(c, "maxProperties", " beside these properties");
        with_names(c, p, n, props, other, min == 0, from, to);
    }
    free(p);
    return !c->rc;
}

/* --------------------------------------------------------------------------- types -- */

static const char *type_of_value(const cJSON *v)
{
    if (cJSON_IsString(v)) return "string";
    if (cJSON_IsBool(v)) return "boolean";
    if (cJSON_IsNull(v)) return "null";
    if (cJSON_IsArray(v)) return "array";
    if (cJSON_IsObject(v)) return "object";
    return v->valuedouble == floor(v->valuedouble) ? "integer" : "number";
}

static bool has_type(const cJSON *types, const char *t)
{
    return type_has(types, t) || (strcmp(t, "integer") == 0 && type_has(types, "number"));
}

/* The values of an enum that the type allows; keywords that would cut further are refused. */
static bool build_values(compiler *c, const cJSON *s, const cJSON *values, int32_t from, int32_t to)
{
    const cJSON *v, *types = get(s, "type");
    cJSON_ArrayForEach(v, s)
    {
        const keyword *k = keyword_of(v->string);
        if (k && k->kind != NOTE && k->kind != ANY)
            return unsupported(c, v->string, " beside enum");
    }
    int n = cJSON_GetArraySize(values), used = 0;
    char **text = calloc((size_t)n + 1, sizeof(*text));
    size_t *len = calloc((size_t)n + 1, sizeof(*len));
    cJSON_ArrayForEach(v, values)
    {
        if (!text || !len || (types && !has_type(types, type_of_value(v)))) continue;
        text[used] = cJSON_PrintUnformatted(v);
        if (text[used]) len[used] = strlen(text[used]);
        if (!text[used++]) c->b.failed = true;
    }
    if (!text || !len)
        c->b.failed = true;
    else if (!c->b.failed)
        gb_texts(&c->b, from, text, len, (size_t)used, to);
    for (int i = 0; text && i < used; i++) cJSON_free(text[i]);
    free((void *)text);
    free(len);
    return true;
}

static bool build_type(compiler *c, const cJSON *s, const char *t, int32_t from, int32_t to)
{
    if (strcmp(t, "object") == 0) return build_object(c, s, from, to);
    if (strcmp(t, "array") == 0) return build_array(c, s, from, to);
    if (strcmp(t, "string") == 0) return build_string(c, s, from, to);
    if (strcmp(t, "number") == 0) return build_number(c, s, false, from, to);
    if (strcmp(t, "integer") == 0) return build_number(c, s, true, from, to);
    if (strcmp(t, "null") == 0) {
        gb_text(&c->b, from, "null", 4, to);
        return true;
    }
    if (strcmp(t, "boolean") == 0) {
        gb_text(&c->b, from, "true", 4, to);
        gb_text(&c->b, from, "false", 5, to);
        return true;
    }
    return fail(c, ERR_INPUT,
                "'type' must be object, array, string, number, integer, boolean or null");
}

static bool build_types(compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    const cJSON *types = get(s, "type"), *v;
    if (cJSON_IsString(types)) return build_type(c, s, types->valuestring, from, to);
    if (types && !cJSON_IsArray(types)) return fail(c, ERR_INPUT, "'type' must be a string");
    cJSON_ArrayForEach(v, types)
    {
        if (!cJSON_IsString(v)) return fail(c, ERR_INPUT, "'type' must hold strings");
        if (!build_type(c, s, v->valuestring, from, to)) return false;
    }
    if (types) return true;
    static const char *const name_of[] = {
        [OBJECT] = "object", [ARRAY] = "array", [STRING] = "string", [NUMBER] = "number"};
    bool wanted[ANY + 1] = {false}, any = true;
    cJSON_ArrayForEach(v, s)
    {
        const keyword *k = keyword_of(v->string);
        if (k) wanted[k->kind] = true;
    }
    for (int k = OBJECT; k <= NUMBER; k++) {
        if (!wanted[k]) continue;
        any = false;
        if (!build_type(c, s, name_of[k], from, to)) return false;
    }
    if (any) gb_call(&c->b, from, c->value, BOUNDS_NONE, to);
    return true;
}

/* anyOf: each branch for itself, joined with what stands beside it. */
static bool build_branches(compiler *c, const cJSON *s, const char *word, int32_t from, int32_t to)
{
    const cJSON *list_of = get(s, word), *v;
    if (!cJSON_IsArray(list_of) || !list_of->child) {
        return fail(c, ERR_INPUT, "anyOf and oneOf must be arrays that are not empty");
    }
    const cJSON *base = NULL;
    if (says_more_than(s, word)) {
        base = without(c, s, word);
        if (!base) return false;
    }
    int i = 0;
    cJSON_ArrayForEach(v, list_of)
    {
        size_t old = enter(c, word, i++);
        const cJSON *one = cJSON_IsObject(v) ? target_of(c, v) : v;
        if (one && base) one = merge(c, base, one);
        if (one) gb_call(&c->b, from, rule_of(c, one), BOUNDS_NONE, to);
        leave(c, old);
        if (!one || c->rc) return false;
    }
    return true;
}

static bool build_all(compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    const cJSON *all = get(s, "allOf"), *v;
    if (!cJSON_IsArray(all)) return fail(c, ERR_INPUT, "allOf must be an array");
    const cJSON *sum = without(c, s, "allOf");
    int i = 0;
    cJSON_ArrayForEach(v, all)
    {
        size_t old = enter(c, "allOf", i++);
        const cJSON *one = cJSON_IsObject(v) ? target_of(c, v) : v;
        if (sum && one && (!cJSON_IsObject(one) || check_words(c, one))) sum = merge(c, sum, one);
        leave(c, old);
        if (!sum || !one || c->rc) return false;
    }
    return sum && build(c, sum, from, to);
}

static bool build_one(compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    if (cJSON_IsFalse(s)) return true; /* nothing */
    if (!cJSON_IsObject(s)) {
        if (!cJSON_IsTrue(s)) return fail(c, ERR_INPUT, "a schema must be an object or a boolean");
        gb_call(&c->b, from, c->value, BOUNDS_NONE, to);
        return true;
    }
    if (!check_words(c, s)) return false;
    if (get(s, "$ref")) {
        if (!says_more_than(s, "$ref")) {
            gb_call(&c->b, from, rule_of(c, s), BOUNDS_NONE, to);
            return !c->rc;
        }
        cJSON *alone = own(c, cJSON_CreateObject());
        if (!alone) return false;
        cJSON_AddItemToObject(alone, "$ref", cJSON_Duplicate(get(s, "$ref"), true));
        const cJSON *rest = without(c, s, "$ref"), *target = target_of(c, alone);
        const cJSON *sum = rest && target ? merge(c, rest, target) : NULL;
        return sum && build(c, sum, from, to);
    }
    if (get(s, "allOf")) return build_all(c, s, from, to);
    if (get(s, "anyOf")) return build_branches(c, s, "anyOf", from, to);
    if (get(s, "oneOf")) return build_branches(c, s, "oneOf", from, to);
    if (cJSON_IsTrue(get(s, "nullable"))) gb_text(&c->b, from, "null", 4, to);
    const cJSON *only = get(s, "const"), *values = get(s, "enum");
    if (only) {
        cJSON *one = own(c, cJSON_CreateArray());
        if (one) cJSON_AddItemToArray(one, cJSON_Duplicate(only, true));
        if (one && values) one = own(c, common_values(one, values));
        return one && build_values(c, s, one, from, to);
    }
    if (values) {
        if (!cJSON_IsArray(values)) return fail(c, ERR_INPUT, "'enum' must be an array");
        return build_values(c, s, values, from, to);
    }
    return build_types(c, s, from, to);
}

static bool build(compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    if (c->b.failed) return fail(c, ERR_LIMIT, "the schema is too large");
    if (c->nest >= NEST_MAX) return fail(c, ERR_LIMIT, "the schema is too deep");
    c->nest++;
    bool ok = build_one(c, s, from, to);
    c->nest--;
    return ok && !c->rc;
}

err_code grammar_build_schema(g_auto *out, const cJSON *schema, err *e)
{
    compiler *c = calloc(1, sizeof(*c));
    known_rule *known = calloc(NODES_MAX, sizeof(*known));
    if (!c || !known) {
        free(c);
        free(known);
        return err_set(e, ERR_NOMEM, "no memory");
    }
    c->known = known;
    c->root = schema;
    c->e = e;
    c->path[0] = '#';
    c->path_len = 1;
    gb_init(&c->b);
    build_shared(c);
    int n_shared = c->b.n_states;
    int32_t root = gb_rule(&c->b);
    int32_t from = start_of(c, root), to = end_of(c, root);
    int32_t inner = schema ? rule_of(c, schema) : c->object;
    gb_call(&c->b, from, inner, BOUNDS_NONE, to);
    build_all_rules(c);
    err_code rc = c->rc;
    if (rc)
        gb_clear(&c->b);
    else
        rc = gb_finish(&c->b, root, n_shared, out, e);
    for (int i = 0; i < c->n_merged; i++) cJSON_Delete(c->merged[i]);
    for (int i = 0; i < c->n_known; i++) free(c->known[i].path);
    free(known);
    free(c);
    return rc;
}
