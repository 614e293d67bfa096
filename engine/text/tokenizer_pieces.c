/* tokenizer_pieces.c -- models that look pieces up instead of merging: Unigram, WordPiece,
 * WordLevel.
 *
 * Unigram (Kudo 2018): the segmentation of a word with the highest sum of piece scores, by
 * Viterbi's algorithm. best[i] is the best score of the first i bytes with the piece that ends
 * there; offer_all() follows the trie of pieces from each character:
 *
 *   best[to] = max over pieces s[from..to) of best[from] + score
 *
 * A character without a piece costs unk_score. The path is reversed in place and emitted; a run of
 * unknown characters becomes one piece, bytes, or one unknown token. Cost: length x longest piece.
 *
 * WordPiece (BERT): the longest piece at each position, from the second on with the prefix "##",
 * whose trie node is `behind`. A word that cannot be written completely, or is longer than
 * max_characters, is one unknown token.
 *
 * Threads: reads the immutable tokenizer; scratch is the encoder's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/tokenizer_inside.h"

/* ---- Unigram -------------------------------------------------------------------------------- */

/* Best segmentation of the text up to a position; from -1: none yet. */
typedef struct best {
    double score;
    int32_t from, id;
} best;

/* Considers the piece from `from` to `to`. */
static void offer(best *b, size_t from, size_t to, int32_t id, double score)
{
    double all = b[from].score + score;
    if (b[to].from < 0 || all > b[to].score)
        b[to] = (best){.score = all, .from = (int32_t)from, .id = id};
}

/* Considers all pieces that begin here; the single character is unknown if it is none of them. */
static void offer_all(const encoder *en, best *b, const char *s, size_t len, size_t from)
{
    const tokenizer *t = en->t;
    bool single = false;
    size_t used;
    (void)utf8_decode(s + from, len - from, &used);
    int32_t node = 0;
    for (size_t to = from; to < len; to++) {
        node = pieces_step(&t->piece.set, node, s[to]);
        if (node < 0) break;
        int32_t id = t->piece.set.node[node].id;
        if (id < 0 || tokenizer_is_barred(en, id)) continue;
        offer(b, from, to + 1, id, t->piece.score[id]);
        single |= to + 1 - from == used;
    }
    if (!single) offer(b, from, from + used, t->unk, t->piece.unk_score);
}

/* Emits a run of unknown characters: as the piece that they form together, as bytes, or as the
 * unknown token. */
static void emit_unknown(encoder *en, const char *s, size_t len)
{
    const tokenizer *t = en->t;
    int32_t id = tokenizer_find_bytes(t, s, len, false);
    if (id >= 0 && !tokenizer_is_barred(en, id)) {
        tokenizer_emit(en, id);
        return;
    }
    bool bytes = t->byte_fallback;
    for (size_t i = 0; i < len && bytes; i++) bytes = t->byte_id[(unsigned char)s[i]] >= 0;
    for (size_t i = 0; i < len && bytes; i++) tokenizer_emit(en, t->byte_id[(unsigned char)s[i]]);
    if (!bytes) tokenizer_emit(en, t->unk);
}

/* Emits the best segmentation. It is linked backwards; the first loop reverses the links: `from` of
 * a position becomes the end of the piece that begins there. */
static void emit_way(encoder *en, best *b, const char *s, size_t len)
{
    int32_t unk = en->t->unk;
    for (int32_t at = (int32_t)len, end = -1; at >= 0;) {
        int32_t from = b[at].from;
        b[at].from = end;
        end = at;
        at = from;
    }
    for (size_t at = 0, end; at < len; at = end) {
        end = (size_t)b[at].from;
        if (b[end].id != unk) {
            tokenizer_emit(en, b[end].id);
            continue;
        }
        while (end < len && b[b[end].from].id == unk) end = (size_t)b[end].from;
        emit_unknown(en, s + at, end - at);
    }
}

