/* main.c -- sim: one workload, every policy beside the others; figures, one
 * JSON line each, a plot.
 *
 *   sim [--requests N] [--load X] [--tenants N] [--adapters N] [--slots N]
 * [--abuser SHARE] [--cv X]
 *       [--mix distinct|uniform|skewed|identical] [--uneven X] [--burst X]
 * [--seed N]
 *       [--base-us N] [--decode-us N] [--prefill-us N]
 *       [--device h200|cpu|1.1B] [--hiccup SHARE] [--queue] [--blind] [--load-us N] [--policy
 *       NAME[,NAME...]] [--alone] [--json] [--svg FILE] [--check]
 * [--plan]
 *
 * --device cpu is the demo model on two cores, as slo-wire measured it; there --hiccup SHARE
 * of the steps are held up by other work, by up to 80 ms.  --queue: nobody is refused, as in
 * the default configuration.  --blind: admission does not see where adapters are; --load-us:
 * what a load of rank 16 takes.
 *
 * --nodes N: so many of the device, and --route least|picker|rendezvous|advice (route.c) chooses;
 * --replicas, --balance, --affinity and --scrape-ms are theirs.
 *
 * --prefill and --decode N: so many of the nodes have that role (split.c), the others none; the
 * wire between them has --wire-gb gigabytes a second; --facts-ms: how old what they know of one
 * another may be.  --workload chat|summaries|agents|documents: lengths and targets of one kind of
 * request, without an abuser.
 *
 * --load is a multiple of the capacity, which is measured first: requests per
 * second that the device finishes with a queue that never empties and 100
 * adapters that fit.  --alone runs lorad once more without the abuser.  --plan
 * measures what planning costs with 256 running and 10,000 waiting.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/sim.h"

typedef struct {
    sim_load load;
    sim_setup setup;
    double times;
    bool wanted[SIM_POLICIES], alone, json, plan;
    const char *svg;
} options;

static const options defaults = {
    .load = {.seed = 1,
             .n = 40000,
             .tenants = 100,
             .adapters = 100,
             .cv = 1,
             .abuser = 0.5,
             .skew = 1.5,
             .burst = 1,
             .classes = {0.2, 0.5, 0.3},
             .mean_prompt = 161,
             .mean_output = 338,
             .max_prompt = 2048,
             .max_tokens = 1024,
             .mix = MIX_SKEWED},
    /* An 8B model on an H200: 0.8 of what its bandwidth and its arithmetic would give. */
    .setup = {.device = {.base_us = 4400,
                         .prefill_us = 22,
                         .decode_us = 6,
                         .context_us = 0.038,
                         .rank_us = 1.5,
                         .noise = 0.03,
                         .max_rows = 2048,
                         .max_seqs = 256,
                         .n_pages = 16000,
                         .slots = 128,
                         .load_us = 1700},
              .classes = {{500000, 50000, 4}, {2000000, 100000, 2}, {60000000, 1000000, 1}},
              .replicas = 2,
              .balance = 1.25,
              .affinity = 1,
              .scrape_us = 50000,
              .roles = {.token_bytes = 131072,
                        .setup_us = 1000,
                        .byte_us = 1e-4,
                        .facts_us = SIM_SECOND},
              .ageing_us = 10 * SIM_SECOND,
              .skip_tenant = -1},
    .times = 1.2,
};

/* conf/demo/base on two cores, and lengths, as tests/bench/slo.sh has them. */
static void use_cpu(options *o)
{
    o->setup.device = (sim_device){.prefill_us = 88,
                                   .base_us = 100,
                                   .decode_us = 165,
                                   .context_us = 0.1,
                                   .rank_us = 1,
                                   .noise = 0.4,
                                   .hiccup_us = 80000,
                                   .max_rows = 512,
                                   .max_seqs = 64,
                                   .n_pages = 16000,
                                   .slots = 128,
                                   .load_us = 1700};
    o->load.mean_prompt = 137;
    o->load.mean_output = 104;
    o->load.max_prompt = 600;
    o->load.max_tokens = 400;
}

