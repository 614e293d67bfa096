/* openai_calls.c -- what form calls of tools must have.
 *
 * Where the answer must be a call, it is that form alone.  Where it may be one (auto), text is free
 * up to the mark by which the model's family opens calls; from there on the name is one of those
 * offered and the arguments keep that function's schema, up to the call's end (structural tags).
 * Where the request also asks for a format, the answer is calls or that format, and its first bytes
 * tell which.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/openai/openai_inside.h"
#include "gateway/openai/openai_tools.h"

static bool no_memory(openai_problem *p)
{
    return openai_refuse(p, 503, "out_of_memory", NULL, "out of memory, try again");
}

void openai_move_refs(cJSON *s, int fn, bool *failed)
{
    static const char *const values[] = {"const", "enum", "default", "examples", "example"};
    cJSON *v;
    cJSON_ArrayForEach(v, s)
    {
        bool data = false;
        for (size_t i = 0; v->string && i < sizeof(values) / sizeof(values[0]); i++)
            data |= strcmp(values[i], v->string) == 0;
        if (data) continue;
        if (v->string && strcmp(v->string, "$ref") == 0 && cJSON_IsString(v) &&
            v->valuestring[0] == '#') {
            char path[512];
            int n = snprintf(path, sizeof(path), "#/$defs/f%d%s", fn, v->valuestring + 1);
            if (n >= (int)sizeof(path) || !cJSON_SetValuestring(v, path)) *failed = true;
        } else if (v->child) {
            openai_move_refs(v, fn, failed);
        }
    }
}

/* {"name": "f", "arguments": {...}}, its arguments at #/$defs/f<fn>; Command's has a number of its
 * own before these. */
static cJSON *schema_of_call(const cJSON *f, int fn, tool_style style)
{
    char ref[32];
    snprintf(ref, sizeof(ref), "#/$defs/f%d", fn);
    bool numbered = style == TOOLS_COMMAND;
    const char *arguments = tool_style_arguments(style);
    const char *const words[] = {tool_style_name(style), arguments, "tool_call_id"};
    cJSON *s = cJSON_CreateObject(), *required = cJSON_CreateStringArray(words, numbered ? 3 : 2);
    cJSON *properties = s ? cJSON_AddObjectToObject(s, "properties") : NULL;
    cJSON *id = numbered && properties ? cJSON_AddObjectToObject(properties, words[2]) : NULL;
    cJSON *name = properties ? cJSON_AddObjectToObject(properties, words[0]) : NULL;
    cJSON *args = properties ? cJSON_AddObjectToObject(properties, arguments) : NULL;
    bool ok = (!numbered || (id && cJSON_AddStringToObject(id, "type", "string") &&
                             cJSON_AddStringToObject(id, "pattern", "^[0-9]{1,3}$"))) &&
              name && args && required && cJSON_AddStringToObject(s, "type", "object") &&
              cJSON_AddBoolToObject(s, "additionalProperties", false) &&
              cJSON_AddStringToObject(name, "const", json_get(f, "name")->valuestring) &&
              cJSON_AddStringToObject(args, "$ref", ref);
    if (!ok || !cJSON_AddItemToObject(s, "required", required)) {
        cJSON_Delete(required);
        cJSON_Delete(s);
        return NULL;
    }
    return s;
}

/* {"type": "object"}: NULL without memory. */
static cJSON *any_object(void)
{
    cJSON *s = cJSON_CreateObject();
    if (s && cJSON_AddStringToObject(s, "type", "object")) return s;
    cJSON_Delete(s);
    return NULL;
}

/* The arguments' own schema; a function without one takes none.  In auto, `strict: false` means any
 * arguments. */
