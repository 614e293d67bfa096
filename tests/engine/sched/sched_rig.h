/* sched_rig.h -- the engine thread over a fake model, for test_sched.c, test_speculation.c and
 * others.
 *
 * The fake keeps, for each position of each page, which token of which adapter was put there, and
 * makes a row's logits from a hash of what it reads back through the block table.  So a wrong page,
 * row, position, segment or cache hit shows as a wrong token.  What is right is computed here, from
 * the history alone.  A gate lets a test hold the engine inside a step, so no test depends on time.
 *
 * Because model_forward() and its companions are defined here, the library's model is not linked;
 * the same holds for grammars.
 */
#ifndef TESTS_SCHED_RIG_H
#define TESTS_SCHED_RIG_H

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <check.h>

#include "engine/backend_ops.h"
#include "engine/base/clock.h"
#include "engine/grammar/grammar.h"
#include "engine/sched/sched.h"

enum { VOCAB = 64, PT = 4, MAX_NEW = 24, PROMPT = 60, POISON = 63, STOP = 9, ADAPTERS = 5 };

/* ------------------------------------------------------------------- the fake -- */

typedef struct {
    int32_t token, pos;
    uint64_t adapter;
} cell;

typedef struct {
    kv_pool head;
    cell *cells; /* [n_pages][PT] */
} fake_kv;

enum { STATE = 4 }; /* values of a hidden state */
enum { LAZY_ROWS = 256, LAZY_SEQS = 64, LAZY_PAGES = 64 };

/* A step that was enqueued: all of what it was given, copied. */
typedef struct {
    kv_pool *pool;
    step st;
    int32_t token[LAZY_ROWS], pos[LAZY_ROWS], logit_row[LAZY_ROWS], from[LAZY_ROWS];
    int32_t page[LAZY_SEQS][LAZY_PAGES];
    step_seq seq[LAZY_SEQS];
    step_seg seg[LAZY_SEQS];
    sample_row row[LAZY_ROWS];
    sampling rules[LAZY_ROWS];
    int32_t output[LAZY_ROWS][MAX_NEW + 1];
    int n_sample;
    const sampled *made; /* of the last be_sample() before it: what `from` counts */
    sampled out[LAZY_ROWS];
} lazy_step;

struct model {
    model_config cfg;
    float logits[256 * VOCAB];
    kv_pool *last_pool; /* of the last step: its hidden states can be asked for */
    const step *last;
    int fail;             /* so many of the next steps break the device */
    int refuse, unloaded; /* so many of the next reloads fail; is it unloaded? */
    pthread_mutex_t mu;
    pthread_cond_t change;
    int step_us, row_us; /* what each step takes, and each of its rows */
    uint64_t salt;       /* 0, or it says something else */
    bool gated;          /* a step needs a permit */
    int permits, begun;

    /* a device that computes nothing before somebody waits for it */
    lazy_step lazy[4]; /* by turns */
    int n_enqueued, n_marked, n_done;
    int n_ahead;    /* steps enqueued while another was not over */
    int most_ahead; /* how many were enqueued and not over at once */
    const sampled *made;
};

static bool device_is_lazy; /* with device_samples: it can run ahead */
static bool text_repeats;   /* most tokens hang on the last one alone, so that texts come again */
static model *lazy_model;

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0xD6E8FEB86659FD93ULL;
    return h ^ (h >> 32);
}

static void logits_of_hash(uint64_t h, float *out)
{
    for (int v = 0; v < VOCAB; v++) {
        out[v] = (float)(mix(h, (uint64_t)v + 1) % 8192) / 1024.0F - (v == POISON ? 100.0F : 0);
    }
}

/* Of what stands before, all of which h knows. */
static uint64_t next_hash(uint64_t h, int32_t last, uint64_t adapter)
{
    bool plain = text_repeats && mix(h, 3) % 8 > 0;
    return mix(plain ? (uint64_t)last + 1 : h, adapter);
}

