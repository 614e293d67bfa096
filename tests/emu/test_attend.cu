/* test_attend.cu -- engine/cuda/attend.cu against f64: head sizes, groups, windows, prefill
 * and decode mixed, pages in random order; and each row against itself in other chunks and
 * other company, bit for bit. */
#include "engine/cuda/attend.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"
#include "engine/kv_int8.h"
#include "tests/emu/device_data.h"
#include "tests/run_suite.h"

enum { MAX_SEQS = 8, LAYER = 1, LAYERS = 2 };

/* A model's shape, and the whole history of a few sequences. */
typedef struct {
    int d, n_head, n_kv, window, type;
    bool wide_plan; /* made for a layer that sees everything */
    double cap;     /* of scores; 0: none */
    bool chunked;   /* `window` positions at a time */
    bool sinks;     /* sink_of() of each head takes its share */
    int n_seq, len[MAX_SEQS];
    float *q[MAX_SEQS], *k[MAX_SEQS], *v[MAX_SEQS]; /* [len][heads][d] */
    int32_t *page[MAX_SEQS];
    cu_kv kv;
    int n_pages;
    const cu_rope_args *turn; /* rows are turned and put into their pages first; NULL: they were */
    bool on_the_way;          /* by attention itself */
} history;

static uint16_t half_of(float f, int type)
{
    return type == DT_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
}

static float rounded(float f, int type)
{
    if (type == DT_F32) return f;
    if (type == DT_I8) type = DT_BF16; /* queries; keys and values: as_codes() */
    return type == DT_BF16 ? bf16_to_f32(half_of(f, type)) : f16_to_f32(half_of(f, type));
}

/* Of results that are near one, with weights rounded to the type of the pages. */
static double bound_of(int type)
{
    return type == DT_F32 ? 2e-5 : type == DT_F16 ? 1.5e-3 : 8e-3;
}

static float *values(int len, int cols, int type)
{
    float *p = (float *)malloc(((size_t)len * cols + 1) * sizeof(float));
    for (size_t i = 0; i < (size_t)len * cols; i++) p[i] = rounded(draw_float(1.5F), type);
    return p;
}

/* What a page keeps of heads of d values: the greatest of a head is INT8_CODE_MAX times its scale,
 * so that the rule finds the same one again. */
static void as_codes(float *x, size_t heads, int d)
{
    for (size_t i = 0; i < heads; i++, x += d) {
        int top = 0;
        for (int k = 0; k < d; k++) top = fabsf(x[k]) > fabsf(x[top]) ? k : top;
        float scale = bf16_to_f32(int8_scale_of(x, d));
        x[top] = copysignf((float)INT8_CODE_MAX * scale, x[top]);
        for (int k = 0; k < d; k++) x[k] = scale * (float)int8_code_of(x[k], scale);
    }
}

static void code_write(char *to, uint16_t *scale, const float *x, int d)
{
    *scale = int8_scale_of(x, d);
    for (int i = 0; i < d; i++)
        to[cu_kv_code_at(i, d)] = (char)int8_code_of(x[i], bf16_to_f32(*scale));
}

static void kv_write(const history *h, int seq, int pos)
{
    const cu_kv *kv = &h->kv;
    int at = pos % CU_PAGE_TOKENS;
    size_t elem = kv->type == DT_F32 ? 4 : kv->type == DT_I8 ? 1 : 2;
    size_t part = (size_t)CU_PAGE_TOKENS * kv->head_dim * elem;
    for (int head = 0; head < h->n_kv; head++) {
        char *begin = kv->mem + (size_t)h->page[seq][pos / CU_PAGE_TOKENS] * kv->stride +
                      ((size_t)LAYER * h->n_kv + head) * cu_kv_head_bytes(h->d, h->d, kv->type);
        char *to = begin + (size_t)at * h->d * elem;
        size_t row = ((size_t)pos * h->n_kv + head) * h->d;
        if (kv->type == DT_I8) {
            uint16_t *scales = (uint16_t *)(begin + 2 * part) + 2 * at;
            code_write(to, scales, h->k[seq] + row, h->d);
            code_write(to + part, scales + 1, h->v[seq] + row, h->d);
            continue;
        }
        for (int i = 0; i < h->d; i++) {
            size_t from = row + i;
            if (kv->type == DT_F32) {
                ((float *)to)[i] = h->k[seq][from];
                ((float *)(to + part))[i] = h->v[seq][from];
            } else {
                ((uint16_t *)to)[i] = half_of(h->k[seq][from], kv->type);
                ((uint16_t *)(to + part))[i] = half_of(h->v[seq][from], kv->type);
            }
        }
    }
}

