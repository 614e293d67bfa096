/* text.h -- what others wrote, made fit for a terminal.
 *
 * Names and answers come from strangers: control bytes, escape sequences, direction overrides and
 * broken UTF-8 must not reach a terminal that would obey them.  Widths are terminal columns.
 *
 * Threads: any; setlocale(LC_CTYPE, "") first, or every letter beyond ASCII becomes '?'.
 */
#ifndef TUI_TEXT_H
#define TUI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* One line: control characters (C0, DEL, C1), line breaks, direction and other format
 * characters and broken UTF-8 become '?'.  At most `columns` wide (0: no bound), the last one
 * an ellipsis where it was cut.  NUL-ended; returns the width in columns.  `cap` of 4 *
 * columns + 4 always suffices. */
int text_clean(const char *s, char *out, size_t cap, int columns);

/* Width of what text_clean() would make of it. */
int text_width(const char *s);

/* Prints a piece of a model's answer: line breaks and tabs stand, all else as above.  Pieces may
 * cut a UTF-8 sequence: *carry (zeroed before the first) holds its beginning. */
typedef struct text_carry {
    char bytes[4];
    int n;
} text_carry;
void text_print(FILE *f, const char *s, size_t len, text_carry *carry);

/* "1.2k", "3.4M". */
void text_count(double v, char *out, size_t cap);

/* "1.5 GiB", "999 B". */
void text_bytes(double v, char *out, size_t cap);

/* "12s", "3m04s", "2h10m", "5d03h" from seconds. */
void text_span(int64_t s, char *out, size_t cap);

/* Milliseconds as people tell them apart: "5.4ms", "500ms", "12.0s"; "-"
 * below 0, which is unknown. */
void text_ms(double ms, char *out, size_t cap);

#endif
