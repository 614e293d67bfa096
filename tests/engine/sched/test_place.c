/* test_place.c -- the choice of a node, row by row: what moves, and each reason to stay. */
#include <stdio.h>

#include <check.h>

#include "engine/sched/place.h"
#include "tests/run_suite.h"

/* An 8B model on an H200: a step 4400 us, a prompt token 22 us, a decode row 6 us. */
static place_node node(node_role role, int streams, double prompts)
{
    place_node k = {.role = role, .free_seats = 200, .free_tokens = 200000, .prompts = prompts};
    cost_init(&k.cost);
    k.cost.n = 100;
    k.cost.theta[0] = 4400;
    k.cost.theta[1] = 22 * 64;
    k.cost.theta[2] = 6 * 8;
    k.cost.theta[3] = 0.04 * 65536;
    k.streams = (cost_work){.decode = streams, .attended = streams * 1000.0};
    k.setup_us = 1000;
    k.byte_us = 1e-4;
    return k;
}

static const place_ask plain = {
    .n_prompt = 2048, .n_output = 300, .token_bytes = 131072, .tpot_us = 50000};

/* What differs from an ask that moves, from a busy node to an idle one. */
typedef struct row {
    const char *name;
    int n_prompt, n_cached, n_output; /* 0: as in `plain`; n_cached: all but so many */
    double tpot_us;
    node_role self, peer;
    double here, there; /* streams */
    double prompts_here, prompts_there, queue_here_us, queue_there_us;
    double seats, tokens, byte_us; /* of the peer, with -1: none */
    double state_bytes;
    bool new_here, new_there, always;
    int want;
} row;

static const row stream_rows[] = {
    {"busy with prompts", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20, .there = 20,
     .prompts_here = 0.6, .want = 0},
    {"a node that does both", .self = ROLE_PREFILL, .peer = ROLE_BOTH, .here = 20, .there = 20,
     .prompts_here = 0.6, .want = 0},
    {"no prompts here, few streams", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .there = 20,
     .want = PLACE_HERE},
    {"as loaded there", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20, .there = 20,
     .prompts_here = 0.6, .prompts_there = 0.6, .want = PLACE_HERE},
    {"past its target there", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20, .there = 1200,
     .tpot_us = 12000, .prompts_here = 0.2, .want = PLACE_HERE},
    {"no target", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20, .there = 100,
     .tpot_us = -1, .prompts_here = 0.8, .want = 0},
    {"too few tokens for the transfer", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20,
     .there = 20, .n_output = 3, .prompts_here = 0.6, .want = PLACE_HERE},
    {"no further token", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20, .there = 20,
     .n_output = 1, .prompts_here = 0.6, .always = true, .want = PLACE_HERE},
    {"a slow wire", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20, .there = 20,
     .prompts_here = 0.6, .byte_us = 0.1, .want = PLACE_HERE},
    {"a large state", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20, .there = 20,
     .prompts_here = 0.6, .state_bytes = 3e11, .want = PLACE_HERE},
    {"no seat there", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20, .there = 20,
     .prompts_here = 0.6, .seats = -1, .always = true, .want = PLACE_HERE},
    {"no pages there", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20, .there = 20,
     .prompts_here = 0.6, .tokens = 2300, .always = true, .want = PLACE_HERE},
    {"just enough pages", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20, .there = 20,
     .prompts_here = 0.6, .tokens = 2348, .want = 0},
    {"both are for prompts", .self = ROLE_PREFILL, .peer = ROLE_PREFILL, .here = 20, .there = 20,
     .prompts_here = 0.6, .always = true, .want = PLACE_HERE},
    {"this one has no role", .self = ROLE_BOTH, .peer = ROLE_DECODE, .here = 20, .there = 20,
     .prompts_here = 0.6, .always = true, .want = PLACE_HERE},
    {"streams are for this one", .self = ROLE_DECODE, .peer = ROLE_DECODE, .here = 20, .there = 20,
     .prompts_here = 0.6, .always = true, .want = PLACE_HERE},
    {"the other has computed nothing yet", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20,
     .there = 0, .prompts_here = 0.6, .new_there = true, .want = 0},
    {"this one has computed nothing yet", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .here = 20,
     .there = 20, .prompts_here = 0.6, .new_here = true, .want = PLACE_HERE},
    {"always", .self = ROLE_PREFILL, .peer = ROLE_DECODE, .there = 100, .new_here = true,
     .new_there = true, .always = true, .want = 0},
};

