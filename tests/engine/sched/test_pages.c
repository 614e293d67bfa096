/* test_pages.c -- a request that one engine let go of goes on in another, with its keys and
 * values. */
#include "engine/sched/sched_inside.h"
#include "tests/engine/sched/sched_rig.h"
#include "tests/run_suite.h"

enum { LONG = 44, SOON = 60000000 };

static int64_t soon(void)
{
    return clock_now_us() + SOON;
}

/* The text so far of a request that no engine has. */
static sched_text text_of(const client *c, int32_t room[PROMPT + MAX_NEW])
{
    sched_text t = {.token = room, .n_token = c->rq.n_prompt + c->n_got};
    memcpy(room, c->prompt, (size_t)c->rq.n_prompt * sizeof(*room));
    memcpy(room + c->rq.n_prompt, c->got, (size_t)c->n_got * sizeof(*room));
    t.domain.isolation = c->rq.isolation;
    if (c->rq.adapter_id) t.domain.digest[3] = (uint8_t)c->rq.adapter_id;
    return t;
}

/* Runs for some steps in `r`, which lets go of it then. */
static client *begin_in(rig *r)
{
    client *c = make(3, LONG, MAX_NEW);
    c->rq.adapter_id = 2;
    gate(r, true, 0);
    submit(r, c);
    gate(r, true, 6);
    await_step(r, 7);
    request_leave(&c->rq);
    gate(r, false, 0);
    ck_assert_int_eq(collect(c), FINISH_LEFT);
    ck_assert_int_ge(c->n_got, 6);
    return c;
}

/* As many as are asked for in pieces of three; returns how many came. */
static int carry(rig *from, rig *to, const sched_text *t, int n)
{
    err e;
    int at = 0, put = 1;
    size_t bytes = sched_page_bytes(from->sc);
    while (at < n && put > 0) {
        int want = n - at < 3 ? n - at : 3, got;
        unsigned char *data =
            malloc((size_t)want * bytes); /* its end is where a sanitizer sees it */
        ck_assert_int_eq(sched_pages_save(from->sc, t, at, want, data, soon(), &got, &e), ERR_NONE);
        ck_assert_int_eq(got, want);
        ck_assert_int_eq(sched_pages_load(to->sc, t, at, want, data, soon(), &put, &e), ERR_NONE);
        at += put;
        free(data);
    }
    return at;
}

static int have_in(rig *r, const sched_text *t)
{
    err e;
    int n;
    double us;
    ck_assert_int_eq(sched_pages_look(r->sc, t, 0, soon(), &n, &us, &e), ERR_NONE);
    return n;
}

static void go_on_in(rig *r, client *c)
{
    request_go_on(&c->rq);
    submit(r, c);
    finish_well(c);
    drop(c);
}

/* _i 0: all of its pages come, 1: some, 2: none. */
START_TEST(it_computes_what_has_not_come)
{
    setting st = {.max_rows = 64, .max_seqs = 4, .n_pages = 100, .cache = true};
    int32_t room[PROMPT + MAX_NEW];
    rig *a = start(&st), *b = start(&st);
    client *c = begin_in(a);
    sched_text t = text_of(c, room);
    int all = sched_text_pages(a->sc, &t), n = _i == 0 ? all : _i == 1 ? 5 : 0;
    ck_assert_int_eq(all, (t.n_token - 1) / PT);
    ck_assert_int_eq(have_in(a, &t), all);
    ck_assert_int_eq(have_in(b, &t), 0);
    ck_assert_int_eq(carry(a, b, &t, n), n);
    ck_assert_int_eq(have_in(b, &t), n);
    int left = t.n_token - n * PT;
    (void)stop(a);
    go_on_in(b, c);
    sched_stats s = stop(b);
    ck_assert_int_eq((int)s.n_prefill_tokens, left > 1 ? left : 0);
}
END_TEST

/* What is another's, or of another adapter, is not found, and what came for one serves no other. */
START_TEST(pages_are_those_of_their_domain)
{
    setting st = {.max_rows = 64, .max_seqs = 4, .n_pages = 100, .cache = true};
    int32_t room[PROMPT + MAX_NEW];
    rig *a = start(&st), *b = start(&st);
    client *c = begin_in(a);
    unsigned char page[PT * sizeof(cell)];
    err e;
    sched_text t = text_of(c, room), other[3] = {t, t, t};
    other[0].domain.isolation++;
    other[1].domain.digest[3]++;
    other[2].domain.from = 1;
    ck_assert_int_eq(carry(a, b, &t, 4), 4);
    for (int i = 0; i < 3; i++) {
        int got = -1;
        ck_assert_int_eq(sched_pages_save(a->sc, &other[i], 0, 1, page, soon(), &got, &e),
                         ERR_NONE);
        ck_assert_int_eq(got, 0);
        ck_assert_int_eq(have_in(b, &other[i]), 0);
    }
    (void)stop(a);
    go_on_in(b, c);
    (void)stop(b);
}
END_TEST

