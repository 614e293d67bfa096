/* test_states.c -- models whose layers keep a state, under the scheduler.
 *
 * Random schedules: how many seats, rows of a step, pages, threads, snapshots, what becomes of who
 * gives way, who is cancelled, who goes on in another engine, when each request comes, and in which
 * isolation domain.  Every answer has the bits that it has alone.  LORAD_SCHEDULES: so many of
 * them, instead of a few.
 *
 * Then the rules of the prefix cache, one by one; and a state that goes to another engine.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/clock.h"
#include "engine/sched/sched.h"
#include "tests/run_suite.h"

enum { SECOND = 1000000, CONTEXT = 128, NEW = 36, MAX_ROWS = 64, MAX_SEQS = 6 };
enum { TEXTS = 12, ASKED = 18 /* in one schedule, some of them twice */ };
#ifdef __SANITIZE_THREAD__ /* 20 times as slow */
enum { SCHEDULES = 5 };
#else
enum { SCHEDULES = 40 };
#endif
enum { LONELY = 8 /* a seed */ };
enum { TALKS = 6, TURNS = 5, SYSTEM = 200, SAID = 60, TALK = SYSTEM + TURNS * (SAID + NEW) };
enum { PT = 32, ROOMY = 64 /* pages, or snapshots: enough for all */ };

static uint64_t rng;

static int draw(int n)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (int)((rng >> 33) % (uint64_t)n);
}

typedef struct {
    int seats, rows, n_pages, threads, swap_pages;
    int snapshots, every; /* slots, 0: no prefix cache; pages that one must save */
    int speculate;
    int context; /* 0: CONTEXT */
    preemption how;
} setting;

typedef struct {
    backend *be;
    model *m;
    sched *sc;
} rig;

static const char *const models[] = {"lfm2",    "granite-hybrid", "falcon-h1",  "mamba2",
                                     "qwen3.5", "qwen3-next",     "kimi-linear"};
enum { MODELS = sizeof(models) / sizeof(models[0]) };

