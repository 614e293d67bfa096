/* tokenizer.c -- encoding: text to token ids.
 *
 *   text --added tokens, normaliser (tokenizer_cut.c)--> parts --pre-tokeniser
 *   (tokenizer_split.c)-->
 *   words --BPE here; Unigram, WordPiece, WordLevel in tokenizer_pieces.c--> ids
 *
 * BPE merges by rank. The symbols of a word are a linked list; a heap holds the mergeable pairs by
 * (rank, position). A pair that was overtaken by another merge is recognised by its stale ids and
 * skipped. Each merge adds at most two pairs, so a word of n symbols costs O(n log n), also for
 * hostile input; the textbook loop that rescans the word is O(n^2).
 *
 * Symbols are bytes (byte-level vocabularies, GPT-2) or characters with byte fallback
 * (SentencePiece). Unknown characters become the unknown token in the same order as in Hugging
 * Face's tokenizers, whose results every test compares.
 *
 * A guard (tok_guard) marks bytes that come from users: tokens barred by it are never produced from
 * them, so a prompt cannot forge control tokens.
 *
 * Threads: a loaded tokenizer is immutable; an encoder lives on the caller's stack. Source:
 * Sennrich et al. 2016 (BPE); Hugging Face tokenizers for the order of steps.
 */
#include "engine/text/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/heap.h"
#include "engine/base/utf8.h"
#include "engine/text/tokenizer_inside.h"

/* -------------------------------------------------------------------- tables -- */

int tokenizer_vocab(const tokenizer *t)
{
    return t->n_vocab;
}

int32_t tokenizer_bos(const tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const tokenizer *t)
{
    return t->eos;
}

/* Finds the added token with this content in a set that is searched by `pattern`. */
static int32_t find_added(const tokenizer *t, const added_set *set, const char *pattern,
                          const char *content)
{
    size_t len = strlen(pattern);
    int k = tokenizer_added_at(set, pattern, len);
    if (k < 0 || set->list[k].len != len) return -1;
    int32_t id = set->list[k].id;
    return strcmp(tokenizer_entry(t, id)->content, content) == 0 ? id : -1;
}

int32_t tokenizer_find(const tokenizer *t, const char *content)
{
    size_t len = strlen(content);
    int32_t id = find_added(t, &t->raw, content, content);
    tok_normal n;
    if (id < 0 && t->normal.n > 0 && normaliser_run(&t->normal_form, content, len, NULL, &n)) {
        id = find_added(t, &t->normal, n.s, content);
        tok_normal_clear(&n);
    }
    return id >= 0 ? id : tokenizer_vocabulary_id(t, content);
}

const char *tokenizer_content(const tokenizer *t, int32_t id)
{
    return tokenizer_entry(t, id)->content;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id)
{
    return tokenizer_entry(t, id)->special;
}

bool tokenizer_is_added(const tokenizer *t, int32_t id)
{
    return tokenizer_entry(t, id)->added;
}

/* ------------------------------------------------------------------- encoding -- */

typedef struct symbol {
    int32_t id; /* -1: merged away */
    int32_t prev, next;
} symbol;

typedef struct pair {
    int32_t rank, pos, left, right; /* ids when it was found: stale if they changed */
} pair;

bool tokenizer_is_barred(const encoder *en, int32_t id)
{
    const tok_guard *g = en->guard;
    if (!g) return false;
    const entry *known = tokenizer_entry(en->t, id);
    if (known->special || known->barred) return true;
    for (size_t i = 0; i < g->n_barred; i++) {
        if (g->barred[i] == id) return true;
    }
    return false;
}

static int32_t find_piece(const encoder *en, const char *s, size_t len)
{
    int32_t id = tokenizer_find_bytes(en->t, s, len, false);
    return id >= 0 && tokenizer_is_barred(en, id) ? -1 : id;
}

void tokenizer_emit(encoder *en, int32_t id)
{
    if (en->n < en->cap) en->out[en->n] = id;
    en->n++;
}

static bool pair_before(const void *self, const void *a, const void *b)
{
    const pair *x = a, *y = b;
    (void)self;
    return x->rank < y->rank || (x->rank == y->rank && x->pos < y->pos);
}

static const heap_of pairs = {sizeof(pair), pair_before, NULL};

static void push_pair(encoder *en, pair p)
{
    assert(en->n_heap < 3 * en->work_cap);
    en->heap[en->n_heap++] = p;
    heap_settle(&pairs, NULL, en->heap, en->n_heap, en->n_heap - 1);
}

