/* grammar_merge.c -- reading a JSON schema: its words, where it leads, and two of them as one.
 *
 * allOf, and what stands beside $ref or anyOf, becomes one schema before anything is built; what
 * can't be joined is refused by name.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

bool schema_fail(schema_compiler *c, err_code rc, const char *what)
{
    if (!c->rc) c->rc = err_set(c->e, rc, "%s at %s", what, c->path);
    return false;
}

bool schema_unsupported(schema_compiler *c, const char *word, const char *why)
{
    if (!c->rc) {
        c->rc = err_set(c->e, ERR_UNSUPPORTED, "the keyword '%.60s' at %s is not supported%s", word,
                        c->path, why);
    }
    return false;
}

/* ---------------------------------------------------------------------- the path -- */

size_t schema_enter(schema_compiler *c, const char *name, int index)
{
    size_t old = c->path_len;
    char part[80];
    if (index >= 0)
        snprintf(part, sizeof(part), "/%.40s/%d", name, index);
    else
        snprintf(part, sizeof(part), "/%.70s", name);
    size_t n = strlen(part);
    if (old + n < sizeof(c->path)) {
        memcpy(c->path + old, part, n + 1);
        c->path_len = old + n;
    }
    return old;
}

void schema_leave(schema_compiler *c, size_t old)
{
    c->path_len = old;
    c->path[old] = 0;
}

/* --------------------------------------------------------------------- keywords -- */

/* What is not here is no keyword of any draft, and says nothing, as the specification wants it. */
static const keyword keywords[] = {
    {"properties", OBJECT},
    {"required", OBJECT},
    {"additionalProperties", OBJECT},
    {"unevaluatedProperties", OBJECT},
    {"patternProperties", OBJECT},
    {SCHEMA_OTHERS, OBJECT},
    {"propertyNames", OBJECT},
    {"minProperties", OBJECT},
    {"maxProperties", OBJECT},
    {"items", ARRAY},
    {"prefixItems", ARRAY},
    {"minItems", ARRAY},
    {"maxItems", ARRAY},
    {"uniqueItems", ARRAY},
    {"unevaluatedItems", ARRAY},
    {"additionalItems", ARRAY},
    {"contains", ARRAY},
    {"minLength", STRING},
    {"maxLength", STRING},
    {"pattern", STRING},
    {"format", STRING},
    {SCHEMA_GRAMMAR, STRING},
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
    {"not", ANY},
    {"if", ANY},
    {"dependencies", OBJECT},
    {"dependentRequired", OBJECT},
    {"dependentSchemas", OBJECT},
    {"$dynamicRef", REFUSED},
    {"$recursiveRef", REFUSED},
    {"disallow", REFUSED}, /* these three: draft 3 */
    {"divisibleBy", REFUSED},
    {"extends", REFUSED},
};

const keyword *schema_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++) {
        if (strcmp(keywords[i].name, name) == 0) return &keywords[i];
    }
    return NULL;
}

const cJSON *schema_get(const cJSON *s, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(s, name);
}

const cJSON *schema_next_value(const cJSON *s, const cJSON *at)
{
    const cJSON *only = schema_get(s, "const"), *values = schema_get(s, "enum");
    if (only) return at ? NULL : only;
    return at ? at->next : values ? values->child : NULL;
}

static bool is_note(const char *name)
{
    return !schema_keyword(name);
}

/* All keywords are kept. */
bool schema_check_words(schema_compiler *c, const cJSON *s)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, s)
    {
        const keyword *k = schema_keyword(v->string);
        if (k && k->kind == REFUSED) return schema_unsupported(c, v->string, "");
    }
    return true;
}

bool schema_says_more_than(const cJSON *s, const char *but)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, s)
    {
        if (strcmp(v->string, but) != 0 && !is_note(v->string)) return true;
    }
    return false;
}

