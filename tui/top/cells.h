/* cells.h -- a screen in memory: characters and styles in a grid, for drawing without a terminal.
 *
 * All text from outside passes cells_text(): what is not a printable character of a known width
 * (control, combining, right-to-left, formatting, broken UTF-8 ...) becomes "?", a wide one takes
 * two cells or none, and nothing is written outside its field.  So no name can disturb the screen.
 *
 * Ownership: the caller's struct; cells_free() frees.  Threads: one at a time.
 */
#ifndef TUI_TOP_CELLS_H
#define TUI_TOP_CELLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    STYLE_NORMAL,
    STYLE_DIM,
    STYLE_TITLE, /* tabs, headings */
    STYLE_HEAD,  /* of columns */
    STYLE_GOOD,
    STYLE_WARN,
    STYLE_BAD,
    STYLE_ACCENT,
    STYLE_SELECT,
    STYLE_TAGGED,
    STYLE_KEY, /* names of keys in the last line */
    STYLES
} style;

typedef struct cell {
    uint32_t ch; /* 0: the right half of a wide one */
    uint8_t style;
} cell;

typedef struct cells {
    int rows, cols;
    bool utf8;
    bool blocks; /* of UTF-8, no braille: fonts of the console have halves of blocks alone */
    cell *at;    /* [rows][cols] */
} cells;

/* Blanks all; false: no memory (the grid is empty then). */
bool cells_resize(cells *c, int rows, int cols, bool utf8);
void cells_free(cells *c);

/* Writes into [col, col + width) of a row and returns the columns used; text that is longer ends in
 * "~".  width < 0: to the end of the row. */
int cells_text(cells *c, int row, int col, int width, style s, const char *text);
/* The same, flush right. */
void cells_right(cells *c, int row, int col, int width, style s, const char *text);
int cells_printf(cells *c, int row, int col, int width, style s, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
void cells_fill(cells *c, int row, int col, int width, style s, uint32_t ch);
/* Changes the style of what stands there. */
void cells_paint(cells *c, int row, int col, int width, style s);
/* All of it, where it is dimmed because it is old. */
void cells_dim(cells *c);

/* Samples in one column of a graph: two of braille, else one. */
int cells_per(const cells *c);
/* Samples as a graph of `h` rows: braille, blocks or ASCII; v[0] is the oldest, drawn to the right
 * edge.  most: value of the full height. */
void cells_graph(cells *c, int row, int col, int h, int w, style s, const double *v, int n,
                 double most);
/* A bar of `share` (0..1), then a second part in another style. */
void cells_bar(cells *c, int row, int col, int w, double share, style s, double more, style s_more);

/* One row as UTF-8, trailing blanks cut; for --once and tests.  Malloced. */
char *cells_row(const cells *c, int row);

#endif
