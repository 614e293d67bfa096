/* grammar_branches.c -- anyOf and oneOf: a choice of branches.
 *
 * oneOf holds where exactly one branch does.  Where it is not proven that what a branch writes
 * never holds for another (grammar_apart.c), it is joined with a way in which that one fails
 * (grammar_opposite.c): each way makes a form of its own.  A branch that is left without a form is
 * not written, as long as others are.
 */
#include <stdlib.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

enum { FORMS_MAX = 16 /* of one branch */ };

/* What a branch says, and what of that is written. */
typedef struct {
    const cJSON *said, *form[FORMS_MAX];
    int n;
    bool unsaid; /* some of it was left out, for it could not be said */
} branch;

static bool are_apart(schema_compiler *c, const branch *a, const branch *b)
{
    return schema_apart(c, a->form[0], b->said) && schema_apart(c, b->form[0], a->said);
}

/* Where a member tells two branches apart, both write it. */
static bool told_apart(schema_compiler *c, branch *a, branch *b)
{
    if (a->n != 1 || b->n != 1) return false;
    if (are_apart(c, a, b)) return true;
    const char *name = c->rc ? NULL : schema_telling_member(c, a->form[0], b->form[0]);
    if (!name) return false;
    cJSON *needs =
        schema_own(c, schema_saying("required", schema_these(cJSON_CreateString(name), NULL)));
    branch x = *a, y = *b;
    x.form[0] = needs ? schema_merge(c, a->form[0], needs) : NULL;
    y.form[0] = needs ? schema_merge(c, b->form[0], needs) : NULL;
    if (!x.form[0] || !y.form[0] || !are_apart(c, &x, &y)) return false;
    *a = x;
    *b = y;
    return true;
}

/* NULL: they cannot be joined, which is no error here. */
static const cJSON *joined(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    err before = *c->e;
    const cJSON *sum = cJSON_IsTrue(b) ? a : schema_merge(c, a, b);
    if (sum || c->rc != ERR_UNSUPPORTED) return sum;
    c->rc = ERR_NONE;
    *c->e = before;
    return NULL;
}

static void add_form(branch *b, const cJSON *form)
{
    for (int i = 0; i < b->n; i++)
        if (json_same(b->form[i], form)) return;
    if (b->n < FORMS_MAX) b->form[b->n++] = form;
}

/* `form` with each way in which `other` fails: those that the form writes anyway; or if there is
 * none, all that it does not rule out. */
static void add_forms(schema_compiler *c, branch *out, const cJSON *form, const cJSON *other)
{
    cJSON *values = schema_values_but(c, form, other, &out->unsaid);
    cJSON *some = values ? schema_own(c, schema_shallow(form)) : NULL;
    if (some) {
        cJSON_DeleteItemFromObjectCaseSensitive(some, "const");
        cJSON_DeleteItemFromObjectCaseSensitive(some, "enum");
        cJSON_AddItemToObject(some, "enum", values);
        if (values->child) add_form(out, some);
    }
    if (!some) cJSON_Delete(values);
    if (values) return;
    cJSON *turned = schema_opposite(c, other, form);
    const cJSON *no = turned ? schema_own(c, turned) : NULL;
    const cJSON *any = schema_get(no, "anyOf"), *v;
    bool several = cJSON_IsArray(any) && !schema_says_more_than(no, "anyOf");
    int before = out->n;
    if (!turned) out->unsaid = true;
    for (int all = 0; no && all < 2 && out->n == before; all++) {
        for (v = several ? any->child : no; v && !c->rc; v = several ? v->next : NULL) {
            if (all ? schema_holds_apart(c, form, v) : schema_apart(c, form, v)) continue;
            const cJSON *sum = joined(c, form, v);
            if (sum)
                add_form(out, sum);
            else
                out->unsaid = true;
        }
    }
}

/* What is written for the branch does not hold for `other`. */
static void shut_out(schema_compiler *c, branch *b, const cJSON *other)
{
    branch out = {.said = b->said, .unsaid = b->unsaid};
    for (int i = 0; i < b->n && !c->rc; i++) {
        if (schema_apart(c, b->form[i], other))
            add_form(&out, b->form[i]);
        else if (!c->rc)
            add_forms(c, &out, b->form[i], other);
    }
    *b = out;
}

static bool only_one_holds(schema_compiler *c, branch *b, int n)
{
    bool some = false, unsaid = false;
    for (int i = 1; i < n; i++)
        for (int k = 0; k < i && !c->rc; k++) (void)told_apart(c, &b[k], &b[i]);
    for (int i = 0; i < n && !c->rc; i++) {
        size_t old = schema_enter(c, "oneOf", i);
        for (int k = 0; k < n && !c->rc; k++)
            if (k != i) shut_out(c, &b[i], b[k].said);
        some |= b[i].n > 0;
        unsaid |= b[i].unsaid;
        schema_leave(c, old);
    }
    if (!c->rc && !some && unsaid)
        return schema_unsupported(c, "oneOf", " where two branches may hold at once; anyOf is");
    return !c->rc;
}

/* Each joined with what stands beside them. */
static bool take_branches(schema_compiler *c, const cJSON *s, const char *word, branch *b)
{
    const cJSON *base = NULL, *v;
    int i = 0;
    if (schema_says_more_than(s, word)) {
        base = schema_without(c, s, word);
        if (!base) return false;
    }
    cJSON_ArrayForEach(v, schema_get(s, word))
    {
        size_t old = schema_enter(c, word, i);
        const cJSON *one = cJSON_IsObject(v) ? schema_target(c, v) : v, *said = one;
        if (!cJSON_IsObject(v) && !cJSON_IsBool(v))
            return schema_fail(c, ERR_INPUT, "a schema must be an object or a boolean");
        if (one && base) one = schema_merge(c, base, one);
        b[i++] = (branch){.said = said, .form = {one}, .n = 1};
        schema_leave(c, old);
        if (!one || c->rc) return false;
    }
    return *word != 'o' || only_one_holds(c, b, i);
}

bool schema_build_branches(schema_compiler *c, const cJSON *s, const char *word, int32_t from,
                           int32_t to)
{
    const cJSON *list_of = schema_get(s, word);
    if (!cJSON_IsArray(list_of) || !list_of->child)
        return schema_fail(c, ERR_INPUT, "anyOf and oneOf must be arrays that are not empty");
    int n = cJSON_GetArraySize(list_of);
    branch *b = calloc((size_t)n, sizeof(*b));
    if (!b) return schema_fail(c, ERR_NOMEM, "no memory");
    bool ok = take_branches(c, s, word, b);
    for (int i = 0; i < n && ok; i++) {
        size_t old = schema_enter(c, word, i);
        for (int k = 0; k < b[i].n && ok; k++) {
            gb_call(&c->b, from, schema_rule(c, b[i].form[k]), BOUNDS_NONE, to);
            ok = !c->rc;
        }
        schema_leave(c, old);
    }
    free(b);
    return ok;
}
