/* tokenizer.c -- encoding and decoding.
 *
 * The text is cut at added tokens, each part normalised and split into pieces by the pre-tokeniser,
 * each piece merged by rank with a heap of candidate pairs over a linked list: O(n log n) for any
 * input, hostile ones included.
 */
#include "engine/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_inside.h"
#include "engine/unicode.h"

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

int32_t tokenizer_find(const tokenizer *t, const char *content)
{
    size_t len = strlen(content);
    int k = tokenizer_added_at(t, content, len);
    if (k >= 0 && t->added[k].len == len) return t->added[k].id;
    return tokenizer_find_bytes(t, content, len);
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

typedef struct {
    int32_t id; /* -1: merged away */
    int32_t prev, next;
} symbol;

typedef struct {
    int32_t rank, pos, left, right; /* ids when it was found: stale if they changed */
} pair;

typedef struct {
    const tokenizer *t;
    int32_t *out;
    size_t n, cap;
    bool failed;
    symbol *symbols;
    pair *heap;
    size_t n_heap, work_cap;
    const tok_guard *guard; /* NULL: none */
    size_t next_foreign;    /* the first span that ends after the place that is read */
} encoder;

/* A token that only its own text in the right place gives, never the vocabulary or a merge. */
static bool is_barred(const encoder *en, int32_t id)
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
    int32_t id = tokenizer_find_bytes(en->t, s, len);
    return id >= 0 && is_barred(en, id) ? -1 : id;
}

static void emit(encoder *en, int32_t id)
{
    if (en->n < en->cap) en->out[en->n] = id;
    en->n++;
}

static bool pair_less(const pair *a, const pair *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->pos < b->pos);
}

static void heap_push(encoder *en, pair p)
{
    size_t i = en->n_heap++;
    while (i > 0 && pair_less(&p, &en->heap[(i - 1) / 2])) {
        en->heap[i] = en->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    en->heap[i] = p;
}

static pair heap_pop(encoder *en)
{
    pair top = en->heap[0], last = en->heap[--en->n_heap];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= en->n_heap) break;
        if (k + 1 < en->n_heap && pair_less(&en->heap[k + 1], &en->heap[k])) k++;
        if (!pair_less(&en->heap[k], &last)) break;
        en->heap[i] = en->heap[k];
        i = k;
    }
    en->heap[i] = last;
    return top;
}

/* Room for n symbols; each merge adds at most two pairs, so 3 n pairs are enough. */
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
    if (m && !is_barred(en, m->result)) heap_push(en, (pair){m->rank, left, a, b});
}

/* Merges the first n symbols and emits what is left. */
static void merge_symbols(encoder *en, int32_t n)
{
    symbol *s = en->symbols;
    en->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++) offer(en, i);
    while (en->n_heap > 0) {
        pair p = heap_pop(en);
        int32_t r = s[p.pos].next;
        if (s[p.pos].id != p.left || r < 0 || s[r].id != p.right) continue;
        s[p.pos].id = tokenizer_find_merge(en->t, p.left, p.right)->result;
        s[p.pos].next = s[r].next;
        if (s[r].next >= 0) s[s[r].next].prev = p.pos;
        s[r].id = -2; /* gone: matches no pair */
        offer(en, s[p.pos].prev);
        offer(en, p.pos);
    }
    for (int32_t i = 0; i >= 0 && i < n; i = s[i].next) emit(en, s[i].id);
}

static void add_symbol(encoder *en, int32_t *n, int32_t id)
{
    en->symbols[*n] = (symbol){id, *n - 1, -1};
    if (*n > 0) en->symbols[*n - 1].next = *n;
    (*n)++;
}

static void byte_level_piece(encoder *en, const char *s, size_t len)
{
    const tokenizer *t = en->t;
    if (t->ignore_merges) {
        int32_t id = find_piece(en, s, len);
        if (id >= 0) {
            emit(en, id);
            return;
        }
    }
    if (!make_room(en, len)) return;
    int32_t n = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t id = t->byte_id[(unsigned char)s[i]];
        if (id >= 0 || t->unk >= 0) add_symbol(en, &n, id >= 0 ? id : t->unk);
    }
    merge_symbols(en, n);
}

/* One symbol per character; unknown ones as bytes, or as the unknown token (fused if asked). */
static void sentence_piece(encoder *en, const char *s, size_t len)
{
    const tokenizer *t = en->t;
    if (t->ignore_merges) {
        int32_t id = find_piece(en, s, len);
        if (id >= 0) {
            emit(en, id);
            return;
        }
    }
    if (!make_room(en, len)) return;
    int32_t n = 0;
    bool after_unk = false;
    for (size_t i = 0, used; i < len; i += used) {
        (void)utf8_decode(s + i, len - i, &used);
        int32_t id = find_piece(en, s + i, used);
        bool bytes = id < 0 && t->byte_fallback;
        for (size_t k = 0; bytes && k < used; k++) bytes = t->byte_id[(unsigned char)s[i + k]] >= 0;
        if (id >= 0) {
            add_symbol(en, &n, id);
        } else if (bytes) {
            for (size_t k = 0; k < used; k++)
                add_symbol(en, &n, t->byte_id[(unsigned char)s[i + k]]);
        } else if (t->unk >= 0 && !(after_unk && t->fuse_unk)) {
            add_symbol(en, &n, t->unk);
        }
        after_unk = id < 0 && !bytes;
    }
    merge_symbols(en, n);
}