int model_logit_stride(const model *m)
{
    return m->cfg.n_vocab;
}

const model_config *model_get_config(const model *m)
{
    return &m->cfg;
}

/* A form whose masks, all of them wide open, come when the test says so. */
struct grammar_run {
    atomic_bool ready;
    atomic_int asked; /* and not answered */
    int at_hand;      /* so many masks in a row come at once, then one does not */
    int taken;        /* tokens */
    uint32_t mask[VOCAB / 32];
};

const uint32_t *grammar_run_mask(grammar_run *g, grammar_walk *w)
{
    (void)w;
    if (atomic_load(&g->ready)) return g->mask;
    atomic_fetch_add(&g->asked, 1);
    return NULL;
}

bool grammar_run_ready(const grammar_run *g)
{
    return atomic_load(&g->ready);
}

bool grammar_run_still(const grammar_run *g)
{
    return atomic_load(&g->ready);
}

/* No beam search runs here. */
void grammar_run_copy(grammar_run *to, const grammar_run *from)
{
    ck_assert_ptr_eq(to, from);
}

void grammar_run_accept(grammar_run *g, grammar_walk *w, int32_t token)
{
    (void)w;
    (void)token;
    g->taken++;
    atomic_store(&g->ready, g->taken % (g->at_hand + 1) != 0); /* else the next one comes late */
}

void grammar_run_expect(const grammar_run *g, grammar_walk *w, int32_t last, grammar_guess *out)
{
    (void)g;
    (void)w;
    out->only = (last + 1) % VOCAB;
    if (out->n > 0 && out->chance[0] > out->sure) return;
    for (out->n = 0; out->n < 2 && out->n < out->most; out->n++) {
        out->token[out->n] = (last + 1 + out->n) % VOCAB;
        out->chance[out->n] = out->sure;
    }
}

bool grammar_run_over(const grammar_run *g)
{
    (void)g;
    return false;
}

bool grammar_run_failed(const grammar_run *g)
{
    (void)g;
    return false;
}

bool grammar_run_starved(const grammar_run *g)
{
    (void)g;
    return false;
}

grammar_walk *grammar_walk_create(void)
{
    return calloc(1, 1);
}

void grammar_walk_destroy(grammar_walk *w)
{
    free(w);
}

attn_shape model_attn_shape(const model *m)
{
    (void)m;
    return (attn_shape){.n_layer = 1, .n_head = 1, .n_kv_head = 1, .head_dim = 8, .scale = 1};
}

static cell *cell_at(fake_kv *kv, const step_seq *s, int pos)
{
    ck_assert_int_lt(pos / PT, s->n_page);
    int page = s->page[pos / PT];
    ck_assert(page >= 0 && page < kv->head.n_pages);
    return &kv->cells[(size_t)page * PT + (size_t)(pos % PT)];
}

static void answer_row(fake_kv *kv, const step_seq *s, int pos, uint64_t adapter, uint64_t salt,
                       float *out)
{
    uint64_t h = 1;
    bool poisoned = false;
    for (int p = 0; p <= pos; p++) {
        const cell *c = cell_at(kv, s, p);
        h = mix(mix(h, (uint64_t)c->token + 1), c->pos == p ? c->adapter : 999);
        poisoned |= c->token == POISON;
    }
    uint64_t next = next_hash(h, cell_at(kv, s, pos)->token, adapter);
    logits_of_hash(salt ? mix(next, salt) : next, out);
    if (poisoned) out[17] = NAN;
}

static void wait_at_gate(model *m)
{
    pthread_mutex_lock(&m->mu);
    m->begun++;
    pthread_cond_broadcast(&m->change);
    while (m->gated && m->permits == 0) pthread_cond_wait(&m->change, &m->mu);
    if (m->gated) m->permits--;
    pthread_mutex_unlock(&m->mu);
}

