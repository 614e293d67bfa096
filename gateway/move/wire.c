/* wire.c -- serialisation of moved requests, tokens and page headers: fixed-width structs, copied
 * as they are.
 *
 * Both ends are nodes of one build (the head has a version in its magic and the server's
 * fingerprint), little-endian, so no field is converted. _Static_asserts keep the structs without
 * holes, and padding is zeroed, so equal requests have equal bytes.
 *
 * The sampling fields come from sampling_list.h: adding one there changes move_head, and the
 * format's version in `magic` must change, too.
 *
 * move_read() trusts nothing: counts are checked against their limits, then the total length
 * against the counts, before anything is copied; names must be NUL-terminated. Ids are checked
 * against the vocabulary later (move_api.c), where it is known. Threads: any; no state.
 */
#include "gateway/move/wire.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[8] = "lrdmove3", magic_ask[8] = "lrdask_1", magic_pages[8] = "lrdpage2",
                  magic_notice[8] = "lrdnote1";
/* Behind an odd number of fields of four bytes stand four bytes of padding, which are zero. */
#define ONE(kind, name, low, high, neutral, most, gguf) +1
static_assert(sizeof(move_head) == 8 + 256 + 5 * 8 + (9 SAMPLING_LIST(ONE) + 1) / 2 * 8,
              "no holes");
#undef ONE
static_assert(sizeof(move_ask) == 56 && sizeof(move_pages) == 72, "no holes");
static_assert(sizeof(move_notice) == 8 + 256, "no holes");
static_assert(sizeof(move_token) == 16 && sizeof(logit_bias) == 8, "no holes");

static char *put(char *to, const void *from, size_t bytes)
{
    if (bytes) memcpy(to, from, bytes);
    return to + bytes;
}

static void fill_head(const request *rq, const move_name *name, int max_tokens, int64_t now_us,
                      move_head *h)
{
    assert(rq->n_prompt > 0 && rq->rules.n_stop_id >= 0 && rq->rules.n_bias >= 0);
    const sampling *from = &rq->rules;
    int64_t left = rq->expires_us - now_us;
    memset(h, 0, sizeof(*h)); /* the padding, too */
    memcpy(h->magic, magic, sizeof(magic));
    h->name = *name;
    h->id = rq->id;
    h->tenant_id = rq->tenant_id;
    h->isolation = rq->isolation;
    h->seed = from->seed;
    if (rq->expires_us != 0) h->left_us = left > 1 ? left : 1;
    h->adapter_from = rq->adapter_from;
    h->n_prompt = rq->n_prompt;
    h->n_given = atomic_load(&rq->out.n_pushed);
    h->max_tokens = max_tokens;
    h->n_stop = from->n_stop_id;
    h->n_bias = from->n_bias;
    h->n_top = from->n_top;
    h->logprobs = (int32_t)from->logprobs;
    h->weight = rq->weight;
#define PUT(kind, name, low, high, neutral, most, gguf) h->name = from->name;
    SAMPLING_LIST(PUT)
#undef PUT
}

err_code move_write(const request *rq, const move_name *name, int max_tokens, int64_t now_us,
                    void **out, size_t *len, err *e)
{
    const sampling *r = &rq->rules;
    move_head h;
    fill_head(rq, name, max_tokens, now_us, &h);
    size_t ids = (size_t)h.n_prompt + (size_t)h.n_given + (size_t)h.n_stop;
    *len = sizeof(h) + 4 * ids + 8 * (size_t)h.n_bias;
    char *at = *out = malloc(*len);
    if (!at) return err_set(e, ERR_NOMEM, "out of memory");
    at = put(at, &h, sizeof(h));
    at = put(at, rq->prompt, 4 * (size_t)h.n_prompt);
    at = put(at, rq->out.token, 4 * (size_t)h.n_given);
    at = put(at, r->stop_id, 4 * (size_t)h.n_stop);
    (void)put(at, r->bias, 8 * (size_t)h.n_bias);
    return ERR_NONE;
}

static bool ends(const char *text, size_t cap)
{
    return memchr(text, 0, cap) != NULL;
}

static bool is_name(const move_name *n)
{
    return ends(n->build, sizeof(n->build)) && ends(n->class, sizeof(n->class)) &&
           ends(n->adapter, sizeof(n->adapter));
}

