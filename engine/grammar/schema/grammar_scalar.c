/* grammar_scalar.c -- strings and numbers of a JSON schema.
 *
 * A format is a regular expression here; so are patterns.  Lengths beside them are accepted where
 * the expression keeps them by itself.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/grammar/regex/grammar_dfa.h"
#include "engine/grammar/regex/grammar_regex.h"
#include "engine/grammar/schema/grammar_schema.h"

int32_t schema_start(const schema_compiler *c, int32_t rule)
{
    assert(c->b.failed || (rule >= 0 && rule < c->b.n_rules));
    return c->b.failed ? 0 : c->b.rule[rule].start;
}

int32_t schema_end(const schema_compiler *c, int32_t rule)
{
    assert(c->b.failed || (rule >= 0 && rule < c->b.n_rules));
    return c->b.failed ? 0 : c->b.rule[rule].end;
}

void schema_byte(g_builder *b, int32_t from, char ch, edge_step step, int32_t to)
{
    gb_bytes(b, from, (unsigned char)ch, (unsigned char)ch, step, to);
}

/* ------------------------------------------------------------------------- strings -- */

typedef struct {
    const char *name, *pattern;
} format;

#define B255 "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define DATE                                                                                    \
    "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)" \
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define LABEL "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
#define HOST  LABEL "(\\." LABEL "){1,4}"

/* What is not here is no format of the specification, and says nothing. */
static const format formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration",
     "P([1-9][0-9]{0,3}D(T[1-9][0-9]{0,3}[HMS])?|T[1-9][0-9]{0,3}[HMS]|[1-9][0-9]{0,3}[WMY])"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"},
    {"email", "[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30}){0,3}@" HOST},
    {"idn-email", "[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30}){0,3}@" HOST},
    {"hostname", HOST},
    {"ipv4", B255 "(\\." B255 "){3}"},
    {"ipv6", "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}"},
    {"uri", "https?://" HOST
            "(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]{0,40}){0,8}(\\?[A-Za-z0-9._~=&-]{0,60})?"},
    {"uri-reference", "(https?://" HOST ")?(/[A-Za-z0-9._~-]{1,40}){1,8}"},
    {"iri", "https?://" HOST "(/[A-Za-z0-9._~-]{0,40}){0,8}"},
    {"iri-reference", "(/[A-Za-z0-9._~-]{1,40}){1,8}"},
    {"uri-template", "https?://" HOST "(/[A-Za-z0-9._~-]{0,40}){0,8}(/\\{[a-z]{1,20}\\})?"},
    {"idn-hostname", HOST},
    {"json-pointer", "(/[A-Za-z0-9_-]{0,40}){0,8}"},
    {"relative-json-pointer", "(0|[1-9][0-9]{0,3})(#|(/[A-Za-z0-9_-]{0,40}){0,8})"},
    {"regex", "[A-Za-z0-9 _-]{0,60}"},
    {"byte", "([A-Za-z0-9+/]{4}){0,64}([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
};

const char *schema_format(const char *name)
{
    for (size_t i = 0; name && i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcmp(formats[i].name, name) == 0) return formats[i].pattern;
    return NULL;
}

bool schema_matches(schema_compiler *c, const char *pattern, const char *name, bool *found)
{
    err e;
    size_t len = strlen(pattern);
    c->merge_work += (int64_t)(len + 1) * (int64_t)(strlen(name) + 1);
    if (c->merge_work >= MERGE_WORK_MAX) return schema_fail(c, ERR_LIMIT, "too much to compare");
    if (g_regex_finds(pattern, len, name, found, &e) == ERR_NONE) return true;
    return schema_unsupported(c, pattern, " as an expression for such names");
}

/* The expressions of a string: those that must be found, then those that must not. */
typedef struct {
    g_dfa *d;
    uint64_t found, all;
    int n;
    err_code rc;
    err *e;
} finds;

static void find(finds *f, const char *pattern, bool wanted)
{
    if (f->n == DFA_EXPRESSIONS_MAX && !f->rc)
        f->rc = err_set(f->e, ERR_LIMIT, "too many expressions");
    if (!f->rc) f->rc = dfa_pattern(f->d, pattern, strlen(pattern), f->e);
    if (f->rc) return;
    if (wanted) f->found |= (uint64_t)1 << f->n;
    f->all |= (uint64_t)1 << f->n++;
}

