/* grammar_opposite.c -- schemas of what another schema does not hold for.
 *
 * An opposite is a list of ways, of which any one is enough; each fails one keyword.  It may hold
 * for less than the true opposite, never for more: what has no opposite here is left out, and so is
 * what formats say, for they may say nothing.  Where a member must fail that has no name, one is
 * chosen: of those that the schema beside it names, or an example.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

enum {
    DEEP_MAX = 8,            /* schemas in one another whose opposite is sought */
    TURNS_MAX = 400,         /* schemas in one search */
    NODES_TURNED_MAX = 4000, /* values that one search writes */
    ALL_MAX = 200000,        /* and all searches of a compilation */
    WAYS_MAX = 24,           /* of one schema */
    PRODUCT_MAX = 16,        /* ways of several opposites at once, each with each */
};

/* One search; `beside`: what the opposite will be joined with, or NULL. */
typedef struct {
    schema_compiler *c;
    const cJSON *beside;
    int deep, *turns;
    int64_t most; /* turned_nodes at which it ends */
} turn;

static const char *const types[] = {"object",  "array",  "string", "integer",
                                    "boolean", "number", "null"};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

static cJSON *opposite(turn t, const cJSON *s, const cJSON *beside);
static bool add_ways(turn t, const cJSON *s, cJSON *ways);

/* ----------------------------------------------------------------------- writing -- */

cJSON *schema_saying(const char *word, cJSON *value)
{
    cJSON *s = cJSON_CreateObject();
    cJSON_AddItemToObject(s, word, value);
    return s;
}

cJSON *schema_these(cJSON *a, cJSON *b)
{
    cJSON *list = cJSON_CreateArray();
    if (a) cJSON_AddItemToArray(list, a);
    if (b) cJSON_AddItemToArray(list, b);
    return list;
}

static cJSON *copy_of(const cJSON *s)
{
    return cJSON_Duplicate(s, true);
}

/* Of a schema that is to hold; where there is no room for it, of none. */
static cJSON *part_of(turn t, const cJSON *s)
{
    t.c->turned_nodes += 2 + schema_nodes(s);
    return t.c->turned_nodes < t.most ? copy_of(s) : cJSON_CreateFalse();
}

static cJSON *of_type(const char *type)
{
    return schema_saying("type", cJSON_CreateString(type));
}

static cJSON *word_of(const char *word, const cJSON *value)
{
    return schema_saying(word, copy_of(value));
}

static cJSON *both(cJSON *a, cJSON *b)
{
    return schema_saying("allOf", schema_these(a, b));
}

/* An object without the member. */
static cJSON *missing(const char *name)
{
    cJSON *s = of_type("object");
    cJSON_AddItemToObject(s, "properties", schema_saying(name, cJSON_CreateFalse()));
    return s;
}

/* An object with the member; takes its schema. */
static cJSON *having(const char *name, cJSON *schema)
{
    cJSON *s = of_type("object");
    cJSON_AddItemToObject(s, "properties", schema_saying(name, schema));
    cJSON_AddItemToObject(s, "required", schema_these(cJSON_CreateString(name), NULL));
    return s;
}

/* An array whose item at `place` is of the schema, which is taken. */
static cJSON *having_item(int place, cJSON *schema)
{
    cJSON *s = of_type("array"), *first = cJSON_AddArrayToObject(s, "prefixItems");
    for (int i = 0; i < place; i++) cJSON_AddItemToArray(first, cJSON_CreateTrue());
    cJSON_AddItemToArray(first, schema);
    cJSON_AddTrueToObject(s, "items");
    cJSON_AddNumberToObject(s, "minItems", place + 1);
    return s;
}

/* Takes a way; one that never holds is none. */
static bool add(cJSON *ways, cJSON *way)
{
    if (!way) return false;
    if (cJSON_IsFalse(way) || cJSON_GetArraySize(ways) >= WAYS_MAX)
        cJSON_Delete(way);
    else
        cJSON_AddItemToArray(ways, way);
    return true;
}

/* One schema of the ways, which are taken. */
static cJSON *any_of(cJSON *ways)
{
    cJSON *one = NULL;
    if (!ways->child) one = cJSON_CreateFalse();
    if (ways->child && !ways->child->next) one = cJSON_DetachItemFromArray(ways, 0);
    if (!one) return schema_saying("anyOf", ways);
    cJSON_Delete(ways);
    return one;
}

