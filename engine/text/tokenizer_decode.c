/* tokenizer_decode.c -- decoding: token ids to text, all at once or one token at a time while it is
 * streamed.
 *
 * Each entry has its text ready (tokenizer_make_text()), so a step is a copy. What remains is to
 * emit complete characters only: up to 3 bytes of an unfinished UTF-8 sequence wait in
 * detok.pending.
 *
 *   byte-level     an invalid sequence becomes U+FFFD, as its bytes arrive
 *   <0xXX> tokens  a run of byte tokens is valid UTF-8 as a whole, or each byte becomes U+FFFD
 *
 * The second rule needs the whole run. tokenizer_decode() looks ahead (run_is_text()); the
 * streaming detok_push() cannot, so it emits the valid characters before an error and U+FFFD from
 * there on (`broken`).
 *
 * The first token is special: WordPiece and Metaspace remove its space, Strip removes one
 * (`started`). A detok is a small value of its caller; it allocates nothing.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hex.h"
#include "engine/base/utf8.h"
#include "engine/text/tokenizer_inside.h"

/* ---- what tokens stand for ---------------------------------------------------------------- */

/* <0xXX> -> the byte, as the decoder ByteFallback reads it; -1. */
static int byte_token(const char *s)
{
    if (strlen(s) != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || hex_digit(s[4]) < 0) return -1;
    if (s[3] == '+') return hex_digit(s[4]); /* as Rust reads numbers */
    return hex_value(s + 3, s + 5, 2);
}

/* SentencePiece's "▁" becomes a space in texts. */
static size_t undo_blocks(const char *s, char *out)
{
    size_t n = strlen(s), m = 0;
    for (size_t i = 0; i < n;) {
        bool block = n - i >= 3 && memcmp(s + i, LOWER_BLOCK, 3) == 0;
        out[m++] = block ? ' ' : s[i];
        i += block ? 3 : 1;
    }
    return m;
}

err_code tokenizer_make_text(const tokenizer *t, entry *en, const char *shown, err *e)
{
    size_t n = strlen(shown), len = n;
    char *text = malloc(n + 2);
    if (!text) return err_set(e, ERR_NOMEM, "no memory for the vocabulary");
    if (t->first == FIRST_WORD && n > WORD_BYTES_MAX) {
        free(text);
        return err_set(e, ERR_LIMIT, "a WordPiece token has %zu bytes, more than %d", n,
                       WORD_BYTES_MAX);
    }
    en->byte = t->decode_bytes ? (int16_t)byte_token(shown) : -1;
    if (en->byte >= 0) {
        text[0] = (char)en->byte;
        len = 1;
    } else if (t->first == FIRST_WORD) {
        len = tokenizer_word_text(t, shown, false, text);
    } else if (t->byte_level ? !tokenizer_undo_alphabet(shown, text, &len) : !t->decode_blocks) {
        memcpy(text, shown, n);
        len = n;
    } else if (!t->byte_level) {
        len = undo_blocks(shown, text);
    }
    text[len] = 0;
    en->text = text;
    en->text_len = (uint32_t)len;
    return ERR_NONE;
}

const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *len)
{
    const entry *en = tokenizer_entry(t, id);
    *len = en->text_len;
    return en->text;
}

bool tokenizer_spells(const tokenizer *t)
{
    return t->first != FIRST_WORD;
}

/* ---- as they come ------------------------------------------------------------------------- */

void detok_init(detok *d, const tokenizer *t, bool skip_special)
{
    *d = (detok){.tok = t, .skip_special = skip_special};
}

void detok_go_on(detok *d, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n && !d->started; i++)
        d->started = !d->skip_special || !tokenizer_entry(d->tok, ids[i])->hidden;
}

/* Whether the n bytes that wait may still become a character. */
static bool is_open(const unsigned char *p, size_t n)
{
    uint32_t c;
    return utf8_read((const char *)p, n, &c) == -(int)n;
}

/* Takes one byte; writes the characters that are complete. */
static size_t push_byte(detok *d, unsigned char b, char *out)
{
    size_t n = 0, used;
    assert(d->n_pending < (int)sizeof(d->pending));
    d->pending[d->n_pending++] = b;
    while (d->n_pending > 0 && !is_open(d->pending, (size_t)d->n_pending)) {
        uint32_t v = utf8_decode((const char *)d->pending, (size_t)d->n_pending, &used);
        n += utf8_encode(v, out + n);
        d->n_pending -= (int)used;
        memmove(d->pending, d->pending + used, (size_t)d->n_pending);
    }
    return n;
}

