/* test_mixers.c -- kernels of mixers with a state against the plain loops, at every instruction set
 * that this machine has, and bit for bit against themselves with the rows in other pieces.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "tests/engine/plain_backend.h"
#include "tests/engine/random_floats.h"
#include "tests/engine/stand_ins.h"
#include "tests/run_suite.h"

enum { SEQS = 3, ROWS = 23, SLOTS = 5, LEAD = 3 /* floats of a slot before the layer's */ };

static const int lens[SEQS] = {ROWS, 7, 1}, slots[SEQS] = {3, 0, 4};

/* What an operation reads and makes: of sequence i, [lens[i]][in] and [lens[i]][out] floats. */
typedef struct world {
    backend *be;
    int in, out;
    size_t state; /* floats of the layer */
    float *x[SEQS];
    void (*run)(const struct world *w, float *out, const float *x, const step *s);
    const void *arg;
} world;

/* Feeds all sequences, each in pieces of at most `chunk` rows; y[i] [lens[i]][out]. */
static void feed(const world *w, int chunk, float *y[SEQS])
{
    size_t stride = LEAD + w->state;
    float *state = malloc(SLOTS * stride * sizeof(*state));
    for (size_t i = 0; i < SLOTS * stride; i++) state[i] = NAN; /* what nobody wrote is not read */
    int done[SEQS] = {0};
    for (int left = 1; left > 0;) {
        step_seq seq[SEQS];
        step s = {.seq = seq, .state = state, .state_stride = stride};
        float *x = malloc(SEQS * ROWS * (size_t)w->in * sizeof(*x));
        float *out = malloc(SEQS * ROWS * (size_t)w->out * sizeof(*out));
        int who[SEQS];
        left = 0;
        for (int i = 0; i < SEQS; i++) {
            int n = lens[i] - done[i] < chunk ? lens[i] - done[i] : chunk;
            if (n == 0) continue;
            memcpy(x + (size_t)(s.n_rows * w->in), w->x[i] + done[i] * w->in,
                   (size_t)(n * w->in) * sizeof(*x));
            who[s.n_seq] = i;
            seq[s.n_seq++] =
                (step_seq){.row0 = s.n_rows, .n_rows = n, .pos0 = done[i], .slot = slots[i]};
            s.n_rows += n;
            left++;
        }
        if (left > 0) w->run(w, out, x, &s);
        ck_assert_int_eq(be_sync(w->be, NULL), ERR_NONE);
        for (int k = 0; k < s.n_seq; k++) {
            int i = who[k];
            memcpy(y[i] + done[i] * w->out, out + seq[k].row0 * w->out,
                   (size_t)(seq[k].n_rows * w->out) * sizeof(*out));
            done[i] += seq[k].n_rows;
        }
        free(x);
        free(out);
    }
    for (size_t i = 0; i < SLOTS * stride; i++) /* no slot and no layer but its own */
        ck_assert(isnan(state[i]) == (i % stride < LEAD || i / stride == 1 || i / stride == 2));
    free(state);
}

static void outputs(const world *w, float *y[SEQS])
{
    for (int i = 0; i < SEQS; i++) y[i] = calloc((size_t)(lens[i] * w->out), sizeof(*y[i]));
}

static void drop(float *y[SEQS])
{
    for (int i = 0; i < SEQS; i++) free(y[i]);
}

/* Against the plain loops within `bound`, and the same bits in pieces of one and of five rows. */
static void check(world *w, double bound, const char *what)
{
    float *want[SEQS], *whole[SEQS], *pieces[SEQS];
    outputs(w, want);
    outputs(w, whole);
    outputs(w, pieces);
    backend_config cfg = {.n_threads = 1};
    ck_assert_int_eq(be_open(&w->be, &backend_plain, &cfg, NULL), ERR_NONE);
    feed(w, ROWS, want);
    be_close(w->be);
    int ran = 0;
    for (int isa = ISA_PORTABLE; isa < ISA_COUNT; isa++) {
        if (!stand_in_runs(isa)) continue;
        ran++;
        ck_assert_int_eq(stand_in_open(&w->be, isa, 2, NULL), ERR_NONE);
        feed(w, ROWS, whole);
        for (int i = 0; i < SEQS; i++)
            for (int k = 0; k < lens[i] * w->out; k++) {
                double d = fabs((double)want[i][k] - (double)whole[i][k]);
                ck_assert_msg(d <= bound, "%s on %s: sequence %d, value %d: off by %.2e", what,
                              cpu_isa_name((cpu_isa)isa), i, k, d);
            }
        for (int chunk = 1; chunk <= 5; chunk += 4) {
            feed(w, chunk, pieces);
            for (int i = 0; i < SEQS; i++)
                ck_assert_msg(memcmp(whole[i], pieces[i], (size_t)(lens[i] * w->out) * 4) == 0,
                              "%s on %s: other bits in pieces of %d", what,
                              cpu_isa_name((cpu_isa)isa), chunk);
        }
        be_close(w->be);
    }
    ck_assert_int_ge(ran, 1);
    drop(want);
    drop(whole);
    drop(pieces);
}