/* Pages in random order, filled with NaN where no position lies: nothing of that may be seen. */
static void make_history(history *h, int d, int n_head, int n_kv, int window, int type, int n_seq,
                         const int *len)
{
    memset(h, 0, sizeof(*h));
    h->d = d;
    h->n_head = n_head;
    h->n_kv = n_kv;
    h->window = window;
    h->type = type;
    h->n_seq = n_seq;
    for (int s = 0; s < n_seq; s++) h->n_pages += (len[s] + CU_PAGE_TOKENS - 1) / CU_PAGE_TOKENS;
    h->n_pages += 3;
    int32_t *order = (int32_t *)malloc((size_t)h->n_pages * 4);
    for (int i = 0; i < h->n_pages; i++) order[i] = i;
    for (int i = h->n_pages - 1; i > 0; i--) {
        int j = below(i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    size_t bytes = cu_kv_bytes(LAYERS, n_kv, d, d, type), stride = (bytes + 255) / 256 * 256 + 256;
    h->kv = {(char *)emu_alloc(stride * h->n_pages), stride, LAYER, n_kv, d, type, d};
    memset(h->kv.mem, 0xFF, stride * h->n_pages);
    emu_wrote(h->kv.mem, stride * h->n_pages);
    int next = 0;
    for (int s = 0; s < n_seq; s++) {
        h->len[s] = len[s];
        h->q[s] = values(len[s], n_head * d, type);
        h->k[s] = values(len[s], n_kv * d, type);
        h->v[s] = values(len[s], n_kv * d, type);
        if (type == DT_I8) {
            as_codes(h->k[s], (size_t)len[s] * n_kv, d);
            as_codes(h->v[s], (size_t)len[s] * n_kv, d);
        }
        h->page[s] = order + next;
        next += (len[s] + CU_PAGE_TOKENS - 1) / CU_PAGE_TOKENS;
    }
    h->page[MAX_SEQS - 1] = order; /* owns the list */
}

static void drop_history(history *h)
{
    for (int s = 0; s < h->n_seq; s++) {
        free(h->q[s]);
        free(h->k[s]);
        free(h->v[s]);
    }
    free(h->page[MAX_SEQS - 1]);
    emu_free(h->kv.mem);
}

/* Of some heads far above all scores, of others far below. */
static float sink_of(int head)
{
    return (float)(head % 3 - 1) * 1.5F;
}

static void oracle(const history *h, int seq, int pos, int head, double *out)
{
    int kv = head / (h->n_head / h->n_kv), d = h->d;
    int from = h->window && pos >= h->window ? pos - h->window + 1 : 0;
    if (h->chunked && from > 0) from = pos - pos % h->window;
    const float *q = h->q[seq] + ((size_t)pos * h->n_head + head) * d;
    double *s = (double *)malloc((size_t)(pos + 1) * sizeof(double)), max = -INFINITY, sum = 0;
    for (int t = from; t <= pos; t++) {
        s[t] = 0;
        for (int i = 0; i < d; i++)
            s[t] += (double)q[i] * h->k[seq][((size_t)t * h->n_kv + kv) * d + i];
        s[t] /= sqrt((double)d);
        if (h->cap > 0) s[t] = h->cap * tanh(s[t] / h->cap);
        if (s[t] > max) max = s[t];
    }
    for (int i = 0; i < d; i++) out[i] = 0;
    for (int t = from; t <= pos; t++) {
        double p = exp(s[t] - max);
        sum += p;
        for (int i = 0; i < d; i++) out[i] += p * h->v[seq][((size_t)t * h->n_kv + kv) * d + i];
    }
    if (h->sinks) sum += exp(sink_of(head) - max);
    for (int i = 0; i < d; i++) out[i] /= sum;
    free(s);
}

/* Which rows of which sequence: rows [from, to) of seq s, at positions [from, to). */
typedef struct {
    int seq, from, to;
} chunk;

/* The rows' own K and V, as they come from the product, and where they go. */
static void turn_rows(const history *h, const chunk *c, const step *s, cu_attend_args *a, float *q,
                      void **mine)
{
    int rows = s->n_rows, cols = h->n_kv * h->d;
    int32_t slot[MAX_SEQS], pos[MAX_SEQS];
    cu_rope_args r = *h->turn;
    r.q = q;
    r.q_stride = a->q_stride;
    float *k = device_empty((size_t)rows * cols);
    r.k = k;
    mine[0] = k;
    float *v = device_empty((size_t)rows * cols);
    mine[1] = v;
    for (int i = 0; i < rows; i++) {
        pos[i] = c[i].from;
        size_t from = (size_t)pos[i] * cols, bytes = (size_t)cols * 4;
        memcpy(k + (size_t)i * cols, h->k[c[i].seq] + from, bytes);
        memcpy(v + (size_t)i * cols, h->v[c[i].seq] + from, bytes);
    }
    emu_wrote(k, (size_t)rows * cols * 4);
    emu_wrote(v, (size_t)rows * cols * 4);
    cu_slots_fill(slot, rows, s);
    r.v = v;
    r.k_stride = r.v_stride = cols;
    r.n_rows = rows;
    mine[2] = (void *)(r.pos = (int32_t *)to_device(pos, (size_t)rows * 4));
    mine[3] = (void *)(r.slot = (int32_t *)to_device(slot, (size_t)rows * 4));
    r.kv = h->kv;
    r.n_head = h->n_head;
    if (h->on_the_way)
        a->turn = r;
    else
        ck_assert_int_eq(cu_rope_append(NULL, &r), cudaSuccess);
}

/* A launch that others of the step may begin beside: what those before it wrote is there. */
static __global__ void begin_kernel(uint32_t *zero)
{
    zero[0] = 0;
}

/* Runs one step; result [rows][n_head][d] in the caller's memory.  The positions' K and V are in
 * the pages; later ones are not. */
static float *run_step(const history *h, const chunk *c, int n_chunk, int max_partial, bool half)
{
    int rows = 0, group = h->n_head / h->n_kv, cols = h->n_head * h->d, pages = 0;
    step_seq seq[MAX_SEQS];
    for (int i = 0; i < n_chunk; i++) {
        seq[i] = {rows,
                  c[i].to - c[i].from,
                  c[i].from,
                  h->page[c[i].seq],
                  (h->len[c[i].seq] + CU_PAGE_TOKENS - 1) / CU_PAGE_TOKENS,
                  0};
        rows += c[i].to - c[i].from;
        pages += seq[i].n_page;
    }
    step s = {};
    s.n_rows = rows;
    s.n_seq = n_chunk;
    s.seq = seq;
    cu_attend_plan p = {};
    cu_attend_plan_limits(&p, n_chunk, rows, pages, group, max_partial);
    p.seq = (cu_attend_seq *)emu_alloc((size_t)(p.max_seq + 1) * sizeof(*p.seq));
    p.small = (cu_attend_item *)emu_alloc((size_t)(p.max_small + 1) * sizeof(*p.small));
    p.large = (cu_attend_item *)emu_alloc((size_t)(p.max_large + 1) * sizeof(*p.large));
    p.page = (int32_t *)emu_alloc((size_t)(p.max_page + 1) * 4);
    ck_assert(cu_attend_plan_fill(&p, &s, group, h->wide_plan ? 0 : h->window));
    emu_wrote(p.seq, (size_t)p.counts.n_seq * sizeof(*p.seq));
    emu_wrote(p.small, (size_t)p.counts.n_small * sizeof(*p.small));
    emu_wrote(p.large, (size_t)p.counts.n_large * sizeof(*p.large));
    emu_wrote(p.page, (size_t)p.n_page * 4);

    /* q and out with gaps between the rows, as of a fused product. */
    int stride = cols + 6;
    float *q = (float *)emu_alloc((size_t)(rows + 1) * stride * 4);
    for (int i = 0; i < n_chunk; i++) {
        size_t n = (size_t)cols * 4;
        for (int pos = c[i].from; pos < c[i].to; pos++) {
            float *row = q + (size_t)(seq[i].row0 + pos - c[i].from) * stride;
            memcpy(row, h->q[c[i].seq] + (size_t)pos * cols, n);
            emu_wrote(row, n);
        }
    }
    size_t partials = (size_t)max_partial * h->n_kv * cu_attend_unit(group);
    cu_attend_args a = {};
    a.out = device_empty((size_t)(rows + 1) * stride);
    a.out16 = half ? (uint16_t *)emu_alloc((size_t)(rows + 1) * cols * 2) : NULL;
    a.q = q;
    a.q_stride = a.out_stride = stride;
    a.n_head = h->n_head;
    a.window = h->window;
    a.scale = 1 / sqrtf((float)h->d);
    a.cap = (float)h->cap / a.scale;
    a.chunked = h->chunked;
    float sinks[64];
    for (int i = 0; i < h->n_head; i++) sinks[i] = sink_of(i);
    a.sinks = h->sinks ? (float *)to_device(sinks, (size_t)h->n_head * sizeof(float)) : NULL;
    a.kv = h->kv;
    a.counts = (cu_attend_counts *)to_device(&p.counts, sizeof(p.counts));
    a.seq = p.seq;
    a.small = p.small;
    a.large = p.large;
    a.page = p.page;
    a.partial_out = device_empty(partials * h->d + 1);
    a.partial_state = device_empty(partials * 2 + 1);
    size_t tickets = (size_t)max_partial * h->n_kv + 1;
    a.ticket = (uint32_t *)emu_alloc(tickets * 4);
    memset(a.ticket, 0, tickets * 4);
    emu_wrote(a.ticket, tickets * 4);
    void *more[4] = {NULL};
    if (h->turn) turn_rows(h, c, &s, &a, q, more);
    cu_attend_grid(&a, 2, 100 << 10);
    a.grid_small = a.grid_large = 3; /* blocks take several items each */
    if (p.counts.n_large == 0) a.grid_large = 0;
    CU_LAUNCH(begin_kernel, 1, 1, 0, NULL, a.ticket);
    a.early = emu_begins_early();
    ck_assert_int_eq(cu_attend(NULL, &a), cudaSuccess);

    float *out = (float *)malloc(((size_t)rows * cols + 1) * sizeof(float));
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < cols; j++) {
            out[(size_t)i * cols + j] =
                half ? bf16_to_f32(a.out16[(size_t)i * cols + j]) : a.out[(size_t)i * stride + j];
        }
    }
    for (size_t i = 0; i < tickets; i++) ck_assert_uint_eq(a.ticket[i], 0);
    void *mine[] = {p.seq, p.small,          p.large,       p.page,          q,
                    a.out, (void *)a.counts, a.partial_out, a.partial_state, a.ticket};
    for (void *m : mine) emu_free(m);
    if (h->sinks) emu_free((void *)a.sinks);
    for (void *m : more) {
        if (m) emu_free(m);
    }
    if (half) emu_free(a.out16);
    return out;
}

