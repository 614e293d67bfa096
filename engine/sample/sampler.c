/* sampler.c -- one token from one row of logits: penalties, masks, temperature, truncation, draw.
 *
 *   logits -> bias and penalties -> stop tokens before min_tokens, grammar mask -> highest logit
 *          -> temperature 0: argmax (lowest id of equal logits)
 *          -> else: weights exp((x - max) / T), truncation by top-k, top-p and min-p, one draw
 *
 * A draw depends only on (seed, index of the token): uniform() hashes both with SplitMix64. Weights
 * are converted to integers before they are added, so sums have no rounding order and the result
 * does not depend on the batch.
 *
 * Nothing is sorted, except the best FEW candidates in a heap, for a small top-k and for
 * log-probability alternatives. Any other truncation works on a histogram (cut.c).
 *
 * Log-probabilities are those of the raw logits, of the logits after penalties, or of the truncated
 * distribution (LOGPROBS_PROCESSED), as the request asks.
 *
 * Penalties mark tokens in two scratch arrays over the vocabulary and clear only what they marked.
 * Threads: a sampler belongs to one thread; it allocates only when it is created.
 */
#include "engine/sample/sampler.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/heap.h"
#include "engine/sample/cut.h"
#include "engine/sample/logits.h"

/* Up to this many candidates are selected with a heap. */
enum { FEW = 256 };
_Static_assert((int)SAMPLE_TOP_MAX <= (int)FEW, "alternatives are found with it, too");

typedef struct {
    float logit;
    int32_t token;
} candidate;

struct sampler {
    int n_vocab, cap;
    candidate list[FEW];
    cut *cut;
    float *raw;      /* [cap]: a row as the model made it, where that is asked for */
    uint8_t *seen;   /* [cap]: 1 in the prompt or output; cleared after use */
    uint16_t *count; /* [cap]: times in the output; cleared after use */
};

sampler *sampler_create(int n_vocab)
{
    sampler *sp = calloc(1, sizeof(*sp));
    if (!sp) return NULL;
    sp->n_vocab = sp->cap = n_vocab;
    sp->cut = cut_create(n_vocab);
    sp->raw = malloc((size_t)n_vocab * sizeof(*sp->raw));
    sp->seen = calloc((size_t)n_vocab, sizeof(*sp->seen));
    sp->count = calloc((size_t)n_vocab, sizeof(*sp->count));
    if (!sp->cut || !sp->raw || !sp->seen || !sp->count) {
        sampler_destroy(sp);
        return NULL;
    }
    return sp;
}

void sampler_set_vocab(sampler *sp, int n_vocab)
{
    assert(n_vocab > 0 && n_vocab <= sp->cap);
    sp->n_vocab = n_vocab;
}

void sampler_destroy(sampler *sp)
{
    if (!sp) return;
    cut_destroy(sp->cut);
    free(sp->raw);
    free(sp->seen);
    free(sp->count);
    free(sp);
}

/* ----------------------------------------------------------------- the numbers -- */

/* A number in (0, 1) from (seed, draw): two rounds of a 64-bit finaliser (splitmix64). */
static double uniform(uint64_t seed, uint64_t draw)
{
    uint64_t x = seed;
    for (int round = 0; round < 2; round++) {
        x += 0x9E3779B97F4A7C15ULL + draw;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
        x ^= x >> 31;
    }
    return ((double)(x >> 11) + 0.5) * 0x1p-53;
}

/* Log of the sum of exponentials. */
static double log_sum(const float *logits, int n, float max)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)expf(logits[i] - max);
    return (double)max + log(sum);
}