static void inputs(world *w, float scale)
{
    for (int i = 0; i < SEQS; i++) w->x[i] = random_floats((size_t)(lens[i] * w->in), scale);
}

/* --------------------------------------------------------------------- convolution -- */

typedef struct conv_case {
    mixer_shape shape;
    conv_weights w;
} conv_case;

static void conv_run(const world *w, float *out, const float *x, const step *s)
{
    const conv_case *c = w->arg;
    be_conv(w->be, out, x, &c->w, &c->shape, s, LEAD);
}

START_TEST(convolutions)
{
    static const mixer_shape shapes[] = {{.taps = 3, .channels = 64},
                                         {.taps = 4, .channels = 7},
                                         {.taps = 2, .channels = 129},
                                         {.taps = 16, .channels = 33},
                                         {.taps = 3, .channels = 2048}};
    conv_case c = {.shape = shapes[_i]};
    size_t n = (size_t)c.shape.channels;
    float *taps = random_floats(n * (size_t)c.shape.taps, 1), *bias = random_floats(n, 1);
    c.w = (conv_weights){taps, _i % 2 ? bias : NULL};
    world w = {.in = 3 * (int)n,
               .out = (int)n,
               .state = mixer_state_floats(&c.shape),
               .run = conv_run,
               .arg = &c};
    inputs(&w, 2);
    check(&w, 1e-4, "convolution");
    drop(w.x);
    free(taps);
    free(bias);
}
END_TEST

/* ---------------------------------------------------------------------- delta rule -- */

typedef struct delta_case {
    mixer_shape shape;
    delta_weights w;
} delta_case;

enum { PARTS = 6 }; /* of delta_rows: q, k, v, z, b, a */

/* How many floats of a row each of them has. */
static void delta_parts(const delta_case *c, int part[PARTS])
{
    const mixer_shape *sh = &c->shape;
    int keys = sh->groups * sh->rows, values = sh->heads * sh->cols;
    int a = sh->heads * (c->w.rules.each ? sh->rows : 1);
    delta_form form = c->w.rules.form;
    part[0] = form == DELTA_APART   ? keys
              : form == DELTA_JOINT ? sh->channels
                                    : sh->channels + values;
    part[1] = form == DELTA_APART ? keys : 0;
    part[2] = form == DELTA_APART ? values : 0;
    part[3] = form == DELTA_FUSED ? 0 : values;
    part[4] = form == DELTA_FUSED ? 2 * sh->heads : sh->heads;
    part[5] = form == DELTA_FUSED ? 0 : a;
}

/* A row of x has the parts one behind the other. */
static void delta_run(const world *w, float *out, const float *x, const step *s)
{
    const delta_case *c = w->arg;
    int part[PARTS], n = s->n_rows;
    float *made[PARTS];
    delta_parts(c, part);
    for (int p = 0, at = 0; p < PARTS; at += part[p++]) {
        made[p] = malloc((size_t)(n * part[p] + 1) * sizeof(float));
        for (int r = 0; r < n; r++)
            memcpy(made[p] + r * part[p], x + r * w->in + at, (size_t)part[p] * sizeof(float));
    }
    delta_rows rows = {made[0], made[1], made[2], made[3], made[4], made[5]};
    be_delta(w->be, out, &rows, &c->w, &c->shape, s, LEAD);
    for (int p = 0; p < PARTS; p++) free(made[p]);
}

