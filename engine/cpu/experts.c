/* experts.c -- be_experts() on the CPU: mixture of experts as one grouped product.
 *
 *   1. route: the experts of each row and their weights (softmax, sigmoid, or the two of a jitter
 *      rule)
 *   2. sort the (row, expert) slots by expert; because the step's rows are sorted by adapter, each
 *      expert's slots are sorted by adapter, too
 *   3. each used expert is a group of a grouped product (linear.c): gate and up, activation, down
 *   4. sum each row's experts in ascending order of their number
 *
 * So a step reads only the weights of experts that some row uses, all threads share the panels of
 * all of them behind one barrier, and a row's bits do not depend on the other rows (step 4 fixes
 * the order of summation).
 *
 * Threads: called by the engine; the pool's threads run the pieces. Scratch belongs to the backend.
 */
#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/base/round.h"
#include "engine/cpu/linear.h"
#include "engine/cpu/rows.h"

enum {
    SMALL_VALUES = 1 << 15, /* below this one thread is faster */
    SOME_ROWS = 4,          /* that a thread takes at a time */
};

/* One expert of one row. */
typedef struct choice {
    int expert, slot; /* slot: its row among the sorted ones */
    float weight;
} choice;

typedef struct experts_job {
    const expert_set *set;
    const row_kernels *kern;
    const step *s;
    const expert_route *route;
    int n_rows, dim, ffn, layer;
    const float *x, *scores, *shared;
    float *out;
    choice *choice;       /* [n_rows][top_k], a row's in the order of experts */
    int *first, *row;     /* [n + 1]: an expert's slots; [slots]: whose they are */
    step_seg *seg;        /* [slots] */
    linear_group *group;  /* [used] */
    linear_out *outs;     /* [2 * used] */
    float *rows, *hidden; /* [slots][dim]; [2][slots][ffn] */
    int n_slot, n_group;
    atomic_size_t next;
} experts_job;

/* ---------------------------------------------------------------------------- route -- */

/* p becomes its softmax. */
static void softmax(float *p, int n)
{
    float most = p[0], sum = 0;
    for (int i = 1; i < n; i++) most = p[i] > most ? p[i] : most;
    for (int i = 0; i < n; i++) sum += p[i] = expf(p[i] - most);
    for (int i = 0; i < n; i++) p[i] /= sum;
}

/* The k highest of p, the highest first; of equal ones that with the lower number.  Whatever p
 * holds, they are k different ones. */
static void pick(const float *p, int n, int k, choice *out)
{
    assert(k > 0 && k <= n && n <= EXPERTS_MAX); /* there is always a best one */
    bool taken[EXPERTS_MAX] = {false};
    for (int i = 0; i < k; i++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!taken[e] && (best < 0 || p[e] > p[best])) best = e;
        taken[best] = true;
        out[i] = (choice){.expert = best, .weight = p[best]};
    }
}

static void sort_by_expert(choice *c, int k)
{
    for (int i = 1; i < k; i++) {
        choice one = c[i];
        int at = i;
        for (; at > 0 && c[at - 1].expert > one.expert; at--) c[at] = c[at - 1];
        c[at] = one;
    }
}

/* Nobody chooses from a group that is not among the highest. */
static void close_groups(const expert_route *r, float *p)
{
    choice best[EXPERTS_MAX];
    float high[EXPERTS_MAX];
    bool open[EXPERTS_MAX] = {false};
    int each = r->n / r->n_group;
    for (int g = 0; g < r->n_group; g++) {
        pick(p + (size_t)g * (size_t)each, each, r->group_best, best);
        high[g] = 0;
        for (int i = 0; i < r->group_best; i++) high[g] += best[i].weight;
    }
    pick(high, r->n_group, r->top_group, best);
    for (int i = 0; i < r->top_group; i++) open[best[i].expert] = true;
    for (int i = 0; i < r->n; i++)
        if (!open[i / each]) p[i] = -INFINITY;
}

static void to_weights(const expert_route *r, float *p, int n)
{
    if (!r->sigmoid) {
        softmax(p, n);
        return;
    }
    for (int i = 0; i < n; i++) p[i] = 1 / (1 + expf(-p[i]));
}

