/* grammar_values.c -- does a value hold for a schema?
 *
 * Asked of constants when a form is compiled: those that `enum` and `const` list are written where
 * all else that is said holds for them, and a branch of oneOf that lists its values is apart from
 * one that none of them holds for.  Expressions, formats and what is not evaluated may not tell.
 */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

enum { DEEP_MAX = 24 }; /* schemas in one another */

static holding holds(schema_compiler *c, const cJSON *s, const cJSON *v, int deep);

static holding is_so(bool so)
{
    return so ? HOLDS : HOLDS_NOT;
}

/* Room for so many comparisons more; or an error. */
static bool may_look(schema_compiler *c, int64_t n)
{
    c->merge_work += n;
    return c->merge_work < MERGE_WORK_MAX || schema_fail(c, ERR_LIMIT, "too much to compare");
}

static int64_t size_of(const cJSON *list)
{
    return cJSON_GetArraySize(list);
}

static holding opposite(holding h)
{
    return h == HOLDS ? HOLDS_NOT : h == HOLDS_NOT ? HOLDS : HOLDS_UNKNOWN;
}

static holding both(holding a, holding b)
{
    if (a == HOLDS_NOT || b == HOLDS_NOT) return HOLDS_NOT;
    return a == HOLDS && b == HOLDS ? HOLDS : HOLDS_UNKNOWN;
}

