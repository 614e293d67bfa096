/* grammar_tags.c -- free text with structured parts: behind a trigger (the opening mark of a tool
 * call) one of its tags must follow: begin, a JSON value or members, end; then text is free again.
 *
 *   free text --trigger--> dispatch --begin--> [ schema ] --end--> free text
 *
 * Free text is the automaton of Aho and Corasick (1975) over the triggers: a trie with fail links,
 * laid out with one edge per byte range, so a text is in exactly one state of it.
 *
 * Triggers of the second kind ("heads") count only at the beginning of the text, or behind a tag of
 * their own and a comma or semicolon. They form a second trie from `first` on; a byte that leaves
 * it falls back to the free-text state of what was read.
 *
 * With an `answer` no text is free: the text is the answer's grammar, or one or more tags separated
 * by at most two spaces (put_apart()). The first bytes decide, so a grammar that can begin like a
 * tag is rejected.
 *
 * `members`: some models write the arguments one by one (<parameter=name>...); `writings` has the
 * syntax of each dialect. Members then come in the order of the schema.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

enum { NODES = 8192, TAGS = 1024, TEXT_MAX = 4096 };

typedef struct {
    const char *text;
    int32_t dispatch; /* the state behind it */
} trigger;

typedef struct {
    int32_t child[256];  /* 0: none */
    int32_t fail, state; /* fail: of the longest shorter beginning that the text ends with */
    int trigger;         /* that ends here; -1: none */
} node;

/* Syntax of one member. raw: strings are written without JSON quotes, between two of `quote`, or up
 * to the beginning of `close`. */
typedef struct {
    const char *name, *open, *behind, *close, *comma;
    bool raw;
    const char *quote;
} writing;

static const writing writings[] = {
    {"python", "", "=", "", ", ", false, NULL},
    {"xml", "<parameter=", ">\n", "\n</parameter>\n", "", true, NULL},
    {"glm", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "", true, NULL},
    {"glm-tight", "<arg_key>", "</arg_key><arg_value>", "</arg_value>", "", true, NULL},
    {"gemma", "", ":", "", ",", true, "<|\"|>"},
};

typedef struct {
    schema_compiler *c;
    g_builder *b;
    const writing *members; /* NULL: a form is one value of JSON */
    node *node; /* [0] is the text's beginning; those of the second kind begin at `first` */
    int n, cap, first;
    trigger trig[TAGS];
    int n_trig;
    int32_t end;           /* of the answer */
    int32_t behind, after; /* where a tag has ended; one of the second kind */
    const g_auto *answer;  /* what the text is where it is no tag; NULL: free text */
} tags;

static const char *text_at(const cJSON *v, const char *name)
{
    const char *s = cJSON_GetStringValue(json_get(v, name));
    return s ? s : "";
}

static int32_t new_node(tags *t)
{
    if (t->n == t->cap) {
        int cap = t->cap ? 2 * t->cap : 64;
        node *more = cap <= NODES ? realloc(t->node, (size_t)cap * sizeof(*more)) : NULL;
        if (!more) {
            (void)schema_fail(t->c, ERR_LIMIT, "the triggers are too long");
            return 0;
        }
        t->node = more;
        t->cap = cap;
    }
    t->node[t->n] = (node){.trigger = -1, .state = gb_state(t->b)};
    return t->n++;
}

/* A trigger below `root`; its number, or that of the same one. */
static int plant(tags *t, int32_t root, const char *text)
{
    int32_t at = root;
    for (const char *s = text; *s && !t->c->rc; s++) {
        int32_t next = t->node[at].child[(unsigned char)*s];
        if (!next) {
            next = new_node(t);
            t->node[at].child[(unsigned char)*s] = next;
        }
        at = next;
    }
    if (t->c->rc) return 0;
    if (t->node[at].trigger < 0 && t->n_trig < TAGS) {
        t->trig[t->n_trig] = (trigger){text, gb_state(t->b)};
        t->node[at].trigger = t->n_trig++;
    }
    if (t->node[at].trigger < 0) return schema_fail(t->c, ERR_LIMIT, "too many triggers");
    return t->node[at].trigger;
}

