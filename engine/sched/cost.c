/* cost.c -- prediction of a step's time: non-negative least squares over six terms, with
 * forgetting.
 *
 *   time = t0 + t1 prefill/64 + t2 decode/8 + t3 attended/65536 + t4 ranks/64 + t5 experts touched
 *
 * Kept are the weighted sums ff = sum f f' and fy = sum f y (information form: it cannot diverge,
 * however one-sided the load is). solve() minimises t'ff t / 2 - fy't over t >= 0 by coordinate
 * descent from the last solution, with a small prior towards it, so terms that are not observed
 * keep their value.
 *
 * Three corrections, from fast to slow:
 *   pace      a factor for the last steps (clock frequency, other processes), applied to
 *             predictions
 *   rescale   eight steps that all err to one side, by 28 % or more: all times by one factor
 *   astray    a recent error above 25 %: forget faster (20 steps instead of 200)
 *
 * Errors are weighted relative to the step's size, because a prompt's noise would drown the decode
 * steps; residuals beyond four spreads are clipped (Huber). Threads: the engine's.
 */
#include "engine/sched/cost.h"

#include <math.h>
#include <string.h>

static const double steady = 0.995, astray = 0.95; /* forgetting: remembers 200 steps, or 20 */
static const double too_far = 0.25; /* recent error from which the model is astray, not the steps */
static const double prior = 0.01;   /* weight of a term's last value (0 at first) against few
                             * observations */
static const int agree = 8;         /* steps that must err to one side before times are rescaled */
static const uint64_t pause = 50; /* steps before the next rescaling, so that forgetting can act */
static const double most_weight =
    100; /* and its inverse: of the size of a step beside the typical one */
static const double surprise =
    0.5; /* at most so much of one step's deviation counts for the pace */
static const double most_pace = 0.7; /* either way, twofold; what goes beyond is for the terms */
static const double clip = 4;        /* a residual beyond so many spreads counts as that many */

enum { TILE = 32, SWEEPS = 100 };

static void terms_of(const cost_model *c, const cost_work *w, double *f)
{
    f[0] = 1;
    f[1] = w->prefill / 64;
    f[2] = w->decode / 8;
    f[3] = w->attended / 65536;
    f[4] = w->ranks / 64;
    f[5] = 1 - pow(c->spared, w->prefill + w->decode);
}

void cost_init(cost_model *c)
{
    memset(c, 0, sizeof(*c));
    c->spared = 1;
}

void cost_experts(cost_model *c, int n, int top_k)
{
    c->spared = n > 0 ? 1 - (double)top_k / n : 1;
}

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int i = 0; i < COST_TERMS; i++) sum += a[i] * b[i];
    return sum;
}

/* Prediction without the pace factor. */
static double at_rest(const cost_model *c, const double *f)
{
    return dot(c->theta, f);
}

double cost_at_rest(const cost_model *c, const cost_work *w)
{
    double f[COST_TERMS];
    terms_of(c, w, f);
    return at_rest(c, f);
}

double cost_predict(const cost_model *c, const cost_work *w)
{
    double f[COST_TERMS];
    terms_of(c, w, f);
    return at_rest(c, f) * exp(c->pace);
}

static void see_pace(cost_model *c, double predicted, double took_us)
{
    if (predicted <= 0 || c->n < COST_LEARNING) return;
    double off = fmax(-surprise, fmin(surprise, log(took_us / predicted) - c->pace));
    c->pace = fmax(-most_pace, fmin(most_pace, c->pace + 0.06 * off));
}

/* Mean over all values at first, later an exponential average over about `most`. */
static double follow(double mean, double value, uint64_t n, double most)
{
    double share = n < most ? 1 / (double)(n + 1) : 1 / most;
    return mean + share * (value - mean);
}

/* Minimum of t' A t / 2 - b' t over t >= 0, from the last solution. The prior keeps unobserved
 * terms: otherwise prompts would seem free after a while of decoding alone. */