/* ------------------------------------------------------------------- of all kinds -- */

static bool all_types_known(const cJSON *said)
{
    const cJSON *v;
    bool known = cJSON_IsString(said) || cJSON_IsArray(said), found = false;
    for (int i = 0; cJSON_IsString(said) && i < TYPES; i++)
        found |= strcmp(types[i], said->valuestring) == 0;
    if (cJSON_IsString(said)) return found;
    cJSON_ArrayForEach(v, said) known = known && cJSON_IsString(v) && all_types_known(v);
    return known;
}

static bool add_types(const cJSON *said, cJSON *ways)
{
    if (!all_types_known(said)) return false;
    cJSON *list = cJSON_CreateArray();
    bool number = schema_type_has(said, "number"), integer = schema_type_has(said, "integer");
    for (int i = 0; i < TYPES; i++) {
        bool left_out = strcmp(types[i], "integer") == 0  ? number || integer
                        : strcmp(types[i], "number") == 0 ? number || integer
                                                          : schema_type_has(said, types[i]);
        if (!left_out) cJSON_AddItemToArray(list, cJSON_CreateString(types[i]));
    }
    bool some = list->child != NULL;
    cJSON *others = schema_saying("type", list);
    if (!some) cJSON_Delete(others);
    (void)add(ways, some ? others : cJSON_CreateFalse());
    if (!integer || number) return true;
    cJSON *broken = of_type("number");
    cJSON_AddItemToObject(broken, "not", schema_saying("multipleOf", cJSON_CreateNumber(1)));
    return add(ways, broken);
}

/* What holds for one value alone. */
static cJSON *schema_of_value(const cJSON *value)
{
    cJSON *s = of_type(cJSON_IsArray(value) ? "array" : "object");
    const cJSON *v;
    cJSON *all = cJSON_IsArray(value) ? cJSON_AddArrayToObject(s, "prefixItems")
                                      : cJSON_AddObjectToObject(s, "properties");
    cJSON *required = cJSON_IsArray(value) ? NULL : cJSON_AddArrayToObject(s, "required");
    cJSON_ArrayForEach(v, value)
    {
        if (required) cJSON_AddItemToArray(required, cJSON_CreateString(v->string));
        if (required)
            cJSON_AddItemToObject(all, v->string, word_of("const", v));
        else
            cJSON_AddItemToArray(all, word_of("const", v));
    }
    int n = cJSON_GetArraySize(value);
    if (required) {
        cJSON_AddFalseToObject(s, "additionalProperties");
    } else {
        cJSON_AddNumberToObject(s, "minItems", n);
        cJSON_AddNumberToObject(s, "maxItems", n);
    }
    return s;
}

/* None of the values, which all are objects or all arrays. */
static cJSON *none_of_values(turn t, const cJSON *values, bool arrays)
{
    cJSON *all = cJSON_CreateArray();
    const cJSON *v;
    cJSON_ArrayForEach(v, values)
    {
        if (!(arrays ? cJSON_IsArray(v) : cJSON_IsObject(v))) continue;
        cJSON *said = schema_of_value(v), *no = opposite(t, said, t.beside);
        cJSON_Delete(said);
        cJSON_AddItemToArray(all, no ? no : cJSON_CreateFalse());
    }
    cJSON *s = of_type(arrays ? "array" : "object");
    cJSON_AddItemToObject(s, "allOf", all);
    return s;
}

/* Simple values are left out by `not`, which is kept so; of objects and arrays one part differs. */
static bool add_other_values(turn t, const cJSON *values, cJSON *ways)
{
    const cJSON *v;
    cJSON *simple = cJSON_CreateArray();
    bool objects = false, arrays = false;
    if (!cJSON_IsArray(values)) return false;
    cJSON_ArrayForEach(v, values)
    {
        objects |= cJSON_IsObject(v);
        arrays |= cJSON_IsArray(v);
        if (!cJSON_IsObject(v) && !cJSON_IsArray(v)) cJSON_AddItemToArray(simple, copy_of(v));
    }
    cJSON *rest = schema_saying("not", schema_saying("enum", simple));
    if (objects || arrays) {
        cJSON *list = cJSON_AddArrayToObject(rest, "type");
        for (int i = objects ? 1 : 0; i < TYPES; i++)
            if (i != 1 || !arrays) cJSON_AddItemToArray(list, cJSON_CreateString(types[i]));
    }
    (void)add(ways, rest);
    if (objects) (void)add(ways, none_of_values(t, values, false));
    if (arrays) (void)add(ways, none_of_values(t, values, true));
    return true;
}

