/* tokenizer_tables.c -- the vocabulary and the merges as hash tables.
 *
 * A byte-level vocabulary is kept by the bytes that its strings stand for.  A string that is not of
 * the alphabet is `plain`: it stands for nothing that merging makes, but an added token may be it.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/utf8.h"
#include "engine/text/tokenizer_inside.h"

static uint32_t hash_pair(int32_t a, int32_t b)
{
    return (uint32_t)hash_id((uint64_t)(uint32_t)a << 32 | (uint32_t)b);
}

static uint32_t table_size(size_t n)
{
    uint32_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

/* ---- vocabulary ---------------------------------------------------------------------------- */

int32_t tokenizer_find_bytes(const tokenizer *t, const char *s, size_t len, bool plain)
{
    uint32_t i = (uint32_t)hash_text(0, s, len) & t->bytes_mask;
    for (; t->by_bytes[i] >= 0; i = (i + 1) & t->bytes_mask) {
        const entry *e = &t->entries[t->by_bytes[i]];
        if (e->len == len && e->plain == plain && memcmp(e->bytes, s, len) == 0)
            return t->by_bytes[i];
    }
    return -1;
}

/* Where the entry's bytes are, or would be. */
static uint32_t slot_of(const tokenizer *t, const entry *en)
{
    uint32_t i = (uint32_t)hash_text(0, en->bytes, en->len) & t->bytes_mask;
    for (; t->by_bytes[i] >= 0; i = (i + 1) & t->bytes_mask) {
        const entry *o = &t->entries[t->by_bytes[i]];
        if (o->len == en->len && o->plain == en->plain && memcmp(o->bytes, en->bytes, o->len) == 0)
            break;
    }
    return i;
}

err_code tokenizer_hash_entries(tokenizer *t, int32_t *same, err *e)
{
    uint32_t size = table_size((size_t)t->n_vocab);
    t->by_bytes = malloc(size * sizeof(*t->by_bytes));
    if (!t->by_bytes) return err_set(e, ERR_NOMEM, "no memory for the vocabulary");
    t->bytes_mask = size - 1;
    for (uint32_t i = 0; i < size; i++) t->by_bytes[i] = -1;
    bool last = t->model == MODEL_UNIGRAM; /* of pieces that are there twice the last one counts */
    for (int32_t k = 0; k < t->n_vocab; k++) {
        int32_t id = last ? t->n_vocab - 1 - k : k;
        const entry *en = &t->entries[id];
        if (!en->bytes) continue;
        uint32_t i = slot_of(t, en);
        if (t->by_bytes[i] < 0) t->by_bytes[i] = id;
        if (same) same[id] = t->by_bytes[i];
    }
    return ERR_NONE;
}

/* GPT-2's alphabet: the byte that each code point below 512 stands for, or -1. */
static int byte_of(uint32_t c)
{
    bool plain = (c >= '!' && c <= '~') || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
    if (plain) return (int)c;
    if (c >= 256 && c <= 288) return (int)(c - 256); /* 0 to ' ' */
    if (c >= 289 && c <= 322) return (int)(c - 289 + 0x7F);
    return c == 323 ? 0xAD : -1;
}

bool tokenizer_undo_alphabet(const char *s, char *out, size_t *len)
{
    size_t n = strlen(s), used, m = 0;
    for (size_t i = 0; i < n; i += used) {
        int b = byte_of(utf8_decode(s + i, n - i, &used));
        if (b < 0) return false;
        out[m++] = (char)b;
    }
    *len = m;
    return true;
}

int32_t tokenizer_vocabulary_id(const tokenizer *t, const char *s)
{
    size_t len = strlen(s);
    if (!t->byte_level) return tokenizer_find_bytes(t, s, len, false);
    char small[256], *out = len < sizeof(small) ? small : malloc(len + 1);
    if (!out) return -1;
    size_t n;
    bool alphabet = tokenizer_undo_alphabet(s, out, &n);
    int32_t id =
        alphabet ? tokenizer_find_bytes(t, out, n, false) : tokenizer_find_bytes(t, s, len, true);
    if (out != small) free(out);
    return id;
}

/* ---- merges -------------------------------------------------------------------------------- */

err_code tokenizer_make_merges(tokenizer *t, size_t n, err *e)
{
    uint32_t size = table_size(n);
    t->merges = malloc(size * sizeof(*t->merges));
    if (!t->merges) return err_set(e, ERR_NOMEM, "no memory for merges");
    for (uint32_t i = 0; i < size; i++) t->merges[i].rank = -1;
    t->merges_mask = size - 1;
    return ERR_NONE;
}

const merge *tokenizer_find_merge(const tokenizer *t, int32_t a, int32_t b)
{
    uint32_t i = hash_pair(a, b) & t->merges_mask;
    for (; t->merges[i].rank >= 0; i = (i + 1) & t->merges_mask) {
        if (t->merges[i].left == a && t->merges[i].right == b) return &t->merges[i];
    }
    return NULL;
}

void tokenizer_put_merge(tokenizer *t, merge m)
{
    uint32_t i = hash_pair(m.left, m.right) & t->merges_mask;
    while (t->merges[i].rank >= 0 && (t->merges[i].left != m.left || t->merges[i].right != m.right))
        i = (i + 1) & t->merges_mask;
    t->merges[i] = m;
}
