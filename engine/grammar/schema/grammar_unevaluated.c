/* grammar_unevaluated.c -- unevaluatedProperties and unevaluatedItems, said by other keywords.
 *
 * Which members and items a schema evaluates depends on which of its branches hold.  So a schema
 * becomes a choice of ways: what holds in each is said by allOf, and each knows what it evaluates.
 * What is left is then additionalProperties and items of one more part.  A way may evaluate less
 * than a value that holds in two ways: what is written holds all the same.  What is not asked to
 * hold (`not`, an `if` that fails) evaluates nothing.
 */
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

enum {
    DEEP_MAX = 24, /* schemas in one another that speak of the same value */
    WAYS_MAX = 64, /* in which one schema holds */
    TOGETHER = 3,  /* branches of anyOf of which several are also taken at once */
    MEMBERS = 1,   /* asked for: which members are evaluated */
    ITEMS = 2,     /* which items */
};

/* A way is {"said": a schema, "sees": what it evaluates}.  The latter is written as a schema whose
 * `properties` and `prefixItems` are all true; `contains` is an array there; additionalProperties
 * and `items` stand for all that is left. */

static cJSON *ways_of(schema_compiler *c, const cJSON *s, unsigned asked, int deep);

static cJSON *a_way(cJSON *said)
{
    cJSON *way = cJSON_CreateObject();
    cJSON_AddItemToObject(way, "said", said);
    cJSON_AddItemToObject(way, "sees", cJSON_CreateObject());
    return way;
}

static cJSON *said_of(const cJSON *way)
{
    return cJSON_GetObjectItemCaseSensitive(way, "said");
}

static cJSON *seen_of(const cJSON *way)
{
    return cJSON_GetObjectItemCaseSensitive(way, "sees");
}

static cJSON *list_of_one(cJSON *x)
{
    cJSON *list = cJSON_CreateArray();
    if (x) cJSON_AddItemToArray(list, x);
    return list;
}

static cJSON *saying(const char *word, cJSON *value)
{
    cJSON *s = cJSON_CreateObject();
    cJSON_AddItemToObject(s, word, value);
    return s;
}

/* What another schema says as well. */
static void add_part(cJSON *s, cJSON *part)
{
    cJSON *all = cJSON_GetObjectItemCaseSensitive(s, "allOf");
    if (!cJSON_IsArray(all)) all = cJSON_AddArrayToObject(s, "allOf");
    cJSON_AddItemToArray(all, part);
}

/* A word's value of `sees`, made where it is missing. */
static cJSON *words_of(cJSON *sees, const char *word, bool array)
{
    cJSON *v = cJSON_GetObjectItemCaseSensitive(sees, word);
    if (v) return v;
    return array ? cJSON_AddArrayToObject(sees, word) : cJSON_AddObjectToObject(sees, word);
}

static void see_all(cJSON *sees, const char *word)
{
    if (!schema_get(sees, word)) cJSON_AddTrueToObject(sees, word);
}

static void see_names(cJSON *sees, const char *word, const cJSON *names)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, names) see_all(words_of(sees, word, false), v->string);
}

static void see_first(cJSON *sees, int n)
{
    while (n > 0 && cJSON_GetArraySize(words_of(sees, "prefixItems", true)) < n)
        cJSON_AddItemToArray(words_of(sees, "prefixItems", true), cJSON_CreateTrue());
}

/* What another sees as well. */
static void see_too(cJSON *sees, const cJSON *other)
{
    const cJSON *v;
    see_names(sees, "properties", schema_get(other, "properties"));
    see_names(sees, "patternProperties", schema_get(other, "patternProperties"));
    see_first(sees, cJSON_GetArraySize(schema_get(other, "prefixItems")));
    cJSON_ArrayForEach(v, schema_get(other, "contains"))
        cJSON_AddItemToArray(words_of(sees, "contains", true), cJSON_Duplicate(v, true));
    if (schema_get(other, "additionalProperties")) see_all(sees, "additionalProperties");
    if (schema_get(other, "items")) see_all(sees, "items");
}

/* Before 2020-12 `contains` evaluated nothing. */
static bool contains_sees(const schema_compiler *c)
{
    const cJSON *draft = schema_get(c->root, "$schema");
    return !cJSON_IsString(draft) || !strstr(draft->valuestring, "2019-09");
}

