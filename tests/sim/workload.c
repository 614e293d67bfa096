/* workload.c -- requests as published traces have them: Gamma gaps, log-normal
 * lengths, Zipf adapters. */
#include <math.h>
#include <stdlib.h>

#include "tests/sim/sim.h"

uint64_t sim_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15ULL); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

double sim_uniform(uint64_t *state)
{
    return ((double)(sim_random(state) >> 12) + 0.5) / 4503599627370496.0;
}

static double normal(uint64_t *s)
{
    double u = sim_uniform(s), v = sim_uniform(s);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Marsaglia and Tsang; mean `shape`. */
static double gamma_of(uint64_t *s, double shape)
{
    if (shape < 1) return gamma_of(s, shape + 1) * pow(sim_uniform(s), 1 / shape);
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(s), v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        if (log(sim_uniform(s)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}

static int length_of(uint64_t *s, double mean, double sigma, int least, int most)
{
    double x = exp(log(mean) - sigma * sigma / 2 + sigma * normal(s));
    return x < least ? least : x > most ? most : (int)x;
}

/* Running sums of (i + 1)^-power. */
static double *sums(int n, double power)
{
    double *c = malloc((size_t)n * sizeof(*c)), sum = 0;
    for (int i = 0; c && i < n; i++) c[i] = sum += pow(i + 1, -power);
    return c;
}

static int draw(uint64_t *s, const double *c, int n)
{
    double x = sim_uniform(s) * c[n - 1];
    int lo = 0, hi = n - 1;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (c[mid] < x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* A tenant uses its own adapters only: each tenants-th one. */
static uint32_t adapter_of(const sim_load *l, uint64_t *s, const double *popular, int tenant, int i)
{
    int own = (l->adapters - tenant + l->tenants - 1) / l->tenants, k = 0;
    if (l->adapters == 0) return 0;
    if (l->mix == MIX_IDENTICAL) return 1;
    if (l->mix == MIX_DISTINCT) return (uint32_t)(i % l->adapters) + 1;
    if (own < 1) return (uint32_t)(tenant % l->adapters) + 1;
    if (l->mix == MIX_SKEWED)
        k = draw(s, popular, own);
    else
        k = (int)(sim_random(s) % (uint64_t)own);
    return (uint32_t)(k * l->tenants + tenant) + 1;
}

static double rate_at(const sim_load *l, double t)
{
    double high = fmod(t, 30) < 5 ? l->burst : 1;
    return l->rate * high * 30 / (25 + 5 * l->burst);
}

sim_arrival *sim_workload(const sim_load *l)
{
    sim_arrival *a = calloc((size_t)l->n, sizeof(*a));
    double *popular = sums(l->adapters + 1, l->skew), *senders = sums(l->tenants, l->uneven);
    uint64_t s = l->seed * 0x2545F4914F6CDD1DULL + 1;
    double t = 0, shape = 1 / (l->cv * l->cv);
    for (int i = 0; a && popular && senders && i < l->n; i++) {
        t += gamma_of(&s, shape) / shape / rate_at(l, t);
        double c = sim_uniform(&s);
        int first = l->abuser > 0, tenant = 0;
        if (!first || sim_uniform(&s) > l->abuser)
            tenant = first + draw(&s, senders, l->tenants - first);
        int out = length_of(&s, l->mean_output, 0.8, 1, l->max_tokens), cap = 64;
        while (cap < out) cap *= 2; /* what clients ask for: the next power of two */
        a[i] =
            (sim_arrival){.us = (int64_t)(t * SIM_SECOND) + 1,
                          .tenant = (int16_t)tenant,
                          .slo = (int16_t)(c < l->classes[0]                   ? 0
                                           : c < l->classes[0] + l->classes[1] ? 1
                                                                               : 2),
                          .prompt = (int16_t)length_of(&s, l->mean_prompt, 1.1, 4, l->max_prompt),
                          .output = (int16_t)out,
                          .max_tokens = (int16_t)(cap < l->max_tokens ? cap : l->max_tokens),
                          .adapter = adapter_of(l, &s, popular, tenant, i)};
    }
    free(popular);
    free(senders);
    return a;
}