#ifdef RIG_CLOCK /* a test with a clock of its own */
static void nap(int us)
{
    RIG_CLOCK(us);
}
#else
static void nap(int us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000L};
    if (us > 0) (void)nanosleep(&t, NULL);
}
#endif

static err_code compute(model *m, kv_pool *pool, const step *st, err *e)
{
    fake_kv *kv = (fake_kv *)pool;
    int row = 0, seg = 0, logit = 0;
    wait_at_gate(m);
    ck_assert(!m->unloaded);
    if (m->fail > 0) {
        m->fail--;
        return err_set(e, ERR_DEVICE, "the fake device broke");
    }
    nap(m->step_us + st->n_rows * m->row_us);
    for (int i = 0; i < st->n_seq; i++) {
        const step_seq *s = &st->seq[i];
        ck_assert_int_eq(s->row0, row);
        while (row >= st->seg[seg].row0 + st->seg[seg].n_rows) seg++;
        uint64_t adapter = st->seg[seg].lora ? st->seg[seg].lora->adapter_id : 0;
        for (int k = 0; k < s->n_rows; k++, row++) {
            ck_assert_int_eq(st->pos[row], s->pos0 + k);
            *cell_at(kv, s, s->pos0 + k) = (cell){st->token[row], st->pos[row], adapter};
            if (logit < st->n_logit && st->logit_row[logit] == row) {
                answer_row(kv, s, s->pos0 + k, adapter, m->salt,
                           m->logits + (size_t)logit++ * (size_t)m->cfg.n_vocab);
            }
        }
    }
    for (int i = 1; i < st->n_seg; i++) { /* one segment for each adapter */
        for (int j = 0; j < i; j++) ck_assert_ptr_ne(st->seg[i].lora, st->seg[j].lora);
    }
    ck_assert_int_eq(row, st->n_rows);
    ck_assert_int_eq(logit, st->n_logit);
    return ERR_NONE;
}

err_code model_forward(model *m, kv_pool *pool, const step *st, const float **out, err *e)
{
    *out = m->logits;
    m->last_pool = pool;
    m->last = st;
    return compute(m, pool, st, e);
}

/* What the positions up to `pos` say; h as answer_row() has it. */
static void state_of_hash(uint64_t h, float out[STATE])
{
    for (int k = 0; k < STATE; k++) out[k] = (float)(mix(h, (uint64_t)k + 77) % 4096) / 512 - 4;
}

static void lazy_drain(backend *be, int n);
static backend *lazy_backend;

err_code model_take_states(model *m, int row0, int n, const lora_view *view, float *out, err *e)
{
    (void)e;
    ck_assert(m->last && row0 >= 0 && row0 + n <= m->last->n_rows);
    if (device_is_lazy) lazy_drain(lazy_backend, m->n_enqueued);
    for (int i = 0; i < n; i++) {
        int row = row0 + i, s = 0;
        while (row >= m->last->seq[s].row0 + m->last->seq[s].n_rows) s++;
        const step_seq *q = &m->last->seq[s];
        int g = 0;
        while (row >= m->last->seg[g].row0 + m->last->seg[g].n_rows) g++;
        ck_assert_ptr_eq(m->last->seg[g].lora, view);
        uint64_t h = 1;
        bool poisoned = false;
        for (int p = 0; p <= q->pos0 + row - q->row0; p++) {
            const cell *c = cell_at((fake_kv *)m->last_pool, q, p);
            h = mix(mix(h, (uint64_t)c->token + 1), c->pos == p ? c->adapter : 999);
            poisoned |= c->token == POISON;
        }
        state_of_hash(h, out + (size_t)i * STATE);
        if (poisoned) out[(size_t)i * STATE + 1] = NAN;
    }
    return ERR_NONE;
}

const pooling_head *model_score_head(const model *m)
{
    (void)m;
    return NULL;
}

void model_unload(model *m)
{
    m->unloaded = true;
    m->n_done = m->n_enqueued; /* what was enqueued is lost */
}