/* A whole number from 0; *out untouched when absent. */
bool schema_take_size(schema_compiler *c, const cJSON *s, const char *name, int64_t *out)
{
    const cJSON *v = schema_get(s, name);
    if (!v) return true;
    double d = cJSON_IsNumber(v) ? v->valuedouble : -1;
    if (!(d >= 0 && d <= 1e15) || d != floor(d)) {
        size_t old = schema_enter(c, name, -1);
        (void)schema_fail(c, ERR_INPUT, "a whole number is wanted");
        schema_leave(c, old);
        return false;
    }
    *out = d < LENGTH_MAX ? (int64_t)d : LENGTH_MAX;
    return true;
}

/* ----------------------------------------------------------------------- merging -- */

/* The target of "#/a/b"; NULL and an error when there is none. */
const cJSON *schema_target(schema_compiler *c, const cJSON *s)
{
    for (int hop = 0; hop < REF_HOPS_MAX; hop++) {
        const cJSON *ref = schema_get(s, "$ref");
        if (!ref || schema_says_more_than(s, "$ref")) return s;
        const char *p = cJSON_IsString(ref) ? ref->valuestring : "";
        if (*p++ != '#') {
            (void)schema_unsupported(c, "$ref",
                                     " to what is neither in the schema nor in grammar.documents");
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
                                   : schema_get(at, name);
        }
        if (!at || *p) {
            (void)schema_fail(c, ERR_INPUT, "a $ref that leads nowhere");
            return NULL;
        }
        s = at;
        if (!cJSON_IsObject(s)) return s;
    }
    (void)schema_fail(c, ERR_INPUT, "a $ref that leads back to itself");
    return NULL;
}

int64_t schema_nodes(const cJSON *s)
{
    int64_t n = 1;
    for (const cJSON *v = s ? s->child : NULL; v; v = v->next) n += schema_nodes(v);
    return n;
}

/* Those that are its own. */
static int64_t own_nodes(const cJSON *s)
{
    int64_t n = 1;
    const cJSON *v = !s || (s->type & cJSON_IsReference) ? NULL : s->child;
    for (; v; v = v->next) n += own_nodes(v);
    return n;
}

cJSON *schema_own(schema_compiler *c, cJSON *s)
{
    c->merged_nodes += own_nodes(s);
    if (s && c->n_merged < MERGES_MAX && c->merged_nodes < MERGED_NODES_MAX) {
        c->merged[c->n_merged++] = s;
        return s;
    }
    cJSON_Delete(s);
    (void)schema_fail(c, ERR_LIMIT, "too many allOf and $ref");
    return NULL;
}

cJSON *schema_share(const cJSON *s)
{
    if (!s || !s->child) return cJSON_Duplicate(s, true);
    return cJSON_IsObject(s) ? cJSON_CreateObjectReference(s->child)
                             : cJSON_CreateArrayReference(s->child);
}

cJSON *schema_shallow(const cJSON *s)
{
    bool object = cJSON_IsObject(s);
    cJSON *out = object ? cJSON_CreateObject() : cJSON_CreateArray();
    const cJSON *v;
    cJSON_ArrayForEach(v, s)
    {
        if (object)
            cJSON_AddItemToObject(out, v->string, schema_share(v));
        else
            cJSON_AddItemToArray(out, schema_share(v));
    }
    return out;
}

cJSON *schema_list(cJSON *out, const char *word)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(out, word);
    if (!cJSON_IsArray(list)) return cJSON_AddArrayToObject(out, word);
    if (!(list->type & cJSON_IsReference)) return list;
    list = schema_shallow(list);
    cJSON_ReplaceItemInObjectCaseSensitive(out, word, list);
    return list;
}

cJSON *schema_pair(const cJSON *a, const cJSON *b)
{
    cJSON *all = cJSON_CreateObject(), *items = cJSON_AddArrayToObject(all, "allOf");
    cJSON_AddItemToArray(items, schema_share(a));
    cJSON_AddItemToArray(items, schema_share(b));
    return all;
}

