/* draft.c -- texts in the pages of a small model's cache, and one pass over some of them.
 *
 * Pages are handed out from a stack, so that those that were touched are used again: the pool's
 * memory comes with the first touch.
 */
#include "engine/model/draft.h"

#include <assert.h>
#include <stdlib.h>

struct draft_text {
    int32_t *page; /* [pages_each] */
    int n_page;
    int n_sure;
    int n_guess; /* cached behind those */
    int32_t guess[DRAFT_MOST];
    draft_text *next; /* of those that are nobody's */
};

struct draft {
    draft_config cfg;
    model *m;
    backend *be;
    kv_pool *kv;
    attn_shape shape;
    int page_tokens, pages_each, n_vocab, n_pages;
    int32_t *free_page; /* [n_pages], the first n_free */
    int n_free;
    draft_text *text; /* [max_texts] */
    int32_t *block;   /* [max_texts][pages_each]: their block tables */
    draft_text *idle;

    /* one pass */
    step step;
    int32_t *token, *pos; /* [max_rows] */
    int32_t *logit_row;   /* [max_texts] */
    int32_t *picked;      /* [max_texts], as logit_row */
    step_seq *seq;        /* [max_texts] */
    step_seg seg;         /* the bare model */
    const float *logits;
};

/* ---------------------------------------------------------------------------- life -- */

static int pages_for(const draft *d, int positions)
{
    return (positions + d->page_tokens - 1) / d->page_tokens;
}

static err_code open_pool(draft *d, err *e)
{
    return be_kv_create(d->be, &d->kv, &d->shape, d->n_pages, e);
}

/* The arrays, and how many of each there are. */
#define ARRAYS(A)         \
    A(free_page, pages)   \
    A(text, texts)        \
    A(block, texts *each) \
    A(token, rows)        \
    A(pos, rows)          \
    A(logit_row, texts)   \
    A(picked, texts)      \
    A(seq, texts)

static bool allocate(draft *d)
{
    size_t pages = (size_t)d->n_pages, texts = (size_t)d->cfg.max_texts;
    size_t rows = (size_t)d->cfg.max_rows, each = (size_t)d->pages_each;
    bool ok = true;
#define ALLOCATE(member, count) ok &= (d->member = calloc(count, sizeof(*d->member))) != NULL;
    ARRAYS(ALLOCATE)
#undef ALLOCATE
    if (!ok) return false;
    for (d->n_free = 0; d->n_free < d->n_pages; d->n_free++)
        d->free_page[d->n_free] = d->n_pages - 1 - d->n_free;
    for (size_t i = texts; i-- > 0;) {
        d->text[i].page = d->block + i * each;
        d->text[i].next = d->idle;
        d->idle = &d->text[i];
    }
    d->step = (step){.token = d->token,
                     .pos = d->pos,
                     .seq = d->seq,
                     .n_seg = 1,
                     .seg = &d->seg,
                     .logit_row = d->logit_row};
    return true;
}

static void take_config(draft *d, const draft_config *cfg)
{
    const model_config *c = model_get_config(d->m);
    d->cfg = *cfg;
    if (d->cfg.max_context > c->max_pos) d->cfg.max_context = c->max_pos;
    d->shape = model_attn_shape(d->m);
    d->n_vocab = c->n_vocab;
    d->page_tokens = be_caps(d->be)->page_tokens;
    d->pages_each = pages_for(d, d->cfg.max_context);
    int64_t most = (int64_t)d->pages_each * cfg->max_texts;
    d->n_pages = most < cfg->max_pages ? (int)most : cfg->max_pages;
}

err_code draft_create(draft **out, const draft_config *cfg, model *m, backend *be, err *e)
{
    assert(cfg->max_texts > 0 && cfg->max_rows > 0 && cfg->max_pages > 0 && cfg->max_context > 0);
    *out = NULL;
    if (be_can_sample(be))
        return err_set(e, ERR_UNSUPPORTED, "the backend '%s' runs no draft model; the CPU does",
                       be_caps(be)->name);
    draft *d = calloc(1, sizeof(*d));
    if (!d) return err_set(e, ERR_NOMEM, "no memory for a draft model's texts");
    d->m = m;
    d->be = be;
    take_config(d, cfg);
    err_code rc = allocate(d) ? open_pool(d, e)
                              : err_set(e, ERR_NOMEM, "no memory for a draft model's texts");
    if (rc) {
        draft_destroy(d);
        return rc;
    }
    *out = d;
    return ERR_NONE;
}

void draft_destroy(draft *d)
{
    if (!d) return;
    assert(!d->kv || d->n_free == d->n_pages); /* all texts were given back */
    if (d->kv) be_kv_destroy(d->be, d->kv);
#define FREE(member, count) free(d->member);
    ARRAYS(FREE)
#undef FREE
    free(d);
}

