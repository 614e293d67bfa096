/* grammar_schema.c -- a JSON schema as an automaton.
 *
 * What is written is a subset of what the schema allows, chosen so that it always validates:
 * members in the schema's order, none that it does not name unless additionalProperties is given,
 * at most one space between tokens, a pattern matched as a whole.  A keyword that would be
 * disregarded is refused by name; so is oneOf where two branches may hold at once.
 *
 * Every subschema is a rule; $ref calls the rule of its target, so recursion costs nothing.  The
 * rules for strings, numbers and arbitrary values stand first in every automaton, so that all
 * grammars share their masks.
 */
#include "engine/grammar/schema/grammar_schema.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/json.h"

static bool build(schema_compiler *c, const cJSON *s, int32_t from, int32_t to);

/* ---------------------------------------------------------- pieces every schema needs -- */

static int32_t space(g_builder *b, int32_t from)
{
    int32_t to = gb_state(b);
    gb_bytes(b, from, ' ', ' ', STEP_PLAIN, to);
    gb_eps(b, from, to);
    return to;
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
    schema_byte(b, from, '\\', step, back);
    for (const char *s = "\"\\/bfnrt"; *s; s++) schema_byte(b, back, *s, STEP_PLAIN, to);
    int32_t any[4]; /* k more hexadecimal digits */
    any[0] = to;
    static const char sets[][2] = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
    for (int k = 1; k < 4; k++) {
        any[k] = gb_state(b);
        for (int i = 0; i < 3; i++)
            gb_bytes(b, any[k], sets[i][0], sets[i][1], STEP_PLAIN, any[k - 1]);
    }
    int32_t zero = gb_state(b), u = zero;
    schema_byte(b, back, 'u', STEP_PLAIN, u);
    for (int k = 3; k >= 0; k--) { /* digits so far are zeros; k more after this one */
        gb_bytes(b, u, '1', '9', STEP_PLAIN, any[k]);
        for (int i = 1; i < 3; i++) {
            int hi = k == 3 ? sets[i][0] + 2 : sets[i][1]; /* D800 to DFFF begin with d */
            gb_bytes(b, u, sets[i][0], hi, STEP_PLAIN, any[k]);
        }
        if (k == 3) {
            int32_t d = gb_state(b);
            schema_byte(b, u, 'd', STEP_PLAIN, d);
            schema_byte(b, u, 'D', STEP_PLAIN, d);
            gb_bytes(b, d, '0', '7', STEP_PLAIN, any[2]);
            for (int i = 1; i < 3; i++)
                gb_bytes(b, u, sets[i][0] + 4, sets[i][1], STEP_PLAIN, any[3]);
        }
        if (k > 0) {
            int32_t next = gb_state(b);
            schema_byte(b, u, '0', STEP_PLAIN, next);
            u = next;
        }
    }
}

/* An item; `unlike`: no earlier one of the array is the same. */
static void put_item(schema_compiler *c, int32_t from, int32_t item, bool unlike, int32_t to)
{
    int32_t ended = unlike ? gb_state(&c->b) : to;
    gb_call(&c->b, from, item, BOUNDS_NONE, ended);
    if (unlike) gb_new(&c->b, ended, to);
}

int32_t schema_put_item(schema_compiler *c, int32_t from, int32_t item, bool unlike, int32_t to)
{
    int32_t behind = to < 0 ? gb_state(&c->b) : to;
    put_item(c, from, item, unlike, behind);
    return behind;
}

int32_t schema_space(schema_compiler *c, int32_t from)
{
    return space(&c->b, from);
}

/* Of what repeats between brackets: where the first begins, and each next one; where all of them
 * end. */
typedef struct {
    int32_t first, next, loop, out, close;
} repeated;

/* `bracket` opens, the one two behind it in ASCII closes; L counts the commas.  False: there is
 * nothing in it. */
static bool open_repeated(schema_compiler *c, int32_t from, int bracket, bool unlike, int64_t min,
                          int64_t max, int32_t to, repeated *r)
{
    g_builder *b = &c->b;
    int32_t open = gb_state(b);
    r->close = gb_state(b);
    schema_byte(b, from, bracket, unlike ? STEP_OPEN : STEP_PLAIN, open);
    open = space(b, open);
    schema_byte(b, r->close, bracket + 2, STEP_PLAIN, to);
    if (min == 0) gb_eps(b, open, r->close);
    if (max == 0) return false;
    assert(max < 0 || min <= max);
    int32_t comma = gb_state(b);
    r->first = gb_state(b);
    r->loop = gb_state(b);
    r->out = gb_state(b);
    gb_enter(b, open,
             gb_bounds(b, (int32_t)(min > 0 ? min - 1 : 0), (int32_t)(max < 0 ? -1 : max - 1)),
             r->first);
    schema_byte(b, r->loop, ',', STEP_COUNT, comma);
    r->next = space(b, comma);
    return true;
}

static void close_repeated(schema_compiler *c, const repeated *r)
{
    gb_leave(&c->b, r->loop, r->out);
    gb_eps(&c->b, space(&c->b, r->out), r->close);
}

/* "[" items "]" of one rule. */
static void list(schema_compiler *c, int32_t from, int32_t item, bool unlike, int64_t min,
                 int64_t max, int32_t to)
{
    repeated r;
    if (!open_repeated(c, from, '[', unlike, min, max, to, &r)) return;
    put_item(c, r.first, item, unlike, r.loop);
    put_item(c, r.next, item, unlike, r.loop);
    close_repeated(c, &r);
}

typedef member_rules pair;

/* A member; `unlike`: no earlier one has its name. */
static void put_member(schema_compiler *c, int32_t from, const pair *p, bool unlike, int32_t to)
{
    g_builder *b = &c->b;
    int32_t colon = gb_state(b), after = gb_state(b), ended = unlike ? gb_state(b) : colon;
    gb_call(b, from, p->key, p->bounds, ended);
    if (unlike) gb_new(b, ended, colon);
    schema_byte(b, colon, ':', STEP_PLAIN, after);
    gb_call(b, space(b, after), p->value, BOUNDS_NONE, to);
}

/* "{" members "}", each like one of the pairs; where there must be several, their names differ. */
static void map(schema_compiler *c, int32_t from, const pair *p, int n, int64_t min, int64_t max,
                int32_t to)
{
    repeated r;
    bool unlike = min > 1;
    if (!open_repeated(c, from, '{', unlike, min, max, to, &r)) return;
    for (int i = 0; i < n; i++) {
        put_member(c, r.first, &p[i], unlike, r.loop);
        put_member(c, r.next, &p[i], unlike, r.loop);
    }
    close_repeated(c, &r);
}

