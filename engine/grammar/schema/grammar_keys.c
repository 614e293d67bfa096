/* grammar_keys.c -- the names that a JSON schema's patterns leave open, sorted by which of them
 * match.
 *
 * A name that two patternProperties match has both their schemas, one that none matches that of
 * additionalProperties.  So names are written only where it is known which patterns match: of
 * printable ASCII, by the automaton of all patterns together.
 */
#include <assert.h>
#include <string.h>

#include "engine/grammar/regex/grammar_dfa.h"
#include "engine/grammar/schema/grammar_schema.h"

enum { PATTERNS_MAX = 48 }; /* of one object; propertyNames has some besides */

static_assert((int)PATTERNS_MAX < (int)DFA_EXPRESSIONS_MAX, "the names themselves are one more");
typedef struct {
    g_dfa *d;
    int n, n_all;         /* bits: patternProperties; all */
    uint64_t must, never; /* of propertyNames; of names that are members of their own */
    int64_t least, most;  /* characters */
} open_names;

static void add_pattern(open_names *o, const cJSON *pattern, const char *text, err *e, err_code *rc)
{
    if (pattern && !cJSON_IsString(pattern)) *rc = ERR_UNSUPPORTED;
    if (pattern && !*rc) text = pattern->valuestring;
    if (!*rc && o->n_all == DFA_EXPRESSIONS_MAX - 1) *rc = ERR_LIMIT;
    if (*rc) return;
    *rc = dfa_pattern(o->d, text, strlen(text), e);
    o->n_all++;
}

/* What propertyNames asks, where expressions and lengths say it. */
static err_code add_names_schema(schema_compiler *c, open_names *o, const cJSON *names, err *e)
{
    const cJSON *v, *pattern = schema_get(names, "pattern"), *x;
    err_code rc = ERR_NONE;
    cJSON_ArrayForEach(v, names)
    {
        static const char *const kept[] = {"pattern", "minLength", "maxLength"};
        bool known = !schema_keyword(v->string);
        for (int i = 0; i < 3; i++) known |= strcmp(v->string, kept[i]) == 0;
        known |= strcmp(v->string, "type") == 0 && schema_type_has(v, "string");
        if (!known) return ERR_UNSUPPORTED;
    }
    if (cJSON_IsFalse(names)) return ERR_UNSUPPORTED;
    if (!schema_take_size(c, names, "minLength", &o->least) ||
        !schema_take_size(c, names, "maxLength", &o->most))
        return c->rc;
    if (o->most < 0 || o->most > KEY_MAX) o->most = KEY_MAX;
    for (x = cJSON_IsArray(pattern) ? pattern->child : pattern; x && !rc;
         x = x == pattern ? NULL : x->next) {
        o->must |= (uint64_t)1 << o->n_all;
        add_pattern(o, x, NULL, e, &rc);
    }
    return rc;
}

static err_code add_all(schema_compiler *c, open_names *o, const cJSON *s, err *e)
{
    const cJSON *v, *names = schema_get(s, "propertyNames");
    err_code rc = ERR_NONE;
    *o = (open_names){.d = dfa_create(true), .most = KEY_MAX};
    if (!o->d) return err_set(e, ERR_NOMEM, "no memory");
    cJSON_ArrayForEach(v, schema_get(s, "patternProperties"))
    {
        if (o->n == PATTERNS_MAX) rc = ERR_LIMIT;
        if (!rc) add_pattern(o, NULL, v->string, e, &rc);
        o->n++;
    }
    return rc || !names ? rc : add_names_schema(c, o, names, e);
}

