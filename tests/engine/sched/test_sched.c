/* test_sched.c -- the scheduler over a fake model; how that answers: sched_rig.h. */
#include <stdio.h>
#include <unistd.h>

#include "tests/engine/sched/sched_rig.h"
#include "tests/run_suite.h"

/* ----------------------------------------------------------------- the tests -- */

static void vary(client *c, int i)
{
    c->rq.rules.temperature = i % 5 ? 1.0F : 0;
    c->rq.rules.top_k = i % 4 == 1 ? 7 : 0;
    c->rq.rules.top_p = i % 4 == 2 ? 0.7F : 1;
    c->rq.rules.frequency_penalty = i % 7 == 3 ? 1.0F : 0;
}

START_TEST(any_company_gives_the_same_tokens)
{
    static const setting settings[] = {
        {.max_rows = 64, .max_seqs = 40, .n_pages = 400},
        {.max_rows = 64, .max_seqs = 40, .n_pages = 400, .cache = true, .busy = 40},
        {.max_rows = 33, .max_seqs = 32, .n_pages = 40, .cache = true, .busy = 5},
        {.max_rows = 17, .max_seqs = 9, .n_pages = 22, .cache = true},
        {.max_rows = 1, .max_seqs = 1, .n_pages = 30},
        /* every pre-empted one is swapped, some are, and as it pays */
        {.max_rows = 33, .max_seqs = 32, .n_pages = 40, .swap = 800, .preemption = PREEMPT_SWAP},
        {.max_rows = 17,
         .max_seqs = 9,
         .n_pages = 22,
         .cache = true,
         .swap = 800,
         .preemption = PREEMPT_SWAP},
        {.max_rows = 17, .max_seqs = 9, .n_pages = 22, .swap = 9, .preemption = PREEMPT_SWAP},
        {.max_rows = 33, .max_seqs = 32, .n_pages = 40, .cache = true, .swap = 800},
    };
    enum { N = 80 };
    client *c[N];
    rig *r = start(&settings[_i]);
    send_crowd(r, c, N, PROMPT, vary);
    for (int i = 0; i < N; i++) {
        int why = collect(c[i]);
        check_tokens(c[i]);
        if (why != FINISH_CANCELLED) {
            ck_assert_int_eq(why, FINISH_LENGTH);
            ck_assert_int_eq(c[i]->n_got, c[i]->rq.max_tokens);
        }
        ck_assert_int_le((int)atomic_load(&c[i]->meter.prompt_tokens), c[i]->rq.n_prompt);
        drop(c[i]);
    }
    sched_stats t = stop(r);
    if (settings[_i].n_pages < 100 && settings[_i].max_seqs > 1)
        ck_assert_uint_gt(t.n_preempted, 0);
    if (settings[_i].n_pages == 400 && settings[_i].cache) ck_assert_uint_gt(t.n_cached_tokens, 0);
    ck_assert_uint_eq(t.n_finished + t.n_cancelled, N);
    ck_assert_int_eq(t.swap.n_used, 0);
    ck_assert_uint_le(t.n_swapped_in, t.n_swapped_out);
    if (settings[_i].preemption == PREEMPT_SWAP) {
        ck_assert_uint_gt(t.n_swapped_in, 0);
        if (settings[_i].swap < 100) ck_assert_uint_lt(t.n_swapped_out, t.n_preempted);
    }
    if (settings[_i].swap == 0) ck_assert_uint_eq(t.n_swapped_out, 0);
}
END_TEST

/* Rows that cost, a few streams in a hurry beside many that are not.  _i 1: pages are short; 2:
 * what is pre-empted is swapped. */
START_TEST(streams_that_sit_out_steps_give_the_same_tokens)
{
    enum { N = 24 };
    setting st = {.max_rows = 64, .max_seqs = 20, .n_pages = _i ? 60 : 400, .cache = true};
    if (_i == 2) st.swap = 400;
    if (_i == 2) st.preemption = PREEMPT_SWAP;
    client *c[N];
    rig *r = start(&st);
    r->m.row_us = 300;
    sched_stats t = {0};
    for (int round = 0; t.n_out == 0 || (_i && t.n_preempted == 0); round++) {
        for (int i = 0; i < N; i++) {
            int n_prompt = 1 + (int)(mix(7, (uint64_t)i) % (PROMPT / 2));
            c[i] = make(i, n_prompt, 8 + (int)(mix(8, (uint64_t)i) % (MAX_NEW - 8)));
            vary_who(c[i], i);
            vary(c[i], i);
            c[i]->rq.slo_class = i % 4 ? 2 : 0;
            c[i]->rq.tpot_target_us = i % 4 ? 3600LL * 1000000 : 4000;
            submit(r, c[i]);
            if (i % 12 == 4) request_cancel(&c[i / 2]->rq);
        }
        for (int i = 0; i < N; i++) {
            int why = collect(c[i]);
            check_tokens(c[i]);
            ck_assert(why == FINISH_CANCELLED || c[i]->n_got == c[i]->rq.max_tokens);
            drop(c[i]);
        }
        sched_stats_get(r->sc, &t);
    }
    (void)stop(r);
}
END_TEST

START_TEST(the_urgent_takes_pages_and_seats_from_a_decoding_batch)
{
    /* _i 0: pages are short; 1: seats are */
    setting st = {.max_rows = 64, .max_seqs = _i ? 2 : 8, .n_pages = _i ? 100 : 14};
    rig *r = start(&st);
    client *low[2], *high = make(50, 12, 4);
    gate(r, true, 0);
    for (int i = 0; i < 2; i++) {
        low[i] = make(i, 8, 20);
        low[i]->rq.slo_class = 2;
        submit(r, low[i]);
        await_step(r, 1);
    }
    gate(r, true, 2);
    await_step(r, 3); /* both have had a step */
    if (!_i) high->rq.n_prompt = 44;
    for (int k = 12; k < 44; k++) high->prompt[k] = 1;
    submit(r, high);
    gate(r, false, 0);
    finish_well(high);
    finish_well(low[0]);
    finish_well(low[1]);
    ck_assert_int_eq(high->rq.times.n_preempted, 0);
    ck_assert_int_gt(low[0]->rq.times.n_preempted + low[1]->rq.times.n_preempted, 0);
    ck_assert(high->rq.times.last_token_us <= low[1]->rq.times.last_token_us);
    for (int i = 0; i < 2; i++) drop(low[i]);
    drop(high);
    (void)stop(r);
}
END_TEST