/* Aho-Corasick transition: the node of free text after one more byte. */
static int32_t go(const tags *t, int32_t at, int byte)
{
    assert(at >= 0 && at < t->n);
    while (at > 0 && !t->node[at].child[byte]) at = t->node[at].fail;
    return t->node[at].child[byte];
}

/* Computes the fail links, breadth first. A node whose suffix is a trigger ends that trigger. */
static bool link_nodes(tags *t)
{
    int32_t *queue = malloc(((size_t)t->first + 1) * sizeof(*queue));
    int n = 0;
    for (int byte = 0; queue && byte < 256; byte++)
        if (t->node[0].child[byte]) queue[n++] = t->node[0].child[byte];
    for (int i = 0; i < n; i++) {
        node *from = &t->node[queue[i]];
        for (int byte = 0; byte < 256; byte++) {
            int32_t to = from->child[byte];
            if (!to) continue;
            t->node[to].fail = go(t, from->fail, byte);
            if (t->node[to].trigger < 0) t->node[to].trigger = t->node[t->node[to].fail].trigger;
            queue[n++] = to;
        }
    }
    assert(n <= t->first);
    free(queue);
    return queue || schema_fail(t->c, ERR_NOMEM, "no memory");
}

static int32_t state_of(const tags *t, int32_t at)
{
    int k = t->node[at].trigger;
    return k >= 0 ? t->trig[k].dispatch : t->node[at].state;
}

/* One edge for each stretch of bytes that lead to one state; `to` of each byte, -1: to none. */
static void put_bytes(tags *t, int32_t from, const int32_t to[256])
{
    for (int lo = 0, hi; lo < 256 && !t->b->failed; lo = hi + 1) {
        for (hi = lo; hi < 255 && to[hi + 1] == to[lo];) hi++;
        if (to[lo] >= 0) gb_bytes(t->b, from, lo, hi, STEP_PLAIN, to[lo]);
    }
}

static void put_edges(tags *t, int32_t from, const int32_t to[256])
{
    put_bytes(t, from, to);
    gb_eps(t->b, from, t->end);
}

static void put_free_text(tags *t)
{
    int32_t to[256];
    for (int32_t at = 0; at < t->first; at++) {
        if (t->node[at].trigger >= 0) continue;
        for (int byte = 0; byte < 256; byte++) to[byte] = state_of(t, go(t, at, byte));
        put_edges(t, t->node[at].state, to);
    }
}

