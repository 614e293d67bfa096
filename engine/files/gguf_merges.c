/* gguf_merges.c -- which two words of a GGUF's vocabulary make a third, the best first.
 *
 * A byte-level file lists its merges.  A SentencePiece file has scores instead: SentencePiece joins
 * the neighbours whose joint word has the best score.  As ranked merges: all ways to cut each word
 * into two words, by the score of the whole; among equals the longer left part first, as Hugging
 * Face's converter has it.
 *
 * A vocabulary of 262,144 words has 500,000 merges, and a start waits for them: words are looked up
 * by hashes that grow with the part, and only words of equal score are sorted.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/files/documents_inside.h"

enum { MERGES_MAX = 1 << 26, CUTS = 16 };

typedef struct pair {
    gguf_merge m;
    int left_chars, right_chars;
} pair;

typedef struct slot {
    uint32_t tag;  /* upper half of the word's hash */
    int id;        /* -1: empty */
    const char *s; /* the word's, so that a look-up reads two lines of memory and not three */
} slot;

typedef struct scored {
    float score;
    int id;
} scored;

typedef struct table {
    const gguf_word *word;
    slot *slot; /* open addressing */
    size_t mask;
    scored *first; /* [n_first] by scores: the words that are found, each text once */
    int n_first;
    pair *pair; /* of the words of one score */
    size_t n_pair, cap_pair;
    gguf_words *out;
    size_t cap;
} table;

/* Hashes of a text as it grows. */
static uint64_t more_hash(uint64_t h, const char *s, size_t n)
{
    return hash_bytes(h, s, n);
}

static uint64_t whole_hash(const char *s, size_t n)
{
    return more_hash(HASH_BASIS, s, n);
}

static slot *place_of(const table *t, uint64_t h, const char *s, size_t len)
{
    uint32_t tag = (uint32_t)(h >> 32);
    size_t i = (size_t)(h ^ h >> 32) & t->mask;
    for (; t->slot[i].id >= 0; i = (i + 1) & t->mask) {
        const slot *at = &t->slot[i];
        if (at->tag == tag && strncmp(at->s, s, len) == 0 && !at->s[len]) break;
    }
    return &t->slot[i];
}

static int find(const table *t, uint64_t h, const char *s, size_t len)
{
    return place_of(t, h, s, len)->id;
}

/* Words that text may become; markers are found before it is split. */
static bool is_plain(const gguf_word *w)
{
    return w->type == WORD_NORMAL && w->len > 0 && !memchr(w->s, ' ', w->len);
}

/* Of equal words the first one is found. */
static bool index_words(table *t, int n, bool (*takes)(const gguf_word *))
{
    size_t size = 16;
    while (size < 2 * (size_t)n) size *= 2;
    t->slot = malloc(size * sizeof(*t->slot));
    t->first = malloc(((size_t)n + 1) * sizeof(*t->first));
    if (!t->slot || !t->first) return false;
    t->mask = size - 1;
    for (size_t i = 0; i < size; i++) t->slot[i] = (slot){0, -1, NULL};
    for (int i = 0; i < n; i++) {
        const gguf_word *w = &t->word[i];
        if (!takes(w)) continue;
        uint64_t h = whole_hash(w->s, w->len);
        slot *at = place_of(t, h, w->s, w->len);
        if (at->id >= 0) continue;
        *at = (slot){(uint32_t)(h >> 32), i, w->s};
        t->first[t->n_first++] = (scored){w->score, i};
    }
    return true;
}

static bool put(table *t, gguf_merge m)
{
    gguf_words *out = t->out;
    if ((size_t)out->n_merges == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 1024;
        gguf_merge *more = cap <= MERGES_MAX ? realloc(out->merge, cap * sizeof(*more)) : NULL;
        if (!more) return false;
        out->merge = more;
        t->cap = cap;
    }
    out->merge[out->n_merges++] = m;
    return true;
}

/* ---- by scores ------------------------------------------------------------------------------- */

static int chars_in(const char *s, size_t n)
{
    int chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}

static bool add_pair(table *t, const gguf_word *w, size_t cut, gguf_merge m)
{
    if (t->n_pair == t->cap_pair) {
        size_t cap = t->cap_pair ? 2 * t->cap_pair : 256;
        pair *more = realloc(t->pair, cap * sizeof(*more));
        if (!more) return false;
        t->pair = more;
        t->cap_pair = cap;
    }
    t->pair[t->n_pair++] = (pair){m, chars_in(w->s, cut), chars_in(w->s + cut, w->len - cut)};
    return true;
}

/* Where a word may be cut in two, with what is looked up next. */
typedef struct cut {
    size_t at;
    uint64_t hash;
    int left;
} cut;

/* The table is larger than the caches: memory is asked for all parts before the first is read. */
static cut ask(const table *t, size_t at, uint64_t hash, int left)
{
    __builtin_prefetch(&t->slot[(size_t)(hash ^ hash >> 32) & t->mask]);
    return (cut){at, hash, left};
}