static int64_t characters(const char *s)
{
    int64_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

/* ----------------------------------------------------------------- other schemas -- */

/* How many of a list of schemas hold: *least for sure, *most perhaps. */
static bool count_holding(schema_compiler *c, const cJSON *list, const cJSON *v, int deep,
                          int *least, int *most)
{
    const cJSON *s;
    *least = *most = 0;
    if (!cJSON_IsArray(list)) return false;
    cJSON_ArrayForEach(s, list)
    {
        holding h = holds(c, s, v, deep);
        *least += h == HOLDS;
        *most += h != HOLDS_NOT;
    }
    return true;
}

static holding holds_choice(schema_compiler *c, const cJSON *word, const cJSON *v, int deep)
{
    int least, most, n = cJSON_GetArraySize(word);
    if (!count_holding(c, word, v, deep, &least, &most)) return HOLDS_UNKNOWN;
    if (strcmp(word->string, "allOf") == 0)
        return most < n ? HOLDS_NOT : least == n ? HOLDS : HOLDS_UNKNOWN;
    if (strcmp(word->string, "anyOf") == 0)
        return least > 0 ? HOLDS : most == 0 ? HOLDS_NOT : HOLDS_UNKNOWN;
    if (least > 1 || most == 0) return HOLDS_NOT;
    return least == 1 && most == 1 ? HOLDS : HOLDS_UNKNOWN;
}

static holding holds_if(schema_compiler *c, const cJSON *s, const cJSON *v, int deep)
{
    const cJSON *then = schema_get(s, "then"), *other = schema_get(s, "else");
    holding cond = holds(c, schema_get(s, "if"), v, deep);
    holding yes = then ? holds(c, then, v, deep) : HOLDS;
    holding no = other ? holds(c, other, v, deep) : HOLDS;
    if (cond == HOLDS_UNKNOWN) return yes == no ? yes : HOLDS_UNKNOWN;
    return cond == HOLDS ? yes : no;
}

static holding holds_ref(schema_compiler *c, const cJSON *ref, const cJSON *v, int deep)
{
    cJSON *alone = cJSON_CreateObject();
    cJSON_AddItemReferenceToObject(alone, "$ref", (cJSON *)ref);
    const cJSON *target = schema_target(c, alone);
    holding h = target && target != alone ? holds(c, target, v, deep) : HOLDS_UNKNOWN;
    cJSON_Delete(alone);
    return h;
}

/* ------------------------------------------------------------- numbers and strings -- */

static holding holds_bound(const cJSON *s, const cJSON *word, const cJSON *v)
{
    static const char *const bounds[] = {"minimum", "exclusiveMinimum", "maximum",
                                         "exclusiveMaximum"};
    static const char *const flags[] = {"exclusiveMinimum", NULL, "exclusiveMaximum", NULL};
    if (cJSON_IsBool(word)) return HOLDS; /* draft 4: said with the bound */
    if (!cJSON_IsNumber(word)) return HOLDS_UNKNOWN;
    for (int i = 0; i < 4; i++) {
        if (strcmp(word->string, bounds[i]) != 0) continue;
        bool strict = !flags[i] || cJSON_IsTrue(schema_get(s, flags[i]));
        int order = json_order(v, word) * (i < 2 ? 1 : -1);
        return is_so(order > 0 || (order == 0 && !strict));
    }
    return HOLDS_UNKNOWN;
}

/* An expression is looked for in plain ASCII alone, where all dialects agree. */
static holding finds(schema_compiler *c, const char *pattern, const char *text)
{
    err e;
    bool found;
    size_t len = strlen(pattern);
    if (!may_look(c, (int64_t)(len + 1) * (int64_t)(strlen(text) + 1))) return HOLDS_UNKNOWN;
    if (g_regex_finds(pattern, len, text, &found, &e)) return HOLDS_UNKNOWN;
    return is_so(found);
}

/* Our own expression for a format is narrower than the format. */
static holding holds_format(schema_compiler *c, const cJSON *word, const char *text)
{
    char whole[1024];
    const char *pattern = schema_format(cJSON_GetStringValue(word));
    if (!pattern) return HOLDS;
    int n = snprintf(whole, sizeof(whole), "^(%s)$", pattern);
    bool fits = n > 0 && (size_t)n < sizeof(whole);
    return fits && finds(c, whole, text) == HOLDS ? HOLDS : HOLDS_UNKNOWN;
}

static holding holds_string(schema_compiler *c, const cJSON *word, const char *text)
{
    bool least = strcmp(word->string, "minLength") == 0;
    if (least || strcmp(word->string, "maxLength") == 0) {
        double n = (double)characters(text);
        if (!cJSON_IsNumber(word)) return HOLDS_UNKNOWN;
        return is_so(least ? n >= word->valuedouble : n <= word->valuedouble);
    }
    if (strcmp(word->string, "format") == 0) return holds_format(c, word, text);
    if (cJSON_IsString(word)) return finds(c, word->valuestring, text);
    holding h = cJSON_IsArray(word) ? HOLDS : HOLDS_UNKNOWN; /* patterns of several parts */
    const cJSON *p;
    cJSON_ArrayForEach(p, word) h = both(h, finds(c, p->valuestring, text));
    return h;
}

/* ------------------------------------------------------------------------ arrays -- */

/* Items from `from` on. */
static holding hold_all(schema_compiler *c, const cJSON *s, const cJSON *v, int from, int deep)
{
    holding h = HOLDS;
    int i = 0;
    const cJSON *x;
    cJSON_ArrayForEach(x, v)
    {
        if (i++ >= from) h = both(h, holds(c, s, x, deep));
    }
    return h;
}

static holding hold_in_order(schema_compiler *c, const cJSON *list, const cJSON *v, int deep)
{
    holding h = HOLDS;
    const cJSON *s = list->child, *x = v->child;
    for (; s && x; s = s->next, x = x->next) h = both(h, holds(c, s, x, deep));
    return h;
}

static holding are_unlike(schema_compiler *c, const cJSON *v)
{
    if (!may_look(c, size_of(v) * size_of(v))) return HOLDS_UNKNOWN;
    for (const cJSON *x = v->child; x; x = x->next) {
        for (const cJSON *y = x->next; y; y = y->next)
            if (json_same(x, y)) return HOLDS_NOT;
    }
    return HOLDS;
}

static holding holds_contains(schema_compiler *c, const cJSON *s, const cJSON *v, int deep)
{
    int64_t min = 1, max = -1;
    int least = 0, most = 0;
    const cJSON *x;
    if (!schema_take_size(c, s, "minContains", &min) ||
        !schema_take_size(c, s, "maxContains", &max))
        return HOLDS_UNKNOWN;
    cJSON_ArrayForEach(x, v)
    {
        holding h = holds(c, schema_get(s, "contains"), x, deep);
        least += h == HOLDS;
        most += h != HOLDS_NOT;
    }
    if (most < min || (max >= 0 && least > max)) return HOLDS_NOT;
    return least >= min && (max < 0 || most <= max) ? HOLDS : HOLDS_UNKNOWN;
}

static holding holds_array(schema_compiler *c, const cJSON *s, const cJSON *word, const cJSON *v,
                           int deep)
{
    const char *name = word->string;
    const cJSON *items = schema_get(s, "items"), *prefix = schema_get(s, "prefixItems"), *one;
    bool old = cJSON_IsArray(items); /* before 2020-12 */
    double n = cJSON_GetArraySize(v);
    if (strcmp(name, "minItems") == 0 && cJSON_IsNumber(word)) return is_so(n >= word->valuedouble);
    if (strcmp(name, "maxItems") == 0 && cJSON_IsNumber(word)) return is_so(n <= word->valuedouble);
    if (strcmp(name, "uniqueItems") == 0) return cJSON_IsTrue(word) ? are_unlike(c, v) : HOLDS;
    if (strcmp(name, "contains") == 0) {
        holding all = HOLDS;
        if (!cJSON_IsArray(word)) return holds_contains(c, s, v, deep);
        cJSON_ArrayForEach(one, word) all = both(all, holds(c, one, v, deep));
        return all;
    }
    if (old && strcmp(name, "prefixItems") == 0) return HOLDS_UNKNOWN;
    if (strcmp(name, "prefixItems") == 0 || (old && word == items))
        return cJSON_IsArray(word) ? hold_in_order(c, word, v, deep) : HOLDS_UNKNOWN;
    if (word == items) return hold_all(c, word, v, cJSON_GetArraySize(prefix), deep);
    if (strcmp(name, "additionalItems") == 0)
        return old ? hold_all(c, word, v, cJSON_GetArraySize(items), deep) : HOLDS;
    if (strcmp(name, "unevaluatedItems") != 0) return HOLDS_UNKNOWN;
    if (cJSON_IsTrue(word) || (items && !old)) return HOLDS;
    return schema_has_parts(s) ? HOLDS_UNKNOWN
                               : hold_all(c, word, v, cJSON_GetArraySize(prefix), deep);
}

/* ----------------------------------------------------------------------- objects -- */

/* A member that neither `properties` nor a pattern speaks of. */
static holding is_other(schema_compiler *c, const cJSON *s, const cJSON *member)
{
    holding h = is_so(!schema_get(schema_get(s, "properties"), member->string));
    const cJSON *p;
    cJSON_ArrayForEach(p, schema_get(s, "patternProperties")) h =
        both(h, opposite(finds(c, p->string, member->string)));
    return h;
}

/* `condition` implies `h`. */
static holding where(holding condition, holding h)
{
    if (condition == HOLDS_NOT || h == HOLDS) return HOLDS;
    return condition == HOLDS ? h : HOLDS_UNKNOWN;
}

static holding holds_others(schema_compiler *c, const cJSON *s, const cJSON *word, const cJSON *v,
                            int deep)
{
    holding h = HOLDS;
    const cJSON *x;
    if (!may_look(c, size_of(schema_get(s, "properties")) * size_of(v))) return HOLDS_UNKNOWN;
    cJSON_ArrayForEach(x, v) h = both(h, where(is_other(c, s, x), holds(c, word, x, deep)));
    return h;
}

static holding holds_names(schema_compiler *c, const cJSON *word, const cJSON *v, int deep)
{
    holding h = HOLDS;
    const cJSON *x;
    cJSON_ArrayForEach(x, v)
    {
        cJSON *name = cJSON_CreateString(x->string);
        h = both(h, name ? holds(c, word, name, deep) : HOLDS_UNKNOWN);
        cJSON_Delete(name);
    }
    return h;
}

static holding has_all(schema_compiler *c, const cJSON *names, const cJSON *v)
{
    const cJSON *name;
    if (!may_look(c, size_of(names) * size_of(v))) return HOLDS_UNKNOWN;
    cJSON_ArrayForEach(name, names)
    {
        if (!cJSON_IsString(name)) return HOLDS_UNKNOWN;
        if (!schema_get(v, name->valuestring)) return HOLDS_NOT;
    }
    return HOLDS;
}

/* Each member of `word` speaks of the member of that name (`pattern`: of those that match). */
static holding holds_members(schema_compiler *c, const cJSON *word, const cJSON *v, bool pattern,
                             int deep)
{
    holding h = HOLDS;
    const cJSON *s, *x;
    if (!may_look(c, size_of(word) * size_of(v))) return HOLDS_UNKNOWN;
    cJSON_ArrayForEach(s, word)
    {
        cJSON_ArrayForEach(x, v)
        {
            holding named =
                pattern ? finds(c, s->string, x->string) : is_so(strcmp(s->string, x->string) == 0);
            if (named != HOLDS_NOT) h = both(h, where(named, holds(c, s, x, deep)));
        }
    }
    return h;
}

static holding holds_dependent(schema_compiler *c, const cJSON *word, const cJSON *v, int deep)
{
    holding h = HOLDS;
    const cJSON *more;
    cJSON_ArrayForEach(more, word)
    {
        if (!schema_get(v, more->string)) continue;
        if (cJSON_IsString(more))
            h = both(h, is_so(schema_get(v, more->valuestring) != NULL));
        else
            h = both(h, cJSON_IsArray(more) ? has_all(c, more, v) : holds(c, more, v, deep));
    }
    return h;
}

static holding holds_object(schema_compiler *c, const cJSON *s, const cJSON *word, const cJSON *v,
                            int deep)
{
    const char *name = word->string;
    double n = cJSON_GetArraySize(v);
    bool number = cJSON_IsNumber(word);
    if (strcmp(name, "properties") == 0) return holds_members(c, word, v, false, deep);
    if (strcmp(name, "patternProperties") == 0) return holds_members(c, word, v, true, deep);
    if (strcmp(name, "required") == 0)
        return cJSON_IsArray(word) ? has_all(c, word, v) : HOLDS_UNKNOWN;
    if (strcmp(name, "propertyNames") == 0) return holds_names(c, word, v, deep);
    if (strcmp(name, "minProperties") == 0 && number) return is_so(n >= word->valuedouble);
    if (strcmp(name, "maxProperties") == 0 && number) return is_so(n <= word->valuedouble);
    if (strcmp(name, "additionalProperties") == 0) return holds_others(c, s, word, v, deep);
    if (strncmp(name, "depend", 6) == 0) return holds_dependent(c, word, v, deep);
    if (strcmp(name, "unevaluatedProperties") != 0) return HOLDS_UNKNOWN;
    if (cJSON_IsTrue(word) || schema_get(s, "additionalProperties")) return HOLDS;
    holding h = holds_others(c, s, word, v, deep);
    return schema_has_parts(s) && h != HOLDS ? HOLDS_UNKNOWN : h;
}

/* --------------------------------------------------------------------------- all -- */

static holding is_listed(schema_compiler *c, const cJSON *list, const cJSON *v)
{
    const cJSON *x;
    if (!may_look(c, size_of(list))) return HOLDS_UNKNOWN;
    cJSON_ArrayForEach(x, list)
    {
        if (json_same(x, v)) return HOLDS;
    }
    return HOLDS_NOT;
}

static holding holds_any(schema_compiler *c, const cJSON *s, const cJSON *word, const cJSON *v,
                         int deep)
{
    const char *name = word->string;
    if (strcmp(name, "type") == 0) return is_so(schema_value_is(word, v));
    if (strcmp(name, "const") == 0) return is_so(json_same(word, v));
    if (strcmp(name, "enum") == 0) return is_listed(c, word, v);
    if (strcmp(name, "not") == 0) return opposite(holds(c, word, v, deep));
    if (strcmp(name, "$ref") == 0) return holds_ref(c, word, v, deep);
    if (strcmp(name, "if") == 0) return holds_if(c, s, v, deep);
    if (strcmp(name, "nullable") == 0) return HOLDS;
    return holds_choice(c, word, v, deep);
}

static holding holds_word(schema_compiler *c, const cJSON *s, const cJSON *word, const cJSON *v,
                          int deep)
{
    const keyword *k = schema_keyword(word->string);
    if (!k) return HOLDS;
    switch (k->kind) {
    case ANY: return holds_any(c, s, word, v, deep);
    case OBJECT: return cJSON_IsObject(v) ? holds_object(c, s, word, v, deep) : HOLDS;
    case ARRAY: return cJSON_IsArray(v) ? holds_array(c, s, word, v, deep) : HOLDS;
    case STRING: return cJSON_IsString(v) ? holds_string(c, word, v->valuestring) : HOLDS;
    case NUMBER: break;
    case REFUSED: return HOLDS_UNKNOWN;
    }
    if (!cJSON_IsNumber(v)) return HOLDS;
    return strcmp(word->string, "multipleOf") == 0 ? schema_is_multiple(v, word)
                                                   : holds_bound(s, word, v);
}

/* All keywords but `enum` and `const`, or with `listed` these as well. */
static holding hold_words(schema_compiler *c, const cJSON *s, const cJSON *v, bool listed, int deep)
{
    holding h = HOLDS;
    const cJSON *word;
    if (cJSON_IsNull(v) && cJSON_IsTrue(schema_get(s, "nullable"))) return HOLDS;
    cJSON_ArrayForEach(word, s)
    {
        bool lists = strcmp(word->string, "enum") == 0 || strcmp(word->string, "const") == 0;
        if (!lists || listed) h = both(h, holds_word(c, s, word, v, deep - 1));
        if (h == HOLDS_NOT) return h;
    }
    return h;
}

static holding holds(schema_compiler *c, const cJSON *s, const cJSON *v, int deep)
{
    if (c->rc || deep == 0 || !s || !may_look(c, 1)) return HOLDS_UNKNOWN;
    if (cJSON_IsBool(s)) return is_so(cJSON_IsTrue(s));
    return cJSON_IsObject(s) ? hold_words(c, s, v, true, deep) : HOLDS_UNKNOWN;
}

holding schema_holds(schema_compiler *c, const cJSON *s, const cJSON *value)
{
    return holds(c, s, value, DEEP_MAX);
}

holding schema_holds_beside(schema_compiler *c, const cJSON *s, const cJSON *value)
{
    return hold_words(c, s, value, false, DEEP_MAX);
}