/* A bound on the other side. */
static cJSON *beyond(const cJSON *v)
{
    static const struct {
        const char *word, *other, *type;
        int add; /* to a size; sizes are whole numbers */
    } sides[] = {
        {"minimum", "exclusiveMaximum", "number", 0},
        {"maximum", "exclusiveMinimum", "number", 0},
        {"exclusiveMinimum", "maximum", "number", 0},
        {"exclusiveMaximum", "minimum", "number", 0},
        {"minLength", "maxLength", "string", -1},
        {"maxLength", "minLength", "string", 1},
        {"minItems", "maxItems", "array", -1},
        {"maxItems", "minItems", "array", 1},
        {"minProperties", "maxProperties", "object", -1},
        {"maxProperties", "minProperties", "object", 1},
    };
    for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++) {
        double size = v->valuedouble + sides[i].add;
        if (strcmp(v->string, sides[i].word) != 0 || !cJSON_IsNumber(v)) continue;
        if (sides[i].add && (size != floor(size) || size > LENGTH_MAX)) return NULL;
        if (sides[i].add && size < 0) return cJSON_CreateFalse();
        cJSON *s = of_type(sides[i].type);
        cJSON_AddItemToObject(s, sides[i].other,
                              sides[i].add ? cJSON_CreateNumber(size) : copy_of(v));
        return s;
    }
    return NULL;
}

/* -------------------------------------------------------------------------- parts -- */

/* All ways of `a` with all of `b`, both taken. */
static cJSON *each_with_each(turn t, cJSON *a, cJSON *b)
{
    cJSON *out = cJSON_CreateArray();
    const cJSON *x, *y;
    int64_t n = cJSON_GetArraySize(a), m = cJSON_GetArraySize(b);
    if (n * m > PRODUCT_MAX) {
        cJSON_AddItemToArray(out, both(any_of(a), any_of(b)));
        return out;
    }
    cJSON_ArrayForEach(x, a)
    {
        cJSON_ArrayForEach(y, b)
        {
            cJSON *mine = cJSON_IsTrue(x) ? NULL : part_of(t, x);
            cJSON *other = cJSON_IsTrue(y) && mine ? NULL : part_of(t, y);
            bool none = cJSON_IsFalse(mine) || cJSON_IsFalse(other);
            cJSON *way = mine && other ? both(mine, other) : mine ? mine : other;
            if (none)
                cJSON_Delete(way);
            else
                cJSON_AddItemToArray(out, way);
        }
    }
    cJSON_Delete(a);
    cJSON_Delete(b);
    return out;
}

/* None of the schemas holds. */
static bool add_none(turn t, const cJSON *list, cJSON *ways)
{
    cJSON *all = schema_these(cJSON_CreateTrue(), NULL);
    const cJSON *v;
    bool known = cJSON_IsArray(list);
    cJSON_ArrayForEach(v, list)
    {
        cJSON *one = cJSON_CreateArray();
        known = known && add_ways(t, v, one);
        if (known)
            all = each_with_each(t, all, one);
        else
            cJSON_Delete(one);
    }
    while (known && all->child) (void)add(ways, cJSON_DetachItemFromArray(all, 0));
    cJSON_Delete(all);
    return known;
}

/* Two hold. */
static void add_twice(turn t, const cJSON *list, cJSON *ways)
{
    const cJSON *x, *y;
    cJSON_ArrayForEach(x, list)
    {
        for (y = x->next; y; y = y->next) (void)add(ways, both(part_of(t, x), part_of(t, y)));
    }
}