/* What a schema's own words evaluate. */
static void see_own(const schema_compiler *c, cJSON *sees, const cJSON *s, unsigned asked)
{
    const cJSON *items = schema_get(s, "items"), *first = schema_get(s, "prefixItems");
    const cJSON *one = schema_get(s, "contains");
    bool listed = cJSON_IsArray(items); /* an array is what prefixItems was before 2020-12 */
    if (asked & MEMBERS) {
        see_names(sees, "properties", schema_get(s, "properties"));
        see_names(sees, "patternProperties", schema_get(s, "patternProperties"));
        if (schema_get(s, "additionalProperties")) see_all(sees, "additionalProperties");
    }
    if (!(asked & ITEMS)) return;
    see_first(sees, cJSON_GetArraySize(listed ? items : first));
    if (listed ? schema_get(s, "additionalItems") : items) see_all(sees, "items");
    if (one && contains_sees(c))
        cJSON_AddItemToArray(words_of(sees, "contains", true), cJSON_Duplicate(one, true));
}

static bool too_many(schema_compiler *c)
{
    return schema_fail(c, ERR_LIMIT, "too many choices beside the unevaluated");
}

/* Puts one more way into a list, beside one that sees the same if there is any.  Takes it. */
static void add_way(cJSON *list, cJSON *way)
{
    cJSON *w;
    cJSON_ArrayForEach(w, list)
    {
        if (!json_same(seen_of(w), seen_of(way))) continue;
        cJSON *said = cJSON_DetachItemFromObjectCaseSensitive(way, "said"), *mine = said_of(w);
        cJSON *any = cJSON_GetObjectItemCaseSensitive(mine, "anyOf");
        if (!any || schema_says_more_than(mine, "anyOf")) {
            any = list_of_one(cJSON_DetachItemFromObjectCaseSensitive(w, "said"));
            cJSON_AddItemToObject(w, "said", saying("anyOf", any));
        }
        cJSON_AddItemToArray(any, said);
        cJSON_Delete(way);
        return;
    }
    cJSON_AddItemToArray(list, way);
}

static void add_ways(schema_compiler *c, cJSON *list, cJSON *more)
{
    while (more && more->child) add_way(list, cJSON_DetachItemFromArray(more, 0));
    cJSON_Delete(more);
    if (cJSON_GetArraySize(list) > WAYS_MAX) (void)too_many(c);
}

/* A copy costs more than a comparison. */
static bool may_copy(schema_compiler *c, int64_t nodes)
{
    c->merge_work += 16 * nodes;
    if (c->merge_work >= MERGE_WORK_MAX) (void)schema_fail(c, ERR_LIMIT, "too much to join");
    return !c->rc;
}

/* A way of each: both hold.  Takes the lists; NULL and an error where there are too many. */
static cJSON *ways_together(schema_compiler *c, cJSON *a, cJSON *b)
{
    const cJSON *x, *y;
    cJSON *out = cJSON_CreateArray();
    int64_t n = a && b ? (int64_t)cJSON_GetArraySize(a) * cJSON_GetArraySize(b) : 0;
    if (n > WAYS_MAX) (void)too_many(c);
    if (!c->rc && a && b) {
        cJSON_ArrayForEach(x, a) cJSON_ArrayForEach(y, b)
        {
            if (!may_copy(c, schema_nodes(x) + schema_nodes(y))) break;
            cJSON *way = cJSON_Duplicate(x, true), *said = said_of(way);
            if (!cJSON_IsObject(said)) {
                said = saying("allOf", list_of_one(cJSON_Duplicate(said, true)));
                cJSON_ReplaceItemInObjectCaseSensitive(way, "said", said);
            }
            add_part(said, cJSON_Duplicate(said_of(y), true));
            see_too(seen_of(way), seen_of(y));
            cJSON_AddItemToArray(out, way);
        }
    }
    cJSON_Delete(a);
    cJSON_Delete(b);
    if (!c->rc) return out;
    cJSON_Delete(out);
    return NULL;
}

/* Branches that a way stands for. */
static int branches_of(const cJSON *way)
{
    const cJSON *any = schema_get(said_of(way), "anyOf");
    return any && !schema_says_more_than(said_of(way), "anyOf") ? cJSON_GetArraySize(any) : 1;
}

/* The ways of some branches, of few also those of several at once. */
static cJSON *ways_of_any(schema_compiler *c, const cJSON *branches, unsigned asked, int deep)
{
    cJSON *out = cJSON_CreateArray(), *each = cJSON_CreateArray();
    const cJSON *v;
    cJSON_ArrayForEach(v, branches)
    {
        if (!c->rc) add_ways(c, each, ways_of(c, v, asked, deep));
    }
    int n = cJSON_GetArraySize(each);
    for (unsigned set = 1; n <= TOGETHER && set < 1U << n && !c->rc; set++) {
        cJSON *all = NULL;
        int64_t pairs = 1;
        for (int i = 0; i < n && !c->rc; i++) {
            const cJSON *way = cJSON_GetArrayItem(each, i);
            if (!(set & 1U << i)) continue;
            pairs *= branches_of(way);
            cJSON *one = list_of_one(cJSON_Duplicate(way, true));
            all = all ? ways_together(c, all, one) : one;
        }
        if (pairs <= PAIRS_MAX || !(set & (set - 1)))
            add_ways(c, out, all);
        else
            cJSON_Delete(all);
    }
    if (n > TOGETHER) add_ways(c, out, cJSON_Duplicate(each, true));
    cJSON_Delete(each);
    return out;
}