/* Valid UTF-8, NFC if the model wants it, and its code points. */
static uint32_t *code_points(encoder *en, const char *s, size_t len, size_t *n)
{
    uint32_t *c = malloc((4 * len + 8) * sizeof(*c));
    if (!c) {
        en->failed = true;
        return NULL;
    }
    *n = 0;
    for (size_t i = 0, used; i < len; i += used) c[(*n)++] = utf8_decode(s + i, len - i, &used);
    if (!en->t->nfc) return c;
    uint32_t *out = malloc((4 * *n + 8) * sizeof(*out));
    if (!out) {
        en->failed = true;
        free(c);
        return NULL;
    }
    *n = unicode_nfc(c, *n, out);
    free(c);
    return out;
}

static void encode_byte_level(encoder *en, const char *s, size_t len)
{
    const tokenizer *t = en->t;
    size_t n;
    uint32_t *c = code_points(en, s, len, &n);
    char *bytes = c ? malloc(4 * n + 8) : NULL;
    if (!bytes) {
        en->failed = true;
        free(c);
        return;
    }
    if (t->add_prefix_space && n > 0 && c[0] != ' ') {
        memmove(c + 1, c, n * sizeof(*c)); /* code_points() leaves room */
        c[0] = ' ';
        n++;
    }
    for (size_t i = 0; i < n;) {
        size_t end = split_next(t->split, c, n, i), used = 0;
        for (; i < end; i++) used += utf8_encode(c[i], bytes + used);
        byte_level_piece(en, bytes, used);
    }
    free(bytes);
    free(c);
}

/* "▁" for spaces, one in front if the model wants it, then pieces that begin at "▁" (or one piece). */
static void encode_sentence_piece(encoder *en, const char *s, size_t len, bool at_start)
{
    const tokenizer *t = en->t;
    size_t n;
    uint32_t *c = code_points(en, s, len, &n);
    char *bytes = c ? malloc(4 * n + 8) : NULL;
    if (!bytes) {
        en->failed = true;
        free(c);
        return;
    }
    size_t m = 0;
    bool prepend = t->prepend == PREPEND_ALWAYS || (t->prepend == PREPEND_FIRST && at_start);
    bool has_one = n > 0 && (c[0] == ' ' || c[0] == 0x2581) && t->metaspace;
    if (prepend && !has_one) {
        memcpy(bytes, LOWER_BLOCK, 3);
        m = 3;
    }
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t ch = c[i] == ' ' ? 0x2581 : c[i];
        if (ch == 0x2581 && t->metaspace_split && m > start) {
            sentence_piece(en, bytes + start, m - start);
            start = m;
        }
        m += utf8_encode(ch, bytes + m);
    }
    if (m > start) sentence_piece(en, bytes + start, m - start);
    free(bytes);
    free(c);
}

static void encode_part(encoder *en, const char *s, size_t len, bool at_start)
{
    if (len == 0 || en->failed) return;
    if (en->t->byte_level)
        encode_byte_level(en, s, len);
    else
        encode_sentence_piece(en, s, len, at_start);
}

/* Numbers that are no digits: \w has none of them, \p{N} all.  The blocks that texts have. */
static bool is_fraction_or_index(uint32_t c)
{
    return c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE) ||
           (c >= 0x2070 && c <= 0x2089) || (c >= 0x2150 && c <= 0x215F) || c == 0x2189 ||
           (c >= 0x2460 && c <= 0x249B) || (c >= 0x24EA && c <= 0x24FF) ||
           (c >= 0x2776 && c <= 0x2793) || (c >= 0x3220 && c <= 0x32BF);
}

static bool is_word_char(uint32_t c)
{
    if (is_fraction_or_index(c)) return false;
    return c == '_' || unicode_is_letter(c) || unicode_is_number(c);
}

/* A token that must stand alone does not touch letters, digits or "_". */
static bool stands_alone(const char *s, size_t len, size_t from, size_t to)
{
    size_t used, back = from;
    if (to < len && is_word_char(utf8_decode(s + to, len - to, &used))) return false;
    if (from == 0) return true;
    do back--;
    while (back > 0 && ((unsigned char)s[back] & 0xC0) == 0x80);
    return !is_word_char(utf8_decode(s + back, len - back, &used));
}

/* Whether the added token may begin here: a barred one touches no foreign span. */
static bool is_free(encoder *en, const added_token *a, size_t i)
{
    const tok_guard *g = en->guard;
    if (!g || !is_barred(en, a->id)) return true;
    while (en->next_foreign < g->n_foreign && g->foreign[en->next_foreign].to <= i) {
        en->next_foreign++;
    }
    return en->next_foreign == g->n_foreign || g->foreign[en->next_foreign].from >= i + a->len;
}