static void literals(schema_compiler *c, int32_t from, int32_t to)
{
    gb_text(&c->b, from, "true", 4, to);
    gb_text(&c->b, from, "false", 5, to);
    gb_text(&c->b, from, "null", 4, to);
}

/* The rules that all grammars begin with, always in the same order. */
static void build_shared(schema_compiler *c)
{
    g_builder *b = &c->b;
    c->string = gb_rule(b);
    int32_t loop = gb_state(b), out = gb_state(b);
    schema_byte(b, schema_start(c, c->string), '"', STEP_PLAIN, loop);
    string_char(b, loop, STEP_PLAIN, loop);
    schema_byte(b, loop, '"', STEP_PLAIN, schema_end(c, c->string));

    c->bounded = gb_rule(b);
    loop = gb_state(b);
    schema_byte(b, schema_start(c, c->bounded), '"', STEP_PLAIN, loop);
    string_char(b, loop, STEP_COUNT, loop);
    gb_leave(b, loop, out);
    schema_byte(b, out, '"', STEP_PLAIN, schema_end(c, c->bounded));

    c->integer = gb_rule(b);
    gb_integer(b, schema_start(c, c->integer), NULL, NULL, schema_end(c, c->integer));
    c->number = gb_rule(b);
    gb_number(b, schema_start(c, c->number), NULL, NULL, schema_end(c, c->number));

    c->value = gb_rule(b);
    c->object = gb_rule(b);
    c->array = gb_rule(b);
    const pair any = {c->bounded, gb_bounds(b, 0, KEY_MAX), c->value};
    map(c, schema_start(c, c->object), &any, 1, 0, -1, schema_end(c, c->object));
    list(c, schema_start(c, c->array), c->value, false, 0, -1, schema_end(c, c->array));
    int32_t from = schema_start(c, c->value), to = schema_end(c, c->value);
    const int32_t kinds[] = {c->string, c->number, c->object, c->array};
    for (int i = 0; i < 4; i++) gb_call(b, from, kinds[i], BOUNDS_NONE, to);
    literals(c, from, to);
}

/* ----------------------------------------------------------------------- the rules -- */

enum { PARTS_MAX = 64 };

static int by_place(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (const cJSON *const *)a, y = (uintptr_t) * (const cJSON *const *)b;
    return (x > y) - (x < y);
}

/* What an allOf of allOf and $ref is made of, by what each part holds; -1: it is not made of such.
 * */
static int add_parts(schema_compiler *c, const cJSON *s, const cJSON **part, int n, int deep)
{
    const cJSON *all, *v;
    if (cJSON_IsObject(s)) s = schema_target(c, s);
    if (cJSON_IsTrue(s)) return n;
    if (!cJSON_IsObject(s) || deep == 0) return -1;
    all = schema_get(s, "allOf");
    if (!all || schema_says_more_than(s, "allOf")) {
        if (n == PARTS_MAX || !s->child) return -1;
        part[n] = s->child;
        return n + 1;
    }
    cJSON_ArrayForEach(v, all)
    {
        n = add_parts(c, v, part, n, deep - 1);
        if (n < 0) break;
    }
    return n;
}

/* Sorted, each once; 0: it is known by its place alone. */
static int parts_of(schema_compiler *c, const cJSON *s, const cJSON **part)
{
    enum { DEEP_MAX = 32 };
    int n = add_parts(c, s, part, 0, DEEP_MAX), used = 0;
    if (n < 0) return 0;
    qsort((void *)part, (size_t)n, sizeof(*part), by_place);
    for (int i = 0; i < n; i++)
        if (!i || part[i] != part[i - 1]) part[used++] = part[i];
    return used;
}

static const known_rule *find_known(const schema_compiler *c, const cJSON *s,
                                    const cJSON *const *part, int n)
{
    for (int i = 0; i < c->n_known; i++) {
        const known_rule *k = &c->known[i];
        if (k->node == s) return k;
        if (n == 0 || k->n_parts != n || k->first != part[0]) continue;
        if (n == 1 || memcmp(k->parts, part, (size_t)n * sizeof(*part)) == 0) return k;
    }
    return NULL;
}

/* What it says, in its order; false: too much of it to look at. */
static bool digest_of(const cJSON *s, int *room, uint64_t *h)
{
    bool container = cJSON_IsObject(s) || cJSON_IsArray(s);
    if (--*room < 0) return false;
    *h = hash_bytes(*h, &s->type, sizeof(s->type));
    if (s->string) *h = hash_bytes(*h, s->string, strlen(s->string) + 1);
    if (s->valuestring) *h = hash_bytes(*h, s->valuestring, strlen(s->valuestring) + 1);
    if (cJSON_IsNumber(s)) *h = hash_bytes(*h, &s->valuedouble, sizeof(s->valuedouble));
    for (const cJSON *v = container ? s->child : NULL; v; v = v->next)
        if (!digest_of(v, room, h)) return false;
    *h = hash_bytes(*h, "", 1);
    return true;
}

/* One that says the same has its rule already; *digest 0: it is not known. */
static const known_rule *find_twin(schema_compiler *c, const cJSON *s, uint64_t *digest)
{
    int room = TWIN_NODES_MAX;
    uint64_t h = HASH_BASIS;
    bool all = s->child && c->twin_work < TWIN_WORK_MAX;
    *digest = 0;
    for (const cJSON *v = s->child; v && all; v = v->next) all = digest_of(v, &room, &h);
    c->twin_work += TWIN_NODES_MAX - room;
    if (!all) return NULL;
    *digest = h | 1;
    for (int i = 0; i < c->n_known; i++)
        if (c->known[i].digest == *digest && json_same(c->known[i].node, s)) return &c->known[i];
    return NULL;
}

/* The rule of a subschema; a new one is built later, so that no chain of $ref is too long.  The
 * same parts have one rule, also where they were put together again: so recursion ends. */
