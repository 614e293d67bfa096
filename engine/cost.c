/* cost.c -- recursive least squares over five terms. */
#include "engine/cost.h"

#include <math.h>
#include <string.h>

static const double steady = 0.995, astray = 0.95; /* forgetting: remembers 200 steps, or 20 */
static const double too_far = 0.25; /* recent error from which the model is astray, not the steps */
static const double unsure = 1e8;   /* of a coefficient that nothing was learnt about */
static const double clip = 4;       /* a residual beyond so many spreads counts as that many */

enum { TILE = 32 };

static void terms_of(const cost_work *w, double *f)
{
    f[0] = 1;
    f[1] = w->prefill / 64;
    f[2] = w->decode / 8;
    f[3] = w->attended / 65536;
    f[4] = w->ranks / 64;
}

void cost_init(cost_model *c)
{
    memset(c, 0, sizeof(*c));
    for (int i = 0; i < COST_TERMS; i++) c->p[i][i] = unsure;
}

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int i = 0; i < COST_TERMS; i++) sum += a[i] * b[i];
    return sum;
}

double cost_predict(const cost_model *c, const cost_work *w)
{
    double f[COST_TERMS];
    terms_of(w, f);
    return dot(c->theta, f);
}

/* Averages over all at first, over the latest later. */
static double follow(double mean, double value, uint64_t n, double most)
{
    double share = n < most ? 1 / (double)(n + 1) : 1 / most;
    return mean + share * (value - mean);
}

/* Forgetting makes directions that the work never visits ever less sure; there is a limit to it. */
static void forget(cost_model *c, double forgetting)
{
    for (int i = 0; i < COST_TERMS; i++) {
        for (int j = 0; j < COST_TERMS; j++) c->p[i][j] /= forgetting;
    }
    for (int i = 0; i < COST_TERMS; i++) {
        if (c->p[i][i] <= unsure) continue;
        double down = sqrt(unsure / c->p[i][i]);
        for (int j = 0; j < COST_TERMS; j++) {
            c->p[i][j] *= down;
            c->p[j][i] *= down;
        }
    }
}

void cost_observe(cost_model *c, const cost_work *w, double took_us)
{
    if (!(took_us > 0) || !isfinite(took_us)) return;
    double f[COST_TERMS], pf[COST_TERMS], predicted = cost_predict(c, w);
    terms_of(w, f);
    double residual = took_us - predicted;
    double error = fmin(1, fabs(residual) / took_us);
    if (c->n > 0) c->error = follow(c->error, error, c->n - 1, 50);
    c->recent = follow(c->recent, error, c->n, 10);
    bool is_astray = c->recent > too_far;
    if (c->n >= COST_LEARNING && !is_astray) {
        double limit = clip * c->spread + 0.01 * took_us;
        c->spread = follow(c->spread, fmin(fabs(residual), 2 * limit), c->n - COST_LEARNING, 50);
        residual = fmax(-limit, fmin(limit, residual));
    } else {
        c->spread = follow(c->spread, fabs(residual), c->n, 20);
    }
    for (int i = 0; i < COST_TERMS; i++) pf[i] = dot(c->p[i], f);
    double denom = 1 + dot(f, pf);
    for (int i = 0; i < COST_TERMS; i++) {
        c->theta[i] = fmax(0, c->theta[i] + pf[i] / denom * residual);
        for (int j = 0; j < COST_TERMS; j++) c->p[i][j] -= pf[i] * pf[j] / denom;
    }
    forget(c, is_astray ? astray : steady);
    c->n++;
}

cost_work cost_with_chunk(const cost_work *w, int n, int context, int rank)
{
    cost_work sum = *w;
    sum.prefill += n;
    sum.attended += (double)n * context + (double)n * (n + 1) / 2;
    sum.ranks += n > 0 ? rank : 0;
    return sum;
}

int cost_chunk(const cost_model *c, const cost_work *w, double budget_us, int want, int context,
               int rank)
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
