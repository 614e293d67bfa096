/* tokenizer.h -- text to token ids and back, as Hugging Face's AutoTokenizer would.
 *
 * Reads tokenizer.json: byte-level BPE (GPT-2, Llama-3, Qwen2 ..), SentencePiece-style BPE with
 * byte fallback (Llama-2, Mistral), Unigram (T5, XLM-R) and WordPiece (BERT); and the tokens that
 * only tokenizer_config.json, special_tokens_map.json or added_tokens.json name.  Anything else in
 * these that would change ids is refused by name.
 *
 * Ownership: immutable after loading.  Threads: any thread; a detok belongs to its owner.
 */
#ifndef ENGINE_TEXT_TOKENIZER_H
#define ENGINE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

typedef struct tokenizer tokenizer;

/* `dir` holds tokenizer.json, and what else there is of the files above. */
err_code tokenizer_load(tokenizer **out, const char *dir, err *e);

/* NULL is allowed. Tokenizers that tokenizer_extend() made of it must have been destroyed
 * before. */
void tokenizer_destroy(tokenizer *t);

int tokenizer_vocab(const tokenizer *t);   /* largest id + 1 */
int32_t tokenizer_bos(const tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const tokenizer *t); /* -1: none */

/* Id of a token by its exact content ("<|eot_id|>"), or -1. */
int32_t tokenizer_find(const tokenizer *t, const char *content);

/* False for ids that there are not. */
bool tokenizer_is_special(const tokenizer *t, int32_t id);
bool tokenizer_is_added(const tokenizer *t, int32_t id); /* found in texts whole, special or not */
/* An added token as the files write it; borrowed; NULL: it is none. */
const char *tokenizer_content(const tokenizer *t, int32_t id);

/* One token more than the model's own, as Hugging Face's AddedToken. */
typedef struct tok_added {
    int32_t id;
    const char *content; /* copied */
    bool special, lstrip, rstrip, single_word;
    bool normalized; /* found behind the normaliser, by the normal form of its content */
    /* tokenizer_encode_guarded(): foreign text never becomes it, as if it were special. */
    bool barred;
} tok_added;

/* `base`, which must outlive it, with more added tokens: found in texts before anything else, the
 * longest first.  An added token of the base's may get another name.  ERR_INPUT: an id or a content
 * that the base or another one has already, or an empty one. */
err_code tokenizer_extend(tokenizer **out, const tokenizer *base, const tok_added *list, int n,
                          err *e);

enum {
    TOK_ADD_SPECIAL = 1, /* what the post-processor adds (bos ...) */
    /* Special tokens' text in `text` becomes their ids; without it the text of a special token is
     * encoded as ordinary text (a tenant can't forge a role marker in chat). */
    TOK_PARSE_SPECIAL = 2,
};

/* Encodes `len` bytes of UTF-8 (invalid bytes as tokenizers would get them: replaced by U+FFFD).
 * Returns the number of ids; writes at most `cap` of them; call with cap 0 to count.
 * Negative: out of memory.  Time and memory O(len log len). */
int64_t tokenizer_encode(const tokenizer *t, const char *text, size_t len, int flags, int32_t *ids,
                         size_t cap);

/* A text of two hands: markers count only where the caller wrote them. */
typedef struct tok_span {
    size_t from, to;
} tok_span;

typedef struct tok_guard {
    const tok_span *foreign; /* what others wrote: in order, apart, none empty */
    size_t n_foreign;
    const int32_t *barred; /* added tokens that foreign text never becomes, besides special ones */
    size_t n_barred;
} tok_guard;

/* As tokenizer_encode() with TOK_PARSE_SPECIAL, the whole text at once (so that spaces and merges
 * at markers are as for any text), but a special or barred token is found only where all of its
 * bytes are outside the foreign spans, and no merge makes one: its text in a foreign span is
 * encoded as ordinary text. */
int64_t tokenizer_encode_guarded(const tokenizer *t, const char *text, size_t len,
                                 const tok_guard *guard, int32_t *ids, size_t cap);

/* Bytes of one token as it appears in a text (byte-level tokens are decoded to raw bytes; added
 * ones give their content, as the decoder shows it).  Borrowed; *len set.  NULL for an unknown
 * id. */
const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *len);

/* Whether a text is its tokens' bytes, one behind the other.  WordPiece's decoder changes them. */
bool tokenizer_spells(const tokenizer *t);

/* The vocabulary's own string for a token ("Ġthe", "▁the", "<0x0A>"), as transformers'
 * convert_ids_to_tokens(): valid UTF-8, cut at its room.  Returns its length; 0 for an unknown
 * id. */
enum { TOK_PIECE_MAX = 3072 };
size_t tokenizer_piece(const tokenizer *t, int32_t id, char out[TOK_PIECE_MAX]);

/* Whether both have the same ids with the same pieces, and the same of them are special; how they
 * cut a text is not compared.  ERR_INPUT names the first difference. */
err_code tokenizer_check_same(const tokenizer *t, const tokenizer *other, err *e);

/* Streaming detokeniser: never emits part of a UTF-8 sequence.  Where tokens are bytes
 * (<0xXX>) and a run of them is no UTF-8, Hugging Face's decode() gives U+FFFD for each of
 * its bytes, so does tokenizer_decode(); here what was whole characters before the run broke
 * is out already and stays. */
typedef struct detok {
    const tokenizer *tok;
    bool skip_special;
    bool started; /* SentencePiece: the text's first space goes */
    bool broken;  /* a run of byte tokens that is no UTF-8 */
    unsigned char pending[8];
    int n_pending;
} detok;

/* An empty text; the tokenizer is borrowed. skip_special: special tokens give no text. */
void detok_init(detok *d, const tokenizer *t, bool skip_special);

/* What comes now goes on from a text that these tokens gave: if they gave any,
 * nothing is a first piece. */
void detok_go_on(detok *d, const int32_t *ids, size_t n);

/* Appends the text that is complete after `id` to `out` (cap bytes, at least 16); returns bytes
 * written.  A token gives at most DETOK_MAX bytes. */
enum { DETOK_MAX = 1024 };

/* One more token, of the same text. */
size_t detok_push(detok *d, int32_t id, char *out, size_t cap);

/* What is still pending, as U+FFFD; cap as above. */
size_t detok_flush(detok *d, char *out, size_t cap);

/* Whole decode, as tokenizers' decode(skip_special_tokens). Malloced, NUL-ended; caller frees. */
char *tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                       size_t *len_out);

#endif
