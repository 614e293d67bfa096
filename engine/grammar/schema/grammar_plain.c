/* grammar_plain.c -- keywords of a JSON schema that others say as well, before anything is built.
 *
 * if, not and dependencies become allOf and anyOf; items as an array what later drafts call it.
 * What these allow holds for the first, though not all that would hold for them is allowed.  What
 * cannot be said so is refused by name.
 */
#include <math.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

enum {
    CHOICES_MAX = 4, /* dependencies that are each said as a choice */
};

static cJSON *copy_of(const cJSON *s)
{
    return cJSON_Duplicate(s, true);
}

static cJSON *all_of(cJSON *a, cJSON *b)
{
    return schema_saying("allOf", schema_these(a, b));
}

static cJSON *member(const char *name, cJSON *schema)
{
    return schema_saying("properties", schema_saying(name, schema));
}

static cJSON *requiring(const char *name)
{
    return schema_saying("required", schema_these(cJSON_CreateString(name), NULL));
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

/* -------------------------------------------------------------------- the keywords -- */

static void say_if(schema_compiler *c, cJSON *out)
{
    cJSON *cond = take(out, "if"), *then = take(out, "then"), *other = take(out, "else");
    if (cond && (then || other)) {
        cJSON *no = schema_opposite(c, cond, out), *any = cJSON_CreateArray();
        cJSON_AddItemToArray(any, all_of(cond, then));
        if (no) cJSON_AddItemToArray(any, all_of(no, other));
        if (!no) cJSON_Delete(other);
        add_part(out, schema_saying("anyOf", any));
        return;
    }
    cJSON_Delete(cond);
    cJSON_Delete(then);
    cJSON_Delete(other);
}

const cJSON *schema_next_out(const cJSON *s, const cJSON *at)
{
    const cJSON *not = schema_get(s, "not"), *any = schema_get(not, "anyOf");
    if (at) return any ? at->next : NULL;
    return any ? any->child : not ;
}

static bool only_type(const cJSON *s, const char *a, const char *b)
{
    const cJSON *types = schema_get(s, "type"), *v;
    if (!cJSON_IsArray(types)) return schema_type_has(types, a) || schema_type_has(types, b);
    cJSON_ArrayForEach(v, types)
    {
        if (!schema_type_has(v, a) && !schema_type_has(v, b)) return false;
    }
    return true;
}

static bool keeps(const cJSON *s, const cJSON *one)
{
    bool text = cJSON_IsString(schema_get(one, "pattern"));
    if (!cJSON_IsObject(one) || !one->child || one->child->next) return false;
    if (cJSON_IsArray(schema_get(one, "enum"))) return true;
    return (text && only_type(s, "string", "string")) ||
           (cJSON_IsNumber(schema_get(one, "multipleOf")) && only_type(s, "number", "integer"));
}

/* Does `not` leave out what can be kept so: listed values, what a pattern finds, multiples? */
static bool keeps_not(const cJSON *s)
{
    const cJSON *not = schema_get(s, "not"), *one = schema_next_out(s, NULL);
    bool listed = cJSON_IsArray(schema_get(not, "anyOf"));
    if (listed && schema_says_more_than(not, "anyOf")) return false;
    if (!one || (schema_get(not, "anyOf") && !listed)) return false;
    for (; one; one = schema_next_out(s, one))
        if (!keeps(s, one)) return false;
    return true;
}

const cJSON *schema_left_out(const cJSON *s)
{
    for (const cJSON *v = NULL; (v = schema_next_out(s, v));)
        if (schema_get(v, "enum")) return schema_get(v, "enum");
    return NULL;
}

static bool say_not(schema_compiler *c, cJSON *out)
{
    if (!schema_get(out, "not") || keeps_not(out)) return true;
    bool unsaid = false;
    cJSON *not = take(out, "not"), *values = schema_values_but(c, out, not, &unsaid);
    if (values && !unsaid) {
        cJSON_DeleteItemFromObjectCaseSensitive(out, "const");
        cJSON_DeleteItemFromObjectCaseSensitive(out, "enum");
        cJSON_AddItemToObject(out, "enum", values);
        cJSON_Delete(not );
        return true;
    }
    cJSON_Delete(values);
    cJSON *part = schema_opposite(c, not, out);
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
    if (cJSON_IsArray(v)) more = schema_saying("required", copy_of(v));
    if (cJSON_IsString(v)) more = requiring(v->valuestring); /* draft 3 */
    if (cJSON_IsObject(v) || cJSON_IsBool(v)) more = copy_of(v);
    if (!more) return schema_fail(c, ERR_INPUT, "a dependency must be an array or a schema");
    if (is_shut_out(out, v->string)) {
        cJSON_Delete(more);
    } else if (schema_requires(schema_get(out, "required"), v->string) ||
               ++*choices > CHOICES_MAX) {
        add_part(out, more);
    } else {
        add_part(out, schema_saying("anyOf", schema_these(member(v->string, cJSON_CreateFalse()),
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
        cJSON_AddItemToObject(out, "contains", schema_these(one, NULL));
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
    return (!not || keeps_not(s)) && !cJSON_IsArray(schema_get(s, "items")) &&
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