/* The automaton; names that are members of their own are left out, where some could be written. */
static err_code make(schema_compiler *c, open_names *o, const cJSON *s, const char *const *names,
                     int n, bool additional, err *e)
{
    err_code rc = add_all(c, o, s, e);
    uint64_t patterns = ((uint64_t)1 << o->n) - 1;
    assert(o->n <= PATTERNS_MAX && o->n_all < DFA_EXPRESSIONS_MAX);
    if (!rc && !additional) {
        bool some = false;
        rc = o->n_all ? dfa_finish(o->d, e) : ERR_UNSUPPORTED;
        for (int i = 0; i < n && !rc; i++) some |= (dfa_finds(o->d, names[i]) & patterns) != 0;
        if (rc || !some) return rc;
        dfa_destroy(o->d);
        rc = add_all(c, o, s, e);
    }
    if (rc) return rc;
    rc = dfa_names(o->d, names, n, e);
    o->never = (uint64_t)1 << o->n_all++;
    return rc ? rc : dfa_finish(o->d, e);
}

static const cJSON *with(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    return !a ? b : b ? schema_both(c, a, b) : a;
}

/* What holds for names that these patterns match, and no others. */
static const cJSON *value_of(schema_compiler *c, const cJSON *s, uint64_t found)
{
    const cJSON *all = schema_get(s, "patternProperties"), *v, *out = NULL;
    uint64_t bit = 1;
    if (!found) out = schema_additional(s);
    for (v = all ? all->child : NULL; v; v = v->next, bit <<= 1)
        if (found & bit) out = with(c, out, v);
    cJSON_ArrayForEach(v, schema_get(s, SCHEMA_OTHERS))
    {
        const cJSON *mine = schema_get(v, "patternProperties"), *x;
        bool matches = found == 0; /* additionalProperties has it already */
        bit = 1;
        for (x = all ? all->child : NULL; x; x = x->next, bit <<= 1)
            matches |= (found & bit) && schema_get(mine, x->string);
        if (!matches) out = with(c, out, schema_get(v, "additionalProperties"));
    }
    return out;
}

static void add_rule(schema_compiler *c, const open_names *o, uint64_t found, const cJSON *value,
                     member_rules *out)
{
    g_builder *b = &c->b;
    int32_t before = b->current, rule = gb_rule(b), open = gb_state(b), close = gb_state(b);
    uint64_t of = o->must | o->never | (((uint64_t)1 << o->n) - 1);
    err e;
    schema_byte(b, schema_start(c, rule), '"', STEP_PLAIN, open);
    err_code rc = gb_dfa(b, open, o->d, found | o->must, of, o->least, o->most, true, close, &e);
    if (rc && o->most == KEY_MAX) /* longer ones, where there are no others */
        (void)gb_dfa(b, open, o->d, found | o->must, of, o->least, -1, true, close, &e);
    schema_byte(b, close, '"', STEP_PLAIN, schema_end(c, rule));
    b->current = before;
    *out = (member_rules){rule, BOUNDS_NONE, value ? schema_rule(c, value) : c->value};
}

int schema_open_members(schema_compiler *c, const cJSON *s, const char *const *names, int n,
                        member_rules *out)
{
    enum { COMBINATIONS_MAX = 4 * OPEN_MAX };
    const cJSON *add = schema_additional(s);
    bool additional = add && !cJSON_IsFalse(add);
    uint64_t all[COMBINATIONS_MAX];
    open_names o;
    err e;
    int n_out = 0, n_all = 0;
    err_code rc = make(c, &o, s, names, n, additional, &e);
    if (!rc) n_all = dfa_combinations(o.d, all, COMBINATIONS_MAX);
    uint64_t patterns = ((uint64_t)1 << o.n) - 1;
    for (int i = 0; i < n_all && i < COMBINATIONS_MAX && n_out < OPEN_MAX && !c->rc; i++) {
        uint64_t found = all[i] & patterns;
        if ((all[i] & o.must) != o.must || (all[i] & o.never) || (!found && !additional)) continue;
        const cJSON *value = value_of(c, s, found);
        if (!cJSON_IsFalse(value)) add_rule(c, &o, found, value, &out[n_out++]);
    }
    dfa_destroy(o.d);
    return rc ? -1 : n_out;
}