/* A prompt that takes three steps has them to itself, and then all go on. */
START_TEST(the_background_has_no_row_beside_an_awaited_first_token)
{
    setting st = {.max_rows = 16, .max_seqs = 4, .n_pages = 100};
    rig *r = start(&st);
    client *low[2], *high = make(50, 12, 4);
    gate(r, true, 0);
    for (int i = 0; i < 2; i++) {
        low[i] = make(i, 8, 20);
        low[i]->rq.slo_class = 2;
        low[i]->rq.background = true;
        submit(r, low[i]);
        await_step(r, 1);
    }
    gate(r, true, 2);
    await_step(r, 3); /* both are streams by now */
    high->rq.slo_class = 0;
    high->rq.n_prompt = 44;
    for (int k = 12; k < 44; k++) high->prompt[k] = 1;
    submit(r, high);
    gate(r, true, 3);
    await_step(r, 6); /* its last piece; a step may have been planned before it came */
    ck_assert_int_le(atomic_load(&low[0]->rq.out.n_pushed), 4);
    ck_assert_int_le(atomic_load(&low[1]->rq.out.n_pushed), 3);
    gate(r, false, 0);
    finish_well(high);
    for (int i = 0; i < 2; i++) finish_well(low[i]);
    for (int i = 0; i < 2; i++) drop(low[i]);
    drop(high);
    (void)stop(r);
}
END_TEST

/* _i 0: copies are dear, 1: computing is; 2, 3: the same, but the operator has decided
 * otherwise. */
START_TEST(a_preempted_request_goes_on_in_the_cheaper_way)
{
    bool swaps = _i == 1 || _i == 2;
    copy_us = _i % 2 ? 0 : 20000;
    setting st = {.max_rows = 64,
                  .max_seqs = 8,
                  .n_pages = 14,
                  .swap = 100,
                  .preemption = _i == 2   ? PREEMPT_SWAP
                                : _i == 3 ? PREEMPT_RECOMPUTE
                                          : PREEMPT_CHEAPER};
    rig *r = start(&st);
    r->m.row_us = _i % 2 ? 3000 : 0;
    client *low = make(1, 20, 24), *high = make(50, 40, 4);
    low->rq.slo_class = 2;
    gate(r, true, 16);
    submit(r, low);
    await_step(r, 17); /* the model has seen what steps cost */
    submit(r, high);
    gate(r, false, 0);
    finish_well(high);
    finish_well(low);
    ck_assert_int_eq(low->rq.times.n_preempted, 1);
    drop(low);
    drop(high);
    sched_stats t = stop(r);
    ck_assert_uint_eq(t.n_swapped_out, swaps);
    ck_assert_uint_eq(t.n_swapped_in, swaps);
    /* 20 and 16 or more of its tokens were computed once, or twice */
    ck_assert_uint_eq(t.n_prefill_tokens > 60 + 30, !swaps);
    copy_us = 0;
}
END_TEST

/* The machine changes a hundredfold at once: _i 0, what was cheap is dear; 1, the other way.  A
 * stream has a token of every step, and a prompt beside it goes on in every one. */
START_TEST(a_cost_model_that_lies_stops_nobody)
{
    setting st = {.max_rows = 64, .max_seqs = 8, .n_pages = 100};
    rig *r = start(&st);
    client *stream = make(1, 20, 24), *prompt = make(50, 60, 1);
    stream->rq.tpot_target_us = 10; /* so it never has time for a prompt beside it */
    gate(r, true, 0);
    r->m.row_us = _i ? 3000 : 0;
    submit(r, stream);
    gate(r, true, 13);
    await_step(r, 14);
    pthread_mutex_lock(&r->m.mu);
    r->m.row_us = _i ? 0 : 3000;
    pthread_mutex_unlock(&r->m.mu);
    submit(r, prompt);
    gate(r, true, 6); /* 14, which runs, and 15 to 19: 60 tokens by 16 are 4 steps */
    await_step(r, 20);
    ck_assert_int_eq(atomic_load(&prompt->rq.out.n_pushed), 1);
    ck_assert_int_eq(atomic_load(&stream->rq.out.n_pushed), 19);
    gate(r, false, 0);
    finish_well(prompt);
    finish_well(stream);
    drop(prompt);
    drop(stream);
    (void)stop(r);
}
END_TEST

/* What waits in the swap may be cancelled, and its room is free again. */
START_TEST(a_swapped_request_can_be_cancelled)
{
    setting st = {
        .max_rows = 64, .max_seqs = 1, .n_pages = 40, .swap = 100, .preemption = PREEMPT_SWAP};
    rig *r = start(&st);
    client *low = make(1, 20, 24), *high = make(50, 20, 8);
    low->rq.slo_class = 2;
    gate(r, true, 3);
    submit(r, low);
    await_step(r, 4);
    submit(r, high);
    gate(r, true, 3);
    await_step(r, 6); /* the high one runs, the low one is swapped out */
    request_cancel(&low->rq);
    gate(r, false, 0);
    ck_assert_int_eq(collect(low), FINISH_CANCELLED);
    check_tokens(low);
    finish_well(high);
    drop(low);
    drop(high);
    sched_stats t = stop(r);
    ck_assert_uint_eq(t.n_swapped_out, 1);
    ck_assert_uint_eq(t.n_swapped_in, 0);
    ck_assert_int_eq(t.swap.n_used, 0);
}
END_TEST