void draft_unload(draft *d)
{
    assert(d->n_free == d->n_pages); /* no text is left */
    if (d->kv) be_kv_destroy(d->be, d->kv);
    d->kv = NULL;
    model_unload(d->m);
}

err_code draft_reload(draft *d, err *e)
{
    err_code rc = model_reload(d->m, e);
    return rc ? rc : open_pool(d, e);
}

int draft_context(const draft *d)
{
    return d->cfg.max_context;
}

int draft_vocab(const draft *d)
{
    return d->n_vocab;
}

size_t draft_kv_bytes(const draft *d)
{
    return (size_t)d->n_pages * be_kv_page_bytes(d->be, &d->shape);
}

size_t draft_kv_used_bytes(const draft *d)
{
    return (size_t)(d->n_pages - d->n_free) * be_kv_page_bytes(d->be, &d->shape);
}

/* --------------------------------------------------------------------------- texts -- */

draft_text *draft_enter(draft *d)
{
    draft_text *t = d->idle;
    assert(t && t->n_page == 0);
    d->idle = t->next;
    t->n_sure = t->n_guess = 0;
    return t;
}

void draft_leave(draft *d, draft_text *t)
{
    while (t->n_page > 0) d->free_page[d->n_free++] = t->page[--t->n_page];
    t->n_sure = t->n_guess = 0;
    t->next = d->idle;
    d->idle = t;
}

int draft_sure(const draft_text *t)
{
    return t->n_sure;
}

bool draft_confirm(draft_text *t, int32_t token)
{
    if (t->n_guess == 0 || t->guess[0] != token) {
        t->n_guess = 0;
        return false;
    }
    t->n_sure++;
    t->n_guess--;
    for (int i = 0; i < t->n_guess; i++) t->guess[i] = t->guess[i + 1];
    return true;
}

void draft_cut(draft_text *t, int n)
{
    assert(n >= 0);
    if (n < t->n_sure) t->n_sure = n;
    t->n_guess = 0;
}

/* ---------------------------------------------------------------------------- a pass -- */

/* Pages for n more positions; false: there are none left. */
static bool extend(draft *d, draft_text *t, int n)
{
    int want = pages_for(d, t->n_sure + t->n_guess + n);
    if (want > d->pages_each || want - t->n_page > d->n_free) return false;
    while (t->n_page < want) t->page[t->n_page++] = d->free_page[--d->n_free];
    return true;
}

static void remember(draft_text *t, const draft_part *p)
{
    if (!p->guessed) {
        assert(t->n_guess == 0); /* draft_confirm() or draft_cut() came before */
        t->n_sure += p->n;
        return;
    }
    assert(t->n_guess + p->n <= DRAFT_MOST);
    for (int i = 0; i < p->n; i++) t->guess[t->n_guess++] = p->token[i];
}

/* Its rows, at the end of the step. */
static void add_rows(draft *d, draft_part *p)
{
    step *s = &d->step;
    draft_text *t = p->text;
    int pos0 = t->n_sure + t->n_guess;
    p->picked = -1;
    assert(p->n > 0 && s->n_rows + p->n <= d->cfg.max_rows && s->n_seq < d->cfg.max_texts);
    if (!extend(d, t, p->n)) return;
    for (int i = 0; i < p->n; i++) {
        assert(p->token[i] >= 0 && p->token[i] < d->n_vocab);
        d->token[s->n_rows + i] = p->token[i];
        d->pos[s->n_rows + i] = pos0 + i;
    }
    d->seq[s->n_seq++] = (step_seq){s->n_rows, p->n, pos0, t->page, t->n_page, 0};
    s->n_rows += p->n;
    remember(t, p);
    if (!p->pick) return;
    p->picked = s->n_logit; /* until it is known */
    d->logit_row[s->n_logit++] = s->n_rows - 1;
}

static void pick_row(void *arg, int i)
{
    draft *d = arg;
    const float *row = d->logits + (size_t)i * (size_t)d->n_vocab;
    int best = 0;
    for (int v = 1; v < d->n_vocab; v++) {
        if (row[v] > row[best]) best = v;
    }
    d->picked[i] = best;
}

err_code draft_run(draft *d, draft_part *part, int n, err *e)
{
    step *s = &d->step;
    s->n_rows = s->n_seq = s->n_logit = 0;
    for (int i = 0; i < n; i++) add_rows(d, &part[i]);
    if (s->n_rows == 0) return ERR_NONE;
    d->seg = (step_seg){0, s->n_rows, NULL};
    err_code rc = model_forward(d->m, d->kv, s, &d->logits, e);
    if (rc) return rc;
    if (s->n_logit > 0) be_parallel(d->be, pick_row, d, s->n_logit);
    for (int i = 0; i < n; i++) {
        if (part[i].picked >= 0) part[i].picked = d->picked[part[i].picked];
    }
    return ERR_NONE;
}
