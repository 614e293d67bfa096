/* test_wire.c -- a request and its tokens come out as they went in; bytes of strangers do not. */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/move/wire.h"
#include "tests/run_suite.h"

static const int32_t prompt[] = {5, 6, 7}, stops[] = {2, 3};
static const logit_bias biases[] = {{42, 1.5F}};

static void begin(request *rq)
{
    request_init(rq);
    rq->id = 77;
    rq->tenant_id = 8;
    rq->isolation = UINT64_MAX;
    rq->adapter_from = 1;
    rq->prompt = prompt;
    rq->n_prompt = 3;
    rq->max_tokens = 10;
    rq->weight = 2.5F;
    rq->expires_us = 5000;
    rq->rules.seed = UINT64_C(0xfedcba9876543210);
    rq->rules.stop_id = stops;
    rq->rules.n_stop_id = 2;
    rq->rules.bias = biases;
    rq->rules.n_bias = 1;
    rq->rules.top_k = 40;
    rq->rules.presence_penalty = -0.3F;
    rq->rules.n_top = 3;
    rq->rules.ignore_eos = true;
    ck_assert_int_eq(request_prepare(rq, NULL), ERR_NONE);
    request_give(rq, 11);
    request_give(rq, 12);
}

static void *order_of(request *rq, size_t *len)
{
    void *order;
    err e;
    const move_name name = {.build = "fp_1",
                            .class = "standard",
                            .adapter = "mine@7",
                            .digest = {1, 2},
                            .owner = 4,
                            .version_id = 99,
                            .pass = UINT64_C(1) << 63,
                            .node = 5};
    ck_assert_int_eq(move_write(rq, &name, rq->max_tokens, 1000, &order, len, &e), ERR_NONE);
    return order;
}

START_TEST(a_request_comes_out_as_it_went_in)
{
    request rq, got;
    move_name name;
    const int32_t *given;
    arena memory;
    size_t len;
    err e;
    begin(&rq);
    arena_init(&memory, 1 << 20);
    void *order = order_of(&rq, &len);
    ck_assert_int_eq(move_read(order, len, 200000, &memory, &got, &name, &given, &e), ERR_NONE);
    ck_assert_str_eq(name.build, "fp_1");
    ck_assert_str_eq(name.class, "standard");
    ck_assert_str_eq(name.adapter, "mine@7");
    ck_assert(name.owner == 4 && name.version_id == 99 && got.adapter_id == 99);
    ck_assert(name.pass == UINT64_C(1) << 63 && name.node == 5 && name.digest[1] == 2);
    ck_assert(got.id == 77 && got.tenant_id == 8 && got.isolation == UINT64_MAX);
    ck_assert(got.n_prompt == 3 && got.max_tokens == 10 && got.n_given == 2);
    ck_assert(got.adapter_from == 1 && got.weight == 2.5F && got.expires_us == 204000);
    ck_assert_mem_eq(got.prompt, prompt, sizeof(prompt));
    ck_assert(given[0] == 11 && given[1] == 12);
    ck_assert(got.rules.seed == rq.rules.seed && got.rules.top_k == 40 && got.rules.n_top == 3);
    ck_assert(got.rules.presence_penalty == -0.3F && got.rules.ignore_eos);
    ck_assert_mem_eq(got.rules.stop_id, stops, sizeof(stops));
    ck_assert_mem_eq(got.rules.bias, biases, sizeof(biases));
    free(order);
    request_clear(&rq);
    arena_clear(&memory);
}
END_TEST

/* Every shorter one, longer ones, and each byte of the head set to values at the edges. */
START_TEST(other_bytes_are_refused_or_within_bounds)
{
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff};
    request rq, got;
    move_name name;
    const int32_t *given;
    arena memory;
    size_t len;
    err e;
    begin(&rq);
    char *order = order_of(&rq, &len);
    arena_init(&memory, 64 << 20);
    for (size_t n = 0; n < len; n++) {
        char *cut = malloc(n + 1); /* its end is where a sanitizer sees it */
        memcpy(cut, order, n);
        ck_assert_int_eq(move_read(cut, n, 0, &memory, &got, &name, &given, &e), ERR_INPUT);
        free(cut);
    }
    for (size_t i = 0; i < sizeof(move_head); i++) {
        char was = order[i];
        for (size_t k = 0; k < sizeof(edges); k++) {
            order[i] = (char)edges[k];
            if (move_read(order, len, 0, &memory, &got, &name, &given, &e)) continue;
            ck_assert(got.n_prompt >= 1 && got.n_given >= 0 && got.n_given < got.max_tokens);
            ck_assert(memchr(name.adapter, 0, sizeof(name.adapter)) != NULL);
            ck_assert(got.rules.n_top <= SAMPLE_TOP_MAX && got.rules.n_top >= -1);
            const void *end = got.rules.bias + got.rules.n_bias;
            ck_assert((const char *)end - (const char *)got.prompt ==
                      (ptrdiff_t)(len - sizeof(move_head)));
        }
        order[i] = was;
    }
    free(order);
    request_clear(&rq);
    arena_clear(&memory);
}
END_TEST