static cJSON *schema_of_arguments(const cJSON *f, int fn, bool may)
{
    const cJSON *given = json_get(f, "parameters");
    bool failed = false;
    if (may && cJSON_IsFalse(json_get(f, "strict"))) return any_object();
    if (openai_is_set(given) && given->child) {
        cJSON *s = cJSON_Duplicate(given, true);
        if (s) openai_move_refs(s, fn, &failed);
        if (s && !failed && !json_get(s, "type") && !json_get(s, "$ref") && !json_get(s, "anyOf"))
            failed = !cJSON_AddStringToObject(s, "type", "object");
        if (!failed) return s;
        cJSON_Delete(s);
        return NULL;
    }
    cJSON *s = cJSON_CreateObject();
    if (s && cJSON_AddStringToObject(s, "type", "object") &&
        cJSON_AddObjectToObject(s, "properties") &&
        cJSON_AddBoolToObject(s, "additionalProperties", false)) {
        return s;
    }
    cJSON_Delete(s);
    return NULL;
}

/* {"$defs": {"f0": ..}, "anyOf": [call, ..]}: NULL without memory. */
static cJSON *schema_of_calls(const openai_request *rq, tool_style style, bool may)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *defs = root ? cJSON_AddObjectToObject(root, "$defs") : NULL;
    cJSON *any = defs ? cJSON_AddArrayToObject(root, "anyOf") : NULL;
    const cJSON *t;
    int fn = 0;
    bool ok = any != NULL;
    cJSON_ArrayForEach(t, rq->callable)
    {
        const cJSON *f = json_get(t, "function");
        char name[16];
        if (!ok || (rq->tool_named && f != rq->tool_named)) continue;
        snprintf(name, sizeof(name), "f%d", fn);
        cJSON *args = schema_of_arguments(f, fn, may);
        cJSON *call = schema_of_call(f, fn++, style);
        ok = args && call && cJSON_AddItemToObject(defs, name, args);
        if (!ok) cJSON_Delete(args);
        if (ok) ok = cJSON_AddItemToArray(any, call);
        if (!ok) cJSON_Delete(call);
    }
    if (ok) return root;
    cJSON_Delete(root);
    return NULL;
}

static bool force(openai_request *rq, tool_style style, openai_problem *p)
{
    if (!openai_own(rq, rq->format_tree)) return no_memory(p); /* for a later turn */
    rq->format_tree = schema_of_calls(rq, style, false);
    if (!rq->format_tree) return no_memory(p);
    rq->format_param = "tools";
    rq->format = (grammar_spec){.kind = GRAMMAR_SCHEMA, .json = rq->format_tree};
    rq->one_call = true;
    rq->rules.ignore_eos = false;
    return true;
}

/* ---- calls in auto -------------------------------------------------------------------------- */

static bool add_text(cJSON *list, const char *text)
{
    cJSON *s = cJSON_CreateString(text);
    if (s && cJSON_AddItemToArray(list, s)) return true;
    cJSON_Delete(s);
    return false;
}

/* Takes `schema` over. */
static bool add_tag(cJSON *list, const char *begin, cJSON *schema, const char *end)
{
    cJSON *tag = cJSON_CreateObject();
    bool ok = tag && schema && cJSON_AddItemToObject(tag, "schema", schema);
    if (!ok) cJSON_Delete(schema);
    ok = ok && cJSON_AddStringToObject(tag, "begin", begin) &&
         cJSON_AddStringToObject(tag, "end", end) && cJSON_AddItemToArray(list, tag);
    if (!ok) cJSON_Delete(tag);
    return ok;
}

