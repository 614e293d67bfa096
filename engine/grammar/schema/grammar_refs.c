/* grammar_refs.c -- where a JSON schema names its parts by $id and anchors: every $ref becomes the
 * path of what it means.
 *
 * What stands in the schema itself is found, and what the operator has put beside it
 * (grammar_documents.h), which is copied into it; nothing is fetched.
 *
 * What a $dynamicRef means depends on the resources that led to it: the outermost one that has a
 * dynamic anchor of its name.  So a resource is looked at with the anchors that are bound where it
 * is entered (a scope); entered with others, it is copied once more.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hex.h"
#include "engine/grammar/schema/grammar_documents.h"
#include "engine/grammar/schema/grammar_schema.h"

enum {
    PLACES_MAX = 2000, /* names, anchors, resources, copies: of each */
    NAME_MAX_BYTES = 2000,
    PATH_MAX_BYTES = 4000,
    COPIED_MAX = 50000, /* values */
};

/* The member of the root that has the copies: their paths lead through it. */
static const char copies[] = " copies";
static const char *const reference_words[] = {"$ref", "$dynamicRef", "$recursiveRef"};
static const char recursive[] = "#"; /* name of what $recursiveAnchor is; no anchor's */

/* A schema with a name of its own, and what stands in it without one. */
typedef struct {
    const char *uri; /* of `names` */
    const cJSON *node;
    int draft; /* 4: $id is no word; 7: it says nothing beside $ref */
} g_resource;

typedef struct {
    char *uri; /* owned */
    int resource;
} g_name;

typedef struct {
    int resource;
    char *name, *path; /* owned; the path leads on from the resource */
    bool dynamic;
} g_anchor;

/* An anchor that is bound, and the scope that it is added to; scope 0: none is. */
typedef struct {
    int outer, anchor;
} g_binding;

/* A resource where it stands in the answer, entered with a scope. */
typedef struct {
    int resource, scope;
    char *path;  /* owned */
    cJSON *copy; /* whose references are still to be written; NULL: it is part of another */
} g_instance;

typedef struct {
    g_resource resource[PLACES_MAX];
    g_name name[PLACES_MAX];
    g_anchor anchor[PLACES_MAX];
    g_binding scope[PLACES_MAX];
    g_instance instance[PLACES_MAX];
    int n_resource, n_name, n_anchor, n_scope, n_instance;
    int64_t copied;
    cJSON *out;
    const grammar_documents *documents;
    bool failed; /* too many, too long, or no memory */
} atlas;

/* Where a walk stands. */
typedef struct {
    int resource, scope;
    const char *path;
    int deep;
    bool top; /* the resource's own node */
} spot;

typedef enum {
    SURVEY, /* names, anchors and resources are written down */
    PLACE,  /* instances are */
    REWRITE /* references become paths */
} purpose;

static void visit(atlas *t, cJSON *s, spot at, bool map, purpose p);

static const char *text_of(const cJSON *s, const char *word)
{
    const char *text = cJSON_GetStringValue(schema_get(s, word));
    return text && strlen(text) < NAME_MAX_BYTES ? text : NULL;
}

static int draft_of(const cJSON *s, int otherwise)
{
    const char *word = text_of(s, "$schema");
    if (!word) return otherwise;
    if (strstr(word, "/draft-03/") || strstr(word, "/draft-04/")) return 4;
    return strstr(word, "/draft-06/") || strstr(word, "/draft-07/") ? 7 : 2020;
}

/* A schema's own name; NULL: it has none. */
static const char *id_of(const cJSON *s, int draft)
{
    return draft == 4 || (draft == 7 && schema_get(s, "$ref")) ? NULL : text_of(s, "$id");
}

/* ----------------------------------------------------------------------- addresses -- */