START_TEST(delta_rules_of_all_forms)
{
    static const struct {
        int taps, heads, groups, rows, cols;
        delta_rules rules;
        bool three; /* convolutions */
    } cases[] = {
        {4, 4, 2, 16, 24, {.form = DELTA_JOINT}, false},
        {4, 4, 2, 16, 24, {.form = DELTA_FUSED}, false},
        {2, 3, 3, 5, 7, {.form = DELTA_APART, .each = true, .sigmoid = true}, true},
        {3, 6, 2, 33, 17, {.form = DELTA_FUSED, .sigmoid = true}, false},
        {4, 2, 2, 128, 64, {.form = DELTA_APART, .each = true}, false},
        {4, 2, 1, 40, 133, {.form = DELTA_APART}, true},
        {16, 1, 1, 256, 256, {.form = DELTA_JOINT, .each = true}, true},
    };
    delta_case c = {.shape = {.taps = cases[_i].taps,
                              .heads = cases[_i].heads,
                              .groups = cases[_i].groups,
                              .rows = cases[_i].rows,
                              .cols = cases[_i].cols},
                    .w = {.rules = cases[_i].rules}};
    mixer_shape *sh = &c.shape;
    int part[PARTS], keys = sh->groups * sh->rows, values = sh->heads * sh->cols;
    bool three = cases[_i].three;
    sh->channels = 2 * keys + values;
    c.w.rules.most = (float)(1 + _i % 2);
    c.w.rules.eps = 1e-6F;
    const int own[] = {three ? keys : sh->channels, three ? keys : 0, three ? values : 0};
    float *taps[3];
    for (int i = 0; i < 3; i++) {
        taps[i] = random_floats((size_t)(sh->taps * own[i]), 1);
        c.w.taps[i] = own[i] ? taps[i] : NULL;
    }
    float *decay = random_floats((size_t)sh->heads, 3);
    float *bias = random_floats((size_t)(sh->heads * sh->rows), 2);
    float *norm = random_floats((size_t)sh->cols, 2);
    c.w.decay = decay;
    c.w.bias = bias;
    c.w.norm = norm;
    delta_parts(&c, part);
    world w = {.out = values, .state = mixer_state_floats(sh), .run = delta_run, .arg = &c};
    for (int p = 0; p < PARTS; p++) w.in += part[p];
    inputs(&w, 2);
    check(&w, 1e-4, "delta rule");
    drop(w.x);
    for (int i = 0; i < 3; i++) free(taps[i]);
    free(decay);
    free(bias);
    free(norm);
}
END_TEST

/* Of 64 and of 7 values. */
START_TEST(gated_answers)
{
    enum { N = 39 };
    int dim = _i ? 64 : 7;
    size_t n = N * (size_t)dim;
    float *x = random_floats(2 * n, 9), *a = random_floats(n, 3), *b = malloc(n * sizeof(*b));
    float *q = malloc(n * sizeof(*q)), *want = malloc(n * sizeof(*want));
    backend_config cfg = {.n_threads = 1};
    backend *be;
    ck_assert_int_eq(be_open(&be, &backend_plain, &cfg, NULL), ERR_NONE);
    memcpy(want, a, n * sizeof(*a));
    be_q_gate(be, want, x, N, dim);
    be_close(be);
    for (int isa = ISA_PORTABLE; isa < ISA_COUNT; isa++) {
        if (!stand_in_runs(isa)) continue;
        ck_assert_int_eq(stand_in_open(&be, isa, 2, NULL), ERR_NONE);
        memcpy(b, a, n * sizeof(*a));
        be_q_gate(be, b, x, N, dim);
        be_q_take(be, q, x, N, dim);
        be_close(be);
        for (size_t i = 0; i < n; i++) {
            size_t at = i / (size_t)dim * 2 * (size_t)dim + i % (size_t)dim;
            ck_assert(q[i] == x[at]);
            ck_assert_msg(fabsf(b[i] - want[i]) < 1e-5F, "value %zu: %g for %g", i, (double)b[i],
                          (double)want[i]);
        }
    }
    free(x);
    free(a);
    free(b);
    free(q);
    free(want);
}
END_TEST

/* ---------------------------------------------------------------------------- scan -- */

typedef struct scan_case {
    mixer_shape shape;
    scan_weights w;
} scan_case;

static void scan_run(const world *w, float *out, const float *x, const step *s)
{
    const scan_case *c = w->arg;
    size_t n = (size_t)s->n_rows * (size_t)w->in;
    float *own = malloc(n * sizeof(*own));
    memcpy(own, x, n * sizeof(*own));
    be_scan(w->be, out, own, &c->w, &c->shape, s, LEAD);
    free(own);
}

static const struct {
    int taps, heads, rows, cols, groups;
    scan_rules rules;
} scans[] = {
    {4, 4, 16, 64, 1, {0, INFINITY, true, false, 1e-5F, {1, 1, 1, 1, 1}}},
    {2, 6, 5, 7, 3, {0.3F, 0.9F, true, true, 1e-2F, {1.5F, 0.7F, 1.2F, 0.8F, 1.1F}}},
    {4, 8, 128, 33, 2, {0, INFINITY, false, true, 1e-5F, {0.6F, 1.3F, 0.9F, 1.1F, 0.8F}}},
    {16, 2, 24, 80, 2, {1e-3F, 2, true, false, 1e-5F, {1, 1, 1, 1, 1}}},
};

