/* sample.cu -- kernels of sample.h.
 *
 * One block per row.  Nothing is sorted as a whole: candidates come in bands, best first, each at
 * most BAND of them.  A band is found by counting (a histogram over the distance to the best,
 * refined by digits of (logit, token) only where too many share a bin), collected into shared
 * memory and sorted there; (logit, token) pairs are all different, so every order is decided.
 * Counting uses integer atomics, whose result has no order; sums of weights are fixed trees of f64.
 * top-k, top-p and min-p almost always end within the first band.
 *
 * Held to its oracle by tests/emu/test_sample.cu.
 */
#include "engine/cuda/sample.h"

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"

enum {
    WARP = 32,
    THREADS = 512,
    WARPS = THREADS / WARP,
    BAND = 2048,
    BINS = 256,
    COUNTERS = 8192, /* tokens whose occurrences are counted at a time */
};

typedef unsigned long long
    key64; /* logit in the upper half, ~token in the lower: greater is better */

typedef struct {
    union {
        struct {
            key64 list[BAND]; /* the band, best first */
            double sum[BAND]; /* running sums of its weights, or of pieces of the vocabulary */
        };
        uint32_t count[COUNTERS];
    };
    uint32_t bin[BINS];
    double part[WARPS + 1];
    float best[WARPS], least[WARPS];
    int32_t best_at[WARPS];
    uint32_t n_list;
    int32_t found[3];
} shared;

/* What a block knows of its row; the same in all threads. */
typedef struct {
    cu_sample_row r;
    float *logits;
    int n;
    float max, min;
    int32_t top; /* the best */
    float bin_scale;
    /* bands: the one in shared memory, and where the next begins */
    int n_band, rank0; /* candidates in it and before it */
    key64 last;        /* all with greater or equal keys have been in a band */
    bool again;        /* the band in shared memory is the next one too */
} row_state;

/* ------------------------------------------------------------------------ the block together -- */

__device__ static double shfl_xor_f64(double v, int d)
{
    union {
        double f;
        uint32_t u[2];
    } x = {v}, y;
    for (int i = 0; i < 2; i++) y.u[i] = cu_shfl_xor_u32(x.u[i], d);
    return y.f;
}

__device__ static double shfl_up_f64(double v, int d)
{
    union {
        double f;
        uint32_t u[2];
    } x = {v}, y;
    for (int i = 0; i < 2; i++) y.u[i] = cu_shfl_up_u32(x.u[i], d);
    return y.f;
}

/* The sum in every thread. */
__device__ static double block_sum(shared *sh, double v)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int d = WARP / 2; d > 0; d /= 2) v += shfl_xor_f64(v, d);
    __syncthreads(); /* the sum before has been read by all */
    if (lane == 0) sh->part[warp] = v;
    __syncthreads(); /* all warps' sums are there */
    double sum = 0;
    for (int i = 0; i < WARPS; i++) sum += sh->part[i];
    return sum;
}

/* The sum in every thread. */
__device__ static int block_count(shared *sh, int v)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, sum = 0;
    for (int d = WARP / 2; d > 0; d /= 2) v += (int)cu_shfl_xor_u32((uint32_t)v, d);
    __syncthreads(); /* what was found before has been read by all */
    if (lane == 0) sh->best_at[warp] = v;
    __syncthreads(); /* all warps' are there */
    for (int i = 0; i < WARPS; i++) sum += sh->best_at[i];
    return sum;
}

/* The least in every thread. */
__device__ static int block_min(shared *sh, int v)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int d = WARP / 2; d > 0; d /= 2) {
        int o = (int)cu_shfl_xor_u32((uint32_t)v, d);
        v = o < v ? o : v;
    }
    __syncthreads(); /* what was found before has been read by all */
    if (lane == 0) sh->best_at[warp] = v;
    __syncthreads(); /* all warps' are there */
    for (int i = 0; i < WARPS; i++) v = sh->best_at[i] < v ? sh->best_at[i] : v;
    return v;
}

