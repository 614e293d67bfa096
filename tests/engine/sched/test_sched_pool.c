/* test_sched_pool.c -- prompts that are pooled, over a fake model (sched_rig.h): whatever company,
 * chunks, pre-emptions and pages of others, a vector is what its prompt alone gives, to the bit. */
#include "tests/engine/sched/sched_rig.h"
#include "tests/run_suite.h"

static void on_device(void)
{
    device_samples = true;
}

static void ahead(void)
{
    device_samples = device_is_lazy = true;
}

typedef struct {
    client *c;
    pooling pool, want;
} pooled;

/* What its prompt gives when it is read at once. */
static void foretell(pooled *p)
{
    float state[PROMPT][STATE];
    uint64_t h = 1;
    const request *rq = &p->c->rq;
    for (int i = 0; i < rq->n_prompt; i++) {
        h = mix(mix(h, (uint64_t)rq->prompt[i] + 1), rq->adapter_id);
        state_of_hash(h, state[i]);
    }
    int from = pooling_from(&p->want, rq->n_prompt);
    ck_assert(pooling_take(&p->want, state[from], p->want.sum ? rq->n_prompt - from : 1));
    pooling_end(&p->want);
}

static void begin(rig *r, pooled *p, int i)
{
    pooling_kind kind = (pooling_kind)(i % (POOL_MAX + 1));
    p->c = make(i / 2, 1 + (int)(mix(9, (uint64_t)i / 2) % PROMPT), 0);
    vary_who(p->c, i);
    p->c->rq.score_prompt = false;
    ck_assert(pooling_init(&p->pool, kind, STATE, false));
    ck_assert(pooling_init(&p->want, kind, STATE, false));
    p->c->rq.pool = &p->pool;
    foretell(p);
    submit(r, p->c);
    if (i % 13 == 5) request_cancel(&p->c->rq);
}

static void end(pooled *p)
{
    int why = collect(p->c);
    ck_assert_int_eq(p->c->n_got, 0);
    if (why != FINISH_CANCELLED) {
        ck_assert_int_eq(why, FINISH_STOP);
        ck_assert_msg(memcmp(p->pool.vector, p->want.vector, STATE * sizeof(float)) == 0,
                      "kind %d, %d positions, pre-empted %d times: another vector",
                      (int)p->pool.kind, p->c->rq.n_prompt, p->c->rq.times.n_preempted);
        ck_assert_int_eq((int)atomic_load(&p->c->meter.prompt_tokens), p->c->rq.n_prompt);
        ck_assert_int_gt(p->c->rq.times.first_token_us, 0);
    }
    pooling_clear(&p->pool);
    pooling_clear(&p->want);
    drop(p->c);
}

static void vary(client *c, int i)
{
    c->rq.rules.temperature = i % 5 ? 1.0F : 0;
}

START_TEST(any_company_gives_the_same_vectors)
{
    static const setting settings[] = {
        {.max_rows = 64, .max_seqs = 40, .n_pages = 400, .cache = true, .busy = 20},
        {.max_rows = 17, .max_seqs = 9, .n_pages = 22, .cache = true},
        {.max_rows = 1, .max_seqs = 1, .n_pages = 30, .cache = true},
        {.max_rows = 17, .max_seqs = 9, .n_pages = 22, .swap = 800, .preemption = PREEMPT_SWAP},
        {.max_rows = 33,
         .max_seqs = 16,
         .n_pages = 34,
         .cache = true,
         .swap = 800,
         .preemption = PREEMPT_SWAP}};
    enum { N = 60, TEXTS = 40 };
    pooled p[N];
    client *c[TEXTS];
    rig *r = start(&settings[_i]);
    for (int i = 0; i < N / 2; i++) begin(r, &p[i], i);
    send_crowd(r, c, TEXTS, PROMPT / 2, vary);
    for (int i = N / 2; i < N; i++) begin(r, &p[i], i);
    for (int i = 0; i < N; i++) end(&p[i]);
    for (int i = 0; i < TEXTS; i++) {
        (void)collect(c[i]);
        check_tokens(c[i]);
        drop(c[i]);
    }
    sched_stats t = stop(r);
    ck_assert_uint_eq(t.n_finished + t.n_cancelled, N + TEXTS);
    if (settings[_i].n_pages == 22) ck_assert_uint_gt(t.n_preempted, 0);
    if (settings[_i].n_pages == 400) ck_assert_uint_gt(t.n_cached_tokens, 0);
}
END_TEST