START_TEST(selective_scans)
{
    scan_case c = {.shape = {.taps = scans[_i].taps,
                             .heads = scans[_i].heads,
                             .rows = scans[_i].rows,
                             .cols = scans[_i].cols,
                             .groups = scans[_i].groups}};
    mixer_shape *sh = &c.shape;
    sh->channels = scan_out(sh) + 2 * sh->groups * sh->rows;
    size_t n = (size_t)sh->channels, heads = (size_t)sh->heads;
    float *taps = random_floats(n * (size_t)sh->taps, 1), *bias = random_floats(n, 1);
    float *decay = random_floats(heads, 2), *dt_bias = random_floats(heads, 2);
    float *skip = random_floats(heads, 1), *norm = random_floats((size_t)scan_out(sh), 1);
    c.w = (scan_weights){{taps, _i % 2 ? NULL : bias}, decay, dt_bias, skip, norm, scans[_i].rules};
    world w = {.in = scan_in(sh),
               .out = scan_out(sh),
               .state = mixer_state_floats(sh),
               .run = scan_run,
               .arg = &c};
    inputs(&w, 2);
    check(&w, 1e-3, "selective scan");
    drop(w.x);
    float *const all[] = {taps, bias, decay, dt_bias, skip, norm};
    for (int i = 0; i < 6; i++) free(all[i]);
}
END_TEST

/* ------------------------------------------------------------------ scan of channels -- */

typedef struct channel_case {
    mixer_shape shape;
    conv_weights conv;
    channel_weights w;
    int first;
} channel_case;

/* Rows of one part of a row of x, one behind the other. */
static float *part_of(const world *w, const float *x, const step *s, int at, int n)
{
    float *out = malloc(((size_t)s->n_rows * (size_t)n + 1) * sizeof(*out));
    for (int row = 0; row < s->n_rows; row++)
        memcpy(out + row * n, x + row * w->in + at, (size_t)n * sizeof(*out));
    return out;
}

/* A row of x is what goes through the convolution, steps, x and gate, and what has B and C. */
static void channel_run(const world *w, float *out, const float *x, const step *s)
{
    const channel_case *c = w->arg;
    int n = c->shape.channels;
    float *conv = part_of(w, x, s, 0, n), *dt = part_of(w, x, s, n, n),
          *in = part_of(w, x, s, 2 * n, 2 * n), *bc = part_of(w, x, s, 4 * n, w->in - 4 * n);
    const channel_rows rows = {.x = conv, .dt = dt, .in = in, .bc = bc, .first = c->first};
    be_silu_conv(w->be, conv, &c->conv, &c->shape, s, LEAD);
    be_scan_channels(w->be, out, &rows, &c->w, &c->shape, s, LEAD);
    ck_assert_int_eq(be_sync(w->be, NULL), ERR_NONE);
    free(conv);
    free(dt);
    free(in);
    free(bc);
}

START_TEST(scans_of_channels)
{
    static const int taps[] = {4, 2, 5}, channels[] = {64, 37, 130}, rows[] = {16, 5, 40};
    channel_case c = {.shape = {.taps = taps[_i],
                                .channels = channels[_i],
                                .heads = 1,
                                .rows = rows[_i],
                                .cols = channels[_i],
                                .groups = 1},
                      .first = 3 * _i};
    size_t n = (size_t)channels[_i], r = (size_t)rows[_i];
    float *const all[] = {random_floats(n * (size_t)taps[_i], 1),
                          random_floats(n, 1),
                          random_floats(n * r, 2),
                          random_floats(n, 1),
                          random_floats(r, 1),
                          random_floats(r, 1)};
    c.conv = (conv_weights){all[0], _i % 2 ? NULL : all[1]};
    c.w = (channel_weights){all[2], all[3], all[4], all[5], 1e-5F};
    world w = {.in = 4 * channels[_i] + c.first + 2 * rows[_i],
               .out = channels[_i],
               .state = mixer_state_floats(&c.shape),
               .run = channel_run,
               .arg = &c};
    inputs(&w, 2);
    check(&w, 1e-3, "scan of channels");
    drop(w.x);
    for (int i = 0; i < 6; i++) free(all[i]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("mixers");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, convolutions, 0, 5);
    tcase_add_loop_test(tc, delta_rules_of_all_forms, 0, 7);
    tcase_add_loop_test(tc, gated_answers, 0, 2);
    tcase_add_loop_test(tc, selective_scans, 0, (int)(sizeof(scans) / sizeof(scans[0])));
    tcase_add_loop_test(tc, scans_of_channels, 0, 3);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