void tokenizer_unigram(encoder *en, const char *s, size_t len)
{
    if (len + 1 > en->best_cap) {
        free(en->best);
        en->best_cap = 2 * len + 1;
        en->best = malloc(en->best_cap * sizeof(*en->best));
        if (!en->best) en->best_cap = 0;
    }
    en->failed |= !en->best;
    if (en->failed) return;
    for (size_t i = 0; i <= len; i++) en->best[i] = (best){.from = -1, .id = -1};
    for (size_t i = 0, used; i < len; i += used) {
        offer_all(en, en->best, s, len, i);
        (void)utf8_decode(s + i, len - i, &used);
    }
    emit_way(en, en->best, s, len);
}

/* ---- WordPiece ------------------------------------------------------------------------------ */

/* The longest piece from here on; -1: none. */
static int32_t longest(const encoder *en, const char *s, size_t len, size_t from, size_t *end)
{
    const tokenizer *t = en->t;
    int32_t node = from > 0 ? t->piece.behind : 0, found = -1;
    for (size_t to = from; to < len && node >= 0; to++) {
        node = pieces_step(&t->piece.set, node, s[to]);
        int32_t id = node < 0 ? -1 : t->piece.set.node[node].id;
        if (id < 0 || tokenizer_is_barred(en, id)) continue;
        found = id;
        *end = to + 1;
    }
    return found;
}

static size_t characters(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

void tokenizer_word_piece(encoder *en, const char *s, size_t len)
{
    size_t begin = en->n, end = 0;
    bool known = characters(s, len) <= (size_t)en->t->piece.max_characters;
    for (size_t at = 0; at < len && known; at = end) {
        int32_t id = longest(en, s, len, at, &end);
        known = id >= 0;
        if (known) tokenizer_emit(en, id);
    }
    if (known) return;
    en->n = begin; /* a word that cannot be written is unknown as a whole */
    tokenizer_emit(en, en->t->unk);
}

/* ---- WordLevel ------------------------------------------------------------------------------ */

void tokenizer_word_level(encoder *en, const char *s, size_t len)
{
    int32_t id = tokenizer_find_bytes(en->t, s, len, false);
    tokenizer_emit(en, id >= 0 && !tokenizer_is_barred(en, id) ? id : en->t->unk);
}

/* ---- what is made when the vocabulary is loaded --------------------------------------------- */

err_code tokenizer_index_pieces(tokenizer *t, err *e)
{
    piece *list = malloc(((size_t)t->n_vocab + 1) * sizeof(*list));
    size_t n = 0;
    for (int32_t id = 0; list && id < t->n_vocab; id++) {
        const entry *en = &t->entries[id];
        if (!en->bytes || en->len == 0) continue;
        if (tokenizer_find_bytes(t, en->bytes, en->len, false) == id)
            list[n++] = (piece){en->bytes, en->len, id};
    }
    bool ok = list && pieces_build(&t->piece.set, list, n);
    free(list);
    if (!ok) return err_set(e, ERR_NOMEM, "no memory for the vocabulary");
    t->piece.behind = 0;
    for (const char *c = t->piece.continuing; c && *c && t->piece.behind >= 0; c++)
        t->piece.behind = pieces_step(&t->piece.set, t->piece.behind, *c);
    return ERR_NONE;
}

/* ---- WordPiece's decoder -------------------------------------------------------------------- */

/* Every `from` by `to`, which is not longer. */
static size_t replace_all(char *s, size_t len, const char *from, const char *to)
{
    size_t n = strlen(from), m = strlen(to), out = 0;
    for (size_t i = 0; i < len;) {
        bool here = len - i >= n && memcmp(s + i, from, n) == 0;
        if (here)
            memmove(s + out, to, m);
        else
            s[out] = s[i];
        out += here ? m : 1;
        i += here ? n : 1;
    }
    return out;
}

static size_t clean_up(char *s, size_t len)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++)
        len = replace_all(s, len, pairs[i][0], pairs[i][1]);
    return len;
}

size_t tokenizer_word_text(const tokenizer *t, const char *shown, bool first, char *out)
{
    size_t n = strlen(t->decode_prefix), len = strlen(shown), at = 0;
    bool behind = !first && strncmp(shown, t->decode_prefix, n) == 0;
    if (!first && !behind) out[at++] = ' ';
    memcpy(out + at, shown + (behind ? n : 0), len - (behind ? n : 0));
    len += at - (behind ? n : 0);
    return t->decode_clean ? clean_up(out, len) : len;
}