/* A model of 1.1B on two cores (measured in November 2026: a step of one row takes 82 ms, of eight
 * rows 125 ms; 185 prompt tokens a second), and targets that such a machine can meet. */
static void use_slow(options *o)
{
    o->setup.device = (sim_device){.prefill_us = 5400,
                                   .base_us = 76000,
                                   .decode_us = 6000,
                                   .context_us = 3,
                                   .rank_us = 15,
                                   .noise = 0.1,
                                   .max_rows = 512,
                                   .max_seqs = 64,
                                   .n_pages = 16000,
                                   .slots = 128,
                                   .load_us = 20000};
    o->load.mean_prompt = 64;
    o->load.mean_output = 64;
    o->load.max_prompt = 256;
    o->load.max_tokens = 256;
    o->setup.classes[0] = (sim_class){10000000, 250000, 4};
    o->setup.classes[1] = (sim_class){40000000, 500000, 2};
    o->setup.classes[2] = (sim_class){600000000, 5000000, 1};
    o->setup.ageing_us = 60 * (int64_t)SIM_SECOND;
}

/* Prompt and answer in tokens, targets of the first and of each further token in milliseconds. */
static bool take_workload(options *o, const char *text)
{
    static const struct {
        const char *name;
        double prompt, output;
        int most, ttft_ms, tpot_ms;
    } known[] = {{"chat", 161, 338, 2048, 500, 25},
                 {"summaries", 2048, 160, 6000, 1500, 25},
                 {"agents", 3000, 60, 8192, 2000, 25},
                 {"documents", 6000, 400, 12000, 6000, 25}};
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (strcmp(known[i].name, text) != 0) continue;
        o->load.mean_prompt = known[i].prompt;
        o->load.mean_output = known[i].output;
        o->load.max_prompt = known[i].most;
        o->load.abuser = 0;
        for (int c = 0; c < SIM_CLASSES; c++) {
            o->load.classes[c] = c == 0;
            o->setup.classes[c] =
                (sim_class){1000 * (int64_t)known[i].ttft_ms, 1000 * (int64_t)known[i].tpot_ms, 1};
        }
        return true;
    }
    return false;
}

static bool run(const options *o, const sim_arrival *a, const sim_setup *s, sim_result *r,
                sim_figures *f)
{
    if (!sim_run(s, a, o->load.n, o->load.tenants, o->load.adapters, r)) return false;
    sim_measure(s, a, o->load.n, o->load.tenants, o->load.abuser > 0, r, f);
    return true;
}

