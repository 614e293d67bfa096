/* unicode.h -- as much of Unicode as tokenizers need: general categories, scripts, spaces, normal
 * forms, small letters.
 *
 * The tables are those of Hugging Face's tokenizers, whatever versions of Unicode they have.
 * Threads: any thread.
 */
#ifndef ENGINE_TEXT_UNICODE_UNICODE_H
#define ENGINE_TEXT_UNICODE_UNICODE_H

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
/* The compatible forms (NFKC, NFKD) beyond the others: what may become one with what stands before
 * it; characters that become one: first, last, how far away that is; others: code point, its place
 * in unicode_longer_text << 8 | how many it becomes. */
extern const unicode_range unicode_joins_compatible[], unicode_longer[];
extern const unicode_triple unicode_single[];
extern const uint32_t unicode_longer_text[];
extern const int unicode_joins_compatible_n, unicode_longer_n, unicode_single_n;
/* StripAccents' marks; what BertNormalizer drops, its marks, its Chinese characters. */
extern const unicode_range unicode_accents[], unicode_bert_gone[], unicode_bert_accents[];
extern const unicode_range unicode_bert_chinese[];
extern const int unicode_accents_n, unicode_bert_gone_n, unicode_bert_accents_n;
extern const int unicode_bert_chinese_n;
extern const unicode_triple unicode_lower[]; /* first, last, how far the small letter is */
extern const int unicode_lower_n;
/* Runs like unicode_kinds: the number of the script's name, 0 is none; unicode_cluster. */
extern const uint32_t unicode_scripts[], unicode_clusters[];
extern const char *const unicode_script_names[]; /* from 1 on; small letters and no more */
extern const int unicode_scripts_n, unicode_clusters_n, unicode_script_names_n;

/* What a character is where texts are cut into graphemes. */
typedef enum unicode_cluster {
    CLUSTER_OTHER,
    CLUSTER_CONTROL,
    CLUSTER_JOINS, /* what stands before */
    CLUSTER_LEADS, /* what stands behind */
    CLUSTER_L,
    CLUSTER_V,
    CLUSTER_T,
    CLUSTER_SYLLABLE,
    CLUSTER_FLAG /* half of one */
} unicode_cluster;

/* A code point with its kind from bit 24 on. */
uint32_t unicode_with_kind(uint32_t c);

/* Whether one of n ranges, ascending and apart, has the code point; a binary search. */
bool unicode_in_ranges(const unicode_range *t, int n, uint32_t c);
bool unicode_is_letter(uint32_t c); /* \p{L} */
bool unicode_is_number(uint32_t c); /* \p{N} */
bool unicode_is_space(uint32_t c);  /* White_Space, \s */
bool unicode_is_word(uint32_t c);   /* \w */

/* What stands from bit 24 on in the last run of such a table that begins at or before c. */
uint32_t unicode_run_of(const uint32_t *runs, int n, uint32_t c);

/* NFC and NFD; `compatible`: NFKC and NFKD. */
typedef struct unicode_form {
    bool composed, compatible;
} unicode_form;

/* Whether this form never joins it with what stands before it: texts may be cut there. */
bool unicode_form_begins(unicode_form f, uint32_t c);
/* The form of n code points into `out` (room for UNICODE_FORM_MOST n + 4); returns the count. */
enum { UNICODE_FORM_MOST = 18 };
size_t unicode_normal_form(unicode_form f, const uint32_t *in, size_t n, uint32_t *out);

/* Small letters; at most two; returns how many. */
size_t unicode_to_lower(uint32_t c, uint32_t out[2]);

#endif
