/* term.h -- cells on a real terminal: ncursesw, and only what changed.
 *
 * Colours by what terminfo says (256, 8) or none (NO_COLOR, a terminal without); characters beyond
 * ASCII only where the locale is UTF-8.  Threads: one.
 */
#ifndef TUI_TOP_TERM_H
#define TUI_TOP_TERM_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "tui/top/cells.h"

typedef struct term_event {
    int key; /* view.h's; 0: a click or nothing */
    bool click, resized;
    int row, col, button;
} term_event;

/* ERR_UNSUPPORTED: no terminal, one that terminfo does not know, or that moves no cursor. */
err_code term_open(bool ascii, err *e);
void term_close(void);
/* As many cells as the terminal has, of its kind; false: no memory. */
bool term_size(cells *c);
/* Draws what differs from the last time. */
void term_show(const cells *c);
/* False: nothing is waiting. */
bool term_next(term_event *out);

#endif