static bool is_better(const candidate *a, const candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

static bool is_worse(const void *self, const void *a, const void *b)
{
    (void)self;
    return is_better(b, a);
}

/* Selects the k best into `out`, best first; returns how many. */
static int best(const float *logits, int n, int k, candidate *out)
{
    static const heap_of worst_first = {sizeof(candidate), is_worse, NULL};
    if (k > n) k = n;
    for (int i = 0; i < k; i++) out[i] = (candidate){logits[i], i};
    heap_make(&worst_first, NULL, out, (size_t)k);
    for (int i = k; i < n; i++) {
        candidate c = {logits[i], i};
        if (k && is_better(&c, out)) {
            out[0] = c;
            heap_sink(&worst_first, NULL, out, (size_t)k, 0);
        }
    }
    for (int i = k - 1; i > 0; i--) { /* the worst goes to the end */
        heap_swap(&worst_first, NULL, out, 0, (size_t)i);
        heap_sink(&worst_first, NULL, out, (size_t)i, 0);
    }
    return k;
}

/* ------------------------------------------------------------------- penalties -- */

static void penalise(sampler *sp, float *logits, const sampling *r, const int32_t *prompt,
                     int n_prompt, const int32_t *output, int n_output)
{
    bool repeat = r->repetition_penalty != 1,
         counts = r->presence_penalty != 0 || r->frequency_penalty != 0;
    if (!repeat && !counts) return;
    for (int i = 0; i < n_output; i++) {
        assert(output[i] >= 0 && output[i] < sp->cap);
        sp->seen[output[i]] = 1;
        if (sp->count[output[i]] < UINT16_MAX) sp->count[output[i]]++;
    }
    for (int i = 0; repeat && i < n_prompt; i++) {
        assert(prompt[i] >= 0 && prompt[i] < sp->cap);
        sp->seen[prompt[i]] = 1;
    }
    for (int pass = 0; pass < 2; pass++) {
        const int32_t *list = pass ? prompt : output;
        int n = pass ? (repeat ? n_prompt : 0) : n_output;
        for (int i = 0; i < n; i++) {
            int32_t t = list[i];
            if (!sp->seen[t]) continue; /* done before */
            if (repeat) {
                logits[t] = logits[t] > 0 ? logits[t] / r->repetition_penalty
                                          : logits[t] * r->repetition_penalty;
            }
            if (sp->count[t]) {
                logits[t] -= r->presence_penalty + r->frequency_penalty * (float)sp->count[t];
            }
            sp->seen[t] = 0;
            sp->count[t] = 0;
        }
    }
}

static void adjust(sampler *sp, float *logits, const sampling *r, const int32_t *prompt,
                   int n_prompt, const int32_t *output, int n_output)
{
    for (int i = 0; i < r->n_bias; i++) logits[r->bias[i].token] += r->bias[i].bias;
    penalise(sp, logits, r, prompt, n_prompt, output, n_output);
}

static bool is_stop(const sampling *r, int32_t token)
{
    for (int i = 0; i < r->n_stop_id; i++) {
        if (r->stop_id[i] == token) return true;
    }
    return false;
}

static bool only_stops(const sampler *sp, const sampling *r, const uint32_t *allowed)
{
    for (int base = 0; base < sp->n_vocab; base += 32) {
        for (uint32_t bits = allowed[base / 32]; bits; bits &= bits - 1) {
            int token = base + __builtin_ctz(bits);
            if (token < sp->n_vocab && !is_stop(r, token)) return false;
        }
    }
    return true;
}

static void ban(const sampler *sp, float *logits, const sampling *r, const uint32_t *allowed,
                int n_output)
{
    bool early = n_output < r->min_tokens && !(allowed && only_stops(sp, r, allowed));
    for (int i = 0; early && i < r->n_stop_id; i++) {
        int32_t t = r->stop_id[i];
        if (t >= 0 && t < sp->n_vocab) logits[t] = -INFINITY;
    }
    for (int base = 0; allowed && base < sp->n_vocab; base += 32) {
        uint32_t bits = allowed[base / 32];
        int n = sp->n_vocab - base < 32 ? sp->n_vocab - base : 32;
        for (int k = 0; bits != UINT32_MAX && k < n; k++) {
            if (!(bits >> k & 1)) logits[base + k] = -INFINITY;
        }
    }
}

/* ------------------------------------------------------------------------ draw -- */

/* Draws from the k <= FEW best candidates after top-p and min-p. */
static int32_t draw_few(sampler *sp, const float *logits, const sampling *r, float max, double u)
{
    int n = best(logits, sp->n_vocab, r->top_k, sp->list), kept = 0;
    float logit[FEW], weight[FEW], least = cut_floor(max, r->temperature, r->min_p);
    for (int i = 0; i < n; i++) logit[i] = sp->list[i].logit;
    (void)logits_weigh(weight, logit, n, max, r->temperature);
    uint64_t mass = 0, sum = 0, at = 0;
    for (int i = 0; i < n; i++) mass += cut_units(weight[i]);
    uint64_t need = r->top_p < 1 ? cut_share(r->top_p, mass) : mass;
    for (; kept < n && sum < need && logit[kept] >= least; kept++) sum += cut_units(weight[kept]);
    uint64_t target = cut_aim(u, sum);
    for (int i = 0;; i++) {
        assert(i < kept);
        at += cut_units(weight[i]);
        if (at > target) return sp->list[i].token;
    }
}

static bool cuts(const sampling *r)
{
    return r->top_k > 0 || r->top_p < 1 || r->min_p > 0;
}

static int32_t draw(sampler *sp, const float *logits, const sampling *r, float max, double u)
{
    if (r->top_k > 0 && r->top_k <= FEW) return draw_few(sp, logits, r, max, u);
    cut_begin(sp->cut, logits, sp->n_vocab, max, r->temperature);
    return cuts(r) ? cut_draw(sp->cut, r->top_k, r->top_p, r->min_p, u) : cut_draw_any(sp->cut, u);
}

static void tops(sampler *sp, const float *logits, int n_top, double lse, sampled *out)
{
    assert(n_top >= 0 && n_top <= SAMPLE_TOP_MAX);
    out->n_top = best(logits, sp->n_vocab, n_top, sp->list);
    for (int i = 0; i < out->n_top; i++) {
        out->top_id[i] = sp->list[i].token;
        out->top_logprob[i] = (float)((double)sp->list[i].logit - lse);
    }
    /* A masked token is no alternative. */
    while (out->n_top > 0 && !isfinite(out->top_logprob[out->n_top - 1])) out->n_top--;
}

/* Turns the row into the distribution that was drawn from: divided by the temperature, -inf where
 * truncated. */
static void process(sampler *sp, float *logits, const sampling *r, float max)
{
    int n = sp->n_vocab, last = 0;
    float least = -INFINITY;
    if (cuts(r)) {
        cut_begin(sp->cut, logits, n, max, r->temperature);
        last = cut_last(sp->cut, r->top_k, r->top_p, r->min_p);
        least = logits[last];
    }
    for (int i = 0; i < n; i++) {
        bool in = logits[i] > least || (logits[i] == least && i <= last);
        logits[i] = in ? logits[i] / r->temperature : -INFINITY;
    }
}

void sampler_pick(sampler *sp, float *logits, const sampling *rules, const uint32_t *allowed,
                  const int32_t *prompt, int n_prompt, const int32_t *output, int n_output,
                  sampled *out)
{
    int n = sp->n_vocab;
    *out = (sampled){.token = -1};
    if (!logits_finite(logits, n)) return;
    bool raw = rules->n_top >= 0 && rules->logprobs == LOGPROBS_RAW;
    if (raw) memcpy(sp->raw, logits, (size_t)n * sizeof(*logits));
    adjust(sp, logits, rules, prompt, n_prompt, output, n_output);
    ban(sp, logits, rules, allowed, n_output);
    float max = logits_highest(logits, n);
    if (!isfinite(max)) return;
    if (rules->temperature <= 0) {
        out->token = logits_first(logits, n, max);
    } else {
        double u = uniform(rules->seed, (uint64_t)n_output);
        out->token = draw(sp, logits, rules, max, u);
    }
    if (rules->n_top < 0) return;
    if (rules->logprobs == LOGPROBS_PROCESSED && rules->temperature > 0)
        process(sp, logits, rules, max);
    const float *of = raw ? sp->raw : logits;
    double lse = log_sum(of, n, logits_highest(of, n));
    out->logprob = (float)((double)of[out->token] - lse);
    tops(sp, of, rules->n_top, lse, out);
}

/* Rank of a token among all, in the order of the alternatives; 1 is the best. */
static int32_t rank_of(const float *logits, int n, int32_t token)
{
    int32_t above = 0;
    for (int i = 0; i < n; i++)
        above += logits[i] > logits[token] || (logits[i] == logits[token] && i < token);
    return above + 1;
}

void sampler_score(sampler *sp, const float *logits, int32_t token, int n_top, sampled *out)
{
    assert(token >= 0 && token < sp->n_vocab);
    *out = (sampled){.token = token};
    if (!logits_finite(logits, sp->n_vocab)) {
        out->token = -1;
        return;
    }
    double lse = log_sum(logits, sp->n_vocab, logits_highest(logits, sp->n_vocab));
    out->logprob = (float)((double)logits[token] - lse);
    out->rank = rank_of(logits, sp->n_vocab, token);
    tops(sp, logits, n_top < 0 ? 0 : n_top, lse, out);
}