/* "./" and "../" of the path that begins at `s`, in place. */
static void drop_dots(char *s)
{
    char *to = s;
    for (const char *p = s; *p;) {
        size_t n = 1 + strcspn(p + 1, "/");
        bool up = n == 3 && memcmp(p, "/..", 3) == 0, last = !p[n];
        if (up || (n == 2 && memcmp(p, "/.", 2) == 0)) {
            while (up && to > s && *--to != '/') {
            }
            if (last) *to++ = '/';
        } else {
            memmove(to, p, n);
            to += n;
        }
        p += n;
    }
    *to = 0;
}

/* What `ref` means where `base` is the name, without a fragment; NULL: no memory. */
static char *resolve(const char *base, const char *ref)
{
    char out[2 * NAME_MAX_BYTES + 8];
    int n = (int)strcspn(ref, "#"), scheme = (int)strcspn(ref, ":/#");
    size_t own = strcspn(base, "?#");
    const char *host = strstr(base, "://"), *path = host ? strchr(host + 3, '/') : NULL;
    const char *from = path ? path : host ? "" : base, *slash = NULL;
    for (const char *p = from; *p && p < base + own; p++)
        if (*p == '/') slash = p;
    int keep = slash ? (int)(slash - base) + 1 : host ? (int)own : 0;
    if (n == 0)
        return strdup(base);
    else if (ref[scheme] == ':')
        keep = 0;
    else if (strncmp(ref, "//", 2) == 0)
        keep = host ? (int)(host - base) + 1 : 0;
    else if (*ref == '/')
        keep = path ? (int)(path - base) : host ? (int)own : 0;
    bool gap = host && !path && keep > 0 && *ref != '/';
    snprintf(out, sizeof(out), "%.*s%s%.*s", keep, base, gap ? "/" : "", n, ref);
    char *at = strstr(out, "://");
    at = at ? strchr(at + 3, '/') : *out == '/' ? out : NULL;
    if (at && !strpbrk(out, "?")) drop_dots(at);
    return strdup(out);
}

/* "%25" and the like, in place; false: it has a NUL. */
static bool decode(char *s)
{
    char *to = s;
    for (; *s; s++, to++) {
        int hi = *s == '%' ? hex_digit(s[1]) : -1, lo = hi >= 0 ? hex_digit(s[2]) : -1;
        if (hi == 0 && lo == 0) return false;
        *to = lo >= 0 ? (char)(hi * 16 + lo) : *s;
        if (lo >= 0) s += 2;
    }
    *to = 0;
    return true;
}

/* ----------------------------------------------------------------- what is written down -- */

/* Room for one more; else it has failed. */
static bool has_room(atlas *t, int n)
{
    if (n == PLACES_MAX) t->failed = true;
    return !t->failed;
}

static const char *add_name(atlas *t, const char *uri, int resource)
{
    if (!has_room(t, t->n_name)) return "";
    g_name *one = &t->name[t->n_name++];
    *one = (g_name){strdup(uri), resource};
    if (!one->uri) t->failed = true;
    return one->uri ? one->uri : "";
}

static int add_resource(atlas *t, const char *uri, const cJSON *node, int draft)
{
    if (!has_room(t, t->n_resource)) return 0;
    const char *own = add_name(t, uri, t->n_resource);
    t->resource[t->n_resource] = (g_resource){own, node, draft_of(node, draft)};
    return t->n_resource++;
}

static void add_anchor(atlas *t, const char *word, spot at, bool dynamic)
{
    if (!has_room(t, t->n_anchor)) return;
    g_anchor *one = &t->anchor[t->n_anchor++];
    *one = (g_anchor){at.resource, strdup(word), strdup(at.path), dynamic};
    if (!one->name || !one->path) t->failed = true;
}

static int add_instance(atlas *t, int resource, int scope, const char *path, cJSON *copy)
{
    if (!has_room(t, t->n_instance)) return 0;
    g_instance *one = &t->instance[t->n_instance];
    *one = (g_instance){resource, scope, strdup(path), copy};
    if (!one->path) t->failed = true;
    return t->n_instance++;
}

static int find_name(const atlas *t, const char *uri)
{
    for (int i = 0; i < t->n_name; i++)
        if (t->name[i].uri && strcmp(t->name[i].uri, uri) == 0) return t->name[i].resource;
    return -1;
}

