/* completion_text.c -- hold back the longest tail that could begin a stop string.
 *
 * Stop strings are at most 256 bytes and sixteen, so plain comparison is fast enough: each new byte
 * is looked at against each stop string once for a match and once for the tail.
 */
#include "gateway/openai/completion_text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void completion_text_init(completion_text *ct, const openai_request *rules, const tokenizer *tok)
{
    *ct = (completion_text){.rules = rules};
    detok_init(&ct->detok, tok, !rules->keep_special);
}

void completion_text_clear(completion_text *ct)
{
    free(ct->text);
    *ct = (completion_text){0};
}

static bool make_room(completion_text *ct)
{
    if (ct->cap - ct->len >= DETOK_MAX) return true;
    size_t cap = ct->cap ? 2 * ct->cap : 4 * (size_t)DETOK_MAX;
    char *p = realloc(ct->text, cap);
    if (!p) {
        ct->failed = true;
        return false;
    }
    ct->text = p;
    ct->cap = cap;
    return true;
}

/* First complete stop string at or after ct->released; the earliest start wins. */
static bool find_stop(completion_text *ct)
{
    const openai_request *r = ct->rules;
    size_t best = ct->len;
    int hit = -1;
    for (int i = 0; i < r->n_stop; i++) {
        const char *at =
            memmem(ct->text + ct->released, ct->len - ct->released, r->stop[i], r->stop_len[i]);
        if (at && (size_t)(at - ct->text) < best) {
            best = (size_t)(at - ct->text);
            hit = i;
        }
    }
    if (hit < 0) return false;
    ct->stop_hit = r->stop[hit];
    ct->released = best + (r->include_stop ? r->stop_len[hit] : 0);
    ct->len = ct->released;
    return true;
}

/* Length of the longest tail of the text that begins a stop string. */
static size_t held_tail(const completion_text *ct)
{
    const openai_request *r = ct->rules;
    size_t held = 0;
    for (int i = 0; i < r->n_stop; i++) {
        assert(r->stop_len[i] > 0); /* openai_sampling.c leaves out empty ones */
        size_t max = ct->len - ct->released;
        if (max > r->stop_len[i] - 1) max = r->stop_len[i] - 1;
        for (size_t n = max; n > held; n--) {
            if (memcmp(ct->text + ct->len - n, r->stop[i], n) == 0) {
                held = n;
                break;
            }
        }
    }
    return held;
}

void completion_text_keep(completion_text *ct, int32_t token)
{
    if (token >= 0 && ct->n_kept < COMPLETION_KEPT_MAX) ct->kept[ct->n_kept++] = token;
}

static bool is_kept(const completion_text *ct, int32_t token)
{
    for (int i = 0; i < ct->n_kept; i++) {
        if (ct->kept[i] == token) return true;
    }
    return false;
}

bool completion_text_push(completion_text *ct, int32_t token)
{
    if (ct->stop_hit || !make_room(ct)) return ct->stop_hit != NULL;
    ct->detok.skip_special = !ct->rules->keep_special && !is_kept(ct, token);
    ct->len += detok_push(&ct->detok, token, ct->text + ct->len, ct->cap - ct->len);
    assert(ct->len <= ct->cap);
    if (ct->rules->n_stop && find_stop(ct)) return true;
    ct->released = ct->len - held_tail(ct);
    return false;
}

void completion_text_finish(completion_text *ct)
{
    if (ct->stop_hit || !make_room(ct)) return;
    ct->len += detok_flush(&ct->detok, ct->text + ct->len, ct->cap - ct->len);
    assert(ct->len <= ct->cap);
    ct->released = ct->len;
}

const char *completion_text_take(completion_text *ct, size_t *len)
{
    assert(ct->taken <= ct->released && ct->released <= ct->len && ct->len <= ct->cap);
    *len = ct->released - ct->taken;
    const char *p = ct->text ? ct->text + ct->taken : "";
    ct->taken = ct->released;
    return p;
}