static bool add_cuts(table *t, int whole)
{
    const gguf_word *w = &t->word[whole];
    uint64_t h = HASH_BASIS;
    for (size_t at = 1; at < w->len;) {
        cut some[CUTS];
        int n = 0, m = 0;
        for (; at < w->len && n < CUTS; at++) {
            h = more_hash(h, w->s + at - 1, 1);
            bool within = ((unsigned char)w->s[at] & 0xC0) == 0x80; /* a character */
            if (!within) some[n++] = ask(t, at, h, -1);
        }
        for (int i = 0; i < n; i++) {
            size_t k = some[i].at;
            int left = find(t, some[i].hash, w->s, k);
            if (left >= 0) some[m++] = ask(t, k, whole_hash(w->s + k, w->len - k), left);
        }
        for (int i = 0; i < m; i++) {
            size_t k = some[i].at;
            int right = find(t, some[i].hash, w->s + k, w->len - k);
            gguf_merge made = {some[i].left, right, whole};
            if (right >= 0 && !add_pair(t, w, k, made)) return false;
        }
    }
    return true;
}

/* Of one score. */
static int by_rank(const void *x, const void *y)
{
    const pair *a = x, *b = y;
    if (a->left_chars != b->left_chars) return b->left_chars - a->left_chars;
    if (a->right_chars != b->right_chars) return b->right_chars - a->right_chars;
    if (a->m.whole != b->m.whole) return a->m.whole < b->m.whole ? -1 : 1;
    return (a->m.left > b->m.left) - (a->m.left < b->m.left);
}

static int by_score(const void *x, const void *y)
{
    const scored *a = x, *b = y;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* As most files have them already. */
static void rank_words(table *t)
{
    bool sorted = true;
    for (int i = 1; i < t->n_first; i++) sorted &= t->first[i - 1].score >= t->first[i].score;
    if (!sorted) qsort(t->first, (size_t)t->n_first, sizeof(*t->first), by_score);
}

/* Cuts of one word ascend, so backwards they are in the order of by_rank(). */
static bool put_pairs(table *t, bool one_word)
{
    if (!one_word) qsort(t->pair, t->n_pair, sizeof(*t->pair), by_rank);
    for (size_t i = 0; i < t->n_pair; i++)
        if (!put(t, t->pair[one_word ? t->n_pair - 1 - i : i].m)) return false;
    t->n_pair = 0;
    return true;
}

err_code gguf_make_merges(gguf_words *words, err *e)
{
    table t = {.word = words->word, .out = words};
    bool ok = index_words(&t, words->n, is_plain);
    if (ok) rank_words(&t);
    for (int i = 0, from = 0; ok && i < t.n_first; i++) {
        ok = add_cuts(&t, t.first[i].id);
        if (i + 1 < t.n_first && t.first[i + 1].score == t.first[i].score) continue;
        ok = ok && put_pairs(&t, from == i);
        from = i + 1;
    }
    free(t.first);
    free(t.slot);
    free(t.pair);
    return ok ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory to read a GGUF");
}

/* ---- as they are listed ---------------------------------------------------------------------- */

/* "left right". */
static err_code read_merge(table *t, const char *s, size_t len, err *e)
{
    char whole[2 * WORD_BYTES_MAX];
    int number = t->out->n_merges;
    const char *space = len < sizeof(whole) ? memchr(s, ' ', len) : NULL;
    if (!space) return err_set(e, ERR_CORRUPT, "GGUF: merge %d is malformed", number);
    size_t left = (size_t)(space - s), right = len - left - 1;
    memcpy(whole, s, left);
    memcpy(whole + left, space + 1, right);
    gguf_merge m = {find(t, whole_hash(s, left), s, left),
                    find(t, whole_hash(space + 1, right), space + 1, right),
                    find(t, whole_hash(whole, left + right), whole, left + right)};
    if (m.left < 0 || m.right < 0 || m.whole < 0)
        return err_set(e, ERR_CORRUPT, "GGUF: merge %d is not made of tokens", number);
    return put(t, m) ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory to read a GGUF");
}

err_code gguf_read_merges(const gguf_value *v, gguf_words *words, err *e)
{
    table t = {.word = words->word, .out = words};
    const char *s;
    size_t len;
    uint64_t at = 0;
    if (!v) return err_set(e, ERR_INPUT, "GGUF: tokenizer.ggml.merges are missing");
    err_code rc = index_words(&t, words->n, gguf_word_used)
                      ? ERR_NONE
                      : err_set(e, ERR_NOMEM, "no memory to read a GGUF");
    while (!rc && gguf_next_text(v, &at, &s, &len)) rc = read_merge(&t, s, len, e);
    free(t.first);
    free(t.slot);
    if (rc || (uint64_t)words->n_merges == v->count) return rc;
    return err_set(e, ERR_CORRUPT, "GGUF: merge %d is malformed", words->n_merges);
}