/* Requests per second with a queue that never empties. */
static double capacity(const options *o)
{
    sim_load l = o->load;
    sim_setup s = o->setup;
    sim_result r;
    l.n = 6000;
    l.rate = 1e5;
    l.abuser = 0;
    l.adapters = 100;
    l.mix = MIX_SKEWED;
    l.seed = 99;
    s.policy = SIM_FCFS;
    s.nodes = 1;
    s.roles = (sim_roles){0};
    s.skip_tenant = -1;
    s.device.slots = s.device.slots < 128 ? 128 : s.device.slots;
    sim_arrival *a = sim_workload(&l);
    if (!a || !sim_run(&s, a, l.n, l.tenants, l.adapters, &r)) abort();
    int64_t first = INT64_MAX, last = 0;
    int n = 0;
    for (int i = l.n / 5; i < l.n * 4 / 5; i++) {
        int64_t t = r.of[i].seated_us;
        first = t < first ? t : first;
        last = t > last ? t : last;
        n++;
    }
    sim_result_clear(&r);
    free(a);
    return n / (1e-6 * (double)(last - first));
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_json(const char *name, const sim_figures *f, const sim_result *r)
{
    printf("{\"policy\":\"%s\",\"offered_per_s\":%.3f,\"good_per_s\":%.4f,\"all_"
           "good\":%.5f,"
           "\"honest_good\":%.5f,\"jain\":%.5f,\"backlogged\":%d,\"late\":%.6f,"
           "\"wasted\":%.5f,"
           "\"batch_share\":%.5f,\"batch_least\":%.3f,\"longest_wait_s\":%.3f,"
           "\"steps\":%llu,\"loads\":%llu,\"moved_prompts\":%llu,\"moved_streams\":%llu,"
           "\"plan_us\":%.3f,\"cost_error\":%.4f,\"hash\":\"%016llx\",\"classes\":[",
           name, f->per_s, f->good_per_s, f->all_good, f->honest_good, f->jain, f->backlogged,
           f->late, f->wasted, f->batch_share, f->batch_least, 1e-6 * (double)r->longest_wait_us,
           (unsigned long long)r->steps, (unsigned long long)r->loads,
           (unsigned long long)r->moved_prompts, (unsigned long long)r->moved_streams,
           1e6 * r->plan_s / (double)(r->steps + 1), r->cost_error, (unsigned long long)r->hash);
    for (int c = 0; c < SIM_CLASSES; c++) {
        printf("%s{\"good\":%.5f,\"good_honest\":%.5f,\"late\":%.5f,\"refused\":%.5f,"
               "\"ttft_p50_s\":%.4f,\"ttft_p99_s\":%.4f,\"ttft_p99_honest_s\":%.4f,\"tpot_p50_s\":%"
               ".5f,\"tpot_"
               "p99_s\":%.5f}",
               c ? "," : "", f->good[c], f->good_honest[c], f->late_class[c], f->refused[c],
               f->ttft50[c], f->ttft99[c], f->ttft99_honest[c], f->tpot50[c], f->tpot99[c]);
    }
    printf("]}\n");
}

static void show(const options *o, const char *name, const sim_figures *f, const sim_result *r)
{
    if (o->json)
        print_json(name, f, r);
    else
        sim_print(stdout, name, f);
    (void)fflush(stdout);
}

/* Goodput over load, one line for each policy. */
static bool plot(const options *o, double cap)
{
    enum { POINTS = 7, W = 760, H = 460, L = 60, B = 50 };
    static const double at[POINTS] = {0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0};
    static const char *const colour[] = {"#d62728", "#7f7f7f", "#bcbd22", "#1f77b4", "#2ca02c",
                                         "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf"};
    FILE *to = fopen(o->svg, "w");
    if (!to) return false;
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" "
            "height=\"100%%\" fill=\"white\"/>\n",
            W, H);
    double x_of = (W - L - 150) / 2.0, y_of = (H - B - 30) / (1.05 * cap);
    for (int i = 0; i <= 5; i++) {
        double y = H - B - i * cap / 5 * y_of;
        fprintf(to,
                "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%.0f</text>\n",
                L, y, W - 150, L - 6, y + 4, i * cap / 5);
    }
    for (int p = 0; p < POINTS; p++)
        fprintf(to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f%%</text>\n",
                L + at[p] * x_of, H - B + 18, 100 * at[p]);
    fprintf(to,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">offered load, "
            "of capacity</text>"
            "<text x=\"%d\" y=\"20\">requests per second that met both "
            "targets</text>\n",
            (W - 150 + L) / 2, H - 10, L);
    bool ok = true;
    for (int k = 0; k < SIM_POLICIES; k++) {
        if (!o->wanted[k]) continue;
        fprintf(to, "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"%s\" points=\"",
                colour[k]);
        double y = 0;
        for (int p = 0; p < POINTS && ok; p++) {
            options q = *o;
            sim_result r = {0};
            sim_figures f = {0};
            q.load.rate = cap * at[p];
            q.load.n = o->load.n < 15000 ? o->load.n : 15000;
            q.setup.policy = (sim_policy)k;
            sim_arrival *a = sim_workload(&q.load);
            ok = a && run(&q, a, &q.setup, &r, &f);
            y = H - B - f.good_per_s * y_of;
            fprintf(to, "%.1f,%.1f ", L + at[p] * x_of, y);
            sim_result_clear(&r);
            free(a);
        }
        fprintf(to, "\"/>\n<text x=\"%d\" y=\"%.1f\" fill=\"%s\">%s</text>\n", W - 144, y + 4,
                colour[k], sim_policies[k]);
    }
    fprintf(to, "</svg>\n");
    return fclose(to) == 0 && ok;
}