static const row prompt_rows[] = {
    {"an answer too short for the transfer", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .here = 100,
     .n_output = 2, .tpot_us = 20000, .want = PLACE_HERE},
    {"many streams here", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .here = 100, .want = 0},
    {"a node that does both", .self = ROLE_DECODE, .peer = ROLE_BOTH, .here = 100, .want = 0},
    {"no streams here", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .want = PLACE_HERE},
    {"a queue there", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .here = 100,
     .queue_there_us = 500000, .want = PLACE_HERE},
    {"a longer queue here", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .here = 100,
     .queue_here_us = 900000, .queue_there_us = 500000, .want = 0},
    {"as many streams there", .self = ROLE_DECODE, .peer = ROLE_BOTH, .here = 100, .there = 100,
     .want = PLACE_HERE},
    {"nearly all is cached here", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .here = 100,
     .n_cached = 2000, .want = PLACE_HERE},
    {"a few tokens", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .here = 5, .n_prompt = 4,
     .want = PLACE_HERE},
    {"no seat there", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .here = 100, .seats = -1,
     .always = true, .want = PLACE_HERE},
    {"no pages there", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .here = 100, .tokens = 2048,
     .always = true, .want = PLACE_HERE},
    {"both are for streams", .self = ROLE_DECODE, .peer = ROLE_DECODE, .here = 100, .always = true,
     .want = PLACE_HERE},
    {"this one has no role", .self = ROLE_BOTH, .peer = ROLE_PREFILL, .here = 100, .always = true,
     .want = PLACE_HERE},
    {"prompts are for this one", .self = ROLE_PREFILL, .peer = ROLE_PREFILL, .here = 100,
     .always = true, .want = PLACE_HERE},
    {"the other has computed nothing yet", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .here = 100,
     .new_there = true, .want = 0},
    {"this one has computed nothing yet", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .here = 100,
     .new_here = true, .want = PLACE_HERE},
    {"always", .self = ROLE_DECODE, .peer = ROLE_PREFILL, .queue_there_us = 500000,
     .new_here = true, .always = true, .want = 0},
};

static void make(const row *r, place_ask *a, place_node *self, place_node *peer)
{
    *a = plain;
    if (r->n_prompt) a->n_prompt = r->n_prompt;
    if (r->n_output) a->n_output = r->n_output;
    if (r->tpot_us) a->tpot_us = r->tpot_us > 0 ? r->tpot_us : 0;
    a->n_cached = r->n_cached;
    a->state_bytes = r->state_bytes;
    a->always = r->always;
    *self = node(r->self, (int)r->here, r->prompts_here);
    *peer = node(r->peer, (int)r->there, r->prompts_there);
    self->prompt_us = r->queue_here_us;
    peer->prompt_us = r->queue_there_us;
    if (r->seats) peer->free_seats = r->seats > 0 ? (int)r->seats : 0;
    if (r->tokens) peer->free_tokens = r->tokens;
    if (r->byte_us) peer->byte_us = r->byte_us;
    if (r->new_here) self->cost.n = 0;
    if (r->new_there) cost_init(&peer->cost);
}

typedef int (*choose)(const place_ask *a, const place_node *self, const place_node *peer, int n);

static void check_rows(const row *rows, size_t n, choose fn)
{
    for (size_t i = 0; i < n; i++) {
        place_ask a;
        place_node self, peer;
        make(&rows[i], &a, &self, &peer);
        int got = fn(&a, &self, &peer, 1);
        ck_assert_msg(got == rows[i].want, "%s: %d, not %d", rows[i].name, got, rows[i].want);
        ck_assert_int_eq(fn(&a, &self, &peer, 0), PLACE_HERE);
    }
}