START_TEST(the_small_never_pass_a_large_one_for_ever)
{
    setting st = {.max_rows = 64, .max_seqs = 8, .n_pages = 15}; /* large needs 13, 15 at its end */
    rig *r = start(&st);
    client *small[30], *large = make(99, 50, 10);
    gate(r, true, 0);
    for (int i = 0; i < 30; i++) {
        small[i] = make(i, 8, 8);
        if (i == 1) submit(r, large);
        submit(r, small[i]);
        if (i == 0) await_step(r, 1); /* it has its pages: the large one can't begin */
    }
    gate(r, false, 0);
    finish_well(large);
    int before = 0;
    for (int i = 0; i < 30; i++) {
        finish_well(small[i]);
        before += small[i]->rq.times.first_token_us < large->rq.times.first_token_us;
    }
    ck_assert_int_le(before, 8);
    for (int i = 0; i < 30; i++) drop(small[i]);
    drop(large);
    (void)stop(r);
}
END_TEST

START_TEST(a_flood_of_one_tenant_does_not_hold_up_another)
{
    setting st = {.max_rows = 64, .max_seqs = 2, .n_pages = 100};
    rig *r = start(&st);
    client *flood[40], *late[4];
    gate(r, true, 0);
    for (int i = 0; i < 40; i++) submit(r, flood[i] = make(i, 8, 6));
    for (int i = 0; i < 4; i++) {
        late[i] = make(100 + i, 8, 6);
        late[i]->rq.tenant_id = 2;
        submit(r, late[i]);
    }
    gate(r, false, 0);
    int before = 0;
    for (int i = 0; i < 4; i++) finish_well(late[i]);
    for (int i = 0; i < 40; i++) {
        finish_well(flood[i]);
        before += flood[i]->rq.times.first_token_us < late[3]->rq.times.first_token_us;
    }
    ck_assert_int_le(before, 8);
    for (int i = 0; i < 4; i++) drop(late[i]);
    for (int i = 0; i < 40; i++) drop(flood[i]);
    (void)stop(r);
}
END_TEST

static int cached_of(rig *r, uint64_t isolation, uint64_t adapter)
{
    client *c = make(5, 30, 4);
    c->rq.isolation = isolation;
    c->rq.adapter_id = adapter;
    submit(r, c);
    finish_well(c);
    int cached = (int)atomic_load(&c->meter.cached_tokens);
    drop(c);
    return cached;
}

START_TEST(the_prefix_cache_stays_within_domain_and_adapter)
{
    setting st = {.max_rows = 64, .max_seqs = 8, .n_pages = 100, .cache = true};
    rig *r = start(&st);
    ck_assert_int_eq(cached_of(r, 1, 0), 0);
    ck_assert_int_eq(cached_of(r, 1, 0), 29);
    ck_assert_int_eq(cached_of(r, 2, 0), 0);
    ck_assert_int_eq(cached_of(r, 1, 1), 0);
    ck_assert_int_eq(cached_of(r, 1, 2), 0);
    ck_assert_int_eq(cached_of(r, 1, 1), 29);
    ck_assert_int_eq(cached_of(r, 2, 0), 29);
    ck_assert_uint_eq(stop(r).n_cached_tokens, 3 * 29);
}
END_TEST

START_TEST(broken_numbers_fail_one_request_and_are_not_cached)
{
    setting st = {.max_rows = 16, .max_seqs = 8, .n_pages = 100, .cache = true};
    rig *r = start(&st);
    for (int round = 0; round < 3; round++) {
        client *bad = make(7, 30, 4), *good = make(8 + round, 30, 10);
        bad->prompt[2] = POISON;
        bad->rq.score_prompt = round == 2;
        if (round == 2) bad->rq.max_tokens = 0;
        submit(r, bad);
        submit(r, good);
        ck_assert_int_eq(collect(bad), FINISH_ERROR);
        ck_assert_int_eq(bad->rq.why.code, ERR_INTERNAL);
        ck_assert_int_eq(bad->n_got, 0);
        ck_assert_int_eq((int)atomic_load(&bad->meter.cached_tokens), 0);
        finish_well(good);
        drop(bad);
        drop(good);
    }
    ck_assert_uint_eq(stop(r).n_failed, 3);
}
END_TEST

/* Those who run end, once; those who wait go on with right answers, on a device that
 * comes at the third attempt. */
START_TEST(a_broken_device_ends_who_runs_and_comes_back)
{
    setting st = {.max_rows = 64, .max_seqs = 2, .n_pages = 100, .cache = true};
    rig *r = start(&st);
    client *c[6];
    gate(r, true, 0);
    for (int i = 0; i < 6; i++) {
        c[i] = make(i, 8, 6);
        c[i]->rq.adapter_id = (uint64_t)(i % 3);
        submit(r, c[i]);
    }
    await_step(r, 1);
    gate(r, true, 2);
    await_step(r, 3); /* two run, and have tokens */
    r->m.fail = 1;
    r->m.refuse = 2;
    gate(r, false, 0);
    int ended = 0;
    for (int i = 0; i < 6; i++) {
        if (collect(c[i]) == FINISH_ERROR) {
            ck_assert_int_eq(c[i]->rq.why.code, ERR_RESTARTING);
            ended++;
        } else {
            ck_assert_int_eq(atomic_load(&c[i]->rq.finish), FINISH_LENGTH);
            check_tokens(c[i]);
        }
        drop(c[i]);
    }
    ck_assert_int_eq(ended, 2);
    sched_stats t = stop(r);
    ck_assert(t.healthy && !t.restarting);
    ck_assert_uint_eq(t.n_restarts, 1);
    ck_assert_uint_eq(t.n_failed, 2);
}
END_TEST

