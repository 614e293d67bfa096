/* tokenizer_inside.h -- the loaded tokenizer, shared by the tokenizer_*.c files alone.
 *
 *   tokenizer.c         encoding: BPE, and the order of the steps
 *   tokenizer_pieces.c  Unigram, WordPiece, WordLevel
 *   tokenizer_cut.c     added tokens in a text, before and after the normaliser
 *   tokenizer_decode.c  ids to text
 *   tokenizer_tables.c  hash tables: bytes to id, pair to merge
 *   tokenizer_added.c   search for the longest added token
 *   tokenizer_load.c    tokenizer.json: pre-tokeniser, decoder, post-processor
 *   tokenizer_model.c   its model: vocabulary, merges, scores
 *   tokenizer_steps.c   its pre-tokeniser steps that split texts
 *   tokenizer_words.c   added tokens of tokenizer.json and of the files beside it
 *   tokenizer_more.c    a base tokenizer plus the tokens of an adapter
 *
 * A tokenizer is immutable after loading. One made by tokenizer_extend() shares the tables of its
 * base and has only its own `more` entries, so an adapter with a few tokens does not copy the
 * vocabulary.
 */
#ifndef ENGINE_TEXT_TOKENIZER_INSIDE_H
#define ENGINE_TEXT_TOKENIZER_INSIDE_H

#include "engine/base/json.h"
#include "engine/files/documents.h"
#include "engine/text/normal.h"
#include "engine/text/pieces.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_split.h"

#define LOWER_BLOCK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

enum { WORD_BYTES_MAX = 512 /* of a WordPiece token */ };

typedef struct {
    /* The vocabulary's string, with a byte-level alphabet decoded to bytes; NULL: not in the
     * vocabulary. */
    char *bytes;
    char *content; /* an added token's, as the files write it; NULL: not added */
    /* The token's text in decoded output; shares the memory of `bytes` where equal. */
    char *text;
    uint32_t len, text_len;
    int16_t byte; /* <0xXX> where the decoder puts bytes together; else -1 */
    bool special, added, barred;
    bool hidden; /* left out of texts without special tokens */
    bool plain;  /* byte-level: has characters outside the byte alphabet, so merging never
                  * produces it */
} entry;

typedef struct {
    int32_t id;
    entry e;
} more_entry;

typedef struct {
    char *content;    /* search string; of a normalized token its normal form */
    const char *name; /* what it is called; its entry's */
    size_t len;
    int32_t id;
    bool special, lstrip, rstrip, single_word;
    int shorter; /* longest other token that is a prefix of this one; -1: none */
} added_token;

typedef struct {
    added_token *list; /* in the order of their bytes */
    int n;
    int from[257]; /* [b]: index of the first one that begins with byte b */
} added_set;

typedef struct {
    int32_t left, right, rank, result;
} merge;

typedef enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend_kind;

/* Treatment of leading spaces when decoding: kept; Strip removes one; Metaspace removes all of the
 * first token's; FIRST_WORD: WordPiece puts none before the first token. */
typedef enum { FIRST_KEPT, FIRST_SPACE, FIRST_BLOCKS, FIRST_WORD } first_kind;

typedef enum { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORD_PIECE, MODEL_WORD_LEVEL } model_kind;

/* Of Unigram and WordPiece. */
typedef struct piece_model {
    piece_set set;
    double *score;      /* Unigram: [n_vocab of the file] */
    double unk_score;   /* Unigram: of an unknown character */
    char *continuing;   /* WordPiece: prefix of pieces inside a word */
    int32_t behind;     /* WordPiece: node of `set` that this prefix leads to; -1: no such pieces */
    int max_characters; /* WordPiece: longer words are unknown */
} piece_model;

struct tokenizer {
    entry *entries;      /* [n_base] */
    int n_base, n_vocab; /* n_vocab is larger where tokens of `more` lie behind the entries */
    const struct tokenizer *base; /* tokenizer_extend(): whose tables these are; NULL: its own */
    more_entry *more;             /* by id */
    char **patterns;              /* what is looked for to find each of them */
    int n_more;
    int32_t *by_bytes; /* hash of vocabulary bytes -> id */
    uint32_t bytes_mask;
    merge *merges; /* open addressing, rank < 0: empty */
    uint32_t merges_mask;
    int32_t byte_id[256]; /* byte-level: the byte's token; byte fallback: <0xXX>; -1: none */
    /* Added tokens searched in the raw text, and those searched in the rest after the normaliser.
     */
    added_set raw, normal;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    model_kind model;
    normaliser normal_form;
    piece_model piece;
    char *decode_prefix;              /* likewise of its decoder */
    bool decode_clean;                /* WordPiece's cleanup */
    bool metaspace, metaspace_split;  /* a pre-tokeniser that puts "▁" for spaces */
    bool decode_blocks, decode_bytes; /* the decoder: "▁" gives a space, <0xXX> a byte */
    first_kind first;
    prepend_kind prepend; /* Metaspace's */
    splitter split;       /* before the words; of Metaspace, too */
    int32_t unk, bos, eos;
    int32_t prefix[8], suffix[8]; /* what the post-processor adds */
    int n_prefix, n_suffix;
};

/* ---- tokenizer_tables.c -- */

/* Never NULL; an empty entry for an unknown id. */
const entry *tokenizer_entry(const tokenizer *t, int32_t id);
/* -1: none.  Of a byte-level vocabulary: `plain` are those that are these bytes,
 * the others stand for them. */
int32_t tokenizer_find_bytes(const tokenizer *t, const char *s, size_t len, bool plain);
/* The vocabulary's own string, as tokenizer.json writes it; -1: none. */
int32_t tokenizer_vocabulary_id(const tokenizer *t, const char *s);
/* A string of the byte alphabet to the bytes it stands for (at most
 * strlen(s)); false if it is none. */