/* `then` fails where `cond` holds, or `other` where it does not. */
static bool add_if(turn t, const cJSON *s, const cJSON *cond, cJSON *ways)
{
    const cJSON *then = schema_get(s, "then"), *other = schema_get(s, "else");
    cJSON *no_then = then ? opposite(t, then, t.beside) : NULL;
    cJSON *no_other = other ? opposite(t, other, t.beside) : NULL;
    cJSON *no = no_other ? opposite(t, cond, t.beside) : NULL;
    bool known = no_then || no || (!then && !other);
    if (no_then) (void)add(ways, both(part_of(t, cond), no_then));
    if (no) (void)add(ways, both(no, no_other));
    if (!no) cJSON_Delete(no_other);
    return known;
}

static bool add_of_target(turn t, const cJSON *ref, cJSON *ways)
{
    cJSON *alone = word_of("$ref", ref);
    const cJSON *target = schema_target(t.c, alone);
    bool known = target && target != alone && add_ways(t, target, ways);
    cJSON_Delete(alone);
    return known;
}

/* ------------------------------------------------------------------------ objects -- */

/* Does it speak of a member as an additional one? */
static bool is_additional(const cJSON *s, const char *name)
{
    const cJSON *v;
    if (schema_get(schema_get(s, "properties"), name)) return false;
    cJSON_ArrayForEach(v, schema_get(s, "patternProperties"))
    {
        bool found = false;
        err e;
        if (g_regex_finds(v->string, strlen(v->string), name, &found, &e) || found) return false;
    }
    return true;
}

static void add_name(cJSON *names, const char *name)
{
    if (name && !schema_get(names, name)) cJSON_AddTrueToObject(names, name);
}

/* A text in which the pattern is found becomes a name. */
static void add_example(cJSON *names, const char *pattern)
{
    char example[128];
    if (g_regex_example(pattern, strlen(pattern), example, sizeof(example)))
        add_name(names, example);
}

/* Names that members may have here: of the schema beside, of the one turned; some of no meaning. */
static cJSON *names_for(turn t, const cJSON *s, const char *pattern)
{
    static const char *const more[] = {"other", "name", "a", "0"};
    const cJSON *from[] = {t.beside, s}, *v;
    cJSON *names = cJSON_CreateObject();
    for (int i = 0; i < 2; i++) {
        cJSON_ArrayForEach(v, schema_get(from[i], "properties"))
        {
            if (!cJSON_IsFalse(v)) add_name(names, v->string);
        }
        cJSON_ArrayForEach(v, schema_get(from[i], "required"))
            add_name(names, cJSON_GetStringValue(v));
    }
    cJSON_ArrayForEach(v, schema_get(t.beside, "patternProperties")) add_example(names, v->string);
    if (pattern) add_example(names, pattern);
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) add_name(names, more[i]);
    return names;
}

enum { NAMES_MAX = 4 }; /* that are tried for one keyword */

/* A member under a pattern, or (NULL) an additional one, fails `schema`. */
static bool add_unnamed(turn t, const cJSON *s, const char *pattern, const cJSON *schema,
                        cJSON *ways)
{
    cJSON *no = opposite(t, schema, NULL), *names;
    const cJSON *v;
    int n = 0;
    if (!no || cJSON_IsFalse(no)) {
        cJSON_Delete(no);
        return no != NULL;
    }
    names = names_for(t, s, pattern);
    cJSON_ArrayForEach(v, names)
    {
        bool found = false;
        err e;
        if (pattern && (g_regex_finds(pattern, strlen(pattern), v->string, &found, &e) || !found))
            continue;
        if (!pattern && !is_additional(s, v->string)) continue;
        if (n++ < NAMES_MAX) (void)add(ways, having(v->string, part_of(t, no)));
    }
    cJSON_Delete(names);
    cJSON_Delete(no);
    return n > 0;
}

/* Texts that a schema speaks of become names. */
static void add_examples(const cJSON *s, cJSON *names)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, s)
    {
        const char *text = cJSON_GetStringValue(v);
        if (text && v->string && strcmp(v->string, "pattern") == 0)
            add_example(names, text);
        else
            add_name(names, text);
        add_examples(v, names);
    }
}