/* _i 0: it can't be opened; 1: it breaks again and again. */
START_TEST(a_device_that_stays_broken_is_given_up)
{
    setting st = {.max_rows = 64, .max_seqs = 2, .n_pages = 100};
    rig *r = start(&st);
    client *c[20], *after = make(50, 4, 4);
    gate(r, true, 0);
    r->m.fail = _i ? 1000 : 1;
    r->m.refuse = _i ? 0 : 1000;
    for (int i = 0; i < 20; i++) submit(r, c[i] = make(i, 8, 6));
    request_cancel(&c[19]->rq);
    gate(r, false, 0);
    int restarting = 0;
    for (int i = 0; i < 20; i++) {
        finish_reason why = collect(c[i]);
        ck_assert_int_eq(why, i == 19 ? FINISH_CANCELLED : FINISH_ERROR);
        if (i != 19) restarting += c[i]->rq.why.code == ERR_RESTARTING;
        if (i != 19 && c[i]->rq.why.code != ERR_RESTARTING)
            ck_assert_int_eq(c[i]->rq.why.code, ERR_DEVICE);
        drop(c[i]);
    }
    ck_assert_int_ge(restarting, _i ? 6 : 1); /* one or two run when it breaks */
    ck_assert_int_le(restarting, _i ? 12 : 2);
    ck_assert_int_eq(request_prepare(&after->rq, NULL), ERR_NONE);
    err e;
    ck_assert_int_eq(sched_submit(r->sc, &after->rq, &e), ERR_DEVICE);
    drop(after);
    sched_stats t = stop(r);
    ck_assert(!t.healthy && !t.restarting);
    ck_assert_uint_eq(t.n_failed, 19);
}
END_TEST

START_TEST(a_cancelled_request_goes_within_one_step)
{
    setting st = {.max_rows = 64, .max_seqs = 4, .n_pages = 100};
    rig *r = start(&st);
    client *c = make(1, 8, 20), *queued = make(2, 8, 20), *other = make(3, 8, 10);
    gate(r, true, 2);
    submit(r, c);
    await_step(r, 3); /* two tokens are out, the third step runs */
    submit(r, queued);
    submit(r, other);
    request_cancel(&c->rq);
    request_cancel(&queued->rq);
    gate(r, false, 0);
    ck_assert_int_eq(collect(c), FINISH_CANCELLED);
    ck_assert_int_eq(c->n_got, 3);
    check_tokens(c);
    ck_assert_int_eq(collect(queued), FINISH_CANCELLED);
    ck_assert_int_eq(queued->n_got, 0);
    finish_well(other);
    drop(c);
    drop(queued);
    drop(other);
    ck_assert_uint_eq(stop(r).n_cancelled, 2);
}
END_TEST

/* The engine shows its queue between steps, and a reader who comes in the midst of one gets the
 * last picture instead of waiting for the step. */
START_TEST(the_board_shows_the_queue_between_steps)
{
    setting st = {.max_rows = 64, .max_seqs = 1, .n_pages = 100};
    rig *r = start(&st);
    client *c = make(1, 8, 20), *queued = make(2, 12, 5);
    board_picture p = {0};
    c->rq.id = 71;
    queued->rq.id = 72;
    queued->rq.tenant_id = queued->rq.isolation = 9;
    queued->rq.slo_class = 2;
    queued->rq.ttft_deadline_us = clock_now_us(); /* it is late from the first on */
    c->rq.ttft_deadline_us = clock_now_us() + INT64_C(3600) * 1000000;
    gate(r, true, 1);
    submit(r, c);
    await_step(r, 2); /* one token is out, the second step stands at the gate */
    submit(r, queued);
    /* It waits longer than it took from its deadline to the queue, however slow the machine is. */
    int64_t sent_us = clock_now_us(), until_us = 2 * sent_us - queued->rq.ttft_deadline_us + 1000;
    while (clock_now_us() < until_us) usleep(500);
    ck_assert(!board_read(sched_board(r->sc), 1000, &p)); /* asked: there is none yet */
    gate(r, true, 2);
    await_step(r, 4);
    ck_assert(board_read(sched_board(r->sc), 0, &p)); /* the engine is inside its fourth step */
    int64_t first_us = p.taken_us;
    ck_assert_int_gt(first_us, 0);
    ck_assert_int_le(first_us, clock_now_us());
    gate(r, true, 1);
    await_step(r, 5);
    ck_assert(board_read(sched_board(r->sc), 0, &p));
    ck_assert_int_gt(p.taken_us, first_us);
    ck_assert_int_eq(p.n_row, 2);
    ck_assert_uint_eq(p.row[0].id, 71);
    ck_assert(p.row[0].running);
    ck_assert_int_eq(p.row[0].n_prompt, 8);
    ck_assert_int_eq(p.row[0].n_output, 4);
    ck_assert_int_eq(p.row[0].overdue, MISS_NONE);
    ck_assert_int_eq(p.row[1].overdue, MISS_QUEUE);
    ck_assert_int_gt(p.row[0].first_token_us, 0);
    ck_assert_uint_eq(p.row[1].id, 72);
    ck_assert_uint_eq(p.row[1].tenant_id, 9);
    ck_assert_int_eq(p.row[1].slo_class, 2);
    ck_assert(!p.row[1].running);
    ck_assert_int_eq(p.row[1].n_output, 0);
    ck_assert_int_eq(p.n_share, 2);
    ck_assert_int_eq(p.share[0].active, 1);
    ck_assert(p.share[0].served > 0);
    gate(r, false, 0);
    finish_well(c);
    finish_well(queued);
    while (p.n_row) ck_assert(board_read(sched_board(r->sc), 1000, &p)); /* idle: it shows that */
    board_picture_clear(&p);
    sched_stats t = stop(r);
    ck_assert_int_ge(t.forward_us, 0);
    ck_assert_int_le(t.forward_us + t.sample_us, t.busy_us + 1);
    drop(c);
    drop(queued);
}
END_TEST