/* Of each branch; and none of the others holds, which is said where it is not proven. */
static cJSON *ways_of_one(schema_compiler *c, const cJSON *branches, unsigned asked, int deep)
{
    cJSON *out = cJSON_CreateArray();
    const cJSON *v, *w;
    cJSON_ArrayForEach(v, branches)
    {
        cJSON *all = ways_of(c, v, asked, deep), *others = cJSON_CreateArray();
        cJSON_ArrayForEach(w, branches)
        {
            if (w != v && !c->rc && !schema_holds_apart(c, v, w))
                cJSON_AddItemToArray(others, schema_share(w));
        }
        if (others->child) {
            cJSON *one = list_of_one(cJSON_CreateTrue()); /* it holds: so the others do not */
            cJSON_AddItemToArray(one, saying("anyOf", others));
            all = ways_together(c, all, list_of_one(a_way(saying("oneOf", one))));
        } else {
            cJSON_Delete(others);
        }
        add_ways(c, out, all);
    }
    return out;
}

/* `if` and `then`; or the opposite of `if`, which evaluates nothing, and `else`. */
static cJSON *ways_of_if(schema_compiler *c, const cJSON *s, unsigned asked, int deep)
{
    const cJSON *cond = schema_get(s, "if"), *then = schema_get(s, "then");
    const cJSON *other = schema_get(s, "else");
    cJSON *out = ways_of(c, cond, asked, deep);
    if (then) out = ways_together(c, out, ways_of(c, then, asked, deep));
    cJSON *no = then || other ? schema_opposite(c, cond, NULL) : cJSON_CreateTrue();
    if (!no || !out) return out;
    cJSON *rest = list_of_one(a_way(no));
    if (other) rest = ways_together(c, rest, ways_of(c, other, asked, deep));
    add_ways(c, out, rest);
    return out;
}

/* Without the member, or with it and what it asks for. */
static cJSON *ways_of_member(schema_compiler *c, const cJSON *v, unsigned asked, int deep)
{
    cJSON *with = saying("required", list_of_one(cJSON_CreateString(v->string)));
    cJSON *without = saying("properties", saying(v->string, cJSON_CreateFalse()));
    cJSON *out = ways_together(c, list_of_one(a_way(with)), ways_of(c, v, asked, deep));
    if (out)
        add_way(out, a_way(without));
    else
        cJSON_Delete(without);
    return out;
}

/* Leaves over what no way sees: it is held to `more`.  The part that says so, or NULL. */
static cJSON *part_for_the_rest(const cJSON *sees, const cJSON *members, const cJSON *items)
{
    const cJSON *names = schema_get(sees, "properties"), *keys, *first, *some;
    cJSON *part = cJSON_CreateObject();
    keys = schema_get(sees, "patternProperties");
    first = schema_get(sees, "prefixItems");
    some = schema_get(sees, "contains");
    if (members && !schema_get(sees, "additionalProperties")) {
        if (names) cJSON_AddItemToObject(part, "properties", cJSON_Duplicate(names, true));
        if (keys) cJSON_AddItemToObject(part, "patternProperties", cJSON_Duplicate(keys, true));
        cJSON_AddItemToObject(part, "additionalProperties", cJSON_Duplicate(members, true));
    }
    if (items && !schema_get(sees, "items")) {
        cJSON *any = some ? cJSON_Duplicate(some, true) : NULL;
        if (any && !cJSON_IsFalse(items)) cJSON_AddItemToArray(any, cJSON_Duplicate(items, true));
        if (first) cJSON_AddItemToObject(part, "prefixItems", cJSON_Duplicate(first, true));
        cJSON_AddItemToObject(part, "items",
                              any ? saying("anyOf", any) : cJSON_Duplicate(items, true));
    }
    if (part->child) return part;
    cJSON_Delete(part);
    return NULL;
}

/* What `word` says becomes part of each way; where all see the same it stays as it is. */
static cJSON *take_choice(schema_compiler *c, cJSON *list, cJSON *base, const char *word,
                          cJSON *choice)
{
    if (c->rc || !choice) {
        cJSON_Delete(choice);
        return list;
    }
    cJSON *w;
    if (cJSON_GetArraySize(choice) != 1) {
        cJSON_DeleteItemFromObjectCaseSensitive(base, word);
        return ways_together(c, list, choice);
    }
    cJSON_ArrayForEach(w, list) see_too(seen_of(w), seen_of(choice->child));
    cJSON_Delete(choice);
    return list;
}