static int find_anchor(const atlas *t, int resource, const char *word)
{
    for (int i = 0; i < t->n_anchor; i++)
        if (t->anchor[i].resource == resource && strcmp(t->anchor[i].name, word) == 0) return i;
    return -1;
}

static int find_instance(const atlas *t, int resource, int scope)
{
    for (int i = 0; i < t->n_instance; i++)
        if (t->instance[i].resource == resource && t->instance[i].scope == scope) return i;
    return -1;
}

/* -------------------------------------------------------------------------- scopes -- */

/* The anchor of that name which is bound; -1: none is. */
static int bound(const atlas *t, int scope, const char *word)
{
    assert(scope >= 0 && scope < t->n_scope);
    for (; scope > 0; scope = t->scope[scope].outer)
        if (strcmp(t->anchor[t->scope[scope].anchor].name, word) == 0)
            return t->scope[scope].anchor;
    return -1;
}

/* The scope inside of a resource: its anchors are bound, where none of their names is. */
static int entered(atlas *t, int scope, int resource)
{
    for (int i = 0; i < t->n_anchor && !t->failed; i++) {
        const g_anchor *a = &t->anchor[i];
        if (a->resource != resource || !a->dynamic || bound(t, scope, a->name) >= 0) continue;
        int k = 1;
        while (k < t->n_scope && (t->scope[k].outer != scope || t->scope[k].anchor != i)) k++;
        if (k == t->n_scope && has_room(t, k)) t->scope[t->n_scope++] = (g_binding){scope, i};
        scope = t->failed ? 0 : k;
    }
    return scope;
}

static int64_t count(const cJSON *s)
{
    int64_t n = 0;
    for (; s; s = s->next) n += 1 + (s->child ? count(s->child) : 0);
    return n;
}

/* Where the resource stands, entered with the scope; NULL: there is no room for it. */
static const char *path_of(atlas *t, int resource, int scope)
{
    assert(resource >= 0 && resource < t->n_resource);
    scope = entered(t, scope, resource);
    int i = find_instance(t, resource, scope);
    if (i >= 0 || t->failed) return t->failed ? NULL : t->instance[i].path;
    cJSON *list = cJSON_GetObjectItemCaseSensitive(t->out, copies);
    if (!list) list = cJSON_AddArrayToObject(t->out, copies);
    cJSON *copy = cJSON_Duplicate(t->resource[resource].node, true);
    char path[64];
    snprintf(path, sizeof(path), "/%s/%d", copies, cJSON_GetArraySize(list));
    t->copied += copy ? 1 + count(copy->child) : 0;
    if (!copy || t->copied > COPIED_MAX || !cJSON_AddItemToArray(list, copy)) {
        cJSON_Delete(copy);
        t->failed = true;
        return NULL;
    }
    i = add_instance(t, resource, scope, path, copy);
    if (t->failed) return NULL;
    visit(t, copy, (spot){resource, scope, t->instance[i].path, 0, true}, false, PLACE);
    return t->failed ? NULL : t->instance[i].path;
}

/* ---------------------------------------------------------------------- references -- */

/* The resource of that name, or -1: nobody has it. */
static int named(atlas *t, const char *uri)
{
    int found = find_name(t, uri);
    const cJSON *document = found < 0 ? grammar_documents_find(t->documents, uri) : NULL;
    if (!document) return found;
    found = add_resource(t, uri, document, 2020);
    visit(t, (cJSON *)document, (spot){found, 0, "", 0, true}, false, SURVEY);
    return found;
}