static pair pop_pair(encoder *en)
{
    assert(en->n_heap > 0);
    pair top = en->heap[0];
    en->heap[0] = en->heap[--en->n_heap];
    heap_sink(&pairs, NULL, en->heap, en->n_heap, 0);
    return top;
}

/* Makes room for n symbols and 3 n pairs: n - 1 at first, and at most two more per merge. */
static bool make_room(encoder *en, size_t n)
{
    if (n <= en->work_cap) return true;
    free(en->symbols);
    free(en->heap);
    en->symbols = malloc(n * sizeof(*en->symbols));
    en->heap = malloc(3 * n * sizeof(*en->heap));
    en->work_cap = en->symbols && en->heap ? n : 0;
    en->failed |= en->work_cap == 0;
    return en->work_cap > 0;
}

static void offer(encoder *en, int32_t left)
{
    const symbol *s = en->symbols;
    if (left < 0 || s[left].next < 0) return;
    int32_t a = s[left].id, b = s[s[left].next].id;
    if (a < 0 || b < 0) return;
    const merge *m = tokenizer_find_merge(en->t, a, b);
    if (m && !tokenizer_is_barred(en, m->result)) push_pair(en, (pair){m->rank, left, a, b});
}

/* Merges the first n symbols and emits what is left. */
static void merge_symbols(encoder *en, int32_t n)
{
    symbol *s = en->symbols;
    assert(n >= 0 && (size_t)n <= en->work_cap);
    en->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++) offer(en, i);
    while (en->n_heap > 0) {
        pair p = pop_pair(en);
        int32_t r = s[p.pos].next;
        if (s[p.pos].id != p.left || r < 0 || s[r].id != p.right) continue;
        s[p.pos].id = tokenizer_find_merge(en->t, p.left, p.right)->result;
        s[p.pos].next = s[r].next;
        if (s[r].next >= 0) s[s[r].next].prev = p.pos;
        s[r].id = -2; /* merged away: matches no pair */
        offer(en, s[p.pos].prev);
        offer(en, p.pos);
    }
    for (int32_t i = 0; i >= 0 && i < n; i = s[i].next) tokenizer_emit(en, s[i].id);
}

static void add_symbol(encoder *en, int32_t *n, int32_t id)
{
    en->symbols[*n] = (symbol){id, *n - 1, -1};
    if (*n > 0) en->symbols[*n - 1].next = *n;
    (*n)++;
}

/* ignore_merges: a word that is in the vocabulary is emitted whole. */
static bool whole_piece(encoder *en, const char *s, size_t len)
{
    int32_t id = en->t->ignore_merges ? find_piece(en, s, len) : -1;
    if (id >= 0) tokenizer_emit(en, id);
    return id >= 0;
}

/* A pending unknown token. As in Hugging Face's tokenizers, byte-fallback symbols overtake a
 * pending one. */
typedef struct {
    int32_t n;
    bool unk_waits;
} symbols;

static void end_unk(encoder *en, symbols *y)
{
    if (y->unk_waits) add_symbol(en, &y->n, en->t->unk);
    y->unk_waits = false;
}

static void add_known(encoder *en, symbols *y, int32_t id)
{
    end_unk(en, y);
    add_symbol(en, &y->n, id);
}

static void add_unknown(encoder *en, symbols *y)
{
    if (en->t->unk < 0) return;
    if (!en->t->fuse_unk) end_unk(en, y);
    y->unk_waits = true;
}

static void byte_level_piece(encoder *en, const char *s, size_t len)
{
    if (whole_piece(en, s, len) || !make_room(en, len)) return;
    symbols y = {0};
    for (size_t i = 0; i < len; i++) {
        int32_t id = en->t->byte_id[(unsigned char)s[i]];
        if (id >= 0)
            add_known(en, &y, id);
        else
            add_unknown(en, &y);
    }
    end_unk(en, &y);
    merge_symbols(en, y.n);
}

/* One symbol per character; unknown ones as bytes, or as the unknown token. */
static void sentence_piece(encoder *en, const char *s, size_t len)
{
    const tokenizer *t = en->t;
    if (whole_piece(en, s, len) || !make_room(en, len)) return;
    symbols y = {0};
    for (size_t i = 0, used; i < len; i += used) {
        (void)utf8_decode(s + i, len - i, &used);
        int32_t id = find_piece(en, s + i, used);
        bool bytes = id < 0 && t->byte_fallback;
        for (size_t k = 0; bytes && k < used; k++) bytes = t->byte_id[(unsigned char)s[i + k]] >= 0;
        if (id >= 0)
            add_known(en, &y, id);
        else if (!bytes)
            add_unknown(en, &y);
        for (size_t k = 0; bytes && k < used; k++)
            add_symbol(en, &y.n, t->byte_id[(unsigned char)s[i + k]]);
    }
    end_unk(en, &y);
    merge_symbols(en, y.n);
}