/* sum[i] becomes sum[0] + .. + sum[i], for i < n <= BAND.  Ends with a barrier. */
__device__ static void block_scan(shared *sh, int n)
{
    const int EACH = BAND / THREADS;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP,
        from = (int)threadIdx.x * EACH;
    double v[EACH], run = 0;
    __syncthreads(); /* the values are there, and part is free */
    for (int i = 0; i < EACH; i++) {
        run += from + i < n ? sh->sum[from + i] : 0;
        v[i] = run;
    }
    double before = run;
    for (int d = 1; d < WARP; d *= 2) {
        double o = shfl_up_f64(before, d);
        if (lane >= d) before += o;
    }
    if (lane == WARP - 1) sh->part[warp] = before;
    __syncthreads(); /* all warps' sums are there */
    double base = 0;
    for (int i = 0; i < warp; i++) base += sh->part[i];
    double own = shfl_up_f64(before, 1);
    own = lane > 0 ? base + own : base;
    for (int i = 0; i < EACH; i++) {
        if (from + i < n) sh->sum[from + i] = own + v[i];
    }
    __syncthreads(); /* sums are there for all */
}

/* ------------------------------------------------------------------------------ the numbers -- */

/* A number in (0, 1) from (seed, draw): as engine/sample/sampler.c has it. */
__device__ static double uniform(uint64_t seed, uint64_t draw)
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

__device__ static int first_bit(unsigned bits)
{
    int i = 0;
    while (!(bits >> i & 1)) i++;
    return i;
}

__device__ static int last_bit(unsigned bits)
{
    int i = 31;
    while (!(bits >> i & 1)) i--;
    return i;
}

__device__ static bool is_number(float x)
{
    return x - x == 0;
}

__device__ static key64 key_of(float logit, int token)
{
    uint32_t u = cu_bits_of_f32(logit + 0.0F); /* -0 ranks as 0 */
    u = u >> 31 ? ~u : u | 0x80000000U;
    return (key64)u << 32 | (0xFFFFFFFFU - (uint32_t)token);
}

__device__ static int32_t token_of(key64 k)
{
    return (int32_t)(0xFFFFFFFFU - (uint32_t)k);
}

__device__ static float logit_of(key64 k)
{
    uint32_t u = (uint32_t)(k >> 32);
    return cu_f32_of_bits(u >> 31 ? u & 0x7FFFFFFFU : ~u);
}

__device__ static double weight_of(const row_state *st, key64 k)
{
    return exp(((double)logit_of(k) - (double)st->max) / (double)st->r.temperature);
}

/* Applies the mask of allowed tokens, then finds the largest and the smallest logit that is not
 * banned; of equal ones the lowest id.  False: with `strict`, a logit is NaN or infinite. */
__device__ static bool survey(shared *sh, row_state *st, bool strict, const uint32_t *allowed)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    float best = -INFINITY, least = INFINITY;
    int at = st->n;
    bool bad = false;
    for (int i = (int)threadIdx.x; i < st->n; i += THREADS) {
        float x = st->logits[i];
        bad |= strict && !is_number(x);
        if (allowed && !(allowed[i / 32] >> (i % 32) & 1)) st->logits[i] = x = -INFINITY;
        if (x > best) {
            best = x;
            at = i;
        }
        if (x > -INFINITY && x < least) least = x;
    }
    for (int d = WARP / 2; d > 0; d /= 2) {
        float o = cu_shfl_xor_f32(best, d), l = cu_shfl_xor_f32(least, d);
        int oi = (int)cu_shfl_xor_u32((uint32_t)at, d);
        if (o > best || (o == best && oi < at)) {
            best = o;
            at = oi;
        }
        least = l < least ? l : least;
    }
    if (lane == 0) {
        sh->best[warp] = best;
        sh->best_at[warp] = at;
        sh->least[warp] = least;
    }
    bad = __syncthreads_or(bad); /* all warps' are there */
    st->max = -INFINITY;
    st->min = INFINITY;
    for (int i = 0; i < WARPS; i++) {
        if (sh->best[i] > st->max || (sh->best[i] == st->max && sh->best_at[i] < st->top)) {
            st->max = sh->best[i];
            st->top = sh->best_at[i];
        }
        if (sh->least[i] < st->min) st->min = sh->least[i];
    }
    __syncthreads(); /* all have read them */
    float range = st->max - st->min, scale = range > 0 ? (float)BINS / range : 0;
    st->bin_scale = is_number(scale) ? scale : 0;
    return !bad;
}