static int32_t rule_of(schema_compiler *c, const cJSON *s)
{
    assert(c->n_known <= NODES_MAX);
    g_builder *b = &c->b;
    uint64_t digest = 0;
    const cJSON *part[PARTS_MAX];
    if (cJSON_IsObject(s)) s = schema_target(c, s);
    if (!s || c->rc) return c->value;
    if (cJSON_IsTrue(s) || (cJSON_IsObject(s) && !schema_says_more_than(s, ""))) return c->value;
    int n = parts_of(c, s, part);
    const known_rule *known = find_known(c, s, part, n);
    if (!known) known = find_twin(c, s, &digest);
    if (known) return known->rule;
    char *path = c->n_known < NODES_MAX && !b->failed ? strdup(c->path) : NULL;
    const cJSON **parts = n > 1 ? malloc((size_t)n * sizeof(*parts)) : NULL;
    if (!path || (n > 1 && !parts)) {
        free(path);
        free((void *)parts);
        (void)schema_fail(c, ERR_LIMIT, "the schema is too large");
        return c->value;
    }
    if (parts) memcpy((void *)parts, (const void *)part, (size_t)n * sizeof(*parts));
    int32_t before = b->current, rule = gb_rule(b);
    b->current = before;
    c->known[c->n_known++] = (known_rule){s, rule, path, n ? part[0] : NULL, parts, n, digest};
    return rule;
}

static void build_all_rules(schema_compiler *c)
{
    for (int i = 0; i < c->n_known && !c->rc; i++) {
        int32_t rule = c->known[i].rule;
        c->b.current = rule;
        c->path_len = strlen(c->known[i].path);
        memcpy(c->path, c->known[i].path, c->path_len + 1);
        (void)build(c, c->known[i].node, schema_start(c, rule), schema_end(c, rule));
    }
}

static int32_t rule_at(schema_compiler *c, const cJSON *s, const char *name, int index)
{
    size_t old = schema_enter(c, name, index);
    int32_t rule = rule_of(c, s);
    schema_leave(c, old);
    return rule;
}

/* -------------------------------------------------------------------------- arrays -- */

static int64_t at_most(int64_t a, int64_t b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* How many values a type has; -1: very many. */
static int64_t values_of_types(const cJSON *types)
{
    const cJSON *v;
    int64_t n = 0;
    const char *t = cJSON_GetStringValue(types);
    if (t) return strcmp(t, "boolean") == 0 ? 2 : strcmp(t, "null") == 0 ? 1 : -1;
    cJSON_ArrayForEach(v, types)
    {
        int64_t some = cJSON_IsString(v) ? values_of_types(v) : -1;
        if (some < 0) return -1;
        n += some;
    }
    return cJSON_IsArray(types) ? n : -1;
}

/* The same of a schema; -1 also where that is not known. */
static int64_t values_of(schema_compiler *c, const cJSON *s)
{
    if (cJSON_IsObject(s)) s = schema_target(c, s);
    if (cJSON_IsFalse(s)) return 0;
    if (!cJSON_IsObject(s)) return -1;
    const cJSON *values = schema_get(s, "enum");
    int64_t more = cJSON_IsTrue(schema_get(s, "nullable"));
    int64_t n = schema_get(s, "const")  ? 1
                : cJSON_IsArray(values) ? cJSON_GetArraySize(values)
                                        : values_of_types(schema_get(s, "type"));
    return n < 0 ? n : n + more;
}

/* Of what must be there several times there are fewer different values. */
static bool lacks_values(schema_compiler *c, const cJSON *s)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, schema_get(s, "contains"))
    {
        int64_t least = 1, n = values_of(c, schema_get(v, "contains"));
        if (!schema_take_size(c, v, "minContains", &least) || (n >= 0 && n < least)) return true;
    }
    return false;
}

/* Edges for the arrays of a schema: prefixItems one after the other, each a place where the
 * array may end once minItems are there, then a counted loop of `items`. Bounds that no value
 * meets leave no edge, which is "nothing". */
static bool build_array(schema_compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    g_builder *b = &c->b;
    int64_t min = 0, max = -1;
    if (!schema_take_size(c, s, "minItems", &min) || !schema_take_size(c, s, "maxItems", &max))
        return false;
    if (max >= 0 && min > max) return true; /* nothing */
    const cJSON *items = schema_get(s, "items"), *prefix = schema_get(s, "prefixItems");
    if (!items) items = schema_get(s, "unevaluatedItems");
    bool unlike = cJSON_IsTrue(schema_get(s, "uniqueItems")) && max != 0 && max != 1;
    if (prefix && !cJSON_IsArray(prefix))
        return schema_fail(c, ERR_INPUT, "'prefixItems' must be an array");
    int n = prefix ? cJSON_GetArraySize(prefix) : 0, i = 0;
    if (n == 0 && unlike && items) max = at_most(max, values_of(c, items));
    if (unlike && min > UNLIKE_MAX)
        return schema_unsupported(c, "uniqueItems", " with so many items");
    if (max >= 0 && max < min) return true; /* there are not so many values */
    if (unlike && lacks_values(c, s)) return !c->rc;
    if (schema_get(s, "contains")) return schema_build_contains(c, s, unlike, min, max, from, to);
    int32_t item = items ? rule_at(c, items, "items", -1) : c->value;
    if (n == 0) {
        list(c, from, item, unlike, min, cJSON_IsFalse(items) ? 0 : max, to);
        return !c->rc;
    }
    int32_t at = gb_state(b), close = gb_state(b);
    schema_byte(b, from, '[', unlike ? STEP_OPEN : STEP_PLAIN, at);
    at = space(b, at);
    schema_byte(b, space(b, close), ']', STEP_PLAIN, to);
    const cJSON *v;
    cJSON_ArrayForEach(v, prefix)
    {
        if (max >= 0 && i >= max) break;
        if (i >= min) gb_eps(b, at, close);
        if (i > 0) {
            int32_t comma = gb_state(b);
            schema_byte(b, at, ',', STEP_PLAIN, comma);
            at = space(b, comma);
        }
        int32_t next = gb_state(b);
        put_item(c, at, rule_at(c, v, "prefixItems", i), unlike, next);
        at = next;
        i++;
    }
    int64_t least = min > i ? min - i : 0, most = max < 0 ? -1 : max - i;
    if (cJSON_IsFalse(items) || (!items && least == 0)) { /* no more than is wanted or described */
        if (least == 0) gb_eps(b, at, close);
        return !c->rc;
    }
    int32_t loop = gb_state(b), comma = gb_state(b);
    gb_enter(b, at, gb_bounds(b, (int32_t)least, (int32_t)most), loop);
    schema_byte(b, loop, ',', STEP_COUNT, comma);
    put_item(c, space(b, comma), item, unlike, loop);
    gb_leave(b, loop, close);
    return !c->rc;
}

/* ------------------------------------------------------------------------- objects -- */

static void print_text(schema_compiler *c, int32_t from, const cJSON *v, int32_t to)
{
    char *text = json_print(v);
    if (text)
        gb_text(&c->b, from, text, strlen(text), to);
    else
        c->b.failed = true;
    cJSON_free(text);
}