/* 256 run, 10,000 wait: processor time of planning beside the step's. */
static int measure_planning(const options *o)
{
    options p = *o;
    sim_result r;
    p.load.n = 11800;
    p.load.rate = 1e6;
    p.setup.device.max_seqs = 256;
    p.setup.queue = true;
    p.setup.max_steps = 2000;
    p.setup.policy = SIM_LORAD;
    sim_arrival *a = sim_workload(&p.load);
    if (!a || !sim_run(&p.setup, a, p.load.n, p.load.tenants, p.load.adapters, &r)) return 1;
    int seated = 0;
    for (int i = 0; i < p.load.n; i++) seated += r.of[i].seated_us > 0;
    double plan_us = 1e6 * r.plan_s / (double)r.steps;
    double step_us = (double)r.end_us / (double)r.steps;
    printf("{\"plan_us\":%.3f,\"step_us\":%.1f,\"share\":%.6f,\"least_waiting\":%"
           "d}\n",
           plan_us, step_us, plan_us / step_us, p.load.n - seated);
    sim_result_clear(&r);
    free(a);
    return 0;
}

static bool take_policies(options *o, const char *text)
{
    char copy[256], *rest = copy;
    snprintf(copy, sizeof(copy), "%s", text);
    for (int k = 0; k < SIM_POLICIES; k++) o->wanted[k] = false;
    for (char *name; (name = strsep(&rest, ","));) {
        int k = 0;
        while (k < SIM_POLICIES && strcmp(sim_policies[k], name) != 0) k++;
        if (k == SIM_POLICIES) return false;
        o->wanted[k] = true;
    }
    return true;
}

static bool take_route(options *o, const char *text)
{
    for (int k = 0; k < SIM_ROUTES; k++) {
        if (strcmp(sim_routes[k], text) != 0) continue;
        o->setup.route = (sim_route_kind)k;
        return true;
    }
    return false;
}

static bool take_mix(options *o, const char *text)
{
    static const char *const names[] = {"distinct", "uniform", "skewed", "identical"};
    for (int k = 0; k < 4; k++) {
        if (strcmp(names[k], text) != 0) continue;
        o->load.mix = (sim_mix)k;
        return true;
    }
    return false;
}

static bool take(options *o, const char *name, const char *text)
{
    char *end = NULL;
    if (strcmp(name, "--svg") == 0) return o->svg = text, true;
    if (strcmp(name, "--mix") == 0) return take_mix(o, text);
    if (strcmp(name, "--workload") == 0) return take_workload(o, text);
    if (strcmp(name, "--route") == 0) return take_route(o, text);
    if (strcmp(name, "--scrape-ms") == 0)
        return o->setup.scrape_us = 1000 * strtoll(text, NULL, 10), true;
    if (strcmp(name, "--device") == 0) {
        if (strcmp(text, "cpu") == 0) use_cpu(o);
        if (strcmp(text, "1.1B") == 0) use_slow(o);
        return strcmp(text, "cpu") == 0 || strcmp(text, "1.1B") == 0 || strcmp(text, "h200") == 0;
    }
    if (strcmp(name, "--policy") == 0) return take_policies(o, text);
    double x = strtod(text, &end);
    if (strcmp(name, "--facts-ms") == 0)
        return o->setup.roles.facts_us = 1000 * strtoll(text, NULL, 10), true;
    if (strcmp(name, "--wire-gb") == 0 && x > 0) return o->setup.roles.byte_us = 1e-3 / x, true;
    if (end == text || *end || !(x >= 0) || x > 1e9) return false;
    const struct {
        const char *name;
        int *whole;
        double *real;
    } known[] = {{"--requests", &o->load.n, NULL},
                 {"--load", NULL, &o->times},
                 {"--tenants", &o->load.tenants, NULL},
                 {"--adapters", &o->load.adapters, NULL},
                 {"--slots", &o->setup.device.slots, NULL},
                 {"--seats", &o->setup.device.max_seqs, NULL},
                 {"--pages", &o->setup.device.n_pages, NULL},
                 {"--abuser", NULL, &o->load.abuser},
                 {"--load-us", NULL, &o->setup.device.load_us},
                 {"--base-us", NULL, &o->setup.device.base_us},
                 {"--decode-us", NULL, &o->setup.device.decode_us},
                 {"--prefill-us", NULL, &o->setup.device.prefill_us},
                 {"--cv", NULL, &o->load.cv},
                 {"--uneven", NULL, &o->load.uneven},
                 {"--burst", NULL, &o->load.burst},
                 {"--hiccup", NULL, &o->setup.device.hiccup},
                 {"--nodes", &o->setup.nodes, NULL},
                 {"--prefill", &o->setup.roles.prefill, NULL},
                 {"--decode", &o->setup.roles.decode, NULL},
                 {"--replicas", &o->setup.replicas, NULL},
                 {"--balance", NULL, &o->setup.balance},
                 {"--affinity", NULL, &o->setup.affinity}};
    if (strcmp(name, "--seed") == 0) return o->load.seed = (uint64_t)x, true;
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        if (known[i].whole)
            *known[i].whole = (int)x;
        else
            *known[i].real = x;
        return true;
    }
    return false;
}

