/* tokenizer_inside.h -- the loaded tokenizer, shared by tokenizer_load.c and tokenizer.c alone. */
#ifndef ENGINE_TOKENIZER_INSIDE_H
#define ENGINE_TOKENIZER_INSIDE_H

#include "engine/tokenizer.h"
#include "engine/tokenizer_split.h"

#define LOWER_BLOCK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

typedef struct {
    char *bytes; /* the vocabulary's string; byte-level alphabets are undone */
    char *text;  /* what the token stands for in a text; the same memory where they agree */
    uint32_t len, text_len;
    bool special, added, barred;
} entry;

typedef struct {
    int32_t id;
    entry e;
} more_entry;

typedef struct {
    char *content;
    size_t len;
    int32_t id;
    bool special, lstrip, rstrip, single_word;
    int shorter; /* the longest other one that this one begins with; -1: none */
} added_token;

typedef struct {
    int32_t left, right, rank, result;
} merge;

typedef enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend_kind;

struct tokenizer {
    entry *entries;      /* [n_base] */
    int n_base, n_vocab; /* n_vocab is larger where tokens of `more` lie behind the entries */
    const struct tokenizer *base; /* tokenizer_extend(): whose tables these are; NULL: its own */
    more_entry *more;             /* by id */
    int n_more;
    int32_t *by_bytes; /* hash of vocabulary bytes -> id */
    uint32_t bytes_mask;
    merge *merges; /* open addressing, rank < 0: empty */
    uint32_t merges_mask;
    int32_t byte_id[256]; /* byte-level: the byte's token; byte fallback: <0xXX>; -1: none */
    added_token *added;   /* in the order of their bytes: tokenizer_index_added() */
    int n_added;
    int added_from[257]; /* where those that begin with a byte begin */
    bool byte_level, byte_fallback, fuse_unk, ignore_merges, nfc;
    bool add_prefix_space, strip_first_space, metaspace, metaspace_split;
    prepend_kind prepend;
    split_kind split;
    int32_t unk, bos, eos;
    int32_t prefix[8], suffix[8]; /* what the post-processor adds */
    int n_prefix, n_suffix;
};

/* Never NULL; without bytes where there is no such token. */
const entry *tokenizer_entry(const tokenizer *t, int32_t id);
int32_t tokenizer_find_bytes(const tokenizer *t, const char *s, size_t len); /* -1: none */
/* Of one that tokenizer_extend() made. */
void tokenizer_free_more(tokenizer *t);
/* Sorts tokenizer.added and makes it searchable; after every change of it. */
void tokenizer_index_added(tokenizer *t);
/* The longest added token that a text begins with, of several with one content that with the lowest id; then
 * `shorter` leads to all others that it begins with.  -1: none. */
int tokenizer_added_at(const tokenizer *t, const char *s, size_t len);
/* NULL: the pair does not merge. */
const merge *tokenizer_find_merge(const tokenizer *t, int32_t a, int32_t b);

#endif
