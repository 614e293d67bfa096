/* near.h -- which word was meant: the nearest of some by edit distance, and only when it is near.
 *
 * Two letters that changed places count as one change.  A word of three letters may differ by one,
 * one of six or more by two; shorter ones and words beyond 31 bytes are near to nothing.
 *
 * Threads: any.
 */
#ifndef TUI_NEAR_H
#define TUI_NEAR_H

typedef struct near {
    const char *typed; /* lent */
    const char *best;  /* lent, one of those offered; NULL: none is near */
    int distance;      /* private to near.c: a better one must be below */
} near;

near near_to(const char *typed);
void near_offer(near *n, const char *candidate);

#endif
