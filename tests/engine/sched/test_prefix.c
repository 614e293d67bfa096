/* test_prefix.c -- what the prefix cache finds, token by token, against an oracle: a thousand
 * prompts with shared beginnings, of several tenants, salts and adapters.  The fake model notices
 * every copied position that is not the right one (sched_rig.h).
 */
#include "tests/engine/sched/sched_rig.h"
#include "tests/run_suite.h"

enum { PROMPTS = 1000, DOMAINS = 3, TEXTS = 6, LEN = PROMPT + MAX_NEW };

/* A text that has been computed: what is published of it, and whose. */
typedef struct {
    uint64_t isolation, adapter;
    int n; /* tokens in whole pages */
    int32_t token[LEN];
} known;

static known *all;
static int n_known;
static uint64_t seed;

static int draw(int n)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (int)((seed >> 33) % (uint64_t)n);
}

/* The longest common prefix with any of them, at most all but the last token. */
static int oracle(const client *c)
{
    int best = 0;
    for (int i = 0; i < n_known; i++) {
        const known *k = &all[i];
        int n = 0;
        if (k->isolation != c->rq.isolation || k->adapter != c->rq.adapter_id) continue;
        while (n < k->n && n < c->rq.n_prompt - 1 && k->token[n] == c->prompt[n]) n++;
        if (n > best) best = n;
    }
    return best;
}

/* Its last token has no keys. */
static void learn(const client *c)
{
    known *k = &all[n_known++];
    int n = c->rq.n_prompt + c->n_got - 1;
    *k = (known){.isolation = c->rq.isolation, .adapter = c->rq.adapter_id, .n = n / PT * PT};
    for (int i = 0; i < k->n; i++)
        k->token[i] = i < c->rq.n_prompt ? c->prompt[i] : c->got[i - c->rq.n_prompt];
}

/* A beginning of one of a few texts, or of what an earlier request said; then something else. */
static client *make_prompt(int i)
{
    int len = 1 + draw(PROMPT - 1), shared = draw(len + 1);
    client *c = make(i, len, 1 + draw(6));
    c->rq.isolation = 1 + (uint64_t)draw(DOMAINS); /* a tenant, or its salt */
    c->rq.adapter_id = (uint64_t)draw(3);
    const known *k = n_known > 0 && draw(2) ? &all[draw(n_known)] : NULL;
    int text = draw(TEXTS);
    for (int p = 0; p < shared; p++)
        c->prompt[p] =
            k && p < k->n ? k->token[p] : (int32_t)(mix((uint64_t)text, (uint64_t)p) % (VOCAB - 1));
    return c;
}

/* Nothing is evicted, so every hit is the oracle's. */
START_TEST(hits_are_the_longest_common_prefix)
{
    const setting st = {.max_rows = 16 + 8 * _i, .max_seqs = 4, .n_pages = 24000, .cache = true};
    rig *r = start(&st);
    uint64_t sum = 0, in_parts = 0;
    all = calloc(PROMPTS, sizeof(*all));
    ck_assert_ptr_nonnull(all);
    n_known = 0;
    seed = 77 + (uint64_t)_i;
    for (int i = 0; i < PROMPTS; i++) {
        client *c = make_prompt(i);
        int want = oracle(c);
        submit(r, c);
        finish_well(c);
        int cached = (int)atomic_load(&c->meter.cached_tokens);
        ck_assert_msg(cached == want, "prompt %d of %d tokens: %d found instead of %d", i,
                      c->rq.n_prompt, cached, want);
        sum += (uint64_t)cached;
        in_parts += cached % PT != 0;
        learn(c);
        drop(c);
    }
    ck_assert_uint_gt(in_parts, PROMPTS / 4);
    sched_stats t = stop(r);
    ck_assert_uint_eq(t.n_cached_tokens, sum);
    ck_assert_uint_eq(t.n_prefill_tokens, t.n_looked_up_tokens - sum);
    free(all);
}
END_TEST

/* With few pages, eviction, pre-emption and swap the answers are still right, and pages of several
 * requests at once are shared. */
START_TEST(parts_survive_eviction_and_swap)
{
    const setting st = {.max_rows = 24,
                        .max_seqs = 6,
                        .n_pages = 40 + 8 * (_i % 2),
                        .swap = _i < 2 ? 0 : 60,
                        .cache = true};
    enum { GROUP = 6 };
    rig *r = start(&st);
    uint64_t found = 0;
    all = calloc(PROMPTS, sizeof(*all));
    ck_assert_ptr_nonnull(all);
    n_known = 0;
    seed = 5 + (uint64_t)_i;
    for (int i = 0; i < PROMPTS / GROUP; i++) {
        client *c[GROUP];
        gate(r, true, 0); /* all of them are there before the first one goes on */
        for (int k = 0; k < GROUP; k++) {
            c[k] = make_prompt(i * GROUP + k);
            c[k]->rq.slo_class = draw(3);
            submit(r, c[k]);
            if (i == 0 && k == 0) await_step(r, 1);
        }
        gate(r, false, 0);
        for (int k = 0; k < GROUP; k++) {
            finish_well(c[k]);
            found += atomic_load(&c[k]->meter.cached_tokens);
            learn(c[k]);
            drop(c[k]);
        }
    }
    ck_assert_uint_gt(found, 0);
    (void)stop(r);
    free(all);
}
END_TEST

static void on_device(void)
{
    device_samples = true;
}

static void ahead(void)
{
    device_samples = device_is_lazy = true;
}

int main(void)
{
    Suite *s = suite_create("prefix");
    static void (*const devices[])(void) = {NULL, on_device, ahead};
    for (int i = 0; i < 3; i++) {
        TCase *tc = tcase_create(i == 0 ? "host" : i == 1 ? "device" : "ahead");
        tcase_set_timeout(tc, 120);
        if (devices[i]) tcase_add_checked_fixture(tc, devices[i], NULL);
        tcase_add_loop_test(tc, hits_are_the_longest_common_prefix, 0, i < 2 ? 2 : 0);
        tcase_add_loop_test(tc, parts_survive_eviction_and_swap, 0, 4);
        suite_add_tcase(s, tc);
    }
    return run_suite(s);
}