bool tokenizer_undo_alphabet(const char *s, char *out, size_t *len);
/* `same`: NULL, or [n_vocab]: the id by which an entry's string is found. */
err_code tokenizer_hash_entries(tokenizer *t, int32_t *same, err *e);

/* An empty table with room for n merges, before tokenizer_put_merge(); freed with the tokenizer.
 * ERR_NOMEM. */
err_code tokenizer_make_merges(tokenizer *t, size_t n, err *e);
/* The last one of a pair counts, as with Hugging Face. */
void tokenizer_put_merge(tokenizer *t, merge m);
/* NULL: the pair does not merge. */
const merge *tokenizer_find_merge(const tokenizer *t, int32_t a, int32_t b);

/* ---- tokenizer_added.c -- */

/* Sorts a set and makes it searchable; after every change of it.
 * ERR_INPUT: two look for the same. */
err_code tokenizer_index_added(added_set *set, err *e);
/* The longest added token that a text begins with; then `shorter` leads to all others that
 * it begins with.  -1: none. */
int tokenizer_added_at(const added_set *set, const char *s, size_t len);

/* ---- tokenizer_decode.c -- */

/* text, text_len and byte of an entry, from the string that the decoder is given for it. */
err_code tokenizer_make_text(const tokenizer *t, entry *en, const char *shown, err *e);

/* ---- tokenizer.c -- */

typedef struct encoder {
    const tokenizer *t;
    const tok_guard *guard; /* NULL: none */
    bool special;           /* special tokens' text becomes them */
    bool failed;            /* no memory */
    int32_t *out;
    size_t n, cap;
    struct symbol *symbols; /* work */
    struct pair *heap;
    size_t n_heap, work_cap;
    struct best *best; /* [best_cap] work of Unigram's */
    size_t best_cap;
} encoder;

/* Whether a guarded text may produce this token only from trusted bytes. */
bool tokenizer_is_barred(const encoder *en, int32_t id);

/* Appends an id; counts on where the room is full. */
void tokenizer_emit(encoder *en, int32_t id);
/* Ids of a part without added tokens, behind the normaliser; at_start: it begins the text. */
void tokenizer_encode_part(encoder *en, const char *s, size_t len, bool at_start);
/* Cuts the text at its added tokens and has the parts encoded. */
void tokenizer_cut(encoder *en, const char *s, size_t len);

/* ---- tokenizer_pieces.c -- */

/* The ids of one word. */
void tokenizer_unigram(encoder *en, const char *s, size_t len);
void tokenizer_word_piece(encoder *en, const char *s, size_t len);
void tokenizer_word_level(encoder *en, const char *s, size_t len);
/* The vocabulary as pieces, after it is loaded. */
err_code tokenizer_index_pieces(tokenizer *t, err *e);
/* What WordPiece's decoder makes of a token's string: `first`, or behind others.  Room: one byte
 * more than the string's.  Returns its length. */
size_t tokenizer_word_text(const tokenizer *t, const char *shown, bool first, char *out);

/* ---- tokenizer_model.c -- */

/* "model": its kind and flags, which of the others' steps may be there; then its tokens. */
err_code tokenizer_read_model(tokenizer *t, const cJSON *model, err *e);
/* *n: how many strings there are.  words->n > 0: they and the merges are there. */
err_code tokenizer_read_vocabulary(tokenizer *t, const cJSON *model, const gguf_words *words,
                                   int *n, err *e);

/* ---- tokenizer_more.c -- */

/* Of one that tokenizer_extend() made. */
void tokenizer_free_more(tokenizer *t);

/* ---- tokenizer_steps.c -- */

/* A step of a byte-level pre-tokeniser that cuts texts; ERR_UNSUPPORTED: it is of another type. */
err_code tokenizer_read_step(splitter *s, const cJSON *v, err *e);
/* ByteLevel: its space in front and its own split. */
err_code tokenizer_read_byte_level(splitter *s, const cJSON *v, err *e);

/* ---- tokenizer_words.c -- */

typedef struct tok_words {
    tok_added *list; /* contents are malloced */
    int n, cap;
} tok_words;

/* What lies beside tokenizer.json; NULL: not there. */
typedef struct tok_files {
    cJSON *config, *special_map, *added;
    /* Transformers' LlamaTokenizer: of tokenizer.json's added tokens none, if others name some. */
    bool as_llama;
} tok_files;

/* All added tokens in the order in which AutoTokenizer adds them, with the ids that they
 * get; a file that says another id is refused.  The vocabulary, of n strings, is in its
 * hash.  Clear `out` in any case. */
err_code tokenizer_read_words(tok_words *out, const tokenizer *t, const cJSON *root,
                              const tok_files *files, int n, err *e);

/* Frees what tokenizer_read_words() made; a zeroed one is fine. */
void tokenizer_clear_words(tok_words *w);
/* The token that has a name (bos_token ...); -1: none. */
int32_t tokenizer_named(const tokenizer *t, const tok_files *files, const char *name);
/* Into the entries and sets, for the texts of which decoder and normaliser are known. */
err_code tokenizer_take_words(tokenizer *t, const tok_words *w, err *e);
/* Which token is looked for where to find `a`: its content malloced. */
err_code tokenizer_looked_for(const tokenizer *t, const tok_added *a, added_token *out, err *e);
/* An entry of `a`, whose content and text are malloced. */
/* tokenizers leaves out whatever shows the name of a special token: a normalized one
 * may, that is none itself. */
void tokenizer_hide(const tokenizer *t, const char *pattern, entry *en);
err_code tokenizer_make_added(const tokenizer *t, entry *en, const tok_added *a,
                              const char *pattern, err *e);

#endif
