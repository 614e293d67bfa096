/* unicode.h -- as much of Unicode as tokenizers need: general categories, spaces, NFC.
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

/* General categories in this order, and those parts of three of them that \s and \w have:
 * so every class of a regular expression but for its ranges is a set of kinds. */
typedef enum unicode_kind {
    UNICODE_LU,
    UNICODE_LL,
    UNICODE_LT,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_MN,
    UNICODE_MC,
    UNICODE_ME,
    UNICODE_ND,
    UNICODE_NL,
    UNICODE_NO,
    UNICODE_PC,
    UNICODE_PD,
    UNICODE_PS,
    UNICODE_PE,
    UNICODE_PI,
    UNICODE_PF,
    UNICODE_PO,
    UNICODE_SM,
    UNICODE_SC,
    UNICODE_SK,
    UNICODE_SO,
    UNICODE_ZS,
    UNICODE_ZL,
    UNICODE_ZP,
    UNICODE_CC,
    UNICODE_CF,
    UNICODE_CO,
    UNICODE_CN,
    UNICODE_CC_SPACE,
    UNICODE_SO_WORD,
    UNICODE_NO_WORD,
    UNICODE_KINDS
} unicode_kind;

/* unicode_tables.c; sorted */
extern const unicode_range unicode_numbers[], unicode_words[];
extern const unicode_range unicode_digits[], unicode_punctuation[]; /* Digits', Punctuation's */
extern const unicode_range unicode_joins[]; /* what may become one with what stands before it */
extern const int unicode_numbers_n, unicode_words_n, unicode_digits_n, unicode_punctuation_n;
extern const int unicode_joins_n;
extern const uint32_t unicode_kinds[]; /* first code point of each run; from bit 24 on its kind */
extern const int unicode_kinds_n;
extern const unsigned char unicode_ascii_kinds[128];
extern const unicode_triple unicode_classes[];    /* first, last, combining class */
extern const unicode_triple unicode_decomposed[]; /* code point, its two parts (0: only one) */
extern const unicode_triple unicode_composed[];   /* two parts, their composition */
extern const int unicode_classes_n, unicode_decomposed_n, unicode_composed_n;

/* A code point with its kind from bit 24 on. */
uint32_t unicode_with_kind(uint32_t c);
bool unicode_in_ranges(const unicode_range *t, int n, uint32_t c);
bool unicode_is_letter(uint32_t c); /* \p{L} */
bool unicode_is_number(uint32_t c); /* \p{N} */
bool unicode_is_space(uint32_t c);  /* White_Space, \s */
bool unicode_is_word(uint32_t c);   /* \w */

/* Whether NFC never joins it with what stands before it: texts may be cut there. */
bool unicode_nfc_begins(uint32_t c);
/* NFC of n code points, in place of `out` (room for 4 n + 4); returns the count. */
size_t unicode_nfc(const uint32_t *in, size_t n, uint32_t *out);

#endif
