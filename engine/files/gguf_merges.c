/* gguf_merges.c -- which two words of a SentencePiece vocabulary make a third, the best first.
 *
 * SentencePiece joins the neighbours whose joint word has the best score.  As ranked merges: all
 * ways to cut each word into two words, by the score of the whole; among equals the longer left
 * part first, as Hugging Face's converter has it.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/files/documents_inside.h"

typedef struct pair {
    int whole, left, right;
    int left_chars, right_chars;
    float score;
} pair;

typedef struct table {
    const gguf_word *word;
    int *slot; /* open addressing, -1: empty */
    size_t mask;
    pair *pair;
    size_t n, cap;
} table;

static int find(const table *t, const char *s, size_t len)
{
    size_t i = (size_t)hash_text(0, s, len) & t->mask;
    for (; t->slot[i] >= 0; i = (i + 1) & t->mask) {
        const gguf_word *w = &t->word[t->slot[i]];
        if (w->len == len && memcmp(w->s, s, len) == 0) return t->slot[i];
    }
    return -1;
}

/* Words that text may become; markers are found before it is split. */
static bool is_plain(const gguf_word *w)
{
    return w->type == WORD_NORMAL && w->len > 0 && !memchr(w->s, ' ', w->len);
}

static bool index_words(table *t, int n)
{
    size_t size = 16;
    while (size < 2 * (size_t)n) size *= 2;
    t->slot = malloc(size * sizeof(*t->slot));
    if (!t->slot) return false;
    t->mask = size - 1;
    for (size_t i = 0; i < size; i++) t->slot[i] = -1;
    for (int i = 0; i < n; i++) {
        const gguf_word *w = &t->word[i];
        if (!is_plain(w) || find(t, w->s, w->len) >= 0) continue;
        size_t at = (size_t)hash_text(0, w->s, w->len) & t->mask;
        while (t->slot[at] >= 0) at = (at + 1) & t->mask;
        t->slot[at] = i;
    }
    return true;
}

static int chars_in(const char *s, size_t n)
{
    int chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}

static bool add_cuts(table *t, int whole)
{
    const gguf_word *w = &t->word[whole];
    for (size_t cut = 1; cut < w->len; cut++) {
        if (((unsigned char)w->s[cut] & 0xC0) == 0x80) continue; /* within a character */
        int left = find(t, w->s, cut), right = left < 0 ? -1 : find(t, w->s + cut, w->len - cut);
        if (right < 0) continue;
        if (t->n == t->cap) {
            size_t cap = t->cap ? 2 * t->cap : 1024;
            pair *more = realloc(t->pair, cap * sizeof(*more));
            if (!more) return false;
            t->pair = more;
            t->cap = cap;
        }
        t->pair[t->n++] = (pair){
            whole, left, right, chars_in(w->s, cut), chars_in(w->s + cut, w->len - cut), w->score};
    }
    return true;
}

static int by_rank(const void *x, const void *y)
{
    const pair *a = x, *b = y;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->left_chars != b->left_chars) return b->left_chars - a->left_chars;
    if (a->right_chars != b->right_chars) return b->right_chars - a->right_chars;
    if (a->whole != b->whole) return a->whole < b->whole ? -1 : 1;
    return (a->left > b->left) - (a->left < b->left);
}

static bool write_merges(const table *t, cJSON *merges)
{
    for (size_t i = 0; i < t->n; i++) {
        const gguf_word *left = &t->word[t->pair[i].left], *right = &t->word[t->pair[i].right];
        char *text = malloc((size_t)left->len + right->len + 2);
        if (!text) return false;
        memcpy(text, left->s, left->len);
        text[left->len] = ' ';
        memcpy(text + left->len + 1, right->s, right->len + 1);
        cJSON *v = cJSON_CreateString(text);
        free(text);
        if (!v || !cJSON_AddItemToArray(merges, v)) return false;
    }
    return true;
}

err_code gguf_make_merges(const gguf_word *word, int n, cJSON *merges, err *e)
{
    table t = {.word = word};
    bool ok = index_words(&t, n);
    for (int i = 0; i < n && ok; i++)
        if (is_plain(&word[i]) && find(&t, word[i].s, word[i].len) == i) ok = add_cuts(&t, i);
    if (ok && t.n > 0) qsort(t.pair, t.n, sizeof(*t.pair), by_rank);
    ok = ok && write_merges(&t, merges);
    free(t.slot);
    free(t.pair);
    return ok ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory to read a GGUF");
}
