/* grammar_refs.c -- where a JSON schema names its parts by $id and anchors: every $ref becomes the
 * path of what it means.
 *
 * Only what stands in the schema itself is found; nothing is fetched.  A $dynamicRef is a $ref
 * where no second anchor of that name could be meant.  Dots in paths ("../x") are not resolved.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hex.h"
#include "engine/grammar/grammar_schema.h"

enum { PLACES_MAX = 2000, NAME_MAX_BYTES = 2000, PATH_MAX_BYTES = 4000 };

/* Something that has a name. */
typedef struct {
    char *uri, *anchor, *path; /* owned */
    bool dynamic;
} place;

typedef struct {
    place list[PLACES_MAX];
    int n;
    bool failed; /* too many, too long, or no memory */
} atlas;

static const char *text_of(const cJSON *s, const char *word)
{
    const char *text = cJSON_GetStringValue(schema_get(s, word));
    return text && strlen(text) < NAME_MAX_BYTES ? text : NULL;
}

/* What `ref` means where `base` is the name, without a fragment; NULL: no memory. */
static char *resolve(const char *base, const char *ref)
{
    char out[2 * NAME_MAX_BYTES + 8];
    int n = (int)strcspn(ref, "#"), scheme = (int)strcspn(ref, ":/#");
    const char *host = strstr(base, "://"), *path = host ? strchr(host + 3, '/') : NULL;
    const char *slash = strrchr(path ? path : host ? "" : base, '/');
    int keep = slash ? (int)(slash - base) + 1 : host ? (int)strlen(base) : 0;
    if (n == 0)
        return strdup(base);
    else if (ref[scheme] == ':')
        keep = 0;
    else if (strncmp(ref, "//", 2) == 0)
        keep = host ? (int)(host - base) + 1 : 0;
    else if (*ref == '/')
        keep = path ? (int)(path - base) : host ? (int)strlen(base) : 0;
    bool gap = host && !path && keep > 0 && *ref != '/';
    snprintf(out, sizeof(out), "%.*s%s%.*s", keep, base, gap ? "/" : "", n, ref);
    return strdup(out);
}

static void note(atlas *t, const char *uri, const char *anchor, const char *path, bool dynamic)
{
    if (t->n == PLACES_MAX) {
        t->failed = true;
        return;
    }
    place *p = &t->list[t->n++];
    *p = (place){strdup(uri), strdup(anchor), strdup(path), dynamic};
    if (!p->uri || !p->anchor || !p->path) t->failed = true;
}

static const place *find(const atlas *t, const char *uri, const char *anchor)
{
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->list[i].uri, uri) == 0 && strcmp(t->list[i].anchor, anchor) == 0)
            return &t->list[i];
    return NULL;
}

/* "%25" and the like; in place. */
static void decode(char *s)
{
    char *to = s;
    for (; *s; s++, to++) {
        int hi = *s == '%' ? hex_digit(s[1]) : -1, lo = hi >= 0 ? hex_digit(s[2]) : -1;
        *to = lo >= 0 ? (char)(hi * 16 + lo) : *s;
        if (lo >= 0) s += 2;
    }
    *to = 0;
}

/* The one that a reference means; *rest: what leads on from there, owned by the caller. */
static const place *meant(const atlas *t, const char *base, const char *ref, char **rest)
{
    const char *hash = strchr(ref, '#');
    char *uri = resolve(base, ref), *fragment = strdup(hash ? hash + 1 : "");
    const place *p = NULL;
    if (uri && fragment) {
        decode(fragment);
        bool path = *fragment == '/' || !*fragment;
        p = find(t, uri, path ? "" : fragment);
        if (p && !path) *fragment = 0;
    }
    free(uri);
    *rest = fragment;
    return p;
}

static bool is_alone(const atlas *t, const char *anchor)
{
    int n = 0;
    for (int i = 0; i < t->n; i++) n += t->list[i].dynamic && !strcmp(t->list[i].anchor, anchor);
    return n == 1;
}

static void rewrite(atlas *t, cJSON *s, const char *base, const char *word)
{
    const char *ref = text_of(s, word);
    char *rest = NULL;
    const place *p = ref ? meant(t, base, ref, &rest) : NULL;
    bool dynamic = *word == '$' && word[1] == 'd';
    if (p && rest && (!dynamic || !p->dynamic || is_alone(t, p->anchor)) &&
        (!dynamic || !schema_get(s, "$ref"))) {
        size_t size = strlen(p->path) + strlen(rest) + 2;
        char *path = malloc(size);
        if (path) snprintf(path, size, "#%s%s", p->path, rest);
        cJSON_DeleteItemFromObjectCaseSensitive(s, word);
        if (!path || !cJSON_AddStringToObject(s, "$ref", path)) t->failed = true;
        free(path);
    }
    free(rest);
}

