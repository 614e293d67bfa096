/* cells.c -- the screen as a grid of characters with styles; drawing primitives and graphs. No
 * terminal here.
 *
 * Everything that loratop shows is drawn into cells, then compared with the terminal by term.c, or
 * printed as text (cells_row()) by tests and --once. So the whole view can be tested without a
 * terminal.
 *
 * A wide character takes two cells, the second with ch = 0; set() never leaves half of one. Only
 * characters whose width all terminals agree on are shown (`printable`); any other becomes '?', so
 * untrusted names cannot contain control sequences or shift a line.
 *
 * Graphs: braille characters, 2 x 4 dots per cell (two samples per column), or blocks, or ASCII.
 *
 * Threads: one. Memory: the grid, reallocated on a resize.
 */
#include "tui/top/cells.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

/* Ranges whose width every terminal agrees on. */
static const struct {
    uint32_t first, last;
    int width;
} printable[] = {
    {0x20, 0x7e, 1},     {0xa1, 0xac, 1},     {0xae, 0x24f, 1},    {0x386, 0x386, 1},
    {0x388, 0x3ce, 1},   {0x401, 0x44f, 1},   {0x451, 0x45f, 1},   {0x490, 0x4bf, 1},
    {0x2013, 0x2014, 1}, {0x2018, 0x2019, 1}, {0x201c, 0x201d, 1}, {0x2026, 0x2026, 1},
    {0x20ac, 0x20ac, 1}, {0x2190, 0x2193, 1}, {0x2500, 0x259f, 1}, {0x25b2, 0x25b2, 1},
    {0x25bc, 0x25bc, 1}, {0x25cf, 0x25cf, 1}, {0x2800, 0x28ff, 1}, {0x3041, 0x3096, 2},
    {0x30a1, 0x30fa, 2}, {0x4e00, 0x9fff, 2}, {0xac00, 0xd7a3, 2},
};

static int width_of(uint32_t ch)
{
    for (size_t i = 0; i < sizeof(printable) / sizeof(printable[0]); i++) {
        if (ch >= printable[i].first && ch <= printable[i].last) return printable[i].width;
    }
    return 0;
}

/* Decodes one character; *len bytes were taken.  Not printable in one or two cells: '?' and 1. */
static uint32_t decode(const char *s, size_t n, size_t *len, int *width)
{
    uint32_t ch = 0;
    int used = utf8_read(s, n, &ch);
    *len = used > 0 ? (size_t)used : 1;
    *width = width_of(ch);
    if (*width) return ch;
    *width = 1;
    return '?';
}

bool cells_resize(cells *c, int rows, int cols, bool utf8)
{
    if (rows < 1 || cols < 1 || rows > 2000 || cols > 4000) rows = cols = 0;
    cell *at = rows ? realloc(c->at, (size_t)rows * (size_t)cols * sizeof(*at)) : NULL;
    if (!at) {
        cells_free(c);
        return false;
    }
    *c = (cells){.rows = rows, .cols = cols, .utf8 = utf8, .blocks = c->blocks, .at = at};
    for (int i = 0; i < rows * cols; i++) at[i] = (cell){' ', STYLE_NORMAL};
    return true;
}

void cells_free(cells *c)
{
    free(c->at);
    *c = (cells){0};
}

static void set(cells *c, int row, int col, uint32_t ch, style s)
{
    if (row < 0 || row >= c->rows || col < 0 || col >= c->cols) return;
    cell *at = &c->at[(size_t)row * (size_t)c->cols + (size_t)col];
    /* Never leave half of a wide character. */
    if (at->ch == 0 && ch != 0 && col > 0) at[-1].ch = ' ';
    if (at->ch != 0 && col + 1 < c->cols && at[1].ch == 0) at[1].ch = ' ';
    *at = (cell){ch, (uint8_t)s};
}

int cells_text(cells *c, int row, int col, int width, style s, const char *text)
{
    size_t n = strlen(text), len;
    if (width < 0 || width > c->cols - col) width = c->cols - col;
    int used = 0, w;
    while (n > 0) {
        uint32_t ch = decode(text, n, &len, &w);
        if (ch > 0x7e && !c->utf8) {
            ch = '?';
            w = 1;
        }
        bool last = n == len;
        if (used + w > width || (!last && used + w == width)) {
            for (; used + 1 < width; used++) set(c, row, col + used, ' ', s);
            if (used < width) set(c, row, col + used++, '~', s);
            return used;
        }
        set(c, row, col + used, ch, s);
        if (w == 2) set(c, row, col + used + 1, 0, s);
        used += w;
        text += len;
        n -= len;
    }
    return used;
}