/* The share of the expert with the score `best` among all with scores near to it. */
static float share_near(const float *scores, float best, int without, const expert_route *r)
{
    float sum = 0;
    for (int i = 0; i < r->n; i++) {
        float size = fabsf(scores[i]) > best ? fabsf(scores[i]) : best;
        bool far = (best - scores[i]) / size > 2 * r->jitter;
        if (i != without && !far) sum += expf(scores[i] - best);
    }
    return 1 / sum;
}

static void route_near(const expert_route *r, const float *scores, choice *out)
{
    assert(r->top_k == 2);
    pick(scores, r->n, 2, out);
    out[0].weight = share_near(scores, out[0].weight, -1, r);
    out[1].weight = share_near(scores, out[1].weight, out[0].expert, r);
    sort_by_expert(out, 2);
}

static void route_row(const expert_set *set, const float *scores, choice *out)
{
    const expert_route *r = &set->route;
    float p[EXPERTS_MAX], key[EXPERTS_MAX], chosen[EXPERTS_MAX] = {0}, sum = 0;
    int n = r->n, k = r->top_k;
    if (r->jitter > 0) {
        route_near(r, scores, out);
        return;
    }
    memcpy(p, scores, (size_t)n * sizeof(*p));
    if (!r->softmax_last) to_weights(r, p, n);
    for (int i = 0; i < n; i++) key[i] = set->choice_bias ? p[i] + set->choice_bias[i] : p[i];
    if (r->n_group > 0) close_groups(r, key);
    pick(key, n, k, out);
    for (int i = 0; i < k; i++) chosen[i] = p[out[i].expert];
    if (r->softmax_last) to_weights(r, chosen, k);
    for (int i = 0; i < k; i++) sum += chosen[i];
    sum += 1e-20F; /* no score was above nothing */
    for (int i = 0; i < k; i++) {
        float own = set->scales ? set->scales[out[i].expert] : 1;
        out[i].weight = (r->normed ? chosen[i] / sum : chosen[i]) * r->scale * own;
    }
    sort_by_expert(out, k);
}

static void route_thread(void *arg, int thread)
{
    (void)thread;
    experts_job *j = arg;
    size_t from, to, k = (size_t)j->route->top_k, n = (size_t)j->route->n;
    while (pool_next_piece(&j->next, (size_t)j->n_rows, SOME_ROWS, &from, &to))
        for (size_t i = from; i < to; i++) route_row(j->set, j->scores + i * n, j->choice + i * k);
}

/* Slots by expert, and within an expert in the order of the rows. */
static void sort_rows(experts_job *j)
{
    int n = j->route->n, k = j->route->top_k, at = 0;
    memset(j->first, 0, (size_t)(n + 1) * sizeof(*j->first));
    for (int i = 0; i < j->n_slot; i++) j->first[j->choice[i].expert]++;
    for (int e = 0; e <= n; e++) {
        int here = j->first[e];
        j->first[e] = at;
        at += here;
    }
    for (int i = 0; i < j->n_slot; i++) {
        choice *c = &j->choice[i];
        c->slot = j->first[c->expert]++;
        j->row[c->slot] = i / k;
    }
    assert(at == j->n_slot);
    memmove(j->first + 1, j->first, (size_t)n * sizeof(*j->first));
    j->first[0] = 0;
    assert(j->first[n] == j->n_slot);
}

/* ------------------------------------------------------------------------ the rows -- */

static void gather_thread(void *arg, int thread)
{
    (void)thread;
    experts_job *j = arg;
    size_t from, to, dim = (size_t)j->dim;
    while (pool_next_piece(&j->next, (size_t)j->n_slot, SOME_ROWS, &from, &to))
        for (size_t i = from; i < to; i++) {
            memcpy(j->rows + i * dim, j->x + (size_t)j->row[i] * dim, dim * sizeof(float));
            if (!j->route->scale_in) continue;
            const choice *one = j->choice + (size_t)j->row[i] * (size_t)j->route->top_k;
            while (one->slot != (int)i) one++;
            j->kern->bend(j->rows + i * dim, one->weight, 0, dim);
        }
}

static void combine_thread(void *arg, int thread)
{
    (void)thread;
    experts_job *j = arg;
    size_t from, to, dim = (size_t)j->dim, k = (size_t)j->route->top_k;
    while (pool_next_piece(&j->next, (size_t)j->n_rows, SOME_ROWS, &from, &to))
        for (size_t i = from; i < to; i++) {
            float *out = j->out + i * dim;
            if (j->shared)
                j->kern->bend(out, 1 / (1 + expf(-j->shared[i])), 0, dim);
            else if (!j->set->onto)
                memset(out, 0, dim * sizeof(*out));
            for (size_t c = 0; c < k; c++) {
                const choice *one = &j->choice[i * k + c];
                float by = j->route->scale_in ? 1 : one->weight;
                j->kern->add(out, j->rows + (size_t)one->slot * dim, by, dim);
            }
        }
}