/* ------------------------------------------------------------------ bias, penalties and bans -- */

/* The first entry of a token adds all of its entries, in order. */
__device__ static void add_bias(const row_state *st)
{
    const logit_bias *b = st->r.bias;
    for (int i = (int)threadIdx.x; i < st->r.n_bias; i += THREADS) {
        int32_t t = b[i].token;
        bool first = t >= 0 && t < st->n;
        for (int j = 0; first && j < i; j++) first = b[j].token != t;
        if (!first) continue;
        float x = st->logits[t];
        for (int j = i; j < st->r.n_bias; j++) {
            if (b[j].token == t) x = cu_add(x, b[j].bias);
        }
        st->logits[t] = x;
    }
    __syncthreads(); /* others go on with these logits */
}

__device__ static void count_tokens(shared *sh, const int32_t *list, int n, int base, uint32_t add)
{
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        uint32_t k = (uint32_t)(list[i] - base);
        if (list[i] < base || k >= COUNTERS) continue;
        if (add) {
            cu_atomic_add_u32(&sh->count[k], add);
        } else {
            cu_atomic_or_u32(&sh->count[k], 0x80000000U);
        }
    }
}

/* Counts in shared memory for one piece of the vocabulary after another. */
__device__ static void penalise(shared *sh, const row_state *st)
{
    const cu_sample_row *r = &st->r;
    bool repeat = r->repetition_penalty != 1,
         counts = r->presence_penalty != 0 || r->frequency_penalty != 0;
    if (!repeat && !counts) return;
    for (int base = 0; base < st->n; base += COUNTERS) {
        for (int i = (int)threadIdx.x; i < COUNTERS; i += THREADS) sh->count[i] = 0;
        __syncthreads(); /* counters are empty */
        count_tokens(sh, r->output, r->n_output, base, 1);
        if (repeat) count_tokens(sh, r->prompt, r->n_prompt, base, 0);
        __syncthreads(); /* all have been counted */
        for (int i = (int)threadIdx.x; i < COUNTERS && base + i < st->n; i += THREADS) {
            uint32_t seen = sh->count[i], times = seen & 0x7FFFFFFFU;
            if (!seen) continue;
            float x = st->logits[base + i];
            if (repeat)
                x = x > 0 ? cu_div(x, r->repetition_penalty) : cu_mul(x, r->repetition_penalty);
            if (times) {
                float n = (float)(times < UINT16_MAX ? times : UINT16_MAX);
                x = cu_add(x, -cu_add(r->presence_penalty, cu_mul(r->frequency_penalty, n)));
            }
            st->logits[base + i] = x;
        }
        __syncthreads(); /* counters are free, logits are there */
    }
}

__device__ static bool only_stops(const row_state *st)
{
    bool other = false;
    for (int w = (int)threadIdx.x; w < (st->n + 31) / 32; w += THREADS) {
        uint32_t bits = st->r.allowed[w];
        for (int i = 0; bits && i < st->r.n_stop_id; i++) {
            int32_t t = st->r.stop_id[i];
            if (t >= 0 && t / 32 == w) bits &= ~(1U << t % 32);
        }
        other |= bits != 0;
    }
    return !__syncthreads_or(other);
}