static bool is_plain(int ch)
{
    return ch >= 0x20 && ch < 0x7F && ch != '"' && ch != '\\';
}

typedef struct {
    int32_t any;   /* what has been written is the beginning of no name: anything may follow */
    int32_t quote; /* the closing quote */
} key_ends;

/* What may follow in `state`, when what has been written is how all these names begin,
 * `depth` bytes long.  They are sorted, so those with the same next byte stand
 * together.  No deeper than KEY_MAX. */
static void other_keys_from(schema_compiler *c, int32_t state, const char *const *name, int n,
                            int depth, const key_ends *to)
{
    assert(depth >= 0 && depth <= KEY_MAX);
    g_builder *b = &c->b;
    int i = 0;
    while (i < n && !name[i][depth]) i++;
    if (i == 0) gb_leave(b, state, to->quote); /* it is no name itself */
    if (depth == KEY_MAX) return;
    int run = 0x20; /* from here on no name goes on */
    for (int ch = 0x20; ch <= 0x7F && !b->failed; ch++) {
        while (i < n && (unsigned char)name[i][depth] < ch) i++;
        int first = i;
        while (i < n && (unsigned char)name[i][depth] == ch) i++;
        if (i == first && is_plain(ch)) continue;
        if (run < ch) gb_bytes(b, state, run, ch - 1, STEP_COUNT, to->any);
        run = ch + 1;
        if (i == first || !is_plain(ch)) continue;
        int32_t next = gb_state(b);
        gb_bytes(b, state, ch, ch, STEP_COUNT, next);
        other_keys_from(c, next, name + first, i - first, depth + 1, to);
    }
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Keys of other members: ASCII without escapes, and none of the names.  Such a key is
 * never a name in disguise. */
static void other_keys(schema_compiler *c, int32_t from, const cJSON *props, int32_t to)
{
    g_builder *b = &c->b;
    int32_t open = gb_state(b), at = gb_state(b);
    key_ends ends = {.any = gb_state(b), .quote = gb_state(b)};
    schema_byte(b, from, '"', STEP_PLAIN, open);
    gb_enter(b, open, gb_bounds(b, 0, KEY_MAX), at);
    schema_byte(b, ends.quote, '"', STEP_PLAIN, to);
    static const char plain[][2] = {{' ', '!'}, {'#', '['}, {']', '~'}};
    for (int i = 0; i < 3; i++)
        gb_bytes(b, ends.any, plain[i][0], plain[i][1], STEP_COUNT, ends.any);
    gb_leave(b, ends.any, ends.quote);
    int n = cJSON_GetArraySize(props), k = 0;
    if (n > OTHERS_MAX) {
        (void)schema_fail(c, ERR_LIMIT, "too many properties beside additionalProperties");
        return;
    }
    const char **name = calloc((size_t)n + 1, sizeof(*name));
    if (!name) {
        b->failed = true;
        return;
    }
    for (const cJSON *v = props ? props->child : NULL; v; v = v->next) name[k++] = v->string;
    qsort((void *)name, (size_t)k, sizeof(*name), by_bytes);
    other_keys_from(c, at, name, k, 0, &ends);
    free((void *)name);
}

typedef struct {
    const char *name;
    const cJSON *schema; /* NULL: any value */
    bool required;
} property;

/* Whether the schema of names holds for one; only what speaks of it alone is understood. */
static bool name_holds(schema_compiler *c, const cJSON *names, const char *name)
{
    const cJSON *v, *x;
    int64_t min = 0, max = -1, n = (int64_t)strlen(name);
    bool holds = !cJSON_IsFalse(names), found = false;
    cJSON *text = schema_own(c, cJSON_CreateString(name));
    if (!schema_take_size(c, names, "minLength", &min) ||
        !schema_take_size(c, names, "maxLength", &max) || !text)
        return false;
    cJSON_ArrayForEach(v, names)
    {
        const char *w = v->string;
        if (strcmp(w, "pattern") == 0) {
            for (x = cJSON_IsArray(v) ? v->child : v; x && holds; x = x == v ? NULL : x->next)
                holds =
                    cJSON_IsString(x) && schema_matches(c, x->valuestring, name, &found) && found;
        } else if (strcmp(w, "minLength") == 0 || strcmp(w, "maxLength") == 0) {
            for (const char *p = name; *p; p++) n -= ((unsigned char)*p & 0xC0) == 0x80;
            holds = holds && n >= min && (max < 0 || n <= max);
        } else if (strcmp(w, "const") == 0) {
            holds = holds && json_same(v, text);
        } else if (strcmp(w, "enum") == 0) {
            holds = holds && schema_requires(v, name);
        } else if (strcmp(w, "type") == 0) {
            holds = holds && schema_type_has(v, "string");
        } else if (schema_keyword(w)) {
            return schema_unsupported(c, "propertyNames", " of this schema");
        }
    }
    return holds;
}

/* What holds for a member: its own schema (NULL: none), those of the patterns that its name
 * matches; or else that of additional ones.  NULL: anything. */
static const cJSON *schema_of_member(schema_compiler *c, const cJSON *s, const char *name,
                                     const cJSON *own)
{
    const cJSON *v, *names = schema_get(s, "propertyNames"), *rest = NULL;
    bool found = false;
    if (names && !name_holds(c, names, name)) return schema_own(c, cJSON_CreateFalse());
    if (!own) rest = schema_of_unlisted(c, s, name);
    cJSON_ArrayForEach(v, schema_get(s, "patternProperties"))
    {
        if (!schema_matches(c, v->string, name, &found)) return NULL;
        if (found) own = own ? schema_both(c, own, v) : v;
        if (c->rc) return NULL;
    }
    return own && rest ? schema_both(c, own, rest) : own ? own : rest;
}

/* Named members in order, then those that are required without being described. */
static property *properties_of(schema_compiler *c, const cJSON *s, int *n)
{
    const cJSON *props = schema_get(s, "properties"), *required = schema_get(s, "required");
    int cap = cJSON_GetArraySize(props) + cJSON_GetArraySize(required);
    property *list_of = calloc((size_t)cap + 1, sizeof(*list_of));
    *n = 0;
    if (!list_of) {
        (void)schema_fail(c, ERR_NOMEM, "no memory");
        return NULL;
    }
    const cJSON *v;
    cJSON_ArrayForEach(v, props)
    {
        list_of[(*n)++] = (property){v->string, v, schema_requires(required, v->string)};
    }
    cJSON_ArrayForEach(v, required)
    {
        if (!cJSON_IsString(v)) {
            (void)schema_fail(c, ERR_INPUT, "'required' must be an array of strings");
            break;
        }
        if (!schema_get(props, v->valuestring))
            list_of[(*n)++] = (property){v->valuestring, NULL, true};
    }
    for (int i = 0; i < *n && !c->rc; i++)
        list_of[i].schema = schema_of_member(c, s, list_of[i].name, list_of[i].schema);
    return list_of;
}

/* `name": value`, behind its quote. */
static void named(schema_compiler *c, int32_t from, const property *p, int32_t value, int32_t to)
{
    g_builder *b = &c->b;
    int32_t colon = gb_state(b), after = gb_state(b);
    cJSON *name = cJSON_CreateString(p->name);
    char *text = json_print(name);
    if (text)
        gb_text(b, from, text + 1, strlen(text + 1), colon);
    else
        b->failed = true;
    cJSON_free(text);
    cJSON_Delete(name);
    schema_byte(b, colon, ':', STEP_PLAIN, after);
    gb_call(b, space(b, after), value, BOUNDS_NONE, to);
}

/* The named members in order, then others, each like one of the pairs. */
/* Where the text may stand, by how many members there are: `top` are that many or more, or, with
 * `most`, no more than that.  -1: there is no such place. */
typedef struct {
    int32_t at[COUNTED_MAX + 1];
    int top;
    bool most;
} tally;

/* A named member is the next one, or is left out where it may be. */
static void next_named(schema_compiler *c, tally *t, const property *p, int32_t value)
{
    assert(t->top >= 0 && t->top <= COUNTED_MAX);
    g_builder *b = &c->b;
    tally next = {.top = t->top, .most = t->most};
    int32_t quote[COUNTED_MAX + 1]; /* the name and its value, by what comes next */
    for (int k = 0; k <= t->top; k++) next.at[k] = quote[k] = -1;
    for (int k = 0; k <= t->top; k++) {
        int more = k < t->top ? k + 1 : k;
        int32_t from = t->at[k];
        if (from < 0 || (t->most && k == t->top)) continue;
        if (next.at[more] < 0) next.at[more] = gb_state(b);
        if (k > 0) {
            int32_t comma = gb_state(b);
            schema_byte(b, from, ',', STEP_PLAIN, comma);
            from = space(b, comma);
        }
        if (quote[more] < 0) {
            quote[more] = gb_state(b);
            named(c, quote[more], p, value, next.at[more]);
        }
        schema_byte(b, from, '"', STEP_PLAIN, quote[more]);
    }
    for (int k = 0; k <= t->top && !p->required; k++) {
        if (next.at[k] < 0)
            next.at[k] = t->at[k];
        else if (t->at[k] >= 0)
            gb_eps(b, t->at[k], next.at[k]);
    }
    *t = next;
}

/* Behind the named members others: at least `min` in all, and with different names where that is
 * more than one. */
static void then_others(schema_compiler *c, const tally *t, const pair *others, int n_others,
                        int64_t min, int32_t close)
{
    g_builder *b = &c->b;
    bool counts = min > 1;
    int32_t loop = gb_state(b), comma = gb_state(b), next = space(b, comma), out = loop;
    for (int k = 0; k <= t->top; k++) {
        int32_t from = t->at[k], to = k > 0 ? loop : gb_state(b);
        int64_t least = min - (k > 0 ? k : 1);
        if (from < 0) continue;
        if (counts)
            gb_enter(b, from, gb_bounds(b, (int32_t)(least > 0 ? least : 0), -1), to);
        else
            gb_eps(b, from, to);
        for (int i = 0; i < n_others && k == 0; i++) put_member(c, to, &others[i], counts, loop);
    }
    schema_byte(b, loop, ',', counts ? STEP_COUNT : STEP_PLAIN, comma);
    for (int i = 0; i < n_others; i++) put_member(c, next, &others[i], counts, loop);
    if (counts) {
        out = gb_state(b);
        gb_leave(b, loop, out);
    }
    gb_eps(b, out, close);
}

static void with_names(schema_compiler *c, const property *p, int n, const pair *others,
                       int n_others, int64_t min, int64_t max, int32_t from, int32_t to)
{
    g_builder *b = &c->b;
    int32_t open = gb_state(b), close = gb_state(b);
    tally t = {.top = (int)(min > 1 ? min : 1), .most = max >= 0 && max < n};
    if (t.most) t.top = (int)max;
    schema_byte(b, from, '{', min > 1 && n_others > 0 ? STEP_OPEN : STEP_PLAIN, open);
    assert(t.top >= 0 && t.top <= COUNTED_MAX);
    for (int k = 1; k <= t.top; k++) t.at[k] = -1;
    t.at[0] = space(b, open);
    int32_t out = space(b, close);
    schema_byte(b, out, '}', STEP_PLAIN, to);
    int last = n - 1; /* the last that must be there */
    while (last >= 0 && !p[last].required) last--;
    /* The way out is said first: it must not be lost where a set has more ways than it keeps. */
    if (last < 0 && min == 0) gb_eps(b, t.at[0], out);
    for (int i = 0; i < n && !b->failed && !c->rc; i++) {
        size_t old = schema_enter(c, "properties", -1), deep = schema_enter(c, p[i].name, -1);
        int32_t value = p[i].schema ? rule_of(c, p[i].schema) : c->value;
        schema_leave(c, deep);
        schema_leave(c, old);
        next_named(c, &t, &p[i], value);
        for (int k = min > 1 ? (int)min : 1; k <= t.top && i >= last; k++)
            if (t.at[k] >= 0) gb_eps(b, t.at[k], close);
    }
    if (n_others > 0) then_others(c, &t, others, n_others, min, close);
}

/* Keys, where the names have a schema. */
static const cJSON *schema_of_names(schema_compiler *c, const cJSON *names)
{
    cJSON *text = cJSON_CreateObject();
    cJSON_AddStringToObject(text, "type", "string");
    bool shaped = !cJSON_IsObject(names) || schema_get(names, "pattern") ||
                  schema_get(names, "format") || schema_get(names, "enum") ||
                  schema_get(names, "const") || schema_has_parts(names);
    if (!shaped) cJSON_AddNumberToObject(text, "maxLength", KEY_MAX);
    const cJSON *own = schema_own(c, text);
    return own ? schema_both(c, own, names) : NULL;
}

/* The members that are not named, as far as they are written; `wanted`: even where nothing is said
 * of them. */
static int other_members(schema_compiler *c, const cJSON *s, const property *p, int n, bool wanted,
                         pair *out)
{
    const cJSON *add = schema_additional(s), *patterns, *names;
    patterns = schema_get(s, "patternProperties");
    names = schema_get(s, "propertyNames");
    if (!names && !(patterns && patterns->child)) {
        if (cJSON_IsFalse(add) || (!add && !wanted)) return 0;
        int32_t before = c->b.current, keys = gb_rule(&c->b);
        other_keys(c, schema_start(c, keys), schema_get(s, "properties"), schema_end(c, keys));
        c->b.current = before;
        int32_t value = add ? rule_at(c, add, "additionalProperties", -1) : c->value;
        *out = (pair){keys, BOUNDS_NONE, value};
        return 1;
    }
    const char **name = calloc((size_t)n + 1, sizeof(*name));
    if (!name) c->b.failed = true;
    for (int i = 0; i < n && name; i++) name[i] = p[i].name;
    size_t old = schema_enter(c, "patternProperties", -1);
    int k = name ? schema_open_members(c, s, name, n, out) : 0;
    if (k < 0 && n == 0)
        (void)schema_unsupported(c, "patternProperties", " with such an expression");
    schema_leave(c, old);
    free((void *)name);
    return k < 0 ? 0 : k;
}

/* Are those that it names never there?  Then others are written. */
static bool all_absent(const property *p, int n)
{
    for (int i = 0; i < n; i++)
        if (p[i].required || !cJSON_IsFalse(p[i].schema)) return false;
    return true;
}

/* Edges for the objects of a schema. Named members come in the order of `properties`, so that
 * which are there needs no set of states; members without a name are counted, to COUNTED_MAX. */
static bool build_object(schema_compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    const cJSON *props = schema_get(s, "properties"), *required = schema_get(s, "required");
    const cJSON *add = schema_additional(s);
    int64_t min = 0, max = -1;
    if (props && !cJSON_IsObject(props))
        return schema_fail(c, ERR_INPUT, "'properties' must be an object");
    if (required && !cJSON_IsArray(required)) {
        return schema_fail(c, ERR_INPUT, "'required' must be an array of strings");
    }
    if (!schema_take_size(c, s, "minProperties", &min) ||
        !schema_take_size(c, s, "maxProperties", &max)) {
        return false;
    }
    if (max >= 0 && min > max) return true; /* nothing */
    int n = 0;
    if (min > COUNTED_MAX) return schema_unsupported(c, "minProperties", " with so many members");
    property *p = properties_of(c, s, &n);
    bool closed = cJSON_IsFalse(add);
    const cJSON *patterns = schema_get(s, "patternProperties"), *names;
    names = schema_get(s, "propertyNames");
    pair other[OPEN_MAX];
    /* Empty `properties` list all members, as those with members do. */
    bool listed = props && !add && !names && min == 0;
    if (p && n == 0 && !closed && !listed && !(patterns && patterns->child)) {
        int32_t value = add ? rule_at(c, add, "additionalProperties", -1) : c->value;
        pair any = {c->bounded, gb_bounds(&c->b, 0, KEY_MAX), value};
        if (names) any.bounds = BOUNDS_NONE;
        if (names) any.key = rule_at(c, schema_of_names(c, names), "propertyNames", -1);
        map(c, from, &any, 1, min, max, to);
    } else if (p) {
        bool wanted = min > n || (n > 0 && all_absent(p, n));
        int n_other = max >= 0 && n > 0 ? 0 : other_members(c, s, p, n, wanted, other);
        if (max > COUNTED_MAX && max < n)
            (void)schema_unsupported(c, "maxProperties", " with so many members");
        else if (n == 0)
            map(c, from, other, n_other, min, max, to);
        else
            with_names(c, p, n, other, n_other, min, max, from, to);
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
    return schema_type_has(types, t) ||
           (strcmp(t, "integer") == 0 && schema_type_has(types, "number"));
}

/* `not` leaves values out. */
static bool is_left_out(const cJSON *s, const cJSON *value)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, schema_left_out(s))
    {
        if (json_same(v, value)) return true;
    }
    return false;
}

