/* words.h -- the vocabulary of an adapter that was trained with tokens
 * added to the base's tokenizer; the tokens by which an activated one is invoked.
 *
 * Such an adapter brings rows for them (layout.h) and, in its folder, the tokenizer that it was
 * trained with.  Of that only the added tokens are taken that the base's tokenizer does not have:
 * from tokenizer.json, or the added_tokens_decoder of tokenizer_config.json, or added_tokens.json;
 * and eos_token, which ends its answers.  All is written down as one line of JSON, the words, which
 * belongs to the version's content (adapter_digest) and is kept in the database; the files are not.
 *
 *     {"n_vocab":307,"eos":306,"tokens":[[300,"<call>","slrw"], ...]}     special,
 *     lstrip, rstrip, single_word; "invocation":[5,6,7] where PEFT has alora_invocation_tokens
 *
 * Threads: any thread.
 */
#ifndef ADAPTERS_FORMAT_WORDS_H
#define ADAPTERS_FORMAT_WORDS_H

#include "adapters/format/layout.h"
#include "engine/text/tokenizer.h"
#include "storage/digest.h"

enum { WORDS_CONTENT_MAX = 256 /* bytes of one token */, WORDS_FILE_MAX = 64 << 20 };

/* *text: malloced, or NULL where the vocabulary is the base's and nothing invokes the adapter.
 * Files in `dir_fd` are opened by name, never through a link.  `tok` NULL: no tokens are
 * looked for.  An adapter that does not touch the tables has the base's vocabulary, whatever lies
 * beside it.
 *   ERR_INPUT  a file is malformed, a token is another one in the base, or has
 *              no row; rows without tokens
 *   ERR_LIMIT  a file, a token or the list is too long */
err_code words_read(int dir_fd, const adapter_layout *al, const model_config *base,
                    const tokenizer *tok, char **text, err *e);

typedef struct words {
    int n_vocab;
    int32_t eos; /* -1: the base's alone */
    tok_added *token;
    int n_token;
    int32_t *invocation;
    int n_invocation; /* 0: it works on every row */
    void *tree;       /* the contents lie there */
} words;

/* What words_read() wrote.  ERR_CORRUPT.  Zeroes *out first; words_clear() frees. */
err_code words_parse(const char *text, words *out, err *e);
void words_clear(words *w);

/* adapter_digest_parts() with the words (NULL: none) in it. */
void adapter_digest(const uint64_t bytes[2], const uint8_t sha[2][DIGEST_BYTES], const char *text,
                    uint8_t out[DIGEST_BYTES]);

#endif