__device__ static void ban_stops(const row_state *st)
{
    if (st->r.n_output >= st->r.min_tokens || st->r.n_stop_id == 0) return;
    if (st->r.allowed && only_stops(st)) return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < st->r.n_stop_id; i++) {
            int32_t t = st->r.stop_id[i];
            if (t >= 0 && t < st->n) st->logits[t] = -INFINITY;
        }
    }
    __syncthreads(); /* others read these logits */
}

/* ------------------------------------------------------------------------------------ bands -- */

/* Where a band ends: bins below `bin` belong to it whole, of `bin` itself those
 * with key >> shift >= bound. */
typedef struct {
    int bin, shift;
    key64 bound;
} band_end;

__device__ static int bin_of(const row_state *st, float logit)
{
    int b = (int)((st->max - logit) * st->bin_scale);
    return b < BINS ? b : BINS - 1;
}

/* Chooses from the counts: found[0] the last bin of the band, found[1] how many it has, found[2]
 * the first bin with anything in it.  At least `want` if they fit, else as many as fit; found[1] is
 * 0 where a single bin has too many. */
__device__ static void choose_bins(shared *sh, int want)
{
    const int EACH = BINS / WARP;
    int lane = (int)threadIdx.x;
    if (lane >= WARP) return; /* the first warp alone */
    uint32_t own = 0;
    for (int i = 0; i < EACH; i++) own += sh->bin[lane * EACH + i];
    uint32_t upto = own;
    for (int d = 1; d < WARP; d *= 2) {
        uint32_t o = cu_shfl_up_u32(upto, d);
        if (lane >= d) upto += o;
    }
    uint32_t run = upto - own, fits_n = 0, enough_n = 0;
    int fits = -1, enough = BINS, first = BINS;
    for (int i = 0; i < EACH; i++) {
        int b = lane * EACH + i;
        run += sh->bin[b];
        if (run > 0 && first == BINS && sh->bin[b]) first = b;
        if (run > BAND) continue;
        fits = b;
        fits_n = run;
        if (run >= (uint32_t)want && enough == BINS) {
            enough = b;
            enough_n = run;
        }
    }
    for (int d = WARP / 2; d > 0; d /= 2) {
        int o_fits = (int)cu_shfl_xor_u32((uint32_t)fits, d),
            o_first = (int)cu_shfl_xor_u32((uint32_t)first, d);
        int o_enough = (int)cu_shfl_xor_u32((uint32_t)enough, d);
        uint32_t o_fits_n = cu_shfl_xor_u32(fits_n, d), o_enough_n = cu_shfl_xor_u32(enough_n, d);
        if (o_fits > fits) {
            fits = o_fits;
            fits_n = o_fits_n;
        }
        if (o_enough < enough) {
            enough = o_enough;
            enough_n = o_enough_n;
        }
        first = o_first < first ? o_first : first;
    }
    if (lane == 0) {
        bool ok = want > 0 && enough < BINS;
        sh->found[0] = ok ? enough : fits;
        sh->found[1] = (int32_t)(ok ? enough_n : fits_n);
        sh->found[2] = first;
    }
}

/* Counts what has not been in a band: level 0 by distance to the best, level j by the j-th byte of
 * the key among those that share bin and upper bytes with `e`. */
__device__ static void count_bins(shared *sh, const row_state *st, int level, const band_end *e)
{
    for (int i = (int)threadIdx.x; i < BINS; i += THREADS) sh->bin[i] = 0;
    __syncthreads(); /* bins are empty */
    for (int i = (int)threadIdx.x; i < st->n; i += THREADS) {
        float x = st->logits[i];
        key64 k = key_of(x, i);
        if (x == -INFINITY || k >= st->last) continue;
        int b = bin_of(st, x);
        if (level > 0) {
            if (b != e->bin || (level > 1 && k >> (e->shift + 8) != e->bound)) continue;
            b = 255 - (int)(k >> e->shift & 255);
        }
        cu_atomic_add_u32(&sh->bin[b], 1);
    }
    __syncthreads(); /* all are counted */
}

/* The end of the next band of about `want` candidates (0: as many as fit);
 * returns how many there are. */