/* A member whose name is none. */
static bool add_wrong_names(turn t, const cJSON *said, cJSON *ways)
{
    cJSON *no = opposite(t, said, NULL), *names = NULL;
    const cJSON *v;
    int n = 0;
    if (no) names = names_for(t, NULL, NULL);
    if (no) add_examples(no, names);
    cJSON_ArrayForEach(v, names)
    {
        cJSON *name = cJSON_CreateString(v->string);
        if (schema_holds(t.c, no, name) == HOLDS && n++ < NAMES_MAX)
            (void)add(ways, having(v->string, cJSON_CreateTrue()));
        cJSON_Delete(name);
    }
    cJSON_Delete(names);
    cJSON_Delete(no);
    return n > 0;
}

static bool add_missing(const cJSON *required, cJSON *ways)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, required)
    {
        if (cJSON_IsString(v)) (void)add(ways, missing(v->valuestring));
    }
    return cJSON_IsArray(required);
}

static bool is_same(const cJSON *a, const cJSON *b)
{
    return a && b && json_same(a, b);
}

static bool add_members(turn t, const cJSON *props, cJSON *ways)
{
    const cJSON *v, *mine = schema_get(t.beside, "properties");
    bool known = false;
    if (!cJSON_IsObject(props)) return false;
    cJSON_ArrayForEach(v, props)
    {
        const cJSON *there = schema_get(mine, v->string);
        bool same = is_same(there, v); /* then it never fails here */
        cJSON *no = same ? NULL : opposite(t, v, there);
        known |= same || no;
        if (no && !cJSON_IsFalse(no))
            (void)add(ways, having(v->string, no));
        else
            cJSON_Delete(no);
    }
    return known || !props->child;
}

/* A member asks for others, or for a schema, and these fail. */
static bool add_dependencies(turn t, const cJSON *all, cJSON *ways)
{
    const cJSON *v, *x;
    bool known = cJSON_IsObject(all);
    cJSON_ArrayForEach(v, all)
    {
        cJSON *names = cJSON_IsString(v) ? schema_these(copy_of(v), NULL) : NULL;
        const cJSON *asked = cJSON_IsArray(v) ? v : names;
        cJSON_ArrayForEach(x, asked)
        {
            cJSON *way = cJSON_IsString(x) && strcmp(x->valuestring, v->string) != 0
                             ? having(v->string, cJSON_CreateTrue())
                             : NULL;
            if (way)
                cJSON_AddItemToObject(cJSON_GetObjectItem(way, "properties"), x->valuestring,
                                      cJSON_CreateFalse());
            if (way) (void)add(ways, way);
        }
        cJSON_Delete(names);
        if (cJSON_IsString(v) || cJSON_IsArray(v)) continue;
        cJSON *no = opposite(t, v, t.beside);
        known = known && no;
        if (no) (void)add(ways, both(having(v->string, cJSON_CreateTrue()), no));
    }
    return known;
}

/* ------------------------------------------------------------------------- arrays -- */

static bool add_items(turn t, const cJSON *s, const cJSON *items, cJSON *ways)
{
    const cJSON *first = schema_get(s, "prefixItems");
    const cJSON *old = schema_get(s, "items"); /* of earlier drafts */
    int n = cJSON_GetArraySize(cJSON_IsArray(old) ? old : first);
    cJSON *no = opposite(t, items, schema_get(t.beside, "items"));
    if (!no) return false;
    if (cJSON_IsFalse(no))
        cJSON_Delete(no);
    else if (n < 64)
        (void)add(ways, having_item(n, no));
    return true;
}

static bool add_first_items(turn t, const cJSON *first, cJSON *ways)
{
    const cJSON *v;
    int i = 0;
    bool known = false;
    cJSON_ArrayForEach(v, first)
    {
        cJSON *no = i < 64 ? opposite(t, v, NULL) : NULL;
        known |= no != NULL;
        if (no && !cJSON_IsFalse(no))
            (void)add(ways, having_item(i, no));
        else
            cJSON_Delete(no);
        i++;
    }
    return known;
}

