/* grammar_contains.c -- arrays that must contain items of a kind.
 *
 * Where an array stands is a phase: of each `contains`, how many items count so far.  At each item
 * there is a way for each of the kinds that it is counted for; where a kind has an upper bound,
 * what is not counted is its opposite.  grammar_plain.c makes of `contains` an array of
 * {"contains": .., "minContains": .., "maxContains": ..}, so that two parts may have one each.
 */
#include <assert.h>
#include <string.h>

#include "engine/grammar/schema/grammar_schema.h"

enum {
    KINDS_MAX = 3,   /* of one array */
    PHASES_MAX = 64, /* in which it may stand */
    FIRST_MAX = 64,  /* items that have a schema of their own */
};

typedef struct {
    const cJSON *one, *no; /* what is counted; its opposite, where there is an upper bound */
    int least, most;       /* most < 0: no bound */
    int steps;             /* counts that are told apart */
} kind;

typedef struct {
    schema_compiler *c;
    const cJSON *s;
    bool unlike; /* no two items are the same */
    kind of[KINDS_MAX];
    int n, phases, sets; /* sets: of kinds that an item is counted for */
} contained;

/* How often kind `k` was counted. */
static int count_of(const contained *a, int phase, int k)
{
    for (int i = 0; i < k; i++) phase /= a->of[i].steps;
    assert(a->of[k].steps > 0);
    return phase % a->of[k].steps;
}

/* The phase after an item of that set; -1: it cannot be one. */
static int next_phase(const contained *a, int phase, int set)
{
    int unit = 1, out = phase;
    for (int k = 0; k < a->n; k++) {
        bool full = count_of(a, phase, k) == a->of[k].steps - 1;
        if (set & 1 << k) {
            if (full) return -1;
            out += unit;
        }
        unit *= a->of[k].steps;
    }
    assert(out >= phase && out < a->phases);
    return out;
}

static bool is_enough(const contained *a, int phase)
{
    for (int k = 0; k < a->n; k++)
        if (count_of(a, phase, k) < a->of[k].least) return false;
    return true;
}

static bool read_kind(schema_compiler *c, const cJSON *v, kind *out)
{
    int64_t least = 1, most = -1;
    if (!schema_take_size(c, v, "minContains", &least) ||
        !schema_take_size(c, v, "maxContains", &most))
        return false;
    out->one = schema_get(v, "contains");
    if (!out->one) return schema_fail(c, ERR_INPUT, "'contains' must be a schema");
    if (least >= PHASES_MAX) return schema_unsupported(c, "minContains", " of so many");
    if (most >= PHASES_MAX) most = PHASES_MAX - 1;
    out->least = (int)least;
    out->most = (int)most;
    out->steps = (int)(most >= 0 ? most : least) + 1;
    if (most < 0) return true;
    cJSON *no = schema_opposite(c, out->one, NULL);
    out->no = schema_own(c, no ? no : cJSON_CreateFalse());
    return out->no;
}

static bool read_kinds(contained *a)
{
    const cJSON *v;
    a->phases = a->sets = 1;
    cJSON_ArrayForEach(v, schema_get(a->s, "contains"))
    {
        if (a->n == KINDS_MAX) return schema_unsupported(a->c, "contains", " of so many kinds");
        if (!read_kind(a->c, v, &a->of[a->n])) return false;
        if (a->of[a->n].steps == 1 && a->of[a->n].most < 0) continue; /* it asks for none */
        a->phases *= a->of[a->n++].steps;
        a->sets *= 2;
        if (a->phases > PHASES_MAX) return schema_unsupported(a->c, "contains", " of so many");
    }
    return true;
}

/* The rules of an item, one for each set; -1: there is none. */
static bool rules_of_item(contained *a, const cJSON *item, int32_t *rule)
{
    schema_compiler *c = a->c;
    for (int set = 0; set < a->sets; set++) {
        const cJSON *all = item;
        for (int k = 0; k < a->n && !c->rc; k++) {
            const cJSON *more = set & 1 << k ? a->of[k].one : a->of[k].no;
            if (more && all) more = schema_both(c, all, more);
            if (more) all = more;
        }
        rule[set] = all ? schema_rule(c, all) : c->value;
    }
    return !c->rc;
}