__device__ static int find_band(shared *sh, const row_state *st, int want, band_end *e)
{
    e->bin = 0;
    e->shift = 64;
    e->bound = 0;
    for (int level = 0; level <= 8; level++) {
        count_bins(sh, st, level, e);
        choose_bins(sh, want);
        __syncthreads(); /* found is there; the bins are free */
        int to = sh->found[0], n = sh->found[1], first = sh->found[2];
        __syncthreads();             /* found is free */
        if (first == BINS) return 0; /* none are left */
        if (n == 0) {                /* the first bin has too many: look into it */
            if (level == 0) {
                e->bin = first;
            } else {
                e->bound = e->bound << 8 | (key64)(255 - first);
            }
            e->shift -= 8;
            continue;
        }
        if (level == 0) {
            e->bin = to + 1; /* all of the bins below; nothing of this one */
            e->shift = 0;
            e->bound = ~(key64)0;
        } else {
            e->bound = e->bound << 8 | (key64)(255 - to);
        }
        return n;
    }
    return 0; /* not reached: keys differ in their last byte */
}

/* Descending; n > 0.  Ends with a barrier. */
__device__ static void sort_list(shared *sh, int n)
{
    int size = 1;
    while (size < n) size *= 2;
    for (int i = n + (int)threadIdx.x; i < size; i += THREADS) sh->list[i] = 0;
    for (int k = 2; k <= size; k *= 2) {
        for (int j = k / 2; j > 0; j /= 2) {
            __syncthreads(); /* the list is there, or sorted so far */
            for (int i = (int)threadIdx.x; i < size / 2; i += THREADS) {
                int lo = i / j * 2 * j + i % j, hi = lo + j;
                key64 a = sh->list[lo], b = sh->list[hi];
                if ((a < b) == ((lo & k) == 0)) {
                    sh->list[lo] = b;
                    sh->list[hi] = a;
                }
            }
        }
    }
    __syncthreads(); /* sorted for all */
}

/* Brings the next band into list[0 .. n_band); returns how many.  All threads. */
__device__ static int next_band(shared *sh, row_state *st, int want)
{
    if (st->again) {
        st->again = false;
        return st->n_band;
    }
    band_end e;
    st->rank0 += st->n_band;
    int n = st->n_band = find_band(sh, st, want, &e);
    if (n == 0) return 0;
    if (threadIdx.x == 0) sh->n_list = 0;
    __syncthreads(); /* the list is empty */
    for (int i = (int)threadIdx.x; i < st->n; i += THREADS) {
        float x = st->logits[i];
        key64 k = key_of(x, i);
        if (x == -INFINITY || k >= st->last) continue;
        int b = bin_of(st, x);
        if (b < e.bin || (b == e.bin && k >> e.shift >= e.bound && e.bound != ~(key64)0)) {
            sh->list[cu_atomic_add_u32(&sh->n_list, 1)] = k;
        }
    }
    sort_list(sh, n);
    st->last = sh->list[n - 1];
    return n;
}

/* Makes next_band() start again with the first band of candidates. */
__device__ static void rewind_bands(row_state *st)
{
    st->again = st->n_band > 0 && st->rank0 == 0;
    if (st->again) return;
    st->n_band = st->rank0 = 0;
    st->last = ~(key64)0;
}

/* ------------------------------------------------------------------------------------- draw -- */

/* In f32, as logits_weigh() has it on the host: a division in f64 for each entry of the vocabulary
 * would take longer than all else on devices with few units for it. */
__device__ static __forceinline__ double weight_in_all(const row_state *st, int i)
{
    return (double)expf(cu_div(cu_add(st->logits[i], -st->max), st->r.temperature));
}

/* The id among [begin, end) at which the running sum of weights, `at` before the first, passes
 * `target`.  Rounding may make the last sum fall short: then the last id with any weight is right.
 * For one warp; st->n: none. */