static void check_step(const history *h, const chunk *c, int n_chunk, const float *got, double tol)
{
    double want[CU_HEAD_DIM_MAX];
    size_t row = 0;
    for (int i = 0; i < n_chunk; i++) {
        for (int pos = c[i].from; pos < c[i].to; pos++, row++) {
            int step_size =
                c[i].to - c[i].from > 40 && pos > c[i].from + 2 && pos < c[i].to - 2 ? 3 : 1;
            for (int head = pos % step_size; head < h->n_head; head += step_size) {
                oracle(h, c[i].seq, pos, head, want);
                const float *g = got + (row * h->n_head + head) * h->d;
                for (int j = 0; j < h->d; j++) {
                    ck_assert_msg(fabs((double)g[j] - want[j]) <= tol,
                                  "head size %d, group %d, window %d: seq %d, pos %d, head %d "
                                  "[%d]: %g, not %g",
                                  h->d, h->n_head / h->n_kv, h->window, c[i].seq, pos, head, j,
                                  g[j], want[j]);
                }
            }
        }
    }
}

static void write_upto(const history *h, int seq, int from, int to)
{
    for (int pos = from; pos < to; pos++) kv_write(h, seq, pos);
}

/* ---- against the oracle ------------------------------------------------------------------ */

typedef struct {
    int d, n_head, n_kv, window, type;
} shape;