START_TEST(streams)
{
    check_rows(stream_rows, sizeof(stream_rows) / sizeof(*stream_rows), place_stream);
}
END_TEST

START_TEST(prompts)
{
    check_rows(prompt_rows, sizeof(prompt_rows) / sizeof(*prompt_rows), place_prompt);
}
END_TEST

START_TEST(the_best_of_several)
{
    const place_node self = node(ROLE_PREFILL, 20, 0.6);
    place_node peer[4] = {node(ROLE_DECODE, 60, 0), node(ROLE_DECODE, 20, 0),
                          node(ROLE_BOTH, 20, 0.3), node(ROLE_PREFILL, 0, 0)};
    ck_assert_int_eq(place_stream(&plain, &self, peer, 4), 1);
    peer[1].free_seats = 0;
    ck_assert_int_eq(place_stream(&plain, &self, peer, 4), 0);
    place_node decode = node(ROLE_DECODE, 100, 0);
    decode.prompt_us = 600000;
    peer[2] = node(ROLE_BOTH, 1, 0.3);
    peer[3].prompt_us = 300000;
    peer[2].prompt_us = 100000;
    ck_assert_int_eq(place_prompt(&plain, &decode, peer, 4), 2);
    peer[2].prompt_us = 400000;
    ck_assert_int_eq(place_prompt(&plain, &decode, peer, 4), 3);
}
END_TEST

/* Each that is sent counts until the node describes itself again: no herd. */
START_TEST(what_was_sent_counts)
{
    const place_node self = node(ROLE_PREFILL, 20, 0.6);
    place_node decode = node(ROLE_DECODE, 100, 0);
    decode.prompt_us = 600000;
    place_node peer[2] = {node(ROLE_DECODE, 20, 0), node(ROLE_DECODE, 20, 0)};
    int got[2] = {0};
    for (int i = 0; i < 40; i++) {
        int at = place_stream(&plain, &self, peer, 2);
        ck_assert_int_ge(at, 0);
        place_add_stream(&plain, &peer[at]);
        got[at]++;
    }
    ck_assert_int_eq(got[0], 20);
    ck_assert_int_eq(peer[0].free_seats, 180);
    ck_assert_double_eq(peer[0].free_tokens, 200000 - 20 * 2348);
    place_node both[2] = {node(ROLE_PREFILL, 0, 0), node(ROLE_PREFILL, 0, 0)};
    for (int i = 0; i < 6; i++)
        place_add_prompt(&plain, &both[place_prompt(&plain, &decode, both, 2)]);
    ck_assert_int_eq(both[0].n_prompts, 3);
    ck_assert_double_eq_tol(both[0].prompt_us, both[1].prompt_us, 1e-6);
    ck_assert_double_gt(both[0].prompt_us, 3 * 2048 * 22);
}
END_TEST

START_TEST(the_queue_is_what_waits_and_what_has_begun)
{
    static promise_outlook o = {
        .n_class = 2, .row_us = 10, .prompt_tokens = 500, .begun_us = {300, 40}, .n_waiting = 3};
    place_node k = node(ROLE_BOTH, 0, 0);
    place_see_queue(&k, &o, 2);
    ck_assert_double_eq(k.prompt_us, 5340);
    ck_assert_int_eq(k.n_prompts, 5);
}
END_TEST

START_TEST(roles_have_names)
{
    for (int r = 0; r < ROLES; r++) ck_assert_int_eq(node_role_of(node_role_name((node_role)r)), r);
    ck_assert_int_eq(node_role_of("prefil"), ROLES);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("place");
    TCase *t = tcase_create("place");
    tcase_add_test(t, streams);
    tcase_add_test(t, prompts);
    tcase_add_test(t, the_best_of_several);
    tcase_add_test(t, what_was_sent_counts);
    tcase_add_test(t, the_queue_is_what_waits_and_what_has_begun);
    tcase_add_test(t, roles_have_names);
    suite_add_tcase(s, t);
    return run_suite(s);
}
