/* vocabulary.c -- a short list, the last used in front, under one mutex; built without it.
 *
 * An adapter with words of its own needs a tokenizer of its own, which extends the base's and
 * takes milliseconds to build. vocabulary_acquire() therefore looks it up, builds outside the
 * mutex where it is missing, and looks again: of two that built the same at once the second
 * one's is thrown away.
 *
 *      list    held | held | idle | idle | ... 64 idle ones ... | freed when another one comes in
 *
 * `longest` (bytes of the longest token, three times, for composed characters) makes
 * vocabulary_may_fit() a division: a text that is too long for the context is refused before it
 * is tokenized.
 *
 * Threads: any.
 */
#include "gateway/openai/vocabulary.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/format/words.h"
#include "engine/base/lock.h"

enum { KEPT = 64 }; /* of those that nobody holds */

typedef struct node {
    vocabulary pub; /* first */
    tokenizer *own;
    int32_t *invocation;
    uint64_t version_id;
    int holds;
    struct node *next;
} node;

struct vocabularies {
    store *st;
    const chat_template *chat;
    vocabulary base;
    const tokenizer *tok;
    lock mu; /* guards the list */
    node *list;
};

/* Composed characters (NFC) may have taken three times as many bytes in the text. */
static size_t longest_of(const tokenizer *tok)
{
    size_t most = 1, len;
    if (!tokenizer_spells(tok)) return SIZE_MAX;
    for (int32_t id = 0; id < tokenizer_vocab(tok); id++) {
        if (tokenizer_bytes(tok, id, &len) && len > most) most = len;
    }
    return 3 * most;
}

vocabularies *vocabularies_create(store *st, const tokenizer *tok, int n_vocab,
                                  const chat_template *chat)
{
    vocabularies *vs = calloc(1, sizeof(*vs));
    if (!vs) return NULL;
    vs->st = st;
    vs->tok = tok;
    vs->chat = chat;
    vs->base = (vocabulary){.tok = tok, .n_vocab = n_vocab, .eos = -1, .longest = longest_of(tok)};
    lock_init(&vs->mu, LOCK_VOCABULARIES);
    return vs;
}

static void node_free(node *n)
{
    if (!n) return;
    tokenizer_destroy(n->own);
    free(n->invocation);
    free(n);
}

void vocabularies_destroy(vocabularies *vs)
{
    if (!vs) return;
    for (node *n = vs->list, *next; n; n = next) {
        next = n->next;
        node_free(n);
    }
    lock_free(&vs->mu);
    free(vs);
}

/* Takes it to the front; mu is held. */
static node *find_locked(vocabularies *vs, uint64_t version_id)
{
    lock_assert_held(&vs->mu);
    for (node **at = &vs->list; *at; at = &(*at)->next) {
        node *n = *at;
        if (n->version_id != version_id) continue;
        *at = n->next;
        n->next = vs->list;
        vs->list = n;
        n->holds++;
        return n;
    }
    return NULL;
}

/* Unlinks those that nobody holds beyond what is kept; the caller frees them.  mu is held. */
static node *spare_locked(vocabularies *vs)
{
    lock_assert_held(&vs->mu);
    node *out = NULL;
    int idle = 0;
    for (node **at = &vs->list; *at;) {
        node *n = *at;
        if (n->holds > 0 || idle++ < KEPT) {
            at = &n->next;
            continue;
        }
        *at = n->next;
        n->next = out;
        out = n;
    }
    return out;
}

static err_code build(const vocabularies *vs, const adapter_version *v, node **out, err *e)
{
    char *text = NULL;
    words w = {0};
    node *n = calloc(1, sizeof(*n));
    err_code rc = n ? adapter_rows_words(vs->st, v->id, &text, e) : ERR_NOMEM;
    if (!rc && !text) rc = err_set(e, ERR_NOT_FOUND, "the adapter was deleted");
    if (!rc) rc = words_parse(text, &w, e);
    for (int i = 0; !rc && i < w.n_token; i++)
        w.token[i].barred = vs->chat && chat_template_says(vs->chat, w.token[i].content);
    if (!rc && w.n_token > 0) rc = tokenizer_extend(&n->own, vs->tok, w.token, w.n_token, e);
    if (!rc) {
        n->version_id = v->id;
        n->holds = 1;
        n->pub = (vocabulary){.tok = n->own ? n->own : vs->tok,
                              .n_vocab = w.n_vocab,
                              .n_own = w.n_vocab != vs->base.n_vocab ? w.n_vocab : 0,
                              .eos = w.eos,
                              .longest = n->own ? longest_of(n->own) : vs->base.longest,
                              .invocation = w.invocation,
                              .n_invocation = w.n_invocation};
        n->invocation = w.invocation;
        w.invocation = NULL;
        *out = n;
    }
    if (rc) node_free(n);
    if (!n) (void)err_set(e, ERR_NOMEM, "no memory for an adapter's tokenizer");
    words_clear(&w);
    free(text);
    return rc;
}

err_code vocabulary_acquire(vocabularies *vs, const adapter_version *v, const vocabulary **out,
                            err *e)
{
    *out = &vs->base;
    if (!v || !v->has_words) return ERR_NONE;
    lock_take(&vs->mu);
    node *n = find_locked(vs, v->id);
    lock_release(&vs->mu);
    if (!n) {
        err_code rc = build(vs, v, &n, e);
        if (rc) return rc;
        lock_take(&vs->mu);
        node *other = find_locked(vs, v->id), *spare = NULL;
        if (!other) {
            n->next = vs->list;
            vs->list = n;
            spare = spare_locked(vs);
        }
        lock_release(&vs->mu);
        if (other) { /* somebody was faster */
            node_free(n);
            n = other;
        }
        for (node *next; spare; spare = next) {
            next = spare->next;
            node_free(spare);
        }
    }
    *out = &n->pub;
    return ERR_NONE;
}

bool vocabulary_may_fit(const vocabulary *v, size_t bytes, int n)
{
    assert(v->longest > 0 && n >= 0);
    return bytes / v->longest <= (size_t)n;
}

int vocabulary_invoked_at(const vocabulary *v, const int32_t *prompt, int n_prompt)
{
    assert(n_prompt >= 0 && v->n_invocation >= 0);
    size_t bytes = (size_t)v->n_invocation * sizeof(*prompt);
    if (v->n_invocation == 0) return 0;
    for (int at = n_prompt - v->n_invocation; at >= 0; at--) {
        if (memcmp(prompt + at, v->invocation, bytes) == 0) return at;
    }
    return -1;
}

void vocabulary_release(vocabularies *vs, const vocabulary *v)
{
    if (!v || v == &vs->base) return;
    lock_take(&vs->mu);
    node *n = (node *)(uintptr_t)v;
    assert(n->holds > 0);
    n->holds--;
    lock_release(&vs->mu);
}