static bool is_map(const char *word)
{
    static const char *const words[] = {"properties",  "patternProperties", "$defs",
                                        "definitions", "dependentSchemas",  "dependencies"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(words[i], word) == 0) return true;
    return false;
}

static bool is_value(const char *word)
{
    return !strcmp(word, "enum") || !strcmp(word, "const") || !strcmp(word, "default") ||
           !strcmp(word, "examples");
}

static void visit(atlas *t, cJSON *s, const char *base, const char *path, bool map, bool notes,
                  int deep);

static void visit_children(atlas *t, cJSON *s, const char *base, const char *path, bool map,
                           bool notes, int deep)
{
    bool object = cJSON_IsObject(s);
    int i = 0;
    for (cJSON *v = s->child; v && !t->failed; v = v->next, i++) {
        char name[NAME_MAX_BYTES], *to = name;
        if (!cJSON_IsObject(v) && !cJSON_IsArray(v)) continue;
        if (object && !map && is_value(v->string)) continue;
        size_t len = strlen(path), size = len + sizeof(name) + 2;
        if (!object) snprintf(name, sizeof(name), "%d", i);
        for (const char *p = object ? v->string : ""; *p && to + 3 < name + sizeof(name); p++) {
            if (*p == '~' || *p == '/') *to++ = '~';
            *to++ = *p == '~' ? '0' : *p == '/' ? '1' : *p;
        }
        if (object) *to = 0;
        char *next = len < PATH_MAX_BYTES ? malloc(size) : NULL;
        if (next) snprintf(next, size, "%s/%s", path, name);
        if (next) visit(t, v, base, next, object && !map && is_map(v->string), notes, deep + 1);
        if (!next) t->failed = true;
        free(next);
    }
}

/* notes: what has a name is written down; or else references are rewritten. */
static void visit(atlas *t, cJSON *s, const char *base, const char *path, bool map, bool notes,
                  int deep)
{
    bool schema = cJSON_IsObject(s) && !map;
    const char *id = schema ? text_of(s, "$id") : NULL, *anchor = text_of(s, "$anchor");
    const char *dynamic = text_of(s, "$dynamicAnchor");
    char *own = id && *id != '#' ? resolve(base, id) : NULL;
    if (own) base = own;
    if (deep >= NEST_MAX) t->failed = true;
    if (notes && own) note(t, own, "", path, false);
    if (notes && schema && id && *id == '#') note(t, base, id + 1, path, false);
    if (notes && schema && anchor) note(t, base, anchor, path, false);
    if (notes && schema && dynamic) note(t, base, dynamic, path, true);
    if (!notes && schema) rewrite(t, s, base, "$ref");
    if (!notes && schema) rewrite(t, s, base, "$dynamicRef");
    if (!t->failed) visit_children(t, s, base, path, map, notes, deep);
    free(own);
}

/* Has it names besides its own, or references that are no paths? */
static bool is_needed(const cJSON *s, bool root, int deep)
{
    const char *ref = text_of(s, "$ref");
    if (deep >= NEST_MAX) return false;
    if (ref && strcmp(ref, "#") != 0 && strncmp(ref, "#/", 2) != 0) return true;
    if (text_of(s, "$dynamicRef") || (!root && text_of(s, "$id"))) return true;
    for (const cJSON *v = s->child; v; v = v->next)
        if (is_needed(v, false, deep + 1)) return true;
    return false;
}

cJSON *schema_resolved(const cJSON *root)
{
    if (!cJSON_IsObject(root) || !is_needed(root, true, 0)) return NULL;
    cJSON *out = cJSON_Duplicate(root, true);
    atlas *t = calloc(1, sizeof(*t));
    if (out && t) {
        note(t, "", "", "", false);
        visit(t, out, "", "", false, true, 0);
        if (!t->failed) visit(t, out, "", "", false, false, 0);
    }
    if (!t || t->failed) {
        cJSON_Delete(out);
        out = NULL;
    }
    for (int i = 0; t && i < t->n; i++) {
        free(t->list[i].uri);
        free(t->list[i].anchor);
        free(t->list[i].path);
    }
    free(t);
    return out;
}
