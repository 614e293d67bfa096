/* pooling.c -- sums in a fixed order.
 *
 * Rows of a prompt come in chunks, whose size depends on what else is in the batch; so each
 * value is added row after row in F64, and a vector is the same in any batch. `last` and `first`
 * only copy the row that they read, and pooling_from() tells the scheduler which rows are
 * wanted.
 *
 *     mean        sum / n           mean_root   sum / sqrt(n)
 *     mean_late   sum of (i + 1) * row i, over n (n + 1) / 2
 *
 * are_numbers() multiplies by 0 and adds up: NaN and infinities survive that, numbers do not.
 */
#include "engine/sample/pooling.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool reads_all(pooling_kind kind)
{
    return kind >= POOL_MEAN;
}

bool pooling_init(pooling *p, pooling_kind kind, int dim, bool classify)
{
    *p = (pooling){.kind = kind, .dim = dim, .classify = classify};
    p->vector = calloc((size_t)dim, sizeof(*p->vector));
    if (reads_all(kind)) p->sum = calloc((size_t)dim, sizeof(*p->sum));
    if (classify) p->label = calloc(POOLING_LABELS_MAX, sizeof(*p->label));
    return p->vector && (p->sum || !reads_all(kind)) && (p->label || !classify);
}

void pooling_clear(pooling *p)
{
    free(p->vector);
    free(p->sum);
    free(p->label);
    *p = (pooling){.dim = 0};
}

int pooling_from(const pooling *p, int n_prompt)
{
    if (p->kind == POOL_LAST) return p->n_taken ? n_prompt : n_prompt - 1;
    if (p->kind == POOL_FIRST) return p->n_taken ? n_prompt : 0;
    return p->n_taken;
}

static bool are_numbers(const float *v, int n)
{
    float sum = 0; /* stays a number as long as all are, or becomes one that is looked at again */
    for (int i = 0; i < n; i++) sum += v[i] * 0;
    return sum == 0;
}

static void add(pooling *p, const float *v)
{
    int dim = p->dim;
    double weight = p->kind == POOL_MEAN_LATE ? p->n_taken + 1 : 1;
    bool first = p->n_taken == 0;
    if (p->kind == POOL_MAX)
        for (int i = 0; i < dim; i++) p->sum[i] = first ? v[i] : fmax(p->sum[i], v[i]);
    else
        for (int i = 0; i < dim; i++) p->sum[i] += weight * (double)v[i];
}

bool pooling_take(pooling *p, const float *state, int n)
{
    assert(n > 0 && (p->sum || (n == 1 && p->n_taken == 0)));
    for (int i = 0; i < n; i++) {
        const float *v = state + (size_t)i * (size_t)p->dim;
        if (!are_numbers(v, p->dim)) return false;
        if (p->sum)
            add(p, v);
        else
            memcpy(p->vector, v, (size_t)p->dim * sizeof(*v));
        p->n_taken++;
    }
    return true;
}

void pooling_end(pooling *p)
{
    double n = p->n_taken, by = 1;
    assert(p->n_taken > 0);
    if (!p->sum) return;
    if (p->kind == POOL_MEAN) by = 1 / n;
    if (p->kind == POOL_MEAN_ROOT) by = 1 / sqrt(n);
    if (p->kind == POOL_MEAN_LATE) by = 2 / (n * (n + 1));
    for (int i = 0; i < p->dim; i++) p->vector[i] = (float)(p->sum[i] * by);
}

bool pooling_classify(pooling *p, const pooling_head *head)
{
    if (!p->label || head->dim != p->dim || head->n_label > POOLING_LABELS_MAX) return false;
    for (int k = 0; k < head->n_label; k++) {
        const float *w = head->w + (size_t)k * (size_t)p->dim;
        double sum = head->bias ? (double)head->bias[k] : 0;
        for (int i = 0; i < p->dim; i++) sum += (double)w[i] * (double)p->vector[i];
        p->label[k] = (float)sum;
    }
    p->n_label = head->n_label;
    return true;
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

void pooling_normalise(float *v, int n)
{
    double length = sqrt(dot(v, v, n));
    for (int i = 0; length > 0 && i < n; i++) v[i] = (float)((double)v[i] / length);
}

double pooling_cosine(const float *a, const float *b, int n)
{
    double lengths = sqrt(dot(a, a, n)) * sqrt(dot(b, b, n));
    return lengths > 0 ? dot(a, b, n) / lengths : 0;
}
