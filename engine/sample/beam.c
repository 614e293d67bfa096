/* beam.c -- beam search: the bookkeeping of live beams and finished answers, without the model.
 *
 * One step: the candidates are the top (width + stop tokens) continuations of every live beam,
 * sorted by the sum of log-probabilities. The best `width` that do not stop become the live beams;
 * a candidate that stops among the best `width` becomes an answer, with score = sum /
 * length^length_penalty.
 *
 *   kept[t][i] = (token, parent beam at t - 1, log-probability)    a trellis, followed backwards to
 *   read an answer
 *
 * The texts of the live beams are also stored in full, [width][max_tokens] and a second copy,
 * because penalties and masks read them; a step copies each from its parent.
 *
 * The search ends when no live beam can beat the worst of `width` answers (can_improve()): the
 * variants of "early_stopping" in Hugging Face transformers.
 *
 * parent[] tells the caller which KV pages each new beam shares (engine/sched/sched_beam.c).
 * Threads: the engine's. Memory is allocated at creation only.
 */
#include "engine/sample/beam.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One entry of the trellis. */
typedef struct node {
    int32_t token;
    int16_t parent; /* its beam, one token before */
    float logprob;
} node;

typedef struct answer {
    node last;
    sampled top; /* of `last`; valid if log-probabilities are kept */
    int length;
    double score;
    bool cut;
} answer;

typedef struct candidate {
    double sum;
    node next;
    bool stops;
} candidate;

struct beam_search {
    beam_rules rules;
    int live, length, n_answers;
    double sum[BEAMS_MAX];
    int32_t *text, *spare; /* [width][max_tokens] of live beams; of those before the step */
    node *kept;            /* [max_tokens][width] */
    sampled *top;          /* [max_tokens][width]; NULL: no log-probabilities are kept */
    answer answers[BEAMS_MAX];
};

beam_search *beam_create(const beam_rules *rules)
{
    assert(rules->width >= 1 && rules->width <= BEAMS_MAX && rules->max_tokens >= 1);
    size_t n = (size_t)rules->width * (size_t)rules->max_tokens;
    beam_search *b = calloc(1, sizeof(*b));
    if (!b) return NULL;
    b->rules = *rules;
    b->live = 1;
    b->text = calloc(n, sizeof(*b->text));
    b->spare = calloc(n, sizeof(*b->spare));
    b->kept = calloc(n, sizeof(*b->kept));
    if (rules->n_top >= 0) b->top = calloc(n, sizeof(*b->top));
    if (b->text && b->spare && b->kept && (b->top || rules->n_top < 0)) return b;
    beam_destroy(b);
    return NULL;
}

void beam_destroy(beam_search *b)
{
    if (!b) return;
    free(b->text);
    free(b->spare);
    free(b->kept);
    free(b->top);
    free(b);
}

int beam_width(const beam_search *b)
{
    return b->rules.width;
}

int beam_live(const beam_search *b)
{
    return b->live;
}

int beam_length(const beam_search *b)
{
    return b->length;
}

const int32_t *beam_text(const beam_search *b, int beam)
{
    assert(beam >= 0 && beam < b->rules.width);
    return b->text + (size_t)beam * (size_t)b->rules.max_tokens;
}

int beam_tops(int width, int n_stop)
{
    return width + n_stop;
}

/* ------------------------------------------------------------------------- a step -- */

static int by_sum(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->sum != y->sum) return x->sum > y->sum ? -1 : 1;
    if (x->next.parent != y->next.parent) return x->next.parent - y->next.parent;
    return (x->next.token > y->next.token) - (x->next.token < y->next.token);
}

static bool is_stop(const int32_t *stop, int n_stop, int32_t token)
{
    for (int i = 0; i < n_stop; i++) {
        if (stop[i] == token) return true;
    }
    return false;
}

static int list_candidates(const beam_search *b, const sampled *const *row, const int32_t *stop,
                           int n_stop, candidate *out)
{
    int n = 0;
    for (int i = 0; i < b->live; i++) {
        for (int k = 0; k < row[i]->n_top; k++) {
            float logprob = row[i]->top_logprob[k];
            int32_t token = row[i]->top_id[k];
            if (!isfinite(logprob)) continue;
            out[n++] = (candidate){.sum = b->sum[i] + (double)logprob,
                                   .next = {token, (int16_t)i, logprob},
                                   .stops = is_stop(stop, n_stop, token)};
        }
    }
    qsort(out, (size_t)n, sizeof(*out), by_sum);
    return n;
}

/* The log-probability alternatives of a kept token. */
static sampled top_of(const beam_search *b, const sampled *row, const node *next)
{
    sampled t = *row;
    t.token = next->token;
    t.logprob = next->logprob;
    if (t.n_top > b->rules.n_top) t.n_top = b->rules.n_top;
    return t;
}

/* Inserts an answer, sorted by score, behind those of equal score, if it is among the best `width`.
 */