static int by_value(const void *a, const void *b)
{
    return json_order(*(const cJSON *const *)a, *(const cJSON *const *)b);
}

/* Numbers between those that `not` lists. */
static bool build_other_numbers(schema_compiler *c, const cJSON *s, bool whole, int32_t from,
                                int32_t to)
{
    const cJSON *out = schema_left_out(s), *v, **list_of;
    int n = 0;
    if (cJSON_IsBool(schema_get(s, "exclusiveMinimum")) ||
        cJSON_IsBool(schema_get(s, "exclusiveMaximum")))
        return schema_unsupported(c, "exclusiveMinimum", " as a flag beside 'not'");
    list_of = calloc((size_t)cJSON_GetArraySize(out) + 1, sizeof(cJSON *));
    if (!list_of) return schema_fail(c, ERR_NOMEM, "no memory");
    cJSON_ArrayForEach(v, out)
    {
        if (cJSON_IsNumber(v)) list_of[n++] = v;
    }
    qsort((void *)list_of, (size_t)n, sizeof(cJSON *), by_value);
    for (int i = 0; i <= n && !c->rc; i++) {
        cJSON *gap = cJSON_CreateObject();
        if (i > 0)
            cJSON_AddItemToObject(gap, "exclusiveMinimum", cJSON_Duplicate(list_of[i - 1], true));
        if (i < n)
            cJSON_AddItemToObject(gap, "exclusiveMaximum", cJSON_Duplicate(list_of[i], true));
        const cJSON *other = schema_own(c, gap), *one = other ? schema_merge(c, s, other) : NULL;
        if (one && !c->rc) (void)schema_build_number(c, one, whole, from, to);
    }
    free((void *)list_of);
    return !c->rc;
}