/* A prompt of which half was pooled gives way, and begins anew. */
START_TEST(a_position_is_counted_once)
{
    setting st = {.max_rows = 4, .max_seqs = 2, .n_pages = 12};
    if (_i) st.swap = 40;
    if (_i) st.preemption = PREEMPT_SWAP;
    rig *r = start(&st);
    pooled low = {.c = make(3, 40, 0)};
    client *high = make(4, 8, 8);
    ck_assert(pooling_init(&low.pool, POOL_MEAN, STATE, false));
    ck_assert(pooling_init(&low.want, POOL_MEAN, STATE, false));
    low.c->rq.pool = &low.pool;
    low.c->rq.slo_class = 2;
    foretell(&low);
    gate(r, true, 3);
    submit(r, low.c);
    await_step(r, 4);
    submit(r, high);
    gate(r, false, 0);
    finish_well(high);
    int why = collect(low.c);
    ck_assert_int_eq(why, FINISH_STOP);
    ck_assert_int_gt(low.c->rq.times.n_preempted, 0);
    ck_assert_int_eq(low.pool.n_taken, 40);
    ck_assert(memcmp(low.pool.vector, low.want.vector, STATE * sizeof(float)) == 0);
    pooling_clear(&low.pool);
    pooling_clear(&low.want);
    drop(low.c);
    drop(high);
    (void)stop(r);
}
END_TEST

START_TEST(broken_states_fail_one_request)
{
    setting st = {.max_rows = 16, .max_seqs = 4, .n_pages = 60, .cache = true};
    rig *r = start(&st);
    for (int kind = POOL_LAST; kind <= POOL_MAX; kind++) {
        client *c = make(3, 30, 0);
        pooling p;
        ck_assert(pooling_init(&p, (pooling_kind)kind, STATE, false));
        c->prompt[0] = POISON;
        c->rq.pool = &p;
        submit(r, c);
        ck_assert_int_eq(collect(c), FINISH_ERROR);
        ck_assert_int_eq(c->rq.why.code, ERR_INTERNAL);
        pooling_clear(&p);
        drop(c);
    }
    (void)stop(r);
}
END_TEST

/* Neither the model nor an adapter has one; and who has one makes no text. */
START_TEST(heads_of_classes_are_asked_for_by_name)
{
    static const float w[2 * STATE] = {1, 0, 0, 0, 0, 1, 0, 0}, bias[2] = {0.5F, -0.5F};
    static const pooling_head head = {2, STATE, w, bias};
    setting st = {.max_rows = 16, .max_seqs = 4, .n_pages = 60};
    rig *r = start(&st);
    r->view[1].score_head = &head;
    for (uint64_t adapter = 0; adapter < 3; adapter++) {
        client *c = make(3, 30, 0);
        pooling p;
        ck_assert(pooling_init(&p, POOL_LAST, STATE, true));
        c->rq.pool = &p;
        c->rq.adapter_id = adapter;
        submit(r, c);
        ck_assert_int_eq(collect(c), adapter == 2 ? FINISH_STOP : FINISH_ERROR);
        if (adapter == 2) {
            ck_assert_int_eq(p.n_label, 2);
            ck_assert_float_eq(p.label[0], p.vector[0] + 0.5F);
            ck_assert_float_eq(p.label[1], p.vector[1] - 0.5F);
        } else {
            ck_assert_int_eq(c->rq.why.code, ERR_UNSUPPORTED);
        }
        pooling_clear(&p);
        drop(c);
    }
    client *c = make(3, 5, 5);
    c->rq.adapter_id = 2;
    submit(r, c);
    ck_assert_int_eq(collect(c), FINISH_ERROR);
    ck_assert(strstr(c->rq.why.msg, "/v1/classify"));
    drop(c);
    (void)stop(r);
}
END_TEST

static void add_tests(Suite *s, const char *name, void (*before)(void))
{
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 120);
    if (before) tcase_add_checked_fixture(tc, before, NULL);
    tcase_add_loop_test(tc, any_company_gives_the_same_vectors, 0, 5);
    tcase_add_loop_test(tc, a_position_is_counted_once, 0, 2);
    tcase_add_test(tc, broken_states_fail_one_request);
    tcase_add_test(tc, heads_of_classes_are_asked_for_by_name);
    suite_add_tcase(s, tc);
}

int main(void)
{
    Suite *s = suite_create("sched_pool");
    add_tests(s, "host", NULL);
    add_tests(s, "device", on_device);
    add_tests(s, "ahead", ahead);
    return run_suite(s);
}
