/* grammar_plain.c -- keywords of a JSON schema that others say as well, before anything is built.
 *
 * if, not and dependencies become allOf and anyOf; items as an array what later drafts call it.
 * What these allow holds for the first, though not all that would hold for them is allowed.  What
 * cannot be said so is refused by name.
 */
#include <math.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/grammar_schema.h"

enum {
    DEEP_MAX = 12,   /* schemas in one another whose opposite is sought */
    CHOICES_MAX = 4, /* dependencies that are each said as a choice */
};

static const char *const types[] = {"object",  "array",  "string", "integer",
                                    "boolean", "number", "null"};

/* {word: value}; takes the value. */
static cJSON *saying(const char *word, cJSON *value)
{
    cJSON *s = cJSON_CreateObject();
    cJSON_AddItemToObject(s, word, value);
    return s;
}

static cJSON *copy_of(const cJSON *s)
{
    return cJSON_Duplicate(s, true);
}

static cJSON *list_of(cJSON *a, cJSON *b)
{
    cJSON *list = cJSON_CreateArray();
    if (a) cJSON_AddItemToArray(list, a);
    if (b) cJSON_AddItemToArray(list, b);
    return list;
}

static cJSON *all_of(cJSON *a, cJSON *b)
{
    return saying("allOf", list_of(a, b));
}

static cJSON *member(const char *name, cJSON *schema)
{
    return saying("properties", saying(name, schema));
}

static cJSON *requiring(const char *name)
{
    return saying("required", list_of(cJSON_CreateString(name), NULL));
}

/* `out` is joined with another schema. */
static void add_part(cJSON *out, cJSON *part)
{
    cJSON_AddItemToArray(schema_list(out, "allOf"), part);
}

static cJSON *take(cJSON *out, const char *word)
{
    return cJSON_DetachItemFromObjectCaseSensitive(out, word);
}

/* -------------------------------------------------------------------- the opposite -- */

static cJSON *opposite(schema_compiler *c, const cJSON *s, int deep);

static cJSON *other_types(const cJSON *said)
{
    cJSON *list = cJSON_CreateArray();
    bool number = schema_type_has(said, "number"), integer = schema_type_has(said, "integer");
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        bool left_out = strcmp(types[i], "integer") == 0  ? number || integer
                        : strcmp(types[i], "number") == 0 ? number || integer
                                                          : schema_type_has(said, types[i]);
        if (!left_out) cJSON_AddItemToArray(list, cJSON_CreateString(types[i]));
    }
    return saying("type", list);
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
        if (sides[i].add && (size < 0 || size != floor(size) || size > LENGTH_MAX)) return NULL;
        cJSON *s = saying("type", cJSON_CreateString(sides[i].type));
        cJSON_AddItemToObject(s, sides[i].other,
                              sides[i].add ? cJSON_CreateNumber(size) : copy_of(v));
        return s;
    }
    return NULL;
}

/* All opposites at once, or NULL. */
static cJSON *none_of(schema_compiler *c, const cJSON *list, int deep)
{
    cJSON *all = cJSON_CreateArray();
    const cJSON *v;
    cJSON_ArrayForEach(v, list)
    {
        cJSON *one = opposite(c, v, deep - 1);
        if (!one) {
            cJSON_Delete(all);
            return NULL;
        }
        cJSON_AddItemToArray(all, one);
    }
    return saying("allOf", all);
}

/* What a keyword of a schema does not hold for is added to `any`. */
static void add_opposites(schema_compiler *c, const cJSON *v, int deep, cJSON *any)
{
    static const char *const object = "object";
    const char *word = v->string;
    const cJSON *x;
    cJSON *one = NULL;
    if (strcmp(word, "type") == 0) one = other_types(v);
    if (strcmp(word, "const") == 0) one = saying("not", saying("enum", list_of(copy_of(v), NULL)));
    if (strcmp(word, "enum") == 0) one = saying("not", saying("enum", copy_of(v)));
    if (strcmp(word, "not") == 0) one = copy_of(v);
    if (strcmp(word, "anyOf") == 0 || strcmp(word, "oneOf") == 0) one = none_of(c, v, deep);
    if (!one) one = beyond(v);
    if (one) cJSON_AddItemToArray(any, one);
    bool all = strcmp(word, "allOf") == 0, props = strcmp(word, "properties") == 0;
    bool required = strcmp(word, "required") == 0 && cJSON_IsArray(v);
    if (!all && !props && !required) return;
    cJSON_ArrayForEach(x, v)
    {
        if (required && !cJSON_IsString(x)) continue;
        one = required ? member(x->valuestring, cJSON_CreateFalse()) : opposite(c, x, deep - 1);
        if (!one) continue;
        if (props) {
            one = member(x->string, one);
            cJSON_AddItemToObject(one, "required", list_of(cJSON_CreateString(x->string), NULL));
        }
        if (!all) cJSON_AddItemToObject(one, "type", cJSON_CreateString(object));
        cJSON_AddItemToArray(any, one);
    }
}