/* `ref`, as it stands in `at`, as a path from the root; NULL: it leads nowhere that is known. */
static char *path_meant(atlas *t, const char *word, const char *ref, spot at)
{
    const char *hash = strchr(ref, '#'), *path = NULL, *more = "";
    char *uri = resolve(t->resource[at.resource].uri, ref), *out = NULL;
    char *fragment = strdup(hash ? hash + 1 : "");
    if (!uri || !fragment) t->failed = true;
    int to = t->failed || !decode(fragment) ? -1 : named(t, uri);
    bool pointer = to >= 0 && (*fragment == '/' || !*fragment);
    bool again = strcmp(word, "$recursiveRef") == 0 && pointer && !*fragment;
    const char *fixed = again ? recursive : fragment;
    int i = to >= 0 && (!pointer || again) ? find_anchor(t, to, fixed) : -1;
    if (i >= 0 && t->anchor[i].dynamic && strcmp(word, "$ref") != 0) {
        int outermost = bound(t, at.scope, fixed);
        if (outermost >= 0) i = outermost;
    }
    if (i >= 0) to = t->anchor[i].resource;
    if (i >= 0 || pointer) path = path_of(t, to, at.scope);
    if (path) more = i >= 0 ? t->anchor[i].path : fragment;
    size_t size = path ? strlen(path) + strlen(more) + 2 : 0;
    if (path) out = malloc(size);
    if (out) snprintf(out, size, "#%s%s", path, more);
    if (path && !out) t->failed = true;
    free(uri);
    free(fragment);
    return out;
}

/* A second reference is a part beside the first. */
static void rewrite(atlas *t, cJSON *s, const char *word, spot at)
{
    const char *ref = text_of(s, word);
    char *path = ref ? path_meant(t, word, ref, at) : NULL;
    if (!path) return;
    cJSON_DeleteItemFromObjectCaseSensitive(s, word);
    cJSON *to = s, *all = cJSON_GetObjectItemCaseSensitive(s, "allOf");
    if (schema_get(s, "$ref")) {
        if (!all) all = cJSON_AddArrayToObject(s, "allOf");
        to = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(all, to)) t->failed = true;
    }
    if (!cJSON_AddStringToObject(to, "$ref", path)) t->failed = true;
    free(path);
}

/* ------------------------------------------------------------------------ the walk -- */

bool schema_is_map(const char *word)
{
    static const char *const words[] = {"properties",  "patternProperties", "$defs",
                                        "definitions", "dependentSchemas",  "dependencies"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(words[i], word) == 0) return true;
    return false;
}

bool schema_holds_data(const char *word)
{
    return !strcmp(word, "enum") || !strcmp(word, "const") || !strcmp(word, "default") ||
           !strcmp(word, "examples");
}

static void visit_children(atlas *t, cJSON *s, spot at, bool map, purpose p)
{
    bool object = cJSON_IsObject(s);
    const char *path = at.path;
    int i = 0;
    for (cJSON *v = s->child; v && !t->failed; v = v->next, i++) {
        char part[NAME_MAX_BYTES], *to = part;
        if (!cJSON_IsObject(v) && !cJSON_IsArray(v)) continue;
        if (object && !map && (schema_holds_data(v->string) || !strcmp(v->string, copies)))
            continue;
        size_t len = strlen(path), size = len + sizeof(part) + 2;
        if (!object) snprintf(part, sizeof(part), "%d", i);
        for (const char *q = object ? v->string : ""; *q && to + 3 < part + sizeof(part); q++) {
            if (*q == '~' || *q == '/') *to++ = '~';
            *to++ = *q == '~' ? '0' : *q == '/' ? '1' : *q;
        }
        if (object) *to = 0;
        char *next = len < PATH_MAX_BYTES ? malloc(size) : NULL;
        if (next) snprintf(next, size, "%s/%s", path, part);
        at.path = next;
        if (next) visit(t, v, at, object && !map && schema_is_map(v->string), p);
        if (!next) t->failed = true;
        free(next);
    }
}

/* A schema that has a name: what is in it is looked at from there. */
static void enter(atlas *t, const cJSON *s, const char *uri, spot *at, purpose p)
{
    if (p == SURVEY && at->top) {
        t->resource[at->resource].uri = add_name(t, uri, at->resource);
    } else if (p == SURVEY) {
        at->resource = add_resource(t, uri, s, t->resource[at->resource].draft);
        at->path = "";
    } else if (!at->top && find_name(t, uri) >= 0) {
        at->resource = find_name(t, uri);
        at->scope = entered(t, at->scope, at->resource);
        if (p == PLACE && find_instance(t, at->resource, at->scope) < 0)
            (void)add_instance(t, at->resource, at->scope, at->path, NULL);
    }
}

