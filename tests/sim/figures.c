/* figures.c -- what a run was worth. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Nearest rank. */
static double percentile(float *v, int n, double p)
{
    if (n == 0) return 0;
    qsort(v, (size_t)n, sizeof(*v), ascending);
    int i = (int)ceil(p * n) - 1;
    return (double)v[i < 0 ? 0 : i];
}

static double tpot_us(const sim_arrival *a, const sim_outcome *o)
{
    return a->output > 1 ? (double)(o->last_us - o->first_us) / (a->output - 1) : 0;
}

static bool is_good(const sim_setup *s, const sim_arrival *a, const sim_outcome *o)
{
    const sim_class *c = &s->classes[a->slo];
    return o->end == SIM_DONE && o->first_us - a->us <= c->ttft_us &&
           tpot_us(a, o) <= (double)c->tpot_us;
}

static double cost_of(const sim_arrival *a)
{
    return a->prompt + FAIR_OUTPUT_PRICE * a->output;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The share that each may have so that all together get `sum` (max-min
 * fairness). */
static double fair_share(const double *wanted, int n, double sum)
{
    double *w = malloc((size_t)n * sizeof(*w)), share = 0;
    if (!w) return 0;
    memcpy(w, wanted, (size_t)n * sizeof(*w));
    qsort(w, (size_t)n, sizeof(*w), by_value);
    for (int i = 0; i < n; i++) {
        share = sum / (n - i);
        if (w[i] > share) break;
        sum -= w[i];
    }
    free(w);
    return share;
}

/* Jain's index of what those got who wanted more than their share. */
static void measure_jain(const double *wanted, const double *got, int n, sim_figures *f)
{
    double all = 0, sum = 0, squares = 0;
    for (int i = 0; i < n; i++) all += got[i];
    double share = fair_share(wanted, n, all);
    f->backlogged = 0;
    for (int i = 0; i < n; i++) {
        if (wanted[i] < share * 1.02) continue;
        f->backlogged++;
        sum += got[i];
        squares += got[i] * got[i];
    }
    f->jain = f->backlogged ? sum * sum / (f->backlogged * squares) : 1;
}

/* The batch class's tokens in windows of a minute, each 10 s: by the time of
 * the last token. */
static void measure_batch(const sim_arrival *a, int n, const sim_result *r, int64_t span,
                          sim_figures *f)
{
    int cells = (int)(span / (10 * SIM_SECOND));
    double *cell = calloc((size_t)cells + 1, sizeof(*cell)), all = 0, batch = 0;
    for (int i = 0; cell && i < n; i++) {
        const sim_outcome *o = &r->of[i];
        if (o->end != SIM_DONE) continue;
        all += cost_of(&a[i]);
        if (a[i].slo != 2) continue;
        batch += cost_of(&a[i]);
        double per_us = cost_of(&a[i]) / (double)(o->last_us - o->seated_us + 1);
        for (int64_t c = o->seated_us / (10 * SIM_SECOND); c < cells; c++) {
            int64_t from = c * 10 * SIM_SECOND, to = from + 10 * SIM_SECOND;
            if (from > o->last_us) break;
            if (from < o->seated_us) from = o->seated_us;
            if (to > o->last_us) to = o->last_us;
            cell[c] += per_us * (double)(to - from);
        }
    }
    f->batch_share = all > 0 ? batch / all : 0;
    f->batch_least = -1;
    for (int c = 0; cell && c + 6 <= cells; c++) {
        double sum = 0;
        for (int k = 0; k < 6; k++) sum += cell[c + k];
        if (f->batch_least < 0 || sum / 60 < f->batch_least) f->batch_least = sum / 60;
    }
    free(cell);
}

void sim_measure(const sim_setup *s, const sim_arrival *a, int n, int tenants, int honest_from,
                 const sim_result *r, sim_figures *f)
{
    int all[SIM_CLASSES] = {0}, good[SIM_CLASSES] = {0}, honest[SIM_CLASSES] = {0};
    int honest_good[SIM_CLASSES] = {0}, admitted[SIM_CLASSES] = {0}, missed[SIM_CLASSES] = {0};
    int refused[SIM_CLASSES] = {0};
    double *wanted = calloc((size_t)tenants, sizeof(*wanted)), useful = 0;
    double *got = calloc((size_t)tenants, sizeof(*got));
    float *ttft = malloc((size_t)n * sizeof(*ttft)), *tpot = malloc((size_t)n * sizeof(*tpot));
    float *late = malloc((size_t)n * sizeof(*late));
    *f = (sim_figures){0};
    if (!wanted || !got || !ttft || !tpot || !late) abort();
    for (int i = 0; i < n; i++) {
        if (a[i].tenant == s->skip_tenant) continue;
        int c = a[i].slo;
        bool fine = is_good(s, &a[i], &r->of[i]), is_honest = a[i].tenant >= honest_from;
        all[c]++;
        good[c] += fine;
        honest[c] += is_honest;
        honest_good[c] += is_honest && fine;
        refused[c] += r->of[i].end == SIM_REFUSED;
        admitted[c] += r->of[i].end != SIM_REFUSED;
        missed[c] += r->of[i].end != SIM_REFUSED && !fine;
        wanted[a[i].tenant] += cost_of(&a[i]);
        if (r->of[i].end == SIM_DONE) got[a[i].tenant] += cost_of(&a[i]);
        if (fine) useful += a[i].prompt + a[i].output - 1;
    }
    int sum[6] = {0};
    for (int c = 0; c < SIM_CLASSES; c++) {
        f->good[c] = all[c] ? (double)good[c] / all[c] : 0;
        f->good_honest[c] = honest[c] ? (double)honest_good[c] / honest[c] : 0;
        f->late_class[c] = admitted[c] ? (double)missed[c] / admitted[c] : 0;
        f->refused[c] = all[c] ? (double)refused[c] / all[c] : 0;
        int add[6] = {all[c], good[c], honest[c], honest_good[c], admitted[c], missed[c]};
        for (int k = 0; k < 6; k++) sum[k] += add[k];
        int m = 0, w = 0, h = 0;
        for (int i = 0; i < n; i++) {
            const sim_outcome *o = &r->of[i];
            if (a[i].slo != c || a[i].tenant == s->skip_tenant || o->end != SIM_DONE) continue;
            ttft[m++] = (float)(1e-6 * (double)(o->first_us - a[i].us));
            if (a[i].tenant >= honest_from) late[h++] = ttft[m - 1];
            if (a[i].output > 1) tpot[w++] = (float)(1e-6 * tpot_us(&a[i], o));
        }
        f->ttft50[c] = percentile(ttft, m, 0.5);
        f->ttft99[c] = percentile(ttft, m, 0.99);
        f->ttft99_honest[c] = percentile(late, h, 0.99);
        f->tpot50[c] = percentile(tpot, w, 0.5);
        f->tpot99[c] = percentile(tpot, w, 0.99);
    }
    double span_s = 1e-6 * (double)a[n - 1].us;
    f->good_per_s = sum[1] / span_s;
    f->per_s = sum[0] / span_s;
    f->all_good = sum[0] ? (double)sum[1] / sum[0] : 0;
    f->honest_good = sum[2] ? (double)sum[3] / sum[2] : 0;
    f->late = sum[4] ? (double)sum[5] / sum[4] : 0;
    f->wasted = r->computed ? 1 - useful / (double)r->computed : 0;
    measure_jain(wanted, got, tenants, f);
    measure_batch(a, n, r, a[n - 1].us, f);
    free(wanted);
    free(got);
    free(ttft);
    free(tpot);
    free(late);
}

void sim_print(FILE *to, const char *name, const sim_figures *f)
{
    fprintf(to, "%-14s %6.2f", name, f->good_per_s);
    for (int c = 0; c < SIM_CLASSES; c++) fprintf(to, " %5.3f", f->good[c]);
    for (int c = 0; c < SIM_CLASSES; c++) fprintf(to, " %5.3f", f->good_honest[c]);
    fprintf(to, " %5.3f %5.3f %6.4f %5.3f", f->honest_good, f->jain, f->late, f->wasted);
    for (int c = 0; c < SIM_CLASSES; c++)
        fprintf(to, "  %6.2f/%6.2f %3.0f/%3.0f", f->ttft50[c], f->ttft99[c], 1000 * f->tpot50[c],
                1000 * f->tpot99[c]);
    fprintf(to, "  %5.3f %7.1f\n", f->batch_share, f->batch_least);
}