/* As many come as there are pages, and none is put behind one that is not there. */
START_TEST(there_is_no_room)
{
    setting st = {.max_rows = 64, .max_seqs = 4, .n_pages = 100, .cache = true}, few = st;
    few.n_pages = 5;
    int32_t room[PROMPT + MAX_NEW];
    rig *a = start(&st), *b = start(&few);
    client *c = begin_in(a);
    sched_text t = text_of(c, room);
    unsigned char page[PT * sizeof(cell)];
    err e;
    int n = -1;
    ck_assert_int_eq(sched_pages_save(a->sc, &t, 2, 1, page, soon(), &n, &e), ERR_NONE);
    ck_assert_int_eq(sched_pages_load(b->sc, &t, 2, 1, page, soon(), &n, &e), ERR_NONE);
    ck_assert_int_eq(n, 0);
    ck_assert_int_eq(have_in(b, &t), 0);
    ck_assert_int_eq(carry(a, b, &t, sched_text_pages(a->sc, &t)), 5);
    ck_assert_int_eq(have_in(b, &t), 5);
    (void)stop(b);
    go_on_in(a, c);
    (void)stop(a);
}
END_TEST

START_TEST(nobody_waits_for_ever)
{
    setting st = {.max_rows = 64, .max_seqs = 4, .n_pages = 100}, cached = st;
    cached.cache = true;
    static const int32_t token[9];
    sched_text t = {.token = token, .n_token = 9};
    unsigned char page[PT * sizeof(cell)] = {0};
    err e;
    int n;
    double us;
    rig *a = start(&st), *b = start(&cached);
    ck_assert_int_eq(sched_pages_look(a->sc, &t, 0, soon(), &n, &us, &e), ERR_UNSUPPORTED);
    ck_assert_int_eq(sched_pages_load(a->sc, &t, 0, 1, page, soon(), &n, &e), ERR_UNSUPPORTED);
    client *c = make(1, 8, 2);
    gate(b, true, 0);
    submit(b, c);
    await_step(b, 1); /* the engine stands in a step */
    ck_assert_int_eq(sched_pages_look(b->sc, &t, 0, clock_now_us(), &n, &us, &e), ERR_TIMEOUT);
    gate(b, false, 0);
    finish_well(c);
    drop(c);
    ck_assert_int_eq(have_in(b, &t), 0);
    (void)stop(a);
    (void)stop(b);
}
END_TEST

static void *look_at(void *arg)
{
    static const int32_t token[9];
    sched_text t = {.token = token, .n_token = 9};
    ck_assert_int_eq(have_in(arg, &t), 0);
    return NULL;
}

/* The engine stands at the gate in a step, with the next one enqueued.  It gets a permit for the
 * first alone: a look that landed the second would not come to its end. */
START_TEST(a_look_waits_for_no_step)
{
    setting st = {.max_rows = 64, .max_seqs = 4, .n_pages = 100, .cache = true};
    device_samples = device_is_lazy = true;
    rig *r = start(&st);
    client *c = make(1, 8, MAX_NEW);
    pthread_t thread;
    gate(r, true, 0);
    submit(r, c);
    await_step(r, 1);
    ck_assert_int_eq(pthread_create(&thread, NULL, look_at, r), 0);
    for (bool asked = false; !asked;) {
        lock_take(&r->sc->mu);
        asked = r->sc->shared.jobs != NULL;
        lock_release(&r->sc->mu);
    }
    gate(r, true, 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    gate(r, false, 0);
    finish_well(c);
    drop(c);
    (void)stop(r);
    device_samples = device_is_lazy = false;
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pages");
    TCase *tc = tcase_create("carried");
    tcase_add_loop_test(tc, it_computes_what_has_not_come, 0, 3);
    tcase_add_test(tc, pages_are_those_of_their_domain);
    tcase_add_test(tc, there_is_no_room);
    tcase_add_test(tc, nobody_waits_for_ever);
    tcase_add_test(tc, a_look_waits_for_no_step);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