err_code model_reload(model *m, err *e)
{
    ck_assert(m->unloaded);
    if (m->refuse > 0) {
        m->refuse--;
        return err_set(e, ERR_DEVICE, "the fake device stays broken");
    }
    m->unloaded = false;
    return ERR_NONE;
}

static void pick(model *m, const sample_row *rows, int n, sampled *out)
{
    sampler *sp = sampler_create(VOCAB);
    for (int i = 0; i < n; i++) {
        const sample_row *r = &rows[i];
        float *row = m->logits + (size_t)r->logit * VOCAB;
        for (int j = 0; j < i; j++) ck_assert_int_ne(rows[j].logit, r->logit);
        if (r->score >= 0)
            sampler_score(sp, row, r->score, r->n_top, &out[i]);
        else
            sampler_pick(sp, row, r->rules, r->allowed, r->prompt, r->n_prompt, r->output,
                         r->n_output, &out[i]);
    }
    sampler_destroy(sp);
}

#define LAZY_COPY(to, from, n) memcpy((to), (from), (size_t)(n) * sizeof(*(to)))

static void lazy_enqueue(model *m, kv_pool *pool, const step *st)
{
    lazy_step *w = &m->lazy[m->n_enqueued % 4];
    int waiting = m->n_enqueued - m->n_done;
    ck_assert_int_le(waiting, 1);
    m->n_ahead += waiting;
    m->n_enqueued++;
    if (waiting + 1 > m->most_ahead) m->most_ahead = waiting + 1;
    ck_assert(st->n_rows <= LAZY_ROWS && st->n_seq <= LAZY_SEQS);
    w->pool = pool;
    w->st = *st;
    w->n_sample = 0;
    w->made = m->made;
    LAZY_COPY(w->token, st->token, st->n_rows);
    LAZY_COPY(w->pos, st->pos, st->n_rows);
    LAZY_COPY(w->logit_row, st->logit_row, st->n_logit);
    LAZY_COPY(w->seq, st->seq, st->n_seq);
    LAZY_COPY(w->seg, st->seg, st->n_seg);
    if (st->from) LAZY_COPY(w->from, st->from, st->n_rows);
    for (int i = 0; i < st->n_seq; i++) {
        ck_assert_int_le(st->seq[i].n_page, LAZY_PAGES);
        LAZY_COPY(w->page[i], st->seq[i].page, st->seq[i].n_page);
        w->seq[i].page = w->page[i];
    }
    w->st.token = w->token;
    w->st.pos = w->pos;
    w->st.logit_row = w->logit_row;
    w->st.seq = w->seq;
    w->st.seg = w->seg;
}

static void lazy_run(model *m, lazy_step *w, err *e)
{
    if (e->code) return;
    for (int i = 0; w->st.from && i < w->st.n_rows; i++) {
        if (w->from[i] >= 0) w->token[i] = w->made[w->from[i]].token;
    }
    if (compute(m, w->pool, &w->st, e)) return;
    pick(m, w->row, w->n_sample, w->out);
}

/* The steps before the n-th. */
static void lazy_drain(backend *be, int n)
{
    model *m = lazy_model;
    err e = {0};
    while (m->n_done < n) {
        lazy_run(m, &m->lazy[m->n_done % 4], &e);
        m->n_done++;
    }
    if (e.code) backend_fail(be, e.code, "%s", e.msg);
}

static int lazy_mark(backend *be)
{
    (void)be;
    return lazy_model->n_enqueued;
}

static void lazy_await(backend *be, int mark)
{
    lazy_drain(be, mark);
}

err_code model_enqueue(model *m, kv_pool *pool, const step *st, err *e)
{
    m->last_pool = pool;
    m->last = st;
    if (!device_is_lazy) return compute(m, pool, st, e);
    lazy_enqueue(m, pool, st);
    m->last = &m->lazy[(m->n_enqueued - 1) % 4].st;
    return ERR_NONE;
}

