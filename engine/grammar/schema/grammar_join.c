/* grammar_join.c -- the members and the items of two schemas as one's.
 *
 * additionalProperties speaks of the names that its own schema does not list.  So where two schemas
 * become one, a member that one of them lists alone gets what the other says of additional ones.
 * Where the patterns of both differ, SCHEMA_OTHERS keeps what each says of names that only the
 * other's patterns match.  prefixItems and items are joined place by place.
 */
#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

static bool says_something(const cJSON *s)
{
    return s && !cJSON_IsTrue(s) && !(cJSON_IsObject(s) && !schema_says_more_than(s, ""));
}

/* What both say, the caller's; NULL: anything. */
static cJSON *sum_of(const cJSON *a, const cJSON *b)
{
    if (cJSON_IsFalse(a) || cJSON_IsFalse(b)) return cJSON_CreateFalse();
    if (!says_something(a)) return says_something(b) ? schema_share(b) : NULL;
    if (!says_something(b) || json_same(a, b)) return schema_share(a);
    return schema_pair(a, b);
}

const cJSON *schema_additional(const cJSON *s)
{
    const cJSON *add = schema_get(s, "additionalProperties");
    return add ? add : schema_get(s, "unevaluatedProperties");
}

/* Does one of the patterns match? */
static bool any_matches(schema_compiler *c, const cJSON *patterns, const char *name)
{
    const cJSON *v;
    bool found = false;
    cJSON_ArrayForEach(v, patterns)
    {
        if (!schema_matches(c, v->string, name, &found) || found) return true;
    }
    return false;
}

const cJSON *schema_of_unlisted(schema_compiler *c, const cJSON *s, const char *name)
{
    const cJSON *patterns = schema_get(s, "patternProperties"), *v, *out = NULL;
    if (!any_matches(c, patterns, name)) {
        const cJSON *add = schema_additional(s);
        return says_something(add) ? add : NULL;
    }
    cJSON_ArrayForEach(v, schema_get(s, SCHEMA_OTHERS))
    {
        if (any_matches(c, schema_get(v, "patternProperties"), name)) continue;
        const cJSON *add = schema_additional(v);
        out = out ? schema_both(c, out, add) : add;
    }
    return out;
}

bool schema_speaks_of_members(const cJSON *s)
{
    return schema_get(s, "properties") || schema_get(s, "patternProperties") ||
           schema_additional(s);
}

/* -------------------------------------------------------------------- two as one -- */

/* The object at a word, which may be changed. */
static cJSON *object_at(cJSON *out, const char *word)
{
    const cJSON *v = schema_get(out, word);
    if (!v) return cJSON_AddObjectToObject(out, word);
    cJSON *own = schema_shallow(v);
    cJSON_ReplaceItemInObjectCaseSensitive(out, word, own);
    return own;
}

/* {"a": x} and what the other says of "a". */
static void put(cJSON *map, const char *name, const cJSON *mine, const cJSON *more)
{
    cJSON *sum = sum_of(mine, more);
    if (!sum) sum = schema_share(mine);
    if (schema_get(map, name))
        cJSON_ReplaceItemInObjectCaseSensitive(map, name, sum);
    else
        cJSON_AddItemToObject(map, name, sum);
}

/* Does `b` have a pattern that `a` has not? */
static bool has_more_patterns(const cJSON *b, const cJSON *a)
{
    const cJSON *v, *mine = schema_get(a, "patternProperties");
    cJSON_ArrayForEach(v, schema_get(b, "patternProperties"))
    {
        if (!schema_get(mine, v->string)) return true;
    }
    return false;
}

/* The other's patterns match names that `s` calls additional. */
static void keep_others(cJSON *out, const cJSON *s, const cJSON *other)
{
    const cJSON *add = schema_additional(s), *patterns = schema_get(s, "patternProperties"), *v;
    if (!says_something(add) || !has_more_patterns(other, s)) return;
    cJSON *list = schema_list(out, SCHEMA_OTHERS);
    cJSON *entry = cJSON_CreateObject(),
          *mine = cJSON_AddObjectToObject(entry, "patternProperties");
    cJSON_ArrayForEach(v, patterns) cJSON_AddItemToObject(mine, v->string, cJSON_CreateTrue());
    cJSON_AddItemToObject(entry, "additionalProperties", schema_share(add));
    cJSON_AddItemToArray(list, entry);
}