/* A schema of values that `s` does not hold for; NULL: none is known. */
static cJSON *opposite(schema_compiler *c, const cJSON *s, int deep)
{
    if (deep == 0 || c->rc || ++c->merge_work >= MERGE_WORK_MAX) return NULL;
    if (cJSON_IsObject(s)) s = schema_target(c, s);
    if (!s || cJSON_IsFalse(s)) return s ? cJSON_CreateTrue() : NULL;
    if (cJSON_IsTrue(s) || !schema_says_more_than(s, "")) return cJSON_CreateFalse();
    if (!cJSON_IsObject(s) || schema_get(s, "nullable")) return NULL;
    cJSON *any = cJSON_CreateArray();
    const cJSON *v;
    cJSON_ArrayForEach(v, s) add_opposites(c, v, deep, any);
    if (any->child) return saying("anyOf", any);
    cJSON_Delete(any);
    return NULL;
}

cJSON *schema_opposite(schema_compiler *c, const cJSON *s)
{
    return opposite(c, s, DEEP_MAX);
}

/* -------------------------------------------------------------------- the keywords -- */

static void say_if(schema_compiler *c, cJSON *out)
{
    cJSON *cond = take(out, "if"), *then = take(out, "then"), *other = take(out, "else");
    if (cond && (then || other)) {
        cJSON *no = opposite(c, cond, DEEP_MAX), *any = cJSON_CreateArray();
        cJSON_AddItemToArray(any, all_of(cond, then));
        if (no) cJSON_AddItemToArray(any, all_of(no, other));
        if (!no) cJSON_Delete(other);
        add_part(out, saying("anyOf", any));
        return;
    }
    cJSON_Delete(cond);
    cJSON_Delete(then);
    cJSON_Delete(other);
}

/* {"enum": ..}: values that are left out, which is kept as it is. */
static bool lists_values(const cJSON * not )
{
    return cJSON_IsArray(schema_get(not, "enum")) && !schema_says_more_than(not, "enum");
}

static bool say_not(schema_compiler *c, cJSON *out)
{
    const cJSON *said = schema_get(out, "not");
    if (!said || lists_values(said)) return true;
    cJSON *not = take(out, "not"), *part = opposite(c, not, DEEP_MAX);
    cJSON_Delete(not );
    if (!part) return schema_unsupported(c, "not", " of this schema");
    add_part(out, part);
    return true;
}

/* Is it never a member?  Of a schema that no other will be joined to, or that closes others out. */
static bool is_shut_out(const cJSON *out, const char *name)
{
    return cJSON_IsFalse(schema_get(out, "additionalProperties")) &&
           !schema_get(out, "patternProperties") &&
           !schema_get(schema_get(out, "properties"), name);
}

/* Where there is a member `v->string`, more is required; of many, that is required always. */
static bool depend(schema_compiler *c, cJSON *out, const cJSON *v, int *choices)
{
    cJSON *more = NULL;
    if (cJSON_IsArray(v)) more = saying("required", copy_of(v));
    if (cJSON_IsString(v)) more = requiring(v->valuestring); /* draft 3 */
    if (cJSON_IsObject(v) || cJSON_IsBool(v)) more = copy_of(v);
    if (!more) return schema_fail(c, ERR_INPUT, "a dependency must be an array or a schema");
    if (is_shut_out(out, v->string)) {
        cJSON_Delete(more);
    } else if (schema_requires(schema_get(out, "required"), v->string) ||
               ++*choices > CHOICES_MAX) {
        add_part(out, more);
    } else {
        add_part(out, saying("anyOf", list_of(member(v->string, cJSON_CreateFalse()),
                                              all_of(requiring(v->string), more))));
    }
    return true;
}