/* Nobody tells the engine that a mask is there: with every running row
 * parked for one, it must look. */
START_TEST(rows_that_all_wait_for_their_masks_go_on_when_these_come)
{
    enum { N = 3, TOKENS = 4 };
    setting st = {.max_rows = 64, .max_seqs = N, .n_pages = 100};
    rig *r = start(&st);
    struct grammar_run form[N];
    client *c[N];
    for (int i = 0; i < N; i++) {
        form[i] = (struct grammar_run){.mask = {~0U, ~0U}};
        c[i] = make(i, 8 + i, TOKENS);
        c[i]->rq.grammar = &form[i];
        submit(r, c[i]);
    }
    for (int k = 1; k <= TOKENS; k++) {
        for (int i = 0; i < N; i++) { /* its k-th mask was asked for: it is parked */
            while (atomic_load(&form[i].asked) < k) (void)sched_yield();
        }
        /* and when all are, the engine has gone to sleep at least once */
        for (int beats = 0; beats < 3; beats++) {
            int64_t at = sched_heartbeat_us(r->sc);
            while (sched_heartbeat_us(r->sc) == at) (void)sched_yield();
        }
        for (int i = 0; i < N; i++) atomic_store(&form[i].ready, true);
    }
    for (int i = 0; i < N; i++) {
        finish_well(c[i]);
        drop(c[i]);
    }
    ck_assert_uint_eq(stop(r).n_finished, N);
}
END_TEST

/* A request that stops of its own after six tokens, whatever its bound. */
static client *make_brief(int id)
{
    static const int32_t stop_id = STOP;
    static const logit_bias bias = {STOP, 90};
    client *c = make(id, 8, 20);
    c->rq.rules.stop_id = &stop_id;
    c->rq.rules.n_stop_id = 1;
    c->rq.rules.min_tokens = 5;
    c->rq.rules.bias = &bias;
    c->rq.rules.n_bias = 1;
    return c;
}

/* What answers come to is learnt, and a seat charged with that instead of max_tokens. */
START_TEST(lengths_are_learnt_and_charged)
{
    enum { N = 16 };
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 1, .n_pages = 100});
    board_picture p = {0};
    lengths_record seen;
    for (int i = 0; i < N; i++) {
        client *c = make_brief(1 + i);
        submit(r, c);
        ck_assert_int_eq(collect(c), FINISH_STOP);
        ck_assert_int_eq(c->n_got, 6);
        ck_assert(c->rq.run.length.mean == (i < 10 ? 20 : 6));
        drop(c);
    }
    sched_lengths_get(r->sc, 0, &seen);
    ck_assert(seen.bounded == 10 && seen.held == N - 10 && seen.exceeded == 0);
    do (void)board_read(sched_board(r->sc), 1000, &p);
    while (p.n_share == 0 || p.n_row > 0); /* idle: no step is under way any more */
    double before = p.share[0].served;
    pthread_mutex_lock(&r->m.mu);
    int begun = r->m.begun;
    pthread_mutex_unlock(&r->m.mu);
    client *c = make_brief(N + 1);
    gate(r, true, 1);
    submit(r, c);
    await_step(r, begun + 2);
    (void)board_read(sched_board(r->sc), 1000, &p);
    gate(r, true, 2);
    await_step(r, begun + 4);
    ck_assert(board_read(sched_board(r->sc), 0, &p));
    ck_assert(p.n_row == 1 && p.row[0].running);
    ck_assert_double_eq_tol(p.share[0].served - before, 8 + 2 * 6, 1e-6);
    gate(r, false, 0);
    ck_assert_int_eq(collect(c), FINISH_STOP);
    drop(c);
    board_picture_clear(&p);
    (void)stop(r);
}
END_TEST

START_TEST(stop_ids_min_tokens_and_expiry)
{
    setting st = {.max_rows = 64, .max_seqs = 4, .n_pages = 100};
    static const int32_t stop_id[] = {STOP, 30000};
    static const logit_bias bias[] = {{STOP, 90}};
    rig *r = start(&st);
    client *c = make(1, 8, 20), *late = make(2, 8, 20), *broken = make(3, 8, 8);
    c->rq.rules.stop_id = stop_id;
    c->rq.rules.n_stop_id = 2;
    c->rq.rules.min_tokens = 5;
    c->rq.rules.bias = bias;
    c->rq.rules.n_bias = 1;
    submit(r, c);
    ck_assert_int_eq(collect(c), FINISH_STOP);
    ck_assert_int_eq(c->n_got, 6); /* the stop token is handed out and counted */
    ck_assert_int_eq(c->got[5], STOP);
    check_tokens(c);
    late->rq.expires_us = 1;
    submit(r, late);
    ck_assert_int_eq(collect(late), FINISH_ERROR);
    ck_assert_int_eq(late->rq.why.code, ERR_TIMEOUT);
    broken->rq.adapter_id = 77;
    submit(r, broken);
    ck_assert_int_eq(collect(broken), FINISH_ERROR);
    ck_assert_int_eq(broken->rq.why.code, ERR_CORRUPT);
    drop(c);
    drop(late);
    drop(broken);
    (void)stop(r);
}
END_TEST

/* The client's own deadline, which passed while it waited, and one that
 * has its first token already. */
START_TEST(who_has_stopped_waiting_is_not_served)
{
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100});
    client *gone = make(1, 8, 20), *served = make(2, 8, 20);
    gone->rq.patience_us = 1;
    submit(r, gone);
    ck_assert_int_eq(collect(gone), FINISH_ERROR);
    ck_assert_int_eq(gone->rq.why.code, ERR_TIMEOUT);
    ck_assert_int_eq(gone->n_got, 0);
    served->rq.patience_us = INT64_MAX;
    submit(r, served);
    finish_well(served);
    drop(gone);
    drop(served);
    (void)stop(r);
}
END_TEST

