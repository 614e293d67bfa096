/* manual.h -- what lorad says about itself: help and man pages, from one table of commands.
 *
 * Threads: start-up only.
 */
#ifndef GATEWAY_MANUAL_H
#define GATEWAY_MANUAL_H

#include <stdbool.h>
#include <stdio.h>

void manual_usage(FILE *f);

/* The help of one command; false: there is no such command, and nothing is printed. */
bool manual_command(FILE *f, const char *name);

/* troff: lorad(1) or, with section 5, lorad.conf(5). */
void manual_page(FILE *f, int section);

#endif