/* Objects or arrays of which a part differs from those that `not` lists. */
static bool build_others_of(schema_compiler *c, const cJSON *s, const char *t, int32_t from,
                            int32_t to)
{
    cJSON *bare = cJSON_Duplicate(s, true), *listed = cJSON_CreateArray(), *values, *part;
    const cJSON *v;
    cJSON_DeleteItemFromObjectCaseSensitive(bare, "not");
    cJSON_DeleteItemFromObjectCaseSensitive(bare, "type");
    cJSON_AddStringToObject(bare, "type", t);
    cJSON_ArrayForEach(v, schema_left_out(s))
    {
        if (strcmp(type_of_value(v), t) == 0)
            cJSON_AddItemToArray(listed, cJSON_Duplicate(v, true));
    }
    values = schema_saying("enum", listed);
    part = schema_opposite(c, values, s);
    cJSON_Delete(values);
    const cJSON *rest = schema_own(c, bare);
    if (!part) return schema_unsupported(c, "not", " of these values");
    const cJSON *other = schema_own(c, part), *sum = NULL;
    if (rest && other) sum = schema_merge(c, rest, other);
    return sum && build(c, sum, from, to);
}

/* Where `not` leaves out some of a type, the rest of it; of true, false and null one by one. */
static bool build_the_rest(schema_compiler *c, const cJSON *s, const char *t, int32_t from,
                           int32_t to)
{
    if (strcmp(t, "number") == 0 || strcmp(t, "integer") == 0)
        return build_other_numbers(c, s, *t == 'i', from, to);
    if (strcmp(t, "object") == 0 || strcmp(t, "array") == 0)
        return build_others_of(c, s, t, from, to);
    if (strcmp(t, "string") == 0) /* strings keep their own */
        return schema_build_string(c, s, from, to);
    for (int i = strcmp(t, "null") == 0 ? 2 : 0; i < (*t == 'n' ? 3 : 2); i++) {
        cJSON *literal = i == 2 ? cJSON_CreateNull() : cJSON_CreateBool(i == 0);
        if (!is_left_out(s, literal)) print_text(c, from, literal, to);
        cJSON_Delete(literal);
    }
    return !c->rc;
}