static bool say_dependencies(schema_compiler *c, cJSON *out)
{
    static const char *const words[] = {"dependencies", "dependentRequired", "dependentSchemas"};
    int choices = 0;
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        cJSON *all = take(out, words[i]);
        const cJSON *v;
        cJSON_ArrayForEach(v, all) ok = ok && depend(c, out, v, &choices);
        cJSON_Delete(all);
    }
    return ok;
}

static void say_items(cJSON *out)
{
    cJSON *more = take(out, "additionalItems");
    if (cJSON_IsArray(schema_get(out, "items"))) {
        cJSON *first = take(out, "items");
        cJSON_DeleteItemFromObjectCaseSensitive(out, "prefixItems");
        cJSON_AddItemToObject(out, "prefixItems", first);
        if (more) cJSON_AddItemToObject(out, "items", more);
        return;
    }
    cJSON_Delete(more);
}

/* Each `contains` with its bounds is one of an array, so that parts may have one each. */
static void say_contains(cJSON *out)
{
    static const char *const words[] = {"contains", "minContains", "maxContains"};
    if (cJSON_IsArray(schema_get(out, "contains"))) return;
    cJSON *one = cJSON_CreateObject();
    for (int i = 0; i < 3; i++) {
        cJSON *v = take(out, words[i]);
        if (v) cJSON_AddItemToObject(one, words[i], v);
    }
    if (schema_get(one, "contains"))
        cJSON_AddItemToObject(out, "contains", list_of(one, NULL));
    else
        cJSON_Delete(one);
}

bool schema_has_parts(const cJSON *s)
{
    static const char *const words[] = {"anyOf",
                                        "oneOf",
                                        "allOf",
                                        "$ref",
                                        "if",
                                        "not",
                                        "contains",
                                        "dependencies",
                                        "dependentRequired",
                                        "dependentSchemas"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (schema_get(s, words[i])) return true;
    return false;
}

static bool speaks_of_the_rest(const cJSON *s)
{
    const cJSON *members = schema_get(s, "unevaluatedProperties");
    const cJSON *items = schema_get(s, "unevaluatedItems");
    return (members && !cJSON_IsTrue(members)) || (items && !cJSON_IsTrue(items));
}

static bool is_plain(const cJSON *s)
{
    static const char *const words[] = {"if", "dependencies", "dependentRequired",
                                        "dependentSchemas", "additionalItems"};
    const cJSON *not = schema_get(s, "not");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (schema_get(s, words[i])) return false;
    const cJSON *some = schema_get(s, "contains");
    return (!not || lists_values(not )) && !cJSON_IsArray(schema_get(s, "items")) &&
           (!some || cJSON_IsArray(some));
}

static const cJSON *make_plain(schema_compiler *c, const cJSON *s, bool part)
{
    if (speaks_of_the_rest(s) && (part || schema_has_parts(s)))
        s = schema_own(c, schema_without_unevaluated(c, s));
    if (!cJSON_IsObject(s) || is_plain(s)) return s;
    cJSON *out = schema_shallow(s);
    say_items(out);
    say_contains(out);
    bool ok = say_dependencies(c, out);
    if (ok) say_if(c, out);
    ok = ok && say_not(c, out);
    if (ok && !c->rc) return schema_own(c, out);
    cJSON_Delete(out);
    return NULL;
}

const cJSON *schema_plain(schema_compiler *c, const cJSON *s, bool part)
{
    if (!cJSON_IsObject(s) || (is_plain(s) && !speaks_of_the_rest(s))) return s;
    size_t i = ((uintptr_t)s->child >> 4) % PLAIN_MAX;
    if (c->plain[i].of == s->child && c->plain[i].part == part) return c->plain[i].is;
    const cJSON *of = s->child, *out = make_plain(c, s, part);
    c->plain[i].of = out ? of : NULL;
    c->plain[i].is = out;
    c->plain[i].part = part;
    return out;
}