static bool is_printable(const char *s)
{
    while (*s >= ' ' && *s < 0x7F) s++;
    return !*s;
}

static bool leaves_texts_out(const cJSON *s)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, schema_left_out(s))
    {
        if (cJSON_IsString(v)) return true;
    }
    for (v = NULL; (v = schema_next_out(s, v));)
        if (schema_get(v, "pattern")) return true;
    return false;
}

/* None of these, as a whole. */
static void leave_out(finds *f, const cJSON *values)
{
    int n = 0;
    const cJSON *v;
    const char **list = calloc((size_t)cJSON_GetArraySize(values) + 1, sizeof(*list));
    if (!list && !f->rc) f->rc = err_set(f->e, ERR_NOMEM, "no memory");
    cJSON_ArrayForEach(v, values)
    {
        if (list && cJSON_IsString(v) && is_printable(v->valuestring)) list[n++] = v->valuestring;
    }
    if (!f->rc && n > 0) f->rc = dfa_names(f->d, list, n, f->e);
    if (!f->rc && n > 0) f->all |= (uint64_t)1 << f->n++;
    free((void *)list);
}

/* Texts in which all the patterns are found, of which `text` is one, and what `not` says is not. */
static err_code by_finds(g_builder *b, int32_t from, const cJSON *s, const char *text, int64_t min,
                         int64_t max, int32_t to, err *e)
{
    const cJSON *v, *patterns = schema_get(s, "pattern");
    finds f = {.d = dfa_create(leaves_texts_out(s)), .e = e};
    if (!f.d) return err_set(e, ERR_NOMEM, "no memory");
    cJSON_ArrayForEach(v, patterns)
    {
        find(&f, cJSON_IsString(v) ? v->valuestring : "", true);
    }
    if (text) find(&f, text, true);
    for (v = NULL; (v = schema_next_out(s, v));) {
        const char *pattern = cJSON_GetStringValue(schema_get(v, "pattern"));
        if (pattern) find(&f, pattern, false);
    }
    leave_out(&f, schema_left_out(s));
    if (!f.rc) f.rc = dfa_finish(f.d, e);
    if (!f.rc) f.rc = gb_dfa(b, from, f.d, f.found, f.all, min, max, true, to, e);
    dfa_destroy(f.d);
    return f.rc == ERR_INPUT ? ERR_NONE : f.rc;
}

/* A text of a context-free grammar, escaped. */
static bool by_grammar(schema_compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    static const char *const others[] = {"pattern", "format", "minLength", "maxLength"};
    g_builder *b = &c->b;
    g_auto a;
    err e;
    const char *text = cJSON_GetStringValue(schema_get(s, SCHEMA_GRAMMAR));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (schema_get(s, others[i]))
            return schema_unsupported(c, SCHEMA_GRAMMAR, " beside other words about a string");
    if (!text) return schema_fail(c, ERR_INPUT, "'" SCHEMA_GRAMMAR "' must be a string");
    if (leaves_texts_out(s)) return schema_unsupported(c, SCHEMA_GRAMMAR, " beside 'not'");
    err_code rc = grammar_build_cfg(&a, text, &e);
    if (rc) {
        char what[sizeof(e.msg) + 32];
        snprintf(what, sizeof(what), "'" SCHEMA_GRAMMAR "': %.180s", e.msg);
        return schema_fail(c, rc, what);
    }
    int32_t open = gb_state(b), close = gb_state(b);
    schema_byte(b, from, '"', STEP_PLAIN, open);
    gb_call(b, open, gb_import(b, &a, true), BOUNDS_NONE, close);
    schema_byte(b, close, '"', STEP_PLAIN, to);
    g_auto_clear(&a);
    return true;
}