/* None of the items is like that, or too many are. */
static bool add_contained(turn t, const cJSON *s, const cJSON *said, cJSON *ways)
{
    const cJSON *least = schema_get(s, "minContains"), *most = schema_get(s, "maxContains");
    bool none = !least || !cJSON_IsNumber(least) || least->valuedouble > 0;
    cJSON *no = none ? opposite(t, said, NULL) : NULL;
    if (no) {
        cJSON *way = of_type("array");
        cJSON_AddItemToObject(way, "items", no);
        (void)add(ways, way);
    }
    if (cJSON_IsNumber(most)) {
        cJSON *way = of_type("array");
        cJSON_AddItemToObject(way, "contains", part_of(t, said));
        cJSON_AddNumberToObject(way, "minContains", most->valuedouble + 1);
        (void)add(ways, way);
    }
    return no || most || !none;
}

/* Two items are the same. */
static bool add_repeated(cJSON *ways)
{
    static const char *const twice =
        "{\"type\": \"array\", \"minItems\": 2, \"items\": true, \"prefixItems\": [%s, %s]}";
    static const char *const values[] = {"{\"const\": 0}", "{\"const\": \"\"}", "{\"const\": true}",
                                         "{\"const\": null}"};
    char text[200];
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof(text), twice, values[i], values[i]);
        (void)add(ways, cJSON_Parse(text));
    }
    return true;
}

/* ----------------------------------------------------------------------- keywords -- */

/* A keyword that is turned by being left to `not`, of values of one type. */
static bool add_not(const cJSON *v, const char *type, cJSON *ways)
{
    cJSON *way = of_type(type);
    cJSON_AddItemToObject(way, "not", word_of(v->string, v));
    return add(ways, way);
}

/* What is short and speaks of all, or of what is missing. */
static bool add_plainly(turn t, const cJSON *v, cJSON *ways)
{
    const char *word = v->string;
    if (strcmp(word, "type") == 0) return add_types(v, ways);
    if (strcmp(word, "required") == 0) return add_missing(v, ways);
    if (strcmp(word, "enum") == 0) return add_other_values(t, v, ways);
    if (strcmp(word, "const") == 0) {
        cJSON *one = schema_these(copy_of(v), NULL);
        bool known = add_other_values(t, one, ways);
        cJSON_Delete(one);
        return known;
    }
    if (strcmp(word, "not") == 0) return add(ways, part_of(t, v));
    if (strcmp(word, "format") == 0) return true; /* a note to some: no string surely fails it */
    if (strcmp(word, "multipleOf") == 0) return add_not(v, "number", ways);
    if (strcmp(word, "pattern") == 0) return add_not(v, "string", ways);
    return add(ways, beyond(v));
}

static bool add_of_object(turn t, const cJSON *s, const cJSON *v, cJSON *ways)
{
    const char *word = v->string;
    const cJSON *x;
    bool known = true;
    if (strcmp(word, "properties") == 0) return add_members(t, v, ways);
    if (strcmp(word, "additionalProperties") == 0) return add_unnamed(t, s, NULL, v, ways);
    if (strcmp(word, "unevaluatedProperties") == 0 && !schema_has_parts(s))
        return add_unnamed(t, s, NULL, v, ways);
    if (strcmp(word, "propertyNames") == 0) return add_wrong_names(t, v, ways);
    if (strcmp(word, "patternProperties") == 0) {
        cJSON_ArrayForEach(x, v) known = add_unnamed(t, s, x->string, x, ways) && known;
        return known;
    }
    if (strncmp(word, "depende", 7) == 0) return add_dependencies(t, v, ways);
    return false;
}

static bool add_of_array(turn t, const cJSON *s, const cJSON *v, cJSON *ways)
{
    const char *word = v->string;
    bool old = cJSON_IsArray(schema_get(s, "items"));
    if (strcmp(word, "prefixItems") == 0) return !old && add_first_items(t, v, ways);
    if (strcmp(word, "items") == 0)
        return old ? add_first_items(t, v, ways) : add_items(t, s, v, ways);
    if (strcmp(word, "additionalItems") == 0) return !old || add_items(t, s, v, ways);
    if (strcmp(word, "contains") == 0) return add_contained(t, s, v, ways);
    if (strcmp(word, "uniqueItems") == 0) return !cJSON_IsTrue(v) || add_repeated(ways);
    return false;
}