START_TEST(tokens_come_out_as_they_went_in)
{
    char text[MOVE_TOKEN_MAX];
    sampled got, t = {.token = 9, .logprob = -1.25F, .rank = 4, .n_top = 2};
    t.top_id[0] = 9;
    t.top_id[1] = 3;
    t.top_logprob[0] = -1.25F;
    t.top_logprob[1] = -2;
    size_t n = move_put(&t, text);
    ck_assert_uint_eq(n, 32);
    for (size_t i = 0; i < n; i++) ck_assert_int_eq(move_take(text, i, &got), 0);
    ck_assert_int_eq(move_take(text, n, &got), 32);
    ck_assert(got.token == 9 && got.n_top == 2 && got.rank == 4 && got.logprob == -1.25F);
    ck_assert(got.top_id[1] == 3 && got.top_logprob[1] == -2);
    t.n_top = SAMPLE_TOP_MAX + 1;
    memcpy(text + 12, &t.n_top, 4);
    ck_assert_int_eq(move_take(text, sizeof(text), &got), -1);
    t = (sampled){.token = MOVE_CACHED, .rank = 64, .n_top = -1};
    ck_assert_int_eq(move_take(text, move_put(&t, text), &got), 16);
    ck_assert(got.token == MOVE_CACHED && got.rank == 64);
    t = (sampled){.token = -4, .n_top = -1};
    ck_assert_int_eq(move_take(text, move_put(&t, text), &got), -1);
}
END_TEST

/* The first token alone may be asked for; an adapter may be announced before. */
START_TEST(prompts_and_notices)
{
    request rq, got;
    move_name name = {.build = "fp_1", .adapter = "mine@7", .owner = 4, .version_id = 9}, back;
    const int32_t *given;
    arena memory;
    void *order;
    size_t len;
    err e;
    begin(&rq);
    rq.n_given = 0;
    atomic_store(&rq.out.n_pushed, 0);
    arena_init(&memory, 1 << 20);
    ck_assert_int_eq(move_write(&rq, &name, 1, 0, &order, &len, &e), ERR_NONE);
    ck_assert_int_eq(move_read(order, len, 0, &memory, &got, &back, &given, &e), ERR_NONE);
    ck_assert(got.max_tokens == 1 && got.n_given == 0 && got.n_prompt == 3);
    kv_domain d = move_domain(&rq, &name), bare;
    ck_assert(d.isolation == rq.isolation && d.from == 0);
    rq.adapter_id = 9;
    name.digest[5] = 1;
    bare = move_domain(&rq, &name);
    ck_assert(bare.from == rq.adapter_from && bare.digest[5] == 1);
    free(order);
    ck_assert_int_eq(move_write_notice(&name, &order, &len, &e), ERR_NONE);
    ck_assert_int_eq(move_read_notice(order, len, &back, &e), ERR_NONE);
    ck_assert_mem_eq(&back, &name, sizeof(name));
    ck_assert_int_eq(move_read_notice(order, len - 1, &back, &e), ERR_INPUT);
    ((char *)order)[0] ^= 1;
    ck_assert_int_eq(move_read_notice(order, len, &back, &e), ERR_INPUT);
    ((char *)order)[0] ^= 1;
    memset(((move_notice *)order)->name.adapter, 'x', sizeof(name.adapter));
    ck_assert_int_eq(move_read_notice(order, len, &back, &e), ERR_INPUT);
    ((move_notice *)order)->name.adapter[0] = 0;
    ck_assert_int_eq(move_read_notice(order, len, &back, &e), ERR_INPUT);
    free(order);
    request_clear(&rq);
    arena_clear(&memory);
}
END_TEST