bool schema_build_string(schema_compiler *c, const cJSON *s, int32_t from, int32_t to)
{
    if (schema_get(s, SCHEMA_GRAMMAR)) return by_grammar(c, s, from, to);
    g_builder *b = &c->b;
    const cJSON *pattern = schema_get(s, "pattern"), *form = schema_get(s, "format");
    int64_t min = 0, max = -1;
    if (!schema_take_size(c, s, "minLength", &min) || !schema_take_size(c, s, "maxLength", &max))
        return false;
    if (max >= 0 && min > max) return true; /* nothing */
    const char *text = NULL;
    bool several = cJSON_IsArray(pattern) && pattern->child;
    if (pattern) {
        if (!cJSON_IsString(pattern) && !several)
            return schema_fail(c, ERR_INPUT, "'pattern' must be a string");
        text = pattern->valuestring;
    } else if (form) {
        text = schema_format(cJSON_GetStringValue(form));
    }
    several |= leaves_texts_out(s);
    if (!text && !several) {
        bool free_length = min == 0 && max < 0;
        gb_call(b, from, free_length ? c->string : c->bounded,
                free_length ? BOUNDS_NONE : gb_bounds(b, (int32_t)min, (int32_t)max), to);
        return true;
    }
    /* A rule of its own: its loops count in a frame of their own. */
    int32_t before = b->current, rule = gb_rule(b);
    int32_t open = gb_state(b), close = gb_state(b);
    schema_byte(b, schema_start(c, rule), '"', STEP_PLAIN, open);
    err e;
    char whole[512];
    if (several && text && !pattern) {
        snprintf(whole, sizeof(whole), "^(%s)$", text);
        text = whole;
    }
    err_code rc = several
                      ? by_finds(b, open, s, text, min, max, close, &e)
                      : gb_pattern(b, open, text, strlen(text), min, max, false, true, close, &e);
    schema_byte(b, close, '"', STEP_PLAIN, schema_end(c, rule));
    b->current = before;
    gb_call(b, from, rule, BOUNDS_NONE, to);
    if (rc) {
        char what[sizeof(e.msg) + 16];
        snprintf(what, sizeof(what), "'pattern': %.180s", e.msg);
        return schema_fail(c, rc, what);
    }
    return true;
}

/* ------------------------------------------------------------------------- numbers -- */

static g_limit limit_of(const cJSON *v, bool strict)
{
    g_limit l = {.value = v->valuedouble, .strict = strict, .text = v->valuestring};
    l.exact = json_whole(v, &l.whole);
    return l;
}

static bool take_limit(schema_compiler *c, const cJSON *s, bool lower, g_limit *out, bool *given)
{
    const cJSON *v = schema_get(s, lower ? "minimum" : "maximum");
    const cJSON *x = schema_get(s, lower ? "exclusiveMinimum" : "exclusiveMaximum");
    *given = false;
    if ((v && !cJSON_IsNumber(v)) || (x && !cJSON_IsNumber(x) && !cJSON_IsBool(x))) {
        return schema_fail(c, ERR_INPUT, "a bound must be a number");
    }
    if (v) {
        *out = limit_of(v, cJSON_IsTrue(x)); /* draft 4: a flag */
        *given = true;
    }
    if (cJSON_IsNumber(x)) {
        int order = v ? json_order(x, v) : 0;
        if (lower ? order >= 0 : order <= 0) *out = limit_of(x, true);
        *given = true;
    }
    return true;
}

bool schema_build_number(schema_compiler *c, const cJSON *s, bool whole, int32_t from, int32_t to)
{
    g_limit lo, hi;
    bool has_lo, has_hi;
    const cJSON *step = schema_get(s, "multipleOf");
    if (step && cJSON_IsNumber(step) && step->valuedouble == 1) {
        whole = true;
        step = NULL;
    }
    if (!take_limit(c, s, true, &lo, &has_lo) || !take_limit(c, s, false, &hi, &has_hi)) {
        return false;
    }
    const g_limit *least = has_lo ? &lo : NULL, *most = has_hi ? &hi : NULL;
    for (const cJSON *v = NULL; (v = schema_next_out(s, v));) {
        if (schema_get(v, "multipleOf"))
            return schema_build_no_multiple(c, s, whole, least, most, from, to);
    }
    if (step) return schema_build_multiple(c, step, whole, least, most, from, to);
    if (!has_lo && !has_hi) {
        gb_call(&c->b, from, whole ? c->integer : c->number, BOUNDS_NONE, to);
        return true;
    }
    /* Not called but here: two numbers never stand beside each other in one frame. */
    if (whole)
        gb_integer(&c->b, from, least, most, to);
    else
        gb_number(&c->b, from, least, most, to);
    return true;
}