static void solve(cost_model *c)
{
    double last[COST_TERMS];
    memcpy(last, c->theta, sizeof(last));
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double moved = 0;
        for (int i = 0; i < COST_TERMS; i++) {
            double others = dot(c->ff[i], c->theta) - c->ff[i][i] * c->theta[i];
            double t = fmax(0, (c->fy[i] - others + prior * last[i]) / (c->ff[i][i] + prior));
            moved = fmax(moved, fabs(t - c->theta[i]));
            c->theta[i] = t;
        }
        if (moved < 1e-3) break; /* a nanosecond */
    }
}

/* Counts consecutive steps that err to one side, each by at least exp(|run|). */
static void see_run(cost_model *c, double predicted, double took_us)
{
    double l = predicted > 0 ? log(took_us / predicted) : 0;
    if (fabs(l) < too_far) {
        c->run_n = 0;
        return;
    }
    bool same = c->run_n > 0 && (l > 0) == (c->run > 0);
    c->run_n = same ? c->run_n + 1 : 1;
    if (!same || fabs(l) < fabs(c->run)) c->run = l;
}

/* All times by one factor. */
static void rescale(cost_model *c)
{
    double factor = exp(c->run);
    for (int i = 0; i < COST_TERMS; i++) {
        c->theta[i] *= factor;
        c->fy[i] *= factor;
    }
    c->spread *= factor;
    c->typical *= factor;
    c->pace = 0;
    c->run_n = 0;
    c->rescaled = c->n;
}

/* Errors count relative to the step's size: a prefill step takes a hundred times as long as a
 * decode step, and its noise would dominate. By the predicted time, because by the measured one
 * fast outliers would count most. */
static double weight_of(cost_model *c, double predicted, double took_us)
{
    c->typical = c->n == 0 ? took_us : c->typical * pow(took_us / c->typical, 0.01);
    double size = c->n < COST_LEARNING ? took_us : fmax(predicted, took_us / 8);
    double ratio = fmin(most_weight, fmax(1 / most_weight, c->typical / size));
    return ratio * ratio;
}

void cost_observe(cost_model *c, const cost_work *w, double took_us)
{
    if (!(took_us > 0) || !isfinite(took_us)) return;
    double f[COST_TERMS];
    terms_of(c, w, f);
    double predicted = at_rest(c, f), residual = took_us - predicted;
    double error = fmin(1, fabs(took_us - cost_predict(c, w)) / took_us);
    see_pace(c, predicted, took_us);
    if (c->n > 0) c->error = follow(c->error, error, c->n - 1, 50);
    c->recent = follow(c->recent, error, c->n, 10);
    bool is_astray = c->recent > too_far;
    see_run(c, predicted, took_us);
    if (is_astray && c->run_n >= agree && c->n >= c->rescaled + pause) {
        rescale(c);
        predicted = at_rest(c, f);
        residual = took_us - predicted;
    }
    if (c->n >= COST_LEARNING && !is_astray) {
        double limit = clip * c->spread + 0.01 * took_us;
        c->spread = follow(c->spread, fmin(fabs(residual), 2 * limit), c->n - COST_LEARNING, 50);
        residual = fmax(-limit, fmin(limit, residual));
    } else {
        c->spread = follow(c->spread, fabs(residual), c->n, 20);
    }
    double keep = is_astray ? astray : steady, weight = weight_of(c, predicted, took_us);
    for (int i = 0; i < COST_TERMS; i++) {
        c->fy[i] = keep * c->fy[i] + weight * f[i] * (predicted + residual);
        for (int j = 0; j < COST_TERMS; j++)
            c->ff[i][j] = keep * c->ff[i][j] + weight * f[i] * f[j];
    }
    solve(c);
    c->n++;
}

cost_work cost_with_chunk(const cost_work *w, int n, int context, double rank)
{
    cost_work sum = *w;
    sum.prefill += n;
    sum.attended += (double)n * context + (double)n * (n + 1) / 2;
    sum.ranks += n > 0 ? rank : 0;
    return sum;
}

int cost_chunk(const cost_model *c, const cost_work *w, double budget_us, int want, int context,
               double rank)
{
    int fits = 0, over = want + 1;
    while (over - fits > 1) {
        int mid = fits + (over - fits) / 2;
        cost_work sum = cost_with_chunk(w, mid, context, rank);
        if (cost_predict(c, &sum) <= budget_us)
            fits = mid;
        else
            over = mid;
    }
    return fits == want || fits < TILE ? fits : fits / TILE * TILE;
}