const sampled *model_sample(model *m, const sample_row *rows, int n)
{
    static sampled out[256];
    if (!device_is_lazy) {
        pick(m, rows, n, out);
        return out;
    }
    lazy_step *w = &m->lazy[(m->n_enqueued - 1) % 4];
    w->n_sample = n;
    for (int i = 0; i < n; i++) {
        w->row[i] = rows[i];
        w->rules[i] = *rows[i].rules;
        w->row[i].rules = &w->rules[i];
        LAZY_COPY(w->output[i], rows[i].output, rows[i].n_output);
        w->row[i].output = w->output[i];
        w->out[i].token = -7; /* nobody has waited */
    }
    m->made = w->out;
    return w->out;
}

/* Its presence says that the backend samples; model_sample() above stands for the way there. */
static const sampled *fake_sample(backend *be, float *logits, int n_vocab, const sample_row *rows,
                                  int n)
{
    (void)be;
    (void)logits;
    (void)n_vocab;
    (void)rows;
    (void)n;
    return NULL;
}

static err_code fake_open(backend *be, const backend_config *cfg, err *e)
{
    (void)cfg;
    (void)e;
    be->caps = (backend_caps){.name = "fake", .page_tokens = PT, .kv_types = 1U << DT_F32};
    return ERR_NONE;
}

static void fake_close(backend *be)
{
    (void)be;
}

static size_t fake_page_bytes(const backend *be, const attn_shape *s)
{
    (void)be;
    (void)s;
    return PT * sizeof(cell);
}

static err_code fake_kv_create(backend *be, kv_pool **out, const attn_shape *s, int n, err *e)
{
    (void)be;
    (void)e;
    fake_kv *kv = calloc(1, sizeof(*kv));
    kv->head = (kv_pool){*s, n, PT};
    kv->cells = calloc((size_t)n * PT, sizeof(*kv->cells));
    *out = &kv->head;
    return ERR_NONE;
}

static void fake_kv_destroy(backend *be, kv_pool *kv)
{
    (void)be;
    free(((fake_kv *)kv)->cells);
    free(kv);
}

static int copy_us; /* what copying a page takes */

static void fake_kv_save(backend *be, const kv_pool *kv, int page, void *host)
{
    if (device_is_lazy) lazy_drain(be, lazy_model->n_enqueued);
    nap(copy_us);
    memcpy(host, ((const fake_kv *)kv)->cells + (size_t)page * PT, PT * sizeof(cell));
}

static void fake_kv_load(backend *be, kv_pool *kv, int page, const void *host)
{
    if (device_is_lazy) lazy_drain(be, lazy_model->n_enqueued);
    nap(copy_us);
    memcpy(((fake_kv *)kv)->cells + (size_t)page * PT, host, PT * sizeof(cell));
}

static void fake_kv_copy(backend *be, kv_pool *kv, int from, int to)
{
    cell *cells = ((fake_kv *)kv)->cells;
    if (device_is_lazy) lazy_drain(be, lazy_model->n_enqueued);
    memcpy(cells + (size_t)to * PT, cells + (size_t)from * PT, PT * sizeof(cell));
}

static void fake_sync(backend *be)
{
    if (device_is_lazy) lazy_drain(be, lazy_model->n_enqueued);
}

static void fake_parallel(backend *be, void (*fn)(void *arg, int i), void *arg, int n)
{
    (void)be;
    for (int i = n - 1; i >= 0; i--) fn(arg, i);
}

static bool device_samples; /* the backend does */

static backend_ops fake_ops = {.name = "fake",
                               .open = fake_open,
                               .close = fake_close,
                               .sync = fake_sync,
                               .kv_page_bytes = fake_page_bytes,
                               .kv_create = fake_kv_create,
                               .kv_destroy = fake_kv_destroy,
                               .kv_save = fake_kv_save,
                               .kv_load = fake_kv_load,
                               .kv_copy = fake_kv_copy,
                               .parallel = fake_parallel};