/* A prompt was checked against the vocabulary that the adapter was said to have. */
START_TEST(an_adapter_of_another_vocabulary_serves_nobody)
{
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100});
    client *c = make(1, 8, 4), *sound = make(2, 8, 4);
    r->view[1].n_vocab = VOCAB - 1;
    c->rq.adapter_id = 2;
    sound->rq.adapter_id = 1;
    submit(r, c);
    submit(r, sound);
    ck_assert_int_eq(collect(c), FINISH_ERROR);
    ck_assert_int_eq(c->rq.why.code, ERR_CORRUPT);
    ck_assert_int_eq(c->n_got, 0);
    finish_well(sound);
    drop(c);
    drop(sound);
    (void)stop(r);
}
END_TEST

/* Of 20 pages an adapter takes 5: what would need 16 beside it never comes to its end. */
START_TEST(what_does_not_fit_beside_its_adapter_is_refused)
{
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 20});
    client *large = make(1, 41, 20), *fits = make(2, 40, 20), *bare = make(3, 41, 20);
    r->chunks = 5;
    large->rq.adapter_id = fits->rq.adapter_id = 1;
    submit(r, large);
    ck_assert_int_eq(collect(large), FINISH_ERROR);
    ck_assert_int_eq(large->rq.why.code, ERR_LIMIT);
    ck_assert_int_eq(large->rq.missed.why, MISS_PROMPT); /* its adapter was there */
    submit(r, fits);
    finish_well(fits);
    submit(r, bare);
    finish_well(bare);
    drop(large);
    drop(fits);
    drop(bare);
    (void)stop(r);
}
END_TEST

START_TEST(prompts_are_scored_in_any_chunks_and_company)
{
    setting st = {.max_rows = 16, .max_seqs = 6, .n_pages = _i ? 20 : 200, .cache = true};
    rig *r = start(&st);
    client *c[12];
    sampler *sp = sampler_create(VOCAB);
    for (int i = 0; i < 12; i++) {
        c[i] = make(i / 2, 40, i % 3 ? 8 : 0);
        c[i]->rq.score_prompt = true;
        c[i]->rq.score_top = 2;
        submit(r, c[i]);
    }
    for (int i = 0; i < 12; i++) {
        finish_well(c[i]);
        uint64_t h = 1;
        for (int p = 0; p + 1 < 40; p++) {
            float logits[VOCAB];
            sampled want;
            h = mix(mix(h, (uint64_t)c[i]->prompt[p] + 1), 0);
            logits_of_hash(mix(h, 0), logits);
            sampler_score(sp, logits, c[i]->prompt[p + 1], 2, &want);
            ck_assert(memcmp(&want, &c[i]->rq.out.score[p + 1], sizeof(want)) == 0);
        }
        drop(c[i]);
    }
    sampler_destroy(sp);
    (void)stop(r);
}
END_TEST

/* Where no token may come the request ends, with its reason, and nobody else's. */
START_TEST(who_may_say_nothing_more_fails_alone)
{
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100, .cache = true});
    client *stuck = make(3, 9, 8), *other = make(4, 5, 8);
    int32_t twice[2] = {5, 5};
    stuck->rq.bars = stuck->bars = bars_create(VOCAB, twice, 1);
    ck_assert(bars_forbid(stuck->bars, twice, 2, false));
    submit(r, stuck);
    submit(r, other);
    ck_assert_int_eq(collect(stuck), FINISH_ERROR);
    ck_assert_int_eq(stuck->rq.why.code, ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(stuck->rq.why.msg, "no token may come"));
    ck_assert_int_eq(stuck->n_got, 1);
    ck_assert_int_eq(stuck->got[0], 5);
    finish_well(other);
    drop(stuck);
    drop(other);
    (void)stop(r);
}
END_TEST

static void refused(rig *r, client *c, err_code want)
{
    err e;
    ck_assert_int_eq(request_prepare(&c->rq, NULL), ERR_NONE);
    ck_assert_int_eq(sched_submit(r->sc, &c->rq, &e), want);
    ck_assert_ptr_null(c->rq.run.page);
    drop(c);
}

START_TEST(what_cannot_be_served_is_refused)
{
    setting st = {.max_rows = 64, .max_seqs = 1, .n_pages = 10, .max_queued = 2};
    static const logit_bias bias[] = {{VOCAB, 1}};
    rig *r = start(&st);
    ck_assert_int_eq(sched_max_context(r->sc), 40);
    refused(r, make(1, 30, 11), ERR_INPUT);
    refused(r, make(1, 10, 0), ERR_INPUT);
    client *c = make(1, 8, 8);
    c->prompt[3] = VOCAB;
    refused(r, c, ERR_INPUT);
    c = make(1, 8, 8);
    c->prompt[0] = -1;
    refused(r, c, ERR_INPUT);
    c = make(1, 8, 8);
    c->rq.rules.bias = bias;
    c->rq.rules.n_bias = 1;
    refused(r, c, ERR_INPUT);
    c = make(1, 8, 8);
    c->rq.weight = 0;
    refused(r, c, ERR_INPUT);
    c = make(1, 8, 8);
    c->rq.rules.temperature = NAN;
    refused(r, c, ERR_INPUT);
    for (int from = -1; from <= 8; from += 9) { /* not within the prompt */
        c = make(1, 8, 8);
        c->rq.adapter_from = from;
        refused(r, c, ERR_INPUT);
    }
    c = make(1, 8, 8);
    c->rq.slo_class = 3;
    refused(r, c, ERR_INPUT);
    gate(r, true, 0);
    client *full[3];
    const slo_class classes[SLO_CLASS_MAX] = {{"a", 500000, 50000, 4, false, 0},
                                              {"b", 2000000, 100000, 2, false, 1},
                                              {"c", 60000000, 1000000, 1, false, 2}};
    sched_adjust(r->sc, classes, 1);
    for (int i = 0; i < 2; i++) submit(r, full[i] = make(i, 8, 4));
    refused(r, make(1, 8, 8), ERR_BUSY);
    sched_adjust(r->sc, classes, 99); /* no more than at the start */
    submit(r, full[2] = make(2, 8, 4));
    refused(r, make(1, 8, 8), ERR_BUSY);
    gate(r, false, 0);
    for (int i = 0; i < 3; i++) {
        finish_well(full[i]);
        drop(full[i]);
    }
    ck_assert(sched_drain(r->sc, 60000000));
    refused(r, make(1, 8, 8), ERR_STOPPING);
    (void)stop(r);
}
END_TEST

