/* vocabulary.h -- the tokenizer for one adapter: the base's with the tokens that the adapter added;
 * and by which tokens an activated one is invoked.
 *
 * Made from the version's words (adapters/format/words.h) when a request first needs it, kept for
 * those that come after it, the one that was used longest ago dropped where there are many.
 * Versions never change, so nothing in here ever does.
 *
 * Ownership: vocabulary_acquire() hands out one hold, vocabulary_release() takes it back.
 * Threads:   any thread, create and destroy apart.
 */
#ifndef GATEWAY_OPENAI_VOCABULARY_H
#define GATEWAY_OPENAI_VOCABULARY_H

#include "adapters/store/registry.h"
#include "engine/chat/chat.h"
#include "engine/text/tokenizer.h"

typedef struct vocabulary {
    const tokenizer *tok;
    int n_vocab; /* ids are below it */
    int n_own;   /* request.n_vocab: the same, or 0 where it is the base's */
    int32_t eos; /* ends an answer, too; -1: none but the base's */
    /* Bytes of text that one token stands for at most; SIZE_MAX: not known. */
    size_t longest;
    /* [n_invocation] tokens that invoke an activated adapter; 0: it works on every row. */
    const int32_t *invocation;
    int n_invocation;
} vocabulary;

typedef struct vocabularies vocabularies;

/* All borrowed; `chat` may be NULL: what it writes itself, a message's text never becomes. */
vocabularies *vocabularies_create(store *st, const tokenizer *tok, int n_vocab,
                                  const chat_template *chat);
/* All holds must be back.  NULL is fine. */
void vocabularies_destroy(vocabularies *vs);

/* v NULL, or one without words: the base's.  The pin on `v` is the caller's. */
err_code vocabulary_acquire(vocabularies *vs, const adapter_version *v, const vocabulary **out,
                            err *e);
/* Whether a text of so many bytes can have at most n tokens; false: it has more, whatever it is. */
bool vocabulary_may_fit(const vocabulary *v, size_t bytes, int n);
void vocabulary_release(vocabularies *vs, const vocabulary *v);

/* From which position of a prompt on the adapter works: where the last invocation begins, as PEFT
 * has it; 0 where it needs none, -1 where it is not invoked.  Pure; n_prompt * n_invocation steps
 * at most. */
int vocabulary_invoked_at(const vocabulary *v, const int32_t *prompt, int n_prompt);

#endif