static bool is_space(int byte)
{
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

/* Nodes of the second kind; a child stands behind its parent. */
static void put_first(tags *t)
{
    int32_t to[256];
    for (int32_t at = t->first; at < t->n; at++) {
        if (t->node[at].trigger >= 0) continue;
        for (int byte = 0; byte < 256; byte++) {
            int32_t next = t->node[at].child[byte], text = go(t, t->node[at].fail, byte);
            if (next) t->node[next].fail = text; /* the node of free text for the same bytes */
            to[byte] = next                               ? state_of(t, next)
                       : at == t->first && is_space(byte) ? t->node[at].state
                                                          : state_of(t, text);
        }
        put_edges(t, t->node[at].state, to);
    }
}

/* Behind a tag of the second kind: spaces, then another, or free text. */
static void put_after(tags *t)
{
    int32_t to[256];
    for (int byte = 0; byte < 256; byte++)
        to[byte] = is_space(byte)               ? t->after
                   : byte == ',' || byte == ';' ? t->node[t->first].state
                                                : state_of(t, go(t, 0, byte));
    put_edges(t, t->after, to);
}

/* --------------------------------------------------------- members, one by one -- */

static int32_t put_text(tags *t, int32_t from, const char *text)
{
    int32_t to = gb_state(t->b);
    gb_text(t->b, from, text, strlen(text), to);
    return to;
}

/* Any bytes up to `close`. Requires that no part of `close` but its first byte recurs in it. */
static void put_until(tags *t, int32_t from, const char *close, int32_t to)
{
    int32_t start = gb_state(t->b), at = start, second = gb_state(t->b), next[256];
    gb_eps(t->b, from, start);
    for (size_t i = 0; close[i]; i++) {
        int32_t more = !close[i + 1] ? to : i == 0 ? second : gb_state(t->b);
        for (int byte = 0; byte < 256; byte++)
            next[byte] = byte == (unsigned char)close[i]   ? more
                         : byte == (unsigned char)close[0] ? second
                                                           : start;
        put_bytes(t, at, next);
        at = more;
    }
}

/* A string without quotes, and what closes it. */
static bool put_raw(tags *t, const cJSON *s, int32_t from, int32_t to)
{
    const cJSON *values = json_get(s, "enum"), *only = json_get(s, "const"), *v;
    const char *close = t->members->quote ? t->members->quote : t->members->close;
    int64_t least = 0, most = -1;
    char pattern[64];
    int32_t said = gb_state(t->b);
    if (json_get(s, "pattern")) return schema_unsupported(t->c, "pattern", "has no quotes here");
    if (cJSON_IsString(only))
        gb_text(t->b, from, only->valuestring, strlen(only->valuestring), said);
    cJSON_ArrayForEach(v, values)
    {
        if (cJSON_IsString(v)) gb_text(t->b, from, v->valuestring, strlen(v->valuestring), said);
    }
    bool given = values || only;
    if (!schema_take_size(t->c, s, "minLength", &least) ||
        !schema_take_size(t->c, s, "maxLength", &most))
        return false;
    if (!given && most < 0 && least == 0) {
        put_until(t, from, close, to);
        return true;
    }
    int n = most < 0 ? snprintf(pattern, sizeof(pattern), "[^<]{%lld,}", (long long)least)
                     : snprintf(pattern, sizeof(pattern), "[^<]{%lld,%lld}", (long long)least,
                                (long long)most);
    if (!given) { /* in a frame of its own, which counts */
        int32_t before = t->b->current, rule = gb_rule(t->b);
        err_code rc = gb_regex(t->b, schema_start(t->c, rule), pattern, (size_t)n, false,
                               schema_end(t->c, rule), t->c->e);
        t->b->current = before;
        if (rc) return schema_fail(t->c, rc, "a string's bounds are too large");
        gb_call(t->b, from, rule, BOUNDS_NONE, said);
    }
    gb_text(t->b, said, close, strlen(close), to);
    return true;
}

static bool put_member(tags *t, const cJSON *s, int32_t from, int32_t to)
{
    const writing *w = t->members;
    int32_t name = put_text(t, from, w->open), value = put_text(t, name, s->string);
    value = put_text(t, value, w->behind);
    const char *not = w->quote ? "<>=(),\"' \t\r\n:{}[]" : "<>=(),\"' \t\r\n";
    if (strpbrk(s->string, not ) || !s->string[0])
        return schema_unsupported(t->c, "properties", "has a name that cannot stand in a call");
    if (w->raw && schema_type_has(json_get(s, "type"), "string"))
        return put_raw(t, s, w->quote ? put_text(t, value, w->quote) : value, to);
    int32_t behind = gb_state(t->b);
    gb_call(t->b, value, schema_rule(t->c, s), BOUNDS_NONE, behind);
    gb_text(t->b, behind, w->close, strlen(w->close), to);
    return !t->c->rc;
}

static bool is_required(const cJSON *s, const char *name)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, json_get(s, "required"))
    {
        if (cJSON_IsString(v) && strcmp(v->valuestring, name) == 0) return true;
    }
    return false;
}

