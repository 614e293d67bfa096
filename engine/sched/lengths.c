/* lengths.c -- prediction of answer lengths, from the answers that have ended.
 *
 * Sketches are histograms of lengths with geometric bins (4 per octave) and exponential forgetting
 * (500 answers): one per class, per class and octave of max_tokens, and per tenant, and adapter, of
 * those. A narrow sketch borrows up to 16 answers' weight from the wider one (gather()), so a new
 * tenant starts with its class's distribution.
 *
 * Answers cut short (cancelled, at max_tokens) are censored observations: only "at least so long"
 * is known. lengths_look() therefore walks the bins with the product-limit estimator of Kaplan and
 * Meier (1958):
 *
 *   alive *= 1 - ended[b] / at_risk[b]      mean = sum of alive,  p90 = first bin with alive <=
 *   level
 *
 * The level of the quantile is adapted per class until 90 % of the answers are within it (judge();
 * adaptive conformal inference, Gibbs and Candes 2021).
 *
 * Narrow sketches are in a hash table with LRU replacement. Threads: the caller's lock (sched.mu).
 */
#include "engine/sched/lengths.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

enum {
    NONE = -1,
    EXACT = 16,   /* shorter answers have bins of their own */
    PARTS = 4,    /* bins of an octave above */
    OCTAVES = 16, /* up to a million tokens; what is longer counts as that */
    BINS = EXACT + PARTS * OCTAVES,
    BOUNDS = 21,      /* octaves of max_tokens */
    LEAST_KNOWN = 10, /* answers of a class, before anything but a bound is believed */
    NARROW = 2,       /* sketches of a class and bound: with the tenant, and with the adapter */
};

static const double remembered = 500; /* answers: the weight of one falls to 1/e after so many */
static const double borrowed = 16;    /* weight, in answers, that a narrower sketch borrows from the
                                    * wider one */
static const double wanted = 0.9,
                    step = 0.005; /* share to hold; how fast the quantile is adapted */
static const double least_level = 0.1, most_level = 0.998;

typedef struct {
    float ended[BINS], cut[BINS];
} sketch;

typedef struct {
    uint64_t id;
    int chain, newer, older; /* hash chain; list by use */
    sketch s;
} entry;

typedef struct {
    sketch all, of[BOUNDS];
    double level;
    lengths_record record;
} class_lengths;

struct lengths {
    class_lengths *classes;
    int n_class;
    entry *entries;
    int cap, n, newest, oldest;
    int *bucket, mask;
};

/* -------------------------------------------------------------------------------------- bins -- */

static int octave_of(int n)
{
    return 31 - __builtin_clz((unsigned)n);
}

static int bin_of(int n)
{
    if (n < EXACT) return n < 0 ? 0 : n;
    int o = octave_of(n), bin = EXACT + (o - 4) * PARTS + ((n >> (o - 2)) & (PARTS - 1));
    return bin < BINS ? bin : BINS - 1;
}

/* The first length of a bin; of the one behind the last, too. */
static int start_of(int bin)
{
    if (bin < EXACT) return bin;
    int o = 4 + (bin - EXACT) / PARTS;
    return (PARTS + (bin - EXACT) % PARTS) << (o - 2);
}

static int bound_of(int max_tokens)
{
    int o = max_tokens < 1 ? 0 : octave_of(max_tokens);
    return o < BOUNDS ? o : BOUNDS - 1;
}

/* ---------------------------------------------------------------------------------- sketches -- */

static double weight_of(const sketch *s)
{
    double sum = 0;
    for (int b = 0; b < BINS; b++) sum += (double)(s->ended[b] + s->cut[b]);
    return sum;
}

static void count(sketch *s, int made, bool cut)
{
    const float keep = (float)(1 - 1 / remembered);
    for (int b = 0; b < BINS; b++) s->ended[b] *= keep, s->cut[b] *= keep;
    (cut ? s->cut : s->ended)[bin_of(made)] += 1;
}

/* wide = narrow + wide scaled to a weight of at most `borrowed` answers. */
static void add_to(sketch *wide, const sketch *narrow)
{
    double w = weight_of(wide);
    float share = (float)(w > borrowed ? borrowed / w : 1);
    for (int b = 0; b < BINS; b++) {
        wide->ended[b] = narrow->ended[b] + share * wide->ended[b];
        wide->cut[b] = narrow->cut[b] + share * wide->cut[b];
    }
}

/* ------------------------------------------------------------------------------------- table -- */

static uint64_t id_of(const lengths_ask *ask, int narrow)
{
    uint64_t key[] = {ask->tenant, narrow == NARROW - 1 ? ask->adapter + 1 : 0,
                      (uint64_t)ask->slo * BOUNDS + (uint64_t)bound_of(ask->max_tokens)};
    return hash_bytes(HASH_BASIS, key, sizeof(key));
}

static int find(const lengths *l, uint64_t id)
{
    int i = l->bucket[(int)hash_id(id) & l->mask];
    while (i != NONE && l->entries[i].id != id) i = l->entries[i].chain;
    return i;
}

static void use_unlink(lengths *l, int i)
{
    const entry *en = &l->entries[i];
    *(en->newer == NONE ? &l->newest : &l->entries[en->newer].older) = en->older;
    *(en->older == NONE ? &l->oldest : &l->entries[en->older].newer) = en->newer;
}

static void use_now(lengths *l, int i)
{
    entry *en = &l->entries[i];
    en->newer = NONE;
    en->older = l->newest;
    *(l->newest == NONE ? &l->oldest : &l->entries[l->newest].newer) = i;
    l->newest = i;
}