/* What stands in `s` as parts, each as a choice of ways; `base` loses those that become so. */
static cJSON *ways_of_parts(schema_compiler *c, const cJSON *s, cJSON *base, unsigned asked,
                            int deep)
{
    const cJSON *all = schema_get(s, "allOf"), *any = schema_get(s, "anyOf"), *v;
    const cJSON *one = schema_get(s, "oneOf"), *cond = schema_get(s, "if");
    cJSON *list = list_of_one(a_way(cJSON_CreateObject()));
    if (schema_get(s, "$ref")) {
        cJSON *alone = saying("$ref", cJSON_Duplicate(schema_get(s, "$ref"), true));
        const cJSON *target = schema_target(c, alone);
        list = take_choice(c, list, base, "$ref", target ? ways_of(c, target, asked, deep) : NULL);
        cJSON_Delete(alone);
    }
    cJSON *left = cJSON_CreateArray(); /* parts that are no choice */
    bool taken = false;
    cJSON_ArrayForEach(v, all)
    {
        cJSON *part = ways_of(c, v, asked, deep);
        bool single = cJSON_GetArraySize(part) == 1;
        taken |= !single;
        if (single) cJSON_AddItemToArray(left, cJSON_Duplicate(v, true));
        list = take_choice(c, list, base, "", part);
    }
    if (taken)
        cJSON_ReplaceItemInObjectCaseSensitive(base, "allOf", left);
    else
        cJSON_Delete(left);
    if (any) list = take_choice(c, list, base, "anyOf", ways_of_any(c, any, asked, deep));
    if (one) list = take_choice(c, list, base, "oneOf", ways_of_one(c, one, asked, deep));
    if (cond) list = take_choice(c, list, base, "if", ways_of_if(c, s, asked, deep));
    cJSON *asks = cJSON_GetObjectItemCaseSensitive(base, "dependentSchemas");
    cJSON_ArrayForEach(v, schema_get(s, "dependentSchemas")) list =
        take_choice(c, list, asks, v->string, ways_of_member(c, v, asked, deep));
    return list;
}

static bool speaks(const cJSON *more)
{
    return more && !cJSON_IsTrue(more);
}

/* What nobody asked for is not kept, so that more ways are the same. */
static void forget(cJSON *sees, unsigned asked)
{
    static const char *const words[][3] = {
        {"properties", "patternProperties", "additionalProperties"},
        {"prefixItems", "contains", "items"}};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 3; k++)
            if (!(asked & (i ? ITEMS : MEMBERS)))
                cJSON_DeleteItemFromObjectCaseSensitive(sees, words[i][k]);
}

/* A schema's ways; NULL and an error. */
static cJSON *ways_of(schema_compiler *c, const cJSON *s, unsigned asked, int deep)
{
    if (!may_copy(c, schema_nodes(s))) return NULL;
    if (!cJSON_IsObject(s) || deep == 0) return list_of_one(a_way(cJSON_Duplicate(s, true)));
    const cJSON *members = schema_get(s, "unevaluatedProperties"), *v;
    const cJSON *items = schema_get(s, "unevaluatedItems");
    unsigned wanted = asked | (speaks(members) ? MEMBERS : 0) | (speaks(items) ? ITEMS : 0);
    cJSON *base = cJSON_Duplicate(s, true), *w, *out = cJSON_CreateArray();
    cJSON_DeleteItemFromObjectCaseSensitive(base, "unevaluatedProperties");
    cJSON_DeleteItemFromObjectCaseSensitive(base, "unevaluatedItems");
    cJSON *list = ways_of_parts(c, s, base, wanted, deep - 1);
    cJSON_ArrayForEach(w, list)
    {
        cJSON *sees = seen_of(w), *said = cJSON_Duplicate(base, true), *rest;
        see_own(c, sees, s, wanted);
        rest =
            part_for_the_rest(sees, speaks(members) ? members : NULL, speaks(items) ? items : NULL);
        cJSON_ArrayForEach(v, schema_get(said_of(w), "allOf"))
            add_part(said, cJSON_Duplicate(v, true));
        if (rest) add_part(said, rest);
        cJSON_ReplaceItemInObjectCaseSensitive(w, "said", said);
        if (members) see_all(sees, "additionalProperties");
        if (items) see_all(sees, "items");
        forget(sees, asked);
    }
    add_ways(c, out, list);
    cJSON_Delete(base);
    return out;
}

cJSON *schema_without_unevaluated(schema_compiler *c, const cJSON *s)
{
    cJSON *list = ways_of(c, s, 0, DEEP_MAX); /* nobody asks for more: one way */
    cJSON *said =
        list && list->child ? cJSON_DetachItemFromObjectCaseSensitive(list->child, "said") : NULL;
    cJSON_Delete(list);
    return said ? said : cJSON_CreateFalse();
}
