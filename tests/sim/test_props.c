/* test_props.c -- random small scenarios of the server's policy, with every
 * invariant checked in every step.
 *
 *   test_props [SCENARIOS [FIRST]]
 *
 * No page leaked or used twice, no more rows than there may be (engine.c checks
 * after each plan); counters are what was charged (fair_check); every request
 * ends exactly once; no free seat goes to anybody while a head beyond the ageing
 * bound waits that has for longer; the same seed gives the same schedule.
 * Half of the scenarios have several nodes, and half of these have roles.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

static int pick(uint64_t *s, int least, int most)
{
    return least + (int)(sim_random(s) % (uint64_t)(most - least + 1));
}

static void make(uint64_t seed, sim_load *l, sim_setup *s)
{
    uint64_t r = seed * 0x9E3779B97F4A7C15ULL + 5;
    static const double rates[] = {5, 50, 500, 1e6};
    *l = (sim_load){.seed = seed,
                    .n = pick(&r, 5, 60),
                    .tenants = pick(&r, 2, 6),
                    .adapters = pick(&r, 0, 1) ? pick(&r, 1, 12) : 0,
                    .rate = rates[pick(&r, 0, 3)],
                    .cv = pick(&r, 1, 4),
                    .abuser = pick(&r, 0, 1) * 0.5,
                    .uneven = pick(&r, 0, 2),
                    .skew = 1.5,
                    .burst = pick(&r, 1, 4),
                    .classes = {0.2, 0.5, 0.3},
                    .mean_prompt = 20,
                    .mean_output = 10,
                    .max_prompt = 64,
                    .max_tokens = 32,
                    .mix = (sim_mix)pick(&r, 0, 3)};
    *s = (sim_setup){.device = {.base_us = 4400,
                                .prefill_us = 22,
                                .decode_us = 6,
                                .context_us = 0.04,
                                .rank_us = 1.5,
                                .noise = 0.2,
                                .max_rows = pick(&r, 8, 64),
                                .max_seqs = pick(&r, 1, 8),
                                .n_pages = pick(&r, 7, 40),
                                .slots = pick(&r, 1, 6),
                                .load_us = pick(&r, 100, 50000)},
                     .classes = {{500000, 50000, 4}, {2000000, 100000, 2}, {60000000, 1000000, 1}},
                     .ageing_us = pick(&r, 0, 1) ? 50000 : 1000000,
                     .skip_tenant = -1,
                     .check = true,
                     .queue = pick(&r, 0, 1) == 1};
    s->nodes = pick(&r, 0, 1) ? 1 : pick(&r, 2, 4);
    s->route = (sim_route_kind)pick(&r, 0, SIM_ROUTES - 1);
    s->replicas = pick(&r, 1, 3);
    s->balance = pick(&r, 0, 2);
    s->affinity = pick(&r, 0, 10);
    s->scrape_us = pick(&r, 0, 100000);
    if (s->nodes < 2 || pick(&r, 0, 1)) return;
    s->roles = (sim_roles){.prefill = pick(&r, 1, s->nodes - 1),
                           .token_bytes = 131072,
                           .setup_us = pick(&r, 100, 5000),
                           .byte_us = 1e-6 * pick(&r, 1, 1000),
                           .facts_us = pick(&r, 0, 1000000),
                           .always = pick(&r, 0, 1) == 1};
    s->roles.decode = pick(&r, 0, s->nodes - s->roles.prefill);
}

static bool fail(uint64_t seed, const char *what)
{
    fprintf(stderr, "scenario %llu: %s\n", (unsigned long long)seed, what);
    return false;
}

static bool check(uint64_t seed, bool again)
{
    sim_load l;
    sim_setup s;
    sim_result r, twin;
    make(seed, &l, &s);
    sim_arrival *a = sim_workload(&l);
    if (!a || !sim_run(&s, a, l.n, l.tenants, l.adapters, &r)) return fail(seed, "no memory");
    bool ok = true;
    for (int i = 0; i < l.n && ok; i++) {
        const sim_outcome *o = &r.of[i];
        if (o->ends != 1) ok = fail(seed, "a request did not end exactly once");
        if (s.queue && o->end != SIM_DONE) ok = fail(seed, "a request was not served");
        if (o->end == SIM_DONE && !(o->first_us > a[i].us && o->last_us >= o->first_us))
            ok = fail(seed, "times run backwards");
    }
    if (ok && r.passed > 0) ok = fail(seed, "a head beyond the ageing bound was passed");
    if (ok && again) {
        ok = sim_run(&s, a, l.n, l.tenants, l.adapters, &twin);
        if (ok && (twin.hash != r.hash || twin.steps != r.steps || twin.end_us != r.end_us ||
                   memcmp(twin.of, r.of, (size_t)l.n * sizeof(*r.of)) != 0))
            ok = fail(seed, "the same seed gave another schedule");
        sim_result_clear(&twin);
    }
    sim_result_clear(&r);
    free(a);
    return ok;
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? strtol(argv[1], NULL, 10) : 10000;
    long first = argc > 2 ? strtol(argv[2], NULL, 10) : 1;
    long bad = 0;
    for (long i = 0; i < n && bad < 5; i++) bad += !check((uint64_t)(first + i), i % 10 == 0);
    printf("%ld scenarios, %ld failed\n", n, bad);
    return bad > 0 || n < 1;
}