/* The longest one here.  One that must stand alone and does not is passed over whole, as tokenizers does: *skip are its
 * bytes, in which no other is looked for. */
static const added_token *added_at(encoder *en, const char *s, size_t len, size_t i, bool special,
                                   size_t *skip)
{
    const tokenizer *t = en->t;
    for (int k = tokenizer_added_at(t, s + i, len - i); k >= 0; k = t->added[k].shorter) {
        const added_token *a = &t->added[k];
        if ((a->special && !special) || !is_free(en, a, i)) continue;
        if (!a->single_word || stands_alone(s, len, i, i + a->len)) return a;
        *skip = a->len;
        return NULL;
    }
    return NULL;
}

static size_t trim_right(const char *s, size_t from, size_t end)
{
    while (end > from) {
        size_t back = end, used;
        do back--;
        while (back > from && ((unsigned char)s[back] & 0xC0) == 0x80);
        if (!unicode_is_space(utf8_decode(s + back, end - back, &used))) break;
        end = back;
    }
    return end;
}

static size_t skip_left(const char *s, size_t len, size_t i)
{
    size_t used;
    while (i < len && unicode_is_space(utf8_decode(s + i, len - i, &used))) i += used;
    return i;
}

static int64_t encode(const tokenizer *t, const char *text, size_t len, int flags,
                      const tok_guard *guard, int32_t *ids, size_t cap)
{
    encoder en = {.t = t, .out = ids, .cap = cap, .guard = guard};
    if (len > INT32_MAX / 4) return -1;
    bool special = flags & TOK_PARSE_SPECIAL;
    for (int i = 0; (flags & TOK_ADD_SPECIAL) && i < t->n_prefix; i++) emit(&en, t->prefix[i]);
    size_t start = 0;
    for (size_t i = 0; i < len;) {
        size_t skip = 1;
        const added_token *a = added_at(&en, text, len, i, special, &skip);
        if (!a) {
            i += skip;
            continue;
        }
        size_t end = a->lstrip ? trim_right(text, start, i) : i;
        encode_part(&en, text + start, end - start, start == 0);
        emit(&en, a->id);
        i += a->len;
        if (a->rstrip) i = skip_left(text, len, i);
        start = i;
    }
    encode_part(&en, text + start, len - start, start == 0);
    for (int i = 0; (flags & TOK_ADD_SPECIAL) && i < t->n_suffix; i++) emit(&en, t->suffix[i]);
    free(en.symbols);
    free(en.heap);
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

/* ------------------------------------------------------------------- decoding -- */

const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *len)
{
    *len = 0;
    const entry *en = tokenizer_entry(t, id);
    *len = en->text_len;
    return en->text;
}

void detok_init(detok *d, const tokenizer *t, bool skip_special)
{
    *d = (detok){.tok = t, .skip_special = skip_special};
}

void detok_go_on(detok *d, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n && !d->started; i++)
        d->started = !d->skip_special || !tokenizer_is_special(d->tok, ids[i]);
}

/* Takes one byte; writes what has become certain. */
static size_t push_byte(detok *d, unsigned char b, char *out)
{
    size_t n = 0, used;
    d->pending[d->n_pending++] = b;
    while (d->n_pending > 0) {
        const char *p = (const char *)d->pending;
        unsigned char c = d->pending[0];
        size_t need = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        uint32_t v = utf8_decode(p, (size_t)d->n_pending, &used);
        bool open =
            v == 0xFFFD && used == (size_t)d->n_pending && used < need && c >= 0xC2 && c <= 0xF4;
        if (open) break; /* a valid beginning: more may come */
        n += utf8_encode(v, out + n);
        d->n_pending -= (int)used;
        memmove(d->pending, d->pending + used, (size_t)d->n_pending);
    }
    return n;
}

size_t detok_push(detok *d, int32_t id, char *out, size_t cap)
{
    size_t len, n = 0;
    const char *s = tokenizer_bytes(d->tok, id, &len);
    if (!s || (d->skip_special && tokenizer_is_special(d->tok, id))) return 0;
    size_t i = 0;
    if (!d->started && d->tok->strip_first_space && len > 0 && s[0] == ' ') i = 1;
    d->started = true;
    /* each byte gives at most one character of 4 bytes, or the 3 of U+FFFD and one more */
    for (; i < len && cap - n >= 8; i++) n += push_byte(d, (unsigned char)s[i], out + n);
    return n;
}

size_t detok_flush(detok *d, char *out, size_t cap)
{
    if (d->n_pending == 0 || cap < 4) return 0;
    d->n_pending = 0;
    return utf8_encode(0xFFFD, out);
}

char *tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                       size_t *len_out)
{
    size_t cap = 16;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        (void)tokenizer_bytes(t, ids[i], &len);
        cap += 4 * len;
    }
    char *out = malloc(cap + 8);
    if (!out) return NULL;
    detok d;
    detok_init(&d, t, skip_special);
    size_t m = 0;
    for (size_t i = 0; i < n; i++) m += detok_push(&d, ids[i], out + m, cap + 8 - m);
    m += detok_flush(&d, out + m, cap + 8 - m);
    out[m] = 0;
    *len_out = m;
    return out;
}