static int text_width(const cells *c, const char *text)
{
    size_t n = strlen(text), len;
    int all = 0, w;
    for (; n > 0; text += len, n -= len) {
        uint32_t ch = decode(text, n, &len, &w);
        all += ch > 0x7e && !c->utf8 ? 1 : w;
    }
    return all;
}

void cells_right(cells *c, int row, int col, int width, style s, const char *text)
{
    int w = text_width(c, text), pad = w < width ? width - w : 0;
    (void)cells_text(c, row, col + pad, width - pad, s, text);
}

int cells_printf(cells *c, int row, int col, int width, style s, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return cells_text(c, row, col, width, s, text);
}

void cells_fill(cells *c, int row, int col, int width, style s, uint32_t ch)
{
    if (width < 0 || width > c->cols - col) width = c->cols - col;
    if (ch > 0x7e && !c->utf8) ch = '-';
    for (int i = 0; i < width; i++) set(c, row, col + i, ch, s);
}

void cells_paint(cells *c, int row, int col, int width, style s)
{
    if (row < 0 || row >= c->rows) return;
    if (width < 0 || width > c->cols - col) width = c->cols - col;
    for (int i = 0; i < width; i++) {
        c->at[(size_t)row * (size_t)c->cols + (size_t)(col + i)].style = (uint8_t)s;
    }
}

void cells_dim(cells *c)
{
    for (int i = 0; i < c->rows * c->cols; i++) c->at[i].style = STYLE_DIM;
}

/* --------------------------------------------------------------------- graphs -- */

static int level(double v, double most, int levels)
{
    if (!(v > 0) || !(most > 0)) return 0;
    assert(levels >= 0);
    double l = ceil(v / most * levels);
    return l > levels ? levels : (int)l;
}

int cells_per(const cells *c)
{
    return c->utf8 && !c->blocks ? 2 : 1;
}

void cells_graph(cells *c, int row, int col, int h, int w, style s, const double *v, int n,
                 double most)
{
    /* dots of a braille cell from the bottom up, left and right column */
    static const unsigned char left[5] = {0, 0x40, 0x44, 0x46, 0x47},
                               right[5] = {0, 0x80, 0xa0, 0xb0, 0xb8};
    static const char ascii[] = " .:|#";
    static const uint32_t block[5] = {' ', '_', 0x2584, 0x2584, 0x2588};
    int per = cells_per(c);
    for (int x = 0; x < w; x++) {
        int i = n - (w - x) * per;
        int a = i >= 0 && i < n ? level(v[i], most, 4 * h) : 0;
        int b = per == 2 && i + 1 >= 0 && i + 1 < n ? level(v[i + 1], most, 4 * h) : 0;
        for (int y = 0; y < h; y++) {
            int base = 4 * (h - 1 - y), la = a - base, lb = b - base;
            la = la < 0 ? 0 : la > 4 ? 4 : la;
            lb = lb < 0 ? 0 : lb > 4 ? 4 : lb;
            uint32_t ch = per == 2    ? 0x2800U + left[la] + right[lb]
                          : c->blocks ? block[la]
                                      : (uint32_t)ascii[la];
            if (ch == 0x2800) ch = ' ';
            set(c, row + y, col + x, ch, s);
        }
    }
}

void cells_bar(cells *c, int row, int col, int w, double share, style s, double more, style s_more)
{
    if (w < 3) return;
    set(c, row, col, '[', STYLE_DIM);
    set(c, row, col + w - 1, ']', STYLE_DIM);
    int n = w - 2, a = level(share, 1, n), b = level(share + more, 1, n);
    for (int i = 0; i < n; i++) {
        uint32_t ch = i < a ? '|' : i < b ? ':' : ' ';
        set(c, row, col + 1 + i, ch, i < a ? s : s_more);
    }
}

/* ---------------------------------------------------------------------- output -- */

char *cells_row(const cells *c, int row)
{
    assert(row >= 0 && row < c->rows);
    char *text = malloc((size_t)c->cols * UTF8_MAX + 1);
    size_t n = 0, end = 0;
    if (!text) return NULL;
    for (int i = 0; i < c->cols; i++) {
        uint32_t ch = c->at[(size_t)row * (size_t)c->cols + (size_t)i].ch;
        if (ch == 0) continue;
        n += utf8_encode(ch, text + n);
        if (ch != ' ') end = n;
    }
    assert(end <= n && n <= (size_t)c->cols * UTF8_MAX);
    text[end] = 0;
    return text;
}