/* Of an ask and of what pages are: as they were, and no byte of them may be another one. */
START_TEST(pages_are_those_that_were_asked_for)
{
    move_ask ask, got;
    move_pages ours, come;
    err e;
    move_write_ask("fp_1", 77, 5, &ask);
    ck_assert_int_eq(move_read_ask(&ask, sizeof(ask), &got, &e), ERR_NONE);
    ck_assert(got.pass == 77 && got.first == 5 && strcmp(got.build, "fp_1") == 0);
    for (size_t n = 0; n < sizeof(ask); n++)
        ck_assert_int_eq(move_read_ask(&ask, n, &got, &e), ERR_INPUT);
    for (size_t i = 0; i < sizeof(ask); i++) {
        move_ask bad = ask;
        ((unsigned char *)&bad)[i] ^= 0x80;
        if (move_read_ask(&bad, sizeof(bad), &got, &e)) continue;
        ck_assert(got.first >= 0 && got.first <= INT32_MAX);
        ck_assert(memchr(got.build, 0, sizeof(got.build)) != NULL);
    }
    move_write_pages("fp_1", 4096, 16, 5, &ours);
    ck_assert_int_eq(move_check_pages(&ours, &ours, &e), ERR_NONE);
    for (size_t i = 0; i < sizeof(ours); i++) {
        come = ours;
        ((unsigned char *)&come)[i] ^= 1;
        ck_assert_int_eq(move_check_pages(&come, &ours, &e), ERR_CONFLICT);
    }
}
END_TEST

/* Of the size of ours, and behind a page that was asked for: from page 5 on, of 8. */
START_TEST(a_state_is_of_its_size_and_place)
{
    move_pages ours, come;
    err e;
    move_write_pages("fp_1", 4096, 16, 5, &ours);
    come = ours;
    move_add_state(512, 8, &ours);
    ck_assert_int_eq(move_check_pages(&come, &ours, &e), ERR_CONFLICT); /* none comes */
    for (int64_t at = 0; at < 12; at++) {
        come.state_bytes = 512;
        come.state_pages = at;
        ck_assert_int_eq(move_check_pages(&come, &ours, &e) == ERR_NONE, at > 5 && at <= 8);
        come.state_pages = (at << 32) + 7; /* no int */
        ck_assert_int_eq(move_check_pages(&come, &ours, &e) == ERR_NONE, at == 0);
        come.state_bytes ^= UINT64_C(1) << 5 * at;
        come.state_pages = 7;
        ck_assert_int_eq(move_check_pages(&come, &ours, &e), ERR_CONFLICT);
    }
}
END_TEST

/* A page is known by its bytes, its tokens, its place, and whose it is. */
START_TEST(a_digest_is_of_one_page)
{
    static const int32_t one[] = {1, 2, 3, 4, 5}, two[] = {1, 2, 3, 5, 5};
    const char bytes[] = "keys, values", others[] = "keys, valueS";
    sched_text t = {.token = one, .n_token = 5}, u[3] = {t, t, t};
    uint8_t is[DIGEST_BYTES], other[DIGEST_BYTES];
    u[0].domain.isolation = 1;
    u[1].domain.digest[31] = 1;
    u[2].token = two;
    move_digest(&t, 1, 2, bytes, sizeof(bytes), is);
    for (int i = 0; i < 3; i++) {
        move_digest(&u[i], 1, 2, bytes, sizeof(bytes), other);
        ck_assert(memcmp(is, other, sizeof(is)) != 0);
    }
    move_digest(&t, 0, 2, bytes, sizeof(bytes), other);
    ck_assert(memcmp(is, other, sizeof(is)) != 0);
    move_digest(&t, 1, 2, others, sizeof(others), other);
    ck_assert(memcmp(is, other, sizeof(is)) != 0);
    move_digest(&t, 1, 2, bytes, sizeof(bytes), other);
    ck_assert_mem_eq(is, other, sizeof(is));
    /* A state is of all tokens before it, and no page. */
    move_state_digest(&t, 2, 2, bytes, sizeof(bytes), is);
    for (int i = 0; i < 3; i++) {
        move_state_digest(&u[i], 2, 2, bytes, sizeof(bytes), other);
        ck_assert(memcmp(is, other, sizeof(is)) != 0);
    }
    move_state_digest(&t, 2, 2, others, sizeof(others), other);
    ck_assert(memcmp(is, other, sizeof(is)) != 0);
    move_state_digest(&t, 1, 4, bytes, sizeof(bytes), other);
    ck_assert(memcmp(is, other, sizeof(is)) != 0);
    move_digest(&t, 1, 2, bytes, sizeof(bytes), is);
    move_state_digest(&t, 1, 2, bytes, sizeof(bytes), other);
    ck_assert(memcmp(is, other, sizeof(is)) != 0);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("wire");
    tcase_add_test(t, a_request_comes_out_as_it_went_in);
    tcase_add_test(t, other_bytes_are_refused_or_within_bounds);
    tcase_add_test(t, tokens_come_out_as_they_went_in);
    tcase_add_test(t, prompts_and_notices);
    tcase_add_test(t, pages_are_those_that_were_asked_for);
    tcase_add_test(t, a_state_is_of_its_size_and_place);
    tcase_add_test(t, a_digest_is_of_one_page);
    Suite *s = suite_create("wire");
    suite_add_tcase(s, t);
    return run_suite(s);
}