static void join_patterns(cJSON *out, const cJSON *a, const cJSON *b)
{
    const cJSON *patterns = schema_get(b, "patternProperties"), *v;
    cJSON *map = patterns ? object_at(out, "patternProperties") : NULL;
    cJSON_ArrayForEach(v, patterns)
        put(map, v->string, v, schema_get(schema_get(a, "patternProperties"), v->string));
    keep_others(out, a, b);
    keep_others(out, b, a);
    cJSON_ArrayForEach(v, schema_get(b, SCHEMA_OTHERS))
    {
        cJSON_AddItemToArray(schema_list(out, SCHEMA_OTHERS), schema_share(v));
    }
}

bool schema_join_members(schema_compiler *c, cJSON *out, const cJSON *a, const cJSON *b)
{
    const cJSON *members_a = schema_get(a, "properties"), *v;
    const cJSON *members_b = schema_get(b, "properties");
    cJSON *map = members_a || members_b ? object_at(out, "properties") : NULL;
    cJSON_ArrayForEach(v, members_a)
    {
        if (schema_get(members_b, v->string)) continue;
        const cJSON *more = c->rc ? NULL : schema_of_unlisted(c, b, v->string);
        if (more) put(map, v->string, v, more);
    }
    cJSON_ArrayForEach(v, members_b)
    {
        const cJSON *mine = schema_get(members_a, v->string);
        if (mine)
            put(map, v->string, mine, v);
        else
            put(map, v->string, v, c->rc ? NULL : schema_of_unlisted(c, a, v->string));
    }
    join_patterns(out, a, b);
    cJSON *add = sum_of(schema_additional(a), schema_additional(b));
    cJSON_DeleteItemFromObjectCaseSensitive(out, "additionalProperties");
    if (!add && (schema_get(a, "additionalProperties") || schema_get(b, "additionalProperties")))
        add = cJSON_CreateTrue();
    if (add) cJSON_AddItemToObject(out, "additionalProperties", add);
    return !c->rc;
}

/* ------------------------------------------------------------------------- items -- */

/* What is said of the item at a place; NULL: nothing. */
static const cJSON *at_place(const cJSON *s, int i)
{
    const cJSON *v = cJSON_GetArrayItem(schema_get(s, "prefixItems"), i);
    return v ? v : schema_get(s, "items");
}

static void add_sum(cJSON *list, const cJSON *a, const cJSON *b)
{
    cJSON *sum = sum_of(a, b);
    cJSON_AddItemToArray(list, sum ? sum : cJSON_CreateTrue());
}

bool schema_has_items(const cJSON *s)
{
    return schema_get(s, "items") || cJSON_IsArray(schema_get(s, "prefixItems"));
}

void schema_join_items(cJSON *out, const cJSON *a, const cJSON *b)
{
    const cJSON *items_a = schema_get(a, "items"), *items_b = schema_get(b, "items");
    const cJSON *first_a = schema_get(a, "prefixItems"), *first_b = schema_get(b, "prefixItems");
    int n = cJSON_GetArraySize(first_a), m = cJSON_GetArraySize(first_b);
    cJSON *first = cJSON_CreateArray();
    for (int i = 0; i < n || i < m; i++) add_sum(first, at_place(a, i), at_place(b, i));
    cJSON *items = sum_of(items_a, items_b);
    if (!items && (items_a || items_b)) items = cJSON_CreateTrue();
    cJSON_DeleteItemFromObjectCaseSensitive(out, "prefixItems");
    cJSON_DeleteItemFromObjectCaseSensitive(out, "items");
    if (first->child)
        cJSON_AddItemToObject(out, "prefixItems", first);
    else
        cJSON_Delete(first);
    if (items) cJSON_AddItemToObject(out, "items", items);
}