bool schema_type_has(const cJSON *types, const char *t)
{
    const cJSON *v;
    if (cJSON_IsString(types)) return strcmp(types->valuestring, t) == 0;
    cJSON_ArrayForEach(v, types)
    {
        if (cJSON_IsString(v) && strcmp(v->valuestring, t) == 0) return true;
    }
    return false;
}

bool schema_requires(const cJSON *required, const char *name)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, required)
    {
        if (cJSON_IsString(v) && strcmp(v->valuestring, name) == 0) return true;
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
        bool in_a = schema_type_has(a, names[i]) || (whole && schema_type_has(a, "number"));
        bool in_b = schema_type_has(b, names[i]) || (whole && schema_type_has(b, "number"));
        if (in_a && in_b) cJSON_AddItemToArray(out, cJSON_CreateString(names[i]));
    }
    return out;
}

cJSON *schema_common_values(const cJSON *a, const cJSON *b)
{
    cJSON *out = cJSON_CreateArray();
    const cJSON *x, *y;
    cJSON_ArrayForEach(x, a)
    {
        cJSON_ArrayForEach(y, b)
        {
            if (json_same(x, y)) {
                cJSON_AddItemToArray(out, cJSON_Duplicate(x, true));
                break;
            }
        }
    }
    return out;
}

static cJSON *all_names(const cJSON *a, const cJSON *b)
{
    cJSON *out = schema_shallow(a);
    const cJSON *v, *w;
    cJSON_ArrayForEach(v, b)
    {
        bool known = false;
        cJSON_ArrayForEach(w, a) known |= (v->child && v->child == w->child) || json_same(v, w);
        if (!known) cJSON_AddItemToArray(out, schema_share(v));
    }
    return out;
}

/* Two patterns hold where both are found. */
static cJSON *all_patterns(const cJSON *a, const cJSON *b)
{
    cJSON *mine = cJSON_CreateArray(), *other = cJSON_CreateArray(), *out;
    cJSON_AddItemToArray(mine, cJSON_Duplicate(a, true));
    cJSON_AddItemToArray(other, cJSON_Duplicate(b, true));
    out = all_names(cJSON_IsArray(a) ? a : mine, cJSON_IsArray(b) ? b : other);
    cJSON_Delete(mine);
    cJSON_Delete(other);
    return out;
}

/* What either leaves out: {"enum": ..}, or {"anyOf": ..} of such and of others. */
static cJSON *all_left_out(const cJSON *a, const cJSON *b)
{
    const cJSON *said[] = {a, b}, *v;
    cJSON *out = cJSON_CreateObject(), *any = cJSON_CreateArray();
    cJSON *values = cJSON_CreateArray(), *enums = cJSON_CreateObject();
    cJSON_AddItemToObject(enums, "enum", values);
    cJSON_AddItemToArray(any, enums);
    for (int i = 0; i < 2; i++) {
        const cJSON *list = schema_get(said[i], "anyOf");
        for (v = list ? list->child : said[i]; v; v = list ? v->next : NULL) {
            const cJSON *more = schema_get(v, "enum"), *w;
            if (!more) cJSON_AddItemToArray(any, cJSON_Duplicate(v, true));
            cJSON_ArrayForEach(w, more) cJSON_AddItemToArray(values, cJSON_Duplicate(w, true));
        }
    }
    if (!values->child) cJSON_DeleteItemFromArray(any, 0);
    cJSON_AddItemToObject(out, "anyOf", any);
    return out;
}

/* Do two of an allOf's parts have no value in common? */
static bool parts_differ(schema_compiler *c, const cJSON *s)
{
    const cJSON *all = schema_get(s, "allOf"), *v, *w;
    cJSON_ArrayForEach(v, all)
    {
        if (parts_differ(c, v)) return true;
        for (w = v->next; w; w = w->next)
            if (schema_holds_apart(c, v, w)) return true;
    }
    return false;
}