/* An item of each set, from one phase to those after it. */
static void put_item(contained *a, int32_t from, int phase, const int32_t *rule, int32_t *to)
{
    for (int set = 0; set < a->sets; set++) {
        int next = next_phase(a, phase, set);
        if (next < 0) continue;
        to[next] = schema_put_item(a->c, from, rule[set], a->unlike, to[next]);
    }
}

static int32_t put_comma(schema_compiler *c, int32_t from, edge_step step)
{
    int32_t comma = gb_state(&c->b);
    schema_byte(&c->b, from, ',', step, comma);
    return schema_space(c, comma);
}

static void no_states(int32_t *at)
{
    for (int i = 0; i < PHASES_MAX; i++) at[i] = -1;
}

/* The items that have no schema of their own; the frame's counter counts them, or the commas
 * between them where they are the first. */
static void put_rest(contained *a, const int32_t *at, int n, int64_t min, int64_t max, int32_t out)
{
    g_builder *b = &a->c->b;
    int32_t loop[PHASES_MAX], rule[1 << KINDS_MAX];
    int64_t less = n ? n : 1, least = min > less ? min - less : 0;
    const cJSON *items = schema_get(a->s, "items");
    if (!items) items = schema_get(a->s, "unevaluatedItems");
    if (cJSON_IsFalse(items) || max == n || !rules_of_item(a, items, rule)) return;
    int32_t bounds = gb_bounds(b, (int32_t)least, (int32_t)(max < 0 ? -1 : max - less));
    no_states(loop);
    for (int p = 0; p < a->phases; p++) {
        if (at[p] < 0) continue;
        int32_t in = gb_state(b);
        gb_enter(b, at[p], bounds, in);
        if (n == 0)
            put_item(a, in, p, rule, loop);
        else if (loop[p] < 0)
            loop[p] = in;
        else
            gb_eps(b, in, loop[p]);
    }
    for (int p = 0; p < a->phases && !b->failed; p++) {
        if (loop[p] < 0) continue; /* phases only grow */
        put_item(a, put_comma(a->c, loop[p], STEP_COUNT), p, rule, loop);
        if (is_enough(a, p)) gb_leave(b, loop[p], out);
    }
}

bool schema_build_contains(schema_compiler *c, const cJSON *s, bool unlike, int64_t min,
                           int64_t max, int32_t from, int32_t to)
{
    g_builder *b = &c->b;
    contained a = {.c = c, .s = s, .unlike = unlike};
    const cJSON *first = schema_get(s, "prefixItems"), *v = first ? first->child : NULL;
    if (!read_kinds(&a)) return false;
    if (cJSON_GetArraySize(first) > FIRST_MAX)
        return schema_unsupported(c, "contains", " beside so many prefixItems");
    assert(a.phases <= PHASES_MAX && a.sets <= 1 << KINDS_MAX);
    int32_t at[PHASES_MAX], next[PHASES_MAX], rule[1 << KINDS_MAX];
    int32_t open = gb_state(b), close = gb_state(b), out = gb_state(b);
    schema_byte(b, from, '[', unlike ? STEP_OPEN : STEP_PLAIN, open);
    schema_byte(b, close, ']', STEP_PLAIN, to);
    no_states(at);
    at[0] = schema_space(c, open);
    if (min == 0 && is_enough(&a, 0)) gb_eps(b, at[0], close);
    int n = 0;
    for (; v && (max < 0 || n < max); v = v->next, n++) {
        no_states(next);
        if (!rules_of_item(&a, v, rule)) return false;
        for (int p = 0; p < a.phases && !b->failed; p++) {
            if (at[p] < 0) continue;
            put_item(&a, n ? put_comma(c, at[p], STEP_PLAIN) : at[p], p, rule, next);
        }
        memcpy(at, next, sizeof(at));
        for (int p = 0; p < a.phases; p++)
            if (at[p] >= 0 && n + 1 >= min && is_enough(&a, p)) gb_eps(b, at[p], out);
    }
    put_rest(&a, at, n, min, max, out);
    gb_eps(b, schema_space(c, out), close);
    return !c->rc;
}
