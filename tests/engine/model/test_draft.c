/* test_draft.c -- texts in a draft model's cache: whatever was fed, proposed, confirmed, cut and
 * forgotten before, it proposes what the model finds likeliest behind the text alone.
 */
#include <stdlib.h>

#include <check.h>

#include "engine/model/draft.h"
#include "tests/run_suite.h"

enum { ROWS = 48, TEXTS = 6, CONTEXT = 90, TURNS = 80 };

static backend *be;
static model *m;
static draft *d;
static kv_pool *alone; /* for one text from its beginning */
static uint64_t rng;

static uint32_t draw(uint32_t n)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(rng >> 33) % n;
}

static void open_draft(int pages)
{
    err e;
    draft_config dc = {
        .max_texts = TEXTS, .max_context = CONTEXT, .max_rows = ROWS, .max_pages = pages};
    ck_assert_msg(draft_create(&d, &dc, m, be, &e) == ERR_NONE, "%s", e.msg);
}

static void setup(void)
{
    err e;
    backend_config bc = {.n_threads = 1};
    rng = 7;
    ck_assert_int_eq(be_open(&be, &backend_cpu, &bc, &e), ERR_NONE);
    ck_assert_msg(model_load(&m, "fixtures/models/mistral-bf16", be, CONTEXT, TEXTS, &e) ==
                      ERR_NONE,
                  "%s", e.msg);
    attn_shape shape = model_attn_shape(m);
    ck_assert_int_eq(be_kv_create(be, &alone, &shape, CONTEXT, &e), ERR_NONE);
}

static void teardown(void)
{
    draft_destroy(d);
    be_kv_destroy(be, alone);
    model_destroy(m);
    be_close(be);
}

/* The likeliest token behind these, by one pass over all of them. */
static int32_t likeliest(const int32_t *token, int n)
{
    static int32_t pos[CONTEXT], page[CONTEXT];
    const float *logits;
    err e;
    int32_t best = 0, last = n - 1;
    for (int i = 0; i < CONTEXT; i++) pos[i] = page[i] = i;
    step_seq seq = {0, n, 0, page, CONTEXT, 0};
    step_seg seg = {0, n, NULL};
    step s = {.n_rows = n,
              .token = token,
              .pos = pos,
              .n_seq = 1,
              .seq = &seq,
              .n_seg = 1,
              .seg = &seg,
              .n_logit = 1,
              .logit_row = &last};
    ck_assert_int_eq(model_forward(m, alone, &s, &logits, &e), ERR_NONE);
    for (int v = 1; v < draft_vocab(d); v++) {
        if (logits[v] > logits[best]) best = v;
    }
    return best;
}

/* What somebody writes, and what the draft model has of it. */
typedef struct {
    draft_text *t;
    int32_t token[CONTEXT];
    int n;
} writer;

static void begin(writer *w)
{
    w->t = draft_enter(d);
    w->n = 1 + (int)draw(ROWS / 2);
    for (int i = 0; i < w->n; i++) w->token[i] = (int32_t)draw((uint32_t)draft_vocab(d));
}

static void look(writer *w)
{
    int i;
    do i = draft_sure(w->t);
    while (i < w->n && draft_confirm(w->t, w->token[i]));
    draft_cut(w->t, i < w->n ? i : w->n - 1);
}

/* Some of its tokens are read, and nothing is asked. */
static void read_some(writer *w)
{
    err e;
    int from = draft_sure(w->t), most = w->n - 1 - from;
    if (most < 1) return;
    draft_part p = {.text = w->t, .token = w->token + from, .n = 1 + (int)draw((uint32_t)most)};
    ck_assert_int_eq(draft_run(d, &p, 1, &e), ERR_NONE);
    ck_assert_int_eq(draft_sure(w->t), from + p.n);
}

/* Two texts at once: both are read to their ends, then `depth` tokens are proposed for each. */
static void propose(writer *a, writer *b, int depth, int32_t *got[2])
{
    err e;
    writer *w[2] = {a, b};
    draft_part p[2];
    for (int i = 0; i < 2; i++) {
        int from = draft_sure(w[i]->t);
        p[i] = (draft_part){
            .text = w[i]->t, .token = w[i]->token + from, .n = w[i]->n - from, .pick = true};
    }
    for (int k = 0; k < depth; k++) {
        ck_assert_int_eq(draft_run(d, p, 2, &e), ERR_NONE);
        for (int i = 0; i < 2; i++) {
            got[i][k] = p[i].picked;
            p[i] = (draft_part){
                .text = w[i]->t, .token = &got[i][k], .n = 1, .guessed = true, .pick = true};
        }
    }
}