/* ------------------------------------------------------------- pre-tokenisers -- */

static void encode_word(encoder *en, const char *s, size_t len)
{
    switch (en->t->model) {
    case MODEL_BPE: sentence_piece(en, s, len); break;
    case MODEL_UNIGRAM: tokenizer_unigram(en, s, len); break;
    case MODEL_WORD_PIECE: tokenizer_word_piece(en, s, len); break;
    case MODEL_WORD_LEVEL: tokenizer_word_level(en, s, len); break;
    }
}

/* Metaspace: "▁" for spaces, one in front if the model wants it, then words that
 * begin at "▁" (or one word). */
static void encode_blocks(encoder *en, const char *s, size_t len, bool at_start)
{
    const tokenizer *t = en->t;
    char *bytes = malloc(3 * len + 8);
    if (!bytes) {
        en->failed = true;
        return;
    }
    size_t m = 0, start = 0;
    bool prepend = t->prepend == PREPEND_ALWAYS || (t->prepend == PREPEND_FIRST && at_start);
    for (size_t i = 0, used; i < len && !en->failed; i += used) {
        uint32_t c = utf8_decode(s + i, len - i, &used);
        if (c == ' ' && t->metaspace) c = 0x2581;
        if (i == 0 && prepend && c != 0x2581) m = utf8_encode(0x2581, bytes);
        if (c == 0x2581 && t->metaspace_split && m > start) {
            encode_word(en, bytes + start, m - start);
            start = m;
        }
        m += utf8_encode(c,
                         bytes + m); /* at most 3 for an invalid byte, else as many as there were */
    }
    if (m > start) encode_word(en, bytes + start, m - start);
    free(bytes);
}

static void encode_piece(encoder *en, const char *s, size_t len, bool at_start)
{
    if (en->t->byte_level)
        byte_level_piece(en, s, len);
    else if (en->t->metaspace)
        encode_blocks(en, s, len, at_start);
    else
        encode_word(en, s, len);
}

/* Runs the splitter, then encodes each piece. */
static void encode_pieces(encoder *en, const char *s, size_t len, bool at_start)
{
    split_text t = {0};
    char *bytes = malloc(UTF8_MAX * 2 * len + 8); /* twice: a step may insert spaces */
    bool ok = bytes && splitter_run(&en->t->split, s, len, &t);
    en->failed |= !ok;
    for (size_t i = 0, end; i < t.n && !en->failed; i = end) {
        size_t used = 0;
        end = split_text_piece(&t, i);
        if (t.marks[i] & SPLIT_GONE) continue;
        for (size_t k = i; k < end; k++) used += utf8_encode(t.c[k] & 0xFFFFFF, bytes + used);
        encode_piece(en, bytes, used, at_start && i == 0);
    }
    split_text_clear(&t);
    free(bytes);
}

void tokenizer_encode_part(encoder *en, const char *s, size_t len, bool at_start)
{
    if (len == 0 || en->failed) return;
    if (en->t->byte_level || en->t->split.n > 0)
        encode_pieces(en, s, len, at_start);
    else
        encode_blocks(en, s, len, at_start);
}

/* --------------------------------------------------------------------- texts -- */

static int64_t encode(const tokenizer *t, const char *text, size_t len, int flags,
                      const tok_guard *guard, int32_t *ids, size_t cap)
{
    encoder en = {
        .t = t, .guard = guard, .special = flags & TOK_PARSE_SPECIAL, .out = ids, .cap = cap};
    if (len > INT32_MAX / 4) return -1;
    for (int i = 0; (flags & TOK_ADD_SPECIAL) && i < t->n_prefix; i++)
        tokenizer_emit(&en, t->prefix[i]);
    tokenizer_cut(&en, text, len);
    for (int i = 0; (flags & TOK_ADD_SPECIAL) && i < t->n_suffix; i++)
        tokenizer_emit(&en, t->suffix[i]);
    free(en.symbols);
    free(en.heap);
    free(en.best);
    return en.failed ? -1 : (int64_t)en.n;
}

int64_t tokenizer_encode(const tokenizer *t, const char *text, size_t len, int flags, int32_t *ids,
                         size_t cap)
{
    return encode(t, text, len, flags, NULL, ids, cap);
}

int64_t tokenizer_encode_guarded(const tokenizer *t, const char *text, size_t len,
                                 const tok_guard *guard, int32_t *ids, size_t cap)
{
    return encode(t, text, len, TOK_PARSE_SPECIAL, guard, ids, cap);
}