static void run(backend *be, experts_job *j, size_t values, void (*fn)(void *arg, int thread))
{
    atomic_init(&j->next, 0);
    cpu_run(be, values, SMALL_VALUES, fn, j);
}

/* ---------------------------------------------------------------------- the groups -- */

/* The segments of an expert's slots; how many.  *lora: some have LoRA on experts. */
static int cut_segments(const experts_job *j, int first, int end, step_seg *out, bool *lora)
{
    const step_seg *from = j->s->seg;
    int n = 0;
    *lora = false;
    for (int i = first; i < end; i++) {
        while (j->row[i] >= from->row0 + from->n_rows) from++;
        if (n == 0 || out[n - 1].lora != from->lora)
            out[n++] = (step_seg){.row0 = i - first, .lora = from->lora};
        out[n - 1].n_rows++;
        *lora |= from->lora && from->lora->expert;
    }
    assert(n > 0 && n <= end - first);
    return n;
}

static void make_groups(experts_job *j)
{
    step_seg *seg = j->seg;
    j->n_group = 0;
    for (int e = 0; e < j->route->n; e++) {
        int first = j->first[e], end = j->first[e + 1];
        if (first == end) continue;
        linear_group *g = &j->group[j->n_group++];
        bool lora;
        *g = (linear_group){.expert = e, .n_rows = end - first, .seg = seg};
        g->n_seg = cut_segments(j, first, end, seg, &lora);
        seg += g->n_seg;
        if (!lora) g->seg = NULL;
    }
    assert(seg - j->seg <= j->n_slot && j->n_group <= j->n_slot);
}

/* Matrices that are not in memory are read. */
static void ask_for_weights(const experts_job *j)
{
    int expert[EXPERTS_MAX];
    for (int i = 0; i < j->n_group; i++) expert[i] = j->group[i].expert;
    j->set->use(j->set->use_self, j->layer, expert, j->n_group);
}

/* One expert's of a vector for each. */
static const float *bias_of(const float *all, int expert, int n)
{
    return all ? all + (size_t)expert * (size_t)n : NULL;
}

/* From the gathered rows into `hidden`: gates, then ups; or ups alone. */
static void aim_up(experts_job *j)
{
    size_t ffn = (size_t)j->ffn;
    bool gated = j->set->gate != NULL;
    float *up = j->hidden + (gated ? (size_t)j->n_slot * ffn : 0);
    for (int i = 0; i < j->n_group; i++) {
        linear_group *g = &j->group[i];
        size_t slot = (size_t)j->first[g->expert];
        linear_out *o = &j->outs[2 * i];
        if (gated)
            o[0] = (linear_out){.y = j->hidden + slot * ffn,
                                .w = j->set->gate[g->expert],
                                .bias = bias_of(j->set->gate_bias, g->expert, j->ffn),
                                .lora_proj = PROJ_GATE};
        o[gated] = (linear_out){.y = up + slot * ffn,
                                .w = j->set->up[g->expert],
                                .bias = bias_of(j->set->up_bias, g->expert, j->ffn),
                                .lora_proj = PROJ_UP};
        g->x = j->rows + slot * (size_t)j->dim;
        g->outs = o;
        g->n_out = gated ? 2 : 1;
    }
}

/* From the gated rows to where the gathered ones were. */
static void aim_down(experts_job *j)
{
    for (int i = 0; i < j->n_group; i++) {
        linear_group *g = &j->group[i];
        size_t slot = (size_t)j->first[g->expert];
        linear_out *o = &j->outs[2 * i];
        *o = (linear_out){.y = j->rows + slot * (size_t)j->dim,
                          .w = j->set->down[g->expert],
                          .bias = bias_of(j->set->down_bias, g->expert, j->dim),
                          .lora_proj = PROJ_DOWN};
        g->x = j->hidden + slot * (size_t)j->ffn;
        g->outs = o;
        g->n_out = 1;
    }
}

/* ---------------------------------------------------------------------------- whole -- */