static void start(rig *r, const char *name, const setting *st)
{
    err e;
    char path[128];
    backend_config bc = {.n_threads = st->threads, .isa = "auto"};
    snprintf(path, sizeof(path), "fixtures/families/models/%s", name);
    ck_assert_msg(be_open(&r->be, &backend_cpu, &bc, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_msg(model_load(&r->m, path, r->be, MAX_ROWS, MAX_SEQS + SCHED_SCORE_ROWS, &e) == 0,
                  "%s", e.msg);
    attn_shape sh = model_attn_shape(r->m);
    size_t page = be_kv_page_bytes(r->be, &sh);
    size_t state = state_slot_bytes(model_state_floats(model_get_config(r->m)));
    ck_assert_int_eq(be_caps(r->be)->page_tokens, PT);
    sched_config sc = {.max_rows = st->rows,
                       .max_seqs = st->seats,
                       .max_queued = 100,
                       .max_context = st->context ? st->context : CONTEXT,
                       .max_logits = MAX_SEQS + SCHED_SCORE_ROWS,
                       .kv_bytes = (size_t)st->n_pages * page,
                       .prefix_cache = true,
                       .snapshot_bytes = (size_t)st->snapshots * state,
                       .snapshot_pages = st->every,
                       .speculate = st->speculate,
                       .speculate_always = true,
                       .swap_bytes = (size_t)st->swap_pages * page,
                       .preemption = st->how,
                       .n_class = 1,
                       .classes = {{.name = "one"}}};
    ck_assert_msg(sched_create(&r->sc, &sc, r->m, r->be, NULL, &e) == ERR_NONE, "%s", e.msg);
}

/* The last counts come a moment after the last answer. */
static void settled(rig *r, sched_stats *stats)
{
    do {
        usleep(500);
        sched_stats_get(r->sc, stats);
    } while (stats->n_running + stats->n_waiting > 0);
}

static void stop(rig *r, sched_stats *stats)
{
    ck_assert(sched_drain(r->sc, 60 * (int64_t)SECOND));
    settled(r, stats);
    ck_assert_int_eq(stats->n_pages_used, 0);
    ck_assert_int_eq(stats->state.n_used, 0);
    ck_assert_int_eq(stats->swap.n_used, 0);
    if (stats->n_steps > 0) ck_assert_int_eq(stats->prefix_cache, stats->snapshots.n_slots > 0);
    if (!stats->prefix_cache) ck_assert_uint_eq(stats->n_cached_tokens, 0);
    sched_destroy(r->sc);
    model_destroy(r->m);
    be_close(r->be);
}

typedef struct {
    request rq;
    meter meter;
    request_signal sg;
    int32_t text[TALK];
    int n_got, seed;
    bool done, cancelled, leaves;
} client;

static const logit_bias few[] = {{5, 60}, {6, 60}, {7, 60}, {8, 60}};

static client *make(const int32_t *text, int n, int seed, bool score, uint64_t isolation)
{
    client *c = calloc(1, sizeof(*c));
    err e;
    request_init(&c->rq);
    request_signal_init(&c->sg);
    memcpy(c->text, text, (size_t)n * sizeof(*text));
    c->seed = seed;
    c->rq.prompt = c->text;
    c->rq.n_prompt = n;
    c->rq.max_tokens = NEW;
    c->rq.score_prompt = score;
    c->rq.isolation = isolation;
    c->rq.meter = &c->meter;
    c->rq.signal = &c->sg;
    c->rq.rules.temperature = 0.8F;
    c->rq.rules.n_top = 1;
    c->rq.rules.seed = (uint64_t)seed * 31;
    c->rq.rules.bias = few;
    /* Of few words, so that some guesses are right; for LONELY of one. */
    c->rq.rules.n_bias = seed % 3 == 2 ? 1 + seed % 4 : 0;
    c->rq.rules.logprobs = LOGPROBS_RAW;
    ck_assert_int_eq(request_prepare(&c->rq, &e), ERR_NONE);
    return c;
}

static client *submit(rig *r, client *c)
{
    err e;
    ck_assert_msg(sched_submit(r->sc, &c->rq, &e) == ERR_NONE, "%s", e.msg);
    return c;
}

static client *send(rig *r, const int32_t *text, int n, int seed, bool score, uint64_t isolation)
{
    return submit(r, make(text, n, seed, score, isolation));
}

/* Texts of three kinds; those of a kind have beginnings in common that end within pages. */
static client *ask(rig *r, int which, bool score, uint64_t isolation)
{
    int32_t text[CONTEXT];
    int n = 5 + which * 17 % 86, common = 20 + which * 13 % 60;
    for (int i = 0; i < n; i++)
        text[i] = 3 + (which % 3 * 17 + i * (1 + which % 3) + (i < common ? 0 : which)) % 140;
    return send(r, text, n, which, score, isolation);
}

static void collect(client *c)
{
    uint64_t seen = 0;
    for (sampled t; !c->done;) {
        while (request_next(&c->rq, &t, &c->done)) c->n_got++;
        if (!c->done) (void)request_signal_wait(&c->sg, &seen, 50);
    }
    int finish = atomic_load(&c->rq.finish);
    ck_assert(finish == FINISH_LENGTH || (c->cancelled && finish == FINISH_CANCELLED) ||
              (c->leaves && finish == FINISH_LEFT));
}

static void drop(client *c)
{
    request_clear(&c->rq);
    request_signal_clear(&c->sg);
    free(c);
}

static bool same_bits(const client *a, const client *b)
{
    int n = a->rq.n_given + a->n_got; /* what was given has no bits */
    bool same = n <= b->n_got && (a->cancelled || a->leaves || n == b->n_got);
    for (int i = a->rq.n_given; same && i < n; i++) {
        const sampled *x = &a->rq.out.ring[i], *y = &b->rq.out.ring[i];
        same = x->token == y->token && x->logprob == y->logprob &&
               x->top_logprob[0] == y->top_logprob[0];
    }
    return same;
}

/* --------------------------------------------------------------- another engine -- */

static int64_t soon(void)
{
    return clock_now_us() + 60 * (int64_t)SECOND;
}

static int usable_in(rig *r, const sched_text *t)
{
    err e;
    int n;
    double us;
    ck_assert_int_eq(sched_pages_look(r->sc, t, 0, soon(), &n, &us, &e), ERR_NONE);
    return n;
}

static bool save(rig *r, const sched_text *t, int n_pages, void *state)
{
    err e;
    bool done;
    ck_assert_int_eq(sched_state_save(r->sc, t, n_pages, state, soon(), &done, &e), ERR_NONE);
    return done;
}

static bool load(rig *r, const sched_text *t, int n_pages, const void *state)
{
    err e;
    bool done;
    ck_assert_int_eq(sched_state_load(r->sc, t, n_pages, state, soon(), &done, &e), ERR_NONE);
    return done;
}

/* Pages up to the last snapshot, and the state there.  False: one of them has no more room. */
static bool bring(rig *from, rig *to, const sched_text *t, int n)
{
    err e;
    int saved, loaded;
    unsigned char *page = malloc((size_t)n * sched_page_bytes(from->sc)),
                  *state = malloc(sched_state_bytes(from->sc)); /* a sanitizer sees their ends */
    ck_assert_int_eq(sched_pages_save(from->sc, t, 0, n, page, soon(), &saved, &e), ERR_NONE);
    ck_assert_int_eq(sched_pages_load(to->sc, t, 0, saved, page, soon(), &loaded, &e), ERR_NONE);
    bool done = save(from, t, n, state) && load(to, t, n, state);
    free(page);
    free(state);
    return done;
}

/* A request with the tokens so far of one that has left its engine. */
static client *go_on(rig *to, const client *c, const sched_text *t)
{
    client *next = make(c->text, c->rq.n_prompt, c->seed, false, c->rq.isolation);
    for (int i = c->rq.n_prompt; i < t->n_token; i++) request_give(&next->rq, t->token[i]);
    return submit(to, next);
}

static sched_text text_of(const client *c, int n, int32_t room[CONTEXT])
{
    memcpy(room, c->text, (size_t)c->rq.n_prompt * sizeof(*room));
    memcpy(room + c->rq.n_prompt, c->rq.out.token, (size_t)n * sizeof(*room));
    return (sched_text){
        .domain.isolation = c->rq.isolation, .token = room, .n_token = c->rq.n_prompt + n};
}

static bool caches(const rig *r)
{
    err e;
    return sched_pages_check(r->sc, &e) == ERR_NONE;
}

/* It leaves its engine with more than k tokens, unless it has ended.  True: the other engine got a
 * state. */
static bool leaves_behind(client *c, int k, rig *from, rig *to, const client *ref)
{
    int32_t room[CONTEXT];
    while (atomic_load(&c->rq.out.n_pushed) <= k && !atomic_load(&c->rq.finish))
        (void)sched_yield();
    request_leave(&c->rq);
    collect(c);
    if (atomic_load(&c->rq.finish) != FINISH_LEFT) return false;
    sched_text t = text_of(c, c->n_got, room);
    int n = caches(from) && caches(to) ? usable_in(from, &t) : 0;
    bool came = n > 0 && bring(from, to, &t, n);
    client *next = go_on(to, c, &t);
    collect(next);
    ck_assert(same_bits(next, ref));
    drop(next);
    return came;
}

static void draw_setting(setting *st)
{
    static const preemption how[] = {PREEMPT_SWAP, PREEMPT_RECOMPUTE};
    *st = (setting){.seats = 1 + draw(MAX_SEQS)};
    st->rows = st->seats + draw(MAX_ROWS - st->seats + 1);
    st->n_pages = 4 + draw(draw(2) ? 8 : 40); /* four hold the longest */
    st->threads = 1 + draw(2);
    st->how = how[draw(2)];
    st->swap_pages = st->how == PREEMPT_SWAP ? 2 + draw(24) : 0;
    st->snapshots = draw(4) ? 1 + draw(draw(2) ? 3 : 20) : 0;
    st->every = 1 + draw(2);
    st->speculate = draw(4) ? 1 + draw(8) : 0;
}

/* What a schedule has shown. */
typedef struct {
    uint64_t preempted, swapped, cached, hits, evicted, guessed, right, moved;
} shown;

static void run_schedule(const char *name, client *const *ref, int turn, shown *sum)
{
    client *c[ASKED];
    sched_stats stats;
    setting st, others;
    rig r, other;
    int which[ASKED];
    draw_setting(&st);
    start(&r, name, &st);
    draw_setting(&others);
    start(&other, name, &others);
    for (int i = 0; i < ASKED; i++) {
        which[i] = draw(TEXTS);
        c[i] = ask(&r, which[i], draw(6) == 0, 1 + (uint64_t)(draw(4) == 0));
        c[i]->cancelled = draw(5) == 0;
        if (c[i]->cancelled) {
            usleep((unsigned)draw(2000));
            request_cancel(&c[i]->rq);
        }
        c[i]->leaves = !c[i]->cancelled && !c[i]->rq.score_prompt && draw(3) == 0;
        if (c[i]->leaves)
            sum->moved += leaves_behind(c[i], draw(NEW / 2), &r, &other, ref[which[i]]);
        if (draw(3) == 0) usleep((unsigned)draw(2000));
    }
    for (int i = 0; i < ASKED; i++) {
        collect(c[i]);
        ck_assert_msg(same_bits(c[i], ref[which[i]]), "%s: answer %d differs in schedule %d", name,
                      i, turn);
        drop(c[i]);
    }
    stop(&other, &stats);
    stop(&r, &stats);
    sum->preempted += stats.n_preempted;
    sum->swapped += stats.n_swapped_in;
    sum->cached += stats.n_cached_tokens;
    sum->hits += stats.snapshots.n_hits;
    sum->evicted += stats.snapshots.n_evicted;
    sum->guessed += stats.guess.made;
    sum->right += stats.guess.right;
}

START_TEST(answers_are_the_same_in_any_schedule)
{
    const char *name = models[_i], *more = getenv("LORAD_SCHEDULES");
    int schedules = more ? atoi(more) : SCHEDULES;
    client *ref[TEXTS];
    sched_stats stats;
    shown sum = {0};
    rig r;
    setting st = {
        .seats = 1, .rows = MAX_ROWS, .n_pages = 8, .threads = 1, .how = PREEMPT_RECOMPUTE};
    start(&r, name, &st);
    for (int i = 0; i < TEXTS; i++) collect(ref[i] = ask(&r, i, false, 1));
    stop(&r, &stats);
    ck_assert_int_eq(stats.state.n_slots, 1);
    rng = 1;
    for (int turn = 0; turn < schedules; turn++) run_schedule(name, ref, turn, &sum);
    printf("%s: %d gave way, %d came back from the swap, %d found %d tokens at snapshots, of which "
           "%d were evicted; %d of %d draft tokens were right; %d states went to another engine\n",
           name, (int)sum.preempted, (int)sum.swapped, (int)sum.hits, (int)sum.cached,
           (int)sum.evicted, (int)sum.right, (int)sum.guessed, (int)sum.moved);
    /* A few schedules, as under ThreadSanitizer, need not have each of these. */
    if (schedules >= 40) {
        ck_assert(sum.preempted > 0 && sum.swapped > 0 && sum.hits > 0 && sum.evicted > 0);
        ck_assert(sum.right > 0 && sum.guessed > sum.right && sum.moved > 0);
    }
    for (int i = 0; i < TEXTS; i++) drop(ref[i]);
}
END_TEST

/* ------------------------------------------------------------- the prefix cache -- */

static const setting roomy = {.seats = 2,
                              .rows = MAX_ROWS,
                              .n_pages = ROOMY,
                              .threads = 1,
                              .how = PREEMPT_RECOMPUTE,
                              .snapshots = ROOMY};

/* Prompt tokens of this text that the prefix cache has; its answer has the bits that it has without
 * a prefix cache.  `answer`: the tokens, or NULL. */
static int cached_of(rig *r, rig *bare, const int32_t *text, int n, uint64_t isolation,
                     int32_t *answer)
{
    client *c = send(r, text, n, LONELY, false, isolation),
           *ref = send(bare, text, n, LONELY, false, 1);
    sched_stats stats;
    collect(c);
    collect(ref);
    settled(r, &stats); /* its pages are given back */
    ck_assert(same_bits(c, ref));
    for (int i = 0; answer && i < c->n_got; i++) answer[i] = c->rq.out.token[i];
    int cached = (int)atomic_load(&c->meter.cached_tokens);
    drop(c);
    drop(ref);
    return cached;
}

static void fill(int32_t *text, int from, int to, int by)
{
    for (int i = from; i < to; i++) text[i] = 3 + i * by % 140;
}

/* _i from MODELS on: with draft tokens. */
START_TEST(a_prefix_is_continued_at_its_snapshot)
{
    sched_stats stats;
    rig r, bare;
    setting off = roomy, on = roomy;
    const char *name = models[_i % MODELS];
    int32_t text[CONTEXT], answer[NEW];
    off.snapshots = 0;
    on.speculate = _i < MODELS ? 0 : 8;
    start(&r, name, &on);
    start(&bare, name, &off);
    /* The same prompt again: up to its last whole page. */
    fill(text, 0, 90, 3);
    ck_assert_int_eq(cached_of(&r, &bare, text, 90, 1, NULL), 0);
    ck_assert_int_eq(cached_of(&r, &bare, text, 90, 1, NULL), 2 * PT);
    /* Another salt or tenant has nothing of it. */
    ck_assert_int_eq(cached_of(&r, &bare, text, 90, 2, NULL), 0);
    ck_assert_int_eq(cached_of(&r, &bare, text, 90, 2, NULL), 2 * PT);
    /* A shorter beginning has pages and no snapshot. */
    ck_assert_int_eq(cached_of(&r, &bare, text, 2 * PT, 1, NULL), 0);
    /* The end of a conversation's turn is found by the next one. */
    fill(text, 0, 40, 13);
    ck_assert_int_eq(cached_of(&r, &bare, text, 40, 3, answer), 0); /* 76 tokens with its answer */
    memcpy(text + 40, answer, sizeof(answer));
    fill(text, 40 + NEW, 90, 5);
    ck_assert_int_eq(cached_of(&r, &bare, text, 90, 3, NULL), 2 * PT);
    /* What was computed again behind wrong draft tokens is no prompt. */
    sched_stats_get(r.sc, &stats);
    ck_assert_uint_eq(stats.n_prefill_tokens, stats.n_looked_up_tokens - stats.n_cached_tokens);
    stop(&bare, &stats);
    stop(&r, &stats);
}
END_TEST

/* Texts that part within the second page: the second one takes the snapshot in front of it. */
START_TEST(a_branch_gets_its_snapshot_the_second_time)
{
    sched_stats stats;
    rig r, bare;
    setting off = roomy, on = roomy;
    int32_t text[CONTEXT];
    off.snapshots = 0;
    on.every = 1;
    start(&r, models[_i], &on);
    start(&bare, models[_i], &off);
    fill(text, 0, 90, 3);
    for (int turn = 0; turn < 4; turn++) {
        fill(text, PT + 8, 90, 11 + turn);
        ck_assert_int_eq(cached_of(&r, &bare, text, 90, 1, NULL), turn < 2 ? 0 : PT);
        ck_assert_int_eq(cached_of(&r, &bare, text, 90, 1, NULL), 2 * PT);
    }
    stop(&bare, &stats);
    stop(&r, &stats);
}
END_TEST

/* Six conversations of five turns behind one system prompt, in turn.  _i: snapshots for all, for
 * two of each, for less than one. */
START_TEST(conversations_find_their_turns)
{
    static const int slots[] = {ROOMY, 2 * TALKS, TALKS - 1};
    static int32_t text[TALKS][TALK];
    int n[TALKS];
    sched_stats stats;
    rig r;
    setting st = roomy;
    st.snapshots = slots[_i];
    st.context = TALK;
    st.n_pages = TALKS * (TALK / PT + 1);
    start(&r, "mamba2", &st);
    for (int c = 0; c < TALKS; c++) fill(text[c], 0, n[c] = SYSTEM, 3);
    for (int turn = 0; turn < TURNS * TALKS; turn++) {
        int c = turn % TALKS;
        fill(text[c], n[c], n[c] + SAID, 5 + turn);
        n[c] += SAID;
        client *cl = send(&r, text[c], n[c], 3 * turn, false, 1);
        collect(cl);
        for (int i = 0; i < cl->n_got; i++) text[c][n[c]++] = cl->rq.out.token[i];
        drop(cl);
    }
    settled(&r, &stats);
    double saved = (double)stats.n_cached_tokens / (double)stats.n_looked_up_tokens;
    printf("%d slots: %d snapshots of %d prompts save %.1f %% of their tokens, %.4f states for a "
           "saved token\n",
           slots[_i], (int)stats.snapshots.n_taken, TURNS * TALKS, saved * 100,
           (double)stats.snapshots.n_taken / (double)stats.n_cached_tokens);
    ck_assert_uint_le(stats.snapshots.n_taken, 3 * TURNS * TALKS);
    ck_assert_double_gt(saved, _i == 2 ? 0.3 : 0.7);
    stop(&r, &stats);
}
END_TEST

/* What one engine began another one goes on with, behind the snapshot of the second page. */
START_TEST(a_state_goes_on_in_another_engine)
{
    enum { ASK = 90, GIVEN = 20, AT = 2 };
    sched_stats stats;
    rig a, b;
    int32_t text[CONTEXT];
    static float state[1 << 16];
    setting other = roomy;
    other.threads = 2;
    start(&a, models[_i], &roomy);
    start(&b, models[_i], &other);
    ck_assert_uint_le(sched_state_bytes(a.sc), sizeof(state));
    fill(text, 0, ASK, 3);
    client *ref = send(&a, text, ASK, 3, false, 1);
    collect(ref);
    settled(&a, &stats);
    sched_text t = text_of(ref, GIVEN, text), others = t;
    others.domain.isolation++;
    ck_assert_int_eq(usable_in(&a, &t), AT);
    ck_assert(!save(&a, &others, AT, state) && !save(&a, &t, 1, state) && save(&a, &t, AT, state));
    ck_assert(!load(&b, &t, AT, state)); /* its pages are not there */
    ck_assert(bring(&a, &b, &t, AT) && load(&b, &t, AT, state));
    ck_assert_int_eq(usable_in(&b, &t), AT);
    client *c = go_on(&b, ref, &t);
    collect(c);
    ck_assert(same_bits(c, ref));
    drop(c);
    drop(ref);
    stop(&a, &stats);
    ck_assert_uint_eq(stats.snapshots.n_hits, 0);
    stop(&b, &stats);
    ck_assert_uint_eq(stats.snapshots.n_hits, 1);
    ck_assert_uint_eq(stats.n_prefill_tokens, ASK + GIVEN - AT * PT);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("states");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, getenv("LORAD_SCHEDULES") ? 36000 : 120);
    tcase_add_loop_test(tc, answers_are_the_same_in_any_schedule, 0, MODELS);
    tcase_add_loop_test(tc, conversations_find_their_turns, 0, 3);
    tcase_add_loop_test(tc, a_branch_gets_its_snapshot_the_second_time, 0, MODELS);
    tcase_add_loop_test(tc, a_prefix_is_continued_at_its_snapshot, 0, 2 * MODELS);
    tcase_add_loop_test(tc, a_state_goes_on_in_another_engine, 0, MODELS);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