/* -------------------------------------------------------------------- the rig -- */

typedef struct {
    int max_rows, max_seqs, n_pages, max_queued;
    bool cache;
    int busy;        /* adapters answer ERR_BUSY so many times */
    int swap;        /* pages of room */
    int64_t ttft_us; /* target of class 0, which then rejects on overload */
    preemption preemption;
    bool no_overlap;
    int speculate; /* so many guesses, whatever they cost ... */
    bool by_price; /* ... or as many of them as pay */
    enum { DRAFT_NONE, DRAFT_SAME, DRAFT_OTHER } draft; /* which says the same, or not */
    int draft_vocab;                                    /* 0: as many as the other */
} setting;

typedef struct {
    backend *be;
    model m, draft;
    lora_view view[ADAPTERS];
    int acquired, busy;
    int busy_us;         /* what such an answer takes */
    int chunks;          /* pages that each adapter takes of the device */
    atomic_llong eta_us; /* of adapters that are not there; 0: all are */
    bool suspended;
    lora_source source;
    sched *sc;
} rig;

static err_code acquire(void *self, uint64_t id, const lora_view **out, err *e)
{
    rig *r = self;
    if (r->busy > 0) {
        r->busy--;
        nap(r->busy_us);
        return err_set(e, ERR_BUSY, "loading");
    }
    ck_assert(!r->suspended);
    if (id > ADAPTERS) return err_set(e, ERR_CORRUPT, "broken");
    r->acquired++;
    *out = &r->view[id - 1];
    return ERR_NONE;
}

static void release(void *self, const lora_view *v)
{
    (void)v;
    ((rig *)self)->acquired--;
}

static void suspend(void *self)
{
    rig *r = self;
    ck_assert_int_eq(r->acquired, 0);
    ck_assert(!r->suspended);
    r->suspended = true;
}

static void resume(void *self)
{
    rig *r = self;
    ck_assert(r->suspended && !r->m.unloaded);
    r->suspended = false;
}

static int chunks(void *self, const lora_view *v)
{
    (void)v;
    return ((const rig *)self)->chunks;
}

static int64_t eta(void *self, uint64_t id, int64_t deadline_us)
{
    (void)id;
    (void)deadline_us;
    return atomic_load(&((rig *)self)->eta_us);
}

static rig *start(const setting *st)
{
    fake_ops.sample = device_samples ? fake_sample : NULL;
    fake_ops.mark = device_is_lazy ? lazy_mark : NULL;
    fake_ops.await = device_is_lazy ? lazy_await : NULL;
    rig *r = calloc(1, sizeof(*r));
    lazy_model = &r->m;
    backend_config bc = {0};
    err e;
    ck_assert_int_eq(be_open(&r->be, &fake_ops, &bc, &e), ERR_NONE);
    lazy_backend = r->be;
    for (model *m = &r->m; m; m = m == &r->m ? &r->draft : NULL) {
        m->cfg = (model_config){.n_vocab = VOCAB, .dim = STATE, .max_pos = 512};
        pthread_mutex_init(&m->mu, NULL);
        pthread_cond_init(&m->change, NULL);
    }
    r->draft.salt = st->draft == DRAFT_OTHER;
    if (st->draft_vocab) r->draft.cfg.n_vocab = st->draft_vocab;
    for (int i = 0; i < ADAPTERS; i++) {
        r->view[i].adapter_id = (uint64_t)i + 1;
        r->view[i].digest[3] = (uint8_t)(i + 1);
    }
    r->busy = st->busy;
    r->source = (lora_source){.self = r,
                              .acquire = acquire,
                              .release = release,
                              .chunks = chunks,
                              .eta = eta,
                              .suspend = suspend,
                              .resume = resume};
    sched_config c = {
        .max_rows = st->max_rows,
        .max_seqs = st->max_seqs,
        .max_queued = st->max_queued ? st->max_queued : 100,
        .max_context = 128,
        .max_logits = st->max_seqs + SCHED_SCORE_ROWS,
        .kv_bytes = (size_t)st->n_pages * PT * sizeof(cell),
        .swap_bytes = (size_t)st->swap * PT * sizeof(cell),
        .preemption = st->preemption,
        .ageing_us = 3600LL * 1000000,
        .restart_wait_us = 1000,
        .prefix_cache = st->cache,
        .no_overlap = st->no_overlap,
        .speculate = st->speculate,
        .speculate_always = !st->by_price,
        .draft = st->draft ? &r->draft : NULL,
        .n_class = 3,
        .classes = {{.rank = 0, .ttft_us = st->ttft_us, .reject_on_overload = st->ttft_us > 0},
                    {.rank = 1},
                    {.rank = 2}}};
    ck_assert_msg(sched_create(&r->sc, &c, &r->m, r->be, &r->source, &e) == ERR_NONE, "%s", e.msg);
    return r;
}