__device__ static int32_t draw_in_piece(const row_state *st, int begin, int end, double at,
                                        double target)
{
    int lane = (int)threadIdx.x % WARP, last = -1;
    int32_t token = st->n;
    for (int i0 = begin; i0 < end && token == st->n; i0 += WARP) {
        int i = i0 + lane;
        double w = i < st->n ? weight_in_all(st, i) : 0, run = w;
        for (int d = 1; d < WARP; d *= 2) {
            double o = shfl_up_f64(run, d);
            if (lane >= d) run += o;
        }
        unsigned hits = cu_ballot(w > 0 && at + run > target), any = cu_ballot(w > 0);
        if (hits) token = i0 + first_bit(hits);
        if (any) last = i0 + last_bit(any);
        for (int d = 1; d < WARP; d *= 2) { /* the last lane's sum, the greatest, for all */
            double o = shfl_xor_f64(run, d);
            run = o > run ? o : run;
        }
        at += run;
    }
    return token == st->n && last >= 0 ? last : token;
}

/* Over the whole vocabulary in order of ids: nothing is cut off. */
__device__ static int32_t draw_all(shared *sh, const row_state *st, double u)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int each = ((st->n + BAND - 1) / BAND + WARP - 1) / WARP * WARP, n = (st->n + each - 1) / each;
    for (int c = warp; c < n; c += WARPS) {
        double w = 0;
        for (int i = c * each + lane; i < (c + 1) * each && i < st->n; i += WARP)
            w += weight_in_all(st, i);
        for (int d = WARP / 2; d > 0; d /= 2) w += shfl_xor_f64(w, d);
        if (lane == 0) sh->sum[c] = w;
    }
    block_scan(sh, n);
    double target = u * sh->sum[n - 1];
    int piece = n;
    for (int c = (int)threadIdx.x; c < n; c += THREADS) {
        if (sh->sum[c] > target && c < piece) piece = c;
    }
    piece = block_min(sh, piece);
    int32_t token = st->n;
    if (warp == 0 && piece < n) {
        int begin = piece * each, end = begin + each < st->n ? begin + each : st->n;
        token = draw_in_piece(st, begin, end, piece > 0 ? sh->sum[piece - 1] : 0, target);
    }
    if (threadIdx.x == 0) sh->found[0] = token;
    __syncthreads(); /* the token is there */
    token = sh->found[0];
    __syncthreads(); /* found is free */
    return token < st->n ? token : st->top;
}

/* sum[i] = running sums of the band's weights (as f32 where `rounded`); returns their total. */
__device__ static double sum_band(shared *sh, const row_state *st, int n, bool rounded)
{
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        double w = weight_of(st, sh->list[i]);
        sh->sum[i] = rounded ? (double)(float)w : w;
    }
    block_scan(sh, n);
    double total = sh->sum[n - 1];
    return total;
}

/* The mass that top-p is a share of: all, or that of top-k's survivors. */
__device__ static double mass_of(shared *sh, row_state *st, int limit)
{
    double w = 0;
    if (limit == st->n) {
        for (int i = (int)threadIdx.x; i < st->n; i += THREADS) {
            w += weight_in_all(st, i);
        }
        return block_sum(sh, w);
    }
    for (int n; (n = next_band(sh, st, limit - st->rank0)) > 0 && st->rank0 < limit;) {
        if (n > limit - st->rank0) n = limit - st->rank0;
        (void)sum_band(sh, st, n, false);
        w += sh->sum[n - 1];
        __syncthreads(); /* sums are free */
        if (st->rank0 + n >= limit) break;
    }
    rewind_bands(st);
    return w;
}