/* Is a member required that cannot be? */
static bool holds_nothing(schema_compiler *c, const cJSON *s)
{
    const cJSON *v, *props = schema_get(s, "properties");
    cJSON_ArrayForEach(v, schema_get(s, "required"))
    {
        const cJSON *one = cJSON_IsString(v) ? schema_get(props, v->valuestring) : NULL;
        if (cJSON_IsFalse(one) || parts_differ(c, one)) return true;
    }
    return cJSON_IsFalse(s);
}

/* Where there are many, those that can hold; of anyOf as many of them as are kept, of each of the
 * second the same number; of oneOf all, or NULL. */
static cJSON *chosen_pairs(schema_compiler *c, const cJSON *a, const cJSON *b, bool any)
{
    cJSON *out = cJSON_CreateArray();
    int each = PAIRS_MAX / cJSON_GetArraySize(b), n = 0;
    const cJSON *x, *y;
    cJSON_ArrayForEach(y, b)
    {
        int used = 0;
        cJSON_ArrayForEach(x, a)
        {
            if (c->rc || schema_holds_apart(c, x, y)) continue;
            const cJSON *one = NULL, *p = cJSON_IsObject(x) ? schema_target(c, x) : x;
            const cJSON *q = cJSON_IsObject(y) ? schema_target(c, y) : y;
            if (p && q) one = schema_merge(c, p, q);
            if (!one || holds_nothing(c, one)) continue;
            if (any && used++ >= each) break;
            cJSON_AddItemToArray(out, schema_share(one));
            if (++n > PAIRS_MAX) break;
        }
    }
    if (n <= PAIRS_MAX) return out;
    cJSON_Delete(out);
    return NULL;
}

/* One of the first and one of the second; NULL: too many. */
static cJSON *all_pairs(schema_compiler *c, const cJSON *a, const cJSON *b, bool any)
{
    const cJSON *x, *y;
    if (!cJSON_IsArray(a) || !cJSON_IsArray(b)) return NULL;
    int64_t n = cJSON_GetArraySize(a), m = cJSON_GetArraySize(b);
    if (n * m > PAIRS_MAX) return m <= PAIRS_MAX ? chosen_pairs(c, a, b, any) : NULL;
    cJSON *out = cJSON_CreateArray();
    cJSON_ArrayForEach(x, a)
    {
        cJSON_ArrayForEach(y, b) cJSON_AddItemToArray(out, schema_pair(x, y));
    }
    return out;
}

/* The stricter of two values of one keyword; NULL: they can't be joined. */
static cJSON *join(schema_compiler *c, const char *name, const cJSON *a, const cJSON *b)
{
    static const char *const lower[] = {"minimum",  "exclusiveMinimum", "minLength",
                                        "minItems", "minProperties",    NULL};
    static const char *const upper[] = {"maximum",  "exclusiveMaximum", "maxLength",
                                        "maxItems", "maxProperties",    NULL};
    if (json_same(a, b)) return schema_share(a);
    for (int i = 0; lower[i]; i++) {
        bool low = strcmp(name, lower[i]) == 0, high = strcmp(name, upper[i]) == 0;
        if ((!low && !high) || !cJSON_IsNumber(a) || !cJSON_IsNumber(b)) continue;
        bool take_a = low ? json_order(a, b) > 0 : json_order(a, b) < 0;
        return cJSON_Duplicate(take_a ? a : b, true);
    }
    if (strcmp(name, "type") == 0) return common_types(a, b);
    if (strcmp(name, "enum") == 0) return schema_common_values(a, b);
    if (strcmp(name, "required") == 0) return all_names(a, b);
    if (strcmp(name, "propertyNames") == 0) return schema_pair(a, b);
    if (strcmp(name, "not") == 0) return all_left_out(a, b);
    if (strcmp(name, "pattern") == 0) return all_patterns(a, b);
    if (strcmp(name, "uniqueItems") == 0) return cJSON_CreateTrue(); /* one of them says so */
    if (strcmp(name, "multipleOf") == 0) return schema_common_multiple(a, b);
    if (strcmp(name, "allOf") == 0 || strcmp(name, "contains") == 0) return all_names(a, b);
    if (strcmp(name, "anyOf") == 0) return all_pairs(c, a, b, true);
    if (strcmp(name, "oneOf") == 0) return all_pairs(c, a, b, false);
    return NULL;
}

