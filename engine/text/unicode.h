/* unicode.h -- as much of Unicode as tokenizers need: letters, numbers, spaces, NFC.
 *
 * The tables are those of Hugging Face's tokenizers, whatever versions of Unicode they have.
 * Threads: any thread.
 */
#ifndef ENGINE_TEXT_UNICODE_H
#define ENGINE_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct unicode_range {
    uint32_t first, last;
} unicode_range;

typedef struct unicode_triple {
    uint32_t a, b, c;
} unicode_triple;

/* unicode_tables.c; sorted */
extern const unicode_range unicode_letters[], unicode_numbers[], unicode_words[];
extern const unicode_range unicode_joins[]; /* what may become one with what stands before it */
extern const int unicode_letters_n, unicode_numbers_n, unicode_words_n, unicode_joins_n;
extern const unicode_triple unicode_classes[];    /* first, last, combining class */
extern const unicode_triple unicode_decomposed[]; /* code point, its two parts (0: only one) */
extern const unicode_triple unicode_composed[];   /* two parts, their composition */
extern const int unicode_classes_n, unicode_decomposed_n, unicode_composed_n;

bool unicode_is_letter(uint32_t c); /* \p{L} */
bool unicode_is_number(uint32_t c); /* \p{N} */
bool unicode_is_space(uint32_t c);  /* White_Space, \s */
bool unicode_is_word(uint32_t c);   /* \w */

/* Whether NFC never joins it with what stands before it: texts may be cut there. */
bool unicode_nfc_begins(uint32_t c);
/* NFC of n code points, in place of `out` (room for 4 n + 4); returns the count. */
size_t unicode_nfc(const uint32_t *in, size_t n, uint32_t *out);

#endif