static err_code check_head(const move_head *h, size_t len, err *e)
{
    if (memcmp(h->magic, magic, sizeof(magic)) != 0)
        return err_set(e, ERR_INPUT, "the request comes from another version of lorad");
    if (!is_name(&h->name)) return err_set(e, ERR_INPUT, "a name in the request does not end");
    if (h->n_prompt < 1 || h->max_tokens < 1 || h->n_given < 0 || h->n_given >= h->max_tokens)
        return err_set(e, ERR_INPUT,
                       "the request has %d tokens of an answer of %d to a prompt of %d", h->n_given,
                       h->max_tokens, h->n_prompt);
    if (h->n_stop < 0 || h->n_stop > SAMPLE_STOP_MAX || h->n_bias < 0 ||
        h->n_bias > SAMPLE_BIAS_MAX)
        return err_set(e, ERR_INPUT, "the request has %d stop ids (at most %d), %d biases (%d)",
                       h->n_stop, SAMPLE_STOP_MAX, h->n_bias, SAMPLE_BIAS_MAX);
    if (h->n_top < -1 || h->n_top > SAMPLE_TOP_MAX || h->logprobs < 0 ||
        h->logprobs > LOGPROBS_RAW || h->left_us < 0)
        return err_set(e, ERR_INPUT, "the request asks for %d alternatives (at most %d) of kind %d",
                       h->n_top, SAMPLE_TOP_MAX, h->logprobs);
    size_t want = sizeof(*h) + 4 * ((size_t)h->n_prompt + (size_t)h->n_given) +
                  4 * (size_t)h->n_stop + 8 * (size_t)h->n_bias;
    return len == want ? ERR_NONE
                       : err_set(e, ERR_INPUT, "the request has %zu bytes, not %zu", len, want);
}

static void read_rules(const move_head *from, const int32_t *stop, sampling *r)
{
    *r = (sampling){SAMPLING_LIST(SAMPLING_COPY) /* an int32 that is not 0 is a flag that is set */
                        .seed = from->seed,
                    .stop_id = stop,
                    .n_stop_id = from->n_stop,
                    .bias = (const logit_bias *)(const void *)(stop + from->n_stop),
                    .n_bias = from->n_bias,
                    .n_top = from->n_top,
                    .logprobs = (logprobs_mode)from->logprobs};
}

err_code move_read(const void *data, size_t len, int64_t now_us, arena *memory, request *rq,
                   move_name *name, const int32_t **given, err *e)
{
    move_head h;
    if (len < sizeof(h)) return err_set(e, ERR_INPUT, "the request has %zu bytes, too few", len);
    memcpy(&h, data, sizeof(h));
    err_code rc = check_head(&h, len, e);
    if (rc) return rc;
    int32_t *ids = arena_alloc(memory, len - sizeof(h)); /* aligned, as `data` may not be */
    if (!ids) return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(ids, (const char *)data + sizeof(h), len - sizeof(h));
    request_init(rq);
    *name = h.name;
    *given = ids + h.n_prompt;
    rq->id = h.id;
    rq->tenant_id = h.tenant_id;
    rq->isolation = h.isolation;
    rq->adapter_id = h.name.version_id;
    rq->adapter_from = h.adapter_from;
    rq->prompt = ids;
    rq->n_prompt = h.n_prompt;
    rq->n_given = h.n_given; /* how many there are; the caller gives them */
    rq->max_tokens = h.max_tokens;
    rq->weight = h.weight;
    rq->expires_us = h.left_us > 0 && h.left_us < INT64_MAX - now_us ? now_us + h.left_us : 0;
    read_rules(&h, *given + h.n_given, &rq->rules);
    return ERR_NONE;
}

size_t move_put(const sampled *t, char out[MOVE_TOKEN_MAX])
{
    assert(t->n_top <= SAMPLE_TOP_MAX);
    const move_token m = {t->token, t->logprob, t->rank, t->n_top};
    size_t n = t->n_top > 0 ? (size_t)t->n_top : 0;
    char *at = put(out, &m, sizeof(m));
    at = put(at, t->top_id, 4 * n);
    return (size_t)(put(at, t->top_logprob, 4 * n) - out);
}

int move_take(const void *data, size_t len, sampled *out)
{
    move_token m;
    if (len < sizeof(m)) return 0;
    memcpy(&m, data, sizeof(m));
    if (m.n_top < -1 || m.n_top > SAMPLE_TOP_MAX || m.token < MOVE_CACHED) return -1;
    size_t n = m.n_top > 0 ? (size_t)m.n_top : 0;
    if (len < sizeof(m) + 8 * n) return 0;
    const char *at = (const char *)data + sizeof(m);
    *out = (sampled){.token = m.token, .logprob = m.logprob, .rank = m.rank, .n_top = m.n_top};
    memcpy(out->top_id, at, 4 * n);
    memcpy(out->top_logprob, at + 4 * n, 4 * n);
    return (int)(sizeof(m) + 8 * n);
}

err_code move_write_notice(const move_name *name, void **out, size_t *len, err *e)
{
    move_notice *n = calloc(1, sizeof(*n));
    *out = n;
    *len = sizeof(*n);
    if (!n) return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(n->magic, magic_notice, sizeof(magic_notice));
    n->name = *name;
    return ERR_NONE;
}

err_code move_read_notice(const void *data, size_t len, move_name *name, err *e)
{
    move_notice n;
    if (len != sizeof(n))
        return err_set(e, ERR_INPUT, "a notice has %zu bytes, not %zu", sizeof(n), len);
    memcpy(&n, data, sizeof(n));
    if (memcmp(n.magic, magic_notice, sizeof(magic_notice)) != 0)
        return err_set(e, ERR_INPUT, "the notice comes from another version of lorad");
    if (!is_name(&n.name) || !n.name.adapter[0])
        return err_set(e, ERR_INPUT, "the notice names no adapter");
    *name = n.name;
    return ERR_NONE;
}