/* One mark, behind which any of the calls stands, or a list of them. */
static bool add_marked(cJSON *root, tool_style style, cJSON *calls)
{
    cJSON *triggers = cJSON_AddArrayToObject(root, "triggers");
    cJSON *tags = triggers ? cJSON_AddArrayToObject(root, "tags") : NULL;
    bool ok = calls && tags && add_text(triggers, tool_style_marker(style));
    if (ok && tool_style_lists(style)) {
        cJSON *list = cJSON_CreateObject();
        ok = list && cJSON_AddItemToObject(list, "items", calls) &&
             cJSON_AddStringToObject(list, "type", "array") &&
             cJSON_AddNumberToObject(list, "minItems", 1);
        const char *begin = style == TOOLS_MISTRAL ? "[TOOL_CALLS] " : tool_style_marker(style);
        if (ok) return add_tag(tags, begin, list, "");
        cJSON_Delete(list);
        return false;
    }
    if (ok) return add_tag(tags, "<tool_call>\n", calls, "\n</tool_call>");
    cJSON_Delete(calls);
    return false;
}

/* A tag of the function number `fn`, whose arguments follow `begin`. */
static bool add_call(cJSON *list, const char *begin, int fn, const char *end)
{
    char path[32];
    cJSON *ref = cJSON_CreateObject();
    snprintf(path, sizeof(path), "#/$defs/f%d", fn);
    if (ref && cJSON_AddStringToObject(ref, "$ref", path)) return add_tag(list, begin, ref, end);
    cJSON_Delete(ref);
    return false;
}

/* The function's name stands before its arguments. */
static bool add_framed(const openai_request *rq, cJSON *root, tool_style style,
                       const tool_frame *frames)
{
    cJSON *triggers = cJSON_AddArrayToObject(root, "triggers");
    cJSON *tags = triggers ? cJSON_AddArrayToObject(root, "tags") : NULL;
    const cJSON *t;
    char begin[256];
    int fn = 0;
    bool ok = tags && add_text(triggers, tool_style_marker(style));
    cJSON_ArrayForEach(t, rq->callable)
    {
        const char *name = json_get(json_get(t, "function"), "name")->valuestring;
        for (const tool_frame *f = frames; ok && f->begin; f++) {
            int n = snprintf(begin, sizeof(begin), "%s%s%s", f->begin, name, f->behind);
            assert(n > 0 && n < (int)sizeof(begin)); /* TOOL_NAME_MAX */
            ok = add_call(tags, begin, fn, f->end);
        }
        fn++;
    }
    return ok;
}

/* What a call of Llama's begins with, of one function: each that tool_style_head() gives. */
static bool add_heads(cJSON *heads, cJSON *first, const char *function, int fn)
{
    assert(strlen(function) <= TOOL_NAME_MAX);
    char head[128], begin[160];
    for (int i = 0; tool_style_head(i); i++) {
        bool tight = !strchr(tool_style_head(i), ' ');
        snprintf(head, sizeof(head), "%s\"%s\"", tool_style_head(i), function);
        snprintf(begin, sizeof(begin), tight ? "%s,\"parameters\":" : "%s, \"parameters\": ", head);
        if (!add_text(heads, head) || !add_call(first, begin, fn, "}")) return false;
    }
    return true;
}

/* Of Python's: the first of a list, and one behind a comma. */
static bool add_python_heads(cJSON *heads, cJSON *first, const char *function, int fn)
{
    assert(strlen(function) <= TOOL_NAME_MAX);
    char head[128];
    for (int i = 0; i < 2; i++) {
        snprintf(head, sizeof(head), "%s%s(", i == 0 ? "[" : "", function);
        if (!add_text(heads, head) || !add_call(first, head, fn, ")")) return false;
    }
    return true;
}

static bool add_unmarked(const openai_request *rq, cJSON *root, tool_style style)
{
    cJSON *leads = cJSON_AddArrayToObject(root, "leads");
    cJSON *heads = leads ? cJSON_AddArrayToObject(root, "heads") : NULL;
    cJSON *first = heads ? cJSON_AddArrayToObject(root, "first") : NULL;
    const cJSON *t;
    int fn = 0;
    bool ok = first && add_text(leads, tool_style_marker(style));
    cJSON_ArrayForEach(t, rq->callable)
    {
        const char *name = json_get(json_get(t, "function"), "name")->valuestring;
        ok = ok && (style == TOOLS_LLAMA ? add_heads(heads, first, name, fn)
                                         : add_python_heads(heads, first, name, fn));
        fn++;
    }
    return ok;
}

