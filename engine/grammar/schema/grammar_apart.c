/* grammar_apart.c -- oneOf: that what one branch writes never holds for another.
 *
 * A proof by what is said: kinds of values, bounds, values that are listed, members that one
 * requires and the other cannot have.  What is not proven is not apart.
 */
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

enum { DEEP_MAX = 12 }; /* schemas in one another that a proof looks into */

enum { OBJECT_KIND, ARRAY_KIND, STRING_KIND, NUMBER_KIND, BOOLEAN_KIND, NULL_KIND, KINDS };
enum { ALL_KINDS = (1 << KINDS) - 1 };
static const char *const kinds[KINDS] = {"object", "array", "string", "number", "boolean", "null"};

/* Two schemas that are compared: what `a` writes, or with `holds` all that holds for it (where more
 * is joined to it before it is written), against what holds for b. */
typedef struct {
    schema_compiler *c;
    bool holds;
    int deep; /* schemas that may still be entered */
} proof;

static bool apart(proof p, const cJSON *a, const cJSON *b);

/* A schema's members; NULL: none, or they are no object. */
static const cJSON *members(const cJSON *s)
{
    const cJSON *props = schema_get(s, "properties");
    return cJSON_IsObject(props) ? props : NULL;
}

/* ------------------------------------------------------------------------- kinds -- */

static unsigned kinds_of_type(const cJSON *types)
{
    unsigned out = schema_type_has(types, "integer") ? 1U << NUMBER_KIND : 0;
    for (int k = 0; k < KINDS; k++)
        if (schema_type_has(types, kinds[k])) out |= 1U << k;
    return out;
}

static unsigned kind_of_value(const cJSON *v)
{
    return 1U << (cJSON_IsObject(v)   ? OBJECT_KIND
                  : cJSON_IsArray(v)  ? ARRAY_KIND
                  : cJSON_IsString(v) ? STRING_KIND
                  : cJSON_IsNumber(v) ? NUMBER_KIND
                  : cJSON_IsBool(v)   ? BOOLEAN_KIND
                                      : NULL_KIND);
}

static unsigned kinds_of_values(const cJSON *s)
{
    unsigned out = 0;
    for (const cJSON *v = NULL; (v = schema_next_value(s, v));) out |= kind_of_value(v);
    return out;
}

static bool lists(const cJSON *s, const cJSON *value)
{
    for (const cJSON *v = NULL; (v = schema_next_value(s, v));)
        if (json_same(v, value)) return true;
    return false;
}

static bool has_values(const cJSON *s)
{
    return schema_get(s, "const") || cJSON_IsArray(schema_get(s, "enum"));
}

/* Both list their values, and none of a's is b's. */
static bool values_apart(const cJSON *a, const cJSON *b)
{
    if (!has_values(a) || !has_values(b)) return false;
    for (const cJSON *v = NULL; (v = schema_next_value(a, v));)
        if (lists(b, v)) return false;
    return true;
}

/* None of the values that `a` lists holds for b. */
static bool none_holds(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    if (!has_values(a) || cJSON_IsTrue(schema_get(a, "nullable"))) return false;
    for (const cJSON *v = NULL; (v = schema_next_value(a, v));)
        if (schema_holds(c, b, v) != HOLDS_NOT) return false;
    return true;
}

/* Those that the keywords speak of: only these are written where no type is given. */
static unsigned kinds_of_words(const cJSON *s)
{
    const cJSON *v;
    unsigned out = 0;
    cJSON_ArrayForEach(v, s)
    {
        const keyword *k = schema_keyword(v->string);
        if (k && k->kind >= OBJECT && k->kind <= NUMBER) out |= 1U << (k->kind - OBJECT);
    }
    return out;
}

/* Kinds of values that hold, and no fewer; `written`: that are written. */
static unsigned kinds_of(const cJSON *s, bool written)
{
    const cJSON *types = schema_get(s, "type");
    unsigned out = types ? kinds_of_type(types) : ALL_KINDS;
    if (written && !types && !schema_has_parts(s) && kinds_of_words(s)) out = kinds_of_words(s);
    if (has_values(s)) out &= kinds_of_values(s);
    if (cJSON_IsTrue(schema_get(s, "nullable"))) out |= 1U << NULL_KIND;
    return out;
}

/* ------------------------------------------------------------------------ bounds -- */

static const cJSON *number_at(const cJSON *s, const char *name)
{
    const cJSON *v = schema_get(s, name);
    return cJSON_IsNumber(v) ? v : NULL;
}

/* Is all up to `most` below all from `least`?  open: one of the two is no value itself. */
static bool below(const cJSON *most, const cJSON *least, bool open)
{
    int order = most && least ? json_order(most, least) : 1;
    return order < 0 || (order == 0 && open);
}

static bool ends_below(const cJSON *a, const cJSON *b)
{
    const cJSON *max = number_at(a, "maximum"), *under = number_at(a, "exclusiveMaximum");
    const cJSON *min = number_at(b, "minimum"), *over = number_at(b, "exclusiveMinimum");
    return below(max, min, false) || below(max, over, true) || below(under, min, true) ||
           below(under, over, true);
}

static bool sizes_apart(const cJSON *a, const cJSON *b, const char *min, const char *max)
{
    return below(number_at(a, max), number_at(b, min), false) ||
           below(number_at(b, max), number_at(a, min), false);
}

/* ----------------------------------------------------------------------- objects -- */

static bool is_closed(const cJSON *s)
{
    if (schema_get(s, "patternProperties")) return false;
    return cJSON_IsFalse(schema_get(s, "additionalProperties")) ||
           (cJSON_IsFalse(schema_get(s, "unevaluatedProperties")) && !schema_has_parts(s));
}