/* Writes U+FFFD for each pending byte. */
static size_t give_up(detok *d, char *out)
{
    size_t n = 0;
    for (; d->n_pending > 0; d->n_pending--) n += utf8_encode(0xFFFD, out + n);
    return n;
}

/* Takes one byte of a run of byte tokens (<0xXX>). Once the run is invalid, each byte is U+FFFD. */
static size_t push_run(detok *d, unsigned char b, char *out)
{
    size_t used;
    assert(d->n_pending < (int)sizeof(d->pending));
    d->pending[d->n_pending++] = b;
    if (d->broken) return give_up(d, out);
    if (is_open(d->pending, (size_t)d->n_pending)) return 0;
    uint32_t v = utf8_decode((const char *)d->pending, (size_t)d->n_pending, &used);
    d->broken = (v == 0xFFFD && d->n_pending < 3) || used != (size_t)d->n_pending;
    if (d->broken) return give_up(d, out);
    d->n_pending = 0;
    return utf8_encode(v, out);
}

/* Takes a token that is not a byte token; it ends a run of them. */
static size_t push_text(detok *d, const entry *en, char *out, size_t cap)
{
    size_t n = d->tok->decode_bytes ? give_up(d, out) : 0;
    const char *s = en->text;
    size_t len = en->text_len;
    d->broken = false;
    char first[WORD_BYTES_MAX + 2];
    if (!d->started && d->tok->first == FIRST_WORD) {
        d->started = true;
        len = tokenizer_word_text(d->tok, en->content ? en->content : en->bytes, true, first);
        s = first;
    }
    if (!d->started && d->tok->first == FIRST_BLOCKS) { /* all of them are removed */
        const char *shown = en->bytes ? en->bytes : en->content;
        d->started = true;
        for (size_t i = 0; shown[i] && cap - n >= 8; i++) {
            if (strncmp(shown + i, LOWER_BLOCK, 3) == 0)
                i += 2;
            else
                n += push_byte(d, (unsigned char)shown[i], out + n);
        }
        return n;
    }
    /* each byte gives at most one character of 4 bytes, or the 3 of U+FFFD and one more */
    for (size_t i = 0; i < len && cap - n >= 8; i++)
        n += push_byte(d, (unsigned char)s[i], out + n);
    return n;
}

/* Removes the first space of the text if the decoder says so. */
static size_t strip_first(detok *d, char *out, size_t n)
{
    if (d->started || n == 0) return n;
    d->started = true;
    if (d->tok->first != FIRST_SPACE || out[0] != ' ') return n;
    memmove(out, out + 1, n - 1);
    return n - 1;
}

size_t detok_push(detok *d, int32_t id, char *out, size_t cap)
{
    const entry *en = tokenizer_entry(d->tok, id);
    if (!en->text || cap < 16 || (d->skip_special && en->hidden)) return 0;
    size_t n =
        en->byte >= 0 ? push_run(d, (unsigned char)en->byte, out) : push_text(d, en, out, cap);
    return strip_first(d, out, n);
}

size_t detok_flush(detok *d, char *out, size_t cap)
{
    if (d->n_pending == 0 || cap < 16) return 0;
    d->started = true;
    if (!d->tok->decode_bytes) d->n_pending = 1; /* an unfinished character */
    return give_up(d, out);
}

/* ---- at once ------------------------------------------------------------------------------ */

/* Whether the byte tokens from here on are UTF-8 together. */
static bool run_is_text(const tokenizer *t, const int32_t *ids, size_t n, bool skip_special)
{
    char out[32];
    detok d;
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n && !d.broken; i++) {
        const entry *en = tokenizer_entry(t, ids[i]);
        if (!en->text || (skip_special && en->hidden)) continue;
        if (en->byte < 0) break;
        (void)push_run(&d, (unsigned char)en->byte, out);
    }
    return !d.broken && d.n_pending == 0;
}

char *tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                       size_t *len_out)
{
    size_t cap = 32;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        (void)tokenizer_bytes(t, ids[i], &len);
        cap += 4 * len;
    }
    char *out = malloc(cap + 16);
    if (!out) return NULL;
    detok d;
    detok_init(&d, t, skip_special);
    size_t m = 0;
    bool in_run = false;
    for (size_t i = 0; i < n; i++) {
        const entry *en = tokenizer_entry(t, ids[i]);
        if (!en->text || (skip_special && en->hidden)) continue;
        if (en->byte >= 0 && !in_run) d.broken = !run_is_text(t, ids + i, n - i, skip_special);
        in_run = en->byte >= 0;
        m += detok_push(&d, ids[i], out + m, cap + 16 - m);
    }
    m += detok_flush(&d, out + m, cap + 16 - m);
    out[m] = 0;
    *len_out = m;
    return out;
}