static void add_answer(beam_search *b, double sum, const node *last, const sampled *top, bool cut)
{
    double score = sum / pow((double)b->length, (double)b->rules.length_penalty);
    int width = b->rules.width, at = b->n_answers;
    while (at > 0 && b->answers[at - 1].score < score) at--;
    if (at == width) return;
    if (b->n_answers < width) b->n_answers++;
    memmove(&b->answers[at + 1], &b->answers[at],
            (size_t)(b->n_answers - 1 - at) * sizeof(*b->answers));
    b->answers[at] = (answer){.last = *last, .length = b->length, .score = score, .cut = cut};
    if (top) b->answers[at].top = *top;
}

static size_t place(const beam_search *b, int token, int beam)
{
    return (size_t)token * (size_t)b->rules.width + (size_t)beam;
}

/* Fills live beam `i` of the next step: the parent's text and one token. */
static void keep(beam_search *b, int i, const candidate *c, const sampled *row, double *sum)
{
    size_t stride = (size_t)b->rules.max_tokens, n = (size_t)b->length - 1;
    int32_t *to = b->spare + (size_t)i * stride;
    memcpy(to, b->text + (size_t)c->next.parent * stride, n * sizeof(*to));
    to[n] = c->next.token;
    sum[i] = c->sum;
    b->kept[place(b, b->length - 1, i)] = c->next;
    if (b->top) b->top[place(b, b->length - 1, i)] = top_of(b, row, &c->next);
}

void beam_step(beam_search *b, const sampled *const *row, const int32_t *stop, int n_stop,
               int *parent)
{
    candidate list[BEAMS_MAX * SAMPLE_TOP_MAX];
    double sum[BEAMS_MAX];
    int n = list_candidates(b, row, stop, n_stop, list), live = 0;
    assert(b->length < b->rules.max_tokens);
    bool full = ++b->length == b->rules.max_tokens;
    for (int k = 0; k < n; k++) {
        const candidate *c = &list[k];
        const sampled *from = row[c->next.parent];
        if (!c->stops && !full) {
            if (live == b->rules.width) continue;
            parent[live] = c->next.parent;
            keep(b, live++, c, from, sum);
        } else if (k < b->rules.width) {
            sampled top = top_of(b, from, &c->next);
            add_answer(b, c->sum, &c->next, b->top ? &top : NULL, !c->stops);
        }
    }
    int32_t *text = b->text;
    b->text = b->spare;
    b->spare = text;
    b->live = live;
    memcpy(b->sum, sum, (size_t)live * sizeof(*sum));
}

void beam_end(beam_search *b, const bool *ended, int *parent)
{
    size_t stride = (size_t)b->rules.max_tokens;
    int live = 0;
    for (int i = 0; i < b->live; i++) {
        size_t from = place(b, b->length - 1, i), to = place(b, b->length - 1, live);
        if (ended[i]) {
            add_answer(b, b->sum[i], &b->kept[from], b->top ? &b->top[from] : NULL, false);
            continue;
        }
        if (live < i) {
            memcpy(b->text + (size_t)live * stride, b->text + (size_t)i * stride,
                   (size_t)b->length * sizeof(*b->text));
            b->kept[to] = b->kept[from];
            if (b->top) b->top[to] = b->top[from];
        }
        parent[live] = parent[i];
        b->sum[live++] = b->sum[i];
    }
    b->live = live;
}

/* Whether a live beam can still beat the worst answer. */
static bool can_improve(const beam_search *b)
{
    const beam_rules *r = &b->rules;
    if (b->n_answers < r->width) return true;
    if (r->ending == BEAM_ENDS_FULL || r->width == 1) return false;
    bool longest = r->ending == BEAM_ENDS_NEVER && r->length_penalty > 0;
    double length = longest ? r->max_tokens : b->length;
    double best = b->sum[0] / pow(length, (double)r->length_penalty);
    return best > b->answers[r->width - 1].score;
}

bool beam_over(const beam_search *b)
{
    return b->live == 0 || !can_improve(b);
}

/* ------------------------------------------------------------------------ answers -- */

int beam_answers(const beam_search *b)
{
    return b->n_answers;
}

int beam_answer_length(const beam_search *b, int k)
{
    assert(k >= 0 && k < b->n_answers);
    return b->answers[k].length;
}

bool beam_answer_cut(const beam_search *b, int k)
{
    assert(k >= 0 && k < b->n_answers);
    return b->answers[k].cut;
}

void beam_answer(const beam_search *b, int k, sampled *out, int *trail)
{
    const answer *a = &b->answers[k];
    int n = beam_answer_length(b, k), at = a->last.parent;
    for (int t = n - 2; t >= 0; t--) {
        trail[t] = at;
        at = b->kept[place(b, t, at)].parent;
    }
    for (int t = 0; t < n; t++) {
        bool last = t == n - 1;
        const node *one = last ? &a->last : &b->kept[place(b, t, trail[t])];
        if (b->top)
            out[t] = last ? a->top : b->top[place(b, t, trail[t])];
        else
            out[t] = (sampled){.token = one->token, .logprob = one->logprob, .n_top = -1};
    }
}
