/* lines.h -- what somebody types at a terminal, line by line: edited, with what was typed before.
 *
 * libedit edits (the keys of emacs and readline, Ctrl-R searches; ~/.editrc is read).  Characters
 * are read here, so that Ctrl-C throws a line away and ends nothing.
 *
 * Ownership: lines_open() to lines_close().  Threads: one.
 */
#ifndef TUI_CTL_LINES_H
#define TUI_CTL_LINES_H

typedef enum { LINES_LINE, LINES_DROPPED, LINES_END } lines_what;

typedef struct lines lines;

/* `history`: a file for what was typed (mode 0600), read now, written by lines_close(); "": none.
 * `prompt` is borrowed, and goes to standard error.  NULL: no memory. */
lines *lines_open(const char *prompt, const char *history);
void lines_close(lines *l);

/* *text without its newline, borrowed until the next call, where there is a line. */
lines_what lines_next(lines *l, const char **text);

#endif