bool schema_value_is(const cJSON *types, const cJSON *value)
{
    return has_type(types, type_of_value(value));
}

/* All else that is said holds for a listed value; where that is not known, the error names what. */
static bool may_write(schema_compiler *c, const cJSON *s, const cJSON *value)
{
    const cJSON *w;
    holding h = schema_holds_beside(c, s, value);
    for (w = s->child; h == HOLDS_UNKNOWN && w; w = w->next) {
        const keyword *k = schema_keyword(w->string);
        if (k && k->kind != ANY) return schema_unsupported(c, w->string, " beside enum");
    }
    return h == HOLDS;
}

/* The values of an enum for which the other keywords hold. */
static bool build_values(schema_compiler *c, const cJSON *s, const cJSON *values, int32_t from,
                         int32_t to)
{
    const cJSON *v;
    int n = cJSON_GetArraySize(values), used = 0;
    char **text = calloc((size_t)n + 1, sizeof(*text));
    size_t *len = calloc((size_t)n + 1, sizeof(*len));
    cJSON_ArrayForEach(v, values)
    {
        if (!text || !len || !may_write(c, s, v)) continue;
        text[used] = json_print(v);
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
    return !c->rc;
}

/* Does `not` speak of values of the type? */
static bool leaves_out_some(const cJSON *s, const char *t)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, schema_left_out(s))
    {
        const char *out = type_of_value(v);
        if (strcmp(out, t) == 0 || (strcmp(t, "number") == 0 && strcmp(out, "integer") == 0))
            return true;
    }
    return false;
}

static bool build_type(schema_compiler *c, const cJSON *s, const char *t, int32_t from, int32_t to)
{
    if (leaves_out_some(s, t)) return build_the_rest(c, s, t, from, to);
    if (strcmp(t, "object") == 0) return build_object(c, s, from, to);
    if (strcmp(t, "array") == 0) return build_array(c, s, from, to);
    if (strcmp(t, "string") == 0) return schema_build_string(c, s, from, to);
    if (strcmp(t, "number") == 0) return schema_build_number(c, s, false, from, to);
    if (strcmp(t, "integer") == 0) return schema_build_number(c, s, true, from, to);
    if (strcmp(t, "null") == 0) {
        gb_text(&c->b, from, "null", 4, to);
        return true;
    }
    if (strcmp(t, "boolean") == 0) {
        gb_text(&c->b, from, "true", 4, to);
        gb_text(&c->b, from, "false", 5, to);
        return true;
    }
    return schema_fail(c, ERR_INPUT,
                       "'type' must be object, array, string, number, integer, boolean or null");
}

static bool build_types(schema_compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    const cJSON *types = schema_get(s, "type"), *v;
    if (cJSON_IsString(types)) return build_type(c, s, types->valuestring, from, to);
    if (types && !cJSON_IsArray(types)) return schema_fail(c, ERR_INPUT, "'type' must be a string");
    cJSON_ArrayForEach(v, types)
    {
        if (!cJSON_IsString(v)) return schema_fail(c, ERR_INPUT, "'type' must hold strings");
        if (!build_type(c, s, v->valuestring, from, to)) return false;
    }
    if (types) return true;
    static const char *const name_of[] = {
        [OBJECT] = "object", [ARRAY] = "array", [STRING] = "string", [NUMBER] = "number"};
    bool wanted[REFUSED + 1] = {false}, any = true;
    cJSON_ArrayForEach(v, s)
    {
        const keyword *k = schema_keyword(v->string);
        if (k) wanted[k->kind] = true;
    }
    for (int k = OBJECT; k <= NUMBER; k++) any = any && !wanted[k];
    bool every = !any && c->every_kind;
    for (int k = OBJECT; k <= NUMBER; k++) {
        if (!wanted[k] && !every) continue;
        if (!build_type(c, s, name_of[k], from, to)) return false;
    }
    for (int k = OBJECT; any && schema_get(s, "not") && k <= NUMBER; k++)
        if (!build_type(c, s, name_of[k], from, to)) return false;
    if (every || (any && schema_get(s, "not")))
        return build_type(c, s, "boolean", from, to) && build_type(c, s, "null", from, to);
    if (any) gb_call(&c->b, from, c->value, BOUNDS_NONE, to);
    return true;
}

static bool build_all(schema_compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    const cJSON *all = schema_get(s, "allOf"), *v;
    if (!cJSON_IsArray(all)) return schema_fail(c, ERR_INPUT, "allOf must be an array");
    const cJSON *sum = schema_without(c, s, "allOf");
    int i = 0;
    cJSON_ArrayForEach(v, all)
    {
        size_t old = schema_enter(c, "allOf", i++);
        const cJSON *one = cJSON_IsObject(v) ? schema_target(c, v) : v;
        if (sum && one && (!cJSON_IsObject(one) || schema_check_words(c, one)))
            sum = schema_merge(c, sum, one);
        schema_leave(c, old);
        if (!sum || !one || c->rc) return false;
    }
    return sum && build(c, sum, from, to);
}

/* One schema between two states, by the keyword that says most: $ref, allOf, anyOf, oneOf,
 * const, enum, then the types. A $ref with other keywords beside it is merged with its target
 * first. */
