/* bars.c -- forbidden tokens and sequences (bad_words, allowed_token_ids) as a token mask.
 *
 * A single forbidden token clears its bit in a mask that is built once. A sequence of two or more
 * tokens is kept in a list; its last token is cleared only while the text ends with the tokens
 * before it, which bars_mask() tests at each step: O(sequences x length), at most BARS_SEQUENCE_MAX
 * tokens each.
 *
 * With a grammar, its mask is intersected with this one. If nothing is left, bars_mask() returns
 * NULL: the request or the beam cannot go on.
 *
 * bars_read_text() tells the scheduler whether the mask depends on the output; only then must the
 * next step wait for this one's token. Threads: the engine's. bars_mask() allocates nothing; the
 * caller owns `room`.
 */
#include "engine/sample/bars.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int n;
    bool in_prompt;
    int32_t id[BARS_SEQUENCE_MAX];
} sequence;

struct bars {
    int n_vocab, n_word;
    uint32_t *mask; /* without the forbidden single tokens */
    sequence *list; /* of two tokens and more */
    int n, cap;
};

static bool is_known(const bars *b, int32_t id)
{
    return id >= 0 && id < b->n_vocab;
}

static bool has(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

static void bar(uint32_t *mask, int32_t id)
{
    mask[id / 32] &= ~(1U << id % 32);
}

bars *bars_create(int n_vocab, const int32_t *only, int n_only)
{
    bars *b = n_vocab > 0 ? calloc(1, sizeof(*b)) : NULL;
    if (!b) return NULL;
    b->n_vocab = n_vocab;
    b->n_word = (n_vocab + 31) / 32;
    b->mask = calloc((size_t)b->n_word, sizeof(*b->mask));
    if (!b->mask) {
        free(b);
        return NULL;
    }
    for (int i = 0; only && i < n_only; i++) {
        if (is_known(b, only[i])) b->mask[only[i] / 32] |= 1U << only[i] % 32;
    }
    if (only) return b;
    memset(b->mask, 0xFF, (size_t)b->n_word * sizeof(*b->mask));
    if (n_vocab % 32)
        b->mask[b->n_word - 1] = (1U << n_vocab % 32) - 1; /* no bits behind the
                                                                          * vocabulary */
    return b;
}

void bars_destroy(bars *b)
{
    if (!b) return;
    free(b->mask);
    free(b->list);
    free(b);
}

bool bars_forbid(bars *b, const int32_t *ids, int n, bool in_prompt)
{
    for (int i = 0; i < n; i++) {
        if (!is_known(b, ids[i])) return true;
    }
    if (n == 1) bar(b->mask, ids[0]);
    if (n <= 1 || n > BARS_SEQUENCE_MAX) return true;
    if (b->n == b->cap) {
        int cap = b->cap ? 2 * b->cap : 8;
        sequence *list = realloc(b->list, (size_t)cap * sizeof(*list));
        if (!list) return false;
        b->list = list;
        b->cap = cap;
    }
    sequence *s = &b->list[b->n++];
    s->n = n;
    s->in_prompt = in_prompt;
    memcpy(s->id, ids, (size_t)n * sizeof(*ids));
    return true;
}

bool bars_read_text(const bars *b)
{
    return b->n > 0;
}

int bars_words(const bars *b)
{
    return b->n_word;
}

/* Whether the text ends with all tokens of the sequence but the last. */
static bool stands(const sequence *s, const bars_text *t)
{
    int before = s->n - 1, n_prompt = s->in_prompt ? t->n_prompt : 0;
    if (before > t->n_output + n_prompt) return false;
    for (int i = 0; i < before; i++) {
        int at = t->n_output - before + i; /* negative: in the prompt */
        int32_t is = at >= 0 ? t->output[at] : t->prompt[t->n_prompt + at];
        if (is != s->id[i]) return false;
    }
    return true;
}

static bool any(const uint32_t *mask, int n_word)
{
    for (int i = 0; i < n_word; i++) {
        if (mask[i]) return true;
    }
    return false;
}

const uint32_t *bars_mask(const bars *b, const uint32_t *form, int n_form, const bars_text *t,
                          uint32_t *room)
{
    assert(n_form >= 0 && (!form || room));
    bool copied = form != NULL;
    int n_form_word = (n_form + 31) / 32;
    for (int i = 0; form && i < b->n_word; i++)
        room[i] = i < n_form_word ? b->mask[i] & form[i] : 0;
    for (int i = 0; i < b->n; i++) {
        const sequence *s = &b->list[i];
        if (!stands(s, t) || !has(b->mask, s->id[s->n - 1])) continue;
        if (!copied) memcpy(room, b->mask, (size_t)b->n_word * sizeof(*room));
        copied = true;
        bar(room, s->id[s->n - 1]);
    }
    const uint32_t *mask = copied ? room : b->mask;
    return any(mask, b->n_word) ? mask : NULL;
}