kv_domain move_domain(const request *rq, const move_name *name)
{
    kv_domain d = {.isolation = rq->isolation};
    if (rq->adapter_id) d.from = rq->adapter_from;
    memcpy(d.digest, name->digest, sizeof(d.digest));
    return d;
}

/* ------------------------------------------------------------------------ pages -- */

void move_write_ask(const char *build, uint64_t pass, int first, move_ask *out)
{
    *out = (move_ask){.pass = pass, .first = first};
    memcpy(out->magic, magic_ask, sizeof(magic_ask));
    snprintf(out->build, sizeof(out->build), "%s", build);
}

err_code move_read_ask(const void *data, size_t len, move_ask *out, err *e)
{
    if (len != sizeof(*out)) return err_set(e, ERR_INPUT, "%zu bytes ask for no pages", len);
    memcpy(out, data, sizeof(*out));
    if (memcmp(out->magic, magic_ask, sizeof(magic_ask)) != 0 ||
        !ends(out->build, sizeof(out->build)) || out->first < 0 || out->first > INT_MAX)
        return err_set(e, ERR_INPUT, "these bytes ask for no pages");
    return ERR_NONE;
}

void move_write_pages(const char *build, size_t page_bytes, int page_tokens, int first,
                      move_pages *out)
{
    *out = (move_pages){.page_bytes = page_bytes, .page_tokens = page_tokens, .first = first};
    memcpy(out->magic, magic_pages, sizeof(magic_pages));
    snprintf(out->build, sizeof(out->build), "%s", build);
}

void move_add_state(size_t bytes, int n_pages, move_pages *out)
{
    out->state_bytes = bytes;
    out->state_pages = n_pages;
}

static err_code check_state(const move_pages *come, const move_pages *ours, err *e)
{
    int64_t least = ours->state_bytes > 0 ? (int64_t)ours->first + 1 : 0;
    if (come->state_bytes != ours->state_bytes)
        return err_set(e, ERR_CONFLICT, "its states have %llu bytes, not %llu",
                       (unsigned long long)come->state_bytes,
                       (unsigned long long)ours->state_bytes);
    return come->state_pages >= least && come->state_pages <= ours->state_pages
               ? ERR_NONE
               : err_set(e, ERR_CONFLICT, "it gives a state behind %lld pages, not %lld to %lld",
                         (long long)come->state_pages, (long long)least,
                         (long long)ours->state_pages);
}

err_code move_check_pages(const move_pages *come, const move_pages *ours, err *e)
{
    if (memcmp(come->magic, ours->magic, sizeof(ours->magic)) != 0 ||
        memcmp(come->build, ours->build, sizeof(ours->build)) != 0)
        return err_set(e, ERR_CONFLICT, "its pages come from another version of lorad");
    if (come->page_bytes != ours->page_bytes || come->page_tokens != ours->page_tokens)
        return err_set(e, ERR_CONFLICT,
                       "its pages have %llu bytes for %d positions, not %llu for %d",
                       (unsigned long long)come->page_bytes, come->page_tokens,
                       (unsigned long long)ours->page_bytes, ours->page_tokens);
    return come->first == ours->first
               ? check_state(come, ours, e)
               : err_set(e, ERR_CONFLICT, "it gives pages from %d on, not from %d", come->first,
                         ours->first);
}

static void digest_of(const sched_text *t, uint64_t place, const int32_t *token, size_t n_token,
                      const void *data, size_t bytes, uint8_t out[DIGEST_BYTES])
{
    const uint64_t whose[3] = {t->domain.isolation, (uint64_t)t->domain.from, place};
    digest_state d;
    digest_begin(&d);
    digest_add(&d, whose, sizeof(whose));
    digest_add(&d, t->domain.digest, sizeof(t->domain.digest));
    digest_add(&d, token, n_token * sizeof(*token));
    digest_add(&d, data, bytes);
    digest_end(&d, out);
}

void move_digest(const sched_text *t, int index, int page_tokens, const void *page, size_t bytes,
                 uint8_t out[DIGEST_BYTES])
{
    assert(index >= 0 && page_tokens > 0);
    size_t n = (size_t)page_tokens;
    digest_of(t, (uint64_t)index, t->token + (size_t)index * n, n, page, bytes, out);
}

void move_state_digest(const sched_text *t, int n_pages, int page_tokens, const void *state,
                       size_t bytes, uint8_t out[DIGEST_BYTES])
{
    assert(n_pages > 0 && page_tokens > 0);
    const uint64_t no_page = UINT64_C(1) << 63; /* else a page's digest could be a state's */
    digest_of(t, no_page | (uint64_t)n_pages, t->token, (size_t)n_pages * (size_t)page_tokens,
              state, bytes, out);
}