/* How many of the best are kept; *total: their weight. */
__device__ static int keep(shared *sh, row_state *st, int limit, double mass, double *total)
{
    double before = 0;
    int kept = 0;
    *total = 0;
    for (int n; (n = next_band(sh, st, limit < st->n ? limit - kept : 0)) > 0;) {
        if (n > limit - kept) n = limit - kept;
        (void)sum_band(sh, st, n, false);
        int cut = n;
        for (int i = (int)threadIdx.x; i < n; i += THREADS) {
            double w = weight_of(st, sh->list[i]), sum = before + (i > 0 ? sh->sum[i - 1] : 0);
            bool out = !(w > 0) || w < (double)st->r.min_p ||
                       (st->r.top_p < 1 && sum >= (double)st->r.top_p * mass);
            if (out && kept + i > 0 && i < cut) cut = i;
        }
        cut = block_min(sh, cut);
        double all = sh->sum[n - 1];
        __syncthreads(); /* sums are free */
        if (cut > 0) {
            *total += sum_band(sh, st, cut, true);
            __syncthreads(); /* sums are free */
        }
        before += all;
        kept += cut;
        if (cut < n || kept >= limit) break;
    }
    rewind_bands(st);
    return kept;
}

__device__ static bool cuts(const cu_sample_row *r)
{
    return r->top_k > 0 || r->top_p < 1 || r->min_p > 0;
}

/* keep() by the row's own rules; *limit: what top-k leaves. */
__device__ static int keep_own(shared *sh, row_state *st, int *limit, double *total)
{
    *limit = st->r.top_k > 0 && st->r.top_k < st->n ? st->r.top_k : st->n;
    double mass = st->r.top_p < 1 ? mass_of(sh, st, *limit) : 0;
    return keep(sh, st, *limit, mass, total);
}

/* Leaves what a token was drawn from: over the temperature, and nothing of what was cut off. */
__device__ static void process(shared *sh, row_state *st)
{
    key64 least = 0;
    int limit = st->n;
    double total, weightless = -INFINITY; /* a cut leaves nothing that is never drawn (cut.h) */
    if (cuts(&st->r)) weightless = (double)st->max - (double)st->r.temperature * 40 * log(2.0);
    int kept = cuts(&st->r) ? keep_own(sh, st, &limit, &total) : 0;
    for (int n; kept > 0 && (n = next_band(sh, st, limit < st->n ? limit - st->rank0 : 0)) > 0;) {
        if (st->rank0 + n < kept) continue;
        least = sh->list[kept - 1 - st->rank0];
        break;
    }
    __syncthreads(); /* all have read the list */
    for (int i = (int)threadIdx.x; i < st->n; i += THREADS) {
        float x = st->logits[i];
        bool in = key_of(x, i) >= least && (double)x >= weightless;
        st->logits[i] = in ? cu_div(x, st->r.temperature) : -INFINITY;
    }
    st->n_band = 0; /* the one in shared memory is of other values */
    rewind_bands(st);
    __syncthreads(); /* others read these logits */
    (void)survey(sh, st, false, NULL);
}

__device__ static int32_t draw_cut(shared *sh, row_state *st, double u)
{
    int limit;
    double total, before = 0;
    int kept = keep_own(sh, st, &limit, &total), want = limit < st->n ? limit : 0;
    int32_t token = st->top;
    for (int n; (n = next_band(sh, st, want > 0 ? want - st->rank0 : 0)) > 0;) {
        int left = kept - st->rank0, in = n < left ? n : left, hit = in;
        (void)sum_band(sh, st, in, true);
        for (int i = (int)threadIdx.x; i < in; i += THREADS) {
            if (before + sh->sum[i] > u * total && i < hit) hit = i;
        }
        hit = block_min(sh, hit);
        before += sh->sum[in - 1];
        token = token_of(sh->list[hit < in ? hit : in - 1]);
        __syncthreads(); /* sums and list are free */
        if (hit < in || in == left) break;
    }
    rewind_bands(st);
    return token;
}

/* ------------------------------------------------------------------------------ one row -- */