/* A free entry, or that of the least recently used sketch. */
static int make_place(lengths *l)
{
    if (l->n < l->cap) return l->n++;
    int i = l->oldest;
    int *link = &l->bucket[(int)hash_id(l->entries[i].id) & l->mask];
    while (*link != i) link = &l->entries[*link].chain;
    *link = l->entries[i].chain;
    use_unlink(l, i);
    return i;
}

static sketch *claim(lengths *l, uint64_t id)
{
    int i = find(l, id);
    if (i != NONE) {
        use_unlink(l, i);
    } else {
        i = make_place(l);
        int *chain = &l->bucket[(int)hash_id(id) & l->mask];
        l->entries[i] = (entry){.id = id, .chain = *chain};
        *chain = i;
    }
    use_now(l, i);
    return &l->entries[i].s;
}

/* ----------------------------------------------------------------------------------- guesses -- */

/* Combines the sketches from wide to narrow; false: too few answers are known. */
static bool gather(const lengths *l, const lengths_ask *ask, sketch *all)
{
    const class_lengths *c = &l->classes[ask->slo];
    *all = c->all;
    if (weight_of(all) < LEAST_KNOWN - 0.5)
        return false; /* with tolerance: old answers have
                                                           * faded a little */
    add_to(all, &c->of[bound_of(ask->max_tokens)]);
    for (int k = 0; k < NARROW; k++) {
        int i = find(l, id_of(ask, k));
        if (i != NONE) add_to(all, &l->entries[i].s);
    }
    return true;
}

/* The sum over the tokens from..to - 1, up to max_tokens, of the share of answers that have them:
 * `before` have the first, `after` the one behind the last. */
static double made_in(int from, int to, int max_tokens, double before, double after)
{
    if (from == 0) return 0; /* an empty answer has no token */
    double n = (to - 1 < max_tokens ? to - 1 : max_tokens) - from + 1;
    return n * before - (before - after) * n * (n - 1) / (2.0 * (to - from));
}

lengths_guess lengths_look(const lengths *l, const lengths_ask *ask)
{
    lengths_guess g = {ask->max_tokens, ask->max_tokens};
    sketch all;
    if (!gather(l, ask, &all)) return g;
    double left = weight_of(&all), alive = 1, mean = 0, level = 1 - l->classes[ask->slo].level;
    bool found = false;
    for (int b = 0; b < BINS && start_of(b) <= ask->max_tokens; b++) {
        int from = start_of(b), to = start_of(b + 1);
        double seen = left - (to - from == 1 ? 1 : 0.5) * (double)all.cut[b];
        double share = seen > 1e-6 ? fmin(1, (double)all.ended[b] / seen) : 0;
        double after = alive * (1 - share);
        if (!found && after <= level && alive > after) {
            int into = (int)ceil((alive - level) / (alive - after) * (to - from)) - 1;
            g.p90 = from + (into > 0 ? into : 0);
            found = true;
        }
        mean += made_in(from, to, ask->max_tokens, alive, after);
        left -= (double)(all.ended[b] + all.cut[b]);
        alive = after;
    }
    if (g.p90 > ask->max_tokens) g.p90 = ask->max_tokens;
    g.mean = (int)fmin(ceil(mean), ask->max_tokens);
    return g;
}

/* ---------------------------------------------------------------------------------- learning -- */

static void judge(class_lengths *c, const lengths_ask *ask, int p90, int made, bool cut)
{
    if (p90 >= ask->max_tokens) {
        c->record.bounded++;
        return;
    }
    bool held = made <= p90;
    if (held && cut) return; /* unknown */
    double off = made - p90;
    c->record.held += held;
    c->record.exceeded += !held;
    c->record.loss += held ? (wanted - 1) * off : wanted * off;
    c->level += step * (wanted - held);
    c->level = fmin(most_level, fmax(least_level, c->level));
}

void lengths_learn(lengths *l, const lengths_ask *ask, const lengths_guess *was, int made, bool cut)
{
    class_lengths *c = &l->classes[ask->slo];
    assert(ask->slo >= 0 && ask->slo < l->n_class && made >= 0);
    judge(c, ask, was->p90, made, cut);
    count(&c->all, made, cut);
    count(&c->of[bound_of(ask->max_tokens)], made, cut);
    for (int k = 0; k < NARROW; k++) count(claim(l, id_of(ask, k)), made, cut);
}

void lengths_record_get(const lengths *l, int slo, lengths_record *out)
{
    *out = l->classes[slo].record;
}

/* ---------------------------------------------------------------------------------- lifetime -- */

lengths *lengths_create(int n_class, int n_sketches)
{
    assert(n_class > 0 && n_sketches > 0);
    lengths *l = calloc(1, sizeof(*l));
    if (!l) return NULL;
    int buckets = 64;
    while (buckets < n_sketches) buckets *= 2;
    l->n_class = n_class;
    l->cap = n_sketches;
    l->mask = buckets - 1;
    l->newest = l->oldest = NONE;
    l->classes = calloc((size_t)n_class, sizeof(*l->classes));
    l->entries = calloc((size_t)n_sketches, sizeof(*l->entries));
    l->bucket = calloc((size_t)buckets, sizeof(*l->bucket));
    if (!l->classes || !l->entries || !l->bucket) {
        lengths_destroy(l);
        return NULL;
    }
    for (int i = 0; i < buckets; i++) l->bucket[i] = NONE;
    for (int c = 0; c < n_class; c++) l->classes[c].level = wanted;
    return l;
}

void lengths_destroy(lengths *l)
{
    if (!l) return;
    free(l->classes);
    free(l->entries);
    free(l->bucket);
    free(l);
}