static bool build_one(schema_compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    if (cJSON_IsFalse(s)) return true; /* nothing */
    if (!cJSON_IsObject(s)) {
        if (!cJSON_IsTrue(s))
            return schema_fail(c, ERR_INPUT, "a schema must be an object or a boolean");
        gb_call(&c->b, from, c->value, BOUNDS_NONE, to);
        return true;
    }
    s = schema_plain(c, s, false);
    if (!s || !schema_check_words(c, s)) return false;
    if (schema_get(s, "$ref")) {
        if (!schema_says_more_than(s, "$ref")) {
            gb_call(&c->b, from, rule_of(c, s), BOUNDS_NONE, to);
            return !c->rc;
        }
        cJSON *alone = schema_own(c, cJSON_CreateObject());
        if (!alone) return false;
        cJSON_AddItemToObject(alone, "$ref", cJSON_Duplicate(schema_get(s, "$ref"), true));
        const cJSON *rest = schema_without(c, s, "$ref"), *target = schema_target(c, alone);
        const cJSON *sum = rest && target ? schema_merge(c, rest, target) : NULL;
        return sum && build(c, sum, from, to);
    }
    if (schema_get(s, "allOf")) return build_all(c, s, from, to);
    if (schema_get(s, "anyOf")) return schema_build_branches(c, s, "anyOf", from, to);
    if (schema_get(s, "oneOf")) return schema_build_branches(c, s, "oneOf", from, to);
    if (cJSON_IsTrue(schema_get(s, "nullable"))) gb_text(&c->b, from, "null", 4, to);
    const cJSON *only = schema_get(s, "const"), *values = schema_get(s, "enum");
    if (only) {
        cJSON *one = schema_own(c, cJSON_CreateArray());
        if (one) cJSON_AddItemToArray(one, cJSON_Duplicate(only, true));
        if (one && values) one = schema_own(c, schema_common_values(one, values));
        return one && build_values(c, s, one, from, to);
    }
    if (values) {
        if (!cJSON_IsArray(values)) return schema_fail(c, ERR_INPUT, "'enum' must be an array");
        return build_values(c, s, values, from, to);
    }
    return build_types(c, s, from, to);
}

static bool build(schema_compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    if (c->b.failed) return schema_fail(c, ERR_LIMIT, "the schema is too large");
    if (c->nest >= NEST_MAX) return schema_fail(c, ERR_LIMIT, "the schema has too many levels");
    c->nest++;
    bool ok = build_one(c, s, from, to);
    assert(c->nest > 0);
    c->nest--;
    return ok && !c->rc;
}

int32_t schema_rule(schema_compiler *c, const cJSON *s)
{
    return rule_of(c, s);
}

/* Builds free text with tags, or one schema; NULL: any object. */
typedef struct {
    const cJSON *root;
    const g_auto *answer; /* with tags: the form of a text that has none; NULL: free text */
    bool tagged;
} whole;

static void build_root(schema_compiler *c, const whole *what, int32_t rule)
{
    int32_t from = schema_start(c, rule), to = schema_end(c, rule);
    const cJSON *root = what->root;
    if (what->tagged) {
        (void)grammar_put_tags(c, root, what->answer, from, to);
        return;
    }
    int32_t inner = root ? rule_of(c, root) : c->object;
    gb_call(&c->b, from, inner, BOUNDS_NONE, to);
}

/* `empty`: nothing else is wrong, but there is no text. */
static err_code build_once(g_auto *out, const whole *what, bool every_kind, bool *empty, err *e)
{
    schema_compiler *c = calloc(1, sizeof(*c));
    known_rule *known = calloc(NODES_MAX, sizeof(*known));
    *empty = false;
    if (!c || !known) {
        free(c);
        free(known);
        return err_set(e, ERR_NOMEM, "no memory");
    }
    c->known = known;
    c->root = what->root;
    c->every_kind = every_kind;
    c->e = e;
    c->path[0] = '#';
    c->path_len = 1;
    gb_init(&c->b);
    build_shared(c);
    int n_shared = c->b.n_states;
    int32_t root = gb_rule(&c->b);
    build_root(c, what, root);
    build_all_rules(c);
    err_code rc = c->rc;
    if (rc) {
        gb_clear(&c->b);
    } else {
        rc = gb_finish(&c->b, root, n_shared, out, e);
        *empty = rc == ERR_INPUT;
    }
    for (int i = 0; i < c->n_merged; i++) cJSON_Delete(c->merged[i]);
    for (int i = 0; i < c->n_known; i++) {
        free(c->known[i].path);
        free((void *)c->known[i].parts);
    }
    free(known);
    free(c);
    return rc;
}

/* What joined schemas say in our words does not come from outside: a list of patterns, and names
 * that begin with a byte of 1.  `names`: the members of v are not keywords. */
static err_code check_ours(const cJSON *v, bool names, err *e)
{
    const cJSON *x;
    err_code rc = ERR_NONE;
    cJSON_ArrayForEach(x, v)
    {
        bool word = x->string && !names;
        if (word && x->string[0] == 1)
            return err_set(e, ERR_INPUT, "a keyword must not begin with the byte 1");
        if (word && schema_holds_data(x->string)) continue;
        if (word && strcmp(x->string, "pattern") == 0 && cJSON_IsArray(x))
            return err_set(e, ERR_INPUT, "'pattern' must be a string");
        if (x->child && (rc = check_ours(x, word && schema_is_map(x->string), e))) break;
    }
    return rc;
}

/* Without a type, the kinds that the keywords speak of are written; all others hold as well, and
 * are written where these have no text. */
static err_code build_auto(g_auto *out, whole what, const grammar_documents *documents, err *e)
{
    cJSON *resolved = NULL;
    bool empty;
    if (check_ours(what.root, false, e)) return e->code;
    if (!what.tagged && schema_resolved(what.root, documents, &resolved, e)) return e->code;
    if (resolved) what.root = resolved;
    err_code rc = build_once(out, &what, false, &empty, e);
    if (empty) rc = build_once(out, &what, true, &empty, e);
    cJSON_Delete(resolved);
    return rc;
}

err_code grammar_build_schema(g_auto *out, const cJSON *schema, const grammar_documents *documents,
                              err *e)
{
    return build_auto(out, (whole){.root = schema}, documents, e);
}

err_code grammar_build_tags(g_auto *out, const cJSON *spec, const g_auto *answer, err *e)
{
    return build_auto(out, (whole){.root = spec, .answer = answer, .tagged = true}, NULL, e);
}
