/* tokenizer_piece.c -- a token's text as the vocabulary file writes it; whether two vocabularies
 * are one. */
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/tokenizer_inside.h"

/* GPT-2's alphabet: the code point that stands for each byte. */
static void make_letters(uint32_t letter[256])
{
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        letter[b] = itself ? b : next++;
    }
}

size_t tokenizer_piece(const tokenizer *t, int32_t id, char out[TOK_PIECE_MAX])
{
    const entry *e = tokenizer_entry(t, id);
    const char *s = e->content ? e->content : e->bytes;
    size_t len = e->content ? strlen(e->content) : e->len, n = 0, used = 1;
    bool letters = t->byte_level && !e->content && !e->plain;
    uint32_t letter[256];
    if (letters) make_letters(letter);
    for (size_t i = 0; s && i < len && n + 4 <= TOK_PIECE_MAX; i += used) {
        uint32_t c = letters ? letter[(unsigned char)s[i]] : utf8_decode(s + i, len - i, &used);
        n += utf8_encode(c, out + n);
    }
    return n;
}

err_code tokenizer_check_same(const tokenizer *t, const tokenizer *other, err *e)
{
    char a[TOK_PIECE_MAX], b[TOK_PIECE_MAX];
    if (tokenizer_vocab(t) != tokenizer_vocab(other))
        return err_set(e, ERR_INPUT, "there are %d tokens in one vocabulary and %d in the other",
                       tokenizer_vocab(t), tokenizer_vocab(other));
    for (int32_t id = 0; id < tokenizer_vocab(t); id++) {
        int n_a = (int)tokenizer_piece(t, id, a), n_b = (int)tokenizer_piece(other, id, b);
        if (n_a != n_b || memcmp(a, b, (size_t)n_a) != 0)
            return err_set(e, ERR_INPUT,
                           "token %d is '%.*s' in one vocabulary, '%.*s' in the other", (int)id,
                           n_a < 40 ? n_a : 40, a, n_b < 40 ? n_b : 40, b);
        if (tokenizer_is_special(t, id) != tokenizer_is_special(other, id))
            return err_set(e, ERR_INPUT, "token %d is special in one vocabulary only", (int)id);
    }
    return ERR_NONE;
}