static sched_stats stop(rig *r)
{
    sched_stats t;
    do { /* the counts follow the last event */
        sched_stats_get(r->sc, &t);
    } while (t.healthy && (t.n_running || t.n_waiting || t.n_pages_used));
    sched_destroy(r->sc);
    ck_assert_int_eq(r->acquired, 0);
    for (model *m = &r->m; m; m = m == &r->m ? &r->draft : NULL) {
        pthread_cond_destroy(&m->change);
        pthread_mutex_destroy(&m->mu);
    }
    be_close(r->be);
    free(r);
    return t;
}

static void gate(rig *r, bool closed, int permits)
{
    pthread_mutex_lock(&r->m.mu);
    r->m.gated = closed;
    r->m.permits = permits;
    pthread_cond_broadcast(&r->m.change);
    pthread_mutex_unlock(&r->m.mu);
}

/* Until the engine has begun step `n` (counted from 1) and stands at the gate. */
static void await_step(rig *r, int n)
{
    pthread_mutex_lock(&r->m.mu);
    while (r->m.begun < n) pthread_cond_wait(&r->m.change, &r->m.mu);
    pthread_mutex_unlock(&r->m.mu);
}

/* ---------------------------------------------------------------- the clients -- */

typedef struct {
    request rq;
    meter meter;
    request_signal sg;
    int32_t prompt[PROMPT];
    int32_t got[MAX_NEW + 1];
    int n_got;
    bars *bars; /* owned; NULL: none */
} client;

/* A greedy request of class 0, tenant 1, on the base, with a prompt of its own. */
static client *make(int id, int n_prompt, int max_tokens)
{
    client *c = calloc(1, sizeof(*c));
    request_init(&c->rq);
    request_signal_init(&c->sg);
    for (int i = 0; i < n_prompt; i++) {
        c->prompt[i] = (int32_t)(mix((uint64_t)id, (uint64_t)i) % (VOCAB - 1));
    }
    c->rq.prompt = c->prompt;
    c->rq.n_prompt = n_prompt;
    c->rq.max_tokens = max_tokens;
    c->rq.tenant_id = c->rq.isolation = 1;
    c->rq.arrived_us = clock_now_us();
    c->rq.meter = &c->meter;
    c->rq.signal = &c->sg;
    c->rq.rules.temperature = 0;
    return c;
}

static void submit(rig *r, client *c)
{
    err e;
    if (!c->rq.out.token) ck_assert_int_eq(request_prepare(&c->rq, NULL), ERR_NONE);
    ck_assert_msg(sched_submit(r->sc, &c->rq, &e) == ERR_NONE, "%s", e.msg);
}

static int collect(client *c)
{
    uint64_t seen = 0;
    bool done = false;
    sampled t;
    while (!done) {
        while (request_next(&c->rq, &t, &done)) c->got[c->n_got++] = t.token;
        if (!done) (void)request_signal_wait(&c->sg, &seen, 1000);
    }
    ck_assert_int_eq((int)atomic_load(&c->meter.output_tokens), c->n_got);
    return atomic_load(&c->rq.finish);
}