START_TEST(destroying_ends_what_still_runs)
{
    setting st = {.max_rows = 64, .max_seqs = 2, .n_pages = 100};
    rig *r = start(&st);
    client *c[4];
    gate(r, true, 0);
    for (int i = 0; i < 4; i++) submit(r, c[i] = make(i, 8, 20));
    await_step(r, 1);
    for (int i = 0; i < 4; i++) request_cancel(&c[i]->rq);
    gate(r, false, 0);
    sched_destroy(r->sc);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(collect(c[i]), FINISH_CANCELLED);
        drop(c[i]);
    }
    be_close(r->be);
    pthread_cond_destroy(&r->m.change);
    pthread_mutex_destroy(&r->m.mu);
    free(r);
}
END_TEST

/* What waits for an adapter that comes too late is refused at once, and told when to come back. */
START_TEST(a_cold_adapter_counts_at_admission)
{
    rig *r = start(&(setting){.max_rows = 16, .max_seqs = 4, .n_pages = 64, .ttft_us = 60000000});
    r->m.row_us = 500;
    for (int i = 0; i < 3; i++) {
        client *learn = make(1 + i, 40, 12);
        submit(r, learn);
        ck_assert_int_eq(collect(learn), FINISH_LENGTH);
        drop(learn);
    }
    client *c = make(9, 4, 2);
    c->rq.adapter_id = 3;
    atomic_store(&r->eta_us, 70000000);
    ck_assert_int_gt(sched_retry_us(r->sc, &c->rq), 0);
    c->rq.adapter_id = 0;
    ck_assert_int_eq(sched_retry_us(r->sc, &c->rq), 0);
    c->rq.adapter_id = 3;
    err e;
    ck_assert_int_eq(request_prepare(&c->rq, NULL), ERR_NONE);
    ck_assert_int_eq(sched_submit(r->sc, &c->rq, &e), ERR_BUSY);
    atomic_store(&r->eta_us, 0);
    submit(r, c);
    ck_assert_int_eq(collect(c), FINISH_LENGTH);
    drop(c);
    (void)stop(r);
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

/* ------------------------------------------------------------- steps in flight -- */

/* How many steps the device could begin without a look of the host between them. */
START_TEST(the_next_step_is_enqueued_before_this_one_is_seen)
{
    bool off = _i == 1;
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100, .no_overlap = off});
    client *c = make(1, 9, 20);
    c->rq.rules.temperature = 1;
    c->rq.rules.seed = 5;
    submit(r, c);
    finish_well(c);
    drop(c);
    ck_assert_int_eq(r->m.n_enqueued, 20);
    ck_assert_int_eq(r->m.n_ahead, off ? 0 : 19);
    ck_assert_int_eq(r->m.most_ahead, off ? 1 : 2);
    printf("the device waited for the host between %d of 20 steps\n", 19 - r->m.n_ahead);
    sched_stats t = stop(r);
    ck_assert_uint_eq(t.n_steps_ahead, off ? 0 : 19);
    ck_assert_uint_eq(t.n_discarded, 0); /* its last token's number was known */
    ck_assert_uint_eq(t.n_output_tokens, 20);
}
END_TEST

/* It ends by a token that nobody knew when its next row was enqueued. */
START_TEST(a_row_behind_a_stop_is_discarded)
{
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100, .cache = true});
    client *first = make(40 + _i, 8 + _i, 12), *c = make(40 + _i, 8 + _i, 12);
    submit(r, first);
    finish_well(first);
    int n = 6;
    for (int k = 0; k < n; k++) { /* the first of its kind */
        if (first->got[k] == first->got[n - 1]) n = k + 1;
    }
    int32_t stop_at = first->got[n - 1];
    drop(first);
    sched_stats t;
    do { /* the counts follow the last event */
        sched_stats_get(r->sc, &t);
    } while (t.n_running || t.n_pages_used);
    uint64_t before = t.n_output_tokens;
    c->rq.rules.stop_id = &stop_at;
    c->rq.rules.n_stop_id = 1;
    c->rq.isolation = 77; /* none of the pages of the first */
    int cached = t.n_pages_cached;
    submit(r, c);
    ck_assert_int_eq(collect(c), FINISH_STOP);
    ck_assert_int_eq(c->n_got, n);
    check_tokens(c);
    t = stop(r);
    ck_assert_uint_eq(t.n_output_tokens - before, (uint64_t)n);
    ck_assert_uint_eq(t.n_discarded, 1);
    /* The discarded row wrote position 8 + _i + n - 1; a page that ends with it is nobody's. */
    ck_assert_int_eq(t.n_pages_cached - cached, (8 + _i + n - 1) / PT);
    drop(c);
}
END_TEST