static bool may_join(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    int64_t n = cJSON_GetArraySize(a), m = cJSON_GetArraySize(b);
    c->merge_work += (n + 1) * (m + 1);
    return c->merge_work < MERGE_WORK_MAX || schema_fail(c, ERR_LIMIT, "too much to join");
}

/* Where a keyword cannot be joined: two of `const` hold for nothing, a second $ref is a part. */
static bool said_otherwise(cJSON *out, const char *name, const cJSON *other)
{
    if (strcmp(name, "const") == 0) {
        cJSON_DeleteItemFromObjectCaseSensitive(out, "enum");
        return cJSON_AddArrayToObject(out, "enum") != NULL;
    }
    if (strcmp(name, "$ref") != 0) return false;
    cJSON *all = schema_list(out, "allOf"), *part = cJSON_CreateObject();
    cJSON_AddItemToObject(part, name, cJSON_Duplicate(other, true));
    return cJSON_AddItemToArray(all, part);
}

static bool is_of_members(const char *name)
{
    return strcmp(name, "properties") == 0 || strcmp(name, "patternProperties") == 0 ||
           strcmp(name, "additionalProperties") == 0 || strcmp(name, SCHEMA_OTHERS) == 0;
}

static bool is_of_items(const char *name)
{
    return strcmp(name, "items") == 0 || strcmp(name, "prefixItems") == 0;
}

/* What satisfies both; owned by the compiler. */
cJSON *schema_merge(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    if (!cJSON_IsObject(a) || !cJSON_IsObject(b)) {
        bool none = cJSON_IsFalse(a) || cJSON_IsFalse(b);
        return schema_own(c, none ? cJSON_CreateFalse() : schema_share(cJSON_IsObject(a) ? a : b));
    }
    a = schema_plain(c, a, true);
    b = schema_plain(c, b, true);
    if (!a || !b) return NULL;
    const cJSON *members_a = schema_get(a, "properties"), *members_b = schema_get(b, "properties");
    if (!may_join(c, a, b) || !may_join(c, members_a, members_b)) return NULL;
    bool members = schema_speaks_of_members(a) && schema_speaks_of_members(b);
    bool items = schema_has_items(a) && schema_has_items(b);
    cJSON *out = schema_own(c, schema_shallow(a));
    const cJSON *v;
    for (v = out ? b->child : NULL; v; v = v->next) {
        const char *name = v->string;
        const cJSON *mine = schema_get(out, name);
        if ((members && is_of_members(name)) || (items && is_of_items(name))) continue;
        if (!mine) cJSON_AddItemToObject(out, name, schema_share(v));
        if (!mine || is_note(name)) continue;
        if (!may_join(c, mine, v)) return NULL;
        cJSON *joined = join(c, name, mine, v);
        if (!joined && said_otherwise(out, name, v)) continue;
        if (!joined) {
            (void)schema_unsupported(c, name, " where two parts say it differently");
            return NULL;
        }
        cJSON_ReplaceItemInObjectCaseSensitive(out, name, joined);
    }
    if (out && items) schema_join_items(out, a, b);
    c->merged_nodes += own_nodes(out);
    return !out || !members || schema_join_members(c, out, a, b) ? out : NULL;
}

cJSON *schema_both(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    return schema_own(c, schema_pair(a, b));
}

cJSON *schema_without(schema_compiler *c, const cJSON *s, const char *name)
{
    cJSON *out = schema_own(c, schema_shallow(s));
    if (out) cJSON_DeleteItemFromObjectCaseSensitive(out, name);
    return out;
}
