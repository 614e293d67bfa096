/* progress.h -- one line on standard error that says how far something long is; only on a terminal.
 *
 * Threads: one.
 */
#ifndef TUI_CTL_PROGRESS_H
#define TUI_CTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    const char *label;
    int64_t total;                       /* bytes */
    int64_t started_us, shown_us, first; /* private: when, and from which byte on */
    bool on, drawn;
} progress;

/* `quiet`, or standard error no terminal: nothing is ever written.  `done`: bytes that are
 * there. */
void progress_begin(progress *p, const char *label, int64_t total, int64_t done, bool quiet);
/* Draws at most ten times a second. */
void progress_set(progress *p, int64_t done);
/* Removes the line. */
void progress_end(progress *p);

#endif