/* What the next step needs and only the host has: penalties, the form of the answer, scores. */
START_TEST(rows_that_need_the_host_wait_for_it)
{
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100});
    struct grammar_run form = {.ready = true};
    client *c = make(3, 9, 8), *other = make(4, 5, 20);
    if (_i == 0) c->rq.rules.repetition_penalty = 1.5F;
    if (_i == 1) c->rq.rules.presence_penalty = 1;
    if (_i == 2) c->rq.rules.frequency_penalty = 1;
    if (_i == 3) {
        memset(form.mask, 0xFF, sizeof(form.mask));
        c->rq.grammar = &form;
    }
    if (_i == 4) {
        bar(c, true);
        bar(other, false); /* hangs on nothing */
    }
    submit(r, c);
    if (_i == 3) {
        for (int k = 0; k < 8;) { /* its masks come late, one by one */
            if (atomic_load(&form.asked)) {
                atomic_store(&form.asked, 0);
                atomic_store(&form.ready, true);
            }
            k = atomic_load(&c->rq.out.n_pushed);
        }
    }
    finish_well(c);
    ck_assert_int_eq(r->m.n_ahead, 0);
    submit(r, other); /* alone, it does not */
    finish_well(other);
    ck_assert_int_eq(r->m.n_ahead, 19);
    drop(c);
    drop(other);
    (void)stop(r);
}
END_TEST

/* A client goes, or the device fails, with one step at the gate and another behind it. */
START_TEST(an_end_between_two_steps_leaks_nothing)
{
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100, .cache = true});
    client *gone = make(1, 8, 20), *other = make(2, 8, 20);
    gone->rq.adapter_id = 2;
    gate(r, true, 0);
    submit(r, gone);
    submit(r, other);
    gate(r, true, 3);
    await_step(r, 4); /* the fourth stands at the gate, the fifth is behind it */
    request_cancel(&gone->rq);
    if (_i == 1) r->m.fail = 1;
    gate(r, false, 0);
    int why = collect(gone), other_why = collect(other);
    ck_assert_int_eq(why, _i ? FINISH_ERROR : FINISH_CANCELLED);
    check_tokens(gone);
    check_tokens(other);
    ck_assert_int_eq(other_why, _i ? FINISH_ERROR : FINISH_LENGTH);
    sched_stats t = stop(r); /* when no page is used any more; adapters were given back */
    ck_assert_uint_eq(t.n_discarded, _i ? 0 : 1);
    ck_assert_uint_eq(t.n_finished + t.n_cancelled + t.n_failed, 2);
    drop(gone);
    drop(other);
}
END_TEST

/* All of it three times: the host samples, the backend does, the backend computes nothing
 * before the scheduler waits. */
static void add_tests(Suite *s, const char *name, void (*before)(void))
{
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 120);
    if (before) tcase_add_checked_fixture(tc, before, NULL);
    tcase_add_loop_test(tc, any_company_gives_the_same_tokens, 0, 9);
    tcase_add_loop_test(tc, streams_that_sit_out_steps_give_the_same_tokens, 0, 3);
    tcase_add_loop_test(tc, the_urgent_takes_pages_and_seats_from_a_decoding_batch, 0, 2);
    tcase_add_test(tc, the_background_has_no_row_beside_an_awaited_first_token);
    tcase_add_loop_test(tc, a_preempted_request_goes_on_in_the_cheaper_way, 0, 4);
    tcase_add_loop_test(tc, a_cost_model_that_lies_stops_nobody, 0, 2);
    tcase_add_test(tc, a_swapped_request_can_be_cancelled);
    tcase_add_test(tc, the_small_never_pass_a_large_one_for_ever);
    tcase_add_test(tc, a_flood_of_one_tenant_does_not_hold_up_another);
    tcase_add_test(tc, the_prefix_cache_stays_within_domain_and_adapter);
    tcase_add_test(tc, broken_numbers_fail_one_request_and_are_not_cached);
    tcase_add_test(tc, a_broken_device_ends_who_runs_and_comes_back);
    tcase_add_loop_test(tc, a_device_that_stays_broken_is_given_up, 0, 2);
    tcase_add_test(tc, a_cancelled_request_goes_within_one_step);
    tcase_add_test(tc, the_board_shows_the_queue_between_steps);
    tcase_add_test(tc, rows_that_all_wait_for_their_masks_go_on_when_these_come);
    tcase_add_test(tc, lengths_are_learnt_and_charged);
    tcase_add_test(tc, stop_ids_min_tokens_and_expiry);
    tcase_add_test(tc, who_has_stopped_waiting_is_not_served);
    tcase_add_test(tc, what_does_not_fit_beside_its_adapter_is_refused);
    tcase_add_test(tc, an_adapter_of_another_vocabulary_serves_nobody);
    tcase_add_loop_test(tc, prompts_are_scored_in_any_chunks_and_company, 0, 2);
    tcase_add_test(tc, who_may_say_nothing_more_fails_alone);
    tcase_add_test(tc, what_cannot_be_served_is_refused);
    tcase_add_test(tc, destroying_ends_what_still_runs);
    tcase_add_test(tc, a_cold_adapter_counts_at_admission);
    suite_add_tcase(s, tc);
}

static void add_ahead_tests(Suite *s)
{
    TCase *tc = tcase_create("in flight");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, ahead, NULL);
    tcase_add_loop_test(tc, the_next_step_is_enqueued_before_this_one_is_seen, 0, 2);
    tcase_add_loop_test(tc, a_row_behind_a_stop_is_discarded, 0, PT);
    tcase_add_loop_test(tc, rows_that_need_the_host_wait_for_it, 0, 5);
    tcase_add_loop_test(tc, an_end_between_two_steps_leaks_nothing, 0, 2);
    suite_add_tcase(s, tc);
}

int main(void)
{
    Suite *s = suite_create("sched");
    add_tests(s, "host", NULL);
    add_tests(s, "device", on_device);
    add_tests(s, "ahead", ahead);
    add_ahead_tests(s);
    return run_suite(s);
}