/* ---- calls beside a format ------------------------------------------------------------------ */

/* Whether `text`, in which backslashes count for nothing, has `mark`. */
static bool mentions(const char *text, const char *mark)
{
    for (const char *from = text; *from; from++) {
        const char *s = from, *m = mark;
        while (*s && *m && (*s == *m || *s == '\\')) m += *s++ == *m;
        if (!*m) return true;
    }
    return false;
}

/* A list of choices, an expression or a grammar that writes calls as the model's family does: it
 * describes them itself. */
static bool describes_calls(const openai_request *rq, tool_style style)
{
    const cJSON *v, *list = rq->format.kind == GRAMMAR_CHOICE ? rq->format.json : NULL;
    const char *text = rq->format.text;
    const char *const marks[] = {tool_style_marker(style), style == TOOLS_LLAMA ? tool_style_head(0)
                                                           : style == TOOLS_PYTHON
                                                               ? "("
                                                               : tool_style_marker(style)};
    bool found = rq->format.kind == GRAMMAR_TAGS;
    for (int i = 0; i < 2; i++) {
        if (text) found |= mentions(text, marks[i]);
        cJSON_ArrayForEach(v, list) if (cJSON_IsString(v)) found |=
            mentions(v->valuestring, marks[i]);
    }
    return found;
}

/* What stands in front of the first call, and of the answer, where that is not nothing. */
static bool add_fronts(cJSON *root, tool_style style, const chat_template *ct)
{
    bool ok = true;
    cJSON *before = cJSON_AddArrayToObject(root, "before");
    for (int i = 0; before && ok && tool_style_before(style, ct, i); i++)
        ok = add_text(before, tool_style_before(style, ct, i));
    return before && ok && cJSON_AddStringToObject(root, "lead", tool_style_answer(style, ct));
}

/* The request's format becomes the form of an answer that is no call. */
static bool add_answer(openai_request *rq, cJSON *root, tool_style style, const chat_template *ct)
{
    const grammar_spec *f = &rq->format;
    cJSON *answer = cJSON_AddObjectToObject(root, "answer");
    bool ok = answer && cJSON_AddNumberToObject(answer, "kind", (double)f->kind);
    if (ok && f->json) ok = cJSON_AddItemReferenceToObject(answer, "json", (cJSON *)f->json);
    if (ok && f->text) ok = cJSON_AddStringToObject(answer, "text", f->text);
    return ok && add_fronts(root, style, ct) && openai_own(rq, rq->format_tree);
}

/* The grammar by which a forced or strict call is written: the schemas of the tools in the
 * family's frame, and beside them the answer's own format where the request has one. */
static bool guide(openai_request *rq, tool_style style, const chat_template *ct, openai_problem *p)
{
    cJSON *calls = schema_of_calls(rq, style, true), *root = cJSON_CreateObject();
    cJSON *defs = calls ? cJSON_DetachItemFromObject(calls, "$defs") : NULL;
    bool ok = root && defs && cJSON_AddItemToObject(root, "$defs", defs);
    if (!ok) cJSON_Delete(defs);
    const tool_frame *frames = tool_style_frames(style, ct);
    const char *members = tool_style_members(style, ct);
    if (ok && members) ok = cJSON_AddStringToObject(root, "members", members);
    if (ok && style == TOOLS_GEMMA) {
        cJSON *marks = cJSON_AddArrayToObject(root, "marks");
        ok = marks && add_text(marks, tool_style_mark(style, 1));
    }
    if (ok && frames)
        ok = add_framed(rq, root, style, frames);
    else if (ok && (style == TOOLS_LLAMA || members))
        ok = add_unmarked(rq, root, style);
    else if (ok) {
        ok = add_marked(root, style, calls);
        calls = NULL;
    }
    cJSON_Delete(calls);
    if (ok && rq->format_param) ok = add_answer(rq, root, style, ct);
    if (!ok) {
        cJSON_Delete(root);
        return no_memory(p);
    }
    rq->format_tree = root;
    if (!rq->format_param) rq->format_param = "tools";
    rq->format = (grammar_spec){.kind = GRAMMAR_TAGS, .json = root};
    rq->guided = true;
    return true;
}