/* The members of an object, each that is required, in the order of `properties`. */
static bool put_members(tags *t, const cJSON *s, int32_t from, int32_t to)
{
    static const char *const known[] = {"type", "properties", "required", "additionalProperties"};
    const cJSON *v, *properties = json_get(s, "properties");
    int32_t none = from, some = t->members->comma[0] ? gb_state(t->b) : from;
    cJSON_ArrayForEach(v, s)
    {
        bool held = !schema_keyword(v->string);
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            held |= strcmp(known[i], v->string) == 0;
        if (!held) return schema_unsupported(t->c, v->string, "stands beside single members");
    }
    cJSON_ArrayForEach(v, json_get(s, "required"))
    {
        if (!cJSON_IsString(v) || !json_get(properties, v->valuestring))
            return schema_unsupported(t->c, "required", "names what is not in properties");
    }
    cJSON_ArrayForEach(v, properties)
    {
        int32_t next = gb_state(t->b), skipped = gb_state(t->b);
        bool must = is_required(s, v->string), commas = t->members->comma[0] != 0;
        if (none >= 0 && !put_member(t, v, none, next)) return false;
        if (commas && some >= 0 && none != some) {
            if (!put_member(t, v, put_text(t, some, t->members->comma), next)) return false;
        }
        if (!must) {
            gb_eps(t->b, some, next);
            if (commas) gb_eps(t->b, none, skipped);
        }
        none = commas ? skipped : next;
        some = next;
    }
    gb_eps(t->b, none, to);
    if (none != some) gb_eps(t->b, some, to);
    return !t->c->rc;
}

/* What follows a trigger: the rest of the tag's beginning, its form, its end. */
static bool put_tag(tags *t, const cJSON *v, int k, bool first)
{
    assert(k >= 0 && k < t->n_trig);
    const char *begin = text_at(v, "begin") + strlen(t->trig[k].text), *end = text_at(v, "end");
    int32_t inside = gb_state(t->b), behind = gb_state(t->b);
    gb_text(t->b, t->trig[k].dispatch, begin, strlen(begin), inside);
    const cJSON *schema = json_get(v, "schema"), *s = schema;
    if (t->members && !(s = schema_target(t->c, schema))) return false;
    int32_t over = first ? t->after : t->behind;
    if (t->members && !json_get(s, "properties") && !json_get(s, "additionalProperties")) {
        const char *close = strrchr(end, '<'); /* any members: free text */
        if (t->answer)
            put_until(t, inside, close ? close : end, over);
        else
            gb_eps(t->b, inside, over);
        return !t->c->rc;
    }
    if (t->members && !put_members(t, s, inside, behind)) return false;
    if (!t->members) gb_call(t->b, inside, schema_rule(t->c, schema), BOUNDS_NONE, behind);
    gb_text(t->b, behind, end, strlen(end), over);
    return !t->c->rc;
}

/* A tag behind each trigger of `list` that it begins with. */
static bool put_tags(tags *t, const cJSON *spec, const char *list, int from, int to, bool first)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, json_get(spec, list))
    {
        int found = 0;
        for (int k = from; k < to && !t->c->rc; k++) {
            if (strncmp(text_at(v, "begin"), t->trig[k].text, strlen(t->trig[k].text)) != 0)
                continue;
            found++;
            if (!put_tag(t, v, k, first)) return false;
        }
        if (!found) return schema_fail(t->c, ERR_INPUT, "a tag begins with none of the triggers");
    }
    return !t->c->rc;
}

static bool plant_all(tags *t, const cJSON *list, int32_t root)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, list)
    {
        const char *s = cJSON_GetStringValue(v);
        if (!s || !s[0] || strlen(s) > TEXT_MAX)
            return schema_fail(t->c, ERR_INPUT, "a trigger must be 1 to 4096 bytes of text");
        (void)plant(t, root, s);
        if (t->c->rc) return false;
    }
    return true;
}

/* Checks that each trigger begins a tag. */
static bool all_lead(tags *t, const cJSON *spec, int n)
{
    const cJSON *v;
    for (int k = 0; k < n; k++) {
        bool leads = false;
        cJSON_ArrayForEach(v, json_get(spec, "tags")) leads |=
            strncmp(text_at(v, "begin"), t->trig[k].text, strlen(t->trig[k].text)) == 0;
        if (!leads) return schema_fail(t->c, ERR_INPUT, "no tag begins with a trigger");
    }
    return true;
}

/* ---------------------------------------------------------- a form for the answer -- */