__device__ static void write_tops(shared *sh, row_state *st, sampled *out, double lse)
{
    int want = st->r.n_top < SAMPLE_TOP_MAX ? st->r.n_top : SAMPLE_TOP_MAX, got = 0;
    for (int n; got < want && (n = next_band(sh, st, want - got)) > 0;) {
        int take = n < want - got ? n : want - got;
        if ((int)threadIdx.x < take) {
            key64 k = sh->list[threadIdx.x];
            out->top_id[got + (int)threadIdx.x] = token_of(k);
            out->top_logprob[got + (int)threadIdx.x] = (float)((double)logit_of(k) - lse);
        }
        __syncthreads(); /* the list is free */
        got += take;
    }
    if (threadIdx.x == 0) out->n_top = got;
}

__device__ static double log_sum(shared *sh, const row_state *st)
{
    double w = 0;
    for (int i = (int)threadIdx.x; i < st->n; i += THREADS)
        w += (double)expf(st->logits[i] - st->max);
    return (double)st->max + log(block_sum(sh, w));
}

/* The place of a scored token among all, 1 for the best. */
__device__ static int32_t rank_of(shared *sh, const row_state *st, int32_t token)
{
    key64 own = key_of(st->logits[token], token);
    int above = 0;
    for (int i = (int)threadIdx.x; i < st->n; i += THREADS) above += key_of(st->logits[i], i) > own;
    return block_count(sh, above) + 1;
}

__device__ static int32_t pick(shared *sh, row_state *st)
{
    const cu_sample_row *r = &st->r;
    if (r->score >= 0) return r->score;
    if (r->temperature <= 0) return st->top;
    double u = uniform(r->seed, (uint64_t)r->n_output);
    return cuts(r) ? draw_cut(sh, st, u) : draw_all(sh, st, u);
}

/* Grid: rows. */
__global__ __launch_bounds__(THREADS, 1) void sample_kernel(cu_sample_args a)
{
    CU_SHARED(shared, sh);
    row_state st;
    st.r = a.rows[blockIdx.x];
    if (st.r.logit_row < 0) return; /* the whole block */
    st.logits = a.logits + (size_t)st.r.logit_row * a.stride;
    st.n = st.r.n_vocab;
    st.top = 0;
    st.n_band = 0; /* none is there */
    rewind_bands(&st);
    sampled *out = a.out + blockIdx.x;

    bool good = survey(sh, &st, true, NULL);
    if (good && st.r.score < 0) {
        bool changed = st.r.n_bias > 0 || st.r.repetition_penalty != 1 ||
                       st.r.presence_penalty != 0 || st.r.frequency_penalty != 0 ||
                       st.r.n_output < st.r.min_tokens;
        if (changed) {
            add_bias(&st);
            penalise(sh, &st);
            ban_stops(&st);
        }
        if (changed || st.r.allowed) (void)survey(sh, &st, false, st.r.allowed);
    }
    if (!good || !is_number(st.max)) {
        if (threadIdx.x == 0) {
            out->token = -1;
            out->logprob = 0;
            out->rank = 0;
            out->n_top = 0;
        }
        return; /* the whole block */
    }
    int32_t token = pick(sh, &st);
    bool wanted = st.r.n_top >= 0 || st.r.score >= 0;
    if (st.r.processed && st.r.score < 0 && st.r.n_top >= 0 && st.r.temperature > 0)
        process(sh, &st);
    double lse = wanted ? log_sum(sh, &st) : 0;
    int32_t rank = st.r.score >= 0 ? rank_of(sh, &st, token) : 0;
    if (threadIdx.x == 0) {
        out->token = token;
        out->rank = rank;
        out->logprob = wanted ? (float)((double)st.logits[token] - lse) : 0;
        out->n_top = 0;
    }
    if (st.r.n_top > 0) write_tops(sh, &st, out, lse);
}

extern "C" cudaError_t cu_sample(cudaStream_t stream, const cu_sample_args *args)
{
    if (args->n_rows <= 0) return cudaSuccess;
    if (args->stride <= 0) return cudaErrorInvalidValue;
    CU_LAUNCH(sample_kernel, dim3((unsigned)args->n_rows), dim3(THREADS), sizeof(shared), stream,
              *args);
    return cudaGetLastError();
}