bool openai_form_calls(openai_request *rq, tool_style style, const chat_template *ct,
                       openai_problem *p)
{
    if (rq->tool_choice >= TOOL_CHOICE_REQUIRED) return force(rq, style, p);
    if (rq->format_param && describes_calls(rq, style)) return true;
    return guide(rq, style, ct, p);
}

/* ---- calls without a form ------------------------------------------------------------------- */

static void ignore(openai_request *rq, const char *name)
{
    for (int i = 0; i < rq->n_ignored; i++)
        if (strcmp(rq->ignored[i], name) == 0) return;
    if (rq->n_ignored < OPENAI_IGNORED_MAX) rq->ignored[rq->n_ignored++] = name;
}

bool openai_free_calls(openai_request *rq, openai_problem *p)
{
    const cJSON *t;
    if (rq->callable != rq->tools)
        return openai_refuse(p, 400, "unsupported_parameter", "tool_choice",
                             "'tool_choice' allowed_tools is not supported here: this model's or "
                             "adapter's calls are not guided");
    cJSON_ArrayForEach(t, rq->tools)
    {
        if (cJSON_IsTrue(json_get(json_get(t, "function"), "strict")))
            ignore(rq, "tools.function.strict");
    }
    if (rq->guided) rq->format_param = NULL;
    rq->guided = false;
    return true;
}

/* Whether the schema of one function's arguments can be kept, written so. */
static bool can_be_kept(grammar_maker *m, const cJSON *def, const char *members, err *e)
{
    grammar *g = NULL;
    cJSON *one = cJSON_CreateObject(), *defs = one ? cJSON_AddObjectToObject(one, "$defs") : NULL;
    cJSON *triggers = defs ? cJSON_AddArrayToObject(one, "triggers") : NULL;
    cJSON *tags = triggers ? cJSON_AddArrayToObject(one, "tags") : NULL;
    bool ok = tags && cJSON_AddItemReferenceToObject(defs, def->string, (cJSON *)def) &&
              add_text(triggers, "(") && add_call(tags, "(", atoi(def->string + 1), ")") &&
              (!members || cJSON_AddStringToObject(one, "members", members));
    err_code rc = ok ? grammar_acquire(m, &(grammar_spec){.kind = GRAMMAR_TAGS, .json = one}, &g, e)
                     : err_set(e, ERR_NOMEM, "no memory");
    grammar_release(g);
    cJSON_Delete(one);
    return rc == ERR_NONE;
}

err_code openai_loosen_calls(openai_request *rq, grammar_maker *m, err *e)
{
    cJSON *defs = cJSON_GetObjectItemCaseSensitive(rq->format_tree, "$defs"), *def = defs->child;
    const char *members = cJSON_GetStringValue(json_get(rq->format_tree, "members"));
    const cJSON *t;
    cJSON_ArrayForEach(t, rq->callable)
    {
        cJSON *next = def->next;
        if (!can_be_kept(m, def, members, e)) {
            if (cJSON_IsTrue(json_get(json_get(t, "function"), "strict"))) return ERR_UNSUPPORTED;
            char name[16];
            cJSON *any = any_object();
            snprintf(name, sizeof(name), "%s", def->string);
            if (!any || !cJSON_ReplaceItemInObjectCaseSensitive(defs, name, any))
                return err_set(e, ERR_NOMEM, "no memory");
            ignore(rq, "tools.function.parameters");
        }
        def = next;
    }
    return ERR_NONE;
}
