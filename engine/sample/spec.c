/* spec.c -- draft tokens by prompt lookup (n-gram matching), and the acceptance rates that say
 * whether drafting pays.
 *
 * The last tokens of a text are kept in a ring of 2^k entries. head[] maps the hash of a token to
 * the position behind its latest occurrence, prev[] chains the earlier ones:
 *
 *   text   .. a b c x .. a b c |          common suffix "a b c": draft x and what follows it
 *               ^from          ^n
 *
 * spec_text_add() looks at the LOOKS latest occurrences of the last token and keeps the longest
 * common suffix (up to SPEC_CONTEXT), the latest among equals. A match that reaches the end of the
 * text continues with its own draft, so a period is repeated.
 *
 * hit[] holds one acceptance rate per match length, for grammar-determined tokens (SPEC_FORM) and
 * for a draft model (SPEC_DRAFT): exponential moving averages, one set per text, and one shared set
 * with which new texts begin.
 *
 * Idea: Saxena, Prompt Lookup Decoding, 2023. Threads: the engine's.
 */
#include "engine/sample/spec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOKS = 32,    /* candidates for one match: the latest */
    HEADS_MIN = 64 /* of a ring, whatever its text */
};

/* Weight of the newest token in the moving averages: of its text, and of the rates with which new
 * texts begin. */
static const double own_share = 1.0 / 12, common_share = 1.0 / 64;
/* The same for a draft model: it is one model for all texts, and a slow estimate costs draft steps.
 */
static const double draft_share = 1.0 / 16;

/* At the start. */
static const spec_rates unseen = {{0.2, 0.35, 0.45, 0.6, 0.75, 0.85, 0.75, 0.5}};

struct spec_text {
    int size;      /* of the ring, a power of two */
    int first, n;  /* of the text: tokens first .. n - 1 are in the ring, or were */
    int from, len; /* token `from` stood behind the last `len` tokens; len 0: nothing is like it */
    int32_t form;  /* the token that the form leaves next; -1: not known */
    int32_t draft[SPEC_MAX]; /* what was proposed for the places from draft_from on */
    int draft_from, n_draft;
    spec_rates rates;
    int32_t *token, *prev, *head; /* [size] each; places count from 1 on, 0: none */
};

void spec_rates_init(spec_rates *r)
{
    *r = unseen;
}

spec_text *spec_text_create(int positions)
{
    spec_text *t = calloc(1, sizeof(*t));
    if (!t) return NULL;
    int most = positions < SPEC_WINDOW ? positions : SPEC_WINDOW;
    for (t->size = HEADS_MIN; t->size < most;) t->size *= 2;
    t->token = calloc((size_t)t->size, sizeof(*t->token));
    t->prev = calloc((size_t)t->size, sizeof(*t->prev));
    t->head = calloc((size_t)t->size, sizeof(*t->head));
    if (!t->token || !t->prev || !t->head) {
        spec_text_destroy(t);
        return NULL;
    }
    return t;
}

void spec_text_destroy(spec_text *t)
{
    if (!t) return;
    free(t->token);
    free(t->prev);
    free(t->head);
    free(t);
}

void spec_text_begin(spec_text *t, int first, const spec_rates *rates)
{
    t->first = t->n = t->draft_from = first;
    t->len = 0;
    t->form = -1;
    t->n_draft = 0;
    t->rates = *rates;
    memset(t->head, 0, (size_t)t->size * sizeof(*t->head));
}

int spec_text_n(const spec_text *t)
{
    return t->n;
}

/* ------------------------------------------------------------------------ rates -- */

static spec_kind kind_of(int len)
{
    return len >= 16  ? SPEC_16
           : len >= 8 ? SPEC_8
           : len >= 4 ? SPEC_4
                      : (spec_kind)(SPEC_1 + len - 1);
}

static void learn(spec_text *t, spec_rates *all, spec_kind kind, bool right)
{
    double now = right ? 1 : 0, common = kind == SPEC_DRAFT ? draft_share : common_share;
    t->rates.hit[kind] += own_share * (now - t->rates.hit[kind]);
    all->hit[kind] += common * (now - all->hit[kind]);
}

/* Compares the next token with the one that was drafted for its position. */
static void see_draft(spec_text *t, int32_t token, spec_rates *all)
{
    int i = t->n - t->draft_from;
    if (i >= t->n_draft) return;
    bool right = t->draft[i] == token;
    if (all) learn(t, all, SPEC_DRAFT, right);
    if (!right) t->n_draft = 0;
}

/* ---------------------------------------------------------------------- the match -- */

static int32_t at(const spec_text *t, int i)
{
    return t->token[i & (t->size - 1)];
}

/* The first that is still in the ring. */
static int oldest(const spec_text *t)
{
    return t->n - t->size > t->first ? t->n - t->size : t->first;
}

static int32_t *bucket_of(spec_text *t)
{
    uint32_t h = (uint32_t)at(t, t->n - 1) * 0x9E3779B1U;
    return &t->head[(h ^ h >> 15) & (uint32_t)(t->size - 1)];
}

/* Length of the common suffix of the text before `place` and the whole text. */
static int common(const spec_text *t, int place)
{
    int most = place - oldest(t), len = 0;
    if (most > SPEC_CONTEXT) most = SPEC_CONTEXT;
    while (len < most && at(t, place - 1 - len) == at(t, t->n - 1 - len)) len++;
    return len;
}

/* Finds the longest match; the latest among equals. */
static void find(spec_text *t, int place)
{
    t->len = 0;
    for (int looks = 0; looks < LOOKS && place > oldest(t); looks++) {
        int len = common(t, place);
        if (len > t->len) {
            t->len = len;
            t->from = place;
        }
        int next = t->prev[place & (t->size - 1)];
        if (t->len == SPEC_CONTEXT || next >= place) break; /* its own was overwritten */
        place = next;
    }
}

void spec_text_add(spec_text *t, int32_t token, spec_rates *all)
{
    if (all && t->len > 0) learn(t, all, kind_of(t->len), token == at(t, t->from));
    if (all && t->form >= 0) learn(t, all, SPEC_FORM, token == t->form);
    see_draft(t, token, all);
    t->form = -1;
    t->token[t->n & (t->size - 1)] = token;
    t->n++;
    t->len = 0;
    int32_t *bucket = bucket_of(t);
    find(t, *bucket);
    t->prev[t->n & (t->size - 1)] = *bucket;
    *bucket = t->n;
}

/* A match that reaches the end of the text continues in the drafted tokens. */
void spec_text_guess(const spec_text *t, int most, spec_guess *out)
{
    out->n = 0;
    out->source = GUESS_LOOKUP;
    for (int i = 0; t->len > 0 && i < most && i < SPEC_MAX; i++) {
        int from = t->from + i;
        out->token[i] = from < t->n ? at(t, from) : out->token[from - t->n];
        out->chance[i] = t->rates.hit[kind_of(t->len + i)];
        out->n++;
    }
}

double spec_text_form_chance(const spec_text *t)
{
    return t->rates.hit[SPEC_FORM];
}

void spec_text_form(spec_text *t, int32_t token)
{
    t->form = token;
}

double spec_text_draft_chance(const spec_text *t)
{
    return t->rates.hit[SPEC_DRAFT];
}

void spec_text_draft(spec_text *t, spec_guess *g)
{
    g->source = GUESS_DRAFT;
    t->draft_from = t->n;
    t->n_draft = g->n;
    for (int i = 0; i < g->n; i++) {
        t->draft[i] = g->token[i];
        g->chance[i] = t->rates.hit[SPEC_DRAFT];
    }
}