/* From a state to others, over at most two spaces. */
static void put_spaced(tags *t, int32_t from, const int32_t *to, int n)
{
    int32_t next[256];
    for (int left = 2; left >= 0; left--) {
        int32_t more = left ? gb_state(t->b) : -1;
        for (int k = 0; k < n; k++) gb_eps(t->b, from, to[k]);
        for (int byte = 0; byte < 256; byte++) next[byte] = is_space(byte) ? more : -1;
        put_bytes(t, from, next);
        from = more;
    }
}

/* Triggers, byte by byte, and nothing beside them. */
static void put_branches(tags *t)
{
    int32_t to[256];
    for (int32_t at = 0; at < t->n; at++) {
        if (t->node[at].trigger >= 0) continue;
        for (int byte = 0; byte < 256; byte++) {
            int32_t next = t->node[at].child[byte];
            to[byte] = next ? state_of(t, next) : -1;
        }
        put_bytes(t, t->node[at].state, to);
    }
}

static bool is_listed(const cJSON *heads)
{
    const char *first = heads ? cJSON_GetStringValue(heads->child) : NULL;
    return first && first[0] == '[';
}

/* Those heads that open a list, or those that do not. */
static bool plant_heads(tags *t, const cJSON *heads, bool opens, int32_t root)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, heads)
    {
        const char *s = cJSON_GetStringValue(v);
        if (!s || !s[0] || strlen(s) > TEXT_MAX)
            return schema_fail(t->c, ERR_INPUT, "a head must be 1 to 4096 bytes of text");
        if ((s[0] == '[') == opens) (void)plant(t, root, s);
        if (t->c->rc) return false;
    }
    return true;
}

/* Behind a tag of the second kind: another one, the end of their list, the end. */
static void put_list(tags *t, bool listed, int32_t next)
{
    int32_t more = gb_state(t->b), closed = gb_state(t->b), here = gb_state(t->b);
    const int32_t targets[] = {here, t->end};
    put_spaced(t, t->after, targets, listed ? 1 : 2);
    put_spaced(t, more, &next, 1);
    gb_bytes(t->b, here, ',', ',', STEP_PLAIN, more);
    if (!listed) gb_bytes(t->b, here, ';', ';', STEP_PLAIN, more);
    if (!listed) return;
    gb_bytes(t->b, here, ']', ']', STEP_PLAIN, closed);
    put_spaced(t, closed, &t->end, 1);
}

/* The start of the text: the answer's grammar, a tag, or a text that may precede a tag. */
static void put_start(tags *t, const cJSON *spec, int32_t from)
{
    const cJSON *v;
    bool heads = json_get(spec, "heads") != NULL;
    const char *lead = text_at(spec, "lead");
    int32_t form = gb_state(t->b);
    gb_text(t->b, from, lead, strlen(lead), form);
    gb_call(t->b, form, gb_import(t->b, t->answer, false), BOUNDS_NONE, t->end);
    gb_eps(t->b, from, t->node[0].state);
    if (heads) gb_eps(t->b, from, t->node[t->first].state);
    cJSON_ArrayForEach(v, json_get(spec, "before"))
    {
        const char *s = cJSON_GetStringValue(v);
        int32_t behind = gb_state(t->b);
        gb_text(t->b, from, s ? s : "", s ? strlen(s) : 0, behind);
        put_spaced(t, behind, &t->node[0].state, 1);
    }
}

/* Whether a text of the form can begin with `text`. */
static bool can_begin(const g_auto *a, const char *text, g_walk *w)
{
    int depth = 0;
    walk_begin(w, a, NULL, 0);
    w->unlike = true;
    walk_add(w, (g_conf){a->rule[a->root].start, 0, BOUNDS_NONE, NODE_ROOT, 0});
    for (const char *s = text; *s; s++) {
        if (depth == GRAMMAR_TOKEN_MAX) {
            walk_go_on(w, depth);
            depth = 0;
        }
        if (!walk_byte(w, depth++, (uint8_t)*s)) return false;
    }
    return true;
}