static const shape shapes[] = {
    {64, 4, 2, 0, DT_BF16},  {80, 3, 1, 0, DT_BF16},   {96, 2, 2, 70, DT_BF16},
    {128, 8, 2, 0, DT_BF16}, {128, 2, 1, 33, DT_BF16}, {64, 20, 1, 0, DT_BF16},
    {64, 4, 2, 0, DT_F32},   {20, 3, 3, 50, DT_F32},   {40, 4, 2, 0, DT_BF16},
    {256, 2, 1, 0, DT_BF16}, {128, 4, 1, 0, DT_F16},   {64, 7, 1, 33, DT_F16},
    {80, 2, 2, 0, DT_F16},   {40, 4, 2, 0, DT_F16},    {128, 8, 2, 0, DT_I8},
    {64, 7, 1, 33, DT_I8},   {80, 3, 1, 0, DT_I8},     {96, 2, 2, 70, DT_I8},
    {40, 4, 2, 0, DT_I8},    {36, 2, 1, 33, DT_I8},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* Decode rows, a first chunk, a later chunk, a short one: 0, 1, 7, 64, 130 rows in one step. */
START_TEST(mixed_steps_meet_the_oracle)
{
    const shape *sh = &shapes[_i];
    rng_state = 11 + (uint64_t)_i;
    const int len[] = {130, 97, 64, 1, 71, 260};
    history h;
    make_history(&h, sh->d, sh->n_head, sh->n_kv, sh->window, sh->type, 6, len);
    const chunk c[] = {{0, 0, 130}, {1, 96, 97}, {2, 0, 64}, {3, 0, 1}, {4, 64, 71}, {5, 259, 260}};
    for (int s = 0; s < 6; s++) write_upto(&h, s, 0, c[s].to);
    for (int seed = 0; seed < 2; seed++) {
        emu_seed((uint64_t)seed);
        float *got = run_step(&h, c, 6, 16, false);
        check_step(&h, c, 6, got, sh->type == DT_F32 || (sh->d != 64 && sh->d < 80) ? 2e-5 : 8e-3);
        free(got);
    }
    float *none = run_step(&h, c, 0, 4, false);
    free(none);
    h.cap = 0.8;
    float *capped = run_step(&h, c, 6, 16, false);
    check_step(&h, c, 6, capped, sh->type == DT_F32 || (sh->d != 64 && sh->d < 80) ? 2e-5 : 8e-3);
    free(capped);
    h.cap = 0;
    h.chunked = h.sinks = true;
    float *sunk = run_step(&h, c, 6, 16, false);
    check_step(&h, c, 6, sunk, sh->type == DT_F32 || (sh->d != 64 && sh->d < 80) ? 2e-5 : 8e-3);
    free(sunk);
    h.chunked = h.sinks = false;
    float *half = run_step(&h, c + 1, 5, 4, true);
    check_step(&h, c + 1, 5, half, 2e-2);
    free(half);
    drop_history(&h);
}
END_TEST

/* Several splits: partial sums and their merge; too little room for partials; long
 * chunks that merge on the way. */
static void check_long(const shape *sh, int window, bool full)
{
    const int len[] = {4700, 530, 1024, 513};
    history h;
    make_history(&h, sh->d, sh->n_head, sh->n_kv, window, sh->type, 4, len);
    double tol = bound_of(sh->type);
    const chunk c[] = {{0, 4699, 4700}, {1, 529, 530}, {2, 1023, 1024}, {3, 511, 513}};
    for (int s = 0; s < 4; s++) write_upto(&h, s, 0, len[s]);
    float *one = run_step(&h, c, 4, 32, false);
    check_step(&h, c, 4, one, tol);
    size_t row = (size_t)h.n_head * h.d;
    /* With room for two partials, and with none. */
    for (int room = 0; room < 3; room += 2) {
        float *got = run_step(&h, c, 4, room, false);
        ck_assert_msg(memcmp(got, one, 5 * row * 4) == 0, "other bits with room for %d partials",
                      room);
        free(got);
    }
    h.wide_plan = true; /* splits that no row sees are nothing, whatever lies in their sums */
    for (int room = 0; room < 40; room += 32) {
        float *got = run_step(&h, c, 4, room, false);
        ck_assert_msg(memcmp(got, one, 5 * row * 4) == 0, "other bits by a wider plan");
        free(got);
    }
    h.wide_plan = false;
    /* The same positions at the end of long chunks. */
    int rows = full ? 140 : 66;
    const chunk l[] = {{0, 4700 - rows, 4700}, {3, 513 - rows, 513}};
    float *got = run_step(&h, l, 2, 32, false);
    if (full) check_step(&h, l, 2, got, tol);
    ck_assert_msg(memcmp(got + (size_t)(rows - 1) * row, one, row * 4) == 0,
                  "head size %d, window %d: other bits in a long chunk", sh->d, window);
    ck_assert_msg(memcmp(got + (size_t)(2 * rows - 2) * row, one + 3 * row, 2 * row * 4) == 0,
                  "head size %d, window %d: other bits across a split", sh->d, window);
    free(got);
    free(one);
    drop_history(&h);
}

START_TEST(splits_merge_in_order)
{
    static const shape sh[] = {
        {64, 2, 1, 0, DT_BF16}, {128, 4, 1, 0, DT_BF16}, {80, 2, 2, 0, DT_BF16},
        {96, 2, 1, 0, DT_BF16}, {64, 2, 1, 0, DT_F32},   {36, 2, 1, 0, DT_F32},
        {128, 4, 1, 0, DT_F16}, {128, 4, 1, 0, DT_I8},   {80, 2, 2, 0, DT_I8},
        {64, 2, 1, 0, DT_I8},   {36, 2, 1, 0, DT_I8}};
    rng_state = 5;
    emu_seed((uint64_t)_i % 2);
    check_long(&sh[_i], _i % 2 ? 600 : 0, _i == 0);
    check_long(&sh[_i], _i % 2 ? 0 : 90, false);
}
END_TEST

/* Positions turned and appended by attention itself: the bits, and the pages, of two launches. */
START_TEST(rows_are_turned_on_the_way)
{
    static const shape sh[] = {{64, 4, 2, 0, DT_BF16},  {128, 8, 2, 0, DT_BF16},
                               {80, 3, 1, 45, DT_BF16}, {128, 4, 1, 600, DT_F16},
                               {128, 8, 2, 0, DT_I8},   {80, 3, 1, 45, DT_I8}};
    rng_state = 91 + (uint64_t)_i;
    emu_seed((uint64_t)_i);
    const int len[] = {130, 97, 64, 1, 1030, 513};
    int d = sh[_i].d, dim = _i == 1 ? d / 2 : d;
    history h;
    make_history(&h, d, sh[_i].n_head, sh[_i].n_kv, sh[_i].window, sh[_i].type, 6, len);
    chunk c[6];
    for (int s = 0; s < 6; s++) {
        c[s] = {s, len[s] - 1, len[s]};
        write_upto(&h, s, 0, len[s] - 1);
    }
    float *norm = device_random((size_t)d, 1), *table = device_random((size_t)1030 * dim, 1);
    cu_rope_args turn = {};
    turn.cos = table;
    turn.sin = table + 1030 * (dim / 2);
    turn.rope_dim = dim;
    turn.pairs = _i == 2;
    turn.norm_eps = 1e-5F;
    if (_i > 0) turn.q_norm = turn.k_norm = norm;
    h.turn = &turn;
    size_t bytes = h.kv.stride * (size_t)h.n_pages;
    char *pages[2] = {(char *)malloc(bytes), (char *)malloc(bytes)};
    memcpy(pages[0], h.kv.mem, bytes);
    float *apart = run_step(&h, c, 6, 32, false);
    memcpy(pages[1], h.kv.mem, bytes);
    memcpy(h.kv.mem, pages[0], bytes);
    h.on_the_way = true;
    float *got = run_step(&h, c, 6, 32, false);
    size_t n = (size_t)6 * h.n_head * d;
    ck_assert_msg(memcmp(got, apart, n * 4) == 0, "head size %d: other bits on the way", d);
    ck_assert_msg(memcmp(h.kv.mem, pages[1], bytes) == 0, "head size %d: other pages", d);
    ck_assert_msg(memcmp(pages[0], pages[1], bytes) != 0, "nothing was appended");
    free(got);
    free(apart);
    free(pages[0]);
    free(pages[1]);
    emu_free(norm);
    emu_free(table);
    drop_history(&h);
}
END_TEST

/* ---- invariance ----------------------------------------------------------------------------- */

/* A prompt in any chunks, beside anything: the same bits. */
START_TEST(chunks_and_company_change_no_bit)
{
    static const shape sh[] = {{64, 4, 2, 0, DT_BF16}, {128, 4, 1, 45, DT_BF16},
                               {80, 2, 2, 0, DT_BF16}, {64, 2, 1, 0, DT_F32},
                               {128, 4, 1, 0, DT_F16}, {128, 4, 1, 45, DT_I8},
                               {64, 4, 2, 0, DT_I8},   {96, 2, 2, 0, DT_I8}};
    rng_state = 21 + (uint64_t)_i;
    const int len[] = {150, 90};
    history h;
    make_history(&h, sh[_i].d, sh[_i].n_head, sh[_i].n_kv, sh[_i].window, sh[_i].type, 2, len);
    write_upto(&h, 1, 0, 90);
    write_upto(&h, 0, 0, 150);
    size_t row = (size_t)h.n_head * h.d;
    const chunk all = {0, 0, 150};
    float *whole = run_step(&h, &all, 1, 8, false);
    for (int trial = 0; trial < 4; trial++) {
        for (int from = 0; from < 150;) {
            int n = trial == 0 ? (from < 140 ? 140 : 1) : 1 + below(trial == 1 ? 9 : 100);
            if (n > 150 - from) n = 150 - from;
            int other = below(80);
            const chunk c[] = {{1, other, other + 1 + below(10)}, {0, from, from + n}, {1, 89, 90}};
            bool company = trial % 2;
            float *part = run_step(&h, company ? c : c + 1, company ? 3 : 1, 8, false);
            size_t at = company ? (size_t)(c[0].to - c[0].from) * row : 0;
            ck_assert_msg(memcmp(part + at, whole + (size_t)from * row, (size_t)n * row * 4) == 0,
                          "head size %d: rows %d to %d have other bits in a chunk of their own",
                          h.d, from, from + n);
            free(part);
            from += n;
        }
    }
    free(whole);
    drop_history(&h);
}
END_TEST

/* ---- the plan -------------------------------------------------------------------------------- */

START_TEST(plan_covers_every_row_once)
{
    rng_state = 77;
    for (int trial = 0; trial < 300; trial++) {
        int group = 1 + below(12), window = below(3) ? 0 : 1 + below(900), n = 1 + below(6),
            rows = 0, pages = 0;
        static int32_t table[200];
        step_seq seq[6];
        for (int i = 0; i < n; i++) {
            int r = below(2) ? 1 : 1 + below(300), pos0 = below(3000);
            seq[i] = {rows, r, pos0, table, 200, 0};
            rows += r;
            pages += (pos0 + r + CU_PAGE_TOKENS - 1) / CU_PAGE_TOKENS;
        }
        step s = {};
        s.n_rows = rows;
        s.n_seq = n;
        s.seq = seq;
        cu_attend_plan p = {};
        cu_attend_plan_limits(&p, n, rows, pages, group, below(40));
        p.seq = (cu_attend_seq *)calloc((size_t)p.max_seq + 1, sizeof(*p.seq));
        p.small = (cu_attend_item *)calloc((size_t)p.max_small + 1, sizeof(*p.small));
        p.large = (cu_attend_item *)calloc((size_t)p.max_large + 1, sizeof(*p.large));
        p.page = (int32_t *)calloc((size_t)p.max_page + 1, 4);
        ck_assert(cu_attend_plan_fill(&p, &s, group, window));
        ck_assert_int_eq(p.n_page, pages);
        for (int j = 0, before = 2; j < p.counts.n_small; j++) { /* the heavy ones first */
            const cu_attend_item *it = &p.small[j];
            const step_seq *sq = &seq[it->seq];
            int end = it->split1 * CU_SPLIT_TOKENS, len = sq->pos0 + sq->n_rows;
            int keys = (end < len ? end : len) - it->split0 * CU_SPLIT_TOKENS;
            int tiles = (keys + CU_TILE_TOKENS - 1) / CU_TILE_TOKENS,
                whole = CU_SPLIT_TOKENS / CU_TILE_TOKENS, heavy = tiles > whole ? 2 : tiles / whole;
            ck_assert_int_le(heavy, before);
            before = heavy;
            int units = cu_attend_units(sq->n_rows * group - it->first, group);
            ck_assert_int_le(it->partial + units, it->partial < 0 ? units : p.max_partial);
        }
        for (int i = 0; i < n; i++) {
            for (int row = 0; row < seq[i].n_rows * group; row++) {
                int pos = seq[i].pos0 + row / group,
                    want0 = (window && pos >= window ? pos - window + 1 : 0) / CU_SPLIT_TOKENS;
                int covered = 0, lowest = 1 << 30, highest = -1;
                for (int j = 0; j < p.counts.n_small + p.counts.n_large; j++) {
                    bool small = j < p.counts.n_small;
                    const cu_attend_item *it = small ? &p.small[j] : &p.large[j - p.counts.n_small];
                    int size = small ? CU_SMALL_ROWS : CU_LARGE_ROWS;
                    if (it->seq != i || row < it->first || row >= it->first + size) continue;
                    covered += it->split1 - it->split0;
                    if (it->split0 < lowest) lowest = it->split0;
                    if (it->split1 > highest) highest = it->split1;
                    ck_assert_int_lt(it->partial, p.max_partial);
                }
                ck_assert_int_eq(covered, highest - lowest); /* each split once */
                ck_assert_int_le(lowest, want0);
                ck_assert_int_ge(highest, pos / CU_SPLIT_TOKENS + 1);
            }
        }
        p.max_small = p.counts.n_small - 1; /* too little room is told, not overrun */
        if (p.counts.n_small > 0) ck_assert(!cu_attend_plan_fill(&p, &s, group, window));
        free(p.seq);
        free(p.small);
        free(p.large);
        free(p.page);
    }
    int32_t slot[8], table2[] = {5, 2};
    step_seq sq = {1, 3, 31, table2, 2, 0}, first = {0, 1, 4, table2, 2, 0}, both[] = {first, sq};
    step s = {};
    s.n_rows = 4;
    s.n_seq = 2;
    s.seq = both;
    cu_slots_fill(slot, 6, &s);
    const int32_t want[] = {5 * 32 + 4, 5 * 32 + 31, 2 * 32, 2 * 32 + 1, -1, -1};
    ck_assert_mem_eq(slot, want, sizeof(want));
}
END_TEST

int main(void)
{
    if (cu_attend_setup() != cudaSuccess) return 1;
    Suite *s = suite_create("attend");
    TCase *t = tcase_create("attend");
    tcase_set_timeout(t, 250);
    tcase_add_test(t, plan_covers_every_row_once);
    tcase_add_loop_test(t, mixed_steps_meet_the_oracle, 0, N_SHAPES);
    tcase_add_loop_test(t, splits_merge_in_order, 0, 11);
    tcase_add_loop_test(t, chunks_and_company_change_no_bit, 0, 8);
    tcase_add_loop_test(t, rows_are_turned_on_the_way, 0, 6);
    suite_add_tcase(s, t);
    return run_suite(s);
}