/* Does `s` write no such member?  An object with named members writes these, and what its patterns
 * match. */
static bool never_writes(proof p, const cJSON *s, const char *name)
{
    const cJSON *props = members(s), *required = schema_get(s, "required"), *v;
    bool names = cJSON_GetArraySize(required), found = false;
    if (cJSON_IsFalse(schema_get(props, name))) return true;
    if (schema_get(props, name) || schema_requires(required, name)) return false;
    cJSON_ArrayForEach(v, props) names |= !cJSON_IsFalse(v);
    cJSON_ArrayForEach(v, schema_get(s, "patternProperties"))
    {
        if (!schema_matches(p.c, v->string, name, &found) || found) return false;
    }
    bool more = schema_get(s, "additionalProperties") || schema_get(s, "unevaluatedProperties");
    return is_closed(s) || (names && !p.holds && !more);
}

static bool objects_apart(proof p, const cJSON *a, const cJSON *b)
{
    const cJSON *props = members(a), *others = members(b);
    const cJSON *mine = schema_get(a, "required"), *theirs = schema_get(b, "required"), *v;
    p.holds |= schema_has_parts(a);
    cJSON_ArrayForEach(v, theirs)
    {
        if (cJSON_IsString(v) && never_writes(p, a, v->valuestring)) return true;
    }
    cJSON_ArrayForEach(v, mine)
    {
        if (cJSON_IsString(v) && is_closed(b) && !schema_get(others, v->valuestring)) return true;
    }
    cJSON_ArrayForEach(v, props)
    {
        const cJSON *other = schema_get(others, v->string);
        bool there = schema_requires(mine, v->string) || schema_requires(theirs, v->string);
        if (other && there && apart(p, v, other)) return true;
    }
    return false;
}

/* ------------------------------------------------------------------------- both -- */

static bool kind_apart(proof p, int kind, const cJSON *a, const cJSON *b)
{
    switch (kind) {
    case OBJECT_KIND: return objects_apart(p, a, b);
    case ARRAY_KIND: return sizes_apart(a, b, "minItems", "maxItems");
    case STRING_KIND: return sizes_apart(a, b, "minLength", "maxLength");
    case NUMBER_KIND: return ends_below(a, b) || ends_below(b, a);
    default: return false;
    }
}

static bool all_apart(proof p, const cJSON *branches, const cJSON *b)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, branches)
    {
        if (!apart(p, v, b)) return false;
    }
    return cJSON_IsArray(branches) && branches->child;
}

static bool apart_from_all(proof p, const cJSON *a, const cJSON *branches)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, branches)
    {
        if (!apart(p, a, v)) return false;
    }
    return cJSON_IsArray(branches) && branches->child;
}

/* By what one of them is made of. */
static bool parts_apart(proof p, const cJSON *a, const cJSON *b)
{
    static const char *const words[] = {"anyOf", "oneOf"};
    const cJSON *v;
    proof joined = {p.c, true, p.deep};
    for (int i = 0; i < 2; i++) {
        bool alone = !schema_says_more_than(a, words[i]);
        if (apart_from_all(p, a, schema_get(b, words[i])) ||
            all_apart(alone ? p : joined, schema_get(a, words[i]), b))
            return true;
    }
    cJSON_ArrayForEach(v, schema_get(b, "allOf"))
    {
        if (apart(p, a, v)) return true;
    }
    cJSON_ArrayForEach(v, schema_get(a, "allOf"))
    {
        if (apart(joined, v, b)) return true;
    }
    return false;
}

static bool apart(proof p, const cJSON *a, const cJSON *b)
{
    schema_compiler *c = p.c;
    if (c->rc || p.deep-- == 0) return false;
    if (++c->merge_work >= MERGE_WORK_MAX) return schema_fail(c, ERR_LIMIT, "too much to compare");
    a = cJSON_IsObject(a) ? schema_target(c, a) : a;
    b = cJSON_IsObject(b) ? schema_target(c, b) : b;
    if (!a || !b) return false;
    if (cJSON_IsFalse(a) || cJSON_IsFalse(b)) return true;
    if (!cJSON_IsObject(a) || !cJSON_IsObject(b)) return false;
    if (parts_apart(p, a, b) || none_holds(c, a, b) || none_holds(c, b, a)) return true;
    unsigned both = kinds_of(a, !p.holds && !c->every_kind) & kinds_of(b, false);
    if (values_apart(a, b)) both &= cJSON_IsTrue(schema_get(a, "nullable")) ? 1U << NULL_KIND : 0;
    for (int k = 0; k < KINDS; k++)
        if ((both & 1U << k) && !kind_apart(p, k, a, b)) return false;
    return true;
}

bool schema_apart(schema_compiler *c, const cJSON *written, const cJSON *other)
{
    return apart((proof){c, false, DEEP_MAX}, written, other);
}

bool schema_holds_apart(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    return apart((proof){c, true, DEEP_MAX}, a, b);
}

const char *schema_telling_member(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    const cJSON *v, *others = members(b);
    if (!cJSON_IsObject(a) || !cJSON_IsObject(b)) return NULL;
    if (kinds_of(a, !c->every_kind) != 1U << OBJECT_KIND ||
        kinds_of(b, !c->every_kind) != 1U << OBJECT_KIND)
        return NULL;
    cJSON_ArrayForEach(v, members(a))
    {
        const cJSON *other = schema_get(others, v->string);
        if (other && schema_apart(c, v, other) && schema_apart(c, other, v)) return v->string;
    }
    return NULL;
}