static void drop(client *c)
{
    request_clear(&c->rq);
    request_signal_clear(&c->sg);
    bars_destroy(c->bars);
    free(c);
}

/* Some tokens never come; with `reads`, some not behind others. */
static void bar(client *c, bool reads)
{
    int32_t one = 3, two[2] = {0, 7};
    c->rq.bars = c->bars = bars_create(VOCAB, NULL, 0);
    ck_assert(bars_forbid(c->bars, &one, 1, true));
    for (; reads && two[0] < VOCAB; two[0]++) ck_assert(bars_forbid(c->bars, two, 2, two[0] % 2));
}

/* Whose it is, how it begins and what it must not say, different for each i. */
static void vary_who(client *c, int i)
{
    for (int k = 0; i % 3 == 0 && k < c->rq.n_prompt && k < 20; k++) c->prompt[k] = k % 7;
    c->rq.tenant_id = (uint64_t)(i % 4);
    c->rq.isolation = (uint64_t)(i % 4 / 2);
    c->rq.adapter_id = (uint64_t)(i % (ADAPTERS + 1));
    c->rq.slo_class = i % 3;
    c->rq.rules.seed = (uint64_t)i;
    c->rq.score_prompt = i % 11 == 5;
    if (i % 6 == 2) bar(c, i % 4 == 0);
}

/* n different requests, some of which are cancelled soon. */
static inline void send_crowd(rig *r, client **c, int n, int longest,
                              void (*vary)(client *c, int i))
{
    for (int i = 0; i < n; i++) {
        c[i] = make(i, 1 + (int)(mix(7, (uint64_t)i) % (uint64_t)longest),
                    1 + (int)(mix(8, (uint64_t)i) % MAX_NEW));
        vary_who(c[i], i);
        vary(c[i], i);
        submit(r, c[i]);
        if (i % 6 == 4) request_cancel(&c[i / 2]->rq);
    }
}

/* What this request must give, from its history alone. */
static void check_tokens(const client *c)
{
    int32_t out[MAX_NEW + 1], token = 0;
    float logits[VOCAB];
    sampler *sp = sampler_create(VOCAB);
    sampled t;
    for (int i = 0; i < c->n_got; i++) {
        uint64_t h = 1;
        for (int p = 0; p < c->rq.n_prompt + i; p++) {
            token = p < c->rq.n_prompt ? c->prompt[p] : out[p - c->rq.n_prompt];
            h = mix(mix(h, (uint64_t)token + 1), c->rq.adapter_id);
        }
        logits_of_hash(next_hash(h, token, c->rq.adapter_id), logits);
        bars_text text = {c->prompt, out, c->rq.n_prompt, i};
        uint32_t room[VOCAB / 32];
        const uint32_t *mask = c->bars ? bars_mask(c->bars, NULL, 0, &text, room) : NULL;
        sampler_pick(sp, logits, &c->rq.rules, mask, c->prompt, c->rq.n_prompt, out, i, &t);
        out[i] = t.token;
        ck_assert_msg(out[i] == c->got[i], "token %d is %d, not %d (pre-empted %d times)", i,
                      (int)c->got[i], (int)out[i], c->rq.times.n_preempted);
        ck_assert_msg(!c->rq.out.ring || memcmp(&c->rq.out.ring[i], &t, sizeof(t)) == 0,
                      "token %d is the same, and its log-probabilities are not", i);
    }
    sampler_destroy(sp);
}

static void finish_well(client *c)
{
    ck_assert_int_eq(collect(c), FINISH_LENGTH);
    ck_assert_int_eq(c->n_got, c->rq.max_tokens);
    check_tokens(c);
    ck_assert_int_eq((int)atomic_load(&c->meter.prompt_tokens), c->rq.n_prompt);
}

#endif