/* Rejects an answer grammar that can begin like a tag. */
static bool check_beginnings(tags *t)
{
    g_walk *w = calloc(1, sizeof(*w));
    bool ok = w || schema_fail(t->c, ERR_NOMEM, "no memory");
    for (int k = 0; ok && k < t->n_trig; k++) {
        char why[160];
        if (!can_begin(t->answer, t->trig[k].text, w)) continue;
        snprintf(why, sizeof(why),
                 "an answer of this format can begin with '%.60s', as this model's tool calls do",
                 t->trig[k].text);
        ok = schema_fail(t->c, ERR_INPUT, why);
    }
    free(w);
    return ok;
}

static bool put_apart(tags *t, const cJSON *spec, int32_t from)
{
    const cJSON *leads = json_get(spec, "leads"), *heads = json_get(spec, "heads"), *v;
    bool listed = is_listed(heads);
    (void)new_node(t);
    if (t->c->rc || !plant_all(t, json_get(spec, "triggers"), 0)) return false;
    int n_triggers = t->n_trig, k = n_triggers;
    if (!plant_all(t, leads, 0)) return false;
    int n_free = t->n_trig;
    t->first = new_node(t);
    if (t->c->rc || !plant_heads(t, heads, listed, t->first)) return false;
    int32_t next = listed ? new_node(t) : t->first;
    if (t->c->rc || (listed && !plant_heads(t, heads, false, next))) return false;
    if (!check_beginnings(t)) return false;
    t->behind = gb_state(t->b);
    t->after = gb_state(t->b);
    cJSON_ArrayForEach(v, leads) put_spaced(t, t->trig[k++].dispatch, &t->node[t->first].state, 1);
    put_branches(t);
    const int32_t on[] = {t->node[0].state, t->end};
    put_spaced(t, t->behind, on, 2);
    put_list(t, listed, t->node[next].state);
    put_start(t, spec, from);
    return all_lead(t, spec, n_triggers) && put_tags(t, spec, "tags", 0, n_triggers, false) &&
           put_tags(t, spec, "first", n_free, t->n_trig, true);
}

/* ------------------------------------------------------------------ the whole text -- */

static bool put_free(tags *t, const cJSON *spec, int32_t from)
{
    const cJSON *leads = json_get(spec, "leads"), *heads = json_get(spec, "heads"), *v;
    (void)new_node(t);
    if (t->c->rc || !plant_all(t, json_get(spec, "triggers"), 0)) return false;
    int n_triggers = t->n_trig;
    if (!plant_all(t, leads, 0)) return false;
    int n_free = t->n_trig;
    t->first = t->n;
    if (!link_nodes(t)) return false;
    (void)new_node(t);
    if (t->c->rc || !plant_all(t, heads, t->first)) return false;
    t->behind = t->node[0].state;
    t->after = gb_state(t->b);
    int k = n_triggers;
    cJSON_ArrayForEach(v, leads) gb_eps(t->b, t->trig[k++].dispatch, t->node[t->first].state);
    put_free_text(t);
    put_first(t);
    put_after(t);
    if (!all_lead(t, spec, n_triggers) || !put_tags(t, spec, "tags", 0, n_triggers, false) ||
        !put_tags(t, spec, "first", n_free, t->n_trig, true))
        return false;
    gb_eps(t->b, from, t->node[heads ? t->first : 0].state);
    return true;
}

bool grammar_put_tags(schema_compiler *c, const cJSON *spec, const g_auto *answer, int32_t from,
                      int32_t to)
{
    tags *t = calloc(1, sizeof(*t));
    if (!t) return schema_fail(c, ERR_NOMEM, "no memory");
    t->c = c;
    t->b = &c->b;
    t->end = to;
    t->answer = answer;
    for (size_t i = 0; i < sizeof(writings) / sizeof(writings[0]); i++)
        if (strcmp(text_at(spec, "members"), writings[i].name) == 0) t->members = &writings[i];
    bool ok = answer ? put_apart(t, spec, from) : put_free(t, spec, from);
    free(t->node);
    free(t);
    return ok;
}
