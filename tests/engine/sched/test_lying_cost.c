/* test_lying_cost.c -- the policy with a cost model that is absurdly wrong, on
 * a machine of virtual time.
 *
 * The loop is the scheduler's: plan, budget, cut the prompts to what the model says fits, run,
 * observe what it took.  The model was fitted before to a machine ten times slower or faster, or to
 * noise.  Streams must get a token in every step and prompts go on, whatever it says; after some
 * steps it must cut as an honest one does.
 */
#include <math.h>

#include <check.h>

#include "engine/sched/policy.h"
#include "tests/run_suite.h"

enum { STREAMS = 8, PROMPT = 2000, CLASS_US = 50000 };

/* Tokens of a prompt in a step, on average, at the very least. */
enum { LEAST_MEAN = 16 };

static uint64_t state;

static double uniform(void)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (double)(state >> 11) / (double)(1ULL << 53);
}

/* The true machine, in microseconds. */
static double took(const cost_work *w)
{
    return 900 + 5 * w->prefill + 260 * w->decode + 0.02 * w->attended;
}

typedef struct {
    cost_model cost;
    int64_t now_us;
    int done, context;         /* of the prompt */
    int64_t due[STREAMS];      /* of each stream's next token */
    int n_prompts;             /* finished */
    double last_us;            /* what the last step took */
    double decode_us;          /* of it, what the streams alone would have taken */
    int last_chunk;            /* of the prompt; -1: there was none */
    int64_t ttft_us, begun_us; /* 0: prompts have no deadline; when this one came */
    int gap;                   /* gap: steps between two prompts */
    int idle;
} world;

static void fit(cost_model *c, double factor, bool garbage)
{
    cost_init(c);
    for (int i = 0; i < 300; i++) {
        cost_work w = {.decode = 1 + floor(uniform() * 16)};
        w.attended = w.decode * floor(uniform() * 500);
        w = cost_with_chunk(&w, (int)(uniform() * 300), (int)(uniform() * 1000), 0);
        double us = took(&w) * factor;
        if (garbage)
            us = exp(uniform() * 14); /* from a microsecond to a second, whatever the work */
        cost_observe(c, &w, us);
    }
}

static world make(double factor, bool garbage)
{
    world o = {.now_us = 1000000, .gap = 20};
    state = 7;
    fit(&o.cost, factor, garbage);
    for (int i = 0; i < STREAMS; i++) o.due[i] = o.now_us + CLASS_US;
    return o;
}

static void run_step(world *o)
{
    policy_request rq[STREAMS + 1];
    policy_entry plan[STREAMS + 1];
    int order[STREAMS + 1];
    for (int i = 0; i < STREAMS; i++) {
        rq[i] = (policy_request){
            .running = true, .left = 1, .max_chunk = 512, .context = 300, .due_us = o->due[i]};
    }
    rq[STREAMS] = (policy_request){.running = true,
                                   .left = PROMPT - o->done,
                                   .max_chunk = 512,
                                   .context = o->done,
                                   .arrived_us = o->begun_us,
                                   .deadline_us = o->ttft_us ? o->begun_us + o->ttft_us : 0};
    int chunk = -1, n_rq = STREAMS + (o->idle == 0);
    policy_limits lim = {.max_rows = 512, .ageing_us = 10000000};
    int n = policy_plan(rq, n_rq, &lim, o->now_us, plan, order);
    ck_assert_int_eq(n, n_rq);
    int least;
    double budget = policy_budget_us(rq, plan, n, &o->cost, o->now_us, 0, &least);
    ck_assert(budget >= 0);
    cost_work w = {0};
    for (int i = 0; i < n; i++) {
        if (plan[i].request < STREAMS) {
            ck_assert_int_eq(i, w.decode); /* streams stand first, and none is left out */
            w.decode++;
            w.attended += 301;
            continue;
        }
        int want = plan[i].n_rows;
        chunk = isinf(budget) ? want : cost_chunk(&o->cost, &w, budget, want, o->done, 0);
        if (chunk < least) chunk = want < least ? want : least;
    }
    o->decode_us = took(&w);
    if (chunk > 0) w = cost_with_chunk(&w, chunk, o->done, 0);
    o->last_us = took(&w);
    o->last_chunk = chunk;
    cost_observe(&o->cost, &w, o->last_us);
    o->now_us += (int64_t)o->last_us;
    for (int i = 0; i < STREAMS; i++) o->due[i] = o->now_us + CLASS_US;
    if (o->idle > 0) o->idle--;
    if (chunk > 0) o->done += chunk;
    if (o->done >= PROMPT) {
        o->done = 0;
        o->begun_us = o->now_us;
        o->n_prompts++;
        o->idle = o->gap;
    }
}

