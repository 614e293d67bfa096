/* bench_lengths.c -- how well answers' lengths are foretold (engine/sched/lengths.h).
 *
 *     bench_lengths <TRACE
 *
 * A line of the trace is "tenant adapter class max_tokens length": a request in order of arrival,
 * and how long its answer would be without a bound.  Answers end in the order of their requests,
 * IN_FLIGHT requests later: a guess knows nothing of those that still run.  Prints one line of
 * JSON: the share of answers up to their p90, of those whose bound was no part of it; the mean
 * pinball loss, and that of the one quantile that would have been best for the whole trace; how
 * far means were off on average, and how far off the mean share of max_tokens in the class would
 * have been, and max_tokens itself.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/sched/lengths.h"

enum { IN_FLIGHT = 64, CLASSES = 8, SKETCHES = 1024 };

typedef struct {
    lengths_ask ask;
    lengths_guess guess;
    int natural;
} answer;

static int made_of(const answer *a)
{
    return a->natural < a->ask.max_tokens ? a->natural : a->ask.max_tokens;
}

static double share[CLASSES]; /* of max_tokens that answers take: without sketches */

static void end(lengths *l, const answer *a)
{
    share[a->ask.slo] += 0.01 * ((double)made_of(a) / a->ask.max_tokens - share[a->ask.slo]);
    lengths_learn(l, &a->ask, &a->guess, made_of(a), a->natural >= a->ask.max_tokens);
}

static bool read_line(answer *a)
{
    unsigned long long tenant, adapter;
    int n = scanf("%llu %llu %d %d %d", &tenant, &adapter, &a->ask.slo, &a->ask.max_tokens,
                  &a->natural);
    a->ask.tenant = tenant;
    a->ask.adapter = adapter;
    return n == 5 && a->ask.slo >= 0 && a->ask.slo < CLASSES && a->ask.max_tokens > 0;
}

static int by_length(const void *x, const void *y)
{
    return *(const int *)x - *(const int *)y;
}

/* The mean pinball loss of the true quantile of all, which nobody could have known. */
static double best_loss(int *natural, int n)
{
    qsort(natural, (size_t)n, sizeof(*natural), by_length);
    int q = natural[(int)(0.9 * (n - 1))];
    double loss = 0;
    for (int i = 0; i < n; i++)
        loss += natural[i] > q ? 0.9 * (natural[i] - q) : 0.1 * (q - natural[i]);
    return loss / n;
}

int main(void)
{
    static answer flight[IN_FLIGHT];
    lengths *l = lengths_create(CLASSES, SKETCHES);
    int n = 0, cap = 1 << 20, *natural = calloc((size_t)cap, sizeof(*natural));
    double off = 0, share_off = 0, bound_off = 0;
    if (!l || !natural) return 1;
    for (int c = 0; c < CLASSES; c++) share[c] = 1;
    for (answer a; n < cap && read_line(&a); n++) {
        answer *slot = &flight[n % IN_FLIGHT];
        if (n >= IN_FLIGHT) end(l, slot);
        a.guess = lengths_look(l, &a.ask);
        *slot = a;
        natural[n] = a.natural;
        off += abs(a.guess.mean - made_of(&a));
        share_off += fabs(share[a.ask.slo] * a.ask.max_tokens - made_of(&a));
        bound_off += a.ask.max_tokens - made_of(&a);
    }
    uint64_t held = 0, exceeded = 0, bounded = 0;
    double loss = 0;
    for (int c = 0; c < CLASSES; c++) {
        lengths_record r;
        lengths_record_get(l, c, &r);
        held += r.held;
        exceeded += r.exceeded;
        bounded += r.bounded;
        loss += r.loss;
    }
    if (held + exceeded == 0) return 1;
    printf("{\"requests\":%d,\"held\":%.4f,\"bounded\":%.4f,\"loss\":%.2f,\"best_loss\":%.2f,"
           "\"mean_off\":%.1f,\"share_off\":%.1f,\"max_tokens_off\":%.1f}\n",
           n, (double)held / (double)(held + exceeded), (double)bounded / n,
           loss / (double)(held + exceeded), best_loss(natural, n), off / n, share_off / n,
           bound_off / n);
    free(natural);
    lengths_destroy(l);
    return 0;
}