static void survey(atlas *t, const cJSON *s, spot at)
{
    const char *id = id_of(s, t->resource[at.resource].draft), *fixed = text_of(s, "$anchor");
    const char *dynamic = text_of(s, "$dynamicAnchor");
    if (id && *id == '#') add_anchor(t, id + 1, at, false);
    if (fixed) add_anchor(t, fixed, at, false);
    if (dynamic) add_anchor(t, dynamic, at, true);
    if (cJSON_IsTrue(schema_get(s, "$recursiveAnchor")) && !*at.path)
        add_anchor(t, recursive, at, true);
}

static void visit(atlas *t, cJSON *s, spot at, bool map, purpose p)
{
    bool schema = cJSON_IsObject(s) && !map;
    const char *id = schema ? id_of(s, t->resource[at.resource].draft) : NULL;
    char *own = id && *id != '#' ? resolve(t->resource[at.resource].uri, id) : NULL;
    if (++at.deep >= NEST_MAX) t->failed = true;
    if (own && !t->failed) enter(t, s, own, &at, p);
    at.top = false;
    if (p == SURVEY && schema) survey(t, s, at);
    if (!t->failed) visit_children(t, s, at, map, p);
    for (int i = 0; p == REWRITE && schema && i < 3 && !t->failed; i++)
        rewrite(t, s, reference_words[i], at);
    free(own);
}

/* Has it names besides its own, or references that are no paths? */
static bool is_needed(const cJSON *s, bool root, int deep)
{
    const char *ref = text_of(s, "$ref");
    if (deep >= NEST_MAX) return false;
    if (ref && strcmp(ref, "#") != 0 && (strncmp(ref, "#/", 2) != 0 || strchr(ref, '%')))
        return true;
    if (text_of(s, "$dynamicRef") || text_of(s, "$recursiveRef")) return true;
    if (!root && text_of(s, "$id")) return true;
    for (const cJSON *v = s->child; v; v = v->next)
        if (is_needed(v, false, deep + 1)) return true;
    return false;
}

static void clear(atlas *t)
{
    for (int i = 0; i < t->n_name; i++) free(t->name[i].uri);
    for (int i = 0; i < t->n_instance; i++) free(t->instance[i].path);
    for (int i = 0; i < t->n_anchor; i++) {
        free(t->anchor[i].name);
        free(t->anchor[i].path);
    }
    free(t);
}

err_code schema_resolved(const cJSON *root, const grammar_documents *d, cJSON **out, err *e)
{
    *out = NULL;
    if (!cJSON_IsObject(root) || !is_needed(root, true, 0)) return ERR_NONE;
    if (schema_get(root, copies))
        return err_set(e, ERR_UNSUPPORTED, "a member '%s' beside references", copies);
    atlas *t = calloc(1, sizeof(*t));
    cJSON *copy = t ? cJSON_Duplicate(root, true) : NULL;
    if (copy) {
        spot at = {.path = "", .top = true};
        *t = (atlas){.out = copy, .documents = d, .n_scope = 1};
        (void)add_resource(t, "", root, 2020);
        visit(t, (cJSON *)root, at, false, SURVEY);
        at.scope = entered(t, 0, 0);
        (void)add_instance(t, 0, at.scope, "", copy);
        if (!t->failed) visit(t, copy, at, false, PLACE);
        for (int i = 0; i < t->n_instance && !t->failed; i++) {
            const g_instance *one = &t->instance[i];
            at = (spot){one->resource, one->scope, one->path, 0, true};
            if (one->copy) visit(t, one->copy, at, false, REWRITE);
        }
    }
    bool failed = !copy || t->failed;
    if (t) clear(t);
    if (failed) cJSON_Delete(copy);
    if (!failed) *out = copy;
    return failed ? err_set(e, ERR_LIMIT, "too many names and references, or too long ones")
                  : ERR_NONE;
}
