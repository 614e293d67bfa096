/* troff.h -- text for man pages.  Threads: the caller's. */
#ifndef ENGINE_PROGRAM_TROFF_H
#define ENGINE_PROGRAM_TROFF_H

#include <stdio.h>

/* Writes `s` so that troff (man(7)) shows it as it is: its control characters made plain. */
void troff_put(const char *s, FILE *f);

#endif