static bool parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--alone") == 0)
            o->alone = true;
        else if (strcmp(argv[i], "--json") == 0)
            o->json = true;
        else if (strcmp(argv[i], "--plan") == 0)
            o->plan = true;
        else if (strcmp(argv[i], "--queue") == 0)
            o->setup.queue = true;
        else if (strcmp(argv[i], "--blind") == 0)
            o->setup.blind = true;
        else if (strcmp(argv[i], "--check") == 0)
            o->setup.check = true;
        else if (i + 1 >= argc || !take(o, argv[i], argv[i + 1]))
            return fprintf(stderr, "sim: what is %s?\n", argv[i]), false;
        else
            i++;
    }
    return o->load.n > 0 && o->load.n <= 2000000 && o->load.tenants > (o->load.abuser > 0) &&
           o->load.tenants <= 30000 && o->load.adapters < 100000 && o->load.cv > 0.05 &&
           o->setup.device.slots > 0 && o->setup.device.max_seqs > 0 && o->load.burst > 0 &&
           o->setup.nodes <= SIM_NODES_MAX && o->setup.replicas > 0 &&
           o->setup.roles.prefill + o->setup.roles.decode <= o->setup.nodes;
}

int main(int argc, char **argv)
{
    options o = defaults;
    for (int k = 0; k < SIM_POLICIES; k++) o.wanted[k] = k < SIM_SARATHI;
    if (!parse(&o, argc, argv)) return 2;
    if (o.plan) return measure_planning(&o);
    double start = now_s(), cap = capacity(&o) * (o.setup.nodes > 1 ? o.setup.nodes : 1);
    o.load.rate = cap * o.times;
    sim_arrival *a = sim_workload(&o.load);
    if (!a) return 1;
    if (!o.json)
        printf("capacity %.2f requests/s, offered %.2f for %.0f s\n"
               "policy         good/s  good by class     of the honest     all   "
               "jain  late   "
               "wasted  ttft p50/p99 s, tpot p50/p99 ms by class%*sbatch share, "
               "least/60 s\n",
               cap, o.load.rate, 1e-6 * (double)a[o.load.n - 1].us, 23, "");
    sim_result r;
    sim_figures f;
    for (int k = 0; k < SIM_POLICIES; k++) {
        if (!o.wanted[k]) continue;
        o.setup.policy = (sim_policy)k;
        if (!run(&o, a, &o.setup, &r, &f)) return 1;
        show(&o, sim_policies[k], &f, &r);
        sim_result_clear(&r);
    }
    if (o.alone) {
        o.setup.policy = SIM_LORAD;
        o.setup.skip_tenant = 0;
        if (!run(&o, a, &o.setup, &r, &f)) return 1;
        show(&o, "lorad alone", &f, &r);
        sim_result_clear(&r);
        o.setup.skip_tenant = -1;
    }
    free(a);
    if (o.svg && !plot(&o, cap)) return 1;
    fprintf(stderr, "%.1f s\n", now_s() - start);
    return 0;
}