static size_t part(char **at, size_t bytes)
{
    size_t padded = round_up_size(bytes, 64);
    if (*at) *at += padded;
    return padded;
}

/* What routes take for so many rows; their places, where j is not NULL. */
static size_t place_routes(experts_job *j, char *mem, int n_rows, int n, int k)
{
    size_t slots = (size_t)n_rows * (size_t)k, sum = 0;
    size_t used = slots < (size_t)n ? slots : (size_t)n;
    char *at = mem;
    void *place[6];
    const size_t bytes[6] = {slots * sizeof(choice),      ((size_t)n + 1) * sizeof(int),
                             slots * sizeof(int),         slots * sizeof(step_seg),
                             used * sizeof(linear_group), 2 * used * sizeof(linear_out)};
    for (int i = 0; i < 6; i++) {
        place[i] = at;
        sum += part(&at, bytes[i]);
    }
    if (!j) return sum;
    j->choice = place[0];
    j->first = place[1];
    j->row = place[2];
    j->seg = place[3];
    j->group = place[4];
    j->outs = place[5];
    return sum;
}

void cpu_experts_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES])
{
    if (most->experts == 0) return;
    size_t slots = (size_t)most->rows * (size_t)most->top_k;
    size_t used = slots < (size_t)most->experts ? slots : (size_t)most->experts;
    step_bounds wide = *most;
    wide.rows = (int)(slots + 15 * used); /* each expert's rows fill whole tiles */
    wide.cols = most->dim > most->expert_dim ? most->dim : most->expert_dim;
    size_t grouped[CPU_SCRATCHES] = {0};
    cpu_linear_groups_most(&wide, grouped);
    for (int i = 0; i < CPU_SCRATCHES; i++)
        if (grouped[i] > bytes[i]) bytes[i] = grouped[i];
    bytes[SCRATCH_JOBS] = cpu_linear_groups_bytes((int)used);
    bytes[SCRATCH_ROUTES] = place_routes(NULL, NULL, most->rows, most->experts, most->top_k);
    bytes[SCRATCH_EXPERT] = slots * (size_t)most->dim * sizeof(float);
    bytes[SCRATCH_HIDDEN] = 2 * slots * (size_t)most->expert_dim * sizeof(float);
}

static bool take_scratch(backend *be, experts_job *j)
{
    int n = j->route->n, k = j->route->top_k;
    size_t slots = (size_t)j->n_slot;
    char *routes = cpu_scratch(be, SCRATCH_ROUTES, place_routes(NULL, NULL, j->n_rows, n, k));
    j->rows = cpu_scratch(be, SCRATCH_EXPERT, slots * (size_t)j->dim * sizeof(float));
    j->hidden = cpu_scratch(be, SCRATCH_HIDDEN, 2 * slots * (size_t)j->ffn * sizeof(float));
    if (!routes || !j->rows || !j->hidden) return false;
    (void)place_routes(j, routes, j->n_rows, n, k);
    return true;
}

void cpu_experts(backend *be, float *out, const float *x, const expert_set *set,
                 const float *scores, const float *shared, const step *s, int layer)
{
    experts_job j = {.set = set,
                     .route = &set->route,
                     .kern = cpu_kernels_of(cpu_of(be)->isa)->rows,
                     .s = s,
                     .n_rows = s->n_rows,
                     .dim = set->up[0]->cols,
                     .ffn = set->up[0]->rows,
                     .layer = layer,
                     .x = x,
                     .scores = scores,
                     .shared = shared,
                     .out = out,
                     .n_slot = s->n_rows * set->route.top_k};
    size_t slots = (size_t)j.n_slot, values = slots * (size_t)j.dim;
    if (!take_scratch(be, &j)) return;
    run(be, &j, (size_t)j.n_rows * (size_t)set->route.n * 8, route_thread);
    sort_rows(&j);
    make_groups(&j);
    if (set->use) ask_for_weights(&j);
    run(be, &j, values, gather_thread);
    aim_up(&j);
    cpu_linear_groups(be, j.group, j.n_group, layer);
    const float *up = set->gate ? j.hidden + slots * (size_t)j.ffn : NULL;
    cpu_gate(be, set->act, j.hidden, up, slots * (size_t)j.ffn);
    aim_down(&j);
    cpu_linear_groups(be, j.group, j.n_group, layer);
    run(be, &j, values, combine_thread);
}