/* Runs the world.  Nobody may stand still in any step, and no stream's own target may
 * be missed; from step `honest_from` on, prompts must get nearly the share of time
 * that they are meant to have. */
static void live(world *o, int n_steps, int honest_from, double least)
{
    double prompts = 0, streams = 0;
    for (int i = 1; i <= n_steps; i++) {
        int left = PROMPT - o->done;
        run_step(o);
        ck_assert(o->last_chunk < 0 || o->last_chunk == left || o->last_chunk >= 1);
        ck_assert_double_lt(o->last_us, CLASS_US);
        if (i < honest_from || o->last_chunk < 0) continue;
        ck_assert_msg(o->last_us < 1.7 * o->decode_us, "step %d took %.0f, the streams %.0f", i,
                      o->last_us, o->decode_us);
        prompts += o->last_us - o->decode_us;
        streams += o->decode_us;
    }
    if (o->ttft_us == 0) ck_assert_int_ge(o->n_prompts, n_steps / (PROMPT / LEAST_MEAN + o->gap));
    ck_assert_double_lt(o->cost.error, 0.1);
    if (honest_from > n_steps) return;
    ck_assert_msg(prompts > least * streams && prompts < 0.35 * streams,
                  "prompts have %.3f of the streams' time, meant is 0.2", prompts / streams);
}

START_TEST(the_truth_stays)
{
    world o = make(1, false);
    live(&o, 300, 1, 0.14);
}
END_TEST

START_TEST(ten_times_too_cheap_is_corrected_at_once)
{
    world o = make(0.1, false);
    live(&o, 300, 20, 0.14);
}
END_TEST

START_TEST(ten_times_too_dear_is_corrected_at_once)
{
    world o = make(10, false);
    live(&o, 300, 20, 0.14);
}
END_TEST

START_TEST(noise_is_forgotten)
{
    world o = make(1, true);
    live(&o, 600, 150, 0.08);
}
END_TEST

/* Prompts without end: what they cost and what the streams cost is never seen apart.  Nobody stands
 * still and the sum becomes right, also where the lie is a thousandfold. */
START_TEST(progress_needs_no_truth)
{
    static const double lies[] = {0.001, 0.1, 10, 1000};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        world o = make(lies[i], false);
        o.gap = 0;
        live(&o, 1000, 1001, 0);
    }
}
END_TEST

/* The same with deadlines, which let a prompt go on by single rows as
 * long as they seem to be kept. */
START_TEST(deadlines_need_no_truth)
{
    static const double lies[] = {0.001, 0.1, 1, 10, 1000};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        world o = make(lies[i], false);
        o.gap = 0;
        o.ttft_us =
            1000000; /* some 300 steps; a prompt at a sixth of the time takes about 60 ms more */
        o.begun_us = o.now_us;
        live(&o, 3000, 3001, 0);
        ck_assert_int_ge(o.n_prompts, 9);
    }
}
END_TEST

/* The machine itself lies: every so often a step takes thirty times as long,
 * or is not measured right. */
START_TEST(liars_among_the_samples_do_little)
{
    world o = make(1, false);
    int late = 0;
    for (int i = 0; i < 2000; i++) {
        run_step(&o);
        late += o.last_us > 1.5 * o.decode_us;
        if (i % 20 == 0) {
            cost_work w = {.decode = STREAMS, .attended = 301 * STREAMS};
            w = cost_with_chunk(&w, 64, 0, 0);
            cost_observe(&o.cost, &w, took(&w) * (i % 40 ? 30 : 1.0 / 30));
        }
    }
    ck_assert_int_lt(late, 40); /* of 2000 */
    ck_assert_int_ge(o.n_prompts, 2000 / (PROMPT / LEAST_MEAN + 20));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("lying cost model");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, the_truth_stays);
    tcase_add_test(tc, ten_times_too_cheap_is_corrected_at_once);
    tcase_add_test(tc, ten_times_too_dear_is_corrected_at_once);
    tcase_add_test(tc, noise_is_forgotten);
    tcase_add_test(tc, progress_needs_no_truth);
    tcase_add_test(tc, deadlines_need_no_truth);
    tcase_add_test(tc, liars_among_the_samples_do_little);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