/* Some of what was proposed comes, then something else. */
static void go_on(writer *w, const int32_t *got, int depth)
{
    int right = (int)draw((uint32_t)depth + 1);
    int32_t text[CONTEXT];
    for (int i = 0; i < w->n; i++) text[i] = w->token[i];
    for (int k = 0; k < depth; k++) {
        ck_assert_int_eq(got[k], likeliest(text, w->n + k));
        text[w->n + k] = got[k];
    }
    for (int k = 0; k < right; k++) w->token[w->n++] = got[k];
    for (int k = (int)draw(3); k >= 0; k--)
        w->token[w->n++] = (int32_t)draw((uint32_t)draft_vocab(d));
}

START_TEST(what_was_before_leaves_no_trace)
{
    writer w[TEXTS];
    int32_t first[DRAFT_MOST], second[DRAFT_MOST], *got[2] = {first, second};
    open_draft(TEXTS * CONTEXT);
    for (int i = 0; i < TEXTS; i++) begin(&w[i]);
    for (int turn = 0; turn < TURNS; turn++) {
        int i = (int)draw(TEXTS), j = (int)(i + 1 + (int)draw(TEXTS - 1)) % TEXTS;
        int depth = 1 + (int)draw(6);
        for (int k = 0; k < TEXTS; k++) {
            if (w[k].n + depth + 4 <= CONTEXT) continue;
            draft_leave(d, w[k].t);
            begin(&w[k]);
        }
        look(&w[i]);
        look(&w[j]);
        read_some(&w[i]);
        read_some(&w[j]);
        if (w[i].n - draft_sure(w[i].t) + w[j].n - draft_sure(w[j].t) > ROWS) continue;
        propose(&w[i], &w[j], depth, got);
        go_on(&w[i], first, depth);
        go_on(&w[j], second, depth);
    }
    for (int i = 0; i < TEXTS; i++) draft_leave(d, w[i].t);
    ck_assert_uint_eq(draft_kv_used_bytes(d), 0);
}
END_TEST

/* One page: the second text has none, and the first goes on. */
START_TEST(without_a_page_nothing_is_proposed)
{
    err e;
    writer w[2];
    open_draft(1);
    ck_assert_uint_eq(draft_kv_used_bytes(d), 0);
    for (int i = 0; i < 2; i++) {
        begin(&w[i]);
        w[i].n = 3;
    }
    draft_part p[2] = {{.text = w[0].t, .token = w[0].token, .n = 3, .pick = true},
                       {.text = w[1].t, .token = w[1].token, .n = 3, .pick = true}};
    ck_assert_int_eq(draft_run(d, p, 2, &e), ERR_NONE);
    ck_assert_int_eq(p[0].picked, likeliest(w[0].token, 3));
    ck_assert_int_eq(p[1].picked, -1);
    ck_assert_int_eq(draft_sure(w[1].t), 0);
    draft_leave(d, w[0].t);
    ck_assert_int_eq(draft_run(d, p + 1, 1, &e), ERR_NONE);
    ck_assert_int_eq(p[1].picked, likeliest(w[1].token, 3));
    draft_leave(d, w[1].t);
}
END_TEST

/* No more than its texts need, however much it may have. */
START_TEST(pages_are_bounded_by_what_texts_need)
{
    open_draft(1 << 20);
    int page_tokens = be_caps(be)->page_tokens;
    size_t each = (size_t)((CONTEXT + page_tokens - 1) / page_tokens);
    attn_shape shape = model_attn_shape(m);
    ck_assert_uint_eq(draft_kv_bytes(d), TEXTS * each * be_kv_page_bytes(be, &shape));
    ck_assert_int_eq(draft_context(d), CONTEXT);
}
END_TEST

/* What lay on the device is read again. */
START_TEST(a_device_that_was_opened_again_forgets_and_goes_on)
{
    err e;
    writer w;
    open_draft(8);
    begin(&w);
    read_some(&w);
    draft_leave(d, w.t);
    draft_unload(d);
    be_kv_destroy(be, alone);
    ck_assert_int_eq(be_reopen(be, &e), ERR_NONE);
    ck_assert_msg(draft_reload(d, &e) == ERR_NONE, "%s", e.msg);
    attn_shape shape = model_attn_shape(m);
    ck_assert_int_eq(be_kv_create(be, &alone, &shape, CONTEXT, &e), ERR_NONE);
    w.t = draft_enter(d);
    ck_assert_int_eq(draft_sure(w.t), 0);
    draft_part p = {.text = w.t, .token = w.token, .n = w.n, .pick = true};
    ck_assert_int_eq(draft_run(d, &p, 1, &e), ERR_NONE);
    ck_assert_int_eq(p.picked, likeliest(w.token, w.n));
    draft_leave(d, w.t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("draft");
    TCase *tc = tcase_create("draft");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, what_was_before_leaves_no_trace);
    tcase_add_test(tc, without_a_page_nothing_is_proposed);
    tcase_add_test(tc, pages_are_bounded_by_what_texts_need);
    tcase_add_test(tc, a_device_that_was_opened_again_forgets_and_goes_on);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