static bool add_of_parts(turn t, const cJSON *s, const cJSON *v, cJSON *ways)
{
    const char *word = v->string;
    const cJSON *x;
    bool known = false, one = strcmp(word, "oneOf") == 0;
    if (strcmp(word, "if") == 0) return add_if(t, s, v, ways);
    if (one || strcmp(word, "anyOf") == 0) {
        known = add_none(t, v, ways);
        if (one) add_twice(t, v, ways);
        return known || (one && cJSON_GetArraySize(v) > 1);
    }
    if (strcmp(word, "allOf") == 0) cJSON_ArrayForEach(x, v) known |= add_ways(t, x, ways);
    return known;
}

/* nullable: null holds whatever else is said, to some. */
static bool add_but_null(turn t, const cJSON *s, cJSON *ways)
{
    cJSON *rest = copy_of(s), *some = cJSON_CreateArray(), *v;
    cJSON_DeleteItemFromObjectCaseSensitive(rest, "nullable");
    bool known = add_ways(t, rest, some);
    while ((v = cJSON_DetachItemFromArray(some, 0))) {
        cJSON *kinds = cJSON_CreateArray();
        for (int i = 0; i + 1 < TYPES; i++)
            cJSON_AddItemToArray(kinds, cJSON_CreateString(types[i]));
        (void)add(ways, both(schema_saying("type", kinds), v));
    }
    cJSON_Delete(some);
    cJSON_Delete(rest);
    return known;
}

/* False: of nothing in it is an opposite known. */
static bool add_ways(turn t, const cJSON *s, cJSON *ways)
{
    const cJSON *v;
    bool known = false, says = false;
    if (t.deep-- == 0 || t.c->rc || ++*t.turns > TURNS_MAX || t.c->turned_nodes >= t.most)
        return false;
    t.c->turned_nodes += cJSON_GetArraySize(s) + 1;
    if (cJSON_IsFalse(s)) return add(ways, cJSON_CreateTrue());
    if (cJSON_IsTrue(s)) return true;
    if (!cJSON_IsObject(s)) return false;
    if (cJSON_IsTrue(schema_get(s, "nullable"))) return add_but_null(t, s, ways);
    if (schema_get(s, "$ref")) return add_of_target(t, schema_get(s, "$ref"), ways);
    for (int pass = 0; pass < 2; pass++) {
        cJSON_ArrayForEach(v, s)
        {
            const keyword *k = schema_keyword(v->string);
            if (!k || strcmp(v->string, "nullable") == 0) continue;
            says = true;
            if (pass == 0)
                known |= add_plainly(t, v, ways);
            else if (k->kind == OBJECT)
                known |= add_of_object(t, s, v, ways);
            else if (k->kind == ARRAY)
                known |= add_of_array(t, s, v, ways);
            else if (k->kind == ANY)
                known |= add_of_parts(t, s, v, ways);
        }
    }
    return known || !says;
}

static cJSON *opposite(turn t, const cJSON *s, const cJSON *beside)
{
    cJSON *ways = cJSON_CreateArray();
    t.beside = cJSON_IsObject(beside) ? schema_target(t.c, beside) : NULL;
    if (add_ways(t, s, ways)) return any_of(ways);
    cJSON_Delete(ways);
    return NULL;
}

cJSON *schema_opposite(schema_compiler *c, const cJSON *s, const cJSON *beside)
{
    int turns = 0;
    int64_t most = c->turned_nodes + NODES_TURNED_MAX;
    return opposite((turn){c, NULL, DEEP_MAX, &turns, most < ALL_MAX ? most : ALL_MAX}, s, beside);
}

cJSON *schema_values_but(schema_compiler *c, const cJSON *s, const cJSON *other, bool *unsaid)
{
    const cJSON *only = schema_get(s, "const"), *values = schema_get(s, "enum"), *v;
    if ((!only && !cJSON_IsArray(values)) || cJSON_IsTrue(schema_get(s, "nullable"))) return NULL;
    if (only && values) return NULL;
    cJSON *list = cJSON_CreateArray();
    for (v = NULL; (v = schema_next_value(s, v));) {
        holding h = schema_holds(c, other, v);
        if (h == HOLDS_NOT) cJSON_AddItemToArray(list, copy_of(v));
        *unsaid |= h == HOLDS_UNKNOWN;
    }
    return list;
}
